"""Log-probabilities directly from hidden states, without the [tokens, V] table of logits in memory.

With Qwen3's vocabulary of 151,936 a table for 512 tokens has 311 MB, and a backward pass through it holds several. This
file processes the vocabulary in chunks: the forward pass keeps a running maximum and sum, as in online softmax (Milakov
& Gimelshein, https://arxiv.org/abs/1805.02867), and the backward pass recomputes each chunk's logits.

If the output layer is not trained, nothing is computed twice. The gradient of a token's log p with respect to the
hidden state is the token's row minus the mean row under p. Attention computes such a mean of its values, so the forward
pass computes this one in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from mlx_grpo_kit.generation.sampling import token_logps
from mlx_grpo_kit.qwen3.kernels import exp
from mlx_grpo_kit.qwen3.matrices import Matrix, linear
from mlx_grpo_kit.runtime import mx

WHOLE = 2**24  # the most numbers in a table of logits that is computed at once
CHUNK = 2**20  # numbers in one chunk of a larger table


def token_logps_and_entropy(
    hidden: mx.array,
    weight: Matrix,
    token_ids: mx.array,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    weight_gradient: bool = True,
) -> tuple[mx.array, mx.array]:
    """log softmax(hidden W^T / temperature) of the given tokens, and the entropy of that distribution.

    Args:
        hidden: [..., hidden_size], the input of the output layer.
        weight: [V, hidden_size], the output layer's.
        token_ids: int [...].
        temperature: as in `token_logps`; with 0 the log-probabilities are those of temperature 1.
        entropy_gradient: True to make the entropy differentiable.
        weight_gradient: True if `weight` may have a gradient. A quantized weight has none.

    Returns:
        Two float32 arrays of token_ids' shape: log-probabilities, and entropies in nats.
    """
    num_tokens, vocabulary = token_ids.size, weight.shape[0]
    if num_tokens * vocabulary <= WHOLE:
        return token_logps(linear(hidden, weight), token_ids, temperature, True, entropy_gradient)
    chunks = VocabularyChunks(token_ids.reshape(-1), weight.shape, temperature)
    if not weight_gradient:
        logps, entropy = _with_slopes(chunks, hidden.reshape(num_tokens, -1), weight, entropy_gradient)
        return logps.reshape(token_ids.shape), entropy.reshape(token_ids.shape)

    @mx.custom_function
    def forward(hidden: mx.array, weight: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        return chunks.logps_and_entropy(hidden, weight)

    @forward.vjp
    def backward(primals, cotangents, outputs):
        hidden, weight = primals
        grad_hidden, grad_weight = mx.zeros(hidden.shape), []
        of_entropy = (cotangents[1], outputs[1]) if entropy_gradient else None
        for _, of_hidden, of_rows in chunks.gradients(hidden, weight, cotangents[0], outputs[2], of_entropy):
            grad_hidden = grad_hidden + of_hidden
            grad_weight.append(of_rows)
        return grad_hidden.astype(hidden.dtype), mx.concatenate(grad_weight)

    logps, entropy, _ = forward(hidden.reshape(num_tokens, -1), weight)
    entropy = entropy if entropy_gradient else mx.stop_gradient(entropy)
    return logps.reshape(token_ids.shape), entropy.reshape(token_ids.shape)


def _with_slopes(
    chunks: VocabularyChunks, hidden: mx.array, weight: Matrix, entropy_gradient: bool
) -> tuple[mx.array, mx.array]:
    """Log-probabilities and entropies [N]; the forward pass also computes their gradient by `hidden`."""

    @mx.custom_function
    def forward(hidden: mx.array) -> tuple[mx.array, ...]:
        return chunks.logps_entropy_and_slopes(hidden, weight, entropy_gradient)

    @forward.vjp
    def backward(hidden, cotangents, outputs):
        grads = (grad[:, None] * slope for grad, slope in zip(cotangents, outputs[2:], strict=False))
        return sum(grads).astype(hidden.dtype)

    logps, entropy, *_ = forward(hidden)
    return logps, entropy if entropy_gradient else mx.stop_gradient(entropy)


def columns_of_a_chunk(num_tokens: int, hidden_size: int) -> int:
    """The number of columns in a chunk. Neither its logits nor its rows of the weight's gradient are large."""
    return max(CHUNK // max(num_tokens, hidden_size), 256)


class VocabularyChunks:
    """The output layer and its log-probabilities, some columns of the table of logits at a time.

    Args:
        token_ids: int [N], the tokens whose log-probabilities are computed.
        shape: (V, hidden_size), that of the output layer's weight.
        temperature: as in `token_logps_and_entropy`.
    """

    def __init__(self, token_ids: mx.array, shape: tuple[int, int], temperature: float = 1.0):
        self.token_ids, self.scale = token_ids, 1 / (temperature or 1.0)
        vocabulary, hidden_size = shape
        self.starts = range(0, vocabulary, columns_of_a_chunk(token_ids.size, hidden_size))

    def _scaled_logits(self, hidden: mx.array, rows: mx.array, *before: mx.array) -> mx.array:
        # Compute one chunk after the other: MLX would begin with twenty of them in parallel.
        [hidden] = mx.depends([hidden], before)
        return (hidden @ rows.T).astype(mx.float32) * self.scale

    def logps_and_entropy(self, hidden: mx.array, weight: Matrix) -> tuple[mx.array, mx.array, mx.array]:
        """[N, hidden_size], [V, hidden_size] -> log-probabilities, entropies, log of the sum of all powers: [N] each.

        This builds one graph. The third result is for `gradients`.
        """
        return self._through(hidden, weight, 0)[:3]

    def logps_entropy_and_slopes(
        self, hidden: mx.array, weight: Matrix, entropy_gradient: bool = False
    ) -> tuple[mx.array, ...]:
        """Log-probabilities and entropies [N], and the gradient of each by its token's hidden state [N, hidden_size].

        The entropy's gradient is included only with `entropy_gradient`. This builds one graph.
        """
        logps, entropy, _, mean, *means = self._through(hidden, weight, 1 + entropy_gradient)
        slopes = [(weight[self.token_ids].astype(mx.float32) - mean) * self.scale]
        # The entropy's gradient by the logit of a token of probability p is -p (log p + H).
        slopes += [-(of_logs + entropy[:, None] * mean) * self.scale for of_logs in means]
        return logps, entropy, *slopes

    def _through(self, hidden: mx.array, weight: Matrix, num_means: int) -> tuple[mx.array, ...]:
        """One pass over the vocabulary: log-probabilities, entropies, log of the sum of all powers, and means of rows.

        The first of the means [N, hidden_size] is the mean row under p, the second the mean of rows times log p.
        """
        shape = self.token_ids.shape
        chosen = mx.sum(hidden.astype(mx.float32) * weight[self.token_ids].astype(mx.float32), axis=-1) * self.scale
        # For the columns so far: the largest logit, and relative to it the sum of powers and of powers times logits.
        top = mx.full(shape, -math.inf)
        total, weighted = mx.zeros(shape), mx.zeros(shape)
        means = [mx.zeros(hidden.shape)] * num_means
        for start in self.starts:
            rows = weight[start : start + self.starts.step]
            logits = self._scaled_logits(hidden, rows, weighted, *means)
            before, top = top, mx.maximum(top, logits.max(axis=-1))
            logits = logits - top[:, None]
            powers = exp(logits)
            if start:
                moved, shrunk = before - top, exp(before - top)
                weighted, total = (weighted + total * moved) * shrunk, total * shrunk
                by_logits = [(of_logits + means[0] * moved[:, None]) * shrunk[:, None] for of_logits in means[1:]]
                means = [*(mean * shrunk[:, None] for mean in means[:1]), *by_logits]
            by_logits = mx.where(powers > 0, powers * logits, 0.0)
            total, weighted = total + powers.sum(axis=-1), weighted + by_logits.sum(axis=-1)
            means = [
                mean + (factors.astype(rows.dtype) @ rows).astype(mx.float32)
                for mean, factors in zip(means, (powers, by_logits), strict=False)
            ]
        log_total = mx.log(total)
        means = [mean / total[:, None] for mean in means]
        means[1:] = [of_logits - log_total[:, None] * means[0] for of_logits in means[1:]]
        return chosen - top - log_total, log_total - weighted / total, top + log_total, *means

    def gradients(
        self,
        hidden: mx.array,
        weight: mx.array,
        grad_logps: mx.array,
        log_total: mx.array,
        of_entropy: tuple[mx.array, mx.array] | None = None,
    ) -> Iterator[tuple[int, mx.array, mx.array]]:
        """Yield per chunk (first row, its part of the gradient of hidden [N, hidden_size], the gradient of its rows).

        `of_entropy` is the gradient of the entropy and the entropy H itself, [N] each, if it is differentiable: by the
            logit of a token of probability p its gradient is -p (log p + H).

        Chunks are computed one after the other, even if you evaluate all of them at the end.
        """
        grad, log_total = (grad_logps * self.scale)[:, None], log_total[:, None]
        before: list[mx.array] = []
        for start in self.starts:
            rows = weight[start : start + self.starts.step]
            logps = self._scaled_logits(hidden, rows, *before) - log_total
            probs = exp(logps)
            is_chosen = self.token_ids[:, None] == mx.arange(start, start + probs.shape[1])
            grad_logits = grad * (is_chosen - probs)
            if of_entropy is not None:
                grad_entropy, entropy = (values[:, None] for values in of_entropy)
                grad_logits = grad_logits - self.scale * grad_entropy * probs * (logps + entropy)
            grad_logits = grad_logits.astype(weight.dtype)
            before = [grad_logits @ rows, grad_logits.T @ hidden]
            yield start, *before
