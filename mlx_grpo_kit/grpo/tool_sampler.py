"""The sampler of tasks with tools and environments: completions of several turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mlx_grpo_kit.grpo.batch import Completions, Conversation
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.conversations import Conversations, neutral_text, suffix_ids
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.grpo.prompts import template_settings
from mlx_grpo_kit.grpo.sampler import PolicySampler
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime.worker import words_of
from mlx_grpo_kit.tasks.task import Problem, Task, TaskError
from mlx_grpo_kit.tasks.tool_calls import ToolResult
from mlx_grpo_kit.tasks.tools import TaskTools, Toolbox, Toolboxes, task_tools


class ToolSampler(PolicySampler):
    """`PolicySampler` for a task with tools: calls at the end of a turn are answered, and the policy continues.

    Raises ValueError if the folder's chat template does not show tools or their results.
    """

    def __init__(self, tokenizer: Tokenizer, task: Task, args: GRPOConfig, world: World | None = None):
        super().__init__(tokenizer, task, args, world)
        self.tools: TaskTools = task_tools(task)
        self.boxes = Toolboxes(self.tools, args.tool_timeout)
        self.settings = template_settings(task, args)
        self._check_template()

    def begin(
        self, problems: Sequence[Problem], prompts: Sequence[list[int]]
    ) -> tuple[Sequence[list[int]], Conversations]:
        """The prompts, each with an environment's first observation appended, and their conversations."""
        boxes = self.boxes.of(problems)
        if self.tools.factories:
            prompts = self.encode([*map(self._opened, problems, boxes)])
        limit = self.args.max_tool_calling_iterations
        return prompts, Conversations(self.tokenizer, prompts, boxes, self.settings, limit)

    def conversations_of_all(self, own: Completions | None) -> list[Conversation]:
        """The conversations of all processes. Environments stay in their own process."""
        mine = own.conversations if own else []
        texts = self.world.concatenate_lists([json.dumps(each.messages).encode() for each in mine], np.uint8)
        counts = [[each.num_calls, each.num_failures] for each in mine]
        counts = self.world.concatenate(np.array(counts, int).reshape(-1, 2)).tolist()
        found = [Conversation(json.loads(bytes(text)), None, *each) for text, each in zip(texts, counts, strict=True)]
        start = self.world.share(len(found) // self.args.num_generations).start * self.args.num_generations
        found[start : start + len(mine)] = mine
        return found

    def _opened(self, problem: Problem, box: Toolbox) -> Problem:
        """The problem with the environment's first observation, which may not contain control tokens either."""
        row = {"prompt": problem.prompt, "answer": problem.answer, **problem.data}
        row.pop("environment", None)
        where = f"Environment {type(box.environment).__name__}: reset(**row)"
        try:
            said = box.reset(row)
        except (Exception, SystemExit) as error:
            raise TaskError(f"{where} raised {type(error).__name__}: {words_of(error)}") from error
        if said is None:
            return problem
        if not isinstance(said, str):
            raise TaskError(f"{where} returned {said!r:.60}; expected a text for the end of the last message, or None.")
        text = neutral_text(self.tokenizer, said.encode("utf-8", "replace").decode("utf-8"))
        if text is None:
            raise TaskError(f"{where} returned {said!r:.60}, which has characters without a token.")
        last = problem.prompt[-1]
        return replace(problem, prompt=[*problem.prompt[:-1], {**last, "content": (last.get("content") or "") + text}])

    def _check_template(self) -> None:
        chat: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
        for name in [None] if not self.tools.by_name else self.tools.factories:
            schemas = self.tools.schemas(Problem(chat, "", {"environment": name}))
            shown = self.tokenizer.render(chat, **self.settings, tools=schemas)
            for schema in schemas:
                if schema["function"]["name"] not in shown:
                    raise ValueError(
                        f"The chat template of this folder does not show the tool {schema['function']['name']!r}; "
                        "expected one that lists its `tools`, as Qwen3's does."
                    )
        result = ToolResult("tool", "17")
        if "17" not in self.tokenizer.decode(suffix_ids(self.tokenizer, [result], self.settings)):
            raise ValueError(
                "The chat template of this folder does not show what tools return; expected one that writes messages "
                "of the role 'tool', as Qwen3's does."
            )
