"""value_and_grad: the right numbers, and one clear sentence for each way to get none."""

import math
import warnings

import numpy as np
import pytest
import torch

from mlx_grpo_kit.autograd import GradientError, GradientWarning, value_and_grad
from mlx_grpo_kit.grpo import LOSS_TYPES, GRPOLossConfig, grpo_loss_and_metrics
from mlx_grpo_kit.runtime import mx

PARAMS = {"w": mx.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]]), "b": mx.array([0.5, -0.5])}
X = mx.array([0.3, -0.7, 0.2])


def affine_loss(params):
    return mx.tanh(params["w"] @ X + params["b"]).square().sum()


def test_value_and_gradients_equal_torch():
    loss, grads = value_and_grad(affine_loss, PARAMS)
    w, b = (torch.tensor(np.array(PARAMS[name]), requires_grad=True) for name in ("w", "b"))
    theirs = torch.tanh(w @ torch.tensor(np.array(X)) + b).square().sum()
    theirs.backward()
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert set(grads) == {"w", "b"}
    np.testing.assert_allclose(grads["w"], w.grad, rtol=1e-5)
    np.testing.assert_allclose(grads["b"], b.grad, rtol=1e-5)


def test_the_given_parameters_stay_as_they_are():
    before = {name: np.array(value) for name, value in PARAMS.items()}
    value_and_grad(affine_loss, PARAMS)
    assert all((np.array(PARAMS[name]) == before[name]).all() for name in PARAMS)


def test_gradients_have_the_dtype_and_shape_of_their_parameters():
    params = {"half": mx.ones((2, 1), mx.bfloat16), "single": mx.ones((3,))}
    loss, grads = value_and_grad(lambda p: p["half"].sum() * p["single"].sum(), params)
    assert loss.shape == ()
    assert {name: (grad.dtype, grad.shape) for name, grad in grads.items()} == {
        "half": (mx.bfloat16, (2, 1)), "single": (mx.float32, (3,))}  # fmt: skip


def test_a_parameter_that_the_loss_does_not_use_has_gradient_zero():
    _, grads = value_and_grad(lambda p: p["w"].sum(), PARAMS)
    assert np.array(grads["b"]).tolist() == [0, 0]


def test_a_loss_with_one_element_counts_as_a_scalar():
    loss, _ = value_and_grad(lambda p: p["b"].sum(keepdims=True), PARAMS)
    assert loss.shape == ()


def test_a_loss_that_is_no_scalar():
    with pytest.raises(GradientError, match=r"loss has shape \(2,\); expected a scalar. Reduce it with .mean\(\)"):
        value_and_grad(lambda p: p["b"] * 2, PARAMS)


@pytest.mark.parametrize(
    ("loss_fn", "kind"),
    [(lambda p: p["b"].sum().item(), "float"), (lambda p: None, "NoneType"), (lambda p: (p["b"].sum(), 1), "tuple")],
)
def test_a_loss_that_is_no_array(loss_fn, kind):
    with pytest.raises(GradientError, match=rf"returned {kind}; expected a scalar mx.array.*Leave out .item\(\)"):
        value_and_grad(loss_fn, PARAMS)


# No path from params to the loss.


def test_forward_pass_outside_the_loss_function():
    outputs = PARAMS["w"] @ X
    with pytest.raises(GradientError, match=r"no path from params to the loss: compute the forward pass inside the"):
        value_and_grad(lambda p: outputs.square().sum(), PARAMS)


def test_forward_pass_behind_stop_gradient():
    with pytest.raises(GradientError, match=r"no path from params to the loss.*mx.stop_gradient"):
        value_and_grad(lambda p: mx.stop_gradient(affine_loss(p)), PARAMS)


def test_parameters_that_only_choose():
    """A comparison depends on the parameters, but no gradient goes through it."""
    with pytest.raises(GradientError, match="no path from params to the loss"):
        value_and_grad(lambda p: (p["w"] @ X > p["b"]).astype(mx.float32).mean(), PARAMS)


@mx.custom_function
def cubed(x):
    return x**3


def by_checkpoint(p):
    return mx.checkpoint(lambda x: p["w"] @ x)(X + p["b"][0])


