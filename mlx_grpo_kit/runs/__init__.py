"""What happened in a run: its record, its diagnosis, and its folder. Loads no MLX."""
