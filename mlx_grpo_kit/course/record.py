"""Which exercises are passed: kept in a file of the reader's, shown for a chapter or for the whole course."""

from __future__ import annotations

import json
import os
from html import escape
from pathlib import Path
from typing import Any

from mlx_grpo_kit.course.catalogue import chapters, exercises
from mlx_grpo_kit.course.syllabus import COURSE

PLACE = "MLX_GRPO_KIT_PROGRESS"  # an environment variable with the path of another file

passed_here: dict[str, Any] = {}  # exercise -> the answer that passed since the kernel started


def progress_file() -> Path:
    """Where passed exercises are written: ~/.mlx_grpo_kit/progress.json, or what MLX_GRPO_KIT_PROGRESS says."""
    return Path(os.environ.get(PLACE) or Path.home() / ".mlx_grpo_kit" / "progress.json")


def passed() -> set[str]:
    """The ids of all exercises passed, now or before. A file that cannot be read counts as empty."""
    try:
        return {str(id) for id in json.loads(progress_file().read_text(encoding="utf-8"))} | passed_here.keys()
    except (OSError, ValueError, TypeError):
        return set(passed_here)


def record(id: str, answer: Any) -> None:
    """Remember that `answer` passed. Where the file cannot be written, for this session only."""
    passed_here[id] = answer
    path = progress_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(sorted(passed())), encoding="utf-8")
        draft.replace(path)
    except OSError:
        pass


def progress(chapter: str | None = None) -> Progress:
    """How far you are: progress("02") in a chapter, exercise by exercise; progress() in the course."""
    return Progress(chapter)


class Progress:
    """What `progress` shows; `done` of `total` exercises are passed."""

    def __init__(self, chapter: str | None = None):
        done = passed()
        self.rows: list[tuple[str, int, int, str]] = []  # what, passed, of how many, title
        if chapter is None:
            for one in COURSE:
                own = exercises(one.number) if one.number in chapters() else []
                self.rows.append((one.number, sum(each.id in done for each in own), len(own), one.title))
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
