"""Chapter 07: its solutions against torch, and the claims of its prose."""

import math
import re

import numpy as np
import pytest
import torch

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_07 import exercises as chapter_07
from mlx_grpo_kit.course.chapters.chapter_07.verdicts import verdict_on
from mlx_grpo_kit.course.digits import load_digits
from mlx_grpo_kit.gradcheck import LockstepError, lockstep
from mlx_grpo_kit.tensor import nn, optim


def test_the_loss_of_a_shrug_is_that_of_equal_scores():
    scores = torch.zeros(5, 10, dtype=torch.float64)
    assert find("07.1").solution == pytest.approx(torch.nn.functional.cross_entropy(scores, torch.arange(5)).item())


@pytest.mark.parametrize("scale", [1, 1000])
def test_cross_entropy_and_its_gradient(scale):
    rng = np.random.default_rng(0)
    numbers, targets = scale * rng.normal(size=(6, 4)), rng.integers(0, 4, 6)
    logits, theirs = T.Tensor(numbers, requires_grad=True), torch.tensor(numbers, requires_grad=True)
    loss = chapter_07.cross_entropy(logits, targets)
    loss.backward()
    expected = torch.nn.functional.cross_entropy(theirs, torch.tensor(targets))
    expected.backward()
    assert loss.item() == pytest.approx(expected.item())
    np.testing.assert_allclose(logits.grad, theirs.grad.numpy(), atol=1e-15)


@pytest.mark.parametrize(("count", "size"), [(10, 3), (10, 5), (3, 7)])
def test_minibatches_are_a_partition(count, size):
    x, y = np.arange(count) * 10, np.arange(count)
    rng, orders = np.random.default_rng(0), []
    for _ in range(3):
        batches = list(chapter_07.minibatches(x, y, size, rng))
        assert all(len(labels) == size for _, labels in batches[:-1])
        assert all((images == 10 * labels).all() for images, labels in batches)
        orders.append(np.concatenate([labels for _, labels in batches]).tolist())
        assert sorted(orders[-1]) == list(range(count))
    assert len({tuple(order) for order in orders}) > 1


def test_adam_step_equals_torchs_for_fifty_steps_with_other_settings():
    rng = np.random.default_rng(0)
    w, state = rng.normal(size=(3, 2)), {}
    theirs = torch.tensor(w, requires_grad=True)
    judge = torch.optim.Adam([theirs], lr=0.03, betas=(0.8, 0.95), eps=1e-4)
    for _ in range(50):
        grad = rng.normal(size=(3, 2)) * 1e-3
        before = w.copy(), grad.copy()
        w_new = chapter_07.adam_step(w, grad, state, lr=0.03, beta1=0.8, beta2=0.95, eps=1e-4)
        np.testing.assert_array_equal((w, grad), before)  # neither is changed
        w, theirs.grad = w_new, torch.tensor(grad)
        judge.step()
        np.testing.assert_allclose(w, theirs.detach().numpy(), rtol=0, atol=1e-14)


def test_a_train_step_moves_the_weights_as_torch_does():
    model, x, y = chapter_07.a_linear_model()
    twin = torch.nn.Linear(3, 4)
    twin.load_state_dict({name: torch.tensor(array) for name, array in model.state_dict().items()})
    ours, theirs = optim.SGD(model.parameters(), lr=0.5), torch.optim.SGD(twin.parameters(), lr=0.5)
    for _ in range(3):
        theirs.zero_grad()
        expected = torch.nn.functional.cross_entropy(twin(torch.tensor(x)), torch.tensor(y))
        expected.backward()
        theirs.step()
        assert chapter_07.train_step(model, ours, x, y) == pytest.approx(expected.item(), rel=1e-6)
    np.testing.assert_allclose(model.weight.data, twin.weight.detach().numpy(), rtol=1e-5)


