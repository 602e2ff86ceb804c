"""The engine against torch: the graph, gradients, and every kind of misuse."""

import gc
import math
import operator
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.tensor.graph import AccumulateGrad, BackwardFunction, Constant, topological_order, unbroadcast
from mlx_grpo_kit.tensor.memory import arrays_in
from mlx_grpo_kit.viz import draw_graph
from mlx_grpo_kit.viz.graphs.nodes import read_graph
from tests.every import every


class Square(T.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 * ctx.x


def leaf(*numbers, **options):
    return T.Tensor(np.array(numbers, dtype=float), requires_grad=True, **options)


OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow,
    "@": operator.matmul, "+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("other", ["tensor", "constant"])
@pytest.mark.parametrize("sign", OPERATORS)
def test_pythons_operators_on_either_side_are_torchs(sign, other, swapped):
    """Values and gradients, with another tensor, or a constant (a number, and an array for @)."""
    a, b = np.array([[2.0, 3.0], [0.5, 1.0]]), np.array([[3.0, 3.0], [2.0, 1.0]])

    def results(tensor, constant):
        x = tensor(a, requires_grad=True)
        y = tensor(b, requires_grad=True) if other == "tensor" else constant(b) if sign == "@" else 3.0
        left, right = (y, x) if swapped else (x, y)
        # What is changed in place may not be a leaf.
        out = OPERATORS[sign](left * 1 if sign in ("+=", "-=", "*=", "/=") else left, right)
        if not getattr(out, "requires_grad", False):
            return [np.asarray(out)]
        out.sum().backward()
        return [np.asarray(each) for each in (out.detach(), x.grad, *([y.grad] if other == "tensor" else []))]

    for ours, theirs in zip(results(T.Tensor, np.asarray), results(torch.tensor, torch.tensor), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_argmax_is_torchs(axis):
    x = np.random.default_rng(0).normal(size=(3, 4))
    np.testing.assert_array_equal(T.Tensor(x).argmax(axis), torch.tensor(x).argmax(axis).numpy())


# -- the graph --------------------------------------------------------------------------------------------------------


def test_the_three_kinds_of_nodes_and_their_purpose():
    w, x = leaf(2.0, 3.0), T.Tensor([5.0, 7.0])
    product = w * x
    assert (w.is_leaf, w.requires_grad, w.grad_fn) == (True, True, None)
    assert (x.is_leaf, x.requires_grad, x.grad_fn) == (True, False, None)
    assert (product.is_leaf, product.requires_grad) == (False, True)
    assert isinstance(product.grad_fn, BackwardFunction)
    assert product.grad_fn.name() == "MulBackward"
    first, second = product.grad_fn.next_functions
    assert isinstance(first, AccumulateGrad)
    assert first.variable is w
    assert isinstance(second, Constant)
    assert second.variable is x
    product.sum().backward()
    assert w.grad.tolist() == [5.0, 7.0]
    assert x.grad is None


def test_a_custom_function():
    x = leaf(1.0, -3.0)
    Square.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0, -6.0]


def test_a_result_of_constants_is_a_constant():
    y = Square.apply(T.Tensor([1.0]))
    assert (y.requires_grad, y.grad_fn, y.is_leaf) == (False, None, True)


def test_a_shared_result_passes_its_gradient_on_once_it_is_complete():
    a = leaf(3.0)
    b = a + a
    c = b + b
    d = c * b
    d.sum().backward()
    t = torch.tensor([3.0], requires_grad=True)
    u = t + t
    ((u + u) * u).sum().backward()
    assert a.grad == t.grad.item()


def test_time_grows_with_nodes_and_not_with_paths():
    x = leaf(1.0)
    y = x
    for _ in range(200):
        y = y + y
    y.backward()
    assert x.grad == 2.0**200
    assert len(topological_order(y.grad_fn)) == 201


def test_a_chain_ten_times_as_long_as_pythons_call_stack():
    x = leaf(1.0)
    y = x
    for _ in range(10 * sys.getrecursionlimit()):
        y = y + 1e-3
    y.backward()
    assert x.grad == 1.0
    del y  # freeing a long chain must not overflow the stack either


def test_the_graph_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        x = leaf(1.0, 2.0)
        y = (x * x).exp()
        gone = weakref.ref(y.grad_fn.next_functions[0].ctx)
        del y
        assert gone() is None
    finally:
        gc.enable()


def test_backward_frees_what_was_saved_as_it_goes():
    x = leaf(1.0, 2.0)
    y = (x * x).exp()
    saved = weakref.ref(y.grad_fn.next_functions[0].ctx)
    y.sum().backward()
    assert saved() is None


def test_gradients_add_up_over_backward_calls_until_they_are_cleared():
    x = leaf(3.0)
    for times in (1, 2, 3):
        (x * x).sum().backward()
        assert x.grad == 6.0 * times
    x.grad = None
    (x * x).sum().backward()
    assert x.grad == 6.0


def test_grads_of_two_leaves_never_share_memory():
    a, b = leaf(1.0), leaf(2.0)
    start = np.array([1.0])
    (a + b).backward(start)
    a.grad += 5
    assert (b.grad, start) == (1.0, 1.0)


def test_a_leaf_is_its_own_gradient():
    x = leaf(4.0)
    x.backward()
    assert x.grad == 1.0


def test_backward_from_a_given_gradient():
    x = leaf(1.0, 2.0)
    (x * x).backward([10.0, 100.0])
    assert x.grad.tolist() == [20.0, 400.0]


def test_the_gradient_has_the_leafs_dtype():
    single = T.Tensor(np.float32([1, 2]), requires_grad=True)
    double = leaf(3.0, 4.0)
    (single * double).sum().backward()
    assert (single.grad.dtype, double.grad.dtype) == (np.float32, np.float64)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x * 2.5, lambda x: 2 - x, lambda x: x / 3, lambda x: 2.0**x, lambda x: x**2,
        lambda x: np.float64(2) * x, T.gelu, T.sigmoid, T.silu, T.var, T.softmax, T.max,
    ],
)  # fmt: skip
def test_float32_stays_float32(operation):
    """Gradients are float32 even before the engine casts them, so no time is spent in double precision."""
    x = T.Tensor(np.float32([0.5, 2]), requires_grad=True)
    y = operation(x)
    assert y.dtype == np.float32
    gradients = y.grad_fn.function.backward(y.grad_fn.ctx, np.ones(y.shape, np.float32))
    assert {gradient.dtype for gradient in gradients if gradient is not None} == {np.dtype(np.float32)}


