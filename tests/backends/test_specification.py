"""The acceptance criteria of the training backends' specification, one by one, and its usage example as it stands."""

import dataclasses
import inspect
import json
import textwrap

import pytest
import torch
import trio
from torch.nn import functional

from mlx_grpo_kit.backends import PyTorchTrainingBackend, TrainFuture, TrainingBackend, TrainingError
from tests.backends.frameworks import FRAMEWORKS, make_pytorch

PYTORCH = FRAMEWORKS[0]


@pytest.fixture
def backend(tmp_path):
    return make_pytorch(tmp_path / "checkpoints")


def test_pytorch_training_backend_implements_the_training_backend_protocol(backend):
    assert isinstance(backend, TrainingBackend)
    assert dataclasses.is_dataclass(PyTorchTrainingBackend)
    names = ["model", "optimizer", "loss_fn", "checkpoint_dir", "weight_version", "current_step"]
    assert list(inspect.signature(PyTorchTrainingBackend).parameters)[:6] == names


def test_future_based_api_forward_backward_and_optim_step_return_futures(backend):
    gradient, step = backend.forward_backward(PYTORCH.batch()), backend.optim_step()
    for future in (gradient, step, backend.get_weights(), backend.load_weights(backend.get_weights().wait())):
        assert isinstance(future, TrainFuture)
    assert trio.run(gradient.result).keys() == {"loss", "grad_norm"}
    found = trio.run(step.result)
    assert found["lr"] == 1e-2
    assert type(found["lr"]) is float
    assert found["step"] == 1
    assert type(found["step"]) is int


def test_weight_version_tracking_increments_on_save_checkpoint_and_is_restored(backend):
    first = trio.run(backend.save_checkpoint, 1)
    trio.run(backend.save_checkpoint, 2)
    assert backend.weight_version == 2
    assert trio.run(backend.load_checkpoint, first)["weight_version"] == backend.weight_version == 1


def test_simple_checkpoint_format(backend):
    path = trio.run(backend.save_checkpoint, 100, {"loss": 0.5})
    assert path == backend.checkpoint_dir / "step_0100"
    assert {"pytorch_model.bin", "optimizer.bin", "metadata.json"} <= {file.name for file in path.iterdir()}
    metadata = json.loads((path / "metadata.json").read_text())
    assert {"step", "weight_version", "timestamp", "metrics"} <= metadata.keys()
    assert metadata["step"] == 100
    assert metadata["metrics"] == {"loss": 0.5}


def test_checkpoint_save_and_load(backend):
    """Both are awaited, as specified; they are submitted at the call, as every other operation is."""
    backend.forward_backward(PYTORCH.batch())
    backend.optim_step()
    path = trio.run(backend.save_checkpoint, 1)
    saved = backend.get_weights().wait()
    backend.forward_backward(PYTORCH.batch())
    backend.optim_step()
    metadata = trio.run(backend.load_checkpoint, path)
    assert backend.current_step == metadata["step"] == 1
    for name, tensor in backend.get_weights().wait().items():
        assert torch.equal(tensor, saved[name])


def test_user_provided_loss_function(tmp_path):
    seen = []

    def loss_fn(logits, labels, loss_mask):
        seen.append((logits.shape, labels.shape, loss_mask.shape))
        return (logits.logsumexp(-1) * loss_mask).sum()

    backend = make_pytorch(tmp_path, loss_fn)
    assert backend.forward_backward(PYTORCH.batch()).wait()["loss"] > 0
    assert seen == [((3, 5, 11), (3, 5), (3, 5))]


def test_tiger_style_preconditions_are_checked_and_state_is_explicit(backend, tmp_path):
    with pytest.raises(ValueError, match="lacks 'labels'"):
        backend.forward_backward({"input_ids": torch.zeros(1, 1), "loss_mask": torch.ones(1, 1)})
    for name in ("model", "optimizer", "loss_fn", "checkpoint_dir"):
        arguments = {
            "model": backend.model,
            "optimizer": backend.optimizer,
            "loss_fn": backend.loss_fn,
            "checkpoint_dir": tmp_path,
        }
        with pytest.raises(TypeError, match=f"{name} is of type NoneType; expected"):
            PyTorchTrainingBackend(**arguments | {name: None})


