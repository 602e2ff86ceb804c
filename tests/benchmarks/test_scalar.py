"""A training step of the scalar engine beside micrograd's.

Python's garbage collector stays on: what it costs an engine is a part of its speed.
"""

import random
from unittest.mock import patch

import pytest
from micrograd import engine as micrograd
from micrograd import nn as micrograd_nn
from sklearn.datasets import make_moons

from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.scalar import nn as kit
from tests.benchmarks.contest import Contestant

LEARNING_RATE, DECAY = 0.1, 1e-4


def moons():
    inputs, labels = make_moons(n_samples=100, noise=0.1, random_state=1)
    return inputs, labels * 2 - 1


def step(model, make_value, inputs, labels):
    """Forward, hinge loss with weight decay, backward, update: the step of micrograd's demo, written once for both."""
    scores = [model(list(map(make_value, row))) for row in inputs]
    losses = [(1 + -label * score).relu() for label, score in zip(labels, scores, strict=True)]
    loss = sum(losses) * (1.0 / len(losses)) + DECAY * sum(p * p for p in model.parameters())
    model.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.data -= LEARNING_RATE * p.grad
    return loss.data


def new_model(module):
    random.seed(1337)
    return module.MLP(2, [16, 16, 1])


class Engine:
    """An engine at work; the evidence is the loss of each turn."""

    def __init__(self, module, make_value, num_points):
        self.model, self.make_value, self.losses = new_model(module), make_value, []
        self.points = [array[:num_points] for array in moons()]

    def turn(self):
        self.losses.append(float(step(self.model, self.make_value, *self.points)))

    def evidence(self):
        return self.losses


class Kit(Engine):
    def __init__(self, num_points):
        super().__init__(kit, Value, num_points)


class KitWithoutDot(Kit):
    def turn(self):
        with patch.object(kit, "dot", lambda w, x, b: sum((wi * xi for wi, xi in zip(w, x, strict=True)), b)):
            super().turn()


class Micrograd(Engine):
    def __init__(self, num_points):
        super().__init__(micrograd_nn, micrograd.Value, num_points)


@pytest.mark.parametrize(("make", "target"), [(Kit, 10), (KitWithoutDot, 3)], ids=["with dot", "without dot"])
def test_scalar_step(make, target, bench):
    options = {"num_points": 100 if bench.measuring else 10}
    makers = {"the kit": make, "micrograd": Micrograd}
    results = bench(
        {name: Contestant(each, options) for name, each in makers.items()}, rounds=5, targets={"micrograd": target}
    )
    (ours,), (theirs,) = (result.evidence for result in results.values())
    assert ours[:2] == pytest.approx(theirs[:2], rel=1e-10)
