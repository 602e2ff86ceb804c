"""The backward pass by hand: the rule of each part of `forward.py`, then of a block, then of the whole model.

Read it next to `forward.py`. It is for study: training uses `value_and_grad`, which computes the same numbers
automatically. A rule takes the gradient of its part's output and the part's inputs, and returns a gradient for each
input that has one. The `watch` of `qwen3_forward` records all that the rules need, under the names listed in
`forward.py`; the gradients of those inner values have the same names.

Shapes as in `forward.py`: B rows, T tokens, V vocabulary, H query heads, K heads of keys and values, D head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlx_grpo_kit.qwen3.config import Qwen3Config, RopeScaling
from mlx_grpo_kit.qwen3.forward import output_weight, qwen3_forward
from mlx_grpo_kit.qwen3.kernels import exp
from mlx_grpo_kit.qwen3.rope_scaling import rope_attention_factor, rope_wavelengths
from mlx_grpo_kit.runtime import mx

Arrays = dict[str, mx.array]


def cross_entropy(logits: mx.array, targets: mx.array, weights: mx.array) -> tuple[mx.array, mx.array]:
    """-sum(weights * log softmax(logits)[targets]) and its gradient, weights * (softmax(logits) - one_hot(targets)).

    With weights of 1 / number of tokens it is the mean cross-entropy of pre-training. With each token's advantage times
    its share of the batch, the gradient is that of the GRPO loss right after sampling, when every ratio is 1.

    Args:
        logits: [..., V].
        targets: int [...].
        weights: [...]; weight 0 excludes a token.

    Returns:
        (loss, grad_logits), a scalar and [..., V].
    """
    log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(log_probs, targets[..., None], axis=-1)
    is_target = mx.arange(logits.shape[-1]) == targets[..., None]
    return -(weights[..., None] * chosen).sum(), weights[..., None] * (exp(log_probs) - is_target)


def linear_backward(grad: mx.array, x: mx.array, weight: mx.array) -> tuple[mx.array, mx.array]:
    """x W^T: the gradient of x is grad W, that of W is grad^T x, summed over every position of the batch.

    grad [..., out], x [..., in], weight [out, in] -> (grad_x, grad_weight).
    """
    rows = grad.reshape(-1, grad.shape[-1])
    return grad @ weight, rows.T @ x.reshape(-1, x.shape[-1])


def embedding_backward(grad: mx.array, input_ids: mx.array, vocab_size: int) -> mx.array:
    """The gradient [V, hidden]: a token's row is the sum of `grad` over its positions, 0 if it does not occur."""
    return mx.zeros((vocab_size, grad.shape[-1]), grad.dtype).at[input_ids].add(grad)


def rms_norm_backward(grad: mx.array, x: mx.array, weight: mx.array, eps: float) -> tuple[mx.array, mx.array]:
    """x / rms * weight: the part of the gradient along x is removed, because the norm removes the length of x.

    With n = x / rms and g = grad * weight, the gradient of x is (g - n * mean(g * n)) / rms, that of the weight is
    grad * n, summed over every position. grad, x [..., size], weight [size] -> (grad_x, grad_weight).
    """
    one_over_rms = mx.rsqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    normed, scaled = x * one_over_rms, grad * weight
    grad_x = (scaled - normed * (scaled * normed).mean(axis=-1, keepdims=True)) * one_over_rms
    return grad_x, (grad * normed).reshape(-1, x.shape[-1]).sum(axis=0)


def rope_backward(grad: mx.array, offset: int, theta: float, scaling: RopeScaling | None = None) -> mx.array:
    """Rotate back by the same angles: a rotation's transpose is its inverse. [B, heads, T, D] -> the same shape."""
    head_dim = grad.shape[-1]
    if scaling is None:  # a scale of -1 counts the positions down
        return mx.fast.rope(grad, head_dim, traditional=False, base=theta, scale=-1.0, offset=offset)
    freqs = mx.array(rope_wavelengths(scaling, head_dim, theta))
    back = mx.fast.rope(grad, head_dim, traditional=False, base=None, scale=-1.0, offset=offset, freqs=freqs)
    return back * rope_attention_factor(scaling)


def gated_silu_backward(grad: mx.array, gate: mx.array, up: mx.array) -> tuple[mx.array, mx.array]:
    """silu(gate) * up: the gradient of `gate` is grad * up * silu'(gate), that of `up` is grad * silu(gate).

    silu(x) = x s(x) with the sigmoid s, so silu'(x) = s + x s (1 - s).
    """
    sigmoid = 1 / (1 + exp(-gate))
    silu = gate * sigmoid
    return grad * up * (sigmoid + silu * (1 - sigmoid)), grad * silu


def softmax_backward(grad: mx.array, weights: mx.array) -> mx.array:
    """weights * (grad - sum(grad * weights)) over the last axis, where `weights` is the output of softmax."""
    return weights * (grad - (grad * weights).sum(axis=-1, keepdims=True))


