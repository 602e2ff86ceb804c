"""GRPOConfig: TRL's names, TRL's defaults but for what is said, and settings that cannot work."""

import ast
import dataclasses
import inspect
import itertools
import json
import math
import pickle
import re
from fractions import Fraction

import jax
import mlx.optimizers
import numpy as np
import pytest
import torch

from mlx_grpo_kit.generation import SamplingConfig
from mlx_grpo_kit.grpo import GRPOConfig, GRPOLossConfig, GRPOTrainer, config
from mlx_grpo_kit.grpo.recipe import TINY_ARGS
from mlx_grpo_kit.grpo.settings import rules_of
from mlx_grpo_kit.runtime import mx
from tests.every import every


def test_documented_defaults_are_those_in_use():
    text = rules_of(GRPOConfig)["learning_rate"].text
    assert text in " ".join(GRPOConfig.__doc__.split())
    assert "TRL's 1e-6" in text
    assert GRPOConfig().learning_rate == 1e-6
    assert float(re.search(r"`train` uses (\S+)\.$", text)[1]) == TINY_ARGS["learning_rate"]


def test_the_docstring_of_a_constant_follows_the_constant():
    body = ast.parse(inspect.getsource(config)).body
    after = {
        assigned.targets[0].id: ast.literal_eval(text.value) if is_text(text) else None
        for assigned, text in itertools.pairwise(body)
        if isinstance(assigned, ast.Assign)
    }
    assert "a resumed run may change" in after["MAY_CHANGE"]


def is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_every_name_is_trls():
    from trl import GRPOConfig as TRLConfig
    from trl import ModelConfig

    theirs = {field.name for config in (TRLConfig, ModelConfig) for field in dataclasses.fields(config)}
    others = {"completion_batch_size", "stop_strings"}  # mlx-lm's, transformers'
    others |= {"advantage_estimator", "dynamic_sampling_rounds", "soft_punish_cache"}  # OpenRLHF's, verl's, DAPO's
    others |= {
        f"importance_sampling_{name}" for name in ("correction", "clip_min", "clip_max")
    }  # TRL: vllm_importance...
    others |= {"on_reward_error", "backend", "gradient_statistics", "tool_timeout"}  # the kit's
    assert {field.name for field in dataclasses.fields(GRPOConfig)} - others <= theirs


def test_defaults_are_trls_but_for_these(trl):
    ours = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    different = {name: value for name, value in ours.items() if value != trl.defaults.get(name)}
    assert different == {
        "bf16": False,  # TRL: None, which means True; a CPU is slow in it
        "gradient_checkpointing": False,  # TRL: True; a small model has the memory
        "optim": "adamw",  # TRL: which of torch's AdamWs
        "lr_scheduler_type": "constant",  # TRL: linear; here max_steps belongs to a call of train()
        "max_completion_length": None,  # TRL: 512; here the task knows
        "use_bias_correction_kl": False,  # the plain k3 estimator
        "on_reward_error": "stop",  # what TRL does, without a name for it
        "gradient_statistics": False,  # TRL has none
        "backend": "mlx",  # TRL: torch
        "seed": 0,
        "top_k": None,  # TRL: 0, which means the same
        "advantage_estimator": "grpo",  # TRL: another trainer
        "dynamic_sampling_rounds": 0,  # TRL has none
        "soft_punish_cache": 0,  # TRL: a reward function
        "tool_timeout": 60.0,  # TRL waits for ever
        "importance_sampling_clip_max": 3.0,  # TRL: vllm_importance_sampling_clip_max, the same
        "lora_alpha": 32.0,  # TRL's ModelConfig: the same
    }


def test_what_it_hands_on():
    args = GRPOConfig(temperature=0.9, top_k=5, top_p=0.8, min_p=0.1, epsilon=0.1, epsilon_high=0.3, delta=2.0,
                      beta=0.04, loss_type="dr_grpo", importance_sampling_level="sequence", use_bias_correction_kl=True,
                      per_device_train_batch_size=4, gradient_accumulation_steps=6)  # fmt: skip
    assert args.sampling(7) == SamplingConfig(max_new_tokens=7, temperature=0.9, top_k=5, top_p=0.8, min_p=0.1)
    assert args.loss(7) == GRPOLossConfig(
        loss_type="dr_grpo", epsilon=0.1, epsilon_high=0.3, delta=2.0, beta=0.04, importance_sampling_level="sequence",
        max_completion_length=7, use_bias_correction_kl=True)  # fmt: skip
    assert args.generation_batch_size == 24
    args = GRPOConfig(entropy_coef=0.01, top_entropy_quantile=0.2)
    assert args.loss(7) == GRPOLossConfig(max_completion_length=7, entropy_coef=0.01, top_entropy_quantile=0.2)
    assert GRPOConfig(reward_weights=[1, 0.5]) == GRPOConfig(reward_weights=(1, 0.5))  # as a file has it


