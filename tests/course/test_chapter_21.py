"""The solutions of chapter 21 against torch and autograd, right answers in other styles, claims of its prose."""

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.chapters.chapter_21 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_21 import middle, plan, ring, rounding
from mlx_grpo_kit.course.slips import edited
from mlx_grpo_kit.grpo import GRPOConfig, estimate_memory
from mlx_grpo_kit.qwen3 import Qwen3Config, init_lora, merge
from mlx_grpo_kit.runtime import mx

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


# -- right answers in other styles -------------------------------------------------------------------------------------


def _chain_with_deque(block, weights, x, gradient_of):
    states = [x]
    for own in weights:
        states += [block(states[-1], *own)]
        mx.eval(states)
    grad, found = gradient_of(states.pop()), []
    while states:
        grads = mx.vjp(block, [states.pop(), *weights[len(states)]], [grad])[1]
        mx.eval(grads)
        grad = grads[0]
        found.insert(0, tuple(grads[1:]))
    return [grad, found]


def _chain_by_grad(block, weights, x, gradient_of):
    """Without vjp: differentiate a scalar whose gradient for the output is the given one."""
    inputs = [x]
    for own in weights:
        inputs.append(block(inputs[-1], *own))
        mx.eval(inputs[-1])
    grad, grads = gradient_of(inputs[-1]), [None] * len(weights)
    for number in reversed(range(len(weights))):
        arrived, count = grad, len(weights[number])
        found = mx.grad(lambda *given, arrived=arrived: (block(*given) * arrived).sum(), list(range(count + 1)))(
            inputs[number], *weights[number]
        )
        mx.eval(found)
        grad, grads[number] = found[0], list(found[1:])
    return grad, grads


def _masters_in_place_of_names(masters, gradients_of, lr):
    new = {}
    grads = gradients_of(dict(zip(masters, (mx.array(each, mx.bfloat16) for each in masters.values()), strict=True)))
    for name in masters:
        new[name] = masters[name] + (-lr) * mx.array(grads[name], mx.float32)
    return new


def _masters_with_promotion(masters, gradients_of, lr):
    grads = gradients_of({name: value.astype(mx.bfloat16) for name, value in masters.items()})
    return {name: value - lr * grads[name] for name, value in masters.items()}


def _accumulated_numbers(token_losses, params, micro_batches):
    count = float(sum(np.array(mask).sum() for _, mask in micro_batches))
    total, grads = 0.0, None
    for x, mask in micro_batches:
        loss, part = mx.value_and_grad(lambda p, x=x, m=mask: mx.where(m, token_losses(p, x), 0).sum())(params)
        total += loss.item()
        grads = part if grads is None else {name: grads[name] + part[name] for name in part}
        mx.eval(grads)
    return total / count, {name: value / count for name, value in grads.items()}


def _masters_in_numpy(masters, gradients_of, lr):
    grads = gradients_of({name: mx.array(value).astype(mx.bfloat16) for name, value in masters.items()})
    return {name: np.array(value) - lr * np.array(grads[name].astype(mx.float32)) for name, value in masters.items()}


def _accumulated_by_rows(token_losses, params, micro_batches):
    """One row of a micro-batch at a time."""
    rows = [(x[n : n + 1], mask[n : n + 1]) for x, mask in micro_batches for n in range(len(x))]
    return chapter.accumulate(token_losses, params, rows)


def _accumulated_by_weighted_means(token_losses, params, micro_batches, fewest=1):
    counts = [mx.maximum(mask.sum(), fewest) for _, mask in micro_batches]
    loss, grads = 0, {name: 0 for name in params}
    for (x, mask), count in zip(micro_batches, counts, strict=True):
        mean = lambda p, x=x, mask=mask, count=count: (token_losses(p, x) * mask).sum() / count  # noqa: E731
        part, found = mx.value_and_grad(mean)(params)
        share = mask.sum() / sum(mask.sum() for _, mask in micro_batches)
        loss, grads = loss + share * part, {name: grads[name] + share * found[name] for name in params}
        mx.eval(loss, grads)
    return loss, grads


def _logaddexp(hidden, weight, chunk):
    total = mx.full((hidden.shape[0],), float("-inf"))
    for rows in mx.split(weight, list(range(chunk, len(weight), chunk))):
        total = mx.logaddexp(total, mx.logsumexp(hidden @ rows.T, axis=1))
        mx.eval(total)
    return total


def _logsumexp_in_numpy(hidden, weight, chunk):
    hidden, weight = np.array(hidden, np.float64), np.array(weight, np.float64)
    parts = [np.logaddexp.reduce(hidden @ weight[n : n + chunk].T, axis=1) for n in range(0, len(weight), chunk)]
    return np.logaddexp.reduce(parts, axis=0)


