"""Pictures of part 3, chapters 09 to 13 and 17: what goes on inside of a Qwen3."""
