"""What the protocol of training backends costs a step, over calling the framework directly: threads, futures, checks.

The model is so small that little else is left: embeddings times an output layer, 15 tokens. The loop beside it computes
the same, loss and norm of the gradient as Python's numbers included. The aim is 0.2 milliseconds a step.
"""

import pytest
import trio

from tests.backends.frameworks import FRAMEWORKS, first_weights, masked_cross_entropy_torch, torch_model
from tests.benchmarks.contest import Contestant

STEPS = 100


class Loop:
    """A turn is STEPS steps of `step`; the evidence is what the first turn found at its end: loss, norm."""

    found = None

    def turn(self):
        for _ in range(STEPS):
            found = self.step()
        self.found = self.found or found

    def evidence(self):
        return self.found


class TorchDirectly(Loop):
    def __init__(self, framework, folder):
        import torch

        self.torch, self.model, self.batch = torch, torch_model(), FRAMEWORKS[framework].batch()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, weight_decay=0.01)

    def step(self):
        batch, parameters = self.batch, list(self.model.parameters())
        loss = masked_cross_entropy_torch(self.model(batch["input_ids"]), batch["labels"], batch["loss_mask"])
        loss.backward()
        found = loss.item(), self.torch.nn.utils.get_total_norm([each.grad for each in parameters]).item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return found


class MLXDirectly(Loop):
    def __init__(self, framework, folder):
        import mlx.optimizers as optim

        from mlx_grpo_kit.runtime import mx

        batch, loss_fn = FRAMEWORKS[framework].batch(), FRAMEWORKS[framework].loss_fn
        params = {name: mx.array(array) for name, array in first_weights().items()}
        optimizer = optim.AdamW(1e-2, weight_decay=0.01, bias_correction=True)

        def loss_of(params):
            logits = params["embedding.weight"][batch["input_ids"]] @ params["output.weight"].T
            return loss_fn(logits, batch["labels"], batch["loss_mask"])

        def step():
            nonlocal params
            loss, grads = mx.value_and_grad(loss_of)(params)
            norm = mx.sqrt(sum(grad.square().sum() for grad in grads.values()))
            mx.eval(loss, grads, norm)
            found = loss.item(), norm.item()
            params = optimizer.apply_gradients(grads, params)
            mx.eval(params, optimizer.state)
            return found

        self.step = step


class Waiting(Loop):
    """Through the protocol, each call followed by `wait()`."""

    def __init__(self, framework, folder):
        self.backend, self.batch = FRAMEWORKS[framework].make(folder), FRAMEWORKS[framework].batch()

    def step(self):
        found = self.backend.forward_backward(self.batch).wait()
        self.backend.optim_step().wait()
        return found["loss"], found["grad_norm"]


class InTrio(Waiting):
    """Through the protocol, each call awaited."""

    def turn(self):
        trio.run(self.steps)

    async def steps(self):
        for _ in range(STEPS):
            found = await self.backend.forward_backward(self.batch).result()
            await self.backend.optim_step().result()
        self.found = self.found or (found["loss"], found["grad_norm"])


DIRECTLY = {"pytorch": TorchDirectly, "mlx": MLXDirectly}


@pytest.mark.parametrize("framework", range(2), ids=[framework.name for framework in FRAMEWORKS[:2]])
def test_protocol_overhead(framework, bench, tmp_path):
    name = FRAMEWORKS[framework].name
    makers = {"the kit, in trio": InTrio, "the kit, without trio": Waiting, f"{name} directly": DIRECTLY[name]}
    results = bench(
        {who: Contestant(make, {"framework": framework, "folder": tmp_path}) for who, make in makers.items()},
        rounds=10,
        rate=("steps/s", STEPS),
        libraries=("torch", "trio", "mlx.optimizers"),
    )
    in_trio, waiting, directly = (result.evidence[0] for result in results.values())
    assert in_trio == waiting == pytest.approx(directly, rel=1e-4)
    protocol, _, plain = (min(result.seconds) / STEPS * 1e3 for result in results.values())
    bench.note("the protocol, ms a step (0.2 is the aim)", f"{protocol - plain:.3f}")
