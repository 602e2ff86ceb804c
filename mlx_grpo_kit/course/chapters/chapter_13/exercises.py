"""Exercises of notebook 13: generation."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

from dataclasses import dataclass

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_10.exercises import rope
from mlx_grpo_kit.course.chapters.chapter_11.exercises import grouped_attention, visible
from mlx_grpo_kit.course.chapters.chapter_13.draws import draw_often
from mlx_grpo_kit.course.chapters.chapter_13.toys import (
    SumCache,
    by_row_and_step,
    likeliest,
    next_is_one_more,
    next_is_the_sum,
    sums,
)
from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.runtime import mx

FOUR = mx.array([2.0, 1.0, 0.0, -1.0])
OUT = -float("inf")


def _floats(rng, *shape):
    """Random numbers whose largest and smallest are at random positions."""
    return mx.array(rng.normal(size=shape).astype(np.float32) * 2)


def _log(*probs):
    return mx.array(np.log(np.array(probs)).astype(np.float32))


def _numbers(result):
    """Convert token ids to Python lists; return a `Told` if they are not whole numbers."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    if not isinstance(result, (list, tuple)):
        return Told(f"{result}, a float (token ids are whole numbers)") if isinstance(result, float) else result
    numbers = [_numbers(each) for each in result]
    return next((each for each in numbers if isinstance(each, Told)), numbers)


# -- the loop ---------------------------------------------------------------------------------------------------------


def greedy(next_logits, prompt, max_new_tokens, ends):
    """The likeliest tokens that follow `prompt`, up to and including the first of `ends`."""
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        token = int(mx.argmax(next_logits(tokens)))
        tokens.append(token)
        if token in ends:
            break
    return tokens[len(prompt) :]


def _count_questions(function, next_logits, *others):
    """Return the new tokens, or a `Told` if the answer asked the model more often than needed."""
    asked = []

    def counted(tokens):
        asked.append(len(tokens))
        return next_logits(tokens)

    tokens = _numbers(function(counted, *others))
    if isinstance(tokens, list) and len(asked) > len(tokens) + 1:
        return Told(f"{tokens}, but asked the model {len(asked)} times: what follows an end token is never used")
    return tokens


GREEDY = Exercise(
    "13.1",
    "The loop",
    "Write `greedy(next_logits, prompt, max_new_tokens, ends)`. `next_logits(tokens)` takes a list of token ids and "
    "returns the logits [V] of the token that comes next. Append the likeliest token, ask again with the longer list, "
    "and so on, until you have appended a token of `ends` or `max_new_tokens` tokens in all. Return only the new "
    "tokens, as a list of whole numbers, including the end token. Do not change `prompt`.",
    minutes=8,
    difficulty=1,
    solution=greedy,
    hints=(
        "Begin with a copy, `tokens = list(prompt)`, and a loop of `max_new_tokens` rounds. What goes into "
        "`next_logits` in the second round?",
        "`int(mx.argmax(next_logits(tokens)))` is the next token. Append it first, and then ask whether it is an end "
        "token.",
        "At the end, `return tokens[len(prompt):]`.",
    ),
    cases=(
        (next_is_one_more, [2], 3, {0}),
        (next_is_one_more, [1, 4], 10, {0}),
        (next_is_the_sum, [3, 1, 1], 4, {6}),
        (next_is_the_sum, [3, 1], 6, {0}),
        (next_is_one_more, [3, 6, 4], 8, {6, 2}),
        (next_is_the_sum, [5], 1, {5}),
        (next_is_one_more, [0, 0], 9, set()),
        (next_is_one_more, [4], 0, {0}),
        (next_is_the_sum, [0], 3, {5}),  # the same token every time
        *drawn(3, lambda rng: (next_is_the_sum, rng.integers(1, 7, rng.integers(1, 5)).tolist(), 7, {0})),
    ),
    mistakes=slips(
        greedy,
        r"""
prompt returned too (3)
- return tokens[len(prompt) :]
+ return tokens
! Return only the new tokens.
end left out (2)
- tokens.append(token)
  if token in ends:
      break
+ tokens.append(token)
! The end token belongs to the completion: the model chose to stop here.

@ token = int(mx.argmax(next_logits(tokens)))
last token alone
+ token = int(mx.argmax(next_logits(tokens[-1:])))
! The model got only the last token. It needs the whole text so far, because attention looks back at all of it.
the prompt again and again
+ token = int(mx.argmax(next_logits(prompt)))
! The model got only the prompt each time. Pass it the tokens that it has written as well.
least likely (2)
+ token = int(mx.argmin(next_logits(tokens)))
! That is the least likely token of all.

never ends (2)
- if token in ends:
-     break
! It continues after the end token. Stop as soon as you have appended one.

@ for _ in range(max_new_tokens):
one too many
+ for _ in range(max_new_tokens + 1):
! `max_new_tokens` is the largest number of new tokens, and here there is one more.
prompt counted
+ for _ in range(max_new_tokens - len(prompt)):
! `max_new_tokens` does not count the prompt.
""",
    ),
    also_right=r"""
# by NumPy
def greedy_backwards(next_logits, prompt, max_new_tokens, ends):
    new = []
    while len(new) < max_new_tokens and (not new or new[-1] not in ends):
        logits = np.array(next_logits([*prompt, *new]))
        new.append(np.argmax(logits))
    return new
""",
    also_wrong=r"""
# asked to the limit
def asked_to_the_limit(next_logits, prompt, max_new_tokens, ends):
    tokens = greedy(next_logits, prompt, max_new_tokens, set())
    stops = [place for place, token in enumerate(tokens) if token in ends]
    return tokens[: stops[0] + 1] if stops else tokens
! what follows an end token is never used
# at least one
- for _ in range(max_new_tokens):
+ for _ in range(max(1, max_new_tokens)):
# floats
- return tokens[len(prompt) :]
+ return [float(token) for token in tokens[len(prompt) :]]
! token ids are whole numbers
# begins with the last token
- tokens = list(prompt)
+ prompt = prompt[-1:]
+ tokens = list(prompt)
# until it repeats itself
- if token in ends:
+ if token in ends or len(tokens) > len(prompt) + 1 and token == tokens[-2]:
""",
    run=_count_questions,
)


# -- from logits to a draw --------------------------------------------------------------------------------------------


def tempered(logits, temperature):
    """softmax(logits / temperature) over the last axis: [..., V] -> [..., V]."""
    scaled = logits / temperature
    powers = mx.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


TEMPERED = Exercise(
    "13.2",
    "Temperature",
    "Write `tempered(logits, temperature)`: the probabilities of the next token, softmax(logits / temperature) over "
    "the last axis. `logits` is [..., V] (one row or many), `temperature` is above 0. Logits may be as large as 1000, "
    "and some may be `-inf`: such a token is excluded and has probability 0.",
    minutes=6,
    difficulty=1,
    solution=tempered,
    hints=(
        "Divide the logits first. The rest is the softmax of chapter 11: exponentials divided by their sum.",
        "e^1000 overflows. Subtract the largest of each row before `mx.exp`: `scaled.max(axis=-1, keepdims=True)`.",
        "`powers / powers.sum(axis=-1, keepdims=True)`; or `mx.softmax(logits / temperature, axis=-1)` as a whole.",
    ),
    cases=(
        (FOUR, 1.0),
        (FOUR, 2.0),
        (FOUR, 0.5),
        (mx.array([[0.5, 0.5, -1.25], [3.0, -2.0, 3.0]]), 0.7),
        (mx.array([1000.0, 999.0, -1000.0]), 1.0),
        (mx.array([0.25, OUT, 1.0, OUT]), 1.5),
        (mx.array([1.0, 0.0]), 0.05),
        (mx.array([[1000.0, 999.0], [0.5, -0.5]]), 1.0),
        (mx.array([1000.0, 800.0, -600.0]), 400.0),
        (mx.array([-3.5]), 0.3),
        *drawn(3, lambda rng: (_floats(rng, 2, 3, 5), float(rng.uniform(0.3, 2)))),
    ),
    mistakes=slips(
        tempered,
        r"""
@ powers = mx.exp(scaled - scaled.max(axis=-1, keepdims=True))
one maximum for all rows (2)
+ powers = mx.exp(scaled - scaled.max())
! That is the largest number of *all* rows. In a row that is far below it every exponential is 0, and 0 / 0 is nan.
overflow (2)
+ powers = mx.exp(scaled)
! e^1000 is too large for float32, and inf / inf is nan. Subtract the largest logit of the row first.
the smallest (2)
+ powers = mx.exp(scaled - scaled.min(axis=-1, keepdims=True))
! Subtract the *largest* logit, so that no exponential is above 1.

the temperature afterwards
- scaled = logits / temperature
+ scaled = logits
- return powers / powers.sum(axis=-1, keepdims=True)
+ powers = (powers / powers.sum(axis=-1, keepdims=True)) ** (1 / temperature)
+ return powers / powers.sum(axis=-1, keepdims=True)
! A probability that float32 has rounded to 0 stays 0 at every temperature. Divide the logits, before the softmax.

@ scaled = logits / temperature
multiplied
+ scaled = logits * temperature
! A high temperature should make rare tokens less rare, and here it makes them rarer: divide by it.
no temperature
+ scaled = logits
! The temperature is not used.

probabilities divided
- scaled = logits / temperature
+ scaled = logits
- return powers / powers.sum(axis=-1, keepdims=True)
+ return powers / temperature / powers.sum(axis=-1, keepdims=True)
! You divide the probabilities by the temperature, so they no longer sum to 1. Divide the logits, before the softmax.

@ return powers / powers.sum(axis=-1, keepdims=True)
one sum for all rows (3)
+ return powers / powers.sum()
! Each row has to sum to 1: sum over the last axis only, with `keepdims=True`.
not divided by the sum (3)
+ return powers
! Probabilities sum to 1: divide the exponentials by their sum.
""",
    ),
    also_right=r"""
# MLX's softmax
lambda logits, temperature: mx.softmax(logits / temperature, axis=-1)
# torch
import torch
lambda logits, temperature: torch.softmax(torch.tensor(np.array(logits)) / temperature, -1)
""",
    also_wrong=r"""
# whole numbers
- scaled = logits / temperature
+ scaled = (logits / temperature).astype(mx.int32).astype(mx.float32)
# the first axis
lambda logits, t: mx.softmax(logits / t, axis=0)
""",
)


