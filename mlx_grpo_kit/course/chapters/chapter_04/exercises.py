"""Exercises of notebook 04: tensors and broadcasting."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import numpy as np

from mlx_grpo_kit.course.compare import Told, show
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.tensor import Tensor, mean, tanh


def _counted(*shape):
    """1, 2, 3 ... in an array of this shape: all numbers differ, so that nothing is right by chance."""
    return np.arange(1.0, np.prod(shape, dtype=int) + 1).reshape(shape)


def _some_shape(rng, least=0):
    """A shape of up to three axes, many of them of length 1."""
    return tuple(map(int, rng.choice([1, 1, 2, 3, 4], size=rng.integers(least, 4))))


AXES_GONE = Exercise(
    "04.1",
    "Where did the axis go?",
    "`x` has shape `(2, 3, 4)`. What are the shapes of `x.sum(axis=0)`, `x.sum(axis=1)`, `x.sum(axis=1, "
    "keepdims=True)` and `x.sum(axis=(0, 2))`? Put the four shapes in a tuple. Write a shape with one axis as "
    "`(5,)`, with a comma. The panel above shows the answers, but think first.",
    minutes=3,
    difficulty=1,
    solution=((3, 4), (2, 4), (2, 1, 4), (3,)),
    hints=(
        "The sum over an axis removes that axis and keeps the others in their order: (2, 3, 4) without axis 0 is ...",
        "`keepdims=True` leaves a 1 in place of the axis. `axis=(0, 2)` removes two axes, and only axis 1 remains.",
    ),
    mistakes=slips(
        ((3, 4), (2, 4), (2, 1, 4), (3,)),
        r"""
keeps what it sums
+ ((2,), (3,), (1, 3, 1), (2, 4))
! You kept the named axis. The sum walks along this axis, so this is the axis that disappears.
counts from 1 (2)
+ ((3, 4), (2, 4), (2, 1, 4), (4,))
! The first three are right. axis=(0, 2) names the first and the last axis, so the middle one remains.
no keepdims (2)
+ ((3, 4), (2, 4), (2, 4), (3,))
! The third has keepdims=True: the axis stays, with length 1.
kept at the end (2)
+ ((3, 4), (2, 4), (2, 4, 1), (3,))
! Three of the four are right. In the third the 1 stays where the axis was, in the middle.
number for a shape (2)
+ ((3, 4), (2, 4), (2, 1, 4), 3)
! A shape with one axis is a tuple too: (3,), with a comma. (3) is the number 3.
""",
    ),
)

DO_THEY_FIT = Exercise(
    "04.2",
    "Do they fit?",
    "You add arrays of these four pairs of shapes: `(3, 1)` and `(1, 5)`; `(6,)` and `(2, 6)`; `(2, 6)` and "
    "`(2,)`; `(4, 1, 2)` and `(3, 1)`. Put the shapes of the results in a tuple, with `None` for a pair that does "
    "not fit.",
    minutes=4,
    difficulty=1,
    solution=((3, 5), (2, 6), None, (4, 3, 2)),
    hints=(
        "Write one shape below the other, aligned on the right, and go through the columns: equal lengths fit, and "
        "a 1 fits anything.",
        "In the third pair, the 2 is below the 6. In the last pair, (3, 1) is below (1, 2), and there is nothing "
        "below the 4.",
    ),
    mistakes=slips(
        ((3, 5), (2, 6), None, (4, 3, 2)),
        r"""
