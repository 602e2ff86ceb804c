"""A training step of the scalar engine beside micrograd's, in the same process.

Python's garbage collector stays on: what it costs an engine is a part of its speed.
"""

import random

import pytest
from micrograd import engine as micrograd
from micrograd import nn as micrograd_nn
from sklearn.datasets import make_moons

from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.scalar import nn as kit

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


def test_the_same_numbers_as_micrograd():
    inputs, labels = moons()
    ours, theirs = new_model(kit), new_model(micrograd_nn)
    for _ in range(2):
        loss = step(ours, Value, inputs[:10], labels[:10])
        assert loss == pytest.approx(float(step(theirs, micrograd.Value, inputs[:10], labels[:10])), rel=1e-10)


@pytest.mark.parametrize("engine", ["with dot", "one value for each + and *, as micrograd has"])
def test_scalar_step(engine, race, monkeypatch):
    if engine != "with dot":
        monkeypatch.setattr(kit, "dot", lambda w, x, b: sum((wi * xi for wi, xi in zip(w, x, strict=True)), b))
    inputs, labels = moons()
    ours, theirs = new_model(kit), new_model(micrograd_nn)
    race(
        lambda: step(ours, Value, inputs, labels),
        {"micrograd": lambda: step(theirs, micrograd.Value, inputs, labels)},
        rounds=5,
        targets={"micrograd": 10 if engine == "with dot" else 3},
        collect_garbage=True,
    )
