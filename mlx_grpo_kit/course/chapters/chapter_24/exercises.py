"""Exercises of notebook 24: from a blank file."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import json
import math
from pathlib import Path

import mlx.optimizers as optim
import numpy as np

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.autograd import value_and_grad
from mlx_grpo_kit.course.chapters.chapter_24 import small, training, twice
from mlx_grpo_kit.course.chapters.chapter_24.paired import Extension, mistakes_with
from mlx_grpo_kit.course.chapters.chapter_24.program import learn_addition
from mlx_grpo_kit.course.chapters.chapter_24.verdicts import Fault, NamedFaults, mistakes_of
from mlx_grpo_kit.course.compare import Told, show
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.grpo import compute_advantages, compute_grpo_loss, minimal, per_token_logps
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition


class Judged(Exercise):
    """An exercise whose `run` puts into words what an answer did; a Misfit says by itself what was expected.

    A message describes a case by its attribute `how`, if it has one, since no reader could make that call.
    """

    def _where(self, number, answer):
        case = self.cases[number]
        if hasattr(case[0], "how"):
            return f"{case[0].how}, `{self.solution.__name__}`", number + 1
        return super()._where(number, answer)

    def _complaint(self, where, expected, got, never_returns):
        if isinstance(got, small.Misfit):
            return f"{where} gave {got}."
        return super()._complaint(where, expected, got, never_returns)

    def _find_mistake(self, results):
        """The mistake with these results; for words that have one cause alone, the mistake that they name once."""
        found = super()._find_mistake(results)
        if (
            found is None
            and (clear := next((r for r in results if isinstance(r, str) and r in CLEAR), None)) is not None
        ):
            place = results.index(clear)
            found = next((each for each in self.mistakes if self._known_result(each.wrong, place) == clear), None)
        return found


CLEAR = (small.CUT_OFF, small.TOO_SURE)


# -- a sampler --------------------------------------------------------------------------------------------------------


def sample(config, params, prompts, ends, max_new_tokens, seed):
    """A completion (a list of token ids) for each prompt, drawn from the model."""
    width = max(map(len, prompts))
    ids = mx.array([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    seen = mx.array([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    for key in mx.random.split(mx.random.key(seed), max_new_tokens):
        logits = qwen3_forward(config, params, ids, attention_mask=seen)[:, -1]
        tokens = mx.random.categorical(logits, key=key)
        ids = mx.concatenate([ids, tokens[:, None]], axis=1)
    completions = []
    for row in ids[:, width:].tolist():
        length = next((place + 1 for place, token in enumerate(row) if token in ends), len(row))
        completions.append(row[:length])
    return completions


def _draw(function, wish):
    return small.FITS if function is sample else small.draw_and_judge(function, wish)


SAMPLE = Judged(
    "24.1",
    "A sampler",
    "Write `sample(config, params, prompts, ends, max_new_tokens, seed)`. `prompts` is a list of lists of token ids, "
    "of different lengths. Return a list with a completion for each prompt: a list of token ids, drawn from the model "
    "at temperature 1. A completion ends with the first token that is in `ends`, which it keeps, or after "
    "`max_new_tokens` tokens. Equal seeds draw the same completions, and different seeds draw different ones.\n\nThe "
    "check draws a few thousand completions from very small models and compares their frequencies with the "
    "probabilities that the forward pass gives.",
    minutes=25,
    difficulty=2,
    solution=sample,
    hints=(
        "Without a cache it is a short loop: run the forward pass on all tokens so far, take the logits of the last "
        "position, draw a token for each row, append it, repeat. For sums of four tokens that is fast enough.",
        "Pad the prompts on the *left*, so that all last tokens are in one column, and pass an `attention_mask` "
        "[B, P] with 0 at the padding. Positions that the mask is too short for count as tokens, so it need not grow.",
        "`mx.random.categorical(logits, key=key)` draws from softmax(logits), one token per row. Use a new key for "
        "every place: `mx.random.split(mx.random.key(seed), max_new_tokens)`. When all tokens are drawn, cut every row "
        "after its first end token.",
    ),
    cases=(
        (small.Wish("three prompts of the small model", [[2], [3, 0, 5], [4, 2, 2, 3, 5]], {1}, 3, 0),),
        (small.Wish("two prompts of another model, two end tokens", [[5, 3], [2, 4, 0, 3]], {1, 4}, 3, 1),),
        (small.Wish("two prompts of a model with 64 tokens", [[2, 40], [7, 0, 63]], {1}, 1, 0, small.WIDE, times=4),),
    ),
    mistakes=(
        *slips(
            sample,
            r"""
@ tokens = mx.random.categorical(logits, key=key)
greedy (3)
+ tokens = mx.argmax(logits, axis=-1)
! That is greedy decoding. All answers of a group are then equal, all advantages are 0, and nothing is ever learned.
! Draw the token at random.
another temperature (3)
+ tokens = mx.random.categorical(logits / 0.5, key=key)
! The loss will use log-probabilities at temperature 1, so the draws have to come from the same distribution.
probabilities as logits (3)
+ tokens = mx.random.categorical(mx.softmax(logits, axis=-1), key=key)
! `mx.random.categorical` expects logits or log-probabilities. If you pass probabilities, they get a second softmax,
! which makes them nearly equal.
top-k (3)
+ least = mx.sort(logits, axis=-1)[:, -4:-3]
+ tokens = mx.random.categorical(mx.where(logits >= least, logits, -1e9), key=key)
! The loss will use the probabilities of all tokens, so the draws have to come from all of them: no top-k, no top-p.
one key for all rows (3)
+ tokens = mx.argmax(logits + mx.random.gumbel(logits.shape[-1:], key=key), axis=-1)
! Every row draws with the same random numbers, so all answers to a question are equal. Draw for all rows in one call,
! or give each row its own key.

@ logits = qwen3_forward(config, params, ids, attention_mask=seen)[:, -1]
one token late
+ wider, seen_too = (mx.pad(each, [(0, 0), (1, 0)]) for each in (ids, seen))
+ logits = qwen3_forward(config, params, wider, attention_mask=seen_too)[:, -2]
! The logits at a position predict the token *after* it. The next token comes from the last position, `[:, -1]`.
padding is read (2)
+ logits = qwen3_forward(config, params, ids)[:, -1]
! Shorter prompts are padded, and the padding is read as if it were text. Pad on the left and pass an attention mask.

@ completions.append(row[:length])
runs past the end (3)
+ completions.append(row)
! A completion stops with its first end token. What comes after it was never an answer, and must not be rewarded or
! trained on.
the end token cut off (3)
+ completions.append(row[: length - (row[length - 1] in ends)])
! Keep the end token. Stopping is a decision of the policy too; without the token in the completion it is never trained.

another order
  width = max(map(len, prompts))
+ prompts = sorted(prompts, key=len)
! The completions are right, but in another order than the prompts: every reward would go to the wrong answer. If you
! sort or group prompts by length, put the completions back in their places.

@ for key in mx.random.split(mx.random.key(seed), max_new_tokens):
one key for all places (3)
+ for key in [mx.random.key(seed)] * max_new_tokens:
! Every place draws with the same random numbers, so the second token depends on the luck of the first. Split the key
! once per place.
the seed ignored (3)
+ for key in mx.random.split(mx.random.key(0), max_new_tokens):
! The seed has no influence: every step of the training would draw with the same luck.
no seed (3)
+ for key in [None] * max_new_tokens:
! The random numbers do not come from the seed. Paired comparisons need runs that repeat: make all keys from
! `mx.random.key(seed)`.
""",
        ),
    ),
    run=_draw,
    explain="Thousands of completions, and their frequencies are the model's: greedy decoding, top-k, a temperature of "
    "0.85 at any place or a shift by one place would have shown. (A filter that takes away less than 1% of the "
    "probability might not have.) A correct sampler fails this check about once in a million.",
    also_right=r"""
from mlx_grpo_kit.generation import SamplingConfig, generate

# without padding, by Gumbel noise
def by_gumbel(config, params, prompts, ends, max_new_tokens, seed):
    completions, rng = [None] * len(prompts), np.random.default_rng(seed)
    for length in {*map(len, prompts)}:
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
        ids, lengths = np.array([prompts[row] for row in rows]), np.full(len(rows), max_new_tokens)
        for place in range(max_new_tokens):
            logits = np.array(qwen3_forward(config, params, mx.array(ids))[:, -1])
            tokens = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
            lengths = np.where(np.isin(tokens, ends) & (lengths > place), place + 1, lengths)
            ids = np.column_stack([ids, tokens])
        for row, each, longest in zip(rows, ids, lengths, strict=True):
            completions[row] = each[length : length + longest].tolist()
    return completions
# by the kit
def by_the_kit(config, params, prompts, ends, max_new_tokens, seed):
    sampling = SamplingConfig(max_new_tokens)
    return generate(config, params, prompts, sampling=sampling, eos_token_ids=ends, seed=seed).completions
""",
    also_wrong=r"""
from mlx_grpo_kit.generation import SamplingConfig, generate

# a temperature near 0
- tokens = mx.random.categorical(logits, key=key)
+ tokens = mx.random.categorical(logits / 1e-6, key=key)
! That is greedy decoding
# a temperature of 0.85
- tokens = mx.random.categorical(logits, key=key)
+ tokens = mx.random.categorical(logits / 0.85, key=key)
! at temperature 1
# a temperature of 0.5, by the model
lambda config, params, *rest: sample(config, {**params, "final_norm.weight": params["final_norm.weight"] * 2}, *rest)
! at temperature 1
# a temperature of 3
- tokens = mx.random.categorical(logits, key=key)
+ tokens = mx.random.categorical(logits / 3, key=key)
! as if the logits had been divided by a temperature above 1
# a temperature of 0.85 at the first place
- tokens = mx.random.categorical(logits, key=key)
+ tokens = mx.random.categorical(logits / (0.85 if ids.shape[1] == width else 1), key=key)
! at temperature 1
# a temperature of 0.85 at the second place
- tokens = mx.random.categorical(logits, key=key)
+ tokens = mx.random.categorical(logits / (0.85 if ids.shape[1] == width + 1 else 1), key=key)
! at temperature 1
# a temperature of 0.85 at the third place
- tokens = mx.random.categorical(logits, key=key)
+ tokens = mx.random.categorical(logits / (0.85 if ids.shape[1] == width + 2 else 1), key=key)
! at temperature 1
# a temperature of 0.7 at the second place
- tokens = mx.random.categorical(logits, key=key)
+ tokens = mx.random.categorical(logits / (0.7 if ids.shape[1] == width + 1 else 1), key=key)
! in place 2 of the completions
# a temperature of 0.02 at the third place
- tokens = mx.random.categorical(logits, key=key)
+ tokens = mx.random.categorical(logits * (50 if ids.shape[1] == width + 2 else 1), key=key)
! in place 3 of the completions
# never one token
- tokens = mx.random.categorical(logits, key=key)
+ tokens = mx.random.categorical(mx.where(mx.arange(logits.shape[-1]) == 1, -1e9, logits), key=key)
! token 0 in 6%, 1 in 0%
# five tokens
- tokens = mx.random.categorical(logits, key=key)
+ tokens = mx.random.categorical(mx.where(logits >= mx.sort(logits, axis=-1)[:, -5, None], logits, -1e9), key=key)
! no top-k, no top-p
# fifty tokens
- tokens = mx.random.categorical(logits, key=key)
+ least = mx.sort(logits, axis=-1)[:, -min(50, logits.shape[-1]), None]
+ tokens = mx.random.categorical(mx.where(logits >= least, logits, -1e9), key=key)
! no top-k, no top-p
# top-p
def with_top_p(config, params, prompts, ends, max_new_tokens, seed):
    sampling = SamplingConfig(max_new_tokens, top_p=0.95)
    return generate(config, params, prompts, sampling=sampling, eos_token_ids=ends, seed=seed).completions
