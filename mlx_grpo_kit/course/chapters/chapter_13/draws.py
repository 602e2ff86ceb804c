"""Check a random draw by thousands of draws, however an answer makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.runtime import mx

DRAWS = 1000
IGNORED = "the same random numbers for every key"
UNLIKELY = 1e-6  # the probability that a correct answer fails a case by chance


class Drawn:
    """The count of each token. Two are equal if one distribution may well have given both."""

    def __init__(self, counts: np.ndarray):
        self.counts = counts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Drawn) and _could_be_one(self.counts, other.counts)

    __hash__ = None

    def __repr__(self) -> str:
        return shares(self.counts / self.counts.sum())


def draw_often(draw: Callable[..., Any], logits: mx.array, temperature: float, seed: int) -> Any:
    """Call `draw(logits, temperature, key)` with `DRAWS` different keys and judge the tokens.

    Returns:
        A `Told`: the expected shares, if those of the tokens fit softmax(logits / temperature) up to chance, or what is
            wrong with a draw: not a token, another token for the same key, the key ignored
        A `Drawn` with the counts, if their shares are wrong
    """
    size = logits.shape[0]
    keys = mx.random.split(mx.random.key(seed), DRAWS)
    powers = np.exp((np.array(logits, dtype=float) - np.array(logits).max()) / temperature)
    probs = powers / powers.sum()
    few = min(DRAWS, int(np.ceil(np.log(UNLIKELY) / np.log(probs.max()))))  # not all of these are one token
    tokens = []
    for number, key in enumerate(keys):
        token = draw(logits, temperature, key)
        if token is None or token is ...:
            return None
        try:
            is_whole = int(token) == float(token)
        except (TypeError, ValueError):
            return Told(f"a {type(token).__name__}, where a token id is a whole number")
        if not is_whole or not 0 <= int(token) < size:
            return Told(f"{float(token):g}, where token ids go from 0 to {size - 1}")
        if number < few and int(draw(logits, temperature, key)) != int(token):
            return Told("another token for the same key (all randomness has to come from the key)")
        tokens.append(int(token))
    if len(set(tokens)) == 1 and (probs > 0).sum() > 1 and _ignores_the_key(draw, temperature, keys[0]):
        return Told(IGNORED)
    counts = np.bincount(tokens, minlength=size)
    if not _fits(counts, probs):
        return Drawn(counts)
    for place, other in ((0, "second"), (1, "first")):
        halves = np.array(keys)[:few]
        halves[:, place] = halves[0, place]
        if len({int(draw(logits, temperature, mx.array(key))) for key in halves}) == 1:
            return Told(f"one token for all keys that differ in their {other} number (a key is both of its numbers)")
    return Told(shares(probs))


def _ignores_the_key(draw: Callable[..., Any], temperature: float, key: mx.array) -> bool:
    """True if an answer that always draws one token seems to draw with the same random numbers for every key.

    One of 8 tokens is made likelier, each in turn. Constant random numbers give that token everywhere if it is nearly
    certain, and only at some places if it is a little likelier. The likeliest token is given everywhere in both cases,
    and a constant token in neither.
    """

    def finds_it(height: float) -> bool:
        heights = np.eye(8, dtype=np.float32) * height * temperature
        return all(int(draw(mx.array(logits), temperature, key)) == place for place, logits in enumerate(heights))

    return finds_it(40.0) and not finds_it(1.0)


def shares(probs: np.ndarray) -> str:
    """ "token 0 in 64%, 1 in 24%, 2 in 9%, 3 in 3% of the draws"."""
    return "token " + ", ".join(f"{token} in {share:.0%}" for token, share in enumerate(probs)) + " of the draws"


def _fits(counts: np.ndarray, probs: np.ndarray) -> bool:
    """Pearson's test of draws against the probabilities they should have; rare tokens are grouped."""
    if counts[probs == 0].any():
        return False
    expected = probs * counts.sum()
    groups = _together(expected)
    seen, meant = (np.array([each[group].sum() for group in groups]) for each in (counts, expected))
    return _tail(np.sum((seen - meant) ** 2 / meant), len(groups) - 1) > UNLIKELY


def _could_be_one(first: np.ndarray, second: np.ndarray) -> bool:
    """The same test for two sets with the same number of draws."""
    if first.shape != second.shape:
        return False
    both = first + second
    groups = _together(both / 2)
    one, two = (np.array([each[group].sum() for group in groups]) for each in (first, second))
    return _tail(np.sum((one - two) ** 2 / (one + two)), len(groups) - 1) > UNLIKELY


def _together(expected: np.ndarray, least: float = 5.0) -> list[np.ndarray]:
    """Group tokens: those expected fewer than `least` times join the rarest of the others, the rest stay single."""
    order = np.argsort(expected)
    order = order[expected[order] > 0]
    first = int(np.argmax(np.cumsum(expected[order]) >= least))
    return [order[: first + 1], *(order[place : place + 1] for place in range(first + 1, len(order)))]


def _tail(statistic: float, freedom: int) -> float:
    """The probability that chance alone makes chi-squared so large (Wilson and Hilferty 1931)."""
    if freedom < 1:
        return 1.0
    from math import erfc, sqrt

    spread = 2 / (9 * freedom)
    return 0.5 * erfc(((statistic / freedom) ** (1 / 3) - 1 + spread) / sqrt(2 * spread))
