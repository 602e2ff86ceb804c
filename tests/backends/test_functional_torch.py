"""What torch.func's and torchax's backends have of their own: a module as a template, buffers, tied weights, files."""

import numpy as np
import pytest
import torch
import trio
from torch import nn

from mlx_grpo_kit.backends import TorchFuncTrainingBackend
from tests.backends.frameworks import masked_cross_entropy_torch, numpy_batch, torch_model

IDS = 11


class Tied(nn.Module):
    """The embedding is the output layer too; a frozen shift and a buffer are parts of the sum."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(IDS, 4)
        self.shift = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.register_buffer("passing", torch.tensor(2.0), persistent=False)
        self.output = nn.Linear(4, IDS, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, input_ids):
        return self.output((self.embedding(input_ids) + self.shift) * self.scale * self.passing)


class Normed(nn.Module):
    """Batch norm, whose running means a forward pass in training changes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm, self.output = nn.Embedding(IDS, 4), nn.BatchNorm1d(4), nn.Linear(4, IDS)

    def forward(self, input_ids):
        return self.output(self.norm(self.embedding(input_ids).transpose(1, 2)).transpose(1, 2))


class AsTransformers(nn.Module):
    """Returns an object with logits in it, and takes a second input by name."""

    def __init__(self):
        super().__init__()
        self.inner = torch_model()

    def forward(self, input_ids, shift):
        from types import SimpleNamespace

        return SimpleNamespace(logits=self.inner(input_ids) + shift)


def batch(seed=0):
    return {name: torch.tensor(array) for name, array in numpy_batch(seed).items()}


def make_torch_func(model, folder, **options):
    import torchopt

    return TorchFuncTrainingBackend.from_model(
        model, torchopt.adamw(1e-2, weight_decay=0.01), masked_cross_entropy_torch, folder, **options
    )


def make_torchax(model, folder, **options):
    import optax

    from mlx_grpo_kit.backends import TorchaxTrainingBackend

    return TorchaxTrainingBackend(
        model, optax.adamw(1e-2, weight_decay=0.01), masked_cross_entropy_torch, folder, **options
    )


@pytest.fixture(params=["torch_func", "torchax"])
def make(request, tmp_path):
    if request.param == "torchax":
        request.getfixturevalue("jax")
    makers = {"torch_func": make_torch_func, "torchax": make_torchax}
    return lambda model, folder="", **options: makers[request.param](model, tmp_path / folder, **options)


def torch_loop(model, steps):
    """What torch.optim makes of a model; -> its state_dict."""
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 1e-2, weight_decay=0.01)
    for step in range(steps):
        arrays = batch(step)
        masked_cross_entropy_torch(model(arrays.pop("input_ids")), **arrays).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def train(backend, steps):
    for step in range(steps):
        backend.forward_backward(batch(step))
        backend.optim_step().wait()
    return backend.get_weights().wait()


def assert_close(found, expected, rtol=1e-4):
    assert [*found] == [*expected]
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=rtol, atol=1e-6, msg=name)


def test_tied_and_frozen_weights_and_buffers(make):
    model = Tied()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    backend = make(model)
    weights = train(backend, 4)
    assert_close(model.state_dict(), before, rtol=0)  # a template
    assert_close(weights, torch_loop(Tied(), 4))
    assert torch.equal(weights["output.weight"], weights["embedding.weight"])
    assert torch.equal(weights["shift"], before["shift"])
    other = {**weights, "shift": weights["shift"] + 1, "scale": weights["scale"] * 2}
    backend.load_weights(other).wait()
    assert_close(backend.get_weights().wait(), other, rtol=0)
    expected = Tied()
    expected.load_state_dict(other)
    arrays = batch(9)
    loss = masked_cross_entropy_torch(expected(arrays.pop("input_ids")), **arrays).item()
    assert backend.forward_backward(batch(9)).wait()["loss"] == pytest.approx(loss, rel=1e-5)


def test_the_module_itself_loads_its_checkpoint(make):
    backend = make(Tied(), "saved")
    weights = train(backend, 2)
    folder = trio.run(backend.save_checkpoint, 2)
    model = Tied()
    model.load_state_dict(torch.load(folder / "pytorch_model.bin", weights_only=True))
    assert_close(model.state_dict(), weights, rtol=0)
    optimizer = torch.load(folder / "optimizer.bin", weights_only=True)  # nothing in it but tensors
    assert all(isinstance(each, torch.Tensor) for each in optimizer.values())


