"""The solutions of chapter 17 against torch and the kit, right answers in other styles, and the claims of its prose."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course import check, costs
from mlx_grpo_kit.course.chapters.chapter_17 import broken, exact, parts
from mlx_grpo_kit.course.chapters.chapter_17 import exercises as chapter
from mlx_grpo_kit.course.slips import edited
from mlx_grpo_kit.qwen3 import (
    Qwen3Config,
    backward,
    forward,
    init_params,
    kernels,
    load_pretrained,
    load_tokenizer,
    qwen3_forward,
    qwen3_loss_and_gradients,
)
from mlx_grpo_kit.runtime import mx

RNG = np.random.default_rng(0)


def numbers(*shape):
    return mx.array(RNG.normal(size=shape).astype(np.float32))


def agree(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.array(mine), np.array(other), atol=1e-4)


# -- the solutions -----------------------------------------------------------------------------------------------------


def test_loss_with_weights():
    logits, weights, targets = numbers(2, 3, 5), numbers(2, 3), RNG.integers(0, 5, (2, 3))
    leaf = torch.tensor(np.array(logits), requires_grad=True)
    each = functional.cross_entropy(leaf.flatten(0, 1), torch.tensor(targets).flatten(), reduction="none")
    loss = (each * torch.tensor(np.array(weights)).flatten()).sum()
    loss.backward()
    agree(chapter.cross_entropy(logits, mx.array(targets), weights), [loss.detach(), leaf.grad])


@pytest.mark.parametrize(
    ("solution", "function", "inputs"),
    [
        (chapter.linear_backward, forward.linear, [numbers(2, 3, 4), numbers(5, 4)]),
        (chapter.gated_silu_backward, kernels.gated_silu, [numbers(3, 4), numbers(3, 4)]),
        (chapter.mix_values_backward, kernels.mix_values, [numbers(2, 6, 3, 4), numbers(2, 2, 4, 5)]),
        (
            lambda g, x, w: chapter.rms_norm_backward(g, x, w, 0.1),
            lambda x, w: forward.rms_norm(x, w, 0.1),
            [numbers(2, 3, 4), numbers(4)],
        ),
        (lambda g, x: chapter.rope_backward(g, 5, 100.0), lambda x: forward.rope(x, 5, 100.0), [numbers(1, 2, 3, 8)]),
        (
            chapter.attention_scores_backward,
            lambda q, k: kernels.attention_scores(q, k, mx.ones((3, 5))),
            [numbers(2, 6, 3, 4), numbers(2, 2, 5, 4)],
        ),
    ],
)
def test_rules_agree_with_autograd_and_with_values(solution, function, inputs):
    off, passed = parts.compare(solution, function, *inputs)
    assert off < 1e-5
    assert passed
    wrong = lambda *given: tuple(1.5 * each for each in _several(solution(*given)))  # noqa: E731
    assert parts.compare(wrong, function, *inputs)[0] > 0.01


def _several(result):
    return result if isinstance(result, tuple) else (result,)


def test_clipping_is_torchs():
    grads = {"a": numbers(3, 2), "b": numbers(4)}
    leaves = [torch.zeros(grad.shape, requires_grad=True) for grad in grads.values()]
    for leaf, grad in zip(leaves, grads.values(), strict=True):
        leaf.grad = torch.tensor(np.array(grad))
    norm = torch.nn.utils.clip_grad_norm_(leaves, 0.7).item()
    clipped, ours = chapter.clip_by_norm(grads, 0.7)
    assert ours == pytest.approx(norm, rel=1e-5)
    agree(clipped.values(), [leaf.grad for leaf in leaves])


# -- right answers in other styles -------------------------------------------------------------------------------------


def _loss_in_numpy(logits, targets, weights):
    logits, targets, weights = np.array(logits).astype(np.float64), np.array(targets), np.array(weights)
    shifted = logits - logits.max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    grad, loss = weights[..., None] * np.exp(log_probs), 0.0
    for place in np.ndindex(targets.shape):
        grad[place][targets[place]] -= weights[place]
        loss -= weights[place] * log_probs[place][targets[place]]
    return loss, grad


def _linear_by_einsum(grad, x, weight):
    return mx.einsum("...o,oi->...i", grad, weight), mx.einsum("...o,...i->oi", grad, x)


def _linear_in_torch(grad, x, weight):
    grad, x, weight = (torch.tensor(np.array(each)) for each in (grad, x, weight))
    return [grad @ weight, grad.reshape(-1, len(weight)).T @ x.reshape(-1, weight.shape[1])]


def _norm_by_autograd(grad, x, weight, eps):
    function = lambda x, w: x * mx.rsqrt((x * x).mean(-1, keepdims=True) + eps) * w  # noqa: E731
    return tuple(mx.vjp(function, [x, weight], [grad])[1])


def _norm_by_fast(grad, x, weight, eps):
    return mx.vjp(lambda x, w: mx.fast.rms_norm(x, w, eps), [x, weight], [grad])[1]


def _rope_by_reflection(grad, offset, theta):
    half = grad.shape[-1] // 2
    flip = mx.concatenate([mx.ones(half), -mx.ones(half)])
    return forward.rope(grad * flip, offset, theta) * flip


def _rope_in_complex_numbers(grad, offset, theta):
    grad = np.array(grad)
    half = grad.shape[-1] // 2
    angles = (offset + np.arange(grad.shape[-2]))[:, None] * theta ** (-np.arange(half) / half)
    turned = (grad[..., :half] + 1j * grad[..., half:]) * np.exp(-1j * angles)
    return np.concatenate([turned.real, turned.imag], -1)


def _silu_with_division(grad, gate, up):
    slope = 1 / (1 + mx.exp(-gate))
    return grad * up * slope * (1 + gate * (1 - slope)), grad * gate / (1 + mx.exp(-gate))


def _heads_repeated(grad, weights, values):
    share = grad.shape[1] // values.shape[1]
    each = weights.swapaxes(-1, -2) @ grad
    summed = each.reshape(values.shape[0], values.shape[1], share, *values.shape[2:]).sum(axis=2)
    return grad @ mx.repeat(values, share, axis=1).swapaxes(-1, -2), summed


def _heads_in_a_loop(grad, weights, values):
    grad, weights, values = (np.array(each) for each in (grad, weights, values))
    share = grad.shape[1] // values.shape[1]
    grad_weights, grad_values = np.zeros_like(weights), np.zeros_like(values)
    for head in range(grad.shape[1]):
        grad_weights[:, head] = grad[:, head] @ values[:, head // share].swapaxes(-1, -2)
        grad_values[:, head // share] += weights[:, head].swapaxes(-1, -2) @ grad[:, head]
    return grad_weights, grad_values


def _scores_in_torch(grad, queries, keys):
    queries, keys, grad = (torch.tensor(np.array(each), requires_grad=True) for each in (queries, keys, grad))
    share = queries.shape[1] // keys.shape[1]
    scores = queries @ keys.repeat_interleave(share, 1).transpose(-1, -2) / queries.shape[-1] ** 0.5
    return torch.autograd.grad(scores, [queries, keys], grad.detach())


def _scores_in_loops(grad, queries, keys):
    grad, queries, keys = (np.array(each, np.float64) for each in (grad, queries, keys))
    share, root = queries.shape[1] // keys.shape[1], math.sqrt(keys.shape[-1])
    grad_queries, grad_keys = np.zeros_like(queries), np.zeros_like(keys)
    for b, h, t, s in np.ndindex(grad.shape):
        grad_queries[b, h, t] += grad[b, h, t, s] * keys[b, h // share, s] / root
        grad_keys[b, h // share, s] += grad[b, h, t, s] * queries[b, h, t] / root
    return [grad_queries, grad_keys]


def _scores_by_einsum(grad, queries, keys):
    batch, groups, _, head_dim = keys.shape
    grad, rows = (each.reshape(batch, groups, -1, *each.shape[2:]) * head_dim**-0.25 for each in (grad, queries))
    to_queries = mx.einsum("bkgts,bksd->bkgtd", grad, keys) * head_dim**-0.25
    return to_queries.reshape(queries.shape), mx.einsum("bkgts,bkgtd->bksd", grad, rows)


def _block_in_one_line(grad, through_attention, through_mlp):
    return grad + through_mlp(grad) + through_attention(grad + through_mlp(grad))


def _clip_in_numpy(grads, max_norm):
    norm = np.linalg.norm(np.concatenate([np.array(grad).ravel() for grad in grads.values()]))
    return {name: np.array(grad) * (max_norm / max(norm, max_norm)) for name, grad in grads.items()}, float(norm)


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("17.1", _loss_in_numpy),
        ("17.2", _linear_by_einsum),
        ("17.2", _linear_in_torch),
        ("17.3", _norm_by_autograd),
        ("17.3", _norm_by_fast),
        ("17.4", _rope_by_reflection),
        ("17.4", _rope_in_complex_numbers),
        ("17.5", _silu_with_division),
        ("17.6", _heads_repeated),
        ("17.6", _heads_in_a_loop),
        ("17.7", _scores_in_torch),
        ("17.7", _scores_in_loops),
        ("17.7", _scores_by_einsum),
        ("17.8", _block_in_one_line),
        ("17.9", [60, 0, 0, 16384]),
        ("17.10", _clip_in_numpy),
    ],
)
def test_right_answers_in_other_styles(id, answer):
    note = check(id, answer)
    assert note.passed, note


# -- wrong answers beside those that the exercises list ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "solution", "diff", "words"),
    [
        (
            "17.1",
            chapter.cross_entropy,
            (
                "- log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)",
                "+ log_probs = logits - mx.logsumexp(logits, axis=1, keepdims=True)",
            ),
            "expected",
        ),
        (
            "17.2",
            chapter.linear_backward,
            ("- x_rows = x.reshape(-1, x.shape[-1])", "+ x_rows = (x * 0 + 1).reshape(-1, x.shape[-1])"),
            "part 2",
        ),
        (
            "17.3",
            chapter.rms_norm_backward,
            (
                "- return (scaled - normed * along) / r, grad_weight",
                "+ return (scaled - normed * along) / r / r, grad_weight",
            ),
            "part 1",
        ),
        (
            "17.3",
            chapter.rms_norm_backward,
            (
                "- grad_weight = (grad * normed).reshape(-1, x.shape[-1]).sum(axis=0)",
                "+ grad_weight = (grad * normed).reshape(-1, x.shape[-1]).mean(axis=0)",
            ),
            "part 2",
        ),
        (
            "17.4",
            chapter.rope_backward,
            ("- positions = offset + mx.arange(grad.shape[-2])", "+ positions = offset - mx.arange(grad.shape[-2])"),
            "expected",
        ),
        (
            "17.5",
            chapter.gated_silu_backward,
            (
                "- return grad * up * (s + gate * s * (1 - s)), grad * gate * s",
                "+ return grad * up * (s + gate * s * (1 + s)), grad * gate * s",
            ),
            "part 1",
        ),
        (
            "17.6",
            chapter.mix_values_backward,
            (
                "- grad_weights = (grad_rows @ values.swapaxes(-1, -2)).reshape(weights.shape)",
                "+ grad_weights = (grad_rows @ values[..., ::-1].swapaxes(-1, -2)).reshape(weights.shape)",
            ),
            "part 1",
        ),
        (
            "17.7",
            chapter.attention_scores_backward,
            (
                "- grad_rows = grad.reshape(batch, groups, -1, length) / math.sqrt(head_dim)",
                "+ grad_rows = grad.reshape(batch, groups, -1, length) * 0.5",
            ),
            "part 1",
        ),
        (
            "17.7",
            chapter.attention_scores_backward,
            (
                "- return grad_queries, grad_rows.swapaxes(-1, -2) @ query_rows",
                "+ return -grad_queries, grad_rows.swapaxes(-1, -2) @ query_rows",
            ),
            "part 1",
        ),
        (
            "17.8",
            chapter.block_backward,
            ("- return grad + through_attention(grad)", "+ return -grad + through_attention(grad)"),
            "expected",
        ),
        (
            "17.10",
            chapter.clip_by_norm,
            (
                "- return {name: grad * scale for name, grad in grads.items()}, norm",
                "+ return {name: grad + 0 * scale for name, grad in grads.items()}, norm",
            ),
            "expected (a: array([0.6",
        ),
    ],
)
def test_other_wrong_answers_are_refused_and_shown(id, solution, diff, words):
    note = check(id, edited(solution, *diff))
    assert not note.passed
    assert words in note.text


def _log_of_softmax(logits, targets, weights):
    p, one_hot = mx.softmax(logits, axis=-1), mx.eye(logits.shape[-1])[targets]
    return -(weights * mx.log((p * one_hot).sum(axis=-1))).sum(), weights[..., None] * (p - one_hot)


def _weights_broadcast(logits, targets, weights):
    log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(log_probs, targets[..., None], axis=-1)
    grad = weights[..., None] * (mx.exp(log_probs) - mx.eye(logits.shape[-1])[targets])
    return -(weights * chosen).sum(), grad


def _normed(x, eps):
    r = mx.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return r, x / r


def _projected_whole(grad, x, weight, eps):
    r, n = _normed(x, eps)
    unit = x / mx.maximum(mx.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
    scaled = grad * weight
    left = scaled - unit * (scaled * unit).sum(axis=-1, keepdims=True)
    return left / r, (grad * n).reshape(-1, x.shape[-1]).sum(axis=0)


def _first_axis_alone(grad, x, weight, eps):
    return chapter.rms_norm_backward(grad, x, weight, eps)[0], (grad * _normed(x, eps)[1]).sum(axis=0)


def _no_more_than_three_axes(grad, x, weight, eps):
    to_weight = grad * _normed(x, eps)[1]
    to_weight = to_weight.sum(axis=(0, 1)) if x.ndim == 3 else to_weight.sum(axis=0)
    return chapter.rms_norm_backward(grad, x, weight, eps)[0], to_weight


def _angles_kept_by_shape(grad, offset, theta, kept={}):  # noqa: B006 (what it is about)
    length, half = grad.shape[2], grad.shape[3] // 2
    turns = np.arange(offset, offset + length)[:, None] * theta ** (-np.arange(half) / half)
    angles = kept.setdefault(grad.shape, mx.array(turns.astype(np.float32)))
    first, second = mx.split(grad, 2, axis=-1)
    cos, sin = mx.cos(angles), mx.sin(angles)
    return mx.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)


def _from_minus_offset(grad, offset, theta):
    return forward.rope(grad, -offset, theta)


def _angles_of_heads(grad, offset, theta):
    half = grad.shape[-1] // 2
    angles = (offset + mx.arange(grad.shape[1]))[:, None, None] * theta ** (-mx.arange(half) / half)
    first, second = grad[..., :half], grad[..., half:]
    cos, sin = mx.cos(angles), mx.sin(angles)
    return mx.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)


def _slope_that_overflows(grad, gate, up):
    power = mx.exp(-gate)
    return grad * up * (1 / (1 + power) + gate * power / (1 + power) ** 2), grad * gate / (1 + power)


def _values_written_over(grad, weights, values):
    share, grad_values = grad.shape[1] // values.shape[1], np.zeros(values.shape)
    for head in range(grad.shape[1]):
        grad_values[:, head // share] = np.array(weights[:, head].swapaxes(-1, -2) @ grad[:, head])
    return chapter.mix_values_backward(grad, weights, values)[0], grad_values


def _heads_reshaped_the_other_way(product, others):
    batch, groups, *rest = others.shape
    return product.reshape(batch, -1, groups, *rest).sum(axis=1)


def _values_of_other_heads(grad, weights, values):
    grad_values = _heads_reshaped_the_other_way(weights.swapaxes(-1, -2) @ grad, values)
    return chapter.mix_values_backward(grad, weights, values)[0], grad_values


def _keys_of_other_heads(grad, queries, keys):
    grad_keys = _heads_reshaped_the_other_way(grad.swapaxes(-1, -2) @ queries / math.sqrt(keys.shape[-1]), keys)
    return chapter.attention_scores_backward(grad, queries, keys)[0], grad_keys


def _keys_written_over(grad, queries, keys):
    share, root = queries.shape[1] // keys.shape[1], math.sqrt(keys.shape[-1])
    grad_keys = np.zeros(keys.shape)
    for head in range(grad.shape[1]):
        grad_keys[:, head // share] = np.array(grad[:, head].swapaxes(-1, -2) @ queries[:, head]) / root
    return chapter.attention_scores_backward(grad, queries, keys)[0], grad_keys


def _to_length_one(grads, max_norm):
    norm = math.sqrt(sum((grad * grad).sum().item() for grad in grads.values()))
    return {name: grad / norm if norm > max_norm else grad for name, grad in grads.items()}, norm


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        ("17.1", _log_of_softmax, "the logarithm of 0 is infinite"),
        ("17.1", _weights_broadcast, "every token by every weight"),
        ("17.2", lambda grad, x, weight: (grad @ weight, grad.swapaxes(-1, -2) @ x), "a gradient for each row"),
        ("17.3", _projected_whole, "taken out *whole*"),
        ("17.3", _first_axis_alone, "summed over the first axis only"),
        ("17.3", _no_more_than_three_axes, "of shape (1, 3, 2), expected"),
        ("17.4", _angles_kept_by_shape, "expected"),
        ("17.4", _from_minus_offset, "-(offset + t), not -offset + t"),
        ("17.4", _angles_of_heads, "counted along the heads"),
        ("17.5", _slope_that_overflows, "`exp(100)` is infinite"),
        ("17.6", _values_written_over, "it overwrote the others"),
        ("17.6", _values_of_other_heads, "the values' gradient adds up the wrong heads"),
        ("17.7", _keys_written_over, "it overwrote the others"),
        ("17.7", _keys_of_other_heads, "the keys' gradient adds up the wrong heads"),
        ("17.10", _to_length_one, "should be `max_norm` long"),
    ],
)
def test_wrong_answers_as_people_write_them_are_named(id, answer, words):
    note = check(id, answer)
    assert not note.passed
    assert words in note.text, note


def test_an_answer_that_overwrites_its_arguments_gets_a_message():
    def wrong(grad, gate, up):
        result = chapter.gated_silu_backward(grad, gate, up)
        gate[...] = 0
        return result

    note = check("17.5", wrong)
    assert not note.passed
    assert "new numbers in what it was given" in note.text


# -- what stands beside the exercises ----------------------------------------------------------------------------------


def test_answers_of_any_library_become_mlx_arrays():
    array, several, listed = np.ones((2, 3)), (np.ones(2), 1.5), [torch.ones(2), np.ones(1)]
    assert parts.in_mlx(lambda: array)().dtype == mx.float32
    assert [type(each) for each in parts.in_mlx(lambda: several)()] == [mx.array] * 2
    assert [each.shape for each in parts.in_mlx(lambda: listed)()] == [(2,), (1,)]
    assert parts.in_mlx(lambda: [[1.0, 2.0], [3.0, 4.0]])().shape == (2, 2)


def test_every_parameter_is_of_one_kind():
    _, params = load_pretrained(TINY)
    kinds = [kind for kind in parts.KINDS if kind != "everything"]
    assert all(sum(parts.KINDS[kind](name) for kind in kinds) == 1 for name in params)
    assert all(map(parts.KINDS["everything"], params))


@pytest.mark.parametrize("tied", [True, False])
def test_the_exact_loss_equals_transformers(tied):
    """To float32 precision, because transformers' norms compute in float32 for every dtype."""
    from transformers import Qwen3Config as HFConfig
    from transformers import Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=11, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, rope_theta=100.0, tie_word_embeddings=tied,
    )  # fmt: skip
    params = init_params(config, scale=0.5)
    reference = Qwen3ForCausalLM(HFConfig(**config.to_dict())).double()
    from mlx_grpo_kit.qwen3.weight_files import hugging_face_name

    reference.load_state_dict(
        {hugging_face_name(name): torch.tensor(np.array(value)) for name, value in params.items()}, strict=False
    )
    ids, targets = RNG.integers(0, 11, (2, 2, 5))
    logits = reference(torch.tensor(ids)).logits.flatten(0, 1)
    theirs = functional.cross_entropy(logits, torch.tensor(targets).flatten()).item()
    double = {name: np.array(value).astype(np.float64) for name, value in params.items()}
    assert exact.exact_loss(config, double, ids, targets) == pytest.approx(theirs, rel=1e-5)

    direction = {name: RNG.normal(size=value.shape) for name, value in params.items()}
    loss = exact.loss_along(config, params, direction, ids, targets)
    slope = loss(1e-20j).imag / 1e-20
    assert slope == pytest.approx((loss(1e-6) - loss(-1e-6)) / 2e-6, rel=1e-6)
    _, grads, _ = qwen3_loss_and_gradients(config, params, mx.array(ids), mx.array(targets))
    assert sum((np.array(grads[name]) * direction[name]).sum() for name in grads) == pytest.approx(slope, rel=1e-4)


