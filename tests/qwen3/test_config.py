"""config.json in both layouts, and everything in one that this Qwen3 cannot compute."""

import copy
import dataclasses
import json
import math

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import Qwen3Config as HFConfig

from mlx_grpo_kit.qwen3 import Qwen3Config, count_total_parameters, param_shapes
from mlx_grpo_kit.qwen3.config import FAMILIES
from mlx_grpo_kit.qwen3.weight_files import kit_name
from tests.every import every

# The config.json of Qwen/Qwen3-0.6B, as published.
PUBLISHED = json.loads("""{
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
  "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936}""")

LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}

SMALL = dict(vocab_size=37, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16)  # fmt: skip

SHAPES = {
    "Qwen3-0.6B": dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                       num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    "Qwen3-8B": dict(vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
                     num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False),
    "small tied": SMALL | dict(tie_word_embeddings=True),
    "small untied": SMALL | dict(tie_word_embeddings=False),
    "one group of heads": SMALL | dict(num_key_value_heads=1),
    "no grouping": SMALL | dict(num_key_value_heads=4, head_dim=6),
}  # fmt: skip


def test_the_published_layout():
    config = Qwen3Config.from_dict(PUBLISHED)
    assert config == Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-6, rope_theta=1_000_000, max_position_embeddings=40960,
        tie_word_embeddings=True)  # fmt: skip


# As Qwen's model cards have them, in billions: (all parameters, those that are no embedding).
BILLIONS = {"0.6B": (0.6, 0.44), "1.7B": (1.7, 1.4), "4B": (4.0, 3.6), "8B": (8.2, 6.95), "14B": (14.8, 13.2),
            "32B": (32.8, 31.2), "Qwen2.5-0.5B": (0.49, 0.36), "Qwen2.5-1.5B": (1.54, 1.31),
            "Qwen2.5-3B": (3.09, 2.77), "Qwen2.5-7B": (7.61, 6.53), "Llama-3.2-1B": (1.23, 0.97),
            "Llama-3.2-3B": (3.21, 2.82)}  # fmt: skip


# Counted in the published files, a tied output layer, of which the two smallest store a copy, once.
NUMBERS = {"0.6B": 596_049_920, "1.7B": 1_720_574_976, "4B": 4_022_468_096, "8B": 8_190_735_360, "14B": 14_768_307_200,
           "32B": 32_762_123_264, "Qwen2.5-0.5B": 494_032_768, "Qwen2.5-1.5B": 1_543_714_304,
           "Qwen2.5-3B": 3_085_938_688, "Qwen2.5-7B": 7_615_616_512, "Llama-3.2-1B": 1_235_814_400,
           "Llama-3.2-3B": 3_212_749_824}  # fmt: skip


def test_the_smallest_published_model_by_its_name():
    assert Qwen3Config.from_name("0.6B") == Qwen3Config.from_name("Qwen3-0.6B") == Qwen3Config.from_dict(PUBLISHED)


@pytest.mark.parametrize("name", BILLIONS)
def test_published_models_have_the_parameters_that_their_cards_say(name):
    config = Qwen3Config.from_name(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.to_dict()))
    total = sum(parameter.numel() for parameter in model.parameters())
    assert count_total_parameters(config) == total == NUMBERS[name]
    embeddings = {each.weight for each in (model.get_input_embeddings(), model.get_output_embeddings())}
    rest = total - sum(weight.numel() for weight in embeddings)
    assert (total / 1e9, rest / 1e9) == pytest.approx(BILLIONS[name], abs=0.06)


@pytest.mark.parametrize(
    ("name", "near"),
    [("Qwen3-0.5B", "'0.6B'"), ("8b", "'8B'"), ("1.5B", "'1.7B'"), (14, "'14B'"),
     ("qwen2.5-0.5b-instruct", "'Qwen2.5-0.5B'"), ("Llama3.2-1B", "'Llama-3.2-1B'")],
)  # fmt: skip
def test_an_unknown_name_is_told_its_neighbour(name, near):
    with pytest.raises(ValueError, match=f"Did you mean {near}.*'0.6B', '1.7B', '4B', '8B', '14B', '32B'"):
        Qwen3Config.from_name(name)


def test_a_name_like_no_other_is_told_the_list():
    with pytest.raises(ValueError, match=r"no published dense model 'tiny'\. There are '0.6B'.*'Llama-3.2-3B'"):
        Qwen3Config.from_name("tiny")


# The config.json of Qwen/Qwen2.5-0.5B and of Llama-3.2-1B, as published: the layout of transformers 4.
QWEN2 = json.loads("""{
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
  "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
  "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
  "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936}""")
LLAMA = json.loads("""{
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
  "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true,
  "vocab_size": 128256}""")
FIELDS = [field.name for field in dataclasses.fields(Qwen3Config) if field.name not in ("rope_theta", "rope_scaling")]


