"""Tasks by name: the kit's own, and yours as `module:Class` or `file.py:Class`."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from typing import Any

from mlx_grpo_kit.tasks.signatures import reward_name, takes_names
from mlx_grpo_kit.tasks.task import Task, TaskError
from mlx_grpo_kit.tasks.tools import environment_rewards

TASKS = {
    "addition": "mlx_grpo_kit.tasks.addition:Addition",
    "countdown": "mlx_grpo_kit.tasks.countdown:Countdown",
    "calculator": "mlx_grpo_kit.tasks.calculator:Calculator",
    "guess": "mlx_grpo_kit.tasks.guess:GuessTheNumber",
    "long-sum": "mlx_grpo_kit.tasks.long_sum:LongSum",
    "larger": "mlx_grpo_kit.tasks.larger:Larger",
}
"""The kit's tasks by name. A class is imported when its task is used."""


def get_task(name: str, **args: Any) -> Task:
    """The task called `name`.

    Args:
        name: a key of `TASKS`; "rows" for the rows of a file, `get_task("rows", path="problems.jsonl")`; "gym:NAME" for
            a generator of reasoning-gym; or your own task as `module:Class` or `path/to/file.py:Class`, which is
            imported and called.
        args: arguments of the task; the others keep their defaults.

    Raises:
        ValueError: there is no such task, its file fails, or it does not take `args`.
        TypeError: the object that `module:Class` makes lacks a part of the protocol.
    """
    module, colon, class_name = name.rpartition(":")
    if not colon and name != "rows" and name not in TASKS:
        raise ValueError(
            f"Unknown task '{name}'. The kit has {', '.join(sorted(TASKS))}; name a task of reasoning-gym gym:NAME and "
            "your own module:Class or file.py:Class, and pass the rows of a file with --data."
        )
    if name == "rows":
        factory = import_module("mlx_grpo_kit.tasks.rows").RowsTask.from_file
    elif module == "gym":
        factory = partial(import_module("mlx_grpo_kit.tasks.gym").GymTask, class_name)
    else:
        factory = _import(name, *TASKS.get(name, name).rsplit(":", 1))
    try:
        signature(factory).bind(**args)
    except TypeError as error:
        given = ", ".join(f"{key}={value!r}" for key, value in args.items()) or "no arguments"
        takes = f"{class_name or name}{signature(factory)}"
        raise ValueError(f"Task '{name}' does not accept {given}: {error}. Its signature is {takes}.") from error
    except ValueError:  # a built-in without a readable signature
        pass
    try:
        task = factory(**args)
    except SystemExit as error:
        raise ValueError(_exited(name, class_name)) from error
    validate_task(task)
    return task


def _import(name: str, module_name: str, class_name: str) -> Callable[..., Task]:
    try:
        if not module_name.endswith(".py"):
            return getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:  # ValueError: an empty module name
        raise ValueError(
            f"Task '{name}': {error}. Expected module:Class, with the module importable from here, or the path of a "
            f"file: path/to/my_task.py:{class_name or 'MyTask'}."
        ) from error
    except SystemExit as error:
        raise ValueError(_exited(name, module_name)) from error
    path = Path(module_name)
    if not path.is_file():
        raise ValueError(f"Task '{name}': there is no file {path.absolute()}. Expected path/to/my_task.py:MyTask.")
    # A prefix, so that it does not clash with another module of the file's name:
    spec = spec_from_file_location(f"task_of_one_s_own.{path.stem}", path)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # pickle and dataclasses look here for the file's definitions
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(spec.name, None)
        if isinstance(error, SystemExit):
            raise ValueError(_exited(name, path)) from error
        raise ValueError(f"Task '{name}': {path} raised {type(error).__name__}: {error}") from error
    if not hasattr(module, class_name):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == spec.name]
        raise ValueError(f"Task '{name}': {path} has no {class_name!r}; it has {', '.join(own) or 'nothing'}.")
    return getattr(module, class_name)


def _exited(name: str, what: object) -> str:
    return (
        f"Task '{name}': {what} called exit(), which would end the run before it starts. If the file is a program too, "
        'put `if __name__ == "__main__":` before that line.'
    )


def validate_task(task: object) -> None:
    """Check a custom task before training, and report what it lacks.

    Raises:
        TypeError: a member of the `Task` protocol is missing or of the wrong kind, a reward function has neither of the
            signatures that `RewardFunc` describes, or a tool cannot be described to a model.
    """
    if isinstance(task, str):
        raise TypeError(f"The task is the string {task!r}; expected a task, such as get_task({task!r}).")
    if isinstance(task, type):
        raise TypeError(f"The task is the class {task.__name__}; expected one of its instances, {task.__name__}().")
    kind = type(task).__name__
    members = ("name", "max_completion_length", "reward_funcs", "sample", "held_out", "is_correct")
    missing = [member for member in members if not hasattr(task, member)]
    if missing:
        raise TypeError(f"{kind} is not a task yet: it lacks {', '.join(missing)} (see mlx_grpo_kit.tasks.Task).")
    if not (isinstance(task.name, str) and task.name):
        raise TypeError(f"{kind}.name must be a string for logs and checkpoints, not {task.name!r}.")
    for method, arguments in (("sample", "rng, n"), ("held_out", "n"), ("is_correct", "problem, completion")):
        function = getattr(task, method)
        if not callable(function):
            raise TypeError(f"{kind}.{method} must be a method, not {function!r}.")
        if not _can_be_called(function, arguments.split(", ")):
            raise TypeError(f"{kind}.{method}{signature(function)} must be callable as {method}({arguments}).")
    length = task.max_completion_length
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise TypeError(f"{kind}.max_completion_length must be a positive int, not {length!r}.")
    functions = task.reward_funcs if isinstance(task.reward_funcs, Sequence) else []
    names = {reward_name(function) for function in functions if callable(function)}
    rewards_itself = any(environment_rewards(task)) and not task.reward_funcs
    if len(names) != len(functions) or not (names or rewards_itself):
        raise TypeError(
            f"{kind}.reward_funcs must be one or more functions with different names (the name is the metric's), "
            f"not {task.reward_funcs!r}."
        )
    try:
        for function in functions:
            takes_names(function)
    except TaskError as error:
        raise TypeError(f"{kind}.reward_funcs: {error}") from None


def _can_be_called(function: Callable, arguments: Sequence[str]) -> bool:
    try:
        signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a built-in without a readable signature
        return True
    return True
