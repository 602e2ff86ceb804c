"""Exercises of notebook 07: digits, in lockstep with torch."""

import itertools
import math

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.compare import Told, show
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.tensor import nn, optim

SHRUG = Exercise(
    "07.1",
    "The loss of a shrug",
    "A network that knows nothing gives each of the ten digits the same probability. What is its cross-entropy, "
    "`-log(probability of the right digit)`? Write it as a Python expression with `math.log`, so that you lose no "
    "digits.",
    minutes=3,
    difficulty=1,
    solution=math.log(10),
    hints=("Ten equal probabilities that sum to 1: each is 1/10.", "`-math.log(1 / 10)`, which is `math.log(10)`."),
    mistakes=(
        *slips(
            math.log(10),
            r"""
rounded (2)
+ 2.3
! That is the right number, rounded. Leave the digits to the machine: write the expression.
less (2)
+ 2.303
! That is the right number, rounded. Leave the digits to the machine: write the expression itself.
probability (2)
+ 0.1
! That is the probability. The loss is minus its logarithm.
base ten (2)
+ 1.0
! That is the logarithm to base 10. `math.log` is the natural logarithm, to base e.
""",
        ),
        Mistake(
            "no minus", -math.log(10), "The logarithm of a probability is negative, so the loss has a minus sign.", 2
        ),
        Mistake(
            "base two",
            math.log2(10),
            "That is the logarithm to base 2. `math.log` is the natural logarithm, to base e.",
            2,
        ),
    ),
    explain="If the loss of a fresh network is not close to this, something is wrong before training has begun.",
    also_right=r"""
import numpy as np

# by NumPy
-np.log(0.1)
""",
)


def cross_entropy(logits, targets):
    """The mean of -log(probability of the target). logits: Tensor [N, C], targets: N integers."""
    right = logits[np.arange(len(targets)), targets]
    return T.mean(T.logsumexp(logits, axis=1) - right)


def _all_log_probabilities_first(logits, targets):
    """The same loss in the form that most people write first."""
    log_probs = logits - T.logsumexp(logits, axis=1, keepdims=True)
    return -T.mean(log_probs[np.arange(len(targets)), targets])


def _loss_and_gradient(function, logits, targets):
    logits = T.Tensor(logits, requires_grad=True)
    loss = function(logits, np.array(targets))
    if not isinstance(loss, T.Tensor):
        return loss if loss is None else Told(f"{show(loss)}, which is not a Tensor")
    if loss.requires_grad:
        T.sum(loss).backward()
    return {"loss": loss.data.tolist(), "gradient": None if logits.grad is None else logits.grad.tolist()}


