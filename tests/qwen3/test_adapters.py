"""Adapters against PEFT's and mlx-lm's: their gradients, their files, and what they make of a model."""

import json
import shutil
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from mlx_grpo_kit.autograd import value_and_grad
from mlx_grpo_kit.qwen3 import (
    Adapters,
    Qwen3Config,
    adapt,
    init_lora,
    init_params,
    load_adapters,
    load_pretrained,
    load_tokenizer,
    merge,
    qwen3_forward,
    save_adapters,
    save_pretrained,
)
from mlx_grpo_kit.qwen3.adapters import MLX_LM, SETTINGS
from mlx_grpo_kit.qwen3.config import FAMILIES
from mlx_grpo_kit.qwen3.lora import TARGETS, fingerprint
from mlx_grpo_kit.qwen3.tokenizer import save_character_tokenizer
from mlx_grpo_kit.runtime import mx

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8)  # fmt: skip
RANK, SCALE, UP = 4, 2.5, "layers.0.mlp.up_proj"
IDS = np.random.default_rng(1).integers(0, 64, (3, 11))


def trained(config, params, targets=TARGETS):
    """Adapters as after some training: B is not zero any more."""
    lora = init_lora(config, params, RANK, targets, seed=3)
    keys = mx.random.split(mx.random.key(5), len(lora))
    return {
        name: mx.random.normal(value.shape, scale=0.2, key=key) if name.endswith("lora_b") else value
        for key, (name, value) in zip(keys, lora.items(), strict=True)
    }


@pytest.fixture(scope="module", params=FAMILIES)
def base(request, make_qwen3, tmp_path_factory):
    """(transformers' model, config, params, folder, adapters beside it)."""
    model, config, params = make_qwen3(0.1, request.param, **SIZES, rope_theta=10_000.0)
    folder = tmp_path_factory.mktemp("base") / "model"
    tokenizer = tmp_path_factory.mktemp("tokenizer")
    save_character_tokenizer(tokenizer)
    save_pretrained(folder, config, params, tokenizer=load_tokenizer(tokenizer))
    return model, config, params, folder, trained(config, params)


@pytest.fixture(scope="module")
def saved(base, tmp_path_factory):
    _, config, params, folder, lora = base
    adapters = Adapters(lora, SCALE, str(folder), fingerprint(params))
    return save_adapters(tmp_path_factory.mktemp("adapters") / "a", config, adapters, tokenizer=load_tokenizer(folder))


@pytest.fixture
def copy(saved, tmp_path):
    """A folder of adapters to spoil, without the list of what the kit saved, as somebody else's is."""
    folder = shutil.copytree(saved, tmp_path / "copy")
    (folder / "mlx_grpo_kit.json").unlink()
    return folder


def loss_of(logits, ids):
    logps = logits[:, :-1] - mx.logsumexp(logits[:, :-1], axis=-1, keepdims=True)
    return -mx.take_along_axis(logps, mx.array(ids)[:, 1:, None], axis=-1).mean()


# What adapters compute.


def test_they_begin_as_the_model_itself(base):
    _, config, params, _, _ = base
    lora = init_lora(config, params, RANK)
    expected = qwen3_forward(config, params, mx.array(IDS))
    assert mx.array_equal(qwen3_forward(config, adapt(params, lora, SCALE), mx.array(IDS)), expected)
    assert all(mx.array_equal(value, params[name]) for name, value in merge(params, lora, SCALE).items())
    again, other = init_lora(config, params, RANK), init_lora(config, params, RANK, seed=1)
    name = "layers.1.mlp.down_proj.lora_a"
    assert mx.array_equal(lora[name], again[name])
    assert not mx.array_equal(lora[name], other[name])
    bound = config.intermediate_size**-0.5
    assert 0.9 * bound < mx.abs(lora[name]).max().item() <= bound


