"""What holds for every backend: batches, gradients, weights, failures. Ground truth is a plain loop in torch."""

import threading

import numpy as np
import pytest
import torch
import trio

from mlx_grpo_kit.backends import TrainFuture, TrainingBackend, TrainingError
from mlx_grpo_kit.backends.arrays import as_numpy, dtype_name
from tests.backends.frameworks import FRAMEWORKS, first_weights, masked_cross_entropy_torch, numpy_batch, torch_model
from tests.every import every

IDS, OUTPUT = numpy_batch()["input_ids"], "output.weight"


def numpy_weights(weights):
    return {name: as_numpy(array) for name, array in weights.items()}


def torch_loop(batches_by_step, lr=1e-2, max_grad_norm=None):
    """What torch itself makes of it: losses, norms of the gradient before clipping, weights."""
    model = torch_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    losses, norms = [], []
    for batches in batches_by_step:
        for batch in batches:
            tensors = {name: torch.tensor(array) for name, array in batch.items()}
            loss = masked_cross_entropy_torch(model(tensors.pop("input_ids")), **tensors)
            loss.backward()
            losses.append(loss.item())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm or float("inf"))
        norms.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def test_it_is_a_training_backend(backend):
    assert isinstance(backend, TrainingBackend)
    assert backend.weight_version == backend.current_step == 0


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.1}], ids=["plain", "clipped"])
def test_ten_steps_are_those_of_torch(framework, tmp_path, options):
    backend = framework.make(tmp_path, **options)
    found = []

    async def train():
        for step in range(10):
            found.append(await backend.forward_backward(framework.batch(step)).result())
            found[-1] |= await backend.optim_step().result()
        return await backend.get_weights().result()

    weights = numpy_weights(trio.run(train))
    losses, norms, expected = torch_loop([[numpy_batch(step)] for step in range(10)], **options)
    assert [each["loss"] for each in found] == pytest.approx(losses, rel=1e-5)
    assert [each["grad_norm"] for each in found] == pytest.approx(norms, rel=1e-5)
    assert [each["step"] for each in found] == list(range(1, 11))
    assert [each["lr"] for each in found] == pytest.approx([1e-2] * 10)
    assert backend.current_step == 10
    for name in expected:
        np.testing.assert_allclose(weights[name], expected[name], rtol=1e-4, atol=1e-6)


def test_gradients_of_several_calls_are_summed_and_cleared_by_the_step(framework, backend):
    for step in range(3):
        for part in range(3):
            found = backend.forward_backward(framework.batch(10 * step + part, scale=1 / (part + 1)))
        stepped = backend.optim_step()
    losses, norms, expected = torch_loop(
        [
            [numpy_batch(10 * step + part) | {"scale": np.float32(1 / (part + 1))} for part in range(3)]
            for step in range(3)
        ]
    )
    assert found.wait()["loss"] == pytest.approx(losses[-1], rel=1e-5)
    assert found.wait()["grad_norm"] == pytest.approx(norms[-1], rel=1e-5), "of the sum"
    assert stepped.wait()["grad_norm"] == pytest.approx(norms[-1], rel=1e-5)
    weights = numpy_weights(backend.get_weights().wait())
    for name in expected:
        np.testing.assert_allclose(weights[name], expected[name], rtol=1e-4, atol=1e-6)


def test_operations_are_submitted_ahead_and_done_in_order(framework, backend):
    futures = [
        submit()
        for step in range(20)
        for submit in (lambda step=step: backend.forward_backward(framework.batch(step)), backend.optim_step)
    ]
    assert all(isinstance(future, TrainFuture) for future in futures)
    assert [future.wait()["step"] for future in futures[1::2]] == list(range(1, 21))
    losses, _, _ = torch_loop([[numpy_batch(step)] for step in range(20)])
    assert [future.wait()["loss"] for future in futures[::2]] == pytest.approx(losses, rel=1e-4)


