"""Off-policy completions, dropped and weighed: the loss and the weights against TRL's own code."""

import itertools

import numpy as np
import pytest

from mlx_grpo_kit.grpo import LOSS_TYPES, GRPOConfig, GRPOLossConfig
from mlx_grpo_kit.grpo.off_policy import importance_weights, on_policy_enough
from mlx_grpo_kit.grpo.settings import rules_of
from mlx_grpo_kit.runtime import mx
from tests.grpo import losses
from tests.grpo.losses import TRLS, random_batch

CORRECTIONS = rules_of(GRPOLossConfig)["importance_sampling_correction"].choices


def sampled_otherwise(seed, off_policy=0.3, apart=0.4, batch=6, length=7):
    """(logps, old_logps, sampling_logps, ref_logps, advantages, mask); the sampler has other numbers, and two NaN."""
    *arrays, advantages, mask = random_batch(seed, off_policy, batch, length)
    logps, old_logps, ref_logps = (values - 3 for values in arrays)  # all below 0
    rng = np.random.default_rng(seed + 1000)
    sampling_logps = (old_logps + rng.normal(size=logps.shape) * apart).astype(np.float32)
    for row in rng.choice(batch, 2, replace=False):
        sampling_logps[row, rng.integers(mask[row].sum())] = np.nan
    return logps, old_logps, sampling_logps, ref_logps, advantages, mask


def assert_equal_to_trl(trl, arrays, **settings):
    logps, old_logps, sampling_logps, ref_logps, advantages, mask = arrays
    settings |= dict(sampling_logps=sampling_logps, ref_logps=ref_logps if settings.get("beta") else None)
    losses.assert_equal_to_trl(trl, logps, old_logps, advantages, mask, **settings)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", TRLS)
def test_the_off_policy_mask_equals_trls(trl, loss_type, level):
    dropped = 0
    for seed, (threshold, beta) in enumerate(itertools.product((0.02, 0.2, 5.0), (0.0, 0.1))):
        arrays = sampled_otherwise(seed)
        settings = dict(loss_type=loss_type, importance_sampling_level=level, beta=beta, epsilon_high=3.0)
        settings |= dict(max_completion_length=9, off_policy_mask_threshold=threshold)
        assert_equal_to_trl(trl, arrays, **settings)
        assert_equal_to_trl(trl, (*arrays[:2], None, *arrays[3:]), **settings)  # then old_logps are the sampler's
        logps, _, sampling_logps, _, advantages, mask = arrays
        left = np.nansum(np.where(mask, sampling_logps - logps, 0), axis=1) / mask.sum(axis=1)
        dropped += ((advantages < 0) & (left > threshold)).sum()
    assert dropped > 3, "the numbers of this test reach the mask"


@pytest.mark.parametrize("loss_type", TRLS)
@pytest.mark.parametrize("mode", CORRECTIONS)
def test_the_corrected_loss_equals_trls(trl, loss_type, mode):
    if loss_type == "vespo" and mode.startswith("sequence"):
        with pytest.raises(ValueError, match="token_truncate"):
            GRPOLossConfig(loss_type="vespo", importance_sampling_correction=mode)
        return
    for seed, (low, high) in enumerate(((None, 3.0), (None, 1.1), (0.8, 1.2), (0.9, None))):
        for old_given in (True, False):
            arrays = sampled_otherwise(seed)
            if not old_given:
                arrays = arrays[0], None, *arrays[2:]
            settings = dict(loss_type=loss_type, epsilon_high=3.0, max_completion_length=9, beta=0.1 * (seed % 2))
            settings |= {f"importance_sampling_{name}": value for name, value in
                         (("correction", mode), ("clip_min", low), ("clip_max", high))}  # fmt: skip
            assert_equal_to_trl(trl, arrays, **settings)


@pytest.mark.parametrize("mode", CORRECTIONS)
def test_the_weights_equal_trls(trl, mode):
    for seed, (low, high) in enumerate(((None, 3.0), (0.8, 1.2), (0.5, None))):
        _, old_logps, sampling_logps, _, _, mask = sampled_otherwise(seed, batch=8)
        config = GRPOLossConfig(
            importance_sampling_correction=mode, importance_sampling_clip_min=low, importance_sampling_clip_max=high
        )
        found = np.array(importance_weights(config, *map(mx.array, (old_logps, sampling_logps, mask))))
        expected, _ = trl.importance_weights(old_logps, sampling_logps, mask, mode, low, high)
        if mode.startswith("token"):  # of the others TRL clips the 1 at padding too
            found, expected = found[mask], expected[mask]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert (found != 1).any()


