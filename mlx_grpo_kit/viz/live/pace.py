"""The pace at which a picture is drawn again while a run goes on."""

from __future__ import annotations

import time

SECONDS_BETWEEN_FRAMES = 0.25, 1.0  # at least and, unless the run itself takes longer, at most
SHARE_FOR_DRAWING = 0.1  # of the run's time: a frame costs some 40 ms, as much as a step of a tiny model


def next_frame(started: float) -> float:
    """When the next frame is due (time.monotonic), if drawing this one has `started` then and is done now."""
    least, most = SECONDS_BETWEEN_FRAMES
    now = time.monotonic()
    return now + min(max(least, (now - started) / SHARE_FOR_DRAWING), most)
