"""The tokenizer of a Hugging Face folder: text to token ids and back.

The algorithm is that of the `tokenizers` package. This file adds the settings that generation needs, which are
scattered over four files: the ids that end a completion, and the padding id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from mlx_grpo_kit.files import check_saved, no_model_folder, one_further_in, read_file, read_json, whole_folder
from mlx_grpo_kit.qwen3.adapter_base import base_of

if TYPE_CHECKING:
    from mlx_grpo_kit.qwen3.chat_template import ChatTemplate

# The files of a tokenizer in a model folder, including generation_config.json for its EOS ids.
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)

# The special tokens that templates may use by name, as in transformers.
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

THINK, END_OF_THOUGHT = "<think>", "</think>"

CHARACTERS = "0123456789+-*/()= abcdefghijklmnopqrstuvwxyz.,:;?!<>&'\"#%^_|\n"


class Tokenizer:
    """A tokenizer, made by `load_tokenizer`.

    Attributes:
        eos_token_ids: every id that ends a completion; at least one.
        pad_token_id: the id that fills the rows of a batch. In some published models it is an EOS id too, so compute
            masks from lengths and never by comparison with it.
        unk_token_id: the id of unknown characters, or None for a tokenizer that can encode anything (as Qwen3's can).
        vocab_size: the number of tokens, including added ones. A model's `vocab_size` is often rounded up.
        chat_template: the chat format of the folder's model, or None for a model that was not trained to chat.
        generation_config: the content of the folder's generation_config.json; {} if there is no such file.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        eos_token_ids: list[int],
        pad_token_id: int,
        unk_token_id: int | None,
        files: dict[str, bytes],
        chat_template: ChatTemplate | None = None,
        generation_config: Mapping[str, Any] | None = None,
    ):
        self._tokenizer = tokenizer
        self._files = files
        self.eos_token_ids = eos_token_ids
        self.pad_token_id = pad_token_id
        self.unk_token_id = unk_token_id
        self.chat_template = chat_template
        self.generation_config = dict(generation_config or {})
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tokenizer's files: two tokenizers with the same hash encode and render identically."""
        files = sha256()
        for name, content in sorted(self._files.items()):
            files.update(f"{name} {len(content)} ".encode() + content)
        return files.hexdigest()

    @cached_property
    def added_tokens(self) -> tuple[str, ...]:
        """The tokens that are matched before a text is split into pieces, such as `<|im_end|>`, longest first."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return tuple(sorted((each.content for each in added), key=len, reverse=True))

    @cached_property
    def added_token_ids(self) -> frozenset[int]:
        """The ids of `added_tokens`."""
        return frozenset(self._tokenizer.get_added_tokens_decoder())

    @cached_property
    def control_token_ids(self) -> frozenset[int]:
        """The ids that `decode` skips, such as that of `<|im_end|>`, without those of the tags of a thought."""
        added = self._tokenizer.get_added_tokens_decoder().items()
        return frozenset(id_ for id_, each in added if each.special and each.content not in (THINK, END_OF_THOUGHT))

    @cached_property
    def start_ids(self) -> list[int]:
        """The ids that a model expects before any text, such as Llama 3's `<|begin_of_text|>`. Qwen3 has none."""
        whole = self._tokenizer.encode("0")
        pairs = zip(whole.ids, whole.special_tokens_mask, strict=True)
        return [id_ for id_, _ in takewhile(lambda pair: pair[1], pairs)]

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without added start or end. A special token written out (`<|im_end|>`) becomes its id.

        Raises:
            ValueError: the tokenizer has no token for a part of the text.
        """
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError:  # raised by the package for text that UTF-8 cannot hold
            if not isinstance(text, str):
                raise
            raise ValueError(
                f"The text {text!r:.80} contains an unpaired surrogate, which is not valid Unicode."
            ) from None
        if self.unk_token_id is not None and self.unk_token_id in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(self.unk_token_id)]
            raise ValueError(
                f"This tokenizer has no token for {text[start:end]!r} (character {start + 1} of {text[:80]!r}). "
                f"Its {self.vocab_size} tokens are {self._tokens()}."
            )
        return encoding.ids

    def render(self, messages: Sequence[Mapping[str, Any]], /, **kwargs: Any) -> str:
        """A chat as the text that the model continues, rendered by the folder's template.

            tokenizer.render([{"role": "user", "content": "12+34?"}], enable_thinking=False)

        The result equals that of `apply_chat_template(..., tokenize=False)` in transformers, except for the default of
        `add_generation_prompt`: the text is ready to be continued. `kwargs` are those of `ChatTemplate.render`:
        `add_generation_prompt`, `continue_final_message`, and the template's settings.

        Raises:
            ChatTemplateError: a ValueError. The folder has no template, the messages are invalid, the template does not
                use a setting, or it rejects the chat, is broken, or exceeds a limit
                (mlx_grpo_kit/qwen3/chat_template.py).
        """
        if self.chat_template is None:
            from mlx_grpo_kit.qwen3.chat_template import ChatTemplateError

            raise ChatTemplateError(
                "This tokenizer's folder has no chat template: neither chat_template.jinja nor a chat_template in "
                "tokenizer_config.json. Its model was not trained to chat; pass the prompt as a string, which it "
                "continues."
            )
        return self.chat_template.render(messages, **kwargs)

    def encode_prompt(self, prompt: str | Sequence[Mapping[str, Any]], **kwargs: Any) -> list[int]:
        """The ids of a prompt: a string after `start_ids`, or a list of messages rendered with `kwargs`.

        The start is not repeated if the string begins with it. A chat's start is written by its template.
        """
        if not isinstance(prompt, str):
            return self.encode(self.render(prompt, **kwargs))
        ids, start = self.encode(prompt), self.start_ids
        return ids if ids[: len(start)] == start else start + ids

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`, with special tokens such as `<|im_end|>` skipped or, on request, written out."""
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def open_thought(self, prompt_ids: Sequence[int]) -> str:
        r"""The end of a prompt from the `<think>` that it leaves open, such as `"<think>\n"`; '' if no thought is open.

        Many templates of thinking models write that tag at the beginning of the answer. A text that only mentions the
        tag opens nothing: the tag must be the end of the prompt, or begin a line after the last control token.
        """
        ids = [*map(int, prompt_ids)]
        start = max((place + 1 for place, each in enumerate(ids) if each in self.control_token_ids), default=0)
        _, closed, said = self.decode(ids[start:], skip_special_tokens=False).rpartition(END_OF_THOUGHT)
        line = r"\n" if closed else r"(?:\A|\n)"
        opened = re.search(rf"{line} *({THINK}.*)", said, re.DOTALL) if start else None
        opened = opened or re.search(rf"({THINK}\s*)\Z", said)
        return opened[1] if opened else ""

    def read(self, completion_ids: Sequence[int], prompt_ids: Sequence[int]) -> str:
        """A completion as rewards and people read it: its text, which begins with the thought that its prompt opened.

        So `<think>` is there if the template wrote it and the model only closes it.
        """
        said = [each for each in map(int, completion_ids) if each not in self.control_token_ids]
        return self.open_thought(prompt_ids) + self.decode(said, skip_special_tokens=False)

    def save(self, folder: Path | str) -> None:
        """Write the tokenizer's files into an existing folder, byte for byte as they were read."""
        for name, content in self._files.items():
            (Path(folder) / name).write_bytes(content)

    def token(self, token_id: int) -> str:
        """One token in the vocabulary's spelling, even a special one: `<eos>` for an id whose `decode` is ''.

        Raises:
            ValueError: there is no such id.
        """
        if not _knows(self._tokenizer, token_id):
            raise ValueError(f"Token id {token_id} is not in the vocabulary, whose ids are 0 to {self.vocab_size - 1}.")
        return self._tokenizer.id_to_token(token_id)

    def _tokens(self) -> str:
        shown = [self.token(i) for i in range(min(self.vocab_size, 80))]
        return " ".join(map(repr, shown)) + (" ..." if self.vocab_size > len(shown) else "")


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """Read the tokenizer of a Hugging Face model folder; for adapters without one, that of their base model.

    Needs `tokenizer.json`. The EOS ids are `eos_token_id` (an int or a list) of `generation_config.json`, else of
    `config.json`, else the `eos_token` of `tokenizer_config.json`: the order of precedence in transformers' `generate`.
    A chat template is read if there is one, from chat_template.jinja or else from tokenizer_config.json, and runs in
    `render`.

    Raises:
        FileNotFoundError: there is no such folder, or no tokenizer.json in it.
        ValueError: a file cannot be read, the files do not name an EOS token, or they name a token that does not exist.
    """
    folder = whole_folder(folder)
    check_saved(folder, ["config.json", *FILES])
    path = folder / "tokenizer.json"
    if not path.exists() and (folder / "adapter_config.json").exists():
        return load_tokenizer(base_of(folder))
    if not folder.is_dir():
        raise FileNotFoundError(no_model_folder(folder))
    if not path.exists():
        way_out = one_further_in(folder, path.name) or (
            " One with only vocab.json and merges.txt can be converted: "
            "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
        raise FileNotFoundError(f"{folder} has no tokenizer.json; expected a Hugging Face model folder.{way_out}")
    content = read_file(path)
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the package raises a bare Exception for anything that it cannot parse
        raise ValueError(
            f"{path} is not a tokenizer that tokenizers {tokenizers.__version__} can read: {error}. "
            "An incomplete download or a Git LFS pointer looks like this; fetch the file again."
        ) from error
    # Some files contain the truncation and padding settings of their author. transformers ignores them too.
    tokenizer.no_truncation()
    tokenizer.no_padding()

    names = _settings(folder, "tokenizer_config.json")
    configs = [_settings(folder, "generation_config.json"), _settings(folder, "config.json")]
    unk = names.get("unk_token")
    eos_token_ids = _eos_token_ids(folder, tokenizer, configs, names)
    return Tokenizer(
        tokenizer,
        eos_token_ids,
        pad_token_id=_pad_token_id(folder, tokenizer, configs, names, default=eos_token_ids[0]),
        unk_token_id=None if unk is None else _id_of(folder, tokenizer, "unk_token", unk),
        # Keep the files in memory: the folder may be gone, or about to be replaced, when a trained policy is saved.
        files={name: read_file(folder / name) for name in FILES if (folder / name).exists()},
        chat_template=_chat_template(folder, names),
        generation_config=configs[0],
    )


def save_character_tokenizer(folder: Path | str) -> None:
    """Write into an existing folder a tokenizer with one token for each of `CHARACTERS`, and its end and padding ids.

    Ids 0, 1 and 2 are `<pad>`, `<eos>` and `<unk>`; the characters follow in their order. It is a byte-pair encoding
    without merges: the state of Qwen3's tokenizer before it learned any.
    """
    special = ["<pad>", "<eos>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*special, *CHARACTERS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = tokenizers.decoders.Fuse()  # without a decoder tokens would be joined with spaces
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(Path(folder) / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,  # else transformers turns " ," into "," when it decodes
    }
    (Path(folder) / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    ends = {"eos_token_id": vocabulary["<eos>"], "pad_token_id": vocabulary["<pad>"]}
    (Path(folder) / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n", encoding="utf-8")


def _settings(folder: Path, name: str) -> dict:
    return read_json(folder, name) if (folder / name).exists() else {}


def _chat_template(folder: Path, names: Mapping[str, Any]) -> ChatTemplate | None:
    """The folder's template, which is compiled on first use."""
    where, source = folder / "chat_template.jinja", names.get("chat_template")
    if where.exists():
        try:
            source = read_file(where).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{where} is not UTF-8 ({error}). It is cut off or corrupt; copy it again.") from error
    elif isinstance(source, list):  # several, by name
        where = folder / "tokenizer_config.json"
        defaults = [each for each in source if isinstance(each, Mapping) and each.get("name") == "default"]
        source = defaults[-1].get("template") if defaults else None
    else:
        where = folder / "tokenizer_config.json"
    if source is None:
        return None
    if not isinstance(source, str):
        raise ValueError(f"{where} has a chat_template that is a {type(source).__name__}; expected a string.")
    from mlx_grpo_kit.qwen3.chat_template import ChatTemplate

    tokens = {role: _text_of(names[role]) for role in SPECIAL_TOKENS if names.get(role) is not None}
    for role, token in tokens.items():
        if not isinstance(token, str):
            raise ValueError(f"{folder}/tokenizer_config.json has {token!r:.80} for {role}; expected a string.")
    return ChatTemplate(source, tokens, f"The chat template in {where}")


def _knows(tokenizer: tokenizers.Tokenizer, token_id: object) -> bool:
    is_id = isinstance(token_id, int) and not isinstance(token_id, bool) and 0 <= token_id < 2**32
    return is_id and tokenizer.id_to_token(token_id) is not None


def _text_of(token: object) -> object:
    """A token in tokenizer_config.json, which is a string or, in older folders, {"content": string}."""
    return token["content"] if isinstance(token, dict) and "content" in token else token


def _id_of(folder: Path, tokenizer: tokenizers.Tokenizer, role: str, token: object) -> int:
    """The id of a token that tokenizer_config.json names."""
    text = _text_of(token)
    try:
        token_id = tokenizer.token_to_id(text)
    except (TypeError, UnicodeEncodeError):  # not a string, or an unpaired surrogate
        token_id = None
    if token_id is None:
        raise ValueError(f"{folder}/tokenizer_config.json names {role} {text!r}, which tokenizer.json does not know.")
    return token_id


def _eos_token_ids(folder: Path, tokenizer: tokenizers.Tokenizer, configs: list[dict], names: dict) -> list[int]:
    found = next((config["eos_token_id"] for config in configs if config.get("eos_token_id") is not None), None)
    if found is None and names.get("eos_token") is not None:
        found = _id_of(folder, tokenizer, "eos_token", names["eos_token"])
    ids = found if isinstance(found, list) else [found]
    if found is None or not ids:
        raise ValueError(
            f"{folder} does not name the token that ends a text, so completions would never stop. "
            'Add "eos_token_id" to generation_config.json or config.json, or "eos_token" to tokenizer_config.json.'
        )
    for token_id in ids:
        if not _knows(tokenizer, token_id):
            raise ValueError(f"{folder}: eos_token_id {token_id!r} is not an id that tokenizer.json knows.")
    return ids


def _pad_token_id(folder: Path, tokenizer: tokenizers.Tokenizer, configs: list[dict], names: dict, default: int) -> int:
    if names.get("pad_token") is not None:
        return _id_of(folder, tokenizer, "pad_token", names["pad_token"])
    found = next((config["pad_token_id"] for config in configs if config.get("pad_token_id") is not None), default)
    if not _knows(tokenizer, found):
        raise ValueError(f"{folder}: pad_token_id {found!r} is not an id that tokenizer.json knows.")
    return found
