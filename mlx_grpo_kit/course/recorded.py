"""Runs that come with the course as records, because they take longer than a reader wants to wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mlx_grpo_kit.grpo import GRPOTrainer
from mlx_grpo_kit.instruments.dashboard.settings import settings_of
from mlx_grpo_kit.runs.record import RunRecord

WITHOUT_TOKENS = dict.fromkeys(("completion_ids", "logps", "entropies", "token_mask"))
OF_THE_MACHINE = ("step_time", "tokens_per_second", "peak_memory_gb")  # metrics that differ when a run is repeated


def record_of(
    trainer: GRPOTrainer,
    name: str,
    steps: int,
    watch: Callable[..., Any] = iter,
    more: Callable[[Any], Mapping[str, float]] = lambda step: {},
    **options: Any,
) -> RunRecord:
    """Train, and return the record without what differs when the run is repeated, and without tokens.

    Args:
        trainer: the run, before its first step.
        name: title of the record.
        steps: the number of steps.
        watch: passes the steps on, such as `LivePlot(...).watch`.
        more: step -> metrics that the record contains besides those of the step.
        options: of `RunRecord`.
    """
    record = RunRecord(name, steps, **options)
    record.settings = settings_of(trainer)
    for step in watch(trainer.train(steps)):
        metrics = {metric: value for metric, value in step.metrics.items() if metric not in OF_THE_MACHINE}
        texts = [replace(each, **WITHOUT_TOKENS) for each in step.completions]
        record.add(replace(step, completions=texts), metrics | more(step))
    return record


def folder_name(name: str) -> str:
    """The name of a record's folder."""
    return name.replace(",", "").replace(" ", "_")
