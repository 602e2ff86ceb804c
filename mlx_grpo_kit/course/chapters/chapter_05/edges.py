"""The edges of the operations: points at which a gradient is infinite, not a number, or a choice.

This kit and torch both compute each edge on request. Where JAX and MLX differ, their gradients are stored here,
measured with JAX 0.10 and MLX 0.32 on a CPU; `tests/course/test_edges.py` measures it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.chapters.chapter_05.pictures.edge_table import EdgeRow, Number

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Edge:
    """An operation and a point. `ours` takes the kit's Tensors, `theirs` torch's. The other fields are EdgeRow's."""

    family: str
    operation: str
    point: tuple[Number, ...]
    ours: Callable[..., T.Tensor]
    theirs: Callable[..., torch.Tensor]
    why: str
    is_choice: bool = False
    elsewhere: Mapping[str, tuple[Number, ...]] = field(default_factory=dict)

    def measure(self) -> EdgeRow:
        """Value and gradients of the kit and of torch, in float64."""
        return EdgeRow(
            self.family,
            self.operation,
            self.point,
            *_ours(self.ours, self.point),
            *_torchs(self.theirs, self.point),
            self.why,
            self.is_choice,
            self.elsewhere,
        )


def _ours(operation: Callable[..., T.Tensor], point: tuple[Number, ...]) -> tuple[Any, tuple]:
    inputs = [T.Tensor(x, requires_grad=True) for x in point]
    out = operation(*inputs)
    out.sum().backward()
    return _plain(out.data), tuple(_plain(x.grad) for x in inputs)


def _torchs(operation: Callable[..., torch.Tensor], point: tuple[Number, ...]) -> tuple[Any, tuple]:
    inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in point]
    out = operation(*inputs)
    out.sum().backward()
    return _plain(out.detach()), tuple(_plain(x.grad) for x in inputs)


def _plain(array: Any) -> Any:
    numbers = array.tolist()
    return tuple(numbers) if isinstance(numbers, list) else numbers


def measure_edges() -> list[EdgeRow]:
    """All edges, family by family."""
    return [edge.measure() for edge in EDGES]


DIVIDING, ROOTS, POWERS, KINKS, STEPS, SEVERAL, FAR_OUT = (
    "dividing by zero",
    "roots and logarithms",
    "powers",
    "kinks and ties",
    "steps",
    "several numbers to one",
    "far out, and two gelus",
)
FLAT = "flat on both sides of the jump"

