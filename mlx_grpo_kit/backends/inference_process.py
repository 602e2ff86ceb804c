"""An inference engine in a separate process: training steps do not slow it down, and its crashes affect nothing else.

The process is started afresh, never forked, and communicates over pipes: it receives (operation, arguments) and returns
(error, result). It always ends with its parent: another pipe, over which nothing is sent, closes when the parent is
gone, and a thread of the child waits for that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from mlx_grpo_kit.backends.arrays import as_numpy
from mlx_grpo_kit.backends.future import TrainFuture
from mlx_grpo_kit.backends.inference_engines import EngineError, Generated, Serving
from mlx_grpo_kit.backends.weights import flat
from mlx_grpo_kit.backends.worker import Worker, refusing
from mlx_grpo_kit.generation.padding import TokenIds
from mlx_grpo_kit.qwen3 import Qwen3Config

SECONDS_TO_LEAVE = 5.0
PROGRAM = "from mlx_grpo_kit.backends.inference_process import serve; serve({requests}, {replies}, {lifeline})"


class ProcessEngine:
    """An inference engine: the kit's own generation in another process of this machine.

    Weights are sent as NumPy arrays, in which bfloat16 becomes float32. `generate` takes the arguments of the kit's
    `generate`, except for `stop`, which is a function of this process.

    Args:
        config: the configuration of the model.
        weights: the first weights, with version `version`; None means none before `load_weights`.
        name: its name in messages.
    """

    def __init__(
        self, config: Qwen3Config, weights: Mapping[str, Any] | None = None, version: int = 0, *, name: str = "process"
    ):
        self.name, self.weight_version = name, None
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        lifeline_in, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(requests=theirs_in, replies=theirs_out, lifeline=lifeline_in)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs_in, theirs_out, lifeline_in),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        finally:
            for descriptor in (theirs_in, theirs_out, lifeline_in):
                os.close(descriptor)
        self._requests = Connection(ours_out, readable=False)
        self._replies = Connection(ours_in, writable=False)
        self._worker = Worker(f"engine {name}", finishes=False)
        # If an engine is garbage-collected without being closed, its process ends too.
        self._leave = weakref.finalize(self, _end, self._process, self._lifeline)
        try:
            self._submit("start", (config, name)).wait()
            if weights is not None:
                self.load_weights(weights, version).wait()
        except BaseException:
            self.close()
            raise

    def load_weights(self, weights: Mapping[str, Any], version: int, *, allow_older: bool = False) -> TrainFuture[int]:
        arrays = {name: as_numpy(value) for name, value in flat(weights).items()}
        return self._submit("load_weights", (arrays, version, allow_older))

    def generate(self, prompts: Sequence[TokenIds], **settings: Any) -> TrainFuture[Generated]:
        if settings.get("stop") is not None:
            raise ValueError(
                f"Inference engine {self.name!r} runs in another process, and `stop` is a function of this one. "
                "Leave it out."
            )
        return self._submit("generate", (prompts, settings))

    def close(self) -> None:
        self._leave()
        self._worker.close(finish=False)
        for connection in (self._requests, self._replies):
            connection.close()

    def _submit(self, operation: str, arguments: tuple) -> TrainFuture[Any]:
        return self._worker.submit(operation, lambda: self._ask(operation, arguments))

    @refusing()
    def _ask(self, operation: str, arguments: tuple) -> Any:
        """The child's answer. This runs in the worker's thread, so that requests and answers stay in pairs."""
        try:
            self._requests.send((operation, arguments))
            error, result = self._replies.recv()
        except (OSError, EOFError):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_TO_LEAVE)
            raise EngineError(
                f"Inference engine {self.name!r} is gone: its process {self._process.pid} ended "
                f"{_how(self._process.returncode)} during {operation!r} or before. Create a new engine."
            ) from None
        if error is not None:
            raise error
        if operation == "load_weights":
            self.weight_version = result
        return result

    def __enter__(self) -> ProcessEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _end(process: subprocess.Popen, lifeline: int) -> None:
    os.close(lifeline)
    try:
        process.wait(SECONDS_TO_LEAVE)
    except subprocess.TimeoutExpired:  # stopped by a debugger, for example
        process.kill()
        process.wait()


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with exit code {code}"


def serve(requests: int, replies: int, lifeline: int) -> None:
    """Answer requests until the parent is gone; runs in the child. Takes the numbers of three open pipes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipe
    threading.Thread(target=_leave_with_parent, args=[lifeline], daemon=True).start()
    questions, answers = Connection(requests, writable=False), Connection(replies, readable=False)
    _, (config, name) = questions.recv()
    serving = Serving(config, name)
    answers.send((None, None))
    operations = {"load_weights": serving.load, "generate": serving.generate}
    while True:
        try:
            operation, arguments = questions.recv()
        except EOFError:
            return
        try:
            answer = None, operations[operation](*arguments)
        except Exception as error:
            answer = _portable(error), None
        answers.send(answer)


def _leave_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: this returns when the parent ends
    os._exit(0)


def _portable(error: Exception) -> Exception:
    """An error that can be pickled: a ValueError, a TypeError, or else an EngineError with the same message."""
    if type(error) in (ValueError, TypeError):
        return type(error)(str(error))
    return EngineError(f"{type(error).__name__}: {error}" if not isinstance(error, EngineError) else str(error))