def test_a_sum_beside_bfloat16_is_taken_in_float32_and_rounded_once(base):
    _, _, params, _, lora = base
    half = {name: value.astype(mx.bfloat16) for name, value in params.items()}
    exact = merge({name: value.astype(mx.float32) for name, value in half.items()}, lora, SCALE)
    for name, value in merge(half, lora, SCALE).items():
        assert value.dtype == mx.bfloat16
        assert mx.array_equal(value, exact[name].astype(mx.bfloat16))


def test_the_outside_trials_numbers(tmp_path):
    """Rank 8 beside every linear map of a layer of the model that ships: 32,768 numbers beside 303,872."""
    config = Qwen3Config(64, 128, 256, 2, 4, 2, 32, tie_word_embeddings=True)
    lora = init_lora(config, init_params(config))
    assert sum(value.size for value in lora.values()) == 32_768
    assert all(value.dtype == mx.float32 for value in lora.values())


@pytest.mark.parametrize("targets", [TARGETS, ("q_proj", "v_proj")])
def test_logits_loss_and_gradients_are_pefts(base, tmp_path, targets):
    """PEFT computes x W^T + scale (x A) B in torch, and torch differentiates it."""
    model, config, params, _, _ = base
    lora = trained(config, params, targets)
    save_adapters(tmp_path / "a", config, Adapters(lora, SCALE))
    theirs = PeftModel.from_pretrained(deepcopy(model), tmp_path / "a" / "peft", is_trainable=True)
    output = theirs(torch.tensor(IDS), labels=torch.tensor(IDS))
    output.loss.backward()
    logits = qwen3_forward(config, adapt(params, lora, SCALE), mx.array(IDS))
    np.testing.assert_allclose(logits, output.logits.detach().numpy(), atol=2e-5)
    np.testing.assert_allclose(qwen3_forward(config, merge(params, lora, SCALE), mx.array(IDS)), logits, atol=2e-5)

    def loss_fn(lora):
        return loss_of(qwen3_forward(config, adapt(params, lora, SCALE), mx.array(IDS)), IDS)

    loss, grads = value_and_grad(loss_fn, lora)
    assert loss.item() == pytest.approx(output.loss.item(), rel=1e-5)
    named = {name: value for name, value in theirs.named_parameters() if value.requires_grad}
    assert len(named) == len(grads) == 2 * 2 * len(targets)
    for name, grad in grads.items():
        stem, _, kind = name.rpartition(".")
        of_torch = named[f"base_model.model.model.{stem}.lora_{kind[-1].upper()}.default.weight"].grad.numpy().T
        assert np.abs(of_torch).max() > 1e-4
        np.testing.assert_allclose(grad, of_torch, atol=2e-6 * max(1, np.abs(of_torch).max()), err_msg=name)


def test_their_gradient_is_the_full_one_projected(base):
    """dL/dA = scale (dL/dW)^T B^T and dL/dB = scale A^T (dL/dW)^T, of W as it is after merging."""
    _, config, params, _, lora = base
    _, grads = value_and_grad(
        lambda lora: loss_of(qwen3_forward(config, adapt(params, lora, SCALE), mx.array(IDS)), IDS), lora
    )
    _, full = value_and_grad(
        lambda p: loss_of(qwen3_forward(config, p, mx.array(IDS)), IDS), merge(params, lora, SCALE)
    )
    for name in lora:
        stem, _, kind = name.rpartition(".")
        of_weight = np.array(full[f"{stem}.weight"], np.float64).T * SCALE
        a, b = (np.array(lora[f"{stem}.{each}"], np.float64) for each in ("lora_a", "lora_b"))
        projected = of_weight @ b.T if kind == "lora_a" else a.T @ of_weight
        np.testing.assert_allclose(grads[name], projected, atol=5e-6 * max(1, np.abs(projected).max()), err_msg=name)


# Files.


def test_they_come_back_bit_by_bit_in_both_layouts(base, saved):
    _, config, params, folder, lora = base
    for place in (saved, saved / "peft"):
        found = load_adapters(place, config)
        assert (found.scale, found.base) == (SCALE, str(folder))
        assert found.lora.keys() == lora.keys()
        assert all(mx.array_equal(found.lora[name], value) for name, value in lora.items())
    assert load_adapters(saved, config).base_fingerprint == fingerprint(params)
    assert load_tokenizer(saved).encode("1+1=") == load_tokenizer(folder).encode("1+1=")


