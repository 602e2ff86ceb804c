"""The pictures of broadcasting and of sums over an axis: copies, sums, and messages for text that is not a shape."""

import itertools
import math
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from mlx_grpo_kit.course.chapters.chapter_04.pictures.reductions import draw_sum
from mlx_grpo_kit.course.chapters.chapter_04.pictures.shapes import (
    EXAMPLES,
    align,
    draw_broadcast,
    explore_shapes,
    parse_shape,
    shape_explorer,
    source_of,
    summed_axes,
)
from tests.every import every

SVG = "{http://www.w3.org/2000/svg}"
SHAPES = [(), (1,), (4,), (3, 1), (3, 4), (2, 1, 4), (2, 3, 1), (5, 1, 1), (1, 4), (0,), (2, 0), (4, 3)]
PAIRS = list(itertools.product(SHAPES, repeat=2))
FITTING = [(a, b) for a, b in PAIRS if align(a, b).result is not None]


def cells(picture, name):
    """The cells of a grid in their order: (text, classes, True if there is a ring, tip)."""
    root = ElementTree.fromstring(picture.svg)
    [grid] = [group for group in root.iter(f"{SVG}g") if group.get("data-name") == name]
    found = []
    for cell in grid.findall(f"{SVG}g"):
        rects, title = cell.findall(f"{SVG}rect"), cell.find(f"{SVG}title")
        found.append(
            (
                cell.find(f"{SVG}text").text,
                rects[0].get("class").split(),
                len(rects) == 2,
                title.text if title is not None else "",
            )
        )
    return found


def numbers(picture, name):
    return [float(text.replace("\N{MINUS SIGN}", "-")) for text, *_ in cells(picture, name)]


def id_of(pair):
    return " and ".join(map(str, pair))


@every("pair", PAIRS, ids=id_of)
def test_shapes_fit_where_torch_says_so_and_the_message_is_torchs(pair):
    a, b = pair
    try:
        expected, message = tuple(torch.broadcast_shapes(a, b)), None
        torch.empty(a) + torch.empty(b)
    except RuntimeError:
        expected = None
        with pytest.raises(RuntimeError) as caught:
            torch.empty(a) + torch.empty(b)
        message = str(caught.value)
    assert align(a, b).result == expected
    assert expected is None or align(a, b).clash is None
    words = draw_broadcast(a, b).alt
    assert words.startswith("Fits" if message is None else "Does not fit.")
    assert message is None or message in words


def test_the_numbers_that_do_not_fit_are_framed():
    root = ElementTree.fromstring(draw_broadcast((3, 4), (3,)).svg)
    framed = [
        cell.find(f"{SVG}text").text
        for cell in root.iter(f"{SVG}g")
        if cell.find(f"{SVG}rect") is not None and cell.find(f"{SVG}rect").get("class") == "clash"
    ]
    assert framed == ["4", "3", "4 \N{NOT EQUAL TO} 3"]


def test_a_remedy_is_named_if_there_is_one():
    assert "b as (3, 1) would fit: b[..., None]" in draw_broadcast((3, 4), (3,)).alt
    assert "a as (3, 1) would fit" in draw_broadcast((3,), (3, 4)).alt
    assert "would fit" not in draw_broadcast((3,), (4,)).alt
    assert "would fit" not in draw_broadcast((2, 3), (4, 5)).alt


@every("pair", FITTING, ids=id_of)
def test_sources_and_summed_axes_agree_with_numpy(pair):
    result = np.broadcast_shapes(*pair)
    for shape in pair:
        x = np.arange(math.prod(shape)).reshape(shape)
        stretched = np.broadcast_to(x, result)
        for place in itertools.product(*map(range, result)):
            assert stretched[place] == x[source_of(place, shape)]
        # The copies of a number lie along a summed axis: NumPy's stride there is 0.
        new, old = summed_axes(shape, result)
        lie = [axis for axis in range(len(result)) if stretched.strides[axis] == 0 and result[axis] != 1]
        if 0 not in result:
            assert [axis for axis in new + old if result[axis] != 1] == lie


def test_a_one_that_stays_a_one_is_not_stretched():
    assert summed_axes((1, 4), (1, 4)) == ([], [])
    assert summed_axes((1, 4), (3, 1, 4)) == ([0], [])
    assert (
        "a: every number is used once, so its gradient is g, unchanged."
        in draw_broadcast((1, 4), (1, 1), backward=True).alt
    )


