"""The pace at which a picture is redrawn during a run."""

from __future__ import annotations

import time

SECONDS_BETWEEN_FRAMES = 0.25, 1.0  # at least and, unless the run itself takes longer, at most
SHARE_FOR_DRAWING = 0.1  # the share of the run's time: a figure takes some 40 ms, as much as a step of a tiny model
SECONDS_BETWEEN_STILLS = 5.0  # the maximum age of the still picture when the page or the kernel goes away


def next_frame(started: float) -> float:
    """Return the time of the next frame (time.monotonic), if drawing this one began at `started` and ends now."""
    least, most = SECONDS_BETWEEN_FRAMES
    now = time.monotonic()
    return now + min(max(least, (now - started) / SHARE_FOR_DRAWING), most)
