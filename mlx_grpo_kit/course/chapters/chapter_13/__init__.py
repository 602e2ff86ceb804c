"""Chapter 13: generation."""
