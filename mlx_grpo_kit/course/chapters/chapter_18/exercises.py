"""Exercises of notebook 18: GRPO training."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

from unittest import mock

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_13.exercises import left_pad
from mlx_grpo_kit.course.chapters.chapter_18.toys import Coins, Parts, Quiz, descend, follow
from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.runtime import mx


def _plain(value):
    """Convert numbers to Python lists, whatever array type they come in."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


# -- the questions of a step ------------------------------------------------------------------------------------------


def questions(sample, seed, step, num_questions, group_size):
    """The questions of a step, each `group_size` times in a row."""
    rng = np.random.default_rng([seed, step])
    return [question for question in sample(rng, num_questions) for _ in range(group_size)]


# (seed, step): a rule that makes one number of the two repeats itself in here, at the latest for M * seed + step with
# M = 10,000. The differences between the steps of seeds 0 and 1 are all numbers up to there.
STEPS = (
    *((3, 7), (3, 8), (4, 7), (2, 8), (7, 3)),
    *((1, step) for step in range(100)),
    *((0, step) for step in (*range(100), *range(100, 10_001, 100), 2**16, 10**5)),
    *((seed, step) for seed in (2, 4, 5, 6, 8, 9, 10, 16, 64, 100, 128, 1000, 1024) for step in range(4)),
)


def _elsewhere(value):
    """`hash` as another process computes it: with other results for strings."""
    return OWN_HASH(("elsewhere", value) if "'" in repr(value) else value)


OWN_HASH = hash


def _ask(function, sample, seed, step, num_questions, group_size):
    """Return the order of a step's questions, or a `Told` if they depend on anything but seed and step.

    `sample` is the name that messages show; the function is called with one that counts its calls.
    """
    counts = []  # one per call

    def draw(rng, n):
        counts.append(n)
        return [f"question {number}" for number in rng.integers(0, 10**9, int(n))]

    def ask(seed, step, sample=draw):
        asked = function(sample, seed, step, num_questions, group_size)
        if isinstance(asked, list) and not any(isinstance(each, list | tuple) for each in asked):
            return asked
        return Told(
            f"{asked!r}, which is not a list of questions"
            if isinstance(asked, list)
            else f"{asked!r}, which is not a list"
        )

    first = ask(seed, step)
    count = sum(counts)  # drawn all at once or one by one
    again = ask(seed, step)
    if isinstance(first, Told):
        return first
    if first != again:
        return Told("different questions when it was asked for the same step again")
    if ask(seed, step, lambda rng, n: ["the same question"] * int(n)) != ["the same question"] * len(first):
        return Told("other rows when a question was drawn twice")
    with mock.patch("builtins.hash", _elsewhere):
        if ask(seed, step) != first:
            return Told("different questions for the same step in another process")
    found = {}
    for other, later in STEPS:
        before = found.setdefault(str(ask(other, later)), (other, later))
        if before != (other, later):
            return Told(
                f"the same questions for step {later} of seed {other} as for step {before[1]} of seed {before[0]}"
            )
    names = {name: place for place, name in enumerate(dict.fromkeys(first))}
    return {"rows with question": [names[name] for name in first], "questions drawn": count}


QUESTIONS = Exercise(
    "18.1",
    "The questions of a step",
    "Write `questions(sample, seed, step, num_questions, group_size)`. `sample(rng, n)` returns a list of `n` "
    "questions, drawn with a NumPy generator. Draw `num_questions` questions and return a list that contains each of "
    "them `group_size` times in a row: its group. The same `seed` and `step` always give the same questions; another "
    "step or another seed gives other questions. (`np.random.default_rng([3, 7])` makes a generator from two numbers.)",
    minutes=8,
    difficulty=1,
    solution=questions,
    hints=(
        "Draw once, then repeat: a comprehension with two `for`s. Which of the two has to be the outer one, so that "
        "equal questions come next to each other?",
        "A generator that lives as long as the run would depend on how often it was used before. Make a new one in "
        "each call: `np.random.default_rng([seed, step])`.",
        "`[question for question in sample(rng, num_questions) for _ in range(group_size)]`.",
    ),
    cases=tuple((Told("task.sample"), 3, 7, *size) for size in ((1, 1), (2, 3), (3, 2), (5, 4), (4, 1))),
    mistakes=slips(
        questions,
        r"""
@ return [question for question in sample(rng, num_questions) for _ in range(group_size)]
the groups apart
+ return [question for some in [sample(rng, num_questions)] for _ in range(group_size) for question in some]
! The list contains all questions, and then all of them again. A group has to be in one piece, or the later steps
! compare answers to different questions.
drawn for every row
+ return [question for _ in range(num_questions * group_size) for question in sample(rng, 1)]
! Every row has a question of its own. Then there is no other answer to compare an answer with.
too many drawn
+ return [question for question in sample(rng, num_questions * group_size) for _ in range(group_size)]
! `num_questions` is the number of different questions. The number of rows is larger because each question is repeated.

@ rng = np.random.default_rng([seed, step])
seed alone (2)
+ rng = np.random.default_rng(seed)
! Every step would ask the same questions.
step alone (2)
+ rng = np.random.default_rng(step)
! Another seed should give another run.
seed plus step (2)
+ rng = np.random.default_rng(seed + step)
! With the sum, step 8 of seed 3 is step 7 of seed 4: the runs of neighbouring seeds share their questions.
hash of a text (2)
+ rng = np.random.default_rng(abs(hash(f"{seed}-{step}")))
! Python's `hash` of a string has another value in every process, so after a restart of the kernel the same seed and
! step would ask other questions.
no seed (2)
+ rng = np.random.default_rng()
! Without a seed, or with a generator that keeps its state between calls, nobody can repeat the run or resume it.
seed times step (2)
+ rng = np.random.default_rng(seed * step)
! Here the two numbers can change places, as in a product: step 3 of seed 7 is step 7 of seed 3.
seed times a thousand (2)
+ rng = np.random.default_rng(1000 * seed + step)
! After 1000 steps a seed continues with the questions of the next seed. With a list of both numbers this never happens.
""",
    ),
    also_right=r"""
import itertools
# NumPy
def questions_by_numpy(sample, seed, step, num_questions, group_size):
    rng = np.random.Generator(np.random.PCG64([seed, step]))
    return [*np.repeat(np.array(sample(rng, num_questions), dtype=object), group_size)]
# one by one
def questions_one_by_one(sample, seed, step, num_questions, group_size):
    rng = np.random.default_rng([seed, step])
    return [each for _ in range(num_questions) for each in sample(rng, 1) * group_size]
# a SeedSequence
def questions_by_seed_sequence(sample, seed, step, num_questions, group_size):
    drawn = sample(np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(step,))), num_questions)
    return list(itertools.chain.from_iterable([each] * group_size for each in drawn))
""",
    also_wrong=r"""
# one generator
def one_generator(sample, seed, step, num_questions, group_size, rng=np.random.default_rng([3, 7])):
    return [each for each in sample(rng, num_questions) for _ in range(group_size)]
! keeps its state between calls
# either way round
- rng = np.random.default_rng([seed, step])
+ rng = np.random.default_rng(sorted([seed, step]))
! change places
# an iterator
- return [question for question in sample(rng, num_questions) for _ in range(group_size)]
+ return (question for question in sample(rng, num_questions) for _ in range(group_size))
! which is not a list
# a list of groups
- return [question for question in sample(rng, num_questions) for _ in range(group_size)]
+ return [[question] * group_size for question in sample(rng, num_questions)]
! which is not a list of questions
# each question once
- return [question for question in sample(rng, num_questions) for _ in range(group_size)]
+ return [question for question in dict.fromkeys(sample(rng, num_questions)) for _ in range(group_size)]
! when a question was drawn twice
# seed to the power of step
- rng = np.random.default_rng([seed, step])
+ rng = np.random.default_rng(seed**step)
! the same questions for step 1 of seed 1 as for step 0 of seed 1
# digits
- rng = np.random.default_rng([seed, step])
+ rng = np.random.default_rng(int(f"{seed}{step}"))
! for step 10 of seed 0 as for step 0 of seed 1
# bits
- rng = np.random.default_rng([seed, step])
+ rng = np.random.default_rng(seed ^ (step << 3))
! for step 0 of seed 8 as for step 1 of seed 0
# a short step
- rng = np.random.default_rng([seed, step])
+ rng = np.random.default_rng([seed, step % 1000])
! for step 1000 of seed 0 as for step 0 of seed 0
# a short seed
- rng = np.random.default_rng([seed, step])
+ rng = np.random.default_rng([seed % 100, step])
! for step 0 of seed 100 as for step 0 of seed 0
# two steps alike
- rng = np.random.default_rng([seed, step])
+ rng = np.random.default_rng([seed, step // 2])
! the same questions for step
# hash of a tuple
- rng = np.random.default_rng([seed, step])
+ rng = np.random.default_rng(abs(hash((str(seed), step))))
! another value in every process
""",
    run=_ask,
    explain=(
        "A step's questions depend only on two numbers, so an interrupted run can be resumed without saving any random "
        "state. The kit's trainer does the same, and draws its answers in the same way."
    ),
)


