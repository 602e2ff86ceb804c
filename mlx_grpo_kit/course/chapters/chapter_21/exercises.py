"""Exercises of notebook 21: scaling up."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import math

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_21.ring import run_in_ring
from mlx_grpo_kit.course.compare import Told, as_numpy, evaluate, same
from mlx_grpo_kit.course.exercise import Exercise, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.runtime import mx


def _normal(rng, *shape):
    return mx.array(rng.normal(size=shape).astype(np.float32))


def _peak(call):
    """(the evaluated result of `call`; the peak of the bytes that MLX held in addition to those before)."""
    mx.synchronize()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    result = call()
    evaluate(result)
    return result, mx.get_peak_memory() - before


# -- bytes by hand ----------------------------------------------------------------------------------------------------

BYTES = Exercise(
    "21.1",
    "Bytes by hand",
    "A model has 600 million parameters and a vocabulary of 150,000 tokens. A number in float32 has 4 bytes, a "
    "number in bfloat16 has 2, and 1 GB is 10^9 bytes. Give four numbers in GB, as a tuple `(a, b, c, d)`: (a) the "
    "parameters in float32; (b) everything that training with AdamW keeps in float32: the parameters, their "
    "gradients and the optimizer's two moments; (c) the same, if the forward and backward pass work on a copy of the "
    "parameters in bfloat16, in addition to everything in (b); and (d) one table of logits in float32, for 8 "
    "completions of 250 tokens.",
    minutes=6,
    difficulty=1,
    solution=(2.4, 9.6, 10.8, 1.2),
    hints=(
        "(b) counts four numbers of 4 bytes for each parameter: the parameter itself, its gradient, and the two "
        "running means of AdamW (of the gradient, and of its square).",
        "(c) A copy is added: 2 bytes per parameter. It replaces nothing. (d) There is one logit for each token of "
        "the vocabulary, at each of 8 * 250 positions.",
    ),
    mistakes=slips(
        (2.4, 9.6, 10.8, 1.2),
        r"""
one moment
+ (2.4, 7.2, 8.4, 1.2)
! That is three numbers per parameter. There are four: the parameter itself, its gradient, and *two* running means, of
! the gradient and of its square.
bfloat16 instead (2)
+ (2.4, 9.6, 1.2, 1.2)
! (c) asks for everything in memory. The copy in bfloat16 exists *in addition to* the float32 numbers, which the
! optimizer still needs.
all of it in bfloat16 (2)
+ (2.4, 9.6, 4.8, 1.2)
! (c) The parameters, the moments and the gradients stay in float32; only a copy of the parameters is in bfloat16.
in bytes
+ (2.4e9, 9.6e9, 10.8e9, 1.2e9)
! Those are bytes. Give the answers in GB, which are 10^9 bytes.
in MB
+ (2400.0, 9600.0, 10800.0, 1200.0)
! Those are MB. Give the answers in GB, which are 1,000 MB.
powers of two
+ (2.4e9 / 2**30, 9.6e9 / 2**30, 10.8e9 / 2**30, 1.2e9 / 2**30)
! Those are GiB, 2^30 bytes. Here a GB is 10^9 bytes, as in the rest of the chapter.
the copy in place of the parameters (2)
+ (2.4, 9.6, 8.4, 1.2)
! (c) The copy in bfloat16 does not replace the parameters: the optimizer's small steps need them in float32.
one completion (2)
+ (2.4, 9.6, 10.8, 0.15)
! (d) That is the table of one completion. There are 8 completions.
""",
    ),
    also_right=r"""
# a list
[2.4, 9.6, 10.8, 1.2]
# an array
import numpy as np
np.array([2.4, 9.6, 10.8, 1.2])
""",
    also_wrong=r"""
# three
(2.4, 9.6, 10.8)
# a wrong one
(2.4, 9.6, 10.8, 2.4)
""",
    explain=(
        "(d) is half as large as the whole model, and we read only one number in each row of this table. And a "
        "backward pass holds several such tables."
    ),
)


# -- a chain that forgets ---------------------------------------------------------------------------------------------


def checkpointed_vjp(block, weights, x, gradient_of):
    """(gradient of x, [[gradient of each array of a block], ...]), keeping only inputs."""
    inputs = []
    for own in weights:
        inputs.append(x)
        x = block(x, *own)
        mx.eval(x)
    grad, grads = gradient_of(x), []
    for own, x in zip(reversed(weights), reversed(inputs)):
        _, (grad, *of_weights) = mx.vjp(block, [x, *own], [grad])
        mx.eval(grad, of_weights)
        grads.append(of_weights)
    return grad, grads[::-1]


def _bent(x, weight, bias):
    """tanh(x @ weight + bias)"""
    return mx.tanh(x @ weight + bias)


def _wide(x, up, down):
    """x + tanh(x @ up) @ down, with an inner width of 64 times that of x"""
    return x + mx.tanh(x @ up) @ down


def _towards_one(y):
    """y - 1, the gradient of half the squared distance from 1"""
    return y - 1


def _chain(rng, num_blocks, tokens, width):
    weights = [[_normal(rng, width, width), _normal(rng, width)] for _ in range(num_blocks)]
    return _bent, weights, _normal(rng, tokens, width), _towards_one


def _fat_chain(rng, num_blocks=16, tokens=64, width=4):
    weights = [
        [0.3 * _normal(rng, width, 64 * width), 0.1 * _normal(rng, 64 * width, width)] for _ in range(num_blocks)
    ]
    return _wide, weights, _normal(rng, tokens, width), _towards_one


def _watch_chain(function, block, weights, x, gradient_of):
    """The gradients, or a message that too much was computed or kept."""
    calls = []

    def counted(x, *own):
        calls.append(len(own))
        return block(x, *own)

    counted.__doc__ = block.__doc__
    mx.eval(weights, x)
    result, peak = _peak(lambda: function(counted, weights, x, gradient_of))
    if not isinstance(result, (tuple, list)) or len(result) != 2 or not isinstance(result[1], (tuple, list)):
        return result
    result = result[0], [list(own) if isinstance(own, (tuple, list)) else own for own in result[1]]
    if block is _bent:
        if len(calls) > 2 * len(weights) + 1 and len(weights) > 2:
            return Told(
                f"{len(calls)} calls of `block` for a chain of {len(weights)} (two per block are enough: one in the "
                "forward pass, one in the backward pass)"
            )
        return result
    # The inner values of a block are the input and output of tanh, and their gradients: a few times this.
    inside = 4 * x.shape[0] * weights[0][0].shape[1]
    if peak > 12 * inside:
        return Told("gradients for which the inner values of many blocks were in memory at the same time")
    return result


CHAIN = Exercise(
    "21.2",
    "A chain that forgets",
    "A chain of blocks computes `x = block(x, *weights[0])`, then `x = block(x, *weights[1])`, and so on; `weights` "
    "contains one list of arrays per block. Write `checkpointed_vjp(block, weights, x, gradient_of)`, where "
    "`gradient_of(end)` returns the gradient of the chain's output. Return a pair: the gradient of `x`, and a list "
    "with one list per block, which contains the gradients of that block's arrays. In the forward pass, keep each "
    "block's *input* and nothing else. In the backward pass, start with the last block and compute it once more: `_, "
    "grads = mx.vjp(function, inputs, [gradient of the output])` runs a function on a list of arrays and goes back "
    "through it. The inner values of two blocks must never exist at the same time, so evaluate after each block.",
    minutes=15,
    difficulty=3,
    solution=checkpointed_vjp,
    hints=(
        "Use two loops. The first goes forward and appends each block's input to a list. Then `grad = "
        "gradient_of(x)`. The second goes through the list from its end, and hands `grad` from block to block.",
        "`_, (grad, *of_weights) = mx.vjp(block, [x, *own], [grad])`, where x is the *input* of that block and `own` "
        "are its weights. The first result is the gradient of that input: the `grad` for the next block.",
        "MLX is lazy: an array that is not evaluated keeps all its inputs alive. Call `mx.eval(x)` after each block "
        "of the forward pass, and `mx.eval(grad, of_weights)` after each block of the backward pass. The last block "
        "comes first, so reverse the list at the end.",
    ),
    cases=(
        *drawn(1, lambda rng: _chain(rng, 3, 2, 3)),
        *drawn(1, lambda rng: _chain(rng, 1, 1, 2), seed=1),
        *drawn(1, lambda rng: _chain(rng, 8, 4, 3), seed=2),
        *drawn(1, _fat_chain),
    ),
    run=_watch_chain,
    mistakes=slips(
        checkpointed_vjp,
        r"""
