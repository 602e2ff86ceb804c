"""Exercises of notebook 12: assembling, counting, loading, comparing and inspecting a Qwen3, and its relatives."""

import functools
import json
from dataclasses import replace

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_12.patients import CAUSES, DIAGNOSIS
from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.qwen3.config import FAMILIES
from mlx_grpo_kit.qwen3.forward import attention, mlp, rms_norm, visible
from mlx_grpo_kit.qwen3.params import param_shapes
from mlx_grpo_kit.runtime import mx


def _config(vocab, hidden, intermediate, layers, heads, key_heads, head_dim, tied):
    return Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-3,
        rope_theta=100.0,
        tie_word_embeddings=tied,
    )


CONFIGS = {
    "one small layer": _config(10, 4, 6, 1, 2, 1, 2, True),
    "two layers": _config(11, 12, 20, 2, 4, 2, 6, True),
    "three layers, untied": _config(9, 10, 14, 3, 6, 2, 4, False),
    "two layers, one head, untied": _config(7, 8, 5, 2, 1, 1, 6, False),
}
CONFIGS |= {f"a {name}": replace(CONFIGS["three layers, untied"], model_type=name) for name in FAMILIES}


@functools.cache
def _numbers(name):
    """Unusual parameters for a configuration: norms are not 1, matrices are not tiny."""
    rng = np.random.default_rng(len(name))
    return {
        each: (rng.normal(size=shape) * 0.4 + (len(shape) == 1)).astype(np.float32)
        for each, shape in param_shapes(CONFIGS[name]).items()
    }


def _params(name):
    """The same parameters as new MLX arrays each time, because an answer may overwrite them."""
    return {each: mx.array(array) for each, array in _numbers(name).items()}


# -- counting ---------------------------------------------------------------------------------------------------------


def count_parameters(config):
    """The number of parameters of a Qwen3 with this configuration."""
    hidden, head_dim = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    attention = 2 * hidden * queries + 2 * hidden * keys + 2 * head_dim
    mlp = 3 * hidden * config.intermediate_size
    norms = 2 * hidden
    matrices = 1 if config.tie_word_embeddings else 2
    ends = matrices * config.vocab_size * hidden + hidden
    return config.num_hidden_layers * (attention + mlp + norms) + ends


def _whole(function, *arguments):
    result = function(*arguments)
    if isinstance(result, (float, np.floating)) and float(result).is_integer():
        return Told(f"{result:.0f} as a float (a count is a whole number)")
    return result


COUNT = Exercise(
    "12.1",
    "How many numbers?",
    "Write `count_parameters(config)`: the number of parameters of a Qwen3, computed from `config.vocab_size`, "
    "`hidden_size`, `intermediate_size`, `num_hidden_layers`, `num_attention_heads`, `num_key_value_heads`, "
    "`head_dim` and `tie_word_embeddings`. A tied output layer is the embedding itself and has no parameters of its "
    "own. Try your function on the small model above before you check it.",
    minutes=10,
    difficulty=2,
    solution=count_parameters,
    hints=(
        "Go through the table above row by row: a matrix `[a, b]` has `a * b` numbers. A layer has eleven rows: seven "
        "matrices and four norms. Outside the layers are the embedding, the final norm and, if the embeddings are not "
        "tied, `lm_head`.",
        "Queries have `num_attention_heads * head_dim` rows, keys and values `num_key_value_heads * head_dim` each, "
        "and `o_proj` has as many columns as `q_proj` has rows. `head_dim` is an independent number.",
        "A layer: `2 * hidden * queries + 2 * hidden * keys + 2 * head_dim + 3 * hidden * intermediate + 2 * hidden`. "
        "Then the layers, the embedding once or twice, and `hidden` for the final norm.",
    ),
    cases=(
        (CONFIGS["one small layer"],),
        (CONFIGS["two layers"],),
        (CONFIGS["three layers, untied"],),
        (CONFIGS["two layers, one head, untied"],),
        *((Qwen3Config.from_name(name),) for name in ("0.6B", "8B")),
    ),
    mistakes=slips(
        count_parameters,
        r"""
@ matrices = 1 if config.tie_word_embeddings else 2
always tied
+ matrices = 1
! If the output layer is not tied, it is a separate matrix, as large as the embedding.
never tied
+ matrices = 2
! A tied output layer is the embedding: the same numbers, counted once.

head_dim from the hidden size (2)
- hidden, head_dim = config.hidden_size, config.head_dim
+ hidden, head_dim = config.hidden_size, config.hidden_size // config.num_attention_heads
! You used the hidden size divided by the number of heads as `head_dim`. In Qwen3 it is an independent number: 0.6B has
! 16 heads of 128 with a hidden size of 1024.
keys as queries (2)
- queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
+ queries, keys = config.num_attention_heads * head_dim, config.num_attention_heads * head_dim
! Keys and values have fewer heads than queries: `num_key_value_heads`.

@ attention = 2 * hidden * queries + 2 * hidden * keys + 2 * head_dim
square projections (2)
+ attention = 2 * hidden * hidden + 2 * hidden * keys + 2 * head_dim
! `q_proj` and `o_proj` need not be square: one side is the hidden size, the other `num_attention_heads * head_dim`.
no norms of heads
+ attention = 2 * hidden * queries + 2 * hidden * keys
! `q_norm` and `k_norm` are missing: they have `head_dim` numbers each, shared by all heads.
norms for each head
+ attention = 2 * hidden * queries + 2 * hidden * keys + queries + keys
! `q_norm` and `k_norm` have `head_dim` numbers each, and all heads share them.
biases
+ attention = 2 * hidden * queries + 2 * hidden * keys + 2 * head_dim + queries + 2 * keys
! Queries, keys and values have no biases in Qwen3: count only what the table lists.

no final norm
- ends = matrices * config.vocab_size * hidden + hidden
+ ends = matrices * config.vocab_size * hidden
! The final norm is missing: it has `hidden_size` numbers.
one norm in a layer
- norms = 2 * hidden
+ norms = 1 * hidden
! A layer has two norms of the stream, not one.

@ return config.num_hidden_layers * (attention + mlp + norms) + ends
no norms in the layers
+ return config.num_hidden_layers * (attention + mlp) + ends
! The two norms of each layer are missing.
one layer
+ return (attention + mlp + norms) + ends
! That is right for a single layer. There are `num_hidden_layers` layers.

two matrices in the mlp
- mlp = 3 * hidden * config.intermediate_size
+ mlp = 2 * hidden * config.intermediate_size
! The MLP has three matrices: gate, up and down.
""",
    ),
    run=_whole,
    explain="Qwen3-0.6B has 596,049,920 parameters, and a quarter of them are the embedding. The kit's own function "
    "for this is `count_total_parameters`.",
    also_right=r"""
from mlx_grpo_kit.qwen3.sizes import parameters_by_part

# count with a loop
def count_with_a_loop(config):
    h, d = config.hidden_size, config.head_dim
    total = np.int64(0)
    for _ in range(config.num_hidden_layers):
        for heads in (config.num_attention_heads, config.num_key_value_heads) * 2:
            total += h * heads * d
        total += d + d + h + h + sum([h * config.intermediate_size] * 3)
    total += config.vocab_size * h + h
    return total if config.tie_word_embeddings else total + config.vocab_size * h
# the kit's
lambda config: sum(parameters_by_part(config).values())
""",
    also_wrong=r"""
# a float
lambda config: float(count_parameters(config))
! 176 as a float (a count is a whole number)
# one too few
lambda config: count_parameters(config) - 1
# a NumPy float
lambda config: np.float32(count_parameters(config))
! 176 as a float
""",
)


# -- names ------------------------------------------------------------------------------------------------------------


