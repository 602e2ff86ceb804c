"""Chapter 21: scaling up."""