nothing forgotten (3)
- mx.eval(x)
+ pass
- mx.eval(grad, of_weights)
! Go back through one block at a time, from its input, and evaluate after each block, forward and backward: an array
! that is not evaluated keeps all its inputs alive.
outputs kept (2)
  for own in weights:
+     x = block(x, *own)
- x = block(x, *own)
! Those are the blocks' *outputs*. To compute a block once more you need its input.
not reversed (3)
- return grad, grads[::-1]
+ return grad, grads
! The last block's gradients come first. The backward pass produces them in that order, but the list should have the
! order of the blocks.
gradient not handed on (2)
- _, (grad, *of_weights) = mx.vjp(block, [x, *own], [grad])
+ _, (grad_x, *of_weights) = mx.vjp(block, [x, *own], [grad])
! Every block got the gradient of the chain's output. The result of one block's backward pass, the gradient of its
! input, is what the next one needs.
forwards again
- for own, x in zip(reversed(weights), reversed(inputs)):
+ for own, x in zip(weights, inputs):
- return grad, grads[::-1]
+ return grad, grads
! The backward pass begins at the last block, because that is where the gradient is known.
weights the other way round
- for own, x in zip(reversed(weights), reversed(inputs)):
+ for own, x in zip(weights, reversed(inputs)):
- return grad, grads[::-1]
+ return grad, grads
! The inputs are taken from the end and the weights from the beginning, so each block was computed again with another
! block's weights.
all inputs are the first
- inputs.append(x)
+ inputs.append(inputs[0] if inputs else x)
! Every block was computed again from the chain's input, not from its own input.
""",
    ),
    also_right=r"""
# states that are popped
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
# mx.grad of a scalar whose gradient for the output is the given one
def _chain_by_grad(block, weights, x, gradient_of):
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
""",
    also_wrong=r"""
# from the start for every block: nothing is kept, and far too much is computed
def _chain_from_the_start(block, weights, x, gradient_of):
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

! two per block are enough
# mx.checkpoint on every block, in one graph of the whole chain
def _chain_checkpointed_by_mlx(block, weights, x, gradient_of):
    def chain(x, *flat):
        flat = iter(flat)
        for own in weights:
            x = mx.checkpoint(block)(x, *[next(flat) for _ in own])
        return x

    inputs = [x, *(each for own in weights for each in own)]
    _, (grad, *flat) = mx.vjp(chain, inputs, [gradient_of(chain(*inputs))])
    flat = iter(flat)
    return grad, [[next(flat) for _ in own] for own in weights]

! two per block are enough
# its inputs
lambda block, weights, x, gradient_of: (x, weights)
""",
    explain="That is all of gradient checkpointing. `mlx_grpo_kit/grpo/learners/mlx_by_layer.py` is this function "
    "for a Qwen3.",
)


# -- masters ----------------------------------------------------------------------------------------------------------


def mixed_step(masters, gradients_of, lr):
    """New masters in float32, after a step of SGD with gradients that were computed in bfloat16."""
    copies = {name: value.astype(mx.bfloat16) for name, value in masters.items()}
    grads = gradients_of(copies)
    return {name: value - lr * grads[name].astype(mx.float32) for name, value in masters.items()}


def _targets(masters):
    """Target values that differ from the masters."""
    return {name: 0.75 * value - 0.5 for name, value in masters.items()}


def _move(function, masters, lr, num_steps):
    """How far the masters moved in a few steps, in learning rates, or a message about a wrong dtype."""
    goal, start, dtypes, calls = _targets(masters), dict(masters), set(), []

    def gradients_of(params):
        """the gradients at `params`, in the dtype of `params`"""
        calls.append(len(params))
        dtypes.update(str(value.dtype).rpartition(".")[2] for value in params.values())
        return {name: params[name] - goal[name].astype(params[name].dtype) for name in reversed(params)}

    for _ in range(num_steps):
        masters = function(masters, gradients_of, lr)
        if not isinstance(masters, dict):
            return masters
        if masters.keys() != goal.keys():
            return Told(f"masters with the names {', '.join(masters)}, expected {', '.join(goal)}")
        wrong = {str(value.dtype).rpartition(".")[2] for value in masters.values()} - {"float32"}
        if wrong:
            return Told(f"masters in {wrong.pop()} (expected float32)")
        masters = {name: mx.array(as_numpy(value)) for name, value in masters.items()}
    if not dtypes:
        return Told("new masters without a call of gradients_of")
    if dtypes != {"bfloat16"}:
        return Told(f"gradients that were computed in {' and '.join(sorted(dtypes))} (expected bfloat16)")
    if len(calls) > num_steps:
        return Told(f"{len(calls)} calls of `gradients_of` in {num_steps} steps (one per step is enough)")
    return {name: ((value - start[name]) / lr).astype(mx.bfloat16) for name, value in masters.items()}


MASTERS = Exercise(
    "21.3",
    "Masters",
    "Write `mixed_step(masters, gradients_of, lr)`. `masters` is a dictionary of parameters in float32. "
    "`gradients_of(params)` computes the gradients at `params`, a dictionary of arrays, in the dtype of `params`; "
    "give it a copy of the masters in bfloat16. Return the new masters, a new dictionary in float32. Each parameter "
    "moves against its gradient: value - lr * gradient.",
    minutes=8,
    difficulty=2,
    solution=mixed_step,
    hints=(
        "`value.astype(mx.bfloat16)` is a rounded copy. The gradients are computed at the copies. Which of the two "
        "has to move, the copy or the master?",
        "If you move a copy by a millionth, it does not move at all. The master does: it has 24 bits for its digits. "
        "Use `value - lr * grads[name].astype(mx.float32)`, where value is the master.",
    ),
    cases=(
        ({"w": mx.array([1.0, -2.0, 0.5])}, 1e-4, 1),
        ({"w": mx.array([1.001, 0.3333, -0.7]), "b": mx.array([[0.1, 3.14159]])}, 1e-4, 1),
        ({"w": mx.array([1.0, 1.5]), "norm": mx.array([-0.75, 0.25])}, 1e-3, 3),
        *drawn(2, lambda rng: ({"w": 1 + _normal(rng, 2, 3), "norm": _normal(rng, 3)}, 2e-4, 2)),
    ),
    run=_move,
    mistakes=slips(
        mixed_step,
        r"""
paired by their positions (2)
- return {name: value - lr * grads[name].astype(mx.float32) for name, value in masters.items()}
+ return {name: value - lr * grad for (name, value), grad in zip(masters.items(), grads.values())}
! A master and its gradient belong together by their *name*; the gradients may be in another order.
gradients for each name
- grads = gradients_of(copies)
- return {name: value - lr * grads[name].astype(mx.float32) for name, value in masters.items()}
+ return {name: value - lr * gradients_of(copies)[name].astype(mx.float32) for name, value in masters.items()}
! `gradients_of` runs the forward and backward pass of the whole model. Call it once, before the loop over the names.

@ return {name: value - lr * grads[name].astype(mx.float32) for name, value in masters.items()}
copies moved, then converted to float32 (2)
+ return {name: (value - lr * grads[name]).astype(mx.float32) for name, value in copies.items()}
! The step was taken in bfloat16, where the next number below 1 is 0.996. A small step is rounded away every time, and
! `astype(mx.float32)` does not bring it back. Move the master.
copies in float32, moved (2)
+ return {name: value.astype(mx.float32) - lr * grads[name].astype(mx.float32) for name, value in copies.items()}
! The step starts from the rounded copy, so each step throws away the digits that earlier steps had gained.
the other way (2)
+ return {name: value + lr * grads[name].astype(mx.float32) for name, value in masters.items()}
! That moves up the slope. To move against the gradient, subtract it.
learning rate left out (2)
+ return {name: value - grads[name].astype(mx.float32) for name, value in masters.items()}
! The gradient has to be multiplied by the learning rate before it is subtracted.

all in float32
- copies = {name: value.astype(mx.bfloat16) for name, value in masters.items()}
+ copies = {name: value for name, value in masters.items()}
! That is a step in float32. The gradients should be computed from copies in bfloat16.
""",
    ),
    also_right=r"""
# a loop
def _masters_in_place_of_names(masters, gradients_of, lr):
    new = {}
    grads = gradients_of(dict(zip(masters, (mx.array(each, mx.bfloat16) for each in masters.values()), strict=True)))
    for name in masters:
        new[name] = masters[name] + (-lr) * mx.array(grads[name], mx.float32)
    return new
# promotion
def _masters_with_promotion(masters, gradients_of, lr):
    grads = gradients_of({name: value.astype(mx.bfloat16) for name, value in masters.items()})
    return {name: value - lr * grads[name] for name, value in masters.items()}
