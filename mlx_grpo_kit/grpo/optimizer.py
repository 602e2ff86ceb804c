"""Optimizers that update the parameters group by group, so that the old and new values of all never exist at once."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.runtime import mx  # isort: skip  first: it loads the fast BLAS before anything loads MLX
import mlx.optimizers as optim

from mlx_grpo_kit.grpo.schedule import LARGEST_RATE
from mlx_grpo_kit.qwen3.params import decays, in_groups

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.config import GRPOConfig
    from mlx_grpo_kit.grpo.policy import Policy

GROUP_BYTES = 64 * 2**20

Scalars = dict[bool, list[mx.array]]


class TrainingDivergedError(RuntimeError):
    """A loss, a gradient or an updated parameter is not finite. The trainer keeps the state of the last good step.

    You can continue with another learning rate: `trainer.change(learning_rate=1e-5)`.
    """

    def at(self, step: int, learning_rate: float) -> TrainingDivergedError:
        """The same error, with the number of the last good step and the way out."""
        return TrainingDivergedError(
            f"Step {step + 1} {self}; no update was made, and the parameters are those of step {step}. Lower "
            f"learning_rate (now {learning_rate:g}) and continue from there or from an earlier checkpoint."
        )


class Gradient(dict):
    """The gradient by parameter name: a dict of float32 arrays, with its norm."""

    @cached_property
    def norm(self) -> float:
        """The Euclidean norm of the gradient."""
        squares: list[float] = []
        blocks = [(value, rows) for value in self.values() for rows in _blocks(value)]
        for group in in_groups(blocks, lambda block: block[0][block[1]].nbytes, GROUP_BYTES):
            squares += mx.stack([value[rows].square().sum() for value, rows in group]).tolist()
        return math.sqrt(math.fsum(squares))  # the same sum for any order of the parameters


class Optimizer:
    """The base of the optimizers: named parameters, updated group by group, and their state.

    Attributes:
        state: {"step": ..., "learning_rate": ..., parameter: {name of a moment: ...}}, as in mlx.optimizers.

    Args:
        params: float32.
        state: the state to continue from; None for a new run.
    """

    def __init__(self, params: Mapping[str, mx.array], learning_rate: float, state: dict[str, Any] | None = None):
        self._groups = in_groups(params, lambda name: params[name].nbytes, GROUP_BYTES)
        if state is None:
            state = {"step": mx.array(0, mx.uint64), "learning_rate": mx.array(learning_rate)}
            state |= {name: self.first_moments(value) for name, value in params.items()}
        self.state = state

    @property
    def is_large(self) -> bool:
        """True if there are several groups, so that during an update some parameters are new and some are old."""
        return len(self._groups) > 1

    def update(
        self,
        params: dict[str, mx.array],
        grads: dict[str, mx.array],
        learning_rate: float,
        weight_decay: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        """Replace the arrays in `params` by updated ones, and empty `grads`. Everything is evaluated.

        The old arrays of a group are freed before the next group is computed, unless something else references them.

        Args:
            params, grads: float32, under the same names as in the constructor.
            weight_decay: the decay of matrices. Norms and biases do not decay (`decays`).
            scale: the factor for the gradients.
        """
        step = self.state["step"].item() + 1
        scalars = {  # by whether a parameter decays
            decaying: [mx.array(value) for value in (*self.scalars(step, learning_rate, decay), scale)]
            for decaying, decay in ((True, weight_decay), (False, 0.0))
        }
        for group in self._groups:
            self._update_group(group, params, grads, scalars)
        self.state["step"], self.state["learning_rate"] = mx.array(step, mx.uint64), mx.array(learning_rate)
        mx.eval(self.state["step"], self.state["learning_rate"])

    def _update_group(
        self, group: list[str], params: dict[str, mx.array], grads: dict[str, mx.array], scalars: Scalars
    ) -> None:
        for name in group:
            moments = sorted(self.state[name].items())  # a file may hold them in any order
            values = [value for _, value in moments]
            own = scalars[decays(name)]
            params[name], *values = self.one_step(params[name], grads.pop(name), *values, *own)
            self.state[name] = {part: value for (part, _), value in zip(moments, values, strict=True)}
        del moments, values
        mx.eval([params[name] for name in group], [self.state[name] for name in group])


class PolicyOptimizer:
    """The optimizer part of a step: clip the gradient, and update the trained arrays of a policy.

    Attributes:
        rule: AdamW or Adafactor, with its moments.

    Args:
        state: the state to continue from; None for a new run.
    """

    def __init__(self, policy: Policy, args: GRPOConfig, state: dict[str, Any] | None = None):
        self.args = args
        self.rule = OPTIMIZERS[args.optim](policy.trained, args.learning_rate, state)
        self._waiting = ExitStack()

    @property
    def state(self) -> dict[str, Any]:
        """{"step": ..., "learning_rate": ..., parameter: {name of a moment: ...}}."""
        return self.rule.state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self.rule.state = state

    @property
    def consumes(self) -> bool:
        """True if a policy's old parameters are freed during the update, as for a large model.

        Such an update is still all or nothing: everything that can fail is checked before it, and Ctrl-C waits until
            its end.
        """
        return self.rule.is_large and self.args.num_iterations == 1

    def check(self, gradient: Gradient, metrics: Mapping[str, float], learning_rate: float) -> None:
        """Raise TrainingDivergedError if the loss, the gradient or the updated parameters would not be finite."""
        if not (math.isfinite(gradient.norm) and math.isfinite(metrics["loss"])):
            raise TrainingDivergedError(f"has loss {metrics['loss']} and gradient norm {gradient.norm}")
        decay = self.args.weight_decay
        if not (learning_rate <= LARGEST_RATE and learning_rate * decay <= 2):
            raise TrainingDivergedError(
                f"would set parameters to numbers that are not finite (learning rate {learning_rate:g}, weight decay "
                f"{decay:g})"
            )

    def __call__(self, policy: Policy, gradient: Gradient, learning_rate: float) -> Policy:
        """Return the next policy.

        This empties `gradient`; if `consumes` is True, the old policy object becomes the new one.
        """
        scale = min(self.args.max_grad_norm / (gradient.norm + 1e-6), 1.0)
        if self.consumes:
            self._waiting.enter_context(interrupts_wait())
        else:
            policy = replace(policy, trained=dict(policy.trained))
        with interrupts_wait():
            self.rule.update(policy.trained, gradient, learning_rate, self.args.weight_decay, scale)
        return policy

    @contextmanager
    def whole_step(self) -> Iterator[None]:
        """Delay Ctrl-C, from an update that consumes the old policy until the step is counted."""
        with ExitStack() as self._waiting:
            yield


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter, https://arxiv.org/abs/1711.05101), for named parameters.

    Together with parameters and gradients it needs memory for four numbers per parameter, plus 64 MB: a large
        parameter, such as the embedding, is changed in place, some rows at a time.
    """

    def first_moments(self, value: mx.array) -> dict[str, mx.array]:
        """The moments before the first step."""
        return {"m": mx.zeros_like(value), "v": mx.zeros_like(value)}

    def scalars(self, step: int, learning_rate: float, weight_decay: float) -> tuple[float, ...]:
        """Adam's bias corrections in the form of section 2 of its paper: in the step size and in epsilon."""
        first, second = 1 - 0.9**step, math.sqrt(1 - 0.999**step)
        return learning_rate * second / first, weight_decay * first / second, 1e-8 * second

    @staticmethod
    @mx.compile
    def one_step(
        param: mx.array, grad: mx.array, m: mx.array, v: mx.array,
        rate: mx.array, weight_decay: mx.array, eps: mx.array, scale: mx.array,
    ) -> tuple[mx.array, mx.array, mx.array]:  # fmt: skip
        """Return (parameter, m, v) after a step.

        A compiled function must get everything as an argument: it captures values.
        """
        adamw = optim.AdamW(rate, betas=[0.9, 0.999], weight_decay=weight_decay)
        adamw.eps, moments = eps, {"m": m, "v": v}
        return adamw.apply_single(grad * scale, param, moments), moments["m"], moments["v"]

    def _update_group(
        self, group: list[str], params: dict[str, mx.array], grads: dict[str, mx.array], scalars: Scalars
    ) -> None:
        blocks = [*_blocks(params[group[0]])]
        if len(blocks) == 1:
            return super()._update_group(group, params, grads, scalars)
        [name] = group
        own = scalars[decays(name)]
        moments = self.state.pop(name)
        grad, buffers = grads.pop(name), [params.pop(name), moments["m"], moments["v"]]
        del moments
        for rows in blocks:
            parts = self.one_step(buffers[0][rows], grad[rows], buffers[1][rows], buffers[2][rows], *own)
            mx.eval(parts)
            start = mx.array([rows.start])
            # This updates the buffer in place, or a copy of it if something else references it.
            buffers = [mx.slice_update(buffers.pop(0), part, start, axes=(0,)) for part in parts]
            mx.eval(buffers)
        params[name], m, v = buffers
        self.state[name] = {"m": m, "v": v}


