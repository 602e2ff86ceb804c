"""An answer that stays hidden until you open it, so that you can guess first, even in a stored notebook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from mlx_grpo_kit.runtime.extras import packages_for

LOOK = "margin:4px 0;color:var(--jp-ui-font-color1,#24292f)"


@contextmanager
def fold(summary: str = "Have you made a guess? Open") -> Iterator[None]:
    """Hide the output of the block until `summary` is clicked: `with fold(): print(...)`.

    An error in the block is raised as usual, after the earlier output is shown.
    """
    with packages_for("fold"):
        from IPython.display import display
        from IPython.utils.capture import capture_output

    with capture_output() as captured:
        error = None
        try:
            yield
        except Exception as raised:
            error = raised
    printed = captured.stdout.rstrip()
    text = f'<pre style="margin:6px 0">{escape(printed)}</pre>' if printed else ""
    words = [printed] if printed else []
    for output in captured.outputs:
        plain = output.data["text/plain"]
        text += output.data.get("text/html") or f"<pre>{escape(plain)}</pre>"
        words.append(plain)
    html = f'<details style="{LOOK}"><summary style="cursor:pointer">{escape(summary)}</summary>{text}</details>'
    display({"text/html": html, "text/plain": "\n".join(words)}, raw=True)
    if error is not None:
        raise error
