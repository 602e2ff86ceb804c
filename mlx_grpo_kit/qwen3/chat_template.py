"""A chat as the text a model was trained on: the template of its folder, rendered as transformers does, and bounded.

A chat template is a small program in Jinja that came with a download. It runs in Jinja's sandbox, where it can neither
import nor open anything. What the sandbox allows, work without end and texts without end, is bounded here: a value may
have `LARGEST` characters or entries, and a chat has `SECONDS` to be rendered.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

LONGEST_TEMPLATE = 2**18
LARGEST = 2**22
SECONDS = 10.0

# What makes more of less. The size of what it returns is bounded before it runs, by what goes in.
FORMATS = ("format", "format_map", "strftime_now")  # whose width stands in a text
GROWING = {
    *("replace", "join", "center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "translate"),
    *("to_bytes", "truncate", *FORMATS),
}
# Filters that no chat needs and whose time or size is not easily said.
LEFT_OUT = ("forceescape", "pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr", "filesizeformat")


class ChatTemplateError(ValueError):
    """A chat cannot be rendered: the messages are none, or the template is broken, refuses them, or never ends."""


class ChatTemplate:
    """Renders chats with a template's source.

    Args:
        source: Jinja, as `chat_template` in tokenizer_config.json or as the file chat_template.jinja has it.
        special_tokens: what templates may ask for by name: `{"eos_token": "<|im_end|>"}`.
        where: the file that the source is from, for messages.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str):
        self.source, self.special_tokens, self.where = source, dict(special_tokens), where
        self._lock = threading.Lock()  # the sandbox has one clock

    def render(
        self, messages: Sequence[Mapping[str, Any]], /, *, add_generation_prompt: bool = True, **kwargs: Any
    ) -> str:
        """The chat as one text; `kwargs` are the template's own, such as `enable_thinking=False`.

        Raises:
            ChatTemplateError: see there; the message says which.
        """
        chat, given = _checked(messages), _plain("the template's settings", kwargs)
        if "messages" in given:
            raise ChatTemplateError("'messages' is no setting of a chat template: it is the chat.")
        with self._lock:
            template, sandbox = self._compiled
            sandbox.begin()
            values = {"tools": None, "documents": None, **self.special_tokens, **given}
            try:
                return template.render(values, messages=chat, add_generation_prompt=add_generation_prompt)
            except _TooMuchError as error:
                raise ChatTemplateError(
                    f"{self.where} {error}. Nothing of it was used; is the folder from a source you trust?"
                ) from None
            except jinja2.exceptions.SecurityError as error:
                raise ChatTemplateError(f"{self.where} tries what the sandbox forbids: {_short(error)}.") from error
            except RecursionError as error:
                raise ChatTemplateError(f"{self.where} calls itself without end.") from error
            except Exception as error:  # whatever a program may raise; raise_exception in a template is TemplateError
                raise ChatTemplateError(f"{self.where} does not take this chat: {_short(error)}.") from error

    @cached_property
    def _compiled(self) -> tuple[jinja2.Template, _Sandbox]:
        if len(self.source) > LONGEST_TEMPLATE:
            raise ChatTemplateError(
                f"{self.where} has {len(self.source):,} characters; expected at most {LONGEST_TEMPLATE:,}."
            )
        sandbox = _Sandbox()
        try:
            return sandbox.from_string(self.source), sandbox
        except Exception as error:  # Jinja's errors, and Python's where blocks are nested too deeply
            line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise ChatTemplateError(f"{self.where}{line} is not a Jinja template: {_short(error)}.") from error


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as plain data of the template's own, entries that are None left out (as transformers does)."""
    words = 'expected a list of messages, such as [{"role": "user", "content": "12+34?"}]'
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ChatTemplateError(f"The chat is {_short(repr(messages))}; {words}.")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(f"Message {place} of the chat is {_short(repr(message))}; {words}.")
    chat = [{key: value for key, value in message.items() if value is not None} for message in messages]
    return _plain("the chat", chat)


