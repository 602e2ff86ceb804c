"""What must hold for every loss type, and the mistakes of other GRPO code that must be impossible here."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from mlx_grpo_kit import course
from mlx_grpo_kit.grpo import (
    LOSS_TYPES,
    GRPOLossConfig,
    compute_advantages,
    compute_grpo_loss,
    grpo_loss_and_metrics,
    token_weights,
)
from mlx_grpo_kit.runtime import mx

GUIDE = (Path(course.__file__).parent / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
GARBAGE = [math.nan, math.inf, -math.inf, -1e30, 1e30, 500.0]
every_loss_type = pytest.mark.parametrize("loss_type", LOSS_TYPES)
both_levels = pytest.mark.parametrize("level", ["token", "sequence"])


def settings_of(loss_type, level="token", **settings):
    """Settings that every loss type accepts."""
    common = dict(loss_type=loss_type, importance_sampling_level=level, max_completion_length=12, epsilon_high=0.3)
    return common | settings


def test_the_loss_of_a_policy_that_just_drew_its_answers_depends_on_their_lengths():
    """The guide's example: a right answer of 3 tokens and a wrong one of 1. Its numbers were computed by hand."""
    logps, mask = mx.array([[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]]), mx.array([[1, 1, 1], [1, 0, 0]])
    advantages = mx.array([0.5 / (math.sqrt(0.5) + 1e-4), -0.5 / (math.sqrt(0.5) + 1e-4)])
    by_token = compute_grpo_loss(logps, logps, advantages, mask)
    assert by_token.item() == pytest.approx(-(3 - 1) / 4 * 0.7070, abs=1e-4)
    assert f"{by_token.item():.2f}" == "-0.35"
    assert "give -0.35" in GUIDE
    assert compute_grpo_loss(logps, logps, advantages, mask, loss_type="grpo").item() == pytest.approx(0, abs=1e-6)
    of_equal_length = mask[:, :1]
    assert compute_grpo_loss(logps[:, :1], logps[:, :1], advantages, of_equal_length).item() == pytest.approx(0)


def random_batch(seed=0, batch=4, length=6, off_policy=0.3):
    """NumPy float32 (logps, old_logps, ref_logps, advantages, mask); advantages sum to 0; masks are ragged."""
    rng = np.random.default_rng(seed)
    logps = -rng.exponential(1.0, (batch, length)) - 0.1
    old_logps, ref_logps = (np.minimum(logps + rng.normal(size=logps.shape) * off_policy, 0) for _ in range(2))
    advantages = np.array(compute_advantages(rng.normal(size=batch), batch))
    mask = np.arange(length) < rng.integers(1, length + 1, (batch, 1))
    return *(x.astype(np.float32) for x in (logps, old_logps, ref_logps, advantages)), mask


def loss_and_gradient(logps, old_logps, advantages, mask, ref_logps=None, **settings):
    """(loss, gradient with respect to logps) as NumPy."""
    old_logps, advantages, mask, ref_logps = (
        None if x is None else mx.array(x) for x in (old_logps, advantages, mask, ref_logps)
    )

    def loss_of(logps):
        return compute_grpo_loss(logps, old_logps, advantages, mask, ref_logps=ref_logps, **settings)

    loss, gradient = mx.value_and_grad(loss_of)(mx.array(logps))
    return loss.item(), np.array(gradient)


# On-policy: the loss says nothing, the gradient says everything.


@every_loss_type
def test_on_policy_gradient_is_minus_advantage_times_token_weight(loss_type):
    """All eight losses are REINFORCE on-policy; they differ only in the share that each token has."""
    logps, _, _, advantages, mask = random_batch()
    settings = settings_of(loss_type, epsilon_high=1.0)
    _, gradient = loss_and_gradient(logps, None, advantages, mask, **settings)
    weights = np.array(token_weights(GRPOLossConfig(**settings), mx.array(mask)))
    np.testing.assert_allclose(gradient, -advantages[:, None] * weights, rtol=1e-5, atol=1e-8)


