"""`train --fsdp`: processes share one policy, and the run, its folder and its checkpoints are those of one process."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_grpo_kit.qwen3 import load_pretrained
from tests.grpo.sharded_run import assert_same_metrics

PYTHON = [sys.executable, "-m"]
TORCHRUN = [*PYTHON, "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
SIZES = ["--num-generations", "4", "--per-device-train-batch-size", "16", "--eval-problems", "8", "--eval-every", "1"]
SIZES += ["--lr-scheduler-type", "constant"]


def train(start, output, *options):
    command = [*start, "mlx_grpo_kit", "train", "--output", str(output), *map(str, options)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def metrics(output):
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if "time" not in name} for line in lines]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    output = tmp_path_factory.mktemp("alone") / "run"
    result = train(PYTHON, output, "--backend", "torch", *SIZES, "--max-steps", 5)
    assert result.returncode == 0, result.stderr
    return metrics(output)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    output = tmp_path_factory.mktemp("shared") / "run"
    options = ["--backend", "torch", "--fsdp", *SIZES, "--save-every", 2, "--keep-best", "--max-steps", 3]
    return output, train(TORCHRUN, output, *options)


def assert_lines(lines, expected):
    for one, other in zip(lines, expected, strict=True):
        assert_same_metrics(one, other)


def test_the_run_and_its_folder(shared, alone):
    output, result = shared
    assert result.returncode == 0, result.stderr
    assert_lines(metrics(output), alone[:4])
    assert sorted(path.name for path in (output / "checkpoints").iterdir()) == ["step-000002", "step-000003"]
    for folder in (output / "policy", output / "checkpoints" / "step-000003" / "model"):
        load_pretrained(folder)
    [typed] = [line for line in result.stdout.splitlines() if line.startswith("Go on:")]
    assert "torch.distributed.run --standalone --nproc-per-node 2 -m mlx_grpo_kit train" in typed
    assert "--fsdp" in shlex.split(typed)
    assert "in each process" in result.stdout.splitlines()[0]
    assert result.stdout.count("Done: ") == 1, "only the first process prints"


def test_it_goes_on_in_other_processes_and_in_one(shared, alone):
    output, _ = shared
    result = train(PYTHON, output, "--resume", "--max-steps", 4, "--processes", 2, "--fsdp")
    assert result.returncode == 0, result.stderr
    assert "--resume --processes 2 --fsdp --max-steps 8" in result.stdout
    result = train(PYTHON, output, "--resume", "--max-steps", 5)
    assert result.returncode == 0, result.stderr
    assert_lines(metrics(output), alone)


@pytest.mark.parametrize(
    ("start", "options", "words"),
    [
        (PYTHON, ["--backend", "torch"], "fsdp divides a policy among several processes, and this is only one."),
        (PYTHON, ["--processes", "2"], "backend is 'mlx', and fsdp needs torch's learner"),
        (TORCHRUN, ["--processes", "2"], "--processes is 2, and torchrun has started the processes."),
        (TORCHRUN, ["--backend", "torch", "--optim", "adafactor"], "fsdp does not support optim='adafactor'"),
    ],
)
def test_bad_input_is_one_line(start, options, words, tmp_path):
    result = train(start, tmp_path / "run", "--fsdp", *options)
    assert result.returncode != 0
    assert f"error: {words}" in result.stderr
    assert not (tmp_path / "run").exists()
