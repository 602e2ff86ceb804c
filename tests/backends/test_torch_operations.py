"""RMSNorm by hand and oneDNN's products give torch's own numbers."""

import pytest
import torch
from torch.nn import functional

from mlx_grpo_kit.grpo.learners import torch_operations
from mlx_grpo_kit.grpo.learners.torch_operations import FasterOperations


@pytest.mark.parametrize("shape", [(5, 8), (3, 2, 8), (1, 6)])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_rms_norm_and_its_gradients_are_torchs(shape, scale):
    torch.manual_seed(0)
    start, weights, grad, ends = torch.randn(shape) * scale, torch.randn(shape[-1]), torch.randn(shape), []
    for mode in (FasterOperations(), torch.enable_grad()):
        x, weight = (each.clone().requires_grad_() for each in (start, weights))
        with mode:
            y = functional.rms_norm(x, weight.shape, weight, 1e-6)
        ends.append((y.grad_fn.name(), [y.detach(), *torch.autograd.grad(y, [x, weight], grad)]))
    assert ends[0][0] != ends[1][0]
    for ours, theirs in zip(ends[0][1], ends[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6 * theirs.abs().max().item())


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("frozen", ["none", "x", "weight"])
def test_large_products_and_their_gradients_are_torchs(with_bias, frozen, monkeypatch):
    monkeypatch.setattr(torch_operations, "LARGE", 1000)
    torch.manual_seed(0)
    starts = {"x": torch.randn(37, 24), "weight": torch.randn(50, 24), "bias": torch.randn(50)}
    grad, ends = torch.randn(50, 37).T, []  # a gradient need not be contiguous
    for mode in (FasterOperations(), torch.enable_grad()):
        given = {name: value.clone().requires_grad_(name != frozen) for name, value in starts.items()}
        bias = (given["bias"],) if with_bias else ()
        with mode:
            y = functional.linear(given["x"], given["weight"], *bias)
        leaves = [given[name] for name in ("x", "weight", *("bias" for _ in bias)) if name != frozen]
        ends.append((y.grad_fn.name(), [y.detach(), *torch.autograd.grad(y, leaves, grad)]))
    assert (ends[0][0] != ends[1][0]) == torch_operations.has_packed_products()
    for ours, theirs in zip(ends[0][1], ends[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_other_dtypes_and_batches_stay_torchs_own(monkeypatch):
    monkeypatch.setattr(torch_operations, "LARGE", 10)
    x, weight = torch.randn(30, 20), torch.randn(10, 20)
    with FasterOperations():
        for each, other in ((x.double(), weight.double()), (x[None], weight)):
            torch.testing.assert_close(functional.linear(each, other), each @ other.T)