# -- rows of a batch --------------------------------------------------------------------------------------------------


def make_batch(prompts, completions):
    """(ids [B, P + T], attention mask [B, P + T], completion mask [B, T])."""
    ids, mask = left_pad(prompts)
    longest = max(map(len, completions))
    rows = mx.array([completion + [0] * (longest - len(completion)) for completion in completions])
    is_token = mx.array([[place < len(completion) for place in range(longest)] for completion in completions])
    ones = mx.ones(rows.shape, dtype=mask.dtype)
    return mx.concatenate([ids, rows], axis=1), mx.concatenate([mask, ones], axis=1), is_token


def _as_numbers(function, prompts, completions):
    """Return the answer's arrays as plain numbers. Attention at padding after a completion may be on or off."""
    result = function([*map(list, prompts)], [*map(list, completions)])
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        return result
    arrays = [np.array(each) for each in result]
    ids, seen, counted = arrays
    if any(each.ndim != 2 or each.dtype == object for each in arrays) or ids.shape != seen.shape:
        return Told(f"arrays of shapes {', '.join(str(each.shape) for each in arrays)}")
    end = ids.shape[1] - counted.shape[1]
    if end < 0:
        return Told(f"arrays of shapes {', '.join(str(each.shape) for each in arrays)}")
    if ids.dtype.kind not in "iu":
        return Told(f"ids of {ids.dtype}, but the model looks up rows by whole numbers")
    seen = seen.astype(int)
    seen[:, end:] |= counted.astype(int) == 0  # no token that counts looks there
    return mx.array(ids.astype(np.int32)), mx.array(seen.astype(np.int32)), mx.array(counted.astype(np.int32))


def _draw_rows(rng):
    rows = int(rng.integers(1, 5))
    prompts, completions = ([rng.integers(0, 9, rng.integers(1, 6)).tolist() for _ in range(rows)] for _ in range(2))
    return prompts, completions