# NumPy
def _masters_in_numpy(masters, gradients_of, lr):
    grads = gradients_of({name: mx.array(value).astype(mx.bfloat16) for name, value in masters.items()})
    return {name: np.array(value) - lr * np.array(grads[name].astype(mx.float32)) for name, value in masters.items()}
""",
    also_wrong=r"""
# float16
- copies = {name: value.astype(mx.bfloat16) for name, value in masters.items()}
+ copies = {name: value.astype(mx.float16) for name, value in masters.items()}
! computed in float16
# another name
lambda masters, gradients_of, lr: mixed_step(masters, gradients_of, lr) | {"b2": mx.array(0.0)}
! masters with the names
""",
    explain="The optimizer's moments need float32 for the same reason: they are sums of many small numbers.",
)


# -- accumulation -----------------------------------------------------------------------------------------------------


def accumulate(token_losses, params, micro_batches):
    """(mean loss over all counting tokens, its gradients), one micro-batch at a time."""
    num_tokens = sum(mask.sum().item() for _, mask in micro_batches)

    def share(params, x, mask):
        return (token_losses(params, x) * mask).sum() / num_tokens

    loss, grads = mx.array(0.0), {name: mx.zeros_like(value) for name, value in params.items()}
    for x, mask in micro_batches:
        part, of_part = mx.value_and_grad(share)(params, x, mask)
        loss, grads = loss + part, {name: grads[name] + of_part[name] for name in params}
        mx.eval(loss, grads)
    return loss, grads


def _losses_of_tokens(params, x):
    """(x * params["w"] + params["b"]) ** 2, summed over the last axis"""
    return ((x * params["w"] + params["b"]) ** 2).sum(axis=-1)


def _micro_batches(rng, sizes, lengths, empty=None):
    """Parameters, and micro-batches with these numbers of rows and tokens. In batch `empty` no token counts."""
    params = {"w": _normal(rng, 3), "b": _normal(rng, 3)}
    batches = []
    for number, (rows, length) in enumerate(zip(sizes, lengths)):
        counts = rng.integers(1, length + 1, rows) * (number != empty)
        batches.append((_normal(rng, rows, length, 3), mx.array(np.arange(length) < counts[:, None])))
    return params, batches


def _watch_accumulation(function, params, micro_batches):
    calls = []

    def token_losses(params, x):
        """the loss of each token, [rows, tokens]"""
        calls.append((len(x), x.shape[1:]))
        return _losses_of_tokens(params, x)

    result = function(token_losses, params, micro_batches)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        return result
    if not all(any(rows <= len(x) and rest == x.shape[1:] for x, _ in micro_batches) for rows, rest in calls):
        return Told("more than one micro-batch in a call of `token_losses` (there is memory for one at a time)")
    loss, grads = result
    return (loss if isinstance(loss, mx.array) else mx.array(loss)), grads


def _watch_its_memory(function, params, micro_batches):
    """The result of `_watch_accumulation`, or a message that many micro-batches were in memory at once."""
    mx.eval(params, micro_batches)
    result, peak = _peak(lambda: _watch_accumulation(function, params, micro_batches))
    # One micro-batch, forward and backward, takes 4 to 6 times its x; 8 at once take 24 times and more.
    if len(micro_batches) > 6 and peak > 12 * max(x.nbytes for x, _ in micro_batches):
        return Told("gradients for which the inner values of many micro-batches were in memory at the same time")
    return result


def _all_at_once(token_losses, params, micro_batches):
    num_tokens = sum(mask.sum().item() for _, mask in micro_batches)
    return mx.value_and_grad(
        lambda params: sum((token_losses(params, x) * mask).sum() for x, mask in micro_batches) / num_tokens
    )(params)


ACCUMULATE = Exercise(
    "21.4",
    "Two micro-batches, one gradient",
    "Write `accumulate(token_losses, params, micro_batches)`. Each micro-batch is a pair `(x, mask)`. "
    "`token_losses(params, x)` returns the loss of each token of x, [rows, tokens], and `mask` is true for the "
    "tokens that count. Return a tuple: the loss, which is the mean over *all* counting tokens of *all* "
    "micro-batches, and its gradients, a dictionary with the names of `params`. Only one micro-batch may go through "
    "`token_losses` at a time; evaluate after each. The micro-batches differ in rows, in length, and in the number "
    "of counting tokens, which may be 0 in one of them.",
    minutes=12,
    difficulty=2,
    solution=accumulate,
    hints=(
        "By hand: one micro-batch has 2 tokens with a loss of 1 each, the other has 8 with a loss of 0. The mean "
        "over all 10 is 0.2; the mean of the two means is 0.5. By what do you have to divide each token's loss?",
        "Count first, over all micro-batches: `num_tokens = sum(mask.sum().item() for _, mask in micro_batches)`. "
        "Then the loss of each micro-batch is its *sum* divided by that number, and you simply add the parts.",
        "Use `mx.value_and_grad(share)(params, x, mask)` with `share = (token_losses(params, x) * mask).sum() / "
        "num_tokens`. Add the loss and the gradients to those so far, then call `mx.eval(loss, grads)`.",
    ),
    cases=(
        *drawn(1, lambda rng: _micro_batches(rng, [2, 3], [4, 2])),
        *drawn(1, lambda rng: _micro_batches(rng, [1], [1]), seed=1),
        *drawn(1, lambda rng: _micro_batches(rng, [2, 2, 2], [5, 1, 3]), seed=2),
        *drawn(1, lambda rng: _micro_batches(rng, [4, 1], [1, 6]), seed=3),
        *drawn(1, lambda rng: _micro_batches(rng, [2, 2, 3], [3, 2, 4], empty=1), seed=5),
        *drawn(1, lambda rng: _micro_batches(rng, [16] * 16, [200] * 16), seed=4),
        (
            {"w": mx.array([1.0, -2.0, 0.5]), "b": mx.zeros(3)},
            [  # two tokens and a whole micro-batch with the loss 0
                (mx.array([[[0.0] * 3, [1.0] * 3]]), mx.array([[True, True]])),
                (mx.zeros((2, 1, 3)), mx.array([[True], [True]])),
                (mx.array([[[1.0, 2.0, 3.0], [0.0] * 3]]), mx.array([[True, True]])),
            ],
        ),
    ),
    run=_watch_its_memory,
    mistakes=slips(
        accumulate,
        r"""
all at once (3)
- loss, grads = mx.array(0.0), {name: mx.zeros_like(value) for name, value in params.items()}
+ return mx.value_and_grad(lambda params: sum(share(params, *each) for each in micro_batches))(params)
! Differentiate the loss of one micro-batch at a time, add the result to those so far, and call `mx.eval` before the
! next: an array that is not evaluated keeps all its inputs alive.

@ return (token_losses(params, x) * mask).sum() / num_tokens
mean of means
+ return (token_losses(params, x) * mask).sum() / mask.sum() / len(micro_batches)
! That is the mean of the micro-batches' means. Then a token in a micro-batch of few tokens counts more than a token
! among many.
weighted by rows
+ rows = sum(len(x) for x, _ in micro_batches)
+ return (token_losses(params, x) * mask).sum() / mask.sum() * len(x) / rows
! Each micro-batch's mean is weighted by its number of *rows*. Rows differ in length, so count tokens.

@ return (token_losses(params, x) * mask).sum() / num_tokens
summed (2)
+ return (token_losses(params, x) * mask).sum()
! That is the sum over all tokens, not their mean: with twice as many tokens, the gradient would be twice as large.
means summed
+ return (token_losses(params, x) * mask).sum() / mask.sum()
! Each micro-batch was divided by its own number of tokens, and the means were added: the loss grows with the number of
! micro-batches.
padding learned from (2)
+ return (token_losses(params, x)).sum() / num_tokens
! The losses of padding are in the sum. Multiply by the mask first.

gradients summed (2)
- return (token_losses(params, x) * mask).sum() / num_tokens
+ return (token_losses(params, x) * mask).sum()
- return loss, grads
+ return loss / num_tokens, grads
! The loss is the mean, but the gradients are those of the sum: divide them by the number of tokens too.
a mean of nothing (2)
- return (token_losses(params, x) * mask).sum() / num_tokens
+ return (token_losses(params, x) * mask).sum() / mask.sum()
- loss, grads = loss + part, {name: grads[name] + of_part[name] for name in params}
+ of_all = mask.sum() / num_tokens
+ loss, grads = loss + of_all * part, {name: grads[name] + of_all * of_part[name] for name in params}
! The mean of a micro-batch in which no token counts is 0 / 0. Divide each *sum* by the number of tokens in all
! micro-batches.

