"""The kernel behind a notebook: its shell, and no subshells for widgets.

JupyterLab 4.6 makes a subshell for all widgets of a page and deletes it at a reload of the page, or when the setting
"Kernel Comms over subshells" arrives after the first widget. A widget that learns the subshell's name only afterwards
uses it all the same; the kernel drops such messages, and buttons do nothing.
"""

from __future__ import annotations

import sys
from typing import Any

REFUSAL = {
    "status": "error",
    "ename": "NoSubshells",
    "evalue": "mlx_grpo_kit shows widgets here, and they use the main shell (mlx_grpo_kit/viz/kernel.py).",
    "traceback": [],
    "subshell_id": None,  # JupyterLab reads it even in an error, and uses the main shell for None
}


def notebook_shell() -> Any | None:
    """Return the IPython shell of a Jupyter kernel, or None in a script or a terminal."""
    ipython = sys.modules.get("IPython")  # a script that has not imported IPython is not running in it
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if hasattr(shell, "kernel") else None


def use_no_subshells() -> None:
    """Make this notebook's kernel refuse new subshells; without a kernel nothing happens."""
    kernel = getattr(notebook_shell(), "kernel", None)
    handlers = getattr(kernel, "control_handlers", {})
    if "create_subshell_request" not in handlers:
        return

    def refuse(socket: Any, ident: Any, parent: Any) -> None:
        kernel.session.send(socket, "create_subshell_reply", REFUSAL, parent, ident)

    handlers["create_subshell_request"] = refuse
