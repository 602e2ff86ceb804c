"""Folders that appear whole or not at all, and files that are read with care."""

from mlx_grpo_kit.files.atomic import replaced_folder, whole_folder
from mlx_grpo_kit.files.read import check_regular, read_file, read_json

__all__ = ["check_regular", "read_file", "read_json", "replaced_folder", "whole_folder"]
