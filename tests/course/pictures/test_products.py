"""The backward pass of a matrix product: every number of a, compared with NumPy."""

import itertools
import re

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_04.pictures.products import draw_matmul

A = np.array([[1.0, 2.0, 0.0], [3.0, -1.0, 2.0]])
B = np.array([[2.0, 1.0, 0.0, 3.0], [5.0, -2.0, 1.0, 4.0], [1.0, 0.0, 2.0, -1.0]])
GRAD = np.array([[1.0, 3.0, 0.0, 2.0], [-1.0, 2.0, 4.0, 1.0]])


@pytest.mark.parametrize(("row", "column"), list(itertools.product(range(2), range(3))))
def test_the_words_give_the_gradient_of_the_followed_number(row, column):
    picture = draw_matmul(A, B, GRAD, row, column)
    assert f"a[{row}, {column}] = {A[row, column]:g}".replace("-", "\N{MINUS SIGN}") in picture.alt
    assert picture.alt.endswith(f"= {(GRAD @ B.T)[row, column]:g}.".replace("-", "\N{MINUS SIGN}"))


def test_the_product_and_its_gradient_are_drawn():
    picture = draw_matmul(A, B, GRAD, 0, 1)
    texts = [
        text.replace("\N{MINUS SIGN}", "-")
        for text in re.findall(r"<text[^>]*>([^<]*)</text>", picture.svg)
        if re.fullmatch("[-\N{MINUS SIGN}]?[0-9]+", text)
    ]
    expected = [A, B, A @ B, GRAD, B, GRAD @ B.T]
    assert list(map(float, texts)) == np.concatenate([array.ravel() for array in expected]).tolist()
    assert picture.svg.count('class="ring"') == 2  # the number, and its gradient
    assert len(re.findall(r'<rect class="b"', picture.svg)) == 8  # its row of b, forward and backward
    assert len(re.findall(r'<rect class="s"', picture.svg)) == 8  # its row of c, and of the gradient of c
