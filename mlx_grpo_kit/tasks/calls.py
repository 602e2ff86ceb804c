"""Calls of a task's methods, with checks of everything that they return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from mlx_grpo_kit.tasks.task import Problem, Task, TaskError, is_chat

T = TypeVar("T")


def sample_problems(task: Task, rng: np.random.Generator, n: int) -> list[Problem]:
    """`n` problems of the training split.

    Raises TaskError like the next three functions, which names the task and the call.
    """
    return _problems(task, f"sample(rng, {n})", lambda: task.sample(rng, n), n)


def ordered_problems(task: Task, seed: int, start: int, n: int) -> list[Problem]:
    """`n` problems of the training split from position `start` of its epochs on."""
    return _problems(task, f"in_order({seed}, {start}, {n})", lambda: task.in_order(seed, start, n), n)


def held_out_problems(task: Task, n: int) -> list[Problem]:
    """`n` problems that training never sees; at most `num_held_out`, if the task has that attribute.

    Raises TaskError for a task that holds none out.
    """
    n, asked = min(n, getattr(task, "num_held_out", n)), n
    if n < 1 <= asked:
        raise TaskError(
            f"Task {task.name!r} holds no problems out (num_held_out is {n}), so there is nothing to evaluate on. "
            "Train without evaluation, or give the task such problems: RowsTask(rows, held_out_rows=test_rows)."
        )
    return _problems(task, f"held_out({n})", lambda: task.held_out(n), n)


def are_correct(task: Task, problems: Sequence[Problem], completions: Sequence[str]) -> list[bool]:
    """True for each completion that solves its problem."""
    pairs = zip(problems, completions, strict=True)
    return _call(task, "is_correct(problem, completion)", lambda: [bool(task.is_correct(*pair)) for pair in pairs])


def _problems(task: Task, call: str, ask: Callable[[], Iterable[Problem]], n: int) -> list[Problem]:
    problems = _call(task, call, lambda: list(islice(ask(), n + 1)))  # an iterator may be endless
    if len(problems) != n:
        returned = f"more than {n}" if len(problems) > n else f"{len(problems)}"
        way_out = (
            " If the task has no more held-out problems, evaluate with fewer." if call.startswith("held_out") else ""
        )
        raise TaskError(f"Task {task.name!r}: {call} returned {returned} problems; expected {n}.{way_out}")
    for place, problem in enumerate(problems):
        prompt = getattr(problem, "prompt", None)
        if not (isinstance(prompt, str) or is_chat(prompt)):
            raise TaskError(
                f"Task {task.name!r}: {call} returned {type(problem).__name__} at position {place}; expected a Problem "
                "whose prompt is a string, or a list of messages with a role and a content, both strings."
            )
    return problems


def _call(task: Task, call: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except TaskError:
        raise
    except (Exception, SystemExit) as error:  # exit() in a task must not end the program as if it had succeeded
        raise TaskError(f"Task {task.name!r}: {call} raised {type(error).__name__}: {error}") from error
