"""Exercises of notebook 16, and the one gradient that all engines agree on."""
