"""A dashboard's run after a restart: it was saved step by step, one line opens it, and saving never disturbs it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlx_grpo_kit.instruments.dashboard import Dashboard
from mlx_grpo_kit.runs.record import RunRecord


def trained(fake, folder, steps=12, **settings):
    dashboard = Dashboard(fake.FakeTrainer(), max_steps=steps, title="A run", save_to=folder, **settings)
    dashboard.start().wait(30)
    return dashboard


def same(one, other):
    told = [dashboard.answer({"all": True}) for dashboard in (one, other)]
    names = ("steps", "columns", "changes", "abandoned", "panels", "kept")
    return [told[0][name] for name in names] == [told[1][name] for name in names]


def test_a_run_is_opened_by_its_number_on_the_shelf_or_by_its_folder(fake, tmp_path):
    first, second = trained(fake, tmp_path), trained(fake, tmp_path, 7)
    assert second._status()["saved"].startswith("This run is saved. Dashboard.open() shows it again")
    newest, before = (Dashboard.open(place, save_to=tmp_path) for place in (0, 1))
    assert same(newest, second)
    assert same(before, first)
    assert same(Dashboard.open(first._saving.path), first)
    assert newest.data["title"] == "A run"
    assert newest.data["settings"] == second.data["settings"]
    assert newest.answer({"completions": [3]}) == second.answer({"completions": [3]})
    assert newest._status()["saved"] == ""
    with pytest.raises(FileNotFoundError, match="has no run 2; it has 2 saved runs, counted from 0"):
        Dashboard.open(2, save_to=tmp_path)


def test_changes_after_the_end_are_saved_too(fake, tmp_path):
    dashboard = trained(fake, tmp_path)
    dashboard.answer({"order": "rewind", "step": 5, "rate": "0.5"})
    dashboard.run.wait(30)
    assert len(dashboard.record.abandoned) == 1
    again = Dashboard.open(save_to=tmp_path)
    assert same(again, dashboard)
    assert again.answer({"all": True})["changed"] == {"learning_rate": [(6, "0.5")]}


def test_a_killed_kernel_leaves_all_finished_steps(tmp_path):
    program = f"""
import importlib.util, os
spec = importlib.util.spec_from_file_location("fake", {str(Path(__file__).with_name("fake_trainer.py"))!r})
fake = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake)
from mlx_grpo_kit.instruments.dashboard import Dashboard
def measure(step):
    if step.step == 25:
        os._exit(9)
Dashboard(fake.FakeTrainer(), max_steps=50, save_to={str(tmp_path)!r}, measure=measure).start().wait(30)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    [run] = (tmp_path / "notebook").iterdir() if (tmp_path / "notebook").exists() else tmp_path.glob("*/*")
    dashboard = Dashboard.open(run)
    assert [step.step for step in dashboard.record.steps] == [*range(1, 25)]
    assert dashboard.record.damaged == []
    assert dashboard.status.startswith("a saved run: step 24 of 50")


def test_nothing_is_written_outside_a_notebook(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Dashboard(fake.FakeTrainer(), max_steps=2).start().wait(30)
    trained(fake, False)
    assert [*tmp_path.iterdir()] == []
    Dashboard(fake.FakeTrainer(), max_steps=2, save_to=tmp_path / "a")  # never started
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_cannot_be_written_is_named_and_the_run_continues(fake, tmp_path):
    (tmp_path / "file").write_text("mine")
    dashboard = trained(fake, tmp_path / "file")
    assert len(dashboard.record) == 12
    assert dashboard._status()["saved"].startswith("The run is not saved: ")
    assert str(tmp_path / "file") in dashboard._status()["saved"]


def test_saving_takes_hardly_any_time(fake, tmp_path):
    def seconds(save_to):
        began = time.perf_counter()
        trained(fake, save_to, steps=200)
        return time.perf_counter() - began

    seconds(False)
    assert seconds(tmp_path) < seconds(False) + 2.0


def test_a_saved_run_can_be_written_elsewhere(fake, tmp_path):
    trained(fake, tmp_path)
    Dashboard.open(save_to=tmp_path).record.save(tmp_path / "kept")
    assert len(RunRecord.load(tmp_path / "kept")) == 12