def test_groups_divide_evenly_among_processes():
    """TRL's rule: all processes together learn from whole groups in each update."""
    args = GRPOConfig(num_generations=4, per_device_train_batch_size=8, gradient_accumulation_steps=3)
    for processes in (1, 2, 3, 6):
        args.check_processes(processes)
    two = dataclasses.replace(args, steps_per_generation=6)  # twice as many groups, for two updates
    two.check_processes(6)
    for each in (args, two):
        with pytest.raises(ValueError, match=r"6 groups of 4 completions, which do not .* 4 processes\. .*now 24"):
            each.check_processes(4)


def test_a_setting_that_there_is_not_names_the_near_miss():
    with pytest.raises(TypeError, match="no setting 'lerning_rate'; did you mean learning_rate"):
        GRPOConfig(lerning_rate=1e-4)
    with pytest.raises(TypeError, match=r"no setting 'zzz'; help\(GRPOConfig\) lists them"):
        GRPOConfig(zzz=1e-4)
    with pytest.raises(TypeError, match="no setting 'beat'; did you mean beta"):
        dataclasses.replace(GRPOConfig(), beat=0.1)
    assert GRPOConfig(1e-3).learning_rate == 1e-3
    assert list(inspect.signature(GRPOConfig).parameters)[:2] == ["learning_rate", "lr_scheduler_type"]
    assert pickle.loads(pickle.dumps(GRPOConfig(beta=0.5))) == GRPOConfig(beta=0.5)


