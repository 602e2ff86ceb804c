"""Parameters and steps of a trainer in a form that can be compared."""

import numpy as np

from mlx_grpo_kit.runtime import mx


def arrays(params) -> dict[str, np.ndarray]:
    return {name: np.array(value.astype(mx.float32)) for name, value in params.items()}


def bits(params) -> dict[str, np.ndarray]:
    return {name: np.array(value.view(mx.uint8)) for name, value in params.items()}


def records(steps) -> list:
    """Everything that steps did, without the time they took."""
    return [(step.step, step.metrics | {"step_time": 0}, step.completions) for step in steps]
