"""SmolLM2, a real model of 135 million parameters: one GRPO step, and its sampling alone. float32.

8 prompts of 40 tokens, 8 completions of exactly 24 each, one AdamW update. Everybody clips the gradient. The peers of
the step are those of test_step.py, the peers of sampling those of test_generation.py, which read each prompt once for
each completion: a library that knows nothing of groups is given 64 prompts.
"""

import numpy as np

from tests.benchmarks import test_generation as generation
from tests.benchmarks.contest import Contestant
from tests.benchmarks.test_step import TRL, Kit, Work

SIZES = ("tiny", "smollm2")  # where nothing is measured, the small one shows that everybody does the same work
STEP = Work(8, 8, 24, prompt=40)
SHORT = Work(2, 2, 3, prompt=5)  # where nothing is measured


class WithAdapters(Kit):
    """Trains adapters of rank 8; the base does not move."""

    def evidence(self):
        return self.completion_lengths(), [], min(self.generate.seconds)


def test_step_of_a_real_model(model, bench, tmp_path):
    work = STEP if bench.measuring else SHORT
    kit = {"model": model, "work": work}
    results = bench(
        {
            "the kit": Contestant(Kit, kit),
            "the kit, --backend torch": Contestant(Kit, kit | {"backend": "torch"}),
            "the kit, LoRA of rank 8": Contestant(WithAdapters, kit | {"lora_r": 8}),
            "TRL": Contestant(TRL, kit | {"folder": tmp_path}),
        },
        rounds=3,
        warmup_rounds=1,
        targets={"TRL": 1 / 0.45},
        libraries=("mlx_grpo_kit.runtime.blas", "trl.trainer.grpo_trainer"),
        apart=True,
    )
    sampling = {name: min(seconds for _, _, seconds in result.evidence) for name, result in results.items()}
    bench.note("of which sampling, s, best", ", ".join(f"{name} {each:.1f}" for name, each in sampling.items()))
    for name, result in results.items():
        for lengths, resting, _ in result.evidence:
            assert lengths == [work.new] * work.rows, name
            assert resting == [], name


def test_sampling_of_a_real_model(model, bench):
    work = STEP if bench.measuring else SHORT
    once = np.random.default_rng(0).integers(3, 60, (work.prompts, work.prompt)).tolist()
    prompts = [prompt for prompt in once for _ in range(work.group)]
    options = {"model": model, "prompts": prompts, "new": work.new}
    results = bench(
        {
            "the kit": Contestant(generation.Kit, options),
            "the kit, torch's decoder": Contestant(generation.Kit, options | {"with_torch": True}),
            "mlx-lm batch_generate": Contestant(generation.MLXLM, options),
            "transformers generate": Contestant(generation.Transformers, options),
        },
        rounds=3,
        warmup_rounds=1,
        rate=("tokens/s", work.rows * work.new),
        libraries=("torch", "transformers", "mlx_lm.generate"),
    )
    _, expected = results["the kit"].evidence[0]
    for name, result in results.items():
        assert result.evidence == [((work.rows, work.new), expected)] * len(result.evidence), name
