"""The record of tries: how often an answer failed, with which named mistake, and which hints were opened.

It is `tries.json` next to the progress file. It contains counts, but no answers, names or times, and it stays on this
machine: `tries()` shows it, `tries(keep=False)` deletes and stops it, and a reader may hand the file to an instructor.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlx_grpo_kit.course.record import is_storing, progress_file
from mlx_grpo_kit.files import one_writer, put_aside, read_file, write_file
from mlx_grpo_kit.runtime.printing import printable

VERSION = 1
NO_NAME = ""  # of a mistake that the exercise does not know


class NewerRecordError(ValueError):
    """Raised for a record that a newer version of the kit wrote."""


@dataclass
class Tries:
    """The tries at one exercise.

    Attributes:
        passed: how often `check` passed an answer.
        failed: how often it did not; empty stubs do not count.
        mistakes: how often each mistake was made, by its name in the exercise; NO_NAME for all others.
        hints: the number of the last hint that was opened; 0 for none.
        solution: how often the solution was opened.
    """

    passed: int = 0
    failed: int = 0
    mistakes: dict[str, int] = field(default_factory=dict)
    hints: int = 0
    solution: int = 0


def note_check(id: str, passed: bool, mistake: str = NO_NAME) -> str:
    """Count a try. Returns a sentence for the reader if a damaged record was put aside. Raises nothing."""

    def count(tries: Tries) -> None:
        if passed:
            tries.passed += 1
        else:
            tries.failed += 1
            tries.mistakes[mistake] = tries.mistakes.get(mistake, 0) + 1

    return _note(id, count)


def note_hint(id: str, number: int) -> None:
    """Note that hint `number` was opened. Raises nothing."""
    _note(id, lambda tries: setattr(tries, "hints", max(tries.hints, number)))


def note_solution(id: str) -> None:
    """Count that the solution was opened. Raises nothing."""
    _note(id, lambda tries: setattr(tries, "solution", tries.solution + 1))


def _note(id: str, change: Callable[[Tries], None]) -> str:
    if not is_storing():
        return ""
    try:
        return _change(lambda record: change(record.setdefault(id, Tries())))
    except (OSError, ValueError, RuntimeError):  # no home, no room, a newer record: an exercise does not need it
        return ""


def _change(change: Callable[[dict[str, Tries]], Any], keep: bool | None = None) -> str:
    """Change the record, unless the reader has switched it off; `keep` switches it."""
    file, said = tries_file(), ""
    file.parent.mkdir(parents=True, exist_ok=True)
    with one_writer(file.parent):
        content = read_file(file) if file.exists() else b""
        try:
            kept, record = read_tries(content)
        except NewerRecordError:
            raise
        except ValueError as error:
            kept, record = True, {}
            said = f"Your record of tries was damaged ({error}). It is kept as {put_aside(file, content)}."
        if keep is None and not kept:
            return ""
        change(record)
        whole = {"version": VERSION, "kept": kept if keep is None else keep}
        whole |= {"exercises": {id: asdict(tries) for id, tries in sorted(record.items())}}
        new = json.dumps(whole, indent=1).encode()
        if new != content:
            write_file(file, new)
    return said


def tries_file() -> Path:
    """The file of the record, next to the progress file. Raises RuntimeError if there is no home directory."""
    return progress_file().parent / "tries.json"


def read_tries(content: bytes) -> tuple[bool, dict[str, Tries]]:
    """Read a record: is it kept, and the tries by exercise. An empty file has none.

    Raises:
        NewerRecordError: a newer version of the kit wrote it.
        ValueError: it is not a record.
    """
    if not content:
        return True, {}
    try:
        whole = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(whole, dict) or not _is_count(whole.get("version")):
        raise ValueError('it is not an object with a "version"')
    if whole["version"] > VERSION:
        raise NewerRecordError(f"it has version {whole['version']}, and this kit reads version {VERSION}: update it")
    exercises = whole.get("exercises")
    if type(whole.get("kept")) is not bool or not isinstance(exercises, dict):
        raise ValueError('it lacks "kept" or "exercises"')
    return whole["kept"], {id: _tries(id, counts) for id, counts in exercises.items()}


def _tries(id: str, counts: Any) -> Tries:
    names = asdict(Tries())
    if not isinstance(counts, dict) or counts.keys() != names.keys():
        raise ValueError(f"{id!r} has no counts")
    mistakes = counts["mistakes"]
    others = [count for name, count in counts.items() if name != "mistakes"]
    if not isinstance(mistakes, dict) or not all(map(_is_count, [*others, *mistakes.values()])):
        raise ValueError(f"{id!r} has a count that is not a whole number")
    return Tries(**counts)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def tries(keep: bool | None = None) -> TriesTable:
    """Show your record of tries; `tries(keep=False)` deletes it and stops recording, `tries(keep=True)` resumes.

    Raises ValueError for a record that cannot be read, and OSError if it cannot be written.
    """
    if keep is not None:
        _change(lambda record: record.clear() if not keep else None, keep)
    file = tries_file()
    return TriesTable(file, *read_tries(read_file(file) if file.exists() else b""))


@printable
class TriesTable:
    """The table that `tries` shows."""

    def __init__(self, file: Path, kept: bool, record: Mapping[str, Tries]):
        self.file, self.kept, self.record = file, kept, record

    def __repr__(self) -> str:
        if not self.kept:
            return "Your tries are not recorded. tries(keep=True) changes that."
        lines = [
            f"{self.file} counts your tries, without answers, names or times. It stays on this machine unless you hand "
            "it in. tries(keep=False) deletes it and stops recording."
        ]
        for id, one in self.record.items():
            mistakes = ", ".join(f"{name or 'not named'} ({count})" for name, count in one.mistakes.items())
            words = f"  {id}  passed {one.passed}, failed {one.failed}, hints {one.hints}, solution {one.solution}"
            lines.append(words + (f"; mistakes: {mistakes}" if mistakes else ""))
        return "\n".join(lines)


def most_frequent(records: Iterable[Mapping[str, Tries]]) -> list[tuple[str, str, int, int]]:
    """(exercise, mistake, readers who made it, times) from many readers' records, most readers first."""
    readers, times = Counter(), Counter()
    for record in records:
        for id, one in record.items():
            readers.update((id, name) for name, count in one.mistakes.items() if count)
            times.update({(id, name): count for name, count in one.mistakes.items() if count})
    order = sorted(readers, key=lambda key: (-readers[key], -times[key], key))
    return [(*key, readers[key], times[key]) for key in order]
