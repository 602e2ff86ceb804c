"""Exercises of notebook 16: the GRPO loss."""

import copy
import math

import numpy as np

from mlx_grpo_kit.course.compare import same
from mlx_grpo_kit.course.exercise import Exercise, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.runtime import mx


def _normal(rng, *shape):
    return mx.array(rng.normal(size=shape).astype(np.float32))


def _ragged(rng, rows, length):
    """A mask of completions of 1 to `length` tokens."""
    return mx.array(np.arange(length) < rng.integers(1, length + 1, (rows, 1)))


def _with_gradient(solution):
    """A `run`: what an answer returns and, if it is right, the gradient of its sum with respect to the first argument.

    A wrong answer has no gradient to look at: MLX writes outside of its memory where an index is out of range.
    """

    def run(function, x, *others):
        result = function(*copy.deepcopy((x, *others)))
        if not same(result, solution(x, *others)):
            return result, None
        return result, mx.grad(lambda x: mx.array(function(x, *copy.deepcopy(others))).sum())(x)

    return run


# -- advantages -------------------------------------------------------------------------------------------------------


def group_advantages(rewards, group_size):
    """Rewards (a list; None: no reward) -> (reward - mean) / (std + 1e-4), in each group."""
    groups = np.array(rewards, dtype=float).reshape(-1, group_size)  # None becomes nan
    scored = ~np.isnan(groups)
    count = np.maximum(scored.sum(axis=1, keepdims=True), 1)
    mean = np.where(scored, groups, 0).sum(axis=1, keepdims=True) / count
    away = np.where(scored, groups - mean, 0)
    std = np.sqrt((away**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1))
    return (away / (std + 1e-4)).reshape(-1).astype(np.float32)


def _draw_rewards(rng):
    groups, size = int(rng.integers(2, 4)), int(rng.integers(3, 6))
    rewards = (2 * rng.normal(size=groups * size)).tolist()
    rewards[int(rng.integers(len(rewards)))] = None
    return rewards, size


ADVANTAGES = Exercise(
    "16.1",
    "Compared with the others",
    "Write `group_advantages(rewards, group_size)`. `rewards` is a list; the first `group_size` belong to the first "
    "prompt, the next to the second, and so on. The advantage of a completion is `(reward - mean) / (std + 1e-4)`, "
    "with the mean of its group and the standard deviation that divides by n - 1. A reward of `None` means that this "
    "completion was not scored: leave it out of the mean, n and the deviation, and give it the advantage 0. If only "
    "one completion of a group was scored, it gets the advantage 0 too. Return the advantages in the order of the "
    "rewards: a list or an array.",
    minutes=12,
    difficulty=2,
    solution=group_advantages,
    hints=(
        "One group at a time: `group = rewards[start : start + group_size]`, for start 0, group_size, 2 * "
        "group_size ... Keep the scored ones, `[r for r in group if r is not None]`, and take their mean and "
        "deviation.",
        "The deviation is `sqrt(sum((r - mean)**2) / (n - 1))`: NumPy's `std(ddof=1)`. With n = 1 it is 0 / 0, so "
        "handle that case yourself: the advantage is 0. The 1e-4 is added after the root.",
        "With arrays: `groups = np.array(rewards, dtype=float).reshape(-1, group_size)` turns None into nan. Fill "
        "`groups - mean` with 0 where there is no reward, and divide the sum of its squares by `np.maximum(count - "
        "1, 1)`.",
    ),
    cases=(
        ([1.0, 0.0, 0.0, 0.0], 4),
        ([1.0, 0.0, 0.5, 0.5, 0.5, 0.5], 2),
        ([0.5, 0.5, 0.5, 1.0, 2.0, 4.5], 3),
        ([1.0, None, 0.25, None, None, 3.0, None, None, None], 3),
        ([0.75, 2.0], 1),
        ([1.0, 1.01, 1.0, 1.0], 4),
        ([0.0, 1e-7, 0.0, 0.0], 4),
        ([0.0] * 39 + [-1.0], 40),
        *drawn(3, _draw_rewards),
    ),
    mistakes=slips(
        group_advantages,
        r"""
@ std = np.sqrt((away**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1))
divided by n (2)
+ std = np.sqrt((away**2).sum(axis=1, keepdims=True) / count)
! Your standard deviation divides by n, which is NumPy's default. Here it divides by n - 1: `ddof=1`.
variance (2)
+ std = (away**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1)
! You divided by the variance. The deviation is its square root.
n of the whole group (2)
+ std = np.sqrt((away**2).sum(axis=1, keepdims=True) / np.maximum(group_size - 1, 1))
! Your deviation divides by group_size - 1. A completion that was not scored does not count: n is the number of scored
! completions.
deviation of everything
+ std = np.nanstd(groups, ddof=1)
! You used the deviation of all rewards. Divide each group by its own.

@ return (away / (std + 1e-4)).reshape(-1).astype(np.float32)
no 1e-4 (2)
+ return (away / (std)).reshape(-1).astype(np.float32)
or
+ return (away / np.where(std == 0, 1, std)).reshape(-1).astype(np.float32)
or
+ return ((groups - mean) / std).reshape(-1)
or
+ return (away / np.where(count > 1, std, 1)).reshape(-1)
or
+ if ((std == 0) & (count > 1)).any():
+     raise ZeroDivisionError('division by zero')
+ return (away / np.where(std == 0, 1, std)).reshape(-1)
! The 1e-4 in the denominator is missing. A group of equal rewards has a deviation of 0, and 0 / 0 = nan in arrays,
! while Python's own numbers raise ZeroDivisionError. Rewards that are close together show the difference too. (A
! completion without a reward must not become nan either: its advantage is 0.)
no division
+ return (away).reshape(-1).astype(np.float32)
! That is the distance from the mean. Divide it by the group's deviation plus 1e-4.
mean of the others
+ return (away * count / np.maximum(count - 1, 1) / (std + 1e-4)).reshape(-1).astype(np.float32)
! You measured the distance from the mean of the *others*, which is the leave-one-out baseline of chapter 15. Here the
! mean includes the completion's own reward.

1e-4 under the root (2)
- std = np.sqrt((away**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1))
- return (away / (std + 1e-4)).reshape(-1).astype(np.float32)
+ std = np.sqrt((away**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1) + 1e-4)
+ return (away / std).reshape(-1).astype(np.float32)
! You added the 1e-4 under the root. Add it to the deviation itself.
dealt out like cards
- groups = np.array(rewards, dtype=float).reshape(-1, group_size)  # None becomes nan
+ groups = np.array(rewards, dtype=float).reshape(group_size, -1).T  # None becomes nan
- return (away / (std + 1e-4)).reshape(-1).astype(np.float32)
+ return (away / (std + 1e-4)).T.reshape(-1).astype(np.float32)
! You dealt the rewards out like cards, one to each prompt in turn. The rewards of a prompt are next to each other: the
! first group_size rewards are those of the first prompt.

@ groups = np.array(rewards, dtype=float).reshape(-1, group_size)  # None becomes nan
one group
+ groups = np.array(rewards, dtype=float).reshape(1, -1)  # None becomes nan
! You subtracted the mean of all rewards. Compare a completion only with the completions of its own prompt.
None is 0
+ groups = np.array([r or 0 for r in rewards], dtype=float).reshape(-1, group_size)  # None becomes nan
or
- scored = ~np.isnan(groups)
+ given = ~np.isnan(groups)
+ groups = np.nan_to_num(groups)
+ scored = groups == groups
- return (away / (std + 1e-4)).reshape(-1).astype(np.float32)
+ return (np.where(given, away, 0) / (std + 1e-4)).reshape(-1).astype(np.float32)
! In your answer None counts as a reward of 0. It means that there is no reward: leave it out of the mean and the
! deviation.

0 is None
- scored = ~np.isnan(groups)
+ scored = np.nan_to_num(groups) != 0
or
- scored = ~np.isnan(groups)
+ given = ~np.isnan(groups)
+ scored = np.nan_to_num(groups) != 0
- return (away / (std + 1e-4)).reshape(-1).astype(np.float32)
+ away = np.where(given & (count > 1), groups - mean, 0)
+ return (away / (std + 1e-4)).reshape(-1).astype(np.float32)
! You left out the rewards that are 0, as `if r` does. 0 is a reward like any other: ask `if r is not None`.
None in the count
- count = np.maximum(scored.sum(axis=1, keepdims=True), 1)
+ count = group_size
! Your sums leave None out, but you divide them by the size of the whole group. Divide by the number of scored
! completions.
""",
    ),
    also_right=r"""
def by_loop(rewards, group_size):
    result = []
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        scored = [r for r in group if r is not None]
        if len(scored) < 2:
            result += [0.0] * len(group)
            continue
        mean = sum(scored) / len(scored)
        std = math.sqrt(sum((r - mean) ** 2 for r in scored) / (len(scored) - 1))
        result += [0.0 if r is None else (r - mean) / (std + 1e-4) for r in group]
    return result
# a loop
by_loop
# an array of MLX
lambda rewards, size: mx.array(by_loop(rewards, size))
# torch
import torch
def advantages_by_torch(rewards, group_size):
    groups = torch.tensor([math.nan if r is None else r for r in rewards], dtype=torch.float64).view(-1, group_size)
    result = []
    for group in groups:
        scored = group[~group.isnan()]
        std = scored.std() if len(scored) > 1 else torch.tensor(0.0)
        result.append(((group - scored.mean()) / (std + 1e-4)).nan_to_num() if len(scored) else group.nan_to_num())
    return torch.cat(result).numpy()
""",
    also_wrong=r"""
# a half for the mean
lambda rewards, size: (np.array(rewards, float) - 0.5).tolist()
# None as nan
- return (away / (std + 1e-4)).reshape(-1).astype(np.float32)
+ return ((groups - mean) / (std + 1e-4)).reshape(-1).astype(np.float32)
# 0 for equal rewards, and no 1e-4
def no_1e4_by_loop(rewards, group_size):
    result = []
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        scored = [r for r in group if r is not None]
        mean = sum(scored) / max(len(scored), 1)
        std = math.sqrt(sum((r - mean) ** 2 for r in scored) / max(len(scored) - 1, 1))
        result += [0.0 if r is None or len(scored) < 2 or std == 0 else (r - mean) / std for r in group]
    return result
! 1e-4 in the denominator is missing
# no 1e-4, with nan
def no_1e4_by_arrays(rewards, group_size):
    groups = np.array(rewards, dtype=float).reshape(-1, group_size)
    std = np.nanstd(groups, axis=1, ddof=1, keepdims=True)
    return ((groups - np.nanmean(groups, axis=1, keepdims=True)) / std).ravel()
! 1e-4 in the denominator is missing
# 0 for close rewards
- return (away / (std + 1e-4)).reshape(-1).astype(np.float32)
+ return np.where(std > 1e-6, away / (std + 1e-4), 0).reshape(-1).astype(np.float32)
# bounded
- return (away / (std + 1e-4)).reshape(-1).astype(np.float32)
+ return (away / (std + 1e-4)).clip(-5, 5).reshape(-1).astype(np.float32)
""",
    explain="A group whose rewards are all equal teaches nothing: its advantages are 0, whatever the reward is.",
)


