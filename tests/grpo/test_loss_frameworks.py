"""The loss on torch's and JAX's arrays against TRL's own `_compute_loss`: the same lines as on MLX's."""

import itertools
import math

import numpy as np
import pytest
import torch

from mlx_grpo_kit.grpo import LOSS_TYPES, GRPOLossConfig, compute_grpo_loss, grpo_loss_and_metrics
from mlx_grpo_kit.grpo.loss import BatchWeights
from mlx_grpo_kit.grpo.loss_of_logits import grpo_loss_fn
from mlx_grpo_kit.runtime import mx

TRLS = [loss_type for loss_type in LOSS_TYPES if loss_type not in ("reinforce", "rloo")]
FRAMEWORKS = ["torch", "jax"]


def in_torch(function, logps, entropies):
    logps, entropies = (torch.tensor(each, requires_grad=True) for each in (logps, entropies))
    loss, metrics = function(torch.tensor, logps, entropies)
    loss.backward()
    grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in (logps, entropies)]
    return loss.item(), [grad.numpy() for grad in grads], {name: value.item() for name, value in metrics.items()}


def in_jax(function, logps, entropies):
    jax = pytest.importorskip("jax")

    def loss_and_metrics(logps, entropies):
        return function(jax.numpy.array, logps, entropies)

    run = jax.value_and_grad(loss_and_metrics, (0, 1), has_aux=True)
    (loss, metrics), grads = run(jax.numpy.array(logps), jax.numpy.array(entropies))
    return loss.item(), [np.asarray(grad) for grad in grads], {name: value.item() for name, value in metrics.items()}


def in_mlx(function, logps, entropies):
    def loss_and_metrics(logps, entropies):
        return function(mx.array, logps, entropies)

    (loss, metrics), grads = mx.value_and_grad(loss_and_metrics, (0, 1))(mx.array(logps), mx.array(entropies))
    return loss.item(), [np.array(grad) for grad in grads], {name: value.item() for name, value in metrics.items()}


RUN = {"torch": in_torch, "jax": in_jax, "mlx": in_mlx}


def batch(seed, off_policy):
    rng = np.random.default_rng(seed)
    logps = -rng.exponential(2.0, (4, 7))
    old, ref = (np.minimum(logps + rng.normal(size=logps.shape) * off, 0) for off in (off_policy, 0.5))
    advantages, entropies = rng.normal(size=4), rng.exponential(2.0, (4, 7))
    mask = np.arange(7) < rng.integers(1, 8, (4, 1))
    return [each.astype(np.float32) for each in (logps, old, ref, advantages, entropies)], mask


def settings_of(loss_type):
    high = (5.0, 1.1) if loss_type in ("cispo", "sapo", "vespo") else (None, 0.28)
    for level, epsilon_high, off_policy, others in itertools.product(
        ("token", "sequence"),
        high,
        (None, 1.0),
        ({}, {"beta": 0.5, "use_bias_correction_kl": True}, {"entropy_coef": 0.01, "top_entropy_quantile": 0.4}),
    ):
        settings = {"importance_sampling_level": level, "epsilon_high": epsilon_high, "max_completion_length": 11}
        yield off_policy, {"loss_type": loss_type, **settings, **others}
    if loss_type in ("grpo", "dapo"):
        yield 1.0, {"loss_type": loss_type, "delta": 1.3}