@every_loss_type
def test_passing_the_traced_logps_as_old_logps_keeps_the_gradient(loss_type):
    """Without a stop_gradient the ratio would be a constant 1, and the policy gradient exactly zero."""
    logps, _, _, advantages, mask = random_batch()
    settings = settings_of(loss_type)
    gradient = mx.grad(lambda x: compute_grpo_loss(x, x, mx.array(advantages), mx.array(mask), **settings))(
        mx.array(logps)
    )
    _, expected = loss_and_gradient(logps, None, advantages, mask, **settings)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_array_equal(np.array(gradient), expected)


@every_loss_type
def test_no_gradient_flows_into_the_reference_or_the_advantages(loss_type):
    """Even when both were computed inside the differentiated function."""
    logps, old_logps, _, _, mask = random_batch()
    settings = settings_of(loss_type, beta=0.5)
    gradient = mx.grad(
        lambda x: compute_grpo_loss(x, mx.array(old_logps), x[:, 0], mx.array(mask), ref_logps=x / 2, **settings)
    )(mx.array(logps))
    _, expected = loss_and_gradient(logps, old_logps, logps[:, 0], mask, ref_logps=logps / 2, **settings)
    np.testing.assert_array_equal(np.array(gradient), expected)


@every_loss_type
def test_very_unlikely_tokens_keep_their_gradient(loss_type):
    """Clipping log-probabilities, for safety, would take it away from the tokens that need it most."""
    logps, _, _, advantages, mask = random_batch()
    _, expected = loss_and_gradient(logps, logps, advantages, mask, **settings_of(loss_type))
    logps = logps - 1000
    _, gradient = loss_and_gradient(logps, logps, advantages, mask, **settings_of(loss_type))
    np.testing.assert_array_equal(gradient, expected)


# Masks.


@pytest.mark.parametrize("garbage", GARBAGE)
@both_levels
@every_loss_type
def test_masked_garbage_poisons_neither_loss_nor_gradient(loss_type, level, garbage):
    logps, old_logps, ref_logps, advantages, mask = random_batch(1)
    assert not mask.all()
    settings = settings_of(loss_type, level, beta=0.1, use_bias_correction_kl=True)
    expected_loss, expected = loss_and_gradient(logps, old_logps, advantages, mask, ref_logps, **settings)
    for poisoned in ((0,), (1,), (2,), (0, 1), (0, 1, 2)):
        arrays = [np.where(mask | (i not in poisoned), x, garbage) for i, x in enumerate((logps, old_logps, ref_logps))]
        loss, gradient = loss_and_gradient(arrays[0], arrays[1], advantages, mask, arrays[2], **settings)
        assert loss == expected_loss
        np.testing.assert_array_equal(gradient, expected)
    assert (expected[~mask] == 0).all()
    assert np.isfinite(expected).all()


@both_levels
@every_loss_type
def test_masked_garbage_does_not_reach_the_metrics(loss_type, level):
    logps, old_logps, ref_logps, advantages, mask = random_batch(1)
    config = GRPOLossConfig(**settings_of(loss_type, level))

    def metrics_of(logps, old_logps, ref_logps):
        _, metrics = grpo_loss_and_metrics(
            config, *map(mx.array, (logps, old_logps, advantages, mask)), ref_logps=mx.array(ref_logps)
        )
        return {name: value.item() for name, value in metrics.items()}

    clean = metrics_of(logps, old_logps, ref_logps)
    assert clean == metrics_of(
        np.where(mask, logps, np.nan), np.where(mask, old_logps, -np.inf), np.where(mask, ref_logps, 1e30)
    )


@both_levels
@every_loss_type
def test_padding_columns_change_nothing(loss_type, level):
    logps, old_logps, ref_logps, advantages, mask = random_batch(2)
    settings = settings_of(loss_type, level, beta=0.1)
    loss, gradient = loss_and_gradient(logps, old_logps, advantages, mask, ref_logps, **settings)
    for side in ((0, 5), (3, 0)):

        def pad(x, side=side):
            return np.pad(x, ((0, 0), side))

        wide_loss, wide_gradient = loss_and_gradient(
            pad(logps), pad(old_logps), advantages, pad(mask), pad(ref_logps), **settings
        )
        assert wide_loss == pytest.approx(loss, rel=1e-6)
        np.testing.assert_allclose(wide_gradient, pad(gradient), rtol=1e-6, atol=1e-9)