def test_a_good_completion_is_kept_however_far_the_policy_has_left_it():
    logps, sampling = mx.array([[-9.0, -9.0], [-9.0, -9.0], [-1.0, -1.0]]), mx.full((3, 2), -1.0)
    mask = mx.array([[True, True], [True, False], [True, True]])
    kept = on_policy_enough(0.5, mx.array([[1.0], [-1.0], [-1.0]]), logps, sampling, mask)
    assert kept.tolist() == [[True], [False], [True]]
    at_the_bound = on_policy_enough(8.0, mx.array([[-1.0]]), logps[:1], sampling[:1], mask[:1])
    assert at_the_bound.tolist() == [[True]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"off_policy_mask_threshold": 0.0}, "more than 0"),
        ({"importance_sampling_correction": "tis"}, "'token_truncate', 'token_mask'"),
        ({"importance_sampling_correction": "token_truncate", "importance_sampling_clip_max": None}, "needs a bound"),
        ({"importance_sampling_correction": "token_mask", "importance_sampling_clip_min": 3.0}, "less than the lar"),
        ({"importance_sampling_correction": "token_mask", "importance_sampling_clip_min": -1.0}, "0 or more"),
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, "multiple of gradient_accumulation_steps"),
        ({"steps_per_generation": 0}, "steps_per_generation"),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        GRPOConfig(**settings)


def test_a_mask_without_bounds_changes_nothing():
    arrays = sampled_otherwise(3)
    logps, old_logps, sampling_logps, _, advantages, mask = arrays
    settings = dict(importance_sampling_correction="token_mask", importance_sampling_clip_max=None)
    plain, same, other = (
        losses.kit(logps, old_logps, advantages, mask, **given)[0]
        for given in ({}, settings | {"sampling_logps": old_logps}, settings | {"sampling_logps": sampling_logps})
    )
    assert same == plain != other


@pytest.mark.parametrize("backend", ["mlx", "torch", "jax"])
def test_every_learner_has_the_corrected_gradient(make_trainer, backend):
    """The sampler's numbers are moved, as another framework would move them, and MLX at once is compared."""
    found = {}
    for name in ("mlx", backend):
        trainer = make_trainer(
            backend=name,
            importance_sampling_correction="token_truncate",
            importance_sampling_clip_max=1.02,
            off_policy_mask_threshold=0.05,
        )
        batch = moved(first_batch(trainer))
        [micro_batches] = trainer.parts.learner.prepare(trainer.policy, batch)
        found[name] = trainer.parts.learner.gradient(trainer.policy, micro_batches)
    (expected, metrics), (grads, others) = found["mlx"], found[backend]
    for name, value in expected.items():
        np.testing.assert_allclose(np.array(grads[name]), np.array(value), atol=2e-6)
    assert others == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    assert metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(1.02)
    assert metrics["sampling/sampling_logp_difference/max"] > 0.1


def first_batch(trainer):
    from mlx_grpo_kit.grpo.step import draw_batch

    return draw_batch(trainer.parts, trainer.policy, 0)


def moved(batch):
    """The batch as if its sampler had computed with other rounding."""
    from dataclasses import replace

    rng = np.random.default_rng(0)
    logps = [(np.array(row) + rng.normal(size=len(row)) * 0.1).tolist() for row in batch.completions.logps]
    return replace(batch, completions=replace(batch.completions, logps=logps))


def test_metrics_are_those_of_the_tokens_learned_from(make_trainer, trl):
    trainer = make_trainer(importance_sampling_correction="sequence_mask", importance_sampling_clip_max=1.1)
    batch = moved(first_batch(trainer))
    [micro_batches] = trainer.parts.learner.prepare(trainer.policy, batch)
    _, metrics = trainer.parts.learner.gradient(trainer.policy, micro_batches)
    [micro] = micro_batches.each
    arrays = (np.array(each) for each in (micro.old_logps, micro.sampling_logps, micro.batch.completion_mask))
    _, expected = trl.importance_weights(*arrays, "sequence_mask", None, 1.1)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert metrics["sampling/importance_sampling_ratio/min"] == 0, "one was masked"


