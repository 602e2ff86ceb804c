"""What the protocol of training backends costs a step, over calling the framework directly: threads, futures, checks.

The model is so small that little else is left: embeddings times an output layer, 15 tokens. The loop beside it computes
the same, loss and norm of the gradient as Python's numbers included. The aim is less than a millisecond a step.
"""

import mlx.optimizers as optim
import pytest
import torch
import trio

from mlx_grpo_kit.runtime import mx
from tests.backends.frameworks import FRAMEWORKS, first_weights, masked_cross_entropy_torch, torch_model

STEPS = 100


def torch_loop(batch):
    model = torch_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)

    def loop():
        for _ in range(STEPS):
            loss = masked_cross_entropy_torch(model(batch["input_ids"]), batch["labels"], batch["loss_mask"])
            loss.backward()
            found = loss.item(), torch.nn.utils.get_total_norm([each.grad for each in model.parameters()]).item()
            optimizer.step()
            optimizer.zero_grad()
        return found

    return loop


def mlx_loop(batch, framework):
    params = {name: mx.array(array) for name, array in first_weights().items()}
    optimizer = optim.AdamW(1e-2, weight_decay=0.01, bias_correction=True)

    def loss_of(params):
        logits = params["embedding.weight"][batch["input_ids"]] @ params["output.weight"].T
        return framework.loss_fn(logits, batch["labels"], batch["loss_mask"])

    def loop():
        nonlocal params
        for _ in range(STEPS):
            loss, grads = mx.value_and_grad(loss_of)(params)
            norm = mx.sqrt(sum(grad.square().sum() for grad in grads.values()))
            mx.eval(loss, grads, norm)
            found = loss.item(), norm.item()
            params = optimizer.apply_gradients(grads, params)
            mx.eval(params, optimizer.state)
        return found

    return loop


def through_the_protocol(framework, batch, folder):
    backend = framework.make(folder)

    async def steps():
        for _ in range(STEPS):
            found = await backend.forward_backward(batch).result()
            await backend.optim_step().result()
        return found["loss"], found["grad_norm"]

    def wait():
        for _ in range(STEPS):
            found = backend.forward_backward(batch).wait()
            backend.optim_step().wait()
        return found["loss"], found["grad_norm"]

    return lambda: trio.run(steps), wait


@pytest.fixture(params=FRAMEWORKS[:2], ids=lambda framework: framework.name)
def loops(request, tmp_path):
    """(in trio, with wait(), called directly): each does STEPS steps from the first weights when called first."""
    framework = request.param
    batch = framework.batch()
    direct = torch_loop(batch) if framework.name == "pytorch" else mlx_loop(batch, framework)
    in_trio, _ = through_the_protocol(framework, batch, tmp_path)
    _, wait = through_the_protocol(framework, batch, tmp_path)
    return in_trio, wait, direct


def test_the_same_numbers(loops):
    in_trio, wait, direct = (loop() for loop in loops)
    assert in_trio == wait == pytest.approx(direct, rel=1e-4)


def test_protocol_overhead(loops, race, benchmark):
    in_trio, wait, direct = loops
    race(in_trio, {"called directly": direct, "without trio": wait}, rounds=10, targets={}, rate=("steps/s", STEPS))
    if benchmark.enabled:
        ours, plain, _ = benchmark.extra_info["rows"]
        overhead = (ours["min"] - plain["min"]) / STEPS * 1e3
        benchmark.extra_info["notes"] = {"the protocol, ms a step (at most 1)": f"{overhead:.3f}"}
