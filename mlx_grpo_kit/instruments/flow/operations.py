"""The operations of a Qwen3, and the calculation of one number of each from recorded numbers: forward and backward.

`OPERATIONS` is the table. y is the box of a result, x the box of one of its inputs, i the place of a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mlx_grpo_kit.instruments.flow.sums import MINUS, OVER, ROOT, TIMES, Products, Work, digits, summed

if TYPE_CHECKING:
    from mlx_grpo_kit.instruments.flow.boxes import Box


class Operation(NamedTuple):
    """The calculations of a number and of the gradients that come back through it.

    Attributes:
        forward: (y, i) -> the calculation of y[i].
        backward: (y, x, i, name) -> that of the gradient of x[i], which is called `name`, or if several results that
            use x are added up, the share of y.
        weight: (y, i) -> that of the gradient of one weight that y[i] depends on; None without weights.
    """

    forward: Callable[[Box, int], Work]
    backward: Callable[[Box, Box, int, str], Work | Products] | None = None
    weight: Callable[[Box, int], Work] | None = None


def look_up(y: Box, i: int) -> Work:
    """A number of a token's row of the table."""
    number = float(y.weights(y.path.id, i))
    line = f"embedding[{i}] = W[{y.path.id}, {i}] = {digits(number)}: looked up, nothing is computed"
    return Work(y.name(i), (line,), number)


def looked_up_weight(y: Box, i: int) -> Work:
    """dL/dW[id, i]: the sum over the places of the token."""
    path, grad, name = y.path, f"grad embedding[t, {i}]", f"grad embedding.weight[{y.path.id}, {i}]"
    same = [t for t, other in enumerate(path.trace.ids) if other == path.id]
    over, places = f"sum over the places of {path.trace.tokens[path.position]}", [path.places[t] for t in same]
    sums = Products(over, grad, "once", y.flat(grad=True)[same, i], np.ones(len(same)), places)
    after = ""
    if path.trace.config.tie_word_embeddings:
        after = " (from the lookup; the output layer, which uses the same table, adds its own gradient)"
    return Work(name, (f"{name} = {over} of {grad}{after}",), sums.total, (sums,))


def linear(y: Box, i: int) -> Work:
    """y[i] = sum over j of x[j] W[i, j], plus bias[i] if there is one."""
    [x], row, name = y.inputs, y.row(i), y.name(i)
    bias = y.bias(row)
    names, places = (f"{x.source}[j]", f"W[{row}, j]"), y.path.head_places if x.has_heads else None
    after = "" if bias is None else f" + bias[{row}]"
    after += f", where W is {y.matrix}.weight" + (f": row {i} is {y.labels(i)}'s" if y.labels else "")
    sums = Products("sum over j", *names, x.flat()[y.path.position], y.weights(row), places, after=after)
    if bias is None:
        return summed(name, sums)
    total = sums.total + bias
    lines = f"{name} = {sums.formula}", f"{digits(sums.total)} + {digits(bias)} = {digits(total)}"
    return Work(name, lines, total, (sums,))


def back_through_linear(y: Box, x: Box, i: int, name: str) -> Products:
    """The share of dL/dx[j] that comes from y = x W^T: the sum over i of dL/dy[i] W[i, j]."""
    column, dy = x.row(i), y.flat(grad=True)[y.path.position]
    names, places = (f"grad {y.title}[i]", f"W[i, {column}]"), y.path.head_places if y.has_heads else None
    after = f", where W is {y.matrix}.weight"
    return Products("sum over i", *names, dy, y.weights(slice(None), column), places, after=after)