def test_mlx_lm_reads_what_is_written(base, saved):
    from mlx_lm.utils import load

    _, config, params, folder, lora = base
    model, _ = load(str(folder), adapter_path=str(saved))
    ours = qwen3_forward(config, merge(params, lora, SCALE), mx.array(IDS))
    np.testing.assert_allclose(model(mx.array(IDS)), ours, atol=2e-5)
    assert np.abs(np.array(qwen3_forward(config, params, mx.array(IDS)) - ours)).max() > 0.1


def test_what_mlx_lm_writes_is_read(base, tmp_path):
    """Its own defaults: the last layers only, and another scale."""
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import load

    _, config, params, folder, _ = base
    model, _ = load(str(folder))
    settings = {"rank": 3, "scale": 20.0, "dropout": 0.0}
    model.freeze()
    linear_to_lora_layers(model, 1, settings)
    key = mx.random.key(0)
    weights = {
        name: mx.random.normal(value.shape, scale=0.05, key=key)
        for name, value in tree_flatten(model.trainable_parameters())
    }
    model.load_weights(list(weights.items()), strict=False)
    (tmp_path / "a").mkdir()
    mx.save_safetensors(str(tmp_path / "a" / MLX_LM), weights)
    written = {"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": settings}
    (tmp_path / "a" / SETTINGS).write_text(json.dumps(written))
    found = load_adapters(tmp_path / "a", config)
    assert (found.scale, found.base, found.base_fingerprint, len(found.lora)) == (20.0, None, None, 14)
    ours = qwen3_forward(config, merge(params, found.lora, found.scale), mx.array(IDS))
    np.testing.assert_allclose(ours, model(mx.array(IDS)), atol=5e-5)


@pytest.mark.parametrize("use_rslora", [False, True])
def test_what_peft_writes_is_read(base, tmp_path, use_rslora):
    model, config, params, _, _ = base
    torch.manual_seed(0)
    settings = LoraConfig(r=4, lora_alpha=10, target_modules="all-linear", use_rslora=use_rslora)
    theirs = get_peft_model(deepcopy(model), settings)
    with torch.no_grad():
        for name, value in theirs.named_parameters():
            if "lora_B" in name:
                value.normal_(0, 0.2)
    theirs.save_pretrained(tmp_path / "a")
    found = load_adapters(tmp_path / "a", config)
    assert found.scale == (5.0 if use_rslora else 2.5)
    ours = qwen3_forward(config, merge(params, found.lora, found.scale), mx.array(IDS))
    np.testing.assert_allclose(ours, theirs(torch.tensor(IDS)).logits.detach().numpy(), atol=2e-5)


def test_a_folder_of_adapters_is_a_model(base, saved):
    _, config, params, _, lora = base
    loaded, merged = load_pretrained(saved)
    assert loaded == config
    assert all(mx.array_equal(merged[name], value) for name, value in merge(params, lora, SCALE).items())


# What is refused.


