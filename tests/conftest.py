"""What every test of the kit needs before it imports anything."""

import os
import tempfile
from pathlib import Path

from hypothesis import settings

# Nothing in the kit asks the network for anything, and neither may a library that a test compares it with.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    # One process a core already: threads of several workers would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # mx.compile writes its kernels under TMPDIR without a lock: two workers could load each other's half-written file.
    folder = Path(tempfile.gettempdir(), f"mlx_grpo_kit-{os.getuid()}", worker)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = str(folder)

import mlx_grpo_kit.blas  # noqa: F401  (before a test imports a library that imports MLX itself)

# Two cores are shared with other work, so an example's time says nothing; the same examples on every run.
settings.register_profile("kit", deadline=None, derandomize=True)
settings.load_profile("kit")
