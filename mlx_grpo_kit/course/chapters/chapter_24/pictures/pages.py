"""Two files side by side, to be read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from html import escape

from mlx_grpo_kit.course.chapters.chapter_24 import exercises
from mlx_grpo_kit.course.exercise import Exercise
from mlx_grpo_kit.runtime.printing import printable

LOOK = (
    "display:block;overflow:auto;margin:0;padding:8px 10px;border-radius:4px;background:rgba(140,149,159,.15);"
    "color:inherit;font-size:11.5px;line-height:1.35;white-space:pre"
)


@printable
class SideBySide:
    """Two texts in two columns of a notebook.

    Args:
        left, right: a title and its source each.
        empty: what is shown in place of a source without any lines.
    """

    def __init__(self, left: tuple[str, str], right: tuple[str, str], empty: str = ""):
        self.pages, self.empty = (left, right), empty

    def __repr__(self) -> str:
        return "\n\n".join(f"{title}{_size(source)}\n\n{source.strip() or self.empty}" for title, source in self.pages)

    def _repr_html_(self) -> str:
        columns = "".join(
            f'<div style="flex:1 1 420px;min-width:0"><b>{escape(title)}</b>{_size(source)}'
            f'<pre style="{LOOK}">{escape(source.strip() or self.empty)}</pre></div>'
            for title, source in self.pages
        )
        return (
            f'<div style="display:flex;flex-wrap:wrap;gap:12px;color:var(--jp-ui-font-color1,#24292f)">{columns}</div>'
        )


def your_page(answers: Mapping[str, Callable]) -> str:
    """The source of the answers that are the reader's own; a comment for each of the others. Empty if there are none.

    Args:
        answers: by their exercises, as `use` returns them: the kit's solution until an exercise has passed.
    """
    kits = {each.id: each.solution for each in vars(exercises).values() if isinstance(each, Exercise)}
    own = {id for id, answer in answers.items() if answer is not kits[id]}
    parts = [_source(answer) if id in own else f"# {id}: not passed yet" for id, answer in answers.items()]
    return "\n\n".join(parts) if own else ""


def _source(answer: Callable) -> str:
    try:
        return inspect.getsource(answer).rstrip() + "\n"
    except (OSError, TypeError) as error:
        return f"# no source: {error}"


def _size(source: str) -> str:
    """The number of lines with something on them, in words."""
    count = sum(bool(line.strip()) for line in source.splitlines())
    return f" ({count} lines that are not blank)" if count else ""
