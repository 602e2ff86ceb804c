"""The fields of GRPOConfig as options of `train`."""

from __future__ import annotations

import argparse

from mlx_grpo_kit.cli.values import is_bfloat16, json_object, names, number, numbers, seconds, seed, whole_number
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.recipe import TINY_ARGS
from mlx_grpo_kit.grpo.settings import kinds_of, rules_of

TITLES = {
    "learning_rate": "how fast it learns",
    "lora_r": "what it costs",
    "max_completion_length": "how it samples",
    "num_generations": "what it learns from",
    "loss_type": "the loss",
}
"""The first setting of each group of options -> the title of the group."""

PARSERS = {
    "float": (number, "N"),
    "int": (whole_number, "N"),
    "str": (str, "NAME"),
    "tuple[float, ...]": (numbers, "N,N"),
    "tuple[str, ...]": (names, "NAME,NAME"),
    "dict[str, Any]": (json_object, "JSON"),
    "tool_timeout": (seconds, "N"),
    "seed": (seed, "N"),
}
"""The parser of an option and the word for its value, by the setting's annotation or name."""


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add an option for each setting. Its value is None if it is not given."""
    kinds = kinds_of(GRPOConfig)
    for name, rule in rules_of(GRPOConfig).items():
        if name in TITLES:
            group = parser.add_argument_group(TITLES[name])
        option, default = "--" + name.replace("_", "-"), getattr(GRPOConfig, name)
        words = rule.text.partition(". ")[0].rstrip(".").replace("%", "%%")
        tiny = TINY_ARGS.get(name, default)
        large = "" if tiny == default else f" for the tiny model, {default} for a large one"
        notes = [", ".join(rule.choices)] * bool(rule.choices) + [f"default {tiny}{large}"] * (default is not None)
        if name == "bf16":
            words = "float32 (default); bfloat16 on a GPU, with parameters kept in float32"
            group.add_argument("--dtype", dest=name, type=is_bfloat16, metavar="NAME", help=words)
        elif kinds[name] == "bool":
            group.add_argument(option, action=argparse.BooleanOptionalAction, default=None, help=words)
        elif name == "stop_strings":
            words += "; may be given several times"
            group.add_argument(option, dest=name, action="append", metavar="TEXT", help=words)
        else:
            words += f" ({'; '.join(notes)})" if notes else ""
            also = ["--lora-rank"] if name == "lora_r" else []  # mlx-lm's name
            kind = next(each for each in (name, kinds[name].partition(" | ")[0]) if each in PARSERS)
            parse, metavar = PARSERS[kind]
            group.add_argument(option, *also, dest=name, type=parse, metavar=metavar, help=words)