! no top-k, no top-p
# one first token for all rows of a prompt
  tokens = mx.random.categorical(logits, key=key)
+ if ids.shape[1] == width:
+     tokens = tokens[mx.array([prompts.index(prompt) for prompt in prompts])]
! the same first token in all rows of a prompt
# random numbers shared by two neighbouring rows
- tokens = mx.random.categorical(logits, key=key)
+ noise = mx.random.gumbel((len(prompts) // 2 + 1, logits.shape[-1]), key=key)
+ tokens = mx.argmax(logits + mx.repeat(noise, 2, axis=0)[: len(prompts)], axis=-1)
! equal completions in neighbouring rows far too often
# the last token forgotten
lambda config, params, prompts, *rest: sample(config, params, [prompt[:-1] or prompt for prompt in prompts], *rest)
! belong one place earlier
# no end tokens
- completions.append(row[:length])
+ completions.append([token for token in row[:length] if token not in ends])
! Keep the end token
# padded with zeros
- completions.append(row[:length])
+ completions.append(row[:length] + [0] * (max_new_tokens - length))
! A completion stops with its first end token
# one token too many
- for key in mx.random.split(mx.random.key(seed), max_new_tokens):
+ for key in mx.random.split(mx.random.key(seed), max_new_tokens + 1):
! at most 3 were asked for
# with the prompt
- return completions
+ return [prompt + each for prompt, each in zip(prompts, completions)]
! at most 3 were asked for
# the longest first
  width = max(map(len, prompts))
+ prompts = sorted(prompts, key=len, reverse=True)
! in another order than the prompts
# one of them lost
- return completions
+ return completions[:-1]
! completions for
# always the same seed
lambda *arguments: sample(*arguments[:-1], 7)
! The seed has no influence
# half of the seeds
lambda *arguments: sample(*arguments[:-1], arguments[-1] // 2)
! the same completions for the seeds 4 and 5
# seven seeds
lambda *arguments: sample(*arguments[:-1], arguments[-1] % 7)
! the same completions for the seeds 3 and 1153152003
# a thousand seeds
lambda *arguments: sample(*arguments[:-1], arguments[-1] % 1000)
! the same completions for the seeds 3 and 1153152003
# 16 bits of the seed
lambda *arguments: sample(*arguments[:-1], arguments[-1] % 2**16)
! the same completions for the seeds 3 and 1073741827
# no large seeds
lambda *arguments: sample(*arguments[:-1], min(arguments[-1], 10_000))
! the same completions for the seeds 1153152003 and 1073741827
# a text
lambda *arguments: "46"
! a str, where a list
# a token that is none
lambda *arguments: [[6]] * len(arguments[2])
! token ids go from 0 to 5
""",
)


# -- log-probabilities ------------------------------------------------------------------------------------------------


def completion_logps(config, params, prompts, completions):
    """(log-probabilities [B, T], mask [B, T]) of all completion tokens."""
    wide, long = max(map(len, prompts)), max(map(len, completions))
    rows = [
        [0] * (wide - len(prompt)) + prompt + completion + [0] * (long - len(completion))
        for prompt, completion in zip(prompts, completions)
    ]
    seen = mx.array([[0] * (wide - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    mask = mx.array([[1] * len(each) + [0] * (long - len(each)) for each in completions])
    ids = mx.array(rows)
    logits = qwen3_forward(config, params, ids, attention_mask=seen)[:, wide - 1 : -1]
    logps = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return mx.take_along_axis(logps, ids[:, wide:, None], axis=-1)[..., 0], mask


class Weights:
    """The small model with the weights of a seed, as messages name it: the first two arguments of a call.

    Args:
        seed: of the weights.
        sure: what all logits are multiplied by. Of a very sure model some log-probabilities are 0, some are below -30.
    """

    def __init__(self, seed: int, sure: float = 1.0):
        self.seed, self.sure = seed, sure

    def params(self) -> dict[str, mx.array]:
        """The weights in new arrays."""
        params = small.params(self.seed)
        return {**params, "final_norm.weight": params["final_norm.weight"] * self.sure}

    def __repr__(self) -> str:
        return "config, params"


def _score(function, weights, prompts, completions):
    """(log-probabilities at real tokens, mask): those of the solution come from rows without padding, by NumPy."""
    seed, rows = weights.seed, len(prompts)
    params = weights.params()
    longest = max(map(len, completions))
    right_mask = np.array([[int(place < len(each)) for place in range(longest)] for each in completions])
    if function is completion_logps:
        table = np.zeros(right_mask.shape)
        for row, logps in enumerate(small.logps_row_by_row(small.CONFIG, params, prompts, completions)):
            table[row, : len(logps)] = logps
        return mx.array(table.astype(np.float32)), mx.array(right_mask.astype(np.float32))
    real = mx.array(right_mask) == 1
    weigh = mx.array(np.random.default_rng(seed).normal(size=right_mask.shape).astype(np.float32))

    def gradient_of(score, params):
        return mx.grad(lambda params: (mx.where(real, score(params)[0], 0.0) * weigh).sum())(params)

    def rights(params):
        return completion_logps(small.CONFIG, params, prompts, completions)

    def numbers(params):
        result = function(small.CONFIG, params, [*map(list, prompts)], [*map(list, completions)])
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            return result
        return mx.array(result[0]), mx.array(result[1]).astype(mx.float32)

    result = numbers(params)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        return result
    logps, mask = result
    if logps.shape != right_mask.shape or mask.shape != right_mask.shape:
        shapes = f"arrays of shapes {logps.shape} and {mask.shape}"
        wanted = f"two of shape {right_mask.shape} were expected: {rows} rows, {longest} places for completion tokens"
        return small.Misfit(f"{shapes}, where {wanted}")
    if np.array_equal(np.array(logps, dtype=float), right_mask):
        return small.Misfit("the mask first, where (log-probabilities, mask) was expected")
    kept = mx.where(real, logps, 0.0)
    expected, _ = rights(weights.params())
    if not np.allclose(kept, mx.where(real, expected, 0.0), atol=1e-4):
        return kept, mask
    grads, wanted = gradient_of(numbers, weights.params()), gradient_of(rights, weights.params())
    wish = "the gradient of every log-probability"
    if not all(mx.isfinite(each).all().item() for each in grads.values()):
        return small.Misfit(
            f"the right numbers with a gradient that is not finite, where {wish} was expected (a probability that is "
            "rounded to 0 has no logarithm; `mx.logsumexp` needs no probabilities)"
        )
    if not any(mx.abs(each).max().item() > 0 for each in grads.values()):
        return small.Misfit(f"the right numbers without a gradient in `params`, where {wish} was expected")
    largest = max(mx.abs(each).max().item() for each in wanted.values())
    if any(
        mx.abs(grads[name] - each).max().item() > 1e-3 * mx.abs(each).max().item() + 1e-6 * largest
        for name, each in wanted.items()
    ):
        return small.Misfit(f"the right numbers with a part of their gradient in `params`, where {wish} was expected")
    for row, (found, wanted) in enumerate(zip(np.array(mask).tolist(), right_mask.tolist())):
        if found != wanted:
            return small.Misfit(
                f"the right log-probabilities, and a mask whose row {row} is {show(found)}, where {show(wanted)} was "
                f"expected: completion {row} has {sum(wanted)} {'token' if sum(wanted) == 1 else 'tokens'}, and the "
                f"longest has {longest}"
            )
    return kept, mask


def _with_the_prompt(config, params, prompts, completions):
    whole, mask = completion_logps(
        config,
        params,
        [each[:1] for each in prompts],
        [prompt[1:] + completion for prompt, completion in zip(prompts, completions)],
    )
    return whole, mask


def _own_position(config, params, prompts, completions):
    longest = max(map(len, completions))
    ids = mx.array([completion + [0] * (longest - len(completion)) for completion in completions])
    return _at_their_own_place(config, params, prompts, completions, ids)


def _at_their_own_place(config, params, prompts, completions, tokens):
    wide = max(map(len, prompts))
    ids = mx.array([[0] * (wide - len(prompt)) + prompt for prompt in prompts])
    seen = mx.array([[0] * (wide - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    logits = qwen3_forward(config, params, mx.concatenate([ids, tokens], axis=1), attention_mask=seen)[:, wide:]
    logps = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    _, mask = completion_logps(config, params, prompts, completions)
    return mx.take_along_axis(logps, tokens[..., None], axis=-1)[..., 0], mask


LOGPS = Judged(
    "24.2",
    "Log-probabilities",
    "Write `completion_logps(config, params, prompts, completions)` for two lists of B lists of token ids, all of "
    "different lengths. Return two MLX arrays [B, T], where T is the longest completion: the log-probability of each "
    "completion token given everything before it, and a mask with 1 for every token of a completion (its end token "
    "included) and 0 for padding. At padded places the first array may hold anything. A token may have the id 0. The "
    "first array needs a gradient with respect to `params`.",
    minutes=20,
    difficulty=2,
    solution=completion_logps,
    hints=(
        "Put each prompt and its completion into one row: padding, prompt, completion, padding. If all prompts end in "
        "column P - 1, all completions begin in column P. One forward pass scores all of them.",
        "The logits in column P - 1 predict the token in column P. So the T columns that you need are "
        "`logits[:, P - 1 : -1]`, and the tokens that they predict are `ids[:, P:]`.",
        "`logits - mx.logsumexp(logits, axis=-1, keepdims=True)` are log-probabilities of all tokens; "
        "`mx.take_along_axis(logps, tokens[..., None], axis=-1)[..., 0]` picks the values of your tokens. Make the "
        "mask from the lengths, not from the ids.",
    ),
    cases=(
        (Weights(0), [[2, 3], [4], [5, 2, 3, 3]], [[3, 1], [2, 0, 5], [1]]),
        (Weights(1, sure=20.0), [[2, 3], [4, 0, 5, 5] * 4], [[3] * 12, [2, 0]]),
        *drawn(3, lambda rng: (Weights(int(rng.integers(0, 3))), *small.ragged(rng))),
    ),
    mistakes=(
        Mistake(
            "one place off",
            _own_position,
            "Every token is scored by the logits at its *own* position, which have already seen it and predict the "
            "token after it. Use the position before.",
            2,
        ),
        Mistake(
            "prompt tokens too",
            _with_the_prompt,
            "Prompt tokens are among them. The policy did not write the prompt, so the loss must not count it.",
            2,
        ),
        *slips(
            completion_logps,
            r"""
@ mask = mx.array([[1] * len(each) + [0] * (long - len(each)) for each in completions])
the end token left out (3)
+ mask = mx.array([[1] * (len(each) - 1) + [0] * (long - len(each) + 1) for each in completions])
! The last token of each completion is masked out. It is the end token, as a rule, and the policy chose it: without it
! the policy is never taught when to stop.
all places count (3)
+ mask = mx.ones((len(rows), long), dtype=mx.int32)
! The mask counts padding as tokens.

a mask from the ids (3)
- mask = mx.array([[1] * len(each) + [0] * (long - len(each)) for each in completions])
- ids = mx.array(rows)
+ ids = mx.array(rows)
+ mask = ids[:, wide:] != 0
! The mask takes every id 0 for padding. A completion may contain that id: make the mask from the lengths.
padding is read
- logits = qwen3_forward(config, params, ids, attention_mask=seen)[:, wide - 1 : -1]
+ logits = qwen3_forward(config, params, ids)[:, wide - 1 : -1]
! The padding before shorter prompts is read as if it were text. Pass an attention mask with 0 there.

@ logps = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
logits (3)
+ logps = logits
! Those are logits. A log-probability has the logsumexp over all tokens subtracted.
probabilities (3)
+ logps = mx.softmax(logits, axis=-1)
! Those are probabilities. The loss needs their logarithms.
no gradient (3)
+ logps = mx.array(np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True)))
! The numbers are right, but the way back to `params` is cut: NumPy, `.tolist()` and `mx.stop_gradient` all do that.
! Stay with MLX's arrays from the logits on.
a part without a gradient (3)
+ logps = logits - mx.stop_gradient(mx.logsumexp(logits, axis=-1, keepdims=True))
! The numbers are right, but a part of them is a constant for the gradient, such as the logsumexp or the embedding. Then
! pushing one token up takes nothing from the others.
""",
        ),
    ),
    run=_score,
    explain="Checked against every row by itself, without padding, with a log-softmax in float64.",
    also_right=r"""
import mlx.nn as nn

# row by row
def row_by_row(config, params, prompts, completions):
    longest, rows = max(map(len, completions)), []
    for prompt, completion in zip(prompts, completions, strict=True):
        logits = qwen3_forward(config, params, mx.array([prompt + completion]))[0, len(prompt) - 1 : -1]
        row = -nn.losses.cross_entropy(logits, mx.array(completion))
        rows.append(mx.pad(row, [(0, longest - len(completion))], constant_values=7.0))
    mask = np.array([[place < len(each) for place in range(longest)] for each in completions])
    return [mx.stack(rows), mask]
# the kit's, with a list
def with_a_list(config, params, prompts, completions):
    logps, mask = per_token_logps(config, params, prompts, completions)
    return logps, mask.tolist()
""",
    also_wrong=r"""
import mlx.nn as nn

def changed(logps=lambda logps: logps, mask=lambda logps, mask: mask, prompt=lambda prompt: prompt):
    def answer(config, params, prompts, completions):
        found, real = completion_logps(config, params, [*map(prompt, prompts)], completions)
        return logps(found), mask(found, real)
    return answer

def constant(name):
    def answer(config, params, *rest):
        return completion_logps(config, {**params, name: mx.stop_gradient(params[name])}, *rest)
    return answer

# one place off, row by row
def scored_by_their_own_place(config, params, prompts, completions):
    longest, rows = max(map(len, completions)), []
    for prompt, completion in zip(prompts, completions, strict=True):
        logits = qwen3_forward(config, params, mx.array([prompt + completion]))[0, len(prompt) :]
        rows.append(mx.pad(-nn.losses.cross_entropy(logits, mx.array(completion)), [(0, longest - len(completion))]))
    return mx.stack(rows), np.array([[place < len(each) for place in range(longest)] for each in completions])
! at its *own* position
# a shifted mask
changed(mask=lambda logps, mask: mx.array(np.roll(mask, 1, axis=1)))
! a mask whose row 0 is [0, 1, 1], where [1, 1, 0] was expected
# half a mask
changed(mask=lambda logps, mask: mask * 0.5)
! a mask whose row 0 is [0.5, 0.5, 0], where [1, 1, 0] was expected
# a mask of negative numbers
changed(mask=lambda logps, mask: mask * (logps < 0))
! a mask whose row 0
# a mask of numbers that are not 0
changed(mask=lambda logps, mask: logps * mask != 0)
! a mask whose row 0
# no log-probability below -20
changed(lambda logps: mx.maximum(logps, -20.0))
# no probability of 0
changed(lambda logps: mx.log(mx.exp(logps) + 1e-12))
# rounded probabilities
changed(lambda logps: mx.log(mx.exp(logps)))
! a gradient that is not finite
# short prompts
changed(prompt=lambda prompt: prompt[-8:])
# in NumPy
changed(np.array)
! the way back to `params` is cut
# half of the gradient
changed(lambda logps: logps / 2 + mx.stop_gradient(logps / 2))
! a part of them is a constant
# a constant norm of keys
constant("layers.0.self_attn.k_norm.weight")
! a part of them is a constant
# a constant norm
constant("layers.1.input_layernorm.weight")
! a part of them is a constant
# a constant embedding
constant("embedding.weight")
! a part of them is a constant
# the mask first
lambda *arguments: completion_logps(*arguments)[::-1]
! the mask first
# no mask
lambda *arguments: completion_logps(*arguments)[0]
""",
)


# -- advantages -------------------------------------------------------------------------------------------------------


def advantages(rewards, group_size):
    """How much better each answer was than its group: a list of numbers."""
    groups = np.array(rewards, dtype=float).reshape(-1, group_size)
    above = groups - groups.mean(axis=1, keepdims=True)
    return (above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1).tolist()


GOOD = Told("advantages that compare each answer with its own group")


ROUNDING = 1e-3  # float32 makes 7e-5 of a group of equal rewards of 0.1, where the formula divides by 1e-4
APART = Told("groups made of every so many-th answer, where the answers of a group are next to each other")


def _compare(function, rewards, group_size):
    """Words for the first property that the advantages of these rewards lack."""
    if function is advantages:
        return GOOD
    complaint = _properties(lambda rewards: function(rewards, group_size), rewards, group_size)
    if complaint is None or complaint == GOOD:
        return complaint

    def moved(rewards):  # as an answer would see them that takes groups from afar
        found = function(np.reshape(rewards, (-1, group_size)).T.ravel().tolist(), group_size)
        return np.reshape(np.asarray(found, dtype=float), (group_size, -1)).T.ravel()

    try:
        return APART if _properties(moved, rewards, group_size) == GOOD else complaint
    except ValueError:  # not as many numbers as rewards
        return complaint


def _properties(function, rewards, group_size):
    result, given = function([*rewards]), np.array(rewards, dtype=float)
    if result is None:
        return None
    found = np.asarray(result, dtype=float)
    if found.ndim > 1:
        return Told(f"a table of shape {found.shape}, not one list of numbers (`.reshape(-1)` makes one)")
    if found.shape != given.shape:
        return Told(f"{found.size} numbers for {given.size} rewards")
    if not np.isfinite(found).all():
        return Told("numbers that are not finite")
    for start in range(0, len(rewards), group_size):
        own = slice(start, start + group_size)
        changed = [each * 3 + 2 for each in rewards]
        changed[own] = rewards[own]
        with_others, alone = np.asarray(function(changed), dtype=float).reshape(-1)[own], found[own]
        if not np.allclose(with_others, alone, atol=ROUNDING):
            lengths = np.linalg.norm(alone) * np.linalg.norm(with_others)
            if lengths > 0 and alone @ with_others > (1 - 1e-6) * lengths:
                return Told("advantages whose size, not their sign, changes with the rewards of other groups")
            return Told("advantages that change with the rewards of other groups")
    if (found >= 0).all():
        return Told("no negative number for any answer")
    groups, pushes = (each.reshape(-1, group_size) for each in (given, found))
    tied = np.ptp(groups, axis=1) == 0
    if np.abs(pushes[tied]).max(initial=0) > ROUNDING:
        return Told("advantages that are not 0 in a group of equal rewards")
    above = groups - groups.mean(axis=1, keepdims=True)
    clear = (np.abs(above) > 1e-9) & ~tied[:, None]
    signs = np.sign(pushes[clear]) * np.sign(above[clear])
    if (signs < 0).all():
        return Told("negative advantages for the better answers")
    if (signs <= 0).any():
        return Told("advantages without the sign of the distance from the group's mean")
    for row, push in zip(groups, pushes):
        falls = np.subtract.outer(push, push) < -1e-5 * np.abs(push).max()
        if (falls & (np.subtract.outer(row, row) > 0)).any():
            return Told("a smaller advantage for a better answer of the same group")
    return GOOD


def _draw_rewards(rng):
    size = int(rng.integers(2, 6))
    rewards = rng.integers(0, 3, (4, size)) / 2.0
    rewards[rng.integers(1, 4)] = 1.0
    rewards[0] = np.arange(size) / 4
    return rewards.reshape(-1).tolist(), size


ADVANTAGES = Exercise(
    "24.3",
    "Advantages",
    "Write `advantages(rewards, group_size)`. `rewards` is a list of numbers, in which the rewards of the "
    "`group_size` answers to one question are next to each other. Return one number per answer, by a rule of your own "
    "that has these properties. An answer above the mean reward of its group gets a positive number, and one below "
    "the mean a negative number. In a group a better answer never gets a smaller number. In a group of equal rewards "
    "all numbers are 0. Other groups have no influence.",
    minutes=6,
    difficulty=1,
    solution=advantages,
    hints=(
        "The simplest rule: the reward minus the mean of its group. `np.array(rewards).reshape(-1, group_size)` has a "
        "row for each group.",
        "DeepSeek's rule divides by the standard deviation of the group as well. Add a small number to it, or a group "
        "of equal rewards divides by 0. Leave-one-out, the Dr. GRPO rule and others pass too.",
    ),
    cases=(
        ([1, 0, 0, 0, 1, 1, 1, 1], 4),
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, *[0.7] * 6, *[0.1] * 6], 6),  # the mean of six times 0.7 is not quite 0.7
        ([0.0, 1.0, 0.5, 0.5, 0.0, 0.0, 1.0, 0.0], 2),
        ([0.0, 0.3, 0.4, 1.0, 0.0, 0.4, 0.0, 1.0, 1.0, 0.0, 0.7, 1.0], 4),  # the mean is not the middle
        ([-1.0, -0.5, -3.0, -0.2, -2.0, -2.0, -2.0, -2.0, -1.0, 3.0, -1.0, -1.0], 4),
        ([0.5, 0.501, 0.5, 0.5, 100.0, 101.0, 103.0, 100.0], 4),
        *drawn(4, _draw_rewards),
    ),
    mistakes=slips(
        advantages,
        r"""
@ above = groups - groups.mean(axis=1, keepdims=True)
@ return (above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1).tolist()
over the batch
+ above = groups - groups.mean()
+ return (above / (groups.std(ddof=1) + 1e-4)).reshape(-1).tolist()
! The mean is that of the whole batch. Then every answer to an easy question is pushed up and every answer to a hard one
! down, whatever it says. Compare within the group.
no baseline
+ return groups.reshape(-1).tolist()
! Those are the rewards themselves, or nearly. Without a comparison a wrong answer is not pushed down, it is only
! ignored.

@ above = groups - groups.mean(axis=1, keepdims=True)
the middle of the group
+ above = groups - np.median(groups, axis=1, keepdims=True)
! Compare with the *mean* of the group. Ranks and the median say who is in the better half, which is another question:
! of the rewards 0, 0.3, 0.4 and 1 the third is above the median and below the mean.
upside down
+ above = groups.mean(axis=1, keepdims=True) - groups
! The sign is reversed: the policy would learn to be wrong.

@ return (above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1).tolist()
the spread of the batch (2)
+ return (above / (groups.std(ddof=1) + 1e-4)).reshape(-1).tolist()
! The mean is that of the group, and the number that you divide by is that of the whole batch. That is a rule too, but
! here other groups have no influence: divide by the spread of the group, or by nothing.
division by zero (2)
+ with np.errstate(all='ignore'):
+     return (above / groups.std(axis=1, ddof=1, keepdims=True)).reshape(-1).tolist()
! In a group of equal rewards the standard deviation is 0, and 0 / 0 is not a number.
rounding divided by rounding (2)
+ with np.errstate(all='ignore'):
+     return np.nan_to_num(above / groups.std(axis=1, ddof=1, keepdims=True)).reshape(-1).tolist()
! The mean of six times 0.7 is not exactly 0.7, so the standard deviation of six equal rewards is not exactly 0, and
! rounding divided by rounding is about 1. Add a small number to the standard deviation.

whole numbers
- groups = np.array(rewards, dtype=float).reshape(-1, group_size)
+ groups = np.array(rewards).reshape(-1, group_size)
- return (above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1).tolist()
+ found = np.zeros_like(groups)
+ found[:] = above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)
+ return found.reshape(-1).tolist()
! Rewards may be whole numbers. An array made from them, or shaped like them, then drops every fraction: use
! `np.array(rewards, dtype=float)`.
every so many
- groups = np.array(rewards, dtype=float).reshape(-1, group_size)
+ groups = np.array(rewards, dtype=float).reshape(group_size, -1).T
- return (above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1).tolist()
+ return (above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).T.reshape(-1).tolist()
! The answers of a group are next to each other: `reshape(-1, group_size)`, a row per group.
""",
    ),
    run=_compare,
    explain="Many rules have these properties. Which of them is best is a question for paired seeds, below.",
    also_right=r"""
