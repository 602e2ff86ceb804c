"""Every notebook with exercises runs with each answer filled in; untouched, as it is stored, nbval runs it.

An exercise stands in a cell tagged "exercise": a stub and `check("02.3", name)`. What a learner writes in place of the
stub has to work with the names that the notebook itself has made.
"""

import inspect
import re
import textwrap
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from mlx_grpo_kit.course import record
from mlx_grpo_kit.course.catalogue import chapters, exercises, find

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FIRST_WITH_MLX = 9  # a learner whose machine has no MLX can follow the chapters before
CHECK = re.compile(r'^check\("(\d\d\.\d+)", (\w+)\)$', flags=re.M)


def exercise_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and CHECK.search(cell.source)]


WITH_EXERCISES = {
    path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if exercise_cells(nbformat.read(path, as_version=4))
}


@pytest.fixture(params=WITH_EXERCISES)
def notebook(request):
    return nbformat.read(WITH_EXERCISES[request.param], as_version=4)


def fill_in(source):
    """The cell with the kit's solution in place of the stub."""
    id, name = CHECK.search(source).groups()
    solution = find(id).solution
    if callable(solution):
        assert solution.__name__ == name
        written = textwrap.dedent(inspect.getsource(solution))
    else:
        assert re.search(rf"^{name} = \.\.\.", source, flags=re.M), source
        written = f"{name} = {solution!r}"
    return f'{written}\ncheck("{id}", {name})'


def run(notebook, tmp_path, monkeypatch):
    monkeypatch.setenv(record.PLACE, str(tmp_path / "progress.json"))
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    return {CHECK.search(cell.source)[1]: cell.outputs[-1]["data"]["text/plain"] for cell in exercise_cells(notebook)}


@pytest.mark.timeout(300)
def test_with_every_answer_filled_in(notebook, tmp_path, monkeypatch):
    for cell in exercise_cells(notebook):
        cell.source = fill_in(cell.source)
    stated = int(re.search(r"run in (\d+) seconds", notebook.cells[0].source)[1])
    notebook.cells += [
        nbformat.v4.new_code_cell(source)
        for source in ("import sys, time\ntime.process_time()", '"mlx.core" in sys.modules')
    ]
    verdicts = run(notebook, tmp_path, monkeypatch)
    assert verdicts
    assert [verdict for verdict in verdicts.values() if "Passed" not in verdict] == []
    # The kernel's own time on the processor: other work on the machine does not count.
    seconds, has_mlx = (cell.outputs[-1]["data"]["text/plain"] for cell in notebook.cells[-2:])
    assert float(seconds) < 2 * stated
    number = int(re.match(r"# (\d\d)", notebook.cells[0].source)[1])
    assert number >= FIRST_WITH_MLX or has_mlx == "False"


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
