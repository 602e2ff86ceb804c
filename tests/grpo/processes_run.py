"""The runs of `test_processes.py`, in one of several processes: python -m tests.grpo.processes_run FOLDER RUNS [TOOLS].

RUNS is a list of settings as JSON. SIZE-RUN-RANK in FOLDER gets what a run has learned, and its metrics. With a third
argument SIZE-tools-RANK gets what tasks of several turns give.
"""

import faulthandler
import json
import sys
from pathlib import Path

import numpy as np

from mlx_grpo_kit.assets import TINY_TOOLS
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, processes
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, load_pretrained
from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer
from mlx_grpo_kit.tasks import Calculator, GuessTheNumber, Problem, TaskError
from tests.sizes import ONE_LAYER


class Sevens:
    name, max_completion_length = "sevens", 4

    def __init__(self):
        self.reward_funcs = [self.sevens]

    def sevens(self, problems, completions):
        """Only for some prompts, so that other groups have no advantage at all."""
        return [
            c.count("7") / 4 + len(c) / 8 if len(p.prompt) % 2 else 0.0
            for p, c in zip(problems, completions, strict=True)
        ]

    def sample(self, rng, n):
        return [Problem(prompt=f"{n}=", answer="") for n in rng.integers(0, 200, n)]

    def held_out(self, n):
        return [Problem(prompt=f"{number * 37}=", answer="") for number in range(n)]

    def is_correct(self, problem, completion):
        return len(completion) % 2 == 0


def in_turns(world):
    """{task: (steps, evaluation)} of tasks of several turns."""
    config, params = load_pretrained(TINY_TOOLS)
    found = {}
    for task in (Calculator(), GuessTheNumber()):
        args = GRPOConfig(num_generations=4, per_device_train_batch_size=16, learning_rate=5e-4)
        trainer = GRPOTrainer(config, params, load_tokenizer(TINY_TOOLS), task, args, world)
        steps = []
        for step in trainer.train(2):
            rows = [[each.prompt, each.completion_ids, each.token_mask, each.messages, each.rewards, each.advantage]
                    for each in step.completions]  # fmt: skip
            steps.append([step.metrics | {"step_time": 0}, rows])
        found[task.name] = steps, trainer.evaluate(6)
    return found


def main(folder, runs, tools):
    world = World.join()
    processes.MESSAGE = 500  # so that gradients go in several messages
    tokenizer = load_tokenizer(folder)
    config = Qwen3Config(
        vocab_size=tokenizer.vocab_size, **ONE_LAYER, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip

    def trainer(**args):
        args = dict(num_generations=4, per_device_train_batch_size=16, learning_rate=1e-3) | args
        params = init_params(config, seed=1, scale=0.3)
        return GRPOTrainer(config, params, tokenizer, Sevens(), GRPOConfig(**args), world)

    for number, args in enumerate(runs):
        one = trainer(**args)
        steps, start = [], {f"start/{k}": np.array(v) for k, v in one.policy.trained.items()}
        for step in one.train(3):
            rows = [[c.prompt, c.completion_ids, c.advantage, c.reward] for c in step.completions]
            steps.append({"metrics": step.metrics, "rows": rows})
            steps[-1]["evaluated"] = [one.evaluate(n, num_samples=k) for n, k in ((1, 1), (2, 1), (3, 3), (7, 2))]
        end = {k: np.array(v) for k, v in one.policy.trained.items()}
        np.savez(folder / f"{world.size}-{number}-{world.rank}.npz", **start, **end)
        (folder / f"{world.size}-{number}-{world.rank}.json").write_text(json.dumps(steps))

    words = {}
    try:
        with world.together(TaskError, KeyError):
            if world.rank == world.size - 1:
                raise KeyError("lost")
    except (TaskError, KeyError) as error:
        words["together"] = f"{type(error).__name__}: {error}"
    try:
        next(trainer(seed=world.rank).train(1))
    except ValueError as error:
        words["apart"] = str(error)
    try:
        trainer(per_device_train_batch_size=12)
    except ValueError as error:
        words["division"] = str(error)
    (folder / f"{world.size}-words-{world.rank}.json").write_text(json.dumps(words))
    if tools:
        (folder / f"{world.size}-tools-{world.rank}.json").write_text(json.dumps(in_turns(world)))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(580, exit=True)
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
