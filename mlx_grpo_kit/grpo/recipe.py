"""Default settings with which a model learns: steps, learning rate, number of completions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

TINY_NAME, STEPS_NAME, SMOLLM2_NAME = "tiny", "tiny-steps", "smollm2"

MADE_BY = {
    TINY_NAME: "mlx_grpo_kit.assets.make.tiny",
    "tiny-chat": "mlx_grpo_kit.assets.make.tiny_chat",
    "tiny-tools": "mlx_grpo_kit.assets.make.tiny_tools",
    STEPS_NAME: "mlx_grpo_kit.assets.make.tiny_steps",
    SMOLLM2_NAME: "mlx_grpo_kit get",
}
"""The models that have a name, which works wherever a folder does, and the command that makes or gets each.

All ship with the kit but SmolLM2-135M-Instruct, which `get smollm2` downloads.
"""

TINY_ARGS: dict[str, Any] = {
    "learning_rate": 5e-4,
    "lr_scheduler_type": "linear",
    "num_generations": 8,
    "per_device_train_batch_size": 128,  # 16 prompts per step
}
"""Settings for GRPOConfig that suit the tiny model. GRPOConfig's own defaults suit a real Qwen3."""

ARGS_OF: dict[str, dict[str, Any]] = {
    STEPS_NAME: {"learning_rate": 1e-4},  # at 5e-4 a policy with long answers forgets more than it learns
    SMOLLM2_NAME: {"learning_rate": 1e-5, "num_generations": 8, "per_device_train_batch_size": 64},
}
"""Models with settings of their own."""

MAX_STEPS = 600
"""The number of steps in which the tiny model learns addition with TINY_ARGS."""

SMALL = 10_000_000  # parameters; smaller models get the settings of the tiny one


def model_folder(model: str | os.PathLike) -> Path:
    """The folder of a model given as a path or by the kit's name. Raises FileNotFoundError if it is missing."""
    if model not in MADE_BY:
        return Path(model)
    folder = place_of(str(model))
    if not folder.is_dir():
        way_out = "Get it" if model == SMOLLM2_NAME else "Create it"
        argument = model if model == SMOLLM2_NAME else folder
        raise FileNotFoundError(
            f"The {model} model is missing: there is no folder {folder}. {way_out}: python -m {MADE_BY[model]} "
            f"{argument}"
        )
    return folder


def place_of(model: str) -> Path:
    """The place of a model of the kit, where its folder is or will be."""
    from mlx_grpo_kit import assets

    if model == SMOLLM2_NAME:
        return assets.models_folder() / model
    return assets.TINY.parent / model.replace("-", "_")


ADAPTERS_RATE = 10
"""The factor for the learning rate of adapters: the rate for all parameters moves them too little."""


def default_args(model: str | os.PathLike, lora_r: int | None = None) -> dict[str, Any]:
    """Settings for GRPOConfig that suit a model: `GRPOConfig(**default_args("tiny"))`.

    `model` is "tiny" or a Hugging Face folder. A folder with fewer than ten million parameters gets the settings of the
    tiny model, because it usually contains a policy trained from it. "tiny-steps" and "smollm2" have settings of their
    own. Adapters of rank `lora_r` get ten times the learning rate: `GRPOConfig(**default_args("tiny", lora_r=8))`.
    Raises FileNotFoundError or ValueError if there is no such model.
    """
    from mlx_grpo_kit.files import read_json
    from mlx_grpo_kit.grpo.config import GRPOConfig
    from mlx_grpo_kit.qwen3 import Qwen3Config, count_total_parameters

    config = Qwen3Config.from_dict(read_json(model_folder(model), "config.json"))
    args = dict(TINY_ARGS) if count_total_parameters(config) < SMALL else {}
    args |= ARGS_OF.get(str(model), {})
    if lora_r:
        rate = args.get("learning_rate", GRPOConfig.learning_rate)
        args |= {"lora_r": lora_r, "learning_rate": ADAPTERS_RATE * rate}
    return args
