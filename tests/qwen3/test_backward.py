"""The backward pass by hand against torch's, part by part and whole, and against MLX's for every inner value."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from mlx_grpo_kit.grpo import GRPOLossConfig, compute_advantages, compute_loss_and_gradients
from mlx_grpo_kit.qwen3 import (
    Llama3Scaling,
    Qwen3Config,
    YarnScaling,
    init_params,
    qwen3_forward,
    qwen3_loss_and_gradients,
)
from mlx_grpo_kit.qwen3.backward import (
    attention_scores_backward,
    cross_entropy,
    embedding_backward,
    gated_silu_backward,
    linear_backward,
    mix_values_backward,
    rms_norm_backward,
    rope_backward,
    softmax_backward,
)
from mlx_grpo_kit.qwen3.config import FAMILIES
from mlx_grpo_kit.qwen3.weight_files import hugging_face_name
from mlx_grpo_kit.runtime import mx

sizes = partial(st.integers, 1)


@st.composite
def attention_shapes(draw):
    """(B, H, K, T, D) with H a multiple of K, D even."""
    key_heads = draw(sizes(3))
    return draw(sizes(3)), key_heads * draw(sizes(3)), key_heads, draw(sizes(5)), 2 * draw(sizes(4))


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def assert_rule(rule, forward, inputs, seed=0):
    """`rule(grad, *inputs)` gives what torch's autograd gives for `forward(*inputs)`, in float64."""
    leaves = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in inputs]
    output = forward(*leaves)
    grad = normal(np.random.default_rng(seed), *output.shape)
    output.backward(torch.tensor(grad, dtype=torch.float64))
    ours = rule(mx.array(grad), *(mx.array(value) for value in inputs))
    for gradient, leaf in zip(ours if isinstance(ours, tuple) else (ours,), leaves, strict=True):
        assert gradient.shape == tuple(leaf.shape)
        largest = max(1, leaf.grad.abs().max().item())
        np.testing.assert_allclose(gradient, leaf.grad, rtol=0, atol=1e-5 * largest)


def torch_rope(x, offset, theta, factor=1.0, freqs=None):
    """RoFormer's equation 34, with complex numbers: pair i is x[i] + j x[i + D/2]."""
    half = x.shape[-1] // 2
    freqs = theta ** (-torch.arange(half, dtype=x.dtype) * 2 / x.shape[-1]) if freqs is None else freqs
    angles = (offset + torch.arange(x.shape[-2], dtype=x.dtype))[:, None] * freqs
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.full_like(angles, factor), angles)
    return torch.cat([turned.real, turned.imag], -1)


@given(shape=st.lists(sizes(4), min_size=1, max_size=3), out=sizes(5), size=sizes(5), seed=sizes(9))
def test_linear(shape, out, size, seed):
    rng = np.random.default_rng(seed)
    assert_rule(linear_backward, functional.linear, [normal(rng, *shape, size), normal(rng, out, size)], seed)


@given(shape=st.lists(sizes(4), min_size=1, max_size=3), size=sizes(6), seed=sizes(9))
def test_rms_norm(shape, size, seed):
    rng = np.random.default_rng(seed)
    inputs = [normal(rng, *shape, size) * 3, normal(rng, size)]
    ours, theirs = partial(rms_norm_backward, eps=0.1), partial(functional.rms_norm, eps=0.1)
    assert_rule(ours, lambda x, weight: theirs(x, (size,), weight), inputs, seed)


@given(shape=attention_shapes(), offset=st.integers(0, 40), theta=st.floats(10, 1e6), seed=sizes(9))
def test_rope(shape, offset, theta, seed):
    batch, heads, _, length, head_dim = shape
    x = normal(np.random.default_rng(seed), batch, heads, length, head_dim)
    assert_rule(lambda grad, _: rope_backward(grad, offset, theta), lambda x: torch_rope(x, offset, theta), [x], seed)


@given(shape=st.lists(sizes(4), min_size=1, max_size=3), scale=st.sampled_from([0.1, 1, 30]), seed=sizes(9))
def test_gated_silu(shape, scale, seed):
    rng = np.random.default_rng(seed)
    inputs = [normal(rng, *shape) * scale, normal(rng, *shape)]
    assert_rule(gated_silu_backward, lambda gate, up: functional.silu(gate) * up, inputs, seed)


