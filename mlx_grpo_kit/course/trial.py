"""Trials of an answer: its input is watched, and its work is counted if the exercise limits it."""

from __future__ import annotations

import builtins
import copy
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from mlx_grpo_kit.course.compare import as_numpy, refuse_endless

LARGEST_COPY = 1 << 28  # bytes of an array that `watched` copies


class TooMuchWorkError(BaseException):
    """Raised inside an answer that has done more than an exercise allows. `except Exception` does not catch it."""


class ReplacedError(Exception):
    """Raised after an answer that replaced functions of Python, NumPy or MLX, which have been put back."""


class KeptModules:
    """A context that restores replaced functions in the modules that `check` itself computes with.

    New names are kept, because modules load parts of themselves late.

    Raises:
        ReplacedError: something had been replaced.
    """

    MODULES = ("builtins", "math", "numpy", "mlx.core")

    def __enter__(self) -> None:
        self._before = {name: dict(vars(sys.modules[name])) for name in self.MODULES if name in sys.modules}
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: Any) -> None:
        names: list[str] = []
        for name, before in self._before.items():
            now = vars(sys.modules[name])
            replaced = [each for each in before if each not in now or now[each] is not before[each]]
            now.update((each, before[each]) for each in replaced)
            names += [f"{name}.{each}" for each in replaced]
        if names and raised is not KeyboardInterrupt:
            what = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise ReplacedError(f"no result to compare, because it replaced {what} (check put that back)")


class RanTextError(BaseException):
    """Raised in an answer that calls `eval` or `exec`, and after it. `except Exception` does not catch it."""


class OnlyRead:
    """A context in which an answer's `eval` and `exec` run nothing: a text that a model wrote may end the kernel.

    Those of Python's own modules, of compiled code in `slips`, and of other threads work as ever.

    Raises:
        RanTextError: one of them was called, even if the answer caught that error.
    """

    def __enter__(self) -> None:
        self._called: str | None = None
        self._own = {name: getattr(builtins, name) for name in ("eval", "exec")}
        thread = threading.get_ident()

        def guarded(name: str) -> Callable[..., Any]:
            def call(source: Any, *spaces: Any, **named: Any) -> Any:
                frame = sys._getframe(1)
                caller = frame.f_globals.get("__name__", "")
                trusted = caller == "mlx_grpo_kit.course.slips" or caller.partition(".")[0] in sys.stdlib_module_names
                if trusted or threading.get_ident() != thread:
                    return self._own[name](source, *(spaces or (frame.f_globals, frame.f_locals)), **named)
                self._called = name
                raise RanTextError

            return call

        vars(builtins).update({name: guarded(name) for name in self._own})

    def __exit__(self, raised: type[BaseException] | None, *_: Any) -> None:
        vars(builtins).update(self._own)
        if self._called and raised is not KeyboardInterrupt:
            raise RanTextError(
                f"no result, because it calls `{self._called}`, which runs whatever a model wrote: that may delete "
                "files, end the kernel, or compute `9**9**9**9`, which never ends (check stopped it before it ran)"
            )


class OneProcess:
    """A context in which forked children end: only the process that entered it leaves it."""

    def __enter__(self) -> None:
        self._process = os.getpid()

    def __exit__(self, *_: Any) -> None:
        if os.getpid() != self._process:
            os._exit(0)


def finite(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose calls raise EndlessError if a result or an argument contains itself: MLX would crash on it.

    A child process that a call forks ends with that call.
    """
    if inspect.isclass(function):
        return function

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with OneProcess():
            result = function(*arguments, **named)
        refuse_endless((result, arguments, named))
        return result

    return call


def watched(function: Callable[..., Any], changes: list[str], returned: list[tuple]) -> Callable[..., Any]:
    """`function`, with its calls observed.

    Each call that changes its input adds the function's name to `changes`. A result that is a list or a NumPy array is
    added to `returned` with a copy: see `written_over`.
    """
    if not inspect.isroutine(function):  # a class: its objects may change each other
        return function
    keep = returned.append  # not the list itself: compiling `call` would find arrays around it

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        before = _numbers((arguments, named))
        result = function(*arguments, **named)
        if not inspect.isgenerator(result) and not _alike(_numbers((arguments, named)), before):
            changes.append(function.__name__)
        is_array = type(result).__module__ == "numpy"
        if type(result) is list or (is_array and getattr(result, "nbytes", 0) <= LARGEST_COPY):
            keep((result, copy.copy(result)))
        return result

    return call


def written_over(returned: list[tuple]) -> bool:
    """True if something in `returned` has changed since it was returned: a later call reused it."""
    return not all(_alike(_numbers(result), _numbers(copied)) for result, copied in returned)


def _numbers(value: Any) -> Any:
    """A copy of the numbers in `value`: in arrays, tensors, lists, tuples and dictionaries. Anything else is None."""
    if isinstance(value, (list, tuple)):
        return [_numbers(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _numbers(each) for key, each in value.items()}
    if isinstance(value, (int, float, complex)):
        return value
    data = getattr(value, "data", None) if not type(value).__module__.startswith("numpy") else value
    if type(data).__module__ == "numpy" or isinstance(data, (int, float)):
        return copy.deepcopy(data)
    if hasattr(value, "detach") and hasattr(value, "clone"):  # torch
        return value.detach().clone().numpy()
    if type(value).__module__ == "mlx.core":
        try:
            return as_numpy(value).copy()
        except (ValueError, RuntimeError):  # inside mx.compile, where arrays have no numbers yet
            return None
    return None


def _alike(now: Any, before: Any) -> bool:
    if type(now) is not type(before):
        return False
    if isinstance(now, list):
        return len(now) == len(before) and all(map(_alike, now, before))
    if isinstance(now, dict):
        return now.keys() == before.keys() and all(_alike(now[key], before[key]) for key in now)
    if hasattr(now, "shape"):
        import numpy as np

        return now.shape == before.shape and bool(np.array_equal(now, before, equal_nan=now.dtype.kind in "fc"))
    return now == before or now != now


def count_work(call: Callable[[], Any], limit: float = float("inf")) -> tuple[Any, int]:
    """Return the result of `call`, and the number of Python's own steps it took: one per instruction of its bytecode.

    NumPy's inner loops count as one step each, so the number tells a Python loop from a product of arrays, and it is
    the same on every machine. Imports do not count, because a module may already be loaded.

    Raises:
        TooMuchWorkError: more than `limit` steps were taken.
    """
    steps, importing = 0, None

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal steps, importing
        if importing is None and event == "call" and frame.f_code.co_filename.startswith("<frozen importlib"):
            importing = frame
        if importing is not None:  # stopping halfway would leave a broken module
            if frame is not importing:
                return None
            importing = None if event == "return" else importing
            return count
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            if steps > limit:
                raise TooMuchWorkError
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return call(), steps
    finally:
        sys.settrace(before)