@pytest.mark.parametrize("loss_type", TRLS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_equal_to_trl(trl, framework, loss_type):
    for seed, (off_policy, settings) in enumerate(settings_of(loss_type)):
        if framework == "jax" and seed % 5:  # it takes its time over each
            continue
        (logps, old, ref, advantages, entropies), mask = batch(seed, off_policy or 0.0)
        old = old if off_policy else None
        ref = ref if "beta" in settings else None
        num_items = (None, 50)[seed % 2]

        def loss_and_metrics(array, logps, entropies, old=old, ref=ref, advantages=advantages, mask=mask,
                             settings=settings, num_items=num_items):  # fmt: skip
            others = [None if each is None else array(each) for each in (old, advantages, mask, ref)]
            return grpo_loss_and_metrics(
                GRPOLossConfig(**settings), logps, *others[:3], ref_logps=others[3], entropies=entropies,
                num_items_in_batch=num_items,
            )  # fmt: skip

        loss, grads, metrics = RUN[framework](loss_and_metrics, logps, entropies)
        trl_loss, trl_grads, trl_metrics = trl.loss(
            logps, old, advantages, mask, ref_logps=ref, entropies=entropies, num_items_in_batch=num_items, **settings
        )
        assert loss == pytest.approx(trl_loss, rel=2e-5, abs=2e-6), settings
        for grad, trl_grad in zip(grads, trl_grads, strict=True):
            np.testing.assert_allclose(
                grad, trl_grad, rtol=5e-5, atol=2e-6 * max(1e-2, np.abs(trl_grad).max()), err_msg=str(settings)
            )
        assert metrics == pytest.approx({name: trl_metrics[name] for name in metrics}, rel=2e-5, abs=1e-6), settings


def slope(loss_type, nats, advantage, delta):
    """The derivative of a completion's objective by its log-ratio, in Python's floats, or its limit."""
    ratio = math.exp(min(nats, 700.0))
    if loss_type == "reinforce":
        return advantage
    if loss_type == "cispo":
        return min(ratio, 5.0) * advantage
    if loss_type == "sapo":
        tau = 1.0 if advantage > 0 else 1.05
        gate = 0.5 * (1 + math.tanh(tau * (ratio - 1) / 2))
        return 4 * gate * (1 - gate) * ratio * advantage
    if loss_type == "vespo":
        log_w, (k, lam) = min(max(nats, math.log(1e-8)), 20), (2, 3) if advantage >= 0 else (3, 2)
        return math.exp(lam + k * log_w - lam * math.exp(log_w)) * advantage
    is_clipped = ratio > 1.2 if advantage > 0 else ratio < 0.8
    return 0.0 if is_clipped or ratio > (delta or math.inf) else ratio * advantage


NATS = (0, 1, -1, 20, -20, 88, -88, 100, -100, 1000, -1000)


@pytest.mark.parametrize("delta", [None, 3.0])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize(
    ("framework", "level"),
    [*itertools.product(("mlx", "torch"), ("token", "sequence")), ("jax", "token")],  # JAX takes its time over each
)
def test_no_ratio_overflows_where_the_loss_does_not_depend_on_it(framework, loss_type, level, delta):
    """Completions of two tokens; of one they have half of the log-ratio each, or all if tokens or their mean count."""
    each = 0.5 if loss_type in ("rloo", "vespo") else 1.0
    bounded = delta is not None or loss_type in ("cispo", "sapo", "vespo", "reinforce")
    rows = [
        (nats, advantage)
        for nats, advantage in itertools.product(NATS, (1.5, -0.5, 0.0))
        if advantage >= 0 or nats < 88 or bounded
    ]
    nats, advantages = np.array(rows, np.float32).T
    log_ratios = np.repeat(each * nats[:, None], 2, axis=1)
    logps = np.minimum(log_ratios, 0) - 1
    config = GRPOLossConfig(
        loss_type, epsilon_high=5.0 if loss_type == "cispo" else 0.2, delta=delta, max_completion_length=2,
        importance_sampling_level=level,
    )  # fmt: skip

    def loss_and_metrics(array, logps, _):
        old = array(np.minimum(-log_ratios, 0) - 1)
        return grpo_loss_and_metrics(config, logps, old, array(advantages), array(np.ones((len(rows), 2), bool)))

    loss, [grad, _], metrics = RUN[framework](loss_and_metrics, logps, logps)
    assert np.isfinite([loss, *metrics.values()]).all()
    share = 1 / len(rows) / (1 if loss_type in ("luspo", "rloo") else 2)
    expected = [-share * slope(loss_type, *row, delta) for row in rows]
    np.testing.assert_allclose(grad, np.repeat(np.array(expected)[:, None], 2, axis=1), rtol=2e-5, atol=1e-12)
    if not bounded:  # this loss is infinite, which is an error of a run, but not NaN
        advantages, log_ratios = advantages[:1] * 0 - 1, log_ratios[:1] * 0 + 1000
        rows = rows[:1]
        assert RUN[framework](loss_and_metrics, logps[:1], logps[:1])[0] == math.inf


@pytest.mark.parametrize(
    "settings",
    [
        {"off_policy_mask_threshold": 0.5},
        {"top_entropy_quantile": 0.5},
        {"importance_sampling_correction": "token_mask"},
        {"importance_sampling_correction": "sequence_mask"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("framework", "loss_type"), [*itertools.product(("mlx", "torch"), ("dapo", "rloo", "sapo")), ("jax", "dapo")]
)
def test_a_token_that_is_dropped_is_not_nan(framework, loss_type, settings):
    """In each row one or both tokens have an infinite ratio and a negative advantage, and are dropped."""
    log_ratios = np.array([[100.0, -300.0]] if "off" in str(settings) else [[100.0, 100.0]], np.float32)
    log_ratios = np.concatenate([log_ratios, [[0.1, 0.1]]]).astype(np.float32)
    logps = np.float32(-400) + log_ratios
    sampling = np.full_like(logps, -400)
    if "importance_sampling_correction" in settings:
        sampling[0] = -800
    entropies = np.float32([[0, 0], [1, 1]])

    def loss_and_metrics(array, logps, _):
        return grpo_loss_and_metrics(
            GRPOLossConfig(loss_type, **settings), logps, array(np.full_like(sampling, -400)),
            array(np.float32([-1, -1])), array(np.ones((2, 2), bool)), entropies=array(entropies),
            sampling_logps=array(sampling),
        )  # fmt: skip

    loss, [grad, _], metrics = RUN[framework](loss_and_metrics, logps, logps)
    assert np.isfinite([loss, *metrics.values()]).all()
    assert (grad[0] == 0).all()
    assert (grad[1] > 0).all()


@pytest.mark.parametrize("framework", RUN)
@pytest.mark.parametrize(
    ("settings", "share"), [({}, 1.0), ({"importance_sampling_level": "sequence"}, 0.5), ({"loss_type": "rloo"}, 0.5)]
)
def test_a_metric_of_completions_of_one_token_is_of_its_own_kind(framework, settings, share):
    """The one token that counts is clipped: every token, but only half of the completions."""

    def loss_and_metrics(array, logps, old):
        mask = array([[True], [False]])
        return grpo_loss_and_metrics(GRPOLossConfig(**settings), logps, old, array(np.float32([1, 1])), mask)

    column = np.full((2, 1), -1, np.float32)
    assert RUN[framework](loss_and_metrics, column, 3 * column)[2]["clip_ratio/high_mean"] == share


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_a_part_of_a_batch_weighs_what_it_does_in_mlx(framework, loss_type):
    (logps, old, ref, advantages, entropies), mask = batch(3, 0.4)
    weights = [np.random.default_rng(row).random((4, 1), np.float32) for row in range(4)]
    kept = mask & (entropies > 1)
    config = GRPOLossConfig(
        loss_type, epsilon_high=0.3, beta=0.1, max_completion_length=9, entropy_coef=0.01, top_entropy_quantile=0.5
    )

    def loss_and_metrics(array, logps, entropies):
        shares = BatchWeights(*map(array, [*weights[:3], kept, weights[3]]))
        return grpo_loss_and_metrics(
            config, logps, array(old), array(advantages), array(mask), ref_logps=array(ref), entropies=entropies,
            weights=shares,
        )  # fmt: skip

    expected, found = (RUN[each](loss_and_metrics, logps, entropies) for each in ("mlx", framework))
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    for grad, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(grad, other, rtol=1e-5, atol=1e-7)
    assert found[2] == pytest.approx(expected[2], rel=1e-5, abs=1e-7)


def test_half_precision_is_computed_in_float32():
    (logps, old, _, advantages, _), mask = batch(1, 0.3)
    half = torch.tensor(logps, dtype=torch.bfloat16, requires_grad=True)
    loss = compute_grpo_loss(half, torch.tensor(old), torch.tensor(advantages), torch.tensor(mask))
    assert loss.dtype == torch.float32
    loss.backward()
    assert half.grad.dtype == torch.bfloat16
    assert half.grad.isfinite().all()


@pytest.mark.parametrize("settings", [{}, {"beta": 0.1}, {"entropy_coef": 0.3}, {"top_entropy_quantile": 0.5}], ids=str)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_in_float64_torch_computes_in_float64(loss_type, settings):
    """Against the same numbers in JAX, whose whole numbers become float64; a process of its own has that setting."""
    (logps, old, ref, advantages, entropies), mask = batch(3, 0.3)
    arrays = [each.astype(np.float64) / 3 for each in (logps, old, ref, advantages, entropies)]
    settings = settings | dict(loss_type=loss_type, epsilon=0.13, epsilon_high=0.23, max_completion_length=7)

    def loss_of(array):
        logps, old, ref, advantages, entropies = map(array, arrays)
        loss, metrics = grpo_loss_and_metrics(
            GRPOLossConfig(**settings), logps, old, advantages, array(mask), ref_logps=ref, entropies=entropies
        )
        return [loss, metrics["kl"]]

    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        expected = [each.item() for each in loss_of(jax.numpy.asarray)]
    actual = loss_of(torch.tensor)
    assert {each.dtype for each in actual} == {torch.float64}
    assert [each.item() for each in actual] == pytest.approx(expected, rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_numbers_are_checked_where_they_are_known(framework):
    module = torch if framework == "torch" else pytest.importorskip("jax").numpy

    def loss(logps, mask=((1.0, 0.5),)):
        mask, advantages = module.asarray(mask), module.asarray([1.0])
        return compute_grpo_loss(logps, None, advantages, mask, num_items_in_batch=module.asarray(2))

    logps = module.asarray([[-1.0, -2.0]])
    with pytest.raises(ValueError, match="completion_mask has numbers other than 0 and 1"):
        loss(logps)
    with pytest.raises(ValueError, match="logps has 2 at a completion token; expected log-probabilities"):
        loss(-logps, ((1, 1),))
    # While a compiler or vmap traces it, there are no numbers to look at, and no error.
    if framework == "torch":
        assert torch.func.vmap(lambda x: loss(x, ((1, 1),)))(-logps[None]).isfinite().all()
    else:
        import jax

        assert module.isfinite(jax.jit(lambda x: loss(x, ((1, 1),)))(-logps))
        assert module.isfinite(jax.vmap(lambda x: loss(x, ((1, 1),)))(-logps[None])).all()


def test_the_loss_compiles_in_jax_and_is_a_function_for_torch_func():
    jax = pytest.importorskip("jax")
    (logps, old, _, advantages, _), mask = batch(2, 0.3)

    def loss(logps, old, advantages, mask):
        return compute_grpo_loss(logps, old, advantages, mask)

    expected, [grad, _], _ = in_torch(lambda array, logps, _: (loss(logps, *map(array, (old, advantages, mask))), {}),
                                      logps, logps)  # fmt: skip
    value, jitted = jax.jit(jax.value_and_grad(loss))(*map(jax.numpy.array, (logps, old, advantages, mask)))
    assert value.item() == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(jitted, grad, rtol=1e-5, atol=1e-8)
    pure, value = torch.func.grad_and_value(loss)(*map(torch.tensor, (logps, old, advantages, mask)))
    assert value.item() == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(pure, grad, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("framework", ["mlx", *FRAMEWORKS])
def test_the_backends_loss_of_logits_is_trls_of_their_log_probabilities(trl, framework):
    """With a temperature, padding, an entropy bonus; the gradient is that of the logits."""
    (_, old, ref, advantages, _), mask = batch(4, 0.2)
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(4, 7, 11)).astype(np.float32) * 3, rng.integers(0, 11, (4, 7))
    settings = {"beta": 0.1, "entropy_coef": 0.01, "epsilon": 0.1}
    loss_fn = grpo_loss_fn(GRPOLossConfig(**settings), temperature=0.7)

    expected_logits = torch.tensor(logits, requires_grad=True)
    log_probs = torch.log_softmax(expected_logits / 0.7, -1)
    logps = log_probs.gather(-1, torch.tensor(labels)[..., None])[..., 0]
    entropies = -(log_probs.exp() * log_probs).sum(-1)
    loss, grads, metrics = trl.loss(
        logps.detach().numpy(), old, advantages, mask, ref_logps=ref, entropies=entropies.detach().numpy(), **settings
    )
    torch.autograd.backward([logps, entropies], [torch.tensor(grad) for grad in grads])

    def of_logits(array, logits, _):
        loss, metrics = loss_fn(
            logits, array(labels), array(mask), advantages=array(advantages), old_logps=array(old), ref_logps=array(ref)
        )
        found.append(metrics.pop("logps"))
        return loss, metrics

    found = []
    ours, (grad, _), our_metrics = RUN[framework](of_logits, logits, logits)
    assert ours == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(grad, expected_logits.grad, rtol=1e-4, atol=1e-7)
    assert our_metrics.pop("entropy") == pytest.approx(entropies.detach().numpy()[mask].mean(), rel=1e-5)
    assert our_metrics == pytest.approx({name: metrics[name] for name in our_metrics}, rel=1e-5, abs=1e-7)
    if framework == "torch":
        np.testing.assert_allclose(found[0][torch.tensor(mask)], logps.detach()[torch.tensor(mask)], rtol=1e-5)
        assert (found[0][torch.tensor(~mask)] == 0).all()
