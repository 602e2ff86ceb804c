"""Folders of adapters in the formats of mlx-lm and PEFT: reading and writing.

    adapter_config.json                 mlx-lm's settings, and the folder of the base model
    adapters.safetensors                model.layers.0.self_attn.q_proj.lora_a [in, rank], .lora_b [rank, out] ...
    config.json, tokenizer files        that model's
    peft/adapter_config.json            the same for PEFT
    peft/adapter_model.safetensors      base_model.model....q_proj.lora_A.weight [rank, in], .lora_B.weight [out, rank]

`python -m mlx_lm generate --model BASE --adapter-path FOLDER`, `PeftModel.from_pretrained(base, "FOLDER/peft")`.
Adapters only work with the base model that they were trained with, so the folder identifies it.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_grpo_kit.files import check_saved, replaced_folder, whole_folder
from mlx_grpo_kit.qwen3.adapter_base import SETTINGS, adapter_settings
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.lora import SCALES, check_adapters, fingerprint
from mlx_grpo_kit.qwen3.matrices import matrix
from mlx_grpo_kit.qwen3.params import check_finite
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.qwen3.weight_files import config_json, hugging_face_name, kit_name, load_arrays, save_arrays
from mlx_grpo_kit.runtime import mx

MLX_LM, PEFT = "adapters.safetensors", "adapter_model.safetensors"
IN_PEFT = "base_model.model."

NOT_PLAIN = (
    "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out", "lora_bias", "use_qalora",
    "target_parameters", "trainable_token_indices", "layer_replication", "alora_invocation_tokens", "arrow_config",
)  # fmt: skip
"""PEFT's settings with which a model is not W + scale (A B)^T."""

LARGEST_ERROR = 0.25
"""The share of the adapters' change that rounding may take away without a warning."""

CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""PEFT's initializations that subtract the first adapters from the base, so that no folder contains that base."""


@dataclass(frozen=True)
class Adapters:
    """The content of a folder of adapters.

    Attributes:
        lora: as `init_lora` returns it.
        scale: the factor of the product A B.
        base: the folder of their base model, if it is known.
        base_fingerprint: that model's `fingerprint`, if the kit wrote the adapters.
    """

    lora: dict[str, mx.array]
    scale: float
    base: str | None = None
    base_fingerprint: str | None = None

    def check_base(self, params: Mapping[str, mx.array]) -> None:
        """Raise ValueError unless `params` are those of the base model of these adapters."""
        if self.base_fingerprint is None:
            return
        if not {*self.base_fingerprint.split()} & {*fingerprint(params).split()}:
            named = f" ({self.base})" if self.base else ""
            raise ValueError(
                f"These adapters were trained with another base model{named}: its parameters differ from these. Pass "
                "that model."
            )


def warn_of_rounding(params: Mapping[str, mx.array], merged: Mapping[str, mx.array], adapters: Adapters) -> None:
    """Warn (RuntimeWarning) if much of the adapters' change was lost in the rounding of the merged weights.

    Args:
        params: the base model.
        merged: the same with the adapters merged in, as `merge` returns it.
    """
    lost = whole = 0.0
    for stem in {name.rpartition(".")[0] for name in adapters.lora}:
        name, (a, b) = f"{stem}.weight", (adapters.lora[f"{stem}.lora_{kind}"].astype(mx.float32) for kind in "ab")
        change = adapters.scale * (a @ b).T
        base = matrix(params, stem, a.shape[0])[:].astype(merged[name].dtype)
        error = merged[name].astype(mx.float32) - base.astype(mx.float32) - change
        lost, whole = lost + error.square().sum().item(), whole + change.square().sum().item()
    if lost > LARGEST_ERROR**2 * whole:
        dtype = str(merged[name].dtype).rpartition(".")[2]
        warnings.warn(
            f"In {dtype} the merged weights differ from what the adapters make of the model by "
            f"{math.sqrt(lost / whole):.0%} of the adapters' change, because {dtype} rounds small changes away. Merge "
            "them in float32: fuse --dtype float32, load_pretrained(folder, mx.float32).",
            RuntimeWarning,
            stacklevel=3,
        )


