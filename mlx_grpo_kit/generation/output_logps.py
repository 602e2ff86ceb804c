"""Log-probabilities straight from hidden states, without the [tokens, V] table of logits alive.

With Qwen3's vocabulary of 151,936 a table of 512 tokens has 311 MB, and a backward pass through it holds several. Here
the vocabulary goes by in chunks: forwards with a running maximum and sum, as in online softmax (Milakov & Gimelshein,
https://arxiv.org/abs/1805.02867), backwards by computing each chunk's logits once more.
"""

from __future__ import annotations

import math

from mlx_grpo_kit.blas import mx
from mlx_grpo_kit.generation.sampling import token_logps
from mlx_grpo_kit.qwen3.kernels import exp

WHOLE = 2**24  # numbers in a table of logits that is made at once
CHUNK = 2**20  # numbers in one chunk of a larger one


def token_logps_and_entropy(
    hidden: mx.array, weight: mx.array, token_ids: mx.array, temperature: float = 1.0
) -> tuple[mx.array, mx.array]:
    """log softmax(hidden W^T / temperature) of the given tokens, and the entropy of that distribution.

    Args:
        hidden: [..., hidden_size], what the output layer gets.
        weight: [V, hidden_size], the output layer's.
        token_ids: int [...].
        temperature: as in `token_logps`; with 0 the log-probabilities are those of temperature 1.

    Returns:
        Two float32 arrays of token_ids' shape; the entropy is in nats and has no gradient.
    """
    num_tokens, vocabulary = token_ids.size, weight.shape[0]
    if num_tokens * vocabulary <= WHOLE:
        return token_logps(hidden @ weight.T, token_ids, temperature, with_entropy=True)
    columns = max(CHUNK // num_tokens, 256)
    logps, entropy, _ = _in_chunks(token_ids.reshape(-1), 1 / (temperature or 1.0), columns)(
        hidden.reshape(num_tokens, -1), weight
    )
    return logps.reshape(token_ids.shape), mx.stop_gradient(entropy).reshape(token_ids.shape)


def _in_chunks(token_ids: mx.array, scale: float, columns: int):
    """(hidden [N, size], weight [V, size]) -> (logps, entropy, log of the sum of all powers), each [N]."""

    def scaled_logits(hidden: mx.array, weight: mx.array, start: int, *before: mx.array) -> mx.array:
        # One chunk after the other: MLX would begin with twenty of them side by side.
        [hidden] = mx.depends([hidden], before)
        return (hidden @ weight[start : start + columns].T).astype(mx.float32) * scale

    @mx.custom_function
    def forward(hidden: mx.array, weight: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        chosen = mx.sum(hidden.astype(mx.float32) * weight[token_ids].astype(mx.float32), axis=-1) * scale
        # Of the columns so far: the largest logit, and relative to it the sum of powers and of powers times logits.
        top = mx.full(token_ids.shape, -math.inf)
        total, weighted = mx.zeros(token_ids.shape), mx.zeros(token_ids.shape)
        for start in range(0, weight.shape[0], columns):
            logits = scaled_logits(hidden, weight, start, weighted)
            before, top = top, mx.maximum(top, logits.max(axis=-1))
            logits = logits - top[:, None]
            powers = exp(logits)
            if start:
                shrunk = exp(before - top)
                weighted, total = (weighted + total * (before - top)) * shrunk, total * shrunk
            total = total + powers.sum(axis=-1)
            weighted = weighted + mx.where(powers > 0, powers * logits, 0.0).sum(axis=-1)
        log_total = mx.log(total)
        return chosen - top - log_total, log_total - weighted / total, top + log_total

    @forward.vjp
    def backward(primals, cotangents, outputs):
        (hidden, weight), log_total = primals, outputs[2][:, None]
        grad = (cotangents[0] * scale)[:, None]
        grad_hidden, grad_weight = mx.zeros(hidden.shape), []
        for start in range(0, weight.shape[0], columns):
            probs = exp(scaled_logits(hidden, weight, start, grad_hidden, *grad_weight[-1:]) - log_total)
            is_chosen = token_ids[:, None] == mx.arange(start, start + probs.shape[1])
            grad_logits = (grad * (is_chosen - probs)).astype(weight.dtype)
            grad_hidden = grad_hidden + grad_logits @ weight[start : start + columns]
            grad_weight.append(grad_logits.T @ hidden)
        return grad_hidden.astype(hidden.dtype), mx.concatenate(grad_weight)

    return forward
