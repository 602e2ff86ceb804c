"""The batch of a GRPO step: completions, their scores and their advantages, as named columns.

Every column has one entry per completion. The completions of a prompt are adjacent, so each run of `num_generations`
rows is a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mlx_grpo_kit.tasks.task import Problem, prompt_text


@dataclass(frozen=True)
class Conversation:
    """The turns of a completion that may call tools.

    Attributes:
        messages: the turns as a chat, including those of tools: TRL's form of a completion.
        environment: the rollout's environment; None if the task has none, and for completions of another process.
        num_calls: the number of tool calls.
        num_failures: the number of calls that returned an error.
    """

    messages: list[dict[str, Any]]
    environment: Any = None
    num_calls: int = 0
    num_failures: int = 0


@dataclass(frozen=True)
class Completion:
    """One sampled completion with its rewards and its advantage.

    `rewards` is by function, None if a function did not apply. `group` is the number of its group in the step, from 0.
    `advantage` is a number, or a list with one per token. If the completion may call tools, `messages` are its turns,
    `completion` is the text of the last turn, and `token_mask` is False for tokens that the policy did not write.
    """

    problem: Problem
    prompt: str
    prompt_ids: list[int]
    completion: str
    completion_ids: list[int]
    logps: list[float]
    entropies: list[float]
    finished: bool
    rewards: dict[str, float | None]
    reward: float
    advantage: float | list[float]
    group: int = 0
    token_mask: list[bool] | None = None
    messages: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Completions:
    """N sampled completions, group after group.

    Attributes:
        num_generations: completions per group.
        problems: [N].
        prompt_ids, completion_ids: N lists of token ids; the end token is kept.
        texts: [N], the completions as `Tokenizer.read` decodes them; only the last turn of a completion with several
            turns. If the prompt, or a tool's result, left a thought open, the text begins with that `<think>`.
        token_mask: N lists of bool, True for the tokens that the policy wrote. The loss counts only these.
        logps, entropies: N lists of floats, as in `Rollout`.
        finished: bool [N], False if the completion was cut off at the maximum length.
        conversations: [N], the turns of each completion; None if the task has no tools.
        on_policy: True if the policy that learns wrote them itself. Then every ratio of the first update is exactly 1.
            Otherwise `logps` are the denominators of the ratios.
    """

    num_generations: int
    problems: list[Problem]
    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    texts: list[str]
    token_mask: list[list[bool]]
    logps: list[list[float]]
    entropies: list[list[float]]
    finished: np.ndarray
    conversations: list[Conversation | None]
    on_policy: bool = True

    @classmethod
    def from_lists(
        cls,
        num_generations: int,
        problems: Sequence[Problem],
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
        texts: Sequence[str],
        *,
        logps: Sequence[Sequence[float]] | None = None,
        entropies: Sequence[Sequence[float]] | None = None,
        token_mask: Sequence[Sequence[bool]] | None = None,
        finished: Sequence[bool] | None = None,
    ) -> Completions:
        """Completions from any source, for a sampler of your own.

        With `logps` the completions count as written by another policy (`on_policy` is False). Missing entropies become
        NaN, and then no group is skipped in learning. `finished` and `token_mask` are True by default.

        Raises ValueError for columns of different lengths and for incomplete groups.
        """
        ids = [[*map(int, row)] for row in completion_ids]
        unknown = [[math.nan] * len(row) for row in ids]
        found = cls(
            num_generations=num_generations,
            problems=[*problems],
            prompt_ids=[[*map(int, row)] for row in prompt_ids],
            completion_ids=ids,
            texts=[*texts],
            token_mask=[[True] * len(row) for row in ids]
            if token_mask is None
            else [[*map(bool, row)] for row in token_mask],
            logps=unknown if logps is None else [[*map(float, row)] for row in logps],
            entropies=unknown if entropies is None else [[*map(float, row)] for row in entropies],
            finished=np.ones(len(ids), bool) if finished is None else np.array(finished, bool),
            conversations=[None] * len(ids),
            on_policy=logps is None,
        )
        found.check()
        return found

    def __len__(self) -> int:
        return len(self.completion_ids)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each completion: int [N]."""
        return np.array([*map(len, self.completion_ids)], int)

    @property
    def drawn_lengths(self) -> np.ndarray:
        """The number of tokens in each completion that the policy wrote: int [N]."""
        return np.array([*map(sum, self.token_mask)], int)

    def rows(self, which: Sequence[int] | range) -> Completions:
        """The completions of these rows, in this order."""
        return self._of_columns(lambda values, of: [values[row] for row in which], self)

    def with_rows(self, which: Sequence[int], others: Completions) -> Completions:
        """These, with the rows `which` replaced by all rows of `others`."""
        new = dict(zip(which, range(len(which)), strict=True))
        return self._of_columns(
            lambda values, of: [of[new[row]] if row in new else value for row, value in enumerate(values)], others
        )

    def _of_columns(self, change: Callable[[Any, Any], list], others: Completions) -> Completions:
        columns = [each.name for each in fields(self) if each.name not in ("num_generations", "on_policy")]
        changed = {name: change(getattr(self, name), getattr(others, name)) for name in columns}
        return replace(self, **changed | {"finished": np.array(changed["finished"], bool)})

    def check(self) -> None:
        """Raise ValueError for columns of different lengths and for incomplete groups."""
        count = len(self)
        for each in fields(self):
            column = getattr(self, each.name)
            if each.name not in ("num_generations", "on_policy") and len(column) != count:
                raise ValueError(f"Column {each.name!r} has {len(column)} rows; expected {count}, one per completion.")
        for name in ("token_mask", "logps", "entropies"):
            for row, (values, ids) in enumerate(zip(getattr(self, name), self.completion_ids, strict=True)):
                if len(values) != len(ids):
                    raise ValueError(
                        f"{name}[{row}] has {len(values)} entries for a completion of {len(ids)} tokens; expected one "
                        "per token."
                    )
        if not count or count % self.num_generations:
            raise ValueError(
                f"{count} completions do not divide into groups of num_generations={self.num_generations}; expected "
                "num_generations completions for every prompt."
            )