def test_all_but_one_use_of_each_number_are_drawn_as_copies():
    picture = draw_broadcast((3, 1), (4,))
    own = {
        name: [(place, text) for place, (text, classes, *_) in enumerate(cells(picture, name)) if "copy" not in classes]
        for name in "ab"
    }
    assert own == {"a": [(0, "1"), (4, "2"), (8, "3")], "b": [(0, "10"), (1, "20"), (2, "30"), (3, "40")]}


def test_forward_shows_the_stretched_numbers_and_the_result():
    for a, b in [(shapes[1:]) for shapes in EXAMPLES if align(*shapes[1:]).result is not None]:
        picture = draw_broadcast(a, b)
        result = np.broadcast_shapes(a, b)
        made_up = [np.arange(1, math.prod(shape) + 1).reshape(shape) for shape in (a, b)]
        made_up[1] = made_up[1] * 10 ** len(str(math.prod(a)))
        for name, numbers_of in zip("ab", made_up, strict=True):
            assert numbers(picture, name) == np.broadcast_to(numbers_of, result).ravel().tolist()
        assert numbers(picture, "a + b") == (made_up[0] + made_up[1]).ravel().tolist()


def test_backward_shows_the_gradients_of_torch():
    for a, b in [(shapes[1:]) for shapes in EXAMPLES if align(*shapes[1:]).result is not None]:
        picture = draw_broadcast(a, b, backward=True)
        result = np.broadcast_shapes(a, b)
        g = torch.tensor(numbers(picture, "g, the gradient of the result")).reshape(result)
        leaves = [torch.zeros(shape, requires_grad=True) for shape in (a, b)]
        (leaves[0] + leaves[1]).backward(g)
        for name, leaf in zip("ab", leaves, strict=True):
            assert numbers(picture, f"gradient of {name}") == leaf.grad.ravel().tolist()


def test_the_code_that_is_shown_computes_the_gradient():
    for a, b in FITTING:
        result = np.broadcast_shapes(a, b)
        if 0 in result:
            continue
        g = torch.tensor(np.random.default_rng(0).normal(size=result))
        leaves = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in (a, b)]
        (leaves[0] + leaves[1]).backward(g)
        sentences = draw_broadcast(a, b, backward=True).sentences[1:3]
        for sentence, shape, leaf in zip(sentences, (a, b), leaves, strict=True):
            code = sentence.split("`")[1]
            computed = eval(code, {"g": g.numpy()})
            assert computed.shape == shape
            np.testing.assert_allclose(computed, leaf.grad)


def test_a_number_is_followed_to_all_of_its_uses():
    forward = draw_broadcast((3, 1), (4,), follow="b", element=1)
    assert [place for place, cell in enumerate(cells(forward, "b")) if cell[2]] == [1, 5, 9]
    assert [text for text, _, ring, _ in cells(forward, "a + b") if ring] == ["21", "22", "23"]
    assert not any(ring for _, _, ring, _ in cells(forward, "a"))
    assert "The 20 in b is used 3 times" in forward.alt

    backward = draw_broadcast((3, 1), (4,), follow="b", element=1, backward=True)
    terms = [int(text) for text, _, ring, _ in cells(backward, "g, the gradient of the result") if ring]
    [total] = [int(text) for text, _, ring, _ in cells(backward, "gradient of b") if ring]
    assert len(terms) == 3
    assert sum(terms) == total
    assert f"is used 3 times: its gradient is the sum of 3 numbers of g, {' + '.join(map(str, terms))} = {total}." in (
        backward.alt
    )


def test_a_long_sum_is_described_by_its_first_eight_terms():
    picture = draw_broadcast((1,), (3, 4), follow="a", element=0, backward=True)
    terms = [int(text) for text, _, ring, _ in cells(picture, "g, the gradient of the result") if ring]
    assert len(terms) == 12
    assert f"12 numbers of g, {' + '.join(map(str, terms[:8]))} + ... = {sum(terms)}." in picture.alt


