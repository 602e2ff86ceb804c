"""The solutions of chapter 10 against torch and transformers, and the claims of its prose."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding, apply_rotary_pos_emb

import mlx_grpo_kit.qwen3.forward as kit
from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.chapters.chapter_10 import exercises as chapter
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.runtime import mx

RNG = np.random.default_rng(0)


def normal(*shape):
    return mx.array(RNG.normal(size=shape).astype(np.float32))


def silu(z):
    return z / (1 + mx.exp(-z))


# -- the solutions, against torch and transformers -------------------------------------------------------------------


def test_embedding_and_its_gradient_are_torchs():
    weight, ids, grad = normal(5, 3), RNG.integers(0, 5, (4, 6)), normal(4, 6, 3)
    leaf = torch.tensor(np.array(weight), requires_grad=True)
    out = torch.nn.functional.embedding(torch.tensor(ids), leaf)
    out.backward(torch.tensor(np.array(grad)))
    assert np.array_equal(chapter.embedding(weight, mx.array(ids)), out.detach())
    assert np.allclose(chapter.embedding_backward(grad, mx.array(ids), 5), leaf.grad, atol=1e-6)


def test_rms_norm_mlp_and_rope_are_torchs():
    x, weight = normal(2, 5, 7), normal(7)
    theirs = torch.nn.functional.rms_norm(torch.tensor(np.array(x)), (7,), torch.tensor(np.array(weight)), 0.03)
    assert np.allclose(chapter.rms_norm(x, weight, 0.03), theirs, atol=1e-5)

    gate, up, down = normal(9, 7), normal(9, 7), normal(7, 9)
    tx, tg, tu, td = (torch.tensor(np.array(each)) for each in (x, gate, up, down))
    theirs = (torch.nn.functional.silu(tx @ tg.T) * (tx @ tu.T)) @ td.T
    assert np.allclose(chapter.mlp(x, gate, up, down), theirs, atol=1e-5)

    x = normal(2, 3, 5, 8)
    config = LlamaConfig(head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    tx = torch.tensor(np.array(x))
    cos, sin = LlamaRotaryEmbedding(config)(tx, torch.arange(11, 16)[None])
    assert np.allclose(chapter.rope(x, 11, 100.0), apply_rotary_pos_emb(tx, tx, cos, sin)[0], atol=1e-5)


def test_ported_weights_give_the_scores_of_the_original():
    x, w_query, w_key = normal(1, 6, 10), normal(24, 10), normal(24, 10)

    def scores(w_query, w_key, traditional):
        q, k = ((x @ w.T).reshape(1, 6, 3, 8).swapaxes(1, 2) for w in (w_query, w_key))
        q, k = (mx.fast.rope(each, 8, traditional=traditional, base=1e4, scale=1.0, offset=0) for each in (q, k))
        return q @ k.swapaxes(-1, -2)

    ported = (chapter.to_half_split(w, 8) for w in (w_query, w_key))
    assert np.allclose(scores(*ported, False), scores(w_query, w_key, True), atol=1e-4)


# -- what the chapter says -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    return *load_pretrained(TINY), load_tokenizer(TINY)


def test_three_numbers_by_hand():
    x, weight = mx.array([1.0, -5.0, 7.0]), mx.array([10.0, 1.0, 0.5])
    assert np.allclose(mx.fast.rms_norm(x, weight, 0.0), chapter.BY_HAND.solution, atol=1e-6)
    assert np.allclose(mx.fast.rms_norm(10 * x, weight, 0.0), chapter.BY_HAND.solution, atol=1e-6)


@pytest.mark.parametrize("seed", [1, 3])
def test_a_stack_without_norms_explodes_and_with_norms_adds_up(seed):
    rng = np.random.default_rng(seed)
    found = {}
    for scale in (1.0, 2.0):
        for norm in (False, True):
            x = mx.array(rng.normal(size=(64, 128)))
            for _ in range(32):
                up = mx.array(rng.normal(size=(256, 128), scale=128**-0.5))
                down = mx.array(rng.normal(size=(128, 256), scale=256**-0.5))
                read = x * mx.rsqrt((x * x).mean(axis=-1, keepdims=True)) if norm else x
                x = x + scale**2 * mx.maximum(read @ up.T, 0) @ down.T
            found[scale, norm] = mx.sqrt((x * x).mean()).item()
    assert 1e14 < found[2.0, False] < 1e17
    assert found[1.0, False] > 100
    assert 3 < found[2.0, True] / found[1.0, True] <= 4.5


def test_no_normed_number_exceeds_the_root_of_the_count():
    for n in (3, 16, 128):
        x = RNG.standard_cauchy(size=(1000, n)).astype(np.float32)
        normed = np.array(mx.fast.rms_norm(mx.array(x), mx.ones(n), 0.0))
        assert np.abs(normed).max() <= n**0.5 * (1 + 1e-5)


def test_rms_norm_in_float16_squares_in_float32():
    x = mx.full((1, 4), 300.0).astype(mx.float16)
    assert (x * x).max().item() == math.inf
    assert chapter.rms_norm(x, mx.ones(4).astype(mx.float16), 1e-6).tolist() == [[0, 0, 0, 0]]
    assert kit.rms_norm(x, mx.ones(4).astype(mx.float16), 1e-6).tolist() == [[1, 1, 1, 1]]


def test_the_means_of_the_trained_model_are_less_than_a_third_of_its_sizes(tiny):
    config, params, tokenizer = tiny
    largest = 0
    for a, b in np.random.default_rng(0).integers(1, 99, (200, 2)):
        record = {}
        ids = mx.array([tokenizer.encode(f"{a}+{b}={a + b}")])
        qwen3_forward(config, params, ids, watch=record.setdefault)
        for name in ("embedding", "layers.0.attended", "layers.0", "layers.1.attended", "layers.1"):
            x = np.array(record[name])
            largest = max(largest, (np.abs(x.mean(-1)) / np.sqrt(np.mean(x**2, axis=-1))).max())
    assert 0.25 < largest < 1 / 3


@pytest.mark.parametrize("seed", range(3))
def test_the_share_of_the_gradient_along_x_grows_with_eps(seed):
    rng = np.random.default_rng(seed)
    x, g, weight = (torch.tensor(rng.normal(size=16)) for _ in range(3))
    x.requires_grad_()
    shares = []
    for eps in (0.0, 0.1, 1.0, 10.0, 1000.0):
        (slope,) = torch.autograd.grad((torch.nn.functional.rms_norm(x, (16,), weight, eps) * g).sum(), x)
        shares.append(abs(slope @ x).item() / (slope.norm() * x.norm()).item())
    assert shares[0] < 1e-6
    assert all(a < b for a, b in pairwise(shares))


def test_rotated_the_wrong_way_a_distance_counts_as_its_negative():
    q, k = normal(1, 1, 1, 8), normal(1, 1, 1, 8)

    def score(query_at, key_at):
        return (kit.rope(q, query_at, 100.0) * kit.rope(k, key_at, 100.0)).sum().item()

    clockwise = (kit.rope(q, -8, 100.0) * kit.rope(k, -5, 100.0)).sum().item()  # the product for positions 8 and 5
    assert clockwise == pytest.approx(score(5, 8), abs=1e-4)
    assert abs(clockwise - score(8, 5)) > 0.1


def test_silu_is_never_below_minus_0_28():
    z = np.linspace(-50, 50, 100_001)
    assert -0.2785 < (z / (1 + np.exp(-z))).min() < -0.278


def test_wavelengths():
    def last(head_dim, theta):
        return 2 * math.pi * theta ** ((head_dim - 2) / head_dim)

    assert round(last(32, 1e4)) == 35_333
    assert round(last(128, 1e6)) == pytest.approx(5_063_256, rel=1e-5)
    assert round(2 * math.pi * 1e4 ** (6 / 32)) == 35


def share_right(tiny, change=lambda name, value: value, seed=0, **changes):
    config, params, tokenizer = tiny
    pairs = [(a, b) for a in range(10, 90) for b in range(10, 90) if a % 10 + b % 10 < 10 and a + b < 100]
    chosen = np.random.default_rng(seed).permutation(len(pairs))[:200]
    ids = mx.array([tokenizer.encode(f"{a}+{b}={a + b}") for a, b in (pairs[n] for n in chosen)])
    choices = qwen3_forward(dataclasses.replace(config, **changes), params, ids, watch=change).argmax(axis=-1)
    return mx.all(choices[:, 5:7] == ids[:, 6:8], axis=1).mean().item()


def turned_by(function):
    before = {}

    def watch(name, value):
        before[name] = value
        return function(before[name.replace("_rope", "_norm")].swapaxes(1, 2)) if name.endswith("_rope") else value

    return watch


@pytest.mark.parametrize("seed", range(3))
def test_bugs_that_change_the_answers(tiny, seed):
    config, params, _ = tiny
    gates = {}

    def gated(function):
        def watch(name, value):
            gates[name.split(".")[-1]] = value
            return function(gates["gate_proj"], gates["up_proj"]) if name.endswith("gated") else value

        return watch

    def normed(change):
        def watch(name, value):
            if not name.endswith(("layernorm", "final_norm")):
                return value
            weight = params[f"{name}.weight"]
            return change(value / weight, weight)

        return watch

    def share(change=lambda name, value: value, **changes):
        return share_right(tiny, change, seed, **changes)

    whole = share()
    assert whole > 0.95
    assert share(turned_by(lambda x: kit.rope(x, 50, config.rope_theta))) == whole
    assert share(rms_norm_eps=1000 * config.rms_norm_eps) > 0.95
    assert share(normed(lambda y, w: mx.fast.layer_norm(y, w, None, 1e-6))) > 0.95
    assert share(gated(lambda gate, up: mx.maximum(gate, 0) * up)) > 0.95
    assert 0.7 < share(rope_theta=1e6) < 0.95
    assert 0.3 < share(gated(lambda gate, up: silu(up) * gate)) < 0.75
    assert 0.3 < share(normed(lambda y, w: y)) < 0.75
    neighbours = turned_by(lambda x: mx.fast.rope(x, 32, traditional=True, base=1e4, scale=1.0, offset=0))
    assert share(neighbours) < 0.05
    assert share(turned_by(lambda x: x)) < 0.05