def kit_name(name):
    """The kit's name for the parameter that Hugging Face calls `name`."""
    name = name.removeprefix("model.")
    if name == "norm.weight":
        return "final_norm.weight"
    return name.replace("embed_tokens.", "embedding.")


NAMES = Exercise(
    "12.2",
    "Two names for everything",
    "Write `kit_name(name)`: translate a name in the file to the kit's name, as in the table above. A name that the "
    "table lacks, such as `model.layers.0.self_attn.q_proj.bias` in a relative of Qwen3, loses only its `model.`.",
    minutes=5,
    difficulty=1,
    solution=kit_name,
    hints=(
        'First remove "model." from the front: `name.removeprefix("model.")` leaves other names unchanged.',
        "Then two names still differ: `embed_tokens.weight` and `norm.weight`. Compare the second with the *whole* "
        "name, because `input_layernorm.weight` and `q_norm.weight` end with `norm.weight` too.",
    ),
    cases=(
        ("model.embed_tokens.weight",),
        ("model.norm.weight",),
        ("lm_head.weight",),
        ("model.layers.0.input_layernorm.weight",),
        ("model.layers.0.self_attn.q_norm.weight",),
        ("model.layers.1.self_attn.o_proj.weight",),
        ("model.layers.11.post_attention_layernorm.weight",),
        ("model.layers.27.mlp.gate_proj.weight",),
        ("model.layers.3.self_attn.k_proj.bias",),
    ),
    mistakes=slips(
        kit_name,
        r"""
every norm is final (2)
- if name == "norm.weight":
-     return "final_norm.weight"
- return name.replace("embed_tokens.", "embedding.")
+ return name.replace("embed_tokens.", "embedding.").replace("norm.", "final_norm.")
! Other names end with `norm.` too: the names in the layers stay as they are.
the final norm forgotten (2)
- if name == "norm.weight":
-     return "final_norm.weight"
! The norm after the last layer is `final_norm` in the kit.
the embedding forgotten (2)
- return name.replace("embed_tokens.", "embedding.")
+ return name
! `embed_tokens` is `embedding` in the kit.

@ name = name.removeprefix("model.")
six characters cut
+ name = name[6:]
! `lm_head.weight` has no "model." in front, so nothing may be cut from it.
letters stripped
+ name = name.lstrip("model.")
! `lstrip("model.")` removes *any* of these letters, in any order, until it meets another one: it took two from
! `embed_tokens`. `removeprefix` removes the whole word.
the prefix stays
+ name = name
! The kit has no "model." in front.
""",
    ),
    also_right=r"""
import re

# name by pattern
def name_by_pattern(name):
    return re.sub(r"^(model\.)?(embed_tokens|norm)?", lambda m: {"embed_tokens": "embedding", "norm": "final_norm"}
                  .get(m[2], ""), name)  # fmt: skip
""",
    also_wrong=r"""
# the first part cut off
lambda name: name.split(".", 1)[1]
# a name in front
lambda name: "kit." + name
""",
)


# -- the file ---------------------------------------------------------------------------------------------------------


def read_safetensors(content):
    """Every array in the bytes of a safetensors file: {name: float32 NumPy array}."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        start, end = (8 + length + place for place in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            upper_half = np.frombuffer(content[start:end], "<u2")
            numbers = (upper_half.astype(np.uint32) << 16).view(np.float32)
        else:
            numbers = np.frombuffer(content[start:end], "<f4")
        arrays[name] = numbers.reshape(entry["shape"])
    return arrays


class File(bytes):
    """The bytes of a file, with a short repr for messages."""

    def __repr__(self):
        return f"<the bytes of a file of {len(self)}>"


def _file(arrays, order=None, metadata=None, spaces=0):
    """A safetensors file of {name: (dtype, array)} whose header has a different order from its numbers."""
    header, data = {}, b""
    for name, (dtype, array) in arrays.items():
        array = np.asarray(array, "<f4")
        raw = array.tobytes() if dtype == "F32" else (array.view("<u4") >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header = {name: header[name] for name in order or header}
    text = json.dumps(({"__metadata__": metadata} if metadata else {}) | header).encode() + b" " * spaces
    return File(len(text).to_bytes(8, "little") + text + data)


def _float32_arrays(function, *arguments):
    result = function(*arguments)
    for name, array in result.items() if isinstance(result, dict) else ():
        if not isinstance(array, (np.ndarray, np.generic)):
            return Told(f"a {type(array).__name__} for {name!r} (it should be a NumPy array)")
        if array.dtype != np.float32:
            return Told(f"an array of {array.dtype} for {name!r} (expected float32)")
    return result


READ = Exercise(
    "12.3",
    "Read the file yourself",
    "Write `read_safetensors(content)`. `content` is the `bytes` of a file; the result is a dictionary with a float32 "
    "NumPy array for each name. The layout is the one above: 8 bytes with the length of the header, the header, the "
    'numbers. Two dtypes occur, `"F32"` and `"BF16"`. NumPy has no bfloat16, but you do not need it: a bfloat16 is the '
    "upper half, 16 of 32 bits, of a float32 whose lower half is 0.",
    minutes=15,
    difficulty=3,
    solution=read_safetensors,
    hints=(
        '`int.from_bytes(content[:8], "little")` is the length of the header, and `json.loads(content[8 : 8 + '
        'length])` is the header. Its entry "__metadata__", if there is one, is not an array.',
        "The offsets count from the *end of the header*: add `8 + length`. `np.frombuffer(content[start:end], "
        "np.float32).reshape(shape)` gives the numbers of an F32 array.",
        "For BF16 read the numbers as `np.uint16`, convert them to `np.uint32`, shift them to the upper half with `<< "
        "16`, and reinterpret the same bits as float32: `.view(np.float32)`.",
    ),
    cases=(
        (_file({"a": ("F32", [[1.5, -2.0, 0.25]]), "b": ("F32", [7.0, 8.0])}),),
        (
            _file(
                {"z": ("F32", np.arange(6.0).reshape(2, 3)), "a": ("F32", [-1.0]), "m": ("BF16", [[1.0], [-0.15625]])},
                order=["a", "m", "z"],
                metadata={"format": "pt"},
                spaces=7,
            ),
        ),
        (_file({"scalar": ("F32", 3.25), "half": ("BF16", [3.140625, -1e30, 0.0])}),),
        # Headers whose lengths do not fit into one byte and into two bytes, with names of real files.
        (_file({"model.norm.weight": ("F32", [0.5, 2.0]), "lm_head.weight": ("F32", [[1.0, 4.0]])}, spaces=600),),
        (_file({"model.embed_tokens.weight": ("BF16", [[2.0, -1.0]])}, spaces=70_000),),
        *drawn(
            1,
            lambda rng: (
                _file({"w": ("F32", rng.normal(size=(3, 2, 2))), "v": ("BF16", rng.normal(size=(5, 2)))}, ["v", "w"]),
            ),
        ),
    ),
    mistakes=slips(
        read_safetensors,
        r"""
@ start, end = (8 + length + place for place in entry["data_offsets"])
offsets from the start of the file (2)
+ start, end = (place for place in entry["data_offsets"])
! The offsets count from the end of the header, where the numbers begin.
eight bytes off (2)
+ start, end = (length + place for place in entry["data_offsets"])
! You are 8 bytes too early: before the header there are the 8 bytes of its length.

one array after the other (2)
- arrays = {}
+ arrays, end = {}, 8 + length
- start, end = (8 + length + place for place in entry["data_offsets"])
+ start, end = (end, end + {'F32': 4, 'BF16': 2}[entry['dtype']] * int(np.prod(entry['shape'])))
! The header need not list the arrays in the order of their numbers: use each one's `data_offsets`.

