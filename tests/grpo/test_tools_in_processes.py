"""Completions of several turns are the same in any number of processes."""

import json
import subprocess
import sys

import pytest

from mlx_grpo_kit.cli.processes import ring

WORKER = """
import json, sys
from mlx_grpo_kit.assets import TINY_TOOLS
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Calculator, GuessTheNumber

world, found = World.join(), {}
config, params = load_pretrained(TINY_TOOLS)
for task in (Calculator(), GuessTheNumber()):
    args = GRPOConfig(num_generations=4, per_device_train_batch_size=16, learning_rate=5e-4)
    trainer = GRPOTrainer(config, params, load_tokenizer(TINY_TOOLS), task, args, world)
    steps = [[step.metrics | {"step_time": 0}, [[each.prompt, each.completion_ids, each.token_mask, each.messages,
              each.rewards, each.advantage] for each in step.completions]] for step in trainer.train(2)]
    found[task.name] = [steps, trainer.evaluate(6)]
with open(f"{sys.argv[1]}/{world.size}-{world.rank}.json", "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process of worlds of 1, 2 and 4 has seen."""
    folder = tmp_path_factory.mktemp("worlds")
    for count in (1, 2, 4):
        workers = [
            subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], env=each) for each in ring(count, folder)
        ]
        try:
            assert [worker.wait(timeout=120) for worker in workers] == [0] * count
        finally:
            for worker in workers:
                worker.kill()
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("?-?.json")}


@pytest.mark.parametrize("task", ["calculator", "guess"])
@pytest.mark.parametrize("process", ["2-0", "2-1", "4-0", "4-3"])
def test_turns_are_the_same_in_any_number_of_processes(found, task, process):
    steps, evaluated = found["1-0"][task]
    others, evaluated_there = found[process][task]
    assert evaluated_there == pytest.approx(evaluated, rel=1e-6)
    for (metrics, rows), (other_metrics, other_rows) in zip(steps, others, strict=True):
        assert any(False in mask for _, _, mask, *_ in rows)
        assert [row[:5] for row in other_rows] == [row[:5] for row in rows]
        assert [row[5] for row in other_rows] == pytest.approx([row[5] for row in rows], rel=1e-6)
        assert other_metrics == pytest.approx(metrics, rel=1e-3, abs=1e-5)
