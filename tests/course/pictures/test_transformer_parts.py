"""Pictures of the transformer's parts: drawn and described numbers equal those of torch and transformers."""

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding, apply_rotary_pos_emb

from mlx_grpo_kit.course.chapters.chapter_10.pictures.gates import draw_gate, silu
from mlx_grpo_kit.course.chapters.chapter_10.pictures.norms import draw_norms, normed
from mlx_grpo_kit.course.chapters.chapter_10.pictures.rotation import draw_diagonals, draw_rotation, draw_wavelengths
from mlx_grpo_kit.course.chapters.chapter_10.pictures.rows import MOST_COLUMNS, draw_rows
from mlx_grpo_kit.course.chapters.chapter_10.pictures.stream import draw_stream
from mlx_grpo_kit.viz.style import NEGATIVE, POSITIVE, ZERO

RNG = np.random.default_rng(0)
MINUS = "\N{MINUS SIGN}"


def said(number):
    return f"{number:.2f}".replace("-", MINUS)


def turned(vector, position, theta):
    """A vector [D] at a position, by transformers."""
    config = LlamaConfig(head_dim=len(vector), rope_parameters={"rope_type": "default", "rope_theta": theta})
    x = torch.tensor(vector)[None, None, None]
    cos, sin = LlamaRotaryEmbedding(config)(x, torch.tensor([[position]]))
    return apply_rotary_pos_emb(x, x, cos, sin)[0].flatten().numpy()


@pytest.mark.parametrize(("query_at", "key_at"), [(7, 3), (3, 7), (0, 0), (60, 23)])
@pytest.mark.parametrize("theta", [10_000.0, 100.0])
def test_products_equal_those_of_transformers_rope(query_at, key_at, theta):
    query, key = RNG.normal(size=(2, 12))
    chart, words = draw_rotation(query, key, query_at, key_at, 2, theta)
    q, k = turned(query, query_at, theta), turned(key, key_at, theta)
    pair = q[2] * k[2] + q[8] * k[8]
    assert f"Their product is {said(pair)}; all 6 pairs give {said(q @ k)}." in words
    assert f", {query_at - key_at} apart".replace("-", "\N{MINUS SIGN}") in words
    circle, one, every = chart.planes
    assert one.right == f"product {said(pair)}"
    assert every.right == f"product {said(q @ k)}"
    tip = [each[-1] for each in circle.lines[f"query at {query_at}"]]
    assert tip == pytest.approx([q[2], q[8]], abs=1e-5)


def test_the_product_depends_only_on_the_distance():
    query, key = RNG.normal(size=(2, 32))
    here, there = (draw_rotation(query, key, 9 + both, 4 + both, 1, 1e4)[0] for both in (0, 31))
    assert [plane.right for plane in here.planes[1:]] == [plane.right for plane in there.planes[1:]]
    farther = draw_rotation(query, key, 10, 4, 1, 1e4)[0]
    assert [plane.right for plane in here.planes[1:]] != [plane.right for plane in farther.planes[1:]]


def test_a_pair_of_zeros_has_no_arrow_and_draws():
    chart, words = draw_rotation(np.zeros(8), np.ones(8), 3, 1, 0, 1e4)
    assert "Their product is 0.00; all 4 pairs give 0.00." in words
    assert "nan" not in chart.svg(words)


