"""Batched generation: prompts -> completions with their log-probabilities, token by token or all at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from mlx_grpo_kit.generation.decoder import Decoder, MLXDecoder
from mlx_grpo_kit.generation.padding import (
    TokenIds,
    check_completion,
    check_prompts,
    check_tokens,
    fold_groups,
)
from mlx_grpo_kit.generation.sampling import SamplingConfig, check_whole
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.fork import refuse_after_fork

Stop = Callable[[Sequence[int]], bool]
"""A function of a row's tokens so far that returns True if the row ends with the last of them."""

Reply = Callable[[Mapping[int, list[int]]], Mapping[int, Sequence[int]]]
"""A function of the rows whose turn has ended, {row: tokens so far}, that returns replies, {row: new tokens}.

A row is the index of its prompt in `prompts`. Rows without a reply end. Rows whose reply does not fit within
`max_new_tokens` end too, and the reply is dropped.
"""

MakeDecoder = Callable[[Qwen3Config, Mapping[str, mx.array], SamplingConfig, mx.array], Decoder]
"""A class of `Decoder`, or a function with its arguments (config, params, sampling, row_keys)."""

BLOCK = 32  # the cache grows by this many positions, so the past is copied once per 32 tokens and not with every token
LEAVING = 16  # rows leave the batch in multiples of 1/16 of it, so that few shapes are compiled


@dataclass(frozen=True)
class Rollout:
    """Generated completions, one entry per prompt.

    Attributes:
        completions: token ids, including the end token and the replies between turns.
        logps: the log-probability of each token under softmax(logits / temperature), before filters. This is the
            trained policy's distribution, so these are the `old_logps` of its loss. 0 for a reply's tokens.
        entropies: the entropy of the same softmax at each token, in nats. 0 for a reply's tokens.
        finished: True if the completion ended by an end token or by `stop`, False if at max_new_tokens.
        token_mask: True for each token that the model sampled, False for those of a reply.
    """

    completions: list[list[int]]
    logps: list[list[float]]
    entropies: list[list[float]]
    finished: list[bool]
    token_mask: list[list[bool]]


class TokenStep(NamedTuple):
    """One decoding step of every row. Rows that had ended before hold arbitrary values.

    Attributes:
        tokens: int32 [B].
        logps: float32 [B], as in `Rollout`.
        entropies: float32 [B].
        ended: bool [B], True if the row's completion ended with this token or before it.
        drawn: bool [B], False if the token is from a reply.
    """

    tokens: np.ndarray
    logps: np.ndarray
    entropies: np.ndarray
    ended: np.ndarray
    drawn: np.ndarray


def generate(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    prompts: Sequence[TokenIds],
    *,
    sampling: SamplingConfig | None = None,
    eos_token_ids: Collection[int] = (),
    stop: Stop | None = None,
    reply: Reply | None = None,
    seed: int = 0,
    first_row: int = 0,
    num_rows: int | None = None,
    completion_batch_size: int | None = None,
    decoder: MakeDecoder = MLXDecoder,
) -> Rollout:
    """Continue every prompt until one of `eos_token_ids`, until `stop`, or for `sampling.max_new_tokens` tokens.

    Prompts may differ in length. Equal adjacent prompts in groups of one size, as in GRPO, are computed once per group.
    The same seed and arguments give the same rollout on the same machine. `stop` gets a row's tokens so far after each
    token; the tokens on which it ends stay in the completion. (`stop_at` makes a `stop` from strings.)

    With `reply` a completion has several turns. When a row's turn ends, by an end token or by `stop`, `reply` may
    return tokens to append, such as the result of a tool; then the model continues. Nothing is computed twice: appended
    tokens pass through the model one by one like sampled ones, while other rows sample theirs.

    A large batch may be generated in pieces: then `prompts` are the rows of a batch of `num_rows` from `first_row` on,
        and each row uses the random numbers that it would have in the whole batch. `completion_batch_size` (mlx-lm's
        name) does this for you, with at most that many rows at once and a key-value cache for those; logits may differ
        by rounding.

    `decoder` computes the tokens: MLX's, or another class of `Decoder`, such as `grpo.learners.torch_decoder`'s.

    Raises:
        ValueError: no prompts, an empty one, token ids outside the vocabulary, an end token outside it, more tokens
            than the model has positions, a seed outside of 0 to 2^64 - 1, or rows outside the batch of `num_rows`.
        TypeError: a prompt that is not a list of token ids, such as text; a `stop` or `reply` that is not a function.
    """
    if num_rows is None:
        num_rows = len(prompts)
    if completion_batch_size is not None:
        check_whole("completion_batch_size", completion_batch_size)
        if completion_batch_size < 1:
            raise ValueError(f"completion_batch_size is {completion_batch_size}; expected at least 1.")
    how = {"sampling": sampling, "stop": stop, "seed": seed, "num_rows": num_rows, "decoder": decoder}
    if completion_batch_size is not None and len(prompts) > completion_batch_size:
        how["eos_token_ids"] = _checked_ends(config, eos_token_ids)
        pieces = []
        for start in range(0, len(prompts), completion_batch_size):
            piece, replies = prompts[start : start + completion_batch_size], _for_rows_from(start, reply)
            pieces.append(generate(config, params, piece, reply=replies, first_row=first_row + start, **how))
        return Rollout(*([row for piece in pieces for row in getattr(piece, f.name)] for f in fields(Rollout)))
    how |= {"eos_token_ids": eos_token_ids, "reply": reply, "first_row": first_row}
    steps = [*generate_tokens(config, params, prompts, **how)]
    tokens, logps, entropies, ended, drawn = (np.stack(each, axis=1) for each in zip(*steps, strict=True))
    finished = ended[:, -1]
    lengths = np.where(finished, ended.argmax(axis=1) + 1, ended.shape[1]).tolist()

    def cut(rows: np.ndarray) -> list[list]:
        return [row[:length] for row, length in zip(rows.tolist(), lengths, strict=True)]

    return Rollout(cut(tokens), cut(logps), cut(entropies), finished.tolist(), cut(drawn))


