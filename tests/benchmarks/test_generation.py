"""Batched generation: 32 prompts of 12 tokens, 64 new tokens each, drawn at temperature 1."""

import numpy as np

from tests.benchmarks.contest import Contestant

ROWS, PROMPT, NEW = 32, 12, 64

# Different prompts, so that the kit cannot read one prompt for a whole group here.
PROMPTS = np.random.default_rng(0).integers(3, 64, (ROWS, PROMPT)).tolist()


class Drawer:
    """A turn draws; the evidence is the shape of what the last turn drew, and eight greedy tokens of each row.

    A subclass returns completions of `prompts` from `draw(temperature, num_new)`.
    """

    def __init__(self, prompts=PROMPTS, new=NEW):
        self.prompts, self.new = prompts, new

    def turn(self):
        self.drawn = self.draw(1.0, self.new)

    def evidence(self):
        return np.shape(self.drawn), self.draw(0.0, 8)


def kits_decoder(with_torch):
    if with_torch:
        from mlx_grpo_kit.grpo.learners import TorchDecoder as Decoder
    else:
        from mlx_grpo_kit.generation import MLXDecoder as Decoder
    return Decoder


class Kit(Drawer):
    def __init__(self, model, with_torch=False, **work):
        super().__init__(**work)
        (self.config, self.params), self.decoder = model.kit(), kits_decoder(with_torch)

    def draw(self, temperature, num_new):
        from mlx_grpo_kit.generation import SamplingConfig, generate

        sampling = SamplingConfig(num_new, temperature)
        return generate(self.config, self.params, self.prompts, sampling=sampling, decoder=self.decoder).completions


class NoEnd:
    """What mlx-lm asks of a tokenizer, where nothing ends a row."""

    eos_token_ids = ()

    @staticmethod
    def decode(ids) -> str:
        return ""


def draw_with_mlx_lm(model, prompts, max_tokens, temperature):
    """Completions of all prompts at once; `max_tokens` is a number, or one for each prompt."""
    from mlx_lm.generate import batch_generate
    from mlx_lm.sample_utils import make_sampler

    return batch_generate(
        model, NoEnd, prompts, max_tokens=max_tokens, sampler=make_sampler(temperature), return_token_ids=True,
        completion_batch_size=len(prompts), prefill_batch_size=len(prompts),
    ).token_ids  # fmt: skip


def draw_with_transformers(model, prompts, max_new_tokens, **how):
    """Completions of all prompts, which are equally long, at once; `how` goes to `generate`."""
    import torch

    ids = torch.tensor(prompts)
    with torch.no_grad():
        tokens = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            eos_token_id=None,
            pad_token_id=0,
            **how,
        )
    return tokens[:, ids.shape[1] :].tolist()


class MLXLM(Drawer):
    def __init__(self, model, **work):
        super().__init__(**work)
        self.model = model.mlx_lm()

    def draw(self, temperature, num_new):
        return draw_with_mlx_lm(self.model, self.prompts, num_new, temperature)


class Transformers(Drawer):
    def __init__(self, model, **work):
        super().__init__(**work)
        self.model = model.transformers().eval()

    def draw(self, temperature, num_new):
        how = dict(do_sample=True, temperature=temperature, top_k=0) if temperature else dict(do_sample=False)
        return draw_with_transformers(self.model, self.prompts, num_new, **how)


def test_generation(model, bench):
    options = {"model": model}
    results = bench(
        {
            "the kit": Contestant(Kit, options),
            "the kit, torch's decoder": Contestant(Kit, options | {"with_torch": True}),
            "mlx-lm batch_generate": Contestant(MLXLM, options),
            "transformers generate": Contestant(Transformers, options),
        },
        rounds=15,
        targets={"mlx-lm batch_generate": 1.2, "transformers generate": 1.2},
        rate=("tokens/s", ROWS * NEW),
        libraries=("torch", "transformers", "mlx_lm.generate"),
    )
    _, expected = results["the kit"].evidence[0]
    for name, result in results.items():
        assert result.evidence == [((ROWS, NEW), expected)], name
