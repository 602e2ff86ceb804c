"""Exercises of notebook 19: the variant lab."""

import numpy as np

from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.runtime import mx

# -- advantages -------------------------------------------------------------------------------------------------------


def gdpo_advantages(rewards, weights, num_generations):
    """The advantages [B] of GDPO, from the rewards [B, F] of F functions."""
    groups = np.array(rewards, float).reshape(-1, num_generations, len(weights))
    above = groups - groups.mean(axis=1, keepdims=True)
    each = above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)
    total = (each * np.array(weights)).sum(axis=2).reshape(-1)
    return total / (total.std(ddof=1) + 1e-4)


def _any_rewards(rng):
    functions, size = int(rng.integers(1, 4)), int(rng.choice([2, 4, 5, 8]))
    rewards = rng.integers(-8, 9, (40, functions)) / 8 * rng.choice([1.0, 16.0], functions)
    return rewards, (rng.integers(1, 9, functions) / 4).tolist(), size


GDPO_ADVANTAGES = Exercise(
    "19.1",
    "Each reward by itself",
    "Write `gdpo_advantages(rewards, weights, num_generations)`: the advantages of GDPO. `rewards` is an array [B, F] "
    "with a column for each of F reward functions; the `num_generations` completions of one prompt come one after the "
    "other. For each column compute GRPO's advantages: the distance from the group's mean, divided by the group's "
    "standard deviation (dividing by n - 1) plus 1e-4. Add up the columns, each times its weight (`weights` is a list "
    "of F numbers), and divide the sums by their standard deviation over the whole batch (again dividing by n - 1) "
    "plus 1e-4. Return the result [B].",
    minutes=10,
    difficulty=2,
    solution=gdpo_advantages,
    hints=(
        "`rewards.reshape(-1, num_generations, len(weights))` has the groups on the first axis and the completions of "
        "a group on the second. Take mean and standard deviation over that second axis, with `keepdims=True`.",
        "`each = (groups - mean) / (std + 1e-4)`; then `(each * weights).sum(axis=2).reshape(-1)`, and the last "
        "division, by `total.std(ddof=1) + 1e-4`.",
    ),
    cases=(
        (np.array([[1.0, 0.0], [0.0, 10.0], [1.0, 20.0], [0.0, 30.0]]), [1.0, 1.0], 4),
        (np.array([[1.0], [0.0], [0.0], [4.0]]), [2.0], 2),
        (np.array([[1.0, 0.5], [0.0, 0.5], [3.0, 0.5], [1.0, 2.5]]), [0.25, 1.0], 2),
        (np.array([[2.0, 1.0]] * 3 + [[0.0, 1.0]] * 3), [1.0, 1.0], 3),
        *drawn(4, _any_rewards),
    ),
    mistakes=slips(
        gdpo_advantages,
        r"""
the sum first
- groups = np.array(rewards, float).reshape(-1, num_generations, len(weights))
+ groups = (np.array(rewards, float) @ np.array(weights)).reshape(-1, num_generations)
- total = (each * np.array(weights)).sum(axis=2).reshape(-1)
- return total / (total.std(ddof=1) + 1e-4)
+ return each.reshape(-1)
! That adds up the rewards first and divides the sum, as GRPO does: the reward with the largest numbers drowns the
! others. Divide each column by its own spread before you add.

@ return total / (total.std(ddof=1) + 1e-4)
not divided again (2)
+ return total
! Divide the sums once more, by their own standard deviation over the batch, so that advantages do not become larger
! with more reward functions.
batch divided by n (2)
+ return total / (total.std() + 1e-4)
! The standard deviation over the *batch* divides by n here. With `ddof=1` it divides by n - 1, as it already does in
! each group.

divided by n
- each = above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)
+ each = above / (groups.std(axis=1, keepdims=True) + 1e-4)
- return total / (total.std(ddof=1) + 1e-4)
+ return total / (total.std() + 1e-4)
! NumPy's `std` divides by n. With `ddof=1` it divides by n - 1.
groups divided by n
- each = above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)
+ each = above / (groups.std(axis=1, keepdims=True) + 1e-4)
! The standard deviation of each *group* divides by n here. With `ddof=1` it divides by n - 1, as it already does over
! the batch.
no weights (2)
- total = (each * np.array(weights)).sum(axis=2).reshape(-1)
+ total = (each).sum(axis=2).reshape(-1)
! Each column has a weight in the sum.
weighted first (2)
- groups = np.array(rewards, float).reshape(-1, num_generations, len(weights))
+ groups = (np.array(rewards, float) * weights).reshape(-1, num_generations, len(weights))
- total = (each * np.array(weights)).sum(axis=2).reshape(-1)
+ total = (each).sum(axis=2).reshape(-1)
! A weight that comes before the division cancels in the division: weight the advantages.
over the batch
- above = groups - groups.mean(axis=1, keepdims=True)
- each = above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)
+ above = groups - groups.mean(axis=(0, 1), keepdims=True)
+ each = above / (groups.std(axis=(0, 1), ddof=1, keepdims=True) + 1e-4)
! A completion is compared only with completions of the same prompt: each group has its own mean and its own spread.
groups spread over the batch
- groups = np.array(rewards, float).reshape(-1, num_generations, len(weights))
+ groups = np.array(rewards, float).reshape(num_generations, -1, len(weights)).swapaxes(0, 1)
- total = (each * np.array(weights)).sum(axis=2).reshape(-1)
+ total = (each * np.array(weights)).sum(axis=2).T.reshape(-1)
! The completions of one prompt come *one after the other*: `.reshape(-1, num_generations, len(weights))`.
""",
    ),
    also_right=r"""
# the statistics module
import statistics
def gdpo_loop(rewards, weights, num_generations):
    import statistics

    sums = [0.0] * len(rewards)
    for column, weight in zip(rewards.T.tolist(), weights, strict=True):
        for first in range(0, len(column), num_generations):
            group = column[first : first + num_generations]
            mean, spread = statistics.fmean(group), statistics.stdev(group)
            for place, reward in enumerate(group, first):
                sums[place] += weight * (reward - mean) / (spread + 1e-4)
    return [each / (statistics.stdev(sums) + 1e-4) for each in sums]
# as TRL does it: the batch's mean is taken off too, but it is 0 except for rounding
import torch
def gdpo_torch(rewards, weights, num_generations):
    groups = torch.tensor(rewards).view(-1, num_generations, rewards.shape[1])
    each = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    total = torch.nansum(each.flatten(0, 1) * torch.tensor(weights), dim=1)
    return (total - total.mean()) / (total.std() + 1e-4)
""",
    also_wrong=r"""
# in place
- groups = np.array(rewards, float).reshape(-1, num_generations, len(weights))
- above = groups - groups.mean(axis=1, keepdims=True)
+ groups = rewards.reshape(-1, num_generations, len(weights))
+ groups -= groups.mean(axis=1, keepdims=True)
+ above = groups
! work on a copy
# doubled
- return total / (total.std(ddof=1) + 1e-4)
+ return 2 * total / (total.std(ddof=1) + 1e-4)
""",
    explain=(
        "Now all rewards have the same spread, so a weight says how much a reward counts, whatever unit it is measured "
        "in."
    ),
)