class Adafactor(Optimizer):
    """Adam without a first moment, and with the means of rows and columns in place of the second moment.

    For a matrix of a x b numbers it keeps a + b, where AdamW keeps 2 a b (Shazeer & Stern 2018, algorithm 4,
    https://arxiv.org/abs/1804.04235).

    The settings are those of `transformers` with `optim="adafactor"`: steps of the given learning rate, not relative
    ones. An update's root mean square is at most 1 before it is multiplied by the learning rate. It makes different
    updates from AdamW.
    """

    def first_moments(self, value: mx.array) -> dict[str, mx.array]:
        """The moments before the first step."""
        if value.ndim == 1:
            return {"exp_avg_sq": mx.zeros_like(value)}
        *others, num_rows, num_columns = value.shape
        return {"exp_avg_sq_row": mx.zeros([*others, num_rows]), "exp_avg_sq_col": mx.zeros([*others, num_columns])}

    def scalars(self, step: int, learning_rate: float, weight_decay: float) -> tuple[float, ...]:
        """The paper's beta2 of this step, which is 0 in the first step, and the other scalars for `one_step`."""
        return 1 - step**-0.8, learning_rate, weight_decay

    @staticmethod
    @mx.compile
    def one_step(param: mx.array, grad: mx.array, *moments_and_scalars: mx.array) -> tuple[mx.array, ...]:
        """Return (parameter, moments by name ...) after a step.

        Means are products with a vector, which are fast on a CPU.
        """
        *moments, beta2, rate, weight_decay, scale = moments_and_scalars
        grad = grad * scale
        squares = grad.square()
        if grad.ndim > 1:
            num_rows, num_columns = grad.shape[-2:]
            found = (mx.full(num_rows, 1 / num_rows) @ squares, squares @ mx.full(num_columns, 1 / num_columns))
        else:
            found = (squares,)
        moments = [beta2 * moment + (1 - beta2) * (new + 1e-30) for moment, new in zip(moments, found, strict=True)]
        inverse = mx.rsqrt(moments[0])
        if grad.ndim > 1:
            # If a row has no gradients and others have large ones, the quotient must not become 0, whose inverse is
            # infinite.
            of_rows = mx.maximum(moments[1] / moments[1].mean(axis=-1, keepdims=True), 1e-36).rsqrt()[..., None]
            sizes = of_rows.square() * (squares @ inverse.square()[..., None])
            update = of_rows * inverse[..., None, :] * grad
        else:
            sizes, update = inverse.square() * squares, inverse * grad
        root_mean_square = mx.sqrt(sizes.sum() / grad.size)
        return param * (1 - weight_decay * rate) - update * (rate / mx.maximum(root_mean_square, 1.0)), *moments


OPTIMIZERS = {"adamw": AdamW, "adafactor": Adafactor}
"""The optimizers by the names in GRPOConfig's `optim`."""


def _blocks(value: mx.array) -> Iterator[slice]:
    """Slices of consecutive rows of `value`, each of at most GROUP_BYTES."""
    rows = max(GROUP_BYTES * len(value) // max(value.nbytes, 1), 1)
    return (slice(start, min(start + rows, len(value))) for start in range(0, len(value), rows))


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delay Ctrl-C until this context ends. Only the main thread is ever interrupted."""
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