@ num_tokens = sum(mask.sum().item() for _, mask in micro_batches)
tokens with a loss (2)
+ num_tokens = sum(((token_losses(params, x) != 0) * mask).sum().item() for x, mask in micro_batches)
! Tokens whose loss is 0 are missing from the denominator. A token counts if its mask is true.
padding counted (2)
+ num_tokens = sum(mask.size for _, mask in micro_batches)
! All positions were counted, padding too. Only those with a true mask count.

@ loss, grads = loss + part, {name: grads[name] + of_part[name] for name in params}
the last one only (3)
+ loss, grads = part, of_part
! Each micro-batch replaced the one before it; they have to be added.
gradients of the last only (3)
+ loss, grads = loss + part, of_part
! The loss is a sum, but the gradients are those of the last micro-batch only.

divided once more (2)
- return loss, grads
+ n = len(micro_batches)
+ return loss / n, {name: value / n for name, value in grads.items()}
! You also divided by the number of micro-batches. The parts are already shares of one mean.
""",
    ),
    also_right=r"""
# numbers
def _accumulated_numbers(token_losses, params, micro_batches):
    count = float(sum(np.array(mask).sum() for _, mask in micro_batches))
    total, grads = 0.0, None
    for x, mask in micro_batches:
        loss, part = mx.value_and_grad(lambda p, x=x, m=mask: mx.where(m, token_losses(p, x), 0).sum())(params)
        total += loss.item()
        grads = part if grads is None else {name: grads[name] + part[name] for name in part}
        mx.eval(grads)
    return total / count, {name: value / count for name, value in grads.items()}
# one row of a micro-batch at a time
def by_rows(token_losses, params, micro_batches):
    rows = [(x[n : n + 1], mask[n : n + 1]) for x, mask in micro_batches for n in range(len(x))]
    return accumulate(token_losses, params, rows)
# weighted means
def by_weighted_means(token_losses, params, micro_batches):
    loss, grads = 0, {name: 0 for name in params}
    for x, mask in micro_batches:
        count = mx.maximum(mask.sum(), 1)
        part, found = mx.value_and_grad(lambda p: (token_losses(p, x) * mask).sum() / count)(params)
        share = mask.sum() / sum(mask.sum() for _, mask in micro_batches)
        loss, grads = loss + share * part, {name: grads[name] + share * found[name] for name in params}
        mx.eval(loss, grads)
    return loss, grads
""",
    also_wrong=r"""
# joined
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

! more than one micro-batch in a call
# from 1
- loss, grads = mx.array(0.0), {name: mx.zeros_like(value) for name, value in params.items()}
+ loss, grads = mx.array(1.0), {name: mx.zeros_like(value) for name, value in params.items()}
# not evaluated
- mx.eval(loss, grads)
! keeps all its inputs alive
""",
    explain="The same holds for processes: each process needs to know how many tokens count in the others.",
)


# -- log-probabilities in chunks --------------------------------------------------------------------------------------


def chunked_logsumexp(hidden, weight, chunk):
    """log(sum(exp(hidden @ weight.T))) over the vocabulary, [N], `chunk` rows at a time."""
    top, total = mx.full(len(hidden), -mx.inf), mx.zeros(len(hidden))
    for start in range(0, len(weight), chunk):
        logits = hidden @ weight[start : start + chunk].T
        before, top = top, mx.maximum(top, logits.max(axis=-1))
        total = total * mx.exp(before - top) + mx.exp(logits - top[:, None]).sum(axis=-1)
        mx.eval(top, total)
    return top + mx.log(total)


def _table_limits(function, *arguments):
    """An answer's result, or a message that it held the table of logits: [N, V] for hidden [N, H], weight [V, H]."""
    hidden, weight, chunk = arguments[0], arguments[1], arguments[-1]
    mx.eval(arguments)
    result, peak = _peak(lambda: function(*arguments))
    table, results = 4 * len(hidden) * len(weight), 3 * weight.nbytes
    if chunk * 16 <= len(weight) and peak > table / 2 + results:
        return Told(
            f"a table of logits for much of the vocabulary, in memory at once (expected {chunk} of {len(weight)} "
            "columns at a time)"
        )
    return result


def _draw_chunks(rng, tokens, vocabulary, chunk, scale=1.0):
    return scale * _normal(rng, tokens, 4), _normal(rng, vocabulary, 4), chunk


def _rising(tokens, vocabulary, chunk, slope):
    """Logits that rise (or fall) by `slope` per token of the vocabulary, and by 300 from row to row."""
    weight = mx.stack([slope * mx.arange(vocabulary).astype(mx.float32), mx.full(vocabulary, 300.0)], axis=1)
    return mx.stack([mx.ones(tokens), mx.arange(tokens).astype(mx.float32)], axis=1), weight, chunk


CHUNKED = Exercise(
    "21.5",
    "A sum over the vocabulary, in chunks",
    "Write `chunked_logsumexp(hidden, weight, chunk)` for hidden [N, H] and the output layer's weight [V, H]. It "
    "returns `log(sum over the vocabulary of exp(hidden @ weight.T))`, an array [N]. The table [N, V] must never "
    "exist: multiply with `chunk` rows of `weight` at a time (the last chunk may be smaller), and evaluate after "
    "each chunk. Logits may be as large as 1000 or as small as -1000.",
    minutes=12,
    difficulty=2,
    solution=chunked_logsumexp,
    hints=(
        "`exp(1000)` is infinite, so keep everything relative to the largest logit *so far*, `top`: `total = sum of "
        "exp(logit - top)`. What happens to `total` when a larger logit comes?",
        "When top grows from `before` to `top`, the old total shrinks: `total * mx.exp(before - top)`. Begin with "
        "`top = -inf` and `total = 0`, and return `top + mx.log(total)` at the end.",
        "Or let MLX do it: take `mx.logsumexp(logits, axis=-1)` of each chunk, and add the chunk to the result so "
        "far with `mx.logaddexp`. Call `mx.eval(...)` in the loop; otherwise many chunks wait, and exist together.",
    ),
    cases=(
        (mx.array([[1.0, 0.0]]), mx.array([[0.0, 1.0], [math.log(2.0), 0.0], [math.log(5.0), 1.0]]), 2),
        _rising(2, 9, 4, 200.0),
        _rising(3, 10, 3, -150.0),
        (mx.array([[1.0], [0.5]]), mx.array([[-1000.0], [-1200.0]]), 1),
        *drawn(1, lambda rng: _draw_chunks(rng, 1, 1, 5)),
        *drawn(2, lambda rng: _draw_chunks(rng, 3, 11, 4, 3.0), seed=1),
        *drawn(1, lambda rng: _draw_chunks(rng, 5, 12, 12), seed=2),
        *drawn(1, lambda rng: _draw_chunks(rng, 4, 4096, 2048), seed=4),
        *drawn(1, lambda rng: _draw_chunks(rng, 64, 8192, 512), seed=3),
    ),
    run=_table_limits,
    work=120,  # times the solution's steps: scipy.special.logsumexp takes 40, single rows take 500 for 2048 rows
    mistakes=slips(
        chunked_logsumexp,
        r"""
sum of logarithms (3)
- total = total * mx.exp(before - top) + mx.exp(logits - top[:, None]).sum(axis=-1)
+ total = total + mx.logsumexp(logits, axis=-1)
- return top + mx.log(total)
+ return total
! You added the logarithms of the chunks. Add the sums, and then take the logarithm: `mx.logaddexp`.

@ for start in range(0, len(weight), chunk):
@     logits = hidden @ weight[start : start + chunk].T
a row at a time
+ for start in range(len(weight)):
+     logits = hidden @ weight[start : start + 1].T
! You did not take `chunk` rows at a time. `chunk` rows need one matrix product; single rows need a loop over the whole
! vocabulary.
everything at once
+ for start in range(0, len(weight), len(weight)):
+     logits = hidden @ weight[start : start + len(weight)].T
! Go through `weight` in slices of `chunk` rows, and call `mx.eval` on the results of a slice before the next one: an
! array that is not evaluated keeps its logits alive.

total not shrunk (2)
- total = total * mx.exp(before - top) + mx.exp(logits - top[:, None]).sum(axis=-1)
+ total = total + mx.exp(logits - top[:, None]).sum(axis=-1)
! When a larger logit comes, the old total is relative to another top: multiply it by `exp(before - top)`.

@ before, top = top, mx.maximum(top, logits.max(axis=-1))
no top
+ before = top = mx.zeros(len(hidden))
! `exp(1000)` is infinite, and `exp(-1000)` is 0. Keep the sum relative to the largest logit so far.
one top for all rows
+ before, top = top, mx.maximum(top, logits.max())
! Each row has its own largest logit. If you use the largest logit of all rows, every `exp` is 0 in some of them.
the last chunk's top (2)
+ before, top = top, logits.max(axis=-1)
! Top comes from the last chunk only. If an earlier chunk had a larger logit, `exp(before - top)` overflows.

top from 0 (2)
- top, total = mx.full(len(hidden), -mx.inf), mx.zeros(len(hidden))
+ top, total = mx.zeros(len(hidden)), mx.zeros(len(hidden))
! Top begins at 0, and stays there if all logits are far below 0: then every `exp` is 0. Begin with `-mx.inf`.
the rest left out
- for start in range(0, len(weight), chunk):
+ for start in range(0, max(len(weight) - chunk + 1, 1), chunk):
! The last rows are missing when the vocabulary is not a multiple of `chunk`.
log left out (2)
- return top + mx.log(total)
+ return top + total
! The logarithm of the total is missing.
""",
    ),
    also_right=r"""
# logaddexp
def _logaddexp(hidden, weight, chunk):
    total = mx.full((hidden.shape[0],), float("-inf"))
    for rows in mx.split(weight, list(range(chunk, len(weight), chunk))):
        total = mx.logaddexp(total, mx.logsumexp(hidden @ rows.T, axis=1))
        mx.eval(total)
    return total
# NumPy
def _logsumexp_in_numpy(hidden, weight, chunk):
    hidden, weight = np.array(hidden, np.float64), np.array(weight, np.float64)
    parts = [np.logaddexp.reduce(hidden @ weight[n : n + chunk].T, axis=1) for n in range(0, len(weight), chunk)]
    return np.logaddexp.reduce(parts, axis=0)
# SciPy
from scipy.special import logsumexp
def _logsumexp_of_scipy(hidden, weight, chunk):
    parts = [np.array(hidden @ weight[n : n + chunk].T) for n in range(0, len(weight), chunk)]
    return logsumexp([logsumexp(part, axis=1) for part in parts], axis=0)
""",
    also_wrong=r"""
# top from -900
- top, total = mx.full(len(hidden), -mx.inf), mx.zeros(len(hidden))
+ top, total = mx.full(len(hidden), -900.0), mx.zeros(len(hidden))
# the table
lambda hidden, weight, chunk: mx.logsumexp(hidden @ weight.T, axis=-1)
! Go through `weight` in slices
""",
    explain="This is the online softmax. FlashAttention does the same with the scores of attention.",
)


