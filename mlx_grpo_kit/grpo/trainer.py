"""The GRPO training loop: sample, reward, compare within the group, update; and save or resume at any step.

    trainer = GRPOTrainer(config, params, tokenizer, task, GRPOConfig(learning_rate=2e-4))
    for step in trainer.train(max_steps=200):
        print(step.step, step.metrics["reward"])

Algorithm 1 of DeepSeekMath (https://arxiv.org/abs/2402.03300) without its reward model. The trainer is an iterator:
whatever should happen during training happens in the body of the loop, and leaving the loop stops it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_map

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.generation import Rollout, SamplingConfig, generate
from mlx_grpo_kit.grpo.advantages import compute_advantages
from mlx_grpo_kit.grpo.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from mlx_grpo_kit.grpo.config import MAY_CHANGE, GRPOConfig
from mlx_grpo_kit.grpo.logps import PaddedBatch, pad_batch, score
from mlx_grpo_kit.grpo.loss import grpo_loss_and_metrics
from mlx_grpo_kit.grpo.rewards import compute_rewards
from mlx_grpo_kit.qwen3 import Qwen3Config, save_pretrained, validate_params
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.tasks.task import Problem, Task


class TrainingDivergedError(RuntimeError):
    """A loss or gradient stopped being a number. The parameters are still those of the last good step."""


@dataclass(frozen=True)
class Completion:
    """One sampled completion and what became of it. `rewards` is by function, None where a function did not apply."""

    problem: Problem
    prompt: str
    prompt_ids: list[int]
    completion: str
    completion_ids: list[int]
    logps: list[float]
    finished: bool
    rewards: dict[str, float | None]
    reward: float
    advantage: float


@dataclass(frozen=True)
class TrainStep:
    """One step: its number from 1, its metrics (Python floats under TRL's names), and what it learned from."""

    step: int
    metrics: dict[str, float]
    completions: list[Completion]


class GRPOTrainer:
    """Trains a Qwen3 on a task by group relative policy optimization.

    Attributes that a reader of a run may use: `params` (the policy, a dict of arrays; replaced, never changed in
    place), `step` (steps done), `config`, `tokenizer`, `task`, `args`.

    Args:
        config, params: the policy, as `load_pretrained` returns it. Parameters that are not float32 get float32
            masters for the optimizer; forward and backward passes stay in their own dtype.
        tokenizer: as `load_tokenizer` returns it.
        task: where problems and rewards come from (mlx_grpo_kit.tasks).
        args: the settings.

    Raises ValueError where parameters and configuration, or tokenizer and vocabulary, do not fit each other.
    """

    def __init__(
        self,
        config: Qwen3Config,
        params: Mapping[str, mx.array],
        tokenizer: Tokenizer,
        task: Task,
        args: GRPOConfig | None = None,
    ):
        validate_params(params, config)
        if tokenizer.vocab_size > config.vocab_size:
            raise ValueError(
                f"The tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size} (vocab_size); "
                "expected a model with a row for every token. Are the two from the same folder?"
            )
        self.config, self.tokenizer, self.task = config, tokenizer, task
        self.args = args or GRPOConfig()
        self.step = 0
        self.compute_dtype = params["embedding.weight"].dtype
        self.master_params = {name: value.astype(mx.float32) for name, value in params.items()}
        # `beta` pulls towards the policy that training started from; without it nobody needs that policy.
        self.ref_params = dict(params) if self.args.beta else None
        self.max_completion_length = self.args.max_completion_length or task.max_completion_length
        self.optimizer = optim.AdamW(
            learning_rate=self.args.learning_rate,
            weight_decay=self.args.weight_decay,
            bias_correction=True,  # MLX leaves it out by default, and its first step is then 3.16 times as long
        )
        self.optimizer.init(self.master_params)
        # Computed now, because training may move to another thread: MLX cannot finish there what was begun here.
        mx.eval(self.master_params, self.ref_params, self.optimizer.state)

    @property
    def params(self) -> dict[str, mx.array]:
        """The policy's parameters, in the dtype they were given in."""
        if self.compute_dtype == mx.float32:
            return self.master_params
        return {name: value.astype(self.compute_dtype) for name, value in self.master_params.items()}

    def train(self, max_steps: int) -> Iterator[TrainStep]:
        """Yield each step after it is done, until `max_steps` have been done in all (resumed ones included).

        Raises RewardError for a reward function that fails, and TrainingDivergedError; the last good parameters stay.
        """
        while self.step < max_steps:
            started = time.perf_counter()
            completions, metrics = self._sample(self.step)
            with self._all_updates_or_none():
                metrics |= self._learn(completions, max_steps)
            self.step += 1
            metrics["step_time"] = time.perf_counter() - started
            yield TrainStep(self.step, metrics, completions)

    def evaluate(self, num_problems: int = 256, seed: int = 0) -> dict[str, float]:
        """Answer held-out problems once each, sampled at temperature 1 without filters.

        Returns "eval/accuracy" (the share that `task.is_correct` accepts) and "eval/reward". Training is unaffected.
        """
        problems = self.task.held_out(num_problems)
        *_, texts = self._complete(problems, SamplingConfig(self.max_completion_length), seed)
        rewards, _ = compute_rewards(self.task.reward_funcs, problems, texts)
        correct = [self.task.is_correct(problem, text) for problem, text in zip(problems, texts, strict=True)]
        return {"eval/accuracy": sum(correct) / len(correct), "eval/reward": _mean(rewards)}

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write the policy as a Hugging Face folder, which transformers, mlx-lm and `load_pretrained` read."""
        save_pretrained(folder, self.config, self.params, tokenizer=self.tokenizer)

    def save_checkpoint(self, folder: str | os.PathLike) -> None:
        """Write everything that `resume` needs; the folder appears whole or not at all."""
        checkpoint = Checkpoint(
            step=self.step,
            task=self.task.name,
            args=self.args,
            config=self.config,
            master_params=self.master_params,
            tokenizer=self.tokenizer,
            compute_dtype=self.compute_dtype,
            ref_params=self.ref_params,
            optimizer_state=self.optimizer.state,
        )
        save_checkpoint(folder, checkpoint)

    @classmethod
    def resume(cls, folder: str | os.PathLike, task: Task, **changes: Any) -> GRPOTrainer:
        """A trainer that goes on from a checkpoint with the numbers the saved one would have had.

        Args:
            folder: what `save_checkpoint` wrote.
            task: the same as before.
            changes: settings to go on with instead of the saved ones, such as `learning_rate=1e-4`; those in
                `MAY_CHANGE` only.

        Raises FileNotFoundError or ValueError for a folder that is no whole checkpoint or is another task's, and for a
        setting that cannot change.
        """
        fixed = sorted(changes.keys() - set(MAY_CHANGE))
        if fixed:
            raise ValueError(f"{fixed[0]} cannot change while a run goes on; only {', '.join(MAY_CHANGE)} can.")
        saved = load_checkpoint(folder)
        if task.name != saved.task:
            raise ValueError(f"{folder} was trained on task {saved.task!r}, not {task.name!r}. Give the same task.")
        trainer = cls(saved.config, saved.master_params, saved.tokenizer, task, replace(saved.args, **changes))
        trainer.step = saved.step
        trainer.compute_dtype = saved.compute_dtype
        trainer.ref_params = saved.ref_params
        trainer.optimizer.state = saved.optimizer_state
        return trainer

    def _complete(
        self, problems: Sequence[Problem], sampling: SamplingConfig, seed: int
    ) -> tuple[list[list[int]], Rollout, list[str]]:
        """One completion a problem: the prompts' tokens, the completions' tokens, and their text."""
        prompts = [self.tokenizer.encode(problem.prompt) for problem in problems]
        rollout = generate(
            self.config, self.params, prompts, sampling=sampling, eos_token_ids=self.tokenizer.eos_token_ids, seed=seed
        )
        return prompts, rollout, [self.tokenizer.decode(ids) for ids in rollout.completions]

    def _sample(self, step: int) -> tuple[list[Completion], dict[str, float]]:
        """Problems, a group of completions for each, their rewards and advantages."""
        args = self.args
        # Numbers from (seed, step) alone: a resumed run needs no state of a random generator.
        problem_seed, sampling_seed = np.random.SeedSequence([args.seed, step]).generate_state(2)
        num_prompts = args.generation_batch_size // args.num_generations
        problems = self.task.sample(np.random.default_rng(problem_seed), num_prompts)
        problems = [problem for problem in problems for _ in range(args.num_generations)]
        sampling = args.sampling(self.max_completion_length)
        prompts, rollout, texts = self._complete(problems, sampling, int(sampling_seed))
        rewards, by_name = compute_rewards(self.task.reward_funcs, problems, texts)
        advantages = compute_advantages(rewards, args.num_generations, args.scale_rewards).tolist()
        completions = [
            Completion(
                problem=problem,
                prompt=problem.prompt,
                prompt_ids=prompts[i],
                completion=texts[i],
                completion_ids=rollout.completions[i],
                logps=rollout.logps[i],
                finished=rollout.finished[i],
                rewards={name: None if math.isnan(values[i]) else float(values[i]) for name, values in by_name.items()},
                reward=float(rewards[i]),
                advantage=advantages[i],
            )
            for i, problem in enumerate(problems)
        ]
        return completions, _sampling_metrics(completions, rewards, by_name, args.num_generations)

    def _learn(self, completions: Sequence[Completion], max_steps: int) -> dict[str, float]:
        """`num_iterations` updates from one batch of completions; returns the means of their metrics."""
        args = self.args
        loss_config = args.loss(self.max_completion_length)
        learning_rate = self._learning_rate(max_steps)
        micro_batches = [self._micro_batch(rows) for rows in _chunks(completions, args.per_device_train_batch_size)]
        num_tokens = sum(batch.completion_mask.sum().item() for batch, _ in micro_batches)
        # A loss that is a mean over the whole batch's tokens adds up over micro-batches; any other is averaged.
        share = 1.0 if loss_config.micro_batches_add_up else 1 / len(micro_batches)
        ref_logps = [self._ref_logps(batch) for batch, _ in micro_batches]
        # On the first pass the policy is the one that sampled: every ratio is exactly 1. Its log-probabilities are
        # kept for the passes after it.
        old_logps: list[mx.array | None] = [None] * len(micro_batches)
        history: list[dict[str, float]] = []

        for _ in range(args.num_iterations):
            total_grads, total_metrics = None, {}
            for index, (batch, advantages) in enumerate(micro_batches):

                def loss_fn(masters, batch=batch, advantages=advantages, old=old_logps[index], ref=ref_logps[index]):
                    params = {name: value.astype(self.compute_dtype) for name, value in masters.items()}
                    mask = batch.completion_mask
                    logps, entropy = score(self.config, params, batch, args.temperature)
                    loss, metrics = grpo_loss_and_metrics(
                        loss_config, logps, old, advantages, mask, ref_logps=ref, num_items_in_batch=num_tokens
                    )
                    metrics["entropy"] = mx.sum(entropy * mask) / mx.maximum(mask.sum(), 1)
                    return loss * share, logps, metrics

                (loss, logps, metrics), grads = mx.value_and_grad(loss_fn)(self.master_params)
                if total_grads is not None:
                    grads = {name: total_grads[name] + grad for name, grad in grads.items()}
                total_grads = grads
                mx.eval(loss, logps, metrics, total_grads)
                if old_logps[index] is None:
                    old_logps[index] = mx.stop_gradient(logps)
                total_metrics["loss"] = total_metrics.get("loss", 0.0) + loss.item()
                for name, value in metrics.items():
                    total_metrics[name] = total_metrics.get(name, 0.0) + value.item() / len(micro_batches)
            total_metrics["grad_norm"] = self._update(total_grads, learning_rate, total_metrics["loss"])
            history.append(total_metrics)
        means = {name: _mean([metrics[name] for metrics in history]) for name in history[0]}
        return means | {"learning_rate": learning_rate}

    @contextmanager
    def _all_updates_or_none(self) -> Iterator[None]:
        """Take back the updates of a step that fails after the first of them.

        A step of one update needs nothing taken back, and is spared the memory of two sets of parameters and moments.
        """
        if self.args.num_iterations == 1:
            yield
            return
        master_params, optimizer_state = self.master_params, tree_map(lambda array: array, self.optimizer.state)
        try:
            yield
        except BaseException:
            self.master_params, self.optimizer.state = master_params, optimizer_state
            raise

    def _micro_batch(self, completions: Sequence[Completion]) -> tuple[PaddedBatch, mx.array]:
        prompts = [completion.prompt_ids for completion in completions]
        batch = pad_batch(self.config, prompts, [completion.completion_ids for completion in completions])
        if self.args.mask_truncated_completions:
            finished = mx.array([completion.finished for completion in completions])
            batch = replace(batch, completion_mask=batch.completion_mask & finished[:, None])
        return batch, mx.array([completion.advantage for completion in completions])

    def _ref_logps(self, batch: PaddedBatch) -> mx.array | None:
        if self.ref_params is None:
            return None
        logps, _ = score(self.config, self.ref_params, batch, self.args.temperature)
        mx.eval(logps)
        return logps

    def _learning_rate(self, max_steps: int) -> float:
        rate = self.args.learning_rate
        if self.step < self.args.warmup_steps:
            return rate * (self.step + 1) / (self.args.warmup_steps + 1)
        if self.args.lr_scheduler_type == "linear":
            return rate * (max_steps - self.step) / max(max_steps - self.args.warmup_steps, 1)
        return rate

    def _update(self, grads: dict[str, mx.array], learning_rate: float, loss: float) -> float:
        """One AdamW step with clipped gradients; returns the length of the gradient before clipping."""
        grads, grad_norm = optim.clip_grad_norm(grads, self.args.max_grad_norm)
        grad_norm = grad_norm.item()
        if not (math.isfinite(grad_norm) and math.isfinite(loss)):
            raise TrainingDivergedError(
                f"Step {self.step + 1} has loss {loss} and gradient norm {grad_norm}; no update was made, and the "
                f"parameters are those of step {self.step}. Lower learning_rate (now {self.args.learning_rate:g}) and "
                "go on from a checkpoint."
            )
        self.optimizer.learning_rate = learning_rate
        self.master_params = self.optimizer.apply_gradients(grads, self.master_params)
        mx.eval(self.master_params, self.optimizer.state)
        return grad_norm


def _sampling_metrics(
    completions: Sequence[Completion], rewards: np.ndarray, by_name: Mapping[str, np.ndarray], num_generations: int
) -> dict[str, float]:
    """TRL's metrics of a batch of completions. A metric without a value in this step (no scored completion) is NaN."""
    metrics = {"reward": _mean(rewards), "reward_std": _std(rewards)}
    for name, values in by_name.items():
        metrics |= {f"rewards/{name}/mean": _mean(values), f"rewards/{name}/std": _std(values)}
    # A group that no function scored has the range NaN, which is not 0: TRL does not count it either.
    groups = rewards.reshape(-1, num_generations)
    ranges = np.fmax.reduce(groups, axis=1) - np.fmin.reduce(groups, axis=1)
    metrics["frac_reward_zero_std"] = float((ranges == 0).mean())
    lengths = [len(completion.completion_ids) for completion in completions]
    metrics |= {
        "completions/mean_length": _mean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": _mean([not completion.finished for completion in completions]),
    }
    return metrics


def _mean(values: Sequence[float] | np.ndarray) -> float:
    values = np.asarray(values, np.float64)
    return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan


def _std(values: np.ndarray) -> float:
    values = values[~np.isnan(values)]
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _chunks(rows: Sequence, size: int) -> list[Sequence]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