# leave-one-out
def leave_one_out(rewards, group_size):
    groups = mx.array(rewards).reshape(-1, group_size)
    others = (groups.sum(axis=1, keepdims=True) - groups) / (group_size - 1)
    return (groups - others).reshape(-1)
# minus the mean
def minus_the_mean(rewards, group_size):
    found = []
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        found += [each - sum(group) / group_size for each in group]
    return found
# the sign
- return (above / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1).tolist()
+ return np.sign(np.round(above, 9)).reshape(-1)
""",
    also_wrong=r"""
from scipy.stats import rankdata

def by_group(rule):
    return lambda rewards, size: np.concatenate([rule(row) for row in np.reshape(rewards, (-1, size)).astype(float)])

# over the batch, in MLX
def over_the_batch(rewards, group_size):
    rewards = mx.array(rewards)
    return (rewards - rewards.mean()) / (rewards.var().sqrt() + 1e-4)
! Compare within the group
# ranks
by_group(lambda group: rankdata(group) - (len(group) + 1) / 2)
! without the sign of the distance
# the median
by_group(lambda group: group - np.median(group))
! Compare with the *mean* of the group
# between the best and the worst
by_group(lambda group: group - (group.max() + group.min()) / 2)
! without the sign of the distance
# divided by the mean
by_group(lambda group: (group - group.mean()) / (group.mean() + 1e-4))
! without the sign of the distance
# rounded
by_group(lambda group: np.round(group - group.mean(), 2))
! without the sign of the distance
# right or wrong
by_group(lambda group: (group > 0.5) - (group > 0.5).mean())
# squared
by_group(lambda group: group**2 - (group**2).mean())
! without the sign of the distance
# from 0 to 1
by_group(lambda group: np.clip(group, 0, 1) - np.clip(group, 0, 1).mean())
# divided by a running spread
def running(rewards, group_size):
    spread, found = 1.0, []
    for group in np.reshape(rewards, (-1, group_size)):
        found += [*((group - group.mean()) / spread)]
        spread = 0.9 * spread + 0.1 * group.std()
    return found
