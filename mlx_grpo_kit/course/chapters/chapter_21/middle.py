"""A Qwen3 that is large enough to measure its memory, and small enough to wait for: 2.1 million parameters.

Its parts are functions of arrays only, so that you can differentiate, checkpoint and compile them one by one.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_17.parts import checkpointed_hidden_states
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import Qwen3Config, forward, init_params
from mlx_grpo_kit.qwen3.params import param_shapes
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Problem

CONFIG = Qwen3Config(
    vocab_size=4096,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    tie_word_embeddings=True,
)
NAMES = [
    [name for name in param_shapes(CONFIG) if name.startswith(f"layers.{layer}.")]
    for layer in range(CONFIG.num_hidden_layers)
]


def new_params(seed: int = 0) -> dict[str, mx.array]:
    """Random initial weights."""
    return init_params(CONFIG, seed=seed)


def batch(rows: int, length: int, seed: int = 0) -> tuple[mx.array, mx.array]:
    """(input tokens, next tokens), [rows, length] each, of random tokens."""
    ids = mx.array(np.random.default_rng(seed).integers(0, CONFIG.vocab_size, (rows, length + 1)))
    inputs, targets = ids[:, :-1], ids[:, 1:]
    mx.eval(inputs, targets)
    return inputs, targets


def token_losses(
    params: dict[str, mx.array], ids: mx.array, targets: mx.array, checkpointing: bool = False
) -> mx.array:
    """The surprise of each token, [rows, length]."""
    states = checkpointed_hidden_states if checkpointing else forward.qwen3_hidden_states
    return _surprise(states(CONFIG, params, ids), forward.output_weight(CONFIG, params), targets)


def mean_loss(params: dict[str, mx.array], ids: mx.array, targets: mx.array, checkpointing: bool = False) -> mx.array:
    """The mean surprise of all tokens."""
    return token_losses(params, ids, targets, checkpointing).mean()


def _surprise(hidden: mx.array, weight: mx.array, targets: mx.array) -> mx.array:
    logits = (hidden @ weight.T).astype(mx.float32)
    return mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


def weights_of_blocks(params: dict[str, mx.array]) -> list[list[mx.array]]:
    """The arrays of each block, always in the same order."""
    return [[params[name] for name in names] for names in NAMES]


def block(x: mx.array, *weights: mx.array) -> mx.array:
    """One transformer block, [rows, length, hidden] -> the same shape. All blocks compute the same function."""
    mask = forward.visible(x.shape[1], x.shape[1], 0)
    return forward.transformer_block(CONFIG, dict(zip(NAMES[0], weights, strict=True)), 0, x, mask)


def end(params: dict[str, mx.array], x: mx.array, targets: mx.array) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
    """The end of the model after the last block: (mean loss, gradient of x, gradients of the parameters there)."""

    def loss_fn(x, norm, table):
        return _surprise(forward.rms_norm(x, norm, CONFIG.rms_norm_eps), table, targets).mean()

    names = ["final_norm.weight", "embedding.weight"]
    loss, (grad, *grads) = mx.value_and_grad(loss_fn, (0, 1, 2))(x, *[params[name] for name in names])
    mx.eval(loss, grad, grads)
    return loss, grad, dict(zip(names, grads, strict=True))


def joined(
    ids: mx.array, grad: mx.array, of_blocks: Sequence[Sequence[mx.array]], at_the_end: dict[str, mx.array]
) -> dict[str, mx.array]:
    """All gradients by name: of the blocks, of the end of the model, and of the embedding of each input token."""
    grads = {
        name: value for names, own in zip(NAMES, of_blocks, strict=True) for name, value in zip(names, own, strict=True)
    }
    table = at_the_end["embedding.weight"].at[ids].add(grad)
    return grads | at_the_end | {"embedding.weight": table}


class _AnyTask:
    """A task with completions of maximum length and different rewards."""

    name = "any"

    def __init__(self, max_completion_length: int):
        self.max_completion_length = max_completion_length
        self.reward_funcs = [self.reward]

    def reward(self, problems, completions):
        return [float(place % 3) for place in range(len(completions))]

    def sample(self, rng, n):
        return self.held_out(n)

    def held_out(self, n):
        return [Problem(str(number), "") for number in range(n)]

    def is_correct(self, problem, completion):
        return False


def measured_step(args: GRPOConfig, prompt_length: int, completion_length: int) -> int:
    """The peak of MLX's bytes in one step of `GRPOTrainer`, in addition to those held before."""
    gc.collect()
    before = mx.get_active_memory()
    tokenizer = SimpleNamespace(
        vocab_size=CONFIG.vocab_size,
        eos_token_ids=[],
        encode_prompt=lambda text, **settings: [1 + int(text)] * prompt_length,
        decode=str,
        read=lambda *ids: "",
    )
    trainer = GRPOTrainer(CONFIG, new_params(), tokenizer, _AnyTask(completion_length), args)
    gc.collect()
    mx.reset_peak_memory()
    next(trainer.train(1))
    return mx.get_peak_memory() - before
