"""Completions as a batch for any training backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlx_grpo_kit.generation.padding import pad

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.batch import Completion

WIDTH = 8
"""Batches are padded to a multiple of this many tokens, so that frameworks compile for few shapes."""


def padded_batch(completions: Sequence[Completion]) -> dict[str, np.ndarray]:
    """The batch for a backend: rows of prompt and completion, in which position t predicts token t + 1.

    Padding comes after a row's tokens, where their causal attention never looks, so a model needs no mask.

    Returns:
        input_ids, labels: int [B, L]; loss_mask: float32 [B, L], 1 if the label is a completion token; advantages:
            float32 [B]; old_logps: float32 [B, L], the label's log-probability when it was sampled.
    """
    rows = [[*each.prompt_ids, *each.completion_ids] for each in completions]
    length = math.ceil((max(map(len, rows)) - 1) / WIDTH) * WIDTH
    input_ids, _ = pad([row[:-1] for row in rows], "right", length)
    labels, _ = pad([row[1:] for row in rows], "right", length)
    loss_mask, old_logps = np.zeros(labels.shape, np.float32), np.zeros(labels.shape, np.float32)
    for row, each in enumerate(completions):
        place = slice(len(each.prompt_ids) - 1, len(each.prompt_ids) - 1 + len(each.completion_ids))
        loss_mask[row, place], old_logps[row, place] = 1, each.logps
    return {
        "input_ids": input_ids.astype(np.int64),  # torch's gather requires int64
        "labels": labels.astype(np.int64),
        "loss_mask": loss_mask,
        "advantages": np.array([each.advantage for each in completions], np.float32),
        "old_logps": old_logps,
    }
