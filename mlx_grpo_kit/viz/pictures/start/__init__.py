"""Pictures of chapter 00."""