@ arrays[name] = numbers.reshape(entry["shape"])
flat (2)
+ arrays[name] = numbers
! The numbers are right, but flat: reshape them.
on its side (2)
+ arrays[name] = numbers.reshape(entry["shape"][::-1]).T
! The numbers of the last axis are next to each other in the file: reshape to the shape as it is.
names of the kit
+ arrays[kit_name(name)] = numbers.reshape(entry["shape"])
! Keep the names as they are in the file: the translation of 12.2 comes after reading.

float16 (3)
- upper_half = np.frombuffer(content[start:end], "<u2")
- numbers = (upper_half.astype(np.uint32) << 16).view(np.float32)
+ upper_half = np.frombuffer(content[start:end], "<f2")
+ numbers = upper_half.astype(np.float32)
! float16 and bfloat16 both have 16 bits, but divide them differently (5 and 8 of them for the exponent).

@ numbers = (upper_half.astype(np.uint32) << 16).view(np.float32)
the lower half (3)
+ numbers = (upper_half.astype(np.uint32)).view(np.float32)
! The 16 bits landed in the lower half of the float32: shift them up.
converted bits (3)
+ numbers = (upper_half.astype(np.uint32) << 16).astype(np.float32)
! `astype` converts the *integer* that the bits spell into a float; `.view(np.float32)` keeps the bits.

metadata read as an array
- header.pop("__metadata__", None)
! "__metadata__" is not an array: leave it out.

@ length = int.from_bytes(content[:8], "little")
one byte of eight
+ length = int.from_bytes(content[:1], "little")
! The header was cut off. Its length takes 8 bytes: one byte holds at most 255.
two bytes of eight
+ length = int.from_bytes(content[:2], "little")
! A long header was cut off. Its length takes 8 bytes: two bytes hold at most 65,535.
big end first
+ length = int.from_bytes(content[:8], "big")
! Numbers were read as header text. The first 8 bytes give the length of the header, with the lowest byte first
! (little-endian).
""",
    ),
    run=_float32_arrays,
    also_right=r"""
import safetensors.torch
import struct

# read with struct
def read_with_struct(content):
    (length,) = struct.unpack("<Q", content[:8])
    data = memoryview(content)[8 + length :]
    arrays = {}
    for name, entry in json.loads(bytes(content[8 : 8 + length]).decode()).items():
        if name == "__metadata__":
            continue
        raw = bytes(data[slice(*entry["data_offsets"])])
        if entry["dtype"] == "BF16":
            raw = b"".join(b"\0\0" + raw[place : place + 2] for place in range(0, len(raw), 2))
        numbers = struct.unpack(f"<{len(raw) // 4}f", raw)
        arrays[name] = np.array(numbers, np.float32).reshape(entry["shape"])
    return arrays
# read with the library
lambda content: {name: each.float().numpy() for name, each in safetensors.torch.load(bytes(content)).items()}
""",
    also_wrong=r"""
# pops
lambda content: {name: array.astype(np.float64) for name, array in read_safetensors(content).items()}
! an array of float64 for 'a' (expected float32)
# lists
lambda content: {name: array.tolist() for name, array in read_safetensors(content).items()}
! a list for 'a'
""",
)


# -- block and model --------------------------------------------------------------------------------------------------


def transformer_block(config, params, layer, x, mask):
    """One layer of Qwen3, pre-norm: the stream [B, T, hidden] -> [B, T, hidden]."""
    at = f"layers.{layer}."
    normed = rms_norm(x, params[at + "input_layernorm.weight"], config.rms_norm_eps)
    x = x + attention(config, params, at + "self_attn.", normed, mask)
    normed = rms_norm(x, params[at + "post_attention_layernorm.weight"], config.rms_norm_eps)
    gate, up, down = (params[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return x + mlp(normed, gate, up, down)


def _in_block(function, name, layer, stream, padding=()):
    """Run the block on parameters of one of the configurations above, with a causal mask that hides padding.

    `padding` is the number of padded positions in each row; the results there do not matter.
    """
    x = mx.array(np.asarray(stream, np.float32))
    rows, tokens = x.shape[:2]
    real = mx.array(np.arange(tokens) >= np.array(padding or [0] * rows)[:, None])
    mask = visible(tokens, tokens, 0, real if padding else None)
    result = function(CONFIGS[name], _params(name), layer, x, mask)
    is_padded = padding and getattr(result, "shape", None) == x.shape
    return mx.where(real[..., None], mx.array(result), 0) if is_padded else result


def _stream(rng, batch, tokens, hidden):
    return 3 * rng.normal(size=(batch, tokens, hidden))


BLOCK = Exercise(
    "12.4",
    "One layer",
    "Write `transformer_block(config, params, layer, x, mask)` from `rms_norm`, `attention` and `mlp`. `params` has "
    "the kit's names, `layer` is a number from 0, `config.rms_norm_eps` is the eps of the norms. Write `x = x + ...`; "
    "in MLX `x += ...` changes the caller's array.",
    minutes=10,
    difficulty=2,
    solution=transformer_block,
    hints=(
        "Both halves have the same form: norm, then attention or MLP, then *add* to the stream. Add to `x` itself, "
        "not to its norm.",
        '`attention(config, params, f"layers.{layer}.self_attn.", normed, mask)` finds its own weights; the MLP '
        "needs you to pass its three weights, `layers.0.mlp.gate_proj.weight` and so on, in the order gate, up, down.",
        "`x = x + attention(...norm of x...)`, then `return x + mlp(...norm of the new x...)`. The norms are "
        "`input_layernorm` and `post_attention_layernorm`.",
    ),
    cases=(
        *drawn(1, lambda rng: ("two layers", 0, _stream(rng, 2, 5, 12))),
        *drawn(1, lambda rng: ("two layers", 1, _stream(rng, 1, 4, 12)), seed=1),
        *drawn(1, lambda rng: ("three layers, untied", 2, _stream(rng, 3, 1, 10)), seed=2),
        *drawn(1, lambda rng: ("two layers, one head, untied", 0, _stream(rng, 1, 6, 8)), seed=3),
        *drawn(1, lambda rng: ("two layers", 1, _stream(rng, 2, 5, 12), (0, 2)), seed=4),
    ),
    mistakes=slips(
        transformer_block,
        r"""
@ x = x + attention(config, params, at + "self_attn.", normed, mask)
a mask of its own (2)
+ x = x + attention(config, params, at + "self_attn.", normed, visible(x.shape[1], x.shape[1], 0))
! `mask` is not used. The caller decides which positions may be seen: in a batch some rows begin with padding.
no residual around attention
+ x = attention(config, params, at + "self_attn.", normed, mask)
! Attention's result has to be added to the stream; here it replaced it.
no first norm (3)
+ x = x + attention(config, params, at + "self_attn.", x, mask)
! Attention has to read the normalized stream.
a prefix without its dot (2)
+ x = x + attention(config, params, at + "self_attn", normed, mask)
! The prefix ends with a dot: `attention` puts "q_proj.weight" directly after it.

post-norm
- normed = rms_norm(x, params[at + "input_layernorm.weight"], config.rms_norm_eps)
- x = x + attention(config, params, at + "self_attn.", normed, mask)
- normed = rms_norm(x, params[at + "post_attention_layernorm.weight"], config.rms_norm_eps)
+ x = x + attention(config, params, at + "self_attn.", x, mask)
+ x = rms_norm(x, params[at + "input_layernorm.weight"], config.rms_norm_eps)
- return x + mlp(normed, gate, up, down)
+ return rms_norm(x + mlp(x, gate, up, down), params[at + "post_attention_layernorm.weight"], config.rms_norm_eps)
! That is post-norm: the norm comes after the sum. Here it comes before attention and before the MLP, and the stream
! itself is never normalized.
the norm replaces the stream
- normed = rms_norm(x, params[at + "input_layernorm.weight"], config.rms_norm_eps)
+ normed = x = rms_norm(x, params[at + "input_layernorm.weight"], config.rms_norm_eps)
- normed = rms_norm(x, params[at + "post_attention_layernorm.weight"], config.rms_norm_eps)
+ normed = x = rms_norm(x, params[at + "post_attention_layernorm.weight"], config.rms_norm_eps)
! The norm has replaced the stream. Add to `x` as it was.

