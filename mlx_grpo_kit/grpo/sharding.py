"""Fully sharded training: each process holds its share of the parameters, of their gradients and of Adam's moments.

A parameter is flattened, padded to a multiple of the number of processes, and cut into equal parts (FSDP, Zhao et al.
2023, https://arxiv.org/abs/2304.11277; ZeRO's third stage, Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054):

    parameter [a, b] -> [a * b], padded -> process 0 | process 1 | ...      a process holds 1 / size of each parameter

Adam treats every number by itself, so it updates the parts like whole parameters. The learner
(`learners/torch_sharded.py`) collects the weights of one layer at a time. The sampler and the writer of checkpoints
collect whole weights (`ShardedPolicy.whole`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.qwen3.params import param_shapes
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.qwen3.weight_files import LaterArray
from mlx_grpo_kit.runtime import mx

State = dict[str, Any]


def in_shards(policy: Policy, args: GRPOConfig, world: World) -> Policy:
    """The policy of a trainer: this process's part of it if the world is sharded, else `policy` itself.

    Raises ValueError for a sharded world with one process, and for settings that need whole parameters.
    """
    if not world.sharded:
        return policy
    check_sharded(args, world.size)
    if isinstance(policy, ShardedPolicy):
        return policy
    whole = {"trained": policy.trained, "reference": policy.reference}
    parts = {name: arrays and own_shards(dict(arrays), world) for name, arrays in whole.items()}
    return ShardedPolicy(policy.config, dtype=policy.dtype, **parts, world=world)


def check_sharded(args: GRPOConfig, processes: int) -> None:
    """Raise ValueError for settings that sharded training does not support."""
    if processes == 1:
        raise ValueError(
            "fsdp divides a policy among several processes, and this is only one. Start several: torchrun "
            "--nproc-per-node 2 -m mlx_grpo_kit train --backend torch --fsdp, or train --processes 2 with the same."
        )
    if args.backend != "torch":
        raise ValueError(
            f"backend is {args.backend!r}, and fsdp needs torch's learner, which computes one layer at a time from "
            "parts of its weights. Set backend='torch' (--backend torch), or leave out --fsdp."
        )
    unsupported = {
        "optim='adafactor', whose moments are means over whole rows": args.optim != "adamw",
        "sync_ref_model": args.sync_ref_model,
        "gradient_statistics": args.gradient_statistics,
    }
    for words, given in unsupported.items():
        if given:
            raise ValueError(f"fsdp does not support {words}. Leave out one of the two.")


def own_shards(arrays: dict[str, mx.array], world: World) -> dict[str, mx.array]:
    """This process's part of each array, flat. Empties `arrays`, so that a file's arrays never exist all at once."""
    found = {}
    for name in [*arrays]:
        value = arrays.pop(name)
        size = part_size(value.size, world.size)
        part = value.reshape(-1)[world.rank * size : (world.rank + 1) * size]
        found[name] = mx.array(np.pad(np.array(part), (0, size - part.size)))
    return found


def own_state(state: State, world: World) -> State:
    """This process's part of an optimizer's state, {"step": ..., parameter: {"m": ..., "v": ...}}. Empties `state`."""
    found = {name: state.pop(name) for name in [*state] if not isinstance(state[name], dict)}
    return found | {name: own_shards(state.pop(name), world) for name in [*state]}


def part_size(size: int, processes: int) -> int:
    """The number of elements of a parameter of `size` elements that each process holds, including padding."""
    return -(-size // processes)


@dataclass(frozen=True)
class ShardedPolicy(Policy):
    """A policy whose `trained`, `params` and `reference` are this process's parts of the arrays, flat.

    Every process must call its methods at the same point of the run.
    """

    world: World = field(default_factory=World, compare=False)

    def whole(self, with_reference: bool = False) -> Policy:
        """The same policy with whole arrays, in every process. It takes 4 bytes per parameter until it is dropped.

        The reference, which takes as much again, is left out by default.
        """
        reference = self.reference if with_reference else None
        reference = reference and dict(self.whole_arrays(reference))
        return Policy(self.config, dict(self.whole_arrays(self.trained)), reference=reference)

    def whole_arrays(self, parts: Mapping[str, mx.array]) -> Iterator[tuple[str, mx.array]]:
        """Collect and yield one whole parameter at a time, by name."""
        for name, shape in param_shapes(self.config).items():
            yield name, mx.array(self._collect(parts[name], shape))

    def _collect(self, part: mx.array, shape: tuple[int, ...]) -> np.ndarray:
        return self.world.gather(np.array(part, copy=False))[: prod(shape)].reshape(shape)

    def whole_state(self, flat: Mapping[str, mx.array]) -> dict[str, LaterArray]:
        """An optimizer's state, {"step": ..., "NAME/m": ..., ...}, as whole arrays that are collected one by one."""
        shapes, found = param_shapes(self.config), {}
        for key, part in flat.items():
            shape = shapes.get(key.rpartition("/")[0])
            collect = partial(np.array, part) if shape is None else partial(self._collect, part, shape)
            dtype = np.array(part, copy=False).dtype
            found[key] = LaterArray(dtype, part.shape if shape is None else shape, collect)
        return found

    def save_pretrained(
        self, folder: str | os.PathLike, tokenizer: Tokenizer, base: str | os.PathLike | None = None
    ) -> None:
        """Write a Hugging Face folder of the whole policy in the first process; the others send their parts."""
        whole = self.whole()
        with self.world.together(OSError, ValueError):
            if self.world.rank == 0:
                whole.save_pretrained(folder, tokenizer)

    def wait(self) -> None:
        """Wait until all processes are here: then a folder that the first one writes is complete."""
        self.world.gather(np.zeros(1))

    def origin(self, task: str) -> str:
        """A hash of the task's name and of the whole model before its first step."""
        return self.whole().origin(task)

    def digest(self) -> bytes:
        """A hash of some numbers of every part, the same in all processes."""
        said = super().digest()
        return hashlib.sha256(self.world.gather(np.frombuffer(said, np.uint8)).tobytes()).digest()
