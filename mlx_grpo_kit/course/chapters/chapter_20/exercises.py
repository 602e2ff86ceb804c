"""Exercises of notebook 20: tests that catch what curves hide, and runs to diagnose."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import numbers
from collections.abc import Mapping
from statistics import mean, stdev
from types import MappingProxyType

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_20 import loop
from mlx_grpo_kit.course.chapters.chapter_20.frozen import frozen_batch
from mlx_grpo_kit.course.chapters.chapter_20.museum import verdict
from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, Mistake
from mlx_grpo_kit.course.slips import edited, slips, variants
from mlx_grpo_kit.grpo import GRPOLossConfig, compute_advantages, grpo_loss_and_metrics, per_token_logps
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition

PASSED, REFUSED = Told("passed"), Told("refused")


def _verdict(test, part):
    """Return `passed` or `refused`, the test's verdict on a part, or anything else that the test returned."""
    answer = verdict(test, part)
    return (REFUSED, PASSED)[answer] if isinstance(answer, bool) else answer


def _named(name, what, function):
    """A part with a name and a description, for messages."""
    function.__name__, function.__doc__ = name, what
    return function


def _sick(part, text):
    """Sick parts, from diffs of a healthy one: `# name`, the diff, `! description` (see `slips.variants`)."""
    return [(_named(name, what, function),) for name, function, what in variants(part, text)]


# -- the scorer -------------------------------------------------------------------------------------------------------


def scores_are_right(score):
    """True if `score` returns the sampler's log-probability of every sampled token."""
    batch = frozen_batch()
    logps = score(batch.config, batch.params, batch.prompts, batch.ids, batch.temperature)
    apart = mx.where(batch.is_token, mx.abs(logps - batch.logps), 0.0)
    return apart.max().item() < 1e-3


def kits_own(config, params, prompts, completions, temperature):
    """the scorer of the kit, per_token_logps, which returns 0 after the end token"""
    batch = frozen_batch()
    lengths = batch.is_token.sum(axis=1).tolist()
    rows = [row[:length] for row, length in zip(completions.tolist(), lengths)]
    return per_token_logps(config, params, prompts, rows, temperature)[0]


def right_on_the_whole(config, params, prompts, completions, temperature):
    """a scorer that returns each answer's log-probabilities in reverse order, so that only their sum is right"""
    logps, counts = loop.score(config, params, prompts, completions, temperature), frozen_batch().is_token.sum(axis=1)
    rows = [row[:n][::-1] + row[n:] for row, n in zip(logps.tolist(), counts.tolist())]
    return mx.array(rows)


def nothing_behind(config, params, prompts, completions, temperature):
    """the scorer of the loop, but with nan after the end token"""
    logps = loop.score(config, params, prompts, completions, temperature)
    return mx.where(frozen_batch().is_token, logps, mx.nan)


def last_token_off(config, params, prompts, completions, temperature):
    """right except for one token, the first of the last answer, which is 0.01 too low"""
    logps = loop.score(config, params, prompts, completions, temperature)
    last = mx.arange(logps.shape[0])[:, None] == logps.shape[0] - 1
    return mx.where(last & (mx.arange(logps.shape[1]) == 0), logps - 0.01, logps)


def one_is_no_number(config, params, prompts, completions, temperature):
    """right except for the first token of the last answer, which is nan"""
    logps = loop.score(config, params, prompts, completions, temperature)
    last = mx.arange(logps.shape[0])[:, None] == logps.shape[0] - 1
    return mx.where(last & (mx.arange(logps.shape[1]) == 0), mx.nan, logps)


def right_at_first(config, params, prompts, completions, temperature):
    """right for the first token of each answer, but 0.3 too low for the others"""
    logps = loop.score(config, params, prompts, completions, temperature)
    return mx.where(mx.arange(logps.shape[1]) == 0, logps, logps - 0.3)


SCORES = Exercise(
    "20.1",
    "A witness for the scorer",
    "Write a test, `scores_are_right(score)`. `score(config, params, prompts, completions, temperature)` is a "
    "function like `loop.score`: it returns log-probabilities [B, T]. `frozen_batch()` gives six sampled answers, "
    "and in `logps` the log-probability with which the sampler drew each token. Return True for a scorer that agrees "
    "to about 0.001, and False for any other. Only the positions of `is_token` count: after the end token a scorer "
    "may return anything.",
    minutes=10,
    difficulty=2,
    solution=scores_are_right,
    hints=(
        "Call `score(batch.config, batch.params, batch.prompts, batch.ids, batch.temperature)` and compare with "
        "`batch.logps`. Which positions may differ?",
        "`mx.where(batch.is_token, mx.abs(logps - batch.logps), 0.0)` is the difference where there is a token.",
        "One token that is far off is enough to refuse: look at `.max()`, not at the mean.",
    ),
    run=_verdict,
    cases=(
        (_named("healthy", "the scorer of the loop", edited(loop.score)),),
        (kits_own,),
        *_sick(
            loop.score,
            r"""
# one_late
- logits = logits[:, start - 1 : -1] / temperature
+ logits = logits[:, start:] / temperature
! a scorer that scores token t with the logits of position t
# no_mask
- logits = qwen3_forward(config, params, ids, attention_mask=mask)
+ logits = qwen3_forward(config, params, ids)
! a scorer without an attention mask, which reads padding as text
# no_temperature
- logits = logits[:, start - 1 : -1] / temperature
+ logits = logits[:, start - 1 : -1]
! the temperature is forgotten
# twice
- logits = logits[:, start - 1 : -1] / temperature
+ logits = logits[:, start - 1 : -1] / temperature / temperature
! a scorer that divides by the temperature twice
# right_padded
- prompt_ids, prompt_mask = pad(prompts, "left")
+ prompt_ids, prompt_mask = pad(prompts, "right")
! a scorer that pads prompts on the right
# logits
- logps = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
+ logps = logits
! raw logits
""",
        ),
        (right_on_the_whole,),
        (right_at_first,),
        (nothing_behind,),
        (last_token_off,),
        (one_is_no_number,),
    ),
    mistakes=slips(
        scores_are_right,
        r"""
@ return apart.max().item() < 1e-3
first row
+ return apart[0].max().item() < 1e-3
! Your test looks only at the first row. Its prompt is the longest and has no padding, so a scorer that reads padding as
! text is right there. Look at all rows.
too forgiving (3)
+ return apart.max().item() < 1.5
! Your tolerance is too large. A forgotten temperature changes a log-probability by a few tenths; rounding changes it by
! 0.00001.
the mean (3)
+ return (apart.sum() / batch.is_token.sum()).item() < 1e-3
! One token that is 0.01 off gets through: either it hides in a mean over right tokens, or your bound is too loose. Look
! at the largest difference, and allow 0.001.
nan is accepted (3)
+ return not (apart > 1e-3).any().item()
! nan > 0.001 is False, so a scorer that returns nan passes. Ask whether all differences *are* small, not whether one is
! large.
only negative (2)
+ return logps.max().item() <= 0
! The log-probability of a wrong token is not above 0 either. Compare with the sampler's log-probabilities.
first token
+ return apart[:, 0].max().item() < 1e-3
! You look only at the first token of each answer. A scorer may go wrong after it.

@ apart = mx.where(batch.is_token, mx.abs(logps - batch.logps), 0.0)
padding counted
+ apart = mx.abs(logps - batch.logps)
! Your test also compares the positions after the end token. Nothing was drawn there, so a right scorer may return
! anything.
times the mask (2)
+ apart = mx.abs(logps - batch.logps) * batch.is_token
! 0 times nan is nan (16.3), so your test refuses a right scorer that returns nan after the end token. `mx.where`
! selects instead of multiplying.

@ apart = mx.where(batch.is_token, mx.abs(logps - batch.logps), 0.0)
@ return apart.max().item() < 1e-3
mean with signs (3)
+ apart = mx.where(batch.is_token, (logps - batch.logps), 0.0)
+ return apart.mean().item() < 1e-3
! You take the mean of signed differences: a value that is too high in one position makes up for one that is too low in
! another, and a scorer that is always too low passes.
the sum (3)
+ apart = mx.where(batch.is_token, logps - batch.logps, 0.0)
+ return abs(apart.sum().item()) < 1e-3
! You compare sums: a value that is too high in one position makes up for one that is too low in another. Compare token
! by token.
""",
    ),
    also_right=r"""
# assert
def scores_by_assert(score):
    batch = frozen_batch()
    logps = np.array(score(batch.config, batch.params, batch.prompts, batch.ids, batch.temperature))
    for row in range(len(batch.prompts)):
        for place in range(batch.ids.shape[1]):
            if batch.is_token[row, place].item():
                assert abs(logps[row, place] - batch.logps[row, place].item()) < 0.001
""",
    also_wrong=r"""
# no return
- return apart.max().item() < 1e-3
+ apart.max().item() < 1e-3
! returned None
""",
    explain=(
        "This one test finds all three bugs of the museum's first room, and others that the museum does not show. It "
        "needs no known answer, only two ways to the same number. TRL logs the same difference in every run that "
        "samples with vLLM, as `sampling/sampling_logp_difference`."
    ),
)


