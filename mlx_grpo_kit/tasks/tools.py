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

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from mlx_grpo_kit.runtime.worker import Worker, words_of
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
        self.environment_types: list[type] = []
        self._schemas: dict[str | None, list[dict[str, Any]]] = {None: self._schemas_of(self.functions)}
        for name, factory in self.factories.items():
            environment = _made(name, factory)  # only to look at
            self._schemas[name] = self._schemas_of(self.of(environment))
            if callable(getattr(environment, "get_reward", None)) and type(environment) not in self.environment_types:
                self.environment_types.append(type(environment))

    def _schemas_of(self, tools: Mapping[str, Callable]) -> list[dict[str, Any]]:
        return [get_json_schema(tool) for tool in tools.values()]

    def schemas(self, problem: Problem) -> list[dict[str, Any]]:
        """The schemas of the tools that this problem may use."""
        return self._schemas[self.name(problem)]

    def of(self, environment: Environment | None) -> dict[str, Callable]:
        """The tools by name: the task's functions, and the methods of an environment."""
        methods = [] if environment is None else _methods(environment)
        return _by_name([*self.functions.values(), *methods], f"Environment {type(environment).__name__}")

    def name(self, problem: Problem) -> str | None:
        """The name of the problem's environment, if there are several. Raises ToolError for an unknown name."""
        if not self.by_name:
            return None
        name = problem.data.get("environment")
        if name not in self.factories:
            raise ToolError(
                f"The problem {problem.text[:60]!r} asks for the environment {name!r}; expected one of "
                f"{', '.join(sorted(map(repr, self.factories)))}."
            )
        return name


@dataclass(eq=False)
class Toolbox:
    """The tools of a rollout, and the place where they run.

    Attributes:
        tools: the functions by name.
        schemas: their descriptions.
        worker: runs the synchronous functions and the rest of the environment.
        environment: the rollout's environment, if the task has one.
    """

    tools: Mapping[str, Callable]
    schemas: Sequence[Mapping[str, Any]] = ()
    worker: Worker = field(default_factory=Worker)
    environment: Environment | None = None

    def __post_init__(self):
        if self.environment is not None:
            _BOXES[id(self.environment)] = self

    @property
    def is_lost(self) -> bool:
        """True if a call that took too long may still change the environment."""
        return self.environment is not None and self.worker.is_lost

    def reset(self, row: Mapping[str, Any]) -> Any:
        """Reset the environment with a copy of a row, which it may change, and return what `reset` returns."""
        try:
            row = copy.deepcopy(dict(row))
        except Exception as error:
            words = f"{words_of(error)}. Each environment gets a copy of its row, and this row cannot be copied"
            raise TypeError(words) from error
        return self.worker.run(lambda: self.environment.reset(**row))


_BOXES: WeakValueDictionary[int, Toolbox] = WeakValueDictionary()  # by the id() of the environment, which the box keeps


class Toolboxes:
    """The toolboxes of a sampler. It alone uses their environments, batch after batch.

    Args:
        tools: the tools of the task.
        timeout: seconds that a call may take. With a timeout each environment has a lasting thread, in which its
            factory, `reset`, synchronous tools and `get_reward` run; with None they run in the thread that samples.
    """

    def __init__(self, tools: TaskTools, timeout: float | None = None):
        self.tools, self.timeout = tools, timeout
        self._boxes: dict[str | None, list[Toolbox]] = {}

    def of(self, problems: Sequence[Problem]) -> list[Toolbox]:
        """A toolbox for each problem, with an environment of its own; the next call reuses those that can be reset."""
        usable = {name: [each for each in boxes if each.worker.is_usable] for name, boxes in self._boxes.items()}
        self._boxes, used, found = usable, Counter(), []
        for problem in problems:
            name = self.tools.name(problem)
            boxes, place = usable.setdefault(name, []), used[name]
            if place == len(boxes):
                boxes.append(self._make(name, problem))
            used[name] += bool(self.tools.factories)  # functions alone need one box for all rows
            found.append(boxes[place])
        return found

    def _make(self, name: str | None, problem: Problem) -> Toolbox:
        worker, factory = Worker(self.timeout), self.tools.factories.get(name)
        environment = factory and worker.run(lambda: _made(name, factory))
        return Toolbox(self.tools.of(environment), self.tools.schemas(problem), worker, environment)


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
            return [await _rewarded(each) if type(each) is kind else None for each in environments]

        async def _rewarded(environment: Environment) -> Any:
            try:
                return await environment.get_reward()
            except (Exception, SystemExit) as error:
                return error

    else:

        def reward(prompts, completions, environments, **kwargs):
            return [_rewarded(each) if type(each) is kind else None for each in environments]

        def _rewarded(environment: Environment) -> Any:
            try:
                return _box_of(environment).worker.run(environment.get_reward)
            except (Exception, SystemExit) as error:
                return error

    reward.__name__ = kind.__name__
    return reward


def is_lost(environment: Environment | None) -> bool:
    """True if a call to this environment took too long, and may still change it."""
    box = _BOXES.get(id(environment))
    return box is not None and box.is_lost


def _box_of(environment: Environment) -> Toolbox:
    return _BOXES.get(id(environment)) or Toolbox({}, environment=environment)


def _methods(environment: Environment) -> list[Callable]:
    """The public methods, except `reset` and `get_reward`. They come from the class: a property would run code."""
    names = [name for name, _ in inspect.getmembers(type(environment), inspect.isfunction)]
    return [getattr(environment, name) for name in names if name[0] != "_" and name not in ("reset", "get_reward")]


def _made(name: str | None, factory: Callable[[], Environment]) -> Environment:
    if not callable(factory):
        raise ToolError(f"environment_factory is {factory!r}; expected a function or class that makes an environment.")
    what = f"Environment {name!r}" if name else "The environment"
    try:
        environment = factory()
    except (Exception, SystemExit) as error:  # exit() must not end the run as if it had succeeded
        raise ToolError(
            f"{what} cannot be made: its factory raised {type(error).__name__}: {words_of(error)}"
        ) from error
    if not callable(getattr(environment, "reset", None)):
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
