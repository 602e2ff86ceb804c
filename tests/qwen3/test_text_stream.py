"""Tokens as text that can be shown at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_grpo_kit.assets import TINY, TINY_CHAT
from mlx_grpo_kit.qwen3.text_stream import TextStream
from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer

CHAT = load_tokenizer(TINY_CHAT)


def pieces(tokenizer, ids):
    stream = TextStream(tokenizer.decode)
    return [*(stream.add(token) for token in ids), stream.end()]


@pytest.mark.parametrize(
    "text", ["na\u00efve \U0001f600!", "\u4f60\u597d", "\U0001f468\u200d\U0001f469\u200d\U0001f467 ", "a", ""]
)
def test_characters_of_several_tokens_come_whole(text):
    ids = CHAT.encode(text)
    shown = pieces(CHAT, ids)
    assert "".join(shown) == text
    assert not any("\ufffd" in piece for piece in shown)
    for piece in shown:
        piece.encode("utf-8")


@given(st.lists(st.integers(0, CHAT.vocab_size - 1), max_size=30))
def test_pieces_are_together_what_decode_says(ids):
    assert "".join(pieces(CHAT, ids)) == CHAT.decode(ids)


@given(st.text(max_size=30))
def test_any_text_comes_back(text):
    ids = CHAT.encode(text.encode("utf-8", "ignore").decode())
    assert "".join(pieces(CHAT, ids)) == CHAT.decode(ids)


def test_text_comes_as_soon_as_it_can():
    assert pieces(CHAT, CHAT.encode("12+34")) == ["1", "2", "+", "3", "4", ""]
    tiny = load_tokenizer(TINY)
    assert pieces(tiny, tiny.encode("46")) == ["4", "6", ""]


def test_bytes_that_are_no_character_are_said_at_the_end():
    half = CHAT.encode("\U0001f600")[:-1]
    assert pieces(CHAT, half)[-1] == "\ufffd"
