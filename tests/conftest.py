"""What every test of the kit needs before it imports anything."""

import os

from hypothesis import settings

# Nothing in the kit asks the network for anything, and neither may a library that a test compares it with.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if "PYTEST_XDIST_WORKER" in os.environ:
    # One process a core already: the threads of several workers would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import mlx_grpo_kit.blas  # noqa: F401  (before a test imports a library that imports MLX itself)

# Two cores are shared with other work, so an example's time says nothing; the same examples on every run.
settings.register_profile("kit", deadline=None, derandomize=True)
settings.load_profile("kit")
