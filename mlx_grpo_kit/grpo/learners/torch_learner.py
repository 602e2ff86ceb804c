"""torch instead of MLX for the learning half of a GRPO step. On CPUs it is faster.

`GRPOTrainer` rewards and updates as always; this learner computes log-probabilities and gradients. On a CPU torch
samples too (`torch_decoder.py`). The learner reads parameters in MLX's memory, and copies gradients once. So there is
one set of parameters for snapshots, checkpoints and failing steps, and you can switch the backend at any step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from mlx_grpo_kit.grpo.learners.learner import Learner
from mlx_grpo_kit.grpo.learners.torch_operations import FasterOperations
from mlx_grpo_kit.grpo.learners.torch_qwen3 import completion_logps
from mlx_grpo_kit.grpo.logps import PaddedBatch
from mlx_grpo_kit.grpo.loss import BatchWeights
from mlx_grpo_kit.grpo.micro_batches import MicroBatch
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.torch_threads import on_cores

# torch's MKL uses all cores if a micro-batch has more tokens times parameters than this. The bound is fixed, because
# another number of threads rounds differently: the same seed must give the same run.
MANY_PRODUCTS = 5e8


class TorchLearner(Learner):
    """Compute log-probabilities and gradients with torch, over the memory of MLX's arrays."""

    def logps(self, params: Mapping[str, mx.array], batch: PaddedBatch) -> mx.array:
        with _at_full_speed(params, batch), torch.no_grad():
            tensors = {name: tensor_of(value) for name, value in params.items()}
            logps, _ = completion_logps(self.config, tensors, _tensors(batch), self.args.temperature)
            return mx.array(logps.numpy())

    def add_gradients(
        self, policy: Policy, grads: dict[str, mx.array], micro: MicroBatch
    ) -> tuple[torch.Tensor, mx.array, dict[str, torch.Tensor]]:
        batch, weights = _tensors(micro.batch), BatchWeights(*map(tensor_of, micro.weights))
        of_tokens = (micro.advantages, micro.sampling_logps, micro.ref_logps, micro.old_logps)
        advantages, *logps_of_others = map(tensor_of, of_tokens)
        with _at_full_speed(policy.trained, micro.batch):
            leaves = {name: tensor_of(value).requires_grad_() for name, value in policy.trained.items()}
            logps, entropies = completion_logps(
                self.config,
                leaves,
                batch,
                self.args.temperature,
                entropy_gradient=self.loss_config.entropy_coef != 0,
                again=FasterOperations,
            )
            in_torch = MicroBatch(batch, advantages, weights, *logps_of_others)
            loss, metrics = self.loss_and_metrics(logps, entropies, in_torch)
            loss.backward()
        for name, leaf in leaves.items():
            found = mx.array(leaf.grad.numpy())
            leaf.grad = None
            grads[name] = grads.pop(name) + found if name in grads else found
        mx.eval(grads)
        return loss.detach(), mx.array(logps.detach().numpy()), metrics


def tensor_of(value: mx.array | float | None) -> torch.Tensor | float | None:
    """An MLX array as a read-only tensor over the same memory. Anything that is not an array is returned unchanged."""
    return torch.from_numpy(np.array(value, copy=False)) if isinstance(value, mx.array) else value


def _tensors(batch: PaddedBatch) -> PaddedBatch:
    return PaddedBatch(**{name: tensor_of(value) for name, value in vars(batch).items()})


@contextmanager
def _at_full_speed(params: Mapping[str, mx.array], batch: PaddedBatch) -> Iterator[None]:
    """Let torch compute with the faster operations, on one core or on all, and restore its settings afterwards.

    If OMP_NUM_THREADS is set, it applies to everything.
    """
    products = sum(value.size for value in params.values()) * (batch.prompt_ids.size + batch.completion_ids.size)
    with FasterOperations(), on_cores(products > MANY_PRODUCTS):
        yield