# -- log-probabilities ------------------------------------------------------------------------------------------------


def token_logps(logits, ids, prompt_length, temperature):
    """log pi of each completion token: logits [B, P + T, V], ids [B, P + T] -> [B, T]."""
    logits = logits[:, prompt_length - 1 : -1] / temperature
    completions = ids[:, prompt_length:]
    logps = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return mx.take_along_axis(logps, completions[..., None], axis=-1)[..., 0]


def _draw_logits(rng):
    rows, prompt, length, vocabulary = map(int, rng.integers((1, 2, 1, 3), (4, 4, 4, 6)))
    ids = mx.array(rng.integers(0, vocabulary, (rows, prompt + length)))
    return 2 * _normal(rng, rows, prompt + length, vocabulary), ids, prompt, float(rng.choice([0.7, 1.5]))


LOGPS = Exercise(
    "16.2",
    "The policy's log-probabilities of its own tokens",
    "Write `token_logps(logits, ids, prompt_length, temperature)`. `ids` [B, P + T] are rows of a prompt of P = "
    "`prompt_length` tokens and a completion of T. `logits` [B, P + T, V] is what the model returned for them: "
    "`logits[:, t]` predicts the token that comes *after* token t. Return [B, T]: the logarithm of the probability "
    "of each completion token, where the probabilities are softmax(logits / temperature). Logits may be as large as "
    "1000. Use MLX's functions: a gradient has to flow through yours, so `check` also computes the gradient of the sum "
    "of the log-probabilities with respect to `logits`. In its messages, part 1 is the log-probabilities and part 2 is "
    "that gradient.",
    minutes=10,
    difficulty=2,
    solution=token_logps,
    hints=(
        "Which position predicts the completion's first token? The prompt's last position, P - 1. And which "
        "position predicts the last token? The one before it. The last position predicts a token that was never "
        "drawn.",
        "`logits[:, prompt_length - 1 : -1]` has T positions, one for each of `ids[:, prompt_length:]`.",
        "`logits - mx.logsumexp(logits, axis=-1, keepdims=True)` is the logarithm of softmax, and "
        "`mx.take_along_axis(..., completions[..., None], axis=-1)[..., 0]` picks the value of each token.",
    ),
    cases=(
        (mx.array([[[math.log(3), 0.0], [0.0, 0.0], [0.0, math.log(9)]]]), mx.array([[0, 0, 1]]), 1, 1.0),
        (
            mx.array([[[0.0, 1000.0, 5.0], [1000.0, 1.0, 2.0], [3.0, 1.0, 2.0], [1.0, 0.5, 0.0]]]),
            mx.array([[2, 0, 0, 1]]),
            1,
            1.0,
        ),
        (
            mx.array([[[1.0, 2.0], [0.5, 0.0], [-1.0, 1.0]], [[0.0, 0.0], [2.0, -1.0], [1.0, 3.0]]]),
            mx.array([[1, 0, 1], [0, 1, 0]]),
            2,
            0.5,
        ),
        (mx.array([[[-1000.0, 1000.0, 0.0], [0.0, 1.0, 2.0]]]), mx.array([[0, 0]]), 1, 0.5),
        *drawn(3, _draw_logits),
    ),
    run=_with_gradient(token_logps),
    mistakes=slips(
        token_logps,
        r"""
@ return mx.take_along_axis(logps, completions[..., None], axis=-1)[..., 0]
cut from its graph (3)
+ return mx.stop_gradient(mx.take_along_axis(logps, completions[..., None], axis=-1)[..., 0])
! The log-probabilities are right, but no gradient flows through them, so nothing could be trained with them. NumPy,
! torch, `.item()`, `.tolist()` and `mx.stop_gradient` cut it off: apply MLX's functions to `logits` itself.
cross-entropy (3)
+ return -mx.take_along_axis(logps, completions[..., None], axis=-1)[..., 0]
! Those are *minus* the log-probabilities: the cross-entropy, a loss. The logarithm of a probability is never above 0.
clipped (3)
+ return mx.clip(mx.take_along_axis(logps, completions[..., None], axis=-1)[..., 0], -20, 0)
! You cut off very small log-probabilities. That changes the numbers, and their gradients become 0.
a sum (2)
+ return mx.take_along_axis(logps, completions[..., None], axis=-1)[..., 0].sum(axis=1)
! That is one number per row, for the whole completion. Return one per token: [B, T].

@ logits = logits[:, prompt_length - 1 : -1] / temperature
one too late
+ logits = logits[:, prompt_length:] / temperature
! You scored each token with the logits one position too late, where the model has already read the token. The logits at
! position t predict token t + 1.
one too early
+ logits = logits[:, max(prompt_length - 2, 0) : -2] / temperature
or
+ logits = mx.roll(logits, 1, axis=1)[:, prompt_length - 1 : -1] / temperature
! Your positions are one too early: the prompt's *last* position, P - 1, predicts the completion's first token.
no temperature (2)
+ logits = logits[:, prompt_length - 1 : -1]
! The temperature is missing. The tokens were drawn from softmax(logits / temperature), and that is the policy we train.
times temperature (2)
+ logits = logits[:, prompt_length - 1 : -1] * temperature
! You multiplied by the temperature. Divide by it: a high temperature makes the probabilities more equal.

the prompt too
- logits = logits[:, prompt_length - 1 : -1] / temperature
- completions = ids[:, prompt_length:]
+ logits = logits[:, :-1] / temperature
+ completions = ids[:, 1:]
! Here the prompt's tokens are scored too. The policy did not choose them: return only the T tokens of the completion.
temperature too late (2)
- logits = logits[:, prompt_length - 1 : -1] / temperature
+ logits = logits[:, prompt_length - 1 : -1]
- return mx.take_along_axis(logps, completions[..., None], axis=-1)[..., 0]
+ return mx.take_along_axis(logps, completions[..., None], axis=-1)[..., 0] / temperature
! You divided the log-probabilities by the temperature. Divide the *logits*, before the softmax.

@ logps = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
logits alone (3)
+ logps = logits
! Those are logits. The logarithm of softmax is the logit minus the `logsumexp` of all logits at this position.
probabilities (3)
+ logps = mx.softmax(logits, axis=-1)
! Those are probabilities. Return their logarithms.
log of softmax (3)
+ logps = mx.log(mx.softmax(logits, axis=-1))
! softmax rounds a very small probability to 0, and the logarithm of 0 is minus infinity. Use `logits -
! mx.logsumexp(logits, axis=-1, keepdims=True)`.
overflow (3)
+ logps = logits - mx.log(mx.exp(logits).sum(axis=-1, keepdims=True))
! `exp(1000)` is infinite. `mx.logsumexp` subtracts the largest logit first.
one largest for all places (3)
+ logps = logits - logits.max() - mx.log(mx.exp(logits - logits.max()).sum(axis=-1, keepdims=True))
! You subtracted the largest logit of *all* positions. Where the logits are far below it, each exp is 0, and log 0 is
! minus infinity. `mx.logsumexp` with `axis=-1` subtracts each position's own largest logit.
""",
    ),
    also_right=r"""
# a loop
def logps_by_loop(logits, ids, prompt_length, temperature):
    rows = []
    for row, tokens in zip(logits / temperature, ids.tolist(), strict=True):
        logps = [row[t - 1] - mx.logsumexp(row[t - 1]) for t in range(prompt_length, len(tokens))]
        rows.append(mx.stack([logp[token] for logp, token in zip(logps, tokens[prompt_length:], strict=True)]))
    return mx.stack(rows)
# cross-entropy
import mlx.nn as nn
lambda logits, ids, p, t: -nn.losses.cross_entropy(logits[:, p - 1 : -1] / t, ids[:, p:])
# one-hot
def logps_one_hot(logits, ids, prompt_length, temperature):
    scaled = logits[:, :-1] / temperature
    scaled = scaled - mx.stop_gradient(scaled.max(axis=-1, keepdims=True))
    logps = scaled - mx.log(mx.exp(scaled).sum(axis=-1, keepdims=True))
    chosen = mx.arange(logits.shape[-1]) == ids[:, 1:, None]
    return mx.where(chosen, logps, 0.0).sum(axis=-1)[:, prompt_length - 1 :]
""",
    also_wrong=r"""
def by_numpy(logits, ids, prompt_length, temperature):
    logps = np.array(logits, np.float64)[:, prompt_length - 1 : -1] / temperature
    logps = logps - np.logaddexp.reduce(logps, axis=-1, keepdims=True)
    return np.take_along_axis(logps, np.array(ids)[:, prompt_length:, None], axis=-1)[..., 0].astype(np.float32)
# NumPy
by_numpy
! no gradient flows
# lists
lambda *arguments: by_numpy(*arguments).tolist()
! no gradient flows
# minus NumPy
lambda *arguments: -by_numpy(*arguments)
! cross-entropy
# torch
import torch
def logps_by_torch(logits, ids, prompt_length, temperature):
    logits, ids = torch.tensor(np.array(logits)), torch.tensor(np.array(ids)).long()
    logps = torch.log_softmax(logits[:, :-1] / temperature, -1).gather(-1, ids[:, 1:, None])[..., 0]
    return logps[:, prompt_length - 1 :].numpy()

! no gradient flows
# outside of memory
- completions = ids[:, prompt_length:]
+ completions = ids[:, prompt_length:] + 1
# a sum that is a constant
- logps = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
+ logps = logits - mx.stop_gradient(mx.logsumexp(logits, axis=-1, keepdims=True))
# clipped logits
- logits = logits[:, prompt_length - 1 : -1] / temperature
+ logits = mx.clip(logits, -100, 1000)[:, prompt_length - 1 : -1] / temperature
# clipped at -2000
- return mx.take_along_axis(logps, completions[..., None], axis=-1)[..., 0]
+ return mx.clip(mx.take_along_axis(logps, completions[..., None], axis=-1)[..., 0], -2000, 0)
""",
)


