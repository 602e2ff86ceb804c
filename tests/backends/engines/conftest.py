"""A small Qwen3 as a folder, and every backend that learns it: each made from the same folder, with its own names."""

from functools import partial

import numpy as np
import pytest

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import GRPOLossConfig
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer, qwen3_forward

SMALL = dict(
    vocab_size=64, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
)  # fmt: skip


@pytest.fixture(scope="session", params=[True, False], ids=["tied", "untied"])
def small_folder(request, make_qwen3, tmp_path_factory):
    """What transformers wrote, of a random model."""
    model, _, _ = make_qwen3(0.1, tie_word_embeddings=request.param, **SMALL)
    folder = tmp_path_factory.mktemp("hf") / "small"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny():
    """(config, params, tokenizer) of the shipped model."""
    return *load_pretrained(TINY), load_tokenizer(TINY)


def loss():
    from mlx_grpo_kit.grpo.loss_of_logits import grpo_loss_fn

    return grpo_loss_fn(GRPOLossConfig())


def make_mlx(folder, checkpoint_dir, lr):
    import mlx.optimizers as optim

    from mlx_grpo_kit.backends import MLXTrainingBackend

    config, params = load_pretrained(folder)
    optimizer = optim.AdamW(lr, weight_decay=0.0, bias_correction=True)
    return MLXTrainingBackend(
        lambda params, ids: qwen3_forward(config, params, ids), params, optimizer, loss(), checkpoint_dir,
        max_grad_norm=1.0,
    )  # fmt: skip


def transformers_model(folder):
    import torch
    from transformers import Qwen3ForCausalLM

    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)


def make_pytorch(folder, checkpoint_dir, lr):
    import torch

    from mlx_grpo_kit.backends import PyTorchTrainingBackend

    model = transformers_model(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    return PyTorchTrainingBackend(model, optimizer, loss(), checkpoint_dir, max_grad_norm=1.0)


def make_torch_func(folder, checkpoint_dir, lr):
    import torchopt

    from mlx_grpo_kit.backends import TorchFuncTrainingBackend

    steps = torchopt.chain(torchopt.clip.clip_grad_norm(1.0), torchopt.adamw(lr, weight_decay=0.0))
    model = transformers_model(folder)
    return TorchFuncTrainingBackend.from_model(model, steps, loss(), checkpoint_dir, learning_rate=lr)


def optax_steps(lr):
    import optax

    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(lr, weight_decay=0.0))


def make_jax(folder, checkpoint_dir, lr):
    from mlx_grpo_kit.backends import JAXTrainingBackend
    from mlx_grpo_kit.grpo.learners.jax_qwen3 import qwen3_forward

    config, params = load_pretrained(folder)
    params = {name: np.array(value) for name, value in params.items()}
    apply_fn = partial(qwen3_forward, config)
    return JAXTrainingBackend(apply_fn, params, optax_steps(lr), loss(), checkpoint_dir, learning_rate=lr)


def make_torchax(folder, checkpoint_dir, lr):
    from mlx_grpo_kit.backends import TorchaxTrainingBackend

    model = transformers_model(folder)
    return TorchaxTrainingBackend(model, optax_steps(lr), loss(), checkpoint_dir, learning_rate=lr)


MAKERS = {
    "mlx": make_mlx,
    "pytorch": make_pytorch,
    "torch_func": make_torch_func,
    "jax": make_jax,
    "torchax": make_torchax,
}


@pytest.fixture
def make_one_backend(tmp_path):
    """(name, folder, lr=8e-4) -> a backend that learns the Qwen3 of the folder; closed at the end."""
    import torch

    made, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)  # two would wait for each other on a machine that has other work

    def make(name, folder, lr=8e-4):
        made.append(MAKERS[name](folder, tmp_path / f"checkpoints{len(made)}", lr))
        return made[-1]

    yield make
    torch.set_num_threads(threads)
    for backend in made:
        backend._worker.close(finish=False)


@pytest.fixture(params=MAKERS)
def make_any_backend(request, make_one_backend):
    """(folder, lr=8e-4) -> a backend; every test that asks for this is run with each of the five."""
    return partial(make_one_backend, request.param)


@pytest.fixture(params=["mlx", "pytorch"])
def make_backend(request, make_one_backend):
    """As `make_any_backend`, for what does not depend on the framework: with two that have nothing to compile."""
    return partial(make_one_backend, request.param)