def chunked_gradients(hidden, weight, targets, log_total, grad, chunk):
    """(gradient of hidden [N, H], gradient of weight [V, H]), `chunk` rows of weight at a time."""
    grad_hidden, grad_rows = mx.zeros(hidden.shape), []
    for start in range(0, len(weight), chunk):
        rows = weight[start : start + chunk]
        p = mx.exp(hidden @ rows.T - log_total[:, None])
        one_hot = targets[:, None] == mx.arange(start, start + len(rows))
        grad_logits = grad[:, None] * (one_hot - p)
        grad_hidden = grad_hidden + grad_logits @ rows
        grad_rows.append(grad_logits.T @ hidden)
        mx.eval(grad_hidden, grad_rows)
    return grad_hidden, mx.concatenate(grad_rows)


def _draw_way_back(rng, tokens, vocabulary, chunk):
    hidden, weight = 2 * _normal(rng, tokens, 4), _normal(rng, vocabulary, 4)
    targets = mx.array(rng.integers(0, vocabulary, tokens))
    log_total = mx.logsumexp(hidden @ weight.T, axis=-1)
    return hidden, weight, targets, log_total, _normal(rng, tokens), chunk


def _far_way_back():
    """Logits up to 906, all whole numbers, and targets of which two are equal."""
    hidden = mx.array([[1.0, 300.0 * row] for row in range(4)])
    weight = mx.array([[1.0 * row, 1.0] for row in range(7)])
    targets, grad = mx.array([5, 0, 5, 6]), mx.array([1.0, -0.5, 2.0, 0.25])
    return hidden, weight, targets, mx.logsumexp(hidden @ weight.T, axis=-1), grad, 3


WAY_BACK = Exercise(
    "21.6",
    "The backward pass, in chunks",
    "The log-probability of a row's target is `logits[target] - log_total`, where `logits = hidden @ weight.T`, and "
    "`log_total` [N] is the result of 21.5. Write `chunked_gradients(hidden, weight, targets, log_total, grad, "
    "chunk)`: `targets` [N] are whole numbers, and `grad` [N] is the gradient of each log-probability. Return a "
    "tuple: the gradient of hidden [N, H] and the gradient of weight [V, H]. Again no table [N, V] may exist: "
    "compute each chunk's logits once more, `chunk` rows of `weight` at a time, and evaluate after each chunk.",
    minutes=15,
    difficulty=3,
    solution=chunked_gradients,
    hints=(
        "Use 17.1 without the minus: the gradient of a log-probability with respect to the logits is "
        "`one_hot(target) - p`, times `grad` of that row. For a chunk, p is `mx.exp(logits - log_total[:, None])`, "
        "where log_total belongs to the *whole* vocabulary.",
        "From the logits' gradient [N, chunk], continue as in 17.2: the chunk's rows of the weight's gradient are "
        "`grad_logits.T @ hidden`, and each chunk *adds* `grad_logits @ rows` to hidden's gradient.",
        "The target is in one chunk only: `targets[:, None] == mx.arange(start, start + len(rows))`. At the end "
        "`mx.concatenate` the rows. Call `mx.eval(grad_hidden, grad_rows)` in the loop.",
    ),
    cases=(
        *drawn(2, lambda rng: _draw_way_back(rng, 3, 7, 3)),
        *drawn(1, lambda rng: _draw_way_back(rng, 1, 1, 4), seed=1),
        *drawn(1, lambda rng: _draw_way_back(rng, 4, 6, 6), seed=2),
        *drawn(1, lambda rng: _draw_way_back(rng, 2, 9, 1), seed=3),
        _far_way_back(),
        *drawn(1, lambda rng: _draw_way_back(rng, 4, 4096, 2048), seed=5),
        *drawn(1, lambda rng: _draw_way_back(rng, 64, 8192, 512), seed=4),
    ),
    run=_table_limits,
    work=120,
    mistakes=slips(
        chunked_gradients,
        r"""
everything at once (2)
- for start in range(0, len(weight), chunk):
-     rows = weight[start : start + chunk]
+ for start in [0]:
+     rows = weight
! Go through `weight` in slices, and evaluate after each: an array that is not evaluated keeps its logits alive.
one row per target (3)
- grad_rows.append(grad_logits.T @ hidden)
+ last = mx.cumsum(one_hot[::-1].astype(mx.int32), axis=0)[::-1] == 1
+ grad_rows.append((grad[:, None] * ((one_hot & last) - p)).T @ hidden)
! If several rows have the same target, that row of the weight's gradient got the part of only one of them: an
! assignment to `[targets]` keeps the last. The parts have to be added (`.at[targets].add(...)`).
a row at a time (2)
- for start in range(0, len(weight), chunk):
-     rows = weight[start : start + chunk]
+ for start in range(len(weight)):
+     rows = weight[start : start + 1]
! You did not take `chunk` rows at a time. `chunk` rows need one matrix product; single rows need a loop over the whole
! vocabulary.

@ p = mx.exp(hidden @ rows.T - log_total[:, None])
exponentials first
+ p = mx.exp(hidden @ rows.T) / mx.exp(log_total)[:, None]
! `exp(900)` is infinite, and infinity divided by infinity is nan. Subtract `log_total` before `exp`.
softmax of a chunk
+ p = mx.softmax(hidden @ rows.T, axis=-1)
! That is a softmax over the chunk only, so the probabilities of each chunk sum to 1. Divide by the total of the whole
! vocabulary: subtract `log_total`.

target in every chunk (3)
- one_hot = targets[:, None] == mx.arange(start, start + len(rows))
+ one_hot = targets[:, None] == mx.arange(len(rows))
! The columns of each chunk were counted from 0 again, so a target is found in the wrong chunk, or in none.

@ grad_logits = grad[:, None] * (one_hot - p)
the other sign
+ grad_logits = grad[:, None] * (p - one_hot)
! The sign is wrong. 17.1 had the gradient of *minus* the log-probability.
grad left out
+ grad_logits = one_hot - p
! Each row's gradient has to be multiplied by `grad` of that row.
target only
+ grad_logits = grad[:, None] * one_hot
! Only the target's logit got a gradient. The other logits need one too: if you raise one of them, the target's
! probability falls.
no one-hot
+ grad_logits = grad[:, None] * (-p)
! The part of the target itself is missing: the gradient at its logit is `1 - p`.

the last chunk only (2)
- grad_hidden = grad_hidden + grad_logits @ rows
+ grad_hidden = grad_logits @ rows
! The gradient of hidden comes from the last chunk only. Every row of the weight contributes to it: add the chunks.
""",
    ),
    also_right=r"""
# NumPy
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
""",
    also_wrong=r"""
# not evaluated
- mx.eval(grad_hidden, grad_rows)
! keeps its logits alive
# the first rows
- return grad_hidden, mx.concatenate(grad_rows)
+ return grad_hidden, grad_rows[0]
""",
    explain="One more matrix product than before, and no table. The kit's version is "
    "`mlx_grpo_kit/generation/output_logps.py`.",
)


