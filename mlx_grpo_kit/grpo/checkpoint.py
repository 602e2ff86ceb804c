"""Checkpoints of a training run: the policy as a Hugging Face folder, the optimizer, settings and progress.

checkpoint/
  model/                  the policy in float32, with its tokenizer: a folder any Qwen3 loader reads
  reference/              the policy that the KL penalty pulls towards, if there is one
  adapters/               instead of both if adapters are trained; mlx-lm and PEFT read it too
  optimizer.safetensors   the optimizer's moments
  trainer_state.json      settings and progress
  mlx_grpo_kit.json       the hash of every file above, checked before anything is read
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from mlx_grpo_kit.files import MANIFEST, check_saved, read_json, read_manifest, replaced_folder, whole_folder
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained, load_tokenizer, save_pretrained
from mlx_grpo_kit.qwen3.adapters import Adapters, load_adapters, save_adapters
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.qwen3.weight_files import load_arrays, save_arrays
from mlx_grpo_kit.runtime import mx

STATE, ADAPTERS = "trainer_state.json", "adapters"
COMPUTE_DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


@dataclass(frozen=True)
class Checkpoint:
    """The state that a trainer carries from step to step. All else in a step follows from its seed and its number.

    Attributes:
        step: steps done.
        task: the task's name.
        policy: the policy, with its reference. Adapters are loaded without their base.
        optimizer_state: {"step": ..., "learning_rate": ..., parameter: {"m": ..., "v": ...}}, in AdamW's form.
        own_parts: the names of the parts that the user supplied.
        origin: as in `Snapshot`; None in a checkpoint of an earlier version.
        adapters: loaded adapters and the fingerprint of their base; None if all parameters are trained.
    """

    step: int
    task: str
    args: GRPOConfig
    policy: Policy
    tokenizer: Tokenizer
    optimizer_state: dict[str, Any]
    own_parts: tuple[str, ...] = ()
    origin: str | None = None
    adapters: Adapters | None = None

    def beside(self, folder: str | os.PathLike, base: tuple[Qwen3Config, Mapping[str, mx.array]] | None) -> Checkpoint:
        """The checkpoint with the base of its adapters, if it has any. Raises ValueError if the two do not match."""
        if self.adapters is None:
            if base is not None:
                raise ValueError(f"{folder} contains a whole policy and needs no base. Leave base out.")
            return self
        if base is None:
            raise ValueError(
                f"{folder} contains adapters without their base model. Pass that model: GRPOTrainer.resume(folder, "
                "task, base=load_pretrained(MODEL))."
            )
        config, params = base
        if config != self.policy.config:
            raise ValueError(
                f"{folder} contains adapters for a different base model than the one given. They need one with "
                f"{self.policy.config}."
            )
        self.adapters.check_base(params)
        return replace(self, policy=self.policy.beside(params, with_reference=self.args.beta != 0))


def save_checkpoint(folder: str | os.PathLike, checkpoint: Checkpoint) -> None:
    """Write a checkpoint. `folder` appears complete or not at all, and replaces an existing checkpoint.

    Raises FileExistsError if `folder` contains anything that the kit did not write, and OSError if it cannot be
    written.
    """
    policy = checkpoint.policy
    state = {
        "step": checkpoint.step,
        "task": checkpoint.task,
        "compute_dtype": str(policy.dtype).rpartition(".")[2],
        "args": asdict(checkpoint.args),
    }
    if checkpoint.origin:
        state["origin"] = checkpoint.origin
    if checkpoint.own_parts:
        state["own_parts"] = [*checkpoint.own_parts]
    with replaced_folder(folder) as new:
        if policy.frozen is not None:
            save_adapters(new / ADAPTERS, policy.config, policy.adapters(), tokenizer=checkpoint.tokenizer)
        else:
            save_pretrained(new / "model", policy.config, policy.trained, tokenizer=checkpoint.tokenizer)
            if policy.reference is not None:
                save_pretrained(new / "reference", policy.config, policy.reference)
        save_arrays(new / "optimizer.safetensors", _flat(checkpoint.optimizer_state))
        (new / STATE).write_text(json.dumps(state, indent=2, allow_nan=False) + "\n")


def load_checkpoint(folder: str | os.PathLike, config_class: type[GRPOConfig] = GRPOConfig) -> Checkpoint:
    """Read a checkpoint, after comparing the hash of every file.

    Raises FileNotFoundError for a missing folder or file, and ValueError for a file that was changed or added.
    """
    folder = whole_folder(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}; expected a checkpoint that save_checkpoint wrote.")
    saved = read_manifest(folder)
    if saved is None or STATE not in saved:
        raise FileNotFoundError(f"{folder} is not a checkpoint; expected a folder that save_checkpoint wrote.")
    check_saved(folder, saved)
    state = _read_state(folder, config_class)
    adapters, reference, where, scale = None, None, folder / "model", 1.0
    if f"{ADAPTERS}/{MANIFEST}" in saved:
        where = folder / ADAPTERS
        config = Qwen3Config.from_dict(read_json(where, "config.json"))
        adapters = load_adapters(where, config)
        params, scale = adapters.lora, state["args"].lora_scale
    else:
        config, params = load_pretrained(where, dtype=None)
    if f"reference/{MANIFEST}" in saved:
        reference = load_pretrained(folder / "reference", dtype=None)[1]
    optimizer_state = _nested(load_arrays(folder / "optimizer.safetensors"))
    mx.eval(optimizer_state)
    policy = Policy(config, params, state.pop("compute_dtype"), None, scale, reference)
    return Checkpoint(
        **state, policy=policy, tokenizer=load_tokenizer(where), optimizer_state=optimizer_state, adapters=adapters
    )


def _read_state(folder: Path, config_class: type[GRPOConfig]) -> dict[str, Any]:
    state = read_json(folder, STATE)
    missing = [key for key in ("step", "task", "compute_dtype", "args") if key not in state]
    if missing:
        raise ValueError(f"{folder / STATE} lacks {', '.join(missing)}; it was written by another version.")
    args, step, dtype = state["args"], state["step"], COMPUTE_DTYPES.get(state["compute_dtype"])
    if not (isinstance(args, dict) and isinstance(step, int) and step >= 0 and dtype):
        raise ValueError(f"{folder / STATE} cannot be read: args, step or compute_dtype is invalid.")
    unknown = sorted(args.keys() - {field.name for field in fields(config_class)})
    if unknown:
        raise ValueError(
            f"{folder / STATE} has settings that {config_class.__name__} does not know: {', '.join(unknown)}. If they "
            "are those of a subclass of GRPOConfig, pass it: resume(..., config_class=...)."
        )
    own, origin = state.get("own_parts", []), state.get("origin")
    if not (isinstance(own, list) and all(isinstance(name, str) for name in own) and isinstance(origin, str | None)):
        raise ValueError(f"{folder / STATE} cannot be read: own_parts or origin is invalid.")
    try:
        settings = config_class(**args)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / STATE} cannot be read: {error}") from error
    kept = {"step": step, "task": state["task"], "args": settings, "own_parts": tuple(own), "origin": origin}
    return kept | {"compute_dtype": dtype}


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
