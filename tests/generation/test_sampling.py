"""Filters, draws and log-probabilities against torch, transformers' warpers and mlx-lm's functions."""

import math

import numpy as np
import pytest
import torch
from mlx_lm import sample_utils
from scipy.stats import chisquare
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from mlx_grpo_kit.generation import (
    SamplingConfig,
    apply_min_p,
    apply_top_k,
    apply_top_p,
    categorical_sampling,
    sample_token,
    token_logps,
)
from mlx_grpo_kit.runtime import mx
from tests.every import every

V = 50
KEY = mx.random.key(0)


def random_logprobs(rows=200, scale=3.0) -> np.ndarray:
    logits = np.random.default_rng(0).normal(0, scale, (rows, V))
    return torch.log_softmax(torch.tensor(logits), -1).float().numpy()


def warped(warper, logprobs) -> np.ndarray:
    return warper(None, torch.tensor(logprobs)).numpy()


# Filters keep what transformers and mlx-lm keep, and change nothing in it.


@pytest.mark.parametrize("top_k", [1, 2, 7, V - 1])
def test_top_k(top_k):
    logprobs = random_logprobs()
    ours = apply_top_k(mx.array(logprobs), top_k)
    np.testing.assert_array_equal(ours, warped(TopKLogitsWarper(top_k), logprobs))
    np.testing.assert_array_equal(ours, sample_utils.apply_top_k(mx.array(logprobs), top_k))


@pytest.mark.parametrize("top_k", [V, V + 1, 10 * V])
def test_top_k_of_the_vocabulary_or_more_keeps_all(top_k):
    logprobs = random_logprobs()
    np.testing.assert_array_equal(apply_top_k(mx.array(logprobs), top_k), logprobs)
    assert sample_token(mx.array(logprobs), top_k=top_k, key=KEY).shape == (200,)


def test_top_k_keeps_exactly_k_of_equals():
    kept = np.isfinite(np.array(apply_top_k(mx.zeros((3, V)), 4))).sum(axis=1)
    assert kept.tolist() == [4, 4, 4]


@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.95])
def test_top_p(top_p):
    logprobs = random_logprobs()
    ours = apply_top_p(mx.array(logprobs), top_p)
    np.testing.assert_array_equal(ours, warped(TopPLogitsWarper(top_p), logprobs))
    np.testing.assert_array_equal(ours, sample_utils.apply_top_p(mx.array(logprobs), top_p))
    np.testing.assert_array_equal(apply_top_p(mx.array(logprobs), 1.0), logprobs)


def test_top_p_of_a_flat_bfloat16_distribution():
    """A bfloat16 running sum over 4096 tokens stops at 1/16: half of them must stay all the same."""
    kept = np.isfinite(np.array(apply_top_p(mx.zeros((1, 4096), mx.bfloat16), 0.5)))
    assert kept.sum() == 2048


@pytest.mark.parametrize("min_p", [1e-4, 0.05, 0.5, 1.0])
def test_min_p(min_p):
    logprobs = random_logprobs()
    ours = apply_min_p(mx.array(logprobs), min_p)
    np.testing.assert_array_equal(ours, warped(MinPLogitsWarper(min_p), logprobs))
    np.testing.assert_array_equal(ours, sample_utils.apply_min_p(mx.array(logprobs), min_p))


@pytest.mark.parametrize(
    "apply", [lambda x: apply_top_k(x, 3), lambda x: apply_top_p(x, 0.5), lambda x: apply_min_p(x, 0.2)]
)
def test_filters_take_logits_of_any_leading_shape(apply):
    """Logits need not be normalised: adding a constant to all of them changes no filter's mind."""
    logits = mx.array(random_logprobs().reshape(4, 50, V))
    np.testing.assert_array_equal(np.isfinite(apply(logits)), np.isfinite(apply(logits + 5.0)))
    np.testing.assert_array_equal(apply(logits)[2, 3], apply(logits[2, 3]))


# The order: top-k, min-p, top-p, temperature.