# -- weights ----------------------------------------------------------------------------------------------------------


def token_weight(lengths, loss_type, longest):
    """The weight of one token of each completion, [B]."""
    lengths = np.array(lengths, float)
    if loss_type == "grpo":
        return 1 / (len(lengths) * lengths)
    if loss_type == "dapo":
        return np.full(len(lengths), 1 / lengths.sum())
    if loss_type == "dr_grpo":
        return np.full(len(lengths), 1 / (len(lengths) * longest))
    return np.full(len(lengths), 1 / len(lengths))


TOKEN_WEIGHT = Exercise(
    "19.2",
    "What a token weighs",
    "Write `token_weight(lengths, loss_type, longest)`. `lengths` [B] contains the number of tokens of each "
    "completion, and `longest` is the largest number allowed. Return the weight of *one token* of each completion in "
    'the loss, [B]. "grpo": the mean over completions of the mean over their tokens. "dapo": the mean over all '
    'tokens. "dr_grpo": the sum over all tokens, divided by the number of completions times `longest`. "luspo": the '
    "mean over completions of the *sum* over their tokens.",
    minutes=8,
    difficulty=1,
    solution=token_weight,
    hints=(
        "A mean over completions gives each of them the weight 1 / B. A mean over the tokens of a completion also "
        "divides by its length.",
        "Only `grpo` gives different weights to different completions. The other three return the same number B times.",
        "`1 / lengths.sum()` for dapo, `1 / (len(lengths) * longest)` for dr_grpo.",
    ),
    cases=(
        (np.array([2, 6]), "grpo", 8),
        (np.array([2, 6]), "dapo", 8),
        (np.array([2, 6]), "dr_grpo", 8),
        (np.array([2, 6]), "luspo", 8),
        (np.array([5]), "dr_grpo", 9),
        *drawn(4, lambda rng: (rng.integers(1, 9, 5), str(rng.choice(["grpo", "dapo", "dr_grpo", "luspo"])), 11)),
        *[(np.array([1, 3, 3, 4]), kind, 4) for kind in ("grpo", "dapo", "dr_grpo", "luspo")],
    ),
    mistakes=slips(
        token_weight,
        r"""
grpo without the mean over completions
- return 1 / (len(lengths) * lengths)
+ return 1 / lengths
! grpo: the mean over completions also divides by B.
dapo by completion (3)
- return np.full(len(lengths), 1 / lengths.sum())
+ return np.full(len(lengths), 1 / (len(lengths) * lengths.max()))
! dapo divides by the total number of tokens of all completions.

@ return np.full(len(lengths), 1 / (len(lengths) * longest))
dr_grpo without B (3)
+ return np.full(len(lengths), 1 / longest)
! dr_grpo divides by B times `longest`.
dr_grpo with the longest there is (3)
+ return np.full(len(lengths), 1 / (len(lengths) * lengths.max()))
! dr_grpo divides by the largest *allowed* length, `longest`. The largest length in the batch would change from batch to
! batch.

@ return np.full(len(lengths), 1 / len(lengths))
luspo without the mean
+ return np.ones(len(lengths))
! luspo is a sum over tokens, but still a *mean* over completions.
luspo by completion
+ return lengths / len(lengths)
! That is the weight of all tokens of a completion together. Return the weight of one token.
luspo with a mean
+ return 1 / (len(lengths) * lengths)
! luspo adds up the tokens of a completion and does not divide by its length.
""",
    ),
    also_right=r"""
# a table
def weight_table(lengths, loss_type, longest):
    count, total = len(lengths), sum(int(length) for length in lengths)
    each = {"dapo": 1 / total, "dr_grpo": 1 / count / longest, "luspo": 1 / count}
    return [1 / count / int(length) if loss_type == "grpo" else each[loss_type] for length in lengths]
""",
    also_wrong=r"""
# one by the length
lambda lengths, kind, longest: 1 / np.array(lengths)
# ones
lambda lengths, kind, longest: np.ones(len(lengths))
""",
)

