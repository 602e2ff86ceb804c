"""Checks of arguments that have the right shape but impossible values: wrong groups, scales and signs."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number

import numpy as np

from mlx_grpo_kit.generation.padding import TokenIds
from mlx_grpo_kit.grpo import arrays as xp
from mlx_grpo_kit.grpo.arrays import Array

LARGEST_LOGP = 0.01
"""Rounding may leave the log-probability of a certain token a little above 0; a larger value is an error."""


def check_whole(name: str, value: int, at_least: int) -> None:
    """Raise ValueError unless `value`, the argument called `name`, is a whole number of at least `at_least`."""
    if not (isinstance(value, (int, np.integer)) and value >= at_least):
        raise ValueError(f"{name} is {value!r}; expected a whole number of at least {at_least}.")


def check_group_size(name: str, value: int) -> None:
    """Raise ValueError unless `value`, the argument called `name`, is a whole number of at least 2."""
    if not (isinstance(value, (int, np.integer)) and value >= 2):
        raise ValueError(
            f"{name} is {value!r}; expected a whole number of at least 2. A completion is compared with the others of "
            "its prompt, so a single completion always has advantage 0 and nothing is learned."
        )


def check_rewards(rewards: Sequence[float | None], completions: Sequence[TokenIds]) -> None:
    """Raise ValueError unless there is one reward per completion, and none is NaN."""
    if len(rewards) != len(completions):
        raise ValueError(f"There are {len(rewards)} rewards for {len(completions)} completions; expected one for each.")
    for row, reward in enumerate(rewards):
        if reward != reward:
            raise ValueError(
                f"rewards[{row}] is NaN; expected a number, or None for a completion that no reward applies to."
            )


def prompt_of_each(prompts: Sequence[TokenIds], completions: Sequence[TokenIds], group_size: int) -> Sequence[TokenIds]:
    """Return one prompt per completion. Raises ValueError for a group whose completions have different prompts.

    Args:
        prompts: one per completion, or one per group of `group_size` completions.
    """
    if len(prompts) * group_size == len(completions):
        return [prompt for prompt in prompts for _ in range(group_size)]
    for row, prompt in enumerate(prompts if len(prompts) == len(completions) else ()):
        first = row - row % group_size
        if [*prompt] != [*prompts[first]]:
            raise ValueError(
                f"prompts[{row}] is not prompts[{first}], but both are in group {first // group_size}, of completions "
                f"{first} to {first + group_size - 1}. Rewards are compared within a group: expected the {group_size} "
                "completions of a prompt in adjacent rows, as in [a, a, b, b], not [a, b, a, b]."
            )
    return prompts


def check_numbers(
    completion_mask: Array, num_items_in_batch: int | Array | None, *, logps: Array, **others: Array | None
) -> None:
    """Raise ValueError for impossible numbers, such as positive log-probabilities. Skip traced ones."""
    mask = xp.as_floats(completion_mask, xp.as_floats(logps, logps))
    if xp.known(((mask != 0) & (mask != 1)).any()):
        raise ValueError(
            "completion_mask has numbers other than 0 and 1; expected 1 or True for the tokens that the policy chose, "
            "and 0 or False for all others. To weight completions, scale their advantages."
        )
    for name, values in {"logps": logps, **others}.items():
        if values is not None:
            values = xp.where(mask != 0, xp.as_floats(values, mask), 0.0)
            if (largest := xp.known(values.max())) is not None and largest > LARGEST_LOGP:
                raise ValueError(
                    f"{name} has {largest:.4g} at a completion token; expected log-probabilities, which are at most 0. "
                    "Take the logarithm of probabilities, the negative of negative log-likelihoods, and log_softmax "
                    "of logits."
                )
    if num_items_in_batch is not None:
        number = num_items_in_batch if isinstance(num_items_in_batch, Number) else xp.known(num_items_in_batch)
        if number is not None and not number >= 1:
            raise ValueError(
                f"num_items_in_batch is {number}; expected the completion tokens of the whole batch, at least 1, or "
                "None to count this batch's."
            )
