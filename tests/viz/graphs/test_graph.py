"""Graphs: reading them from each engine, the places of boxes, the text in them, and large graphs."""
# ruff: noqa: RUF001 (pictures have a real minus and times sign)

import base64
import io
import random
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.scalar.nn import MLP
from mlx_grpo_kit.viz import draw_graph
from mlx_grpo_kit.viz.graphs.graph import arrange
from mlx_grpo_kit.viz.graphs.layout import _layers, lay_out
from mlx_grpo_kit.viz.graphs.nodes import collapse, read_graph
from tests.every import every

SVG = "{http://www.w3.org/2000/svg}"


def small():
    a, b = Value(2.0, label="a"), Value(-3.0, label="b")
    c = a * b
    c.label = "c"
    loss = (c + a) / 4
    loss.label = "loss"
    loss.backward()
    return loss


def perceptron(width=3, samples=1):
    random.seed(0)
    model = MLP(2, [width, 1])
    return sum((model([random.random(), 1.0]) - 1) ** 2 for _ in range(samples))


def random_parents(seed, count=60):
    rng = random.Random(seed)
    return [
        tuple(rng.randrange(node) for _ in range(rng.choice([0, 1, 2, 2, 3]))) if node else () for node in range(count)
    ]


def boxes(picture):
    """Return {first line of text: all lines} for each box of the picture."""
    tree = ElementTree.fromstring(picture.svg)
    groups = [group for group in tree.iter(f"{SVG}g") if group.get("class", "").startswith("node")]
    return [["".join(text.itertext()) for text in group.iter(f"{SVG}text")] for group in groups]


# -- what is written --------------------------------------------------------------------------------------------------


def test_boxes_show_operation_label_number_and_gradient():
    a = Value(2.0, label="a")
    product = a * -3.0
    product.label = "p"
    product.backward()
    assert boxes(draw_graph(product)) == [["a", "2", "grad −3"], ["−3", "grad 2"], ["× p", "−6", "grad 1"]]


def test_pointing_at_a_box_shows_its_formula_and_derivatives():
    hovers = [title.text for title in ElementTree.fromstring(draw_graph(small()).svg).iter(f"{SVG}title")]
    assert "c = a × b: −6, gradient 0.25\nd c / d a = −3\nd c / d b = 2" in hovers


def test_the_words_describe_every_node_and_are_in_the_title():
    picture = draw_graph(small())
    assert picture.alt.splitlines()[:3] == [
        "Graph of 6 nodes, 3 of them leaves.",
        "a: 2, gradient −0.5",
        "b: −3, gradient 0.5",
    ]
    assert "loss = v4 ÷ 4: −1, gradient 1" in picture.alt
    tree = ElementTree.fromstring(picture.svg)
    assert tree.get("role") == "img"
    assert tree.find(f"{SVG}title").text == picture.alt
    data = picture._repr_mimebundle_()
    assert data["text/plain"] == repr(picture) == picture.alt
    image = re.search(r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)"', data["text/html"])
    assert image[1] == picture.alt
    assert base64.b64decode(image[2]).decode() == picture.svg


def test_labels_cannot_become_markup():
    picture = draw_graph(Value(1.0, label="<script>&") * 2)
    assert "<script>" not in picture.svg
    assert ["<script>&", "1", "grad 0"] in boxes(picture)


def test_using_a_value_twice_draws_two_lines():
    a = Value(3.0, label="a")
    tree = ElementTree.fromstring(draw_graph(a + a).svg)
    lines = [path.get("d") for path in tree.iter(f"{SVG}path") if path.get("class") == "line"]
    assert len(lines) == len(set(lines)) == 2


def test_the_same_graph_has_the_same_picture():
    assert draw_graph(small()).svg == draw_graph(small()).svg
    assert draw_graph(perceptron(8, 4)).svg == draw_graph(perceptron(8, 4)).svg


def test_colours_follow_the_theme_and_stay_readable_without_a_style_sheet():
    svg = draw_graph(small()).svg
    assert "--jp-ui-font-color1" in svg
    assert "--jp-layout-color0" in svg
    assert '[data-jp-theme-light="false"]' in svg
    plain = re.sub(r"<style>.*</style>", "", svg, flags=re.S)
    for element in ElementTree.fromstring(plain).iter():
        if element.tag in (f"{SVG}rect", f"{SVG}text", f"{SVG}path"):
            assert element.get("fill"), ElementTree.tostring(element)


