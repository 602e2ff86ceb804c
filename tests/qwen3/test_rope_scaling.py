"""YaRN and Llama 3's rotary embeddings are transformers', wherever a config.json says so."""

import json

import numpy as np
import pytest
import torch
from mlx_lm.models import qwen3 as mlx_lm_qwen3
from transformers import Qwen3Config as HFConfig
from transformers import Qwen3ForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.qwen3 import Qwen3Config, YarnScaling, init_params, load_pretrained, qwen3_forward, save_pretrained
from mlx_grpo_kit.qwen3.config import ROPE_TYPES
from mlx_grpo_kit.qwen3.rope_scaling import rope_attention_factor, rope_wavelengths
from mlx_grpo_kit.runtime import mx

SIZES = dict(vocab_size=37, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, rope_theta=10_000.0)  # fmt: skip
SETTINGS = [
    {"factor": 4.0, "original_max_position_embeddings": 32768},
    {"factor": 4, "original_max_position_embeddings": 16},
    {"factor": 1.0, "original_max_position_embeddings": 2048},
    {"factor": 16.0, "original_max_position_embeddings": 64, "attention_factor": 1.7},
    {"factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 6.5, "beta_slow": 0.25},
    {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.7},
    {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.5},
    {"factor": 3.5, "original_max_position_embeddings": 512, "truncate": False},
    {"factor": 2.0, "original_max_position_embeddings": 1, "beta_fast": 3e4, "beta_slow": 2e4},
    {"factor": 2.0, "original_max_position_embeddings": 2**30, "truncate": False},
]
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SETTINGS = [{"rope_type": "yarn"} | settings for settings in SETTINGS] + [
    LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192},
    LLAMA3 | {"factor": 8, "original_max_position_embeddings": 32},
    LLAMA3 | {"factor": 1.0, "original_max_position_embeddings": 64},
    LLAMA3 | {"factor": 2.5, "original_max_position_embeddings": 40, "low_freq_factor": 0.5, "high_freq_factor": 9},
]


def scaling_of(settings):
    settings = dict(settings)
    return ROPE_TYPES[settings.pop("rope_type")](**settings)


@pytest.mark.parametrize(("head_dim", "theta"), [(128, 1e6), (16, 1e4), (2, 1e4), (64, 2.5)])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_speeds_and_factor_are_transformers(settings, head_dim, theta):
    theirs = HFConfig(head_dim=head_dim, rope_parameters={"rope_theta": theta, **settings})
    inv_freq, factor = ROPE_INIT_FUNCTIONS[settings["rope_type"]](theirs, device="cpu")
    scaling = scaling_of(settings)
    # transformers computes the powers of theta in float32.
    np.testing.assert_allclose(1 / np.array(rope_wavelengths(scaling, head_dim, theta)), inv_freq.numpy(), rtol=2e-6)
    assert rope_attention_factor(scaling) == pytest.approx(factor, rel=1e-12)


def folder_of_the_kit(folder, **changes):
    """What the kit saves has rope_parameters; `changes` are what somebody wrote into its config.json later."""
    config = Qwen3Config(**SIZES, max_position_embeddings=64)
    save_pretrained(folder, config, init_params(config, scale=0.4))
    content = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "mlx_grpo_kit.json").unlink(missing_ok=True)  # what the kit had saved there is no longer what it was
    return folder


def relative_error(ours, theirs):
    return np.abs(np.array(ours) - theirs).max() / np.abs(theirs).max()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_logits_where_rope_scaling_stands_beside_rope_parameters(tmp_path, settings):
    folder = folder_of_the_kit(tmp_path / "kit", rope_scaling={"type": settings["rope_type"], **settings})
    config, params = load_pretrained(folder)
    assert config.rope_scaling == scaling_of(settings)
    ids = np.random.default_rng(0).integers(0, 37, (2, 60))
    theirs = Qwen3ForCausalLM.from_pretrained(folder)(torch.tensor(ids)).logits.detach().numpy()
    assert relative_error(qwen3_forward(config, params, mx.array(ids)), theirs) < 1e-5
    plain, _ = load_pretrained(folder_of_the_kit(tmp_path / "plain"))
    if settings["factor"] > 1:
        assert relative_error(qwen3_forward(plain, params, mx.array(ids)), theirs) > 1e-3, "scaling makes no difference"


def test_the_original_length_is_the_models_where_none_is_given(tmp_path):
    """As in transformers."""
    folder = folder_of_the_kit(tmp_path / "kit", rope_scaling={"rope_type": "yarn", "factor": 2.0})
    config, _ = load_pretrained(folder)
    assert config.rope_scaling == YarnScaling(2.0, 64)
    assert HFConfig.from_pretrained(folder).rope_parameters["original_max_position_embeddings"] == 64


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_what_is_written_reads_back_here_and_in_transformers(tmp_path, settings):
    config = Qwen3Config(**SIZES, rope_scaling=scaling_of(settings))
    content = json.loads(json.dumps(config.to_dict()))
    assert Qwen3Config.from_dict(content) == config
    assert Qwen3Config.from_dict({k: v for k, v in content.items() if k != "rope_scaling"}) == config
    theirs = HFConfig.from_dict(content)
    again = Qwen3Config.from_dict(json.loads(json.dumps(theirs.to_dict())))
    assert again == config
    assert theirs.rope_parameters["rope_theta"] == SIZES["rope_theta"]


@pytest.mark.parametrize("settings", [SETTINGS[3], SETTINGS[-1]], ids=str)
def test_decoding_with_a_cache_and_the_scores_of_transformers(tmp_path, settings):
    folder = folder_of_the_kit(tmp_path / "kit", rope_scaling=settings)
    config, params = load_pretrained(folder)
    reference = Qwen3ForCausalLM.from_pretrained(folder)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10]]
    rollout = generate(config, params, prompts, sampling=SamplingConfig(max_new_tokens=20), seed=3)
    for prompt, completion, logps in zip(prompts, rollout.completions, rollout.logps, strict=True):
        logits = reference(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].detach()
        theirs = logits.log_softmax(-1)[range(len(completion)), completion]
        np.testing.assert_allclose(logps, theirs.numpy(), atol=1e-4)


@pytest.mark.parametrize("settings", [SETTINGS[1], SETTINGS[-1]], ids=str)
def test_mlx_lm_agrees(tmp_path, settings):
    folder = folder_of_the_kit(tmp_path / "kit", rope_scaling=settings)
    config, params = load_pretrained(folder)
    content = json.loads((folder / "config.json").read_text())
    peer = mlx_lm_qwen3.Model(mlx_lm_qwen3.ModelArgs.from_dict(content))
    peer.load_weights(list(mx.load(str(folder / "model.safetensors")).items()))
    ids = mx.array(np.random.default_rng(0).integers(0, 37, (2, 60)))
    assert relative_error(qwen3_forward(config, params, ids), np.array(peer(ids))) < 1e-5
