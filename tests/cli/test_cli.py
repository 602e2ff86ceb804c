"""The command line from end to end, on a model of a few thousand parameters that these tests make."""

import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import fields
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from rich.live import Live
from safetensors.numpy import load_file

from mlx_grpo_kit.cli import main
from mlx_grpo_kit.cli.display import RunDisplay, clock, sparkline
from mlx_grpo_kit.cli.parser import build_parser
from mlx_grpo_kit.cli.train import StopSignal
from mlx_grpo_kit.cli.typed import command_line
from mlx_grpo_kit.files import MANIFEST
from mlx_grpo_kit.grpo import LOSS_TYPES, GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.optimizer import OPTIMIZERS
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.grpo.recipe import TINY_ARGS, default_args
from mlx_grpo_kit.grpo.settings import rules_of
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, load_pretrained, load_tokenizer, save_pretrained
from mlx_grpo_kit.qwen3.tokenizer import save_character_tokenizer
from mlx_grpo_kit.runs.folder import RunFolder
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import RowsTask

# What a task may meet: the reward function does something to the process at its n-th call, as the environment says.
TASK = '''
import os, signal

from mlx_grpo_kit.tasks import Problem


class Digits:
    """Any answer that begins with a digit is right: a model without training gets some of them."""

    name, max_completion_length = "digits", 2

    def __init__(self):
        self.calls = 0
        self.reward_funcs = [self.correct, self.undecided]

    def correct(self, problems, completions):
        self.calls += 1
        wish, _, call = os.environ.get("DIGITS", "").partition("@")
        meant = os.environ.get("DIGITS_RANK") in (None, os.environ.get("MLX_RANK"))
        if wish and meant and self.calls == int(call):
            if wish == "nan":
                return [float("nan")] * len(problems)
            if wish == "bug":
                raise KeyError("a bug in a reward")
            for name in wish.split("+"):
                if name == "chdir":
                    os.chdir("/")
                elif name in ("1", "2"):  # the disk under standard output or standard error is full from now on
                    os.dup2(os.open("/dev/full", os.O_WRONLY), int(name))
                else:
                    os.kill(os.getpid(), getattr(signal, name))
        return [float(self.is_correct(p, c)) for p, c in zip(problems, completions, strict=True)]

    def undecided(self, problems, completions):
        return [None] * len(problems)

    def problem(self, n):
        return Problem(prompt=f"{n}*2=", answer=str(2 * n))

    def sample(self, rng, n):
        if os.environ.get("DIGITS") == "lost@0":
            raise KeyError("lost")
        return [self.problem(i) for i in rng.integers(0, 400, n)]

    def held_out(self, n):
        return [self.problem(400 + i) for i in range(n)]

    def is_correct(self, problem, completion):
        return completion[:1].isdigit()


class Half:
    name = "half"
'''
QUICK = ["--per-device-train-batch-size", "16", "--num-generations", "4", "--eval-problems", "8"]
QUICK += ["--learning-rate", "3e-3", "--lr-scheduler-type", "constant"]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A Qwen3 with random weights and a token for each character."""
    folder = tmp_path_factory.mktemp("model")
    save_character_tokenizer(folder)
    config = Qwen3Config(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    return save_pretrained(folder / "qwen3", config, init_params(config, scale=0.1), tokenizer=load_tokenizer(folder))


@pytest.fixture(scope="session")
def task(tmp_path_factory):
    """The name of a home-made task, importable here and in a subprocess."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "digits_task.py").write_text(TASK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield "digits_task:Digits"


@pytest.fixture(scope="session")
def straight(model, task, tmp_path_factory):
    """The folder of a run of `train` that nothing happened to."""
    output = tmp_path_factory.mktemp("straight") / "out"
    assert main(arguments(model, task, output)) == 0
    return output


@pytest.fixture
def train(model, task):
    """train(output, *options) -> exit status of a run of 8 steps with a checkpoint every 3."""

    def train(output, *options):
        return main(arguments(model, task, output, *options))

    return train


def arguments(model, task, output, *options):
    steps = ["--max-steps", "8", "--save-every", "3", "--eval-every", "3"]
    return ["train", "--model", str(model), "--task", task, "--output", str(output), *steps, *QUICK, *options]


def in_a_process(*options, **popen):
    command = [sys.executable, "-m", "mlx_grpo_kit", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **popen)


def lines_of(output, timed=False):
    text = (output / "metrics.jsonl").read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    return lines if timed else [{k: v for k, v in line.items() if k != "step_time"} for line in lines]


def checkpoints_of(output):
    return sorted(path.name for path in (output / "checkpoints").iterdir())


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The command line itself


def test_help_is_instant():
    code = """if True:
        import sys
        from mlx_grpo_kit.cli import main
        try: main(sys.argv[1:])
        except SystemExit as end: assert end.code == 0
        print(sorted({"mlx.core", "numpy", "torch", "rich", "matplotlib", "tokenizers"} & set(sys.modules)))"""
    for command in ([], ["--help"], ["train", "--help"]):
        result = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
        assert result.stdout.splitlines()[-1] == "[]"
        assert "usage: " in result.stdout


def test_every_setting_of_grpo_config_is_an_option_with_its_choices():
    options = {each.dest: each.help for each in build_parser()[1]["train"]._actions}
    rules = rules_of(GRPOConfig)
    assert [*rules] == [each.name for each in fields(GRPOConfig)]
    for name, rule in rules.items():
        assert rule.text.partition(". ")[0].rstrip(".") in options[name] or name == "bf16"
        assert ", ".join(rule.choices) in options[name]
    for name, table in (("loss_type", LOSS_TYPES), ("optim", OPTIMIZERS)):
        assert rules[name].choices == tuple(table)
    GRPOConfig(**TINY_ARGS)


def test_tools_may_have_no_limit(train, tmp_path, capsys):
    assert train(tmp_path / "out", "--tool-timeout", "none", "--max-steps", "1") == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["args"]["tool_timeout"] is None
    assert main(["train", "--output", str(tmp_path / "out"), "--resume", "--max-steps", "2"]) == 0
    for value in ("0", "inf", "None"):
        with pytest.raises(SystemExit):
            train(tmp_path / "other", "--tool-timeout", value)


