"""AdamW in groups: torch's numbers, whatever the groups, from bounded memory."""

import gc

import numpy as np
import pytest
import torch

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.grpo import optimizer as module
from mlx_grpo_kit.grpo.optimizer import LARGEST_RATE, AdamW

SHAPES = {"a": (30, 20), "b": (20,), "c": (7, 5, 3), "d": (100, 4)}


def random_arrays(seed, size=1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: (size * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


def updated(sizes=(1.0, 1e-3, 0.1, 1e-4, 1.0), learning_rate=3e-3, weight_decay=0.1):
    """(parameters, state) after an update from gradients of each size, which clipping to 1 shortens in some of them."""
    params = {name: mx.array(value) for name, value in random_arrays(0).items()}
    adamw = AdamW(params, learning_rate)
    for seed, size in enumerate(sizes):
        grads = {name: mx.array(value) for name, value in random_arrays(seed, size).items()}
        adamw.update(params, grads, learning_rate, weight_decay, min(1 / (adamw.norm(grads) + 1e-6), 1))
        assert not grads
    return params, adamw.state


def test_it_is_torchs_with_torchs_clipping():
    sizes = (1.0, 1e-3, 0.1, 1e-4, 1.0)
    theirs = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in random_arrays(0).items()}
    optimizer = torch.optim.AdamW(theirs.values(), lr=3e-3, weight_decay=0.1)
    for seed, size in enumerate(sizes):
        grads = random_arrays(seed, size)
        for name, value in theirs.items():
            value.grad = torch.tensor(grads[name])
        ours = {name: mx.array(grad) for name, grad in grads.items()}
        norm = AdamW(ours, 1.0).norm(ours)
        assert norm == pytest.approx(torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0).item(), rel=1e-6)
        optimizer.step()
    params, state = updated(sizes)
    assert state["step"].item() == len(sizes)
    for name, value in params.items():
        np.testing.assert_allclose(value, theirs[name].detach(), rtol=1e-5, atol=1e-6, err_msg=name)
        for ours, key in (("m", "exp_avg"), ("v", "exp_avg_sq")):
            np.testing.assert_allclose(state[name][ours], optimizer.state[theirs[name]][key], rtol=1e-5, atol=1e-8)


def test_groups_and_compiling_change_nothing(monkeypatch):
    params, state = updated()
    monkeypatch.setattr(module, "GROUP_BYTES", 500)
    assert len(AdamW(params, 1.0)._groups) == 3
    in_groups, state_in_groups = updated()
    mx.disable_compile()
    try:
        uncompiled, _ = updated()
    finally:
        mx.enable_compile()
    for name, value in params.items():
        assert np.array_equal(value, in_groups[name])
        assert np.array_equal(state[name]["v"], state_in_groups[name]["v"])
        np.testing.assert_allclose(value, uncompiled[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("grad", [0.0, 1e-30, 1e-19, 1.0, 1.8e19])
def test_no_number_overflows_up_to_the_largest_rate(grad):
    """The gradients that grow as AdamW's bound has it: each is 0.9 / 0.999 of the one that comes after it."""
    params = {"x": mx.array([3e38, -3e38, 0.0])}
    adamw = AdamW(params, LARGEST_RATE)
    for step in range(30):
        size = grad * (0.9 / 0.999) ** (29 - step)
        adamw.update(params, {"x": mx.array([size, -size, size])}, LARGEST_RATE, 2 / LARGEST_RATE)
        assert np.isfinite(params["x"]).all()
    assert abs(params["x"][2].item()) <= 7.3 * LARGEST_RATE * 30


def test_memory_of_an_update_is_that_of_a_group(monkeypatch):
    """Parameters, gradients and moments are 64 MiB; a group of 4 parameters has 4 of them."""
    monkeypatch.setattr(module, "GROUP_BYTES", 2**20)
    params = {str(i): mx.ones((256, 256)) for i in range(64)}
    adamw = AdamW(params, 1.0)
    grads = {name: mx.ones_like(value) for name, value in params.items()}
    mx.eval(params, grads, adamw.state)
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    adamw.norm(grads)
    adamw.update(params, grads, 1e-3)
    assert mx.get_peak_memory() - before < 8 * 2**20
    assert mx.get_active_memory() - before < -15 * 2**20, "the gradients are gone"