def by_checkpoint_of_a_derived_array(p):
    doubled = 2 * p["w"]
    return mx.checkpoint(lambda x: doubled @ x)(X + p["b"][0])


def by_custom_function(p):
    @mx.custom_function
    def project(x):
        return p["w"] @ x

    @project.vjp
    def project_vjp(x, cotangent, output):
        return cotangent @ p["w"]

    return project(X + p["b"][0])


def by_stop_gradient(p):
    return mx.stop_gradient(p["w"]) @ (X + p["b"][0])


@pytest.mark.parametrize(
    "program", [by_checkpoint, by_checkpoint_of_a_derived_array, by_custom_function, by_stop_gradient]
)
def test_a_parameter_whose_gradient_is_lost_gets_a_warning(program):
    with pytest.warns(GradientWarning, match="loss depends on 'w', but no path leads to it.*mx.checkpoint") as seen:
        _, grads = value_and_grad(lambda p: program(p).sum(), PARAMS)
    assert len(seen) == 1
    assert not np.array(grads["w"]).any()
    assert np.array(grads["b"]).any()
    with pytest.raises(GradientError, match=r"no path from params to the loss.*inside mx.checkpoint"):
        value_and_grad(lambda p: program({**p, "b": PARAMS["b"]}).sum(), {"w": PARAMS["w"]})


def refuses_nan(p):
    assert not mx.isnan(p["w"]).any().item()
    return p["b"].sum()


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda p: mx.checkpoint(lambda w, x: w @ x)(p["w"], X + p["b"][0]).sum(),
        lambda p: p["b"].sum(),
        lambda p: cubed(p["b"]).sum() + 0 * p["w"].sum(),
        lambda p: (p["b"] * (p["w"] @ X > 0)).sum(),
        refuses_nan,
    ],
)
def test_a_gradient_that_is_rightly_zero_gets_no_warning(loss_fn):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value_and_grad(loss_fn, PARAMS)


@pytest.mark.parametrize("factor", [0.0, 1e-30])
def test_zero_gradients_alone_are_no_error(factor):
    """1e-30: a gradient that is zero only after rounding."""
    _, grads = value_and_grad(lambda p: (factor * p["w"] * 1e-30).sum(), {"w": PARAMS["w"]})
    assert not np.array(grads["w"]).any()


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_a_group_of_equal_rewards_is_no_error(loss_type, level):
    """Every advantage is zero, and so is every gradient: nothing to learn from, and nothing wrong."""
    config = GRPOLossConfig(loss_type, epsilon_high=5.0, max_completion_length=3, importance_sampling_level=level)
    mask = mx.array([[1, 1, 1], [1, 0, 0]])

    def loss_fn(params):
        return grpo_loss_and_metrics(config, params["logps"], mx.full((2, 3), -1.0), mx.zeros(2), mask)[0]

    loss, grads = value_and_grad(loss_fn, {"logps": mx.array([[-1.0, -2.0, -0.1], [-0.5, -3.0, -1.0]])})
    assert loss.item() == 0
    assert not np.array(grads["logps"]).any()


@pytest.mark.parametrize(
    "clip",
    [
        lambda w: mx.where(w > -10, 1.0, w),
        lambda w: mx.where(mx.zeros(w.shape, mx.bool_), w, 1.0),
        lambda w: mx.clip(w, 10.0, 20.0),
        lambda w: mx.maximum(w, 10.0),
        lambda w: mx.minimum(w, -10.0),
    ],
)
def test_a_path_that_no_number_took_is_no_error(clip):
    """Everything clipped, or everything masked: other numbers, or another mask, would have had a gradient."""
    _, grads = value_and_grad(lambda p: clip(p["w"]).sum(), PARAMS)
    assert not np.array(grads["w"]).any()


def test_a_batch_with_every_ratio_clipped_is_no_error():
    def loss_fn(params):
        return grpo_loss_and_metrics(
            GRPOLossConfig(), params["logps"], mx.full((2, 1), -5.0), mx.ones(2), mx.ones((2, 1))
        )[0]

    _, grads = value_and_grad(loss_fn, {"logps": mx.full((2, 1), -1.0)})
    assert not np.array(grads["logps"]).any()


