"""Rows of a batch computed side by side: one CPU stream a core.

MLX's CPU kernels run on one thread. Rows of a batch do not depend on each other until the loss, so each lane computes
some of them on a stream of its own, and the gradient goes back the way it came. A GPU needs only one lane.
"""

from __future__ import annotations

import threading
from itertools import pairwise

from mlx_grpo_kit import blas
from mlx_grpo_kit.blas import mx

_of_this_thread = threading.local()  # a stream belongs to the thread that made it


def lane_streams() -> list[mx.Stream]:
    """The streams of the calling thread's lanes, the default one first."""
    if blas.lanes == 1 or mx.default_device() != mx.cpu:
        return [mx.default_stream(mx.default_device())]
    if not hasattr(_of_this_thread, "streams"):
        _of_this_thread.streams = [mx.default_stream(mx.cpu)]
    streams = _of_this_thread.streams
    streams += [mx.new_stream(mx.cpu) for _ in range(blas.lanes - len(streams))]
    return streams[: blas.lanes]


def shares(count: int, parts: int) -> list[slice]:
    """`count` things in at most `parts` slices of nearly equal size, none of them empty."""
    parts = min(parts, count)
    edges = [count * part // parts for part in range(parts + 1)]
    return [slice(start, end) for start, end in pairwise(edges)]
