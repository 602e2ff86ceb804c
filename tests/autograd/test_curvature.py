"""Second derivatives equal those of torch, for named parameters of every shape, up to the whole model."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.autograd import GradientError, hessian, hvp
from mlx_grpo_kit.qwen3 import load_pretrained, qwen3_forward
from mlx_grpo_kit.runtime import mx

RNG = np.random.default_rng(0)
SHAPES = {"w": (3, 2), "b": (2,), "scale": (), "one": (1, 1)}
NUMBERS = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
VECTOR = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
X = RNG.normal(size=(4, 3)).astype(np.float32)


def loss_mlx(p):
    hidden = mx.tanh(mx.array(X) @ p["w"] + p["b"]) * p["scale"]
    return mx.logsumexp(hidden, axis=1).sum() * p["one"].sum() + (p["w"] ** 2).sum() ** 2


def loss_torch(p):
    hidden = torch.tanh(torch.tensor(X, dtype=torch.float64) @ p["w"] + p["b"]) * p["scale"]
    return torch.logsumexp(hidden, dim=1).sum() * p["one"].sum() + (p["w"] ** 2).sum() ** 2


def in_mlx(arrays):
    return {name: mx.array(value) for name, value in arrays.items()}


def in_torch(arrays):
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in arrays.items()}


def test_the_product_equals_torchs():
    names = list(NUMBERS)
    _, theirs = torch.autograd.functional.hvp(
        lambda *values: loss_torch(dict(zip(names, values, strict=True))),
        tuple(in_torch(NUMBERS).values()),
        tuple(in_torch(VECTOR).values()),
    )
    ours = hvp(loss_mlx, in_mlx(NUMBERS), in_mlx(VECTOR))
    for name, expected in zip(names, theirs, strict=True):
        assert ours[name].shape == SHAPES[name]
        np.testing.assert_allclose(ours[name], expected, rtol=1e-4, atol=1e-4)


def test_the_hessian_equals_torchs():
    theirs = torch.func.hessian(loss_torch)(in_torch(NUMBERS))
    ours = hessian(loss_mlx, in_mlx(NUMBERS))
    for a in SHAPES:
        for b in SHAPES:
            assert ours[a][b].shape == SHAPES[a] + SHAPES[b]
            np.testing.assert_allclose(ours[a][b], theirs[a][b], rtol=1e-4, atol=1e-4)


def test_the_product_of_the_whole_model_equals_torchs():
    config, params = load_pretrained(TINY)
    model = AutoModelForCausalLM.from_pretrained(TINY, attn_implementation="eager", dtype=torch.float64)
    ids = np.array([[3, 14, 15, 9], [2, 6, 5, 3]])
    weights = list(model.parameters())
    loss = torch.logsumexp(model(torch.tensor(ids)).logits, -1).mean()
    grads = torch.autograd.grad(loss, weights, create_graph=True)
    rng = np.random.default_rng(0)
    vectors = [torch.tensor(rng.normal(size=tuple(w.shape)).astype(np.float32)).double() for w in weights]
    theirs = torch.autograd.grad(sum((g * v).sum() for g, v in zip(grads, vectors, strict=True)), weights)
    names = [name.removeprefix("model.").replace("embed_tokens", "embedding") for name, _ in model.named_parameters()]
    names = ["final_norm.weight" if name == "norm.weight" else name for name in names]
    assert set(names) == set(params)
    vector = {name: mx.array(v.float().numpy()) for name, v in zip(names, vectors, strict=True)}
    ours = hvp(lambda p: qwen3_forward(config, p, mx.array(ids)).logsumexp(-1).mean(), params, vector)
    for name, expected in zip(names, theirs, strict=True):
        off = np.abs(np.array(ours[name]) - expected.numpy()).max()
        assert off < 1e-3 * np.abs(expected.numpy()).max(), name


def test_a_linear_loss_has_no_curvature():
    product = hvp(lambda p: p["w"].sum() + p["b"].sum(), in_mlx(NUMBERS), in_mlx(VECTOR))
    assert all(not np.array(value).any() for value in product.values())


def test_the_parameters_stay_as_they_are():
    params = in_mlx(NUMBERS)
    hessian(loss_mlx, params)
    hvp(loss_mlx, params, in_mlx(VECTOR))
    assert all((np.array(params[name]) == NUMBERS[name]).all() for name in params)


def test_a_vector_that_does_not_fit():
    params = in_mlx(NUMBERS)
    with pytest.raises(GradientError, match="different names: 'b' is only in one of them"):
        hvp(loss_mlx, params, {name: value for name, value in params.items() if name != "b"})
    with pytest.raises(GradientError, match=r"vector\['w'\] has shape \(2, 3\); the parameter has \(3, 2\)"):
        hvp(loss_mlx, params, params | {"w": mx.ones((2, 3))})


def test_what_cannot_be_done_is_said():
    with pytest.raises(GradientError, match=r"Hessian of 1,001 parameters has 1,002,001 numbers.*hvp"):
        hessian(lambda p: p["w"].sum(), {"w": mx.ones(1001)})
    with pytest.raises(GradientError, match="expected a scalar"):
        hvp(lambda p: p["b"], in_mlx(NUMBERS), in_mlx(VECTOR))
    with pytest.raises(GradientError, match="params is empty"):
        hessian(loss_mlx, {})
    with pytest.raises(GradientError, match=r"dtype mlx\.core\.int32"):
        hessian(lambda p: p["w"].sum(), {"w": mx.array([1])})


def cubes(p):
    return (p["a"] ** 3).sum()


A = {"a": mx.array([1.0, 2.0])}


@pytest.mark.parametrize(
    ("params", "vector", "message"),
    [
        (A, None, "Directions have type NoneType; expected a dictionary"),
        (A, A["a"], "Directions have type array"),
        (A, {"a": [1.0, 2.0]}, "Direction 'a' has type list"),
        (A, {"a": mx.array([1, 2])}, "Direction 'a' has dtype mlx.core.int32"),
        (A, {"a": mx.array([1 + 1j, 0])}, "Direction 'a' has dtype mlx.core.complex64"),
        (A, {1: A["a"], "a": A["a"]}, "different names"),
        (A["a"], A, "Parameters have type array"),
        ([A["a"]], A, "Parameters have type list"),
        ({"a": mx.zeros((0,))}, A, r"shape \(0,\), so it is empty"),
    ],
)
def test_what_is_no_direction_or_no_parameter_is_told(params, vector, message):
    with pytest.raises(GradientError, match=message):
        hvp(cubes, params, vector)
    if params is not A:
        with pytest.raises(GradientError, match=message):
            hessian(cubes, params)


def test_zeros_and_nan_are_explained_and_honest_zeros_returned():
    for second in (lambda f: hvp(f, A, A), lambda f: hessian(f, A)):
        with pytest.raises(GradientError, match="no path"):
            second(lambda p: mx.array(1.0))
        with pytest.raises(GradientError, match="NaN"):
            second(lambda p: (p["a"] ** 2 * mx.nan).sum())
    assert hvp(lambda p: p["a"].sum(), A, A)["a"].tolist() == [0, 0]
    assert hessian(lambda p: p["a"].sum(), A)["a"]["a"].tolist() == [[0, 0], [0, 0]]
