"""per_token_logps against transformers' logits: values, positions and the gradient of every parameter."""

import numpy as np
import pytest
import torch

from mlx_grpo_kit.autograd import value_and_grad
from mlx_grpo_kit.grpo import per_token_logps
from mlx_grpo_kit.grpo.logps import batch_logps, pad_batch
from mlx_grpo_kit.qwen3 import qwen3_forward
from mlx_grpo_kit.qwen3.config import FAMILIES
from mlx_grpo_kit.qwen3.weight_files import hugging_face_name
from mlx_grpo_kit.runtime import mx
from tests.sizes import TWO_LAYERS

V = 37
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14], [1, 2, 3, 4]]
COMPLETIONS = [[20, 21], [22, 23, 24, 25, 26], [3], [30, 31, 32, 33]]
GROUPED_PROMPTS = [prompt for prompt in PROMPTS for _ in range(2)]
GROUPED_COMPLETIONS = [*COMPLETIONS, [7, 7, 7], [0, 1], [35, 36, 35], [11]]


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, make_qwen3):
    sizes = dict(vocab_size=V, **TWO_LAYERS, max_position_embeddings=64, tie_word_embeddings=True)
    return make_qwen3(0.1, request.param, **sizes)


def transformers_logps(reference, prompt, completion, temperature=1.0) -> torch.Tensor:
    """One row alone, without padding: the logits of position t predict the token of position t + 1."""
    logits = reference(torch.tensor([prompt + completion])).logits[0, :-1]
    logps = torch.log_softmax(logits / temperature, -1)
    return logps[len(prompt) - 1 :].gather(-1, torch.tensor(completion)[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("rows", ["different prompts", "groups"])
def test_values_equal_transformers(reference, model, rows, temperature):
    prompts, completions = (PROMPTS, COMPLETIONS) if rows != "groups" else (GROUPED_PROMPTS, GROUPED_COMPLETIONS)
    logps, mask = per_token_logps(*model, prompts, completions, temperature)
    assert logps.dtype == mx.float32
    assert logps.shape == mask.shape == (len(prompts), 5)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        theirs = transformers_logps(reference, prompt, completion, temperature).detach()
        np.testing.assert_allclose(logps[row, : len(completion)], theirs, atol=1e-5)
        assert not np.array(logps[row, len(completion) :]).any()
        assert mask[row].tolist() == [place < len(completion) for place in range(5)]


def test_a_token_is_scored_by_the_position_before_it(reference, model):
    """Slicing logits at [P:] in place of [P-1:-1] scores each token by the distribution of its successor."""
    config, params = model
    prompt, completion = PROMPTS[0], COMPLETIONS[1]
    logps, _ = per_token_logps(config, params, [prompt], [completion])
    logits = qwen3_forward(config, params, mx.array([prompt + completion]))[0]
    table = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    right, wrong = table[len(prompt) - 1 : -1], table[len(prompt) :]
    ids = mx.array(completion)[:, None]
    np.testing.assert_allclose(logps[0], mx.take_along_axis(right, ids, axis=-1)[:, 0], atol=1e-5)
    assert abs(np.array(logps[0] - mx.take_along_axis(wrong, ids, axis=-1)[:, 0])).max() > 0.1
    # The first token depends on the prompt alone, and the last token only matters as what is scored.
    changed, _ = per_token_logps(config, params, [prompt], [[*completion[:-1], 0]])
    np.testing.assert_allclose(changed[0, :-1], logps[0, :-1], atol=1e-6)
    assert abs(changed[0, -1].item() - logps[0, -1].item()) > 1e-3


def test_neighbours_and_their_padding_change_nothing(model):
    """Left padding of prompts and right padding of completions come and go with the other rows of the batch."""
    alone = [np.array(per_token_logps(*model, [p], [c])[0])[0] for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
    for prompts, completions in [
        (PROMPTS, COMPLETIONS),
        ([*PROMPTS, [3] * 40], [*COMPLETIONS, [4] * 20]),
        ([[3] * 40, *PROMPTS][::-1], [[4] * 20, *COMPLETIONS][::-1]),
    ]:
        logps, _ = per_token_logps(*model, prompts, completions)
        for row, prompt in enumerate(prompts):
            if prompt in PROMPTS:
                expected = alone[PROMPTS.index(prompt)]
                np.testing.assert_allclose(logps[row, : len(expected)], expected, atol=1e-5)


def test_the_end_token_and_the_padding_id_are_tokens_like_others(reference, model):
    """Completions end where their list ends: 0, which also fills short rows, is scored where it was sampled."""
    completions = [[0, 0, 0], [5, 0]]
    logps, mask = per_token_logps(*model, PROMPTS[:2], completions)
    assert mask.tolist() == [[True, True, True], [True, True, False]]
    for row in range(2):
        theirs = transformers_logps(reference, PROMPTS[row], completions[row]).detach()
        np.testing.assert_allclose(logps[row, : len(completions[row])], theirs, atol=1e-5)


@pytest.mark.parametrize("rows", ["different prompts", "groups", "one group"])
def test_every_gradient_equals_transformers(reference, model, rows):
    prompts, completions = (
        (PROMPTS, COMPLETIONS) if rows == "different prompts" else (GROUPED_PROMPTS, GROUPED_COMPLETIONS)
    )
    if rows == "one group":
        prompts = [PROMPTS[2]] * len(completions)
    config, params = model
    weights = np.random.default_rng(0).normal(size=(len(prompts), 5)).astype(np.float32)
    reference.zero_grad()
    theirs = sum(
        (transformers_logps(reference, prompt, completion, 1.3) * torch.tensor(weights[row, : len(completion)])).sum()
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    )
    theirs.backward()
    loss, grads = value_and_grad(
        lambda p: (per_token_logps(config, p, prompts, completions, 1.3)[0] * mx.array(weights)).sum(), params
    )
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-5)
    named = dict(reference.named_parameters())
    for name, grad in grads.items():
        expected = named[hugging_face_name(name)].grad.numpy()
        assert abs(np.array(grad) - expected).max() <= 1e-4 * abs(expected).max(), name


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_entropy_equals_torch(reference, model, temperature):
    batch = pad_batch(model[0], GROUPED_PROMPTS, GROUPED_COMPLETIONS)
    _, entropy = batch_logps(*model, batch, temperature)
    for row, (prompt, completion) in enumerate(zip(GROUPED_PROMPTS, GROUPED_COMPLETIONS, strict=True)):
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / temperature
        theirs = torch.distributions.Categorical(logits=logits).entropy()
        np.testing.assert_allclose(entropy[row, : len(completion)], theirs, atol=1e-5)


def test_logits_are_computed_for_completion_positions_only(model, monkeypatch):
    """Each prompt once for its group, and no logits of the prompt: most of what a plain forward pass would do."""
    from mlx_grpo_kit.grpo import logps as module

    tokens, positions = [], []

    def hidden_states(config, params, input_ids, **kwargs):
        tokens.append(input_ids.size)
        return originals[0](config, params, input_ids, **kwargs)

    def token_logps_and_entropy(hidden, *arguments):
        positions.append(hidden.shape[0] * hidden.shape[1])
        return originals[1](hidden, *arguments)

    originals = module.qwen3_hidden_states, module.token_logps_and_entropy
    monkeypatch.setattr(module, "qwen3_hidden_states", hidden_states)
    monkeypatch.setattr(module, "token_logps_and_entropy", token_logps_and_entropy)
    batch_logps(*model, pad_batch(model[0], GROUPED_PROMPTS, GROUPED_COMPLETIONS))
    assert sum(tokens) <= 4 * 6 + 8 * 4
    assert sum(positions) == 8 * 5


@pytest.mark.parametrize(
    ("prompts", "completions", "message"),
    [
        (PROMPTS, COMPLETIONS[:3], "There are 4 prompts and 3 completions; expected a prompt for each"),
        ([], [], "There are no prompts"),
        (PROMPTS[:2], [[1], []], r"completions\[1\] is empty; expected at least one token, which may be the end token"),
        (PROMPTS[:2], [[1], [V]], rf"completions\[1\] contains token id {V}; expected 0 to {V - 1}"),
        (PROMPTS[:2], [[1], [0.5]], r"completions\[1\] has dtype float64"),
        ([[1], []], [[1], [1]], r"prompts\[1\] is empty"),
        ([[1] * 60], [[1] * 5], r"prompts\[0\] has 60 tokens. With 5 more it exceeds the model's 64 positions"),
    ],
)
def test_rows_are_checked(model, prompts, completions, message):
    with pytest.raises(ValueError, match=message):
        per_token_logps(*model, prompts, completions)


def test_text_is_refused(model):
    with pytest.raises(TypeError, match=r"prompts\[0\] is text"):
        per_token_logps(*model, ["12+34="], [[1]])
    with pytest.raises(ValueError, match=r"completions\[0\] has dtype <U2"):
        per_token_logps(*model, [[1]], ["46"])
