"""Four gradients for the last exercise of chapter 06: one difference each, and a disease to name. (No peeking.)"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.chapters.chapter_06.broken_rules import BrokenRule, replaced, try_out
from mlx_grpo_kit.tensor.rules.normalization import LayerNorm

DIAGNOSIS = "FEGC"

# Each disease, and its sign.
DISEASES = {
    "A": "With a wrong sign, every difference is -2 times the gradient.",
    "B": "With a constant factor, every difference is the same share of the gradient.",
    "C": "A transposed gradient has no errors on its diagonal, and opposite errors on either side of it.",
    "D": "With = instead of +=, only elements that were used more than once are wrong.",
    "E": "A missing mean shifts each row by a single number.",
    "F": "A gradient that should be stopped is wrong where the measured gradient is 0, and right elsewhere.",
    "G": "A healthy gradient differs only by rounding: read the number below the map before you look at its colours.",
}


def patients(seed: int = 6) -> list[tuple[np.ndarray, np.ndarray]]:
    """(gradient from backward, measured gradient) for each patient: arrays of shape [4, 4]."""
    rng = np.random.default_rng(seed)
    x, weight = rng.uniform(-2, 2, (4, 4)).round(1), rng.uniform(-1, 1, (4, 4)).round(1)
    cases = (
        (lambda x: T.clip(x, -1, 1), lambda: T.replaced_gradient("clip", x=lambda g: g)),
        (T.layer_norm, lambda: replaced(LayerNorm, "backward", staticmethod(_without_the_first_mean))),
        (lambda x: T.tanh(x @ weight), nullcontext),
        (lambda x: T.matmul(weight, x), lambda: T.replaced_gradient("matmul", b=lambda g, a: g.T @ a)),
    )
    trials = [try_out(BrokenRule("", "", "", program, x, breaking), True, {}) for program, breaking in cases]
    return [(trial.analytic, trial.numeric) for trial in trials]


def _without_the_first_mean(ctx, grad):
    return (grad - ctx.y * np.mean(grad * ctx.y, axis=-1, keepdims=True)) * ctx.inverse_std, None, None
