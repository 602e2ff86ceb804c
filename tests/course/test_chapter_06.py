"""Chapter 06: its broken rules are broken and the right ones are right; its solutions against torch and calculus."""

import numpy as np
import pytest
import torch

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.chapters.chapter_06 import broken_rules as rules
from mlx_grpo_kit.course.chapters.chapter_06 import exercises as chapter_06
from mlx_grpo_kit.course.chapters.chapter_06.broken_rules import BROKEN_RULES, FOUR_TANHS, tanh_rule, try_out
from mlx_grpo_kit.course.chapters.chapter_06.patients import DIAGNOSIS, DISEASES, patients
from mlx_grpo_kit.gradcheck import gradcheck
from mlx_grpo_kit.tensor import graph
from mlx_grpo_kit.tensor.rules.convolution import Conv2d, MaxPool2d
from mlx_grpo_kit.tensor.rules.normalization import LayerNorm

RULE = pytest.mark.parametrize("rule", BROKEN_RULES, ids=lambda rule: rule.name)


def plain_sum(fn, x):
    leaf = T.Tensor(x, requires_grad=True)
    fn(leaf).sum().backward()
    return np.allclose(leaf.grad, chapter_06.numeric_gradient(lambda a: fn(T.Tensor(a)).data.sum(), x), 1e-5, 1e-7)


def kits(fn, x):
    return gradcheck(fn, T.Tensor(x)).passed


# -- the broken rules -------------------------------------------------------------------------------------------------


@RULE
def test_a_broken_rule_is_caught_and_a_right_one_passes(rule):
    checkers = {"kit": kits, "solution": chapter_06.my_gradcheck}
    assert try_out(rule, True, checkers).verdicts == {"kit": "caught", "solution": "caught"}
    assert try_out(rule, False, checkers).verdicts == {"kit": "passed", "solution": "passed"}


def test_a_plain_sum_misses_some_rules_and_weights_by_the_engine_miss_another():
    missed = {rule.name for rule in BROKEN_RULES if try_out(rule, True, {"it": plain_sum}).verdicts["it"] == "missed"}
    assert missed == {"transpose: never turned back", "softmax: 1% too much", "layer_norm: a mean is missing"}
    [weighted] = [each.wrong for each in chapter_06.OWN_GRADCHECK.mistakes if each.name == "weights by the engine"]
    missed = {rule.name for rule in BROKEN_RULES if try_out(rule, True, {"it": weighted}).verdicts["it"] == "missed"}
    assert missed == {"mul: wrong sign"}