def _logsumexp_of_scipy(hidden, weight, chunk):
    parts = [np.array(hidden @ weight[n : n + chunk].T) for n in range(0, len(weight), chunk)]
    return logsumexp([logsumexp(part, axis=1) for part in parts], axis=0)


def _way_back_in_numpy(hidden, weight, targets, log_total, grad, chunk):
    hidden, weight, targets, log_total, grad = map(np.array, (hidden, weight, targets, log_total, grad))
    grad_hidden, grad_weight = grad[:, None] * weight[targets], np.zeros_like(weight)
    np.add.at(grad_weight, targets, grad[:, None] * hidden)
    for start in range(0, len(weight), chunk):
        rows = slice(start, start + chunk)
        p = grad[:, None] * np.exp(hidden @ weight[rows].T - log_total[:, None])
        grad_hidden = grad_hidden - p @ weight[rows]
        grad_weight[rows] -= p.T @ hidden
    return grad_hidden, grad_weight


def _lora_by_einsum(x, weight, a, b, scale):
    small = mx.einsum("...i,ir->...r", scale * x, a)
    return mx.einsum("...i,oi->...o", x, weight) + mx.einsum("...r,ro->...o", small, b)


def _lora_in_torch(x, weight, a, b, scale):
    x, weight, a, b = map(in_torch, (x, weight, a, b))
    return functional.linear(x, weight) + scale * (x @ a @ b)


def _merge_in_a_comprehension(params, lora, scale):
    def corrected(name):
        stem = name.removesuffix("weight")
        if stem + "lora_a" not in lora:
            return params[name]
        return params[name] + scale * lora[stem + "lora_b"].T @ lora[stem + "lora_a"].T

    return {name: corrected(name) for name in params}


def _ring_of_lists(array, rank, size, send, receive):
    parts = [part.copy() for part in np.array_split(array, size)]
    mine = rank
    for _ in range(size - 1):
        send(parts[mine])
        mine = (mine - 1) % size
        parts[mine] += receive()
    for _ in range(size - 1):
        send(parts[mine])
        mine = (mine - 1) % size
        parts[mine] = receive()
    return [number for part in parts for number in part.tolist()]


def _ring_through_one_place(array, rank, size, send, receive):
    """Process 0 collects and then sends the sums, unlike in a ring. No process sends more than the exercise allows."""
    if size == 1:
        return array
    if rank == 0:
        send(array)
        total = receive()
    else:
        total = array + receive()
        send(total)
    if rank == 0:
        send(total)
        return total
    total = receive()
    if rank < size - 1:
        send(total)
    return total


def _seconds_in_bytes(num_params, num_tokens, machines, flops, gbits):
    gradient = 32 * num_params  # bits
    return [num_tokens / machines * 6 * num_params / flops, 2 * gradient * (1 - 1 / machines) / gbits / 1e9]


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("21.1", [2.4, 9.6, 10.8, 1.2]),
        ("21.1", np.array([2.4, 9.6, 10.8, 1.2])),
        ("21.2", _chain_with_deque),
        ("21.2", _chain_by_grad),
        ("21.3", _masters_in_place_of_names),
        ("21.3", _masters_with_promotion),
        ("21.3", _masters_in_numpy),
        ("21.4", _accumulated_numbers),
        ("21.4", _accumulated_by_rows),
        ("21.4", _accumulated_by_weighted_means),
        ("21.5", _logaddexp),
        ("21.5", _logsumexp_in_numpy),
        ("21.5", _logsumexp_of_scipy),
        ("21.6", _way_back_in_numpy),
        ("21.7", _lora_by_einsum),
        ("21.7", _lora_in_torch),
        ("21.8", _merge_in_a_comprehension),
        ("21.9", _ring_of_lists),
        ("21.10", _seconds_in_bytes),
        ("21.10", lambda *arguments: np.array(chapter.step_seconds(*arguments))),
        ("21.10", lambda *arguments: mx.array(chapter.step_seconds(*arguments))),
        ("21.10", lambda *arguments: torch.tensor(chapter.step_seconds(*arguments))),
        ("21.11", (460.8, 7.68, 8, 61.44)),
    ],
)
def test_right_answers_in_other_styles(id, answer):
    note = check(id, answer)
    assert note.passed, note


# -- wrong answers beside those that the exercises list ----------------------------------------------------------------