def test_the_kits_sampler_and_learner_agree(make_trainer):
    trainer = make_trainer()
    metrics = next(trainer.train(1)).metrics
    assert 0 <= metrics["sampling/sampling_logp_difference/max"] < 1e-5
    assert "sampling/importance_sampling_ratio/mean" not in metrics
    by_torch = next(make_trainer(backend="torch").train(1)).metrics
    mean, largest = (by_torch[f"sampling/sampling_logp_difference/{name}"] for name in ("mean", "max"))
    assert 0 < mean < largest < 1e-5


def test_mini_batches_of_a_step_are_updates_from_its_parts(make_trainer):
    """One step with two mini-batches is two updates by hand, each from its half, with the sampler's ratios."""
    from dataclasses import replace

    settings = dict(per_device_train_batch_size=8, learning_rate=3e-3, max_grad_norm=1e9)
    trainer = make_trainer(steps_per_generation=2, **settings)
    plain = make_trainer(**settings)
    policy, learner, optimizer = trainer.policy, plain.parts.learner, plain.optimizer
    batch = first_batch(trainer)
    assert len(batch.completions) == 16
    old = [np.array(learner.logps(policy.params, micro.batch)) for micro in learner.prepare(policy, batch)[0].each]
    assert len(old) == 2
    tokens = batch.completions.lengths.sum()
    for half in (0, 1):
        rows = range(8 * half, 8 * half + 8)
        part = batch.completions.rows(rows)
        logps = [[float(x) for x in row] for row in part.logps]
        half_batch = replace(
            batch,
            completions=replace(part, on_policy=half == 0, logps=logps),
            scores=replace(batch.scores, values=batch.scores.values[rows]),
            rewards=batch.rewards[rows],
            advantages=batch.advantages[rows],
            drawn=(),
        )
        [micro_batches] = learner.prepare(policy, half_batch)
        grads, _ = learner.gradient(policy, micro_batches)
        # TRL divides by the mean number of tokens of the updates, not by this half's.
        factor = part.lengths.sum() / (tokens / 2)
        grads.update({name: value * float(factor) for name, value in grads.items()})
        policy = optimizer(policy, grads, 3e-3)
    step = next(trainer.train(1))
    assert len(step.completions) == 16
    for name, value in policy.params.items():
        np.testing.assert_allclose(np.array(trainer.params[name]), np.array(value), atol=2e-5)
    assert np.isfinite(step.metrics["loss"])


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo", "dr_grpo", "vespo"])
def test_without_learning_two_mini_batches_have_the_loss_and_metrics_of_one_step(make_trainer, loss_type):
    from mlx_grpo_kit.grpo.step import learn_from

    found = []
    for settings in ({"gradient_accumulation_steps": 2}, {"steps_per_generation": 2}):
        trainer = make_trainer(loss_type=loss_type, beta=0.1, **settings)
        found.append(learn_from(trainer.parts, trainer.policy, moved(first_batch(trainer)), 1e-30)[1])
    names = ["loss", "entropy", "kl", "sampling/sampling_logp_difference/max"]
    names.append("vespo/phi_seq_mean" if loss_type == "vespo" else "clip_ratio/region_mean")
    assert {name: found[0][name] for name in names} == pytest.approx({name: found[1][name] for name in names}, abs=1e-6)


def test_a_run_with_mini_batches_resumes_to_the_bit(make_trainer, tmp_path):
    from mlx_grpo_kit.grpo import GRPOTrainer

    settings = dict(steps_per_generation=4, gradient_accumulation_steps=2, per_device_train_batch_size=4)
    whole = make_trainer(**settings)
    expected = [step.metrics["loss"] for step in whole.train(4)]
    half = make_trainer(**settings)
    [*half.train(2)]
    half.save_checkpoint(tmp_path / "checkpoint")
    resumed = GRPOTrainer.resume(tmp_path / "checkpoint", make_trainer.task())
    assert [step.metrics["loss"] for step in resumed.train(4)] == expected[2:]


def test_train_step_needs_completions_for_every_mini_batch(make_trainer):
    trainer = make_trainer(steps_per_generation=2, per_device_train_batch_size=4)
    with pytest.raises(ValueError, match="steps_per_generation divides them among 2 updates"):
        trainer.train_step([[1]] * 4, [[5, 1]] * 4, [0, 1, 0, 1])
    assert trainer.train_step([[1]] * 8, [[5, 1]] * 8, [0, 1] * 4).step == 1


def test_loss_types_know_who_applies_the_correction():
    assert [name for name, row in LOSS_TYPES.items() if row.applies_correction] == ["vespo"]
