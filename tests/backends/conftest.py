"""What tests of the backends share."""

import pytest


@pytest.fixture(scope="module")
def jax():
    """JAX, which takes fewer pains here when it compiles: that is what takes the time, and the numbers are the same."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_disable_most_optimizations", True)
    yield jax
    jax.config.update("jax_disable_most_optimizations", False)