def test_no_grad_records_nothing_until_its_block_ends():
    x = leaf(1.0)
    with T.no_grad():
        assert not (x * 2).requires_grad
        with T.no_grad():
            pass
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad

    @T.no_grad()
    def evaluate():
        return x * 2

    assert not evaluate().requires_grad
    with pytest.raises(ZeroDivisionError), T.no_grad():
        1 / 0  # noqa: B018
    assert (x * 2).requires_grad


def test_no_grad_affects_only_its_own_thread():
    recorded = []
    with T.no_grad():
        thread = threading.Thread(target=lambda: recorded.append((leaf(1.0) * 2).requires_grad))
        thread.start()
        thread.join()
    assert recorded == [True]


def test_detach_has_the_numbers_and_no_history():
    x = leaf(2.0)
    y = (x * 3).detach()
    assert (y.requires_grad, y.is_leaf, y.data.tolist()) == (False, True, [6.0])
    (x * y).sum().backward()
    assert x.grad == 6.0


def test_the_constructor_copies():
    numbers = np.ones(2)
    x = T.Tensor(numbers)
    numbers[0] = 5
    assert x.data.tolist() == [1.0, 1.0]


def test_none_is_a_missing_input_or_a_missing_gradient():
    class MaybeAdd(T.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a if b is None else a + b

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    a, b = leaf(1.0), leaf(2.0)
    MaybeAdd.apply(a, None).sum().backward()
    MaybeAdd.apply(a, b * 2).sum().backward()
    assert a.grad == 2.0
    assert b.grad is None


# -- torch's way to save, and retain_grad -----------------------------------------------------------------------------


def test_an_array_saved_in_torchs_way_is_guarded_like_any_other():
    class Product(T.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            return grad * b, grad * a

    a, b = leaf(2.0) * 1, leaf(0.5)
    Product.apply(a, b).backward()
    assert b.grad == 2.0
    y = Product.apply(a, b)
    a.data += 1
    with pytest.raises(T.AutogradError, match=r"inplace operation: ctx.saved_0 of shape \(1,\), saved by Product"):
        y.backward()


def test_retain_grad_keeps_the_gradient_of_a_result():
    def program(leaf):
        x = leaf([2.0, -1.0])
        y = x * 3
        y.retain_grad()
        y.retain_grad()
        z = (y * y).sum()
        z.retain_grad()
        z.backward(retain_graph=True)
        once = y.grad.tolist()
        z.backward()
        return once, y.grad.tolist(), z.grad.tolist(), x.grad.tolist()

    ours = program(lambda d: T.Tensor(d, requires_grad=True))
    assert ours == program(lambda d: torch.tensor(d, dtype=torch.float64, requires_grad=True))
    with pytest.raises(T.AutogradError, match=r"can't retain_grad on the tensor 'x' that has requires_grad=False"):
        T.Tensor([1.0], label="x").retain_grad()


# -- broadcasting -----------------------------------------------------------------------------------------------------

PATTERNS = [
    ((), (3,)), ((1,), (3,)), ((5,), (4, 5)), ((4, 1), (4, 5)), ((3, 1, 5), (3, 4, 5)), ((1, 1), (1, 1)),
    ((2, 1, 4), (3, 1)), ((1, 3), (2, 1, 1)), ((0,), (1,)), ((2, 0, 3), (1, 3)), ((7, 1, 6, 1), (8, 1, 5)),
    ((1, 2, 1, 3), ()), ((4, 5), (4, 5)),
]  # fmt: skip


@every(("a_shape", "b_shape"), PATTERNS + [pattern[::-1] for pattern in PATTERNS])
@every("operation", [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b])
def test_broadcasting_is_undone(operation, a_shape, b_shape):
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.5, 2, a_shape), rng.uniform(0.5, 2, b_shape)]
    ours = [T.Tensor(array, requires_grad=True) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    result, expected = operation(*ours), operation(*theirs)
    np.testing.assert_allclose(result.data, expected.detach(), rtol=1e-14)
    start = rng.normal(size=result.shape)
    result.backward(start)
    expected.backward(torch.tensor(start))
    for tensor, reference in zip(ours, theirs, strict=True):
        assert tensor.grad.shape == tensor.shape
        np.testing.assert_allclose(tensor.grad, reference.grad, rtol=1e-12, atol=1e-14)


def test_unbroadcast_aligns_shapes_at_the_right():
    grad = np.arange(20.0).reshape(4, 5)
    assert unbroadcast(grad, (5,)).tolist() == grad.sum(axis=0).tolist()
    assert unbroadcast(grad, (4, 1)).tolist() == grad.sum(axis=1, keepdims=True).tolist()
    assert unbroadcast(grad, ()) == grad.sum()
    with pytest.raises(ValueError, match=r"shape \(4,\) does not broadcast to \(4, 5\)"):
        unbroadcast(grad, (4,))


# -- numbers changed in place -----------------------------------------------------------------------------------------


def change_data(y):
    y.data += 1


def change_under_no_grad(y):
    with T.no_grad():
        y *= 2


def change_an_element(y):
    with T.no_grad():
        y[0] = 7.0


def change_a_view(y):
    with T.no_grad():
        y[:1] += 1.0


def change_what_was_detached(y):
    y.detach().data += 1


@pytest.mark.parametrize(
    "change", [change_data, change_under_no_grad, change_an_element, change_a_view, change_what_was_detached]
)
@pytest.mark.parametrize("operation", [lambda y: y * y, T.exp, Square.apply, lambda y: y.reshape(2, 1) ** 2])
def test_a_saved_array_that_changed_raises_an_error(operation, change):
    y = leaf(1.0, 2.0) * 2
    z = operation(y)
    change(z if operation is T.exp else y)  # exp saves its result
    with pytest.raises(T.AutogradError, match=r"modified by an inplace operation: .* version [12]; expected version 0"):
        z.sum().backward()


def test_a_change_that_no_backward_needs_is_fine():
    x = leaf(1.0, 2.0)
    y = x * 2
    z = y + 1  # saves nothing
    y.data += 100
    z.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_new_data_leaves_the_saved_array_alone():
    x = leaf(1.0, 2.0)
    y = x * x
    x.data = x.data + 100
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_plus_equals_is_recorded_for_gradients_and_in_place_for_training():
    w, total = leaf(2.0), T.Tensor([0.0])
    for _ in range(3):
        total += w * w
    total.backward()
    assert w.grad == 12.0
    numbers = w.data
    with T.no_grad():
        w -= 0.5 * w.grad
    assert w.data is numbers
    assert w.data == -4.0


class Pick(T.Function):
    """x[places], written by hand."""

    @staticmethod
    def forward(ctx, x, places):
        ctx.shape, ctx.places = x.shape, places
        return x[places]

    @staticmethod
    def backward(ctx, grad):
        out = np.zeros(ctx.shape)
        np.add.at(out, ctx.places, grad)
        return out


@every(
    ("operation", "borrowed"),
    [
        (lambda x, c: x * c, [2.0, 3.0, 4.0]),
        (lambda x, c: c / x, [2.0, 3.0, 4.0]),
        (lambda x, c: x * T.reshape(c, (1, 3)), [2.0, 3.0, 4.0]),
        (lambda x, c: T.reshape(x, (1, 3)) @ c, [[2.0], [3.0], [4.0]]),
        (lambda x, c: T.linear(c, T.reshape(x, (3, 1))), [[2.0], [3.0]]),
        (lambda x, i: x[i], [2, 0, 2]),
        (lambda x, i: x[i,], [2, 0, 2]),
        (lambda x, i: x[None][:, i], [2, 0, 2]),
        (lambda x, b: x[b], [True, False, True]),
        (lambda x, i: Pick.apply(x, places=i), [2, 0, 2]),
        (lambda x, i: T.embedding(x, i), [2, 0, 2]),
        (lambda x, t: T.cross_entropy(T.reshape(x, (1, 3)), t), [2]),
        (lambda x, b: T.where(b, x, 2 * x), [True, False, True]),
        (lambda x, w: T.conv2d(T.reshape(x, (1, 1, 1, 3)), w), [[[[2.0, 3.0]]]]),
        (lambda x, low: T.clip(x, low), [0.5, 5.0, 0.5]),
    ],
)
@every("kind", [np.array, list])
def test_the_callers_array_may_change_before_backward(operation, borrowed, kind):
    """A training loop may fill the same buffer again and again."""
    expected = leaf(1.0, -2.0, 3.0)
    operation(expected, np.array(borrowed)).sum().backward()
    x, given = leaf(1.0, -2.0, 3.0), kind(borrowed)
    y = operation(x, given).sum()
    given[:] = np.zeros_like(borrowed)
    y.backward()
    assert x.grad.tolist() == expected.grad.tolist()


def test_index_and_condition_tensors_may_change_before_backward():
    x, places, chosen = leaf(1.0, -2.0, 3.0), T.Tensor([2, 0, 2]), T.Tensor([True, False, True])
    y = x[places] + T.where(chosen, x, 10 * x)
    places.data[:], chosen.data[:] = 1, False
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 10.0, 3.0]


