"""A reader's own file, annotated: beside each part its formula and the kit's lines, with what they do differently."""

# ruff: noqa: RUF001 (formulas)
from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, NamedTuple

from mlx_grpo_kit.course.chapters.chapter_24 import exercises
from mlx_grpo_kit.course.exercise import Exercise
from mlx_grpo_kit.grpo import minimal
from mlx_grpo_kit.runtime.printing import printable
from mlx_grpo_kit.viz.style import BLUE, ORANGE

LOOK = (
    "display:block;overflow:auto;margin:4px 0;padding:6px 8px;border-radius:4px;background:rgba(140,149,159,.15);"
    "color:inherit;font-size:11.5px;line-height:1.4;white-space:pre"
)
BADGE = "display:inline-block;min-width:1.2em;border-radius:3px;color:#fff;text-align:center;font-size:10.5px"


class Point(NamedTuple):
    """Something that a part does.

    Attributes:
        words: its name.
        pattern: a regular expression of the lines that do it, on either page.
        inside: the function of the kit that does it if no line of the kit's page does; empty if none does.
    """

    words: str
    pattern: str
    inside: str = ""


class Part(NamedTuple):
    """A part of the file: an answer beside lines of `minimal.py`.

    Attributes:
        id: of the exercise.
        title, formula: what stands above.
        kits: the function of `minimal.py`.
        lines: a regular expression of the lines of that function that are shown; empty for all.
        points: what is looked for.
    """

    id: str
    title: str
    formula: str
    kits: Callable[..., Any]
    lines: str
    points: tuple[Point, ...]


PARTS = (
    Part(
        "24.1",
        "Draw the completions",
        "oᵢ,ₜ ~ π(· | qᵢ, oᵢ,₁ … oᵢ,ₜ₋₁)",
        minimal.sample,
        "",
        (
            Point("a forward pass for each token", r"qwen3_forward\(", "generate"),
            Point("a random draw", r"categorical\(|gumbel\(|choice\(|multinomial\(", "generate"),
            Point("a mask for padded prompts", r"attention_mask", "generate"),
            Point("a cache of keys and values", r"[Cc]ache", "generate"),
            Point("the end tokens", r"\bends\b|eos_token_ids"),
            Point("the limit of tokens", r"max_new_tokens"),
            Point("the seed", r"\bkey\(|default_rng\(|SeedSequence\("),
        ),
    ),
    Part(
        "24.2",
        "Score the tokens",
        "log π(oᵢ,ₜ) = logit of oᵢ,ₜ − log Σ exp(logits)",
        minimal.gradient,
        r"per_token_logps\(",
        (
            Point("logits of the place before", r"- ?1 ?: ?-1\]|\[:, ?:-1\]", "per_token_logps"),
            Point("the normalization", r"logsumexp|log_softmax|cross_entropy", "per_token_logps"),
            Point("the mask of completion tokens", r"\bmask\b.*= "),
            Point("a prompt computed once for its group", r"group|unique|\bset\(", "per_token_logps"),
        ),
    ),
    Part(
        "24.3",
        "Compare within the group",
        "Aᵢ = (rᵢ − mean r) / (std r + 10⁻⁴)",
        minimal.gradient,
        r"compute_advantages\(",
        (
            Point("the mean of the group", r"mean\(|sum\(", "compute_advantages"),
            Point("the division by the spread", r"std\(|var\(", "compute_advantages"),
            Point("rewards that are nan left out", r"nan", "compute_advantages"),
        ),
    ),
    Part(
        "24.4",
        "One gradient",
        "∇J = Σ Aᵢ ∇log π(oᵢ,ₜ) / Σ Tᵢ",
        minimal.gradient,
        "",
        (
            Point("old log-probabilities as constants", r"stop_gradient\("),
            Point("the ratio", r"exp\(", "compute_grpo_loss"),
            Point("divided by all tokens", r"/ ?\(?(mask|sum|count|total|n)", "compute_grpo_loss"),
            Point("the derivative", r"grad\("),
        ),
    ),
    Part(
        "24.10",
        "Two updates per batch",
        "min(ρA, clip(ρ, 1 − ε, 1 + ε) A) − β (eᵈ − d − 1)",
        minimal.gradient,
        r"# The policy itself|compute_grpo_loss\(",
        (
            Point("old log-probabilities of another policy", r"\bold\w* *[,=]|\bold\w*\b.*completion_logps"),
            Point("the clip", r"clip\(|clamp\(", "compute_grpo_loss"),
            Point("the minimum", r"minimum\(|\bmin\(|where\(", "compute_grpo_loss"),
            Point("the KL to a reference", r"\bkl\w* *=|beta \*", "compute_grpo_loss"),
        ),
    ),
    Part(
        "24.5",
        "The loop",
        "θ ← AdamW(θ, −∇J)",
        minimal.train,
        "",
        (
            Point("the optimizer", r"AdamW?\(|SGD\(|Lion\(|Muon\("),
            Point("a limit for the gradient's norm", r"clip_grad_norm\("),
            Point("a rate that falls", r"learning_rate *=|decay\(|schedule"),
            Point("rows of advantage 0 left out", r"if push|push[a-z]* *!= *0|nonzero|advantage.* != 0"),
            Point("the update", r"apply_gradients\(|update\("),
            Point("arrays evaluated in each step", r"mx\.eval\("),
        ),
    ),
)


