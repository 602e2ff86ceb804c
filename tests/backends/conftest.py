"""What tests of the backends share."""

import numpy as np
import pytest

from mlx_grpo_kit.qwen3.config import Llama3Scaling, YarnScaling
from tests.backends.frameworks import FRAMEWORKS, Framework
from tests.backends.small_qwen3 import MODELS, V


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


@pytest.fixture(scope="module", params=MODELS)
def both(request, make_qwen3):
    """transformers' model, the kit's configuration and its parameters as NumPy's."""
    settings = {"tie_word_embeddings": False, "rope_theta": 10_000.0, **MODELS[request.param]}
    reference, config, params = make_qwen3(0.1, vocab_size=V, max_position_embeddings=64, **settings)
    assert (config.rope_scaling == YarnScaling(4.0, 8)) == ("YaRN" in request.param)
    assert (config.rope_scaling == Llama3Scaling(4.0, 1.0, 4.0, 32)) == ("Llama" in request.param)
    return reference, config, {name: np.array(value) for name, value in params.items()}


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request) -> Framework:
    if request.param.name in ("jax", "torchax"):
        request.getfixturevalue("jax")
    return request.param


@pytest.fixture
def compiles_nothing():
    """Modules that torch.compile was given run as they are: it fails once another test has imported torchax."""
    import torch

    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


@pytest.fixture
def backend(framework, tmp_path):
    """A backend of the framework, closed at the end."""
    backend = framework.make(tmp_path / "checkpoints")
    yield backend
    backend._worker.close(finish=False)
