"""Chapter 22: training backends."""
