"""Linear maps by MLX's OpenBLAS and RMSNorm by hand: torch's own numbers, however matrices lie in memory."""

from pathlib import Path

import pytest
import scipy
import torch
from torch.nn import functional

from mlx_grpo_kit.grpo.learners import torch_operations
from mlx_grpo_kit.grpo.learners.torch_operations import FasterOperations, product


@pytest.fixture
def openblas(monkeypatch):
    """OpenBLAS has the products, as where it serves MLX."""
    libraries = [*Path(scipy.__file__).parent.parent.glob("scipy.libs/libscipy_openblas-*.so")]
    if not libraries:
        pytest.skip("this SciPy is not a wheel with an OpenBLAS of its own")
    torch_operations.sgemm.cache_clear()
    monkeypatch.setattr(torch_operations, "bound", libraries[0])
    yield
    torch_operations.sgemm.cache_clear()


def layouts(rows, columns):
    """The same shape by rows, by columns, as a part of something larger, with gaps, and repeated."""
    large = torch.randn(2 * rows + 3, 2 * columns + 3)
    yield large[:rows, :columns].contiguous()
    yield torch.randn(columns, rows).T
    yield large[1 : rows + 1, 2 : columns + 2]
    yield large[: 2 * rows : 2, : 2 * columns : 2]
    yield large[:1, :columns].expand(rows, columns)
    yield large[:rows, :1].expand(rows, columns)
    yield torch.tensor(2.0).expand(rows, columns)


@pytest.mark.usefixtures("openblas")
@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(5, 7, 3), (1, 4, 6), (6, 1, 4), (3, 5, 1), (1, 1, 1), (0, 3, 2), (3, 0, 2)]
)
def test_products_are_torchs(rows, inner, columns):
    torch.manual_seed(0)
    for a in layouts(rows, inner):
        for b in layouts(inner, columns):
            before = a.clone(), b.clone()
            torch.testing.assert_close(product(a, b), a @ b)
            assert torch.equal(a, before[0])
            assert torch.equal(b, before[1])


@pytest.mark.usefixtures("openblas")
def test_linear_and_its_gradients_are_torchs(monkeypatch):
    calls, real = [], torch_operations.product
    monkeypatch.setattr(torch_operations, "product", lambda a, b: calls.append(1) or real(a, b))
    torch.manual_seed(0)
    start, ends = torch.randn(40, 16), []
    for mode in (FasterOperations(), torch.enable_grad()):
        x = start.clone().requires_grad_()
        with mode:
            y = functional.linear(functional.linear(x, x[:5]), x[:3, :5])
            (y.sin().sum() + functional.linear(x, x).sum()).backward()
        ends.append((y.detach(), x.grad))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=2e-4)
    assert len(calls) == 9  # three maps, three products each


@pytest.mark.usefixtures("openblas")
def test_what_is_no_pair_of_float32_matrices_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(torch_operations, "product", None)
    with FasterOperations():
        for x, weight, bias in (
            (torch.ones(2, 3, 4), torch.ones(5, 4), None),
            (torch.ones(2, 4, dtype=torch.float64), torch.ones(5, 4, dtype=torch.float64), None),
            (torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(5, 4, dtype=torch.bfloat16), None),
            (torch.ones(2, 4), torch.ones(5, 4), torch.ones(5)),
        ):
            assert functional.linear(x, weight, bias).shape == (*x.shape[:-1], 5)


def test_without_openblas_nothing_changes(monkeypatch):
    monkeypatch.setattr(torch_operations, "sgemm", lambda: None)
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    with FasterOperations():
        assert torch.equal(functional.linear(x, weight), x @ weight.T)


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
