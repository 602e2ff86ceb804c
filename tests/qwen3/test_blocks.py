"""Every building block of Qwen3 against transformers' module: its values and, by torch, the gradient of every input.

Shapes are drawn at random: single tokens, odd batches, heads that share keys, heads wider than the model.
"""

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.func import functional_call
from transformers import Qwen3Config as HFConfig
from transformers.models.qwen3 import modeling_qwen3 as hf

from mlx_grpo_kit.qwen3 import Qwen3Config, YarnScaling
from mlx_grpo_kit.qwen3.forward import (
    attention,
    embedding,
    linear,
    mlp,
    rms_norm,
    rope,
    transformer_block,
    unwatched,
    visible,
)
from mlx_grpo_kit.runtime import mx

WITHIN = 1e-5  # of the largest number of an array
EPS = 1e-3  # large enough to show where it stands


@st.composite
def models(draw, yarn=False):
    """Sizes of one Qwen3 and of its input, as (transformers' configuration, the kit's, batch, tokens, seed)."""
    kv_heads = draw(st.integers(1, 3))
    sizes = dict(
        hidden_size=draw(st.integers(2, 33)),
        intermediate_size=draw(st.integers(1, 40)),
        num_attention_heads=kv_heads * draw(st.integers(1, 3)),
        num_key_value_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 9)),
    )
    theta = draw(st.sampled_from([2.5, 1e4, 1e6]))
    scaling = draw(st.none() | st.just(YarnScaling(4.0, 16))) if yarn else None
    return configured(sizes, theta, scaling), draw(st.integers(1, 5)), draw(st.integers(1, 9)), draw(st.integers(0, 99))


def configured(sizes, theta=1e4, scaling=None):
    rope_parameters = {"rope_theta": theta, **(scaling.to_dict() if scaling else {"rope_type": "default"})}
    sizes = dict(**sizes, vocab_size=11, num_hidden_layers=1, rms_norm_eps=EPS)
    theirs = HFConfig(**sizes, rope_parameters=rope_parameters, attn_implementation="eager")
    return theirs, Qwen3Config(**sizes, rope_theta=theta, rope_scaling=scaling)


def sizes(hidden, inner, heads, kv_heads, head_dim):
    return dict(hidden_size=hidden, intermediate_size=inner, num_attention_heads=heads, num_key_value_heads=kv_heads,
                head_dim=head_dim)  # fmt: skip


ONE_TOKEN = configured(sizes(32, 48, 4, 2, 8)), 3, 1, 0
WIDE_HEADS = configured(sizes(24, 40, 6, 2, 16)), 5, 7, 1
HEAD_OF_TWO = configured(sizes(3, 1, 1, 1, 2)), 1, 2, 2


def normal(seed, **shapes):
    """Arrays of these shapes, by name."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def assert_same(block, module, arrays, within=WITHIN):
    """Both functions take `arrays`, as MLX's and as torch's, and return one array.

    Its gradient is drawn at random; what comes back to each of `arrays` is compared too.
    """
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    expected = module(leaves)
    g = normal(7, g=tuple(expected.shape))["g"]
    expected.backward(torch.tensor(g))

    def loss(arrays):
        out = block(arrays)
        return (out * mx.array(g)).sum(), out

    (_, out), grads = mx.value_and_grad(loss)({name: mx.array(array) for name, array in arrays.items()})
    pairs = {"the result": (out, expected.detach())}
    pairs |= {f"the gradient of {name}": (grads[name], leaf.grad) for name, leaf in leaves.items()}
    for what, (ours, theirs) in pairs.items():
        ours, theirs = np.array(ours), theirs.numpy()
        assert ours.shape == theirs.shape, what
        assert np.abs(ours - theirs).max() <= within * max(1, np.abs(theirs).max()), what


def weights_of(module, seed, prefix=""):
    """Random weights for one of transformers' modules, by the names they have in it."""
    shapes = {prefix + name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=shape) / shape[-1] ** 0.5 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def cos_and_sin(config, x, positions):
    return hf.Qwen3RotaryEmbedding(config)(x, torch.tensor(positions))


@given(st.integers(1, 9), st.integers(1, 17), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 99))
@example(rows=3, hidden=5, shape=[1, 1], seed=0)
@settings(max_examples=30)
def test_embedding(rows, hidden, shape, seed):
    ids = np.random.default_rng(seed).integers(0, rows, shape)  # few rows: most are asked for more than once

    def theirs(leaves):
        return torch.nn.functional.embedding(torch.tensor(ids), leaves["weight"])

    def ours(arrays):
        return embedding(arrays["weight"], mx.array(ids))

    assert_same(ours, theirs, normal(seed, weight=(rows, hidden)))


@given(st.integers(1, 40), st.integers(1, 40), st.lists(st.integers(1, 5), max_size=3), st.integers(0, 99))
@example(inputs=1, outputs=1, shape=[], seed=0)
@settings(max_examples=30)
def test_linear(inputs, outputs, shape, seed):
    arrays = normal(seed, x=(*shape, inputs), weight=(outputs, inputs))
    assert_same(
        lambda arrays: linear(arrays["x"], arrays["weight"]),
        lambda leaves: torch.nn.functional.linear(leaves["x"], leaves["weight"]),
        arrays,
    )


