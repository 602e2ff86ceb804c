"""Settings that are declared once, as fields with a text, a range or choices, and the names that others use.

The checks, the docstring of the class, the options of `train` and the suggestions of errors are made from the fields.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from enum import Enum
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

from mlx_grpo_kit.runtime.habits import HABITS, names_habits

C = TypeVar("C", bound=type)


class Setting(NamedTuple):
    """The metadata of a setting.

    Attributes:
        text: its documentation. `--help` shows the first sentence.
        least, above, most: its range; `above` itself is outside.
        choices: its values.
        hint: the end of an error's sentence, after the expected values.
        elsewhere: values that other libraries accept, as patterns in any case -> the closest value here.
        also: its names in other libraries.
    """

    text: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    hint: str = "."
    elsewhere: Mapping[str, str] = {}
    also: tuple[str, ...] = ()

    def fits(self, value: Any, kind: str = "float") -> bool:
        """True for a value in the range or among the choices; False for NaN."""
        if self.choices:
            named = {each.__name__ for each in type(value).__mro__} & set(kind.split(" | ")) - {"str"}
            return bool(named) or value in self.choices  # the annotation may allow an object too, such as a LossType
        if (self.least, self.above, self.most) == (None, None, None):
            return True
        return (
            isinstance(value, Integral if kind.startswith("int") else Real)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    def expected(self, kind: str = "float") -> str:
        """The range or the choices in words; empty if there are none."""
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        if self.above is not None:
            return f"more than {self.above}" + (f" and at most {self.most:g}" if self.most else "")
        if self.least is None:
            return ""
        if kind.startswith("int"):
            return f"a whole number of at least {self.least}"
        return f"{self.least} to {self.most}" if self.most else f"{self.least} or more"


def setting(default: Any, text: str, **rules: Any) -> Any:
    """A field of a class of settings, with its default and the metadata of `Setting`."""
    return field(default=default, metadata={"setting": Setting(text, **rules)})


def rules_of(settings: Any) -> dict[str, Setting]:
    """The metadata of the settings that a class or an object has, by name."""
    return {each.name: each.metadata["setting"] for each in fields(settings) if "setting" in each.metadata}


def kinds_of(settings: Any) -> dict[str, str]:
    """The annotations of a class of settings, such as "float | None", by name."""
    return {each.name: getattr(each.type, "__name__", str(each.type)) for each in fields(settings)}


def check_settings(settings: Any) -> None:
    """Raise ValueError for the first setting that is out of its range, or none of its choices."""
    kinds = kinds_of(settings)
    for name, rule in rules_of(settings).items():
        value, kind = as_python(getattr(settings, name)), kinds[name]
        if not (rule.fits(value, kind) or (value is None and kind.endswith(" | None"))):
            here = [ours for theirs, ours in rule.elsewhere.items() if re.fullmatch(theirs, str(value), re.I)]
            words = f" Other libraries accept {value!r}; here write {here[0]!r}." if here else ""
            raise ValueError(f"{name} is {value!r}; expected {rule.expected(kind)}{rule.hint}{words}")


def declares_settings(cls: C) -> C:
    """A decorator that documents the settings of a dataclass, and suggests them for their names in other libraries."""
    lines = [inspect.getdoc(cls) or "", "", "Attributes:"]
    kinds = kinds_of(cls)
    for name, rule in rules_of(cls).items():
        words = f" Expected: {expected}{rule.hint}" if (expected := rule.expected(kinds[name])) else ""
        lines += textwrap.wrap(f"    {name}: {rule.text}{words}", 112, subsequent_indent=" " * 8)
        HABITS.update({other: f"{name}; --{name.replace('_', '-')}" for other in rule.also})
    cls.__doc__ = "\n".join(lines)
    return names_habits("setting")(cls)


def with_settings(function: Callable, settings: type) -> inspect.Signature:
    """The signature of a function with `**settings`, in which the settings of a class are keyword arguments."""
    signature = inspect.signature(function)
    *own, _ = signature.parameters.values()
    every = inspect.signature(settings).parameters
    named = [every[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in rules_of(settings)]
    return signature.replace(parameters=[*own, *named])


def as_python(value: Any) -> Any:
    """Convert a number of NumPy, MLX, torch or JAX to Python's, and an array to a list; other values stay unchanged."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "dtype") else value


def is_finite(value: Any) -> bool:
    """True for a number that a float can hold. False for a bool, and for an integer of 400 digits."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def as_setting(name: str, value: Any, kind: str) -> Any:
    """A setting in Python's own types.

    Args:
        kind: the annotation of the setting, such as "float | None".

    Raises ValueError for a float setting that is not a finite number, and for a bool setting that is neither True nor
    False.
    """
    value = value.value if isinstance(value, Enum) else as_python(value)  # such as transformers' OptimizerNames
    expected = None
    if value is None and kind.endswith(" | None"):
        return None
    if kind.startswith("float") and not is_finite(value):
        expected = "a finite number, which a checkpoint can store (for no limit, give a large number such as 1e9)"
    if kind == "bool" and not isinstance(value, bool):
        expected = "True or False"
    if expected:
        raise ValueError(f"{name} is {value!r}; expected {expected}.")
    return value
