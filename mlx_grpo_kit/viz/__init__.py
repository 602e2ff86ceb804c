"""Pictures: training curves that grow while you watch, computations as graphs, panels that follow their sliders.

`live/` has pictures that change during a run, `graphs/` draws computations as boxes and arrows, `chart.py` is the
drawing tool, `style.py` defines the colours, and `browser.py` is the base of widgets that a JavaScript module draws.
The chapters' pictures are in `course/chapters/chapter_NN/pictures/`, those of several chapters in `course/pictures/`,
and the widgets in `instruments/`.

Nothing here imports MLX: pictures are made from Python floats and text. Matplotlib, ipywidgets and IPython are imported
where they are used, so `import mlx_grpo_kit.viz` is cheap and works in a plain script.
"""

from mlx_grpo_kit.viz.fold import fold
from mlx_grpo_kit.viz.graphs.graph import draw_graph
from mlx_grpo_kit.viz.live.background import BackgroundRun
from mlx_grpo_kit.viz.live.completions import completions_table
from mlx_grpo_kit.viz.live.live_picture import LivePicture
from mlx_grpo_kit.viz.live.plot import LivePlot
from mlx_grpo_kit.viz.panel import Panel
from mlx_grpo_kit.viz.picture import show_picture

__all__ = [
    "BackgroundRun",
    "LivePicture",
    "LivePlot",
    "Panel",
    "completions_table",
    "draw_graph",
    "fold",
    "show_picture",
]
