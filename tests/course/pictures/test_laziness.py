"""The pictures of chapter 09: what waits, and how a loss bends; and compiled operations in a graph."""

import io

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_09.pictures.curvature import contour, draw_curvature
from mlx_grpo_kit.course.chapters.chapter_09.pictures.laziness import draw_waiting
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.viz import draw_graph
from mlx_grpo_kit.viz.graphs.nodes import read_graph


def test_what_waits_falls_to_zero_where_it_is_evaluated():
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


def test_a_contour_line_lies_at_its_height():
    a, b = np.linspace(-2, 2, 41), np.linspace(-1, 1, 31)
    xs, ys = map(np.array, contour(a, b, a**2 + b[:, None] ** 2, 0.5))
    drawn = np.isfinite(xs)
    assert drawn.sum() > 50
    np.testing.assert_allclose(xs[drawn] ** 2 + ys[drawn] ** 2, 0.5, atol=0.01)
    assert contour(a, b, a**2 + b[:, None] ** 2, 99.0) == ([], [])


@pytest.mark.parametrize("hessian", [[[2.0, 0.0], [0.0, 10.0]], [[1.0, 3.0], [3.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
def test_curvature_in_words(hessian):
    a, b = np.linspace(-1, 1, 11), np.linspace(-1, 1, 11)
    v = np.array([0.6, 0.8])
    chart, words = draw_curvature((a, b, a**2 + b[:, None] ** 2), (0.1, -0.2), hessian, tuple(v), tuple(hessian @ v))
    low, high = np.linalg.eigvalsh(hessian)
    labels = chart.planes[0].lines
    assert float(next(iter(labels)).removeprefix("most: ")) == pytest.approx(high, rel=1e-2, abs=1e-9)
    assert float(list(labels)[1].removeprefix("least: ")) == pytest.approx(low, rel=1e-2, abs=1e-9)
    assert "at (0.10, -0.20)" in words
    assert chart.svg(words).count("<svg") >= 2


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
