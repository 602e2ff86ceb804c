"""The pictures of chapter 07: what is drawn for given images, guesses and slopes, and the sheet to paint on."""

import re

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from mlx_grpo_kit.course.chapters.chapter_07.pictures.digits import (
    BLUE,
    ORANGE,
    draw_confusion,
    draw_digits,
    draw_pixels,
    draw_reading,
)
from mlx_grpo_kit.course.chapters.chapter_07.pictures.paint import SPILL, PaintBox, dab
from mlx_grpo_kit.viz.style import COLORS

IMAGE = np.arange(12.0).reshape(3, 4) / 11


def texts(axis):
    return [text.get_text() for text in axis.texts]


def test_every_pixel_has_its_number_and_the_row_holds_them_in_order():
    figure, words = draw_pixels(IMAGE[None], "ramp")
    above, below = figure.axes
    assert texts(above) == [f"{number:.2f}".removeprefix("0") for number in IMAGE.ravel()]
    np.testing.assert_array_equal(above.images[0].get_array(), IMAGE)
    np.testing.assert_array_equal(below.images[0].get_array(), IMAGE.reshape(1, 12))
    assert [line.get_xdata()[0] for line in below.lines] == [3.5, 7.5]
    assert words.startswith("ramp. An image of 3 by 4 pixels")
    assert "6 are above one half" in words


def test_a_large_image_has_no_numbers():
    figure, _ = draw_pixels(np.zeros((28, 28)))
    assert texts(figure.axes[0]) == []


def test_numbers_on_ink_are_white():
    figure, _ = draw_pixels(np.array([[0.0, 1.0]]))
    assert [to_rgb(text.get_color()) == (1, 1, 1) for text in figure.axes[0].texts] == [False, True]


def test_mistakes_are_named_and_framed():
    figure, words = draw_digits(np.zeros((3, 1, 8, 8)), [4, 9, 5], [4, 7, 5], columns=2, title="three")
    axis = figure.axes[0]
    assert texts(axis) == ["4", "9, says 7", "5"]
    frames = [patch.get_edgecolor()[:3] == to_rgb(ORANGE) for patch in axis.patches]
    assert frames == [False, True, False]
    assert words == "three. 3 images of 8 by 8 pixels, labelled 4, 9, 5. 1 wrong: 9 taken for 7."
    tops = [image.get_extent()[3] for image in axis.images]
    assert tops[0] == tops[1] < tops[2]  # the third starts another row


@pytest.mark.parametrize("images", [np.zeros((8, 8)), np.zeros((2, 3, 8, 8))])
def test_images_of_another_shape_raise_an_error(images):
    with pytest.raises(ValueError, match=r"images have shape .*expected \[N, H, W\]"):
        draw_digits(images, [1, 2])


PROBABILITIES = np.array([0.0, 0.55, 0.002, 0.0, 0.0, 0.0, 0.0, 0.0, 0.4, 0.048])


def bars(chart):
    """The (width, colour) of each bar."""
    rects = re.findall(r'<rect x="318.0" [^>]*width="([0-9.]+)" [^>]*fill="(#\w+)"', chart.svg(""))
    return [(float(width), color) for width, color in rects]


def words_of(chart):
    return re.findall(r"<text[^>]*>([^<]*)</text>", chart.svg(""))


def test_the_bars_are_the_probabilities():
    chart, words = draw_reading(IMAGE, PROBABILITIES, 8)
    widths, colors = zip(*bars(chart), strict=True)
    np.testing.assert_allclose(np.array(widths) / max(widths), PROBABILITIES / PROBABILITIES.max(), atol=1e-3)
    assert [text for text in words_of(chart) if "%" in text] == ["55%", "40% right answer", "5%"]
    assert (colors[1], colors[8], colors[0]) == (COLORS[1], BLUE, COLORS[5])
    assert "it says 1; it is an 8" in words_of(chart)
    assert words == "The network says 1 with 55%; it is an 8. It gives the right answer 40%."
    [image] = chart.areas
    np.testing.assert_array_equal(image.numbers, IMAGE)
    assert (image.color(0), image.color(1)) == ("#ffffff", "#000000")


def test_a_right_answer_and_an_unknown_one():
    chart, words = draw_reading(IMAGE, PROBABILITIES, 1, title="x")
    assert "it says 1, which is right" in words_of(chart)
    assert words == "x. The network says 1 with 55%, which is right."
    assert draw_reading(IMAGE, PROBABILITIES)[1] == "The network says 1 with 55%."


