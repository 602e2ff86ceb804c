"""Text from tokens that arrive one by one, for immediate display."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class TextStream:
    """Convert a completion's tokens to pieces of text, which together equal `decode` of all tokens.

    A token of a byte-level vocabulary may contain a part of a character, such as a quarter of an emoji. Such bytes are
    kept back until the character is complete. Only the last few tokens are decoded at a time, together with those of
    the previous piece, because decoders may treat the first token of a text differently.

        stream = TextStream(tokenizer.decode)
        for token in tokens: print(stream.add(token), end="", flush=True)
        print(stream.end())
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]):
        self._decode = decode
        self._tokens: list[int] = []  # tokens of the previous piece, and those not shown yet
        self._num_shown = 0

    def add(self, token: int) -> str:
        """Add a token, and return the text that is now certain; '' while a character is incomplete."""
        self._tokens.append(token)
        return self._new(final=False)

    def end(self) -> str:
        """Return the text that was held back, with U+FFFD for bytes that are not a character."""
        return self._new(final=True)

    def _new(self, final: bool) -> str:
        before = self._decode(self._tokens[: self._num_shown])
        text = self._decode(self._tokens)
        if len(text) <= len(before) or (text.endswith("\ufffd") and not final):
            return ""
        self._tokens = self._tokens[self._num_shown :]
        self._num_shown = len(self._tokens)
        return text[len(before) :]
