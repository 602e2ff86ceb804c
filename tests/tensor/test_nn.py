"""Layers against torch.nn: names, shapes, initial weights, training mode, and state that is saved and loaded."""

import math

import numpy as np
import pytest
import torch

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.tensor import nn, optim


class ConvNet(nn.Module):
    def __init__(self):
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm(4)
        self.head = nn.Sequential(nn.Linear(16, 8), T.relu, nn.Linear(8, 3))

    def forward(self, x):
        x = T.max_pool2d(T.relu(self.norm(self.conv(x))), 2)
        return self.head(x.reshape(len(x), -1))


class TorchConvNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(x.flatten(1))


def twins():
    torch.manual_seed(0)
    theirs = TorchConvNet().double()
    ours = ConvNet().astype(np.float64)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def test_names_and_shapes_match_torch():
    ours, theirs = twins()
    assert [(name, p.shape) for name, p in ours.named_parameters()] == [
        (name, tuple(p.shape)) for name, p in theirs.named_parameters()
    ]
    assert {*ours.state_dict(), "norm.num_batches_tracked"} == {*theirs.state_dict()}


def test_forward_backward_and_running_statistics():
    ours, theirs = twins()
    for seed in range(3):
        images = np.random.default_rng(seed).normal(size=(5, 1, 4, 4))
        targets = np.array([0, 2, 1, 1, 0])
        ours.zero_grad()
        theirs.zero_grad()
        loss = T.cross_entropy(ours(images), targets)
        expected = torch.nn.functional.cross_entropy(theirs(torch.tensor(images)), torch.tensor(targets))
        loss.backward()
        expected.backward()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
        for (name, parameter), (_, reference) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
            np.testing.assert_allclose(parameter.grad, reference.grad, rtol=1e-9, atol=1e-12, err_msg=name)
    for name, array in ours.state_dict().items():
        np.testing.assert_allclose(array, theirs.state_dict()[name], rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(ours.eval()(images).data, theirs.eval()(torch.tensor(images)).detach(), rtol=1e-10)
    assert ours.training is ours.norm.training is False
    assert ours.train().norm.training


def test_a_list_of_modules_is_found():
    class Tower(nn.Module):
        def __init__(self):
            self.scale = T.Tensor([2.0], requires_grad=True)
            self.blocks = [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 1, bias=False))]

    names = ["scale", "blocks.0.weight", "blocks.0.bias", "blocks.1.0.weight"]
    assert [name for name, _ in Tower().named_parameters()] == names


@pytest.mark.parametrize(("layer", "fan_in"), [(lambda: nn.Linear(400, 300), 400), (lambda: nn.Conv2d(32, 64, 5), 800)])
def test_initial_weights_have_the_same_spread_as_torchs(layer, fan_in):
    nn.manual_seed(0)  # the biases are few: one draw in fifty would be out of the range below
    for parameter in layer().parameters():
        assert np.abs(parameter.data).max() <= 1 / math.sqrt(fan_in)
        assert parameter.data.std() == pytest.approx(1 / math.sqrt(3 * fan_in), rel=0.15)
        assert parameter.dtype == np.float32


def test_a_seed_makes_weights_repeatable():
    def program():
        nn.manual_seed(3)
        return nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 2))([1, 4]).data.tolist()

    assert program() == program()


def test_embedding():
    layer, reference = nn.Embedding(5, 3).astype(np.float64), torch.nn.Embedding(5, 3, dtype=torch.float64)
    layer.load_state_dict(reference.state_dict())
    assert layer([[1, 2]]).data.tolist() == reference(torch.tensor([[1, 2]])).tolist()


