"""The numbers that define a Qwen3: read from and written to a Hugging Face `config.json`."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Qwen3Config:
    """The architecture of one Qwen3, under Hugging Face's names.

    `head_dim` is a number of its own: in Qwen3 it need not be `hidden_size / num_attention_heads` (Qwen3-0.6B has 16
    heads of 128 on a hidden size of 1024). Each of the `num_key_value_heads` heads of keys and values serves
    `num_attention_heads / num_key_value_heads` query heads (grouped-query attention, Ainslie et al. 2023).

    Raises ValueError where the numbers do not fit each other.
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

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "bool":
                if not isinstance(value, bool):
                    raise ValueError(f"Qwen3Config.{field.name} is {value!r}; expected True or False.")
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"Qwen3Config.{field.name} is {value!r}; expected a positive number.")
            if field.type == "int" and not isinstance(value, int):
                raise ValueError(f"Qwen3Config.{field.name} is {value!r}; expected a whole number.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of num_key_value_heads "
                f"({self.num_key_value_heads}): each head of keys and values serves equally many query heads."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim is {self.head_dim}; rotary embeddings turn pairs of numbers, so it must be even."
            )

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Qwen3Config:
        """Read the content of a `config.json`, in the layout of published folders or of transformers >= 5.

        Published Qwen3 folders hold `rope_theta` at the top; transformers >= 5 writes it inside `rope_parameters`.
        Raises ValueError for another architecture, a missing number, or a feature this forward pass does not have.
        """
        if config.get("model_type", "qwen3") != "qwen3":
            raise ValueError(f"config.json describes a {config['model_type']!r} model; expected model_type 'qwen3'.")
        if config.get("quantization") or config.get("quantization_config"):
            raise ValueError(
                "config.json describes quantized weights; expected a model in float32, float16 or bfloat16."
            )
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) != "default":
            raise ValueError(
                f"config.json asks for scaled rotary embeddings ({rope}); only rope_type 'default' is supported."
            )
        if config.get("use_sliding_window"):
            raise ValueError(
                "config.json has use_sliding_window true; only full attention is supported. Set it to false."
            )
        if config.get("attention_bias"):
            raise ValueError("config.json has attention_bias true; Qwen3's projections have no biases.")
        if config.get("hidden_act", "silu") != "silu":
            raise ValueError(f"config.json has hidden_act {config['hidden_act']!r}; Qwen3 uses 'silu'.")
        values = {field.name: config[field.name] for field in fields(cls) if config.get(field.name) is not None}
        if "rope_theta" in rope:
            values["rope_theta"] = rope["rope_theta"]
        # A guessed number of these would load and then compute something else than was trained.
        required = [field.name for field in fields(cls) if field.default is MISSING] + ["rope_theta"]
        missing = [name for name in required if name not in values]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}.")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The content of a `config.json` that transformers (old and new) and mlx-lm read."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            **values,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "use_cache": True,
            "use_sliding_window": False,
        }
