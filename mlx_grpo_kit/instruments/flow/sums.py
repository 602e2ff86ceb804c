"""The calculation of one number of the forward or backward pass: formulas with numbers, and sums of products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Places = Sequence[str] | None
MINUS, TIMES, OVER, ROOT = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{DIVISION SIGN}", "\N{SQUARE ROOT}"


def digits(number: float, count: int = 4) -> str:
    """Write a number with `count` significant digits and a minus sign as wide as a plus; an exact 0 is "0"."""
    if number == 0:
        return "0"
    return f"{number:#.{count}g}".rstrip(".").replace("-", MINUS)


@dataclass(frozen=True)
class Products:
    """A sum of products, times `scale`.

    Attributes:
        formula: the sum in symbols, "sum over i of x[i] x W[3, i]".
        left_name, right_name: the names of the two factors, as column heads.
        left, right: the factors, [n] each.
        places: names of the n terms; None means 0, 1, 2, ...
        scale: the factor of the sum; `scale_name` describes it.
    """

    formula: str
    left_name: str
    right_name: str
    left: np.ndarray
    right: np.ndarray
    places: Places = None
    scale: float = 1.0
    scale_name: str = ""

    @property
    def terms(self) -> np.ndarray:
        """The products, [n]."""
        return self.left * self.right

    @property
    def total(self) -> float:
        """The sum, times `scale`."""
        return float(self.terms.sum()) * self.scale

    def order(self) -> np.ndarray:
        """Return the positions of the products, largest absolute value first."""
        return np.argsort(-np.abs(self.terms), kind="stable")

    def place(self, index: int) -> str:
        """Return the name of term `index`."""
        return str(index) if self.places is None else self.places[index]


@dataclass(frozen=True)
class Work:
    """The calculation of one number.

    Attributes:
        name: the name of the number, "q_proj[3]".
        lines: formulas, in symbols and then in numbers.
        total: the number.
        sums: the sums of products in these lines.
    """

    name: str
    lines: tuple[str, ...]
    total: float
    sums: tuple[Products, ...] = ()


def summed(name: str, *sums: Products, after: str = "") -> Work:
    """Make the Work of a number that is one sum of products, or several that are added up."""
    total = sum(each.total for each in sums)
    lines = [f"{name} = " + " + ".join(each.formula for each in sums) + after]
    if len(sums) > 1:
        lines.append(" + ".join(digits(each.total) for each in sums) + f" = {digits(total)}")
    return Work(name, tuple(lines), total, sums)


def linear(
    name: str, x_name: str, x: np.ndarray, weight_name: str, row: np.ndarray, i: int, places: Places = None
) -> Work:
    """y[i] = sum over j of x[j] W[i, j]."""
    formula = f"sum over j of {x_name}[j] {TIMES} W[{i}, j], where W is {weight_name}"
    return summed(f"{name}", Products(formula, f"{x_name}[j]", f"W[{i}, j]", x, row, places))


def back_through_linear(
    y_name: str, dy: np.ndarray, weight_name: str, column: np.ndarray, j: int, places: Places = None
) -> Products:
    """The share of dL/dx[j] that comes from y = x W^T: the sum over i of dL/dy[i] W[i, j]."""
    formula = f"sum over i of grad {y_name}[i] {TIMES} W[i, {j}], where W is {weight_name}"
    return Products(formula, f"grad {y_name}[i]", f"W[i, {j}]", dy, column, places)


def weight_gradient(
    weight_name: str, i: int, j: int, y_name: str, dy: np.ndarray, x_name: str, x: np.ndarray, places: Sequence[str]
) -> Work:
    """dL/dW[i, j] = sum over the tokens t of dL/dy[t, i] x[t, j]; `dy` and `x` are [T]."""
    formula = f"sum over the tokens t of grad {y_name}[t, {i}] {TIMES} {x_name}[t, {j}]"
    sums = Products(formula, f"grad {y_name}[t, {i}]", f"{x_name}[t, {j}]", dy, x, places)
    return summed(f"grad {weight_name}[{i}, {j}]", sums)


def rms(x: np.ndarray, eps: float) -> float:
    """sqrt(mean(x^2) + eps)."""
    return math.sqrt(float((x * x).mean()) + eps)


def norm(name: str, x_name: str, x: np.ndarray, weight: np.ndarray, eps: float, i: int) -> Work:
    """y[i] = x[i] / rms(x) w[i]."""
    squares = Products(
        f"mean of {x_name}[j]\N{SUPERSCRIPT TWO}", f"{x_name}[j]", f"{x_name}[j]", x, x, None, 1 / len(x),
        f"{OVER} {len(x)}",
    )  # fmt: skip
    size = rms(x, eps)
    total = float(x[i] / size * weight[i])
    lines = (
        f"rms = {ROOT}(mean of {x_name}\N{SUPERSCRIPT TWO} + {eps:g}) = {ROOT}({digits(squares.total)} + {eps:g}) "
        f"= {digits(size)}",
        f"{name} = {x_name}[{i}] {OVER} rms {TIMES} weight[{i}] = "
        f"{digits(x[i])} {OVER} {digits(size)} {TIMES} {digits(weight[i])} = {digits(total)}",
    )
    return Work(name, lines, total, (squares,))


def back_through_norm(
    name: str, y_name: str, x: np.ndarray, weight: np.ndarray, eps: float, dy: np.ndarray, i: int
) -> Work:
    """dL/dx[i] = (w[i] dy[i] - x^[i] mean(w dy x^)) / rms, where x^ = x / rms."""
    size = rms(x, eps)
    unit = x / size
    shared = Products(
        f"mean over j of weight[j] {TIMES} grad {y_name}[j] {TIMES} unit[j]", f"weight[j] {TIMES} grad {y_name}[j]",
        "unit[j]", weight * dy, unit, None, 1 / len(x), f"{OVER} {len(x)}",
    )  # fmt: skip
    total = float((weight[i] * dy[i] - unit[i] * shared.total) / size)
    lines = (
        f"rms = {digits(size)}, and unit = the norm's input {OVER} rms, so unit[{i}] = {digits(unit[i])}",
        f"shared = mean over j of weight[j] {TIMES} grad {y_name}[j] {TIMES} unit[j] = {digits(shared.total)}",
        f"{name} = (weight[{i}] {TIMES} grad {y_name}[{i}] {MINUS} unit[{i}] {TIMES} shared) {OVER} rms = "
        f"({digits(weight[i])} {TIMES} {digits(dy[i])} {MINUS} {digits(unit[i])} {TIMES} {digits(shared.total)}) "
        f"{OVER} {digits(size)} = {digits(total)}",
    )
    return Work(name, lines, total, (shared,))


def plus(name: str, parts: Sequence[tuple[str, Work]]) -> Work:
    """The sum of several Works, each with a label for its source."""
    total = sum(work.total for _, work in parts)
    lines = [line for words, work in parts for line in ([f"{words}:"] if words else []) + list(work.lines)]
    lines.append(f"{name} = {' + '.join(digits(work.total) for _, work in parts)} = {digits(total)}")
    return Work(name, tuple(lines), total, tuple(sums for _, work in parts for sums in work.sums))
