"""A run after the fact: its record, its diagnosis, and its folder. Loads no MLX."""
