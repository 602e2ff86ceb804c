"""GGUFs that the gguf package wrote: folders with transformers' weights, logits, tokens and chats, or one error."""

import struct
from contextlib import suppress

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from transformers import AutoModelForCausalLM, AutoTokenizer

from mlx_grpo_kit.files import MANIFEST
from mlx_grpo_kit.qwen3 import import_gguf, load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.qwen3.gguf_file import GGUF, KINDS, OTHER_KINDS
from mlx_grpo_kit.runtime import mx
from tests.qwen3.small_gguf import FAMILIES, MERGES, PADDED, SPECIAL, TEXTS, TOKEN_TYPES, make_reference, write_gguf

TYPES = [Type[kind.name] for kind in KINDS.values()]


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits.numpy()


def assert_same_weights(model, expected):
    found, wanted = model.state_dict(), expected.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_logits_are_those_of_transformers(family, kind, tmp_path):
    reference = make_reference(family, tied=kind in (Type.F32, Type.Q8_0, Type.Q4_0), rope_theta=500_000.0)
    file = write_gguf(tmp_path / "small.gguf", reference, kind)
    folder = import_gguf(file, tmp_path / "small")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model) is type(reference)
    assert model.config.rope_parameters["rope_theta"] == 500_000.0
    assert_same_weights(model, reference)
    ids = load_tokenizer(folder).encode(TEXTS[0])
    np.testing.assert_array_equal(logits_of(model, ids), logits_of(reference, ids))
    config, params = load_pretrained(folder)
    ours = np.array(qwen3_forward(config, params, mx.array([ids])))
    np.testing.assert_allclose(ours, logits_of(reference, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_the_same_from_the_gguf_itself(family, tmp_path):
    # transformers reads no head_dim of a Qwen3 from a GGUF, and takes 128.
    reference = make_reference(family, **({"head_dim": 128} if family == "qwen3" else {}))
    write_gguf(tmp_path / "small.gguf", reference, Type.Q4_1)
    assert_same_weights(AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="small.gguf"), reference)


def test_weights_in_half_of_the_memory(tmp_path):
    reference = make_reference("qwen3")
    folder = import_gguf(write_gguf(tmp_path / "small.gguf", reference, Type.BF16), tmp_path / "small", mx.bfloat16)
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16
    assert_same_weights(AutoModelForCausalLM.from_pretrained(folder), reference.to(torch.bfloat16))


@pytest.mark.parametrize("factor", [1.0, 8.0, 32.0])
def test_the_rotary_embeddings_of_llama_3(factor, tmp_path):
    llama3 = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": factor, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    reference = make_reference("llama", rope_parameters=llama3)
    plain = 500_000.0 ** (torch.arange(0, 16, 2) / 16)
    factors = (1 / (reference.model.rotary_emb.inv_freq * plain)).numpy()
    tensors = {"rope_freqs.weight": (factors, Type.F32)}
    file = write_gguf(tmp_path / "small.gguf", reference, pre="llama-bpe", tensors=tensors)
    model = AutoModelForCausalLM.from_pretrained(import_gguf(file, tmp_path / "small"))
    if factor > 1:
        assert {name: model.config.rope_parameters[name] for name in llama3} == llama3
    ids = [5, 9, 3, 70, 12]
    np.testing.assert_allclose(logits_of(model, ids), logits_of(reference, ids), atol=1e-6)

    tensors["rope_freqs.weight"] = (factors * 1.5, Type.F32)
    file = write_gguf(tmp_path / "other.gguf", reference, pre="llama-bpe", tensors=tensors)
    with pytest.raises(ValueError, match=r"'rope_freqs\.weight' does not have Llama 3's factors"):
        import_gguf(file, tmp_path / "other")


def test_the_rotary_embeddings_of_yarn(tmp_path):
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32}
    reference = make_reference("qwen3", rope_parameters=yarn)
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 32, "finetuned": True}
    settings = {f"qwen3.rope.scaling.{name}": value for name, value in scaling.items()}
    folder = import_gguf(write_gguf(tmp_path / "small.gguf", reference, settings=settings), tmp_path / "small")
    model = AutoModelForCausalLM.from_pretrained(folder)
    np.testing.assert_array_equal(logits_of(model, [5, 9, 3, 70]), logits_of(reference, [5, 9, 3, 70]))


