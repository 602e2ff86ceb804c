"""The numbers that define a Qwen3 or one of its relatives, from and for a Hugging Face `config.json`."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple

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


class Family(NamedTuple):
    """A family of models: the parts that it has and its relatives lack.

    Attributes:
        architecture: the name of its class in transformers.
        head_norms: True if queries and keys are normalised per head (QK-norm).
        biases: True if the maps to queries, keys and values have biases.
        features: entries of config.json for what the family could have in transformers and this forward pass lacks.
        derived: sizes that a config.json may lack, because transformers derives them from others.
        defaults: what transformers takes for other numbers that it lacks. Numbers without a default are required.
    """

    architecture: str
    head_norms: bool
    biases: bool
    features: tuple[str, ...]
    derived: tuple[str, ...]
    defaults: dict[str, float]


FEATURES = {
    "attention_bias": "only qwen2 has biases, on queries, keys and values alone",
    "mlp_bias": "no family that is supported has biases in its MLP",
    "use_sliding_window": "only full attention is supported. Set it to false",
}

FAMILIES = {
    "qwen3": Family("Qwen3ForCausalLM", True, False, ("attention_bias", "use_sliding_window"), (), {}),
    "qwen2": Family("Qwen2ForCausalLM", False, True, ("use_sliding_window",), ("head_dim",), {"rope_theta": 10_000.0}),
    "llama": Family(
        "LlamaForCausalLM",
        False,
        False,
        ("attention_bias", "mlp_bias"),
        ("head_dim", "num_key_value_heads"),
        {"rope_theta": 10_000.0, "max_position_embeddings": 2048},
    ),
}
"""The families by their `model_type`. The forward pass asks for none of this, only which weights are there."""

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "vocab_size", "max_position_embeddings", "tie_word_embeddings")  # fmt: skip
"""The columns of the two tables of published models."""
PUBLISHED = {
    "0.6B": (1024, 3072, 28, 16, 8, 151_936, 40_960, True),
    "1.7B": (2048, 6144, 28, 16, 8, 151_936, 40_960, True),
    "4B": (2560, 9728, 36, 32, 8, 151_936, 40_960, True),
    "8B": (4096, 12288, 36, 32, 8, 151_936, 40_960, False),
    "14B": (5120, 17408, 40, 40, 8, 151_936, 40_960, False),
    "32B": (5120, 25600, 64, 64, 8, 151_936, 40_960, False),
}
RELATIVES = {
    "Qwen2.5-0.5B": (896, 4864, 24, 14, 2, 151_936, 32_768, True),
    "Qwen2.5-1.5B": (1536, 8960, 28, 12, 2, 151_936, 131_072, True),
    "Qwen2.5-3B": (2048, 11008, 36, 16, 2, 151_936, 32_768, True),
    "Qwen2.5-7B": (3584, 18944, 28, 28, 4, 152_064, 131_072, False),
    "Llama-3.2-1B": (2048, 8192, 16, 32, 8, 128_256, 131_072, True),
    "Llama-3.2-3B": (3072, 8192, 28, 24, 8, 128_256, 131_072, True),
}


class RopeScaling:
    """The settings of `rope_scaling` in a config.json: a YarnScaling or a Llama3Scaling."""

    rope_type: ClassVar[str]
    method: ClassVar[str]

    def __post_init__(self):
        for field in fields(self):
            name, value = f"{self.method}'s {field.name}", getattr(self, field.name)
            if field.type == "bool":
                if not isinstance(value, bool):
                    raise ValueError(f"{name} is {value!r}; expected true or false.")
            elif not (value is None and field.default is None):
                _check_number(name, value, whole=field.type == "int")
        if self.factor < 1:
            raise ValueError(f"{self.method}'s factor is {self.factor}; expected at least 1.")

    def to_dict(self) -> dict[str, Any]:
        """The content of `rope_scaling`, without settings at their defaults."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        usual = {field.name: field.default for field in fields(self)}
        return {"rope_type": self.rope_type} | {name: value for name, value in values.items() if value != usual[name]}