def test_adapters_of_another_model(base, saved, tmp_path):
    _, config, params, folder, lora = base
    with pytest.raises(ValueError, match=r"mlp\.down_proj\.lora_a' has shape \(40, 4\) for a linear map from 44"):
        load_adapters(saved, replace(config, intermediate_size=44))
    with pytest.raises(ValueError, match=r"'layers\.1\..*' is not an adapter of a linear map of this model"):
        load_adapters(saved, replace(config, num_hidden_layers=1))
    other = {**params, "final_norm.weight": params["final_norm.weight"] * 1.1}
    with pytest.raises(ValueError, match=r"trained with another base model .*its parameters differ"):
        load_adapters(saved, config).check_base(other)
    nowhere = save_adapters(tmp_path / "n", config, Adapters(lora, SCALE, str(tmp_path / "gone")))
    with pytest.raises(FileNotFoundError, match=r"there is no such folder\. .* fuse --adapter .* --model"):
        load_pretrained(nowhere)
    moved = save_adapters(tmp_path / "m", config, Adapters(lora, SCALE, str(folder), fingerprint(other)))
    with pytest.raises(ValueError, match="trained with another base model"):
        load_pretrained(moved)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fine_tune_type": "dora"}, "fine_tune_type 'dora'; expected 'lora'"),
        ({"lora_parameters": {"rank": 4}}, "has None for scale; expected a number above 0"),
        ({"lora_parameters": {"scale": "20"}}, "has '20' for scale"),
        ({"lora_parameters": {"scale": 0.0}}, "has 0.0 for scale"),
        ({"lora_parameters": {"scale": 10**400}}, "for scale; expected a number above 0"),
        ({"lora_parameters": {"scale": 1e39}}, "for scale; expected a number above 0"),
        ({"lora_parameters": {"scale": 1e-320}}, "for scale; expected a number above 0"),
        ({"fine_tune_type": "x" * 5000}, "has fine_tune_type 'x{59}; expected 'lora'"),
        ({"lora_parameters": {"scale": 2.5, "rank": "x" * 5000}}, "says 'x{59}: the two were not saved together"),
        ({"lora_parameters": {"scale": 2.5, "rank": 8}}, r"have rank 4, but adapter_config\.json says 8"),
    ],
)
def test_settings_of_mlx_lms_that_are_not_plain_lora(base, copy, change, words):
    settings = json.loads((copy / SETTINGS).read_text())
    (copy / SETTINGS).write_text(json.dumps(settings | change))
    with pytest.raises(ValueError, match=words):
        load_adapters(copy, base[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'; expected 'LORA'"),
        ({"use_dora": True}, "has use_dora True; expected LoRA without it"),
        ({"rank_pattern": {"q_proj": 2}}, "has rank_pattern"),
        ({"modules_to_save": ["lm_head"]}, "has modules_to_save"),
        ({"r": 0}, "has 0 for r; expected a number above 0"),
        ({"r": 2}, r"have rank 4, but adapter_config\.json says 2"),  # which would double what they add
        ({"lora_alpha": 10**400}, "for lora_alpha; expected a number above 0"),
        ({"bias": "all"}, "has bias 'all'"),
        ({"bias": "x" * 5000}, "has bias 'x{59}; expected"),
        ({"use_rslora": "false"}, "has 'false' for use_rslora; expected true or false"),
        ({"use_rslora": 1}, "has 1 for use_rslora; expected true or false"),
        ({"alora_invocation_tokens": [5]}, r"has alora_invocation_tokens \[5\]"),
        ({"init_lora_weights": "pissa_niter_16"}, "has init_lora_weights 'pissa_niter_16'"),
    ],
)
def test_settings_of_pefts_that_are_not_plain_lora(base, copy, change, words):
    folder = copy / "peft"
    (folder / "mlx_grpo_kit.json").unlink()
    settings = json.loads((folder / SETTINGS).read_text())
    (folder / SETTINGS).write_text(json.dumps(settings | change))
    with pytest.raises(ValueError, match=words):
        load_adapters(folder, base[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lora: lora.pop("layers.0.mlp.up_proj.lora_b"), "'layers.0.mlp.up_proj.lora_a' has no counterpart"),
        (lambda lora: lora.update({"embedding.lora_a": mx.zeros((32, 4))}), "'embedding.lora_a' is not an adapter"),
        (lambda lora: lora.update({"layers.0.mlp.up_proj.lora_a": mx.zeros((32, 5))}), "with the same rank in both"),
        (lambda lora: lora.update({"layers.0.mlp.up_proj.lora_b": mx.zeros((4, 39))}), r"39\) .*expected \(rank, 40\)"),
        (lambda lora: lora.update({"layers.0.mlp.up_proj.m": mx.zeros(40)}), r"up_proj\.m' is not an adapter"),
        (lambda lora: lora.update({"layers.0.mlp.up_proj.lora_b": mx.full((4, 40), np.nan)}), "160 of 160 numbers"),
        (lambda lora: lora.clear(), "There are no adapters"),
        (lambda lora: lora.update({"layers.0.mlp.up_proj.lora_a": mx.zeros((32, 4), mx.int32)}), "dtype .*int32"),
        (
            lambda lora: lora.update(
                {name: value[:, :0] if name[-1] == "a" else value[:0] for name, value in lora.items()}
            ),
            r"shape \(40, 0\)",
        ),
        (
            lambda lora: lora.update({f"{UP}.lora_a": mx.zeros((32, 2)), f"{UP}.lora_b": mx.zeros((2, 40))}),
            r"have the ranks \[2, 4\]; expected the same for all",
        ),
    ],
)
def test_arrays_that_do_not_fit(base, copy, change, words):
    from mlx_grpo_kit.qwen3.weight_files import hugging_face_name

    lora = dict(base[4])
    change(lora)
    mx.save_safetensors(str(copy / MLX_LM), {hugging_face_name(name): value for name, value in lora.items()})
    with pytest.raises(ValueError, match=words):
        load_adapters(copy, base[1])


