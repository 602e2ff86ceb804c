"""The `slides` command: chapters as slides, from the notebooks as they are stored.

A rule decides what is on a slide, so the notebooks themselves need no metadata: each heading begins a slide, each code
cell with an output is one below it, set-up and progress are left out, and "What to notice" becomes the speaker's notes.
"""

from __future__ import annotations

import argparse
import copy
import re
from pathlib import Path

from mlx_grpo_kit.cli.lab import COURSE as NOTEBOOKS
from mlx_grpo_kit.course.syllabus import COURSE
from mlx_grpo_kit.files import write_file
from mlx_grpo_kit.runtime.extras import packages_for

with packages_for("slides"):
    import nbformat
    from nbconvert import SlidesExporter
    from nbformat.v4 import new_markdown_cell

    from mlx_grpo_kit.course.book.reading import CHECK, PROGRESS

HEADING = re.compile(r"^(?=#{1,3} )", flags=re.M)
NOTES = re.compile(r"^(\*\*What to notice\.\*\*|<details>)")


def run(options: argparse.Namespace) -> int:
    """Write a notebook with the metadata of slides, and the slides as one page each, to the folder `options.output`.

    Raises ValueError for an unknown chapter, and OSError from the disk.
    """
    known = {chapter.number: chapter for chapter in COURSE}
    if unknown := [number for number in options.chapters if number not in known]:
        raise ValueError(f"There is no chapter {', '.join(unknown)}; the course has 00 to {COURSE[-1].number}.")
    exporter = SlidesExporter(reveal_scroll=True, reveal_width="1400", reveal_height="875")  # a line has 100 columns
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    for number in dict.fromkeys(options.chapters):
        file = known[number].file
        notebook = as_slides(nbformat.read(NOTEBOOKS / f"{file}.ipynb", as_version=4))
        write_file(folder / f"{file}.ipynb", nbformat.writes(notebook).encode())
        page, _ = exporter.from_notebook_node(notebook)
        write_file(folder / f"{file}.slides.html", page.encode())
        kinds = [cell.metadata.slideshow.slide_type for cell in notebook.cells]
        print(f"{folder / file}.slides.html: {kinds.count('slide')} slides, {kinds.count('subslide')} below them")
    return 0


def as_slides(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy of a chapter whose cells say where a slide begins, with text cells divided at their headings."""
    notebook = copy.deepcopy(notebook)
    cells = []
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            cell.metadata["slideshow"] = {"slide_type": _kind_of_code(cell, is_setup=place < 2)}
            cells.append(cell)
            continue
        for number, part in enumerate(part for part in HEADING.split(cell.source) if part.strip()):
            new = new_markdown_cell(part.strip(), id=f"{cell.id}-{number}"[:64])
            kind = "slide" if HEADING.match(part) else "notes" if NOTES.match(part) else "fragment" if number else "-"
            new.metadata["slideshow"] = {"slide_type": kind}
            cells.append(new)
    notebook.cells = cells
    return notebook


def _kind_of_code(cell: nbformat.NotebookNode, is_setup: bool) -> str:
    if is_setup or PROGRESS.search(cell.source):
        return "skip"
    if CHECK.search(cell.source):
        cell.outputs = []
        return "-"
    return "subslide" if cell.outputs else "skip"