def _chain_from_the_start(block, weights, x, gradient_of):
    """Every block's input computed again from the beginning: nothing is kept, and far too much is computed."""

    def until(number):
        y = x
        for own in weights[:number]:
            y = block(y, *own)
            mx.eval(y)
        return y

    grad, grads = gradient_of(until(len(weights))), []
    for number in reversed(range(len(weights))):
        _, (grad, *of_weights) = mx.vjp(block, [until(number), *weights[number]], [grad])
        mx.eval(grad, of_weights)
        grads.insert(0, of_weights)
    return grad, grads


def _chain_checkpointed_by_mlx(block, weights, x, gradient_of):
    """`mx.checkpoint` on every block, in one graph of the whole chain."""

    def chain(x, *flat):
        flat = iter(flat)
        for own in weights:
            x = mx.checkpoint(block)(x, *[next(flat) for _ in own])
        return x

    inputs = [x, *(each for own in weights for each in own)]
    _, (grad, *flat) = mx.vjp(chain, inputs, [gradient_of(chain(*inputs))])
    flat = iter(flat)
    return grad, [[next(flat) for _ in own] for own in weights]


def _another_name(masters, gradients_of, lr):
    return chapter.mixed_step(masters, gradients_of, lr) | {"b2": mx.array(0.0)}


def _all_at_once(token_losses, params, micro_batches):
    length = max(x.shape[1] for x, _ in micro_batches)
    wide = [(0, 0), None, (0, 0)]
    xs, masks = [], []
    for x, mask in micro_batches:
        wide[1] = (0, length - x.shape[1])
        xs.append(mx.pad(x, wide))
        masks.append(mx.pad(mask, wide[:2]))
    x, mask = mx.concatenate(xs), mx.concatenate(masks)
    return mx.value_and_grad(lambda p: (token_losses(p, x) * mask).sum() / mask.sum())(params)


def _logsumexp_of_the_table(hidden, weight, chunk):
    return mx.logsumexp(hidden @ weight.T, axis=-1)


_chunks_that_wait = edited(chapter.chunked_gradients, "- mx.eval(grad_hidden, grad_rows)")


def _micro_batches_that_wait(token_losses, params, micro_batches):
    return edited(chapter.accumulate, "- mx.eval(loss, grads)")(token_losses, params, micro_batches)


def _one_row_of_the_vocabulary(hidden, weight, chunk):
    return _logaddexp(hidden, weight, 1)


def _one_row_of_the_way_back(*arguments):
    return chapter.chunked_gradients(*arguments[:-1], 1)


def _merged_by_adding_into(params, lora, scale):
    merged = dict(params)
    for name in lora:
        if name.endswith(".lora_a"):
            stem = name.removesuffix(".lora_a")
            merged[stem + ".weight"] += scale * (lora[name] @ lora[stem + ".lora_b"]).T
    return merged


def _nobody_sends(array, rank, size, send, receive):
    return array + receive()


def _through_the_air():
    """Nothing is sent: the processes, which are threads here, share a list."""
    together, ready = {}, threading.Barrier(2)

    def ring_sum(array, rank, size, send, receive):
        if size != 2:
            return chapter.ring_sum(array, rank, size, send, receive)
        together[rank] = array
        ready.wait(10)
        for _ in range(2):
            send(array[:0])
            receive()
        return together[0] + together[1]

    return ring_sum


