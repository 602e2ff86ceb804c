"""The gradient of a micro-batch by MLX, with the whole model in one graph."""

from __future__ import annotations

from collections.abc import Mapping

from mlx_grpo_kit.grpo.learners.learner import Learner
from mlx_grpo_kit.grpo.logps import PaddedBatch, batch_logps
from mlx_grpo_kit.grpo.micro_batches import MicroBatch
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.runtime import mx


class MLXAtOnce(Learner):
    """Differentiate the whole path parameters -> logits -> log-probabilities -> loss with MLX in one graph."""

    computes_padding = True

    def logps(self, params: Mapping[str, mx.array], batch: PaddedBatch) -> mx.array:
        return batch_logps(self.config, params, batch, self.args.temperature)[0]

    def add_gradients(
        self, policy: Policy, grads: dict[str, mx.array], micro: MicroBatch
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:

        def loss_fn(trained: dict[str, mx.array]):
            logps, entropies = batch_logps(
                self.config,
                policy.params_of(trained),
                micro.batch,
                self.args.temperature,
                entropy_gradient=self.loss_config.entropy_coef != 0,
                output_gradient=policy.frozen is None,
            )
            loss, metrics = self.loss_and_metrics(logps, entropies, micro)
            return loss, logps, metrics

        (loss, logps, metrics), found = mx.value_and_grad(loss_fn)(policy.trained)
        # Remove the array from the dictionary, so that MLX can add in place.
        grads |= {name: grads.pop(name) + found.pop(name) if name in grads else found.pop(name) for name in [*found]}
        mx.eval(loss, logps, metrics, grads)
        return loss, logps, metrics
