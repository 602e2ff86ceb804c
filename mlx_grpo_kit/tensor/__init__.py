# ruff: noqa: F403
"""An autograd engine over NumPy arrays: `Tensor`, its graph, the rule of every operation, layers and optimizers.

    import mlx_grpo_kit.tensor as T

    w = T.Tensor([[0.1, -0.2]], requires_grad=True)
    loss = T.mean((x @ w.T - y) ** 2)
    loss.backward()

The engine is in `tensor.py`, `operators.py`, `function.py` and `graph.py`. `rules/rule.py` explains how to write an
operation; `rules/elementwise.py` has the simplest ones. Values and gradients equal torch's, even at edge cases.
"""

from mlx_grpo_kit.tensor.tensor import Tensor as Tensor  # isort: skip (first: it loads the operations, which need it)
from mlx_grpo_kit.tensor.anomaly import AnomalyError as AnomalyError
from mlx_grpo_kit.tensor.function import Function as Function
from mlx_grpo_kit.tensor.graph import AutogradError as AutogradError
from mlx_grpo_kit.tensor.modes import detect_anomaly as detect_anomaly
from mlx_grpo_kit.tensor.modes import no_grad as no_grad
from mlx_grpo_kit.tensor.rules.attention import *
from mlx_grpo_kit.tensor.rules.convolution import *
from mlx_grpo_kit.tensor.rules.elementwise import *
from mlx_grpo_kit.tensor.rules.normalization import *
from mlx_grpo_kit.tensor.rules.products import *
from mlx_grpo_kit.tensor.rules.reductions import *
from mlx_grpo_kit.tensor.rules.rule import RULES as RULES
from mlx_grpo_kit.tensor.rules.rule import replaced_gradient as replaced_gradient
from mlx_grpo_kit.tensor.rules.rule import rule as rule
from mlx_grpo_kit.tensor.rules.shapes import *
