"""One GRPO step with random stops: 4 prompts of 12 tokens, 8 completions of each, of 1 to 128 tokens, in float32.

A completion ends with the first draw of the end token, one of 64 tokens that the small model finds about equally
likely. So the number of tokens differs from step to step, and the seconds of a step are scaled to the mean number.
"""

import time

from tests.benchmarks import test_step
from tests.benchmarks.contest import Contestant
from tests.benchmarks.test_step import Work

SIZES = ("tiny",)
LONGEST, CHANCE = 128, 1 / 64
WORK = Work(4, 8, LONGEST, steps_a_turn=1, random_stops=True)
TOKENS = WORK.rows * (1 - (1 - CHANCE) ** LONGEST) / CHANCE


class Ragged:
    def turn(self):
        started = time.perf_counter()
        seconds = super().turn() or time.perf_counter() - started
        return seconds * TOKENS / sum(self.completion_lengths())


class Kit(Ragged, test_step.Kit): ...


class TRL(Ragged, test_step.TRL): ...


def test_grpo_step_with_random_stops(model, bench, tmp_path):
    kit = {"model": model, "work": WORK}
    results = bench(
        {
            "the kit": Contestant(Kit, kit),
            "the kit, --backend torch": Contestant(Kit, kit | {"backend": "torch"}),
            "TRL": Contestant(TRL, kit | {"folder": tmp_path}),
        },
        rounds=15,
        targets={"TRL": 1 / 0.6},
        libraries=("mlx_grpo_kit.runtime.blas", "trl.trainer.grpo_trainer"),
    )
    for name, result in results.items():
        for lengths, resting, _ in result.evidence:
            assert len(lengths) == WORK.rows, name
            assert len({*lengths}) > 1, name
            assert max(lengths) <= LONGEST, name
            assert resting == [], name
