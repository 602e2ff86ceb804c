"""Hugging Face folders: what transformers or the kit wrote comes back bit by bit, a broken one is one clear error."""

import errno
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from transformers import Qwen3Config as HFConfig
from transformers import Qwen3ForCausalLM

from mlx_grpo_kit.files import MANIFEST
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params, load_pretrained, load_tokenizer, qwen3_forward, save_pretrained
from mlx_grpo_kit.qwen3.tokenizer import save_character_tokenizer
from mlx_grpo_kit.qwen3.weight_files import hugging_face_name
from mlx_grpo_kit.runtime import mx

SIZES = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8)  # fmt: skip
CONFIG = Qwen3Config(**SIZES)
TIED = Qwen3Config(**SIZES, tie_word_embeddings=True)
TORCH_DTYPES = {mx.float32: torch.float32, mx.float16: torch.float16, mx.bfloat16: torch.bfloat16}


def make_reference(tied: bool, dtype=torch.float32) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(HFConfig(**SIZES, tie_word_embeddings=tied, rope_theta=10_000.0)).to(dtype)


def bits(value) -> np.ndarray:
    """The bytes of an array, whoever made it: NaN compares, and bfloat16 needs no NumPy type."""
    if isinstance(value, torch.Tensor):
        value = value.detach().view(torch.uint8).numpy()
    elif isinstance(value, mx.array):
        value = np.array(value.view(mx.uint8))
    return np.asarray(value)


def assert_same_bits(params: dict[str, mx.array], theirs: dict[str, torch.Tensor]):
    for name, value in params.items():
        np.testing.assert_array_equal(bits(value), bits(theirs[hugging_face_name(name)]), err_msg=name)


@pytest.fixture
def params():
    return init_params(CONFIG, scale=0.5)


# What transformers wrote.


@pytest.mark.parametrize("max_shard_size", ["1GB", "4KB"])
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_folders_of_transformers(tmp_path, tied, dtype, max_shard_size):
    reference = make_reference(tied, TORCH_DTYPES[dtype])
    reference.save_pretrained(tmp_path / "hf", max_shard_size=max_shard_size)
    assert (len(list((tmp_path / "hf").glob("*.safetensors"))) > 3) == (max_shard_size == "4KB")
    config, params = load_pretrained(tmp_path / "hf", dtype=None)
    assert config == Qwen3Config(**SIZES, tie_word_embeddings=tied, rope_theta=10_000.0)
    assert all(value.dtype == dtype for value in params.values())
    assert_same_bits(params, reference.state_dict())


def test_float32_is_the_default_and_exact(tmp_path):
    reference = make_reference(True, torch.bfloat16)
    reference.save_pretrained(tmp_path / "hf")
    _, params = load_pretrained(tmp_path / "hf")
    assert all(value.dtype == mx.float32 for value in params.values())
    assert_same_bits(params, {name: value.float() for name, value in reference.state_dict().items()})


def test_half_precision_computes(tmp_path):
    """The mask of attention once was too large a number for float16."""
    reference = make_reference(False)
    reference.save_pretrained(tmp_path / "hf")
    ids, mask = np.array([[5, 9, 11, 3], [7, 7, 2, 1]]), np.array([[0, 0, 1, 1], [1, 1, 1, 1]])
    theirs = reference(torch.tensor(ids), attention_mask=torch.tensor(mask)).logits.detach().numpy()
    for dtype, tolerance in ((mx.float16, 0.01), (mx.bfloat16, 0.05)):
        config, params = load_pretrained(tmp_path / "hf", dtype=dtype)
        logits = qwen3_forward(config, params, mx.array(ids), attention_mask=mx.array(mask))
        assert logits.dtype == dtype
        ours = np.array(logits.astype(mx.float32))
        np.testing.assert_allclose(ours[mask == 1], theirs[mask == 1], atol=tolerance * abs(theirs).max())


def test_a_tied_model_with_a_copy_of_its_output_layer(tmp_path):
    """Some writers store the tied output layer a second time."""
    reference = make_reference(True)
    reference.save_pretrained(tmp_path)
    state = {name: value.clone() for name, value in reference.state_dict().items()}
    assert "lm_head.weight" in state
    safetensors.torch.save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    _, params = load_pretrained(tmp_path)
    assert "lm_head.weight" not in params
    assert_same_bits(params, reference.state_dict())


def test_a_tied_model_with_another_output_layer(tmp_path):
    """transformers would use the layer of the file."""
    reference = make_reference(False)
    reference.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": True}))
    with pytest.raises(ValueError, match=r"tie_word_embeddings is true, but lm_head.weight is not the embedding"):
        load_pretrained(tmp_path)