# -- ratios -----------------------------------------------------------------------------------------------------------


def sequence_ratio(logps, old_logps, mask):
    """One ratio for each completion, [B]: the geometric mean of its tokens' ratios."""
    log_ratio = (logps - old_logps) * mask
    return mx.exp(log_ratio.sum(axis=1) / mask.sum(axis=1))


def _arrays(rng, rows=3, columns=4):
    mask = np.arange(columns) < rng.integers(1, columns + 1, (rows, 1))
    mask[0] = True
    logps = -rng.exponential(size=(rows, columns))
    old = logps + rng.normal(size=logps.shape) * 0.5
    return tuple(mx.array(each.astype(np.float32)) for each in (logps, old, mask))


SEQUENCE_RATIO = Exercise(
    "19.3",
    "One ratio for all",
    "Write `sequence_ratio(logps, old_logps, mask)`, GSPO's ratio. All three arguments are MLX arrays [B, T]: the "
    "log-probability of every token now, its log-probability when it was sampled, and a mask. The mask is 1 where "
    "there is a token, and 0 where a short completion has none (ignore the values of the other two arrays there). "
    "Return [B]: for each completion the *geometric mean* of its tokens' ratios, which is the n-th root of the "
    "product of n ratios.",
    minutes=8,
    difficulty=2,
    solution=sequence_ratio,
    hints=(
        "The logarithm turns a product into a sum and a root into a division. So the ratio is the exp of a mean.",
        "Take the mean of `logps - old_logps` over the real tokens: multiply by the mask, add up, and divide by "
        "`mask.sum(axis=1)`.",
        "`mx.exp(((logps - old_logps) * mask).sum(axis=1) / mask.sum(axis=1))`.",
    ),
    cases=(
        (mx.array([[-1.0, -1], [-1, -5]]), mx.array([[-2.0, -1], [-3, -4]]), mx.array([[1.0, 1], [1, 0]])),
        *drawn(5, _arrays),
    ),
    mistakes=slips(
        sequence_ratio,
        r"""
@ return mx.exp(log_ratio.sum(axis=1) / mask.sum(axis=1))
product
+ return mx.exp(log_ratio.sum(axis=1))
! That is the product of all ratios, which RLOO and VESPO use. GSPO takes the n-th root of it.
divided by T (2)
+ return mx.exp(log_ratio.sum(axis=1) / mask.shape[1])
! A short completion has fewer tokens than there are columns: divide by its number of tokens.
the logarithm
+ return log_ratio.sum(axis=1) / mask.sum(axis=1)
! That is the logarithm of the ratio. The last step is missing.

@ log_ratio = (logps - old_logps) * mask
mask forgotten (2)
+ log_ratio = (logps - old_logps)
! Positions without a token are counted. Mask them before you add up.
the other way round (2)
+ log_ratio = (old_logps - logps) * mask
! Your ratio is upside down: a token that became likelier has a ratio above 1.

mean of ratios
- log_ratio = (logps - old_logps) * mask
- return mx.exp(log_ratio.sum(axis=1) / mask.sum(axis=1))
+ log_ratio = mx.exp(logps - old_logps) * mask
+ return log_ratio.sum(axis=1) / mask.sum(axis=1)
! That is the arithmetic mean of the ratios. The geometric mean is the exp of the mean logarithm.
""",
    ),
    also_right=r"""
# a root
def ratio_root(logps, old_logps, mask):
    ratios = np.where(np.array(mask), np.exp(np.array(logps) - np.array(old_logps)), 1.0)
    return ratios.prod(axis=1) ** (1 / np.array(mask).sum(axis=1))
# the mask chooses
lambda logps, old_logps, mask: mx.exp(mx.where(mask, logps - old_logps, 0).sum(1) / mx.sum(mask, axis=1))
""",
    also_wrong=r"""
# a mean over all places
lambda logps, old_logps, mask: mx.exp((logps - old_logps).mean(1))
""",
    explain=(
        "The root makes the ratios of long and short completions comparable and brings them close to 1. That is why "
        "GSPO's clip range is less than a thousandth wide."
    ),
)