def test_an_adapter_under_two_names(base, copy):
    lora = dict(mx.load(str(copy / MLX_LM)))
    name = next(iter(lora))
    mx.save_safetensors(str(copy / MLX_LM), lora | {name.removeprefix("model."): lora[name] * 7})
    with pytest.raises(ValueError, match="occurs twice, under two names"):
        load_adapters(copy, base[1])


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_a_base_is_the_same_in_any_dtype(base, dtype, tmp_path):
    _, config, params, folder, lora = base
    # Numbers at which float16 rounds to a tie, which bfloat16 then breaks the other way than it rounds the original.
    ties = {name: mx.full(value.shape, 1 + 2**-8 + 2**-12) for name, value in params.items()}
    for original in (params, ties):
        copy = {name: value.astype(dtype) for name, value in original.items()}
        read = {name: value.astype(mx.float32) for name, value in copy.items()}
        for trained, given in ((original, copy), (copy, original), (copy, read), (read, copy)):
            adapters = save_adapters(tmp_path / "a", config, Adapters(lora, SCALE, str(folder), fingerprint(trained)))
            load_adapters(adapters, config).check_base(given)
        other = copy | {"final_norm.weight": copy["final_norm.weight"] * 1.01}
        with pytest.raises(ValueError, match="trained with another base model"):
            load_adapters(adapters, config).check_base(other)


def test_a_folder_of_before_there_were_two_hashes(base):
    _, _, params, _, lora = base
    Adapters(lora, SCALE, None, fingerprint(params).split()[0]).check_base(params)
    with pytest.raises(ValueError, match="trained with another base model"):
        Adapters(lora, SCALE, None, "").check_base(params)


def test_a_base_that_leads_back(saved, tmp_path):
    """Beside themselves, and beside adapters that stand beside the first."""
    first, second = (shutil.copytree(saved, tmp_path / name) for name in "ab")
    for folder, other in ((first, first), (first, second), (second, first)):
        (folder / "mlx_grpo_kit.json").unlink(missing_ok=True)
        settings = json.loads((folder / SETTINGS).read_text())
        (folder / SETTINGS).write_text(json.dumps(settings | {"base_model_name_or_path": str(other)}))
        if folder is other or folder is second:
            with pytest.raises(ValueError, match="which leads back to"):
                load_pretrained(first)
    (first / SETTINGS).write_text(json.dumps(settings | {"base_model_name_or_path": "x" * 10_000}))
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        load_pretrained(first)