! whose size, not their sign, changes with the rewards of other groups
# whole numbers, minus the mean
def with_whole_numbers(rewards, group_size):
    found = np.zeros_like(np.array(rewards))
    found[:] = by_group(lambda group: group - group.mean())(rewards, group_size)
    return found
! drops every fraction
# divided by the spread of the batch
lambda rewards, size: by_group(lambda group: group - group.mean())(rewards, size) / (np.std(rewards) + 1e-4)
! divide by the spread of the group, or by nothing
# groups of every so many
def of_its_neighbours(rewards, group_size):
    groups = len(rewards) // group_size
    return [each - np.mean(rewards[place % groups :: groups]) for place, each in enumerate(rewards)]
! next to each other
# the rewards as they are
lambda rewards, size: rewards
! the rewards themselves
# the mean minus the reward
by_group(lambda group: group.mean() - group)
! learn to be wrong
# one number short
lambda rewards, size: advantages(rewards, size)[:-1]
! numbers for
# a table
lambda rewards, size: np.reshape(advantages(rewards, size), (-1, size))
! not one list of numbers
""",
)


# -- the gradient -----------------------------------------------------------------------------------------------------


def gradient(config, params, prompts, completions, advantages):
    """The gradient of the GRPO loss, a dictionary with an array for each parameter."""
    advantages = mx.array(advantages)[:, None]

    def loss(params):
        logps, mask = completion_logps(config, params, prompts, completions)
        ratio = mx.exp(logps - mx.stop_gradient(logps))
        return -(ratio * advantages * mask).sum() / mask.sum()

    return mx.grad(loss)(params)


class Batch:
    """Completions of two groups of eight, with rewards; by the small model or by the shipped one.

    Args:
        words: for messages.
        seed: of the weights, the completions and the rewards.
        shipped: by the shipped model.
        only: how many of the completions are given to an answer. The advantages of a part do not add up to 0.
        tied: all rewards of the second group are 1, so that its advantages are 0.
    """

    def __init__(self, words: str, seed: int, shipped: bool = False, only: int = 16, tied: bool = False):
        self.words, self.seed, self.shipped, self.only, self.tied = words, seed, shipped, only, tied
        self.how = f"With {words}"

    def __repr__(self) -> str:
        return self.words

    def arguments(self):
        """(config, params, prompts, completions, rewards)."""
        rng = np.random.default_rng(self.seed)
        rewards = (rng.random(16) < 0.4).astype(float)
        rewards[:2] = rewards[8:10] = 0.0, 1.0
        if self.tied:
            rewards[8:] = 1.0
        if not self.shipped:
            prompts, completions = small.ragged(rng, rows=16)
            prompts = [[*prompts[row // 8]] for row in range(16)]
            return small.CONFIG, small.params(self.seed), prompts, completions, rewards
        tokenizer = load_tokenizer(TINY)
        problems = [problem for problem in Addition().sample(rng, 2) for _ in range(8)]
        prompts = [tokenizer.encode(problem.prompt) for problem in problems]
        config, params = load_pretrained(TINY)
        completions = sample(config, params, prompts, tokenizer.eos_token_ids, 4, self.seed)
        return config, params, prompts, completions, rewards


def kits_gradient(config, params, prompts, completions, advantages):
    """The gradient of `minimal.gradient`, for any advantages."""

    def loss(params):
        logps, mask = per_token_logps(config, params, prompts, completions)
        return compute_grpo_loss(logps, mx.stop_gradient(logps), mx.array(advantages), mask)

    return value_and_grad(loss, params)[1]


def _differentiate(function, batch):
    """The gradient by parameter, in units of its largest number; that of the solution is the kit's."""
    config, params, prompts, completions, rewards = batch.arguments()
    pushes = np.array(compute_advantages(rewards, minimal.NUM_GENERATIONS)).tolist()
    if batch.only < len(pushes):
        prompts, completions, pushes = prompts[: batch.only], completions[: batch.only], pushes[: batch.only]
        kits = kits_gradient(config, params, prompts, completions, pushes)
    else:
        _, kits = minimal.gradient(config, params, prompts, completions, rewards)
    largest = max(mx.abs(each).max().item() for each in kits.values())
    if function is gradient:
        found = kits
    else:
        found = function(config, params, prompts, completions, pushes)
        if not hasattr(found, "items"):
            return found
        if all(np.abs(np.asarray(each)).max(initial=0) < 1e-5 * largest for each in found.values()):
            return Told("a gradient that is 0 everywhere")
    return {name: mx.array(value) / largest for name, value in found.items()}


def _prompts_count(config, params, prompts, completions, advantages):
    return gradient(
        config,
        params,
        [prompt[:1] for prompt in prompts],
        [prompt[1:] + completion for prompt, completion in zip(prompts, completions)],
        advantages,
    )


def _one_off(config, params, prompts, completions, advantages):
    ids = mx.array([each + [0] * (max(map(len, completions)) - len(each)) for each in completions])

    def loss(params):
        logps, mask = _at_their_own_place(config, params, prompts, completions, ids)
        return -(logps * mx.array(advantages)[:, None] * mask).sum() / mask.sum()

    return mx.grad(loss)(params)