def test_mlx_computes_exp_in_float32_whatever_it_is_given():
    x = np.linspace(-3, 3, 50)
    with mx.stream(mx.cpu):
        ours = np.array(mx.exp(mx.array(x, dtype=mx.float64)))
    assert 1e-12 < np.abs(ours - np.exp(x)).max() < 1e-4


def test_broken_rules_are_wrong_and_raise_no_error():
    g, x, w = numbers(2, 3, 4), numbers(2, 3, 4), numbers(4)
    rules = broken.BROKEN
    wrong = rules["r taken for a constant"]["rms_norm_backward"](g, x, w, 0.1)
    right = backward.rms_norm_backward(g, x, w, 0.1)
    assert mx.abs(wrong[0] - right[0]).max() > 0.01
    assert mx.array_equal(wrong[1], right[1])
    rope = rules["RoPE not turned back"]["rope_backward"]
    assert mx.array_equal(rope(g, 0, 100.0), g)
    grad, weights, values = numbers(1, 4, 3, 2), numbers(1, 4, 3, 5), numbers(1, 2, 5, 2)
    wrong = rules["first heads only"]["mix_values_backward"](grad, weights, values)
    right = backward.mix_values_backward(grad, weights, values)
    assert wrong[1].shape == right[1].shape
    assert mx.array_equal(wrong[0], right[0])
    assert mx.abs(wrong[1] - right[1]).max() > 0.01
    assert rules["as it should be"] == {}