def test_a_folder_that_mlx_lm_left_behind(base, copy):
    """It has no tokenizer, and says under "model" what it stands beside."""
    _, _, params, folder, lora = base
    for each in copy.glob("*token*.json"):
        each.unlink()
    settings = json.loads((copy / SETTINGS).read_text())
    settings = {name: value for name, value in settings.items() if not name.startswith("base_")}
    (copy / SETTINGS).write_text(json.dumps(settings | {"model": str(folder)}))
    _, merged = load_pretrained(copy)
    assert all(mx.array_equal(merged[name], value) for name, value in merge(params, lora, SCALE).items())
    assert load_tokenizer(copy).encode("12+34=") == load_tokenizer(folder).encode("12+34=")


def test_files_that_are_gone_or_were_changed(base, saved, copy, tmp_path):
    (copy / MLX_LM).unlink()
    with pytest.raises(FileNotFoundError, match=r"neither adapters\.safetensors"):
        load_adapters(copy, base[1])
    changed = shutil.copytree(saved, tmp_path / "changed")
    (changed / SETTINGS).write_text((changed / SETTINGS).read_text().replace("2.5", "9.5"))
    with pytest.raises(ValueError, match=r"adapter_config\.json is not what was saved"):
        load_adapters(changed, base[1])


def test_ranks_and_targets(base):
    _, config, params, _, _ = base
    for rank in (0, 2.0, True, None):
        with pytest.raises(ValueError, match=f"rank of adapters is {rank}"):
            init_lora(config, params, rank)
    with pytest.raises(ValueError, match=r"no linear map 'q_prj' in a layer.* Did you mean 'q_proj'"):
        init_lora(config, params, 2, ["q_prj"])
    for seed in (-1, 2**70, None):
        with pytest.raises(ValueError, match="seed of adapters is"):
            init_lora(config, params, 2, seed=seed)
    for targets in ([], "q_proj"):
        with pytest.raises(ValueError, match="targets of adapters are"):
            init_lora(config, params, 2, targets)


def test_a_rank_beyond_the_maps_own(base):
    _, config, params, _, _ = base
    assert len(init_lora(config, params, 32)) == 28  # of q_proj, from 32 numbers to 32
    with pytest.raises(ValueError, match=r"rank of adapters is 33; expected at most 32, the largest rank of a linear"):
        init_lora(config, params, 33)
    with pytest.raises(ValueError, match="rank of adapters is 32; expected at most 16"):
        init_lora(config, params, 32, ["k_proj", "v_proj"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers.0.mlp.up_proj.lora_b": None}, r"up_proj\.lora_a' has no matching 'layers\.0\.mlp\.up_proj\.lora_b'"),
        ({"layers.7.mlp.up_proj.lora_b": (4, 40)}, r"has no matching 'layers\.7\.mlp\.up_proj\.weight'"),
        ({"lora_a": (32, 4)}, r"'lora_a' has no matching '.weight'"),
        ({"layers.0.mlp.up_proj.lora_a": (33, 4)}, r"'layers\.0\.mlp\.up_proj' has the shapes \(33, 4\) and \(4, 40\)"),
        ({"layers.0.mlp.up_proj.lora_a": (32, 5)}, r"shapes \(32, 5\) and \(4, 40\) .* expected \(in, rank\)"),
        ({"layers.0.mlp.up_proj.lora_b": (4, 1)}, r"and \(4, 1\) for a weight of shape \(40, 32\): expected"),
        ({"layers.0.mlp.up_proj.lora_b": (40,)}, r"and \(40,\) for a weight"),
        ({"layers.0.mlp.up_proj.lora_a": (0, 4)}, r"shapes \(0, 4\) and"),
    ],
)
def test_adapters_that_do_not_fit_are_not_merged(base, change, words):
    _, _, params, _, lora = base
    lora = dict(lora) | {name: mx.zeros(shape) for name, shape in change.items() if shape}
    for name in [name for name, shape in change.items() if not shape]:
        del lora[name]
    with pytest.raises(ValueError, match=words):
        merge(params, lora)


def test_who_wants_parameters_alone_says_so(base, tmp_path):
    _, config, params, _, lora = base
    with pytest.raises(ValueError, match=r"lora_a' .*It is an adapter.*merge\(params, lora, scale\)"):
        save_pretrained(tmp_path / "x", config, adapt(params, lora))
