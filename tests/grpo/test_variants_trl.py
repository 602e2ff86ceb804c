"""Leave-one-out, several rewards, entropy, overlong penalty and a reference that follows, against TRL's own code."""

import itertools
import math

import numpy as np
import pytest
import torch

from mlx_grpo_kit.grpo import GRPOLossConfig, compute_advantages, compute_grpo_loss
from mlx_grpo_kit.grpo.advantages import soft_overlong_punishment
from mlx_grpo_kit.grpo.loss import high_entropy_mask
from mlx_grpo_kit.runtime import mx
from tests.grpo.losses import TRLS, assert_equal_to_trl, kit, random_batch


def with_entropies(seed, off_policy=0.3, batch=5):
    """(logps, old_logps, advantages, mask), and entropies of which some are equal."""
    logps, old_logps, _, advantages, mask = random_batch(seed, off_policy, batch)
    entropies = np.random.default_rng(seed + 100).exponential(size=logps.shape).round(1).astype(np.float32)
    return (logps, old_logps, advantages, mask), entropies


@pytest.mark.parametrize("unscored", [0.0, 0.3])
@pytest.mark.parametrize("num_generations", [2, 5])
def test_leave_one_out_advantages_equal_trls_rloo_trainer(trl, num_generations, unscored):
    rng = np.random.default_rng(num_generations)
    for prompts, scale_rewards in itertools.product((1, 2, 6), ("none", "batch")):
        rewards = rng.normal(size=prompts * num_generations)
        rewards[rng.random(rewards.size) < unscored] = math.nan
        expected = trl.advantages(
            rewards.tolist(), num_generations, rloo=True, normalize_advantages=scale_rewards == "batch"
        )
        actual = compute_advantages(rewards, num_generations, scale_rewards, advantage_estimator="rloo")
        np.testing.assert_allclose(np.array(actual), expected, rtol=2e-5, atol=2e-5)


def test_leave_one_out_by_hand():
    rewards = [3.0, 0.0, 6.0, 0.1, 0.1, 0.1]  # the others' means: 3, 4.5, 1.5
    actual = compute_advantages(rewards, 3, "none", advantage_estimator="rloo").tolist()
    assert actual == [0, -4.5, 4.5, 0, 0, 0]


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
@pytest.mark.parametrize("unscored", [0.0, 0.25])
def test_several_rewards_equal_trl(trl, aggregation, unscored):
    rng = np.random.default_rng(3)
    scales = ("group", "batch", "none") if aggregation == "sum_then_normalize" else ("group",)
    for functions, scale_rewards in itertools.product((1, 2, 3), scales):
        rewards = rng.normal(size=(12, functions)) * 10.0 ** -np.arange(functions)
        rewards[rng.random(rewards.shape) < unscored] = math.nan
        weights = rng.random(functions).tolist()
        expected = trl.advantages(rewards.tolist(), 4, scale_rewards, weights, aggregation)
        actual = compute_advantages(
            rewards, 4, scale_rewards, reward_weights=weights, multi_objective_aggregation=aggregation
        )
        np.testing.assert_allclose(np.array(actual), expected, rtol=3e-5, atol=3e-5)


def test_gdpo_lets_no_reward_drown_another_and_leaves_tied_groups_at_zero():
    big, small = [0, 100, 0, 100, 5, 5, 5, 5], [1, 0, 0, 1, 0.7, 0.7, 0.7, 0.7]
    table = np.stack([big, small], axis=1)
    summed = compute_advantages(table, 4, reward_weights=[1, 1]).tolist()
    apart = compute_advantages(table, 4, multi_objective_aggregation="normalize_then_sum").tolist()
    assert summed[0] < -0.8  # worst but one by the large reward,
    assert abs(apart[0]) < 1e-3  # but best by the small one
    assert apart[4:] == [0.0] * 4


@pytest.mark.parametrize(
    ("rewards", "settings", "message"),
    [
        ([[1, 2], [3, 4]], {}, "With reward_weights or multi_objective_aggregation"),
        ([1, 2], {"advantage_estimator": "rloo"}, r"times n / \(n - 1\)"),
        (np.ones((4, 2)), {"reward_weights": [1, 2, 3]}, "3 reward_weights for 2 reward functions"),
    ],
)
def test_what_does_not_fit(rewards, settings, message):
    with pytest.raises(ValueError, match=message):
        compute_advantages(rewards, 2, **settings)


@pytest.mark.parametrize("epsilon_high", [None, 0.5])
def test_rloos_loss_equals_trls(trl, epsilon_high):
    for seed, off_policy in enumerate((0.0, 0.05, 0.5)):
        batch, _ = with_entropies(seed, off_policy)
        loss, gradient, metrics = kit(*batch, loss_type="rloo", epsilon_high=epsilon_high)
        expected_loss, expected, expected_metrics = trl.rloo_loss(*batch, epsilon_high=epsilon_high)
        assert loss == pytest.approx(expected_loss, rel=2e-5, abs=1e-6)
        np.testing.assert_allclose(gradient, expected, rtol=5e-5, atol=1e-6)
        for name, value in metrics.items():
            assert value == pytest.approx(expected_metrics[name], abs=1e-6), name


