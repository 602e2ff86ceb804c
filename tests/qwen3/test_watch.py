"""What `watch` sees inside of Qwen3 is what transformers computes there, and what it returns is used."""

import numpy as np
import pytest
import torch

from mlx_grpo_kit.qwen3 import KVCache, qwen3_forward
from mlx_grpo_kit.runtime import mx
from tests.sizes import TWO_LAYERS

IDS = [[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]]


@pytest.fixture(scope="module")
def model(make_qwen3):
    return make_qwen3(0.3, vocab_size=13, **TWO_LAYERS, tie_word_embeddings=False, attn_implementation="eager")


def test_inner_values_are_those_of_transformers(model):
    reference, config, params = model
    seen = {}

    def keep(name):
        return lambda module, inputs, output: seen.update({name: output[0] if isinstance(output, tuple) else output})

    for name, module in reference.model.named_modules():
        if name:
            module.register_forward_hook(keep(name))
    with torch.no_grad():
        output = reference(torch.tensor(IDS), output_attentions=True)
    record = {}
    qwen3_forward(config, params, mx.array(IDS), watch=record.setdefault)

    assert np.allclose(record["logits"], output.logits, atol=1e-4)
    assert np.allclose(record["embedding"], seen["embed_tokens"], atol=1e-5)
    assert np.allclose(record["final_norm"], seen["norm"], atol=1e-4)
    for layer in range(2):
        at = f"layers.{layer}"
        assert np.allclose(record[f"{at}.self_attn.weights"], output.attentions[layer], atol=1e-5)
        assert np.allclose(record[at], seen[at], atol=1e-4)
        names = ["input_layernorm", "post_attention_layernorm", "self_attn.o_proj", "self_attn.q_norm"]
        names += ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm"]
        names += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
        for name in names:
            values = np.array(record[f"{at}.{name}"])
            assert np.allclose(values.ravel(), seen[f"{at}.{name}"].numpy().ravel(), atol=1e-4), name
    weights = np.array(record["layers.0.self_attn.weights"])
    assert np.allclose(weights.sum(-1), 1)
    assert np.all(np.triu(weights, 1) == 0)
    assert set(record) == {"embedding", "final_norm", "logits"} | {
        f"layers.{layer}{name}"
        for layer in range(2)
        for name in (
            "", ".attended", ".input_layernorm", ".post_attention_layernorm", ".mlp.gate_proj", ".mlp.up_proj",
            ".mlp.gated", ".mlp.down_proj", ".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj",
            ".self_attn.q_norm", ".self_attn.k_norm", ".self_attn.q_rope", ".self_attn.k_rope", ".self_attn.scores",
            ".self_attn.weights", ".self_attn.mixed", ".self_attn.o_proj",
        )
    }  # fmt: skip


def test_watching_changes_no_logit(model):
    _, config, params = model
    ids = mx.array(IDS)
    attention_mask = mx.array([[0, 0, 1, 1, 1, 1], [1] * 6])
    unwatched = qwen3_forward(config, params, ids, attention_mask=attention_mask)
    watched = qwen3_forward(config, params, ids, attention_mask=attention_mask, watch=lambda name, value: value)
    assert np.allclose(watched, unwatched, atol=1e-5)

    cache, record = KVCache(config.num_hidden_layers), {}
    qwen3_forward(config, params, ids[:, :4], cache=cache)
    rest = qwen3_forward(config, params, ids[:, 4:], cache=cache, watch=record.setdefault)
    assert np.allclose(rest, qwen3_forward(config, params, ids)[:, 4:], atol=1e-5)
    assert record["layers.1.self_attn.weights"].shape == (2, 4, 2, 6)


def test_what_a_watch_returns_is_used_and_carries_gradients(model):
    reference, config, params = model
    ids = mx.array(IDS)
    at = "layers.0.attended"

    def loss(offset):
        logits = qwen3_forward(config, params, ids, watch=lambda name, x: x + offset if name == at else x)
        return (logits**2).mean()

    ours = mx.grad(loss)(mx.zeros((2, 6, 24)))
    inner = {}

    def keep(module, inputs):
        inputs[0].retain_grad()
        inner[at] = inputs[0]

    handle = reference.model.layers[0].post_attention_layernorm.register_forward_pre_hook(keep)
    (reference(torch.tensor(IDS)).logits ** 2).mean().backward()
    handle.remove()
    # In transformers the residual stream goes past the norm as well, and the gradient of both ways arrives here.
    assert np.allclose(ours, inner[at].grad, atol=1e-5)