Pair = namedtuple("Pair", ["a", "b"])


@pytest.mark.parametrize(
    "keep",
    [
        lambda a, b: (a, b),
        lambda a, b: [a, [b]],
        lambda a, b: {"a": a, "b": (b,)},
        Pair,
        lambda a, b: OrderedDict(a=a, b=b),
        lambda a, b: defaultdict(list, a=a, b=b),
    ],
)
def test_the_callers_arrays_in_a_saved_container_may_change_before_backward(keep):
    class Scale(T.Function):
        @staticmethod
        def forward(ctx, x, a, b):
            ctx.kept, ctx.view = keep(a, b), b[::-1]
            return x * a * b[0]

        @staticmethod
        def backward(ctx, grad):
            arrays = list(arrays_in(ctx.kept))
            return grad * arrays[0] * arrays[1][0] + 0 * ctx.view[-1], None, None

    class Setting(Scale):
        @staticmethod
        def forward(ctx, x, a, b):
            return Scale.forward(ctx, x, a, b)

        @staticmethod
        def backward(ctx, grad):
            return Scale.backward(ctx, grad)[0]

    for apply in (Scale.apply, lambda x, a, b: Setting.apply(x, a=a, b=b)):
        x, a, b = leaf(1.0, 2.0), np.array([3.0, 4.0]), np.array([5.0, 6.0])
        y = apply(x, a, b)
        a[:], b[:] = 0, np.nan
        y.sum().backward()
        assert x.grad.tolist() == [15.0, 20.0]


