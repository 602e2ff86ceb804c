"""Pictures: training curves that grow while you watch, computations as graphs, panels that follow their sliders.

The tools are here; what a chapter draws with them is in `pictures/`, a file for each idea.

Nothing here imports MLX: a picture is made of Python floats and text. Matplotlib, ipywidgets and IPython are imported
where they are used, so `import mlx_grpo_kit.viz` is cheap and works in a plain script.
"""

from mlx_grpo_kit.viz.background import BackgroundRun
from mlx_grpo_kit.viz.completions import completions_table
from mlx_grpo_kit.viz.graph import draw_graph
from mlx_grpo_kit.viz.live import LivePlot
from mlx_grpo_kit.viz.live_picture import LivePicture
from mlx_grpo_kit.viz.panel import Panel
from mlx_grpo_kit.viz.picture import show_picture
from mlx_grpo_kit.viz.stepper import Stepper

__all__ = ["BackgroundRun", "LivePicture", "LivePlot", "Panel", "Stepper", "completions_table", "draw_graph",
           "show_picture"]
