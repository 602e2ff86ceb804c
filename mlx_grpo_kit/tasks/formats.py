"""Rewards for the form of an answer, whatever its content: a stepping stone while right answers are rare.

    from mlx_grpo_kit.tasks.formats import DIGITS, THINK_ANSWER, format_reward, tags_reward

    Addition(reward_funcs=[correct, format_reward(DIGITS, value=0.1)])       # strict: the whole text has the form
    MyTask(reward_funcs=[correct, tags_reward(value=0.1)])                   # soft: a share for each tag in the right
    place

Keep them small compared with the reward for a right answer: a policy learns the form sooner than the answer, and if the
form alone pays, the policy stays with well-formed nonsense (open-r1#373). DeepSeek-R1
(https://arxiv.org/abs/2501.12948, section 2.2.2) uses the form with `<think>` and `<answer>`. Where a chat template
writes `<think>` itself, the completions that these functions get begin with it (`Tokenizer.read`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlx_grpo_kit.tasks.task import Problem, RewardFunc

MAX_CHARACTERS = 100_000
"""The maximum number of characters to read. A longer completion counts as having no form."""

DIGITS = re.compile(r"[0-9]{1,3}")
"""The addition task's answers: one to three ASCII digits, and then the end."""

_INSIDE = "((?:(?!</?think>|</?answer>).)*)"  # anything but another tag
THINK_ANSWER = re.compile(rf"<think>{_INSIDE}</think>\s*<answer>{_INSIDE}</answer>\s*", re.DOTALL)
"""`<think>reasons</think><answer>result</answer>`, with white space between and after them, and each tag once."""

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def format_reward(
    pattern: str | re.Pattern[str], value: float = 1.0, *, strict: bool = True, name: str = "format"
) -> RewardFunc:
    """Return a reward function: `value` for a completion that matches `pattern`, else 0.

    Args:
        pattern: a regular expression of Python's `re`. Write it so that no two parts can match the same characters:
            `(a+)+b` takes time that doubles with each `a`, and a policy may discover that.
        value: the reward for the form. Keep it well below the reward for a right answer.
        strict: True if the whole completion must match; False if the form may occur anywhere in it.
        name: the name of the metric.

    Raises:
        re.error: the pattern is not a regular expression.
    """
    compiled = re.compile(pattern)
    find = compiled.fullmatch if strict else compiled.search

    def reward(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
        return [value if len(text) <= MAX_CHARACTERS and find(text) else 0.0 for text in completions]

    reward.__name__ = name
    return reward


def tags_reward(value: float = 1.0, *, tags: Sequence[str] = TAGS, name: str = "tags") -> RewardFunc:
    """Return a reward function: `value` times the share of `tags` that occur once and in order.

    This is the soft version of `format_reward(THINK_ANSWER)`: two completions that both miss the form may still get
    different rewards. It counts from the left and stops at the first tag that is missing, repeated or out of place.
    """

    def share(text: str) -> float:
        if len(text) > MAX_CHARACTERS:
            return 0.0
        place, found = 0, 0
        for tag in tags:
            at = text.find(tag)
            if at < place or text.count(tag) != 1:
                break
            place, found = at + len(tag), found + 1
        return value * found / len(tags)

    def reward(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
        return [share(text) for text in completions]

    reward.__name__ = name
    return reward