# -- the mask ---------------------------------------------------------------------------------------------------------


def mask_is_right(mask):
    """True if `mask` counts exactly the tokens up to the first end token, including that one."""
    ids = mx.array([[5, 6, 1, 1], [5, 6, 7, 8], [1, 1, 1, 1], [5, 1, 7, 1]])
    right = mx.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]])
    return bool((mask(ids, 1) == right).all())


def by_hand(ids, end):
    """a mask built row by row, with whole numbers 0 and 1"""
    rows = []
    for row in ids.tolist():
        length = row.index(end) + 1 if end in row else len(row)
        rows.append([1] * length + [0] * (len(row) - length))
    return mx.array(rows)


def first_end_by_argmax(ids, end):
    """a mask that finds the first end token with argmax, which returns 0 if there is none"""
    first = mx.argmax(ids == end, axis=1)
    return mx.arange(ids.shape[1])[None] <= first[:, None]


def zero_means_none(ids, end):
    """a mask by argmax that reads a 0 as a completion that never ends"""
    first = mx.argmax(ids == end, axis=1)
    return mx.arange(ids.shape[1])[None] <= mx.where(first == 0, ids.shape[1], first)[:, None]


def counts_again(ids, end):
    """every token that is not the end token, and the first end token"""
    is_end = (ids == end).astype(mx.int32)
    return (is_end == 0) | (mx.cumsum(is_end, axis=1) == 1)


def up_to_the_last_end(ids, end):
    """every token up to the last end token"""
    rows = [max([place for place, token in enumerate(row) if token == end], default=len(row)) for row in ids.tolist()]
    return mx.arange(ids.shape[1])[None] <= mx.array(rows)[:, None]


MASK = Exercise(
    "20.2",
    "Four rows for a mask",
    "Write `mask_is_right(mask)`. `mask(ids, end)` takes completions [B, T], padded with the end token, and returns 1 "
    "or True for every token up to the first end token, including that one, and 0 or False after it. If a completion "
    "has no end token, all of its tokens count. Choose rows that expose every wrong mask that you can think of. "
    "Return True or False.",
    minutes=10,
    difficulty=2,
    solution=mask_is_right,
    hints=(
        "Write down ids and the right mask by hand, as two small arrays, and compare: "
        "`bool((mask(ids, 1) == right).all())`.",
        "Which rows are special? One that ends in the middle; one that never ends; one that ends at once.",
        "And one with a token after the first end token, and a second end token after that: a sampler that continues "
        "for the longest row may leave such tokens.",
    ),
    run=_verdict,
    cases=(
        (_named("healthy", "the mask of the loop", edited(loop.completion_mask)),),
        (by_hand,),
        *_sick(
            loop.completion_mask,
            r"""
# not_the_end
- return ended_before == 0
+ return ids != end
! every token that is not the end token
# all_of_it
- return ended_before == 0
+ return ids == ids
! a mask that is True everywhere
# one_more
- ended_before = mx.cumsum(is_end, axis=1) - is_end
+ ended_before = mx.cumsum(is_end, axis=1) - 2 * is_end
! one position too many
""",
        ),
        (first_end_by_argmax,),
        (zero_means_none,),
        (counts_again,),
        (up_to_the_last_end,),
    ),
    mistakes=slips(
        mask_is_right,
        r"""
@ ids = mx.array([[5, 6, 1, 1], [5, 6, 7, 8], [1, 1, 1, 1], [5, 1, 7, 1]])
@ right = mx.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0]])
no row that never ends (2)
+ ids = mx.array([[5, 6, 1, 1], [1, 1, 1, 1], [5, 1, 7, 1]])
+ right = mx.array([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]])
! All of your rows end. A mask that looks for the first end token with argmax gets 0 if there is none, and drops the
! whole completion.
no row that ends at once (2)
+ ids = mx.array([[5, 6, 1, 1], [5, 6, 7, 8], [5, 1, 7, 1]])
+ right = mx.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]])
! None of your rows ends at once. A mask that takes position 0 for "no end" counts such a row completely.
nothing after the end (3)
+ ids = mx.array([[5, 6, 1, 1], [5, 6, 7, 8], [1, 1, 1, 1]])
+ right = mx.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
! After the end token your rows contain only padding. Put a token there, and another end token after that.

only the number of tokens
- return bool((mask(ids, 1) == right).all())
+ return bool(mask(ids, 1).sum() > 0)
! Your test only asks whether the mask counts anything. Compare it with a mask that you made by hand.
""",
    ),
    also_right=r"""
# lists
def mask_in_lists(mask):
    ids = [[9, 9, 9, 2], [2, 9, 2, 9], [9, 2, 2, 2], [9, 9, 9, 9], [9, 2, 9, 2]]
    lengths = [4, 1, 2, 4, 2]
    return all(
        list(map(bool, row)) == [place < length for place in range(4)]
        for row, length in zip(mask(mx.array(ids), 2).tolist(), lengths, strict=True)
    )
""",
    also_wrong=r"""
# one row
lambda mask: mask(mx.array([[5, 1, 1]]), 1).tolist() == [[1, 1, 0]]
# booleans only
- return bool((mask(ids, 1) == right).all())
+ return mask(ids, 1).dtype == mx.bool_
""",
    explain=(
        "People write `ids != end` when the padding token is the end token, as it is for many models. That masks the "
        "end token itself, so the policy never learns when to stop."
    ),
)


