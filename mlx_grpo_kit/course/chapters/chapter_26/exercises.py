"""Exercises of notebook 26: a task of your own."""

import re

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_23.exercises import exactly
from mlx_grpo_kit.course.exercise import Exercise, drawn
from mlx_grpo_kit.course.slips import slips

# -- a row ------------------------------------------------------------------------------------------------------------


def gold_answer(answer):
    """The number at the end of a GSM8K answer, as a string without commas, or None."""
    if "####" not in answer:
        return None
    return answer.rpartition("####")[2].strip().replace(",", "")


def _any_row(rng):
    a, b = (int(each) for each in rng.integers(100, 5000, 2))
    return (f"{a} and {b} are {a + b:,}.{rng.choice([chr(10), ' '])}####{rng.choice(['', ' '])}{a + b:,}\n",)


GOLD_ANSWER = Exercise(
    "26.1",
    "The answer in a row",
    "Write `gold_answer(answer)`. `answer` is the answer of a row in GSM8K's form: a calculation in words, and the "
    "number after the last `####`. Return that number as a string without blanks around it and without commas, or "
    "None if there is no `####`.",
    minutes=5,
    difficulty=1,
    solution=gold_answer,
    run=exactly,
    hints=(
        '`answer.rpartition("####")[2]` is the part after the last `####`.',
        "Without any `####` that would be the whole text, so check for it first.",
    ),
    cases=(
        ("27 + 15 = 42\n#### 42",),
        ("#### 1,050",),
        ("#### 7 #### 8",),
        ("42",),
        ("",),
        ("a\n####-3\n",),
        ("It is 5, not 6.\n#### 1,234,567",),
        ("half of it\n#### 2.50",),
        ("Take bus #5.",),
        *drawn(4, _any_row),
    ),
    mistakes=slips(
        gold_answer,
        r"""
the last word (2)
- if "####" not in answer:
-     return None
+ if True:
+     return answer.split()[-1].replace(",", "") if answer.split() else None
! That is the last word, even if there is no `####` before it.

@ return answer.rpartition("####")[2].strip().replace(",", "")
the first
+ return answer.partition("####")[2].strip().replace(",", "")
! That is the text after the *first* `####`.
commas
+ return answer.rpartition("####")[2].strip()
! The commas are still there.
blanks
+ return answer.rpartition("####")[2].replace(",", "")
! Blanks and line breaks around the number are still there.

no #### (2)
- return None
+ return answer
! Without `####` there is no answer in the row: return None.
""",
    ),
    also_right=r"""
# split
lambda answer: answer.split("####")[-1].strip().replace(",", "") if "####" in answer else None
# a pattern
def gold_by_pattern(answer):
    found = re.findall(r"####\s*([^#]*)", answer)
    return "".join(found[-1].split(",")).strip() if found else None
""",
    also_wrong=r"""
# whole numbers
lambda answer: str(int(float(gold_answer(answer)))) if "####" in answer else None
# a blank after it
lambda answer: answer.split("#### ")[-1].replace(",", "") if "####" in answer else None
# a single #
lambda answer: answer[answer.rfind("#") + 1 :].strip().replace(",", "") if "#" in answer else None
""",
)


# -- the cost of a step -----------------------------------------------------------------------------------------------


def step_seconds(parameters, rows, prompt, completion, flops, bandwidth):
    """(seconds of sampling, seconds of learning) of a GRPO step."""
    a_token = max(2 * parameters / bandwidth, 2 * parameters * rows / flops)
    learning = 6 * parameters * rows * (prompt + completion) / flops
    return completion * a_token, learning


def _plain_numbers(function, *arguments):
    """A pair of numbers, from an array of two."""
    got = function(*arguments)
    return tuple(got.tolist()) if getattr(got, "shape", None) == (2,) else got


def _any_machine(rng):
    return (
        float(rng.uniform(1e8, 1e10)),
        int(rng.integers(1, 200)),
        int(rng.integers(10, 300)),
        int(rng.integers(10, 1000)),
        float(10 ** rng.uniform(10, 15)),
        float(10 ** rng.uniform(10, 12.5)),
    )


