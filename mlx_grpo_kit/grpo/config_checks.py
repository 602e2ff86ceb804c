"""Checks of a training run's settings that a range or choices cannot express: of texts, and of several settings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mlx_grpo_kit.generation.generate import stop_at
from mlx_grpo_kit.grpo.loss_config import AdvantageSettings
from mlx_grpo_kit.grpo.settings import as_python, as_setting, is_finite, kinds_of
from mlx_grpo_kit.qwen3.lora import SCALES, check_targets

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.config import GRPOConfig


def check_config(config: GRPOConfig) -> None:
    """Convert numbers of NumPy, MLX and torch to Python's, and raise ValueError for the first invalid setting."""
    for name, kind in kinds_of(config).items():
        object.__setattr__(config, name, as_setting(name, getattr(config, name), kind))
    AdvantageSettings.__post_init__(config)  # checks all ranges and choices
    _check_multiple(
        config,
        "steps_per_generation",
        "gradient_accumulation_steps",
        ": a step samples so many micro-batches, and gradient_accumulation_steps of them make an update",
    )
    _check_multiple(
        config, "completion_batch_size", "num_generations", ", because a prompt is computed once for its whole group"
    )
    if config.stop_strings is not None:
        stop_at(str, config.stop_strings)
        object.__setattr__(config, "stop_strings", tuple(config.stop_strings))  # a file has a list
    if not isinstance(config.chat_template_kwargs, dict | None):
        raise ValueError(
            f"chat_template_kwargs is {config.chat_template_kwargs!r}; expected settings by name, such as "
            "{'enable_thinking': False}."
        )
    try:
        json.dumps(config.chat_template_kwargs, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"chat_template_kwargs is {config.chat_template_kwargs!r}; expected strings, numbers, booleans, and lists "
            f"and dictionaries of them, which a checkpoint can store ({error})."
        ) from error
    if float(config.warmup_steps).is_integer():
        object.__setattr__(config, "warmup_steps", int(config.warmup_steps))
    if not (config.warmup_steps >= 0 and (isinstance(config.warmup_steps, int) or config.warmup_steps < 1)):
        raise ValueError(
            f"warmup_steps is {config.warmup_steps}; expected a whole number of at least 0, or a share of all steps "
            "below 1."
        )
    for name in ("bf16", "gradient_checkpointing", "lora_r"):
        if getattr(config, name) and config.backend != "mlx":
            raise ValueError(
                f"{name} is set, which only MLX's learner supports (backend='mlx'); that of backend={config.backend!r} "
                "trains all parameters, in float32 and in one pass. Leave out one of the two."
            )
    if config.reward_weights is not None:
        weights = (as_python(each) for each in as_python(config.reward_weights))  # a file has a list
        object.__setattr__(config, "reward_weights", tuple(weights))
        if not all(map(is_finite, config.reward_weights)):
            raise ValueError(f"reward_weights are {config.reward_weights}; expected one number per reward function.")
    if config.sync_ref_model and not config.beta:
        raise ValueError(
            "sync_ref_model is set while beta is 0: without a KL penalty there is no reference to update. Set beta, "
            "for example to 0.04, or leave out sync_ref_model."
        )
    if config.lora_r is not None and config.sync_ref_model:
        raise ValueError(
            "sync_ref_model is set, which updates a second copy of the policy. With adapters (lora_r) the frozen base "
            "model is the reference and there is no copy. Leave out one of the two."
        )
    if not SCALES[0] <= config.lora_scale <= SCALES[1]:
        raise ValueError(
            f"lora_alpha / lora_r is {config.lora_scale}; expected {SCALES[0]} to {SCALES[1]}, which float32 can hold, "
            "and usually 1 to 4."
        )
    if config.lora_r is None and (
        config.lora_target_modules is not None or config.lora_alpha != type(config).lora_alpha
    ):
        name = "lora_target_modules" if config.lora_target_modules is not None else "lora_alpha"
        raise ValueError(
            f"{name} is set without lora_r: all parameters would be trained. Set lora_r (--lora-r), for example to 8, "
            f"or leave out {name}."
        )
    if config.lora_target_modules is not None:
        check_targets(config.lora_target_modules)
        object.__setattr__(config, "lora_target_modules", tuple(config.lora_target_modules))  # a file has a list
    learned_at_once = config.per_device_train_batch_size * config.gradient_accumulation_steps
    if learned_at_once % config.num_generations:
        raise ValueError(
            f"per_device_train_batch_size * gradient_accumulation_steps is {learned_at_once}; expected "
            f"a multiple of num_generations ({config.num_generations}), so that every prompt gets its whole group."
        )
    if config.temperature == 0:
        raise ValueError(
            "temperature is 0, so all completions of a group would be equal and teach nothing; expected more than 0, "
            "usually 1."
        )
    config.sampling(1)
    config.loss(1)


def _check_multiple(config: GRPOConfig, name: str, of: str, reason: str) -> None:
    """Raise ValueError unless a setting is None or a multiple of another one."""
    value, unit = getattr(config, name), getattr(config, of)
    if value is not None and value % unit:
        raise ValueError(f"{name} is {value}; expected a multiple of {of} ({unit}){reason}.")
