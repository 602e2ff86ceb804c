"""What TRL, PEFT and mlx-lm call things: each such name is refused with the kit's own, which there is."""

import dataclasses
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from mlx_grpo_kit.cli import main
from mlx_grpo_kit.cli.commands import build_parser
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.habits import HABITS, not_known

SETTINGS = {field.name for field in dataclasses.fields(GRPOConfig)}
# Names of earlier versions, of other classes (EarlyStoppingCallback, AutoModel, mlx-lm's lora section), and of people.
OTHERS = {
    "early_stopping_patience", "load_in_4bits", "logging_dir", "lora_parameters", "lora_rank", "max_length",
    "max_prompt_length", "reward_functions", "system_prompt", "torch_dtype", "warmup_ratio",
}  # fmt: skip


def options_of(package, file):
    """The options of a peer's command line, read from its source."""
    folder = Path(importlib.util.find_spec(package).origin).parent
    return {name.replace("-", "_") for name in re.findall(r'"--([a-z0-9-]+)"', (folder / file).read_text())}


def test_every_name_is_a_peers_and_none_is_ours():
    import trl

    names = {field.name for config in (trl.GRPOConfig, trl.ModelConfig) for field in dataclasses.fields(config)}
    names |= set(inspect.signature(trl.GRPOTrainer.__init__).parameters)
    names |= (
        options_of("mlx_lm", "lora.py") | options_of("mlx_lm", "generate.py") | options_of("mlx_lm_lora", "train.py")
    )
    assert set(HABITS) <= names | OTHERS
    assert not set(HABITS) & SETTINGS


def test_what_they_are_told_to_write_exists():
    options = {option for parser in build_parser()[1].values() for option in parser._option_string_actions}
    words = SETTINGS | {"mlx_grpo_kit", "load_pretrained", "load_tokenizer", "save_checkpoint", "save_pretrained"}
    words |= {"max_steps", "reward_funcs", "held_out_rows", "test_rows", "my_task", "mlx_lm"}
    for name, way in HABITS.items():
        assert set(re.findall(r"--[a-z][a-z-]+", way)) <= options, name
        assert set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", way)) <= words, name
        assert set(re.findall(r"trainer\.(\w+)", way)) <= set(dir(GRPOTrainer)), name


@pytest.mark.parametrize("name", HABITS)
def test_a_setting_by_another_name_is_refused_with_ours(name):
    with pytest.raises(TypeError, match=f"GRPOConfig has no setting '{name}'; here: {re.escape(HABITS[name])}"):
        GRPOConfig(**{name: 1})


def test_the_way_a_trainer_is_made_elsewhere_is_answered_with_the_way_here():
    with pytest.raises(TypeError, match=r"GRPOTrainer has no argument 'model'; here: config, params = load_pretrained"):
        GRPOTrainer(model="Qwen/Qwen3-0.6B", reward_funcs=[len], train_dataset=[])
    with pytest.raises(TypeError, match="no argument 'callbacks'; here: the trainer is an iterator"):
        GRPOTrainer(None, None, None, None, callbacks=[])
    with pytest.raises(TypeError, match=r"no argument 'arg'; did you mean args\?"):
        GRPOTrainer(None, None, None, None, arg=GRPOConfig())
    assert list(inspect.signature(GRPOTrainer).parameters)[:5] == ["config", "params", "tokenizer", "task", "args"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--report-to=wandb", "unknown option --report-to; here: the trainer is an iterator"),
        ("--iters", "unknown option --iters; here: trainer.train(max_steps=...) has it; --max-steps."),
        ("--bf16", "unknown option --bf16; here: --dtype bfloat16."),
        ("--max-step", "unknown option --max-step; did you mean --max-steps?"),
        ("--zzzzz", "unknown option --zzzzz; see --help."),
    ],
)
def test_an_option_by_another_name(option, words, capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["train", "--output", str(tmp_path / "out"), option, "5"])
    assert words in capsys.readouterr().err


def test_an_exact_habit_goes_before_a_near_miss():
    assert not_known("max_prompt_length", ["max_completion_length"]).startswith("here: a prompt is never cut")
    assert not_known("max_completion_lenght", ["max_completion_length"]) == "did you mean max_completion_length?"
    assert not_known("zzz", ["beta"]) == ""