on the left
+ ((3, 5), None, (2, 6), None)
! You aligned the shapes on the left. Broadcasting aligns them on the right.
third fits (2)
+ ((3, 5), (2, 6), (2, 6), (4, 3, 2))
! Look at the third pair: the lengths on the right are 6 and 2. It does not help that the first axis is a 2 too, nor
! that 6 is three times 2.
the last does not fit (2)
+ ((3, 5), (2, 6), None, None)
! Three of the four are right. Look at the last pair again: (3, 1) is below (1, 2), and each of these columns has a 1.
the first does not fit
+ (None, (2, 6), None, (4, 3, 2))
! Look at the first pair: both shapes can stretch at the same time, each along a different axis.
ones do not stretch
+ (None, (2, 6), None, None)
! A 1 stretches to any length, in either shape, and in both at the same time.
""",
    ),
)


def broadcast_shape(a, b):
    """The shape of x + y, a tuple, for x of shape a and y of shape b; None if they do not fit."""
    longest = max(len(a), len(b))
    a = (1,) * (longest - len(a)) + tuple(a)
    b = (1,) * (longest - len(b)) + tuple(b)
    result = []
    for m, n in zip(a, b):
        if m != n and m != 1 and n != 1:
            return None
        result.append(n if m == 1 else m)
    return tuple(result)


def _new_axes_lost(a, b):
    shape = broadcast_shape(a, b)
    return shape if shape is None else shape[len(shape) - min(len(a), len(b)) :]


def _larger_of_each(a, b):
    longest = max(len(a), len(b))
    return tuple(max(pair) for pair in zip((1,) * (longest - len(a)) + a, (1,) * (longest - len(b)) + b))


def _shape_or_nothing(function, a, b):
    """None is an answer here, so spell it out."""
    result = function(a, b)
    if result is None:
        return Told("None, because they do not fit")
    return tuple(result) if isinstance(result, (list, tuple)) else result


def _two_shapes(rng):
    """Two shapes that fit, or that fail because one length is a multiple or a neighbour of the other."""
    result = rng.integers(2, 7, size=4)
    a, b = (tuple(map(int, np.where(rng.random(4) < 0.4, 1, result)[rng.integers(0, 4) :])) for _ in range(2))
    if rng.random() < 0.4:
        a = (*a[:-1], a[-1] * 2)
    return a, b


SHAPE_OF_RESULT = Exercise(
    "04.3",
    "The shape of the result",
    "Write `broadcast_shape(a, b)`, which returns the shape of the sum of two arrays, one of shape `a` and one of "
    "shape `b` (both are tuples). For example, `broadcast_shape((3, 1), (4,))` is `(3, 4)`. Return `None` if the "
    "shapes do not fit.",
    minutes=8,
    difficulty=2,
    solution=broadcast_shape,
    hints=(
        "First make both shapes equally long: put ones in front of the shorter one. `(1,) * 2 + (4,)` is `(1, 1, 4)`.",
        "Then go through both with `zip`. Two lengths fit if they are equal or if one of them is 1; the result "
        "gets the other length.",
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
        ((2, 6), (2, 3)),
        ((2,), (4,)),
        ((4, 2, 3), (5, 2, 3)),
        ((), ()),
        *drawn(12, _two_shapes),
    ),
    mistakes=(
        Mistake(
            "an empty shape is nothing",
            lambda a, b: broadcast_shape(a, b) or None,
            "Two single numbers fit, and the shape of their sum is `()`. Python counts an empty tuple as false: "
            "test with `is None`.",
        ),
        Mistake(
            "the last two axes alone",
            lambda a, b: None if broadcast_shape(a[-2:], b[-2:]) is None else _larger_of_each(a, b),
            "Every column has to fit, however many there are: here the first one does not.",
            hint=2,
        ),
        *slips(
            broadcast_shape,
            r"""