def _for_rows_from(start: int, reply: Reply | None) -> Reply | None:
    """`reply` for a piece of the batch whose first row is `start`."""
    if reply is None:
        return None
    return lambda ended: {
        row - start: ids for row, ids in reply({row + start: ids for row, ids in ended.items()}).items()
    }


def generate_tokens(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    prompts: Sequence[TokenIds],
    *,
    sampling: SamplingConfig | None = None,
    eos_token_ids: Collection[int] = (),
    stop: Stop | None = None,
    reply: Reply | None = None,
    seed: int = 0,
    first_row: int = 0,
    num_rows: int | None = None,
    decoder: MakeDecoder = MLXDecoder,
) -> Iterator[TokenStep]:
    """Generate like `generate`, but yield after every token, to show or steer the generation.

    The iterator ends when every row has ended; leave the loop to stop earlier. Arguments and errors are those of
    `generate`.
    """
    refuse_after_fork()
    sampling = sampling or SamplingConfig()
    check_prompts(config, prompts, sampling.max_new_tokens)
    ends = _checked_ends(config, eos_token_ids)
    if stop is not None and not callable(stop):
        raise TypeError(
            f"stop is {stop!r}; expected a function of a row's tokens. stop_at(tokenizer.decode, [...]) makes one from "
            "strings."
        )
    if reply is not None and not callable(reply):
        raise TypeError(f"reply is {reply!r}; expected a function: {{row: its tokens so far}} -> {{row: new tokens}}.")
    check_whole("seed", seed)
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}; expected 0 to 2^64 - 1.")
    num_rows = len(prompts) if num_rows is None else num_rows
    for name, number in (("first_row", first_row), ("num_rows", num_rows)):
        check_whole(name, number)
    # Missing keys would be broadcast, so rows would get equal random numbers.
    if not 0 <= first_row <= num_rows - len(prompts):
        raise ValueError(
            f"first_row is {first_row}; {len(prompts)} prompts from there on do not fit into a batch of {num_rows} "
            "rows."
        )
    turns = _Turns(config, len(prompts), ends, stop, reply, sampling.max_new_tokens)
    # Every row has its own key, so its random numbers do not depend on the other rows.
    row_keys = mx.random.split(mx.random.key(seed), num_rows)[first_row : first_row + len(prompts)]
    return _token_steps(decoder(config, params, sampling, row_keys), prompts, sampling.max_new_tokens, turns)


def _checked_ends(config: Qwen3Config, eos_token_ids: Collection[int]) -> list[int]:
    try:
        ends = sorted(eos_token_ids)
    except TypeError:
        raise TypeError(f"eos_token_ids is {eos_token_ids!r}; expected a list or a set of token ids.") from None
    if ends:
        check_tokens(config, ends, "eos_token_ids")
    return [int(end) for end in ends]


def _token_steps(
    decoder: Decoder,
    prompts: Sequence[TokenIds],
    max_new_tokens: int,
    turns: _Turns,
) -> Iterator[TokenStep]:
    drawn = decoder.start(*fold_groups(prompts))
    rows = np.arange(len(prompts))  # rows that are still in the batch
    for step in range(1, max_new_tokens + 1):
        current = turns.with_replies(rows, drawn)
        if step < max_new_tokens:
            # The next token is computed while this one is examined; that is wasted if every row ends here.
            tokens = current[0]
            if decoder.is_full:
                kept = turns.kept(rows)
                if len(kept) < len(rows):  # the cache is copied anyway, so drop rows that have ended
                    rows, tokens = rows[kept], tokens[mx.array(kept)]
                    decoder.keep(kept)
                decoder.reserve(min(BLOCK, max_new_tokens - step))
            drawn = decoder.next(tokens, step)
        yield turns.look(*current)
        if turns.ended.all():
            return