def draw(logits, temperature, key):
    """A token id, drawn from softmax(logits / temperature). One key, one token."""
    ends = mx.cumsum(mx.softmax(logits / temperature))
    return int(mx.sum(ends <= mx.random.uniform(key=key) * ends[-1]))


DRAW = Exercise(
    "13.3",
    "A draw",
    "Write `draw(logits, temperature, key)`: one token id, drawn so that each token of `logits` [V] has the "
    "probability softmax(logits / temperature). All randomness comes from `key`: `mx.random.uniform(key=key)` is a "
    "number between 0 and 1, and the same key always gives the same number. One way: lay the probabilities end to end "
    "along a line of length 1 and see which piece that number falls into. Any other correct way passes too. `check` "
    "draws 1,000 times and looks at the shares.",
    minutes=10,
    difficulty=2,
    solution=draw,
    hints=(
        "With probabilities 0.6, 0.3, 0.1 the pieces of the line end at 0.6, 0.9 and 1.0: `mx.cumsum`. The number 0.7 "
        "falls into the second piece, which belongs to token 1.",
        "The token id is the number of pieces that end at or before the number: `mx.sum(ends <= number)`.",
        "`ends = mx.cumsum(mx.softmax(logits / temperature))`, then `int(mx.sum(ends <= mx.random.uniform(key=key) * "
        "ends[-1]))`. The factor `ends[-1]` is 1 except for rounding.",
    ),
    cases=(
        (mx.array([0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), 1.0, 0),
        (mx.array([-1.0, 1.0, 0.5, 3.0]), 4.0, 0),  # the same keys: results cached from the first case are wrong here
        (mx.array([1.0, OUT, 1.5, 0.5]), 0.4, 2),
    ),
    mistakes=slips(
        draw,
        r"""
@ return int(mx.sum(ends <= mx.random.uniform(key=key) * ends[-1]))
always the likeliest
+ return int(mx.argmax(logits))
! That is always the likeliest token. A draw has to return the other tokens too, as often as their probabilities say.
normal noise
+ return int(mx.argmax(logits / temperature + mx.random.normal(logits.shape, key=key)))
! The largest of logits plus *normal* noise does not have the softmax's shares. (With Gumbel noise, -log(-log(u)), it
! does.)
uniform noise
+ return int(mx.argmax(logits / temperature + mx.random.uniform(shape=logits.shape, key=key)))
! The largest of logits plus *uniform* noise does not have the softmax's shares. (With Gumbel noise, -log(-log(u)), it
! does.)
noise on probabilities
+ return int(mx.argmax(mx.softmax(logits / temperature) + mx.random.uniform(shape=logits.shape, key=key)))
! Noise added to the probabilities changes their order at random, but does not give each token its share.
half of Gumbel's noise
+ return int(mx.argmax(logits / temperature - mx.log(mx.random.uniform(shape=logits.shape, key=key))))
! -log(u) is exponential noise. Gumbel noise is -log(-log(u)).
any token
+ return int(mx.random.randint(0, logits.shape[0], key=key))
! All tokens come equally often, whatever their logits.
a constant seed
+ return int(mx.sum(ends <= mx.random.uniform(key=mx.random.key(0)) * ends[-1]))
! A generator with a constant seed starts from the same state in each call, so every call draws the same number. Take
! all random numbers from `key`: `mx.random.uniform(key=key)`.
its own randomness
+ return int(mx.sum(ends <= mx.random.uniform() * ends[-1]))
! A run can only be repeated if every random number comes from a key: `mx.random.uniform(key=key)`.

position in the order (2)
- ends = mx.cumsum(mx.softmax(logits / temperature))
+ ends = mx.cumsum(mx.softmax(mx.sort(logits)[::-1] / temperature))
! That is the token's rank in the order of likelihood. If you sort, look up which token has that rank.

@ ends = mx.cumsum(mx.softmax(logits / temperature))
temperature ignored (3)
+ ends = mx.cumsum(mx.softmax(logits))
! The temperature has no effect here. Divide the logits by it.
multiplied by the temperature (3)
+ ends = mx.cumsum(mx.softmax(logits * temperature))
! Divide by the temperature: a high one makes rare tokens less rare.

@ return int(mx.sum(ends <= mx.random.uniform(key=key) * ends[-1]))
one piece too far (2)
+ return min(logits.shape[0] - 1, 1 + int(mx.sum(ends <= mx.random.uniform(key=key) * ends[-1])))
! The result is one piece too far: a number below the first end belongs to token 0.
from the other end (2)
+ return int(mx.sum(ends > mx.random.uniform(key=key) * ends[-1]))
! That counts the pieces that end *after* the number. The token id is the number of pieces that end before it.
""",
    ),
    also_right=r"""
# categorical
lambda logits, temperature, key: mx.random.categorical(logits / temperature, key=key)
# gumbel
def gumbel(logits, temperature, key):
    return int(mx.argmax(logits / temperature - mx.log(-mx.log(mx.random.uniform(shape=logits.shape, key=key)))))
# NumPy
def numpy_choice(logits, temperature, key):
    powers = np.exp(np.array(logits, dtype=float) / temperature)
    return np.random.default_rng(np.array(key)).choice(len(powers), p=powers / powers.sum())
# subtracting
def subtracting(logits, temperature, key):
    left = mx.random.uniform(key=key).item()
    probs = mx.softmax(logits / temperature).tolist()
    for token, share in enumerate(probs):
        left -= share
        if left < 0:
            return token
    return max(range(len(probs)), key=probs.__getitem__)
# exponential clocks, whose rates are the probabilities
def exponential_race(logits, temperature, key):
    waits = -mx.log(mx.random.uniform(shape=logits.shape, key=key))
    return int(mx.argmin(waits / mx.softmax(logits / temperature)))
""",
    also_wrong=r"""
# slightly cold
- ends = mx.cumsum(mx.softmax(logits / temperature))
+ ends = mx.cumsum(mx.softmax(logits / (0.8 * temperature)))
# second best sometimes
def second_best_sometimes(logits, temperature, key):
    order = mx.argsort(-logits)
    return int(order[1 if mx.random.uniform(key=key).item() < 0.3 and len(order) > 1 else 0])
# NumPy with a constant seed
def numpy_with_a_constant_seed(logits, temperature, key):
    probs = np.array(mx.softmax(logits / temperature), dtype=float)
    return np.random.default_rng(0).choice(len(probs), p=probs / probs.sum())
! A generator with a constant seed
# Gumbel noise from a constant key
def gumbel(logits, temperature, key):
    uniform = mx.random.uniform(shape=logits.shape, key=mx.random.key(42))
    return int(mx.argmax(logits / temperature - mx.log(-mx.log(uniform))))
! A generator with a constant seed
# token 0
lambda logits, temperature, key: 0
# token 1
lambda logits, temperature, key: 1
# categorical without the key
lambda logits, temperature, key: mx.random.categorical(logits / temperature)
! another token for the same key
# outside of the vocabulary
lambda logits, temperature, key: 8
! token ids go from 0 to 7
# a letter
lambda logits, temperature, key: "a"
! a token id is a whole number
# half a key
lambda logits, temperature, key: draw(logits, temperature, mx.array([int(key[0]), 0], mx.uint32))
! one token for all keys that differ in their second number
# the other half
lambda logits, temperature, key: draw(logits, temperature, mx.array([0, int(key[1])], mx.uint32))
! one token for all keys that differ in their first number
# remembered by the key
lambda logits, temperature, key, seen={}: seen.setdefault(tuple(key.tolist()), draw(logits, temperature, key))
! where token ids go from 0 to 3
""",
    run=draw_often,
    explain="MLX's own, `mx.random.categorical(logits / temperature, key=key)`, adds Gumbel noise to every logit and "
    "takes the largest sum, which gives the same shares. The kit draws along the line, as the exercise says: one "
    "random number per row is less work than one per token.",
)


# -- filters ----------------------------------------------------------------------------------------------------------


def _whichever_of_equals(function, logprobs, setting):
    """Return a filter's result with equally likely tokens in a fixed order, because any of them may stay."""
    result = function(logprobs, setting)
    try:
        given, out = np.array(logprobs), np.array(result, dtype=np.float32)
    except (TypeError, ValueError):
        return result
    if out.shape != given.shape:
        return result
    for row, values in zip(out.reshape(-1, given.shape[-1]), given.reshape(-1, given.shape[-1])):
        for value in np.unique(values):
            row[values == value] = np.sort(row[values == value])[::-1]
    return mx.array(out)


def apply_top_k(logprobs, top_k):
    """`logprobs` [..., V]: the `top_k` likeliest tokens of each row; the others at -inf."""
    order = mx.argsort(-logprobs, axis=-1)
    place = mx.argsort(order, axis=-1)
    return mx.where(place < top_k, logprobs, -mx.inf)


SHARED_OUT = "The tokens that stay should keep their numbers. The softmax of the draw normalizes them later."


TOP_K = Exercise(
    "13.4",
    "top-k",
    "Write `apply_top_k(logprobs, top_k)` for log-probabilities [..., V]: in each row the `top_k` likeliest tokens "
    "keep their numbers, and the others get `-inf`. Exactly `top_k` tokens stay; among equally likely tokens at the "
    "border it does not matter which. A `top_k` of V or more keeps all tokens.",
    minutes=8,
    difficulty=2,
    solution=apply_top_k,
    hints=(
        "`order = mx.argsort(-logprobs, axis=-1)` lists the tokens from the likeliest to the least likely. Its first "
        "`top_k` entries are the tokens that stay.",
        "You need it the other way round: the place of each token in that list. `mx.argsort(order, axis=-1)` gives "
        "the place of token 0, of token 1, and so on.",
        "`mx.where(place < top_k, logprobs, -mx.inf)`",
    ),
    cases=(
        (_log(0.1, 0.5, 0.15, 0.25), 2),
        (_log(0.1, 0.5, 0.15, 0.25), 1),
        (mx.array([0.5, 0.5, 0.5, -1.0]), 2),
        (mx.array([[1.5, 0.25, 0.25, 2.0, 0.25], [-0.5, -7.0, 3.0, -0.5, 0.0]]), 3),
        (_log(0.3, 0.7), 2),
        (_log(0.3, 0.7), 40),
        (mx.array([-2.5]), 1),
        (mx.array([0.75, OUT, 0.5, OUT]), 3),
        *drawn(3, lambda rng: (_floats(rng, 2, 2, 6), int(rng.integers(1, 6)))),
    ),
    mistakes=slips(
        apply_top_k,
        r"""
@ return mx.where(place < top_k, logprobs, -mx.inf)
all that reach the k-th (2)
+ smallest = mx.sort(logprobs, axis=-1)[..., -min(top_k, logprobs.shape[-1]), None]
+ return mx.where(logprobs >= smallest, logprobs, -mx.inf)
! With equal numbers at the border, more than `top_k` tokens stay. (transformers does the same, but this exercise asks
! for exactly `top_k`.)
wrong for a large k
+ return mx.where(place < mx.array(range(logprobs.shape[-1]))[top_k], logprobs, -mx.inf)
! A `top_k` as large as the vocabulary keeps every token: there is nothing to do.
sorted (2)
+ return mx.sort(logprobs, axis=-1)[..., ::-1][..., :top_k]
! The numbers are right, but every token has to keep its place: the result has the shape of `logprobs`.

the least likely
- order = mx.argsort(-logprobs, axis=-1)
+ order = mx.argsort(logprobs, axis=-1)
! Those are the least likely tokens: sort `-logprobs`.

@ return mx.where(place < top_k, logprobs, -mx.inf)
zeros (3)
+ return mx.where(place < top_k, logprobs, 0.0)
! 0 is the logarithm of 1, so it marks a very likely token. A removed token has log-probability `-inf`.
one less (3)
+ return mx.where(place < top_k - 1, logprobs, -mx.inf)
! One token too few stays: places count from 0.
one more (3)
+ return mx.where(place <= top_k, logprobs, -mx.inf)
! One token too many stays: places count from 0.
shared out (3)
+ return (lambda kept: kept - mx.logsumexp(kept, axis=-1, keepdims=True))(mx.where(place < top_k, logprobs, -mx.inf))
! The tokens that stay should keep their numbers. The softmax of the draw normalizes them later.

order for places (2)
- place = mx.argsort(order, axis=-1)
+ place = order
! `order[0]` is the *token* in first place, not the place of token 0.
one row for all
- order = mx.argsort(-logprobs, axis=-1)
- place = mx.argsort(order, axis=-1)
+ order = mx.argsort(-logprobs.reshape(-1))
+ place = mx.argsort(order).reshape(logprobs.shape)
! Each row is a distribution of its own: work along the last axis.
""",
    ),
    also_right=r"""
# loops
def top_k_with_loops(logprobs, top_k):
    rows = np.array(logprobs).reshape(-1, logprobs.shape[-1])
    out = np.full_like(rows, -np.inf)
    for row, kept in zip(rows, out, strict=True):
        for token in sorted(range(len(row)), key=lambda token: row[token])[-top_k:]:
            kept[token] = row[token]
    return out.reshape(logprobs.shape)
""",
    also_wrong=r"""
# written over
- return mx.where(place < top_k, logprobs, -mx.inf)
+ logprobs[...] = mx.where(place < top_k, logprobs, -mx.inf)
+ return logprobs + 0
! new numbers in what it was given
# above the k-th
lambda logprobs, k: mx.where(logprobs > mx.sort(logprobs, axis=-1)[..., -k], logprobs, -mx.inf)
""",
    run=_whichever_of_equals,
)


def apply_top_p(logprobs, top_p):
    """`logprobs` [..., V]: the likeliest tokens that reach `top_p` together; the others at -inf."""
    if top_p >= 1:
        return logprobs
    probs = mx.softmax(logprobs, axis=-1)
    order = mx.argsort(-probs, axis=-1)
    ordered = mx.take_along_axis(probs, order, axis=-1)
    likelier = mx.cumsum(ordered, axis=-1) - ordered
    place = mx.argsort(order, axis=-1)
    return mx.where(mx.take_along_axis(likelier, place, axis=-1) < top_p, logprobs, -mx.inf)


CROSSING = "The token that reaches `top_p`, the one that crosses the threshold, stays too. "


def _without_the_crossing(reaches, keep_first, all_at_1):
    """Make a wrong `apply_top_p` that drops the token whose running sum crosses `top_p`."""

    def wrong(logprobs, top_p):
        if all_at_1 and top_p >= 1:
            return logprobs
        probs = mx.softmax(logprobs, axis=-1)
        order = mx.argsort(-probs, axis=-1)
        place = mx.argsort(order, axis=-1)
        total = mx.take_along_axis(mx.cumsum(mx.take_along_axis(probs, order, axis=-1), axis=-1), place, axis=-1)
        stays = total <= top_p if reaches else total < top_p
        if keep_first:
            stays = stays | (place == 0)
        return mx.where(stays, logprobs, -mx.inf)

    return wrong


NONE_LEFT = "Without it, no token is left if the first one alone exceeds `top_p`."
NOT_REPAIRED = "Keeping the likeliest token in any case does not repair that: the token that crosses may come later."
STRICT = " Here it is missing even where the sum is exactly `top_p`."
LOST_AT_1 = " And `top_p = 1` has to keep all tokens."
DROPPED = (
    ("at most", _without_the_crossing(True, False, True), NONE_LEFT),
    ("below", _without_the_crossing(False, False, True), NONE_LEFT + STRICT),
    ("below, some lost at 1", _without_the_crossing(False, False, False), NONE_LEFT + STRICT + LOST_AT_1),
    ("at most, likeliest kept", _without_the_crossing(True, True, True), NOT_REPAIRED),
    (
        "below, likeliest kept, some lost at 1",
        _without_the_crossing(False, True, False),
        NOT_REPAIRED + STRICT + LOST_AT_1,
    ),
)
RARE = mx.array([-20.0, 0.5, -21.5, -19.0])

TOP_P = Exercise(
    "13.5",
    "top-p",
    "Write `apply_top_p(logprobs, top_p)` for [..., V]: in each row keep the likeliest tokens, as few as are needed "
    "to reach the probability `top_p` together. The token that reaches it stays; the others get `-inf`. The "
    "probabilities of the input need not sum to 1, because another filter may have come first: use its softmax. "
    "`top_p = 1` keeps all tokens. Among equally likely tokens at the border it does not matter which stay.",
    minutes=14,
    difficulty=3,
    solution=apply_top_p,
    hints=(
        "Sort the probabilities from the largest down. Ask for each token: how much probability do the tokens before "
        "it have together? If that is less than `top_p`, the token is still needed.",
        "`likelier = mx.cumsum(ordered, axis=-1) - ordered` is that probability, in the order of likelihood. It is 0 "
        "for the first token, so the likeliest token always stays.",
        "Back to the order of the tokens: `place = mx.argsort(order, axis=-1)` gives the rank of each token, and "
        "`mx.take_along_axis(likelier, place, axis=-1)` fetches its number. For `top_p = 1` return at once: rounding "
        "lets a running sum reach 1 too early.",
    ),
    cases=(
        (_log(0.15, 0.5, 0.05, 0.3), 0.75),
        (_log(0.15, 0.5, 0.05, 0.3), 0.4),
        (_log(0.15, 0.5, 0.05, 0.3), 0.9),
        (mx.array([0.0, 0.0, 0.0, 0.0]), 0.6),
        (mx.array([5.0, 5.0]), 0.5),
        (mx.array([np.log(0.4), OUT, np.log(0.3), OUT]), 0.5),
        (mx.array([[0.5, 3.0, 2.5, -1.0, 1.25], [1.5, 1.0, -0.5, 1.25, 0.75]]), 0.7),
        (RARE, 1.0),
        (mx.array([7.5]), 0.2),
        *drawn(3, lambda rng: (_floats(rng, 2, 2, 6), float(rng.uniform(0.2, 0.95)))),
    ),
    mistakes=(
        Mistake(
            "a threshold",
            lambda logprobs, p: mx.where(mx.softmax(logprobs, axis=-1) >= p, logprobs, -mx.inf),
            "`top_p` is not a threshold for single tokens: add up the probabilities, beginning with the likeliest "
            "token.",
            1,
        ),
        *(Mistake(f"the crossing token dropped: {kind}", wrong, CROSSING + more, 1) for kind, wrong, more in DROPPED),
        Mistake(
            "in the order of the ids",
            lambda logprobs, p: mx.where(
                mx.cumsum(mx.softmax(logprobs, axis=-1), axis=-1) - mx.softmax(logprobs, axis=-1) < p + (p == 1),
                logprobs,
                -mx.inf,
            ),
            "You add up the probabilities in the order of the token ids. Begin with the likeliest.",
            1,
        ),
        Mistake(
            "shared out",
            lambda logprobs, p: mx.log(mx.softmax(apply_top_p(logprobs, p), axis=-1)),
            SHARED_OUT,
            3,
        ),
        *slips(
            apply_top_p,
            r"""
@ probs = mx.softmax(logprobs, axis=-1)
not normalized again
+ probs = mx.exp(logprobs)
! After another filter, or with plain logits, the probabilities do not sum to 1. Use the softmax of the numbers.
one row for all
+ probs = mx.softmax(logprobs, axis=tuple(range(logprobs.ndim)))
! Each row is a distribution of its own: work along the last axis.

from the wrong end
- order = mx.argsort(-probs, axis=-1)
+ order = mx.argsort(probs, axis=-1)
! The sum begins with the least likely token. Begin with the likeliest.

@ return mx.where(mx.take_along_axis(likelier, place, axis=-1) < top_p, logprobs, -mx.inf)
left in order (3)
+ return mx.where(likelier < top_p, logprobs, -mx.inf)
! The sums are in the order of likelihood and the tokens are not: put each sum back at its token's place.
zeros (3)
+ return mx.where(mx.take_along_axis(likelier, place, axis=-1) < top_p, logprobs, 0.0)
! 0 is the logarithm of 1, so it marks a very likely token. A removed token has log-probability `-inf`.
what stays is removed
+ return mx.where(mx.take_along_axis(likelier, place, axis=-1) < top_p, -mx.inf, logprobs)
! It is the other way round: the likeliest tokens stay.

brought back by the order (3)
- place = mx.argsort(order, axis=-1)
+ place = order
! `order` gives the token at each place. To go back you need the place of each token: the argsort of `order`.
a tail cut off at 1 (3)
- if top_p >= 1:
+ if top_p > 1:
! With `top_p = 1` tokens are lost: in float32 the running sum reaches 1 before the last of them.
""",
        ),
    ),
    also_right=r"""
# loops
def top_p_with_loops(logprobs, top_p):
    rows = np.array(logprobs, dtype=np.float64).reshape(-1, logprobs.shape[-1])
    out = np.full_like(rows, -np.inf)
    for row, kept in zip(rows, out, strict=True):
        probs = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        total = 0.0
        for token in np.argsort(-probs, kind="stable"):
            if total < top_p or top_p == 1:
                kept[token] = row[token]
            total += probs[token]
    return out.reshape(logprobs.shape).tolist()
""",
    also_wrong=r"""
# below, likeliest kept
- return mx.where(mx.take_along_axis(likelier, place, axis=-1) < top_p, logprobs, -mx.inf)
+ total = mx.take_along_axis(likelier + ordered, place, axis=-1)
+ return mx.where((total < top_p) | (place == 0), logprobs, -mx.inf)
! the one that crosses the threshold, stays too
# at most, some lost at 1
- if top_p >= 1:
+ if top_p > 1:
- return mx.where(mx.take_along_axis(likelier, place, axis=-1) < top_p, logprobs, -mx.inf)
+ return mx.where(mx.take_along_axis(likelier + ordered, place, axis=-1) <= top_p, logprobs, -mx.inf)
! the one that crosses the threshold, stays too
# at most, likeliest kept, some lost at 1
- if top_p >= 1:
+ if top_p > 1:
- return mx.where(mx.take_along_axis(likelier, place, axis=-1) < top_p, logprobs, -mx.inf)
+ total = mx.take_along_axis(likelier + ordered, place, axis=-1)
+ return mx.where((total <= top_p) | (place == 0), logprobs, -mx.inf)
! the one that crosses the threshold, stays too
# unsorted
def top_p_unsorted(logprobs, top_p):
    probs = mx.softmax(logprobs, axis=-1)
    return mx.where((mx.cumsum(probs, axis=-1) - probs < top_p) | mx.array(top_p >= 1), logprobs, -mx.inf)
! Begin with the likeliest
# without the likeliest
lambda x, p: mx.where(mx.softmax(x, axis=-1) > p, -mx.inf, apply_top_p(x, p))
# more than asked
lambda logprobs, p: apply_top_p(logprobs, min(1, p + 0.1))
""",
    run=_whichever_of_equals,
)


def apply_min_p(logprobs, min_p):
    """`logprobs` [..., V]: tokens `min_p` times as likely as the likeliest; the others at -inf."""
    lowest = logprobs.max(axis=-1, keepdims=True) + np.log(min_p)
    return mx.where(logprobs >= lowest, logprobs, -mx.inf)


MIN_P = Exercise(
    "13.6",
    "min-p",
    "Write `apply_min_p(logprobs, min_p)` for [..., V]: in each row keep every token that is at least `min_p` times "
    "as likely as the likeliest, and set the others to `-inf`. `min_p` is above 0. The input need not be normalized, "
    "and its numbers may be as large as 1000. (What does that change? A ratio of probabilities is a difference of "
    "logits.)",
    minutes=6,
    difficulty=1,
    solution=apply_min_p,
    hints=(
        "In probabilities: `p >= min_p * p.max()`, row by row. Write the same with logarithms.",
        "log(min_p * p) = log(min_p) + log(p): the threshold is the largest log-probability plus log(min_p), which is "
        "negative.",
        "`lowest = logprobs.max(axis=-1, keepdims=True) + np.log(min_p)`",
    ),
    cases=(
        (_log(0.15, 0.5, 0.05, 0.3), 0.2),
        (_log(0.15, 0.5, 0.05, 0.3), 0.5),
        (_log(0.15, 0.5, 0.05, 0.3), 0.05),
        (mx.array([[3.5, 3.0, 0.5, 3.5], [-4.0, -0.5, -0.75, -9.0]]), 0.4),
        (mx.array([2.0, 2.0, 1.0]), 1.0),
        (mx.array([0.5, OUT, -0.25, OUT]), 0.3),
        (mx.array([120.0, 118.0, 100.0]), 0.2),
        (mx.array([4.0]), 0.9),
        *drawn(3, lambda rng: (_floats(rng, 2, 2, 6), float(rng.uniform(0.02, 0.6)))),
    ),
    mistakes=slips(
        apply_min_p,
        r"""
@ return mx.where(logprobs >= lowest, logprobs, -mx.inf)
absolute
+ return mx.where(mx.softmax(logprobs, axis=-1) >= min_p, logprobs, -mx.inf)
! The threshold is `min_p` *times the largest* probability in the row, not `min_p` itself.
a share of the logarithm (2)
+ return mx.where(logprobs >= min_p * logprobs.max(axis=-1, keepdims=True), logprobs, -mx.inf)
! A product of probabilities is a *sum* of logarithms: add log(min_p).
powers that overflow (2)
+ powers = mx.exp(logprobs)
+ return mx.where(powers >= min_p * powers.max(axis=-1, keepdims=True), logprobs, -mx.inf)
! e^120 is too large for float32, and inf >= min_p * inf is always true. Stay with the logarithms, or take a softmax.

@ lowest = logprobs.max(axis=-1, keepdims=True) + np.log(min_p)
one row for all
+ lowest = logprobs.max() + np.log(min_p)
! Each row is a distribution of its own: work along the last axis.
min_p not as a logarithm (2)
+ lowest = logprobs.max(axis=-1, keepdims=True) + min_p
! The numbers are logarithms, so take the logarithm of the factor `min_p` too.
log(min_p) subtracted (2)
+ lowest = logprobs.max(axis=-1, keepdims=True) - np.log(min_p)
! The threshold is *below* the largest number, and log(min_p) is already negative: add it.

@ return mx.where(logprobs >= lowest, logprobs, -mx.inf)
the likeliest dropped
+ return mx.where(logprobs > lowest, logprobs, -mx.inf)
! With `min_p = 1` the likeliest token itself has to stay: the comparison is `>=`, not `>`.
zeros (3)
+ return mx.where(logprobs >= lowest, logprobs, 0.0)
! 0 is the logarithm of 1, so it marks a very likely token. A removed token has log-probability `-inf`.
""",
    ),
    also_right=r"""
# probabilities
def min_p_of_probabilities(logprobs, min_p):
    probs = mx.softmax(logprobs, axis=-1)
    return mx.where(probs < min_p * probs.max(axis=-1, keepdims=True) * (1 - 1e-6), float("-inf"), logprobs)
""",
    also_wrong=r"""
# half
- lowest = logprobs.max(axis=-1, keepdims=True) + np.log(min_p)
+ lowest = logprobs.max(axis=-1, keepdims=True) + np.log(min_p / 2)
""",
    run=_whichever_of_equals,
)


# -- what was drawn ---------------------------------------------------------------------------------------------------


def logps_and_entropy(logits, token_ids, temperature):
    """Log-probabilities of the tokens, and entropies: two arrays [...]."""
    scaled = logits / temperature
    all_logps = scaled - mx.logsumexp(scaled, axis=-1, keepdims=True)
    logps = mx.take_along_axis(all_logps, token_ids[..., None], axis=-1)[..., 0]
    probs = mx.exp(all_logps)
    entropy = -mx.sum(mx.where(probs > 0, probs * all_logps, 0.0), axis=-1)
    return logps, entropy


def _two_arrays(function, *arguments):
    result = function(*arguments)
    # One array that holds both is unpacked like a tuple.
    is_pair = getattr(result, "shape", None) == (2, *np.shape(arguments[-2])) if len(arguments) > 1 else False
    return tuple(result) if is_pair or (isinstance(result, list) and len(result) == 2) else result


LOGPS = Exercise(
    "13.7",
    "How probable, and how sure",
    "Write `logps_and_entropy(logits, token_ids, temperature)` for `logits` [..., V] and the tokens that were drawn "
    "from them, `token_ids` [...]. Return two arrays [...], both for the distribution softmax(logits / temperature): "
    "the log-probability of each of these tokens, and the entropy of each row, `-sum of p log p`, with the natural "
    "logarithm. Logits may be `-inf`; such a token adds nothing to the entropy.",
    minutes=12,
    difficulty=2,
    solution=logps_and_entropy,
    hints=(
        "The logarithm of a softmax is `scaled - mx.logsumexp(scaled, axis=-1, keepdims=True)`: no power of e that "
        "could overflow, no logarithm of 0.",
        "`mx.take_along_axis(all_logps, token_ids[..., None], axis=-1)[..., 0]` picks one number in each row.",
        "Where p is 0, `p * log p` is 0 times -inf, which is nan. Write `mx.where(probs > 0, probs * all_logps, 0.0)` "
        "and sum over the last axis.",
    ),
    cases=(
        (mx.array([[2.0, 1.0, 0.0, -1.0]]), mx.array([1]), 1.0),
        (mx.array([[2.0, 1.0, 0.0, -1.0], [0.5, 0.5, 0.5, 0.5]]), mx.array([0, 3]), 2.0),
        (mx.array([[1000.0, 998.5, -1000.0]]), mx.array([1]), 1.0),
        (mx.array([[0.5, OUT, 1.5], [OUT, OUT, 2.0]]), mx.array([0, 2]), 0.7),
        (mx.array([0.25, -1.5, 3.0]), mx.array(2), 0.5),
        (mx.array([[150.0, 0.0, -50.0]]), mx.array([1]), 1.0),
        (mx.array([[4.5], [1.0]]), mx.array([0, 0]), 1.3),
        *drawn(
            3,
            lambda rng: (_floats(rng, 2, 3, 5), mx.array(rng.integers(0, 5, (2, 3))), float(rng.uniform(0.4, 1.8))),
        ),
    ),
    mistakes=slips(
        logps_and_entropy,
        r"""
no temperature
- scaled = logits / temperature
+ scaled = logits
! Both arrays should describe softmax(logits / temperature), the distribution that the tokens were drawn from.

@ entropy = -mx.sum(mx.where(probs > 0, probs * all_logps, 0.0), axis=-1)
entropy with nan (3)
+ entropy = -mx.sum(probs * all_logps, axis=-1)
! 0 times -inf is nan. A removed token adds 0 to the entropy.
bits (3)
+ entropy = -mx.sum(mx.where(probs > 0, probs * all_logps / np.log(2), 0.0), axis=-1)
! That is the entropy in bits: use the natural logarithm.
sign (3)
+ entropy = mx.sum(mx.where(probs > 0, probs * all_logps, 0.0), axis=-1)
! An entropy is never negative: put a minus before the sum.

@ all_logps = scaled - mx.logsumexp(scaled, axis=-1, keepdims=True)
logarithm of a softmax
+ all_logps = mx.log(mx.softmax(scaled, axis=-1))
! e^-150 is 0 in float32, and its logarithm is -inf. The logits are logarithms already: subtract the logsumexp of their
! row.
one for all rows
+ all_logps = scaled - mx.logsumexp(scaled)
! Each row is a distribution of its own: work along the last axis.
overflow
+ all_logps = scaled - mx.log(mx.exp(scaled).sum(axis=-1, keepdims=True))
! e^1000 overflows: use `mx.logsumexp`, or subtract the largest logit first.

@ logps = mx.take_along_axis(all_logps, token_ids[..., None], axis=-1)[..., 0]
probabilities
+ logps = mx.take_along_axis(mx.exp(all_logps), token_ids[..., None], axis=-1)[..., 0]
! The first array contains probabilities. The exercise asks for their logarithms.
logits
+ logps = mx.take_along_axis(scaled, token_ids[..., None], axis=-1)[..., 0]
! A logit is not yet a log-probability: subtract the logsumexp of its row.

swapped
- return logps, entropy
+ return entropy, logps
! Return the log-probabilities first, then the entropies.
""",
    ),
    also_right=r"""
# torch
import torch
def logps_of_torch(logits, token_ids, temperature):
    spread = torch.distributions.Categorical(logits=torch.tensor(np.array(logits)) / temperature)
    logps = spread.log_prob(torch.tensor(np.array(token_ids)).long())
    probs = spread.probs
    return [logps.numpy(), -torch.where(probs > 0, probs * probs.log(), 0.0).sum(-1).numpy()]
# one array
lambda *given: mx.stack(logps_and_entropy(*given))
""",
    also_wrong=r"""
def log_of_softmax(logits, token_ids, temperature, eps=0.0):
    probs = mx.softmax(logits / temperature, axis=-1)
    logps = mx.log(probs + eps)
    picked = mx.take_along_axis(logps, token_ids[..., None], axis=-1)[..., 0]
    return picked, -mx.where(probs > 0, probs * logps, 0).sum(axis=-1)
# logarithm of a softmax, masked
log_of_softmax
! The logits are logarithms already
# logarithm of a softmax and a little more
lambda *arguments: log_of_softmax(*arguments, eps=1e-6)
""",
    run=_two_arrays,
    explain=(
        "The entropy is the mean of -log p over the tokens drawn: 0 where the model is sure, log V where every token "
        "is equally likely."
    ),
)


# -- the cache --------------------------------------------------------------------------------------------------------


class Cache:
    """Keys and values of every layer for the positions so far; `length` counts the positions."""

    def __init__(self, num_layers):
        """An empty cache."""
        self.keys = [None] * num_layers
        self.values = [None] * num_layers
        self.length = 0

    def append(self, layer, keys, values):
        """Add [B, K, T, D] after the layer's positions. Return all its keys and all its values."""
        if self.keys[layer] is not None:
            keys = mx.concatenate([self.keys[layer], keys], axis=2)
            values = mx.concatenate([self.values[layer], values], axis=2)
        self.keys[layer], self.values[layer] = keys, values
        return keys, values

    def advance(self, num_tokens):
        """Count `num_tokens` more positions, once every layer has appended them."""
        self.length += num_tokens

    def repeat(self, times):
        """A new cache in which every row occurs `times` times: a a a b b b."""
        copy = type(self)(len(self.keys))
        copy.length = self.length
        copy.keys = [mx.repeat(keys, times, axis=0) for keys in self.keys]
        copy.values = [mx.repeat(values, times, axis=0) for values in self.values]
        return copy


def _count(number, word):
    return f"{number} {word}{'s' * (number != 1)}"


@dataclass(frozen=True)
class Filled:
    """A way to try out a cache; its repr appears in messages."""

    layers: int
    rows: int
    chunks: tuple
    times: int
    seed: int

    def __repr__(self):
        size = f"{_count(self.layers, 'layer')}, {_count(self.rows, 'row')}"
        return f"{size}, pieces of {', '.join(map(str, self.chunks))}, then repeated {_count(self.times, 'time')}"


def _use_cache(cls, how):
    """Collect every result of a cache while positions go through it chunk by chunk, then through its repetition."""
    rng, rows, told, positions = np.random.default_rng(how.seed), how.rows, {}, 0
    cache, other = cls(how.layers), cls(how.layers)
    told["`length` of an empty cache"] = int(cache.length)

    def append(cache, layer, rows, length, where):
        joined = cache.append(layer, *(_floats(rng, rows, 2, length, 3) for _ in range(2)))
        if joined is None:
            raise TypeError("`append` returned None. It returns all keys and all values of the layer")
        told[f"the keys of layer {layer}{where}"], told[f"the values of layer {layer}{where}"] = joined

    for number, length in enumerate((*how.chunks, 1, 2)):
        if number == len(how.chunks):
            before, cache, rows = cache, cache.repeat(how.times), rows * how.times
            if cache is None:
                raise TypeError("`repeat` returned None. It returns a new cache")
            told["`length` of what `repeat` returned"] = int(cache.length)
        positions += length
        where = f" after {_count(positions, 'position')}{', repeated' * (number >= len(how.chunks))}"
        for layer in range(how.layers):
            append(cache, layer, rows, length, where)
            told[f"`length` after `append` to layer {layer}, before `advance`,{where}"] = int(cache.length)
        if cache.advance(length) not in (None, cache):
            return Told("a return value from `advance`, which should only change `length`")
        told[f"`length` after `advance({length})`{where}"] = int(cache.length)
    told["`length` of the cache that was repeated"] = int(before.length)
    told["`length` of another cache, which is still empty,"] = int(other.length)
    append(before, 0, how.rows, 1, " in the cache that was repeated, after one more position,")
    return {name: np.array(each) if hasattr(each, "shape") else each for name, each in told.items()}


CACHE = Exercise(
    "13.8",
    "A cache of your own",
    "Write the class `Cache`. `Cache(num_layers)` is empty, with `length` 0. `append(layer, keys, values)` adds T new "
    "positions [B, K, T, D] after those that the layer already has, and returns all keys and all values of the layer, "
    "two arrays [B, K, positions, D]. `advance(num_tokens)` adds to `length`; it is called once, after every layer "
    "has appended. `repeat(times)` returns a *new* cache of the same length in which each row of the batch occurs "
    "`times` times in a row: a a a b b b.",
    minutes=12,
    difficulty=2,
    solution=Cache,
    hints=(
        "Keep two lists with one entry per layer, `None` at first. At the first `append` of a layer there are no "
        "older keys to join.",
        "Positions are axis 2 of [B, K, T, D]: `mx.concatenate([self.keys[layer], keys], axis=2)`. Keep the result "
        "and return it.",
        "`mx.repeat(keys, times, axis=0)` repeats each row in place; `mx.concatenate([keys] * times)` would give "
        "a b a b.",
    ),
    cases=(
        (Filled(1, 1, (1,), 2, seed=0),),
        (Filled(2, 1, (4, 1, 1), 3, seed=1),),
        (Filled(3, 2, (3, 2), 2, seed=2),),
        (Filled(2, 3, (5,), 1, seed=3),),
        *drawn(
            2,
            lambda rng: (
                Filled(*map(int, rng.integers(1, 4, 2)), (int(rng.integers(2, 6)), 1), 2, int(rng.integers(99))),
            ),
        ),
    ),
    mistakes=slips(
        Cache,
        r"""
only the new ones returned (2)
- return keys, values
+ return keys[:, :, self.length:], values[:, :, self.length:]
! Only the new positions came back. `append` keeps the old ones, adds the new ones after them, and returns all of them,
! because the new queries look at all of them.

@ keys = mx.concatenate([self.keys[layer], keys], axis=2)
@ values = mx.concatenate([self.values[layer], values], axis=2)
new ones in front (2)
+ keys = mx.concatenate([keys, self.keys[layer]], axis=2)
+ values = mx.concatenate([values, self.values[layer]], axis=2)
! The new positions come before the old ones. Join them after the old ones.
heads (2)
+ keys = mx.concatenate([self.keys[layer], keys], axis=1)
+ values = mx.concatenate([self.values[layer], values], axis=1)
! That is the axis of the heads. Positions are axis 2 of [B, K, T, D].

not kept (2)
- self.keys[layer], self.values[layer] = keys, values
+ if self.keys[layer] is None:
+     self.keys[layer], self.values[layer] = keys, values
! The joined arrays are returned but not kept: the third `append` does not know about the second.
counted by each layer
  self.keys[layer], self.values[layer] = keys, values
+ self.length = keys.shape[2]
- self.length += num_tokens
+ pass
! `length` moved inside `append`, so layer 1 sees a different position from layer 0. Only `advance` may change it.
one layer for all
- def append(self, layer, keys, values):
+ def append(self, layer, keys, values, layer_=0):
- if self.keys[layer] is not None:
-     keys = mx.concatenate([self.keys[layer], keys], axis=2)
-     values = mx.concatenate([self.values[layer], values], axis=2)
- self.keys[layer], self.values[layer] = keys, values
+ if self.keys[layer_] is not None:
+     keys = mx.concatenate([self.keys[layer_], keys], axis=2)
+     values = mx.concatenate([self.values[layer_], values], axis=2)
+ self.keys[layer_], self.values[layer_] = keys, values
! All layers write to the same place. Each layer needs its own keys and values.
a b a b (3)
- copy.keys = [mx.repeat(keys, times, axis=0) for keys in self.keys]
- copy.values = [mx.repeat(values, times, axis=0) for values in self.values]
+ copy.keys = [mx.concatenate([keys] * times) for keys in self.keys]
+ copy.values = [mx.concatenate([values] * times) for values in self.values]
! The rows came out as a b a b. The rows of a group stay together: a a b b.
repeat without length (3)
- copy.length = self.length
! The repeated cache has length 0. RoPE would rotate its next position as if it were the first.
repeats itself (3)
- copy = type(self)(len(self.keys))
+ copy = self
! `repeat` changed the cache itself. It should return a new one and leave the old one unchanged.
lists that two caches share (3)
- copy = type(self)(len(self.keys))
+ copy = type(self)(0)
- copy.keys = [mx.repeat(keys, times, axis=0) for keys in self.keys]
- copy.values = [mx.repeat(values, times, axis=0) for values in self.values]
+ copy.keys, copy.values = self.keys, self.values
+ copy.keys[:] = [mx.repeat(keys, times, axis=0) for keys in self.keys]
+ copy.values[:] = [mx.repeat(values, times, axis=0) for values in self.values]
! The two caches share their lists, so repeating one repeats the other too. Make new lists.
values for keys (3)
- copy.values = [mx.repeat(values, times, axis=0) for values in self.values]
+ copy.values = copy.keys
! In the repeated cache the values are the keys.
""",
    ),
    also_right=r"""
# pieces that are joined on request
class CacheOfLists:
    def __init__(self, num_layers):
        self.pieces, self.length = [[] for _ in range(num_layers)], mx.array(0)

    def append(self, layer, keys, values):
        self.pieces[layer].append((keys, values))
        return [mx.concatenate(each, axis=2) for each in zip(*self.pieces[layer], strict=True)]

    def advance(self, num_tokens):
        self.length = self.length + num_tokens

    def repeat(self, times):
        other = CacheOfLists(len(self.pieces))
        rows = [row for row in range(self.pieces[0][0][0].shape[0]) for _ in range(times)]
        other.pieces = [[(k[mx.array(rows)], v[mx.array(rows)]) for k, v in each] for each in self.pieces]
        other.length = self.length
        return other
""",
    also_wrong=r"""
# repeat without a body
- copy = type(self)(len(self.keys))
- copy.length = self.length
- copy.keys = [mx.repeat(keys, times, axis=0) for keys in self.keys]
- copy.values = [mx.repeat(values, times, axis=0) for values in self.values]
- return copy
+ ...
! `repeat` returned None
# append moves too
- self.keys[layer], self.values[layer] = keys, values
+ self.length += keys.shape[2]
+ self.keys[layer], self.values[layer] = keys, values
! gave for `length` after `append`
# the class keeps the arrays
class Shared(Cache):
    store = {}

    def append(self, layer, keys, values):
        before = self.store.get(layer)
        if before is not None:
            keys, values = (mx.concatenate(pair, axis=2) for pair in zip(before, (keys, values), strict=True))
        self.store[layer] = keys, values
        return keys, values
# a shallow copy
import copy

class CacheThatSharesItsLists(Cache):
    def repeat(self, times):
        other = copy.copy(self)
        for layer, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            other.keys[layer], other.values[layer] = (mx.repeat(each, times, axis=0) for each in (keys, values))
        return other
! The two caches share their lists
""",
    run=_use_cache,
)


def attend(queries, keys, values, cache, layer, theta, attention_mask=None):
    """Attention of T new positions to all positions so far: [B, H, T, D]."""
    queries = rope(queries, cache.length, theta)
    keys = rope(keys, cache.length, theta)
    keys, values = cache.append(layer, keys, values)
    mask = visible(queries.shape[2], keys.shape[2], cache.length, attention_mask)
    return grouped_attention(queries, keys, values, mask)


HEADS, KEY_HEADS, HEAD_DIM, THETA = 4, 2, 6, 100.0


def _attend_in_chunks(function, chunks, padding, seed):
    """Run the answer on `chunks` positions at a time, in two layers, with one row per number in `padding`."""
    rng = np.random.default_rng(seed)
    cache, rows = Cache(2), len(padding)
    mask = None
    if any(padding):
        mask = mx.array([[int(place >= left) for place in range(chunks[0])] for left in padding])
    answers = {}
    for length in chunks:
        for layer in range(2):
            arrays = [_floats(rng, rows, heads, length, HEAD_DIM) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
            before = cache.length
            answer = function(*arrays, cache, layer, THETA, mask)
            if answer is None:
                return None
            if cache.length != before:
                return Told("a cache whose `length` changed (`advance` is called once for all layers, outside)")
            if cache.keys[layer] is None or cache.keys[layer].shape[2] != cache.length + length:
                return Told("a cache without the new positions (`cache.append` adds them, once per layer)")
            answer = np.array(answer)
            if answer.shape == (rows, HEADS, length, HEAD_DIM):  # what padding itself attends to does not matter
                for row, left in enumerate(padding):
                    answer[row, :, : max(0, left - int(cache.length))] = 0
            answers[f"layer {layer} at the positions from {int(cache.length)}"] = mx.array(answer)
        cache.advance(length)
    return answers


ATTEND = Exercise(
    "13.9",
    "Attention that remembers",
    "With a cache, attention changes in three ways. The first new position is not position 0: it comes after the "
    "positions in the cache, and RoPE has to rotate it by its real position. The new keys and values are appended to "
    "the cache. And the mask is no longer square: there are T new queries and S keys. The query at position `offset "
    "+ i` sees the keys 0 to `offset + i`; chapter 11's `visible` was written with this in mind. `rope`, `visible` "
    "and `grouped_attention` come from chapters 10 and 11. This notebook has its own kernel, so if you want to use "
    "your functions, paste them into a cell and `check` them here; otherwise `use` takes the kit's.\n\nWrite "
    "`attend(queries, keys, values, cache, layer, theta, attention_mask=None)`. `queries` [B, H, T, D], `keys` and "
    "`values` [B, K, T, D] belong to the T *new* positions; they are normalized and not yet rotated. The first new "
    "position is `cache.length`. Rotate queries and keys with `rope(x, offset, theta)`, append keys and values to "
    "the cache, compute the mask with `visible(num_queries, num_keys, offset, attention_mask)`, and return "
    "`grouped_attention(queries, keys, values, mask)`. Leave `cache.length` alone. As in 11.5, `attention_mask` may "
    "be shorter than the keys: the positions beyond its end are tokens. In the messages of `check`, (5, 1, 1) means "
    "that five positions came first, then one, then another, and (0, 2) means that the second of two rows begins "
    "with 2 positions of padding.",
    minutes=15,
    difficulty=2,
    solution=attend,
    hints=(
        "The rotation of a token depends on its position. With 5 positions in the cache the next token is at position "
        "5, even though it comes alone.",
        "The keys in the cache are already rotated: each was rotated once, by its own position, before it was "
        "appended.",
        "There is one key per position of the cache, `keys.shape[2]` after `append`, and one query per new position. "
        "`visible` needs the offset of the first query: `cache.length`.",
    ),
    cases=(
        ((5, 1, 1), (0,), 0),
        ((4,), (0, 0), 1),
        ((3, 2, 4), (0,), 2),
        ((1, 1, 1), (0, 0), 3),
        ((5, 1, 2), (0, 2), 4),
        *drawn(2, lambda rng: ((int(rng.integers(3, 7)), 1, 3), (2, 0, 1), int(rng.integers(99)))),
    ),
    mistakes=(
        *slips(
            attend,
            r"""
everything at position 0
- queries = rope(queries, cache.length, theta)
- keys = rope(keys, cache.length, theta)
+ queries = rope(queries, 0, theta)
+ keys = rope(keys, 0, theta)
! Each new position is rotated as if it were the first. The first new position is `cache.length`.
keys at position 0
- keys = rope(keys, cache.length, theta)
+ keys = rope(keys, 0, theta)
! The queries are rotated by their positions, but the new keys as if they began at 0.
queries at position 0
- queries = rope(queries, cache.length, theta)
+ queries = rope(queries, 0, theta)
! The keys are rotated by their positions, but the queries by a different count: both begin at `cache.length`. (Do not
! rotate the keys that the cache returns: they were rotated already.)
not turned (2)
- keys = rope(keys, cache.length, theta)
! The keys are not rotated at all. Without that, attention does not know their positions.

@ mask = visible(queries.shape[2], keys.shape[2], cache.length, attention_mask)
mask without offset (3)
+ mask = visible(queries.shape[2], keys.shape[2], 0, attention_mask)
! The mask takes the first new query for position 0, which sees only itself. Its position is `cache.length`.
padding forgotten (3)
+ mask = visible(queries.shape[2], keys.shape[2], cache.length)
! `attention_mask` is not used, so rows with padding look at their padding.
later positions are visible (3)
+ mask = visible(queries.shape[2], keys.shape[2], keys.shape[2], attention_mask)
! Several new positions came at once, and each saw those after it. `visible` has to know the position of the first
! query.

new keys only (3)
- keys, values = cache.append(layer, keys, values)
- mask = visible(queries.shape[2], keys.shape[2], cache.length, attention_mask)
+ cache.append(layer, keys, values)
+ mask = visible(queries.shape[2], keys.shape[2], 0, None)
! The new queries look only at the new keys. `cache.append` returns all keys.
one cache layer (2)
- keys, values = cache.append(layer, keys, values)
+ keys, values = cache.append(0, keys, values)
! Everything goes into layer 0 of the cache. Pass `layer` on.
""",
        ),
    ),
    also_right=r"""
# written out
def attend_written_out(queries, keys, values, cache, layer, theta, attention_mask=None):
    fast = {"traditional": False, "base": theta, "scale": 1.0, "offset": cache.length}
    queries, keys = (mx.fast.rope(each, each.shape[-1], **fast) for each in (queries, keys))
    keys, values = cache.append(layer, keys, values)
    here = mx.arange(queries.shape[2]) + cache.length
    mask = mx.arange(keys.shape[2])[None] <= here[:, None]
    if attention_mask is not None:
        real = np.ones((len(attention_mask), keys.shape[2]), bool)
        real[:, : attention_mask.shape[1]] = np.array(attention_mask)
        mask = mask & mx.array(real)[:, None, None]
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=queries.shape[-1] ** -0.5, mask=mask)
""",
    also_wrong=r"""
# advances too
- return grouped_attention(queries, keys, values, mask)
+ cache.advance(queries.shape[2])
+ return grouped_attention(queries, keys, values, mask)
! a cache whose `length` changed
""",
    run=_attend_in_chunks,
)


# -- many prompts at once ---------------------------------------------------------------------------------------------


def left_pad(prompts):
    """Ids [B, P] that end in the last column, and a mask [B, P] with 1 where a token is."""
    longest = max(len(prompt) for prompt in prompts)
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return mx.array(ids), mx.array(mask)


def _whole_numbers(function, *arguments):
    result = _two_arrays(function, *arguments)
    if not isinstance(result, tuple) or len(result) != 2:
        return result
    arrays = [np.array(each) for each in result]
    if any(array.dtype.kind == "f" for array in arrays):
        return Told("arrays of floats (token ids pick rows of the embedding, so they are whole numbers)")
    return tuple(array.astype(np.int64) if array.dtype.kind in "iub" else array for array in arrays)


LEFT_PAD = Exercise(
    "13.10",
    "Rows of one length",
    "Write `left_pad(prompts)`: from a list of lists of token ids, make two integer arrays [B, P], where P is the "
    "length of the longest prompt. In the first array each prompt *ends* in the last column, and the columns before "
    "it hold the id 0. The second is the attention mask: 1 where there is a token of the prompt, 0 where there is "
    "padding. A prompt may contain the token 0 itself.",
    minutes=6,
    difficulty=1,
    solution=left_pad,
    hints=(
        "How many zeros does a prompt get? The longest length minus its own length.",
        "`[0] * missing + list(prompt)`, and the same with 1s for the mask.",
        "The mask comes from the lengths. Comparing ids with 0 would take a real token 0 for padding.",
    ),
    cases=(
        ([[4, 5, 6], [7]],),
        ([[3], [0, 2], [5, 0, 0, 1]],),
        ([[8, 9]],),
        ([[2, 3], [4, 5]],),
        ([[151643, 7], [300]],),  # token ids of Qwen3 do not fit into 8 or 16 bits
        *drawn(3, lambda rng: ([rng.integers(0, 5, rng.integers(1, 6)).tolist() for _ in range(4)],)),
    ),
    mistakes=slips(
        left_pad,
        r"""
mask from the ids (3)
- return mx.array(ids), mx.array(mask)
+ ids = mx.array(ids)
+ return ids, ids != 0
! The mask treats the real token 0 as padding. Compute it from the lengths. (With published models this happens easily:
! their padding is often a token that also ends a text.)
on the right (2)
- ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
- mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
+ ids = [list(prompt) + [0] * (longest - len(prompt)) for prompt in prompts]
+ mask = [[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in prompts]
! That is padding on the right. Here all prompts end in the last column, so that each completion directly follows its
! prompt.

@ mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
mask of the other side (2)
+ mask = [[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in prompts]
! Ids and mask are padded on different sides.
mask the wrong way round (2)
+ mask = [[1] * (longest - len(prompt)) + [0] * len(prompt) for prompt in prompts]
! 1 marks a token, 0 marks padding.

backwards (2)
- ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
+ ids = [[0] * (longest - len(prompt)) + list(prompt)[::-1] for prompt in prompts]
! The prompts are backwards.
cut
- longest = max(len(prompt) for prompt in prompts)
+ longest = min(len(prompt) for prompt in prompts)
  ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
+ ids = [row[-longest:] for row in ids]
  mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
+ mask = [row[-longest:] for row in mask]
! The long prompts are cut. P is the length of the *longest*.
""",
    ),
    also_right=r"""
# NumPy
def pad_with_numpy(prompts):
    ids, mask = np.zeros((2, len(prompts), max(map(len, prompts))), int)
    for row, prompt in enumerate(prompts):
        ids[row, ids.shape[1] - len(prompt) :] = prompt
        mask[row, ids.shape[1] - len(prompt) :] = 1
    return ids, mask.astype(bool)
""",
    also_wrong=r"""
# ids of one byte
- return mx.array(ids), mx.array(mask)
+ return mx.array(ids).astype(mx.uint8), mx.array(mask)
""",
    run=_whole_numbers,
)


def generate(forward, cache, prompts, max_new_tokens, ends, choose):
    """The completion of each prompt, a list of ids up to and including the first of `ends`."""
    ids, mask = left_pad(prompts)
    completions = [[] for _ in prompts]
    for step in range(max_new_tokens):
        logits = forward(ids, cache, mask)[:, -1]
        tokens = [choose(logits[row], row, step) for row in range(len(prompts))]
        for completion, token in zip(completions, tokens):
            if not completion or completion[-1] not in ends:
                completion.append(token)
        if all(completion[-1] in ends for completion in completions):
            break
        ids = mx.array(tokens)[:, None]
    return completions


def _right_pad(prompts):
    longest = max(map(len, prompts))
    ids = [list(prompt) + [0] * (longest - len(prompt)) for prompt in prompts]
    return mx.array(ids), mx.array([[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in prompts])


def _count_positions(function, forward, cache, prompts, *others):
    """Return the completions, or a `Told` if more positions went through the model than needed."""
    read = []

    def counted(ids, cache, attention_mask=None):
        logits = forward(ids, cache, attention_mask)
        read.append(np.array(ids).shape[1])
        return logits

    def of_one_row(logits, row, step):
        if np.ndim(logits) != 1:
            raise ValueError(f"`choose` got an array of shape {np.shape(logits)}. It takes one row's logits, [V]")
        return choose(logits, row, step)

    *others, choose = others
    completions = _numbers(function(counted, cache, prompts, *others, of_one_row))
    if not isinstance(completions, list) or not all(isinstance(each, list) for each in completions):
        return completions
    needed = max(map(len, prompts)) + max(map(len, completions), default=1)
    if sum(read) > needed:
        return Told(
            f"{completions}, but {sum(read)} positions per row went through the model, where {needed - 1} are enough"
        )
    return completions


GENERATE = Exercise(
    "13.11",
    "generate",
    "Put it together: `generate(forward, cache, prompts, max_new_tokens, ends, choose)`. `forward(ids, cache, "
    "attention_mask)` takes ids [B, T] of new positions, reads and extends the cache, and returns logits [B, T, V]. "
    "`choose(logits, row, step)` turns one row's logits [V] into a token id. Pad the prompts with `left_pad` and send "
    "them through once; from then on send only the newest token of each row, always with the same mask. Return a list "
    "of completions, each a list of ids up to and including its first token of `ends`; no completion is longer than "
    "`max_new_tokens`. Stop early when every row has ended.",
    minutes=20,
    difficulty=3,
    solution=generate,
    hints=(
        "A loop over `range(max_new_tokens)`. The first round sends the padded prompts, every later round a column "
        "[B, 1]: `ids = mx.array(tokens)[:, None]`. Only the logits of the last position count, `[:, -1]`.",
        "A row that has ended still gets a token in each round, because the batch continues. Do not append it: `if "
        "not completion or completion[-1] not in ends`.",
        "`break` when `all(completion[-1] in ends for completion in completions)`.",
    ),
    cases=(
        (sums, SumCache(), [[3]], 4, {2}, likeliest),
        (sums, SumCache(), [[1, 2], [5]], 5, {0}, likeliest),
        (sums, SumCache(), [[3, 3, 1, 2], [6], [2, 4]], 6, {0, 3}, likeliest),
        (sums, SumCache(), [[2, 1], [1, 1, 6]], 5, {3}, by_row_and_step),
        (sums, SumCache(), [[4], [1, 2, 3]], 1, set(), likeliest),
        (sums, SumCache(), [[1, 6, 1], [2, 0, 2, 2]], 6, set(), by_row_and_step),
        *drawn(
            3,
            lambda rng: (
                *(sums, SumCache(), [rng.integers(0, 7, rng.integers(1, 6)).tolist() for _ in range(3)]),
                *(6, {int(rng.integers(7))}, by_row_and_step),
            ),
        ),
    ),
    mistakes=slips(
        generate,
        r"""
@ logits = forward(ids, cache, mask)[:, -1]
no mask
+ logits = forward(ids, cache, None)[:, -1]
! The model did not get the mask, so it reads padding as tokens. (Token 0 may mean something, and attention sees every
! position.)
mask in the first round
+ logits = forward(ids, cache, None if step else mask)[:, -1]
! The model got the mask in the first round only. The padding is still in the cache, and every later position looks back
! at it: pass the same mask in every round.
first position
+ logits = forward(ids, cache, mask)[:, 0]
! The next token follows the *last* position: `[:, -1]`.

padded on the right
- ids, mask = left_pad(prompts)
+ ids, mask = _right_pad(prompts)
! The prompts are padded on the right, so the last column, `[:, -1]`, contains padding. With `left_pad` all prompts end
! there.
all of it again
- ids = mx.array(tokens)[:, None]
+ ids = mx.concatenate([ids, mx.array(tokens, dtype=ids.dtype)[:, None]], axis=1)
! The whole text goes through the model in every round, and into the cache again. Send only the newest token.
end left out (2)
- if not completion or completion[-1] not in ends:
+ if token not in ends:
- if all(completion[-1] in ends for completion in completions):
+ if all(token in ends for token in tokens):
! The end token belongs to the completion, and nothing comes after it.
continues after the end (2)
  for completion, token in zip(completions, tokens):
-     if not completion or completion[-1] not in ends:
-         completion.append(token)
- if all(completion[-1] in ends for completion in completions):
+     completion.append(token)
+ if all(set(completion) & set(ends) for completion in completions):
! A row that has ended got more tokens. The batch continues for the other rows, but this completion is finished.
stops with the first (3)
- if all(completion[-1] in ends for completion in completions):
+ if any(completion[-1] in ends for completion in completions):
! Everything stopped when the first row ended. The other rows were not finished.
never stops early (3)
- if all(completion[-1] in ends for completion in completions):
-     break
! When every row has ended, stop: the remaining rounds do nothing.

@ tokens = [choose(logits[row], row, step) for row in range(len(prompts))]
step 0
+ tokens = [choose(logits[row], row, 0) for row in range(len(prompts))]
! `choose` gets the number of the round as its step: 0, 1, 2, ...
row 0
+ tokens = [choose(logits[row], 0, step) for row in range(len(prompts))]
! `choose` gets the number of the row.

one too many
- for step in range(max_new_tokens):
+ for step in range(max_new_tokens + 1):
! A row is longer than `max_new_tokens`.
""",
    ),
    also_right=r"""
# column by column
def column_by_column(forward, cache, prompts, max_new_tokens, ends, choose):
    ids, mask = left_pad(prompts)
    columns, logits = [], forward(ids, cache, mask.astype(mx.bool_))
    while True:
        columns.append([choose(row[-1], number, len(columns)) for number, row in enumerate(logits)])
        rows = list(zip(*columns, strict=True))
        if len(columns) == max_new_tokens or all(set(row) & set(ends) for row in rows):
            break
        logits = forward(mx.array(columns[-1]).reshape(-1, 1), cache, mask.astype(mx.bool_))
    cut = [next((place + 1 for place, token in enumerate(row) if token in ends), len(row)) for row in rows]
    return [list(row[:length]) for row, length in zip(rows, cut, strict=True)]
""",
    also_wrong=r"""
# floats
- return completions
+ return [[float(token) for token in completion] for completion in completions]
! whole numbers
# a batch of one
- tokens = [choose(logits[row], row, step) for row in range(len(prompts))]
+ tokens = [choose(logits[row : row + 1], row, step) for row in range(len(prompts))]
! It takes one row's logits, [V]
# one end of several
- ids, mask = left_pad(prompts)
+ ends = set(list(ends)[:1])
+ ids, mask = left_pad(prompts)
""",
    run=_count_positions,
)
