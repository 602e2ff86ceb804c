"""The settings of a run in words: those that were changed during the run, those that were chosen, and the defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.runs.record import RecordedStep
from mlx_grpo_kit.tasks.signatures import reward_name

MOST_CHARACTERS = 200  # per value
DEFAULTS = {each.name: each.default for each in fields(GRPOConfig)}


def settings_of(trainer: Any) -> dict[str, Any]:
    """Return the settings of a trainer by name, with its task and reward functions."""
    args = getattr(trainer, "args", None)
    if args is None:
        return {}
    found = {each.name: getattr(args, each.name) for each in fields(args)} if is_dataclass(args) else dict(vars(args))
    about: dict[str, Any] = {}
    if isinstance(task := getattr(getattr(trainer, "task", None), "name", None), str):
        about["task"] = task
    if functions := [*map(reward_name, getattr(trainer, "reward_funcs", ()))]:
        about["reward_funcs"] = functions
    return about | found


def settings_table(settings: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """List (name, value in words, True if it is a default) for each setting, with chosen settings first."""
    rows = [
        (name, in_words(value), name in DEFAULTS and in_words(DEFAULTS[name]) == in_words(value))
        for name, value in settings.items()
    ]
    return sorted(rows, key=lambda row: row[2])


def changes_of(steps: Sequence[RecordedStep]) -> dict[str, list[tuple[int, str]]]:
    """List (first step with the new value, value in words) for each change of a setting, by its name."""
    changes: dict[str, list[tuple[int, str]]] = {}
    for step in steps:
        for name, value in step.changes.items():
            if name != "rewound_from":
                changes.setdefault(name, []).append((step.step, in_words(value)))
    return changes


def in_words(value: Any) -> str:
    """Write a value as the page shows it."""
    if isinstance(value, list | tuple):
        words = " + ".join(map(str, value))
    elif isinstance(value, float):
        words = f"{value:g}"
    else:
        words = str(value)
    return words if len(words) <= MOST_CHARACTERS else words[:MOST_CHARACTERS] + "…"


def change_in_words(changes: Mapping[str, Any]) -> str:
    """Describe the changes before a step: "learning rate 0.0001, reward format, back from step 40"."""
    names = {"reward_funcs": "reward", "rewound_from": "back from step"}
    return ", ".join(f"{names.get(name, name.replace('_', ' '))} {in_words(value)}" for name, value in changes.items())