class _Turns:
    """The state of each row of the batch: its tokens, the replies that wait for it, and whether it has ended."""

    def __init__(
        self, config: Qwen3Config, num_rows: int, ends: list[int], stop: Stop | None, reply: Reply | None, room: int
    ):
        self.config, self.ends, self.stop, self.reply, self.room = config, ends, stop, reply, room
        self.ended = np.zeros(num_rows, bool)
        self.rows = np.arange(num_rows)  # the rows of the tokens that are examined next
        self.so_far: list[list[int]] = [[] for _ in range(num_rows)]
        self.waiting: dict[int, list[int]] = {}  # tokens of replies that have not passed through the model yet
        self.replied = np.zeros(num_rows, bool)

    def with_replies(self, rows: np.ndarray, drawn: Sequence[mx.array]) -> Sequence[mx.array]:
        """The tokens sampled for these rows, or the next token of a waiting reply."""
        self.rows, self.replied = rows, np.isin(rows, [*self.waiting])
        if not self.waiting:
            return drawn
        given = np.array([self.waiting[row].pop(0) if row in self.waiting else 0 for row in rows.tolist()], np.int32)
        self.waiting = {row: tokens for row, tokens in self.waiting.items() if tokens}
        return mx.where(mx.array(self.replied), mx.array(given), drawn[0]), *drawn[1:]

    def look(self, tokens: mx.array, logps: mx.array, entropies: mx.array) -> TokenStep:
        """Record one token of each row in the batch, and return the step of all rows."""
        found = TokenStep(*(np.zeros(len(self.ended), kind) for kind in (np.int32, np.float32, np.float32, bool, bool)))
        found.tokens[self.rows] = np.array(tokens)
        found.logps[self.rows] = np.where(self.replied, 0, np.array(logps))
        found.entropies[self.rows] = np.where(self.replied, 0, np.array(entropies))
        found.drawn[self.rows] = ~self.replied
        turn_ends = found.drawn & np.isin(found.tokens, self.ends) & ~self.ended
        if self.stop is not None or self.reply is not None:
            for row in np.flatnonzero(~self.ended).tolist():
                self.so_far[row].append(int(found.tokens[row]))
                if self.stop is not None and found.drawn[row]:
                    turn_ends[row] |= bool(self.stop(self.so_far[row]))
        if self.reply is not None and turn_ends.any():
            turn_ends[self._replies(np.flatnonzero(turn_ends).tolist())] = False
        self.ended = self.ended | turn_ends
        return found._replace(ended=self.ended)

    def _replies(self, rows: list[int]) -> list[int]:
        """Ask for replies to these rows, and return the rows that continue with one."""
        replies = self.reply({row: [*self.so_far[row]] for row in rows})
        if unknown := sorted(set(replies) - {*rows}):
            raise ValueError(f"reply returned tokens for row {unknown[0]}; the turns that ended belong to rows {rows}.")
        for row, ids in replies.items():
            check_completion(self.config, ids, f"the reply to row {row}")
            if len(self.so_far[row]) + len(ids) <= self.room:
                self.waiting[row] = [*map(int, ids)]
        return [row for row in rows if row in self.waiting]

    def kept(self, rows: np.ndarray) -> np.ndarray:
        """The indices of the rows that stay in the batch: those that continue, and ended ones up to a round number."""
        step = max(len(self.ended) // LEAVING, 1)
        going_on = ~self.ended[rows]
        count = min(-(-going_on.sum() // step) * step, len(rows))
        return np.sort(np.argsort(~going_on, kind="stable")[:count])


def stop_at(decode: Callable[[list[int]], str], strings: Collection[str]) -> Stop:
    """Return a `stop` for `generate` that ends a row as soon as its text contains one of `strings`, which stays in it.

    Args:
        decode: token ids -> text, from a tokenizer. For stop strings such as `<|im_start|>` it must keep special
            tokens: `partial(tokenizer.decode, skip_special_tokens=False)`.
        strings: at least one non-empty string.

    Raises:
        ValueError: `strings` is anything else.
        TypeError: `decode` is not a function, but a tokenizer, for example.
    """
    if not callable(decode):
        raise TypeError(f"decode is a {type(decode).__name__}; expected a function, such as tokenizer.decode.")
    is_list = isinstance(strings, Collection) and not isinstance(strings, str)
    if not is_list or not strings or not all(isinstance(each, str) and each for each in strings):
        raise ValueError(f"stop strings are {strings!r}; expected a list of non-empty strings.")
    # A character has at most four tokens, one per byte. An earlier occurrence would have ended the row before.
    tail = 4 * max(map(len, strings))
    return lambda tokens: any(string in decode([*tokens[-tail:]]) for string in strings)
