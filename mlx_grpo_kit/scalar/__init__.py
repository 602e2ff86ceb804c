"""An autograd engine for single numbers: `Value`, its graph, and a small neural network. Pure Python.

Read `value.py` first. After Karpathy's micrograd: programs that compute with its Values, train its networks and draw
their graphs run here with only the import changed. Only your own operations are written differently: see `Value`.
"""

from mlx_grpo_kit.scalar.graph import topological_order
from mlx_grpo_kit.scalar.value import Value, dot

__all__ = ["Value", "dot", "topological_order"]
