"""The boxes of a Qwen3 that one token passes through: recorded numbers and gradients, and how each was computed.

A box has the name of an operation and its inputs, which are boxes too. The table in `operations.py` has the formulas of
each operation, forward and backward, for one number. The results of `Box.forward(i)` and `Box.backward(i)` equal those
of the model and its automatic gradient (`Box.values[i]`, `Box.grads[i]`), except for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from mlx_grpo_kit.instruments.flow.operations import OPERATIONS, back_to_stream
from mlx_grpo_kit.instruments.flow.sums import MINUS, OVER, ROOT, TIMES, Work, summed

SHOWN = 12  # the most numbers that a box with names draws


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


@dataclass(eq=False, repr=False)
class Box:
    """One inner value at one token (and in one head).

    Attributes:
        path: the boxes that it belongs to.
        key: its name in the record, or "probabilities" or "loss".
        operation: its name in `OPERATIONS`.
        inputs: the boxes that the operation takes.
        words: its purpose, in one line.
        wire: its lines in the picture.
        matrix: the name of its weight, if it has one, without ".weight".
        users: the boxes that have it as an input.
    """

    path: Boxes
    key: str
    operation: str
    inputs: Sequence[Box]
    words: str
    wire: Wire
    matrix: str
    users: list[Box] = field(default_factory=list)

    def __post_init__(self):
        for each in self.inputs:
            each.users.append(self)

    @property
    def title(self) -> str:
        """The last part of the key; the whole key of a layer's output."""
        last = self.key.rpartition(".")[2]
        return "p" if last == "probabilities" else self.key if last.isdigit() else last

    @property
    def source(self) -> str:
        """The title as the name of an input: of the residual stream, the whole key."""
        return self.key if self.title == "attended" else self.title

    def name(self, index: int) -> str:
        """Return the name of one of its numbers."""
        return f"{self.title}[{self.labels(index) if self.labels else index}]"

    @property
    def has_heads(self) -> bool:
        """True if the inner value has an axis of heads."""
        return self.path.trace.record[self.key].ndim == 3

    @property
    def head(self) -> int:
        """Its head, of queries or of keys and values; 0 if it has none."""
        own = self.path.kv_head if self.title in ("k_proj", "k_norm", "k_rope", "v_proj") else self.path.head
        return own if self.has_heads else 0

    def numbers(self, grad: bool = False) -> np.ndarray:
        """The inner value or its gradient for every token and head: [T, heads, n]."""
        array = (self.path.trace.grads if grad else self.path.trace.record)[self.key].astype(np.float64)
        if self.has_heads and not self.title.endswith(("_proj", "_norm")):
            array = array.swapaxes(0, 1)
        return array.reshape(len(array), -1, array.shape[-1])

    def flat(self, grad: bool = False) -> np.ndarray:
        """The same with all heads after one another: [T, heads * n]."""
        return self.numbers(grad).reshape(len(self.path.places), -1)

    def of_head(self, grad: bool = False) -> np.ndarray:
        """The same in this head: [T, n]."""
        return self.numbers(grad)[:, self.head]

    def row(self, index: int) -> int:
        """The place in `flat` of one of its numbers."""
        return self.head * self.path.trace.config.head_dim + index

    def weights(self, *index: Any) -> np.ndarray:
        """Its weight, or a part of it."""
        return np.asarray(self.path.trace.params[f"{self.matrix}.weight"])[index].astype(np.float64)

    def bias(self, row: int) -> float | None:
        """A number of its bias; None if it has none."""
        bias = self.path.trace.params.get(f"{self.matrix}.bias")
        return None if bias is None else float(bias[row])

    @cached_property
    def values(self) -> np.ndarray:
        """Its numbers, [n]. Later tokens are hidden."""
        if self.key == "loss":
            return np.array([self.path.trace.loss])
        if self.key == "probabilities":
            return self.path.trace.probabilities(self.path.position)
        return self.of_head()[self.path.position, : self._seen]

    @cached_property
    def grads(self) -> np.ndarray | None:
        """Their gradients, [n], or None without a backward pass."""
        if self.path.trace.grads is None:
            return None
        if self.key == "loss":
            return np.ones(1)
        if self.key == "probabilities":
            asked = np.arange(len(self.values)) == self.path.target
            return np.divide(-1, self.values, out=np.zeros(len(asked)), where=asked)
        return self.of_head(grad=True)[self.path.position, : self._seen]

    @property
    def _seen(self) -> int | None:
        return self.path.position + 1 if self.title in ("scores", "weights") else None

    @property
    def labels(self) -> Callable[[int], str] | None:
        """Names of the numbers, such as tokens; None for 0, 1, 2, ..."""
        if self._seen:
            return self.path.places.__getitem__
        return self.path.token if self.title in ("logits", "p") else None

    @cached_property
    def shown(self) -> np.ndarray | None:
        """The numbers to draw, in this order; None means the first ones."""
        if self.labels is None:
            return None
        shares = (self.users[0] if self.title in ("scores", "logits") else self).values
        likely = np.argsort(-shares, kind="stable")[:SHOWN]
        if self._seen:
            return np.sort(likely)
        target = self.path.target
        return likely if target is None else np.array([target, *likely[likely != target]][:SHOWN])

    def forward(self, index: int) -> Work:
        """The calculation of `values[index]`."""
        return OPERATIONS[self.operation].forward(self, index)

    def backward(self, index: int) -> Work:
        """The calculation of `grads[index]`: what comes back through the boxes that use the value."""
        if self.key == "loss":
            return Work("grad loss", ("grad loss = 1: the backward pass begins here",), 1.0)
        name = f"grad {self.name(index)}"
        if [user.operation for user in self.users] == ["rms_norm", "add"]:
            return back_to_stream(name, *self.users, self, index)
        shares = [OPERATIONS[user.operation].backward(user, self, index, name) for user in self.users]
        return shares[0] if isinstance(shares[0], Work) else summed(name, *shares)

    @property
    def weight(self) -> Callable[[int], Work] | None:
        """The calculation of the gradient of one weight that `values[i]` depends on, from i, if there are weights."""
        share = OPERATIONS[self.operation].weight
        return share and partial(share, self)


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
        self.trace, self.position, self.head, self.eps = trace, position, head, config.rms_norm_eps
        self.group = config.num_attention_heads // config.num_key_value_heads
        self.kv_head = head // self.group
        self.id, self.target = int(trace.ids[position]), trace.targets.get(position)
        self.places = [f"{index} {token}" for index, token in enumerate(trace.tokens)]
        heads = range(config.num_attention_heads)
        self.head_places = [f"head {head}, {d}" for head in heads for d in range(config.head_dim)]
        self._boxes: dict[str, Box] = {}
        words = f"row {self.id} of the table: {config.hidden_size} numbers that represent {trace.tokens[position]}"
        self._add("embedding", "embedding", [], words, Wire(above=()))
        stream = "embedding"
        for layer in range(config.num_hidden_layers):
            self._add_layer(layer, stream)
            stream = f"layers.{layer}"
        self._add_output(stream)

    def before(self) -> list[Box]:
        """List the box before the first layer: the embedding."""
        return [self._boxes["embedding"]]

    def layer(self, layer: int) -> list[Box]:
        """List the boxes of one layer, attention first."""
        return [box for key, box in self._boxes.items() if f"{key}.".startswith(f"layers.{layer}.")]

    def after(self) -> list[Box]:
        """List the boxes after the last layer: norm, logits, probabilities, and the loss if there are targets."""
        return [self._boxes[key] for key in ("final_norm", "logits", "probabilities", "loss") if key in self._boxes]

    def token(self, id_: int) -> str:
        """Return the text of a token id, in quotes."""
        return repr(self.trace.spell(int(id_)))

    def _add(
        self, key: str, operation: str, inputs: Sequence[str], words: str, wire: Wire, matrix: str | None = None
    ) -> None:
        boxes = [self._boxes[each] for each in inputs]
        self._boxes[key] = Box(self, key, operation, boxes, words, wire, matrix or key)

    def _add_layer(self, layer: int, stream: str) -> None:
        """Add the boxes of a layer: each key with its operation, its inputs, its words and its lines."""
        config, out = self.trace.config, f"layers.{layer}"
        shared = f" (head {self.kv_head} of keys and values)" if self.group > 1 else ""
        hidden = "; later tokens are hidden" if self.position + 1 < len(self.places) else ""
        one, two, three = (Wire(i, (i,), (i,), tuple({0, 1, 2, 3} - {i})) for i in (1, 2, 3))
        alone, gate, up = Wire(1, (1,), (1,), (0,)), Wire(1, (1,), (1,), (0, 2)), Wire(2, (2,), (2,), (0, 1))
        joins = Wire(0, (0, 1), (0,), (), True)
        copy, turned = "a copy of the stream, scaled to size 1", f"rotated by its position, {self.position}"
        back = f"back to {config.hidden_size} numbers"
        attn, mlp, attended = f"{out}.self_attn.", f"{out}.mlp.", f"{out}.attended"
        before, between = f"{out}.input_layernorm", f"{out}.post_attention_layernorm"
        query, key, head_norms = f"{attn}q_proj", f"{attn}k_proj", []
        if f"{attn}q_norm" in self.trace.record:
            head_norms = [
                (f"{attn}q_norm", "rms_norm", [query], "the query, scaled to size 1", one),
                (f"{attn}k_norm", "rms_norm", [key], "the key, scaled to size 1", two),
            ]
            query, key = f"{attn}q_norm", f"{attn}k_norm"
        rows = [
            (before, "rms_norm", [stream], copy, Wire(1, (0,), (1, 2, 3), (0,))),
            (f"{attn}q_proj", "linear", [before], f"query of head {self.head}: what this token looks for", one),
            (f"{attn}k_proj", "linear", [before], f"key: what queries find it by{shared}", two),
            (f"{attn}v_proj", "linear", [before], f"value: what it passes on{shared}", three),
            *head_norms,
            (f"{attn}q_rope", "rope", [query], f"the query, {turned}", one),
            (f"{attn}k_rope", "rope", [key], f"the key, {turned}", two),
            (f"{attn}scores", "scores", [f"{attn}q_rope", f"{attn}k_rope"],
             f"query \N{MIDDLE DOT} key {OVER} {ROOT}{config.head_dim} with each token{hidden}",
             Wire(1, (1, 2), (1,), (0, 3))),
            (f"{attn}weights", "softmax", [f"{attn}scores"], "softmax: the share of each token",
             Wire(1, (1,), (1,), (0, 3))),
            (f"{attn}mixed", "mix", [f"{attn}weights", f"{attn}v_proj"],
             "the tokens' values, mixed with these weights", Wire(1, (1, 3), (1,), (0,))),
            (f"{attn}o_proj", "linear", [f"{attn}mixed"], f"all heads together, {back}", alone),
            (attended, "add", [stream, f"{attn}o_proj"], "added to the stream", joins),
            (between, "rms_norm", [attended], copy, Wire(1, (0,), (1, 2), (0,))),
            (f"{mlp}gate_proj", "linear", [between], "how far each of these channels opens", gate),
            (f"{mlp}up_proj", "linear", [between], "what could pass through", up),
            (f"{mlp}gated", "silu_times", [f"{mlp}gate_proj", f"{mlp}up_proj"],
             f"silu(gate) {TIMES} up: what passes through", Wire(1, (1, 2), (1,), (0,))),
            (f"{mlp}down_proj", "linear", [f"{mlp}gated"], back, alone),
            (out, "add", [attended, f"{mlp}down_proj"], f"added to the stream: the output of layer {layer}", joins),
        ]  # fmt: skip
        for row in rows:
            self._add(*row)

    def _add_output(self, stream: str) -> None:
        trace, config = self.trace, self.trace.config
        self._add("final_norm", "rms_norm", [stream], "the stream, scaled to size 1 one last time", Wire())
        words = f"a score for each of the {config.vocab_size:,} tokens that could come next"
        table = "embedding" if config.tie_word_embeddings else "lm_head"
        self._add("logits", "linear", ["final_norm"], words, Wire(), table)
        last = Wire() if trace.targets else Wire(below=())
        words = "softmax: the probability of the next token"
        self._add("probabilities", "probabilities", ["logits"], words, last)
        if trace.targets:
            asked = "".join(trace.spell(target) for target in trace.targets.values())
            words = f"{MINUS}log of the probability of {asked!r}: small if the model expected it"
            self._add("loss", "loss", ["probabilities"], words, Wire(below=()))
