"""Names, shapes and checks of a set of parameters, against transformers' state dict."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3ForCausalLM, Trainer
from transformers import Qwen3Config as HFConfig

from mlx_grpo_kit.qwen3 import (
    Qwen3Config,
    count_total_parameters,
    decays,
    init_params,
    map_params_to_dict,
    param_names,
    param_shapes,
    validate_param_names,
    validate_params,
)
from mlx_grpo_kit.qwen3.weight_files import hugging_face_name, kit_name
from mlx_grpo_kit.runtime import mx

SIZES = dict(vocab_size=37, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16)  # fmt: skip
CONFIG = Qwen3Config(**SIZES)
TIED = Qwen3Config(**SIZES, tie_word_embeddings=True)


@pytest.mark.parametrize("config", [CONFIG, TIED], ids=["untied", "tied"])
def test_names_and_shapes_are_transformers(config):
    with torch.device("meta"):
        reference = Qwen3ForCausalLM(HFConfig(**SIZES, tie_word_embeddings=config.tie_word_embeddings))
    theirs = {name: tuple(parameter.shape) for name, parameter in reference.named_parameters()}
    assert {hugging_face_name(name): shape for name, shape in param_shapes(config).items()} == theirs
    assert {kit_name(name) for name in theirs} == set(param_names(config))
    assert count_total_parameters(config) == sum(parameter.numel() for parameter in reference.parameters())
    validate_param_names(reversed(param_names(config)), config)


def test_names_of_the_kit():
    names = param_names(CONFIG)
    assert (names[0], names[-2], names[-1]) == ("embedding.weight", "final_norm.weight", "lm_head.weight")
    assert "layers.2.self_attn.q_norm.weight" in names
    assert len(names) == len(set(names)) == 1 + 11 * 3 + 2
    assert param_names(TIED) == names[:-1]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "adapters"])
def test_the_parameters_that_decay_are_transformers(kind):
    name = "qwen3" if kind == "adapters" else kind
    settings = {key: value for key, value in SIZES.items() if key != "head_dim"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings))
    if kind == "adapters":
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
        assert decays("layers.0.self_attn.q_proj.lora_a")
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    expected = set(Trainer.get_decay_parameter_names(None, model)) & set(names)
    assert {name for name in names if decays(name)} == expected
    assert {name for name in names if decays(kit_name(name))} == expected


def test_random_parameters():
    params = init_params(CONFIG, seed=1)
    validate_params(params, CONFIG)
    assert sum(value.size for value in params.values()) == count_total_parameters(CONFIG)
    assert all(value.dtype == mx.float32 for value in params.values())
    for name, value in params.items():
        if "norm" in name:
            assert (np.array(value) == 1).all(), name
    matrices = np.concatenate([np.array(value).ravel() for name, value in params.items() if "norm" not in name])
    assert abs(matrices.mean()) < 1e-3
    assert matrices.std() == pytest.approx(HFConfig().initializer_range, rel=0.02)
    assert len(np.unique(matrices)) > 0.99 * len(matrices), "every matrix has numbers of its own"


def test_the_seed_decides_random_parameters():
    first, same, other = (init_params(CONFIG, seed=seed) for seed in (1, 1, 2))
    name = "layers.1.mlp.up_proj.weight"
    assert (np.array(first[name]) == np.array(same[name])).all()
    assert (np.array(first[name]) != np.array(other[name])).mean() > 0.99


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers.0.mlp.up_proj.weight": None}, "Missing parameter 'layers.0.mlp.up_proj.weight'. Qwen3Config exp"),
        ({"embedding.weight": None, "final_norm.weight": None}, r"Missing parameter 'embedding.weight' \(and 1 more\)"),
        ({"layers.0.mlp.up.weight": (40, 24), "layers.0.mlp.up_proj.weight": None},
         "Unknown parameter 'layers.0.mlp.up.weight'. Did you mean 'layers.0.mlp.up_proj.weight'?"),
        ({"model.norm.weight": (24,)}, "Unknown parameter 'model.norm.weight'"),
        ({"layers.3.mlp.up_proj.weight": (40, 24)}, "Unknown parameter 'layers.3.mlp.up_proj.weight'"),
        ({"layers.1.mlp.up_proj.weight": (24, 40)},
         r"Parameter 'layers.1.mlp.up_proj.weight' has shape \(24, 40\); Qwen3Config\(hidden_size=24"
         r".*expects \(40, 24\)"),
        ({"layers.1.self_attn.k_proj.weight": (64, 24)}, r"num_key_value_heads=2, head_dim=16\) expects \(32, 24\)"),
    ],
)  # fmt: skip
def test_validation_names_what_is_wrong(change, message):
    params = init_params(CONFIG)
    for name, shape in change.items():
        if shape is None:
            del params[name]
        else:
            params[name] = mx.zeros(shape)
    with pytest.raises(ValueError, match=message):
        validate_params(params, CONFIG)
    if "has shape" not in message and "head_dim" not in message:
        with pytest.raises(ValueError, match=message):
            validate_param_names(params, CONFIG)


def test_an_output_layer_beside_tied_embeddings_is_explained():
    with pytest.raises(ValueError, match=r"'lm_head.weight'. tie_word_embeddings is true, so the embedding is the"):
        validate_params(init_params(CONFIG), TIED)
    with pytest.raises(ValueError, match=r"Missing parameter 'lm_head.weight'"):
        validate_params(init_params(TIED), CONFIG)


def test_flat_arrays_get_their_names():
    params = init_params(CONFIG)
    again = map_params_to_dict(list(params.values()), param_names(CONFIG))
    assert list(again) == list(params)
    assert all(again[name] is params[name] for name in params)


def test_flat_arrays_that_do_not_fit_their_names():
    arrays = list(init_params(CONFIG).values())
    with pytest.raises(ValueError, match="There are 35 arrays for 36 names; expected one name for each"):
        map_params_to_dict(arrays[:-1], param_names(CONFIG))
    with pytest.raises(ValueError, match="'b' occurs more than once"):
        map_params_to_dict(arrays[:3], ["a", "b", "b"])
