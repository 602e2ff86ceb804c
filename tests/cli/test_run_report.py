"""The first process reports a run, and the others pass through the same loop in silence."""

import os
import subprocess
import sys

import pytest

from mlx_grpo_kit.cli.processes import ring
from mlx_grpo_kit.cli.train import NoReport, Report
from mlx_grpo_kit.grpo import TrainingDivergedError
from mlx_grpo_kit.grpo.processes import ProcessLostError
from mlx_grpo_kit.tasks import TaskError


def test_both_reports_have_the_same_methods():
    reported, silent = ({name for name in vars(each) if not name.startswith("_")} for each in (Report, NoReport))
    assert reported == silent


@pytest.mark.parametrize("error", [TaskError("no"), ValueError("no"), TrainingDivergedError("no")])
def test_an_error_of_all_processes_is_left_to_the_first(error):
    with NoReport(None):
        raise error


@pytest.mark.parametrize("error", [OSError("no"), ProcessLostError("no"), RuntimeError("no"), KeyboardInterrupt()])
def test_an_error_of_one_process_is_its_own(error):
    with pytest.raises(type(error)), NoReport(None):
        raise error


@pytest.mark.parametrize("options", [["--output", "file"], ["--output", "out", "--task", "nothing"]])
def test_bad_input_is_reported_once_where_every_process_is_started_by_itself(options, tmp_path):
    """As mlx.launch starts them: no parent has looked at the options, and every process reads them."""
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "mlx_grpo_kit", "train", *options]
    paths = os.pathsep.join(path for path in sys.path if path)
    running = [
        subprocess.Popen(command, env=each | {"PYTHONPATH": paths}, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        for each in ring(2, tmp_path)
    ]
    (first, second) = (process.communicate(timeout=120)[1] for process in running)
    assert [process.returncode for process in running] == [2, 0]
    assert first.startswith("error: ")
    assert first.count("\n") == 1
    assert second == ""
