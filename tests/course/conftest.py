"""Exercises are tried with a progress file of their own, never with the reader's."""

import pytest

from mlx_grpo_kit.course import record


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv(record.PLACE, str(tmp_path / "progress.json"))
    monkeypatch.setattr(record, "passed_here", {})
    monkeypatch.setattr("mlx_grpo_kit.course.desk.passed_here", record.passed_here)
    monkeypatch.setattr("mlx_grpo_kit.course.desk._opened", {})