@both_levels
@every_loss_type
def test_an_empty_batch_has_loss_zero_and_gradient_zero(loss_type, level):
    logps, old_logps, ref_logps, advantages, mask = random_batch()
    mask[:] = False
    for num_items_in_batch in (None, 7):
        settings = settings_of(loss_type, level, beta=0.1, num_items_in_batch=num_items_in_batch)
        loss, gradient = loss_and_gradient(logps, old_logps, advantages, mask, ref_logps, **settings)
        assert loss == 0
        assert (gradient == 0).all()


def test_the_mask_may_be_bool_int_or_float():
    logps, old_logps, _, advantages, mask = random_batch()
    results = [
        loss_and_gradient(logps, old_logps, advantages, mask.astype(dtype))[0]
        for dtype in (np.bool_, np.int32, np.uint8, np.float32)
    ]
    assert len(set(results)) == 1


def test_tokens_are_counted_exactly_in_a_bfloat16_mask():
    """bfloat16 has no 1001."""
    mask = mx.ones((1, 1001), dtype=mx.bfloat16)
    weights = token_weights(GRPOLossConfig(loss_type="bnpo"), mask)
    assert weights[0, 0].item() == pytest.approx(1 / 1001, rel=1e-6)
    _, gradient = loss_and_gradient(np.zeros((1, 1001), np.float32), None, np.ones(1), mask, loss_type="bnpo")
    assert gradient[0, 0] == pytest.approx(-1 / 1001, rel=1e-6)


# Accumulation: what micro-batches and ranks compute adds up to what one batch computes.


@both_levels
@every_loss_type
def test_micro_batch_gradients_add_up_to_the_batch_gradient(loss_type, level):
    logps, old_logps, ref_logps, advantages, mask = random_batch(3, batch=8)
    if loss_type == "bnpo":
        # Its denominator is the micro-batch's own token count, so it needs micro-batches with equally many tokens.
        mask[:] = mask[:2].repeat(4, axis=0)[[0, 4, 1, 5, 2, 6, 3, 7]]
    settings = settings_of(loss_type, level, beta=0.1, use_bias_correction_kl=True)
    num_items = int(mask.sum())
    loss, gradient = loss_and_gradient(
        logps, old_logps, advantages, mask, ref_logps, num_items_in_batch=num_items, **settings
    )
    for micro_batches in (2, 4):
        parts = [
            loss_and_gradient(*arrays, num_items_in_batch=num_items, **settings)
            for arrays in zip(
                *(np.split(x, micro_batches) for x in (logps, old_logps, advantages, mask, ref_logps)), strict=True
            )
        ]
        scale = 1 if GRPOLossConfig(**settings).micro_batches_add_up else 1 / micro_batches
        assert sum(part_loss for part_loss, _ in parts) * scale == pytest.approx(loss, rel=1e-5, abs=1e-6)
        np.testing.assert_allclose(np.concatenate([part for _, part in parts]) * scale, gradient, rtol=1e-5, atol=1e-8)


def test_bnpo_depends_on_how_the_batch_is_cut():
    """The reason why DAPO replaced its denominator. (Lengths 1 and 6: the mean of means is not the mean.)"""
    logps, old_logps, _, advantages, mask = random_batch(batch=2)
    mask[:] = np.arange(6) < np.array([[1], [6]])
    _, gradient = loss_and_gradient(logps, old_logps, advantages, mask, loss_type="bnpo")
    _, first = loss_and_gradient(logps[:1], old_logps[:1], advantages[:1], mask[:1], loss_type="bnpo")
    assert not np.allclose(first / 2, gradient[:1])


@pytest.mark.parametrize("loss_type", ["dapo", "cispo", "vespo"])
def test_num_items_in_batch_may_be_an_array_and_defaults_to_this_batch(loss_type):
    logps, old_logps, _, advantages, mask = random_batch()
    results = {
        loss_and_gradient(logps, old_logps, advantages, mask, num_items_in_batch=n, **settings_of(loss_type))[0]
        for n in (None, int(mask.sum()), mx.array(mask.sum()))
    }
    assert len(results) == 1


# The share of each token.