def _every_part_whole(array, rank, size, send, receive):
    """The right sums, with the whole array in each message of the second round."""
    total, parts = array, array
    for _ in range(size - 1):
        send(parts)
        parts = receive()
        total = total + parts
    return total


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        ("21.1", (2.4, 9.6, 10.8), "is not a tuple of 4 numbers"),
        ("21.1", (2.4, 9.6, 10.8, 2.4), "3 of the 4 are right"),
        ("21.2", _chain_from_the_start, "two per block are enough"),
        ("21.2", _chain_checkpointed_by_mlx, "two per block are enough"),
        ("21.2", lambda block, weights, x, gradient_of: (x, weights), "part 1"),
        (
            "21.3",
            edited(
                chapter.mixed_step,
                "- copies = {name: value.astype(mx.bfloat16) for name, value in masters.items()}",
                "+ copies = {name: value.astype(mx.float16) for name, value in masters.items()}",
            ),
            "computed in float16",
        ),
        (
            "21.3",
            _another_name,
            "masters with the names",
        ),
        ("21.3", chapter._paired_in_order, "belong together by their *name*"),
        (
            "21.3",
            lambda masters, gradients_of, lr: {
                name: chapter.mixed_step(masters, gradients_of, lr)[name] for name in masters
            },
            "Call it once, before the loop",
        ),
        ("21.4", lambda *arguments: _accumulated_by_weighted_means(*arguments, fewest=0), "is 0 / 0"),
        ("21.4", _all_at_once, "more than one micro-batch in a call"),
        (
            "21.4",
            edited(
                chapter.accumulate,
                "- loss, grads = mx.array(0.0), {name: mx.zeros_like(value) for name, value in params.items()}",
                "+ loss, grads = mx.array(1.0), {name: mx.zeros_like(value) for name, value in params.items()}",
            ),
            "expected",
        ),
        ("21.4", chapter._all_at_once, "keeps all its inputs alive"),
        ("21.4", _micro_batches_that_wait, "keeps all its inputs alive"),
        (
            "21.5",
            edited(
                chapter.chunked_logsumexp,
                "- top, total = mx.full(len(hidden), -mx.inf), mx.zeros(len(hidden))",
                "+ top, total = mx.zeros(len(hidden)), mx.zeros(len(hidden))",
            ),
            "Top begins at 0",
        ),
        (
            "21.5",
            edited(
                chapter.chunked_logsumexp,
                "- top, total = mx.full(len(hidden), -mx.inf), mx.zeros(len(hidden))",
                "+ top, total = mx.full(len(hidden), -900.0), mx.zeros(len(hidden))",
            ),
            "expected array([-1000, -500])",
        ),
        ("21.5", _one_row_of_the_vocabulary, "single rows need a loop"),
        ("21.6", _one_row_of_the_way_back, "single rows need a loop"),
        ("21.5", _logsumexp_of_the_table, "Go through `weight` in slices"),
        (
            "21.6",
            edited(
                chapter.chunked_gradients,
                "- p = mx.exp(hidden @ rows.T - log_total[:, None])",
                "+ p = mx.exp(hidden @ rows.T) / mx.exp(log_total)[:, None]",
            ),
            "infinity divided by infinity",
        ),
        ("21.6", _chunks_that_wait, "keeps its logits alive"),
        (
            "21.6",
            edited(
                chapter.chunked_gradients,
                "- return grad_hidden, mx.concatenate(grad_rows)",
                "+ return grad_hidden, grad_rows[0]",
            ),
            "part 2",
        ),
        (
            "21.7",
            edited(
                chapter.lora_linear,
                "- return x @ weight.T + scale * ((x @ a) @ b)",
                "+ return x @ weight.T + scale * (x @ (a @ b))",
            ),
            "such as `a @ b`",
        ),
        (
            "21.8",
            edited(chapter.merge, "- merged = dict(params)", "+ merged = params.copy() | {'more': 1}"),
            "expected",
        ),
        ("21.8", chapter._paired_by_place, "belong together by their *names*"),
        ("21.8", chapter._found_by_beginning, "begins with router, but it is another matrix"),
        (
            "21.8",
            edited(chapter.merge, '- stem = name.removesuffix(".lora_a")', '+ stem = name.rstrip(".lora_a")'),
            "`rstrip` removes every letter",
        ),
        ("21.8", _merged_by_adding_into, "with `+=`"),
        ("21.9", _nobody_sends, "every process that still runs waits for a message"),
        ("21.9", _through_the_air(), "with 0 numbers sent in all, but it takes 8"),
        ("21.9", _every_part_whole, "Every array travelled all the way around"),
        (
            "21.10",
            edited(
                chapter.step_seconds,
                "- learning = 6 * num_params * num_tokens / (machines * flops)",
                "+ learning = 4 * num_params * num_tokens / (machines * flops)",
            ),
            "expected",
        ),
        (
            "21.10",
            edited(
                chapter.step_seconds,
                "- return learning, sent / (gbits * 1e9 / 8)",
                "+ return learning, sent / (gbits * 2**30 / 8)",
            ),
            "expected",
        ),
        ("21.11", (460.8, 7.7, 8.0, 61.4), "Those numbers are rounded"),
        ("21.11", (460.8, 61.44, 8.0, 61.44), "the sum of the hours of 8 machines"),
        ("21.11", (460.8, 7.68, 8.0, 8.0), "3 of the 4 are right"),
    ],
)
def test_other_wrong_answers_are_refused_and_shown(id, answer, words):
    note = check(id, answer)
    assert not note.passed
    assert words in note.text


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
    notebook = Path(__file__).parents[2] / "notebooks" / "21_scaling_up.ipynb"
    [cell] = [each for each in nbformat.read(notebook, as_version=4).cells if "idea of **ZeRO**" in each.source]
    assert "$N$ parameters (`num_params`), $T$ tokens (`num_tokens`), $n$ `machines`" in cell.source
    assert "keep the moments of only $1/n$ of the parameters" in cell.source