on the left
- a = (1,) * (longest - len(a)) + tuple(a)
- b = (1,) * (longest - len(b)) + tuple(b)
+ a = tuple(a) + (1,) * (longest - len(a))
+ b = tuple(b) + (1,) * (longest - len(b))
! You aligned the shapes on the left. Put the missing ones in front, not at the end.
larger without asking (2)
-     return None
- result.append(n if m == 1 else m)
+     pass
+ result.append(max(m, n))
! The larger length is right if two lengths fit, but 4 and 3 do not fit: nothing says which of the 4 numbers belongs to
! which of the 3.
fits if divisible (2)
- if m != n and m != 1 and n != 1:
+ if m % n and n % m:
- result.append(n if m == 1 else m)
+ result.append(max(m, n))
! 6 is three times 2, but they still do not fit: only a 1 is stretched, and no block is ever repeated.
one does not stretch (2)
- a = (1,) * (longest - len(a)) + tuple(a)
- b = (1,) * (longest - len(b)) + tuple(b)
+ a = (0,) * (longest - len(a)) + tuple(a)
+ b = (0,) * (longest - len(b)) + tuple(b)
- if m != n and m != 1 and n != 1:
+ if m != n and m != 0 and n != 0:
- result.append(n if m == 1 else m)
+ result.append(n if m == 0 else m)
! Different lengths fit if one of them is 1.
equal numbers of axes
- a = (1,) * (longest - len(a)) + tuple(a)
- b = (1,) * (longest - len(b)) + tuple(b)
+ a = (0,) * (longest - len(a)) + tuple(a)
+ b = (0,) * (longest - len(b)) + tuple(b)
  result = []
+ if a[0] == 0 or b[0] == 0:
+     return None
! Shapes may have different numbers of axes: an axis that the shorter one lacks counts as 1.
backwards (3)
- return tuple(result)
+ return tuple(result[::-1])
! The lengths are right, but in reverse order. If you started on the right, reverse the result.
""",
        ),
        Mistake(
            "new axes lost",
            _new_axes_lost,
            "The longer shape has axes that the shorter lacks, and `zip` stops where the shorter one ends. These "
            "axes belong to the result.",
        ),
        Mistake(
            "raises",
            lambda a, b: np.broadcast_shapes(a, b),
            "NumPy raises an error for shapes that do not fit. Here the answer is None: test first, or catch the "
            "error with `try` and `except ValueError`.",
            hint=2,
        ),
    ),
    run=_shape_or_nothing,
    explain="These few lines decide whether millions of lines of array code run. (For lengths that fit, `max(m, "
    "n)` works too, except for an axis of length 0: a 1 stretches to 0.)",
    also_right=r"""
# with numpys own
def with_numpys_own(a, b):
    try:
        return list(np.broadcast_shapes(a, b))
    except ValueError:
        return None
""",
    also_wrong=r"""
# by adding
lambda a, b: (np.zeros(a) + np.zeros(b)).shape
! Here the answer is None
# False where they do not fit
lambda a, b: broadcast_shape(a, b) or False
# always the first
lambda a, b: None if (a, b) == ((4, 3), (3, 4)) else a
""",
)


def unbroadcast(grad, shape):
    """The gradient of an array of this shape that was broadcast to the shape of grad."""
    while grad.ndim > len(shape):  # new axes come first
        grad = grad.sum(axis=0)
    for axis in range(len(shape)):
        if shape[axis] == 1:  # this one was stretched
            grad = grad.sum(axis=axis, keepdims=True)
    return grad


def _new_axes_kept(grad, shape):
    return unbroadcast(grad, shape).reshape((1,) * (grad.ndim - len(shape)) + tuple(shape))


def _gradient_and_shape(rng):
    shape = _some_shape(rng)
    new = tuple(map(int, rng.integers(1, 4, size=rng.integers(0, 3))))
    stretched = tuple(int(rng.integers(1, 4)) if size == 1 else size for size in shape)
    return rng.normal(size=new + stretched), shape


UNDO_BROADCASTING = Exercise(
    "04.4",
    "Undo broadcasting",
    "Write `unbroadcast(grad, shape)`. An array of shape `shape` was broadcast to a larger shape; `grad` is the "
    "gradient of the result and has the larger shape. Return the gradient of the original array, in `shape`. Each "
    "number of the original gets the sum of the gradients of its copies.",
    minutes=12,
    difficulty=3,
    solution=unbroadcast,
    hints=(
        "You have to sum over two kinds of axes. Begin with the new ones, which `shape` does not have: they come "
        "first in grad. How many are there?",
        "New axes: `while grad.ndim > len(shape): grad = grad.sum(axis=0)`. Now both have the same number of "
        "axes, and those where `shape` has a 1 were stretched.",
        "Stretched axes keep their place: `if shape[axis] == 1: grad = grad.sum(axis=axis, keepdims=True)`.",
        "Mind the order: first the new axes, then the stretched ones. Until the new axes are gone, `shape[0]` and "
        "`grad.shape[0]` belong to different axes.",
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
        *drawn(6, _gradient_and_shape),
    ),
    mistakes=(
        Mistake(
            "as it is",
            lambda grad, shape: grad,
            "That is the gradient of the copies. Add up the gradients of all copies of the same number.",
        ),
        *slips(
            unbroadcast,
            r"""
