"""A Qwen3 as boxes, with the numbers that flow through it."""

from mlx_grpo_kit.instruments.flow.flow import show_flow, trace_flow

__all__ = ["show_flow", "trace_flow"]
