"""Exercises of an instructor's own, slides, and the book without solutions."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from mlx_grpo_kit.cli import main
from mlx_grpo_kit.course import catalogue, check, progress, use
from mlx_grpo_kit.course import chapters as chapter_folders
from mlx_grpo_kit.course.book import website
from mlx_grpo_kit.course.book.reading import for_reading
from mlx_grpo_kit.course.catalogue import chapters, exercises, find
from mlx_grpo_kit.course.record import kept_answers
from mlx_grpo_kit.course.teaching.slides import as_slides

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
OWN = '''"""Our seminar."""

import math

from mlx_grpo_kit.course import Exercise, drawn, slips


def surprise(p):
    """The surprise of an event of probability p, in bits."""
    return -math.log2(p)


SURPRISE = Exercise(
    "41.1", "Surprise", "Write `surprise(p)`: the surprise of an event of probability p, in bits.", 5, 1, surprise,
    hints=("One bit for a coin.", "`math.log2`."),
    cases=((0.5,), (1.0,), *drawn(5, lambda rng: (float(rng.uniform(0.1, 1)),))),
    mistakes=slips(surprise, """
natural
- return -math.log2(p)
+ return -math.log(p)
! That is in nats.
"""),
)
'''


@pytest.fixture
def own_chapter(tmp_path, monkeypatch):
    place = tmp_path / "mine" / "chapter_41"
    place.mkdir(parents=True)
    (place / "exercises.py").write_text(OWN)
    monkeypatch.setenv(catalogue.OWN, str(tmp_path / "mine"))
    monkeypatch.setattr(chapter_folders, "__path__", [*chapter_folders.__path__])
    for name in ("chapter_41", "chapter_41.exercises"):
        monkeypatch.delitem(catalogue.sys.modules, f"{chapter_folders.__name__}.{name}", raising=False)
    return place


def answer(p):
    return -sum([__import__("math").log2(p)])


def test_exercises_of_your_own_are_checked_kept_and_counted(own_chapter):
    assert "41" in chapters()
    assert "in nats" in check("41.1", find("41.1").mistakes[0].wrong).text
    assert check("41.1", answer)
    assert list(kept_answers()[0]) == ["41.1"]
    assert use("41.1") is not find("41.1").solution
    rows = {number: (done, total, title) for number, done, total, title in progress().rows}
    assert rows["41"] == (1, 1, "Our seminar")
    assert progress().total == sum(len(exercises(number)) for number in chapters())
    assert progress("41").done == 1


def test_an_assignment_of_your_own_exercises(own_chapter, tmp_path, capsys):
    assert main(["assignment", "41.1", "14.5", "--output", str(tmp_path / "week"), "--seed", "8"]) == 0
    cells = nbformat.read(tmp_path / "week/source/week/week.ipynb", as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    assert code[0] == "# Set-up\nimport math\nfrom mlx_grpo_kit.course import check, use"
    assert code[1].startswith("def surprise(p):\n")
    space = {}
    for source in code[:3]:
        exec(source, space)
    assert "## Our seminar" in [cell.source for cell in cells]


def test_grade_of_your_own_exercises(own_chapter, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(catalogue.OWN, "mine")
    source = "import math\n\ndef surprise(p):\n    return -math.log(p, 2)\n"
    content = {"41.1": [{"name": "surprise", "source": source, "when": ""}]}
    (tmp_path / "answers.json").write_text(json.dumps(content))
    assert main(["grade", str(tmp_path / "answers.json"), "--csv"]) == 0
    assert "41.1,Surprise,passed,hidden" in capsys.readouterr().out


def test_a_folder_that_cannot_be_used(own_chapter, tmp_path, monkeypatch):
    (tmp_path / "mine" / "chapter_14").mkdir()
    assert "has the number of a chapter of the kit" in check("41.1", answer).text
    monkeypatch.setenv(catalogue.OWN, str(tmp_path / "nowhere"))
    assert "is not a folder" in check("14.1", answer).text


def test_the_book_without_solutions(monkeypatch):
    notebook = nbformat.read(NOTEBOOKS / "14_tasks_and_rewards.ipynb", as_version=4)
    line = 'if not re.fullmatch("[0-9]{1,9}", text):'
    for solutions in (True, False):
        pages = "".join(
            output["data"]["text/html"]
            for cell in for_reading(notebook, solutions).cells
            if cell.cell_type == "code"
            for output in cell.outputs
            if "kit-folded" in output.get("data", {}).get("text/html", "")
        )
        assert ("<summary>Solution" in pages) == solutions
        assert "<summary>Hint 1 of" in pages
        plain = re.sub("<[^>]*>", "", pages).replace("&quot;", '"').replace("&#39;", "'")
        assert (line in plain) == solutions
    asked = []
    monkeypatch.setattr(website, "build", lambda *arguments: asked.append(arguments[2]) or [])
    website.main(["--no-solutions"])
    website.main([])
    assert asked == [False, True]


@pytest.mark.parametrize("name", ["02_scalar_autograd", "15_policy_gradients", "00_start_here"])
def test_a_chapter_becomes_slides(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    slides = as_slides(notebook)
    nbformat.validate(slides)
    kinds = [cell.metadata.slideshow.slide_type for cell in slides.cells]
    headings = sum(
        len(re.findall("^#{1,3} ", cell.source, flags=re.M)) for cell in notebook.cells if cell.cell_type == "markdown"
    )
    assert kinds.count("slide") == headings > 8
    assert kinds.count("subslide") > 3
    assert "skip" in kinds
    words = ["".join(cell.source.split()) for cell in notebook.cells if cell.cell_type == "markdown"]
    assert "".join(words) == "".join(
        "".join(cell.source.split()) for cell in slides.cells if cell.cell_type == "markdown"
    )
    assert not any("slideshow" in cell.metadata for cell in notebook.cells)


def test_slides_in_the_terminal(tmp_path, capsys):
    assert main(["slides", "02", "--output", str(tmp_path)]) == 0
    assert re.search(r"02_scalar_autograd.slides.html: \d\d slides, \d+ below them", capsys.readouterr().out)
    page = (tmp_path / "02_scalar_autograd.slides.html").read_text()
    assert page.count("<section") > 30
    assert "dist/reveal.js" in page
    assert main(["slides", "77", "--output", str(tmp_path)]) == 2
    assert "There is no chapter 77" in capsys.readouterr().err