# Parameters.


def test_a_parameter_that_is_not_there():
    with pytest.raises(GradientError, match=r"'layers.0.bias', which is not in params. Did you mean 'layers.0.bia'"):
        value_and_grad(lambda p: p["layers.0.bias"].sum(), {"layers.0.bia": mx.ones(2), "w": mx.ones(2)})
    with pytest.raises(GradientError, match=r"'zzz', which is not in params. There are 2, the first is 'w'"):
        value_and_grad(lambda p: p["zzz"].sum(), PARAMS)


def test_no_parameters():
    with pytest.raises(GradientError, match="params is empty"):
        value_and_grad(affine_loss, {})


@pytest.mark.parametrize(
    ("value", "kind"), [(mx.array([1, 2]), "dtype mlx.core.int32"), (np.ones(2), "type ndarray"), (1.0, "type float")]
)
def test_a_parameter_that_is_no_array_of_floats(value, kind):
    with pytest.raises(GradientError, match=f"Parameter 'b' has {kind}; expected an mx.array of floating-point"):
        value_and_grad(affine_loss, PARAMS | {"b": value})


# Numbers.


def test_a_loss_that_is_nan():
    with pytest.raises(GradientError, match=r"The loss is NaN. Look for NaN in what goes in"):
        value_and_grad(lambda p: mx.log(p["b"]).sum(), PARAMS)


def test_nan_in_a_gradient_under_a_finite_loss():
    """torch's gradient is NaN too: the branch that was not taken is infinite or NaN, and 0 times that is NaN."""
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    torch.where(x > 0, x, torch.sqrt(x - 3)).sum().backward()
    assert x.grad.isnan().all()
    with pytest.raises(GradientError, match=r"The loss is 6, but the gradients of 1 of 3 parameters hold NaN: 'x'\. "):
        value_and_grad(
            lambda p: mx.where(p["x"] > 0, p["x"], mx.sqrt(p["x"] - 3)).sum() + p["b"].sum(),
            {"b": mx.array([1.0, 2.0]), "unused": mx.ones(3), "x": mx.array([1.0, 2.0])},
        )


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_one_nan_in_a_large_gradient(dtype):
    params = {f"w{number}": mx.ones([300, 40], dtype) for number in range(5)}

    def loss_fn(params):
        at_one_place = mx.arange(12_000).reshape(300, 40) == 7_777
        overflowing = mx.exp(mx.where(at_one_place, 1e9, 0.0).astype(dtype) * params["w3"])
        return sum(value.mean() for value in params.values()) + mx.minimum(overflowing, 1.0).mean()

    with pytest.raises(GradientError, match="of 1 of 5 parameters hold NaN: 'w3'"):
        value_and_grad(loss_fn, params)


def test_many_parameters_with_nan_are_counted():
    params = {f"w{number}": mx.array([1.0]) for number in range(5)}
    with pytest.raises(GradientError, match="of 5 of 5 parameters hold NaN: 'w0', 'w1', 'w2' and 2 more"):
        value_and_grad(lambda p: mx.minimum(mx.exp(1e3 * sum(p.values())), 1.0).sum(), params)


def test_infinite_gradients_are_left_to_the_caller():
    """As torch: the slope of sqrt at 0 is infinite. Two of them of opposite signs do not pass for NaN."""
    _, grads = value_and_grad(
        lambda p: mx.sqrt(p["a"]).sum() - mx.sqrt(p["b"]).sum(), {"a": mx.zeros(2), "b": mx.zeros(2)}
    )
    assert (grads["a"].tolist(), grads["b"].tolist()) == ([math.inf] * 2, [-math.inf] * 2)


def test_an_infinite_loss_is_left_to_the_caller():
    loss, _ = value_and_grad(lambda p: (p["b"] * 1e38 * 1e38).sum() + math.inf, {"b": mx.ones(2)})
    assert loss.item() == math.inf


def test_other_errors_of_the_loss_function_pass_through():
    with pytest.raises(ZeroDivisionError):
        value_and_grad(lambda p: p["b"].sum() / (1 // 0), PARAMS)
