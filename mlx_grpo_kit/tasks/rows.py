"""A task from rows: a list of dictionaries, a file of JSON lines, or a data set of Hugging Face's `datasets`.

    task = RowsTask.from_file("problems.jsonl")                                      # {"question": ..., "answer": ...}
    task = RowsTask(load_dataset("openai/gsm8k", "main")["train"])                   # with `datasets` installed
    task = RowsTask(rows, reward_funcs=[mine], is_correct=lambda problem, text: ...)
    task = RowsTask(rows, system="You are a pupil.").in_chat()                       # for a model that chats

GSM8K's answers end in `#### 42` and MATH's contain `\\boxed{42}`: only that part is the answer. Answers that are
numbers are compared as numbers. In the terminal: `train --data problems.jsonl`.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from decimal import Decimal
from numbers import Rational, Real
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mlx_grpo_kit.files import check_regular
from mlx_grpo_kit.runtime.habits import names_habits
from mlx_grpo_kit.tasks.answers import MAX_NUMBER, after_mark, as_number, comparable, final_answer, without_words
from mlx_grpo_kit.tasks.chat import ANSWER_TOKENS, IN_TAGS, InChat
from mlx_grpo_kit.tasks.countdown import is_game, is_solution, left_of_equals
from mlx_grpo_kit.tasks.signatures import as_reward_funcs
from mlx_grpo_kit.tasks.split import HELD_OUT_FRACTION, split_by_hash
from mlx_grpo_kit.tasks.task import Problem, RewardFunc, TaskError, is_chat

MAX_LINE = 2**20
"""The maximum number of bytes per line; a small model cannot read a longer problem."""

MAX_ROWS = 1_000_000
PROMPTS, ANSWERS = ("prompt", "question", "problem"), ("answer", "solution", "target")
"""Names of columns that are tried, in this order."""


def correct(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """1.0 if the final answer is the row's, as `same_answer` compares them, else 0.0."""
    return [float(same_answer(problem, text)) for problem, text in zip(problems, completions, strict=True)]


def same_answer(problem: Problem, completion: str) -> bool:
    """True if a completion's `final_answer` is the problem's answer, line by line (`comparable`).

    For a row of Countdown, with a target and numbers and without an answer: if it is an expression, or an equation,
    that uses each number once and equals the target.
    """
    if not problem.answer and is_game(problem.data):
        return is_solution(problem, left_of_equals(completion))
    right, lines = as_number(problem.answer), _lines(problem.answer)
    if right is not None:
        return as_number(final_answer(completion)) == right
    return bool(lines) and _lines(final_answer(completion, len(lines), words=True)) == lines


def _lines(answer: str) -> list[Any]:
    """The lines of an answer that are not blank, in a form that is equal for equal answers."""
    return [comparable(line) for line in answer.split("\n") if line.strip()]


