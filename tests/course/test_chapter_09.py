"""The solutions of chapter 09 against torch, and the claims of its prose."""

import math

import numpy as np
import pytest
import torch

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.autograd import check_vjp, graph_text, hvp
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_09 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_09.waiting import operations_waiting, run_evaluating_every
from mlx_grpo_kit.course.digits import load_digits
from mlx_grpo_kit.gradcheck import gradcheck
from mlx_grpo_kit.qwen3 import count_total_parameters, load_pretrained
from mlx_grpo_kit.runtime import mx

RNG = np.random.default_rng(0)


def array(*shape):
    return mx.array(RNG.normal(size=shape).astype(np.float32))


def tensor(x):
    return torch.tensor(np.array(x, np.float64), requires_grad=True)


# -- the solutions ----------------------------------------------------------------------------------------------------


def test_the_eight_lines_compute_as_the_solution_says():
    def made():
        return mx.array([1.0, 2.0, 3.0, 4.0]) * 2

    lines = (
        lambda y: y * 2,
        lambda y: y.reshape(2, 2),
        lambda y: f"{y}",
        lambda y: y.shape[0] + y.size,
        lambda y: 1 if y[0] > 0 else 0,
        lambda y: y.sum().item(),
        lambda y: mx.grad(mx.sum)(y),
        lambda y: np.array(y),
    )
    found = ""
    for line in lines:
        y = made()
        assert operations_waiting(y) > 0
        line(y)
        found += "W" if operations_waiting(y) else "C"
    # MLX may compute a part of the graph for an element of y, but never for operations that only wait.
    assert found == find("09.1").solution


def test_the_loss_of_the_digits():
    params = {"w1": array(6, 5), "b1": array(5), "w2": array(5, 4), "b2": array(4)}
    images, labels = array(7, 6), mx.array([0, 3, 3, 1, 2, 0, 1])
    loss, grads = mx.value_and_grad(chapter.digits_loss)(params, images, labels)
    t = {name: tensor(value) for name, value in params.items()}
    hidden = torch.relu(tensor(images) @ t["w1"] + t["b1"])
    theirs = torch.nn.functional.cross_entropy(hidden @ t["w2"] + t["b2"], torch.tensor(np.array(labels)).long())
    theirs.backward()
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-5)
    for name in params:
        np.testing.assert_allclose(grads[name], t[name].grad, rtol=1e-3, atol=1e-5)


def test_steps_of_momentum_equal_torchs():
    p, lr = tensor(array(3, 2)), 0.1
    params, velocity = {"p": mx.array(p.detach().numpy().astype(np.float32))}, {"p": mx.zeros((3, 2))}
    optimizer = torch.optim.SGD([p], lr=lr, momentum=0.9)
    for _ in range(4):
        grad = array(3, 2)
        p.grad = tensor(grad).detach()
        optimizer.step()
        params, velocity = chapter.momentum_step(params, velocity, {"p": grad}, mx.array(lr))
    np.testing.assert_allclose(params["p"], p.detach(), rtol=1e-4, atol=1e-6)


