"""Grids of small images, and the picture of a network in training."""

import numpy as np
import pytest

from mlx_grpo_kit.course.chapters.chapter_08.pictures.feature_maps import draw_feature_maps, draw_images

IMAGES = [np.array([[0.0, 1.0], [2.0, 4.0]]), np.array([[0.0, -8.0, 1.0]])]


def test_images_with_titles_and_numbers():
    figure, words = draw_images(IMAGES, ["one", "two\nlines"], numbers=True, words="two images", title="All")
    assert words == "two images"
    assert [axis.get_title() for axis in figure.axes] == ["one", "two\nlines"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["0", "1", "2", "4"]
    assert [text.get_text() for text in figure.axes[1].texts] == ["0", "-8", "1"]
    assert figure.texts[0].get_text() == "All"


def test_the_scale_is_each_images_own_or_one_for_all():
    plain, _ = draw_images(IMAGES, words="x")
    assert [axis.images[0].norm.vmax for axis in plain.axes] == [4, 1]
    assert [axis.images[0].norm.vmin for axis in plain.axes] == [0, 0]
    signed, _ = draw_images(IMAGES, words="x", signed=True)
    assert [(axis.images[0].norm.vmin, axis.images[0].norm.vmax) for axis in signed.axes] == [(-8, 8), (-8, 8)]


def test_rows_and_columns():
    figure, _ = draw_images(np.ones((5, 2, 2)), words="x", columns=3)
    boxes = [axis.get_position() for axis in figure.axes]
    left, top = [round(box.x0, 6) for box in boxes], [round(box.y1, 6) for box in boxes]
    assert left[0] == left[3] < left[1] == left[4] < left[2]
    assert top[0] == top[1] == top[2] > top[3] == top[4]


@pytest.mark.parametrize(
    ("images", "titles", "message"),
    [([], [], "got 0 images and 0 titles"), (IMAGES, ["one"], "got 2 images and 1 titles")],
)
def test_images_that_cannot_be_drawn_raise_an_error(images, titles, message):
    with pytest.raises(ValueError, match=message):
        draw_images(images, titles, words="x")


def test_the_network_in_training():
    maps = np.stack([np.full((4, 4), 2.0), np.full((4, 4), 0.02), np.zeros((4, 4))])
    figure, words = draw_feature_maps(
        np.eye(4), maps, losses=[2.0, 1.0, 0.5], accuracies=[(1, 0.1), (3, 0.975)], title="Step 3", steps=50
    )
    assert words == (
        "Step 3. A digit and 3 feature maps of it, 2 of them nearly empty. The loss went from 2.00 to "
        "0.50 in 3 steps. 97.5% of the held-out images are read correctly."
    )
    digit, grid = (np.ma.filled(axis.images[0].get_array(), np.nan) for axis in figure.axes if axis.images)
    assert np.array_equal(digit, np.eye(4))
    assert grid.shape == (4, 4 * 5 - 1)
    # The strongest map is black. One that is weak beside it stays pale: 0.02 of at least 0.3 * 2.
    assert np.all(grid[:, :4] == 1)
    assert grid[:, 5:9] == pytest.approx(np.full((4, 4), 0.02 / 0.6))
    assert np.all(grid[:, 10:14] == 0)
    assert np.all(np.isnan(grid[:, [4, 9, *range(14, 19)]]))
    loss, share = (axis for axis in figure.axes if not axis.images)
    assert loss.lines[0].get_ydata().tolist() == [2.0, 1.0, 0.5]
    assert share.lines[0].get_xydata().tolist() == [[1, 10], [3, 97.5]]
    assert loss.get_xlim() == share.get_xlim() == (0, 50)
    assert share.get_title(loc="right") == "97.5%"


def test_before_the_first_step_and_with_more_maps_than_places():
    figure, words = draw_feature_maps(np.eye(4), np.ones((20, 4, 4)))
    assert words == "A digit and 16 feature maps of it, 0 of them nearly empty."
    assert figure.axes[1].images[0].get_array().shape == (19, 19)  # 4 x 4 maps with a gap between
    assert np.nanmin(np.ma.filled(figure.axes[1].images[0].get_array(), np.nan)[::5, ::5]) == 1