def test_a_change_of_an_array_in_a_saved_tuple_raises_an_error():
    class Product(T.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.pair = (a, b)
            return a * b

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.pair[1], grad * ctx.pair[0]

    a, b = leaf(2.0) * 1, leaf(3.0)
    y = Product.apply(a, b)
    change_data(a)
    with pytest.raises(T.AutogradError, match=r"modified by an inplace operation: ctx\.pair"):
        y.backward()


# -- arrays that are shared -------------------------------------------------------------------------------------------


def writes_into(where):
    class Doubled(T.Function):
        @staticmethod
        def forward(ctx, x):
            if where == "input":
                x *= 2
            ctx.x, ctx.own = x, x + 0
            ctx.pair = {"both": [x, ctx.own]}
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            saved = {"saved input": ctx.x, "saved array": ctx.own, "array in a list": ctx.pair["both"][1]}
            if where in saved:
                saved[where][...] = 0
            if where == "gradient":
                grad *= 2
                return grad
            return 2 * grad

    return Doubled.apply


@pytest.mark.parametrize("where", ["input", "gradient", "saved input", "saved array", "array in a list"])
def test_writing_into_an_array_that_others_use_raises_an_error(where):
    x, start = leaf(1.0, 2.0), np.ones(2)
    y = x * 1
    place = "Doubled of .*: forward" if where == "input" else "Doubled.backward"
    with pytest.raises(ValueError, match=f"{place} writes into an array .*read-only.* g = g"):
        (writes_into(where)(y) + y).backward(start)
    assert (x.data.tolist(), start.tolist()) == ([1.0, 2.0], [1.0, 1.0])


def test_a_gradient_that_two_inputs_share_is_counted_for_both():
    class Add(T.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a + b

        @staticmethod
        def backward(ctx, grad):
            return grad, grad

    a, b = leaf(1.0), leaf(2.0)
    Add.apply(Add.apply(a, b), a).backward()
    a.grad += 10
    assert (a.grad.tolist(), b.grad.tolist()) == ([12.0], [1.0])


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[1:], lambda x: x.reshape(4), lambda x: x.swapaxes(0, 1)])
def test_a_view_shares_the_memory_of_its_input_and_can_be_written_into(view):
    x = T.Tensor(np.ones((2, 2)))
    view(x).data += 1
    assert x.data.sum() == 4 + view(x).size
    view(x)[0] = 0.0
    assert x.data.sum() < 4 + view(x).size