class TestResults:
    def test_metrics_of_the_loss_function(self, framework, tmp_path):
        def loss_fn(logits, labels, loss_mask, advantages):
            return framework.loss_fn(logits, labels, loss_mask), {
                "mean": (logits * 0 + advantages[:, None, None]).mean(),
                "mask": loss_mask,
                "python": 3,
            }

        backend = framework.make(tmp_path, loss_fn)
        batch = framework.batch() | {"advantages": framework.array(np.full(3, 2, np.float32))}
        found = backend.forward_backward(batch).wait()
        assert {name: type(value) for name, value in found.items()} == {
            "loss": float, "grad_norm": float, "mean": float, "mask": np.ndarray, "python": float,
        }  # fmt: skip
        assert found["mean"] == pytest.approx(2.0)
        np.testing.assert_array_equal(found["mask"], numpy_batch()["loss_mask"])

    def test_weights_are_copies(self, framework, backend):
        before = backend.get_weights().wait()
        kept = numpy_weights(before)
        backend.forward_backward(framework.batch()).wait()
        backend.optim_step().wait()
        for name, array in first_weights().items():
            np.testing.assert_array_equal(kept[name], array)
            np.testing.assert_array_equal(as_numpy(before[name]), array)
        after = numpy_weights(backend.get_weights().wait())
        assert not np.array_equal(after["output.weight"], kept["output.weight"])

    def test_repr(self, backend):
        assert repr(backend) == f"<{type(backend).__name__} step 0, weight version 0>"


class TestBatchesThatAreRefused:
    """At the call, with nothing submitted: the next one goes through."""

    @every(
        ("change", "error", "words"),
        [
            (lambda batch: [*batch], TypeError, "has type list; expected a dictionary"),
            (lambda batch: {}, ValueError, "lacks 'input_ids'; it has nothing"),
            (lambda batch: batch | {"labels": None}, TypeError, "'labels' is of type NoneType; expected "),
            (lambda batch: batch | {"loss_mask": [1.0]}, TypeError, "'loss_mask' is of type list; expected "),
            (lambda batch: batch | {"labels": batch["labels"][:, 1:]}, ValueError, r"labels have shape \(3, 4\) and "),
            (lambda batch: batch | {"loss_mask": batch["loss_mask"] * 0}, ValueError, "loss_mask is 0 everywhere"),
            (lambda batch: batch | {1: 2}, TypeError, "The batch has 1; expected strings as names"),
            (lambda batch: batch | {"input_ids": IDS}, TypeError, "'input_ids' contain ndarray; expected "),
            (lambda batch: batch | {"input_ids": (IDS.tolist(),)}, TypeError, "'input_ids' contain list; expected "),
            (lambda batch: batch | {"input_ids": {"ids": IDS}}, TypeError, "'input_ids' contain ndarray; expected "),
            (lambda batch: batch | {"weights": 1}, TypeError, "cannot be called with this batch.*'weights'"),
        ],
    )
    def test_in_words(self, framework, backend, change, error, words):
        with pytest.raises(error, match=words):
            backend.forward_backward(change(framework.batch()))
        assert backend.forward_backward(framework.batch()).wait()["loss"] > 0

    def test_what_becomes_of_the_dictionary_afterwards_does_not_matter(self, framework, backend):
        gate, batch = threading.Event(), framework.batch()
        backend._worker.submit("before it", lambda: gate.wait(10))
        found = backend.forward_backward(batch)
        batch.clear()  # as who fills one dictionary again and again
        gate.set()
        assert found.wait()["loss"] == pytest.approx(torch_loop([[numpy_batch()]])[0][0], rel=1e-5)

    def test_what_the_loss_function_needs_and_the_batch_lacks(self, framework, tmp_path):
        backend = framework.make(tmp_path, lambda logits, labels, loss_mask, *, advantages: logits.sum())
        words = (
            "missing a required .*argument: 'advantages'. It gets .* by keyword everything else in the batch: nothing"
        )
        with pytest.raises(TypeError, match=words):
            backend.forward_backward(framework.batch())
        assert not backend.poisoned

    def test_without_a_mask_every_label_counts(self, framework, backend):
        batch = framework.batch()
        del batch["loss_mask"]
        found = backend.forward_backward(batch).wait()
        ones = numpy_batch() | {"loss_mask": np.ones((3, 5), np.float32)}
        losses, norms, _ = torch_loop([[ones]])
        assert (found["loss"], found["grad_norm"]) == pytest.approx((losses[0], norms[0]), rel=1e-5)


