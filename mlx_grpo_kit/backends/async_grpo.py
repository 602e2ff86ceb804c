"""Asynchronous GRPO: any backend learns while engines already write the next completions, with weights a little older.

    engines = [ProcessEngine(config)]
    async with train_async(backend, engines, tokenizer, task, max_steps=200, max_lag=1) as steps:
        async for step in steps:
            print(step.step, step.metrics["reward"], step.metrics["lag"])

Batch number k is what update k learns from. Its **lag** is the number of updates between the weights that wrote it
and those that learn from it. Synchronous GRPO has lag 0 and takes the sum of two times, writing and learning. With lag
1 the two happen at once, and a step takes the longer of them. What is lost is that the policy that learns is no more
the one that wrote: that is corrected for by the ratio of the loss, whose old log-probabilities are those of the writing
(PPO's importance weight, https://arxiv.org/abs/1707.06347; asynchronous RLHF: https://arxiv.org/abs/2410.18252).

Leaving the loop stops everything; so does an error anywhere, which is raised in the loop as what it is.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from mlx_grpo_kit.backends.batches import padded_batch
from mlx_grpo_kit.backends.engines import Engine, Generated
from mlx_grpo_kit.backends.weights import array_of, flat, framework_of
from mlx_grpo_kit.generation import Rollout, SamplingConfig
from mlx_grpo_kit.generation.batching import TokenIds
from mlx_grpo_kit.grpo.advantages import compute_advantages
from mlx_grpo_kit.grpo.metrics import sampling_metrics
from mlx_grpo_kit.grpo.rewards import compute_rewards
from mlx_grpo_kit.grpo.trainer import Completion, TrainStep
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.tasks.calls import are_correct, held_out_problems, sample_problems
from mlx_grpo_kit.tasks.task import Task

if TYPE_CHECKING:
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
    """Train until the backend has made `max_steps` updates in all; what is entered yields each step after it is done.

    Between steps the loop's body may do anything, also with the backend: evaluate, save. Completions go on being
    written meanwhile, up to `max_lag` updates ahead. With `max_lag` 0 nothing is, and the same seed is the same run,
    with one engine or several.

    Args:
        backend: its loss function is `grpo_loss_fn(GRPOLossConfig(...), temperature)`, or takes what that one takes.
            Learning rate and clipping are the backend's own.
        engines: one or more of the same model. A batch's groups are shared among them. Their versions are the
            backend's `current_step`.
        max_lag: how many updates old the weights may be that wrote what is learned from.
        num_prompts, num_generations: prompts of a step, and completions of each.
        max_completion_length: tokens; None takes the task's own.
        scale_rewards: as in `compute_advantages`.
        seed: of problems and of sampling.

    The metrics of a step are TRL's names, those of the loss function, and
        lag: updates between the weights that wrote the batch and those that learned from it.
        sampling/sampling_logp_difference/mean, max: how far the log-probabilities of the tokens are from those of the
            writing, in nats: what lag does to the policy, and, at lag 0, what two frameworks' rounding does.
        wait_time: seconds that the backend had nothing to learn from; 0 is the best that there is.
        step_time: seconds since the last step was done.

    Raises ValueError for settings out of range. In the loop: TaskError and RewardError as the trainer does, and what
    backend and engines raise.
    """
    _check(engines, max_lag=max_lag, num_prompts=num_prompts, num_generations=num_generations)
    run = _Run(
        backend, engines, tokenizer, task, max_steps, max_lag, num_prompts, num_generations, temperature,
        task.max_completion_length if max_completion_length is None else max_completion_length, scale_rewards, seed,
    )  # fmt: skip
    error = None
    try:
        async with trio.open_nursery() as nursery:
            await run.publish()
            send, receive = trio.open_memory_channel(max_lag)
            nursery.start_soon(run.write, send)
            run.receive = receive
            yield run
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:  # a nursery's; one error is raised as what it is
        error = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
    if error is not None:
        raise error


async def held_out_accuracy(
    engines: Sequence[Engine], tokenizer: Tokenizer, task: Task, num_problems: int = 256, seed: int = 0
) -> float:
    """The share of held-out problems that what the engines serve now answers rightly, sampled once at temperature 1."""
    problems = held_out_problems(task, num_problems)
    prompts = [tokenizer.encode(problem.prompt) for problem in problems]
    sampling = SamplingConfig(task.max_completion_length)
    rollout, _ = await generate_together(engines, prompts, 1, sampling, tokenizer.eos_token_ids, seed)
    texts = [tokenizer.decode(ids) for ids in rollout.completions]
    return float(np.mean(are_correct(task, problems, texts)))


async def generate_together(
    engines: Sequence[Engine],
    prompts: Sequence[TokenIds],
    group_size: int,
    sampling: SamplingConfig,
    eos_token_ids: Sequence[int],
    seed: int,
) -> Generated:
    """One rollout by several engines, whole groups each: a row draws what it would have drawn on a single one.

    The version is the oldest of theirs.
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


