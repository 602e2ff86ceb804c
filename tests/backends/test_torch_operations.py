"""RMSNorm by hand gives torch's own numbers."""

import pytest
import torch
from torch.nn import functional

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