@dataclass(frozen=True)
class YarnScaling(RopeScaling):
    """The settings of `rope_scaling` with rope_type "yarn" in a config.json, under Hugging Face's names.

    Their effect on the forward pass is in rope_scaling.py.

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

    rope_type, method = "yarn", "YaRN"

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.attention_factor is not None and self.attention_factor > MAX_ATTENTION_FACTOR:
            raise ValueError(
                f"YaRN's attention_factor is {self.attention_factor}; expected at most {MAX_ATTENTION_FACTOR}."
            )
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"YaRN's beta_fast is {self.beta_fast}; expected more than beta_slow, which is {self.beta_slow}."
            )


@dataclass(frozen=True)
class Llama3Scaling(RopeScaling):
    """The settings of `rope_scaling` with rope_type "llama3", under Hugging Face's names (see rope_scaling.py).

    Attributes:
        factor: how many times slower the slow pairs rotate; at least 1.
        low_freq_factor: a pair of numbers that makes fewer rotations than this in a text of the training length rotates
            `factor` times slower.
        high_freq_factor: a pair that makes more than this keeps its speed; in between, a mixture.
        original_max_position_embeddings: the training length, in tokens.

    Raises:
        ValueError: a number is out of range.
    """

    rope_type, method = "llama3", "Llama 3"

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self):
        super().__post_init__()
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"Llama 3's high_freq_factor is {self.high_freq_factor}; expected more than low_freq_factor, which is "
                f"{self.low_freq_factor}."
            )


ROPE_TYPES = {each.rope_type: each for each in (YarnScaling, Llama3Scaling)}


@dataclass(frozen=True)
class Qwen3Config:
    """The architecture of one Qwen3, or of a relative, under Hugging Face's names.

    `model_type` names the family: "qwen3", "qwen2" (Qwen2 and Qwen2.5: biases on queries, keys and values, and no
    QK-norm) or "llama" (Llama 2 and 3, SmolLM2: neither). `head_dim` is independent of the other sizes: in Qwen3 it
    need not be `hidden_size / num_attention_heads` (Qwen3-0.6B has 16 heads of 128 on a hidden size of 1024). Each of
    the `num_key_value_heads` heads of keys and values is shared by `num_attention_heads / num_key_value_heads` query
    heads (grouped-query attention, Ainslie et al. 2023). `rope_scaling` stretches rotary embeddings to longer texts.

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
    rope_scaling: RopeScaling | None = None
    model_type: str = "qwen3"

    def __post_init__(self):
        for field in fields(self):
            name, value = f"Qwen3Config.{field.name}", getattr(self, field.name)
            if field.type == "bool":
                if not isinstance(value, bool):
                    raise ValueError(f"{name} is {value!r}; expected True or False.")
            elif field.type in ("int", "float"):
                _check_number(name, value, whole=field.type == "int")
            elif name == "Qwen3Config.model_type":
                if value not in list(FAMILIES):
                    raise ValueError(f"{name} is {value!r}; expected {_families()}.")
            elif not isinstance(value, RopeScaling | None):
                raise ValueError(f"{name} is {value!r}; expected a YarnScaling, a Llama3Scaling or None.")
        if self.num_hidden_layers > MAX_LAYERS:
            raise ValueError(
                f"Qwen3Config.num_hidden_layers is {self.num_hidden_layers}; expected at most {MAX_LAYERS}."
            )
        if isinstance(self.rope_scaling, YarnScaling) and self.rope_theta <= 1:
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

    @property
    def family(self) -> Family:
        """The parts and defaults of this model's family."""
        return FAMILIES[self.model_type]

    @classmethod
    def from_name(cls, name: str) -> Qwen3Config:
        """The configuration of a published model: a dense Qwen3, a Qwen2.5 or a Llama 3.2.

        There are "0.6B", "1.7B", "4B", "8B", "14B" and "32B" (or "Qwen3-0.6B" and so on), "Qwen2.5-0.5B",
        "Qwen2.5-1.5B", "Qwen2.5-3B", "Qwen2.5-7B", "Llama-3.2-1B" and "Llama-3.2-3B". The numbers are those of the
        config.json in https://huggingface.co/Qwen/Qwen3-0.6B and its sisters.

        Raises:
            ValueError: there is no model with this name.
        """
        short, published = str(name).removeprefix("Qwen3-"), PUBLISHED | RELATIVES
        if short not in published:
            by_capitals = {each.upper(): each for each in published}
            near = get_close_matches(short.upper(), by_capitals, n=1, cutoff=0.5)
            guess = f" Did you mean {by_capitals[near[0]]!r}?" if near else ""
            raise ValueError(
                f"There is no published dense model {name!r}.{guess} There are {', '.join(map(repr, published))}; "
                "read any other from its folder with load_pretrained."
            )
        sizes = dict(zip(SIZES, published[short], strict=True))
        if short in PUBLISHED:
            return cls(**sizes, head_dim=128)
        sizes["head_dim"] = sizes["hidden_size"] // sizes["num_attention_heads"]
        if short.startswith("Qwen2.5"):
            return cls(**sizes, model_type="qwen2")
        return cls(
            **sizes,
            model_type="llama",
            rms_norm_eps=1e-5,
            rope_theta=500_000.0,
            rope_scaling=Llama3Scaling(32.0, 1.0, 4.0, 8192),
        )

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Qwen3Config:
        """Read the content of a `config.json`, in the layout of published folders or of transformers >= 5.

        Published folders have `rope_theta` at the top level; transformers >= 5 writes it inside `rope_parameters`. If
        `rope_scaling` exists too, it takes precedence, as in transformers. A Qwen2 or Llama without `head_dim` has
        `hidden_size / num_attention_heads`.

        Raises:
            ValueError: another architecture, a missing number, or a feature that this forward pass does not support.
        """
        model_type = config.get("model_type", "qwen3")
        if model_type not in list(FAMILIES):
            raise ValueError(
                f"config.json describes a {_shown(model_type)} model; expected model_type {_families()}: the dense "
                "models of Qwen3, Qwen2, Qwen2.5 and Llama 2 and 3, SmolLM2, and those fine-tuned from them. Train "
                "other models with TRL or mlx-lm-lora."
            )
        family = FAMILIES[model_type]
        _check_quantization(config)
        _check_features(config, family)
        values = {field.name: config[field.name] for field in fields(cls) if config.get(field.name) is not None}
        values = family.defaults | values | _rope(config) | {"model_type": model_type}
        # If these were guessed, the model would load but compute something other than it was trained for.
        required = [field.name for field in fields(cls) if field.default is MISSING] + ["rope_theta"]
        missing = [name for name in required if name not in values and name not in family.derived]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}.")
        values.setdefault("num_key_value_heads", values["num_attention_heads"])
        if "head_dim" not in values:
            values["head_dim"] = _head_dim(values["hidden_size"], values["num_attention_heads"])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The content of a `config.json` that transformers (old and new) and mlx-lm read."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        scaling = values.pop("rope_scaling")
        rope = {"rope_type": "default"} if scaling is None else scaling.to_dict()
        return {
            "architectures": [self.family.architecture],
            "model_type": values.pop("model_type"),
            **values,
            **({} if scaling is None else {"rope_scaling": rope}),  # transformers 4 looks here
            "rope_parameters": {**rope, "rope_theta": self.rope_theta},
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "use_cache": True,
            **dict.fromkeys(self.family.features, False),
        }


