"""The boxes of a Qwen3 that one token passes through: their numbers, their gradients, and the calculation of each.

This file repeats the formulas for a single number, forward and backward. The results of `Box.forward(i)` and
`Box.backward(i)` equal those of the model and its automatic gradient (`Box.values[i]`, `Box.grads[i]`), except for
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mlx_grpo_kit.instruments.flow.sums import (
    MINUS,
    OVER,
    ROOT,
    TIMES,
    Products,
    Work,
    back_through_linear,
    back_through_norm,
    digits,
    linear,
    norm,
    plus,
    rms,
    summed,
    weight_gradient,
)


@dataclass(frozen=True)
class Trace:
    """The record of a text in a Qwen3: every inner value and, after a backward pass, its gradient.

    Attributes:
        config: the sizes, under Hugging Face's names.
        ids: the tokens, [T].
        spell: a function from a token id to its text.
        params: the weights by their names in the kit.
        record: the inner values by their names in `qwen3/forward.py`, for one row: [T, hidden], [T, heads, D],
            [heads, T, D], [heads, T, T].
        radians: the angle by which each of the D / 2 pairs of numbers rotates from one position to the next.
        rope_factor: the factor of queries and keys before they are rotated; 1 without YaRN.
        targets: position -> the token that the loss expects next.
        grads: the gradients of the loss with respect to the inner values, by the same names. The loss is the sum of
            -log p(target) over `targets`.
    """

    config: Any
    ids: Sequence[int]
    spell: Callable[[int], str]
    params: Mapping[str, np.ndarray]
    record: Mapping[str, np.ndarray]
    radians: np.ndarray
    rope_factor: float = 1.0
    targets: Mapping[int, int] = field(default_factory=dict)
    grads: Mapping[str, np.ndarray] | None = None

    @property
    def tokens(self) -> list[str]:
        """The text of each token, in quotes."""
        return [repr(self.spell(id_)) for id_ in self.ids]

    def probabilities(self, position: int) -> np.ndarray:
        """Return the probabilities of the token after `position`: [V]."""
        logits = self.record["logits"][position].astype(np.float64)
        powers = np.exp(logits - logits.max())
        return powers / powers.sum()

    @property
    def loss(self) -> float:
        """The sum of -log p(target)."""
        return -sum(math.log(self.probabilities(position)[target]) for position, target in self.targets.items())


@dataclass(frozen=True)
class Wire:
    """The lines from a box to its neighbours. Line 0 is the residual stream; 1 to 3 leave it and return.

    Attributes:
        at: the line of the box.
        above, below: lines that enter it from above, and lines that leave it downwards.
        past: lines that pass it.
        adds: True if two lines are added there.
    """

    at: int = 0
    above: tuple[int, ...] = (0,)
    below: tuple[int, ...] = (0,)
    past: tuple[int, ...] = ()
    adds: bool = False


@dataclass(frozen=True)
class Box:
    """One inner value at one token (and in one head).

    Attributes:
        key: its name in the record, or "probabilities" or "loss".
        title: the last part of the key.
        words: its purpose, in one line.
        values: [n]
        grads: [n], or None without a backward pass.
        forward: from i to the Work of values[i].
        backward: from i to the Work of grads[i].
        weight: from i to the Work of the gradient of one weight that values[i] depends on, if there are weights.
        labels: names of the numbers, such as tokens; by default 0, 1, 2, ...
        shown: the numbers to draw, in this order; None means the first ones.
    """

    key: str
    title: str
    words: str
    wire: Wire
    values: np.ndarray
    grads: np.ndarray | None
    forward: Callable[[int], Work]
    backward: Callable[[int], Work] | None = None
    weight: Callable[[int], Work] | None = None
    labels: Callable[[int], str] | None = None
    shown: np.ndarray | None = None

    def name(self, index: int) -> str:
        """Return the name of one of its numbers."""
        return f"{self.title}[{self.labels(index) if self.labels else index}]"


class Boxes:
    """The boxes of one token's path through the model: `before()`, `layer(0)` ..., `after()`.

    Args:
        trace: the record of a text.
        position: the token, from 0.
        head: the query head, from 0; its keys and values are those of head // (query heads per head of keys).
    """

    def __init__(self, trace: Trace, position: int, head: int = 0):
        config = trace.config
        for name, value, end in (("position", position, len(trace.ids)), ("head", head, config.num_attention_heads)):
            if not 0 <= value < end:
                raise ValueError(f"{name} is {value}; expected 0 to {end - 1}.")
        self.trace, self.position, self.head = trace, position, head
        self.group = config.num_attention_heads // config.num_key_value_heads
        self.kv_head = head // self.group
        self.places = [f"{index} {token}" for index, token in enumerate(trace.tokens)]
        self._head_places = [
            f"head {h}, {d}" for h in range(config.num_attention_heads) for d in range(config.head_dim)
        ]

    def before(self) -> list[Box]:
        """List the box before the first layer: the embedding."""
        id_, hidden = int(self.trace.ids[self.position]), self.trace.config.hidden_size
        row = self._weight("embedding", id_)

        def forward(i: int) -> Work:
            line = f"embedding[{i}] = W[{id_}, {i}] = {digits(row[i])}: looked up, nothing is computed"
            return Work(f"embedding[{i}]", (line,), float(row[i]))

        def weight(i: int) -> Work:
            same = [t for t, other in enumerate(self.trace.ids) if other == id_]
            sums = Products(
                f"sum over the places of {self.trace.tokens[self.position]} of grad embedding[t, {i}]",
                f"grad embedding[t, {i}]", "once", self._all("embedding", grad=True)[same, i], np.ones(len(same)),
                [self.places[t] for t in same],
            )  # fmt: skip
            after = ""
            if self.trace.config.tie_word_embeddings:
                after = " (from the lookup; the output layer, which uses the same table, adds its own gradient)"
            return summed(f"grad embedding.weight[{id_}, {i}]", sums, after=after)

        words = f"row {id_} of the table: {hidden} numbers that represent {self.trace.tokens[self.position]}"
        wire = Wire(above=())
        return [self._box("embedding", "embedding", words, wire, forward, partial(self._back_to_stream, 0), weight)]

    def layer(self, layer: int) -> list[Box]:
        """List the boxes of one layer, attention first."""
        return [*self._projections(layer), *self._attention(layer), *self._mlp(layer)]

    def after(self) -> list[Box]:
        """List the boxes after the last layer: norm, logits, probabilities, and the loss if there are targets."""
        trace, config, p = self.trace, self.trace.config, self.position
        stream = self._stream_name(config.num_hidden_layers)
        x, weight = self._at(stream), self._weight("final_norm")
        table = "embedding" if config.tie_word_embeddings else "lm_head"
        normed = self._at("final_norm")
        probabilities, logits = trace.probabilities(p), self._at("logits")
        target = trace.targets.get(p)
        likely = np.argsort(-probabilities, kind="stable")
        shown = likely[:12]
        if target is not None:
            shown = np.array([target, *(id_ for id_ in shown if id_ != target)][:12])

        def token(id_: int) -> str:
            return repr(trace.spell(int(id_)))

        def back_to_norm(i: int) -> Work:
            share = back_through_linear(
                "logits", self._at("logits", grad=True), f"{table}.weight", self._weight(table, slice(None), i), i
            )
            return summed(f"grad final_norm[{i}]", share)

        def norm_weight(i: int) -> Work:
            return self._norm_weight("final_norm", stream, "final_norm.weight", i)

        def to_logit(v: int) -> Work:
            return linear(
                f"logits[{token(v)}]", "final_norm", normed, f"{table}.weight: row {v} is {token(v)}'s",
                self._weight(table, v), v,
            )  # fmt: skip

        def back_to_logit(v: int) -> Work:
            name = f"grad logits[{token(v)}]"
            if target is None:
                return Work(name, (f"{name} = 0: the loss expects nothing after this token",), 0.0)
            asked = float(v == target)
            total = float(probabilities[v]) - asked
            line = (
                f"{name} = p {MINUS} {asked:.0f} = {digits(probabilities[v])} {MINUS} {asked:.0f} = {digits(total)}, "
                f"with 1 for the token that the loss expects, {token(target)}, and 0 for any other"
            )
            return Work(name, (line,), total)

        def logit_weight(v: int) -> Work:
            j = self._largest_input(to_logit(v))
            dy, inputs = self._all("logits", grad=True)[:, v], self._all("final_norm")[:, j]
            return weight_gradient(f"{table}.weight", v, j, "logits", dy, "final_norm", inputs, self.places)

        def to_probability(v: int) -> Work:
            top = float(logits.max())
            powers = np.exp(logits - top)
            line = (
                f"p({token(v)}) = e^(logit {MINUS} largest) {OVER} sum of all of these = e^({digits(logits[v])} "
                f"{MINUS} {digits(top)}) {OVER} {digits(powers.sum())} = {digits(powers[v])} {OVER} "
                f"{digits(powers.sum())} = {digits(powers[v] / powers.sum())}"
            )
            return Work(f"p({token(v)})", (line,), float(powers[v] / powers.sum()))

        def back_to_probability(v: int) -> Work:
            name = f"grad p({token(v)})"
            if v != target:
                return Work(name, (f"{name} = 0: the loss does not depend on it",), 0.0)
            total = -1 / float(probabilities[v])
            line = f"loss = {MINUS}log p, so {name} = {MINUS}1 {OVER} p = {MINUS}1 {OVER} {digits(probabilities[v])}"
            return Work(name, (f"{line} = {digits(total)}",), total)

        probability_grads = None
        if trace.grads is not None:
            probability_grads = np.zeros_like(probabilities)
            if target is not None:
                probability_grads[target] = -1 / probabilities[target]
        last = Wire() if trace.targets else Wire(below=())
        boxes = [
            self._box(
                "final_norm", "final_norm", "the stream, scaled to size 1 one last time", Wire(),
                lambda i: norm(f"final_norm[{i}]", stream, x, weight, config.rms_norm_eps, i), back_to_norm,
                norm_weight,
            ),
            self._box(
                "logits", "logits", f"a score for each of the {config.vocab_size:,} tokens that could come next",
                Wire(), to_logit, back_to_logit, logit_weight, labels=token, shown=shown,
            ),
            Box(
                "probabilities", "p", "softmax: the probability of the next token", last, probabilities,
                probability_grads, to_probability, back_to_probability, None, token, shown,
            ),
        ]  # fmt: skip
        return [*boxes, self._loss()] if trace.targets else boxes

    def _loss(self) -> Box:
        trace = self.trace
        steps = {position: float(trace.probabilities(position)[target]) for position, target in trace.targets.items()}
        asked = "".join(trace.spell(target) for target in trace.targets.values())

        def forward(_: int) -> Work:
            lines = [
                f"after {self.places[position]}: {MINUS}log p({trace.spell(trace.targets[position])!r}) = "
                f"{MINUS}log {digits(p)} = {digits(-math.log(p))}"
                for position, p in steps.items()
            ]
            if len(lines) > 1:
                lines.append(f"loss = their sum = {digits(trace.loss)}")
            return Work("loss", tuple(lines), trace.loss)

        def backward(_: int) -> Work:
            return Work("grad loss", ("grad loss = 1: the backward pass begins here",), 1.0)

        grads = None if trace.grads is None else np.ones(1)
        words = f"{MINUS}log of the probability of {asked!r}: small if the model expected it"
        return Box("loss", "loss", words, Wire(below=()), np.array([trace.loss]), grads, forward, backward)

    def _projections(self, layer: int) -> list[Box]:
        """Norm, queries, keys, values; their norms; their rotations."""
        trace, config, head_dim = self.trace, self.trace.config, self.trace.config.head_dim
        at, names = f"layers.{layer}.self_attn.", {"q": self.head, "k": self.kv_head, "v": self.kv_head}
        stream, key = self._stream_name(layer), f"layers.{layer}.input_layernorm"
        x, normed, eps = self._at(stream), self._at(key), config.rms_norm_eps

        def back_to_normed(i: int) -> Work:
            shares = []
            for letter in "qkv":
                dy = self._at(f"{at}{letter}_proj", grad=True, head=None).ravel()
                name, column = f"{at}{letter}_proj.weight", self._weight(f"{at}{letter}_proj", slice(None), i)
                shares.append(back_through_linear(f"{letter}_proj", dy, name, column, i, self._head_places))
            return summed(f"grad input_layernorm[{i}]", *shares)

        def project(letter: str, d: int) -> Work:
            row = names[letter] * head_dim + d
            weight = self._weight(f"{at}{letter}_proj", row)
            return linear(f"{letter}_proj[{d}]", "input_layernorm", normed, f"{at}{letter}_proj.weight", weight, row)

        def projection_weight(letter: str, d: int) -> Work:
            row, j = names[letter] * head_dim + d, self._largest_input(project(letter, d))
            dy = self._all(f"{at}{letter}_proj", grad=True)[:, names[letter], d]
            return weight_gradient(
                f"{letter}_proj.weight", row, j, f"{letter}_proj", dy, "input_layernorm", self._all(key)[:, j],
                self.places,
            )  # fmt: skip

        def normalise(letter: str, d: int) -> Work:
            weight = self._weight(f"{at}{letter}_norm")
            return norm(f"{letter}_norm[{d}]", f"{letter}_proj", self._at(f"{at}{letter}_proj"), weight, eps, d)

        def back_through_head_norm(letter: str, d: int) -> Work:
            weight = self._weight(f"{at}{letter}_norm")
            return back_through_norm(
                f"grad {letter}_proj[{d}]", f"{letter}_norm", self._at(f"{at}{letter}_proj"), weight, eps,
                self._at(f"{at}{letter}_norm", grad=True), d,
            )  # fmt: skip

        def head_norm_weight(letter: str, d: int) -> Work:
            return self._norm_weight(f"{at}{letter}_norm", f"{at}{letter}_proj", f"{letter}_norm.weight", d)

        def back_to_values(d: int) -> Work:
            p, queries = self.position, range(self.position, len(trace.ids))
            heads = range(self.kv_head * self.group, (self.kv_head + 1) * self.group)
            weights, mixed = trace.record[f"{at}weights"], trace.grads[f"{at}mixed"]
            pairs = [(h, t) for h in heads for t in queries]
            sums = Products(
                f"sum over the queries that look here of weights {TIMES} grad mixed[{d}]",
                "weights", f"grad mixed[{d}]",
                np.array([float(weights[h, t, p]) for h, t in pairs]),
                np.array([float(mixed[h, t, d]) for h, t in pairs]),
                [f"head {h}, {self.places[t]}" for h, t in pairs],
            )  # fmt: skip
            return summed(f"grad v_proj[{d}]", sums)

        def back_to_query(d: int) -> Work:
            seen = slice(0, self.position + 1)
            sums = Products(
                f"sum over the keys s of grad scores[s] {TIMES} k_rope[s, {d}] {OVER} {ROOT}{head_dim}",
                "grad scores[s]", f"k_rope[s, {d}]", self._at(f"{at}scores", grad=True)[seen],
                trace.record[f"{at}k_rope"][self.kv_head, seen, d].astype(np.float64), self.places[seen],
                head_dim**-0.5, f"{OVER} {ROOT}{head_dim}",
            )  # fmt: skip
            return summed(f"grad q_rope[{d}]", sums)

        def back_to_key(d: int) -> Work:
            p, queries = self.position, range(self.position, len(trace.ids))
            heads = range(self.kv_head * self.group, (self.kv_head + 1) * self.group)
            pairs = [(h, t) for h in heads for t in queries]
            scores, turned = trace.grads[f"{at}scores"], trace.record[f"{at}q_rope"]
            sums = Products(
                f"sum over the queries that look here of grad scores {TIMES} q_rope[{d}] {OVER} {ROOT}{head_dim}",
                "grad scores", f"q_rope[{d}]", np.array([float(scores[h, t, p]) for h, t in pairs]),
                np.array([float(turned[h, t, d]) for h, t in pairs]), [f"head {h}, {self.places[t]}" for h, t in pairs],
                head_dim**-0.5, f"{OVER} {ROOT}{head_dim}",
            )  # fmt: skip
            return summed(f"grad k_rope[{d}]", sums)

        def box(letter: str, kind: str, words: str, wire: Wire, forward, backward, weight=None) -> Box:
            partials = [None if f is None else partial(f, letter) for f in (forward, backward, weight)]
            return self._box(f"{at}{letter}_{kind}", f"{letter}_{kind}", words, wire, *partials)

        def unit(letter: str) -> str:
            return "query" if letter == "q" else "key"

        past = {1: (0, 2, 3), 2: (0, 1, 3), 3: (0, 1, 2)}
        lines = {line: Wire(line, (line,), (line,), past[line]) for line in (1, 2, 3)}
        shared = f" (head {self.kv_head} of keys and values)" if self.group > 1 else ""
        boxes = [
            self._box(
                key, "input_layernorm", "a copy of the stream, scaled to size 1", Wire(1, (0,), (1, 2, 3), (0,)),
                lambda i: norm(f"input_layernorm[{i}]", stream, x, self._weight(key), eps, i), back_to_normed,
                lambda i: self._norm_weight(key, stream, "input_layernorm.weight", i),
            ),
            box("q", "proj", f"query of head {self.head}: what this token looks for", lines[1], project,
                back_through_head_norm, projection_weight),
            box("k", "proj", f"key: what queries find it by{shared}", lines[2], project, back_through_head_norm,
                projection_weight),
            self._box(f"{at}v_proj", "v_proj", f"value: what it passes on{shared}", lines[3],
                partial(project, "v"), back_to_values, partial(projection_weight, "v")),
        ]  # fmt: skip
        for letter, line in (("q", 1), ("k", 2)):
            words = f"the {unit(letter)}, scaled to size 1"
            boxes.append(
                box(letter, "norm", words, lines[line], normalise, partial(self._turn_back, at), head_norm_weight)
            )
        for letter, line, backward in (("q", 1, back_to_query), ("k", 2, back_to_key)):
            words = f"the {unit(letter)}, rotated by its position, {self.position}"
            turn = partial(self._turn, at, letter)
            boxes.append(self._box(f"{at}{letter}_rope", f"{letter}_rope", words, lines[line], turn, backward))
        return boxes

    def _attention(self, layer: int) -> list[Box]:
        """Scores, weights, the weighted sum of values, and its return to the stream."""
        trace, config, p = self.trace, self.trace.config, self.position
        at, head_dim, seen = f"layers.{layer}.self_attn.", config.head_dim, slice(0, self.position + 1)
        queries, scores, weights = (self._at(f"{at}{name}") for name in ("q_rope", "scores", "weights"))
        keys = trace.record[f"{at}k_rope"][self.kv_head].astype(np.float64)
        values = trace.record[f"{at}v_proj"][:, self.kv_head].astype(np.float64)

        def label(s: int) -> str:
            return self.places[s]

        def score(s: int) -> Work:
            sums = Products(
                f"sum over d of q_rope[d] {TIMES} k_rope[d] of {label(s)} {OVER} {ROOT}{head_dim}", "q_rope[d]",
                "k_rope[d]", queries, keys[s], None, head_dim**-0.5, f"{OVER} {ROOT}{head_dim}",
            )  # fmt: skip
            return summed(f"scores[{label(s)}]", sums)

        def back_to_score(s: int) -> Work:
            grads = self._at(f"{at}weights", grad=True)[seen]
            shared = Products(
                f"weighted mean of grad weights = sum over s of weights[s] {TIMES} grad weights[s]",
                "weights[s]", "grad weights[s]", weights[seen], grads, self.places[seen],
            )  # fmt: skip
            total = float(weights[s] * (grads[s] - shared.total))
            name = f"grad scores[{label(s)}]"
            lines = (
                f"{name} = weights[s] {TIMES} (grad weights[s] {MINUS} weighted mean of grad weights) = "
                f"{digits(weights[s])} {TIMES} ({digits(grads[s])} {MINUS} {digits(shared.total)}) = {digits(total)}",
            )
            return Work(name, lines, total, (shared,))

        def weigh(s: int) -> Work:
            top = float(scores[seen].max())
            powers = np.exp(scores[seen] - top)
            total = float(powers[s] / powers.sum())
            line = (
                f"weights[{label(s)}] = e^(score {MINUS} largest) {OVER} sum of all of these = e^({digits(scores[s])} "
                f"{MINUS} {digits(top)}) {OVER} {digits(powers.sum())} = {digits(powers[s])} {OVER} "
                f"{digits(powers.sum())} = {digits(total)}"
            )
            return Work(f"weights[{label(s)}]", (line,), total)

        def back_to_weight(s: int) -> Work:
            sums = Products(
                f"sum over d of grad mixed[d] {TIMES} v_proj[d] of {label(s)}", "grad mixed[d]", "v_proj[d]",
                self._at(f"{at}mixed", grad=True), values[s],
            )  # fmt: skip
            return summed(f"grad weights[{label(s)}]", sums)

        def mix(d: int) -> Work:
            sums = Products(
                f"sum over the tokens s of weights[s] {TIMES} v_proj[s, {d}]", "weights[s]", f"v_proj[s, {d}]",
                weights[seen], values[seen, d], self.places[seen],
            )  # fmt: skip
            return summed(f"mixed[{d}]", sums)

        def back_to_mixed(d: int) -> Work:
            column = self.head * head_dim + d
            weight, dy = self._weight(f"{at}o_proj", slice(None), column), self._at(f"{at}o_proj", grad=True)
            return summed(f"grad mixed[{d}]", back_through_linear("o_proj", dy, f"{at}o_proj.weight", weight, column))

        mixed = trace.record[f"{at}mixed"].astype(np.float64).swapaxes(0, 1).reshape(len(trace.ids), -1)

        def project(i: int) -> Work:
            weight = self._weight(f"{at}o_proj", i)
            return linear(f"o_proj[{i}]", "mixed", mixed[p], f"{at}o_proj.weight", weight, i, self._head_places)

        def projection_weight(i: int) -> Work:
            j, dy = self._largest_input(project(i)), self._all(f"{at}o_proj", grad=True)[:, i]
            return weight_gradient("o_proj.weight", i, j, "o_proj", dy, "mixed", mixed[:, j], self.places)

        order = np.arange(p + 1)
        if len(order) > 12:
            order = np.sort(np.argsort(-weights[seen], kind="stable")[:12])
        hidden = "; later tokens are hidden" if p + 1 < len(trace.ids) else ""
        stream, attended = self._stream_name(layer), f"layers.{layer}.attended"
        return [
            self._box(
                f"{at}scores", "scores", f"query \N{MIDDLE DOT} key {OVER} {ROOT}{head_dim} with each token{hidden}",
                Wire(1, (1, 2), (1,), (0, 3)), score, back_to_score, labels=label, shown=order,
            ),
            self._box(
                f"{at}weights", "weights", "softmax: the share of each token", Wire(1, (1,), (1,), (0, 3)),
                weigh, back_to_weight, labels=label, shown=order,
            ),
            self._box(
                f"{at}mixed", "mixed", "the tokens' values, mixed with these weights", Wire(1, (1, 3), (1,), (0,)), mix,
                back_to_mixed,
            ),
            self._box(
                f"{at}o_proj", "o_proj", f"all heads together, back to {config.hidden_size} numbers",
                Wire(1, (1,), (1,), (0,)), project, partial(self._handed_on, "o_proj", attended), projection_weight,
            ),
            self._box(
                attended, "attended", "added to the stream", Wire(0, (0, 1), (0,), (), True),
                partial(self._added, "attended", stream, f"{at}o_proj"), partial(self._back_to_attended, layer),
            ),
        ]  # fmt: skip

    def _mlp(self, layer: int) -> list[Box]:
        """Norm, gate and up, their product, down, and back into the stream."""
        config, at = self.trace.config, f"layers.{layer}.mlp."
        key, stream = f"layers.{layer}.post_attention_layernorm", f"layers.{layer}.attended"
        x, normed, eps = self._at(stream), self._at(key), config.rms_norm_eps
        gate, up, gated = (self._at(f"{at}{name}") for name in ("gate_proj", "up_proj", "gated"))

        def sigmoid(number: float) -> float:
            return math.exp(-np.logaddexp(0, -number))

        def back_to_normed(i: int) -> Work:
            shares = [
                back_through_linear(
                    name, self._at(at + name, grad=True), f"{at}{name}.weight",
                    self._weight(at + name, slice(None), i), i,
                )
                for name in ("gate_proj", "up_proj")
            ]  # fmt: skip
            return summed(f"grad post_attention_layernorm[{i}]", *shares)

        def project(name: str, i: int) -> Work:
            weight = self._weight(at + name, i)
            return linear(f"{name}[{i}]", "post_attention_layernorm", normed, f"{at}{name}.weight", weight, i)

        def projection_weight(name: str, i: int) -> Work:
            j, dy = self._largest_input(project(name, i)), self._all(at + name, grad=True)[:, i]
            inputs = self._all(key)[:, j]
            return weight_gradient(f"{name}.weight", i, j, name, dy, "post_attention_layernorm", inputs, self.places)

        def back_to_gate(i: int) -> Work:
            grad, s = self._at(f"{at}gated", grad=True)[i], sigmoid(gate[i])
            slope = s * (1 + gate[i] * (1 - s))
            lines = (
                f"silu(x) = x {TIMES} s(x) with s(x) = 1 {OVER} (1 + e^{MINUS}x); its slope is s + x {TIMES} s {TIMES} "
                f"(1 {MINUS} s) = {digits(slope)} at x = {digits(gate[i])}",
                f"grad gate_proj[{i}] = grad gated[{i}] {TIMES} up_proj[{i}] {TIMES} slope = {digits(grad)} {TIMES} "
                f"{digits(up[i])} {TIMES} {digits(slope)} = {digits(grad * up[i] * slope)}",
            )
            return Work(f"grad gate_proj[{i}]", lines, float(grad * up[i] * slope))

        def back_to_up(i: int) -> Work:
            grad, silu = self._at(f"{at}gated", grad=True)[i], gate[i] * sigmoid(gate[i])
            line = (
                f"grad up_proj[{i}] = grad gated[{i}] {TIMES} silu(gate_proj[{i}]) = {digits(grad)} {TIMES} "
                f"{digits(silu)} = {digits(grad * silu)}"
            )
            return Work(f"grad up_proj[{i}]", (line,), float(grad * silu))

        def to_gated(i: int) -> Work:
            s = sigmoid(gate[i])
            silu = gate[i] * s
            lines = (
                f"silu(gate_proj[{i}]) = {digits(gate[i])} {OVER} (1 + e^({digits(-gate[i])})) = {digits(gate[i])} "
                f"{TIMES} {digits(s)} = {digits(silu)}",
                f"gated[{i}] = silu(gate_proj[{i}]) {TIMES} up_proj[{i}] = {digits(silu)} {TIMES} {digits(up[i])} = "
                f"{digits(silu * up[i])}",
            )
            return Work(f"gated[{i}]", lines, float(silu * up[i]))

        def back_to_gated(i: int) -> Work:
            dy, weight = self._at(f"{at}down_proj", grad=True), self._weight(f"{at}down_proj", slice(None), i)
            return summed(f"grad gated[{i}]", back_through_linear("down_proj", dy, f"{at}down_proj.weight", weight, i))

        def down(i: int) -> Work:
            weight = self._weight(f"{at}down_proj", i)
            return linear(f"down_proj[{i}]", "gated", gated, f"{at}down_proj.weight", weight, i)

        def down_weight(i: int) -> Work:
            j, dy = self._largest_input(down(i)), self._all(f"{at}down_proj", grad=True)[:, i]
            inputs = self._all(f"{at}gated")[:, j]
            return weight_gradient("down_proj.weight", i, j, "down_proj", dy, "gated", inputs, self.places)

        out = f"layers.{layer}"
        return [
            self._box(
                key, "post_attention_layernorm", "a copy of the stream, scaled to size 1", Wire(1, (0,), (1, 2), (0,)),
                lambda i: norm(f"post_attention_layernorm[{i}]", stream, x, self._weight(key), eps, i), back_to_normed,
                lambda i: self._norm_weight(key, stream, "post_attention_layernorm.weight", i),
            ),
            self._box(
                f"{at}gate_proj", "gate_proj", "how far each of these channels opens", Wire(1, (1,), (1,), (0, 2)),
                partial(project, "gate_proj"), back_to_gate, partial(projection_weight, "gate_proj"),
            ),
            self._box(
                f"{at}up_proj", "up_proj", "what could pass through", Wire(2, (2,), (2,), (0, 1)),
                partial(project, "up_proj"), back_to_up, partial(projection_weight, "up_proj"),
            ),
            self._box(
                f"{at}gated", "gated", f"silu(gate) {TIMES} up: what passes through", Wire(1, (1, 2), (1,), (0,)),
                to_gated, back_to_gated,
            ),
            self._box(
                f"{at}down_proj", "down_proj", f"back to {config.hidden_size} numbers", Wire(1, (1,), (1,), (0,)),
                down, partial(self._handed_on, "down_proj", out), down_weight,
            ),
            self._box(
                out, out, f"added to the stream: the output of layer {layer}", Wire(0, (0, 1), (0,), (), True),
                partial(self._added, out, stream, f"{at}down_proj"), partial(self._back_to_stream, layer + 1),
            ),
        ]  # fmt: skip

    def _added(self, name: str, stream: str, branch: str, i: int) -> Work:
        a, b, short = self._at(stream)[i], self._at(branch)[i], branch.rpartition(".")[2]
        line = f"{name}[{i}] = {stream}[{i}] + {short}[{i}] = {digits(a)} + {digits(b)} = {digits(a + b)}"
        return Work(f"{name}[{i}]", (line,), float(a + b))

    def _handed_on(self, name: str, total: str, i: int) -> Work:
        grad = float(self._at(total, grad=True)[i])
        line = f"grad {name}[{i}] = grad {total}[{i}] = {digits(grad)}: an addition passes its gradient to both terms"
        return Work(f"grad {name}[{i}]", (line,), grad)

    def _back_to_attended(self, layer: int, i: int) -> Work:
        return self._back_to_both(
            "attended", f"layers.{layer}.attended", f"layers.{layer}", f"layers.{layer}.post_attention_layernorm", i
        )

    def _back_to_stream(self, layer: int, i: int) -> Work:
        """Compute the gradient of the input of layer `layer`, or of the final norm after the last layer."""
        name = self._stream_name(layer)
        if layer < self.trace.config.num_hidden_layers:
            after, normed = f"layers.{layer}.attended", f"layers.{layer}.input_layernorm"
            return self._back_to_both(name, name, after, normed, i)
        return back_through_norm(
            f"grad {name}[{i}]", "final_norm", self._at(name), self._weight("final_norm"),
            self.trace.config.rms_norm_eps, self._at("final_norm", grad=True), i,
        )  # fmt: skip

    def _back_to_both(self, title: str, name: str, after: str, normed: str, i: int) -> Work:
        """Add two gradients: the stream goes straight on to `after`, and a copy of it goes into the norm `normed`."""
        short = normed.rpartition(".")[2]
        branch = back_through_norm(
            f"through {short}", short, self._at(name), self._weight(normed), self.trace.config.rms_norm_eps,
            self._at(normed, grad=True), i,
        )  # fmt: skip
        straight = float(self._at(after, grad=True)[i])
        direct = Work("straight on", (f"grad {after}[{i}] = {digits(straight)}",), straight)
        return plus(f"grad {title}[{i}]", [("straight along the stream", direct), (f"through {short}", branch)])

    def _turn(self, at: str, letter: str, d: int) -> Work:
        return self._turned(f"{letter}_rope[{d}]", f"{letter}_norm", self._at(f"{at}{letter}_norm"), d, 1)

    def _turn_back(self, at: str, letter: str, d: int) -> Work:
        grad = self._at(f"{at}{letter}_rope", grad=True)
        return self._turned(f"grad {letter}_norm[{d}]", f"grad {letter}_rope", grad, d, -1)

    def _turned(self, name: str, x_name: str, x: np.ndarray, d: int, direction: int) -> Work:
        """Compute one number of a vector whose pairs (d, d + D/2) are rotated by their angles, forward or backward."""
        half = len(x) // 2
        pair, factor = d % half, self.trace.rope_factor
        angle = self.position * float(self.trace.radians[pair])
        cosine, sine = math.cos(angle), math.sin(angle)
        other = d + half if d < half else pair
        sign = (-1 if d < half else 1) * direction
        total = float(factor * (x[d] * cosine + sign * x[other] * sine))
        scale = "" if factor == 1 else f"{digits(factor)} {TIMES} "
        mark = "+" if sign > 0 else MINUS
        lines = (
            f"pair ({pair}, {pair + half}) rotates by {digits(float(self.trace.radians[pair]))} per position: at "
            f"position {self.position} by {digits(angle)} radians; cos = {digits(cosine)}, sin = {digits(sine)}",
            f"{name} = {scale}({x_name}[{d}] {TIMES} cos {mark} {x_name}[{other}] {TIMES} sin) = {scale}("
            f"{digits(x[d])} {TIMES} {digits(cosine)} {mark} {digits(x[other])} {TIMES} {digits(sine)}) "
            f"= {digits(total)}",
        )
        return Work(name, lines, total)

    def _norm_weight(self, key: str, x_key: str, weight_name: str, i: int) -> Work:
        """Compute the gradient of a norm's weight: the sum over the tokens (and heads) of dy[i] x[i] / rms."""
        x, dy = self._all(x_key), self._all(key, grad=True)
        places = self.places
        if x.ndim == 3:
            places = [f"{place}, head {head}" for place in places for head in range(x.shape[1])]
            x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, x.shape[-1])
        unit = np.array([row[i] / rms(row, self.trace.config.rms_norm_eps) for row in x])
        y_name, over = key.rpartition(".")[2], "tokens and heads" if len(places) > len(self.places) else "tokens"
        sums = Products(
            f"sum over the {over} t of grad {y_name}[t, {i}] {TIMES} unit[t, {i}]", f"grad {y_name}[t, {i}]",
            f"unit[t, {i}]", dy[:, i], unit, places,
        )  # fmt: skip
        return summed(f"grad {weight_name}[{i}]", sums)

    @staticmethod
    def _largest_input(work: Work) -> int:
        return int(work.sums[0].order()[0])

    def _stream_name(self, layer: int) -> str:
        """Return the name of the input of layer `layer`."""
        return f"layers.{layer - 1}" if layer else "embedding"

    def _weight(self, name: str, *index: Any) -> np.ndarray:
        return np.asarray(self.trace.params[f"{name}.weight"])[index].astype(np.float64)

    def _all(self, name: str, grad: bool = False) -> np.ndarray:
        """Return an inner value or its gradient, for every token."""
        return (self.trace.grads if grad else self.trace.record)[name].astype(np.float64)

    def _at(self, name: str, grad: bool = False, head: int | None = -1) -> np.ndarray:
        """Return an inner value or its gradient at this token, in this head, or in every head if `head` is None."""
        array, p = self._all(name, grad), self.position
        if array.ndim == 2:
            return array[p]
        of_keys = name.rpartition(".")[2] in ("k_proj", "k_norm", "k_rope", "v_proj")
        own = self.kv_head if of_keys else self.head
        if name.endswith(("_proj", "_norm")):  # [T, heads, D]
            return array[p] if head is None else array[p, own]
        return array[own, p]

    def _box(self, key: str, title: str, words: str, wire: Wire, forward, backward, weight=None, **options) -> Box:
        seen = slice(self.position + 1 if key.endswith(("scores", "weights")) else None)  # later tokens are hidden
        grads = None if self.trace.grads is None else self._at(key, grad=True)[seen]
        return Box(key, title, words, wire, self._at(key)[seen], grads, forward, backward, weight, **options)
