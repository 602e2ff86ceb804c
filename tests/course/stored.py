"""The notebooks as they are stored: their cells by name, and what a cell printed."""

import functools
from pathlib import Path

import nbformat

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@functools.cache
def cells(chapter):
    """The cells of a chapter by name: "panel" is the cell with the id "13-panel" in chapter 13."""
    [path] = NOTEBOOKS.glob(f"{chapter}_*.ipynb")
    return {cell.id.removeprefix(f"{chapter}-"): cell for cell in nbformat.read(path, as_version=4).cells}


def printed(cell):
    """The plain text of a cell's outputs."""
    return "\n".join(output.get("text") or output.data.get("text/plain", "") for output in cell.outputs)
