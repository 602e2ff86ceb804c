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


@pytest.mark.parametrize(
    "answer",
    [
        mx.array(NUMBERS),
        mx.array(NUMBERS) * (1 + 2e-6),
        NUMBERS,
        NUMBERS.astype(np.float64) + 1e-7,
        NUMBERS.tolist(),
        torch.tensor(NUMBERS),
        [mx.array(row) for row in NUMBERS],
    ],
    ids=["mlx", "rounded", "numpy", "float64", "list", "torch", "list of mlx"],
)
def test_the_same_numbers_in_any_library(answer):
    assert same(answer, EXPECTED)


@pytest.mark.parametrize(
    "answer", [EXPECTED * 1.001, EXPECTED + 1e-3, EXPECTED.T, EXPECTED[:, :4], 1.0, None, "text", EXPECTED > 0]
)
def test_other_numbers_are_not_the_same(answer):
    assert not same(answer, EXPECTED)


def test_float64_stays_as_strict_as_it_was():
    assert not same(NUMBERS.astype(np.float64) * (1 + 1e-5), NUMBERS.astype(np.float64))


def test_booleans_numbers_and_half_precision():
    assert same(EXPECTED > 0, EXPECTED > 0)
    assert same(NUMBERS > 0, EXPECTED > 0)
    assert not same(EXPECTED >= -9, EXPECTED > 0)
    assert not same(1, True)
    assert not same(True, 1)
    assert same(EXPECTED.sum(), EXPECTED.sum())
    assert same(float(NUMBERS.sum()), EXPECTED.sum())
    half = EXPECTED.astype(mx.bfloat16)
    assert same(EXPECTED, half)
    assert same(half, half)
    assert not same(EXPECTED * 1.2, half)


def test_one_wrong_element_is_named():
    wrong = NUMBERS.copy()
    wrong[1, 2] += 1
    told = told_apart(mx.array(wrong), EXPECTED)
    assert "1 of 15 elements wrong: the one at [1, 2]" in told
    assert "array of shape (5, 3), expected array of shape (3, 5)" in told_apart(EXPECTED.T, EXPECTED)


def test_an_overwritten_mlx_array_gets_a_message():
    def double(x):
        """Twice x."""
        return 2 * x

    exercise = Exercise("99.1", "Double", "`double(x)`", 3, 1, double, hints=("a", "b"), cases=((mx.array([1.0, 2]),),))

    def in_place(x):
        x *= 2
        return mx.array(x)

    assert "also new numbers in what it was given" in exercise.examine(in_place).message
    assert exercise.examine(lambda x: x + x)


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


def test_rounding_in_float32_is_not_a_mistake_and_a_wrong_digit_is():
    x = mx.random.normal((50, 40), key=mx.random.key(0))
    other_way = mx.array((np.array(x, np.float64) @ np.array(x, np.float64).T).astype(np.float32))
    assert same(other_way, x @ x.T)
    off = mx.array(x)
    off[3, 4] += 0.01
    assert not same(off, x)
    assert "with 1 of 2,000 elements wrong: the one at [3, 4] is" in told_apart(off, x)
    assert not same(x.T, x)


def test_scalars_numbers_and_nan():
    assert same(mx.array(0.1), 0.1)
    assert same(0.1, mx.array(0.1))
    assert same(mx.array([1.0, float("nan")]), mx.array([1.0, float("nan")]))
    assert same(mx.array([1, 2]), mx.array([1, 2]))
    assert not same(mx.array([1, 2]), mx.array([1, 3]))
    assert not same(mx.array([1.0]), mx.array(1.0))
    assert not same(None, mx.array(1.0))
    assert same({"w": mx.array([0.3]), "b": 1.0}, {"w": mx.array([0.3]), "b": 1.0})


def test_a_coarser_dtype_than_asked_for_is_wrong_and_named():
    x = mx.array([0.1234567, 2.7182818])
    coarse = x.astype(mx.bfloat16)
    assert not same(coarse, x)
    assert told_apart(coarse, x).count("of mx.bfloat16") == told_apart(coarse, x).count("of mx.float32") == 1
    assert same(x, coarse)  # a bfloat16 was expected, and this is as near as one can be


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
