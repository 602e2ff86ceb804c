"""Gradients of MLX programs over named parameters: first and second order, custom rules, and safe compilation."""

from mlx_grpo_kit.autograd.compile import CapturedArrayError, compile_value_and_grad, compiled
from mlx_grpo_kit.autograd.curvature import hessian, hvp
from mlx_grpo_kit.autograd.custom import check_vjp
from mlx_grpo_kit.autograd.gradients import GradientError, LossFunction, value_and_grad
from mlx_grpo_kit.autograd.graph import graph_text

__all__ = [
    "CapturedArrayError",
    "GradientError",
    "LossFunction",
    "check_vjp",
    "compile_value_and_grad",
    "compiled",
    "graph_text",
    "hessian",
    "hvp",
    "value_and_grad",
]
