"""Chapter 04: tensors and broadcasting."""