def test_default_args_go_by_size(model, tmp_path):
    assert default_args(model) == TINY_ARGS
    (tmp_path / "config.json").write_text(json.dumps(Qwen3Config.from_name("0.6B").to_dict()))
    assert GRPOConfig(**default_args(tmp_path)).learning_rate == 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["trian"], "invalid choice: 'trian'"),
        (["train"], "required: --output"),
        (["train", "--output", "DIR", "--learning-rat", "1"], "--learning-rat; did you mean --learning-rate?"),
        (["train", "--learning-rat", "1"], "--learning-rat; did you mean --learning-rate?"),
        (["train", "--otput", "DIR"], "--otput; did you mean --output?"),
        (["fuse", "--adaptr=x"], "--adaptr; did you mean --adapter?"),
        (["generate", "--modle"], "--modle; did you mean --model?"),
        (["train", "extra"], "required: --output"),
        (["train", "--output", "DIR", "extra"], "unexpected argument 'extra'"),
        (["train", "--output", "DIR", "--max-steps", "0"], "--max-steps: 0 is too small; expected at least 1"),
        (["train", "--output", "DIR", "--max-steps", "many"], "'many' is not a whole number"),
        (["train", "--output", "DIR", "--learning-rate", "nan"], "'nan' is not a number"),
        (["train", "--output", "DIR", "--seed", "-1"], "-1 is out of range; expected 0 to 2^64 - 1"),
        (["generate", "--seed", str(2**64), "1+1="], "18446744073709551616 is out of range"),
        (["train", "--output", "DIR", "--resume", "--overwrite"], "not allowed with argument"),
        (["generate"], "required: TEXT"),
    ],
)
def test_a_command_line_that_makes_no_sense(options, words, capsys, tmp_path):
    options = [str(tmp_path / "out") if option == "DIR" else option for option in options]
    with pytest.raises(SystemExit) as end:
        main(options)
    assert end.value.code == 2
    assert_one_error_line(capsys.readouterr().err, words)


def assert_one_error_line(text, words):
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("error: ")
    assert words in lines[0]


# What it costs


def test_what_it_costs_may_change_at_a_resume_and_what_decides_may_not(model, task, tmp_path, capsys):
    output = tmp_path / "out"
    options = ["--optim", "adafactor", "--no-gradient-checkpointing", "--stop-strings", "=", "--stop-strings", "77"]
    assert main(arguments(model, task, output, "--max-steps", "3", *options)) == 0
    again = ["train", "--output", str(output), "--resume", "--max-steps", "4"]
    capsys.readouterr()
    assert main([*again, "--gradient-checkpointing", "--completion-batch-size", "8"]) == 0
    assert capsys.readouterr().out.startswith("Memory: about ")
    args = json.loads((output / "run.json").read_text())["args"]
    assert (args["gradient_checkpointing"], args["completion_batch_size"], args["optim"]) == (True, 8, "adafactor")
    assert args["stop_strings"] == ["=", "77"]
    for option, value, words in (
        ("--dtype", "bfloat16", "--dtype bfloat16 differs from the setting of the run in"),
        ("--optim", "adamw", "--optim adamw differs from the setting of the run in"),
        ("--stop-strings", "7", "--stop-strings ['7'] differs from the setting of the run in"),
    ):
        assert main([*again, option, value]) == 2
        assert words in capsys.readouterr().err


def test_torch_learns_the_same_run_and_mlx_goes_on_with_it(train, straight, tmp_path):
    output = tmp_path / "out"
    assert train(output, "--backend", "torch", "--max-steps", "5") == 0
    assert json.loads((output / "run.json").read_text())["args"]["backend"] == "torch"
    assert main(["train", "--output", str(output), "--resume", "--max-steps", "8", "--backend", "mlx"]) == 0
    ours, theirs = lines_of(output), lines_of(straight)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for name in other.keys() & {"reward", "loss", "grad_norm", "entropy", "completions/mean_length"}:
            assert [one[name]] == ([None] if other[name] is None else pytest.approx([other[name]], rel=1e-3, abs=1e-5))


def test_what_a_learner_cannot_do_is_refused_before_anything_is_written(train, tmp_path, capsys):
    for options, words in (
        (["--backend", "torch", "--gradient-checkpointing"], "gradient_checkpointing is set, which only MLX's learner"),
        (["--backend", "jax", "--dtype", "bfloat16"], "bf16 is set, which only MLX's learner"),
        (["--backend", "tensorflow"], "backend is 'tensorflow'; expected one of 'mlx', 'torch', 'jax'"),
    ):
        assert train(tmp_path / "out", *options) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_bfloat16_is_trained_in_with_a_warning(model, task, tmp_path, capsys):
    output = tmp_path / "out"
    assert main(arguments(model, task, output, "--max-steps", "1", "--dtype", "bfloat16")) == 0
    assert "warning: On a CPU bfloat16 takes about five times as long" in capsys.readouterr().err
    policy = load_pretrained(output / "policy", dtype=None)[1]
    assert {value.dtype for value in policy.values()} == {mx.bfloat16}


