"""Seconds of training until the shipped model adds right nine times in ten: the kit, TRL and mlx-lm-lora.

Same first weights, same recipe (16 prompts x 8 completions a step, AdamW, a rate of 5e-4 falling linearly over 600
steps, the token-mean loss without KL), same measure for everybody: after every 20 steps the weights answer all
held-out problems with three seeds, by the kit's own generation, and the clock stands still meanwhile. The runners take
turns seed by seed, each time in a new process. mlx-lm-lora has no clipping of gradients; its loss over one batch is
the same token mean.
"""

import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.recipe import MAX_STEPS, default_args
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.qwen3.weight_files import kit_name
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition
from tests.benchmarks.contest import Contestant

GOAL, EVERY, GROUP, PROMPTS = 0.9, 20, 8, 16
EVALUATION_SEEDS = (0, 1, 2)
ARGS = default_args("tiny")
TASK = Addition()


class Clock:
    """Counts the seconds of training, and stands still while `params()` are measured. Enough is enough at the goal."""

    class Reached(Exception):  # noqa: N818 (no error: the end of a race)
        pass

    def __init__(self, judge: GRPOTrainer, max_steps: int):
        self.judge, self.max_steps = judge, max_steps
        self.seconds = self.accuracy = 0.0
        self.steps, self.started = 0, time.perf_counter()

    def step(self, params) -> None:
        """A step is over; `params` is called for its weights when they are to be measured."""
        self.seconds += time.perf_counter() - self.started
        self.steps += 1
        if self.steps % EVERY == 0 or self.steps == self.max_steps:
            trained = {name: mx.array(value) for name, value in params().items()}
            self.judge.policy = replace(self.judge.policy, trained=trained)
            measured = [self.judge.evaluate(1003, seed)["eval/accuracy"] for seed in EVALUATION_SEEDS]
            self.accuracy = float(np.mean(measured))
        if self.accuracy >= GOAL or self.steps == self.max_steps:
            raise self.Reached
        self.started = time.perf_counter()


def race_kit(clock: Clock, seed: int, folder, backend: str = "mlx") -> None:
    config, params = load_pretrained(TINY)
    trainer = GRPOTrainer(config, params, load_tokenizer(TINY), TASK, GRPOConfig(**ARGS, seed=seed, backend=backend))
    clock.started = time.perf_counter()
    for _ in trainer.train(MAX_STEPS):
        clock.step(lambda: trainer.params)


def race_trl(clock: Clock, seed: int, folder) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig as Config
    from trl import GRPOTrainer as Trainer

    problems = TASK.sample(np.random.default_rng(seed), PROMPTS * MAX_STEPS)
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)

    def weights():
        return {
            kit_name(name): value.detach().numpy()
            for name, value in model.named_parameters()
            if name != "lm_head.weight"
        }

    class Steps(TrainerCallback):
        def on_train_begin(self, *args, **kwargs):
            clock.started = time.perf_counter()

        def on_step_end(self, *args, **kwargs):
            clock.step(weights)

    def correct(prompts, completions, answer, **_):
        return [float(completion == each) for completion, each in zip(completions, answer, strict=True)]

    rows = {"prompt": [each.prompt for each in problems], "answer": [each.answer for each in problems]}
    Trainer(
        model,
        reward_funcs=correct,
        processing_class=AutoTokenizer.from_pretrained(TINY),
        train_dataset=Dataset.from_dict(rows),
        args=Config(
            output_dir=str(folder), seed=seed, max_steps=MAX_STEPS, learning_rate=ARGS["learning_rate"],
            lr_scheduler_type=ARGS["lr_scheduler_type"], per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP, max_completion_length=TASK.max_completion_length, temperature=1.0, top_k=0,
            top_p=1.0, beta=0.0, loss_type="dapo", max_grad_norm=1.0, weight_decay=0.0, use_cpu=True, bf16=False,
            gradient_checkpointing=False, report_to="none", save_strategy="no", logging_strategy="no",
            disable_tqdm=True,
        ),
        callbacks=[Steps()],
    ).train()  # fmt: skip


