"""The learning rate from step to step, under the names of transformers' `lr_scheduler_type`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.config import GRPOConfig

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda left: 1.0,
    "constant_with_warmup": lambda left: 1.0,
    "linear": lambda left: left,
    "cosine": lambda left: (1 - math.cos(math.pi * left)) / 2,
}
"""The share of the full learning rate, as a function of the remaining share of steps after the warm-up, from 1 to 0."""
LARGEST_RATE = 1e18
"""Up to this learning rate no number in an update overflows.

By the Cauchy-Schwarz inequality AdamW moves a parameter by at most 7.3 learning rates, and the intermediate product is
a rate times a moment whose square is finite.
"""


def scheduled_rate(learning_rate: float, schedule: str, step: int, max_steps: int, warmup_steps: float = 0) -> float:
    """The learning rate of the update after `step` of `max_steps` steps, in Python's precision.

    It rises linearly for `warmup_steps` steps and starts above 0, unlike in transformers, which wastes its first step
    on a rate of 0. After that the numbers are those of transformers and of `mlx.optimizers.cosine_decay`, which
    computes in float32.

    The schedule has no state. So if you extend a run, it follows the schedule of the longer run: at the end of a linear
        run of 600 steps the rate is close to 0, and extended to 1,200 steps the run continues at half of the full rate.

    Args:
        learning_rate: the full rate.
        schedule: a name in SCHEDULES.
        step: steps done, from 0 to `max_steps` - 1.
        warmup_steps: a number of steps; or, below 1, a share of `max_steps`, rounded up as in transformers.
    """
    if warmup_steps < 1:
        warmup_steps = math.ceil(max_steps * warmup_steps)
    if step < warmup_steps:
        return learning_rate * (step + 1) / (warmup_steps + 1)
    return learning_rate * SCHEDULES[schedule]((max_steps - step) / max(max_steps - warmup_steps, 1))


def own_rate(args: GRPOConfig, step: int, max_steps: int | None) -> float:
    """The learning rate of `GRPOTrainer.train_step`. Raises ValueError if the schedule needs another `max_steps`."""
    if max_steps is not None and step >= max_steps:
        raise ValueError(f"max_steps is {max_steps}, and {step} steps are done; expected more.")
    if max_steps is None and 0 < args.warmup_steps < 1:
        raise ValueError(
            f"warmup_steps is {args.warmup_steps}, a share of all steps; expected max_steps: train_step(..., "
            "max_steps=200). Or set warmup_steps to a number of steps."
        )
    if max_steps is None and SCHEDULES[args.lr_scheduler_type](0.0) != 1:
        raise ValueError(
            f"lr_scheduler_type is {args.lr_scheduler_type!r}, which falls to 0 at the last step; expected "
            "max_steps: train_step(..., max_steps=200). Or set lr_scheduler_type to 'constant'."
        )
    last = step + 1 if max_steps is None else max_steps
    return scheduled_rate(args.learning_rate, args.lr_scheduler_type, step, last, args.warmup_steps)