def test_an_element_beyond_the_last_is_the_last_and_one_use_is_once():
    assert "The 3 in a is used 4 times" in draw_broadcast((3, 1), (4,), follow="a", element=99).alt
    assert (
        "The 4 in a is used once: its gradient is one number of g."
        in draw_broadcast((2, 2), (2,), follow="a", element=3, backward=True).alt
    )


def test_arrays_bring_their_own_numbers_and_names():
    picture = draw_broadcast(np.array([[1.0], [2.5]]), np.array([1.0, 2.0]), names=("p", "t"), sign="-")
    assert numbers(picture, "p \N{MINUS SIGN} t") == [0.0, -1.0, 1.5, 0.5]
    assert [tip for *_, tip in cells(picture, "p \N{MINUS SIGN} t")][1] == "result[0, 1] = 1 \N{MINUS SIGN} 2"


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ((2, 2, 2, 3), (3,), "more than three axes"),
        ((100, 100), (100,), "10,000 cells are too many to look at"),
        ((0,), (1,), "there are no cells"),
        ((2, 9), (9,), "18 cells are too many"),
        ((13, 2), (2,), "26 cells are too many"),
    ],
)
def test_shapes_too_large_to_draw_are_described(a, b, words):
    for backward in (False, True):
        picture = draw_broadcast(a, b, backward=backward, follow="b")
        assert words in picture.alt
        assert 'class="grid"' not in picture.svg


@every(
    ("text", "shape"),
    [
        ("(3, 4)", (3, 4)), ("3,4", (3, 4)), ("3 4", (3, 4)), ("[3, 4]", (3, 4)), ("3x4", (3, 4)),
        (" ( 5 , ) ", (5,)), ("7", (7,)), ("()", ()), ("(0, 2)", (0, 2)), ("3 \N{MULTIPLICATION SIGN} 4", (3, 4)),
    ],
)  # fmt: skip
def test_shapes_as_people_type_them(text, shape):
    assert parse_shape(text) == shape


@every(
    ("text", "words"),
    [
        ("", "a is empty. Type a shape, such as (4, 1)"),
        ("   ", "a is empty"),
        ("three", "'three' is not a number"),
        ("(3, -1)", "'-1' is not a length: a whole number"),
        ("2.5", "'2.5' is not a length: a whole number"),
        ("3,,4", "lacks a length between two separators"),
        ("1 1 1 1 1 1 1", "has 7 axes; the picture has room for 6"),
        ("99999999999", "not too large"),
        ("<b>", "'<b>' is not a number"),
        ("(3, 4", None),
        ("\u0663", "not a number"),
    ],
)
def test_text_that_is_not_a_shape_gets_an_explanation(text, words):
    picture = explore_shapes(text, "(4,)")
    if words is None:  # a missing bracket is allowed
        assert picture.alt.startswith("Fits: (3, 4)")
        return
    assert words in picture.alt
    assert "<b>'" not in picture.html
    ElementTree.fromstring(picture.svg)


def test_the_explorer_follows_its_controls():
    panel = shape_explorer()
    assert panel.picture.alt.startswith("Fits: (3, 1) and (4,) give (3, 4).")
    panel.set(example=((2, 1, 4), (3, 1)))
    assert panel.controls["a"].value == "(2, 1, 4)"
    assert panel.picture.alt.startswith("Fits: (2, 1, 4) and (3, 1) give (2, 3, 4).")
    panel.set(view="backward", element=3)
    assert "The 30 in b is used 8 times: its gradient is the sum of 8 numbers" in panel.picture.alt
    panel.set(follow="a", a="(2, 1, 2)")
    assert "Does not fit" not in panel.picture.alt
    assert "The 3 in a is used 3 times" in panel.picture.alt
    panel.set(b="(3, 4)")
    assert "(2) must match the size of tensor b (4) at non-singleton dimension 2" in panel.picture.alt
    panel.set(b="oops")
    assert panel.picture.alt.startswith("b = 'oops' is not a shape")


def test_every_example_can_be_chosen():
    panel = shape_explorer()
    for _, a, b in EXAMPLES:
        panel.set(example=(a, b))
        assert f"{a} and {b}" in panel.picture.alt or "Does not fit" in panel.picture.alt


