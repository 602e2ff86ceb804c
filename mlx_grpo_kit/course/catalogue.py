"""The chapters that have exercises, and the exercises by number. A chapter is loaded on first use."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
import json
import os
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from mlx_grpo_kit.course import chapters as chapter_folders
from mlx_grpo_kit.course.exercise import Exercise, drawn_from

OWN = "MLX_GRPO_KIT_EXERCISES"  # an environment variable with a folder of chapters beside the kit's


def folders() -> list[Path]:
    """The folders of chapters: the kit's, and the one that MLX_GRPO_KIT_EXERCISES names.

    Raises LookupError if there is no such folder, or if one of its chapters has the number of a chapter of the kit.
    """
    kits, own = Path(chapter_folders.__file__).parent, os.environ.get(OWN)
    if not own:
        return [kits]
    folder = Path(own).resolve()
    if not folder.is_dir():
        raise LookupError(f"{OWN} is {own}, which is not a folder.")
    if taken := sorted(each.name for each in folder.glob("chapter_*") if (kits / each.name).exists()):
        raise LookupError(f"{folder / taken[0]} has the number of a chapter of the kit. Give yours one from 30 to 99.")
    if str(folder) not in chapter_folders.__path__:
        chapter_folders.__path__.append(str(folder))
    return [kits, folder]


def chapters() -> list[str]:
    """The numbers of the chapters that have exercises: ["01", "02", ...]."""
    files = [file for folder in folders() for file in folder.glob("chapter_*/exercises.py")]
    return sorted(file.parent.name.removeprefix("chapter_") for file in files)


def title_of(chapter: str) -> str:
    """The first line of the docstring of a chapter's exercises: the title of a chapter of your own."""
    first = exercises(chapter)[0]
    return (_module_of(first).__doc__ or "").strip().partition("\n")[0].rstrip(".")


def _module_of(exercise: Exercise) -> ModuleType:
    return sys.modules[f"{chapter_folders.__name__}.chapter_{exercise.id.partition('.')[0]}.exercises"]


def imports_of(exercise: Exercise) -> str:
    """The imports of the module of an exercise, except those from `mlx_grpo_kit.course`."""
    nodes = ast.parse(inspect.getsource(_module_of(exercise))).body
    lines = [ast.unparse(node) for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    return "\n".join(line for line in lines if "mlx_grpo_kit.course" not in line and "__future__" not in line)


def exercises(chapter: str) -> list[Exercise]:
    """The exercises of a chapter, in order. Raises LookupError for a chapter without any."""
    if chapter not in chapters():
        raise LookupError(f"chapter {chapter!r} has no exercises; these have: {', '.join(chapters())}.")
    module = importlib.import_module(f"{chapter_folders.__name__}.chapter_{chapter}.exercises")
    return _exercises_in(module)


def _exercises_in(module: ModuleType) -> list[Exercise]:
    return [value for value in vars(module).values() if isinstance(value, Exercise)] or list(module.EXERCISES)


@functools.cache
def hidden_exercises(chapter: str, seed: int) -> list[Exercise]:
    """The exercises of a chapter with more drawn cases: its module, executed again within `drawn_from(seed)`."""
    exercises(chapter)
    spec = find_spec(f"{chapter_folders.__name__}.chapter_{chapter}.exercises")
    own = spec_from_file_location(f"{spec.name}_{seed}", spec.origin)
    module = sys.modules[own.name] = module_from_spec(own)  # `slips` and `inspect` look for it there
    with drawn_from(seed):
        own.loader.exec_module(module)
    return _exercises_in(module)


def find(id: str, seed: int | None = None) -> Exercise:
    """The exercise "02.3", with hidden cases if there is a `seed` (see `hidden_exercises`).

    Raises LookupError, which lists the existing ones, if there is none.
    """
    chapter = str(id).split(".")[0]
    known = exercises(chapter) if seed is None else hidden_exercises(chapter, seed)
    for exercise in known:
        if exercise.id == id:
            return exercise
    raise LookupError(f"there is no exercise {id!r}; this chapter has {', '.join(one.id for one in known)}.")


def is_the_kits(exercise: Exercise, answer: Any) -> bool:
    """True if a function or class is the solution of the exercise itself, imported or returned by `use`."""
    own = find(exercise.id).solution
    return callable(answer) and any(inspect.unwrap(answer) is each for each in (own, exercise.solution))


def check_of(exercise: Exercise) -> str:
    """A hash of what decides whether an answer to an exercise passes: its prompt and signature, its chapter's code."""
    signature = str(inspect.signature(exercise.solution)) if inspect.isfunction(exercise.solution) else ""
    parts = [exercise.id, exercise.prompt, signature, _code_of(exercise.id.partition(".")[0])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@functools.cache
def _code_of(chapter: str) -> str:
    """A hash of the modules of a chapter, without its pictures."""
    files = sorted(file for folder in folders() for file in (folder / f"chapter_{chapter}").glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
