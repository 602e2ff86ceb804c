"""Metrics that the dashboard adds to each step while it trains: held-out problems, your own numbers, memory."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Callable, Mapping
from typing import Any

from mlx_grpo_kit.instruments.dashboard.panels import MEMORY, THROUGHPUT

EVAL_PROBLEMS = 64

Measure = Callable[[Any], Mapping[str, float]]


class Measures:
    """The measurements after each step, made in the thread that trains.

    Args:
        trainer: an object with `evaluate(num_problems)`, if `eval_every` is not 0.
        eval_every: steps between two evaluations; 0 disables them.
        eval_problems: the number of held-out problems.
        measure: a function from a step to your own numbers, by name.

    Raises:
        ValueError: the trainer cannot evaluate, or `eval_every` is not a whole number of at least 0.
    """

    def __init__(
        self, trainer: Any, eval_every: int = 0, eval_problems: int = EVAL_PROBLEMS, measure: Measure | None = None
    ):
        if type(eval_every) is not int or eval_every < 0:
            raise ValueError(f"eval_every is {eval_every!r}; expected a whole number of steps, or 0 for none.")
        if eval_every and not callable(getattr(trainer, "evaluate", None)):
            raise ValueError(
                f"eval_every is {eval_every}, but a {type(trainer).__name__} has no evaluate(); expected a trainer. "
                "Or pass a function of your own: measure=lambda step: {'accuracy': ...}."
            )
        self.trainer, self.eval_every, self.eval_problems, self.measure = trainer, eval_every, eval_problems, measure

    def held_out(self) -> dict[str, float]:
        """Measure the accuracy and reward on held-out problems now."""
        return dict(self.trainer.evaluate(self.eval_problems))

    def of(self, step: Any, is_last: bool) -> dict[str, float]:
        """Return the metrics of a step, including those that are measured after it.

        Raises TypeError if one of your numbers is not a number.
        """
        metrics = dict(step.metrics)
        completions = getattr(step, "completions", ())
        if THROUGHPUT not in metrics and metrics.get("step_time") and completions:
            tokens = metrics.get("completions/mean_length", math.nan) * len(completions)
            metrics[THROUGHPUT] = tokens / metrics["step_time"]
        metrics |= _memory()
        if self.eval_every and (step.step % self.eval_every == 0 or is_last):
            metrics |= self.held_out()
        if self.measure is not None:
            metrics |= self.measure(step) or {}
        return {name: _as_float(name, value) for name, value in metrics.items()}


def _memory() -> dict[str, float]:
    """Return MLX's peak memory since the last call, in GB, if the run uses MLX."""
    mlx = sys.modules.get("mlx.core")
    if mlx is None:
        return {}
    peak = mlx.get_peak_memory() / 1e9
    mlx.reset_peak_memory()
    return {MEMORY: peak}


def _as_float(name: str, value: Any) -> float:
    if not isinstance(value, numbers.Real):
        raise TypeError(
            f"Metric {name!r} is a {type(value).__module__}.{type(value).__name__}; expected a Python number. Convert "
            "it with float(x) or x.item(), so that its computation is not kept."
        )
    return float(value)
