"""The record of a run, step by step: kept while it trains, saved, and read again without MLX.

    record = RunRecord(title="tiny learns addition", max_steps=200, is_correct=task.is_correct)
    for step in trainer.train(max_steps=200):
        record.add(step)
    record.save("outputs/my_run")
    RunRecord.load("outputs/my_run").column("reward")

A run of the command line leaves the same two files in its folder, which `RunRecord.load` reads too, also in mid-run:

    metrics.jsonl       {"step": 7, "reward": 0.41, ...}   null for what is no number; "changes" where settings changed
    completions.jsonl   {"step": 7, "completions": [{"group": 0, "prompt": "12+34=", "completion": "46", ...}, ...]}

Of each step some whole groups are kept, the first ones: as many as have `KEEP` completions together, and one at least.
Problems come in a random order, so the first groups are like the others; and 2,000 steps of the tiny model take 11 MB
instead of 78.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from mlx_grpo_kit.files import check_regular, replaced_folder
from mlx_grpo_kit.runs.history import answer_of

METRICS, COMPLETIONS, ABANDONED, ABOUT = "metrics.jsonl", "completions.jsonl", "abandoned.jsonl", "record.json"
KEEP = 16
DIGITS = 6  # of numbers of single tokens: as many as float32 has


@dataclass(frozen=True)
class RecordedCompletion:
    """One completion as it was recorded, under the names of `grpo.Completion`; None for what the run did not say.

    Attributes:
        group: which of the step's groups of completions it belongs to, from 0.
        correct: whether the task accepts it.
        answer: the problem's right answer, where it has one.
        token_mask: False for tokens that tools returned; None where the policy wrote every token.
        messages: the turns of a completion that called tools, as a chat.
    """

    prompt: str
    completion: str
    group: int | None = None
    completion_ids: Sequence[int] | None = None
    logps: Sequence[float] | None = None
    entropies: Sequence[float] | None = None
    finished: bool | None = None
    rewards: Mapping[str, float | None] | None = None
    reward: float | None = None
    advantage: float | None = None
    correct: bool | None = None
    answer: str | None = None
    token_mask: Sequence[bool] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None


def transcript(completion: Any) -> str:
    """A completion in one text; where it called tools, its turns: `add({"a": 1, "b": 2}) -> 3 | The sum is 3.`"""
    if not getattr(completion, "messages", None):
        return completion.completion
    turns, results = [], []
    for message in completion.messages:
        if message.get("role") == "tool":
            results.append(str(message.get("content", "")))
            continue
        if results:
            turns[-1] += f" -> {', '.join(results)}"
            results = []
        calls = [call["function"] for call in message.get("tool_calls", ())]
        made = [f"{call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in calls]
        turns.append(" ".join([*filter(None, [message.get("content")]), *made]))
    if results:
        turns[-1] += f" -> {', '.join(results)}"
    return " | ".join(turns)


NAMES = tuple(one.name for one in fields(RecordedCompletion))


@dataclass(frozen=True)
class RecordedStep:
    """One step: its number, its metrics (NaN for what was no number), and what was changed right before it.

    Attributes:
        changes: such as {"learning_rate": 1e-4, "rewound_from": 40}; empty as a rule.
        line: its completions as they stand in completions.jsonl, None where none were kept.
    """

    step: int
    metrics: Mapping[str, float]
    changes: Mapping[str, Any] = field(default_factory=dict)
    line: bytes | None = None

    @property
    def completions(self) -> list[RecordedCompletion]:
        """The kept completions of the step, group by group; read from `line` anew each time."""
        return [] if self.line is None else read_completions(self.line)[1]


class RunRecord:
    """The steps of a run, in order.

    A step that comes again, because the run was rewound, takes the place of the one before and of all after it; what it
    replaced is in `abandoned`.

    Attributes:
        title, max_steps: of the run, where they are known.
        settings: of the run when it began, by name, where they are known.
        steps: list of RecordedStep.
        abandoned: for each rewind the steps that it took back, the oldest rewind first. Their completions are
            not saved.
        damaged: a sentence for each line that could not be read by `load`.

    Args:
        keep: how many completions of a step to keep, whole groups and one at least; None keeps all, 0 none.
        is_correct: (problem, completion) -> bool, as a task has it, for `RecordedCompletion.correct`.
    """

    def __init__(
        self,
        title: str = "",
        max_steps: int | None = None,
        *,
        keep: int | None = KEEP,
        is_correct: Callable[[Any, str], bool] | None = None,
    ):
        self.title = title.encode("utf-8", "replace").decode("utf-8")
        self.max_steps, self.keep, self.is_correct = max_steps, keep, is_correct
        self.settings: dict[str, Any] = {}
        self.steps: list[RecordedStep] = []
        self.abandoned: list[list[RecordedStep]] = []
        self.damaged: list[str] = []

    def add(self, step: Any, metrics: Mapping[str, float] | None = None) -> RecordedStep:
        """Take in a step: anything with `.step`, `.metrics` and, where it has them, `.completions` and `.changes`.

        `metrics` stand in the place of the step's own, for example where an evaluation's have come to them.
        """
        recorded = RecordedStep(
            step.step,
            dict(step.metrics if metrics is None else metrics),
            dict(getattr(step, "changes", {})),
            completions_line(step, self.keep, self.is_correct),
        )
        self._put(recorded)
        return recorded

    def rewind(self, step: int) -> None:
        """Take back the steps after `step`, as the next step of a rewound run would; they go to `abandoned`."""
        place = self._place(step + 1)
        if place < len(self.steps):
            # A list of its own, because another thread may be reading the old one.
            self.abandoned.append(self.steps[place:])
            self.steps = self.steps[:place]

    def at(self, step: int) -> RecordedStep:
        """The step with this number. Raises KeyError where there is none."""
        place = self._place(step)
        if place == len(self.steps) or self.steps[place].step != step:
            span = f"{self.steps[0].step} to {self.steps[-1].step}" if self.steps else "no step"
            raise KeyError(f"The record has no step {step}; it has {span}.")
        return self.steps[place]

    def column(self, metric: str) -> list[float]:
        """A metric over all steps, NaN where a step has none."""
        return [step.metrics.get(metric, math.nan) for step in self.steps]

    def save(self, folder: str | os.PathLike, every: int = 1) -> None:
        """Write the record as a folder, which appears whole or not at all and replaces a record that is there.

        Completions are written of the steps whose number is a multiple of `every`.

        Raises FileExistsError where the folder holds anything that the kit did not write, such as a run of the command
        line's, and OSError where it cannot be written.
        """
        steps, branches = list(self.steps), list(self.abandoned)
        with replaced_folder(folder) as new:
            about = {"title": self.title, "max_steps": self.max_steps, "settings": self.settings}
            about = json.dumps(about, indent=2, default=str)
            (new / ABOUT).write_text(f"{about}\n")
            (new / METRICS).write_bytes(b"".join(metrics_line(step.step, step.metrics, step.changes) for step in steps))
            lines = [step.line for step in steps if step.line is not None and step.step % every == 0]
            (new / COMPLETIONS).write_bytes(b"".join(lines))
            if branches:
                (new / ABANDONED).write_bytes(
                    b"".join(
                        metrics_line(step.step, {**step.metrics, "branch": number}, step.changes)
                        for number, branch in enumerate(branches)
                        for step in branch
                    )
                )

    @classmethod
    def load(cls, folder: str | os.PathLike) -> RunRecord:
        """Read a record from a folder that `save` or a run of the command line wrote.

        A line that cannot be read, such as one that a kill has cut off, is left out and named in `damaged`.

        Raises FileNotFoundError where there is no metrics.jsonl, and ValueError for what is no file.
        """
        folder, damaged = Path(folder), []
        if not os.path.lexists(folder / METRICS):
            raise FileNotFoundError(
                f"{folder} holds no {METRICS}; expected the folder of a run, as RunRecord.save or the command line's "
                "--output wrote it."
            )
        title, max_steps, settings = _about(folder, damaged)
        record = cls(title, max_steps)
        record.settings = settings
        lines = {}
        if os.path.lexists(folder / COMPLETIONS):
            lines = {step: line for step, line, _ in read_lines(folder / COMPLETIONS, read_completions, damaged)}
        for step, _, (metrics, changes) in read_lines(folder / METRICS, read_metrics, damaged):
            record._put(RecordedStep(step, metrics, changes, lines.get(step)))
        branches: dict[float, list[RecordedStep]] = {}
        if os.path.lexists(folder / ABANDONED):
            for step, _, (metrics, changes) in read_lines(folder / ABANDONED, read_metrics, damaged):
                branches.setdefault(metrics.pop("branch", 0.0), []).append(RecordedStep(step, metrics, changes))
        record.abandoned = [*branches.values()]
        record.damaged = damaged
        return record

    def _place(self, step: int) -> int:
        return bisect_left(self.steps, step, key=lambda recorded: recorded.step)

    def _put(self, recorded: RecordedStep) -> None:
        self.rewind(recorded.step - 1)
        self.steps.append(recorded)

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"<RunRecord {self.title!r}, {len(self)} steps>"


def metrics_line(step: int, metrics: Mapping[str, float], changes: Mapping[str, Any] | None = None) -> bytes:
    """A line of metrics.jsonl. What is no number becomes null: JSON has no NaN."""
    line = {"step": step} | {name: _number(value) for name, value in metrics.items()}
    return _as_json(line | ({"changes": dict(changes)} if changes else {}))


def completions_line(step: Any, keep: int | None, is_correct: Callable[[Any, str], bool] | None) -> bytes | None:
    """A line of completions.jsonl with the first `keep` of a step's completions, whole groups; None without any.

    Where completions do not say which group they belong to, those of one prompt in a row are one.
    """
    completions = list(getattr(step, "completions", ()))
    if keep == 0 or not completions:
        return None
    chosen: list[Any] = []
    for _, group in groupby(completions, key=lambda one: (getattr(one, "group", None), one.prompt)):
        group = list(group)
        if chosen and keep is not None and len(chosen) + len(group) > keep:
            break
        chosen += group
    return _as_json({"step": step.step, "completions": [_content(one, is_correct) for one in chosen]})


def read_metrics(line: bytes) -> tuple[int, tuple[dict[str, float], dict[str, Any]]]:
    """(step, (metrics, changes)) of a line of metrics.jsonl. Raises ValueError for what is none."""
    content = _from_json(line)
    step, changes = content.pop("step"), content.pop("changes", {})
    if not (isinstance(changes, dict) and all(value is None or _is_number(value) for value in content.values())):
        raise ValueError("expected numbers")
    return step, ({name: math.nan if value is None else float(value) for name, value in content.items()}, changes)


def read_completions(line: bytes) -> tuple[int, list[RecordedCompletion]]:
    """(step, completions) of a line of completions.jsonl. Raises ValueError for what is none."""
    content = _from_json(line)
    completions = content.get("completions")
    if not isinstance(completions, list) or not all(isinstance(one, dict) for one in completions):
        raise ValueError("expected completions")
    return content["step"], [_completion(one) for one in completions]


def read_lines(
    file: Path, read: Callable[[bytes], tuple[int, Any]], damaged: list[str]
) -> Iterable[tuple[int, bytes, Any]]:
    """(step, line, what `read` makes of it) for each line; a sentence in `damaged` for one that cannot be read.

    Raises ValueError where the file is a folder, a pipe or a device.
    """
    check_regular(file)
    lines = file.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            step, content = read(line)
        except (ValueError, ArithmeticError, RecursionError):
            cut_off = number == len(lines) and not line.endswith(b"\n")
            what = "is cut off" if cut_off else "cannot be read"
            damaged.append(f"Line {number} of {file} {what} and is left out.")
            continue
        yield step, line if line.endswith(b"\n") else line + b"\n", content


def _about(folder: Path, damaged: list[str]) -> tuple[str, int | None, dict[str, Any]]:
    """(title, max_steps, settings), as record.json has them, or the command line's run.json."""
    for name in (ABOUT, "run.json"):
        if os.path.lexists(folder / name):
            try:
                check_regular(folder / name)
                content = json.loads((folder / name).read_bytes())
                title = content["title"] if name == ABOUT else f"{Path(content['model']).name} learns {content['task']}"
                max_steps = content["max_steps"]
                settings = content.get("settings" if name == ABOUT else "args", {})
                if isinstance(title, str) and (max_steps is None or type(max_steps) is int):
                    return title, max_steps, settings if isinstance(settings, dict) else {}
            except (ValueError, TypeError, KeyError, RecursionError):
                pass
            damaged.append(f"{folder / name} cannot be read, so the run has no title.")
    return folder.name, None, {}


