"""Chapter 03: a scalar MLP."""
