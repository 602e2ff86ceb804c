"""Checkpoints of a training run: the policy as a Hugging Face folder, the optimizer, settings and progress.

checkpoint/
  model/                  the policy in float32, with its tokenizer: a folder any Qwen3 loader reads
  reference/              the policy that the KL penalty pulls towards, where there is one
  adapters/               in the place of both, where adapters are trained: mlx-lm and PEFT read it too
  optimizer.safetensors   the optimizer's moments
  trainer_state.json      settings and progress
  mlx_grpo_kit.json       the hash of every file above: nothing is read that was not saved
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.files import MANIFEST, check_saved, read_json, read_manifest, replaced_folder, whole_folder
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained, load_tokenizer, save_pretrained
from mlx_grpo_kit.qwen3.adapters import Adapters, load_adapters, save_adapters
from mlx_grpo_kit.qwen3.pretrained import load_arrays, save_arrays
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer

STATE, ADAPTERS = "trainer_state.json", "adapters"
COMPUTE_DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


@dataclass(frozen=True)
class Checkpoint:
    """All that a trainer carries from step to step. The rest of a step follows from its seed and its number.

    Attributes:
        step: steps done.
        task: the task's name.
        args: the settings.
        config, master_params, tokenizer: the policy, in float32; or its adapters alone.
        compute_dtype: of the forward and backward passes.
        ref_params: the policy that training started from, where the KL penalty needs it.
        optimizer_state: {"step": ..., "learning_rate": ..., parameter: {"m": ..., "v": ...}}, as AdamW has it.
        adapters: `master_params` and what they stand beside, where they are adapters.
    """

    step: int
    task: str
    args: GRPOConfig
    config: Qwen3Config
    master_params: dict[str, mx.array]
    tokenizer: Tokenizer
    compute_dtype: mx.Dtype
    ref_params: dict[str, mx.array] | None
    optimizer_state: dict[str, Any]
    adapters: Adapters | None = None


def save_checkpoint(folder: str | os.PathLike, checkpoint: Checkpoint) -> None:
    """Write a checkpoint. `folder` appears whole or not at all, and replaces one that is there.

    Raises FileExistsError where `folder` holds anything that the kit did not write, OSError where it cannot be written.
    """
    state = {
        "step": checkpoint.step,
        "task": checkpoint.task,
        "compute_dtype": str(checkpoint.compute_dtype).rpartition(".")[2],
        "args": asdict(checkpoint.args),
    }
    with replaced_folder(folder) as new:
        if checkpoint.adapters is not None:
            save_adapters(new / ADAPTERS, checkpoint.config, checkpoint.adapters, tokenizer=checkpoint.tokenizer)
        else:
            save_pretrained(new / "model", checkpoint.config, checkpoint.master_params, tokenizer=checkpoint.tokenizer)
        if checkpoint.ref_params is not None:
            save_pretrained(new / "reference", checkpoint.config, checkpoint.ref_params)
        save_arrays(new / "optimizer.safetensors", _flat(checkpoint.optimizer_state))
        (new / STATE).write_text(json.dumps(state, indent=2, allow_nan=False) + "\n")


def load_checkpoint(folder: str | os.PathLike) -> Checkpoint:
    """What was saved, every file compared with its hash first.

    Raises FileNotFoundError for a missing folder or file, and ValueError for a file that was changed or added.
    """
    folder = whole_folder(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}; expected a checkpoint that save_checkpoint wrote.")
    saved = read_manifest(folder)
    if saved is None or STATE not in saved:
        raise FileNotFoundError(f"{folder} is no checkpoint; expected a folder that save_checkpoint wrote.")
    check_saved(folder, saved)
    state = _read_state(folder)
    adapters, policy = None, folder / "model"
    if f"{ADAPTERS}/{MANIFEST}" in saved:
        policy = folder / ADAPTERS
        config = Qwen3Config.from_dict(read_json(policy, "config.json"))
        adapters = load_adapters(policy, config)
        params = adapters.lora
    else:
        config, params = load_pretrained(policy, dtype=None)
    has_reference = f"reference/{MANIFEST}" in saved
    optimizer_state = _nested(load_arrays(folder / "optimizer.safetensors"))
    mx.eval(optimizer_state)
    return Checkpoint(
        **state,
        config=config,
        master_params=params,
        tokenizer=load_tokenizer(policy),
        ref_params=load_pretrained(folder / "reference", dtype=None)[1] if has_reference else None,
        optimizer_state=optimizer_state,
        adapters=adapters,
    )


def _read_state(folder: Path) -> dict[str, Any]:
    state = read_json(folder, STATE)
    missing = [key for key in ("step", "task", "compute_dtype", "args") if key not in state]
    if missing:
        raise ValueError(f"{folder / STATE} lacks {', '.join(missing)}; it was written by another version.")
    args, step, dtype = state["args"], state["step"], COMPUTE_DTYPES.get(state["compute_dtype"])
    if not (isinstance(args, dict) and isinstance(step, int) and step >= 0 and dtype):
        raise ValueError(f"{folder / STATE} cannot be read: args, step or compute_dtype is not what it should be.")
    unknown = sorted(args.keys() - {field.name for field in fields(GRPOConfig)})
    if unknown:
        raise ValueError(f"{folder / STATE} has settings that this version does not know: {', '.join(unknown)}.")
    try:
        return {"step": step, "task": state["task"], "args": GRPOConfig(**args), "compute_dtype": dtype}
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / STATE} cannot be read: {error}") from error


def _flat(state: dict) -> dict[str, mx.array]:
    """{"step": ..., name: {"m": ..., "v": ...}} -> {"step": ..., "name/m": ..., "name/v": ...}."""
    flat = {}
    for name, value in state.items():
        flat |= {f"{name}/{part}": array for part, array in value.items()} if isinstance(value, dict) else {name: value}
    return dict(sorted(flat.items()))  # MLX keeps the order: the same state, the same file


def _nested(flat: dict[str, mx.array]) -> dict:
    state: dict = {}
    for path, value in flat.items():
        name, _, part = path.partition("/")
        if part:
            state.setdefault(name, {})[part] = value
        else:
            state[name] = value
    return state
