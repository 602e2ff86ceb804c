"""Exercises of notebook 07: digits, in lockstep with torch."""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course.compare import Told, show
from mlx_grpo_kit.course.digits import load_digits
from mlx_grpo_kit.course.exercise import Exercise, Mistake
from mlx_grpo_kit.tensor import nn, optim

# -- 07.2 -------------------------------------------------------------------------------------------------------------


def cross_entropy(logits, targets):
    """The mean of -log(probability of the target). logits: Tensor [N, C], targets: N integers."""
    right = logits[np.arange(len(targets)), targets]
    return T.mean(T.logsumexp(logits, axis=1) - right)


def _log_of_softmax(logits, targets):
    return -T.mean(T.log(T.softmax(logits, axis=1))[np.arange(len(targets)), targets])


def _log_of_one_softmax(logits, targets):
    return -T.mean(T.log(T.softmax(logits, axis=1)[np.arange(len(targets)), targets]))


def _log_of_a_sum_of_exp(logits, targets):
    log_probs = logits - T.log(T.sum(T.exp(logits), axis=1, keepdims=True))
    return -T.mean(log_probs[np.arange(len(targets)), targets])


def _no_keepdims(logits, targets):
    return -T.mean((logits - T.logsumexp(logits, axis=1))[np.arange(len(targets)), targets])


def _one_logsumexp(logits, targets):
    return -T.mean((logits - T.logsumexp(logits))[np.arange(len(targets)), targets])


def _not_averaged(logits, targets):
    return T.logsumexp(logits, axis=1) - logits[np.arange(len(targets)), targets]


def _mean_of_everything(logits, targets):
    return -T.mean(T.log_softmax(logits, axis=1))


def _a_sum(logits, targets):
    return cross_entropy(logits, targets) * len(targets)


def _down_the_columns(logits, targets):
    return -T.mean(T.log_softmax(logits, axis=0)[np.arange(len(targets)), targets])


def _all_pairs(logits, targets):
    return -T.mean(T.log_softmax(logits, axis=1)[:, targets])


def _no_minus(logits, targets):
    return -cross_entropy(logits, targets)


def _mean_over_classes(logits, targets):
    return -T.mean(T.log_softmax(logits, axis=1) * np.eye(logits.shape[1])[targets])


def _the_likeliest(logits, targets):
    return -T.mean(T.max(T.log_softmax(logits, axis=1), axis=1))


def _just_the_scores(logits, targets):
    return -T.mean(logits[np.arange(len(targets)), targets])


def _without_graph(logits, targets):
    return T.Tensor(cross_entropy(logits, targets).data)


def _loss_and_gradient(function, logits, targets):
    logits = T.Tensor(logits, requires_grad=True)
    loss = function(logits, np.array(targets))
    if not isinstance(loss, T.Tensor):
        return loss if loss is None else Told(f"{show(loss)}, which is not a Tensor")
    if loss.requires_grad:
        T.sum(loss).backward()
    return {"loss": loss.data.tolist(), "gradient": None if logits.grad is None else logits.grad.tolist()}


# -- 07.3 -------------------------------------------------------------------------------------------------------------


def minibatches(x, y, size, rng):
    """All examples once, in a random order, as pairs (x, y) of at most `size` examples."""
    order = rng.permutation(len(x))
    for start in range(0, len(x), size):
        chosen = order[start : start + size]
        yield x[chosen], y[chosen]


def _two_orders(x, y, size, rng):
    order, other = rng.permutation(len(x)), rng.permutation(len(x))
    for start in range(0, len(x), size):
        yield x[order[start : start + size]], y[other[start : start + size]]


def _drops_the_last(x, y, size, rng):
    return [batch for batch in minibatches(x, y, size, rng) if len(batch[0]) == size]


def _the_same_every_time(x, y, size, rng):
    return minibatches(x, y, size, np.random.default_rng(0))


def _in_order(x, y, size, rng):
    for start in range(0, len(x), size):
        yield x[start : start + size], y[start : start + size]


def _with_repeats(x, y, size, rng):
    for start in range(0, len(x), size):
        chosen = rng.integers(0, len(x), min(size, len(x) - start))
        yield x[chosen], y[chosen]


def _shuffles_your_arrays(x, y, size, rng):
    order = rng.permutation(len(x))
    x[:], y[:] = x[order], y[order]
    yield from _in_order(x, y, size, rng)


def _deaf_to_rng(x, y, size, rng):
    return minibatches(x, y, size, np.random.default_rng())


