"""The kit's folders, which appear complete or not at all, and careful reading of files."""

from mlx_grpo_kit.files.atomic import (
    clear_leftovers,
    free_name,
    is_scratch,
    locked,
    naming,
    one_writer,
    put_aside,
    replaced_folder,
    whole_folder,
    write_file,
)
from mlx_grpo_kit.files.manifest import (
    MANIFEST,
    check_replaceable,
    check_saved,
    foreign,
    read_manifest,
    remove_folder,
    sha256_of,
    write_manifest,
)
from mlx_grpo_kit.files.read import check_regular, no_model_folder, on_the_hub, one_further_in, read_file, read_json

__all__ = [
    "MANIFEST",
    "check_regular",
    "check_replaceable",
    "check_saved",
    "clear_leftovers",
    "foreign",
    "free_name",
    "is_scratch",
    "locked",
    "naming",
    "no_model_folder",
    "on_the_hub",
    "one_further_in",
    "one_writer",
    "put_aside",
    "read_file",
    "read_json",
    "read_manifest",
    "remove_folder",
    "replaced_folder",
    "sha256_of",
    "whole_folder",
    "write_file",
    "write_manifest",
]
