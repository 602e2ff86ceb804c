"""Which completions go through the model together, and which need not go through it at all.

A completion whose advantage is 0 adds nothing to the policy gradient, so without a KL penalty a group of such is left
out: late in a run most groups are equally right throughout. What a token weighs in the loss is decided before, by the
whole batch as it was sampled, so leaving out and grouping anew change neither the gradient nor what a metric means. So
is which tokens have the highest entropy. An entropy bonus acts on every completion, and none is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.logps import PaddedBatch, pad_batch
from mlx_grpo_kit.grpo.loss import GRPOLossConfig, Part, high_entropy_mask, token_weights
from mlx_grpo_kit.qwen3.config import Qwen3Config

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.trainer import Completion


@dataclass
class MicroBatch:
    """Completions that go through the model together.

    On the first pass over them the policy is the one that sampled, and every ratio is exactly 1: its log-probabilities
    become `old_logps` for the passes after it.
    """

    batch: PaddedBatch
    advantages: mx.array
    part: Part
    ref_logps: mx.array | None = None
    old_logps: mx.array | None = None


def micro_batches(
    config: Qwen3Config,
    args: GRPOConfig,
    loss_config: GRPOLossConfig,
    completions: Sequence[Completion],
    num_counted: np.ndarray,
    first_row: int = 0,
    entropies: np.ndarray | None = None,
) -> tuple[list[MicroBatch], dict[str, float]]:
    """The micro-batches of a step, completions of like length together, and what those left out add to the metrics.

    The entropy of a completion that is left out is the one that it was sampled with. That is what the first of
    `num_iterations` updates would have measured, and for the later ones, which TRL measures anew, what it had been.

    Args:
        completions: this process's, those of a prompt next to each other.
        num_counted: [N], how many tokens of each completion of the whole batch count in the loss.
        first_row: which of the N is the first of `completions`.
        entropies: [N, T] of the distributions that all completions' tokens were drawn from; needed where
            `top_entropy_quantile` chooses among them.
    """
    weights, metric_weights = _token_weights(loss_config, num_counted, args.per_device_train_batch_size)
    masks, entropy_weights = _high_entropy_masks(args, num_counted, entropies, metric_weights)
    # VESPO's weight of a completion is a metric too, which is 1 only as long as the policy is the one that sampled.
    all_are_needed = args.beta != 0 or args.entropy_coef != 0 or (args.loss_type == "vespo" and args.num_iterations > 1)
    groups: dict[int, list[_Row]] = {}
    for row, completion in enumerate(completions, start=first_row):
        group = groups.setdefault(row // args.num_generations, [])
        mask = masks[row] if masks is not None else None
        group.append(
            _Row(completion, int(num_counted[row]), weights[row], metric_weights[row], entropy_weights[row], mask)
        )
    # Whole groups, because a prompt is computed once for all of its completions.
    kept, entropy = [], 0.0
    for group in groups.values():
        if any(row.num_counted and (all_are_needed or row.completion.advantage != 0) for row in group):
            kept.append(group)
        else:
            entropy += sum(row.metric_weight * sum(row.completion.entropies[: row.num_counted]) for row in group)
    left_out = {"entropy": entropy}
    if args.loss_type == "vespo":
        left_out["vespo/phi_seq_mean"] = (len(completions) - sum(map(len, kept))) / len(num_counted)

    kept.sort(key=lambda group: max(len(row.completion.completion_ids) for row in group))
    rows = [row for group in kept for row in group]
    size = args.per_device_train_batch_size
    chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [_micro_batch(config, chunk, len(num_counted)) for chunk in chunks], left_out


class _Row(NamedTuple):
    completion: Completion
    num_counted: int
    token_weight: float
    metric_weight: float
    entropy_weight: float
    policy_mask: np.ndarray | None


def _micro_batch(config: Qwen3Config, rows: Sequence[_Row], num_completions: int) -> MicroBatch:
    completions = [row.completion for row in rows]
    batch = pad_batch(config, [each.prompt_ids for each in completions], [each.completion_ids for each in completions])
    counted = mx.array([row.num_counted > 0 for row in rows])
    batch = replace(batch, completion_mask=batch.completion_mask & counted[:, None])
    part = Part(
        token_weight=mx.array([[row.token_weight] for row in rows]),
        metric_weight=mx.array([[row.metric_weight] for row in rows]),
        num_completions=num_completions,
        policy_mask=batch.completion_mask,
        entropy_weight=mx.array([[row.entropy_weight] for row in rows]),
    )
    if rows[0].policy_mask is not None:
        width = batch.completion_mask.shape[1]
        part = part._replace(policy_mask=mx.array(np.stack([row.policy_mask[:width] for row in rows])))
    return MicroBatch(batch, mx.array([each.advantage for each in completions]), part)


def _high_entropy_masks(
    args: GRPOConfig, num_counted: np.ndarray, entropies: np.ndarray | None, metric_weights: list[float]
) -> tuple[np.ndarray | None, list[float]]:
    """Which tokens [N, T] have a policy loss, and what one of them weighs in the entropy bonus. None: all of them."""
    if args.top_entropy_quantile == 1:
        return None, metric_weights
    size, masks, weights = args.per_device_train_batch_size, [], []
    for start in range(0, len(num_counted), size):  # each of TRL's micro-batches by itself
        counted = np.arange(entropies.shape[1]) < num_counted[start : start + size, None]
        chosen = high_entropy_mask(mx.array(entropies[start : start + size]), counted, args.top_entropy_quantile)
        masks.append(np.array(chosen))
        share = size / (len(num_counted) * max(masks[-1].sum(), 1))
        weights += [float(share)] * len(masks[-1])
    return np.concatenate(masks), weights


def _token_weights(config: GRPOLossConfig, num_counted: np.ndarray, size: int) -> tuple[list[float], list[float]]:
    """What one token of each completion weighs, in the loss and in the metrics, as TRL would weigh it.

    TRL's micro-batches are `size` completions in a row, and its metrics the means of those of its micro-batches.
    """
    counts = [num_counted[start : start + size] for start in range(0, len(num_counted), size)]
    # A loss that is a mean over the whole batch's tokens adds up over micro-batches; any other is averaged.
    share = 1.0 if config.micro_batches_add_up else 1 / len(counts)
    weights, metric_weights = [], []
    for count in counts:
        mask = np.arange(max(count.max(), 1)) < count[:, None]
        weights += (share * token_weights(config, mx.array(mask), int(num_counted.sum()))[:, 0]).tolist()
        metric_weights += [1 / (len(counts) * count.sum()) if each else 0.0 for each in count]
    return weights, metric_weights