@dataclass(frozen=True)
class Scores:
    """The rewards of N completions by F functions.

    Attributes:
        names: the functions' names.
        values: float64 [N, F], NaN if a function does not apply.
        failed: [N] by function, 1.0 for a completion on which it failed; empty if a failure ends the run.
    """

    names: tuple[str, ...]
    values: np.ndarray
    failed: dict[str, np.ndarray]

    @property
    def by_name(self) -> dict[str, np.ndarray]:
        """Each function's column, [N]."""
        return dict(zip(self.names, self.values.T, strict=True))

    def with_rows(self, which: Sequence[int], others: Scores) -> Scores:
        """These, with the rows `which` replaced by all rows of `others`."""
        values, failed = self.values.copy(), {name: column.copy() for name, column in self.failed.items()}
        values[which] = others.values
        for name, column in failed.items():
            column[which] = others.failed[name]
        return Scores(self.names, values, failed)


@dataclass(frozen=True)
class Batch:
    """The data that one step learns from.

    Attributes:
        completions, scores: N rows each.
        rewards: float64 [N], the weighted sum of each completion's rewards; NaN if no function applies.
        advantages: float32 [N], or [N, T] with one per token.
        drawn: the rewards of all sampled groups, one array [groups, num_generations] per round of sampling.
    """

    completions: Completions
    scores: Scores
    rewards: np.ndarray
    advantages: np.ndarray
    drawn: tuple[np.ndarray, ...] = ()

    def __post_init__(self):
        count, width = len(self.completions), int(self.completions.lengths.max())
        advantages = np.asarray(self.advantages, np.float32)
        if advantages.shape[:1] != (count,) or advantages.shape[1:] not in ((), (width,)):
            raise ValueError(
                f"advantages has shape {advantages.shape}; expected ({count},), one per completion, or "
                f"({count}, {width}), one per token."
            )
        counted = padded(self.completions.token_mask, width)
        wrong = ~np.isfinite(advantages) & (counted if advantages.ndim == 2 else True)
        if wrong.any():
            raise ValueError(f"The advantage of completion {int(np.argwhere(wrong)[0, 0])} is not finite.")
        object.__setattr__(self, "advantages", advantages)
        object.__setattr__(self, "rewards", np.asarray(self.rewards, np.float64))
        if not self.drawn:
            object.__setattr__(self, "drawn", (self._groups(self.rewards),))

    def groups_without_advantage(self) -> list[int]:
        """The numbers of the groups that teach nothing, because all their advantages are 0."""
        return np.flatnonzero(~self._groups(self.advantages != 0).any(axis=1)).tolist()

    def with_groups(self, groups: Sequence[int], fresh: Completions, scores: Scores, advantages: Callable) -> Batch:
        """This batch, with some groups replaced by fresh ones and all groups compared again."""
        size = self.completions.num_generations
        which = [group * size + row for group in groups for row in range(size)]
        completions = self.completions.with_rows(which, fresh)
        scores = self.scores.with_rows(which, scores)
        batch = Batch(completions, scores, *advantages(completions, scores))
        return replace(batch, drawn=(*self.drawn, self._groups(batch.rewards)[groups]))

    def records(self) -> list[Completion]:
        """One record per completion, for people and files."""
        these, by_name = self.completions, {name: values.tolist() for name, values in self.scores.by_name.items()}
        rewards, advantages = self.rewards.tolist(), self.advantages.tolist()
        return [
            Completion(
                problem=these.problems[row],
                prompt=prompt_text(these.problems[row].prompt),
                prompt_ids=these.prompt_ids[row],
                completion=these.texts[row],
                completion_ids=these.completion_ids[row],
                logps=these.logps[row],
                entropies=these.entropies[row],
                finished=bool(these.finished[row]),
                rewards={name: None if math.isnan(values[row]) else values[row] for name, values in by_name.items()},
                reward=rewards[row],
                advantage=advantages[row],
                group=row // these.num_generations,
                token_mask=these.token_mask[row],
                messages=each.messages if (each := these.conversations[row]) else None,
            )
            for row in range(len(these))
        ]

    def _groups(self, column: np.ndarray) -> np.ndarray:
        """[N, ...] -> [number of groups, everything of a group]."""
        return column.reshape(len(self.completions) // self.completions.num_generations, -1)


def last_turn(token_mask: Sequence[bool]) -> int:
    """The place of the first token in the policy's last turn, after all tool results."""
    return max((place + 1 for place, drawn in enumerate(token_mask) if not drawn), default=0)


def padded(rows: Sequence[Sequence], width: int | None = None) -> np.ndarray:
    """N lists of numbers -> [N, width], padded with 0 on the right; width None means that of the longest list."""
    width = max(map(len, rows)) if width is None else width
    kind = bool if any(row and isinstance(row[0], bool) for row in rows) else np.float64
    table = np.zeros([len(rows), width], kind)
    for row, values in enumerate(rows):
        table[row, : len(values)] = values
    return table
