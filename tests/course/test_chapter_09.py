"""The solutions of chapter 09 against torch, answers in other styles, wrong ones, and the claims of its prose."""

import math

import numpy as np
import pytest
import torch

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.autograd import check_vjp, graph_text, hvp
from mlx_grpo_kit.course import check
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


# -- answers in other styles ------------------------------------------------------------------------------------------


def sgd_with_a_loop(params, grads, lr):
    new = {}
    for name in sorted(params):
        new[name] = mx.array(np.array(params[name]) - lr * np.array(grads[name]))
    return new


def loss_with_indices(params, images, labels):
    scores = mx.einsum("nd,dh->nh", images, params["w1"]) + params["b1"]
    scores = (scores * (scores > 0)) @ params["w2"] + params["b2"]
    logs = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
    return -mx.mean(logs[mx.arange(len(labels)), labels])


def loss_with_one_hot(params, images, labels):
    scores = mx.addmm(params["b2"], mx.maximum(mx.addmm(params["b1"], images, params["w1"]), 0), params["w2"])
    chosen = mx.eye(scores.shape[1])[labels]
    return (mx.logsumexp(scores, axis=1) - (scores * chosen).sum(axis=1)).sum() / len(labels)


def train_reading_everything(step, params, batches):
    losses = []
    for batch in batches:
        params, loss = step(params, batch)
        losses.append(float(loss))
        mx.eval(list(params.values()))
    return [params, losses]


def train_recursively(step, params, batches):
    if not batches:
        return params, []
    after, loss = step(params, batches[0])
    mx.eval(after, loss)
    rest, losses = train_recursively(step, after, batches[1:])
    return rest, [loss.item(), *losses]


def make_loss_as_lambda(model, params, x, y):
    return lambda p: mx.mean(mx.square(y - model(p, x)))


def momentum_with_loops(params, velocity, grads, lr):
    new_params, new_velocity = dict(params), dict(velocity)
    for name in sorted(params):
        new_velocity[name] = grads[name] + velocity[name] * 0.9
        new_params[name] = params[name] - new_velocity[name] * lr
    return [new_params, new_velocity]


def rule_from_the_output_of_silu(primals, cotangent, output):
    gate, up = primals
    silu = gate * mx.sigmoid(gate)
    return [cotangent * up * (mx.sigmoid(gate) + silu - silu * mx.sigmoid(gate)), silu * cotangent]


def rule_by_vjp(primals, cotangent, output):
    return tuple(mx.vjp(lambda g, u: g * mx.sigmoid(g) * u, list(primals), [cotangent])[1])


def along_by_jvp(loss_fn, x, v):
    return mx.jvp(mx.grad(loss_fn), [x], [v])[1][0]


def train_evaluating_first(step, params, batches):
    losses = []
    for batch in batches:
        mx.eval(params)
        params, loss = step(params, batch)
        losses.append(loss.item())
    mx.eval(params)
    return params, losses


def along_through_a_slope(loss_fn, x, v):
    return mx.grad(lambda y: mx.jvp(loss_fn, [y], [v])[1][0])(x)


def along_by_rows(loss_fn, x, v):
    rows = [mx.grad(lambda y, i=i: mx.grad(loss_fn)(y)[i])(x) for i in range(x.size)]
    return mx.stack(rows) @ v


RIGHT = [
    ("09.1", "w w c w c c w c"),
    ("09.1", list("WWCWCCWC")),
    ("09.2", sgd_with_a_loop),
    ("09.2", lambda params, grads, lr: {name: mx.subtract(params[name], lr * grads[name]) for name in grads}),
    ("09.3", loss_with_indices),
    ("09.3", loss_with_one_hot),
    ("09.4", train_reading_everything),
    ("09.4", train_recursively),
    ("09.5", make_loss_as_lambda),
    ("09.6", momentum_with_loops),
    ("09.7", rule_from_the_output_of_silu),
    ("09.7", rule_by_vjp),
    ("09.4", train_evaluating_first),
    ("09.8", along_by_jvp),
    ("09.8", along_through_a_slope),
]


@pytest.mark.parametrize(("id", "answer"), RIGHT, ids=lambda value: getattr(value, "__name__", None))
def test_right_answers_in_other_styles_pass(id, answer):
    note = check(id, answer)
    assert note.passed, note


# -- wrong answers ----------------------------------------------------------------------------------------------------

LR = mx.array(0.1)
MEMORY = {}


def sgd_in_place(params, grads, lr):
    for name in params:
        params[name] -= lr * grads[name]
    return params


def sgd_in_the_dictionary(params, grads, lr):
    for name in params:
        params[name] = params[name] - lr * grads[name]
    return params


def loss_for_few_classes(params, images, labels):
    return chapter.digits_loss(params, images, mx.minimum(labels, 2))


def train_every_third(step, params, batches):
    losses = []
    for number, batch in enumerate(batches):
        params, loss = step(params, batch)
        losses.append(loss)
        if number % 3 == 2:
            mx.eval(params)
    mx.eval(params)
    return params, [loss.item() for loss in losses]


def train_every_other(step, params, batches):
    losses = []
    for number, batch in enumerate(batches):
        params, loss = step(params, batch)
        losses.append(loss)
        if number % 2:
            mx.eval(params, loss)
    mx.eval(params, losses)
    return params, [loss.item() for loss in losses]


def train_keeping_losses(step, params, batches):
    losses = []
    for batch in batches:
        params, loss = step(params, batch)
        mx.eval(list(params.values()))
        losses.append(loss)
    return params, mx.stack(losses).tolist()