# -- the ratio --------------------------------------------------------------------------------------------------------


def token_ratios(logps, old_logps, mask):
    """pi / pi_old of every completion token [B, T], and 1 where the mask is False."""
    log_ratio = mx.where(mask, logps - old_logps, 0.0)
    return mx.exp(log_ratio)


def _draw_ratios(rng):
    rows, length = map(int, rng.integers((1, 2), (4, 5)))
    mask = _ragged(rng, rows, length)
    logps = mx.where(mask, -mx.abs(_normal(rng, rows, length)), 900.0)
    return logps, -mx.abs(_normal(rng, rows, length)), mask


RATIOS = Exercise(
    "16.3",
    "A ratio that survives padding",
    "Write `token_ratios(logps, old_logps, mask)`, all [B, T]: `exp(logps - old_logps)` where `mask` is True, and 1 "
    "where it is False. Masked positions are padding and may hold anything: 900, infinity, nan. Use MLX's "
    "functions: `check` also computes the gradient of the sum of the ratios with respect to `logps`, which has to "
    "be exactly 0 at masked positions. In its messages, part 1 is the ratios and part 2 is that gradient.",
    minutes=8,
    difficulty=2,
    solution=token_ratios,
    hints=(
        "It does not help to multiply by a mask of 0 and 1: 0 * inf and 0 * nan are nan. `mx.where(mask, a, b)` "
        "chooses.",
        "If you choose too late, after exp, the ratios are right but their gradient is nan: on its way back it "
        "meets 0 * inf. What has to be 0 at masked positions so that exp never sees their values?",
        "`log_ratio = mx.where(mask, logps - old_logps, 0.0)`, and only then `mx.exp`.",
    ),
    cases=(
        (mx.array([[-1.0, -2.0]]), mx.array([[-1.5, -2.0]]), mx.array([[True, True]])),
        (mx.array([[-1.0, 900.0]]), mx.array([[-0.5, 0.0]]), mx.array([[True, False]])),
        (mx.array([[-200.0, -1.0]]), mx.array([[-200.5, -6.0]]), mx.array([[True, True]])),
        (
            mx.array([[-0.5, math.nan], [-1.5, -2.5]]),
            mx.array([[-1.0, 0.0], [-1.25, -math.inf]]),
            mx.array([[1, 0]] * 2) > 0,
        ),
        (mx.array([[-1.0]]), mx.array([[-61.0]]), mx.array([[True]])),
        (mx.array([[-31.0, -3.0, math.inf]]), mx.array([[-1.0, -1.0, math.inf]]), mx.array([[True, False, False]])),
        *drawn(3, _draw_ratios),
    ),
    run=_with_gradient(token_ratios),
    mistakes=slips(
        token_ratios,
        r"""
masked too late (2)
- log_ratio = mx.where(mask, logps - old_logps, 0.0)
- return mx.exp(log_ratio)
+ log_ratio = logps - old_logps
+ return mx.where(mask, mx.exp(log_ratio), 1.0)
! The ratios are right, but the gradient is not: exp overflowed at a masked position, and 0 * inf on the way back is
! nan. Mask *before* exp.

@ return mx.exp(log_ratio)
cut from its graph (3)
+ return mx.exp(mx.stop_gradient(log_ratio))
! The ratios are right, but no gradient flows through them. NumPy, `.item()` and `mx.stop_gradient` cut it off: apply
! MLX's functions to `logps` itself.
0 at masked places (2)
+ return mx.exp(log_ratio) * mask
! Your ratios are 0 at masked positions. They have to be 1 there: nothing has changed.
the logarithm (3)
+ return log_ratio
! That is the logarithm of the ratio: exp is missing.
one ratio per row (3)
+ return mx.exp(log_ratio.sum(axis=1, keepdims=True)) + 0 * log_ratio
! You gave every token the ratio of its whole row. Here each token has its own ratio.
quotient of probabilities (3)
+ return mx.exp(mx.where(mask, logps, 0.0)) / mx.exp(mx.where(mask, old_logps, 0.0))
! You divided probabilities. In float32 the probability of a very unlikely token is 0, and 0 / 0 is nan: subtract the
! logarithms first, and take exp once.

@ log_ratio = mx.where(mask, logps - old_logps, 0.0)
multiplied with the mask
+ log_ratio = (logps - old_logps) * mask
! 0 times nan is nan, and so is 0 times infinity. `mx.where` chooses instead of multiplying.
upside down (3)
+ log_ratio = mx.where(mask, old_logps - logps, 0.0)
! That is old / new, which is upside down. A token that has become likelier has a ratio above 1.
no mask
+ log_ratio = logps - old_logps
! You do not use the mask: padding gets ratios other than 1.
quotient of logarithms (3)
+ log_ratio = mx.where(mask, mx.log(logps / old_logps), 0.0)
! You divided log-probabilities. The ratio divides probabilities: it is the exponential of the *difference* of their
! logarithms.
kept from growing (3)
+ log_ratio = mx.where(mask, mx.clip(logps - old_logps, -0.5, 0.5), 0.0)
! You cut off large ratios. Clipping comes later, and only on one side.
bounded far away (3)
+ log_ratio = mx.where(mask, mx.clip(logps - old_logps, -20, 20), 0.0)
! You bounded the logarithm of the ratio. A token beyond the bound then has no gradient, even if it should be pushed
! back.
""",
    ),
    also_right=r"""
# masked twice
lambda logps, old_logps, mask: mx.exp(mx.where(mask, logps, 0) - mx.where(mask, old_logps, 0))
""",
    also_wrong=r"""
# a quotient, masked too late
lambda new, old, mask: mx.where(mask, mx.exp(new) / mx.exp(old), 1.0)
# a quotient, masked twice
lambda new, old, mask: mx.where(mask, mx.exp(mx.where(mask, new, 0)) / mx.exp(mx.where(mask, old, 0)), 1)
! take exp once
# within e^3
- log_ratio = mx.where(mask, logps - old_logps, 0.0)
+ log_ratio = mx.clip(mx.where(mask, logps - old_logps, 0.0), -3, 3)
# new values that are constants
- log_ratio = mx.where(mask, logps - old_logps, 0.0)
+ log_ratio = mx.where(mask, mx.stop_gradient(logps) - old_logps, 0.0)
! no gradient flows
# within e^10
- log_ratio = mx.where(mask, logps - old_logps, 0.0)
+ log_ratio = mx.clip(mx.where(mask, logps - old_logps, 0.0), -10, 10)
# within e^-6 and e^80
- log_ratio = mx.where(mask, logps - old_logps, 0.0)
+ log_ratio = mx.clip(mx.where(mask, logps - old_logps, 0.0), -6, 80)
# a mask from the values
- log_ratio = mx.where(mask, logps - old_logps, 0.0)
+ real = mx.isfinite(logps) & mx.isfinite(old_logps) & (logps < 500)
+ log_ratio = mx.where(real, logps - old_logps, 0.0)
""",
)