# -- advantages -------------------------------------------------------------------------------------------------------


def advantages_are_right(advantages):
    """True if `advantages` compares each completion with the others of its prompt."""
    groups = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5], [3.0, 1.0, 0.0, 1.0]]
    found = np.array(advantages(np.array(groups).reshape(-1), 4)).reshape(-1, 4)
    right = [[(reward - mean(group)) / (stdev(group) + 1e-4) for reward in group] for group in groups]
    return bool(np.allclose(found, right, atol=1e-3))


def kits_advantages(rewards, group):
    """the kit's compute_advantages, which returns an MLX array of float32"""
    return compute_advantages(rewards, group)


def spread_of_the_batch(rewards, group):
    """the distance from the group's mean, divided by the standard deviation of the whole batch"""
    groups = rewards.reshape(-1, group)
    return ((groups - groups.mean(axis=1, keepdims=True)) / (rewards.std(ddof=1) + 1e-4)).reshape(-1)


def nothing_added(rewards, group):
    """nothing added to the standard deviation: 0 / 0 where all rewards of a group are equal"""
    with np.errstate(invalid="ignore"):
        groups = rewards.reshape(-1, group)
        return ((groups - groups.mean(1, keepdims=True)) / groups.std(1, ddof=1, keepdims=True)).reshape(-1)


ADVANTAGES = Exercise(
    "20.3",
    "Groups that expose mistakes",
    "Write `advantages_are_right(advantages)`. `advantages(rewards, group)` takes an array of rewards [B], in which "
    "the `group` rewards of one prompt come one after the other, and returns [B] numbers: the distance from the "
    "group's mean, divided by the group's standard deviation (dividing by n - 1) plus 1e-4. Return True or False; "
    "accept differences up to 0.001.",
    minutes=12,
    difficulty=2,
    solution=advantages_are_right,
    hints=(
        "`statistics.mean` and `statistics.stdev` (which divides by n - 1) are right, and somebody else wrote them. "
        "Choose groups, compute, and compare with `np.allclose(..., atol=1e-3)`.",
        "With only one group, its mean is the mean of the batch. How many groups do you need, and may they have the "
        "same mean?",
        "Choose a number of groups that differs from the group size, and one group whose rewards are all equal.",
    ),
    run=_verdict,
    cases=(
        (_named("healthy", "the advantages of the loop", edited(loop.advantages)),),
        (kits_advantages,),
        *_sick(
            loop.advantages,
            r"""
# n
- return (centred / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1)
+ return (centred / (groups.std(axis=1, ddof=0, keepdims=True) + 1e-4)).reshape(-1)
! advantages divided by n, not by n - 1
# whole_batch
- centred = groups - groups.mean(axis=1, keepdims=True)
- return (centred / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1)
+ centred = groups - groups.mean(keepdims=True)
+ return (centred / (groups.std(ddof=1, keepdims=True) + 1e-4)).reshape(-1)
! one mean and one deviation for the whole batch
# across
- groups = rewards.reshape(-1, group)
- centred = groups - groups.mean(axis=1, keepdims=True)
- return (centred / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1)
+ groups = rewards.reshape(group, -1)
+ centred = groups - groups.mean(axis=0, keepdims=True)
+ return (centred / (groups.std(axis=0, ddof=1, keepdims=True) + 1e-4)).reshape(-1)
! groups across prompts
# shape
- groups = rewards.reshape(-1, group)
+ groups = rewards.reshape(group, -1)
! the group size as the number of groups
# no_division
- return (centred / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1)
+ return (centred).reshape(-1)
! advantages without a division
# upside_down
- centred = groups - groups.mean(axis=1, keepdims=True)
+ centred = -groups + groups.mean(axis=1, keepdims=True)
! the mean minus the reward
""",
        ),
        (spread_of_the_batch,),
        (nothing_added,),
    ),
    mistakes=slips(
        advantages_are_right,
        r"""
@ groups = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5], [3.0, 1.0, 0.0, 1.0]]
one group (2)
+ groups = [[1.0, 0.0, 0.0, 0.0]]
! With one group, the group is the batch. A function that takes the mean over the whole batch passes your test.
no tied group (3)
+ groups = [[1.0, 0.0, 0.0, 0.0], [3.0, 1.0, 0.0, 1.0]]
! Late in a run most groups are tied: what is 0 divided by 0? Either none of your groups is tied, or your comparison
! ignores nan, as `max(...) < 0.001` may.

as many groups as members (3)
- groups = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5], [3.0, 1.0, 0.0, 1.0]]
- found = np.array(advantages(np.array(groups).reshape(-1), 4)).reshape(-1, 4)
+ groups = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [3.0, 1.0, 0.0]]
+ found = np.array(advantages(np.array(groups).reshape(-1), 3)).reshape(-1, 3)
! You have as many groups as a group has members. A function that confuses the two passes.

@ return bool(np.allclose(found, right, atol=1e-3))
sums to 0
+ return bool(np.allclose(found.sum(axis=1), 0, atol=1e-3))
! A group's advantages also sum to 0 without a division, and with a wrong one.
only signs
+ return bool(np.array_equal(np.sign(found), np.sign(right)))
! Signs say which answer is better, but not by how much. Compare the numbers.

deviation of n
- right = [[(reward - mean(group)) / (stdev(group) + 1e-4) for reward in group] for group in groups]
+ right = [[(reward - mean(group)) / (float(np.std(group)) + 1e-4) for reward in group] for group in groups]
! `np.std` divides by n. GRPO in TRL and in the kit divides by n - 1, and your test refuses it.
""",
    ),
    also_right=r"""
# torch
import torch
def advantages_by_torch(advantages):
    rewards = torch.tensor([[0.2, 0.9, 0.4], [3.0, 3.0, 3.0], [1.0, 0.0, 5.0], [0.0, 0.0, 1.0]])
    right = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    found = torch.tensor(np.array(advantages(rewards.numpy().reshape(-1).astype(float), 3), dtype=np.float32))
    return torch.allclose(found, right.reshape(-1), atol=1e-3)
""",
    also_wrong=r"""
# without rounding
def exact_advantages(advantages):
    return list(advantages(np.array([1.0, 0.0, 2.0, 2.0, 5.0, 1.0]), 2)) == [0.7070067953, -0.7070067953, 0, 0, 1, -1]
# max and nan
def advantages_with_a_maximum(advantages):
    groups = [[0.0, 1.0, 3.0], [2.0, 2.0, 2.0]]
    found = np.array(advantages(np.array(groups).reshape(-1), 3)).tolist()
    right = [*((reward - 4 / 3) / 1.527625 for reward in groups[0]), 0.0, 0.0, 0.0]
    return max(abs(one - other) for one, other in zip(found, right, strict=True)) < 1e-3

! ignores nan
""",
    explain=(
        "No curve shows n instead of n - 1: for groups of eight it makes all advantages 7% larger, and the optimizer "
        "removes that factor. It matters when you compare with somebody else's program. Groups that mix prompts do "
        "harm at once."
    ),
)


