"""Chapter 05: the operations."""