@every("temperature", [0.3, 1.0, 4.0])
@every(
    ("filters", "kept"),
    [
        # Of 0.4, 0.3, 0.2, 0.1 top-k leaves 0.4 and 0.3, of which the first is more than half. Top-p first keeps both.
        (dict(top_k=2, top_p=0.5), {1}),
        # The same with min-p in place of top-k.
        (dict(min_p=0.7, top_p=0.5), {1}),
        # The temperature comes last: dividing by 4 first would flatten the distribution until nearly all are kept.
        (dict(top_p=0.65), {1, 3}),
        (dict(min_p=0.6), {1, 3}),
        (dict(top_k=3), {1, 2, 3}),
        (dict(top_k=3, min_p=0.1, top_p=0.99), {1, 2, 3}),
        (dict(), {0, 1, 2, 3}),
        (dict(top_k=0, min_p=0.0), {0, 1, 2, 3}),
    ],
)  # fmt: skip
def test_order_of_filters(filters, kept, temperature):
    logits = mx.log(mx.array([[0.1, 0.4, 0.2, 0.3]])) + 7.0
    drawn = sample_token(mx.repeat(logits, 2000, axis=0), temperature, key=KEY, **filters)
    assert set(drawn.tolist()) == kept


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_what_is_kept_is_what_transformers_keeps_in_that_order(temperature):
    logprobs = random_logprobs(rows=20, scale=2.0)
    theirs = torch.tensor(logprobs)
    for warper in (TopKLogitsWarper(12), MinPLogitsWarper(0.05), TopPLogitsWarper(0.8)):
        theirs = warper(None, theirs)
    drawn = sample_token(
        mx.repeat(mx.array(logprobs)[:, None], 3000, axis=1), temperature, top_p=0.8, top_k=12, min_p=0.05, key=KEY
    )
    for row in range(20):
        assert set(drawn[row].tolist()) == set(torch.isfinite(theirs[row]).nonzero()[:, 0].tolist())


# Draws.


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_match_probabilities(temperature):
    logits = np.array([1.0, 0.0, -1.0, 2.0, 0.5, -math.inf], np.float32)
    drawn = categorical_sampling(mx.repeat(mx.array(logits)[None], 40_000, axis=0), temperature, KEY)
    counts = np.bincount(np.array(drawn), minlength=6)
    expected = torch.softmax(torch.tensor(logits, dtype=torch.float64) / temperature, -1).numpy() * 40_000
    assert counts[5] == 0
    assert chisquare(counts[:5], expected[:5]).pvalue > 0.01


def test_temperature_zero_is_argmax():
    logits = random_logprobs()
    for tokens in (
        categorical_sampling(mx.array(logits), 0),
        sample_token(mx.array(logits), 0.0),
        sample_token(mx.array(logits), 0, top_p=0.3, top_k=5, min_p=0.1),
    ):
        np.testing.assert_array_equal(tokens, logits.argmax(-1))


def test_the_key_decides_the_draw():
    logits = mx.zeros((100, V))
    first, same, other = (sample_token(logits, key=mx.random.key(seed)).tolist() for seed in (3, 3, 4))
    assert first == same != other
    assert sample_token(logits).tolist() != sample_token(logits).tolist(), "without a key every draw is another"


