"""The record of a run, step by step: filled during training, saved, and loaded without MLX.

    record = RunRecord(title="tiny learns addition", max_steps=200, is_correct=task.is_correct)
    for step in trainer.train(max_steps=200):
        record.add(step)
    record.save("outputs/my_run")
    RunRecord.load("outputs/my_run").column("reward")

A run from the command line writes the same two files to its folder. `RunRecord.load` reads them even during the run:

    metrics.jsonl       {"step": 7, "reward": 0.41, ...}   null for NaN and infinity; "changes" if settings changed
    completions.jsonl   {"step": 7, "completions": [{"group": 0, "prompt": "12+34=", "completion": "46", ...}, ...]}

The first groups of each step are kept: as many whole groups as fit into `KEEP` completions, but at least one. Problems
are in random order, so the first groups are representative. 2,000 steps of the tiny model take 11 MB instead of 78 MB.
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
DIGITS = 6  # significant digits of the numbers of a token: as many as float32 has


@dataclass(frozen=True)
class RecordedCompletion:
    """One recorded completion, with the field names of `grpo.Completion`; missing values are None.

    Attributes:
        group: the number of its group in the step, from 0.
        advantage: None if every token has its own.
        correct: True if the task accepts the completion.
        answer: the problem's right answer, if it has one.
        token_mask: False for tokens that tools returned; None if the policy wrote every token.
        messages: the turns of a completion that called tools, as chat messages.
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
    """Return a completion as one text; with tool calls, its turns: `add({"a": 1, "b": 2}) -> 3 | The sum is 3.`"""
    if not getattr(completion, "messages", None):
        return completion.completion
    turns, results = [], []
    for message in completion.messages:
        if message.get("role") == "tool":
            results.append(str(message.get("content") or ""))
            continue
        if results:
            turns[-1] += f" -> {', '.join(results)}"
            results = []
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        made = [f"{call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in calls]
        turns.append(" ".join([*filter(None, [message.get("content")]), *made]))
    if results:
        turns[-1] += f" -> {', '.join(results)}"
    return " | ".join(turns)


NAMES = tuple(one.name for one in fields(RecordedCompletion))


@dataclass(frozen=True)
class RecordedStep:
    """One step: its number, its metrics (NaN for missing numbers), and the changes made right before it.

    Attributes:
        changes: for example {"learning_rate": 1e-4, "rewound_from": 40}; usually empty.
        line: the step's line in completions.jsonl; None if no completions were kept.
    """

    step: int
    metrics: Mapping[str, float]
    changes: Mapping[str, Any] = field(default_factory=dict)
    line: bytes | None = None

    @property
    def completions(self) -> list[RecordedCompletion]:
        """The kept completions of the step, group by group; they are parsed from `line` at every access."""
        return [] if self.line is None else read_completions(self.line)[1]


class RunRecord:
    """The steps of a run, in order.

    If a step is added again because the run was rewound, it replaces the earlier one and all steps after it.
    `abandoned` keeps the replaced steps.

    Attributes:
        title, max_steps: the run's title and length, if known.
        settings: the run's settings at its start, by name, if known.
        steps: a list of RecordedStep.
        abandoned: for each rewind the steps that it discarded, oldest rewind first. Their completions are not saved.
        damaged: a sentence for each line that `load` could not read.

    Args:
        keep: the number of completions per step to keep, rounded to whole groups, with at least one group; None keeps
            all, 0 none.
        is_correct: (problem, completion) -> bool, such as a task's method, for `RecordedCompletion.correct`.
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
        """Record a step: any object with `.step`, `.metrics` and, optionally, `.completions` and `.changes`.

        `metrics` replace those of the step, for example to include those of an evaluation.
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
        """Move the steps after `step` to `abandoned`, as the next step of a rewound run would."""
        place = self._place(step + 1)
        if place < len(self.steps):
            # Make a new list, because another thread may be reading the old one.
            self.abandoned.append(self.steps[place:])
            self.steps = self.steps[:place]

    def at(self, step: int) -> RecordedStep:
        """Return the step with this number. Raises KeyError if there is none."""
        place = self._place(step)
        if place == len(self.steps) or self.steps[place].step != step:
            span = f"{self.steps[0].step} to {self.steps[-1].step}" if self.steps else "no step"
            raise KeyError(f"The record has no step {step}; it has {span}.")
        return self.steps[place]

    def column(self, metric: str) -> list[float]:
        """Return a metric over all steps, with NaN for steps without it."""
        return [step.metrics.get(metric, math.nan) for step in self.steps]

    def save(self, folder: str | os.PathLike, every: int = 1) -> None:
        """Write the record to a folder, completely or not at all, and replace an existing record.

        Completions are written only for steps whose number is a multiple of `every`.

        Raises FileExistsError if the folder contains anything other than a record, such as a run from the command line,
        and OSError if it cannot be written.
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

        A line that cannot be read, for example because the process was killed, is left out and listed in `damaged`.

        Raises FileNotFoundError if there is no metrics.jsonl, and ValueError if it is not a regular file.
        """
        folder, damaged = Path(folder), []
        if not os.path.lexists(folder / METRICS):
            raise FileNotFoundError(
                f"{folder} contains no {METRICS}; expected the folder of a run, written by RunRecord.save or by the "
                "command line's --output."
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
    """Return a line for metrics.jsonl. NaN and infinity become null, because JSON does not have them."""
    line = {"step": step} | {name: _number(value) for name, value in metrics.items()}
    return _as_json(line | ({"changes": dict(changes)} if changes else {}))


def completions_line(step: Any, keep: int | None, is_correct: Callable[[Any, str], bool] | None) -> bytes | None:
    """Return a line for completions.jsonl with the first `keep` completions of a step, in whole groups, or None.

    If completions have no group number, consecutive ones with the same prompt form a group.
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
    """Parse a line of metrics.jsonl into (step, (metrics, changes)). Raises ValueError for an invalid line."""
    content = _from_json(line)
    step, changes = content.pop("step"), content.pop("changes", {})
    if not (isinstance(changes, dict) and all(value is None or _is_number(value) for value in content.values())):
        raise ValueError("expected numbers")
    return step, ({name: math.nan if value is None else float(value) for name, value in content.items()}, changes)


def read_completions(line: bytes) -> tuple[int, list[RecordedCompletion]]:
    """Parse a line of completions.jsonl into (step, completions). Raises ValueError for an invalid line."""
    content = _from_json(line)
    completions = content.get("completions")
    if not isinstance(completions, list) or not all(isinstance(one, dict) for one in completions):
        raise ValueError("expected completions")
    return content["step"], [_completion(one) for one in completions]


def read_lines(
    file: Path, read: Callable[[bytes], tuple[int, Any]], damaged: list[str]
) -> Iterable[tuple[int, bytes, Any]]:
    """Yield (step, line, result of `read`) for each line. Add a sentence to `damaged` for a line that cannot be read.

    Raises ValueError if the file is a folder, a pipe or a device.
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
    """Read (title, max_steps, settings) from record.json, or from the command line's run.json."""
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
    if isinstance(content.get("advantage"), list):  # one per token; a record has room for one per completion
        del content["advantage"]
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
    if b"\\ud" in line.lower():  # an unpaired surrogate, which cannot be sent to a page, becomes a question mark
        content = json.loads(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"))
    if not (isinstance(content, dict) and type(content.get("step")) is int):
        raise ValueError("expected an object with a step")
    return content