# -- clip -------------------------------------------------------------------------------------------------------------


def clipped_objective(ratio, advantages, epsilon, epsilon_high):
    """min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A): [B, T] and [B] -> [B, T]."""
    advantages = advantages[:, None]
    clipped = mx.clip(ratio, 1 - epsilon, 1 + epsilon_high)
    return mx.minimum(ratio * advantages, clipped * advantages)


def _draw_clip(rng):
    rows, length = map(int, rng.integers((1, 2), (4, 5)))
    return mx.exp(0.5 * _normal(rng, rows, length)), _normal(rng, rows), 0.15, 0.3


def _square(rng):
    return mx.exp(0.5 * _normal(rng, 3, 3)), _normal(rng, 3), 0.2, 0.28


CLIPPED = Exercise(
    "16.4",
    "Clip, for a whole batch",
    "Write `clipped_objective(ratio, advantages, epsilon, epsilon_high)` for ratios [B, T] and advantages [B], one "
    "for each row. Return `min(r A, clip(r) A)` for every token, [B, T], where clip keeps r between 1 - epsilon and "
    "1 + epsilon_high.",
    minutes=6,
    difficulty=1,
    solution=clipped_objective,
    hints=(
        "Every token of row b has the advantage of row b. `advantages[:, None]` is [B, 1], and broadcasting does the "
        "rest.",
        "`mx.clip(x, low, high)` clips, and `mx.minimum(a, b)` takes the smaller of each pair.",
        "`mx.minimum(ratio * advantages, mx.clip(ratio, 1 - epsilon, 1 + epsilon_high) * advantages)`",
    ),
    cases=(
        (mx.array([[0.5, 0.9, 1.1, 1.5]]), mx.array([1.0]), 0.2, 0.2),
        (mx.array([[0.5, 0.9, 1.1, 1.5]]), mx.array([-2.0]), 0.2, 0.2),
        (mx.array([[0.5, 1.5], [0.5, 1.5]]), mx.array([1.5, -0.5]), 0.2, 0.28),
        (mx.array([[1.25], [0.75], [3.0]]), mx.array([0.0, 1.0, -1.0]), 0.1, 0.3),
        (mx.array([[50.0, 0.01]] * 3), mx.array([1.0, -1.0, 0.0]), 0.4, 0.1),
        (mx.array([[1.5, 0.5, 1.0]] * 2), mx.array([0.001, -0.001]), 0.2, 0.2),
        (mx.array([[1.95, 0.3, 1.0]] * 2), mx.array([8.0, -8.0]), 0.5, 0.9),
        *drawn(2, _draw_clip),
        *drawn(1, _square, seed=1),
    ),
    mistakes=slips(
        clipped_objective,
        r"""
@ return mx.minimum(ratio * advantages, clipped * advantages)
only clipped
+ return clipped * advantages
! Your answer always clips. The minimum leaves a token that moved the *wrong* way unclipped, so it can come back.
the larger (2)
+ return mx.maximum(ratio * advantages, clipped * advantages)
! That is the larger of the two. PPO takes the smaller, the more pessimistic one.
not clipped
+ return ratio * advantages
! Your answer clips nothing.
a loss (3)
+ return -mx.minimum(ratio * advantages, clipped * advantages)
! That is the loss. The *objective*, which should grow, has no minus sign.
the product clipped (2)
+ return mx.minimum(ratio * advantages, mx.clip(ratio * advantages, 1 - epsilon, 1 + epsilon_high))
! You clipped the product. Clip only the ratio, before you multiply it by the advantage.
the smaller ratio (3)
+ return mx.minimum(ratio, clipped) * advantages
! You took the smaller *ratio* and then multiplied. Where A < 0, the smaller ratio gives the larger product: multiply
! both first.
bad tokens bounded (3)
+ objective = mx.minimum(ratio * advantages, clipped * advantages)
+ return mx.where(advantages < 0, mx.maximum(objective, 3 * advantages), objective)
! You bounded the objective where A < 0, as in a dual clip. Here a bad token is pushed down however much likelier it has
! become.

@ clipped = mx.clip(ratio, 1 - epsilon, 1 + epsilon_high)
one epsilon (2)
+ clipped = mx.clip(ratio, 1 - epsilon, 1 + epsilon)
! The upper edge is 1 + epsilon_high.
edges as they are (2)
+ clipped = mx.clip(ratio, epsilon, epsilon_high)
! The edges are 1 - epsilon and 1 + epsilon_high: the epsilons say how far from 1 a ratio may go.
epsilons swapped (2)
+ clipped = mx.clip(ratio, 1 - epsilon_high, 1 + epsilon)
! You swapped the epsilons: `epsilon` is for the edge below 1, and `epsilon_high` for the edge above.
only above (2)
+ clipped = mx.minimum(ratio, 1 + epsilon_high)
! The lower edge is missing: it is the one that matters where A < 0.

advantages by token
- advantages = advantages[:, None]
+ advantages = mx.array(advantages)
! Broadcasting lays advantages [B] along the *tokens*. Each belongs to a row: `advantages[:, None]`.
""",
    ),
    also_right=r"""
# clipped by cases
def clipped_by_cases(ratio, advantages, epsilon, epsilon_high):
    ratio, advantages = np.array(ratio), np.array(advantages)
    result = np.empty_like(ratio)
    for b, a in enumerate(advantages):
        for t, r in enumerate(ratio[b]):
            result[b, t] = min(r, 1 + epsilon_high) * a if a > 0 else max(r, 1 - epsilon) * a
    return result
# clipped by where
def clipped_by_where(ratio, advantages, epsilon, epsilon_high):
    a = mx.repeat(advantages.reshape(-1, 1), ratio.shape[1], axis=1)
    return mx.where(a > 0, mx.minimum(ratio, 1 + epsilon_high), mx.maximum(ratio, 1 - epsilon)) * a
""",
    also_wrong=r"""
# bounded on both sides
- return mx.minimum(ratio * advantages, clipped * advantages)
+ return mx.maximum(mx.minimum(ratio * advantages, clipped * advantages), -3 * mx.abs(advantages))
! bounded the objective
# small advantages as 0
- advantages = advantages[:, None]
+ advantages = mx.where(mx.abs(advantages) < 0.01, 0.0, advantages)[:, None]
# bounded advantages
- advantages = advantages[:, None]
+ advantages = mx.clip(advantages, -5, 5)[:, None]
# bounded ratios
- clipped = mx.clip(ratio, 1 - epsilon, 1 + epsilon_high)
+ ratio = mx.clip(ratio, 0.1, 10)
+ clipped = mx.clip(ratio, 1 - epsilon, 1 + epsilon_high)
# at least epsilon
- clipped = mx.clip(ratio, 1 - epsilon, 1 + epsilon_high)
+ clipped = mx.clip(ratio, 1 - epsilon, 1 + max(epsilon, epsilon_high))
""",
)

