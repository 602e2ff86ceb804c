"""The process in which reasoning-gym makes problems and scores answers (`Judge`).

Here a seed gives the same problems every time. Some generators depend on the hash seed, which `Judge` sets, and some on
the module `random`. Some verifiers call `eval`, or sympy's `parse_expr`, on an answer that a policy wrote: here these
names are functions that run no code.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from difflib import get_close_matches
from functools import lru_cache
from inspect import signature
from typing import Any

from mlx_grpo_kit.tasks.answers import unadorned
from mlx_grpo_kit.tasks.judge import answer_questions

MOST = 100_000
"""The largest number of problems."""

_ARITHMETIC = ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant
_FUNCTIONS = "(?:a|arc)?(?:sin|cos|tan|cot|sec|csc)h?|exp|log|ln|sqrt|pi"
_FORMULA = re.compile(rf"(?:[0-9\s+\-*/^()=.,!]|\b(?:[A-Za-z]|{_FUNCTIONS})\b)+")


def answer(name: str, settings: str, index: int, *said: str) -> Any:
    """The question and the answer of a problem; or the score of what is `said`, from 0 to 1.

    Raises ValueError if there is no such problem, and whatever the verifier raises.
    """
    entry = _entry(name, settings, index)
    if not said:
        return entry["question"], entry["answer"]
    judge = _dataset(name, settings).score_answer
    scores = [float(judge(each, entry)) for each in {said[0], unadorned(said[0])}]
    return max(0.0, *(min(score, 1.0) for score in scores if score == score))


@lru_cache(MOST)
def _entry(name: str, settings: str, index: int) -> dict[str, Any]:
    dataset = _dataset(name, settings)
    random.seed(index)
    try:
        return dataset[index]
    except Exception as error:
        raise ValueError(_failed(name, settings, f"cannot make problem {index}", error)) from error


@lru_cache
def _dataset(name: str, settings: str) -> Any:
    known, given = _generators(), json.loads(settings)
    if name not in known:
        near = [each for each in known if name and name in each] or get_close_matches(name, known, 5, 0.5)
        raise ValueError(
            f"There is no generator {name!r} in reasoning-gym. "
            + (f"Did you mean {', '.join(near)}?" if near else f"It has {', '.join(known)}.")
        )
    generator, config = known[name]
    names = [*signature(config).parameters]
    if unknown := [each for each in given if each not in names]:
        raise ValueError(f"gym:{name} has no setting {unknown[0]!r}; it has {', '.join(names)}.")
    for each, least, most in ("seed", 0, 2**31), ("size", 1, MOST):
        if type(given[each]) is not int or not least <= given[each] <= most:
            raise ValueError(f"{each} is {given[each]!r}; expected a whole number from {least} to {most:,}.")
    try:
        config = config(**given)
        getattr(config, "validate", list)()
        return generator(config)
    except Exception as error:
        raise ValueError(_failed(name, settings, "refuses these settings", error)) from error


def _failed(name: str, settings: str, what: str, error: Exception) -> str:
    given = "".join(f",{key}={value}" for key, value in json.loads(settings).items() if key not in ("seed", "size"))
    return f"gym:{name}{given} {what}: {str(error) or type(error).__name__}"


@lru_cache
def _generators() -> dict[str, Any]:
    """The class and the settings of each generator, once no verifier can run an answer as code."""
    from reasoning_gym.factory import DATASETS

    parse = sys.modules["sympy"].parse_expr

    def parse_formula(text: str, *args: Any, **named: Any) -> Any:
        if not _FORMULA.fullmatch(text):
            raise ValueError(f"{text[:80]!r} is not a formula")
        return parse(text, *args, **named)

    # sympy itself calls the function in its own module, which stays as it is.
    for module in [each for name, each in sys.modules.items() if name == "sympy" or name.startswith("reasoning_gym")]:
        if vars(module).get("parse_expr") is parse:
            module.parse_expr = parse_formula
        module.eval = _eval
    return dict(sorted(DATASETS.items()))


def _eval(text: str) -> Any:
    """The value of a literal, or of arithmetic with numbers. Raises ValueError or SyntaxError for other texts."""
    nodes = [*ast.walk(ast.parse(text.strip(), mode="eval"))]
    numbers = all(
        isinstance(getattr(node, "value", 0), int | float) for node in nodes if isinstance(node, ast.Constant)
    )
    if numbers and all(isinstance(node, _ARITHMETIC) for node in nodes):
        return eval(compile(text.strip(), "<arithmetic>", "eval"))
    return ast.literal_eval(text.strip())


if __name__ == "__main__":
    answer_questions(answer, before=_generators)
