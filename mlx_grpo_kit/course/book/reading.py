"""A chapter for a page where nothing runs: hints and solutions to unfold, and no box that asks to run a cell."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Collection
from html import escape

import nbformat

from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.desk import paragraphs
from mlx_grpo_kit.course.exercise import Exercise
from mlx_grpo_kit.viz.page import STILL

CHECK = re.compile(r'^check\("(\d\d\.\d+)", \w+\)$', flags=re.M)
PROGRESS = re.compile(r'\n*^progress\((?:"\d\d")?\)\n*', flags=re.M)
TO_MOVE = re.compile(r"Run the cell to (use its controls|train again)\.")


def for_reading(
    notebook: nbformat.NotebookNode, solutions: bool = True, moving: Collection[str] = ()
) -> nbformat.NotebookNode:
    """A copy of a chapter for a page on which nothing runs.

    Below each exercise the verdict on its empty stub makes way for its hints and, if there are to be `solutions`, its
    solution, folded, without a script. The reader's progress, which such a page does not know, is left out. Still
    pictures say where they move. The cells whose ids are in `moving` get a place for a moving picture, below the still
    one.
    """
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        if PROGRESS.search(cell.source):
            cell.source = PROGRESS.sub("", cell.source)
            cell.outputs = [output for output in cell.outputs if "exercises passed" not in _words(output)]
        if exercise := CHECK.search(cell.source):
            cell.outputs = [output for output in cell.outputs if "Not attempted" not in _words(output)]
            cell.outputs.append(
                nbformat.v4.new_output("display_data", {"text/html": folded(find(exercise[1]), solutions)})
            )
        for output in cell.outputs:
            if "text/html" in output.get("data", {}):
                output.data["text/html"] = TO_MOVE.sub(r"In JupyterLab you can \1.", output.data["text/html"])
        stills = [output for output in cell.outputs if STILL in output.get("data", {}).get("text/html", "")]
        if cell.get("id") in moving and stills:
            stills[-1].data["text/html"] += f'<div class="kit-moving" data-part="{cell.id}"></div>'
    notebook.cells = [cell for cell in notebook.cells if cell.source.strip()]
    return notebook


def folded(exercise: Exercise, solutions: bool = True) -> str:
    """The hints and perhaps the solution of an exercise as markup, each to be unfolded by itself."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    count = len(exercise.hints)
    parts = {f"Hint {number} of {count}": paragraphs(hint) for number, hint in enumerate(exercise.hints, 1)}
    if solutions:
        answer = exercise.solution
        code = inspect.getsource(answer) if callable(answer) else repr(answer)
        shown = highlight(code, PythonLexer(), HtmlFormatter())
        parts["Solution"] = f"{shown}{paragraphs(exercise.explain)}"
    return "".join(
        f'<details class="kit-folded"><summary>{escape(summary)}</summary>{content}</details>'
        for summary, content in parts.items()
    )


def _words(output: nbformat.NotebookNode) -> str:
    return output.get("data", {}).get("text/plain", "")