def test_tinker_minimal_surface_and_pipelining_with_futures(backend):
    public = {name for name in dir(backend) if not name.startswith("_")}
    specified = {
        "model", "optimizer", "loss_fn", "checkpoint_dir", "weight_version", "current_step", "forward_backward",
        "optim_step", "get_weights", "load_weights", "save_checkpoint", "load_checkpoint",
    }  # fmt: skip
    options = {"max_grad_norm", "lr_scheduler", "autocast_dtype", "close", "array", "needs_tokens", "poisoned"}
    assert public == specified | options
    futures = [each for _ in range(3) for each in (backend.forward_backward(PYTORCH.batch()), backend.optim_step())]
    assert futures[-1].wait()["step"] == 3


def test_a_full_training_loop_learns(backend):
    async def train():
        for _ in range(60):
            metrics = await backend.forward_backward(PYTORCH.batch()).result()
            await backend.optim_step().result()
        return metrics["loss"]

    first = backend.forward_backward(PYTORCH.batch()).wait()["loss"]
    assert trio.run(train) < first / 3


def test_an_error_poisons_the_backend(tmp_path):
    """One that comes after something may have changed, as in the gradient of a square root at 0."""
    backend = make_pytorch(tmp_path, lambda logits, labels, loss_mask: (logits - logits).sum().sqrt())

    async def train():
        future = backend.forward_backward(PYTORCH.batch())
        with pytest.raises(TrainingError):
            await future.result()
        with pytest.raises(TrainingError):
            backend.optim_step()
        assert backend.poisoned

    trio.run(train)


USAGE = """
import torch
import trio
from pathlib import Path
from mlx_grpo_kit.backends import PyTorchTrainingBackend

# User creates model and optimizer
model = GPT(config).to("cpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

# User provides loss function
def loss_fn(logits, labels, loss_mask):
    loss = F.cross_entropy(
        logits.reshape(-1, logits.size(-1)),
        labels.reshape(-1),
        reduction='none',
    )
    loss = loss.reshape(labels.shape) * loss_mask
    return loss.sum() / loss_mask.sum()

# Create backend
backend = PyTorchTrainingBackend(
    model=model,
    optimizer=optimizer,
    loss_fn=loss_fn,
    checkpoint_dir=Path(CHECKPOINTS),
)

# Training loop
async def train():
    for step in range(STEPS):
        # Get batch from data buffer
        batch = await data_buffer.get_batch()

        # Forward + backward (returns future)
        fwd_bwd_future = backend.forward_backward(batch)
        metrics = await fwd_bwd_future.result()

        # Optimizer step (returns future)
        step_future = backend.optim_step()
        step_metrics = await step_future.result()

        print(f"Step {step}: loss={metrics['loss']:.4f}")

        # Save checkpoint every 100 steps
        if step % 100 == 0:
            ckpt_path = await backend.save_checkpoint(step, metrics)
            print(f"Saved checkpoint to {ckpt_path}")

            # D5: Sync to inference engines
            await sync_weights_to_engines(engines, str(ckpt_path))

trio.run(train)
"""


def test_the_usage_example_runs_as_it_stands_and_weight_sync_is_the_users(tmp_path, capsys):
    """With the specification's free names filled in: a model, a buffer of batches, engines to sync to."""
    from tests.backends.frameworks import torch_model

    class Buffer:
        async def get_batch(self):
            await trio.lowlevel.checkpoint()
            return PYTORCH.batch()

    synced = []

    async def sync_weights_to_engines(engines, path):
        synced.append((engines, path))

    names = {
        "GPT": lambda config: torch_model(),
        "config": None,
        "F": functional,
        "data_buffer": Buffer(),
        "engines": ["engine"],
        "sync_weights_to_engines": sync_weights_to_engines,
        "CHECKPOINTS": str(tmp_path),
        "STEPS": 201,
    }
    exec(textwrap.dedent(USAGE), names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 204
    assert lines[-1] == f"Saved checkpoint to {tmp_path}/step_0200"
    assert synced == [(["engine"], f"{tmp_path}/step_{step:04d}") for step in (0, 100, 200)]
    assert names["backend"].weight_version == 3
