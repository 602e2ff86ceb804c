"""How much better a completion did than the other completions of its prompt."""

import numpy as np

from mlx_grpo_kit.blas import mx

SCALE_REWARDS = ("group", "batch", "none")


def compute_advantages(rewards, num_generations: int, scale_rewards: str | bool = "group") -> mx.array:
    """Rewards [B] -> advantages [B]: the distance from the group's mean, in standard deviations (float32).

    GRPO, https://arxiv.org/abs/2402.03300, section 4.1.2, with the details of TRL 1.16: the standard deviation is the
    sample's (it divides by n - 1), and 1e-4 is added to it before the division.

    Args:
        rewards: [B] numbers: a list, a NumPy array or an MLX array. Completions of one prompt stand next to each other:
            B = number of prompts * num_generations. As in TRL, None or NaN says that no reward function applied to this
            completion: it is left out of the mean and of the standard deviation, and its own advantage is 0. A caller
            for whom NaN means a broken reward function has to look before calling: here nothing can tell the two apart.
        num_generations: completions of one prompt, at least 2.
        scale_rewards: "group" divides by the standard deviation of the group; "batch" by that of all rewards
            (https://arxiv.org/abs/2508.08221); "none" does not divide (Dr. GRPO, https://arxiv.org/abs/2503.20783).
            TRL's True and False stand for "group" and "none".

    A group whose rewards are all equal gets advantages of exactly 0, and so does a group with one scored completion:
    there is nothing to compare.

    Raises:
        ValueError: no rewards, more than one axis, an infinite reward, a number of rewards that is not a multiple of
            num_generations, num_generations below 2, or an unknown scale_rewards.
    """
    if isinstance(scale_rewards, bool):
        scale_rewards = "group" if scale_rewards else "none"
    if scale_rewards not in SCALE_REWARDS:
        raise ValueError(f"scale_rewards is {scale_rewards!r}; expected one of {', '.join(map(repr, SCALE_REWARDS))}.")
    groups = _to_groups(rewards, num_generations)
    scored = ~np.isnan(groups)

    count = scored.sum(axis=1, keepdims=True)
    mean = np.where(scored, groups, 0.0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    advantages = np.where(scored, groups - mean, 0.0)
    if scale_rewards == "group":
        variance = (advantages**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1)
        advantages = advantages / (np.sqrt(variance) + 1e-4)
    elif scale_rewards == "batch" and scored.sum() > 1:
        advantages = advantages / (groups[scored].std(ddof=1) + 1e-4)
    return mx.array(advantages.reshape(-1).astype(np.float32))


def _to_groups(rewards, num_generations: int) -> np.ndarray:
    """Validated rewards as [number of prompts, num_generations]: float32 numbers, held in float64.

    Rounding to float32 makes rewards equal that differ only in how they were added up (0.3 and 0.1 + 0.2). Float64 then
    has the digits to add equal ones without an error, so that their mean is exactly the reward. In float32 the mean of
    seven times 0.7 is not 0.7, and dividing what is left by 1e-4 would turn the rounding into a gradient.
    """
    if isinstance(rewards, mx.array):
        rewards = rewards.astype(mx.float32)  # NumPy cannot read bfloat16
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, and is refused below
        rewards = np.asarray(rewards, dtype=np.float32).astype(np.float64)
    if rewards.ndim != 1 or rewards.size == 0:
        raise ValueError(
            f"rewards has shape {rewards.shape}; expected (B,) with B > 0: one reward for each completion."
        )
    if np.isinf(rewards).any():
        index = int(np.flatnonzero(np.isinf(rewards))[0])
        raise ValueError(
            f"rewards[{index}] is {rewards[index]}; expected a finite number, because the mean of its group would be "
            "infinite too. Return a large number, or None when the reward function does not apply."
        )
    if num_generations < 2:
        raise ValueError(
            f"num_generations is {num_generations}; expected at least 2. A completion is compared with the others of "
            "its prompt, so alone its advantage is always 0 and nothing is learned."
        )
    if rewards.size % num_generations:
        raise ValueError(
            f"{rewards.size} rewards do not divide into groups of num_generations={num_generations}; expected "
            "num_generations rewards for every prompt."
        )
    return rewards.reshape(-1, num_generations)