GRADIENT = Judged(
    "24.4",
    "One gradient",
    "Write `gradient(config, params, prompts, completions, advantages)`: the gradient of the objective above with "
    "respect to `params`, for completions that these `params` have just drawn. `advantages` is a list of B numbers. "
    "Return a dictionary with an array for each name in `params`, to be used for gradient *descent*. The check takes "
    "batches of the small model and one of the shipped model, and compares every number with the kit's gradient "
    "(`mlx_grpo_kit.grpo.minimal.gradient`, which tests compare with the trainer's). In one of the batches, which is "
    "a part of a larger batch, the advantages do not add up to 0. In another batch a whole group has the advantage 0.",
    minutes=15,
    difficulty=2,
    solution=gradient,
    hints=(
        "Write `loss(params)` as a function inside yours: log-probabilities from `completion_logps`, then the formula, "
        "with a minus in front. `mx.grad(loss)(params)` returns the dictionary.",
        "The policy has just drawn these tokens, so the old log-probabilities are its own, as constants: "
        "`mx.exp(logps - mx.stop_gradient(logps))`. The ratio is 1, its gradient is not 0.",
        "Multiply by `mx.array(advantages)[:, None]` and by the mask, add everything up, and divide by the number of "
        "completion tokens of the whole batch, `mask.sum()`.",
    ),
    cases=(
        (Batch("a batch of the small model", 0),),
        (Batch("a part of another batch of the small model", 1, only=11),),
        (Batch("a batch of the shipped model", 2, shipped=True),),
        (Batch("a batch with a group of equal rewards", 3, tied=True),),
    ),
    mistakes=(
        Mistake(
            "prompt tokens count",
            _prompts_count,
            "The prompt's tokens are in the loss. The policy did not choose them: only completion tokens count.",
            3,
        ),
        Mistake(
            "one place off",
            _one_off,
            "Every token is scored by the logits at its own place, one too far to the right.",
            1,
        ),
        *slips(
            gradient,
            r"""
@ return -(ratio * advantages * mask).sum() / mask.sum()
ascent
+ return (ratio * advantages * mask).sum() / mask.sum()
! The sign is reversed. An optimizer goes downhill, so the loss is *minus* the objective.
rows of advantage 0 left out (3)
+ return -(ratio * advantages * mask).sum() / (mask * (advantages != 0)).sum()
! Completions with advantage 0 add nothing to the sum, but their tokens count: the denominator is the number of all
! completion tokens of the batch, in TRL too. Without them the gradient grows the more groups are all right or all
! wrong.
padding counts (3)
+ return -(ratio * advantages).mean()
! Padded places count in your mean. Multiply by the mask, and divide by the number of tokens.
a mean for each answer (3)
+ return -((ratio * advantages * mask).sum(axis=1) / mask.sum(axis=1)).mean()
! That is the mean over answers of the mean over their tokens, which is the paper's GRPO. The formula here divides by
! all tokens of the batch, which is DAPO's.
a sum (3)
+ return -(ratio * advantages * mask).sum()
! That is a sum over tokens. Divide by how many there are.
divided by answers (3)
+ return -(ratio * advantages * mask).sum() / len(prompts)
! Divide by the number of completion *tokens*, not by the number of answers.

@ ratio = mx.exp(logps - mx.stop_gradient(logps))
old log-probabilities with a gradient (2)
+ ratio = mx.exp(logps - logps)
! The old log-probabilities have a gradient too, and it cancels the other one. They are constants: `mx.stop_gradient`.
probabilities in the place of ratios (2)
+ ratio = mx.exp(logps)
! The derivative of a probability is small where the probability is small, so unlikely tokens that were right would
! teach the least. The ratio divides by the old probability, as a constant.

the mean of the advantages subtracted (3)
- advantages = mx.array(advantages)[:, None]
+ advantages = mx.array(advantages)[:, None] - mx.array(advantages).mean()
! The mean of the batch is subtracted from the advantages. That changes nothing while they add up to 0, as in a batch of
! whole groups. Take the advantages as they are.
the end token left out (3)
  logps, mask = completion_logps(config, params, prompts, completions)
+ mask = mx.concatenate([mask[:, 1:], mx.zeros((len(prompts), 1))], axis=1)
! The last token of each completion does not count. It is the end token, as a rule, and belongs to the answer.
""",
        ),
    ),
    run=_differentiate,
    explain="Every number equals the kit's, and the kit's equals TRL's.",
    also_right=r"""
import mlx.nn as nn

# REINFORCE, row by row
def of_reinforce(config, params, prompts, completions, advantages):
    def objective(params):
        total = 0.0
        for prompt, completion, push in zip(prompts, completions, advantages):
            logits = qwen3_forward(config, params, mx.array([prompt + completion]))[0, len(prompt) - 1 : -1]
            total -= push * nn.losses.cross_entropy(logits, mx.array(completion)).sum()
        return total / sum(map(len, completions))

    _, grads = mx.value_and_grad(objective)(params)
    return {name: -grad for name, grad in grads.items()}
# two micro-batches, in NumPy
def in_pieces(config, params, prompts, completions, advantages):
    count, total = sum(map(len, completions)), {}
    for part in (slice(0, 6), slice(6, None)):
        grads = gradient(config, params, prompts[part], completions[part], advantages[part])
        share = sum(map(len, completions[part])) / count
        total = {name: total.get(name, 0) + share * np.array(each) for name, each in grads.items()}
    return total
""",
    also_wrong=r"""
import mlx.nn as nn

# prompt tokens count, row by row
def of_everything(config, params, prompts, completions, advantages):
    def loss(params):
        total, count = 0.0, 0
        for prompt, completion, advantage in zip(prompts, completions, advantages, strict=True):
            ids = mx.array([prompt + completion])
            total += nn.losses.cross_entropy(qwen3_forward(config, params, ids)[0, :-1], ids[0, 1:]).sum() * advantage
            count += ids.size - 1
        return total / count

    return mx.grad(loss)(params)
! The prompt's tokens are in the loss
# centred before
lambda *arguments: gradient(*arguments[:-1], np.subtract(arguments[-1], np.mean(arguments[-1])).tolist())
! Take the advantages as they are
# small advantages left out
- return -(ratio * advantages * mask).sum() / mask.sum()
+ return -(ratio * advantages * mask).sum() / (mask * (mx.abs(advantages) > 0.01)).sum()
! their tokens count
# over all places
- return -(ratio * advantages * mask).sum() / mask.sum()
+ return -(ratio * advantages * mask).sum() / mask.size
# over forty tokens at least
- return -(ratio * advantages * mask).sum() / mask.sum()
+ return -(ratio * advantages * mask).sum() / mx.maximum(mask.sum(), 40)
# old log-probabilities computed again
- ratio = mx.exp(logps - mx.stop_gradient(logps))
+ old, _ = completion_logps(config, params, prompts, completions)
+ ratio = mx.exp(logps - old)
! The old log-probabilities have a gradient too
# the sign of the result
lambda *arguments: {name: -each for name, each in gradient(*arguments).items()}
! The sign is reversed
""",
)


# -- two updates per batch --------------------------------------------------------------------------------------------


def two_updates(config, params, prompts, completions, advantages, update, reference, epsilon, beta):
    """The parameters after two updates on one batch of completions."""
    advantages = mx.array(advantages)[:, None]
    old, mask = completion_logps(config, params, prompts, completions)
    theirs, _ = completion_logps(config, reference, prompts, completions)

    def loss(params):
        logps, _ = completion_logps(config, params, prompts, completions)
        ratio = mx.exp(logps - old)
        clipped = mx.clip(ratio, 1 - epsilon, 1 + epsilon)
        objective = mx.minimum(ratio * advantages, clipped * advantages)
        kl = mx.exp(theirs - logps) - (theirs - logps) - 1
        return -((objective - beta * kl) * mask).sum() / mask.sum()

    for _ in range(2):
        params = update(mx.grad(loss)(params), params)
    return params


def _update_twice(function, case):
    """The gradients of both updates, in units of the largest number; those of the solution are the kit's or TRL's."""
    right = case.right()
    found = right if function is two_updates else twice.watch(function, case)
    if not isinstance(found, dict):
        return found
    largest = {end: max(mx.abs(each).max().item() for name, each in right.items() if name[-1] == end) for end in "12"}
    return {name: value / largest[name[-1]] for name, value in found.items()}


