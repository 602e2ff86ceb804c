"""Every notebook as a reader opens it, before any cell runs: each picture is there, with words, nothing is red, and
axe-core finds nothing that keeps a control or a table from a screen reader.

nbval runs the cells (tests/notebook_runs.py). The tests of panels, plots and widgets click, and check that their
pictures stay after closing and opening.
"""

import contextlib
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import TimeoutError

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
SECONDS_TO_SHOW = 10  # JupyterLab looks two seconds for a widget that is gone
# A box that scrolls sideways is reached with the Tab key in Chromium and Firefox, which axe-core does not know.
NATIVE = "scrollable-region-focusable"

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
            notebook.page.wait_for_function(good, arg=[index, expected], timeout=SECONDS_TO_SHOW * 1000)
        assert notebook.page.evaluate(LOOK, index) == {"pictures": expected, "complaints": []}, f"cell {index}"
        count += expected
    return count


def complaints_of_axe(page, violations):
    """What is wrong with the notebook's outputs and text for those who read it another way: all of its cells."""
    # JupyterLab attaches the cells one by one whenever it has nothing else to do, and stops when the mode is changed.
    page.page.wait_for_function("() => jupyterapp.shell.currentWidget.content.widgets.every(cell => cell.isAttached)")
    page.page.evaluate(
        "() => { const shown = jupyterapp.shell.currentWidget.content;"
        " shown.notebookConfig = {...shown.notebookConfig, windowingMode: 'none'}; }"
    )
    first = page.path.stem.endswith("00_start_here")
    return violations(page.page, ".jp-OutputArea-output, .jp-RenderedMarkdown", [NATIVE], style_sheet=first)


@pytest.fixture(scope="module")
def kernel(tab):
    """One kernel for all notebooks, because none of them runs a cell."""
    started = "jupyterapp.serviceManager.kernels.startNew({name: 'python3'})"
    yield tab.page.evaluate(f"() => {started}.then(({{id, name}}) => ({{id, name}}))")
    tab.page.evaluate("() => jupyterapp.serviceManager.kernels.shutdownAll()")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_as_stored(open_notebook, kernel, lab, violations, name):
    shutil.copy(NOTEBOOKS / f"{name}.ipynb", lab[1] / f"stored_{name}.ipynb")
    page = open_notebook(f"stored_{name}", kernel=kernel)
    cells = page.saved().cells
    assert [output for cell in cells for output in cell.get("outputs", []) if output.output_type == "error"] == []
    assert look_at_pictures(page, cells) > 0
    assert complaints_of_axe(page, violations) == []
    assert not page.page.evaluate("() => jupyterapp.shell.currentWidget.context.model.dirty")
    page.close()
