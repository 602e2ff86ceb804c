"""The form of numbers and texts in a diagnosis."""

from __future__ import annotations


def percent(share: float) -> str:
    """Write a share as a percentage: 0.874 -> "87%"."""
    return f"{100 * share:.0f}%"


def short(value: float) -> str:
    """Write a number with three digits, or two below 0.01: 0.4567 -> "0.457". Anything below 0.0001 is "0"."""
    return f"{value:.{3 if abs(value) >= 0.01 else 2}g}" if abs(value) >= 1e-4 else "0"


def quoted(text: str) -> str:
    """Put a text in quotation marks, with control characters escaped, cut off after 40 characters."""
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
