"""The weights of a linear map in other forms than one array: quantized, and with a low-rank adapter.

Parameters stay a flat dictionary of arrays. In addition to "layers.0.mlp.up_proj.weight" [out, in] there may be, as in
mlx-lm,

    ....scales, .biases       [out, in / group_size]: then ".weight" is packed, uint32 [out, in * bits / 32]
    ....lora_a, .lora_b       [in, rank] and [rank, out]: then the map is x W^T + (x A) B

`matrix` finds the form. The sizes tell the number of bits per number and of numbers per scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlx_grpo_kit.qwen3.config import GROUP_SIZES, QUANTIZED_BITS
from mlx_grpo_kit.qwen3.kernels import quantized_product
from mlx_grpo_kit.runtime import mx

ADAPTER = (".lora_a", ".lora_b")
"""The endings of the names of an adapter's two arrays."""


@dataclass(frozen=True)
class QuantizedMatrix:
    """[out_features, in_features] in a few bits per number: groups in a row share a scale and a bias, as in MLX.

    `matrix[rows]` returns rows as ordinary numbers, for example for an embedding.
    """

    packed: mx.array
    scales: mx.array
    biases: mx.array
    in_features: int

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.packed.shape[0], self.in_features

    @property
    def dtype(self) -> mx.Dtype:
        """The dtype of the unpacked numbers."""
        return self.scales.dtype

    @property
    def bits(self) -> int:
        """Bits per packed number."""
        return self.packed.shape[-1] * 32 // self.in_features

    @property
    def group_size(self) -> int:
        """The number of elements that share a scale."""
        return self.in_features // self.scales.shape[-1]

    @property
    def is_whole(self) -> bool:
        """True if the three arrays match and MLX can compute with them."""
        rows, words = self.packed.shape
        groups = self.in_features // self.group_size if self.scales.shape[-1] else 0
        return (
            self.packed.dtype == mx.uint32
            and self.scales.shape == self.biases.shape == (rows, groups)
            and self.scales.dtype == self.biases.dtype
            and self.bits in QUANTIZED_BITS
            and self.group_size in GROUP_SIZES
            and words * 32 == self.in_features * self.bits
            and groups * self.group_size == self.in_features
        )

    def __getitem__(self, rows: mx.array | slice) -> mx.array:
        return mx.dequantize(
            self.packed[rows], self.scales[rows], self.biases[rows], group_size=self.group_size, bits=self.bits
        )


@dataclass(frozen=True)
class AdaptedMatrix:
    """W^T + A B, without ever computing the sum (LoRA, Hu et al. 2021, https://arxiv.org/abs/2106.09685)."""

    base: mx.array | QuantizedMatrix
    lora_a: mx.array
    lora_b: mx.array


Matrix = mx.array | QuantizedMatrix | AdaptedMatrix


def matrix(params: Mapping[str, mx.array], name: str, in_features: int) -> Matrix:
    """The linear map `name`, such as "layers.0.mlp.up_proj", in the form in which `params` have it."""
    base: Matrix = params[f"{name}.weight"]
    if f"{name}.scales" in params:
        base = QuantizedMatrix(base, params[f"{name}.scales"], params[f"{name}.biases"], in_features)
    if f"{name}.lora_a" in params:
        return AdaptedMatrix(base, *(params[name + end] for end in ADAPTER))
    return base


def linear(x: mx.array, weight: Matrix) -> mx.array:
    """x W^T: [..., in] -> [..., out]."""
    if isinstance(weight, AdaptedMatrix):
        return linear(x, weight.base) + (x @ weight.lora_a) @ weight.lora_b
    if isinstance(weight, QuantizedMatrix):
        return quantized_product(x, weight.packed, weight.scales, weight.biases, weight.group_size, weight.bits)
    return x @ weight.T