# What the kit writes.


@pytest.mark.parametrize("max_shard_size", [2**30, 4096])
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("config", [TIED, CONFIG], ids=["tied", "untied"])
def test_round_trip_is_exact_here_and_in_transformers(tmp_path, config, dtype, max_shard_size):
    params = {name: value.astype(dtype) for name, value in init_params(config, scale=0.5).items()}
    params["final_norm.weight"] = mx.array([1e-30, -0.0, 3.0, 1e-3] * 4, dtype)
    assert save_pretrained(str(tmp_path / "kit"), config, params, max_shard_size=max_shard_size) == tmp_path / "kit"
    shards = sorted((tmp_path / "kit").glob("*.safetensors"))
    assert (len(shards) > 3) == (max_shard_size == 4096)

    again_config, again = load_pretrained(tmp_path / "kit", dtype=None)
    assert again_config == config
    assert list(again) == list(params)
    for name, value in params.items():
        assert again[name].dtype == dtype
        np.testing.assert_array_equal(bits(again[name]), bits(value), err_msg=name)

    theirs = Qwen3ForCausalLM.from_pretrained(tmp_path / "kit", dtype="auto")
    assert theirs.dtype == TORCH_DTYPES[dtype]
    assert_same_bits(params, theirs.state_dict())


def test_shards_are_as_large_as_allowed_and_listed(tmp_path, params):
    save_pretrained(tmp_path / "kit", CONFIG, params, max_shard_size=5000)
    index = json.loads((tmp_path / "kit" / "model.safetensors.index.json").read_text())
    stored = {path.name: safetensors.numpy.load_file(path) for path in (tmp_path / "kit").glob("*.safetensors")}
    assert index["weight_map"] == {name: file for file, weights in stored.items() for name in weights}
    sizes = [sum(value.nbytes for value in weights.values()) for weights in stored.values()]
    assert sum(sizes) == index["metadata"]["total_size"]
    assert max(sizes) <= 5000
    for (_, file), (name, next_file) in pairwise(index["weight_map"].items()):
        if file != next_file:  # this shard had no room for the next tensor
            size = sum(value.nbytes for value in stored[file].values())
            assert size + stored[next_file][name].nbytes > 5000
    number = len(sizes)
    assert sorted(stored) == [f"model-{i:05d}-of-{number:05d}.safetensors" for i in range(1, number + 1)]


def test_a_tensor_larger_than_a_shard_gets_one_of_its_own(tmp_path, params):
    save_pretrained(tmp_path / "kit", CONFIG, params, max_shard_size=1)
    assert len(list((tmp_path / "kit").glob("*.safetensors"))) == len(params)
    assert_same_bits(
        load_pretrained(tmp_path / "kit")[1], Qwen3ForCausalLM.from_pretrained(tmp_path / "kit").state_dict()
    )


def test_a_folder_with_a_tokenizer_is_whole(tmp_path, params):
    from transformers import AutoTokenizer, GenerationConfig

    save_character_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    save_pretrained(tmp_path / "kit", CONFIG, params, tokenizer=tokenizer)
    assert load_tokenizer(tmp_path / "kit").encode("12+34=") == tokenizer.encode("12+34=")
    assert AutoTokenizer.from_pretrained(tmp_path / "kit")("12+34=")["input_ids"] == tokenizer.encode("12+34=")
    model = Qwen3ForCausalLM.from_pretrained(tmp_path / "kit")
    assert model.config.eos_token_id in (1, [1])
    assert GenerationConfig.from_model_config(model.config).eos_token_id in (1, [1])
    assert model.config.pad_token_id == 0


def test_a_model_loaded_in_one_thread_computes_in_another(tmp_path, params):
    """MLX reads a file when a number is first needed, and cannot do that in a thread that did not ask for it."""
    save_pretrained(tmp_path / "kit", CONFIG, params)
    for dtype in (mx.float32, mx.bfloat16, None):
        with ThreadPoolExecutor(1) as pool:
            config, again = pool.submit(load_pretrained, tmp_path / "kit", dtype).result()
        assert np.isfinite(np.array(qwen3_forward(config, again, mx.array([[1, 2]])).astype(mx.float32))).all()


