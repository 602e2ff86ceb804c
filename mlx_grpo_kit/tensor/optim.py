"""Optimizers that make the same updates as torch.optim."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from mlx_grpo_kit.tensor.tensor import Tensor


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)


def _check(**settings: float) -> None:
    for name, value in settings.items():
        if not _is_number(value) or not value >= 0:
            raise ValueError(f"Invalid {name} value: {value!r}; expected 0 or more.")


class Optimizer:
    """A list of parameters, and a rule that updates each of them by its gradient.

    Raises:
        ValueError: there are no parameters, one appears twice, or a setting is out of range.
        TypeError: a parameter is not a leaf Tensor that requires a gradient.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float):
        self.parameters, self.lr = list(parameters), lr
        if not self.parameters:
            raise ValueError("optimizer got an empty parameter list; expected tensors, as model.parameters() returns.")
        for parameter in self.parameters:
            if not isinstance(parameter, Tensor) or not parameter.requires_grad or not parameter.is_leaf:
                raise TypeError(f"can't optimize {parameter!r:.80}; expected leaf Tensors that require a gradient.")
        if len(set(map(id, self.parameters))) < len(self.parameters):
            raise ValueError(
                "some parameters appear more than once and would be updated twice per step; "
                "model.parameters() lists each of them once."
            )
        if not _is_number(lr) or not lr >= 0:
            raise ValueError(f"Invalid learning rate: {lr!r}; expected 0 or more.")

    def zero_grad(self) -> None:
        """Clear the gradients. Call this at the start of a training step, because backward() adds to them."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient. Raises ValueError for a gradient of another shape."""
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                if np.shape(parameter.grad) != parameter.shape:
                    raise ValueError(
                        f"parameter {number} has shape {parameter.shape} and a gradient of shape "
                        f"{np.shape(parameter.grad)}; expected the same shape."
                    )
                parameter.data -= self.update(number, parameter.data, parameter.grad)

    def update(self, number: int, data: np.ndarray, grad: np.ndarray) -> np.ndarray:
        """Return the array to subtract from parameter `number`; `data` and `grad` have the same shape."""
        raise NotImplementedError(f"{type(self).__name__} is an Optimizer without an update method.")


class SGD(Optimizer):
    """Gradient descent: v <- momentum * v + grad, p <- p - lr * v (Sutskever et al., 2013)."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.0):
        super().__init__(parameters, lr)
        _check(momentum=momentum)
        self.momentum = momentum
        self.velocity: dict[int, np.ndarray] = {}

    def update(self, number, data, grad):
        if self.momentum:
            grad = self.momentum * self.velocity[number] + grad if number in self.velocity else grad.copy()
            self.velocity[number] = grad
        return self.lr * grad


class Adam(Optimizer):
    """Adam, with larger steps where the gradient is steady: p <- p - lr * mean(grad) / (sqrt(mean(grad**2)) + eps).

    The means are moving averages with decay rates `betas`, corrected for their start at 0 (Kingma and Ba, 2014,
    algorithm 1).
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        super().__init__(parameters, lr)
        _check(eps=eps)
        if (
            not isinstance(betas, tuple | list)
            or len(betas) != 2
            or not all(_is_number(beta) and 0 <= beta < 1 for beta in betas)
        ):
            raise ValueError(f"Invalid betas: {betas!r}; expected two numbers from 0 to below 1, such as (0.9, 0.999).")
        self.betas, self.eps = betas, eps
        # The square of a float16 gradient may be infinite, so its means are float32.
        wide = [np.promote_types(parameter.data.dtype, np.float32) for parameter in self.parameters]
        self.means = [np.zeros(each.shape, dtype) for each, dtype in zip(self.parameters, wide, strict=True)]
        self.squares = [np.zeros_like(mean) for mean in self.means]
        self.steps = [0] * len(self.parameters)

    def update(self, number, data, grad):
        mean, square, (beta1, beta2) = self.means[number], self.squares[number], self.betas
        grad = np.asarray(grad, mean.dtype)
        self.steps[number] += 1
        # Use one array for all intermediate results, because memory traffic limits the speed for large parameters.
        # np.asarray turns a NumPy scalar into an array of shape ().
        scratch = np.asarray(grad - mean)
        scratch *= 1 - beta1
        mean += scratch
        np.multiply(grad, grad, out=scratch)
        scratch *= 1 - beta2
        square *= beta2
        square += scratch
        np.sqrt(square, out=scratch)
        scratch /= math.sqrt(1 - beta2 ** self.steps[number])
        scratch += self.eps
        np.divide(mean, scratch, out=scratch)
        scratch *= self.lr / (1 - beta1 ** self.steps[number])
        return scratch


class AdamW(Adam):
    """Adam with weight decay that is separate from the gradient: first p <- p - lr * weight_decay * p.

    The source is Loshchilov and Hutter, 2017. The default weight_decay is torch's.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        super().__init__(parameters, lr, betas, eps)
        _check(weight_decay=weight_decay)
        self.weight_decay = weight_decay

    def update(self, number, data, grad):
        data *= 1 - self.lr * self.weight_decay
        return super().update(number, data, grad)