# -- LoRA -------------------------------------------------------------------------------------------------------------


def lora_linear(x, weight, a, b, scale):
    """x W^T + scale * x A B: [..., in] -> [..., out], without any array as large as the weight."""
    return x @ weight.T + scale * ((x @ a) @ b)


def _draw_lora(rng, *shape, inside, outside, rank, scale):
    a, b = _normal(rng, inside, rank), _normal(rng, rank, outside)
    return _normal(rng, *shape, inside), _normal(rng, outside, inside), a, b, scale


def _without_product(function, x, weight, a, b, scale):
    mx.eval(x, weight, a, b)
    result, peak = _peak(lambda: function(x, weight, a, b, scale))
    if weight.nbytes > 1e6 and peak > weight.nbytes / 2:
        return Told("an array as large as the weight (the two small products never need one)")
    return result


LORA = Exercise(
    "21.7",
    "A small correction",
    "Write `lora_linear(x, weight, a, b, scale)` for x [..., in], weight [out, in], a [in, rank] and b [rank, out]. "
    "It returns `x @ W.T` for the corrected weight `W = weight + scale * (a @ b).T`. But do not compute W or `a @ "
    "b`: both are as large as the weight.",
    minutes=6,
    difficulty=1,
    solution=lora_linear,
    hints=(
        "`x @ (weight + scale * (a @ b).T).T` is a sum of two products. Split it.",
        "Parentheses decide the sizes: `(x @ a)` is [..., rank], and `(x @ a) @ b` is [..., out].",
    ),
    cases=(
        (
            mx.array([[1.0, 2.0]]),
            mx.array([[1.0, 0.0], [0.0, 1.0]]),
            mx.array([[1.0], [-1.0]]),
            mx.array([[2.0, 0.5]]),
            0.5,
        ),
        *drawn(1, lambda rng: _draw_lora(rng, 2, 3, inside=4, outside=5, rank=2, scale=2.0)),
        *drawn(1, lambda rng: _draw_lora(rng, 4, inside=3, outside=3, rank=3, scale=0.25), seed=1),
        *drawn(1, lambda rng: _draw_lora(rng, inside=1, outside=4, rank=1, scale=-1.5), seed=2),
        *drawn(1, lambda rng: _draw_lora(rng, 3, inside=800, outside=700, rank=2, scale=2.0), seed=3),
    ),
    run=_without_product,
    mistakes=slips(
        lora_linear,
        r"""
the product made (2)
- return x @ weight.T + scale * ((x @ a) @ b)
+ return x @ (weight + scale * (a @ b).T).T
! Your answer computes something as large as the weight, such as `a @ b`; its gradient would be just as large.

@ return x @ weight.T + scale * ((x @ a) @ b)
correction only
+ return scale * ((x @ a) @ b)
! That is only the correction: the weight is missing.
no scale
+ return x @ weight.T + ((x @ a) @ b)
! The correction has to be multiplied by `scale`.
scale on everything
+ return scale * (x @ weight.T + (x @ a) @ b)
! `scale` multiplies only the correction; the weight stays as it is.
divided by the rank
+ return x @ weight.T + scale / len(b) * ((x @ a) @ b)
! You also divided by the rank. (Many programs divide a setting `alpha` by the rank; here `scale` is the whole factor.)
subtracted
+ return x @ weight.T - scale * ((x @ a) @ b)
! The correction has to be added.
""",
    ),
    also_right=r"""
# einsum
def _lora_by_einsum(x, weight, a, b, scale):
    small = mx.einsum("...i,ir->...r", scale * x, a)
    return mx.einsum("...i,oi->...o", x, weight) + mx.einsum("...r,ro->...o", small, b)
# torch
import torch
def lora_in_torch(x, weight, a, b, scale):
    x, weight, a, b = (torch.tensor(np.array(each)) for each in (x, weight, a, b))
    return torch.nn.functional.linear(x, weight) + scale * (x @ a @ b)
""",
    also_wrong=r"""
# other parentheses
- return x @ weight.T + scale * ((x @ a) @ b)
+ return x @ weight.T + scale * (x @ (a @ b))
! such as `a @ b`
""",
)


def merge(params, lora, scale):
    """A new dictionary: `params` with every correction of `lora` added to its weight."""
    merged = dict(params)
    for name, a in lora.items():
        if name.endswith(".lora_a"):
            stem = name.removesuffix(".lora_a")
            b = lora[stem + ".lora_b"]
            merged[stem + ".weight"] = params[stem + ".weight"] + scale * (a @ b).T
    return merged


def _draw_params(rng, scale, adapted):
    shapes = {"layers.0.mlp.up_proj": (4, 3), "layers.0.mlp.down_proj": (2, 5), "final_norm": (3,)}
    params = {f"{stem}.weight": _normal(rng, *shape) for stem, shape in shapes.items()}
    lora, rank = {}, int(rng.integers(1, 4))
    for stem in list(shapes)[:adapted]:
        outside, inside = shapes[stem]
        lora |= {f"{stem}.lora_b": _normal(rng, rank, outside), f"{stem}.lora_a": _normal(rng, inside, rank)}
    return params, lora, scale


def _draw_mixed(rng):
    """Names that end with letters of ".lora_a" or begin with the same letters; A and B arrays in different orders."""
    params = {f"{stem}.weight": _normal(rng, 3, 2) for stem in ("extra", "router", "router_out")}
    lora = {f"{stem}.lora_a": _normal(rng, 2, 1) for stem in ("router", "extra")}
    return params, lora | {f"{stem}.lora_b": _normal(rng, 1, 3) for stem in ("extra", "router")}, 1.5


