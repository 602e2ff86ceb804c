"""The Qwen3 of transformers and its inner values, under the kit's names; and small relatives of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import numpy as np
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # only a local folder is read
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3 import modeling_qwen3
from transformers.utils import logging


def hugging_face_model(folder: Path | str, numbers: bool = True) -> Qwen3ForCausalLM:
    """Load a folder with transformers in float32, with attention in steps that can be watched.

    Without `numbers` only config.json is read, and the model has shapes but no numbers.
    """
    if not numbers:
        with torch.device("meta"):
            return Qwen3ForCausalLM(Qwen3Config.from_pretrained(folder))
    logging.disable_progress_bar()  # the bar counts only 24 arrays, and is red in a notebook
    try:
        return Qwen3ForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    finally:
        logging.enable_progress_bar()


SIZES = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
OWN = {
    "qwen3": {},
    "qwen2": {"tie_word_embeddings": True},
    "llama": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}
"""Settings of each family beside SIZES: tied embeddings, or rotary embeddings stretched as in Llama 3.2."""


def save_relative(family: str, folder: Path | str, seed: int) -> PreTrainedModel:
    """Make a small model of a family with transformers, save it in a folder, and return it.

    All its numbers are random, even those of the norms, around 1, and of the biases, around 0.
    """
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **OWN[family])).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise + (parameter.mean() if parameter.ndim == 1 else 0))
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    finally:
        logging.enable_progress_bar()
    return model


def hugging_face_record(model: Qwen3ForCausalLM, input_ids: np.ndarray) -> dict[str, np.ndarray]:
    """Record every visible inner value of transformers for int [B, T], by the kit's name.

    Modules are watched by hooks, functions that torch calls with a module's input and output. The rotation is not a
    module, so its function is replaced by one that also records. Only the scores of attention cannot be recorded.
    """
    config, record, handles = model.config, {}, []
    turned: list[tuple[torch.Tensor, torch.Tensor]] = []

    def heads(value: torch.Tensor) -> torch.Tensor:
        return value.unflatten(-1, (-1, config.head_dim))

    def watch(module: torch.nn.Module, name: str, into: str = "", out: bool = True, shape=lambda value: value) -> None:
        def hook(_, inputs, output):
            if into:
                record[into] = inputs[0]
            if out:
                record[name] = shape(output)

        handles.append(module.register_forward_hook(hook))

    def turn(*arguments, **named):
        turned.append(rotate(*arguments, **named))
        return turned[-1]

    watch(model.model.embed_tokens, "embedding")
    for number, layer in enumerate(model.model.layers):
        at = f"layers.{number}"
        watch(layer.input_layernorm, f"{at}.input_layernorm")
        for name in ("q_proj", "k_proj", "v_proj"):
            watch(getattr(layer.self_attn, name), f"{at}.self_attn.{name}", shape=heads)
        for name in ("q_norm", "k_norm"):
            watch(getattr(layer.self_attn, name), f"{at}.self_attn.{name}")
        watch(layer.self_attn, f"{at}.self_attn.weights", shape=lambda output: output[1])
        mixed = f"{at}.self_attn.mixed"
        watch(layer.self_attn.o_proj, f"{at}.self_attn.o_proj", into=mixed)
        watch(layer.post_attention_layernorm, f"{at}.post_attention_layernorm", into=f"{at}.attended")
        watch(layer.mlp.gate_proj, f"{at}.mlp.gate_proj")
        watch(layer.mlp.up_proj, f"{at}.mlp.up_proj")
        watch(layer.mlp.down_proj, f"{at}.mlp.down_proj", into=f"{at}.mlp.gated")
        watch(layer, at)
    watch(model.model.norm, "final_norm")
    rotate = modeling_qwen3.apply_rotary_pos_emb
    try:
        with torch.no_grad(), mock.patch.object(modeling_qwen3, "apply_rotary_pos_emb", turn):
            output = model(torch.tensor(np.asarray(input_ids)), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    for number, (queries, keys) in enumerate(turned):
        at = f"layers.{number}.self_attn"
        record |= {f"{at}.q_rope": queries, f"{at}.k_rope": keys}
        record[f"{at}.mixed"] = heads(record[f"{at}.mixed"]).transpose(1, 2)
    record["logits"] = output.logits
    return {name: value.numpy().copy() for name, value in record.items()}


def differences_by_token(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute the largest difference at each of the T positions, for every name that both have, in the order of `ours`.

    A difference is a share of the largest absolute number that `theirs` has under that name.
    """
    shares = {}
    for name in [name for name in ours if name in theirs]:
        difference = np.abs(ours[name] - theirs[name]) / np.abs(theirs[name]).max()
        # The axis of positions follows the axis of heads if the heads were moved to the front, else the axis of rows.
        tokens = 2 if name.endswith(("_rope", ".weights", ".mixed")) else 1
        shares[name] = difference.max(axis=tuple(axis for axis in range(difference.ndim) if axis != tokens))
    return shares
