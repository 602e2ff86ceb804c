"""The solutions of chapter 21 against torch and autograd, and claims of its prose."""

import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mlx_grpo_kit.course.chapters.chapter_21 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_21 import middle, plan, ring, rounding
from mlx_grpo_kit.grpo import GRPOConfig, estimate_memory
from mlx_grpo_kit.qwen3 import Qwen3Config, init_lora, merge
from mlx_grpo_kit.runtime import mx
from tests.course.stored import cells

RNG = np.random.default_rng(0)
CHECKPOINTING = {"gradient_checkpointing": True}


def numbers(*shape):
    return mx.array(RNG.normal(size=shape).astype(np.float32))


def in_torch(value, **options):
    return torch.tensor(np.array(value), **options)


def agree(ours, theirs, atol=1e-5):
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.array(mine), np.array(other.detach()), atol=atol)


# -- the solutions -----------------------------------------------------------------------------------------------------


def test_a_chain_equals_torchs_checkpointed_chain():
    weights = [[0.5 * numbers(3, 3), numbers(3)] for _ in range(4)]
    x = numbers(2, 3)
    leaves = [[in_torch(each, requires_grad=True) for each in own] for own in weights]
    start = in_torch(x, requires_grad=True)
    y = start
    for own in leaves:
        y = checkpoint(lambda x, weight, bias: torch.tanh(x @ weight + bias), y, *own, use_reentrant=False)
    (0.5 * (y - 1) ** 2).sum().backward()
    grad, grads = chapter.checkpointed_vjp(
        lambda x, weight, bias: mx.tanh(x @ weight + bias), weights, x, lambda y: y - 1
    )
    agree([grad], [start.grad])
    for own, others in zip(grads, leaves, strict=True):
        agree(own, [each.grad for each in others])


def test_mx_checkpoint_gives_the_middle_models_gradients_in_less_memory():
    params, data = middle.new_params(), middle.batch(8, 64)
    found, peaks = [], []
    for checkpointing in (False, True):
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        loss, grads = mx.value_and_grad(middle.mean_loss)(params, *data, checkpointing)
        mx.eval(loss, grads)
        peaks.append(mx.get_peak_memory() - before)
        found.append(grads)
    for name, grad in found[0].items():
        np.testing.assert_allclose(found[1][name], grad, atol=1e-6, err_msg=name)
    assert peaks[1] < 0.8 * peaks[0]


def test_the_chain_gives_the_middle_models_gradients():
    params, (ids, targets) = middle.new_params(), middle.batch(1, 5)
    found = {}

    def gradient_of(x):
        found["loss"], grad, found["grads"] = middle.end(params, x, targets)
        return grad

    grad, of_blocks = chapter.checkpointed_vjp(
        middle.block, middle.weights_of_blocks(params), params["embedding.weight"][ids], gradient_of
    )
    loss, grads = mx.value_and_grad(middle.mean_loss)(params, ids, targets)
    ours = middle.joined(ids, grad, of_blocks, found["grads"])
    assert ours.keys() == grads.keys()
    assert found["loss"].item() == pytest.approx(loss.item(), rel=1e-6)
    assert all(mx.allclose(ours[name], grads[name], rtol=1e-4, atol=1e-6).item() for name in grads)


def test_accumulation_equals_torchs_mean_over_all_tokens():
    params, batches = chapter._micro_batches(RNG, [2, 3], [4, 2])
    leaves = {name: in_torch(value, requires_grad=True) for name, value in params.items()}
    losses = [
        ((in_torch(x) * leaves["w"] + leaves["b"]) ** 2).sum(-1)[torch.tensor(np.array(mask))] for x, mask in batches
    ]
    torch.cat(losses).mean().backward()
    loss, grads = chapter.accumulate(chapter._losses_of_tokens, params, batches)
    agree([loss], [torch.cat(losses).mean()])
    agree([grads[name] for name in params], [leaves[name].grad for name in params])


def test_log_probabilities_in_chunks_are_torchs():
    hidden, weight, grad = numbers(5, 4), numbers(11, 4), numbers(5)
    targets = RNG.integers(0, 11, 5)
    leaves = [in_torch(each, requires_grad=True) for each in (hidden, weight)]
    logits = leaves[0] @ leaves[1].T
    logps = functional.log_softmax(logits, dim=-1)[range(5), targets]
    logps.backward(in_torch(grad))
    log_total = chapter.chunked_logsumexp(hidden, weight, 3)
    agree([log_total], [torch.logsumexp(logits, dim=-1)])
    agree(
        chapter.chunked_gradients(hidden, weight, mx.array(targets), log_total, grad, 3), [each.grad for each in leaves]
    )


def test_merge_is_the_kits():
    shapes = middle.new_params()
    lora = init_lora(middle.CONFIG, shapes, rank=3)
    lora = {name: numbers(*value.shape) for name, value in lora.items()}
    ours, theirs = chapter.merge(shapes, lora, 0.5), merge(shapes, lora, 0.5)
    assert ours.keys() == theirs.keys()
    assert all(mx.allclose(ours[name], theirs[name], atol=1e-5).item() for name in theirs)