def test_a_broadcast_result_is_read_only_because_its_elements_share_memory():
    with pytest.raises(ValueError, match="read-only"):
        T.broadcast_to(T.Tensor([1.0]), (3,)).data[0] = 2


# -- misuse -----------------------------------------------------------------------------------------------------------


def returns(*gradients):
    class Wrong(T.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return gradients if len(gradients) > 1 else gradients[0]

    return lambda: Wrong.apply(leaf(1.0, 2.0, 3.0)).sum().backward()


def twice():
    y = (leaf(1.0) * 2).sum()
    y.backward(retain_graph=True)
    y.backward()
    y.backward()


def leaf_in_place():
    x = leaf(1.0)
    x += 1


def assign():
    y = leaf(1.0, 2.0) * 2
    y[0] = 1.0


def forward_returns(what):
    class Odd(T.Function):
        @staticmethod
        def forward(ctx, x):
            return what

    return lambda: Odd.apply(leaf(1.0))


def one_gradient():
    class Product(T.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a * b

        @staticmethod
        def backward(ctx, grad):
            return grad

    Product.apply(leaf(1.0), leaf(2.0)).backward()


def constant_result():
    (leaf(1.0) * 2).requires_grad = False


def new_shape():
    leaf(1.0, 2.0).data = np.ones(3)


MISUSE = {
    "two gradients for one input": (
        returns(np.ones(3), np.ones(3)),
        RuntimeError,
        r"WrongBackward .*expected 1, got 2",
    ),
    "a gradient of another shape": (returns(np.ones(2)), RuntimeError, r"WrongBackward .* got \(2,\) but .* \(3,\)"),
    "a gradient that is no array": (returns([1.0, 2.0, 3.0][:1]), TypeError, "returned float as its gradient"),
    "a Tensor as gradient": (returns(T.Tensor([1.0, 1.0, 1.0])), TypeError, "returned Tensor as its gradient.*NumPy"),
    "backward of several numbers": (lambda: (leaf(1.0, 2.0) * 2).backward(), RuntimeError, r"only for scalar .*\(2,\)"),
    "a freed graph": (twice, RuntimeError, "Trying to backward through the graph a second time.*retain_graph=True"),
    "a constant": (
        lambda: T.Tensor([1.0]).backward(),
        RuntimeError,
        "does not require grad and does not have a grad_fn",
    ),
    "a start of another shape": (lambda: (leaf(1.0, 2.0) * 2).backward(np.ones(3)), RuntimeError, r"shape of \(3,\)"),
    "integers": (lambda: T.Tensor([1, 2], requires_grad=True), TypeError, "floating point .* require gradients.*int64"),
    "a result told not to require grad": (constant_result, RuntimeError, "requires_grad flags of leaf tensors.*detach"),
    "a leaf changed in place": (leaf_in_place, RuntimeError, "leaf that requires grad .* in-place operation"),
    "an assignment": (assign, RuntimeError, "an assignment is not recorded.*T.where"),
    "a Tensor of a Tensor": (lambda: T.Tensor(leaf(1.0)), TypeError, r"got a Tensor.*\.detach\(\)"),
    "a Tensor of Tensors": (lambda: T.Tensor([leaf(1.0), leaf(2.0)]), (RuntimeError, TypeError), "stack"),
    "text": (lambda: T.Tensor(["a"]), TypeError, "expected numbers; got an array of dtype <U1"),
    "NumPy's exp": (lambda: np.exp(leaf(1.0)), TypeError, "np.exp got a Tensor.*T.exp"),
    "NumPy's +=": (lambda: np.add(np.ones(1), leaf(1.0), out=np.ones(1)), TypeError, "np.add got a Tensor"),
    "a float of it": (lambda: float(leaf(1.0) * 2), RuntimeError, r"was about to become a plain float.*\.item\(\)"),
    "math's exp": (lambda: math.exp(leaf(1.0)), RuntimeError, "T.exp"),
    "an array of it": (lambda: np.asarray(leaf(1.0)), RuntimeError, "was about to become a NumPy array"),
    "a forward without a result": (forward_returns(None), TypeError, "Odd.forward returned NoneType"),
    "a forward that returns tensors": (
        forward_returns((leaf(1.0),)),
        TypeError,
        "returned tuple; expected a NumPy array",
    ),
    "a gradient for one of two inputs": (one_gradient, RuntimeError, r"ProductBackward returned .*expected 2, got 1"),
    "a forward that returns a Tensor": (forward_returns(leaf(1.0)), TypeError, "Odd.forward returned Tensor"),
    "a Function without forward": (lambda: T.Function.apply(leaf(1.0)), NotImplementedError, "forward.ctx, .arrays"),
    "the truth of two numbers": (lambda: bool(leaf(1.0, 2.0)), ValueError, "2 elements cannot be converted"),
    "data of another shape": (new_shape, ValueError, r"has shape \(2,\) and was given data of shape \(3,\)"),
    "iteration over a number": (lambda: list(T.Tensor(1.0)), TypeError, "0-d"),
}


@every("name", MISUSE)
def test_misuse_raises_an_error_that_says_what_to_do(name):
    program, kind, message = MISUSE[name]
    with pytest.raises(kind, match=f"(?s){message}"):
        program()


def test_a_function_without_a_backward_says_so():
    class Half(T.Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2

    with pytest.raises(NotImplementedError, match="a Function needs a backward") as caught:
        Half.apply(leaf(1.0)).backward()
    assert "Half.backward" in caught.value.__notes__[0]


def test_an_error_contains_the_tensors_label():
    with pytest.raises(T.AutogradError, match=r"'targets'.*requires_grad=True"):
        T.Tensor([1.0], label="targets").backward()


# -- detect_anomaly ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda x: T.sqrt(x).sum(), r"Function 'SqrtBackward' returned inf .* index \(1,\) .*test_engine.py, line"),
        (lambda x: T.where(x > 0, T.sqrt(x * x), 0.0).sum(), r"'SqrtBackward' returned nan"),
        (lambda x: (x / x).sum(), r"Div returned a nan from 0 and 0, at index \(1,\)"),
        (lambda x: T.log(-x).sum(), r"Log returned a nan from -4, at index \(0,\)"),
    ],
)
def test_detect_anomaly_names_the_operation(program, message):
    x = leaf(4.0, 0.0)
    with pytest.raises(T.AnomalyError, match=message), T.detect_anomaly():
        program(x).backward()


def test_detect_anomaly_is_silent_for_a_healthy_program_and_an_intended_inf():
    x = leaf(4.0, 1.0)
    with T.detect_anomaly():
        masked = T.where(np.array([True, False]), x, -np.inf)
        T.softmax(masked)[0].backward()
    assert x.grad.tolist() == [0.0, 0.0]


def test_detect_anomaly_quotes_the_line_of_a_notebook_cell():
    from IPython.core.interactiveshell import InteractiveShell

    cell = "import mlx_grpo_kit.tensor as T\nwith T.detect_anomaly():\n    bad = T.log(T.Tensor(-2.0))"
    error = InteractiveShell().run_cell(cell, silent=True).error_in_exec
    assert str(error).endswith("in a notebook cell, line 3 (`bad = T.log(T.Tensor(-2.0))`).")


# -- what a tensor looks like -----------------------------------------------------------------------------------------


def test_repr():
    x = leaf(1.0, 2.0)
    assert repr(x) == "Tensor([1., 2.], requires_grad=True)"
    assert repr(x * 2) == "Tensor([2., 4.], grad_fn=<MulBackward>)"
    assert repr(T.Tensor(np.float32([1]))) == "Tensor([1.], dtype=float32)"
    assert f"{(x * x).sum():.2f}" == "5.00"
    assert repr((x * 2).grad_fn.next_functions) == "(<AccumulateGrad>, <Constant>)"


def test_a_graph_can_be_drawn():
    w, x = leaf(2.0, 3.0, label="w"), T.Tensor([[5.0, 7.0]], label="x")
    nodes = read_graph(T.linear(x, (w * 2).reshape(1, 2)).sum())
    assert [node.title for node in nodes if not node.op] == ["x", "w", ""]
    assert [node.op for node in nodes if node.op] == ["Mul", "Reshape", "Linear", "Sum"]
    assert [node.data for node in nodes if node.op] == ["(2,)", "1×2", "1×1", "62"]  # noqa: RUF001


def test_a_leaf_that_is_used_twice_is_one_box():
    w, x = leaf(2.0, 3.0, label="w"), T.Tensor([5.0, 7.0], label="x")
    assert [(node.title, node.op, node.parents) for node in read_graph(w * w * x + x)] == [
        ("w", "", ()),
        ("", "Mul", (0, 0)),
        ("x", "", ()),
        ("", "Mul", (1, 2)),
        ("", "Add", (3, 2)),
    ]


def test_an_array_without_a_name_is_numbered():
    assert draw_graph(T.Tensor(np.ones((4, 3))) * leaf(2.0, label="w")).alt.splitlines()[1:] == [
        "v1: 4×3",  # noqa: RUF001
        "w: (1,)",
        "v3 = v1 × w: 4×3",  # noqa: RUF001
    ]


def test_a_constant_is_a_float():
    assert float(T.Tensor(2.5)) == 2.5
    assert float((leaf(2.5) * 2).detach()) == 5.0
    assert (leaf(2.5) * 2).item() == 5.0


def test_comparisons_return_arrays():
    x = leaf(1.0, 3.0)
    assert (x > 2).tolist() == [False, True]
    assert (2.0 >= x).tolist() == [True, False]  # noqa: SIM300
    assert (np.array([2.0, 2.0]) > x).tolist() == [True, False]
    assert (x == x.detach()).tolist() == [True, True]


def test_importing_loads_neither_mlx_nor_torch():
    import subprocess

    program = (
        "import sys, mlx_grpo_kit.tensor, mlx_grpo_kit.tensor.nn, mlx_grpo_kit.tensor.optim; "
        "print(sorted({'mlx', 'torch', 'scipy', 'matplotlib'} & {m.split('.')[0] for m in sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
