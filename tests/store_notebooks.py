"""Run notebooks from top to bottom and store their outputs in place: `make notebooks`, or with the paths of some.

    python tests/store_notebooks.py notebooks/07_digits.ipynb

What is stored is what a reader without a kernel can see: no widgets, no run times of cells.
"""

import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def store(path):
    """Run the notebook at `path` and write it back with its outputs. Where a cell fails, nothing is written."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.resolve().parent)}}
    NotebookClient(notebook, timeout=600, store_widget_state=False, resources=resources).execute()
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = _joined([output for output in cell.outputs if _can_be_read(output)])
    nbformat.write(notebook, path)


def _can_be_read(output):
    """Whether a reader without a kernel sees anything of an output, which loses its widget here."""
    if "data" not in output:
        return True
    output.data.pop(WIDGET_VIEW, None)
    return any(output.data.values())


def _joined(outputs):
    """Outputs in which what was printed in several pieces is one."""
    for before, after in pairwise(outputs):
        if "stream" == before.output_type == after.output_type and before.name == after.name:
            after.text = before.text + after.text
            before.text = ""
    return [output for output in outputs if output.get("text") != ""]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLX_GRPO_KIT_PROGRESS"] = str(Path(folder) / "progress.json")  # not the author's
        for path in [Path(name) for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")):
            print(f"{path.name} ...", flush=True)
            store(path)