def mix_values_backward(grad: mx.array, weights: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
    """The product of weights and values: values that heads share get the sum of those heads' gradients.

    grad [B, H, T, D], weights [B, H, T, S], values [B, K, S, D] -> (grad_weights, grad_values).
    """
    grad, folded = _share_keys(grad, values), _share_keys(weights, values)
    return (grad @ values.swapaxes(-1, -2)).reshape(weights.shape), folded.swapaxes(-1, -2) @ grad


def attention_scores_backward(grad: mx.array, queries: mx.array, keys: mx.array) -> tuple[mx.array, mx.array]:
    """Q K^T / sqrt(D): queries get grad K / sqrt(D), keys get grad^T Q / sqrt(D), summed over heads that share them.

    grad [B, H, T, S], queries [B, H, T, D], keys [B, K, S, D] -> (grad_queries, grad_keys). A masked weight is 0, so
    softmax returns gradient 0 for it: the mask needs no rule.
    """
    grad = _share_keys(grad, keys) * queries.shape[-1] ** -0.5
    return (grad @ keys).reshape(queries.shape), grad.swapaxes(-1, -2) @ _share_keys(queries, keys)


def _share_keys(by_head: mx.array, keys: mx.array) -> mx.array:
    """[B, H, T, n] -> [B, K, H / K * T, n]: the query heads that share keys as rows of one matrix."""
    return by_head.reshape(*keys.shape[:2], -1, by_head.shape[-1])


def mlp_backward(
    params: Mapping[str, mx.array], prefix: str, grad: mx.array, x: mx.array, kept: Mapping[str, mx.array]
) -> tuple[mx.array, Arrays, Arrays]:
    """SwiGLU: go back through down, then separately through gate and up, and add the two gradients at x.

    Args:
        params: weights by name.
        prefix: the beginning of this MLP's names, such as "layers.3.mlp.".
        grad: the gradient of the output, [B, T, hidden].
        x: the input, [B, T, hidden].
        kept: the forward pass's inner values by name.

    Returns:
        (grad_x, grads, inner_grads), the dictionaries under their full names.
    """
    gate, up, gated, down = (f"{prefix}{name}" for name in ("gate_proj", "up_proj", "gated", "down_proj"))
    grads, inner = {}, {down: grad}
    inner[gated], grads[f"{down}.weight"] = linear_backward(grad, kept[gated], params[f"{down}.weight"])
    inner[gate], inner[up] = gated_silu_backward(inner[gated], kept[gate], kept[up])
    from_gate, grads[f"{gate}.weight"] = linear_backward(inner[gate], x, params[f"{gate}.weight"])
    from_up, grads[f"{up}.weight"] = linear_backward(inner[up], x, params[f"{up}.weight"])
    return from_gate + from_up, grads, inner


def attention_backward(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    prefix: str,
    grad: mx.array,
    x: mx.array,
    kept: Mapping[str, mx.array],
) -> tuple[mx.array, Arrays, Arrays]:
    """Attention with grouped heads, last step first; arguments and results as in `mlp_backward`.

    QK-norm and biases have gradients if they are among `params`.
    """
    batch, num_tokens, _ = x.shape
    grads, inner = {}, {}

    def through_linear(name: str, grad: mx.array, x: mx.array) -> mx.array:
        weight, bias, grad = f"{prefix}{name}.weight", f"{prefix}{name}.bias", grad.reshape(batch, num_tokens, -1)
        if bias in params:
            grads[bias] = grad.sum(axis=(0, 1))
        grad_x, grads[weight] = linear_backward(grad, x, params[weight])
        return grad_x

    at = {name.removeprefix(prefix): value for name, value in kept.items() if name.startswith(prefix)}
    inner["o_proj"] = grad
    grad_mixed = through_linear("o_proj", grad, at["mixed"].swapaxes(1, 2).reshape(batch, num_tokens, -1))
    inner["mixed"] = grad_mixed.reshape(batch, num_tokens, -1, config.head_dim).swapaxes(1, 2)
    values = at["v_proj"].swapaxes(1, 2)
    inner["weights"], grad_values = mix_values_backward(inner["mixed"], at["weights"], values)
    inner["v_proj"] = grad_values.swapaxes(1, 2)
    inner["scores"] = softmax_backward(inner["weights"], at["weights"])
    inner["q_rope"], inner["k_rope"] = attention_scores_backward(inner["scores"], at["q_rope"], at["k_rope"])
    for name in ("q", "k"):
        grad = rope_backward(inner[f"{name}_rope"], 0, config.rope_theta, config.rope_scaling).swapaxes(1, 2)
        weight = f"{prefix}{name}_norm.weight"
        if weight in params:
            inner[f"{name}_norm"] = grad
            grad, grads[weight] = rms_norm_backward(grad, at[f"{name}_proj"], params[weight], config.rms_norm_eps)
        inner[f"{name}_proj"] = grad
    grad_x = sum(through_linear(name, inner[name], x) for name in ("q_proj", "k_proj", "v_proj"))
    return grad_x, grads, {f"{prefix}{name}": value for name, value in inner.items()}


def transformer_block_backward(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    layer: int,
    grad: mx.array,
    x: mx.array,
    kept: Mapping[str, mx.array],
) -> tuple[mx.array, Arrays, Arrays]:
    """One layer: at each `x + f(norm(x))` the gradient passes f unchanged, and the gradient through f is added.

    Arguments and results as in `mlp_backward`, for layer number `layer`.
    """
    prefix = f"layers.{layer}."
    grads, inner = {}, {f"layers.{layer}": grad}

    def through_norm(name: str, grad: mx.array, x: mx.array) -> mx.array:
        inner[f"{prefix}{name}"], weight = grad, f"{prefix}{name}.weight"
        grad_x, grads[weight] = rms_norm_backward(grad, x, params[weight], config.rms_norm_eps)
        return grad_x

    normed, attended = kept[f"{prefix}post_attention_layernorm"], kept[f"{prefix}attended"]
    grad_normed, mlp_grads, mlp_inner = mlp_backward(params, f"{prefix}mlp.", grad, normed, kept)
    grad = grad + through_norm("post_attention_layernorm", grad_normed, attended)
    inner[f"{prefix}attended"] = grad

    at, normed = f"{prefix}self_attn.", kept[f"{prefix}input_layernorm"]
    grad_normed, attention_grads, attention_inner = attention_backward(config, params, at, grad, normed, kept)
    grad = grad + through_norm("input_layernorm", grad_normed, x)
    return grad, grads | mlp_grads | attention_grads, inner | mlp_inner | attention_inner


def qwen3_backward(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    input_ids: mx.array,
    kept: Mapping[str, mx.array],
    grad_logits: mx.array,
) -> tuple[Arrays, Arrays]:
    """From the gradient of the logits to the gradients of every parameter and of every inner value.

    Args:
        input_ids: int [B, T], the input of the forward pass, which had no cache.
        kept: a dictionary that `qwen3_forward(config, params, input_ids, watch=kept.setdefault)` has filled.
        grad_logits: [B, T, V].

    Returns:
        (grads, inner_grads): by the names of `params`, and by those of `kept`.
    """
    grad, grad_output = linear_backward(grad_logits, kept["final_norm"], output_weight(config, params))
    inner = {"logits": grad_logits, "final_norm": grad}
    last = f"layers.{config.num_hidden_layers - 1}"
    grads = {}
    grad, grads["final_norm.weight"] = rms_norm_backward(
        grad, kept[last], params["final_norm.weight"], config.rms_norm_eps
    )
    for layer in reversed(range(config.num_hidden_layers)):
        x = kept[f"layers.{layer - 1}" if layer else "embedding"]
        grad, block_grads, block_inner = transformer_block_backward(config, params, layer, grad, x, kept)
        grads |= block_grads
        inner |= block_inner
    inner["embedding"] = grad
    grads["embedding.weight"] = embedding_backward(grad, input_ids, config.vocab_size)
    if config.tie_word_embeddings:  # one matrix, used twice: its two gradients add up
        grads["embedding.weight"] = grads["embedding.weight"] + grad_output
    else:
        grads["lm_head.weight"] = grad_output
    return {name: grads[name] for name in params}, {name: inner[name] for name in kept}


def qwen3_loss_and_gradients(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    input_ids: mx.array,
    targets: mx.array,
    weights: mx.array | None = None,
    *,
    attention_mask: mx.array | None = None,
) -> tuple[mx.array, Arrays, Arrays]:
    """The cross-entropy of `targets`, weighted per token, and every gradient in the model, by hand.

    Args:
        input_ids: int [B, T].
        targets: int [B, T], the token that should follow each position.
        weights: [B, T], as in `cross_entropy`; without them every token counts 1 / (B * T).
        attention_mask: as in `qwen3_forward`.

    Returns:
        (loss, grads, inner_grads), evaluated: a scalar, a gradient for each parameter, and one for each inner value
        that `qwen3_forward`'s `watch` sees, under the same names and of the same shapes.

    Raises:
        ValueError: `targets` or `weights` do not have the shape of `input_ids`.
    """
    weights = mx.full(input_ids.shape, 1 / input_ids.size) if weights is None else weights
    for name, array in (("targets", targets), ("weights", weights)):
        if array.shape != input_ids.shape:
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}; expected {tuple(input_ids.shape)}, one for each of input_ids."
            )
    kept = {}
    logits = qwen3_forward(config, params, input_ids, attention_mask=attention_mask, watch=kept.setdefault)
    loss, grad_logits = cross_entropy(logits, targets, weights)
    grads, inner_grads = qwen3_backward(config, params, input_ids, kept, grad_logits)
    mx.eval(loss, grads, inner_grads)
    return loss, grads, inner_grads
