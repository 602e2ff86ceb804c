"""Checkpointed transformer blocks: the gradients of a plain backward pass, in less memory."""

import dataclasses
import gc

import numpy as np
import pytest

from mlx_grpo_kit.generation import output_logps
from mlx_grpo_kit.grpo import LOSS_TYPES, GRPOConfig, MLXByLayer, Policy
from mlx_grpo_kit.grpo.gradients import batch_loss
from mlx_grpo_kit.grpo.logps import pad_batch
from mlx_grpo_kit.grpo.loss import BatchWeights, token_weights
from mlx_grpo_kit.grpo.micro_batches import MicroBatch
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params
from mlx_grpo_kit.qwen3.config import FAMILIES
from mlx_grpo_kit.runtime import mx
from tests.sizes import TWO_LAYERS

CONFIG = Qwen3Config(vocab_size=37, **TWO_LAYERS | {"num_hidden_layers": 3})
PROMPTS = {
    "a prompt for two, with padding": [[5, 6, 7], [5, 6, 7], [8], [8]],
    "a prompt for two, without padding": [[5, 6, 7], [5, 6, 7], [8, 9, 10], [8, 9, 10]],
    "a prompt for each": [[5, 6], [7], [8, 9, 10], [11]],
}
COMPLETIONS = {"long": [[20, 21], [22, 23, 24, 25, 26], [3], [30, 31]], "one token": [[20], [21], [22], [23]]}


def loss_and_grads(prompts, completions, layer_by_layer, config=CONFIG, loss_type="dapo", before=None):
    batch = pad_batch(config, prompts, completions)
    shape = batch.completion_ids.shape
    old, ref = (mx.random.normal(shape, key=mx.random.key(seed)) * 0.3 - 3.5 for seed in (1, 2))
    args = GRPOConfig(loss_type=loss_type, beta=0.1, epsilon_high=5.0, temperature=1.3)
    loss_config = args.loss(max_completion_length=shape[1])
    advantages = mx.array(np.linspace(-1, 1.2, len(prompts), dtype=np.float32))
    params = init_params(config, seed=1, scale=0.2)

    def loss_fn(params):
        return batch_loss(config, params, batch, advantages, loss_config, old_logps=old, ref_logps=ref, temperature=1.3)

    if layer_by_layer:
        grads = {name: value + 0 for name, value in (before or {}).items()}
        micro = MicroBatch(batch, advantages, weights_of(batch, loss_config), old, ref, old)
        loss, _, _ = MLXByLayer(config, args, loss_config).add_gradients(Policy(config, params), grads, micro)
    else:
        loss, grads = mx.value_and_grad(loss_fn)(params)
    mx.eval(loss, grads)
    return loss.item(), grads


def weights_of(batch, loss_config):
    """The weights of completions that are a whole batch."""
    mask = batch.completion_mask
    token_weight = token_weights(loss_config, mask)[:, :1]
    metric_weight, completion_weight = (mx.full((len(mask), 1), 1 / count) for count in (mask.sum(), len(mask)))
    return BatchWeights(token_weight, metric_weight, completion_weight, mask, metric_weight)


def check_same(*args, **settings):
    loss, grads = loss_and_grads(*args, False, **settings)
    checkpointed_loss, checkpointed = loss_and_grads(*args, True, **settings)
    assert checkpointed_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)  # gains and losses cancel
    assert checkpointed.keys() == grads.keys()
    for name, grad in grads.items():
        assert mx.any(grad != 0).item(), name
        np.testing.assert_allclose(checkpointed[name], grad, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_gradients_of_every_loss(loss_type):
    check_same(PROMPTS["a prompt for two, with padding"], COMPLETIONS["long"], loss_type=loss_type)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("completions", COMPLETIONS)
@pytest.mark.parametrize("prompts", PROMPTS)
def test_gradients_through_every_path(prompts, completions, family):
    """The keys and values of the prompt reach the completion's loss as well, and lie before it."""
    config = dataclasses.replace(CONFIG, model_type=family)
    check_same(PROMPTS[prompts], COMPLETIONS[completions], config=config)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("vocabulary", [37, 700])
def test_layer_by_layer_over_random_shapes(monkeypatch, vocabulary, tied):
    """Chunks of the vocabulary, an output layer of its own, one layer or many, and gradients to add to."""
    monkeypatch.setattr(output_logps, "CHUNK", 1)
    rng = np.random.default_rng(vocabulary + tied)
    for _ in range(4):
        heads = int(rng.choice([2, 4]))
        config = dataclasses.replace(
            CONFIG, vocab_size=vocabulary, num_hidden_layers=int(rng.integers(1, 4)), num_attention_heads=2 * heads,
            num_key_value_heads=heads, tie_word_embeddings=tied)  # fmt: skip
        prompts = [rng.integers(0, 37, rng.integers(1, 6)).tolist() for _ in range(2)]
        completions = [rng.integers(0, 37, rng.integers(1, 9)).tolist() for _ in range(6)]
        rows = [prompts[0]] * 3 + [prompts[1]] * 3
        _, grads = loss_and_grads(rows, completions, False, config)
        _, twice = loss_and_grads(rows, completions, True, config, before=grads)
        for name, grad in grads.items():
            np.testing.assert_allclose(twice[name], 2 * grad, rtol=1e-4, atol=2e-6, err_msg=name)


def test_layer_by_layer_has_one_buffer_for_a_gradient():
    """A large embedding, tied: in one graph its gradient exists three times and more."""
    config = dataclasses.replace(CONFIG, vocab_size=60_000, tie_word_embeddings=True)
    rows, completions = [[5, 6, 7]] * 8, [[9] * 48] * 8
    extra = []
    for how in (False, True):
        gc.collect()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        _, grads = loss_and_grads(rows, completions, how, config)
        extra.append((mx.get_peak_memory() - before) / grads["embedding.weight"].nbytes - 2)  # weight and gradient
        del grads
    assert extra[0] > 2
    assert extra[1] < extra[0] - 1.5  # at least one and a half embeddings less


def test_training_takes_the_same_steps(make_trainer):
    plain, checkpointed = (
        make_trainer(gradient_checkpointing=on, gradient_accumulation_steps=2) for on in (False, True)
    )
    for ours, theirs in zip(plain.train(3), checkpointed.train(3), strict=True):
        assert ours.metrics["grad_norm"] == pytest.approx(theirs.metrics["grad_norm"], rel=1e-4)
        assert ours.metrics["grad_norm"] > 0
        assert [row.completion for row in ours.completions] == [row.completion for row in theirs.completions]


def test_it_needs_less_memory():
    """What a block keeps is many times its input: queries, keys, scores, gates."""
    sizes = dict(vocab_size=32, hidden_size=32, intermediate_size=96, num_hidden_layers=8, num_attention_heads=4)
    config = Qwen3Config(**sizes, num_key_value_heads=2, head_dim=16)
    peaks = []
    for on in (False, True):
        gc.collect()
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        loss_and_grads([[5, 6, 7]] * 8, [[9] * 64] * 8, on, config)
        peaks.append(mx.get_peak_memory() - before)
    assert peaks[1] < 0.45 * peaks[0]
