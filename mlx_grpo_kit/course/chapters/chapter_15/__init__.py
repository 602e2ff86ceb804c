"""Chapter 15: policy gradients."""
