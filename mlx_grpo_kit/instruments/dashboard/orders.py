"""Parsers of the text that a user types into the controls; a ValueError says what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.settings import rules_of

Rewards = Mapping[str, Callable | Sequence[Callable]]
MOST_STEPS = 10**9  # per run


def named_rewards(rewards: Rewards, now: Sequence[Callable] | None) -> dict[str, list[Callable]]:
    """Return lists of functions by name, including the trainer's own functions if they are not among them."""
    named = {name: [each] if callable(each) else [*each] for name, each in rewards.items()}
    if named and now and [*now] not in named.values():
        named = {"the run's own": [*now]} | named
    return named


def read_settings(rate: str, reward: str, rewards: Mapping[str, list[Callable]]) -> dict[str, Any]:
    """Return the settings that were typed and chosen; an empty field changes nothing."""
    settings: dict[str, Any] = {}
    if rate.strip():
        try:
            settings["learning_rate"] = float(rate)
        except ValueError:
            settings["learning_rate"] = math.nan
        rule = rules_of(GRPOConfig)["learning_rate"]
        if not rule.fits(settings["learning_rate"]):
            raise ValueError(f"The learning rate is {rate[:40]!r}; expected a number, {rule.expected()}, such as 1e-4.")
    if reward in rewards:
        settings["reward_funcs"] = rewards[reward]
    return settings


def read_steps(words: str, done: int) -> int:
    """Parse the length of the run; it must not be less than the steps that are already done."""
    try:
        steps = int(words)
    except ValueError:
        steps = -1
    if not (steps >= max(done, 1) and steps <= MOST_STEPS):
        expected = f"a whole number, at least {max(done, 1)} and at most {MOST_STEPS:,}"
        raise ValueError(f"The number of steps is {words[:40]!r}; expected {expected}.")
    return steps
