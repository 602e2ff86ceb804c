"""Runs that train adapters: on every path the same gradient, resumed and rewound bit by bit, and what they refuse.

That the updates are those of PEFT and TRL's trainer is tested in tests/backends/test_learners.py.
"""

import gc
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mlx_grpo_kit.generation import SamplingConfig, generate, output_logps
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.recipe import default_args
from mlx_grpo_kit.qwen3 import init_params, load_adapters, load_pretrained, merge
from mlx_grpo_kit.runtime import mx
from tests.grpo.compare import bits, records

SETTINGS = dict(lora_r=4, num_iterations=2, gradient_accumulation_steps=2, beta=0.1, temperature=1.1)


@pytest.fixture
def base(make_trainer):
    return init_params(make_trainer.config, seed=1, scale=0.3)


def quantized(params):
    """As mlx-lm does it, but in groups of 32 numbers of a matrix whose rows have so many."""
    found = {}
    for name, value in params.items():
        if value.ndim == 2:
            stem = name.removesuffix(".weight")
            found[name], found[f"{stem}.scales"], found[f"{stem}.biases"] = mx.quantize(value, 32, 8)
        else:
            found[name] = value
    return found


def test_only_adapters_are_trained(make_trainer, base):
    trainer = make_trainer(params=base, lora_r=4)
    before, lora = bits(base), bits(trainer.policy.trained)
    rewards = [step.metrics["reward"] for step in trainer.train(12)]
    assert bits(trainer.policy.frozen).keys() == before.keys()
    np.testing.assert_equal(bits(trainer.policy.frozen), before)
    assert all(name.endswith(("lora_a", "lora_b")) for name in trainer.policy.trained)
    assert all((value != lora[name]).any() for name, value in bits(trainer.policy.trained).items())
    assert trainer.optimizer.state.keys() - {"step", "learning_rate"} == trainer.policy.trained.keys()
    assert np.mean(rewards[-4:]) != np.mean(rewards[:4])


