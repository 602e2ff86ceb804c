"""The estimate of memory against what MLX measures, over shapes and settings."""

import gc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, estimate_memory
from mlx_grpo_kit.grpo.memory import in_bytes, machine_memory
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Problem

PROMPT = 8
BASE = Qwen3Config(
    vocab_size=512, hidden_size=96, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, tie_word_embeddings=True)  # fmt: skip
LARGE_VOCABULARY, DEEP = replace(BASE, vocab_size=60_000), replace(BASE, num_hidden_layers=8)
WIDE = replace(BASE, intermediate_size=1024)
MANY_HEADS = replace(BASE, num_attention_heads=16, num_key_value_heads=4, num_hidden_layers=4)
LAYERS = dict(gradient_checkpointing=True)
QWEN2, LLAMA = replace(MANY_HEADS, model_type="qwen2"), replace(MANY_HEADS, model_type="llama")
# (model, tokens a completion has, settings)
RUNS = {
    "a large vocabulary": (LARGE_VOCABULARY, 16, {}),
    "a large vocabulary, layer by layer": (LARGE_VOCABULARY, 16, LAYERS),
    "a large vocabulary, adafactor": (LARGE_VOCABULARY, 16, dict(optim="adafactor")),
    "a large vocabulary, adafactor, layer by layer": (LARGE_VOCABULARY, 16, dict(optim="adafactor", **LAYERS)),
    "an output layer of its own": (replace(LARGE_VOCABULARY, tie_word_embeddings=False), 16, dict(**LAYERS)),
    "deep": (DEEP, 16, dict(per_device_train_batch_size=32)),
    "deep, layer by layer": (DEEP, 16, dict(per_device_train_batch_size=32, **LAYERS)),
    "deep, accumulated": (DEEP, 24, dict(gradient_accumulation_steps=3)),
    "wide": (WIDE, 16, dict(per_device_train_batch_size=24, optim="adafactor")),
    "wide, KL": (WIDE, 16, dict(per_device_train_batch_size=16, beta=0.1, **LAYERS)),
    "many heads, sampled by eight": (MANY_HEADS, 24, dict(per_device_train_batch_size=16, completion_batch_size=8)),
    "many heads, long": (MANY_HEADS, 150, {}),
    "many heads, long, layer by layer": (MANY_HEADS, 150, dict(**LAYERS)),
    "qwen2, long": (QWEN2, 64, dict(per_device_train_batch_size=16)),
    "qwen2, layer by layer": (QWEN2, 64, dict(per_device_train_batch_size=16, **LAYERS)),
    "llama, long": (LLAMA, 64, dict(per_device_train_batch_size=16)),
    "llama, layer by layer": (LLAMA, 64, dict(per_device_train_batch_size=16, **LAYERS)),
    "qwen2, adapters": (QWEN2, 24, dict(lora_r=8, per_device_train_batch_size=16)),
    "llama, adapters": (LLAMA, 24, dict(lora_r=8, per_device_train_batch_size=16)),
    "adapters, long, layer by layer": (BASE, 150, dict(lora_r=8, **LAYERS)),
    "two updates": (MANY_HEADS, 24, dict(num_iterations=2, **LAYERS)),
    "bfloat16": (DEEP, 12, dict(bf16=True, optim="adafactor", **LAYERS)),
    "adapters, a large vocabulary": (LARGE_VOCABULARY, 16, dict(lora_r=8)),
    "adapters, a large vocabulary, layer by layer": (LARGE_VOCABULARY, 16, dict(lora_r=8, **LAYERS)),
    "adapters, deep": (DEEP, 16, dict(lora_r=8, per_device_train_batch_size=32)),
    "adapters, deep, layer by layer, KL": (
        DEEP,
        16,
        dict(lora_r=8, beta=0.1, per_device_train_batch_size=32, **LAYERS),
    ),
    "adapters, wide": (WIDE, 16, dict(lora_r=8, per_device_train_batch_size=24)),
    "adapters, many heads": (MANY_HEADS, 24, dict(lora_r=8, per_device_train_batch_size=16, completion_batch_size=8)),
}
QUANTIZED = {"bits": 4, "group_size": 32}
BESIDE_PACKED = ["adapters, a large vocabulary", "adapters, deep", "adapters, wide", "adapters, many heads",
                 "adapters, long, layer by layer"]  # fmt: skip


class Task:
    """Completions of as many tokens as may be, with rewards that differ."""

    name = "any"

    def __init__(self, max_completion_length):
        self.max_completion_length = max_completion_length
        self.reward_funcs = [self.reward]

    def reward(self, problems, completions):
        return [float(place % 3) for place in range(len(completions))]

    def sample(self, rng, n):
        return self.held_out(n)

    def held_out(self, n):
        return [Problem(str(number), "") for number in range(n)]

    def is_correct(self, problem, completion):
        return False


