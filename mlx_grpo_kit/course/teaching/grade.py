"""The `grade` command: many files of answers against hidden cases.

Each answer runs in a process of its own (see `child`), with limits of time and memory (see `confine`). Its results come
back as data, and are compared here. What a file claims to have passed is ignored.
"""

from __future__ import annotations

import argparse
import ast
import csv
import inspect
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from mlx_grpo_kit.cli.terminal import escaped, say
from mlx_grpo_kit.course.answers import Kept, order_of, parsed_answers
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.exercise import Exercise, Result
from mlx_grpo_kit.course.teaching.confine import FILE_LIMIT
from mlx_grpo_kit.course.teaching.data import decode
from mlx_grpo_kit.files import read_file

STARTUP = 120  # seconds that a process may take to import the kit on a busy machine
OVERWRITTEN = [([0], [1])]  # a result and its copy, which differ


@dataclass
class Mark:
    """A row of the result.

    Attributes:
        answers: the file of answers.
        exercise: its number; `title` has its name.
        status: "passed", "not yet", "missing", "unknown exercise" or "unreadable".
        cases: "hidden" if some cases were drawn from the seed, "visible" if all are in the kit.
        mistake: the named mistake that the answer made.
        copied: "yes" if the answer is the kit's solution word for word, apart from names, comments and docstrings.
        seconds: the time that its process took.
        message: what its author would read.
    """

    answers: str
    exercise: str
    title: str = ""
    status: str = "missing"
    cases: str = ""
    mistake: str = ""
    copied: str = ""
    seconds: float = 0.0
    message: str = ""


@dataclass
class Tried:
    """The output of a process: lines of JSON that nobody trusts, and how it ended."""

    lines: list[dict[str, Any]]
    end: str
    seconds: float


def run(options: argparse.Namespace) -> int:
    """Grade every answer, print a table or CSV, and return 0, or 2 if no file could be read."""
    seed = secrets.randbits(48) if options.seed is None else options.seed
    answers, marks = {}, []
    for file in options.files:
        try:
            found, damage = parsed_answers(read_file(Path(file)))
        except (OSError, ValueError) as error:
            found, damage = {}, str(error)
        if damage:
            say(f"{escaped(file)}: {escaped(damage)}")
        if damage and not found:
            marks.append(Mark(file, "", status="unreadable", message=damage))
        else:
            answers[file] = found
    work = [(file, id) for file, own in answers.items() for id in options.exercises or sorted(own, key=order_of)]
    say(f"{len(work)} answers, hidden cases from seed {seed}")
    with ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) // 2)) as pool:
        limits = seed, options.seconds, options.memory * 2**20
        tries = [
            pool.submit(try_answer, own[-1], id, *limits) if (own := answers[file].get(id)) and _is_known(id) else None
            for file, id in work
        ]
        for (file, id), tried in zip(work, tries, strict=True):
            marks.append(mark(file, id, answers[file].get(id), tried and tried.result(), seed))
            say(f"{escaped(file)} {escaped(id)}: {marks[-1].status}")
    for words in not_enforced([tried.result() for tried in tries if tried]):
        say(f"Not enforced on this machine: {words}.")
    show = _print_csv if options.csv else _print_table
    show(marks)
    return 0 if answers else 2


def not_enforced(tries: Sequence[Tried]) -> list[str]:
    """The limits that the processes could not set, in words. They say so before they load an answer."""
    return sorted({words for tried in tries if tried.lines for words in tried.lines[0].get("missing", [])})


def _is_known(id: str) -> bool:
    try:
        return bool(find(id))
    except LookupError:
        return False


def mark(file: str, id: str, versions: Sequence[Kept] | None, tried: Tried | None, seed: int) -> Mark:
    """The mark of an answer from what its process returned."""
    try:
        exercise = find(id, seed)
    except LookupError as error:
        return Mark(file, id, status="unknown exercise", message=str(error))
    cases = "hidden" if exercise.has_drawn_cases else "visible"
    if not versions or tried is None:
        return Mark(file, id, exercise.title, cases=cases)
    result = judge(exercise, tried)
    copied = "yes" if is_copied(exercise, versions[-1]) else ""
    status = "passed" if result else "not yet"
    message = "" if result else result.message
    return Mark(file, id, exercise.title, status, cases, result.mistake, copied, round(tried.seconds, 1), message)