# -- the gradient -----------------------------------------------------------------------------------------------------


def gradient_is_right(loss_and_gradient):
    """True if the gradient is the slope of the loss, for each parameter."""
    params = {"a": mx.array([0.5, -1.0]), "b": mx.array(2.0)}

    def score_with(params):
        return params["a"] * params["b"]

    def loss_of(logps):
        return (logps * logps).sum()

    loss, grads = loss_and_gradient(params, score_with, loss_of)
    right = {"a": mx.array([4.0, -8.0]), "b": mx.array(5.0)}  # 2 a b^2 and 2 b (a . a)
    return loss.item() == 5.0 and all(mx.allclose(grads[name], right[name]).item() for name in right)


def two_calls(params, score_with, loss_of):
    """the loss and then, in a second call, its mx.grad"""

    def loss_fn(params):
        return loss_of(score_with(params))

    return loss_fn(params), mx.grad(loss_fn)(params)


def first_only(params, score_with, loss_of):
    """the gradient of the first parameter, and 0 for the others"""
    loss, grads = two_calls(params, score_with, loss_of)
    first = next(iter(grads))
    return loss, {name: grad if name == first else 0 * grad for name, grad in grads.items()}


def uphill(params, score_with, loss_of):
    """the gradient with the wrong sign"""
    loss, grads = two_calls(params, score_with, loss_of)
    return loss, {name: -grad for name, grad in grads.items()}


def half_as_long(params, score_with, loss_of):
    """half of the gradient"""
    loss, grads = two_calls(params, score_with, loss_of)
    return loss, {name: grad / 2 for name, grad in grads.items()}


GRADIENT = Exercise(
    "20.4",
    "Does anything move?",
    "Write `gradient_is_right(loss_and_gradient)`. `loss_and_gradient(params, score_with, loss_of)` gets a dictionary "
    "of parameters, a function from parameters to log-probabilities, and a function from log-probabilities to the "
    "loss; it returns the loss and a dictionary with its gradient. Try it on functions so small that you know the "
    "gradient, with at least two parameters, and return True or False.",
    minutes=12,
    difficulty=2,
    solution=gradient_is_right,
    hints=(
        'Take `params = {"a": mx.array([0.5, -1.0]), "b": mx.array(2.0)}`, `score_with = lambda p: p["a"] * p["b"]`, '
        "`loss_of = lambda logps: (logps * logps).sum()`.",
        "The loss is b^2 (a . a) = 5. Its slope is 2 a b^2 = (4, -8) for a, and 2 b (a . a) = 5 for b.",
        "Compare both gradients and the loss. A gradient that is merely not 0 may point uphill.",
    ),
    run=_verdict,
    cases=(
        (_named("healthy", "the function of the loop", edited(loop.loss_and_gradient)),),
        (two_calls,),
        *_sick(
            loop.loss_and_gradient,
            r"""
# outside
- def loss_fn(params):
-     logps = score_with(params)
+ logps = score_with(params)
+
+ def loss_fn(params):
! log-probabilities computed outside the differentiated function
# detached
- logps = score_with(params)
+ logps = mx.stop_gradient(score_with(params))
! log-probabilities with a stopped gradient
""",
        ),
        (first_only,),
        (uphill,),
        (half_as_long,),
    ),
    mistakes=slips(
        gradient_is_right,
        r"""
@ return loss.item() == 5.0 and all(mx.allclose(grads[name], right[name]).item() for name in right)
only the loss (3)
+ return loss.item() == 5.0
! The loss of a program that learns nothing can be right to the last digit. Look at the gradient.
not zero (3)
+ return loss.item() == 5.0 and all(mx.abs(grads[name]).sum().item() > 0 for name in right)
! A gradient that is not 0 may still point uphill. Compare with the slope.
only the direction (3)
+ return loss.item() == 5.0 and all(mx.array_equal(mx.sign(grads[name]), mx.sign(right[name])).item() for name in right)
! You look only at the direction. A gradient may point in the right direction and be too short: compare the numbers.
one parameter (2)
+ return loss.item() == 5.0 and all(mx.allclose(grads[name], right[name]).item() for name in "a")
! You look at only one parameter. What if the others do not move?
""",
    ),
    also_right=r"""
# differences
def gradient_by_differences(loss_and_gradient):
    params = {"one": mx.array([0.3, 0.7]), "two": mx.array([-0.4])}

    def loss(params):
        return (mx.sin(params["one"]) * params["two"]).sum()

    def shifted(name, place, h):
        value = np.array(params[name])
        value[place] += h
        return loss({**params, name: mx.array(value)}).item()

    _, grads = loss_and_gradient(params, lambda p: mx.sin(p["one"]) * p["two"], lambda logps: logps.sum())
    for name in params:
        for place in range(params[name].size):
            slope = (shifted(name, place, 1e-2) - shifted(name, place, -1e-2)) / 2e-2
            assert abs(grads[name][place].item() - slope) < 1e-3
""",
    also_wrong=r"""
# there is one
- return loss.item() == 5.0 and all(mx.allclose(grads[name], right[name]).item() for name in right)
+ return "a" in grads
! Look at the gradient
""",
    explain=(
        "mlx-lm-lora had this bug in a default setting: rewards, losses and saved files looked as they should, and the "
        "policy never moved. An exact 0 in `grad_norm` gives it away."
    ),
)


# -- the masked loss --------------------------------------------------------------------------------------------------