def test_the_rule_of_the_gated_silu_equals_torchs():
    gate, up, g = array(3, 4) * 5, array(3, 4), array(3, 4)
    t_gate, t_up = tensor(gate), tensor(up)
    (torch.nn.functional.silu(t_gate) * t_up).backward(torch.tensor(np.array(g, np.float64)))
    ours = chapter.gated_silu_rule((gate, up), g, None)
    np.testing.assert_allclose(ours[0], t_gate.grad, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(ours[1], t_up.grad, rtol=1e-3, atol=1e-5)


def test_curvature_along_a_vector_equals_torchs():
    x, v = array(5), array(5)
    _, theirs = torch.autograd.functional.hvp(
        lambda x: torch.logsumexp(3 * x, 0), tensor(x), torch.tensor(np.array(v, np.float64))
    )
    np.testing.assert_allclose(chapter.curvature_along(chapter.lse, x, v), theirs, rtol=1e-3, atol=1e-4)


# -- what the prose says ----------------------------------------------------------------------------------------------


def test_waiting_operations_grow_with_the_steps_between_evaluations():
    for every in (1, 5, 40):
        run = run_evaluating_every(every)
        assert max(run.waiting) == 18 * every
        assert len(run.waiting) == len(run.writing) == len(run.computing) == 40


def test_an_evaluated_array_has_no_graph():
    x = mx.array([1.0, 2.0])
    y = mx.exp(x) * x + 1
    assert operations_waiting(y) == 4
    mx.eval(y)
    assert operations_waiting(y) == 0
    assert "->" not in graph_text(y, x=x)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_curvature_predicts_where_sgd_diverges(seed):
    """Up to 2 / curvature the loss of the digits falls; at four times that rate it first rises and stays higher."""
    digits = load_digits(dtype=np.float32)
    x, y = mx.array(digits.train_images.reshape(-1, 64)), mx.array(digits.train_labels)
    keys = mx.random.split(mx.random.key(seed), 2)
    fresh = {"w1": mx.random.normal((64, 64), key=keys[0]) * (2 / 64) ** 0.5, "b1": mx.zeros(64),
             "w2": mx.random.normal((64, 10), key=keys[1]) * (1 / 64) ** 0.5, "b2": mx.zeros(10)}  # fmt: skip
    assert sum(value.size for value in fresh.values()) == 4810
    v = {name: mx.random.normal(value.shape, key=mx.random.key(7)) for name, value in fresh.items()}
    for _ in range(30):
        length = mx.sqrt(sum(value.square().sum() for value in v.values()))
        v = {name: value / length for name, value in v.items()}
        product = hvp(lambda p: chapter.digits_loss(p, x, y), fresh, v)
        most = sum((v[name] * product[name]).sum() for name in v).item()
        v = product
    last, highest = {}, {}
    for share in (0.5, 1.0, 4.0):
        params, losses = fresh, []
        for _ in range(60):
            loss, grads = mx.value_and_grad(chapter.digits_loss)(params, x, y)
            params = chapter.sgd(params, grads, share * 2 / most)
            mx.eval(params)
            losses.append(loss.item())
        last[share], highest[share] = losses[-1], max(losses) / losses[0]
    assert last[1.0] < last[0.5] < 0.5
    assert highest[1.0] < 1.1
    assert highest[4.0] > 1.5
    assert last[4.0] > 2 * last[1.0]


def test_the_hessian_of_the_small_qwen3_needs_an_exabyte():
    from mlx_grpo_kit.qwen3 import Qwen3Config

    count = count_total_parameters(Qwen3Config.from_name("0.6B"))
    assert 3.5e17 < count**2 < 3.7e17
    assert 4 * count**2 > 1e18


def test_the_kits_gated_silu_has_the_right_rule():
    from mlx_grpo_kit.qwen3.kernels import gated_silu

    assert check_vjp(gated_silu, lambda gate, up: gate * mx.sigmoid(gate) * up, array(3, 4), array(3, 4))
    assert load_pretrained(TINY)


def test_an_error_of_two_thousandths_passes_an_ordinary_gradcheck():
    custom = mx.custom_function(lambda gate, up: gate * mx.sigmoid(gate) * up)
    custom.vjp(lambda primals, g, out: [1.002 * grad for grad in chapter.gated_silu_rule(primals, g, out)])
    inputs = array(3, 4), array(3, 4)
    assert gradcheck(custom, *inputs)
    assert not check_vjp(custom, lambda gate, up: gate * mx.sigmoid(gate) * up, *inputs)


def test_bfloat16_rounds_a_small_step_away():
    one = mx.array(1.0, dtype=mx.bfloat16)
    assert (one - 0.001).item() == 1.0
    assert math.isclose(mx.finfo(mx.bfloat16).eps, 2**-7)
    assert math.isclose(mx.finfo(mx.float32).eps, 2**-23)