def cispo_loss(logps, old_logps, advantages, mask, cap):
    """CISPO's loss, a scalar."""
    ratio = mx.exp(logps - old_logps)
    weight = mx.stop_gradient(mx.minimum(ratio, cap))
    return -(weight * advantages[:, None] * logps * mask).sum() / mask.sum()


def _value_and_gradient(function, logps, *others):
    """Return the loss and its gradient with respect to logps."""
    value, gradient = mx.value_and_grad(lambda x: function(x, *others))(logps)
    if getattr(value, "shape", None) != ():
        return Told(f"an array of shape {getattr(value, 'shape', None)}, but a loss is one number")
    return [np.array(value), np.array(gradient)]


def _with_advantages(rng):
    logps, old, mask = _arrays(rng)
    old = mx.where(mx.array(rng.random(old.shape) < 0.3), logps - 1.5, old)  # some ratios above any cap
    return logps, old, mx.array(rng.normal(size=3).astype(np.float32)), mask, float(rng.choice([1.5, 2.0, 3.0]))


CISPO_LOSS = Exercise(
    "19.4",
    "A weight, not a clip",
    "Write `cispo_loss(logps, old_logps, advantages, mask, cap)`. `logps`, `old_logps` and `mask` are MLX arrays [B, "
    "T], `advantages` [B]. Each token has a *weight*: its ratio, but at most `cap`. No gradient flows through the "
    "weight. The loss is minus the mean over all tokens of weight times advantage times log-probability. `check` "
    "looks at the value and at the gradient with respect to `logps`.",
    minutes=10,
    difficulty=2,
    solution=cispo_loss,
    hints=(
        "You need three lines: the ratio, the weight, the loss. What makes a number a constant for the gradient?",
        "`mx.stop_gradient(mx.minimum(ratio, cap))`.",
        "Then `-(weight * advantages[:, None] * logps * mask).sum() / mask.sum()`.",
    ),
    cases=(
        (
            mx.array([[-1.0, -2], [-1.5, -3]]),
            mx.array([[-2.0, -2], [-0.5, -2]]),
            mx.array([1.0, -1]),
            mx.array([[1.0, 1], [1, 0]]),
            1.5,
        ),
        (  # a row of advantage 0, and a token whose loss is 0
            mx.array([[-1.0, -2], [-1.5, -3], [0.0, -0.5]]),
            mx.array([[-2.0, -2], [-0.5, -2], [0.0, -1]]),
            mx.array([1.0, 0, -1]),
            mx.array([[1.0, 1], [1, 1], [1, 1]]),
            1.5,
        ),
        *drawn(5, _with_advantages),
    ),
    mistakes=slips(
        cispo_loss,
        r"""
@ weight = mx.stop_gradient(mx.minimum(ratio, cap))
no stop_gradient
+ weight = mx.minimum(ratio, cap)
! The value is right and the gradient is not: it flows through the weight too. Stop it there.
an offset (2)
+ weight = mx.stop_gradient(mx.minimum(ratio, 1 + cap))
! `cap` is the largest weight itself, not its distance from 1.
nothing above the cap (2)
+ weight = mx.stop_gradient(mx.where(ratio > cap, 0.0, ratio))
! A token whose ratio is above `cap` weighs `cap`. It is not left out, as a clip would do.
clipped below too (2)
+ weight = mx.stop_gradient(mx.clip(ratio, 1 / cap, cap))
! CISPO has only an upper bound.

@ return -(weight * advantages[:, None] * logps * mask).sum() / mask.sum()
the ratio as objective (3)
+ return -(weight * advantages[:, None] * mask).sum() / mask.sum()
! The log-probability is missing. A weight alone, without a gradient, teaches nothing.
grpo's mean (3)
+ return -((weight * advantages[:, None] * logps * mask).sum(axis=1) / mask.sum(axis=1)).mean()
! That is the mean over completions of the mean over their tokens. Take the mean over all tokens.
everything stopped (2)
+ return -(weight * advantages[:, None] * mx.stop_gradient(logps) * mask).sum() / mask.sum()
! Nothing with a gradient is left. Stop the gradient only at the weight, not at the log-probability.
upside down (3)
+ return (weight * advantages[:, None] * logps * mask).sum() / mask.sum()
! Training makes a loss smaller. Put a minus before the quantity that should become larger.
rows of advantage 0 not counted (3)
+ counted = mask * (advantages != 0)[:, None]
+ return -(weight * advantages[:, None] * logps * mask).sum() / counted.sum()
! Tokens of rows with advantage 0 are missing from the denominator. Take the mean over all tokens.
mean over all places (3)
+ return -(weight * advantages[:, None] * logps * mask).sum() / mask.size
! The mean is over the real tokens, `mask.sum()` of them.
no mask (3)
+ return -(weight * advantages[:, None] * logps).mean()
! Positions without a token are counted. Mask them, and divide by the number of tokens.

PPO's objective
- weight = mx.stop_gradient(mx.minimum(ratio, cap))
- return -(weight * advantages[:, None] * logps * mask).sum() / mask.sum()
+ weight = mx.minimum(ratio, cap)
+ return -(weight * advantages[:, None] * mask).sum() / mask.sum()
! That is PPO's objective, ratio times advantage. Here the objective is the log-probability, and the ratio is only its
! weight.
""",
    ),
    also_right=r"""
# einsum
def cispo_einsum(logps, old_logps, advantages, mask, cap):
    weight = mx.stop_gradient(mx.clip(mx.exp(logps - old_logps), None, cap)) * mask
    return -mx.einsum("bt,b,bt->", weight, advantages, logps) / mx.sum(mask)
# a constant in the ratio
def cispo_old_stopped(logps, old_logps, advantages, mask, cap):
    ratio = mx.exp(mx.stop_gradient(logps) - old_logps)
    kept = mx.where(ratio > cap, cap, ratio) * mask.astype(mx.float32)
    return mx.sum(kept * -advantages.reshape(-1, 1) * logps) / mask.sum()
""",
    also_wrong=r"""
# a loss for each completion
lambda logps, old_logps, advantages, mask, cap: -(logps * advantages[:, None] * mask).sum(1) / mask.sum()
! raised ValueError
""",
    run=_value_and_gradient,
    explain="Here a token whose ratio has left the clip range keeps its gradient. With PPO's clip it has none.",
)

