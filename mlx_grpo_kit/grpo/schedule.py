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
"""The share of the full learning rate, by how much of the way behind the warm-up is left: from 1 down to 0."""
LARGEST_RATE = 1e18
"""Up to this learning rate no number in an update overflows: by Cauchy and Schwarz AdamW moves a parameter by at most
7.3 learning rates, and the product on the way there is of one and of a moment whose square is finite."""
RATES = f"more than 0 and at most {LARGEST_RATE:g}"


def is_rate(number: float) -> bool:
    """True for a learning rate with which a run can learn, as RATES says in words: NaN is none."""
    return 0 < number <= LARGEST_RATE


def scheduled_rate(learning_rate: float, schedule: str, step: int, max_steps: int, warmup_steps: int = 0) -> float:
    """The learning rate of the update behind `step` steps of `max_steps`, in Python's own precision.

    It rises evenly for `warmup_steps` steps, and no step is wasted on a rate of 0: transformers' first one is. From
    then on the numbers are those of transformers and of `mlx.optimizers.cosine_decay`, which computes in float32.

    Nothing is remembered from step to step. So where a run is made longer, the schedule is that of the longer run: at
    the end of a linear run of 600 steps the rate is next to 0, and with 1,200 steps it goes on at half of the full one.

    Args:
        learning_rate: the full one.
        schedule: a name in SCHEDULES.
        step: updates done, from 0 to `max_steps` - 1.
    """
    if step < warmup_steps:
        return learning_rate * (step + 1) / (warmup_steps + 1)
    return learning_rate * SCHEDULES[schedule]((max_steps - step) / max(max_steps - warmup_steps, 1))


def own_rate(args: GRPOConfig, step: int, max_steps: int | None) -> float:
    """The learning rate of `GRPOTrainer.train_step`. Raises ValueError where the schedule needs another `max_steps`."""
    if max_steps is not None and step >= max_steps:
        raise ValueError(f"max_steps is {max_steps}, and {step} steps are done; expected more.")
    if max_steps is None and SCHEDULES[args.lr_scheduler_type](0.0) != 1:
        raise ValueError(
            f"lr_scheduler_type is {args.lr_scheduler_type!r}, which falls to 0 at the last step; expected "
            "max_steps: train_step(..., max_steps=200). Or set lr_scheduler_type to 'constant'."
        )
    last = step + 1 if max_steps is None else max_steps
    return scheduled_rate(args.learning_rate, args.lr_scheduler_type, step, last, args.warmup_steps)