def linear_weight(y: Box, i: int) -> Work:
    """dL/dW[i, j] = sum over the tokens t of dL/dy[t, i] x[t, j], for the j with the largest product in y[i]."""
    [x], row, j = y.inputs, y.row(i), int(linear(y, i).sums[0].order()[0])
    grad, grads, over, matrix = (
        f"grad {y.title}[t, {row}]",
        y.flat(grad=True)[:, row],
        "sum over the tokens t",
        y.matrix,
    )
    sums = Products(over, grad, f"{x.source}[t, {j}]", grads, x.flat()[:, j], y.path.places)
    work = summed(f"grad {matrix.rpartition('.')[2]}.weight[{row}, {j}]", sums)
    if y.bias(row) is None:
        return work
    of_bias = f"grad {matrix.rpartition('.')[2]}.bias[{row}] = {over} of {grad} = {digits(float(grads.sum()))}"
    return replace(work, lines=(*work.lines, of_bias))


def rms(x: np.ndarray, eps: float) -> float:
    """sqrt(mean(x^2) + eps)."""
    return math.sqrt(float((x * x).mean()) + eps)


def norm(y: Box, i: int) -> Work:
    """y[i] = x[i] / rms(x) w[i]."""
    [source], eps, weight = y.inputs, y.path.eps, y.weights(i)
    x, x_name, count = source.values, source.source, len(source.values)
    squares = Products("mean over j", f"{x_name}[j]", f"{x_name}[j]", x, x, None, 1 / count, f"{OVER} {count}")
    size = rms(x, eps)
    total = float(x[i] / size * weight)
    lines = (
        f"rms = {ROOT}(mean of {x_name}\N{SUPERSCRIPT TWO} + {eps:g}) = {ROOT}({digits(squares.total)} + {eps:g}) "
        f"= {digits(size)}",
        f"{y.name(i)} = {x_name}[{i}] {OVER} rms {TIMES} weight[{i}] = "
        f"{digits(x[i])} {OVER} {digits(size)} {TIMES} {digits(weight)} = {digits(total)}",
    )
    return Work(y.name(i), lines, total, (squares,))


def back_through_norm(y: Box, x: Box, i: int, name: str) -> Work:
    """dL/dx[i] = (w[i] dy[i] - x^[i] mean(w dy x^)) / rms, where x^ = x / rms."""
    size, weight, dy, grad = rms(x.values, y.path.eps), y.weights(), y.grads, f"grad {y.title}"
    unit, names, count = x.values / size, (f"weight[j] {TIMES} {grad}[j]", "unit[j]"), len(x.values)
    shared = Products("mean over j", *names, weight * dy, unit, None, 1 / count, f"{OVER} {count}")
    total = float((weight[i] * dy[i] - unit[i] * shared.total) / size)
    lines = (
        f"rms = {digits(size)}, and unit = the norm's input {OVER} rms, so unit[{i}] = {digits(unit[i])}",
        f"shared = {shared.formula} = {digits(shared.total)}",
        f"{name} = (weight[{i}] {TIMES} {grad}[{i}] {MINUS} unit[{i}] {TIMES} shared) {OVER} rms = "
        f"({digits(weight[i])} {TIMES} {digits(dy[i])} {MINUS} {digits(unit[i])} {TIMES} {digits(shared.total)}) "
        f"{OVER} {digits(size)} = {digits(total)}",
    )
    return Work(name, lines, total, (shared,))


def norm_weight(y: Box, i: int) -> Work:
    """The gradient of a norm's weight: the sum over the tokens (and heads) of dy[i] x[i] / rms."""
    x, dy, places, over = y.inputs[0].numbers(), y.numbers(grad=True), y.path.places, "sum over the tokens t"
    if y.has_heads:
        places = [f"{place}, head {head}" for place in places for head in range(x.shape[1])]
        over = "sum over the tokens and heads t" if x.shape[1] > 1 else over
    unit = np.array([row[i] / rms(row, y.path.eps) for row in x.reshape(-1, x.shape[-1])])
    sums = Products(over, f"grad {y.title}[t, {i}]", f"unit[t, {i}]", dy[..., i].ravel(), unit, places)
    return summed(f"grad {y.title}.weight[{i}]", sums)


