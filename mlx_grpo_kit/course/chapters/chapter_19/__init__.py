"""Chapter 19: variants of GRPO compared, token by token and run by run."""
