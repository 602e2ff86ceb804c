"""Sampling with torch: transformers' greedy tokens and log-probabilities, and otherwise what MLX's decoder draws."""

import os

import numpy as np
import pytest
import torch

from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo import GRPOConfig, learners
from mlx_grpo_kit.grpo.learners import TorchDecoder, decoder_class, torch_decoder
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.qwen3.lora import adapt, init_lora
from mlx_grpo_kit.runtime import mx, torch_threads
from tests.backends.small_qwen3 import RELATIVES
from tests.generation.small_model import GROUPS, NOISE, PROMPTS, SHAPE, transformers_logps, transformers_tokens

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10_000.0}
SHAPES = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "every head has its keys": {"num_key_value_heads": 4},
    "one head of keys": {"num_key_value_heads": 1, "head_dim": 16},
    "yarn": {"rope_parameters": YARN},
    **RELATIVES,
}


@pytest.fixture(scope="module")
def model(make_qwen3):
    return make_qwen3(NOISE, **SHAPE)[1:]


@pytest.fixture(params=["MKL's product", "oneDNN's packed product"])
def packed(request, monkeypatch):
    """Every matrix is packed, or none is: the models here are too small for the rule to pack one."""
    monkeypatch.setattr(torch_decoder, "PACKED", 1 if "packed" in request.param else 10**9)


def both(model, prompts, **how):
    """What the two decoders draw."""
    return generate(*model, prompts, **how), generate(*model, prompts, decoder=TorchDecoder, **how)


def assert_same(ours, theirs, atol=2e-5):
    assert theirs.completions == ours.completions
    assert theirs.finished == ours.finished
    assert theirs.token_mask == ours.token_mask
    for name in ("logps", "entropies"):
        np.testing.assert_allclose(*(np.concatenate(getattr(each, name)) for each in (theirs, ours)), atol=atol)


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_tokens_and_logps_equal_transformers(make_qwen3, shape, packed):
    reference, *model = make_qwen3(NOISE, **SHAPE | SHAPES[shape])
    rollout = generate(*model, PROMPTS, sampling=SamplingConfig(70, 0.0), decoder=TorchDecoder)
    assert rollout.completions == transformers_tokens(reference, PROMPTS, 70)
    for prompt, completion, logps in zip(PROMPTS, rollout.completions, rollout.logps, strict=True):
        np.testing.assert_allclose(logps, transformers_logps(reference, prompt, completion), atol=2e-5)


@pytest.mark.parametrize(
    "filters",
    [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.9, "min_p": 0.02}],
)
@pytest.mark.parametrize("prompts", [GROUPS, PROMPTS, PROMPTS[:1], [[5, 6]] * 8], ids=["groups", "rows", "1", "group"])
def test_the_draws_are_those_of_mlx(model, packed, prompts, filters):
    assert_same(*both(model, prompts, sampling=SamplingConfig(**{"max_new_tokens": 40} | filters), seed=5))


def test_rows_that_end_leave_the_batch(model, packed):
    """The cache grows twice, and each time some rows have gone."""
    how = {"sampling": SamplingConfig(100), "eos_token_ids": [3, 4], "seed": 2}
    ours, theirs = both(model, GROUPS * 4, **how)
    lengths = [*map(len, ours.completions)]
    assert min(lengths) < 32 < 64 < max(lengths)
    assert len({*lengths}) > 10
    assert_same(ours, theirs)


def test_replies_pass_through_the_model(model, packed):
    def reply(ended):
        return {row: [20, 21, 22] for row, ids in ended.items() if len(ids) < 15}

    ours, theirs = both(model, GROUPS, sampling=SamplingConfig(50), eos_token_ids=[3], reply=reply, seed=1)
    assert not all(map(all, ours.token_mask))
    assert_same(ours, theirs)


def test_a_batch_in_pieces_has_the_same_draws(model):
    how = {"sampling": SamplingConfig(20), "seed": 4, "decoder": TorchDecoder}
    assert_same(generate(*model, GROUPS, **how), generate(*model, GROUPS, completion_batch_size=5, **how))