def test_token_weights_by_hand():
    mask = mx.array([[1, 1, 1, 0], [1, 0, 0, 0]])
    expected = {
        "grpo": [[1 / 6, 1 / 6, 1 / 6, 0], [1 / 2, 0, 0, 0]],
        "sapo": [[1 / 6, 1 / 6, 1 / 6, 0], [1 / 2, 0, 0, 0]],
        "bnpo": [[1 / 4, 1 / 4, 1 / 4, 0], [1 / 4, 0, 0, 0]],
        "dr_grpo": [[1 / 24, 1 / 24, 1 / 24, 0], [1 / 24, 0, 0, 0]],
        "luspo": [[1 / 2, 1 / 2, 1 / 2, 0], [1 / 2, 0, 0, 0]],
        "dapo": [[1 / 10, 1 / 10, 1 / 10, 0], [1 / 10, 0, 0, 0]],
        "cispo": [[1 / 10, 1 / 10, 1 / 10, 0], [1 / 10, 0, 0, 0]],
        "vespo": [[1 / 10, 1 / 10, 1 / 10, 0], [1 / 10, 0, 0, 0]],
        "reinforce": [[1 / 10, 1 / 10, 1 / 10, 0], [1 / 10, 0, 0, 0]],
        "rloo": [[1 / 2, 1 / 2, 1 / 2, 0], [1 / 2, 0, 0, 0]],
    }
    assert expected.keys() == LOSS_TYPES.keys()
    for loss_type, weights in expected.items():
        actual = token_weights(GRPOLossConfig(**settings_of(loss_type)), mask, num_items_in_batch=10)
        np.testing.assert_allclose(np.array(actual), weights, rtol=1e-6)


# KL.


def test_without_beta_the_kl_is_reported_and_does_nothing():
    logps, ref_logps = mx.log(mx.array([[0.5, 0.2]])), mx.log(mx.array([[0.25, 0.4]]))
    arrays = logps, logps, mx.array([0.0]), mx.array([[1, 1]])
    (with_beta, metrics), (without, reported) = (
        grpo_loss_and_metrics(GRPOLossConfig(beta=beta), *arrays, ref_logps=ref_logps) for beta in (0.5, 0.0)
    )
    assert with_beta.item() == pytest.approx(0.5 * metrics["kl"].item(), rel=1e-6)
    assert (reported["kl"].item(), without.item()) == (metrics["kl"].item(), 0)


@both_levels
@every_loss_type
def test_equal_rewards_give_no_policy_gradient_but_kl_still_acts(loss_type, level):
    logps, _, ref_logps, _, mask = random_batch()
    advantages = np.array(compute_advantages([0.1] * 4, 4))
    loss, gradient = loss_and_gradient(logps, None, advantages, mask, **settings_of(loss_type, level))
    assert loss == 0
    assert (gradient == 0).all()
    settings = settings_of(loss_type, level, beta=0.1)
    loss, gradient = loss_and_gradient(logps, None, advantages, mask, ref_logps, **settings)
    assert loss > 0
    assert (np.abs(gradient[mask]) > 0).all()
    # The plain k3 estimator pulls each token towards the reference.
    assert (np.sign(gradient[mask]) == np.sign((logps - ref_logps)[mask])).all()


# Ratio and clip.


@both_levels
@every_loss_type
def test_the_loss_alone_is_the_loss_with_metrics(loss_type, level):
    logps, old_logps, ref_logps, advantages, mask = map(mx.array, random_batch(off_policy=1.0))
    settings = settings_of(loss_type, level, beta=0.1, epsilon=0.1, delta=1.05, use_bias_correction_kl=True)
    settings |= dict(entropy_coef=0.1, importance_sampling_correction="token_truncate")
    arrays = logps, old_logps, advantages, mask
    others = dict(ref_logps=ref_logps, entropies=-ref_logps, sampling_logps=logps - 0.5, num_items_in_batch=99)
    loss, _ = grpo_loss_and_metrics(GRPOLossConfig(**settings), *arrays, **others)
    assert loss.item() == compute_grpo_loss(*arrays, **others, **settings).item()


