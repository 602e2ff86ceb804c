"""Batched generation of answers whose lengths differ by ten: 64 rows of 24 to 240 tokens.

The first token of a row decides its length, and a random model draws any token. So the number of tokens differs from
turn to turn; the seconds of a turn are scaled to the mean number.
"""

import time

import numpy as np

from tests.benchmarks.contest import Contestant

ROWS, PROMPT, SHORTEST, LONGEST = 64, 12, 24, 240
TOKENS = ROWS * (SHORTEST + LONGEST) // 2
PROMPTS = np.random.default_rng(0).integers(3, 64, (ROWS, PROMPT)).tolist()
SIZES = ("tiny", "m")


class Drawer:
    """A subclass returns completions from `draw()`. The evidence is how many ended too early or too late."""

    def __init__(self, model):
        self.vocab_size = model.vocab_size

    def length(self, first_token) -> int:
        """Tokens of the row that begins with this one."""
        return SHORTEST + (LONGEST - SHORTEST) * int(first_token) // (self.vocab_size - 1)

    def turn(self):
        started = time.perf_counter()
        drawn = self.draw()
        seconds = time.perf_counter() - started
        self.wrong = sum(len(row) != length for row, length in zip(drawn, self.expected(drawn), strict=True))
        return seconds * TOKENS / sum(map(len, drawn))

    def expected(self, drawn):
        return [self.length(row[0]) for row in drawn]

    def evidence(self):
        return self.wrong


class Kit(Drawer):
    def __init__(self, model):
        super().__init__(model)
        self.config, self.params = model.kit()

    def draw(self):
        from mlx_grpo_kit.generation import SamplingConfig, generate

        return generate(
            self.config,
            self.params,
            PROMPTS,
            sampling=SamplingConfig(LONGEST),
            stop=lambda ids: len(ids) == self.length(ids[0]),
        ).completions


class KitThatKeepsRows(Kit):
    """The kit, if rows that have ended stayed in the batch."""

    def draw(self):
        from unittest.mock import patch

        from mlx_grpo_kit.generation.generate import _Turns

        with patch.object(_Turns, "kept", lambda turns, rows: range(len(rows))):
            return super().draw()


class MLXLM(Drawer):
    """mlx-lm's rows leave the batch too. It is told the lengths, spread evenly."""

    class NoEnd:
        eos_token_ids = ()

        @staticmethod
        def decode(ids) -> str:
            return ""

    def __init__(self, model):
        super().__init__(model)
        self.model = model.mlx_lm()
        self.lengths = np.random.default_rng(1).permutation(np.linspace(SHORTEST, LONGEST, ROWS).round().astype(int))

    def draw(self):
        from mlx_lm.generate import batch_generate
        from mlx_lm.sample_utils import make_sampler

        return batch_generate(
            self.model,
            self.NoEnd,
            PROMPTS,
            max_tokens=self.lengths.tolist(),
            sampler=make_sampler(1.0),
            return_token_ids=True,
            completion_batch_size=ROWS,
            prefill_batch_size=ROWS,
        ).token_ids

    def expected(self, drawn):
        return self.lengths


class Transformers(Drawer):
    def __init__(self, model):
        super().__init__(model)
        self.model = model.transformers().eval()

    def draw(self):
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        class AtItsLength(StoppingCriteria):
            def __call__(criterion, input_ids, scores, **kwargs):  # noqa: N805
                drawn = input_ids.shape[1] - PROMPT
                return SHORTEST + (LONGEST - SHORTEST) * input_ids[:, PROMPT] // (self.vocab_size - 1) <= drawn

        with torch.no_grad():
            tokens = self.model.generate(
                torch.tensor(PROMPTS),
                attention_mask=torch.ones(ROWS, PROMPT, dtype=torch.long),
                max_new_tokens=LONGEST,
                eos_token_id=None,
                pad_token_id=0,
                do_sample=True,
                top_k=0,
                stopping_criteria=StoppingCriteriaList([AtItsLength()]),
            )[:, PROMPT:].tolist()
        return [row[: self.length(row[0])] for row in tokens]


def test_ragged(model, bench):
    makers = {
        "the kit": Kit,
        "the kit, without leaving": KitThatKeepsRows,
        "mlx-lm batch_generate": MLXLM,
        "transformers generate": Transformers,
    }
    results = bench(
        {name: Contestant(make, {"model": model}) for name, make in makers.items()},
        rounds=7,
        targets={"the kit, without leaving": 2.0, "mlx-lm batch_generate": 1.2, "transformers generate": 1.2},
        rate=("tokens/s", TOKENS),
        libraries=("torch", "transformers", "mlx_lm.generate"),
    )
    for name, result in results.items():
        assert result.evidence == [0], name
