"""A picture that is redrawn while a loop runs: its pace, and the last picture."""

import time

import pytest

from mlx_grpo_kit.course.pictures.boundary import draw_boundary
from mlx_grpo_kit.viz import LivePicture


@pytest.fixture
def clock(monkeypatch):
    """[seconds]: the time, which only the test changes."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def shown(monkeypatch):
    """The descriptions of the displayed pictures, in order."""
    words = []

    class Handle:
        def update(self, picture):
            words.append(picture.alt.split(".")[0])

    def display(picture, display_id):
        Handle().update(picture)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    return words


def run(clock, seconds_to_draw=0.0):
    """Make ten updates, a tenth of a second apart, and finish."""

    def draw(title):
        clock[0] += seconds_to_draw
        return draw_boundary(None, [(0.0, 0.0), (1.0, 1.0)], [-1, 1], title=title)

    live = LivePicture()
    for step in range(10):
        live.update(lambda step=step: draw(f"step {step}"))
        clock[0] += 0.1
    live.finish(lambda: draw("over"))
    return live


def test_it_keeps_its_pace_and_shows_the_last_picture(clock, shown):
    live = run(clock)
    assert shown == ["step 0", "step 3", "step 6", "step 9", "over"]
    assert live.frames == 5


def test_a_slow_picture_is_drawn_less_often(clock, shown):
    run(clock, seconds_to_draw=0.045)
    assert shown == ["step 0", "step 5", "over"]
