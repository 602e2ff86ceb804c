"""Runs that are saved automatically: complete at any moment, the same after loading, and within their limits."""

import errno
import math
import os
import time
from functools import partial
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.runs import shelf as module
from mlx_grpo_kit.runs.record import COMPLETIONS, METRICS, RunRecord
from mlx_grpo_kit.runs.shelf import KEPT, Shelf, notebook_name


def train_step(number, reward=0.5, changes=None):
    rows = [
        SimpleNamespace(problem=None, prompt=f"{number}+{group}=", completion="2", group=group, reward=1.0)
        for group in range(2)
        for _ in range(2)
    ]
    return SimpleNamespace(
        step=number, metrics={"reward": reward, "kl": math.nan}, completions=rows, changes=changes or {}
    )


def content(record):
    def steps_of(steps):
        return [(each.step, repr(each.metrics), each.changes) for each in steps]

    completions = [(step.step, step.completions) for step in record.steps]
    return record.title, record.max_steps, steps_of(record.steps), completions, [*map(steps_of, record.abandoned)]


@pytest.fixture
def shelf(tmp_path):
    return Shelf(tmp_path / "outputs", "18_grpo_training")


@pytest.fixture
def record():
    record = RunRecord("tiny learns addition", 9)
    record.settings = {"learning_rate": 1e-3, "stop_strings": None}
    return record


def test_every_step_can_be_read_at_once_even_after_a_rewind(shelf, record):
    saved = shelf.begin(record)
    for number in (1, 2, 3, 4, 5, 3, 4, 4):  # step 3 is repeated, which discards three steps; then step 4 is
        record.add(train_step(number, number / 10, {"learning_rate": 1e-4} if number == 3 else None))
        saved.keep_up()
        assert content(RunRecord.load(saved.path)) == content(record)
    assert [len(branch) for branch in record.abandoned] == [3, 1]
    record.rewind(2)  # without a step after it
    saved.keep_up()
    assert content(RunRecord.load(saved.path)) == content(record)
    saved.keep_up(whole=True)
    loaded = RunRecord.load(saved.path)
    assert content(loaded) == content(record)
    assert loaded.settings == record.settings
    assert loaded.damaged == []


def test_appending_writes_only_what_is_new(shelf, record, monkeypatch):
    saved = shelf.begin(record)
    monkeypatch.setattr(RunRecord, "save", lambda *_: pytest.fail("all of it was written again"))
    for number in range(1, 50):
        record.add(train_step(number))
        saved.keep_up()
    assert content(RunRecord.load(saved.path)) == content(record)


def test_a_kill_in_the_middle_of_a_line_costs_only_that_step(shelf, record):
    saved = shelf.begin(record)
    for number in (1, 2, 3):
        record.add(train_step(number))
        saved.keep_up()
    file = saved.path / METRICS
    file.write_bytes(file.read_bytes()[:-5])
    loaded = RunRecord.load(saved.path)
    assert [step.step for step in loaded.steps] == [1, 2]
    assert loaded.damaged[0].endswith("is cut off and is left out.")


def frozen_time(strftime, words, at=None):
    return strftime(words, at or time.struct_time((2026, 10, 25, 2, 59, 58, 6, 298, -1)))


def test_the_newest_runs_stay_and_a_users_file_is_never_removed(shelf, record, monkeypatch):
    monkeypatch.setattr(module.time, "strftime", partial(frozen_time, module.time.strftime))
    names = []
    for number in range(KEPT + 3):  # all in one second
        saved = shelf.begin(record)
        names.append(saved.path.name)
        if number == 0:
            (saved.path / "notes.txt").write_text("mine")
    assert names == sorted(names)
    left = [run.name for run in shelf.runs()]
    assert left == [*reversed(names[-KEPT:]), names[0]]
    assert (shelf.folder / names[0] / "notes.txt").read_text() == "mine"
    assert Shelf(shelf.place, "another").runs() == []


def test_a_long_run_drops_completions_to_save_space(shelf, record, monkeypatch):
    monkeypatch.setattr(module, "MEGABYTES", 0.01)
    saved = shelf.begin(record)
    for number in range(1, 101):
        record.add(train_step(number))
        saved.keep_up()
        assert (saved.path / COMPLETIONS).stat().st_size <= 0.01e6
    assert saved.every == 4
    assert saved.complaint == ""
    loaded = RunRecord.load(saved.path)
    assert len(loaded) == 100
    assert [step.step for step in loaded.steps if step.line is not None] == [*range(4, 101, 4)]
    for number in range(101, 400):
        record.add(train_step(number))
        saved.keep_up()
    assert "metrics take more than 0.01 MB" in saved.complaint
    size = sum(file.stat().st_size for file in saved.path.iterdir())
    saved.keep_up(whole=True)
    assert sum(file.stat().st_size for file in saved.path.iterdir()) == size


def test_a_full_disk_ends_the_saving_and_not_the_run(shelf, record, monkeypatch):
    saved = shelf.begin(record)

    def full(file, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    monkeypatch.setattr(module, "_append", full)
    record.add(train_step(1))
    saved.keep_up()
    assert "No space left on device" in saved.complaint
    saved.keep_up(whole=True)
    assert len(RunRecord.load(saved.path)) == 0


def test_a_new_folder_is_ignored_by_git_and_an_existing_one_is_unchanged(tmp_path, record):
    Shelf(tmp_path / "new" / "place", "a").begin(record)
    assert (tmp_path / "new" / "place" / ".gitignore").read_text() == "*\n"
    (tmp_path / "old").mkdir()
    Shelf(tmp_path / "old", "a").begin(record)
    assert [each.name for each in (tmp_path / "old").iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("session", "name"),
    [("/home/me/18_grpo_training.ipynb", "18_grpo_training"), ("", "notebook"), ("/a b/../my run!.ipynb", "my_run")],
)
def test_the_name_of_the_notebook(monkeypatch, session, name):
    monkeypatch.setenv("JPY_SESSION_NAME", session)
    assert notebook_name() == name


def test_any_title_makes_one_folder(tmp_path):
    record = RunRecord("../../what? 1/2 \N{SNOWMAN} " + "x" * 300)
    path = Shelf(tmp_path, "a").begin(record).path
    assert path.parent == tmp_path / "a"
    assert len(path.name) < 100