def turn(y: Box, d: int) -> Work:
    """Rotate the pairs (d, d + D/2) of a vector."""
    [x] = y.inputs
    return _turned(y, y.name(d), x.source, x.values, d, 1)


def turn_back(y: Box, x: Box, d: int, name: str) -> Work:
    """Rotate the gradient backwards."""
    return _turned(y, name, f"grad {y.title}", y.grads, d, -1)


def _turned(y: Box, name: str, x_name: str, x: np.ndarray, d: int, direction: int) -> Work:
    half, position = len(x) // 2, y.path.position
    pair, factor = d % half, y.path.trace.rope_factor
    speed = float(y.path.trace.radians[pair])
    cosine, sine = math.cos(position * speed), math.sin(position * speed)
    other = d + half if d < half else pair
    sign = (-1 if d < half else 1) * direction
    total = float(factor * (x[d] * cosine + sign * x[other] * sine))
    scale, mark = "" if factor == 1 else f"{digits(factor)} {TIMES} ", "+" if sign > 0 else MINUS
    lines = (
        f"pair ({pair}, {pair + half}) rotates by {digits(speed)} per position: at position {position} by "
        f"{digits(position * speed)} radians; cos = {digits(cosine)}, sin = {digits(sine)}",
        f"{name} = {scale}({x_name}[{d}] {TIMES} cos {mark} {x_name}[{other}] {TIMES} sin) = {scale}("
        f"{digits(x[d])} {TIMES} {digits(cosine)} {mark} {digits(x[other])} {TIMES} {digits(sine)}) = {digits(total)}",
    )
    return Work(name, lines, total)


def score(y: Box, s: int) -> Work:
    """The query times the key of token s, divided by sqrt(D)."""
    q, k = y.inputs
    names, numbers = (f"{q.title}[d]", f"{k.title}[d]"), (q.values, k.of_head()[s], None)
    return summed(y.name(s), _over_root(y, "sum over d", names, numbers, f" of {y.labels(s)}"))


def back_to_query_or_key(y: Box, x: Box, d: int, name: str) -> Products:
    """To a query, from the keys that it looks at; to a key, from the queries that look at it."""
    q, k = y.inputs
    if x is k:
        names, numbers = ("grad scores", f"{q.title}[{d}]"), _of_queries(y.numbers(grad=True), q.numbers()[..., d], k)
        return _over_root(y, "sum over the queries that look here", names, numbers)
    seen, names = slice(len(y.values)), ("grad scores[s]", f"{k.title}[s, {d}]")
    return _over_root(y, "sum over the keys s", names, (y.grads, k.of_head()[seen, d], y.path.places[seen]))


def _over_root(y: Box, over: str, names: Sequence[str], numbers: Sequence, after: str = "") -> Products:
    size = y.path.trace.config.head_dim
    root = f"{OVER} {ROOT}{size}"
    return Products(over, *names, *numbers, size**-0.5, root, f"{after} {root}")


def _of_queries(shares: np.ndarray, numbers: np.ndarray, x: Box) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The numbers and names of the queries that look at x's token, from `shares` [T, H, S] and `numbers` [T, H]."""
    position, places, group = x.path.position, x.path.places, x.path.group
    pairs = [(t, x.head * group + h) for h in range(group) for t in range(position, len(places))]
    tokens, heads = np.array(pairs).T
    names = [f"head {h}, {places[t]}" for t, h in pairs]
    return shares[tokens, heads, position], numbers[tokens, heads], names


def softmax(y: Box, i: int) -> Work:
    """e^x[i] divided by the sum of e^x."""
    [x], name = y.inputs, y.name(i) if y.title == "weights" else f"{y.title}({y.labels(i)})"
    top = float(x.values.max())
    powers = np.exp(x.values - top)
    total = float(powers[i] / powers.sum())
    line = (
        f"{name} = e^({x.title.removesuffix('s')} {MINUS} largest) {OVER} sum of all of these = e^("
        f"{digits(x.values[i])} {MINUS} {digits(top)}) {OVER} {digits(powers.sum())} = {digits(powers[i])} {OVER} "
        f"{digits(powers.sum())} = {digits(total)}"
    )
    return Work(name, (line,), total)