def reference_tokenizer(pre, folder):
    """A tokenizer that transformers made: its Qwen2's, or the one that it reads from the GGUF."""
    if pre == "qwen2":
        vocabulary = {token: i for i, token in enumerate(PADDED) if not token.startswith("[PAD")}
        tokenizer = transformers.Qwen2Tokenizer(vocabulary, [tuple(merge.split(" ")) for merge in MERGES])
        tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
        tokenizer.add_tokens(["<think>", "</think>"])
        return tokenizer
    return AutoTokenizer.from_pretrained(folder, gguf_file="small.gguf")


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "deepseek-r1-qwen"])
def test_tokens_are_those_of_transformers(pre, tmp_path):
    file = write_gguf(tmp_path / "small.gguf", make_reference("qwen3"), pre=pre)
    folder = import_gguf(file, tmp_path / "small")
    theirs, loaded = reference_tokenizer(pre, tmp_path), AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(folder)
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text) == loaded(text, add_special_tokens=False).input_ids == ids
        for skip in (False, True):
            assert loaded.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    first = [1] if pre == "llama-bpe" else []  # llama.cpp and Llama 3's own tokenizer begin a text with it
    assert ours.encode_prompt("a b") == loaded("a b").input_ids == [*first, *ours.encode("a b")]
    assert ours.encode_prompt(f"{ours.token(1)}a b") == [1, *ours.encode("a b")]
    assert "[PAD410]" not in loaded.get_vocab()


def test_a_chat_begins_once_as_its_template_writes_it(tmp_path):
    settings = {"tokenizer.chat_template": "{{ bos_token }}{% for each in messages %}{{ each.content }}{% endfor %}"}
    file = write_gguf(tmp_path / "small.gguf", make_reference("llama"), pre="llama-bpe", settings=settings)
    folder, chat = import_gguf(file, tmp_path / "small"), [{"role": "user", "content": "12+34?"}]
    ids = load_tokenizer(folder).encode_prompt(chat)
    assert ids == AutoTokenizer.from_pretrained(folder).apply_chat_template(chat, return_dict=False)
    assert [place for place, each in enumerate(ids) if each == 1] == [0]


def test_llama_3_takes_whole_words_that_no_merge_makes(tmp_path):
    tokens, types = [*PADDED[:-1], "Ġzebra"], [*TOKEN_TYPES[:-1], 1]
    settings = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    for pre, whole in (("llama-bpe", True), ("qwen2", False)):
        file = write_gguf(tmp_path / f"{pre}.gguf", make_reference("llama"), pre=pre, settings=settings)
        ids = load_tokenizer(import_gguf(file, tmp_path / pre)).encode("a zebra")
        assert (len(PADDED) - 1 in ids) == whole


def test_smollm_cuts_every_digit(tmp_path):
    folder = import_gguf(write_gguf(tmp_path / "small.gguf", make_reference("llama"), pre="smollm"), tmp_path / "small")
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode(TEXTS[0])
    assert [token for token in map(tokenizer.token, ids) if any(map(str.isdigit, token))] == [*"123456712345"]
    assert AutoTokenizer.from_pretrained(folder)(TEXTS[0]).input_ids == ids