BATCH = Exercise(
    "18.2",
    "One array of rows",
    "Write `make_batch(prompts, completions)` for two lists of B lists of token ids. Return three arrays. `ids` [B, P "
    "+ T]: prompts end in column P - 1 (that is `left_pad` of 13.10, which you may call), completions begin in column "
    "P, and zeros fill the rest of each row. The attention mask [B, P + T]: 0 for the padding before prompts, 1 for "
    "prompts and completions. After the completions either value is fine, because no token that counts looks there. "
    "The completion mask [B, T]: true where a completion has a token, including its end token, and false after it. A "
    "real token may have the id 0.",
    minutes=12,
    difficulty=2,
    solution=make_batch,
    hints=(
        "Three pieces: `ids, mask = left_pad(prompts)`; the completions, padded on the right; `mx.concatenate` with "
        "`axis=1`.",
        "`completion + [0] * (longest - len(completion))` pads a row. The completion mask comes from *lengths*: "
        "`place < len(completion)`. Comparing ids with 0 would lose tokens whose id is 0.",
        "The attention mask is `mx.concatenate([mask, mx.ones((B, T))], axis=1)`.",
    ),
    cases=(
        ([[5, 6]], [[7, 8, 1]]),
        ([[5], [6, 7, 8]], [[4, 1], [9]]),
        ([[5, 0], [3]], [[0, 0], [2, 0, 0, 1]]),
        ([[4]], [[1]]),
        ([[4], [1, 2]], [[1, 0, 5], [3]]),  # no id marks the end of every answer
        ([[151643, 5], [0, 3]], [[151645], [70000, 200]]),
        ([[2] * 20, [3]], [[4], [5] * 40]),
        *drawn(3, _draw_rows),
    ),
    mistakes=slips(
        make_batch,
        r"""
prompts padded on the right
- ids, mask = left_pad(prompts)
+ widest = max(map(len, prompts))
+ ids = mx.array([prompt + [0] * (widest - len(prompt)) for prompt in prompts])
+ mask = mx.array([[int(place < len(prompt)) for place in range(widest)] for prompt in prompts])
! The prompts are padded on the right. That leaves a gap between a short prompt and its completion, and the logits for
! the completion's first token are those of a padding token.

@ is_token = mx.array([[place < len(completion) for place in range(longest)] for completion in completions])
zeros counted as padding (2)
+ is_token = rows != 0
! 0 is a token like the others. Only the lengths say which places are padding.
end token left out (2)
+ is_token = mx.array([[place < len(completion) - 1 for place in range(longest)] for completion in completions])
! The last token of a completion counts too. The policy chose to end here, and this choice is rewarded like any other.
everything counts (2)
+ is_token = mx.array([[place < longest for place in range(longest)] for completion in completions])
! The completion mask is true after the end of short completions. The policy never drew those tokens.

completions on the left (2)
- rows = mx.array([completion + [0] * (longest - len(completion)) for completion in completions])
+ rows = mx.array([[0] * (longest - len(completion)) + completion for completion in completions])
! The completions are padded on the left. That leaves a gap after the prompt: all completions have to begin in column P.

@ return mx.concatenate([ids, rows], axis=1), mx.concatenate([mask, ones], axis=1), is_token
a mask of ones (3)
+ return mx.concatenate([ids, rows], axis=1), mx.ones((rows.shape[0], ids.shape[1] + rows.shape[1])), is_token
! The attention mask has to be 0 before short prompts. With ones there, the model reads the padding as text.
zeros of a prompt hidden (3)
+ return mx.concatenate([ids, rows], axis=1), mx.concatenate([ids, rows], axis=1) != 0, is_token
or
+ return mx.concatenate([ids, rows], axis=1), mx.concatenate([ids != 0, ones != 0], axis=1), is_token
! Your attention mask is 0 wherever an id is 0. A real token may have the id 0, and it has to be read: the mask comes
! from lengths, as `left_pad` makes it.
in the other order
+ return mx.concatenate([rows, ids], axis=1), mx.concatenate([mask, ones], axis=1), is_token
! The prompts come first, then the completions.
ids of 8 bits
+ return mx.concatenate([ids, rows], axis=1).astype(mx.uint8), mx.concatenate([mask, ones], axis=1), is_token
! Large ids came back as other numbers, because the integers of your array are too small. Real vocabularies have more
! than 100,000 tokens: use int32.
ids of 16 bits
+ return mx.concatenate([ids, rows], axis=1).astype(mx.uint16), mx.concatenate([mask, ones], axis=1), is_token
! Ids above 65,535 do not fit into 16 bits, and Qwen3 has 151,936 of them: use int32.
a mask of P + T columns (2)
+ is_token = mx.concatenate([mx.zeros(ids.shape, dtype=mx.bool_), is_token], 1)
+ return mx.concatenate([ids, rows], axis=1), mx.concatenate([mask, ones], axis=1), is_token
! The completion mask has T columns, one for each drawn token.
""",
    ),
    also_right=r"""
# NumPy
def batch_by_numpy(prompts, completions):
    wide, long = max(map(len, prompts)), max(map(len, completions))
    ids, mask = np.zeros((2, len(prompts), wide + long), int)
    counts = np.zeros((len(prompts), long), bool)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        ids[row, wide - len(prompt) : wide + len(completion)] = prompt + completion
        mask[row, wide - len(prompt) : wide + len(completion)] = 1  # False at the padding after the completion
        counts[row, : len(completion)] = True
    return ids, mask, counts
# a mask of numbers
def batch_with_a_mask_of_numbers(prompts, completions):
    ids, mask = left_pad(prompts)
    lengths = mx.array([[len(each)] for each in completions])
    columns = mx.arange(max(map(len, completions)))[None]
    rows = [each + [7] * (columns.size - len(each)) for each in completions]
    counts = columns < lengths
    ids = mx.concatenate([ids, mx.where(counts, mx.array(rows), 0)], axis=1)
    return [ids, mx.concatenate([mask.astype(mx.bool_), counts], axis=1), counts.astype(mx.float32)]
""",
    also_wrong=r"""
# signed ids of 8 bits
- return mx.concatenate([ids, rows], axis=1), mx.concatenate([mask, ones], axis=1), is_token
+ return mx.concatenate([ids, rows], axis=1).astype(mx.int8), mx.concatenate([mask, ones], axis=1), is_token
# cut at 5
- ids, mask = left_pad(prompts)
+ completions = [each[:5] for each in completions]
+ ids, mask = left_pad(prompts)
# cut at 32
- ids, mask = left_pad(prompts)
+ completions = [each[:32] for each in completions]
+ ids, mask = left_pad(prompts)
# ends at the first 1
- is_token = mx.array([[place < len(completion) for place in range(longest)] for completion in completions])
+ lengths = [row.index(1) + 1 if 1 in row else len(row) for row in completions]
+ is_token = mx.array([[place < length for place in range(longest)] for length in lengths])
# floats
lambda prompts, completions: tuple(np.array(each, np.float64) for each in make_batch(prompts, completions))
! whole numbers
# ids alone
lambda prompts, completions: make_batch(prompts, completions)[0]
# lists of rows
lambda prompts, completions: ([p + c for p, c in zip(prompts, completions)], [[1]], [[1]])
""",
    run=_as_numbers,
)


# -- which groups teach -----------------------------------------------------------------------------------------------


def rows_that_teach(rewards, group_size):
    """Indices of the rows whose group has at least two different rewards."""
    groups = [rewards[start : start + group_size] for start in range(0, len(rewards), group_size)]
    return [
        number * group_size + place
        for number, group in enumerate(groups)
        if max(group) > min(group)
        for place in range(group_size)
    ]


def _draw_rewards(rng):
    size = int(rng.integers(2, 5))
    groups = [rng.choice([0.0, 0.25, 1.0], size=size).tolist() for _ in range(4)]
    groups[int(rng.integers(4))] = [0.25] * size
    return [reward for group in groups for reward in group], size


