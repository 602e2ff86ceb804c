"""The tools and environments of a task: the functions that a model may call, and their descriptions.

    def add(a: int, b: int) -> int: ...              # with type hints and a docstring
    task = RowsTask(rows, tools=[add])

    class Game:                                      # one instance per completion
        def reset(self, **row) -> str | None: ...    # text to append to the last message
        def guess(self, number: int) -> str: ...     # every public method is a tool
        def get_reward(self) -> float: ...           # optional: one more reward
    task = RowsTask(rows, environment_factory=Game)

Names and meaning are TRL's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from mlx_grpo_kit.tasks.json_schema import ToolError, get_json_schema
from mlx_grpo_kit.tasks.task import Problem

Environment = Any
"""An object with `reset(**row)`, public methods that are tools, and optionally `get_reward()`."""


class TaskTools:
    """The tools of a task, by environment.

    Args:
        tools: functions that the model may call.
        environment_factory: a callable that makes an environment, or several by name. Then the `environment` in a
            problem's `data` selects one.

    Raises ToolError for a tool or environment that cannot be described to a model.
    """

    def __init__(
        self,
        tools: Sequence[Callable] = (),
        environment_factory: Callable[[], Environment] | Mapping[str, Callable[[], Environment]] | None = None,
    ):
        self.functions = _by_name(tools, "The task")
        self.by_name = isinstance(environment_factory, Mapping)
        factories = environment_factory if self.by_name else {None: environment_factory}
        self.factories = {name: factory for name, factory in factories.items() if factory is not None}
        self._free: dict[str | None, list[Environment]] = {}
        self.environment_types: list[type] = []
        self._schemas: dict[str | None, list[dict[str, Any]]] = {None: self._schemas_of(self.functions)}
        for name, factory in self.factories.items():
            environment = _made(name, factory)
            self._free[name] = [environment]
            self._schemas[name] = self._schemas_of(self.of(environment))
            if callable(getattr(environment, "get_reward", None)) and type(environment) not in self.environment_types:
                self.environment_types.append(type(environment))

    def _schemas_of(self, tools: Mapping[str, Callable]) -> list[dict[str, Any]]:
        return [get_json_schema(tool) for tool in tools.values()]

    def schemas(self, problem: Problem) -> list[dict[str, Any]]:
        """The schemas of the tools that this problem may use."""
        return self._schemas[self._name(problem)]

    def of(self, environment: Environment | None) -> dict[str, Callable]:
        """The tools by name: the task's functions, and the methods of an environment."""
        methods = [] if environment is None else _methods(environment)
        return _by_name([*self.functions.values(), *methods], f"Environment {type(environment).__name__}")

    def environments(self, problems: Sequence[Problem]) -> list[Environment | None]:
        """A separate environment for each problem; the next call reuses the same instances."""
        if not self.factories:
            return [None] * len(problems)
        used: dict[str | None, int] = {}
        found = []
        for problem in problems:
            name = self._name(problem)
            free, place = self._free[name], used.get(name, 0)
            if place == len(free):
                free.append(_made(name, self.factories[name]))
            used[name] = place + 1
            found.append(free[place])
        return found

    def _name(self, problem: Problem) -> str | None:
        if not self.by_name:
            return None
        name = problem.data.get("environment")
        if name not in self.factories:
            raise ToolError(
                f"The problem {problem.text[:60]!r} asks for the environment {name!r}; expected one of "
                f"{', '.join(sorted(map(repr, self.factories)))}."
            )
        return name


_OF_TASKS: WeakKeyDictionary[Any, TaskTools | None] = WeakKeyDictionary()


def task_tools(task: Any) -> TaskTools | None:
    """The tools of a task; None if it has none. Raises ToolError like `TaskTools`."""
    with suppress(TypeError, KeyError):  # a task that cannot be a dictionary key
        return _OF_TASKS[task]
    tools, factory = getattr(task, "tools", None), getattr(task, "environment_factory", None)
    found = TaskTools(tools or (), factory) if tools or factory is not None else None
    with suppress(TypeError):
        _OF_TASKS[task] = found
    return found


def environment_rewards(task: Any) -> list[Callable]:
    """A reward function for each class of environment that has `get_reward()`, under the name of the class."""
    tools = task_tools(task)
    return [] if tools is None else [_reward_of(kind) for kind in tools.environment_types]


def _reward_of(kind: type) -> Callable:
    if inspect.iscoroutinefunction(kind.get_reward):

        async def reward(prompts, completions, environments, **kwargs):
            return [await each.get_reward() if type(each) is kind else None for each in environments]

    else:

        def reward(prompts, completions, environments, **kwargs):
            return [each.get_reward() if type(each) is kind else None for each in environments]

    reward.__name__ = kind.__name__
    return reward


def _methods(environment: Environment) -> list[Callable]:
    """The public methods, except `reset` and `get_reward`. They come from the class: a property would run code."""
    names = [name for name, _ in inspect.getmembers(type(environment), inspect.isfunction)]
    return [getattr(environment, name) for name in names if name[0] != "_" and name not in ("reset", "get_reward")]


def _made(name: str | None, factory: Callable[[], Environment]) -> Environment:
    if not callable(factory):
        raise ToolError(f"environment_factory is {factory!r}; expected a function or class that makes an environment.")
    environment = factory()
    if not callable(getattr(environment, "reset", None)):
        what = f"Environment {name!r}" if name else "The environment"
        raise ToolError(f"{what} is a {type(environment).__name__}, which has no reset(); expected reset(**row).")
    return environment


def _by_name(tools: Sequence[Callable], whose: str) -> dict[str, Callable]:
    found: dict[str, Callable] = {}
    for tool in tools:
        name = getattr(tool, "__name__", None)
        if not callable(tool) or name is None:
            raise ToolError(f"{whose} has the tool {tool!r}; expected a function with type hints and a docstring.")
        if name in found:
            raise ToolError(f"{whose} has two tools called {name!r}; expected different names.")
        found[name] = tool
    return found
