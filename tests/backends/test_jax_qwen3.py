"""Qwen3 in JAX against transformers': logits, and the gradient of every parameter."""

from functools import partial

import numpy as np
import pytest
import torch

from mlx_grpo_kit.qwen3.weight_files import hugging_face_name
from tests.backends.small_qwen3 import COMPLETIONS, MODELS, PROMPTS, WHOLE_ROWS, V, padded, relative_error

pytest.importorskip("jax")

from mlx_grpo_kit.grpo.learners.jax_qwen3 import completion_logits, qwen3_forward


def rows_alone(reference, ids, mask):
    """transformers' logits of every row by itself, without its padding."""
    return [reference(torch.tensor(row[real == 1][None])).logits[0] for row, real in zip(ids, mask, strict=True)]


# Four compile, and have what there is: the second has wide heads, one each, and its own output layer.
@pytest.mark.parametrize("both", ["grouped, tied", "stretched by YaRN", "a Qwen2", "a Llama 3"], indirect=True)
def test_logits_and_gradients_are_transformers(jax, both):
    """Rows padded on either side; completions of shared, padded prompts: against rows that are computed alone, whole.

    What a loss makes of the logits is not this test's: any weights do, 0 where nothing was chosen.
    """
    reference, config, params = both
    sides = padded(WHOLE_ROWS, "left"), padded(WHOLE_ROWS, "right")
    on_both_sides = [np.concatenate(pair) for pair in zip(*sides, strict=True)]
    (prompt_ids, prompt_mask), (completion_ids, completion_mask) = padded(PROMPTS, "left"), padded(COMPLETIONS, "right")
    weights = np.random.default_rng(0).normal(size=(*completion_ids.shape, V)) * completion_mask[..., None]

    @jax.jit  # all in one: compiling is what takes the time here
    def results(params):
        def loss_and_logits(params):
            logits = completion_logits(config, params, prompt_ids, completion_ids, prompt_mask)
            return (logits * weights).sum(), logits

        (loss, logits), grads = jax.value_and_grad(loss_and_logits, has_aux=True)(params)
        return loss, logits, grads, qwen3_forward(config, params, *on_both_sides)

    loss, logits, grads, of_rows = jax.tree.map(np.asarray, results(params))
    alone = rows_alone(reference, *sides[0])
    for row, (ours, mask) in enumerate(zip(of_rows, on_both_sides[1], strict=True)):
        assert relative_error(ours[mask == 1], alone[row % len(WHOLE_ROWS)].detach()) < 1e-5
    theirs = 0
    for row, completion in enumerate(COMPLETIONS):
        predicting = alone[row][-len(completion) - 1 : -1]
        assert relative_error(logits[row, : len(completion)], predicting.detach()) < 1e-5
        theirs = theirs + (predicting * torch.tensor(weights[row, : len(completion)])).sum()
    reference.zero_grad()
    theirs.backward()
    assert abs(float(loss) - theirs.item()) < 1e-4
    named = dict(reference.named_parameters())
    assert len(named) == len(grads)
    for name, grad in grads.items():
        assert relative_error(grad, named[hugging_face_name(name)].grad) < 2e-5, name


@pytest.fixture(scope="module")
def small(make_qwen3):
    reference, config, params = make_qwen3(0.1, vocab_size=V, **MODELS["wide heads, own output layer"])
    return reference, config, {name: np.array(value) for name, value in params.items()}


def test_completions_of_one_token_need_the_prompts_alone(jax, small):
    reference, config, params = small
    ids, mask = padded(PROMPTS, "left")
    logits = np.asarray(jax.jit(partial(completion_logits, config))(params, ids, np.full((6, 1), 3, np.int32), mask))
    for row, alone in enumerate(rows_alone(reference, ids, mask)):
        assert relative_error(logits[2 * row], alone[-1:].detach()) < 1e-5
        assert relative_error(logits[2 * row + 1], alone[-1:].detach()) < 1e-5


def test_a_forward_pass_in_bfloat16_over_float32_masters_is_a_cast_in_front_of_it(jax, small):
    reference, config, params = small
    ids = np.array([PROMPTS[2]])

    def loss_and_logits(params):
        half = jax.tree.map(lambda value: value.astype(jax.numpy.bfloat16), params)
        logits = qwen3_forward(config, half, ids)
        return logits.astype(jax.numpy.float32).sum(), logits

    (_, logits), grads = jax.jit(jax.value_and_grad(loss_and_logits, has_aux=True))(params)
    assert logits.dtype == jax.numpy.bfloat16
    assert relative_error(logits, reference(torch.tensor(ids)).logits.detach()) < 0.05
    assert {grad.dtype for grad in grads.values()} == {np.dtype("float32")}
