"""Logits, losses and gradients against transformers' Qwen3, Qwen2 and Llama, greedy tokens against mlx-lm's."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mlx_grpo_kit.autograd import value_and_grad
from mlx_grpo_kit.qwen3 import KVCache, load_pretrained, qwen3_forward, save_pretrained
from mlx_grpo_kit.qwen3.weight_files import hugging_face_name
from mlx_grpo_kit.runtime import mx

SHAPES = {
    "grouped": dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=8),
    "wide heads": dict(hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
                       num_key_value_heads=1, head_dim=16),
    "one head each": dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
                          num_key_value_heads=4, head_dim=4),
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
MODELS = {
    **{("qwen3", shape, tied): {} for shape in SHAPES for tied in (False, True)},
    ("qwen2", "grouped", False): {},
    ("qwen2", "one head each", True): {},
    ("llama", "wide heads", False): {},
    ("llama", "grouped", True): {"rope_parameters": LLAMA3},
}


def make_reference(family: str, shape: str, tied: bool):
    torch.manual_seed(0)
    settings = {"rope_theta": 10_000.0} | SHAPES[shape] | MODELS[family, shape, tied]
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, vocab_size=37, tie_word_embeddings=tied, **settings)
    )
    with torch.no_grad():  # norms of exactly one and tiny matrices would hide mistakes
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.fixture(params=MODELS, ids=str)
def pair(request, tmp_path):
    reference = make_reference(*request.param)
    reference.save_pretrained(tmp_path / "hf")
    return reference, *load_pretrained(tmp_path / "hf")


def relative_error(ours, theirs) -> float:
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


def random_ids(rows=3, columns=11) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 37, (rows, columns))


def test_logits_equal_transformers(pair):
    reference, config, params = pair
    ids = random_ids()
    theirs = reference(torch.tensor(ids)).logits.detach()
    assert relative_error(qwen3_forward(config, params, mx.array(ids)), theirs) < 1e-4


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(pair, side):
    reference, config, params = pair
    ids, mask = random_ids(), np.ones((3, 11), int)
    if side == "left":
        mask[1, :4] = mask[2, :7] = 0
    else:
        mask[1, -4:] = mask[2, -7:] = 0
    ours = np.array(qwen3_forward(config, params, mx.array(ids), attention_mask=mx.array(mask)))
    for row in range(3):
        alone = reference(torch.tensor(ids[row][mask[row] == 1][None])).logits.detach()[0]
        assert relative_error(ours[row][mask[row] == 1], alone) < 1e-4


def test_loss_and_every_gradient_equal_transformers(pair):
    reference, config, params = pair
    ids = random_ids()
    theirs = reference(torch.tensor(ids), labels=torch.tensor(ids)).loss
    theirs.backward()

    def loss_fn(params):
        logits = qwen3_forward(config, params, mx.array(ids))[:, :-1]
        logps = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        return -mx.take_along_axis(logps, mx.array(ids)[:, 1:, None], axis=-1).mean()

    loss, grads = value_and_grad(loss_fn, params)
    assert abs(loss.item() / theirs.item() - 1) < 1e-5
    named = dict(reference.named_parameters())
    for name, grad in grads.items():
        assert relative_error(grad, named[hugging_face_name(name)].grad) < 1e-4, name


def test_cache_in_pieces_equals_one_pass(pair):
    reference, config, params = pair
    ids = random_ids()
    theirs = reference(torch.tensor(ids)).logits.detach()
    cache, pieces = KVCache(config.num_hidden_layers), []
    for number, (start, end) in enumerate([(0, 5), (5, 6), (6, 9), (9, 11)]):
        pieces.append(qwen3_forward(config, params, mx.array(ids[:, start:end]), cache=cache))
        if number == 0:
            cache.reserve(9)  # the last piece does not fit any more and is concatenated
    assert relative_error(mx.concatenate(pieces, axis=1), theirs) < 1e-4
    assert cache.length == 11


def test_saved_folder_loads_in_transformers_and_mlx_lm(pair, tmp_path):
    from mlx_lm.utils import load_model

    reference, config, params = pair
    folder = save_pretrained(tmp_path / "kit", config, params)
    again = AutoModelForCausalLM.from_pretrained(folder)
    assert type(again) is type(reference)
    theirs = dict(reference.state_dict())
    assert all(torch.equal(value, theirs[name]) for name, value in again.state_dict().items())
    model, _ = load_model(folder)
    ids = random_ids()
    assert relative_error(model(mx.array(ids)), reference(torch.tensor(ids)).logits.detach()) < 1e-4


def test_greedy_tokens_equal_mlx_lm(pair, tmp_path):
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    _, config, params = pair
    model, _ = load_model(save_pretrained(tmp_path / "kit", config, params))
    prompt = random_ids()[0]
    theirs = [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=16)]
    ours, cache, inputs = [], KVCache(config.num_hidden_layers), mx.array(prompt)[None]
    for _ in range(16):
        inputs = mx.argmax(qwen3_forward(config, params, inputs, cache=cache)[:, -1:], axis=-1)
        ours.append(inputs.item())
    assert ours == theirs
