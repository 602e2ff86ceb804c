"""`mx.compile` with an error for everything that it would silently freeze.

`mx.compile` runs a function once with placeholders, and records the operations. An array that is not an argument
becomes a constant: new numbers in it are never seen, and its gradient is 0. The same holds for a random number. MLX
gives no warning. Here it is an error that names the array and how the function reaches it.
"""

from __future__ import annotations

import dis
import functools
import gc
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

from mlx_grpo_kit.autograd.gradients import value_and_grad
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.fork import refuse_after_fork

HARMLESS = (str, bytes, int, float, complex, type(None), type(...), types.BuiltinFunctionType)
GLOBAL_STEPS = ("LOAD_GLOBAL", "LOAD_NAME")
ATTRIBUTE_STEPS = ("LOAD_ATTR", "LOAD_METHOD")


class CapturedArrayError(ValueError):
    """A compiled function uses arrays that are not its arguments, or draws random numbers without a key."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, compiled at its first call, and again for arguments of other shapes or dtypes.

    Every array that it uses must be an argument, alone or inside of lists and dictionaries. The first call searches for
        other arrays of MLX and NumPy: in variables of the enclosing functions, globals, defaults, arguments fixed by
        functools.partial, the object of a method, containers and attributes of all these, and the same in every
        function that it refers to, even inside mx.grad, mx.checkpoint, mx.custom_function and mx.compile. Numbers and
        strings found there become constants, as in MLX: pass them as arguments if they will change. The search does not
        see globals of Python's own modules and of installed packages, or names that the code builds at run time, as in
        globals()["w"].

    Args:
        function: a function from arrays, or trees of arrays, to arrays; it is compiled separately for each value of an
            argument that is a number or a string.

    Returns:
        The compiled function. Its `__wrapped__` is `function` itself, for debugging.

    Raises:
        TypeError: `function` cannot be called.
        CapturedArrayError: at a call, if there is such an array, or a random number is drawn without a key.
    """
    if not callable(function):
        raise TypeError(f"compiled got {type(function).__name__}; expected a function of arrays, without brackets.")

    @functools.wraps(function)
    def traced(*arguments: Any, **named: Any) -> Any:  # runs only while MLX compiles
        search = _Search()
        search.look(function, "", f"kept by {_name(function)} itself")
        if found := search.found:
            more = f" So is {found[1]}." if len(found) == 2 else f" So are {len(found) - 1} more." if found[1:] else ""
            raise CapturedArrayError(
                f"{_name(function)} uses {found[0]}. Compiled, it would be a constant: new numbers in it would not be "
                f"seen, and its gradient would be 0.{more} Pass it as an argument, or compute it inside."
            )
        key = mx.random.state[0]
        result = function(*arguments, **named)
        if mx.random.state[0] is not key:
            raise CapturedArrayError(
                f"{_name(function)} draws random numbers without a key. Compiled, they would be the same in every "
                "call. Pass a key as an argument: mx.random.normal(shape, key=key)."
            )
        return result

    program = mx.compile(traced)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        refuse_after_fork()
        return program(*arguments, **named)

    return call


def compile_value_and_grad(
    loss_fn: Callable[..., mx.array],
) -> Callable[..., tuple[mx.array, dict[str, mx.array]]]:
    """A function (params, *data) -> (loss, grads), compiled as one program: forward, backward and loss.

    The first call is not compiled but goes through `value_and_grad`, so that you get its errors. Later calls return
    arrays that are not evaluated yet.

    Args:
        loss_fn: (params, *data) -> a scalar array. Pass all arrays other than the parameters as data.

    Raises:
        GradientError: in the first call, like `value_and_grad`.
        CapturedArrayError: in the first call, like `compiled`.
    """

    def step(params: dict[str, mx.array], *data: Any) -> tuple[mx.array, dict[str, mx.array]]:
        return mx.value_and_grad(lambda tracked: loss_fn(tracked, *data).reshape(()))(params)

    program, is_checked = compiled(step), False

    @functools.wraps(loss_fn)
    def call(params: Mapping[str, mx.array], *data: Any) -> tuple[mx.array, dict[str, mx.array]]:
        nonlocal is_checked
        if not is_checked:
            value_and_grad(lambda tracked: loss_fn(tracked, *data), params)
        result = program(dict(params), *data)
        is_checked = True
        return result

    return call


