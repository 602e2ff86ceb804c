"""Every notebook as stored, without a kernel, and as run: each stub untouched, then its answer below.

No cell fails, each stub counts as not attempted, each answer passes, each picture is there, with words, and axe-core
finds nothing that keeps a control or a table from a screen reader. (The tests of panels, plots and widgets check that
their pictures stay after closing and opening.)

One run stands for two: that of a reader who leaves every stub as it is, and that of a reader who fills in every answer.
Later cells differ only in what `use("02.3")` returns: the kit's solution, or the same source defined in the notebook.
`same_answers.py` shows that these are the same function, global names included; and no later cell takes a name from a
stub (tests/course/test_exercises_in_notebooks.py).
"""

import contextlib
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import TimeoutError

pytestmark = pytest.mark.timeout(1800)

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SAME_ANSWERS = Path(__file__).parent / "same_answers.py"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
SECONDS_A_CELL = 240  # the slowest takes 20 on a machine that has nothing else to do
SECONDS_TO_SHOW = 10  # JupyterLab looks two seconds for a widget that is gone
# A box that scrolls sideways is reached with the Tab key in Chromium and Firefox, which axe-core does not know.
NATIVE = "scrollable-region-focusable"
FIRST_WITH_MLX = 9  # a learner whose machine has no MLX can follow the chapters before

# Of one cell: how many outputs show a picture (which may be drawn of many pieces), and what is wrong with them. Only
# what takes up room is shown.
LOOK = """index => {
  const cell = document.querySelector(`.jp-Cell[data-windowed-list-index="${index}"]`);
  const seen = [...cell.querySelectorAll(".jp-OutputArea-output")].filter(output => output.offsetHeight);
  const complaints = [];
  let pictures = 0;
  for (const output of seen) {
    if (/Error displaying widget|Loading widget/.test(output.innerText)) complaints.push(output.innerText);
    if (output.querySelector("img, svg[role=img], .kit-widget")) pictures += 1;
    for (const image of output.querySelectorAll("img")) {
      if (!image.alt.trim()) complaints.push("an image without words");
      if (!(image.complete && image.naturalWidth > 1 && image.offsetWidth > 1)) complaints.push("an image not shown");
    }
    for (const svg of output.querySelectorAll("svg[role=img]")) {
      if (!svg.querySelector("title")?.textContent.trim()) complaints.push("a drawing without words");
      if (svg.getBoundingClientRect().width < 2) complaints.push("a drawing not shown");
    }
  }
  return {pictures, complaints};
}"""

GOOD = "return seen.pictures === expected && seen.complaints.length === 0;"


def is_picture(output):
    markup = "".join(output.get("data", {}).get("text/html", ""))
    return "<img" in markup


def look_at_pictures(notebook, cells):
    """Look at each cell that holds pictures; returns how many there are in all."""
    count = 0
    for index, cell in enumerate(cells):
        expected = sum(map(is_picture, cell.get("outputs", [])))
        if not expected:
            continue
        notebook.show(index)
        good = f"([index, expected]) => {{ const seen = ({LOOK})(index); {GOOD} }}"
        with contextlib.suppress(TimeoutError):
            notebook.page.wait_for_function(good, arg=[index, expected], timeout=SECONDS_TO_SHOW * 1000, polling=100)
        assert notebook.page.evaluate(LOOK, index) == {"pictures": expected, "complaints": []}, f"cell {index}"
        count += expected
    return count


def complaints_of_axe(page, violations):
    """What is wrong with the run notebook's outputs and text for those who read it another way: all of its cells."""
    page.page.evaluate(
        "() => { const shown = jupyterapp.shell.currentWidget.content;"
        " shown.notebookConfig = {...shown.notebookConfig, windowingMode: 'none'}; }"
    )
    page.page.wait_for_function(
        "() => document.querySelectorAll('.jp-Notebook .jp-CodeCell').length ==="
        " jupyterapp.shell.currentWidget.content.widgets.filter(cell => cell.model.type === 'code').length"
    )
    first = page.path.stem.endswith("00_start_here")
    return violations(page.page, ".jp-OutputArea-output, .jp-RenderedMarkdown", [NATIVE], style_sheet=first)


def check(open_notebook, root, solved, violations, name):
    copy = f"kept_{name}"
    shutil.rmtree(root.parent / "record", ignore_errors=True)  # no answers from other chapters, whatever came before
    notebook, exercises = solved(NOTEBOOKS / f"{name}.ipynb")
    more = (
        "import sys, time\nprint(time.process_time())",
        'print("mlx.core" in sys.modules)',
        SAME_ANSWERS.read_text(),
    )
    for source in more:
        notebook.cells.append(nbformat.v4.new_code_cell(source))
    nbformat.write(notebook, root / f"{copy}.ipynb")
    page = open_notebook(copy)
    stored = look_at_pictures(page, page.saved().cells)  # not trusted yet: no script runs, no style is read
    assert stored > 0

    page.run_all()
    page.page.wait_for_timeout(1000)
    page.wait_until_idle(SECONDS_A_CELL)
    cells = page.save().cells
    errors = [output for cell in cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert errors == []
    for index in exercises:
        assert "Not attempted" in page.text(index - 1)
        assert "Passed" in page.text(index)
    # The kernel's own time on the processor. A slow or busy machine needs twice what is stated, and that is no fault.
    if stated := re.search(r"run in (\d+) seconds", cells[0].source):
        assert float(page.text(len(cells) - 3)) < 4 * int(stated[1])
    assert int(name[:2]) in {0, *range(FIRST_WITH_MLX, 100)} or "False" in page.text(len(cells) - 2)
    assert page.text(len(cells) - 1) == ""
    assert look_at_pictures(page, cells) == stored  # the live things, and not their still pictures as well
    assert complaints_of_axe(page, violations) == []
    page.close()


def _chapter(name):
    class Chapter:
        def test_answers_pass_and_pictures_stay(self, open_notebook, lab, solved, violations):
            check(open_notebook, lab[1], solved, violations, name)

    return Chapter


# A class each, because a class goes as a whole to one of the processes that share the tests.
globals().update({f"TestChapter{name[:2]}": _chapter(name) for name in NAMES})
