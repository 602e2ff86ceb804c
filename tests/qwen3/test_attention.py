"""Who can influence whom: never a later token an earlier one, never padding anybody, with a cache and without.

What a mask hides has a derivative of exactly 0, and a changed hidden token leaves every bit of a logit in place. Each
property has its opposite beside it: what may be seen does count. Shapes are drawn at random, single tokens and single
rows too.
"""

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlx_grpo_kit.qwen3 import KVCache, Qwen3Config, init_params, qwen3_forward
from mlx_grpo_kit.runtime import mx

EXAMPLES = 12
VOCABULARY = 40  # 4 rows of 9 tokens, no two alike


@dataclass
class Drawn:
    """A model, ids [B, T], and where a row is split: for the future, for a cache."""

    config: Qwen3Config
    params: dict[str, mx.array] = field(repr=False)
    ids: np.ndarray
    seed: int

    def other(self, ids):
        """Another id for each of these."""
        return (ids + 1 + np.random.default_rng(self.seed).integers(0, self.config.vocab_size - 1, ids.shape)) % (
            self.config.vocab_size
        )


def drawn_of(batch, tokens, kv_heads=2, group=2, half_dim=2, layers=2, seed=0):
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=12, intermediate_size=10, num_hidden_layers=layers,
        num_attention_heads=kv_heads * group, num_key_value_heads=kv_heads, head_dim=2 * half_dim, rope_theta=100.0,
    )  # fmt: skip
    params = init_params(config, seed=seed, scale=0.5)
    ids = np.random.default_rng(seed).permutation(VOCABULARY)[: batch * tokens].reshape(batch, tokens)
    return Drawn(config, params, ids, seed)


@st.composite
def draws(draw, least_tokens=1):
    whole = st.integers
    return drawn_of(
        draw(whole(1, 4)), draw(whole(least_tokens, 9)), draw(whole(1, 3)), draw(whole(1, 3)), draw(whole(1, 4)),
        draw(whole(1, 2)), draw(whole(0, 99)),
    )  # fmt: skip


def logits_of(drawn, ids, split=None, reserved=0, attention_mask=None, params=None):
    """Logits [B, T, V]. With `split` in two pieces through a cache, which may have `reserved` room, rubbish in it."""

    def run(start, end, cache=None):
        mask = None if attention_mask is None else attention_mask[:, :end]
        piece = mx.array(ids[:, start:end])
        return qwen3_forward(drawn.config, params or drawn.params, piece, cache=cache, attention_mask=mask)

    tokens = ids.shape[1]
    if not split:
        return run(0, tokens, None if split is None else KVCache(drawn.config.num_hidden_layers))
    cache = KVCache(drawn.config.num_hidden_layers)
    first = run(0, split, cache)
    if reserved:
        cache.reserve(split + reserved)
        is_room = mx.arange(cache.capacity)[None, None, :, None] >= split
        cache.keys = [mx.where(is_room, 1e3, keys) for keys in cache.keys]
        cache.values = [mx.where(is_room, -1e3, values) for values in cache.values]
    return mx.concatenate([first, run(split, tokens, cache)], axis=1)


def influence(drawn, row, position, **options):
    """How much the logits at one place depend on each token: the largest derivative by its embedding, [B, T].

    No two tokens have the same id, so the rows of the embedding's gradient are theirs.
    """
    weights = mx.array(np.random.default_rng(drawn.seed).normal(size=drawn.config.vocab_size))

    def loss(table):
        params = {**drawn.params, "embedding.weight": table}
        return (logits_of(drawn, drawn.ids, params=params, **options)[row, position] * weights).sum()

    gradient = np.array(mx.grad(loss)(drawn.params["embedding.weight"]))
    return np.abs(gradient).max(axis=-1)[drawn.ids]


@given(draws(least_tokens=2), st.data())
@settings(max_examples=EXAMPLES)
@example(drawn_of(1, 2), None)
def test_a_changed_future_changes_no_earlier_logit(drawn, data):
    tokens = drawn.ids.shape[1]
    first = data.draw(st.integers(1, tokens - 1)) if data else 1
    changed = drawn.ids.copy()
    changed[:, first:] = drawn.other(changed[:, first:])
    before, after = (np.array(logits_of(drawn, ids)) for ids in (drawn.ids, changed))
    np.testing.assert_array_equal(after[:, :first], before[:, :first])
    assert (after[:, first] != before[:, first]).any(axis=-1).all()


