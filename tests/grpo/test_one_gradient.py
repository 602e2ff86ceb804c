"""The GRPO gradient of a whole Qwen3 from every engine, against transformers' model and TRL's loss in float64."""

import inspect
import sys
import types
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
import transformers.models.qwen3.modeling_qwen3 as modeling_qwen3

from mlx_grpo_kit.course.chapters.chapter_16 import engines, exercises
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.scalar import topological_order

OTHER = replace(
    engines.VERY_SMALL, vocab_size=6, hidden_size=6, intermediate_size=5, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=2, rms_norm_eps=1e-3, tie_word_embeddings=False,
)  # fmt: skip
BATCHES = {
    "tied": (engines.VERY_SMALL, {}),
    "another seed": (engines.VERY_SMALL, {"seed": 5}),
    "two layers, untied": (OTHER, {"seed": 2, "lengths": (1, 4, 2), "prompt_length": 3}),
}
FLOAT64 = {
    "scalar": engines.SCALAR,
    "tensor": engines.TENSOR,
    "torch": engines.torch_engine(),
    "mlx": engines.MLX_FLOAT64,
}


@pytest.fixture(scope="module")
def modeling():
    """transformers' Qwen3 with float64 wherever its source says float32: norms, rotations and softmax."""
    source = inspect.getsource(modeling_qwen3)
    for old, new in {"torch.float32": "torch.float64", "dtype=torch.float)": "dtype=torch.float64)"}.items():
        assert old in source
        source = source.replace(old, new)
    source = source.replace(".float()", ".double()")
    module = types.ModuleType("transformers.models.qwen3.modeling_qwen3_float64")
    module.__package__, module.__file__ = "transformers.models.qwen3", modeling_qwen3.__file__
    with mock.patch.dict(sys.modules, {module.__name__: module}):
        exec(compile(source, "modeling_qwen3 in float64", "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module", params=BATCHES)
def case(request):
    config, settings = BATCHES[request.param]
    return config, *engines.frozen(config, **settings)


def in_huggingface(name):
    name = {"embedding.weight": "embed_tokens.weight", "final_norm.weight": "norm.weight"}.get(name, name)
    return name if name == "lm_head.weight" else f"model.{name}"


@pytest.fixture(scope="module")
def truth(case, modeling, trl):
    """(loss, gradients by the kit's names) of transformers' model, TRL's advantages and TRL's loss."""
    config, params, batch = case
    hf_config = modeling.Qwen3Config(**config.to_dict(), attn_implementation="eager")
    torch.set_default_dtype(torch.float64)  # its buffers are made in the default dtype
    try:
        model = modeling.Qwen3ForCausalLM(hf_config).double()
    finally:
        torch.set_default_dtype(torch.float32)
    weights = {in_huggingface(name): torch.tensor(value) for name, value in params.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    logits = model(torch.tensor(batch.ids)).logits[:, batch.prompt_length - 1 : -1]
    completions = torch.tensor(batch.ids[:, batch.prompt_length :])
    logps = logits.log_softmax(-1).gather(-1, completions[..., None])[..., 0]
    assert logps.dtype == torch.float64
    # TRL rounds advantages to float32 on its way, and adds in another order than the kit.
    np.testing.assert_allclose(batch.advantages, trl.advantages(batch.rewards.tolist(), batch.group_size), rtol=1e-5)
    arrays = logps.detach().numpy(), batch.old_logps, batch.advantages, batch.mask
    settings = dict(loss_type="dapo", epsilon=batch.epsilon, beta=batch.beta)
    loss, of_logps, _ = trl.loss(*arrays, ref_logps=batch.ref_logps, **settings)
    assert of_logps.dtype == np.float64
    logps.backward(torch.tensor(of_logps))
    return loss, {name: model.get_parameter(in_huggingface(name)).grad.numpy() for name in params}


@pytest.mark.parametrize("engine", FLOAT64)
def test_every_engine_has_the_gradient_of_transformers_and_trl(case, truth, engine):
    config, params, batch = case
    loss, grads = engines.loss_and_gradients(FLOAT64[engine], config, params, batch)
    true_loss, true_grads = truth
    assert grads.keys() == true_grads.keys()
    assert loss == pytest.approx(true_loss, abs=1e-12)
    difference, name = engines.largest_difference(grads, true_grads)
    assert difference < 1e-12, name
    assert all(grad.dtype == np.float64 and np.abs(grad).max() > 1e-4 for grad in grads.values())


def test_the_engines_differ_by_the_rounding_of_float64(case):
    results = [engines.loss_and_gradients(engine, *case) for engine in FLOAT64.values()]
    for loss, grads in results[1:]:
        assert loss == pytest.approx(results[0][0], abs=1e-13)
        assert engines.largest_difference(grads, results[0][1])[0] < 1e-13


def test_in_float32_mlx_and_the_code_that_trains_differ_by_its_rounding(case):
    _, exact = engines.loss_and_gradients(engines.TENSOR, *case)
    largest = max(np.abs(grad).max() for grad in exact.values())
    for _, grads in (engines.loss_and_gradients(engines.MLX_FLOAT32, *case), engines.kit_loss_and_gradients(*case)):
        assert all(grad.dtype == np.float32 for grad in grads.values())
        assert engines.largest_difference(grads, exact)[0] < 5e-6 * largest


def test_ratios_on_both_sides_of_both_edges_and_of_every_sign():
    """The frozen batch tries every branch of the loss."""
    params, batch = engines.frozen()
    config, engine = engines.VERY_SMALL, engines.MLX_FLOAT64
    with mx.stream(mx.cpu):
        logps = engines.policy_logps(engine, config, {k: engine.constant(v) for k, v in params.items()}, batch)
        ratio = np.exp(np.array(logps) - batch.old_logps)
    signs = np.broadcast_to(np.sign(batch.advantages)[:, None], ratio.shape)
    seen = {
        (sign, int(np.digitize(value, (1 - batch.epsilon, 1 + batch.epsilon))))
        for value, sign, counts in zip(ratio.ravel(), signs.ravel(), batch.mask.ravel(), strict=True)
        if counts
    }
    assert seen == {(sign, side) for sign in (-1, 1) for side in (0, 1, 2)}


def test_what_stands_at_padded_places_changes_nothing():
    params, batch = engines.frozen()
    junk = np.where(batch.mask, batch.old_logps, -900.0), np.where(batch.mask, batch.ref_logps, 900.0)
    other = replace(batch, old_logps=junk[0], ref_logps=junk[1])
    _, grads = engines.loss_and_gradients(engines.TENSOR, engines.VERY_SMALL, params, batch)
    _, same = engines.loss_and_gradients(engines.TENSOR, engines.VERY_SMALL, params, other)
    assert engines.largest_difference(grads, same)[0] == 0


def test_as_many_values_as_the_chapter_says():
    params, batch = engines.frozen()
    assert sum(array.size for array in params.values()) == 568
    graph = []

    def loss_fn(own):
        logps = engines.policy_logps(engines.SCALAR, engines.VERY_SMALL, own, batch)
        graph.append(engines.loss_of(engines.SCALAR, logps, batch))
        return graph[0]

    engines.SCALAR.differentiate(loss_fn, params)
    assert 25_000 < len(topological_order(graph[0])) < 35_000


# -- the loss that the learner of chapter 16 writes -------------------------------------------------------------------


@pytest.mark.parametrize("on_policy", [False, True])
@pytest.mark.parametrize("loss_type", exercises.FOUR_TYPES)
def test_the_solutions_of_chapter_16_are_trls(trl, loss_type, on_policy):
    rng = np.random.default_rng(len(loss_type))
    for beta in (0.0, 0.04):
        logps = -rng.exponential(1.5, (6, 5)).astype(np.float32)
        old, ref = (np.minimum(logps + rng.normal(0, spread, (6, 5)), 0).astype(np.float32) for spread in (0.4, 0.6))
        mask = np.arange(5) < rng.integers(1, 6, (6, 1))
        rewards = rng.normal(size=6).tolist()
        advantages = exercises.group_advantages(rewards, 3)
        np.testing.assert_allclose(advantages, trl.advantages(rewards, 3), rtol=1e-4, atol=1e-5)
        old = None if on_policy else old
        settings = {"epsilon": 0.2, "epsilon_high": 0.28, "beta": beta, "loss_type": loss_type}
        ref = ref if beta else None
        sizes = dict(max_completion_length=8, num_items_in_batch=40)
        loss, gradient, _ = trl.loss(logps, old, advantages, mask, ref_logps=ref, **sizes, **settings)
        arrays = [None if each is None else mx.array(each) for each in (old, ref, advantages, mask)]
        settings |= {"max_length": 8, "num_items": 40}
        ours, our_gradient = mx.value_and_grad(lambda x: exercises.grpo_loss(x, *arrays, settings))(mx.array(logps))  # noqa: B023
        assert ours.item() == pytest.approx(loss, rel=1e-4, abs=1e-6)
        np.testing.assert_allclose(np.array(our_gradient), gradient, rtol=1e-4, atol=1e-6)