def train_without_a_list(step, params, batches):
    for batch in batches:
        params, loss = step(params, batch)
        mx.eval(params, loss)
    return params, loss.item()


def momentum_in_place(params, velocity, grads, lr):
    for name in params:
        velocity[name] = 0.9 * velocity[name] + grads[name]
        params[name] = params[name] - lr * velocity[name]
    return params, velocity


def momentum_with_a_global(params, velocity, grads, lr):
    velocity = {name: 0.9 * velocity[name] + grads[name] for name in params}
    return {name: params[name] - LR * velocity[name] for name in params}, velocity


def momentum_that_remembers(params, velocity, grads, lr):
    MEMORY.setdefault("velocity", {name: mx.zeros_like(value) for name, value in params.items()})
    new = {name: 0.9 * MEMORY["velocity"][name] + grads[name] for name in params}
    MEMORY["velocity"] = new
    return {name: params[name] - lr * new[name] for name in params}, new


def rule_summed(primals, cotangent, output):
    return tuple(grad.sum() for grad in chapter.gated_silu_rule(primals, cotangent, output))


def rule_of_one(primals, cotangent, output):
    return chapter.gated_silu_rule(primals, cotangent, output)[0]


def rule_as_dictionary(primals, cotangent, output):
    return dict(zip(("gate", "up"), chapter.gated_silu_rule(primals, cotangent, output), strict=True))


def rule_in_numpy(primals, cotangent, output):
    return tuple(map(np.array, chapter.gated_silu_rule(primals, cotangent, output)))


def loss_of_probabilities(params, images, labels):
    scores = mx.maximum(images @ params["w1"] + params["b1"], 0) @ params["w2"] + params["b2"]
    return -mx.log(mx.softmax(scores, axis=1)[mx.arange(len(labels)), labels]).mean()


def loss_with_a_little_more(params, images, labels):
    scores = mx.maximum(images @ params["w1"] + params["b1"], 0) @ params["w2"] + params["b2"]
    return -mx.log(mx.softmax(scores, axis=1)[mx.arange(len(labels)), labels] + 1e-9).mean()


def along_by_all_rows_at_once(loss_fn, x, v):
    gradient = mx.grad(loss_fn)
    return mx.vmap(lambda unit: mx.vjp(gradient, [x], [unit])[1][0])(mx.eye(x.size)) @ v


def along_by_differences(loss_fn, x, v):
    gradient = mx.grad(loss_fn)
    return (gradient(x + 1e-2 * v) - gradient(x - 1e-2 * v)) / 2e-2


WRONG = [
    ("09.1", "WWCWCCW", "is not a string of 8 letters"),
    ("09.1", "WWCWCCWW", "each line is run alone"),
    ("09.2", sgd_in_place, "the right result, but also new numbers in what it was given"),
    ("09.2", sgd_in_the_dictionary, "the right result, but also new numbers in what it was given"),
    ("09.2", lambda params, grads, lr: params, "expected"),
    ("09.3", loss_for_few_classes, "expected"),
    ("09.3", lambda params, images, labels: mx.zeros(3), "a loss of shape (3,) (a gradient needs a single number"),
    ("09.3", lambda params, images, labels: chapter.digits_loss(params, images, labels)[None], "a loss of shape (1,)"),
    ("09.2", lambda params, grads, lr: {n: np.array(params[n] - lr * grads[n]) for n in params}, "of type ndarray"),
    ("09.2", lambda params, grads, lr: {n: (params[n] - lr * grads[n]).tolist() for n in params}, "of type list"),
    ("09.3", loss_of_probabilities, "A probability of exp(-200) is 0"),
    ("09.3", loss_with_a_little_more, "You added something small to a probability"),
    ("09.4", train_every_third, "still waited when a step began"),
    ("09.4", train_every_other, "still waited when a step began"),
    ("09.4", train_keeping_losses, "A loss that you keep for later waits too"),
    ("09.4", train_without_a_list, "losses of type float (return a list"),
    ("09.4", lambda step, params, batches: step(params, batches[0]), "still wait"),
    ("09.5", lambda model, params, x, y: lambda p: float((model(p, x) - y).square().mean()), "cut off from the param"),
    ("09.5", lambda model, params, x, y: lambda p: (model(p, x) - y).abs().mean(), "expected"),
    ("09.6", momentum_in_place, "also new numbers in what it was given"),
    ("09.6", momentum_with_a_global, "`LR`, a global that `momentum_with_a_global` uses"),
    ("09.6", momentum_that_remembers, "`MEMORY"),
    ("09.7", rule_summed, "gradients of shapes () and ()"),
    ("09.7", rule_of_one, "a rule that returned array (return a tuple of two gradients"),
    ("09.7", rule_as_dictionary, "a rule that returned dict"),
    ("09.7", rule_in_numpy, "a gradient of type ndarray"),  # MLX itself would end the process
    ("09.7", lambda primals, cotangent, output: (None, cotangent), "a gradient of type NoneType"),
    ("09.8", along_by_rows, "That is the Hessian, row by row"),
    ("09.8", along_by_all_rows_at_once, "held an array of the size of the Hessian"),
    ("09.8", along_by_differences, "expected"),
    ("09.8", lambda loss_fn, x, v: mx.grad(loss_fn)(x) * v, "expected"),
    ("09.8", lambda loss_fn, x, v: chapter.curvature_along(loss_fn, x, v).tolist(), "a list (return an array"),
]


@pytest.mark.parametrize(("id", "answer", "message"), WRONG, ids=lambda value: getattr(value, "__name__", None))
def test_wrong_answers_get_their_messages(id, answer, message):
    note = check(id, answer)
    assert not note.passed
    assert message in note.text, note.text


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