def _content(completion: Any, is_correct: Callable[[Any, str], bool] | None) -> dict[str, Any]:
    content = {name: getattr(completion, name) for name in NAMES if getattr(completion, name, None) is not None}
    for name in ("logps", "entropies"):
        if name in content:
            content[name] = [_short(value) for value in content[name]]
    for name in ("reward", "advantage"):
        if name in content:
            content[name] = _number(content[name])
    answer = answer_of(completion)
    if isinstance(answer, str | int | float) and answer != "":
        content["answer"] = str(answer)
    if all(content.get("token_mask", ())):
        content.pop("token_mask", None)
    if is_correct is not None:
        content["correct"] = bool(is_correct(completion.problem, completion.completion))
    return content


def _completion(content: dict[str, Any]) -> RecordedCompletion:
    known = {name: value for name, value in content.items() if name in NAMES}
    texts = [known.get(name) for name in ("prompt", "completion")]
    numbers = [known.get(name) for name in ("group", "reward", "advantage")]
    lists = [known.get(name) for name in ("completion_ids", "logps", "entropies")]
    rewards, mask, messages = (known.get(name) for name in ("rewards", "token_mask", "messages"))
    if not (
        all(isinstance(text, str) for text in texts)
        and isinstance(known.get("answer"), str | None)
        and all(value is None or _is_number(value) for value in numbers)
        and all(values is None or isinstance(values, list) for values in lists)
        and all(value is None or _is_number(value) for values in lists for value in values or ())
        and (rewards is None or isinstance(rewards, dict))
        and (mask is None or (isinstance(mask, list) and all(isinstance(value, bool) for value in mask)))
        and (messages is None or (isinstance(messages, list) and all(isinstance(each, dict) for each in messages)))
    ):
        raise ValueError("expected a completion")
    for name in ("logps", "entropies"):
        if name in known:
            known[name] = [math.nan if value is None else value for value in known[name]]
    return RecordedCompletion(**known)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _as_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, allow_nan=False) + "\n").encode()


def _from_json(line: bytes) -> dict[str, Any]:
    content = json.loads(line)
    if b"\\ud" in line.lower():  # half a surrogate pair, which no page can be sent, becomes a question mark
        content = json.loads(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"))
    if not (isinstance(content, dict) and type(content.get("step")) is int):
        raise ValueError("expected an object with a step")
    return content
