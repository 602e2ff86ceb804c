"""The rewards of a step: call reward functions, and check everything that they return."""

from __future__ import annotations

import asyncio
import inspect
import math
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set, Sized
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from mlx_grpo_kit.grpo.advantages import soft_overlong_punishment
from mlx_grpo_kit.grpo.batch import Completions, Scores
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.runtime.event_loop import runs_here, user_loop
from mlx_grpo_kit.tasks.signatures import reward_arguments, reward_name, takes, takes_names
from mlx_grpo_kit.tasks.task import TaskError
from mlx_grpo_kit.tasks.tools import is_lost

LARGEST = float(np.finfo(np.float32).max)  # advantages are float32


class RewardError(TaskError):
    """A reward function failed or returned something that is not a reward; the message names it."""


class Failure(NamedTuple):
    """A completion that a reward function could not score."""

    function: str
    index: int
    message: str


def compute_rewards(
    reward_funcs: Sequence[Callable],
    problems: Sequence,
    completions: Sequence[str],
    *,
    completion_ids: Sequence[Sequence[int]] | None = None,
    messages: Sequence[Sequence[Mapping[str, Any]]] | None = None,
    environments: Sequence[Any] | None = None,
    failures: list[Failure] | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the sum of all functions' rewards, and each function's: (float64 [B], {name: float64 [B]}).

    A function that returns None for a completion does not apply to it: its array has NaN there, and the sum leaves it
        out. A completion that no function applies to has the sum NaN, and `compute_advantages` leaves it out.

    Functions have one of the two signatures that `RewardFunc` describes, and may be coroutine functions: those are
        awaited together, even if an event loop is already running.

    Args:
        completion_ids: the completions' tokens, for functions that ask for them.
        messages: the turns of each completion as a chat, if it has several.
        environments: the environment of each completion, if the task has any. A function with a parameter of this name
            does not apply to a completion whose environment was lost, because a call took too long.
        failures: a list to collect failures in. With it, a completion for which a function raises, or returns a number
            that is not finite, counts as None and is added to the list, and nothing is raised.

    A function that raises is called again on halves of the batch, and on halves of the halves for which it raises,
    until the completion is found. This takes at most twice as many calls as there are completions, and seldom more than
    a few.

    Raises RewardError for a function that raises, a wrong number of rewards, a reward that is not finite or that
    float32 cannot hold, and a coroutine function if another coroutine function calls this; and TaskError for a function
    with another signature.
    """
    names = [reward_name(func) for func in reward_funcs]
    if not names:
        raise RewardError("The task has no reward functions; expected at least one.")
    for name in names:
        if names.count(name) > 1:
            raise RewardError(
                f"Two reward functions are called {name!r}; expected different names, because metrics are logged under "
                "them."
            )
    columns = {"completion_ids": completion_ids, "messages": messages, "environments": environments}
    columns = {name: each for name, each in columns.items() if each is not None}
    batch = _Calls(problems, completions, columns, [*range(len(completions))])
    kept = batch.of([row for row, each in enumerate(environments or ()) if not is_lost(each)])
    batches = [kept if environments and takes(func, "environments") else batch for func in reward_funcs]
    table = np.full([len(names), len(completions)], np.nan)
    calls = [each for each in zip(reward_funcs, batches, table, strict=True) if each[1].rows or each[1] is batch]
    outcomes = _call_all((func, each) for func, each, _ in calls)
    for (func, each, rewards), outcome in zip(calls, outcomes, strict=True):
        _score(func, each, outcome, rewards, failures)
    by_name = dict(zip(names, table, strict=True))
    total = np.where(np.isnan(table).all(axis=0), np.nan, np.nansum(table, axis=0))
    if (abs(total) > LARGEST).any():
        index = int((abs(total) > LARGEST).argmax())
        raise RewardError(
            f"The rewards of completion {index} add up to {total[index]:g} ({', '.join(by_name)}); expected at most "
            f"{LARGEST:.1e}."
        )
    return total, by_name


@dataclass(eq=False)
class TaskRewards:
    """The rewards part of a step: a task's reward functions and, with `soft_punish_cache`, DAPO's overlong punishment.

    Args:
        reward_funcs: one or more functions with different names.
        max_completion_length: the maximum length of a completion, in tokens.
        world: the processes that share the work. A function sees only this process's groups.
        warned_of: the names of functions that have already failed, so that each warns once.
    """

    reward_funcs: Sequence[Callable]
    args: GRPOConfig
    max_completion_length: int
    world: World = field(default_factory=World)
    warned_of: set[str] = field(default_factory=set)

    def __call__(self, completions: Completions) -> Scores:
        """Score all completions. Raises RewardError like `compute_rewards`."""
        size = completions.num_generations
        own = self.world.share(len(completions) // size)
        mine, scores = completions.rows(range(own.start * size, own.stop * size)), None
        with self.world.together(TaskError, ValueError):
            scores = self.of_functions(mine)
        values = self.world.concatenate(scores.values)
        failed = {name: self.world.concatenate(each) for name, each in scores.failed.items()}
        names = scores.names
        if self.args.soft_punish_cache:
            punishment = soft_overlong_punishment(
                completions.lengths, self.max_completion_length, self.args.soft_punish_cache
            )
            names, values = (*names, "soft_overlong_punishment_reward"), np.column_stack([values, punishment])
        return Scores(names, values, failed)

    def of_functions(self, completions: Completions) -> Scores:
        """The functions' scores of these completions, in this process alone."""
        names = tuple(map(reward_name, self.reward_funcs))
        failures: list[Failure] | None = [] if self.args.on_reward_error == "skip" else None
        if not len(completions):
            empty = np.zeros(0)
            return Scores(names, np.zeros([0, len(names)]), {} if failures is None else dict.fromkeys(names, empty))
        _, by_name = compute_rewards(
            self.reward_funcs,
            completions.problems,
            completions.texts,
            completion_ids=completions.completion_ids,
            **_turns(completions),
            failures=failures,
        )
        failed = {} if failures is None else {name: np.zeros(len(completions)) for name in names}
        for name, index, message in failures or []:
            failed[name][index] = 1
            if name not in self.warned_of:
                self.warned_of.add(name)
                warnings.warn(
                    f"{message} This completion counts as not scored, and so will later ones "
                    f"(on_reward_error='skip'): see the metric rewards/{name}/failed.",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return Scores(names, np.column_stack([*by_name.values()]), failed)


def check_reward_funcs(reward_funcs: Sequence[Callable]) -> list[str]:
    """The names under which metrics are logged. Raises ValueError for anything but functions with different names."""
    names = [reward_name(function) for function in reward_funcs]
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"reward_funcs is {reward_funcs!r}; expected a list of one or more functions with different names, because "
            "metrics are logged under them."
        )
    for function in reward_funcs:
        takes_names(function)  # raises now for a function that can be called in neither way
    return names


def _turns(completions: Completions) -> dict[str, list]:
    """The messages and environments of completions that have several turns."""
    conversations = completions.conversations
    if any(each is None for each in conversations):
        return {}
    environments = [each.environment for each in conversations]
    known = {"messages": [each.messages for each in conversations]}
    return known if all(each is None for each in environments) else known | {"environments": environments}


class _Calls(NamedTuple):
    """Completions with their data; `rows` are their indices in the whole batch."""

    problems: Sequence
    completions: Sequence[str]
    columns: Mapping[str, Sequence]
    rows: list[int]

    def of(self, places: Sequence[int]) -> _Calls:
        """Some of these completions."""
        problems, completions, rows, *columns = (
            [column[place] for place in places]
            for column in (self.problems, self.completions, self.rows, *self.columns.values())
        )
        return _Calls(problems, completions, dict(zip(self.columns, columns, strict=True)), rows)

    def halves(self) -> list[_Calls]:
        count = len(self.rows)
        return [self.of(range(count // 2)), self.of(range(count // 2, count))]

    def quote(self, index: int = 0) -> str:
        """A completion and its prompt, shortened, with its index."""
        problem = self.problems[index]
        prompt = getattr(problem, "prompt", problem)
        return f"completion {self.rows[index]}, {_quoted(self.completions[index])} of prompt {_quoted(prompt)}"


class _Outcome(NamedTuple):
    """The result of a reward function, also as a list if it is an ordered iterable; or the error that it raised."""

    returned: Any = None
    values: list | None = None
    error: BaseException | None = None


def _call_all(calls: Iterable[tuple[Callable, _Calls]]) -> list[_Outcome]:
    """Call functions one after the other. Coroutines run concurrently, and are awaited at the end."""
    futures: list[Future[_Outcome]] = []
    try:
        for func, batch in calls:
            futures.append(_begin(func, batch))
        outcomes = [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()  # if one was interrupted
    for outcome in outcomes:
        if isinstance(outcome.error, KeyboardInterrupt):
            raise outcome.error
    return outcomes


def _begin(func: Callable, batch: _Calls) -> Future[_Outcome]:
    """Call a function and return a future with its outcome, which a coroutine function completes later."""
    args, kwargs = reward_arguments(func, batch.problems, batch.completions, **batch.columns)
    future: Future = Future()
    try:
        returned = func(*args, **kwargs)
        if not inspect.isawaitable(returned):
            future.set_result(_walk(returned, len(batch.completions)))
            return future
    except (Exception, SystemExit) as error:  # exit() in a reward must not end the run as if it had succeeded
        future.set_result(_Outcome(error=error))
        return future
    if runs_here():  # it would wait for itself
        if inspect.iscoroutine(returned):
            returned.close()
        name = reward_name(func)
        raise RewardError(
            f"compute_rewards was called in a coroutine function, and the reward {name!r} is one too: the call would "
            f"wait forever. Expected `await {name}(...)` there, or `await asyncio.to_thread(compute_rewards, ...)`."
        )
    return asyncio.run_coroutine_threadsafe(_await(returned, len(batch.completions)), user_loop())


async def _await(awaitable: Awaitable, count: int) -> _Outcome:
    try:
        return _walk(await awaitable, count)
    except BaseException as error:  # otherwise SystemExit would end the event loop
        return _Outcome(error=error)


def _walk(returned: Any, count: int) -> _Outcome:
    """Iterate over at most `count` + 1 values. A generator runs, and may fail, only here."""
    ordered = isinstance(returned, Iterable) and not isinstance(returned, Mapping | Set)
    return _Outcome(returned, list(islice(returned, count + 1)) if ordered else None)


def _score(
    func: Callable, batch: _Calls, outcome: _Outcome, rewards: np.ndarray, failures: list[Failure] | None
) -> None:
    """Write one function's rewards into `rewards` [B]. Failures are added to `failures`, or raised if that is None."""
    name = reward_name(func)
    if outcome.error is None:
        rewards[batch.rows] = _numbers(name, batch, outcome, failures)
        return
    failing = [(batch, outcome.error)] if len(batch.completions) else []
    while failing:
        parts = []
        for part, error in failing:
            if len(part.completions) > 1:
                parts += part.halves()
            else:
                _fail(Failure(name, part.rows[0], f"{_raised(name, error)} for {part.quote()}."), failures, error)
        outcomes = _call_all((func, part) for part in parts)
        failing = []
        for part, result in zip(parts, outcomes, strict=True):
            if result.error is None:
                rewards[part.rows] = _numbers(name, part, result, failures)
            else:
                failing.append((part, result.error))
        if failures is None:
            failing = failing[:1]  # the error names the first completion
    if failures is None:
        count = len(batch.completions)
        raise RewardError(
            f"{_raised(name, outcome.error)} for {count} completions at once, but not for parts of them. Does it keep "
            "state between calls, or compare completions with each other?"
        ) from outcome.error


def _numbers(name: str, batch: _Calls, outcome: _Outcome, failures: list[Failure] | None) -> np.ndarray:
    """The rewards of a call that did not raise."""
    returned, values, _ = outcome
    if values is None:
        hint = " In a coroutine function, use return and not yield." if inspect.isasyncgen(returned) else ""
        raise RewardError(
            f"Reward function {name!r} returned {_quoted(returned)}; expected a list of numbers, one per "
            f"completion.{hint}"
        )
    if len(values) != len(batch.completions):
        count = len(returned) if isinstance(returned, Sized) else len(values)
        raise RewardError(
            f"Reward function {name!r} returned {count} rewards for {len(batch.completions)} completions; "
            "expected one for each."
        )
    rewards = np.full(len(values), np.nan)
    for index, value in enumerate(values):
        if value is None:
            continue
        if isinstance(value, BaseException):  # an environment's own reward, which is asked for only once
            _fail(
                Failure(name, batch.rows[index], f"{_raised(name, value)} for {batch.quote(index)}."), failures, value
            )
            continue
        with suppress(Exception, SystemExit):  # float() runs code of the returned object
            rewards[index] = math.nan if isinstance(value, str) else float(value)
        if not abs(rewards[index]) <= LARGEST:
            rewards[index] = math.nan
            message = (
                f"Reward function {name!r} returned {_quoted(value)} for {batch.quote(index)}; expected a finite "
                f"number, or None where the function does not apply. The largest allowed number is {LARGEST:.1e}."
            )
            _fail(Failure(name, batch.rows[index], message), failures)
    return rewards


def _fail(failure: Failure, failures: list[Failure] | None, cause: BaseException | None = None) -> None:
    if failures is None:
        raise RewardError(failure.message) from cause
    failures.append(failure)


def _raised(name: str, error: BaseException) -> str:
    try:
        said = _shortened(str(error), 300)
    except Exception:
        said = "(its message cannot be shown)"
    return f"Reward function {name!r} raised {type(error).__name__}: {said}"


def _quoted(value: object) -> str:
    """The result of a reward function in at most 60 characters. (The repr of an int of 5000 digits raises.)"""
    try:
        text = repr(value[:60] if isinstance(value, str) else value)
    except Exception:
        return f"a {type(value).__name__}"
    return _shortened(text, 60)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
