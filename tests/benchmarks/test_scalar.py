"""A training step of the scalar engine beside micrograd's, in the same process and with its garbage collector."""

import gc
import random
import time

import pytest
from sklearn.datasets import make_moons

from mlx_grpo_kit.scalar import Value
from mlx_grpo_kit.scalar import nn as kit

micrograd = pytest.importorskip("micrograd.engine", reason="no micrograd: pip install micrograd")
micrograd_nn = pytest.importorskip("micrograd.nn")

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


def seconds(run):
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def test_the_same_numbers_as_micrograd():
    inputs, labels = moons()
    ours, theirs = new_model(kit), new_model(micrograd_nn)
    for _ in range(2):
        loss = step(ours, Value, inputs[:10], labels[:10])
        assert loss == pytest.approx(float(step(theirs, micrograd.Value, inputs[:10], labels[:10])), rel=1e-10)


def test_ten_times_as_fast_as_micrograd():
    assert gc.isenabled()
    inputs, labels = moons()
    ours, theirs = new_model(kit), new_model(micrograd_nn)
    ratios = []
    for _ in range(3):  # side by side, so that what else the machine does slows both
        slow = seconds(lambda: step(theirs, micrograd.Value, inputs, labels))
        fast = min(seconds(lambda: step(ours, Value, inputs, labels)) for _ in range(3))
        ratios.append(slow / fast)
    print(f"micrograd / kit: {sorted(ratios)[1]:.1f}")
    assert sorted(ratios)[1] > 10


def test_operation_by_operation_it_is_still_several_times_as_fast(monkeypatch):
    """Without `dot`: as many values as micrograd has, one for each + and *."""
    monkeypatch.setattr(kit, "dot", lambda w, x, b: sum((wi * xi for wi, xi in zip(w, x, strict=True)), b))
    inputs, labels = moons()
    ours, theirs = new_model(kit), new_model(micrograd_nn)
    slow = min(seconds(lambda: step(theirs, micrograd.Value, inputs, labels)) for _ in range(2))
    fast = min(seconds(lambda: step(ours, Value, inputs, labels)) for _ in range(4))
    print(f"micrograd / kit without dot: {slow / fast:.1f}")
    assert slow / fast > 3


def test_step(benchmark):
    inputs, labels = moons()
    model = new_model(kit)
    benchmark.pedantic(step, args=(model, Value, inputs, labels), rounds=10, warmup_rounds=1)
