"""The parts that the five backends share: the order of operations, checks, checkpoints. No arithmetic."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from mlx_grpo_kit.backends.checkpoints import kept_metrics, read_metadata, write_checkpoint
from mlx_grpo_kit.backends.future import TrainFuture, failed
from mlx_grpo_kit.backends.incoming import BATCH, brought, checked_batch, fitting
from mlx_grpo_kit.backends.worker import RefusedError, Worker
from mlx_grpo_kit.files import whole_folder

T = TypeVar("T")

OWN_METRICS = ("loss", "grad_norm")


class Backend(ABC):
    """A training backend but for its framework, which implements the methods below that have no body.

    A backend is a data class with at least the attributes below; its `__post_init__` calls this one. Each of its
    methods runs in the backend's own thread, in the order in which operations were submitted. One that raises after it
    may have changed something leaves the backend `poisoned`: it does nothing more.

    Attributes:
        array: the framework's type of array.
        needs_tokens: whether a batch without any token to learn from is refused.
        loss_fn: `loss_fn(logits, labels, loss_mask, **rest)` with whatever else a batch holds; returns a scalar, or a
            scalar and a dictionary of metrics.
        optimizer: its class is written into checkpoints, and compared.
        checkpoint_dir: where `save_checkpoint` writes; made if need be.
        weight_version: how often weights were saved.
        current_step: optimizer steps done.
    """

    array: ClassVar[type]
    needs_tokens: ClassVar[bool] = True
    loss_fn: Callable[..., Any]
    optimizer: Any
    checkpoint_dir: Path
    weight_version: int
    current_step: int

    @abstractmethod
    def _compute_gradient(self, batch: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any], Any]:
        """(loss, metrics, gradient) of a batch, the last in whatever form `_add_gradient` takes. See `_loss`.

        Changes nothing of what the backend holds, but for buffers of a module and the random state.
        """

    @abstractmethod
    def _add_gradient(self, gradient: Any) -> Any:
        """Add a batch's gradient to the sum; returns the norm of the sum."""

    @abstractmethod
    def _apply_gradient(self) -> float:
        """Take an optimizer step with the sum of gradients, which the base clears then: the learning rate."""

    @abstractmethod
    def _clear_gradient(self) -> None:
        """Forget the sum of gradients."""

    @abstractmethod
    def _weights(self) -> dict[str, Any]:
        """The weights themselves, no copies, by name."""

    @abstractmethod
    def _set_weights(self, weights: dict[str, Any]) -> None:
        """Put others in their place: of the same names, shapes and dtypes."""

    @abstractmethod
    def _copy(self, array: Any) -> Any:
        """An array of the same numbers that shares nothing with this one and has no gradient."""

    @abstractmethod
    def _numpy(self, array: Any) -> np.ndarray:
        """An array of the framework as one of NumPy."""

    @abstractmethod
    def _write(self, folder: Path) -> None:
        """Write weights, the optimizer's state and the random state into an empty folder."""

    @abstractmethod
    def _read(self, folder: Path) -> Any:
        """Read a folder that `_write` wrote, for `_restore`; changes nothing.

        Raises ValueError, naming what differs, where it does not fit this model and this optimizer.
        """

    @abstractmethod
    def _restore(self, state: Any) -> None:
        """Go on from what `_read` found to be right."""

    def _begin_thread(self) -> Callable[[], None]:
        """Prepare the backend's thread before its first operation, for example settings that belong to a thread."""
        return lambda: None

    @staticmethod  # noqa: B027
    def _end_thread() -> None:
        """The last that the backend's thread does."""

    def __post_init__(self):
        if not callable(self.loss_fn):
            kind = type(self.loss_fn).__name__
            raise TypeError(f"loss_fn is of type {kind}; expected a function of logits, labels and loss_mask.")
        if self.optimizer is None:
            raise TypeError("optimizer is of type NoneType; expected one of the framework's optimizers.")
        if not isinstance(self.checkpoint_dir, str | os.PathLike):
            kind = type(self.checkpoint_dir).__name__
            raise TypeError(f"checkpoint_dir is of type {kind}; expected the path of a folder.")
        for name in ("weight_version", "current_step"):
            _check_count(name, getattr(self, name))
        self.checkpoint_dir = Path(self.checkpoint_dir)
        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        self._has_gradient = False
        self._gradient_norm = math.nan
        self._worker = Worker(type(self).__name__, self._begin_thread(), self._end_thread)

    # What is submitted.

    def forward_backward(self, batch: Mapping[str, Any]) -> TrainFuture[dict[str, Any]]:
        """Compute the loss of a batch, and add its gradient to what is there.

        Gradients are summed over calls. Where the loss is a mean over tokens and a step takes several batches, let each
        loss be its share of the whole: divide by the number of tokens of all batches, which a batch may hold as
        `num_items_in_batch`, say, for the loss function to take.

        Args:
            batch: "input_ids", which the model is called with (an array, or a tuple or dictionary of arrays: several
                arguments), "labels" and "loss_mask" of one shape (without a mask every label counts), and anything
                else, which the loss function gets by keyword. Its arrays are not copied: leave them alone until the
                operation is over.

        Returns:
            A future of {"loss", "grad_norm"}, floats, and the loss function's metrics: scalars as floats, arrays as
            NumPy's. The norm is that of the sum of gradients so far.

        Raises:
            TypeError, ValueError: the batch is not one, or the loss function cannot be called with it. Nothing was
                submitted and the backend is as it was.
            TrainingError: an earlier operation failed.

        The future raises TrainingError too. If the model or the loss function raises, no gradient is added and the
        backend goes on: only what had been submitted after this batch is not done either. If loss or gradient is not
        finite, the backend is `poisoned`.
        """
        batch = self._check_batch(batch)
        return self._submit("forward_backward", lambda: self._forward_backward(batch))

    def optim_step(self) -> TrainFuture[dict[str, float]]:
        """Take an optimizer step with the sum of gradients, and clear it.

        Returns:
            A future of {"lr", "step", "grad_norm"}: the rate it was taken with, how many there have been now, and the
            norm of the gradient before any clipping. It raises RuntimeError where there is no gradient.

        Raises:
            TrainingError: an earlier operation failed.
        """
        return self._submit("optim_step", self._optim_step)

    def get_weights(self) -> TrainFuture[dict[str, Any]]:
        """The weights by name: copies, which no later step changes."""
        return self._submit("get_weights", lambda: {name: self._copy(array) for name, array in self._weights().items()})

    def load_weights(self, weights: Mapping[str, Any]) -> TrainFuture[None]:
        """Put these weights in the place of those that are there; gradients of those are cleared.

        Args:
            weights: arrays of any framework, or NumPy's, of exactly the names, shapes and dtypes of `get_weights`.
                float32 is taken for bfloat16 where that holds the same numbers, as NumPy has no bfloat16.

        Returns:
            A future, which raises TypeError or ValueError, with nothing changed, where they do not fit or are NaN.
        """
        if not isinstance(weights, Mapping):
            raise TypeError(f"weights came as {type(weights).__name__}; expected a dictionary of arrays by name.")
        weights = brought(weights, self.array)
        return self._submit("load_weights", lambda: self._load_weights(weights))

    def save_checkpoint(self, step: int, metrics: Mapping[str, Any] | None = None) -> TrainFuture[Path]:
        """Write step_{step:04d}/ into checkpoint_dir, whole or not at all, and count weight_version up.

        Weights, the optimizer's state and the random state are saved, gradients are not. A checkpoint of the same step
        is replaced. Like every operation it is submitted at once, and saves what the operations before it lead to.

        Args:
            step: the number in its name. `current_step`, the optimizer steps done, is saved besides.
            metrics: kept in metadata.json: numbers of Python, NumPy or a framework; NaN and inf become null. Arrays, as
                in what `forward_backward` returns, are left out.

        Returns:
            A future of the checkpoint's folder: `await` it, or call its `wait()`. It raises OSError if the checkpoint
            could not be written; the backend goes on.

        Raises:
            TypeError, ValueError: the step is no count, or a metric cannot be written or takes too much room. Nothing
                was submitted.
            TrainingError: an earlier operation failed.
        """
        _check_count("step", step)
        if not isinstance(metrics, Mapping | None):
            raise TypeError(f"metrics came as {type(metrics).__name__}; expected a dictionary of numbers by name.")
        metrics = kept_metrics(metrics or {})
        return self._submit("save_checkpoint", lambda: self._save(int(step), metrics))

    def load_checkpoint(self, checkpoint_path: str | os.PathLike) -> TrainFuture[dict[str, Any]]:
        """Go on from a checkpoint: weights, optimizer, random state, weight_version and current_step.

        All of it is read and compared before anything is changed. What is refused leaves the backend as it was.

        Returns:
            A future of what is in its metadata.json. It raises FileNotFoundError or ValueError if the checkpoint is
            missing, not whole, or another model's or optimizer's.

        Raises:
            TrainingError: an earlier operation failed.
        """
        path = Path(checkpoint_path)
        return self._submit("load_checkpoint", lambda: self._load(path))

    @property
    def poisoned(self) -> bool:
        """True after an operation failed that may have changed something. Make a new backend then."""
        return self._worker.poisoned

    def close(self) -> None:
        """Finish what was submitted and end the backend's thread.

        Raises TrainingError for an operation that failed without anybody having been told.
        """
        self._worker.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self._worker.close(finish=error is None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} step {self.current_step}, weight version {self.weight_version}>"

    # What the thread does.

    def _submit(self, operation: str, function: Callable[[], T]) -> TrainFuture[T]:
        return self._worker.submit(operation, function)

    def _forward_backward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        with self._before_any_change():
            loss, metrics, gradient = self._compute_gradient(batch)
            loss, metrics = float(loss), {name: self._metric(name, each) for name, each in metrics.items()}
        if not math.isfinite(loss):
            raise ValueError(f"The loss is {loss}. Look for 0 / 0, inf - inf and log(0) in the loss function.")
        norm = float(self._add_gradient(gradient))
        if not math.isfinite(norm):
            raise ValueError(f"The loss is {loss:.6g}, but the norm of its gradient is {norm}.")
        self._has_gradient, self._gradient_norm = True, norm
        return {"loss": loss, "grad_norm": norm, **metrics}

    @contextmanager
    def _before_any_change(self) -> Iterator[None]:
        """An exception in here reaches the caller as a TrainingError, and poisons nothing."""
        try:
            yield
        except Exception as error:
            raise RefusedError(skips=True) from failed("forward_backward", error)

    def _optim_step(self) -> dict[str, float]:
        if not self._has_gradient:
            with refusing():
                raise RuntimeError("There is no gradient to take a step with. Submit a forward_backward first.")
        rate = float(self._apply_gradient())
        self._forget_gradient()
        self.current_step += 1
        return {"lr": rate, "step": self.current_step, "grad_norm": self._gradient_norm}

    def _load_weights(self, weights: dict[str, Any]) -> None:
        with refusing():
            weights = self._checked(lambda: fitting(self.array, "Weight", weights, self._weights()))
        self._set_weights(weights)
        self._forget_gradient()

    def _save(self, step: int, metrics: dict[str, Any]) -> Path:
        folder = self.checkpoint_dir / f"step_{step:04d}"
        about = {"step": step, "current_step": self.current_step, "weight_version": self.weight_version + 1}
        about |= {"metrics": metrics, **self._makers()}
        with refusing():
            self._write_checkpoint(folder, about)
        self.weight_version += 1
        return folder

    def _load(self, path: Path) -> dict[str, Any]:
        with refusing():
            metadata, state = self._checked(lambda: self._read_checkpoint(path))
        self._restore(state)
        self._forget_gradient()
        self.weight_version = metadata["weight_version"]
        self.current_step = metadata.get("current_step", metadata["step"])
        return metadata

    def _checked(self, look: Callable[[], T]) -> T:
        """Return the result of `look()`, which raises an error for bad input."""
        return look()

    def _write_checkpoint(self, folder: Path, about: Mapping[str, Any]) -> None:
        write_checkpoint(folder, about, self._write)

    def _read_checkpoint(self, path: Path) -> tuple[dict[str, Any], Any]:
        metadata = read_metadata(path)
        for what, name in self._makers().items():
            if metadata[what] != name:
                raise ValueError(f"{path} was saved with the {what} {metadata[what]}; this one is {name}.")
        return metadata, self._read(whole_folder(path))

    def _makers(self) -> dict[str, str]:
        """The backends whose checkpoints this backend reads."""
        return {"backend": type(self).__name__, "optimizer": type(self.optimizer).__name__}

    def _forget_gradient(self) -> None:
        self._clear_gradient()
        self._has_gradient = False

    # What the frameworks' parts use.

    def _loss(self, logits: Any, batch: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """(loss, metrics) of the user's loss function; TypeError where the loss is no scalar of the framework."""
        rest = {name: value for name, value in batch.items() if name not in BATCH}
        found = self.loss_fn(logits, batch["labels"], batch["loss_mask"], **rest)
        loss, metrics = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
        if not isinstance(loss, self.array):
            raise TypeError(
                f"The loss function returned {type(loss).__name__}; expected a scalar {self.array.__name__}, or that "
                "and a dictionary of metrics. Leave out .item() and float(): they cut the loss off from the parameters."
            )
        if tuple(loss.shape) != ():
            raise TypeError(f"The loss has shape {tuple(loss.shape)}; expected a scalar. Reduce it: .sum() or .mean().")
        if not isinstance(metrics, Mapping):
            raise TypeError(f"The metrics came as {type(metrics).__name__}; expected a dictionary of them by name.")
        if own := [name for name in OWN_METRICS if name in metrics]:
            raise ValueError(f"The loss function returned a metric {own[0]!r}; the backend has its own. Rename it.")
        return loss, metrics

    def _metric(self, name: str, value: Any) -> float | np.ndarray:
        value = self._numpy(value) if isinstance(value, self.array) else value
        if isinstance(value, np.ndarray) and value.ndim:
            return value
        try:
            return float(value)
        except (TypeError, ValueError):
            raise TypeError(f"Metric {name!r} is of type {type(value).__name__}; expected a number or array.") from None

    def _check_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return checked_batch(batch, self.array, self.loss_fn, self.needs_tokens)


def logits_of(model: Callable[..., Any], input_ids: Any) -> Any:
    """Apply a model to its input: one array, several in a tuple, or several by name in a dictionary."""
    if isinstance(input_ids, Mapping):
        output = model(**input_ids)
    else:
        output = model(*input_ids) if isinstance(input_ids, tuple) else model(input_ids)
    return getattr(output, "logits", output)


def check_max_grad_norm(value: float | None) -> None:
    """Raise TypeError or ValueError unless the limit is None or a number above 0."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float | np.number)):
        raise TypeError(f"max_grad_norm is {value!r}; expected a number above 0, or None.")
    if value is not None and not value > 0:
        raise ValueError(f"max_grad_norm is {value}; expected a number above 0, or None for no clipping.")


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is {value!r}; expected a whole number.")
    if value < 0:
        raise ValueError(f"{name} is {value}; expected 0 or more.")


@contextmanager
def refusing() -> Iterator[None]:
    """An exception in here has changed nothing: it reaches the caller as it is, and poisons nothing."""
    try:
        yield
    except Exception as error:
        raise RefusedError from error
