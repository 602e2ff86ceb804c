"""The shipped run, twenty steps a turn, in a process that imports torch first and in one that imports the kit first."""

import subprocess
import sys

STEPS = """
import sys
from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.grpo.recipe import TINY_ARGS
from mlx_grpo_kit.tasks import Addition

trainer = GRPOTrainer(*load_pretrained(TINY), load_tokenizer(TINY), Addition(), GRPOConfig(**TINY_ARGS))
steps = trainer.train(10**6)
for line in sys.stdin:
    rewards = [next(steps).metrics["reward"] for _ in range(int(line))]
    print(sum(rewards), flush=True)
"""


def start(*modules: str) -> subprocess.Popen:
    imports = "".join(f"import {module}\n" for module in modules)
    command = [sys.executable, "-c", imports + STEPS]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def turn(process: subprocess.Popen, steps: int) -> str:
    process.stdin.write(f"{steps}\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_import_order(race, benchmark):
    steps = 20 if benchmark.enabled else 2
    with start("torch") as torch_first, start("mlx_grpo_kit.runtime.blas", "torch") as kit_first:
        found = []
        race(
            lambda: found.append(turn(torch_first, steps)),
            {"the kit, imported before torch": lambda: found.append(turn(kit_first, steps))},
            targets={"the kit, imported before torch": 0.9},
            rounds=7,
        )
        for process in (torch_first, kit_first):
            process.stdin.close()
    assert all(found)
    assert found[0::2] == found[1::2]
