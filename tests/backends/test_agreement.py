"""One Qwen3, one GRPO batch, five frameworks: one loss, one gradient, and the same weights after ten steps.

The truth is transformers' model and a plain loop of torch, with the loss as the papers have it.
"""

from functools import partial

import numpy as np
import pytest
import torch

from mlx_grpo_kit import backends
from mlx_grpo_kit.backends.arrays import array_of, as_numpy, framework_of
from mlx_grpo_kit.grpo import GRPOLossConfig
from mlx_grpo_kit.grpo.loss_of_logits import grpo_loss_fn, token_logps_and_entropies
from mlx_grpo_kit.qwen3 import decays, qwen3_forward
from mlx_grpo_kit.qwen3.weight_files import kit_name

V, ROWS, LENGTH, STEPS, PARTS = 29, 4, 9, 10, 2
RATE, DECAY, BETA, EPSILON = 3e-3, 0.01, 0.04, 0.2
MODEL = dict(vocab_size=V, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, rope_theta=10_000.0)  # fmt: skip
NAMES = ("PyTorch", "MLX", "torch.func", "JAX", "torchax")


def decaying(params):
    """The mask of optimizers of optax and torchopt: True for each parameter that decays."""
    return {name: decays(name) for name in params}


def make_backend(name, config, params, loss_fn, folder):
    """A backend whose AdamW decays matrices alone; "input_ids" of its batches are token ids and attention mask."""
    if name == "MLX":
        from mlx_grpo_kit.backends.mlx_backend import AdamW
        from mlx_grpo_kit.runtime import mx

        def apply_fn(params, input_ids, attention_mask):
            return qwen3_forward(config, params, input_ids, attention_mask=attention_mask)

        arrays = {each: mx.array(value) for each, value in params.items()}
        optimizer = AdamW(RATE, weight_decay=DECAY, bias_correction=True)
        return backends.MLXTrainingBackend(apply_fn, arrays, optimizer, loss_fn, folder)
    if name == "JAX":
        import optax

        from mlx_grpo_kit.grpo.learners import jax_qwen3

        apply_fn = partial(jax_qwen3.qwen3_forward, config)
        optimizer = optax.adamw(RATE, weight_decay=DECAY, mask=decaying)
        return backends.JAXTrainingBackend(apply_fn, params, optimizer, loss_fn, folder)

    from mlx_grpo_kit.grpo.learners.torch_qwen3 import Qwen3

    model = Qwen3(config, params)
    if name == "PyTorch":
        groups = [{"params": [], "weight_decay": decay} for decay in (0.0, DECAY)]
        for each, parameter in model.named_parameters():
            groups[decays(each)]["params"].append(parameter)
        return backends.PyTorchTrainingBackend(model, torch.optim.AdamW(groups, RATE), loss_fn, folder)
    if name == "torch.func":
        import torchopt
        from torchopt.transform import add_decayed_weights, scale, scale_by_adam

        # torchopt.adamw would give the mask a list of tensors without their names.
        optimizer = torchopt.chain(scale_by_adam(), add_decayed_weights(DECAY, mask=decaying), scale(-RATE))
        return backends.TorchFuncTrainingBackend.from_model(model, optimizer, loss_fn, folder)
    import optax

    optimizer = optax.adamw(RATE, weight_decay=DECAY, mask=decaying)
    return backends.TorchaxTrainingBackend(model, optimizer, loss_fn, folder)


def as_batch(backend, batch):
    """A batch of NumPy arrays, or tuples of them, in the backend's framework."""
    framework = framework_of(next(iter(backend.get_weights().wait().values())))

    def convert(value):
        return tuple(map(convert, value)) if isinstance(value, tuple) else array_of(framework, np.asarray(value))

    return {name: convert(value) for name, value in batch.items()}


def gradient_of(backend):
    """Copies of a backend's gradient between forward_backward and optim_step, by parameter."""
    if isinstance(backend, backends.PyTorchTrainingBackend):
        held = {name: each.grad for name, each in backend.model.named_parameters()}
    else:
        held = backend._grads
    return {name: np.array(as_numpy(each)) for name, each in held.items()}


def relative_difference(ours, theirs):
    """|ours - theirs| / |theirs|, with all arrays as one vector."""
    assert ours.keys() == theirs.keys()
    difference = sum(np.square(ours[name].astype(float) - theirs[name]).sum() for name in theirs)
    return float(np.sqrt(difference / sum(np.square(each.astype(float)).sum() for each in theirs.values())))


