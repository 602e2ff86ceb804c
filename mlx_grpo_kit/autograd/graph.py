"""The operations that MLX has not computed yet, as text for `draw_graph`."""

import io

from mlx_grpo_kit.runtime import mx


def graph_text(*outputs: mx.array, **names: mx.array) -> str:
    """The graph of `outputs` in Graphviz's language; arrays passed by keyword are labelled with it.

        draw_graph(graph_text(loss, w=w, loss=loss))

    An evaluated array has no graph: it is a single node.
    """
    text = io.StringIO()
    mx.export_to_dot(text, *outputs, **names)
    return text.getvalue()
