"""Exercises of notebook 04: tensors and broadcasting."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import numpy as np

from mlx_grpo_kit.course.compare import Told, show
from mlx_grpo_kit.course.exercise import Exercise, Mistake
from mlx_grpo_kit.tensor import Tensor, mean, tanh


def _counted(*shape):
    """1, 2, 3 ... in an array of this shape: no two numbers alike, so that nothing is right by chance."""
    return np.arange(1.0, np.prod(shape, dtype=int) + 1).reshape(shape)


# -- 04.3 -------------------------------------------------------------------------------------------------------------


def broadcast_shape(a, b):
    """The shape of an array of shape a plus one of shape b, a tuple; None if they do not fit."""
    longest = max(len(a), len(b))
    a = (1,) * (longest - len(a)) + tuple(a)
    b = (1,) * (longest - len(b)) + tuple(b)
    result = []
    for m, n in zip(a, b):
        if m != n and m != 1 and n != 1:
            return None
        result.append(n if m == 1 else m)
    return tuple(result)


def _lined_up_on_the_left(a, b):
    longest = max(len(a), len(b))
    return broadcast_shape(tuple(a) + (1,) * (longest - len(a)), tuple(b) + (1,) * (longest - len(b)))


def _larger_without_asking(a, b):
    longest = max(len(a), len(b))
    pairs = zip((1,) * (longest - len(a)) + tuple(a), (1,) * (longest - len(b)) + tuple(b))
    return tuple(max(pair) for pair in pairs)


def _new_axes_lost(a, b):
    shape = broadcast_shape(a, b)
    return shape if shape is None else shape[len(shape) - min(len(a), len(b)) :]


def _one_does_not_stretch(a, b):
    longest = max(len(a), len(b))
    a, b = ((0,) * (longest - len(shape)) + tuple(shape) for shape in (a, b))
    return None if any(m != n and 0 not in (m, n) for m, n in zip(a, b)) else tuple(map(max, zip(a, b)))


def _only_equal_lengths(a, b):
    return broadcast_shape(a, b) if len(a) == len(b) else None


def _backwards(a, b):
    shape = broadcast_shape(a, b)
    return shape if shape is None else shape[::-1]


def _raises(a, b):
    return np.broadcast_shapes(a, b)


def _shape_or_nothing(function, a, b):
    """Nothing is an answer here, so it is spelled out."""
    result = function(a, b)
    if result is None:
        return Told("None, which says that they do not fit")
    return tuple(result) if isinstance(result, (list, tuple)) else result


# -- 04.4 -------------------------------------------------------------------------------------------------------------


def unbroadcast(grad, shape):
    """The gradient of an array of this shape that was broadcast to the shape of grad."""
    while grad.ndim > len(shape):  # axes that are new stand in front
        grad = grad.sum(axis=0)
    for axis in range(len(shape)):
        if shape[axis] == 1:  # this one was stretched
            grad = grad.sum(axis=axis, keepdims=True)
    return grad


def _as_it_is(grad, shape):
    return grad


def _only_new_axes(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(axis=0)
    return grad


def _only_stretched_axes(grad, shape):
    for axis in range(len(shape)):
        if shape[axis] == 1:
            grad = grad.sum(axis=axis - len(shape), keepdims=True)
    return grad


def _keepdims_dropped(grad, shape):
    grad = _only_new_axes(grad, shape)
    return grad.sum(axis=tuple(axis for axis in range(len(shape)) if shape[axis] == 1))


def _new_axes_at_the_end(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(axis=-1)
    for axis in range(len(shape)):
        if shape[axis] == 1:
            grad = grad.sum(axis=axis, keepdims=True)
    return grad


def _new_axes_kept(grad, shape):
    return unbroadcast(grad, shape).reshape((1,) * (grad.ndim - len(shape)) + tuple(shape))


def _new_axes_counted_up(grad, shape):
    for axis in range(grad.ndim - len(shape)):
        grad = grad.sum(axis=axis)
    for axis in range(len(shape)):
        if shape[axis] == 1:
            grad = grad.sum(axis=axis, keepdims=True)
    return grad


def _stretched_first(grad, shape):
    for axis in range(len(shape)):
        if shape[axis] == 1:
            grad = grad.sum(axis=axis, keepdims=True)
    while grad.ndim > len(shape):
        grad = grad.sum(axis=0)
    return grad


def _axes_renumbered(grad, shape):
    grad = _only_new_axes(grad, shape)
    for axis in range(len(shape)):
        if shape[axis] == 1:
            grad = grad.sum(axis=axis)
    return grad


def _renumbered_and_reshaped(grad, shape):
    return _axes_renumbered(grad, shape).reshape(shape)


def _indexed_before_lining_up(grad, shape):
    for axis in range(len(shape)):
        if shape[axis] != grad.shape[axis]:
            grad = grad.sum(axis=axis, keepdims=True)
    while grad.ndim > len(shape):
        grad = grad.sum(axis=0)
    return grad


def _mean(grad, shape):
    return unbroadcast(grad, shape) * (np.prod(shape) / grad.size)


def _first_copy(grad, shape):
    while grad.ndim > len(shape):
        grad = grad[0]
    for axis in range(len(shape)):
        if shape[axis] == 1:
            grad = grad.take([0], axis=axis)
    return grad


# -- 04.5 -------------------------------------------------------------------------------------------------------------


def sum_backward(grad, shape, axis, keepdims):
    """The gradient of x, which has this shape, from that of x.sum(axis=axis, keepdims=keepdims)."""
    if not keepdims:
        grad = np.expand_dims(grad, axis)  # put the axis back that the sum took away
    return np.broadcast_to(grad, shape)


def _not_copied(grad, shape, axis, keepdims):
    return grad


def _ones(grad, shape, axis, keepdims):
    return np.ones(shape)


def _divided(grad, shape, axis, keepdims):
    return sum_backward(grad, shape, axis, keepdims) / shape[axis]


def _axis_not_put_back(grad, shape, axis, keepdims):
    return np.broadcast_to(grad, shape)


def _put_back_in_second_place(grad, shape, axis, keepdims):
    return np.broadcast_to(grad if keepdims else grad[:, None], shape)


def _put_back_at_the_end(grad, shape, axis, keepdims):
    return np.broadcast_to(grad if keepdims else grad[..., None], shape)


def _put_back_twice(grad, shape, axis, keepdims):
    return np.broadcast_to(np.expand_dims(grad, axis), shape)


# -- 04.6 -------------------------------------------------------------------------------------------------------------


def matmul_backward(grad, a, b):
    """(gradient of a, gradient of b) for c = a @ b. grad is the gradient of c."""
    return grad @ b.T, a.T @ grad


def _no_transpose(grad, a, b):
    return grad @ b, a @ grad


def _other_order(grad, a, b):
    return b.T @ grad, grad @ a.T


def _like_a_product(grad, a, b):
    return grad * b, grad * a


def _swapped(grad, a, b):
    return a.T @ grad, grad @ b.T


def _grad_forgotten(grad, a, b):
    return np.ones_like(grad) @ b.T, a.T @ np.ones_like(grad)


def _first_only(grad, a, b):
    return grad @ b.T


# -- 04.7 -------------------------------------------------------------------------------------------------------------


def train_step(parameters, compute_loss, learning_rate):
    """One step of gradient descent. Returns the loss before it, a number."""
    for p in parameters:
        p.grad = None
    loss = compute_loss()
    loss.backward()
    for p in parameters:
        p.data -= learning_rate * p.grad
    return loss.item()


def _never_zero(parameters, compute_loss, learning_rate):
    loss = compute_loss()
    loss.backward()
    for p in parameters:
        p.data -= learning_rate * p.grad
    return loss.item()


def _uphill(parameters, compute_loss, learning_rate):
    return train_step(parameters, compute_loss, -learning_rate)


def _rebinds(parameters, compute_loss, learning_rate):
    loss = compute_loss()
    loss.backward()
    for p in parameters:
        p = p - learning_rate * p.grad
    return loss.item()


def _zero_too_late(parameters, compute_loss, learning_rate):
    loss = compute_loss()
    loss.backward()
    for p in parameters:
        p.grad = None
    for p in parameters:
        p.data -= learning_rate * p.grad
    return loss.item()


def _data_of_the_gradient(parameters, compute_loss, learning_rate):
    for p in parameters:
        p.grad = None
    loss = compute_loss()
    loss.backward()
    for p in parameters:
        p.data -= learning_rate * p.grad.data
    return loss.item()


def _new_tensors_in_the_list(parameters, compute_loss, learning_rate):
    for p in parameters:
        p.grad = None
    loss = compute_loss()
    loss.backward()
    for i, p in enumerate(parameters):
        parameters[i] = Tensor(p.data - learning_rate * p.grad, requires_grad=True)
    return loss.item()


def _loss_afterwards(parameters, compute_loss, learning_rate):
    train_step(parameters, compute_loss, learning_rate)
    return compute_loss().item()


def _in_place_and_recorded(parameters, compute_loss, learning_rate):
    loss = compute_loss()
    loss.backward()
    for p in parameters:
        p -= learning_rate * p.grad
    return loss.item()


def _returns_the_tensor(parameters, compute_loss, learning_rate):
    return Tensor(train_step(parameters, compute_loss, learning_rate))


def _returns_an_array(parameters, compute_loss, learning_rate):
    return np.array(train_step(parameters, compute_loss, learning_rate))


def a_line():
    """a line w * x + b through three points"""
    x, y = np.array([[0.0], [1.0], [2.0]]), np.array([[1.0], [0.0], [3.0]])
    w, b = Tensor([[0.5]], requires_grad=True), Tensor([0.0], requires_grad=True)
    return [w, b], lambda: mean((x @ w + b - y) ** 2)


def a_curve():
    """tanh of two weights and two points"""
    x, w = np.array([[1.0, -2.0], [0.5, 1.0]]), Tensor([[0.3], [-0.4]], requires_grad=True)
    return [w], lambda: mean((tanh(x @ w) - 1.0) ** 2)


def _three_steps(function, build, learning_rate):
    """The losses of three steps, and the parameters afterwards."""
    parameters, compute_loss = build()
    own, losses = list(parameters), []
    for _ in range(3):
        loss = function(parameters, compute_loss, learning_rate)
        if loss is None:
            return None
        if list(map(id, parameters)) != list(map(id, own)):
            return Told("a list that holds other tensors than before")
        if isinstance(loss, Tensor):
            return Told("a Tensor as the loss")
        if isinstance(loss, np.ndarray):
            return Told(f"an array of shape {loss.shape} as the loss")
        if not isinstance(loss, (float, np.floating)):
            return Told(f"{show(loss)} as the loss")
        losses.append(loss)
    return {"losses": losses, "parameters": [p.data.round(9).tolist() for p in parameters]}


EXERCISES = (
    Exercise(
        "04.1",
        "Where did the axis go?",
        "`x` has shape `(2, 3, 4)`. What are the shapes of `x.sum(axis=0)`, "
        "`x.sum(axis=1)`, `x.sum(axis=1, keepdims=True)` and `x.sum(axis=(0, 2))`? Put the four shapes in a tuple. A "
        "shape of one axis is written `(5,)`, with a comma. The panel above knows, but think first.",
        3,
        1,
        ((3, 4), (2, 4), (2, 1, 4), (3,)),
        hints=(
            "The sum over an axis takes that axis away and leaves the others in their order: (2, 3, 4) without axis "
            "0 is ...",
            "`keepdims=True` leaves a 1 in the place of the axis. For `axis=(0, 2)` two axes go, and axis 1 is left.",
        ),
        mistakes=(
            Mistake(
                "keeps what it sums",
                ((2,), (3,), (1, 3, 1), (2, 4)),
                "You kept the axis that was named. It is the one that is walked along, and so the one that is gone.",
                1,
            ),
            Mistake(
                "counts from 1",
                ((3, 4), (2, 4), (2, 1, 4), (4,)),
                "The first three are right. axis=(0, 2) are "
                "the first and the last axis: the one in the middle is left.",
                2,
            ),
            Mistake(
                "no keepdims",
                ((3, 4), (2, 4), (2, 4), (3,)),
                "The third has keepdims=True: the axis stays, with length 1.",
                2,
            ),
            Mistake(
                "kept at the end",
                ((3, 4), (2, 4), (2, 4, 1), (3,)),
                "Three of the four are right. In the third the 1 stays where the axis was, in the middle.",
                2,
            ),
            Mistake(
                "number for a shape",
                ((3, 4), (2, 4), (2, 1, 4), 3),
                "The shape of one axis is a tuple too: (3,), with a comma. (3) is the number 3.",
                2,
            ),
        ),
    ),
    Exercise(
        "04.2",
        "Do they fit?",
        "Four pairs of shapes are added: `(3, 1)` and `(1, 5)`; `(6,)` and `(2, 6)`; `(2, 6)` "
        "and `(2,)`; `(4, 1, 2)` and `(3, 1)`. Put the shapes of the results in a tuple, with `None` for a pair that "
        "does not fit.",
        4,
        1,
        ((3, 5), (2, 6), None, (4, 3, 2)),
        hints=(
            "Write one shape beneath the other, lined up on the right, and go through the columns: equal lengths "
            "fit, and a 1 fits anything.",
            "In the third pair the 2 stands beneath the 6. In the last one (3, 1) stands beneath (1, 2), and the 4 "
            "has nothing beneath it.",
        ),
        mistakes=(
            Mistake(
                "on the left",
                ((3, 5), None, (2, 6), None),
                "You lined the shapes up on the left. Broadcasting lines them up on the right.",
                1,
            ),
            Mistake(
                "third fits",
                ((3, 5), (2, 6), (2, 6), (4, 3, 2)),
                "The third pair: on the right stand 6 and 2. That the first axis is a 2 as well does not help.",
                2,
            ),
            Mistake(
                "the last does not fit",
                ((3, 5), (2, 6), None, None),
                "Three of the four are right. Look at the "
                "last pair again: (3, 1) stands beneath (1, 2), and each of these columns has a 1.",
                2,
            ),
            Mistake(
                "the first does not fit",
                (None, (2, 6), None, (4, 3, 2)),
                "The first pair: both may stretch at the same time, each along another axis.",
                1,
            ),
            Mistake(
                "ones do not stretch",
                (None, (2, 6), None, None),
                "A 1 stretches to any length, in the first shape as in the second, and in both at the same time.",
                1,
            ),
        ),
    ),
    Exercise(
        "04.3",
        "The shape of the result",
        "Write `broadcast_shape(a, b)`: the shape of an array of shape `a` plus one "
        "of shape `b`, both tuples. `broadcast_shape((3, 1), (4,))` is `(3, 4)`. Return `None` if they do not fit.",
        8,
        2,
        broadcast_shape,
        hints=(
            "Make both shapes equally long first: put ones in front of the shorter. `(1,) * 2 + (4,)` is `(1, 1, 4)`.",
            "Then go through both with `zip`. Two lengths fit if they are equal, or if one of them is 1; the result "
            "has the other one.",
            "`for m, n in zip(a, b):`\n`    if m != n and m != 1 and n != 1: return None`\n"
            "`    result.append(n if m == 1 else m)`",
        ),
        cases=(
            ((3, 1), (4,)),
            ((4, 3), (3,)),
            ((3,), (3, 4)),
            ((2, 1, 4), (3, 1)),
            ((), (2, 3)),
            ((3, 4), (3,)),
            ((5, 6), (6,)),
            ((1, 2), (2, 3)),
        ),
        mistakes=(
            Mistake(
                "on the left",
                _lined_up_on_the_left,
                "The shapes are lined up on the left. Put the missing ones in front, not at the end.",
                1,
            ),
            Mistake(
                "larger without asking",
                _larger_without_asking,
                "The larger length is right where two lengths "
                "fit, but 4 and 3 do not: nobody knows which of the 4 should go with which of the 3.",
                2,
            ),
            Mistake(
                "new axes lost",
                _new_axes_lost,
                "The longer shape has axes that the shorter lacks, and `zip` "
                "stops where the shorter one ends. They belong to the result.",
                1,
            ),
            Mistake("one does not stretch", _one_does_not_stretch, "Different lengths fit where one of them is 1.", 2),
            Mistake(
                "raises",
                _raises,
                "NumPy raises an error for shapes that do not fit. Here the answer is None for "
                "them: ask first, or catch the error with `try` and `except ValueError`.",
                2,
            ),
            Mistake(
                "equal numbers of axes",
                _only_equal_lengths,
                "Shapes may have different numbers of axes: what the shorter one lacks counts as 1.",
                1,
            ),
            Mistake(
                "backwards",
                _backwards,
                "The lengths are right and stand in reverse. If you went from the right, turn the result around.",
                3,
            ),
        ),
        run=_shape_or_nothing,
        explain="Two lines decide whether millions of lines of array code run. (`max(m, n)` would do where they fit, "
        "except for an axis of length 0: there a 1 stretches to 0.)",
    ),
    Exercise(
        "04.4",
        "Undo broadcasting",
        "Write `unbroadcast(grad, shape)`. An array of shape `shape` was broadcast; "
        "`grad` is the gradient of what came out, an array in the large shape. Return the gradient of the array "
        "itself, in `shape`: each of its numbers gets the sum of the gradients of its copies.",
        12,
        3,
        unbroadcast,
        hints=(
            "Two kinds of axes have to be summed. First the new ones, which `shape` does not have: they stand in "
            "front. How many are there?",
            "New axes: `while grad.ndim > len(shape): grad = grad.sum(axis=0)`. Now both have the same number of "
            "axes, and those where `shape` has a 1 were stretched.",
            "Stretched axes keep their place: `if shape[axis] == 1: grad = grad.sum(axis=axis, keepdims=True)`.",
            "Mind the order: first the new axes, then the stretched ones. Before the new axes are gone, "
            "`shape[0]` and `grad.shape[0]` are not about the same axis.",
        ),
        cases=(
            (_counted(2, 3), (3,)),
            (_counted(3, 2), (3, 1)),
            (_counted(2, 3), ()),
            (_counted(2, 2), (2, 2)),
            (_counted(2, 2, 2), (2, 1)),
            (_counted(4, 4), (4,)),
            (_counted(4, 5), (5,)),
            (_counted(2, 3, 4), (1, 4)),
            (_counted(2, 3, 4), (2, 1, 1)),
            (_counted(2, 1, 3), (1, 3)),
        ),
        mistakes=(
            Mistake(
                "as it is",
                _as_it_is,
                "That is the gradient of the copies. Those of the same number still have to be added up.",
                1,
            ),
            Mistake(
                "only new axes",
                _only_new_axes,
                "The new axes in front are summed. An axis where `shape` has a 1 "
                "was stretched, and has to be summed as well.",
                3,
            ),
            Mistake(
                "only stretched axes",
                _only_stretched_axes,
                "The axes where `shape` has a 1 are summed. The new "
                "axes in front, which `shape` does not have at all, are not.",
                1,
            ),
            Mistake(
                "keepdims dropped",
                _keepdims_dropped,
                "The sums are right, but an axis is lost: a stretched axis "
                "stays in the shape, with length 1. `keepdims=True` keeps it.",
                3,
            ),
            Mistake(
                "axes renumbered",
                _axes_renumbered,
                "A sum without `keepdims=True` takes its axis away: it is "
                "missing from the result, and those behind it have moved one place to the front when you come to "
                "them.",
                3,
            ),
            Mistake(
                "renumbered and reshaped",
                _renumbered_and_reshaped,
                "reshape brings a lost axis back at the end, "
                "but before that each sum without `keepdims=True` moves those behind it one place to the front, "
                "and `axis` is off by one.",
                3,
            ),
            Mistake(
                "new axes kept",
                _new_axes_kept,
                "The sums are right. `keepdims=True` has kept the new axes too, "
                "and `shape` does not have them: sum those without it, or reshape at the end.",
                2,
            ),
            Mistake(
                "new axes counted up",
                _new_axes_counted_up,
                "The new axes stand in front, and when axis 0 has "
                "been summed, the next new one *is* axis 0. Counting up passes over it.",
                2,
            ),
            Mistake(
                "stretched first",
                _stretched_first,
                "`shape[axis] == 1` was asked while the new axes still stood "
                "in front, so another axis of `grad` was summed. Sum the new axes first.",
                4,
            ),
            Mistake(
                "on the left",
                _new_axes_at_the_end,
                "The wrong axes are summed: new axes stand in front, on the "
                "left, because shapes are lined up on the right.",
                2,
            ),
            Mistake(
                "indexed before lining up",
                _indexed_before_lining_up,
                "`shape[axis]` was compared with "
                "`grad.shape[axis]` before the new axes were gone, so the two are not about the same axis: (5,) "
                "meets the 4 of (4, 5). Sum the new axes first.",
                4,
            ),
            Mistake(
                "mean",
                _mean,
                "That is the mean of the copies' gradients. Nudge the number, and every copy moves "
                "in full: the effects add up.",
                1,
            ),
            Mistake(
                "the first copy",
                _first_copy,
                "That is the gradient of the first copy alone. The others come from the same number.",
                1,
            ),
        ),
    ),
    Exercise(
        "04.5",
        "The way back of a sum",
        "Write `sum_backward(grad, shape, axis, keepdims)`. Forward was "
        "`x.sum(axis=axis, keepdims=keepdims)`, with `x` of shape `shape`; `grad` is the gradient of the sums. Return "
        "the gradient of `x`, in `shape`. `axis` is one number; `np.expand_dims(array, axis)` puts an axis of length 1 "
        "into an array, `np.broadcast_to(array, shape)` copies.",
        6,
        2,
        sum_backward,
        hints=(
            "Each number of x was added into one sum, with a slope of 1. So each gets the gradient of its sum: a copy.",
            "With keepdims `np.broadcast_to(grad, shape)` does it. Without, the axis is missing from grad, and has "
            "to come back to its place first.",
            "`if not keepdims: grad = np.expand_dims(grad, axis)`",
        ),
        cases=(
            (_counted(2), (2, 3), 1, False),
            (_counted(2, 1), (2, 3), 1, True),
            (_counted(3), (2, 3), 0, False),
            (_counted(3), (3, 3), 1, False),
            (_counted(2, 2), (2, 3, 2), 1, False),
            (_counted(2, 1, 2), (2, 3, 2), 1, True),
        ),
        mistakes=(
            Mistake(
                "not copied",
                _not_copied,
                "That is still the shape of the sums. x has more numbers, and each needs its gradient.",
                1,
            ),
            Mistake(
                "ones",
                _ones,
                "The slope of a sum for each of its numbers is 1, but the sums went on to something "
                "else: multiply by grad.",
                1,
            ),
            Mistake("divided", _divided, "That is the way back of a mean. In a sum each number counts in full.", 1),
            Mistake(
                "axis not put back",
                _axis_not_put_back,
                "Without keepdims the axis is gone from grad, and "
                "broadcasting puts a new one in front: an error at best, and copies in the wrong direction where "
                "the array is square. It has to come back at place `axis`.",
                3,
            ),
            Mistake(
                "in second place",
                _put_back_in_second_place,
                "`[:, None]` puts the axis back as axis 1, which is right for `axis=1` alone.",
                3,
            ),
            Mistake(
                "at the end",
                _put_back_at_the_end,
                "The axis came back at the end, which is right only if the "
                "last one was summed. It belongs at place `axis`.",
                3,
            ),
            Mistake(
                "put back twice",
                _put_back_twice,
                "With keepdims=True the axis is still there: put it back only without keepdims.",
                3,
            ),
        ),
    ),
    Exercise(
        "04.6",
        "The gradient of a matrix product",
        "Write `matmul_backward(grad, a, b)` for `c = a @ b`, with `a` of "
        "shape `(n, k)` and `b` of shape `(k, m)`. `grad` is the gradient of `c`, of shape `(n, m)`. Return the "
        "gradients of `a` and of `b`, in this order. `a.T` is `a` with its axes swapped.",
        8,
        2,
        matmul_backward,
        hints=(
            "The gradient of a has the shape of a, (n, k). It is made of grad, (n, m), and b, (k, m). Which product "
            "of the two, turned or not, is (n, k)?",
            "`grad @ b.T` is (n, m) times (m, k). For b do the same: (k, m) from a.T, which is (k, n), and grad.",
            "`return grad @ b.T, a.T @ grad`",
        ),
        cases=(
            (_counted(2, 4), _counted(2, 3), _counted(3, 4)),
            (_counted(2, 2) / 2, _counted(2, 2), -_counted(2, 2)),
            (_counted(1, 3), _counted(1, 1), _counted(1, 3)),
        ),
        mistakes=(
            Mistake(
                "no transpose",
                _no_transpose,
                "The shapes do not meet: one of the two has to be turned with .T before the product.",
                1,
            ),
            Mistake(
                "other order",
                _other_order,
                "The matrices stand in the wrong order: a was on the left of b, so "
                "its gradient comes from grad on the left. In a product of matrices the order counts.",
                2,
            ),
            Mistake(
                "elementwise",
                _like_a_product,
                "`*` multiplies number by number; that is the rule of a * b. Here "
                "each number of a went into a whole row of c, so the sum over that row is needed: `@` does it.",
                1,
            ),
            Mistake("swapped", _swapped, "The two gradients are right and in the wrong order: first a's, then b's.", 3),
            Mistake(
                "grad forgotten",
                _grad_forgotten,
                "That is the gradient of c.sum(), for which grad is all ones. Here grad has its own numbers.",
                1,
            ),
            Mistake("only one", _first_only, "That is the gradient of a. Return two: `return ..., ...`.", 2),
        ),
    ),
    Exercise(
        "04.7",
        "A training step",
        "Write `train_step(parameters, compute_loss, learning_rate)`. `parameters` is a "
        "list of Tensors that require a gradient; `compute_loss()` computes the loss with them, a Tensor. Set the "
        "gradients to None, compute the loss, go backward, and move each parameter's numbers against its gradient. "
        "Return the loss as a number, `loss.item()`.",
        8,
        2,
        train_step,
        hints=(
            "The same four parts as in exercise 03.4. `p.grad = None` for each p; `loss = compute_loss()`; "
            "`loss.backward()`; the update.",
            "The update changes numbers and should leave no trace in a graph: `p.data -= learning_rate * p.grad`. "
            "Or `with T.no_grad(): p -= learning_rate * p.grad`.",
            "In a loop `for p in parameters`, `p = p - ...` only gives a new tensor the name p. The parameter in "
            "the list stays as it was.",
        ),
        cases=((a_line, 0.1), (a_line, 0.02), (a_curve, 0.5)),
        mistakes=(
            Mistake(
                "never zero",
                _never_zero,
                "The first step is right and the second is not: the gradients of the "
                "first are still there, and backward adds to them.",
                1,
            ),
            Mistake(
                "uphill", _uphill, "The loss grows: the gradient points uphill, so the step goes against it, `-=`.", 2
            ),
            Mistake(
                "rebinds",
                _rebinds,
                "The loss stays the same, so no parameter has moved: its numbers have to "
                "change. (`p = p - ...` makes a new tensor and leaves the one in the list alone.)",
                3,
            ),
            Mistake(
                "zero too late",
                _zero_too_late,
                "A gradient was None when the update wanted it. `p.grad = None` "
                "empties it and `loss.backward()` fills it: empty it before backward, use it after.",
                1,
            ),
            Mistake(
                "data of the gradient",
                _data_of_the_gradient,
                "`p.grad` is a NumPy array, not a Tensor as in "
                "torch; take it as it is. (`.data` of an array is its raw memory.)",
                2,
            ),
            Mistake(
                "new tensors in the list",
                _new_tensors_in_the_list,
                "`compute_loss` still computes with the old "
                "tensors, and they have not moved. Change the numbers inside each parameter: `p.data -= ...`.",
                2,
            ),
            Mistake(
                "loss afterwards",
                _loss_afterwards,
                "That is the loss after the update. Return the one that you went backward from.",
                1,
            ),
            Mistake(
                "in place, recorded",
                _in_place_and_recorded,
                "The update is arithmetic with a tensor that "
                "requires a gradient, so the engine would have to record it. Change `p.data`, or do it inside "
                "`with T.no_grad():`.",
                2,
            ),
            Mistake(
                "returns the tensor",
                _returns_the_tensor,
                "Return `loss.item()`, a number: the tensor would keep "
                "its whole graph in memory for as long as you keep the history.",
                1,
            ),
            Mistake(
                "returns an array",
                _returns_an_array,
                "`loss.data` is an array without axes; `loss.item()` is the number in it.",
                1,
            ),
        ),
        run=_three_steps,
        in_place=True,
    ),
)
