"""A run in words, on its page and below its still picture."""

from __future__ import annotations


def run_in_words(state: str, step: int | None, max_steps: int | None, number: str, seconds: float) -> str:
    """Describe a run in one line: "running: step 37 of 60 · reward 0.710 · 12 s"; without a step, by its state."""
    if step is None:
        return state
    total = f" of {max_steps}" if max_steps else ""
    time_taken = f"{seconds:.0f} s" if seconds else ""
    return " · ".join(filter(None, [f"{state}: step {step}{total}", number, time_taken]))


def last_seen(status: str) -> str:
    """Return the words below the still picture of a run that goes on; a kernel that is gone cannot change them."""
    return f"Last seen {status}. If the kernel was restarted or shut down, the run ended with it."
