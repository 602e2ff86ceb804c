"""A store of your own code: the source of every answer that passed, for other notebooks and later days.

A file next to the progress file contains, for each exercise, the definitions of the answer and of its helpers from the
same notebook. Loading an answer executes them as Python executes a module: imports, decorators, default values and
class bodies run. Any other statement is refused. So a file of answers deserves the trust that its notebooks deserve.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import io
import json
import linecache
import math
import os
import re
import sys
import textwrap
import time
import tokenize
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from mlx_grpo_kit.files import one_writer, put_aside, read_file, write_file

VERSIONS_KEPT = 5  # per answer, newest last


class NotKeptError(ValueError):
    """Raised for an answer that cannot be kept, with the reason in words."""


@dataclass(frozen=True)
class Kept:
    """An answer as source.

    Attributes:
        name: the name that the source gives to the answer.
        source: Python: imports, helpers, then the answer itself.
        when: the day and time at which it passed.
        passed: the hash of this source and of the check that it passed; empty if that is not known.
    """

    name: str
    source: str
    when: str
    passed: str = ""

    def has_passed(self, check: str) -> bool:
        """True if exactly this source passed exactly this check (see `check_of`)."""
        return self.passed == self.marked(check).passed

    def marked(self, check: str) -> Kept:
        """This answer, marked as one that passed `check`."""
        whole = json.dumps([check, self.name, self.source])
        return replace(self, passed=hashlib.sha256(whole.encode()).hexdigest())

    def load(self, id: str) -> Any:
        """Execute the definitions and return the answer. Tracebacks and `inspect.getsource` find its lines.

        Raises what the definitions raise, and ValueError or SyntaxError for a source that `keep` did not write.
        """
        definitions_in(self.source)
        file = f"<your answer to {id}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(keepends=True), file)
        module = types.ModuleType(f"your_answer_{id.replace('.', '_')}")
        sys.modules[module.__name__] = module  # for inspect and pickle
        vars(module)["__file__"] = file
        exec(compile(self.source, file, "exec"), vars(module))
        return vars(module)[self.name]


def keep(folder: Path, id: str, answer: Any) -> str:
    """Add the source of an answer that has passed `check` to the file of answers in `folder`.

    `use` examines it before it is handed out: the source may compute something else than the function did, for example
    if a name was bound anew in between.

    Returns a sentence if the file was damaged. Raises NotKeptError, OSError from the disk, and ValueError if something
    else than a file is in its place.
    """
    new = Kept(*source_of(answer), time.strftime("%Y-%m-%d %H:%M:%S"))

    def add(versions: Sequence[Kept]) -> list[Kept]:
        if versions and (versions[-1].name, versions[-1].source) == (new.name, new.source):
            return [*versions]
        return [*versions, new][-VERSIONS_KEPT:]

    return _change(folder, id, add)


def mark(folder: Path, id: str, answer: Kept, check: str) -> None:
    """Note in the file of answers that a stored answer has passed `check`. Raises as `keep` does."""
    marked = answer.marked(check)
    _change(folder, id, lambda versions: [marked if each == answer else each for each in versions])


def _change(folder: Path, id: str, change: Callable[[Sequence[Kept]], list[Kept]]) -> str:
    """Change the versions of one answer in the file. Returns a sentence if a damaged file was put aside."""
    file, said = answers_file(folder), ""
    with one_writer(folder):
        content = read_file(file) if file.exists() else b"{}"
        answers, damage = parsed_answers(content)
        if damage:
            said = (
                f"Your file of answers was damaged ({damage}), so check wrote it again with the {len(answers)} answers "
                f"that it could read. The damaged one is kept as {put_aside(file, content)}."
            )
        answers[id] = change(answers.get(id, []))
        whole = {key: [asdict(each) for each in value] for key, value in sorted(answers.items())}
        write_file(file, json.dumps(whole, indent=1).encode())
    return said


def answers_file(folder: Path) -> Path:
    """The file of all answers, JSON: {"16.1": [{"name", "source", "when", "passed"}, ...], ...}."""
    return Path(os.path.realpath(folder / "answers.json"))  # a link to another disk stays one


def read_answers(folder: Path) -> tuple[dict[str, list[Kept]], str]:
    """Every answer in the file, by exercise, newest version last, and what is wrong with the file, if anything is."""
    try:
        return parsed_answers(read_file(answers_file(folder)))
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError) as error:
        return {}, str(error)


def parsed_answers(content: bytes) -> tuple[dict[str, list[Kept]], str]:
    try:
        whole = json.loads(content, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        return {}, f"it is not JSON: {error}"
    if not isinstance(whole, dict):
        return {}, f"it is a JSON {type(whole).__name__}, not an object"
    names = {each.name for each in fields(Kept)}
    answers, odd = {}, []
    for id, versions in whole.items():
        dicts = [each for each in versions if isinstance(each, dict)] if isinstance(versions, list) else []
        texts = [{name: each[name] for name in names & each.keys() if isinstance(each[name], str)} for each in dicts]
        kept = [Kept(**each) for each in texts if names - each.keys() <= {"passed"}]
        is_id = re.fullmatch(r"[0-9]{2}[.][0-9]+", id)
        if not is_id or not isinstance(versions, list) or len(kept) < len(versions):
            odd.append(id)
        if is_id and kept:
            answers[id] = kept
    return answers, f"it has no answer where one is expected: {', '.join(map(repr, odd[:3]))}" if odd else ""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; an id that occurs twice, as after a merge, has the answers of both."""
    whole: dict[str, Any] = {}
    for key, value in pairs:
        both = isinstance(value, list) and isinstance(whole.get(key, []), list)
        whole[key] = [*whole.get(key, []), *value] if both else value
    return whole


