"""Where one rank fails, none of them waits for ever: every operation ends within seconds, with words on each rank."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo")

SECONDS = 100
"""How long all scenarios of a run may take. Without a way out they take half an hour, which is torch's timeout."""


def run(folder: Path, *scenarios: str) -> list[dict[str, list[str]]]:
    """What each rank says of each scenario; a rank that hangs is killed, and says nothing of what comes then."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    program = [sys.executable, "-m", "tests.backends.ranks_that_fail", ",".join(scenarios)]
    ranks = [
        subprocess.Popen(
            [*program, rank, str(store.port), folder],
            cwd=Path(__file__).parents[2], env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True,
        )
        for rank in "01"
    ]  # fmt: skip
    said = []
    for rank in ranks:
        try:
            lines, _ = rank.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            rank.kill()
            lines, _ = rank.communicate()
        said.append(dict(map(json.loads, lines.splitlines())))
    return said


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    scenarios = ["loss_raises", "loss_raises_under_fsdp", "optimizer_raises", "batch_is_refused", "disk_is_full"]
    scenarios += ["first_rank_saves_alone", "other_rank_closes"]
    # The last one leaves a thread in a collective of all backends' process group.
    return run(tmp_path_factory.mktemp("ranks"), *scenarios, "model_raises_under_fsdp")


def assert_said(said, scenario, first, second):
    """Every outcome of both ranks begins as the patterns say."""
    for rank, patterns in ((0, first), (1, second)):
        assert scenario in said[rank], f"rank {rank} hangs"
        for found, pattern in zip(said[rank][scenario], patterns, strict=True):
            assert re.match(pattern, found), (rank, found)


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("scenario", ["loss_raises", "loss_raises_under_fsdp"])
def test_a_loss_that_raises_on_one_rank(said, scenario):
    both = [
        r"TrainingError: forward_backward failed \(KeyError: 'advantages'\)",
        "TrainingError: optim_step cannot be done: forward_backward failed before it",
    ]
    assert_said(said, scenario, both, both)


def test_a_model_that_raises_while_the_other_rank_waits_in_a_collective(said):
    after = "TrainingError: optim_step cannot be done: forward_backward failed before it"
    first = r"TrainingError: forward_backward failed \(RuntimeError: rank 1 failed in forward_backward \(IndexError: "
    second = r"TrainingError: forward_backward failed \(IndexError: "
    assert_said(said, "model_raises_under_fsdp", [first, after], [second, after])


def test_an_optimizer_that_raises_on_one_rank(said):
    first = [r"\{'lr': 0.1, ", "TrainingError: get_weights failed .*rank 1 failed in optim_step.*ZeroDivisionError"]
    second = [r"TrainingError: optim_step failed \(ZeroDivisionError", "TrainingError: get_weights cannot be done"]
    assert_said(said, "optimizer_raises", first, second)


def test_a_batch_that_one_rank_refuses_is_refused_by_all_and_they_go_on(said):
    both = ["ValueError: The batch lacks 'labels'", r"\{'loss': "]
    assert_said(said, "batch_is_refused", both, both)


def test_a_full_disk_of_the_first_rank(said):
    both = ["OSError: .*step_0001", "PosixPath.*step_0002"]
    assert_said(said, "disk_is_full", both, both)


def test_an_operation_that_the_other_rank_does_not_submit(said):
    words = r" failed \(RuntimeError: rank 0 is in save_checkpoint, rank 1 is in optim_step. All ranks submit"
    after = "TrainingError: get_weights cannot be done"
    patterns = [[f"TrainingError: {name}{words}", after] for name in ("save_checkpoint", "optim_step")]
    assert_said(said, "first_rank_saves_alone", *patterns)


def test_a_backend_that_the_other_rank_has_closed(said):
    first = [r"\{'loss': ", r"TrainingError: optim_step failed \(RuntimeError: rank 1 closed its backend"]
    assert_said(said, "other_rank_closes", first, [r"\{'loss': ", "RuntimeError: This backend was closed"])


@pytest.mark.timeout(2 * SECONDS)
def test_a_rank_that_is_killed(tmp_path):
    first, second = run(tmp_path, "other_rank_is_killed")
    assert re.match(
        r"TrainingError: optim_step failed \(RuntimeError: Another rank's process is gone",
        first["other_rank_is_killed"][0],
    )
    assert not second