@names_habits("argument")
class RowsTask:
    """Problems from rows, with a tenth of them held out by the hash of their prompt.

    So a question stays on the same side if you reorder rows or add some, except for a few at the border. Rows with the
    same prompt are on the same side. With `environment_factory`, where often all rows have the same prompt, each row
    counts for itself. The columns of a row are `Problem.data`, and reward functions in TRL's form get them.

    Prompts that are strings are continued as they are. For a chat model, give the trainer `RowsTask(rows).in_chat()`:
    it asks the questions through the folder's chat template, with an instruction on how to answer.

    Args:
        rows: dictionaries, each with a prompt (a string, or a list of messages) and an answer (a string or a number).
            With your own reward functions, rows need no answer.
        reward_funcs: one or more functions instead of the default `[correct]`.
        is_correct: (problem, completion) -> bool, instead of the default `same_answer`; accuracy is the share for which
            it is True.
        held_out_rows: rows for evaluation, such as a data set's test split. Then all of `rows` are for training, except
            those with the same prompts (with `environment_factory`: all of them). With `[]` nothing is held out, and
            there is nothing to evaluate on.
        prompt, answer: the columns' names; by default the first existing one of `PROMPTS` and of `ANSWERS`. The target
            of a row with a `target` and a list `nums` or `numbers` is not its answer: it is a game of Countdown
            (`same_answer`).
        system: the system prompt of chats: for rows that are chats without one, and for other rows after `in_chat`.
        max_completion_length: in tokens; by default 256, and 1,024 in a chat with thinking.
        tools: functions that the model may call (mlx_grpo_kit/tasks/tools.py).
        environment_factory: a callable that makes an object for each completion, whose methods the model may call. A
            row's columns are passed to its `reset`.
        name: for logs and checkpoints.

    Warns if far more than a tenth of the rows is held out because they have the same prompt, and if no row of an
    environment is left for training.

    Raises:
        TaskError (a ValueError): there are no rows, or a row cannot be used. The message names the row, or the line of
        a file.
    """

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]],
        reward_funcs: Sequence[RewardFunc] | RewardFunc | None = None,
        is_correct: Callable[[Problem, str], bool] | None = None,
        *,
        held_out_rows: Iterable[Mapping[str, Any]] | None = None,
        prompt: str | None = None,
        answer: str | None = None,
        system: str | None = None,
        max_completion_length: int | None = None,
        tools: Sequence[Callable] = (),
        environment_factory: Callable[[], Any] | Mapping[str, Callable[[], Any]] | None = None,
        name: str = "rows",
    ):
        self.name, self._system, self._max_completion_length = name, system, max_completion_length
        self.max_completion_length = ANSWER_TOKENS if max_completion_length is None else max_completion_length
        self.tools, self.environment_factory = [*tools], environment_factory
        self.reward_funcs = [correct] if reward_funcs is None else as_reward_funcs(reward_funcs)
        self._is_correct = is_correct or same_answer
        by_row = environment_factory is not None
        read = _Reader(prompt, answer, system, needs_answer=reward_funcs is None, by_row=by_row)
        problems = read.problems(rows, name)
        if held_out_rows is None:
            train, held_out = split_by_hash(problems)
            if not train:
                count = sum(map(len, problems.values()))
                raise TaskError(
                    f"{name} has one problem{f' in {count:,} rows' if count > 1 else ''}, and one must be held out; "
                    "expected at least two different ones. Or pass held_out_rows=..., which may be []."
                )
            self._held_out = [problem for key in held_out for problem in problems[key]]
        else:
            held_out = read.problems(held_out_rows, f"{name}, held out", may_be_empty=isinstance(held_out_rows, Sized))
            train = [key for key in problems if by_row or key not in held_out]
            if both := sum(len(found) for key, found in problems.items() if key in held_out and not by_row):
                warnings.warn(
                    f"{both} problems of {name} are also held out, so they are left out of training.", stacklevel=3
                )
            if not train:
                raise TaskError(f"All problems of {name} are also held out; nothing is left for training.")
            self._held_out = [problem for found in held_out.values() for problem in found]
        self._train = [problem for key in train for problem in problems[key]]
        self.num_held_out, self.num_train = len(self._held_out), len(self._train)
        self._order: tuple[tuple[int, int], np.ndarray] | None = None
        doubts = [*_doubts(self.all_problems(), name, judges=is_correct is None, rewards=reward_funcs is None)]
        for words in (*doubts, *self._doubts_of_split(is_given=held_out_rows is not None)):
            warnings.warn(words, stacklevel=3)

    def _doubts_of_split(self, is_given: bool) -> Iterator[str]:
        """Warnings about what is held out, if the rows were divided here, and about what is never trained."""
        held_out, count = self.num_held_out, self.num_held_out + self.num_train
        if not is_given and held_out > max(1, 2 * HELD_OUT_FRACTION * count):
            yield (
                f"{held_out:,} of {count:,} rows of {self.name} are held out, because rows with the same prompt are "
                "not divided. Pass the rows for evaluation as held_out_rows=..., which may be []."
            )
        if isinstance(self.environment_factory, Mapping):
            trained, others = (
                {str(problem.data.get("environment")) for problem in some} for some in (self._train, self._held_out)
            )
            if never := sorted(others - trained):
                yield f"All rows of the environment {never[0]!r} are held out: it is never trained. Give it more rows."

    @classmethod
    def from_file(
        cls, path: str | os.PathLike, *, held_out_path: str | os.PathLike | None = None, **settings: Any
    ) -> RowsTask:
        """Read a file with a JSON object in each line; `held_out_path` is a file of `held_out_rows`.

        Raises:
            TaskError: a line is not a valid row; the message has its number.
            FileNotFoundError: there is no such file.
        """
        held_out = read_rows(held_out_path) if held_out_path is not None else None
        return cls(read_rows(path), held_out_rows=held_out, **({"name": Path(path).stem or "rows"} | settings))

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        return [self._train[i] for i in rng.integers(0, len(self._train), n)]

    def in_order(self, seed: int, start: int, n: int) -> list[Problem]:
        """`n` training problems from position `start` on. Each epoch has every problem once, in a new order."""
        size = len(self._train)
        return [self._train[self._shuffled(seed, place // size)[place % size]] for place in range(start, start + n)]

    def _shuffled(self, seed: int, epoch: int) -> np.ndarray:
        """The order of an epoch; the latest one is cached."""
        if self._order is None or self._order[0] != (seed, epoch):
            order = np.random.default_rng([seed, epoch]).permutation(len(self._train))
            self._order = (seed, epoch), order
        return self._order[1]

    def held_out(self, n: int) -> list[Problem]:
        """The first `n` held-out problems, or all of them, with a warning, if there are fewer."""
        if n > self.num_held_out:
            words = f"'{self.name}' has {self.num_held_out} held-out problems, not {n}: accuracy is measured on those."
            warnings.warn(words, stacklevel=2)
        return self._held_out[:n]

    def all_problems(self) -> list[Problem]:
        """All problems, with those for training first. Each names its row (`Problem.place`)."""
        return [*self._train, *self._held_out]

    def is_correct(self, problem: Problem, completion: str) -> bool:
        return self._is_correct(problem, completion)

    def in_chat(self, *, thinking: bool = False) -> InChat:
        """The same rows as chats: the question, with an instruction for the answer if rows have answers.

        Rows that are already chats are not changed.
        """
        answers = [problem.answer for problem in self._held_out or self._train]
        kind = "number" if all(as_number(answer) is not None for answer in answers) else "your answer"
        instruction = f"\n{IN_TAGS.format(kind)}" if any(answers) else ""
        return InChat(
            self,
            lambda problem: problem.text + instruction,
            thinking=thinking,
            system=self._system,
            max_completion_length=self._max_completion_length,
        )


class _Line(dict):
    """A row with its line number in a file."""

    place = ""


def read_rows(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """Yield the objects in a file of JSON lines; skip empty lines. Raises the errors of `from_file`."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}; expected a file with a JSON object in each line.")
    check_regular(path)
    with path.open("rb") as file:
        for number in range(1, MAX_ROWS + 2):
            line = file.readline(MAX_LINE + 1)
            if not line:
                return
            where = f"{path}, line {number}"
            if len(line) > MAX_LINE:
                raise TaskError(f"{where} has more than {MAX_LINE:,} bytes. Expected a JSON object in each line.")
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig"), parse_constant=_no_number)
            except (ValueError, RecursionError) as error:
                raise TaskError(f"{where} is not JSON ({error}). Expected an object in each line.") from error
            if not isinstance(row, dict):
                raise TaskError(
                    f"{where} is a {type(row).__name__}; expected an object, such as "
                    '{"question": "12+34?", "answer": "46"}.'
                )
            row = _Line(row)
            row.place = where
            yield row


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


class _Reader(NamedTuple):
    """Convert rows to problems, given the columns' names, the system prompt, and whether rows need answers."""

    prompt: str | None
    answer: str | None
    system: str | None
    needs_answer: bool
    by_row: bool

    def problems(
        self, rows: Iterable[Mapping[str, Any]], name: str, may_be_empty: bool = False
    ) -> dict[str, list[Problem]]:
        """The problems of rows, grouped by their prompt; with `by_row` each in a group of its own."""
        if isinstance(rows, (Mapping, str, bytes)) or not isinstance(rows, Iterable):
            splits = ", ".join(map(str, rows)) if isinstance(rows, Mapping) else ""
            raise TaskError(
                f"The rows of {name} are a {type(rows).__name__}; expected an iterable of dictionaries."
                + (f" It has the splits {splits}: pass one of them." if splits else "")
            )
        problems: dict[str, list[Problem]] = {}
        for count, row in enumerate(rows, start=1):
            where = getattr(row, "place", "") or f"Row {count} of {name}"
            if count > MAX_ROWS:
                raise TaskError(f"{name} has more than {MAX_ROWS:,} rows. Expected fewer; does it end?")
            if not isinstance(row, Mapping):
                raise TaskError(f"{where} is a {type(row).__name__}; expected a dictionary.")
            asked = _prompt(row[_column(row, where, "prompt", self.prompt, PROMPTS)], where)
            key = _key(asked, where)
            if self.by_row and key in problems:
                key = f"{key}\n{count}"
            if self.system and not isinstance(asked, str) and asked[0]["role"] != "system":
                asked = [{"role": "system", "content": self.system}, *asked]
            problem = Problem(asked, self._answer_of(row, where), dict(row), place=where)
            problems.setdefault(key, []).append(problem)
        if not (problems or may_be_empty):
            raise TaskError(f"{name} has no rows; expected at least two.")
        return problems

    def _answer_of(self, row: Mapping[str, Any], where: str) -> str:
        """The row's answer; '' for a row that has none and needs none."""
        if not self.answer and is_game(row) and not any(each in row for each in ANSWERS[:-1]):
            return ""  # the target is not the answer
        if self.needs_answer or self.answer:
            return _answer(row[_column(row, where, "answer", self.answer, ANSWERS)], where)
        found = next((row[each] for each in ANSWERS if each in row), "")
        with suppress(TaskError):  # such as a list, which only the reward functions can read
            return _answer(found, where)
        return ""


def _doubts(problems: Sequence[Problem], name: str, judges: bool, rewards: bool) -> Iterator[str]:
    """Warnings about rows that the default `same_answer`, or the default reward, would misjudge."""
    if not (judges or rewards):
        return
    if lacking := sum(not (problem.answer or is_game(problem.data)) for problem in problems):
        yield (
            f"{lacking} of {len(problems)} rows of {name} have no answer, and is_correct is not set: accuracy counts "
            "every completion of these as wrong. Watch the reward, or set is_correct=..."
        )
    first: dict[str, str] = {}
    if others := sum(first.setdefault(repr(each.prompt), each.answer) != each.answer for each in problems):
        yield (
            f"{others} of {len(problems)} rows of {name} have the same prompt as another row but a different answer: "
            "the same completion is right in one row and wrong in the other."
        )


def _column(row: Mapping[str, Any], where: str, what: str, name: str | None, usual: Sequence[str]) -> str:
    found = next((each for each in ([name] if name else usual) if each in row), None)
    if found is None:
        expected = repr(name) if name else f"one of {', '.join(map(repr, usual))}, or another by {what}=..."
        columns = ", ".join(map(repr, row)) or "nothing"
        raise TaskError(f"{where} has no {what}: it has {columns}; expected {expected}.")
    return found


def _prompt(value: Any, where: str) -> str | list[dict[str, Any]]:
    if isinstance(value, str) and value.strip():
        return value
    if is_chat(value):
        return [dict(each) for each in value]
    raise TaskError(
        f"{where} has the prompt {value!r:.60}; expected a string, or a list of messages with a role and a content, "
        "both strings."
    )


def _key(asked: str | list[dict[str, Any]], where: str) -> str:
    """The key that is equal for equal prompts. Raises TaskError for content that JSON or UTF-8 cannot hold."""
    try:
        key = asked if isinstance(asked, str) else json.dumps(asked, sort_keys=True, ensure_ascii=False)
        key.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"{where} has a prompt that is not valid text: {error}.") from error
    return key


def _answer(value: Any, where: str) -> str:
    """An answer as a short string: the part after `####`, or the content of a box, or all of it."""
    if isinstance(value, Real) and not isinstance(value, bool):  # NumPy's numbers too
        return _written_out(value, where)
    right = _short_answer(value, where)
    if not right:
        raise TaskError(f"{where} has the answer {value!r:.60}, and nothing after its #### or in its box.")
    return right


def _written_out(number: Real, where: str) -> str:
    """A number as people write it, if that is short: 0.00005 and not 5e-05. Raises TaskError for nan and inf."""
    try:
        text = str(number)
    except ValueError as error:  # Python refuses to write integers with thousands of digits
        raise TaskError(f"{where} has an answer that cannot be written: {error}.") from error
    if not (isinstance(number, Rational) or math.isfinite(number)):
        raise TaskError(f"{where} has the answer {text}; expected a string or a finite number.")
    written = format(Decimal(text), "f") if "e" in text else text
    return written if len(written) <= MAX_NUMBER else text


def _short_answer(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{where} has the answer {value!r:.60}; expected a string or a finite number.")
    marked = after_mark(value)  # read as in a completion
    value = value.rpartition("####")[2] if marked is None else without_words(marked)
    if r"\boxed{" not in value:
        return value.strip()
    answer = final_answer(value)
    if r"\boxed{" in answer:
        raise TaskError(f"{where} has the answer {value!r:.60}, and its box is not closed.")
    return answer