def source_of(answer: Any, module: str = "") -> tuple[str, str]:
    """(name, source) of an answer: a function or class with everything that it needs, or a plain value.

    What it needs from `module` is copied, not imported. Raises NotKeptError if the source cannot be found, or needs a
    value of the notebook that is not plain.
    """
    if not callable(answer):
        return "answer", f"answer = {_literal('answer', answer)}\n"
    parts = _Parts(module)
    name = parts.add(answer)
    return name, parts.source()


class _Parts:
    """Imports, plain values and definitions that an answer needs, each once, in an order that can be executed."""

    def __init__(self, module: str = "") -> None:
        self._module = module
        self._imports: dict[str, None] = {}
        self._definitions: dict[str, str] = {}
        self._seen: set[str] = set()

    def add(self, thing: Any) -> str:
        """Add a function or class of the reader's, after what it needs. Returns its name."""
        thing = inspect.unwrap(thing)
        name = getattr(thing, "__name__", "")
        statement, scope = _definition(thing)
        if name == "<lambda>":
            name, statement = "answer", f"answer = {statement}"
        if name not in self._seen:
            self._seen.add(name)
            for other in sorted(names_used(statement) - {name}):
                self._need(other, scope)
            self._definitions[name] = statement
        return name

    def _need(self, name: str, scope: Mapping[str, Any]) -> None:
        if name not in scope or name in self._seen:
            return
        value = scope[name]
        home = getattr(value, "__module__", None)
        if isinstance(value, types.ModuleType):
            end = value.__name__.rpartition(".")[2]
            plain = f"import {value.__name__}" if name == value.__name__ else f"import {value.__name__} as {name}"
            nested = f"from {value.__name__.rpartition('.')[0]} import {end}"
            self._imports[nested if "." in value.__name__ and name == end else plain] = None
        elif isinstance(home, str) and (home.startswith("your_answer_") or home == self._module):
            self.add(value)
        elif isinstance(home, str) and _is_importable(home, value):
            real = value.__name__
            self._imports[f"from {home} import {real}" + (f" as {name}" if name != real else "")] = None
        elif inspect.isfunction(inspect.unwrap(value)) or inspect.isclass(value):
            if self.add(value) != name:
                self._definitions[name] = f"{name} = {value.__name__ if value.__name__.isidentifier() else 'answer'}"
        else:
            self._seen.add(name)
            self._definitions[name] = f"{name} = {_literal(name, value)}"

    def source(self) -> str:
        """The whole, as one Python file."""
        imports = "\n".join(sorted(self._imports))
        return "\n\n\n".join(filter(None, [imports, *self._definitions.values()])) + "\n"


def _definition(thing: Any) -> tuple[str, Mapping[str, Any]]:
    """The source of a function or class, and the names that it sees."""
    members = getattr(thing, "__dict__", {}) if inspect.isclass(thing) else {}
    functions = [thing] if inspect.isfunction(thing) else [*filter(inspect.isfunction, members.values())]
    if not functions:
        raise NotKeptError("it is not a function or class with lines of its own")
    function = functions[0]
    if function.__closure__ and not inspect.isclass(thing):
        raise NotKeptError("it was made inside another function")
    lines = linecache.getlines(function.__code__.co_filename)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:  # magics of IPython in the cell
        lines = [line if not line.lstrip().startswith(("%", "!")) else "\n" for line in lines]
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError as error:
            raise NotKeptError("its cell is not plain Python") from error
    first = function.__code__.co_firstlineno
    kinds = (ast.ClassDef,) if inspect.isclass(thing) else (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    inside = [node for node in ast.walk(tree) if isinstance(node, kinds) and _begins(node) <= first <= node.end_lineno]
    named = [node for node in inside if getattr(node, "name", "<lambda>") == thing.__name__]
    if not named or (len(named) > 1 and thing.__name__ == "<lambda>"):
        raise NotKeptError("its source was not found")
    node = named[-1]
    if isinstance(node, ast.Lambda):
        return ast.get_source_segment("".join(lines), node), function.__globals__
    text = "".join(lines[_begins(node) - 1 : node.end_lineno])
    return textwrap.dedent(text).rstrip(), function.__globals__


def _begins(node: ast.AST) -> int:
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])


