"""Folders that mlx-lm has quantized: its logits and its greedy tokens, in as little memory, and refusals in words."""

import json
import shutil

import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import dequantize_model, load

from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.logps import batch_logps, pad_batch
from mlx_grpo_kit.qwen3 import (
    Qwen3Config,
    adapt,
    dequantize,
    init_lora,
    init_params,
    load_pretrained,
    load_tokenizer,
    merge,
    qwen3_forward,
    save_pretrained,
    validate_params,
)
from mlx_grpo_kit.qwen3.kernels import quantized_product
from mlx_grpo_kit.qwen3.matrices import matrix
from mlx_grpo_kit.qwen3.params import check_weights
from mlx_grpo_kit.qwen3.tokenizer import save_character_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import get_task

SIZES = dict(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16)  # fmt: skip
PROMPTS = [[5, 9, 11, 3], [7, 30, 2, 1], [40, 41, 42, 43]]


QUANTIZED = [("qwen3", 4, 32, True), ("qwen3", 8, 64, False), ("qwen2", 4, 64, False), ("llama", 8, 32, True)]


@pytest.fixture(scope="module", params=QUANTIZED, ids=str)
def folder(request, tmp_path_factory):
    from mlx_lm import convert

    family, bits, group_size, tied = request.param
    place = tmp_path_factory.mktemp("quantized")
    config = Qwen3Config(**SIZES, tie_word_embeddings=tied, model_type=family)
    save_character_tokenizer(place)
    params = init_params(config, scale=0.3, seed=bits)
    params = {name: value + 0.3 * mx.random.normal(value.shape) for name, value in params.items()}
    save_pretrained(place / "kit", config, params, tokenizer=load_tokenizer(place))
    convert(str(place / "kit"), str(place / "q"), quantize=True, q_bits=bits, q_group_size=group_size, dtype="float32")
    return place / "q"


def test_logits_are_mlx_lms(folder):
    config, params = load_pretrained(folder)
    ids = mx.array(PROMPTS)
    model, _ = load(str(folder))
    theirs = model(ids)
    np.testing.assert_allclose(qwen3_forward(config, params, ids), theirs, rtol=1e-4, atol=1e-4)
    dense = qwen3_forward(config, dequantize(config, params), ids)
    np.testing.assert_allclose(dense, theirs, rtol=1e-4, atol=1e-4)
    one = qwen3_forward(config, params, ids[:1, :1])  # a single row goes through MLX's own kernel
    np.testing.assert_allclose(one, model(ids[:1, :1]), rtol=1e-4, atol=1e-4)
    kept = sum(value.nbytes for value in params.values())
    assert kept < 0.45 * sum(value.nbytes for value in dequantize(config, params).values())