def test_wavelengths_of_transformers():
    chart, words = draw_wavelengths(32, 10_000.0)
    speeds = LlamaRotaryEmbedding(
        LlamaConfig(head_dim=32, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    ).inv_freq.numpy()
    [sheet] = chart.areas
    np.testing.assert_allclose(sheet.numbers, np.cos(speeds[:, None] * np.arange(64)), atol=1e-5)
    assert "Pair 0 makes a full turn every 6.28 positions, pair 15 every 35,333." in words
    assert [sheet.color(number) for number in (-1, 0, 1)] == [NEGATIVE, ZERO, POSITIVE]
    chart, words = draw_wavelengths(128, 1e6)
    assert len(chart.areas[0].numbers) == 32
    assert "pair 63 every 5,063,2" in words
    assert "pair 62" in chart.svg(words)


def test_diagonals():
    scores = np.subtract.outer(np.arange(5), np.arange(5)) * 1.5
    chart, words = draw_diagonals(scores)
    assert f"from {MINUS}6.00 to 6.00" in words
    assert "they differ by at most 0e+00" in words
    assert chart.areas[0].written[1] == f"{MINUS}1.5"
    scores[0, 0] = 1
    assert "they differ by at most 1e+00" in draw_diagonals(scores)[1]


@pytest.mark.parametrize("x", [[1.0, -1.0, 5.0], [3.0, 0.5, -2.0], [0.001, 0.0, 0.0]])
@pytest.mark.parametrize("eps", [1e-6, 1.0])
def test_norms_equal_torchs(x, eps):
    tensor = torch.tensor(x)
    results = normed(x, eps)
    rms = torch.nn.functional.rms_norm(tensor, (3,), eps=eps)
    layer = torch.nn.functional.layer_norm(tensor, (3,), eps=eps)
    assert results["RMSNorm"] == pytest.approx(rms.tolist(), abs=1e-5)
    assert results["layer norm"] == pytest.approx(layer.tolist(), abs=1e-5)
    chart, words = draw_norms(x, eps)
    assert [plane.title for plane in chart.planes] == ["x", "RMSNorm", "layer norm"]
    for number in rms.tolist():
        assert (said(number) if abs(number) >= 0.005 else "0") in words


def test_norms_of_zeros():
    assert "nan" not in draw_norms([0.0, 0.0, 0.0], 0.0)[1]
    assert draw_norms([10.0, 1.0, 1.0], 1e-6)[1].startswith("x is 10, 1.00, 1.00")
    assert (
        "RMSNorm turns it into 1.00, 1.00, 1.00, and layer norm into 0, 0, 0." in draw_norms([5.0, 5.0, 5.0], 1e-6)[1]
    )


def test_the_gate_equals_torchs_silu():
    for z in (-800.0, -6.0, -0.5, 0.0, 2.0, 500.0):
        assert silu(z) == pytest.approx(torch.nn.functional.silu(torch.tensor(z, dtype=torch.float64)).item())
    chart, words = draw_gate(2.0, -1.5)
    assert f"silu is 1.76, and relu 2.00. The switch is open. An up of {MINUS}1.50 comes out as {MINUS}2.64." in words
    assert chart.planes[0].title == "silu(2.00) = 1.76"
    assert "nearly shut" in draw_gate(-4.0, 1.0)[1]


def test_rows_of_an_embedding():
    table = RNG.normal(size=(10, 100))
    ids = [3, 1, 3]
    chart, words = draw_rows(["a", "b", "a"], ids, table[ids])
    [sheet] = chart.areas
    np.testing.assert_array_equal(sheet.numbers, table[ids][:, :MOST_COLUMNS])
    assert sheet.title == f"the first {MOST_COLUMNS} of 100 numbers of its vector"
    assert "'a' is 3, 'b' is 1, 'a' is 3. The rows of 'a' are equal wherever they appear." in words
    assert "equal" not in draw_rows(["a", "b"], [3, 1], table[[3, 1]])[1]


def test_stream():
    chart, words = draw_stream(["embedding", "layer 0 MLP"], [0.5, 2.0], [0.5, 2.25], ["would say 'x'", "'y'"])
    assert "embedding adds 0.50, after it the stream is 0.50 (would say 'x')" in words
    assert "layer 0 MLP adds 2.00, after it the stream is 2.25 ('y')" in words
    svg = chart.svg(words)
    assert svg.count("<rect") == 1 + 2 + 4  # the page, the legend, two bars a part
    assert "would say &#x27;x&#x27;" in svg
