"""Processes that share one policy (`--fsdp`) learn what one process learns, and none of them holds it all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlx_grpo_kit.cli.processes import ring
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, estimate_memory
from mlx_grpo_kit.grpo.checkpoint import load_checkpoint
from mlx_grpo_kit.grpo.learners import TorchLearner
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.grpo.sharding import check_sharded
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.qwen3.tokenizer import save_character_tokenizer
from tests.grpo.sharded_run import RUNS, STEPS, Sevens, as_json, assert_same_metrics, make

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
CASES = [("2-True", name) for name in RUNS]  # two under torchrun
CASES += [("3-True", name) for name in [*RUNS][:2]]  # three in MLX's ring
CASES += [("2-False", name) for name in [*RUNS][:1]]  # two under torchrun, each with the whole policy


def run(*command, **environment):
    subprocess.run([*command], cwd=ROOT, env=os.environ | environment, check=True, timeout=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What one process and several, sharded or not, have written."""
    folder = tmp_path_factory.mktemp("sharded")
    save_character_tokenizer(folder)
    script = ["-m", "tests.grpo.sharded_run", str(folder)]
    run(sys.executable, *script, "False", "5")
    run(*TORCHRUN, "2", *script, "True", "5", OMP_NUM_THREADS="1")
    run(*TORCHRUN, "2", *script, "False", "1", OMP_NUM_THREADS="1")
    workers = [
        subprocess.Popen([sys.executable, *script, "True", "2"], cwd=ROOT, env=environment)
        for environment in ring(3, folder)
    ]
    try:
        assert [worker.wait(timeout=200) for worker in workers] == [0] * 3
    finally:
        for worker in workers:
            worker.kill()
    return folder


def read(folder, world, name):
    path = folder / f"{world}-{[*RUNS].index(name)}"
    return json.loads(path.with_suffix(".json").read_text()), dict(np.load(path.with_suffix(".npz")))


def assert_steps(steps, expected, rel=1e-3):
    for one, other in zip(steps, expected, strict=True):
        assert [row[:2] for row in one["rows"]] == [row[:2] for row in other["rows"]], "the same draws"
        assert_same_metrics(one["metrics"], other["metrics"], rel)


@pytest.mark.parametrize(("world", "name"), CASES)
def test_it_is_the_run_of_one_process(folder, world, name):
    found, params = read(folder, world, name)
    expected, whole = read(folder, "1-False", name)
    assert_steps(found["steps"], expected["steps"])
    assert_steps(found["after"], expected["after"])
    for one, other in zip(found["evaluated"], expected["evaluated"], strict=True):
        assert one == pytest.approx(other)
    for key, value in whole.items():
        np.testing.assert_allclose(params[key], value, rtol=1e-3, atol=1e-5, err_msg=key)


@pytest.mark.parametrize(("world", "name"), CASES)
def test_a_process_holds_its_share(folder, world, name):
    found, params = read(folder, world, name)
    numbers = sum(value.size for value in params.values())
    size = int(world[0]) if world.endswith("True") else 1
    assert numbers / size <= found["held"] < numbers / size + len(params)


@pytest.mark.parametrize(("world", "name"), CASES)
def test_a_checkpoint_goes_on_as_if_nothing_had_happened(folder, world, name):
    found, _ = read(folder, world, name)
    for one, other in zip(found["again"], found["after"], strict=True):
        assert one["rows"] == other["rows"]
        assert {**one["metrics"], "step_time": 0} == {**other["metrics"], "step_time": 0}