class TestFailures:
    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            (lambda loss, logits: {}["gone"], "KeyError: 'gone'"),
            (lambda loss, logits: logits.sum(-1), r"The loss has shape \(3, 4\); expected a scalar"),
            (lambda loss, logits: loss.reshape(1), r"The loss has shape \(1,\); expected a scalar"),
            (lambda loss, logits: None, "returned NoneType; expected a scalar"),
            (lambda loss, logits: 1.0, r"returned float; expected a scalar .* Leave out \.item"),
            (lambda loss, logits: (loss, 1.0), "The metrics have type float"),
            (lambda loss, logits: (loss, {"text": "x"}), "Metric 'text' is of type str"),
            (lambda loss, logits: (loss, {"loss": loss * 0}), "a metric 'loss'; the backend has its own"),
            (lambda loss, logits: (loss, {"grad_norm": loss}), "a metric 'grad_norm'; the backend has its own"),
            (lambda loss, logits: (loss, {"text": object()}), "Metric 'text' is of type object"),
        ],
    )
    def test_a_bad_loss_changes_nothing_and_the_backend_goes_on(self, framework, tmp_path, spoil, words):
        def loss_fn(logits, labels, loss_mask):
            loss = framework.loss_fn(logits, labels, loss_mask)
            return spoil(loss, logits) if spoiled else loss

        backend, spoiled = framework.make(tmp_path, loss_fn), True
        future = backend.forward_backward(framework.batch(9, length=4))
        for _ in range(2):
            with pytest.raises(TrainingError, match=f"forward_backward failed .*{words}.*Nothing has changed"):
                future.wait()
        assert not backend.poisoned
        with pytest.raises(RuntimeError, match="There is no gradient"):
            backend.optim_step().wait()
        spoiled = False
        found = backend.forward_backward(framework.batch()).wait()
        assert backend.optim_step().wait()["step"] == 1
        losses, norms, expected = torch_loop([[numpy_batch()]])
        assert (found["loss"], found["grad_norm"]) == pytest.approx((losses[0], norms[0]), rel=1e-5)
        for name, array in numpy_weights(backend.get_weights().wait()).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-6)

    def test_what_was_submitted_after_a_bad_loss_is_not_done(self, framework, tmp_path):
        """A step, for example, which would be taken with a part of the gradient."""

        def loss_fn(logits, labels, loss_mask, scale=1.0):
            gate.wait(10)
            if labels.shape[1] == 4:
                raise KeyError("short")
            return framework.loss_fn(logits, labels, loss_mask)

        backend, gate = framework.make(tmp_path, loss_fn), threading.Event()
        good, bad, step, weights = (
            backend.forward_backward(framework.batch(1)),
            backend.forward_backward(framework.batch(2, length=4)),
            backend.optim_step(),
            backend.get_weights(),
        )
        gate.set()
        assert good.wait()["loss"] > 0
        with pytest.raises(TrainingError, match="forward_backward failed"):
            bad.wait()
        for future in (step, weights):
            with pytest.raises(TrainingError, match=r"was not done: forward_backward failed before it \(KeyError"):
                future.wait()
        backend.forward_backward(framework.batch(2))
        assert backend.optim_step().wait()["step"] == 1
        _, _, expected = torch_loop([[numpy_batch(1), numpy_batch(2)]])
        for name, array in numpy_weights(backend.get_weights().wait()).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            (lambda zeros: zeros + float("nan"), r"The loss is nan\. Look"),
            (lambda zeros: zeros + float("inf"), r"The loss is inf\. Look"),
            (lambda zeros: zeros**0.5, r"The loss is [\d.]+, but the norm of its gradient is (nan|inf)"),
        ],
        ids=["nan", "inf", "gradient"],
    )
    def test_what_is_not_finite_poisons(self, framework, tmp_path, spoil, words):
        def loss_fn(logits, labels, loss_mask):
            return framework.loss_fn(logits, labels, loss_mask) + spoil((logits - logits).sum())

        backend = framework.make(tmp_path, loss_fn)
        assert not backend.poisoned
        with pytest.raises(TrainingError, match=words):
            backend.forward_backward(framework.batch()).wait()
        assert backend.poisoned
        for call in (
            backend.optim_step,
            backend.get_weights,
            lambda: backend.forward_backward(framework.batch()),
            lambda: backend.load_weights({}),
            lambda: backend.save_checkpoint(1),
            lambda: backend.load_checkpoint(tmp_path),
        ):
            with pytest.raises(TrainingError, match=words):
                call()
        assert backend.current_step == backend.weight_version == 0
        backend.close()

    def test_a_step_without_gradient_is_refused_and_the_backend_goes_on(self, framework, backend):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="There is no gradient for a step") as raised:
                backend.optim_step().wait()
            assert not isinstance(raised.value, TrainingError)
            backend.forward_backward(framework.batch()).wait()
            backend.optim_step().wait()
        assert backend.current_step == 2

    def test_cancelling_who_waits_for_a_step_leaves_it_whole(self, framework, backend):
        async def train():
            for step in range(10):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await backend.forward_backward(framework.batch(step)).result()
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await backend.optim_step().result()
                assert scope.cancelled_caught
            return await backend.get_weights().result()

        weights = numpy_weights(trio.run(train))
        _, _, expected = torch_loop([[numpy_batch(step)] for step in range(10)])
        for name in expected:
            np.testing.assert_allclose(weights[name], expected[name], rtol=1e-4, atol=1e-6)