def test_lines_of_code_are_counted_without_comments():
    import mlx_grpo_kit.course.chapters.chapter_17.broken as module

    assert 10 < costs.code_lines(module) < 30
    assert costs.code_lines(module, module) == 2 * costs.code_lines(module)


def test_costs_are_the_minimum_over_rounds():
    calls = []
    found = costs.measure({"a": lambda: calls.append("a") or mx.ones(1000), "b": lambda: mx.ones(2_000_000)}, rounds=3)
    assert calls == ["a"] * 3
    assert found["b"][1] > 7 > found["a"][1]


# -- what the prose says -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["27+38=65", "46+17=63", "58+23=81", "12+69=81"])
def test_the_tens_of_the_summands_get_a_gradient_from_the_tens_of_the_sum(text):
    """The tens of the second number get most below layer 1's attention; at the embedding, those of either number."""
    config, params = load_pretrained(TINY)
    ids = mx.array([load_tokenizer(TINY).encode(text)])
    weights = (mx.arange(7) == 5).astype(mx.float32)[None]
    _, _, inner = qwen3_loss_and_gradients(config, params, ids[:, :-1], ids[:, 1:], weights)
    below = np.linalg.norm(np.array(inner["layers.0"])[0], axis=-1)
    assert below[:5].argmax() == 3
    assert below[6] == 0
    assert np.linalg.norm(np.array(inner["embedding"])[0], axis=-1).argmax() in (0, 3)
    top = np.linalg.norm(np.array(inner["layers.1"])[0], axis=-1)
    assert np.flatnonzero(top).tolist() == [5]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_initial_weights_make_queries_and_keys_short(seed):
    config, params = load_pretrained(TINY)
    ids = mx.array([load_tokenizer(TINY).encode("27+38=6")])
    sizes = []
    for model in (init_params(config, seed=seed), params):
        record = {}
        qwen3_forward(config, model, ids, watch=record.setdefault)
        sizes.append([math.sqrt(mx.mean(record[f"layers.{layer}.self_attn.{name}_proj"] ** 2).item())
                      for layer in (0, 1) for name in "qk"])  # fmt: skip
    assert max(sizes[0]) < 0.3 < 0.7 < min(sizes[1])


def test_one_token_teaches_queries_and_keys_nothing():
    config, params = load_pretrained(TINY)
    _, grads, _ = qwen3_loss_and_gradients(config, params, mx.array([[10]]), mx.array([[11]]))
    silent = {name.split(".")[3] for name, value in grads.items() if not np.array(value).any()}
    assert silent == {"q_proj", "k_proj", "q_norm", "k_norm"}
