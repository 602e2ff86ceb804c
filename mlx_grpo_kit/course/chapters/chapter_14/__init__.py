"""Chapter 14: tasks and rewards."""
