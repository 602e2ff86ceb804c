"""The solutions of chapter 12 against transformers, torch and safetensors, and the claims of its prose."""

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.utils.flop_counter import FlopCounterMode

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.chapters.chapter_12 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_12.hooks import (
    differences_by_token,
    hugging_face_model,
    hugging_face_record,
    save_relative,
)
from mlx_grpo_kit.course.chapters.chapter_12.patients import CAUSES, DIAGNOSIS, MISTAKES, almost_right
from mlx_grpo_kit.course.chapters.chapter_12.pictures.relatives import ATTENTION, MLP, draw_relatives
from mlx_grpo_kit.course.chapters.chapter_12.plan import OWN, plan_panel
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained, load_tokenizer, param_shapes, qwen3_forward
from mlx_grpo_kit.qwen3.sizes import forward_flops, memory, parameters_by_part
from mlx_grpo_kit.qwen3.statistics import value_statistics
from mlx_grpo_kit.runtime import mx

PUBLISHED = ("0.6B", "1.7B", "4B", "8B", "14B", "32B")


@pytest.fixture(params=["shipped", "another"])
def folder(request):
    return TINY if request.param == "shipped" else request.getfixturevalue("another_model")


@pytest.fixture
def ids():
    tokenizer = load_tokenizer(TINY)
    return np.array([tokenizer.encode("12+34=46"), tokenizer.encode("37+45=82")])


# -- the solutions ----------------------------------------------------------------------------------------------------


def test_the_model_of_the_exercises_agrees_with_transformers(folder, ids):
    config, params = load_pretrained(folder)
    reference = hugging_face_model(folder)
    with torch.no_grad():
        expected = reference(torch.tensor(ids), output_hidden_states=True)
    assert np.allclose(chapter.qwen3(config, params, mx.array(ids)), expected.logits, atol=1e-4)
    probabilities = chapter.logit_lens(config, params, mx.array(qwen3_stream(config, params, ids)))
    assert np.allclose(probabilities, expected.logits.softmax(-1), atol=1e-5)
    assert chapter.count_parameters(config) == sum(each.numel() for each in reference.parameters())
    with FlopCounterMode(display=False) as counter:
        reference(torch.tensor(ids), use_cache=False)
    assert chapter.flops(config, *ids.shape) == counter.get_total_flops()


def qwen3_stream(config, params, ids):
    record = {}
    qwen3_forward(config, params, mx.array(ids), watch=record.setdefault)
    return record[f"layers.{config.num_hidden_layers - 1}"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_are_counted(name):
    config = Qwen3Config.from_name(name)
    assert chapter.count_parameters(config) == sum(parameters_by_part(config).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_files_are_read_as_safetensors_reads_them(dtype):
    torch.manual_seed(0)
    tensors = {"a.weight": torch.randn(3, 5), "b": torch.randn(7), "c": torch.randn(2, 1, 4) * 1e-20}
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    ours = chapter.read_safetensors(safetensors.torch.save(tensors, metadata={"format": "pt"}))
    assert ours.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert np.array_equal(ours[name], tensor.float().numpy())


def test_the_shipped_file_is_read_as_safetensors_reads_it():
    content = (TINY / "model.safetensors").read_bytes()
    theirs = safetensors.torch.load(content)
    ours = chapter.read_safetensors(content)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name].numpy()) for name in theirs)
    assert {chapter.kit_name(name) for name in theirs} == set(load_pretrained(TINY)[1])


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_a_relative_is_read_and_projected_as_by_transformers(family, tmp_path):
    theirs = save_relative(family, tmp_path, seed=0)
    arrays = chapter.read_safetensors((tmp_path / "model.safetensors").read_bytes())
    config, params = load_pretrained(tmp_path)
    assert config.model_type == family
    assert {chapter.kit_name(name) for name in arrays} == set(params)
    assert all((array != array.flat[0]).any() for array in arrays.values())  # no norm or bias with its first numbers
    seen = {}

    def keep(name):
        return lambda _, __, output: seen.setdefault(name, output)

    layer = theirs.model.layers[1].self_attn
    for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm"):
        if hasattr(layer, name):
            getattr(layer, name).register_forward_hook(keep(name))
    theirs.model.layers[1].input_layernorm.register_forward_hook(keep("x"))
    with torch.no_grad():
        theirs(torch.arange(10).reshape(2, 5))
    results = chapter.projected(config, params, "layers.1.self_attn.", mx.array(seen["x"].numpy()))
    for letter, ours in zip("qkv", results, strict=True):
        value = seen.get(f"{letter}_norm", seen[f"{letter}_proj"])
        expected = value.reshape(2, 5, -1, config.head_dim).transpose(1, 2)
        assert np.allclose(ours, expected, atol=1e-5)