def back_through_softmax(y: Box, x: Box, s: int, name: str) -> Work:
    """dL/dx[s] = y[s] (dy[s] - sum of y dy)."""
    numbers = y.values, y.grads, y.path.places[: len(y.values)]
    shared = Products("sum over s", "weights[s]", "grad weights[s]", *numbers)
    total = float(y.values[s] * (y.grads[s] - shared.total))
    line = (
        f"{name} = weights[s] {TIMES} (grad weights[s] {MINUS} weighted mean of grad weights) = "
        f"{digits(y.values[s])} {TIMES} ({digits(y.grads[s])} {MINUS} {digits(shared.total)}) = {digits(total)}"
    )
    return Work(name, (line,), total, (shared,))


def mix(y: Box, d: int) -> Work:
    """The sum of the tokens' values with these weights."""
    weights, values = y.inputs
    seen, names = slice(len(weights.values)), ("weights[s]", f"{values.title}[s, {d}]")
    numbers = weights.values, values.of_head()[seen, d], y.path.places[seen]
    return summed(y.name(d), Products("sum over the tokens s", *names, *numbers))


def back_to_weight_or_value(y: Box, x: Box, i: int, name: str) -> Products:
    """To the weight of token i, or to number i of this token's value, from the queries that look at it."""
    weights, values = y.inputs
    if x is values:
        numbers = _of_queries(weights.numbers(), y.numbers(grad=True)[..., i], x)
        return Products("sum over the queries that look here", "weights", f"grad mixed[{i}]", *numbers)
    names = "grad mixed[d]", f"{values.title}[d]"
    return Products("sum over d", *names, y.grads, values.of_head()[i], after=f" of {x.labels(i)}")


def gate(y: Box, i: int) -> Work:
    """silu(gate[i]) up[i]."""
    x, up = (each.values[i] for each in y.inputs)
    s = _sigmoid(x)
    lines = (
        f"silu(gate_proj[{i}]) = {digits(x)} {OVER} (1 + e^({digits(-x)})) = {digits(x)} {TIMES} {digits(s)} = "
        f"{digits(x * s)}",
        f"gated[{i}] = silu(gate_proj[{i}]) {TIMES} up_proj[{i}] = {digits(x * s)} {TIMES} {digits(up)} = "
        f"{digits(x * s * up)}",
    )
    return Work(y.name(i), lines, float(x * s * up))


def back_to_gate_or_up(y: Box, x: Box, i: int, name: str) -> Work:
    """To gate: dy up silu'(gate). To up: dy silu(gate)."""
    (number, up), grad = (each.values[i] for each in y.inputs), y.grads[i]
    s = _sigmoid(number)
    if x is y.inputs[1]:
        total, factors = grad * (number * s), f"{TIMES} {digits(number * s)}"
        lines = (f"{name} = grad gated[{i}] {TIMES} silu(gate_proj[{i}]) = {digits(grad)} {factors} = {digits(total)}",)
        return Work(name, lines, float(total))
    slope = s * (1 + number * (1 - s))
    total = grad * up * slope
    lines = (
        f"silu(x) = x {TIMES} s(x) with s(x) = 1 {OVER} (1 + e^{MINUS}x); its slope is s + x {TIMES} s {TIMES} "
        f"(1 {MINUS} s) = {digits(slope)} at x = {digits(number)}",
        f"{name} = grad gated[{i}] {TIMES} up_proj[{i}] {TIMES} slope = {digits(grad)} {TIMES} {digits(up)} {TIMES} "
        f"{digits(slope)} = {digits(total)}",
    )
    return Work(name, lines, float(total))