STILL_PUSHED = Exercise(
    "16.5",
    "Which tokens are still pushed?",
    "epsilon is 0.2, and epsilon_high 0.28. Six tokens with (ratio, advantage): (1.25, 1), (1.3, -1), (0.7, 1), "
    "(0.75, -1), (1.3, 1), (1.0, 0). Which of them still have a gradient through the clipped objective? Answer with a "
    'string of six letters, Y or N, such as "YYYYYY".',
    minutes=4,
    difficulty=1,
    solution="YYYNNN",
    hints=(
        "In the picture a token has a gradient where the line is not flat. Where is it flat if A > 0, and where if "
        "A < 0?",
        "A > 0: flat above 1.28. A < 0: flat below 0.8. A = 0: flat everywhere.",
    ),
    mistakes=slips(
        "YYYNNN",
        r"""
clipped on both sides
+ "YNNNNN"
! Not every token outside the range is clipped. A bad token (A < 0) that has become *likelier* has to be pushed back,
! and so has a good one that has become less likely: there the minimum is the unclipped term.
signs swapped
+ "YNNYYN"
! It is the other way round: a token is clipped once it has moved far enough in the desired direction.
a push of nothing
+ "YYYNNY"
! With A = 0 the objective is 0, whatever the ratio is: nothing pushes this token.
the clipped tokens
+ "NNNYYY"
! Those are the tokens *without* a gradient. Y is for tokens that have one.
nothing is clipped
+ "YYYYYN"
! 1.3 is above 1.28, and 0.75 is below 0.8. For which sign of A is the line flat there?
one epsilon
+ "NYYNNN"
! 1.25 is not far enough to be clipped: the upper edge is 1 + epsilon_high = 1.28.
""",
    ),
    also_right=r"""
# small letters
"y, y, y, n, n, n"
# a list
list("YYYNNN")
""",
    also_wrong=r"""
# all
"YYYYYY"
""",
    explain=(
        "A token is clipped once it has moved far enough in the desired direction. One that moved the wrong way is "
        "always pushed back."
    ),
)


# -- KL ---------------------------------------------------------------------------------------------------------------


def k3(logps, ref_logps):
    """exp(d) - d - 1 for each token, where d = log(reference / policy)."""
    d = ref_logps - logps
    return mx.exp(d) - d - 1


KL = Exercise(
    "16.6",
    "How far from the reference",
    "Write `k3(logps, ref_logps)`, both [B, T]: for each token `exp(d) - d - 1`, where d is the logarithm of the "
    "reference's probability divided by the policy's.",
    minutes=3,
    difficulty=1,
    solution=k3,
    hints=(
        "The logarithm of a quotient is the difference of the logarithms. What minus what is it here?",
        "`d = ref_logps - logps`, and `mx.exp(d) - d - 1`.",
    ),
    cases=(
        (mx.array([[-1.0, -2.0]]), mx.array([[-1.0, -2.5]])),
        (mx.array([[-0.25], [-3.5]]), mx.array([[-1.25], [-0.5]])),
        (mx.array([[-31.0]]), mx.array([[-1.0]])),
        (mx.array([[-120.0]]), mx.array([[-119.5]])),
        *drawn(3, lambda rng: (_normal(rng, 2, 3), _normal(rng, 2, 3))),
    ),
    mistakes=slips(
        k3,
        r"""
d upside down
- d = ref_logps - logps
+ d = logps - ref_logps
! Your d has the wrong sign: it is reference over policy, so `ref_logps - logps`. (With the other sign the mean over the
! policy's samples is not KL.)

@ return mx.exp(d) - d - 1
without 1 (2)
+ return mx.exp(d) - d
! Where both agree, your estimate is 1. The `- 1` makes it 0.
k1
+ return -d
! That is -d, the estimator called k1. Its mean is right too, but single values are often negative.
k2
+ return d * d / 2
! That is d^2 / 2, the estimator called k2. It is close to k3 for small d.
a quotient of probabilities (2)
+ return mx.exp(ref_logps) / mx.exp(logps) - d - 1
! In float32 `exp(-120)` is 0, and 0 / 0 is nan. Take the exp of the difference, `mx.exp(ref_logps - logps)`.
exp alone (2)
+ return mx.exp(d) - 1
! `- d` is missing. Without it the value can be negative, and its mean is 0, whatever the policy is.
a mean (2)
+ return (mx.exp(d) - d - 1).mean()
! Return one number for each token. A later step decides which tokens count, and how much.
""",
    ),
    also_right=r"""
# expm1
lambda logps, ref: mx.expm1(ref - logps) + logps - ref
# NumPy
lambda logps, ref: np.exp(np.array(ref) - np.array(logps)) - np.array(ref) + np.array(logps) - 1
""",
    also_wrong=r"""
# ratio times logarithm
lambda logps, ref: mx.exp(logps - ref) * (logps - ref)
# within e^20
- d = ref_logps - logps
+ d = mx.clip(ref_logps - logps, -20, 20)
""",
    explain="exp(d) is never below d + 1, its tangent at 0, so k3 is never negative.",
)


# -- aggregation ------------------------------------------------------------------------------------------------------


def aggregate(per_token_loss, mask, loss_type, max_length, num_items):
    """[B, T] -> one number, weighted by the loss type; num_items: the tokens of the whole batch."""
    per_token_loss = mx.where(mask, per_token_loss, 0.0)
    lengths = mask.sum(axis=1)
    if loss_type == "grpo":
        return (per_token_loss.sum(axis=1) / mx.maximum(lengths, 1)).mean()
    if loss_type == "bnpo":
        return per_token_loss.sum() / mx.maximum(lengths.sum(), 1)
    if loss_type == "dr_grpo":
        return per_token_loss.sum() / (mask.shape[0] * max_length)
    return per_token_loss.sum() / num_items


FOUR_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")


def _draw_losses(rng):
    rows, length = map(int, rng.integers((2, 2), (5, 6)))
    return _normal(rng, rows, length), _ragged(rng, rows, length), 7, 40


def _of_each_type(function, *arguments):
    """The results of the four types, as one array."""
    per_token_loss, mask, max_length, num_items = arguments
    results = [function(per_token_loss, mask, each, max_length, num_items) for each in FOUR_TYPES]
    # A type for which the answer returns None so far is shown as nan.
    return mx.stack([mx.array(math.nan if each is None else each).reshape(()).astype(mx.float32) for each in results])


