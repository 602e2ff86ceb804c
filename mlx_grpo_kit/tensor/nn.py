"""Layers: objects that hold parameters and compute with them. Shapes, names and initial weights follow torch.nn.

    class MLP(nn.Module):
        def __init__(self):
            self.hidden, self.out = nn.Linear(64, 32), nn.Linear(32, 10)

        def forward(self, x):
            return self.out(T.relu(self.hidden(x)))

Activations and pooling have no parameters, so they are plain functions, even in a Sequential.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mlx_grpo_kit.tensor.rules.convolution import conv2d
from mlx_grpo_kit.tensor.rules.normalization import batch_norm
from mlx_grpo_kit.tensor.rules.products import linear
from mlx_grpo_kit.tensor.rules.shapes import embedding
from mlx_grpo_kit.tensor.tensor import Tensor

_random = np.random.default_rng()


def manual_seed(seed: int) -> None:
    """Seed the initial weights of layers made from now on."""
    global _random
    _random = np.random.default_rng(seed)


class Module:
    """The base class of layers and models.

    Its parameters are found in its attributes: tensors that require a gradient, modules, and lists of modules. Arrays
    among the attributes are state that is saved but not trained, such as running means.
    """

    training = True

    def forward(self, *inputs: Any) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} is a Module without a forward method.")

    def __call__(self, *inputs: Any) -> Tensor:
        return self.forward(*inputs)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield this module and all modules inside it, each after the prefix of its parameters' names."""
        yield prefix, self
        for attribute, value in vars(self).items():
            children = {attribute: value}
            if isinstance(value, list | tuple):
                children = {f"{attribute}.{position}": child for position, child in enumerate(value)}
            for name, child in children.items():
                if isinstance(child, Module):
                    yield from child.named_modules(f"{prefix}{name}.")

    def _named(self) -> Iterator[tuple[str, Module, str, Tensor | np.ndarray]]:
        for prefix, module in self.named_modules():
            for attribute, value in vars(module).items():
                if isinstance(value, Tensor | np.ndarray):
                    yield prefix + attribute, module, attribute, value

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over (name, parameter). A tensor with two names occurs once, under the first name.

        The names are torch's: "hidden.weight", "blocks.0.weight" in a list, "0.weight" in a Sequential.
        """
        parameters = {}
        for name, _, _, value in self._named():
            if isinstance(value, Tensor) and value.requires_grad:
                parameters.setdefault(id(value), (name, value))
        return iter(parameters.values())

    def parameters(self) -> list[Tensor]:
        return [parameter for _, parameter in self.named_parameters()]

    def zero_grad(self) -> None:
        """Clear the gradients. Call this at the start of a training step, because backward() adds to them."""
        for parameter in self.parameters():
            parameter.grad = None

    def train(self, training: bool = True) -> Module:
        """Switch to training mode, in which batch norm uses the batch's statistics.

        eval() switches back. Both return the module.
        """
        for _, module in self.named_modules():
            module.training = training
        return self

    def eval(self) -> Module:
        return self.train(False)

    def astype(self, dtype: Any) -> Module:
        """Convert parameters and state to np.float32 (the dtype of new layers) or np.float64, and return the module.

        Call it before you create an optimizer.
        """
        converted = {}  # a tensor with two names stays one tensor
        for _, module, attribute, value in list(self._named()):
            if id(value) not in converted:
                converted[id(value)] = (
                    Tensor(value.data, value.requires_grad, value.label, dtype)
                    if isinstance(value, Tensor)
                    else value.astype(dtype)
                )
            setattr(module, attribute, converted[id(value)])
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of all parameters and state, by name."""
        return {
            name: np.array(value.data if isinstance(value, Tensor) else value) for name, _, _, value in self._named()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the numbers of a state_dict of this kit or of torch.

        Raises:
            TypeError: `state` is not a mapping.
            ValueError: its names or shapes differ from the module's.
        """
        own = {name: value for name, _, _, value in self._named()}
        if not isinstance(state, Mapping):
            raise TypeError(
                f"load_state_dict got a {type(state).__name__}; expected names and arrays, as "
                "model.state_dict() returns."
            )
        given = {
            name: np.asarray(value.detach() if hasattr(value, "detach") else value)
            for name, value in state.items()
            if not name.endswith("num_batches_tracked")
        }  # torch counts the batches of a batch norm
        missing, unexpected = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
        if missing or unexpected:
            raise ValueError(
                f"state_dict does not fit {type(self).__name__}: missing {missing}, unexpected "
                f"{unexpected}. Expected the names {list(own)}."
            )
        for name, value in own.items():
            if given[name].shape != value.shape:
                raise ValueError(
                    f"size mismatch for {name}: state_dict has shape {given[name].shape}, "
                    f"{type(self).__name__} has {value.shape}."
                )
            (value.data if isinstance(value, Tensor) else value)[...] = given[name]


class Linear(Module):
    """x @ weight.T + bias: [..., in_features] -> [..., out_features].

    weight is [out_features, in_features]. Initially weight and bias are uniform between -b and b, where
    b = 1 / sqrt(in_features).
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        _check_sizes(self, in_features=in_features, out_features=out_features)
        self.weight = _uniform((out_features, in_features), fan_in=in_features)
        self.bias = _uniform((out_features,), fan_in=in_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Conv2d(Module):
    """A convolution with its kernels: [N, in_channels, H, W] -> [N, out_channels, H', W']."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
    ):
        _check_sizes(self, in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size)
        shape = (out_channels, in_channels, kernel_size, kernel_size)
        self.weight = _uniform(shape, fan_in=math.prod(shape[1:]))
        self.bias = _uniform((out_channels,), fan_in=math.prod(shape[1:])) if bias else None
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor) -> Tensor:
        return conv2d(x, self.weight, self.bias, self.stride, self.padding)


class BatchNorm(Module):
    """Batch normalization of x [N, C] or [N, C, H, W], for both torch's BatchNorm1d and its BatchNorm2d."""

    def __init__(self, num_features: int, momentum: float = 0.1, eps: float = 1e-5):
        _check_sizes(self, num_features=num_features)
        self.weight, self.bias = _parameter(np.ones(num_features)), _parameter(np.zeros(num_features))
        self.running_mean = np.zeros(num_features, np.float32)
        self.running_var = np.ones(num_features, np.float32)
        self.momentum, self.eps = momentum, eps

    def forward(self, x: Tensor) -> Tensor:
        return batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )


class Embedding(Module):
    """A table with one row of numbers for each of `num_embeddings` ids: integers [...] -> [..., embedding_dim]."""

    def __init__(self, num_embeddings: int, embedding_dim: int):
        self.weight = _parameter(_random.normal(size=(num_embeddings, embedding_dim)))

    def forward(self, ids: Any) -> Tensor:
        return embedding(self.weight, ids)


class Sequential(Module):
    """Modules and functions that are applied in order: Sequential(Linear(2, 8), T.relu, Linear(8, 1))."""

    def __init__(self, *steps: Callable[[Tensor], Tensor]):
        for position, step in enumerate(steps):
            if not callable(step) or isinstance(step, type):
                raise TypeError(
                    f"Sequential: step {position} is {step!s:.80}; expected modules and functions as separate "
                    "arguments: Sequential(Linear(2, 8), T.relu). For a list write Sequential(*steps)."
                )
            setattr(self, str(position), step)

    def __iter__(self) -> Iterator[Callable[[Tensor], Tensor]]:
        return (step for name, step in vars(self).items() if name.isdigit())

    def forward(self, x: Tensor) -> Tensor:
        for step in self:
            x = step(x)
        return x


def _check_sizes(layer: Module, **sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"{type(layer).__name__}: {name} is {size!r}; expected a whole number, 1 or more.")


def _parameter(array: np.ndarray) -> Tensor:
    return Tensor(array, requires_grad=True, dtype=np.float32)


def _uniform(shape: tuple[int, ...], fan_in: int) -> Tensor:
    bound = 1 / math.sqrt(fan_in)
    return _parameter(_random.uniform(-bound, bound, shape))
