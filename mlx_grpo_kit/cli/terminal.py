"""Text that somebody else wrote, made safe to show in a terminal, and the three streams of one that may be closed."""

from __future__ import annotations

import os
import sys
import unicodedata

# Control characters move the cursor, format characters turn the direction of writing round, separators break lines.
UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
JOINERS = "\u200c\u200d"
"""Format characters that belong to ordinary text: Persian and Indic letters, and emoji, are joined by them or not."""


def escaped(text: str, keep: str = "") -> str:
    """`text` with every character that steers a terminal spelled out, ESC as `\\x1b`, but for those in `keep`."""
    safe = JOINERS + keep
    return "".join(
        repr(character)[1:-1] if character not in safe and unicodedata.category(character) in UNSAFE else character
        for character in text
    )


def say(words: str) -> bool:
    """Write a line to standard error; returns whether that could be done, since there too a disk may be full."""
    try:
        print(words, file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where the stream's rest goes
        return False
    return True


def open_standard_streams() -> None:
    """Give a process that was started without a standard stream `/dev/null` in its place.

    Without one, its number goes to the next file that is opened: MLX takes a model that got number 0 for one that
    could not be opened, and what a library prints would be written into a file that got number 1 or 2.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))
