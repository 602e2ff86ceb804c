"""Default settings with which a model learns: steps, learning rate, number of completions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

TINY_NAME = "tiny"
"""The name of the model that ships with the kit. It works wherever a model folder does."""

CHAT_NAME = "tiny-chat"
"""The name of the shipped model that was trained to chat."""

TOOLS_NAME = "tiny-tools"
"""The name of the shipped model that was trained to call tools."""

STEPS_NAME = "tiny-steps"
"""The name of the shipped model that adds long sums step by step."""

MADE_BY = {
    TINY_NAME: "mlx_grpo_kit.assets.make.tiny",
    CHAT_NAME: "mlx_grpo_kit.assets.make.tiny_chat",
    TOOLS_NAME: "mlx_grpo_kit.assets.make.tiny_tools",
    STEPS_NAME: "mlx_grpo_kit.assets.make.tiny_steps",
}
"""The command that makes each of the kit's models."""

TINY_ARGS: dict[str, Any] = {
    "learning_rate": 5e-4,
    "lr_scheduler_type": "linear",
    "num_generations": 8,
    "per_device_train_batch_size": 128,  # 16 prompts per step
}
"""Settings for GRPOConfig that suit the tiny model. GRPOConfig's own defaults suit a real Qwen3."""

LEARNING_RATES = {STEPS_NAME: 1e-4}
"""Models with their own learning rate: at 5e-4 a policy with long answers forgets more than it learns."""

MAX_STEPS = 600
"""The number of steps in which the tiny model learns addition with TINY_ARGS."""

SMALL = 10_000_000  # parameters; smaller models get the settings of the tiny one


def model_folder(model: str | os.PathLike) -> Path:
    """The folder of a model given as a path or by the kit's name. Raises FileNotFoundError if it is missing."""
    from mlx_grpo_kit import assets

    if model not in MADE_BY:
        return Path(model)
    folders = {
        TINY_NAME: assets.TINY,
        CHAT_NAME: assets.TINY_CHAT,
        TOOLS_NAME: assets.TINY_TOOLS,
        STEPS_NAME: assets.TINY_STEPS,
    }
    folder = folders[str(model)]
    if not folder.is_dir():
        raise FileNotFoundError(
            f"The {model} model is missing: there is no folder {folder}. Create it: python -m {MADE_BY[model]} {folder}"
        )
    return folder


ADAPTERS_RATE = 10
"""The factor for the learning rate of adapters: the rate for all parameters moves them too little."""


def default_args(model: str | os.PathLike, lora_r: int | None = None) -> dict[str, Any]:
    """Settings for GRPOConfig that suit a model: `GRPOConfig(**default_args("tiny"))`.

    `model` is "tiny" or a Hugging Face folder. A folder with fewer than ten million parameters gets the settings of the
    tiny model, because it usually contains a policy trained from it. "tiny-steps" has its own learning rate. Adapters
    of rank `lora_r` get ten times the learning rate: `GRPOConfig(**default_args("tiny", lora_r=8))`. Raises
    FileNotFoundError or ValueError if there is no such model.
    """
    from mlx_grpo_kit.files import read_json
    from mlx_grpo_kit.grpo.config import GRPOConfig
    from mlx_grpo_kit.qwen3 import Qwen3Config, count_total_parameters

    config = Qwen3Config.from_dict(read_json(model_folder(model), "config.json"))
    args = dict(TINY_ARGS) if count_total_parameters(config) < SMALL else {}
    if model in LEARNING_RATES:
        args["learning_rate"] = LEARNING_RATES[str(model)]
    if lora_r:
        rate = args.get("learning_rate", GRPOConfig.learning_rate)
        args |= {"lora_r": lora_r, "learning_rate": ADAPTERS_RATE * rate}
    return args
