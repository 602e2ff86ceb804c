"""A run's folder whatever happens to it: kills at every moment, two processes, foreign files, damaged and odd ones.

The command line is real here and the trainer is not: it counts, so that a run takes milliseconds and can be killed at
each of its writes. tests/cli/test_cli.py kills real ones.
"""

import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.cli import main, start
from mlx_grpo_kit.cli import train as train_file
from mlx_grpo_kit.cli.run_curves import curves
from mlx_grpo_kit.files import check_saved, read_json, read_manifest, replaced_folder, write_file
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.runs import folder as run_folder
from mlx_grpo_kit.runs.folder import RunFolder
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.tasks import get_task


class Counter:
    """A trainer whose policy is what it has done so far: its seed and its steps, with the learning rate of each."""

    world, config, tokenizer = World(), None, None

    def __init__(self, args, step=0, policy=()):
        self.args, self.step, self.policy, self.task = args, step, list(policy), get_task("addition")
        self.pending = {}

    def train(self, max_steps):
        while self.step < max_steps:
            self.step += 1
            self.policy.append([self.args.seed, self.step, self.args.learning_rate])
            self.pending, changes = {}, self.pending
            problem = self.task.held_out(1)[0]
            texts = [f"{self.step} {self.args.learning_rate}"] * 40 + [problem.answer]
            records = [SimpleNamespace(problem=problem, prompt="1+1=", completion=text, group=i // 8)
                       for i, text in enumerate(texts)]  # fmt: skip
            metrics = {"reward": self.args.seed + self.step, "step_time": 1.0, "completions/mean_length": 1.0}
            yield SimpleNamespace(step=self.step, metrics=metrics, completions=records, changes=changes)

    def learning_rate(self, max_steps):
        return self.args.learning_rate

    def evaluate(self, num_problems):
        return {"eval/accuracy": self.args.seed + (0.5 if self.step == 3 else self.step / 100)}

    def save_pretrained(self, folder, base=None):
        with replaced_folder(folder) as new:
            (new / "config.json").write_text(json.dumps({"policy": self.policy}))

    def save_checkpoint(self, folder):
        with replaced_folder(folder) as new:
            self.save_pretrained(new / "model")
            (new / "trainer_state.json").write_text(json.dumps({"step": self.step, "args": asdict(self.args)}))

    @classmethod
    def resume(cls, folder, task, world=None, base=None, **changes):
        if read_manifest(folder) is None:
            raise FileNotFoundError(f"{folder} is no checkpoint")
        check_saved(folder, read_manifest(folder))
        check_saved(folder / "model", ["config.json"])
        state = read_json(folder, "trainer_state.json")
        policy = read_json(folder / "model", "config.json")["policy"]
        trainer = cls(GRPOConfig(**state["args"] | changes), state["step"], policy)
        trainer.pending = {name: value for name, value in changes.items() if value != state["args"][name]}
        return trainer


@pytest.fixture
def train(monkeypatch):
    """train(output, *options) -> exit status of a run of 5 steps with a checkpoint at every second."""
    monkeypatch.setattr(start, "new_trainer", lambda settings, task, world: Counter(GRPOConfig(**settings.args)))
    monkeypatch.setattr(start, "say_what_it_takes", lambda *_: None)
    monkeypatch.setattr(start, "faster_learner", lambda *_: "")
    monkeypatch.setattr(GRPOTrainer, "resume", Counter.resume)
    monkeypatch.setattr(Counter.train, "__doc__", None)
    monkeypatch.setattr(
        train_file, "draw_curves", lambda out, title: write_file(out.picture, str(len(out.measured())).encode())
    )
    monkeypatch.setattr(train_file, "RunDisplay", lambda *_, **__: Silence())
    task = get_task("addition")
    monkeypatch.setattr(start, "get_task", lambda name, **args: task)

    def train(output, *options):
        new = [] if "--resume" in options else ["--max-steps", "5", "--save-every", "2", "--eval-every", "1"]
        return main(["train", "--output", str(output), *new, *options])

    return train


class Silence:
    warnings = ()

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


def completions_of(output):
    """Step -> the texts of its completions."""
    lines = map(json.loads, (output / "completions.jsonl").read_text().splitlines())
    return {line["step"]: [one["completion"] for one in line["completions"]] for line in lines}


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@contextmanager
def changed_settings(folder):
    """The content of run.json, to be changed; its hash follows."""
    content = json.loads((folder / "run.json").read_text())
    del content["sha256"]
    yield content
    (folder / "run.json").write_text(json.dumps(content | {"sha256": run_folder._hash(content)}))


# Kills.


MOMENTS = 9  # each ninth change of the disk; with 1 every single one, in a minute and a half


class Killed(BaseException):
    """The process is gone: not even what stands in a `finally` happens any more."""


def half_a_step(folder, step, metrics, changes=None, completions=None):
    """What a kill leaves of it: half a line of the first file, or a line of that and half of the second."""
    if completions is not None and step % 2:
        folder._open[folder.completions].write(completions[: len(completions) // 2])
        return
    folder._open[folder.completions].write(completions or b"")
    folder._open[folder.metrics].write(b'{"step": 1')


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
            patch.setattr(RunFolder, "append", dying(append, half_a_step))
            try:
                act()
            except Killed:
                return True
        return False

    return kill_at


def run_again(train, output):
    """As its user would: --resume where a run is, else once more what was given before."""
    resume = ["--resume"] if (output / "run.json").exists() else ["--seed", "1", "--keep-best"]
    return train(output, *resume)


@pytest.mark.parametrize("after", ["nothing", "a stop", "another run"])
def test_a_kill_at_any_moment_loses_nothing(after, train, kill_at, tmp_path, capsys):
    """The run that goes on ends like one that was never killed, or, where an older run is replaced, like that one."""
    undisturbed, before, output = tmp_path / "undisturbed", tmp_path / "before", tmp_path / "out"
    assert train(undisturbed, "--seed", "1", "--keep-best") == 0
    options, ends = ["--seed", "1", "--keep-best"], [files_of(undisturbed)]
    before.mkdir()
    if after == "a stop":
        assert train(before, "--seed", "1", "--keep-best", "--max-steps", "3") == 0
        options = ["--resume", "--max-steps", "5"]
    elif after == "another run":
        assert train(before, "--seed", "2") == 0
        options, ends = ["--seed", "1", "--keep-best", "--overwrite"], [*ends, files_of(before)]
    seen, killed, number = set(), True, 0
    while killed:
        shutil.copytree(before, output)
        killed = kill_at(number, lambda: train(output, *options))
        again = shutil.copytree(output, tmp_path / "again")
        assert (
            train(again, "--seed", "1", "--keep-best", *(["--overwrite"] if (again / "run.json").exists() else [])) == 0
        ), number
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


def steps_of_the_best(output):
    return len(json.loads((output / "best" / "config.json").read_text())["policy"])


def test_the_best_policy_is_kept(train, tmp_path, capsys):
    assert train(tmp_path, "--keep-best") == 0
    assert steps_of_the_best(tmp_path) == 3
    assert "best, accuracy 0.500 after step 3" in capsys.readouterr().out
    assert train(tmp_path, "--resume", "--max-steps", "60") == 0, "0.51 to 0.6 after steps 51 to 60"
    assert steps_of_the_best(tmp_path) == 60


def test_a_new_run_begins_without_the_policies_of_the_old_one(train, tmp_path, monkeypatch):
    assert train(tmp_path, "--keep-best") == 0
    there = []

    def evaluate(self, num_problems):
        there.append([name for name in ("policy", "best") if (tmp_path / name).exists()])
        return {"eval/accuracy": 0.5}

    monkeypatch.setattr(Counter, "evaluate", evaluate)
    assert train(tmp_path, "--overwrite") == 0
    assert there[0] == ["policy", "best"], "a run that fails to start would leave the old one"
    assert there[-1] == []
    assert not (tmp_path / "best").exists()


def test_no_policy_is_kept_if_none_is_asked_for_or_better(train, tmp_path, monkeypatch, capsys):
    assert train(tmp_path / "without") == 0
    assert not (tmp_path / "without" / "best").exists()
    assert train(tmp_path / "without", "--resume", "--keep-best", "--max-steps", "7") == 0
    assert not (tmp_path / "without" / "best").exists(), "step 3 was the best, and is gone"
    monkeypatch.setattr(Counter, "evaluate", lambda self, num_problems: {"eval/accuracy": 1 - self.step / 10})
    assert train(tmp_path / "worse", "--keep-best") == 0
    assert not (tmp_path / "worse" / "best").exists()
    assert "none kept: accuracy was never higher than 1.000, after step 0" in capsys.readouterr().out


def test_a_folder_best_of_the_users_own_is_not_touched(train, tmp_path, capsys):
    assert train(tmp_path, "--seed", "1") == 0
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "notes.txt").write_text("mine")
    assert train(tmp_path, "--overwrite", "--keep-best") == 2
    assert "best/notes.txt, which no run wrote" in capsys.readouterr().err
    assert (tmp_path / "best" / "notes.txt").read_text() == "mine"


# Whose the folder is.


def test_nobody_else_gets_the_folder_from_the_very_start(train, tmp_path, monkeypatch, capsys):
    """The second of two runs is refused while the first loads its model, before there is a file."""
    output, seen = tmp_path / "runs" / "out", []

    def slow(settings, task, world):
        seen.append([train(output), train(output, "--overwrite"), train(output, "--resume")])
        return Counter(GRPOConfig(**settings.args))

    monkeypatch.setattr(start, "new_trainer", slow)
    assert train(output, "--seed", "1") == 0
    assert seen == [[2, 2, 2]]
    assert capsys.readouterr().err.count("Another process is training in") == 3
    assert policy_of(output)[-1][0] == 1


def test_a_run_that_fails_to_start_leaves_no_folder(train, tmp_path, monkeypatch):
    monkeypatch.setattr(start, "new_trainer", lambda *_: (_ for _ in ()).throw(ValueError("no model")))
    (tmp_path / "mine").mkdir()
    assert train(tmp_path / "runs" / "out") == 2
    assert train(tmp_path / "mine") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "place",
    ["checkpoints/thesis.tex", "checkpoints/mine/thesis.tex", "checkpoints/step-000004/thesis.tex",
     "checkpoints/step-000004/model/thesis.tex", "policy/thesis.tex", "policy/optimizer.pt"],
)  # fmt: skip
def test_what_no_run_wrote_is_neither_deleted_nor_in_the_way_of_reading(place, train, tmp_path, capsys):
    assert train(tmp_path) == 0
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("mine")
    before = files_of(tmp_path)
    for option in (["--overwrite"], ["--resume", "--max-steps", "9"]):
        assert train(tmp_path, *option) == 2
        assert place.replace("mine/thesis.tex", "mine/") in capsys.readouterr().err
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("content", ["{}", '{"name": "my app"}', "[]", "{", "null"])
def test_a_run_json_of_another_program(content, train, tmp_path, capsys):
    (tmp_path / "run.json").write_text(content)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "thesis.tex").write_text("mine")
    before = files_of(tmp_path)
    for option in ([], ["--overwrite"], ["--resume"]):
        assert train(tmp_path, *option) == 2
    assert "run.json cannot be read" in capsys.readouterr().err
    assert files_of(tmp_path) == before