def test_a_machine_that_is_too_small_is_told(model, task, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mlx_grpo_kit.cli.start.machine_memory", lambda: 100_000)
    assert main(arguments(model, task, tmp_path / "out", "--max-steps", "1", "--optim", "adafactor")) == 0
    error = capsys.readouterr().err
    assert "This machine has 100 kB of memory: the run may be killed. To use less, try --gradient-checkp" in error
    assert "--optim adafactor" not in error


# A run


@pytest.fixture(scope="session")
def finished(model, tmp_path_factory):
    """The folder of a run of 30 steps that learned something, and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "digits_task.py").write_text(TASK)
    longer = ["--max-steps", "30", "--save-every", "10", "--eval-every", "10", "--eval-problems", "256"]
    longer += ["--learning-rate", "1e-2"]
    options = arguments(os.path.relpath(model, folder), "digits_task:Digits", "out", *longer)
    result = in_a_process(*options, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return SimpleNamespace(output=folder / "out", folder=folder, text=result.stdout)


def test_metrics_are_one_line_a_step(finished):
    lines = lines_of(finished.output, timed=True)
    assert [line["step"] for line in lines] == list(range(31))
    assert [line["step"] for line in lines if "eval/accuracy" in line] == [0, 10, 20, 30]
    names = "reward reward_std rewards/correct/mean frac_reward_zero_std completions/mean_length loss grad_norm entropy"
    assert all({*names.split(), "learning_rate", "step_time"} <= line.keys() for line in lines[1:])
    assert all(line["learning_rate"] == 1e-2 for line in lines[1:])
    assert all(line["rewards/undecided/mean"] is None for line in lines[1:])  # nothing was scored: NaN, so null
    assert lines[-1]["eval/accuracy"] > lines[0]["eval/accuracy"] + 0.3


def test_the_policy_is_the_last_checkpoint_s(finished, model):
    assert checkpoints_of(finished.output) == ["step-000020", "step-000030"]
    policy = load_file(finished.output / "policy" / "model.safetensors")
    saved = load_file(finished.output / "checkpoints" / "step-000030" / "model" / "model.safetensors")
    before = load_file(model / "model.safetensors")
    assert policy.keys() == before.keys()
    assert all((policy[name] == saved[name]).all() for name in policy)
    assert any((policy[name] != before[name]).any() for name in policy)
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= files_of(finished.output / "policy").keys()


def test_the_picture_is_a_png(finished):
    assert (finished.output / "reward.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_nothing_else_is_in_the_folder(finished):
    names = sorted(path.name for path in finished.output.iterdir())
    assert names == ["checkpoints", "completions.jsonl", "metrics.jsonl", "policy", "reward.png", "run.json"]


def test_the_settings_hold_in_whatever_folder_the_run_is_resumed_from(finished, model):
    settings = json.loads((finished.output / "run.json").read_text())
    assert (settings["model"], settings["task"], settings["max_steps"]) == (str(model), "digits_task:Digits", 30)
    assert GRPOConfig(**settings["args"]).learning_rate == 1e-2


def test_a_run_without_a_terminal_prints_plain_lines(finished):
    lines = lines_of(finished.output)
    assert "\x1b" not in finished.text
    steps = re.findall(r"step +(\d+)/30  reward (\S+)  held-out accuracy (\S+)  ", finished.text)
    assert steps == [(str(n), f"{lines[n]['reward']:.3f}", f"{lines[n]['eval/accuracy']:.3f}") for n in (10, 20, 30)]
    assert f"accuracy  {lines[0]['eval/accuracy']:.3f} -> {lines[-1]['eval/accuracy']:.3f}, " in finished.text
    assert "256 held-out problems" in finished.text


def test_the_commands_that_a_run_prints_work(finished):
    """They are given for the folder that the run was started in, and for a shell."""
    commands = dict(re.findall(r"^(Try it|Go on): +(.*)$", finished.text, re.MULTILINE))
    shell = {"shell": True, "cwd": finished.folder, "capture_output": True, "text": True, "check": True}
    completions = subprocess.run(commands["Try it"], **shell).stdout.splitlines()
    assert len(completions) == 4
    assert all(completion.startswith("400*2=") for completion in completions)
    assert sum(completion.removeprefix("400*2=")[:1].isdigit() for completion in completions) >= 2
    assert commands["Go on"].endswith("train --output out --resume --max-steps 60")


def test_a_terminal_gets_a_display_in_place_and_its_cursor_back(model, task, tmp_path):
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "mlx_grpo_kit", *arguments(model, task, tmp_path / "out")]
    process = subprocess.Popen(command, stdout=child, stderr=child, env=os.environ | {"TERM": "xterm", "COLUMNS": "90"})
    os.close(child)
    shown = b""
    while True:
        try:
            shown += os.read(parent, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
    os.close(parent)
    assert process.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "8/8" in text
    assert "on held-out problems (step 8)" in text
    assert "✓ right" in text or "✗ wrong" in text
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l") >= 0
    assert "Done: 8 of 8 steps." in text


# Resuming


def test_ctrl_c_saves_and_resume_goes_on_to_the_same_numbers(train, tmp_path, monkeypatch, capsys):
    straight, broken_off = tmp_path / "straight", tmp_path / "broken_off"
    settings = ["--lr-scheduler-type", "linear", "--num-iterations", "2", "--beta", "0.1"]
    assert train(straight, *settings) == 0
    monkeypatch.setenv("DIGITS", "SIGINT@6")  # in step 4: the evaluations before it are calls too
    assert train(broken_off, *settings) == 130
    out = capsys.readouterr().out
    assert "Stopped: 4 of 8 steps." in out
    assert f"train --output {broken_off} --resume\n" in out
    assert checkpoints_of(broken_off) == ["step-000003", "step-000004"]
    assert {"policy", "reward.png"} <= {path.name for path in broken_off.iterdir()}
    monkeypatch.delenv("DIGITS")

    assert main(["train", "--output", str(broken_off), "--resume"]) == 0
    assert lines_of(broken_off) == lines_of(straight)
    assert files_of(broken_off / "policy") == files_of(straight / "policy")
    assert checkpoints_of(broken_off) == checkpoints_of(straight) == ["step-000006", "step-000008"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_kill_leaves_a_run_that_can_be_resumed(model, task, straight, tmp_path):
    killed = tmp_path / "killed"
    result = in_a_process(*arguments(model, task, killed), env=os.environ | {"DIGITS": "SIGKILL@8"})
    assert result.returncode == -signal.SIGKILL
    assert [line["step"] for line in lines_of(killed)] == [0, 1, 2, 3, 4, 5]
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "rew')  # as if the kill had come in the middle of a line
    scratch = killed / "checkpoints" / ".step-000006.abcdefgh.tmp"  # ... and of a checkpoint
    (scratch / "new").mkdir(parents=True)
    (scratch / "mlx_grpo_kit.json").touch()
    (scratch / "new" / "optimizer.safetensors").write_text("half")

    assert main(["train", "--output", str(killed), "--resume"]) == 0
    assert lines_of(killed) == lines_of(straight)
    assert files_of(killed / "policy") == files_of(straight / "policy")
    assert checkpoints_of(killed) == checkpoints_of(straight)


def test_a_run_killed_before_its_first_checkpoint_starts_again(train, straight, tmp_path, monkeypatch, capsys):
    killed = tmp_path / "killed"
    monkeypatch.setattr(RunFolder, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert train(killed) == 130
    assert [line["step"] for line in lines_of(killed)] == [0, 1, 2, 3]
    monkeypatch.undo()
    capsys.readouterr()
    assert main(["train", "--output", str(killed), "--resume"]) == 0
    assert capsys.readouterr().err == f"warning: {killed} has no checkpoint yet, so its run starts again from step 0.\n"
    assert lines_of(killed) == lines_of(straight)


@pytest.mark.parametrize("damage", ["cut off", "lost", "empty"])
def test_resume_passes_over_a_broken_checkpoint(train, straight, tmp_path, damage, monkeypatch, capsys):
    output = tmp_path / "out"
    monkeypatch.setenv("DIGITS", "SIGINT@6")
    assert train(output) == 130
    monkeypatch.delenv("DIGITS")
    newest = output / "checkpoints" / "step-000004"
    if damage == "empty":
        for path in sorted(newest.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    elif damage == "lost":
        (newest / "optimizer.safetensors").unlink()
    else:
        os.truncate(newest / "model" / "model.safetensors", 1000)
    capsys.readouterr()

    assert main(["train", "--output", str(output), "--resume"]) == 0
    warning = capsys.readouterr().err
    assert warning.startswith("warning: step-000004 is skipped: ")
    assert warning.count("\n") == 1
    assert lines_of(output) == lines_of(straight)
    assert checkpoints_of(output) == ["step-000006", "step-000008"]


def test_no_good_checkpoint_at_all(straight, tmp_path, capsys):
    output = shutil.copytree(straight, tmp_path / "out")
    for folder in (output / "checkpoints").iterdir():
        (folder / "trainer_state.json").write_text("{")
    before = files_of(output)
    capsys.readouterr()
    assert main(["train", "--output", str(output), "--resume"]) == 2
    *warnings, error = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    assert_one_error_line(error, "No checkpoint in")
    assert files_of(output) == before


def test_resume_of_a_finished_run_does_nothing_and_more_steps_go_on(train, straight, tmp_path, capsys):
    output, longer = shutil.copytree(straight, tmp_path / "out"), tmp_path / "longer"
    before = files_of(output)
    assert main(["train", "--output", str(output), "--resume"]) == 0
    assert {name: data for name, data in files_of(output).items() if name != "reward.png"} == {
        name: data for name, data in before.items() if name != "reward.png"
    }

    assert main(["train", "--output", str(output), "--resume", "--max-steps", "11"]) == 0
    assert train(longer, "--max-steps", "11") == 0
    lines = lines_of(output)
    for name in [name for name in lines[8] if name.startswith("eval/")]:
        lines[8].pop(name)  # measured because it was the last step then
    assert lines == lines_of(longer)
    capsys.readouterr()
    assert main(["train", "--output", str(output), "--resume", "--max-steps", "10"]) == 2
    assert_one_error_line(capsys.readouterr().err, "--max-steps is 10, but the run in")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--loss-type", "grpo"), ("--beta", "0.1"), ("--num-generations", "8"), ("--seed", "1"), ("--model", "tiny"),
        ("--task", "addition"), ("--mask-truncated-completions", None),
    ],
)  # fmt: skip
def test_resume_with_other_settings(finished, option, value, capsys):
    before = files_of(finished.output)
    given = [option] if value is None else [option, value]
    assert main(["train", "--output", str(finished.output), "--resume", *given]) == 2
    assert_one_error_line(capsys.readouterr().err, f"{option} {value or True} differs from the setting of the run in")
    assert files_of(finished.output) == before


def test_a_longer_run_says_where_its_learning_rate_goes_on(train, straight, tmp_path, capsys):
    output = tmp_path / "out"
    assert train(output, "--lr-scheduler-type", "cosine", "--max-steps", "2", "--eval-every", "9") == 0
    assert "Learning rate" not in capsys.readouterr().out
    assert main(["train", "--output", str(output), "--resume", "--max-steps", "6"]) == 0
    words = "Learning rate: cosine over all 6 steps, so it continues at 0.00225 (the previous step had 0.0015)"
    assert words in capsys.readouterr().out
    shares = [line["learning_rate"] / 3e-3 for line in lines_of(output)[1:]]
    assert shares[:4] == pytest.approx([1, 1 / 2, 3 / 4, 1 / 2])  # from the third step on those of the longer run
    shutil.copytree(straight, tmp_path / "constant")
    assert main(["train", "--output", str(tmp_path / "constant"), "--resume", "--max-steps", "9"]) == 0
    assert "Learning rate" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["12+34=", "", "it's\na\t\\ line\r", "Größe: \u2028 \x1b[1m\x07", '$HOME `ls` "a"\n\x7f']
)
def test_what_is_to_be_typed_is_one_line(text):
    command = command_line("generate", text)
    assert len(command.splitlines()) == 1
    assert command.isprintable()
    *_, typed = subprocess.run(
        ["bash", "-c", f"set -- {command}; printf '%s\\0' \"$@\""], capture_output=True, check=True,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    ).stdout.split(b"\0")[:-1]  # fmt: skip
    assert typed.decode() == text


def test_resume_where_no_run_is(tmp_path, capsys):
    assert main(["train", "--output", str(tmp_path / "none"), "--resume"]) == 2
    assert_one_error_line(capsys.readouterr().err, "contains no run to resume")
    (tmp_path / "run.json").write_text('{"model": 1}')
    assert main(["train", "--output", str(tmp_path), "--resume"]) == 2
    assert_one_error_line(capsys.readouterr().err, "run.json cannot be read")


def test_sigterm_saves_too(train, tmp_path, monkeypatch):
    monkeypatch.setenv("DIGITS", "SIGTERM@3")
    assert train(tmp_path / "out") == 143
    assert checkpoints_of(tmp_path / "out") == ["step-000002"]


def test_a_reader_that_goes_away_stops_the_run_like_ctrl_c(model, task, tmp_path):
    output = tmp_path / "out"
    command = [sys.executable, "-m", "mlx_grpo_kit", *arguments(model, task, output, "--max-steps", "100000")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("Memory: about ")
    assert process.stdout.readline().startswith("measuring accuracy")
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(60) == 128 + signal.SIGPIPE
    done = lines_of(output)[-1]["step"]
    assert checkpoints_of(output)[-1] == f"step-{done:06d}"
    assert "The output is no longer read. Stopping after this step." in err
    assert f"Stopped: {done} of 100000 steps." in err
    assert f"train --output {output} --resume" in err


@pytest.mark.parametrize("full", ["1", "1+2"])
def test_a_full_disk_under_the_log_does_not_end_the_run(full, model, task, straight, tmp_path):
    """With 2 the log has both standard output and standard error."""
    output = tmp_path / "out"
    result = in_a_process(*arguments(model, task, output), env=os.environ | {"DIGITS": f"{full}@3"})
    assert result.returncode == 0
    assert lines_of(output) == lines_of(straight)
    assert files_of(output / "policy") == files_of(straight / "policy")
    if full == "1":
        assert (
            "Standard output cannot be written (No space left on device); its lines go to standard error."
            in result.stderr
        )
        assert "Done: 8 of 8 steps." in result.stderr


def test_ctrl_c_with_a_full_disk_under_the_log_saves_too(model, task, tmp_path):
    output = tmp_path / "out"
    result = in_a_process(*arguments(model, task, output), env=os.environ | {"DIGITS": "1+2+SIGINT@6"})
    assert result.returncode == 130
    assert checkpoints_of(output) == ["step-000003", "step-000004"]


def test_a_task_that_changes_the_folder_takes_nothing_with_it(model, task, straight, tmp_path):
    options = arguments(model, task, "out")
    result = in_a_process(*options, cwd=tmp_path, env=os.environ | {"DIGITS": "chdir@3"})
    assert (result.returncode, result.stderr) == (0, "")
    assert lines_of(tmp_path / "out") == lines_of(straight)
    assert "train --output out --resume --max-steps 16" in result.stdout


@pytest.mark.parametrize("name", ["-dash", "--help"])
def test_the_printed_commands_work_for_a_folder_whose_name_begins_with_a_dash(
    name, model, task, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    options = arguments(model, task, "unused", "--max-steps", "2")
    options = [f"--output={name}" if option == "unused" else option for option in options if option != "--output"]
    assert main(options) == 0
    commands = dict(re.findall(r"^(Try it|Go on): +(.*)$", capsys.readouterr().out, re.MULTILINE))
    for command in commands.values():
        words = shlex.split(command)
        assert main(words[words.index("mlx_grpo_kit") + 1 :]) == 0
    assert lines_of(tmp_path / name)[-1]["step"] == 4


def test_a_second_ctrl_c_quits_at_once(train, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DIGITS", "SIGINT+SIGINT@7")
    output = tmp_path / "out"
    assert train(output) == 130
    assert [line["step"] for line in lines_of(output)] == [0, 1, 2, 3, 4]
    assert checkpoints_of(output) == ["step-000003"]
    assert not (output / "policy").exists()
    words = capsys.readouterr().err
    assert "Stopped at once. Go on from step-000003: " in words
    assert words.endswith(f"train --output {output} --resume\n")


def test_ctrl_c_before_the_first_step_leaves_nothing(train, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DIGITS", "SIGINT@1")
    assert train(tmp_path / "out") == 130
    assert not (tmp_path / "out").exists()
    assert "nothing was written" in capsys.readouterr().out


def test_ctrl_c_in_a_process_of_its_own(model, task, tmp_path):
    """The signal from outside, at whatever moment it comes."""
    output = tmp_path / "out"
    command = [sys.executable, "-m", "mlx_grpo_kit", *arguments(model, task, output, "--max-steps", "100000")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (output / "checkpoints").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "Stopping after this step; Ctrl-C again quits at once.\n"
    done = lines_of(output)[-1]["step"]
    assert f"Stopped: {done} of 100000 steps." in out
    assert checkpoints_of(output)[-1] == f"step-{done:06d}"


# Several processes


def in_processes(model, task, output, *options, **environment):
    return in_a_process(*arguments(model, task, output, "--processes", "2", *options), env=os.environ | environment)


def assert_same_to_rounding(output, straight):
    for pair in zip(lines_of(output), lines_of(straight), strict=True):
        line, expected = ({name: math.nan if x is None else x for name, x in line.items()} for line in pair)
        assert line == pytest.approx(expected, rel=1e-3, abs=1e-6, nan_ok=True)


def test_two_processes_give_the_run_of_one_and_one_goes_on_with_it(model, task, straight, tmp_path):
    output = tmp_path / "out"
    result = in_processes(model, task, output, "--max-steps", "6")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("Done: 6 of 6 steps.") == 1
    assert "--resume --processes 2 --max-steps 12" in result.stdout
    assert main(["train", "--output", str(output), "--resume", "--max-steps", "8", "--processes", "1"]) == 0
    assert_same_to_rounding(output, straight)


@pytest.mark.parametrize(("rank", "saved"), [(0, ["000003"]), (1, ["000003", "000005"])])
def test_a_process_that_is_killed_ends_the_run_and_is_named(rank, saved, model, task, straight, tmp_path):
    """In step 6, after two evaluations. The first process, if it lives on, saves step 5."""
    output = tmp_path / "out"
    result = in_processes(model, task, output, DIGITS="SIGKILL@8", DIGITS_RANK=str(rank))
    assert result.returncode == 1
    assert_one_error_line(result.stderr, f"Process {rank} of 2")
    assert "was killed by SIGKILL" in result.stderr
    go_on = result.stderr.partition(f"Go on from step-{saved[-1]}: ")[2]
    assert shlex.split(go_on)[-2:] == ["--processes", "2"]
    assert checkpoints_of(output) == [f"step-{step}" for step in saved]
    result = in_a_process(*shlex.split(go_on)[3:])
    assert (result.returncode, result.stderr) == (0, "")
    assert_same_to_rounding(output, straight)


def test_a_reward_that_fails_in_one_process_keeps_what_all_have_learned(model, task, tmp_path):
    result = in_processes(model, task, tmp_path / "out", DIGITS="bug@7", DIGITS_RANK="1")
    assert result.returncode == 1
    assert_one_error_line(result.stderr, "raised KeyError: 'a bug in a reward'")
    assert "Go on from step-000004" in result.stderr


def test_groups_that_cannot_be_shared(model, task, tmp_path):
    result = in_processes(model, task, tmp_path / "out", "--per-device-train-batch-size", "12")
    assert result.returncode == 2
    assert_one_error_line(result.stderr, "3 groups of 4 completions, which do not divide evenly among 2 processes")
    assert "All processes together learn from per_device_train_batch_size * " in result.stderr
    assert not (tmp_path / "out").exists()


def test_more_processes_than_the_machine_bears_are_refused_before_one_is_started(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kwargs: pytest.fail("a process was started"))
    too_many = 4 * os.cpu_count() + 1
    assert main(["train", "--processes", str(too_many), "--max-steps", "1", "--output", str(tmp_path / "out")]) == 2
    assert_one_error_line(capsys.readouterr().err, f"--processes is {too_many}, but each uses one core")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_parent_reaches_all(number, model, task, tmp_path):
    """A parent that is killed cannot pass it on: its children see that it is gone, save, and end."""
    output = tmp_path / "out"
    command = arguments(model, task, output, "--processes", "2", "--max-steps", "100000")
    with (tmp_path / "out.txt").open("w") as out, (tmp_path / "err.txt").open("w") as err:
        environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
        (tmp_path / "temporary").mkdir()
        (tmp_path / "temporary").chmod(0o755)  # not private, so compiled functions stay in the user's cache
        command = [sys.executable, "-m", "mlx_grpo_kit", *command]
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        try:
            wait_for(output / "checkpoints")
            assert [*(tmp_path / "temporary").glob("mlx_grpo_kit-*")]
            process.send_signal(number)
            assert process.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
            wait_for(output / "reward.png")
        finally:
            process.kill()
    deadline = time.monotonic() + 60
    while "Go on" not in (tmp_path / "out.txt").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    done = lines_of(output)[-1]["step"]
    assert f"Stopped: {done} of 100000 steps." in (tmp_path / "out.txt").read_text()
    assert checkpoints_of(output)[-1] == f"step-{done:06d}"
    assert not [*(tmp_path / "temporary").glob("mlx_grpo_kit-*")]
    if number != signal.SIGKILL:  # nobody is left to pass it on
        assert (tmp_path / "err.txt").read_text() == "Stopping after this step; Ctrl-C again quits at once.\n"


# The task's module is read in each process: it makes rank 1 get a signal right after it has said that it has none.
BETWEEN = """
import os, signal

from mlx_grpo_kit.grpo.processes import World

gather, questions = World.gather, []


def gather_then_signal(self, values):
    gathered = gather(self, values)
    if self.rank == 1 and values.shape == (1,) and values.dtype == int:  # a question whether to stop
        questions.append(values)
        if len(questions) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
    return gathered


if gather.__name__ == "gather":  # the file is read each time that its task is made
    World.gather = gather_then_signal
"""


def test_a_signal_that_comes_to_one_process_between_the_question_and_its_answer(model, tmp_path):
    """The others do not know of it yet, so all stop together one step later."""
    (tmp_path / "digits_task.py").write_text(TASK + BETWEEN)
    output = tmp_path / "out"
    result = in_processes(model, f"{tmp_path / 'digits_task.py'}:Digits", output)
    assert (result.returncode, result.stderr) == (143, "")
    assert "Stopped: 5 of 8 steps." in result.stdout  # the first question comes before the first step
    assert checkpoints_of(output) == ["step-000003", "step-000005"]


class Told(World):
    """A world in which a signal comes to this process right after others and itself were asked."""

    def __init__(self, others, number):
        super().__init__()
        self.others, self.number = others, number

    def gather(self, values):
        gathered = np.append(values, self.others)
        if self.number:
            signal.raise_signal(self.number)
            self.number = 0
        return gathered


def test_only_what_all_processes_know_stops_them():
    with StopSignal(Told(others=0, number=signal.SIGTERM)) as stop:
        assert not stop.came()
        assert stop.came()
        assert stop.number == signal.SIGTERM


def test_the_same_ctrl_c_is_no_second_one_where_another_process_was_faster():
    with StopSignal(Told(others=signal.SIGINT, number=0)) as stop:
        assert stop.came()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def wait_for(path):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not path.exists():
        time.sleep(0.05)


# What is there already


def test_a_run_is_not_replaced_unasked(train, straight, tmp_path, capsys, monkeypatch):
    output = shutil.copytree(straight, tmp_path / "out")
    before = files_of(output)
    capsys.readouterr()
    assert train(output) == 2
    assert_one_error_line(capsys.readouterr().err, "already contains a run. Add --resume")
    monkeypatch.setenv("DIGITS", "nan@1")
    assert train(output, "--overwrite") == 1  # a new run that does not get to its first step replaces nothing
    assert files_of(output) == before
    monkeypatch.delenv("DIGITS")
    assert train(output, "--overwrite", "--max-steps", "2") == 0
    assert [line["step"] for line in lines_of(output)] == [0, 1, 2]
    assert checkpoints_of(output) == ["step-000002"]


def test_folders_that_are_not_a_run_s_are_left_alone(train, tmp_path, capsys):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "notes.txt").write_text("mine")
    assert train(tmp_path, "--overwrite") == 2
    assert_one_error_line(capsys.readouterr().err, "contains policy but no run.json")
    assert (tmp_path / "policy" / "notes.txt").read_text() == "mine"


def test_two_runs_cannot_share_a_folder(train, straight, tmp_path, capsys):
    output = shutil.copytree(straight, tmp_path / "out")
    before = files_of(output)
    capsys.readouterr()
    with RunFolder(output):
        assert main(["train", "--output", str(output), "--resume", "--max-steps", "9"]) == 2
        assert_one_error_line(capsys.readouterr().err, "Another process is training in")
        assert train(output, "--overwrite") == 2
        assert_one_error_line(capsys.readouterr().err, "Another process is training in")
    assert files_of(output) == before


# Bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--task", "subtraction"], "Unknown task 'subtraction'. The kit has addition, calculator, countdown, guess"),
        (["--task", "no_such_module:Task"], "No module named 'no_such_module'"),
        (["--task", "digits_task:Half"], "Half is not a task yet: it lacks max_completion_length"),
        (["--loss-type", "ppo"], "ppo"),
        (["--num-generations", "1"], "num_generations is 1; expected a whole number of at least 2"),
        (["--num-generations", "3"], "expected a multiple of num_generations (3)"),
        (["--temperature", "0"], "temperature is 0"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--scale-rewards", "std"], "scale_rewards is 'std'"),
        (["--task", "addition", "--eval-problems", "100000"], "held_out(100000) asks for 100000 problems"),
        (["--max-completion-length", "40"], "exceeds the model's 32 positions"),
        (["--model", "no/such/folder"], "There is no folder"),
    ],
)
def test_bad_settings(options, words, train, tmp_path, capsys):
    assert train(tmp_path / "out", *options) == 2
    assert_one_error_line(capsys.readouterr().err.replace("\nmeasuring", ""), words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text('{"hidden_'), "config.json is not valid JSON"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "gemma"}'), "describes a 'gemma' model"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
        (lambda folder: os.truncate(folder / "model.safetensors", 3000), "cut off or corrupt"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
    ],
)
def test_bad_model_folders(damage, words, model, task, train, tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in files_of(model).items():
        (folder / name).write_bytes(content)
    (folder / MANIFEST).unlink()  # as downloaded
    damage(folder)
    assert train(tmp_path / "out", "--model", str(folder)) == 2
    assert_one_error_line(capsys.readouterr().err, words)
    assert not (tmp_path / "out").exists()
    assert main(["generate", "--model", str(folder), "1+1="]) == 2
    assert_one_error_line(capsys.readouterr().err, words)


def test_prompts_that_the_tokenizer_cannot_read(model, task, train, tmp_path, monkeypatch, capsys):
    import digits_task

    strange = SimpleNamespace(prompt="2€2=", answer="4", data={})
    monkeypatch.setattr(digits_task.Digits, "problem", lambda self, n: strange)
    assert train(tmp_path / "out") == 2
    assert_one_error_line(capsys.readouterr().err, "no token for '€'")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["/proc/nowhere/out", "FILE/out", "FILE"])
def test_an_output_that_cannot_be_written(place, train, tmp_path, capsys):
    if place.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("no /proc here")
    (tmp_path / "file").write_text("mine")
    assert train(place.replace("FILE", str(tmp_path / "file"))) == 2
    assert_one_error_line(capsys.readouterr().err, "is a file" if place == "FILE" else "Cannot write --output")


def test_the_tiny_model_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("mlx_grpo_kit.assets.TINY", tmp_path / "tiny")
    assert main(["generate", "1+1="]) == 2
    assert_one_error_line(capsys.readouterr().err, f"python -m mlx_grpo_kit.assets.make.tiny {tmp_path / 'tiny'}")


def test_exit_in_a_property_of_a_task_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_task.py").write_text(
        "import sys\nfrom mlx_grpo_kit.tasks import Addition\n\n\nclass Mine(Addition):\n    @property\n"
        "    def tools(self):\n        sys.exit(0)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--output", "run", "--task", "my_task.py:Mine", "--max-steps", "1"]) == 2
    assert_one_error_line(capsys.readouterr().err, "called exit()")


# A run that fails


def test_bad_rewards_before_the_first_step_leave_nothing(train, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DIGITS", "nan@1")
    assert train(tmp_path / "out") == 1
    assert_one_error_line(capsys.readouterr().err, "Reward function 'correct' returned nan for completion 0")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("wish", "words"), [("nan", "returned nan"), ("bug", "raised KeyError: 'a bug in a reward'")])
def test_bad_rewards_later_keep_what_was_learned(wish, words, train, straight, tmp_path, monkeypatch, capsys):
    output = tmp_path / "out"
    monkeypatch.setenv("DIGITS", f"{wish}@7")  # in step 5
    assert train(output) == 1
    error = capsys.readouterr().err
    assert_one_error_line(error, words)
    assert f"Go on from step-000004: {command_line()} train --output {output} --resume" in error
    monkeypatch.delenv("DIGITS")
    assert main(["train", "--output", str(output), "--resume"]) == 0
    assert lines_of(output) == lines_of(straight)


def test_a_reward_that_fails_while_accuracy_is_measured_keeps_the_step_before(train, tmp_path, monkeypatch, capsys):
    output = tmp_path / "out"
    monkeypatch.setenv("DIGITS", "bug@5")  # the evaluation after step 3
    assert train(output) == 1
    assert "Go on from step-000003" in capsys.readouterr().err
    assert [line["step"] for line in lines_of(output)] == [0, 1, 2, 3]
    monkeypatch.delenv("DIGITS")
    assert main(["train", "--output", str(output), "--resume"]) == 0
    assert [line["step"] for line in lines_of(output)] == [*range(9)]


def test_a_run_that_diverges(train, tmp_path, capsys):
    assert train(tmp_path / "out", "--learning-rate", "1e18", "--weight-decay", "1") == 1
    assert_one_error_line(capsys.readouterr().err, "Lower learning_rate")


def test_a_disk_that_is_full(train, tmp_path, monkeypatch, capsys):
    def full(self, step, *line):
        if step == 4:
            raise OSError(28, "No space left on device")
        return append(self, step, *line)

    append = RunFolder.append
    monkeypatch.setattr(RunFolder, "append", full)
    assert train(tmp_path / "out") == 1
    error = capsys.readouterr().err
    assert_one_error_line(error, "No space left on device. Go on from step-000003: ")


def test_a_task_that_fails_is_named(train, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DIGITS", "lost@0")
    assert train(tmp_path / "out") == 1
    assert_one_error_line(capsys.readouterr().err, "Task 'digits': sample(rng, 4) raised KeyError: 'lost'. Nothing was")


def test_an_error_that_nobody_expected(train, tmp_path, monkeypatch, capsys):
    def evaluate(*_):
        raise KeyError("lost")

    monkeypatch.setattr(GRPOTrainer, "evaluate", evaluate)
    assert train(tmp_path / "out") == 1
    assert_one_error_line(capsys.readouterr().err, "KeyError: 'lost' (--debug shows more)")
    with pytest.raises(KeyError, match="lost"):
        train(tmp_path / "out", "--debug")
    assert not (tmp_path / "out").exists()


# generate, doctor


def test_generate(model, capsys):
    def completions(*options):
        assert main(["generate", "--model", str(model), "--max-new-tokens", "3", *options]) == 0
        captured = capsys.readouterr()
        assert captured.err == "" or "cut off after 3 tokens: --max-new-tokens" in captured.err
        return re.split(r"\n(?=12=|3\+4=|\Z)", captured.out)[:-1]  # a completion may have lines of its own

    greedy = completions("12=", "3+4=")
    assert greedy == completions("12=", "3+4=", "--seed", "1") == completions("12=", "3+4=", "--temperature", "0")
    assert greedy[0].startswith("12=")
    assert greedy[1].startswith("3+4=")
    sampled = completions("12=", "3+4=", "--num", "6", "--seed", "3")
    assert [line[:3] for line in sampled] == ["12="] * 6 + ["3+4"] * 6
    assert len(set(sampled)) > 6
    assert sampled == completions("12=", "3+4=", "--num", "6", "--seed", "3")
    assert sampled != completions("12=", "3+4=", "--num", "6", "--seed", "1")
    assert completions("12=", "--num", "3", "--top-k", "1") == [greedy[0]] * 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["12€34="], "no token for '€' (character 3 of '12€34=')"),
        ([""], "is empty; expected at least one token"),
        (["1" * 40], "exceeds the model's 32 positions"),
        (["1+1=", "--temperature", "-1"], "temperature is -1"),
        (["1+1=", "--top-p", "2"], "top_p is 2"),
        (["1+1=", "--max-new-tokens", "32"], "exceeds the model's 32 positions"),
        (["1+1=", "--temperature", "1e-40"], "temperature is 1e-40; expected 0 (always the likeliest"),
    ],
)
def test_generate_with_bad_input(options, words, model, capsys):
    assert main(["generate", "--model", str(model), *options]) == 2
    assert_one_error_line(capsys.readouterr().err, words)


def test_what_steers_a_terminal_is_shown_escaped(model, capsys, monkeypatch):
    """A model may have learned any text, and a file or a task may quote it in an error or a warning."""
    hostile, shown = "\x1b]0;mine\x07\x9b2J\u202e\r1\n2\u200d3", "\\x1b]0;mine\\x07\\x9b2J\\u202e\\r1"
    monkeypatch.setattr("mlx_grpo_kit.qwen3.tokenizer.Tokenizer.decode", lambda self, ids: hostile if ids else "")
    assert main(["generate", "--model", str(model), "1+1="]) == 0
    assert capsys.readouterr().out == f"1+1={shown}\n2\u200d3\n"

    def fail(self, text):
        warnings.warn(hostile, stacklevel=1)
        raise ValueError(hostile)

    monkeypatch.setattr("mlx_grpo_kit.qwen3.tokenizer.Tokenizer.encode", fail)
    assert main(["generate", "--model", str(model), "1+1="]) == 2
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {shown}")
    assert error.startswith(r"error: \x1b]0;mine\x07\x9b2J\u202e 1 2")


def run_without(streams, *arguments):
    """The command line in a shell that closes some of the standard streams first."""
    command = [sys.executable, "-m", "mlx_grpo_kit", *map(str, arguments)]
    return subprocess.run(f"{shlex.join(command)} {streams}", shell=True, capture_output=True, text=True, check=False)


def test_closed_standard_streams(model):
    """MLX takes a file that got number 0 for one that it could not open."""
    for streams in ("<&-", "<&- 2>&-"):
        done = run_without(streams, "generate", "--model", model, "--max-new-tokens", 3, "12=")
        assert (done.returncode, done.stdout[:3]) == (0, "12="), done.stderr
    for streams in (">&-", "<&- >&-"):
        done = run_without(streams, "generate", "--model", model, "12=")
        assert (done.returncode, done.stdout) == (2, "")
        assert_one_error_line(done.stderr, "standard output is closed")


def test_doctor_is_the_modules_own(monkeypatch):
    monkeypatch.setattr("mlx_grpo_kit.cli.doctor.run", lambda options: 7)
    assert main(["doctor"]) == 7


# The display


def test_sparkline():
    assert sparkline([]) == ""
    assert sparkline([3.0]) == "▁"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0, 1, 1], width=2) == "▁█"
    assert sparkline([0.0, math.nan, 1.0]) == "▁ █"


def test_clock():
    assert [clock(0.4), clock(59.6), clock(75), clock(3675)] == ["0:00", "1:00", "1:15", "1:01:15"]


def test_what_a_model_wrote_cannot_disturb_the_display():
    written = "\x1b[2J[red]\n" + "9" * 99
    record = SimpleNamespace(problem=None, prompt="q" * 50 + "=", completion=written, completion_ids=[1, 2])
    right = (record.problem, written)
    metrics = {"reward": math.nan, "step_time": 0.5, "completions/mean_length": 1.5}
    step = SimpleNamespace(step=1, metrics=metrics, completions=[record], changes={})
    for terminal in (True, False):
        console = Console(file=StringIO(), force_terminal=terminal, color_system=None, width=100, highlight=False)
        display = RunDisplay("[bold]t[/bold]", 2, lambda *asked: asked == right, console=console, processes=4)
        display.update(step, step.metrics)
        console.print(display)
        shown = console.file.getvalue()
        assert "\x1b" not in shown
        assert r"\x1b[2J[red]\n999" in shown
        assert "qqq=" in shown
        assert "12 tokens/s" in shown, "1.5 tokens in half a second, in each of four processes"
        assert "[bold]t[/bold]" in shown
        assert "right" in shown
        assert max(map(len, shown.splitlines())) <= 100 or not terminal


def test_what_is_wrong_with_a_run_is_said_once_in_a_log_and_stays_in_a_terminal(monkeypatch):
    monkeypatch.setattr("mlx_grpo_kit.cli.display.SECONDS_A_DIAGNOSIS", 0.0)
    # A terminal is drawn anew eight times a second. Here it is drawn when the display opens, and when it closes.
    monkeypatch.setattr("mlx_grpo_kit.cli.display.Live", partial(Live, auto_refresh=False))
    metrics = {"reward": 0.2, "frac_reward_zero_std": 1.0, "step_time": 0.5, "completions/mean_length": 1.5}
    for terminal in (True, False):
        console = Console(file=StringIO(), force_terminal=terminal, color_system=None, width=100, highlight=False)
        with RunDisplay("t", 30, lambda *_: True, console=console) as display:
            for step in range(1, 31):
                record = SimpleNamespace(problem=None, prompt="1+1=", completion=str(step), completion_ids=[1, 2])
                display.update(SimpleNamespace(step=step, metrics=metrics, completions=[record], changes={}), metrics)
            before = console.file.getvalue()
            console.print(display)
            shown = console.file.getvalue()[len(before) :]
        words = "! In all groups all completions have had the same reward since step 1"
        assert before.count(words) == (0 if terminal else 1)
        assert words in shown
        assert display.warnings[0].startswith(words[2:])


def test_epochs_of_a_file(model, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}=", "answer": n}) + "\n" for n in range(30)))
    options = ["--data", str(rows), "--eval-problems", "1", "--max-completion-length", "2"]
    settings = ["--num-generations", "4", "--per-device-train-batch-size", "16", "--log-completions", "all"]
    command = ["train", "--model", str(model), *options, *settings]
    assert main([*command, "--output", str(tmp_path / "out"), "--num-train-epochs", "2"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "completions.jsonl").read_text().splitlines()]
    asked = [each["prompt"] for line in lines for each in line["completions"][::4]]
    trained = RowsTask.from_file(rows).num_train
    assert len(lines) == math.ceil(2 * trained / 4)
    assert len({*asked[:trained]}) == trained == len({*asked[trained : 2 * trained]})
    capsys.readouterr()
    assert main([*command, "--output", str(tmp_path / "2"), "--num-train-epochs", "2", "--max-steps", "3"]) == 2
    assert_one_error_line(capsys.readouterr().err, "--num-train-epochs and --max-steps are given")
    no_rows = ["train", "--model", str(model), "--task", "addition", "--output", str(tmp_path / "3")]
    assert main([*no_rows, "--num-train-epochs", "1"]) == 2
    assert_one_error_line(capsys.readouterr().err, "'addition' makes problems without end")
