"""What `test_torch_distributed.py` runs on two ranks: python -m torch.distributed.run ... FOLDER.

Each rank learns from its rows of every batch, whose tokens are unequally many. What the first rank finds goes into
FOLDER/found.pt, to be compared with one process that learns from whole batches.
"""

import asyncio
import faulthandler
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from mlx_grpo_kit.backends import DistributedPyTorchTrainingBackend
from tests.backends.frameworks import numpy_batch, torch_model

STEPS, PARTS = 4, 2
LR, MAX_GRAD_NORM = 1e-2, 0.05


def share(logits, labels, loss_mask, num_items_in_batch):
    """A rank's and a part's share of the mean over all tokens of a step."""
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
    return (loss.view_as(loss_mask) * loss_mask).sum() / num_items_in_batch, {"rank": dist.get_rank()}


def part_of_rank(batch, tokens):
    rows = slice(0, 1) if dist.get_rank() == 0 else slice(1, None)
    return {name: torch.tensor(array[rows]) for name, array in batch.items()} | {"num_items_in_batch": tokens}


def step_batches(step):
    batches = [numpy_batch(10 * step + part) for part in range(PARTS)]
    return batches, sum(batch["loss_mask"].sum().item() for batch in batches)


def learn(backend, steps):
    found = []
    for step in steps:
        batches, tokens = step_batches(step)
        losses = [backend.forward_backward(part_of_rank(batch, tokens)).wait()["loss"] for batch in batches]
        found.append(backend.optim_step().wait() | {"losses": losses})
    return found


def make(wrapper, folder, **options):
    model = torch_model()
    if wrapper == "ddp":
        model = DistributedDataParallel(model)
    else:
        for part in (model.embedding, model.output, model):
            fully_shard(part, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=10)
    return DistributedPyTorchTrainingBackend(
        model, optimizer, share, folder / wrapper, max_grad_norm=MAX_GRAD_NORM, lr_scheduler=scheduler, **options
    )


def refusal(call):
    try:
        call()
    except (ValueError, OSError) as error:
        return str(error)


def run(wrapper, folder):
    backend = make(wrapper, folder)
    found = {"steps": learn(backend, range(STEPS))}
    path = asyncio.run(backend.save_checkpoint(STEPS))
    found["weights"] = backend.get_weights().wait()
    found["expected"] = learn(backend, range(STEPS, STEPS + 2))

    other = make(wrapper, folder)
    asyncio.run(other.load_checkpoint(path))
    found["resumed"] = learn(other, range(STEPS, STEPS + 2))
    found["version"] = other.weight_version
    other.load_weights(found["weights"]).wait()
    found["loaded"] = other.get_weights().wait()
    # Refused on one rank is refused on all of them.
    wrong = {name: array[1:] if dist.get_rank() else array for name, array in found["weights"].items()}
    mine = path if dist.get_rank() == 0 else folder / "nowhere"
    found["refusals"] = [
        refusal(lambda: asyncio.run(other.load_checkpoint(mine))),
        refusal(lambda: other.load_weights(wrong).wait()),
    ]
    (folder / wrapper / "step_0009").mkdir(exist_ok=True)
    (folder / wrapper / "step_0009" / "thesis").touch()
    found["refusals"].append(refusal(lambda: asyncio.run(other.save_checkpoint(9))))
    learn(other, [0])  # and it goes on
    mixed = make(wrapper, folder, autocast_dtype=torch.bfloat16)
    found["mixed"] = learn(mixed, range(STEPS))
    for each in (backend, other, mixed):
        each.close()
    return found


if __name__ == "__main__":
    faulthandler.dump_traceback_later(100, exit=True)
    dist.init_process_group("gloo")
    found = {wrapper: run(wrapper, Path(sys.argv[1])) for wrapper in ("ddp", "fsdp")}
    if dist.get_rank() == 0:
        torch.save(found, Path(sys.argv[1]) / "found.pt")
    dist.destroy_process_group()
