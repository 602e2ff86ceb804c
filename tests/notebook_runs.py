"""nbval runs each notebook once, with every exercise untouched and then answered.

Below each stub stands a cell with the kit's solution, which has to pass with the names that the notebook itself
defines. One run stands for two: that of a reader who leaves every stub as it is, and that of a reader who fills in
every answer. Later cells differ only in what `use("02.3")` returns: the kit's solution, or the same source defined in
the notebook. `same_answers.py` shows that these are the same function, global names included; and no later cell takes
a name from a stub (tests/course/test_exercises_in_notebooks.py).

The outputs of cells with the tag `nbval-check-output` are compared with the stored ones: numbers that every machine
computes alike, and the verdict on each stub.
"""

import inspect
import os
import re
import tempfile
import textwrap
from pathlib import Path
from unittest import mock

import nbval.plugin
import pytest
from nbformat import read, v4

from mlx_grpo_kit.course import record
from mlx_grpo_kit.course.catalogue import find

CHECK = re.compile(r'^check\("(\d\d\.\d+)", (\w+)\)$', flags=re.M)
SAME_ANSWERS = Path(__file__).with_name("same_answers.py")
FIRST_WITH_MLX = 9  # a learner whose machine has no MLX can follow the chapters before


def with_answers(path, as_version=4):
    """The notebook of a path with an answer below each stub, and cells at its end that look at what has happened."""
    notebook = read(path, as_version)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "code" and (exercise := CHECK.search(cell.source)):
            if "use(" not in cell.source:  # with an earlier answer, which is passed here and was not when stored
                cell.metadata.setdefault("tags", []).append("nbval-check-output")
            cells.append(_code(f"{_solution(cell.source, *exercise.groups())}\nassert {exercise[0]}"))
    # The kernel's own time on the processor. A slow or busy machine needs twice what is stated, and that is no fault.
    if stated := re.search(r"run in (\d+) seconds", notebook.cells[0].source):
        cells.append(_code(f"import time\nassert time.process_time() < 4 * {stated[1]}, time.process_time()"))
    if Path(path).stem[:2] in {f"{number:02}" for number in range(1, FIRST_WITH_MLX)}:
        cells.append(_code('import sys\nassert "mlx.core" not in sys.modules'))
    cells.append(_code(SAME_ANSWERS.read_text()))
    notebook.cells = cells
    return notebook


def _code(source):
    return v4.new_code_cell(source, execution_count=1)


def _solution(stub, id, name):
    solution = find(id).solution
    if callable(solution):
        assert solution.__name__ == name
        return textwrap.dedent(inspect.getsource(solution))
    assert re.search(rf"^{name} = \.\.\.", stub, flags=re.M), stub
    return f"{name} = {solution!r}"


class AnsweredNotebook(nbval.plugin.IPyNbFile):
    """A notebook of the course, run by a reader without answers from other chapters."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.skip_compare += ("text/html",)  # how a picture is drawn; its words are in text/plain

    def collect(self):
        with mock.patch.object(nbval.plugin.nbformat, "read", with_answers):
            return [*super().collect()]

    def setup(self):
        self.record = tempfile.TemporaryDirectory()
        with mock.patch.dict(os.environ, {record.PLACE: str(Path(self.record.name) / "progress.json")}):
            super().setup()

    def teardown(self):
        super().teardown()
        self.record.cleanup()


class Plugin:
    """A plugin of pytest. (A conftest.py is not asked about files outside of its folder.)"""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path, parent):
        found = yield
        return [
            AnsweredNotebook.from_parent(parent, path=file_path) if isinstance(each, nbval.plugin.IPyNbFile) else each
            for each in found
        ]