def masked_places_are_silent(policy_loss):
    """True if no value at a masked position reaches the loss or its gradient."""
    logps = mx.array([[-0.5, -1.0, -2.0], [-0.1, -0.7, -0.3]])
    mask = mx.array([[True, True, False], [True, False, False]])
    advantages = mx.array([1.0, -1.0])

    def loss_and_grad(rubbish):
        def loss_fn(logps):
            old = mx.where(mask, logps - 0.1, rubbish)
            ref = mx.where(mask, logps + 0.2, -rubbish)
            return policy_loss(logps, mx.stop_gradient(old), mx.stop_gradient(ref), advantages, mask)

        return mx.value_and_grad(loss_fn)(logps)

    loss, grad = loss_and_grad(0.0)
    for rubbish in (1.0, -1e4, 1e4):
        other_loss, other_grad = loss_and_grad(rubbish)
        if not (mx.allclose(loss, other_loss).item() and mx.allclose(grad, other_grad).item()):
            return False
    return True


def kits_loss(logps, old_logps, ref_logps, advantages, mask):
    """the kit's grpo_loss_and_metrics"""
    config = GRPOLossConfig(beta=loop.BETA, epsilon=loop.EPSILON)
    return grpo_loss_and_metrics(config, logps, old_logps, advantages, mask, ref_logps=ref_logps)[0]


def held_in_bounds(logps, old_logps, ref_logps, advantages, mask):
    """a loss that clips masked positions to -2 and 2 and then counts them"""
    log_ratio = mx.clip(logps - old_logps, -2.0, 2.0)
    behind = mx.clip(ref_logps - logps, -2.0, 2.0)
    ratio, judged = mx.exp(log_ratio), advantages[:, None]
    gain = mx.minimum(ratio * judged, mx.clip(ratio, 1 - loop.EPSILON, 1 + loop.EPSILON) * judged)
    return -(gain - loop.BETA * (mx.exp(behind) - behind - 1)).sum() / mask.sum()


def counted_as_constants(logps, old_logps, ref_logps, advantages, mask):
    """a loss that clips masked positions to -2 and 2 and then counts them, without a gradient"""
    now, old, ref = (mx.where(mask, each, mx.stop_gradient(each)) for each in (logps, old_logps, ref_logps))
    return held_in_bounds(now, old, ref, advantages, mask)


SILENT = Exercise(
    "20.5",
    "What must not matter",
    "Write `masked_places_are_silent(policy_loss)`. `policy_loss(logps, old_logps, ref_logps, advantages, mask)` "
    "takes three arrays [B, T], advantages [B] and a mask of True and False [B, T], and returns the loss. Where the "
    "mask is False, the values of `old_logps` and `ref_logps` must change neither the loss nor its gradient with "
    "respect to `logps`. Return True if they do not, and False if they do. Be nasty: some programs write 1e4 or -1e4 "
    "there.",
    minutes=15,
    difficulty=3,
    solution=masked_places_are_silent,
    hints=(
        "Make `logps`, a mask and advantages of both signs by hand. Compute loss and gradient twice with "
        "`mx.value_and_grad(lambda logps: policy_loss(logps, old, ref, advantages, mask))(logps)`: once with 0 at the "
        "masked positions of `old` and `ref`, once with rubbish.",
        "Loss **and** gradient have to be the same. A loss may be fine while its gradient is NaN: 0 times infinity.",
        "exp overflows above 88. `old = -1e4` makes exp(logps - old) infinite, `ref = 1e4` makes exp(ref - logps) "
        "infinite: try both signs in both.",
    ),
    run=_verdict,
    cases=(
        (_named("healthy", "the loss of the loop", edited(loop.policy_loss)),),
        (kits_loss,),
        *_sick(
            loop.policy_loss,
            r"""
# late
- log_ratio = mx.where(mask, logps - old_logps, 0.0)
+ log_ratio = logps - old_logps
! a ratio that is masked after exp
# late_kl
- behind = mx.where(mask, ref_logps - logps, 0.0)
+ behind = ref_logps - logps
! a KL that is masked after exp
# multiplied
- log_ratio = mx.where(mask, logps - old_logps, 0.0)
+ log_ratio = logps - old_logps
- return -mx.where(mask, gain - BETA * kl, 0.0).sum() / mask.sum()
+ return -(mask * (gain - BETA * kl)).sum() / mask.sum()
! a loss in which everything is multiplied by the mask at the end
# no_mask
- log_ratio = mx.where(mask, logps - old_logps, 0.0)
+ log_ratio = mx.where(mask == mask, logps - old_logps, 0.0)
- behind = mx.where(mask, ref_logps - logps, 0.0)
+ behind = mx.where(mask == mask, ref_logps - logps, 0.0)
- return -mx.where(mask, gain - BETA * kl, 0.0).sum() / mask.sum()
+ return -mx.where(mask == mask, gain - BETA * kl, 0.0).sum() / mask.sum()
! no mask at all
""",
        ),
        (held_in_bounds,),
        (counted_as_constants,),
    ),
    mistakes=slips(
        masked_places_are_silent,
        r"""
@ if not (mx.allclose(loss, other_loss).item() and mx.allclose(grad, other_grad).item()):
only the loss (2)
+ if not (mx.allclose(loss, other_loss).item()):
! You compare only losses. A loss that is masked too late is right; its gradient is NaN.
only the gradient (2)
+ if not (mx.allclose(grad, other_grad).item()):
! You compare only gradients. The rubbish must not change the loss either.
only finite (2)
+ if not (mx.isfinite(other_loss).item() and mx.isfinite(other_grad).all().item()):
! The rubbish may have changed a number that is still finite. Compare the loss and the gradient with those that you get
! without rubbish.

@ for rubbish in (1.0, -1e4, 1e4):
little rubbish (3)
+ for rubbish in (1.0, -1.0):
! Your rubbish is too clean: its exp is still finite. Use numbers that overflow.
no rubbish
+ for rubbish in (0.0,):
! The same call gives the same result twice. Put something else at the masked positions.

only old
- ref = mx.where(mask, logps + 0.2, -rubbish)
+ ref = mx.where(mask, logps + 0.2, 0.0)
! You put rubbish only into `old_logps`. `ref_logps` goes through exp as well.
""",
    ),
    also_right=r"""
# nan
def silent_by_nan(policy_loss):
    rng = np.random.default_rng(0)
    logps = mx.array(-rng.random((2, 4)).astype(np.float32))
    mask = mx.array([[1, 1, 0, 0], [1, 1, 1, 0]]) == 1
    results = []
    for filler in (0.0, float("nan"), float("inf"), -float("inf")):
        other = mx.where(mask, logps * 1.1, filler)
        value, grad = mx.value_and_grad(policy_loss)(logps, other, other, mx.array([0.5, -2.0]), mask)
        results.append(np.array([value.item(), *np.array(grad).reshape(-1)]))
    return np.allclose(results, results[0])
""",
    also_wrong=r"""
# a finite loss
def loss_is_finite(policy_loss):
    logps, mask = mx.array([[-1.0, -1.0]]), mx.array([[True, False]])
    old = mx.array([[-1.0, -1e4]])
    return bool(mx.isfinite(policy_loss(logps, old, old, mx.array([1.0]), mask)).item())
! gave passed, expected refused
""",
    explain=(
        "The remedy is to replace the log-ratio by a harmless number before exp, and not to multiply the finished loss "
        "by 0."
    ),
)