STEP_SECONDS = Exercise(
    "26.2",
    "What a step costs",
    "Write `step_seconds(parameters, rows, prompt, completion, flops, bandwidth)`. Return a pair: the seconds that a "
    "GRPO step takes to sample, and the seconds that it takes to learn, at best. Sampling goes token by token, "
    "`completion` times. Each time, all weights are read once for all `rows` together (2 bytes per parameter, at "
    "`bandwidth` bytes per second), and each row takes 2 operations per parameter (at `flops` operations per "
    "second). Reading and computing run at the same time, so the **longer** of the two counts. Learning takes 6 "
    "operations per parameter for every token of every row, in the prompt and in the completion. (Ignore the time to "
    "read the prompts before sampling: it is small.)",
    minutes=10,
    difficulty=2,
    solution=step_seconds,
    run=_plain_numbers,
    hints=(
        "For one token of all rows: reading takes `2 * parameters / bandwidth` seconds, computing takes `2 * "
        "parameters * rows / flops`. Which one is longer?",
        "Take the `max` of the two, times `completion`. Learning: `6 * parameters * rows * (prompt + completion) / "
        "flops`.",
    ),
    cases=(
        (6e8, 1, 40, 100, 1e13, 1e11),
        (6e8, 64, 40, 100, 1e11, 1e11),
        (6e8, 64, 40, 256, 1e15, 3e12),
        (6e8, 1, 2, 4, 1e15, 1e10),
        *drawn(4, _any_machine),
    ),
    mistakes=slips(
        step_seconds,
        r"""
@ a_token = max(2 * parameters / bandwidth, 2 * parameters * rows / flops)
one after the other
+ a_token = sum((2 * parameters / bandwidth, 2 * parameters * rows / flops))
! Reading and computing run at the same time: the longer of the two counts, not their sum.
read for every row
+ a_token = max(2 * parameters * rows / bandwidth, 2 * parameters * rows / flops)
! The weights are read once for all rows together: that is why a batch costs little more than one row.
one row computed
+ a_token = max(2 * parameters / bandwidth, 2 * parameters / flops)
! Every row has to be computed.

@ learning = 6 * parameters * rows * (prompt + completion) / flops
without the prompt (2)
+ learning = 6 * parameters * rows * completion / flops
! Learning processes the prompt too.
forward only (2)
+ learning = 2 * parameters * rows * (prompt + completion) / flops
! The forward pass takes 2 operations per parameter; the backward pass takes twice as many in addition.
""",
    ),
    also_right=r"""
def cost_of_each_token(parameters, rows, prompt, completion, flops, bandwidth):
    reading, computing = 2 * parameters / bandwidth, rows * 2 * parameters / flops
    return sum(max(reading, computing) for _ in range(completion)), (2 + 4) * parameters * rows * (
        prompt + completion
    ) / flops
# each token
cost_of_each_token
# an array
lambda *arguments: np.array(cost_of_each_token(*arguments))
""",
    also_wrong=r"""
# learning reads the weights
- learning = 6 * parameters * rows * (prompt + completion) / flops
+ learning = max(6 * parameters * rows * (prompt + completion) / flops, 2 * parameters / bandwidth)
# reading only
- a_token = max(2 * parameters / bandwidth, 2 * parameters * rows / flops)
+ a_token = 2 * parameters / bandwidth
# a sum
lambda *arguments: sum(step_seconds(*arguments))
""",
)


# -- how exact is an accuracy -----------------------------------------------------------------------------------------


def share_range(right, n):
    """(smallest, largest) share p within two of its standard deviations of right / n."""
    share = right / n
    middle = share + 2 / n
    half = 2 * (share * (1 - share) / n + 1 / n**2) ** 0.5
    return (middle - half) / (1 + 4 / n), (middle + half) / (1 + 4 / n)


def _any_exam(rng):
    n = int(rng.integers(2, 600))
    return int(rng.integers(0, n + 1)), n


