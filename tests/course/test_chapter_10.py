"""Answers to chapter 10's exercises, right ones in other styles and wrong ones; and the claims of its prose."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding, apply_rotary_pos_emb

import mlx_grpo_kit.qwen3.forward as kit
from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course import check
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


# -- answers in other styles -----------------------------------------------------------------------------------------


def embedding_by_take(weight, input_ids):
    return mx.take(weight, input_ids, axis=0)


def embedding_by_one_hot(weight, input_ids):
    return (input_ids[..., None] == mx.arange(weight.shape[0])).astype(weight.dtype) @ weight


def embedding_by_loops(weight, input_ids):
    return mx.stack([mx.stack([weight[i] for i in row]) for row in input_ids.tolist()])


def backward_by_one_hot(grad, input_ids, num_rows):
    one_hot = (input_ids.reshape(-1)[:, None] == mx.arange(num_rows)).astype(grad.dtype)
    return one_hot.T @ grad.reshape(-1, grad.shape[-1])


def backward_in_numpy(grad, input_ids, num_rows):
    out = np.zeros((num_rows, grad.shape[-1]))
    np.add.at(out, np.array(input_ids), np.array(grad))
    return out


def backward_by_loops(grad, input_ids, num_rows):
    out = [[0.0] * grad.shape[-1] for _ in range(num_rows)]
    for ids, row in zip(input_ids.tolist(), grad.tolist(), strict=True):
        for each, vector in zip(ids, row, strict=True):
            out[each] = [a + b for a, b in zip(out[each], vector, strict=True)]
    return np.array(out)


def rms_by_rsqrt(x, weight, eps):
    return weight * (x * mx.rsqrt(mx.square(x).mean(-1, keepdims=True) + eps))


def rms_by_einsum(x, weight, eps):
    squares = mx.einsum("...n,...n->...", x, x) / x.shape[-1]
    return x * weight * ((squares + eps) ** -0.5)[..., None]


def mlp_by_einsum(x, gate_weight, up_weight, down_weight):
    gate = mx.einsum("bth,ih->bti" if x.ndim == 3 else "th,ih->ti", x, gate_weight)
    return mx.matmul(gate * mx.sigmoid(gate) * (x @ up_weight.T), mx.transpose(down_weight))


def rotate_by_matrix(a, b, angle):
    c, s = mx.cos(angle), mx.sin(angle)
    both = mx.stack([mx.stack([c, -s]), mx.stack([s, c])]) * mx.stack([a, b])
    return both.sum(axis=1)[0], both.sum(axis=1)[1]


def rotate_as_complex(a, b, angle):
    z = (np.array(a) + 1j * np.array(b)) * np.exp(1j * np.array(angle))
    return z.real, z.imag


def angles_by_outer(positions, head_dim, theta):
    return mx.outer(positions, mx.exp(-math.log(theta) * mx.arange(0, head_dim, 2) / head_dim))


def rope_by_rotate_half(x, offset, theta):
    half = x.shape[-1] // 2
    angles = chapter.rope_angles(mx.arange(offset, offset + x.shape[2]), x.shape[-1], theta)
    angles = mx.concatenate([angles, angles], axis=-1)
    turned = mx.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * mx.cos(angles) + turned * mx.sin(angles)


def rope_by_the_kernel(x, offset, theta):
    return mx.fast.rope(x, x.shape[-1], traditional=False, base=theta, scale=1.0, offset=offset)


def rope_token_by_token(x, offset, theta):
    half = x.shape[-1] // 2
    out = []
    for t in range(x.shape[2]):
        angle = (offset + t) * theta ** (-2 * mx.arange(half) / x.shape[-1])
        a, b = chapter.rotate(x[:, :, t, :half], x[:, :, t, half:], angle)
        out.append(mx.concatenate([a, b], axis=-1))
    return mx.stack(out, axis=2)


def half_split_by_index(weight, head_dim):
    order = [h + i for h in range(0, weight.shape[0], head_dim) for s in (0, 1) for i in range(s, head_dim, 2)]
    return weight[mx.array(order)]


def half_split_head_by_head(weight, head_dim):
    heads = [weight[start : start + head_dim] for start in range(0, weight.shape[0], head_dim)]
    return np.concatenate([np.array(part) for head in heads for part in (head[0::2], head[1::2])])


def stream_in_one_line(record, num_layers):
    names = ("self_attn.o_proj", "mlp.down_proj")
    return [record["embedding"], *(record[f"layers.{n}.{name}"] for n in range(num_layers) for name in names)]


def stream_by_differences(record, num_layers):
    states = [record["embedding"]]
    for layer in range(num_layers):
        states += [record[f"layers.{layer}.attended"], record[f"layers.{layer}"]]
    return [states[0], *(b - a for a, b in pairwise(states))]


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("10.1", embedding_by_take),
        ("10.1", embedding_by_one_hot),
        ("10.1", embedding_by_loops),
        ("10.1", kit.embedding),
        ("10.2", backward_by_one_hot),
        ("10.2", backward_in_numpy),
        ("10.2", backward_by_loops),
        ("10.3", [2, -1, 0.7]),
        ("10.3", np.array([2, -1, 0.7])),
        ("10.4", rms_by_rsqrt),
        ("10.4", rms_by_einsum),
        ("10.4", mx.fast.rms_norm),
        ("10.4", kit.rms_norm),
        ("10.5", mlp_by_einsum),
        ("10.5", kit.mlp),
        ("10.6", rotate_by_matrix),
        ("10.6", rotate_as_complex),
        ("10.6", lambda a, b, angle: mx.stack(chapter.rotate(a, b, angle))),
        ("10.7", angles_by_outer),
        ("10.8", rope_by_rotate_half),
        ("10.8", rope_by_the_kernel),
        ("10.8", rope_token_by_token),
        ("10.8", kit.rope),
        ("10.9", half_split_by_index),
        ("10.9", half_split_head_by_head),
        ("10.10", stream_in_one_line),
        ("10.10", stream_by_differences),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_right_answers_in_another_style_pass(id, answer):
    note = check(id, answer)
    assert note.passed, note


# -- wrong answers, beyond the mistakes of the exercises (tests/course/test_exercises.py has those) --------------------


def cut_off(x, weight, eps):
    """The right numbers, through NumPy and back: no gradient passes."""
    return mx.array(np.array(chapter.rms_norm(x, weight, eps)))


def no_gradient_through_the_root(x, weight, eps):
    root = mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps)
    return x / mx.stop_gradient(root) * weight


def in_place(x, weight, eps):
    x /= mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True) + eps)
    x *= weight
    return x


def rms_in_numpy(x, weight, eps):
    return np.array(chapter.rms_norm(x, weight, eps))


def lost_additions(grad, input_ids, num_rows):
    out = np.zeros((num_rows, grad.shape[-1]), np.float32)
    out[np.array(input_ids)] += np.array(grad)
    return out


def nan_on_the_way_back(x, gate_weight, up_weight, down_weight):
    return (silu(x @ gate_weight.T) * (x @ up_weight.T)) @ down_weight.T


def by_mx_grad(grad, input_ids, num_rows):
    return mx.grad(lambda weight: (weight[input_ids] * grad).sum())(mx.zeros((num_rows, grad.shape[-1])))


def clipped_gate(x, gate_weight, up_weight, down_weight):
    gate = mx.clip(x @ gate_weight.T, -50, 50)
    return (silu(gate) * (x @ up_weight.T)) @ down_weight.T


def rope_in_place(x, offset, theta):
    x[:] = chapter.rope(x, offset, theta)
    return x


def rope_with_a_fixed_table(x, offset, theta):
    table = chapter.rope_angles(mx.arange(16), x.shape[-1], theta)
    angles = table[offset : offset + x.shape[2]]
    half = x.shape[-1] // 2
    return mx.concatenate(chapter.rotate(x[..., :half], x[..., half:], angles), axis=-1)


def cumulative(record, num_layers):
    parts = chapter.stream_parts(record, num_layers)
    return [sum(parts[: n + 1]) for n in range(len(parts))]


def rms_by_linalg(x, weight, eps):
    """The slope of a norm at 0 is 0 / 0."""
    return x * weight / mx.sqrt(mx.linalg.norm(x, axis=-1, keepdims=True) ** 2 / x.shape[-1] + eps)


def rope_one_half_after_the_other(x, offset, theta):
    angles = chapter.rope_angles(offset + mx.arange(x.shape[2]), x.shape[-1], theta)
    a, b = mx.split(x, 2, axis=-1)
    a = a * mx.cos(angles) - b * mx.sin(angles)
    b = a * mx.sin(angles) + b * mx.cos(angles)
    return mx.concatenate([a, b], axis=-1)


def angles_of_places(positions, head_dim, theta):
    return mx.outer(mx.arange(positions.shape[0]), theta ** (-mx.arange(0, head_dim, 2) / head_dim))


def angles_as_in_transformers(positions, head_dim, theta):
    angles = chapter.rope_angles(positions, head_dim, theta)
    return mx.concatenate([angles, angles], axis=-1)


def one_entry_for_each_layer(record, num_layers):
    names = ("self_attn.o_proj", "mlp.down_proj")
    return [record["embedding"], *(sum(record[f"layers.{n}.{name}"] for name in names) for n in range(num_layers))]


def mlp_before_attention(record, num_layers):
    names = ("mlp.down_proj", "self_attn.o_proj")
    return [record["embedding"], *(record[f"layers.{n}.{name}"] for n in range(num_layers) for name in names)]


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        ("10.4", rms_by_linalg, "a gradient of nan"),
        ("10.4", lambda x, weight, eps: mx.fast.rms_norm(x, weight, 1e-6), "eps was ignored"),
        ("10.5", lambda x, g, u, d: x + kit.mlp(x, g, u, d), "x itself is added"),
        ("10.5", lambda x, g, u, d: (silu(x @ g.T) * silu(x @ u.T)) @ d.T, "silu is applied to both branches"),
        ("10.7", angles_of_places, "The rows count 0, 1, 2"),
        ("10.7", angles_as_in_transformers, "Every angle appears twice"),
        ("10.7", lambda p, d, theta: mx.outer(p, 10000.0 ** (-mx.arange(0, d, 2) / d)), "theta was ignored"),
        ("10.7", lambda p, d, theta: chapter.rope_angles(p + 1, d, theta), "one step ahead"),
        ("10.8", rope_one_half_after_the_other, "computed from the *new* first half"),
        ("10.8", lambda x, o, theta: kit.rope(x[..., ::-1], o, theta)[..., ::-1], "expected"),
        ("10.10", one_entry_for_each_layer, "two entries for each layer"),
        ("10.10", mlp_before_attention, "attention adds first"),
        ("10.4", cut_off, "cut off from the arguments"),
        ("10.4", no_gradient_through_the_root, "cut off from the arguments"),
        ("10.4", in_place, "also new numbers in what it was given"),
        ("10.4", rms_in_numpy, "gradients cannot pass through it: use only mx"),
        ("10.4", lambda x, weight, eps: chapter.rms_norm(x, weight, 1e-6), "expected"),
        ("10.4", lambda x, weight, eps: mx.fast.layer_norm(x, weight, None, eps), "that is layer norm"),
        ("10.1", lambda weight, ids: weight[ids].sum(axis=1), "of shape"),
        ("10.1", lambda weight, ids: mx.array(np.array(weight)[np.array(ids)]), "cut off"),
        ("10.2", by_mx_grad, "do not use mx.grad here: write the rule"),
        ("10.2", lost_additions, "have to add up"),
        ("10.2", lambda grad, ids, rows: mx.zeros((rows, grad.shape[-1])), "expected"),
        ("10.3", (2, -1, 7), "2 of the 3 are right"),
        ("10.5", nan_on_the_way_back, "a gradient of nan"),
        ("10.5", clipped_gate, "expected"),
        ("10.5", lambda x, g, u, d: kit.mlp(x, u, g, d), "silu is applied to the wrong branch"),
        ("10.6", lambda a, b, angle: (a, b), "expected"),
        ("10.7", lambda p, d, theta: p[:, None] * theta ** (-mx.arange(d // 2) / (d // 2 - 1 or 1)), "expected"),
        ("10.7", lambda p, d, theta: np.array(chapter.rope_angles(p, d, theta)), "later cells need an mx.array"),
        ("10.8", rope_in_place, "also new numbers in what it was given"),
        ("10.8", rope_with_a_fixed_table, "raised"),
        (
            "10.8",
            lambda x, offset, theta: mx.fast.rope(
                x, x.shape[-1], traditional=True, base=theta, scale=1.0, offset=offset
            ),
            "Neighbours are paired here",
        ),
        ("10.9", lambda weight, head_dim: weight.reshape(-1, 2, weight.shape[-1])[:, ::-1].reshape(weight.shape), "["),
        ("10.9", lambda weight, head_dim: mx.concatenate([weight[0::2], weight[1::2]]), "heads are mixed"),
        ("10.10", cumulative, "Those are states of the stream"),
    ],
)
def test_wrong_answers_get_their_messages(id, answer, words):
    note = check(id, answer)
    assert not note.passed
    assert words in note.text, note.text


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