# -- micro-batches ----------------------------------------------------------------------------------------------------


def pieces_make_the_whole(accumulate):
    """True if the gradients of pieces give that of the whole batch, a mean over all tokens."""
    of_each_token = [1.0, 2.0, 6.0, 3.0]
    pieces = [of_each_token[:1], of_each_token[1:]]
    grads = [{"w": mx.array(mean(piece)), "b": mx.array([0.0, -mean(piece)])} for piece in pieces]
    found = accumulate(grads, [len(piece) for piece in pieces])
    whole = mean(of_each_token)
    return mx.allclose(found["w"], mx.array(whole)).item() and mx.allclose(found["b"], mx.array([0.0, -whole])).item()


def in_a_loop(grads, num_tokens):
    """a loop that adds up sums and divides once at the end"""
    total = {name: 0 * value for name, value in grads[0].items()}
    for grad, n in zip(grads, num_tokens):
        total = {name: total[name] + n * grad[name] for name in total}
    return {name: value / sum(num_tokens) for name, value in total.items()}


PIECES = Exercise(
    "20.6",
    "Pieces and the whole",
    "Write `pieces_make_the_whole(accumulate)`. The loss is a mean over tokens. `accumulate(grads, num_tokens)` gets "
    "a list of gradients and a list of numbers of tokens, one per micro-batch. Each gradient is a dictionary of "
    "arrays: the gradient of the mean over the micro-batch's **own** tokens. `accumulate` returns the gradient of the "
    "mean over all tokens. Return True or False.",
    minutes=10,
    difficulty=2,
    solution=pieces_make_the_whole,
    hints=(
        "Begin with the gradient of each single token, say 1, 2, 6 and 3. The gradient of the whole batch is their "
        "mean, 3.",
        "Cut the tokens into pieces, give `accumulate` the mean of each piece and its length, and compare.",
        "If all pieces have the same length, their plain mean is right too. Choose 1 and 3.",
    ),
    run=_verdict,
    cases=(
        (_named("healthy", "the function of the loop", edited(loop.accumulate)),),
        (in_a_loop,),
        *_sick(
            loop.accumulate,
            r"""
# added_up
- return {name: sum(grad[name] * (n / total) for grad, n in zip(grads, num_tokens, strict=True)) for name in grads[0]}
+ return {
+     name: sum(grad[name] for grad, n in zip(grads, num_tokens, strict=True))
+     for name in grads[0]
+ }
! gradients that are added up
# plain_mean
- return {name: sum(grad[name] * (n / total) for grad, n in zip(grads, num_tokens, strict=True)) for name in grads[0]}
+ return {
+     name: sum(grad[name] * (1 / len(grads)) for grad, n in zip(grads, num_tokens, strict=True))
+     for name in grads[0]
+ }
! a plain mean: every micro-batch counts the same
# sums
- return {name: sum(grad[name] * (n / total) for grad, n in zip(grads, num_tokens, strict=True)) for name in grads[0]}
+ return {
+     name: sum(grad[name] * n for grad, n in zip(grads, num_tokens, strict=True))
+     for name in grads[0]
+ }
! a sum weighted by tokens, never divided
# one_more
- return {name: sum(grad[name] * (n / total) for grad, n in zip(grads, num_tokens, strict=True)) for name in grads[0]}
+ return {
+     name: sum(
+         grad[name] * ((n + 1) / (total + len(grads)))
+         for grad, n in zip(grads, num_tokens, strict=True)
+     )
+     for name in grads[0]
+ }
! one token too many in each micro-batch
# last
- return {name: sum(grad[name] * (n / total) for grad, n in zip(grads, num_tokens, strict=True)) for name in grads[0]}
+ return {
+     name: sum(grad[name] * (n / total) for grad, n in [(grads[-1], total)])
+     for name in grads[0]
+ }
! only the last micro-batch
""",
        ),
    ),
    mistakes=slips(
        pieces_make_the_whole,
        r"""
@ pieces = [of_each_token[:1], of_each_token[1:]]
equal pieces (3)
+ pieces = [of_each_token[:2], of_each_token[2:]]
! Your pieces have the same length. A plain mean of micro-batches passes, although it counts the tokens of short answers
! more than those of long answers.
one piece (2)
+ pieces = [of_each_token]
! One piece is the whole. A function that adds up passes.

only the direction
- return mx.allclose(found["w"], mx.array(whole)).item() and mx.allclose(found["b"], mx.array([0.0, -whole])).item()
+ return (found["w"] > 0).item() or mx.allclose(found["b"], mx.array([0.0, -whole])).item()
! A sum points in the same direction as the mean. Compare the numbers.
""",
    ),
    also_right=r"""
# three pieces
def pieces_of_three(accumulate):
    tokens = np.random.default_rng(0).normal(size=(9, 2))
    cuts = [slice(0, 2), slice(2, 7), slice(7, 9)]
    grads = [{"layer": mx.array(tokens[cut].mean(0))} for cut in cuts]
    found = accumulate(grads, [2, 5, 2])["layer"]
    return np.allclose(np.array(found), tokens.mean(0), atol=1e-5)
""",
    also_wrong=r"""
# about right
lambda accumulate: round(accumulate([{"w": mx.array(1.0)}, {"w": mx.array(11 / 3)}], [1, 3])["w"].item()) == 3
""",
    explain=(
        "Adam removes a constant factor, which hides the sum until you clip gradients, change the number of "
        "micro-batches, or log `grad_norm`."
    ),
)


# -- the reward -------------------------------------------------------------------------------------------------------


def reward_is_honest(reward):
    """True if `reward` gives 1 to the right sum, and 0 to everything that only looks like it."""
    for a, b in [(27, 38), (5, 5), (60, 60)]:
        problem = Addition.problem(a, b)
        right = problem.answer
        hacks = ["", right[0], right[-1], right + right, "1" + right, right + " 99", "99 " + right, "-" + right, "x"]
        near = [str(a + b + 1), str(a + b - 1), str(a), f"{a}+{b}"]
        if reward(problem, right) != 1 or any(reward(problem, text) != 0 for text in hacks + near):
            return False
    return True


def as_a_number(problem, text):
    """a reward that compares numbers, so that 065 is right too"""
    return float(text.isascii() and text.isdigit() and int(text) == int(problem.answer))


