"""Files that ship with the kit, and the place of models that are downloaded."""

import os
from pathlib import Path

TINY = Path(__file__).parent / "tiny"
"""The tiny pre-trained Qwen3, a Hugging Face folder; `python -m mlx_grpo_kit.assets.make.tiny DIR` makes it again."""

TINY_CHAT = Path(__file__).parent / "tiny_chat"
"""The same with all that a published folder has: bfloat16 shards, a byte-level BPE, a chat template that lets it think.

`python -m mlx_grpo_kit.assets.make.tiny_chat DIR` makes it again.
"""

TINY_TOOLS = Path(__file__).parent / "tiny_tools"
"""A tiny model that has seen Qwen3's tool calls and makes them badly; it is for the tasks `calculator` and `guess`.

`python -m mlx_grpo_kit.assets.make.tiny_tools DIR` makes it again.
"""

TINY_STEPS = Path(__file__).parent / "tiny_steps"
"""A tiny model that adds long sums step by step, in 15 to 60 tokens, and is often wrong; it is for the task `long-sum`.

`python -m mlx_grpo_kit.assets.make.tiny_steps DIR` makes it again.
"""

MODELS_VARIABLE = "MLX_GRPO_KIT_MODELS"


def models_folder() -> Path:
    """The folder of downloaded models, the same from every current folder.

    It is the one that MLX_GRPO_KIT_MODELS names; else models/ beside the notebooks, if the kit runs from a clone of its
    repository; else ~/.mlx_grpo_kit/models.
    """
    root = Path(__file__).parents[2]
    usual = root / "models" if (root / "notebooks").is_dir() else Path.home() / ".mlx_grpo_kit" / "models"
    return Path(os.environ.get(MODELS_VARIABLE) or usual).expanduser().absolute()