# -- which tokens, which completions ----------------------------------------------------------------------------------


def top_entropy_mask(entropies, mask, share):
    """The tokens with the highest entropy, bool [B, T]."""
    entropies, mask = np.array(entropies), np.array(mask, bool)
    bound = np.quantile(entropies[mask], 1 - share)
    return mask & (entropies >= bound)


def _booleans(function, *arguments):
    result = function(*arguments)
    try:
        chosen = np.asarray(result.tolist() if hasattr(result, "tolist") else result)
        if np.all((chosen == 0) | (chosen == 1)):
            return chosen != 0
        return Told("numbers other than 0 and 1, but a mask says yes or no for each token")
    except (TypeError, ValueError):
        return result


def _entropies(rng):
    mask = np.arange(5) < rng.integers(1, 6, (4, 1))
    return rng.exponential(size=(4, 5)).round(2) + 0.01, mask, float(rng.choice([0.2, 0.5, 0.35]))


TOP_ENTROPY_MASK = Exercise(
    "19.5",
    "Only the forks",
    "Write `top_entropy_mask(entropies, mask, share)`: `entropies` [B, T] says how undecided the policy was at each "
    "token, and `mask` [B, T] says where there is a token (both are NumPy arrays, `mask` of booleans). Return a mask "
    "[B, T] of the `share` of tokens with the highest entropy: those at or above the quantile 1 - `share` of all real "
    "tokens (`np.quantile(numbers, q)`).",
    minutes=8,
    difficulty=2,
    solution=top_entropy_mask,
    hints=(
        "`entropies[mask]` is a flat array of the entropies of real tokens. The threshold is a quantile of these "
        "numbers.",
        "`mask & (entropies >= np.quantile(entropies[mask], 1 - share))`, with a mask of booleans.",
    ),
    cases=(
        (np.array([[0.1, 2.0, 0.3], [1.0, 9.0, 9.0]]), np.array([[1, 1, 1], [1, 0, 0]], bool), 0.5),
        (np.array([[0.5, 0.5, 0.5, 0.5]]), np.array([[1, 1, 1, 0]], bool), 0.2),
        (np.array([[0.4, 0.2, 0.9]]), np.array([[1, 1, 1]], bool), 1.0),
        *drawn(4, _entropies),
    ),
    mistakes=slips(
        top_entropy_mask,
        r"""
@ bound = np.quantile(entropies[mask], 1 - share)
padding counted
+ bound = np.quantile(entropies, 1 - share)
! Numbers at positions without a token went into the quantile.
share as quantile (2)
+ bound = np.quantile(entropies[mask], share)
! The top fifth begins at the quantile 0.8: 1 - share.

the lowest (2)
- bound = np.quantile(entropies[mask], 1 - share)
- return mask & (entropies >= bound)
+ bound = np.quantile(entropies[mask], share)
+ return mask & (entropies <= bound)
! Those are the tokens with the *lowest* entropy, where the model was sure.

@ return mask & (entropies >= bound)
padding kept (2)
+ return (entropies >= bound)
! Positions without a token are in the mask. Leave them out.
strictly above (2)
+ return mask & (entropies > bound)
! Keep tokens at *or* above the quantile: if all entropies were equal, no token would be left.
""",
    ),
    also_right=r"""
# sorted
def mask_sorted(entropies, mask, share):
    kept = np.sort(entropies[mask])
    place = (1 - share) * (len(kept) - 1)
    low, high = kept[int(np.floor(place))], kept[int(np.ceil(place))]
    return np.where(mask, entropies, -1) >= low + (high - low) * (place - np.floor(place)) - 1e-12
# torch
import torch
def mask_torch(entropies, mask, share):
    bound = torch.quantile(torch.tensor(entropies[mask]), 1 - share)
    return (torch.tensor(entropies) >= bound) & torch.tensor(mask)
""",
    also_wrong=r"""
# entropies
- return mask & (entropies >= bound)
+ return entropies * (mask & (entropies >= bound))
! a mask says yes or no
""",
    run=_booleans,
)