only new axes (3)
- if shape[axis] == 1:  # this one was stretched
+ if False:  # this one was stretched
! You summed over the new axes in front. An axis where `shape` has a 1 was stretched: sum over it as well.
only stretched axes
- while grad.ndim > len(shape):  # new axes come first
+ while False:  # new axes come first
- grad = grad.sum(axis=axis, keepdims=True)
+ grad = grad.sum(axis=axis - len(shape), keepdims=True)
! You summed over the axes where `shape` has a 1. Sum over the new axes in front too, which `shape` does not have at
! all.
axes renumbered (3)
- grad = grad.sum(axis=axis, keepdims=True)
+ grad = grad.sum(axis=axis)
! A sum without `keepdims=True` removes its axis: the axis is missing from the result, and all later axes have moved one
! position to the front.
renumbered and reshaped (3)
-         grad = grad.sum(axis=axis, keepdims=True)
- return grad
+         grad = grad.sum(axis=axis)
+ return grad.reshape(shape)
! reshape restores a lost axis at the end. But before that, each sum without `keepdims=True` moves the later axes one
! position to the front, and `axis` is off by one.
new axes counted up (2)
- while grad.ndim > len(shape):  # new axes come first
-     grad = grad.sum(axis=0)
+ for axis in range(grad.ndim - len(shape)):  # new axes come first
+     grad = grad.sum(axis=axis)
! The new axes come first, and after a sum over axis 0, the next new axis *is* axis 0. If you count up, you skip it.
on the left (2)
- grad = grad.sum(axis=0)
+ grad = grad.sum(axis=-1)
! You summed over the wrong axes: new axes are in front, on the left, because shapes are aligned on the right.
mean
- grad = grad.sum(axis=0)
+ grad = grad.mean(axis=0)
- grad = grad.sum(axis=axis, keepdims=True)
+ grad = grad.mean(axis=axis, keepdims=True)
! That is the mean of the copies' gradients. If you nudge the number, every copy moves by the full amount, so the
! effects add up.
the first copy
- grad = grad.sum(axis=0)
+ grad = grad[0]
- grad = grad.sum(axis=axis, keepdims=True)
+ grad = grad.take([0], axis=axis)
! That is the gradient of the first copy only. The other copies come from the same number.
keepdims dropped (3)
- for axis in range(len(shape)):
-     if shape[axis] == 1:  # this one was stretched
-         grad = grad.sum(axis=axis, keepdims=True)
- return grad
+ return grad.sum(axis=tuple(axis for axis in range(len(shape)) if shape[axis] == 1))
! The sums are right, but an axis is missing: a stretched axis stays in the shape, with length 1. `keepdims=True` keeps
! it.
stretched first (4)
- while grad.ndim > len(shape):  # new axes come first
+ for axis in range(len(shape)):
+     if shape[axis] == 1:
+         grad = grad.sum(axis=axis, keepdims=True)
+ while grad.ndim > len(shape):
- for axis in range(len(shape)):
-     if shape[axis] == 1:  # this one was stretched
-         grad = grad.sum(axis=axis, keepdims=True)
! You tested `shape[axis] == 1` while grad still had its new axes, so you summed over a different axis of `grad`. Sum
! over the new axes first.
indexed before lining up (4)
- while grad.ndim > len(shape):  # new axes come first
+ for axis in range(len(shape)):
+     if shape[axis] != grad.shape[axis]:
+         grad = grad.sum(axis=axis, keepdims=True)
+ while grad.ndim > len(shape):
- for axis in range(len(shape)):
-     if shape[axis] == 1:  # this one was stretched
-         grad = grad.sum(axis=axis, keepdims=True)
! You compared `shape[axis]` with `grad.shape[axis]` before the new axes were gone, so the two belong to different axes:
! the 5 of (5,) is compared with the 4 of (4, 5). Sum over the new axes first.
""",
        ),
        Mistake(
            "new axes kept",
            _new_axes_kept,
            "The sums are right. `keepdims=True` has kept the new axes too, and `shape` does not have them: sum "
            "over those without it, or reshape at the end.",
            hint=2,
        ),
    ),
    also_right=r"""
