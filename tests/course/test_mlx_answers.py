"""Answers made of MLX's arrays: compared to their float32 rounding, in whatever library, and watched like NumPy's."""

import numpy as np
import pytest
import torch

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.course.compare import same, told_apart
from mlx_grpo_kit.course.exercise import Exercise

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
def test_other_numbers_are_not(answer):
    assert not same(answer, EXPECTED)


def test_float64_stays_as_strict_as_it_was():
    assert not same(NUMBERS.astype(np.float64) * (1 + 1e-5), NUMBERS.astype(np.float64))


def test_booleans_numbers_and_half_precision():
    assert same(EXPECTED > 0, EXPECTED > 0)
    assert same(NUMBERS > 0, EXPECTED > 0)
    assert not same(EXPECTED >= -9, EXPECTED > 0)
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


def test_an_array_of_mlx_that_was_written_over_is_told():
    def double(x):
        """Twice x."""
        return 2 * x

    exercise = Exercise("99.1", "Double", "`double(x)`", 3, 1, double, hints=("a", "b"), cases=((mx.array([1.0, 2]),),))

    def in_place(x):
        x *= 2
        return mx.array(x)

    assert "also new numbers in what it was given" in exercise.examine(in_place).message
    assert exercise.examine(lambda x: x + x)