@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
@pytest.mark.parametrize("path", ["layer by layer", "chunks of the vocabulary"])
def test_every_path_has_the_same_gradient(make_trainer, base, monkeypatch, path, entropy_coef):
    """The plain one is PEFT's and TRL's."""
    settings = dict(SETTINGS, entropy_coef=entropy_coef, learning_rate=1e-2)
    plain = [step.metrics for step in make_trainer(params=base, **settings).train(3)]
    if path == "chunks of the vocabulary":
        monkeypatch.setattr(output_logps, "WHOLE", 0)
        monkeypatch.setattr(output_logps, "CHUNK", 1)
    else:
        settings["gradient_checkpointing"] = True
    found = [step.metrics for step in make_trainer(params=base, **settings).train(3)]
    for ours, theirs in zip(found, plain, strict=True):
        for metric in ("loss", "grad_norm", "kl", "entropy", "reward"):
            assert ours[metric] == pytest.approx(theirs[metric], rel=1e-3, abs=1e-6), metric
        assert theirs["grad_norm"] > 0


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_micro_batches_add_up(make_trainer, base, gradient_checkpointing):
    runs = []
    for size in (16, 8, 2):
        settings = dict(per_device_train_batch_size=size, gradient_accumulation_steps=16 // size)
        trainer = make_trainer(params=base, lora_r=4, gradient_checkpointing=gradient_checkpointing, **settings)
        runs.append([step.metrics["grad_norm"] for step in trainer.train(3)])
    assert runs[1] == pytest.approx(runs[0], rel=1e-4)
    assert runs[2] == pytest.approx(runs[0], rel=1e-4)
    assert min(runs[0]) > 0


def test_bfloat16_computes_beside_float32_adapters(make_trainer, base):
    exact, rough = (make_trainer(params=base, lora_r=4, bf16=bf16, learning_rate=1e-2) for bf16 in (False, True))
    assert {value.dtype for value in rough.policy.frozen.values()} == {mx.bfloat16}
    assert {value.dtype for value in rough.policy.trained.values()} == {mx.float32}
    ours, theirs = (next(trainer.train(1)).metrics["grad_norm"] for trainer in (rough, exact))
    assert ours == pytest.approx(theirs, rel=0.5)


def test_the_reference_is_the_base_and_no_copy(make_trainer, base):
    mx.eval(base)
    gc.collect()  # else what an earlier test has left may go between the two looks
    mx.clear_cache()
    before = mx.get_active_memory()
    trainer = make_trainer(params=base, **SETTINGS)
    assert trainer.policy.reference is trainer.policy.frozen
    adapters, frozen = (sum(value.nbytes for value in each.values()) for each in (trainer.policy.trained, base))
    assert mx.get_active_memory() - before < 3 * adapters + frozen / 2, "moments, and no copy of the base"
    steps = list(trainer.train(4))
    assert steps[-1].metrics["kl"] > 1e-5


def test_a_resumed_run_goes_on_bit_by_bit(make_trainer, base, tmp_path):
    trainer = make_trainer(params=base, **SETTINGS)
    next(trainer.train(4))
    trainer.save_checkpoint(tmp_path / "c")
    resumed = GRPOTrainer.resume(tmp_path / "c", make_trainer.task(), base=(make_trainer.config, base))
    assert records(resumed.train(4)) == records(trainer.train(4))
    np.testing.assert_equal(bits(resumed.policy.trained), bits(trainer.policy.trained))
    size = sum(file.stat().st_size for file in (tmp_path / "c").rglob("*.safetensors"))
    assert size < 8 * sum(value.nbytes for value in trainer.policy.trained.values()), "no copy of the base"


def test_a_rewound_run_repeats_bit_by_bit(make_trainer, base):
    trainer = make_trainer(params=base, **SETTINGS, gradient_checkpointing=True)
    next(trainer.train(3))
    snapshot = trainer.snapshot()
    assert snapshot.nbytes < 4 * sum(value.nbytes for value in trainer.policy.trained.values())
    first = records(trainer.train(3))
    trainer.rewind(snapshot)
    assert records(trainer.train(3)) == first


def test_the_wrong_base_is_refused(make_trainer, base, tmp_path):
    config, task = make_trainer.config, make_trainer.task()
    make_trainer(params=base, lora_r=4).save_checkpoint(tmp_path / "c")
    make_trainer(params=base).save_checkpoint(tmp_path / "full")
    with pytest.raises(ValueError, match=r"contains adapters without their base model.* base=load_pretrained\(MODEL\)"):
        GRPOTrainer.resume(tmp_path / "c", task)
    with pytest.raises(ValueError, match="trained with another base model: its parameters differ"):
        GRPOTrainer.resume(tmp_path / "c", task, base=(config, init_params(config, seed=2)))
    with pytest.raises(ValueError, match="contains adapters for a different base model than the one given"):
        GRPOTrainer.resume(tmp_path / "c", task, base=(replace(config, num_hidden_layers=2), base))
    with pytest.raises(ValueError, match="contains a whole policy and needs no base"):
        GRPOTrainer.resume(tmp_path / "full", task, base=(config, base))


def test_what_is_saved_generates_what_the_policy_generates(make_trainer, base, tmp_path):
    trainer = make_trainer(params=base, lora_r=4, learning_rate=3e-2)
    list(trainer.train(4))
    trainer.save_pretrained(tmp_path / "a")
    adapters = load_adapters(tmp_path / "a", trainer.config)
    greedy = SamplingConfig(6, temperature=0)
    prompts = [trainer.tokenizer.encode(text) for text in ("1+1=", "77")]
    texts = [
        generate(trainer.config, params, prompts, sampling=greedy).completions
        for params in (trainer.params, merge(base, adapters.lora, adapters.scale), base)
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_a_quantized_model_is_trained_beside(make_trainer):
    """Its gradient is that beside the same numbers, unpacked."""
    from mlx_grpo_kit.qwen3 import dequantize

    config = replace(make_trainer.config, hidden_size=32, intermediate_size=64, num_attention_heads=4)
    packed = quantized(init_params(config, seed=1, scale=0.3))
    given = make_trainer()
    found = []
    for params in (packed, dequantize(config, packed)):
        for gradient_checkpointing in (False, True):
            args = GRPOConfig(
                lora_r=4, per_device_train_batch_size=32, learning_rate=1e-2,
                gradient_checkpointing=gradient_checkpointing)  # fmt: skip
            trainer = GRPOTrainer(config, params, given.tokenizer, given.task, args)
            found.append([step.metrics for step in trainer.train(3)])
    for metrics in found[1:]:
        for ours, theirs in zip(metrics, found[0], strict=True):
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
            assert ours["reward"] == theirs["reward"]
    assert found[0][0]["grad_norm"] > 0


def test_no_gradient_of_the_models_size(make_trainer):
    """A large embedding, tied: learning holds less than half of it beyond the model itself."""
    config = replace(make_trainer.config, vocab_size=100_000, hidden_size=256)
    given, params = make_trainer(), init_params(config)
    size = sum(value.nbytes for value in params.values())
    args = GRPOConfig(lora_r=4, num_generations=8, max_completion_length=40)
    trainer = GRPOTrainer(config, params, given.tokenizer, given.task, args)
    peaks, learn = [], trainer.parts.learner.gradient

    def watched(*arguments):
        gc.collect()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        found = learn(*arguments)
        peaks.append(mx.get_peak_memory() - before)
        return found

    trainer.tokenizer = SimpleNamespace(
        vocab_size=64,
        eos_token_ids=[],
        decode=str,
        read=lambda ids, _: str(ids),
        encode_prompt=given.tokenizer.encode_prompt,
    )
    trainer.change(reward_funcs=[lambda problems, completions: range(len(completions))])
    trainer.parts.learner.gradient = watched
    next(trainer.train(1))
    assert 0 < peaks[0] < 0.6 * size, "full training holds more than one"


def test_settings():
    with pytest.raises(ValueError, match="lora_r is 0; expected a whole number of at least 1"):
        GRPOConfig(lora_r=0)
    with pytest.raises(ValueError, match="lora_alpha is 0; expected more than 0"):
        GRPOConfig(lora_alpha=0)
    for alpha in (1e300, 1e-300):
        words = f"lora_alpha / lora_r is {alpha / 8}; expected 1.2e-38 to 3e+38"
        with pytest.raises(ValueError, match=re.escape(words)):
            GRPOConfig(lora_r=8, lora_alpha=alpha)
    with pytest.raises(ValueError, match=r"no linear map 'q'"):
        GRPOConfig(lora_r=8, lora_target_modules=["q"])
    with pytest.raises(ValueError, match="sync_ref_model is set, which updates a second copy of the policy"):
        GRPOConfig(lora_r=8, sync_ref_model=True, beta=0.1)
    assert GRPOConfig(lora_r=8).lora_scale == 4
    targets = [GRPOConfig(lora_r=8, lora_target_modules=each(["q_proj"])) for each in (list, tuple)]
    assert targets[0] == targets[1]
    for name, value in (("lora_target_modules", ["q_proj"]), ("lora_alpha", 16)):
        with pytest.raises(ValueError, match=f"{name} is set without lora_r: all parameters would be trained"):
            GRPOConfig(**{name: value})


def test_adapters_get_ten_times_the_learning_rate():
    full, adapters = default_args("tiny"), default_args("tiny", lora_r=8)
    assert adapters == full | {"lora_r": 8, "learning_rate": 10 * full["learning_rate"]}


def test_the_shipped_model_learns(tmp_path):
    """An outside trial: rank 8, 32,768 numbers beside 303,872, took the task that ships from 0.50 to 0.90."""
    from mlx_grpo_kit.assets import TINY
    from mlx_grpo_kit.qwen3 import load_tokenizer
    from mlx_grpo_kit.tasks import get_task

    config, params = load_pretrained(TINY)
    args = GRPOConfig(**default_args("tiny", lora_r=8))
    trainer = GRPOTrainer(config, params, load_tokenizer(TINY), get_task("addition"), args)
    before = trainer.evaluate(512)["eval/accuracy"]
    for _ in trainer.train(30):
        pass
    assert trainer.evaluate(512)["eval/accuracy"] > before + 0.08
