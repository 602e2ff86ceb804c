"""The GRPO training loop: state and life cycle around one step (`step.py`), with save, rewind and resume at any step.

    trainer = GRPOTrainer(config, params, tokenizer, task, GRPOConfig(learning_rate=2e-4))
    for step in trainer.train(max_steps=200):
        print(step.step, step.metrics["reward"])

The trainer is an iterator: the body of your loop runs after each step, and leaving the loop stops training.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mlx_grpo_kit.generation.padding import TokenIds
from mlx_grpo_kit.grpo.batch import Batch
from mlx_grpo_kit.grpo.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from mlx_grpo_kit.grpo.config import GRPOConfig, changed_settings, check_changes
from mlx_grpo_kit.grpo.evaluation import evaluate
from mlx_grpo_kit.grpo.learners import Learner
from mlx_grpo_kit.grpo.metrics import batch_metrics, redraw_metrics
from mlx_grpo_kit.grpo.objectives import LossType
from mlx_grpo_kit.grpo.optimizer import PolicyOptimizer, TrainingDivergedError
from mlx_grpo_kit.grpo.own_batch import own_batch
from mlx_grpo_kit.grpo.own_parts import OwnParts
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.grpo.prompts import check_prompts
from mlx_grpo_kit.grpo.rewards import check_reward_funcs
from mlx_grpo_kit.grpo.sampler import PolicySampler, Sampler
from mlx_grpo_kit.grpo.schedule import own_rate, scheduled_rate
from mlx_grpo_kit.grpo.state import Snapshot, TrainStep
from mlx_grpo_kit.grpo.step import Advantages, Parts, grpo_step, learn_from
from mlx_grpo_kit.grpo.training_loop import TrainerLock, TrainingLoop
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.fork import refuse_after_fork
from mlx_grpo_kit.runtime.habits import names_habits
from mlx_grpo_kit.tasks.catalogue import validate_task
from mlx_grpo_kit.tasks.signatures import as_reward_funcs
from mlx_grpo_kit.tasks.task import Task
from mlx_grpo_kit.tasks.tools import environment_rewards, task_tools


@names_habits("argument")
class GRPOTrainer:
    """Train a Qwen3 on a task by group relative policy optimization.

    Attributes that you may read: `params` (the policy, a dict of arrays; replaced, never changed in place), `policy`
    (with the trained and the frozen parameters), `parts` (of a step), `step` (steps done), `config`, `tokenizer`,
    `task`, `args`, `reward_funcs` (those of the task and its environments, until you `change` them).

    Args:
        config, params: the policy, as `load_pretrained` returns it. The optimizer keeps it in float32; forward and
            backward passes are in the dtype of the parameters, or in bfloat16 with `args.bf16`. With `args.lora_r` the
            parameters, which may be quantized, are frozen, and adapters are trained.
        tokenizer: as `load_tokenizer` returns it.
        task: the source of problems and rewards (mlx_grpo_kit.tasks).
        args: the settings.
        world: the processes that train this policy together. Each makes a trainer with the same arguments, and iterates
            over the same steps of `train`. Reward functions then see only this process's groups.
        sampler, advantages: your own parts of a step (`step.Parts`). None means the kit's.
        loss: your own `LossType`. None means the one that `args.loss_type` names.
        learner: a subclass of `Learner`. None means the one that `args` select.

    Raises ValueError if parameters and configuration, tokenizer and vocabulary, or groups and processes do not match,
    and TypeError if the task lacks a method (`validate_task`).
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
        sampler: Sampler | None = None,
        advantages: Advantages | None = None,
        loss: LossType | None = None,
        learner: type[Learner] | None = None,
        _saved: Checkpoint | None = None,
    ):
        refuse_after_fork()
        if not isinstance(args, GRPOConfig | None):
            raise TypeError(
                f"args is a {type(args).__module__}.{type(args).__name__}; expected mlx_grpo_kit.grpo.GRPOConfig, "
                "whose settings have TRL's names."
            )
        self.args, self.world = args or GRPOConfig(), world or World()
        self.policy = _saved.policy if _saved else Policy.begin(config, params, self.args)
        validate_task(task)
        self.args.check_processes(self.world.size)
        self.config, self.tokenizer, self.task = config, tokenizer, task
        self.max_completion_length = self.args.max_completion_length or task.max_completion_length
        self.reward_funcs: Sequence[Callable] = [*task.reward_funcs, *environment_rewards(task)]
        self.args.check_task(self.max_completion_length, self.reward_funcs)
        self.step = _saved.step if _saved else 0
        self._origin = (_saved and _saved.origin) or self.policy.origin(task.name)
        self.own_parts = OwnParts(sampler, advantages, loss, learner)
        check_prompts(config, tokenizer, task, self.args, self.max_completion_length)
        self.optimizer = PolicyOptimizer(self.policy, self.args, _saved.optimizer_state if _saved else None)
        mx.eval(self.optimizer.state)
        self._lock = TrainerLock()
        self._changes: dict[str, Any] = {}  # since the last step
        self._warned_of: set[str] = set()  # reward functions that have failed
        self.parts = self._parts(self.args, self.reward_funcs)

    def _parts(self, args: GRPOConfig, reward_funcs: Sequence[Callable]) -> Parts:
        sampler = task_sampler(self.tokenizer, self.task, args, self.world)
        return self.own_parts.assemble(self.policy, sampler, reward_funcs, self.optimizer, args, self._warned_of)

    @property
    def params(self) -> dict[str, mx.array]:
        """The policy's parameters, in the dtype that the model computes in, including adapters."""
        return self.policy.params

    @names_habits("argument")
    def train(self, max_steps: int) -> TrainingLoop:
        """Return an iterator that makes and yields one step at a time, until `max_steps` are done in total.

        A step is one batch of completions, even if it makes several updates (TRL's `max_steps` counts updates). Steps
            of a resumed run count too. The iterator trains only while you iterate over it: a call without a loop
            trains nothing, and gives a RuntimeWarning.

        A step that fails or is interrupted changes nothing, and another loop may continue from there. (While a model of
        more than 64 MB is updated, Ctrl-C waits until that step is done.) Between steps other threads may evaluate and
        save. A falling learning rate is spread over all `max_steps`: if you call `train` again with more of them, the
        rate continues where the longer run would be (`scheduled_rate`).

        Raises TaskError for invalid problems, RewardError for a reward function that fails,
        TrainingDivergedError, RuntimeError while a loop over this trainer is open in another thread, ProcessLostError
        if another process is gone, and ValueError if the others are not at the same point of the same run.
        """
        return TrainingLoop(self._steps(max_steps), f"trainer.train(max_steps={max_steps})")

    def _steps(self, max_steps: int) -> Generator[TrainStep, None, None]:
        with self._lock.loop() as held:
            with held():
                here = repr((self.task.name, self.args, self.config, self.step)).encode() + self.policy.digest()
                self.world.check_same(here)
            while self.step < max_steps:
                with held(), self._all_or_nothing():
                    step = self._one_step(self.learning_rate(max_steps))
                yield step

    def train_step(
        self,
        prompt_tokens: Sequence[TokenIds],
        completion_tokens: Sequence[TokenIds],
        rewards: Sequence[float | None],
        *,
        old_logprobs: Sequence[Sequence[float]] | None = None,
        max_steps: int | None = None,
    ) -> TrainStep:
        """Make one step from your own completions and rewards, and return it with its metrics.

            step = trainer.train_step(prompts, completions, rewards, old_logprobs=rollout.logps)
            print(step.metrics["loss"], step.metrics["grad_norm"])

        The settings apply as in a step of `train`, except those of sampling, of several reward functions,
        `dynamic_sampling_rounds` and `soft_punish_cache`. Rewards are used as they are.

        Args:
            prompt_tokens: B prompts, or B / num_generations, one per group of completions.
            completion_tokens: B completions up to and including the end token, with those of one prompt adjacent. B is
                a multiple of num_generations, and of per_device_train_batch_size if it is larger than that.
            rewards: B numbers; None for a completion that no reward applies to.
            old_logprobs: per completion, the log-probabilities of its tokens when they were sampled, at the temperature
                of the settings; None if the current policy sampled them.
            max_steps: the step at which "linear" and "cosine" learning rates reach 0; other schedules ignore it.

        Raises ValueError for invalid arguments, TrainingDivergedError, and RuntimeError while a loop over this trainer
        is open in another thread. After an error the trainer is unchanged.
        """
        if self.world.size > 1:
            raise ValueError(f"train_step works in one process; this trainer is one of {self.world.size}.")
        with self._lock.loop() as held, held(), self._all_or_nothing():
            given = (prompt_tokens, completion_tokens, rewards, old_logprobs)
            batch = own_batch(self.config, self.tokenizer, self.args, self.max_completion_length, *given)
            return self._one_step(own_rate(self.args, self.step, max_steps), batch)

    def _one_step(self, learning_rate: float, batch: Batch | None = None) -> TrainStep:
        """Make a step from a given or a sampled batch, and count and record it."""
        args, parts, policy, started = self.args, self.parts, self.policy, time.perf_counter()
        updates, redraws = args.num_iterations, args.dynamic_sampling_rounds if batch is None else 0
        with self.optimizer.whole_step():
            if batch is None:
                policy, batch, learned = grpo_step(parts, policy, self.step, learning_rate, updates, redraws)
            else:
                policy, learned = learn_from(parts, policy, batch, learning_rate, updates)
            self.policy, self.step = policy.with_synced_reference(args, self.step + 1), self.step + 1
        metrics = batch_metrics(batch) | (redraw_metrics(batch) if redraws else {}) | learned
        metrics |= {"entropy_coef": args.entropy_coef} if args.entropy_coef else {}
        metrics |= {"learning_rate": learning_rate, "step_time": time.perf_counter() - started}
        changes, self._changes = self._changes, {}
        return TrainStep(self.step, metrics, batch.records(), changes)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the state before a step if the step fails."""
        before = None if self.optimizer.consumes else (self.step, self.policy, dict(self.optimizer.state))
        try:
            yield
        except BaseException as error:
            if before is not None:
                self.step, self.policy, self.optimizer.state = before
            if isinstance(error, TrainingDivergedError):
                raise error.at(self.step, self.args.learning_rate) from None
            raise

    def learning_rate(self, max_steps: int) -> float:
        """The learning rate of the next step, on the way to `max_steps` (mlx_grpo_kit/grpo/schedule.py)."""
        args = self.args
        return scheduled_rate(args.learning_rate, args.lr_scheduler_type, self.step, max_steps, args.warmup_steps)

    @names_habits("argument")
    def evaluate(
        self, num_problems: int = 256, seed: int = 0, *, num_samples: int = 1, temperature: float = 1.0
    ) -> dict[str, float]:
        """Answer held-out problems, `num_samples` times each, without filters. Training is unaffected.

        Returns "eval/accuracy" (the share that `task.is_correct` accepts) and "eval/reward". With several reward
        functions it adds the mean of each as "eval/rewards/NAME", and with several samples "eval/pass@k" for k = 2, 4,
        ... num_samples. Several processes share the problems: every process must call this with the same arguments, and
        all get the same result.

        Raises TaskError and RewardError like `train`, and ValueError for numbers out of range, or for several
        samples at temperature 0.
        """
        with self._lock.held():
            parts, own = self.parts, self.own_parts.sampler
            sampler = task_sampler(self.tokenizer, self.task, self.args, self.world) if own else parts.sampler
            return evaluate(self.policy, sampler, parts.rewards, num_problems, seed, num_samples, temperature).metrics

    def change(self, *, reward_funcs: Sequence[Callable] | None = None, **settings: Any) -> None:
        """Continue with other settings or other reward functions from the next step on.

        Args:
            reward_funcs: one or more functions that replace the present ones; None keeps them. `task.is_correct` does
                not change.
            settings: those in `MAY_CHANGE`, such as `learning_rate=1e-4`.

        The next step reports the change in `TrainStep.changes`. A checkpoint stores settings, but no functions: give
            `resume` a task with the new ones. Several processes must all call this with the same arguments.

        Raises ValueError for a setting that cannot change or is out of range, and for invalid reward functions; then
        nothing is changed.
        """
        with self._lock.held():
            self._change(self.args, reward_funcs, settings)

    def snapshot(self) -> Snapshot:
        """Return the state between two steps, for `rewind`. If another thread is in a step, wait for its end."""
        with self._lock.held():
            policy, state = replace(self.policy, trained=dict(self.policy.trained)), dict(self.optimizer.state)
            return Snapshot(self.step, self._origin, self.args, tuple(self.reward_funcs), policy, state)

    def rewind(self, snapshot: Snapshot, *, reward_funcs: Sequence[Callable] | None = None, **settings: Any) -> None:
        """Restore the state of `snapshot`: parameters, optimizer, step, settings and reward functions.

        Problems and sampling follow from the seed and the step's number, so the next steps repeat the earlier ones bit
        for bit, unless you change `reward_funcs` or `settings` (as in `change`). Later snapshots stay valid.

        Raises ValueError like `change`, and for a snapshot of another run: with other settings, another task, another
            model, or another base of adapters. A trainer with the same of each may rewind to it.
        """
        with self._lock.held():
            snapshot.check(self.args, self._origin)
            before = self.step
            self._change(snapshot.args, snapshot.reward_funcs if reward_funcs is None else reward_funcs, settings)
            self._changes["rewound_from"] = before
            self.step = snapshot.step
            self.policy = replace(snapshot.policy, trained=dict(snapshot.policy.trained))
            self.optimizer.state = dict(snapshot.optimizer_state)

    def _change(self, args: GRPOConfig, reward_funcs: Sequence[Callable] | None, settings: Mapping[str, Any]) -> None:
        """Switch to `args` updated by `settings`, and to `reward_funcs`, and record what changed."""
        check_changes(settings)
        args = replace(args, **settings)
        functions = self.reward_funcs if reward_funcs is None else as_reward_funcs(reward_funcs)
        args.check_task(self.max_completion_length, functions)
        parts = self._parts(args, functions)
        if reward_funcs is not None:
            names = check_reward_funcs(functions)
            if [*functions] != [*self.reward_funcs]:
                self._changes["reward_funcs"], self.reward_funcs = names, tuple(functions)
        self._changes |= changed_settings(self.args, args)
        self.args = self.optimizer.args = args
        self.parts = parts

    def save_pretrained(self, folder: str | os.PathLike, base: str | os.PathLike | None = None) -> None:
        """Write the policy as a Hugging Face folder, which transformers, mlx-lm and `load_pretrained` read.

        Adapters are written without their base model, as a folder that mlx-lm and PEFT read (`save_adapters`). It names
        `base`, the folder of the base model; `load_pretrained` and `fuse` combine the two.

        Warns (RuntimeWarning) if no step was made: the folder then contains the untrained policy.
        """
        if self.step == 0:
            warnings.warn(
                f"No step was made, so {os.fspath(folder)} gets the untrained policy. A call of train() is not enough: "
                "write `for step in trainer.train(max_steps=...): ...`.",
                RuntimeWarning,
                stacklevel=2,
            )
        with self._lock.held():
            self.policy.save_pretrained(folder, self.tokenizer, base)

    def save_checkpoint(self, folder: str | os.PathLike) -> None:
        """Write everything that `resume` needs; the folder appears complete or not at all."""
        with self._lock.held():
            state = (self.step, self.task.name, self.args, self.policy, self.tokenizer, self.optimizer.state)
            save_checkpoint(folder, Checkpoint(*state, self.own_parts.names, self._origin))

    @classmethod
    def resume(
        cls,
        folder: str | os.PathLike,
        task: Task,
        *,
        world: World | None = None,
        base: tuple[Qwen3Config, Mapping[str, mx.array]] | None = None,
        config_class: type[GRPOConfig] = GRPOConfig,
        sampler: Sampler | None = None,
        advantages: Advantages | None = None,
        loss: LossType | None = None,
        learner: type[Learner] | None = None,
        **changes: Any,
    ) -> GRPOTrainer:
        """Return a trainer that continues from a checkpoint with results identical to an uninterrupted run.

        Args:
            folder: a checkpoint of `save_checkpoint`.
            task: the same task as before.
            world: the processes that continue together, any number of them; each reads the folder.
            base: the base model of adapters, if adapters are trained, as `load_pretrained` returns it.
            config_class: the class of the saved settings, if it is a subclass of `GRPOConfig`.
            sampler, advantages, loss, learner: your own parts, if the saved trainer had any.
            changes: settings in `MAY_CHANGE` that replace the saved ones, such as `learning_rate=1e-4`.

        Raises FileNotFoundError or ValueError for a folder that is not a complete checkpoint or belongs to another
        task, for a missing base or custom part, for another base, and for a setting that cannot change.
        """
        check_changes(changes)
        saved = load_checkpoint(folder, config_class)
        own = OwnParts(sampler, advantages, loss, learner)
        own.check(folder, saved.own_parts)
        saved = saved.beside(folder, base)
        if task.name != saved.task:
            raise ValueError(f"{folder} was trained on task {saved.task!r}, not {task.name!r}. Pass the same task.")
        args = replace(saved.args, **changes)
        trainer = cls(saved.policy.config, {}, saved.tokenizer, task, args, world, **vars(own), _saved=saved)
        trainer._changes = changed_settings(saved.args, trainer.args)
        return trainer


def task_sampler(tokenizer: Tokenizer, task: Task, args: GRPOConfig, world: World | None = None) -> PolicySampler:
    """The kit's sampler for a task, with or without tools."""
    if task_tools(task) is None:
        return PolicySampler(tokenizer, task, args, world)
    from mlx_grpo_kit.grpo.tool_sampler import ToolSampler  # which loads all that calls and their results need

    return ToolSampler(tokenizer, task, args, world)