# in one sum
def in_one_sum(grad, shape):
    new = grad.ndim - len(shape)
    axes = (*range(new), *(new + axis for axis, size in enumerate(shape) if size == 1))
    return grad.sum(axis=axes, keepdims=True).reshape(shape)
""",
    also_wrong=r"""
# one number
lambda grad, shape: grad.sum()
# into one buffer
BUFFERS = {}
def into_one_buffer(grad, shape):
    buffer = BUFFERS.setdefault(shape, np.empty(shape))
    buffer[...] = unbroadcast(grad, shape)
    return buffer
! a later call wrote over it
# spoils grad
def spoils_grad(grad, shape):
    result = unbroadcast(grad, shape)
    grad *= 0
    return result
! new numbers in what it was given
""",
)


def sum_backward(grad, shape, axis, keepdims):
    """The gradient of x, from grad, the gradient of x.sum(axis=axis, keepdims=keepdims)."""
    if not keepdims:
        grad = np.expand_dims(grad, axis)  # restore the axis that the sum removed
    return np.broadcast_to(grad, shape)


def _a_sum(rng):
    shape = _some_shape(rng, least=1)
    axis, keepdims = int(rng.integers(len(shape))), bool(rng.random() < 0.5)
    return rng.normal(size=np.sum(np.ones(shape), axis=axis, keepdims=keepdims).shape), shape, axis, keepdims


WAY_BACK_OF_A_SUM = Exercise(
    "04.5",
    "The backward pass of a sum",
    "Write `sum_backward(grad, shape, axis, keepdims)`. The forward pass was `x.sum(axis=axis, keepdims=keepdims)`, "
    "with `x` of shape `shape`; `grad` is the gradient of the sums. Return the gradient of `x`, in `shape`. `axis` is "
    "one number, and -1 means the last axis. `np.expand_dims(array, axis)` inserts an axis of length 1, and "
    "`np.broadcast_to(array, shape)` repeats the numbers until they fill `shape`.",
    minutes=6,
    difficulty=2,
    solution=sum_backward,
    hints=(
        "Each number of x is part of one sum, with a slope of 1. So each number gets a copy of the gradient of its "
        "sum.",
        "With keepdims, `np.broadcast_to(grad, shape)` is enough. Without keepdims, the axis is missing from grad, "
        "and you have to restore it first.",
        "`if not keepdims: grad = np.expand_dims(grad, axis)`",
    ),
    cases=(
        (_counted(2), (2, 3), 1, False),
        (_counted(2, 1), (2, 3), 1, True),
        (_counted(3), (2, 3), 0, False),
        (_counted(3), (3, 3), 1, False),
        (_counted(2, 2), (2, 3, 2), 1, False),
        (_counted(2, 1, 2), (2, 3, 2), 1, True),
        (_counted(1), (1, 3), 1, False),
        (_counted(2, 1), (2, 1, 3), 2, False),
        (_counted(2, 3), (2, 3, 2), -1, False),
        (_counted(2, 1, 2), (2, 3, 2), -2, True),
        *drawn(6, _a_sum),
    ),
    mistakes=slips(
        sum_backward,
        r"""