@pytest.mark.parametrize(("world", "name"), CASES)
def test_a_checkpoint_is_that_of_one_process(folder, world, name):
    """And so any number of processes, sharded or not, can continue from it."""
    number = [*RUNS].index(name)
    theirs, whole = (load_checkpoint(folder / f"{each}-{number}") for each in (world, "1-False"))
    assert theirs.origin == whole.origin
    pairs = {"parameters": (theirs.policy.trained, whole.policy.trained)}
    pairs |= {key: (theirs.optimizer_state[key], whole.optimizer_state[key]) for key in whole.policy.trained}
    if whole.policy.reference is not None:
        pairs["reference"] = theirs.policy.reference, whole.policy.reference
    for key, (one, other) in pairs.items():
        assert one.keys() == other.keys()
        for part in other:
            np.testing.assert_allclose(np.array(one[part]), np.array(other[part]), rtol=2e-3, atol=1e-5, err_msg=key)
    assert theirs.optimizer_state["step"].item() == whole.optimizer_state["step"].item()
    task = Sevens()
    resumed = GRPOTrainer.resume(folder / f"{world}-{number}", task)
    expected = read(folder, "1-False", name)[0]["after"]
    assert_steps([as_json(step) for step in resumed.train(STEPS + 2)], expected)


LIMIT = 1000
"""Megabytes that each process may allocate for a model of 270 MB and its training, which take 1,240 in one process."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's data")
def test_a_model_that_does_not_fit_into_one_process_trains_in_two(folder):
    script = ["-m", "tests.grpo.sharded_memory", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "timeout": 280}
    alone = subprocess.run([sys.executable, *script, "False", str(LIMIT)], check=False, **quiet)
    assert alone.returncode != 0
    assert "allocate" in alone.stderr.splitlines()[-1], alone.stderr
    two = subprocess.run([*TORCHRUN, "2", *script, "True", str(LIMIT)], check=False, **quiet)
    assert two.returncode == 0, two.stderr
    found = json.loads(two.stdout)
    assert min(found["norms"]) > 0
    # Layers that stayed whole until the backward pass would add 100 MB.
    assert max(found["peaks"].values()) < 1.15 * found["estimate"]


def refusal(world=None, **args):
    with pytest.raises(ValueError, match="fsdp") as error:
        check_sharded(GRPOConfig(**{"backend": "torch"} | args), 2 if world is None else world)
    return str(error.value)


def test_what_it_does_not_support_it_refuses():
    assert "this is only one. Start several: torchrun --nproc-per-node 2" in refusal(world=1)
    assert "backend is 'mlx', and fsdp needs torch's learner" in refusal(backend="mlx")
    assert "backend is 'jax'" in refusal(backend="jax")
    assert "backend is 'mlx'" in refusal(backend="mlx", lora_r=8)
    for args in ({"optim": "adafactor"}, {"sync_ref_model": True, "beta": 0.1}, {"gradient_statistics": True}):
        assert f"fsdp does not support {next(iter(args))}" in refusal(**args)
    check_sharded(GRPOConfig(backend="torch", beta=0.1), 2)


class Second(World):
    """A sharded world of two, seen from the second process, in which nothing is exchanged."""

    def __init__(self):
        super().__init__(sharded=True)
        self.rank, self.size = 1, 2

    def gather(self, values):
        return np.concatenate([values, values])


def test_a_trainer_and_a_learner_refuse_it_too(folder):
    with pytest.raises(ValueError, match="this is only one"):
        make(folder, "", World(sharded=True))
    with pytest.raises(ValueError, match="learner is TorchLearner, which needs whole parameters, and fsdp gives"):
        make(folder, "", Second(), TorchLearner)
    make(folder, "", Second())


def test_an_estimate_counts_the_share_of_a_process():
    config, args = Qwen3Config.from_name("0.6B"), GRPOConfig(per_device_train_batch_size=8, backend="torch")
    whole, half = (estimate_memory(config, args, 64, 64, processes=2, sharded=each) for each in (False, True))
    for name in ("parameters", "optimizer", "gradients"):
        assert half[name] == pytest.approx(whole[name] / 2)
    assert half["whole weights"] == whole["parameters"]
    always = half["parameters"] + half["optimizer"]
    assert half["total"] > always + max(half["whole weights"], half["gradients"])