def measured(config, length, settings, quantization):
    """The most that MLX holds in a step, beyond what it held before."""
    gc.collect()
    before = mx.get_active_memory()
    tokenizer = SimpleNamespace(
        vocab_size=64, eos_token_ids=[], encode_prompt=lambda text: [1 + int(text)] * PROMPT, decode=str,
        read=lambda *ids: "",
    )  # fmt: skip
    args = GRPOConfig(**settings)
    params = init_params(config, scale=0.05)
    for name in [name for name, value in params.items() if quantization and value.ndim == 2]:
        stem = name.removesuffix(".weight")
        params[name], params[f"{stem}.scales"], params[f"{stem}.biases"] = mx.quantize(params[name], **quantization)
    mx.eval(params)
    trainer = GRPOTrainer(config, params, tokenizer, Task(length), args)
    del params
    gc.collect()
    mx.reset_peak_memory()
    if trainer.policy.reference and trainer.policy.frozen is None:  # they are the policy's own until its first update
        reference = {name: value + 0 for name, value in trainer.policy.reference.items()}
        trainer.policy = replace(trainer.policy, reference=reference)
        mx.eval(reference)
    assert next(trainer.train(1)).metrics["grad_norm"] > 0
    return args, mx.get_peak_memory() - before


@pytest.mark.parametrize(
    ("name", "quantization"), [(name, None) for name in RUNS] + [(name, QUANTIZED) for name in BESIDE_PACKED]
)
def test_it_is_what_mlx_measures(name, quantization):
    config, length, settings = RUNS[name]
    args, peak = measured(config, length, settings, quantization)
    estimated = estimate_memory(config, args, PROMPT, length, quantization=quantization)
    for _ in range(4):  # what other tests' threads free meanwhile lowers the peak
        if peak < estimated["total"] / 1.15:
            peak = max(peak, measured(config, length, settings, quantization)[1])
    assert estimated["total"] == pytest.approx(peak, rel=0.15), estimated


def test_adapters_of_qwen3():
    """Rank 8 beside every linear map: the model itself, and little more; 4 bits and a half for each number of it."""
    config = Qwen3Config.from_name("0.6B")
    args = GRPOConfig(lora_r=8, gradient_checkpointing=True, beta=0.1)
    parts = estimate_memory(config, args, 12, 64)
    assert parts["gradients"] == parts["optimizer"] / 2 == 4 * 5_046_272
    assert parts["parameters"] == 4 * (596_049_920 + 5_046_272)
    assert parts["reference"] == 0
    assert 2.4e9 < parts["total"] < 3e9
    packed = estimate_memory(config, args, 12, 64, quantization={"bits": 4, "group_size": 64})
    norms = 596_049_920 - 595_984_384
    assert packed["parameters"] == 595_984_384 * 5 // 8 + 4 * (norms + 5_046_272)


def test_parts_of_qwen3():
    """AdamW in float32 is 4 numbers a parameter, whatever else is there (3 throughout, and the gradients)."""
    config = Qwen3Config.from_name("0.6B")
    args = GRPOConfig(gradient_checkpointing=True)
    parts = estimate_memory(config, args, 12, 64)
    assert parts["parameters"] == parts["gradients"] == parts["optimizer"] / 2 == 4 * 596_049_920
    assert 9.54e9 < parts["total"] < 10.5e9
    small = estimate_memory(config, replace(args, optim="adafactor"), 12, 64)
    assert small["optimizer"] < 0.002 * parts["optimizer"]
    assert small["total"] < 6e9
    assert parts["KV cache"] == 8 * 76 * 2 * 28 * 8 * 128 * 4


def test_what_costs_more_is_estimated_to_cost_more():
    """Over random settings: each of these changes can only add, or only take away."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        config = replace(
            BASE,
            vocab_size=int(rng.integers(100, 200_000)),
            num_hidden_layers=int(rng.integers(8, 40)),
            hidden_size=int(rng.integers(1, 9)) * 128,
            tie_word_embeddings=bool(rng.integers(2)),
        )
        args = GRPOConfig(
            per_device_train_batch_size=8 * int(rng.integers(1, 9)),
            gradient_accumulation_steps=int(rng.integers(1, 4)),
            gradient_checkpointing=bool(rng.integers(2)),
            optim=str(rng.choice(["adamw", "adafactor"])),
        )
        length = int(rng.integers(1, 400))
        total = estimate_memory(config, args, 16, length)["total"]
        parts = estimate_memory(config, args, 16, length)
        assert max(parts.values()) == total < sum(parts.values())

        def other(**changes):
            return estimate_memory(config, replace(args, **changes), 16, length)["total"]  # noqa: B023

        assert other(gradient_checkpointing=True) <= other(gradient_checkpointing=False)
        assert other(optim="adafactor") < other(optim="adamw")
        assert other(beta=0.1) == total + parts["parameters"]
        assert other(completion_batch_size=8) <= total
        assert other(gradient_accumulation_steps=4) >= other(gradient_accumulation_steps=1)


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 bytes"), (12, "12 bytes"), (4500, "4.5 kB"), (9_540_000_000, "9.5 GB"), (25e12, "25 TB")],
)
def test_bytes_in_words(number, words):
    assert in_bytes(number) == words


def test_the_machines_memory():
    psutil = pytest.importorskip("psutil")
    assert 0 < machine_memory() <= psutil.virtual_memory().total
