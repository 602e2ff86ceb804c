"""The kit's loss on random batches beside TRL's own `_compute_loss`: value, gradients and metrics."""

import numpy as np

from mlx_grpo_kit.grpo import LOSS_TYPES, GRPOLossConfig, grpo_loss_and_metrics
from mlx_grpo_kit.runtime import mx

TRLS = [loss_type for loss_type in LOSS_TYPES if loss_type not in ("reinforce", "rloo")]  # those have their own tests


def random_batch(seed, off_policy, batch=4, length=7):
    """(logps, old_logps, ref_logps, advantages, mask): ragged masks, one advantage exactly 0, float32."""
    rng = np.random.default_rng(seed)
    logps = -rng.exponential(2.0, (batch, length))
    old_logps = logps + rng.normal(size=logps.shape) * off_policy
    ref_logps = logps + rng.normal(size=logps.shape) * 0.5
    advantages = rng.normal(size=batch)
    advantages[rng.integers(batch)] = 0
    mask = np.arange(length) < rng.integers(1, length + 1, (batch, 1))
    return *(x.astype(np.float32) for x in (logps, old_logps, ref_logps, advantages)), mask


def kit(logps, old_logps, advantages, mask, *, num_items_in_batch=None, entropies=None, **settings):
    """(loss, gradient with respect to logps, {metric: float}) as `TRL.loss` returns them; with entropies a pair."""
    others = {name: settings.pop(name) for name in ("ref_logps", "sampling_logps") if name in settings}
    others = {name: mx.array(value) for name, value in others.items() if value is not None}
    config = GRPOLossConfig(**settings)
    arrays = [None if x is None else mx.array(x) for x in (old_logps, advantages, mask)]

    def loss_and_metrics(logps, *entropies):
        of_tokens = entropies[0] if entropies else None
        return grpo_loss_and_metrics(
            config, logps, *arrays, entropies=of_tokens, num_items_in_batch=num_items_in_batch, **others
        )

    inputs = [mx.array(x) for x in (logps, entropies) if x is not None]
    (loss, metrics), found = mx.value_and_grad(loss_and_metrics, [*range(len(inputs))])(*inputs)
    found = np.array(found) if entropies is None else tuple(map(np.array, found))
    return loss.item(), found, {name: value.item() for name, value in metrics.items()}


def assert_equal_to_trl(trl, *arrays, **settings):
    """`arrays` are logps, old_logps, advantages and the mask. Return the gradient."""
    loss, gradient, metrics = kit(*arrays, **settings)
    trl_loss, trl_gradient, trl_metrics = trl.loss(*arrays, **settings)
    np.testing.assert_allclose(loss, trl_loss, rtol=2e-5, atol=2e-6 * max(1.0, abs(trl_loss)), err_msg=str(settings))
    np.testing.assert_allclose(
        gradient, trl_gradient, rtol=5e-5, atol=2e-6 * max(1e-2, np.abs(trl_gradient).max()), err_msg=str(settings)
    )
    others = ("entropy", "entropy_coef", "_min", "_max")
    known = {name: value for name, value in trl_metrics.items() if not name.endswith(others)}
    metrics = {name: value for name, value in metrics.items() if not name.startswith("sampling/")}
    assert metrics.keys() == known.keys(), settings
    np.testing.assert_allclose([metrics[name] for name in known], [*known.values()], rtol=2e-5, atol=1e-6)
    return gradient
