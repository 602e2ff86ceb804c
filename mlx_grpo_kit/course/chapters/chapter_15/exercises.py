"""Exercises of notebook 15: policy gradients."""

import numpy as np

from mlx_grpo_kit.course.exercise import Exercise, drawn
from mlx_grpo_kit.course.slips import slips

BY_HAND = np.log([2.0, 1.0, 1.0])  # probabilities 1/2, 1/4, 1/4
PAYS = np.array([0.0, 1.0, 3.0])

# A mistake of every exercise that begins with a softmax.
OVERFLOW = r"""
overflow
- probs = softmax(logits)
+ with np.errstate(all="ignore"):
+     powers = np.exp(logits)
+     probs = powers / powers.sum()
! `exp(1000)` is infinite, and infinity divided by infinity is nan. `softmax(logits)` from the set-up cell subtracts the
! largest logit first.
"""


# Probabilities over the last axis; the same code as in the notebook's set-up.
def softmax(logits):
    powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _coarse(function, *arguments):
    """Call the function and round a NumPy result to float32, so that answers of MLX or torch in float32 pass too."""
    result = function(*arguments)
    if type(result).__module__.startswith("numpy") and getattr(result, "shape", ()):
        return result.astype(np.float32) if result.dtype.kind in "fiub" else result
    return result


def _arms(rng, low=2, high=7):
    """Logits and rewards of a bandit; none of them is a whole number."""
    arms = int(rng.integers(low, high))
    return rng.normal(size=arms) * 1.5, rng.normal(size=arms) * 2 + rng.normal()


# -- by enumeration ---------------------------------------------------------------------------------------------------


def expected_reward(logits, rewards):
    """The mean reward of softmax(logits) [V] where arm a pays rewards[a]."""
    return float(softmax(logits) @ rewards)


EXPECTED = Exercise(
    "15.1",
    "What the policy earns",
    "Write `expected_reward(logits, rewards)`, both arrays [V]: the mean reward of a policy that draws arm `a` with "
    "probability softmax(logits)[a] and gets `rewards[a]` for it. Return one number. Logits may be as large as 1000; "
    "`softmax(logits)` from the set-up cell takes care of that.",
    minutes=4,
    difficulty=1,
    solution=expected_reward,
    hints=(
        "You did it by hand above: multiply each reward by its probability, and add up.",
        "`probs = softmax(logits)`. What is `(probs * rewards).sum()`?",
    ),
    cases=(
        (BY_HAND, PAYS),
        (np.array([0.5, -0.5]), np.array([-1.5, 2.25])),
        (np.array([1000.0, 999.0]), np.array([1.0, 0.5])),
        (np.array([0.3, -np.inf, 1.2]), np.array([0.5, 100.0, -0.25])),
        (np.array([-3.5]), np.array([0.75])),
        *drawn(3, _arms),
    ),
    mistakes=slips(
        expected_reward,
        r"""
@ return float(softmax(logits) @ rewards)
equal weights
+ return float(np.mean(rewards))
! That is the reward of a policy that draws all arms equally often. Weight each reward with its probability.
logits as weights (2)
+ return float(logits @ rewards)
! Logits are not probabilities: apply `softmax` first.
the likeliest arm
+ return float(rewards[np.argmax(logits)])
! That is the reward of the likeliest arm. The policy draws the other arms too, only less often.
divided by the number of arms (2)
+ return float((softmax(logits) * rewards).mean())
! The probabilities already sum to 1: just add up, and do not divide by the number of arms.
powers without their sum (2)
+ return float(np.exp(logits) @ rewards)
! Divide the powers of e by their sum; otherwise they are not probabilities.
""",
    ),
    also_right=r"""
# a sum
lambda logits, rewards: sum(p * r for p, r in zip(softmax(logits), rewards, strict=True))
# an average
lambda logits, rewards: np.average(rewards, weights=softmax(logits))
""",
    also_wrong=r"""
# overflows
def overflows(logits, rewards):
    with np.errstate(all="ignore"):
        powers = np.exp(logits)
        return powers / powers.sum() @ rewards
# the largest
lambda logits, rewards: max(rewards)
""",
)


def expected_reward_gradient(logits, rewards):
    """The gradient [V] of the expected reward of softmax(logits) with respect to the logits."""
    probs = softmax(logits)
    return probs * (rewards - probs @ rewards)