def test_loss_gradient_and_metrics_come_from_one_compiled_function():
    logps, old_logps, ref_logps, advantages, mask = map(mx.array, random_batch())
    config = GRPOLossConfig(beta=0.1)

    def step(logps, old_logps, advantages, mask, ref_logps):
        return grpo_loss_and_metrics(config, logps, old_logps, advantages, mask, ref_logps=ref_logps)

    plain, compiled = mx.value_and_grad(step), mx.compile(mx.value_and_grad(step))
    (loss, metrics), gradient = plain(logps, old_logps, advantages, mask, ref_logps)
    (compiled_loss, compiled_metrics), compiled_gradient = compiled(logps, old_logps, advantages, mask, ref_logps)
    assert compiled_loss.item() == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(np.array(compiled_gradient), np.array(gradient), rtol=1e-5, atol=1e-7)
    assert metrics.keys() == {"kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"}
    for name, value in metrics.items():
        assert compiled_metrics[name].item() == pytest.approx(value.item(), rel=1e-5)


def test_half_precision_is_computed_in_float32():
    logps, old_logps, ref_logps, advantages, mask = map(mx.array, random_batch())
    half, old_logps, ref_logps = (x.astype(mx.bfloat16) for x in (logps, old_logps, ref_logps))
    exact, old, ref = (x.astype(mx.float32) for x in (half, old_logps, ref_logps))
    expected = compute_grpo_loss(exact, old, advantages, mask, beta=0.1, ref_logps=ref)
    loss, gradient = mx.value_and_grad(
        lambda x: compute_grpo_loss(x, old_logps, advantages, mask, beta=0.1, ref_logps=ref_logps)
    )(half)
    assert loss.dtype == mx.float32
    assert loss.item() == expected.item()
    assert gradient.dtype == mx.bfloat16


# Errors.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss_type": "ppo"}, "loss_type is 'ppo'; expected one of " + ", ".join(map(repr, LOSS_TYPES))),
        ({"importance_sampling_level": "word"}, r"importance_sampling_level is 'word'; expected one of 'token', 'seq"),
        ({"epsilon": -0.1}, r"epsilon is -0.1; expected 0 or more"),
        ({"epsilon": math.nan}, r"epsilon is nan"),
        ({"epsilon_high": -1}, r"epsilon_high is -1; expected 0 or more"),
        ({"beta": -0.1}, r"beta is -0.1; expected 0 or more"),
        ({"delta": 0.5}, r"delta is 0.5; expected more than 1, or None"),
        ({"loss_type": "dr_grpo"}, r"set max_completion_length"),
        ({"loss_type": "dr_grpo", "max_completion_length": 0}, "max_completion_length is 0; expected a whole"),
        ({"loss_type": "cispo"}, r"set epsilon_high"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        GRPOLossConfig(**settings)
    with pytest.raises(ValueError, match=message):
        compute_grpo_loss(mx.zeros((1, 1)), None, mx.zeros(1), mx.ones((1, 1)), **settings)


def test_the_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GRPOLossConfig().beta = 1.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"old_logps": mx.zeros((4, 7))}, r"old_logps has shape \(4, 7\); expected \(4, 8\), the shape of logps"),
        ({"ref_logps": mx.zeros((3, 8))}, r"ref_logps has shape \(3, 8\); expected \(4, 8\), the shape of logps"),
        ({"completion_mask": mx.ones((4, 1))}, r"completion_mask has shape \(4, 1\); expected \(4, 8\), the sh"),
        ({"advantages": mx.zeros((4, 1))}, r"advantages has shape \(4, 1\); expected \(4,\)"),
        ({"advantages": mx.zeros(8)}, r"advantages has shape \(8,\); expected \(4,\)"),
        ({"logps": mx.zeros(8)}, r"logps has shape \(8,\); expected \(B, T\)"),
        ({"logps": mx.zeros((0, 8))}, r"logps has shape \(0, 8\); expected \(B, T\)"),
        ({"beta": 0.1}, r"beta is 0.1, so ref_logps is required"),
    ],
)
def test_shapes_are_checked(changed, message):
    arrays = {"logps": mx.zeros((4, 8)), "old_logps": mx.zeros((4, 8)), "completion_mask": mx.ones((4, 8))}
    arrays["advantages"] = mx.zeros(4)
    with pytest.raises(ValueError, match=message):
        compute_grpo_loss(**{**arrays, **changed})


