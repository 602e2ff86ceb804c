"""The split of problems into those for training and those for evaluation."""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TypeVar

import numpy as np

from mlx_grpo_kit.tasks.task import TaskError

HELD_OUT_FRACTION = 0.1
P = TypeVar("P")


def hash_order(keys: Iterable[str]) -> list[str]:
    """The keys in a pseudo-random order that is the same in every process, platform and version of NumPy."""
    return sorted(keys, key=lambda key: blake2b(key.encode(), digest_size=16).digest())


def split_by_hash(keys: Iterable[str]) -> tuple[list[str], list[str]]:
    """Divide keys into training and held-out ones: the first tenth in `hash_order` is held out (at least one).

    Args:
        keys: distinct strings. Give two problems the same key if knowing one solves the other (12+34 and 34+12).

    Returns:
        `(train, held_out)`: disjoint, together all the keys, each in hash order, so that the first `n` are always a
        fair sample.
    """
    ordered = hash_order(keys)
    count = max(1, round(len(ordered) * HELD_OUT_FRACTION))
    return ordered[count:], ordered[:count]


def split_pairs(pairs: Iterable[tuple[int, int]]) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Divide pairs of numbers into training and held-out ones, both orders of a pair on the same side.

    Args:
        pairs: distinct pairs, each in one order.

    Returns:
        `(train, held_out)`: the training pairs as int array [n, 2], the held-out ones in hash order, so that the two
        orders of a pair are not adjacent.
    """
    by_key = {f"{a}+{b}": (a, b) for a, b in pairs}
    train, held_out = (
        [order for a, b in map(by_key.get, keys) for order in dict.fromkeys([(a, b), (b, a)])]
        for keys in split_by_hash(by_key)
    )
    prompts = {f"{a} {b}": (a, b) for a, b in held_out}
    return np.array(train), [prompts[prompt] for prompt in hash_order(prompts)]


def take_held_out(task_name: str, problems: Sequence[P], n: int) -> Sequence[P]:
    """The first `n` of a task's held-out problems, in any form. Raises TaskError if there are fewer."""
    if not 0 <= n <= len(problems):
        raise TaskError(
            f"held_out({n}) asks for {n} problems, but '{task_name}' has only {len(problems)} held-out problems: ask "
            f"for 0 to {len(problems)}, or make the task larger (a part of its problems is held out)."
        )
    return problems[:n]


def draw_sums(draw: Callable[[], Iterable[int]], n: int, held_out: bool) -> list[tuple[int, ...]]:
    """`n` tuples of numbers to add from one side of the split; held-out ones all differ.

    All orders of the same numbers are on the same side.
    """
    found: list[tuple[int, ...]] = []
    while len(found) < n:
        numbers = tuple(map(int, draw()))
        if is_held_out("+".join(map(str, sorted(numbers)))) == held_out and not (held_out and numbers in found):
            found.append(numbers)
    return found


def is_held_out(key: str, fraction: float = HELD_OUT_FRACTION) -> bool:
    """True for that fraction of all keys, by their hash. Use it if there are too many problems to list."""
    return int.from_bytes(blake2b(key.encode(), digest_size=4).digest()) < fraction * 2**32