AGGREGATE = Exercise(
    "16.7",
    "Four ways to one number",
    "Write `aggregate(per_token_loss, mask, loss_type, max_length, num_items)` for losses and a mask [B, T]. Return "
    'one number: for `loss_type` "grpo" the mean over rows of each row\'s mean over its own tokens; "bnpo": the '
    'sum over all tokens, divided by the number of tokens; "dr_grpo": the same sum, divided by B * max_length; '
    '"dapo": the same sum, divided by num_items. Only tokens whose mask is True count. A row without any tokens '
    'counts as a row, with the mean 0. `check` calls your function with all four types: "it gave array([...])" '
    "lists their results in the order above.",
    minutes=12,
    difficulty=2,
    solution=aggregate,
    hints=(
        "First put 0 at masked positions: `mx.where(mask, per_token_loss, 0.0)`. `mask.sum(axis=1)` holds the "
        "lengths of the rows.",
        '"grpo": a sum and a length for each row, their quotients, and then `.mean()`. A row without tokens would '
        "divide by 0, so use `mx.maximum(lengths, 1)`.",
        "The other three are the sum over everything, divided by `lengths.sum()`, by `mask.shape[0] * max_length`, and "
        "by `num_items`.",
    ),
    cases=(
        (mx.array([[1.0, 2.0, 3.0], [6.0, 0.0, 0.0]]), mx.array([[True] * 3, [True, False, False]]), 5, 10),
        (mx.array([[1.0, 2.0, 9.0], [6.0, 9.0, 9.0]]), mx.array([[True, True, False], [True, False, False]]), 4, 3),
        (mx.array([[0.5, -1.5], [7.0, 7.0]]), mx.array([[True, True], [False, False]]), 2, 2),
        (mx.array([[0.25, 0.5, 3.0], [7.0, 1.0, 9.0]]), mx.array([[True, False, True], [False, True, False]]), 3, 12),
        (  # a token and a row that count, with the loss 0
            mx.array([[0.0, 2.0, 9.0], [0.0, 0.0, 0.0], [6.0, 9.0, 9.0]]),
            mx.array([[True, True, False], [True, True, True], [True, False, False]]),
            4,
            11,
        ),
        (mx.array([[1001.0, 9.0], [-1000.0, -1000.0]]), mx.array([[True, False], [True, True]]), 2, 4),
        *drawn(3, _draw_losses),
    ),
    run=_of_each_type,
    mistakes=slips(
        aggregate,
        r"""
@ per_token_loss = mx.where(mask, per_token_loss, 0.0)
mask forgotten
+ per_token_loss = per_token_loss * 1.0
! Your sums include padding. First put 0 where the mask is False.
the first places
+ per_token_loss = mx.where(mx.arange(mask.shape[1]) < mask.sum(axis=1, keepdims=True), per_token_loss, 0.0)
! You took as many positions from the start of each row as its mask has True values. A mask may have holes, for example
! where a tool wrote text into the answer: take the positions that are True.

@ return (per_token_loss.sum(axis=1) / mx.maximum(lengths, 1)).mean()
means over the padded row (2)
+ return (per_token_loss.mean(axis=1)).mean()
! Your "grpo" divides by the padded length. Divide each row by its own number of tokens.
row means added (2)
+ return (per_token_loss.sum(axis=1) / mx.maximum(lengths, 1)).sum()
! Your "grpo" adds up the rows' means. Take their mean.
grpo is bnpo (2)
+ return per_token_loss.sum() / mx.maximum(lengths.sum(), 1)
! Your "grpo" is the mean over all tokens. Take a mean for each row first, and then the mean of these means.
0 / 0 (2)
+ return (per_token_loss.sum(axis=1) / lengths).mean()
! A row without tokens gives 0 / 0 in your "grpo". Divide by at least 1.
a small number in the lengths (2)
+ return (per_token_loss.sum(axis=1) / (lengths + 1e-4)).mean()
! You added a small number to the lengths in "grpo". That avoids 0 / 0, but it also makes the mean of every other row a
! little smaller. Use `mx.maximum(lengths, 1)`.
empty rows are no rows (2)
+ return (per_token_loss.sum(axis=1) / mx.maximum(lengths, 1)).sum() / (lengths > 0).sum()
! You left a row without tokens out of the mean over rows. It counts as a row, with the mean 0.
grpo by tokens with a loss (2)
+ return (per_token_loss.sum(axis=1) / mx.maximum((per_token_loss != 0).sum(axis=1), 1)).mean()
! Your "grpo" divides each row by its tokens whose loss is not 0. Divide by all its tokens.
grpo over rows with a loss (2)
+ return (per_token_loss.sum(axis=1) / mx.maximum(lengths, 1)).sum() / per_token_loss.any(axis=1).sum()
! Your "grpo" is a mean over the rows that have a loss. Rows whose losses are all 0 count too.

@ return per_token_loss.sum() / mx.maximum(lengths.sum(), 1)
all places (3)
+ return per_token_loss.sum() / mask.size
! Your "bnpo" divides by the number of all positions, padded ones too. Count only the tokens.
bnpo by tokens with a loss (3)
+ return per_token_loss.sum() / mx.maximum((per_token_loss != 0).sum(), 1)
! Your "bnpo" divides by the number of tokens whose loss is not 0. Count the tokens of the mask.

@ return per_token_loss.sum() / (mask.shape[0] * max_length)
the longest row (3)
+ return per_token_loss.sum() / (mask.size)
! Your "dr_grpo" divides by the length of the longest row in this batch. max_length is a constant of the training run.
rows forgotten (3)
+ return per_token_loss.sum() / (max_length)
! "dr_grpo" divides by B * max_length; you left out the number of rows.
dr_grpo over rows with a loss (3)
+ return per_token_loss.sum() / (per_token_loss.any(axis=1).sum() * max_length)
! Your "dr_grpo" counts only the rows that have a loss. B is the number of all rows.

@ return per_token_loss.sum() / num_items
own tokens (3)
+ return per_token_loss.sum() / mx.maximum(lengths.sum(), 1)
! "dapo" divides by num_items, the number of tokens in the *whole* batch. These rows may be only a part of it.
dapo without tokens of loss 0 (3)
+ return per_token_loss.sum() / (num_items - (mask & (per_token_loss == 0)).sum())
! Your "dapo" takes tokens with the loss 0 out of num_items. They count: divide by num_items.

tokens with a loss
- lengths = mask.sum(axis=1)
+ lengths = (mask & (per_token_loss != 0)).sum(axis=1)
! You counted the tokens whose loss is not 0. A token counts if its mask is True, and its loss may well be 0.
""",
    ),
    also_right=r"""
# aggregate by weights
def aggregate_by_weights(per_token_loss, mask, loss_type, max_length, num_items):
    rows, total = mask.shape[0], 0.0
    lengths = mask.sum(axis=1).tolist()
    for b in range(rows):
        row = [x for x, counts in zip(per_token_loss[b].tolist(), mask[b].tolist(), strict=True) if counts]
        divisor = {
            "grpo": rows * max(lengths[b], 1),
            "bnpo": max(sum(lengths), 1),
            "dr_grpo": rows * max_length,
            "dapo": num_items,
        }
        total += sum(row) / divisor[loss_type]
    return total
""",
    also_wrong=r"""
# in place
- per_token_loss = mx.where(mask, per_token_loss, 0.0)
+ per_token_loss *= mask
! new numbers in what it was given
# always by the tokens
lambda x, mask, kind, *rest: (x * mask).sum() / mask.sum()
# always by num_items
lambda x, mask, kind, longest, items: aggregate(x, mask, "dapo", longest, items)
""",
)


# -- the whole loss ---------------------------------------------------------------------------------------------------


def grpo_loss(logps, old_logps, ref_logps, advantages, mask, settings):
    """The GRPO loss of B completions: one number, to be minimised."""
    old_logps = mx.stop_gradient(logps if old_logps is None else old_logps)
    ratio = token_ratios(logps, old_logps, mask)
    loss = -clipped_objective(ratio, advantages, settings["epsilon"], settings["epsilon_high"])
    if settings["beta"] > 0:
        policy, reference = (mx.where(mask, each, 0.0) for each in (logps, ref_logps))
        loss = loss + settings["beta"] * k3(policy, reference)
    return aggregate(loss, mask, settings["loss_type"], settings["max_length"], settings["num_items"])


def _loss_and_gradient(function, logps, old_logps, *others):
    """The loss, and its gradient with respect to logps. If old_logps is the same array, it depends on them too."""
    same_array = old_logps is logps
    loss, gradient = mx.value_and_grad(
        lambda x: mx.array(function(x, x if same_array else old_logps, *others)).reshape(())
    )(logps)
    return loss, gradient


def _settings(loss_type="dapo", beta=0.0, epsilon_high=0.28, num_items=10):
    return {
        "epsilon": 0.2,
        "epsilon_high": epsilon_high,
        "beta": beta,
        "loss_type": loss_type,
        "max_length": 6,
        "num_items": num_items,
    }


def _draw_batch(rng):
    rows, length = map(int, rng.integers((2, 2), (5, 5)))
    logps = -mx.abs(_normal(rng, rows, length))
    old, ref = (mx.minimum(logps + spread * _normal(rng, rows, length), 0) for spread in (0.4, 0.6))
    loss_type, beta = str(rng.choice(FOUR_TYPES)), float(rng.choice([0.04, 0.5]))
    return logps, old, ref, _normal(rng, rows), _ragged(rng, rows, length), _settings(loss_type, beta)


_TWO = (mx.array([[-0.5, -1.0], [-2.0, 0.0]]), mx.array([1.0, -1.0]), mx.array([[True, True], [True, False]]))
# A row of advantage 0, a large advantage, and a ratio far from 1 on the side that is not clipped.
_THREE = (
    mx.array([[-0.5, -1.0, -3.0], [-2.0, -0.25, -1.5], [-30.0, -0.75, 0.0]]),
    mx.array([[-0.25, -1.0, -2.5], [-1.5, -0.5, -1.5], [-33.0, -0.5, 0.0]]),
    mx.array([1.0, 0.0, -8.0]),
    mx.array([[True, True, True], [True, True, True], [True, True, False]]),
)