@every(
    ("settings", "message"),
    [
        ({"num_generations": 1}, "num_generations is 1; expected a whole number of at least 2. .* has advantage 0"),
        ({"num_generations": 0}, "num_generations is 0; expected a whole number of at least 2"),
        ({"num_generations": 4.0}, "num_generations is 4.0; expected a whole number"),
        ({"per_device_train_batch_size": 12}, r"is 12; expected a multiple of num_generations \(8\)"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size is 0; expected a whole number of at least 1"),
        ({"per_device_train_batch_size": 8.0}, "per_device_train_batch_size is 8.0; expected a whole number"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0"),
        ({"num_iterations": 0}, "num_iterations is 0"),
        ({"stop_strings": []}, r"stop strings are \[\]; expected a list of non-empty strings"),
        ({"stop_strings": "end"}, "stop strings are 'end'; expected a list"),
        ({"completion_batch_size": 0}, "completion_batch_size is 0; expected a whole number of at least 1"),
        ({"completion_batch_size": 12}, r"completion_batch_size is 12; expected a multiple of num_generations \(8\)"),
        ({"max_completion_length": 0}, "max_completion_length is 0"),
        ({"tool_timeout": 0}, "tool_timeout is 0; expected more than 0 seconds, or None for no limit"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected more than 0"),
        ({"learning_rate": 1e300}, r"learning_rate is 1e\+300; expected more than 0 and at most 1e\+18"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"max_grad_norm": -1.0}, "max_grad_norm is -1.0"),
        ({"warmup_steps": -1}, "warmup_steps is -1; expected a whole number of at least 0"),
        ({"warmup_steps": 1.5}, "warmup_steps is 1.5; expected a whole number of at least 0, or a share of all steps"),
        ({"warmup_steps": -0.1}, "warmup_steps is -0.1; expected a whole number"),
        ({"max_grad_norm": 0}, r"max_grad_norm is 0; expected more than 0 \(for no clipping, 1e9\)"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"lr_scheduler_type": "polynomial"}, "expected one of .* 'linear', 'cosine'. For any other schedule"),
        ({"scale_rewards": "groups"}, "scale_rewards is 'groups'; expected one of 'group', 'batch', 'none'"),
        ({"temperature": 0}, "temperature is 0, so all completions of a group would be equal"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"min_p": 2.0}, "min_p is 2.0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"optim": "sgd"}, "optim is 'sgd'; expected one of 'adamw', 'adafactor'"),
        ({"loss_type": "ppo"}, "loss_type is 'ppo'; expected one of 'grpo', 'bnpo', 'dr_grpo', 'dapo'"),
        ({"importance_sampling_level": "word"}, "importance_sampling_level is 'word'"),
        ({"epsilon": -0.2}, "epsilon is -0.2"),
        ({"beta": -0.1}, "beta is -0.1"),
        ({"delta": 0.5}, "delta is 0.5"),
        ({"loss_type": "cispo"}, "set epsilon_high"),
        ({"advantage_estimator": "gae"}, "advantage_estimator is 'gae'; expected one of 'grpo', 'rloo'"),
        ({"advantage_estimator": "rloo"}, r"times n / \(n - 1\). Set scale_rewards='none', which is RLOO"),
        ({"multi_objective_aggregation": "sum"}, "expected one of 'sum_then_normalize', 'normalize_then_sum'"),
        ({"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "none"}, "has no effect"),
        ({"reward_weights": [1.0, math.nan]}, r"reward_weights are \(1.0, nan\); expected one number per"),
        ({"chat_template_kwargs": ["enable_thinking"]}, "chat_template_kwargs is .*; expected settings by name"),
        ({"dynamic_sampling_rounds": -1}, "dynamic_sampling_rounds is -1"),
        ({"soft_punish_cache": 1.5}, "soft_punish_cache is 1.5; expected a whole number"),
        ({"entropy_coef": math.inf}, "entropy_coef is inf; expected a finite number"),
        ({"top_entropy_quantile": 20}, "top_entropy_quantile is 20; expected 0 to 1"),
        ({"sync_ref_model": True}, "sync_ref_model is set while beta is 0"),
        ({"ref_model_mixup_alpha": 2.0}, "ref_model_mixup_alpha is 2.0; expected 0 to 1"),
        ({"ref_model_sync_steps": 0}, "ref_model_sync_steps is 0"),
        ({"seed": -1}, "seed is -1; expected a whole number of at least 0"),
        ({"learning_rate": "1e-4"}, "learning_rate is '1e-4'; expected a finite number"),
        ({"learning_rate": [1e-4]}, r"learning_rate is \[0.0001\]; expected a finite number"),
        ({"learning_rate": math.inf}, "learning_rate is inf; expected a finite number"),
        ({"learning_rate": 10**400}, "learning_rate is 1000000.*; expected a finite number"),
        ({"reward_weights": [10**400]}, "expected one number per reward function"),
        ({"max_grad_norm": math.inf}, r"max_grad_norm is inf; expected .* \(for no limit, give a large number"),
        ({"epsilon": Fraction(1, 5)}, r"epsilon is Fraction\(1, 5\); expected a finite number"),
        ({"temperature": mx.array([1.0, 2.0])}, r"temperature is \[1.0, 2.0\]; expected a finite number"),
        ({"bf16": "false"}, "bf16 is 'false'; expected True or False"),
        ({"num_generations": np.float32(4)}, "num_generations is 4.0; expected a whole number"),
        ({"chat_template_kwargs": {"budget": np.float32(1)}}, "chat_template_kwargs is .*; expected strings, numbers"),
    ],
)
def test_settings_that_cannot_work(settings, message):
    with pytest.raises(ValueError, match=message):
        GRPOConfig(**settings)


@pytest.mark.parametrize("number", [np.float32, mx.array, torch.tensor, np.array, jax.numpy.asarray])
def test_numbers_of_other_libraries_become_pythons(number):
    args = GRPOConfig(
        learning_rate=number(0.25), temperature=number(0.5), epsilon_high=number(2.0), reward_weights=number([0.5, 2.0])
        if number is not np.float32 else [number(0.5), number(2.0)],
    )  # fmt: skip
    assert args == GRPOConfig(learning_rate=0.25, temperature=0.5, epsilon_high=2.0, reward_weights=(0.5, 2.0))
    assert {type(value) for value in (args.learning_rate, args.temperature, *args.reward_weights)} == {float}
    assert json.loads(json.dumps(dataclasses.asdict(args), allow_nan=False))["epsilon_high"] == 2.0


def test_a_schedule_of_mlx_changes_the_learning_rate_and_can_be_saved(make_trainer, tmp_path):
    schedule = mlx.optimizers.cosine_decay(1e-3, 10)
    trainer = make_trainer()
    for step in trainer.train(2):
        trainer.change(learning_rate=schedule(step.step))
    assert type(trainer.args.learning_rate) is float
    trainer.save_checkpoint(tmp_path / "checkpoint")
    resumed = GRPOTrainer.resume(tmp_path / "checkpoint", trainer.task, weight_decay=np.float64(0.25))
    assert (resumed.args.learning_rate, resumed.args.weight_decay) == (schedule(2).item(), 0.25)
    resumed.save_checkpoint(tmp_path / "again")
    with pytest.raises(ValueError, match="learning_rate is 'fast'; expected a finite number"):
        trainer.change(learning_rate="fast")


def test_whole_numbers_and_truth_values_of_numpy_become_pythons():
    args = GRPOConfig(num_generations=np.int64(4), seed=np.uint8(3), bf16=np.bool_(True), top_k=np.int32(9))
    assert [type(each) for each in (args.num_generations, args.seed, args.bf16, args.top_k)] == [int, int, bool, int]


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GRPOConfig().beta = 0.1
