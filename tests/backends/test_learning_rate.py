"""The learning rate that optim_step reports is the optimizer's: what a plain gradient step moves the weights by."""

import math

import numpy as np
import pytest

from mlx_grpo_kit.backends.arrays import as_numpy
from tests.backends.frameworks import (
    FRAMEWORKS,
    apply_model,
    first_weights,
    masked_cross_entropy_jax,
    masked_cross_entropy_torch,
    torch_model,
)


def optax_optimizers():
    import optax

    schedule = optax.linear_schedule(0.4, 0.0, 4)
    return {
        "number": optax.sgd(0.25),
        "chain": optax.chain(optax.clip_by_global_norm(1e9), optax.sgd(0.25)),
        "schedule": optax.sgd(schedule),
        "injected": optax.chain(optax.clip_by_global_norm(1e9), optax.inject_hyperparams(optax.sgd)(schedule)),
        "with a sign": optax.chain(optax.scale(-1.0), optax.scale(0.25)),
        "masked": optax.masked(optax.sgd(0.25), True),
    }


def torchopt_optimizers():
    import torchopt

    return {
        "number": torchopt.sgd(0.25),
        "chain": torchopt.chain(torchopt.clip.clip_grad_norm(1e9), torchopt.sgd(0.25)),
        "schedule": torchopt.sgd(torchopt.schedule.linear_schedule(0.4, 0.0, 4, 0)),
    }


OPTIMIZERS = {"jax": optax_optimizers, "torchax": optax_optimizers, "torch_func": torchopt_optimizers}


@pytest.fixture
def make(request, tmp_path):
    """(framework's name, optimizer, **options) -> a backend; without options nobody tells it its learning rate."""
    from mlx_grpo_kit import backends

    def make(name, optimizer, **options):
        if name != "torch_func":
            request.getfixturevalue("jax")
        if name == "jax":
            parts = apply_model, first_weights(), optimizer, masked_cross_entropy_jax
            return backends.JAXTrainingBackend(*parts, tmp_path, **options)
        kinds = {"torch_func": backends.TorchFuncTrainingBackend.from_model, "torchax": backends.TorchaxTrainingBackend}
        return kinds[name](torch_model(), optimizer, masked_cross_entropy_torch, tmp_path, **options)

    return make


@pytest.mark.parametrize(
    ("framework", "kind"),
    [
        *[("jax", kind) for kind in ("number", "chain", "schedule", "injected", "with a sign", "masked")],
        *[("torchax", kind) for kind in ("number", "schedule")],
        *[("torch_func", kind) for kind in ("number", "chain", "schedule")],
    ],
)
def test_it_is_what_the_weights_move_by(make, framework, kind):
    backend = make(framework, OPTIMIZERS[framework]()[kind])
    [batches] = [each.batch for each in FRAMEWORKS if each.name == framework]
    for step in range(3):
        before = backend.get_weights().wait()
        norm = backend.forward_backward(batches(step)).wait()["grad_norm"]
        rate = backend.optim_step().wait()["lr"]
        after = backend.get_weights().wait()
        moved = sum(np.square(as_numpy(after[name]) - as_numpy(before[name])).sum() for name in before)
        assert rate == pytest.approx(math.sqrt(moved) / norm, rel=1e-4)
        assert rate > 0


@pytest.mark.parametrize("framework", OPTIMIZERS)
def test_a_rate_that_is_given_is_the_one_that_is_reported(make, framework):
    rates = []
    for rate in (0.5, lambda step: 1 / (step + 1)):
        backend = make(framework, OPTIMIZERS[framework]()["number"], learning_rate=rate)
        for step in range(2):
            backend.forward_backward(next(each for each in FRAMEWORKS if each.name == framework).batch(step))
            rates.append(backend.optim_step().wait()["lr"])
    assert rates == pytest.approx([0.5, 0.5, 1.0, 0.5])


def test_of_two_rates_none_is_reported(make):
    import optax

    backend = make("jax", optax.chain(optax.masked(optax.sgd(0.1), True), optax.sgd(0.2)))
    backend.forward_backward(FRAMEWORKS[3].batch())
    assert math.isnan(backend.optim_step().wait()["lr"])
