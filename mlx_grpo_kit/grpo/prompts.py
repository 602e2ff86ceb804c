"""Prompts as tokens, and errors that name the row of a prompt that cannot be trained on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.tasks.calls import held_out_problems
from mlx_grpo_kit.tasks.task import Problem, Task, TaskError
from mlx_grpo_kit.tasks.tools import TaskTools, task_tools


class RawTextWarning(UserWarning):
    """A model with a chat template is trained on plain texts, without its template."""


def encode_prompts(tokenizer: Tokenizer, task: Task, args: GRPOConfig, problems: Sequence[Problem]) -> list[list[int]]:
    """The prompts' tokens. A problem that occurs several times, as in a group, is encoded once.

    The chat template shows the tools of a task that has any.

    Raises TaskError, which names the problem's row, for a prompt that the tokenizer or its chat template rejects.
    """
    settings, tools = template_settings(task, args), task_tools(task)
    once = {id(problem): problem for problem in problems}
    ids = {key: _encode(tokenizer, problem, settings, tools) for key, problem in once.items()}
    return [ids[id(problem)] for problem in problems]


def check_room(
    config: Qwen3Config, max_completion_length: int, problems: Sequence[Problem], prompts: Sequence[Sequence[int]]
) -> None:
    """Raise TaskError for a prompt that leaves too few of the model's positions for a completion."""
    for problem, ids in zip(problems, prompts, strict=True):
        if len(ids) + max_completion_length > config.max_position_embeddings:
            raise TaskError(
                f"{_place(problem) or f'The prompt {problem.text[:60]!r}'} has {len(ids)} tokens. With "
                f"{max_completion_length} more it exceeds the model's {config.max_position_embeddings} positions "
                "(max_position_embeddings). Shorten the prompt, or lower max_completion_length "
                "(--max-completion-length)."
            )


# The last result for a task, with its arguments: a run asks before it loads the model, and the trainer asks again.
_LONGEST: WeakKeyDictionary[Any, tuple[tuple[str, str, int], tuple[Problem, list[int]]]] = WeakKeyDictionary()


def longest_prompt(tokenizer: Tokenizer, task: Task, args: GRPOConfig, num_held_out: int) -> tuple[Problem, list[int]]:
    """The problem with the longest prompt, and the prompt's tokens.

    If the task can list its problems (`all_problems`), all are encoded; otherwise the first `num_held_out` held-out
    ones. Raises TaskError like `encode_prompts` and `held_out_problems`.
    """
    listed = hasattr(task, "all_problems")
    key = (tokenizer.fingerprint, repr(template_settings(task, args)), 0 if listed else num_held_out)
    with suppress(TypeError, KeyError):  # a task that cannot be a dictionary key
        found_for, found = _LONGEST[task]
        if found_for == key:
            return found
    problems = [*task.all_problems()] if listed else held_out_problems(task, num_held_out)
    prompts = encode_prompts(tokenizer, task, args, problems)
    found = max(zip(problems, prompts, strict=True), key=lambda pair: len(pair[1]))
    with suppress(TypeError):
        _LONGEST[task] = key, found
    return found


def length_with_room(
    config: Qwen3Config, tokenizer: Tokenizer, task: Task, args: GRPOConfig, num_held_out: int
) -> int | None:
    """`args.max_completion_length`; or what fits the model, with a warning, if the task's own is too large.

    If a task cannot list its problems, only held-out ones are checked, and a quarter of the room is left for longer
    prompts.
    """
    if args.max_completion_length:
        return args.max_completion_length
    positions = config.max_position_embeddings
    room = positions - len(longest_prompt(tokenizer, task, args, num_held_out)[1])
    if task.max_completion_length <= room or room < 4:
        return None
    length = room if hasattr(task, "all_problems") else room - room // 4
    warnings.warn(
        f"Answers have at most {length} tokens, not the task's {task.max_completion_length}: the model has {positions} "
        "positions for prompt and answer. Set another number with --max-completion-length.",
        stacklevel=3,
    )
    return length