@pytest.mark.parametrize(("sign", "verb", "mark"), [(1, "hurt", "+"), (-1, "help", "\N{MINUS SIGN}")])
def test_slopes_show_where_ink_hurts(sign, verb, mark):
    slope = np.zeros((3, 4))
    slope[1, 2], slope[0, 0] = sign * 2.0, -sign * 0.5
    chart, words = draw_reading(IMAGE, PROBABILITIES, 8, slope)
    assert words.endswith(f"most sensitive to the pixel in row 1, column 2, where more ink would {verb}.")
    shown = chart.areas[1]
    assert shown.written == [""] * 6 + [mark] + [""] * 5  # the weak slope has no sign of its own
    assert [shown.color(number) for number in (-2, 0, 2)] == [ORANGE, "#ffffff", BLUE]
    np.testing.assert_array_equal(shown.numbers, slope)


def test_the_confusion_matrix_counts():
    figure, words = draw_confusion([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 0], classes=3, title="t")
    axis = figure.axes[0]
    cells = {text.get_position(): text.get_text() for text in axis.texts}
    assert cells == {(0, 0): "2", (1, 0): "1", (1, 1): "2", (0, 2): "1"}  # (says, is)
    assert [text.get_weight() for text in axis.texts] == ["normal", "bold", "normal", "bold"]
    assert words == "t. 4 of 6 images are on the diagonal: the network read them correctly. Mistaken: 0 for 1, 2 for 0."
    assert draw_confusion([1], [1])[1].endswith("None is wrong.")


# -- the sheet --------------------------------------------------------------------------------------------------------


def test_a_dab_spills_to_the_four_neighbours():
    sheet = np.zeros((3, 3))
    expected = np.array([[0, SPILL, 0], [SPILL, 1, SPILL], [0, SPILL, 0]])
    np.testing.assert_array_equal(dab(sheet, 1, 1), expected)
    assert sheet.sum() == 0
    corner = dab(sheet, 0, 0)
    assert corner.sum() == 1 + 2 * SPILL
    assert corner[-1, -1] == 0
    many = sheet
    for _ in range(9):
        many = dab(many, 1, 1)
    assert many.max() == 1
    np.testing.assert_array_equal(dab(expected, 1, 1, erase=True)[1], [SPILL, 0, SPILL])


def recorded(image):
    recorded.images.append(image.copy())
    return draw_reading(image, PROBABILITIES, title=f"ink {image.sum():.1f}")


@pytest.fixture
def box():
    recorded.images = []
    start = np.zeros((3, 4))
    start[0, 3] = 0.5
    return PaintBox(recorded, start=start)


def button(box, label):
    return next(each for each in box.widget.children[0].children[2].children if each.description == label)


def test_painting_redraws_and_shades_the_pixels(box):
    assert box.picture.alt.startswith("ink 0.5.")
    box.paint(1, 1)
    np.testing.assert_array_equal(recorded.images[-1], box.image)
    assert box.image[1, 1] == 1
    assert box.picture.alt.startswith(f"ink {0.5 + 1 + 4 * SPILL:.1f}.")
    shades = {place: pixel.style.button_color for place, pixel in box._pixels.items()}
    assert (shades[1, 1], shades[2, 3], shades[0, 3]) == ("#000000", "#ffffff", "#808080")
    assert box._page.value == box.picture.html
    box.wipe(1, 1)
    assert box.image[1, 1] == 0
    box.clear()
    assert box.image.sum() == 0
    box.restart()
    assert box.image.sum() == 0.5
    assert repr(box) == box.picture.alt


def test_a_click_paints_or_wipes_and_the_buttons_clear(box):
    box._pixels[2, 0].click()
    assert box.image[2, 0] == 1
    box._tool.value = "eraser"
    box._pixels[2, 0].click()
    assert box.image[2, 0] == 0
    button(box, "Clear").click()
    assert box.image.sum() == 0
    button(box, "Start again").click()
    assert box.image[0, 3] == 0.5
    assert box._pixels[2, 0].tooltip == "row 2, column 0"


def test_a_sheet_is_stored_as_a_picture(box, outputs_of):
    widget, data = outputs_of(box)
    assert data["text/plain"] == box.picture.alt
    assert f'alt="{box.picture.alt}"' in data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in widget
    box.paint(0, 0)
    assert recorded.images[0].sum() == 0.5  # what was drawn before has not changed
