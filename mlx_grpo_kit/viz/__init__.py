"""Pictures: training curves that grow while you watch, and sampled completions as a table.

Nothing here imports MLX: a picture is made of Python floats and text. Matplotlib, ipywidgets and IPython are imported
where they are used, so `import mlx_grpo_kit.viz` is cheap and works in a plain script.
"""

from mlx_grpo_kit.viz.answers import describe_answers, draw_answers, draw_push
from mlx_grpo_kit.viz.background import BackgroundRun
from mlx_grpo_kit.viz.boundary import draw_boundary
from mlx_grpo_kit.viz.comparisons import draw_depth, draw_differences, draw_shares
from mlx_grpo_kit.viz.completions import completions_table
from mlx_grpo_kit.viz.descent import draw_descent
from mlx_grpo_kit.viz.digits import draw_confusion, draw_digits, draw_pixels, draw_reading
from mlx_grpo_kit.viz.feature_maps import draw_feature_maps, draw_images
from mlx_grpo_kit.viz.graph import draw_graph
from mlx_grpo_kit.viz.lines import draw_lines
from mlx_grpo_kit.viz.live import LivePlot
from mlx_grpo_kit.viz.live_picture import LivePicture
from mlx_grpo_kit.viz.mismatch import draw_mismatch
from mlx_grpo_kit.viz.paint import PaintBox
from mlx_grpo_kit.viz.panel import Panel
from mlx_grpo_kit.viz.picture import show_picture
from mlx_grpo_kit.viz.reductions import draw_sum
from mlx_grpo_kit.viz.shapes import draw_broadcast, shape_explorer
from mlx_grpo_kit.viz.sliding import draw_convolution, draw_im2col
from mlx_grpo_kit.viz.slopes import draw_slope
from mlx_grpo_kit.viz.step_sizes import draw_step_sizes
from mlx_grpo_kit.viz.stepper import Stepper
from mlx_grpo_kit.viz.switchboard import draw_patients, draw_switch, draw_verdicts

__all__ = ["BackgroundRun", "LivePicture", "LivePlot", "PaintBox", "Panel", "Stepper", "completions_table",
           "describe_answers", "draw_answers", "draw_boundary", "draw_broadcast", "draw_confusion", "draw_convolution",
           "draw_depth", "draw_descent", "draw_differences", "draw_digits", "draw_feature_maps", "draw_graph",
           "draw_im2col", "draw_images", "draw_lines", "draw_mismatch", "draw_patients", "draw_pixels", "draw_push",
           "draw_reading", "draw_shares", "draw_slope", "draw_step_sizes", "draw_sum", "draw_switch", "draw_verdicts",
           "shape_explorer", "show_picture"]
