"""GRPOTrainer with gradients of torch or JAX: the run that MLX's make, and everything that holds for a run.

For every family and every learner three steps are those of TRL's whole trainer: model, loss and optimizer.
"""

import builtins
import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest

from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, TrainingDivergedError, learners
from mlx_grpo_kit.grpo.learners import MLXByLayer, torch_qwen3
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, save_pretrained
from mlx_grpo_kit.qwen3.config import Llama3Scaling
from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer, save_character_tokenizer
from mlx_grpo_kit.qwen3.weight_files import hugging_face_name
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Problem
from tests.sizes import ONE_LAYER

CONFIG = Qwen3Config(
    vocab_size=64, **ONE_LAYER | dict(num_hidden_layers=2), max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip
RUNS = {
    "plain": {},
    "micro-batches, several updates, KL": dict(
        gradient_accumulation_steps=2, num_iterations=2, beta=0.1, temperature=1.3, loss_type="grpo",
        importance_sampling_level="sequence", lr_scheduler_type="linear", warmup_steps=2, weight_decay=0.1,
    ),
    "entropy": dict(entropy_coef=0.01, top_entropy_quantile=0.5, max_grad_norm=0.1),
    "adafactor, another loss": dict(optim="adafactor", loss_type="cispo", epsilon_high=3.0, num_iterations=2),
}  # fmt: skip

HARDEST = "micro-batches, several updates, KL"

FAMILIES = {
    "qwen3": CONFIG,
    # Where a pair of numbers hardly rotates, softmax cancels the bias of keys, and its gradient is rounding.
    "qwen2": replace(CONFIG, model_type="qwen2", tie_word_embeddings=True, rope_theta=100.0),
    "llama": replace(CONFIG, model_type="llama", rope_scaling=Llama3Scaling(4.0, 1.0, 4.0, 8)),
}
LEARNERS = {
    "mlx": {},
    "mlx, layer by layer": dict(gradient_checkpointing=True),
    "mlx, adapters, layer by layer": dict(lora_r=4, lora_alpha=8.0, gradient_checkpointing=True),
    "torch": dict(backend="torch"),
    "jax": dict(backend="jax"),
}
MU = "dapo, two passes, KL"
OF_TRL = {
    MU: dict(gradient_accumulation_steps=2, num_iterations=2, beta=0.1, temperature=1.3, weight_decay=0.1),
    "grpo, sequence ratios, clipped": dict(
        loss_type="grpo", gradient_accumulation_steps=2, num_iterations=3, importance_sampling_level="sequence",
        epsilon=0.001, epsilon_high=0.002, scale_rewards="none", max_grad_norm=0.05,
    ),
    "dr_grpo, micro-batches smaller than a group": dict(
        loss_type="dr_grpo", per_device_train_batch_size=2, gradient_accumulation_steps=4, scale_rewards="batch",
    ),
    "adapters of some maps, layer by layer": dict(
        lora_r=2, lora_alpha=3, lora_target_modules=["v_proj", "o_proj", "up_proj"], gradient_checkpointing=True,
    ),
}  # fmt: skip
CASES = [(family, learner, MU) for family in FAMILIES for learner in LEARNERS]
CASES += [("qwen3", learner, name) for learner in ("mlx", "torch") for name in [*OF_TRL][1:3]]
CASES += [("qwen3", "mlx, adapters", MU), ("qwen3", "mlx", "adapters of some maps, layer by layer")]
LEARNERS["mlx, adapters"] = dict(lora_r=4)


class Sevens:
    """Prompts of several lengths; the reward is the share of sevens."""

    name, max_completion_length = "sevens", 5

    @staticmethod
    def reward(problems, completions):
        return [completion.count("7") / 4 for completion in completions]

    reward_funcs = (reward,)

    def sample(self, rng, n):
        return [Problem(prompt, "7777") for prompt in rng.choice(["1+1=", "a", "what is", "77"], n)]

    def held_out(self, n):
        return [Problem(f"{number}=", "7777") for number in range(n)]

    def is_correct(self, problem, completion):
        return completion.startswith("7")


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_character_tokenizer(folder)
    tokenizer = load_tokenizer(folder)

    def trainer(backend="mlx", dtype=mx.float32, config=CONFIG, **settings):
        params = {name: value.astype(dtype) for name, value in init_params(config, seed=1, scale=0.3).items()}
        for name in [name for name in params if name.endswith(".bias")]:  # else they are 0
            params[name] = mx.random.normal(params[name].shape, scale=0.3, key=mx.random.key(len(name)))
        settings = dict(num_generations=4, per_device_train_batch_size=8, learning_rate=1e-3) | settings
        return GRPOTrainer(config, params, tokenizer, Sevens(), GRPOConfig(backend=backend, **settings))

    return trainer


@pytest.fixture(params=["torch", "jax"])
def backend(request):
    if request.param == "jax":
        request.getfixturevalue("jax")
    return request.param


def arrays(trainer):
    return {name: np.array(value) for name, value in trainer.params.items()}


def flat(values):
    return np.concatenate([np.array(value).ravel() for value in values])


def moments(snapshot):
    """{moment of the optimizer: all its numbers}"""
    states = [state for state in snapshot.optimizer_state.values() if isinstance(state, dict)]
    names = {name for state in states for name in state}
    return {name: flat(state[name] for state in states if name in state) for name in names}


def equal(one, other):
    return all((value == other[name]).all() for name, value in one.items())


def metrics(step):
    """Metrics that do not depend on the learner: without its time and its rounding."""
    assert 0 <= step.metrics.get("sampling/sampling_logp_difference/max", 0) < 2e-5
    return {name: value for name, value in step.metrics.items() if name != "step_time" and "sampling/" not in name}


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "torch") for name in RUNS), (HARDEST, "jax")], indirect=["backend"]
)
def test_ten_steps_follow_mlx(make, backend, name):
    """MLX repeats each step from the run's own state, because ten steps multiply the rounding of the first."""
    run, reference = make(backend, **RUNS[name]), make("mlx", **RUNS[name])
    steps, moved = run.train(10), 0.0
    for _ in range(10):
        before = run.snapshot()
        reference.rewind(before, backend="mlx")
        theirs, ours = next(steps), next(reference.train(10))
        assert metrics(theirs) == pytest.approx(metrics(ours), rel=1e-3, abs=2e-6), ours.step
        assert [each.completion_ids for each in theirs.completions] == [
            each.completion_ids for each in ours.completions
        ]
        found, expected = run.snapshot(), reference.snapshot()
        for moment, value in moments(expected).items():
            assert np.linalg.norm(moments(found)[moment] - value) <= 1e-4 * np.linalg.norm(value), (ours.step, moment)
        # AdamW divides a gradient by its own size: where that is all rounding a weight may go another way.
        start, one, other = (flat(each.policy.trained.values()) for each in (before, found, expected))
        assert abs(one - other).mean() <= 0.02 * abs(other - start).mean(), ours.step
        moved += abs(other - start).mean()
    assert moved > 1e-3


