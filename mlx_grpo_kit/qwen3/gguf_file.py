"""Reading of a GGUF, llama.cpp's format: its metadata, and its tensors as float32.

    "GGUF", the version, the number of tensors, the number of settings
    every setting: its name, its type, its value
    every tensor: its name, its shape (innermost axis first), its type, its place
    the tensors' bytes, from the next multiple of `general.alignment` on

All numbers are little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Every count is compared with
the size of the file before anything is read, so that a damaged file raises an error and takes no memory.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from mlx_grpo_kit.files import check_regular

ALIGNMENT = 32
MAX_DIMENSIONS = 4

# The types of numbers in metadata, by their ids; 8 is a string and 9 an array.
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


class Kind(NamedTuple):
    """A type of tensor.

    Attributes:
        name: as llama.cpp writes it.
        block: the number of values that are stored together.
        size: the bytes of such a block.
        decode: [blocks, size] uint8 -> [blocks, block] float32. All are exact but Q4_1, whose sum is rounded once.
    """

    name: str
    block: int
    size: int
    decode: Callable[[np.ndarray], np.ndarray]


def _half(blocks: np.ndarray, start: int) -> np.ndarray:
    """The float16 at this byte of every block, as [blocks, 1] float32."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(blocks: np.ndarray, start: int) -> np.ndarray:
    """[blocks, 32] numbers from 0 to 15: the lower halves of 16 bytes, then their upper halves."""
    packed = blocks[:, start : start + 16]
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


KINDS = {
    0: Kind("F32", 1, 4, lambda blocks: blocks.view("<f4")),
    1: Kind("F16", 1, 2, lambda blocks: blocks.view("<f2").astype(np.float32)),
    30: Kind("BF16", 1, 2, lambda blocks: (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)),
    8: Kind("Q8_0", 32, 34, lambda blocks: _half(blocks, 0) * blocks[:, 2:].view(np.int8)),
    2: Kind("Q4_0", 32, 18, lambda blocks: _half(blocks, 0) * (_nibbles(blocks, 2) - 8)),
    3: Kind("Q4_1", 32, 20, lambda blocks: _half(blocks, 0) * _nibbles(blocks, 4) + _half(blocks, 2)),
}
"""The types that are read here, by their ids in a file."""

# fmt: off
OTHER_KINDS = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}
"""The names of other types, for an error."""
# fmt: on


class Tensor(NamedTuple):
    """A tensor's place in the file; `shape` has the innermost axis last, as in NumPy."""

    kind: Kind
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) // self.kind.block * self.kind.size