def names_used(source: str) -> set[str]:
    """Names that the code looks up outside of itself."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME")

    def walk(code: types.CodeType) -> Iterator[str]:
        for step in dis.get_instructions(code):
            if step.opname in loads:
                yield step.argval
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from walk(constant)

    return {*walk(compile(source, "<answer>", "exec", flags=0, dont_inherit=True))}


def _is_importable(home: str, value: Any) -> bool:
    if home in ("__main__", "builtins"):
        return False
    name = getattr(value, "__qualname__", "")
    return getattr(sys.modules.get(home), name, None) is value


def _literal(name: str, value: Any) -> str:
    """A plain value as source: numbers, texts, and lists, tuples, sets and dictionaries of them."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        text = repr(value)
        if len(text) < 10_000 and ast.literal_eval(text) == value:
            return text
    raise NotKeptError(f"it needs `{name}`, which is {type(value).__name__} of this notebook")


def definitions_in(source: str) -> list[ast.stmt]:
    """The statements of a stored answer.

    Raises SyntaxError, or ValueError for a statement that `keep` does not write: anything but an import, a definition,
    or a name for a plain value, a lambda or another name.
    """
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    statements = ast.parse(source).body
    for node in statements:
        if not isinstance(node, kinds) and not _names_a_value(node):
            raise ValueError(f"line {node.lineno} is not an import, a definition or a plain value")
    return statements


def _names_a_value(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name) or len(node.targets) > 1:
        return False
    if isinstance(node.value, ast.Lambda | ast.Name) or re.fullmatch(
        r"float\('-?(nan|inf)'\)", ast.unparse(node.value)
    ):
        return True
    with suppress(ValueError, TypeError):
        ast.literal_eval(node.value)
        return True
    return False


def as_one_file(answers: Mapping[str, Kept], titles: Mapping[str, str]) -> tuple[str, dict[str, dict[str, str]]]:
    """All answers as one readable Python file, imports first, then exercise by exercise; and the names that changed.

    A helper that several exercises share occurs once, and is not imported from a file of the reader's as well. If two
    exercises use one name for different things, the later name gets the number of its exercise:
    {"24.5": {"sample": "sample_24_5"}}.
    """
    names: dict[str, dict[str, str]] = {}
    imports: dict[str, ast.Import | ast.ImportFrom] = {}
    parts: list[str] = []
    known: dict[str, str] = {}
    for id in sorted(answers, key=order_of):
        lines = answers[id].source.splitlines()
        new, renamed = [], names.setdefault(id, {"answer": f"answer_{id.replace('.', '_')}"})
        for node in definitions_in(answers[id].source):
            text = "\n".join(lines[_begins(node) - 1 : node.end_lineno])
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports[text] = node
                continue
            name = node.targets[0].id if isinstance(node, ast.Assign) else node.name
            name, text = renamed["answer"] if name == "answer" else name, _renamed(text, renamed)
            if known.get(name, text) != text:
                other = f"{name}_{id.replace('.', '_')}"
                renamed[name] = other
                text, name = _renamed(text, {name: other}), other
            if name not in known:
                known[name] = text
                new.append(text)
        if new:
            parts.append(f"# {id} {titles.get(id, '')}".rstrip() + "\n\n" + "\n\n\n".join(new))
    needed = sorted(text for text, node in imports.items() if not _is_defined(node, known))
    head = '"""Everything that you have built in the course, exercise by exercise."""\n\n' + "\n".join(needed)
    return "\n\n\n".join([head.rstrip(), *parts]) + "\n", names


def order_of(id: str) -> tuple[int, ...]:
    """A key that sorts exercises by chapter and number: "24.10" comes after "24.9"."""
    return tuple(map(int, id.split(".")))


def _is_defined(node: ast.Import | ast.ImportFrom, known: Mapping[str, str]) -> bool:
    """True if an import from a file of the reader's brings only names that the one file defines itself."""
    is_own = isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] != "mlx_grpo_kit"
    return is_own and all(each.name in known and each.asname in (None, each.name) for each in node.names)


def _renamed(source: str, names: Mapping[str, str]) -> str:
    """`source` with other names; attributes and keywords of calls keep theirs."""
    tokens = [*tokenize.generate_tokens(io.StringIO(source).readline)]
    changed, depth = [], 0
    for place, token in enumerate(tokens):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        is_attribute = place and tokens[place - 1].string == "."
        is_keyword = depth > 0 and tokens[min(place + 1, len(tokens) - 1)].string == "="
        if token.type == tokenize.NAME and token.string in names and not is_attribute and not is_keyword:
            changed.append((token.start, token.end, names[token.string]))
    lines = source.splitlines(keepends=True)
    for (row, start), (_, end), name in reversed(changed):
        lines[row - 1] = lines[row - 1][:start] + name + lines[row - 1][end:]
    return "".join(lines)