@given(draws(), st.integers(1, 5), st.data())
@settings(max_examples=EXAMPLES)
@example(drawn_of(1, 1), 1, None)
def test_left_padding_changes_nothing_whatever_its_ids(drawn, amount, data):
    batch, tokens = drawn.ids.shape
    split = data.draw(st.integers(0, amount + tokens - 1)) if data else None
    ids = np.concatenate([np.zeros((batch, amount), int), drawn.ids], axis=1)
    rubbish = ids.copy()
    rubbish[:, :amount] = drawn.other(rubbish[:, :amount])
    attention_mask = mx.array((np.arange(amount + tokens) >= amount).astype(np.int32)[None].repeat(batch, 0))
    padded, other = (
        np.array(logits_of(drawn, each, split, attention_mask=attention_mask))[:, amount:] for each in (ids, rubbish)
    )
    np.testing.assert_array_equal(other, padded)
    alone = np.array(logits_of(drawn, drawn.ids))
    assert np.abs(padded - alone).max() < 1e-4 * np.abs(alone).max()
    unmasked = np.array(logits_of(drawn, ids))[:, amount:]
    assert np.abs(unmasked - alone).max() > 1e-3 * np.abs(alone).max()


@given(draws(), st.data())
@settings(max_examples=EXAMPLES)
@example(drawn_of(1, 1), None)
@example(drawn_of(3, 1), None)
def test_the_gradient_of_what_is_hidden_is_exactly_0(drawn, data):
    batch, tokens = drawn.ids.shape
    row = data.draw(st.integers(0, batch - 1)) if data else 0
    position = data.draw(st.integers(0, tokens - 1)) if data else 0
    split = data.draw(st.none() | st.integers(0, tokens - 1)) if data else None
    found = influence(drawn, row, position, split=split)
    seen = np.zeros((batch, tokens), bool)
    seen[row, : position + 1] = True
    assert (found[~seen] == 0).all()
    assert (found[seen] > 0).all()


@given(draws(least_tokens=2), st.data())
@settings(max_examples=EXAMPLES)
@example(drawn_of(1, 2), None)
def test_the_gradient_of_padding_is_exactly_0(drawn, data):
    batch, tokens = drawn.ids.shape
    lengths = data.draw(st.lists(st.integers(1, tokens), min_size=batch, max_size=batch)) if data else [1] * batch
    split = data.draw(st.none() | st.integers(0, tokens - 1)) if data else 1
    real = np.arange(tokens) >= tokens - np.array(lengths)[:, None]
    row = data.draw(st.integers(0, batch - 1)) if data else 0
    options = {"split": split, "attention_mask": mx.array(real.astype(np.int32))}
    found = influence(drawn, row, tokens - 1, **options)
    seen = real & (np.arange(batch) == row)[:, None]
    assert (found[~seen] == 0).all()
    assert (found[seen] > 0).all()


@given(draws(least_tokens=2), st.integers(1, 6), st.data())
@settings(max_examples=EXAMPLES)
def test_what_lies_in_the_room_of_a_cache_is_never_seen(drawn, room, data):
    tokens = drawn.ids.shape[1]
    split = data.draw(st.integers(1, tokens - 1))
    plain, roomy = (np.array(logits_of(drawn, drawn.ids, split, reserved)) for reserved in (0, tokens - split + room))
    assert np.abs(roomy - plain).max() < 1e-5 * np.abs(plain).max()


def test_a_cache_with_too_little_room_grows_after_its_last_token():
    keys, cache = mx.arange(7.0).reshape(1, 1, 7, 1), KVCache(1)
    cache.append(0, keys[:, :, :3], keys[:, :, :3])
    cache.advance(3)
    cache.reserve(5)
    grown, _ = cache.append(0, keys[:, :, 3:], keys[:, :, 3:])
    assert mx.array_equal(grown, keys).item()


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_shared_heads_are_heads_repeated_for_neighbours(heads):
    """A model with K heads of keys and values equals one with as many of them as of queries, copies side by side."""
    drawn = drawn_of(2, 5, kv_heads=heads, group=4 // heads)
    full, dim = dict(drawn.params), drawn.config.head_dim
    for name in [name for name in full if name.endswith(("k_proj.weight", "v_proj.weight"))]:
        own = np.array(full[name]).reshape(heads, dim, -1)
        full[name] = mx.array(own.repeat(4 // heads, axis=0).reshape(4 * dim, -1))
    config = dataclasses.replace(drawn.config, num_key_value_heads=4)
    expected = np.array(qwen3_forward(config, full, mx.array(drawn.ids)))
    assert np.abs(np.array(logits_of(drawn, drawn.ids)) - expected).max() < 1e-5 * np.abs(expected).max()