Page = list[tuple[int, str]]
"""Lines with their numbers."""


@printable
class Annotated:
    """Answers to this chapter beside `minimal.py`, part by part, with a number at each line that does something named.

    A number is blue if both pages have such a line, and orange if one of them has none.

    Args:
        answers: by their exercises, as `use` returns them: the kit's solution until an exercise has passed.
    """

    def __init__(self, answers: Mapping[str, Callable]):
        kits = {each.id: each.solution for each in vars(exercises).values() if isinstance(each, Exercise)}
        own = {id: _source(answer) for id, answer in answers.items() if answer is not kits[id]}
        self._rows = [_row(part, own.get(part.id, "")) for part in PARTS]

    def __repr__(self) -> str:
        return "\n\n\n".join(map(_as_text, self._rows))

    def _repr_html_(self) -> str:
        rows = "".join(map(_as_html, self._rows))
        return f'<div style="color:var(--jp-ui-font-color1,#24292f);line-height:1.45">{rows}</div>'


class Row(NamedTuple):
    """A part with both pages; `found` has a number, words, and True if both pages have such a line, for each point."""

    part: Part
    yours: Page
    kits: Page
    found: list[tuple[int, str, bool]]


def _row(part: Part, own: str) -> Row:
    lines, first = inspect.getsourcelines(part.kits)
    shown = [(number, line) for number, line in enumerate(lines, first) if re.search(part.lines, line)]
    code = textwrap.dedent("".join(line for _, line in shown)).splitlines()
    kits = [(number, line) for (number, _), line in zip(shown, code, strict=True)]
    yours = [*enumerate(own.splitlines(), 1)]
    found = [(number, *_compared(point, yours, kits)) for number, point in enumerate(part.points, 1) if own]
    return Row(part, yours, kits, [each for each in found if each[1]])


def _compared(point: Point, yours: Page, kits: Page) -> tuple[str, bool]:
    """(where both pages do it, whether both have a line for it); no words if neither does it."""
    mine, theirs = ([number for number, line in page if _does(point, line)] for page in (yours, kits))
    if not mine and not theirs and not point.inside:
        return "", False
    here = f"your {_lines(mine)}" if mine else "no such line of yours was found"
    there = (
        f"the kit's {_lines(theirs)}" if theirs else f"the kit: inside {point.inside}" if point.inside else "not here"
    )
    return f"{point.words}: {here}; {there}", bool(mine and theirs)


def _does(point: Point, line: str) -> bool:
    code = line.strip()
    return not code.startswith(("#", '"', "def ")) and re.search(point.pattern, code) is not None


def _lines(numbers: list[int]) -> str:
    return f"line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _marks(row: Row, line: str) -> list[tuple[int, bool]]:
    """The points of a line: (number, whether both pages have it)."""
    return [(number, both) for number, _, both in row.found if _does(row.part.points[number - 1], line)]


def _as_text(row: Row) -> str:
    part, parts = row.part, []
    for title, page in (("yours", row.yours), ("the kit's, minimal.py", row.kits)):
        marked = [(number, line, "".join(f"  <{mark}>" for mark, _ in _marks(row, line))) for number, line in page]
        parts.append("\n".join([f"-- {title}", *(f"{number:3}  {line}{marks}" for number, line, marks in marked)]))
    points = [f"  <{number}> {words}" for number, words, _ in row.found] or [_missing(part)]
    return "\n\n".join([f"{part.id} {part.title}   {part.formula}", *parts, "\n".join(points)])


def _as_html(row: Row) -> str:
    part, columns = row.part, ""
    for title, page in (("yours", row.yours), ("the kit's, <code>minimal.py</code>", row.kits)):
        code = "\n".join(
            f'<span style="opacity:.55">{number:3}</span> <span style="display:inline-block;min-width:3.6em">'
            + "".join(_badge(*mark) for mark in _marks(row, line))
            + f"</span> {escape(line)}"
            for number, line in page
        )
        code = code or escape(_missing(part))
        columns += f'<div style="flex:1 1 420px;min-width:0"><b>{title}</b><pre style="{LOOK}">{code}</pre></div>'
    legend = "".join(f"<div>{_badge(number, both)} {escape(words)}</div>" for number, words, both in row.found)
    return (
        f'<div style="margin:14px 0 2px"><b>{part.id} · {part.title}</b> &nbsp; '
        f'<span style="font-family:serif;font-style:italic;font-size:15px">{escape(part.formula)}</span></div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:4px 12px">{columns}</div>'
        f'<div style="font-size:12.5px">{legend}</div>'
    )


def _missing(part: Part) -> str:
    return f"Pass {part.id}, and your answer appears here."


def _badge(number: int, both: bool) -> str:
    return f'<span style="{BADGE};background:{BLUE if both else ORANGE}">{number}</span>'


def _source(answer: Callable) -> str:
    try:
        return inspect.getsource(answer).rstrip()
    except (OSError, TypeError) as error:
        return f"# no source: {error}"
