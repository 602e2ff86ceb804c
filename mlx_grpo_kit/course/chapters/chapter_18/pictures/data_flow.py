"""A step of GRPO as boxes and arrows, each with its name in the code, its shape, and the numbers of one completion.

The left column shows the values of the completion, the right column the values of its tokens, and the lower part those
of the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from mlx_grpo_kit.viz.chart import INK_COLORS, Chart, arrow, outline, text
from mlx_grpo_kit.viz.style import BLUE, EDGE, FAINT, INK, NEGATIVE, ORANGE, POSITIVE, ZERO, shades

if TYPE_CHECKING:
    from mlx_grpo_kit.course.chapters.chapter_18.data_flow import StepData

WIDTH, HEIGHT = 804, 660
LEFT, RIGHT = (10, 296), (340, 430)  # per column: its left edge, and the width of its boxes
ROW, LABEL, CELL = 46, 182, 62  # pixels: the height of a box of tokens, the width of its words and of a cell
SMALL = 13  # pixels: the smallest text that is legible if the picture is shrunk to a page of 560 pixels
MOST_TOKENS, MOST_PARTS = 4, 4  # there is room for this many
OUTER, INNER, END = WIDTH - 10, WIDTH - 22, sum(RIGHT)  # the lines right of the boxes, and their right edge
BACK = ((END, 605), (OUTER, 605), (OUTER, 76), (END, 76))  # from the optimizer to the policy
# Each box: its column, its top and its height.
BOXES = {
    "prompts": (LEFT, 60, 48),
    "policy.params": (RIGHT, 60, 48),
    "completions.texts": (LEFT, 126, 48),
    "completion_ids": (RIGHT, 126, ROW),
    "rewards": (LEFT, 192, 48),
    "old_logps": (RIGHT, 192, ROW),
    "logps": (RIGHT, 192 + ROW, ROW),
    "groups": (LEFT, 258, 100),
    "ratio": (RIGHT, 302, ROW),
    "completion_mask": (RIGHT, 302 + ROW, ROW),
    "advantages": (LEFT, 392, 82),
    "objective": (RIGHT, 412, ROW),
    "loss": (RIGHT, 476, ROW + 20),
    "gradient": (LEFT, 492, 158),
    "parts.optimizer": (RIGHT, 560, 90),
}
MINUS, TIMES, OVER = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{DIVISION SIGN}"


def paths(second: bool) -> list[tuple[tuple[float, float], ...]]:
    """The arrows between the boxes, in the first or in the second update of a batch."""
    left, right = LEFT[0] + 60, RIGHT[0] + 60
    down = [(left, 108, 126), (left, 174, 192), (left, 240, 258), (left, 358, 392), (right, 172, 192),
            (right, 284, 302), (right, 394, 412), (right, 458, 476)]  # fmt: skip
    if not second:
        down.append((right, 108, 126))
    edge, begin = sum(LEFT), RIGHT[0]
    across = [(begin, 150, edge), (edge, 435, begin), (begin, 503, edge), (edge, 605, begin)]
    return [
        *(((x, start), (x, end)) for x, start, end in down),
        *(((start, y), (end, y)) for start, y, end in across),
        ((END, 92), (INNER, 92), (INNER, 261), (END, 261)),
        BACK,
    ]


def draw_data_flow(data: StepData, completion: int = 0, second: bool = False) -> tuple[Chart, str]:
    """(chart, words): the step, with the numbers of one completion.

    Args:
        data: from `follow_step`.
        completion: its position in the batch, counted from 0.
        second: draw the second update of the batch, not the first.

    Raises IndexError for a completion that the batch does not have.
    """
    if not 0 <= completion < len(data.tokens):
        raise IndexError(f"completion is {completion}; expected 0 to {len(data.tokens) - 1}.")
    drawing = _Drawing(data, completion, second)
    chart = Chart(WIDTH, HEIGHT)
    chart.text(10, 24, f"completion {completion} in a step of GRPO, {drawing.which} update", size=15, bold=True)
    legend = "Blue: a constant for the loss. Orange: has a gradient. Grey: input or output."
    chart.text(10, 44, legend, size=SMALL, color="soft")
    drawing.draw()
    chart.add(drawing)
    return chart, " ".join(drawing.said)


class _Drawing:
    """The boxes and arrows as an area of a chart, and the same in words."""

    def __init__(self, data: StepData, row: int, second: bool):
        self.data, self.row, self.second = data, row, second
        self.update = data.updates[int(second)]
        self.which = "second" if second else "first"
        self.said: list[str] = []
        self._markup: list[str] = []

    def parts(self) -> list[str]:
        return self._markup

    def draw(self) -> None:
        """Draw everything, from the prompt to the change of the parameters."""
        data, row, batch = self.data, self.row, self.data.batch
        num_groups, size = data.groups.shape
        group, drawn = row // size, batch.completions
        count, width = data.completion_mask.shape
        per_token = f"[{count}, {width}]"
        prompt, written = repr(drawn.problems[row].prompt), repr(drawn.texts[row])
        self.said.append(
            f"Completion {row} in a step of GRPO, {self.which} update of the batch: prompt {prompt}, completion "
            f"{written}."
        )

        self._box("prompts", EDGE, f"[{num_groups}]", f"group {group} asks", _short(prompt, 40))
        policy = "the policy after one update from this batch" if self.second else "the policy that draws this batch"
        arrays = f"{data.num_arrays} arrays"
        self._box("policy.params", ORANGE, arrays, f"{data.num_parameters:,} numbers", policy)
        self._box("completions.texts", BLUE, f"[{count}]", "decoded", _short(written, 40))
        told = "drawn before update 1" if self.second else "drawn from this policy"
        if (length := len(data.tokens[row])) > MOST_TOKENS:
            told = f"the first {MOST_TOKENS} of {length}"
        self._tokens("completion_ids", BLUE, per_token, told, self._spellings())
        self._box("rewards", BLUE, f"[{count}]", "compute_rewards", _plain(batch.rewards[row]))
        self._group(group)
        self._advantage(group)

        self._tokens("old_logps", BLUE, per_token, "under the policy that drew", self._numbers(data.old_logps))
        self._tokens("logps", ORANGE, per_token, "under the policy now", self._numbers(self.update.logps))
        self._tokens("ratio", ORANGE, per_token, f"exp(logps {MINUS} old_logps)", self._numbers(self.update.ratio))
        self._tokens("completion_mask", BLUE, per_token, "1: a token, 0: padding", self._mask())
        self._objective(per_token)
        self._loss(count)
        self._gradient()
        self._change()
        for points in paths(self.second):
            strong = self.second and points[-1] == BACK[-1]
            self._markup.append(arrow(points, ORANGE if strong else EDGE, 3 if strong else 2))
        self._say_tokens()

    # Boxes of one completion

    def _group(self, group: int) -> None:
        rewards = self.data.groups[group]
        num_groups, size = self.data.groups.shape
        x, top, wide = self._outline(
            "groups", BLUE, f"[{num_groups}, {size}]", f"rewards.reshape({num_groups}, {size})[{group}]"
        )
        cell = (wide - 20) / size
        for place, reward in enumerate(rewards):
            left = x + 10 + cell * place
            self._markup.append(_area(left + 1, top + 30, cell - 3, 28, FAINT))
            words = _plain(reward) if cell >= 24 else ""
            self._write(left + cell / 2, top + 49, words, size=SMALL, anchor="middle", color=INK)
            if place == self.row % size:
                self._markup.append(outline(left, top + 29, cell - 1, 30, BLUE, width=3))
        mean, deviation = self.data.means[group], self.data.deviations[group]
        words = f"mean {mean:.3f}, deviation {deviation:.3f}"
        self._write(x + 10, top + 82, words, size=14)
        listed = ", ".join(map(_plain, rewards))
        self.said.append(f"Rewards of its group {listed}: {words}.")

    def _advantage(self, group: int) -> None:
        mean, deviation = self.data.means[group], self.data.deviations[group]
        reward, advantage = (float(each[self.row]) for each in (self.data.batch.rewards, self.data.batch.advantages))
        x, top, _ = self._outline("advantages", BLUE, f"[{len(self.data.tokens)}]", "compute_advantages")
        sum_ = f"({_plain(reward)} {MINUS} {mean:.3f}) {OVER} ({deviation:.3f} + 0.0001) ="
        self._write(x + 10, top + 44, sum_, size=14)
        self._write(x + 10, top + 69, _signed(advantage), size=15, bold=True)
        self.said.append(f"Its advantage {_signed(advantage)}.")

    # Boxes of its tokens

    def _objective(self, shape: str) -> None:
        epsilon = self.data.args.epsilon
        values, clipped = self.update.objective[self.row], self.update.clipped[self.row]
        words = [f"{_decimal(value)}" for value in values]
        below = [{1: "▲ clip", -1: "▼ clip"}.get(int(side), "") for side in clipped]
        clipped_ratio = f"clip(r, {1 - epsilon:g}, {1 + epsilon:g})"
        self._tokens("objective", ORANGE, shape, f"min(r A, {clipped_ratio} A)", words, below=below, tints=values)

    def _loss(self, count: int) -> None:
        shares, loss = self.update.shares, self.update.loss
        tokens = int(self.data.completion_mask.sum())
        own = [_decimal(share, 4) for share in shares[self.row]]
        x, top, wide = self._outline("loss", ORANGE, "one number", "")
        self._write(x + 10, top + 37, f"{MINUS}mask {TIMES} objective {OVER} {tokens}", size=SMALL, color="soft")
        self._cells(top, own, known=self.data.completion_mask[self.row])
        share = float(shares[self.row].sum())
        self._write(x + 10, top + 57, f"this completion adds {_decimal(share, 4)}", size=SMALL)
        whole = f"all {count} together: {_decimal(loss, 4)}"
        self._write(x + wide - 10, top + 57, whole, size=SMALL, bold=True, anchor="end")
        self.said.append(
            f"Its share of the loss {_decimal(share, 4)}; the loss of all {count} completions {_decimal(loss, 4)}."
        )

    def _spellings(self) -> list[str]:
        words = [_short(token, 8) for token in self.data.tokens[self.row]]
        width = self.data.completion_mask.shape[1]
        return words + ["padding"] * (width - len(words))

    def _numbers(self, values: np.ndarray) -> list[str]:
        return [_decimal(value) for value in values[self.row]]

    def _mask(self) -> list[str]:
        return [str(int(real)) for real in self.data.completion_mask[self.row]]

    def _tokens(
        self,
        name: str,
        color: str,
        shape: str,
        words: str,
        cells: Sequence[str],
        *,
        below: Sequence[str] = (),
        tints: np.ndarray | None = None,
    ) -> None:
        """A box with a cell for each token."""
        x, top, _ = self._outline(name, color, shape, "")
        self._write(x + 10, top + 37, words, size=SMALL, color="soft")
        self._cells(top, cells, below=below, tints=tints, known=self.data.completion_mask[self.row])

    def _cells(
        self,
        top: float,
        words: Sequence[str],
        *,
        known: np.ndarray,
        below: Sequence[str] = (),
        tints: np.ndarray | None = None,
    ) -> None:
        color = shades(-1, 1, (NEGATIVE, ZERO, POSITIVE))
        largest = 1.0 if tints is None else float(np.abs(tints[known]).max()) or 1.0
        for place, each in enumerate(words[:MOST_TOKENS]):
            left = RIGHT[0] + LABEL + CELL * place
            real = bool(known[place])
            ink = "ink" if real else "soft"
            if tints is not None and real:
                share = float(tints[place]) / largest
                self._markup.append(_area(left, top + 3, CELL - 3, ROW - 6, color(0.8 * share)))
                ink = INK
            under = below[place] if below else ""
            self._write(left + CELL / 2, top + (19 if under else 28), each, size=SMALL, anchor="middle", color=ink)
            self._write(left + CELL / 2, top + 36, under, size=SMALL, anchor="middle", color=ink)

    # Boxes of the whole model

    def _gradient(self) -> None:
        norm, most = self.update.grad_norm, self.data.args.max_grad_norm
        x, top, _ = self._outline("gradient", EDGE, f"{self.data.num_arrays} arrays", "from parts.learner")
        self._bars(x, top + 34, 100, self.update.gradient, ORANGE)
        kept = f"clipped to {most:g}" if norm > most else "not clipped"
        self._write(x + 10, top + 144, f"its norm {norm:.3f}, {kept}", size=14)
        self.said.append(f"Norm of the gradient {norm:.3f}, {kept}.")

    def _change(self) -> None:
        args, change = self.data.args, self.update.change
        whole = float(np.sqrt(sum(value**2 for value in change.values())))
        words = f"{args.optim}, rate {args.learning_rate:g}: moves by {whole:.3f} in all"
        x, top, _ = self._outline("parts.optimizer", EDGE, "", words)
        for place, (name, value) in enumerate(self._largest(change).items()):
            left, y = x + 10 + 200 * (place % 2), top + 39 + 18 * (place // 2)
            self._write(left, y, f"{_short(name, 20)} {value:.3f}", size=SMALL)
        before, after = (float(each[self.row].sum()) for each in (self.update.logps, self.update.logps_after))
        verdict = "likelier" if after > before else "less likely" if after < before else "as likely as before"
        words = f"{_decimal(before)}, then {_decimal(after)}: {verdict}"
        self._write(x + 10, top + 79, f"completion {self.row}: logps add up to {words}", size=SMALL)
        self.said.append(f"The parameters move by {whole:.3f} in all; the completion's log-probability is {words}.")

    def _bars(self, x: float, top: float, along: float, lengths: dict[str, float], color: str) -> None:
        largest = max(lengths.values()) or 1.0
        for place, (name, value) in enumerate(self._largest(lengths).items()):
            y = top + 24 * place
            self._write(x + 10, y + 12, _short(name, 16), size=SMALL)
            self._markup.append(_area(x + 120, y, max(1.0, along * value / largest), 15, color))
            self._write(x + 128 + along * value / largest, y + 12, f"{value:.3f}", size=SMALL)

    @staticmethod
    def _largest(lengths: dict[str, float]) -> dict[str, float]:
        """The parts with the largest numbers, in the order of the model."""
        kept = sorted(lengths, key=lengths.get)[-MOST_PARTS:]
        return {name: value for name, value in lengths.items() if name in kept}

    # Outlines, titles and text

    def _outline(self, name: str, color: str, shape: str, words: str) -> tuple[float, float, float]:
        """Draw an empty box with its title; return its left edge, its top and its width."""
        (x, wide), top, high = BOXES[name]
        self._markup.append(outline(x, top, wide, high, color))
        self._title(x, top, name, shape, words)
        return x, top, wide

    def _box(self, name: str, color: str, shape: str, words: str, content: str) -> None:
        x, top, _ = self._outline(name, color, shape, words)
        self._write(x + 10, top + 40, content, size=14)

    def _title(self, x: float, top: float, name: str, shape: str, words: str) -> None:
        """Write a name, its shape and more words in one line, whose parts the browser places one after the other."""
        spans = f'<tspan font-weight="700">{escape(name)}</tspan>' + "".join(
            f'<tspan dx="8" class="soft" fill="{INK_COLORS["soft"]}" font-size="{SMALL}">{escape(more)}</tspan>'
            for more in (shape, words)
            if more
        )
        ink = f'class="ink" fill="{INK_COLORS["ink"]}"'
        self._markup.append(f'<text x="{x + 10:g}" y="{top + 19:g}" font-size="14" {ink}>{spans}</text>')

    def _write(self, x: float, y: float, words: str, **options) -> None:
        self._markup.append(text(x, y, words, **options))

    def _say_tokens(self) -> None:
        """Describe the numbers of each token in words."""
        update, row = self.update, self.row
        for place, token in enumerate(self.data.tokens[row]):
            side = {1: ", clipped above", -1: ", clipped below"}.get(int(update.clipped[row, place]), "")
            self.said.append(
                f"Token {token}: log-probability {_decimal(update.logps[row, place])}, when drawn "
                f"{_decimal(self.data.old_logps[row, place])}, ratio {_decimal(update.ratio[row, place])}, objective "
                f"{_decimal(update.objective[row, place])}{side}, share of the loss "
                f"{_decimal(update.shares[row, place], 4)}."
            )


def _area(x: float, y: float, wide: float, high: float, color: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{color}"/>'


def _decimal(value: float, places: int = 3) -> str:
    """A number with `places` decimals; if it rounds to 0, it has no sign."""
    words = f"{float(value):.{places}f}"
    return (words if float(words) else words.lstrip("-")).replace("-", MINUS)


def _signed(value: float) -> str:
    words = _decimal(value)
    return words if words.startswith(MINUS) or not float(words) else f"+{words}"


def _plain(value: float) -> str:
    return f"{float(value):.3g}".replace("-", MINUS)


def _short(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
