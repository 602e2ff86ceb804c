"""The sampler: draw problems from the task, and completions from the policy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mlx_grpo_kit.generation import Rollout, SamplingConfig, generate, stop_at
from mlx_grpo_kit.grpo.batch import Completions, Conversation, last_turn
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.learners import decoder_class, is_large
from mlx_grpo_kit.grpo.memory import completion_batch_size
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.grpo.prompts import check_room, encode_prompts
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime.blas import all_cores
from mlx_grpo_kit.tasks.calls import ordered_problems, sample_problems
from mlx_grpo_kit.tasks.task import Problem, Task, TaskError

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.conversations import Conversations


class Sampler(Protocol):
    """Draw problems and completions: `num_groups` groups, or those of a whole step if it is None.

    The same policy, step and attempt give the same completions. In a run of several processes each of them returns all
    completions.
    """

    def __call__(self, policy: Policy, step: int, attempt: int = 0, num_groups: int | None = None) -> Completions: ...


class PolicySampler:
    """Sample completions of the task's problems from the policy that learns.

    The processes of `world` share the work. A row's random numbers depend only on its position in the whole batch, so
    any number of processes samples the same completions.
    """

    def __init__(self, tokenizer: Tokenizer, task: Task, args: GRPOConfig, world: World | None = None):
        self.tokenizer, self.task, self.args, self.world = tokenizer, task, args, world or World()
        self.max_completion_length = args.max_completion_length or task.max_completion_length

    def __call__(self, policy: Policy, step: int, attempt: int = 0, num_groups: int | None = None) -> Completions:
        """Draw a step's problems, or `num_groups` of them, and `num_generations` completions for each.

        Raises TaskError for invalid problems, and ValueError for prompts that the model cannot continue.
        """
        size, groups = self.args.num_generations, self.args.num_groups if num_groups is None else num_groups
        own = self.world.share(groups)
        completions = None
        with self.world.together(TaskError, ValueError):
            problems, prompts, seed = self.draw(step, attempt, groups)
            if len(own):
                rows, sampling = own.start * size, self.args.sampling(self.max_completion_length)
                mine = slice(rows, own.stop * size)
                completions = self.complete(policy, problems[mine], prompts[mine], sampling, seed, rows, groups * size)
        return self._of_all(problems, completions)

    def draw(
        self, step: int, attempt: int = 0, num_groups: int | None = None
    ) -> tuple[list[Problem], list[list[int]], int]:
        """A step's problems, one per completion, their prompts' tokens, and the seed to sample with.

        They follow from (seed, step, attempt), so that a resumed run needs no state of a random generator. A task with
        `in_order` gives each of its problems once per epoch; redrawn groups may get any problem.
        """
        problem_seed, sampling_seed = np.random.SeedSequence([self.args.seed, step, attempt]).generate_state(2)
        groups = self.args.num_groups if num_groups is None else num_groups
        if attempt == 0 and hasattr(self.task, "in_order"):
            drawn = ordered_problems(self.task, self.args.seed, step * groups, groups)
        else:
            drawn = sample_problems(self.task, np.random.default_rng(problem_seed), groups)
        problems = [problem for problem in drawn for _ in range(self.args.num_generations)]
        return problems, self.encode(problems), int(sampling_seed)

    def encode(self, problems: Sequence[Problem]) -> list[list[int]]:
        """The tokens of each prompt."""
        return encode_prompts(self.tokenizer, self.task, self.args, problems)

    def complete(
        self,
        policy: Policy,
        problems: Sequence[Problem],
        prompts: Sequence[list[int]],
        sampling: SamplingConfig,
        seed: int,
        first_row: int = 0,
        num_rows: int | None = None,
    ) -> Completions:
        """One completion per problem. `first_row` and `num_rows` tell which part of a larger batch these are.

        Raises TaskError for a prompt that leaves no room.
        """
        prompts, talk = self.begin(problems, prompts)
        check_room(policy.config, sampling.max_new_tokens, problems, prompts)
        num_positions = max(map(len, prompts)) + sampling.max_new_tokens
        stop_strings, with_special = self.args.stop_strings, partial(self.tokenizer.decode, skip_special_tokens=False)
        with all_cores() if is_large(policy) else nullcontext():
            rollout = generate(
                policy.config,
                policy.params,
                prompts,
                sampling=sampling,
                eos_token_ids=self.tokenizer.eos_token_ids,
                stop=stop_at(with_special, stop_strings) if stop_strings else None,
                reply=talk and talk.reply,
                seed=seed,
                first_row=first_row,
                num_rows=num_rows,
                completion_batch_size=completion_batch_size(policy.config, self.args, num_positions, policy.dtype),
                decoder=decoder_class(self.args, policy),
            )
        return self.completions(problems, prompts, rollout, talk and talk.of(rollout))

    def begin(
        self, problems: Sequence[Problem], prompts: Sequence[list[int]]
    ) -> tuple[Sequence[list[int]], Conversations | None]:
        """The prompts as the model gets them, and their conversations if the task has any."""
        return prompts, None

    def completions(
        self,
        problems: Sequence[Problem],
        prompts: Sequence[list[int]],
        rollout: Rollout,
        conversations: Sequence[Conversation | None] | None = None,
    ) -> Completions:
        """The completions of these problems, as columns."""
        read, starts = self.tokenizer.read, map(last_turn, rollout.token_mask)
        rows = zip(prompts, rollout.completions, starts, strict=True)
        return Completions(
            num_generations=self.args.num_generations,
            problems=[*problems],
            prompt_ids=[*prompts],
            completion_ids=rollout.completions,
            texts=[read(ids[start:], ids[:start] or prompt) for prompt, ids, start in rows],
            token_mask=rollout.token_mask,
            logps=rollout.logps,
            entropies=rollout.entropies,
            finished=np.array(rollout.finished, bool),
            conversations=[None] * len(problems) if conversations is None else [*conversations],
        )

    def _of_all(self, problems: list[Problem], own: Completions | None) -> Completions:
        """Collect the completions of all processes in each of them."""
        world = self.world
        if world.size == 1:
            return own
        kinds = {"completion_ids": int, "logps": float, "entropies": float, "token_mask": bool}
        columns = {name: world.concatenate_lists(getattr(own, name) if own else [], kinds[name]) for name in kinds}
        finished = world.concatenate(own.finished if own else np.zeros(0, bool)).tolist()
        prompts = world.concatenate_lists(own.prompt_ids if own else [], int)
        names = ("completion_ids", "logps", "entropies")
        rollout = Rollout(*(columns[name] for name in names), finished, columns["token_mask"])
        return self.completions(problems, prompts, rollout, self.conversations_of_all(own))

    def conversations_of_all(self, own: Completions | None) -> list[Conversation | None] | None:
        """The conversations of all processes, if the task has any."""
        return None