@pytest.mark.parametrize(("name", "content"), [("Qwen2.5-0.5B", QWEN2), ("Llama-3.2-1B", LLAMA)])
def test_a_relative_as_published_and_as_transformers_5_writes_it(name, content):
    config = Qwen3Config.from_name(name)
    assert Qwen3Config.from_dict(content) == config
    ours = config.to_dict()
    assert ours.pop("rope_scaling", None) == content.get("rope_scaling")
    assert all(ours[name] == content[name] for name in ours.keys() & content)
    theirs = AutoConfig.for_model(**config.to_dict())
    assert theirs.architectures == content["architectures"]
    for each in (theirs, AutoConfig.for_model(**copy.deepcopy(content))):  # it writes into what it gets
        assert Qwen3Config.from_dict(json.loads(json.dumps(each.to_dict()))) == config


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_relatives_config_lacks_is_what_transformers_takes(family):
    sizes = SMALL | dict(rope_theta=10_000.0) if family == "qwen3" else SMALL
    given = {name: value for name, value in sizes.items() if family == "qwen3" or name != "head_dim"}
    if family == "llama":
        del given["num_key_value_heads"]
    ours, theirs = Qwen3Config.from_dict(given | {"model_type": family}), AutoConfig.for_model(family, **given)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(theirs)
    assert {kit_name(name): tuple(each.shape) for name, each in model.named_parameters()} == param_shapes(ours)
    assert theirs.rope_parameters["rope_theta"] == ours.rope_theta
    for name in FIELDS:
        if name != "head_dim":
            assert getattr(ours, name) == getattr(theirs, name), name


def test_the_layout_of_transformers_5():
    content = json.loads(json.dumps(HFConfig(**SMALL, rope_theta=12345.0, max_position_embeddings=99).to_dict()))
    assert "rope_theta" not in content
    assert content["rope_parameters"]["rope_theta"] == 12345.0
    config = Qwen3Config.from_dict(content)
    assert config == Qwen3Config(**SMALL, rope_theta=12345.0, max_position_embeddings=99)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_reads_back_here_and_in_transformers(shape):
    config = Qwen3Config(**SHAPES[shape], rope_theta=500.0, rms_norm_eps=1e-5, max_position_embeddings=64)
    content = json.loads(json.dumps(config.to_dict()))
    assert Qwen3Config.from_dict(content) == config
    theirs = HFConfig.from_dict(content)
    for name, value in SHAPES[shape].items():
        assert getattr(theirs, name) == value
    assert theirs.rope_parameters["rope_theta"] == 500.0
    assert (theirs.rms_norm_eps, theirs.max_position_embeddings) == (1e-5, 64)


