"""The stepper and its panel, without a kernel: move a control, and check the picture."""
# ruff: noqa: RUF001 (pictures have a real minus and times sign)

import random

import pytest
import torch
from ipywidgets import IntSlider

from mlx_grpo_kit.course.chapters.chapter_02.pictures.stepper import Stepper
from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.scalar.nn import MLP
from mlx_grpo_kit.viz import Panel
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.graphs.nodes import short
from mlx_grpo_kit.viz.picture import new_figure


def product():
    a, b = Value(2.0, label="a"), Value(-3.0, label="b")
    c = a * b
    c.label = "c"
    d = c + a
    d.label = "d"
    return d


def test_it_walks_forward_and_then_backward():
    stepper = Stepper(product())
    headings = [moment.heading for moment in stepper.moments]
    assert headings == [
        "Before the first step", "Forward, 1 of 2", "Forward, 2 of 2", "Backward begins",
        "Backward, 1 of 2: d passes its gradient 1 on", "Backward, 2 of 2: c passes its gradient 1 on",
    ]  # fmt: skip


def test_each_moment_shows_the_local_derivative_and_the_sum():
    moments = Stepper(product()).moments
    assert moments[1].sentences == ("c = a × b = 2 × −3 = −6",)
    assert moments[5].sentences == (
        "a: the local derivative dc/da is −3, so its gradient grows by (−3) × 1: 1 + (−3) = −2",
        "b: the local derivative dc/db is 2, so its gradient grows by 2 × 1: 0 + 2 = 2",
    )


def test_numbers_appear_when_they_are_computed():
    stepper = Stepper(product())
    assert "−6" not in stepper.at(0).svg.split("</title>", 1)[1].replace("<title>c = a × b: −6", "")
    assert stepper.moments[0].marks.data.keys() == {0, 1}
    assert stepper.moments[2].marks.data.keys() == {0, 1, 2, 3}
    assert stepper.moments[2].marks.grad == {}
    assert stepper.moments[3].marks.grad == {0: "0", 1: "0", 2: "0", 3: "1"}


def test_the_last_moment_has_torchs_gradients():
    def program(x, y):
        shared = x * y + x
        return (shared * shared).tanh() / (y * y + 1) - shared

    x, y = Value(0.3, label="x"), Value(-0.8, label="y")
    stepper = Stepper(program(x, y))
    tensors = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.3, -0.8)]
    program(*tensors).backward()
    final = stepper.moments[-1].marks.grad
    shown = [final[index] for index, node in enumerate(stepper._nodes) if node.title in ("x", "y")]
    assert shown == [short(tensor.grad.item()) for tensor in tensors]


def test_the_walk_does_not_change_the_graph():
    root = product()
    root.backward()
    before = [(node.data, node.grad) for node in (root, *root.parents)]
    Stepper(root).at(5)
    assert [(node.data, node.grad) for node in (root, *root.parents)] == before


def test_the_slider_and_the_buttons_move_the_picture():
    panel = Stepper(product()).panel
    previous, following, play = panel.widget.children[0].children[1:]
    following.click()
    assert "c = a × b = 2 × −3 = −6" in panel.picture.html
    panel.set(step=5)
    following.click()  # stays at the end
    assert "Backward, 2 of 2" in panel.widget.children[-1].value
    previous.click()
    assert "Backward, 1 of 2" in panel.widget.children[-1].value
    panel.set(step=0)
    previous.click()
    assert "Before the first step" in panel.widget.children[-1].value
    assert play.max == panel.controls["step"].max == 5


def test_the_notebook_stores_a_moment_of_the_backward_pass(outputs_of):
    x = Value(2.0, label="x")
    root = ((x * x + x) * x).tanh()  # four operations
    stepper = Stepper(root)
    widget, data = outputs_of(stepper)
    assert "application/vnd.jupyter.widget-view+json" in widget
    assert 'src="data:image/svg+xml;base64,' in data["text/html"]
    [words] = [moment.words for moment in stepper.moments if moment.words == data["text/plain"]]
    assert words.startswith("Backward, 3 of 4")
    assert "<b>Backward, 3 of 4: v" in data["text/html"]
    assert outputs_of(Stepper(x))[1]["text/plain"].startswith("Backward begins")  # a leaf passes nothing on


