"""Exercises in their notebooks: below the prompt a stub and `check("02.3", name)`, not attempted.

tests/notebook_runs.py runs each notebook untouched and with every answer.
"""

import inspect
import re
import symtable
from pathlib import Path

import nbformat
import pytest

from mlx_grpo_kit.course.catalogue import chapters, exercises, find
from tests.notebook_runs import CHECK

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


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
        words = f"### {exercise.heading}\n\n{exercise.prompt}"
        assert above == words or above.endswith(f"\n\n{words}")  # after notes about earlier chapters
        if callable(exercise.solution):
            assert inspect.getdoc(exercise.solution) in cell.source
        if inspect.isclass(exercise.solution):
            assert f"class {exercise.solution.__name__}:" in cell.source
            for name, signature in re.findall(r"def (\w+)(\(.*\)):", cell.source):
                assert str(inspect.signature(vars(exercise.solution)[name])) == signature.replace('"', "'")
        elif callable(exercise.solution):
            assert f"def {exercise.solution.__name__}{inspect.signature(exercise.solution)}:" in cell.source


def names_of(source):
    """The global names that a cell reads anywhere, and the names that it binds itself."""
    top = symtable.symtable(re.sub(r"^\s*[%!].*$", "pass", source, flags=re.M), "cell", "exec")
    scopes = [top]
    for scope in scopes:
        scopes += scope.get_children()
    reads = {
        each.get_name()
        for scope in scopes
        for each in scope.get_symbols()
        if each.is_referenced() and (scope is top or each.is_global())
    }
    binds = {each.get_name() for each in top.get_symbols() if each.is_assigned() or each.is_imported()}
    return reads, binds


def names_of_stubs_that_are_read(notebook):
    stubs, found = set(), []
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        if exercise := CHECK.search(cell.source):
            stubs.add(exercise[2])
            continue
        reads, binds = names_of(cell.source)
        found += [(place, name) for name in sorted((stubs & reads) - binds)]
        stubs -= binds
    return found


def test_later_cells_take_an_answer_through_use(notebook):
    """Later cells do not use the name of the answer, because it may still be a stub."""
    assert names_of_stubs_that_are_read(notebook) == []


def test_a_stub_that_is_read_is_found():
    stub, through_use = 'slope = ...\ncheck("01.1", slope)', 'slope = use("01.1")'
    reader = "def reader(x):\n    return slope(x)"
    for sources, expected in (([stub, reader], [(1, "slope")]), ([stub, through_use, reader], [])):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        assert names_of_stubs_that_are_read(notebook) == expected


def test_every_exercise_is_in_its_notebook():
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
