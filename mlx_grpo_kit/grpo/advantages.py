"""Advantages: the distance of a completion's reward from those of the other completions of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlx_grpo_kit.grpo.checks import check_group_size
from mlx_grpo_kit.grpo.loss_config import AdvantageSettings
from mlx_grpo_kit.runtime import mx

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.batch import Completions, Scores
    from mlx_grpo_kit.grpo.config import GRPOConfig


def compute_advantages(
    rewards,
    num_generations: int,
    scale_rewards: str | bool = "group",
    *,
    advantage_estimator: str = "grpo",
    reward_weights: Sequence[float] | None = None,
    multi_objective_aggregation: str = "sum_then_normalize",
) -> mx.array:
    """Rewards [B] -> advantages [B]: the distance from the group's mean, in standard deviations (float32).

    GRPO, https://arxiv.org/abs/2402.03300, section 4.1.2, with the details of TRL 1.16: the standard deviation is the
    sample's (it divides by n - 1), and 1e-4 is added to it before the division.

    Args:
        rewards: [B] numbers: a list, a NumPy array or an MLX array. Completions of one prompt are adjacent rows: B =
            number of prompts * num_generations. As in TRL, None or NaN means that no reward function applied to this
            completion: it is left out of the mean and of the standard deviation, and its own advantage is 0. If NaN
            means a broken reward function to you, check before you call: this function cannot distinguish the two. With
            `reward_weights` or "normalize_then_sum", [B, F] from F reward functions.
        num_generations: completions of one prompt, at least 2.
        scale_rewards: "group" divides by the standard deviation of the group; "batch" divides by that of all rewards
            (https://arxiv.org/abs/2508.08221); "none" does not divide (Dr. GRPO, https://arxiv.org/abs/2503.20783).
            As in TRL, True and False mean "group" and "none".
        advantage_estimator: the mean that a reward is compared with. "grpo": the mean of its group. "rloo": the mean of
            the other rewards in its group, so that a completion does not influence its own baseline (RLOO,
            https://arxiv.org/abs/2402.14740). Compared with "grpo" this multiplies advantages by n / (n - 1), a factor
            that dividing by the group's standard deviation would cancel. So combine "rloo" with "none", which is RLOO,
            or with "batch", which divides by the standard deviation of all advantages (TRL's `normalize_advantages`).
        reward_weights: [F], the factor for the rewards of each function.
        multi_objective_aggregation: "sum_then_normalize" adds the weighted columns first. "normalize_then_sum" divides
            each column by its own standard deviation in the group, adds them up weighted, and divides the sums by
            their standard deviation in the batch, so that no function drowns out another (GDPO,
            https://arxiv.org/abs/2601.05242).

    A group whose rewards are all equal gets advantages of exactly 0, and so does a group with one scored completion:
    neither has anything to compare.

    Raises:
        ValueError: no rewards, more than two axes, an infinite reward, a number of rewards that is not a multiple of
            num_generations, num_generations below 2, a number of weights other than F, an unknown setting, or settings
            that cannot be combined.
    """
    if isinstance(scale_rewards, bool):
        scale_rewards = "group" if scale_rewards else "none"
    AdvantageSettings(scale_rewards, advantage_estimator, multi_objective_aggregation)
    table = _to_table(
        rewards, several=reward_weights is not None or multi_objective_aggregation == "normalize_then_sum"
    )
    if multi_objective_aggregation == "normalize_then_sum":
        columns = [_to_groups(column, num_generations) for column in table.T]
        scored = ~np.isnan(table).all(axis=1)
        normalized = np.stack([_over_std(_above_mean(groups), groups).reshape(-1) for groups in columns], axis=1)
        # TRL subtracts the mean of these sums, which is 0 except for rounding. In groups without spread that rounding
        # error would become the advantage.
        advantages = np.where(scored, weighted_sum(normalized, reward_weights), 0.0)
        if scored.sum() > 1:
            advantages = advantages / (advantages[scored].std(ddof=1) + 1e-4)
        return mx.array(advantages.astype(np.float32))

    groups = _to_groups(weighted_sum(table, reward_weights), num_generations)
    scored = ~np.isnan(groups)
    advantages = _above_mean(groups)
    if advantage_estimator == "rloo":
        # The distance from the mean of the others is n / (n - 1) times the distance from the mean of all n.
        count = scored.sum(axis=1, keepdims=True)
        advantages = advantages * count / np.maximum(count - 1, 1)
        scored = scored & (count > 1)
    if scale_rewards == "group":
        advantages = _over_std(advantages, groups)
    elif scale_rewards == "batch" and scored.sum() > 1:
        measured = advantages if advantage_estimator == "rloo" else groups
        advantages = advantages / (measured[scored].std(ddof=1) + 1e-4)
    return mx.array(advantages.reshape(-1).astype(np.float32))


def weighted_sum(table: np.ndarray, weights: Sequence[float] | None = None) -> np.ndarray:
    """Rewards [B, F] of F functions -> their weighted sums, float64 [B]. Weights are [F]; None means all 1.

    NaN (the function does not apply) is left out of a sum; if no function applies, the sum is NaN. Raises ValueError if
    the number of weights is not F.
    """
    if weights is None:
        weights = np.ones(table.shape[1])
    if len(weights) != table.shape[1]:
        raise ValueError(f"There are {len(weights)} reward_weights for {table.shape[1]} reward functions.")
    return np.where(np.isnan(table).all(axis=1), np.nan, np.nansum(table * np.asarray(weights, np.float64), axis=1))


def soft_overlong_punishment(lengths, max_completion_length: int, soft_punish_cache: int) -> np.ndarray:
    """Lengths in tokens -> DAPO's penalty for completions close to the maximum length, float64.

    It has the shape of `lengths`, and is 0 up to max_completion_length - soft_punish_cache tokens, then falls linearly
    to -1 at max_completion_length. https://arxiv.org/abs/2503.14476, equation 13; TRL's `get_soft_overlong_punishment`.
    """
    over = np.asarray(lengths, np.float64) - (max_completion_length - soft_punish_cache)
    return -np.clip(over / max(soft_punish_cache, 1), 0.0, 1.0)


def _above_mean(groups: np.ndarray) -> np.ndarray:
    """Each reward's distance from its group's mean; 0 for a missing reward."""
    scored = ~np.isnan(groups)
    count = np.maximum(scored.sum(axis=1, keepdims=True), 1)
    mean = np.where(scored, groups, 0.0).sum(axis=1, keepdims=True) / count
    return np.where(scored, groups - mean, 0.0)


def _over_std(advantages: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Advantages divided by (their group's standard deviation + 1e-4)."""
    count = (~np.isnan(groups)).sum(axis=1, keepdims=True)
    variance = (advantages**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1)
    return advantages / (np.sqrt(variance) + 1e-4)


def _to_table(rewards, several: bool) -> np.ndarray:
    """Rewards [B], or [B, F] if `several` functions are allowed, as float64 [B, F]."""
    if isinstance(rewards, mx.array):
        rewards = rewards.astype(mx.float32)  # NumPy cannot read bfloat16
    rewards = np.asarray(rewards)
    if rewards.dtype.kind not in "biuf":  # strings, or a list with None
        for place, reward in enumerate(rewards.flat):
            if reward is not None and (isinstance(reward, str) or not hasattr(reward, "__float__")):
                raise ValueError(
                    f"rewards[{place}] is {reward!r}; expected a number, or None where no reward function applies."
                )
    rewards = rewards.astype(np.float64)
    if rewards.ndim not in ((1, 2) if several else (1,)) or rewards.size == 0:
        raise ValueError(
            f"rewards has shape {rewards.shape}; expected (B,) with B > 0: one reward per completion. With "
            "reward_weights or multi_objective_aggregation it may be (B, F): one reward per completion and function."
        )
    return rewards.reshape(len(rewards), -1)


def _to_groups(rewards: np.ndarray, num_generations: int) -> np.ndarray:
    """Validated rewards as [number of prompts, num_generations]: float32 numbers, held in float64.

    Rounding to float32 makes rewards equal that differ only in how they were added up (0.3 and 0.1 + 0.2). Float64 then
    has enough digits to add equal rewards without an error, so that their mean is exactly the reward. In float32 the
    mean of seven rewards of 0.7 is not 0.7, and dividing the remainder by 1e-4 would turn rounding into a gradient.
    """
    with np.errstate(over="ignore"):  # a reward that float32 cannot hold becomes inf, which raises below
        rewards = rewards.astype(np.float32).astype(np.float64)
    if np.isinf(rewards).any():
        index = int(np.flatnonzero(np.isinf(rewards))[0])
        raise ValueError(
            f"rewards[{index}] is {rewards[index]}; expected a finite number, because the mean of its group would be "
            "infinite too. Return a large number, or None when the reward function does not apply."
        )
    check_group_size("num_generations", num_generations)
    if rewards.size % num_generations:
        raise ValueError(
            f"{rewards.size} rewards do not divide into groups of num_generations={num_generations}; expected "
            "num_generations rewards for every prompt."
        )
    return rewards.reshape(-1, num_generations)


class GroupAdvantages:
    """The advantages part of a step: weight the functions' rewards, and compare each completion with its group."""

    def __init__(self, args: GRPOConfig):
        self.args = args

    def __call__(self, completions: Completions, scores: Scores) -> tuple[np.ndarray, np.ndarray]:
        """Return each completion's weighted sum of rewards, float64 [N], and its advantage, float32 [N]."""
        args = self.args
        weights = np.ones(len(scores.names))
        if args.reward_weights is not None:
            weights[: len(args.reward_weights)] = args.reward_weights  # the overlong punishment keeps weight 1
        advantages = compute_advantages(
            scores.values,
            args.num_generations,
            args.scale_rewards,
            advantage_estimator=args.advantage_estimator,
            reward_weights=weights,
            multi_objective_aggregation=args.multi_objective_aggregation,
        )
        return weighted_sum(scores.values, weights), np.array(advantages)