# -- looking inside ---------------------------------------------------------------------------------------------------


def test_transformers_is_recorded_like_the_kit(folder, ids):
    config, params = load_pretrained(folder)
    model, record = hugging_face_model(folder), {}
    qwen3_forward(config, params, mx.array(ids), watch=record.setdefault)
    theirs = hugging_face_record(model, ids)
    layers = range(config.num_hidden_layers)
    assert set(record) - set(theirs) == {f"layers.{number}.self_attn.scores" for number in layers}
    assert set(theirs) <= set(record)
    shares = differences_by_token({name: np.array(value) for name, value in record.items()}, theirs)
    assert max(each.max() for each in shares.values()) < 1e-5
    assert {each.shape for each in shares.values()} == {(ids.shape[1],)}
    assert not any(module._forward_hooks for module in model.model.layers[0].self_attn.children())
    assert hugging_face_record(model, ids).keys() == theirs.keys()


def test_a_difference_is_reported_at_its_token():
    theirs = {"embedding": np.ones((2, 3, 4)), "layers.0.self_attn.mixed": np.full((2, 5, 3, 4), 10.0), "x": np.ones(1)}
    ours = {name: value.copy() for name, value in theirs.items() if name != "x"}
    ours["embedding"][1, 2, 0] += 0.5
    ours["layers.0.self_attn.mixed"][0, 4, 1, 3] -= 0.5
    shares = differences_by_token(ours, theirs)
    assert shares["embedding"].tolist() == [0, 0, 0.5]
    assert shares["layers.0.self_attn.mixed"].tolist() == [0, 0.05, 0]


FIRST = {
    "B": "self_attn.q_rope",
    "C": "self_attn.q_rope",
    "E": "self_attn.weights",
    "F": "post_attention_layernorm",
    "G": "mlp.gated",
}


def test_each_patient_has_the_mistake_of_its_letter(folder, ids):
    config, params = load_pretrained(folder)
    theirs = hugging_face_record(hugging_face_model(folder), ids)
    for letter, patient in zip(DIAGNOSIS, almost_right(config, params, mx.array(ids)), strict=True):
        first = chapter.first_difference(patient, theirs)
        assert first == f"layers.0.{FIRST[letter]}"
        wrong = differences_by_token(patient, theirs)[first] > 1e-4
        # The first token is right if nothing is rotated, and if there is only one score.
        assert wrong[0] == (letter not in "BE")
        assert wrong[1:].all()
        apart = np.abs(patient["logits"] - theirs["logits"]).max() / np.abs(theirs["logits"]).max()
        assert (apart < 1e-5) == (letter == "C")
    assert set(MISTAKES) == set(DIAGNOSIS) <= set(CAUSES)


# -- what the prose says ----------------------------------------------------------------------------------------------


def test_the_small_layer_counted_by_hand():
    config = chapter.CONFIGS["one small layer"]
    assert 40 + 2 * 16 + 2 * 8 + 2 * 2 + 3 * 24 + 2 * 4 + 4 == chapter.count_parameters(config) == 176


