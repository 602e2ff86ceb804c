"""Tasks by name: the kit's own, and anybody's as `module:Class`."""

from collections.abc import Sequence
from importlib import import_module

from mlx_grpo_kit.tasks.addition import Addition
from mlx_grpo_kit.tasks.countdown import Countdown
from mlx_grpo_kit.tasks.task import Task

TASKS = {task.name: task for task in (Addition, Countdown)}


def get_task(name: str) -> Task:
    """The task called `name` with its default settings.

    Args:
        name: a key of `TASKS`, or `module:Class` for a task of your own, imported and called without arguments.

    Raises:
        ValueError: there is no such task.
        TypeError: what `module:Class` makes lacks a part of the protocol.
    """
    if name in TASKS:
        return TASKS[name]()
    module_name, colon, class_name = name.partition(":")
    if not colon:
        raise ValueError(
            f"Unknown task '{name}'. The kit has {', '.join(sorted(TASKS))}; a task of your own is named module:Class."
        )
    try:
        factory = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:  # ValueError: an empty module name
        raise ValueError(
            f"Task '{name}': {error}. Expected module:Class, with the module importable from here "
            f"(for a file my_task.py in the current folder: PYTHONPATH=. and my_task:{class_name or 'MyTask'})."
        ) from error
    task = factory()
    validate_task(task)
    return task


def validate_task(task: object) -> None:
    """Says what a home-made task still lacks, before a training run finds out.

    Raises:
        TypeError: a member of the `Task` protocol is missing or of the wrong kind.
    """
    kind = type(task).__name__
    members = ("name", "max_completion_length", "reward_funcs", "sample", "held_out", "is_correct")
    missing = [member for member in members if not hasattr(task, member)]
    if missing:
        raise TypeError(f"{kind} is not a task yet: it lacks {', '.join(missing)} (see mlx_grpo_kit.tasks.Task).")
    for method in ("sample", "held_out", "is_correct"):
        if not callable(getattr(task, method)):
            raise TypeError(f"{kind}.{method} must be a method, not {getattr(task, method)!r}.")
    length = task.max_completion_length
    if not isinstance(length, int) or length < 1:
        raise TypeError(f"{kind}.max_completion_length must be a positive int, not {length!r}.")
    functions = task.reward_funcs if isinstance(task.reward_funcs, Sequence) else []
    names = {getattr(function, "__name__", None) for function in functions if callable(function)}
    if not names or None in names or len(names) != len(functions):
        raise TypeError(
            f"{kind}.reward_funcs must be one or more functions with different names (the name is the metric's), "
            f"not {task.reward_funcs!r}."
        )