CROSS_ENTROPY = Exercise(
    "07.2",
    "Surprise, from scores",
    "Write `cross_entropy(logits, targets)` with the operations that you have: `logits` is a Tensor of shape `[N, "
    "C]`, and `targets` an array of N integers. The log-probability of a class is its score minus `T.logsumexp` of "
    "its row. Take the log-probability of the target from each row, and return minus their mean, a Tensor. You need "
    "not write a gradient: it comes with the operations.",
    minutes=8,
    difficulty=2,
    solution=cross_entropy,
    hints=(
        "The loss of one example is `logsumexp of the row - score of the target`. `T.logsumexp(logits, axis=1)` has "
        "the shape `[N]`; now you need the N scores of the targets.",
        "To take one element from each row, index with row numbers and column numbers: "
        "`logits[np.arange(len(targets)), targets]`.",
        "`return T.mean(T.logsumexp(logits, axis=1) - logits[np.arange(len(targets)), targets])`",
    ),
    cases=(
        ([[2.0, 0.0, -1.0], [0.5, 0.5, 0.0]], [0, 2]),
        ([[0.0, 0.0, 0.0, 0.0]], [3]),
        ([[1000.0, 0.0], [-3.0, 1.0], [0.0, 998.0]], [0, 0, 0]),
        ([[-2000.0, -2000.0 + 1e-3, -2000.0 + 1e-9]], [1]),
        *drawn(2, lambda rng: (rng.normal(size=(4, 3)).tolist(), rng.integers(0, 3, 4).tolist())),
    ),
    mistakes=(
        *slips(
            _all_log_probabilities_first,
            r"""
@ log_probs = logits - T.logsumexp(logits, axis=1, keepdims=True)
log of softmax
+ log_probs = T.log(T.softmax(logits, axis=1))
! On paper a softmax is never 0. In the machine e**-998 rounds to 0, and log(0) is -inf. Subtract the logsumexp from the
! score instead; then you never compute a probability.
log of a sum of exp
+ log_probs = logits - T.log(T.sum(T.exp(logits), axis=1, keepdims=True))
! e**1000 is larger than any number in the machine, so it becomes inf. `T.logsumexp` is the same on paper, but subtracts
! the largest score before exp.
no keepdims
+ log_probs = logits - T.logsumexp(logits, axis=1)
! `T.logsumexp(logits, axis=1)` has the shape [N], and [N, C] minus [N] broadcasts it along the wrong axis.
! `keepdims=True` makes it [N, 1]. Or take the targets' scores first, which have the shape [N] too.
axis
+ log_probs = logits - T.logsumexp(logits, axis=0, keepdims=True)
! The probabilities of one example sum to 1, so the sum runs along its row, `axis=1`. You summed over the examples.

log of softmax at the target
- log_probs = logits - T.logsumexp(logits, axis=1, keepdims=True)
- return -T.mean(log_probs[np.arange(len(targets)), targets])
+ log_probs = T.softmax(logits, axis=1)
+ return -T.mean(T.log(log_probs[np.arange(len(targets)), targets]))
! On paper a softmax is never 0. In the machine e**-998 rounds to 0, and the log of that is -inf. Subtract the logsumexp
! from the score instead; then you never compute a probability.

@ return -T.mean(log_probs[np.arange(len(targets)), targets])
mean of everything (2)
+ return -T.mean(log_probs)
! That is the mean over all classes. Only the log-probability of the target counts, one per row.
over all (2)
+ return -T.mean(log_probs * np.eye(logits.shape[1])[targets])
! Your mean also counts the zeros of the one-hot rows, so it is too small by a factor of C. Only one number per row
! counts.
the likeliest (2)
+ return -T.mean(T.max(log_probs, axis=1))
! You took the log-probability of the network's own favourite. Take that of the target.
all pairs (2)
+ return -T.mean(log_probs[:, targets])
! `[:, targets]` takes every target from every row, which gives N times N numbers. To take one per row, pass a row
! number with each target.
sign (3)
+ return T.mean(log_probs[np.arange(len(targets)), targets])
! Logarithms of probabilities are negative. A loss that falls as the answers get better needs the minus sign.
""",
        ),
        *slips(
            cross_entropy,
            r"""
@ return T.mean(T.logsumexp(logits, axis=1) - right)
one logsumexp
+ return T.mean(T.logsumexp(logits) - right)
! You computed one logsumexp over all rows. The probabilities of each example sum to 1: `axis=1`.
not averaged (3)
+ return (T.logsumexp(logits, axis=1) - right)
! That is one loss per example. Return their mean, one number.
sum (3)
+ return T.sum(T.logsumexp(logits, axis=1) - right)
! That is the sum. The mean does not grow with the size of the batch, so the learning rate need not depend on it.
no logsumexp
+ return T.mean(-right)
! Those are scores, not log-probabilities: without the logsumexp the network could win by making all scores large.
no graph (3)
+ return T.Tensor(T.mean(T.logsumexp(logits, axis=1) - right).data)
! The number is right, but no gradient gets back to the logits: compute with the Tensor itself, not with its .data.
""",
        ),
    ),
    run=_loss_and_gradient,
    also_right=r"""
# one at a time
lambda logits, targets: -sum(T.log_softmax(logits[i], axis=0)[int(k)] for i, k in enumerate(targets)) / len(targets)
""",
)


def minibatches(x, y, size, rng):
    """All examples once, in a random order, as pairs (x, y) of at most `size` examples."""
    order = rng.permutation(len(x))
    for start in range(0, len(x), size):
        chosen = order[start : start + size]
        yield x[chosen], y[chosen]


def _for_ever(x, y, size, rng):
    while True:
        yield from minibatches(x, y, size, rng)


def ten_examples():
    """x of shape (10, 2) and its ten labels"""
    return np.arange(10.0)[:, None] * [1, -1], np.arange(10)


def twelve_examples():
    """x of shape (12, 3) and its twelve labels"""
    return np.arange(12.0)[:, None] * [1, 2, 3], np.arange(12)


def sixty_images():
    """x of shape (60, 1, 2, 2) and its sixty labels"""
    return np.arange(60.0).reshape(60, 1, 1, 1) * np.ones((1, 2, 2)), np.arange(60)


def _two_epochs(function, build, size):
    """A summary of two epochs: the batch sizes and the faults, because every order is right."""
    x, y = build()
    epochs = []
    for rng in [np.random.default_rng(3)] * 2 + [np.random.default_rng(3)]:  # two epochs, and the first one again
        result = function(x, y, size, rng)
        if result is None:
            return None
        batches = list(itertools.islice(result, len(x) + 2))
        if len(batches) > len(x) + 1:
            return Told("batches without end")
        fault = next(filter(None, (_no_pair(batch, x) for batch in batches)), None)
        if fault:
            return Told(fault)
        epochs.append([(np.array(xb), np.array(yb)) for xb, yb in batches])
    own_x, own_y = build()
    *orders, again = [np.concatenate([yb for _, yb in epoch]) for epoch in epochs]
    faults = {
        "an x with another example's y": any(not np.array_equal(xb, own_x[yb]) for epoch in epochs for xb, yb in epoch),
        "not each example once": any(not np.array_equal(np.sort(order), own_y) for order in orders),
        "not shuffled": np.array_equal(orders[0], own_y),
        "the same order in the next epoch": np.array_equal(*orders),
        "the same examples together": len(epochs[0]) > 2 and _stay_together(*epochs[:2]),
        "x or y changed": not (np.array_equal(x, own_x) and np.array_equal(y, own_y)),
        "another order from the same rng": not np.array_equal(orders[0], again),
    }
    sizes = [len(yb) for _, yb in epochs[0]]
    return {"batch sizes": sizes, "faults": ", ".join(fault for fault in faults if faults[fault]) or "none"}


