"""Four small training runs on digits, each with a different bug, and the verdicts of lockstep. (No peeking.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.digits import load_digits
from mlx_grpo_kit.tensor import nn, optim

EPOCHS, SIZE = 3, 64


def verdict_on(name: str, lockstep: Callable) -> str:
    """The verdict of lockstep on the training run "A", "B", "C" or "D"; any other name gives a healthy run."""
    import torch

    digits = load_digits()
    x, y = digits.train_images.reshape(-1, 64), digits.train_labels
    if name == "D":
        y = np.random.default_rng(2).permutation(y)
    rng = np.random.default_rng(0)
    orders = [rng.permutation(len(x)) for _ in range(EPOCHS)]
    chosen = [order[start : start + SIZE] for order in orders for start in range(0, len(x), SIZE)]
    torch.manual_seed(0)
    twin = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)).double()
    bend = (lambda x: T.relu(x) + 0.01 * x) if name == "C" else T.relu
    model = nn.Sequential(nn.Linear(64, 32), bend, nn.Linear(32, 10))
    bugs = {"A": T.replaced_gradient("relu", x=lambda g: g), "B": _adam_is(_AdamThatNeverCounts)}
    try:
        with bugs.get(name, _adam_is(optim.Adam)):
            steps = list(lockstep(model, twin, [(x[rows], y[rows]) for rows in chosen], lr=3e-3))
    except ValueError as error:
        return str(error)
    with T.no_grad():
        right = np.mean(model(digits.test_images.reshape(-1, 64)).data.argmax(axis=1) == digits.test_labels)
    return (
        f"{len(steps)} steps, and nothing differs by more than {max(s.largest_difference for s in steps):.0e}. "
        f"Loss {steps[-1].loss:.2f}; {right:.0%} of unseen digits are right."
    )


class _AdamThatNeverCounts(optim.Adam):
    """Adam whose bias correction stays that of the first step."""

    def update(self, number, data, grad):
        self.steps[number] = 0
        return super().update(number, data, grad)


@contextmanager
def _adam_is(kind: type) -> Iterator[None]:
    before, optim.Adam = optim.Adam, kind
    try:
        yield
    finally:
        optim.Adam = before