class GGUF:
    """A GGUF whose header was read.

    Attributes:
        path: of the file.
        metadata: the settings by name; an array is a list.
        tensors: a `Tensor` by name.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it is not a GGUF, it is cut off or corrupt, or a tensor has a type that is not in `KINDS`.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        size = check_regular(self.path).st_size
        with self.path.open("rb") as file:
            header = _Header(file, size, self.path)
            _check_magic(header)
            num_tensors, num_settings = header.number("<Q"), header.number("<Q")
            header.check(num_settings, 13, "settings")  # a name's length, a type, a byte
            self.metadata = dict(header.setting() for _ in range(num_settings))
            if (parts := self.metadata.get("split.count", 1)) != 1:
                raise ValueError(
                    f"{self.path} is one of {parts} parts of a GGUF; expected a whole one. Join them: "
                    "llama-gguf-split --merge FIRST_PART WHOLE.gguf"
                )
            header.check(num_tensors, 24, "tensors")
            found = [header.tensor() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
            raise ValueError(f"{self.path} has general.alignment {alignment!r}; expected a positive whole number.")
        data = -(-header.place // alignment) * alignment
        self.tensors = {name: tensor._replace(start=data + tensor.start) for name, tensor in found}
        if len(self.tensors) < len(found):
            raise ValueError(f"{self.path} has two tensors of one name. It is corrupt; copy it again.")
        # Compared before a byte is read: tensors that share their bytes would fill more memory than the file has.
        last = max((tensor.start + tensor.nbytes for tensor in self.tensors.values()), default=0)
        if max(last, data + sum(tensor.nbytes for tensor in self.tensors.values())) > size:
            raise ValueError(
                f"{self.path} has {size:,} bytes, but its tensors reach to byte {last:,}. It is cut off; copy it again."
            )

    def read(self, name: str) -> np.ndarray:
        """A tensor as float32."""
        tensor = self.tensors[name]
        content = np.fromfile(self.path, np.uint8, tensor.nbytes, offset=tensor.start)
        if content.size < tensor.nbytes:
            raise ValueError(f"{self.path} became shorter while it was read. Copy it again.")
        with np.errstate(all="ignore"):  # a scale may be infinite or NaN
            return tensor.kind.decode(content.reshape(-1, tensor.kind.size)).reshape(tensor.shape)


def _check_magic(header: _Header) -> None:
    path, magic = header.path, header.take(4)
    if magic != b"GGUF":
        pointer = " It is the pointer of a file in Git LFS: git lfs pull." if magic == b"vers" else ""
        raise ValueError(f"{path} begins with {magic!r}; a GGUF begins with b'GGUF'.{pointer}")
    version = header.number("<I")
    if version not in (2, 3):
        is_big = int.from_bytes(version.to_bytes(4, "big"), "little") in (2, 3)
        kind = "big-endian" if is_big else f"of version {version}"
        raise ValueError(f"{path} is a GGUF {kind}; expected version 2 or 3, little-endian. Get or make another one.")


class _Header:
    """The part of a file before its tensors, read from its beginning to its end."""

    def __init__(self, file: BinaryIO, size: int, path: Path):
        self.file, self.size, self.path, self.place = file, size, path, 0

    def check(self, count: int, each: int, what: str) -> None:
        """Raise ValueError if the rest of the file has no room for `count` things of at least `each` bytes."""
        if count * each > self.size - self.place:
            raise ValueError(
                f"{self.path} names {count:,} {what} at byte {self.place:,}, and has {self.size:,} bytes. It is cut "
                "off or corrupt; copy it again."
            )

    def take(self, count: int) -> bytes:
        self.check(count, 1, "bytes")
        content = self.file.read(count)
        self.place += len(content)
        return content

    def number(self, kind: str) -> Any:
        (value,) = struct.unpack(kind, self.take(struct.calcsize(kind)))
        # 1e-6 was written as float32: its shortest decimal is the number that was meant.
        return float(str(np.float32(value))) if kind == "<f" else value

    def text(self) -> str:
        content = self.take(self.number("<Q"))
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.path} has a text that is not UTF-8 ({error}) before byte {self.place:,}. It is corrupt; copy "
                "it again."
            ) from error

    def setting(self) -> tuple[str, Any]:
        return self.text(), self._value(self.number("<I"))

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            kind, count = self.number("<I"), self.number("<Q")
            if kind == STRING:
                self.check(count, 8, "texts")
                return [self.text() for _ in range(count)]
            number = self._number_kind(kind)
            self.check(count, struct.calcsize(number), "numbers")
            return np.frombuffer(self.take(count * struct.calcsize(number)), number).tolist()
        return self.number(self._number_kind(kind))

    def _number_kind(self, kind: int) -> str:
        if kind not in NUMBERS:
            raise ValueError(
                f"{self.path} has a setting of type {kind} before byte {self.place:,}; expected a number, a text or a "
                "list of those. It is corrupt; copy it again."
            )
        return NUMBERS[kind]

    def tensor(self) -> tuple[str, Tensor]:
        name, dimensions = self.text(), self.number("<I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(
                f"{self.path} has a tensor {name!r:.80} of {dimensions} dimensions; expected 1 to {MAX_DIMENSIONS}."
            )
        shape = tuple(self.number("<Q") for _ in range(dimensions))[::-1]
        kind, start = self.number("<I"), self.number("<Q")
        if kind not in KINDS:
            known = ", ".join(each.name for each in KINDS.values())
            raise ValueError(
                f"{self.path} has tensor {name!r:.80} in type {OTHER_KINDS.get(kind, kind)}; expected {known}. Get a "
                "file of the model in one of those types, or convert this one: "
                "llama-quantize --allow-requantize FILE.gguf NEW.gguf F16"
            )
        if not math.prod(shape) or shape[-1] % KINDS[kind].block:
            raise ValueError(
                f"{self.path} has tensor {name!r:.80} with shape {shape}; expected rows of a multiple of "
                f"{KINDS[kind].block} numbers in type {KINDS[kind].name}. It is corrupt; copy it again."
            )
        return name, Tensor(KINDS[kind], shape, start)