LOSS = Exercise(
    "16.8",
    "The whole loss",
    "Put the parts together: `grpo_loss(logps, old_logps, ref_logps, advantages, mask, settings)`. `logps`, "
    "`old_logps`, `ref_logps` and `mask` are [B, T], `advantages` [B]; `settings` is a dictionary with `epsilon`, "
    "`epsilon_high`, `beta`, `loss_type`, `max_length` and `num_items`. The loss of a token is minus its clipped "
    "objective, plus `beta` times its k3; `aggregate` then turns these losses into one number. If `beta` is 0, "
    "`ref_logps` is None. If `old_logps` is None, the policy itself has just sampled: the old values are those of "
    "`logps`. Old values are always **constants**. Masked positions may hold anything. You may call `token_ratios`, "
    "`clipped_objective`, `k3` and `aggregate`: the cell above defines them. `check` compares the loss (part 1) and "
    "its gradient with respect to `logps` (part 2).",
    minutes=20,
    difficulty=3,
    solution=grpo_loss,
    hints=(
        "Four lines: ratio, minus objective, plus beta * k3 if beta > 0, aggregate. `mx.stop_gradient` makes an "
        "array a constant for the gradient.",
        "`old_logps = mx.stop_gradient(logps if old_logps is None else old_logps)`. The ratios are then all 1, but "
        "their *slope* is not 0.",
        "k3 has an exp of its own: give it `mx.where(mask, logps, 0.0)` and `mx.where(mask, ref_logps, 0.0)`.",
    ),
    cases=(
        (_TWO[0], mx.array([[-0.5, -1.5], [-1.5, 0.0]]), None, *_TWO[1:], _settings("grpo")),
        (_TWO[0], None, None, *_TWO[1:], _settings("bnpo")),
        (_TWO[0], _TWO[0], None, *_TWO[1:], _settings("bnpo")),
        (
            mx.array([[-0.5, -1.25], [-2.0, -900.0]]),
            mx.array([[-0.75, -1.0], [-1.5, 900.0]]),
            mx.array([[-1.0, -1.0], [-2.5, 900.0]]),
            *_TWO[1:],
            _settings("dapo", beta=0.1),
        ),
        (
            mx.array([[-0.5, -1.25], [-2.0, 900.0]]),
            mx.array([[-0.75, -1.0], [-1.5, -900.0]]),
            None,
            *_TWO[1:],
            _settings("dr_grpo"),
        ),
        (
            mx.array([[-0.5, -1.25], [-2.0, math.nan]]),
            mx.array([[-0.75, -1.0], [-1.5, -math.inf]]),
            mx.array([[-1.0, -1.0], [-2.5, math.nan]]),
            *_TWO[1:],
            _settings("grpo", beta=0.1),
        ),
        (mx.array([[-0.5, -1.25], [-2.0, -math.inf]]), None, None, *_TWO[1:], _settings("dapo")),
        *((*_THREE[:2], None, *_THREE[2:], _settings(each)) for each in FOUR_TYPES),
        *((*_THREE[:2], _THREE[0] - 0.5, *_THREE[2:], _settings(each, beta=2.0)) for each in FOUR_TYPES),
        *drawn(4, _draw_batch),
    ),
    run=_loss_and_gradient,
    mistakes=slips(
        grpo_loss,
        r"""
old_logps ignored (2)
- old_logps = mx.stop_gradient(logps if old_logps is None else old_logps)
+ old_logps = mx.stop_gradient(logps)
! You ignored `old_logps`, so every ratio is 1 and nothing is ever clipped. The old values are those of `logps` only if
! `old_logps` is None.
given old values that move (2)
- old_logps = mx.stop_gradient(logps if old_logps is None else old_logps)
+ old_logps = mx.stop_gradient(logps) if old_logps is None else old_logps
! The loss is right, but a gradient flows through the `old_logps` that your function got: here they are the same array
! as `logps`, so the gradient of logps - old_logps is 0. Old values are always constants: `mx.stop_gradient`.
old values that move (2)
- old_logps = mx.stop_gradient(logps if old_logps is None else old_logps)
+ old_logps = logps if old_logps is None else old_logps
! The loss is right, but its gradient is 0: logps - logps is 0, whatever logps is. The old values have to be constants,
! `mx.stop_gradient`, and the ratio has to depend on `logps`.

@ loss = -clipped_objective(ratio, advantages, settings["epsilon"], settings["epsilon_high"])
sign
+ loss = clipped_objective(ratio, advantages, settings["epsilon"], settings["epsilon_high"])
! Training makes a loss small, but the objective should become *large*: put a minus in front of the objective.
one epsilon
+ loss = -clipped_objective(ratio, advantages, settings["epsilon"], settings["epsilon"])
! The upper edge has an epsilon of its own, `epsilon_high`.
not clipped
+ loss = -ratio * advantages[:, None]
! You did not clip anything: use `clipped_objective`.

@ return aggregate(loss, mask, settings["loss_type"], settings["max_length"], settings["num_items"])
sign of everything
+ return aggregate(-loss, mask, settings["loss_type"], settings["max_length"], settings["num_items"])
! The loss has the wrong sign: minus the objective, plus beta times k3.
always by all tokens
+ return aggregate(loss, mask, "bnpo", settings["max_length"], settings["num_items"])
or
+ return aggregate(loss, mask, "dapo", settings["max_length"], settings["num_items"])
or
+ return aggregate(loss, mask, "grpo", settings["max_length"], settings["num_items"])
! You aggregated every loss type in the same way. Pass `settings['loss_type']` to `aggregate`.
tokens without a loss masked
+ return aggregate(loss, mask & (loss != 0), settings["loss_type"], settings["max_length"], settings["num_items"])
! You masked the tokens whose loss is 0. They count in what the loss divides by.
num_items without advantage 0
+ num_items = settings["num_items"] - (mask & (advantages == 0)[:, None]).sum()
+ return aggregate(loss, mask, settings["loss_type"], settings["max_length"], num_items)
! You took the tokens of rows with advantage 0 out of num_items. "dapo" divides by the tokens of the whole batch, those
! rows included.
own tokens
+ return aggregate(loss, mask, settings["loss_type"], settings["max_length"], mask.sum())
! You passed the number of tokens in these rows to `aggregate`. They may be a part of the batch: pass
! `settings['num_items']`.

@ loss = loss + settings["beta"] * k3(policy, reference)
KL rewarded
+ loss = loss - settings["beta"] * k3(policy, reference)
! You subtracted k3, so the loss *rewards* a policy that is far from the reference. It is a penalty: add it.
beta forgotten
+ loss = loss + k3(policy, reference)
! You added k3 without its factor. Multiply it by `beta`.
KL upside down
+ loss = loss + settings["beta"] * k3(reference, policy)
! You swapped policy and reference in k3: d is the logarithm of reference over policy.

no KL
- if settings["beta"] > 0:
+ if False:
! The KL penalty is missing.

@ policy, reference = (mx.where(mask, each, 0.0) for each in (logps, ref_logps))
KL not masked (3)
+ policy, reference = (each + 0.0 for each in (logps, ref_logps))
! The exp of k3 overflowed at a masked position, and 0 * inf on the way back is nan. Mask its inputs.
no gradient of the KL
+ policy, reference = (mx.where(mask, each, 0.0) for each in (mx.stop_gradient(logps), ref_logps))
! The loss is right, but no gradient comes through the KL penalty. Is it cut off in your `k3`? Written with NumPy it
! passes 16.6, but does not work here.
reference as old policy
+ policy, reference = (mx.where(mask, each, 0.0) for each in (logps, old_logps))
! You computed the KL from the policy that sampled. The penalty keeps the policy near the *reference*.

no gradient at all
  old_logps = mx.stop_gradient(logps if old_logps is None else old_logps)
+ logps = mx.stop_gradient(logps)
! The loss is right, but no gradient comes through it. NumPy, `.item()` and `mx.stop_gradient` cut it off. If you do not
! use them here, look into `clipped_objective` and `aggregate`: written with NumPy they pass 16.4 and 16.7, but do not
! work here.

@ ratio = token_ratios(logps, old_logps, mask)
no gradient of the objective
+ ratio = token_ratios(mx.stop_gradient(logps), old_logps, mask)
! The loss is right, but no gradient comes through its clipped objective. `.item()` or `mx.stop_gradient` cuts it off,
! here or in your `clipped_objective`.
rows of advantage 0 masked
+ mask = mask & (advantages != 0)[:, None]
+ ratio = token_ratios(logps, old_logps, mask)
! You masked the rows with advantage 0. Their tokens are real: they count in what the loss divides by, and with beta > 0
! they have a KL penalty.

rows of advantage 0 left out
  old_logps = mx.stop_gradient(logps if old_logps is None else old_logps)
+ kept = mx.array([row for row, push in enumerate(advantages.tolist()) if push])
+ ref_logps = None if ref_logps is None else ref_logps[kept]
+ logps, old_logps, advantages, mask = (each[kept] for each in (logps, old_logps, advantages, mask))
! You left out the rows with advantage 0. Their objective is 0, but the rows and their tokens count in what the loss
! divides by, and with beta > 0 they have a KL penalty.
""",
    ),
    also_right=r"""
from mlx_grpo_kit.grpo import GRPOLossConfig, compute_grpo_loss, token_weights
# the kit's
def loss_in_one_piece(logps, old_logps, ref_logps, advantages, mask, settings):
    names = {"max_length": "max_completion_length", "num_items": "num_items_in_batch"}
    given = {names.get(name, name): value for name, value in settings.items()}
    return compute_grpo_loss(logps, old_logps, advantages, mask, ref_logps=ref_logps, **given)
# by hand
def loss_by_hand(logps, old_logps, ref_logps, advantages, mask, settings):
    zero = mx.zeros_like(logps)
    new = mx.where(mask, logps, zero)
    old = mx.stop_gradient(new if old_logps is None else mx.where(mask, old_logps, zero))
    r, a = mx.exp(new - old), advantages[:, None]
    low, high = 1 - settings["epsilon"], 1 + settings["epsilon_high"]
    token = -mx.where(a > 0, mx.minimum(r, high), mx.maximum(r, low)) * a
    if settings["beta"]:
        d = mx.where(mask, ref_logps, zero) - new
        token = token + settings["beta"] * (mx.exp(d) - 1 - d)
    shares = token_weights(
        GRPOLossConfig(settings["loss_type"], max_completion_length=settings["max_length"]),
        mask,
        settings["num_items"],
    )
    return (token * shares).sum()
# masked values for k3, and no old values
def loss_of_parts(logps, old_logps, ref_logps, advantages, mask, settings):
    ratio = token_ratios(logps, mx.stop_gradient(logps if old_logps is None else old_logps), mask)
    loss = -clipped_objective(ratio, advantages, settings["epsilon"], settings["epsilon_high"])
    if settings["beta"]:
        loss = loss + settings["beta"] * k3(mx.where(mask, logps, 0), mx.where(mask, ref_logps, 0))
    return aggregate(loss, mask, settings["loss_type"], settings["max_length"], settings["num_items"])
""",
    also_wrong=r"""
# only rows with an advantage
def only_rows_with_advantage(logps, old_logps, ref_logps, advantages, mask, settings):
    kept = mx.array(np.flatnonzero(np.array(advantages)))
    logps, old_logps, ref_logps, advantages, own = (
        None if each is None else each[kept] for each in (logps, old_logps, ref_logps, advantages, mask)
    )
    settings = settings | {"num_items": settings["num_items"] - (mask.sum() - own.sum())}
    return grpo_loss(logps, old_logps, ref_logps, advantages, own, settings)
# a small beta
- loss = loss + settings["beta"] * k3(policy, reference)
+ loss = loss + min(settings["beta"], 1.0) * k3(policy, reference)
# an objective by NumPy
- loss = -clipped_objective(ratio, advantages, settings["epsilon"], settings["epsilon_high"])
+ edges = 1 - settings["epsilon"], 1 + settings["epsilon_high"]
+ r, a = np.array(ratio), np.array(advantages)[:, None]
+ loss = -np.minimum(r * a, r.clip(*edges) * a)
! 16.4 and 16.7
# aggregated by numbers
- return aggregate(loss, mask, settings["loss_type"], settings["max_length"], settings["num_items"])
+ return aggregate(loss, mask, settings["loss_type"], settings["max_length"], settings["num_items"]).item()
! 16.4 and 16.7
# an objective that is cut off
- loss = -clipped_objective(ratio, advantages, settings["epsilon"], settings["epsilon_high"])
+ loss = -clipped_objective(mx.stop_gradient(ratio), advantages, settings["epsilon"], settings["epsilon_high"])
! through its clipped objective
# k3 by NumPy
- loss = loss + settings["beta"] * k3(policy, reference)
+ d = np.array(reference) - np.array(policy)
+ loss = loss + settings["beta"] * mx.array(np.exp(d) - d - 1)
! through the KL penalty
""",
    explain=(
        "Up to rounding, that is the loss of the kit and of TRL. The kit's version is in `mlx_grpo_kit/grpo/loss.py`."
    ),
)