GRADIENT = Exercise(
    "15.2",
    "Its gradient, exactly",
    "Write `expected_reward_gradient(logits, rewards)`: the gradient [V] of the expected reward with respect to the "
    "logits, which may be very large. Use a formula, not small steps. Raising logit k changes every probability: the "
    "slope of `probs[a]` with respect to `logits[k]` is `probs[a] * ((a == k) - probs[k])` (chapter 05).",
    minutes=10,
    difficulty=2,
    solution=expected_reward_gradient,
    hints=(
        "Component k is the sum over all arms a of `rewards[a] * probs[a] * ((a == k) - probs[k])`. Write it with "
        "two loops if you like, and then look at the two terms separately.",
        "The first term is not 0 only for a == k, and gives `probs[k] * rewards[k]`. In the second term you can "
        "factor out `probs[k]`, and the sum that remains is one that you know.",
        "`probs * (rewards - expected)`, where `expected` is the expected reward.",
    ),
    cases=(
        (BY_HAND, PAYS),
        (BY_HAND, PAYS + 10.0),
        (np.array([0.5, -0.5]), np.array([-1.5, 2.25])),
        (np.array([0.25, 0.25, -1.0, 0.25]), np.array([1.5, 1.5, 1.5, 1.5])),
        (np.array([1000.0, 999.0, 0.0]), np.array([1.0, 0.5, 0.25])),
        (np.full(3, 4e12), np.array([0.5, -0.25, 1.5])),  # so large that rounding swallows small steps
        (np.array([-3.5]), np.array([0.75])),
        *drawn(3, _arms),
    ),
    mistakes=slips(
        expected_reward_gradient,
        r"""
@ return probs * (rewards - probs @ rewards)
small steps
+ return np.array([(softmax(logits + s) - softmax(logits - s)) @ rewards for s in 1e-5 * np.eye(len(logits))]) / 2e-5
! Small steps vanish next to large logits: 4e12 + 0.00001 is 4e12. Use the slope of softmax from the exercise.
the others forgotten
+ return probs * (rewards * (1 - probs))
! You multiplied the change of an arm's own probability by its reward. Raising one logit also lowers the probabilities
! of all the *other* arms, and with them what those arms contribute.
sum not kept (2)
+ return probs * rewards
! One term is missing: raising a logit takes probability from all arms, in proportion. The gradient has to sum to 0.
probability left out (2)
+ return (rewards - probs @ rewards)
! The comparison with the mean is right. But the push on a logit also depends on how likely its arm is.
every arm alike (3)
+ return probs * (rewards - rewards.mean())
! Subtract the expected reward of the *policy*, not the mean of the arms' rewards.
downhill (2)
+ return probs * (probs @ rewards - rewards)
! Your sign is that of a loss. The gradient of the reward points to where the reward grows.
"""
        + OVERFLOW,
    ),
    also_right=r"""
# autograd
import torch
def by_autograd(logits, rewards):
    tensor = torch.tensor(logits, requires_grad=True)
    (torch.softmax(tensor, 0) @ torch.tensor(rewards)).backward()
    return tensor.grad.numpy()
# loops
def with_loops(logits, rewards):
    probs = softmax(logits)
    arms = range(len(probs))
    return [sum(rewards[a] * probs[a] * ((a == k) - probs[k]) for a in arms if probs[a] > 0) for k in arms]
""",
    also_wrong=r"""
# steps of 0.01
def fixed_steps(logits, rewards, h=1e-2):
    before = expected_reward(logits, rewards)
    return [(expected_reward(logits + h * e, rewards) - before) / h for e in np.eye(len(logits))]
""",
    run=_coarse,
    explain=(
        "probs * (rewards - expected): an arm is pushed up if it pays more than the policy earns on average. The "
        "push is proportional to that difference and to the arm's probability. Nobody asked for a comparison with "
        "the mean; it came out of the calculation."
    ),
)


# -- by samples -------------------------------------------------------------------------------------------------------


def score_function_gradient(logits, actions, rewards):
    """The mean over N draws of reward times gradient of log-probability: [V]."""
    scores = np.eye(len(logits))[actions] - softmax(logits)
    return (rewards[:, None] * scores).mean(axis=0)


def _draws(rng, tied=False):
    """Logits of a few arms, some draws, and a reward for each draw."""
    arms, draws = int(rng.integers(2, 6)), int(rng.integers(1, 12))
    rewards = rng.integers(0, 2, draws) * 1.0 if tied else rng.normal(size=draws) + 1
    return rng.normal(size=arms) * 1.2, rng.integers(0, arms, draws), rewards


