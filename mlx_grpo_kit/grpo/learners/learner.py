"""The learner part of a step: micro-batches of completions, and their gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mlx_grpo_kit.grpo import arrays as xp
from mlx_grpo_kit.grpo.arrays import Array
from mlx_grpo_kit.grpo.batch import Batch
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.logps import PaddedBatch
from mlx_grpo_kit.grpo.loss import grpo_loss_and_metrics, metric_names, token_mean
from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig
from mlx_grpo_kit.grpo.metrics import gradient_metrics
from mlx_grpo_kit.grpo.micro_batches import MicroBatch, micro_batches
from mlx_grpo_kit.grpo.off_policy import sampling_metrics, sampling_spreads
from mlx_grpo_kit.grpo.optimizer import Gradient
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.qwen3 import Qwen3Config, count_total_parameters
from mlx_grpo_kit.runtime.blas import all_cores, mx

# Learning uses all cores if a micro-batch has more tokens times parameters than this. With MKL on two cores, 0.8M
# parameters and 1,400 tokens gain nothing from a second thread, and 5.2M gain a fifth (while another program is busy
# they lose two fifths). The bound is fixed, because another number of threads rounds differently: the same seed must
# give the same run.
MANY_PRODUCTS = 3e9


@dataclass(frozen=True)
class MicroBatches:
    """This process's micro-batches of a step, and the share of the left-out completions in the metrics."""

    each: list[MicroBatch]
    left_out: dict[str, float]


class Learner(ABC):
    """Compute log-probabilities and gradients of a Qwen3; parameters and batches are MLX arrays.

    A subclass computes both for one micro-batch (`logps`, `add_gradients`). This class adds them up over micro-batches
    and processes. A learner has no state.
    """

    computes_padding: ClassVar[bool] = False
    """True if padding takes as long as tokens do. Micro-batches are then divided into parts of similar length."""

    def __init__(self, config: Qwen3Config, args: GRPOConfig, loss_config: GRPOLossConfig, world: World | None = None):
        self.config, self.args, self.loss_config, self.world = config, args, loss_config, world or World()
        self._num_parameters = count_total_parameters(config)

    @abstractmethod
    def logps(self, params: Mapping[str, mx.array], batch: PaddedBatch) -> mx.array:
        """Log-probabilities of the completions' tokens under `params`, [B, T]."""

    @abstractmethod
    def add_gradients(
        self, policy: Policy, grads: dict[str, mx.array], micro: MicroBatch
    ) -> tuple[Any, mx.array, dict[str, Any]]:
        """Add a micro-batch's gradient to `grads`, evaluated; returns (loss, logps [B, T], metrics).

        Loss and metrics are scalars with `.item()`.
        """

    def loss_and_metrics(self, logps: Array, entropies: Array, micro: MicroBatch) -> tuple[Array, dict[str, Array]]:
        """The loss of a micro-batch and its metrics, from the log-probabilities and entropies of its tokens, [B, T].

        All arrays are of one framework, those of `micro` too.
        """
        mask = micro.batch.completion_mask
        loss, metrics = grpo_loss_and_metrics(
            self.loss_config,
            logps,
            micro.old_logps,
            micro.advantages,
            mask,
            ref_logps=micro.ref_logps,
            entropies=entropies,
            sampling_logps=micro.sampling_logps,
            weights=micro.weights,
        )
        return loss, metrics | {"entropy": token_mean(xp.stop_gradient(entropies), mask, micro.weights)}

    def prepare(self, policy: Policy, batch: Batch) -> list[MicroBatches]:
        """Return this process's part of each mini-batch: what the updates of one pass over the batch learn from.

        It has the log-probabilities that later updates could no longer compute: the reference's, and those of the
        policy that sampled.
        """
        size, count = self.args.num_generations, self.args.mini_batches
        groups = len(batch.completions) // size // count  # of a mini-batch
        own = self.world.share(groups)
        # This was measured on a CPU. A GPU may prefer few large micro-batches.
        by_length = self.computes_padding and mx.default_device() == mx.cpu
        found = []
        for start in range(0, count * groups, groups):
            rows = range((start + own.start) * size, (start + own.stop) * size)
            each, left_out = micro_batches(self.config, self.args, self.loss_config, batch, rows, count, by_length)
            for micro in each:
                if policy.reference is not None:
                    micro.ref_logps = self.logps(policy.reference, micro.batch)
                if start and micro.old_logps is None:
                    micro.old_logps = self.logps(policy.params, micro.batch)
                mx.eval(micro.ref_logps, micro.old_logps)
            found.append(MicroBatches(each, left_out))
        return found

    def gradient(self, policy: Policy, micro_batches: MicroBatches) -> tuple[Gradient, dict[str, float]]:
        """The gradient of all micro-batches of all processes together, and their metrics.

        Without any micro-batch it is 0, and the optimizer's moments still decay. "sampling/sampling_logp_difference" is
        how far sampler and learner disagree about the same policy.
        """
        grads = Gradient()
        totals = dict.fromkeys(("loss", *metric_names(self.loss_config)), 0.0) | micro_batches.left_out
        for micro in micro_batches.each:
            num_tokens = micro.batch.prompt_ids.size + micro.batch.completion_ids.size
            with all_cores() if num_tokens * self._num_parameters > MANY_PRODUCTS else nullcontext():
                loss, logps, metrics = self.add_gradients(policy, grads, micro)
            if micro.old_logps is None:
                micro.old_logps = mx.stop_gradient(logps)
            for name, value in {"loss": loss, **metrics}.items():
                totals[name] = totals.get(name, 0.0) + value.item()
        if not micro_batches.each:
            grads |= {name: mx.zeros_like(value) for name, value in policy.trained.items()}
        spreads = sampling_spreads(self.loss_config, micro_batches.each)
        rows = self.world.gather(np.array([[*totals.values(), *spreads.ravel()]]))
        sums, spreads = rows[:, : len(totals)].sum(axis=0), rows[:, len(totals) :].reshape(-1, *spreads.shape)
        grads = Gradient(self.world.sum(grads))
        metrics = {
            **dict(zip(totals, sums.tolist(), strict=True)),
            **sampling_metrics(spreads),
            "grad_norm": grads.norm,
        }
        return grads, metrics | (gradient_metrics(grads) if self.args.gradient_statistics else {})
