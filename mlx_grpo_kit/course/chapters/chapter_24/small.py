"""A model so small that every completion can be listed with its probability, and the checks that this allows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from mlx_grpo_kit.course.compare import Told, shape_of
from mlx_grpo_kit.qwen3 import Qwen3Config, param_shapes, qwen3_forward
from mlx_grpo_kit.runtime import mx

CONFIG = Qwen3Config(
    vocab_size=6,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=32,
    tie_word_embeddings=True,
)
WIDE = replace(CONFIG, vocab_size=64)  # and nearly flat, so that what a filter such as top-k takes away is common
COPIES = 600  # rows for each prompt
UNLIKELY = 1e-7  # the probability that a correct sampler fails a test by chance
FAR, NEAR = 5.5, 3.0  # standard deviations
SHOWN = 5  # tokens of a large vocabulary in a message
VERY_FAR = 8.0  # of a count that may be small, so that it is not normal
SEEDS = (3, 3, 4, 3 + 1_153_152_000, 3 + 2**30, 5)
"""Of short draws. Two differ by a multiple of each number up to 16, of 100, 1,000 and 1,024, two by a power of 2. Of
three neighbours two are equal for a sampler that divides its seed by 2."""
PAIRS = 300  # rows of one prompt, in which neighbours are compared
TEMPERATURES = [1.1**power for power in range(-14, 25) if power]
CUTS = [*((most, 1.0) for most in range(2, 64)), *((64, mass) for mass in (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99))]
"""Top-k and top-p: the number of tokens that are kept, and the probability that they reach."""


class Misfit(Told):
    """A description that says by itself what was expected."""


FITS = Told("each completion about as often as the model gives it")
GREEDY = Told("the likeliest token at every place of every row")
ONE_FIRST = Misfit("the same first token in all rows of a prompt, where every row draws its own")
IN_PAIRS = Misfit(
    "equal completions in neighbouring rows far too often, as if they shared their random numbers, where every row "
    "draws its own"
)
ONE_DRAW = Told("one and the same completion in all rows of a prompt, and not the likeliest one")
REPEATS = Told("the same completions for two different seeds")
VARIES = Told("other completions when it was called again with the same seed")
TOO_SURE = Told("likely tokens too often, as if the logits had been divided by a temperature below 1")
TOO_WILD = Told("unlikely tokens too often, as if the logits had been divided by a temperature above 1")
LATE = Told("first tokens that belong one place earlier: they fit what follows the prompt without its last token")
AFTER_THE_END = Told("completions with tokens after an end token")
NEVER_ENDS = Told("completions that stop before the limit, but without the end token that stopped them")
PADDING = Told("the right frequencies for the longest prompt, and wrong ones for shorter prompts in the same batch")
ORDER = Told("the completions of other prompts: they fit if the prompts are sorted by length")
CUT_OFF = Told("likely tokens alone, as if the others had been cut off (top-k or top-p)")
LATER_TOKENS = Told("first tokens with the right frequencies, and whole completions with wrong ones")


def params(seed: int, config: Qwen3Config = CONFIG) -> dict[str, mx.array]:
    """Random weights of a small model, large enough that its probabilities differ; new arrays in each call."""
    return copied(_weights(seed, config.vocab_size))


@cache
def _weights(seed: int, vocab_size: int) -> dict[str, mx.array]:
    rng, size = np.random.default_rng(seed), 0.6 * math.sqrt(CONFIG.vocab_size / vocab_size)
    return {
        name: mx.array((rng.normal(size=shape) * size + (len(shape) == 1)).astype(np.float32))
        for name, shape in param_shapes(replace(CONFIG, vocab_size=vocab_size)).items()
    }


def copied(params: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The same parameters in new arrays, so that `params[name] *= 2` in an answer changes nothing else."""
    return {name: mx.array(value) for name, value in params.items()}


