"""The models of the benchmarks: shapes of Qwen3 and their random weights."""

from dataclasses import dataclass
from pathlib import Path

SHAPES = {
    "tiny": dict(
        vocab_size=64, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32,
    ),
    "m": dict(
        vocab_size=2048, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64,
    ),
    "0.6B": dict(
        vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """One set of weights for everybody: `folder` is a Hugging Face folder; a random one has a character tokenizer."""

    name: str
    folder: Path

    @property
    def vocab_size(self) -> int:
        return SHAPES[self.name]["vocab_size"]

    def kit(self):
        """(config, params)"""
        from mlx_grpo_kit.qwen3 import load_pretrained

        return load_pretrained(self.folder)

    def transformers(self):
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.folder)

    def mlx_lm(self):
        from mlx_lm.utils import load_model

        return load_model(self.folder)[0]