class TestLoadingWeights:
    def test_numpys_and_the_frameworks_own(self, framework, backend):
        other = {name: array + 1 for name, array in first_weights().items()}
        backend.load_weights(other).wait()
        for name, array in numpy_weights(backend.get_weights().wait()).items():
            np.testing.assert_array_equal(array, other[name])
        backend.load_weights({name: framework.array(array) for name, array in first_weights().items()}).wait()
        for name, array in numpy_weights(backend.get_weights().wait()).items():
            np.testing.assert_array_equal(array, first_weights()[name])

    def test_what_is_given_stays_the_givers(self, framework, backend):
        given = {name: framework.array(array) for name, array in first_weights().items()}
        backend.load_weights(given).wait()
        backend.forward_backward(framework.batch()).wait()
        backend.optim_step().wait()
        for name, array in first_weights().items():
            np.testing.assert_array_equal(as_numpy(given[name]), array)

    def test_and_what_the_giver_does_with_it_afterwards_changes_nothing(self, framework, backend):
        """Nor what is done with weights that were handed out."""
        given = {name: framework.array(array) for name, array in first_weights().items()}
        loading = backend.load_weights(given)
        arrays = [*given.values()]
        given.clear()
        loading.wait()
        for array in (*arrays, *backend.get_weights().wait().values()):
            array *= 0  # in place, where a framework's arrays can be changed
        for name, array in numpy_weights(backend.get_weights().wait()).items():
            np.testing.assert_array_equal(array, first_weights()[name])

    def test_gradients_of_the_old_ones_are_cleared(self, framework, backend):
        backend.forward_backward(framework.batch()).wait()
        backend.load_weights(first_weights()).wait()
        with pytest.raises(RuntimeError, match="There is no gradient"):
            backend.optim_step().wait()

    @every(
        ("change", "error", "words"),
        [
            (lambda given: given | {"bias": given[OUTPUT]}, ValueError, "'bias' is not one of .* 2"),
            (lambda given: {"embedding.weight": given["embedding.weight"]}, ValueError, "'output.weight' is missing"),
            (lambda given: given | {OUTPUT: given[OUTPUT].T}, ValueError, r"shape \(6, 11\) and"),
            (lambda given: given | {OUTPUT: given[OUTPUT].astype(np.float16)}, ValueError, "dtype"),
            (lambda given: given | {OUTPUT: given[OUTPUT] * np.nan}, ValueError, "contains NaN"),
            (lambda given: given | {OUTPUT: [1.0]}, TypeError, "'output.weight' is of type list"),
        ],
    )
    def test_others_are_refused_and_nothing_changes(self, backend, change, error, words):
        with pytest.raises(error, match=words):
            backend.load_weights(change(first_weights())).wait()
        for name, array in numpy_weights(backend.get_weights().wait()).items():
            np.testing.assert_array_equal(array, first_weights()[name])
        with pytest.raises(TypeError, match="weights have type list"):
            backend.load_weights([1])


