"""Chapter 06: the gradient clinic."""