def _families() -> str:
    """The names of the families, for messages."""
    *most, last = map(repr, FAMILIES)
    return f"{', '.join(most)} or {last}"


def _check_features(config: dict[str, Any], family: Family) -> None:
    """Raise ValueError for parts of an architecture that the forward pass does not have."""
    for name in family.features:
        if config.get(name):
            raise ValueError(f"config.json has {name} true; {FEATURES[name]}.")
    layer_types = config.get("layer_types") or []
    if not isinstance(layer_types, list) or any(each != "full_attention" for each in layer_types):
        raise ValueError(
            f"config.json has layer_types {_shown(layer_types)}; expected 'full_attention' for every layer."
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(
            f"config.json has hidden_act {_shown(config['hidden_act'])}; expected 'silu', which Qwen3, Qwen2 and Llama "
            "have."
        )
    if config.get("partial_rotary_factor") not in (None, 1):
        raise ValueError(
            f"config.json has partial_rotary_factor {_shown(config['partial_rotary_factor'])}; expected rotary "
            "embeddings of whole heads."
        )


def _head_dim(hidden_size: object, num_attention_heads: object) -> int:
    """`head_dim` as transformers derives it for a Qwen2 or a Llama."""
    _check_number("Qwen3Config.hidden_size", hidden_size, whole=True)
    _check_number("Qwen3Config.num_attention_heads", num_attention_heads, whole=True)
    if hidden_size % num_attention_heads:
        raise ValueError(
            f"config.json lacks head_dim, and hidden_size ({hidden_size}) is not a multiple of num_attention_heads "
            f"({num_attention_heads})."
        )
    return hidden_size // num_attention_heads


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
    if rope_type not in ["default", *ROPE_TYPES]:
        raise ValueError(
            f"config.json asks for scaled rotary embeddings of type {rope_type!r}; expected 'default', 'yarn' or "
            "'llama3'."
        )
    scaling = ROPE_TYPES.get(rope_type)
    known = {field.name: field.default for field in fields(scaling)} if scaling else {}
    if unknown := sorted(settings.keys() - known):
        raise ValueError(
            f"config.json has {unknown[0]!r} among the settings of its {rope_type!r} rotary embeddings, which this "
            f"forward pass does not know; expected {', '.join(sorted(known.keys() | {'rope_theta'}))}."
        )
    if scaling is None:
        return theta | {"rope_scaling": None}
    settings.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    if missing := [name for name, default in known.items() if default is MISSING and name not in settings]:
        raise ValueError(f"config.json asks for {rope_type!r} rotary embeddings without a {missing[0]} ({rope}).")
    return theta | {"rope_scaling": scaling(**settings)}


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