def test_reinforce_is_minus_a_logp_whatever_sampled(trl):
    (logps, old_logps, advantages, mask), _ = with_entropies(1, off_policy=1.0)
    loss, gradient, metrics = kit(logps, old_logps, advantages, mask, loss_type="reinforce")
    leaf = torch.tensor(logps, requires_grad=True)
    expected = -(torch.tensor(advantages)[:, None] * leaf * torch.tensor(mask)).sum() / mask.sum()
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-6)
    assert metrics == {}
    _, on_policy, _ = trl.loss(logps, None, advantages, mask, loss_type="dapo")
    np.testing.assert_allclose(gradient, on_policy, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", TRLS)
def test_entropy_bonus_and_top_entropy_equal_trl(trl, loss_type, level):
    grid = itertools.product((0.0, 0.3), (1.0, 0.5, 0.2, 0.0), (1, 3))
    for seed, (entropy_coef, quantile, steps) in enumerate(grid):
        batch, entropies = with_entropies(seed)
        settings = dict(loss_type=loss_type, importance_sampling_level=level, max_completion_length=9, epsilon_high=2.0)
        settings |= dict(entropy_coef=entropy_coef, top_entropy_quantile=quantile)
        loss, gradients, metrics = kit(*batch, entropies=entropies, **settings)
        expected_loss, expected, theirs = trl.loss(*batch, entropies=entropies, accumulation_steps=steps, **settings)
        # TRL has a third of its losses that are means, and of the bonus; not of those divided by all tokens.
        adds_up = GRPOLossConfig(**settings).micro_batches_add_up
        share = 1 / steps
        policy = metrics.get("policy_loss", loss)
        of_bonus = loss - policy
        assert (policy * (1 if adds_up else share)) + of_bonus * share == pytest.approx(
            expected_loss, rel=5e-5, abs=2e-6
        )
        size = max(1e-2, np.abs(expected[0]).max())
        np.testing.assert_allclose(gradients[0] * (1 if adds_up else share), expected[0], rtol=5e-5, atol=2e-6 * size)
        np.testing.assert_allclose(gradients[1] * share, expected[1], rtol=1e-5, atol=1e-7)
        if entropy_coef:
            assert metrics["policy_loss"] == pytest.approx(theirs["policy_loss"], rel=5e-5, abs=2e-6)


def test_the_kl_penalty_acts_on_all_tokens(trl):
    (logps, *others), entropies = with_entropies(4)
    settings = dict(beta=0.5, top_entropy_quantile=0.3, entropy_coef=0.1, ref_logps=logps - 0.3)
    gradient, _ = assert_equal_to_trl(trl, logps, *others, entropies=entropies, **settings)
    assert (np.abs(gradient)[others[-1]] > 1e-4).all()


@pytest.mark.parametrize("quantile", [0.0, 0.1, 0.25, 0.5, 0.77, 1.0])
def test_the_mask_of_high_entropies_equals_trls(trl, quantile):
    trainer = object.__new__(trl._trainer_class)
    trainer.accelerator = torch.nn.Module()
    trainer.accelerator.pad_across_processes, trainer.accelerator.gather = lambda x, **_: x, lambda x: x
    for seed in range(6):
        (*_, mask), entropies = with_entropies(seed, batch=1 + seed % 3)
        expected = trainer.get_high_entropy_mask(torch.tensor(entropies), torch.tensor(mask).long(), 1 - quantile)
        garbage = mx.array(np.where(mask, entropies, np.nan))
        assert np.array_equal(np.array(high_entropy_mask(garbage, mx.array(mask), quantile)), expected.numpy())
    nothing = high_entropy_mask(mx.ones((2, 3)), mx.zeros((2, 3)), quantile)
    assert not np.array(nothing).any()


def test_entropies_that_are_missing_or_of_another_shape():
    arrays = mx.zeros((2, 3)), None, mx.ones(2), mx.ones((2, 3))
    with pytest.raises(ValueError, match=r"entropy_coef is 0.1 .* so entropies are required"):
        compute_grpo_loss(*arrays, entropy_coef=0.1)
    with pytest.raises(ValueError, match=r"entropies has shape \(2, 4\); expected \(2, 3\)"):
        compute_grpo_loss(*arrays, entropy_coef=0.1, entropies=mx.zeros((2, 4)))


@pytest.mark.parametrize(("longest", "cache"), [(10, 4), (10, 10), (8, 1), (5, 0)])
def test_the_overlong_penalty_equals_trls(longest, cache):
    from trl.rewards import get_soft_overlong_punishment

    lengths = np.arange(1, longest + (3 if cache else 1))
    expected = get_soft_overlong_punishment(longest, cache)([[0] * length for length in lengths])
    np.testing.assert_allclose(soft_overlong_punishment(lengths, longest, cache), expected)


def test_the_reference_follows_as_trls_does(make_trainer):
    from trl.trainer.callbacks import SyncRefModelCallback

    trainer = make_trainer(beta=0.1, sync_ref_model=True, ref_model_sync_steps=2, ref_model_mixup_alpha=0.3)
    names = sorted(trainer.params)

    def as_torch(params):
        return torch.nn.ParameterList([torch.tensor(np.array(params[name])) for name in names])

    reference = as_torch(trainer.policy.reference)
    for step in trainer.train(4):
        if step.step % 2 == 0:
            SyncRefModelCallback._sync_target_model(as_torch(trainer.params), reference, 0.3)
        for name, expected in zip(names, reference, strict=True):
            np.testing.assert_allclose(
                np.array(trainer.policy.reference[name]), expected.detach().numpy(), rtol=1e-6, atol=1e-7
            )
    assert step.metrics["kl"] > 0
