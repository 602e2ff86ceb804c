"""AdamW in groups: torch's numbers, whatever the groups, from bounded memory."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mlx_grpo_kit.grpo import optimizer as module
from mlx_grpo_kit.grpo.optimizer import Adafactor, AdamW, Gradient
from mlx_grpo_kit.grpo.schedule import LARGEST_RATE
from mlx_grpo_kit.runtime import mx

SHAPES = {"a": (30, 20), "b.q_norm.weight": (20,), "c": (7, 5, 3), "d": (100, 4)}


def random_arrays(seed, size=1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: (size * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


SIZES = (1.0, 1e-3, 0.1, 1e-4, 1.0)


def updated(kind=AdamW, learning_rate=3e-3, weight_decay=0.1):
    """(parameters, state) after an update from gradients of each size, which clipping to 1 shortens in some of them."""
    params = {name: mx.array(value) for name, value in random_arrays(0).items()}
    optimizer = kind(params, learning_rate)
    for seed, size in enumerate(SIZES):
        grads = {name: mx.array(value) for name, value in random_arrays(seed, size).items()}
        optimizer.update(params, grads, learning_rate, weight_decay, min(1 / (Gradient(grads).norm + 1e-6), 1))
        assert not grads
    return params, optimizer.state


def theirs_updated(make):
    """What an optimizer of torch's makes of it: (parameters, the optimizer)."""
    theirs = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in random_arrays(0).items()}
    norm = theirs["b.q_norm.weight"]
    others = [value for value in theirs.values() if value is not norm]
    optimizer = make([{"params": others}, {"params": [norm], "weight_decay": 0.0}], lr=3e-3, weight_decay=0.1)
    for seed, size in enumerate(SIZES):
        grads = random_arrays(seed, size)
        for name, value in theirs.items():
            value.grad = torch.tensor(grads[name])
        ours = {name: mx.array(grad) for name, grad in grads.items()}
        norm = Gradient(ours).norm
        assert norm == pytest.approx(torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0).item(), rel=1e-6)
        optimizer.step()
    return theirs, optimizer


def transformers_adafactor(params, lr, weight_decay):
    """As TRL makes it for optim="adafactor"."""
    from transformers import TrainingArguments
    from transformers.trainer import Trainer

    args = TrainingArguments(optim="adafactor", learning_rate=lr, weight_decay=weight_decay, use_cpu=True)
    kind, settings = Trainer.get_optimizer_cls_and_kwargs(args)
    return kind(params, weight_decay=weight_decay, **settings)


@pytest.mark.parametrize(
    ("kind", "make", "names"),
    [
        (AdamW, torch.optim.AdamW, {"m": "exp_avg", "v": "exp_avg_sq"}),
        (
            Adafactor,
            transformers_adafactor,
            {name: name for name in ("exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col")},
        ),
    ],
)
@pytest.mark.parametrize("group_bytes", [2**26, 500])
def test_it_is_torchs_with_torchs_clipping(monkeypatch, kind, make, names, group_bytes):
    """Whole parameters in one group, and in several groups of which some are less than a parameter."""
    monkeypatch.setattr(module, "GROUP_BYTES", group_bytes)
    theirs, optimizer = theirs_updated(make)
    params, state = updated(kind)
    assert state["step"].item() == len(SIZES)
    for name, value in params.items():
        np.testing.assert_allclose(value, theirs[name].detach(), rtol=1e-5, atol=1e-6, err_msg=name)
        for part, moment in state[name].items():
            expected = optimizer.state[theirs[name]][names[part]]
            np.testing.assert_allclose(moment, expected, rtol=1e-5, atol=1e-8, err_msg=f"{name} {part}")


@pytest.mark.parametrize("size", [0.0, 1e-7, 1e-6, 1.0])
def test_the_factor_of_a_clipped_gradient_is_torchs(make_trainer, size):
    trainer = make_trainer(max_grad_norm=1e-6)
    factors = []
    trainer.optimizer.rule = SimpleNamespace(is_large=False, update=lambda *given: factors.append(given[-1]))
    trainer.optimizer(trainer.policy, Gradient(a=mx.array([size])), 1e-3)
    theirs = torch.nn.Parameter(torch.zeros(1))
    theirs.grad = torch.tensor([size])
    torch.nn.utils.clip_grad_norm_([theirs], 1e-6)
    assert size * factors[0] == pytest.approx(theirs.grad.item(), rel=1e-5)