TEACH = Exercise(
    "18.3",
    "Which groups teach?",
    "Write `rows_that_teach(rewards, group_size)`. `rewards` is a list of numbers, group after group. Return the "
    "indices, in order, of all rows of those groups whose rewards are not all equal: the other rows have advantages of "
    "exactly 0 and, without a KL penalty, no gradient. Return whole groups only. If no group teaches, the list is "
    "empty. Rewards may be any numbers, for example 0.1, 0.1 and 0.1.",
    minutes=6,
    difficulty=1,
    solution=rows_that_teach,
    hints=(
        "Cut the list into groups: `rewards[start : start + group_size]` for `start` in "
        "`range(0, len(rewards), group_size)`.",
        "A group teaches if `max(group) > min(group)`. Then keep *all* its rows, even those with the smallest reward.",
        "Do not ask whether the standard deviation is 0: in floating point, the standard deviation of 0.1, 0.1, 0.1 "
        "is 1e-17.",
    ),
    cases=(
        ([1.0, 0.0, 1.0, 1.0], 2),
        ([0.0, 0.0, 0.0, 1.0, 0.0, 0.0], 3),
        ([1.0, 1.0, 0.0, 0.0], 2),
        ([0.1, 0.1, 0.1, 0.2, 0.2, 0.3], 3),
        ([0.5, 0.5, -0.5, 0.5, 0.0, 0.0], 2),
        ([-1.0, -1.0, -2.0], 3),
        ([0.0, 0.5, 1.0, 0.5, 0.5, 0.5], 3),
        ([2.0, 2.0001, 3.0, 3.0], 2),
        ([0.0, 0.0, 0.0], 3),
        ([0.0, 1e-20, 0.0, -0.0], 2),
        ([0.5, 0.0, 1.0, 1.0, 2.0, 1.0], 3),
        ([1.0, 1.0, 1.0, 1.0, 0.0], 5),
        ([1.0, 2.0], 1),
        ([0.0, 0.0, 1.0, 0.0], 4),
        ([-1.0, 0.0], 2),
        ([1.0, 1.0 + 1e-9], 2),
        *drawn(3, _draw_rewards),
    ),
    mistakes=slips(
        rows_that_teach,
        r"""
@ if max(group) > min(group)
groups with a right answer (2)
+ if max(group) > 0
! A group in which *all* answers are right has no spread either: no answer in it is better than the others.
any reward in it (2)
+ if any(group)
! A group of equal rewards teaches nothing, whatever the rewards are.
not all right (2)
+ if min(group) < 1
! A group in which all answers are wrong has no spread either.
the standard deviation (3)
+ if np.std(group) > 0
! The standard deviation of equal numbers need not be 0 in floating point: for three times 0.1 it is 1.4e-17. So your
! test keeps groups that teach nothing.
nearly equal is equal (2)
+ if max(group) - min(group) > 1e-3
! Rewards that are close together are not equal. Divided by their standard deviation, they push as hard as any others.
equal up to rounding (2)
+ if not np.allclose(group, group[0])
or
+ if max(group) - min(group) > 1e-12
! You compare with a tolerance. How small a difference may be depends on the scale of the rewards, which you do not
! know: compare exactly.
the mean against the first (2)
+ if np.mean(group) != group[0]
! The mean of different rewards may equal the first of them, as in 0.5, 0, 1.
in float32 (2)
+ if np.ptp(np.array(group, np.float32)) > 0
! float32 has seven digits, so 1 and 1 + 1e-9 become the same number. Compare the rewards as you got them.
between none and all (2)
+ if 0 < sum(group) < group_size
! That works for the rewards 0 and 1. Rewards may be any numbers: 0.5, 0.5 teaches nothing, and -1, 0 does.
the others (2)
+ if max(group) == min(group)
! Those are the rows that teach nothing.

@ for place in range(group_size)
only those above the mean (2)
+ for place in range(group_size) if group[place] > np.mean(group)
! An answer that is worse than its group teaches as well: it is pushed down. Keep whole groups.
those with an advantage (2)
+ for place in range(group_size) if abs(group[place] - np.mean(group)) > 1e-9
or
+ for place in range(group_size) if group[place] != sum(group) / len(group)
or
- if max(group) > min(group)
- for place in range(group_size)
+ for place in range(group_size) if group[place] != sum(group) / len(group)
! A row whose reward equals the mean has advantage 0, but its group teaches. Keep whole groups.

indices of groups (2)
- number * group_size + place
+ number
- for place in range(group_size)
! Those are indices of groups. Return the indices of rows: group 2 of size 3 has rows 6, 7 and 8.
""",
    ),
    also_right=r"""
# NumPy
def teach_by_numpy(rewards, group_size):
    groups = np.array(rewards).reshape(-1, group_size)
    return np.flatnonzero(np.repeat(np.ptp(groups, axis=1) > 0, group_size))
# sets
def teach_by_sets(rewards, group_size):
    groups = [rewards[row - row % group_size :][:group_size] for row in range(len(rewards))]
    return [row for row, group in enumerate(groups) if len({*group}) > 1]
""",
    also_wrong=r"""
# nearly equal is equal
- if max(group) > min(group)
+ if max(group) - min(group) > 1e-12
! with a tolerance
# rounded
- if max(group) > min(group)
+ if len({round(each, 9) for each in group}) > 1
! with a tolerance
# the sum
- if max(group) > min(group)
+ if sum(group) != len(group) * group[0]
# first and last
- if max(group) > min(group)
+ if group[0] != group[-1]
# the first four
- if max(group) > min(group)
+ if len({*group[:4]}) > 1
# the first against the second and the last
- if max(group) > min(group)
+ if group[0] != group[min(1, group_size - 1)] or group[0] != group[-1]
# the largest is not 0
- if max(group) > min(group)
+ if max(group) > min(group) and max(group) != 0
# a mask
lambda rewards, size: np.isin(np.arange(len(rewards)), rows_that_teach(rewards, size))
""",
    run=lambda function, rewards, size: _plain(function(rewards, size)),
    explain=(
        "DAPO (Yu and others, 2025) calls this dynamic sampling, and also draws new groups to replace the ones it "
        "leaves out. If you only leave them out, you save work and change nothing else, as long as the loss is still "
        "divided by the tokens of *all* rows."
    ),
)


# -- learning from one batch ------------------------------------------------------------------------------------------


def learn(params, logps_of, loss_of, update, num_iterations):
    """(params after `num_iterations` updates from one batch, the loss before each of them)."""
    old_logps, losses = mx.stop_gradient(logps_of(params)), []
    for _ in range(num_iterations):
        loss, grads = mx.value_and_grad(lambda params: loss_of(logps_of(params), old_logps))(params)
        params = update(params, grads)
        losses.append(loss.item())
    return params, losses


def _learn(function, coins, logits, num_iterations):
    """Return the parameters at the end and the losses, or a `Told` if every gradient was 0, up to rounding."""
    start, sizes = {"logits": mx.array(logits)}, []

    def update(params, grads):
        sizes.append(mx.abs(grads["logits"]).max().item())
        return descend(params, grads)

    result = function(start, coins.logps_of, coins.loss_of, update, num_iterations)
    if sizes and max(sizes) < 1e-6:
        return Told("gradients of 0 in all updates")
    if not isinstance(result, (tuple, list)) or len(result) != 2 or not isinstance(result[0], dict):
        return result
    losses = [mx.array(loss) for loss in result[1]] if isinstance(result[1], (list, tuple)) else result[1]
    return result[0], losses


def _draw_coins(rng):
    coins = Coins(rng.integers(0, 2, 4).tolist(), np.round(rng.normal(size=4), 2).tolist())
    return coins, rng.normal(size=2).astype(np.float32).tolist(), int(rng.integers(2, 5))