def test_saving_over_the_folder_that_was_loaded(tmp_path, params):
    save_pretrained(tmp_path / "kit", CONFIG, params, max_shard_size=4096)
    config, again = load_pretrained(tmp_path / "kit", dtype=None)
    save_pretrained(tmp_path / "kit", config, again)
    names = ["config.json", "mlx_grpo_kit.json", "model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "kit").iterdir()) == names
    _, third = load_pretrained(tmp_path / "kit", dtype=None)
    for name, value in params.items():
        np.testing.assert_array_equal(bits(third[name]), bits(value), err_msg=name)


# Nothing half-written.


def test_parameters_that_do_not_fit_are_not_written(tmp_path, params):
    del params["final_norm.weight"]
    with pytest.raises(ValueError, match=r"Missing parameter 'final_norm.weight'"):
        save_pretrained(tmp_path / "kit", CONFIG, params)
    assert not list(tmp_path.iterdir())


def test_an_exception_while_saving_leaves_the_old_folder(tmp_path, params, monkeypatch):
    save_pretrained(tmp_path / "kit", CONFIG, params)
    before = {path.name: path.read_bytes() for path in (tmp_path / "kit").iterdir()}

    def full(file, *args, **kwargs):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mx, "save_safetensors", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/kit'$"):
        save_pretrained(tmp_path / "kit", CONFIG, init_params(CONFIG, seed=7))
    assert {path.name: path.read_bytes() for path in (tmp_path / "kit").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["kit"]


def test_a_kill_while_saving_leaves_the_old_folder(tmp_path, params):
    save_pretrained(tmp_path / "kit", CONFIG, params)
    script = (
        "import os, sys; from mlx_grpo_kit.qwen3 import *; os.fsync = lambda _: os.kill(os.getpid(), 9);"
        "config, _ = load_pretrained(sys.argv[1]); save_pretrained(sys.argv[1], config, init_params(config, seed=7))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "kit")], check=False, cwd=root)
    assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == 2, "the process had begun to write"
    _, again = load_pretrained(tmp_path / "kit")
    for name, value in params.items():
        np.testing.assert_array_equal(bits(again[name]), bits(value), err_msg=name)


def test_a_kill_at_the_last_moment_leaves_the_new_folder(tmp_path, params):
    """Between the two renames there is nothing under the name: the readers find the new folder all the same."""
    save_character_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    workplace = tmp_path / ".kit.12345678.tmp"
    workplace.mkdir()
    (workplace / MANIFEST).touch()
    save_pretrained(workplace / "new", CONFIG, params, tokenizer=tokenizer)
    save_pretrained(workplace / "old", CONFIG, init_params(CONFIG, seed=7), tokenizer=tokenizer)
    _, again = load_pretrained(tmp_path / "kit")
    np.testing.assert_array_equal(bits(again["final_norm.weight"]), bits(params["final_norm.weight"]))
    assert load_tokenizer(tmp_path / "kit").encode("1") == tokenizer.encode("1")


def test_a_file_or_a_folder_with_other_things_is_not_replaced(tmp_path, params):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(FileExistsError, match="notes is a file"):
        save_pretrained(tmp_path / "notes", CONFIG, params)
    with pytest.raises(FileExistsError, match=r"contains notes, which the kit did not write"):
        save_pretrained(tmp_path, CONFIG, params)
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_model_of_somebody_else_s_is_not_replaced(tmp_path, params):
    make_reference(True).save_pretrained(tmp_path)
    with pytest.raises(FileExistsError, match=r"contains config.json, .*safetensors, which the kit did not write"):
        save_pretrained(tmp_path, CONFIG, params)
    load_pretrained(tmp_path)


# A folder of the kit's own: what is read is what was saved.


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_changed_file_is_refused_by_name(tmp_path, params, name):
    save_pretrained(tmp_path, CONFIG, params)
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is not what was saved.*remove mlx_grpo_kit.json beside it if the"):
        load_pretrained(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has lost {name}, which was saved there"):
        load_pretrained(tmp_path)


def test_an_index_from_elsewhere_is_refused(tmp_path, params):
    """It would name other weights than the ones that were saved."""
    save_pretrained(tmp_path / "kit", CONFIG, params)
    save_pretrained(tmp_path / "other", CONFIG, init_params(CONFIG, seed=7), max_shard_size=4096)
    for file in (tmp_path / "other").glob("model*"):
        (tmp_path / "kit" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"model.safetensors.index.json came after the rest was saved"):
        load_pretrained(tmp_path / "kit")


def test_changes_on_purpose_are_possible(tmp_path, params):
    save_pretrained(tmp_path, CONFIG, params)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"rope_theta": 5.0, "rope_parameters": None}))
    (tmp_path / MANIFEST).unlink()
    assert load_pretrained(tmp_path)[0].rope_theta == 5.0


# Broken and foreign folders.


@pytest.fixture
def folder(tmp_path, params):
    """As downloaded: without a list of what was saved there."""
    folder = save_pretrained(tmp_path / "kit", CONFIG, params)
    (folder / MANIFEST).unlink()
    return folder


@pytest.fixture
def sharded(tmp_path, params):
    folder = save_pretrained(tmp_path / "sharded", CONFIG, params, max_shard_size=4096)
    (folder / MANIFEST).unlink()
    return folder


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere. Pass a Hugging Face model folder, or `tiny`"):
        load_pretrained(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"kit has no {name}"):
        load_pretrained(folder)


def test_weights_in_an_older_format(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model.bin, an older format: save it again as safetensors"):
        load_pretrained(folder)


def test_a_missing_shard(sharded):
    gone = sorted(sharded.glob("*.safetensors"))[2]
    gone.unlink()
    with pytest.raises(FileNotFoundError, match=f"sharded has no {gone.name}"):
        load_pretrained(sharded)


def test_an_index_that_lists_too_little(sharded):
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    index["weight_map"] = dict(list(index["weight_map"].items())[:1])
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"weights in .*sharded do not fit its config.json. Missing parameter"):
        load_pretrained(sharded)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": ["a"]}'])
def test_an_index_without_a_map(sharded, content):
    (sharded / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=r"model.safetensors.index.json has no 'weight_map'"):
        load_pretrained(sharded)


@pytest.mark.parametrize("name", ["../kit/model.safetensors", "/etc/passwd", "inner/model.safetensors", "..", "", 7])
def test_an_index_that_points_outside_its_folder(sharded, folder, name):
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], name)
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"index.json names .*; expected the name of a file in .*sharded"):
        load_pretrained(sharded)


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, -1])
@pytest.mark.parametrize("sharding", ["folder", "sharded"])
def test_a_file_that_is_cut_off(request, sharding, kept):
    folder = request.getfixturevalue(sharding)
    file = sorted(folder.glob("*.safetensors"))[-1]
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(ValueError, match=rf"{file.name} .*cut off.*copy it again"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32\n",
        b"\x00" * 1000, b"\xff" * 1000, b"\x02" + b"\x00" * 7 + b"[]", b"\x04" + b"\x00" * 7 + b"{..}",
    ],
    ids=["git lfs pointer", "zeros", "ones", "a list", "no json"],
)  # fmt: skip
def test_a_file_that_is_something_else(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model.safetensors cannot be read .*copy it again"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b'{"vocab', "is not valid JSON"), (b"\xff\xfe", "is not valid JSON"), (b"[]", "contains list")],
)
def test_a_broken_config(folder, content, message):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"config.json {message}"):
        load_pretrained(folder)