_OF_P = (
    "That puts the share that you *saw* in the place of p: after 0 of 10 right answers it claims that the share is "
    "0, without any doubt. The spread belongs to p, and each p has its own."
)

SHARE_RANGE = Exercise(
    "26.3",
    "How exact is an accuracy?",
    "Write `share_range(right, n)`: `right` of `n` problems were solved. Return a pair: the smallest and the largest "
    "share p from 0 to 1 for which your result, `right / n`, is at most two standard deviations away from p. For a "
    "share p the standard deviation is the square root of `p * (1 - p) / n`. Use a formula or a search, as you like, "
    "but both numbers have to be right to seven significant digits.",
    minutes=10,
    difficulty=2,
    solution=share_range,
    run=_plain_numbers,
    hints=(
        "At both ends the distance is *exactly* two standard deviations: `(right / n - p)**2 == 4 * p * (1 - p) / "
        "n`. That is a quadratic equation in p. Or search: `right / n` itself always fits, and 0 and 1 usually do "
        "not; halve the interval between them about fifty times.",
        "With `share = right / n` the equation is `(1 + 4 / n) * p**2 - (2 * share + 4 / n) * p + share**2 == 0`, "
        "and its two solutions are the two ends.",
    ),
    cases=((8, 10), (0, 10), (10, 10), (35, 90), (1, 1), (0, 1), (1, 256), (500, 1000), *drawn(4, _any_exam)),
    mistakes=slips(
        share_range,
        r"""
@ middle = share + 2 / n
@ half = 2 * (share * (1 - share) / n + 1 / n**2) ** 0.5
@ return (middle - half) / (1 + 4 / n), (middle + half) / (1 + 4 / n)
the observed share
+ half = 2 * (share * (1 - share) / n) ** 0.5
+ return share - half, share + half
! That puts the share that you *saw* in the place of p: after 0 of 10 right answers it claims that the share is 0,
! without any doubt. The spread belongs to p, and each p has its own.
the observed share, cut off
+ half = 2 * (share * (1 - share) / n) ** 0.5
+ return max(share - half, 0.0), min(share + half, 1.0)
! Cutting off only hides the mistake. That puts the share that you *saw* in the place of p: after 0 of 10 right answers
! it claims that the share is 0, without any doubt. The spread belongs to p, and each p has its own.
the largest spread
+ return max(share - n**-0.5, 0.0), min(share + n**-0.5, 1.0)
! That uses the spread of p = 0.5 for every p. It is the largest, so the range is too wide near 0 and 1.

one standard deviation
- middle = share + 2 / n
- half = 2 * (share * (1 - share) / n + 1 / n**2) ** 0.5
- return (middle - half) / (1 + 4 / n), (middle + half) / (1 + 4 / n)
+ middle = share + 0.5 / n
+ half = 1 * (share * (1 - share) / n + 0.25 / n**2) ** 0.5
+ return (middle - half) / (1 + 1 / n), (middle + half) / (1 + 1 / n)
! That is one standard deviation; it should be two.
""",
    ),
    also_right=r"""
# halving, on both sides of the observed share, which always fits
import math
def range_by_halving(right, n):
    def end(inside, outside):
        for _ in range(60):
            p = (inside + outside) / 2
            fits = abs(right / n - p) <= 2 * math.sqrt(p * (1 - p) / n)
            inside, outside = (p, outside) if fits else (inside, p)
        return inside

    return [end(right / n, 0.0), end(right / n, 1.0)]
# roots
def range_by_roots(right, n):
    share = right / n
    return np.sort(np.roots([1 + 4 / n, -2 * share - 4 / n, share**2]).real)
# an array of MLX
from mlx_grpo_kit.runtime import mx
lambda right, n: mx.array(share_range(right, n))
""",
    also_wrong=r"""
# the largest spread, not cut off
lambda right, n: (right / n - 1 / n**0.5, right / n + 1 / n**0.5)
# the observed share, in NumPy
def wald(right, n):
    share = np.float64(right / n)
    return tuple(share + np.array([-2, 2]) * np.sqrt(share * (1 - share) / n))

! in the place of p
# rounded
lambda right, n: [round(each, 3) for each in share_range(right, n)]
# the largest first
lambda right, n: share_range(right, n)[::-1]
# two problems at least
lambda right, n: share_range(right, max(n, 2))
# one right answer at least
lambda right, n: share_range(max(right, 1), n)
""",
)