def test_a_link_in_the_place_of_the_policy(train, tmp_path, capsys):
    (tmp_path / "elsewhere").mkdir()
    assert train(tmp_path / "out") == 0
    shutil.rmtree(tmp_path / "out" / "policy")
    (tmp_path / "out" / "policy").symlink_to(tmp_path / "elsewhere")
    assert train(tmp_path / "out", "--overwrite") == 2
    assert "contains policy, which no run wrote" in capsys.readouterr().err


# Reading what is there.


@pytest.mark.parametrize("number", range(0, 1000, 83))
def test_a_bit_that_flipped_in_run_json(number, train, tmp_path, capsys):
    assert train(tmp_path, "--seed", "1") == 0
    content = bytearray((tmp_path / "run.json").read_bytes())
    content[number % len(content)] ^= 1 << number % 7
    (tmp_path / "run.json").write_bytes(content)
    capsys.readouterr()
    status = train(tmp_path, "--resume", "--max-steps", "6")
    assert status == 0 if content.isspace() else "run.json cannot be read" in capsys.readouterr().err


def test_broken_lines_take_no_others_with_them(train, tmp_path, capsys):
    assert train(tmp_path / "undisturbed", "--max-steps", "7") == 0
    output = tmp_path / "out"
    assert train(output) == 0
    lines = (output / "metrics.jsonl").read_text().splitlines()
    lines[1:1] = ["", "garbage", '{"step": 2, "reward": "high"}', '{"step": 1e999}', "[]"]
    (output / "metrics.jsonl").write_text("\n".join(lines))  # nor is there an end to the last line
    capsys.readouterr()
    assert train(output, "--resume", "--max-steps", "7") == 0
    warnings = capsys.readouterr().err.splitlines()
    assert [line.partition(" of ")[0] for line in warnings] == [f"warning: Line {number}" for number in (3, 4, 5, 6)]
    assert lines_of(output) == lines_of(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    "name", ["run.json", "metrics.jsonl", "completions.jsonl", "checkpoints/step-000005/trainer_state.json"]
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_not_waited_for(name, kind, train, tmp_path, capsys):
    assert train(tmp_path) == 0
    (tmp_path / name).unlink()
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    status = train(tmp_path, "--resume", "--max-steps", "7")
    assert Path(name).name in capsys.readouterr().err
    assert status == 2


# Settings.


def test_how_fast_it_learns_may_change_and_is_kept(train, tmp_path):
    assert train(tmp_path, "--learning-rate", "0.5") == 0
    assert train(tmp_path, "--resume", "--max-steps", "7", "--learning-rate", "0.25", "--eval-problems", "3") == 0
    assert [rate for _, _, rate in policy_of(tmp_path)] == [0.5] * 5 + [0.25] * 2
    settings = json.loads((tmp_path / "run.json").read_text())
    assert (settings["args"]["learning_rate"], settings["max_steps"], settings["eval_problems"]) == (0.25, 7, 3)
    assert train(tmp_path, "--resume", "--max-steps", "8") == 0
    assert policy_of(tmp_path)[-1] == [0, 8, 0.25]


def test_a_new_learning_rate_survives_a_kill_before_the_next_checkpoint(train, tmp_path, monkeypatch):
    assert train(tmp_path, "--learning-rate", "0.5") == 0
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            train(tmp_path, "--resume", "--max-steps", "7", "--learning-rate", "0.25")
    assert train(tmp_path, "--resume") == 0
    assert [rate for _, _, rate in policy_of(tmp_path)] == [0.5] * 5 + [0.25] * 2


def test_a_checkpoint_is_the_truth_about_the_settings_that_cannot_change(train, tmp_path):
    assert train(tmp_path, "--learning-rate", "0.5") == 0
    with changed_settings(tmp_path) as content:
        content["args"] |= {"temperature": 0.5, "learning_rate": 0.25}
    assert train(tmp_path, "--resume", "--max-steps", "7") == 0
    args = json.loads((tmp_path / "run.json").read_text())["args"]
    assert (args["temperature"], args["learning_rate"]) == (1.0, 0.25)
    assert [rate for _, _, rate in policy_of(tmp_path)] == [0.5] * 5 + [0.25] * 2


# Completions.


def test_whole_groups_of_each_step_are_written(train, tmp_path):
    sizes = {}
    for amount in ("", "0", "1", "25", "all"):
        output = tmp_path / f"out{amount}"
        assert train(output, *(["--log-completions", amount] if amount else [])) == 0
        sizes[amount] = {step: len(texts) for step, texts in completions_of(output).items()}
    counts = {"": 16, "1": 8, "25": 24, "all": 41}
    assert sizes == {"0": {}} | {amount: dict.fromkeys(range(1, 6), count) for amount, count in counts.items()}
    first = json.loads((tmp_path / "outall" / "completions.jsonl").read_text().splitlines()[0])["completions"]
    assert [one["correct"] for one in first] == [False] * 40 + [True]
    assert [one["group"] for one in first[::8]] == [0, 1, 2, 3, 4, 5]


def test_no_amount(train, tmp_path, capsys):
    for wrong in ("-1", "some", "1.5"):
        with pytest.raises(SystemExit):
            train(tmp_path, "--log-completions", wrong)
        words = f"{wrong!r} is not an amount; expected a whole number of at least 0, or all."
        assert capsys.readouterr().err == f"error: argument --log-completions: {words}\n"


def test_another_amount_and_another_rate_from_a_checkpoint_on(train, tmp_path):
    assert train(tmp_path, "--learning-rate", "0.5") == 0
    new = ["--max-steps", "7", "--log-completions", "all", "--learning-rate", "0.25"]
    assert train(tmp_path, "--resume", *new) == 0
    assert {step: len(texts) for step, texts in completions_of(tmp_path).items()} == {
        **dict.fromkeys(range(1, 6), 16), 6: 41, 7: 41
    }  # fmt: skip
    assert [line.get("changes") for line in lines_of(tmp_path)] == [None] * 6 + [{"learning_rate": 0.25}, None]
    assert train(tmp_path, "--resume", "--max-steps", "8") == 0
    assert len(completions_of(tmp_path)[8]) == 41, "it is kept in run.json"


def test_the_reader_without_mlx_reads_the_folder(train, tmp_path):
    assert train(tmp_path) == 0
    record = RunRecord.load(tmp_path)
    assert (record.title, record.max_steps, record.damaged) == ("tiny learns addition", 5, [])
    assert [step.step for step in record.steps] == [0, 1, 2, 3, 4, 5]
    assert record.column("eval/accuracy") == [0, 0.01, 0.02, 0.5, 0.04, 0.05]
    assert [one.completion for one in record.at(3).completions] == completions_of(tmp_path)[3]


def test_a_run_of_before_there_were_completions(train, tmp_path):
    assert train(tmp_path) == 0
    (tmp_path / "completions.jsonl").unlink()
    with changed_settings(tmp_path) as content:
        del content["log_completions"]
    assert train(tmp_path, "--resume", "--max-steps", "7") == 0
    assert [*completions_of(tmp_path)] == [6, 7]


def test_broken_lines_of_completions(train, tmp_path, capsys):
    assert train(tmp_path) == 0
    file = tmp_path / "completions.jsonl"
    before = file.read_bytes()
    lines = before.splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:1], b"garbage\n", *lines[1:], lines[0][:50]]))
    capsys.readouterr()
    assert train(tmp_path, "--resume") == 0
    assert capsys.readouterr().err.splitlines() == [
        f"warning: Line 2 of {file} cannot be read and is left out.",
        f"warning: Line 7 of {file} is cut off and is left out.",
    ]
    assert file.read_bytes() == before


