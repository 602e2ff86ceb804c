"""From a Hugging Face folder into any backend, and from any backend to a folder that transformers and mlx-lm read.

    config = await load_hugging_face(backend, "Qwen3-0.6B")
    await save_hugging_face(backend, "outputs/policy", config, tokenizer=load_tokenizer("Qwen3-0.6B"))

The folder's layout and names stand in `qwen3/pretrained.py` alone. A backend has whichever names its model has, the
kit's or transformers', and gets its weights under those.
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
    """Put the weights of a folder into a backend, in the dtypes that the backend's own have. Returns its configuration.

    Raises FileNotFoundError and ValueError as `load_pretrained` does, and ValueError where the backend's model is
    another one than the folder's. The backend is then as it was.
    """
    config, params = load_pretrained(folder, dtype=None)
    template = await backend.get_weights().result()
    await backend.load_weights(from_kit(params, template)).result()
    return config


async def save_hugging_face(
    backend: TrainingBackend, folder: str | os.PathLike, config: Qwen3Config, *, tokenizer: Tokenizer | None = None
) -> Path:
    """Write a backend's weights as a folder, in the dtypes that they have; the same bits come back from it.

    Raises ValueError where the weights are not those of `config` or are not finite, and what `save_pretrained` raises.
    """
    weights = await backend.get_weights().result()
    return save_pretrained(folder, config, to_kit(config, weights), tokenizer=tokenizer)
