"""Log-probabilities in chunks of the vocabulary are those of the whole table, gradients too, with less memory."""

import numpy as np
import pytest
import torch

from mlx_grpo_kit.generation import output_logps
from mlx_grpo_kit.generation.output_logps import token_logps_and_entropy
from mlx_grpo_kit.runtime import mx


@pytest.fixture
def always_in_chunks(monkeypatch):
    monkeypatch.setattr(output_logps, "WHOLE", 0)
    monkeypatch.setattr(output_logps, "CHUNK", 1)  # 256 columns, the fewest there are


def make(rng, tokens, vocabulary, size=16, scale=1.0):
    hidden, weight = rng.normal(size=(*tokens, size)) * scale, rng.normal(size=(vocabulary, size))
    return hidden.astype(np.float32), weight.astype(np.float32), rng.integers(0, vocabulary, tokens)


def torchs(hidden, weight, ids, temperature, cotangent):
    hidden, weight = (torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in (hidden, weight))
    logps = torch.log_softmax(hidden @ weight.T / (temperature or 1.0), dim=-1)
    chosen = logps.gather(-1, torch.tensor(ids)[..., None])[..., 0]
    (chosen * torch.tensor(cotangent)).sum().backward()
    return chosen.detach(), -(logps.exp() * logps).sum(-1).detach(), hidden.grad, weight.grad


@pytest.mark.usefixtures("always_in_chunks")
@pytest.mark.parametrize("vocabulary", [256, 700, 1024])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize(("tokens", "scale"), [((5, 3), 1.0), ((1, 1), 1.0), ((4,), 30.0)])
def test_values_and_gradients_are_torchs(vocabulary, temperature, tokens, scale):
    rng = np.random.default_rng(vocabulary)
    hidden, weight, ids = make(rng, tokens, vocabulary, scale=scale)
    cotangent = rng.normal(size=tokens)
    expected = torchs(hidden, weight, ids, temperature, cotangent)

    def loss(hidden, weight):
        logps, entropy = token_logps_and_entropy(hidden, weight, mx.array(ids), temperature)
        return mx.sum(logps * mx.array(cotangent.astype(np.float32))) + entropy.sum(), logps, entropy

    (_, logps, entropy), grads = mx.value_and_grad(loss, argnums=(0, 1))(mx.array(hidden), mx.array(weight))
    for name, ours, theirs in zip(
        ("logps", "entropy", "hidden", "weight"), (logps, entropy, *grads), expected, strict=True
    ):
        np.testing.assert_allclose(
            np.array(ours), theirs, rtol=2e-5, atol=2e-5 * max(1.0, np.abs(theirs).max()), err_msg=name
        )


@pytest.mark.usefixtures("always_in_chunks")
def test_half_precision_weights_get_half_precision_gradients():
    hidden, weight, ids = make(np.random.default_rng(0), (6,), 600)

    def loss(hidden, weight):
        return token_logps_and_entropy(hidden, weight, mx.array(ids))[0].sum()

    exact = mx.grad(loss, argnums=(0, 1))(mx.array(hidden), mx.array(weight))
    half = mx.grad(loss, argnums=(0, 1))(mx.array(hidden, mx.bfloat16), mx.array(weight, mx.bfloat16))
    for ours, theirs in zip(half, exact, strict=True):
        assert ours.dtype == mx.bfloat16
        np.testing.assert_allclose(ours.astype(mx.float32), theirs, atol=0.03 * mx.abs(theirs).max().item())


def test_a_large_table_is_never_whole():
    hidden, weight, ids = make(np.random.default_rng(0), (256,), 160_000, size=8)
    hidden, weight, ids = mx.array(hidden), mx.array(weight), mx.array(ids)

    def peak(logps):
        mx.eval(hidden, weight, ids)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(mx.grad(lambda hidden, weight: logps(hidden, weight).sum(), argnums=(0, 1))(hidden, weight))
        return mx.get_peak_memory() - before

    table = hidden.shape[0] * weight.shape[0] * 4
    assert peak(lambda h, w: token_logps_and_entropy(h, w, ids)[0]) < 0.5 * table
    assert peak(lambda h, w: output_logps.token_logps(h @ w.T, ids)) > 2 * table
