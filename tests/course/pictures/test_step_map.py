"""The map of a step names an exercise for every box, and lights those of the newest."""

import re
from pathlib import Path

import nbformat
import pytest

from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_18.pictures.data_flow import BOXES
from mlx_grpo_kit.course.chapters.chapter_18.pictures.step_map import HOMES, LIT, LOOP, draw_step_map
from mlx_grpo_kit.viz.picture import as_picture, least_width

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "18_grpo_training.ipynb"
OF_18 = [home for home in dict.fromkeys(HOMES.values()) if home.startswith("18.")] + [LOOP]


def test_every_box_comes_from_an_exercise_and_the_notebook_lights_all_of_18():
    assert HOMES.keys() == BOXES.keys()
    for home in {*HOMES.values(), LOOP} - {"12"}:
        assert find(home).id == home
    code = "\n".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code")
    assert sorted(re.findall(r'draw_step_map\("([\d.]+)"\)', code)) == sorted(OF_18)


@pytest.mark.parametrize("exercise", OF_18)
def test_the_newest_boxes_are_lit_and_later_ones_are_dashed(exercise):
    chart, words = draw_step_map(exercise)
    svg = as_picture(chart, words).svg
    assert svg.count(LIT) == sum(home == exercise for home in HOMES.values())
    later = [name for name, home in HOMES.items() if home.startswith("18.") and home > exercise]
    assert svg.count("stroke-dasharray") == len(later)
    assert all(name in words for name in later)
    assert least_width(svg) <= 560


def test_an_exercise_without_a_box_is_refused():
    with pytest.raises(ValueError, match=r"Exercise 18\.6 has no box; expected one of 12, "):
        draw_step_map("18.6")
