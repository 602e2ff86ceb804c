"""The syllabus agrees with the notebooks and the tables of chapters, and its map shows all of it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mlx_grpo_kit.course import progress
from mlx_grpo_kit.course.book.website import GUIDES, IN_REPOSITORY, front_page
from mlx_grpo_kit.course.catalogue import chapters, exercises
from mlx_grpo_kit.course.course_map import describe_course, draw_course
from mlx_grpo_kit.course.syllabus import COURSE, PARTS, PATHS, describe_path
from tests.every import every

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
[GUIDE] = [guide for guide in GUIDES if guide.name == "course.md"]
STORED = [chapter for chapter in COURSE if (NOTEBOOKS / f"{chapter.file}.ipynb").exists()]


def cells(chapter):
    notebook = json.loads((NOTEBOOKS / f"{chapter.file}.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def everything_below(number):
    """All chapters that a chapter builds on, directly or through others."""
    direct = next(chapter.needs for chapter in COURSE if chapter.number == number)
    return {*direct}.union(*map(everything_below, direct))


def test_every_notebook_is_in_it_once_and_in_order():
    assert [chapter.number for chapter in COURSE] == [f"{number:02}" for number in range(27)]
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {chapter.file for chapter in STORED}
    assert set(chapters()) <= {chapter.number for chapter in COURSE}


@every("chapter", STORED, ids=lambda chapter: chapter.number)
def test_a_chapter_agrees_with_the_syllabus(chapter):
    header = cells(chapter)[0]
    [number, title] = re.match(r"# (\d\d) · ([^:\n]+)", header).groups()
    assert (number, title.strip()) == (chapter.number, chapter.title)
    [minutes] = re.findall(r"\*\*Time\.\*\* About (\d+) minutes", header)
    assert int(minutes) == chapter.minutes
    [prerequisites] = re.findall(r"\*\*Prerequisites\.\*\*.*", header)
    linked = set(re.findall(r"\((\d\d)_\w+\.ipynb\)", prerequisites))
    assert set(chapter.needs) <= linked <= everything_below(number)  # no more than the page says, and no less
    assert not any(need in everything_below(other) for need in chapter.needs for other in chapter.needs)


def link(chapter):
    """Links lead to the notebook. Only chapters that do not exist yet are called planned."""
    return f"({chapter.file}.ipynb)" + ("" if chapter in STORED else " *(planned)*")


@every("chapter", STORED, ids=lambda chapter: chapter.number)
def test_links_back_and_forward_go_through_all_notebooks(chapter):
    [way] = re.findall(r"^Previous: .*", cells(chapter)[0], flags=re.M)
    before, behind = way.split("Next: ")
    place = COURSE.index(chapter)
    for words, neighbours in ((before, COURSE[:place][-1:]), (behind, COURSE[place + 1 :][:1])):
        assert all(link(neighbour) in words for neighbour in neighbours if neighbour in STORED)
        assert ("planned" in words) == any(neighbour not in STORED for neighbour in neighbours)


def rows(table):
    """number -> (chapter, chapters it builds on, minutes) of a table of chapters."""
    lines = (line.removeprefix("| ").removesuffix(" |").split(" | ") for line in table.splitlines())
    return {
        columns[0].strip("*"): (columns[1].replace(f"({IN_REPOSITORY}", "("), *columns[-2:])
        for columns in lines
        if re.fullmatch(r"\**\d\d\**", columns[0])
    }


@pytest.mark.parametrize("place", ["the guide", "chapter 00"])
def test_the_tables_of_chapters_agree_and_their_minutes_add_up(place):
    text = GUIDE.read_text(encoding="utf-8") if place == "the guide" else "\n".join(cells(COURSE[0]))
    table = rows(text)
    assert [*table] == [chapter.number for chapter in COURSE]
    for chapter in COURSE:
        name, needs, minutes = table[chapter.number]
        here = place == "chapter 00" and chapter is COURSE[0]
        assert name == (f"**{chapter.title}**" if here else f"[{chapter.title}]{link(chapter)}")
        assert re.findall(r"\d\d", needs) == [*chapter.needs]
        assert minutes == str(chapter.minutes)
    [hours] = re.findall(r"(\d+) hours in all", text)
    assert int(hours) == round(sum(chapter.minutes for chapter in COURSE) / 60)


@pytest.mark.parametrize("place", ["README", "chapter 00", "the book"])
def test_a_place_that_shows_the_paths_has_all_of_them_with_their_hours(place):
    def link(chapter):
        return (
            chapter.number if place == "README" or (place, chapter.number) == ("chapter 00", "00") else linked(chapter)
        )

    def linked(chapter):
        return f"[{chapter.number}]({chapter.file}.ipynb)"

    texts = {
        "README": lambda: (ROOT / "README.md").read_text(encoding="utf-8"),
        "chapter 00": lambda: "\n".join(cells(COURSE[0])),
        "the book": lambda: front_page(PARTS, NOTEBOOKS, []),
    }
    lines = texts[place]().splitlines()
    assert [line for line in lines if line.startswith("- **") and " hours:**" in line] == [
        f"- {describe_path(name, link)}" for name in PATHS
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Only GRPO", "6 hours:** 00, a part of 15 (15.1 to 15.4, 15.6, 15.9), 16, `mlx_grpo_kit/grpo/minimal.py`, "),
        ("Two weeks", "17 hours:** 00, a part of 13 (13.1 to 13.3, 13.7), 14, 15, 16, 18, 24."),
        ("All of it", "60 hours:** 00 to 26."),
    ],
)
def test_a_path_in_words(name, words):
    assert describe_path(name).startswith(f"**{name}, {words}")


def test_a_part_of_a_chapter_takes_its_share_and_all_exercises_take_the_whole():
    part = PATHS["Only GRPO"][1]
    ids = tuple(exercise.id for exercise in exercises("15"))
    rest = tuple(id for id in ids if id not in part.only)
    whole, other = replace(part, only=ids).minutes, replace(part, only=rest).minutes
    assert whole == pytest.approx(170) == part.minutes + other
    assert other == pytest.approx(170 * (12 + 12 + 10) / 90)  # 15.5, 15.7 and 15.8, of 90 minutes of exercises


def test_the_map_puts_every_earlier_chapter_above_18_as_chapter_00_says():
    assert everything_below("18") == {f"{number:02}" for number in range(18)}


JUMPS = {
    stop.place
    for stops in PATHS.values()
    for place, stop in enumerate(stops)
    if not stop.reading and everything_below(stop.place) - {one.place for one in stops[:place] if not one.only}
}


@every("chapter", [chapter for chapter in COURSE if chapter.number in JUMPS], ids=lambda chapter: chapter.number)
def test_a_chapter_after_skipped_ones_says_what_to_take_on_trust(chapter):
    assert "\n**If you skipped some of them.** " in cells(chapter)[0]


def test_the_map_shows_every_chapter_and_says_every_link_in_words():
    words = describe_course(PARTS)
    svg = draw_course(PARTS).svg(words)
    assert words in svg
    assert svg.count("<circle") == len(COURSE)
    assert svg.count("<path") == sum(len(chapter.needs) for chapter in COURSE)
    for name, part in PARTS.items():
        assert f">{name}<" in svg
        for chapter in part:
            assert f">{chapter.number}  {chapter.title}<" in svg
            needs = " and ".join(chapter.needs) or "nothing"
            assert f"{chapter.number} {chapter.title}, {chapter.minutes} minutes, builds on {needs}." in words
    assert "27 chapters in 6 parts" in words


def test_the_map_that_chapter_00_is_stored_with_is_of_this_course():
    notebook = json.loads((NOTEBOOKS / f"{COURSE[0].file}.ipynb").read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    words = ["".join(output.get("data", {}).get("text/plain", [])) for output in outputs]
    assert describe_course(PARTS) in words  # if not: make notebooks


def test_progress_shows_the_whole_course():
    view = progress()
    assert [row[0] for row in view.rows] == [chapter.number for chapter in COURSE]
    assert view.total > 100
    assert "\N{EN DASH} 00 Start here" in repr(view)  # it has no exercises
    assert "0/5 01 Derivatives" in repr(view)
