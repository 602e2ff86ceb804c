"""Chapters that use a model run on any model: only the line `MODEL = TINY` has to change."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from mlx_grpo_kit.course import record

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
MODEL = re.compile(r"^MODEL = TINY\b", flags=re.M)
HUNDREDS_OF_STEPS = re.compile(r"\bmax_steps=\d{3}\b")  # of chapter 16; some show as well that any model trains
LEFT_OUT = {  # these learn from rewards, and a model that is never right learns nothing from rewards
    "14_tasks_and_rewards",
    "18_grpo_training",
    "19_variant_lab",
    "21_scaling_up",
}
WITH_A_MODEL = [
    path
    for path in sorted(NOTEBOOKS.glob("*.ipynb"))
    if path.stem not in LEFT_OUT
    and any(MODEL.search(cell.source) for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", WITH_A_MODEL, ids=lambda path: path.stem)
def test_runs_on_another_model(path, another_model, tmp_path, monkeypatch):
    monkeypatch.setenv(record.PLACE, str(tmp_path / "progress.json"))
    notebook = nbformat.read(path, as_version=4)
    changed = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            source = HUNDREDS_OF_STEPS.sub("max_steps=30", cell.source)
            cell.source, count = MODEL.subn(f"MODEL = {str(another_model)!r}", source)
            changed += count
    assert changed == 1
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
