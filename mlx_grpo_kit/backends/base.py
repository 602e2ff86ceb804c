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

from mlx_grpo_kit.backends.arrays import as_numpy
from mlx_grpo_kit.backends.checkpoints import kept_metrics, read_metadata, write_checkpoint
from mlx_grpo_kit.backends.future import TrainFuture, failed
from mlx_grpo_kit.backends.incoming import BATCH, brought, checked_batch, fitting
from mlx_grpo_kit.backends.worker import RefusedError, Worker, refusing
from mlx_grpo_kit.files import whole_folder

T = TypeVar("T")

OWN_METRICS = ("loss", "grad_norm")


class Backend(ABC):
    """The base of a training backend. A subclass for a framework implements the abstract methods below.

    A backend is a data class with at least the attributes below; its `__post_init__` calls this one. Each abstract
    method runs in the backend's thread, in the order in which operations were submitted. If one raises after a possible
    change, the backend is `poisoned`: it refuses all further operations.

    Attributes:
        array: the framework's type of array.
        needs_tokens: True if a batch without any token to learn from raises an error.
        loss_fn: `loss_fn(logits, labels, loss_mask, **rest)` with everything else in a batch; returns a scalar, or a
            scalar and a dictionary of metrics.
        optimizer: the optimizer, whose class is written into checkpoints, and compared.
        checkpoint_dir: the folder in which `save_checkpoint` writes; created if necessary.
        weight_version: the number of times that weights were saved.
        current_step: the number of optimizer steps done.
    """

    array: ClassVar[type]
    needs_tokens: ClassVar[bool] = True
    loss_fn: Callable[..., Any]
    optimizer: Any
    checkpoint_dir: Path
    weight_version: int
    current_step: int
    _grads: Any = None
    # They write and read one part of `_state`.
    _save_file: ClassVar[Callable[[Any, Path], None]]
    _load_file: ClassVar[Callable[[Path], Any]]

    @abstractmethod
    def _compute_gradient(self, batch: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any], Any]:
        """Return (loss, metrics, gradient) of a batch; `_add_gradient` takes that gradient. See `_loss`.

        This changes no state except buffers of a module and the random state.
        """

    @abstractmethod
    def _add_gradient(self, gradient: Any) -> Any:
        """Add a batch's gradient to the sum; returns the norm of the sum."""

    @abstractmethod
    def _apply_gradient(self) -> float:
        """Take an optimizer step with the sum of gradients and return the learning rate.

        The base class then clears the sum.
        """

    def _clear_gradient(self) -> None:
        """Clear the sum of gradients."""
        self._grads = None

    @abstractmethod
    def _weights(self) -> dict[str, Any]:
        """The weights by name, without copying."""

    @abstractmethod
    def _set_weights(self, weights: dict[str, Any]) -> None:
        """Replace the weights by others with the same names, shapes and dtypes."""

    @abstractmethod
    def _copy(self, array: Any) -> Any:
        """A copy of an array that shares no memory and has no gradient."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """The arrays of a checkpoint by file: the weights, the optimizer's state, and perhaps the random state."""

    def _write(self, folder: Path) -> None:
        """Write weights, the optimizer's state and the random state into an empty folder."""
        for name, content in self._state().items():
            self._save_file(content, folder / name)

    def _read(self, folder: Path) -> dict[str, Any]:
        """Read a folder that `_write` wrote, for `_restore`; changes nothing.

        Raises ValueError, which names the difference, if it does not fit this model and this optimizer.
        """
        parts = zip(("Weight", "The optimizer's", "State"), self._state().items(), strict=False)
        return {name: fitting(self.array, what, self._load_file(folder / name), ours) for what, (name, ours) in parts}

    @abstractmethod
    def _restore(self, state: Any) -> None:
        """Restore the state that `_read` returned."""

    def _begin_thread(self) -> Callable[[], None]:
        """Prepare the backend's thread before its first operation, for example settings that belong to a thread."""
        return lambda: None

    @staticmethod  # noqa: B027
    def _end_thread() -> None:
        """Clean up at the end of the backend's thread."""

    def __post_init__(self):
        check_kind("loss_fn", self.loss_fn, Callable, "a function of logits, labels and loss_mask")
        if self.optimizer is None:
            raise TypeError("optimizer is of type NoneType; expected one of the framework's optimizers.")
        check_kind("checkpoint_dir", self.checkpoint_dir, str | os.PathLike, "the path of a folder")
        for name in ("weight_version", "current_step"):
            _check_count(name, getattr(self, name))
        self.checkpoint_dir = Path(self.checkpoint_dir)
        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        self._has_gradient = False
        self._gradient_norm = math.nan
        self._worker = Worker(type(self).__name__, self._begin_thread(), self._end_thread)

    # What is submitted.

    def forward_backward(self, batch: Mapping[str, Any]) -> TrainFuture[dict[str, Any]]:
        """Compute the loss of a batch, and add its gradient to the sum.

        Gradients are summed over calls. If the loss is a mean over tokens and a step has several batches, each loss
            must be its share of the whole: divide by the number of tokens in all batches, which you can put into the
            batch, for example as `num_items_in_batch`, for the loss function.

        Args:
            batch: "input_ids", the argument of the model (an array, or a tuple or dictionary of arrays for several
                arguments); "labels" and "loss_mask" of the same shape (without a mask every label counts); and anything
                else, which the loss function gets by keyword. Its arrays are not copied: do not change them until the
                operation is done.

        Returns:
            A future of {"loss", "grad_norm"}, floats, and the loss function's metrics: scalars as floats, arrays as
            NumPy arrays. The norm is that of the sum of gradients so far.

        Raises:
            TypeError, ValueError: the batch is invalid, or the loss function cannot be called with it. Nothing was
                submitted, and the backend is unchanged.
            TrainingError: an earlier operation failed.

        The future raises TrainingError too. If the model or the loss function raises, no gradient is added and the
        backend remains usable; only operations that had been submitted after this batch are skipped too. If the loss or
        the gradient is not finite, the backend is `poisoned`.
        """
        batch = self._check_batch(batch)
        return self._submit("forward_backward", lambda: self._forward_backward(batch))

    def optim_step(self) -> TrainFuture[dict[str, float]]:
        """Take an optimizer step with the sum of gradients, and clear it.

        Returns:
            A future of {"lr", "step", "grad_norm"}: the learning rate, the number of steps so far, and the norm of the
            gradient before any clipping. It raises RuntimeError if there is no gradient.

        Raises:
            TrainingError: an earlier operation failed.
        """
        return self._submit("optim_step", self._optim_step)

    def get_weights(self) -> TrainFuture[dict[str, Any]]:
        """Copies of the weights by name, which later steps do not change."""
        return self._submit("get_weights", lambda: {name: self._copy(array) for name, array in self._weights().items()})

    def load_weights(self, weights: Mapping[str, Any]) -> TrainFuture[None]:
        """Replace the weights, and clear the gradients.

        Args:
            weights: arrays of any framework or NumPy, with exactly the names, shapes and dtypes of `get_weights`.
                float32 is accepted for bfloat16 if the conversion is exact, because NumPy has no bfloat16.

        Returns:
            A future, which raises TypeError or ValueError, without a change, if they do not fit or contain NaN.
        """
        if not isinstance(weights, Mapping):
            raise TypeError(f"weights have type {type(weights).__name__}; expected a dictionary of arrays by name.")
        weights = brought(weights, self.array)
        return self._submit("load_weights", lambda: self._load_weights(weights))

    def save_checkpoint(self, step: int, metrics: Mapping[str, Any] | None = None) -> TrainFuture[Path]:
        """Write step_{step:04d}/ into checkpoint_dir, completely or not at all, and increase weight_version.

        Weights, the optimizer's state and the random state are saved, but not gradients. A checkpoint of the same step
        is replaced. Like every operation this is only submitted, and saves the state after all earlier operations.

        Args:
            step: the number in its name. `current_step`, the number of optimizer steps, is saved in addition.
            metrics: numbers of Python, NumPy or a framework to store in metadata.json; NaN and inf become null. Arrays,
                such as those that `forward_backward` returns, are left out.

        Returns:
            A future of the checkpoint's folder: `await` it, or call its `wait()`. It raises OSError if the checkpoint
            could not be written; the backend remains usable.

        Raises:
            TypeError, ValueError: the step is not a whole number from 0, or a metric cannot be written or is too large.
                Nothing was submitted.
            TrainingError: an earlier operation failed.
        """
        _check_count("step", step)
        if not isinstance(metrics, Mapping | None):
            raise TypeError(f"metrics have type {type(metrics).__name__}; expected a dictionary of numbers by name.")
        metrics = kept_metrics(metrics or {})
        return self._submit("save_checkpoint", lambda: self._save(int(step), metrics))

    def load_checkpoint(self, checkpoint_path: str | os.PathLike) -> TrainFuture[dict[str, Any]]:
        """Restore a checkpoint: weights, optimizer, random state, weight_version and current_step.

        Everything is read and checked before anything is changed. If it raises an error, the backend is unchanged.

        Returns:
            A future of the content of metadata.json. It raises FileNotFoundError or ValueError if the checkpoint is
            missing or incomplete, or belongs to another model or optimizer.

        Raises:
            TrainingError: an earlier operation failed.
        """
        path = Path(checkpoint_path)
        return self._submit("load_checkpoint", lambda: self._load(path))

    @property
    def poisoned(self) -> bool:
        """True after a failed operation that may have changed something. Then create a new backend."""
        return self._worker.poisoned

    def close(self) -> None:
        """Finish all submitted operations and end the backend's thread.

        Raises TrainingError for a failed operation whose error was never raised.
        """
        self._close(finish=True)

    def _close(self, finish: bool) -> None:
        self._worker.close(finish)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback) -> None:
        self._close(finish=error is None)

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
        """In this context, an exception reaches the caller as a TrainingError, and does not poison the backend."""
        try:
            yield
        except Exception as error:
            raise RefusedError(skips=True) from failed("forward_backward", error)

    def _optim_step(self) -> dict[str, float]:
        if not self._has_gradient:
            with refusing():
                raise RuntimeError("There is no gradient for a step. Submit a forward_backward first.")
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
        """Return the result of `look()`, which may raise an error for bad input."""
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

    # Helpers for the subclasses.

    def _loss(self, logits: Any, batch: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        """(loss, metrics) of the user's loss function; TypeError if the loss is not a scalar of the framework."""
        rest = {name: value for name, value in batch.items() if name not in BATCH}
        found = self.loss_fn(logits, batch["labels"], batch["loss_mask"], **rest)
        loss, metrics = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
        if not isinstance(loss, self.array):
            raise TypeError(
                f"The loss function returned {type(loss).__name__}; expected a scalar {self.array.__name__}, "
                "optionally with a dictionary of metrics. Leave out .item() and float(): they cut the loss off from "
                "the parameters."
            )
        if tuple(loss.shape) != ():
            raise TypeError(f"The loss has shape {tuple(loss.shape)}; expected a scalar. Reduce it: .sum() or .mean().")
        if not isinstance(metrics, Mapping):
            raise TypeError(f"The metrics have type {type(metrics).__name__}; expected a dictionary of them by name.")
        if own := [name for name in OWN_METRICS if name in metrics]:
            raise ValueError(f"The loss function returned a metric {own[0]!r}; the backend has its own. Rename it.")
        return loss, metrics

    def _metric(self, name: str, value: Any) -> float | np.ndarray:
        value = np.array(as_numpy(value)) if isinstance(value, self.array) else value
        if isinstance(value, np.ndarray) and value.ndim:
            return value
        try:
            return float(value)
        except (TypeError, ValueError):
            raise TypeError(f"Metric {name!r} is of type {type(value).__name__}; expected a number or array.") from None

    def _check_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return checked_batch(batch, self.array, self.loss_fn, self.needs_tokens)


def logits_of(model: Callable[..., Any], input_ids: Any) -> Any:
    """Call a model with its input: one array, several in a tuple, or several by name in a dictionary."""
    if isinstance(input_ids, Mapping):
        output = model(**input_ids)
    else:
        output = model(*input_ids) if isinstance(input_ids, tuple) else model(input_ids)
    return getattr(output, "logits", output)


def check_kind(what: str, value: Any, kind: Any, expected: str) -> None:
    """Raise TypeError, which names an argument of a backend, unless it is of this type."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} is of type {type(value).__name__}; expected {expected}.")


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
