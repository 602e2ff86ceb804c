"""Chapter 23: a real language model."""