# -- micro-batches ----------------------------------------------------------------------------------------------------


def in_parts(gradient_of, rows, size):
    """The gradient of all rows, from calls with at most `size` rows each."""
    num_items = sum(len(row) for row in rows)
    return sum(gradient_of(rows[start : start + size], num_items) for start in range(0, len(rows), size))


def _gradient_of(rows, num_items):
    """gradient_of(rows, num_items): the sums of all numbers in rows and of their cubes / num_items, as an array"""
    tokens = np.concatenate([np.array(row) for row in rows])
    return np.array([tokens.sum(), (tokens**3).sum()]) / num_items


def _within_memory(function, gradient_of, rows, size):
    """The answer's gradient, where more than `size` rows at once raise MemoryError."""

    def limited(some_rows, num_items):
        if len(some_rows) > size:
            raise MemoryError(f"{len(some_rows)} rows do not fit, only {size}")
        if not some_rows:
            raise ValueError("gradient_of was called without rows")
        return gradient_of(some_rows, num_items)

    return function(limited, rows, size)


def _draw_rows(rng):
    rows = [rng.normal(size=int(rng.integers(1, 5))).tolist() for _ in range(int(rng.integers(3, 7)))]
    return _gradient_of, rows, int(rng.integers(1, 3))


PARTS = Exercise(
    "16.9",
    "In parts, with the same result",
    'The batch does not fit into memory. Write `in_parts(gradient_of, rows, size)`: the gradient of the "dapo" '
    "loss of all `rows`, from calls with at most `size` rows each. `rows` is a list of completions, each a list of "
    "tokens (here numbers; what they are does not matter to you). `gradient_of(some_rows, num_items)` returns the "
    "gradient of the sum of these rows' token losses, divided by `num_items`, as a NumPy array. Every row counts, even "
    "if `size` does not divide the number of rows.",
    minutes=8,
    difficulty=2,
    solution=in_parts,
    hints=(
        "The gradient of a sum is the sum of the gradients. So you can add up the gradients of the parts, if all "
        "are divided by the same number. Which number?",
        "`num_items = sum(len(row) for row in rows)`, the number of tokens in the *whole* batch. It is known before "
        "the first call.",
        "`for start in range(0, len(rows), size)`: add `gradient_of(rows[start : start + size], num_items)`.",
    ),
    cases=(
        (_gradient_of, [[1.0, 2.0, 3.0], [4.0]], 1),
        (_gradient_of, [[1.0], [0.5, -2.5, 4.0], [2.0, 2.0]], 2),
        (_gradient_of, [[0.25, 0.5]], 2),
        (_gradient_of, [[0.0, 2.0], [0.0], [0.0, 0.0, 0.0], [-3.0], [1.0, 0.0]], 3),
        (_gradient_of, [[1.0], [-2.0, 2.0], [3.0], [4.0], [5.0], [-6.0], [7.0], [8.0], [9.0]], 1),
        *drawn(3, _draw_rows),
    ),
    run=_within_memory,
    mistakes=slips(
        in_parts,
        r"""
@ return sum(gradient_of(rows[start : start + size], num_items) for start in range(0, len(rows), size))
mean of means
+ parts = [rows[start : start + size] for start in range(0, len(rows), size)]
+ return sum(gradient_of(part, sum(map(len, part))) for part in parts) / len(parts)
! That is the mean of the parts' own means: a token counts more in a part that has few tokens. Divide every part by the
! number of tokens in the whole batch, and add up.
sum of means
+ parts = [rows[start : start + size] for start in range(0, len(rows), size)]
+ return sum(gradient_of(part, sum(map(len, part))) for part in parts)
! You divided every part by its own number of tokens and then added up: the more parts, the larger the gradient.
each row by its own tokens
+ return sum(gradient_of([row], len(row)) for row in rows)
! You divided every row by its own number of tokens. All rows share one divisor, the number of tokens in the whole
! batch.

@ return sum(gradient_of(rows[start : start + size], num_items) for start in range(0, len(rows), size))
divided twice
+ parts = [gradient_of(rows[start : start + size], num_items) for start in range(0, len(rows), size)]
+ return sum(parts) / len(parts)
! You divided the sum by the number of parts as well. Each part is already divided by the tokens of the whole batch, and
! that is enough.
two at a time (3)
+ return sum(gradient_of(rows[start : start + 2], num_items) for start in range(0, len(rows), 2))
! You passed two rows at a time, whatever `size` is.
the last part is lost (3)
+ return sum(gradient_of(rows[start : start + size], num_items) for start in range(0, len(rows) - size + 1, size))
! You lose the last part when size does not divide the number of rows.
all at once (3)
+ return sum(gradient_of(rows, num_items) for start in range(1))
! You passed too many rows in one call. They do not fit: pass at most `size` at a time.

@ num_items = sum(len(row) for row in rows)
rows instead of tokens (2)
+ num_items = len(rows)
! You passed the number of rows as num_items. "dapo" divides by the number of tokens.
tokens other than 0 (2)
+ num_items = sum(1 for row in rows for token in row if token)
! You counted the tokens that are not 0. What a token is does not matter: each of them counts.
rows without a gradient (2)
+ num_items = sum(len(row) for row in rows if any(row))
! You left the tokens of rows that add nothing to the gradient out of num_items. They count in the denominator.
""",
    ),
    also_right=r"""
# while
def parts_by_while(gradient_of, rows, size):
    rows, total, tokens = list(rows), 0.0, 0
    for row in rows:
        tokens += len(row)
    while rows:
        part, rows = rows[:size], rows[size:]
        total += gradient_of(part, tokens)
    return total
# row by row
lambda gradient_of, rows, size: sum(gradient_of([row], sum(map(len, rows))) for row in rows)
""",
    also_wrong=r"""
# tokens' mean
lambda gradient_of, rows, size: sum(map(sum, rows)) / sum(map(len, rows))
# no sign
lambda gradient_of, rows, size: abs(in_parts(gradient_of, rows, size))
# an empty part
- return sum(gradient_of(rows[start : start + size], num_items) for start in range(0, len(rows), size))
+ return sum(gradient_of(rows[start : start + size], num_items) for start in range(0, len(rows) + 1, size))
# a number
lambda gradient_of, rows, size: float(in_parts(gradient_of, rows, size)[0])
# the sum of an array
- return sum(gradient_of(rows[start : start + size], num_items) for start in range(0, len(rows), size))
+ return np.sum([gradient_of(rows[start : start + size], num_items) for start in range(0, len(rows), size)])
# different tokens
- num_items = sum(len(row) for row in rows)
+ num_items = len({token for row in rows for token in row})
# a mean over the rows
lambda gradient_of, rows, size: sum(gradient_of([r], len(r)) for r in rows) / len(rows)
""",
    explain='This works for "dapo", because its divisor is known before the first part is computed.',
)
