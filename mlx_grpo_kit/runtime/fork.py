"""A forked child cannot use MLX, which computes in threads: fork copies none of them."""

import os
import sys

_used = False  # whether MLX had computed anything when this process was last forked
_forked = False  # whether this process is a child of such a fork


def refuse_after_fork() -> None:
    """Raises RuntimeError in a child that was forked after MLX was used; there, computing would wait for ever."""
    if _forked:
        raise RuntimeError(
            "This process was forked from one that had used MLX, whose threads a fork leaves behind: MLX would wait "
            "for them for ever. Start a fresh process instead: multiprocessing.get_context('spawn'), or subprocess."
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