LEARN = Exercise(
    "18.4",
    "Learning from one batch",
    "Write `learn(params, logps_of, loss_of, update, num_iterations)`: several updates from one batch of tokens that "
    "`params` have drawn. `logps_of(params)` gives the log-probabilities that a policy has for these tokens; "
    "`loss_of(logps, old_logps)` is the loss, and `old_logps` are the log-probabilities **when the tokens were "
    "drawn**; `update(params, grads)` returns new parameters. Each update uses the gradient at the newest parameters. "
    "Return a tuple: the parameters at the end, and the list of the losses, each computed just before its update.",
    minutes=15,
    difficulty=3,
    solution=learn,
    hints=(
        "Compute the log-probabilities of the draw once, before the first update, and keep them. Compute the "
        "log-probabilities of *now* inside the function that is differentiated.",
        "`mx.value_and_grad(lambda params: loss_of(logps_of(params), old_logps))(params)` returns the loss and the "
        "gradients. With `logps_of(params)` outside the lambda, there would be no path from the parameters to the "
        "loss, and the gradient would be 0 (chapter 09).",
        "`old_logps = mx.stop_gradient(logps_of(params))` before the loop. The loop has three lines: loss and "
        "gradients, `params = update(params, grads)`, `losses.append(loss.item())`.",
    ),
    cases=(
        (Coins([0, 1, 1, 0], [1.0, -1.0, 0.5, -0.5]), [0.5, -0.25], 1),
        (Coins([0, 1, 1, 0], [1.0, -1.0, 0.5, -0.5]), [0.5, -0.25], 3),
        (Coins([1, 1, 0, 1], [2.0, 2.0, -2.0, 1.0]), [0.5, 0.0], 4),
        (Coins([0, 0, 1, 1], [-1.5, -1.0, 1.25, 1.0]), [1.0, -1.0], 2),
        (Coins([1, 0, 0, 1], [0.5, 0.0, -0.5, 0.25]), [0.25, 0.0], 9),
        (Coins([1, 1, 1, 0], [4.0, -1.0, 4.0, 0.0]), [3.0, -3.0], 5),  # a large gradient, and ratios far from 1
        *drawn(3, _draw_coins),
    ),
    mistakes=slips(
        learn,
        r'''
@ loss, grads = mx.value_and_grad(lambda params: loss_of(logps_of(params), old_logps))(params)
outside of the function (2)
+ logps = logps_of(params)
+ loss, grads = mx.value_and_grad(lambda params: loss_of(logps, mx.stop_gradient(logps)))(params)
! Either the log-probabilities were computed outside the function that is differentiated, so it contains no path from
! the parameters to the loss (mlx-lm-lora had this bug, issues 50 and 55, and its metrics looked healthy). Or the old
! log-probabilities change along with the new ones, so that the ratio is 1 whatever the parameters are: they have to be
! constants.
old ones each time
+ old_logps = mx.stop_gradient(logps_of(params))
+ loss, grads = mx.value_and_grad(lambda params: loss_of(logps_of(params), old_logps))(params)
! The old log-probabilities were recomputed for each update, so the ratio is always 1 and nothing is ever clipped. They
! belong to the policy that *drew* the tokens, before the first update.

old ones renewed
- loss, grads = mx.value_and_grad(lambda params: loss_of(logps_of(params), old_logps))(params)
+ if len(losses) % 4 == 0:
+     old_logps = mx.stop_gradient(logps_of(params))
+ loss, grads = mx.value_and_grad(lambda params: loss_of(logps_of(params), old_logps))(params)
! The old log-probabilities were computed again after some updates. They belong to the draw, however many updates there
! are.
losses after the updates (3)
- losses.append(loss.item())
+ losses.append(loss_of(logps_of(params), old_logps).item())
! Your losses are those *after* each update. Return the loss from just before it.
gradient at the first parameters
  """(params after `num_iterations` updates from one batch, the loss before each of them)."""
+ first = params
- loss, grads = mx.value_and_grad(lambda params: loss_of(logps_of(params), old_logps))(params)
+ loss, grads = mx.value_and_grad(lambda params: loss_of(logps_of(params), old_logps))(first)
! Every gradient was taken at the first parameters. After an update, use the newest parameters.

@ for _ in range(num_iterations):
one update (3)
+ for _ in range(1):
! There is only one update. Make `num_iterations` of them.
one too many (3)
+ for _ in range(num_iterations + 1):
! That is one update too many.

updates thrown away (3)
- params = update(params, grads)
+ update(params, grads)
! `update` returns new parameters and does not change the old ones: keep what it returns.
the last loss alone (3)
- return params, losses
+ return params, losses[-1:]
! Return all losses, one for each update.
''',
    ),
    also_right=r"""
# old ones from the first pass
def learn_at_the_first_pass(params, logps_of, loss_of, update, num_iterations):
    old, losses = None, []
    for _ in range(num_iterations):

        def loss_fn(params, old=old):
            logps = logps_of(params)
            return loss_of(logps, mx.stop_gradient(logps) if old is None else old), logps

        (loss, logps), grads = mx.value_and_grad(loss_fn)(params)
        old = logps if old is None else old
        params = update(params, grads)
        losses.append(float(loss))
    return params, losses
# mx.grad
def learn_with_grad(params, logps_of, loss_of, update, num_iterations):
    old = mx.array(np.array(logps_of(params)))
    losses = []
    while len(losses) < num_iterations:
        losses.append(loss_of(logps_of(params), old))
        params = update(params, mx.grad(lambda p: loss_of(logps_of(p), old))(params))
    return [params, losses]
""",
    also_wrong=r"""
# within e^2
- loss, grads = mx.value_and_grad(lambda params: loss_of(logps_of(params), old_logps))(params)
+ near = lambda params: old_logps + mx.clip(logps_of(params) - old_logps, -2, 2)
+ loss, grads = mx.value_and_grad(lambda params: loss_of(near(params), old_logps))(params)
# short gradients
- params = update(params, grads)
+ params = update(params, {name: mx.clip(each, -1, 1) for name, each in grads.items()})
# at most four
- for _ in range(num_iterations):
+ for _ in range(min(num_iterations, 4)):
# old ones that move
- loss, grads = mx.value_and_grad(lambda params: loss_of(logps_of(params), old_logps))(params)
+ both = lambda logps: loss_of(logps, logps)
+ loss, grads = mx.value_and_grad(lambda params: both(logps_of(params)))(params)
! they have to be constants
# scored twice
- loss, grads = mx.value_and_grad(lambda params: loss_of(logps_of(params), old_logps))(params)
+ loss, grads = mx.value_and_grad(lambda params: loss_of(logps_of(params), logps_of(params)))(params)
! they have to be constants
# in place
- params = update(params, grads)
+ params.update(update(params, grads))
! work on a copy
""",
    run=_learn,
)


# -- how far ----------------------------------------------------------------------------------------------------------


def learning_rate(step, max_steps, peak, warmup_steps):
    """The rate of step `step`, from 0: it rises to `peak`, then falls towards 0."""
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    return peak * (max_steps - step) / (max_steps - warmup_steps)


RATE = Exercise(
    "18.5",
    "How far to step",
    "Write `learning_rate(step, max_steps, peak, warmup_steps)` for `step` from 0 to `max_steps` - 1. In the first "
    "`warmup_steps` steps the rate rises evenly: with 3 warm-up steps it is 1/4, 2/4 and 3/4 of `peak`. The next step "
    "has the whole `peak`. From there the rate falls evenly, so that it would reach 0 at step `max_steps`; but the "
    "run ends before that step. `warmup_steps` is smaller than `max_steps` and may be 0.",
    minutes=6,
    difficulty=1,
    solution=learning_rate,
    hints=(
        "Two formulas and an `if`. What is the rate of step 0 with 3 warm-up steps? It is not 0: that would waste a "
        "step.",
        "Rising: `(step + 1) / (warmup_steps + 1)` of the peak.",
        "Falling: it is the whole peak at step `warmup_steps` and 0 at `max_steps`: `(max_steps - step) / (max_steps "
        "- warmup_steps)` of the peak.",
    ),
    cases=(
        (0, 10, 1.0, 0),
        (9, 10, 0.5, 0),
        (0, 10, 1.0, 3),
        (2, 10, 2.0, 3),
        (3, 10, 1.0, 3),
        (4, 10, 1.0, 3),
        (9, 10, 1.0, 3),
        (0, 1, 0.3, 0),
        (1, 2, 0.25, 1),
        (249, 250, 8e-4, 0),
        (30, 250, 1.0, 50),
        (100, 357, 8e-4, 0),
        (700, 1000, 30.0, 800),
        *drawn(4, lambda rng: (int(rng.integers(0, 20)), 20, float(rng.uniform(0.1, 2)), int(rng.integers(0, 12)))),
    ),
    mistakes=slips(
        learning_rate,
        r"""
@ return peak * (step + 1) / (warmup_steps + 1)
begins at 0
+ return peak * step / warmup_steps
! The first step has rate 0, so all its work is wasted.
peak too early (2)
+ return peak * (step + 1) / warmup_steps
! The last warm-up step already has the whole peak; the peak should come right after it.
falls during the warm-up
+ return peak * (step + 1) / (warmup_steps + 1) * (1 - step / max_steps)
! During the warm-up the rate only rises.

@ return peak * (max_steps - step) / (max_steps - warmup_steps)
falls from the beginning (3)
+ return peak * (max_steps - step) / max_steps
! After the warm-up the rate does not begin at the peak.
0 in the last step (3)
+ return peak * (max_steps - 1 - step) / (max_steps - warmup_steps)
or
+ return peak * (max_steps - 1 - step) / (max_steps - 1 - warmup_steps)
or
+ return peak * (max_steps - 1 - step) / max(max_steps - 1 - warmup_steps, 1)
! The rate reaches 0 one step too early. It should be 0 at step `max_steps`, which is not taken.
stays (3)
+ return peak
! The rate stays at the peak to the end.
a smallest rate (3)
+ return peak * max((max_steps - step) / (max_steps - warmup_steps), 0.01)
! The rate stops falling near the end. It falls evenly to the last step, with no smallest rate.

no warm-up
- if step < warmup_steps:
-     return peak * (step + 1) / (warmup_steps + 1)
! The rate does not rise in the first steps.
""",
    ),
    also_right=r"""
# interpolation
lambda step, most, peak, warmup: peak * np.interp(step, [-1, warmup, most], [0, 1, 0])
# the smaller of two
lambda step, most, peak, warmup: peak * min((step + 1) / (warmup + 1), (most - step) / (most - warmup))
""",
    also_wrong=r"""
# at least 1e-5
lambda *settings: max(learning_rate(*settings), 1e-5)
# at most 2
lambda *settings: min(learning_rate(*settings), 2.0)
# a short warm-up
lambda step, most, peak, warmup: learning_rate(step, most, peak, min(warmup, 12))
# the peak
lambda step, most, peak, warmup: peak
""",
    explain=(
        "GRPO learns without the decline too. With it, the small steps at the end let the noise of single batches "
        "average out. The price is that you have to know the length of the run from the beginning."
    ),
)