@pytest.mark.parametrize("changed", [None, "weight", "scales", "biases", "missing"])
def test_a_tied_model_with_a_quantized_copy_of_its_output_layer(folder, tmp_path, changed):
    """An equal copy is dropped; another output layer is not."""
    _, expected = load_pretrained(folder, None)
    shutil.copytree(folder, tmp_path / "q")
    stored = mx.load(str(folder / "model.safetensors"))
    for part in ("weight", "scales", "biases"):
        copy = stored[f"model.embed_tokens.{part}"]
        stored[f"lm_head.{part}"] = copy + 1 if part == changed else copy
    if changed == "missing":
        del stored["lm_head.scales"], stored["lm_head.biases"]
    mx.save_safetensors(str(tmp_path / "q" / "model.safetensors"), stored, {"format": "mlx"})
    settings = json.loads((folder / "config.json").read_text())
    (tmp_path / "q" / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": True}))
    if changed is not None:
        with pytest.raises(ValueError, match=r"tie_word_embeddings is true, but lm_head.weight is not the embedding"):
            load_pretrained(tmp_path / "q")
        return
    _, params = load_pretrained(tmp_path / "q", None)
    assert {name for name in expected if not name.startswith("lm_head.")} == params.keys()
    for name, value in params.items():
        assert mx.array_equal(value, expected[name]).item(), name


def test_greedy_tokens_are_mlx_lms(folder):
    """Token for token, alone and three at a time."""
    config, params = load_pretrained(folder)
    model, _ = load(str(folder))
    theirs = []
    for prompt in PROMPTS:
        steps = generate_step(mx.array(prompt), model, max_tokens=24)
        theirs.append([int(token) for token, _ in steps])
    greedy = SamplingConfig(24, temperature=0)
    assert generate(config, params, PROMPTS, sampling=greedy).completions == theirs
    assert generate(config, params, PROMPTS[:1], sampling=greedy).completions == theirs[:1]
    assert len({token for row in theirs for token in row}) > 10


def test_dequantized_weights_are_mlx_lms(folder, tmp_path):
    from mlx.utils import tree_flatten

    from mlx_grpo_kit.qwen3.weight_files import kit_name

    config, params = load_pretrained(folder)
    dense = dequantize(config, params)
    validate_params(dense, config)
    model, _ = load(str(folder))
    theirs = {kit_name(name): value for name, value in tree_flatten(dequantize_model(model).parameters())}
    assert dense.keys() == theirs.keys()
    assert all(mx.array_equal(dense[name], theirs[name]) for name in dense)
    save_pretrained(tmp_path / "dense", config, dense)
    assert load_pretrained(tmp_path / "dense")[0] == config


@pytest.mark.parametrize("chunks", [False, True])
def test_gradients_of_adapters_are_those_beside_the_dequantized_model(folder, monkeypatch, chunks):
    """Also where the output layer goes by in chunks of the vocabulary, whose rows are then unpacked as they come."""
    from mlx_grpo_kit.generation import output_logps

    if chunks:
        monkeypatch.setattr(output_logps, "WHOLE", 0)
        monkeypatch.setattr(output_logps, "CHUNK", 1)
    config, params = load_pretrained(folder)
    lora = init_lora(config, params, 4)
    lora |= {name: value + 0.05 for name, value in lora.items() if name.endswith("lora_b")}
    batch = pad_batch(config, PROMPTS, [[4, 5, 6], [7], [8, 9]])

    def gradients(base, output_gradient):
        def loss(lora):
            logps, entropy = batch_logps(
                config, adapt(base, lora, 2.0), batch, entropy_gradient=True, output_gradient=output_gradient
            )
            mask = batch.completion_mask
            return mx.where(mask, logps, 0).sum() + 0.1 * mx.where(mask, entropy, 0).sum()

        return mx.value_and_grad(loss)(lora)

    value, grads = gradients(params, False)
    expected, theirs = gradients(dequantize(config, params), True)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, grad in grads.items():
        scale = mx.abs(theirs[name]).max().item()
        assert scale > 1e-3
        np.testing.assert_allclose(grad, theirs[name], atol=1e-4 * scale, err_msg=name)


def test_a_merged_policy_has_float_weights_where_it_had_adapters(folder):
    config, params = load_pretrained(folder)
    lora = init_lora(config, params, 4, ["q_proj"])
    lora = {name: value + 0.02 for name, value in lora.items()}
    merged = merge(params, lora, 2.0)
    check_weights(merged, config)
    assert merged["layers.0.self_attn.q_proj.weight"].dtype == mx.float32
    assert merged["layers.0.self_attn.k_proj.weight"].dtype == mx.uint32
    ids = mx.array(PROMPTS)
    expected = qwen3_forward(config, adapt(params, lora, 2.0), ids)
    np.testing.assert_allclose(qwen3_forward(config, merged, ids), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        qwen3_forward(config, merge(dequantize(config, params), lora, 2.0), ids), expected, rtol=1e-4, atol=1e-4
    )
    longer = {name: mx.zeros((100, 4)) if name.endswith("lora_a") else value for name, value in lora.items()}
    with pytest.raises(ValueError, match=r"shapes \(100, 4\) and .*, packed: expected \(in, rank\)"):
        merge(params, longer)


@pytest.mark.parametrize("rows", [1, 5])
def test_products_and_their_gradient(rows):
    """Against the product with the unpacked matrix, on both of the ways that there are on a CPU."""
    weight = mx.random.normal((24, 64), key=mx.random.key(0))
    x = mx.random.normal((rows, 64), key=mx.random.key(1))
    quantized = mx.quantize(weight, group_size=32, bits=4)
    dense = mx.dequantize(*quantized, group_size=32, bits=4)
    out = mx.random.normal((rows, 24), key=mx.random.key(2))
    loss, grad = mx.value_and_grad(lambda x: (quantized_product(x, *quantized, 32, 4) * out).sum())(x)
    expected, of_dense = mx.value_and_grad(lambda x: ((x @ dense.T) * out).sum())(x)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    np.testing.assert_allclose(grad, of_dense, atol=1e-4)


def test_full_training_is_refused(folder):
    config, params = load_pretrained(folder)
    with pytest.raises(ValueError, match=r"quantized parameters cannot be trained.*lora_r=8.*dequantize"):
        GRPOTrainer(config, params, load_tokenizer(folder), get_task("addition"), GRPOConfig())
    with pytest.raises(ValueError, match=r"Unknown parameter .*weights are quantized.*dequantize\(config, params\)"):
        validate_params(params, config)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.pop("layers.0.mlp.up_proj.biases"), r"'layers\.0\.mlp\.up_proj\.scales' has no matching matrix"),
        (lambda p: p.update({"layers.0.input_layernorm.scales": p["embedding.scales"]}), "has no matching matrix"),
        (
            lambda p: p.update({"embedding.scales": p["embedding.scales"][:, :0]}),
            r"shape \(64, 0\); .* expected groups of",
        ),
        (lambda p: p.update({"embedding.weight": p["embedding.weight"][:, 1:]}), "is quantized and has shape"),
        (lambda p: p.update({"embedding.weight": p["embedding.weight"][:, :0]}), "is quantized and has shape"),
        (lambda p: p.pop("final_norm.weight"), "Missing parameter 'final_norm.weight'"),
    ],
)
def test_arrays_that_do_not_fit(folder, change, words):
    config, params = load_pretrained(folder)
    change(params)
    with pytest.raises(ValueError, match=words):
        check_weights(params, config)


