"""The learning rate that optim_step reports is the optimizer's: what a plain gradient step moves the weights by."""

import math

import numpy as np
import pytest

from mlx_grpo_kit.backends.arrays import as_numpy
from tests.backends.frameworks import (
    FRAMEWORKS,
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
def make(jax, tmp_path):
    """(framework's name, optimizer) -> a backend whose learning rate nobody has told it."""
    from mlx_grpo_kit import backends

    def make(name, optimizer):
        if name == "torch_func":
            of = backends.TorchFuncTrainingBackend.from_model
            return of(torch_model(), optimizer, masked_cross_entropy_torch, tmp_path)
        if name == "torchax":
            return backends.TorchaxTrainingBackend(torch_model(), optimizer, masked_cross_entropy_torch, tmp_path)
        return backends.JAXTrainingBackend(logits, first_weights(), optimizer, masked_cross_entropy_jax, tmp_path)

    return make


def logits(params, input_ids):
    return params["embedding.weight"][input_ids] @ params["output.weight"].T


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


def test_of_two_rates_none_is_reported(make):
    import optax

    backend = make("jax", optax.chain(optax.masked(optax.sgd(0.1), True), optax.sgd(0.2)))
    backend.forward_backward(FRAMEWORKS[3].batch())
    assert math.isnan(backend.optim_step().wait()["lr"])