@RULE
def test_the_shown_gradient_equals_torchs(rule):
    """The measured gradient of each program, and the engine's when its rule is right, against torch."""
    programs = {
        "sub": lambda x: torch.tensor(rules.A) - x,
        "mul": lambda x: x * torch.tensor(rules.B),
        "exp": torch.exp,
        "tanh": torch.tanh,
        "relu": torch.relu,
        "clip": lambda x: torch.clamp(x, -1, 1),
        "add": lambda x: torch.tensor(rules.A) + x,
        "mean": lambda x: x.mean(1),
        "max": lambda x: x,
        "matmul": lambda x: torch.tensor(rules.FACTOR) @ x,
        "transpose": lambda x: x.T,
        "softmax": lambda x: torch.softmax(x, -1),
        "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        "embedding": lambda x: torch.nn.functional.embedding(torch.tensor(rules.IDS), x),
        "max_pool2d": lambda x: torch.nn.functional.max_pool2d(x, 3, stride=1),
        "conv2d": lambda x: torch.nn.functional.conv2d(x, torch.tensor(rules.KERNEL)),
    }
    x = torch.tensor(rule.x, requires_grad=True)
    out = programs[rule.name.split(":")[0]](x)
    out.backward(torch.tensor(np.random.default_rng(1).normal(size=tuple(out.shape))))
    trial = try_out(rule, False, {})
    np.testing.assert_allclose(trial.analytic, x.grad.numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(trial.numeric, x.grad.numpy(), rtol=1e-6, atol=1e-8)
    assert np.abs(try_out(rule, True, {}).analytic - x.grad.numpy()).max() > 1e-3


@RULE
def test_the_engine_is_restored_after_a_trial(rule):
    before = [
        Conv2d.backward,
        MaxPool2d.backward,
        LayerNorm.backward,
        graph.unbroadcast,
        *[dict(operation.function.gradients) for operation in T.RULES.values()],
    ]

    def stumbles(fn, x):
        raise RuntimeError("a checker may be wrong too")

    assert try_out(rule, True, {"it": stumbles}).verdicts == {"it": "error"}
    assert before == [
        Conv2d.backward,
        MaxPool2d.backward,
        LayerNorm.backward,
        graph.unbroadcast,
        *[dict(operation.function.gradients) for operation in T.RULES.values()],
    ]


@pytest.mark.parametrize("letter", FOUR_TANHS)
def test_the_third_of_four_tanhs_is_right(letter):
    with tanh_rule(letter):
        assert gradcheck(T.tanh, T.Tensor([0.5, -1.0])).passed == (letter == "C")


# -- the patients -----------------------------------------------------------------------------------------------------


def test_the_patients_have_the_diseases_of_the_solution():
    lets_through, shifted, healthy, transposed = patients()
    analytic, numeric = lets_through
    assert np.array_equal(~np.isclose(analytic, numeric, atol=1e-8), np.abs(numeric) < 1e-8)
    analytic, numeric = shifted
    error = analytic - numeric
    np.testing.assert_allclose(error, np.repeat(error[:, :1], 4, axis=1), atol=1e-8)
    assert np.abs(error).min() > 1e-2
    np.testing.assert_allclose(*healthy, atol=1e-8)
    analytic, numeric = transposed
    np.testing.assert_allclose(analytic, numeric.T, atol=1e-8)
    assert DIAGNOSIS == "FEGC"
    assert set(DIAGNOSIS) < set(DISEASES)


# -- the solutions ----------------------------------------------------------------------------------------------------


def test_numeric_gradient():
    x = np.random.default_rng(0).normal(size=(2, 3, 2))
    leaf = torch.tensor(x, requires_grad=True)
    (torch.sin(leaf).sum() * leaf[0, 0, 0]).backward()
    measured = chapter_06.numeric_gradient(lambda a: np.sin(a).sum() * a[0, 0, 0], x)
    np.testing.assert_allclose(measured, leaf.grad.numpy(), rtol=1e-7, atol=1e-8)
    assert chapter_06.numeric_gradient(lambda a: a.sum() ** 2, np.array([1, 2])) == pytest.approx([6, 6])


def test_is_close_is_allclose():
    rng = np.random.default_rng(0)
    for scale in (1e-9, 1e-7, 1e-5, 1e-2):
        numeric = rng.normal(size=20) * rng.choice([1e-4, 1.0, 1e4], 20)
        analytic = numeric + scale * rng.normal(size=20)
        assert chapter_06.is_close(analytic, numeric) == np.allclose(analytic, numeric, rtol=1e-5, atol=1e-7)
    assert not chapter_06.is_close(np.array([np.nan]), np.array([np.nan]))
    one = np.ones(2)
    assert [chapter_06.is_close(one + off, one) for off in (0.9e-5, 1.2e-5)] == [True, False]
    assert [chapter_06.is_close(0 * one + off, 0 * one) for off in (0.9e-7, 1.2e-7)] == [True, False]


def test_complex_slope():
    x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    (torch.exp(x) * torch.sin(x) / (1 + x * x)).sum().backward()
    slope = chapter_06.complex_slope(lambda x: np.exp(x) * np.sin(x) / (1 + x * x), x.detach().numpy())
    np.testing.assert_allclose(slope, x.grad.numpy(), rtol=1e-14)


def test_two_slopes_and_culprits():
    x, direction = np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.0, 1.0])
    assert chapter_06.two_slopes(lambda a: np.sum(a**2), 2 * x, x, direction) == pytest.approx((4.0, 4.0))
    asked = []

    def differs(part):
        asked.append(part)
        return bool({7, 8, 400} & set(part))

    assert chapter_06.culprits(differs, list(range(512))) == [7, 8, 400]
    assert len(asked) <= 2 * 3 * 9 + 1