def overlong_penalty(lengths, longest, cache):
    """DAPO's penalty for long completions, [B]."""
    over = np.array(lengths, float) - (longest - cache)
    return 0 - np.clip(over / cache, 0, 1)


OVERLONG_PENALTY = Exercise(
    "19.6",
    "Too long, softly",
    "Write `overlong_penalty(lengths, longest, cache)`, which returns what DAPO adds to the reward of completions of "
    "these `lengths` [B]. The penalty is 0 up to `longest` - `cache` tokens. From there it falls in a straight line "
    "to -1 at `longest`, and it stays -1 beyond.",
    minutes=5,
    difficulty=1,
    solution=overlong_penalty,
    hints=(
        "How many tokens is a completion beyond `longest - cache`? Divide that by `cache`: it is 0 at the start of the "
        "line and 1 at its end.",
        "`-np.clip(over / cache, 0, 1)`.",
    ),
    cases=(
        (np.array([10, 15, 16, 18, 20, 25]), 20, 5),
        (np.array([1, 2, 3, 4]), 4, 2),
        *drawn(3, lambda rng: (rng.integers(1, 40, 6), 30, int(rng.integers(1, 31)))),
    ),
    mistakes=slips(
        overlong_penalty,
        r"""
@ return 0 - np.clip(over / cache, 0, 1)
a bonus (2)
+ return np.clip(over / cache, 0, 1)
! The sign is wrong: a penalty is negative.
without an end (2)
+ return -np.maximum(over / cache, 0)
! The penalty never costs more than 1, even beyond `longest`.
a reward for short ones
+ return -np.minimum(over / cache, 1)
! Short completions get a bonus. They should get 0.
a step
+ return 0 - np.where(over > 0, 1.0, 0.0)
! That is a cliff. Between the two lengths the penalty should be a straight line.

begins at the end
- over = np.array(lengths, float) - (longest - cache)
+ over = np.array(lengths, float) - longest
! The line begins `cache` tokens *before* `longest`, and ends at `longest`.
""",
    ),
    also_right=r"""
# a loop
def penalty_loop(lengths, longest, cache):
    out = []
    for length in lengths:
        if length <= longest - cache:
            out.append(0.0)
        elif length <= longest:
            out.append((longest - cache - length) / cache)
        else:
            out.append(-1)
    return out
""",
)

