"""The microscope: pushes are gradients of TRL's loss, clips and weights what the papers say, policies the trainer's."""

import dataclasses

import numpy as np
import pytest

from mlx_grpo_kit.grpo import LOSS_TYPES, GRPOLossConfig
from mlx_grpo_kit.instruments.microscope.measure import FrozenBatch, examine, freeze, take_updates
from mlx_grpo_kit.runtime import mx

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
BATCH, LENGTH, GROUP = 6, 7, 3


@pytest.fixture
def random_batch():
    """(old_logps, logps, ref_logps, rewards, mask): float32, off-policy, ragged."""
    rng = np.random.default_rng(4)
    mask = np.arange(LENGTH) < rng.integers(2, LENGTH + 1, (BATCH, 1))
    old = -rng.exponential(2.0, (BATCH, LENGTH))
    old, new, reference = (
        np.where(mask, x, 0).astype(np.float32)
        for x in (old, old + rng.normal(size=old.shape) * 0.4, old + rng.normal(size=old.shape) * 0.5)
    )
    return old, new, reference, rng.normal(size=BATCH).round(2), mask


def frozen_from(old, new, reference, rewards, mask):
    logps = [mx.array(old), mx.array(new)]
    return FrozenBatch(
        GROUP, np.array(rewards), mx.array(mask), logps, [mx.zeros_like(logps[0])] * 2, mx.array(reference)
    )


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", [*CLIPPED, "cispo", "sapo", "vespo"])
def test_pushes_are_minus_the_gradient_of_trls_loss(trl, random_batch, loss_type, level):
    old, new, reference, rewards, mask = random_batch
    settings = {
        "loss_type": loss_type,
        "importance_sampling_level": level,
        "epsilon": 0.1 if level == "token" else 0.02,
        "epsilon_high": 1.2 if loss_type == "cispo" else 0.25 if level == "token" else 0.03,
        "beta": 0.05,
        "max_completion_length": 9,
    }
    reading = examine(frozen_from(*random_batch), GRPOLossConfig(**settings), scale_rewards="batch")
    advantages = trl.advantages(list(rewards), GROUP, "batch")
    loss, gradient, metrics = trl.loss(new, old, advantages, mask, ref_logps=reference, **settings)
    assert reading.loss == pytest.approx(loss, rel=2e-5)
    np.testing.assert_allclose(reading.pushes, -gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(reading.advantages, advantages, rtol=1e-5)
    if loss_type in CLIPPED:
        axis = mask if level == "token" else np.arange(LENGTH) == 0  # a completion counts once
        share = [(reading.clips[np.broadcast_to(axis, mask.shape)] == side).mean() for side in (-1, 1)]
        assert share == pytest.approx([metrics["clip_ratio/low_mean"], metrics["clip_ratio/high_mean"]], abs=1e-6)
        assert all(share)


def test_clips_say_which_token_left_on_which_side(random_batch):
    old, new, _, _, mask = random_batch
    reading = examine(frozen_from(*random_batch), GRPOLossConfig(epsilon=0.15, epsilon_high=0.3))
    ratio, good = np.exp(new - old), (reading.advantages > 0)[:, None]
    expected = np.where(mask & good & (ratio > 1.3), 1, np.where(mask & ~good & (ratio < 0.85), -1, 0))
    assert (reading.clips == expected).all()
    assert set(expected.flat) == {-1, 0, 1}
    assert (reading.pushes[expected != 0] == 0).all()
    assert (reading.pushes[mask & (expected == 0)] != 0).all()
    np.testing.assert_allclose(reading.log_ratios, np.where(mask, new - old, 0), atol=1e-6)
    whole = examine(frozen_from(*random_batch), GRPOLossConfig(epsilon=0.01, importance_sampling_level="sequence"))
    assert ((whole.clips == whole.clips[:, :1]) | ~mask).all()
    assert set(whole.clips.flat) == {-1, 0, 1}
    capped = examine(frozen_from(*random_batch), GRPOLossConfig(loss_type="cispo", epsilon_high=1.1))
    assert ((capped.clips == 1) == (mask & good & (ratio > 1.1))).all()
    assert (capped.pushes[capped.clips == 1] > 0).all()


def test_weights_are_those_of_the_papers(random_batch):
    mask = random_batch[-1]
    lengths = mask.sum(axis=1, keepdims=True)
    expected = {
        "grpo": mask / lengths / BATCH,
        "dapo": mask / mask.sum(),
        "dr_grpo": mask / (BATCH * 20),
        "luspo": mask / BATCH,
    }
    for loss_type, weights in expected.items():
        reading = examine(frozen_from(*random_batch), GRPOLossConfig(loss_type=loss_type, max_completion_length=20))
        np.testing.assert_allclose(reading.weights, weights, rtol=1e-6, err_msg=loss_type)


def test_before_an_update_nothing_is_clipped_and_pushes_are_weight_times_advantage(random_batch):
    reading = examine(frozen_from(*random_batch), GRPOLossConfig(), update=0)
    assert not reading.clips.any()
    assert not reading.log_ratios.any()
    np.testing.assert_allclose(reading.pushes, reading.weights * reading.advantages[:, None], rtol=1e-6)


def test_settings_that_look_at_entropies_and_at_the_others_of_the_group(random_batch):
    frozen = frozen_from(*random_batch)
    entropies = mx.array(np.random.default_rng(0).uniform(size=(BATCH, LENGTH)).astype(np.float32))
    frozen = dataclasses.replace(frozen, entropies=[entropies, entropies])
    mask, reading = random_batch[-1], examine(frozen, GRPOLossConfig(epsilon=9.0, top_entropy_quantile=0.5))
    above = np.array(entropies) >= np.quantile(np.array(entropies)[mask], 0.5)
    assert ((reading.pushes != 0) == (above & mask)).all()
    groups = random_batch[3].reshape(-1, GROUP)
    others = (groups.sum(axis=1, keepdims=True) - groups) / (GROUP - 1)
    rloo = examine(frozen, scale_rewards="none", advantage_estimator="rloo")
    np.testing.assert_allclose(rloo.advantages, (groups - others).reshape(-1), rtol=1e-4, atol=1e-6)


def test_other_rewards_and_those_that_are_missing(trl, random_batch):
    rewards = [1.0, 0.0, None, 0.5, 0.5, 0.5]
    reading = examine(frozen_from(*random_batch), rewards=rewards)
    known = [np.nan if reward is None else reward for reward in rewards]
    np.testing.assert_allclose(reading.advantages, trl.advantages(known, GROUP), atol=1e-5)
    assert reading.means.tolist() == [0.5, 0.5]
    assert reading.stds == pytest.approx([np.std([1, 0], ddof=1), 0])
    assert not reading.pushes[2:].any()
    assert reading.pushes[:2].any()
    alone = examine(frozen_from(*random_batch), rewards=[None] * 3 + [1, None, None])
    assert np.isnan(alone.means[0])
    assert np.isnan(alone.stds).all()
    with pytest.raises(ValueError, match=r"There are 2 rewards; expected 6, one per completion\."):
        examine(frozen_from(*random_batch), rewards=[1, 2])


@pytest.fixture(scope="module")
def trained(make_trainer):
    """(config, the first policy, a step's completions, args, the trainer after three updates from them)."""
    trainer = make_trainer(num_iterations=3, learning_rate=2e-2, temperature=0.8, max_grad_norm=0.05)
    before = trainer.params
    step = next(trainer.train(1))
    return trainer.config, before, step.completions, trainer.args, trainer


def test_updates_on_a_copy_are_the_trainers(trained):
    config, before, completions, args, trainer = trained
    kept = {name: np.array(value) for name, value in before.items()}
    policies = take_updates(config, before, completions, args, 3)
    assert len(policies) == 4
    assert all((np.array(before[name]) == value).all() for name, value in kept.items())
    for name, value in trainer.params.items():  # Adam divides by the gradient's size, so rounding is of a rate's size
        np.testing.assert_allclose(np.array(policies[-1][name]), np.array(value), atol=0.02 * args.learning_rate)
    pulled = take_updates(config, before, completions, dataclasses.replace(args, beta=0.5), 2)
    assert any((np.array(pulled[2][name]) != np.array(policies[2][name])).any() for name in before)


def test_frozen_log_probabilities_are_those_of_the_sampling(trained):
    config, before, completions, args, trainer = trained
    frozen = freeze(config, [before, trainer.params], completions, args)
    mask = np.array(frozen.completion_mask)
    for kept, values in (("logps", frozen.logps[0]), ("entropies", frozen.entropies[0])):
        expected = np.concatenate([getattr(each, kept) for each in completions])
        np.testing.assert_allclose(np.array(values)[mask], expected, atol=1e-4)
        assert not np.array(values)[~mask].any()
    assert (frozen.rewards == [each.reward for each in completions]).all()
    assert (np.array(frozen.ref_logps) == np.array(frozen.logps[0])).all()
    other = freeze(config, [before], completions, args, ref_params=trainer.params)
    np.testing.assert_allclose(np.array(other.ref_logps), np.array(frozen.logps[1]), atol=1e-6)
    with pytest.raises(ValueError, match="7 completions do not divide into groups of num_generations=4"):
        freeze(config, [before], completions[:7], args)
    with pytest.raises(ValueError, match="There are no policies"):
        freeze(config, [], completions, args)


def test_pushes_predict_how_the_loss_changes_with_the_parameters(trained):
    """Finite differences: along a direction the loss falls by the sum of pushes times gained log-probabilities."""
    config, before, completions, args, trainer = trained
    here, keys = trainer.params, mx.random.split(mx.random.key(1), len(before))
    direction = {name: mx.random.normal(here[name].shape, key=key) for name, key in zip(here, keys, strict=True)}
    near = [{name: here[name] + h * direction[name] for name in here} for h in (-1e-3, 0, 1e-3)]
    frozen = freeze(config, [before, *near], completions, args)
    rewards = np.linspace(0, 1, len(completions))
    loss_config = GRPOLossConfig(beta=0.1, epsilon=0.3)
    low, middle, high = (examine(frozen, loss_config, update=update, rewards=rewards) for update in (1, 2, 3))
    gained = np.array(frozen.logps[3] - frozen.logps[1])
    assert (middle.clips == low.clips).all()
    assert (middle.clips == high.clips).all()
    assert low.loss - high.loss == pytest.approx((middle.pushes * gained).sum(), rel=2e-3)


def test_every_loss_type_can_be_looked_at(random_batch):
    for loss_type in LOSS_TYPES:
        reading = examine(
            frozen_from(*random_batch), GRPOLossConfig(loss_type=loss_type, epsilon_high=5.0, max_completion_length=9)
        )
        assert np.isfinite(reading.pushes).all()
        assert reading.pushes.any()
