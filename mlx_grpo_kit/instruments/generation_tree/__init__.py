"""The tree of all answers that a model may give, opened branch by branch."""

from mlx_grpo_kit.instruments.generation_tree.generation_tree import show_generation_tree

__all__ = ["show_generation_tree"]