def test_chats_ends_and_the_model_card(tmp_path):
    settings = {"tokenizer.ggml.eot_token_id": 0, "general.source.url": "https://example.org/small"}
    file = write_gguf(tmp_path / "small.gguf", make_reference("qwen2"), Type.Q8_0, settings=settings)
    folder = import_gguf(file, tmp_path / "small", documents={"LICENSE": b"words"})
    tokenizer, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "12+34?"}]
    expected = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert tokenizer.render(chat) == expected == "<|im_start|>user\n12+34?<|im_end|>\n<|im_start|>assistant\n"
    assert (tokenizer.eos_token_ids, tokenizer.pad_token_id) == ([2, 0], 0)
    assert (theirs.bos_token, theirs.eos_token, theirs.pad_token) == ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    assert transformers.GenerationConfig.from_pretrained(folder).eos_token_id == [2, 0]
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\n---\n# Small\n")
    assert "Q8_0 (15 tensors)" in card
    assert "https://example.org/small" in card
    assert (folder / "LICENSE").read_bytes() == b"words"


def test_a_gguf_without_a_licence_or_a_template(tmp_path):
    left = ("general.license", "tokenizer.chat_template", "general.name", "tokenizer.ggml.padding_token_id")
    file = write_gguf(tmp_path / "small.gguf", make_reference("qwen2"), leave_out=left)
    folder = import_gguf(file, tmp_path / "small")
    assert (folder / "README.md").read_text().startswith("# small\n")
    assert "license: the GGUF names none" in (folder / "README.md").read_text()
    assert load_tokenizer(folder).chat_template is None
    assert load_tokenizer(folder).pad_token_id == 2


# What cannot be converted.


@pytest.mark.parametrize(
    ("family", "settings", "leave_out", "words"),
    [
        ("qwen3", {"general.architecture": "qwen3moe"}, (), "general.architecture is 'qwen3moe'; expected 'qwen3'"),
        ("qwen3", {"general.type": "adapter"}, (), "general.type is 'adapter'; expected 'model'"),
        ("qwen3", {}, ("qwen3.block_count",), r"lacks qwen3\.block_count"),
        ("qwen3", {}, ("blk.1.attn_q_norm.weight",), r"lacks tensor 'blk\.1\.attn_q_norm\.weight'"),
        ("qwen3", {}, ("token_embd.weight",), r"lacks tensor 'token_embd\.weight'"),
        ("qwen3", {"qwen3.block_count": 10**6}, (), "num_hidden_layers is 1000000; expected at most 1000"),
        ("qwen3", {"qwen3.block_count": 1}, (), r"tensor 'blk\.1\.\w+\.weight' has no place"),
        ("qwen3", {"qwen3.feed_forward_length": 128}, (), r"'blk\.0\.ffn_gate\.weight' has shape \(96, 64\)"),
        ("qwen3", {"qwen3.feed_forward_length": [96, 96]}, (), "feed_forward_length differs by layer"),
        ("qwen3", {"qwen3.attention.head_count": 0}, (), "head_count is 0; expected a positive whole number"),
        ("qwen3", {"qwen3.attention.head_count_kv": 3}, (), "must be a multiple of num_key_value_heads"),
        ("qwen3", {"qwen3.rope.dimension_count": 16}, (), r"rope\.dimension_count differs from the 32"),
        ("qwen3", {"qwen3.attention.sliding_window": 64}, (), r"sliding_window is 64; expected 0"),
        ("qwen3", {"qwen3.expert_count": 8}, (), "expert_count is 8; expected 0"),
        ("qwen3", {"qwen3.logit_scale": 2.0}, (), "qwen3.logit_scale is 2.0; this forward pass does not know it"),
        ("llama", {"llama.rope.scaling.type": "longrope"}, (), "scaled by 'longrope'; expected 'none' or 'yarn'"),
        ("llama", {"llama.rope.scaling.factor": 4.0}, (), r"scaled linearly \(rope\.scaling\.factor 4\.0\)"),
        ("llama", {"tokenizer.ggml.model": "llama"}, (), r"model is 'llama' \(SentencePiece\); expected 'gpt2'"),
        ("llama", {"tokenizer.ggml.pre": "tekken"}, (), "pre is 'tekken'; expected 'smollm', 'qwen2'"),
        ("llama", {}, ("tokenizer.ggml.pre",), "pre is None; expected 'smollm'"),
        ("llama", {}, ("tokenizer.ggml.merges",), r"lacks tokenizer\.ggml\.merges"),
        ("llama", {}, ("tokenizer.ggml.eos_token_id",), r"lacks tokenizer\.ggml\.eos_token_id"),
        ("llama", {"tokenizer.ggml.merges": ["a"]}, (), "merge 'a' does not join two of its tokens"),
        ("llama", {"tokenizer.ggml.merges": ["a 日"]}, (), "merge 'a 日' does not join two of its tokens"),
        ("llama", {"tokenizer.ggml.tokens": ["a"] * 416}, (), "token 'a' twice"),
        ("llama", {"tokenizer.ggml.tokens": ["a"] * 417}, (), "417 tokens with 416 types"),
        ("llama", {"tokenizer.ggml.eos_token_id": 416}, (), "eos token has id 416; expected 0 to 415"),
        ("qwen2", {"split.count": 3}, (), "one of 3 parts of a GGUF; expected a whole one"),
    ],
)  # fmt: skip
def test_what_the_kit_cannot_compute_is_refused_by_name(family, settings, leave_out, words, tmp_path):
    file = write_gguf(tmp_path / "small.gguf", make_reference(family), settings=settings, leave_out=leave_out)
    with pytest.raises(ValueError, match=words) as error:
        import_gguf(file, tmp_path / "small")
    assert str(file) in str(error.value)
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize("value", ["text", "", [1, 2], ["a", "b"], 3, 2**32 - 1, -1.5, float("nan"), True], ids=repr)
def test_a_setting_of_any_other_kind_is_one_error_or_has_no_effect(value, tmp_path):
    reference = make_reference("qwen3")
    for name in GGUF(write_gguf(tmp_path / "small.gguf", reference)).metadata:
        file = write_gguf(tmp_path / "other.gguf", reference, settings={name: value})
        with suppress(ValueError):
            import_gguf(file, tmp_path / "small")


