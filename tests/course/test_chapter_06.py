"""Chapter 06: its broken rules are broken and the right ones are right; its solutions against torch and calculus."""

import numpy as np
import pytest
import torch

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course import check
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


def flattened_and_shaped_again(f, x, h=1e-5):
    shape, x = np.shape(x), np.array(x, dtype=float).ravel()
    return np.array([(f(x + way) - f(x - way)) / (2 * h) for way in h * np.eye(x.size)]).reshape(shape)


def in_one_buffer(f, x, h=1e-5):
    moved, gradient = np.array(x, dtype=float), []
    for index in np.ndindex(moved.shape):
        kept = moved[index]
        moved[index] = kept + h
        ahead = f(moved)
        moved[index] = kept - h
        gradient.append((ahead - f(moved)) / (2 * h))
        moved[index] = kept
    return np.reshape(gradient, moved.shape)


def within_one_of_two(analytic, numeric, rtol=1e-5, atol=1e-7):
    difference = np.abs(analytic - numeric)
    return bool(np.all((difference <= atol) | (difference <= rtol * np.abs(numeric))))


def gradcheck_with(weights_of, compare=chapter_06.is_close):
    def my_gradcheck(fn, x):
        leaf = T.Tensor(x, requires_grad=True)
        out = fn(leaf)
        weights = weights_of(out, x)
        out.backward(weights)
        return compare(
            leaf.grad, chapter_06.numeric_gradient(lambda array: (fn(T.Tensor(array)).data * weights).sum(), x)
        )

    return my_gradcheck


def weighted_with_a_star(fn, x):
    leaf = T.Tensor(x, requires_grad=True)
    out = fn(leaf)
    weights = np.random.default_rng(3).uniform(1, 2, out.shape)
    (out * weights).sum().backward()
    return chapter_06.is_close(
        leaf.grad, chapter_06.numeric_gradient(lambda array: (fn(T.Tensor(array)).data * weights).sum(), x)
    )


def slopes_that_move_x(f, gradient, x, direction, h=1e-5):
    x += h * direction
    ahead = f(x)
    x -= 2 * h * direction
    return np.sum(gradient * direction), (ahead - f(x)) / (2 * h)


def as_a_generator(differs, numbers):
    yield from chapter_06.culprits(differs, numbers)


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("06.1", lambda f, x, h=1e-5: chapter_06.numeric_gradient(f, x, h).tolist()),
        ("06.1", in_one_buffer),
        ("06.4", gradcheck_with(lambda out, x: np.random.default_rng(5).uniform(1, 2, out.shape))),
        ("06.4", gradcheck_with(lambda out, x: np.random.default_rng(5).normal(size=out.shape), np.allclose)),
        ("06.2", lambda a, n, rtol=1e-5, atol=1e-7: np.allclose(a, n, rtol, atol)),
        ("06.2", lambda a, n, rtol=1e-5, atol=1e-7: np.array(np.allclose(a, n, rtol, atol))),
        ("06.3", lambda f, x, h=1e-20: f(x + complex(0, h)).imag / h),
        (
            "06.5",
            lambda f, gradient, x, direction, h=1e-5: np.array(chapter_06.two_slopes(f, gradient, x, direction, h)),
        ),
        ("06.6", as_a_generator),
        ("06.6", lambda differs, numbers: set(chapter_06.culprits(differs, numbers))),
        ("06.7", "f, e, g, c"),
        ("06.7", np.array(list("FEGC"))),
    ],
)
def test_other_right_answers_pass(id, answer):
    assert check(id, answer), check(id, answer)


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        ("06.1", lambda f, x, h=1e-5: torch.tensor(chapter_06.numeric_gradient(f, x, h)), "need a NumPy array"),
        ("06.1", flattened_and_shaped_again, "call it with an array of x's own shape"),
        ("06.2", lambda a, n, rtol=1e-5, atol=1e-7: 1.0, "gave 1, expected True"),
        ("06.2", lambda a, n, rtol=1e-5, atol=1e-7: np.allclose(a, n, rtol, atol, equal_nan=True), "Two nans passed"),
        ("06.4", gradcheck_with(lambda out, x: np.random.default_rng(0).normal(size=x.shape)), "the shape of `out`"),
        ("06.4", gradcheck_with(lambda out, x: np.ones(out.shape)), "A plain sum of the outputs is blind here"),
        ("06.4", weighted_with_a_star, "`out * weights` is an operation of the engine too"),
        (
            "06.5",
            lambda f, gradient, x, d, h=1e-5: chapter_06.two_slopes(f, gradient, x, np.sign(d), h),
            "A direction can contain more than signs",
        ),
        (
            "06.4",
            gradcheck_with(lambda out, x: np.random.default_rng(5).normal(size=out.shape[-1:]) * np.ones(out.shape)),
            "`my_gradcheck(softmax",
        ),
        (
            "06.4",
            gradcheck_with(lambda out, x: np.random.default_rng(0).integers(0, 2, out.shape)),
            "a weight of 0 ignores its output",
        ),
        (
            "06.5",
            lambda f, gradient, x, direction, h=1e-5: chapter_06.two_slopes(f, gradient, x, direction),
            "`h` is an argument",
        ),
        ("06.2", lambda a, n, rtol=1e-5, atol=1e-7: bool(np.all(abs(a - n) < atol + rtol * abs(n))), "two zeros"),
        ("06.2", within_one_of_two, "An element may use both"),
        (
            "06.5",
            lambda f, gradient, x, d, h=1e-5: (np.sum(gradient * d), np.sum(chapter_06.numeric_gradient(f, x, h) * d)),
            "an answer after 12 runs of f, but two are enough",
        ),
        ("06.5", slopes_that_move_x, "new numbers in what it was given"),
        (
            "06.6",
            lambda differs, numbers: [i for i, number in enumerate(numbers) if differs([number])],
            "more than 100 calls of differs: True",
        ),
        ("06.6", lambda differs, numbers: [[137]], "gave [[137]], which is not a list of numbers"),
        ("06.7", "FECG", "2 of the 4 are right."),
        ("06.7", "FEG", "is not a string of 4 letters"),
    ],
)
def test_slips_get_their_messages(id, answer, words):
    note = check(id, answer)
    assert not note
    assert words in note.text
