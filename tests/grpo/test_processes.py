"""Several processes give the run that one gives, to float32 rounding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlx_grpo_kit.cli.processes import ring
from mlx_grpo_kit.grpo import processes
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.qwen3.tokenizer import save_character_tokenizer
from mlx_grpo_kit.runtime import mx

pytestmark = pytest.mark.timeout(1800)  # the first test starts all processes, one world after the other
ROOT = Path(__file__).parents[2]
RUNS = {
    "dapo, cut off completions do not count": dict(mask_truncated_completions=True, stop_strings=[*"012345"]),
    "grpo": dict(loss_type="grpo", per_device_train_batch_size=8, gradient_accumulation_steps=2),
    "advantages over the batch, two updates": dict(scale_rewards="batch", num_iterations=2),
    "KL": dict(beta=0.1, loss_type="dr_grpo"),
    "vespo": dict(loss_type="vespo"),
    "adapters, layer by layer": dict(lora_r=4, gradient_checkpointing=True),
    "adafactor, layer by layer": dict(optim="adafactor", gradient_checkpointing=True, entropy_coef=0.05),
    "groups drawn again, tokens of high entropy": dict(dynamic_sampling_rounds=3, top_entropy_quantile=0.5),
    "two updates per generation, weights for the sampler": dict(
        steps_per_generation=2, importance_sampling_correction="token_truncate", off_policy_mask_threshold=0.5
    ),
    "leave-one-out, overlong": dict(
        advantage_estimator="rloo", scale_rewards="none", loss_type="rloo", soft_punish_cache=3, reward_weights=[0.5]
    ),
    "with torch": dict(backend="torch", beta=0.1),
}


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
WORLDS = [("2", name) for name in RUNS] + [("4", name) for name in RUNS]
WORLDS += [("torchrun", name) for name in ("grpo", "with torch")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What worlds of 1, 2 and 4 processes have written, and in torchrun/ two that torchrun started."""
    folder = tmp_path_factory.mktemp("worlds")
    for each in (folder, folder / "torchrun"):
        each.mkdir(exist_ok=True)
        save_character_tokenizer(each)
    script = ["-m", "tests.grpo.processes_run"]
    for count in (1, 2, 4):
        command = [sys.executable, *script, str(folder), json.dumps([*RUNS.values()]), "tools"]
        workers = [subprocess.Popen(command, cwd=ROOT, env=environment) for environment in ring(count, folder)]
        try:
            assert [worker.wait(timeout=600) for worker in workers] == [0] * count
        finally:
            for worker in workers:
                worker.kill()
    runs = [args if ("torchrun", name) in WORLDS else {} for name, args in RUNS.items()]
    command = [*TORCHRUN, *script, str(folder / "torchrun"), json.dumps(runs)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, timeout=600)
    return folder


def read(folder, size, number, rank=0):
    steps = json.loads((folder / f"{size}-{number}-{rank}.json").read_text())
    params = np.load(folder / f"{size}-{number}-{rank}.npz")
    names = sorted(name for name in params if not name.startswith("start/"))
    return steps, *(np.concatenate([params[before + name].ravel() for name in names]) for before in ("", "start/"))


@pytest.mark.parametrize(("world", "name"), WORLDS)
def test_any_number_of_processes_gives_the_same_run(folder, world, name):
    number = [*RUNS].index(name)
    steps, params, start = read(folder, 1, number)
    where, size = (folder / world, 2) if world == "torchrun" else (folder, int(world))
    others = [read(where, size, number, rank) for rank in range(size)]
    if name not in ("KL", "with torch") and "again" not in name:
        assert min(step["metrics"]["frac_reward_zero_std"] for step in steps) > 0, "some groups are left out"
    for place, step in enumerate(steps):
        for other, *_ in others:
            rows = other[place]["rows"]
            assert [row[:2] for row in rows] == [row[:2] for row in step["rows"]], "the same draws, all in each process"
            np.testing.assert_allclose([row[2:] for row in rows], [row[2:] for row in step["rows"]], rtol=1e-6)
        expected = {name: value for name, value in step["metrics"].items() if name != "step_time"}
        for other, *_ in others:
            metrics = {name: value for name, value in other[place]["metrics"].items() if name != "step_time"}
            assert metrics == pytest.approx(expected, rel=1e-3, abs=1e-6)
    evaluated = [each["evaluated"] for each in (steps[-1], *(other[-1] for other, *_ in others))]
    assert len({tuple(each.values()) for each in evaluated[0]}) > 1
    for theirs in evaluated[1:]:
        for ours, other in zip(evaluated[0], theirs, strict=True):
            assert other == pytest.approx(ours, rel=1e-6)
    moved = abs(params - start).mean()
    for _, theirs, _ in others:
        np.testing.assert_array_equal(theirs, others[0][1], "all processes have the same policy, to the bit")
        # AdamW divides a gradient by its own size, so where that is all rounding a number may go another way.
        assert np.mean(abs(theirs - params) < 1e-5) > 0.999
        assert abs(theirs - params).mean() < 1e-3 * moved


@pytest.mark.parametrize("task", ["calculator", "guess"])
@pytest.mark.parametrize("process", ["2-tools-0", "2-tools-1", "4-tools-0", "4-tools-3"])
def test_turns_are_the_same_in_any_number_of_processes(folder, task, process):
    (steps, evaluated), (others, evaluated_there) = (
        json.loads((folder / f"{name}.json").read_text())[task] for name in ("1-tools-0", process)
    )
    assert evaluated_there == pytest.approx(evaluated, rel=1e-6)
    for (metrics, rows), (other_metrics, other_rows) in zip(steps, others, strict=True):
        assert any(False in mask for _, _, mask, *_ in rows)
        assert [row[:5] for row in other_rows] == [row[:5] for row in rows]
        assert [row[5] for row in other_rows] == pytest.approx([row[5] for row in rows], rel=1e-6)
        assert other_metrics == pytest.approx(metrics, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_fails_in_one_process_fails_in_all(folder, size):
    for rank in range(size):
        words = json.loads((folder / f"{size}-words-{rank}.json").read_text())
        kind = "KeyError" if rank == size - 1 else "TaskError"
        assert words.get("together") == f"{kind}: 'lost'"
        assert ("Process 1 has a different state from process 0" in words.get("apart", "")) == (size > 1)
        assert ("3 groups of 4 completions, which do not divide evenly" in words.get("division", "")) == (size > 1)


def test_a_process_by_itself_is_a_world(monkeypatch):
    monkeypatch.delenv("MLX_RANK", raising=False)
    world = World.join()
    assert (world.rank, world.size) == (0, 1)
    assert world.share(3) == range(3)
    np.testing.assert_array_equal(world.concatenate(np.eye(3)), np.eye(3))


def test_messages_are_bounded_unless_one_parameter_is_larger(monkeypatch):
    sent = []

    class Exchange:
        rank, size = 0, 2

        def all_sum(self, values):
            sent.append(values.tolist())
            return values

    monkeypatch.setattr(processes, "MESSAGE", 10)
    sizes = dict(a=4, b=6, c=1, d=25, e=9, f=1, g=1)
    arrays = {name: mx.full(size, float(number)) for number, (name, size) in enumerate(sizes.items())}
    World(Exchange()).sum(arrays)
    assert sent == [[0] * 4 + [1] * 6, [2], [3] * 25, [4] * 9 + [5], [6]]
