"""The picture of chapter 09, waiting operations; and compiled operations in a graph."""

import io

from mlx_grpo_kit.course.chapters.chapter_09.pictures.laziness import draw_waiting
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.viz import draw_graph
from mlx_grpo_kit.viz.graphs.nodes import read_graph


def test_waiting_operations_fall_to_zero_at_an_evaluation():
    chart, words = draw_waiting([10, 20, 10, 20], [1.0, 1.0, 1.0, 1.0], [0.0, 5.0, 0.0, 7.0], 2)
    left, right = chart.planes
    assert left.right == "20 at most"
    assert right.right == "16.0 in all"
    assert list(right.lines) == ["writing it down", "computing"]
    assert "4 steps, evaluated after every 2. Up to 20 operations wait." in words
    assert "4.00 milliseconds in all, computing 12.0; the longest step takes 8.00" in words
    assert 'role="img"' in chart.svg(words)


def test_evaluated_after_every_step():
    chart, words = draw_waiting([18] * 3, [0.1] * 3, [1.0] * 3, 1)
    assert "evaluated after every one. Up to 18" in words
    assert list(chart.planes[1].lines) == ["computing", "writing it down"]


def test_fused_operations_are_one_box_that_says_how_many():
    def chain(x):
        return (x * x + 1) * x - 2

    x = mx.array([1.0, 2.0])
    text = io.StringIO()
    mx.export_to_dot(text, mx.compile(chain)(x), x=x)
    node = read_graph(text.getvalue())[-1]
    assert node.op == "Compiled"
    assert node.data.endswith(" in one")
    assert int(node.data.split()[0]) >= 4
    assert "Compiled" in draw_graph(text.getvalue()).svg
    assert "CompiledMultiply" not in draw_graph(text.getvalue()).svg
