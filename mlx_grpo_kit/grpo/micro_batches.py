"""Group completions into micro-batches, and leave out those that would not change the gradient.

A completion with advantage 0 adds nothing to the gradient of most losses. So without a KL penalty, groups of such
completions are left out; late in a run, that is most groups. Token weights, and the tokens with the highest entropy,
are determined before from the whole sampled batch. So leaving out and regrouping change neither the gradient nor the
meaning of a metric. An entropy bonus acts on every completion; with it none is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlx_grpo_kit.grpo.batch import Batch, Completions, padded
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.logps import PaddedBatch, pad_batch
from mlx_grpo_kit.grpo.loss import BatchWeights, high_entropy_mask, token_weights
from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.runtime import mx

A_FURTHER_PART = 64
"""What one more micro-batch costs, in tokens: its graph is built, and its gradient is added."""


@dataclass
class MicroBatch:
    """Completions that go through the model together.

    On the first pass over the policy's own completions every ratio is exactly 1: `old_logps` is None. The
    log-probabilities of that pass become the `old_logps` of later passes. `sampling_logps` are those that the sampler
    computed.
    """

    batch: PaddedBatch
    advantages: mx.array
    weights: BatchWeights
    sampling_logps: mx.array
    ref_logps: mx.array | None = None
    old_logps: mx.array | None = None


def micro_batches(
    config: Qwen3Config,
    args: GRPOConfig,
    loss_config: GRPOLossConfig,
    batch: Batch,
    rows: range | None = None,
    mini_batches: int = 1,
    similar_lengths: bool = False,
) -> tuple[list[MicroBatch], dict[str, float]]:
    """The micro-batches of a step, sorted by completion length, and the metrics of the completions that are left out.

    The entropy of a completion that is left out is the one measured when it was sampled. The first of `num_iterations`
    updates would measure the same; for later updates, for which TRL measures again, it is the earlier value.

    Args:
        batch: the batch of all processes.
        rows: this process's part of a mini-batch, in whole groups; None means all.
        mini_batches: the number of equal parts into which the batch is divided, each with its own update.
        similar_lengths: divide a micro-batch further, by length, where that saves much padding.
    """
    completions, rows = batch.completions, range(len(batch.completions)) if rows is None else rows
    mask = padded(completions.token_mask)
    if args.mask_truncated_completions:
        mask &= completions.finished[:, None]
    entropies = padded(completions.entropies, mask.shape[1])
    size = args.per_device_train_batch_size
    weights, metric_weights = _token_weights(loss_config, mask, size)
    policy_mask, entropy_weights = mask, metric_weights
    if loss_config.top_entropy_quantile < 1:
        policy_mask, entropy_weights = _of_high_entropy(loss_config, mask, entropies, size)

    # TRL counts tokens in the whole batch too, and divides by the number of updates.
    weights, metric_weights, entropy_weights = (
        [mini_batches * weight for weight in each] for each in (weights, metric_weights, entropy_weights)
    )

    # Whole groups, because a prompt is computed once for all of its completions.
    all_are_needed = (
        np.isnan(entropies[mask]).any()
        or args.beta != 0
        or args.entropy_coef != 0
        or not loss_config.type.zero_without_advantage
    )
    can_teach = mask.any(axis=1) & (all_are_needed | (batch.advantages != 0).reshape(len(mask), -1).any(axis=1))
    groups = [rows[start : start + args.num_generations] for start in range(0, len(rows), args.num_generations)]
    kept = [group for group in groups if can_teach[group].any()]
    left_out = {"entropy": 0.0}
    for group in groups:
        if not can_teach[group].any():
            left_out["entropy"] += sum(metric_weights[row] * sum(entropies[row][mask[row]].tolist()) for row in group)

    kept.sort(key=lambda group: max(len(completions.completion_ids[row]) for row in group))
    in_order = [row for group in kept for row in group]
    found = []
    chunks = [in_order[start : start + size] for start in range(0, len(in_order), size)]
    if similar_lengths:
        chunks = [part for chunk in chunks for part in _of_similar_length(completions, chunk)]
    for chunk in chunks:
        ids = [completions.completion_ids[row] for row in chunk]
        padded_ids = pad_batch(config, [completions.prompt_ids[row] for row in chunk], ids)
        width = padded_ids.completion_ids.shape[1]
        advantages = batch.advantages[chunk]
        micro = MicroBatch(
            batch=replace(padded_ids, completion_mask=mx.array(mask[chunk, :width])),
            advantages=mx.array(advantages if advantages.ndim == 1 else advantages[:, :width]),
            weights=BatchWeights(
                token_weight=_column(weights, chunk),
                metric_weight=_column(metric_weights, chunk),
                completion_weight=mx.full((len(chunk), 1), mini_batches / len(mask)),
                policy_mask=mx.array(policy_mask[chunk, :width]),
                entropy_weight=_column(entropy_weights, chunk),
            ),
            sampling_logps=mx.array(padded([completions.logps[row] for row in chunk], width).astype(np.float32)),
        )
        if not completions.on_policy:
            micro.old_logps = micro.sampling_logps
        found.append(micro)
    return found, left_out


def _of_similar_length(completions: Completions, rows: list[int]) -> list[list[int]]:
    """The rows in up to 8 parts of similar length, if that leaves a fifth fewer tokens to compute, padding included.

    Together, the rows of a group share their prompt. In parts, each row has its own.
    """
    lengths = {row: len(completions.completion_ids[row]) for row in rows}
    prompt = max(len(completions.prompt_ids[row]) for row in rows)
    by_length = sorted(rows, key=lambda row: lengths[row])
    found, fewest = [rows], 0.8 * len(rows) * max(lengths.values())
    for count in range(2, min(8, len(rows)) + 1):
        parts = [part.tolist() for part in np.array_split(by_length, count)]
        tokens = sum(len(part) * (prompt + lengths[part[-1]]) + A_FURTHER_PART for part in parts)
        if tokens < fewest:
            found, fewest = parts, tokens
    return found


def _column(values: Sequence[float], rows: Sequence[int]) -> mx.array:
    """The values of these rows, [B, 1] in float32."""
    return mx.array([[values[row]] for row in rows])


def _token_weights(config: GRPOLossConfig, mask: np.ndarray, size: int) -> tuple[list[float], list[float]]:
    """The weight of one token of each completion, in the loss and in the metrics, as TRL would weigh it.

    TRL's micro-batches are `size` consecutive completions, and its metrics are the means of those of its micro-batches.
    """
    counts = mask.sum(axis=1)
    chunks = [counts[start : start + size] for start in range(0, len(counts), size)]
    # A loss that is a mean over the whole batch's tokens adds up over micro-batches; any other is averaged.
    share = 1.0 if config.micro_batches_add_up else 1 / len(chunks)
    weights, metric_weights = [], []
    for count in chunks:
        # A weight depends only on the number of tokens that count.
        counted = np.arange(max(count.max(), 1)) < count[:, None]
        weights += (share * token_weights(config, mx.array(counted), int(counts.sum()))[:, 0]).tolist()
        metric_weights += [1 / (len(chunks) * count.sum()) if each else 0.0 for each in count]
    return weights, metric_weights


def _of_high_entropy(
    config: GRPOLossConfig, mask: np.ndarray, entropies: np.ndarray, size: int
) -> tuple[np.ndarray, list[float]]:
    """The tokens [N, T] that have a policy loss, and the weight of one of them in the entropy bonus."""
    masks, weights = [], []
    for start in range(0, len(mask), size):  # each of TRL's micro-batches separately
        rows = slice(start, start + size)
        chosen = high_entropy_mask(mx.array(entropies[rows]), mx.array(mask[rows]), config.top_entropy_quantile)
        masks.append(np.array(chosen))
        share = size / (len(mask) * max(masks[-1].sum(), 1))
        weights += [float(share)] * len(masks[-1])
    return np.concatenate(masks), weights
