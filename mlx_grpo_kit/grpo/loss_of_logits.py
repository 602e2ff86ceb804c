"""The GRPO loss in the form that training backends take: of logits, labels and a mask, in any of their frameworks."""

from __future__ import annotations

from collections.abc import Callable

from mlx_grpo_kit.grpo import arrays as xp
from mlx_grpo_kit.grpo.arrays import Array
from mlx_grpo_kit.grpo.loss import BatchWeights, grpo_loss_and_metrics, token_mean
from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig


def grpo_loss_fn(config: GRPOLossConfig, temperature: float = 1.0) -> Callable:
    """Return a `loss_fn` for a training backend of MLX, torch, JAX or torchax.

        backend = PyTorchTrainingBackend(model, optimizer, grpo_loss_fn(GRPOLossConfig()), folder)
        backend.forward_backward({"input_ids": ..., "labels": ..., "loss_mask": ..., "advantages": ...})

    Args:
        config: the settings of the loss.
        temperature: the temperature that the completions were sampled with.

    Returns:
        loss_fn(logits, labels, loss_mask, *, advantages, old_logps=None, ref_logps=None, sampling_logps=None,
        num_items_in_batch=None, weights=None) -> (loss, metrics). logits are [B, T, V]; labels int64 or int32 [B, T],
        the tokens that the logits at the same positions predict (for the logits of `input_ids[:, :-1]` they are
        `input_ids[:, 1:]`); loss_mask [B, T] is 1 at completion tokens; the other arguments are as in
        `grpo_loss_and_metrics`. The metrics are those of `grpo_loss_and_metrics`; "entropy", the mean over completion
        tokens; and "logps" [B, T], which you pass as `old_logps` in later updates from the same completions.
    """

    def loss_fn(
        logits: Array,
        labels: Array,
        loss_mask: Array,
        *,
        advantages: Array,
        old_logps: Array | None = None,
        ref_logps: Array | None = None,
        sampling_logps: Array | None = None,
        num_items_in_batch: int | Array | None = None,
        weights: BatchWeights | None = None,
    ) -> tuple[Array, dict[str, Array]]:
        logps, entropies = token_logps_and_entropies(logits, labels, temperature)
        loss, metrics = grpo_loss_and_metrics(
            config,
            logps,
            old_logps,
            advantages,
            loss_mask,
            ref_logps=ref_logps,
            entropies=entropies,
            sampling_logps=sampling_logps,
            num_items_in_batch=num_items_in_batch,
            weights=weights,
        )
        mask = xp.as_bools(loss_mask, logps)
        metrics["entropy"] = token_mean(xp.stop_gradient(entropies), mask, weights)
        metrics["logps"] = xp.where(mask, xp.stop_gradient(logps), 0.0)
        return loss, metrics

    return loss_fn


def token_logps_and_entropies(logits: Array, labels: Array, temperature: float = 1.0) -> tuple[Array, Array]:
    """log softmax(logits / temperature) of the labels, and the entropy of that distribution in nats: [B, T] twice.

    Args:
        logits: [B, T, V]. Half precision is converted to float32.
        labels: int [B, T].
    """
    logits = xp.as_floats(logits, logits) / temperature
    log_total = xp.logsumexp(logits)
    probs = xp.exp(logits - log_total[..., None])
    return xp.take_along_last_axis(logits, labels) - log_total, log_total - (probs * logits).sum(-1)
