"""Text to token ids and back, with the tokenizer files of a Hugging Face folder.

The algorithm itself is the `tokenizers` package's. What is added here is what generation needs to know, and what is
scattered over four files: which ids end a completion, and which one pads.
"""

import json
from pathlib import Path

import tokenizers

from mlx_grpo_kit.files import check_saved, read_file, read_json, whole_folder

# What makes up a tokenizer in a model folder; generation_config.json is among them for its EOS ids.
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

CHARACTERS = "0123456789+-*/()= abcdefghijklmnopqrstuvwxyz.,:;?!<>&'\"#%^_|\n"


class Tokenizer:
    """Made by `load_tokenizer`.

    Attributes:
        eos_token_ids: every id that ends a completion; at least one.
        pad_token_id: the id that fills the rows of a batch. In some published models it is an EOS id too, so masks must
            come from lengths and never from comparing with it.
        unk_token_id: the id of unknown characters, or None for a tokenizer that can write anything (Qwen3's can).
        vocab_size: number of tokens, added ones included. A model's `vocab_size` is often larger, rounded up.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        eos_token_ids: list[int],
        pad_token_id: int,
        unk_token_id: int | None,
        files: dict[str, bytes],
    ):
        self._tokenizer = tokenizer
        self._files = files
        self.eos_token_ids = eos_token_ids
        self.pad_token_id = pad_token_id
        self.unk_token_id = unk_token_id
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, nothing put before or after. A special token written out (`<|im_end|>`) becomes its id.

        Raises:
            ValueError: the tokenizer has no token for a part of the text.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        if self.unk_token_id is not None and self.unk_token_id in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(self.unk_token_id)]
            raise ValueError(
                f"This tokenizer has no token for {text[start:end]!r} (character {start + 1} of {text[:80]!r}). "
                f"Its {self.vocab_size} tokens are {self._tokens()}."
            )
        return encoding.ids

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def save(self, folder: Path | str) -> None:
        """Writes the tokenizer's files into an existing folder, byte for byte as they were when they were read."""
        for name, content in self._files.items():
            (Path(folder) / name).write_bytes(content)

    def token(self, token_id: int) -> str:
        """One token as the vocabulary spells it, special ones too: `<eos>` for an id whose `decode` is ''.

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
    """Reads the tokenizer of a Hugging Face model folder.

    Needs `tokenizer.json`. The EOS ids are `eos_token_id` (an int or a list) of `generation_config.json`, else of
    `config.json`, else the `eos_token` of `tokenizer_config.json`: the order in which transformers' `generate` looks.
    Chat templates are not applied: a prompt is tokenized as it stands.

    Raises:
        FileNotFoundError: there is no such folder, or no tokenizer.json in it.
        ValueError: a file cannot be read, the files name no EOS, or they name a token that does not exist.
    """
    folder = whole_folder(folder)
    check_saved(folder, ["config.json", *FILES])
    path = folder / "tokenizer.json"
    if not path.exists():
        what = "has no tokenizer.json" if folder.is_dir() else "is not a folder"
        raise FileNotFoundError(
            f"{folder} {what}. Expected a Hugging Face model folder; one with only vocab.json and merges.txt can be "
            "converted: transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    content = read_file(path)
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the package raises bare Exception for whatever it cannot parse
        raise ValueError(
            f"{path} is not a tokenizer that tokenizers {tokenizers.__version__} can read: {error}. "
            "A download cut short or a Git LFS pointer looks like this; fetch the file again."
        ) from error
    # Some files carry the truncation and padding of whoever saved them; transformers does not obey them either.
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
        # Kept in memory: the folder may be gone, or just being replaced, when a trained policy is saved.
        files={name: read_file(folder / name) for name in FILES if (folder / name).exists()},
    )


def save_character_tokenizer(folder: Path | str, characters: str = CHARACTERS) -> None:
    """Writes the files of a tokenizer with one token a character; generation_config.json says which ids end and pad.

    Ids 0, 1 and 2 are `<pad>`, `<eos>` and `<unk>`; the characters follow in their order. It is a byte-pair encoding
    without a single merge: what Qwen3's tokenizer was before it learned any.

    Args:
        folder: an existing one.
        characters: distinct characters.
    """
    special = ["<pad>", "<eos>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*special, *characters])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = tokenizers.decoders.Fuse()  # joins with nothing; without a decoder it would join with spaces
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


def _knows(tokenizer: tokenizers.Tokenizer, token_id: object) -> bool:
    is_id = isinstance(token_id, int) and not isinstance(token_id, bool) and 0 <= token_id < 2**32
    return is_id and tokenizer.id_to_token(token_id) is not None


def _id_of(folder: Path, tokenizer: tokenizers.Tokenizer, role: str, token: str | dict) -> int:
    """The id of a token that tokenizer_config.json names as a string or, in older folders, as {"content": string}."""
    text = token["content"] if isinstance(token, dict) and "content" in token else token
    try:
        token_id = tokenizer.token_to_id(text)
    except (TypeError, UnicodeEncodeError):  # no text, or half of a character that UTF-16 writes as two
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
            f"{folder} does not say which token ends a text, so no completion would ever stop. "
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
