"""Processes that are really killed at random moments of saving: nothing that was saved is lost.

Fifty for one framework, fewer for others, as how a folder gets its name is the same for all. None for torchax, which
has threads of XLA's running once it is imported, so it cannot be forked; it writes as torch.func's does.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import trio

from mlx_grpo_kit.backends import newest_checkpoint, read_metadata
from mlx_grpo_kit.backends.arrays import as_numpy
from tests.backends.frameworks import FRAMEWORKS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.parametrize(("name", "kills"), [("pytorch", 50), ("mlx", 12), ("torch_func", 4), ("jax", 6)])
def test_kills_lose_nothing_that_was_saved(request, name, kills, tmp_path):
    [framework] = [each for each in FRAMEWORKS if each.name == name]
    if name == "jax":
        request.getfixturevalue("jax")  # what the processes are told below: other programs round differently
    folder = tmp_path / "killed"
    moments = random.Random(0)
    command = [sys.executable, "-m", "tests.backends.saving_forever", framework.name, str(folder)]
    compiling = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}
    environment = os.environ | compiling | {"OMP_NUM_THREADS": "1"}
    steps, leftovers = [0], 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], env=environment
    ) as server:
        for _ in range(kills):
            server.stdin.write(b"go on\n")
            server.stdin.flush()
            process = next_number(server.stdout, b"process")
            saved = next_number(server.stdout, b"saved")  # by this process, for the first time
            time.sleep(moments.uniform(0, 0.02))
            os.kill(process, signal.SIGKILL)
            leftovers += any(path.name.endswith(".tmp") for path in folder.iterdir())

            newest = newest_checkpoint(folder)
            metadata = read_metadata(newest)
            assert metadata["step"] >= saved > steps[-1], "what was said to be saved is there, and it went on from it"
            steps.append(saved)
            assert metadata["weight_version"] >= metadata["step"]
        server.stdin.close()
    assert leftovers >= kills // 10, "some of the kills came in the middle of a save"

    # All that was ever learned, with kills in between, is what one learns who is left alone.
    survivor, reference = framework.make(folder), framework.make(tmp_path / "left alone")
    trio.run(survivor.load_checkpoint, newest_checkpoint(folder))
    for step in range(survivor.current_step):
        reference.forward_backward(framework.batch(step))
        reference.optim_step().wait()
    found, expected = survivor.get_weights().wait(), reference.get_weights().wait()
    for name in expected:
        np.testing.assert_array_equal(as_numpy(found[name]), as_numpy(expected[name]))


def next_number(lines, word: bytes) -> int:
    """What is said of `word` next; the process killed before may have said more in the meantime."""
    return next(int(line.split()[1]) for line in lines if line.startswith(word))