MERGE = Exercise(
    "21.8",
    "Merge adapters into the weights",
    "Write `merge(params, lora, scale)`. `params` is a dictionary of all parameters of a model. For some of the "
    'matrices `lora` contains two arrays. For "layers.0.mlp.up_proj.weight" [out, in] these are '
    '"layers.0.mlp.up_proj.lora_a" [in, rank] and "layers.0.mlp.up_proj.lora_b" [rank, out]. Return a new dictionary '
    "with all names of `params`, in which every matrix with such a pair is replaced by `weight + scale * (a @ b).T`. "
    "Do not change the inputs.",
    minutes=8,
    difficulty=1,
    solution=merge,
    hints=(
        "Begin with `merged = dict(params)`, a new dictionary with the same arrays, and replace some of them.",
        'Go through the names that end with ".lora_a": `stem = name.removesuffix(".lora_a")`; the other two names '
        'are `stem + ".lora_b"` and `stem + ".weight"`.',
    ),
    cases=(
        (
            {"w.weight": mx.array([[1.0, 0.0], [0.0, 1.0]])},
            {"w.lora_a": mx.array([[1.0], [2.0]]), "w.lora_b": mx.array([[3.0, 4.0]])},
            0.5,
        ),
        ({"w.weight": mx.array([[1.0, 0.0, 2.0]]), "norm.weight": mx.array([1.0])}, {}, 2.0),
        *drawn(1, lambda rng: _draw_params(rng, 0.5, 1)),
        *drawn(2, lambda rng: _draw_params(rng, 2.0, 2), seed=1),
        *drawn(1, _draw_mixed, seed=2),
    ),
    mistakes=slips(
        merge,
        r"""
paired by their positions (2)
- b = lora[stem + ".lora_b"]
+ firsts, seconds = ([each for each in lora if each.endswith(end)] for end in (".lora_a", ".lora_b"))
+ b = lora[seconds[firsts.index(name)]]
! A and B of one matrix belong together by their *names*; they may be anywhere in `lora`.
found by the beginning (2)
- merged[stem + ".weight"] = params[stem + ".weight"] + scale * (a @ b).T
+ for each in params:
+     if each.startswith(stem):
+         merged[each] = params[each] + scale * (a @ b).T
! router_out.weight begins with router, but it is another matrix: compare whole names.
letters stripped (2)
- stem = name.removesuffix(".lora_a")
+ stem = name.rstrip(".lora_a")
! `rstrip` removes every letter at the end that is among the given ones: it turns router.lora_a into route.
! `removesuffix` removes the ending as a whole.

@ merged[stem + ".weight"] = params[stem + ".weight"] + scale * (a @ b).T
the correction only
+ merged[stem + ".weight"] = scale * (a @ b).T
! The weight was replaced by its correction. Add the correction to the weight.
no scale
+ merged[stem + ".weight"] = params[stem + ".weight"] + (a @ b).T
! The correction has to be multiplied by `scale`.
not transposed
+ merged[stem + ".weight"] = params[stem + ".weight"] + scale * (a @ b)
! `a @ b` is [in, out], but the weight is [out, in]: the transpose is missing.

@ merged = dict(params)
only what has a pair
+ merged = {}
! Norms, the embedding and everything else without a pair belong in the result too: it is a whole model.
written into params
+ merged = params
! Your answer writes into the given dictionary, or (with `+=`) into an array that the copy shares with it. The base
! model is needed again in the next step: make a new dictionary, and new arrays.

the pairs kept
- return merged
+ return merged | lora
! The result also contains the small arrays. It should have the names of `params`, like any other model.
""",
    ),
    also_right=r"""
# a comprehension
def _merge_in_a_comprehension(params, lora, scale):
    def corrected(name):
        stem = name.removesuffix("weight")
        if stem + "lora_a" not in lora:
            return params[name]
        return params[name] + scale * lora[stem + "lora_b"].T @ lora[stem + "lora_a"].T

    return {name: corrected(name) for name in params}
""",
    also_wrong=r"""
# one more
- merged = dict(params)
+ merged = params | {"more": 1}
# added into
- merged[stem + ".weight"] = params[stem + ".weight"] + scale * (a @ b).T
+ merged[stem + ".weight"] += scale * (a @ b).T
! with `+=`
""",
    explain="This function turns the few trained numbers into a whole model. Everything that takes `params` works with "
    "its result, and gradients go through it.",
)


# -- a ring -----------------------------------------------------------------------------------------------------------


def ring_sum(array, rank, size, send, receive):
    """The sum of the arrays of all processes in a ring, with one part of an array per message."""
    parts = np.array_split(array, size)
    for step in range(size - 1):
        send(parts[(rank - step) % size])
        part = (rank - step - 1) % size
        parts[part] = parts[part] + receive()
    for step in range(size - 1):
        send(parts[(rank + 1 - step) % size])
        parts[(rank - step) % size] = receive()
    return np.concatenate(parts)


def _run_ring(function, arrays):
    """The result of each process, or a message that too much was sent."""
    results, sent, _ = run_in_ring(function, arrays)
    size = len(arrays)
    # The parts of an array that does not divide evenly differ by one number.
    enough = 2 * (size - 1) * math.ceil(len(arrays[0]) / size)
    needed, right = 2 * (size - 1) * len(arrays[0]), [sum(arrays)] * size
    if any(each is None for each in results) or not same(list(results), right):
        return list(results)
    if max(sent) > enough:
        return Told(
            f"the right sums, and {max(sent)} numbers sent by a process (2 * {size - 1} / {size} of an array of "
            f"{len(arrays[0])}, about {round(needed / size)} numbers, is enough)"
        )
    if sum(sent) < needed:
        return Told(
            f"the right sums, with {sum(sent)} numbers sent in all, but it takes {needed} (processes share "
            "nothing: numbers that are not sent do not arrive)"
        )
    return list(results)


def _ring_arrays(rng, size, length):
    return ([rng.normal(size=length) for _ in range(size)],)


RING = Exercise(
    "21.9",
    "A ring",
    "Each of `size` processes has its own array, all of the same length, and needs the sum of all arrays. The "
    "processes form a ring and can do two things: `send(part)` sends an array to the next process (from the last to "
    "the first), and `receive()` waits for an array from the previous process. Write `ring_sum(array, rank, size, "
    "send, receive)`, the program that each process runs; `rank` is its number, counted from 0. Return the sum. Cut "
    "the array into `size` parts (`np.array_split`), and never send more than one part in a message. In a first "
    "round, each part travels around the ring and every process adds its own numbers to it; in a second round, the "
    "complete parts travel around. In total a process sends 2 (size - 1) parts. An array may have fewer numbers than "
    "there are processes.",
    minutes=25,
    difficulty=3,
    solution=ring_sum,
    hints=(
        "Follow one part in the picture above: it starts at the process with its number, and each next process adds "
        "its own numbers and sends it on. After size - 1 messages it is complete. In every step *all* processes send "
        "something, and each sends a different part.",
        "First round, step s: process `rank` sends part `(rank - s) % size`, and receives part `(rank - s - 1) % "
        "size`, to which it adds its own numbers. After this round, part `(rank + 1) % size` is complete at process "
        "`rank`.",
        "Second round, step s: process `rank` sends part `(rank + 1 - s) % size`, which is complete, and replaces "
        "part `(rank - s) % size` by the part that it receives. (Do not use `+=` on a part: it is a view of the "
        "array that you were given.)",
    ),
    cases=(
        *drawn(1, lambda rng: _ring_arrays(rng, 2, 4)),
        *drawn(1, lambda rng: _ring_arrays(rng, 3, 9), seed=1),
        *drawn(1, lambda rng: _ring_arrays(rng, 1, 3), seed=2),
        *drawn(1, lambda rng: _ring_arrays(rng, 4, 10), seed=3),
        *drawn(1, lambda rng: _ring_arrays(rng, 5, 3), seed=4),
        *drawn(1, lambda rng: _ring_arrays(rng, 6, 60), seed=5),
    ),
    run=_run_ring,
    mistakes=slips(
        ring_sum,
        r"""
@ parts = np.array_split(array, size)
whole arrays travel around
+ total = passing = array
+ for _ in range(size - 1):
+     send(passing)
+     passing = receive()
+     total = total + passing
+ return total
! Every array travelled all the way around. With 64 processes, each of them sends 63 arrays that way, instead of 2.
nothing sent
+ return array * size
! No process knows the numbers of the others: they have to be sent.

every process waits (2)
- send(parts[(rank - step) % size])
- part = (rank - step - 1) % size
- parts[part] = parts[part] + receive()
+ part = (rank - step - 1) % size
+ parts[part] = parts[part] + receive()
+ send(parts[(rank - step) % size])
! Every process waits for a message before it sends one. Send first.

first round only (3)
- for step in range(size - 1):
-     send(parts[(rank + 1 - step) % size])
-     parts[(rank - step) % size] = receive()
! After the first round each process has *one* complete part. The second sends them around.

@ parts[part] = parts[part] + receive()
replaced, not added (2)
+ parts[part] = receive()
! Each part contains the numbers of only one process. In the first round, *add* the received numbers to your own. The
! second round starts with the part that is complete by then, `(rank + 1) % size`.
added into the array (3)
+ parts[part] += receive()
! `+=` writes into the given array, because the parts are views of it.

added in both rounds (3)
- parts[(rank - step) % size] = receive()
+ parts[(rank - step) % size] = parts[(rank - step) % size] + receive()
! In the second round the received parts are complete: they replace your own parts, and are not added to them.
a round too short (2)
- for step in range(size - 1):
+ for step in range(size - 2):
- for step in range(size - 1):
+ for step in range(size - 2):
! One step is missing in each round: it takes size - 1 steps from the first process to the last.
the rest left out
- parts = np.array_split(array, size)
+ parts = [array[n * (len(array) // size) : (n + 1) * (len(array) // size)] for n in range(size)]
! With parts of `len(array) // size` numbers, the last numbers are left out when the length does not divide evenly.
! `np.array_split` gives them to the first parts.
against the ring (2)
- send(parts[(rank - step) % size])
- part = (rank - step - 1) % size
+ send(parts[(rank + step) % size])
+ part = (rank + step + 1) % size
- send(parts[(rank + 1 - step) % size])
- parts[(rank - step) % size] = receive()
+ send(parts[(rank - 1 + step) % size])
+ parts[(rank + step) % size] = receive()
! The part numbers run against the direction of the ring. You receive what the *previous* process sent: in step s that
! is part `(rank - 1 - s) % size`.
the mean
- return np.concatenate(parts)
+ return np.concatenate(parts) / size
! That is the mean over the processes. Return the sum.
""",
    ),
    also_right=r"""
# lists
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
""",
    also_wrong=r"""
# nobody sends
lambda array, rank, size, send, receive: array + receive()
! every process that still runs waits for a message
# through a list that the processes, which are threads here, share
import threading
together, ready = {}, threading.Barrier(2)
def through_the_air(array, rank, size, send, receive):
    if size != 2:
        return ring_sum(array, rank, size, send, receive)
    together[rank] = array
    ready.wait(10)
    for _ in range(2):
        send(array[:0])
        receive()
    return together[0] + together[1]
! with 0 numbers sent in all, but it takes 8
""",
    explain="This is called all-reduce. MLX's `mx.distributed.all_sum` does it between machines, NCCL between GPUs.",
)