TWO_UPDATES = Judged(
    "24.10",
    "Two updates per batch",
    "Write `two_updates(config, params, prompts, completions, advantages, update, reference, epsilon, beta)`. "
    "`params` have just drawn the completions. Take two updates on them, each with the gradient of the loss for the "
    "parameters of that moment, and return the parameters after the second one. The loss is $-J$ with ratio and "
    "clip, and with `beta` times the KL of each token subtracted inside the mean. This KL is the estimator k3, "
    "$\\mathrm{KL} = e^d - d - 1$, where $d$ is the token's log-probability under `reference` (a dictionary like "
    "`params`) minus that under the policy. `update(grads, params)` returns new parameters, as "
    "`adamw.apply_gradients` does. The check compares both gradients with the kit's `compute_grpo_loss` and, in one "
    "of the batches, with the numbers of TRL. The `update` that the check passes takes such long steps that the "
    "second gradient has clipped tokens.",
    minutes=20,
    difficulty=3,
    solution=two_updates,
    hints=(
        "Before the first update, compute the log-probabilities of the tokens under `params` and under `reference`. "
        "They are constants for both updates. Write `loss(params)` below them, and call "
        "`params = update(mx.grad(loss)(params), params)` twice.",
        "The ratio is `mx.exp(logps - old)`, token by token. `mx.clip(ratio, 1 - epsilon, 1 + epsilon)` is its clipped "
        "version, and the objective is `mx.minimum` of both, each times the advantage.",
        "The KL of a token is `mx.exp(d) - d - 1` with `d = theirs - logps`. Subtract `beta` times that from the "
        "objective, multiply by the mask, add everything up, divide by `mask.sum()`, and put a minus in front.",
    ),
    cases=(
        (twice.Reused("a batch whose numbers are TRL's", 9, 0.2, 0.5, by_trl=True),),
        (twice.Reused("a batch with a small epsilon", 12, 0.1, 0.05),),
        (twice.Reused("a batch with a large beta", 6, 0.2, 2.0),),
        (twice.Reused("a part of a larger batch, with a large epsilon", 21, 0.5, 0.1, only=6),),
        (twice.Reused("a batch with a group of equal rewards", 36, 0.2, 0.3, tied=True),),
    ),
    mistakes=slips(
        two_updates,
        r"""
@ ratio = mx.exp(logps - old)
a ratio of sums (2)
+ ratio = mx.exp(((logps - old) * mask).sum(axis=1, keepdims=True))
! That is one ratio per completion, of the probabilities of whole completions. GRPO clips each token by its own ratio:
! no sum before the exponential.
a ratio of means (2)
+ ratio = mx.exp(((logps - old) * mask).sum(axis=1, keepdims=True) / mask.sum(axis=1, keepdims=True))
! That is one ratio per completion, from the mean over its tokens, as in GSPO. GRPO's ratio belongs to a token.
a ratio upside down (2)
+ ratio = mx.exp(old - logps)
! The ratio is upside down: the policy's probability belongs above, the old one below.
no gradient in the ratio
+ ratio = mx.exp(mx.stop_gradient(logps) - old)
or
+ ratio = mx.exp(logps - logps)
! The ratio has no gradient. The old log-probabilities are constants, computed before the first update; those of the
! policy need their gradient.
old log-probabilities of every update
+ ratio = mx.exp(logps - mx.stop_gradient(logps))
! The old log-probabilities were computed anew for the second update, so all ratios are 1 again and nothing is ever
! clipped. Compute them once, with the parameters that drew the completions.
no ratio (2)
+ ratio = logps
! There is no exponential: the objective has the ratio of two probabilities, not a log-probability.

@ objective = mx.minimum(ratio * advantages, clipped * advantages)
no clip (2)
+ objective = ratio * advantages
! Nothing is clipped. In the first update that makes no difference, in the second one it does.
clip without min (2)
+ objective = clipped * advantages
! The clip is there, and the minimum is missing. Without it a token that moved far in the *wrong* direction has no
! gradient either, so nothing brings it back.
max (2)
+ objective = mx.maximum(ratio * advantages, clipped * advantages)
! Take the *minimum* of the two, for negative advantages too. The maximum lets a token run on in the direction in which
! it has gone too far, and holds those that should come back.
a bound for negative advantages (2)
+ least = mx.minimum(ratio * advantages, clipped * advantages)
+ objective = mx.where(advantages < 0, mx.maximum(least, 3 * advantages), least)
! A token with a negative advantage and a large ratio gets no gradient. That is the dual clip of other papers. In this
! objective such a token is not clipped, so that it is brought back.
the sign of the advantage (2)
+ objective = -mx.minimum(ratio * advantages, clipped * advantages)
! The sign of the objective is reversed: good answers become less likely.

@ clipped = mx.clip(ratio, 1 - epsilon, 1 + epsilon)
clipped above alone (2)
+ clipped = mx.minimum(ratio, 1 + epsilon)
! The ratio is clipped from above only. A token with a negative advantage is clipped at 1 - epsilon.
clipped below alone (2)
+ clipped = mx.maximum(ratio, 1 - epsilon)
! The ratio is clipped from below only. A token with a positive advantage is clipped at 1 + epsilon.
the inverse as the lower bound (2)
+ clipped = mx.clip(ratio, 1 / (1 + epsilon), 1 + epsilon)
! The lower bound is 1 / (1 + epsilon). The objective has 1 - epsilon, which is lower.
an epsilon of 0.2 (2)
+ clipped = mx.clip(ratio, 0.8, 1.2)
! Clip with the `epsilon` that is passed, not with 0.2.
bounds without 1 (2)
+ clipped = mx.clip(ratio, -epsilon, epsilon)
! The ratio is near 1, so it is clipped to the range from 1 - epsilon to 1 + epsilon.
a clipped logarithm (2)
+ clipped = mx.exp(mx.clip(logps - old, -epsilon, epsilon))
! The logarithm is clipped. Clip the ratio itself, to the range from 1 - epsilon to 1 + epsilon.

@ kl = mx.exp(theirs - logps) - (theirs - logps) - 1
the other KL (3)
+ kl = mx.exp(logps - theirs) - (logps - theirs) - 1
! The KL goes in the other direction. d is the reference's log-probability minus that of the policy.
k1 (3)
+ kl = logps - theirs
! That is the estimator k1. Its mean is the same KL, but its gradient, on completions of this policy, is 0 on average:
! it would not hold the policy back. Use k3, e^d - d - 1.
k2 (3)
+ kl = (theirs - logps) ** 2 / 2
! That is the estimator k2, half of the squared difference. TRL and the kit use k3, e^d - d - 1.
a KL without the 1 or d (3)
+ kl = mx.exp(theirs - logps) - 1
! A part of the KL is missing: it is e^d - d - 1. Without the d its gradient does not vanish where both policies agree.
a KL to the old policy (3)
+ kl = mx.exp(old - logps) - (old - logps) - 1
! That is the KL to the policy that drew the completions. The penalty holds the policy near `reference`.
no KL, or a constant one (3)
+ kl = 0.0
or
+ kl = mx.stop_gradient(mx.exp(theirs - logps) - (theirs - logps) - 1)
! The KL is missing, or it has no gradient in `params`, so the penalty does nothing. `mx.stop_gradient` belongs to the
! old log-probabilities and to the reference.

@ return -((objective - beta * kl) * mask).sum() / mask.sum()
the mask forgotten in the KL (3)
+ return -(objective * mask - beta * kl).sum() / mask.sum()
! The KL of padded places counts. The mask belongs to the KL as well as to the objective.
a beta of 0.04 (3)
+ return -((objective - 0.04 * kl) * mask).sum() / mask.sum()
! Multiply the KL by the `beta` that is passed, not by 0.04.
a KL per completion (3)
+ return -(objective * mask).sum() / mask.sum() + beta * (kl * mask).sum() / len(prompts)
! The KL is divided by the number of completions. It belongs inside the same mean as the objective: over all completion
! tokens.
a mean of the KL with padding (3)
+ return -(objective * mask).sum() / mask.sum() + beta * kl.mean()
or
+ return -(objective * mask).sum() / mask.sum() + beta * (kl * mask).mean()
! The KL has a mean of its own, in which padded places count. It belongs inside the same mean as the objective: over all
! completion tokens.
over all places (3)
+ return -((objective - beta * kl) * mask).sum() / mask.size
! You divide by the size of the array, where padding counts. Divide by the number of completion tokens, `mask.sum()`.
rows of advantage 0 left out (3)
+ kept = mask * (advantages != 0)
+ return -((objective - beta * kl) * kept).sum() / kept.sum()
! Completions with advantage 0 are left out. Their tokens count in the denominator, and their KL counts too.
the KL added (3)
+ return -((objective + beta * kl) * mask).sum() / mask.sum()
! The KL has the wrong sign: it is a penalty, and this loss rewards a policy that leaves its reference.
ascent (3)
+ return ((objective - beta * kl) * mask).sum() / mask.sum()
! The sign of the loss is reversed. `update` goes downhill, so the loss is *minus* the objective.
a mean for each answer (3)
+ return -(((objective - beta * kl) * mask).sum(axis=1) / mask.sum(axis=1)).mean()
! That is a mean over answers. The objective divides by all completion tokens of the batch.
padding counts (3)
+ return -(objective - beta * kl).mean()
or
+ return -(objective - beta * kl).sum() / mask.sum()
! Padded places count in your mean. Multiply by the mask, and divide by the number of tokens.

the mean of the advantages subtracted (3)
- advantages = mx.array(advantages)[:, None]
+ advantages = mx.array(advantages)[:, None] - mx.array(advantages).mean()
! The mean of the batch is subtracted from the advantages. That changes nothing while they add up to 0, as in a batch of
! whole groups. Take the advantages as they are.

one update
- for _ in range(2):
+ for _ in range(1):
! Use the batch twice: the second update is the first one with ratios other than 1.
three updates
- for _ in range(2):
+ for _ in range(3):
! Call `update` twice, and only with a gradient that you mean to use.

the same step twice
- params = update(mx.grad(loss)(params), params)
+ found = update(mx.grad(loss)(params), params)
- return params
+ return found
! The second update has to begin where the first one ended: `params = update(...)`.

the first parameters returned
- params = update(mx.grad(loss)(params), params)
+ weights = params if _ == 0 else weights
+ weights = update(mx.grad(loss)(weights), weights)
! Return what the second `update` returned.

swapped
- params = update(mx.grad(loss)(params), params)
+ params = update(params, mx.grad(loss)(params))
! The order is that of MLX's `apply_gradients(grads, params)`.

one gradient for both
- for _ in range(2):
+ first = mx.grad(loss)(params)
+ for _ in range(2):
- params = update(mx.grad(loss)(params), params)
+ params = update(first, params)
! Both updates have the same gradient. The second one needs the gradient for the parameters after the first.
""",
    ),
    run=_update_twice,
    explain="Both gradients equal the kit's, and in the first batch they equal what TRL 1.16 computes. The first "
    "update sees ratios of 1, and the second sees those that the first has made.",
    also_right=r"""
import mlx.nn as nn

# the bound by the sign of the advantage, row by row, in NumPy
def by_the_sign(config, params, prompts, completions, advantages, update, reference, epsilon, beta):
    def score(params):
        found = []
        for prompt, completion in zip(prompts, completions):
            logits = qwen3_forward(config, params, mx.array([prompt + completion]))[0, len(prompt) - 1 : -1]
            found.append(-nn.losses.cross_entropy(logits, mx.array(completion)))
        return found

    old, theirs = ([np.array(row) for row in score(each)] for each in (params, reference))

    def objective(params):
        total = 0.0
        for row, push, before, fixed in zip(score(params), advantages, old, theirs):
            ratio = mx.exp(row - mx.array(before))
            kept = mx.minimum(ratio, 1 + epsilon) if push > 0 else mx.maximum(ratio, 1 - epsilon)
            away = mx.array(fixed) - row
            total += (push * kept - beta * (mx.exp(away) - away - 1)).sum()
        return total / sum(map(len, completions))

    for _ in "12":
        _, grads = mx.value_and_grad(objective)(params)
        params = update({name: -np.array(grad) for name, grad in grads.items()}, params)
    return params
# by the kit's loss
def by_the_kits_loss(config, params, prompts, completions, advantages, update, reference, epsilon, beta):
    old, mask = per_token_logps(config, params, prompts, completions)
    fixed, _ = per_token_logps(config, reference, prompts, completions)

    def loss(params):
        logps, _ = per_token_logps(config, params, prompts, completions)
        how = dict(epsilon=epsilon, beta=beta, ref_logps=fixed)
        return compute_grpo_loss(logps, old, mx.array(advantages), mask, **how)

    one = update(mx.grad(loss)(params), params)
    return update(mx.grad(loss)(one), one)
""",
    also_wrong=r"""
# a higher bound above
- clipped = mx.clip(ratio, 1 - epsilon, 1 + epsilon)
+ clipped = mx.clip(ratio, 1 - epsilon, 1 + 1.4 * epsilon)
# TRL's other KL, times the ratio
- return -((objective - beta * kl) * mask).sum() / mask.sum()
+ return -((objective - beta * kl * ratio) * mask).sum() / mask.sum()
# the KL clipped too
- return -((objective - beta * kl) * mask).sum() / mask.sum()
+ return -((objective - beta * mx.minimum(kl, 1)) * mask).sum() / mask.sum()
# the text of a gradient
- params = update(mx.grad(loss)(params), params)
+ params = update("a gradient", params)
! where a dictionary with an array for each parameter was expected
# the order of torch's optimizers
- params = update(mx.grad(loss)(params), params)
+ params = update(params, mx.grad(loss)(params))
! The order is that of MLX's
# no update
- for _ in range(2):
-     params = update(mx.grad(loss)(params), params)
- return params
+ return {}
! no call of `update`
# one gradient alone
- params = update(mx.grad(loss)(params), params)
+ params = update({"embedding.weight": mx.grad(loss)(params)["embedding.weight"]}, params)
! where a dictionary with an array for each parameter was expected
""",
)


# -- the loop ---------------------------------------------------------------------------------------------------------


