"""Small models of each family, and GGUFs of them that the gguf package writes as llama.cpp's converter does."""

import json
from pathlib import Path

import gguf
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from mlx_grpo_kit.qwen3.gguf import NAMES

FAMILIES = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama"}
SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128)  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "The larger of 12345 and 67 is 12345.",
    "  two spaces\n\n\tand é, e\u0301, 日本語 😀 don't I'LL \r\n 1234567  ",
    "<|im_start|>user\nhi<|im_end|>\n<think>no</think>",
]


def trained_bpe():
    """(tokens, merges) of a byte-level BPE, as the gguf package takes them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text(), *TEXTS, "123 456 789 " * 50], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [" ".join(merge) for merge in model["merges"]]


TOKENS, MERGES = trained_bpe()
PADDED = [*TOKENS, "<think>", "</think>", *(f"[PAD{i}]" for i in range(len(TOKENS) + 2, 416))]
TOKEN_TYPES = [
    3 if token in SPECIAL else 4 if "think>" in token else 5 if token.startswith("[PAD") else 1 for token in PADDED
]


def make_reference(family, tied=True, **settings):
    torch.manual_seed(0)
    module = FAMILIES[family]
    settings = ({"head_dim": 32} if family == "qwen3" else {}) | settings
    config = getattr(transformers, f"{module}Config")(
        **SIZES, vocab_size=len(PADDED), tie_word_embeddings=tied, **settings
    )
    model = getattr(transformers, f"{module}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def write_gguf(path, model, kind=Type.F32, pre="qwen2", settings=None, tensors=None, leave_out=()):
    """Write transformers' `model` as llama.cpp's converter does. Its matrices get the numbers that `kind` can hold.

    `settings` (a name and its value) and `tensors` come in addition or instead; `leave_out` names both.
    """
    config = model.config
    family = config.model_type
    writer = gguf.GGUFWriter(path, family)
    theirs = {
        f"{family}.context_length": config.max_position_embeddings,
        f"{family}.embedding_length": config.hidden_size,
        f"{family}.feed_forward_length": config.intermediate_size,
        f"{family}.block_count": config.num_hidden_layers,
        f"{family}.attention.head_count": config.num_attention_heads,
        f"{family}.attention.head_count_kv": config.num_key_value_heads,
        f"{family}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{family}.rope.freq_base": config.rope_parameters["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": PADDED,
        "tokenizer.ggml.token_type": TOKEN_TYPES,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
        "general.name": "Small",
        "general.license": "apache-2.0",
    } | (settings or {})
    if family == "qwen3":
        theirs |= {"qwen3.attention.key_length": config.head_dim, "qwen3.attention.value_length": config.head_dim}
    for name, value in theirs.items():
        if name not in leave_out:
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            add.get(type(value), writer.add_array)(name, value)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            part = name.removeprefix("model.").replace("embed_tokens", "embedding")
            part = "final_norm.weight" if part == "norm.weight" else part
            layer = part.split(".")[1] if part.startswith("layers.") else None
            stem, end = part.removeprefix(f"layers.{layer}.").rsplit(".", 1)
            ours = f"{f'blk.{layer}.' if layer else ''}{NAMES[stem]}.{end}"
            value, used = parameter.numpy(), kind if parameter.ndim == 2 else Type.F32
            packed = gguf.quants.quantize(value, used)
            parameter.copy_(torch.tensor(gguf.quants.dequantize(packed, used).reshape(value.shape)))
            value = parameter.numpy().copy()
            if family == "llama" and NAMES[stem] in heads:
                n = heads[NAMES[stem]]
                value = value.reshape(n, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
                packed = gguf.quants.quantize(value, used)
            if ours not in leave_out:
                writer.add_tensor(ours, packed, raw_dtype=used)
    for name, (value, used) in (tensors or {}).items():
        writer.add_tensor(name, gguf.quants.quantize(value, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
