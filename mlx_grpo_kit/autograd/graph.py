"""The operations that MLX still has to compute, as a text that `draw_graph` draws."""

import io

from mlx_grpo_kit.runtime import mx


def graph_text(*outputs: mx.array, **names: mx.array) -> str:
    """The graph that `outputs` wait for, in Graphviz's language; arrays given by keyword are called by their keyword.

        draw_graph(graph_text(loss, w=w, loss=loss))

    An array that is evaluated waits for nothing: it stands alone.
    """
    text = io.StringIO()
    mx.export_to_dot(text, *outputs, **names)
    return text.getvalue()