# -- all together -----------------------------------------------------------------------------------------------------

WHICH_VARIANT = Exercise(
    "19.7",
    "Which variant is this?",
    "A batch has a good completion of 2 tokens (advantage +1) and a bad one of 6 tokens (advantage -1); at most 8 "
    "tokens are allowed. Only one ratio has moved: the first token of the good completion has become twice as likely. "
    "Four losses push the tokens like this (first and second token of the good completion | every token of the bad "
    "one):  \n1: 0 and 0.125 | -0.125;  2: 0 and 0.25 | -0.083;  3: 0.25 and 0.125 | -0.125;  4: 0 and 0.0625 | "
    "-0.0625.  \nWhich is which: a = grpo, b = dapo, c = dr_grpo, d = cispo with a cap of 5? Answer with a string of "
    "four letters, the letter of loss 1 first.",
    minutes=6,
    difficulty=2,
    solution="badc",
    hints=(
        "Ask two questions. Is the token that moved clipped away, or does it weigh more? And what is a token divided "
        "by: the 8 tokens in the batch, the 16 tokens it could have, or the length of its own completion?",
        "A push of 0.125 is 1 / 8, 0.0625 is 1 / 16, 0.25 is 1 / (2 * 2) and 0.083 is 1 / (2 * 6).",
    ),
    mistakes=(
        Mistake("dapo and dr_grpo", "cadb", "dapo divides by the 8 tokens in the batch, dr_grpo by 2 times 8.", 2),
        Mistake(
            "dapo and cispo",
            "dabc",
            "Which of the two clips? A clipped token gets no push at all; in cispo its ratio is its weight.",
            1,
        ),
        Mistake(
            "grpo and dapo",
            "abdc",
            "In grpo a token of the short completion weighs more than a token of the long one.",
            2,
        ),
    ),
    also_right=r"""
# large letters
"BADC"
# a list
["b", "a", "d", "c"]
""",
    also_wrong=r"""
# in order
"abcd"
""",
)

