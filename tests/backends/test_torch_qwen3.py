"""Qwen3 in torch against transformers': logits, log-probabilities, entropies, and the gradient of every parameter."""

import numpy as np
import pytest
import torch

from mlx_grpo_kit.grpo.learners import torch_qwen3
from mlx_grpo_kit.grpo.learners.torch_qwen3 import Qwen3, completion_logps, qwen3_forward
from mlx_grpo_kit.grpo.logps import PaddedBatch
from mlx_grpo_kit.qwen3 import param_names
from mlx_grpo_kit.qwen3.weight_files import hugging_face_name
from tests.backends import small_qwen3
from tests.backends.small_qwen3 import COMPLETIONS, PROMPTS, WHOLE_ROWS, V, relative_error


@pytest.fixture
def tensors(both):
    return {name: torch.tensor(value, requires_grad=True) for name, value in both[2].items()}


def padded(rows, side):
    return tuple(map(torch.tensor, small_qwen3.padded(rows, side)))


def assert_gradients_are(reference, tensors):
    named = dict(reference.named_parameters())
    assert len(named) == len(tensors)
    for name, value in tensors.items():
        assert relative_error(value.grad, named[hugging_face_name(name)].grad) < 2e-5, name


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_are_those_of_rows_computed_alone(both, tensors, side):
    reference, config, _ = both
    ids, mask = padded(WHOLE_ROWS, side)
    ours = qwen3_forward(config, tensors, ids, mask)
    assert ours.isfinite().all()
    for row, tokens in enumerate(WHOLE_ROWS):
        alone = reference(torch.tensor([tokens])).logits[0]
        assert relative_error(ours[row][mask[row] == 1], alone) < 1e-5


def test_without_a_mask_every_position_counts(both, tensors):
    reference, config, _ = both
    ids = torch.arange(2 * 9).reshape(2, 9)
    assert relative_error(qwen3_forward(config, tensors, ids), reference(ids).logits) < 1e-5


@pytest.mark.parametrize(("tokens_at_once", "entropy_gradient"), [(1000, False), (7, True)])
def test_log_probabilities_entropies_and_gradients_of_shared_prompts(
    both, tensors, monkeypatch, tokens_at_once, entropy_gradient
):
    """Against rows that are computed alone and whole; of a large vocabulary some tokens at a time."""
    monkeypatch.setattr(torch_qwen3, "WHOLE", tokens_at_once * V)
    reference, config, _ = both
    (prompt_ids, prompt_mask), (completion_ids, mask) = padded(PROMPTS, "left"), padded(COMPLETIONS, "right")
    weights = torch.tensor(np.random.default_rng(0).normal(size=(2, *mask.shape)), dtype=torch.float32) * mask
    batch = PaddedBatch(prompt_ids, prompt_mask, 2, completion_ids, mask == 1)
    logps, entropies = completion_logps(config, tensors, batch, 0.7, entropy_gradient=entropy_gradient)
    loss = (weights[0] * logps).sum() + (weights[1] * entropies).sum()
    loss.backward()

    reference.zero_grad()
    theirs = 0
    for row, (tokens, completion) in enumerate(zip(WHOLE_ROWS, COMPLETIONS, strict=True)):
        logits = reference(torch.tensor([tokens])).logits[0, -len(completion) - 1 : -1] / 0.7
        log_probs, count = logits.log_softmax(-1), len(completion)
        chosen = log_probs.gather(-1, torch.tensor(completion)[:, None])[:, 0]
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        assert relative_error(logps[row, :count], chosen) < 1e-5
        assert relative_error(entropies[row, :count], entropy) < 1e-5
        entropy = entropy if entropy_gradient else entropy.detach()
        theirs = theirs + (weights[0, row, :count] * chosen).sum() + (weights[1, row, :count] * entropy).sum()
    theirs.backward()
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-4)
    assert_gradients_are(reference, tensors)


def test_completions_of_one_token_need_the_prompts_alone(both, tensors):
    reference, config, _ = both
    ids, mask = padded(PROMPTS, "left")
    batch = PaddedBatch(ids, mask, 2, torch.full((6, 1), 3), torch.full((6, 1), True))
    logps, _ = completion_logps(config, tensors, batch)
    for row, tokens in enumerate(PROMPTS):
        alone = reference(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)[3]
        assert logps[2 * row : 2 * row + 2, 0].tolist() == pytest.approx([alone.item()] * 2, rel=1e-5)
    logps.sum().backward()  # nothing of the completions is computed, and every parameter has its gradient
    assert all(value.grad.isfinite().all() for value in tensors.values())


# Of each completion in COMPLETIONS, the tokens that count.
OF_A_TOOL = [[1, 1], [1, 0, 0, 1, 1], [0], [0, 1, 1, 0], [0, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    "counted", [OF_A_TOOL, [[0] * len(ids) for ids in COMPLETIONS], [[1], [0], [1], [1], [0], [1]]]
)
def test_only_what_comes_before_a_token_that_counts_is_computed(both, tensors, monkeypatch, counted):
    reference, config, _ = both
    (prompt_ids, prompt_mask), (completion_ids, _) = padded(PROMPTS, "left"), padded(COMPLETIONS, "right")
    mask = torch.zeros(completion_ids.shape, dtype=torch.bool)
    for row, each in enumerate(counted):
        mask[row, : len(each)] = torch.tensor(each) == 1
    transformer, num_tokens = torch_qwen3.transformer, []
    monkeypatch.setattr(
        torch_qwen3, "transformer", lambda *given: num_tokens.append(len(given[2])) or transformer(*given)
    )
    batch = PaddedBatch(prompt_ids, prompt_mask, 2, completion_ids, mask)
    logps, entropies = completion_logps(config, tensors, batch, entropy_gradient=True)
    needed = [max([0, *np.nonzero(each)[0]]) for each in counted]
    assert num_tokens == [prompt_ids.numel() + sum(needed)]
    assert (logps[~mask] == 0).all()
    assert (entropies[~mask] == 0).all()
    (logps.sum() + 2 * entropies.sum()).backward()

    reference.zero_grad()
    theirs = torch.zeros(())
    for row, (tokens, completion) in enumerate(zip(WHOLE_ROWS, COMPLETIONS, strict=True)):
        own = mask[row, : len(completion)]
        log_probs = reference(torch.tensor([tokens])).logits[0, -len(completion) - 1 : -1][own].log_softmax(-1)
        chosen = log_probs.gather(-1, torch.tensor(completion)[own, None])[:, 0]
        assert logps[row, : len(completion)][own].tolist() == pytest.approx(chosen.tolist(), rel=1e-4)
        theirs = theirs + chosen.sum() - 2 * (log_probs.exp() * log_probs).sum()
    theirs.backward()
    if mask.any():
        assert_gradients_are(reference, tensors)
    else:
        assert all((value.grad == 0).all() for value in tensors.values())


def test_the_module_has_the_kits_names_and_is_a_function_for_torch_func(both, tensors):
    reference, config, params = both
    module = Qwen3(config, params)
    assert [*module.state_dict()] == param_names(config)
    ids = torch.arange(2 * 9).reshape(2, 9)
    expected = reference(ids).logits
    assert relative_error(module(ids), expected) < 1e-5
    zeros = {name: torch.zeros_like(value) for name, value in tensors.items()}
    assert (torch.func.functional_call(module, zeros, (ids,)) == 0).all()
    module(ids).logsumexp(-1).sum().backward()
    reference.zero_grad()
    expected.logsumexp(-1).sum().backward()
    assert_gradients_are(reference, dict(module.named_parameters()))
