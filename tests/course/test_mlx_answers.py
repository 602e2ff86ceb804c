"""Answers with MLX arrays: compared up to rounding in float32, in any library, and watched for changes like NumPy's."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from mlx_grpo_kit.course.compare import same, show, told_apart
from mlx_grpo_kit.course.exercise import Exercise
from mlx_grpo_kit.runtime import mx

NUMBERS = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
EXPECTED = mx.array(NUMBERS)
HALF = EXPECTED.astype(mx.bfloat16)
X = mx.random.normal((50, 40), key=mx.random.key(0))
PRODUCT_IN_FLOAT64 = mx.array((np.array(X, np.float64) @ np.array(X, np.float64).T).astype(np.float32))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (mx.array(NUMBERS), EXPECTED),
        (mx.array(NUMBERS) * (1 + 2e-6), EXPECTED),
        (NUMBERS, EXPECTED),
        (NUMBERS.astype(np.float64) + 1e-7, EXPECTED),
        (NUMBERS.tolist(), EXPECTED),
        (torch.tensor(NUMBERS), EXPECTED),
        ([mx.array(row) for row in NUMBERS], EXPECTED),
        (float(NUMBERS.sum()), EXPECTED.sum()),
        (EXPECTED > 0, EXPECTED > 0),
        (NUMBERS > 0, EXPECTED > 0),
        (EXPECTED, HALF),  # a bfloat16 was expected, and this is as near as one can be
        (HALF, HALF),
        (mx.array(0.1), 0.1),
        (0.1, mx.array(0.1)),
        (mx.array([1.0, float("nan")]), mx.array([1.0, float("nan")])),
        (mx.array([1, 2]), mx.array([1, 2])),
        ({"w": mx.array([0.3]), "b": 1.0}, {"w": mx.array([0.3]), "b": 1.0}),
        (PRODUCT_IN_FLOAT64, X @ X.T),
    ],
)
def test_the_same_numbers_in_any_library(answer, expected):
    assert same(answer, expected)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        *((answer, EXPECTED) for answer in (EXPECTED * 1.001, EXPECTED + 1e-3, EXPECTED.T, EXPECTED[:, :4], 1.0, None)),
        ("text", EXPECTED),
        (EXPECTED > 0, EXPECTED),
        (EXPECTED >= -9, EXPECTED > 0),
        (1, True),
        (True, 1),
        (EXPECTED * 1.2, HALF),
        (HALF, EXPECTED),
        (NUMBERS.astype(np.float64) * (1 + 1e-5), NUMBERS.astype(np.float64)),  # as strict as it was
        (X.T, X),
        (mx.array([1, 2]), mx.array([1, 3])),
        (mx.array([1.0]), mx.array(1.0)),
        (None, mx.array(1.0)),
    ],
)
def test_other_numbers_are_not_the_same(answer, expected):
    assert not same(answer, expected)


def test_a_difference_is_named():
    wrong = mx.array(X)
    wrong[3, 4] += 0.01
    assert not same(wrong, X)
    assert "with 1 of 2,000 elements wrong: the one at [3, 4] is" in told_apart(wrong, X)
    assert "array of shape (5, 3), expected array of shape (3, 5)" in told_apart(EXPECTED.T, EXPECTED)
    told = told_apart(HALF[0, :2], EXPECTED[0, :2])
    assert told.count("of mx.bfloat16") == told.count("of mx.float32") == 1


def scaled(x, params):
    """3 * x + the bias, of arrays."""
    return 3 * x + params["bias"]


SCALED = Exercise(
    "99.1",
    "Scaled",
    "`scaled(x, params)`",
    3,
    1,
    scaled,
    hints=("Three times.", "`3 * x`"),
    cases=(
        (mx.array([1.5, -2.0, 0.1]), {"bias": mx.array(0.25)}),
        (mx.array([[0.3], [1.1]]), {"bias": mx.array([1.0, 2.0])}),
    ),
)


@pytest.mark.parametrize(
    "answer",
    [
        lambda x, params: x + x + x + params["bias"],
        lambda x, params: 3 * np.array(x) + np.array(params["bias"]),
        lambda x, params: torch.tensor(np.array(x)) * 3 + torch.tensor(np.array(params["bias"])),
        lambda x, params: (3 * x + params["bias"]).tolist(),
        lambda x, params: mx.compile(scaled)(x, params),
    ],
)
def test_right_answers_in_any_style(answer):
    assert SCALED.examine(answer), SCALED.examine(answer).message


def test_a_changed_array_gets_a_message():
    def overwrites(x, params):
        x *= 3
        return x + params["bias"]

    def overwrites_a_parameter(x, params):
        params["bias"] += 3 * x
        return params["bias"]

    def writes_an_element(x, params):
        result = 3 * x + params["bias"]
        x[0] = 7.0
        return result

    for answer in (overwrites, overwrites_a_parameter, writes_an_element):
        assert "the right result, but also new numbers" in SCALED.examine(answer).message
    assert dataclasses.replace(SCALED, in_place=True).examine(overwrites)


def test_an_mlx_case_does_not_change():
    SCALED.examine(lambda x, params: x.__iadd__(1))
    assert SCALED.cases[0][0].tolist() == pytest.approx([1.5, -2.0, 0.1])


def test_an_error_that_shows_only_when_numbers_are_wanted():
    kept = []

    def keeps_a_placeholder(x, params):
        mx.compile(lambda y: kept.append(2 * y) or y)(x)
        return kept[-1]

    assert "raised" in SCALED.examine(keeps_a_placeholder).message


def test_shown_like_any_array():
    assert show(mx.array([0.1, 2.0])) == "array([0.1, 2])"
    assert show(mx.array(0.1)) == "0.1"
    assert show(mx.zeros((20, 30))) == "array of shape (20, 30)"
    assert (
        told_apart(mx.zeros((2, 1)), mx.zeros(2))
        == "array([[0], [0]]) of shape (2, 1), expected array([0, 0]) of shape (2,)"
    )


@pytest.mark.parametrize("answer", [lambda x, params: x.at[0], lambda x, params: mx.float32, lambda x, params: mx])
def test_mlx_objects_that_are_not_arrays_get_a_message(answer):
    assert ", expected array([4.75, " in SCALED.examine(answer).message


def test_checking_without_mlx_does_not_import_it():
    program = (
        "import sys, numpy as np\nfrom mlx_grpo_kit.course import check\n"
        "check('05.2', lambda g, x: np.zeros(x.shape))\nassert not [m for m in sys.modules if m.startswith('mlx.')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