def test_where_the_parameters_of_published_models_are():
    untied = []
    for name in PUBLISHED:
        parts = parameters_by_part(Qwen3Config.from_name(name))
        assert max(parts, key=parts.get) == "mlp"
        assert parts["attention"] / sum(parts.values()) < 1 / 3
        untied += [name] if parts["output layer"] else []
    assert untied == ["8B", "14B", "32B"]
    embedding = parameters_by_part(Qwen3Config.from_name("0.6B"))["embedding"]
    assert round(embedding / 1e6) == 156
    assert 0.25 < embedding / 596_049_920 < 0.27


@pytest.mark.parametrize(
    ("name", "own", "all_in_a_layer"),
    [("Llama-3.2-1B", 0, 60.8e6), ("Qwen2.5-0.5B", 1152, 14.9e6), ("Qwen3-0.6B", 256, 15.7e6)],
)
def test_what_only_one_family_has(name, own, all_in_a_layer):
    shapes = param_shapes(Qwen3Config.from_name(name))
    sizes = {each: np.prod(shape) for each, shape in shapes.items() if each.startswith("layers.0.")}
    ends = (".bias", "q_norm.weight", "k_norm.weight")
    assert sum(size for each, size in sizes.items() if each.endswith(ends)) == own
    assert abs(sum(sizes.values()) - all_in_a_layer) < 0.05e6


def test_the_picture_of_the_relatives_has_their_weights():
    chart, words = draw_relatives()
    boxes = [box for row in ATTENTION + MLP for box in row if box]
    for family in ("qwen2", "qwen3"):
        drawn = {name.removeprefix("+ ") for owner, name in boxes if owner == family}
        shapes = {each: set(param_shapes(chapter.CONFIGS[f"a {each}"])) for each in (family, "llama")}
        own = {each.removeprefix("layers.0.self_attn.") for each in shapes[family] - shapes["llama"] if ".0." in each}
        assert {name.removesuffix(".weight") for name in own} == drawn
        assert all(name in words and name in chart.svg(words) for name in drawn)


def test_the_shares_of_the_operations():
    small, long = (forward_flops(Qwen3Config.from_name("0.6B"), 1, tokens) for tokens in (100, 40_000))
    assert small["scores"] < 0.03 * sum(small.values())
    assert long["scores"] > 0.85 * sum(long.values())
    assert 0.24 < small["output layer"] / sum(small.values()) < 0.28
    assert 5e5 < 6 * 8.2e9 * 36e12 / 1e11 / (365 * 86400) < 6e5


def test_in_place_addition_in_mlx_changes_the_callers_array():
    x = mx.array([1.0])

    def add(y):
        y += 1

    add(x)
    assert x.item() == 2


def pairs():
    return [(a, b) for a in range(10, 90) for b in range(10, 100 - a)]


def share_right(watch=lambda name, value: value):
    """The shares of right answers: (sums without a carry, sums with a carry)."""
    config, params = load_pretrained(TINY)
    tokenizer = load_tokenizer(TINY)
    sums = mx.array([tokenizer.encode(f"{a}+{b}={a + b}") for a, b in pairs()])
    logits = qwen3_forward(config, params, sums, watch=watch)[:, -3:-1]
    right = np.array((logits.argmax(axis=-1) == sums[:, -2:]).all(axis=1))
    carries = np.array([a % 10 + b % 10 > 9 for a, b in pairs()])
    return right[~carries].mean(), right[carries].mean()


def without(*names):
    return lambda name, value: mx.zeros_like(value) if name in names else value


def without_head(layer, head):
    def watch(name, value):
        return mx.where(mx.arange(4)[None, :, None, None] == head, 0, value) if name == layer else value

    return watch


def test_the_effect_of_removing_each_part():
    assert share_right() == (1, 0)
    for name in ("layers.0.self_attn.o_proj", "layers.0.mlp.down_proj", "layers.1.self_attn.o_proj"):
        assert max(share_right(without(name))) < 0.03
    without_carry, with_carry = share_right(without_head("layers.1.self_attn.mixed", 2))
    assert without_carry > 0.97
    assert 0.55 < with_carry < 0.57
    without_carry, with_carry = share_right(without("layers.1.mlp.down_proj"))
    assert 0.38 < without_carry < 0.41
    assert 0.09 < with_carry < 0.11


