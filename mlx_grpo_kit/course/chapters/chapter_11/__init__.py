"""Chapter 11: attention."""
