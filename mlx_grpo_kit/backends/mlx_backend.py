"""MLX in the style of this kit: pure functions over a dictionary of arrays, and an optimizer that returns new ones."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mlx_grpo_kit.runtime import mx  # isort: skip (before anything that imports MLX by itself)
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map_with_path

from mlx_grpo_kit.autograd.gradients import check_parameters
from mlx_grpo_kit.backends.base import Backend, check_kind, check_max_grad_norm, logits_of
from mlx_grpo_kit.qwen3.params import decays
from mlx_grpo_kit.qwen3.weight_files import load_arrays, save_arrays
from mlx_grpo_kit.runtime.fork import refuse_after_fork

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "training_state.safetensors"


@dataclass(eq=False, repr=False)
class MLXTrainingBackend(Backend):
    """Training with `apply_fn(params, input_ids) -> logits` and an optimizer of mlx.optimizers.

    Nothing is changed in place: every step replaces `params` by a new dictionary, and your own is unchanged.

    Checkpoints contain `model.safetensors`, the parameters, `optimizer.safetensors`, the optimizer's state, and
    `training_state.safetensors`, the random state.

    Attributes:
        apply_fn: computes logits from a dictionary of parameters and "input_ids" of a batch.
        params: floating-point arrays by name.
        optimizer: an optimizer that only this backend uses, because its state belongs to the backend. For an Adafactor
            with `relative_step`, which has a different rate for each parameter, `optim_step` reports "lr" as NaN.
        loss_fn, checkpoint_dir, weight_version, current_step: see `Backend`.
        max_grad_norm: gradients with a larger norm are scaled down to it.
    """

    array = mx.array

    apply_fn: Callable[..., mx.array]
    params: dict[str, mx.array]
    optimizer: optim.Optimizer
    loss_fn: Callable[..., Any]
    checkpoint_dir: Path
    weight_version: int = 0
    current_step: int = 0
    max_grad_norm: float | None = field(default=None, kw_only=True)

    def __post_init__(self):
        check_kind("apply_fn", self.apply_fn, Callable, "a function of params, input")
        check_parameters(self.params)
        check_kind("optimizer", self.optimizer, optim.Optimizer, "one of mlx.optimizers")
        if isinstance(self.optimizer, optim.MultiOptimizer):
            raise TypeError(
                "optimizer is a MultiOptimizer, which needs nested parameters, but this backend has one flat "
                "dictionary. Pass one optimizer for all of them."
            )
        check_max_grad_norm(self.max_grad_norm)
        super().__post_init__()
        self.params = {name: self._copy(array) for name, array in self.params.items()}
        self.optimizer.init(self.params)
        mx.eval(self.params, self.optimizer.state)  # evaluated arrays may move to another thread

    def forward_backward(self, batch: Mapping[str, Any]):
        refuse_after_fork()
        if isinstance(batch, Mapping):
            mx.eval(list(batch.values()))
        return super().forward_backward(batch)

    def load_weights(self, weights: Mapping[str, Any]):
        if isinstance(weights, Mapping):
            mx.eval([value for value in weights.values() if isinstance(value, mx.array)])
        return super().load_weights(weights)

    def _compute_gradient(
        self, batch: Mapping[str, Any]
    ) -> tuple[float, Mapping[str, Any], tuple[dict[str, mx.array], mx.array]]:
        def loss_of(params: dict[str, mx.array]) -> tuple[mx.array, Mapping[str, Any]]:
            return self._loss(logits_of(partial(self.apply_fn, params), batch["input_ids"]), batch)

        (loss, metrics), grads = mx.value_and_grad(loss_of)(self.params)
        if self._grads is not None:
            grads = {name: self._grads[name] + grad for name, grad in grads.items()}
        norm = mx.sqrt(sum(grad.astype(mx.float32).square().sum() for grad in grads.values()))
        mx.eval(loss, metrics, grads, norm)  # together: each evaluation is a trip to MLX's thread and back
        return loss.item(), metrics, (grads, norm)

    def _add_gradient(self, gradient: tuple[dict[str, mx.array], mx.array]) -> float:
        self._grads, norm = gradient
        return norm.item()

    def _apply_gradient(self) -> float:
        grads = self._grads
        if self.max_grad_norm is not None and self._gradient_norm > self.max_grad_norm:
            grads = {name: grad * (self.max_grad_norm / self._gradient_norm) for name, grad in grads.items()}
        params = self.optimizer.apply_gradients(grads, self.params)
        mx.eval(params, self.optimizer.state)
        self.params = params
        if getattr(self.optimizer, "relative_step", False):
            return math.nan
        return self.optimizer.learning_rate.item()  # read after the update: a schedule sets the rate at its start

    def _weights(self) -> dict[str, mx.array]:
        return self.params

    def _set_weights(self, weights: dict[str, mx.array]) -> None:
        self.params = {name: self._copy(array) for name, array in weights.items()}

    def _copy(self, array: mx.array) -> mx.array:
        return copy.copy(array)  # shares memory until `+=` or an index assigns to one of the two

    def _state(self) -> dict[str, dict[str, mx.array]]:
        moments = dict(tree_flatten(self.optimizer.state))
        return {MODEL: self.params, OPTIMIZER: moments, STATE: {"random": mx.random.state[0]}}

    @staticmethod
    def _save_file(content: dict[str, mx.array], file: Path) -> None:
        save_arrays(file, content)

    _load_file = staticmethod(load_arrays)

    def _restore(self, state: dict[str, dict[str, mx.array]]) -> None:
        self.params = state[MODEL]
        moments = state[OPTIMIZER]
        self.optimizer.state = tree_map_with_path(lambda path, _: moments[path], self.optimizer.state)
        _set_random_state(state[STATE]["random"])

    def _begin_thread(self) -> Callable[[], None]:
        refuse_after_fork()
        state = mx.random.state[0]
        mx.eval(state)
        return partial(_set_random_state, state)

    @staticmethod
    def _end_thread() -> None:
        mx.clear_streams()  # MLX's streams of this thread: their cleanup would race with the interpreter's end


class AdamW(optim.AdamW):
    """AdamW of mlx.optimizers for parameters by name, of which norms and biases do not decay (`qwen3.decays`)."""

    def apply_gradients(self, gradients: dict[str, mx.array], parameters: dict[str, mx.array]) -> dict[str, mx.array]:
        """Return the parameters after a step. `init` must have been called, as `MLXTrainingBackend` does."""
        decaying = {name: gradient for name, gradient in gradients.items() if decays(name)}
        updated = super().apply_gradients(decaying, parameters)
        for name in gradients.keys() - decaying.keys():  # Adam's step is AdamW's without the decay
            updated[name] = optim.Adam.apply_single(self, gradients[name], parameters[name], self.state[name])
        return {name: updated[name] for name in gradients}


def _set_random_state(key: mx.array) -> None:
    """Set the random state of this thread to a key: each thread has its own."""
    high, low = key.tolist()
    mx.random.seed(high << 32 | low)