def test_the_picture_is_stored_with_its_words_and_escapes_them():
    data = draw_broadcast((3, 1), (4,), names=("<a>", "b"))._repr_mimebundle_()
    assert data["text/plain"].startswith("Fits: (3, 1) and (4,)")
    assert "<img alt=" in data["text/html"]
    assert "&lt;a&gt;: axis 1 is stretched from 1 to 4" in data["text/html"]
    assert "<a>" not in data["text/html"]


# -- sums over an axis ------------------------------------------------------------------------------------------------

CASES = [
    (shape, axis, keepdims)
    for shape, axes in (
        ((5,), (0, -1, None)),
        ((3, 4), (0, 1, -1, None, (0, 1))),
        ((2, 3, 4), (0, 1, 2, (0, 2), (1, 2), None)),
    )
    for axis, keepdims in itertools.product(axes, (False, True))
]


@every(("shape", "axis", "keepdims"), CASES, ids=str)
def test_the_sums_equal_numpys(shape, axis, keepdims):
    x = np.random.default_rng(0).integers(1, 50, size=shape).astype(float)
    picture = draw_sum(x, axis, keepdims)
    expected = x.sum(axis=axis, keepdims=keepdims)
    assert numbers(picture, "x") == x.ravel().tolist()
    assert numbers(picture, "sum") == expected.ravel().tolist()
    assert f"{shape} becomes {expected.shape}" in picture.alt


@every(("shape", "axis", "keepdims"), CASES, ids=str)
def test_the_ring_and_the_tones_show_what_is_added_up(shape, axis, keepdims):
    picture = draw_sum(shape, axis, keepdims)
    ringed = [float(text) for text, _, ring, _ in cells(picture, "x") if ring]
    [total] = [float(text) for text, _, ring, _ in cells(picture, "sum") if ring]
    assert sum(ringed) == total
    # Where each sum goes, found with NumPy: the sums of a one-hot array.
    tones = [classes for _, classes, *_ in cells(picture, "sum")]
    for place, (_, classes, ring, _) in enumerate(cells(picture, "x")):
        one = np.zeros(shape)
        one.flat[place] = 1
        to = int(one.sum(axis=axis, keepdims=keepdims).argmax())
        assert classes == tones[to]
        assert ring == (to == 0)


def test_neighbouring_sums_differ_in_tone():
    tones = [tuple(classes) for _, classes, *_ in cells(draw_sum((3, 4), 0), "sum")]
    assert all(left != right for left, right in itertools.pairwise(tones))


@pytest.mark.parametrize(("axis", "arrows"), [(0, 4), (1, 3), (None, 7)])
def test_arrows_show_the_direction_of_the_sum(axis, arrows):
    assert draw_sum((3, 4), axis).svg.count('class="arrow"') == arrows


def test_the_words_say_whether_the_axis_is_kept():
    words = draw_sum((3, 4), 1, keepdims=True).sentences
    assert words[0] == (
        "`x.sum(axis=1, keepdims=True)` walks along axis 1: (3, 4) becomes (3, 1), because axis 1 keeps the length 1."
    )
    assert words[1] == "The ring: 1 + 2 + 3 + 4 = 10. 3 sums of 4 each."
    assert draw_sum((3, 4)).sentences == [
        "`x.sum()` walks along axes 0 and 1: (3, 4) becomes (), because axes 0 and 1 are gone.",
        "The ring: 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + ... = 78. 1 sum of 12 numbers.",
    ]


@pytest.mark.parametrize(
    ("shape", "axis", "words"),
    [
        (
            (3, 4),
            2,
            "axis 2 is out of bounds for an array of 2 dimensions. (3, 4) has axes 0 and 1, or counted from the ",
        ),
        ((5,), -2, "axis -2 is out of bounds for an array of 1 dimensions. (5,) has axis 0"),
        ((2, 3, 4), (0, 3), "axis 3 is out of bounds"),
    ],
)
def test_an_axis_that_does_not_exist(shape, axis, words):
    with pytest.raises(np.exceptions.AxisError):
        np.zeros(shape).sum(axis=axis)
    assert words in draw_sum(shape, axis).alt


@pytest.mark.parametrize("shape", [(), (2, 2, 2, 2), (50, 50), (0, 3)])
def test_shapes_that_cannot_be_drawn_raise_an_error(shape):
    with pytest.raises(ValueError, match="expected one to three axes and few enough cells"):
        draw_sum(shape)
