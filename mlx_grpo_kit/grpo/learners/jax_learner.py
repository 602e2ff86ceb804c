"""JAX instead of MLX for the learning half of a GRPO step, like torch in `torch_learner.py`.

Loss and gradient are one compiled function. It is compiled once for each shape, so batches are padded to few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from mlx_grpo_kit.grpo.learners.jax_qwen3 import completion_logits
from mlx_grpo_kit.grpo.learners.learner import Learner
from mlx_grpo_kit.grpo.logps import PaddedBatch
from mlx_grpo_kit.grpo.loss import BatchWeights
from mlx_grpo_kit.grpo.loss_of_logits import grpo_loss_fn, token_logps_and_entropies
from mlx_grpo_kit.grpo.micro_batches import MicroBatch
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.runtime import mx

WIDTH = 8  # pad prompts and completions to multiples of this many tokens, and the number of prompts to a power of two


class JAXLearner(Learner):
    """Compute log-probabilities and gradients with JAX, from copies of MLX's arrays."""

    def logps(self, params: Mapping[str, mx.array], batch: PaddedBatch) -> mx.array:
        logps = _logps(self.config, self.args.temperature, _arrays(params), _padded_ids(batch))
        return mx.array(np.asarray(logps)[tuple(map(slice, batch.completion_ids.shape))])

    def add_gradients(
        self, policy: Policy, grads: dict[str, mx.array], micro: MicroBatch
    ) -> tuple[jax.Array, mx.array, dict[str, jax.Array]]:
        ids = _padded_ids(micro.batch)
        rows, width = ids["completion_ids"].shape
        of_tokens = ("advantages", "old_logps", "ref_logps", "sampling_logps")
        others = {
            name: _padded(value, rows, *[width] * (value.ndim - 1))
            for name in of_tokens
            if (value := getattr(micro, name)) is not None
        }
        columns = {"policy_mask": width}
        weights = (_padded(each, rows, columns.get(name, 1)) for name, each in micro.weights._asdict().items())
        others["weights"] = BatchWeights(*weights)
        mask = _padded(micro.batch.completion_mask, rows, width)
        (loss, metrics), found = _gradients(
            self.config, self.loss_config, self.args.temperature, _arrays(policy.trained), ids, mask, others
        )
        for name in [*found]:
            grad = mx.array(np.asarray(found.pop(name)))
            grads[name] = grads.pop(name) + grad if name in grads else grad
        mx.eval(grads)
        logps = np.asarray(metrics.pop("logps"))[tuple(map(slice, micro.batch.completion_ids.shape))]
        return loss, mx.array(logps), metrics


@partial(jax.jit, static_argnums=(0, 1))
def _logps(config, temperature, params, ids):
    return token_logps_and_entropies(completion_logits(config, params, **ids), ids["completion_ids"], temperature)[0]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _gradients(config, loss_config, temperature, params, ids, mask, others):
    def loss_fn(params):
        logits = completion_logits(config, params, **ids)
        return grpo_loss_fn(loss_config, temperature)(logits, ids["completion_ids"], mask, **others)

    return jax.value_and_grad(loss_fn, has_aux=True)(params)


def _arrays(params: Mapping[str, mx.array]) -> dict[str, jax.Array]:
    """The parameters as JAX arrays, over the same memory if JAX accepts that."""
    return {name: jnp.asarray(np.array(value, copy=False)) for name, value in params.items()}


def _padded_ids(batch: PaddedBatch) -> dict[str, np.ndarray]:
    """The arguments of `completion_logits`, padded: prompts on the left, completions on the right."""
    (num_prompts, length), (_, width) = batch.prompt_ids.shape, batch.completion_ids.shape
    rows, left = 2 ** (num_prompts - 1).bit_length() - num_prompts, -length % WIDTH
    mask = np.ones(batch.prompt_ids.shape, np.int32) if batch.prompt_mask is None else np.array(batch.prompt_mask)
    room = [(0, rows), (left, 0)]
    return {
        "prompt_ids": np.pad(np.array(batch.prompt_ids), room),
        "completion_ids": np.pad(np.array(batch.completion_ids), [(0, rows * batch.group_size), (0, -width % WIDTH)]),
        "prompt_mask": np.pad(mask, room),
    }


def _padded(value: mx.array, *shape: int) -> np.ndarray:
    """The values padded with zeros at the end, up to this shape."""
    value = np.array(value)
    return np.pad(value, [(0, size - own) for size, own in zip(shape, value.shape, strict=True)])
