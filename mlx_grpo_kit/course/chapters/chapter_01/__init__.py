"""Chapter 01: derivatives."""
