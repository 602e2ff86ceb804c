"""What JAX's backend has of its own: compiling, memory that is written over, pytrees, meshes of devices."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import trio

from tests.backends.frameworks import (
    apply_model,
    first_weights,
    jax_array,
    make_jax,
    masked_cross_entropy_jax,
    numpy_batch,
    optax_optimizer,
)

pytestmark = pytest.mark.usefixtures("jax")


def batch(seed=0, length=None):
    return {name: jax_array(array[:, :length]) for name, array in numpy_batch(seed).items()}


@pytest.fixture
def make(tmp_path):
    """JAXTrainingBackend of the usual parts, but for those that are given."""
    from mlx_grpo_kit.backends import JAXTrainingBackend

    def make(apply_fn=apply_model, params=None, optimizer=None, **options):
        optimizer = optax_optimizer("adamw", 1e-2, None) if optimizer is None else optimizer
        params = first_weights() if params is None else params
        return JAXTrainingBackend(apply_fn, params, optimizer, masked_cross_entropy_jax, tmp_path, **options)

    return make


class TestCompiling:
    def test_once_for_each_shape_whatever_comes_in_between(self, make):
        traced = []

        def apply_fn(params, input_ids):
            traced.append(input_ids.shape)
            return apply_model(params, input_ids)

        backend = make(apply_fn)

        def step(*batches):
            for each in batches:
                backend.forward_backward(each).wait()
            backend.optim_step().wait()

        def compiled():
            return [each._cache_size() for each in (backend._gradient, backend._sum, backend._update)]

        step(batch(0), batch(1))
        assert compiled() == [1, 1, 1]
        step(batch(2))
        saved = trio.run(backend.save_checkpoint, 1)
        step(batch(3), batch(4), batch(5))
        trio.run(backend.load_checkpoint, saved)
        step(batch(6), batch(7))
        backend.load_weights(first_weights()).wait()
        step(batch(8), batch(9))
        backend.load_weights(backend.get_weights().wait()).wait()
        step(batch(10), batch(11))
        assert compiled() == [1, 1, 1]
        assert traced == [(3, 5)]
        step(batch(0, length=4))
        step(batch(1, length=4))
        assert compiled() == [2, 1, 1]
        assert traced == [(3, 5), (3, 4)]

    def test_what_is_no_array_may_change_without_compiling_again(self, make):
        backend = make()
        for number, scale in enumerate([1.0, 0.5, 0.25]):
            backend.forward_backward(batch(number) | {"scale": scale}).wait()
        assert backend._gradient._cache_size() == 1


class TestMemory:
    def test_the_users_weights_stay(self, jax, make):
        params = {name: jax.numpy.array(array) for name, array in first_weights().items()}
        backend = make(params=params)
        for seed in range(2):
            backend.forward_backward(batch(seed))
            backend.optim_step().wait()
        for name, array in first_weights().items():
            np.testing.assert_array_equal(params[name], array)

    def test_a_step_writes_over_the_weights_before_it(self, make):
        backend = make()
        before = backend.params["output.weight"]
        backend.forward_backward(batch()).wait()
        backend.optim_step().wait()
        assert before.is_deleted()
        assert not backend.get_weights().wait()["output.weight"].is_deleted()


class TestPytrees:
    def test_names_are_paths(self, make):
        first, second = first_weights().values()

        def apply_fn(params, input_ids):
            return params["layers"][0]["weight"][input_ids] @ params["layers"][1]["weight"].T

        backend = make(apply_fn, {"layers": [{"weight": first}, {"weight": second}]})
        found = backend.forward_backward(batch()).wait()
        assert found["loss"] == pytest.approx(make().forward_backward(batch()).wait()["loss"])
        backend.optim_step().wait()
        weights = backend.get_weights().wait()
        assert [*weights] == ["layers.0.weight", "layers.1.weight"]
        saved = trio.run(backend.save_checkpoint, 1)
        backend.load_weights({"layers.0.weight": second, "layers.1.weight": first}).wait()
        np.testing.assert_array_equal(backend.params["layers"][1]["weight"], first)
        trio.run(backend.load_checkpoint, saved)
        for name, array in weights.items():
            np.testing.assert_array_equal(backend.get_weights().wait()[name], array)

    def test_inputs_by_place_and_by_name(self, make):
        def apply_fn(params, input_ids, shift):
            return apply_model(params, input_ids) + shift

        expected = make().forward_backward(batch()).wait()["loss"]
        ids = batch()["input_ids"]
        for inputs in ((ids, 0.0), {"shift": 0.0, "input_ids": ids}):
            assert make(apply_fn).forward_backward(batch() | {"input_ids": inputs}).wait()["loss"] == expected


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"apply_fn": 3}, TypeError, "apply_fn is of type int"),
        ({"optimizer": "adamw"}, TypeError, "optimizer is of type str; expected one of optax"),
        ({"params": {}}, ValueError, "params contains no arrays"),
        ({"params": {"ids": np.arange(3)}}, TypeError, "Parameter 'ids' has dtype int32; expected a floating-point"),
    ],
)
def test_parts_that_are_refused(make, change, error, words):
    with pytest.raises(error, match=words):
        make(**change)


def test_a_folder_that_is_not_orbaxs_is_refused_and_the_backend_goes_on(tmp_path):
    from mlx_grpo_kit.backends.jax_backend import _restored

    backend = make_jax(tmp_path)
    saved = trio.run(backend.save_checkpoint, 1)
    with pytest.raises(ValueError, match=r"orbax cannot be read .*It is corrupt, or not from this kit"):
        backend._read(tmp_path)
    ours = backend._state()
    changed = {"weights": ours["weights"], "optimizer": {}}
    assert _restored(saved / "orbax", changed).keys() == ours.keys()
    backend.opt_state = {"other": ours["optimizer"]["0.count"]}
    with pytest.raises(ValueError, match=r"The optimizer's '0\.count' is not one of this backend's 1"):
        backend._read(saved)


def test_a_dtype_that_orbax_would_change_without_a_word_is_refused(jax, tmp_path):
    backend = make_jax(tmp_path)
    saved = trio.run(backend.save_checkpoint, 1)
    backend.params = jax.tree.map(lambda each: each.astype(jax.numpy.bfloat16), backend.params)
    with pytest.raises(ValueError, match=r"has shape \(11, 6\) and dtype float32; this backend's has .* and bfloat16"):
        trio.run(backend.load_checkpoint, saved)


MESH = """
    import sys
    import jax, optax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from mlx_grpo_kit.backends import JAXTrainingBackend
    from tests.backends.frameworks import apply_model, first_weights, jax_array, masked_cross_entropy_jax, numpy_batch
    import trio

    jax.config.update("jax_disable_most_optimizations", True)
    mesh = Mesh(jax.devices(), ("rows",))
    assert len(mesh.devices) == 2

    def batch(seed):
        one, other = numpy_batch(seed), numpy_batch(seed + 100)
        rows = {name: np.concatenate([array, other[name]]) for name, array in one.items()}
        return {name: jax_array(array) for name, array in rows.items()} | {"scale": 0.5}

    def run(params, folder, sharding):
        parts = apply_model, params, optax.adamw(1e-2), masked_cross_entropy_jax
        backend = JAXTrainingBackend(*parts, sys.argv[1] + folder, batch_sharding=sharding)
        found = []
        for step in range(3):
            found += [backend.forward_backward(batch(2 * step + part)).wait()["loss"] for part in range(2)]
            backend.optim_step().wait()
        saved = trio.run(backend.save_checkpoint, 3)
        found.append(backend.forward_backward(batch(9)).wait()["grad_norm"])
        backend.optim_step().wait()
        last = backend.get_weights().wait()
        trio.run(backend.load_checkpoint, saved)
        backend.forward_backward(batch(9)).wait()
        backend.optim_step().wait()
        again = backend.get_weights().wait()
        for name in last:
            np.testing.assert_array_equal(last[name], again[name])
        assert [each._cache_size() for each in (backend._gradient, backend._sum, backend._update)] == [1, 1, 1]
        return backend, found, {name: np.asarray(array) for name, array in last.items()}

    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*each)) for each in (("rows",), ()))
    _, expected, weights = run(first_weights(), "/one", None)
    parts = {"embedding.weight": NamedSharding(mesh, PartitionSpec(None, "rows")), "output.weight": everywhere}
    for folder, where in (("/data", everywhere), ("/parts", parts)):
        backend, found, ours = run(jax.device_put(first_weights(), where), folder, rows)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        for name in weights:
            np.testing.assert_allclose(ours[name], weights[name], rtol=1e-5, atol=1e-6)
    moments = backend.opt_state[0].mu
    assert backend.params["embedding.weight"].sharding == parts["embedding.weight"]
    assert moments["embedding.weight"].addressable_shards[0].data.shape == (11, 3), "a device has its part alone"
    try:
        backend.forward_backward({name: jax_array(array) for name, array in numpy_batch().items()})
    except ValueError as error:
        assert "'input_ids' has shape (3, 5), which batch_sharding cannot divide evenly among" in str(error), error
        backend.forward_backward(batch(0)).wait()
    try:
        run(first_weights(), "/refused", rows)
    except ValueError as error:
        print(error)
"""


def test_two_devices_learn_what_one_does(tmp_path):
    """Whole weights on each, and a part of them on each; rows of a batch dealt out."""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MESH), str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "'embedding.weight' is on 1 devices; batch_sharding distributes batches over 2" in done.stdout