SCORE = Exercise(
    "15.3",
    "The score function estimator",
    "Write `score_function_gradient(logits, actions, rewards)` for `logits` [V] and N draws from softmax(logits): "
    "`actions` [N], whole numbers from 0 to V - 1, and `rewards` [N], the reward of each *draw*. Return [V]: the "
    "mean, over the draws, of the reward times the gradient of log softmax(logits)[action] with respect to the "
    "logits. Logits may be as large as 1000.",
    minutes=12,
    difficulty=2,
    solution=score_function_gradient,
    hints=(
        "The gradient of the log-probability of arm a is `one_hot(a) - probs`, the score in the table. Begin with a "
        "loop over the draws that adds up `reward * (one_hot - probs)`.",
        "For all N at once: `np.eye(len(logits))[actions]` is the [N, V] array of one-hot rows. Subtract the "
        "probabilities from each row.",
        "`(rewards[:, None] * scores).mean(axis=0)` multiplies each row by its reward and takes the mean over the "
        "rows.",
    ),
    cases=(
        (BY_HAND, np.array([2]), np.array([3.0])),
        (BY_HAND, np.array([0, 2, 1, 0]), np.array([0.0, 3.0, 1.0, 0.0])),
        (np.array([0.5, -0.5]), np.array([1, 1, 0]), np.array([-1.5, 2.25, 0.5])),
        (np.array([1000.0, 999.0]), np.array([1, 0]), np.array([1.0, 0.5])),
        (
            np.array([0.25, -0.5, 1.0, 0.75]),
            np.array([1, 0, 1]),
            np.array([2.0, -0.5, 0.25]),
        ),  # arms 2 and 3 are never drawn
        (np.array([-3.5]), np.array([0, 0]), np.array([0.75, 2.0])),
        (BY_HAND, np.array([1]), np.array([-2.0])),  # shapes from an earlier case, to catch results cached by shape
        *drawn(3, _draws),
        *drawn(1, lambda rng: _draws(rng, tied=True), seed=7),
    ),
    mistakes=slips(
        score_function_gradient,
        r"""
@ return (rewards[:, None] * scores).mean(axis=0)
the sum (3)
+ return (rewards[:, None] * scores).sum(axis=0)
! That is the sum. The mean estimates the same gradient for any number of draws.
no log
+ return (rewards[:, None] * softmax(logits)[actions][:, None] * scores).mean(axis=0)
! That is the gradient of the probability, not of its logarithm. Likely arms are already drawn often, so their
! probability would count twice.
downhill
+ return (-rewards[:, None] * scores).mean(axis=0)
! Your sign is that of a loss: this points to where the reward shrinks.
rewards of arms (3)
+ return (rewards[actions % len(rewards)][:, None] * scores).mean(axis=0)
! `rewards[i]` is the reward of draw number i, so it already belongs to its action: do not look it up by arm.
over the arms (3)
+ return (rewards[:, None] * scores).sum(axis=0) / len(logits)
! Divide by the number of draws, not by the number of arms.
weighed once more
+ return (rewards[:, None] / softmax(logits)[actions][:, None] * scores).mean(axis=0)
! The log already divides by the probability. If you divide once more, every arm counts the same, however likely it is.
one addition for each arm (2)
+ sums = np.zeros(len(logits))
+ sums[actions] += rewards
+ return sums / len(actions) - softmax(logits) * rewards.mean()
! An arm that was drawn twice counts only once: `sums[actions] += rewards` adds to each element a single time.
! `np.add.at(sums, actions, rewards)` adds every time.

one-hot alone
- scores = np.eye(len(logits))[actions] - softmax(logits)
+ scores = np.eye(len(logits))[actions]
! The drawn arm goes up, but nothing goes down. The components of the gradient of a log-probability sum to 0.
overflow
- scores = np.eye(len(logits))[actions] - softmax(logits)
+ with np.errstate(all="ignore"):
+     powers = np.exp(logits)
+     scores = np.eye(len(logits))[actions] - powers / powers.sum()
! `exp(1000)` is infinite, and infinity divided by infinity is nan. `softmax(logits)` from the set-up cell subtracts the
! largest logit first.
""",
    ),
    also_right=r"""
# MLX
from mlx_grpo_kit.runtime import mx
def in_mlx(logits, actions, rewards):
    weights = mx.array(rewards.astype(np.float32))
    logps = lambda z: z - mx.logsumexp(z)
    return mx.grad(lambda z: (weights * logps(z)[mx.array(actions)]).mean())(mx.array(logits.astype(np.float32)))
# counts
def by_counting(logits, actions, rewards):
    sums = np.bincount(actions, weights=rewards, minlength=len(logits))
    return (sums - sums.sum() * softmax(logits)) / len(actions)
""",
    also_wrong=r"""
# each arm once
- scores = np.eye(len(logits))[actions] - softmax(logits)
+ actions, first = np.unique(actions, return_index=True)
+ rewards = rewards[first]
+ scores = np.eye(len(logits))[actions] - softmax(logits)
# as many as were drawn
def as_many_as_were_drawn(logits, actions, rewards):
    sums = np.bincount(actions, weights=rewards)
    return (sums - sums.sum() * softmax(logits)) / len(actions)
""",
    run=_coarse,
)


def estimator_variance(logits, rewards, baseline):
    """The variance of one draw's estimate of the gradient, summed over the logits."""
    probs = softmax(logits)
    says = (rewards - baseline)[:, None] * (np.eye(len(probs)) - probs)  # row a: estimate if a is drawn
    mean = probs @ says
    return float(probs @ (says**2).sum(axis=1) - mean @ mean)


