"""AdamW that never holds the old and the new of everything at once: parameters go by in groups, one after the other."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mlx.optimizers as optim

from mlx_grpo_kit.blas import mx

GROUP_BYTES = 64 * 2**20

LARGEST_RATE = 1e18
"""Up to this learning rate no number in an update overflows: by Cauchy and Schwarz AdamW moves a parameter by at most
7.3 learning rates, and the product on the way there is of one and of a moment whose square is finite."""


class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter, https://arxiv.org/abs/1711.05101), for named parameters.

    Attributes:
        state: {"step": ..., "learning_rate": ..., parameter: {"m": ..., "v": ...}}, as in mlx.optimizers.
    """

    def __init__(self, params: Mapping[str, mx.array], learning_rate: float):
        self._groups: list[list[str]] = []
        room = 0
        for name, value in params.items():
            if not self._groups or value.nbytes > room:
                self._groups.append([])
                room = GROUP_BYTES
            self._groups[-1].append(name)
            room -= value.nbytes
        self.state: dict[str, Any] = {"step": mx.array(0, mx.uint64), "learning_rate": mx.array(learning_rate)}
        self.state |= {name: {"m": mx.zeros_like(value), "v": mx.zeros_like(value)} for name, value in params.items()}

    @property
    def is_large(self) -> bool:
        """Whether there are several groups, and so a moment at which some parameters are new and some are old."""
        return len(self._groups) > 1

    def norm(self, grads: Mapping[str, mx.array]) -> float:
        """The length of the gradient."""
        squares: list[float] = []
        for group in self._groups:
            squares += mx.stack([grads[name].square().sum() for name in group]).tolist()
        return math.sqrt(math.fsum(squares))  # in whatever order the parameters come, the same sum

    def update(
        self,
        params: dict[str, mx.array],
        grads: dict[str, mx.array],
        learning_rate: float,
        weight_decay: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        """Replace what is in `params` by what comes after it, and take `grads` out of theirs. All is evaluated.

        A group's old numbers go before the next group comes, where nobody else holds them. Of a single large parameter,
        such as the embedding, old and new exist side by side for that moment.

        Args:
            params, grads: float32, under the names of the first parameters.
            scale: gradients are multiplied by it.
        """
        step = self.state["step"].item() + 1
        # Adam's bias corrections, as its paper's section 2 has them: in the step size and in epsilon.
        first, second = 1 - 0.9**step, math.sqrt(1 - 0.999**step)
        scalars = (learning_rate * second / first, weight_decay * first / second, 1e-8 * second, scale)
        arrays = [mx.array(value) for value in scalars]
        for group in self._groups:
            updated = []
            for name in group:
                moments = self.state[name]
                updated.append(_adamw(params[name], grads.pop(name), moments["m"], moments["v"], *arrays))
                params[name], m, v = updated[-1]
                self.state[name] = {"m": m, "v": v}
            del moments
            mx.eval(updated)
        self.state["step"], self.state["learning_rate"] = mx.array(step, mx.uint64), mx.array(learning_rate)
        mx.eval(self.state["step"], self.state["learning_rate"])


@mx.compile
def _adamw(
    param: mx.array, grad: mx.array, m: mx.array, v: mx.array,
    rate: mx.array, weight_decay: mx.array, eps: mx.array, scale: mx.array,
) -> tuple[mx.array, mx.array, mx.array]:  # fmt: skip
    """(parameter, m, v) after one step. What is compiled must get everything as an argument: it captures values."""
    adamw = optim.AdamW(rate, betas=[0.9, 0.999], weight_decay=weight_decay)
    adamw.eps, moments = eps, {"m": m, "v": v}
    return adamw.apply_single(grad * scale, param, moments), moments["m"], moments["v"]


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Ctrl-C comes when this is left. Only the main thread is ever interrupted."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)
