"""What only MLX's backend has: arrays and random numbers that belong to a thread, schedules, any optimizer's state."""

from tests.sizes import ONE_LAYER

from mlx_grpo_kit.runtime import mx  # isort: skip
import json
import math
import os
from functools import partial

import mlx.optimizers as optim
import numpy as np
import pytest
import trio
from safetensors.numpy import load_file, save_file

from mlx_grpo_kit.backends import MLXTrainingBackend, TrainingError
from mlx_grpo_kit.grpo import per_token_logps
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, qwen3_forward
from tests.backends.frameworks import FRAMEWORKS, apply_model, first_weights, make_mlx, masked_cross_entropy_mlx
from tests.backends.test_checkpoints import reseal
from tests.backends.test_future_and_worker import message, run_in_child

[MLX] = [each for each in FRAMEWORKS if each.name == "mlx"]


def step(backend, batch=None):
    found = backend.forward_backward(batch or MLX.batch()).wait()
    return found | backend.optim_step().wait()


def test_lazy_arrays_and_results_cross_between_threads(tmp_path):
    params = {name: mx.array(array) * 1 for name, array in first_weights().items()}  # not computed yet
    loss_fn = lambda *given: (masked_cross_entropy_mlx(*given), {"labels": given[1] + 1})  # noqa: E731
    backend = MLXTrainingBackend(apply_model, params, optim.SGD(mx.array(0.05) * 2), loss_fn, tmp_path)
    lazy = {name: array + 0 for name, array in MLX.batch().items()}
    found = step(backend, lazy)
    np.testing.assert_array_equal(found["labels"], np.array(lazy["labels"]) + 1)
    assert found["lr"] == pytest.approx(0.1)
    weights = backend.get_weights().wait()
    total = backend.params["output.weight"].sum().item()
    assert (weights["output.weight"] + 1).sum().item() == pytest.approx(total + 66)
    backend.load_weights({name: array * 2 for name, array in weights.items()}).wait()
    np.testing.assert_array_equal(backend.get_weights().wait()["output.weight"], 2 * np.array(weights["output.weight"]))


def test_the_users_dictionary_and_arrays_stay_what_they_are(tmp_path):
    backend = make_mlx(tmp_path)
    given, arrays = backend.params, dict(backend.params)
    step(backend)
    assert backend.params is not given
    for name, array in first_weights().items():
        assert given[name] is arrays[name]
        np.testing.assert_array_equal(given[name], array)


def test_and_what_the_user_does_with_them_is_none_of_the_backends(tmp_path):
    params = {name: mx.array(array) for name, array in first_weights().items()}
    backend = MLXTrainingBackend(apply_model, params, optim.SGD(0.1), masked_cross_entropy_mlx, tmp_path)
    for array in params.values():
        array[:] = 0
    params.clear()
    assert step(backend)["grad_norm"] > 0


def test_random_numbers_follow_the_seed_and_go_on_from_a_checkpoint(tmp_path):
    def make(seed=7):
        mx.random.seed(seed)
        return make_mlx(
            tmp_path, lambda *arguments: (masked_cross_entropy_mlx(*arguments), {"drawn": mx.random.uniform()})
        )

    backend = make()
    drawn = [step(backend)["drawn"] for _ in range(3)]
    assert drawn == [step(other)["drawn"] for other in [make()] for _ in range(3)]
    assert len({*drawn, step(make(8))["drawn"]}) == 4
    path = trio.run(backend.save_checkpoint, 3)
    after = step(backend)["drawn"]
    trio.run(backend.load_checkpoint, path)
    assert step(backend)["drawn"] == after


def test_bfloat16_weights_have_a_norm_in_float32_and_are_saved_as_what_they_are(tmp_path):
    params = {name: mx.array(array).astype(mx.bfloat16) for name, array in first_weights().items()}
    apply_fn, loss_fn = make_mlx(tmp_path).apply_fn, masked_cross_entropy_mlx
    backend = MLXTrainingBackend(apply_fn, params, optim.AdamW(1e-2), loss_fn, tmp_path)
    found = backend.forward_backward(MLX.batch()).wait()
    held = [np.array(grad.astype(mx.float32), float) for grad in backend._grads.values()]
    assert found["grad_norm"] == pytest.approx(np.sqrt(sum((each**2).sum() for each in held)), rel=1e-5)
    before = backend.get_weights().wait()
    backend.optim_step().wait()
    path = trio.run(backend.save_checkpoint, 1)
    weights = backend.get_weights().wait()
    step(backend)
    trio.run(backend.load_checkpoint, path)
    for name, array in backend.get_weights().wait().items():
        assert array.dtype == mx.bfloat16
        assert mx.array_equal(array, weights[name])
        assert not mx.array_equal(array, before[name])


def test_a_gradient_that_is_short_enough_is_not_changed(tmp_path):
    plain, bounded = (make_mlx(tmp_path, optimizer="sgd", max_grad_norm=bound) for bound in (None, 1e3))
    assert step(plain) == step(bounded)
    assert step(plain) == step(bounded)


def test_a_schedule_sets_the_rate_of_each_step(tmp_path):
    backend = make_mlx(tmp_path, lr=optim.linear_schedule(1.0, 0.0, 4))
    assert [step(backend)["lr"] for _ in range(5)] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])