def test_a_config_of_another_size(folder):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"intermediate_size": 32}))
    with pytest.raises(ValueError, match=r"not fit its config.json. Parameter 'layers.0.mlp.gate_proj.weight' has"):
        load_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"do not fit its config.json. Missing parameter 'layers.2.*' \(and 10 more\)"):
        load_pretrained(folder)


def test_another_model(tmp_path):
    from transformers import MistralConfig, MistralForCausalLM

    mistral = MistralForCausalLM(MistralConfig(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                                               num_attention_heads=2, num_key_value_heads=2))  # fmt: skip
    mistral.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"describes a 'mistral' model; .* 'qwen3', 'qwen2' or 'llama'"):
        load_pretrained(tmp_path)


def rewritten(folder, name, change):
    """The folder with another array in the place of one of its weights."""
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    weights[name] = change(weights[name])
    safetensors.numpy.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "mlx_grpo_kit.json").unlink(missing_ok=True)
    return folder


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_weights_that_are_no_floating_point_numbers(folder, dtype):
    name = "model.layers.1.mlp.up_proj.weight"
    rewritten(folder, name, lambda value: (value * 100).astype(dtype))
    with pytest.raises(ValueError, match=rf"'layers.1.mlp.up_proj.weight' has dtype mlx.core.{dtype}; expected float"):
        load_pretrained(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite(folder, value):
    def spoil(weights):
        weights[3, [1, 2]] = value
        return weights

    rewritten(folder, "model.layers.0.self_attn.q_proj.weight", spoil)
    message = r"kit cannot be used. Parameter 'layers.0.self_attn.q_proj.weight' has 2 of 512 numbers that are NaN"
    for dtype in (mx.float32, mx.bfloat16, None):
        with pytest.raises(ValueError, match=message):
            load_pretrained(folder, dtype=dtype)


def test_weights_that_float16_cannot_hold(folder):
    rewritten(folder, "model.norm.weight", lambda value: value * 0 + 1e6)
    load_pretrained(folder)
    with pytest.raises(ValueError, match=r"'final_norm.weight' has 16 of 16 numbers .* as float16"):
        load_pretrained(folder, dtype=mx.float16)


def test_loading_does_not_touch_the_folder(folder):
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    load_pretrained(folder)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert os.listdir(folder.parent) == ["kit"]