# Names, pipes, disks.


def test_no_name_and_a_name_that_is_not_utf_8(train, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert train("") == 2
    assert "--output is empty" in capsys.readouterr().err
    assert train(os.fsdecode(b"caf\xe9")) == 2
    assert "--output 'caf\\udce9' is not UTF-8" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_picture_s_title_is_no_formula():
    assert curves([(1, 1.0)], [], r"m$\frac$ learns addition").startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["metrics", "completions"])
def test_a_disk_that_fills_up_within_a_line(name, tmp_path):
    """What was written of it is taken back; the file is named. No step has metrics without its completions."""
    with RunFolder(tmp_path / "out") as folder:
        folder.begin(run_folder.RunSettings("tiny", "addition", 1, 1, 1, 1, {}))
        folder.append(0, {})
        file = getattr(folder, name)
        folder._open[file] = Short(folder._open[file])
        with pytest.raises(OSError, match=rf"No space left on device: '.*/out/{name}.jsonl'"):
            folder.append(1, {}, None, b'{"step": 1, "completions": []}\n')
    assert lines_of(tmp_path / "out") == [{"step": 0}]
    assert completions_of(tmp_path / "out") == ({1: []} if name == "metrics" else {})


class Short:
    """A file on a disk with room for five more bytes."""

    def __init__(self, file):
        self.file = file

    def write(self, content):
        return self.file.write(content[:5])

    def __getattr__(self, name):
        return getattr(self.file, name)
