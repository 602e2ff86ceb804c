"""The line of `train` about the torch learner: where torch was measured to be faster, once, and nowhere else."""

import json
import platform
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.cli import main
from mlx_grpo_kit.cli import start as module
from mlx_grpo_kit.cli.start import faster_learner
from mlx_grpo_kit.grpo import GRPOConfig
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, save_pretrained
from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer, save_character_tokenizer
from mlx_grpo_kit.runtime import mx
from tests.benchmarks.models import SHAPES

SIZED = {name: replace(Qwen3Config(**shape), tie_word_embeddings=True) for name, shape in SHAPES.items()}
SIZED |= {"1.7B": Qwen3Config.from_name("1.7B"), "smaller": replace(SIZED["tiny"], num_hidden_layers=2)}


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    """A CPU on which both were measured, whatever the tests run on."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


def trainer(size="tiny", dtype=mx.float32, processes=1, **args):
    world = World()
    world.size = processes
    return SimpleNamespace(
        config=SIZED[size], args=GRPOConfig(**args), policy=SimpleNamespace(dtype=dtype), world=world
    )


@pytest.mark.parametrize("size", ["tiny", "m", "0.6B"])
def test_it_is_said_where_torch_was_faster(size):
    words = faster_learner(trainer(size), {})
    assert "--backend torch" in words
    assert "\n" not in words


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({"size": "1.7B"}, {}), ({"size": "smaller"}, {}), ({"lora_r": 8}, {"lora_r": 8}), ({"bf16": True}, {}),
        ({"dtype": mx.bfloat16}, {}), ({"gradient_checkpointing": True}, {}), ({"processes": 2}, {}),
        ({"backend": "torch"}, {"backend": "torch"}), ({}, {"backend": "mlx"}),
    ],
    ids=str,
)  # fmt: skip
def test_nothing_is_said_of_what_was_not_measured_or_was_chosen(settings, given):
    assert faster_learner(trainer(**settings), given) == ""


def test_nothing_is_said_on_another_machine_or_without_torch(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "arm64")
        assert faster_learner(trainer(), {}) == ""
    with monkeypatch.context() as patch:
        patch.setattr(module, "find_spec", lambda name: None)
        assert faster_learner(trainer(), {}) == ""
    assert faster_learner(trainer(), {}) != ""


def test_train_says_it_once_and_learns_with_mlx(tmp_path, capsys):
    save_character_tokenizer(tmp_path)
    config, output = SIZED["tiny"], tmp_path / "out"
    model = save_pretrained(
        tmp_path / "model", config, init_params(config, scale=0.1), tokenizer=load_tokenizer(tmp_path)
    )
    small = ["--max-steps", "1", "--eval-problems", "1", "--per-device-train-batch-size", "4", "--num-generations", "2"]
    again = ["train", "--output", str(output), "--max-steps", "2", "--resume"]
    start = ["train", "--output", str(output), "--model", str(model), *small]
    assert main(start) == 0
    assert capsys.readouterr().out.count("--backend torch") == 1
    assert json.loads((output / "run.json").read_text())["args"]["backend"] == "mlx"
    assert main(again) == 0
    assert "--backend torch" not in capsys.readouterr().out
    assert main([*start, "--overwrite", "--backend", "mlx"]) == 0
    assert "--backend torch" not in capsys.readouterr().out