@ return x + mlp(normed, gate, up, down)
no residual around the mlp
+ return mlp(normed, gate, up, down)
! The MLP's result has to be added to the stream; here it replaced it.
no second norm (3)
+ return x + mlp(x, gate, up, down)
! The MLP reads the normalized stream too. Its norm is `post_attention_layernorm`.

side by side (3)
- x = x + attention(config, params, at + "self_attn.", normed, mask)
+ y = attention(config, params, at + "self_attn.", normed, mask)
- return x + mlp(normed, gate, up, down)
+ return x + y + mlp(normed, gate, up, down)
! The MLP should read the stream *after* attention has added to it. Here the two run in parallel (some models are built
! like that, but Qwen3 is not).
one norm for both (3)
- normed = rms_norm(x, params[at + "post_attention_layernorm.weight"], config.rms_norm_eps)
+ normed = rms_norm(x, params[at + "input_layernorm.weight"], config.rms_norm_eps)
! The second norm has its own weights, `post_attention_layernorm`.
the old norm in the mlp (3)
- normed = rms_norm(x, params[at + "post_attention_layernorm.weight"], config.rms_norm_eps)
! The MLP got the norm from before attention. It needs the norm of the new `x`.
always the first layer (2)
- at = f"layers.{layer}."
+ at = f"layers.0."
! Every layer has its own weights.
norms swapped (3)
  at = f"layers.{layer}."
