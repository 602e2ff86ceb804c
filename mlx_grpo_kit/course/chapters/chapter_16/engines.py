"""One gradient, every engine: the GRPO loss of a whole Qwen3, written once and differentiated by four autograds.

Chapter 02's `Value` holds one number, chapter 04's `Tensor` an array, and MLX and torch have engines of their own. All
of them can add, multiply, `@` and reshape; `Engine` lists what differs. So `policy_logps` and `loss_of` are written
once, and each engine records them in its own way. The scalar engine uses NumPy arrays whose elements are `Value`s:
NumPy then adds and multiplies `Value`s, and its `exp` and `log` call those of `Value`.

This works only for small models, because it makes a `Value` for each number that is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.grpo import compute_advantages, compute_loss_and_gradients
from mlx_grpo_kit.grpo.loss import GRPOLossConfig
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.scalar import Value

Arrays = Mapping[str, np.ndarray]
MASKED = -1e9  # added to a masked score, so that its exp is 0


# -- the forward pass and the loss ------------------------------------------------------------------------------------


def policy_logps(engine: Engine, config: Qwen3Config, params: Mapping[str, Any], batch: Batch) -> Any:
    """log pi(token) of each completion token, [B, T], where pi is the Qwen3 with these weights."""
    ops, eps = engine.ops, config.rms_norm_eps
    num_rows, length = batch.ids.shape

    def norm(x, weight):
        return x * ((x * x).sum(axis=-1, keepdims=True) / x.shape[-1] + eps) ** -0.5 * weight

    half = config.head_dim // 2
    angles = np.arange(length)[:, None] * config.rope_theta ** (-np.arange(half) / half)
    cos, sin = engine.constant(np.cos(angles)), engine.constant(np.sin(angles))

    def turn(x):  # RoPE: [B, heads, length, head_dim]
        first, second = x[..., :half], x[..., half:]
        return ops.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)

    later = engine.constant(MASKED * (1 - np.tri(length)))

    def attention(x, weights):
        def heads(name):
            return (x @ weights[name].T).reshape((num_rows, length, -1, config.head_dim))

        queries = turn(norm(heads("q_proj"), weights["q_norm"]).swapaxes(1, 2))
        keys = turn(norm(heads("k_proj"), weights["k_norm"]).swapaxes(1, 2))
        values = heads("v_proj").swapaxes(1, 2)
        # The query heads that share a head of keys become rows of one matrix product.
        folded = (num_rows, config.num_key_value_heads, -1)
        scores = queries.reshape((*folded, config.head_dim)) @ keys.swapaxes(2, 3) / math.sqrt(config.head_dim)
        powers = ops.exp(scores.reshape((num_rows, -1, length, length)) + later)
        shares = powers / powers.sum(axis=-1, keepdims=True)
        mixed = shares.reshape((*folded, length)) @ values
        mixed = mixed.reshape((num_rows, -1, length, config.head_dim)).swapaxes(1, 2)
        return mixed.reshape((num_rows, length, -1)) @ weights["o_proj"].T

    def mlp(x, weights):
        gate, up = x @ weights["gate_proj"].T, x @ weights["up_proj"].T
        return gate / (1 + ops.exp(-gate)) * up @ weights["down_proj"].T

    x = params["embedding.weight"][engine.constant(batch.ids)]
    for layer in range(config.num_hidden_layers):
        weights = {  # "layers.0.mlp.up_proj.weight" -> "up_proj"
            name.split(".")[-2]: value for name, value in params.items() if name.startswith(f"layers.{layer}.")
        }
        x = x + attention(norm(x, weights["input_layernorm"]), weights)
        x = x + mlp(norm(x, weights["post_attention_layernorm"]), weights)
    x = norm(x, params["final_norm.weight"])
    output = params["embedding.weight" if config.tie_word_embeddings else "lm_head.weight"]

    # The position before a token predicts it: the prompt's last position predicts the completion's first token.
    logits = x[:, batch.prompt_length - 1 : -1] @ output.T
    chosen = engine.constant(np.eye(config.vocab_size)[batch.ids[:, batch.prompt_length :]])
    return (logits * chosen).sum(axis=-1) - ops.log(ops.exp(logits).sum(axis=-1))


def loss_of(engine: Engine, logps: Any, batch: Batch) -> Any:
    """The GRPO loss, type "dapo": the mean over completion tokens of beta * KL - min(r A, clip(r) A)."""
    ops, mask = engine.ops, engine.constant(batch.mask.astype(np.float64))
    advantages = engine.constant(batch.advantages[:, None])
    # Masked before exp, so that a padded ratio is 1. A product is enough: the padding of this batch is finite.
    log_ratio = (logps - engine.constant(batch.old_logps)) * mask
    ratio = ops.exp(log_ratio)
    clipped = ops.clip(ratio, 1 - batch.epsilon, 1 + batch.epsilon)
    objective = ops.minimum(ratio * advantages, clipped * advantages)
    to_reference = (engine.constant(batch.ref_logps) - logps) * mask
    kl = ops.exp(to_reference) - to_reference - 1
    return ((batch.beta * kl - objective) * mask).sum() / float(batch.mask.sum())


# -- the engines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """The things that differ between engines.

    Attributes:
        name: shown in tables.
        ops: has exp, log, clip, minimum and concatenate, by NumPy's names.
        constant: a NumPy array -> an array of this engine, without a gradient.
        differentiate: (loss_fn, params) -> (loss, gradients by name); loss_fn takes a dictionary of arrays.
    """

    name: str
    ops: Any
    constant: Callable[[np.ndarray], Any]
    differentiate: Callable[[Callable, Arrays], tuple[float, dict[str, np.ndarray]]]


def loss_and_gradients(
    engine: Engine, config: Qwen3Config, params: Arrays, batch: Batch
) -> tuple[float, dict[str, np.ndarray]]:
    """(loss, its gradient by parameter name), computed by `engine`, as NumPy arrays."""
    return engine.differentiate(lambda own: loss_of(engine, policy_logps(engine, config, own, batch), batch), params)


def _with_values(loss_fn, params):
    leaves = {name: np.vectorize(Value, otypes=[object])(array) for name, array in params.items()}
    loss = loss_fn(leaves)
    loss.backward()
    grads = {name: np.vectorize(lambda value: value.grad)(array) for name, array in leaves.items()}
    return loss.data, grads


def _with_tensors(loss_fn, params):
    leaves = {name: T.Tensor(array, requires_grad=True) for name, array in params.items()}
    loss = loss_fn(leaves)
    loss.backward()
    return loss.item(), {name: leaf.grad for name, leaf in leaves.items()}


def _with_torch(loss_fn, params):
    import torch

    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in params.items()}
    loss = loss_fn(leaves)
    loss.backward()
    return loss.item(), {name: leaf.grad.numpy() for name, leaf in leaves.items()}


def _to_mlx(dtype):
    return lambda array: mx.array(array, dtype if array.dtype.kind == "f" else mx.int32)


def _with_mlx(dtype):
    def differentiate(loss_fn, params):
        with mx.stream(mx.cpu):  # MLX has float64 on the CPU only
            leaves = {name: _to_mlx(dtype)(array) for name, array in params.items()}
            loss, grads = mx.value_and_grad(loss_fn)(leaves)
            mx.eval(loss, grads)
        return loss.item(), {name: np.array(grad) for name, grad in grads.items()}

    return differentiate


# MLX computes exp in float32 for any input, but powers of float64 numbers in float64.
_MLX_OPS = SimpleNamespace(
    exp=lambda x: mx.power(math.e, x), log=mx.log, clip=mx.clip, minimum=mx.minimum, concatenate=mx.concatenate
)

SCALAR = Engine("scalar", np, np.asarray, _with_values)
TENSOR = Engine("tensor", T, np.asarray, _with_tensors)
MLX_FLOAT64 = Engine("MLX, float64", _MLX_OPS, _to_mlx(mx.float64), _with_mlx(mx.float64))
MLX_FLOAT32 = Engine("MLX, float32", _MLX_OPS, _to_mlx(mx.float32), _with_mlx(mx.float32))


def torch_engine() -> Engine:
    """The engine of torch in float64; torch is imported only here."""
    import torch

    return Engine("torch", torch, torch.tensor, _with_torch)


# -- the frozen batch -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """A fixed batch: completions, the numbers recorded when they were sampled, and the settings of their loss.

    Attributes:
        ids: int [B, prompt_length + T]; each row is a prompt and its completion, padded on the right.
        prompt_length: the length of every prompt.
        mask: bool [B, T], True for the tokens that the policy chose.
        old_logps: [B, T], log-probabilities under the policy that sampled.
        ref_logps: [B, T], log-probabilities under the reference.
        rewards: [B].
        group_size: completions per prompt.
        epsilon, beta: settings of the loss.
    """

    ids: np.ndarray
    prompt_length: int
    mask: np.ndarray
    old_logps: np.ndarray
    ref_logps: np.ndarray
    rewards: np.ndarray
    group_size: int
    epsilon: float = 0.2
    beta: float = 0.1

    @property
    def advantages(self) -> np.ndarray:
        """[B], as `compute_advantages` computes them."""
        return np.array(compute_advantages(self.rewards, self.group_size)).astype(np.float64)


VERY_SMALL = Qwen3Config(
    vocab_size=7,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    rope_theta=100.0,
    tie_word_embeddings=True,
)


def frozen(
    config: Qwen3Config = VERY_SMALL,
    *,
    seed: int = 1,
    lengths: tuple[int, ...] = (3, 1, 2, 2, 3, 3),
    prompt_length: int = 2,
) -> tuple[dict[str, np.ndarray], Batch]:
    """Weights, and a batch of groups of three completions with these lengths, all drawn with `seed`.

    float32 can hold each of the numbers exactly, so that every engine starts with the same ones. The policy has moved a
    little since it sampled: some ratios are inside the clip range and some outside.
    """
    rng = np.random.default_rng(seed)

    def rounded(array):
        return np.asarray(array).astype(np.float32).astype(np.float64)

    params = {}
    for name, value in init_params(config, seed=seed).items():
        center, spread = (1, 0.2) if value.ndim == 1 else (0, 0.5)  # weights of 1 would hide a missing norm
        params[name] = rounded(rng.normal(center, spread, value.shape))
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    prompts = np.repeat(rng.integers(0, config.vocab_size, (len(lengths) // 3, prompt_length)), 3, axis=0)
    ids = np.concatenate([prompts, np.where(mask, rng.integers(0, config.vocab_size, mask.shape), 0)], axis=1)
    nothing = np.zeros(mask.shape)
    batch = Batch(ids, prompt_length, mask, nothing, nothing, rounded(rng.normal(size=len(lengths))), 3)
    plain = Engine("NumPy", np, np.asarray, None)  # no gradient: the log-probabilities before the policy moves
    logps = policy_logps(plain, config, params, batch)
    old, ref = (rounded(np.minimum(logps + rng.normal(0, spread, mask.shape), 0)) for spread in (0.3, 0.5))
    return params, Batch(ids, prompt_length, mask, old, ref, batch.rewards, 3)


def kit_loss_and_gradients(config: Qwen3Config, params: Arrays, batch: Batch) -> tuple[float, dict[str, np.ndarray]]:
    """(loss, its gradient by parameter name) from the training code: `compute_loss_and_gradients`, in float32."""
    prompts = [row[: batch.prompt_length].tolist() for row in batch.ids]
    lengths = batch.mask.sum(axis=1)

    def ragged(rows):
        return [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]

    loss, grads = compute_loss_and_gradients(
        config,
        {name: mx.array(array.astype(np.float32)) for name, array in params.items()},
        prompts,
        ragged(batch.ids[:, batch.prompt_length :]),
        ragged(batch.old_logps),
        batch.rewards.tolist(),
        batch.group_size,
        GRPOLossConfig(loss_type="dapo", epsilon=batch.epsilon, beta=batch.beta),
        ref_logprobs=ragged(batch.ref_logps),
    )
    return loss, {name: np.array(grad) for name, grad in grads.items()}


def largest_difference(grads: Arrays, reference: Arrays) -> tuple[float, str]:
    """(largest absolute difference between two gradients, name of the parameter where it occurs)."""
    return max((float(np.abs(grads[name] - reference[name]).max()), name) for name in reference)