@pytest.mark.parametrize("kind", [AdamW, Adafactor])
def test_groups_and_compiling_change_nothing_but_rounding(monkeypatch, kind):
    params, _ = updated(kind)
    monkeypatch.setattr(module, "GROUP_BYTES", 500)
    assert len(kind(params, 1.0)._groups) == 3
    in_groups, _ = updated(kind)
    mx.disable_compile()
    try:
        uncompiled, _ = updated(kind)
    finally:
        mx.enable_compile()
    for name, value in params.items():
        np.testing.assert_allclose(value, in_groups[name], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(value, uncompiled[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [AdamW, Adafactor])
def test_what_somebody_else_holds_stays_as_it_was(monkeypatch, kind):
    """A large parameter is changed in place, where that changes nothing that can be seen."""
    monkeypatch.setattr(module, "GROUP_BYTES", 500)
    params = {name: mx.array(value) for name, value in random_arrays(0).items()}
    optimizer, before = kind(params, 1e-3), dict(params)
    view = np.array(params["a"], copy=False)
    states = []
    for seed in (1, 2):
        states.append({name: dict(optimizer.state[name]) for name in params})
        copies = [{part: np.array(value) for part, value in states[-1][name].items()} for name in params]
        optimizer.update(params, {name: mx.array(grad) for name, grad in random_arrays(seed).items()}, 1e-3)
    for name, value in random_arrays(0).items():
        assert np.array_equal(before[name], value)
        assert not np.array_equal(params[name], value)
    assert np.array_equal(view, random_arrays(0)["a"])
    for name, copy in zip(params, copies, strict=True):
        for part, value in copy.items():
            assert np.array_equal(states[-1][name][part], value)


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


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e6])
def test_adafactors_numbers_stay_finite(size):
    """Gradients that are 0 in a row, in a column or everywhere, and tiny and huge ones beside them."""
    params = {"rows": mx.ones((4, 3)), "zeros": mx.ones((4, 3)), "vector": mx.ones((5,))}
    optimizer = Adafactor(params, 1.0)
    for _ in range(30):
        rows = size * mx.array([[0, 0, 0], [0, 1, 1e-6], [0, -2, 0], [0, 0, 1e3]])
        grads = {"rows": rows, "zeros": mx.zeros((4, 3)), "vector": size * mx.array([0, 1, -1, 0, 1e-3])}
        optimizer.update(params, grads, LARGEST_RATE)
        assert all(np.isfinite(value).all() for value in params.values())
    assert np.array_equal(params["zeros"], np.ones((4, 3)))


MIB = 2**20


@pytest.mark.parametrize(
    ("kind", "sizes", "extra"),
    [
        (AdamW, [256] * 64, 8 * MIB),  # a group of 4 parameters has 4 MiB
        (AdamW, [64 * 256], 8 * MIB),  # a parameter of 16 MiB goes by in blocks of 1
        (Adafactor, [256] * 64, 8 * MIB),
        (Adafactor, [64 * 256], 40 * MIB),  # its squares, and the new one
    ],
)
def test_memory_of_an_update(monkeypatch, kind, sizes, extra):
    """Parameters and gradients are 32 MiB, AdamW's moments as much again."""
    monkeypatch.setattr(module, "GROUP_BYTES", MIB)
    params = {str(i): mx.ones((size, 256)) for i, size in enumerate(sizes)}
    optimizer = kind(params, 1.0)
    grads = {name: mx.ones_like(value) for name, value in params.items()}
    mx.eval(params, grads, optimizer.state)
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    assert Gradient(grads).norm > 0
    assert mx.get_peak_memory() - before < 2 * MIB
    optimizer.update(params, grads, 1e-3)
    assert mx.get_peak_memory() - before < extra
    assert mx.get_active_memory() - before < -15 * MIB, "the gradients are gone"
