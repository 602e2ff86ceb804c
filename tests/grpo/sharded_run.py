"""The runs of `test_sharding.py`, in one process or several: python -m tests.grpo.sharded_run FOLDER SHARDED COUNT.

SIZE-SHARDED-NUMBER in FOLDER gets each run's metrics, what it learned, and a checkpoint, of the first COUNT runs.
"""

import faulthandler
import json
import sys
from pathlib import Path

import numpy as np

from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params
from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer
from mlx_grpo_kit.tasks import Problem

RUNS = {
    "groups without advantage, in some processes only": dict(weight_decay=0.1, max_grad_norm=0.02),
    "two micro-batches, truncated completions do not count": dict(
        per_device_train_batch_size=12,
        gradient_accumulation_steps=2,
        mask_truncated_completions=True,
        stop_strings=[*"012345"],
    ),
    "KL, untied": dict(beta=0.1, loss_type="dr_grpo"),
    "two updates per generation, weights for the sampler": dict(
        per_device_train_batch_size=12,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        importance_sampling_correction="token_truncate",
    ),
    "two iterations, entropy, tokens of high entropy": dict(
        num_iterations=2, entropy_coef=0.05, top_entropy_quantile=0.5
    ),
}
STEPS = 2


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


def assert_same_metrics(found, expected, rel=1e-3):
    """Two runs' metrics of a step, except for times, are the same to rounding."""
    assert found.keys() == expected.keys()
    for name in found:
        if "time" not in name:
            bound = 1e-5 if "sampling_logp_difference" in name else 1e-6  # that difference is rounding itself
            assert abs(found[name] - expected[name]) <= max(rel * abs(expected[name]), bound), name


def make(folder, name, world, learner=None, **args):
    tokenizer = load_tokenizer(folder)
    config = Qwen3Config(
        vocab_size=tokenizer.vocab_size, hidden_size=10, intermediate_size=14, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, head_dim=6, max_position_embeddings=64,
        tie_word_embeddings="untied" not in name,
    )  # fmt: skip
    args = dict(num_generations=4, per_device_train_batch_size=24, learning_rate=1e-3, backend="torch") | args
    params = init_params(config, seed=1, scale=0.3)
    return GRPOTrainer(config, params, tokenizer, Sevens(), GRPOConfig(**args), world, learner=learner)


def as_json(step):
    rows = [[c.prompt, c.completion_ids, c.advantage, c.reward] for c in step.completions]
    return {"metrics": step.metrics, "rows": rows}


def main(folder, sharded, count):
    world = World.join(sharded)
    for number, (name, args) in enumerate([*RUNS.items()][:count]):
        to = folder / f"{world.size}-{sharded}-{number}"
        trainer = make(folder, name, world, **args)
        steps, evaluated = [], []
        for step in trainer.train(STEPS):
            steps.append(as_json(step))
            evaluated += [trainer.evaluate(n, num_samples=k) for n, k in ((1, 1), (3, 2))]
        held = sum(value.size for value in trainer.policy.trained.values())
        trainer.save_checkpoint(to)
        after = [as_json(step) for step in trainer.train(STEPS + 2)]
        params = trainer.params
        resumed = GRPOTrainer.resume(to, Sevens(), world=world)
        again = [as_json(step) for step in resumed.train(STEPS + 2)]
        if world.rank == 0:
            np.savez(to.with_suffix(".npz"), **{name: np.array(value) for name, value in params.items()})
            found = {"steps": steps, "evaluated": evaluated, "held": held, "after": after, "again": again}
            to.with_suffix(".json").write_text(json.dumps(found))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(100, exit=True)
    main(Path(sys.argv[1]), sys.argv[2] == "True", int(sys.argv[3]))
