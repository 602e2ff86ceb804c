"""Inference engines that write completions, and the transfer of weights to them from any training backend.

    engines = [MLXEngine(config), ProcessEngine(config)]
    folder = await backend.save_checkpoint(step, metrics)
    await sync_weights_to_engines(engines, folder)
    rollout, version = await engines[0].generate(prompts, seed=0).result()

Inference engines and training backends are independent: they exchange only a folder, or a dictionary of arrays of any
framework, and its version number. `inference_process.py` has an inference engine in a separate process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import anyio

from mlx_grpo_kit.backends.checkpoints import read_metadata
from mlx_grpo_kit.backends.future import TrainFuture
from mlx_grpo_kit.backends.weights import flat, read_weights, to_kit
from mlx_grpo_kit.backends.worker import Worker, refusing
from mlx_grpo_kit.generation import Rollout, generate
from mlx_grpo_kit.generation.padding import TokenIds
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.runtime import mx


class EngineError(RuntimeError):
    """An inference engine cannot do an operation. If it still runs, it keeps its weights."""


class WeightSyncError(EngineError):
    """Some inference engines did not load the weights. `served` lists the present state of every engine."""

    def __init__(self, message: str, served: list[Served]):
        super().__init__(message)
        self.served = served


class Generated(NamedTuple):
    """A rollout, and the version of the weights that wrote all of it."""

    rollout: Rollout
    weight_version: int


class Engine(Protocol):
    """An inference engine: a server that writes completions.

    Operations are submitted without waiting, and done in order, one at a time.

    Attributes:
        name: its name in messages.
        weight_version: the version of its weights; None before the first.
    """

    name: str
    weight_version: int | None

    def load_weights(self, weights: Mapping[str, Any], version: int, *, allow_older: bool = False) -> TrainFuture[int]:
        """Use other weights from the next `generate` on. After an error all the old weights are still used.

        Args:
            weights: arrays of any framework under the kit's names or the published ones.
            version: a number that must not fall, unless `allow_older`.

        The future returns the version, or raises ValueError for weights that do not fit the model and for an older
        version.
        """
        ...

    def generate(self, prompts: Sequence[TokenIds], **settings: Any) -> TrainFuture[Generated]:
        """Continue prompts; `settings` are the arguments of the kit's `generate`."""
        ...

    def close(self) -> None:
        """End the engine. A second call has no effect."""
        ...


class Serving:
    """The weights and the generation of an inference engine, without its thread and its queue."""

    def __init__(self, config: Qwen3Config, name: str):
        self.config, self.name = config, name
        self.weight_version: int | None = None
        self._params: dict[str, mx.array] | None = None

    def load(self, weights: Mapping[str, Any], version: int, allow_older: bool) -> int:
        """Do `Engine.load_weights` immediately."""
        if not isinstance(version, int) or isinstance(version, bool) or version < 0:
            raise ValueError(f"version is {version!r}; expected a whole number from 0.")
        if self.weight_version is not None and version < self.weight_version and not allow_older:
            raise ValueError(
                f"Inference engine {self.name!r} serves version {self.weight_version}, and these weights are version "
                f"{version}. Pass allow_older=True if you mean to go back to an older version."
            )
        params = to_kit(self.config, weights)
        self._params, self.weight_version = params, version
        return version

    def generate(self, prompts: Sequence[TokenIds], settings: Mapping[str, Any]) -> Generated:
        """Do `Engine.generate` immediately."""
        if self._params is None or self.weight_version is None:
            raise EngineError(
                f"Inference engine {self.name!r} has no weights yet. Load some first: sync_weights_to_engines."
            )
        return Generated(generate(self.config, self._params, prompts, **settings), self.weight_version)


class MLXEngine:
    """An inference engine: the kit's own generation, in a separate thread of this process.

    Args:
        config: the configuration of the model.
        weights: the first weights, with version `version`; None means none before `load_weights`.
        name: its name in messages.
    """

    def __init__(
        self, config: Qwen3Config, weights: Mapping[str, Any] | None = None, version: int = 0, *, name: str = "mlx"
    ):
        self.name = name
        self._serving = Serving(config, name)
        self._worker = Worker(f"engine {name}", at_end=mx.clear_streams, finishes=False)
        if weights is not None:
            self.load_weights(weights, version).wait()

    @property
    def weight_version(self) -> int | None:
        return self._serving.weight_version

    def load_weights(self, weights: Mapping[str, Any], version: int, *, allow_older: bool = False) -> TrainFuture[int]:
        weights = flat(weights)
        # Evaluated before they move to another thread:
        mx.eval([value for value in weights.values() if isinstance(value, mx.array)])
        return self._submit("load_weights", self._serving.load, weights, version, allow_older)

    def generate(self, prompts: Sequence[TokenIds], **settings: Any) -> TrainFuture[Generated]:
        return self._submit("generate", self._serving.generate, prompts, settings)

    def close(self) -> None:
        self._worker.close(finish=False)

    def _submit(self, operation: str, function: Any, *arguments: Any) -> TrainFuture[Any]:
        @refusing()  # a failed operation changes nothing
        def call() -> Any:
            return function(*arguments)

        return self._worker.submit(operation, call)

    def __enter__(self) -> MLXEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True)
class Served:
    """The version of an inference engine's weights after a sync, and the error if it did not load the new ones."""

    engine: str
    weight_version: int | None
    error: Exception | None = None


async def sync_weights_to_engines(
    engines: Sequence[Engine], checkpoint: str | os.PathLike, *, allow_older: bool = False
) -> list[Served]:
    """Load a training backend's checkpoint into every inference engine. Runs in trio and in asyncio.

    The checkpoint is read and checked once, before any engine is touched. Then all engines load at the same time, each
    completely or not at all.

    Args:
        engines: one or more inference engines.
        checkpoint: a folder that `save_checkpoint` of a training backend has written.
        allow_older: True to allow a version that is older than an engine's.

    Returns:
        The state of each engine, in their order.

    Raises:
        FileNotFoundError, ValueError: there is no complete checkpoint of a backend; no engine was touched.
        WeightSyncError: some engines did not load the weights, and the others did. Its `served` is the list.
    """
    engines = [*engines]
    if not engines:
        raise ValueError("There are no inference engines; expected at least one.")
    checkpoint = Path(checkpoint)
    metadata = await anyio.to_thread.run_sync(read_metadata, checkpoint)  # because hashing every byte takes time
    weights, version = read_weights(checkpoint), metadata["weight_version"]
    served: list[Served | None] = [None] * len(engines)

    async def load(place: int) -> None:
        engine, error = engines[place], None
        try:
            await engine.load_weights(weights, version, allow_older=allow_older).result()
        except Exception as raised:
            error = raised
        served[place] = Served(engine.name, engine.weight_version, error)

    async with anyio.create_task_group() as tasks:
        for place in range(len(engines)):
            tasks.start_soon(load, place)
    if failed := [each for each in served if each.error is not None]:
        reasons = "; ".join(f"{each.engine!r} still has version {each.weight_version}: {each.error}" for each in failed)
        well = ", ".join(repr(each.engine) for each in served if each.error is None) or "none"
        raise WeightSyncError(
            f"{len(failed)} of {len(engines)} inference engines did not load version {version} of {checkpoint}. "
            f"{reasons} Engines with version {version}: {well}.",
            served,
        ) from failed[0].error
    return served