# -- the exam in the book ---------------------------------------------------------------------------------------------


def leaked(exam, training, n):
    """The positions of exam questions that share n words in a row with a training text."""

    def words(text):
        return re.findall("[a-z0-9]+", text.lower())

    def runs(found, length):
        return {tuple(found[i : i + length]) for i in range(len(found) - length + 1)}

    book, known, places = [words(text) for text in training], {}, []
    for place, text in enumerate(exam):
        own = words(text)
        length = min(n, len(own))
        if length and length not in known:
            known[length] = set().union(*(runs(found, length) for found in book))
        if length and runs(own, length) & known[length]:
            places.append(place)
    return places


def _places(function, exam, training, n):
    """Positions as a list, from a list, a tuple or an array."""
    got = function(list(exam), list(training), n)
    return [int(each) for each in got] if isinstance(got, (list, tuple, np.ndarray)) else got


def _a_book_of_sums(rng):
    """Sums in few words, so that many texts have words in common; two of them are copied with changes."""
    marks, names = ["?", " ?", "...", ""], ["Ann", "Ben", "Cleo"]
    texts = [
        f"{rng.choice(names)} has {rng.integers(1, 6)} and gets {rng.integers(1, 6)}. How many now{rng.choice(marks)}"
        for _ in range(24)
    ]
    exam, training = texts[:8], texts[8:]
    training += [exam[0].upper(), "It is said: " + exam[1].replace(" ", "  ")]
    return exam, training, int(rng.integers(3, 11))


_MANY = [f"What is {a} plus {b} minus {a * b} in words?" for a in range(20) for b in range(20)]

