"""The passed exercises: stored in a file, and shown for a chapter or for the whole course."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from mlx_grpo_kit.course.answers import Kept, NotKeptError, keep, mark, read_answers
from mlx_grpo_kit.course.catalogue import chapters, check_of, exercises, find, title_of
from mlx_grpo_kit.course.syllabus import COURSE
from mlx_grpo_kit.files import one_writer, put_aside, read_file, write_file
from mlx_grpo_kit.runtime.printing import printable

PLACE = "MLX_GRPO_KIT_PROGRESS"  # an environment variable with the path of another file

_storing = True
passed_here: dict[str, Any] = {}  # exercise -> the answer that passed since the kernel started


class DamagedError(ValueError):
    """Raised for a progress file whose content is not a list of ids."""


def progress_file() -> Path:
    """The file of passed exercises: ~/.mlx_grpo_kit/progress.json, or the path in MLX_GRPO_KIT_PROGRESS.

    Raises:
        RuntimeError: there is no home directory.
    """
    return Path(os.environ.get(PLACE) or Path.home() / ".mlx_grpo_kit" / "progress.json")


def passed() -> set[str]:
    """The ids of all exercises passed, now or before. A file that cannot be read counts as empty."""
    try:
        return _ids(read_file(progress_file())) | passed_here.keys()
    except (OSError, ValueError, RuntimeError):
        return set(passed_here)


def kept_answers() -> tuple[dict[str, list[Kept]], str]:
    """The source of every answer that has passed and could be kept, by exercise, the newest version last.

    The second result says what is wrong with the file of answers; it is empty if nothing is.
    """
    try:
        return read_answers(progress_file().parent) if is_storing() else ({}, "")
    except RuntimeError as error:
        return {}, str(error)


def record(id: str, answer: Any) -> str:
    """Store that `answer` passed, and its source; only for this session if no file can be read or written.

    Returns sentences for the reader if something could not be stored, or if a file was damaged. The damaged file is
    kept next to the new one.
    """
    passed_here[id] = answer
    if not is_storing():
        return ""
    said = []
    for store in (_store_id, _store_source):
        try:
            said.append(store(id, answer))
        except NotKeptError as error:
            said.append(f"Other notebooks cannot use this answer: {error}.")
        except (OSError, ValueError, RuntimeError) as error:  # no home, no room, a pipe or somebody else's file
            said.append(f"This could not be stored, so it counts until the kernel stops: {str(error).rstrip('.')}.")
    return " ".join(dict.fromkeys(filter(None, said)))


def _store_id(id: str, answer: Any) -> str:
    path, said = progress_file(), ""
    path.parent.mkdir(parents=True, exist_ok=True)
    with one_writer(path.parent):
        content = read_file(path) if path.exists() else b"[]"
        try:
            done = _ids(content)
        except DamagedError:
            done = set()
            aside = put_aside(path, content)
            said = f"Your progress file was damaged, so check began a new one. The old one is kept as {aside}."
        write_file(path, json.dumps(sorted(done | passed_here.keys())).encode())
    return said


def _store_source(id: str, answer: Any) -> str:
    return keep(progress_file().parent, id, answer)


def stop_storing() -> None:
    """Let this process store and load nothing from now on: it grades the answers of others."""
    global _storing
    _storing = False


def is_storing() -> bool:
    """False after `stop_storing`."""
    return _storing


def mark_kept(id: str, answer: Kept) -> None:
    """Store that a kept answer has passed the check of today; nothing happens if that is not possible."""
    with suppress(OSError, ValueError, RuntimeError):
        mark(progress_file().parent, id, answer, check_of(find(id)))


def _ids(content: bytes) -> set[str]:
    """The ids in a progress file: a JSON list of strings."""
    try:
        ids = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"a progress file is not JSON: {error}") from error
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise DamagedError("a progress file is a JSON list of ids, such as '01.1'")
    return set(ids)


def progress(chapter: str | None = None) -> Progress:
    """Show your progress: progress("02") in a chapter, exercise by exercise; progress() in the course."""
    return Progress(chapter)


@printable
class Progress:
    """The table that `progress` shows; `done` of `total` exercises are passed."""

    def __init__(self, chapter: str | None = None):
        done = passed()
        self.rows: list[tuple[str, int, int, str]] = []  # name, passed, total, title
        if chapter is None:
            for one in COURSE:
                own = exercises(one.number) if one.number in chapters() else []
                self.rows.append((one.number, sum(each.id in done for each in own), len(own), one.title))
            for number in sorted({*chapters()} - {one.number for one in COURSE}):
                own = exercises(number)
                self.rows.append((number, sum(each.id in done for each in own), len(own), title_of(number)))
        elif chapter in chapters():
            self.rows = [(one.id, int(one.id in done), 1, one.title) for one in exercises(chapter)]
        self.name = "the course" if chapter is None else f"chapter {chapter}"

    @property
    def done(self) -> int:
        return sum(row[1] for row in self.rows)

    @property
    def total(self) -> int:
        return sum(row[2] for row in self.rows)

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.done} of {self.total} exercises passed"]
        return "\n".join(
            [
                *lines,
                *(f"  {self._mark(done, total)} {what} {title}".rstrip() for what, done, total, title in self.rows),
            ]
        )

    def _repr_html_(self) -> str:
        share = 100 * self.done / max(self.total, 1)
        items = "".join(
            f'<span style="margin-right:16px;white-space:nowrap">{self._mark(done, total)} {escape(what)} '
            f"{escape(title)}</span> "
            for what, done, total, title in self.rows
        )
        return (
            '<div style="color:var(--jp-ui-font-color1,#24292f);max-width:62em;line-height:1.7">'
            f"<b>{escape(self.name.capitalize())}: {self.done} of {self.total} exercises passed</b>"
            '<div style="height:6px;border-radius:3px;background:rgba(140,149,159,.3);margin:4px 0">'
            f'<div style="height:6px;border-radius:3px;width:{share:.0f}%;background:#2da44e"></div></div>'
            f"{items}</div>"
        )

    @staticmethod
    def _mark(done: int, total: int) -> str:
        if total == 1:
            return "\N{CHECK MARK}" if done else "\N{WHITE CIRCLE}"
        return f"{done}/{total}" if total else "\N{EN DASH}"  # a chapter without exercises