def test_the_ring_sums_at_the_stated_cost():
    for size in range(1, 9):
        arrays = [RNG.normal(size=size * 6) for _ in range(size)]
        ran = ring.run_in_ring(chapter.ring_sum, arrays)
        for result in ran.results:
            np.testing.assert_allclose(result, sum(arrays), atol=1e-12)
        assert ran.sent == [2 * (size - 1) * 6] * size
        assert ran.messages == [2 * (size - 1)] * size


def test_the_picture_of_the_ring_matches_a_run():
    """Each process begins with a number of its own, so that a part shows which processes were summed in it."""
    for size in (2, 3, 5):
        seen = [np.ones((size, size), int)]
        arrays = [np.full(size, 10.0**rank) for rank in range(size)]

        def trace(array, rank, size, send, receive):
            parts, kept = np.array_split(array, size), []
            for step in range(2 * (size - 1)):
                if step < size - 1:
                    send(parts[(rank - step) % size])
                    part = (rank - step - 1) % size
                    parts[part] = parts[part] + receive()
                else:
                    send(parts[(rank + 1 - (step - size + 1)) % size])
                    parts[(rank - (step - size + 1)) % size] = receive()
                kept.append([str(int(each[0])).count("1") for each in parts])
            return kept

        kept = ring.run_in_ring(trace, arrays).results
        seen += [np.array([kept[rank][step] for rank in range(size)]) for step in range(2 * (size - 1))]
        states = ring.ring_states(size)
        assert all((counts == each).all() for (counts, _), each in zip(states, seen, strict=True))


# -- what the prose says -----------------------------------------------------------------------------------------------


def test_rounding_is_mlxs_and_torchs():
    values = np.concatenate([RNG.normal(size=2000), [1.0, 1.00390625, 1.01171875, 0.0]]).astype(np.float32)
    ours = rounding.to_bfloat16(values)
    assert (ours == torch.tensor(values).bfloat16().float().numpy()).all()
    assert (ours == np.array(mx.array(values).astype(mx.bfloat16).astype(mx.float32))).all()
    between = rounding.numbers_between(0.99, 1.0)
    assert (np.diff(between[:-1]) == 2**-8).all()  # "below 1 the bfloat16 numbers stand 0.0039 apart"
    assert between[0] < 0.99 < 1 < between[-1]
    assert (rounding.to_bfloat16(between) == between).all()
    assert len(rounding.numbers_between(0.5, 1.0)) == len(rounding.numbers_between(-1.0, 1.0)) == 0


@pytest.mark.parametrize("step", [1e-6, 1e-4, 0.0019])
def test_a_small_step_is_rounded_away_every_time(step):
    exact, copies, rounded = rounding.small_steps(1.0, step)
    assert (rounded == 1).all()
    assert exact[-1] == pytest.approx(1 - 200 * step, rel=1e-4)
    assert (copies == rounding.to_bfloat16(exact)).all()


def test_a_larger_step_moves_by_the_wrong_amount():
    exact, _, rounded = rounding.small_steps(1.0, 0.0021)
    assert rounded[1] == 1 - 2**-8
    assert abs(rounded[-1] - exact[-1]) > 0.1


def test_four_numbers_per_parameter_and_their_share_on_several_machines():
    """8 billion parameters: 128 GB, which only fewer or smaller numbers reduce; 16 GB on 8 machines, 2 GB on 64."""
    small = GRPOConfig(per_device_train_batch_size=8, gradient_accumulation_steps=8, gradient_checkpointing=True)
    parts = estimate_memory(Qwen3Config.from_name("8B"), small, 64, 64)
    assert parts["parameters"] + parts["optimizer"] + parts["gradients"] == pytest.approx(131e9, rel=0.01)
    assert parts["total"] > 131e9
    assert (16 * 8 / 8, 16 * 8 / 64) == (16, 2)


def test_the_effects_of_the_switches_of_the_panel():
    rows = {"per_device_train_batch_size": 64}
    parts = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 8}
    for model, totals in {"0.6B": (89, 14, 11), "8B": (394, 146, 134)}.items():
        for total, settings in zip(totals, (rows, rows | CHECKPOINTING, parts | CHECKPOINTING), strict=True):
            estimated = estimate_memory(Qwen3Config.from_name(model), GRPOConfig(**settings), plan.PROMPT, 256)
            assert estimated["total"] / 1e9 == pytest.approx(total, abs=0.6)
    few = estimate_memory(Qwen3Config.from_name("8B"), GRPOConfig(**parts, **CHECKPOINTING, lora_r=8), plan.PROMPT, 256)
    assert few["total"] / 1e9 == pytest.approx(36, abs=1)


def test_activations_are_most_of_a_long_step():
    parts = estimate_memory(Qwen3Config.from_name("0.6B"), GRPOConfig(per_device_train_batch_size=64), 64, 256)
    assert parts["activations"] > 0.8 * parts["total"]
    for phase, there in plan.phases(parts).items():
        assert set(there) <= set(parts), phase
        assert parts["total"] > 0.9 * sum(there.values())
    assert set().union(*plan.phases(parts).values()) == set(parts) - {"total"}
    assert ["gradients" in there for there in plan.phases(parts).values()] == [False, True, True]


