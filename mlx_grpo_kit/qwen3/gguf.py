"""A GGUF as a Hugging Face folder: configuration, weights, tokenizer, chat template, model card.

llama.cpp's names and layouts on the one side, Hugging Face's on the other; gguf_file.py reads the format itself. What
this file does not know in a GGUF raises an error that names it: a model that loads computes what it was trained for.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors

from mlx_grpo_kit.files import sha256_of
from mlx_grpo_kit.qwen3.config import FAMILIES, Llama3Scaling, Qwen3Config, RopeScaling, YarnScaling
from mlx_grpo_kit.qwen3.gguf_file import GGUF
from mlx_grpo_kit.qwen3.params import check_finite, param_shapes
from mlx_grpo_kit.qwen3.pretrained import save_pretrained
from mlx_grpo_kit.qwen3.rope_scaling import rope_wavelengths
from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer
from mlx_grpo_kit.runtime import mx

# The kit's names of parameters and llama.cpp's, without the layer and without ".weight" or ".bias".
NAMES = {
    "embedding": "token_embd",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "final_norm": "output_norm",
    "lm_head": "output",
}

# Settings of an architecture that change nothing here, and others with the only value that the forward pass has.
WITHOUT_EFFECT = ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")
ONLY_VALUES = {"expert_count": 0, "expert_used_count": 0, "attention.sliding_window": 0, "attention.causal": True}

ROPE_FACTORS = "rope_freqs.weight"
LLAMA_3_ROPE = (1.0, 4.0, 8192)
"""Llama 3's low_freq_factor, high_freq_factor and original_max_position_embeddings, the same in all its releases."""

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # tokenizer.ggml.token_type

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(numbers: str) -> list[pre_tokenizers.PreTokenizer]:
    pattern = Regex(_WORDS + numbers + _REST)
    split = pre_tokenizers.Split(pattern, behavior="isolated", invert=False)
    return [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


PRE_TOKENIZERS = {
    "smollm": lambda: [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "qwen2": lambda: _split(r"\p{N}"),
    "deepseek-r1-qwen": lambda: _split(r"\p{N}"),
    "llama-bpe": lambda: _split(r"\p{N}{1,3}"),
}
"""Where a text is cut before byte pairs are merged, by `tokenizer.ggml.pre`: a GGUF only names its pre-tokenizer."""


def import_gguf(
    file: str | os.PathLike,
    output: str | os.PathLike,
    dtype: mx.Dtype = mx.float32,
    documents: Mapping[str, bytes] | None = None,
) -> Path:
    """Convert a GGUF of a Qwen3, a Qwen2 or a Llama to a Hugging Face folder. Returns the folder's path.

    The tensors may have type F32, F16, BF16, Q8_0, Q4_0 or Q4_1, and the tokenizer must be a byte-level BPE. The folder
    is one that transformers, mlx-lm and `load_pretrained` read, with the same logits and tokens.

    Args:
        file: the GGUF, little-endian and in one part.
        output: the folder to write; it appears complete or not at all.
        dtype: of the weights; float32 keeps every type's numbers, bfloat16 and float16 need half of the memory.
        documents: more files for the folder, such as its LICENSE.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a GGUF, it is damaged, or it has something that cannot be converted. The message
            names the file and the tensor or the setting.
        FileExistsError: `output` contains anything that the kit did not write.
        OSError: `output` cannot be written.
    """
    gguf = GGUF(file)
    try:
        config = read_config(gguf)
        params = _read_params(gguf, config, dtype)
        check_finite(params)
        with TemporaryDirectory(prefix="mlx_grpo_kit.") as scratch:
            _write_tokenizer(Path(scratch), gguf.metadata, config)
            tokenizer = load_tokenizer(scratch)
    except ValueError as error:
        raise ValueError(f"{gguf.path} cannot be converted. {error}") from error
    card = _model_card(gguf, config, str(dtype).rpartition(".")[2])
    documents = {"README.md": card.encode(), **(documents or {})}
    return save_pretrained(output, config, params, tokenizer=tokenizer, documents=documents)


def read_config(gguf: GGUF) -> Qwen3Config:
    """The configuration in a GGUF's metadata.

    Raises ValueError for another architecture, a missing number, or a setting that the forward pass does not know.
    """
    metadata = gguf.metadata
    architecture = metadata.get("general.architecture")
    if metadata.get("general.type", "model") != "model":
        raise ValueError(f"Its general.type is {metadata['general.type']!r}; expected 'model'.")
    if architecture not in list(FAMILIES):
        raise ValueError(
            f"Its general.architecture is {architecture!r}; expected {', '.join(map(repr, FAMILIES))}, the dense "
            "models of these families."
        )
    settings = {
        name.removeprefix(f"{architecture}."): value
        for name, value in metadata.items()
        if name.startswith(f"{architecture}.")
    }

    def take(name: str, default: Any = None) -> Any:
        value = settings.pop(name, default)
        if value is None:
            raise ValueError(f"It lacks {architecture}.{name}.")
        if isinstance(value, list):
            raise ValueError(f"Its {architecture}.{name} differs by layer; expected one number for all layers.")
        return value

    hidden, heads = take("embedding_length"), take("attention.head_count")
    if not (isinstance(heads, int) and heads > 0 and isinstance(hidden, int)):
        raise ValueError(f"Its {architecture}.attention.head_count is {heads!r}; expected a positive whole number.")
    head_dim = take("attention.key_length", hidden // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if take(name, head_dim) != head_dim:
            raise ValueError(
                f"Its {architecture}.{name} differs from the {head_dim} of its keys; expected the same number."
            )
    context = take("context_length")
    if "token_embd.weight" not in gguf.tensors:
        raise ValueError("It lacks tensor 'token_embd.weight'. A file with only a vocabulary is not a model.")
    config = Qwen3Config(
        model_type=architecture,
        vocab_size=gguf.tensors["token_embd.weight"].shape[0],
        hidden_size=hidden,
        intermediate_size=take("feed_forward_length"),
        num_hidden_layers=take("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=take("attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=take("attention.layer_norm_rms_epsilon"),
        rope_theta=take("rope.freq_base", 10_000.0),
        max_position_embeddings=context,
        tie_word_embeddings="output.weight" not in gguf.tensors,
        rope_scaling=_yarn(settings, context),
    )
    if ROPE_FACTORS in gguf.tensors:
        if config.rope_scaling is not None:
            raise ValueError(f"It has both {ROPE_FACTORS} and {architecture}.rope.scaling.type; expected one of them.")
        config = _with_rope_factors(config, gguf.read(ROPE_FACTORS))
    for name, value in settings.items():
        if name not in WITHOUT_EFFECT and not (name in ONLY_VALUES and value == ONLY_VALUES[name]):
            expected = f"expected {ONLY_VALUES[name]}" if name in ONLY_VALUES else "this forward pass does not know it"
            raise ValueError(f"Its {architecture}.{name} is {value!r:.80}; {expected}.")
    return config


def _yarn(settings: dict[str, Any], context: int) -> RopeScaling | None:
    """The scaling of rotary embeddings among an architecture's settings, which are removed there."""
    kind, prefix = settings.pop("rope.scaling.type", None), "rope.scaling."
    if kind == "yarn":
        names = {
            "factor": "factor",
            "original_context_length": "original_max_position_embeddings",
            "yarn_beta_fast": "beta_fast",
            "yarn_beta_slow": "beta_slow",
        }
        found = {ours: settings.pop(prefix + name) for name, ours in names.items() if prefix + name in settings}
        if "factor" not in found:
            raise ValueError("Its rotary embeddings are scaled by YaRN without a rope.scaling.factor.")
        return YarnScaling(**{"original_max_position_embeddings": context} | found)
    if kind not in (None, "none", "linear"):
        raise ValueError(f"Its rotary embeddings are scaled by {kind!r:.80}; expected 'none' or 'yarn'.")
    # llama.cpp takes a factor without a type for linear scaling.
    for name in ("rope.scaling.factor", "rope.scale_linear"):
        if (factor := settings.pop(name, 1.0)) not in (0.0, 1.0) and kind != "none":
            raise ValueError(
                f"Its rotary embeddings are scaled linearly ({name} {factor}); expected none, YaRN or {ROPE_FACTORS}."
            )
    settings.pop("rope.scaling.original_context_length", None)
    return None


def _with_rope_factors(config: Qwen3Config, factors: np.ndarray) -> Qwen3Config:
    """The configuration with the scaling that made these factors, one per pair of numbers in a head."""
    scaling = Llama3Scaling(float(factors.max(initial=1.0)), *LLAMA_3_ROPE)
    low, high, length = LLAMA_3_ROPE
    speeds = config.rope_theta ** (-2 * np.arange(config.head_dim // 2) / config.head_dim)
    expected = speeds * rope_wavelengths(scaling, config.head_dim, config.rope_theta)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ValueError(
            f"Its tensor {ROPE_FACTORS!r} does not have Llama 3's factors for rotary embeddings (low_freq_factor {low},"
            f" high_freq_factor {high}, {length} positions)."
        )
    return config if scaling.factor == 1 else replace(config, rope_scaling=scaling)


def _read_params(gguf: GGUF, config: Qwen3Config, dtype: mx.Dtype) -> dict[str, mx.array]:
    """The parameters under the kit's names. Names and shapes are checked before the first is read."""
    shapes = param_shapes(config)
    names = {name: _name_in_gguf(name) for name in shapes}
    if unknown := sorted(gguf.tensors.keys() - {*names.values(), ROPE_FACTORS}):
        raise ValueError(f"Its tensor {unknown[0]!r:.80} has no place in a {config.model_type} model.")
    for name, theirs in names.items():
        if theirs not in gguf.tensors:
            raise ValueError(f"It lacks tensor {theirs!r}.")
        if (shape := gguf.tensors[theirs].shape) != shapes[name]:
            raise ValueError(f"Its tensor {theirs!r} has shape {shape}; its settings expect {shapes[name]}.")
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    params = {}
    for name, theirs in names.items():
        value, part = gguf.read(theirs), name.split(".")[-2]
        if config.model_type == "llama" and part in heads:
            # llama.cpp rotates neighbours, Hugging Face the halves of a head: [heads, pairs, 2] -> [heads, 2, pairs]
            value = value.reshape(heads[part], -1, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
        params[name] = mx.array(value).astype(dtype)
        mx.eval(params[name])  # so that only one is there in float32 too
    return params


def _name_in_gguf(name: str) -> str:
    *layer, part, kind = re.fullmatch(r"(?:layers\.(\d+)\.)?(.+)\.(weight|bias)", name).groups()
    block = f"blk.{layer[0]}." if layer[0] else ""
    return f"{block}{NAMES[part]}.{kind}"


def _write_tokenizer(folder: Path, metadata: Mapping[str, Any], config: Qwen3Config) -> None:
    """Write tokenizer.json, tokenizer_config.json, generation_config.json and chat_template.jinja."""
    ggml = {
        name.removeprefix("tokenizer.ggml."): value
        for name, value in metadata.items()
        if name.startswith("tokenizer.ggml.")
    }
    if missing := [name for name in ("model", "tokens", "merges", "eos_token_id") if name not in ggml]:
        raise ValueError(f"It lacks tokenizer.ggml.{missing[0]}.")
    for name, kind in (("tokens", str), ("merges", str), ("token_type", int)):
        values = ggml.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise ValueError(f"Its tokenizer.ggml.{name} is {values!r:.80}; expected a list of {kind.__name__}.")
    if ggml["model"] != "gpt2":
        kind = " (SentencePiece)" if ggml["model"] == "llama" else ""
        raise ValueError(f"Its tokenizer.ggml.model is {ggml['model']!r:.80}{kind}; expected 'gpt2', a byte-level BPE.")
    tokens, types = ggml["tokens"], ggml.get("token_type", [1] * len(ggml["tokens"]))
    if not 0 < len(tokens) <= config.vocab_size or len(types) != len(tokens):
        raise ValueError(
            f"It has {len(tokens):,} tokens with {len(types):,} types, and an embedding of {config.vocab_size:,} rows."
        )
    _tokenizer(ggml, tokens, types).save(str(folder / "tokenizer.json"))

    ends = {name: ggml[f"{name}_token_id"] for name in ("bos", "eos", "eot", "eom") if f"{name}_token_id" in ggml}
    ends["pad"] = ggml.get("padding_token_id", ends["eos"])
    for name, token_id in ends.items():
        if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
            raise ValueError(f"Its {name} token has id {token_id!r:.80}; expected 0 to {len(tokens) - 1}.")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config.max_position_embeddings,
        **{f"{name}_token": tokens[ends[name]] for name in ("bos", "eos", "pad") if name in ends},
    }
    eos = list(dict.fromkeys(ends[name] for name in ("eos", "eot", "eom") if name in ends))
    generation = {
        **{f"{name}_token_id": ends[name] for name in ("bos", "pad") if name in ends},
        "eos_token_id": eos if len(eos) > 1 else eos[0],
    }
    for name, content in (("tokenizer_config.json", settings), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if (template := metadata.get("tokenizer.chat_template")) is not None:
        if not isinstance(template, str):
            raise ValueError(f"Its tokenizer.chat_template is {template!r:.80}; expected a text.")
        (folder / "chat_template.jinja").write_bytes(template.encode())


def _tokenizer(ggml: Mapping[str, Any], tokens: list[str], types: list[int]) -> tokenizers.Tokenizer:
    """The tokenizer in the settings `tokenizer.ggml.*`."""
    pre = ggml.get("pre")
    if pre not in list(PRE_TOKENIZERS):
        raise ValueError(
            f"Its tokenizer.ggml.pre is {pre!r:.80}; expected {', '.join(map(repr, PRE_TOKENIZERS))}. Without the "
            "right one, texts would become other tokens than in training: take the tokenizer of the model's own folder."
        )
    # Rows of the embedding that no token uses have a placeholder each.
    is_used = [types[i] != UNUSED or text != f"[PAD{i}]" for i, text in enumerate(tokens)]
    vocabulary = {text: i for i, text in enumerate(tokens) if is_used[i]}
    if len(vocabulary) < sum(is_used):
        twice = next(text for text, count in Counter(tokens).items() if count > 1)
        raise ValueError(f"It has the token {twice!r:.80} twice; expected distinct tokens.")
    merges = [tuple(merge.split(" ")) for merge in ggml["merges"]]
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= vocabulary.keys():
            raise ValueError(f"Its merge {' '.join(merge)!r:.80} does not join two of its tokens to a third.")
    bpe = tokenizers.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe")
    tokenizer = tokenizers.Tokenizer(bpe)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(PRE_TOKENIZERS[pre]())
    tokenizer.decoder = decoders.ByteLevel()
    added = [i for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_tokens([AddedToken(tokens[i], normalized=False, special=types[i] == CONTROL) for i in added])
    whole: list[processors.PostProcessor] = [processors.ByteLevel(trim_offsets=False)]
    adds = {"bos": ggml.get("add_bos_token", pre == "llama-bpe"), "eos": ggml.get("add_eos_token", False)}
    ids = {name: ggml[f"{name}_token_id"] for name in adds if adds[name] and f"{name}_token_id" in ggml}
    if ids:
        first, last = ([tokens[ids[name]]] if name in ids else [] for name in ("bos", "eos"))
        one, other = [*first, "$A", *last], [*first, "$B", *last]
        special = [(tokens[each], each) for each in ids.values()]
        pair = [*one, *(f"{each}:1" for each in other)]
        whole.append(processors.TemplateProcessing(single=one, pair=pair, special_tokens=special))
    tokenizer.post_processor = processors.Sequence(whole)
    return tokenizer


def _model_card(gguf: GGUF, config: Qwen3Config, dtype: str) -> str:
    """The text of README.md: what the folder is, what it was made from, and under which licence."""
    described = {
        name: " ".join(str(gguf.metadata[f"general.{name}"]).split())
        for name in (
            *("name", "organization", "author", "license", "license.name", "license.link", "url", "repo_url"),
            *("source.url", "source.repo_url"),
        )
        if gguf.metadata.get(f"general.{name}")
    }
    licence = described.get("license", "")
    head = f"---\nlicense: {licence}\n---\n" if re.fullmatch(r"[\w.+-]+", licence) else ""
    kinds = Counter(tensor.kind.name for tensor in gguf.tensors.values())
    lines = [
        f"# {described.pop('name', gguf.path.stem)}",
        "",
        f"A {config.model_type} model, converted from `{gguf.path.name}` by mlx_grpo_kit: its numbers in {dtype}.",
        "",
        f"- SHA-256 of the GGUF: {sha256_of(gguf.path)}",
        f"- types in the GGUF: {', '.join(f'{name} ({count} tensors)' for name, count in kinds.most_common())}",
        *(f"- {name}: {value}" for name, value in described.items()),
    ]
    if not licence:
        lines.append("- license: the GGUF names none; see where you got it from")
    return head + "\n".join(lines) + "\n"
