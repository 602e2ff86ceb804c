"""A chat template in Jinja's sandbox, set up as in transformers; and the program that renders it within bounds.

The program (`template_process.py` starts it) reads requests from its standard input, a line of JSON each, and answers
with a line each. It is started by its path and imports nothing of the kit: that takes a tenth of a second.

The sandbox lets a template neither import nor open anything. It does not bound what a template takes: a single call of
`format` may ask for gigabytes before Python comes back from it. Only the operating system can refuse that.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Renderer:
    """Renders one template. `source` is compiled when it is needed first."""

    def __init__(self, source: str):
        self._source = source
        self._template: jinja2.Template | None = None

    def reply(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """{"text": what the template makes of the values}, or {"error": its kind, "words": ..., "line": ...}."""
        kind = "syntax"
        try:
            if self._template is None:
                self._template = _environment().from_string(self._source)
            kind = "other"
            return {"text": self._template.render(values)}
        except MemoryError:
            return {"error": "memory"}
        except jinja2.exceptions.SecurityError as error:
            return {"error": "security", "words": short(error)}
        except Exception as error:  # whatever a program may raise; raise_exception in a template is TemplateError
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
        "dict": lambda *args, **kwargs: dict(*args, **kwargs),  # the class itself has more than a chat needs
    }
    return environment


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, by which transformers marks an assistant's tokens, is its content."""

    tags = frozenset({"generation"})

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


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


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The JSON filter of transformers: Jinja's own would escape characters that are special in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _answer_requests() -> None:
    """Answer until the input ends. The first line is {"source": ..., "memory": bytes, "largest": characters}."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    begin = json.loads(sys.stdin.readline())
    renderer = Renderer(begin["source"])
    for limit, value in (("AS", begin["memory"]), ("FSIZE", 0), ("CORE", 0)):
        with suppress(ValueError, OSError):  # macOS bounds no address space
            resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (value, value))
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # of computing; the signal ends the process
        reply = renderer.reply(request["values"])
        if len(reply.get("text", "")) > begin["largest"]:
            reply = {"error": "size"}
        print(json.dumps(reply), flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    _answer_requests()
