"""What only PyTorch's backend has: modules of any kind, schedulers, mixed precision, threads, files of torch."""

import pickle

import numpy as np
import pytest
import torch
import trio

from mlx_grpo_kit.backends import PyTorchTrainingBackend, TrainingError
from tests.backends.frameworks import FRAMEWORKS, first_weights, make_pytorch, masked_cross_entropy_torch, torch_model
from tests.backends.test_checkpoints import reseal

PYTORCH = FRAMEWORKS[0]


def step(backend, batch=None):
    found = backend.forward_backward(batch or PYTORCH.batch()).wait()
    return found | backend.optim_step().wait()


class TestModels:
    def test_several_inputs_by_place_or_by_name(self, tmp_path):
        class Shifted(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch_model()

            def forward(self, input_ids, shift):
                return self.inner(input_ids) + shift

        def make():
            model = Shifted()
            return PyTorchTrainingBackend(
                model, torch.optim.SGD(model.parameters(), 0.1), masked_cross_entropy_torch, tmp_path
            )

        batch = PYTORCH.batch()
        shift = torch.arange(11.0)
        logits = Shifted()(batch["input_ids"], shift)
        expected = masked_cross_entropy_torch(logits, batch["labels"], batch["loss_mask"]).item()
        for inputs in ((batch["input_ids"], shift), {"shift": shift, "input_ids": batch["input_ids"]}):
            assert make().forward_backward(batch | {"input_ids": inputs}).wait()["loss"] == expected

    def test_a_model_of_transformers(self, make_qwen3, tmp_path):
        settings = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
        model, _, _ = make_qwen3(0.02, vocab_size=11, num_key_value_heads=1, head_dim=8, **settings)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        backend = PyTorchTrainingBackend(model, optimizer, masked_cross_entropy_torch, tmp_path)
        losses = [step(backend)["loss"] for _ in range(5)]
        assert losses == sorted(losses, reverse=True)
        path = trio.run(backend.save_checkpoint, 5)
        expected = step(backend)
        trio.run(backend.load_checkpoint, path)
        assert step(backend) == expected

    @pytest.mark.parametrize("part", ["whole", "output", "both"])
    def test_a_compiled_module_has_the_names_from_before(self, tmp_path, part, compiles_nothing):
        model = torch_model()
        if part != "whole":
            model.output = torch.compile(model.output, backend="eager")
        if part != "output":
            model = torch.compile(model, backend="eager")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
        backend = PyTorchTrainingBackend(model, optimizer, masked_cross_entropy_torch, tmp_path / "compiled")
        plain = make_pytorch(tmp_path / "plain")
        for each in (backend, plain):
            step(each)
        assert [*backend.get_weights().wait()] == [*plain.get_weights().wait()]
        plain.load_checkpoint(backend.save_checkpoint(1).wait()).wait()
        backend.load_checkpoint(plain.save_checkpoint(2).wait()).wait()
        backend.load_weights({name: array * 2 for name, array in plain.get_weights().wait().items()}).wait()
        plain.load_weights({name: array.clone() for name, array in model.state_dict().items()}).wait()
        for name, tensor in plain.get_weights().wait().items():
            assert torch.equal(tensor, backend.get_weights().wait()[name])

    def test_an_optimizer_over_a_part_of_the_model(self, tmp_path):
        """Norm and clipping are of its part, and no gradient of the rest is carried from step to step."""
        backend, reference = make_pytorch(tmp_path, max_grad_norm=0.5), torch_model()
        backend.optimizer = torch.optim.AdamW(backend.model.output.parameters(), lr=1e-2)
        optimizer = torch.optim.AdamW(reference.output.parameters(), lr=1e-2)
        for number in range(3):
            batch = PYTORCH.batch(number)
            found = step(backend, batch)
            masked_cross_entropy_torch(reference(batch.pop("input_ids")), **batch).backward()
            norm = torch.nn.utils.clip_grad_norm_(reference.output.parameters(), 0.5)
            assert found["grad_norm"] == pytest.approx(norm.item(), rel=1e-6)
            assert backend.model.embedding.weight.grad is None
            optimizer.step()
            reference.zero_grad()
        for name, tensor in backend.get_weights().wait().items():
            torch.testing.assert_close(tensor, reference.state_dict()[name])

    def test_what_is_frozen_has_no_gradient_and_no_moments(self, tmp_path):
        backend = make_pytorch(tmp_path)
        backend.model.embedding.requires_grad_(False)
        step(backend)
        path = trio.run(backend.save_checkpoint, 1)
        weights = backend.get_weights().wait()
        np.testing.assert_array_equal(weights["embedding.weight"].numpy(), first_weights()["embedding.weight"])
        assert not torch.equal(weights["output.weight"], torch.tensor(first_weights()["output.weight"]))
        other = make_pytorch(tmp_path / "other")
        trio.run(other.load_checkpoint, path)
        assert len(other.optimizer.state) == 1

    def test_buffers_are_weights_too(self, tmp_path):
        model = torch.nn.Sequential(torch_model(), torch.nn.Flatten(0, 1), torch.nn.BatchNorm1d(11))
        optimizer = torch.optim.AdamW(model.parameters())

        def loss_fn(logits, labels, loss_mask):
            return masked_cross_entropy_torch(logits.view(*labels.shape, -1), labels, loss_mask)

        backend = PyTorchTrainingBackend(model, optimizer, loss_fn, tmp_path)
        step(backend)
        weights = backend.get_weights().wait()
        assert weights["2.num_batches_tracked"].item() == 1
        path = trio.run(backend.save_checkpoint, 1)
        step(backend)
        trio.run(backend.load_checkpoint, path)
        assert torch.equal(backend.get_weights().wait()["2.running_mean"], weights["2.running_mean"])

    def test_what_is_no_model_or_optimizer(self, tmp_path):
        model = torch_model()
        with pytest.raises(TypeError, match=r"model is of type dict; expected a torch\.nn\.Module"):
            PyTorchTrainingBackend({}, torch.optim.SGD(model.parameters()), masked_cross_entropy_torch, tmp_path)
        with pytest.raises(TypeError, match=r"optimizer is of type NoneType; expected a torch\.optim"):
            PyTorchTrainingBackend(model, None, masked_cross_entropy_torch, tmp_path)


class TestOptions:
    def test_a_scheduler_sets_the_rate_and_goes_on_from_a_checkpoint(self, tmp_path):
        def make():
            backend = make_pytorch(tmp_path, lr=1.0)
            backend.lr_scheduler = torch.optim.lr_scheduler.LinearLR(backend.optimizer, 1.0, 0.0, total_iters=10)
            return backend

        backend = make()
        assert [step(backend)["lr"] for _ in range(4)] == pytest.approx([1.0, 0.9, 0.8, 0.7])
        path = trio.run(backend.save_checkpoint, 4)
        other = make()
        trio.run(other.load_checkpoint, path)
        expected = [step(backend) for _ in range(3)]
        assert [step(other) for _ in range(3)] == expected
        with pytest.raises(ValueError, match="was saved with an lr_scheduler, but this backend has none"):
            trio.run(make_pytorch(tmp_path).load_checkpoint, path)
        with pytest.raises(ValueError, match="was saved without an lr_scheduler, but this backend has one"):
            trio.run(make().load_checkpoint, trio.run(make_pytorch(tmp_path).save_checkpoint, 9))

    def test_autocast_holds_in_the_forward_pass_and_weights_stay_float32(self, tmp_path):
        seen = []

        def loss_fn(logits, labels, loss_mask):
            seen.append(logits.dtype)
            return masked_cross_entropy_torch(logits.float(), labels, loss_mask)

        backend = make_pytorch(tmp_path, loss_fn, autocast_dtype=torch.bfloat16)
        plain = make_pytorch(tmp_path)
        for number in range(5):
            batch = PYTORCH.batch(number)
            assert step(backend, batch)["loss"] == pytest.approx(step(plain, batch)["loss"], rel=0.03)
        assert seen == [torch.bfloat16] * 5
        assert {array.dtype for array in backend.get_weights().wait().values()} == {torch.float32}
        assert not torch.is_autocast_enabled("cpu")

    def test_it_learns_where_the_caller_computes_no_gradients(self, tmp_path):
        backend = make_pytorch(tmp_path)
        with torch.no_grad():
            assert step(backend)["grad_norm"] > 0

    def test_operations_have_as_many_threads_as_where_the_backend_was_made(self, tmp_path):
        seen = []

        def loss_fn(*arguments):
            seen.append(torch.get_num_threads())
            return masked_cross_entropy_torch(*arguments)

        before = torch.get_num_threads()
        try:
            torch.set_num_threads(before + 1)
            step(make_pytorch(tmp_path, loss_fn))
        finally:
            torch.set_num_threads(before)
        assert seen == [before + 1]


class TestFiles:
    def test_they_are_what_torch_saves(self, tmp_path):
        backend = make_pytorch(tmp_path)
        step(backend)
        path = trio.run(backend.save_checkpoint, 1)
        model = torch.load(path / "pytorch_model.bin", weights_only=True)
        for name, tensor in backend.model.state_dict().items():
            assert torch.equal(model[name], tensor)
        optimizer = torch.optim.AdamW(torch_model().parameters())
        optimizer.load_state_dict(torch.load(path / "optimizer.bin", weights_only=True))
        assert optimizer.param_groups[0]["lr"] == 1e-2

    def test_the_random_state_goes_on(self, tmp_path):
        drawn = []

        def loss_fn(*arguments):
            drawn.append(torch.rand(()).item())
            return masked_cross_entropy_torch(*arguments)

        backend = make_pytorch(tmp_path, loss_fn)
        path = trio.run(backend.save_checkpoint, 1)
        step(backend)
        trio.run(backend.load_checkpoint, path)
        step(backend)
        assert drawn[0] == drawn[1]

    def test_no_code_in_them_is_ever_run(self, tmp_path):
        class Harmful:
            def __reduce__(self):
                return (open, (str(tmp_path / "harm"), "w"))

        backend = make_pytorch(tmp_path)
        path = trio.run(backend.save_checkpoint, 1)
        for name in ("pytorch_model.bin", "optimizer.bin", "training_state.bin"):
            content = (path / name).read_bytes()
            for harm in (
                lambda file: torch.save({"a": Harmful()}, file),
                lambda file: file.write_bytes(pickle.dumps(1, 2)),
                lambda file: file.write_bytes(b"\x80\x02."),  # torch raises IndexError
            ):
                harm(path / name)
                reseal(path)
                with pytest.raises(ValueError, match=f"{name} cannot be read"):
                    trio.run(backend.load_checkpoint, path)
            (path / name).write_bytes(content)
        assert not (tmp_path / "harm").exists()
        reseal(path)
        trio.run(backend.load_checkpoint, path)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda state: state["state"][0].update(exp_avg=torch.zeros(2, 2)), r"'exp_avg' has shape \(2, 2\)"),
            (lambda state: state["state"][1].update(exp_avg=torch.zeros(11, 6, dtype=torch.float64)), "float64"),
            (lambda state: state["state"][1].update(exp_avg_sq=torch.full((11, 6), torch.nan)), "contains NaN"),
            (lambda state: state["state"][1].pop("exp_avg_sq"), "'exp_avg_sq' is missing"),
            (lambda state: state["state"][1].update(momentum_buffer=torch.zeros(11, 6)), "'momentum_buffer' is not"),
            (lambda state: state["state"].update({7: {}}), "a parameter 7 that is in none of its groups"),
            (lambda state: state["param_groups"].append({"params": []}), "groups"),
            (lambda state: state["param_groups"][0].update(lr="high"), "setting 'lr'"),
            (lambda state: state["param_groups"][0].pop("betas"), "groups"),
            (lambda state: state["param_groups"][0]["params"].pop(), "groups"),
            (lambda state: state.pop("param_groups"), "groups"),
        ],
    )
    def test_an_optimizer_state_that_torch_itself_would_take(self, tmp_path, change, words):
        backend = make_pytorch(tmp_path)
        step(backend)
        path = trio.run(backend.save_checkpoint, 1)
        state = torch.load(path / "optimizer.bin", weights_only=True)
        change(state)
        torch.save(state, path / "optimizer.bin")
        reseal(path)
        other = make_pytorch(tmp_path / "other")
        with pytest.raises(ValueError, match=words):
            trio.run(other.load_checkpoint, path)
        assert other.optimizer.state == {}
        for name, array in first_weights().items():
            np.testing.assert_array_equal(other.get_weights().wait()[name].numpy(), array)

    @pytest.mark.parametrize(
        "kind",
        [
            lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
            lambda parameters: torch.optim.Adam(parameters, amsgrad=True),
            torch.optim.Adagrad,
            torch.optim.RMSprop,
            torch.optim.Adafactor,
            lambda parameters: torch.optim.AdamW([{"params": [each]} for each in parameters]),
        ],
    )
    def test_any_optimizer_goes_on(self, tmp_path, kind):
        def make():
            model = torch_model()
            return PyTorchTrainingBackend(model, kind(model.parameters()), masked_cross_entropy_torch, tmp_path)

        backend, other = make(), make()
        for _ in range(2):
            step(backend)
        trio.run(other.load_checkpoint, trio.run(backend.save_checkpoint, 2))
        for _ in range(2):
            assert step(other) == step(backend)


def test_an_operation_that_fails_in_the_optimizer_poisons(tmp_path):
    model = torch_model()
    backend = PyTorchTrainingBackend(model, torch.optim.LBFGS(model.parameters()), masked_cross_entropy_torch, tmp_path)
    backend.forward_backward(PYTORCH.batch()).wait()
    with pytest.raises(TrainingError, match=r"optim_step failed.*closure"):
        backend.optim_step().wait()
