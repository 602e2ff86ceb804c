"""Calling reward functions, and not trusting what they return."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np


class RewardError(ValueError):
    """A reward function failed or returned something that is no reward; the message names it."""


def compute_rewards(
    reward_funcs: Sequence[Callable], problems: Sequence, completions: Sequence[str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Every function's rewards, and their sum: (float64 [B], {name: float64 [B]}).

    A function that returns None for a completion does not apply to it: NaN in its array, and left out of the sum. A
    completion that no function applies to has the sum NaN, and `compute_advantages` leaves it out.

    Raises RewardError for a function that raises, a wrong number of rewards, and a reward that is no finite number.
    """
    by_name: dict[str, np.ndarray] = {}
    for func in reward_funcs:
        name = getattr(func, "__name__", type(func).__name__)
        if name in by_name:
            raise RewardError(
                f"Two reward functions are called {name!r}; expected different names, as metrics are logged by them."
            )
        by_name[name] = _call(name, func, problems, completions)
    if not by_name:
        raise RewardError("The task has no reward functions; expected at least one.")
    table = np.stack(list(by_name.values()))
    total = np.where(np.isnan(table).all(axis=0), np.nan, np.nansum(table, axis=0))
    return total, by_name


def _call(name: str, func: Callable, problems: Sequence, completions: Sequence[str]) -> np.ndarray:
    try:
        returned = func(problems, completions)
        values = list(returned) if isinstance(returned, Iterable) else None  # a generator only runs, and fails, here
    except Exception as error:
        raise RewardError(f"Reward function {name!r} raised {type(error).__name__}: {error}") from error
    if values is None:
        raise RewardError(
            f"Reward function {name!r} returned {returned!r}; expected a list of numbers, one a completion."
        )
    if len(values) != len(completions):
        raise RewardError(
            f"Reward function {name!r} returned {len(values)} rewards for {len(completions)} completions; "
            "expected one for each."
        )
    rewards = np.full(len(values), np.nan)
    for index, value in enumerate(values):
        if value is None:
            continue
        with suppress(TypeError, ValueError):
            rewards[index] = math.nan if isinstance(value, str) else float(value)
        if not math.isfinite(rewards[index]):
            raise RewardError(
                f"Reward function {name!r} returned {value!r} for completion {index}, {completions[index][:60]!r}; "
                "expected a finite number, or None where the function does not apply."
            )
    return rewards