# -- where it goes ----------------------------------------------------------------------------------------------------


def assert_in_order_and_apart(parents, sizes, layout, gap):
    for child, own in enumerate(parents):
        for parent in own:
            right = layout.centers[parent][0] + sizes[parent][0] / 2
            assert right < layout.centers[child][0] - sizes[child][0] / 2
    for one in range(len(parents)):
        for other in range(one):
            apart_x = abs(layout.centers[one][0] - layout.centers[other][0]) >= (sizes[one][0] + sizes[other][0]) / 2
            apart_y = (
                abs(layout.centers[one][1] - layout.centers[other][1])
                >= (sizes[one][1] + sizes[other][1]) / 2 + gap - 1e-6
            )
            assert apart_x or apart_y, (one, other)
    for (x, y), (width, height) in zip(layout.centers, sizes, strict=True):
        assert -1e-6 <= x - width / 2 < x + width / 2 <= layout.width + 1e-6
        assert -1e-6 <= y - height / 2 < y + height / 2 <= layout.height + 1e-6


@every("seed", range(20))
def test_boxes_do_not_overlap_and_come_after_their_parents(seed):
    rng = random.Random(seed)
    parents = random_parents(seed)
    sizes = [(rng.uniform(40, 120), rng.uniform(20, 60)) for _ in parents]
    layout = lay_out(parents, sizes, layer_gap=40, gap=12)
    assert_in_order_and_apart(parents, sizes, layout, 12)
    assert layout.routes.keys() == {(parent, child) for child, own in enumerate(parents) for parent in own}


@pytest.mark.parametrize("seed", range(5))
def test_lines_avoid_boxes(seed):
    """A line that passes through a column avoids every box there."""
    parents = random_parents(seed, 30)
    sizes = [(80.0, 40.0)] * 30
    layout = lay_out(parents, sizes, layer_gap=40, gap=12)
    for (parent, child), points in layout.routes.items():
        xs, ys = zip(*points, strict=True)
        for center_x, center_y in layout.centers:
            if layout.centers[parent][0] < center_x < layout.centers[child][0]:
                assert abs(np.interp(center_x, xs, ys) - center_y) >= 20, (parent, child)


def test_a_leaf_is_placed_right_before_its_first_use():
    # 0 -> 1 -> 2 -> 3, and the leaf 4 used by 5 = (3, 4)
    assert _layers([(), (0,), (1,), (2,), (), (3, 4)]) == [0, 1, 2, 3, 3, 4]


def test_a_tree_is_drawn_without_crossings_and_its_root_in_the_middle():
    parents = [(), (), (), (), (0, 1), (2, 3), (4, 5)]
    layout = lay_out(parents, [(50.0, 30.0)] * 7, layer_gap=40, gap=10)
    y = [center[1] for center in layout.centers]
    assert y[0] < y[1] < y[2] < y[3]
    assert y[4] < y[5]
    assert y[6] == pytest.approx((y[4] + y[5]) / 2, abs=1)


def test_avoidable_crossings_are_avoided():
    # 0..3 feed 7..4 in reverse: in the order of their numbers, every line would cross every other.
    parents = [(), (), (), (), (3,), (2,), (1,), (0,), (4, 5, 6, 7)]
    y = [center[1] for center in lay_out(parents, [(50.0, 30.0)] * 9, layer_gap=40, gap=10).centers]
    assert sorted(range(4), key=y.__getitem__) == [7 - node for node in sorted(range(4, 8), key=y.__getitem__)]


@pytest.mark.parametrize("samples", [1, 8])
def test_a_perceptron_is_laid_out_without_overlap(samples):
    nodes = read_graph(perceptron(3, samples))
    layout = arrange(nodes)
    assert len(nodes) <= 150
    sizes = [(60.0, 30.0)] * len(nodes)  # every box is at least this large
    for one in range(len(nodes)):
        for other in range(one):
            (x1, y1), (x2, y2) = layout.centers[one], layout.centers[other]
            assert abs(x1 - x2) >= sizes[one][0] or abs(y1 - y2) >= sizes[one][1]


# -- large graphs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "samples"), [(3, 20), (16, 40)])
def test_a_large_graph_is_collapsed_and_counts_everything(width, samples):
    nodes = read_graph(perceptron(width, samples))
    few = collapse(nodes, 150)
    assert len(nodes) > 150 >= len(few)
    assert sum(node.count for node in few) == len(nodes)
    assert all(parent < child for child, node in enumerate(few) for parent in node.parents)
    assert [node.title for node in few if node.op == "relu"] == [f"{width * samples} of these"]
    assert few[-1].op == "+"


