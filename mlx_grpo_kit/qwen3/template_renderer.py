"""A chat template in Jinja's sandbox, set up as in transformers; and the program that renders it within limits.

The program (`template_process.py` starts it) reads requests from its standard input, one line of JSON each, and answers
each with one line. It is started by its path and imports nothing from the kit, so it starts in a tenth of a second.

The sandbox does not let a template import or open anything, but it does not limit its time and memory: a single call of
`format` may request gigabytes before it returns to Python. Only the operating system can prevent that.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Renderer:
    """A renderer of one template. `source` is compiled on first use."""

    def __init__(self, source: str):
        self._source = source
        self._template: jinja2.Template | None = None
        self._variables: list[str] = []

    def reply(self, values: Mapping[str, Any], needed: Sequence[str] = ()) -> dict[str, Any]:
        """Return {"text": the rendered chat}, or {"error": its kind, "words": ..., "line": ...}.

        The error "unused" has the name in `needed` that the template does not use, and the variables that it uses.
        """
        kind = "syntax"
        try:
            if self._template is None:
                environment = _environment()
                self._template = environment.from_string(self._source)
                self._variables = sorted(meta.find_undeclared_variables(environment.parse(self._source)))
            kind = "other"
            if unused := [name for name in needed if name not in self._variables]:
                return {"error": "unused", "words": unused[0], "variables": self._variables}
            return {"text": self._template.render(values)}
        except MemoryError:
            return {"error": "memory"}
        except jinja2.exceptions.SecurityError as error:
            return {"error": "security", "words": short(error)}
        except Exception as error:  # a template may raise anything; raise_exception in a template gives TemplateError
            if isinstance(error, RecursionError) and kind == "other":
                kind = "recursion"
            return {"error": kind, "words": short(error), "line": getattr(error, "lineno", None)}


def short(error: object) -> str:
    """An error in at most 200 characters of one line."""
    words = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return words if len(words) <= 200 else words[:200] + "..."


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "namespace": _Namespace,
        "dict": lambda *args, **kwargs: dict(*args, **kwargs),  # the class itself offers more than a chat needs
    }
    return environment


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, transformers' mark for assistant tokens, renders as its content."""

    tags = frozenset({"generation"})

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace, without names that begin with an underscore, which give access to Python's internals."""

    def __init__(*args: Any, **kwargs: Any):
        self, *rest = args  # a template may have an attribute called self
        jinja2.utils.Namespace.__init__(self)
        for name, value in dict(*rest, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise jinja2.exceptions.SecurityError(f"an attribute {name!r} of a namespace")
        super().__setitem__(name, value)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The JSON filter of transformers: Jinja's own would escape characters that are special in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _answer_requests() -> None:
    """Answer requests until the input ends.

    The first line is {"source": ..., "memory": bytes, "largest": characters}.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    begin = json.loads(sys.stdin.readline())
    renderer = Renderer(begin["source"])
    for limit, value in (("AS", begin["memory"]), ("FSIZE", 0), ("CORE", 0)):
        with suppress(ValueError, OSError):  # macOS does not limit address space
            resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (value, value))
    for line in sys.stdin:
        request = json.loads(line)
        # Seconds of processor time; the signal ends the process.
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        reply = renderer.reply(request["values"], request["needed"])
        if len(reply.get("text", "")) > begin["largest"]:
            reply = {"error": "size"}
        print(json.dumps(reply), flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    _answer_requests()
