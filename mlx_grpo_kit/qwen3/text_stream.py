"""Tokens that come one by one, as text that can be shown at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class TextStream:
    """Turns a completion's tokens into pieces of text, which together are `decode` of all of them.

    A token of a byte-level vocabulary may hold a part of a character, of an emoji a quarter. Such bytes are kept back
    until the character is whole. Only the last few tokens are decoded at a time, together with those of the piece
    before, because decoders may treat the first token of a text as something else than a later one.

        stream = TextStream(tokenizer.decode)
        for token in tokens: print(stream.add(token), end="", flush=True)
        print(stream.end())
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]):
        self._decode = decode
        self._tokens: list[int] = []  # those of the piece before, and those that were not shown yet
        self._num_shown = 0

    def add(self, token: int) -> str:
        """The text that is certain now; '' while a character is not whole."""
        self._tokens.append(token)
        return self._new(final=False)

    def end(self) -> str:
        """The text that was held back, with U+FFFD for bytes that are not a character."""
        return self._new(final=True)

    def _new(self, final: bool) -> str:
        before = self._decode(self._tokens[: self._num_shown])
        text = self._decode(self._tokens)
        if len(text) <= len(before) or (text.endswith("\ufffd") and not final):
            return ""
        self._tokens = self._tokens[self._num_shown :]
        self._num_shown = len(self._tokens)
        return text[len(before) :]