def test_150_nodes_are_drawn_individually():
    value = Value(1.0)
    for _ in range(149):
        value = value.tanh()
    assert len(boxes(draw_graph(value))) == 150
    assert len(boxes(draw_graph(value.tanh()))) == 2
    assert len(boxes(draw_graph(value, max_nodes=2))) == 2


def test_alternating_operations_are_cut_off_far_from_the_result():
    value = Value(1.0, label="x")
    for _ in range(5000):
        value = value.tanh().exp()
    drawn = boxes(draw_graph(value, max_nodes=20))
    assert len(drawn) == 20
    assert drawn[0] == ["… 9,982 nodes before"]
    assert drawn[-1][0] == "exp"


def test_boxes_of_several_nodes_form_no_cycle():
    for seed in range(20):
        nodes = read_graph(perceptron(2, 3))
        rng = random.Random(seed)
        values = [Value(rng.random()) for _ in range(5)]
        for _ in range(200):
            one, other = rng.choice(values[-20:]), rng.choice(values)
            values.append(rng.choice([lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a.tanh()])(one, other))
        nodes = read_graph(sum(values))
        for limit in (5, 30, 100):
            few = collapse(nodes, limit)
            assert len(few) <= limit
            assert sum(node.count for node in few) == len(nodes)
            assert all(parent < child for child, node in enumerate(few) for parent in node.parents)


# -- other engines ----------------------------------------------------------------------------------------------------


def test_a_torch_graph():
    x = torch.tensor(2.0, requires_grad=True)
    w = torch.ones(3, 4, requires_grad=True)
    y = (x.exp() * w).sum()
    y.backward()
    nodes = read_graph(y)
    assert [node.op for node in nodes] == ["", "Exp", "", "Mul", "Sum"]
    assert [node.data for node in nodes] == ["2", "", "3×4", "", "88.67"]
    assert nodes[2].grad == "3×4"
    assert [node.parents for node in nodes] == [(), (0,), (), (1, 2), (3,)]
    draw_graph(y)


def dot_text(*arrays, **names):
    buffer = io.StringIO()
    mx.export_to_dot(buffer, *arrays, **names)
    return buffer.getvalue()


def test_an_mlx_graph():
    x, w = mx.array([1.0, 2.0]), mx.array([3.0, 4.0])
    nodes = read_graph(dot_text(mx.exp(x * w) + x, x=x, w=w))
    assert [(node.title, node.symbol, node.parents) for node in nodes] == [
        ("x", "", ()), ("w", "", ()), ("", "×", (0, 1)), ("", "Exp", (2,)), ("", "+", (3, 0)),
    ]  # fmt: skip


def test_an_mlx_operation_with_two_results():
    x = mx.arange(4.0)
    mx.eval(x)
    one, other = mx.split(x, 2)
    nodes = read_graph(dot_text(one * other))
    assert [node.op for node in nodes] == ["", "Split", "result", "result", "Multiply"]
    assert nodes[-1].parents == (2, 3)
    assert dot_text(one * other) != ""
    assert draw_graph(dot_text(one * other)).alt.startswith("Graph of 5 nodes")


@pytest.mark.parametrize("thing", [3.0, None, [Value(1.0)], "no graph"])
def test_an_object_that_is_not_a_graph_raises_an_error(thing):
    with pytest.raises(TypeError, match=r"draw_graph got .*; expected"):
        draw_graph(thing)


def test_too_few_boxes():
    with pytest.raises(ValueError, match="max_nodes is 1; expected at least 2"):
        draw_graph(small(), max_nodes=1)


def test_pictures_need_neither_mlx_nor_matplotlib_nor_widgets():
    code = (
        "import sys, mlx_grpo_kit.viz as viz; from mlx_grpo_kit.scalar import Value;"
        "viz.draw_graph(Value(1.0) * 2);"
        "print([name for name in ('mlx', 'torch', 'matplotlib', 'ipywidgets', 'numpy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_saving(tmp_path):
    draw_graph(small()).save(tmp_path / "graph.svg")
    assert ElementTree.parse(tmp_path / "graph.svg").getroot().tag == f"{SVG}svg"
