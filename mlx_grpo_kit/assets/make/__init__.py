"""The programs that made the models beside this folder: `python -m mlx_grpo_kit.assets.make.tiny DIR`."""
