"""Fixtures: a separate progress file for every test, never the reader's."""

import pytest

from mlx_grpo_kit.course import record


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv(record.PLACE, str(tmp_path / "progress.json"))
    monkeypatch.setattr(record, "passed_here", {})
    monkeypatch.setattr(record, "_storing", True)
    monkeypatch.setattr("mlx_grpo_kit.course.desk.passed_here", record.passed_here)
    monkeypatch.setattr("mlx_grpo_kit.course.desk._opened", {})


@pytest.fixture(autouse=True)
def short_training(monkeypatch):
    """Let a training loop of chapter 24 pass as soon as it learns: its notebook runs to the end elsewhere."""
    monkeypatch.setattr("mlx_grpo_kit.course.chapters.chapter_24.training.WANTED", 0.5)


@pytest.fixture(scope="session")
def another_model(tmp_path_factory):
    """A Qwen3 folder as different from the shipped one as possible, with the same tokenizer, on which notebooks run.

    Three layers, untied, three query heads for each head of keys, a head size that is not the hidden size divided by
    the heads, sizes that are not powers of two, and norms that are not 1.
    """
    import numpy as np

    from mlx_grpo_kit.assets import TINY
    from mlx_grpo_kit.qwen3 import Qwen3Config, load_tokenizer, param_shapes, save_pretrained
    from mlx_grpo_kit.runtime import mx

    config = Qwen3Config(
        vocab_size=64, hidden_size=36, intermediate_size=50, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-5, rope_theta=700.0, max_position_embeddings=200,
        tie_word_embeddings=False,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    params = {
        name: mx.array((rng.normal(size=shape) * 0.2 + (len(shape) == 1)).astype(np.float32))
        for name, shape in param_shapes(config).items()
    }
    return save_pretrained(tmp_path_factory.mktemp("model") / "other", config, params, tokenizer=load_tokenizer(TINY))