def _sigmoid(number: float) -> float:
    return math.exp(-np.logaddexp(0, -number))


def add(y: Box, i: int) -> Work:
    """The stream and a branch."""
    stream, branch = y.inputs
    a, b = stream.values[i], branch.values[i]
    line = f"{y.name(i)} = {stream.source}[{i}] + {branch.source}[{i}] = {digits(a)} + {digits(b)} = {digits(a + b)}"
    return Work(y.name(i), (line,), float(a + b))


def back_through_add(y: Box, x: Box, i: int, name: str) -> Work:
    """The gradient of the sum."""
    grad = float(y.grads[i])
    line = f"{name} = grad {y.source}[{i}] = {digits(grad)}: an addition passes its gradient to both terms"
    return Work(name, (line,), grad)


def back_to_stream(name: str, norm: Box, total: Box, x: Box, i: int) -> Work:
    """The sum of two gradients: the stream goes straight on to `total`, and a copy of it goes into `norm`."""
    straight, branch = float(total.grads[i]), back_through_norm(norm, x, i, f"through {norm.title}")
    lines = (
        "straight along the stream:", f"grad {total.source}[{i}] = {digits(straight)}", f"{branch.name}:",
        *branch.lines,
        f"{name} = {digits(straight)} + {digits(branch.total)} = {digits(straight + branch.total)}",
    )  # fmt: skip
    return Work(name, lines, straight + branch.total, branch.sums)


def back_to_logit(y: Box, x: Box, v: int, name: str) -> Work:
    """Softmax and loss together: p[v], minus 1 for the token that the loss expects."""
    if y.path.target is None:
        return Work(name, (f"{name} = 0: the loss expects nothing after this token",), 0.0)
    asked = float(v == y.path.target)
    total = float(y.values[v]) - asked
    line = (
        f"{name} = p {MINUS} {asked:.0f} = {digits(y.values[v])} {MINUS} {asked:.0f} = {digits(total)}, "
        f"with 1 for the token that the loss expects, {y.labels(y.path.target)}, and 0 for any other"
    )
    return Work(name, (line,), total)


def loss(y: Box, _: int) -> Work:
    """The sum of -log p over the tokens that are expected."""
    path, trace = y.path, y.path.trace
    lines = []
    for position, target in trace.targets.items():
        p = float(trace.probabilities(position)[target])
        expected = f"after {path.places[position]}: {MINUS}log p({path.token(target)})"
        lines.append(f"{expected} = {MINUS}log {digits(p)} = {digits(-math.log(p))}")
    if len(lines) > 1:
        lines.append(f"loss = their sum = {digits(trace.loss)}")
    return Work("loss", tuple(lines), trace.loss)


def back_to_probability(y: Box, x: Box, v: int, name: str) -> Work:
    """-1 / p for the token that the loss expects."""
    name, total = f"grad p({x.labels(v)})", float(x.grads[v])
    if not total:
        return Work(name, (f"{name} = 0: the loss does not depend on it",), 0.0)
    line = f"loss = {MINUS}log p, so {name} = {MINUS}1 {OVER} p = {MINUS}1 {OVER} {digits(x.values[v])}"
    return Work(name, (f"{line} = {digits(total)}",), total)


OPERATIONS = {
    "embedding": Operation(look_up, None, looked_up_weight),
    "rms_norm": Operation(norm, back_through_norm, norm_weight),
    "linear": Operation(linear, back_through_linear, linear_weight),
    "rope": Operation(turn, turn_back),
    "scores": Operation(score, back_to_query_or_key),
    "softmax": Operation(softmax, back_through_softmax),
    "mix": Operation(mix, back_to_weight_or_value),
    "add": Operation(add, back_through_add),
    "silu_times": Operation(gate, back_to_gate_or_up),
    "probabilities": Operation(softmax, back_to_logit),
    "loss": Operation(loss, back_to_probability),
}