@given(shape=attention_shapes(), keys=sizes(6), seed=sizes(9))
def test_attention_products(shape, keys, seed):
    """Query and key numbers may differ; torch's heads are repeated, so that its gradient sums over them."""
    batch, heads, key_heads, length, head_dim = shape
    rng = np.random.default_rng(seed)
    shared = normal(rng, batch, key_heads, keys, head_dim)

    def scores(queries, shared):
        return queries @ shared.repeat_interleave(heads // key_heads, 1).mT / math.sqrt(head_dim)

    def mix(weights, shared):
        return weights @ shared.repeat_interleave(heads // key_heads, 1)

    assert_rule(attention_scores_backward, scores, [normal(rng, batch, heads, length, head_dim), shared], seed)
    assert_rule(mix_values_backward, mix, [normal(rng, batch, heads, length, keys), shared], seed)


@given(shape=st.lists(sizes(5), min_size=1, max_size=3), seed=sizes(9))
def test_softmax(shape, seed):
    scores = normal(np.random.default_rng(seed), *shape) * 3
    weights = mx.softmax(mx.array(scores), axis=-1)
    assert_rule(
        lambda grad, _: softmax_backward(grad, weights), lambda scores: torch.softmax(scores, -1), [scores], seed
    )


@given(shape=st.lists(sizes(4), min_size=1, max_size=2), vocabulary=sizes(6), size=sizes(4), seed=sizes(9))
def test_embedding_with_repeated_ids(shape, vocabulary, size, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocabulary, shape)
    assert_rule(
        lambda grad, _: embedding_backward(grad, mx.array(ids), vocabulary),
        lambda weight: functional.embedding(torch.tensor(ids), weight),
        [normal(rng, vocabulary, size)],
        seed,
    )


@given(shape=st.lists(sizes(4), min_size=1, max_size=2), vocabulary=sizes(6), seed=sizes(9))
def test_cross_entropy(shape, vocabulary, seed):
    rng = np.random.default_rng(seed)
    logits, targets = normal(rng, *shape, vocabulary) * 5, rng.integers(0, vocabulary, shape)
    weights = normal(rng, *shape)
    leaf = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    each = functional.cross_entropy(leaf.flatten(0, -2), torch.tensor(targets).flatten(), reduction="none")
    theirs = (each * torch.tensor(weights).flatten()).sum()
    theirs.backward()
    loss, grad = cross_entropy(mx.array(logits), mx.array(targets), mx.array(weights))
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-5)
    np.testing.assert_allclose(grad, leaf.grad, atol=1e-5)


@st.composite
def models(draw):
    """A small model with parameters that are all different, and a batch: (config, params, ids, targets, weights)."""
    key_heads, queries_per_key, half = draw(sizes(2)), draw(sizes(3)), draw(sizes(3))
    heads, family = key_heads * queries_per_key, draw(st.sampled_from(list(FAMILIES)))
    # transformers' Llama takes only hidden sizes that are multiples of the number of heads.
    hidden_size = heads * draw(sizes(3)) if family == "llama" else draw(st.integers(2, 7))
    config = Qwen3Config(
        vocab_size=draw(st.integers(2, 9)), hidden_size=hidden_size, intermediate_size=draw(sizes(6)),
        num_hidden_layers=draw(sizes(3)), num_attention_heads=heads, num_key_value_heads=key_heads, head_dim=2 * half,
        rms_norm_eps=1e-3, rope_theta=draw(st.sampled_from([100.0, 1e6])), tie_word_embeddings=draw(st.booleans()),
        model_type=family,
    )  # fmt: skip
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shape = draw(sizes(3)), draw(sizes(5))
    params = {
        name: mx.array(rng.normal(scale=0.5, size=value.shape) + ("norm" in name)).astype(mx.float32)
        for name, value in init_params(config).items()
    }
    ids, targets = (mx.array(rng.integers(0, config.vocab_size, shape)) for _ in range(2))
    return config, params, ids, targets, mx.array(normal(rng, *shape))


def torch_gradients(config, params, ids, targets, weights):
    """(loss, gradients by the kit's names, hidden states) of transformers' model with the same weights, in float64."""
    theirs = AutoConfig.for_model(**config.to_dict(), attn_implementation="eager")
    reference = AutoModelForCausalLM.from_config(theirs).double()
    state = {hugging_face_name(name): torch.tensor(np.array(value)) for name, value in params.items()}
    reference.load_state_dict(state, strict=False)
    output = reference(torch.tensor(np.array(ids)), output_hidden_states=True)
    for hidden in output.hidden_states:
        hidden.retain_grad()
    logits = output.logits.flatten(0, 1)
    each = functional.cross_entropy(logits, torch.tensor(np.array(targets)).long().flatten(), reduction="none")
    loss = (each * torch.tensor(np.array(weights)).flatten()).sum()
    loss.backward()
    grads = dict(reference.named_parameters())
    return loss.item(), {name: grads[hugging_face_name(name)].grad for name in params}, output.hidden_states


def assert_close(ours, theirs, name):
    theirs = np.asarray(theirs, np.float64)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * max(1, np.abs(theirs).max()), err_msg=name)


