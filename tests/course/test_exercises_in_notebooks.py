"""An exercise in its notebook: a stub and `check("02.3", name)` beneath the exercise's own words, not attempted.

With every answer filled in each notebook runs in JupyterLab (tests/browser/test_notebooks_in_lab.py).
"""

import inspect
import re
from pathlib import Path

import nbformat
import pytest

from mlx_grpo_kit.course.catalogue import chapters, exercises, find

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CHECK = re.compile(r'^check\("(\d\d\.\d+)", (\w+)\)$', flags=re.M)


def exercise_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and CHECK.search(cell.source)]


WITH_EXERCISES = {
    path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if exercise_cells(nbformat.read(path, as_version=4))
}


@pytest.fixture(params=WITH_EXERCISES)
def notebook(request):
    return nbformat.read(WITH_EXERCISES[request.param], as_version=4)


def test_stored_untouched(notebook):
    for cell in exercise_cells(notebook):
        assert "Not attempted" in cell.outputs[-1]["data"]["text/plain"]


def test_prompt_and_heading_are_those_of_the_exercise(notebook):
    for cell in exercise_cells(notebook):
        exercise = find(CHECK.search(cell.source)[1])
        above = notebook.cells[notebook.cells.index(cell) - 1].source
        assert above == f"### {exercise.heading}\n\n{exercise.prompt}"
        if callable(exercise.solution):
            assert inspect.getdoc(exercise.solution) in cell.source
        if inspect.isclass(exercise.solution):
            assert f"class {exercise.solution.__name__}:" in cell.source
            for name, signature in re.findall(r"def (\w+)(\(.*\)):", cell.source):
                assert str(inspect.signature(vars(exercise.solution)[name])) == signature.replace('"', "'")
        elif callable(exercise.solution):
            assert f"def {exercise.solution.__name__}{inspect.signature(exercise.solution)}:" in cell.source


def test_every_exercise_stands_in_its_notebook():
    for chapter in chapters():
        [path] = [path for stem, path in WITH_EXERCISES.items() if stem.startswith(chapter)]
        cells = exercise_cells(nbformat.read(path, as_version=4))
        assert [CHECK.search(cell.source)[1] for cell in cells] == [exercise.id for exercise in exercises(chapter)]


def test_the_time_stated_is_enough_for_the_exercises():
    for path in WITH_EXERCISES.values():
        notebook = nbformat.read(path, as_version=4)
        stated = int(re.search(r"\*\*Time\.\*\* About (\d+) minutes", notebook.cells[0].source)[1])
        own = sum(find(CHECK.search(cell.source)[1]).minutes for cell in exercise_cells(notebook))
        assert own < stated < 4 * own
