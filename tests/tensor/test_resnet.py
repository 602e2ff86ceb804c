"""ResNet: the same names, shapes and numbers as its twin in torch."""

import numpy as np
import pytest
import torch

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.tensor.resnet import BasicBlock, ResNet, resnet18
from tests.tensor.torch_resnet import TorchResNet


def twins(widths, blocks, in_channels):
    torch.manual_seed(1)
    theirs = TorchResNet(widths, blocks, in_channels).double()
    ours = ResNet(widths, blocks, in_channels).astype(np.float64)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize(
    ("widths", "blocks", "size"),
    [([4], 1, 5), ([4, 6], 2, 8), ([4, 4, 8], 1, 7)],
    ids=["one stage", "two stages", "equal widths, odd size"],
)
def test_training_and_evaluation_match_torch(widths, blocks, size):
    ours, theirs = twins(widths, blocks, 2)
    x = np.random.default_rng(0).normal(size=(3, 2, size, size))
    y = np.array([1, 7, 3])
    for training in (True, False):
        ours.train(training)
        theirs.train(training)
        ours.zero_grad()
        theirs.zero_grad()
        logits, expected = ours(T.Tensor(x)), theirs(torch.tensor(x))
        np.testing.assert_allclose(logits.data, expected.detach(), rtol=0, atol=1e-12)
        T.cross_entropy(logits, y).backward()
        torch.nn.functional.cross_entropy(expected, torch.tensor(y)).backward()
        for (name, parameter), (torch_name, reference) in zip(
            ours.named_parameters(), theirs.named_parameters(), strict=True
        ):
            assert name == torch_name
            np.testing.assert_allclose(parameter.grad, reference.grad, rtol=0, atol=1e-12, err_msg=name)
    for name, array in theirs.state_dict().items():
        if "running" in name:
            np.testing.assert_allclose(ours.state_dict()[name], array, rtol=0, atol=1e-12, err_msg=name)


def test_resnet18_has_torchvisions_names_and_11_million_parameters():
    model = resnet18()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 11_173_962
    assert shapes["conv1.weight"] == (64, 3, 3, 3)
    assert shapes["layer1.1.bn2.bias"] == (64,)
    assert shapes["layer3.0.conv1.weight"] == (256, 128, 3, 3)
    assert shapes["layer4.0.downsample.0.weight"] == (512, 256, 1, 1)
    assert shapes["fc.weight"] == (10, 512)
    assert not any(name.startswith("layer1.0.downsample") for name in shapes)
    assert sum("conv" in name or "downsample.0" in name for name in shapes) == 17 + 3  # and fc makes 18


def test_a_block_without_its_convolutions_is_the_identity():
    block = BasicBlock(3, 3)
    block.bn2.weight.data = np.zeros(3)
    x = np.random.default_rng(0).uniform(size=(2, 3, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(block(T.Tensor(x)).data, x)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: ResNet([], 1), r"ResNet: widths is \[\]; expected the channels of each stage"),
        (lambda: ResNet(16, 1), "ResNet: widths is 16; expected"),
        (lambda: ResNet([4], 0), "ResNet: blocks is 0; expected a whole number of blocks per stage, 1 or more"),
        (lambda: ResNet([4], 1.5), "ResNet: blocks is 1.5"),
        (lambda: ResNet([4, 0], 1), "Conv2d: out_channels is 0"),
        (lambda: ResNet([4], 1, num_classes=0), "Linear: out_features is 0"),
        (lambda: BasicBlock(3, 4, stride=0)(np.ones((1, 3, 8, 8))), r"stride is \(0, 0\)"),
        (lambda: ResNet([4], 1)(np.ones((2, 1, 8, 8))), "to have 3 channels, but got 1"),
        (lambda: ResNet([4], 1)(np.ones((3, 8, 8))), r"expected x \[N, C, H, W\]"),
    ],
)
def test_errors(broken, message):
    with pytest.raises(ValueError, match=message):
        broken()
