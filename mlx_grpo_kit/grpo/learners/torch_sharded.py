"""The torch learner for a sharded policy: it collects the weights of a layer, computes the layer, and drops them.

    forward     collect layer 0, compute, drop | collect layer 1, compute, drop | ...
    backward    ... | collect layer 1, compute it again, its gradient, add up over processes, keep this process's part

So a process holds its parts, the input of each layer, and one whole layer with its gradient at a time. The largest
"layer" is the embedding, or the output layer. The numbers are those of `TorchLearner`; only sums over processes are
rounded in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mlx_grpo_kit.grpo.batch import Batch
from mlx_grpo_kit.grpo.learners.torch_learner import TorchLearner
from mlx_grpo_kit.grpo.learners.torch_operations import FasterOperations
from mlx_grpo_kit.grpo.learners.torch_qwen3 import Layer, completion_logps
from mlx_grpo_kit.grpo.logps import pad_batch
from mlx_grpo_kit.grpo.loss import Part
from mlx_grpo_kit.grpo.micro_batches import MicroBatch
from mlx_grpo_kit.grpo.optimizer import Gradient
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.grpo.sharding import part_size
from mlx_grpo_kit.qwen3.params import param_shapes
from mlx_grpo_kit.runtime import mx


class ShardedTorchLearner(TorchLearner):
    """`TorchLearner` for a `ShardedPolicy`: `params` and gradients are this process's parts."""

    takes_parts = True

    def completion_logps(self, tensors: Mapping[str, Tensor], *given: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """`torch_qwen3.completion_logps`, with whole weights for one layer at a time."""
        model = _Collected(param_shapes(self.config), tensors, self.world)
        modes = {"use_reentrant": False, "context_fn": lambda: (nullcontext(), FasterOperations())}

        def make_layer(config: Any, params: _Collected, prefix: str) -> Callable[..., Tensor]:
            return partial(checkpoint, lambda *given: Layer(config, params.layer(prefix), prefix)(*given), **modes)

        return completion_logps(self.config, model, *given, **options, make_layer=make_layer)

    def micro_batches(self, batch: Batch, rows: range, count: int) -> tuple[list[MicroBatch], dict[str, float]]:
        """The micro-batches, as many as in the process with the most: all collect the weights together."""
        own, left_out = super().micro_batches(batch, rows, count)
        most = self.world.gather(np.array([len(own)])).max()
        return own + [self._without_tokens(batch) for _ in range(most - len(own))], left_out

    def sum(self, grads: dict[str, mx.array]) -> Gradient:
        """The gradient's parts in this process, which are sums already, with the norm of the whole gradient."""
        own = Gradient(grads)
        own.norm = math.sqrt(math.fsum(self.world.gather(np.array([own.norm**2]))))
        return own

    def _without_tokens(self, batch: Batch) -> MicroBatch:
        """A micro-batch of one token that counts nowhere: its loss, its gradient and its metrics are 0."""
        of_first = ([ids[0]] for ids in (batch.completions.prompt_ids, [batch.completions.completion_ids[0][:1]]))
        nothing, no_token = mx.zeros([1, 1]), mx.zeros([1, 1], mx.bool_)
        return MicroBatch(
            batch=replace(pad_batch(self.config, *of_first), completion_mask=no_token),
            advantages=mx.zeros(1),
            part=Part(nothing, nothing, nothing, no_token, nothing),
            sampling_logps=nothing,
        )


class _Collected(Mapping):
    """Whole weights by name, collected from all processes when they are used."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], parts: Mapping[str, Tensor], world: World):
        self.shapes, self.parts, self.world = shapes, parts, world

    def layer(self, prefix: str) -> dict[str, Tensor]:
        """The weights whose names begin with `prefix`, in one exchange."""
        names = [name for name in self.shapes if name.startswith(prefix)]
        shapes = [self.shapes[name] for name in names]
        return dict(zip(names, _Collect.apply(self.world, shapes, *(self.parts[name] for name in names)), strict=True))

    def __getitem__(self, name: str) -> Tensor:
        return _Collect.apply(self.world, [self.shapes[name]], self.parts[name])[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class _Collect(torch.autograd.Function):
    """The parts of some weights in this process -> whole weights; the gradients are added up and divided again."""

    @staticmethod
    def forward(ctx: Any, world: World, shapes: Sequence[tuple[int, ...]], *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.world, ctx.shapes = world, shapes
        own = torch.cat(parts)[None]
        rows = torch.from_numpy(world.gather(own.numpy()))
        columns = rows.split([len(part) for part in parts], dim=1)
        sizes = map(math.prod, shapes)
        return tuple(
            each.reshape(-1)[:size].view(shape) for each, size, shape in zip(columns, sizes, shapes, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        world, columns = ctx.world, []
        for grad in grads:
            size = part_size(grad.numel(), world.size)
            room = world.size * size - grad.numel()
            columns.append(torch.nn.functional.pad(grad.reshape(-1), (0, room)).view(world.size, size))
        own = torch.from_numpy(world.sum_scatter(torch.cat(columns, dim=1).numpy()))
        return None, None, *own.split([column.shape[1] for column in columns])