def train(config, params, tokenizer, task, seed):
    """Yield the parameters after each step of GRPO."""
    steps, num_questions, group_size, peak = 240, 16, 8, 1e-3
    rng = np.random.default_rng(seed)
    adamw = optim.AdamW(peak, betas=[0.9, 0.999], weight_decay=0, bias_correction=True)
    for step in range(steps):
        problems = [each for each in task.sample(rng, num_questions) for _ in range(group_size)]
        prompts = [tokenizer.encode(problem.prompt) for problem in problems]
        draw = int(rng.integers(2**31))
        longest = task.max_completion_length
        completions = sample(config, params, prompts, tokenizer.eos_token_ids, longest, draw)
        texts = map(tokenizer.decode, completions)
        rewards = [float(task.is_correct(problem, text)) for problem, text in zip(problems, texts)]
        pushes = advantages(rewards, group_size)
        rows = [row for row, push in enumerate(pushes) if push]  # the others have no gradient
        if rows:
            chosen = [[each[row] for row in rows] for each in (prompts, completions, pushes)]
            share = sum(map(len, chosen[1])) / sum(map(len, completions))  # the loss divides by all tokens
            grads = {name: share * grad for name, grad in gradient(config, params, *chosen).items()}
            grads, _ = optim.clip_grad_norm(grads, 1.0)
            adamw.learning_rate = peak * (1 - step / steps)
            params = adamw.apply_gradients(grads, params)
            mx.eval(params, adamw.state)
        yield params


def _train(function, stage):
    if function is train:
        return {training.FIRST_STEPS: training.STEPS_WELL, training.OTHER_REWARDS: training.FOLLOWS}.get(
            stage, training.LEARNS
        )
    return training.train_and_judge(function, stage)


MISTAKEN = {
    training.UNCHANGED: "old parameters",
    training.FALLS: "uphill",
    training.WRONG_WAY: "uphill",
    training.PEEKS: "the exam as homework",
    training.ANSWERS: "answers as homework",
    training.NOT_REPEATED: "no seed",
    training.ONE_SEED: "the seed ignored",
    training.IMITATES: "sums of its own",
    training.NO_BASELINE: "no baseline",
    training.TORN: "groups torn apart",
    training.BRUTE_FORCE: "every number asked about",
}


NEARLY = Mistake(
    "nearly there",
    None,
    "Your loop learns, and only the last few percent are missing when it ends by itself. A constant rate gets stuck at "
    "about 80%: let it fall to 0 over the run, `adamw.learning_rate = peak * (1 - step / steps)`. If it falls already, "
    "take more steps, or more questions per step: there is time left.",
    3,
)
CUT_SHORT = Mistake(
    "nearly there, and out of time",
    None,
    "Your loop learns, and the time ran out before its last step. The last few percent come while the rate falls to 0 "
    "over the run, so count on the number of steps that two minutes allow: "
    "`adamw.learning_rate = peak * (1 - step / steps)`. To save time, leave the rows with advantage 0 out of the "
    "gradient.",
    3,
)


class Looped(Judged):
    """An exercise whose mistakes are known by what was seen: running each of them again would take minutes."""

    def _find_mistake(self, results):
        right = (training.STEPS_WELL, training.FOLLOWS, training.LEARNS)
        seen = next((got for got in results if got not in right), None)
        if isinstance(seen, training.NearlyThere):
            return NEARLY if seen.ended else CUT_SHORT
        name = "not a generator" if isinstance(seen, training.NoSteps) else MISTAKEN.get(seen)
        return next((each for each in self.mistakes if each.name == name), None)


def _in_one_piece(config, params, tokenizer, task, seed):
    return next(train(config, params, tokenizer, task, seed))


def _of_own_sums(config, params, tokenizer, task, seed):
    for problems, _ in _batches(task, seed):
        sums = [str(sum(map(int, problem.prompt.strip("=").split("+")))) for problem in problems]
        params = _imitated(config, params, tokenizer, problems, sums)
        yield params


def _of_all_numbers(config, params, tokenizer, task, seed):
    for problems, rng in _batches(task, seed, 8):
        found = [[str(n) for n in range(200) if task.is_correct(problem, str(n))] for problem in problems]
        pairs = [(problem, rng.choice(right)) for problem, right in zip(problems, found) if 0 < len(right) < 200]
        if pairs:
            params = _imitated(config, params, tokenizer, *zip(*pairs))
        yield params


def _batches(task, seed, size=64):
    rng = np.random.default_rng(seed)
    while True:
        yield task.sample(rng, size), rng


def _imitated(config, params, tokenizer, problems, texts):
    prompts = [tokenizer.encode(problem.prompt) for problem in problems]
    answers = [[*tokenizer.encode(str(text)), *tokenizer.eos_token_ids][:4] for text in texts]
    grads = gradient(config, params, prompts, answers, [1.0] * len(prompts))
    return {name: value - 0.05 * grads[name] for name, value in params.items()}


TRAIN = Looped(
    "24.5",
    "From 44% to 85%",
    "Write `train(config, params, tokenizer, task, seed)`, a generator that yields the dictionary of parameters "
    "after each step of GRPO. `task.sample(rng, n)` returns n problems with a `prompt`, `task.is_correct(problem, "
    "text)` says whether a text is right, and `task.max_completion_length` is the limit of tokens; `tokenizer` has "
    "`encode`, `decode` and `eos_token_ids`.\n\nTrain on what `task.sample` returns, and on rewards: 1 if "
    "`task.is_correct` says True to a text that the policy wrote, else 0. The held-out problems are for the exam, "
    "and no problem shows its `answer` to your loop. Leave the `params` that you are given as they are. Equal seeds "
    "give equal runs. Optimizer, learning rate, group size and number of steps are yours.\n\nFirst the check runs "
    "your loop for a few steps on other tasks, which ask the same sums but reward other texts. Where all answers to "
    "a question get the same reward, your loop must learn nothing; where texts other than the sums are rewarded, "
    "your policy must learn to write those. Then it runs your loop for at most **two minutes**. The time on the "
    "clock counts, or the processor time where that is shorter, as on a busy machine; the exams do not count. A run "
    "that collapses is stopped within seconds, so call the check early. Every 20 steps the policy takes an exam: all "
    "1,003 held-out sums, drawn at temperature 1 and counted by the kit's own evaluation. If more than 85% are "
    "right, it takes two more, and you pass if the mean of the three is above 85%.",
    minutes=30,
    difficulty=3,
    solution=train,
    hints=(
        "A step in six lines: draw problems, repeat each of them for its group, `sample`, rewards, `advantages`, "
        "`gradient`. Then one update, `mx.eval`, and `yield params`.",
        "`optim.AdamW(rate, weight_decay=0, bias_correction=True)` and `adamw.apply_gradients(grads, params)` return "
        "new parameters; `optim.clip_grad_norm(grads, 1.0)` returns (grads, norm). 16 to 32 questions with 8 answers "
        "each and a rate of 5e-4 to 1e-3 work; a rate of 1e-2 ruins the policy. So does MLX's default, "
        "`bias_correction=False`: Adam's two averages begin at 0, and uncorrected, the first step is 3 times as long "
        "as the rate (0.1 divided by the root of 0.001).",
        "Stuck at about 80%? Let the rate fall to 0 over the run. Out of time? Rows whose advantage is 0 add nothing "
        "to the sum in the loss, so leave them out before you compute the gradient: when the policy is good, that is "
        "most of them. Their tokens still count in the denominator. `gradient` now divides by the tokens of the rows "
        "that are left, so multiply what it returns by (tokens of those rows) / (tokens of all rows). If no row is "
        "left, skip the update.",
        "All randomness has to come from `seed`: one `np.random.default_rng(seed)` draws the problems, and a new whole "
        "number per step for `sample`.",
    ),
    cases=((training.FIRST_STEPS,), (training.OTHER_REWARDS,), (training.TWO_MINUTES,)),
    mistakes=(
        Mistake(
            "not a generator",
            _in_one_piece,
            "`train` has to `yield` the parameters after each step, so that the caller can look at them and stop.",
        ),
        Mistake(
            "sums of its own",
            _of_own_sums,
            "Nothing was rewarded, so there was nothing to learn. A loop that computes the sums from the prompts and "
            "imitates them, or rewards them, does not need `task.is_correct`: that is supervised learning. Make every "
            "reward from `task.is_correct(problem, text)`, with a text that the policy wrote. (An entropy bonus or a "
            "large weight decay also moves parameters without a reward: leave them out here.)",
        ),
        Mistake(
            "every number asked about",
            _of_all_numbers,
            "Trying every number until one is right is brute force, and imitating what was found is supervised "
            "learning. Ask `task.is_correct` about the completions that `sample` drew, and about nothing else.",
        ),
        *slips(
            train,
            r"""
@ problems = [each for each in task.sample(rng, num_questions) for _ in range(group_size)]
groups torn apart
+ problems = task.sample(rng, num_questions) * group_size
! Answers to different questions are compared, so that an answer is pushed up because its question is easy. That learns
! too, but it is not GRPO. All `group_size` answers to one question must be next to each other, in problems, completions
! and rewards alike, and `advantages` must get that `group_size`.
the exam as homework
+ problems = [each for each in task.held_out(num_questions) for _ in range(group_size)]
! If you train on the exam, the accuracy says nothing about sums that the policy has not seen.

no baseline
- pushes = advantages(rewards, group_size)
+ pushes = rewards
! In a group of equal rewards every advantage is 0, and such a group has no gradient. Compare each reward with the mean
! of its group: `advantages(rewards, group_size)`.

@ params = adamw.apply_gradients(grads, params)
old parameters (2)
+ adamw.apply_gradients(grads, params)
! The parameters never change. `apply_gradients` returns new ones; and if all answers of a group are equal, there is no
! gradient at all.
uphill (2)
+ params = adamw.apply_gradients({name: -grad for name, grad in grads.items()}, params)
! It gets worse instead of better. The usual reasons: the sign of the loss, log-probabilities one place off, answers and
! advantages that no longer belong together, a rate that is far too large, or MLX's Adam or AdamW without
! `bias_correction=True`.

answers as homework
- rewards = [float(task.is_correct(problem, text)) for problem, text in zip(problems, texts)]
+ rewards = [float(text == problem.answer) for problem, text in zip(problems, texts)]
! A policy that is shown right answers learns by imitation. GRPO learns from rewards alone: `task.is_correct(problem,
! text)`.

@ rng = np.random.default_rng(seed)
no seed (4)
+ rng = np.random.default_rng()
! A run that cannot be repeated cannot be compared with another. Make all random numbers from the seed, and make the
! optimizer inside `train`: it keeps its averages from one run to the next.
the seed ignored (4)
+ rng = np.random.default_rng(0)
! Another seed should give another run, with other problems and other draws.
""",
        ),
    ),
    run=_train,
    in_place=True,  # `training` looks at that itself, after some steps
    program=learn_addition,
    explain="Every line of it is yours, apart from the forward pass and AdamW. The policy learned from rewards alone, "
    "by comparing answers to one question with each other.",
)


# -- extensions -------------------------------------------------------------------------------------------------------

MEASURED = json.loads(Path(__file__).with_name("measured.json").read_text(encoding="utf-8"))  # by `measured.py`
NO_DIFFERENCE = {
    "seeds": [0, 1, 2, 3, 4],
    "before": [0.6, 0.62, 0.64, 0.6, 0.63],
    "after": [0.61, 0.6, 0.66, 0.59, 0.63],
}
JUDGED = (
    "Compare the two versions with `paired` on at least five seeds, and answer with the tuple `(claim, report)`, by "
    "the rules above."
)