# -- comparing --------------------------------------------------------------------------------------------------------


def paired_difference(a, b):
    """(mean of b - a, its standard error): a and b are results of two variants, seed by seed."""
    differences = np.array(b, float) - np.array(a, float)
    return differences.mean(), differences.std(ddof=1) / np.sqrt(len(differences))


def _two_numbers(function, a, b):
    result = function(a, b)
    return tuple(result.tolist()) if getattr(result, "shape", None) == (2,) else result


PAIRED_DIFFERENCE = Exercise(
    "19.8",
    "Better, or lucky?",
    "Write `paired_difference(a, b)`. `a` and `b` are arrays: the results of two variants, with the same seeds in the "
    "same order. Return two numbers: the mean of the differences b - a, and its *standard error*, which is the "
    "standard deviation of the differences (dividing by n - 1) divided by the square root of n.",
    minutes=7,
    difficulty=2,
    solution=paired_difference,
    hints=(
        "Subtract seed by seed first. That leaves one list of numbers: compute its mean, and how precisely the mean "
        "is known.",
        "`differences.std(ddof=1) / np.sqrt(len(differences))`.",
    ),
    cases=(
        (np.array([0.6, 0.7, 0.8]), np.array([0.65, 0.74, 0.86])),
        (np.array([1.0, 2.0]), np.array([2.0, 1.0])),
        *drawn(3, lambda rng: (rng.random(5), rng.random(5))),
    ),
    mistakes=slips(
        paired_difference,
        r"""
@ return differences.mean(), differences.std(ddof=1) / np.sqrt(len(differences))
the standard deviation (2)
+ return differences.mean(), differences.std(ddof=1)
! That is the scatter of single differences. Their mean is more precise by a factor of the root of n.
ddof 0 (2)
+ return differences.mean(), differences.std(ddof=0) / np.sqrt(len(differences))
! For a few numbers the standard deviation divides by n - 1 (`ddof=1`), because numbers are closer to their own mean
! than to the true one.
divided by n (2)
+ return differences.mean(), differences.std(ddof=1) / len(differences)
! Divide by the *root* of n: half the error takes four times as many seeds.
not paired
+ return differences.mean(), np.sqrt((np.var(a, ddof=1) + np.var(b, ddof=1)) / len(differences))
! That is the error for two independent groups of runs. With the same seed, both runs see the same problems, and what
! they share cancels in the difference.

upside down
- differences = np.array(b, float) - np.array(a, float)
+ differences = np.array(a, float) - np.array(b, float)
! The difference is b - a: it is positive where b is better.
""",
    ),
    also_right=r"""
# the statistics module
import statistics
def paired_by_hand(a, b):
    import statistics

    differences = [y - x for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5
# an array
lambda a, b: np.array([(b - a).mean(), (b - a).std(ddof=1) / np.sqrt(len(a))])
""",
    also_wrong=r"""
# the mean alone
lambda a, b: (b - a).mean()
""",
    run=_two_numbers,
)