def test_an_unknown_tensor_and_numbers_that_are_not_finite(tmp_path):
    sinks = {"blk.0.attn_sinks.weight": (np.ones(4, np.float32), Type.F32)}
    file = write_gguf(tmp_path / "sinks.gguf", make_reference("llama"), tensors=sinks)
    with pytest.raises(ValueError, match=r"'blk\.0\.attn_sinks\.weight' has no place in a llama model"):
        import_gguf(file, tmp_path / "small")
    reference = make_reference("llama")
    reference.model.norm.weight.data[3] = np.nan
    file = write_gguf(tmp_path / "small.gguf", reference)
    with pytest.raises(ValueError, match=r"small\.gguf cannot be converted\. Parameter 'final_norm\.weight' has 1 of"):
        import_gguf(file, tmp_path / "small")


def test_types_that_are_not_read(tmp_path):
    reference = make_reference("llama")
    file = write_gguf(tmp_path / "small.gguf", reference, leave_out=["blk.1.ffn_up.weight"],
                      tensors={"blk.1.ffn_up.weight": (np.ones((96, 64), np.float32), Type.Q5_1)})  # fmt: skip
    with pytest.raises(ValueError, match=r"'blk\.1\.ffn_up\.weight' in type Q5_1; expected F32, F16.*llama-quantize"):
        import_gguf(file, tmp_path / "small")
    names = {value.value: value.name for value in Type}
    assert {**OTHER_KINDS, **{i: kind.name for i, kind in KINDS.items()}}.items() <= names.items()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    file = write_gguf(tmp_path_factory.mktemp("whole") / "small.gguf", make_reference("llama"), Type.Q4_0, pre="smollm")
    return file.read_bytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: b"", r"names 4 bytes at byte 0, and has 0 bytes\. It is cut off"),
        (lambda content: content[:3], "It is cut off"),
        (lambda content: content[:20], "It is cut off"),
        (lambda content: content[: len(content) // 3], "It is cut off"),
        (lambda content: content[:-1], "its tensors reach to byte .* It is cut off"),
        (lambda content: b"GGML" + content[4:], "begins with b'GGML'; a GGUF begins with b'GGUF'"),
        (lambda content: b"version https://git-lfs.github.com/spec/v1\n", "pointer of a file in Git LFS"),
        (lambda content: content[:4] + struct.pack(">I", 3) + content[8:], "a GGUF big-endian; expected version 2"),
        (lambda content: content[:4] + struct.pack("<I", 1) + content[8:], "a GGUF of version 1; expected"),
        (lambda content: content[:8] + b"\xff" * 8 + content[16:], "names 18,446,744,073,709,551,615 tensors"),
        (lambda content: content[:16] + b"\xff" * 8 + content[24:], "names 18,446,744,073,709,551,615 settings"),
        (lambda content: content[:24] + b"\xff" * 7 + b"\x7f" + content[32:], "bytes at byte 32"),
        (lambda content: content.replace(b"token_type\t", b"token_type\x63", 1), "a setting of type 99"),
        (lambda content: content.replace(b"general.name", b"general.\xff\xff\xff\xff", 1), "not UTF-8"),
    ],
)  # fmt: skip
def test_damaged_files(change, words, whole, tmp_path):
    (tmp_path / "small.gguf").write_bytes(change(whole))
    with pytest.raises(ValueError, match=words) as error:
        import_gguf(tmp_path / "small.gguf", tmp_path / "small")
    assert "small.gguf" in str(error.value)
    assert not (tmp_path / "small").exists()


