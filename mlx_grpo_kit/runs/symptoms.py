"""Symptoms of a sick run: each function returns a message if the run has its symptom, else an empty string."""

from __future__ import annotations

from collections.abc import Callable

from mlx_grpo_kit.runs.history import History
from mlx_grpo_kit.runs.symptoms_of_rewards import (
    collapse,
    no_exploration,
    nothing_scored,
    one_full_one_empty,
    paid_for_something_else,
    reward_fails,
    tied,
)
from mlx_grpo_kit.runs.symptoms_of_sampling import (
    entropy_gone,
    entropy_runs_away,
    length_runs_away,
    scored_otherwise,
    too_random,
    truncated,
)
from mlx_grpo_kit.runs.symptoms_of_updates import (
    bonus_pays,
    clipped_away,
    held_still,
    kl_runs_away,
    no_number,
    nothing_moves,
    reference_moves,
    reward_fell,
    zero_gradient,
)

ALONE = (no_number, nothing_scored)
"""Symptoms that are reported alone, because they make the other numbers meaningless."""

LOOKS = (
    reward_fails, scored_otherwise, bonus_pays, paid_for_something_else, too_random, reward_fell, truncated, collapse,
    one_full_one_empty, no_exploration, tied, zero_gradient, entropy_gone, entropy_runs_away, length_runs_away,
    clipped_away, kl_runs_away, reference_moves, held_still, nothing_moves,
)  # fmt: skip
"""All other symptoms, with causes before their consequences."""

# A symptom is not reported if one of these causes is reported.
FOLLOWS_FROM: dict[Callable[[History], str], set[str]] = {
    reward_fell: {"bonus_pays"},
    truncated: {"bonus_pays", "paid_for_something_else", "too_random"},
    collapse: {"paid_for_something_else"},
    tied: {"truncated", "collapse", "too_random", "no_exploration", "paid_for_something_else"},
    zero_gradient: {"truncated", "collapse", "tied", "no_exploration"},
    entropy_gone: {"collapse", "tied", "no_exploration"},
    entropy_runs_away: {"bonus_pays", "paid_for_something_else"},
    length_runs_away: {"truncated", "paid_for_something_else"},
    clipped_away: {"scored_otherwise"},
    nothing_moves: {
        "reward_fails", "scored_otherwise", "too_random", "truncated", "no_exploration", "tied", "clipped_away",
        "reference_moves", "held_still",
    },
}  # fmt: skip