VARIANCE = Exercise(
    "15.4",
    "How far off is one draw?",
    "Write `estimator_variance(logits, rewards, baseline)`, exactly, by going through all arms. If arm a is drawn, the "
    "estimate is the vector `(rewards[a] - baseline) * (one_hot(a) - probs)`. Return one number: the variance of that "
    "vector, summed over its V components. That is the mean of its squared norm, minus the squared norm of its "
    "mean. Logits may be as large as 1000.",
    minutes=12,
    difficulty=2,
    solution=estimator_variance,
    hints=(
        "First make the array of all V possible estimates, one row per arm: `(rewards - baseline)[:, None] * "
        "(np.eye(V) - probs)`.",
        "Both means are over the draws, so they weight row a with `probs[a]`: `probs @ rows`.",
        "`probs @ (rows ** 2).sum(axis=1)` is the mean squared norm. With the mean vector `m = probs @ rows`, "
        "subtract `m @ m`.",
    ),
    cases=(
        (BY_HAND, PAYS, 0.0),
        (BY_HAND, PAYS, 1.0),
        (BY_HAND, PAYS + 10.0, 0.0),
        (np.array([0.5, -0.5]), np.array([-1.5, 2.25]), 0.25),
        (np.array([0.25, -0.75, 1.5]), np.array([1.5, 1.5, 1.5]), 1.5),
        (np.array([-3.5]), np.array([0.75]), 0.5),
        (np.array([1000.0, 999.0]), np.array([1.0, 0.5]), 0.25),
        *drawn(3, lambda rng: (*_arms(rng), float(rng.normal()))),
    ),
    mistakes=slips(
        estimator_variance,
        r"""
@ return float(probs @ (says**2).sum(axis=1) - mean @ mean)
mean not taken off (3)
+ return float(probs @ (says**2).sum(axis=1))
! That is the mean squared norm. A variance is measured around the mean: subtract the squared norm of the mean.
every arm alike (2)
+ return float(says.var(axis=0).sum())
! Your answer gives every arm the same weight. A draw gives arm a with probability `probs[a]`.
of the rewards
+ return float(probs @ (rewards - baseline) ** 2 - (probs @ rewards - baseline) ** 2)
! That is the variance of the rewards. The exercise asks for the variance of the estimate of the *gradient*, a vector.
mean over the components (3)
+ return 1 / len(probs) * (probs @ (says**2).sum(axis=1) - mean @ mean)
! Sum over the V components of the vector; do not average them.
a standard deviation (3)
+ return float(np.sqrt(probs @ (says**2).sum(axis=1) - mean @ mean))
! That is the square root of the variance. Return the variance itself.

no baseline
- says = (rewards - baseline)[:, None] * (np.eye(len(probs)) - probs)  # row a: estimate if a is drawn
+ says = rewards[:, None] * (np.eye(len(probs)) - probs)  # row a: estimate if a is drawn
! You do not use the baseline: subtract it from each reward first.
"""
        + OVERFLOW,
    ),
    also_right=r"""
# variance by components
def variance_by_components(logits, rewards, baseline):
    probs, total = softmax(logits), 0.0
    for k in range(len(probs)):
        values = [(rewards[a] - baseline) * ((a == k) - probs[k]) for a in range(len(probs))]
        total += np.average(np.square(values), weights=probs) - np.average(values, weights=probs) ** 2
    return total
""",
    also_wrong=r"""
# of a sample
- return float(probs @ (says**2).sum(axis=1) - mean @ mean)
+ return float(probs @ (says**2).sum(axis=1) - mean @ mean) * len(rewards) / max(1, len(rewards) - 1)
""",
)


def best_baseline(logits, rewards):
    """The constant that makes the variance of the estimator smallest."""
    probs = softmax(logits)
    squared_norms = ((np.eye(len(probs)) - probs) ** 2).sum(axis=1)
    weights = probs * squared_norms
    return float(weights @ rewards / weights.sum())


BEST = Exercise(
    "15.5",
    "The best constant",
    "Write `best_baseline(logits, rewards)`: the constant b for which `estimator_variance(logits, rewards, b)` is "
    "smallest. There is a formula for it: the variance is a parabola in b, and only its first part, the mean of "
    "`(rewards[a] - b)^2 * s[a]`, depends on b, where `s[a]` is the squared norm of `one_hot(a) - probs`. Set its "
    "slope to 0. There are at least two arms, and logits may be as large as 1000.",
    minutes=12,
    difficulty=3,
    solution=best_baseline,
    hints=(
        "The slope of the sum over a of `probs[a] * s[a] * (rewards[a] - b)^2` in b is -2 times the sum of `probs[a] * "
        "s[a] * (rewards[a] - b)`. Where is that 0?",
        "It is a weighted mean of the rewards. The weights are `probs * s`, and a weighted mean divides by their sum.",
        "`s = ((np.eye(V) - probs) ** 2).sum(axis=1)`.",
    ),
    cases=(
        (BY_HAND, PAYS),
        (BY_HAND, PAYS + 10.0),
        (np.array([0.5, -0.5]), np.array([-1.5, 2.25])),
        (np.array([0.25, 0.25, -1.0, 0.25]), np.array([1.5, 1.5, 1.5, 1.5])),
        (np.array([3.0, -1.25, 0.0]), np.array([0.25, 1.75, -0.5])),
        (np.array([1000.0, 999.0, 998.5]), np.array([1.0, 0.5, -0.25])),
        *drawn(3, _arms),
    ),
    mistakes=slips(
        best_baseline,
        r"""
@ weights = probs * squared_norms
the mean reward (2)
+ weights = probs
! That is the mean reward. It is a good baseline, but not quite the best one: draws whose scores have a large norm make
! more noise, so their rewards count more.
not drawn (2)
+ weights = squared_norms
! Your weights ignore how likely each arm is. Multiply them by the probabilities too.
norms not squared (3)
+ weights = probs * np.sqrt(squared_norms)
! The weights contain the *squared* norms of `one_hot(a) - probs`.

weights that do not sum to 1 (2)
- return float(weights @ rewards / weights.sum())
+ return float(weights @ rewards)
! A weighted mean divides by the sum of the weights.
own logit only (3)
- squared_norms = ((np.eye(len(probs)) - probs) ** 2).sum(axis=1)
+ squared_norms = (1 - probs) ** 2
! `one_hot(a) - probs` has V components, and the others are not 0 either. Its squared norm is the sum over all of
! them.
"""
        + OVERFLOW,
    ),
    also_right=r"""
# a parabola through three points
def from_three_points(logits, rewards):
    low, middle, high = (estimator_variance(logits, rewards, b) for b in (-1.0, 0.0, 1.0))
    return (low - high) / (2 * (low + high - 2 * middle))
""",
    also_wrong=r"""
# the median
lambda logits, rewards: float(np.median(rewards))
""",
)