HONEST = Exercise(
    "20.7",
    "Attack the reward",
    "Write `reward_is_honest(reward)`. `reward(problem, text)` should be 1 if `text` is the right sum, and 0 for "
    "anything else. `Addition.problem(27, 38)` makes a problem whose `answer` is the string '65'. Think of strings "
    "for which a lazy policy could get a reward without adding, try them all, and return True or False. (Leading "
    "zeros, as in '065', are a matter of taste: do not test them.)",
    minutes=10,
    difficulty=1,
    solution=reward_is_honest,
    hints=(
        "First check that the right answer gets 1. Then check a list of texts that have to get 0.",
        "What does `text in answer` return for an empty string? What does `answer in text` return for a text with "
        "all numbers?",
        "Try the empty string, only the first digit, the answer with something before or after it, neighbours of the "
        "answer, and an unrelated number. And try more than one problem.",
    ),
    run=_verdict,
    cases=(
        (_named("healthy", "the reward of the loop", edited(loop.reward)),),
        (as_a_number,),
        *_sick(
            loop.reward,
            r"""
# inside
- return float(text == problem.answer)
+ return float(text in problem.answer)
! a reward for a text that is part of the answer
# around
- return float(text == problem.answer)
+ return float(problem.answer in text)
! a reward for a text that contains the answer
# begins
- return float(text == problem.answer)
+ return float(text.startswith(problem.answer))
! a reward for a text that begins with the answer
# ends
- return float(text == problem.answer)
+ return float(text.endswith(problem.answer))
! a reward for a text that ends with the answer
# form
- return float(text == problem.answer)
+ return float(text.isdigit())
! a reward for any number
# near
- return float(text == problem.answer)
+ return float(text.isdigit() and abs(int(text) - int(problem.answer)) < 2)
! a reward for a number that is at most one off
# never
- return float(text == problem.answer)
+ return float(False)
! a reward that is always 0
""",
        ),
    ),
    mistakes=slips(
        reward_is_honest,
        r"""
@ hacks = ["", right[0], right[-1], right + right, "1" + right, right + " 99", "99 " + right, "-" + right, "x"]
nothing empty or part (2)
+ hacks = [right + right, "1" + right, right + " 99", "99 " + right, "-" + right, "x"]
! You never tried an empty text or a part of the answer.
nothing around (3)
+ hacks = ["", right[0], right[-1], "x"]
! You never tried the right answer with something around it. A policy that writes all numbers, one of which is right,
! gets the reward.

@ if reward(problem, right) != 1 or any(reward(problem, text) != 0 for text in hacks + near):
right not tried
+ if any(reward(problem, text) != 0 for text in hacks + near):
! A reward that is always 0 passes. Try the right answer too.
no neighbours (3)
+ if reward(problem, right) != 1 or any(reward(problem, text) != 0 for text in hacks):
! You never tried another number: a neighbour of the answer, or an unrelated number.
""",
    ),
    also_right=r"""
# assert
def attack(reward):
    problem = Addition.problem(70, 50)
    assert reward(problem, "120") == 1
    for text in ("", "1", "12", "20", "0", "121", "119", "120 121", "100 120", "1200", "-120", "999", "one", "70+50"):
        assert reward(problem, text) == 0, text
""",
    also_wrong=r"""
# only the right answer
lambda reward: reward(Addition.problem(27, 38), "65") == 1
""",
    explain="Visual-RFT's classifier got a reward if its answer was found in the truth. It learned to answer nothing.",
)


# -- the reference ----------------------------------------------------------------------------------------------------


def reference_stays(keep_reference):
    """True if the reference is, and stays, the policy at the start."""
    params = {"a": mx.array([1.0, 2.0]), "b": mx.array(3.0)}
    start = dict(params)
    reference = keep_reference(params)
    for name in params:
        params[name] = params[name] + 1.0
    return all(mx.array_equal(reference[name], start[name]).item() for name in start)


def copies(params):
    """new arrays in a new dictionary"""
    return {name: value + 0 for name, value in params.items()}


def read_only_view(params):
    """a read-only view of the dictionary"""
    return MappingProxyType(params)


def one_is_shared(params):
    """a new dictionary whose last entry is looked up only on access"""
    kept, last = dict(params), list(params)[-1]

    class Lazy(Mapping):
        def __getitem__(self, name):
            return params[name] if name == last else kept[name]

        def __iter__(self):
            return iter(kept)

        def __len__(self):
            return len(kept)

    return Lazy()


def empty_start(params):
    """zeros in place of the policy"""
    return {name: 0 * value for name, value in params.items()}


REFERENCE = Exercise(
    "20.8",
    "Does the reference stay?",
    "Write `reference_stays(keep_reference)`. `keep_reference(params)` gets the policy's dictionary of parameters "
    "before the first step and returns the reference: the same numbers, in a dictionary (or something like it) of the "
    "same names. The loop then replaces all of the policy's parameters, `params[name] = ...`. Return True if the "
    "reference still equals the policy at the start, otherwise False.",
    minutes=6,
    difficulty=1,
    solution=reference_stays,
    hints=(
        "Right after `keep_reference(params)` every reference is right. What has to happen before you look?",
        "Remember the start yourself (`start = dict(params)`), replace every entry of `params`, then compare the "
        "reference with the start, name by name.",
    ),
    run=_verdict,
    cases=(
        (_named("healthy", "the function of the loop", edited(loop.keep_reference)),),
        (copies,),
        *_sick(
            loop.keep_reference,
            r"""
# itself
- return dict(params)
+ return params
! the policy itself
""",
        ),
        (read_only_view,),
        (one_is_shared,),
        (empty_start,),
    ),
    mistakes=slips(
        reference_stays,
        r"""
in place (2)
- start = dict(params)
+ start = {name: value + 0 for name, value in params.items()}
- params[name] = params[name] + 1.0
+ params[name] += 1.0
! `params[name] += 1` changes the MLX array itself, so the reference changes too. The loop replaces it by a new array:
! `params[name] = params[name] + 1`.
nothing moves
- for name in params:
-     params[name] = params[name] + 1.0
! When you look, nothing has been trained yet, so the policy passes as its own reference.
one parameter (2)
- for name in params:
+ for name in ["a"]:
! You replace only one parameter. What if another one is shared?
only that it differs (2)
- return all(mx.array_equal(reference[name], start[name]).item() for name in start)
+ return not mx.array_equal(reference["a"], params["a"]).item()
! The reference differs from the current policy, but that does not make it the policy at the start.
start is another name (2)
- start = dict(params)
+ start = params
! Your `start` is a second name for the dictionary that is trained, so you compare the reference with the current
! policy. You have made the very mistake that you are looking for: keep a copy.
""",
    ),
    also_right=r"""
# ten times
def reference_by_training(keep_reference):
    params = {name: mx.array(float(place)) for place, name in enumerate("abcd", start=1)}
    reference = keep_reference(params)
    for name, value in list(params.items()):
        params[name] = value * 10
    return {name: value.item() for name, value in reference.items()} == {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
""",
    explain=(
        "After somebody had wasted a run on it, TRL was asked to refuse a policy that is its own reference. In the "
        "curves, a KL of exactly 0 gives it away."
    ),
)


