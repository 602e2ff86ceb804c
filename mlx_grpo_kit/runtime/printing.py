"""Text for a standard output that cannot show every character, such as an ASCII terminal or a log file in Latin-1."""

from __future__ import annotations

import functools
import sys
from typing import TypeVar

Shown = TypeVar("Shown", bound=type)


def encodable(text: str) -> str:
    """`text` with "?" for each character that standard output cannot encode, so that printing it raises no error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def printable(cls: Shown) -> Shown:
    """Class decorator: `str()` and `repr()` of an object, which people print, contain only what can be printed here."""
    for name in ("__repr__", "__str__"):
        if method := vars(cls).get(name):
            setattr(cls, name, _encodable_result(method))
    return cls


def _encodable_result(method):
    @functools.wraps(method)
    def words(self) -> str:
        return encodable(method(self))

    return words
