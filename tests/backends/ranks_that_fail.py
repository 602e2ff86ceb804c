"""One rank of what `test_ranks.py` runs: python -m tests.backends.ranks_that_fail SCENARIOS RANK PORT FOLDER.

In each scenario something goes wrong on one of two ranks. Each rank prints one line of JSON per scenario: the outcomes
of its operations. A rank that hangs prints no more and is killed by the test.
"""

import json
import os
import resource
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from mlx_grpo_kit.backends import DistributedPyTorchTrainingBackend
from tests.backends.frameworks import FRAMEWORKS, torch_model

PYTORCH = FRAMEWORKS[0]


def cross_entropy(logits, labels, loss_mask):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make(folder, wrapper="ddp", loss_fn=cross_entropy):
    model = torch_model()
    if wrapper == "ddp":
        model = DistributedDataParallel(model)
    else:
        for part in (model.embedding, model.output, model):
            fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
    return DistributedPyTorchTrainingBackend(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn, folder)


def outcome(submit):
    try:
        return repr(submit().wait())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def loss_raises(rank, folder, wrapper="ddp"):
    def loss_fn(logits, labels, loss_mask):
        if rank == 1:
            raise KeyError("advantages")
        return cross_entropy(logits, labels, loss_mask)

    backend = make(folder, wrapper, loss_fn)
    return [outcome(lambda: backend.forward_backward(PYTORCH.batch())), outcome(backend.optim_step)]


def loss_raises_under_fsdp(rank, folder):
    return loss_raises(rank, folder, "fsdp")


def model_raises_under_fsdp(rank, folder):
    """In the middle of the forward pass: the other rank waits for this rank's part of the output layer."""
    backend = make(folder, "fsdp")
    batch = PYTORCH.batch()
    batch["input_ids"] += 1000 * rank  # an index out of range
    return [outcome(lambda: backend.forward_backward(batch)), outcome(backend.optim_step)]


def optimizer_raises(rank, folder):
    backend = make(folder)
    if rank == 1:
        backend.optimizer.step = lambda: 1 / 0
    backend.forward_backward(PYTORCH.batch()).wait()
    return [outcome(backend.optim_step), outcome(backend.get_weights)]


def batch_is_refused(rank, folder):
    backend = make(folder)
    batch = PYTORCH.batch()
    if rank == 1:
        del batch["labels"]
    return [
        outcome(lambda: backend.forward_backward(batch)),
        outcome(lambda: backend.forward_backward(PYTORCH.batch())),
    ]


def disk_is_full(rank, folder):
    """Only the first rank writes."""
    backend = make(folder)
    backend.forward_backward(PYTORCH.batch()).wait()
    backend.optim_step().wait()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    saved = outcome(lambda: backend.save_checkpoint(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return [saved, outcome(lambda: backend.save_checkpoint(2))]


def first_rank_saves_alone(rank, folder):
    backend = make(folder)
    submit = backend.optim_step if rank else (lambda: backend.save_checkpoint(1))
    return [outcome(submit), outcome(backend.get_weights)]


def other_rank_closes(rank, folder):
    backend = make(folder)
    found = [outcome(lambda: backend.forward_backward(PYTORCH.batch()))]
    if rank == 1:
        backend.close()
    return [*found, outcome(backend.optim_step)]


def other_rank_is_killed(rank, folder):
    backend = make(folder)
    backend.forward_backward(PYTORCH.batch()).wait()
    if rank == 1:
        os._exit(3)
    return [outcome(backend.optim_step)]


if __name__ == "__main__":
    scenarios, rank, port, folder = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for scenario in scenarios:
        print(json.dumps([scenario, globals()[scenario](rank, folder / scenario)]), flush=True)
