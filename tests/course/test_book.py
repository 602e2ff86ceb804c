"""The course as a web site: replaced files, and messages for bad input. tests/browser/test_book.py tests the pages."""

import inspect
import json
import re
import shutil
from html import unescape
from pathlib import Path

import nbformat
import pytest
from sphinx.application import Sphinx

from mlx_grpo_kit.course.book import website
from mlx_grpo_kit.course.book.formulas import mathml
from mlx_grpo_kit.course.book.reading import for_reading
from mlx_grpo_kit.course.catalogue import exercises

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}DeprecationWarning") for kind in ("", "Pending")]
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CHAPTER = "01_derivatives.ipynb"


@pytest.fixture(scope="module", autouse=True)
def small_book():
    """Of what does not depend on the notebooks a book gets little: tests/browser/test_book.py looks at a whole one."""

    def short_reference(folder):
        (folder / "reference_scalar.md").write_text("# `mlx_grpo_kit.scalar`")
        return ["reference_scalar"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(website, "write_reference", short_reference)
        patch.setattr(website, "make_moving", lambda notebooks, folder: [])
        patch.setattr(website, "ABOUT", {"one_page": website.ABOUT["one_page"]})
        patch.setattr(website, "GUIDES", [website.ON_GITHUB / "one_page.md"])
        yield


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    shutil.copy(NOTEBOOKS / CHAPTER, folder)
    return folder


@pytest.fixture(scope="module")
def site(notebooks, tmp_path_factory):
    """A book that exists already."""
    output = tmp_path_factory.mktemp("site") / "book"
    website.build(notebooks, output)
    return output


def content_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make(notebooks, output):
    return website.main(["--notebooks", str(notebooks), "--output", str(output)])


def test_a_second_book_replaces_the_first_and_leaves_no_other_files(notebooks, site, tmp_path):
    output = tmp_path / "out" / "book"
    shutil.copytree(site, output)
    (output / "index.html").write_text("an older page")
    assert make(notebooks, output) == 0
    assert (output / "index.html").read_bytes() == (site / "index.html").read_bytes()
    assert [path.name for path in output.parent.iterdir()] == ["book"]


def published(folder):
    """A file that somebody added to a book in order to publish it."""
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("mine")
    (folder / "CNAME").write_text("course.example.org")
    (folder / "_static" / "notes.md").write_text("mine")


def sphinx_source(folder):
    shutil.rmtree(folder)
    (folder / "_static").mkdir(parents=True)
    (folder / "_static" / "book.css").write_text("mine")
    (folder / "conf.py").write_text("mine")


def thesis(folder):
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")


@pytest.mark.parametrize(
    ("kind", "words"),
    [(published, ".git/, CNAME, _static/notes.md"), (sphinx_source, "_static/, conf.py"), (thesis, "thesis.txt")],
)
def test_a_file_that_no_book_wrote_is_kept(kind, words, notebooks, site, tmp_path, capsys):
    output = tmp_path / "book"
    shutil.copytree(site, output)
    kind(output)
    before = content_of(output)
    assert make(notebooks, output) == 2
    assert f"{output} contains {words}, which the kit did not write" in capsys.readouterr().err
    assert content_of(output) == before


def test_the_old_book_stays_when_the_disk_is_full(notebooks, site, tmp_path, monkeypatch, capsys):
    output = tmp_path / "book"
    shutil.copytree(site, output)
    before = content_of(output)

    def half(source, target, **options):
        shutil.copy(source / "index.html", target)
        raise shutil.Error([("a", "b", "[Errno 28] No space left on device")])

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", half)
        assert make(notebooks, output) == 2
    assert f"error: Cannot write {output}: [Errno 28] No space left on device" in capsys.readouterr().err

    def full(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Sphinx, "build", full)
    assert make(notebooks, output) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert content_of(output) == before
    assert [path.name for path in tmp_path.iterdir()] == ["book"]


CELL = '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "markdown"}]}'


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"nbformat": 2}', CELL.encode(), b"\xff\xfe", b"[" * 10**6]
)
def test_a_broken_notebook_is_named_in_one_line(content, tmp_path, capsys):
    (tmp_path / CHAPTER).write_bytes(content)
    assert make(tmp_path, tmp_path / "book") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {CHAPTER} is not a Jupyter notebook (")
    assert not (tmp_path / "book").exists()


def test_a_notebook_without_cells_has_no_goal(tmp_path):
    (tmp_path / CHAPTER).write_text('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}')
    website.build(tmp_path, tmp_path / "book")
    assert "Derivatives" in (tmp_path / "book" / "index.html").read_text()


def test_a_book_without_notebooks_or_without_its_packages(notebooks, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    assert make(tmp_path / "empty", tmp_path / "new") == 2
    assert "There are no notebooks of the course in" in capsys.readouterr().err
    monkeypatch.setattr(website, "PACKAGES", ("a_package_that_nobody_has",))
    assert make(notebooks, tmp_path / "new") == 2
    assert "The book needs a_package_that_nobody_has: " in capsys.readouterr().err


def test_every_formula_of_the_course_becomes_mathml():
    formulas = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                prose = re.sub(r"```.*?```|`[^`]*`", "", "".join(cell["source"]), flags=re.S)
                formulas += [a or b for a, b in re.findall(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", prose, flags=re.S)]
    assert len(formulas) > 300
    for formula in formulas:
        drawn = mathml(formula, "inline")
        assert drawn.startswith("<math alttext=")
        assert "\\" not in re.sub("<[^>]*>", "", drawn), formula


def test_a_formula_is_drawn_in_the_book(site):
    page = (site / "one_page.html").read_text(encoding="utf-8")
    assert page.count('<div class="kit-formula"><math alttext="') == 2
    assert "$" not in re.sub(r"<[^>]*>", "", page)


def test_the_first_page_links_existing_chapters(site):
    front = (site / "index.html").read_text(encoding="utf-8")
    assert {*re.findall(r'href="(\d\d_\w+\.html)"', front)} == {"01_derivatives.html"}
    assert "Author name not set" not in (site / "01_derivatives.html").read_text(encoding="utf-8")


def words_of(markup):
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def test_below_each_exercise_are_its_hints_and_its_solution_folded(site):
    page = (site / "01_derivatives.html").read_text(encoding="utf-8")
    unfolded = re.findall(r'<details class="kit-folded"><summary>(.*?)</summary>(.*?)</details>', page, flags=re.S)
    expected = []
    for exercise in exercises("01"):
        count = len(exercise.hints)
        expected += [
            (f"Hint {number} of {count}", hint.replace("`", " ")) for number, hint in enumerate(exercise.hints, 1)
        ]
        answer = inspect.getsource(exercise.solution) if callable(exercise.solution) else repr(exercise.solution)
        expected.append(("Solution", answer))
    assert [summary for summary, _ in unfolded] == [summary for summary, _ in expected]
    for (_, content), (_, text) in zip(unfolded, expected, strict=True):
        assert "".join(text.split()) in "".join(words_of(content).split())


def test_no_page_asks_to_run_a_cell(site):
    page = words_of((site / "01_derivatives.html").read_text(encoding="utf-8"))
    for words in ("Not attempted", "Run the cell", "exercises passed", "progress("):
        assert words in "".join(map(str, json.loads((NOTEBOOKS / CHAPTER).read_text())["cells"]))
        assert words not in page
    assert "In JupyterLab you can use its controls." in page


def test_the_output_of_a_chapter_stays():
    new = nbformat.v4
    printed = new.new_output("stream", text="02.1: the kit's")
    drawn = new.new_output("display_data", {"text/html": "<b>"})
    verdict = new.new_output("display_data", {"text/plain": "\N{WHITE CIRCLE} Not attempted · 01.1 A slope"})
    box = new.new_output("display_data", {"text/plain": "chapter 01: 0 of 9 exercises passed"})
    cells = [
        new.new_code_cell('slope = ...\n\ncheck("01.1", slope)', outputs=[printed, verdict]),
        new.new_code_cell('show()\nprogress("01")', outputs=[drawn, box]),
        new.new_code_cell('progress("01")', outputs=[box]),
    ]
    notebook = new.new_notebook(cells=cells)
    first, second = for_reading(notebook).cells
    assert first.outputs[0] == printed
    assert "<summary>Solution</summary>" in first.outputs[1].data["text/html"]
    assert (second.source, second.outputs) == ("show()", [drawn])
    assert len(notebook.cells) == 3  # the notebook itself does not change


def test_a_goal_is_not_cut_at_a_title():
    cell = nbformat.v4.new_markdown_cell("# 19\n\n**Goal.** Compare GRPO, Dr. GRPO and DAPO. Then more.")
    assert website._goal(nbformat.v4.new_notebook(cells=[cell])) == "Compare GRPO, Dr. GRPO and DAPO."
