"""The digits of chapters 07 and 08: scikit-learn's data, MNIST's files, and other files."""

import gzip
import struct

import numpy as np
import pytest
from sklearn.datasets import load_digits as sklearn_digits

from mlx_grpo_kit.course.digits import FILES, load_digits, read_idx, shifted


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist(tmp_path):
    """A folder in MNIST's form with a few random images of 28 x 28."""
    rng = np.random.default_rng(0)
    arrays = {}
    for kind, count in (("train", 7), ("test", 3)):
        arrays[f"{kind}_images"] = rng.integers(0, 256, (count, 28, 28))
        arrays[f"{kind}_labels"] = rng.integers(0, 10, count)
    for name, file in FILES.items():
        (tmp_path / file).write_bytes(idx(arrays[name]))
    return tmp_path, arrays


def test_scikit_learns_digits_are_all_there_once():
    digits = load_digits()
    assert digits.train_images.shape == (1437, 1, 8, 8)
    assert digits.test_images.shape == (360, 1, 8, 8)
    assert (digits.train_images.min(), digits.train_images.max()) == (0, 1)
    images, labels = sklearn_digits(return_X_y=True)

    def listed(x, y):
        return sorted((tuple(image.ravel()), int(label)) for image, label in zip(x, y, strict=True))

    both = listed(
        np.concatenate([digits.train_images, digits.test_images]) * 16,
        np.concatenate([digits.train_labels, digits.test_labels]),
    )
    assert both == listed(images, labels)
    assert not np.array_equal(digits.test_labels, labels[:360])  # every writer is in both sets
    assert repr(digits) == "scikit-learn's digits: 1,437 images of 8 x 8 to train on, 360 to test on"


def test_every_digit_is_in_the_test_set():
    counts = np.bincount(load_digits().test_labels)
    assert len(counts) == 10
    assert counts.min() >= 25


def test_the_split_is_the_same_every_time_and_takes_a_dtype():
    np.testing.assert_array_equal(load_digits().test_labels, load_digits().test_labels)
    assert load_digits(dtype=np.float32).train_images.dtype == np.float32


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dot", [False, True])
def test_mnist_from_a_folder(mnist, packed, dot):
    folder, arrays = mnist
    for file in FILES.values():
        content = (folder / file).read_bytes()
        (folder / file).unlink()
        name = (file.replace("-idx", ".idx") if dot else file) + (".gz" if packed else "")
        (folder / name).write_bytes(gzip.compress(content) if packed else content)
    digits = load_digits(folder)
    for name, array in arrays.items():
        loaded = getattr(digits, name)
        expected = array[:, None] / 255 if "images" in name else array
        np.testing.assert_array_equal(loaded, expected)
    assert repr(digits).endswith("7 images of 28 x 28 to train on, 3 to test on")


def test_a_missing_file_is_named(mnist):
    folder, _ = mnist
    (folder / FILES["test_labels"]).unlink()
    with pytest.raises(FileNotFoundError, match=r"has no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte\.gz\. load"):
        load_digits(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it begins with nothing"),
        (b"<html>not found</html>", "it begins with 3c 68 74 6d"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 0]), "an IDX file of bytes"),
        (bytes([0, 0, 8, 3, 0, 0]), "ends within its header: it has 6 bytes of 16. Copy it again"),
        (idx(np.zeros((2, 3)))[:-1], r"has 17 bytes; its header says shape \(2, 3\), which is 18"),
        (idx(np.zeros((2, 3))) + b"x", r"has 19 bytes"),
        (gzip.compress(idx(np.zeros((2, 3))))[:-5], "not a whole gzip file"),
    ],
    ids=["empty", "html", "floats", "cut header", "cut", "too long", "cut gzip"],
)
def test_a_file_that_is_not_idx(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "file")


def test_files_that_do_not_belong_together(mnist):
    folder, _ = mnist
    (folder / FILES["train_labels"]).write_bytes(idx(np.zeros(5)))
    with pytest.raises(ValueError, match=r"train files hold images of shape \(7, 28, 28\) and labels of shape \(5,\)"):
        load_digits(folder)
    (folder / FILES["train_labels"]).write_bytes(idx(np.full(7, 12)))
    with pytest.raises(ValueError, match="the train labels go up to 12"):
        load_digits(folder)


def test_files_without_images_and_with_images_of_two_sizes(mnist):
    folder, _ = mnist
    (folder / FILES["test_images"]).write_bytes(idx(np.zeros((3, 20, 28))))
    with pytest.raises(ValueError, match=r"to train on have shape \(28, 28\), those to test on \(20, 28\)"):
        load_digits(folder)
    (folder / FILES["test_images"]).write_bytes(idx(np.zeros((0, 28, 28))))
    (folder / FILES["test_labels"]).write_bytes(idx(np.zeros(0)))
    with pytest.raises(ValueError, match="the test files hold no images"):
        load_digits(folder)


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a folder\. .* Without a folder it takes scikit"):
        load_digits(tmp_path / "nowhere")


def test_a_tilde_is_the_home_folder(mnist, monkeypatch):
    folder, _ = mnist
    monkeypatch.setenv("HOME", str(folder.parent))
    assert len(load_digits(f"~/{folder.name}").train_images) == 7


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32")])
def test_a_dtype_in_any_form(dtype):
    assert load_digits(dtype=dtype).train_images.dtype == np.float32


def test_pixels_are_floating_point():
    with pytest.raises(TypeError, match=r"dtype is int64; expected np\.float32"):
        load_digits(dtype=np.int64)


def test_shifted_images_lose_the_pixels_that_leave():
    image = np.array([[[[1.0, 2, 3], [4, 5, 6]]]])
    assert shifted(image).tolist() == image.tolist()
    assert shifted(image, down=1).tolist() == [[[[0, 0, 0], [1, 2, 3]]]]
    assert shifted(image, down=-1).tolist() == [[[[4, 5, 6], [0, 0, 0]]]]
    assert shifted(image, right=1).tolist() == [[[[0, 1, 2], [0, 4, 5]]]]
    assert shifted(image, down=1, right=-2).tolist() == [[[[0, 0, 0], [3, 0, 0]]]]
    assert shifted(image, right=3).sum() == 0