class _Search:
    """A search through everything that a function refers to.

    `found` has the arrays that it reaches although they are not arguments, each with a description of the way.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self.seen: dict[Any, Any] = {}  # by id, with the objects themselves: an id is valid only while its object lives

    def look(self, thing: Any, path: str, how: str, attributes: Iterable[str] = ()) -> None:
        """Search `thing`, which is reached as `path`.

        Args:
            how: the way it is reached, in words.
            attributes: the attributes of modules and classes that the code uses.
        """
        if _is_array(thing):
            text = f"`{path}`, {how}"
            if text not in self.found:
                self.found.append(text)
        elif isinstance(thing, (types.ModuleType, type)):
            if (id(thing), *sorted(attributes)) in self.seen:
                return
            self.seen[(id(thing), *sorted(attributes))] = thing
            if isinstance(thing, type):
                self._class(thing, path, how, {"__init__", "__call__", *attributes})
            else:
                for name in attributes:
                    if name in vars(thing):
                        self.look(vars(thing)[name], f"{path}.{name}", how, attributes)
        elif not isinstance(thing, HARMLESS) and id(thing) not in self.seen:
            self.seen[id(thing)] = thing
            self._look_inside(thing, path, how, attributes)

    def _look_inside(self, thing: Any, path: str, how: str, attributes: Iterable[str]) -> None:
        if isinstance(thing, types.FunctionType):
            self._function(thing)
        elif isinstance(thing, types.MethodType):
            self._method(thing)
        elif isinstance(thing, functools.partial):
            way = f"fixed by functools.partial in {_name(thing.func)}"
            self.look(thing.func, path, how)
            for place, value in enumerate(thing.args):
                self.look(value, f"argument {place + 1}", way)
            for name, value in thing.keywords.items():
                self.look(value, name, way)
        elif isinstance(thing, (staticmethod, classmethod)):
            self.look(thing.__func__, path, how)
        elif isinstance(thing, property):
            self.look(thing.fget, path, how)
        elif isinstance(thing, Mapping):
            for key, value in thing.items():
                self.look(value, f"{path}[{key!r}]", how, attributes)
            self.look(getattr(thing, "default_factory", None), path, how)
        elif isinstance(thing, types.GeneratorType):
            for name, value in (thing.gi_frame.f_locals if thing.gi_frame else {}).items():
                self.look(value, path if name.startswith(".") else name, how)
        elif isinstance(thing, (list, tuple, set, frozenset)):
            for place, value in enumerate(thing):
                self.look(value, f"{path}[{place}]", how, attributes)
        elif type(thing).__module__ == "mlx.core":  # a function inside mx.grad, mx.compile and the like
            for inner in gc.get_referents(thing):
                if isinstance(inner, (types.FunctionType, types.MethodType, functools.partial)):
                    self.look(inner, path, how)
        else:
            self._object(thing, path, how, attributes)

    def _function(self, function: types.FunctionType) -> None:
        code, name = function.__code__, _name(function)
        used, attributes = _names_in(code)
        if _is_of_a_library(function):  # its arguments may be the user's; its globals lead to everything in the process
            used = []
        for free, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.look(cell.cell_contents, free, f"a variable around {name}", attributes)
            except ValueError:  # not assigned yet
                continue
        for global_name in used:
            if global_name in function.__globals__:
                self.look(function.__globals__[global_name], global_name, f"a global that {name} uses", attributes)
        positional = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        own = dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
        for argument, value in (own | (function.__kwdefaults__ or {})).items():
            self.look(value, argument, f"a default of {name}", attributes)

    def _method(self, method: types.MethodType) -> None:
        _, attributes = _names_in(method.__func__.__code__) if hasattr(method.__func__, "__code__") else ((), ())
        self.look(method.__func__, "", "")
        self.look(method.__self__, "self", f"the object whose method {_name(method)} is", attributes)

    def _object(self, thing: Any, path: str, how: str, attributes: Iterable[str]) -> None:
        """Search an object's attributes, and the methods of its class that the code uses."""
        own = dict(getattr(thing, "__dict__", {}))
        for kind in type(thing).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for slot in [slots] if isinstance(slots, str) else slots:
                if hasattr(thing, slot):
                    own[slot] = getattr(thing, slot)
        for name, value in own.items():
            self.look(value, f"{path}.{name}" if path else name, how, attributes)
        self._class(type(thing), path, how, {"__call__", *attributes})
        if not own:  # the content of an iterator or a deque
            for inner in gc.get_referents(thing):
                if _is_array(inner) or isinstance(inner, (list, tuple, dict)):
                    self.look(inner, path, how)

    def _class(self, kind: type, path: str, how: str, asked: set[str]) -> None:
        """Search the attributes of a class that the code uses, and those that these methods use in turn."""
        done = set()
        while asked - done:  # a method uses other attributes
            name = (asked - done).pop()
            done.add(name)
            value = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
            function = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
            if isinstance(function, types.FunctionType):
                asked.update(_names_in(function.__code__)[1])
            self.look(value, f"{path}.{name}" if path else name, how, sorted(asked))


def _is_array(thing: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return isinstance(thing, mx.array) or (numpy is not None and isinstance(thing, numpy.ndarray))


def _is_of_a_library(function: types.FunctionType) -> bool:
    """True if it belongs to Python itself or to an installed package."""
    module = str(function.__globals__.get("__name__")).partition(".")[0]  # functools.wraps changes __module__
    in_packages = {"site-packages", "dist-packages"} & set(PurePath(function.__code__.co_filename).parts)
    return module in sys.stdlib_module_names or bool(in_packages)


@functools.cache
def _names_in(code: types.CodeType) -> tuple[list[str], list[str]]:
    """The globals and the attributes that a function's code uses, including nested functions."""
    used, attributes = {}, {}
    for step in dis.get_instructions(code):
        if step.opname in GLOBAL_STEPS:
            used[step.argval] = None
        elif step.opname in ATTRIBUTE_STEPS:
            attributes[step.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_used, inner_attributes = _names_in(constant)
            used.update(dict.fromkeys(inner_used))
            attributes.update(dict.fromkeys(inner_attributes))
    return list(used), list(attributes)


def _name(function: Any) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    return "the lambda" if name == "<lambda>" else f"`{name}`"
