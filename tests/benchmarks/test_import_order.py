"""The shipped run, twenty steps a turn, in a process that imports torch first and in one that imports the kit first."""

from tests.benchmarks.contest import Contestant


class Run:
    def __init__(self, steps):
        from mlx_grpo_kit.assets import TINY
        from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
        from mlx_grpo_kit.grpo.recipe import TINY_ARGS
        from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
        from mlx_grpo_kit.tasks import Addition

        trainer = GRPOTrainer(*load_pretrained(TINY), load_tokenizer(TINY), Addition(), GRPOConfig(**TINY_ARGS))
        self.run, self.steps, self.rewards = trainer.train(10**6), steps, []

    def turn(self):
        self.rewards += [next(self.run).metrics["reward"] for _ in range(self.steps)]

    def evidence(self):
        return self.rewards


def test_import_order(bench):
    options = {"steps": 20 if bench.measuring else 2}
    results = bench(
        {
            "the kit, imported after torch": Contestant(Run, options, first=("torch",)),
            "the kit, imported before torch": Contestant(Run, options),
        },
        targets={"the kit, imported before torch": 0.9},
        rounds=7,
        libraries=("mlx_grpo_kit.runtime.blas", "torch"),
    )
    after, before = (result.evidence for result in results.values())
    assert after[0]
    assert after == before
