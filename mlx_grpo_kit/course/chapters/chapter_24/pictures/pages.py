"""Two files side by side, to be read."""

from __future__ import annotations

from html import escape

LOOK = (
    "display:block;overflow:auto;margin:0;padding:8px 10px;border-radius:4px;background:rgba(140,149,159,.15);"
    "color:inherit;font-size:11.5px;line-height:1.35;white-space:pre"
)


class SideBySide:
    """Two texts in two columns of a notebook.

    Args:
        left, right: a title and its source each.
    """

    def __init__(self, left: tuple[str, str], right: tuple[str, str]):
        self.pages = left, right

    def __repr__(self) -> str:
        return "\n\n".join(f"{title}: {_lines(source)} lines\n\n{source.strip()}" for title, source in self.pages)

    def _repr_html_(self) -> str:
        columns = "".join(
            f'<div style="flex:1 1 420px;min-width:0"><b>{escape(title)}</b> ({_lines(source)} lines)'
            f'<pre style="{LOOK}">{escape(source.strip())}</pre></div>'
            for title, source in self.pages
        )
        return (
            f'<div style="display:flex;flex-wrap:wrap;gap:12px;color:var(--jp-ui-font-color1,#24292f)">{columns}</div>'
        )


def _lines(source: str) -> int:
    """Lines with something on them."""
    return sum(bool(line.strip()) for line in source.splitlines())