def torch_name(name):
    """What transformers calls a parameter, and PEFT an adapter."""
    stem, _, kind = name.rpartition(".")
    if not kind.startswith("lora"):
        return hugging_face_name(name)
    return f"base_model.model.{hugging_face_name(stem)}.lora_{kind[-1].upper()}.default.weight"


def scattered(completions):
    """Powers of 3, because no reward is then the mean of its group of 4: an advantage of 1e-8 is only rounding."""
    return [3.0 ** -(sum(map(ord, completion)) % 7) for completion in completions]


def trls_trainer(model, folder, steps, args):
    """TRL's trainer of a model in torch, whose completions are those of recorded steps."""
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast  # for a Qwen2, AutoTokenizer splits texts in its own way
    from trl import GRPOConfig as Config
    from trl import GRPOTrainer as Trainer

    of_steps, tokenizer = iter(steps), PreTrainedTokenizerFast.from_pretrained(folder)

    def recorded(prompts, trainer):
        completions = next(of_steps).completions
        assert prompts == [completion.prompt for completion in completions]
        return {
            "prompt_ids": tokenizer(prompts)["input_ids"],
            "completion_ids": [completion.completion_ids for completion in completions],
            "logprobs": None,
        }

    names = ("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations", "beta",
             "learning_rate", "weight_decay", "temperature", "loss_type", "epsilon", "epsilon_high", "scale_rewards",
             "importance_sampling_level", "max_grad_norm")  # fmt: skip
    prompts = [completion.prompt for step in steps for completion in step.completions[:: args.num_generations]]
    return Trainer(
        model,
        reward_funcs=lambda completions, **_: scattered(completions),
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        rollout_func=recorded,
        args=Config(
            output_dir=str(folder / "trl"), max_steps=len(steps) * args.num_iterations, shuffle_dataset=False,
            max_completion_length=Sevens.max_completion_length, lr_scheduler_type="constant", top_k=0,
            use_bias_correction_kl=False, disable_dropout=True, use_cpu=True, bf16=False,
            gradient_checkpointing=False, report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True,
            **{name: getattr(args, name) for name in names},
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("family", "learner", "run"), CASES)
def test_three_steps_are_those_of_trls_trainer(make, request, tmp_path, family, learner, run):
    """TRL's whole trainer, of the same first weights and completions: losses, gradients' lengths, final weights."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    if learner == "jax":
        request.getfixturevalue("jax")
    trainer = make(config=FAMILIES[family], **LEARNERS[learner], **OF_TRL[run])
    passes = trainer.args.num_iterations
    trainer.change(reward_funcs=[lambda problems, completions: scattered(completions)])
    save_pretrained(tmp_path, trainer.config, trainer.policy.frozen or trainer.params)
    save_character_tokenizer(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    model.get_input_embeddings().padding_idx = None  # a policy may sample the padding token
    if trainer.policy.frozen:
        trainer.save_pretrained(tmp_path / "adapters")
        model = PeftModel.from_pretrained(model, tmp_path / "adapters" / "peft", is_trainable=True)
    start = {name: np.array(value) for name, value in trainer.policy.trained.items()}
    steps = list(trainer.train(3))
    theirs = trls_trainer(model, tmp_path, steps, trainer.args)
    theirs.train()

    logs = [log for log in theirs.state.log_history if "grad_norm" in log]
    assert len(logs) == 3 * passes
    compared = {name: dict(rel=1e-4, abs=2e-6) for name in ("loss", "grad_norm", "reward", "reward_std")}
    for name in ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "kl"):
        if name in logs[0]:  # a mean over micro-batches, for which TRL shuffles the completions
            compared[name] = dict(rel=0.05, abs=0.01)
    for step, first in zip(steps, range(0, len(logs), passes), strict=True):
        for name, tolerance in compared.items():
            expected = np.mean([update[name] for update in logs[first : first + passes] if name in update])
            assert step.metrics[name] == pytest.approx(expected, **tolerance), (step.step, name)
    weights = {name: value.detach().numpy() for name, value in model.named_parameters() if value.requires_grad}
    moved, apart = [], []
    for name, value in trainer.policy.trained.items():
        expected = weights.pop(torch_name(name))
        moved.append(abs(np.array(value) - start[name]).ravel())
        apart.append(abs(np.array(value) - (expected.T if trainer.policy.frozen else expected)).ravel())
        if name.endswith((".bias", "norm.weight")):  # decay would move it by 6e-4 times its size
            assert apart[-1].mean() < 5e-6, name
    assert not weights or (trainer.config.tie_word_embeddings and [*weights] == ["lm_head.weight"])
    moved, apart = np.concatenate(moved), np.concatenate(apart)
    # AdamW divides a gradient by its own size: where that is all rounding a weight may go another way.
    assert moved.mean() > 1e-3
    assert np.mean(apart < 1e-5) > 0.9995
    assert apart.mean() < 1e-3 * moved.mean()


def test_rows_of_padding_count_in_no_metric(make, backend):
    """JAX adds a group to three."""
    [step] = make(backend, loss_type="vespo", per_device_train_batch_size=12).train(1)
    assert step.metrics["vespo/phi_seq_mean"] == pytest.approx(1)  # phi of a policy that has not moved


def test_a_large_vocabulary_a_few_tokens_at_a_time(make, monkeypatch):
    whole = [metrics(step) for step in make("torch", **RUNS["entropy"]).train(2)]
    monkeypatch.setattr(torch_qwen3, "WHOLE", 7 * CONFIG.vocab_size)
    for step, expected in zip(make("torch", **RUNS["entropy"]).train(2), whole, strict=True):
        assert metrics(step) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_seed_decides_the_run_and_it_resumes_to_the_same_numbers(make, backend, tmp_path):
    whole, again = make(backend, **RUNS[HARDEST]), make(backend, **RUNS[HARDEST])
    steps = [metrics(step) for step in whole.train(4)]
    assert [metrics(step) for step in itertools.islice(again.train(4), 2)] == steps[:2]
    again.save_checkpoint(tmp_path / "checkpoint")
    resumed = GRPOTrainer.resume(tmp_path / "checkpoint", Sevens())
    assert resumed.args.backend == backend
    assert [metrics(step) for step in resumed.train(4)] == steps[2:]
    assert equal(arrays(whole), arrays(resumed))
    resumed.save_pretrained(tmp_path / "policy")


def test_another_framework_at_any_step(make, backend, tmp_path):
    """What MLX began goes on elsewhere, and back; a snapshot rewinds over it."""
    plain, trainer = make("mlx", **RUNS[HARDEST]), make("mlx", **RUNS[HARDEST])
    list(plain.train(4))
    next(trainer.train(4))
    snapshot = trainer.snapshot()
    trainer.change(backend=backend)
    second = next(trainer.train(4))
    assert second.changes == {"backend": backend}
    trainer.save_checkpoint(tmp_path / "checkpoint")
    trainer = GRPOTrainer.resume(tmp_path / "checkpoint", Sevens(), backend="mlx")
    list(trainer.train(4))
    for name, value in arrays(trainer).items():
        np.testing.assert_allclose(value, arrays(plain)[name], atol=2e-4)

    trainer.rewind(snapshot)
    assert trainer.args.backend == "mlx"
    trainer.rewind(snapshot, backend=backend)
    assert metrics(next(trainer.train(4))) == metrics(second)


def test_a_step_that_diverges_or_is_interrupted_changes_nothing(make, backend, monkeypatch):
    settings = RUNS[HARDEST] | {"lr_scheduler_type": "constant"}
    trainer = make(backend, **settings)
    list(trainer.train(1))
    before, learn = arrays(trainer), trainer.parts.learner.add_gradients
    decay = trainer.args.weight_decay
    calls = []

    def fails_in_its_second_pass(*args):
        calls.append(1)
        if len(calls) == 3:  # two micro-batches a pass
            raise KeyboardInterrupt
        return learn(*args)

    monkeypatch.setattr(trainer.parts.learner, "add_gradients", fails_in_its_second_pass)
    with pytest.raises(KeyboardInterrupt):
        list(trainer.train(2))
    monkeypatch.undo()
    assert trainer.step == 1
    assert equal(before, arrays(trainer))
    trainer.change(learning_rate=1e18, weight_decay=1.0)
    with pytest.raises(TrainingDivergedError):
        list(trainer.train(2))
    assert equal(before, arrays(trainer))
    trainer.change(learning_rate=1e-3, weight_decay=decay)
    steps, straight = list(trainer.train(3)), make(backend, **settings)
    assert [metrics(step) for step in straight.train(3)][1:] == [metrics(step) for step in steps]


def test_a_batch_without_any_advantage_needs_no_gradient(make, backend):
    trainer = make(backend, num_iterations=2)
    trainer.change(reward_funcs=[lambda problems, completions: [0.5] * len(completions)])
    before = arrays(trainer)
    [step] = trainer.train(1)
    assert step.metrics["grad_norm"] == 0
    assert equal(before, arrays(trainer))


def test_what_does_not_fit_is_refused_up_front(make, backend):
    with pytest.raises(ValueError, match="expected one of 'mlx', 'torch', 'jax'"):
        GRPOConfig(backend="tensorflow")
    for setting, value in {"bf16": True, "gradient_checkpointing": True, "lora_r": 4}.items():
        with pytest.raises(ValueError, match=f"{setting} is set, which only MLX's learner supports"):
            GRPOConfig(backend=backend, **{setting: value})
    with pytest.raises(ValueError, match=f"bfloat16, and the learner of backend='{backend}' computes in float32"):
        make(backend, dtype=mx.bfloat16)
    trainer = make("mlx", gradient_checkpointing=True)
    with pytest.raises(ValueError, match="Leave out one"):
        trainer.change(backend=backend)
    assert trainer.args.backend == "mlx"
    assert isinstance(trainer.parts.learner, MLXByLayer)


def test_a_framework_that_is_missing_is_told_with_the_command_that_installs_it(make, monkeypatch):
    load = builtins.__import__

    def no_jax(name, *args):
        if name.partition(".")[0] == "jax":
            raise ModuleNotFoundError("No module named 'jax'", name="jax")
        return load(name, *args)

    for name in ("mlx_grpo_kit.grpo.learners.jax_learner", "mlx_grpo_kit.grpo.learners.jax_qwen3"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(vars(learners), "JAXLearner", raising=False)  # another test may have asked for it
    monkeypatch.setattr(builtins, "__import__", no_jax)
    trainer = make("mlx")
    with pytest.raises(ImportError, match=r"needs jax, which is not installed. Install it: .*\[backends\]"):
        trainer.change(backend="jax")
    assert trainer.args.backend == "mlx"
    list(trainer.train(1))


def test_threads_are_afterwards_what_they_were(make, monkeypatch):
    import torch

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, trainer = torch.get_num_threads(), make("torch")
    trainer.change(reward_funcs=[lambda problems, completions: range(len(completions))])  # there is something to learn
    torch.set_num_threads(3)
    try:
        list(trainer.train(1))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