# -- how good ---------------------------------------------------------------------------------------------------------


def accuracy(task, write, num_problems, batch_size):
    """The share of `num_problems` held-out problems that the policy solves."""
    problems = task.held_out(num_problems)
    right = 0
    for start in range(0, num_problems, batch_size):
        part = problems[start : start + batch_size]
        answers = write([problem.prompt for problem in part])
        right += sum(task.is_correct(problem, answer) for problem, answer in zip(part, answers))
    return right / num_problems


def _quiz(function, quiz, num_problems, batch_size):
    """Return the share for a policy that cannot answer more than `batch_size` prompts at once."""

    def write(prompts):
        if len(prompts) > batch_size:
            raise MemoryError(f"{len(prompts)} prompts at once do not fit; at most {batch_size} do")
        return quiz.write(prompts)

    return function(quiz, write, num_problems, batch_size)


ACCURACY = Exercise(
    "18.6",
    "How good is it now?",
    "Write `accuracy(task, write, num_problems, batch_size)`: the share, from 0 to 1, that the policy solves of "
    "`num_problems` problems **that training never sees**. `task.held_out(n)` returns the first `n` of these "
    "problems; each has a `.prompt`. `write(prompts)` returns the policy's answers to a list of prompts, as texts; "
    "more than `batch_size` prompts at once do not fit into memory. `task.is_correct(problem, answer)` says whether "
    "an answer is right.",
    minutes=8,
    difficulty=1,
    solution=accuracy,
    hints=(
        "Get all problems first, then loop over parts of them: `problems[start : start + batch_size]`.",
        "Count the right answers and divide once, at the end, by the number of problems. The last part may be smaller.",
        "Use `is_correct`, not the reward: a reward may pay for form, and training has optimized it.",
    ),
    cases=(
        (Quiz({100, 101}), 4, 4),
        (Quiz({100, 104}), 5, 2),
        (Quiz(set()), 3, 1),
        (Quiz({106}), 7, 3),
        (Quiz({*range(100, 109)}), 9, 4),
    ),
    mistakes=slips(
        accuracy,
        r"""
mean of the parts' means (2)
- right += sum(task.is_correct(problem, answer) for problem, answer in zip(part, answers))
+ right += sum(task.is_correct(problem, answer) for problem, answer in zip(part, answers)) / len(part)
- return right / num_problems
+ return right / len(range(0, num_problems, batch_size))
! That is the mean of the parts' shares. A problem in a smaller last part then counts more than the other problems.
training problems
- problems = task.held_out(num_problems)
+ problems = task.sample(np.random.default_rng(0), num_problems)
! Those are problems of the training set. They show little about whether the policy can add: ask it problems that it
! never saw.
all at once
- for start in range(0, num_problems, batch_size):
-     part = problems[start : start + batch_size]
+ for start in range(0, num_problems, num_problems):
+     part = problems
! All prompts went through at once, but at most `batch_size` fit.

@ right += sum(task.is_correct(problem, answer) for problem, answer in zip(part, answers))
the reward (3)
+ right += sum(task.reward_funcs[0]([problem], [answer])[0] for problem, answer in zip(part, answers))
! The reward was averaged. It may pay for something other than right answers.
compared as text (3)
+ right += sum(answer == problem.answer for problem, answer in zip(part, answers))
! Answers are compared with `problem.answer` letter by letter. The task decides which answers count as right: here a
! space does no harm.

a count (2)
- return right / num_problems
+ return right
! That is the number of right answers. Divide it by the number of problems.

@ for start in range(0, num_problems, batch_size):
the last part left out (2)
+ for start in range(0, num_problems - batch_size + 1, batch_size):
! The last part is smaller, and it was left out.
the first part alone
+ for start in range(0, 1, batch_size):
! Only the first part was asked.
""",
    ),
    also_right=r"""
# a list of answers
def accuracy_by_list(task, write, num_problems, batch_size):
    problems, answers = list(task.held_out(num_problems)), []
    while len(answers) < len(problems):
        answers += write([each.prompt for each in problems[len(answers) :][:batch_size]])
    return np.mean([task.is_correct(*pair) for pair in zip(problems, answers, strict=True)])
""",
    also_wrong=r"""
# four at once
lambda task, write, num_problems, batch_size: accuracy(task, write, num_problems, 4)
! at most 2 do
# contains the answer
lambda task, write, n, size: np.mean([each.answer in write([each.prompt])[0] for each in task.held_out(n)])
! gave 1, expected 0.5
# compared without spaces
lambda task, write, n, size: np.mean([write([each.prompt])[0].strip() == each.answer for each in task.held_out(n)])
! letter by letter
# any text
lambda task, write, n, size: sum(bool(text) for text in write([each.prompt for each in task.held_out(n)])) / n
""",
    run=_quiz,
)


# -- the whole step ---------------------------------------------------------------------------------------------------


def grpo_step(parts, params, step):
    """(new parameters, metrics) of one step of GRPO."""
    questions = parts.questions(step)
    answers = parts.write(params, questions, step)
    rewards = parts.reward(questions, answers)
    advantages = parts.advantages(rewards)
    rows = parts.rows_that_teach(rewards)
    metrics = {"reward": sum(rewards) / len(rewards), "teaching": len(rows) / len(rewards)}
    if rows:
        num_items = sum(len(answer) for answer in answers)
        chosen = ([each[row] for row in rows] for each in (questions, answers, advantages))
        params = parts.learn(params, *chosen, num_items)
    return params, metrics


def _draw_step(rng):
    return Parts(rng.integers(0, 10, (3, 4)).tolist()), float(rng.integers(0, 4)), int(rng.integers(0, 3))