def check_prompts(
    config: Qwen3Config, tokenizer: Tokenizer, task: Task, args: GRPOConfig, max_completion_length: int
) -> None:
    """Check all prompts of a task that can list them.

    Raises ValueError for a tokenizer with more tokens than the model, and for settings of the chat template if no
    prompt is a chat; TaskError for a prompt that cannot be encoded or leaves too little room for a completion, and for
    a setting that the chat template does not use. Warns (RawTextWarning) if prompts are texts that no chat template has
    rendered, although the model's folder has one and the task can be presented as a chat; and (UserWarning) if the
    template ends a turn with a token at which completions do not end.
    """
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"The tokenizer has {tokenizer.vocab_size} tokens and the model has {config.vocab_size} (vocab_size); "
            "expected a model with a row for every token. Are the two from the same folder?"
        )
    if listed := hasattr(task, "all_problems"):
        problem, ids = longest_prompt(tokenizer, task, args, 0)
        check_room(config, max_completion_length, [problem], [ids])
    shown = task.all_problems() if listed else held_out_problems(task, min(1, getattr(task, "num_held_out", 1)))
    prompts = [problem.prompt for problem in shown]
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if args.chat_template_kwargs and texts and len(texts) == len(prompts):
        raise ValueError(
            f"chat_template_kwargs is {args.chat_template_kwargs!r:.80}, and the prompts of task {task.name!r} are "
            "plain texts, to which no chat template is applied. Leave it out, or train on chats: task.in_chat()."
        )
    if not listed:
        encode_prompts(tokenizer, task, args, shown)  # raises now for a setting that the template does not use
    if getattr(tokenizer, "chat_template", None) is None:
        return
    after_question = _after(tokenizer, ["user"]).strip()
    plain = [text for text in texts if not after_question or after_question not in text]
    if plain and hasattr(task, "in_chat"):
        warnings.warn(
            f"The prompts of task {task.name!r} are plain texts, which the policy continues without the chat template "
            "of its folder and without a system prompt. For a chat model, train on task.in_chat().",
            RawTextWarning,
            stacklevel=4,
        )
    if len(plain) < len(prompts) and not args.stop_strings and (words := _never_ends(tokenizer)):
        warnings.warn(words, UserWarning, stacklevel=4)


def _never_ends(tokenizer: Tokenizer) -> str:
    """A warning if the chat template ends the policy's turn with a token at which completions do not end; else ''."""
    with suppress(ValueError):
        after_answer = tokenizer.encode(_after(tokenizer, ["user", "assistant"]))
        ends = [token for token in after_answer if token in tokenizer.added_token_ids]
        if ends and not {*tokenizer.eos_token_ids}.intersection(ends):
            end, ours = tokenizer.token(ends[0]), ", ".join(map(repr, map(tokenizer.token, tokenizer.eos_token_ids)))
            return (
                f"The chat template ends the policy's turn with {end!r}, but completions end only at {ours} "
                f"(eos_token_id). A policy that ends its turn as the template does is not stopped there. Set "
                f"stop_strings=[{end!r}] (--stop-strings), or add {ends[0]} to eos_token_id in the folder's "
                "generation_config.json."
            )
    return ""


def _after(tokenizer: Tokenizer, roles: Sequence[str]) -> str:
    """The text of a rendered chat after the content of its last message; '' if the template rejects the chat."""
    chat = [{"role": role, "content": f"the {role}'s text"} for role in roles]
    with suppress(ValueError):
        text = tokenizer.render(chat, add_generation_prompt=roles[-1] == "user")
        _, content, after = text.rpartition(chat[-1]["content"])
        return after if content else ""
    return ""


def template_settings(task: Task, args: GRPOConfig) -> dict[str, Any]:
    """The settings of the chat template: those of the task, overridden by those of the run."""
    return getattr(task, "chat_template_kwargs", {}) | (args.chat_template_kwargs or {})


def _encode(tokenizer: Tokenizer, problem: Problem, settings: dict[str, Any], tools: TaskTools | None) -> list[int]:
    if tools is not None:
        if isinstance(problem.prompt, str):
            raise TaskError(
                f"{_place(problem) or f'The prompt {problem.text[:60]!r}'} is a plain text, but a model sees its tools "
                "through its chat template; expected a chat. Train on task.in_chat(), or give messages as the prompt."
            )
        settings = {**settings, "tools": tools.schemas(problem)}
    try:
        return tokenizer.encode_prompt(problem.prompt, **settings)
    except ValueError as error:
        place = _place(problem)
        raise TaskError(f"{place}: {error}" if place else str(error)) from error


def _place(problem: Problem) -> str:
    return getattr(problem, "place", "")
