"""The record, the diagnosis and the folder of a run. This package does not load MLX."""