class TestWeightsInBfloat16:
    """NumPy has no bfloat16; frameworks do. torch's own rounding of the first weights is the ground truth."""

    @pytest.mark.parametrize("other", FRAMEWORKS, ids=lambda other: other.name)
    def test_cross_from_one_framework_to_another(self, request, framework, other, tmp_path):
        if other.name in ("jax", "torchax"):
            request.getfixturevalue("jax")
        giver, taker = other.make(tmp_path / "giver", half=True), framework.make(tmp_path / "taker", half=True)
        taker.load_weights({name: as_numpy(each) * 0 for name, each in taker.get_weights().wait().items()}).wait()
        taker.load_weights(giver.get_weights().wait()).wait()
        found = taker.get_weights().wait()
        for name, expected in first_weights().items():
            assert dtype_name(found[name]) == "bfloat16"
            np.testing.assert_array_equal(as_numpy(found[name]), torch.tensor(expected).bfloat16().float().numpy())

    def test_float32_is_taken_where_bfloat16_holds_it(self, framework, tmp_path):
        backend = framework.make(tmp_path, half=True)
        with pytest.raises(ValueError, match=r"'embedding.weight' has shape .* and dtype float32; this backend's has"):
            backend.load_weights(first_weights()).wait()
        backend.load_weights({name: np.round(array) for name, array in first_weights().items()}).wait()

    def test_other_dtypes_are_refused(self, framework, backend):
        doubles = {name: array.astype(np.float64) for name, array in first_weights().items()}
        with pytest.raises(ValueError, match="and dtype float64; this backend's has"):
            backend.load_weights(doubles).wait()


class TestMaking:
    def test_what_is_not_right_is_named(self, framework, tmp_path):
        with pytest.raises(TypeError, match="loss_fn is of type int"):
            framework.make(tmp_path, 3)
        (tmp_path / "file").touch()
        with pytest.raises(FileExistsError):
            framework.make(tmp_path / "file")
        with pytest.raises(TypeError, match=r"current_step is 1\.5"):
            framework.make(tmp_path, current_step=1.5)
        with pytest.raises(ValueError, match="weight_version is -1"):
            framework.make(tmp_path, weight_version=-1)

    @pytest.mark.parametrize("framework", [each for each in FRAMEWORKS if each.name in ("pytorch", "mlx")])
    def test_a_limit_of_the_gradients_norm_that_is_none(self, framework, tmp_path):
        """torch would go uphill with -1, and make NaN of every weight with NaN."""
        for limit in (-1, 0, float("nan")):
            with pytest.raises(ValueError, match=f"max_grad_norm is {limit}; expected a number above 0"):
                framework.make(tmp_path, max_grad_norm=limit)
        for limit in ("1", True):
            with pytest.raises(TypeError, match=f"max_grad_norm is {limit!r}; expected a number"):
                framework.make(tmp_path, max_grad_norm=limit)

    def test_it_goes_on_counting_from_what_it_is_given(self, framework, tmp_path):
        backend = framework.make(str(tmp_path / "deep" / "folder"), current_step=7, weight_version=3)
        assert (tmp_path / "deep" / "folder").is_dir()
        backend.forward_backward(framework.batch())
        assert backend.optim_step().wait()["step"] == 8

    def test_as_a_context_it_is_closed_at_the_end(self, framework, tmp_path):
        with framework.make(tmp_path) as backend:
            done = backend.forward_backward(framework.batch())
        assert done.done()
        with pytest.raises(RuntimeError, match="closed"):
            backend.get_weights()

    def test_an_exception_in_it_is_what_one_sees(self, framework, tmp_path):
        def leave():
            with framework.make(tmp_path, lambda *_: {}["unseen"]) as backend:
                backend.forward_backward(framework.batch())
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            leave()