WRONG_NUMBERS = [
    ({"logps": [[0.5, 0.2]]}, "logps has 0.5 at a completion token; expected log-probabilities, which are at most 0"),
    ({"old_logps": [[3.25, -1.0]]}, "old_logps has 3.25 at a completion token; expected log-probabilities"),
    ({"ref_logps": [[-1.0, 0.02]]}, "ref_logps has 0.02 at a completion token"),
    ({"completion_mask": [[1.0, 0.5]]}, "completion_mask has numbers other than 0 and 1"),
    ({"completion_mask": [[2, 0]]}, "completion_mask has numbers other than 0 and 1"),
    ({"completion_mask": [[1.0, math.nan]]}, "completion_mask has numbers other than 0 and 1"),
    ({"num_items_in_batch": 0}, "num_items_in_batch is 0; expected the completion tokens of the whole batch"),
    ({"num_items_in_batch": -3}, "num_items_in_batch is -3; expected"),
    ({"num_items_in_batch": math.nan}, "num_items_in_batch is nan; expected"),
]
RIGHT_NUMBERS = {"logps": [[-1.0, -2.0]], "old_logps": [[-1.0, -1.5]], "advantages": [1.0], "completion_mask": [[1, 1]]}


@pytest.mark.parametrize(("changed", "message"), WRONG_NUMBERS)
def test_numbers_are_checked(changed, message):
    arrays = RIGHT_NUMBERS | changed
    arrays = {name: value if name == "num_items_in_batch" else mx.array(value) for name, value in arrays.items()}
    with pytest.raises(ValueError, match=message):
        compute_grpo_loss(**arrays)
    with pytest.raises(ValueError, match=message):
        mx.grad(lambda logps: compute_grpo_loss(**arrays | {"logps": logps}))(arrays["logps"])


def test_masked_places_and_rounding_are_no_wrong_numbers():
    arrays = {name: mx.array(value) for name, value in RIGHT_NUMBERS.items()}
    arrays |= {"logps": mx.array([[1e-6, 900.0]]), "completion_mask": mx.array([[1, 0]]), "old_logps": None}
    assert math.isfinite(compute_grpo_loss(**arrays, num_items_in_batch=mx.array(1)).item())


def test_while_a_compiler_traces_it_no_number_is_looked_at():
    arrays = {name: mx.array(value) for name, value in (RIGHT_NUMBERS | {"completion_mask": [[1.0, 0.5]]}).items()}
    compiled = mx.compile(mx.grad(lambda logps, arrays: compute_grpo_loss(logps, **arrays)))
    logps = arrays.pop("logps")
    assert np.isfinite(np.array(compiled(logps, arrays))).all()


@every_loss_type
@both_levels
def test_in_float64_nothing_is_rounded_to_float32(loss_type, level):
    """On-policy no exp is taken, which MLX computes in float32's precision: what is left are weights and sums."""
    mask = np.arange(7) < np.array([[3], [7], [5]])
    advantages = np.array([1.1, -0.7, 0.3])
    logps = -np.random.default_rng(0).exponential(1.0, (3, 7))
    weight = {
        "grpo": mask / mask.sum(axis=1, keepdims=True) / 3,
        "sapo": mask / mask.sum(axis=1, keepdims=True) / 3,
        "luspo": mask / 3,
        "dr_grpo": mask / (3 * 11),
        "rloo": mask / mask.sum(axis=1, keepdims=True) / 3,
    }.get(loss_type, mask / 15)
    objective = np.broadcast_to(advantages[:, None], logps.shape)
    if loss_type in ("cispo", "vespo", "reinforce"):
        objective = objective * logps
    elif loss_type == "sapo":
        objective = objective * np.where(objective > 0, 2 / 1.0, 2 / 1.05)
    with mx.stream(mx.cpu):
        arrays = [mx.array(each, mx.float64) for each in (logps, logps, advantages)]
        loss = compute_grpo_loss(
            *arrays, mx.array(mask), loss_type=loss_type, importance_sampling_level=level, epsilon_high=5.0,
            max_completion_length=11,
        )  # fmt: skip
        assert loss.dtype == mx.float64
        assert loss.item() == pytest.approx(-(weight * objective).sum(), rel=1e-14)