class _Batch:
    """Completions that are written and rewarded, and the version of the weights that wrote them."""

    def __init__(self, completions: list[Completion], metrics: dict[str, float], weight_version: int):
        self.completions, self.metrics, self.weight_version = completions, metrics, weight_version


class _Run:
    """The two sides of a run: `write` writes, and each step of the iterator learns and publishes weights."""

    def __init__(
        self,
        backend: TrainingBackend,
        engines: Sequence[Engine],
        tokenizer: Tokenizer,
        task: Task,
        max_steps: int,
        max_lag: int,
        num_prompts: int,
        num_generations: int,
        temperature: float,
        max_completion_length: int,
        scale_rewards: str,
        seed: int,
    ):
        self.backend, self.engines, self.tokenizer, self.task = backend, [*engines], tokenizer, task
        self.max_steps, self.max_lag, self.seed = max_steps, max_lag, seed
        self.num_prompts, self.num_generations, self.scale_rewards = num_prompts, num_generations, scale_rewards
        self.sampling = SamplingConfig(max_completion_length, temperature)
        self.weights: Mapping[str, Any] = {}
        self.version = -1
        self.receive: trio.MemoryReceiveChannel[_Batch]
        self._published = trio.Event()
        self._last = time.perf_counter()

    async def publish(self) -> None:
        """The backend's weights as they are now are the newest that there are."""
        self.weights = await self.backend.get_weights().result()
        self.version = self.backend.current_step
        published, self._published = self._published, trio.Event()
        published.set()

    async def write(self, send: trio.MemorySendChannel[_Batch]) -> None:
        """Batch after batch, each with the newest weights that there are, none of them too old."""
        for number in range(self.backend.current_step, self.max_steps):
            while self.version < number - self.max_lag:
                await self._published.wait()
            await self._load()
            await send.send(await self._batch(number))

    async def _load(self) -> None:
        weights, version = self.weights, self.version
        futures = [
            # A run that begins again in the middle, after load_checkpoint, may go back.
            engine.load_weights(weights, version, allow_older=True)
            for engine in self.engines
        ]
        for future in futures:
            await future.result()

    async def _batch(self, number: int) -> _Batch:
        # As the trainer draws them: numbers from (seed, step, attempt).
        problem_seed, sampling_seed = np.random.SeedSequence([self.seed, number, 0]).generate_state(2)
        drawn = sample_problems(self.task, np.random.default_rng(problem_seed), self.num_prompts)
        problems = [problem for problem in drawn for _ in range(self.num_generations)]
        prompts = [self.tokenizer.encode(problem.prompt) for problem in problems]
        rollout, version = await generate_together(
            self.engines, prompts, self.num_generations, self.sampling, self.tokenizer.eos_token_ids, int(sampling_seed)
        )
        texts = [self.tokenizer.decode(ids) for ids in rollout.completions]
        # In a thread: a reward function may take its time, and learning goes on meanwhile.
        rewards, by_name = await trio.to_thread.run_sync(
            lambda: compute_rewards(self.task.reward_funcs, problems, texts, completion_ids=rollout.completions)
        )
        advantages = np.array(compute_advantages(rewards, self.num_generations, self.scale_rewards))
        completions = [
            Completion(
                problem=problem,
                prompt=problem.prompt,
                prompt_ids=prompts[row],
                completion=texts[row],
                completion_ids=rollout.completions[row],
                logps=rollout.logps[row],
                entropies=rollout.entropies[row],
                finished=rollout.finished[row],
                rewards={name: None if math.isnan(each[row]) else float(each[row]) for name, each in by_name.items()},
                reward=float(rewards[row]),
                advantage=float(advantages[row]),
                group=row // self.num_generations,
            )
            for row, problem in enumerate(problems)
        ]
        lengths = np.array([*map(len, rollout.completions)], float)
        finished = np.array(rollout.finished, float)
        metrics = sampling_metrics(rewards, by_name, lengths, finished, self.num_generations)
        return _Batch(completions, metrics, version)

    def _arrays(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        framework = framework_of(next(iter(flat(self.weights).values())))
        return {name: array_of(framework, values) for name, values in batch.items()}

    def __aiter__(self) -> _Run:
        return self

    async def __anext__(self) -> TrainStep:
        """An update from the next batch; what comes out is published, and told."""
        if self.backend.current_step >= self.max_steps:
            raise StopAsyncIteration
        began = time.perf_counter()
        batch = await self.receive.receive()
        metrics = batch.metrics | {"wait_time": time.perf_counter() - began}
        metrics["lag"] = float(self.backend.current_step - batch.weight_version)
        arrays = padded_batch(batch.completions)
        gradient = self.backend.forward_backward(self._arrays(arrays))
        update = self.backend.optim_step()  # submitted behind it: the backend's thread waits for nobody
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
        return TrainStep(self.version, metrics, batch.completions)


def _check(engines: Sequence[Engine], **settings: int) -> None:
    if not engines:
        raise ValueError("There are no engines; expected at least one.")
    for name, least in (("max_lag", 0), ("num_prompts", 1), ("num_generations", 2)):
        value = settings[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {value!r}; expected a whole number from {least}.")