def _an_empty_one(x, y, size, rng):
    order = rng.permutation(len(x))
    for start in range(0, len(x) + 1, size):
        yield x[order[start : start + size]], y[order[start : start + size]]


def _for_ever(x, y, size, rng):
    while True:
        yield from minibatches(x, y, size, rng)


def _only_the_first_batch(x, y, size, rng):
    return next(minibatches(x, y, size, rng))


def _two_lists(x, y, size, rng):
    batches = list(minibatches(x, y, size, rng))
    return [images for images, _ in batches], [labels for _, labels in batches]


def _row_numbers(x, y, size, rng):
    return [labels for _, labels in minibatches(np.arange(len(x)), np.arange(len(x)), size, rng)]


def ten_examples():
    """x of shape (10, 2) and its ten labels"""
    return np.arange(10.0)[:, None] * [1, -1], np.arange(10)


def twelve_examples():
    """x of shape (12, 3) and its twelve labels"""
    return np.arange(12.0)[:, None] * [1, 2, 3], np.arange(12)


def _two_epochs(function, build, size):
    """What can be said about two epochs, because every order is right."""
    x, y = build()
    own_x, own_y = build()
    epochs = []
    for rng in [np.random.default_rng(3)] * 2 + [np.random.default_rng(3)]:  # two epochs, and the first one again
        result = function(x, y, size, rng)
        if result is None:
            return None
        batches = list(itertools.islice(result, len(x) + 2))
        if len(batches) > len(x) + 1:
            return Told("batches without end")
        for batch in batches:
            if hasattr(batch, "shape"):
                return Told(f"no pairs (x, y), but arrays of shape {batch.shape}")
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                inside = f" of {len(batch)} {type(batch[0]).__name__}s" if isinstance(batch, (tuple, list)) else ""
                return Told(f"no pairs (x, y), but a {type(batch).__name__}{inside}")
            if np.shape(batch[0])[1:] != x.shape[1:] or np.shape(batch[1]) != (len(batch[0]),):
                return Told(f"pairs of shapes {np.shape(batch[0])} and {np.shape(batch[1])}")
        epochs.append([(np.array(xb), np.array(yb)) for xb, yb in batches])
    orders = [np.concatenate([yb for _, yb in epoch]) for epoch in epochs]
    *epochs, _ = epochs
    *orders, again = orders
    faults = {
        "an x with another one's y": any(not np.array_equal(xb, own_x[yb]) for epoch in epochs for xb, yb in epoch),
        "not each example once": any(not np.array_equal(np.sort(order), own_y) for order in orders),
        "not shuffled": np.array_equal(orders[0], own_y),
        "the same order in the next epoch": np.array_equal(*orders),
        "x or y changed": not (np.array_equal(x, own_x) and np.array_equal(y, own_y)),
        "another order from the same rng": not np.array_equal(orders[0], again),
    }
    sizes = [len(yb) for _, yb in epochs[0]]
    return {"batch sizes": sizes, "faults": ", ".join(fault for fault in faults if faults[fault]) or "none"}


# -- 07.4 -------------------------------------------------------------------------------------------------------------


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


def _means(grad, state, beta1, beta2):
    state["step"] = state.get("step", 0) + 1
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * grad
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * grad**2
    return state["m"], state["v"], state["step"]