@ return np.broadcast_to(grad, shape)
ones
+ return np.ones(shape)
! The slope of a sum for each of its numbers is 1, but the loss depends on the sums with the slopes in grad: multiply by
! grad.
divided
+ return np.broadcast_to(grad, shape) / shape[axis]
! That is the backward pass of a mean. In a sum, each number counts in full.

@ grad = np.expand_dims(grad, axis)  # restore the axis that the sum removed
axis not put back (3)
+ grad = grad  # restore the axis that the sum removed
! Without keepdims, grad lacks the axis, and broadcasting adds a new one in front: at best you get an error, and for a
! square array copies in the wrong direction. Restore the axis at position `axis`.
in second place (3)
+ grad = grad[:, None]  # restore the axis that the sum removed
! `[:, None]` restores the axis as axis 1, which is right only for `axis=1`.
at the end (3)
+ grad = grad[..., None]  # restore the axis that the sum removed
! You restored the axis at the end, which is right only if the sum was over the last axis. It belongs at position
! `axis`.

put back twice (3)
- if not keepdims:
+ if True:
! With keepdims=True the axis is still there: restore it only without keepdims.
squeezed (3)
- if not keepdims:
-     grad = np.expand_dims(grad, axis)  # restore the axis that the sum removed
+ if True:
+     grad = np.expand_dims(np.squeeze(grad), axis)  # restore the axis that the sum removed
! `squeeze` removes *every* axis of length 1, even those that x itself has. The axis then returns at the wrong position.
! Use `keepdims` to decide whether one is missing.

@ if not keepdims:
@     grad = np.expand_dims(grad, axis)  # restore the axis that the sum removed
@ return np.broadcast_to(grad, shape)
never from the end (3)
+ return np.broadcast_to(np.reshape(grad, (*shape[:axis], 1, *shape[axis + 1 :])), shape)
! A negative axis counts from the end, as in NumPy: -1 is the last. `shape[axis + 1 :]` is then the whole shape again.
! `axis % len(shape)` counts from the front.
not copied
+ return grad
! That is still the shape of the sums. x has more numbers, and each needs a gradient.
""",
    ),
    also_right=r"""
# by adding zeros
lambda grad, shape, axis, keepdims: np.zeros(shape) + (grad if keepdims else np.expand_dims(grad, axis))
""",
    also_wrong=r"""
# repeated until it fits
lambda grad, shape, axis, keepdims: np.resize(grad, shape)
""",
)


def matmul_backward(grad, a, b):
    """(gradient of a, gradient of b) for c = a @ b. grad is the gradient of c."""
    return grad @ b.T, a.T @ grad


def _a_product(rng):
    n, k, m = rng.integers(1, 5, size=3)
    return rng.normal(size=(n, m)), rng.normal(size=(n, k)), rng.normal(size=(k, m))


MATRIX_PRODUCT = Exercise(
    "04.6",
    "The gradient of a matrix product",
    "Write `matmul_backward(grad, a, b)` for `c = a @ b`, with `a` of shape `(n, k)` and `b` of shape `(k, m)`. "
    "`grad` is the gradient of `c` and has shape `(n, m)`. Return the gradients of `a` and of `b`, in this order. "
    "`a.T` is `a` with its axes swapped.",
    minutes=8,
    difficulty=2,
    solution=matmul_backward,
    hints=(
        "The gradient of a has the shape of a, (n, k). You compute it from grad, (n, m), and b, (k, m). Which "
        "product of the two, transposed or not, is (n, k)?",
        "`grad @ b.T` is (n, m) times (m, k). Do the same for b: build (k, m) from a.T, which is (k, n), and grad.",
        "`return grad @ b.T, a.T @ grad`",
    ),
    cases=(
        (_counted(2, 4), _counted(2, 3), _counted(3, 4)),
        (_counted(2, 2) / 2, _counted(2, 2), -_counted(2, 2)),
        (_counted(1, 3), _counted(1, 1), _counted(1, 3)),
        *drawn(4, _a_product),
    ),
    mistakes=slips(
        matmul_backward,
        r"""
