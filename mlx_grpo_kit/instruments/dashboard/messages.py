"""A record in the form in which it is sent to the page: columns of numbers, and rows of completions."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from mlx_grpo_kit.instruments.dashboard.layers import layer_norms, layers_in
from mlx_grpo_kit.instruments.dashboard.panels import names_of, run_panels
from mlx_grpo_kit.instruments.dashboard.settings import change_in_words, changes_of
from mlx_grpo_kit.runs.record import RecordedStep, RunRecord, transcript
from mlx_grpo_kit.viz.live.curves import five_digits

MOST_CHARACTERS = 600  # per prompt or completion on the page
MOST_STEPS, MOST_BYTES = 60, 200_000  # limits of the completions in one message


def all_of(record: RunRecord, metrics: Iterable[str]) -> dict[str, Any]:
    """Return the whole record, with its abandoned branches."""
    columns = columns_of(record, record.steps, metrics)
    names = names_of(run_panels([*metrics]))
    branches = [{"steps": _numbers(branch), "columns": _columns(branch, names)} for branch in record.abandoned]
    return {**columns, "abandoned": branches}


def columns_of(record: RunRecord, steps: Sequence[RecordedStep], metrics: Iterable[str]) -> dict[str, Any]:
    """Return some steps of a record, and the panels that its run has now."""
    panels, layers = run_panels([*metrics]), layers_in(metrics)
    return {
        "panels": [vars(panel) for panel in panels],
        "layers": layers,
        "steps": _numbers(steps),
        "columns": _columns(steps, names_of(panels)) | _layer_columns(steps, layers),
        "changes": {str(step.step): change_in_words(step.changes) for step in steps if step.changes},
        "changed": changes_of(record.steps),
        "kept": [step.step for step in steps if step.line is not None],
        "turns": len(record.abandoned),
    }


def completions_of(record: RunRecord, numbers: Sequence[int], seconds: float = math.inf) -> dict[str, Any]:
    """Return the completions of the first of these steps, by step: as many as size and time allow."""
    found: dict[str, Any] = {}
    size, started = 0, time.monotonic()
    for number in numbers[:MOST_STEPS]:
        try:
            step = record.at(number)
        except KeyError:  # the step has been discarded by a rewind
            continue
        if step.line is None:
            continue
        found[str(number)] = [_row(completion) for completion in step.completions]
        size += len(step.line)
        if size > MOST_BYTES or time.monotonic() - started > seconds:
            break
    return found


def _numbers(steps: Sequence[RecordedStep]) -> list[int]:
    return [step.step for step in steps]


def _columns(steps: Sequence[RecordedStep], names: Sequence[str]) -> dict[str, list[float | None]]:
    return {name: [five_digits(step.metrics.get(name, math.nan)) for step in steps] for name in names}


def _layer_columns(steps: Sequence[RecordedStep], layers: Sequence[str]) -> dict[str, list[float | None]]:
    norms = [layer_norms(step.metrics) if layers else {} for step in steps]
    return {f"layer norm/{layer}": [five_digits(each.get(layer, math.nan)) for each in norms] for layer in layers}


def _row(completion: Any) -> list[Any]:
    """List group, prompt, completion, reward, advantage, tokens, finished, rewards by function, right answer."""
    ids, rewards = completion.completion_ids, completion.rewards
    return [
        completion.group,
        _cut(completion.prompt),
        _cut(transcript(completion)),
        completion.reward,
        completion.advantage,
        None if ids is None else sum(getattr(completion, "token_mask", None) or [True] * len(ids)),
        completion.finished,
        dict(rewards) if rewards and len(rewards) > 1 else None,
        None if completion.answer is None else _cut(completion.answer),
    ]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"