# -- groups -----------------------------------------------------------------------------------------------------------


def leave_one_out(rewards, group_size):
    """Each reward minus the mean of the *other* rewards of its group: [B] -> [B]."""
    groups = rewards.reshape(-1, group_size)
    others = (groups.sum(axis=1, keepdims=True) - groups) / (group_size - 1)
    return (groups - others).reshape(-1)


LEAVE_ONE_OUT = Exercise(
    "15.6",
    "Compare me with the others",
    "Write `leave_one_out(rewards, group_size)`. `rewards` [B] holds one group after another, with `group_size` "
    "rewards each, at least 2. Return [B]: how much larger each reward is than the mean of the *other* rewards of "
    "its group.",
    minutes=8,
    difficulty=2,
    solution=leave_one_out,
    hints=(
        "`rewards.reshape(-1, group_size)` has a group in each row.",
        "The sum of the others is the sum of the group without me: `groups.sum(axis=1, keepdims=True) - groups`. "
        "How many others are there?",
        "At the end go back to one axis: `.reshape(-1)`.",
    ),
    cases=(
        (np.array([3.0, 0.0, 0.0]), 3),
        (np.array([0.5, 1.25, -1.0, 2.0, 2.0, 2.5]), 3),
        (np.array([0.5, 1.25, -1.0, 2.0, 2.0, 2.5]), 2),
        (np.array([1.0, 1.0, 1.0, 1.0]), 4),
        (np.array([1, 0, 0, 1, 1, 0, 0, 0]), 4),
        (np.array([0.75, 0.25]), 2),
        (np.array([0.5, 1.0, -0.25]), 3),  # a shape from an earlier case, to catch results cached by shape
        *drawn(3, lambda rng: (rng.normal(size=12) + 3, int(rng.choice([2, 3, 4, 6])))),
    ),
    mistakes=slips(
        leave_one_out,
        r"""
@ others = (groups.sum(axis=1, keepdims=True) - groups) / (group_size - 1)
own reward in the mean (2)
+ others = groups.mean(axis=1, keepdims=True)
! You subtracted the mean of the whole group, which includes the reward itself. Leave that reward out.
divided by all (2)
+ others = (groups.sum(axis=1, keepdims=True) - groups) / group_size
! You divided the sum of the others by the size of the whole group, but there is one fewer of them.

the whole batch
- groups = rewards.reshape(-1, group_size)
- others = (groups.sum(axis=1, keepdims=True) - groups) / (group_size - 1)
+ groups = rewards.reshape(1, -1)
+ others = (groups.sum(axis=1, keepdims=True) - groups) / (rewards.size - 1)
! You compared each reward with all others in the batch. Only the rewards of the same group belong to the same question.
every group_size-th
- groups = rewards.reshape(-1, group_size)
+ groups = rewards.reshape(group_size, -1).T
- return (groups - others).reshape(-1)
+ return (groups - others).T.reshape(-1)
! The first `group_size` rewards are the first group. Your groups are spread over the whole batch.

@ return (groups - others).reshape(-1)
the others' mean (2)
+ return others.reshape(-1)
! That is the mean of the others. Return how much *larger* the reward is.
the others minus me (2)
+ return (others - groups).reshape(-1)
! Your sign is the wrong way round: a reward above the others' mean gets a number above 0.
whole numbers (2)
+ return (groups - others).astype(rewards.dtype).reshape(-1)
! The rewards 0 and 1 are whole numbers, and you stored the result in an array of whole numbers too. The results have
! decimals.
a row for each group (3)
+ return (groups - others)
! The numbers are right. Return them as one row [B], like the rewards.
""",
    ),
    also_right=r"""
# from the group mean
def from_the_group_mean(rewards, group_size):
    groups = np.asarray(rewards, float).reshape(-1, group_size)
    return ((groups - groups.mean(axis=1)[:, None]) * group_size / (group_size - 1)).ravel()
# one out at a time
def one_out_at_a_time(rewards, group_size):
    return [
        float(own) - float(np.delete(rewards[start : start + group_size], place).mean())
        for start in range(0, len(rewards), group_size)
        for place, own in enumerate(rewards[start : start + group_size])
    ]
""",
    also_wrong=r"""
# only whole numbers
lambda rewards, group_size: leave_one_out(rewards.astype(int), group_size)
# normalized
- return (groups - others).reshape(-1)
+ return ((groups - others) / (groups.std(axis=1, keepdims=True) + 1e-4)).reshape(-1)
# centred in place
- return (groups - others).reshape(-1)
+ result = (groups - others).reshape(-1)
+ rewards -= rewards.mean()
+ return result
! new numbers in what it was given
# one buffer
def into_one_buffer(rewards, group_size, buffer=np.empty(64)):
    buffer[: rewards.size] = leave_one_out(rewards, group_size)
    return buffer[: rewards.size]
! a later call wrote over it
""",
    run=_coarse,
    explain=(
        "The same numbers come from a shorter formula: group_size / (group_size - 1) times (reward minus the mean "
        "of the whole group)."
    ),
)


