"""Asynchronous GRPO: a training backend learns while inference engines write with slightly older weights.

    engines = [ProcessEngine(config)]
    async with train_async(backend, engines, tokenizer, task, max_steps=200, max_lag=1) as steps:
        async for step in steps:
            print(step.step, step.metrics["reward"], step.metrics["lag"])

Update k learns from batch k. The **lag** of a batch is the number of updates between the weights that wrote it and
those that learn from it. Synchronous GRPO has lag 0, and a step takes the time for writing plus the time for learning.
With lag 1 the two run at the same time, and a step takes the longer of the two times. The price is that the learning
policy is no longer the one that wrote. The ratio in the loss corrects for that; its old log-probabilities are those at
writing (PPO's importance weight, https://arxiv.org/abs/1707.06347; asynchronous RLHF:
https://arxiv.org/abs/2410.18252).

It runs in trio and in asyncio, and so in notebook cells. Leaving the loop stops everything. An error anywhere also
stops everything, and is raised in the loop.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import numpy as np

from mlx_grpo_kit.backends.arrays import array_of, framework_of
from mlx_grpo_kit.backends.inference_engines import Engine, Generated
from mlx_grpo_kit.backends.padded_batch import padded_batch
from mlx_grpo_kit.backends.weights import flat
from mlx_grpo_kit.generation import Rollout, SamplingConfig
from mlx_grpo_kit.generation.padding import TokenIds
from mlx_grpo_kit.grpo.advantages import GroupAdvantages
from mlx_grpo_kit.grpo.batch import Batch
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.metrics import batch_metrics
from mlx_grpo_kit.grpo.rewards import TaskRewards
from mlx_grpo_kit.grpo.sampler import PolicySampler
from mlx_grpo_kit.grpo.state import TrainStep
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.tasks.task import Task
from mlx_grpo_kit.tasks.tools import task_tools

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from mlx_grpo_kit.backends import TrainingBackend


@asynccontextmanager
async def train_async(
    backend: TrainingBackend,
    engines: Sequence[Engine],
    tokenizer: Tokenizer,
    task: Task,
    *,
    max_steps: int,
    max_lag: int = 1,
    num_prompts: int = 16,
    num_generations: int = 8,
    temperature: float = 1.0,
    max_completion_length: int | None = None,
    scale_rewards: str = "group",
    seed: int = 0,
) -> AsyncIterator[AsyncIterator[TrainStep]]:
    """Train until the backend has made `max_steps` updates in total; the context yields an iterator over the steps.

    Between steps the body of your loop may do anything, even with the backend, such as evaluate or save. Meanwhile the
    inference engines continue to write completions, up to `max_lag` updates ahead. With `max_lag` 0 they do not, and
    the same seed gives the same run for any number of engines. Before the last step is yielded, the engines get its
    weights.

    Args:
        backend: a backend whose loss function is `grpo_loss_fn(GRPOLossConfig(...), temperature)`, or has the same
            arguments. The backend determines learning rate and clipping.
        engines: one or more inference engines of the same model, which share a batch's groups. Their version is the
            backend's `weight_version`, that of its last checkpoint, so `sync_weights_to_engines` accepts any later one.
        max_lag: the largest allowed lag, in updates.
        num_prompts, num_generations: prompts per step, and completions per prompt.
        max_completion_length: in tokens; None takes the task's own.
        scale_rewards: as in `compute_advantages`.
        seed: the seed of problems and sampling.

    The metrics of a step are TRL's, those of the loss function, and
        lag: updates between the weights that wrote the batch and those that learned from it.
        sampling/sampling_logp_difference/mean, max: the difference of the tokens' log-probabilities between learning
            and writing, in nats. It shows the effect of lag on the policy, and at lag 0 the rounding of two frameworks.
        wait_time: seconds in which the backend had nothing to learn from; 0 is best.
        step_time: seconds since the end of the previous step.

    Raises ValueError for settings out of range and for a task with tools. In the loop it raises TaskError and
    RewardError like the trainer, and errors of the backend and engines.
    """
    engines = [*engines]
    _check(engines, max_lag=max_lag, num_prompts=num_prompts, num_generations=num_generations)
    if task_tools(task) is not None:
        raise ValueError("The task has tools, but inference engines write only one turn. Train it with GRPOTrainer.")
    args = GRPOConfig(
        num_generations=num_generations,
        per_device_train_batch_size=num_prompts * num_generations,
        temperature=temperature,
        max_completion_length=max_completion_length,
        scale_rewards=scale_rewards,
        seed=seed,
    )
    run = _Run(backend, engines, tokenizer, task, args, max_steps, max_lag)
    error = None
    try:
        send, run.receive = anyio.create_memory_object_stream[_Written](max_lag)
        with send, run.receive:
            async with anyio.create_task_group() as tasks:
                await run.publish()
                tasks.start_soon(run.write, send)
                yield run
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:  # raised by a task group; a single error is raised directly
        error = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
    if error is not None:
        raise error


async def generate_together(
    engines: Sequence[Engine],
    prompts: Sequence[TokenIds],
    group_size: int,
    sampling: SamplingConfig,
    eos_token_ids: Sequence[int],
    seed: int,
) -> Generated:
    """One rollout by several inference engines, in whole groups. The completions are the same as from a single engine.

    The version is that of the oldest weights.
    """
    num_groups = len(prompts) // group_size
    shares = [number * num_groups // len(engines) * group_size for number in range(len(engines) + 1)]
    futures = [
        engine.generate(
            prompts[start:end],
            sampling=sampling,
            eos_token_ids=[*eos_token_ids],
            seed=seed,
            first_row=start,
            num_rows=len(prompts),
        )
        for engine, start, end in zip(engines, shares, shares[1:], strict=False)
        if end > start
    ]
    parts = [await future.result() for future in futures]
    rows = ([row for part in parts for row in getattr(part.rollout, name)] for name in Rollout.__dataclass_fields__)
    return Generated(Rollout(*rows), min(part.weight_version for part in parts))


class _Written(NamedTuple):
    """A batch, and the number of updates in the weights that wrote it."""

    batch: Batch
    updates: int


@dataclass(eq=False)
class _Run:
    """The two sides of a run: `write` writes batches, and each step of the iterator learns and publishes weights."""

    backend: TrainingBackend
    engines: Sequence[Engine]
    tokenizer: Tokenizer
    task: Task
    args: GRPOConfig
    max_steps: int
    max_lag: int

    def __post_init__(self):
        args = self.args
        self.sampler, self.advantages = PolicySampler(self.tokenizer, self.task, args), GroupAdvantages(args)
        self.rewards = TaskRewards(self.task.reward_funcs, args, self.sampler.max_completion_length)
        self.sampling = args.sampling(self.sampler.max_completion_length)
        self.weights: Mapping[str, Any] = {}
        self.updates = -1
        self.receive: MemoryObjectReceiveStream[_Written]
        self._published = anyio.Event()
        self._last = time.perf_counter()

    async def publish(self) -> None:
        """Publish the backend's present weights as the newest. After the last update, load them into the engines."""
        self.weights = await self.backend.get_weights().result()
        self.updates = self.backend.current_step
        published, self._published = self._published, anyio.Event()
        published.set()
        if self.updates >= self.max_steps:
            await self._load()

    async def write(self, send: MemoryObjectSendStream[_Written]) -> None:
        """Write batch after batch, each with the newest weights, and never with weights that are too old."""
        for number in range(self.backend.current_step, self.max_steps):
            while self.updates < number - self.max_lag:
                await self._published.wait()
            updates = await self._load()
            await send.send(await self._batch(number, updates))

    async def _load(self) -> int:
        """Load the newest weights into every engine; return the number of updates in them."""
        weights, updates, version = self.weights, self.updates, self.backend.weight_version
        futures = [
            # A run that restarts in the middle, after load_checkpoint, may go back to older weights.
            engine.load_weights(weights, version, allow_older=True)
            for engine in self.engines
        ]
        for future in futures:
            await future.result()
        return updates

    async def _batch(self, number: int, updates: int) -> _Written:
        problems, prompts, seed = self.sampler.draw(number)
        rollout, _ = await generate_together(
            self.engines, prompts, self.args.num_generations, self.sampling, self.tokenizer.eos_token_ids, seed
        )
        completions = self.sampler.completions(problems, prompts, rollout)
        # Score in a thread, because a reward function may be slow, while learning continues.
        scores = await anyio.to_thread.run_sync(self.rewards, completions)
        return _Written(Batch(completions, scores, *self.advantages(completions, scores)), updates)

    def _arrays(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        framework = framework_of(next(iter(flat(self.weights).values())))
        return {name: array_of(framework, values) for name, values in batch.items()}

    def __aiter__(self) -> _Run:
        return self

    async def __anext__(self) -> TrainStep:
        """Make an update from the next batch, and publish the weights that it leads to."""
        if self.backend.current_step >= self.max_steps:
            raise StopAsyncIteration
        began = time.perf_counter()
        batch, updates = await self.receive.receive()
        completions = batch.records()
        metrics = batch_metrics(batch) | {"wait_time": time.perf_counter() - began}
        metrics["lag"] = float(self.backend.current_step - updates)
        arrays = padded_batch(completions)
        gradient = self.backend.forward_backward(self._arrays(arrays))
        update = self.backend.optim_step()  # submitted right after it, so that the backend's thread does not wait
        learned = await gradient.result()
        if (logps := learned.pop("logps", None)) is not None:
            apart = np.abs(logps - arrays["old_logps"])[arrays["loss_mask"] != 0]
            metrics["sampling/sampling_logp_difference/mean"] = float(apart.mean())
            metrics["sampling/sampling_logp_difference/max"] = float(apart.max())
        metrics |= {name: value for name, value in learned.items() if isinstance(value, float)}
        metrics["learning_rate"] = (await update.result())["lr"]
        await self.publish()
        now = time.perf_counter()
        metrics["step_time"], self._last = now - self._last, now
        return TrainStep(self.updates, metrics, completions)


def _check(engines: Sequence[Engine], **settings: int) -> None:
    if not engines:
        raise ValueError("There are no inference engines; expected at least one.")
    for name, least in (("max_lag", 0), ("num_prompts", 1), ("num_generations", 2)):
        value = settings[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {value!r}; expected a whole number from {least}.")
