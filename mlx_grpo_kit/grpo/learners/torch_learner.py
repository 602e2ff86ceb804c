"""torch in the place of MLX for the learning half of a GRPO step, where it is the faster one: on CPUs.

`GRPOTrainer` samples, rewards and updates as ever; what it has from here are log-probabilities and gradients.
Parameters are read where MLX has them in memory, and gradients are copied once. There is nothing to keep in step:
snapshots, checkpoints and steps that fail know one set of numbers, and a run may go on in the other framework at any
step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from mlx_grpo_kit.grpo.learners.learner import Learner
from mlx_grpo_kit.grpo.learners.torch_operations import FasterOperations, sgemm
from mlx_grpo_kit.grpo.learners.torch_qwen3 import completion_logps
from mlx_grpo_kit.grpo.logps import PaddedBatch
from mlx_grpo_kit.grpo.loss import Part, grpo_loss_and_metrics, token_mean
from mlx_grpo_kit.grpo.micro_batches import MicroBatch
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.runtime import all_cores, mx
from mlx_grpo_kit.runtime.torch_threads import use_threads

# Tokens times parameters of a micro-batch, above which torch's MKL gets all cores. A fixed bound, because another
# number of threads rounds differently: the same seed stays the same run.
MANY_PRODUCTS = 5e8


class TorchLearner(Learner):
    """torch computes log-probabilities and gradients, over MLX's arrays."""

    def logps(self, params: Mapping[str, mx.array], batch: PaddedBatch) -> mx.array:
        """Log-probabilities of the completions' tokens, [B, T]."""
        with _at_full_speed(params, batch), torch.no_grad():
            tensors = {name: _tensor(value) for name, value in params.items()}
            logps, _ = completion_logps(self.config, tensors, *_ids_and_mask(batch), self.args.temperature)
            return mx.array(logps.numpy())

    def add_gradients(
        self, policy: Policy, grads: dict[str, mx.array], micro: MicroBatch
    ) -> tuple[torch.Tensor, mx.array, dict[str, torch.Tensor]]:
        """Add a micro-batch's gradient to `grads`, evaluated; returns (loss, logps [B, T], metrics)."""
        params, loss_config = policy.trained, self.loss_config
        with _at_full_speed(params, micro.batch):
            leaves = {name: _tensor(value).requires_grad_() for name, value in params.items()}
            logps, entropies = completion_logps(
                self.config,
                leaves,
                *_ids_and_mask(micro.batch),
                self.args.temperature,
                entropy_gradient=loss_config.entropy_coef != 0,
                again=FasterOperations,
            )
            mask, part = _tensor(micro.batch.completion_mask), Part(*map(_tensor, micro.part))
            loss, metrics = grpo_loss_and_metrics(
                loss_config,
                logps,
                _tensor(micro.old_logps),
                _tensor(micro.advantages),
                mask,
                ref_logps=_tensor(micro.ref_logps),
                entropies=entropies,
                sampling_logps=_tensor(micro.sampling_logps),
                part=part,
            )
            metrics["entropy"] = token_mean(entropies.detach(), mask, part)
            loss.backward()
        for name, leaf in leaves.items():
            found = mx.array(leaf.grad.numpy())
            leaf.grad = None
            grads[name] = grads.pop(name) + found if name in grads else found
        mx.eval(grads)
        return loss.detach(), mx.array(logps.detach().numpy()), metrics


def _tensor(value: mx.array | float | None) -> torch.Tensor | float | None:
    """An MLX array as a tensor over the same memory, which nobody may write to. What is no array stays what it is."""
    return torch.from_numpy(np.array(value, copy=False)) if isinstance(value, mx.array) else value


def _ids_and_mask(batch: PaddedBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    return _tensor(batch.prompt_ids), _tensor(batch.completion_ids), _tensor(batch.prompt_mask)


@contextmanager
def _at_full_speed(params: Mapping[str, mx.array], batch: PaddedBatch) -> Iterator[None]:
    """torch computes with the faster operations, on one core or on all; afterwards everything is as before.

    Where OpenBLAS has the products, one thread of it does what two of MKL's do, and the trainer says when it is to have
    more. torch's threads spin while they wait, as OpenBLAS's do, and two kinds of them on the same cores would keep
    each other waiting. OMP_NUM_THREADS, where it is set, holds for everything.
    """
    with FasterOperations():
        if "OMP_NUM_THREADS" in os.environ:
            yield
            return
        products = sum(value.size for value in params.values()) * (batch.prompt_ids.size + batch.completion_ids.size)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        alone = sgemm() is not None or products <= MANY_PRODUCTS
        before = torch.get_num_threads()
        with nullcontext() if alone else all_cores():
            use_threads(1 if alone else cores)
            try:
                yield
            finally:
                use_threads(before)
