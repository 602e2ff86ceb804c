"""Every token of a step: its probability before and after, advantage, ratio, clip and share of the loss."""

from mlx_grpo_kit.instruments.microscope.measure import take_updates
from mlx_grpo_kit.instruments.microscope.microscope import show_microscope

__all__ = ["show_microscope", "take_updates"]
