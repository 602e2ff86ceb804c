"""JAX: compiled pure functions; a step computes new weights from old ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from mlx_grpo_kit.backends.base import Backend, check_kind, logits_of
from mlx_grpo_kit.backends.incoming import fitting
from mlx_grpo_kit.backends.learning_rate import reported_rate

STATE = "orbax"
_ORBAX = threading.Lock()
"""One save at a time per process: two simultaneous saves of orbax would wait for each other until a timeout."""


@dataclass(eq=False, repr=False)
class JAXTrainingBackend(Backend):
    """Training with `apply_fn(params, input_ids) -> logits` and an optimizer of optax.

    Two functions are compiled for each set of shapes: one computes the gradient of a batch, the other the new weights
        and optimizer's state. Batches of known shapes need no compilation, so pad to a few lengths.

    Weights are copied at the beginning, because a step overwrites them in the same memory; your own arrays are
    unchanged.

    For several devices you only need placement: weights on those devices, whole or sharded, and a `batch_sharding` that
        distributes the rows. The compiler adds the communication, and loss and gradient are those of the whole batch.

        mesh = jax.sharding.Mesh(jax.devices(), ("rows",))
        params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
        JAXTrainingBackend(apply_fn, params, ..., batch_sharding=NamedSharding(mesh, PartitionSpec("rows")))

    Checkpoints contain the folder `orbax`, with weights and the optimizer's state in orbax's format.

    Attributes:
        apply_fn: computes logits from parameters and "input_ids" of a batch.
        params: floating-point arrays, in a dictionary by name or in any pytree; then names are paths joined by dots.
        optimizer: an optax optimizer for gradients of the same structure. Put clipping into it with `optax.chain`.
        loss_fn, checkpoint_dir, weight_version, current_step: see `Backend`.
        learning_rate: a number or a schedule by step, which `optim_step` reports. None means the optimizer's own rate,
            or NaN if it has several.
        batch_sharding: the placement of the rows of each array in a batch; None leaves batches where they are.
        opt_state: the optimizer's state.
    """

    array = jax.Array

    apply_fn: Callable[..., jax.Array]
    params: Any
    optimizer: optax.GradientTransformation
    loss_fn: Callable[..., Any]
    checkpoint_dir: Path
    weight_version: int = 0
    current_step: int = 0
    learning_rate: float | Callable[[int], float] | None = field(default=None, kw_only=True)
    batch_sharding: Sharding | None = field(default=None, kw_only=True)
    opt_state: Any = field(default=None, init=False)

    def __post_init__(self):
        check_kind("apply_fn", self.apply_fn, Callable, "a function of params, input")
        check_kind("optimizer", self.optimizer, optax.GradientTransformation, "one of optax")
        self.params = jax.tree.map(_own, self.params)
        self._check_params()
        super().__post_init__()
        self.opt_state = jax.tree.map(self._placed, self.optimizer.init(self.params))
        # Tell the compiler the placements, or it may put a step's result elsewhere and compile again for that.
        weights, state = (jax.tree.map(lambda each: each.sharding, tree) for tree in (self.params, self.opt_state))
        self._gradient = jax.jit(self._loss_and_gradient, out_shardings=(None, None, weights, None))
        self._sum = jax.jit(_sum, donate_argnums=0, out_shardings=(weights, None))
        self._update = jax.jit(self._updated, donate_argnums=(0, 1), out_shardings=(weights, state))

    def _loss_and_gradient(self, params: Any, batch: Mapping[str, Any]):
        def loss_of(params: Any) -> tuple[jax.Array, Mapping[str, Any]]:
            loss, metrics = self._loss(logits_of(partial(self.apply_fn, params), batch["input_ids"]), batch)
            for name, each in metrics.items():
                if not isinstance(each, jax.Array | np.ndarray | np.number | int | float):
                    kind = type(each).__name__
                    raise TypeError(f"Metric {name!r} is of type {kind}; expected a number or array.")
            return loss, metrics

        (loss, metrics), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        return loss, metrics, grads, _norm(grads)

    def _updated(self, params: Any, opt_state: Any, grads: Any) -> tuple[Any, Any]:
        updates, opt_state = self.optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def _compute_gradient(self, batch: Mapping[str, Any]) -> tuple[jax.Array, Mapping[str, Any], Any]:
        if self.batch_sharding is not None:
            batch = jax.tree.map(
                lambda each: jax.device_put(each, self.batch_sharding) if np.ndim(each) else each, batch
            )
        loss, metrics, grads, norm = self._gradient(self.params, dict(batch))
        return loss, metrics, (grads, norm)

    def _add_gradient(self, gradient: Any) -> jax.Array:
        grads, norm = gradient
        if self._grads is None:
            self._grads = grads
        else:
            self._grads, norm = self._sum(self._grads, grads)
        return norm

    def _apply_gradient(self) -> float:
        self.params, self.opt_state = jax.block_until_ready(self._update(self.params, self.opt_state, self._grads))
        return self._rate()

    def _rate(self) -> float:
        if self.learning_rate is None:
            states = jax.tree.leaves(self.opt_state, is_leaf=lambda each: hasattr(each, "hyperparams"))
            # Set by inject_hyperparams:
            injected = [each.hyperparams for each in states if hasattr(each, "hyperparams")]
            if len(injected) == 1 and "learning_rate" in injected[0]:
                return float(injected[0]["learning_rate"])
        return reported_rate(self.learning_rate, self.optimizer, self.current_step)

    def _weights(self) -> dict[str, jax.Array]:
        return by_name(self.params)

    def _set_weights(self, weights: dict[str, jax.Array]) -> None:
        self.params = in_place_of(self.params, weights)

    def _copy(self, array: jax.Array) -> jax.Array:
        return _own(array)

    def _write(self, folder: Path) -> None:
        with _ORBAX, ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder.absolute() / STATE, self._state())

    def _read(self, folder: Path) -> dict[str, dict[str, jax.Array]]:
        ours, path = self._state(), folder.absolute() / STATE
        try:
            found = _restored(path, ours)
        except Exception as error:  # errors of orbax and its storage for a folder that is not theirs
            raise ValueError(f"{path} cannot be read ({error}). It is corrupt, or not from this kit.") from error
        what = {"weights": "Weight", "optimizer": "The optimizer's"}
        return {part: fitting(self.array, what[part], found.get(part, {}), mine) for part, mine in ours.items()}

    def _restore(self, state: dict[str, dict[str, jax.Array]]) -> None:
        self.params = in_place_of(self.params, state["weights"])
        self.opt_state = in_place_of(self.opt_state, state["optimizer"])

    def _state(self) -> dict[str, dict[str, jax.Array]]:
        return {"weights": self._weights(), "optimizer": by_name(self.opt_state)}

    def _placed(self, array: jax.Array) -> jax.Array:
        """An array of the optimizer on the devices of the weights. A step count is on one device at first."""
        weights = jax.tree.leaves(self.params)[0].sharding
        if array.sharding.device_set == weights.device_set:
            return _own(array)
        return jax.device_put(array, NamedSharding(weights.mesh, PartitionSpec()))

    def _check_params(self) -> None:
        params = by_name(self.params)
        if not params:
            raise ValueError("params contains no arrays; expected the model's weights by name.")
        for name, array in params.items():
            if not jnp.issubdtype(array.dtype, jnp.floating):
                raise TypeError(f"Parameter {name!r} has dtype {array.dtype}; expected a floating-point one.")
            if self.batch_sharding is not None and array.sharding.device_set != self.batch_sharding.device_set:
                raise ValueError(
                    f"Parameter {name!r} is on {len(array.sharding.device_set)} devices; batch_sharding distributes "
                    f"batches over {len(self.batch_sharding.device_set)}. Put the weights on the same devices first: "
                    "jax.device_put(params, NamedSharding(mesh, PartitionSpec())) copies all of them to each device."
                )

    def _check_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        batch = super()._check_batch(batch)
        if self.batch_sharding is not None:
            for name, array in by_name(batch).items():
                self._check_rows(name, np.shape(array))
        return batch

    def _check_rows(self, name: str, shape: tuple[int, ...]) -> None:
        try:
            if shape:
                self.batch_sharding.shard_shape(shape)
        except ValueError as error:
            raise ValueError(
                f"The batch's {name!r} has shape {shape}, which batch_sharding cannot divide evenly among its "
                f"{len(self.batch_sharding.device_set)} devices. Add rows, with a loss_mask of 0, or leave some out."
            ) from error


def _sum(grads: Any, others: Any) -> tuple[Any, jax.Array]:
    grads = jax.tree.map(jnp.add, grads, others)
    return grads, _norm(grads)


def _norm(grads: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.square(each.astype(jnp.float32)).sum() for each in jax.tree.leaves(grads)))


def _own(array: Any) -> jax.Array:
    """A copy on the same device."""
    array = jnp.asarray(array)
    return jax.device_put(array, array.sharding, may_alias=False)


def by_name(tree: Any) -> dict[str, jax.Array]:
    """The arrays of a pytree by their paths, joined by dots."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def in_place_of(tree: Any, arrays: Mapping[str, jax.Array]) -> Any:
    """A pytree like `tree` with copies of these arrays, each on the device of the array that it replaces."""
    leaves = [jax.device_put(arrays[name], old.sharding, may_alias=False) for name, old in by_name(tree).items()]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def _restored(path: Path, ours: Mapping[str, Mapping[str, jax.Array]]) -> dict[str, dict[str, jax.Array]]:
    """The content that orbax saved at `path`, with its shapes and dtypes, placed like the arrays of `ours`."""
    with _ORBAX, ocp.StandardCheckpointer() as checkpointer:
        saved = checkpointer.metadata(path).item_metadata.tree
        # Orbax would silently convert a dtype that was not requested.
        target = {
            part: {name: _asked_for(each, ours.get(part, {}).get(name)) for name, each in arrays.items()}
            for part, arrays in saved.items()
        }
        return checkpointer.restore(path, target)


def _asked_for(saved: Any, ours: jax.Array | None) -> jax.ShapeDtypeStruct:
    fits = ours is not None and ours.shape == tuple(saved.shape)
    where = ours.sharding if fits else jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(saved.shape, saved.dtype, sharding=where)
