"""The recipes for the training loop do what they say, and the table for users of TRL and mlx-lm names what exists."""

import ast
import dataclasses
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.backends import read_metadata
from mlx_grpo_kit.cli.parser import build_parser
from mlx_grpo_kit.course.book.website import GUIDES
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer

TEXTS = {guide.stem: guide.read_text(encoding="utf-8") for guide in GUIDES}
SECTION = re.search(r"^## Recipes for the loop\n(.*?)^## ", TEXTS["training"], flags=re.S | re.M)[1]
RECIPES = re.findall(r"```python\n(.*?)```", SECTION, flags=re.S)


def recipe(words):
    """The one recipe that has these words, of a few steps instead of hundreds."""
    [code] = [code for code in RECIPES if words in code]
    return re.sub(r"max_steps=\d00", "max_steps=4", code).replace("% 50", "% 1")


@pytest.fixture
def trainer(make_trainer):
    return make_trainer(learning_rate=1e-3)


def test_a_training_backend(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(.*?)```", TEXTS["backends"], flags=re.S)
    names = {}
    exec(code, names)
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert names["folder"] == Path("checkpoints/step_0010")
    assert read_metadata(names["folder"])["current_step"] == 10
    assert not names["backend"].poisoned


def test_json_lines(trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(recipe("metrics.jsonl"), {"trainer": trainer})
    lines = [json.loads(line, parse_constant=pytest.fail) for line in Path("metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert {"reward", "loss", "grad_norm", "learning_rate"} <= lines[0].keys()


def test_tensorboard(trainer, monkeypatch):
    """By a writer of the same form: torch's imports tensorboard, which is not installed here."""
    source = Path(importlib.util.find_spec("torch").origin).parent / "utils" / "tensorboard" / "writer.py"
    [add] = [node for node in ast.walk(ast.parse(source.read_text())) if getattr(node, "name", "") == "add_scalar"][-1:]
    assert [argument.arg for argument in add.args.args][:4] == ["self", "tag", "scalar_value", "global_step"]
    written = []

    class SummaryWriter:
        def __init__(self, log_dir=None):
            assert log_dir == "outputs/tensorboard"

        def add_scalar(self, tag, scalar_value, global_step=None):
            assert isinstance(tag, str)
            written.append((tag, float(scalar_value), global_step))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    exec(recipe("SummaryWriter"), {"trainer": trainer})
    assert [step for tag, _, step in written if tag == "reward"] == [1, 2, 3, 4]


def test_weights_and_biases(trainer, monkeypatch):
    logged = []
    run = SimpleNamespace(log=lambda data, step=None: logged.append((json.dumps(data), step)))

    def init(project=None, config=None):
        json.dumps(config)  # what its server gets
        assert config["learning_rate"] == 1e-3
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    exec(recipe("wandb"), {"trainer": trainer})
    assert [step for _, step in logged] == [1, 2, 3, 4]


def test_stopping_early_goes_back_to_the_best(trainer, monkeypatch):
    accuracies = iter([0.2, 0.5, 0.4, 0.9])
    monkeypatch.setattr(trainer, "evaluate", lambda: {"eval/accuracy": next(accuracies)})
    exec(recipe("break"), {"trainer": trainer})
    assert next(accuracies) == 0.9  # the loop was left at the third
    assert trainer.step == 2


def test_a_schedule_of_mlx(trainer):
    rates = []

    def train(max_steps):
        for step in GRPOTrainer.train(trainer, max_steps):
            rates.append(step.metrics["learning_rate"])
            yield step

    trainer.train = train
    exec(recipe("exponential_decay"), {"trainer": trainer})
    assert rates == pytest.approx([5e-4 * 0.99**step for step in range(4)], rel=1e-5)


def test_all_recipes_were_run():
    assert len(RECIPES) == 5


def test_what_those_are_told_who_come_from_elsewhere_is_there():
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", TEXTS["coming_from"], flags=re.M)[2:]
    assert len(rows) > 15
    parsers = build_parser()[1]
    options = {option for parser in parsers.values() for option in parser._option_string_actions}
    settings = {field.name for field in dataclasses.fields(GRPOConfig)}
    for _, ours in rows:
        code = " ".join(re.findall(r"`([^`]*)`", ours))
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]+", code)) <= options, ours
        assert set(re.findall(r"GRPOConfig\((\w+)=", code)) <= settings, ours
        assert set(re.findall(r"trainer\.(\w+)", code)) <= set(dir(GRPOTrainer)), ours
