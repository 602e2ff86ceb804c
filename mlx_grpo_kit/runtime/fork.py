"""A check for forked children, which cannot use MLX: it computes in threads, and fork does not copy them."""

import os
import sys

_used = False  # True if MLX had computed anything when this process was last forked
_forked = False  # True if this process is a child of such a fork


def refuse_after_fork() -> None:
    """Raise RuntimeError in a child that was forked after MLX was used: computing there would never end."""
    if _forked:
        raise RuntimeError(
            "This process was forked from one that had used MLX, and a fork does not copy MLX's threads: MLX would "
            "wait for them forever. Start a fresh process instead: multiprocessing.get_context('spawn'), or "
            "subprocess."
        )


def _before() -> None:
    global _used
    mx = sys.modules.get("mlx.core")
    _used = mx is not None and mx.get_active_memory() + mx.get_peak_memory() > 0


def _in_child() -> None:
    global _forked
    _forked = _forked or _used


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before, after_in_child=_in_child)