def _uncorrected(w, grad, state, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v, _ = _means(grad, state, beta1, beta2)
    return w - lr * m / (np.sqrt(v) + eps)


def _eps_inside(w, grad, state, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v, step = _means(grad, state, beta1, beta2)
    return w - lr * m / (1 - beta1**step) / np.sqrt(v / (1 - beta2**step) + eps)


def _forgets(w, grad, state, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    return adam_step(w, grad, {}, lr, beta1, beta2, eps)


def _never_counts(w, grad, state, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v, _ = _means(grad, state, beta1, beta2)
    return w - lr * m / (1 - beta1) / (np.sqrt(v / (1 - beta2)) + eps)


def _counts_from_zero(w, grad, state, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v, step = _means(grad, state, beta1, beta2)
    return w - lr * m / (1 - beta1 ** (step - 1)) / (np.sqrt(v / (1 - beta2 ** (step - 1))) + eps)


def _no_root(w, grad, state, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v, step = _means(grad, state, beta1, beta2)
    return w - lr * m / (1 - beta1**step) / (v / (1 - beta2**step) + eps)


def _adam_uphill(w, grad, state, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    return adam_step(w, grad, state, -lr, beta1, beta2, eps)


def _keeps_the_corrected(w, grad, state, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v, step = _means(grad, state, beta1, beta2)
    state["m"], state["v"] = m / (1 - beta1**step), v / (1 - beta2**step)
    return w - lr * state["m"] / (np.sqrt(state["v"]) + eps)


def _three_steps_of_adam(function, w, grads, lr):
    """The weights after each of three steps with these gradients."""
    w, state, after = np.array(w), {}, {}
    for number, grad in enumerate(grads, start=1):
        with np.errstate(all="ignore"):
            result = function(w, np.array(grad), state, lr)
        if result is None:
            return None
        w = np.array(result)
        after[f"after step {number}"] = w.tolist()
    return after


# -- 07.5 -------------------------------------------------------------------------------------------------------------


def train_step(model, optimizer, x, y):
    """One step of training on a batch. Returns the loss before it, a number."""
    optimizer.zero_grad()
    loss = T.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def _zero_too_late(model, optimizer, x, y):
    loss = T.cross_entropy(model(x), y)
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    return loss.item()


def _piles_up(model, optimizer, x, y):
    loss = T.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def _loss_afterwards(model, optimizer, x, y):
    train_step(model, optimizer, x, y)
    return T.cross_entropy(model(x), y).item()


def _returns_the_tensor(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = T.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def a_linear_model():
    """nn.Linear(3, 4), an optimizer, and five examples"""
    before, nn._random = nn._random, np.random.default_rng(5)  # the learner's random numbers stay where they are
    model = nn.Linear(3, 4)
    nn._random = before
    rng = np.random.default_rng(6)
    return model, rng.normal(size=(5, 3)).astype(np.float32), np.array([0, 3, 1, 1, 2])


def _three_train_steps(function, build, name, lr):
    """The losses of three steps, and a weight afterwards."""
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
        return Told("a method, not what it returns (brackets are missing: `loss.item()`)")
    return {"losses": [float(loss) for loss in losses], "first weight": model.weight.data[0, 0].item()}


# -- 07.6 -------------------------------------------------------------------------------------------------------------


def first_difference(ours, theirs, tolerance):
    """(name, index) of the worst element of the first array that is off by more, or None."""
    for name in ours:
        difference = np.abs(ours[name] - theirs[name])
        if not difference.max() <= tolerance:
            index = np.unravel_index(difference.argmax(), difference.shape)
            return name, tuple(int(i) for i in index)
    return None


def _nan_slips_through(ours, theirs, tolerance):
    for name in ours:
        difference = np.abs(ours[name] - theirs[name])
        if difference.max() > tolerance:
            return name, tuple(int(i) for i in np.unravel_index(difference.argmax(), difference.shape))
    return None


def _without_abs(ours, theirs, tolerance):
    for name in ours:
        difference = ours[name] - theirs[name]
        if not difference.max() <= tolerance:
            return name, tuple(int(i) for i in np.unravel_index(difference.argmax(), difference.shape))
    return None


def _flat_index(ours, theirs, tolerance):
    found = first_difference(ours, theirs, tolerance)
    return found and (found[0], int(np.ravel_multi_index(found[1], ours[found[0]].shape)))


def _first_element(ours, theirs, tolerance):
    for name in ours:
        wrong = np.argwhere(~(np.abs(ours[name] - theirs[name]) <= tolerance))
        if len(wrong):
            return name, tuple(int(i) for i in wrong[0])
    return None


def _on_average(ours, theirs, tolerance):
    for name in ours:
        difference = np.abs(ours[name] - theirs[name])
        if not difference.mean() <= tolerance:
            return name, tuple(int(i) for i in np.unravel_index(difference.argmax(), difference.shape))
    return None


def _only_the_first(ours, theirs, tolerance):
    name = next(iter(ours))
    return first_difference({name: ours[name]}, theirs, tolerance)


def _only_the_name(ours, theirs, tolerance):
    found = first_difference(ours, theirs, tolerance)
    return found and found[0]


def _relative_too(ours, theirs, tolerance):
    for name in ours:
        if not np.allclose(ours[name], theirs[name], atol=tolerance):
            difference = np.abs(ours[name] - theirs[name])
            return name, tuple(int(i) for i in np.unravel_index(difference.argmax(), difference.shape))
    return None


def _last_name_first(ours, theirs, tolerance):
    return first_difference(dict(sorted(ours.items())), theirs, tolerance)


def _no_tuple(ours, theirs, tolerance):
    found = first_difference(ours, theirs, tolerance)
    return found and (found[0], *found[1])


def equal_arrays():
    """two dicts that agree up to 1e-15"""
    weight, bias = np.arange(6.0).reshape(2, 3) / 10, np.array([0.5, -0.5])
    return {"weight": weight, "bias": bias}, {"weight": weight + 1e-15, "bias": bias}


def one_bias_off():
    """as equal_arrays, but theirs["bias"][1] is larger by 1e-6"""
    ours, theirs = equal_arrays()
    theirs["bias"] = theirs["bias"] + [0, 1e-6]
    return ours, theirs


def two_weights_off():
    """as equal_arrays, but ours["weight"] is off by 2e-6 at (0, 1) and by 5e-6 at (1, 2), and the bias by 1"""
    ours, theirs = equal_arrays()
    ours["weight"] = ours["weight"] + [[0, 2e-6, 0], [0, 0, 5e-6]]
    return ours | {"bias": ours["bias"] + 1}, theirs


def a_weight_much_too_small():
    """as equal_arrays, but ours["weight"][0, 2] is smaller by 0.5"""
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
    """as equal_arrays, but ours["weight"][1, 0] is nan"""
    ours, theirs = equal_arrays()
    ours["weight"] = ours["weight"].copy()
    ours["weight"][1, 0] = np.nan
    return ours, theirs


def _of_two_dicts(function, build, tolerance):
    return function(*build(), tolerance)


# -- 07.7 -------------------------------------------------------------------------------------------------------------


class _AdamThatNeverCounts(optim.Adam):
    """Its bias correction stays that of the first step."""

    def adam_update(self, number, grad):
        self.steps[number] = 0
        return super().adam_update(number, grad)


@contextmanager
def _adam_is(kind: type) -> Iterator[None]:
    before, optim.Adam = optim.Adam, kind
    try:
        yield
    finally:
        optim.Adam = before


def verdict_on(name: str, lockstep: Callable) -> str:
    """What lockstep says about "A", "B", "C" or "D": small trainings on digits, each with another bug. (No peeking.)"""
    import torch

    digits = load_digits()
    x, y = digits.train_images.reshape(-1, 64), digits.train_labels
    if name == "D":
        y = np.random.default_rng(2).permutation(y)
    rng = np.random.default_rng(0)
    batches = [batch for _ in range(3) for batch in minibatches(x, y, 64, rng)]
    torch.manual_seed(0)
    twin = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)).double()
    bend = (lambda x: T.relu(x) + 0.01 * x) if name == "C" else T.relu
    model = nn.Sequential(nn.Linear(64, 32), bend, nn.Linear(32, 10))
    bugs = {"A": T.replaced_gradient("relu", x=lambda g: g), "B": _adam_is(_AdamThatNeverCounts)}
    try:
        with bugs.get(name, _adam_is(optim.Adam)):
            steps = list(lockstep(model, twin, batches, lr=3e-3))
    except ValueError as error:
        return str(error)
    with T.no_grad():
        right = np.mean(model(digits.test_images.reshape(-1, 64)).data.argmax(axis=1) == digits.test_labels)
    return (
        f"{len(steps)} steps, and nothing differs by more than {max(s.largest_difference for s in steps):.0e}. "
        f"Loss {steps[-1].loss:.2f}; of unseen digits {right:.0%} are right."
    )


EXERCISES = (
    Exercise(
        "07.1",
        "The loss of a shrug",
        "A network that knows nothing gives each of the ten digits the same "
        "probability. What is its cross-entropy, `-log(probability of the right digit)`? Write it as a Python "
        "expression with `math.log`, so that no digit is lost.",
        3,
        1,
        math.log(10),
        hints=("Ten equal probabilities that sum to 1: each is 1/10.", "`-math.log(1 / 10)`, which is `math.log(10)`."),
        mistakes=(
            Mistake("rounded", 2.3, "That is it, rounded. Leave the digits to the machine: write the expression.", 2),
            Mistake(
                "rounded further",
                2.303,
                "That is it, rounded. Leave the digits to the machine: write the expression itself.",
                2,
            ),
            Mistake(
                "no minus",
                -math.log(10),
                "The logarithm of a probability is negative; the loss has a minus sign before it.",
                2,
            ),
            Mistake("probability", 0.1, "That is the probability. The loss is minus its logarithm.", 2),
            Mistake("base ten", 1.0, "That is the logarithm to base 10. `math.log` is the natural one, base e.", 2),
        ),
        explain="If a fresh network does not score about this, something is wrong before training has begun.",
    ),
    Exercise(
        "07.2",
        "Surprise, from scores",
        "Write `cross_entropy(logits, targets)` out of operations that you have: "
        "`logits` is a Tensor of shape `[N, C]`, `targets` an array of N integers. The log-probability of a class is "
        "its score minus `T.logsumexp` of its row; take from each row the one at its target, and return minus the mean "
        "of these, a Tensor. You need not write a gradient: it comes with the operations.",
        8,
        2,
        cross_entropy,
        hints=(
            "Per example the loss is `logsumexp of the row - score of the target`. `T.logsumexp(logits, axis=1)` "
            "has shape `[N]`; now you need the N scores of the targets.",
            "One element from each row: a list of row numbers and one of columns, "
            "`logits[np.arange(len(targets)), targets]`.",
            "`return T.mean(T.logsumexp(logits, axis=1) - logits[np.arange(len(targets)), targets])`",
        ),
        cases=(
            ([[2.0, 0.0, -1.0], [0.5, 0.5, 0.0]], [0, 2]),
            ([[0.0, 0.0, 0.0, 0.0]], [3]),
            ([[1000.0, 0.0], [-3.0, 1.0], [0.0, 998.0]], [0, 0, 0]),
        ),
        mistakes=(
            Mistake(
                "log of softmax",
                _log_of_softmax,
                "On paper a softmax is never 0. In the machine e**-998 "
                "rounds to 0, and log(0) is -inf. Subtract the logsumexp from the score instead, and no "
                "probability is ever written down.",
                1,
            ),
            Mistake(
                "log of softmax at the target",
                _log_of_one_softmax,
                "On paper a softmax is never 0. In the "
                "machine e**-998 rounds to 0, and the log of that is -inf. Subtract the logsumexp from the score "
                "instead, and no probability is ever written down.",
                1,
            ),
            Mistake(
                "log of a sum of exp",
                _log_of_a_sum_of_exp,
                "e**1000 is larger than any number in the machine: "
                "inf. `T.logsumexp` is the same on paper, and takes the largest score out before exp.",
                1,
            ),
            Mistake(
                "no keepdims",
                _no_keepdims,
                "`T.logsumexp(logits, axis=1)` has shape [N], and [N, C] minus [N] "
                "puts it along the wrong axis. `keepdims=True` makes it [N, 1]; or take the targets' scores "
                "first, which are [N] too.",
                1,
            ),
            Mistake(
                "one logsumexp",
                _one_logsumexp,
                "That is one logsumexp over all rows. Each example has its own "
                "probabilities, which sum to 1: `axis=1`.",
                1,
            ),
            Mistake(
                "not averaged",
                _not_averaged,
                "That is one loss for each example. Their mean is asked for, one number.",
                3,
            ),
            Mistake(
                "mean of everything",
                _mean_of_everything,
                "That is the mean over all classes. Only the log-probability at the target counts, one from each row.",
                2,
            ),
            Mistake(
                "sum",
                _a_sum,
                "That is the sum. The mean does not depend on the size of the batch, so the "
                "learning rate need not either.",
                3,
            ),
            Mistake(
                "axis",
                _down_the_columns,
                "The probabilities of one example sum to 1, so the sum runs along its "
                "row, `axis=1`. You summed over the examples.",
                1,
            ),
            Mistake(
                "all pairs",
                _all_pairs,
                "`[:, targets]` takes every target from every row, N times N numbers. One "
                "from each row needs a row number beside each target.",
                2,
            ),
            Mistake(
                "sign",
                _no_minus,
                "Logarithms of probabilities are negative. A loss that falls as the answers "
                "get better needs the minus sign.",
                3,
            ),
            Mistake(
                "over all",
                _mean_over_classes,
                "The zeros of the one-hot rows are counted in your mean, so it is "
                "too small by a factor of C. Only one number from each row counts.",
                2,
            ),
            Mistake(
                "the likeliest",
                _the_likeliest,
                "That is how sure the network is of its own favourite. What counts is the probability at the target.",
                2,
            ),
            Mistake(
                "no logsumexp",
                _just_the_scores,
                "Those are scores, not yet log-probabilities: without the "
                "logsumexp the network could win by making all scores large.",
                1,
            ),
            Mistake(
                "no graph",
                _without_graph,
                "The number is right, but no gradient arrives: compute with the Tensor itself, not with its .data.",
                3,
            ),
        ),
        run=_loss_and_gradient,
    ),
    Exercise(
        "07.3",
        "Minibatches",
        "Write `minibatches(x, y, size, rng)`: all examples once, in a random order, in batches "
        "of `size`; the last one may be smaller. `yield` (or return a list of) pairs of arrays `(x, y)`. `rng` is a "
        "`np.random.default_rng`, and each call, so each epoch, shall have another order.",
        8,
        2,
        minibatches,
        hints=(
            "Do not shuffle the arrays: shuffle the row numbers, once, with `order = rng.permutation(len(x))`.",
            "`for start in range(0, len(x), size):` and `chosen = order[start:start + size]`: a slice that reaches "
            "beyond the end is just shorter.",
            "In the loop: `yield x[chosen], y[chosen]`",
        ),
        cases=((ten_examples, 4), (twelve_examples, 5), (twelve_examples, 4)),
        mistakes=(
            Mistake(
                "two orders",
                _two_orders,
                "x and y are shuffled differently, so images get other images' "
                "labels. No error will ever tell you: the loss just stays near 2.3. Make one order and use it for "
                "both.",
                1,
            ),
            Mistake(
                "drops the last",
                _drops_the_last,
                "The last, smaller batch is missing. Its examples would never be seen in this epoch.",
                2,
            ),
            Mistake(
                "same order",
                _the_same_every_time,
                "Every epoch has the same order. Draw from the `rng` that you are given: it goes on where it was.",
                1,
            ),
            Mistake(
                "deaf to rng",
                _deaf_to_rng,
                "The order is random, but it does not come from `rng`, so nobody "
                "can ever repeat your training. Draw it from there: `rng.permutation(len(x))`.",
                1,
            ),
            Mistake(
                "an empty one",
                _an_empty_one,
                "Where `size` divides the number of examples an empty batch comes "
                "at the end, and the mean of nothing is nan. Stop before `len(x)`.",
                2,
            ),
            Mistake("for ever", _for_ever, "It never ends. One call is one epoch: each example once, then stop.", 2),
            Mistake(
                "first batch alone",
                _only_the_first_batch,
                "That is one batch: a `return` in the loop leaves it at once. `yield` hands out a batch and goes on.",
                3,
            ),
            Mistake(
                "two lists",
                _two_lists,
                "Those are two lists, one of x and one of y. Asked are pairs, "
                "one for each batch: `for batch_x, batch_y in minibatches(...)`.",
                3,
            ),
            Mistake("row numbers", _row_numbers, "Those are row numbers. Take the rows: `x[chosen], y[chosen]`.", 3),
            Mistake("in order", _in_order, "The batches come in the order of the data, and files are often sorted.", 1),
            Mistake(
                "with repeats",
                _with_repeats,
                "Some examples come twice and others never: that is drawing "
                "with replacement. A permutation has each once.",
                1,
            ),
            Mistake(
                "in place",
                _shuffles_your_arrays,
                "The arrays that you were given have changed: x and y belong to "
                "the caller. Shuffle the row numbers instead.",
                1,
            ),
        ),
        run=_two_epochs,
    ),
    Exercise(
        "07.4",
        "Adam",
        "Write `adam_step(w, grad, state, lr, beta1, beta2, eps)`: the weights after one step. `state` "
        "is a dict, empty at the first call, and the same one at every later call. Keep in it the number of the step "
        "`t` (1 at the first) and two moving averages that begin at 0:\n\n"
        "- `m`: `beta1` times the old one, plus `1 - beta1` times `grad`\n"
        "- `v`: `beta2` times the old one, plus `1 - beta2` times `grad**2`\n\n"
        "Both are too small at first, because they began at 0. So divide `m` by `1 - beta1**t` and `v` by "
        "`1 - beta2**t`, without changing what is kept. The step is `lr * m / (sqrt(v) + eps)`, downhill. Return the "
        "weights; `check` tries three steps in a row.",
        12,
        3,
        adam_step,
        hints=(
            'At the first call: `if not state: state["t"], state["m"], state["v"] = 0, np.zeros_like(w), '
            'np.zeros_like(w)`. Then, at every call, `state["t"] += 1`.',
            '`state["m"] = beta1 * state["m"] + (1 - beta1) * grad`, and `v` likewise with `beta2` and '
            '`grad**2`. Then the corrected ones under names of their own: `m = state["m"] / (1 - beta1 ** '
            'state["t"])`.',
            "`return w - lr * m / (np.sqrt(v) + eps)`, with the corrected `m` and `v`.",
        ),
        cases=(
            ([1.0, -2.0, 0.5], [[0.5, 1e-3, -2e-4], [0.25, -2e-3, 1e-4], [0.5, 5e-3, 3e-4]], 0.1),
            ([0.0, 3.0], [[2.0, -1e-4], [-1.0, -1e-4], [4.0, 2e-4]], 0.01),
        ),
        mistakes=(
            Mistake(
                "no correction",
                _uncorrected,
                "The bias correction is missing. Both averages begin at 0, so at "
                "step 1 m is a tenth and sqrt(v) a thirtieth of what it should be, and the step three times too "
                "long.",
                2,
            ),
            Mistake(
                "eps in the root",
                _eps_inside,
                "eps stands inside the root. There 1e-8 counts like a gradient of "
                "1e-4, which is not small; outside it only keeps you from dividing by 0.",
                3,
            ),
            Mistake(
                "forgets",
                _forgets,
                "Step 1 is right, and step 2 is as if nothing had been before it: what you "
                "compute has to be put back into `state`.",
                1,
            ),
            Mistake(
                "t stays 1",
                _never_counts,
                "Step 1 is right and step 2 is not: the bias correction is still that "
                "of the first step. Does `t` count on?",
                1,
            ),
            Mistake(
                "t from 0",
                _counts_from_zero,
                "At step 1 you divide by 1 - beta**0, which is 0. Count before you divide: the first step is t = 1.",
                1,
            ),
            Mistake(
                "no root",
                _no_root,
                "The root of v is missing. Only with it m and its divisor are in the same "
                "units, and the step is about `lr` whatever the size of the gradient.",
                3,
            ),
            Mistake(
                "uphill", _adam_uphill, "The weights walk uphill: the step goes against the gradient, `w - ...`.", 3
            ),
            Mistake(
                "keeps the corrected",
                _keeps_the_corrected,
                "Step 1 is right. But the corrected averages went "
                "into `state`, and get corrected again next time. Keep the raw ones.",
                2,
            ),
        ),
        run=_three_steps_of_adam,
        in_place=True,
    ),
    Exercise(
        "07.5",
        "A training step",
        "Write `train_step(model, optimizer, x, y)`: forget the old gradients "
        "(`optimizer.zero_grad()`), compute the loss with `T.cross_entropy(model(x), y)`, go backward, and let the "
        "optimizer make its `step()`. Return the loss as a plain number, `loss.item()`.",
        5,
        1,
        train_step,
        hints=(
            "Four calls in this order: zero_grad, the loss, backward, step.",
            "`optimizer.zero_grad()`, `loss = T.cross_entropy(model(x), y)`, `loss.backward()`, `optimizer.step()`, "
            "`return loss.item()`",
        ),
        cases=((a_linear_model, "SGD", 0.5), (a_linear_model, "Adam", 0.1)),
        mistakes=(
            Mistake(
                "never zero",
                _piles_up,
                "The first step is right and the later ones are not: the old gradients "
                "are still there, and backward adds to them.",
                1,
            ),
            Mistake(
                "zero too late",
                _zero_too_late,
                "Nothing moves: when the optimizer makes its step there are no "
                "gradients. They come from backward, and zero_grad forgets them.",
                1,
            ),
            Mistake(
                "loss afterwards",
                _loss_afterwards,
                "The weights are right. The loss was computed once more, "
                "after the step; return the one that you had before it, which costs nothing.",
                1,
            ),
            Mistake(
                "a tensor",
                _returns_the_tensor,
                "Return `loss.item()`: a Tensor keeps its whole graph in memory "
                "for as long as you keep it in a history.",
                2,
            ),
        ),
        run=_three_train_steps,
    ),
    Exercise(
        "07.6",
        "The first difference",
        "Write `first_difference(ours, theirs, tolerance)`. Both are dicts of arrays "
        "with the same names and shapes. Go through the names in order; at the first array in which some element "
        "differs by more than `tolerance`, return its name and the index of the element that differs most, as a "
        'tuple: `("weight", (1, 2))`. If there is none return `None`. And a `nan` is a difference.',
        8,
        3,
        first_difference,
        hints=(
            "`difference = np.abs(ours[name] - theirs[name])`. What is `nan > tolerance`? And `nan <= tolerance`?",
            "Both are False! So ask the other way round: `if not difference.max() <= tolerance`. (The maximum of an "
            "array with a nan is nan, and argmax finds it.)",
            "`difference.argmax()` counts along the flattened array; `np.unravel_index(that, difference.shape)` "
            "makes a tuple of it. Return `name, index` inside the loop, `None` after it.",
        ),
        cases=(
            (equal_arrays, 1e-9),
            (one_bias_off, 1e-9),
            (two_weights_off, 1e-9),
            (one_in_a_million_off, 1e-9),
            (a_nan_in_ours, 1e-9),
            (a_weight_much_too_small, 1e-9),
        ),
        mistakes=(
            Mistake(
                "nan slips through",
                _nan_slips_through,
                "A nan went unnoticed: `nan > tolerance` is False, like "
                "every comparison with nan. Ask whether the difference is *not* `<= tolerance`.",
                2,
            ),
            Mistake(
                "no abs",
                _without_abs,
                "An element that is too small got through: a difference of -1 is below "
                "any tolerance. Take the absolute value.",
                1,
            ),
            Mistake(
                "relative too",
                _relative_too,
                "`np.allclose` and `np.isclose` allow a hundred-thousandth of the "
                "number besides what you say: `rtol`. Give them `rtol=0`, or compare with `tolerance` yourself.",
                2,
            ),
            Mistake(
                "sorted names",
                _last_name_first,
                "The names are sorted here. Take them in the order in which they stand in `ours`.",
                3,
            ),
            Mistake(
                "no tuple",
                _no_tuple,
                "The index has to be a tuple of its own: `(name, index)`, and not `(name, *index)`.",
                3,
            ),
            Mistake(
                "flat index",
                _flat_index,
                "The index is that of the flattened array: make it a tuple with np.unravel_index.",
                3,
            ),
            Mistake(
                "first element",
                _first_element,
                "That is the first element beyond the tolerance. Asked is the "
                "one that differs most: where the trouble is largest.",
                3,
            ),
            Mistake(
                "on average",
                _on_average,
                "The mean hides it: one wrong number among a million hardly moves it. Compare the largest difference.",
                2,
            ),
            Mistake(
                "first array only",
                _only_the_first,
                "Only the first array was compared. Is a `return None` inside the loop? It belongs after it.",
                3,
            ),
            Mistake("only the name", _only_the_name, "The name is right; return the index too, `(name, index)`.", 3),
        ),
        run=_of_two_dicts,
    ),
    Exercise(
        "07.7",
        "Four verdicts",
        "Four trainings, each with one bug; above is what `lockstep` says about each. Where "
        'is the bug? Give a tuple of four words for A, B, C and D, each one of `"forward"`, '
        '`"backward"`, `"optimizer"` and `"data"`. Think of the order in which lockstep compares: the '
        "loss, the gradients from the last layer to the first, then the weights after the step.",
        6,
        2,
        ("backward", "optimizer", "forward", "data"),
        hints=(
            "What comes first in a step is compared first. If the loss agrees, forward is right; if all gradients "
            "agree too, so is backward.",
            "B: two gradients agreed in step 2, and the weights did not. Who stands between a gradient and a "
            "weight? D: both sides do the same thing, and it is of no use to either. What do they share?",
            "A is found in a gradient, so backward. C in the loss, so forward. B is the optimizer.",
        ),
        mistakes=(
            Mistake(
                "D too",
                ("backward", "optimizer", "forward", "forward"),
                "A, B and C are right. But if D's "
                "forward were wrong its loss would differ from torch's. What do both sides of D share?",
                2,
            ),
            Mistake(
                "D optimizer",
                ("backward", "optimizer", "forward", "optimizer"),
                "A, B and C are right. But if "
                "D's optimizer were wrong its weights would differ from torch's. What do both sides of D share?",
                2,
            ),
            Mistake(
                "A forward",
                ("forward", "optimizer", "forward", "data"),
                "In A the loss agreed, and so did the "
                "gradients of the last layer: the numbers on the way forward are right.",
                1,
            ),
            Mistake(
                "A and C swapped",
                ("forward", "optimizer", "backward", "data"),
                "C's very first loss is wrong, before any backward has happened; and A's was right.",
                1,
            ),
            Mistake(
                "B backward",
                ("backward", "backward", "forward", "data"),
                "In B every gradient of steps 1 and 2 agreed. What happens after the gradients?",
                2,
            ),
        ),
        explain="D is the twin of exercise 07.3's first mistake: labels that belong to other images.",
    ),
)
