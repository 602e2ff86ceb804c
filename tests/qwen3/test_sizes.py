"""Parameters, FLOPs and bytes by formula, against transformers' model, torch's counter and MLX's own books."""

import gc
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from mlx_grpo_kit.qwen3 import KVCache, Qwen3Config, init_params, qwen3_forward
from mlx_grpo_kit.qwen3.sizes import forward_flops, inner_values, memory, parameters_by_part, part_of, training_flops
from mlx_grpo_kit.runtime import mx

SMALL = dict(vocab_size=300, hidden_size=96, intermediate_size=250, num_hidden_layers=3, num_attention_heads=6,
             num_key_value_heads=2, head_dim=20)  # fmt: skip
CONFIGS = {
    "small": Qwen3Config(**SMALL),
    "tied": Qwen3Config(**SMALL, tie_word_embeddings=True),
    "one group, one layer": Qwen3Config(**SMALL | dict(num_key_value_heads=1, num_hidden_layers=1)),
    "no grouping": Qwen3Config(**SMALL | dict(num_key_value_heads=6, head_dim=16)),
    "wide mlp": Qwen3Config(**SMALL | dict(intermediate_size=1024)),
    "many words": Qwen3Config(**SMALL | dict(vocab_size=5000)),
    "qwen2": Qwen3Config(**SMALL, model_type="qwen2"),
    "llama": Qwen3Config(**SMALL, model_type="llama"),
    **{name: Qwen3Config.from_name(name) for name in ("0.6B", "8B", "Qwen2.5-7B", "Llama-3.2-1B")},
}
TRIED = [name for name in CONFIGS if not name.endswith("B")]


def model_of(config):
    theirs = AutoConfig.for_model(**config.to_dict(), attn_implementation="eager")
    return AutoModelForCausalLM.from_config(theirs)


def on_meta(config):
    """transformers' model without numbers."""
    with torch.device("meta"):
        return model_of(config)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_by_part_are_those_of_transformers(name):
    model = on_meta(CONFIGS[name])
    parts = parameters_by_part(CONFIGS[name])

    def count(*kinds):
        found = {p for n, module in model.named_modules() if n.endswith(kinds) for p in module.parameters()}
        return sum(parameter.numel() for parameter in found)

    assert parts["embedding"] == count("embed_tokens")
    assert parts["mlp"] == count("mlp")
    assert parts["norms"] == count("norm")
    assert parts["attention"] == count("q_proj", "k_proj", "v_proj", "o_proj")
    assert sum(parts.values()) == sum(parameter.numel() for parameter in model.parameters())
    assert (parts["output layer"] == 0) == CONFIGS[name].tie_word_embeddings


def test_each_name_has_a_part():
    assert part_of("embedding.weight") == "embedding"
    assert part_of("layers.0.self_attn.q_norm.weight") == "norms"
    assert part_of("layers.11.mlp.up_proj.weight") == "mlp"


def counted(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", CONFIGS)
def test_flops_of_a_forward_pass_are_those_that_torch_counts(name):
    model, config = on_meta(CONFIGS[name]), CONFIGS[name]
    ids = torch.zeros(3, 17, dtype=torch.long, device="meta")
    mask = torch.zeros(1, 1, 17, 17, device="meta")  # made from numbers otherwise
    flops = forward_flops(config, 3, 17)
    assert sum(flops.values()) == counted(lambda: model(ids, attention_mask=mask, use_cache=False))
    layer = model.model.layers[0].mlp
    x = torch.zeros(3, 17, config.hidden_size, device="meta")
    assert flops["mlp"] == config.num_hidden_layers * counted(lambda: layer(x))


def test_flops_of_one_more_token_behind_a_cache():
    config = CONFIGS["small"]
    model = model_of(config).eval()
    ids = torch.zeros(2, 12, dtype=torch.long)
    past = model(ids[:, :11], use_cache=True).past_key_values
    step = counted(lambda: model(ids[:, 11:], past_key_values=past))
    assert sum(forward_flops(config, 2, 1, cached=11).values()) == step


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", TRIED)
def test_flops_of_training_are_those_that_torch_counts(name, checkpointing):
    config = CONFIGS[name]
    model = model_of(config).train()
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    ids = torch.zeros(2, 9, dtype=torch.long)
    total = counted(lambda: model(ids, use_cache=False).logits.sum().backward())
    assert training_flops(config, 2, 9, gradient_checkpointing=checkpointing) == total


@pytest.mark.parametrize("name", TRIED)
def test_inner_values_are_what_a_watch_sees(name):
    config, record = CONFIGS[name], {}
    qwen3_forward(config, init_params(config), mx.zeros((2, 7), mx.int32), watch=record.setdefault)
    inner = inner_values(config, 2, 7)
    sizes = {name: math.prod(value.shape) for name, value in record.items()}
    assert inner["a layer"] == sum(size for name, size in sizes.items() if name.startswith("layers.0"))
    assert inner["outside"] == sum(size for name, size in sizes.items() if not name.startswith("layers."))


def bytes_of(make):
    """What `make` leaves in MLX's active memory, and the most that it took on the way."""
    gc.collect()
    mx.clear_cache()  # an array may be given a buffer up to twice its size that another test has left
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    made = make()
    mx.eval(made)
    return mx.get_active_memory() - before, mx.get_peak_memory() - before, made


@pytest.mark.parametrize("name", TRIED)
def test_bytes_are_those_that_mlx_counts(name):
    config, batch, tokens = CONFIGS[name], 4, 128
    said = memory(config, batch, tokens)
    held, _, params = bytes_of(lambda: init_params(config))
    assert held == pytest.approx(said["parameters"], rel=0.05)  # small arrays take a little more than their numbers

    ids = mx.zeros((batch, tokens), mx.int32)
    cache = KVCache(config.num_hidden_layers)

    def read():
        qwen3_forward(config, params, ids, cache=cache)
        return cache.keys + cache.values

    held, *_ = bytes_of(read)
    assert held == pytest.approx(said["KV cache"], rel=0.03, abs=8192)  # two pages, where all is small

    for purpose, kept in (("forward pass", "layers.0"), ("kept for backward", "layers.")):  # and all outside of layers

        def keep(kept=kept):
            record = {}

            def watch(name, value):
                if name.startswith(kept) or not name.startswith("layers."):
                    record[name] = value
                return value

            qwen3_forward(config, params, ids, watch=watch)
            return record

        held, *_ = bytes_of(keep)
        assert held == pytest.approx(said[purpose], rel=0.01)  # an array may take a little more than its numbers

    # The least that a pass takes depends on how far MLX's threads get ahead of each other, and on the machine's load.
    if mx.default_device() == mx.cpu:  # a GPU's fused attention keeps no scores
        assert bytes_of(lambda: qwen3_forward(config, params, ids))[1] < 2 * said["forward pass"]


def test_half_the_digits_take_half_the_bytes():
    config = CONFIGS["0.6B"]
    whole, half = memory(config, 2, 100), memory(config, 2, 100, mx.bfloat16)
    assert {name: 2 * size for name, size in half.items()} == whole
    # Known of this model: 28 layers x 8 heads x 128 numbers, keys and values, in bfloat16.
    assert memory(config, 1, 1, mx.bfloat16)["KV cache"] == 114_688
