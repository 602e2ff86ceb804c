"""Chapter 23: a real Qwen3."""
