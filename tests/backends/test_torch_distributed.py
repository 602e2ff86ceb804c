"""Two ranks under torchrun, with DDP and with FSDP2, learn what one process learns, and checkpoints are the same."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import trio
from torch.nn.parallel import DistributedDataParallel

from mlx_grpo_kit.backends import DistributedPyTorchTrainingBackend, PyTorchTrainingBackend
from tests.backends.distributed_run import LR, MAX_GRAD_NORM, STEPS, step_batches
from tests.backends.frameworks import make_pytorch, masked_cross_entropy_torch, torch_model

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="torchrun with gloo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*command, "-m", "tests.backends.distributed_run", str(folder)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        timeout=200,
    )
    return folder


@pytest.fixture(params=["ddp", "fsdp"])
def wrapper(request):
    return request.param


@pytest.fixture
def found(folder, wrapper):
    return torch.load(folder / "found.pt", weights_only=True)[wrapper]


@pytest.fixture(scope="module")
def alone():
    """Plain torch, one process, whole batches: (steps, weights after STEPS)."""
    model = torch_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=10)
    steps = []
    for step in range(STEPS + 2):
        if step == STEPS:
            weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        losses = []
        batches, tokens = step_batches(step)
        for batch in batches:
            tensors = {name: torch.tensor(array) for name, array in batch.items()}
            mean = masked_cross_entropy_torch(model(tensors["input_ids"]), tensors["labels"], tensors["loss_mask"])
            loss = mean * tensors["loss_mask"].sum() / tokens
            loss.backward()
            losses.append(loss.item())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM).item()
        steps.append({"lr": scheduler.get_last_lr()[0], "step": step + 1, "grad_norm": norm, "losses": losses})
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return steps, weights


def assert_steps(found, expected, **tolerance):
    for one, other in zip(found, expected, strict=True):
        assert one["losses"] == pytest.approx(other["losses"], **tolerance)
        assert {**one, "losses": 0} == pytest.approx({**other, "losses": 0}, **tolerance)


def test_losses_norms_rates_and_weights_are_those_of_one_process(found, alone):
    steps, weights = alone
    assert min(step["grad_norm"] for step in steps) > MAX_GRAD_NORM, "each of them is clipped"
    assert_steps(found["steps"], steps[:STEPS], rel=1e-5)
    for name, tensor in weights.items():
        np.testing.assert_allclose(found["weights"][name].numpy(), tensor.numpy(), rtol=1e-4, atol=1e-6)


def test_a_checkpoint_goes_on_on_two_ranks(found):
    assert found["resumed"] == found["expected"]
    assert found["version"] == 1
    for name, tensor in found["weights"].items():
        assert torch.equal(found["loaded"][name], tensor)


def steps_with(backend, numbers):
    """Train as `alone` does; the same records of its steps."""
    steps = []
    for step in numbers:
        losses = []
        batches, tokens = step_batches(step)
        for batch in batches:
            tensors = {name: torch.tensor(array) for name, array in batch.items()}
            tensors["scale"] = tensors["loss_mask"].sum() / tokens
            losses.append(backend.forward_backward(tensors).wait()["loss"])
        steps.append(backend.optim_step().wait() | {"losses": losses})
    return steps


def test_a_single_rank_learns_saves_and_goes_on_as_plain_torch_does(alone, tmp_path):
    steps, weights = alone
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch_model())
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
        rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=10)
        settings = {"lr_scheduler": rate, "max_grad_norm": MAX_GRAD_NORM}
        place = tmp_path / "saved"
        with DistributedPyTorchTrainingBackend(
            model, optimizer, masked_cross_entropy_torch, place, **settings
        ) as backend:
            assert_steps(steps_with(backend, range(STEPS)), steps[:STEPS], rel=1e-5)
            saved = backend.save_checkpoint(STEPS).wait()
            for _ in range(2):
                for name, tensor in backend.get_weights().wait().items():
                    np.testing.assert_allclose(tensor.numpy(), weights[name].numpy(), rtol=1e-4, atol=1e-6)
                assert_steps(steps_with(backend, range(STEPS, STEPS + 2)), steps[STEPS:], rel=1e-5)
                backend.load_checkpoint(saved).wait()
    finally:
        dist.destroy_process_group()


def test_and_in_one_process(found, folder, wrapper, alone):
    backend = make_pytorch(folder / "alone", lr=LR, max_grad_norm=MAX_GRAD_NORM)
    backend.lr_scheduler = torch.optim.lr_scheduler.LinearLR(backend.optimizer, 1.0, 0.0, total_iters=10)
    trio.run(backend.load_checkpoint, folder / wrapper / f"step_{STEPS:04d}")
    for name, tensor in backend.get_weights().wait().items():
        assert torch.equal(found["weights"][name], tensor)
    assert_steps(steps_with(backend, range(STEPS, STEPS + 2)), alone[0][STEPS:], rel=1e-5)


def test_what_one_rank_refuses_all_refuse(found):
    nowhere, weights, thesis = found["refusals"]
    assert "There is no folder" in nowhere
    assert "'embedding.weight' has shape (10, 6)" in weights
    assert "thesis" in thesis


def test_mixed_precision_follows(found, alone):
    """bfloat16 has 8 bits."""
    for one, other in zip(found["mixed"], alone[0][:STEPS], strict=True):
        assert one["losses"] == pytest.approx(other["losses"], rel=0.02)
        assert one["losses"] != other["losses"]


def test_each_backend_says_which_models_are_the_others(tmp_path):
    model = torch_model()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(TypeError, match="model is of type Model; expected one in DistributedDataParallel or after"):
        DistributedPyTorchTrainingBackend(model, optimizer, masked_cross_entropy_torch, tmp_path)
    model.set_requires_gradient_sync = lambda: None  # as fully_shard adds it
    with pytest.raises(TypeError, match="use DistributedPyTorchTrainingBackend"):
        PyTorchTrainingBackend(model, optimizer, masked_cross_entropy_torch, tmp_path)
