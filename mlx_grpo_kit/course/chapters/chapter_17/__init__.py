"""Chapter 17: gradients of the whole model."""