def test_a_model_that_has_diverged_gives_what_mlx_gives(model):
    """NaN everywhere: whoever samples learns of it by the log-probabilities."""
    config, params = model
    broken = params | {"final_norm.weight": params["final_norm.weight"] * float("nan")}
    ours, theirs = both((config, broken), PROMPTS, sampling=SamplingConfig(3))
    assert theirs.completions == ours.completions
    assert np.isnan(theirs.logps).all()
    assert np.isnan(ours.logps).all()


def test_parameters_changed_between_two_calls_are_used(model):
    config, params = model
    how = {"sampling": SamplingConfig(10), "decoder": TorchDecoder}
    first = generate(config, params, PROMPTS, **how)
    moved = {name: value * 1.5 for name, value in params.items()}
    assert generate(config, moved, PROMPTS, **how).completions != first.completions
    assert_same(generate(config, params, PROMPTS, **how), first, atol=0)


@pytest.mark.parametrize("many", [0, 10**12], ids=["all cores", "one"])
def test_torch_has_its_threads_back_after_every_token(model, monkeypatch, many):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch_decoder, "MANY_PRODUCTS", many)
    seen = []
    monkeypatch.setattr(torch_decoder, "normed", lambda x, eps: seen.append(torch.get_num_threads()) or x)
    before = torch.get_num_threads()
    generate(*model, PROMPTS, sampling=SamplingConfig(3), stop=lambda ids: seen.append(-torch.get_num_threads()),
             decoder=TorchDecoder)  # fmt: skip
    assert {count for count in seen if count > 0} == {1 if many else len(os.sched_getaffinity(0))}
    assert {-count for count in seen if count < 0} == {before}
    assert torch.get_num_threads() == before


def test_the_number_of_threads_stays_where_torch_has_another_library(monkeypatch, tmp_path):
    """As on a Mac, where `torch.set_num_threads` would have the number outlast the context."""
    asked = []
    monkeypatch.setattr(torch_threads.torch, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    torch_threads._set_threads.cache_clear()
    try:
        torch_threads.use_threads(torch.get_num_threads() + 1)
    finally:
        torch_threads._set_threads.cache_clear()
    assert asked == []


def test_torch_samples_beside_torchs_learner_and_for_large_models_on_a_cpu(model, monkeypatch):
    def chosen(device=mx.cpu, **settings):
        monkeypatch.setattr(mx, "default_device", lambda: device)
        args = GRPOConfig(**settings)
        return decoder_class(args, Policy.begin(*model, args))

    assert chosen() is chosen(backend="jax") is learners.MLXDecoder
    assert chosen(backend="torch") is TorchDecoder
    assert chosen(mx.Device(mx.gpu, 0), backend="torch") is learners.MLXDecoder
    monkeypatch.setattr(learners, "MANY_PARAMETERS", 100)
    assert chosen() is chosen(backend="jax") is TorchDecoder
    assert chosen(mx.Device(mx.gpu, 0)) is chosen(bf16=True) is chosen(lora_r=2) is learners.MLXDecoder
    monkeypatch.setattr(learners, "find_spec", lambda name: None)
    assert chosen() is learners.MLXDecoder


@pytest.mark.parametrize("kind", ["bfloat16", "uint32", "an adapter"])
def test_other_parameters_are_refused(model, kind):
    config, params = model
    if kind == "bfloat16":
        params = {name: value.astype(mx.bfloat16) for name, value in params.items()}
    elif kind == "uint32":
        name = "layers.0.mlp.up_proj"
        three = mx.quantize(params[f"{name}.weight"], group_size=32, bits=4)
        params = params | dict(zip([f"{name}.weight", f"{name}.scales", f"{name}.biases"], three, strict=True))
    else:
        params = adapt(params, init_lora(config, params, 2, ("q_proj",), seed=0), 1.0)
    with pytest.raises(ValueError, match=rf"plain float32 parameters, and \S+ is {kind}\. Sample with decoder=MLXD"):
        generate(config, params, PROMPTS, sampling=SamplingConfig(2), decoder=TorchDecoder)
    assert len(generate(config, params, PROMPTS, sampling=SamplingConfig(2)).completions) == len(PROMPTS)