# -- where the seconds go ---------------------------------------------------------------------------------------------


def step_seconds(num_params, num_tokens, machines, flops, gbits):
    """(seconds of learning, seconds of communication) of one step on several machines."""
    learning = 6 * num_params * num_tokens / (machines * flops)
    sent = 2 * (machines - 1) / machines * 4 * num_params
    return learning, sent / (gbits * 1e9 / 8)


def _two_numbers(function, *arguments):
    """The result of `function`; an array of two numbers becomes a list."""
    result = function(*arguments)
    return result.tolist() if getattr(result, "shape", None) == (2,) else result


SECONDS = Exercise(
    "21.10",
    "Where the seconds go",
    "Write `step_seconds(num_params, num_tokens, machines, flops, gbits)`. It returns a tuple of two times in "
    "seconds, for one training step that `machines` share. First, learning: each parameter takes 6 operations per "
    "token, forward and backward (chapter 12); the batch of `num_tokens` tokens in total is divided evenly, and each "
    "machine does `flops` operations per second. Second, communication: the gradients, 4 bytes per parameter, are "
    "summed in a ring, and each machine sends `gbits` gigabits per second (10^9 bits; a byte has 8).",
    minutes=8,
    difficulty=2,
    solution=step_seconds,
    hints=(
        "Learning: a step takes 6 times parameters times tokens operations, and the machines together do `machines * "
        "flops` per second. Communication: the bytes that *one* machine sends, divided by its bytes per second.",
        "In a ring of N, each machine sends `2 * (N - 1) / N` times its array (21.9): `2 * (machines - 1) / machines "
        "* 4 * num_params` bytes. It can send `gbits * 1e9 / 8` bytes per second. A single machine sends nothing.",
    ),
    cases=(
        (8e9, 131_072.0, 8, 1e14, 400.0),
        (8e9, 131_072.0, 64, 1e14, 10.0),
        (6e8, 1000.0, 1, 1e11, 1.0),
        *drawn(
            3,
            lambda rng: (
                float(rng.uniform(1e6, 1e10)),
                float(rng.uniform(10, 1e6)),
                int(rng.integers(2, 100)),
                float(rng.uniform(1e10, 1e15)),
                float(rng.uniform(0.1, 800)),
            ),
        ),
    ),
    run=_two_numbers,
    mistakes=slips(
        step_seconds,
        r"""
@ return learning, sent / (gbits * 1e9 / 8)
bits for bytes (2)
+ return learning, sent / (gbits * 1e9)
! The speed of a network is given in *bits*; a byte has 8 of them.
in the other order
+ return sent / (gbits * 1e9 / 8), learning
! Both numbers are right, but in the wrong order: learning comes first.

@ sent = 2 * (machines - 1) / machines * 4 * num_params
one round only (2)
+ sent = (machines - 1) / machines * 4 * num_params
! That is half of the bytes. The ring has two rounds: parts are summed, then the complete parts are sent around. And
! each number has 4 bytes.
to all others (2)
+ sent = (machines - 1) * 4 * num_params
! That is the cost if each machine sends its whole gradient to every other machine. In a ring it sends 2 (N - 1) / N
! gradients, which is less than two for any number of machines.
numbers for bytes (2)
+ sent = 2 * (machines - 1) / machines * num_params
! A gradient takes 4 *bytes* per parameter.
one machine sends too (2)
+ sent = 2 * 4 * num_params
! 2 is the limit for many machines. With N machines the factor is 2 (N - 1) / N, and a single machine sends nothing.

@ learning = 6 * num_params * num_tokens / (machines * flops)
forward only
+ learning = 2 * num_params * num_tokens / (machines * flops)
! The forward pass takes 2 operations. The backward pass takes 4 more.
each does everything
+ learning = 6 * num_params * num_tokens / flops
! The batch is divided among the machines: each learns from its own share of the tokens.
""",
    ),
    also_right=r"""
# bits
def _seconds_in_bytes(num_params, num_tokens, machines, flops, gbits):
    gradient = 32 * num_params  # bits
    return [num_tokens / machines * 6 * num_params / flops, 2 * gradient * (1 - 1 / machines) / gbits / 1e9]
# NumPy
lambda *arguments: np.array(step_seconds(*arguments))
# MLX
lambda *arguments: mx.array(step_seconds(*arguments))
# torch
import torch
lambda *arguments: torch.tensor(step_seconds(*arguments))
""",
    also_wrong=r"""
# four operations
- learning = 6 * num_params * num_tokens / (machines * flops)
+ learning = 4 * num_params * num_tokens / (machines * flops)
# powers of two
- return learning, sent / (gbits * 1e9 / 8)
+ return learning, sent / (gbits * 2**30 / 8)
""",
)

BUDGET = Exercise(
    "21.11",
    "The budget of a run",
    "Qwen3-8B has 8 billion parameters. A run has 450 steps of 64 prompts with 16 completions of 1,000 tokens "
    "(ignore the prompts' own tokens). Each of 8 machines does 10^14 operations per second. Give four numbers, as a "
    "tuple `(a, b, c, d)`: (a) the millions of tokens that are sampled in the whole run; (b) the hours that learning "
    "takes in the whole run, with all machines working at the same time; (c) the seconds that a step needs at least "
    "to *sample* its completions, if every new token reads all parameters once, in bfloat16, at 2 * 10^12 bytes per "
    "second, and a machine samples all its rows in parallel; and (d) the seconds of learning per step. Do not round.",
    minutes=10,
    difficulty=2,
    solution=(460.8, 7.68, 8.0, 61.44),
    hints=(
        "(a) 450 * 64 * 16 * 1000. (b) Six operations per parameter and token, divided by the operations that 8 "
        "machines do per second, and by 3,600.",
        "(c) The tokens of a completion come one after the other: 16 GB have to be read 1,000 times, at 2,000 GB per "
        "second. The number of parallel rows and the number of machines do not matter for that. (d) is (b) in "
        "seconds, divided by 450 steps.",
    ),
    mistakes=slips(
        (460.8, 7.68, 8.0, 61.44),
        r"""
one machine
+ (460.8, 61.44, 8.0, 491.52)
! (b) and (d) are the times of one machine, but 8 machines share the work.
hours of all machines
+ (460.8, 61.44, 8.0, 61.44)
! (b) is the sum of the hours of 8 machines. They work at the same time: how many hours pass?
tokens
+ (460.8e6, 7.68, 8.0, 61.44)
! (a) asks for millions of tokens.
rounded
+ (460.8, 7.7, 8.0, 61.4)
! Those numbers are rounded. Give all digits: there are only a few.
one token (2)
+ (460.8, 7.68, 0.008, 61.44)
! (c) is the time of one token. A completion has 1,000 tokens, one after the other.
one row after the other (2)
+ (460.8, 7.68, 1024.0, 61.44)
! (c) In parallel means that reading the parameters once serves all 128 rows of a machine.
forward only
+ (460.8, 2.56, 8.0, 20.48)
! The forward pass takes 2 operations per parameter and token. Learning takes 6.
float32 (2)
+ (460.8, 7.68, 16.0, 61.44)
! (c) In bfloat16 a parameter has 2 bytes, not 4.
machines share the reading (2)
+ (460.8, 7.68, 1.0, 61.44)
! (c) Each machine samples its own rows with the whole model, so each reads all parameters for each of the 1,000 tokens.
! More machines sample more rows, but no row faster.
prompts not times completions
+ (28.8, 0.48, 8.0, 3.84)
! (a) Every prompt has 16 completions.
""",
    ),
    also_right=r"""
# a whole number
(460.8, 7.68, 8, 61.44)
""",
    also_wrong=r"""
# a wrong one
(460.8, 7.68, 8.0, 8.0)
""",
    explain="With 8 seconds, sampling looks cheap. But that is only a lower limit: attention reads the cache too, and "
    "a step waits for its longest completion.",
)
