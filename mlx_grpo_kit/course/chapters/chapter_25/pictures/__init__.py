"""Pictures of chapter 25: completions of several turns."""