def test_a_compiled_module_has_the_names_from_before(tmp_path, compiles_nothing):
    model = torch_model()
    model.output = torch.compile(model.output, backend="eager")
    backend = make_torch_func(torch.compile(model, backend="eager"), tmp_path)
    assert_close(train(backend, 2), torch_loop(torch_model(), 2))
    backend.load_weights(model.state_dict()).wait()
    assert_close(backend.get_weights().wait(), torch_model().state_dict(), rtol=0)


def test_an_object_with_logits_and_inputs_by_name(make):
    backend, plain = make(AsTransformers()), make(torch_model(), "plain")
    inputs = {"input_ids": batch()["input_ids"], "shift": torch.tensor(0.5)}
    found = backend.forward_backward(batch() | {"input_ids": inputs}).wait()
    assert found["loss"] == pytest.approx(plain.forward_backward(batch()).wait()["loss"], rel=1e-6)


def test_transformers_own_qwen3(make, make_qwen3):
    model, _, _ = make_qwen3(
        0.2, vocab_size=IDS, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, tie_word_embeddings=True,
    )  # fmt: skip
    arrays = batch()
    logits = model(input_ids=arrays["input_ids"]).logits
    loss = masked_cross_entropy_torch(logits, arrays["labels"], arrays["loss_mask"])
    found = make(model).forward_backward(batch() | {"input_ids": {"input_ids": arrays["input_ids"]}}).wait()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    grads = torch.autograd.grad(loss, [*model.parameters()])
    assert found["grad_norm"] == pytest.approx(torch.nn.utils.get_total_norm(grads).item(), rel=1e-4)


def test_what_batch_norm_makes_of_its_buffers_is_kept(tmp_path):
    model = Normed()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights = train(make_torch_func(model, tmp_path), 3)
    assert_close(weights, torch_loop(Normed(), 3))
    assert weights["norm.num_batches_tracked"] == 3
    assert_close(model.state_dict(), before, rtol=0)


def test_torchax_reads_buffers_and_leaves_them(jax, tmp_path):
    weights = train(make_torchax(Normed(), tmp_path), 2)
    for name, tensor in Normed().named_buffers():
        assert torch.equal(weights[name], tensor)
    expected = torch_loop(Normed(), 2)
    for name in ("embedding.weight", "output.weight", "norm.weight"):
        torch.testing.assert_close(weights[name], expected[name], rtol=1e-4, atol=1e-6)


def test_bfloat16_weights(make):
    """Saved and loaded as what they are, to the bit."""
    model = torch_model().bfloat16()
    backend = make(model)
    weights = train(backend, 1)
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    folder = trio.run(backend.save_checkpoint, 1)
    expected = train(backend, 2)
    trio.run(backend.load_checkpoint, folder)
    assert_close(backend.get_weights().wait(), weights, rtol=0)
    assert_close(train(backend, 2), expected, rtol=0)


def test_parts_that_are_refused(make):
    with pytest.raises(TypeError, match=r"model is of type int; expected a torch\.nn\.Module"):
        make(3)
    with pytest.raises(TypeError, match="optimizer is of type SGD; expected one of torchopt, such as"):
        TorchFuncTrainingBackend.from_model(torch_model(), torch.optim.SGD(torch_model().parameters()), len, "")


def test_torchopts_drift_is_what_the_docstring_says():
    import torchopt

    random = np.random.default_rng(0)
    params = {"weight": torch.zeros(500)}
    theirs = torch.zeros(500, requires_grad=True)
    optimizer, exact = torchopt.adamw(1e-3, weight_decay=0.01), torch.optim.AdamW([theirs], 1e-3, weight_decay=0.01)
    state = optimizer.init(params)
    for _ in range(200):
        gradient = torch.tensor(random.normal(size=500), dtype=torch.float32)
        updates, state = optimizer.update({"weight": gradient}, state, params=params, inplace=False)
        params = torchopt.apply_updates(params, updates, inplace=False)
        theirs.grad = gradient
        exact.step()
    drift = (params["weight"] - theirs).norm() / theirs.norm()
    assert 1e-8 < drift < 2e-5


def test_torchs_look_up_of_operators_is_as_it_was_after_torchax_is_loaded(jax):
    import mlx_grpo_kit.backends.torchax_backend  # noqa: F401

    with pytest.raises(AttributeError, match="no overload name 'dimname'"):
        torch.ops.aten.all.dimname  # noqa: B018