@pytest.mark.parametrize("kind", [optim.Adam, optim.Lion, optim.Adafactor, optim.RMSprop, optim.Muon])
def test_any_optimizer_goes_on(tmp_path, kind):
    def make():
        backend = make_mlx(tmp_path)
        backend.optimizer = kind(learning_rate=1e-2)
        backend.optimizer.init(backend.params)
        mx.eval(backend.optimizer.state)
        return backend

    backend, other = make(), make()
    for _ in range(2):
        step(backend)
    trio.run(other.load_checkpoint, trio.run(backend.save_checkpoint, 2))
    for _ in range(2):
        assert step(other) == step(backend)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.update({"output.weight.m": state["output.weight.m"].T}), r"shape \(6, 11\)"),
        (lambda state: state.update({"output.weight.v": state["output.weight.v"] * np.nan}), "contains NaN"),
        (lambda state: state.pop("embedding.weight.v"), r"'embedding\.weight\.v' is missing"),
        (lambda state: state.update(extra=np.zeros(1, np.float32)), "'extra' is not one of"),
        (lambda state: state.update(step=np.array(3, np.float32)), "dtype"),
    ],
)
def test_an_optimizers_state_that_does_not_fit_is_refused(tmp_path, change, words):
    backend = make_mlx(tmp_path)
    step(backend)
    path = trio.run(backend.save_checkpoint, 1)
    expected = step(backend)
    state = load_file(path / "optimizer.safetensors")
    saved = dict(state)
    change(state)
    save_file({name: array.copy() for name, array in state.items()}, path / "optimizer.safetensors")
    reseal(path)
    with pytest.raises(ValueError, match=words):
        trio.run(backend.load_checkpoint, path)
    save_file(saved, path / "optimizer.safetensors")
    reseal(path)
    trio.run(backend.load_checkpoint, path)
    assert step(backend)["loss"] == expected["loss"]
    assert json.loads((path / "metadata.json").read_text())["optimizer"] == "AdamW"


def test_a_qwen3_of_the_kit(tmp_path):
    config = Qwen3Config(vocab_size=11, **ONE_LAYER)
    params = init_params(config, seed=0)

    def loss_fn(logits, labels, loss_mask):
        logps = mx.take_along_axis(logits - mx.logsumexp(logits, -1, keepdims=True), labels[..., None], -1)
        return masked_cross_entropy_mlx(logits, labels, loss_mask), {"logps": logps[..., 0]}

    backend = MLXTrainingBackend(partial(qwen3_forward, config), params, optim.SGD(0.1), loss_fn, tmp_path)
    prompt, completion = [1, 2, 3], [4, 5, 6, 7]
    tokens = mx.array([prompt + completion])
    batch = {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:], "loss_mask": mx.array([[0, 0, 1, 1, 1, 1]])}
    expected, _ = per_token_logps(config, params, [prompt], [completion])
    found = backend.forward_backward(batch).wait()
    np.testing.assert_allclose(found["logps"][0, 2:], np.array(expected)[0], atol=1e-5)
    assert found["loss"] == pytest.approx(-np.array(expected).mean(), rel=1e-5)


def test_what_is_not_right_is_named(tmp_path):
    params = {"w": mx.zeros(2)}
    with pytest.raises(TypeError, match="apply_fn is of type int"):
        MLXTrainingBackend(1, params, optim.SGD(0.1), masked_cross_entropy_mlx, tmp_path)
    with pytest.raises(TypeError, match=r"optimizer is of type NoneType; expected one of mlx\.optimizers"):
        MLXTrainingBackend(len, params, None, masked_cross_entropy_mlx, tmp_path)
    with pytest.raises(ValueError, match="params is empty"):
        MLXTrainingBackend(len, {}, optim.SGD(0.1), masked_cross_entropy_mlx, tmp_path)
    with pytest.raises(ValueError, match="'w' has dtype"):
        MLXTrainingBackend(len, {"w": mx.zeros(2, mx.int32)}, optim.SGD(0.1), masked_cross_entropy_mlx, tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_and_does_not_hang(tmp_path):
    batch, unused = MLX.batch(), make_mlx(tmp_path)
    said = run_in_child(lambda: [message(lambda: unused.forward_backward(batch)), message(lambda: make_mlx(tmp_path))])
    assert said.count("This process was forked from one that had used MLX") == 2


def test_an_array_of_another_thread_poisons_with_mlxs_own_words(tmp_path):
    """Which happens only where a loss function has caught one."""
    caught = mx.arange(3.0) + 1
    backend = make_mlx(tmp_path, lambda *arguments: masked_cross_entropy_mlx(*arguments) + caught.sum())
    with pytest.raises(TrainingError, match=r"[Ss]tream"):
        backend.forward_backward(MLX.batch()).wait()


@pytest.mark.parametrize(
    "optimizer", [optim.Adafactor(), optim.Adafactor(1e-3)], ids=["no rate", "a rate that it ignores"]
)
def test_adafactor_with_rates_of_its_own_reports_none(optimizer, tmp_path):
    backend = make_mlx(tmp_path)
    relative = MLXTrainingBackend(backend.apply_fn, backend.params, optimizer, backend.loss_fn, tmp_path)
    before = {name: np.array(array) for name, array in relative.get_weights().wait().items()}
    assert math.isnan(step(relative)["lr"])
    assert not relative.poisoned
    assert all((np.array(array) != before[name]).any() for name, array in relative.get_weights().wait().items())


def test_several_optimizers_are_refused_before_anything_is_done(tmp_path):
    backend = make_mlx(tmp_path)
    optimizer = optim.MultiOptimizer([optim.SGD(0.1), optim.Adam(1e-3)], [lambda name, array: "output" in name])
    with pytest.raises(TypeError, match="optimizer is a MultiOptimizer, which needs nested parameters"):
        MLXTrainingBackend(backend.apply_fn, backend.params, optimizer, backend.loss_fn, tmp_path)