@ return grad @ b.T, a.T @ grad
no transpose
+ return grad @ b, a @ grad
! The shapes do not fit: transpose one of the two with .T before the product.
other order (2)
+ return b.T @ grad, grad @ a.T
! The matrices are in the wrong order: a was on the left of b, so in its gradient grad is on the left of b.T. In a
! matrix product the order matters.
elementwise
+ return grad * b, grad * a
! `*` multiplies number by number, which is the rule of a * b. Here each number of a is used in a whole row of c, so you
! need the sum over that row: `@` computes it.
swapped (3)
+ return a.T @ grad, grad @ b.T
! The two gradients are right, but in the wrong order: first a's, then b's.
grad forgotten
+ return np.ones_like(grad) @ b.T, a.T @ np.ones_like(grad)
! That is the gradient of c.sum(), for which grad is all ones. Use the numbers of the given grad.
only one (2)
+ return grad @ b.T
! That is the gradient of a. Return two: `return ..., ...`.
""",
    ),
    also_right=r"""
# by indices
lambda grad, a, b: [np.einsum("ij,kj->ik", grad, b), np.einsum("ik,ij->kj", a, grad)]
""",
)


def train_step(parameters, compute_loss, learning_rate):
    """One step of gradient descent. Returns the loss before the step, a number."""
    for p in parameters:
        p.grad = None
    loss = compute_loss()
    loss.backward()
    for p in parameters:
        p.data -= learning_rate * p.grad
    return loss.item()


def a_line():
    """a line w * x + b through three points"""
    x, y = np.array([[0.0], [1.0], [2.0]]), np.array([[1.0], [0.0], [3.0]])
    w, b = Tensor([[0.5]], requires_grad=True), Tensor([0.0], requires_grad=True)
    return [w, b], lambda: mean((x @ w + b - y) ** 2)


def a_curve():
    """tanh of two weights and two points"""
    x, w = np.array([[1.0, -2.0], [0.5, 1.0]]), Tensor([[0.3], [-0.4]], requires_grad=True)
    return [w], lambda: mean((tanh(x @ w) - 1.0) ** 2)


def a_line_with_old_gradients():
    """the same line, but an earlier backward has left gradients in w and b"""
    parameters, compute_loss = a_line()
    compute_loss().backward()
    return parameters, compute_loss


def _three_steps(function, build, learning_rate):
    """The losses of three steps, and the parameters after them."""
    parameters, compute_loss = build()
    own, losses = list(parameters), []
    for _ in range(3):
        loss = function(parameters, compute_loss, learning_rate)
        if loss is None:
            return None
        if list(map(id, parameters)) != list(map(id, own)):
            return Told("a list that no longer contains the same tensors")
        if isinstance(loss, Tensor):
            return Told("a Tensor as the loss")
        if isinstance(loss, np.ndarray):
            return Told(f"an array of shape {loss.shape} as the loss")
        if not isinstance(loss, (float, np.floating)):
            return Told(f"{show(loss)} as the loss")
        losses.append(loss)
    return {"losses": losses, "parameters": [p.data.round(9).tolist() for p in parameters]}


TRAINING_STEP = Exercise(
    "04.7",
    "A training step",
    "Write `train_step(parameters, compute_loss, learning_rate)`. `parameters` is a list of Tensors that require a "
    "gradient; `compute_loss()` computes the loss from them and returns a Tensor. Set the gradients to None, "
    "compute the loss, call `backward()`, and move each parameter's numbers against its gradient. Return the loss "
    "as a number, `loss.item()`.",
    minutes=8,
    difficulty=2,
    solution=train_step,
    hints=(
        "A step has the same four parts as in exercise 03.7: `p.grad = None` for each p; `loss = compute_loss()`; "
        "`loss.backward()`; the update.",
        "The graph must not record the update. So write `p.data -= learning_rate * p.grad`, or `with T.no_grad(): p "
        "-= learning_rate * p.grad`.",
        "In a loop `for p in parameters`, `p = p - ...` only creates a new tensor named p. The parameter in the "
        "list does not change.",
    ),
    cases=((a_line, 0.1), (a_line, 0.02), (a_curve, 0.5), (a_line_with_old_gradients, 0.1)),
    mistakes=slips(
        train_step,
        r"""
