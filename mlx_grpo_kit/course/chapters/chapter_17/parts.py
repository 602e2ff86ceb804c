"""Parts of chapter 17's programs: adapters for a reader's functions, gradients by row, blocks with checkpointing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mlx_grpo_kit.gradcheck import gradcheck
from mlx_grpo_kit.qwen3 import Qwen3Config, forward, qwen3_loss_and_gradients
from mlx_grpo_kit.runtime import mx


def in_mlx(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` so that it returns MLX arrays in float32 (one, or a tuple if it returns several)."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        several = isinstance(result, tuple) or (isinstance(result, list) and any(map(_is_array, result)))
        return tuple(map(_array, result)) if several else _array(result)

    return call


def gradient_of_each_row(
    config: Qwen3Config, params: Mapping[str, mx.array], input_ids: mx.array, targets: mx.array, weights: mx.array
) -> list[dict[str, np.ndarray]]:
    """The gradient of every parameter for each single row of a batch; `weights` [T] are the same for all rows.

    Gradients add up over rows and are linear in their weights, so these are enough for any advantages of the rows.
    """
    found = []
    for row in range(len(input_ids)):
        _, grads, _ = qwen3_loss_and_gradients(
            config, params, input_ids[row : row + 1], targets[row : row + 1], weights[None]
        )
        found.append({name: np.array(value) for name, value in grads.items()})
    return found


def checkpointed_hidden_states(config: Qwen3Config, params: Mapping[str, mx.array], input_ids: mx.array) -> mx.array:
    """`qwen3_hidden_states`, of which only each block's input is kept: the backward pass computes the block again.

    (Chen et al. 2016, https://arxiv.org/abs/1604.06174.) MLX computes gradients only for the arguments of a
    checkpointed function, so the block's weights are arguments.
    """
    mask = forward.visible(input_ids.shape[1], input_ids.shape[1], 0, None)

    def block(layer: int, weights: dict[str, mx.array], x: mx.array) -> mx.array:
        return forward.transformer_block(config, weights, layer, x, mask)

    x = forward.embedding(params["embedding.weight"], input_ids)
    for layer in range(config.num_hidden_layers):
        weights = {name: value for name, value in params.items() if name.startswith(f"layers.{layer}.")}
        x = mx.checkpoint(functools.partial(block, layer))(weights, x)
    return forward.rms_norm(x, params["final_norm.weight"], config.rms_norm_eps)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape")


def _array(value: Any) -> mx.array:
    return value if isinstance(value, mx.array) else mx.array(np.asarray(value), dtype=mx.float32)


KINDS = {
    "everything": lambda name: True,
    "projections of attention": lambda name: "self_attn" in name and "proj" in name,
    "MLP": lambda name: "mlp" in name,
    "norms": lambda name: "norm" in name,
    "table and output layer": lambda name: name.startswith(("embedding", "lm_head")),
}
"Kinds of parameters: for each, a test of a parameter's name."


def compare(rule: Callable[..., Any], function: Callable[..., mx.array], *inputs: mx.array) -> tuple[float, bool]:
    """The largest difference between a rule and autograd, and whether the function's values agree with autograd.

    Args:
        rule: (gradient of the result, *inputs) -> the gradient of each input.
        function: the forward function of `inputs`; the gradient of its result is drawn at random.
        inputs: floating-point arrays.
    """
    arrives = mx.random.normal(function(*inputs).shape, key=mx.random.key(0))
    _, automatic = mx.vjp(function, list(inputs), [arrives])
    ours = rule(arrives, *inputs)
    pairs = zip(ours if isinstance(ours, tuple) else [ours], automatic, strict=True)
    return max(mx.abs(mine - theirs).max().item() for mine, theirs in pairs), gradcheck(function, *inputs).passed
