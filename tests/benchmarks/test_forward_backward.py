"""Forward and backward of 32 x 64 tokens: cross entropy of the next token at every position, and every gradient."""

import sys

import numpy as np
import pytest

from tests.benchmarks.contest import Contestant

ROWS, COLUMNS = 32, 64


def token_ids(model) -> np.ndarray:
    return np.random.default_rng(0).integers(0, model.vocab_size, (ROWS, COLUMNS))


class Kit:
    def __init__(self, model):
        from mlx_grpo_kit.generation.sampling import token_logps
        from mlx_grpo_kit.qwen3 import qwen3_forward
        from mlx_grpo_kit.runtime import mx

        config, params = model.kit()
        inputs, labels = mx.array(token_ids(model)[:, :-1]), mx.array(token_ids(model)[:, 1:])

        def loss_fn(params):
            return -token_logps(qwen3_forward(config, params, inputs), labels).mean()

        def turn():
            self.loss, self.grads = mx.value_and_grad(loss_fn)(params)
            mx.eval(self.loss, self.grads)

        self.turn = turn

    def evidence(self):
        return self.loss.item(), norm(self.grads.values())


class KitOnAllCores(Kit):
    """As the trainer's learner computes large micro-batches; outside of it a user decides."""

    def __init__(self, model):
        from mlx_grpo_kit.runtime import all_cores

        super().__init__(model)
        self.turn = all_cores()(self.turn)


class MLXLM:
    def __init__(self, model):
        import mlx.core as mx
        import mlx.nn as nn

        mlx_lm = model.mlx_lm()
        inputs, labels = mx.array(token_ids(model)[:, :-1]), mx.array(token_ids(model)[:, 1:])

        def loss_fn(module):
            return nn.losses.cross_entropy(module(inputs), labels, reduction="mean")

        value_and_grad = nn.value_and_grad(mlx_lm, loss_fn)

        def turn():
            self.loss, self.grads = value_and_grad(mlx_lm)
            mx.eval(self.loss, self.grads)

        self.turn = turn

    def evidence(self):
        from mlx.utils import tree_flatten

        return self.loss.item(), norm(grad for _, grad in tree_flatten(self.grads))


class Transformers:
    def __init__(self, model):
        import torch

        self.model = model.transformers()
        inputs, labels = torch.tensor(token_ids(model)[:, :-1]), torch.tensor(token_ids(model)[:, 1:])

        def turn():
            self.model.zero_grad()
            logits = self.model(inputs).logits
            self.loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            self.loss.backward()

        self.turn = turn

    def evidence(self):
        return self.loss.item(), norm(parameter.grad for parameter in self.model.parameters())


def norm(grads) -> float:
    return float(np.sqrt(sum(np.square(np.asarray(grad, np.float64)).sum() for grad in grads)))


LIBRARIES = ("torch", "transformers", "mlx.nn", "mlx_lm.utils")


def test_forward_and_backward(model, bench):
    options = {"model": model}
    contestants = {
        "the kit": Contestant(Kit, options),
        "the kit, in all_cores()": Contestant(KitOnAllCores, options),
        "mlx-lm's model": Contestant(MLXLM, options),
        "transformers": Contestant(Transformers, options),
    }
    results = bench(
        contestants, rounds=15, targets={"mlx-lm's model": 1.0, "transformers": 1 / 1.5}, libraries=LIBRARIES
    )
    check(results)


@pytest.mark.skipif(sys.platform != "linux", reason="Only the Linux wheel comes with a slow BLAS.")
def test_forward_and_backward_of_the_stock_wheel(model, bench):
    options = {"model": model}
    stock = Contestant(MLXLM, options, environment={"MLX_GRPO_KIT_BLAS": "off"})
    contestants = {"the kit": Contestant(Kit, options), "mlx-lm's model, MLX as pip installs it": stock}
    targets = {"mlx-lm's model, MLX as pip installs it": 6.0}
    results = bench(contestants, rounds=3, warmup_rounds=1, targets=targets, libraries=LIBRARIES)
    check(results)


def check(results) -> None:
    (loss, grad_norm), *others = [evidence for result in results.values() for evidence in result.evidence]
    for other_loss, other_norm in others:
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert other_norm == pytest.approx(grad_norm, rel=1e-4)
