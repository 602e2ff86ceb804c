"""Pictures of chapter 22: when operations run, and how backends compare."""
