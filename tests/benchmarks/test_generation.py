"""Batched generation: 32 prompts of 12 tokens, 64 new tokens each, drawn at temperature 1."""

import numpy as np

from tests.benchmarks.contest import Contestant

ROWS, PROMPT, NEW = 32, 12, 64

# Different prompts, so that the kit cannot read one prompt for a whole group here.
PROMPTS = np.random.default_rng(0).integers(3, 64, (ROWS, PROMPT)).tolist()


class Drawer:
    """A turn draws; the evidence is the shape of what the last turn drew, and eight greedy tokens of each row.

    A subclass returns completions from `draw(temperature, num_new)`.
    """

    def turn(self):
        self.drawn = self.draw(1.0, NEW)

    def evidence(self):
        return np.shape(self.drawn), self.draw(0.0, 8)


class Kit(Drawer):
    def __init__(self, model):
        self.config, self.params = model.kit()

    def draw(self, temperature, num_new):
        from mlx_grpo_kit.generation import SamplingConfig, generate

        sampling = SamplingConfig(num_new, temperature)
        return generate(self.config, self.params, PROMPTS, sampling=sampling).completions


class MLXLM(Drawer):
    class NoEnd:
        """What mlx-lm asks of a tokenizer, where nothing ends a row."""

        eos_token_ids = ()

        @staticmethod
        def decode(ids) -> str:
            return ""

    def __init__(self, model):
        self.model = model.mlx_lm()

    def draw(self, temperature, num_new):
        from mlx_lm.generate import batch_generate
        from mlx_lm.sample_utils import make_sampler

        return batch_generate(
            self.model,
            self.NoEnd,
            PROMPTS,
            max_tokens=num_new,
            sampler=make_sampler(temperature),
            return_token_ids=True,
            completion_batch_size=ROWS,
            prefill_batch_size=ROWS,
        ).token_ids


class Transformers(Drawer):
    def __init__(self, model):
        self.model = model.transformers().eval()

    def draw(self, temperature, num_new):
        import torch

        how = dict(do_sample=True, temperature=temperature, top_k=0) if temperature else dict(do_sample=False)
        with torch.no_grad():
            tokens = self.model.generate(
                torch.tensor(PROMPTS),
                attention_mask=torch.ones(ROWS, PROMPT, dtype=torch.long),
                max_new_tokens=num_new,
                eos_token_id=None,
                pad_token_id=0,
                **how,
            )
        return tokens[:, PROMPT:].tolist()


def test_generation(model, bench):
    makers = {"the kit": Kit, "mlx-lm batch_generate": MLXLM, "transformers generate": Transformers}
    results = bench(
        {name: Contestant(make, {"model": model}) for name, make in makers.items()},
        rounds=15,
        targets={"mlx-lm batch_generate": 1.2, "transformers generate": 1.2},
        rate=("tokens/s", ROWS * NEW),
        libraries=("torch", "transformers", "mlx_lm.generate"),
    )
    _, expected = results["the kit"].evidence[0]
    for name, result in results.items():
        assert result.evidence == [((ROWS, NEW), expected)], name
