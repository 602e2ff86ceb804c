"""Statistics of inner values and gradients, against numbers counted by hand and torch."""

import math

import numpy as np
import pytest
import torch

from mlx_grpo_kit.autograd import value_and_grad
from mlx_grpo_kit.qwen3 import qwen3_forward
from mlx_grpo_kit.qwen3.statistics import describe, layer_statistics, value_statistics
from mlx_grpo_kit.runtime import mx

SIZES = dict(vocab_size=13, hidden_size=12, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=6)  # fmt: skip
IDS = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]


def test_a_few_numbers():
    few = describe(mx.array([3.0, 0.0]), mx.array([[-4.0], [0.0]]))
    assert (few.size, few.rms, few.largest, few.zeros, few.outliers, few.not_finite) == (4, 2.5, 4.0, 0.5, 0, 0)


def test_an_outlier_and_what_is_not_finite():
    many = describe(mx.array([1.0] * 98 + [-math.inf, math.nan]))
    assert (many.rms, many.largest, many.not_finite) == (1, 1, pytest.approx(0.02))
    one = describe(mx.array([1.0] * 999 + [100.0]))
    assert one.outliers == pytest.approx(0.001)
    assert describe(mx.array([math.nan])).not_finite == 1
    assert math.isnan(describe(mx.array([math.inf])).rms)


def test_large_halves_do_not_overflow():
    assert describe(mx.full((1000,), 60000.0, mx.float16)).rms == pytest.approx(60000, rel=1e-3)


def test_nothing_is_no_statistic():
    with pytest.raises(ValueError, match="no numbers to describe"):
        describe()
    with pytest.raises(ValueError, match="no numbers to describe"):
        describe(mx.zeros((0, 3)))


def test_values_and_gradients_layer_by_layer_are_those_of_torch(make_qwen3):
    model, config, params = make_qwen3(noise=0.2, **SIZES, tie_word_embeddings=False)
    record = {}
    qwen3_forward(config, params, mx.array(IDS), watch=record.setdefault)
    output = model(torch.tensor(IDS), output_hidden_states=True)
    values = value_statistics(record)
    assert list(values) == list(record)
    for name, theirs in zip(("embedding", "layers.0", "layers.1"), output.hidden_states, strict=False):
        assert values[name].rms == pytest.approx(theirs.pow(2).mean().sqrt().item(), rel=1e-4)
        assert values[name].largest == pytest.approx(theirs.abs().max().item(), rel=1e-4)
    # Ten of the 25 scores of each head lie behind the mask, and their weights are 0.
    assert values["layers.1.self_attn.scores"].size == 2 * 4 * 15
    assert values["layers.1.self_attn.scores"].largest < 1000
    assert values["layers.1.self_attn.weights"].zeros == pytest.approx(10 / 25)

    output.logits.square().mean().backward()
    _, grads = value_and_grad(lambda p: qwen3_forward(config, p, mx.array(IDS)).square().mean(), params)
    layers = layer_statistics(grads)
    assert list(layers) == ["embedding", "layers.0", "layers.1", "layers.2", "final_norm", "lm_head"]
    for number in range(3):
        theirs = np.concatenate([p.grad.ravel() for p in model.model.layers[number].parameters()])
        ours = layers[f"layers.{number}"]
        assert ours.size == theirs.size
        assert ours.rms == pytest.approx(np.sqrt(np.mean(theirs.astype(float) ** 2)), rel=1e-3)
        assert ours.largest == pytest.approx(np.abs(theirs).max(), rel=1e-3)
