"""What tests of the backends share."""

import pytest

from tests.backends.frameworks import FRAMEWORKS, Framework


@pytest.fixture(scope="session")
def jax(tmp_path_factory):
    """JAX, which takes fewer pains when it compiles, and compiles nothing twice: that is what takes the time here."""
    jax = pytest.importorskip("jax")
    settings = {
        "jax_disable_most_optimizations": True,
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("jax")),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
    return jax


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request) -> Framework:
    if request.param.name in ("jax", "torchax"):
        request.getfixturevalue("jax")
    return request.param


@pytest.fixture
def backend(framework, tmp_path):
    """A backend of the framework, closed at the end."""
    backend = framework.make(tmp_path / "checkpoints")
    yield backend
    backend._worker.close(finish=False)
