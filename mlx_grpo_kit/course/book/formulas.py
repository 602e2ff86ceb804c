"""Formulas of the book as MathML, which browsers render without scripts, fonts or network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer with Sphinx as `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _visit_inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(mathml(node.astext(), "inline"))
    _skip()


def _visit_block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="kit-formula">{mathml(node.astext(), "block")}</div>')
    _skip()


def mathml(latex: str, display: str) -> str:
    """A formula as a `<math>` element with its LaTeX for copying and for screen readers.

    `display` is "inline" or "block". Raises latex2mathml's errors for invalid LaTeX.
    """
    from html import escape

    from latex2mathml.converter import convert

    return convert(latex, display=display).replace("<math ", f'<math alttext="{escape(" ".join(latex.split()))}" ', 1)


def _skip() -> None:
    from docutils.nodes import SkipNode

    raise SkipNode
