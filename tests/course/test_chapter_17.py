"""The solutions of chapter 17 against torch and the kit, and the claims of its prose."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course import costs
from mlx_grpo_kit.course.chapters.chapter_17 import broken, exact, parts
from mlx_grpo_kit.course.chapters.chapter_17 import exercises as chapter
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
    leaf, weight = torch.tensor(np.array(x), requires_grad=True), torch.tensor(np.array(w))
    constant = torch.rsqrt((leaf * leaf).mean(-1, keepdim=True) + 0.1).detach()
    (leaf * constant * weight * torch.tensor(np.array(g))).sum().backward()
    np.testing.assert_allclose(np.array(wrong[0]), leaf.grad, rtol=1e-4, atol=1e-5)
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
