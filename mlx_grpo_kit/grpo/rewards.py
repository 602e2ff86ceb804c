"""Calling reward functions, and not trusting what they return."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from contextlib import suppress
from itertools import islice

import numpy as np

from mlx_grpo_kit.tasks.task import TaskError

LARGEST = float(np.finfo(np.float32).max)  # advantages are float32


class RewardError(TaskError):
    """A reward function failed or returned something that is no reward; the message names it."""


def compute_rewards(
    reward_funcs: Sequence[Callable], problems: Sequence, completions: Sequence[str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Every function's rewards, and their sum: (float64 [B], {name: float64 [B]}).

    A function that returns None for a completion does not apply to it: NaN in its array, and left out of the sum. A
    completion that no function applies to has the sum NaN, and `compute_advantages` leaves it out.

    Raises RewardError for a function that raises, a wrong number of rewards, and a reward that is no finite number or
    that float32 cannot hold.
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
    if (abs(total) > LARGEST).any():
        index = int((abs(total) > LARGEST).argmax())
        raise RewardError(
            f"The rewards of completion {index} add up to {total[index]:g} ({', '.join(by_name)}); expected at most "
            f"{LARGEST:.1e}."
        )
    return total, by_name


def _call(name: str, func: Callable, problems: Sequence, completions: Sequence[str]) -> np.ndarray:
    try:
        # Lists of its own, because a function may sort what it gets. A generator only runs, and fails, in list().
        returned = func(list(problems), list(completions))
        ordered = isinstance(returned, Iterable) and not isinstance(returned, Mapping | Set)
        values = list(islice(returned, len(completions) + 1)) if ordered else None
    except (Exception, SystemExit) as error:  # exit() in a reward must not end the run as if all were well
        raise RewardError(f"Reward function {name!r} raised {type(error).__name__}: {error}") from error
    if values is None:
        raise RewardError(
            f"Reward function {name!r} returned {_quoted(returned)}; expected a list of numbers, one a completion."
        )
    if len(values) != len(completions):
        count = len(returned) if isinstance(returned, Sized) else len(values)
        raise RewardError(
            f"Reward function {name!r} returned {count} rewards for {len(completions)} completions; "
            "expected one for each."
        )
    rewards = np.full(len(values), np.nan)
    for index, value in enumerate(values):
        if value is None:
            continue
        with suppress(Exception):  # float() runs the code of whatever was returned
            rewards[index] = math.nan if isinstance(value, str) else float(value)
        if not abs(rewards[index]) <= LARGEST:
            raise RewardError(
                f"Reward function {name!r} returned {_quoted(value)} for completion {index}, "
                f"{completions[index][:60]!r}; expected a finite number, or None where the function does not apply. "
                f"The largest that counts is {LARGEST:.1e}."
            )
    return rewards


def _quoted(value: object) -> str:
    """What was returned, in 60 characters; an int of 5000 digits has no repr at all."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
