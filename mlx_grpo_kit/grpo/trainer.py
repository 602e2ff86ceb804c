"""The GRPO training loop: sample, reward, compare within the group, update; and save or resume at any step.

    trainer = GRPOTrainer(config, params, tokenizer, task, GRPOConfig(learning_rate=2e-4))
    for step in trainer.train(max_steps=200):
        print(step.step, step.metrics["reward"])

Algorithm 1 of DeepSeekMath (https://arxiv.org/abs/2402.03300) without its reward model. The trainer is an iterator:
whatever should happen during training happens in the body of the loop, and leaving the loop stops it.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from mlx_grpo_kit.blas import all_cores, bound, mx
from mlx_grpo_kit.fork import refuse_after_fork
from mlx_grpo_kit.generation import Rollout, SamplingConfig, generate, stop_at
from mlx_grpo_kit.grpo.advantages import compute_advantages, soft_overlong_punishment, weighted_sum
from mlx_grpo_kit.grpo.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from mlx_grpo_kit.grpo.config import MAY_CHANGE, GRPOConfig
from mlx_grpo_kit.grpo.gradients import batch_loss
from mlx_grpo_kit.grpo.layer_by_layer import add_gradients
from mlx_grpo_kit.grpo.learner import learner_of
from mlx_grpo_kit.grpo.logps import PaddedBatch, score
from mlx_grpo_kit.grpo.loss import GRPOLossConfig, grpo_loss_and_metrics, metric_names, token_mean
from mlx_grpo_kit.grpo.memory import completion_batch_size
from mlx_grpo_kit.grpo.metrics import mean, sampling_metrics
from mlx_grpo_kit.grpo.micro_batches import MicroBatch, micro_batches
from mlx_grpo_kit.grpo.optimizer import LARGEST_RATE, OPTIMIZERS, interrupts_wait
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.grpo.rewards import Failure, compute_rewards
from mlx_grpo_kit.grpo.schedule import scheduled_rate
from mlx_grpo_kit.grpo.turns import Turns
from mlx_grpo_kit.habits import names_habits
from mlx_grpo_kit.qwen3 import Qwen3Config, count_total_parameters, save_pretrained, validate_params
from mlx_grpo_kit.qwen3.adapters import Adapters, save_adapters
from mlx_grpo_kit.qwen3.lora import adapt, fingerprint, init_lora
from mlx_grpo_kit.qwen3.params import check_weights
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.tasks.calls import are_correct, held_out_problems, sample_problems
from mlx_grpo_kit.tasks.catalogue import validate_task
from mlx_grpo_kit.tasks.signatures import reward_name, takes_names
from mlx_grpo_kit.tasks.task import Problem, Task, TaskError, prompt_text

# Tokens times parameters of a micro-batch, above which learning gets all cores. With MKL on two cores 0.8M parameters
# and 1,400 tokens gain nothing by a second thread, and 5.2M a fifth (beside a busy program they lose two fifths).
# OpenBLAS spins while it waits: there 5.2M gain a quarter, and beside a busy program take twice as long, so only what
# is larger goes. A fixed bound, because another number of threads rounds differently: the same seed stays the same run.
MANY_PRODUCTS = 3e10 if "openblas" in str(bound) else 3e9

# Parameters above which sampling gets all cores too: each token reads them all, no cache holds them, and two cores read
# nearly twice as much from memory as one. (A smaller model is in the cache, and there a second thread slows it down.)
MANY_PARAMETERS = 1e8


class TrainingDivergedError(RuntimeError):
    """A loss, a gradient or an updated parameter is no finite number. The trainer is still that of the last good step.

    It may go on with another learning rate: `trainer.change(learning_rate=1e-5)`.
    """


@dataclass(frozen=True)
class Completion:
    """One sampled completion and what became of it. `rewards` is by function, None where a function did not apply.

    `group` is the number of its group among all that were sampled in the step, from 0.
    """

    problem: Problem
    prompt: str
    prompt_ids: list[int]
    completion: str
    completion_ids: list[int]
    logps: list[float]
    entropies: list[float]
    finished: bool
    rewards: dict[str, float | None]
    reward: float
    advantage: float
    group: int = 0


@dataclass(frozen=True)
class TrainStep:
    """One step: its number from 1, its metrics (Python floats under TRL's names), and what it learned from.

    Among several processes the metrics are of all their completions, and `completions` this process's own.

    `changes` is what was changed between this step and the one before it: the new value of each setting,
    "reward_funcs" as a list of their names, and "rewound_from", the step at which the trainer was before a `rewind`.
    """

    step: int
    metrics: dict[str, float]
    completions: list[Completion]
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """A trainer between two steps, as `snapshot` returns it and `rewind` takes it.

    It holds the arrays themselves. Training puts others in their place, so taking one costs nothing, and each one that
    is kept then holds `nbytes`: with AdamW 12 bytes a parameter. For a model of billions, write checkpoints instead.
    """

    step: int
    args: GRPOConfig
    reward_funcs: Sequence[Callable]
    master_params: Mapping[str, mx.array]
    ref_params: Mapping[str, mx.array] | None
    optimizer_state: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Of the parameters and the optimizer's state."""
        moments = [
            value for state in self.optimizer_state.values() if isinstance(state, dict) for value in state.values()
        ]
        return sum(value.nbytes for value in [*self.master_params.values(), *moments])


@names_habits("argument")
class GRPOTrainer:
    """Trains a Qwen3 on a task by group relative policy optimization.

    Attributes that a reader of a run may use: `params` (the policy, a dict of arrays; replaced, never changed in
    place), `step` (steps done), `config`, `tokenizer`, `task`, `args`, `reward_funcs` (the task's own until `change`).

    Args:
        config, params: the policy, as `load_pretrained` returns it. The optimizer has it in float32; forward and
            backward passes are in the dtype of the parameters, or in bfloat16 where `args` say so. With `args.lora_r`
            the parameters, which may be quantized, stay as they are and adapters are trained beside them.
        tokenizer: as `load_tokenizer` returns it.
        task: where problems and rewards come from (mlx_grpo_kit.tasks).
        args: the settings.
        world: the processes that train this policy together. Each makes a trainer of the same arguments, and goes
            through the same steps of `train` with it. Reward functions then see this process's groups only.

    Raises ValueError where parameters and configuration, tokenizer and vocabulary, or groups and processes, do not fit
    each other, and TypeError for a task that is none (`validate_task`).
    """

    def __init__(
        self,
        config: Qwen3Config,
        params: Mapping[str, mx.array],
        tokenizer: Tokenizer,
        task: Task,
        args: GRPOConfig | None = None,
        world: World | None = None,
        *,
        _saved: Checkpoint | None = None,
    ):
        refuse_after_fork()
        self.args = args or GRPOConfig()
        if self.args.lora_r:
            check_weights(params, config)
        else:
            _refuse_quantized(params)
            validate_params(params, config)
        validate_task(task)
        if tokenizer.vocab_size > config.vocab_size:
            raise ValueError(
                f"The tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size} (vocab_size); "
                "expected a model with a row for every token. Are the two from the same folder?"
            )
        self.config, self.tokenizer, self.task = config, tokenizer, task
        self.world = world or World()
        num_groups = self.args.generation_batch_size // self.args.num_generations
        if num_groups % self.world.size:
            raise ValueError(
                f"A step has {num_groups} groups of {self.args.num_generations} completions, which do not go evenly "
                f"into {self.world.size} processes. Expected per_device_train_batch_size * gradient_accumulation_steps "
                f"(now {self.args.generation_batch_size}) to be a multiple of num_generations * processes "
                f"({self.args.num_generations * self.world.size})."
            )
        self.step = _saved.step if _saved else 0
        self._turns = Turns()
        self._reward_funcs: Sequence[Callable] | None = None
        self._changes: dict[str, Any] = {}  # since the last step
        self._warned_of: set[str] = set()  # reward functions that failed
        self._num_parameters = count_total_parameters(config)
        self.compute_dtype = mx.bfloat16 if self.args.bf16 else params["final_norm.weight"].dtype
        if _saved:
            self.compute_dtype = _saved.compute_dtype
        # What is not trained: the model that adapters stand beside.
        self.frozen: dict[str, mx.array] | None = None
        if self.args.lora_r:
            self.frozen = {name: _cast(value, self.compute_dtype) for name, value in params.items()}
            params = init_lora(config, params, self.args.lora_r, self.args.lora_targets, self.args.seed)
        if _saved:
            params = _saved.master_params
        self.master_params = {name: value.astype(mx.float32) for name, value in params.items()}
        # `beta` pulls towards the policy that training started from; without it nobody needs that policy.
        self.ref_params = (self.frozen or self.params) if self.args.beta else None
        if _saved and self.frozen is None:
            self.ref_params = _saved.ref_params
        self.max_completion_length = self.args.max_completion_length or task.max_completion_length
        if self.args.soft_punish_cache > self.max_completion_length:
            raise ValueError(
                f"soft_punish_cache is {self.args.soft_punish_cache}; expected at most the length of a completion, "
                f"{self.max_completion_length} tokens, of which it is the last part."
            )
        _check_weights(self.args, task.reward_funcs)
        state = _saved.optimizer_state if _saved else None
        self._learner = learner_of(self.args.backend, config, self.compute_dtype)
        self.optimizer = OPTIMIZERS[self.args.optim](self.master_params, self.args.learning_rate, state)
        # Computed now, because training may move to another thread: MLX cannot finish there what was begun here.
        mx.eval(self.master_params, self.frozen, self.ref_params, self.optimizer.state)

    @property
    def params(self) -> dict[str, mx.array]:
        """The policy's parameters, in the dtype that the model computes in; adapters stand beside what is frozen."""
        if self.frozen is None and self.compute_dtype == mx.float32:
            return self.master_params
        return self._policy(self.master_params)

    def _policy(self, masters: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """What the model computes with, from what is trained."""
        trained = {name: value.astype(self.compute_dtype) for name, value in masters.items()}
        return trained if self.frozen is None else adapt(self.frozen, trained, self.args.lora_scale)

    @property
    def reward_funcs(self) -> Sequence[Callable]:
        """What completions are rewarded by: the task's functions, or those that `change` has put in their place."""
        return self.task.reward_funcs if self._reward_funcs is None else self._reward_funcs

    def train(self, max_steps: int) -> Iterator[TrainStep]:
        """Yield each step after it is done, until `max_steps` have been done in all (resumed ones included).

        A step that fails or is interrupted changes nothing, and another loop may go on from there. (Once a model of
        more than 64 MB is being updated, Ctrl-C waits until that step is done.) Between steps other threads may
        evaluate and save. A learning rate that falls does so over all `max_steps`: called again with more of them, it
        begins where the longer run would be (`scheduled_rate`).

        Raises TaskError for problems that are none, RewardError for a reward function that fails,
        TrainingDivergedError, RuntimeError while a loop over this trainer is open in another thread, ProcessLostError
        when another process is gone, and ValueError when the others are not at the same point of the same run.
        """
        with self._turns.loop() as turn:
            with turn():
                self._check_same_in_all()
            while self.step < max_steps:
                with turn(), self._all_or_nothing():
                    step = self._one_step(max_steps)
                yield step

    def evaluate(self, num_problems: int = 256, seed: int = 0) -> dict[str, float]:
        """Answer held-out problems once each, sampled at temperature 1 without filters.

        Returns "eval/accuracy" (the share that `task.is_correct` accepts) and "eval/reward". Training is unaffected.
        Several processes share the problems: all of them have to call this alike, and all get the same.

        Raises TaskError and RewardError as `train` does.
        """
        with self._turns.turn():
            rank, size = self.world.rank, self.world.size
            own = range(rank * num_problems // size, (rank + 1) * num_problems // size)
            results = np.full([math.ceil(num_problems / size), 2], np.nan)  # as many rows in each process
            with self.world.together(TaskError, ValueError):
                problems = held_out_problems(self.task, num_problems)[own.start : own.stop]
                if problems:
                    sampling = SamplingConfig(self.max_completion_length)
                    _, rollout, texts = self._complete(problems, sampling, seed, own.start, num_problems)
                    _, by_name, _ = self._rewards(problems, texts, rollout.completions)
                    rewards = weighted_sum(np.column_stack([*by_name.values()]), self.args.reward_weights)
                    results[: len(own)] = np.column_stack([are_correct(self.task, problems, texts), rewards])
            accuracies, rewards = self.world.gather(results).T
            return {"eval/accuracy": mean(accuracies), "eval/reward": mean(rewards)}

    def change(self, *, reward_funcs: Sequence[Callable] | None = None, **settings: Any) -> None:
        """Go on with other settings or other reward functions from the next step on.

        Args:
            reward_funcs: one or more in the place of those so far; None keeps them. The task itself stays as it is, and
                so does what it counts as correct.
            settings: those in `MAY_CHANGE`, such as `learning_rate=1e-4`.

        The next step has it in `TrainStep.changes`. A checkpoint has the settings, but no functions: give `resume` the
        task with the new ones. Several processes call this alike.

        Raises ValueError for a setting that cannot change or is out of range, and for what are no reward functions;
        nothing is changed then.
        """
        with self._turns.turn():
            self._change(self.args, reward_funcs, settings)

    def snapshot(self) -> Snapshot:
        """The trainer as it is between two steps, for `rewind`. It waits for a step that another thread is in."""
        with self._turns.turn():
            return Snapshot(
                step=self.step,
                args=self.args,
                reward_funcs=tuple(self.reward_funcs),
                master_params=dict(self.master_params),
                ref_params=self.ref_params,
                optimizer_state=dict(self.optimizer.state),
            )

    def rewind(self, snapshot: Snapshot, *, reward_funcs: Sequence[Callable] | None = None, **settings: Any) -> None:
        """Be again where `snapshot` was taken: parameters, optimizer, step, settings and reward functions.

        Problems and sampling follow from the seed and the step's number, so what comes next repeats what came then, to
        the last bit, unless `reward_funcs` or `settings` say otherwise (as for `change`). Later snapshots stay good.

        Raises ValueError as `change` does, and for a snapshot of another run.
        """
        with self._turns.turn():
            other = [
                one.name
                for one in fields(GRPOConfig)
                if one.name not in MAY_CHANGE and getattr(snapshot.args, one.name) != getattr(self.args, one.name)
            ]
            shapes, own = (
                {name: value.shape for name, value in params.items()}
                for params in (snapshot.master_params, self.master_params)
            )
            if other or shapes != own:
                what = f"{other[0]} is {getattr(snapshot.args, other[0])!r}" if other else "its parameters are others"
                raise ValueError(
                    f"The snapshot of step {snapshot.step} is of another run: {what}. Expected one that this trainer's "
                    "snapshot() returned."
                )
            before = self.step
            functions = snapshot.reward_funcs if reward_funcs is None else reward_funcs
            self._change(snapshot.args, functions, settings)
            self._changes["rewound_from"] = before
            self.step = snapshot.step
            self.master_params, self.ref_params = dict(snapshot.master_params), snapshot.ref_params
            self.optimizer.state = dict(snapshot.optimizer_state)

    def _change(self, args: GRPOConfig, reward_funcs: Sequence[Callable] | None, settings: Mapping[str, Any]) -> None:
        """Have `args` with `settings` in them and `reward_funcs`, and note what is not as it was."""
        _refuse_fixed(settings)
        args = replace(args, **settings)
        _check_weights(args, self.reward_funcs if reward_funcs is None else reward_funcs)
        learner = self._learner
        if args.backend != self.args.backend:
            learner = learner_of(args.backend, self.config, self.compute_dtype)
        if reward_funcs is not None and (names := _names(reward_funcs)) and [*reward_funcs] != [*self.reward_funcs]:
            self._changes["reward_funcs"], self._reward_funcs = names, tuple(reward_funcs)
        self._changes |= {
            name: getattr(args, name) for name in MAY_CHANGE if getattr(args, name) != getattr(self.args, name)
        }
        self.args, self._learner = args, learner

    def save_pretrained(self, folder: str | os.PathLike, base: str | os.PathLike | None = None) -> None:
        """Write the policy as a Hugging Face folder, which transformers, mlx-lm and `load_pretrained` read.

        Adapters are written alone, as a folder that mlx-lm and PEFT read (`save_adapters`). It names `base`, the folder
        of the model that they stand beside; `load_pretrained` and `fuse` put the two together.
        """
        with self._turns.turn():
            if self.frozen is None:
                save_pretrained(folder, self.config, self.params, tokenizer=self.tokenizer)
            else:
                save_adapters(folder, self.config, self._adapters(base), tokenizer=self.tokenizer)

    def _adapters(self, base: str | os.PathLike | None = None) -> Adapters:
        named = None if base is None else os.path.abspath(base)
        return Adapters(self.master_params, self.args.lora_scale, named, fingerprint(self.frozen))

    def save_checkpoint(self, folder: str | os.PathLike) -> None:
        """Write everything that `resume` needs; the folder appears whole or not at all."""
        with self._turns.turn():
            checkpoint = Checkpoint(
                step=self.step,
                task=self.task.name,
                args=self.args,
                config=self.config,
                master_params=self.master_params,
                adapters=self._adapters() if self.frozen else None,
                tokenizer=self.tokenizer,
                compute_dtype=self.compute_dtype,
                ref_params=None if self.frozen else self.ref_params,
                optimizer_state=self.optimizer.state,
            )
            save_checkpoint(folder, checkpoint)

    @classmethod
    def resume(
        cls,
        folder: str | os.PathLike,
        task: Task,
        *,
        world: World | None = None,
        base: tuple[Qwen3Config, Mapping[str, mx.array]] | None = None,
        **changes: Any,
    ) -> GRPOTrainer:
        """A trainer that goes on from a checkpoint with the numbers the saved one would have had.

        Args:
            folder: what `save_checkpoint` wrote.
            task: the same as before.
            world: the processes that go on together, as many as one likes; each reads the folder.
            base: where adapters are trained, the model that they stand beside, as `load_pretrained` returns it: it does
                not change, and a checkpoint holds no copy.
            changes: settings to go on with instead of the saved ones, such as `learning_rate=1e-4`; those in
                `MAY_CHANGE` only.

        Raises FileNotFoundError or ValueError for a folder that is no whole checkpoint or is another task's, for a base
        that is missing or another one, and for a setting that cannot change.
        """
        _refuse_fixed(changes)
        saved = load_checkpoint(folder)
        _check_base(folder, saved, base)
        config, params = base or (saved.config, saved.master_params)
        if task.name != saved.task:
            raise ValueError(f"{folder} was trained on task {saved.task!r}, not {task.name!r}. Give the same task.")
        trainer = cls(config, params, saved.tokenizer, task, saved.args, world, _saved=saved)
        trainer._change(saved.args, None, changes)
        return trainer

    def _complete(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        seed: int,
        first_row: int = 0,
        num_rows: int | None = None,
    ) -> tuple[list[list[int]], Rollout, list[str]]:
        """One completion a problem: the prompts' tokens, the completions' tokens, and their text.

        `first_row` and `num_rows` are `generate`'s: which part of a larger batch the problems are.
        """
        prompts = encode_prompts(self.tokenizer, self.task, self.args, problems)
        num_positions = max(map(len, prompts)) + sampling.max_new_tokens
        size = completion_batch_size(self.config, self.args, num_positions, self.compute_dtype)
        stop_strings = self.args.stop_strings
        with all_cores() if self._num_parameters > MANY_PARAMETERS else nullcontext():
            rollout = generate(
                self.config,
                self.params,
                prompts,
                sampling=sampling,
                eos_token_ids=self.tokenizer.eos_token_ids,
                stop=stop_at(self.tokenizer.decode, stop_strings) if stop_strings else None,
                seed=seed,
                first_row=first_row,
                num_rows=num_rows,
                completion_batch_size=size,
            )
        return prompts, rollout, [self.tokenizer.decode(ids) for ids in rollout.completions]

    def _rewards(
        self, problems: Sequence[Problem], texts: Sequence[str], completion_ids: Sequence[list[int]]
    ) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The rewards [B], each function's, and where each failed (1.0), if failures are skipped."""
        failures: list[Failure] | None = [] if self.args.on_reward_error == "skip" else None
        functions = self.reward_funcs
        rewards, by_name = compute_rewards(functions, problems, texts, completion_ids=completion_ids, failures=failures)
        if failures is None:
            return rewards, by_name, {}
        failed = {reward_name(function): np.zeros(len(texts)) for function in functions}
        for name, index, message in failures:
            failed[name][index] = 1
            if name not in self._warned_of:
                self._warned_of.add(name)
                warnings.warn(
                    f"{message} It counts as not scored, as later ones will (on_reward_error='skip'): see the metric "
                    f"rewards/{name}/failed.",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return rewards, by_name, failed

    def _sample(self, own: Sequence[int], places: Sequence[int], attempt: int) -> dict[int, _Group]:
        """A group of completions, rewarded but not compared, for each of this process's `own` places in the batch.

        `own` are some in a row of `places`, which are drawn at once by all processes together: what a place gets
        depends on these, the step and the attempt alone, so that any number of processes draws the same.
        """
        args, size = self.args, self.args.num_generations
        # Numbers from (seed, step, attempt): a resumed run needs no state of a random generator.
        problem_seed, sampling_seed = np.random.SeedSequence([args.seed, self.step, attempt]).generate_state(2)
        problems = sample_problems(self.task, np.random.default_rng(problem_seed), len(places))
        first = places.index(own[0]) if own else 0
        problems = [problem for problem in problems[first : first + len(own)] for _ in range(size)]
        groups: dict[int, _Group] = {}
        with self.world.together(TaskError, ValueError):
            if problems:
                sampling, num_rows = args.sampling(self.max_completion_length), len(places) * size
                prompts, rollout, texts = self._complete(problems, sampling, int(sampling_seed), first * size, num_rows)
                _, by_name, failed = self._rewards(problems, texts, rollout.completions)
                lengths = [*map(len, rollout.completions)]
                if args.soft_punish_cache:
                    by_name["soft_overlong_punishment_reward"] = soft_overlong_punishment(
                        lengths, self.max_completion_length, args.soft_punish_cache
                    )
                rows = _records(problems, prompts, rollout, texts, by_name, np.repeat(own, size).tolist())
                numbers = np.column_stack([*by_name.values(), *failed.values(), lengths, rollout.finished])
                for place, start in zip(own, range(0, len(rows), size), strict=True):
                    groups[place] = _Group(rows[start : start + size], numbers[start : start + size])
        return groups

    def _compare(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every function's rewards [N, F] -> their weighted sums [N], and advantages [N]."""
        args = self.args
        weights = np.ones(scores.shape[1])
        if args.reward_weights is not None:
            weights[: len(args.reward_weights)] = args.reward_weights  # the overlong penalty has none of its own
        advantages = compute_advantages(
            scores,
            args.num_generations,
            args.scale_rewards,
            advantage_estimator=args.advantage_estimator,
            reward_weights=weights,
            multi_objective_aggregation=args.multi_objective_aggregation,
        )
        return weighted_sum(scores, weights), np.array(advantages)

    def _one_step(self, max_steps: int) -> TrainStep:
        """Sample a group of completions for each problem, reward them, compare within the groups, update the policy."""
        args, started = self.args, time.perf_counter()
        places = range(args.generation_batch_size // args.num_generations)
        own, groups = self.world.share(places), {}
        missing, rewards_drawn = [*places], []
        for attempt in range(1 + args.dynamic_sampling_rounds):
            groups |= self._sample([place for place in own if place in missing], missing, attempt)
            completions = [completion for place in own for completion in groups[place].completions]
            # From here on [N], the rows of all processes.
            table = self.world.gather(np.concatenate([groups[place].numbers for place in own]))
            num_functions = len(completions[0].rewards)
            rewards, advantages = self._compare(table[:, :num_functions])
            by_group = advantages.reshape(len(places), -1)
            rewards_drawn.append(rewards.reshape(by_group.shape)[missing])
            missing = np.flatnonzero(~by_group.any(axis=1)).tolist()
            if not missing:
                break

        first_row = own.start * args.num_generations
        rows = zip(completions, rewards[first_row:].tolist(), advantages[first_row:].tolist(), strict=False)
        completions = [replace(each, reward=reward, advantage=advantage) for each, reward, advantage in rows]
        *scores, lengths, finished = table.T
        by_name, failed = dict(zip(completions[0].rewards, scores, strict=False)), scores[num_functions:]
        metrics = sampling_metrics(rewards, by_name, lengths, finished, args.num_generations)
        if args.on_reward_error == "skip":
            names = map(reward_name, self.reward_funcs)
            metrics |= {f"rewards/{name}/failed": mean(each) for name, each in zip(names, failed, strict=True)}
        if args.dynamic_sampling_rounds:
            metrics["dynamic_sampling/groups_drawn"] = float(sum(map(len, rewards_drawn)))
            metrics["dynamic_sampling/reward"] = mean(np.concatenate(rewards_drawn))
        counted = finished if args.mask_truncated_completions else 1
        num_counted, learning_rate = (lengths * counted).astype(int), self.learning_rate(max_steps)
        metrics |= self._update(completions, num_counted, first_row, learning_rate)

        metrics["step_time"] = time.perf_counter() - started
        changes, self._changes = self._changes, {}
        return TrainStep(self.step, metrics, completions, changes)

    def _update(
        self, completions: Sequence[Completion], num_counted: np.ndarray, first_row: int, learning_rate: float
    ) -> dict[str, float]:
        """`num_iterations` updates from one batch of completions; returns the means of their metrics.

        `completions` are this process's, from `first_row` on; `num_counted` is all processes' [N] (`micro_batches`).
        """
        loss_config = self.args.loss(self.max_completion_length)
        entropies = None
        if loss_config.top_entropy_quantile < 1:
            entropies = np.zeros([len(completions), self.max_completion_length])
            for row, completion in zip(entropies, completions, strict=True):
                row[: len(completion.entropies)] = completion.entropies
            entropies = self.world.gather(entropies)
        batches, left_out = micro_batches(
            self.config, self.args, loss_config, completions, num_counted, first_row, entropies
        )
        if self.ref_params is not None:
            for micro in batches:
                micro.ref_logps = self._score(self.ref_params, micro.batch)
                mx.eval(micro.ref_logps)
        history: list[dict[str, float]] = []
        for _ in range(self.args.num_iterations):
            grads, metrics = self._gradients(batches, loss_config, left_out)
            metrics["grad_norm"] = self.optimizer.norm(grads)
            if not (math.isfinite(metrics["grad_norm"]) and math.isfinite(metrics["loss"])):
                raise self._diverged(f"has loss {metrics['loss']} and gradient norm {metrics['grad_norm']}")
            with interrupts_wait():
                self._apply(grads, metrics["grad_norm"], learning_rate)
                if len(history) + 1 == self.args.num_iterations:
                    self.step += 1
                    self._sync_reference()
            history.append(metrics)
        means = {name: mean([metrics[name] for metrics in history]) for name in history[0]}
        if loss_config.entropy_coef:
            means["entropy_coef"] = loss_config.entropy_coef
        return means | {"learning_rate": learning_rate}

    def _sync_reference(self) -> None:
        """Move the reference towards the policy, after every so many steps. As TRL's SyncRefModelCallback."""
        args, alpha = self.args, self.args.ref_model_mixup_alpha
        if args.sync_ref_model and self.step % args.ref_model_sync_steps == 0:
            policy = self.params
            self.ref_params = {
                name: value * (1.0 - alpha) + alpha * policy[name] for name, value in self.ref_params.items()
            }
            mx.eval(self.ref_params)

    def _gradients(
        self, batches: Sequence[MicroBatch], loss_config: GRPOLossConfig, left_out: Mapping[str, float]
    ) -> tuple[dict[str, mx.array], dict[str, float]]:
        """The gradient of all micro-batches of all processes together, and their metrics.

        Without any micro-batch it is 0: moments still decay.
        """
        grads: dict[str, mx.array] = {}
        totals = dict.fromkeys(("loss", *metric_names(loss_config)), 0.0) | left_out
        add = self._add_by_layer if self.args.gradient_checkpointing else self._add_at_once
        if self._learner is not None:
            add = self._add_elsewhere
        for micro in batches:
            num_tokens = micro.batch.prompt_ids.size + micro.batch.completion_ids.size
            with all_cores() if num_tokens * self._num_parameters > MANY_PRODUCTS else nullcontext():
                loss, logps, metrics = add(grads, micro, loss_config)
            if micro.old_logps is None:
                micro.old_logps = mx.stop_gradient(logps)
            for name, value in {"loss": loss, **metrics}.items():
                totals[name] = totals.get(name, 0.0) + value.item()
        if not batches:
            grads = {name: mx.zeros_like(value) for name, value in self.master_params.items()}
        sums = self.world.gather(np.array([[*totals.values()]])).sum(axis=0)
        return self.world.sum(grads), dict(zip(totals, sums.tolist(), strict=True))

    def _score(self, params: Mapping[str, mx.array], batch: PaddedBatch) -> mx.array:
        """Log-probabilities of a micro-batch's completions under a policy, [B, T]."""
        if self._learner is not None:
            return self._learner.score(params, batch, self.args.temperature)
        return score(self.config, params, batch, self.args.temperature)[0]

    def _add_elsewhere(
        self, grads: dict[str, mx.array], micro: MicroBatch, loss_config: GRPOLossConfig
    ) -> tuple[Any, mx.array, dict[str, Any]]:
        """`_add_at_once` in another framework: loss and metrics are scalars of its own."""
        return self._learner.add_gradients(self.master_params, grads, micro, loss_config, self.args.temperature)

    def _add_at_once(
        self, grads: dict[str, mx.array], micro: MicroBatch, loss_config: GRPOLossConfig
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        """Add a micro-batch's gradient to `grads`, all of the model in one graph; returns (loss, logps, metrics)."""

        def loss_fn(masters: dict[str, mx.array]):
            return batch_loss(
                self.config,
                self._policy(masters),
                micro.batch,
                micro.advantages,
                loss_config,
                old_logps=micro.old_logps,
                ref_logps=micro.ref_logps,
                temperature=self.args.temperature,
                part=micro.part,
                output_gradient=self.frozen is None,
            )

        (loss, logps, metrics), found = mx.value_and_grad(loss_fn)(self.master_params)
        # Taken out of the dictionary, so that MLX adds in place.
        grads |= {name: grads.pop(name) + found.pop(name) if name in grads else found.pop(name) for name in [*found]}
        mx.eval(loss, logps, metrics, grads)
        return loss, logps, metrics

    def _add_by_layer(
        self, grads: dict[str, mx.array], micro: MicroBatch, loss_config: GRPOLossConfig
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        """`_add_at_once` with no more in memory than one transformer block's inside."""

        def loss_fn(logps: mx.array, entropy: mx.array):
            mask = micro.batch.completion_mask
            loss, metrics = grpo_loss_and_metrics(
                loss_config,
                logps,
                micro.old_logps,
                micro.advantages,
                mask,
                ref_logps=micro.ref_logps,
                entropies=entropy,
                part=micro.part,
            )
            return loss, metrics | {"entropy": token_mean(mx.stop_gradient(entropy), mask, micro.part)}

        return add_gradients(
            self.config,
            self.master_params,
            micro.batch,
            loss_fn,
            grads,
            self.args.temperature,
            self.compute_dtype,
            entropy_gradient=loss_config.entropy_coef != 0,
            frozen=self.frozen,
            scale=self.args.lora_scale,
        )

    def _apply(self, grads: dict[str, mx.array], grad_norm: float, learning_rate: float) -> None:
        """One step of the optimizer, evaluated. What could leave a number that is not finite is refused before it."""
        weight_decay, max_norm = self.args.weight_decay, self.args.max_grad_norm
        if not (learning_rate <= LARGEST_RATE and learning_rate * weight_decay <= 2):
            raise self._diverged(
                f"would set parameters to numbers that are not finite (learning rate {learning_rate:g}, weight decay "
                f"{weight_decay:g})"
            )
        params = dict(self.master_params)
        if self._keeps_nothing:
            self.master_params = params
        self.optimizer.update(params, grads, learning_rate, weight_decay, min(max_norm / (grad_norm + 1e-6), 1.0))
        self.master_params = params

    def _check_same_in_all(self) -> None:
        """Raises ValueError where another process has other settings, another step, or a policy with other numbers."""
        said = hashlib.sha256(repr((self.task.name, self.args, self.config, self.step)).encode())
        if self.frozen is not None:
            said.update(fingerprint(self.frozen).encode())
        for name, value in sorted(self.master_params.items()):
            flat = value.reshape(-1)
            said.update(name.encode() + np.array(flat[:: flat.size // 64 + 1]).tobytes())
        hashes = self.world.gather(np.frombuffer(said.digest(), np.uint8)[None])
        if different := [rank for rank, other in enumerate(hashes) if (other != hashes[0]).any()]:
            raise ValueError(
                f"Process {different[0]} is not where process 0 is; expected the same task, settings, model and step "
                "in all of them. Do all read the same folders?"
            )

    def _diverged(self, what: str) -> TrainingDivergedError:
        return TrainingDivergedError(
            f"Step {self.step + 1} {what}; no update was made, and the parameters are those of step {self.step}. "
            f"Lower learning_rate (now {self.args.learning_rate:g}) and go on from there or from an earlier checkpoint."
        )

    @property
    def _keeps_nothing(self) -> bool:
        """Whether old numbers go as new ones come. A large model's single update is all or nothing by itself.

        What can fail has been checked before it, and Ctrl-C waits until the step is counted.
        """
        return self.optimizer.is_large and self.args.num_iterations == 1

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Take back what a step has changed, if it fails."""
        reference, before = self.ref_params, None
        if not self._keeps_nothing:
            before = (self.step, self.master_params, dict(self.optimizer.state), reference)
        try:
            yield
        except BaseException:
            if before is not None:
                self.step, self.master_params, self.optimizer.state, self.ref_params = before
            raise

    def learning_rate(self, max_steps: int) -> float:
        """That of the next step, on the way to `max_steps` (mlx_grpo_kit/grpo/schedule.py)."""
        args = self.args
        return scheduled_rate(args.learning_rate, args.lr_scheduler_type, self.step, max_steps, args.warmup_steps)


def _cast(value: mx.array, dtype: mx.Dtype) -> mx.array:
    """In another dtype, unless it is packed."""
    return value.astype(dtype) if mx.issubdtype(value.dtype, mx.floating) else value


def _refuse_quantized(params: Mapping[str, mx.array]) -> None:
    if any(name.endswith(".scales") for name in params):
        raise ValueError(
            "The model is quantized, and packed numbers cannot be trained. Train adapters beside it with lora_r=8 "
            "(--lora-r 8), or make float numbers of it first: dequantize(config, params)."
        )


def _check_base(
    folder: str | os.PathLike, saved: Checkpoint, base: tuple[Qwen3Config, Mapping[str, mx.array]] | None
) -> None:
    """Raises ValueError where a checkpoint and the model that is given for its adapters do not fit each other."""
    if saved.adapters is None and base is not None:
        raise ValueError(f"{folder} holds a whole policy, and needs no base. Leave base out.")
    if saved.adapters is not None and base is None:
        raise ValueError(
            f"{folder} holds adapters without the model that they stand beside. Give it: "
            "GRPOTrainer.resume(folder, task, base=load_pretrained(MODEL))."
        )
    if saved.adapters is not None:
        if base[0] != saved.config:
            raise ValueError(f"{folder} holds adapters of another model than the one given: {saved.config}.")
        saved.adapters.check_base(base[1])


def encode_prompts(tokenizer: Tokenizer, task: Task, args: GRPOConfig, problems: Sequence[Problem]) -> list[list[int]]:
    """The prompts' tokens. A problem that stands there several times, as a group's does, is written once."""
    settings = getattr(task, "chat_template_kwargs", {}) | (args.chat_template_kwargs or {})
    once = {id(problem): problem for problem in problems}
    ids = {key: tokenizer.encode_prompt(problem.prompt, **settings) for key, problem in once.items()}
    return [ids[id(problem)] for problem in problems]


def _refuse_fixed(settings: Mapping[str, Any]) -> None:
    if fixed := sorted(settings.keys() - set(MAY_CHANGE)):
        raise ValueError(f"{fixed[0]} cannot change while a run goes on; only {', '.join(MAY_CHANGE)} can.")


def _names(reward_funcs: Sequence[Callable]) -> list[str]:
    """The names that metrics are logged by. Raises ValueError for what are no reward functions."""
    functions = reward_funcs if isinstance(reward_funcs, Sequence) and all(map(callable, reward_funcs)) else []
    names = [reward_name(function) for function in functions]
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"reward_funcs is {reward_funcs!r}; expected a list of one or more functions with different names, as "
            "metrics are logged by them."
        )
    for function in functions:
        takes_names(function)  # one that can be called in neither way is told now
    return names


class _Group(NamedTuple):
    """The completions of one problem, and of each a row of what all processes have to know.

    Columns: every function's reward, where each failed if failures are skipped, length, and whether it ended by itself.
    """

    completions: list[Completion]
    numbers: np.ndarray


def _records(
    problems: Sequence[Problem],
    prompts: Sequence[list[int]],
    rollout: Rollout,
    texts: Sequence[str],
    by_name: Mapping[str, np.ndarray],
    groups: Sequence[int],
) -> list[Completion]:
    """What was sampled, with every function's rewards; their sum and the advantage are not known yet."""
    return [
        Completion(
            problem=problem,
            prompt=prompt_text(problem.prompt),
            prompt_ids=prompts[i],
            completion=texts[i],
            completion_ids=rollout.completions[i],
            logps=rollout.logps[i],
            entropies=rollout.entropies[i],
            finished=rollout.finished[i],
            rewards={name: None if math.isnan(values[i]) else float(values[i]) for name, values in by_name.items()},
            reward=math.nan,
            advantage=0.0,
            group=groups[i],
        )
        for i, problem in enumerate(problems)
    ]


def _check_weights(args: GRPOConfig, reward_funcs: Sequence[Callable]) -> None:
    if args.reward_weights is not None and len(args.reward_weights) != len(reward_funcs):
        raise ValueError(
            f"reward_weights are {args.reward_weights}; expected a number for each of the {len(reward_funcs)} reward "
            f"functions ({', '.join(_names(reward_funcs))})."
        )
