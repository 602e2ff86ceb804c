"""The gradient of the whole model one layer at a time: checkpointing with a separate evaluation per layer.

The forward pass keeps only the input of each transformer block (Chen et al. 2016, https://arxiv.org/abs/1604.06174).
The backward pass recomputes each block, computes the gradients of its weights and of its input, and frees it before the
next one. In one graph of the whole model MLX would decide what is alive at a time. Here it is never more than the
inputs, the inside of one block, and the gradients, each of which is a single buffer from the start:

    embed -> x0 -> block 0 -> x1 -> ... -> block L-1 -> xL -> norm -> output layer, in chunks -> log-probs -> loss
             |                |                          |            |
             kept             kept                       kept         logits recomputed: rows of its gradient in place

The embedding's gradient has two sources, the output layer (if it is tied) and the look-up of tokens. Both add to the
same buffer, while a graph of the whole model holds three buffers of the size of the vocabulary.

If adapters are trained, only they have gradients: the output layer is computed once, and the backward pass ends at the
first adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from mlx_grpo_kit.generation.output_logps import VocabularyChunks
from mlx_grpo_kit.grpo.learners.mlx_at_once import MLXAtOnce
from mlx_grpo_kit.grpo.logps import PaddedBatch
from mlx_grpo_kit.grpo.micro_batches import MicroBatch
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.qwen3.cache import KVCache
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.forward import embedding, output_weight, rms_norm, transformer_block, visible
from mlx_grpo_kit.qwen3.matrices import matrix
from mlx_grpo_kit.runtime import mx


class MLXByLayer(MLXAtOnce):
    """Compute the gradient of `MLXAtOnce` with the activations of only one transformer block in memory."""

    def add_gradients(
        self, policy: Policy, grads: dict[str, mx.array], micro: MicroBatch
    ) -> tuple[mx.array, mx.array, dict[str, mx.array]]:
        """Add a micro-batch's gradient to `grads`, evaluated; returns (loss, logps [B, T], metrics).

        The trained arrays are float32, and cast to the policy's dtype when they are used. A prompt passes through each
        block once, together with its completions. A buffer in `grads` without other references is added to in place,
        so that a second micro-batch needs no second set of gradients.
        """
        config, params, frozen, dtype, batch = self.config, policy.trained, policy.frozen, policy.dtype, micro.batch
        entropy_gradient = self.loss_config.entropy_coef != 0
        add = partial(_add, grads)
        model = frozen or params
        sequences = [batch.prompt_ids]
        if batch.completion_ids.shape[1] > 1:
            sequences.append(batch.completion_ids[:, :-1])
        look_up = matrix(model, "embedding", config.hidden_size)
        x = [embedding(look_up, ids).astype(dtype) for ids in sequences]
        blocks = [_Block(policy, batch, layer) for layer in range(config.num_hidden_layers)]
        inputs = []
        for block in blocks:
            inputs.append(x)
            x = block(*[params[name] for name in block.names], *x)
            mx.eval(x)

        norm = partial(_final_norm, config, batch.group_size, dtype)
        [hidden] = norm(model["final_norm.weight"], *x)
        shape, sizes = batch.completion_ids.shape, (config.vocab_size, config.hidden_size)
        chunks = VocabularyChunks(batch.completion_ids.reshape(-1), sizes, self.args.temperature)

        def loss_fn(logps: mx.array, entropies: mx.array):
            return self.loss_and_metrics(logps, entropies, micro)

        def loss_and_slopes(logps: mx.array, entropy: mx.array):
            (loss, metrics), of_each = mx.value_and_grad(loss_fn, (0, 1))(logps.reshape(shape), entropy.reshape(shape))
            return loss, metrics, [grad.reshape(-1) for grad in of_each]

        if frozen:
            weight = output_weight(config, frozen)
            logps, entropy, *slopes = chunks.logps_entropy_and_slopes(hidden, weight, entropy_gradient)
            mx.eval(hidden, logps, entropy, slopes)
            loss, metrics, of_each = loss_and_slopes(logps, entropy)
            grad_hidden = sum(grad[:, None] * slope for grad, slope in zip(of_each, slopes, strict=False))
            del slopes
        else:
            output = "embedding.weight" if config.tie_word_embeddings else "lm_head.weight"
            weight = params[output].astype(dtype)
            logps, entropy, log_total = chunks.logps_and_entropy(hidden, weight)
            mx.eval(hidden, logps, entropy, log_total)
            loss, metrics, (grad_logps, grad_entropy) = loss_and_slopes(logps, entropy)
            of_entropy = (grad_entropy, entropy) if entropy_gradient else None
            grad_hidden, total = mx.zeros(hidden.shape), _taken(grads, params, output)
            for start, of_hidden, rows in chunks.gradients(hidden, weight, grad_logps, log_total, of_entropy):
                grad_hidden, rows = grad_hidden + of_hidden, total[start : start + len(rows)] + rows
                mx.eval(grad_hidden, rows)
                total = mx.slice_update(total, rows, mx.array([start]), axes=(0,))
                mx.eval(total)
            grads[output] = total
            del total, rows, of_hidden, weight

        _, (of_norm, *grad_x) = mx.vjp(norm, [model["final_norm.weight"], *x], [grad_hidden.astype(dtype)])
        add({} if frozen else {"final_norm.weight": of_norm}, grad_x)
        del x, hidden, grad_hidden
        for block in reversed(blocks):
            weights = [params[name] for name in block.names]
            _, found = mx.vjp(block, [*weights, *inputs.pop()], grad_x)
            grad_x = found[len(weights) :]
            add(dict(zip(block.names, found, strict=False)), grad_x if inputs or not frozen else [])
            del found

        if not frozen:
            total = _taken(grads, params, "embedding.weight")
            for ids, grad in zip(sequences, grad_x, strict=True):
                total = total.at[ids].add(grad.astype(mx.float32))
            mx.eval(total)
            grads["embedding.weight"] = total
        mx.eval(loss, metrics)
        return loss, logps.reshape(shape), metrics


class _Block:
    """A transformer block over the prompts and, if they have more than one token, the completions after them.

    It is a function of arrays alone, as `mx.vjp` requires: (trained arrays in the order of `names`, hidden states of
        the prompts [, those of the completions]) -> the hidden states after the block.
    """

    def __init__(self, policy: Policy, batch: PaddedBatch, layer: int):
        self.policy, self.batch, self.layer = policy, batch, layer
        self.names = [name for name in policy.trained if name.startswith(f"layers.{layer}.")]

    def __call__(self, *arrays: mx.array) -> list[mx.array]:
        batch, layer = self.batch, self.layer
        params = self.policy.params_of(dict(zip(self.names, arrays, strict=False)))
        prompt, *completion = arrays[len(self.names) :]
        block = partial(transformer_block, self.policy.config, params, layer)
        length, prompt_mask = prompt.shape[1], batch.prompt_mask
        cache = KVCache(layer + 1)
        outputs = [block(prompt, visible(length, length, 0, prompt_mask), cache)]
        for x in completion:
            own = KVCache(layer + 1)
            own.length = length
            own.keys[layer] = mx.repeat(cache.keys[layer], batch.group_size, axis=0)
            own.values[layer] = mx.repeat(cache.values[layer], batch.group_size, axis=0)
            if prompt_mask is not None:
                prompt_mask = mx.repeat(prompt_mask, batch.group_size, axis=0)
            outputs.append(block(x, visible(x.shape[1], length + x.shape[1], length, prompt_mask), own))
        return outputs


def _final_norm(
    config: Qwen3Config, group_size: int, dtype: mx.Dtype, weight: mx.array, prompt: mx.array, *completion: mx.array
) -> list[mx.array]:
    """The input of the output layer, [B * T, hidden_size]: the prompt's last position predicts the first token."""
    x = mx.concatenate([mx.repeat(prompt[:, -1:], group_size, axis=0), *completion], axis=1)
    return [rms_norm(x, weight.astype(dtype), config.rms_norm_eps).reshape(-1, x.shape[-1])]


def _taken(grads: dict[str, mx.array], params: Mapping[str, mx.array], name: str) -> mx.array:
    """Remove and return the gradient so far: MLX changes an array in place if nothing else references it."""
    return grads.pop(name) if name in grads else mx.zeros(params[name].shape)


def _add(grads: dict[str, mx.array], found: Mapping[str, mx.array], others: list[mx.array]) -> None:
    """Add `found` to `grads`, and evaluate both and `others`, which come from the same backward pass."""
    sums = {name: grads.pop(name) + value if name in grads else value for name, value in found.items()}
    mx.eval(sums, others)
    grads |= sums
