"""Rules of the tensor engine, each with a mistake, for chapter 06.

Each mistake is a common one. Next to it are the right formula and a program with numbers that show the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.tensor import graph
from mlx_grpo_kit.tensor.rules.convolution import Conv2d, MaxPool2d
from mlx_grpo_kit.tensor.rules.normalization import LayerNorm
from mlx_grpo_kit.tensor.rules.reductions import spread

Checker = Callable[[Callable[[T.Tensor], T.Tensor], np.ndarray], bool]


@dataclass(frozen=True)
class BrokenRule:
    """One rule, right and wrong.

    Attributes:
        name: the operation and what is wrong
        healthy, broken: short versions of the right formula and of the one with the mistake
        program: a function of one tensor in which the rule matters
        x: the array at which to try it
        breaking: a context in which the engine uses the broken rule
    """

    name: str
    healthy: str
    broken: str
    program: Callable[[T.Tensor], T.Tensor]
    x: np.ndarray
    breaking: Callable[[], AbstractContextManager]


@dataclass(frozen=True)
class Trial:
    """The results for a rule: the gradients from backward and from measuring, and each checker's verdict in words."""

    name: str
    healthy: str
    broken: str
    is_broken: bool
    analytic: np.ndarray
    numeric: np.ndarray
    verdicts: dict[str, str]


def try_out(rule: BrokenRule, is_broken: bool, checkers: Mapping[str, Checker]) -> Trial:
    """Run every checker on the rule, broken or healthy. A checker is a function (fn, x) -> bool, True if it passed.

    A verdict is "caught" or "missed" if the rule is broken, "passed" or "false alarm" if it is healthy, and "error" if
    the checker raised an exception.
    """
    weights = np.random.default_rng(1).normal(size=rule.program(T.Tensor(rule.x)).shape)
    with rule.breaking() if is_broken else nullcontext():
        leaf = T.Tensor(rule.x, requires_grad=True)
        rule.program(leaf).backward(weights)
        verdicts = {name: _verdict(checker, rule, is_broken) for name, checker in checkers.items()}
    return Trial(rule.name, rule.healthy, rule.broken, is_broken, leaf.grad, _slopes(rule, weights), verdicts)


def _verdict(checker: Checker, rule: BrokenRule, is_broken: bool) -> str:
    try:
        passed = bool(checker(rule.program, rule.x.copy()))
    except Exception:
        return "error"
    return ("missed" if passed else "caught") if is_broken else ("passed" if passed else "false alarm")


def _slopes(rule: BrokenRule, weights: np.ndarray, step: float = 1e-5) -> np.ndarray:
    def value(x: np.ndarray) -> float:
        return float(np.sum(rule.program(T.Tensor(x)).data * weights))

    slopes = np.zeros(rule.x.shape)
    for index in np.ndindex(rule.x.shape):
        up, down = rule.x.copy(), rule.x.copy()
        up[index] += step
        down[index] -= step
        slopes[index] = (value(up) - value(down)) / (2 * step)
    return slopes


# -- the numbers to try the rules with ---------------------------------------------------------------------------------


