"""The first process reports a run, and the others pass through the same loop in silence."""

import json
import os
import shlex
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
    with NoReport():
        raise error


@pytest.mark.parametrize("error", [OSError("no"), ProcessLostError("no"), RuntimeError("no"), KeyboardInterrupt()])
def test_an_error_of_one_process_is_its_own(error):
    with pytest.raises(type(error)), NoReport():
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


KIT = [sys.executable, "-m", "mlx_grpo_kit"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *KIT[1:]]
SMALL = ["--num-generations", "4", "--per-device-train-batch-size", "16", "--eval-problems", "8", "--eval-every", "1"]
SMALL += ["--lr-scheduler-type", "constant", "--backend", "torch"]


def train(command, output, *options):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*command, "train", "--output", str(output), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_run_of_torchrun_is_that_of_one_process_and_its_report_says_how_to_continue_it(tmp_path):
    """It goes on in one process, and the whole run is the one that a single process makes."""
    straight, output = tmp_path / "straight", tmp_path / "torchrun"
    assert train(KIT, straight, *SMALL, "--max-steps", "3").returncode == 0
    result = train(TORCHRUN, output, *SMALL, "--max-steps", "2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Done: ") == 1, "only the first process prints"
    [typed] = [line for line in result.stdout.splitlines() if line.startswith("Go on:")]
    go_on = ["train", "--output", str(output), "--resume", "--max-steps", "4"]
    assert shlex.split(typed)[3:] == [*TORCHRUN[1:], *go_on]
    assert train(KIT, output, "--resume", "--max-steps", "3").returncode == 0
    found, expected = ([*map(json.loads, (each / "metrics.jsonl").open())] for each in (output, straight))
    for line, other in zip(found, expected, strict=True):
        assert {**line, "step_time": 0} == pytest.approx({**other, "step_time": 0}, rel=1e-3, abs=1e-6)


def test_processes_that_torchrun_has_started_start_no_others(tmp_path):
    result = train(TORCHRUN, tmp_path / "run", "--processes", "2")
    assert result.returncode != 0
    assert "error: --processes is 2, and torchrun has started the processes." in result.stderr
    assert not (tmp_path / "run").exists()