# Log-probabilities and entropy.


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_logps_and_entropy_equal_torch(temperature, shift):
    """With a shift of 10,000 the exponential of a logit overflows."""
    logits = np.round(np.random.default_rng(1).normal(0, 3, (4, 9, V)) * 64).astype(np.float32) / 64 + np.float32(shift)
    ids = np.random.default_rng(2).integers(0, V, (4, 9))
    theirs = torch.log_softmax(torch.tensor(logits, dtype=torch.float64) / temperature, -1)
    logps, entropy = token_logps(mx.array(logits), mx.array(ids), temperature, with_entropy=True)
    tolerance = dict(rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(logps, theirs.gather(-1, torch.tensor(ids)[..., None])[..., 0], **tolerance)
    np.testing.assert_allclose(entropy, torch.distributions.Categorical(logits=theirs).entropy(), **tolerance)
    np.testing.assert_array_equal(token_logps(mx.array(logits), mx.array(ids), temperature), logps)


def test_gradient_of_logps_equals_torch_and_entropy_has_none():
    logits = np.random.default_rng(1).normal(0, 3, (5, V)).astype(np.float32)
    ids, weights = np.arange(5), np.linspace(-1, 2, 5).astype(np.float32)
    reference = torch.tensor(logits, requires_grad=True)
    theirs = torch.log_softmax(reference / 0.7, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    (theirs * torch.tensor(weights)).sum().backward()

    def loss_fn(logits):
        logps, entropy = token_logps(logits, mx.array(ids), 0.7, with_entropy=True)
        return (logps * mx.array(weights)).sum() + entropy.sum()

    np.testing.assert_allclose(mx.grad(loss_fn)(mx.array(logits)), reference.grad, rtol=1e-4, atol=1e-6)


def test_impossible_tokens_poison_nothing():
    logits = mx.array([[0.0, -math.inf, 1.0], [-math.inf, 5.0, -math.inf]])
    logps, entropy = token_logps(logits, mx.array([0, 1]), with_entropy=True)
    np.testing.assert_allclose(logps, [-math.log(1 + math.e), 0.0], rtol=1e-6)
    p = math.e / (1 + math.e)
    np.testing.assert_allclose(entropy, [-p * math.log(p) - (1 - p) * math.log(1 - p), 0.0], rtol=1e-5, atol=1e-7)
    gradient = mx.grad(lambda x: token_logps(x, mx.array([0, 1]), with_entropy=True)[0].sum())(logits)
    np.testing.assert_allclose(gradient, [[p, 0, -p], [0, 0, 0]], atol=1e-6)
    assert token_logps(logits, mx.array([1, 0])).tolist() == [-math.inf, -math.inf]


def test_half_precision_logits_are_normalised_in_float32():
    logits = mx.array(random_logprobs(), mx.bfloat16)
    logps = token_logps(logits, mx.zeros(200, mx.int32))
    assert logps.dtype == mx.float32
    exact = torch.log_softmax(torch.tensor(np.array(logits.astype(mx.float32))), -1)[:, 0]
    np.testing.assert_allclose(logps, exact, rtol=1e-5, atol=1e-6)


def test_greedy_logps_are_those_of_temperature_one():
    logits = mx.array(random_logprobs())
    np.testing.assert_array_equal(
        token_logps(logits, mx.zeros(200, mx.int32), 0.0), token_logps(logits, mx.zeros(200, mx.int32))
    )


# Errors.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, r"temperature is -0.1; expected 0 \(always the likeliest token\) or at least 1e-06"),
        ({"temperature": 1e-40}, "temperature is 1e-40; expected 0 .* or at least 1e-06"),
        ({"temperature": 1e-7}, "temperature is 1e-07"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1; expected 1 or more, or None"),
        ({"top_p": 0.0}, "top_p is 0.0; expected more than 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"min_p": -0.1}, "min_p is -0.1; expected 0 to 1, or None"),
        ({"min_p": 1.5}, "min_p is 1.5"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        SamplingConfig(**settings)
    with pytest.raises(ValueError, match=message):
        sample_token(mx.zeros((1, V)), **settings)


def test_filters_and_length_are_checked():
    with pytest.raises(ValueError, match="max_new_tokens is 0; expected at least 1"):
        SamplingConfig(max_new_tokens=0)
    with pytest.raises(ValueError, match="top_k is 0; expected at least 1"):
        apply_top_k(mx.zeros(V), 0)
    for top_p in (0, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"top_p is .*; expected more than 0 and at most 1"):
            apply_top_p(mx.zeros(V), top_p)
    for min_p in (0, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"min_p is .*; expected more than 0 and at most 1"):
            apply_min_p(mx.zeros(V), min_p)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": "1"}, "temperature is '1'; expected a number"),
        ({"temperature": None}, "temperature is None; expected a number"),
        ({"top_p": None}, "top_p is None; expected a number"),
        ({"min_p": [0.1]}, r"min_p is \[0.1\]; expected a number"),
        ({"top_k": 2.5}, "top_k is 2.5; expected a whole number"),
        ({"top_k": True}, "top_k is True; expected a whole number"),
    ],
)
def test_settings_that_are_no_numbers(settings, message):
    with pytest.raises(TypeError, match=message):
        SamplingConfig(**settings)
    with pytest.raises(TypeError, match=message):
        sample_token(mx.zeros((1, V)), **settings)
    for max_new_tokens in (2.0, True, "3"):
        with pytest.raises(TypeError, match=r"max_new_tokens is .*; expected a whole number"):
            SamplingConfig(max_new_tokens=max_new_tokens)


@pytest.mark.parametrize("top_p", [1e-30, 1e-40, 1e-300, 5e-324])
def test_the_smallest_top_p_keeps_the_likeliest_token(top_p):
    logprobs = random_logprobs(20)
    kept = np.array(apply_top_p(mx.array(logprobs), top_p))
    assert np.isfinite(kept).sum(axis=-1).tolist() == [1] * 20
    assert (kept.argmax(-1) == logprobs.argmax(-1)).all()
    drawn = sample_token(mx.array(logprobs), top_p=top_p, key=KEY)
    assert (np.array(drawn) == logprobs.argmax(-1)).all()


@pytest.mark.parametrize(
    "settings", [{"temperature": 1e-6}, {"temperature": 1e308}, {"min_p": 5e-324}, {"top_k": 2**70}]
)
def test_the_ends_of_the_ranges_compute(settings):
    """Nothing overflows: cold draws the likeliest token with log-probability 0, hot draws any."""
    logits = mx.array(random_logprobs(500) * 10)
    drawn = sample_token(logits, **settings, key=KEY)
    logps = np.array(token_logps(logits, drawn, settings.get("temperature", 1.0)))
    assert np.isfinite(logps).all()
    if settings == {"temperature": 1e-6}:
        assert (np.array(drawn) == np.array(logits).argmax(-1)).all()
        assert (logps == 0).all()
    if settings == {"temperature": 1e308}:
        np.testing.assert_allclose(logps, -math.log(V), rtol=1e-6)
        assert len(set(drawn.tolist())) > 40
