"""Batched generation with random stops: 64 answers of 24 to 240 tokens.

From its 24th token on, a row ends with the first draw of an end token; these are one in 64 of the vocabulary. So the
number of tokens differs from turn to turn, and the seconds of a turn are scaled to the mean number.
"""

import time

import numpy as np

from tests.benchmarks.contest import Contestant
from tests.benchmarks.test_generation import draw_with_mlx_lm, draw_with_transformers, kits_decoder

ROWS, PROMPT, SHORTEST, LONGEST, CHANCE = 64, 12, 24, 240, 1 / 64
TOKENS = round(ROWS * (SHORTEST + (1 - CHANCE) * (1 - (1 - CHANCE) ** (LONGEST - SHORTEST)) / CHANCE))


class Drawer:
    """A subclass returns completions from `draw()`. The evidence is how many rows ended too early or too late."""

    def __init__(self, model, rows, longest):
        self.num_ends, self.longest = int(model.vocab_size * CHANCE), longest
        self.prompts = np.random.default_rng(0).integers(3, 64, (rows, PROMPT)).tolist()

    def turn(self):
        started = time.perf_counter()
        self.drawn = self.draw()
        return (time.perf_counter() - started) * TOKENS / sum(map(len, self.drawn))

    def ends(self, ids) -> bool:
        """True if a row ends with the last of these tokens."""
        return len(ids) >= SHORTEST and ids[-1] < self.num_ends

    def evidence(self):
        return sum(
            any(self.ends(row[:end]) for end in range(1, len(row))) or not (self.ends(row) or len(row) == self.longest)
            for row in self.drawn
        )


class Kit(Drawer):
    def __init__(self, model, rows, longest, with_torch=False):
        super().__init__(model, rows, longest)
        (self.config, self.params), self.decoder = model.kit(), kits_decoder(with_torch)

    def draw(self):
        from mlx_grpo_kit.generation import SamplingConfig, generate

        sampling = SamplingConfig(self.longest)
        return generate(
            self.config, self.params, self.prompts, sampling=sampling, stop=self.ends, decoder=self.decoder
        ).completions


class KitThatKeepsRows(Kit):
    """The kit, if rows that have ended stayed in the batch."""

    def draw(self):
        from unittest.mock import patch

        from mlx_grpo_kit.generation.generate import _Turns

        with patch.object(_Turns, "kept", lambda turns, rows: range(len(rows))):
            return super().draw()


class MLXLM(Drawer):
    """mlx-lm's rows leave the batch too. It has no random stops, so it gets lengths of the same distribution."""

    def __init__(self, model, rows, longest):
        super().__init__(model, rows, longest)
        self.model = model.mlx_lm()
        more = np.random.default_rng(1).geometric(CHANCE, rows) - 1
        self.lengths = np.minimum(SHORTEST + more, longest).tolist()

    def draw(self):
        return draw_with_mlx_lm(self.model, self.prompts, self.lengths, temperature=1.0)

    def evidence(self):
        return sum(len(row) != length for row, length in zip(self.drawn, self.lengths, strict=True))


class Transformers(Drawer):
    def __init__(self, model, rows, longest):
        super().__init__(model, rows, longest)
        self.model = model.transformers().eval()

    def draw(self):
        from transformers import StoppingCriteria, StoppingCriteriaList

        class AtAnEnd(StoppingCriteria):
            def __call__(criterion, input_ids, scores, **kwargs):  # noqa: N805
                return (input_ids[:, -1] < self.num_ends) & (input_ids.shape[1] - PROMPT >= SHORTEST)

        stop = StoppingCriteriaList([AtAnEnd()])
        rows = draw_with_transformers(
            self.model, self.prompts, self.longest, do_sample=True, top_k=0, stopping_criteria=stop
        )
        ends = (next((end for end in range(1, len(row)) if self.ends(row[:end])), len(row)) for row in rows)
        return [row[:end] for row, end in zip(rows, ends, strict=True)]


def test_ragged(model, bench):
    rows, longest = (ROWS, LONGEST) if bench.measuring else (8, 48)
    options = {"model": model, "rows": rows, "longest": longest}
    results = bench(
        {
            "the kit": Contestant(Kit, options),
            "the kit, torch's decoder": Contestant(Kit, options | {"with_torch": True}),
            "the kit, without leaving": Contestant(KitThatKeepsRows, options),
            "mlx-lm batch_generate": Contestant(MLXLM, options),
            "transformers generate": Contestant(Transformers, options),
        },
        rounds=7,
        targets={"the kit, without leaving": 2.0, "mlx-lm batch_generate": 1.2, "transformers generate": 1.2},
        rate=("tokens/s", TOKENS),
        libraries=("torch", "transformers", "mlx_lm.generate"),
    )
    for name, result in results.items():
        assert result.evidence == [0], name