@given(
    st.integers(1, 70),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.sampled_from([1e-6, 1e-3, 1.0]),
    st.sampled_from([1e-2, 1.0, 300.0]),
    st.integers(0, 99),
)
@example(hidden=1, shape=[3, 1], eps=1e-3, size=1.0, seed=0)
@example(hidden=8, shape=[1], eps=1e-3, size=1e-2, seed=0)  # eps counts more than x
@settings(max_examples=40)
def test_rms_norm(hidden, shape, eps, size, seed):
    module = hf.Qwen3RMSNorm(hidden, eps)
    arrays = normal(seed, x=(*shape, hidden), weight=(hidden,))
    arrays["x"] *= size
    assert_same(
        lambda arrays: rms_norm(arrays["x"], arrays["weight"], eps),
        lambda leaves: functional_call(module, {"weight": leaves["weight"]}, leaves["x"]),
        arrays,
    )


@given(models(yarn=True), st.integers(0, 40))
@example(drawn=ONE_TOKEN, offset=5)
@example(drawn=HEAD_OF_TWO, offset=0)
@settings(max_examples=40)
def test_rope(drawn, offset):
    (theirs, ours), batch, tokens, seed = drawn
    heads = ours.num_attention_heads
    arrays = normal(seed, x=(batch, heads, tokens, ours.head_dim))
    positions = offset + np.arange(tokens)[None].repeat(batch, 0)

    def turned(leaves):
        cos, sin = cos_and_sin(theirs, leaves["x"], positions)
        return hf.apply_rotary_pos_emb(leaves["x"], leaves["x"], cos, sin)[0]

    for given_as in (offset, mx.array(offset)):
        assert_same(
            lambda arrays, at=given_as: rope(arrays["x"], at, ours.rope_theta, ours.rope_scaling), turned, arrays, 1e-4
        )


def test_rope_with_an_offset_for_each_row():
    (theirs, ours), _, _, _ = WIDE_HEADS
    offsets = np.array([0, 3, 17])
    arrays = normal(0, x=(3, 6, 4, ours.head_dim))

    def turned(leaves):
        cos, sin = cos_and_sin(theirs, leaves["x"], offsets[:, None] + np.arange(4))
        return hf.apply_rotary_pos_emb(leaves["x"], leaves["x"], cos, sin)[0]

    assert_same(lambda arrays: rope(arrays["x"], mx.array(offsets), ours.rope_theta), turned, arrays, 1e-4)


@given(models(), st.sampled_from([0.1, 1.0, 200.0]))
@example(drawn=ONE_TOKEN, size=1.0)
@example(drawn=WIDE_HEADS, size=200.0)  # gates whose exponential overflows
@settings(max_examples=30)
def test_mlp(drawn, size):
    (theirs, _), batch, tokens, seed = drawn
    module = hf.Qwen3MLP(theirs)
    arrays = weights_of(module, seed) | normal(seed, x=(batch, tokens, theirs.hidden_size))
    arrays["x"] *= size
    names = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    assert_same(
        lambda arrays: mlp(arrays["x"], *(arrays[name] for name in names)),
        lambda leaves: functional_call(module, {name: leaves[name] for name in names}, leaves["x"]),
        arrays,
    )


def padded(batch, tokens, seed):
    """(attention_mask of 0 and 1 [B, T] whose first column is 1, the same with causality, added to scores)."""
    mask = np.random.default_rng(seed).integers(0, 2, (batch, tokens))
    mask[:, 0] = 1
    allowed = np.tril(np.ones((tokens, tokens), bool)) & (mask == 1)[:, None, :]
    return mask, torch.tensor(np.where(allowed, 0.0, -np.inf)[:, None], dtype=torch.float32)


@given(models())
@example(drawn=ONE_TOKEN)
@example(drawn=WIDE_HEADS)
@example(drawn=HEAD_OF_TWO)
@settings(max_examples=25)
def test_attention(drawn):
    (theirs, ours), batch, tokens, seed = drawn
    module = hf.Qwen3Attention(theirs, layer_idx=0)
    names = [name for name, _ in module.named_parameters()]
    arrays = weights_of(module, seed) | normal(seed, x=(batch, tokens, theirs.hidden_size))
    mask, added = padded(batch, tokens, seed)
    positions = np.arange(tokens)[None].repeat(batch, 0)

    def reference(leaves):
        at = cos_and_sin(theirs, leaves["x"], positions)
        return functional_call(module, {name: leaves[name] for name in names}, (leaves["x"], at, added))[0]

    for watch in (unwatched, lambda name, value: value):  # who watches gets attention in more steps

        def block(arrays, watch=watch):
            seen = visible(tokens, tokens, 0, mx.array(mask))
            return attention(ours, arrays, "", arrays["x"], seen, watch=watch)

        assert_same(block, reference, arrays, 2e-5)


@given(models(yarn=True))
@example(drawn=ONE_TOKEN)
@example(drawn=WIDE_HEADS)
@settings(max_examples=25)
def test_transformer_block(drawn):
    (theirs, ours), batch, tokens, seed = drawn
    module = hf.Qwen3DecoderLayer(theirs, layer_idx=0)
    names = [name for name, _ in module.named_parameters()]
    arrays = weights_of(module, seed, "layers.0.") | normal(seed, x=(batch, tokens, theirs.hidden_size))
    mask, added = padded(batch, tokens, seed)
    positions = np.arange(tokens)[None].repeat(batch, 0)

    def reference(leaves):
        at = cos_and_sin(theirs, leaves["x"], positions)
        weights = {name: leaves[f"layers.0.{name}"] for name in names}
        return functional_call(module, weights, (leaves["x"],), {"position_embeddings": at, "attention_mask": added})

    def block(arrays):
        return transformer_block(ours, arrays, 0, arrays["x"], visible(tokens, tokens, 0, mx.array(mask)))

    assert_same(block, reference, arrays, 5e-5)
