"""Widgets that the browser itself moves, by anywidget: where hovering, linking and dragging need its own speed.

`browser.py` is what they share. Each widget is a Python file with its ES module and its style sheet beside it; both are
sent inline, so that nothing is fetched from anywhere.
"""

from mlx_grpo_kit.viz.widgets.dashboard import Dashboard

__all__ = ["Dashboard"]
