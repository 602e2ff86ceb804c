"""The calculation of one number of the forward or backward pass: formulas with numbers, and sums of products."""

from __future__ import annotations

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
        over: the kind of sum, "sum over i".
        left_name, right_name: the names of the two factors, as column heads.
        left, right: the factors, [n] each.
        places: names of the n terms; None means 0, 1, 2, ...
        scale: the factor of the sum; `scale_name` describes it.
        after: the end of the formula.
    """

    over: str
    left_name: str
    right_name: str
    left: np.ndarray
    right: np.ndarray
    places: Places = None
    scale: float = 1.0
    scale_name: str = ""
    after: str = ""

    @property
    def formula(self) -> str:
        """The sum in symbols, "sum over i of x[i] x W[3, i]"."""
        return f"{self.over} of {self.left_name} {TIMES} {self.right_name}{self.after}"

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


def summed(name: str, *sums: Products) -> Work:
    """Make the Work of a number that is one sum of products, or several that are added up."""
    total = sum(each.total for each in sums)
    lines = [f"{name} = " + " + ".join(each.formula for each in sums)]
    if len(sums) > 1:
        lines.append(" + ".join(digits(each.total) for each in sums) + f" = {digits(total)}")
    return Work(name, tuple(lines), total, sums)