def race_mlx_lm_lora(clock: Clock, seed: int, folder) -> None:
    import mlx.optimizers as optim
    from mlx_lm.utils import load
    from mlx_lm_lora.trainer import grpo_trainer

    mx.random.seed(seed)
    model, tokenizer = load(str(TINY))
    problems = TASK.sample(np.random.default_rng(seed), PROMPTS * MAX_STEPS)

    def weights():
        return {kit_name(name): value for name, value in tree_flatten(model.parameters())}

    def batches(**_):
        for start in range(0, len(problems), PROMPTS):
            batch = problems[start : start + PROMPTS]
            if start:
                clock.step(weights)
            else:
                clock.started = time.perf_counter()
            prompts = [each.prompt for each in batch]
            yield (
                [tokenizer.encode(prompt) for prompt in prompts],
                [[]] * PROMPTS,
                prompts,
                [each.answer for each in batch],
                None,
            )
        clock.step(weights)

    def correct(prompts, completions, answer, types=None):
        return [float(completion.strip() == each) for completion, each in zip(completions, answer, strict=True)]

    def loss(model, ref_model, **kwargs):  # under its own name train_grpo would cut the batch into pieces of 4 rows
        return grpo_trainer.grpo_loss(model, ref_model, **kwargs)

    schedule = optim.linear_schedule(ARGS["learning_rate"], 0.0, MAX_STEPS)
    grpo_trainer.train_grpo(
        model,
        None,
        tokenizer,
        optim.AdamW(schedule, weight_decay=0.0, bias_correction=True),
        train_dataset=None,
        reward_funcs=[correct],
        iterate_batches=batches,
        loss_fn=loss,
        end_answer_token="",
        args=grpo_trainer.GRPOTrainingArgs(
            batch_size=PROMPTS * GROUP, iters=MAX_STEPS + 1, group_size=GROUP,
            max_completion_length=TASK.max_completion_length, beta=0.0, epsilon=0.2, temperature=1.0, top_p=1.0,
            top_k=0, grpo_loss_type="bnpo", steps_per_report=10**9, steps_per_save=10**9,
            adapter_file=str(folder / "adapters.safetensors"),
        ),
    )  # fmt: skip


RUNNERS = {
    "the kit": race_kit,
    "the kit, --backend torch": partial(race_kit, backend="torch"),
    "TRL": race_trl,
    "mlx-lm-lora, full width": race_mlx_lm_lora,
}


class Runner:
    """Trains once; the evidence is (seconds of training, steps, accuracy at the end)."""

    def __init__(self, name, folder, max_steps, seed=0):
        self.run, self.folder, self.seed = RUNNERS[name], folder, seed
        config, params = load_pretrained(TINY)
        self.clock = Clock(GRPOTrainer(config, params, load_tokenizer(TINY), TASK), max_steps)

    def turn(self) -> float:
        with pytest.raises(Clock.Reached):
            self.run(self.clock, self.seed, self.folder)
        return self.clock.seconds

    def evidence(self):
        return self.clock.seconds, self.clock.steps, self.clock.accuracy


def test_time_to_90_percent(bench, tmp_path):
    if bench.quick:
        pytest.skip("a race takes minutes")
    options = {"folder": tmp_path, "max_steps": MAX_STEPS if bench.measuring else 2}
    results = bench(
        {name: Contestant(Runner, {"name": name, **options}) for name in RUNNERS},
        rounds=3,
        targets={"TRL": 2.0},
        libraries=("trl.trainer.grpo_trainer", "mlx_lm_lora.trainer.grpo_trainer"),
        apart=True,
    )
    for name, result in results.items():
        runs = [f"{seconds:.1f} s {steps} {accuracy:.3f}" for seconds, steps, accuracy in result.evidence]
        bench.note(f"{name}: seconds, steps, accuracy by seed", ", ".join(runs))
        for seconds, steps, accuracy in result.evidence:
            assert seconds > 0
            if not bench.measuring:  # everybody learns from the same task, and the same judge measures it
                assert steps == 2, name
                assert 0.3 < accuracy < 0.6, name
