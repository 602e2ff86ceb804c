"""The gradient clinic: checks of gradients of Value, Tensor, torch and MLX."""

from mlx_grpo_kit.gradcheck.check import check_gradient, gradcheck
from mlx_grpo_kit.gradcheck.lockstep import LockstepError, LockstepStep, lockstep
from mlx_grpo_kit.gradcheck.report import Element, GradcheckReport, Kink

__all__ = [
    "Element",
    "GradcheckReport",
    "Kink",
    "LockstepError",
    "LockstepStep",
    "check_gradient",
    "gradcheck",
    "lockstep",
]
