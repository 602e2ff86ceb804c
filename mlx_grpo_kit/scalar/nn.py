"""A multilayer perceptron of Values, and the step that trains it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from mlx_grpo_kit.scalar.value import Value, as_value, dot


class Module:
    """Something with parameters."""

    def parameters(self) -> list[Value]:
        raise NotImplementedError(
            f"{type(self).__name__} is a Module without a parameters() method; expected one that "
            "returns the list of its Values that training may change."
        )

    def zero_grad(self) -> None:
        """Reset the gradients to 0. backward() adds to them, so a training step starts with this."""
        for parameter in self.parameters():
            parameter.grad = 0.0


class Neuron(Module):
    """relu(w1 * x1 + ... + wn * xn + b), or the sum alone when `nonlin` is False.

    Weights start uniform in [-1, 1], from Python's `random` (random.seed makes them repeatable); the bias starts at 0.
    """

    def __init__(self, nin: int, nonlin: bool = True):
        self.w = [Value(random.uniform(-1, 1)) for _ in range(nin)]
        self.b = Value(0.0)
        self.nonlin = nonlin

    def __call__(self, x: Sequence[Value | float]) -> Value:
        """`nin` numbers -> one Value. Raises ValueError if x has another length."""
        if len(x) != len(self.w):
            raise ValueError(f"{self!r} has {len(self.w)} weights and got {len(x)} inputs; expected {len(self.w)}.")
        activation = dot(self.w, x, self.b)
        return activation.relu() if self.nonlin else activation

    def parameters(self) -> list[Value]:
        return [*self.w, self.b]

    def __repr__(self):
        return f"{'ReLU' if self.nonlin else 'Linear'}Neuron({len(self.w)})"


class Layer(Module):
    """`nout` neurons with the same `nin` inputs. One neuron returns a Value, several return a list."""

    def __init__(self, nin: int, nout: int, nonlin: bool = True):
        self.neurons = [Neuron(nin, nonlin) for _ in range(nout)]

    def __call__(self, x: Sequence[Value | float]) -> Value | list[Value]:
        outputs = [neuron(x) for neuron in self.neurons]
        return outputs[0] if len(outputs) == 1 else outputs

    def parameters(self) -> list[Value]:
        return [parameter for neuron in self.neurons for parameter in neuron.parameters()]

    def __repr__(self):
        return f"Layer of [{', '.join(map(repr, self.neurons))}]"


class MLP(Module):
    """Layers one after the other: MLP(2, [16, 16, 1]) takes 2 numbers and gives 1. All but the last have a relu."""

    def __init__(self, nin: int, nouts: Sequence[int]):
        sizes = [nin, *nouts]
        self.layers = [Layer(sizes[i], sizes[i + 1], nonlin=i != len(nouts) - 1) for i in range(len(nouts))]

    def __call__(self, x: Iterable[Value | float]) -> Value | list[Value]:
        """`nin` numbers -> a Value, or a list of them if the last layer has several neurons."""
        x = [as_value(number) for number in x]  # once here, not again in each neuron
        for layer in self.layers[:-1]:
            x = [neuron(x) for neuron in layer.neurons]
        return self.layers[-1](x)

    def parameters(self) -> list[Value]:
        return [parameter for layer in self.layers for parameter in layer.parameters()]

    def __repr__(self):
        return f"MLP of [{', '.join(map(repr, self.layers))}]"


def sgd_step(parameters: Iterable[Value], learning_rate: float) -> None:
    """Move every parameter a little against its gradient: p <- p - learning_rate * dloss/dp."""
    for parameter in parameters:
        parameter.data -= learning_rate * parameter.grad
