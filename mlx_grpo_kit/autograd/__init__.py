"""Gradients of MLX programs over named parameters: first and second order, custom rules, and safe compilation."""

from typing import TYPE_CHECKING

from mlx_grpo_kit.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from mlx_grpo_kit.autograd.compile import CapturedArrayError, compile_value_and_grad, compiled
    from mlx_grpo_kit.autograd.curvature import hessian, hvp
    from mlx_grpo_kit.autograd.custom import check_vjp
    from mlx_grpo_kit.autograd.gradients import GradientError, GradientWarning, LossFunction, value_and_grad
    from mlx_grpo_kit.autograd.graph import graph_text

__getattr__, __dir__, __all__ = lazy_names(__name__)
