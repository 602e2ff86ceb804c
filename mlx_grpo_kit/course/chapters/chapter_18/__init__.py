"""Chapter 18: GRPO training."""