def test_a_file_cut_anywhere_or_with_any_byte_changed_never_crashes(whole, tmp_path):
    """In the header each change is one error, or a GGUF that reads; nothing else is raised, and nothing hangs."""
    file, rng = tmp_path / "small.gguf", np.random.default_rng(0)
    end = whole.index(b"token_embd.weight") + 2000
    for place in rng.integers(0, end, 300):
        file.write_bytes(whole[:place])
        with pytest.raises(ValueError, match=r"small\.gguf"):
            GGUF(file)
        file.write_bytes(whole[:place] + bytes([rng.integers(256)]) + whole[place + 1 :])
        with suppress(ValueError):
            for name in GGUF(file).tensors:
                GGUF(file).read(name)


def test_tensors_that_share_their_bytes_are_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    for i in range(3):
        writer.add_tensor(f"t{i}", np.ones((64, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    content = (tmp_path / "small.gguf").read_bytes()
    at = [content.index(f"t{i}".encode()) + 2 + 4 + 16 + 4 for i in range(3)]
    for place in at:
        content = content[:place] + bytes(8) + content[place + 8 :]
    (tmp_path / "small.gguf").write_bytes(content[: len(content) - 2 * 64 * 64 * 4])
    with pytest.raises(ValueError, match="It is cut off"):
        GGUF(tmp_path / "small.gguf")


def test_places_that_cannot_be_read_or_written(whole, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.gguf"):
        import_gguf(tmp_path / "nothing.gguf", tmp_path / "small")
    with pytest.raises(ValueError, match="is a folder; expected a file"):
        import_gguf(tmp_path, tmp_path / "small")
    file = tmp_path / "small.gguf"
    file.write_bytes(whole)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"contains notes\.txt, which the kit did not write"):
        import_gguf(file, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    with pytest.raises(FileNotFoundError, match=r"has to be converted once: .* import .*small\.gguf --output small"):
        load_pretrained(file)


def test_a_conversion_that_stops_halfway_leaves_what_was_there(whole, tmp_path, monkeypatch):
    (tmp_path / "small.gguf").write_bytes(whole)
    folder = import_gguf(tmp_path / "small.gguf", tmp_path / "small")
    before = (folder / MANIFEST).read_bytes()

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("mlx_grpo_kit.qwen3.pretrained.save_arrays", stop)
    with pytest.raises(KeyboardInterrupt):
        import_gguf(tmp_path / "small.gguf", folder)
    assert (folder / MANIFEST).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "small.gguf"]
    load_pretrained(folder)