def save_adapters(
    folder: str | os.PathLike,
    config: Qwen3Config,
    adapters: Adapters,
    *,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Write a folder that mlx-lm, PEFT and `load_adapters` read (see the head of this file). Returns its path.

    The folder appears complete or not at all, and replaces one that the kit wrote.

    Raises ValueError for adapters that do not fit this configuration, FileExistsError if `folder` is a file or contains
    anything that the kit did not write, and OSError if it cannot be written.
    """
    check_adapters(adapters.lora, config)
    names = {name.rpartition(".")[0] for name in adapters.lora}
    modules = sorted({name.split(".", 2)[2] for name in names})
    rank = _rank(adapters.lora)
    settings = {
        "fine_tune_type": "lora",
        "num_layers": config.num_hidden_layers,
        "lora_parameters": {"rank": rank, "scale": adapters.scale, "dropout": 0.0, "keys": modules},
        "base_model_name_or_path": adapters.base,
        "base_fingerprint": adapters.base_fingerprint,
    }
    of_peft = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": adapters.scale * rank,
        "lora_dropout": 0.0,
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "bias": "none",
        "base_model_name_or_path": adapters.base,
        "inference_mode": True,
    }
    with replaced_folder(Path(folder)) as new:
        if tokenizer is not None:
            tokenizer.save(new)
        _write_json(new / "config.json", config_json(config, mx.float32, tokenizer))
        _write_json(new / SETTINGS, settings)
        save_arrays(new / MLX_LM, {hugging_face_name(name): value for name, value in adapters.lora.items()})
        with replaced_folder(new / "peft") as inner:
            _write_json(inner / SETTINGS, of_peft)
            save_arrays(inner / PEFT, {_peft_name(name): mx.contiguous(each.T) for name, each in adapters.lora.items()})
    return Path(folder)


def load_adapters(folder: str | os.PathLike, config: Qwen3Config) -> Adapters:
    """Read a folder of adapters that the kit, mlx-lm or PEFT wrote, for a model of this configuration.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: a file is cut off, corrupt or changed; the adapters belong to another model, or are not plain LoRA.
    """
    folder = whole_folder(folder)
    check_saved(folder, [SETTINGS, MLX_LM, PEFT])
    settings = adapter_settings(folder)
    base, known = settings.get("base_model_name_or_path"), settings.get("base_fingerprint")
    if (folder / MLX_LM).exists():
        stored = load_arrays(folder / MLX_LM)
        lora = {kit_name(name): value for name, value in stored.items()}
        scale, rank = _mlx_lm_scale(folder, settings)
    elif (folder / PEFT).exists():
        stored = load_arrays(folder / PEFT)
        lora = {_from_peft_name(name): mx.contiguous(value.T) for name, value in stored.items()}
        scale, rank = _peft_scale(folder, settings)
    else:
        raise FileNotFoundError(f"{folder} contains no adapters: neither {MLX_LM} (mlx-lm) nor {PEFT} (PEFT).")
    try:
        if len(lora) < len(stored):
            raise ValueError("An adapter occurs twice, under two names.")
        lora = {name: lora[name] for name in sorted(lora)}
        check_adapters(lora, config)
        if rank not in (None, _rank(lora)):
            raise ValueError(
                f"They have rank {_rank(lora)}, but {SETTINGS} says {rank!r:.60}: the two were not saved together."
            )
        lora = {name: value.astype(mx.float32) for name, value in lora.items()}
        mx.eval(lora)
        check_finite(lora)
    except ValueError as error:
        raise ValueError(f"The adapters in {folder} cannot be used. {error}") from error
    return Adapters(lora, scale, base if isinstance(base, str) else None, known if isinstance(known, str) else None)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _rank(lora: Mapping[str, mx.array]) -> int:
    """The rank of all adapters. Raises ValueError if they have several."""
    ranks = sorted({value.shape[1] for name, value in lora.items() if name.endswith(".lora_a")})
    if len(ranks) > 1:
        raise ValueError(f"Adapters have the ranks {ranks}; expected the same for all.")
    return ranks[0]


def _mlx_lm_scale(folder: Path, settings: Mapping[str, Any]) -> tuple[float, object]:
    """The scale, and the rank if it is given."""
    kind, parameters = settings.get("fine_tune_type", "lora"), settings.get("lora_parameters")
    if kind != "lora":
        raise ValueError(f"{folder / SETTINGS} has fine_tune_type {kind!r:.60}; expected 'lora'.")
    parameters = parameters if isinstance(parameters, dict) else {}
    return _number(folder, "scale", parameters.get("scale")), parameters.get("rank")


def _peft_scale(folder: Path, settings: Mapping[str, Any]) -> tuple[float, object]:
    """The scale and the rank."""
    if settings.get("peft_type") != "LORA":
        raise ValueError(f"{folder / SETTINGS} has peft_type {settings.get('peft_type')!r:.60}; expected 'LORA'.")
    begins = str(settings.get("init_lora_weights")).lower().startswith(CHANGES_BASE)
    with_bias = settings.get("bias") not in (None, "none")
    for name in (*NOT_PLAIN, *["init_lora_weights"] * begins, *["bias"] * with_bias):
        if settings.get(name):
            raise ValueError(f"{folder / SETTINGS} has {name} {settings[name]!r:.60}; expected LoRA without it.")
    if not isinstance(settings.get("use_rslora"), bool | None):
        shown = f"{settings['use_rslora']!r:.60}"
        raise ValueError(f"{folder / SETTINGS} has {shown} for use_rslora; expected true or false.")
    rank, alpha = (_number(folder, name, settings.get(name)) for name in ("r", "lora_alpha"))
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank), settings["r"]


def _number(folder: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not SCALES[0] <= value <= SCALES[1]:
        raise ValueError(f"{folder / SETTINGS} has {value!r:.60} for {name}; expected a number above 0.")
    return float(value)


def _peft_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    return f"{IN_PEFT}{hugging_face_name(stem)}.lora_{kind[-1].upper()}.weight"


def _from_peft_name(name: str) -> str:
    stem = kit_name(name.removeprefix(IN_PEFT))
    for kind in ("A", "B"):
        stem = stem.replace(f".lora_{kind}.weight", f".lora_{kind.lower()}")
    return stem