# -- sequences --------------------------------------------------------------------------------------------------------


def sequence_score(table, tokens):
    """The gradient [V + 1, V] of the log-probability of `tokens` with respect to the logits."""
    score = np.zeros_like(table)
    previous = len(table) - 1  # the start
    for token in tokens:
        score[previous] -= softmax(table[previous])
        score[previous, token] += 1
        previous = token
    return score


def _table(rng):
    letters = int(rng.integers(2, 5))
    return rng.normal(size=(letters + 1, letters)) * 1.2, rng.integers(0, letters, int(rng.integers(1, 7))).tolist()


THREE_ROWS = np.array([[0.5, -0.25], [1.0, 0.0], [-0.75, 0.25]])

SEQUENCE = Exercise(
    "15.7",
    "The score of a word",
    "A policy writes words over V letters. Row v of its `table` [V + 1, V] holds the logits of the letter that "
    "follows letter v, and the last row holds those of the first letter. Write `sequence_score(table, tokens)`: the "
    "gradient [V + 1, V] of the log-probability of the word `tokens` (a list of letters, each 0 to V - 1) with "
    "respect to the table.",
    minutes=12,
    difficulty=2,
    solution=sequence_score,
    hints=(
        "The log-probability of a word is a sum over its letters, so its gradient is a sum too. Each letter adds "
        "something to one row, the row of the letter before it.",
        "You know what a letter adds to that row: the one-hot of the letter minus the softmax of the row. A row "
        "that is used twice gets both contributions.",
        "Begin with `previous = len(table) - 1`, the last row, and at the end of each round `previous = token`.",
    ),
    cases=(
        (np.zeros((3, 2)), [0, 1]),
        (THREE_ROWS, [1, 1, 1, 0]),
        (THREE_ROWS, [0]),
        (THREE_ROWS, [0, 1, 0, 1, 0]),
        (np.array([[0.5], [0.25]]), [0, 0]),
        (np.array([[1.5, -0.5, 0.0], [0.0, 900.0, 901.0], [0.25, 0.5, -1.0], [2.0, 0.0, 1.0]]), [2, 1, 2, 2]),
        *drawn(3, _table),
    ),
    mistakes=slips(
        sequence_score,
        r"""
the last visit only (2)
- score[previous] -= softmax(table[previous])
+ score[previous] = -softmax(table[previous])
! If a row is used twice, yours keeps only the last letter's contribution. Add them up, as for every value that is used
! twice.

@ previous = len(table) - 1  # the start
no start (3)
+ previous, tokens = tokens[0], tokens[1:]
! The first letter was drawn too, from the last row of the table.
start in row 0 (3)
+ previous = 0  # the start
! You scored the first letter with row 0, which is for letters that follow letter 0. The first letter uses the last row.

the start stays (3)
- previous = token
! You scored every letter with the row of the first letter. After a letter, use that letter's own row.
a row too late
  for token in tokens:
+     previous = token
! You scored each letter with its own row. It was drawn from the row of the letter *before* it.
one-hot alone (2)
- score[previous] -= softmax(table[previous])
! The written letters go up and nothing goes down. Each letter contributes its one-hot minus the softmax of the row it
! was drawn from.

@ return score
a mean
+ return score / len(tokens)
! That is the mean over the letters. The log-probability of the word is their sum.
downhill (2)
+ return -score
! Your sign is the wrong way round: raising the logit of a written letter makes the word likelier.

the last letter only
- for token in tokens:
+ previous = [previous, *tokens][-2]
+ for token in tokens[-1:]:
! In your answer only the last letter counts. All letters were drawn, and together they made the word.
one addition for each place (2)
  previous = len(table) - 1  # the start
+ rows = [previous, *tokens[:-1]]
+ score[rows, tokens] += 1
- score[previous, token] += 1
or
- for token in tokens:
-     score[previous] -= softmax(table[previous])
-     score[previous, token] += 1
-     previous = token
- return score
+ score[[previous, *tokens[:-1]], tokens] += 1
+ return score - score.sum(axis=1, keepdims=True) * softmax(table)
! A letter that follows the same letter twice counts only once: `score[rows, tokens] += 1` adds to each element a single
! time. `np.add.at(score, (rows, tokens), 1)` adds every time.
""",
    ),
    also_right=r"""
# autograd
import torch
def word_by_autograd(table, tokens):
    tensor = torch.tensor(table, requires_grad=True)
    rows = torch.tensor([len(table) - 1, *tokens[:-1]])
    torch.log_softmax(tensor, -1)[rows, torch.tensor(tokens)].sum().backward()
    return tensor.grad.numpy()
# matrices
def word_by_matrices(table, tokens):
    rows = np.eye(len(table))[[len(table) - 1, *tokens[:-1]]]
    return rows.T @ (np.eye(table.shape[1])[tokens] - softmax(rows @ table))
""",
    also_wrong=r"""
# signs
- return score
+ return np.sign(score)
""",
    run=_coarse,
)


