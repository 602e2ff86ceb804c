"""From a Hugging Face folder into every backend and back: the same bits, and what transformers computes from them."""

import numpy as np
import pytest
import torch
import trio
from transformers import Qwen3ForCausalLM

from mlx_grpo_kit.backends.arrays import array_of, framework_of
from mlx_grpo_kit.backends.weights import as_numpy, flat, from_kit, load_hugging_face, save_hugging_face, to_kit
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, load_pretrained, param_names, save_pretrained
from mlx_grpo_kit.qwen3.weight_files import hugging_face_name
from mlx_grpo_kit.runtime import mx
from tests.sizes import ONE_LAYER

IDS = [[1, 5, 9, 2, 60], [3, 3, 7, 0, 11]]


def logits_of(folder):
    with torch.no_grad():
        return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(torch.tensor(IDS)).logits.numpy()


def test_a_folder_goes_through_a_backend_and_comes_out_the_same(small_folder, make_any_backend, tmp_path):
    config, params = load_pretrained(small_folder)
    other = save_pretrained(tmp_path / "other", config, init_params(config, seed=7, scale=0.3))
    backend = make_any_backend(other)
    assert trio.run(load_hugging_face, backend, small_folder) == config
    out = trio.run(save_hugging_face, backend, tmp_path / "out", config)
    _, back = load_pretrained(out)
    for name, value in params.items():
        np.testing.assert_array_equal(np.array(back[name]), np.array(value), err_msg=name)
    np.testing.assert_array_equal(logits_of(out), logits_of(small_folder))
    if config.tie_word_embeddings:  # once: what compiles takes its time
        # And what the backend computes with is what it was given.
        ids = np.array(IDS)
        batch = {"input_ids": ids, "labels": ids, "loss_mask": np.ones((2, 5), np.float32)}
        batch["advantages"] = np.array([1.0, -0.5], np.float32)
        own = framework_of(next(iter(backend.get_weights().wait().values())))
        batch = {name: array_of(own, values) for name, values in batch.items()}
        logps = backend.forward_backward(batch).wait()["logps"]
        expected = torch.tensor(logits_of(small_folder)).log_softmax(-1).gather(-1, torch.tensor(ids)[..., None])
        np.testing.assert_allclose(logps, expected[..., 0].numpy(), atol=2e-5)


def test_a_folder_of_another_model_changes_nothing(small_folder, make_any_backend, tmp_path):
    config, _ = load_pretrained(small_folder)
    wide = Qwen3Config.from_dict(config.to_dict() | {"intermediate_size": 48})
    deep = Qwen3Config.from_dict(config.to_dict() | {"num_hidden_layers": 3})
    backend = make_any_backend(small_folder)
    before = {name: as_numpy(value).copy() for name, value in backend.get_weights().wait().items()}
    for number, (other, said) in enumerate(
        [(wide, r"has shape \(\d+, \d+\) in the model and \(\d+, \d+\) in the folder"), (deep, "layers.2")]
    ):
        folder = save_pretrained(tmp_path / str(number), other, init_params(other))
        with pytest.raises(ValueError, match=said):
            trio.run(load_hugging_face, backend, folder)
    for name, value in backend.get_weights().wait().items():
        np.testing.assert_array_equal(as_numpy(value), before[name])


@pytest.mark.parametrize("tied", [True, False])
def test_names_of_all_kinds_meet_in_the_kits(tied):
    config = Qwen3Config(vocab_size=8, **ONE_LAYER, tie_word_embeddings=tied)
    params = init_params(config, seed=3, scale=1.0)
    nested: dict = {}
    for name, value in params.items():
        *path, last = name.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = np.array(value)
    published = {hugging_face_name(name): torch.tensor(np.array(value)) for name, value in params.items()}
    published.setdefault("lm_head.weight", published["model.embed_tokens.weight"])  # as in transformers' state_dict
    half = {name: value.to(torch.bfloat16) for name, value in published.items()}
    for weights in (params, nested, published):
        found = to_kit(config, weights)
        assert list(found) == param_names(config)
        assert all(mx.array_equal(found[name], value) for name, value in params.items())
        back = from_kit(found, weights)
        assert flat(back).keys() == flat(weights).keys()
        for name, value in flat(weights).items():
            np.testing.assert_array_equal(as_numpy(flat(back)[name]), as_numpy(value))
            assert type(flat(back)[name]) is type(value)
    assert {value.dtype for value in to_kit(config, half).values()} == {mx.bfloat16}
    assert {value.dtype for value in from_kit(params, half).values()} == {torch.bfloat16}
    double = {name: value.double() for name, value in published.items()}
    assert {value.dtype for value in to_kit(config, double).values()} == {mx.float32}
    for name, value in to_kit(config, half).items():
        assert mx.array_equal(value, params[name].astype(mx.bfloat16))

    wrong = dict(published) | {"lm_head.weight": published["lm_head.weight"] + 1}
    if tied:
        with pytest.raises(ValueError, match=r"lm_head.weight is not the embedding"):
            to_kit(config, wrong)
    with pytest.raises(ValueError, match="occurs twice"):
        to_kit(config, published | {"embedding.weight": published["model.embed_tokens.weight"]})
    with pytest.raises(ValueError, match=r"Parameter 'final_norm.weight' has 1 of 16 numbers"):
        to_kit(config, params | {"final_norm.weight": mx.array([1.0] * 15 + [float("nan")])})
    with pytest.raises(ValueError, match=r"'final_norm.weight' has dtype list"):
        to_kit(config, params | {"final_norm.weight": [1.0] * 16})