def log_softmax(logits: Any) -> np.ndarray:
    """Log-probabilities [..., V] in float64, computed with NumPy."""
    logits = np.array(logits, dtype=np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def logps_row_by_row(config: Qwen3Config, params: dict, prompts: Sequence, completions: Sequence) -> list[np.ndarray]:
    """Log-probabilities of each completion's tokens: every row alone, without any padding."""
    found = []
    for prompt, completion in zip(prompts, completions, strict=True):
        logits = qwen3_forward(config, params, mx.array([[*prompt, *completion]]))[0]
        table = log_softmax(logits)[len(prompt) - 1 : -1]
        found.append(table[np.arange(len(completion)), completion])
    return found


class Wish:
    """What a sampler is asked for: completions of some prompts of a small model.

    Args:
        words: for messages.
        prompts: lists of token ids.
        ends: the ids of end tokens.
        max_new_tokens: the limit.
        seed: of the model's weights.
        config: CONFIG or WIDE.
        times: how many times COPIES rows are drawn for each prompt.
    """

    def __init__(
        self,
        words: str,
        prompts: list[list[int]],
        ends: Collection[int],
        max_new_tokens: int,
        seed: int,
        config: Qwen3Config = CONFIG,
        times: int = 1,
    ):
        self.words, self.prompts, self.ends = words, prompts, sorted(ends)
        self.max_new_tokens, self.seed, self.config, self.times = max_new_tokens, seed, config, times
        self.how = f"With {words}"

    def __repr__(self) -> str:
        return self.words

    def draw(self, sample: Callable[..., Any], copies: int, seed: int) -> Any:
        """Completions from a reader's sampler as lists of whole numbers, or words for what they are instead.

        Short and long prompts alternate, so that completions in another order show.
        """
        rows = [list(prompt) for _ in range(copies) for prompt in self.prompts]
        drawn = sample(self.config, params(self.seed, self.config), rows, [*self.ends], self.max_new_tokens, seed)
        if drawn is None:
            return None
        if shape_of(drawn) is not None and hasattr(drawn, "tolist"):
            drawn = drawn.tolist()
        if not isinstance(drawn, (list, tuple)):
            return Misfit(f"a {type(drawn).__name__}, where a list with a completion for each prompt was expected")
        if len(drawn) != len(rows):
            return Misfit(f"{len(drawn)} completions for {len(rows)} prompts")
        plain = [each.tolist() if hasattr(each, "tolist") else each for each in drawn]
        for each in plain:
            if not isinstance(each, (list, tuple)):
                return Misfit(f"a completion that is a {type(each).__name__}, where a list of token ids was expected")
        plain = [[token.item() if hasattr(token, "item") else token for token in each] for each in plain]
        for token in itertools.chain(*plain):
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self.config.vocab_size:
                return Misfit(f"{token!r} in a completion, where token ids go from 0 to {self.config.vocab_size - 1}")
        return plain

    def probabilities(self, prompt: Sequence[int]) -> dict[tuple[int, ...], list[float]]:
        """Every completion of a prompt with the log-probabilities of all tokens at each of its places: [T, V]."""
        return _probabilities(self.config.vocab_size, self.seed, tuple(prompt), tuple(self.ends), self.max_new_tokens)

    def next_logps(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        """Log-probabilities [B, V] of the token after rows of equal length."""
        return _next_logps(self.config.vocab_size, self.seed, ids)


def _next_logps(vocab_size: int, seed: int, ids: Sequence[Sequence[int]]) -> np.ndarray:
    config = replace(CONFIG, vocab_size=vocab_size)
    return log_softmax(qwen3_forward(config, params(seed, config), mx.array(ids))[:, -1])


@cache
def _probabilities(
    vocab_size: int, seed: int, prompt: tuple, ends: tuple, longest: int
) -> dict[tuple[int, ...], np.ndarray]:
    finished: dict[tuple[int, ...], np.ndarray] = {}
    level: dict[tuple[int, ...], list[np.ndarray]] = {(): []}
    for _ in range(longest):
        tables = _next_logps(vocab_size, seed, [[*prompt, *tokens] for tokens in level])
        grown = {
            (*tokens, token): [*before, table]
            for (tokens, before), table in zip(level.items(), tables, strict=True)
            for token in range(vocab_size)
        }
        finished |= {tokens: np.array(rows) for tokens, rows in grown.items() if tokens[-1] in ends}
        level = {tokens: rows for tokens, rows in grown.items() if tokens[-1] not in ends}
    return finished | {tokens: np.array(rows) for tokens, rows in level.items()}


def draw_and_judge(sample: Callable[..., Any], wish: Wish) -> Any:
    """Draw thousands of completions with a reader's sampler, and say in words how they compare with the model's."""
    few = [wish.draw(sample, 20, seed) for seed in SEEDS]
    for each in few:
        if each is None or isinstance(each, Told):
            return each
    copies = COPIES * wish.times
    drawn = wish.draw(sample, copies, 5)
    if drawn is None or isinstance(drawn, Told):
        return drawn
    ends, longest = set(wish.ends), wish.max_new_tokens
    if any(token in ends for completion in drawn for token in completion[:-1]):
        return AFTER_THE_END
    if max(map(len, drawn)) > longest:
        return Misfit(f"a completion of {max(map(len, drawn))} tokens, where at most {longest} were asked for")
    if any(len(completion) < longest and (not completion or completion[-1] not in ends) for completion in drawn):
        return NEVER_ENDS
    groups = [drawn[place :: len(wish.prompts)] for place in range(len(wish.prompts))]
    if all(len(set(map(tuple, group))) == 1 for group in groups):
        likeliest = [_greedy(wish, prompt) for prompt in wish.prompts]
        return GREEDY if [tuple(group[0]) for group in groups] == likeliest else ONE_DRAW
    crowds = _crowds(wish, wish.prompts, groups)
    wrong = [crowd for crowd in crowds if not crowd.fits(1.0)]
    by_place = [_surprise(crowds, [place]) for place in range(longest)]
    if not wrong and max(map(abs, (*by_place, _surprise(crowds, range(longest))))) < FAR:
        if few[0] != few[1]:
            return VARIES
        if few[0] == few[2]:
            return REPEATS
        if _pairs_are_equal(sample, wish):
            return IN_PAIRS
        seeds = [pair for pair in itertools.combinations(range(1, len(SEEDS)), 2) if few[pair[0]] == few[pair[1]]]
        if not seeds:
            return FITS
        one, other = (SEEDS[place] for place in seeds[0])
        return Misfit(f"the same completions for the seeds {one} and {other}, where each seed draws its own")
    for falling in (False, True):
        in_blocks = [drawn[place : place + copies] for place in range(0, len(drawn), copies)]
        by_length = sorted(wish.prompts, key=len, reverse=falling)
        if wrong and all(crowd.fits(1.0) for crowd in _crowds(wish, by_length, in_blocks)):
            return ORDER
    if wrong and all(np.count_nonzero(crowd.first) == 1 for crowd in crowds):
        return ONE_FIRST
    if any(crowd.is_late() for crowd in wrong):
        return LATE
    likeliest = max(TEMPERATURES, key=lambda temperature: sum(crowd.log_likelihood(temperature) for crowd in crowds))
    if all(crowd.fits(likeliest) for crowd in crowds):
        return TOO_SURE if likeliest < 1 else TOO_WILD
    if any(all(crowd.fits(1.0, *cut) for crowd in crowds) for cut in CUTS):
        return CUT_OFF
    odd = [place for place, far in enumerate(by_place) if abs(far) >= NEAR]
    if len(odd) == 1 < longest and all(np.count_nonzero(crowd.first) > 1 for crowd in crowds):
        sure, which = ("below", "likely") if by_place[odd[0]] > 0 else ("above", "unlikely")
        return Misfit(
            f"{which} tokens too often in place {odd[0] + 1} of the completions, as if the logits there had been "
            f"divided by a temperature {sure} 1, where every place is drawn at temperature 1"
        )
    longest_prompt = max(map(len, wish.prompts))
    if wrong and all(len(crowd.prompt) < longest_prompt for crowd in wrong):
        return PADDING
    return wrong[0].in_words() if wrong else LATER_TOKENS


def _pairs_are_equal(sample: Callable[..., Any], wish: Wish) -> bool:
    """Whether neighbouring rows of one prompt have equal completions more often than independent draws have."""
    [prompt, *_] = wish.prompts
    one = Wish(wish.words, [prompt], wish.ends, wish.max_new_tokens, wish.seed, wish.config)
    drawn = one.draw(sample, PAIRS, 7)
    if drawn is None or isinstance(drawn, Told):
        return False
    logps = _Crowd(one, prompt, []).logps(1.0)
    square, cube = (float(np.exp(power * logps).sum()) for power in (2, 3))
    variance = square - square**2 + 2 * (cube - square**2)  # a row is in two pairs
    equal = sum(map(list.__eq__, map(list, drawn[1:]), map(list, drawn)))
    return equal - (PAIRS - 1) * square > VERY_FAR * math.sqrt((PAIRS - 1) * variance)


def _greedy(wish: Wish, prompt: Sequence[int]) -> tuple[int, ...]:
    return next(
        tokens
        for tokens, tables in wish.probabilities(prompt).items()
        if all(table.argmax() == token for token, table in zip(tokens, tables, strict=True))
    )


def _crowds(wish: Wish, prompts: Sequence[Sequence[int]], groups: Sequence[list]) -> list[_Crowd]:
    return [_Crowd(wish, prompt, group) for prompt, group in zip(prompts, groups, strict=True)]


class _Crowd:
    """The completions of one prompt, counted."""

    def __init__(self, wish: Wish, prompt: Sequence[int], group: list[list[int]]):
        self.wish, self.prompt = wish, prompt
        self.outcomes = wish.probabilities(prompt)
        places = {tokens: place for place, tokens in enumerate(self.outcomes)}
        self.counts = np.bincount([places[tuple(each)] for each in group], minlength=len(places))
        self.first = np.bincount([each[0] for each in group], minlength=wish.config.vocab_size)
        self.first_probs = np.exp(next(iter(self.outcomes.values()))[0])
        # All completions in one array, filled up to the length of the longest.
        self.exists = np.arange(wish.max_new_tokens) < np.array([*map(len, places)])[:, None]
        self.tokens = np.zeros(self.exists.shape, dtype=int)
        self.tokens[self.exists] = [*itertools.chain(*places)]
        self.tables = np.zeros((*self.exists.shape, wish.config.vocab_size))
        self.tables[self.exists] = np.concatenate([*self.outcomes.values()])

    def logps(self, temperature: float, most: int = WIDE.vocab_size, mass: float = 1.0) -> np.ndarray:
        """Of all completions, in the order of `outcomes`; with top-k if `most` is set, with top-p if `mass` is."""
        logps = _cut(log_softmax(self.tables / temperature), most, mass)
        chosen = np.take_along_axis(logps, self.tokens[..., None], axis=-1)[..., 0]
        return np.where(self.exists, chosen, 0.0).sum(axis=1)

    def surprise(self, places: Sequence[int]) -> tuple[float, float]:
        """The sum over drawn tokens of log-probability minus its expectation after the same text, and its variance."""
        probs, here = np.exp(self.tables), self.counts[:, None] * self.exists
        means = (probs * self.tables).sum(axis=-1)
        variances = (probs * self.tables**2).sum(axis=-1) - means**2
        chosen = np.take_along_axis(self.tables, self.tokens[..., None], axis=-1)[..., 0]
        return tuple(float((here * each)[:, places].sum()) for each in (chosen - means, variances))

    def fits(self, temperature: float, most: int = WIDE.vocab_size, mass: float = 1.0) -> bool:
        """Whether chance may have made these counts at a temperature, or with top-k or top-p."""
        probs = np.exp(self.logps(temperature, most, mass))
        if (certain := probs > 1 - 1e-9).any():
            return self.counts[certain].sum() == self.counts.sum()
        return fits(self.counts, probs)

    def log_likelihood(self, temperature: float) -> float:
        """Of the counts at a temperature, up to a constant."""
        return float(self.counts @ self.logps(temperature))

    def is_late(self) -> bool:
        """Whether the first tokens are what the model expects in the place of the prompt's last token."""
        if len(self.prompt) < 2 or fits(self.first, self.first_probs):
            return False
        return fits(self.first, np.exp(self.wish.next_logps([self.prompt[:-1]])[0]))

    def in_words(self) -> Told:
        """How the first tokens differ from the model's, or that only later ones do."""
        if fits(self.first, self.first_probs):
            return LATER_TOKENS
        found = self.first / self.first.sum()
        farthest = np.argsort(-abs(found - self.first_probs), kind="stable")
        tokens = range(found.size) if found.size <= CONFIG.vocab_size else sorted(farthest[:SHOWN].tolist())
        shares, wanted = (
            ", ".join(f"{token} in {each[token]:.0%}" for token in tokens) for each in (found, self.first_probs)
        )
        return Misfit(f"after the prompt {list(self.prompt)} token {shares} of the rows, where the model has {wanted}")


def _cut(logps: np.ndarray, most: int, mass: float) -> np.ndarray:
    """Log-probabilities [..., V] of the likeliest tokens alone; those of the others are -inf."""
    order = np.argsort(-logps, axis=-1)
    falling = np.exp(np.take_along_axis(logps, order, axis=-1))
    kept = (np.arange(logps.shape[-1]) < most) & (falling.cumsum(axis=-1) - falling < mass)
    falling = np.where(kept, falling, 0.0)
    with np.errstate(divide="ignore"):
        falling = np.log(falling / falling.sum(axis=-1, keepdims=True))
    found = np.empty_like(logps)
    np.put_along_axis(found, order, falling, axis=-1)
    return found


def _surprise(crowds: Sequence[_Crowd], places: Sequence[int]) -> float:
    """The mean log-probability of the tokens at some places, in standard deviations above the model's own.

    Another temperature moves it most, so it is seen here long before single frequencies look wrong.
    """
    above, variance = map(sum, zip(*(crowd.surprise([*places]) for crowd in crowds), strict=True))
    return above / math.sqrt(variance)


def fits(counts: np.ndarray, probs: np.ndarray) -> bool:
    """Whether draws with these probabilities may well give these counts: Pearson's test, and nothing common missing."""
    return _tail_of(counts, probs) > UNLIKELY and not _misses_too_much(counts, probs)


def _misses_too_much(counts: np.ndarray, probs: np.ndarray) -> bool:
    """Whether outcomes that never came should have come: some s of them, with n draws and the probability p together.

    The chance is at most (number of ways to choose s outcomes) * exp(-n p).
    """
    missing = np.sort((probs * counts.sum())[counts == 0])[::-1].cumsum()
    ways = [math.log(math.comb(counts.size, size + 1)) for size in range(missing.size)]
    return bool((missing - ways > -math.log(UNLIKELY)).any())


def _tail_of(counts: np.ndarray, probs: np.ndarray) -> float:
    """The probability that chance makes counts as far from their expectation, rare outcomes taken together."""
    from scipy.stats import chi2

    expected = probs * counts.sum()
    order = np.argsort(expected)
    first = int(np.searchsorted(np.cumsum(expected[order]), 5.0))
    groups = [order[: first + 1], *order[first + 1 :, None]]
    seen, meant = (np.array([each[group].sum() for group in groups]) for each in (counts, expected))
    if len(groups) < 2:  # nearly all in one outcome: nothing to compare with
        return 0.0
    return float(chi2.sf(np.sum((seen - meant) ** 2 / np.maximum(meant, 1e-9)), len(groups) - 1))


def ragged(rng: np.random.Generator, rows: int = 5, longest: int = 4) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and completions of the small model, of different lengths; some have id 0, the padding's, inside."""
    lengths = rng.integers(1, longest + 1, (2, rows))
    lengths[:, 0], lengths[:, 1] = 1, longest  # never all alike
    prompts, completions = (
        [rng.integers(0, CONFIG.vocab_size, length).tolist() for length in each] for each in lengths
    )
    completions[1][0] = completions[-1][-1] = 0
    return prompts, completions