def test_building_the_small_model_leaves_the_learners_random_numbers_alone():
    nn.manual_seed(3)
    expected = nn.Linear(2, 2).weight.data
    nn.manual_seed(3)
    chapter_07.a_linear_model()
    np.testing.assert_array_equal(nn.Linear(2, 2).weight.data, expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda a: None, None),
        (lambda a: a["w"].__setitem__((1, 2), 7.0), ("w", (1, 2))),
        (lambda a: a["w"].__setitem__((0, 1), -9.0), ("w", (0, 1))),
        (lambda a: a["b"].__setitem__(2, np.nan), ("b", (2,))),
        (lambda a: a["b"].__setitem__(2, 2e-9), ("b", (2,))),
        (lambda a: a["b"].__setitem__(2, 5e-10), None),
    ],
    ids=["equal", "larger", "smaller", "nan", "just beyond", "just within"],
)
def test_first_difference(change, expected):
    ours = {"w": np.zeros((2, 3)), "b": np.zeros(3)}
    change(ours)
    assert chapter_07.first_difference(ours, {"w": np.zeros((2, 3)), "b": np.zeros(3)}, 1e-9) == expected


# -- what the chapter says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("A", "Step 1: the gradient of '0.bias' differs"),
        ("B", "Step 2: '0.weight' after the step differs"),
        ("C", "Step 1: the loss differs"),
        ("D", "69 steps, and nothing differs by more than"),
    ],
)
def test_the_four_verdicts(name, words):
    assert verdict_on(name, lockstep).startswith(words)
    assert optim.Adam.__name__ == "Adam"  # and the rule is restored


def test_training_d_learns_nothing_with_the_bug_and_learns_without_it():
    def loss_and_percent(name):
        return [
            float(number)
            for number in re.search(r"Loss ([\d.]+); (\d+)% of unseen digits", verdict_on(name, lockstep)).groups()
        ]

    loss, percent = loss_and_percent("D")
    assert math.isclose(loss, math.log(10), abs_tol=0.1)
    assert percent < 25
    assert loss_and_percent("none")[1] > 85


def network():
    nn.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), T.relu, nn.Linear(128, 64), T.relu, nn.Linear(64, 10))


def trained_with(operation, **rules):
    """(accuracy on unseen digits, lockstep's verdict) of the chapter's network with these rules in backward."""
    digits = load_digits(dtype=np.float32)
    x, y = digits.train_images.reshape(-1, 64), digits.train_labels
    rng = np.random.default_rng(0)
    batches = [batch for _ in range(13) for batch in chapter_07.minibatches(x, y, 64, rng)]
    model = network()
    optimizer = optim.Adam(model.parameters(), lr=3e-3)
    torch.manual_seed(0)
    twin = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    ).double()
    with T.replaced_gradient(operation, **rules):
        for batch in batches:
            chapter_07.train_step(model, optimizer, *batch)
        try:
            verdict = f"{len(list(lockstep(network(), twin, batches[:3], lr=3e-3)))} steps agree"
        except LockstepError as error:
            verdict = str(error)
    with T.no_grad():
        right = model(digits.test_images.reshape(-1, 64)).data.argmax(axis=1) == digits.test_labels
    return right.mean(), verdict


@pytest.mark.parametrize(
    ("operation", "rules", "words"),
    [
        ("relu", {}, "3 steps agree"),
        ("linear", {"weight": lambda g, x: 1.01 * g.T @ x}, "Step 1: the gradient of '4.weight' differs"),
        ("linear", {"weight": lambda g, x: 1e4 * g.T @ x}, "Step 1: the gradient of '4.weight' differs"),
        ("relu", {"x": lambda g: g}, "Step 1: the gradient of '2.bias' differs"),
    ],
    ids=["none", "x 1.01", "x 10,000", "no gate"],
)
def test_training_hides_the_bugs_that_lockstep_names(operation, rules, words):
    accuracy, verdict = trained_with(operation, **rules)
    assert accuracy > 0.94
    assert verdict.startswith(words)
