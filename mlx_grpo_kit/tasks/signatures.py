"""The two signatures of reward functions: this kit's, and that of TRL's `GRPOTrainer`.

    def correct(problems, completions): ...                     # the kit's: two lists, by position
    def correct(prompts, completions, answer, **kwargs): ...    # TRL's: everything by name, a list with one value each

The parameters' names decide; nothing is called to find out.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mlx_grpo_kit.tasks.task import Problem, RewardFunc, TaskError, is_chat

ONLY_IN_TRL = ("trainer_state", "log_extra", "log_metric")
"""Arguments that TRL's trainer passes and this kit's does not."""

FORMS = "(problems, completions), or TRL's (prompts, completions, **kwargs)"


def reward_name(func: Callable) -> str:
    """The name of a reward function in metrics and messages."""
    return getattr(func, "__name__", type(func).__name__)


def as_reward_funcs(given: RewardFunc | Iterable[RewardFunc]) -> list[RewardFunc]:
    """One reward function or several, as a list. Raises TaskError for anything that cannot be called."""
    functions = [given] if callable(given) or isinstance(given, str) or not isinstance(given, Iterable) else [*given]
    for each in functions:
        if not callable(each):
            raise TaskError(
                f"reward_funcs has {each!r:.80}; expected a function, or a list of functions. mlx_grpo_kit.tasks has "
                "rows.correct (the default of RowsTask), math_verify.math_verified, formats.format_reward(...) and "
                "formats.tags_reward(...); those of trl.rewards work too. For a reward model, write a function that "
                "calls it."
            )
    return functions


def takes_names(func: Callable, columns: Iterable[str] = ()) -> bool:
    """True if a reward function has TRL's signature and takes its arguments by name.

    A parameter `problems` means the kit's signature. Without it, a function has TRL's if it takes `**kwargs`, if a
    parameter is called `prompts` or `completion_ids`, if `environments` is required, if `completions` comes first, if
    all parameters are keyword-only, or if it takes `completions` with `answer`, with one of `columns`, or with two
    or more others that are required. So `f(prompts, completions)` and `f(answer, completions)` get texts, and
    `f(problems, completions, **kwargs)` gets problems.

    Args:
        columns: the keys of the problems' data, if they are known.

    Raises:
        TaskError: the function can be called in neither way; the message shows its parameters.
    """
    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError):  # something built in, which has no signature to read
        return False
    parameters = signature.parameters.values()
    plain = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    kinds = {each.kind for each in parameters}
    named = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    needed = [each for each in parameters if each.default is each.empty]
    required = [each.name for each in needed if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    words = f"Reward function {reward_name(func)!r} takes {_without_types(signature)}; expected {FORMS}"

    by_name = "problems" not in named and (
        inspect.Parameter.VAR_KEYWORD in kinds
        or not {"prompts", "completion_ids"}.isdisjoint(named)
        or "environments" in required
        or named[:1] == ["completions"]
        or (parameters and not plain and inspect.Parameter.VAR_POSITIONAL not in kinds)
        or ("completions" in named and (len(required) > 2 or not {"answer", *columns}.isdisjoint(named)))
    )
    if by_name:
        if unknown := [name for name in required if name in ONLY_IN_TRL]:
            raise TaskError(f"{words}. {unknown[0]} exists only in TRL and is not passed here: give it a default.")
        if nameless := [each.name for each in needed if each.kind is each.POSITIONAL_ONLY]:
            raise TaskError(f"{words}. {nameless[0]} cannot be passed by name, as TRL's arguments are.")
        return True
    by_position = {each.name for each in plain}
    extra = [name for name in required if name not in by_position]
    too_few = len(plain) < 2 and inspect.Parameter.VAR_POSITIONAL not in kinds
    if too_few or extra or len([name for name in required if name in by_position]) > 2:
        raise TaskError(f"{words}. (In TRL's form, the values of a dataset's columns are passed by name.)")
    return False


def reward_arguments(
    func: Callable,
    problems: Sequence[Problem],
    completions: Sequence[str],
    completion_ids: Sequence[Sequence[int]] | None = None,
    messages: Sequence[Sequence[Mapping[str, Any]]] | None = None,
    environments: Sequence[Any] | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments for a reward function: (positional, by name).

    TRL's form gets `prompts`, `completions`, `completion_ids` and `environments` if they are known, `answer`, and each
    key of `Problem.data` that all problems have, including a column named `answer`. Of these it gets the ones that it
    names, or all if it takes `**kwargs`. Each argument is a new list of copies, because a function may change what it
    gets. As in TRL, if a prompt is a chat, its completion is a chat too: `[{"role": "assistant", "content": text}]`,
    or the `messages` of all its turns.

    The kit's form gets problems and texts, and `completion_ids`, `messages` and `environments` if it has parameters of
    those names with a default.

    Raises:
        TaskError: the function has neither signature, or requires a name that not all problems have.
    """
    parameters = _parameters(func)
    named = {each.name: each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    if completion_ids is not None:
        completion_ids = [list(ids) for ids in completion_ids]
    known = {"completion_ids": completion_ids, "messages": messages, "environments": environments}
    known = {name: [*values] for name, values in known.items() if values is not None}
    rows = [{"answer": None, **getattr(problem, "data", {})} for problem in problems]
    columns = [key for key in (rows[0] if rows else {}) if all(key in row for row in rows)]
    if not takes_names(func, {key for row in rows for key in row}):  # reads no answer: a problem may hide it
        return [list(problems), list(completions)], {name: each for name, each in known.items() if name in named}
    rows = [{"answer": getattr(problem, "answer", None), **getattr(problem, "data", {})} for problem in problems]
    given = {key: [_copied(row[key]) for row in rows] for key in columns}
    prompts = given["prompts"] = [_copied(getattr(problem, "prompt", problem)) for problem in problems]
    turns = known.pop("messages", None) or [[{"role": "assistant", "content": text}] for text in completions]
    given["completions"] = [
        turn if is_chat(prompt) else text for prompt, turn, text in zip(prompts, turns, completions, strict=True)
    ]
    given |= known
    if rows:
        for name, parameter in named.items():
            if parameter.default is parameter.empty and name not in given:
                have = next((place for place, row in enumerate(rows) if name in row), None)
                lacks = next(place for place, row in enumerate(rows) if name not in row)
                why = "no problem has it" if have is None else f"problem {lacks} of {len(rows)} lacks it"
                raise TaskError(
                    f"Reward function {reward_name(func)!r} has a parameter {name!r}, but {why}. All problems have "
                    f"{', '.join(sorted(map(str, columns)))}: the answer and the keys of their data. (A function that "
                    "takes the kit's Problem objects calls its first parameter `problems`.)"
                )
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return [], {key: value for key, value in given.items() if isinstance(key, str)}
    return [], {key: value for key, value in given.items() if key in named}


def takes(func: Callable, name: str) -> bool:
    """True if a function has a parameter of this name."""
    return any(each.name == name for each in _parameters(func))


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # something that cannot be copied, such as a lock
        return value


def _parameters(func: Callable) -> list[inspect.Parameter]:
    try:
        return [*inspect.signature(func).parameters.values()]
    except (TypeError, ValueError):  # something built in, which has no signature to read
        return []


def _without_types(signature: inspect.Signature) -> inspect.Signature:
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return signature.replace(parameters=bare, return_annotation=signature.empty)
