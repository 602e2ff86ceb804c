"""Weights of any backend from and to Hugging Face folders, which transformers and mlx-lm read.

    config = await load_hugging_face(backend, "Qwen3-0.6B")
    await save_hugging_face(backend, "outputs/policy", config, tokenizer=load_tokenizer("Qwen3-0.6B"))

Only `qwen3/pretrained.py` knows the folder's layout and names. A backend gets its weights under its model's names, the
kit's or transformers'.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_grpo_kit.backends.weights import from_kit, to_kit
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained, save_pretrained
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mlx_grpo_kit.backends import TrainingBackend


async def load_hugging_face(backend: TrainingBackend, folder: str | os.PathLike) -> Qwen3Config:
    """Load the weights of a folder into a backend, in the backend's dtypes. Returns the model's configuration.

    Raises FileNotFoundError and ValueError like `load_pretrained`, and ValueError if the backend's model differs from
    the folder's. Then the backend is unchanged.
    """
    config, params = load_pretrained(folder, dtype=None)
    template = await backend.get_weights().result()
    await backend.load_weights(from_kit(params, template)).result()
    return config


async def save_hugging_face(
    backend: TrainingBackend, folder: str | os.PathLike, config: Qwen3Config, *, tokenizer: Tokenizer | None = None
) -> Path:
    """Write a backend's weights as a folder, in their dtypes, so that loading gives the same bits.

    Raises ValueError if the weights do not fit `config` or are not finite, and the errors of `save_pretrained`.
    """
    weights = await backend.get_weights().result()
    return save_pretrained(folder, config, to_kit(config, weights), tokenizer=tokenizer)