EDGES = (
    Edge(DIVIDING, "a / b", (1.0, 0.0), T.div, torch.div, "1 / b is inf, and so is a / b**2"),
    Edge(DIVIDING, "a / b", (0.0, 0.0), T.div, torch.div, "0 / 0 is not a number; 1 / b is inf nevertheless"),
    Edge(ROOTS, "sqrt(x)", (0.0,), T.sqrt, torch.sqrt, "1 / (2 sqrt(x)): the root is vertical at 0"),
    Edge(ROOTS, "sqrt(x)", (-1.0,), T.sqrt, torch.sqrt, "there is no real root, and the slope contains it"),
    Edge(ROOTS, "log(x)", (0.0,), T.log, torch.log, "1 / x"),
    Edge(ROOTS, "log(x)", (-1.0,), T.log, torch.log, "1 / x is finite although there is no logarithm"),
    Edge(
        ROOTS,
        "where(x > 0, sqrt(x), 0)",
        (0.0,),
        lambda x: T.where(x > 0, T.sqrt(x), 0.0),
        lambda x: torch.where(x > 0, torch.sqrt(x), 0.0),
        "where did not pick the root, but 0 times its inf is nan",
    ),
    Edge(
        ROOTS,
        "sqrt(sum(x * x))",
        ((0.0, 0.0),),
        lambda x: T.sqrt(T.sum(x * x)),
        lambda x: torch.sqrt((x * x).sum()),
        "inf of the root times the 0 of 2x",
    ),
    Edge(
        ROOTS,
        "safe_sqrt(sum(x * x))",
        ((0.0, 0.0),),
        lambda x: T.safe_sqrt(T.sum(x * x)),
        torch.linalg.norm,
        "the tip of a cone; compared with torch.linalg.norm",
        True,
        {"JAX": ((NAN, NAN),), "MLX": ((NAN, NAN),)},
    ),
    Edge(
        POWERS,
        "a ** b",
        (0.0, 0.0),
        T.pow,
        torch.pow,
        "both formulas give 0 * inf; torch chose 0",
        True,
        {"JAX": (NAN, 0.0), "MLX": (NAN, -INF)},
    ),
    Edge(POWERS, "a ** b", (0.0, 1.0), T.pow, torch.pow, "for b, 0 * log(0) would be nan; 0 is the limit"),
    Edge(POWERS, "a ** b", (0.0, -1.0), T.pow, torch.pow, "1 / 0 again", False, {"JAX": (-INF, NAN)}),
    Edge(POWERS, "a ** b", (-2.0, 3.0), T.pow, torch.pow, "between integer exponents there is no value at all"),
    Edge(KINKS, "abs(x)", (0.0,), T.abs, torch.abs, "any slope from -1 to 1 is acceptable", True, {"JAX": (1.0,)}),
    Edge(KINKS, "relu(x)", (0.0,), T.relu, torch.relu, "any slope from 0 to 1 is acceptable", True),
    Edge(
        KINKS,
        "maximum(x, 0)",
        (0.0,),
        lambda x: T.maximum(x, 0.0),
        lambda x: torch.maximum(x, torch.zeros_like(x)),
        "the same function as relu, but a different choice",
        True,
        {"MLX": (0.0,)},
    ),
    Edge(
        KINKS, "maximum(a, b)", (2.0, 2.0), T.maximum, torch.maximum, "equal numbers share", True, {"MLX": (0.0, 1.0)}
    ),
    Edge(
        KINKS, "minimum(a, b)", (2.0, 2.0), T.minimum, torch.minimum, "equal numbers share", True, {"MLX": (0.0, 1.0)}
    ),
    Edge(
        KINKS,
        "max(x)",
        ((3.0, 1.0, 3.0),),
        T.max,
        torch.amax,
        "torch.amax shares; torch.max(x, 0) gives all to one",
        True,
    ),
    Edge(
        KINKS,
        "clip(x, -1, 1)",
        (1.0,),
        lambda x: T.clip(x, -1, 1),
        lambda x: torch.clamp(x, -1, 1),
        "at the bound, x still gets the gradient",
        True,
        {"JAX": (0.5,), "MLX": (0.0,)},
    ),
    Edge(
        KINKS,
        "clip(x, -1, 1)",
        (-1.0,),
        lambda x: T.clip(x, -1, 1),
        lambda x: torch.clamp(x, -1, 1),
        "at the bound, x still gets the gradient",
        True,
        {"JAX": (0.5,), "MLX": (0.0,)},
    ),
    Edge(
        KINKS,
        "clip(x, 1, -1)",
        (0.0,),
        lambda x: T.clip(x, 1, -1),
        lambda x: torch.clamp(x, 1, -1),
        "crossed bounds: the upper one wins, and x has no effect",
    ),
    Edge(STEPS, "sign(x)", (0.0,), T.sign, torch.sign, FLAT, True),
    Edge(STEPS, "floor(x)", (1.0,), T.floor, torch.floor, FLAT, True),
    Edge(STEPS, "ceil(x)", (1.0,), T.ceil, torch.ceil, FLAT, True),
    Edge(STEPS, "trunc(x)", (-1.0,), T.trunc, torch.trunc, FLAT, True),
    Edge(STEPS, "round(x)", (2.5,), T.round, torch.round, f"{FLAT}; halves go to the even neighbour", True),
    Edge(
        SEVERAL,
        "prod(x)",
        ((0.0, 2.0, 3.0),),
        T.prod,
        torch.prod,
        "the product of the others, which out / x cannot give",
    ),
    Edge(SEVERAL, "prod(x)", ((0.0, 0.0, 3.0),), T.prod, torch.prod, "each product of the others contains a 0"),
    Edge(
        SEVERAL,
        "logsumexp(x)",
        ((-INF, -INF),),
        T.logsumexp,
        lambda x: torch.logsumexp(x, 0),
        "softmax of nothing: 0 / 0",
    ),
    Edge(
        SEVERAL,
        "softmax(x)",
        ((-INF, -INF),),
        T.softmax,
        lambda x: torch.softmax(x, 0),
        "a query that may attend to nothing gets nan",
    ),
    Edge(FAR_OUT, "sigmoid(x)", (1000.0,), T.sigmoid, torch.sigmoid, "saturated: the slope rounds to 0"),
    Edge(FAR_OUT, "sigmoid(x)", (-1000.0,), T.sigmoid, torch.sigmoid, "the same, and e ** 1000 must not overflow"),
    Edge(FAR_OUT, "gelu(x)", (-1.0,), T.gelu, F.gelu, "with the error function"),
    Edge(
        FAR_OUT,
        'gelu(x, "tanh")',
        (-1.0,),
        lambda x: T.gelu(x, approximate="tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
        "with tanh: the fourth digit differs",
    ),
)