def grpo_batch(seed):
    """Rows padded on the left whose second part was sampled, by a policy that has moved on since."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, V, (ROWS, LENGTH))
    real = (np.arange(LENGTH) >= rng.integers(0, 3, (ROWS, 1))).astype(np.int32)
    lengths = rng.integers(2, 6, (ROWS, 1))
    place = np.arange(LENGTH - 1)
    logps = rng.normal(-3, 0.3, (ROWS, LENGTH - 1)).astype(np.float32)
    return {
        "input_ids": (ids[:, :-1], real[:, :-1]),
        "labels": ids[:, 1:],
        "loss_mask": ((place >= 3) & (place < 3 + lengths)).astype(np.float32),
        "advantages": rng.normal(size=ROWS).astype(np.float32),
        "old_logps": logps,
        "ref_logps": (logps + rng.normal(size=logps.shape) * 0.3).astype(np.float32),
    }


def grpo_step(step):
    """The batches of an optimizer step, each with the number of tokens that all of them have: their losses add up."""
    batches = [grpo_batch(PARTS * step + part) for part in range(PARTS)]
    count = np.float32(sum(batch["loss_mask"].sum() for batch in batches))
    return [batch | {"num_items_in_batch": count} for batch in batches]


def written_out_loss(logits, labels, loss_mask, advantages, old_logps, ref_logps, num_items_in_batch):
    """DAPO's equation 8 with a KL penalty, k3."""
    logps = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    ratio, advantages = (logps - old_logps).exp(), advantages[:, None]
    clipped = torch.minimum(ratio * advantages, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages)
    kl = (ref_logps - logps).exp() - (ref_logps - logps) - 1
    return ((BETA * kl - clipped) * loss_mask).sum() / num_items_in_batch


@pytest.fixture(scope="module")
def model(make_qwen3):
    """transformers' model, the kit's configuration and its parameters as NumPy's."""
    reference, config, params = make_qwen3(0.2, **MODEL)
    return reference, config, {name: np.array(value) for name, value in params.items()}


@pytest.fixture(scope="module")
def truth(model, decay_groups):
    """(losses, gradients of the first step, weights after the last) of a plain loop."""
    reference = model[0]
    initial = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    named = {kit_name(name): parameter for name, parameter in reference.named_parameters()}
    optimizer = torch.optim.AdamW(decay_groups(reference), lr=RATE, weight_decay=DECAY)
    losses, first = [], None
    for step in range(STEPS):
        optimizer.zero_grad()
        for batch in grpo_step(step):
            ids, real = (torch.tensor(each) for each in batch.pop("input_ids"))
            logits = reference(ids, attention_mask=real, position_ids=torch.arange(LENGTH - 1)[None]).logits
            loss = written_out_loss(logits, **{name: torch.tensor(each) for name, each in batch.items()})
            loss.backward()
            losses.append(loss.item())
        first = first or {name: parameter.grad.numpy().copy() for name, parameter in named.items()}
        optimizer.step()
    weights = {name: parameter.detach().numpy().copy() for name, parameter in named.items()}
    reference.load_state_dict(initial)
    return losses, first, weights


@pytest.fixture(params=NAMES)
def name(request):
    if request.param in ("JAX", "torchax"):
        request.getfixturevalue("jax")
    return request.param


def test_one_loss_one_gradient_and_the_same_weights_after_ten_steps(name, model, truth, tmp_path):
    _, config, params = model
    expected_losses, expected_gradients, expected_weights = truth
    loss_fn = grpo_loss_fn(GRPOLossConfig(beta=BETA, epsilon=EPSILON))
    backend = make_backend(name, config, params, loss_fn, tmp_path)
    losses = []
    for step in range(STEPS):
        for batch in grpo_step(step):
            losses.append(backend.forward_backward(as_batch(backend, batch)).wait()["loss"])
        if step == 0:
            assert losses == pytest.approx(expected_losses[:PARTS], rel=1e-5)
            assert relative_difference(gradient_of(backend), expected_gradients) <= 1e-5
        backend.optim_step().wait()
    assert losses == pytest.approx(expected_losses, rel=1e-4, abs=1e-6)
    weights = {name: as_numpy(array) for name, array in backend.get_weights().wait().items()}
    for each, theirs in expected_weights.items():
        np.testing.assert_allclose(weights[each], theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max(), err_msg=each)
    assert relative_difference(weights, expected_weights) <= 1e-5
    moved = relative_difference({name: np.array(value) for name, value in params.items()}, expected_weights)
    assert moved > 0.01, "ten steps that hardly change anything would prove nothing"
    backend.close()


def test_logits_of_half_precision_are_computed_with_in_float32():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, V).bfloat16(), torch.randint(V, (2, 3))
    logps, entropies = token_logps_and_entropies(logits, labels, 0.7)
    truth = torch.distributions.Categorical(logits=logits.double() / 0.7)
    torch.testing.assert_close(logps.double(), truth.log_prob(labels), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropies.double(), truth.entropy(), rtol=1e-5, atol=1e-6)