+ normed = rms_norm(x, params[at + "post_attention_layernorm.weight"], config.rms_norm_eps)
+ x = x + attention(config, params, at + "self_attn.", normed, mask)
- x = x + attention(config, params, at + "self_attn.", normed, mask)
- normed = rms_norm(x, params[at + "post_attention_layernorm.weight"], config.rms_norm_eps)
! The weights of the two norms are swapped: `input_layernorm` comes before attention, `post_attention_layernorm` after
! it, before the MLP.
the old stream at the end (3)
- x = x + attention(config, params, at + "self_attn.", normed, mask)
+ before, x = x, x + attention(config, params, at + "self_attn.", normed, mask)
- return x + mlp(normed, gate, up, down)
+ return before + mlp(normed, gate, up, down)
! The output of attention is lost: add the MLP's result to the stream that includes it.
a fixed eps
- normed = rms_norm(x, params[at + "input_layernorm.weight"], config.rms_norm_eps)
+ normed = rms_norm(x, params[at + "input_layernorm.weight"], 1e-6)
- normed = rms_norm(x, params[at + "post_attention_layernorm.weight"], config.rms_norm_eps)
+ normed = rms_norm(x, params[at + "post_attention_layernorm.weight"], 1e-6)
! This is nearly right: the norms need `config.rms_norm_eps`, which is not the same in every model.
gate and up swapped (2)
- gate, up, down = (params[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
+ gate, up, down = (params[f"{at}mlp.{name}_proj.weight"] for name in ("up", "gate", "down"))
! `mlp` takes its weights in the order gate, up, down.
""",
    ),
    run=_in_block,
    also_right=r"""
# block by hand
def block_by_hand(config, params, layer, x, mask):
    def norm(x, name):
        scale = mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + config.rms_norm_eps)
        return x * scale * params[f"layers.{layer}.{name}.weight"]

    weight = {name: params[f"layers.{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")}
    attended = attention(config, params, f"layers.{layer}.self_attn.", norm(x, "input_layernorm"), mask)
    x = mx.add(attended, x)
    h = norm(x, "post_attention_layernorm")
    gate = h @ weight["gate"].T
    return x + mx.einsum("btf,hf->bth", gate * mx.sigmoid(gate) * (h @ weight["up"].T), weight["down"])
# in NumPy
lambda *given: np.array(transformer_block(*given))
""",
    also_wrong=r"""
# adds in place
- x = x + attention(config, params, at + "self_attn.", normed, mask)
+ x += attention(config, params, at + "self_attn.", normed, mask)
! the right result, but also new numbers in what it was given
# nothing
lambda config, params, layer, x, mask: x
""",
)


def qwen3(config, params, input_ids):
    """Logits of the next token after every position: int [B, T] -> [B, T, V]."""
    x = params["embedding.weight"][input_ids]
    mask = visible(input_ids.shape[1], input_ids.shape[1], 0)
    for layer in range(config.num_hidden_layers):
        x = transformer_block(config, params, layer, x, mask)
    x = rms_norm(x, params["final_norm.weight"], config.rms_norm_eps)
    output = params["embedding.weight" if config.tie_word_embeddings else "lm_head.weight"]
    return x @ output.T


def _of_ids(function, name, ids):
    return function(CONFIGS[name], _params(name), mx.array(ids))


MODEL = Exercise(
    "12.5",
    "The whole model",
    "Write `qwen3(config, params, input_ids)`: it takes whole numbers [B, T] and returns logits [B, T, V]. Use the "
    "rows of the embedding, `config.num_hidden_layers` blocks, the final norm and the output layer. `visible(T, T, "
    "0)` is the mask, the same for every layer.",
    minutes=10,
    difficulty=2,
    solution=qwen3,
    hints=(
        '`params["embedding.weight"][input_ids]` picks a row for each id: [B, T, hidden].',
        "Loop over the layers with your `transformer_block`. After the last layer comes one more norm, "
        "`final_norm.weight`.",
        'The output layer is `params["lm_head.weight"]`, or the embedding if `config.tie_word_embeddings`: `x @ W.T`.',
    ),
    cases=(
        ("two layers", [[1, 2, 3, 2], [10, 0, 0, 5]]),
        ("three layers, untied", [[4, 8, 1]]),
        ("two layers, one head, untied", [[6], [0], [3]]),
        ("one small layer", [[9, 9, 9, 1, 2, 3, 4]]),
        ("two layers", [[7, 7, 0, 9], [1, 4, 6, 3]]),
    ),
    mistakes=slips(
        qwen3,
        r"""
no final norm (2)
- x = rms_norm(x, params["final_norm.weight"], config.rms_norm_eps)
! Between the last layer and the output layer there is a norm, `final_norm`.

@ output = params["embedding.weight" if config.tie_word_embeddings else "lm_head.weight"]
always tied (3)
+ output = params["embedding.weight"]
! The output layer is the embedding only if `config.tie_word_embeddings`; otherwise it is `lm_head.weight`.
never tied (3)
+ output = params["lm_head.weight"]
! A tied model has no `lm_head.weight`: the embedding is its output layer.

always the first layer (2)
- x = transformer_block(config, params, layer, x, mask)
+ x = transformer_block(config, params, 0, x, mask)
! Each round of the loop should use the next layer.
one layer (2)
- for layer in range(config.num_hidden_layers):
+ for layer in range(1):
! Only the first layer was computed; there are `config.num_hidden_layers`.
each layer reads the embedding (2)
  mask = visible(input_ids.shape[1], input_ids.shape[1], 0)
+ start = x
- x = transformer_block(config, params, layer, x, mask)
+ x = transformer_block(config, params, layer, start, mask)
! Every layer reads the result of the layer before it, not the embedding.

@ mask = visible(input_ids.shape[1], input_ids.shape[1], 0)
the future is visible
+ mask = mx.ones((1, 1, *[input_ids.shape[1]] * 2))
! A position sees later positions. The mask is `visible(T, T, 0)`.
the mask of a cache
+ mask = visible(input_ids.shape[1], input_ids.shape[1], 1)
! With an offset of 1 every position sees its successor, exactly the token that it should predict. The first token is at
! position 0: `visible(T, T, 0)`.

@ return x @ output.T
probabilities (3)
+ return mx.softmax(x @ output.T, axis=-1)
! These are probabilities. Return the logits before the softmax; the caller applies it.
the last position alone (3)
+ return (x @ output.T)[:, -1]
! Return logits for every position, not only for the last: training needs them all.
""",
    ),
    run=_of_ids,
    also_right=r"""
from mlx_grpo_kit.qwen3 import qwen3_forward

# the kit's
qwen3_forward
# one row at a time
lambda config, params, input_ids: mx.concatenate([qwen3_forward(config, params, row[None]) for row in input_ids])
""",
    also_wrong=r"""
from mlx_grpo_kit.qwen3 import qwen3_forward

# changes params
def changes_params(config, params, input_ids):
    logits = qwen3(config, params, input_ids)
    mx.eval(logits)
    params["embedding.weight"] *= 0
    return logits
! the right result, but also new numbers in what it was given
# in float16
lambda *given: qwen3_forward(*given).astype(mx.float16)
# 0
lambda *given: qwen3_forward(*given).tolist() and 0
""",
)


# -- comparing --------------------------------------------------------------------------------------------------------


def first_difference(ours, theirs, tolerance=1e-4):
    """The first name in `ours` whose array differs from that in `theirs`, or None."""
    for name, value in ours.items():
        if name not in theirs:
            continue
        largest = np.abs(theirs[name]).max()
        difference = np.abs(value - theirs[name]).max()
        if not difference <= tolerance * largest:
            return name
    return None


_A, _B = np.array([[1.0, -2.0], [0.5, 4.0]]), np.array([100.0, -300.0, 1000.0])


def _records(**changes):
    ours = {"embedding": _A, "scores": _A.T, "weights": _B, "logits": 3 * _A}
    theirs = {"weights": _B, "logits": 3 * _A, "embedding": _A}
    return {name: np.array(changes.get(name, value)) for name, value in ours.items()}, theirs


FIRST = Exercise(
    "12.6",
    "Where does it begin?",
    "Write `first_difference(ours, theirs, tolerance=1e-4)`. Both are dictionaries of NumPy arrays by name. `ours` is "
    "in the order of computation. `theirs` is in any order and may lack some names; skip these. Return the first name "
    "whose largest absolute difference is more than `tolerance` times the largest absolute number of that array in "
    "`theirs`, or `None` if there is no such name. A NaN where `theirs` has a number is a difference.",
    minutes=8,
    difficulty=2,
    solution=first_difference,
    hints=(
        "`for name, value in ours.items():` follows the order of computation. Use `continue` where `name not in "
        "theirs`.",
        "Compare `np.abs(value - theirs[name]).max()` with `tolerance * np.abs(theirs[name]).max()`. Return the name "
        "at the first difference that is too large, and `None` after the loop.",
        "Every comparison with NaN is False, so `difference > limit` never notices a NaN, but `not difference <= "
        "limit` does.",
    ),
    cases=(
        _records(),
        _records(logits=3 * _A + 0.01, weights=_B * 1.01),
        _records(weights=_B + 0.05),
        _records(logits=3 * _A + [[0.0, 0.0], [0.0, 0.002]]),
        _records(embedding=_A - 0.3),
        _records(weights=[100.0, np.nan, 1000.0]),
        _records(scores=_A + 5),
        _records(logits=3 * _A + 1, embedding=_A + 1),
        _records(weights=_B + 0.005),
        _records(weights=_B * [1, 1, 1.00005]),
        (*_records(weights=_B + 0.05), 1e-5),
        (*_records(embedding=_A + 0.3), 0.1),
        (*_records(embedding=3 * _A), 1.0),
        (_records()[0] | {"weights": -1.001 * _B}, _records()[1] | {"weights": -_B}, 0.002),
        (*({**each, "mask": np.zeros((2, 2))} for each in _records()),),
        _records(weights=_B + 0.11),  # the largest is 1000, and the range from lowest to highest is 1300
        (_records()[0] | {"small": _A / 100 + 3e-5}, _records()[1] | {"small": _A / 100}),
    ),
    mistakes=slips(
        first_difference,
        r"""
@ if not difference <= tolerance * largest:
an absolute tolerance (2)
+ if not difference <= tolerance:
! 0.05 in an array with numbers up to 1000 is rounding. Measure a difference against the largest number there.
blind to NaN (3)
+ if difference > tolerance * largest:
! A NaN was missed: `nan > limit` is False, like every comparison with NaN.
nothing and nothing differ (2)
+ if not difference < tolerance * largest:
! Two arrays of zeros are equal: a difference of 0 is not *more* than 0. (0 divided by 0 is NaN, no difference: multiply
! instead of dividing.)
a fixed tolerance (2)
+ if not difference <= 1e-4 * largest:
! `tolerance` may have a different value: use the argument.

@ for name, value in ours.items():
in the order of theirs
+ for name in theirs:
+     value = ours[name]
! The order of computation is that of `ours`; `theirs` may have any order.
the last difference
+ for name, value in reversed(ours.items()):
! That is the last difference. A mistake changes everything after it: only the first difference shows where it is.

only too large counts (2)
- difference = np.abs(value - theirs[name]).max()
+ difference = (value - theirs[name]).max()
! A number that is too small is a difference too: take the absolute value.

@ largest = np.abs(theirs[name]).max()
only positive numbers are large (2)
+ largest = np.abs(theirs[name]).min()
! Measure against the *largest* absolute number of the array.
measured against ours (2)
+ largest = np.abs(value).max()
! A number that is far too large makes its own tolerance large. Measure against what is right: `theirs`.
the largest without its sign (2)
+ largest = theirs[name].max()
! The number that is largest in size may be negative: take absolute values before the maximum.
measured against the range (2)
+ largest = np.ptp(theirs[name])
! That is the range from the lowest number to the highest. Measure against the *largest absolute* one.
small arrays measured against 1 (2)
+ largest = max(1.0, np.abs(theirs[name]).max())
! If all numbers are small, even a small difference counts: measure against the largest number of the array.

element by element (2)
- difference = np.abs(value - theirs[name]).max()
- if not difference <= tolerance * largest:
+ difference = (np.abs(value - theirs[name]) / np.abs(theirs[name])).max()
+ if not difference <= tolerance:
! Each difference was divided by its own number. Small numbers among large ones have the rounding errors of the large
! ones: divide by the largest number of the array.
a missing name is a difference
- continue
+ return name
! A name that `theirs` does not have cannot be compared: skip it.
""",
    ),
    also_right=r"""
# first with next
def first_with_next(ours, theirs, tolerance=1e-4):
    def is_apart(name):
        expected = theirs[name]
        return not np.allclose(ours[name], expected, rtol=0, atol=tolerance * np.max(np.abs(expected)))

    return next((name for name in ours if name in theirs and is_apart(name)), None)
""",
    also_wrong=r"""
# with a number
def with_a_number(ours, theirs, tolerance=1e-4):
    name = first_difference(ours, theirs, tolerance)
    return name and (name, 0.1)
! gave ('weights', 0.1), expected 'weights'
# forgets to skip
- if name not in theirs:
-     continue
! raised KeyError: 'scores'
""",
)


def _second_guess():
    """Yield a mistake for each patient and each wrong cause: an answer that is wrong for that patient only."""
    for position, right in enumerate(DIAGNOSIS):
        for letter in CAUSES:
            if letter != right:
                yield Mistake(
                    f"patient {position + 1} is {letter}",
                    DIAGNOSIS[:position] + letter + DIAGNOSIS[position + 1 :],
                    f"Four of the five are right. Look again at patient {position + 1}, whom you called {letter}: "
                    f"{CAUSES[letter]}.",
                    2,
                )


WARD = Exercise(
    "12.7",
    "Five models that are almost right",
    "Which mistake does each of the five models above have? Put the letters into a string, patient 1 first.",
    minutes=15,
    difficulty=3,
    solution=DIAGNOSIS,
    hints=(
        "The first name that differs shows the step with the mistake. Two causes show first in `q_rope`, two in "
        "`weights`: you can tell these apart by the tokens.",
        "At position 0 nothing is rotated, whichever numbers make a pair. Position 0 also has only one score, which "
        "gives a weight of 1, whatever it is divided by. The last position has no later tokens to look at.",
        "Only differences of positions matter to the scores. If positions count from 1, every query and key rotates a "
        "little more, but all scores stay the same. So that patient is different inside and still gives the right "
        "logits.",
    ),
    mistakes=tuple(_second_guess()),
    explain="One of the five is a mistake that no test of the logits can find, and that does no harm until a cache "
    "counts from 0.",
    also_right=r"""
# with spaces
"e c g f b"
# a list
list("ECGFB")
""",
    also_wrong=r"""
# all A
"AAAAA"
! 0 of the 5
# three letters
"ECG"
! is not a string of 5 letters
""",
)


# -- FLOPs and the lens -----------------------------------------------------------------------------------------------


def flops(config, batch, tokens):
    """Floating-point operations of the matrix products in a forward pass over [batch, tokens]."""
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    weights = 2 * config.hidden_size * (queries + keys) + 3 * config.hidden_size * config.intermediate_size
    scores_and_mixing = 2 * tokens * queries
    output = config.vocab_size * config.hidden_size
    return 2 * batch * tokens * (config.num_hidden_layers * (weights + scores_and_mixing) + output)


FLOPS = Exercise(
    "12.8",
    "How much work?",
    "Write `flops(config, batch, tokens)`: the operations of all matrix products in one forward pass. A product of "
    "[n, a] and [a, b] takes `2 * n * a * b`. Count the seven matrices of each layer, the scores and the mixing of "
    "values (every query with every key, including the masked half), and the output layer. The embedding is a lookup, "
    "not a product.",
    minutes=12,
    difficulty=2,
    solution=flops,
    hints=(
        "Every weight of a matrix is used once per token, with 2 operations. So this part is `2 * batch * tokens *` "
        "(weights of the matrices).",
        "Scores: for each head, [T, D] times [D, T] is `2 * T * T * D`. Mixing is [T, T] times [T, D], which takes "
        "the same number. There are `num_attention_heads` heads in each of `batch` rows and each layer.",
        "The output layer takes `2 * batch * tokens * vocab_size * hidden_size`, tied or not, because sharing "
        "parameters saves no work.",
    ),
    cases=(
        (CONFIGS["one small layer"], 1, 1),
        (CONFIGS["one small layer"], 1, 3),
        (CONFIGS["two layers"], 2, 5),
        (CONFIGS["three layers, untied"], 3, 7),
        (CONFIGS["two layers, one head, untied"], 1, 10),
        (Qwen3Config.from_name("0.6B"), 4, 1000),
    ),
    mistakes=slips(
        flops,
        r"""
@ return 2 * batch * tokens * (config.num_hidden_layers * (weights + scores_and_mixing) + output)
multiplications alone
+ return 1 * batch * tokens * (config.num_hidden_layers * (weights + scores_and_mixing) + output)
! That is half of it: each multiplication is followed by an addition, and both count.
no scores (2)
+ return 2 * batch * tokens * (config.num_hidden_layers * (weights) + output)
! The scores and the mixing of values are missing.
the output layer for the last token (3)
+ return 2 * batch * tokens * (config.num_hidden_layers * (weights + scores_and_mixing)) + 2 * batch * output
! The output layer reads *every* position, as your `qwen3` does.
no output layer (3)
+ return 2 * batch * tokens * (config.num_hidden_layers * (weights + scores_and_mixing))
! The output layer is missing: with few layers it is the largest part.
the output layer once for each layer (3)
+ return 2 * batch * tokens * (config.num_hidden_layers * (weights + scores_and_mixing + output))
! The output layer comes once, after all layers.

@ scores_and_mixing = 2 * tokens * queries
scores without mixing (2)
+ scores_and_mixing = tokens * queries
! There are two products without weights: queries with keys, and weights with values.
scores across rows (2)
+ scores_and_mixing = 2 * batch * tokens * queries
! A query sees the keys of its own row, not those of the other rows of the batch.
scores of the key heads (2)
+ scores_and_mixing = 2 * tokens * keys
! Every *query* head has its own scores; the heads of keys are shared, but not the work.
half the scores (2)
+ scores_and_mixing = (tokens + 1) * queries
! That leaves out the masked half. Dense kernels compute it and throw it away, and it is counted here.

as many key heads as query heads
- keys = config.num_key_value_heads * config.head_dim
+ keys = config.num_attention_heads * config.head_dim
! `k_proj` and `v_proj` are smaller than `q_proj`: they have `num_key_value_heads`.

@ output = config.vocab_size * config.hidden_size
no output layer where it is tied (3)
+ output = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
! A tied output layer shares its parameters with the embedding, but it is multiplied like any other matrix.
the embedding as a product (3)
+ output = 2 * config.vocab_size * config.hidden_size
! The embedding is a lookup, not a product.

two matrices in the mlp
- weights = 2 * config.hidden_size * (queries + keys) + 3 * config.hidden_size * config.intermediate_size
+ weights = 2 * config.hidden_size * (queries + keys) + 2 * config.hidden_size * config.intermediate_size
! The MLP has three matrices: gate, up and down.
""",
    ),
    run=_whole,
    explain=(
        "Except for long texts, this is about 2 operations per parameter and token. Training takes three times that, "
        "hence the rule of thumb 6ND for N parameters and D tokens."
    ),
    also_right=r"""
from mlx_grpo_kit.qwen3.sizes import forward_flops

# flops step by step
def flops_step_by_step(config, batch, tokens):
    def product(n, a, b):
        return 2 * n * a * b

    n, h = batch * tokens, config.hidden_size
    heads, keys, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    total = product(n, h, config.vocab_size)
    for _ in range(config.num_hidden_layers):
        total += product(n, h, heads * size) + 2 * product(n, h, keys * size) + product(n, heads * size, h)
        total += batch * heads * (product(tokens, size, tokens) + product(tokens, tokens, size))
        total += 2 * product(n, h, config.intermediate_size) + product(n, config.intermediate_size, h)
    return total
# the kit's
lambda config, batch, tokens: sum(forward_flops(config, batch, tokens).values())
""",
    also_wrong=r"""
# two and a half times
lambda *given: 2.5 * flops(*given)
""",
)


def logit_lens(config, params, stream):
    """Next-token probabilities if the model ended here: [..., hidden] -> [..., V]."""
    x = rms_norm(stream, params["final_norm.weight"], config.rms_norm_eps)
    output = params["embedding.weight" if config.tie_word_embeddings else "lm_head.weight"]
    return mx.softmax(x @ output.T, axis=-1)


def _lens(function, name, stream):
    """The lens on parameters of one of the configurations above; "sharp" has logits in the hundreds."""
    sharp, name = name == "sharp", "two layers, one head, untied" if name == "sharp" else name
    params = _params(name)
    if sharp:
        params["final_norm.weight"] = 300 * params["final_norm.weight"]
    return function(CONFIGS[name], params, mx.array(np.asarray(stream, np.float32)))


LENS = Exercise(
    "12.9",
    "The logit lens",
    "Write `logit_lens(config, params, stream)`: treat the stream [..., hidden] from *any* place in the model as if "
    "it came out of the last layer, and return the probability of every token, [..., V].",
    minutes=6,
    difficulty=1,
    solution=logit_lens,
    hints=(
        "What comes after the last layer? You wrote it at the end of 12.5.",
        "You need the final norm, the output layer (the embedding if the model is tied), and a softmax over the last "
        "axis.",
    ),
    cases=(
        *drawn(1, lambda rng: ("two layers", _stream(rng, 2, 3, 12))),
        *drawn(1, lambda rng: ("three layers, untied", _stream(rng, 1, 4, 10)), seed=4),
        *drawn(1, lambda rng: ("two layers, one head, untied", rng.normal(size=8)), seed=5),
        *drawn(1, lambda rng: ("sharp", rng.normal(size=(3, 8))), seed=6),
    ),
    mistakes=slips(
        logit_lens,
        r"""
@ x = rms_norm(stream, params["final_norm.weight"], config.rms_norm_eps)
no final norm (2)
+ x = stream
! The output layer learned to read the result of the final norm. Without it the stream has the wrong size.
the norm without its weights (2)
+ x = rms_norm(stream, mx.ones(config.hidden_size), config.rms_norm_eps)
! The final norm has weights: multiply by them.

@ return mx.softmax(x @ output.T, axis=-1)
logits (2)
+ return x @ output.T
! These are logits; return probabilities.
softmax over tokens (2)
+ return mx.softmax(x @ output.T, axis=0)
! The probabilities of one position add up to 1: softmax over the last axis.
logarithms (2)
+ return x @ output.T - mx.logsumexp(x @ output.T, axis=-1, keepdims=True)
! These are log-probabilities; return the probabilities themselves.
exponentials that overflow (2)
+ powers = mx.exp(x @ output.T)
+ return powers / powers.sum(axis=-1, keepdims=True)
! The exponential of a logit above 88 is infinite in float32. Subtract the largest logit of the row first, as
! `mx.softmax` does.

@ output = params["embedding.weight" if config.tie_word_embeddings else "lm_head.weight"]
always tied (2)
+ output = params["embedding.weight"]
! An untied model has a separate output layer, `lm_head.weight`.
never tied (2)
+ output = params["lm_head.weight"]
! A tied model has no `lm_head.weight`: the embedding is its output layer.
""",
    ),
    run=_lens,
    also_right=r"""
# lens by exponentials
def lens_by_exponentials(config, params, stream):
    x = mx.fast.rms_norm(stream, params["final_norm.weight"], config.rms_norm_eps)
    logits = x @ params.get("lm_head.weight", params["embedding.weight"]).T
    return mx.exp(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
# in NumPy
lambda *given: np.array(logit_lens(*given))
""",
    also_wrong=r"""
# backwards
lambda *given: logit_lens(*given)[..., ::-1]
""",
)


# -- relatives --------------------------------------------------------------------------------------------------------


def projected(config, params, prefix, x):
    """Queries, keys and values of one layer, before the rotation: three arrays [B, heads, T, D]."""

    def heads(letter, count):
        result = x @ params[f"{prefix}{letter}_proj.weight"].T
        if f"{prefix}{letter}_proj.bias" in params:
            result = result + params[f"{prefix}{letter}_proj.bias"]
        result = result.reshape(*x.shape[:2], count, config.head_dim).swapaxes(1, 2)
        if f"{prefix}{letter}_norm.weight" in params:
            result = rms_norm(result, params[f"{prefix}{letter}_norm.weight"], config.rms_norm_eps)
        return result

    shared = config.num_key_value_heads
    return heads("q", config.num_attention_heads), heads("k", shared), heads("v", shared)


BOTH = "a qwen3 with biases"


def _project(function, name, layer, stream):
    """Project with the parameters of a family; BOTH is a Qwen3 whose file has the biases of a Qwen2 too."""
    params = _params("a qwen2") | _params("a qwen3") if name == BOTH else _params(name)
    config = CONFIGS["a qwen3" if name == BOTH else name]
    return function(config, params, f"layers.{layer}.self_attn.", mx.array(np.asarray(stream, np.float32)))


PROJECTED = Exercise(
    "12.10",
    "A relative",
    "Write `projected(config, params, prefix, x)`: queries, keys and values of one layer for *all three* families, as "
    "a tuple of three arrays [B, heads, T, D], before the rotation. x is [B, T, hidden], and `prefix` is "
    '`"layers.0.self_attn."` for layer 0. `params` always has `prefix + "q_proj.weight"`, and the same for k and '
    "v. If `params` also has a bias, such as `q_proj.bias`, add it. If `params` has `q_norm.weight` or "
    "`k_norm.weight`, apply that norm to the D numbers of each head. A family is what its weights are, so ask whether "
    "a weight is there, not what `config.model_type` is.",
    minutes=12,
    difficulty=2,
    solution=projected,
    hints=(
        'You wrote most of it in 11.8. `if prefix + "q_proj.bias" in params:` asks whether a weight is there.',
        "The order is: product with the matrix, bias, cut into heads, norm. A bias has as many numbers as its matrix "
        "has rows, so it is added before the cut; a head norm has D weights, so it comes after the cut.",
        "One inner function does all three: `heads(letter, count)`, called with `q` and `config.num_attention_heads`, "
        "then with `k` and `v` and `config.num_key_value_heads`. No file contains a `v_norm.weight`, so you need no "
        "special case. `reshape(B, T, count, D).swapaxes(1, 2)` cuts into heads.",
    ),
    cases=(
        *drawn(1, lambda rng: ("a qwen2", 0, _stream(rng, 2, 3, 10))),
        *drawn(1, lambda rng: ("a llama", 1, _stream(rng, 1, 4, 10)), seed=1),
        *drawn(1, lambda rng: ("a qwen3", 2, _stream(rng, 2, 5, 10)), seed=2),
        *drawn(1, lambda rng: (BOTH, 1, _stream(rng, 3, 2, 10)), seed=3),
        *drawn(1, lambda rng: ("a qwen3", 0, rng.normal(size=(1, 1, 10)) / 30), seed=4),
    ),
    mistakes=slips(
        projected,
        r"""
bias forgotten
- if f"{prefix}{letter}_proj.bias" in params:
-     result = result + params[f"{prefix}{letter}_proj.bias"]
! A Qwen2 has biases on queries, keys and values. They are never added here.
every model has biases
- if f"{prefix}{letter}_proj.bias" in params:
-     result = result + params[f"{prefix}{letter}_proj.bias"]
+ result = result + params[f"{prefix}{letter}_proj.bias"]
! Only a Qwen2 has biases. Ask first whether the name is in `params`.

@ result = result + params[f"{prefix}{letter}_proj.bias"]
no bias on the values
+ result = result + params[f"{prefix}{letter}_proj.bias"] * (letter != "v")
! The values have a bias too, `v_proj.bias`.
bias subtracted
+ result = result - params[f"{prefix}{letter}_proj.bias"]
! A bias is added, not subtracted.

@ if f"{prefix}{letter}_norm.weight" in params:
norms forgotten
+ if False:
! A Qwen3 has a norm for the heads of queries and one for those of keys. They are never applied here.
a bias or a norm (2)
+ if f"{prefix}{letter}_norm.weight" in params and f"{prefix}{letter}_proj.bias" not in params:
! The model `a qwen3 with biases` has both. Ask for each weight separately.
the norm of a model without norms
+ if letter != "v":
! Only a Qwen3 has head norms. Ask first whether the name is in `params`.

by the name of the family
- if f"{prefix}{letter}_proj.bias" in params:
+ if config.model_type == "qwen2":
! You ask for the name of the family, and miss the biases of a Qwen3 that has some. Ask whether the weight is there.

a norm on the values (3)
- if f"{prefix}{letter}_norm.weight" in params:
-     result = rms_norm(result, params[f"{prefix}{letter}_norm.weight"], config.rms_norm_eps)
+ normed = letter.replace("v", "k")
+ if f"{prefix}{normed}_norm.weight" in params:
+     result = rms_norm(result, params[f"{prefix}{normed}_norm.weight"], config.rms_norm_eps)
! The values are normalized too. Only queries and keys have a head norm, because only they make scores.

@ result = rms_norm(result, params[f"{prefix}{letter}_norm.weight"], config.rms_norm_eps)
norms swapped (3)
+ other = {"q": "k", "k": "q"}[letter]
+ result = rms_norm(result, params[f"{prefix}{other}_norm.weight"], config.rms_norm_eps)
! The weights of `q_norm` and `k_norm` are swapped.
the norm without its weights (2)
+ result = rms_norm(result, mx.ones(config.head_dim), config.rms_norm_eps)
! A head norm has D weights: multiply by them.
a fixed eps (2)
+ result = rms_norm(result, params[f"{prefix}{letter}_norm.weight"], 1e-6)
! This is nearly right: the norms need `config.rms_norm_eps`, which is not the same in every model.

norm before the cut (2)
- result = result.reshape(*x.shape[:2], count, config.head_dim).swapaxes(1, 2)
- if f"{prefix}{letter}_norm.weight" in params:
-     result = rms_norm(result, params[f"{prefix}{letter}_norm.weight"], config.rms_norm_eps)
- return result
+ if f"{prefix}{letter}_norm.weight" in params:
+     result = rms_norm(result, params[f"{prefix}{letter}_norm.weight"], config.rms_norm_eps)
+ return result.reshape(*x.shape[:2], count, config.head_dim).swapaxes(1, 2)
or
- result = result.reshape(*x.shape[:2], count, config.head_dim).swapaxes(1, 2)
- if f"{prefix}{letter}_norm.weight" in params:
-     result = rms_norm(result, params[f"{prefix}{letter}_norm.weight"], config.rms_norm_eps)
- return result
+ if f"{prefix}{letter}_norm.weight" in params:
+     whole = mx.tile(params[f"{prefix}{letter}_norm.weight"], count)
+     result = rms_norm(result, whole, config.rms_norm_eps)
+ return result.reshape(*x.shape[:2], count, config.head_dim).swapaxes(1, 2)
! The norm saw the numbers of all heads at once. Each head of D numbers is normalized separately, after the cut.

bias after the norm (2)
- if f"{prefix}{letter}_proj.bias" in params:
-     result = result + params[f"{prefix}{letter}_proj.bias"]
- result = result.reshape(*x.shape[:2], count, config.head_dim).swapaxes(1, 2)
- if f"{prefix}{letter}_norm.weight" in params:
-     result = rms_norm(result, params[f"{prefix}{letter}_norm.weight"], config.rms_norm_eps)
- return result
+ result = result.reshape(*x.shape[:2], count, config.head_dim).swapaxes(1, 2)
+ if f"{prefix}{letter}_norm.weight" in params:
+     result = rms_norm(result, params[f"{prefix}{letter}_norm.weight"], config.rms_norm_eps)
+ if f"{prefix}{letter}_proj.bias" in params:
+     result = result + params[f"{prefix}{letter}_proj.bias"].reshape(count, 1, config.head_dim)
+ return result
! The bias belongs to the projection, so it is added before the norm.

@ result = result.reshape(*x.shape[:2], count, config.head_dim).swapaxes(1, 2)
tokens before heads (3)
+ result = result.reshape(*x.shape[:2], count, config.head_dim)
! The axes are [B, T, heads, D]; expected [B, heads, T, D].
tokens torn apart (3)
+ result = result.reshape(x.shape[0], count, x.shape[1], config.head_dim)
! The shape is right, but the numbers of a token ended up at several positions. Cut the last axis into [heads, D]
! first, and then swap the axes of tokens and heads.

@ return heads("q", config.num_attention_heads), heads("k", shared), heads("v", shared)
as many heads of keys as of queries (3)
+ return tuple(heads(letter, config.num_attention_heads) for letter in "qkv")
! Keys and values have fewer heads than queries: `config.num_key_value_heads`.
rotated already (2)
+ how = {"traditional": False, "base": config.rope_theta, "scale": 1.0, "offset": 0}
+ queries, keys = heads("q", config.num_attention_heads), heads("k", shared)
+ return *(mx.fast.rope(each, config.head_dim, **how) for each in (queries, keys)), heads("v", shared)
! Queries and keys are rotated already. Return them as they are before the rotation.
keys and values swapped (3)
+ return heads("q", config.num_attention_heads), heads("v", shared), heads("k", shared)
! The order is queries, keys, values.

always the first layer
- def heads(letter, count):
+ prefix = "layers.0.self_attn."
+ def heads(letter, count):
! Every layer has its own weights: use `prefix`.
""",
    ),
    run=_project,
    explain="So three families share one forward pass, here and in `mlx_grpo_kit/qwen3/forward.py`.",
    also_right=r"""
# step by step
def step_by_step(config, params, prefix, x):
    weights = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
    B, T, _ = x.shape
    q, k, v = (x @ weights[f"{name}_proj.weight"].T + weights.get(f"{name}_proj.bias", 0) for name in "qkv")
    q, k, v = (mx.transpose(each.reshape(B, T, -1, config.head_dim), (0, 2, 1, 3)) for each in (q, k, v))
    if "q_norm.weight" in weights:
        q = mx.fast.rms_norm(q, weights["q_norm.weight"], config.rms_norm_eps)
        k = mx.fast.rms_norm(k, weights["k_norm.weight"], config.rms_norm_eps)
    return [q, k, v]
# the kit's inner values
def by_watching(config, params, prefix, x):
    record, mask = {}, visible(x.shape[1], x.shape[1], 0)
    attention(config, params, prefix, x, mask, watch=record.setdefault)
    q, k = (record.get(f"{letter}_norm", record[f"{letter}_proj"]) for letter in "qk")
    return tuple(each.swapaxes(1, 2) for each in (q, k, record["v_proj"]))
# in NumPy, with one question for all biases
def in_numpy(config, params, prefix, x):
    weights = {name: np.array(value) for name, value in params.items()}
    x, results = np.array(x), []
    for letter in "qkv":
        each = x @ weights[f"{prefix}{letter}_proj.weight"].T
        if prefix + "q_proj.bias" in weights:
            each += weights[f"{prefix}{letter}_proj.bias"]
        each = np.stack(np.split(each, each.shape[-1] // config.head_dim, axis=-1), axis=1)
        if letter != "v" and prefix + "k_norm.weight" in weights:
            size = np.sqrt((each**2).mean(-1, keepdims=True) + config.rms_norm_eps)
            each = each / size * weights[f"{prefix}{letter}_norm.weight"]
        results.append(each)
    return tuple(results)
""",
    also_wrong=r"""
# only two
lambda *given: projected(*given)[:2]
# one array
lambda *given: mx.concatenate(projected(*given), axis=1)
# the keys repeated for every query head
def repeated(config, params, prefix, x):
    q, k, v = projected(config, params, prefix, x)
    return q, *(mx.repeat(each, q.shape[1] // k.shape[1], axis=1) for each in (k, v))
# changes a weight
def changes_weights(config, params, prefix, x):
    results = projected(config, params, prefix, x)
    mx.eval(results)
    params[prefix + "q_proj.weight"] += 1
    return results
! the right result, but also new numbers in what it was given
""",
)