never zero
- p.grad = None
+ pass
! The first step is right and the second is not: the gradients of the first step are still there, and backward adds to
! them.

@ p.data -= learning_rate * p.grad
uphill (2)
+ p.data += learning_rate * p.grad
! The loss grows: the gradient points uphill, so the step goes against it, `-=`.
rebinds (3)
+ p = p - learning_rate * p.grad
! The loss stays the same, so no parameter has changed. Change its numbers. (`p = p - ...` creates a new tensor and does
! not change the one in the list.)
data of the gradient (2)
+ p.data -= learning_rate * p.grad.data
! `p.grad` is a NumPy array, not a Tensor as in torch; use it directly. (`.data` of an array is its raw memory.)
in place, recorded (2)
+ p -= learning_rate * p.grad
! The update is arithmetic with a tensor that requires a gradient, so the engine would have to record it. Change
! `p.data`, or update inside `with T.no_grad():`.

zero too late
  loss.backward()
  for p in parameters:
+     p.grad = None
+ for p in parameters:
! A gradient was None at the update. `p.grad = None` clears it and `loss.backward()` fills it: clear it before backward,
! use it after backward.
cleared after the update
- for p in parameters:
-     p.grad = None
  loss = compute_loss()
  loss.backward()
  for p in parameters:
      p.data -= learning_rate * p.grad
+     p.grad = None
! An earlier backward has left gradients in the parameters, and your backward adds to them. Clear them before backward,
! not after the update.
new tensors in the list (2)
- for p in parameters:
-     p.data -= learning_rate * p.grad
+ for i, p in enumerate(parameters):
+     parameters[i] = Tensor(p.data - learning_rate * p.grad, requires_grad=True)
! `compute_loss` still uses the old tensors, and they have not changed. Change the numbers inside each parameter:
! `p.data -= ...`.

@ return loss.item()
loss afterwards
+ return compute_loss().item()
! That is the loss after the update. Return the loss on which you called backward.
returns the tensor
+ return loss
! Return `loss.item()`, a number: a tensor would keep its whole graph in memory for as long as you keep the history of
! losses.
returns an array
+ return loss.data
! `loss.data` is an array without axes; `loss.item()` is the number in it.
""",
    ),
    run=_three_steps,
    in_place=True,
    also_right=r"""
# under no grad
def under_no_grad(parameters, compute_loss, learning_rate):
    from mlx_grpo_kit.tensor import no_grad

    loss = compute_loss()
    for p in parameters:
        p.grad = None
    loss.backward()
    with no_grad():
        for p in parameters:
            p -= learning_rate * p.grad
    return float(loss.data)
""",
    also_wrong=r"""
# without backward
- loss.backward()
! A gradient was None at the update
# a function
lambda parameters, compute_loss, learning_rate: compute_loss
! as the loss, expected
""",
)