@settings(max_examples=25)
@given(models())
def test_loss_and_every_gradient_equal_transformers(model):
    config, params, *batch = model
    theirs, torch_grads, hidden_states = torch_gradients(config, params, *batch)
    loss, grads, inner_grads = qwen3_loss_and_gradients(config, params, *batch)
    assert loss.item() == pytest.approx(theirs, rel=1e-4, abs=1e-4)
    assert list(grads) == list(params)
    for name in params:
        assert_close(grads[name], torch_grads[name], name)
    assert_close(inner_grads["embedding"], hidden_states[0].grad, "embedding")
    assert_close(inner_grads["final_norm"], hidden_states[-1].grad, "final_norm")


def automatic_inner_gradients(config, params, ids, targets, weights, **more):
    """Of every inner value that `watch` sees: the gradient of an offset added there."""
    record = {}
    qwen3_forward(config, params, ids, watch=record.setdefault, **more)

    def loss(offsets):
        logits = qwen3_forward(config, params, ids, watch=lambda name, value: value + offsets[name], **more)
        logps = mx.take_along_axis(logits - mx.logsumexp(logits, axis=-1, keepdims=True), targets[..., None], axis=-1)
        return -(weights * logps[..., 0]).sum()

    return mx.grad(loss)({name: mx.zeros(value.shape) for name, value in record.items()})


@settings(max_examples=25)
@given(models())
def test_every_inner_gradient_equals_automatic_ones(model):
    *_, inner_grads = qwen3_loss_and_gradients(*model)
    automatic = automatic_inner_gradients(*model)
    assert list(inner_grads) == list(automatic)
    for name, gradient in automatic.items():
        assert inner_grads[name].shape == gradient.shape
        assert_close(inner_grads[name], gradient, name)


CONFIG = Qwen3Config(
    vocab_size=11, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, rope_theta=10_000.0,
)  # fmt: skip


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(side):
    params = init_params(CONFIG, scale=0.5)
    ids = mx.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    mask = mx.array([[1] * 5, [0, 0, 1, 1, 1] if side == "left" else [1, 1, 1, 0, 0]])
    weights = mask.astype(mx.float32) / 8
    automatic = automatic_inner_gradients(CONFIG, params, ids, ids, weights, attention_mask=mask)
    _, grads, inner_grads = qwen3_loss_and_gradients(CONFIG, params, ids, ids, weights, attention_mask=mask)
    for name, gradient in automatic.items():
        assert_close(inner_grads[name], gradient, name)
    # The padded positions are as if they were not there: each row alone gives the same.
    kept = np.flatnonzero(np.array(mask)[1]).tolist()
    _, first, _ = qwen3_loss_and_gradients(CONFIG, params, ids[:1], ids[:1], weights[:1])
    alone = ids[1:, kept[0] : kept[-1] + 1]
    _, second, _ = qwen3_loss_and_gradients(CONFIG, params, alone, alone, mx.full(alone.shape, 1 / 8))
    for name, gradient in grads.items():
        assert_close(gradient, first[name] + second[name], name)


@pytest.mark.parametrize("scaling", [YarnScaling(4.0, 16), Llama3Scaling(8.0, 1.0, 4.0, 16)], ids=str)
def test_scaled_rotary_embeddings(scaling):
    config = dataclasses.replace(CONFIG, rope_scaling=scaling)
    params = init_params(config, scale=0.5)
    ids = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    weights = mx.full(ids.shape, 1 / 8)
    _, torch_grads, _ = torch_gradients(config, params, ids, ids, weights)
    _, grads, _ = qwen3_loss_and_gradients(config, params, ids, ids)
    for name, gradient in grads.items():
        assert_close(gradient, torch_grads[name], name)


def test_advantages_as_weights_give_the_gradient_of_grpo():
    """Right after sampling: bnpo's token mean, where a token weighs its advantage over the number of tokens."""
    params = init_params(CONFIG, scale=0.5)
    prompts, completions = [[1, 2, 3]] * 2, [[4, 5, 6], [7, 8, 4]]
    advantages = compute_advantages([1.0, 0.0], 2, "none")
    _, theirs = compute_loss_and_gradients(
        CONFIG, params, prompts, completions, None, [1.0, 0.0], 2, GRPOLossConfig("bnpo"), scale_rewards="none"
    )
    rows = mx.array([prompt + completion for prompt, completion in zip(prompts, completions, strict=True)])
    weights = mx.zeros((2, 5)).at[:, 2:].add(advantages[:, None] / 6)
    _, ours, _ = qwen3_loss_and_gradients(CONFIG, params, rows[:, :-1], rows[:, 1:], weights)
    for name, gradient in theirs.items():
        assert_close(ours[name], gradient, name)


@pytest.mark.parametrize("name", ["targets", "weights"])
def test_shapes_that_do_not_fit(name):
    ids = mx.array([[1, 2, 3]])
    arguments = {"targets": ids, "weights": mx.ones((1, 3))} | {name: mx.zeros((1, 2), mx.int32)}
    with pytest.raises(ValueError, match=rf"{name} has shape \(1, 2\); expected \(1, 3\), one for each of input_ids"):
        qwen3_loss_and_gradients(CONFIG, init_params(CONFIG), ids, **arguments)