def reinforce_step(table, words, rewards, learning_rate):
    """The table [V + 1, V] after one step on a group of words with their rewards [N]."""
    advantages = leave_one_out(rewards, len(words))
    gradient = sum(a * sequence_score(table, word) for a, word in zip(advantages, words, strict=True)) / len(words)
    return table + learning_rate * gradient


def _group(rng):
    table, _ = _table(rng)
    letters, words = table.shape[1], int(rng.integers(2, 6))
    return (
        table,
        rng.integers(0, letters, (words, 4)).tolist(),
        rng.normal(size=words) + 1,
        float(rng.uniform(0.1, 2)),
    )


STEP = Exercise(
    "15.8",
    "A step of REINFORCE",
    "Write `reinforce_step(table, words, rewards, learning_rate)`. `words` is a group of N words that were drawn "
    "from the policy, and `rewards` [N] holds their rewards. Return the *new* table: one step uphill along the "
    "mean, over the words, of advantage times score, with `leave_one_out` (15.6) for the advantages and "
    "`sequence_score` (15.7) for the scores. Do not change `table` itself.",
    minutes=10,
    difficulty=2,
    solution=reinforce_step,
    hints=(
        "First the advantages: all words are one group, so `leave_one_out(rewards, len(words))`.",
        "`gradient = sum(a * sequence_score(table, word) for a, word in zip(advantages, words)) / len(words)`.",
        "The reward should grow, so add the gradient. Make a new array; `table += ...` would change the input.",
    ),
    cases=(
        (THREE_ROWS, [[0, 1], [1, 1]], np.array([1.0, 0.0]), 0.5),
        (THREE_ROWS, [[0, 1, 1], [1, 1, 0], [0, 0, 0]], np.array([0.5, -1.25, 2.0]), 0.25),
        (THREE_ROWS, [[0, 1], [1, 1], [1, 0]], np.array([0.75, 0.75, 0.75]), 1.0),
        (THREE_ROWS, [[0, 1], [1, 1], [0, 1]], np.array([1.0, 0.5, 0.25]), 0.5),  # a word that was drawn twice
        (THREE_ROWS, [[0, 1], [1, 1], [0, 0]], np.array([1.0, 0.5, 0.0]), 0.5),  # a word of advantage 0
        *drawn(3, _group),
    ),
    mistakes=slips(
        reinforce_step,
        r"""
@ return table + learning_rate * gradient
downhill (3)
+ return table - learning_rate * gradient
! Your step goes downhill. The gradient is that of the reward, which should grow.
no learning rate (3)
+ return table + gradient
! You do not use the learning rate.
the gradient alone (3)
+ return gradient
! That is the gradient. Return the table after the step.

@ advantages = leave_one_out(rewards, len(words))
no baseline
+ advantages = rewards
! You used the rewards as they are. Compare each with the others first.
group mean
+ advantages = rewards - rewards.mean()
! That is the group's mean with the word's own reward in it, which shortens the step. Use `leave_one_out`.

@ gradient = sum(a * sequence_score(table, word) for a, word in zip(advantages, words, strict=True)) / len(words)
a sum (2)
+ gradient = sum(a * sequence_score(table, word) for a, word in zip(advantages, words, strict=True))
! Your step is N times too long: take the mean over the words.
a word that was drawn twice counts once (2)
+ once = dict(zip(map(tuple, words), advantages, strict=True))
+ gradient = sum(a * sequence_score(table, word) for word, a in once.items()) / len(words)
! In your answer a word that was drawn twice counts once. Both draws count, each with its own reward.
words of advantage 0 not counted (2)
+ gradient = sum(a * sequence_score(table, word) for a, word in zip(advantages, words, strict=True))
+ gradient = gradient / max(np.count_nonzero(advantages), 1)
! You divided by the number of words whose advantage is not 0. The mean is over all words that were drawn.

a table that moves between the words (2)
- gradient = sum(a * sequence_score(table, word) for a, word in zip(advantages, words, strict=True)) / len(words)
- return table + learning_rate * gradient
+ for a, word in zip(advantages, words, strict=True):
+     table = table + learning_rate * a * sequence_score(table, word) / len(words)
+ return table
! You scored the second word with a table that the first word had already moved. All words were drawn from the same
! table: add up the whole gradient first, then take the step.
""",
    ),
    also_right=r"""
# stacks
def step_with_stacks(table, words, rewards, learning_rate):
    scores = np.stack([sequence_score(table, word) for word in words])
    return table + learning_rate * np.einsum("n,nij->ij", leave_one_out(rewards, len(words)), scores) / len(words)
""",
    also_wrong=r"""
# in place
- return table + learning_rate * gradient
+ table += learning_rate * gradient
+ return table
! new numbers in what it was given
""",
    run=_coarse,
)


# -- draws of an older policy -----------------------------------------------------------------------------------------


def reused_gradient(logits, old_logits, actions, rewards):
    """The gradient [V] of softmax(logits)'s expected reward, from draws of softmax(old_logits)."""
    probs, old_probs = softmax(logits), softmax(old_logits)
    ratios = probs[actions] / old_probs[actions]
    scores = np.eye(len(logits))[actions] - probs
    return ((ratios * rewards)[:, None] * scores).mean(axis=0)


