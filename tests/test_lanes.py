"""Rows on several CPU streams: the same numbers as on one."""

import pytest

from mlx_grpo_kit import blas
from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo import GRPOLossConfig, compute_loss_and_gradients
from mlx_grpo_kit.lanes import lane_streams, shares
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params

CONFIG = Qwen3Config(
    vocab_size=23, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8,
)  # fmt: skip
on_cpu = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="a GPU has one lane")


@pytest.fixture(scope="module")
def params():
    return init_params(CONFIG, scale=0.3)


def test_shares_cover_everything_once():
    for count in range(1, 9):
        for parts in range(1, 9):
            slices = shares(count, parts)
            assert [i for part in slices for i in range(count)[part]] == list(range(count))
            assert len(slices) == min(count, parts)
            sizes = [part.stop - part.start for part in slices]
            assert max(sizes) - min(sizes) <= 1


@on_cpu
def test_each_lane_has_its_own_stream(monkeypatch):
    monkeypatch.setattr(blas, "lanes", 3)
    assert len({str(stream) for stream in lane_streams()}) == 3


@on_cpu
@pytest.mark.parametrize("num_prompts", [1, 2, 3])
@pytest.mark.parametrize("loss_type", ["dapo", "bnpo"])
def test_lanes_change_neither_rollouts_nor_gradients(monkeypatch, params, num_prompts, loss_type):
    prompts = [prompt for prompt in [[3, 4, 5], [6, 7], [8, 9, 10, 11]][:num_prompts] for _ in range(4)]
    found = {}
    for lanes in (1, 2, 3):
        monkeypatch.setattr(blas, "lanes", lanes)
        rollout = generate(
            CONFIG, params, prompts, sampling=SamplingConfig(max_new_tokens=6), eos_token_ids=[1, 2], seed=4
        )
        rewards = [float(sum(completion) % 5) for completion in rollout.completions]
        loss, grads = compute_loss_and_gradients(
            CONFIG, params, prompts, rollout.completions, rollout.logps, rewards, 4, GRPOLossConfig(loss_type=loss_type)
        )
        found[lanes] = rollout.completions, loss, grads
    for lanes in (2, 3):
        assert found[lanes][0] == found[1][0]
        assert found[lanes][1] == pytest.approx(found[1][1], abs=1e-5)
        for name, grad in found[1][2].items():
            assert mx.allclose(found[lanes][2][name], grad, rtol=1e-4, atol=1e-6), name