def _plain(what: str, value: Any) -> Any:
    """Rebuilt out of JSON's types: an object of any other has methods, which the sandbox would let a template call."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatTemplateError(f"What JSON cannot hold is in {what}: {_short(error)}.") from error


def _short(error: object) -> str:
    words = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return words if len(words) <= 200 else words[:200] + "..."


class _TooMuchError(Exception):
    """The message goes on where the template's name ends."""


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, by which transformers marks an assistant's tokens, is its content."""

    tags = frozenset({"generation"})

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """transformers' environment for chat templates, in which what a template makes and how long it takes is bounded.

    Values grow by operators, by calls, by filters, by writing containers and by joining texts. Each of them passes
    `bound` with the size that is to come, and every turn of a loop and every call looks at the clock.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self):
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, LoopControlExtension]
        )
        self.finalize = self.measured
        self.concat = self.joined
        self.filters = {name: self._bounded(f, name) for name, f in self.filters.items() if name not in LEFT_OUT}
        self.filters["tojson"] = self._bounded(_to_json, "tojson")
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _refuse,
            "strftime_now": strftime_now,
            "namespace": _Namespace,
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),  # the class itself has more than a chat needs
        }
        self.begin()

    def begin(self) -> None:
        self._end = time.monotonic() + SECONDS

    def tick(self) -> str:
        if time.monotonic() > self._end:
            raise _TooMuchError(f"is not done after {SECONDS:g} seconds")
        return ""

    def bound(self, size: int) -> None:
        self.tick()
        if size > LARGEST:
            raise _TooMuchError(f"makes a value larger than {LARGEST:,} characters")

    def measured(self, value: Any) -> Any:
        """`value`, if it is small enough, all that is in it counted as often as it is there."""
        self.bound(_size(value))
        return value

    def concatenated(self, *values: Any) -> str:
        """What `~` makes of them; `call` has measured them."""
        return "".join(map(str, values))

    def joined(self, parts: Any) -> str:
        """What `"".join` is to Jinja."""
        parts = list(parts)
        self.bound(sum(map(len, parts)))
        return "".join(parts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = _size(left), _size(right)
        if operator == "**":
            numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
            self.bound(abs(int(right)) * max(1, int(left).bit_length()) if numbers and abs(right) < 2**63 else LARGEST)
        elif operator == "*":
            times = [abs(each) for each in (left, right) if isinstance(each, int)]
            self.bound(max(sizes) * (min(times) if len(times) == 1 else 1))
        else:
            self.bound(sum(sizes))
            if operator == "%":
                self.bound(_width(left) + _width(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        name, method = getattr(function, "__name__", ""), getattr(function, "__wrapped__", function)
        self._bound_call(name, [getattr(method, "__self__", None), *args, *kwargs.values()])
        return super().call(context, function, *args, **kwargs)

    def _bound_call(self, name: str, values: Sequence[Any]) -> None:
        self.tick()
        if name in GROWING:
            numbers = [abs(each) for each in values if isinstance(each, int)]
            counts = [len(each) for each in values if isinstance(each, (str, list, tuple, dict))]
            self.bound(math.prod(1 + each for each in [*numbers, *counts]))
            if name in FORMATS:
                self.bound(sum(map(_width, values)))
        self.bound(sum(_size(each) for each in values))

    def _bounded(self, function: Callable, name: str) -> Callable:
        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._bound_call(name, [*args, *kwargs.values()])
            return function(*args, **kwargs)

        return bounded

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The template's tree, with a look at the clock in every loop and a measure around what makes a value."""
        tree = _Measured().visit(super()._parse(source, name, filename))
        return tree.set_environment(self)


class _Measured(NodeTransformer):
    """Puts the sandbox's measure around containers and joined texts, which Jinja makes without asking it."""

    def _around(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return _call("measured", [node], node.lineno)

    visit_List = visit_Dict = _around  # noqa: N815  (Jinja's names)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        return self._around(node) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _call("concatenated", node.nodes, node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", [], node.lineno), lineno=node.lineno))
        return node


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None, lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's, without names that begin with an underscore: those lead into Python."""

    def __init__(*args: Any, **kwargs: Any):
        self, *rest = args  # a template may have an attribute called self
        jinja2.utils.Namespace.__init__(self)
        for name, value in dict(*rest, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise jinja2.exceptions.SecurityError(f"an attribute {name!r} of a namespace")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"  # Jinja's shows what is in it, and that may be another one, twice


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As transformers' filter: Jinja's own would escape what is special in HTML."""
    if indent is not None and indent not in range(17):
        raise jinja2.exceptions.TemplateError(f"tojson with an indent of {indent!r}, expected 0 to 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form: str) -> str:
    """The time now, as transformers lets templates ask for it."""
    return datetime.now().strftime(form)


def _refuse(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _size(value: Any) -> int:
    """Characters and entries in a value, all that it holds counted as often as it is there; no more than needed."""
    size, left = 0, [value]
    while left and size <= LARGEST:
        one = left.pop()
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, int):
            size += one.bit_length() // 3
        elif isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set)):
            left += one
        size += 1
    return size


def _width(value: Any) -> int:
    """The largest number in a format or in what it is given: the width of what comes out may be that."""
    if isinstance(value, str):
        return max((int(digits[:10]) for digits in re.findall("[0-9]+", value)), default=0)
    if isinstance(value, (list, tuple)):
        return max(map(_width, value), default=0)
    return abs(value) if isinstance(value, int) else 0
