"""Two updates on one batch: what an answer hands to its `update`, and what the kit and TRL compute in its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_24 import small
from mlx_grpo_kit.grpo import compute_advantages, compute_grpo_loss, per_token_logps
from mlx_grpo_kit.runtime import mx

TRL = json.loads(Path(__file__).with_name("trl.json").read_text(encoding="utf-8"))
"""The losses of both updates of the case `by_trl`, and their derivatives [B, T] by the log-probabilities of the policy.

A test runs TRL and compares it with these numbers.
"""

NUMBER_OF_CALLS = (
    small.Misfit("no call of `update`, where two were expected"),
    small.Misfit("one call of `update`, where two were expected"),
    small.Misfit("more than two calls of `update`"),
)
SWAPPED = small.Misfit("parameters as the first argument of `update`, where the gradient was expected")
NO_GRADIENT = small.Misfit(
    "something else to `update` as a gradient, where a dictionary with an array for each parameter was expected"
)
FROM_THE_START = small.Misfit("a second update that begins with the first parameters again")
LOST = small.Misfit("another result than the parameters after the second update")
AWAY = 0.08  # standard deviation by which the policies of a case differ in each parameter


class Reused:
    """A batch of the small model, which is used for two updates.

    Whatever the gradient is, the first update leads to `policies[1]` and the second to `policies[2]`. So a wrong
    gradient of the first update does not change what is right for the second.

    Args:
        words: for messages.
        seed: of the weights, the completions and the rewards.
        epsilon, beta: of the objective.
        by_trl: True if the right numbers are those of TRL instead of the kit's.
        only: how many of the completions are given to an answer. The advantages of a part do not add up to 0.
        tied: all rewards of the second group are equal, so that its advantages are 0.
    """

    def __init__(
        self,
        words: str,
        seed: int,
        epsilon: float,
        beta: float,
        by_trl: bool = False,
        only: int = 8,
        tied: bool = False,
    ):
        self.words, self.seed, self.epsilon, self.beta, self.by_trl = words, seed, epsilon, beta, by_trl
        self.only, self.tied = only, tied
        self.how = f"With {words}"

    def __repr__(self) -> str:
        return self.words

    def batch(self) -> tuple[list[list[int]], list[list[int]], list[float]]:
        """(prompts, completions, advantages) of two groups of four, or of the part that is given."""
        rng = np.random.default_rng(self.seed)
        prompts, completions = small.ragged(rng, rows=8)
        rewards = rng.permuted([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0 if self.tied else 1.0]], axis=1).ravel()
        return (
            [[*prompts[row // 4 * 4]] for row in range(self.only)],
            completions[: self.only],
            np.array(compute_advantages(rewards, 4)).tolist()[: self.only],
        )

    def policies(self) -> list[dict[str, mx.array]]:
        """The parameters before, between and after the updates, and those of the reference; new arrays in each call."""
        start, rng = small.params(self.seed), np.random.default_rng(self.seed)
        others = [
            {
                name: value + AWAY * mx.array(rng.normal(size=value.shape).astype(np.float32))
                for name, value in start.items()
            }
            for _ in range(3)
        ]
        return [start, *others]

    def logps(self) -> tuple[list[mx.array], mx.array]:
        """The log-probabilities [B, T] of the tokens under each of the policies, and the mask."""
        prompts, completions, _ = self.batch()
        found = [per_token_logps(small.CONFIG, params, prompts, completions) for params in self.policies()]
        return [logps for logps, _ in found], found[0][1]

    def right(self) -> dict[str, mx.array]:
        """The gradient of both updates, by update and name: the kit's, or TRL's derivatives through the kit's model."""
        prompts, completions, pushes = self.batch()
        (old, _, _, reference), mask = self.logps()

        def gradient(update: int, params: Mapping[str, mx.array]) -> Mapping[str, mx.array]:
            def loss(params: Mapping[str, mx.array]) -> mx.array:
                logps, _ = per_token_logps(small.CONFIG, params, prompts, completions)
                if self.by_trl:
                    return (mx.where(mask, logps, 0.0) * mx.array(TRL["derivatives"][update])).sum()
                how = {"epsilon": self.epsilon, "beta": self.beta, "ref_logps": reference}
                return compute_grpo_loss(logps, old, mx.array(pushes), mask, **how)

            return mx.grad(loss)(params)

        return labelled([gradient(update, params) for update, params in enumerate(self.policies()[:2])])


def labelled(grads: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The gradients of the updates in one dictionary."""
    return {f"{name} in update {number}": each[name] for number, each in enumerate(grads, 1) for name in sorted(each)}


def watch(function: Callable[..., Any], case: Reused) -> Any:
    """What a reader's function hands to its `update`: gradients by update and name, or words for another mistake."""
    prompts, completions, pushes = case.batch()
    start, *ways, reference = case.policies()
    seen: list[tuple[Any, Any]] = []

    def update(grads: Any, params: Any) -> dict[str, mx.array]:
        seen.append((grads, params))
        return small.copied(ways[min(len(seen), 2) - 1])

    found = function(
        small.CONFIG, small.copied(start), prompts, completions, pushes, update, reference, case.epsilon, case.beta
    )
    if found is None and not seen:
        return None
    if len(seen) != 2:
        return NUMBER_OF_CALLS[min(len(seen), 2)]
    if _are(seen[0][0], start):
        return SWAPPED
    for grads, _ in seen:
        if not isinstance(grads, Mapping) or grads.keys() != start.keys():
            return NO_GRADIENT
    if _are(seen[1][1], start):
        return FROM_THE_START
    if not _are(found, ways[1]):
        return LOST
    return labelled([{name: mx.array(value) for name, value in grads.items()} for grads, _ in seen])


def _are(found: Any, params: Mapping[str, mx.array]) -> bool:
    """True if these are those parameters."""
    return (
        isinstance(found, Mapping)
        and found.keys() == params.keys()
        and all(np.array_equal(np.asarray(found[name]), np.asarray(params[name])) for name in params)
    )