def _no_pair(batch, x):
    """A description of a batch that is not a pair of x and y, else None."""
    if hasattr(batch, "shape"):
        return f"arrays of shape {batch.shape}, not pairs (x, y)"
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        inside = f" of {len(batch)} {type(batch[0]).__name__}s" if isinstance(batch, (tuple, list)) and batch else ""
        return f"a {type(batch).__name__}{inside}, not a pair (x, y)"
    if np.shape(batch[0])[1:] != x.shape[1:] or np.shape(batch[1]) != (len(batch[0]),):
        return f"pairs of shapes {np.shape(batch[0])} and {np.shape(batch[1])}"
    return None


def _stay_together(epoch, other):
    """True if two epochs have the same batches, or if most neighbours in the file share a batch."""
    if {frozenset(yb.tolist()) for _, yb in epoch} == {frozenset(yb.tolist()) for _, yb in other}:
        return True
    place = {label: number for number, (_, yb) in enumerate(other) for label in yb.tolist()}
    beside = [place[label] == place.get(label + 1) for label in place]
    return len(place) >= 60 and sum(beside) > len(beside) / 2


MINIBATCHES = Exercise(
    "07.3",
    "Minibatches",
    "Write `minibatches(x, y, size, rng)`: all examples once, in a random order, in batches of `size`; the last one "
    "may be smaller. `yield` (or return a list of) pairs of arrays `(x, y)`. `rng` is a `np.random.default_rng`. "
    "Each call, and so each epoch, has a different order and combines different examples.",
    minutes=8,
    difficulty=2,
    solution=minibatches,
    hints=(
        "Do not shuffle the arrays: shuffle the row numbers, once, with `order = rng.permutation(len(x))`.",
        "`for start in range(0, len(x), size):` and `chosen = order[start:start + size]`: a slice that extends past "
        "the end is just shorter.",
        "In the loop: `yield x[chosen], y[chosen]`",
    ),
    cases=((ten_examples, 4), (twelve_examples, 5), (twelve_examples, 4), (ten_examples, 30), (sixty_images, 6)),
    mistakes=(
        *slips(
            minibatches,
            r"""
two orders
  order = rng.permutation(len(x))
+ other = rng.permutation(len(x))
- yield x[chosen], y[chosen]
+ yield x[chosen], y[other[start : start + size]]
! You shuffled x and y differently, so images get the labels of other images. No error will ever show it: the loss just
! stays near 2.3. Make one order and use it for both.

@ yield x[chosen], y[chosen]
drops the last (2)
+ if len(chosen) == size: yield x[chosen], y[chosen]
! The last, smaller batch is missing. Its examples would never be seen in this epoch.
only the first batch (3)
+ return x[chosen], y[chosen]
! That is one batch: a `return` in the loop ends it at once. `yield` hands out a batch and continues.
row numbers (3)
+ yield chosen
! Those are row numbers. Take the rows: `x[chosen], y[chosen]`.

@ order = rng.permutation(len(x))
same order
+ order = np.random.default_rng(0).permutation(len(x))
! Every epoch has the same order. Draw from the `rng` that you are given, because it continues where the last epoch
! stopped.
ignores rng
+ order = np.random.default_rng().permutation(len(x))
! The order is random, but it does not come from `rng`, so nobody can repeat your training run. Use
! `rng.permutation(len(x))`.
in order
+ order = np.arange(len(x))
! Your batches follow the order of the data, and files are often sorted.

an empty one (2)
- for start in range(0, len(x), size):
+ for start in range(0, len(x) + 1, size):
! If `size` divides the number of examples, your last batch is empty, and the mean of nothing is nan. Stop before
! `len(x)`.
with repeats
- chosen = order[start : start + size]
+ chosen = rng.integers(0, len(x), min(size, len(x) - start))
! Some examples come twice and others never: you draw with replacement. A permutation contains each example once.
in place
  order = rng.permutation(len(x))
+ x[:], y[:] = x[order], y[order]
- yield x[chosen], y[chosen]
+ yield x[start : start + size], y[start : start + size]
! You changed the arrays that you were given, but x and y belong to the caller. Shuffle the row numbers instead.

@ order = rng.permutation(len(x))
@ for start in range(0, len(x), size):
@     chosen = order[start : start + size]
@     yield x[chosen], y[chosen]
blocks
+ starts = np.arange(0, len(x), size)
+ for start in rng.permutation(starts):
+     yield x[start : start + size], y[start : start + size]
! You shuffled the batches, but neighbours in the file always share a batch, and files are often sorted. Shuffle the
! examples instead.
every nth
+ count = math.ceil(len(x) / size)
+ for first in rng.permutation(count):
+     yield x[first::count], y[first::count]
! In your answer the same examples share a batch in every epoch. Shuffle the row numbers before you cut them into
! batches.

within blocks
- order = rng.permutation(len(x))
  for start in range(0, len(x), size):
-     chosen = order[start : start + size]
+     chosen = start + rng.permutation(len(x[start : start + size]))
! You shuffled examples only within their batch. That changes nothing, because the gradient of a batch is a mean.
! Shuffle all the row numbers before you cut them into batches.
""",
        ),
        Mistake(
            "for ever",
            _for_ever,
            "Your generator never ends. One call is one epoch: return each example once, then stop.",
            2,
        ),
        Mistake(
            "two lists",
            lambda *given: [[batch[part] for batch in minibatches(*given)] for part in (0, 1)],
            "Those are two lists, one of x and one of y. Return pairs, one per batch, so that this works: `for "
            "batch_x, batch_y in minibatches(...)`.",
            3,
        ),
    ),
    run=_two_epochs,
    also_right=r"""
# in one list
def in_one_list(x, y, size, rng):
    order = list(range(len(x)))
    rng.shuffle(order)
    return [
        ([x[i] for i in order[start : start + size]], [y[i] for i in order[start : start + size]])
        for start in range(0, len(x), size)
    ]
# as a zip
def as_a_zip(x, y, size, rng):
    order = rng.permutation(len(x))
    cuts = range(size, len(x), size)
    return zip(np.split(x[order], cuts), np.split(y[order], cuts), strict=True)
""",
    also_wrong=r"""
# y first
lambda x, y, size, rng: ((y, x) for _ in range(3))
! gave pairs of shapes (10,) and (10, 2)
# a list of all
lambda x, y, size, rng: [list(minibatches(x, y, size, rng))]
! gave a list of 3 tuples, not a pair (x, y), expected batch sizes
# a number
lambda x, y, size, rng: 5
! raised TypeError: 'int' object is not iterable
# rotated
- order = rng.permutation(len(x))
+ order = (np.arange(len(x)) + rng.integers(1, len(x))) % len(x)
! the same examples together
# blocks shuffled and then within
def blocks_shuffled_and_then_within(x, y, size, rng):
    for block in rng.permutation(np.arange(0, len(x), size)):
        rows = rng.permutation(np.arange(len(x))[block : block + size])
        yield x[rows], y[rows]
! the same examples together
""",
)


