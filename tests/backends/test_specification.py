"""The acceptance criteria of the training backends' specification, and its usage example as it stands.

Most of them hold for every backend, and are tested where all are:

- weight version tracking: test_checkpoints.py, test_weight_version_counts_what_is_in_place
- simple checkpoint format: test_checkpoints.py, test_names_and_metadata
- checkpoint save and load: test_checkpoints.py, test_going_on_from_it_is_going_on
- user-provided loss function, a full training loop: test_backends.py, test_ten_steps_are_those_of_torch
- pipelining with futures: test_backends.py, test_operations_are_submitted_ahead_and_done_in_order
- an error poisons the backend: test_backends.py, test_what_is_not_finite_poisons
- integration with weight sync: engines/test_engines.py, test_every_backends_checkpoint_is_served
"""

import dataclasses
import inspect
import textwrap

import pytest
import torch
import trio
from torch.nn import functional

from mlx_grpo_kit.backends import PyTorchTrainingBackend, TrainFuture, TrainingBackend
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


def test_tiger_style_preconditions_are_checked_and_state_is_explicit(backend, tmp_path):
    with pytest.raises(ValueError, match="lacks 'labels'"):
        backend.forward_backward({"input_ids": torch.zeros(1, 1), "loss_mask": torch.ones(1, 1)})
    for name in ("model", "optimizer", "loss_fn", "checkpoint_dir"):
        arguments = dict(model=backend.model, optimizer=backend.optimizer, loss_fn=backend.loss_fn)
        arguments |= dict(checkpoint_dir=tmp_path)
        with pytest.raises(TypeError, match=f"{name} is of type NoneType; expected"):
            PyTorchTrainingBackend(**arguments | {name: None})


def test_tinker_minimal_surface(backend):
    public = {name for name in dir(backend) if not name.startswith("_")}
    specified = {
        "model", "optimizer", "loss_fn", "checkpoint_dir", "weight_version", "current_step", "forward_backward",
        "optim_step", "get_weights", "load_weights", "save_checkpoint", "load_checkpoint",
    }  # fmt: skip
    options = {"max_grad_norm", "lr_scheduler", "autocast_dtype", "close", "array", "needs_tokens", "poisoned"}
    assert public == specified | options


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
        "GPT": lambda config: torch_model(), "config": None, "F": functional, "data_buffer": Buffer(),
        "engines": ["engine"], "sync_weights_to_engines": sync_weights_to_engines, "CHECKPOINTS": str(tmp_path),
        "STEPS": 201,
    }  # fmt: skip
    exec(textwrap.dedent(USAGE), names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 204
    assert lines[-1] == f"Saved checkpoint to {tmp_path}/step_0200"
    assert synced == [(["engine"], f"{tmp_path}/step_{step:04d}") for step in (0, 100, 200)]
    assert names["backend"].weight_version == 3
