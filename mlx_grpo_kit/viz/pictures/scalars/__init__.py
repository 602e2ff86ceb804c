"""Pictures of part 1, chapters 01 to 03: slopes, and networks of single numbers."""
