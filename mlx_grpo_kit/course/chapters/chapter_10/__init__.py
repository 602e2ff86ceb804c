"""Chapter 10: the parts of a transformer."""
