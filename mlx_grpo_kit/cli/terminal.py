"""Safe display of foreign text in a terminal, and standard streams that may be closed."""

from __future__ import annotations

import os
import sys
import unicodedata

# Control characters move the cursor, format characters reverse the direction of writing, separators break lines.
UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
JOINERS = "\u200c\u200d"
"""Format characters that belong to ordinary text: they join Persian and Indic letters, and emoji, or not."""


def escaped(text: str, keep: str = "") -> str:
    """`text` with every character that controls a terminal escaped (ESC as `\\x1b`), except for those in `keep`."""
    safe = JOINERS + keep
    return "".join(
        repr(character)[1:-1] if character not in safe and unicodedata.category(character) in UNSAFE else character
        for character in text
    )


def say(words: str) -> bool:
    """Write a line to standard error; return False if that fails, for example on a full disk."""
    try:
        print(words, file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # for the rest of the stream
        return False
    return True


def open_standard_streams() -> None:
    """Give a process that was started without a standard stream `/dev/null` in its place.

    Otherwise the next opened file gets the stream's number. MLX treats a model file with number 0 as one that could not
    be opened, and a library's prints would be written into a file with number 1 or 2.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))
