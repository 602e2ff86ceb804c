"""A run's folder whatever happens to it: kills at every moment, two processes, foreign files, damaged and odd ones.

The command line is real here and the trainer is not: it counts, so that a run takes milliseconds and can be killed at
each of its writes. tests/cli/test_cli.py kills real ones.
"""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.cli import main, training_run
from mlx_grpo_kit.cli.run_folder import RunFolder
from mlx_grpo_kit.files import check_saved, read_json, read_manifest, replaced_folder, write_file
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.tasks import get_task


class Counter:
    """A trainer whose policy is what it has done so far: its seed and its steps, with the learning rate of each."""

    def __init__(self, args, step=0, policy=()):
        self.args, self.step, self.policy, self.task = args, step, list(policy), get_task("addition")

    def train(self, max_steps):
        while self.step < max_steps:
            self.step += 1
            self.policy.append([self.args.seed, self.step, self.args.learning_rate])
            record = SimpleNamespace(problem=None, prompt="1+1=", completion="2", completion_ids=[1])
            metrics = {"reward": self.args.seed + self.step, "step_time": 1.0}
            yield SimpleNamespace(step=self.step, metrics=metrics, completions=[record])

    def evaluate(self, num_problems):
        return {"eval/accuracy": self.args.seed + self.step / 100}

    def save_pretrained(self, folder):
        with replaced_folder(folder) as new:
            (new / "config.json").write_text(json.dumps({"policy": self.policy}))

    def save_checkpoint(self, folder):
        with replaced_folder(folder) as new:
            self.save_pretrained(new / "model")
            (new / "trainer_state.json").write_text(json.dumps({"step": self.step, "args": asdict(self.args)}))

    @classmethod
    def resume(cls, folder, task, **changes):
        if read_manifest(folder) is None:
            raise FileNotFoundError(f"{folder} is no checkpoint")
        check_saved(folder, read_manifest(folder))
        check_saved(folder / "model", ["config.json"])
        state = read_json(folder, "trainer_state.json")
        return cls(
            GRPOConfig(**state["args"] | changes), state["step"], read_json(folder / "model", "config.json")["policy"]
        )


@pytest.fixture
def train(monkeypatch):
    """train(output, *options) -> exit status of a run of 5 steps with a checkpoint at every second."""
    monkeypatch.setattr(training_run, "_trainer", lambda settings, task: Counter(GRPOConfig(**settings.args)))
    monkeypatch.setattr(GRPOTrainer, "resume", Counter.resume)
    monkeypatch.setattr(Counter.train, "__doc__", None)
    monkeypatch.setattr(
        RunFolder, "draw", lambda self, title: write_file(self.picture, str(len(self.measured())).encode())
    )
    monkeypatch.setattr(training_run, "RunDisplay", lambda *_: Silence())
    task = get_task("addition")
    monkeypatch.setattr(training_run, "get_task", lambda name: task)

    def train(output, *options):
        new = [] if "--resume" in options else ["--max-steps", "5", "--save-every", "2", "--eval-every", "1"]
        return main(["train", "--output", str(output), *new, *options])

    return train


class Silence:
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def __getattr__(self, name):
        return lambda *_: None


def policy_of(output):
    return json.loads((output / "policy" / "config.json").read_text())["policy"]


def lines_of(output):
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Kills.


MOMENTS = 9  # each ninth change of the disk; with 1 every single one, in a minute and a half


class Killed(BaseException):
    """The process is gone: not even what stands in a `finally` happens any more."""


@pytest.fixture
def kill_at(monkeypatch):
    """kill_at(number, act) -> whether `act` was cut off at its number-th change of the disk."""

    def kill_at(number, act):
        left = number

        def dying(original, half=None):
            def call(*args, **kwargs):
                nonlocal left
                left -= 1
                if left < 0:
                    if left == -1 and half:
                        half(*args)
                    raise Killed
                return original(*args, **kwargs)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name in ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync"):
                patch.setattr(os, name, dying(getattr(os, name)))
            write_bytes, write_text = Path.write_bytes, Path.write_text
            patch.setattr(
                Path, "write_bytes", dying(write_bytes, lambda path, data: write_bytes(path, data[: len(data) // 2]))
            )
            patch.setattr(
                Path, "write_text", dying(write_text, lambda path, text: write_text(path, text[: len(text) // 2]))
            )
            append = RunFolder.append
            patch.setattr(RunFolder, "append", dying(append, lambda folder, line: folder._lines.write(b'{"step": 1')))
            try:
                act()
            except Killed:
                return True
        return False

    return kill_at


def run_again(train, output):
    """As its user would: --resume where a run is, else once more what was given before."""
    resume = ["--resume"] if (output / "run.json").exists() else ["--seed", "1"]
    return train(output, *resume)


@pytest.mark.parametrize("after", ["nothing", "a stop", "another run"])
def test_a_kill_at_any_moment_loses_nothing(after, train, kill_at, tmp_path, capsys):
    """The run that goes on ends like one that was never killed, or, where an older run is replaced, like that one."""
    undisturbed, before, output = tmp_path / "undisturbed", tmp_path / "before", tmp_path / "out"
    assert train(undisturbed, "--seed", "1") == 0
    options, ends = ["--seed", "1"], [files_of(undisturbed)]
    before.mkdir()
    if after == "a stop":
        assert train(before, "--seed", "1", "--max-steps", "3") == 0
        options = ["--resume", "--max-steps", "5"]
    elif after == "another run":
        assert train(before, "--seed", "2") == 0
        options, ends = ["--seed", "1", "--overwrite"], [*ends, files_of(before)]
    seen, killed, number = set(), True, 0
    while killed:
        shutil.copytree(before, output)
        killed = kill_at(number, lambda: train(output, *options))
        again = shutil.copytree(output, tmp_path / "again")
        assert train(again, "--seed", "1", *(["--overwrite"] if (again / "run.json").exists() else [])) == 0, number
        assert files_of(again) == ends[0], number
        if killed:
            extend = ["--max-steps", "5"] if after == "a stop" else []
            assert (train(output, "--resume", *extend) if extend else run_again(train, output)) == 0, number
        end = files_of(output)
        assert end in ends, (number, {name for name in {*end, *ends[0]} if end.get(name) != ends[0].get(name)})
        seen.add(ends.index(end))
        assert not list(output.rglob("*.tmp")), number
        assert capsys.readouterr().err.count("passed over") == 0, number
        shutil.rmtree(output)
        shutil.rmtree(again)
        number += MOMENTS
    assert number > 50
    assert seen == set(range(len(ends)))