def test_the_numbers_of_the_budget_by_hand():
    learning, waiting = chapter.step_seconds(8e9, 131_072, 8, 1e14, 400)
    assert (learning, waiting) == (pytest.approx(7.86, abs=0.01), pytest.approx(1.12, abs=0.01))
    assert chapter.step_seconds(8e9, 131_072, 8, 1e14, 10)[1] == pytest.approx(44.8)

    def share(*settings):
        learning, waiting = chapter.step_seconds(*settings)
        return waiting / (learning + waiting)

    assert share(8e9, 2**20, 64, 1e14, 400) == pytest.approx(share(8e9, 2**17, 8, 1e14, 400), rel=0.15)
    assert share(8e9, 2**17, 64, 1e14, 400) == pytest.approx(share(6e8, 2**17, 64, 1e14, 400))  # parameters cancel
    assert share(8e9, 2**17, 8, 1e11, 10) < 0.01  # "on CPUs even an office network is hardly felt"
    every = [share(8e9, 2**17, 2**n, 1e14, 400) for n in range(11)]
    assert every == sorted(every)
    assert every[-1] > 0.9


def test_the_first_gradient_of_a_is_0():
    """B is 0 at first, and A's gradient passes through B. If both were 0, neither would get a gradient."""
    x, weight, a = numbers(3, 4), numbers(5, 4), numbers(4, 2)
    loss = lambda a, b: chapter.lora_linear(x, weight, a, b, 2.0).square().sum()  # noqa: E731
    of_a, of_b = mx.grad(loss, (0, 1))(a, mx.zeros((2, 5)))
    assert not mx.any(of_a != 0).item()
    assert mx.all(of_b != 0).item()
    assert not any(mx.any(each != 0).item() for each in mx.grad(loss, (0, 1))(mx.zeros((4, 2)), mx.zeros((2, 5))))


def test_online_sum_by_hand():
    """1/2 + 1 = 1.5; 1.5 * 2/5 + 1 = 1.6; 1.6 * 5 = 8."""
    assert math.isclose(1.5 * 2 / 5 + 1, 1.6)
    weight = mx.array([[math.log(1)], [math.log(2)], [math.log(5)]])
    assert chapter.chunked_logsumexp(mx.ones((1, 1)), weight, 2).item() == pytest.approx(math.log(8), rel=1e-6)


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_ring_whose_process_fails_says_why():
    def fails(array, rank, size, send, receive):
        if rank == 1:
            raise ValueError("the cat sat on the wire")
        return receive()

    with pytest.raises(ValueError, match="the cat sat on the wire"):
        ring.run_in_ring(fails, [np.ones(2)] * 3)
    with pytest.raises(ring.DeadlockError):
        ring.run_in_ring(lambda array, rank, size, send, receive: receive(), [np.ones(2)] * 3)


def test_a_sent_array_does_not_change_later():
    def program(array, rank, size, send, receive):
        send(array)
        array += 100
        return receive()

    assert [each[0] for each in ring.run_in_ring(program, [np.array([1.0]), np.array([2.0])]).results] == [2, 1]


def test_no_temporary_folder_is_left_if_the_parent_of_real_processes_is_killed(tmp_path):
    program = "import os, pathlib, time; pathlib.Path(os.environ['READY']).touch(); time.sleep(60)"
    code = f"from mlx_grpo_kit.course.chapters.chapter_21 import ring; ring.run_processes({program!r}, 1)"
    (tmp_path / "temporary").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary"), "READY": str(tmp_path / "ready")}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as parent:
        wait_until((tmp_path / "ready").exists)
        assert [*(tmp_path / "temporary").glob("mlx_grpo_kit-*")]
        parent.kill()
    wait_until(lambda: not [*(tmp_path / "temporary").glob("mlx_grpo_kit-*")])


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_real_processes_print_and_fail_with_words():
    program = (
        "from mlx_grpo_kit.runtime import mx\ngroup = mx.distributed.init(strict=True)\n"
        "print(int(mx.distributed.all_sum(mx.array(group.rank() + 1.0), group=group).item()))"
    )
    assert ring.run_processes(program, 2).strip() == "3"
    failing = "import os, sys, time\nif os.environ['MLX_RANK'] == '1': sys.exit('no room')\ntime.sleep(60)"
    with pytest.raises(RuntimeError, match="Process 1: no room"):
        ring.run_processes(failing, 2)


def test_the_menu_of_trained_weights_opens_with_a_choice():
    panel = plan.memory_panel(middle.CONFIG)
    assert panel.controls["learns"].label == "all weights"
    assert "LoRA" not in panel.picture.alt
    before = panel.picture.alt
    panel.set(learns=8)
    assert panel.picture.alt != before


def test_the_text_divides_the_moments_by_the_number_of_machines():
    [cell] = [each for each in cells("21").values() if "idea of **ZeRO**" in each.source]
    assert "$N$ parameters (`num_params`), $T$ tokens (`num_tokens`), $n$ `machines`" in cell.source
    assert "keep the moments of only $1/n$ of the parameters" in cell.source
