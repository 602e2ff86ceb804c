"""Checkpoints of a training run: the policy as a Hugging Face folder, the optimizer, and a hash of every file.

checkpoint/
  model/                  the policy in float32, with its tokenizer: a folder any Qwen3 loader reads
  reference/              the policy that the KL penalty pulls towards, where there is one
  optimizer.safetensors   AdamW's moments
  trainer_state.json      settings and progress, with size and sha256 of every other file
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.files import read_json, replaced_folder, whole_folder
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer, save_pretrained

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.trainer import GRPOTrainer
    from mlx_grpo_kit.tasks.task import Task

STATE = "trainer_state.json"


def save_checkpoint(trainer: GRPOTrainer, folder: str | os.PathLike) -> None:
    """Write a checkpoint; `folder` appears whole or not at all, and replaces one that is there."""
    with replaced_folder(folder, marker=STATE) as new:
        save_pretrained(new / "model", trainer.config, trainer.master_params, tokenizer=trainer.tokenizer)
        if trainer.ref_params is not None:
            save_pretrained(new / "reference", trainer.config, trainer.ref_params)
        mx.save_safetensors(str(new / "optimizer.safetensors"), _flat(trainer.optimizer.state))
        files = sorted(path for path in new.rglob("*") if path.is_file())
        state = {
            "step": trainer.step,
            "task": trainer.task.name,
            "compute_dtype": str(trainer.compute_dtype).rpartition(".")[2],
            "args": asdict(trainer.args),
            "files": {str(path.relative_to(new)): _fingerprint(path) for path in files},
        }
        (new / STATE).write_text(json.dumps(state, indent=2, allow_nan=False) + "\n")


def load_checkpoint(folder: str | os.PathLike, task: Task) -> GRPOTrainer:
    """The trainer that was saved. Every file is checked before anything is built.

    Raises FileNotFoundError for a missing folder or file, and ValueError for a changed file or another task.
    """
    from mlx_grpo_kit.grpo.trainer import GRPOTrainer

    folder = whole_folder(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}; expected a checkpoint that save_checkpoint wrote.")
    if not (folder / STATE).exists():
        raise FileNotFoundError(
            f"{folder} has no {STATE}, so it is no checkpoint. Expected a folder that save_checkpoint wrote."
        )
    state = read_json(folder, STATE)
    missing = [key for key in ("step", "task", "compute_dtype", "args", "files") if key not in state]
    if missing:
        raise ValueError(
            f"{folder / STATE} lacks {', '.join(missing)}; it was written by another version or changed by hand."
        )
    unknown = sorted(state["args"].keys() - {field.name for field in fields(GRPOConfig)})
    if unknown:
        raise ValueError(f"{folder / STATE} has settings that this version does not know: {', '.join(unknown)}.")
    for name, expected in state["files"].items():
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder} has lost {name}. Resume from another checkpoint.")
        if _fingerprint(folder / name) != expected:
            raise ValueError(
                f"{folder / name} is not what was saved: it is cut off or corrupt. Resume from another checkpoint."
            )
    if task.name != state["task"]:
        raise ValueError(f"{folder} was trained on task {state['task']!r}, not {task.name!r}. Give the same task.")

    config, params = load_pretrained(folder / "model", dtype=None)
    trainer = GRPOTrainer(config, params, load_tokenizer(folder / "model"), task, GRPOConfig(**state["args"]))
    trainer.step = state["step"]
    trainer.compute_dtype = getattr(mx, state["compute_dtype"])
    if trainer.ref_params is not None:
        _, trainer.ref_params = load_pretrained(folder / "reference", dtype=None)
    trainer.optimizer.state = _nested(mx.load(str(folder / "optimizer.safetensors")))
    mx.eval(trainer.optimizer.state)
    return trainer


def _flat(state: dict) -> dict[str, mx.array]:
    """AdamW's state {"step": ..., name: {"m": ..., "v": ...}} -> {"step": ..., "name/m": ..., "name/v": ...}."""
    flat = {}
    for name, value in state.items():
        flat |= {f"{name}/{part}": array for part, array in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _nested(flat: dict[str, mx.array]) -> dict:
    state: dict = {}
    for path, value in flat.items():
        name, _, part = path.partition("/")
        if part:
            state.setdefault(name, {})[part] = value
        else:
            state[name] = value
    return state


def _fingerprint(path: Path) -> dict:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
