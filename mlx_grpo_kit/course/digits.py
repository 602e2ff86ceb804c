"""Handwritten digits for chapters 07 and 08: scikit-learn's small ones, or MNIST from your own files."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlx_grpo_kit.runtime.extras import packages_for

HELD_OUT = 360  # of scikit-learn's 1,797 images
FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
UNSIGNED_BYTES = 0x08  # the third byte of an IDX file: the type of the numbers that follow


@dataclass(frozen=True)
class Digits:
    """Images [N, 1, H, W] with values from 0 to 1 and labels [N] from 0 to 9, to train on and to test on."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    source: str

    def __repr__(self) -> str:
        height, width = self.train_images.shape[2:]
        return (
            f"{self.source}: {len(self.train_images):,} images of {height} x {width} to train on, "
            f"{len(self.test_images):,} to test on"
        )


def load_digits(folder: str | Path | None = None, dtype: type[np.floating] = np.float64) -> Digits:
    """The digits that come with scikit-learn (8 x 8 pixels, 1,437 and 360 of them), or those of `folder`.

    folder: contains MNIST's four IDX files, train-images-idx3-ubyte and so on, compressed (.gz) or not.
    Raises FileNotFoundError if one is missing, and ValueError if the content of one does not match its name.
    """
    dtype = np.dtype(dtype)
    if dtype.kind != "f":
        raise TypeError(f"load_digits: dtype is {dtype}; expected np.float32 or np.float64, for pixels from 0 to 1.")
    if folder is not None:
        parts = _mnist(Path(folder).expanduser())
        source, brightest = f"MNIST in {Path(folder).name}", 255
    else:
        with packages_for("load_digits"):
            from sklearn.datasets import load_digits as sklearn_digits

        images, labels = sklearn_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(images))  # the file is ordered by writer
        images, labels = images.reshape(-1, 8, 8)[order], labels[order]
        parts = {
            "train_images": images[HELD_OUT:],
            "train_labels": labels[HELD_OUT:],
            "test_images": images[:HELD_OUT],
            "test_labels": labels[:HELD_OUT],
        }
        source, brightest = "scikit-learn's digits", 16
    for name in ("train_images", "test_images"):
        parts[name] = (parts[name].astype(dtype) / dtype.type(brightest))[:, None]
    for name in ("train_labels", "test_labels"):
        parts[name] = parts[name].astype(np.int64)
    return Digits(**parts, source=source)


def shifted(images: np.ndarray, down: int = 0, right: int = 0) -> np.ndarray:
    """Images [..., H, W] moved down and right by some pixels (up and left below 0); paper, 0, fills the gap."""
    moved = np.zeros_like(images)
    height, width = images.shape[-2:]
    rows, columns = slice(max(down, 0), height + min(down, 0)), slice(max(right, 0), width + min(right, 0))
    from_rows, from_columns = slice(max(-down, 0), height - max(down, 0)), slice(max(-right, 0), width - max(right, 0))
    moved[..., rows, columns] = images[..., from_rows, from_columns]
    return moved


def _mnist(folder: Path) -> dict[str, np.ndarray]:
    parts = {name: read_idx(_found(folder, file)) for name, file in FILES.items()}
    for kind in ("train", "test"):
        images, labels = parts[f"{kind}_images"], parts[f"{kind}_labels"]
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"{folder}: the {kind} files hold images of shape {images.shape} and labels of shape "
                f"{labels.shape}; expected (N, height, width) and (N,)."
            )
        if not images.size:
            raise ValueError(f"{folder}: the {kind} files hold no images.")
        if labels.max(initial=0) > 9:
            raise ValueError(f"{folder}: the {kind} labels go up to {labels.max()}; expected digits from 0 to 9.")
    if parts["train_images"].shape[1:] != parts["test_images"].shape[1:]:
        raise ValueError(
            f"{folder}: the images to train on have shape {parts['train_images'].shape[1:]}, those to "
            f"test on {parts['test_images'].shape[1:]}; expected the same."
        )
    return parts


def _found(folder: Path, file: str) -> Path:
    # Some copies of MNIST have a dot in place of the last hyphen.
    names = [file, f"{file}.gz", file.replace("-idx", ".idx"), f"{file.replace('-idx', '.idx')}.gz"]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    missing = f"{folder} has no {file} or {file}.gz" if folder.is_dir() else f"{folder} is not a folder"
    raise FileNotFoundError(
        f"{missing}. load_digits(folder) expects MNIST's four files: "
        f"{', '.join(FILES.values())}. Without a folder it takes scikit-learn's digits."
    )


def read_idx(path: str | Path) -> np.ndarray:
    """The array of uint8 in an IDX file of unsigned bytes, such as those of MNIST, compressed with gzip or not.

    The format: two zero bytes, the type of the numbers, the number of axes, each axis's length in four bytes (the
    highest first), and the numbers (LeCun, Cortes and Burges, yann.lecun.com/exdb/mnist). Raises ValueError for any
    other file.
    """
    path = Path(path)
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file ({error}); copy it again.") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTES:
        raise ValueError(
            f"{path} does not begin like an IDX file of bytes (00 00 08 ..); it begins with "
            f"{content[:4].hex(' ') or 'nothing'}."
        )
    ndim = content[3]
    start = 4 + 4 * ndim
    if len(content) < start:
        raise ValueError(f"{path} ends within its header: it has {len(content):,} bytes of {start:,}. Copy it again.")
    shape = tuple(int(length) for length in np.frombuffer(content[4:start], ">u4"))
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise ValueError(
            f"{path} has {len(content):,} bytes; its header says shape {shape}, which is {expected:,}. Copy it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