# -- mystery runs -----------------------------------------------------------------------------------------------------


class Read:
    """A reading from a picture, equal to any of several texts, or to a number close enough to the first of `values`."""

    def __init__(self, *values):
        self.values = values

    def __eq__(self, other):
        if isinstance(other, Read):
            return self.values == other.values
        if isinstance(other, str):
            return " ".join(other.lower().split()) in self.values
        number = isinstance(other, numbers.Real) and isinstance(self.values[0], numbers.Real)
        return number and abs(other - self.values[0]) <= 0.01

    __hash__ = None

    def __repr__(self):
        return repr(self.values[0])


class Whatever:
    """The evidence in an answer with a wrong letter: equal to anything that is not a `Read`."""

    def __eq__(self, other):
        return not isinstance(other, Read)

    __hash__ = None

    def __repr__(self):
        return "'whatever'"


def _mystery(number, run, letter, evidence, minutes, prompt, hints, explain, more=(), **wrong):
    return Exercise(
        f"20.{number}",
        f"Mystery: {run}",
        prompt,
        minutes=minutes,
        difficulty=2,
        solution=(letter, evidence),
        hints=hints,
        mistakes=[
            *(Mistake(f"it is not {other}", (other, Whatever()), message, 1) for other, message in wrong.items()),
            *more,
        ],
        explain=explain,
    )


OF_CURVES = (
    'Which exhibit is "{run}" of the picture above? Answer with a pair: a letter, A to M, or N for "nothing to be '
    'seen", and the title of the curve that shows it, as in `"D", "gradient norm"`.'
)
OF_THE_TABLE = (
    'The curves do not show which exhibit "{run}" is, if any. Does the table? Put the cursor on step 30, and compute '
    "the advantages of its first group by hand, from the rewards. Answer with a pair: a letter, A to M, or N if "
    'nothing is wrong, and the smallest advantage in the table for that group, to two decimals, as in `"F", -1.51`.'
)
KL = Read("kl to the reference", "kl")
NORM = Read("gradient norm", "grad_norm", "grad norm", "norm of the gradient")
APART = Read("scored minus sampled", "sampling/sampling_logp_difference/mean")

RUN_1 = _mystery(
    9,
    "run 1",
    "K",
    KL,
    5,
    OF_CURVES.format(run="run 1"),
    (
        "Does the run learn? Then rule out the bugs that stop learning. Which curve does not move although the policy "
        "does?",
        "The KL measures how far the policy is from its start. This policy has moved.",
    ),
    "The KL is exactly 0 in all sixty steps, and the policy learns: it is compared with itself.",
    D="In D the KL is 0 because nothing moves, and the gradient norm is 0 too. Here the reward climbs.",
    N="One curve never moves, although the policy learns. In the healthy run it moves within a few steps.",
    E="E ends after one step. Here there are sixty.",
)
RUN_2 = _mystery(
    10,
    "run 2",
    "I",
    NORM,
    5,
    OF_CURVES.format(run="run 2"),
    (
        "Reward, entropy and lengths are fine. Read the numbers at the axes, not only the shapes.",
        "Which curve is a multiple of the healthy one, from the first step on?",
    ),
    "The gradient norm is about four times that of the healthy run, and there are four micro-batches. Clipping and "
    "Adam remove the factor everywhere else.",
    N="Read the numbers at the axes: one curve is several times the healthy one, from the first step on.",
    F="F makes gradients 7% longer. Here the factor is about four.",
    E="E's gradient is not a number, and the run ends after one step.",
    L="In L, rewards and right answers move apart. Here they agree.",
    M="M makes gradients 1.5 times as long. Here the factor is about four.",
)
RUN_3 = _mystery(
    11,
    "run 3",
    "C",
    APART,
    6,
    OF_CURVES.format(run="run 3"),
    (
        "One curve should be 0 in every run. Three exhibits move it: how large is it here, and from which step on?",
        "A moves it by 4 or more. B begins at 0.2, falls to nearly 0 within about ten steps, and then rises again now "
        "and then.",
    ),
    "Scored minus sampled is 0.1 from the first step to the last, and falls slowly as the policy becomes surer: every "
    "token is scored at a temperature that differs from the temperature of its draw.",
    A="A moves scored minus sampled by 4 or more, and the run does not learn.",
    B=(
        "In B only padded rows are wrong, and the policy adapts to them: the curve falls to nearly 0. Here it stays at "
        "0.1."
    ),
    N="One curve should be 0 in every run. Here it is not.",
    M="M is a bug of the mask: there scorer and sampler agree. Here they do not.",
)
RUN_4 = _mystery(
    12,
    "run 4",
    "H",
    Read(-1.207),
    8,
    OF_THE_TABLE.format(run="run 4"),
    (
        "Two answers of one group have the same reward. May their advantages differ?",
        "The group's rewards are 0, 0, 1, 1, 0, 0, 0, 0: their mean is 0.25 and their standard deviation 0.463, so "
        "every wrong answer should get -0.54. What does the table show? G would give every wrong answer of the step "
        "the same number.",
    ),
    "The same prompt and the same reward get three different advantages: each answer is compared with answers to "
    "other prompts. Nine curves do not show it; one group of the table does.",
    N="The curves show nothing, yes. But look at the wrong answers of the first group: which advantages do they get?",
    G="In G all answers of a step are compared with one mean, so equal rewards get equal advantages. Here they do not.",
    F="In F all advantages are 7% larger, and equal rewards get equal advantages. Here they do not.",
    M="The mask does not affect the advantages. Compare the advantages of the wrong answers in the first group.",
)
RUN_5 = _mystery(
    13,
    "run 5",
    "N",
    Read(-0.935),
    8,
    OF_THE_TABLE.format(run="run 5"),
    (
        "Compute the mean and the standard deviation (dividing by n - 1) of the group's rewards; then the distance "
        "from the mean, divided by the deviation. Which numbers would F, G and H give?",
        "Half of the group is right: the mean is 0.5 and the standard deviation 0.535. Dividing by n, it would be 0.5.",
    ),
    "The advantages are those of the group, with n - 1: this is neither F nor G nor H. M would show in the gradient "
    "norm. So nothing is wrong that you can see here. Curves can accuse a run. To acquit this one we needed the "
    "table, and a test is better still.",
    F=(
        "With F, a group that is half right has a standard deviation of 0.5, and advantages of 1 and -1. What does the "
        "table show?"
    ),
    G=(
        "With G, the mean is that of all sixteen prompts, not 0.5, so right and wrong answers of this group would get "
        "advantages of two sizes. Which do they get?"
    ),
    H="With H, answers to the same prompt with the same reward have different advantages. Is that so here?",
    B="In B, scored minus sampled is clearly above 0 at first. Here it stays at 0.",
    M="In M, the gradient norm is 1.5 times that of the healthy run, from the first step on. Here it is not.",
)