def _old_draws(rng):
    logits, actions, rewards = _draws(rng)
    return logits, logits + rng.normal(size=logits.size) * 0.5, actions, rewards


REUSED = Exercise(
    "15.9",
    "Old draws, new policy",
    "The N `actions` were drawn from softmax(old_logits), and now the policy is softmax(logits). Write "
    "`reused_gradient(logits, old_logits, actions, rewards)`: the estimate [V] of the gradient of the *new* "
    "policy's expected reward. Each draw counts with its ratio, which says how much likelier it is now than when it "
    "was drawn: return the mean of ratio times reward times the gradient of log softmax(logits)[action]. Logits may be "
    "as large as 1000.",
    minutes=10,
    difficulty=2,
    solution=reused_gradient,
    hints=(
        "It is 15.3 with a different factor for each draw: `ratio * reward` instead of `reward`.",
        "`ratios = softmax(logits)[actions] / softmax(old_logits)[actions]`, one for each draw.",
        "The scores are those of the policy that we improve, `logits`. And the mean divides by N, whatever the sum "
        "of the ratios is.",
    ),
    cases=(
        (BY_HAND, np.zeros(3), np.array([2, 0, 1]), np.array([3.0, 0.0, 1.0])),
        (np.array([0.5, -0.5]), np.array([0.5, -0.5]), np.array([1, 0]), np.array([0.75, 2.0])),
        (np.array([0.5, -0.25]), np.array([-1.0, 0.25]), np.array([1, 1, 0]), np.array([-1.5, 2.25, 0.5])),
        (np.array([1000.0, 999.0]), np.array([1001.0, 999.5]), np.array([1, 0]), np.array([1.0, 0.5])),
        (
            np.array([2.5, -1.0]),
            np.array([-2.0, 1.0]),
            np.array([0, 0, 1]),
            np.array([0.5, -0.75, 1.5]),
        ),  # a ratio of about 20
        (np.array([-3.5]), np.array([0.5]), np.array([0, 0]), np.array([0.75, 2.0])),
        (np.array([0.5, -0.5]), np.array([-15.0, 15.0]), np.array([0, 1]), np.array([0.75, 2.0])),  # a very rare arm
        *drawn(3, _old_draws),
    ),
    mistakes=slips(
        reused_gradient,
        r"""
@ return ((ratios * rewards)[:, None] * scores).mean(axis=0)
no ratio
+ return (rewards[:, None] * scores).mean(axis=0)
! The ratio is missing: arms that were drawn too often for today's policy count too much.
divided by the sum of the ratios (3)
+ return ((ratios * rewards)[:, None] * scores).sum(axis=0) / ratios.sum()
! If you divide by the sum of the ratios, the estimate is steadier but no longer right on average. Divide by N.
a sum (3)
+ return ((ratios * rewards)[:, None] * scores).sum(axis=0)
! That is the sum over the draws. Return the mean.

@ ratios = probs[actions] / old_probs[actions]
ratio upside down (2)
+ ratios = old_probs[actions] / probs[actions]
! Your ratio is upside down: an arm that is likelier now than before has to count *more*, because it was drawn too
! rarely.
difference of logits (2)
+ ratios = np.exp(logits[actions] - old_logits[actions])
! Logits are not log-probabilities: exp of their difference is off by the ratio of the two softmax denominators.
log ratio (2)
+ ratios = np.log(probs[actions] / old_probs[actions])
! That is the logarithm of the ratio. It is 0 where nothing has changed, so nothing would be learned.
a small number in the denominator (2)
+ ratios = probs[actions] / (old_probs[actions] + 1e-8)
! You added a small number to the denominator. An arm that was drawn has a probability above 0, however rare it is, and
! next to the probability of a rare arm your number is not small.
a clipped ratio
+ ratios = np.clip(probs[actions] / old_probs[actions], 0.8, 1.2)
! You clipped the ratio to 0.8 and 1.2, as PPO does. Here every draw counts with its full ratio; otherwise the mean is
! off.

old scores (3)
- scores = np.eye(len(logits))[actions] - probs
+ scores = np.eye(len(logits))[actions] - old_probs
! You used the scores of the old policy. We want to improve the new one.
overflow
- probs, old_probs = softmax(logits), softmax(old_logits)
+ with np.errstate(all="ignore"):
+     powers, old_powers = np.exp(logits), np.exp(old_logits)
+     probs, old_probs = powers / powers.sum(), old_powers / old_powers.sum()
! `exp(1000)` is infinite, and infinity divided by infinity is nan. `softmax(logits)` from the set-up cell subtracts the
! largest logit first.
""",
    ),
    also_right=r"""
# logarithms
def ratios_by_logs(logits, old_logits, actions, rewards):
    now, old = (z - z.max() - np.log(np.exp(z - z.max()).sum()) for z in (logits, old_logits))
    return score_function_gradient(logits, actions, np.exp(now[actions] - old[actions]) * rewards)
""",
    also_wrong=r"""
# at most ten
- ratios = probs[actions] / old_probs[actions]
+ ratios = np.minimum(probs[actions] / old_probs[actions], 10)
""",
    run=_coarse,
)
