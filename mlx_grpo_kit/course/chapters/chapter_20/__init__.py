"""Chapter 20: a museum of the ways in which GRPO programs have been wrong."""
