"""Every loss type against TRL's own `_compute_loss`: value, gradient and metrics."""

import itertools

import numpy as np
import pytest
import torch

from mlx_grpo_kit.grpo import GRPOLossConfig, compute_grpo_loss
from mlx_grpo_kit.runtime import mx
from tests.grpo.losses import TRLS, assert_equal_to_trl, kit, random_batch

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", TRLS)
def test_equal_to_trl(trl, loss_type, level):
    is_clipped = loss_type in CLIPPED
    grid = itertools.product(
        (0.0, 0.05, 0.5, 1.5),  # how far off-policy
        (None, 1.3, 4.0) if is_clipped else (None,),  # delta
        (None, 0.28, 0.05) if is_clipped else (5.0, 1.1),  # epsilon_high
        ({}, {"beta": 0.04}, {"beta": 0.5, "use_bias_correction_kl": True}),
    )
    for seed, (off_policy, delta, epsilon_high, kl) in enumerate(grid):
        logps, old_logps, ref_logps, advantages, mask = random_batch(seed, off_policy)
        settings = dict(loss_type=loss_type, importance_sampling_level=level, delta=delta, epsilon_high=epsilon_high)
        settings |= dict(max_completion_length=11, num_items_in_batch=(None, 50)[seed % 2])
        settings |= dict(ref_logps=ref_logps if kl else None, **kl)
        assert_equal_to_trl(trl, logps, old_logps, advantages, mask, **settings)


@pytest.mark.parametrize("loss_type", TRLS)
def test_without_old_logps_equal_to_trl(trl, loss_type):
    for seed, level in enumerate(("token", "sequence")):
        logps, _, ref_logps, advantages, mask = random_batch(seed, 0.0)
        for kl in ({}, {"beta": 0.1}, {"beta": 0.1, "use_bias_correction_kl": True}):
            kl |= {"ref_logps": ref_logps if kl else None, "importance_sampling_level": level, "epsilon_high": 3.0}
            arrays = logps, None, advantages, mask
            assert_equal_to_trl(trl, *arrays, loss_type=loss_type, max_completion_length=9, **kl)


@pytest.mark.parametrize("loss_type", TRLS)
def test_far_off_policy_stays_finite_and_equal_to_trl(trl, loss_type):
    logps, _, _, advantages, mask = random_batch(3, 0.0, batch=6)
    far = np.array([[-60.0], [-8.0], [-3.0], [3.0], [8.0], [60.0]], np.float32)
    for level in ("token", "sequence"):
        settings = dict(loss_type=loss_type, importance_sampling_level=level, max_completion_length=9, epsilon_high=5.0)
        assert np.isfinite(assert_equal_to_trl(trl, logps, logps - far, advantages, mask, **settings)).all()


def test_vespos_bounds_equal_trl(trl):
    """A token's log ratio is bounded to 20, a completion's to log(1e-8). What is left is tiny, so no atol."""
    log_ratio = np.array([[-30, 15, 10], [-15, -15, 0], [3, -30, 26]], np.float32)
    arrays = np.zeros_like(log_ratio) - 1, -1 - log_ratio, np.array([1, 1, -1], np.float32), np.ones((3, 3), bool)
    _, gradient, metrics = kit(*arrays, loss_type="vespo")
    _, trl_gradient, trl_metrics = trl.loss(*arrays, loss_type="vespo")
    np.testing.assert_allclose(gradient, trl_gradient, rtol=1e-4)
    assert metrics["vespo/phi_seq_mean"] == pytest.approx(trl_metrics["vespo/phi_seq_mean"], rel=1e-4)


def log_ratio_of(ratio):
    """A float32 whose exp is exactly this float32, in MLX and in torch."""
    start = np.float32(np.log(ratio))
    for step in range(-40, 41):
        x = np.float32(start + step * np.spacing(start))
        if mx.exp(mx.array(x)).item() == np.float32(ratio) == torch.exp(torch.tensor(x)).item():
            return x
    raise AssertionError(f"no float32 whose exp is {ratio}")