def test_a_convolution_with_a_stride():
    ours = nn.Conv2d(4, 6, 3, stride=2, padding=1).astype(np.float64)
    theirs = torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = np.random.default_rng(0).normal(size=(2, 4, 7, 7))
    np.testing.assert_allclose(ours(x).data, theirs(torch.tensor(x)).detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("broken", "kind", "message"),
    [
        (lambda: nn.Linear(2, 3).load_state_dict({"weight": np.ones((3, 2))}), ValueError, r"missing \['bias'\]"),
        (
            lambda: nn.Linear(2, 3).load_state_dict({"weight": np.ones((2, 3)), "bias": np.ones(3)}),
            ValueError,
            r"size mismatch for weight: state_dict has shape \(2, 3\), Linear has \(3, 2\)",
        ),
        (lambda: nn.Module()(1), NotImplementedError, "without a forward"),
        (lambda: nn.Linear(2, 3)(T.Tensor(np.ones((4, 3)))), ValueError, r"Linear of \(4, 3\) and \(3, 2\)"),
        (lambda: nn.Linear(0, 3), ValueError, "Linear: in_features is 0; expected a whole number, 1 or more"),
        (lambda: nn.Linear(2, 3.0), ValueError, "Linear: out_features is 3.0; expected a whole"),
        (lambda: nn.Conv2d(1, 2, (3, 3)), ValueError, r"Conv2d: kernel_size is \(3, 3\); expected a whole"),
        (lambda: nn.Conv2d(1, 2, 3, stride=0)(np.ones((1, 1, 8, 8))), ValueError, r"stride is \(0, 0\); expected"),
        (lambda: nn.Conv2d(1, 2, 3, padding="same")(np.ones((1, 1, 8, 8))), ValueError, r"padding is \('same', "),
        (lambda: nn.Conv2d(1, 2, 3, padding=-1)(np.ones((1, 1, 8, 8))), ValueError, r"padding is \(-1, -1\)"),
        (lambda: nn.Conv2d(1, 2, 3)(np.ones((2, 1, 0, 8))), ValueError, "at least one channel and one pixel"),
        (lambda: T.max_pool2d(np.ones((1, 1, 8, 8)), 0), ValueError, r"kernel size is \(0, 0\); expected"),
        (lambda: nn.BatchNorm(3)(np.ones((2, 4, 5, 5))), ValueError, r"x \(2, 4, 5, 5\) has 4 channels, and weight"),
        (lambda: nn.BatchNorm(3)(np.ones(3)), ValueError, r"expected x \[N, C\] or \[N, C, H, W\]; got \(3,\)"),
        (lambda: nn.BatchNorm(-1), ValueError, "BatchNorm: num_features is -1"),
        (lambda: nn.Sequential([nn.Linear(2, 3), T.relu]), TypeError, r"step 0 is \[.*For a list write Sequential\("),
        (lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear), TypeError, "step 1 is <class"),
        (lambda: nn.Linear(2, 3).load_state_dict(nn.Linear(2, 3)), TypeError, "got a Linear; expected names"),
    ],
)
def test_errors(broken, kind, message):
    with pytest.raises(kind, match=message):
        broken()


def test_layers_accept_arrays_lists_and_numpy_integers():
    layer = nn.Linear(np.int64(2), 3).astype(np.float64)
    x = np.arange(8.0).reshape(4, 2)
    for same in (x, x.tolist(), T.Tensor(x), x.astype(int)):
        np.testing.assert_array_equal(layer(same).data, layer(T.Tensor(x)).data)


def test_torch_parameters_load_like_a_torch_state_dict():
    theirs, ours = torch.nn.Linear(2, 3), nn.Linear(2, 3)
    ours.load_state_dict(dict(theirs.named_parameters()))
    np.testing.assert_array_equal(ours.weight.data, theirs.weight.detach())


class Tied(nn.Module):
    """An embedding that shares its weight with the last layer."""

    def __init__(self):
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


def test_a_tensor_with_two_names_is_one_parameter():
    theirs = type("TorchTied", (torch.nn.Module,), {})()
    theirs.embedding, theirs.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
    theirs.head.weight = theirs.embedding.weight
    theirs = theirs.double()
    ours = Tied().astype(np.float64)
    ours.load_state_dict(theirs.state_dict())
    assert ours.head.weight is ours.embedding.weight
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    ids, targets = np.array([0, 4, 4]), np.array([1, 2, 3])
    optimizer = optim.Adam(ours.parameters(), lr=0.1)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.1)
    T.cross_entropy(ours(ids), targets).backward()
    logits = theirs.head(theirs.embedding(torch.tensor(ids)))
    torch.nn.functional.cross_entropy(logits, torch.tensor(targets)).backward()
    optimizer.step()
    reference.step()
    np.testing.assert_allclose(ours.head.weight.data, theirs.head.weight.detach(), rtol=0, atol=1e-12)