def adam_step(w, grad, state, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    """The weights after one step of Adam. state: a dict, empty before the first step."""
    if not state:
        state["t"], state["m"], state["v"] = 0, np.zeros_like(w), np.zeros_like(w)
    state["t"] += 1
    state["m"] = beta1 * state["m"] + (1 - beta1) * grad
    state["v"] = beta2 * state["v"] + (1 - beta2) * grad**2
    m = state["m"] / (1 - beta1 ** state["t"])
    v = state["v"] / (1 - beta2 ** state["t"])
    return w - lr * m / (np.sqrt(v) + eps)


def _steps_of_adam(function, w, grads, *settings):
    """The weights after each step with these gradients."""
    w, state, after = np.array(w), {}, {}
    for number, grad in enumerate(grads, start=1):
        given = np.array(grad)
        with np.errstate(all="ignore"):
            result = function(w, given, state, *settings)
        if result is None:
            return None
        if not np.array_equal(given, grad):
            return Told("new numbers in `grad`, which belongs to the caller")
        if getattr(result, "dtype", None) == np.float32:
            return Told("an array of float32, which cuts digits off (the input is float64)")
        w = np.array(result)
        after[f"after step {number}"] = w.tolist()
    return after


ADAM = Exercise(
    "07.4",
    "Adam",
    "Write `adam_step(w, grad, state, lr, beta1, beta2, eps)`: the weights after one step. `state` is a dict. It is "
    "empty at the first call, and later calls get the same dict again. Store in it the step number `t` (1 at the "
    "first step) and two moving averages that start at 0:\n\n"
    "- `m`: `beta1` times the old `m`, plus `1 - beta1` times `grad`\n"
    "- `v`: `beta2` times the old `v`, plus `1 - beta2` times `grad**2`\n\n"
    "Because both averages start at 0, they are too small at first. So divide `m` by `1 - beta1**t` and `v` by `1 - "
    "beta2**t`, without changing the stored averages. The step is `lr * m / (sqrt(v) + eps)`, downhill. Return the "
    "new weights; `check` tries several steps in a row.",
    minutes=12,
    difficulty=3,
    solution=adam_step,
    hints=(
        'At the first call: `if not state: state["t"], state["m"], state["v"] = 0, np.zeros_like(w), '
        'np.zeros_like(w)`. Then, at every call, `state["t"] += 1`.',
        '`state["m"] = beta1 * state["m"] + (1 - beta1) * grad`, and `v` likewise with `beta2` and `grad**2`. Give '
        'the corrected averages their own names: `m = state["m"] / (1 - beta1 ** state["t"])`.',
        "`return w - lr * m / (np.sqrt(v) + eps)`, with the corrected `m` and `v`.",
    ),
    cases=(
        ([1.0, -2.0, 0.5], [[0.5, 1e-3, -2e-4], [0.25, -2e-3, 1e-4], [0.5, 5e-3, 3e-4]], 0.1),
        ([0.0, 3.0], [[2.0, -1e-4], [-1.0, -1e-4], [4.0, 2e-4]], 0.01),
        ([[1.5, -0.5]], [[[0.3, 0.0]], [[-0.1, 0.0]], [[1e-9, 2.0]]], 0.1, 0.8, 0.95, 1e-3),
        ([0.5, -0.5], [[0.2, -0.1], [0.0, 0.3], [0.1, 0.0], [0.0, 0.0], [-0.4, 0.0]], 0.05),
        *drawn(2, lambda rng: (rng.normal(size=(2, 3)).tolist(), rng.normal(size=(3, 2, 3)).tolist(), 0.03)),
    ),
    mistakes=slips(
        adam_step,
        r'''
@ m = state["m"] / (1 - beta1 ** state["t"])
@ v = state["v"] / (1 - beta2 ** state["t"])
no correction (2)
+ m = state["m"]
+ v = state["v"]
! The bias correction is missing. Both averages start at 0, so with the usual betas m is a tenth of what it should be at
! step 1 and sqrt(v) a thirtieth, and the step is three times too long.
t from 0
+ m = state["m"] / (1 - beta1 ** (state["t"] - 1))
+ v = state["v"] / (1 - beta2 ** (state["t"] - 1))
! At step 1 you divide by 1 - beta**0, which is 0. Increase t before you divide: the first step has t = 1.
stores the corrected averages (2)
+ state["m"] = m = state["m"] / (1 - beta1 ** state["t"])
+ state["v"] = v = state["v"] / (1 - beta2 ** state["t"])
! Step 1 is right. But you stored the corrected averages in `state`, so the next step corrects them again. Store the
! uncorrected ones.

@ return w - lr * m / (np.sqrt(v) + eps)
eps in the root (3)
+ return w - lr * m / (np.sqrt(v + eps))
! You added eps under the root. There 1e-8 counts like a gradient of 1e-4, which is not small. Outside the root it only
! prevents a division by 0.
no root (3)
+ return w - lr * m / (v + eps)
! The root of v is missing. With it, m and its divisor have the same units, and the step is about `lr`, whatever the
! size of the gradient.
uphill (3)
+ return w + lr * m / (np.sqrt(v) + eps)
! Your weights go uphill: step against the gradient, `w - ...`.

forgets
- if not state:
+ if True:
! Step 1 is right, but step 2 looks like a first step: store the new averages in `state`.
t stays 1
- state["t"] += 1
+ state["t"] = 1
! Step 1 is right, but step 2 is not: its bias correction is still that of the first step. Does `t` increase?
ignores its settings (2)
  """The weights after one step of Adam. state: a dict, empty before the first step."""
+ beta1, beta2, eps = 0.9, 0.999, 1e-8
! With other betas and another eps your result does not change: use the arguments `beta1`, `beta2` and `eps`, not fixed
! numbers.
''',
    ),
    run=_steps_of_adam,
    in_place=True,
    also_right=r"""
# in place
def in_place(w, grad, state, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    if not state:
        state.update(steps=0, mean=np.zeros_like(w), square=np.zeros_like(w))
    state["steps"] += 1
    for name, beta, new in (("mean", beta1, grad), ("square", beta2, grad * grad)):
        state[name] *= beta
        state[name] += (1 - beta) * new
    mean, square = state["mean"] / (1 - beta1 ** state["steps"]), state["square"] / (1 - beta2 ** state["steps"])
    w -= lr * mean / (square**0.5 + eps)
    return w
""",
    also_wrong=r"""
# the gradient lost
- return w - lr * m / (np.sqrt(v) + eps)
+ grad *= 0
+ return w - lr * m / (np.sqrt(v) + eps)
! gave new numbers in `grad`, which belongs to the caller
# rests where the gradient is 0
- return w - lr * m / (np.sqrt(v) + eps)
+ return np.where(grad == 0, w, w - lr * m / (np.sqrt(v) + eps))
! after step 2
# in float32
- return w - lr * m / (np.sqrt(v) + eps)
+ return (w - lr * m / (np.sqrt(v) + eps)).astype(np.float32)
! an array of float32
""",
)


def train_step(model, optimizer, x, y):
    """One step of training on a batch. Returns the loss before the step, a number."""
    optimizer.zero_grad()
    loss = T.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def a_linear_model():
    """nn.Linear(3, 4), an optimizer, and five examples"""
    return _with_own_randomness(lambda: nn.Linear(3, 4), (5, 3), np.array([0, 3, 1, 1, 2]))


def a_deeper_model():
    """a network with a hidden layer, an optimizer, and one example"""
    return _with_own_randomness(lambda: nn.Sequential(nn.Linear(2, 5), T.tanh, nn.Linear(5, 3)), (1, 2), np.array([2]))


def a_used_model():
    """a_linear_model that still has the gradients of an earlier backward pass"""
    model, x, y = a_linear_model()
    T.sum(model(x)).backward()
    return model, x, y


def _with_own_randomness(build, shape, y):
    before, nn._random = nn._random, np.random.default_rng(5)  # do not disturb the reader's random numbers
    try:
        return build(), np.random.default_rng(6).normal(size=shape).astype(np.float32), y
    finally:
        nn._random = before


def _three_train_steps(function, build, name, lr):
    """The losses of three steps, and one weight after them."""
    model, x, y = build()
    optimizer = getattr(optim, name)(model.parameters(), lr=lr)
    losses = [function(model, optimizer, x, y) for _ in range(3)]
    if None in losses:
        return None
    if any(isinstance(loss, T.Tensor) for loss in losses):
        return Told("a Tensor, which keeps its whole graph alive")
    if any(isinstance(loss, np.ndarray) for loss in losses):
        return Told("an array, not a plain number (`loss.item()` is one)")
    if any(callable(loss) for loss in losses):
        return Told("a method, not its result (call it with parentheses: `loss.item()`)")
    return {
        "losses": [float(loss) for loss in losses],
        "first weight": model.parameters()[0].data[0, 0].item(),
    }


TRAIN_STEP = Exercise(
    "07.5",
    "A training step",
    "Write `train_step(model, optimizer, x, y)`: clear the old gradients (`optimizer.zero_grad()`), compute the "
    "loss with `T.cross_entropy(model(x), y)`, call its `backward()`, and call the optimizer's `step()`. Return the "
    "loss as a plain number, `loss.item()`.",
    minutes=5,
    difficulty=1,
    solution=train_step,
    hints=(
        "Make four calls in this order: zero_grad, the loss, backward, step.",
        "`optimizer.zero_grad()`, `loss = T.cross_entropy(model(x), y)`, `loss.backward()`, `optimizer.step()`, "
        "`return loss.item()`",
    ),
    cases=(
        (a_linear_model, "SGD", 0.5),
        (a_linear_model, "Adam", 0.1),
        (a_deeper_model, "SGD", 0.3),
        (a_used_model, "SGD", 0.5),
    ),
    mistakes=slips(
        train_step,
        r"""
never zero
- optimizer.zero_grad()
+ pass
! The first step is right, but the later ones are not: the old gradients are still there, and backward adds to them.
zero too late
- optimizer.zero_grad()
+ pass
  loss.backward()
+ optimizer.zero_grad()
! Nothing moves: when the optimizer takes its step there are no gradients. backward computes them, and then you clear
! them with zero_grad.
zero at the end
- optimizer.zero_grad()
+ pass
  optimizer.step()
+ optimizer.zero_grad()
! You clear the gradients after each step, so any gradients from before the first step are added to it. Clear them
! before backward; then it does not matter what came earlier.

@ return loss.item()
loss afterwards
+ return T.cross_entropy(model(x), y).item()
! The weights are right. But you computed the loss again after the step. Return the loss from before the step, which
! costs nothing.
a tensor (2)
+ return loss
! Return `loss.item()`: a Tensor keeps its whole graph in memory for as long as you keep the Tensor in a history.
""",
    ),
    run=_three_train_steps,
    also_wrong=r"""
# a method
- return loss.item()
+ return loss.item
! gave a method, not its result (call it with parentheses
# an array
- return loss.item()
+ return np.array(loss.item())
! gave an array, not a plain number
""",
)


def first_difference(ours, theirs, tolerance):
    """(name, index) of the worst element of the first array that is off by more, or None."""
    for name in ours:
        difference = np.abs(ours[name] - theirs[name])
        if not difference.max() <= tolerance:
            index = np.unravel_index(difference.argmax(), difference.shape)
            return name, tuple(int(i) for i in index)
    return None


def equal_arrays():
    """two dicts that agree up to 1e-15"""
    weight, bias = np.arange(6.0).reshape(2, 3) / 10, np.array([0.5, -0.5])
    return {"weight": weight, "bias": bias}, {"weight": weight + 1e-15, "bias": bias}


def the_same_twice():
    """two dicts that agree in every digit"""
    ours, _ = equal_arrays()
    return ours, equal_arrays()[0]


def one_bias_off():
    """equal_arrays, but theirs["bias"][1] is larger by 1e-6"""
    ours, theirs = equal_arrays()
    theirs["bias"] = theirs["bias"] + [0, 1e-6]
    return ours, theirs


def two_weights_off():
    """equal_arrays, but ours["weight"] is off by 2e-6 at (0, 1) and by 5e-6 at (1, 2), and the bias by 1"""
    ours, theirs = equal_arrays()
    ours["weight"] = ours["weight"] + [[0, 2e-6, 0], [0, 0, 5e-6]]
    return ours | {"bias": ours["bias"] + 1}, theirs


def a_weight_much_too_small():
    """equal_arrays, but ours["weight"][0, 2] is smaller by 0.5"""
    ours, theirs = equal_arrays()
    ours["weight"] = ours["weight"] - [[0, 0, 0.5], [0, 0, 0]]
    return ours, theirs


def one_in_a_million_off():
    """one array of 1,000 x 1,000, off by 5e-9 at (700, 3)"""
    ours = np.ones((1000, 1000))
    theirs = ours.copy()
    theirs[700, 3] += 5e-9
    return {"large": ours}, {"large": theirs}


def a_nan_in_ours():
    """equal_arrays, but ours["weight"][1, 0] is nan"""
    ours, theirs = equal_arrays()
    ours["weight"] = ours["weight"].copy()
    ours["weight"][1, 0] = np.nan
    return ours, theirs


def nearly_tied_kernels():
    """kernels of shape (2, 1, 3, 3), off by 2e-9 at (0, 0, 2, 1) and by a thousandth more at (1, 0, 0, 2)"""
    theirs = np.random.default_rng(1).normal(size=(2, 1, 3, 3))
    ours = theirs.copy()
    ours[0, 0, 2, 1] += 2e-9
    ours[1, 0, 0, 2] -= 2.002e-9
    return {"kernels": ours, "bias": np.zeros(1)}, {"kernels": theirs, "bias": np.ones(1)}


def the_same_nan_in_both():
    """equal_arrays, but ["weight"][0, 1] is nan in both"""
    ours, theirs = ({name: array.copy() for name, array in each.items()} for each in equal_arrays())
    ours["weight"][0, 1] = theirs["weight"][0, 1] = np.nan
    return ours, theirs


def names_in_another_order():
    """{"a": [1], "b": [2]} and {"b": [2], "a": [1]}"""
    return {"a": np.array([1.0]), "b": np.array([2.0])}, {"b": np.array([2.0]), "a": np.array([1.0])}


def a_larger_one_later():
    """two arrays of one element: "a" is off by 1e-6, and "b" by 1"""
    return {"a": np.array([1.0]), "b": np.array([1.0])}, {"a": np.array([1.0 + 1e-6]), "b": np.array([2.0])}


def _the_worst_of_all(ours, theirs, tolerance):
    largest = {name: np.abs(ours[name] - theirs[name]).max() for name in ours}
    worst = max(largest, key=lambda name: (np.isnan(largest[name]), largest[name]))
    return first_difference({worst: ours[worst]}, theirs, tolerance)


FIRST_DIFFERENCE = Exercise(
    "07.6",
    "The first difference",
    "Write `first_difference(ours, theirs, tolerance)`. Both are dicts of arrays with the same names and shapes. Go "
    "through the names in order. At the first array in which some element differs by more than `tolerance`, return "
    'its name and the index of the element that differs most, as a tuple: `("weight", (1, 2))`. If there is no such '
    "array, return `None`. A `nan` counts as a difference, even if both arrays have it in the same place.",
    minutes=8,
    difficulty=3,
    solution=first_difference,
    hints=(
        "`difference = np.abs(ours[name] - theirs[name])`. What is `nan > tolerance`? And `nan <= tolerance`?",
        "Both are False! So reverse the question: `if not difference.max() <= tolerance`. (The maximum of an array "
        "with a nan is nan, and argmax finds the nan.)",
        "`difference.argmax()` counts along the flattened array; `np.unravel_index(that, difference.shape)` turns "
        "it into a tuple. Return `name, index` inside the loop and `None` after it.",
    ),
    cases=(
        (equal_arrays, 1e-9),
        (the_same_twice, 0.0),
        (one_bias_off, 1e-9),
        (two_weights_off, 1e-9),
        (one_in_a_million_off, 1e-9),
        (a_nan_in_ours, 1e-9),
        (a_weight_much_too_small, 1e-9),
        (nearly_tied_kernels, 1e-9),
        (a_larger_one_later, 1e-9),
        (the_same_nan_in_both, 1e-9),
        (names_in_another_order, 1e-9),
    ),
    mistakes=(
        Mistake(
            "the worst of all",
            _the_worst_of_all,
            "That is the array with the largest difference of all. Return the first array that differs, because "
            "later ones may be off as a consequence.",
            3,
        ),
        *slips(
            first_difference,
            r"""
@ if not difference.max() <= tolerance:
nan slips through (2)
+ if difference.max() > tolerance:
! Your answer missed a nan: `nan > tolerance` is False, like every comparison with nan. Ask whether the difference is
! *not* `<= tolerance`.
or equal (2)
+ if not difference.max() < tolerance:
! A difference that equals the tolerance is not *more* than it. With tolerance 0 you would report identical arrays.
relative too (2)
+ if not np.allclose(ours[name], theirs[name], atol=tolerance):
! By default `np.allclose` and `np.isclose` also allow a hundred-thousandth of the number itself (`rtol`). Pass
! `rtol=0`, or compare with `tolerance` yourself.
on average (2)
+ if not difference.mean() <= tolerance:
! One wrong number among a million hardly moves the mean. Compare the largest difference.

two nans are equal (2)
  difference = np.abs(ours[name] - theirs[name])
+ difference[np.isnan(ours[name]) & np.isnan(theirs[name])] = 0
! If both have a nan in the same place, both numbers are lost, and nobody knows whether they agree. That is a difference
! too.
by position
- for name in ours:
-     difference = np.abs(ours[name] - theirs[name])
+ for name, own, other in zip(ours, ours.values(), theirs.values()):
+     difference = np.abs(own - other)
! Look up both arrays by name: two dicts with the same names may have them in a different order.
no abs
- difference = np.abs(ours[name] - theirs[name])
+ difference = ours[name] - theirs[name]
! Your answer missed an element that is too small: a difference of -1 is below any tolerance. Take the absolute value.
sorted names (3)
- for name in ours:
+ for name in sorted(ours):
! You sorted the names. Keep the order that they have in `ours`.

@ return name, tuple(int(i) for i in index)
no tuple (3)
+ return (name, *map(int, index))
! The index has to be a tuple inside the tuple: `(name, index)`, not `(name, *index)`.
flat index (3)
+ return name, int(difference.argmax())
! Your index is that of the flattened array: turn it into a tuple with np.unravel_index.
only the name (3)
+ return name
! The name is right; return the index too, `(name, index)`.

first element (3)
- index = np.unravel_index(difference.argmax(), difference.shape)
+ index = np.unravel_index((~(difference <= tolerance)).argmax(), difference.shape)
! That is the first element beyond the tolerance. Return the one that differs most.
first array only (3)
- return None
+     return None
! You compared only the first array. Is there a `return None` inside the loop? It belongs after the loop.
""",
        ),
    ),
    run=lambda function, build, tolerance: function(*build(), tolerance),
    also_right=r"""
# numpys indices
def numpys_indices(ours, theirs, tolerance):
    for name, array in ours.items():
        wrong = ~np.isclose(array, theirs[name], rtol=0, atol=tolerance)
        if wrong.any():
            return [name, list(np.unravel_index(np.abs(array - theirs[name]).argmax(), array.shape))]
""",
)

VERDICTS = Exercise(
    "07.7",
    "Four verdicts",
    "Each of four training runs has one bug, and above are the verdicts of `lockstep` on them. Where is the bug? "
    'Answer with a tuple of four words for A, B, C and D, each one of `"forward"`, `"backward"`, `"optimizer"` and '
    '`"data"`. Think of the order in which lockstep compares: the loss, the gradients from the last layer to the '
    "first, then the weights after the step.",
    minutes=6,
    difficulty=2,
    solution=("backward", "optimizer", "forward", "data"),
    hints=(
        "lockstep compares things in the order in which a step computes them. If the loss agrees, forward is right; "
        "if all gradients agree too, so is backward.",
        "B: in step 2 all gradients agreed, but the weights did not. What comes between a gradient and a weight? D: "
        "both sides compute the same thing, but neither learns. What do they share?",
        "A shows up in a gradient, so it is backward. C shows up in the loss, so it is forward. B is the optimizer.",
    ),
    mistakes=slips(
        ("backward", "optimizer", "forward", "data"),
        r"""
D too (2)
+ ("backward", "optimizer", "forward", "forward")
! A, B and C are right. But if D's forward were wrong, its loss would differ from torch's. What do both sides of D
! share?
D optimizer (2)
+ ("backward", "optimizer", "forward", "optimizer")
! A, B and C are right. But if D's optimizer were wrong, its weights would differ from torch's. What do both sides of D
! share?
A forward
+ ("forward", "optimizer", "forward", "data")
! In A the loss agreed, and so did the gradients of the last layer: the forward pass is right.
A and C swapped
+ ("forward", "optimizer", "backward", "data")
! C's very first loss is wrong, before any backward pass, while A's is right.
B backward (2)
+ ("backward", "backward", "forward", "data")
! In B every gradient of steps 1 and 2 agreed. What happens after the gradients?
""",
    ),
    explain=(
        "In D the labels belong to other images, as they do if you shuffle x and y in two different orders: there "
        "is no error, only a loss that stays near 2.3."
    ),
    also_right=r"""
# a list
["backward", "optimizer", "forward", "data"]
# capital letters
("Backward", "Optimizer", "forward ", "DATA")
""",
)