@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("edge", "delta"), [(1.0, None), (0.8, None), (1.2, None), (1.7, 1.7), (1.2, 1.2)])
def test_a_ratio_exactly_on_a_clip_edge_has_torchs_gradient(trl, edge, delta, level, advantage):
    logps = np.array([[log_ratio_of(edge)]], np.float32)
    arrays = (logps, np.zeros_like(logps), np.array([advantage], np.float32), np.ones((1, 1), bool))
    settings = {"loss_type": "dapo", "delta": delta, "importance_sampling_level": level}
    expected = 0.0 if edge == 1.7 and advantage > 0 else -edge * advantage  # clipped at 1.2 already
    assert assert_equal_to_trl(trl, *arrays, **settings).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", CLIPPED)
def test_on_policy_with_epsilon_zero_keeps_its_gradient(trl, loss_type, level):
    """Every ratio is 1, and 1 is both clip edges."""
    logps, _, _, advantages, mask = random_batch(5, 0.0)
    settings = {"loss_type": loss_type, "epsilon": 0.0, "importance_sampling_level": level, "max_completion_length": 7}
    assert np.abs(assert_equal_to_trl(trl, logps, logps, advantages, mask, **settings)).max() > 0.01


def test_fully_masked_rows_equal_trl(trl):
    logps, old_logps, ref_logps, advantages, mask = random_batch(6, 0.5)
    mask[1] = False
    for loss_type, level in itertools.product(TRLS, ("token", "sequence")):
        settings = {"loss_type": loss_type, "importance_sampling_level": level, "ref_logps": ref_logps, "beta": 0.1}
        arrays = logps, old_logps, advantages, mask
        assert_equal_to_trl(trl, *arrays, max_completion_length=9, epsilon_high=2.0, **settings)


@pytest.mark.parametrize("loss_type", TRLS)
def test_accumulated_micro_batches_equal_trl(trl, loss_type):
    """The kit's rule, add up or average, gives the sum of TRL's losses, which are scaled for accumulation."""
    logps, old_logps, _, advantages, mask = random_batch(7, 0.3, batch=6)
    settings = {"loss_type": loss_type, "max_completion_length": 9, "epsilon_high": 2.0}
    num_items = int(mask.sum())
    for rows in (slice(0, 2), slice(2, 4), slice(4, 6)):
        arrays = logps[rows], old_logps[rows], advantages[rows], mask[rows]
        loss, gradient, _ = kit(*arrays, num_items_in_batch=num_items, **settings)
        trl_loss, trl_gradient, _ = trl.loss(*arrays, num_items_in_batch=num_items, accumulation_steps=3, **settings)
        scale = 1 if GRPOLossConfig(**settings).micro_batches_add_up else 1 / 3
        assert loss * scale == pytest.approx(trl_loss, rel=1e-5, abs=1e-6)
        np.testing.assert_allclose(gradient * scale, trl_gradient, rtol=1e-5, atol=1e-7)


def shared_settings():
    """The settings and their defaults, except `extra`, which holds the settings of an objective of your own."""
    return {name: value for name, value in vars(GRPOLossConfig()).items() if name != "extra"}


def test_defaults_are_trls_but_for_two(trl):
    settings = shared_settings()
    assert settings.pop("importance_sampling_correction") is None, "TRL: sequence_mask, but only with vLLM"
    theirs = {name.replace("vllm_importance", "importance"): value for name, value in trl.defaults.items()}
    differences = {name for name, value in settings.items() if value != theirs[name]}
    assert differences == {"use_bias_correction_kl", "max_completion_length"}


def test_the_function_and_the_config_have_the_same_defaults():
    import inspect

    parameters = inspect.signature(compute_grpo_loss).parameters
    assert {name: parameters[name].default for name in shared_settings()} == shared_settings()
