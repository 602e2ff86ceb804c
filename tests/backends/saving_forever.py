"""A process for `test_kills.py`: for every line that it reads it forks one that trains and saves until it is killed.

    python -m tests.backends.saving_forever FRAMEWORK FOLDER

The framework is imported once and not used before the fork, so a process more costs milliseconds. Each goes on from the
newest checkpoint, and says its number ("process 123") and what is saved ("saved 5"), a line each.
"""

import asyncio
import os
import sys
from importlib import import_module
from pathlib import Path

from mlx_grpo_kit.backends import newest_checkpoint
from tests.backends.frameworks import FRAMEWORKS

IMPORTED = {
    "pytorch": ("mlx_grpo_kit.backends.pytorch_backend", "torch._dynamo"),  # an optimizer imports the second
    "mlx": ("mlx_grpo_kit.backends.mlx_backend",),
    "torch_func": ("mlx_grpo_kit.backends.torch_func_backend", "torch._dynamo"),
    "jax": ("mlx_grpo_kit.backends.jax_backend",),
}
"""All that is imported on the way to a first step."""


def say(what: str, number: int) -> None:
    os.write(1, f"{what} {number}\n".encode())


def train_and_save(framework, folder: Path) -> None:
    backend = framework.make(folder)
    newest = newest_checkpoint(folder)
    if newest is not None:
        asyncio.run(backend.load_checkpoint(newest))
    say("process", os.getpid())
    while True:
        backend.forward_backward(framework.batch(backend.current_step))
        step = backend.optim_step().wait()["step"]
        asyncio.run(backend.save_checkpoint(step))
        say("saved", step)
        asyncio.run(backend.save_checkpoint(step))  # in the place of the first


if __name__ == "__main__":
    [framework] = [each for each in FRAMEWORKS if each.name == sys.argv[1]]
    for module in IMPORTED[framework.name]:
        import_module(module)
    for _ in sys.stdin:
        if os.fork() == 0:
            try:
                train_and_save(framework, Path(sys.argv[2]))
            finally:
                os._exit(1)
        os.wait()