@every(
    ("change", "message"),
    [
        ({"model_type": "mistral"}, "describes a 'mistral' model; expected model_type 'qwen3', 'qwen2' or 'llama': "),
        ({"model_type": "smollm3"}, "describes a 'smollm3' model; expected model_type"),
        ({"model_type": ["llama"]}, r"describes a \['llama'\] model; expected model_type"),
        ({"model_type": None}, "describes a None model; expected model_type"),
        ({"model_type": "qwen3_moe"}, "'qwen3_moe'"),
        ({"use_sliding_window": True}, "use_sliding_window true; only full attention is supported"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "scaled rotary embeddings of type 'linear'; expected"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "of type 'longrope'; .* or 'llama3'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "asks for 'llama3' .* without a low_freq_factor"),
        ({"rope_scaling": LLAMA3 | {"beta_fast": 2.0}}, "has 'beta_fast' among the settings of its 'llama3' rotary"),
        ({"rope_scaling": LLAMA3 | {"factor": 0.5}}, "Llama 3's factor is 0.5; expected at least 1"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "high_freq_factor is 4.0; expected more than low_"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 0}}, "Llama 3's low_freq_factor is 0; expected a pos"),
        ({"rope_scaling": {"type": ["yarn"]}}, r"embeddings of type \['yarn'\]"),
        ({"rope_scaling": "linear"}, "'linear' for its rotary embeddings; expected an object"),
        ({"rope_scaling": {"factor": 4.0}}, "has 'factor' among the settings of its 'default' rotary embeddings"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "has 'full_attention' among the settings"),
        ({"rope_scaling": YARN | {"partial_rotary_factor": 0.5}}, "has 'partial_rotary_factor' among .* 'yarn'"),
        ({"rope_scaling": {"type": "yarn"}}, "asks for 'yarn' rotary embeddings without a factor"),
        ({"rope_scaling": {"type": "yarn", "factor": None}}, "asks for 'yarn' rotary embeddings without a factor"),
        ({"rope_scaling": YARN | {"factor": 0.5}}, "YaRN's factor is 0.5; expected at least 1"),
        ({"rope_scaling": YARN | {"factor": "4"}}, "YaRN's factor is '4'; expected a positive number"),
        ({"rope_scaling": YARN | {"factor": math.nan}}, "YaRN's factor is nan"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 1.5}}, "is 1.5; expected a whole number"),
        ({"rope_scaling": YARN | {"attention_factor": -1.0}}, "attention_factor is -1.0; expected a positive number"),
        ({"rope_scaling": YARN | {"attention_factor": 1e38}}, r"attention_factor is 1e\+38; expected at most 1000"),
        ({"rope_scaling": YARN | {"beta_fast": 1}}, "beta_fast is 1; expected more than beta_slow, which is 1.0"),
        ({"rope_scaling": YARN | {"truncate": 1}}, "truncate is 1; expected true or false"),
        ({"rope_scaling": YARN, "rope_theta": 1.0}, "rope_theta is 1.0; YaRN expects more than 1"),
        ({"attention_bias": True}, "attention_bias true; only qwen2 has biases"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias true; only qwen2 has biases"),
        ({"model_type": "llama", "mlp_bias": True}, "mlp_bias true; no family that is supported has biases in its MLP"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window true; only full"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types .*; expected 'full_attention'"),
        ({"layer_types": 3}, "layer_types 3; expected 'full_attention' for every"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5; expected rotary embeddings of whole heads"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'; expected 'silu', which Qwen3, Qwen2 and Llama have"),
        ({"model_type": "qwen2", "head_dim": None, "num_attention_heads": 3}, r"lacks head_dim, and hidden_size"),
        ({"model_type": "qwen2", "head_dim": None, "num_attention_heads": "16"}, "num_attention_heads is '16'; "),
        ({"quantization": {"bits": 4, "mode": "mxfp4"}}, "quantized in mode 'mxfp4'; expected 'affine'"),
        ({"quantization": {"bits": 4, "lm_head": {"bits": 8, "mode": "mxfp8"}}}, "quantized in mode 'mxfp8'"),
        ({"quantization": {"group_size": 64}}, "quantized with bits None; expected one of 2, 3, 4, 5, 6, 8"),
        ({"quantization": {"bits": 7, "group_size": 64}}, "quantized with bits 7; expected one of"),
        ({"quantization": {"bits": "4", "group_size": 64}}, "quantized with bits '4'; expected one of"),
        ({"quantization": {"bits": [4], "group_size": 64}}, r"quantized with bits \[4\]; expected one of"),
        ({"quantization": {"bits": 4}}, "quantized with group_size None; expected one of 32, 64, 128"),
        ({"quantization": {"bits": 4, "group_size": 0}}, "quantized with group_size 0; expected one of"),
        ({"quantization": {"bits": 4, "group_size": 64, "x": {"bits": 8, "group_size": 0}}}, "with group_size 0; "),
        ({"quantization_config": {"bits": 4, "group_size": -64}}, "quantized with group_size -64; expected one of"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized by 'fp8'; expected mlx-lm's own"),
        ({"head_dim": 127}, r"head_dim is 127; .* must be even"),
        ({"num_key_value_heads": 3}, r"num_attention_heads \(16\) must be a multiple of num_key_value_heads \(3\)"),
        ({"hidden_size": 0}, "hidden_size is 0; expected a positive number"),
        ({"hidden_size": -1024}, "hidden_size is -1024; expected a positive number"),
        ({"vocab_size": "151936"}, "vocab_size is '151936'; expected a positive number"),
        ({"vocab_size": 151936.5}, "vocab_size is 151936.5; expected a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True; expected a positive number"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps is nan; expected a positive number"),
        ({"rope_theta": math.inf}, "rope_theta is inf; expected a positive number"),
        ({"intermediate_size": [3072]}, r"intermediate_size is \[3072\]; expected a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; expected True or False"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000; expected at most 1000"),
        ({"hidden_size": 2**31}, r"hidden_size is 2147483648; expected a number below 2\^31"),
        ({"vocab_size": 10**400}, r"vocab_size is an integer of more than 40 digits; expected a number below 2\^31"),
        ({"rope_theta": 10**400}, "rope_theta is an integer of more than 40 digits; expected a number from 1.2e-38"),
        ({"rms_norm_eps": 1e-300}, "rms_norm_eps is 1e-300; expected a number from 1.2e-38 to 3.4e38"),
        ({"rope_theta": 1e39}, r"rope_theta is 1e\+39; expected a number from"),
        ({"rope_theta": [1e6] * 1000}, r"rope_theta is \[1000000.0.{0,80} \.\.\.; expected a positive number"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Qwen3Config.from_dict(PUBLISHED | change)


@pytest.mark.parametrize("name", [*SMALL, "rope_theta"])
def test_a_missing_number_is_not_guessed(name):
    """transformers would take its own default of another size, and mlx-lm refuses."""
    content = {key: value for key, value in PUBLISHED.items() if key != name}
    with pytest.raises(ValueError, match=rf"config.json lacks {name}\."):
        Qwen3Config.from_dict(content)


@pytest.mark.parametrize(
    ("family", "last"),
    [("qwen3", "num_key_value_heads, head_dim, rope_theta"), ("qwen2", "num_key_value_heads"),
     ("llama", "num_attention_heads")],
)  # fmt: skip
def test_several_missing_numbers_are_named_together(family, last):
    with pytest.raises(ValueError, match=rf"lacks vocab_size, hidden_size, .*, {last}\."):
        Qwen3Config.from_dict({"model_type": family})
