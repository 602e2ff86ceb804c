"""What tests of the backends share."""

import pytest

from tests.backends.frameworks import FRAMEWORKS, Framework


@pytest.fixture(scope="module")
def jax():
    """JAX, which takes fewer pains here when it compiles: that is what takes the time, and the numbers are the same."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_disable_most_optimizations", True)
    yield jax
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request) -> Framework:
    return request.param


@pytest.fixture
def backend(framework, tmp_path):
    """A backend of the framework, closed at the end."""
    backend = framework.make(tmp_path / "checkpoints")
    yield backend
    backend._worker.close(finish=False)