STEP = Exercise(
    "18.7",
    "A step of GRPO",
    "Write `grpo_step(parts, params, step)`. `parts` contains the functions of this chapter, with their settings "
    "filled in:\n"
    "\n"
    "- `parts.questions(step)`: a list of questions, the rows of a group next to each other\n"
    "- `parts.write(params, questions, step)`: a list with one answer per question; an answer is a list of tokens\n"
    "- `parts.reward(questions, answers)`: a list of numbers\n"
    "- `parts.advantages(rewards)`: one for each row, from the rewards of the whole batch\n"
    "- `parts.rows_that_teach(rewards)`: a list of indices\n"
    "- `parts.learn(params, questions, answers, advantages, num_items)`: new parameters, from one update. It expects "
    "only the rows that teach, and divides the sum of their token losses by `num_items`: the number of tokens in *all* "
    "answers of the batch, as in 16.9. The rows that teach nothing add 0 to the sum, but their tokens count in the "
    "denominator.\n"
    "\n"
    "`parts.learn` cannot learn from an empty batch: if no row teaches, the parameters stay as they are. Return a "
    'tuple: the parameters, and a dictionary with `"reward"`, the mean reward of *all* answers, and `"teaching"`, '
    "the share of rows that teach.",
    minutes=15,
    difficulty=2,
    solution=grpo_step,
    hints=(
        "One line per part, in the order of the text: questions, answers, rewards, advantages, rows.",
        "`learn` gets three lists with the same rows: `[answers[row] for row in rows]`, and so on. `num_items` is "
        "`sum(len(answer) for answer in answers)`, from the answers before any were left out.",
        "The metrics are about all answers: compute them from `rewards`, not from the remaining rows.",
    ),
    cases=(
        (Parts([[1, 2, 3, 4]]), 0.0, 0),
        (Parts([[1, 2], [2, 9, 4, 0]]), 1.0, 1),
        (Parts([[9, 9]]), 2.0, 0),
        (Parts([[3], [7]]), 1.0, 1),
        *drawn(4, _draw_step),
    ),
    mistakes=slips(
        grpo_step,
        r"""
learns from nothing
- if rows:
+ if True:
! If no group of a step has any spread, there is no row left to learn from. Then the parameters stay as they are.

@ chosen = ([each[row] for row in rows] for each in (questions, answers, advantages))
all advantages (2)
+ chosen = (*([each[row] for row in rows] for each in (questions, answers)), advantages)
! `learn` got the chosen questions and answers, but the advantages of all rows.
all rows (2)
+ chosen = (each for each in (questions, answers, advantages))
! `learn` got all rows, even those that teach nothing.

@ chosen = ([each[row] for row in rows] for each in (questions, answers, advantages))
@ params = parts.learn(params, *chosen, num_items)
the first advantages (2)
+ chosen = ([each[row] for row in rows] for each in (questions, answers))
+ params = parts.learn(params, *chosen, advantages[: len(rows)], num_items)
! Those are the *first* advantages, which no longer belong to the answers. Choose the same rows of all three lists.
advantages of the rows that teach (2)
+ chosen = ([each[row] for row in rows] for each in (questions, answers))
+ params = parts.learn(params, *chosen, parts.advantages([rewards[row] for row in rows]), num_items)
! The advantages were computed from the rows that teach. They may depend on the whole batch: `scale_rewards="batch"`
! divides by the standard deviation of all rewards. Compute them from all rewards, then leave rows out.

@ metrics = {"reward": sum(rewards) / len(rewards), "teaching": len(rows) / len(rewards)}
reward of the rows that teach (3)
+ metrics = {"reward": sum(rewards[row] for row in rows) / max(len(rows), 1), "teaching": len(rows) / len(rewards)}
! That is the mean reward of the rows that teach. It stays near one half however good the policy is. Report the mean of
! all rewards.
a count (3)
+ metrics = {"reward": sum(rewards) / len(rewards), "teaching": len(rows)}
! `"teaching"` is a share: divide by the number of rows.

rewards in place of advantages
- advantages = parts.advantages(rewards)
+ advantages = rewards
! `learn` got rewards. Without the comparison within the group, every rewarded answer is pushed up.
always step 0
- questions = parts.questions(step)
+ questions = parts.questions(0)
! Every step asks the questions of step 0.
draws of step 0
- answers = parts.write(params, questions, step)
+ answers = parts.write(params, questions, 0)
! Every step draws with the random numbers of step 0: pass `step` on to `write`.

@ params = parts.learn(params, *chosen, num_items)
old parameters
+ parts.learn(params, *chosen, num_items)
! `learn` returns new parameters, but the old ones were returned.
no num_items (2)
+ params = parts.learn(params, *chosen)
! `learn` also takes `num_items`, the number of tokens in all answers.

@ num_items = sum(len(answer) for answer in answers)
tokens of the rows that teach (2)
+ num_items = sum(len(answers[row]) for row in rows)
! `num_items` counts only the tokens of the rows that teach. The update then grows with every row that is left out,
! although such a row says nothing. Count the tokens of all answers.
rows instead of tokens (2)
+ num_items = len(answers)
! `num_items` is the number of answers. Count their tokens.
tokens of rows with an advantage (2)
+ num_items = sum(len(answer) for answer, push in zip(answers, advantages) if push)
! `num_items` leaves out the tokens of answers with advantage 0. They add nothing to the sum, but they count in the
! denominator.

rows with an advantage
- rows = parts.rows_that_teach(rewards)
+ rows = [row for row, push in enumerate(advantages) if push]
! You chose the rows whose advantage is not 0. A row whose reward equals the mean of its group is one of a group that
! teaches: take what `parts.rows_that_teach` returns.
""",
    ),
    also_right=r"""
import itertools
# columns
def step_in_other_words(parts, params, step):
    asked = parts.questions(step)
    answers = parts.write(params, asked, step)
    rewards = parts.reward(asked, answers)
    rows, pushes = parts.rows_that_teach(rewards), parts.advantages(rewards)
    metrics = dict(reward=np.mean(rewards), teaching=len(rows) / len(asked))
    if not rows:
        return params, metrics
    num_items = len(list(itertools.chain.from_iterable(answers)))
    asked, answers, pushes = zip(*((asked[row], answers[row], pushes[row]) for row in rows), strict=True)
    return [parts.learn(params, list(asked), list(answers), list(pushes), num_items), metrics]
""",
    also_wrong=r"""
# group by group
- params = parts.learn(params, *chosen, num_items)
+ chosen = [*chosen]
+ for start in range(0, len(rows), parts.group_size):
+     params = parts.learn(params, *(each[start : start + parts.group_size] for each in chosen), num_items)
# every row
- rows = parts.rows_that_teach(rewards)
+ rows = [*range(len(rewards))]
! there are rows of a group that teaches nothing
""",
)


# -- the loop ---------------------------------------------------------------------------------------------------------


def train(take_step, state, max_steps):
    """Yield (step, metrics) after each step, until `max_steps` have been done in all."""
    while state["step"] < max_steps:
        metrics = take_step(state)
        state["step"] += 1
        yield state["step"], metrics


