"""Chapter 02: scalar autograd."""