def test_matrices_of_their_own_bits(tmp_path):
    """mlx-lm's mixed recipes: config.json says so by name, and the sizes say it too."""
    from mlx_lm import convert

    config = Qwen3Config(**SIZES)
    save_character_tokenizer(tmp_path)
    save_pretrained(tmp_path / "kit", config, init_params(config, scale=0.3), tokenizer=load_tokenizer(tmp_path))

    def choose(path, module):
        return {"bits": 8, "group_size": 32} if "down_proj" in path else "lm_head" not in path

    convert(str(tmp_path / "kit"), str(tmp_path / "q"), quantize=True, q_bits=4, q_group_size=64, dtype="float32",
            quant_predicate=choose)  # fmt: skip
    assert "model.layers.0.mlp.down_proj" in json.loads((tmp_path / "q" / "config.json").read_text())["quantization"]
    _, params = load_pretrained(tmp_path / "q")
    assert matrix(params, "layers.0.mlp.down_proj", 128).bits == 8
    assert matrix(params, "layers.0.mlp.up_proj", 64).bits == 4
    assert params["lm_head.weight"].dtype == mx.float32
    theirs = load(str(tmp_path / "q"))[0](mx.array(PROMPTS))
    np.testing.assert_allclose(qwen3_forward(config, params, mx.array(PROMPTS)), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recipe", ["mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6"])
def test_recipes_that_leave_the_group_size_to_mlx(recipe, tmp_path):
    """mlx-lm writes null for it then, beside the bits of each matrix."""
    from mlx_lm import convert

    config = Qwen3Config(**SIZES)
    save_character_tokenizer(tmp_path)
    save_pretrained(tmp_path / "kit", config, init_params(config, scale=0.3), tokenizer=load_tokenizer(tmp_path))
    convert(str(tmp_path / "kit"), str(tmp_path / "q"), quantize=True, quant_predicate=recipe, dtype="float32")
    assert '"group_size": null' in (tmp_path / "q" / "config.json").read_text()
    _, params = load_pretrained(tmp_path / "q")
    theirs = load(str(tmp_path / "q"))[0](mx.array(PROMPTS))
    np.testing.assert_allclose(qwen3_forward(config, params, mx.array(PROMPTS)), theirs, rtol=1e-4, atol=1e-4)
