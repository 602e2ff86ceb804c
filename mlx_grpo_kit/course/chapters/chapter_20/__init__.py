"""Chapter 20: a museum of bugs of GRPO programs."""
