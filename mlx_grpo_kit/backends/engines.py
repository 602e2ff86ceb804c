"""Inference engines: servers that write completions, with weights that any training backend may have trained.

    engines = [MLXEngine(config), ProcessEngine(config)]
    folder = await backend.save_checkpoint(step, metrics)
    await sync_weights_to_engines(engines, folder)
    rollout, version = await engines[0].generate(prompts, seed=0).result()

An inference engine knows nothing of the backend, and a backend nothing of its engines: what passes between them is a
folder, or a dictionary of arrays of any framework, and the number of its version. `process_engine.py` has an inference
engine in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import anyio

from mlx_grpo_kit.backends.checkpoint_weights import read_weights
from mlx_grpo_kit.backends.checkpoints import read_metadata
from mlx_grpo_kit.backends.future import TrainFuture
from mlx_grpo_kit.backends.weights import flat, to_kit
from mlx_grpo_kit.backends.worker import RefusedError, Worker
from mlx_grpo_kit.generation import Rollout, generate
from mlx_grpo_kit.generation.batching import TokenIds
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.runtime import mx


class EngineError(RuntimeError):
    """An inference engine cannot do what it was asked for. It keeps serving the same weights, if it still runs."""


class WeightSyncError(EngineError):
    """Some inference engines did not take the weights. `served` says what each of them all serves now."""

    def __init__(self, message: str, served: list[Served]):
        super().__init__(message)
        self.served = served


class Generated(NamedTuple):
    """A rollout, and the version of the weights that wrote all of it."""

    rollout: Rollout
    weight_version: int


class Engine(Protocol):
    """An inference engine: a server that writes completions.

    Both operations are submitted at once and done in order, one at a time.

    Attributes:
        name: what messages call it.
        weight_version: of the weights that it serves; None before the first.
    """

    name: str
    weight_version: int | None

    def load_weights(self, weights: Mapping[str, Any], version: int, *, allow_older: bool = False) -> TrainFuture[int]:
        """Serve other weights from the next `generate` on: all of them, or, after an error, still the old ones.

        Args:
            weights: arrays of any framework under the kit's names or the published ones.
            version: a number that never falls, unless `allow_older` says that it may.

        The future is the version, or raises ValueError for weights that are not the model's and for an older version.
        """
        ...

    def generate(self, prompts: Sequence[TokenIds], **settings: Any) -> TrainFuture[Generated]:
        """Continue prompts; `settings` are those of the kit's `generate`."""
        ...

    def close(self) -> None:
        """Leave. Twice is once."""
        ...


class Serving:
    """The weights that are served and who computes with them. It has no thread and no order, unlike an engine."""

    def __init__(self, config: Qwen3Config, name: str):
        self.config, self.name = config, name
        self.weight_version: int | None = None
        self._params: dict[str, mx.array] | None = None

    def load(self, weights: Mapping[str, Any], version: int, allow_older: bool) -> int:
        """`Engine.load_weights`, at once."""
        if not isinstance(version, int) or isinstance(version, bool) or version < 0:
            raise ValueError(f"version is {version!r}; expected a whole number from 0.")
        if self.weight_version is not None and version < self.weight_version and not allow_older:
            raise ValueError(
                f"Inference engine {self.name!r} serves version {self.weight_version}, and these weights are version "
                f"{version}. Versions do not go back, unless allow_older=True says that this is meant."
            )
        params = to_kit(self.config, weights)
        self._params, self.weight_version = params, version
        return version

    def generate(self, prompts: Sequence[TokenIds], settings: Mapping[str, Any]) -> Generated:
        """`Engine.generate`, at once."""
        if self._params is None or self.weight_version is None:
            raise EngineError(
                f"Inference engine {self.name!r} has no weights yet. Load some first: sync_weights_to_engines."
            )
        return Generated(generate(self.config, self._params, prompts, **settings), self.weight_version)


class MLXEngine:
    """An inference engine: the kit's own generation, in this process and a thread of its own.

    Args:
        config: of the model.
        weights: the first to be served, as version `version`; None: there are none before `load_weights`.
        name: what messages call it.
    """

    def __init__(
        self, config: Qwen3Config, weights: Mapping[str, Any] | None = None, version: int = 0, *, name: str = "mlx"
    ):
        self.name = name
        self._serving = Serving(config, name)
        self._worker = Worker(f"engine {name}", at_start=lambda: None, at_end=mx.clear_streams, finishes=False)
        if weights is not None:
            self.load_weights(weights, version).wait()

    @property
    def weight_version(self) -> int | None:
        return self._serving.weight_version

    def load_weights(self, weights: Mapping[str, Any], version: int, *, allow_older: bool = False) -> TrainFuture[int]:
        weights = flat(weights)
        mx.eval([value for value in weights.values() if isinstance(value, mx.array)])  # only then they may cross
        return self._submit("load_weights", self._serving.load, weights, version, allow_older)

    def generate(self, prompts: Sequence[TokenIds], **settings: Any) -> TrainFuture[Generated]:
        return self._submit("generate", self._serving.generate, prompts, settings)

    def close(self) -> None:
        self._worker.close(finish=False)

    def _submit(self, operation: str, function: Any, *arguments: Any) -> TrainFuture[Any]:
        return self._worker.submit(operation, lambda: refusing(function, *arguments))

    def __enter__(self) -> MLXEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def refusing(function: Any, *arguments: Any) -> Any:
    """Call what changes nothing when it fails: the thread that it runs in goes on afterwards."""
    try:
        return function(*arguments)
    except Exception as error:
        raise RefusedError from error


@dataclass(frozen=True)
class Served:
    """The weights that an inference engine serves after a sync, and the reason if they are not those it was given."""

    engine: str
    weight_version: int | None
    error: Exception | None = None


async def sync_weights_to_engines(
    engines: Sequence[Engine], checkpoint: str | os.PathLike, *, allow_older: bool = False
) -> list[Served]:
    """Have every inference engine serve the weights of a training backend's checkpoint. Runs in trio and in asyncio.

    The checkpoint is read and checked once, before any engine hears of it. Then all engines load at the same time, each
    all of it or nothing.

    Args:
        engines: one or more inference engines.
        checkpoint: a folder that `save_checkpoint` of a training backend has written.
        allow_older: whether an engine may be given an older version than it serves.

    Returns:
        What each engine serves now, in their order.

    Raises:
        FileNotFoundError, ValueError: there is no whole checkpoint of a backend there; no engine was touched.
        WeightSyncError: some engines did not take the weights; the others did. Its `served` is the list.
    """
    engines = [*engines]
    if not engines:
        raise ValueError("There are no inference engines; expected at least one.")
    checkpoint = Path(checkpoint)
    metadata = await anyio.to_thread.run_sync(read_metadata, checkpoint)  # every byte is hashed: that takes its time
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
        reasons = "; ".join(f"{each.engine!r} serves version {each.weight_version}: {each.error}" for each in failed)
        well = ", ".join(repr(each.engine) for each in served if each.error is None) or "none"
        raise WeightSyncError(
            f"{len(failed)} of {len(engines)} inference engines did not take version {version} of {checkpoint}. "
            f"{reasons} Engines that serve version {version}: {well}.",
            served,
        ) from failed[0].error
    return served
