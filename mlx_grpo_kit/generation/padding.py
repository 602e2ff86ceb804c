"""Prompts of unequal length as one array, and groups of equal prompts as one row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.runtime import mx

TokenIds = Sequence[int]


def pad(rows: Sequence[TokenIds], side: str, length: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows of token ids -> (ids, mask), both int32 [B, length]: 0 for padding on `side` ("left" or "right")."""
    length = max(map(len, rows)) if length is None else length
    ids = np.zeros((len(rows), length), np.int32)
    mask = np.zeros((len(rows), length), np.int32)
    for row, tokens in enumerate(rows):
        place = slice(length - len(tokens), length) if side == "left" else slice(0, len(tokens))
        ids[row, place] = tokens
        mask[row, place] = 1
    return ids, mask


def left_padded(prompts: Sequence[TokenIds]) -> tuple[mx.array, mx.array | None]:
    """Prompts padded on the left: int32 ids [B, P], and the attention mask [B, P], or None without padding."""
    ids, mask = pad(prompts, "left")
    return mx.array(ids), None if mask.all() else mx.array(mask)


def fold_groups(prompts: Sequence[TokenIds]) -> tuple[list[TokenIds], int]:
    """The distinct prompts and the size of their groups: [a, a, a, b, b, b] -> [a, b], 3.

    GRPO samples a whole group from one prompt, so the prompt is computed once. Prompts in runs of unequal length are
        returned unchanged: [a, a, b] -> [a, a, b], 1.
    """
    starts = [i for i, prompt in enumerate(prompts) if i == 0 or list(prompt) != list(prompts[i - 1])]
    times = len(prompts) // len(starts)
    if starts == list(range(0, len(prompts), times)):
        return [prompts[i] for i in starts], times
    return list(prompts), 1


def check_prompts(config: Qwen3Config, prompts: Sequence[TokenIds], max_new_tokens: int) -> None:
    """Raise an error for prompts that the model cannot continue.

    Raises:
        ValueError: there are no prompts, one is empty, has a token id outside the vocabulary, or is too long.
        TypeError: a prompt is not a list of token ids, but text, for example.
    """
    if len(prompts) == 0:
        raise ValueError("There are no prompts; expected a list of lists of token ids.")
    if _all_fit(config, prompts) and max(map(len, prompts)) + max_new_tokens <= config.max_position_embeddings:
        return
    for row, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            raise TypeError(
                f"prompts[{row}] is text; expected token ids. Encode it first: "
                f"tokenizer.encode_prompt({prompt[:20]!r})."
            )
        if np.ndim(prompt) == 0:
            raise TypeError(
                f"prompts[{row}] is {prompt!r}; expected a list of token ids. A single prompt is written [prompt]."
            )
        if len(prompt) == 0:
            raise ValueError(f"prompts[{row}] is empty; expected at least one token to continue from.")
        check_tokens(config, prompt, f"prompts[{row}]")
        if len(prompt) + max_new_tokens > config.max_position_embeddings:
            raise ValueError(
                f"prompts[{row}] has {len(prompt)} tokens. With {max_new_tokens} more it exceeds the model's "
                f"{config.max_position_embeddings} positions (max_position_embeddings). Shorten the prompt, or lower "
                "max_new_tokens, in training max_completion_length (--max-completion-length)."
            )


def check_completions(config: Qwen3Config, completions: Sequence[TokenIds]) -> None:
    """Raise ValueError for an empty completion, and check tokens like `check_tokens`."""
    if len(completions) and _all_fit(config, completions):
        return
    for row, completion in enumerate(completions):
        check_completion(config, completion, f"completions[{row}]")


def check_completion(config: Qwen3Config, completion: TokenIds, name: str) -> None:
    """Raise ValueError for an empty completion, and check its tokens like `check_tokens`."""
    if len(completion) == 0:
        raise ValueError(f"{name} is empty; expected at least one token, which may be the end token.")
    check_tokens(config, completion, name)


def _all_fit(config: Qwen3Config, rows: Sequence[TokenIds]) -> bool:
    """True for non-empty lists of Python ints inside the vocabulary."""
    if not all(isinstance(row, list) and row for row in rows):
        return False
    tokens = [token for row in rows for token in row]
    return set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < config.vocab_size


def check_tokens(config: Qwen3Config, tokens: TokenIds, name: str) -> None:
    """Raise ValueError for anything but a flat list of whole numbers inside the vocabulary.

    A token id outside of it would silently read another row's embedding.
    """
    ids = np.asarray(tokens)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"{name} has dtype {ids.dtype} and shape {ids.shape}; expected a flat list of whole numbers.")
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        wrong = ids[(ids < 0) | (ids >= config.vocab_size)][0]
        raise ValueError(f"{name} contains token id {wrong}; expected 0 to {config.vocab_size - 1} (vocab_size).")