def judge(exercise: Exercise, tried: Tried) -> Result:
    """The verdict on the results that came back, each compared with the solution's in this process."""

    def failed(words: str) -> Result:
        return Result(exercise, "not yet", words)

    first = next((line for line in tried.lines if "missing" not in line), {})
    results = [line["result"] for line in tried.lines if "result" in line]
    last = tried.lines[-1] if tried.lines else {}
    try:
        if "failed" in first:
            error = decode(first["failed"])
            return failed(f"The file's definitions raised {type(error).__name__}: {error}.")
        if "stub" in first:
            return failed("The answer has no code of its own.")
        if "value" in first:
            value = decode(first["value"])
            return failed("The answer is a function, not a value.") if callable(value) else exercise.examine(value)
        if not callable(exercise.solution) or len(results) != len(exercise.cases) or "overwritten" not in last:
            return failed(f"The process {tried.end} after {len(results)} of {len(exercise.cases)} cases.")
        overwritten = last["overwritten"]
        tries = (
            (decode(got), OVERWRITTEN * (flag is not False)) for got, flag in zip(results, overwritten, strict=True)
        )
        return exercise.judge(tries)
    except ValueError as error:
        return failed(f"The process returned something that is not a result: {error}.")


def is_copied(exercise: Exercise, answer: Kept) -> bool:
    """True if the answer is the kit's solution word for word, apart from its name, comments and docstrings."""
    try:
        if not callable(exercise.solution):
            return False
        solution = textwrap.dedent(inspect.getsource(exercise.solution))
        return _skeleton(answer.source, answer.name) == _skeleton(solution, exercise.solution.__name__)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return False


def _skeleton(source: str, name: str) -> str:
    found = [node for node in ast.parse(source).body if getattr(node, "name", None) == name]
    if not found:
        raise ValueError(name)
    for node in ast.walk(found[-1]):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            node.name = "_" if node.name == name else node.name
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        if isinstance(node, ast.Name) and node.id == name:
            node.id = "_"
    return ast.dump(found[-1])


def try_answer(answer: Kept, id: str, seed: int, seconds: float, memory: int, startup: float = STARTUP) -> Tried:
    """Run an answer in a process and return its output. The process and its children are killed at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        asked, output = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        request = {"id": id, "seed": seed, "name": answer.name, "source": answer.source}
        request |= {"folder": folder, "seconds": seconds, "memory": memory}
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        command = [sys.executable, "-P", "-m", "mlx_grpo_kit.course.teaching.child"]
        pipes = {"stdin": asked, "stdout": output, "stderr": subprocess.DEVNULL}
        begun = time.monotonic()
        process = subprocess.Popen(command, **pipes, cwd=folder, env=_environment(folder), start_new_session=True)
        try:
            ended = _wait(process, output, startup, 2 * seconds + 5)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        took = time.monotonic() - begun
        output.seek(0)
        return Tried([*_lines(output.read(FILE_LIMIT))], _how(ended, seconds), took)


def _wait(process: subprocess.Popen, output: IO[bytes], startup: float, seconds: float) -> int | None:
    """The exit status; None for a process that takes longer than `seconds` from its first line of output on."""
    deadline, is_ready = time.monotonic() + startup + seconds, False
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.05)
        if not is_ready and os.fstat(output.fileno()).st_size:
            deadline, is_ready = time.monotonic() + seconds, True
    return None


def _environment(folder: str) -> dict[str, str]:
    """The environment of the process: nothing of this one but where Python, the kit and its models are."""
    names = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LANG")
    places = ("MLX_GRPO_KIT_MODELS", "MLX_GRPO_KIT_EXERCISES")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    kept |= {name: os.path.abspath(os.environ[name]) for name in places if os.environ.get(name)}
    own = {"HOME": folder, "TMPDIR": folder, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return kept | own | {"MLX_GRPO_KIT_PROGRESS": str(Path(folder, "progress.json"))}


def _lines(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        try:
            words = json.loads(line)
        except (ValueError, RecursionError):
            words = {}
        yield words if isinstance(words, dict) else {}


def _how(ended: int | None, seconds: float) -> str:
    if ended is None or ended == -signal.SIGXCPU:
        return f"was stopped, because it took more than {seconds:g} seconds,"
    if ended == -signal.SIGKILL:
        return "was killed (time or memory)"
    return f"ended by itself (exit status {ended})"


def _print_csv(marks: Sequence[Mark]) -> None:
    writer = csv.DictWriter(sys.stdout, [each.name for each in fields(Mark)], lineterminator="\n")
    writer.writeheader()
    for each in marks:
        writer.writerow({name: escaped(value) if type(value) is str else value for name, value in asdict(each).items()})


def _print_table(marks: Sequence[Mark]) -> None:
    table = Table(box=SIMPLE)
    for title in ("answers", "passed", "of", "copied", "not passed"):
        table.add_column(title, overflow="fold")
    for file in dict.fromkeys(each.answers for each in marks):
        own = [each for each in marks if each.answers == file]
        right = [each for each in own if each.status == "passed"]
        wrong = ", ".join(
            escaped(f"{each.exercise} {each.mistake or each.status}") for each in own if each not in right
        )
        copied = str(sum(each.copied == "yes" for each in own))
        table.add_row(escaped(file), str(len(right)), str(len(own)), copied, wrong)
    Console(highlight=False, markup=False).print(table)
