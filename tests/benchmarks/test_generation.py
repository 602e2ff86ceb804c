"""Batched generation: 32 prompts of 12 tokens, 64 new tokens each, drawn at temperature 1."""

import numpy as np
import torch

from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.runtime import mx

ROWS, PROMPT, NEW = 32, 12, 64


class NoEnd:
    """What mlx-lm asks of a tokenizer, where nothing ends a row."""

    eos_token_ids = ()

    @staticmethod
    def decode(ids) -> str:
        return ""


def test_generation(model, race):
    from mlx_lm.generate import batch_generate
    from mlx_lm.sample_utils import make_sampler

    # Different prompts, so that the kit cannot read one prompt for a whole group here.
    prompts = np.random.default_rng(0).integers(3, 64, (ROWS, PROMPT)).tolist()
    hugging_face, mlx_lm = model.transformers().eval(), model.mlx_lm()
    completions = {}

    def kit(temperature=1.0, new=NEW):
        rollout = generate(model.config, model.params, prompts, sampling=SamplingConfig(new, temperature))
        completions["kit"] = rollout.completions

    def mlx_lm_batch_generate(temperature=1.0, new=NEW):
        completions["mlx-lm"] = batch_generate(
            mlx_lm,
            NoEnd,
            prompts,
            max_tokens=new,
            sampler=make_sampler(temperature),
            return_token_ids=True,
            completion_batch_size=ROWS,
            prefill_batch_size=ROWS,
        ).token_ids

    def transformers_generate(temperature=1.0, new=NEW):
        how = dict(do_sample=True, temperature=temperature, top_k=0) if temperature else dict(do_sample=False)
        with torch.no_grad():
            tokens = hugging_face.generate(
                torch.tensor(prompts),
                attention_mask=torch.ones(ROWS, PROMPT, dtype=torch.long),
                max_new_tokens=new,
                eos_token_id=None,
                pad_token_id=0,
                **how,
            )
        completions["transformers"] = tokens[:, PROMPT:].tolist()

    race(
        kit,
        {"mlx-lm batch_generate, the same BLAS": mlx_lm_batch_generate, "transformers generate": transformers_generate},
        targets={"mlx-lm batch_generate, the same BLAS": 1.2},
        rate=("tokens/s", ROWS * NEW),
        rounds=15,
    )
    assert {name: np.shape(rows) for name, rows in completions.items()} == dict.fromkeys(completions, (ROWS, NEW))

    kit(0.0, 8), mlx_lm_batch_generate(0.0, 8), transformers_generate(0.0, 8)
    assert completions["kit"] == completions["mlx-lm"] == completions["transformers"]
    mx.clear_cache()