def test_the_claims_about_the_lens_hold():
    config, params = load_pretrained(TINY)
    tokenizer, record = load_tokenizer(TINY), {}

    def at_equals(prompt, place, token=5):
        record.clear()
        qwen3_forward(config, params, mx.array([tokenizer.encode(prompt)]), watch=record.setdefault)
        shares = np.array(chapter.logit_lens(config, params, record[place]))[0, token]
        return {tokenizer.token(int(each)): round(float(shares[each]), 2) for each in shares.argsort()[:-3:-1]}

    assert at_equals("12+34=46", "layers.1.attended")["5"] == 0.74
    assert next(iter(at_equals("12+34=46", "layers.1").items())) == ("4", 0.8)
    assert max(at_equals("12+34=46", "layers.0").values()) < 0.35
    assert at_equals("37+45=82", "layers.1") == {"7": 0.57, "8": 0.34}
    for place in ("layers.0.attended", "layers.0", "layers.1.attended", "layers.1"):  # after 46, and often after 34
        assert next(iter(at_equals("12+34=46", place, 7))) == "<eos>"
    for place in ("layers.0", "layers.1.attended", "layers.1"):
        assert next(iter(at_equals("12+34=46", place, 4))) == "<eos>"
    assert next(iter(at_equals("12+34=46", "layers.1", 1))) == "<eos>"
    assert at_equals("7+8=", "layers.1", 3)["3"] == 0.22


def test_inner_values_beyond_six_times_their_size(ids):
    config, params = load_pretrained(TINY)
    record = {}
    qwen3_forward(config, params, mx.array(ids), watch=record.setdefault)
    outliers = {name: each.outliers for name, each in value_statistics(record).items()}
    assert not any(outliers[name] for name in ("embedding", "layers.0", "layers.1", "final_norm"))
    for name in ("layers.1.mlp.gated", "layers.0.self_attn.q_norm"):
        assert 160 < 1 / outliers[name] < 180


def test_the_stream_is_a_sum(folder, ids):
    config, params = load_pretrained(folder)
    record = {}
    qwen3_forward(config, params, mx.array(ids), watch=record.setdefault)
    total = record["embedding"] + sum(
        record[f"layers.{number}.{part}"]
        for number in range(config.num_hidden_layers)
        for part in ("self_attn.o_proj", "mlp.down_proj")
    )
    assert mx.allclose(total, record[f"layers.{config.num_hidden_layers - 1}"], rtol=1e-4, atol=1e-4)


# -- the panel --------------------------------------------------------------------------------------------------------


def test_presets_move_the_sliders_and_a_slider_leaves_the_preset():
    panel = plan_panel(load_pretrained(TINY)[0])
    assert "parameters: 303,872;" in repr(panel)
    panel.set(preset="8B")
    assert panel.values["hidden_size"] == 4096
    assert panel.values["tie_word_embeddings"] is False
    assert "parameters: 8.19 billion;" in repr(panel)
    assert panel.values["preset"] == "8B"
    panel.set(tokens=1000, batch=1, dtype="bfloat16")
    said = memory(Qwen3Config.from_name("8B"), 1, 1000, mx.bfloat16)
    assert f"KV cache: {said['KV cache'] / 1e6:.0f} MB" in repr(panel)
    panel.set(num_hidden_layers=37)
    assert panel.values["preset"] == OWN
    panel.set(preset="the shipped one")
    assert "A Qwen3 of 2 layers reads 1 row of 1,000 tokens in bfloat16" in repr(panel)
    panel.set(num_key_value_heads=3)
    assert "must be a multiple of num_key_value_heads (3)" in panel._complaint.value
