"""An estimate of the memory of a training run from its settings alone, before anything is loaded.

A step has three phases, each of which frees its temporary memory at its end:

    sampling    a key-value cache, and the logits of one token per completion
    learning    gradients, activations, and the output layer's log-probabilities
    updating    gradients, and the new values of some parameters in addition to the old ones

Parameters, the optimizer's moments and the reference policy take memory throughout. Their bytes are counted. The number
of values of a transformer block that MLX's CPU back end keeps alive at a time was measured once; the constants below
are the result.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from mlx_grpo_kit.generation.output_logps import WHOLE, columns_of_a_chunk
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.optimizer import GROUP_BYTES
from mlx_grpo_kit.grpo.processes import MESSAGE
from mlx_grpo_kit.qwen3.cache import kv_cache_bytes_per_position
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.kernels import UNPACKED
from mlx_grpo_kit.qwen3.lora import adapter_shapes
from mlx_grpo_kit.qwen3.params import param_shapes
from mlx_grpo_kit.runtime import mx

CACHE_BYTES = 2 * 2**30
"""The largest key-value cache if `completion_batch_size` is None.

It holds 34 completions of Qwen3-0.6B with 268 positions in float32.
"""

FLOAT32 = 4


def estimate_memory(
    config: Qwen3Config,
    args: GRPOConfig,
    prompt_length: int = 64,
    max_completion_length: int | None = None,
    processes: int = 1,
    quantization: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Estimate the peak of MLX's memory while `GRPOTrainer` trains, in bytes by part and in total. Nothing is computed.

    The estimate is within 15% of the memory that MLX's CPU back end measures (tests/grpo/test_memory.py), except for
    small models with gradient checkpointing, which were seen to take a third more. It is always an estimate for MLX:
    with another learner (`backend`), torch or JAX store their own parameters and other activations, which are not
    counted.

    Args:
        config: the model.
        args: the settings.
        prompt_length: tokens of the longest prompt.
        max_completion_length: the task's, used if `args` set none. None means 256 tokens, the kit's default for rows
            and chats (TRL's default is 512).
        processes: the number of processes that train together. The bytes are those of one process.
        quantization: the entry of this name in a quantized model's config.json: {"bits": 4, "group_size": 64}.

    Returns:
        "parameters", "optimizer" and "reference" take memory all the time; "KV cache" while sampling; "gradients"
        while learning and updating; "activations" and "log-probs" while learning; "update" while updating. "total" is
        the peak, which is less than their sum.
    """
    shapes = list(param_shapes(config).values())
    trained = list(adapter_shapes(config, args.lora_r, args.lora_targets).values()) if args.lora_r else shapes
    params = FLOAT32 * sum(map(prod, trained))
    largest = FLOAT32 * max(map(prod, trained))
    dtype = mx.bfloat16 if args.bf16 else mx.float32
    width = dtype.size
    copies = params * width // FLOAT32 if args.bf16 else 0
    frozen = _frozen(shapes, width, quantization) if args.lora_r else 0
    unpacked = 3 * width * min(UNPACKED, max(map(prod, shapes))) if quantization else 0
    length = args.max_completion_length or max_completion_length or 256

    own_rows = args.generation_batch_size // processes
    rows = min(args.per_device_train_batch_size, own_rows)
    prompts = -(-rows // args.num_generations)
    tokens = prompts * prompt_length + rows * (length - 1)

    parts = {"parameters": params + frozen, "optimizer": _moments(trained, args.optim)}
    parts["reference"] = params * width // FLOAT32 if args.beta and not frozen else 0
    always = sum(parts.values())

    sampled = min(own_rows, completion_batch_size(config, args, prompt_length + length, dtype))
    cache = sampled * (prompt_length + length) * kv_cache_bytes_per_position(config, dtype)
    parts["KV cache"] = cache
    # While the cache grows, its last layers exist twice, and sampling a token makes some copies of its logits.
    sampling = unpacked + copies + 2 * cache + 6 * FLOAT32 * sampled * config.vocab_size

    parts["gradients"] = params
    block, kept = _block_values(config, prompt_length + length)
    output = FLOAT32 * config.vocab_size * config.hidden_size
    columns = min(config.vocab_size, columns_of_a_chunk(rows * length, config.hidden_size))
    chunks = FLOAT32 * columns * (5 * rows * length + 3 * config.hidden_size)
    inputs = width * tokens * config.hidden_size * config.num_hidden_layers
    accumulates = args.gradient_accumulation_steps > 1
    if frozen:
        # No gradient has the output layer's size. Its input gradients take a few buffers with one row per token.
        logps = FLOAT32 * (
            columns * (7 * rows * length + 3 * config.hidden_size) + 4 * rows * length * config.hidden_size
        )
        # The input of a quantized map is not kept, because its weight has no gradient.
        kept_layers, block_values = inputs, block - (4 * config.intermediate_size if quantization else 0)
        if not args.gradient_checkpointing:
            # Adapters keep fewer activations of queries, because no gradient needs their inputs.
            queries = config.num_attention_heads * config.head_dim
            kept_layers = width * tokens * (kept - 2 * queries) * config.num_hidden_layers
            block_values = (block - 4 * queries) // 2
            table = rows * length * config.vocab_size
            logps = 4 * FLOAT32 * table + unpacked if table <= WHOLE else logps
        activations = kept_layers + width * tokens * block_values
        of_a_layer = 3 * width * min(UNPACKED, config.hidden_size * config.intermediate_size) if quantization else 0
        learning = copies + params + max(kept_layers + logps, activations + of_a_layer)
    elif args.gradient_checkpointing:
        activations = inputs + width * tokens * block
        cast = output * width // FLOAT32 if args.bf16 else 0
        logps = chunks
        first = (params if accumulates else output) + max(inputs + logps, activations)
        learning = cast + max(first, params + width * tokens * block)
    else:
        layers = width * tokens * kept * config.num_hidden_layers
        activations = layers + width * tokens * block // 2
        table = rows * length * config.vocab_size
        # The gradient of a large output layer comes in pieces that are concatenated, in addition to that of the
        # look-up.
        logps = 4 * output if table > WHOLE else 4 * FLOAT32 * table + 2 * output
        at_first = max(layers + logps, activations)
        learning = copies + (params + at_first if accumulates else max(at_first, params + largest))
    parts["activations"], parts["log-probs"] = activations, logps

    group = min(params, GROUP_BYTES)
    parts["update"] = 3 * group if args.optim == "adamw" else max(group, largest)
    message = 2 * max(min(params, FLOAT32 * MESSAGE), largest) if processes > 1 else 0
    updating = params + max(parts["update"], message)
    kept = params + parts["optimizer"] if args.num_iterations > 1 else 0  # the state that a failing step restores
    return parts | {"total": always + max(sampling, learning + kept, updating + kept)}


def completion_batch_size(config: Qwen3Config, args: GRPOConfig, num_positions: int, dtype: mx.Dtype) -> int:
    """The number of completions sampled at once: whole groups, because a prompt is computed once for its group."""
    size = args.completion_batch_size
    if size is None:
        size = CACHE_BYTES // (num_positions * kv_cache_bytes_per_position(config, dtype))
    return max(size // args.num_generations, 1) * args.num_generations


def machine_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or a container's limit if that is lower."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    words = limit.read_text().strip() if limit.is_file() else "max"
    return min(memory, int(words)) if words.isdigit() else memory


def in_bytes(number: int) -> str:
    """9540000000 -> "9.5 GB"."""
    value, unit = float(number), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if value < 10 and unit != "bytes" else f"{value:.0f} {unit}"


def _moments(shapes: list[tuple[int, ...]], optim: str) -> int:
    if optim == "adamw":
        return 2 * FLOAT32 * sum(map(prod, shapes))
    return FLOAT32 * sum(map(sum, shapes))  # a row and a column for each matrix


def _frozen(shapes: list[tuple[int, ...]], width: int, quantization: Mapping[str, Any] | None) -> int:
    """Bytes of a frozen model. A quantized number takes its bits, and its share of a scale and a bias."""
    bits = 8 * width
    if quantization is not None:
        bits = quantization["bits"] + 16 * width / quantization["group_size"]
    return sum(prod(shape) * (width if len(shape) == 1 else bits / 8) for shape in shapes).__ceil__()


def _block_values(config: Qwen3Config, positions: int) -> tuple[int, int]:
    """Numbers per token of a transformer block: those alive in its two passes, and those kept in between."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    scores = config.num_attention_heads * positions
    alive = 3 * hidden + queries + 12 * inner + 7 * scores // 2
    kept = 4 * hidden + 4 * queries + 3 * keys + 5 * inner + scores
    if config.family.head_norms:
        alive += 5 * queries
        kept += 2 * (queries + keys)
    return alive, kept
