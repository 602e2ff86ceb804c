"""The solutions of chapter 11 against torch and the kit, and the claims of its prose."""

import numpy as np
import pytest
import torch

import mlx_grpo_kit.qwen3.forward as kit
from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.chapters.chapter_11 import exercises as chapter
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.runtime import mx

F = torch.nn.functional
INF = float("inf")


def torch_of(array):
    return torch.tensor(np.array(array))


def test_the_solutions_against_torch():
    for queries, keys, values, mask in (case for case in chapter.GROUPED.cases if case[0].shape[1] < 32):
        expected = F.scaled_dot_product_attention(
            *map(torch_of, (queries, keys, values, mask)), enable_gqa=queries.shape[1] != keys.shape[1]
        )
        ours, seen = np.array(chapter.grouped_attention(queries, keys, values, mask)), np.array(mask).any(-1)
        seen = np.broadcast_to(seen, ours.shape[:3])
        np.testing.assert_allclose(ours[seen], expected.numpy()[seen], atol=1e-5)
    scores, mask = chapter.MASKED_SOFTMAX.cases[-1]
    expected = torch_of(scores).masked_fill(~torch_of(mask), -INF).softmax(-1).nan_to_num(0)
    ours = chapter._where_something_is_seen(chapter.masked_softmax, scores, mask)
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_the_solutions_against_the_kit():
    for case in chapter.VISIBLE.cases:
        assert np.array_equal(chapter.visible(*case), kit.visible(*case))
    for case in chapter.ATTENTION.cases:
        assert mx.abs(chapter.attention(*case) - kit.attention(*case)).max() < 1e-5


# -- what the prose says -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_token_that_sees_only_itself_knows_nothing_whatever_the_weights(seed):
    """900 sums, one answer: a token that looks at no other token knows only itself."""
    config = Qwen3Config(13, 16, 24, 2, 4, 2, 8)
    params = init_params(config, seed=seed, scale=0.5)
    ids = np.random.default_rng(seed).integers(0, 13, (9, 6))
    ids[:, -1] = 5

    def alone(name, value):
        return mx.zeros_like(value) + mx.eye(value.shape[-1]) if name.endswith("weights") else value

    logits = np.array(qwen3_forward(config, params, mx.array(ids), watch=alone))[:, -1]
    assert np.abs(logits - logits[0]).max() < 1e-4
    logits = np.array(qwen3_forward(config, params, mx.array(ids)))[:, -1]
    assert np.abs(logits - logits[0]).max() > 0.01


def test_a_head_looks_three_positions_back_and_not_at_the_same_digit():
    """Two digits plus one digit: three positions before the last token is the tens digit."""
    config, params = load_pretrained(TINY)
    tokenizer, record = load_tokenizer(TINY), {}
    ids = [tokenizer.encode(f"{a}+{b}=") for a in range(10, 90) for b in range(2, 10)]
    qwen3_forward(config, params, mx.array(ids), watch=record.setdefault)
    weights = np.array(record["layers.0.self_attn.weights"])[:, 3, 3]
    assert (weights.argmax(-1) == 0).all()
    assert weights[:, 0].mean() > 0.8 > 0.1 > weights[:, 1].max()


@pytest.mark.parametrize("seed", range(3))
def test_the_variance_of_a_product_is_its_length_and_a_saturated_softmax_passes_no_gradient(seed):
    rng = np.random.default_rng(seed)
    for size in (16, 256, 1024):
        products = torch.tensor(np.einsum("nd,nsd->ns", rng.normal(size=(400, size)), rng.normal(size=(400, 8, size))))
        assert products.var() / size == pytest.approx(1, abs=0.2)
        slopes = [(weights * (1 - weights)).mean() for weights in
                  (each.softmax(-1).max(-1).values for each in (products, products / size**0.5))]  # fmt: skip
        assert slopes[1] > 0.15
    assert slopes[0] < 0.05  # at 1024


def test_a_norm_bounds_the_scores():
    """A score is at most sqrt(D) times the largest weights of the two norms, however large the projections are."""
    config, params = load_pretrained(TINY)
    ids = mx.array(np.random.default_rng(0).integers(2, 60, (20, 24)))
    for factor in (1.0, 1000.0):
        larger = {n: v * factor if n.endswith(("q_proj.weight", "k_proj.weight")) else v for n, v in params.items()}
        record = {}
        qwen3_forward(config, larger, ids, watch=record.setdefault)
        for layer in range(config.num_hidden_layers):
            at = f"layers.{layer}.self_attn."
            limit = config.head_dim**0.5
            for name in ("q_norm", "k_norm"):
                limit *= np.abs(np.array(params[f"{at}{name}.weight"])).max()
            scores = np.array(record[f"{at}scores"])
            assert np.abs(scores[scores > -1e8]).max() < limit