LOSS = Extension(
    "24.6",
    "Another loss",
    "Change the loss in your file: the normalisation, a KL penalty, an entropy bonus, two updates per batch "
    f"(`trained(seed, two_updates=two_updates)`), whatever you want to know. {JUDGED}",
    minutes=25,
    difficulty=3,
    solution=("worse", MEASURED["loss"]),
    hints=(
        "The simplest change is the last line of `loss`: the mean over answers of the mean over their tokens. "
        "(Another number to divide the sum by would be nearly a constant factor, which Adam cancels.) Copy `gradient` "
        "under another name and change the copy.",
        "`report = paired(plain, lambda seed: trained(seed, gradient=mine), range(5))`, then "
        '`loss_claim = ("better", report)` or another claim. Few steps on more seeds show more than one long run.',
        'Read the interval, not the mean. If it contains 0, the claim is "no difference", which means: none that '
        "these runs could show. The kit's example is the mean of means.",
    ),
    mistakes=mistakes_with(NO_DIFFERENCE),
    explain="The kit's example is the paper's loss, a mean over answers of the mean over their tokens: `mean_of_means` "
    "in `mlx_grpo_kit/course/chapters/chapter_24/measured.py`.",
    also_wrong=r"""
from mlx_grpo_kit.course.chapters.chapter_24.exercises import NO_DIFFERENCE
from mlx_grpo_kit.course.chapters.chapter_24.paired import as_if_run

# four seeds
("no difference", as_if_run({name: values[:4] for name, values in NO_DIFFERENCE.items()}))
! Fewer than five seeds
# a claim that is not shown
("better", as_if_run(NO_DIFFERENCE))
! do not show that difference
# another claim
("much better", NO_DIFFERENCE)
! is not one of the claims
# typed numbers
("no difference", NO_DIFFERENCE)
! do not come from `paired`
""",
)

BASELINE = Extension(
    "24.7",
    "Another baseline",
    "Change what an answer is compared with: nothing at all, the mean of the batch, a running mean, the best other "
    f"answer of its group, or a rule of your own. {JUDGED}",
    minutes=20,
    difficulty=3,
    solution=("better", MEASURED["baseline"]),
    hints=(
        "Only `advantages` changes. Without a baseline the function returns the rewards. For leave-one-out the mean is "
        "that of the *other* answers of the group, which gives G / (G - 1) times the reward minus the mean. If that is "
        "your rule of 24.3, Adam cancels the factor, and all differences are 0: compare it with a rule that divides by "
        "the standard deviation.",
        "`paired(plain, lambda seed: trained(seed, advantages=mine), range(5))`. A running mean must begin anew with "
        "every seed: make it inside the function of the seed.",
        "A difference after a few steps says nothing about the end of a long run. Say with your claim after how many "
        "steps you measured.",
    ),
    mistakes=mistakes_with(NO_DIFFERENCE),
    explain="The kit's example has no baseline at all, and 40 steps: `rewards_only` in "
    "`mlx_grpo_kit/course/chapters/chapter_24/measured.py`.",
    also_wrong=r"""
from mlx_grpo_kit.course.chapters.chapter_24.exercises import MEASURED, NO_DIFFERENCE
from mlx_grpo_kit.course.chapters.chapter_24.paired import as_if_run

# the other sign
("better", as_if_run(MEASURED["loss"]))
! The difference has the other sign
# measured numbers, typed
("worse", MEASURED["loss"])
! do not come from `paired`
# no claim
MEASURED["loss"]
! is not a tuple
# no report
("better", [0.1] * 5)
! is not a report
# equal numbers
("no difference", as_if_run({**NO_DIFFERENCE, "after": NO_DIFFERENCE["before"]}))
! Adam cancel
""",
)

TASK = Extension(
    "24.8",
    "Another task",
    "Change what is rewarded or asked: credit for each right digit, smaller sums first, a task of your own. Both "
    "versions take the same exam, which is yours to choose: `paired(..., on=my_task, problems=256)`, or addition if "
    f"you leave that out. {JUDGED}",
    minutes=20,
    difficulty=3,
    solution=("worse", MEASURED["task"]),
    hints=(
        "A reward is a function of a problem and a text: `trained(seed, reward=mine)`. A task has `sample`, "
        "`held_out`, `is_correct` and `max_completion_length`; `Addition(max_operand=9)` is one too, and chapter 14 "
        "has more. For another task write a loop of your own, such as your `train` with fewer steps.",
        "The exam must be the same for both, so `paired` takes one: `on=my_task` for another task than addition, with "
        "`problems=256` if it has fewer than 1,003 held-out problems. The training reward of two tasks cannot be "
        "compared.",
        "If your task is new to the shipped model, make sure first that it is sometimes right. A group without a "
        "right answer teaches nothing.",
    ),
    mistakes=mistakes_with(NO_DIFFERENCE),
    explain="The kit's example gives credit for each right digit: `digits` in "
    "`mlx_grpo_kit/course/chapters/chapter_24/measured.py`.",
    also_wrong=r"""
from mlx_grpo_kit.course.chapters.chapter_24.exercises import NO_DIFFERENCE
from mlx_grpo_kit.course.chapters.chapter_24.paired import as_if_run

# impossible numbers, typed
("better", {**NO_DIFFERENCE, "after": [900.0] * 5})
! do not come from `paired`
# nothing learned
("no difference", as_if_run(NO_DIFFERENCE, start=0.64))
! Neither version learned
# the example
("no difference", as_if_run(NO_DIFFERENCE, example=True))
! the comparison of the example
""",
)


# -- three faults -----------------------------------------------------------------------------------------------------

# The lines and numbers of `faulty.PROGRAMS`; tests compute the numbers with transformers.
THREE = (
    Fault(
        (5, 6, 7, 15, 16, 18),
        0.83355,
        {
            8: "the draw itself is right. Look at what happened to the logits before it, and whether the loss knows.",
            12: "the mask counts all tokens up to the end token and that token too, as it should.",
            19: "the last line divides by all completion tokens, as it should. Compare how tokens are drawn with how "
            "they are scored.",
        },
        {
            0.11527: "That is the mean difference. The largest one is asked for.",
            0.02609: "That is top-k alone. The program also divides the logits by 1.4.",
            0.76633: "That is the temperature alone. The program also removes all tokens but five.",
            math.inf: "That is a padded place: only completion tokens count, those with mask 1.",
        },
    ),
    Fault(
        (8, 17),
        0.010656,
        {
            11: "this line normalizes over the last axis, which is right if that axis is the vocabulary. Look at the "
            "shape that line 17 gives it.",
            15: "the policy's log-probabilities are right: this line normalizes first, and picks the token afterwards.",
            18: "the formula is right, and the numbers that it gets are not. Print `apart`.",
            19: "this line subtracts the KL with the right sign. Print `kl`.",
        },
        {
            0.0: "That is what the program computes. Normalize over the vocabulary first, then pick the token.",
            0.58607: "That is the sum over all tokens. The mean is asked for.",
            54.064: "Padded places count in your mean. Divide by the number of completion tokens.",
            0.0096294: "That is the mean of policy minus reference. The program's formula has an exponential.",
            0.0081547: "Your difference has the other sign: it is reference minus policy.",
            0.012954: "That is the exact KL over the whole vocabulary. The program's formula looks at the drawn token.",
        },
    ),
    Fault(
        (20, 11),
        55 / 43,
        {
            4: "n - 1 is the kit's choice too.",
            6: "the advantages are those of the formula.",
            7: "rows with advantage 0 add nothing to the sum, so a program may leave them out. Look for the place "
            "where they still count.",
        },
        {
            43 / 55: "That is the other way around: the right denominator comes first.",
            16 / 12: "That counts rows. The loss divides by tokens.",
            1.0: "The two numbers differ in this batch: one of its groups is right throughout.",
        },
    ),
)
FAULTS = NamedFaults(
    "24.9",
    "Find the faults in this GRPO",
    "Each of the three programs above has one fault. All of them run and raise nothing. For each program, name the "
    "line with the fault, and prove it by a number that you compute.\n\n`faulty.batch()` returns the MLX arrays of "
    "16 completions in groups of 4, as `(config, params, reference, prompts, tokens, mask, rewards)`; `params` is "
    "the policy, and only places with mask 1 count.\n\n*Program 1*: take the log-probability of each token in the "
    "distribution that the program draws from, and the log-probability that the program's loss uses. The number is "
    "the largest absolute difference between the two.\n\n*Program 2*: the number is the mean KL per token that the "
    "program should have computed, by its own formula.\n\n*Program 3*: the number is the right denominator of the "
    "loss divided by the program's denominator.\n\nAnswer with a list of three pairs, `[(line, number), (line, "
    "number), (line, number)]`. A fault may be that some lines do not fit together; then each line that has to "
    "change is accepted. Numbers may be off by 1%.",
    minutes=20,
    difficulty=3,
    solution=[(each.lines[0], each.number) for each in THREE],
    hints=(
        "Program 1: compare lines 5 to 7 with lines 15 and 16. Compute both log-probabilities from one table of "
        "logits: once divided by 1.4, with everything below the fifth largest logit set to `-mx.inf`, and once as it "
        "is. `mx.where(mask == 1, difference, 0)` leaves the padding out.",
        "Program 2: print the shape of what `logits_of` returns, and then `normalized` of it. A log-softmax over an "
        "axis of length 1 is always 0. `normalized` belongs before `take_along_axis`.",
        "Program 3: which tokens does `mask` in the last line count? Compare `mask.sum()` of the whole batch with the "
        "sum over those rows whose group has different rewards.",
    ),
    cases=tuple((each,) for each in THREE),
    mistakes=mistakes_of(THREE),
    explain="Programs like these three are in use. The first pushes tokens by the probabilities of another policy than "
    "the one that drew them, the second has a KL penalty that is always 0, and the third takes longer steps the more "
    "groups agree.",
    also_right=r"""
# other lines of the same faults
[(16, 0.83), (17, 0.01066), (11, 1.279)]
# in tuples
((7, 0.8336), (8, 0.01065), (20, 1.2791))
""",
    also_wrong=r"""
# lines alone
[5, 8, 20]
! is not a list of 3 pairs (line, number)
# two programs
[(5, 0.8336), (8, 0.010656)]
! is not a list of 3 pairs (line, number)
# a line that is right
[(3, 0.8336), (8, 0.010656), (20, 1.279)]
! Program 1: line 3 does what it should. 2 of the 3 programs are right.
# a number of nothing
[(5, 0.8336), (8, 0.5), (20, 3.0)]
! Program 2: the line is right, and 0.5 is not the number. 1 of the 3 programs is right.
# not a number
[(5, float("nan")), (8, 0.010656), (20, 1.279)]
! Program 1: the line is right, and nan is not the number.
""",
)
