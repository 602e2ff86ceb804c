"""Rollouts of several turns: the policy calls tools, and their results become the next tokens of its completion.

A rollout joins token ids: those that the policy sampled, those of the tool results, those that it sampled next, and so
on. It never decodes text and encodes it again, because that may give other tokens than the policy sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

from mlx_grpo_kit.generation import Rollout
from mlx_grpo_kit.grpo.batch import Conversation
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.tasks.tool_calls import ToolResult, assistant_message, call_tools, parse_tool_calls
from mlx_grpo_kit.tasks.tools import Toolbox

QUESTION = {"role": "user", "content": "dummy"}


@dataclass(eq=False)
class Conversations:
    """Answer the tool calls of a batch of rollouts. Pass `reply` to `generate`; `of` returns the conversations.

    Args:
        tokenizer: a tokenizer with a chat template.
        prompts: the tokens of each row's prompt.
        boxes: the tools and the environment of each row.
        settings: the settings of the chat template.
        max_iterations: the maximum number of times that a row may call tools; None: no limit but its length.
    """

    tokenizer: Tokenizer
    prompts: Sequence[Sequence[int]]
    boxes: Sequence[Toolbox]
    settings: Mapping[str, Any]
    max_iterations: int | None = None

    def __post_init__(self):
        self.results: list[list[list[ToolResult]]] = [[] for _ in self.boxes]  # for each row, by iteration
        self._starts = [0] * len(self.boxes)  # the index of the first token in each row's current turn

    def reply(self, ended: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """Run the calls in the turns that ended, all together, and return the tokens of their results by row."""
        calls = {}
        for row, ids in ended.items():
            if self.max_iterations is None or len(self.results[row]) < self.max_iterations:
                turn = self._turn(row, ids, self._starts[row], len(ids))
                calls[row] = parse_tool_calls(turn, self.boxes[row].schemas)
        results = call_tools([(self.boxes[row], call) for row in calls for call in calls[row]])
        results = iter([neutral_result(self.tokenizer, result) for result in results])
        replies = {}
        for row in [row for row in calls if calls[row]]:
            self.results[row].append([*islice(results, len(calls[row]))])
            replies[row] = suffix_ids(self.tokenizer, self.results[row][-1], self.settings)
            self._starts[row] = len(ended[row]) + len(replies[row])
        return replies

    def of(self, rollout: Rollout) -> list[Conversation]:
        """The conversation of each completion. A result that did not fit is counted, but left out of the messages."""
        found = []
        for row, (ids, mask) in enumerate(zip(rollout.completions, rollout.token_mask, strict=True)):
            messages, results, end = [], iter(self.results[row]), 0
            for drawn, tokens in groupby(mask):
                start, end = end, end + sum(1 for _ in tokens)
                if drawn:
                    messages.append(assistant_message(self._turn(row, ids, start, end), self.boxes[row].schemas))
                else:
                    messages += map(tool_message, next(results))
            every = [result for some in self.results[row] for result in some]
            failures = sum(result.failed for result in every)
            found.append(Conversation(messages, self.boxes[row].environment, len(every), failures))
        return found

    def _turn(self, row: int, ids: Sequence[int], start: int, end: int) -> str:
        """The turn ids[start:end] as text, with the thought that was open before it, without the tokens that end it."""
        thought = self.tokenizer.open_thought(ids[:start] or self.prompts[row])
        while end > start and ids[end - 1] in self.tokenizer.eos_token_ids:
            end -= 1
        return thought + self.tokenizer.decode([*ids[start:end]], skip_special_tokens=False)


def tool_message(result: ToolResult) -> dict[str, str]:
    """A result as a chat message."""
    return {"role": "tool", "name": result.name, "content": result.text}


def suffix_ids(tokenizer: Tokenizer, results: Sequence[ToolResult], settings: Mapping[str, Any]) -> list[int]:
    """The tokens between the policy's turn and its next one: the results as the chat template writes them.

    The function renders a short chat that ends with the results, and returns the tokens after the one that ends the
    policy's turn (TRL's `_get_tool_suffix_ids`). A result cannot smuggle in a control token.
    """
    results = [neutral_result(tokenizer, result) for result in results]
    shown = [replace(each, name=neutral_text(tokenizer, each.name) or "unknown") for each in results]
    call = {"type": "function", "function": {"name": shown[0].name, "arguments": {}}}
    chat = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}]
    ends = {*tokenizer.eos_token_ids}
    settings = {**settings, "continue_final_message": False, "add_generation_prompt": True}
    before = tokenizer.encode(tokenizer.render(chat, **{**settings, "add_generation_prompt": False}))
    whole = tokenizer.encode(tokenizer.render([*chat, *map(tool_message, shown)], **settings))
    count = sum(token in ends for token in before)
    if not count:  # no end-of-completion token ends a turn in this template
        return whole[len(before) :]
    places = [place for place, token in enumerate(whole) if token in ends]
    return whole[places[count - 1] + 1 :]


def neutral_result(tokenizer: Tokenizer, result: ToolResult) -> ToolResult:
    """The result as the policy may read it: without control tokens; an error if it has characters without a token."""
    text = neutral_text(tokenizer, result.text)
    if text is None:
        return replace(result, text=str({"error": "the result has characters without a token"}), failed=True)
    return replace(result, text=text)


def neutral_text(tokenizer: Tokenizer, text: str) -> str | None:
    """The text with a space in every piece that would be encoded as a control token; None if it cannot be encoded."""
    for token in tokenizer.added_tokens:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    with suppress(ValueError):
        if tokenizer.added_token_ids.isdisjoint(tokenizer.encode(text)):
            return text
    return None