LOOP = Exercise(
    "18.8",
    "The loop is an iterator",
    'Write `train(take_step, state, max_steps)`, to be used as `for step, metrics in train(...)`. `state["step"]` is '
    "the number of steps done so far, perhaps by an earlier run. `take_step(state)` does one more step and returns "
    "its metrics, but does not count it: you do. After each step, yield a tuple of its number, from 1, and its "
    "metrics, until `max_steps` have been done **in all**. No step runs before the caller asks for it. A caller that "
    "leaves the loop can continue later with a new one. A step that raises does not count.",
    minutes=12,
    difficulty=2,
    solution=train,
    hints=(
        "A function with a `yield` in it is a generator: each time the caller asks for the next value, its body runs "
        "up to the next `yield`, and not before.",
        '`while state["step"] < max_steps:` checks how far the run has come. `range(max_steps)` would begin again at '
        "0.",
        'First `metrics = take_step(state)`, then `state["step"] += 1`, then the `yield`. The body of the loop then '
        "sees the step counted, and an exception in `take_step` leaves the number as it was.",
    ),
    cases=(
        *((0, 3, None, None), (0, 5, 2, None), (2, 4, None, None), (0, 4, None, 2), (3, 3, None, None), (1, 6, 1, 5)),
        (5, 3, None, None),
    ),
    mistakes=slips(
        train,
        r"""
a list of all steps
- while state["step"] < max_steps:
-     metrics = take_step(state)
-     state["step"] += 1
-     yield state["step"], metrics
+ seen = []
+ while state["step"] < max_steps:
+     metrics = take_step(state)
+     state["step"] += 1
+     seen.append((state["step"], metrics))
+ return iter(seen)
! All steps were taken before the first one was yielded, so nobody can watch or stop the run. `yield` hands over one
! step at a time.

@ while state["step"] < max_steps:
counted from 0 (2)
+ for _ in range(max_steps):
! It does `max_steps` more steps, whatever was done before.
stops only at the number itself (2)
+ while state["step"] != max_steps:
! A run that has already done more than `max_steps` steps never ends. Compare with `<`.
one too few (2)
+ while state["step"] < max_steps - 1:
! It ends one step too early.
one too many (2)
+ while state["step"] <= max_steps:
! It does one step too many.

counted before (3)
  while state["step"] < max_steps:
+     state["step"] += 1
- state["step"] += 1
! The step was counted before it was done, so a failing step is counted too, and it is missing when the run continues.
counted afterwards (3)
  metrics = take_step(state)
+ yield state["step"] + 1, metrics
- yield state["step"], metrics
! The step is counted only when the caller asks for the next one. If you leave the loop after it, it is never counted,
! and the next loop repeats it.

@ yield state["step"], metrics
number from 0 (3)
+ yield state["step"] - 1, metrics
! Steps are numbered from 1: after the first step, 1 step has been done.
metrics alone (3)
+ yield metrics
! Yield the number of the step with its metrics, as a tuple.

never counted (3)
- state["step"] += 1
! The steps are not counted, so the loop never ends.
""",
    ),
    also_right=r"""
# range
def train_by_range(take_step, state, max_steps):
    for number in range(state["step"] + 1, max_steps + 1):
        metrics = take_step(state)
        state["step"] = number
        yield [number, metrics]
# a class
class TrainByClass:
    def __init__(self, take_step, state, max_steps):
        self.take_step, self.state, self.max_steps = take_step, state, max_steps

    def __iter__(self):
        return self

    def __next__(self):
        if self.state["step"] >= self.max_steps:
            raise StopIteration
        metrics = self.take_step(self.state)
        self.state["step"] += 1
        return self.state["step"], metrics
""",
    also_wrong=r"""
# everything
lambda take_step, state, most: [(state["step"] + 1, take_step(state)) for _ in range(most - state["step"])]
! needs an iterator
# no yield
- yield state["step"], metrics
! None, but
# the first step at once
import itertools

def eager(take_step, state, max_steps):
    first = take_step(state) if state["step"] < max_steps else None
    state["step"] += first is not None
    return itertools.chain([(state["step"], first)] if first else [], train(take_step, state, max_steps))
! before the caller asked
# errors that nobody sees
- metrics = take_step(state)
+ try:
+     metrics = take_step(state)
+ except RuntimeError:
+     continue
""",
    run=follow,
    in_place=True,
    explain=(
        "Pausing, stopping, evaluating, saving and drawing now happen in the body of the loop, and the loop needs to "
        "know nothing about them. That is why the kit's `trainer.train(...)` has no callbacks."
    ),
)


# -- what has to be saved ---------------------------------------------------------------------------------------------


SAVED = Exercise(
    "18.9",
    "What has to be saved?",
    "The machine goes down after step 120 of 250. The run should continue as if nothing had happened, to the last "
    "bit. Your code and the settings are safe. Which of these have to be on disk? Answer with the letters, in "
    'alphabetical order, as a string such as `"BDF"`.\n\n'
    "A: the parameters.  B: the newest gradient.  C: AdamW's two running means of every parameter.  D: the number of "
    "steps done.  E: the state of a random number generator.  F: the KV cache.  G: the old log-probabilities.  H: the "
    "learning rate that was used last.",
    minutes=5,
    difficulty=2,
    solution="ACD",
    hints=(
        "Go through your loop from its first line: what does step 121 read that it does not compute itself?",
        "The questions come from `[seed, step]`, and so do the random numbers of the draws. The learning rate comes "
        "from `step` too.",
        "The gradient, the cache and the old log-probabilities belong to one step: it computes them and throws them "
        "away.",
    ),
    mistakes=(
        Mistake(
            "parameters and step",
            "AD",
            "Try it below: without the running means, AdamW starts again as in its first step, where it moves every "
            "parameter by nearly the whole learning rate, whatever the size of its gradient.",
            1,
        ),
        Mistake("parameters alone", "A", "Which questions would step 121 ask, and at which learning rate?", 1),
        Mistake(
            "parameters and means",
            "AC",
            "Without the number of steps, the run asks the questions of step 1 again, and begins at the full learning "
            "rate.",
            2,
        ),
        Mistake(
            "a generator",
            "ACDE",
            "Your draws come from `(seed, step)`. There is no generator whose state you could save.",
            2,
        ),
        Mistake("the rate", "ACDH", "The learning rate follows from the number of the step.", 2),
        Mistake(
            "old log-probabilities", "ACDG", "Step 121 computes them itself, from the policy that it starts with.", 3
        ),
        Mistake("the gradient", "ABCD", "Step 121 computes a gradient of its own.", 3),
        Mistake("the cache", "ACDF", "The cache belongs to finished answers.", 3),
        *(
            Mistake(f"in the order {order}", order, f"{order} has the right letters: give them in alphabetical order.")
            for order in ("ADC", "CAD", "CDA", "DAC", "DCA")
        ),
        Mistake("all", "ABCDEFGH", "That would work, but three are enough.", 1),
    ),
    also_right=r"""
# small letters
"acd"
# commas
"A, C, D"
# a list
["A", "C", "D"]
""",
    also_wrong=r"""
# one wrong
"ACE"
# words
"AC and the step"
""",
    explain=(
        "With a KL penalty (beta above 0) you also have to save the reference policy. AdamW keeps two numbers for "
        "every parameter: that is why a checkpoint is three times as large as the model."
    ),
)
