"""The numbers that define a Qwen3: read from and written to a Hugging Face `config.json`."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any

MAX_LAYERS = 1000
"""The limit for layers.

No Qwen3 has a tenth of it; with a million, just the parameters' names would fill the memory.
"""
MAX_ATTENTION_FACTOR = 1000
"""The limit for YaRN's attention_factor.

A text of 10^40 tokens would need 10; far beyond, attention is only rounding, then overflow.
"""

QUANTIZED_BITS, GROUP_SIZES = (2, 3, 4, 5, 6, 8), (32, 64, 128)
"""Bits per quantized number, and numbers per scale, that MLX supports."""

# name: hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, tie_word_embeddings. The other settings
# are the same in all of them.
PUBLISHED = {
    "0.6B": (1024, 3072, 28, 16, True),
    "1.7B": (2048, 6144, 28, 16, True),
    "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12288, 36, 32, False),
    "14B": (5120, 17408, 40, 40, False),
    "32B": (5120, 25600, 64, 64, False),
}


@dataclass(frozen=True)
class YarnScaling:
    """The settings of `rope_scaling` with rope_type "yarn" in a config.json, under Hugging Face's names.

    Their effect on the forward pass is in yarn.py.

    Attributes:
        factor: the maximum length of texts as a multiple of the training length; at least 1.
        original_max_position_embeddings: the training length, in tokens.
        attention_factor: the multiplier of queries and keys; None computes it from `factor` and the two mscales.
        beta_fast: a pair of numbers that makes at least this many rotations in a text of the training length keeps its
            speed.
        beta_slow: a pair that makes at most this many rotations rotates `factor` times slower; in between, a mixture.
        mscale: weight of `factor` in the numerator of attention_factor; used only together with mscale_all_dim.
        mscale_all_dim: its weight in the denominator.
        truncate: True to move the two ends of the mixture outwards to the next whole pair.

    Raises:
        ValueError: a number is out of range.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "truncate":
                if not isinstance(value, bool):
                    raise ValueError(f"YaRN's truncate is {value!r}; expected true or false.")
            elif not (value is None and field.default is None):
                _check_number(f"YaRN's {field.name}", value, whole=field.type == "int")
        if self.attention_factor is not None and self.attention_factor > MAX_ATTENTION_FACTOR:
            raise ValueError(
                f"YaRN's attention_factor is {self.attention_factor}; expected at most {MAX_ATTENTION_FACTOR}."
            )
        if self.factor < 1:
            raise ValueError(f"YaRN's factor is {self.factor}; expected at least 1.")
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"YaRN's beta_fast is {self.beta_fast}; expected more than beta_slow, which is {self.beta_slow}."
            )

    def to_dict(self) -> dict[str, Any]:
        """The content of `rope_scaling`, without settings at their defaults."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        usual = {field.name: field.default for field in fields(self)}
        return {"rope_type": "yarn"} | {name: value for name, value in values.items() if value != usual[name]}


@dataclass(frozen=True)
class Qwen3Config:
    """The architecture of one Qwen3, under Hugging Face's names.

    `head_dim` is independent of the other sizes: in Qwen3 it need not be `hidden_size / num_attention_heads`
    (Qwen3-0.6B has 16 heads of 128 on a hidden size of 1024). Each of the `num_key_value_heads` heads of keys and
    values is shared by `num_attention_heads / num_key_value_heads` query heads (grouped-query attention, Ainslie et al.
    2023). `rope_scaling` stretches rotary embeddings to longer texts; with None, Qwen3 is as it was trained.

    Raises:
        ValueError: a number is out of range, or the numbers contradict each other.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    max_position_embeddings: int = 32_768
    tie_word_embeddings: bool = False
    rope_scaling: YarnScaling | None = None

    def __post_init__(self):
        for field in fields(self):
            name, value = f"Qwen3Config.{field.name}", getattr(self, field.name)
            if field.type == "bool":
                if not isinstance(value, bool):
                    raise ValueError(f"{name} is {value!r}; expected True or False.")
            elif field.type in ("int", "float"):
                _check_number(name, value, whole=field.type == "int")
            elif not isinstance(value, YarnScaling | None):
                raise ValueError(f"{name} is {value!r}; expected a YarnScaling or None.")
        if self.num_hidden_layers > MAX_LAYERS:
            raise ValueError(
                f"Qwen3Config.num_hidden_layers is {self.num_hidden_layers}; expected at most {MAX_LAYERS}."
            )
        if self.rope_scaling is not None and self.rope_theta <= 1:
            raise ValueError(f"Qwen3Config.rope_theta is {self.rope_theta}; YaRN expects more than 1.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of num_key_value_heads "
                f"({self.num_key_value_heads}): each head of keys and values is shared by equally many query heads."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim is {self.head_dim}; rotary embeddings rotate pairs of numbers, so it must be even."
            )

    @classmethod
    def from_name(cls, name: str) -> Qwen3Config:
        """The configuration of a published dense Qwen3: "0.6B", "1.7B", "4B", "8B", "14B" or "32B".

        The numbers are those of the config.json in https://huggingface.co/Qwen/Qwen3-0.6B and its sisters.

        Raises:
            ValueError: there is no model with this name.
        """
        if name not in PUBLISHED:
            near = get_close_matches(str(name).upper(), PUBLISHED, n=1, cutoff=0.5)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"There is no published dense Qwen3 {name!r}.{guess} There are "
                f"{', '.join(map(repr, PUBLISHED))}; read any other from its folder with load_pretrained."
            )
        hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, tied = PUBLISHED[name]
        return cls(
            vocab_size=151_936,
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            num_hidden_layers=num_hidden_layers,
            num_attention_heads=num_attention_heads,
            num_key_value_heads=8,
            head_dim=128,
            max_position_embeddings=40_960,
            tie_word_embeddings=tied,
        )

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Qwen3Config:
        """Read the content of a `config.json`, in the layout of published folders or of transformers >= 5.

        Published Qwen3 folders have `rope_theta` at the top level; transformers >= 5 writes it inside
        `rope_parameters`. If `rope_scaling` exists too, it takes precedence, as in transformers.

        Raises:
            ValueError: another architecture, a missing number, or a feature that this forward pass does not support.
        """
        if config.get("model_type", "qwen3") != "qwen3":
            raise ValueError(
                f"config.json describes a {config['model_type']!r} model; expected model_type 'qwen3', the dense "
                "models Qwen3-0.6B to 32B and those fine-tuned from them. Train other models with TRL or mlx-lm-lora."
            )
        _check_quantization(config)
        if config.get("use_sliding_window"):
            raise ValueError(
                "config.json has use_sliding_window true; only full attention is supported. Set it to false."
            )
        if config.get("attention_bias"):
            raise ValueError("config.json has attention_bias true; Qwen3's projections have no biases.")
        if config.get("hidden_act", "silu") != "silu":
            raise ValueError(f"config.json has hidden_act {config['hidden_act']!r}; Qwen3 uses 'silu'.")
        values = {field.name: config[field.name] for field in fields(cls) if config.get(field.name) is not None}
        values |= _rope(config)
        # If these were guessed, the model would load but compute something other than it was trained for.
        required = [field.name for field in fields(cls) if field.default is MISSING] + ["rope_theta"]
        missing = [name for name in required if name not in values]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}.")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The content of a `config.json` that transformers (old and new) and mlx-lm read."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        scaling = values.pop("rope_scaling")
        rope = {"rope_type": "default"} if scaling is None else scaling.to_dict()
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            **values,
            **({} if scaling is None else {"rope_scaling": rope}),  # transformers 4 looks here
            "rope_parameters": {**rope, "rope_theta": self.rope_theta},
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "use_cache": True,
            "use_sliding_window": False,
        }