def _numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers between -2 and 2 with one decimal, none of them 0 or near a kink, and no two equal if possible."""
    count = int(np.prod(shape))
    choices = np.array([value / 10 for value in range(-19, 20) if value % 10 not in (0, 1, 9)])
    rng = np.random.default_rng(seed)
    picked = (
        rng.permutation(choices)[:count]
        if count <= len(choices)
        else rng.permutation(np.linspace(-1.9, 1.9, count + count % 2))[:count]
    )
    return picked.reshape(shape)


X, A, B = _numbers(3, 4), _numbers(3, 4, seed=1), _numbers(3, 4, seed=2)
SQUARE, FACTOR = _numbers(3, 3, seed=3), _numbers(3, 3, seed=4)
IMAGE, KERNEL = _numbers(1, 1, 5, 5, seed=5), _numbers(2, 1, 3, 3, seed=6)
IDS = [0, 2, 2, 3, 2]


# -- ways to break a rule ---------------------------------------------------------------------------------------------


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace the attribute `name` of `owner` with `value` inside the block."""
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _first_copy(grad: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A wrong graph.unbroadcast: the gradient of one copy instead of the sum over all."""
    while grad.ndim > len(shape):
        grad = grad[0]
    return grad[tuple(slice(0, size) for size in shape)]


def _one_mean_forgotten(ctx: Any, grad: np.ndarray) -> tuple[np.ndarray, None, None]:
    return (grad - grad.mean(axis=-1, keepdims=True)) * ctx.inverse_std, None, None


_conv2d_backward = Conv2d.backward


def _kernel_mirrored(ctx: Any, grad: np.ndarray) -> tuple:
    return _conv2d_backward(SimpleNamespace(**vars(ctx) | {"weight": ctx.weight[:, :, ::-1, ::-1]}), grad)


def _last_window_wins(ctx: Any, grad: np.ndarray) -> np.ndarray:
    padded, grad = np.zeros(ctx.windows.padded_shape, grad.dtype), grad.swapaxes(0, 1)
    for number, (_, _, seen) in enumerate(ctx.windows):
        padded[seen] = np.where(ctx.winner == number, grad, padded[seen])
    return ctx.windows.unpad(padded.swapaxes(0, 1))


def _overwriting(g: np.ndarray, weight_shape: tuple[int, ...], ids: Any) -> np.ndarray:
    out = np.zeros(weight_shape, g.dtype)
    out[np.asarray(ids)] = g
    return out


def _wins(x: np.ndarray, out: np.ndarray, axis: int, keepdims: bool) -> np.ndarray:
    return x == spread(out, x.shape, axis, keepdims)


BROKEN_RULES = (
    BrokenRule(
        "sub: a sign is lost",
        "b: -g",
        "b:  g",
        lambda x: T.sub(A, x),
        X,
        lambda: T.replaced_gradient("sub", b=lambda g: g),
    ),
    BrokenRule(
        "mul: wrong sign",
        "a:  g * b",
        "a: -g * b",
        lambda x: T.mul(x, B),
        X,
        lambda: T.replaced_gradient("mul", a=lambda g, b: -g * b),
    ),
    BrokenRule(
        "mul: operands swapped",
        "a: g * b",
        "a: g * a",
        lambda x: T.mul(x, B),
        X,
        lambda: T.replaced_gradient("mul", a=lambda g, a: g * a),
    ),
    BrokenRule(
        "exp: 1% too much",
        "x:        g * out",
        "x: 1.01 * g * out",
        T.exp,
        X,
        lambda: T.replaced_gradient("exp", x=lambda g, out: 1.01 * g * out),
    ),
    BrokenRule(
        "tanh: a square is missing",
        "x: g * (1 - out * out)",
        "x: g * (1 - out)",
        T.tanh,
        X,
        lambda: T.replaced_gradient("tanh", x=lambda g, out: g * (1 - out)),
    ),
    BrokenRule(
        "relu: it leaks",
        "x: g * (out > 0)",
        "x: g * where(out > 0, 1, 0.1)",
        T.relu,
        X,
        lambda: T.replaced_gradient("relu", x=lambda g, out: g * np.where(out > 0, 1, 0.1)),
    ),
    BrokenRule(
        "clip: lets everything through",
        "x: g * (low <= x <= high)",
        "x: g",
        lambda x: T.clip(x, -1, 1),
        X,
        lambda: T.replaced_gradient("clip", x=lambda g: g),
    ),
    BrokenRule(
        "add: broadcast, not summed",
        "b: g.sum(axis=0)",
        "b: g[0]",
        lambda x: T.add(A, x),
        X[0],
        lambda: replaced(graph, "unbroadcast", _first_copy),
    ),
    BrokenRule(
        "mean: 1/n forgotten",
        "x: spread(g / n)",
        "x: spread(g)",
        lambda x: T.mean(x, axis=1),
        X,
        lambda: T.replaced_gradient("mean", x=lambda g, x_shape, axis, keepdims: spread(g, x_shape, axis, keepdims)),
    ),
    BrokenRule(
        "max: all of a tie win everything",
        "x: spread(g) * wins / wins.sum()",
        "x: spread(g) * wins",
        lambda x: T.max(T.stack([x, x]), axis=0),
        X,
        lambda: T.replaced_gradient(
            "max",
            x=lambda g, x, out, axis, keepdims: spread(g, x.shape, axis, keepdims) * _wins(x, out, axis, keepdims),
        ),
    ),
    BrokenRule(
        "matmul: transposed",
        "b: a.T @ g",
        "b: g.T @ a",
        lambda x: T.matmul(FACTOR, x),
        SQUARE,
        lambda: T.replaced_gradient("matmul", b=lambda g, a: g.T @ a),
    ),
    BrokenRule(
        "transpose: never turned back",
        "x: transpose(g)",
        "x: g",
        lambda x: T.transpose(x),
        SQUARE,
        lambda: T.replaced_gradient("transpose", x=lambda g: g),
    ),
    BrokenRule(
        "softmax: subtraction missing",
        "x: out * (g - sum(g * out))",
        "x: out * g",
        T.softmax,
        X,
        lambda: T.replaced_gradient("softmax", x=lambda g, out: out * g),
    ),
    BrokenRule(
        "softmax: 1% too much",
        "x:        out * (g - sum(g * out))",
        "x: 1.01 * out * (g - sum(g * out))",
        T.softmax,
        X,
        lambda: T.replaced_gradient(
            "softmax", x=lambda g, out, axis: 1.01 * out * (g - np.sum(g * out, axis=axis, keepdims=True))
        ),
    ),
    BrokenRule(
        "layer_norm: a mean is missing",
        "x: (g - mean(g) - y * mean(g * y)) / std",
        "x: (g - mean(g)) / std",
        T.layer_norm,
        X,
        lambda: replaced(LayerNorm, "backward", staticmethod(_one_mean_forgotten)),
    ),
    BrokenRule(
        "embedding: = instead of +=",
        "weight: for each id: out[id] += g",
        "weight: for each id: out[id]  = g",
        lambda x: T.embedding(x, IDS),
        _numbers(5, 3, seed=7),
        lambda: T.replaced_gradient("embedding", weight=_overwriting),
    ),
    BrokenRule(
        "max_pool2d: = instead of +=",
        "x: winner of each window += g",
        "x: winner of each window  = g",
        lambda x: T.max_pool2d(x, 3, stride=1),
        IMAGE,
        lambda: replaced(MaxPool2d, "backward", staticmethod(_last_window_wins)),
    ),
    BrokenRule(
        "conv2d: kernel mirrored",
        "x: out[p + k] += w[k]  * g[p]",
        "x: out[p + k] += w[-k] * g[p]",
        lambda x: T.conv2d(x, KERNEL),
        IMAGE,
        lambda: replaced(Conv2d, "backward", staticmethod(_kernel_mirrored)),
    ),
)

# -- four rules for tanh, of which one is right: the first picture of the chapter --------------------------------------

FOUR_TANHS = {
    "A": ("1.01 * g * (1 - out * out)", lambda g, out: 1.01 * g * (1 - out * out)),
    "B": ("g", lambda g: g),
    "C": ("g * (1 - out * out)", lambda g, out: g * (1 - out * out)),
    "D": ("-g * (1 - out * out)", lambda g, out: -g * (1 - out * out)),
}


def tanh_rule(letter: str) -> AbstractContextManager:
    """A context in which tanh has the rule of this letter, A to D."""
    return T.replaced_gradient("tanh", x=FOUR_TANHS[letter][1])
