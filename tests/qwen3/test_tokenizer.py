"""load_tokenizer against transformers' AutoTokenizer and mlx-lm, on the tiny model's alphabet and on Qwen3's layout."""

import json
import os
import shutil
from pathlib import Path

import pytest
import tokenizers
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm import tokenizer_utils
from trl import chat_template_utils

from mlx_grpo_kit.assets import TINY, TINY_CHAT
from mlx_grpo_kit.qwen3.chat_template import ChatTemplate
from mlx_grpo_kit.qwen3.tokenizer import CHARACTERS, FILES, load_tokenizer, save_character_tokenizer

CONFIG = {"model_type": "qwen3", "vocab_size": 64, "eos_token_id": 1, "pad_token_id": 0}
TEXTS = ["", "12+34=46", " 12 + 34 ", "24 from 3 5 9:", "(9-5)*6/4", "a b.,:;?!\n\nc  d", "a , b n't 's"]
QWEN_TEXTS = [*TEXTS, "<|im_start|>user\nHi<|im_end|>", "na\u00efve \U0001f600 \u4f60 e\u0301", "<think>\nx\n</think>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny model's tokenizer, in a folder of its own."""
    folder = tmp_path_factory.mktemp("characters")
    save_character_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory):
    """What a published Qwen3 folder holds, with a small vocabulary: byte-level BPE, added tokens, two EOS ids."""
    folder = tmp_path_factory.mktemp("qwen")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["from 3 5 9: hello user\n think and answer the question"] * 3, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([tokenizers.AddedToken(token, special=False) for token in ("<think>", "</think>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    end_of_text, _, im_end = (tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    write(folder, "tokenizer_config.json", tokenizer_class="Qwen2Tokenizer", eos_token="<|im_end|>",
          pad_token="<|endoftext|>", unk_token=None, bos_token=None, clean_up_tokenization_spaces=False)  # fmt: skip
    write(folder, "generation_config.json", eos_token_id=[im_end, end_of_text], pad_token_id=end_of_text)
    write(folder, "config.json", model_type="qwen3", vocab_size=320, eos_token_id=im_end)
    return folder


def write(folder, name, **content):
    (folder / name).write_text(json.dumps(content))


def test_the_tiny_vocabulary(folder):
    tokenizer = load_tokenizer(folder)
    assert tokenizer.vocab_size == 64
    assert tokenizer.eos_token_ids == [1]
    assert tokenizer.pad_token_id == 0
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 61
    assert tokenizer.encode("12+34=<eos>") == [4, 5, 13, 6, 7, 19, 1]
    assert [tokenizer.token(i) for i in (0, 1, 2, 3, 63)] == ["<pad>", "<eos>", "<unk>", "0", "\n"]


@given(st.text(CHARACTERS, max_size=50))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip_is_exact_and_one_token_a_character(folder, text):
    tokenizer = load_tokenizer(folder)
    if any(special in text for special in ("<pad>", "<eos>", "<unk>")):
        return
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([0, *ids, 1, 0]) == text


@pytest.mark.parametrize("text", TEXTS)
def test_transformers_agrees(folder, text):
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    ids = peer(text)["input_ids"]
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == peer.decode(ids, skip_special_tokens=True) == text
    assert (tokenizer.eos_token_ids, tokenizer.pad_token_id) == ([peer.eos_token_id], peer.pad_token_id)
    assert tokenizer.vocab_size == len(peer)


@pytest.mark.parametrize("text", TEXTS)
def test_mlx_lm_agrees(folder, text):
    peer = tokenizer_utils.load(folder)
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode(text)
    assert peer.encode(text) == ids
    assert peer.eos_token_ids == set(tokenizer.eos_token_ids)
    streamed = peer.detokenizer
    for token_id in ids:
        streamed.add_token(token_id)
    streamed.finalize()
    assert streamed.text == text


@pytest.mark.parametrize("text", QWEN_TEXTS)
def test_a_qwen3_folder_reads_like_transformers(qwen_folder, text):
    peer = transformers.PreTrainedTokenizerFast.from_pretrained(qwen_folder)
    tokenizer = load_tokenizer(qwen_folder)
    ids = peer(text)["input_ids"]
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == peer.decode(ids, skip_special_tokens=True)
    assert tokenizer.token(tokenizer.pad_token_id) == peer.pad_token == "<|endoftext|>"
    assert [tokenizer.token(i) for i in tokenizer.eos_token_ids] == ["<|im_end|>", "<|endoftext|>"]
    assert transformers.GenerationConfig.from_pretrained(qwen_folder).eos_token_id == tokenizer.eos_token_ids


@pytest.mark.parametrize(
    ("generation", "config", "names", "expected"),
    [
        ({"eos_token_id": [4, 1]}, {"eos_token_id": 5}, {"eos_token": "<pad>"}, [4, 1]),
        ({"eos_token_id": 4}, {"eos_token_id": 5}, {"eos_token": "<pad>"}, [4]),
        ({}, {"eos_token_id": [5]}, {"eos_token": "<pad>"}, [5]),
        (None, {"eos_token_id": 5}, {"eos_token": "<pad>"}, [5]),
        (None, {"eos_token_id": None}, {"eos_token": "<eos>"}, [1]),
        (None, None, {"eos_token": {"content": "<eos>", "lstrip": False}}, [1]),
        (None, {"eos_token_id": 0}, None, [0]),
    ],
)
def test_where_the_eos_ids_come_from(tmp_path, generation, config, names, expected):
    save_character_tokenizer(tmp_path)
    for name in ("tokenizer_config.json", "generation_config.json"):
        (tmp_path / name).unlink()
    files = {"generation_config.json": generation, "config.json": config, "tokenizer_config.json": names}
    for name, content in files.items():
        if content is not None:
            write(tmp_path, name, **content)
    assert load_tokenizer(tmp_path).eos_token_ids == expected


def test_padding_falls_back_to_the_configuration_and_then_to_eos(tmp_path):
    save_character_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    write(tmp_path, "tokenizer_config.json", eos_token="<eos>")
    assert load_tokenizer(tmp_path).pad_token_id == 1
    write(tmp_path, "config.json", pad_token_id=0)
    assert load_tokenizer(tmp_path).pad_token_id == 0


def test_saved_files_are_the_loaded_ones_even_when_those_are_gone(qwen_folder, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(qwen_folder, source)
    (source / "merges.txt").write_bytes(b"#version: 0.2\n")
    target.mkdir()
    tokenizer = load_tokenizer(source)
    shutil.rmtree(source)
    tokenizer.save(target)
    names = {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "merges.txt"}
    assert {path.name for path in target.iterdir()} == names
    assert (target / "tokenizer.json").read_bytes() == (qwen_folder / "tokenizer.json").read_bytes()
    assert load_tokenizer(target).eos_token_ids == tokenizer.eos_token_ids


def test_an_unknown_character_is_an_error_that_lists_the_known_ones(folder):
    with pytest.raises(ValueError, match=r"no token for 'A' \(character 4 of '12\+A='\).*'0' '1' '2'"):
        load_tokenizer(folder).encode("12+A=")
    with pytest.raises(ValueError, match=r"Token id 64 is not in the vocabulary, whose ids are 0 to 63"):
        load_tokenizer(folder).token(64)


def test_half_a_character_is_no_text():
    with pytest.raises(
        ValueError, match=r"The text '12\\udcff' contains an unpaired surrogate"
    ):  # bytes of a terminal, not UTF-8
        load_tokenizer(TINY).encode("12\udcff")


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"has no tokenizer.json.*save_pretrained"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"version https://git-lfs.github.com/spec/v1", b"\xff\xfe"])
def test_broken_tokenizer_json(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer.json is not a tokenizer.*An incomplete download"):
        load_tokenizer(tmp_path)


def test_broken_or_contradictory_settings(tmp_path):
    save_character_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text("[1, 2")
    with pytest.raises(ValueError, match=r"generation_config.json is not valid JSON"):
        load_tokenizer(tmp_path)
    write(tmp_path, "generation_config.json", eos_token_id=[1, 151645])
    with pytest.raises(ValueError, match=r"eos_token_id 151645 is not an id that tokenizer.json knows"):
        load_tokenizer(tmp_path)
    write(tmp_path, "generation_config.json", pad_token_id=64)
    write(tmp_path, "tokenizer_config.json", eos_token="<eos>")
    with pytest.raises(ValueError, match=r"pad_token_id 64 is not an id"):
        load_tokenizer(tmp_path)
    write(tmp_path, "tokenizer_config.json", eos_token="</s>")
    with pytest.raises(ValueError, match=r"eos_token '</s>', which tokenizer.json does not know"):
        load_tokenizer(tmp_path)
    write(tmp_path, "tokenizer_config.json")
    with pytest.raises(ValueError, match=r"does not name the token that ends a text.*generation_config.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("setting", ["truncation", "padding"])
def test_stored_truncation_and_padding_are_not_obeyed(folder, tmp_path, setting):
    """Nor does transformers; a tokenizer that was saved while it padded a training set has them in its file."""
    shutil.copytree(folder, tmp_path / "kit")
    saved = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    saved.enable_truncation(4) if setting == "truncation" else saved.enable_padding(length=20)
    saved.save(str(tmp_path / "kit" / "tokenizer.json"))
    assert len(saved.encode("12+34=").ids) == (4 if setting == "truncation" else 20)
    ids = load_tokenizer(tmp_path / "kit").encode("12+34=")
    assert ids == [4, 5, 13, 6, 7, 19]
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "kit")("12+34=")["input_ids"] == ids


@pytest.mark.parametrize("token_id", [-1, True, 2**32, 2**70, 1.0, "1", [1], {}])
def test_ids_that_no_tokenizer_has(tmp_path, token_id):
    save_character_tokenizer(tmp_path)
    write(tmp_path, "generation_config.json", eos_token_id=[1, token_id])
    with pytest.raises(ValueError, match=r"eos_token_id .* is not an id that tokenizer.json knows"):
        load_tokenizer(tmp_path)
    write(tmp_path, "generation_config.json", eos_token_id=1, pad_token_id=token_id)
    write(tmp_path, "tokenizer_config.json", unk_token="<unk>")
    with pytest.raises(ValueError, match=r"pad_token_id .* is not an id that tokenizer.json knows"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_refused(tmp_path, name):
    save_character_tokenizer(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} is a pipe or a device; expected a file"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("token", ["</s>", "\ud800", 1, ["<eos>"], {"content": None}, {"content": "\udfff"}, {}])
@pytest.mark.parametrize("role", ["eos_token", "pad_token", "unk_token"])
def test_tokens_that_no_tokenizer_has(tmp_path, role, token):
    save_character_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    write(tmp_path, "tokenizer_config.json", **({"eos_token": "<eos>"} | {role: token}))
    with pytest.raises(ValueError, match=f"names {role} .*which tokenizer.json does not know"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("token", [1, ["<s>"], {"content": None}, {"id": 1}])
@pytest.mark.parametrize("role", ["bos_token", "eos_token"])
def test_a_token_for_the_chat_template_that_is_not_a_text(tmp_path, role, token):
    save_character_tokenizer(tmp_path)  # whose generation_config.json says what ends a text
    write(tmp_path, "tokenizer_config.json", chat_template="{{ bos_token }}{{ eos_token }}", **{role: token})
    with pytest.raises(ValueError, match=f"tokenizer_config.json has .* for {role}; expected a string"):
        load_tokenizer(tmp_path)


def test_a_chat_template_that_is_not_a_text(tmp_path):
    save_character_tokenizer(tmp_path)
    write(tmp_path, "tokenizer_config.json", chat_template=7)
    with pytest.raises(ValueError, match=r"tokenizer_config\.json has a chat_template that is a int; expected a str"):
        load_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes("{{ 'é' }}".encode("latin-1"))
    with pytest.raises(ValueError, match=r"chat_template\.jinja is not UTF-8 .*\. It is cut off or corrupt"):
        load_tokenizer(tmp_path)


def test_chat_templates_by_odd_names(tmp_path):
    save_character_tokenizer(tmp_path)
    templates = [{"name": [], "template": "a"}, {"template": "b"}, "c", {"name": "default", "template": "d"}]
    write(tmp_path, "tokenizer_config.json", chat_template=templates)
    assert load_tokenizer(tmp_path).render([{"role": "user", "content": "1"}]) == "d"
    write(tmp_path, "tokenizer_config.json", chat_template=templates[:3])
    assert load_tokenizer(tmp_path).chat_template is None


def test_a_token_id_that_is_not_in_the_vocabulary(folder):
    for token_id in (-1, 64, 2**40):
        with pytest.raises(ValueError, match=f"Token id {token_id} is not in the vocabulary"):
            load_tokenizer(folder).token(token_id)


TURN = "<|im_start|>user\nWhat does <think> mean?<|im_end|>\n<|im_start|>assistant\n"
OPEN = {
    TURN: "",
    TURN + "<think>\n": "<think>\n",
    TURN + "<think>": "<think>",
    TURN + "<think>\n\n</think>\n\n": "",
    TURN + "<think>\nFirst,": "<think>\nFirst,",
    TURN + "So.\n <think> First,": "<think> First,",
    TURN + "<think>\nWhat is <think>?": "<think>\nWhat is <think>?",
    TURN + "<think>a</think>\n<think>": "<think>",
    TURN + "The tag <think> begins": "",
    "User: what is 1+1?\nAssistant: Let me think.\n<think>": "<think>",
    "Think between <think> and </think>.\nAssistant: <think>\n": "<think>\n",
    "Begin with\n<think> and then answer:": "",
    "<think>\nFirst,<|im_end|>": "",
    "12+34=": "",
    "": "",
}


@pytest.mark.parametrize(("prompt", "opened"), OPEN.items(), ids=map(repr, OPEN))
def test_a_thought_that_a_prompt_leaves_open(qwen_folder, prompt, opened):
    tokenizer = load_tokenizer(qwen_folder)
    ids, said = tokenizer.encode(prompt), tokenizer.encode("so</think>2<|im_end|>")
    assert tokenizer.open_thought(ids) == opened
    assert tokenizer.read(said, ids) == f"{opened}so</think>2"


def test_tags_that_are_special_tokens_are_read(qwen_folder, tmp_path):
    """`decode` skips them."""
    shutil.copytree(qwen_folder, tmp_path, dirs_exist_ok=True)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"] = [each | {"special": True} for each in content["added_tokens"]]
    write(tmp_path, "tokenizer.json", **content)
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("so</think>2<|im_end|>")
    assert tokenizer.decode(ids) == "so2"
    assert tokenizer.read(ids, tokenizer.encode(TURN + "<think>\n")) == "<think>\nso</think>2"


def test_published_templates_that_open_a_thought():
    """Those of TRL, by default and without thinking; transformers parses the answer of the first ones as a thought."""
    tokenizer, folder = load_tokenizer(TINY_CHAT), Path(chat_template_utils.__file__).parent / "chat_templates"
    opened = set(), set()
    for file in sorted(folder.glob("*.jinja")):
        template = ChatTemplate(
            file.read_text(encoding="utf-8"), {"bos_token": "", "eos_token": "<|im_end|>"}, str(file)
        )
        for how, names in zip(({}, {"enable_thinking": False}), opened, strict=True):
            text = template.render([{"role": "user", "content": "What does <think> mean?"}], **how)
            if tokenizer.open_thought(tokenizer.encode(text)):
                names.add(file.stem.removesuffix("_training"))
    always = {"deepseek_r1_distill", "deepseekv3"}
    thinking = {"qwen3_5_think", "qwen3_6", "qwen3_8"}
    nemotron = {f"nemotron_3_{size}" for size in ("5_lightning", "nano", "super", "ultra")}
    assert opened == (always | thinking | nemotron, always)