def _check_quantization(config: dict[str, Any]) -> None:
    """Raise ValueError for weights that are not quantized in mlx-lm's usual way, where sizes determine all else."""
    settings = config.get("quantization") or config.get("quantization_config")
    if not settings:
        return
    method = settings.get("quant_method") if isinstance(settings, dict) else settings
    if method or not isinstance(settings, dict):
        raise ValueError(
            f"config.json describes weights quantized by {method!r}; expected mlx-lm's own (python -m mlx_lm convert "
            "-q), or a model in float32, float16 or bfloat16."
        )
    kinds = [settings, *(each for each in settings.values() if isinstance(each, dict))]
    if other := [each["mode"] for each in kinds if each.get("mode", "affine") != "affine"]:
        raise ValueError(f"config.json describes weights quantized in mode {other[0]!r}; expected 'affine'.")
    for each in kinds:
        for name, expected in (("bits", QUANTIZED_BITS), ("group_size", GROUP_SIZES)):
            value = each.get(name)
            is_usual = value is None and each is not settings  # mlx-lm's mixed recipes leave this to MLX
            if not is_usual and (isinstance(value, bool) or value not in expected):
                raise ValueError(
                    f"config.json describes weights quantized with {name} {_shown(value)}; expected one of "
                    f"{', '.join(map(str, expected))}."
                )


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling`, as far as `config` contains them among the settings of rotary embeddings."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"config.json has {rope!r} for its rotary embeddings; expected an object.")
    settings = {name: value for name, value in rope.items() if value is not None}
    theta = {"rope_theta": settings.pop("rope_theta")} if "rope_theta" in settings else {}
    old_name = settings.pop("type", "default")
    rope_type = settings.pop("rope_type", old_name)
    if rope_type not in ("default", "yarn"):
        raise ValueError(
            f"config.json asks for scaled rotary embeddings of type {rope_type!r}; expected 'default' or 'yarn'."
        )
    known = {field.name for field in fields(YarnScaling)} if rope_type == "yarn" else set()
    if unknown := sorted(settings.keys() - known):
        raise ValueError(
            f"config.json has {unknown[0]!r} among the settings of its {rope_type!r} rotary embeddings, which this "
            f"forward pass does not know; expected {', '.join(sorted(known | {'rope_theta'}))}."
        )
    if rope_type == "default":
        return theta | {"rope_scaling": None}
    if "factor" not in settings:
        raise ValueError(f"config.json asks for YaRN without a factor ({rope}).")
    settings.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    return theta | {"rope_scaling": YarnScaling(**settings)}


def _check_number(name: str, value: object, whole: bool = False) -> None:
    """Raise ValueError unless `value` is a positive number in MLX's range: int32 for sizes, float32 for the rest."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or value == math.inf:
        raise ValueError(f"{name} is {_shown(value)}; expected a positive number.")
    if whole and not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}; expected a whole number.")
    if not (value < 2**31 if whole else 1.2e-38 <= value <= 3.4e38):
        bounds = "a number below 2^31" if whole else "a number from 1.2e-38 to 3.4e38, which float32 can hold"
        raise ValueError(f"{name} is {_shown(value)}; expected {bounds}.")


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 10**40:
        return "an integer of more than 40 digits"
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + " ..."