def test_graphs_that_it_cannot_walk():
    random.seed(0)
    with pytest.raises(ValueError, match=r"nodes; expected at most 60.*draw_graph"):
        Stepper(MLP(2, [16, 1])([1.0, 2.0]))
    with pytest.raises(TypeError, match="does not keep the derivative"):
        Stepper(torch.ones(2, requires_grad=True).sum())


# -- the panel --------------------------------------------------------------------------------------------------------


def test_a_panel_draws_the_values_of_its_controls(outputs_of):
    seen = []

    def draw(n):
        seen.append(n)
        return new_figure(1, 1), f"{n} things"

    panel = Panel(draw, n=IntSlider(3, 0, 10))
    panel.set(n=7)
    assert seen == [3, 7]
    assert 'alt="7 things"' in panel.picture.html
    assert panel.widget.children[-1].value == panel.picture.html
    widget, data = outputs_of(panel)
    assert "application/vnd.jupyter.widget-view+json" in widget
    assert "kit-live" in panel.widget._dom_classes
    assert data.keys() == {"text/html", "text/plain"}
    assert data["text/plain"] == repr(panel) == "7 things"
    assert (
        'class="kit-still"><div style="overflow-x:auto"><img class="kit-picture kit-ink" alt="7 things"'
        in data["text/html"]
    )


@pytest.mark.parametrize("make", [lambda high: new_figure(1, high / 100), lambda high: Chart(50, high)])
def test_a_lower_picture_leaves_the_room_of_the_highest_one(make):
    panel = Panel(lambda high: (make(high), "x"), high=IntSlider(100, 50, 900))
    room = panel.widget.children[-1].layout
    panel.set(high=300)
    assert room.min_height is None  # a narrow page shrinks a picture, and then its room would be too large
    panel.set(high=200)
    assert room.min_height == "300px"
    panel.set(high=400)
    panel.set(high=399)
    assert room.min_height == "400px"
    assert Panel(lambda: (make(100), "x"), height=250).widget.children[-1].layout.min_height == "250px"


def test_a_slider_ends_where_the_picture_does():
    seen = []

    def draw(size, place):
        seen.append((size, place))
        return new_figure(1, 1), "x"

    panel = Panel(draw, limits=lambda size, **_: {"place": size}, size=IntSlider(4, 1, 9), place=IntSlider(8, 1, 99))
    assert (panel.controls["place"].max, seen) == (4, [(4, 4)])
    panel.set(size=2)
    assert (panel.controls["place"].max, seen) == (2, [(4, 4), (2, 2)])  # one drawing, for the slider's value
    panel.set(size=9)
    assert (panel.controls["place"].max, seen[-1]) == (9, (9, 2))


def test_an_error_in_drawing_is_shown_and_the_picture_stays():
    def draw(n):
        if n > 5:
            raise ValueError(f"{n} is <too> much")
        return new_figure(1, 1), f"{n} things"

    panel = Panel(draw, n=IntSlider(3, 0, 10))
    panel.set(n=7)
    assert "7 is &lt;too&gt; much" in panel.widget.children[1].value
    assert panel.picture.alt == "3 things"
    assert "kit-busy" not in panel.widget.children[-1]._dom_classes
    panel.set(n=4)
    assert (panel.widget.children[1].value, panel.picture.alt) == ("", "4 things")
    with pytest.raises(ValueError, match="6 is"):
        Panel(draw, n=IntSlider(6, 0, 10))


def test_a_misspelt_control():
    panel = Panel(lambda n: (new_figure(1, 1), "x"), n=IntSlider())
    with pytest.raises(KeyError, match="no control is called 'm'; there are 'n'"):
        panel.set(m=1)