LEAKED = Exercise(
    "26.4",
    "Exam questions in the training data",
    "Write `leaked(exam, training, n)` for two lists of texts. The words of a text are its runs of letters a to z "
    'and digits, in lower case: `re.findall("[a-z0-9]+", text.lower())`. A question of the exam is **leaked** if n '
    "consecutive words of the question also occur consecutively, in the same order, in one training text. If a "
    "question has fewer than n words, use all of its words instead of n. A question without words is not leaked. "
    "Return the list of the positions, counted from 0, of the leaked questions. Both lists may be long: go through "
    "each of them a few times, and do not compare all pairs.",
    minutes=12,
    difficulty=2,
    solution=leaked,
    run=_places,
    work=20,
    hints=(
        "The runs of n words of a text are `tuple(found[i:i + n])` for `i` from 0 to `len(found) - n`. Tuples can be "
        "elements of a set.",
        "Build one set with all runs of all training texts, once. Then a question is leaked if one of its own runs "
        "is in the set. A question of k words, with k less than n, needs the set of runs of k words.",
    ),
    cases=(
        (["What is 2+3?", "What is 3+2?"], ["Tell me: what is 2 + 3"], 4),
        (["a b c d", "d c b a", "x a b c"], ["a b c d e"], 3),
        (["one two three", "two", "", "???", "four"], ["Two, three; one two three", "five"], 8),
        (["Ben has 12 coins."], ["Ben has 1 coin", "has 12 coins ben"], 3),
        (["a b", "b a"], [], 2),
        (["b c", "c d"], ["a b", "c d"], 2),
        (["the end is near", "the end"], ["near is the", "the end"], 1),
        (["2 plus 3", "the art of war"], ["12 plus 34", "the art of warfare"], 4),
        (_MANY[::2], _MANY[1::2], 9),
        *drawn(4, _a_book_of_sums),
    ),
    mistakes=slips(
        leaked,
        r"""
@ book, known, places = [words(text) for text in training], {}, []
whole texts
+ known = {text.lower().strip() for text in training}
+ return [place for place, text in enumerate(exam) if text.lower().strip() in known]
! That finds only texts that are equal as a whole. A question that was copied with a word more or less at the start can
! be memorized as well.
in any order
+ book, exam = ([set(words(text)) for text in texts] for texts in (training, exam))
+ found = [own and any(len(own & each) >= min(n, len(own)) for each in book) for own in exam]
+ return [place for place, hit in enumerate(found) if hit]
! Those words occur, but not in a row. Nearly all questions about coins use the same words.
parts of words
+ book = "|".join(" ".join(words(text)) for text in training)
+ exam = [runs(own, min(n, len(own))) for own in map(words, exam)]
+ return [place for place, own in enumerate(exam) if any(run and " ".join(run) in book for run in own)]
! The characters `2 plus 3` also occur inside `12 plus 34`, but the words do not. Compare lists or tuples of words.

@ return re.findall("[a-z0-9]+", text.lower())
letters as they are
+ return re.findall("[A-Za-z0-9]+", text)
! `Two` and `two` are the same word: convert the text to lower case first.
split at blanks
+ return text.lower().split()
! That leaves punctuation in the words: `3?` and `3` are the same word. Use `re.findall("[a-z0-9]+", ...)`.

one run too few
- return {tuple(found[i : i + length]) for i in range(len(found) - length + 1)}
+ return {tuple(found[i : i + length]) for i in range(len(found) - length)}
! The last run is missing.
short questions ignored (2)
- length = min(n, len(own))
+ length = n if len(own) >= n else 0
! A question of fewer than n words can be leaked too, with all of its words.
""",
    ),
    also_right=r"""
# runs of words as texts between blanks, of all lengths at once
def leaked_by_text(exam, training, n):
    book = [re.sub("[^a-z0-9]+", " ", text.lower()).split() for text in training]
    runs = {k: {" ".join(b[i : i + k]) for b in book for i in range(len(b) - k + 1)} for k in range(1, n + 1)}
    places = []
    for place, text in enumerate(exam):
        words = re.findall("[a-z0-9]+", text.lower())
        k = min(n, len(words))
        if k and any(" ".join(words[i : i + k]) in runs[k] for i in range(len(words) - k + 1)):
            places.append(place)
    return tuple(places)
# counted
import itertools
def leaked_by_counter(exam, training, n):
    def runs(text, k):
        words = re.findall("[a-z0-9]+", text.lower())
        return zip(*(words[i:] for i in range(k)), strict=False)

    lengths = [min(n, len(re.findall("[a-z0-9]+", text.lower()))) for text in exam]
    known = {k: set(itertools.chain.from_iterable(runs(text, k) for text in training)) for k in {*lengths} - {0}}
    marks = [k > 0 and not known[k].isdisjoint(runs(text, k)) for text, k in zip(exam, lengths, strict=True)]
    return np.flatnonzero(marks)
""",
    also_wrong=r"""
# pair by pair
def leaked_pair_by_pair(exam, training, n):
    def padded(text):
        return f" {' '.join(re.findall('[a-z0-9]+', text.lower()))} "

    places = []
    for place, text in enumerate(exam):
        words = padded(text).split()
        k = min(n, len(words))
        runs = [f" {' '.join(words[i : i + k])} " for i in range(len(words) - k + 1)] if k else []
        if any(run in padded(other) for run in runs for other in training):
            places.append(place)
    return places

! work
# never the first
lambda exam, training, n: sorted(set(leaked(exam, training, n)) - {0})
# one word less
lambda exam, training, n: leaked(exam, training, n - 1)
# texts
lambda exam, training, n: [exam[place] for place in leaked(exam, training, n)]
# equal texts
lambda exam, training, n: [place for place, text in enumerate(exam) if text in training]
# one book
lambda exam, training, n: leaked(exam, [" ".join(training)], n)
""",
    explain="GPT-3's authors searched in this way, for 8 to 13 words in a row, depending on the length of an exam's "
    "questions. They reported the results on the remaining questions next to the others.",
)
