"""Chapter 25: answers in other styles; the solutions agree with the kit's own tools."""

import functools
import itertools
import json
import re

import numpy as np
import pytest

from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_25 import exercises as chapter
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks.tool_calls import ToolCall, call_tools, parse_tool_calls
from mlx_grpo_kit.tasks.tools import Toolbox


def dense_call(name, arguments):
    inside = json.dumps(dict(name=name, arguments=arguments), separators=(",", ":"), ensure_ascii=False)
    return "\n".join(["<tool_call>", inside, "</tool_call>"])


def calls_by_pattern(text):
    found = []
    for inside, end in re.findall(r"<tool_call>(.*?)(</tool_call>|\Z)", text, re.DOTALL):
        try:
            call = json.loads(inside) if end else None
            arguments = call.get("arguments", {})
            good = isinstance(call["name"], str) and isinstance(arguments, dict)
        except Exception:
            good = False
        found.append([call["name"], arguments] if good else None)
    return tuple(found)


def careful_run(tools, call):
    if call is None or call[0] not in tools:
        return "no such tool", True
    try:
        result = f"{tools[call[0]](**call[1])}"
    except Exception as error:
        return type(error).__name__, 1
    return "< |".join(result.split("<|")), 0


def converse_with_while(write, tools, question, most_turns):
    chat = [dict(role="user", content=question)]
    left = most_turns
    while left:
        left -= 1
        said = write(list(chat))
        chat += [dict(role="assistant", content=said)]
        asked = chapter.read_calls(said)
        if left == 0 or asked == []:
            return chat
        chat += [dict(role="tool", content=careful_run(tools, one)[0]) for one in asked]
    return chat


def join_as_arrays(turns, results, limit):
    ids, mask = np.zeros(0, int), np.zeros(0, bool)
    for turn, result in itertools.zip_longest(turns, results, fillvalue=()):
        ids, mask = np.append(ids, turn), np.append(mask, np.ones(len(turn), bool))
        if len(ids) + len(result) > limit:
            break
        ids, mask = np.append(ids, result), np.append(mask, np.zeros(len(result), bool))
    return ids[:limit].astype(int), mask[:limit].astype(bool)


def shift_by_zip(encode, decode, ids):
    pairs = itertools.zip_longest(ids, encode(decode(ids)))
    return next((np.int64(place) for place, (a, b) in enumerate(pairs) if a != b), None)


def loss_by_rows(logps, advantages, mask):
    total, count = 0.0, 0
    for row, advantage, kept in zip(logps.tolist(), advantages.tolist(), mask.tolist(), strict=True):
        for value, one in zip(row, kept, strict=True):
            if one:
                total, count = total + value * advantage, count + 1
    return -total / max(count, 1)


def loss_in_mlx(logps, advantages, mask):
    kept = mx.array(mask)
    terms = mx.where(kept, mx.array(logps.astype(np.float32)), 0) * mx.array(advantages.astype(np.float32))[:, None]
    return -terms.sum() / mx.maximum(kept.sum(), 1)


def credit_backwards(mask, turn_rewards, gamma):
    left, worth, values = list(turn_rewards), 0.0, []
    for place in reversed(range(len(mask))):
        ends_a_turn = mask[place] and (place + 1 == len(mask) or not mask[place + 1])
        if ends_a_turn:
            worth = left.pop() + gamma * worth
        values.append(worth if mask[place] else 0)
    return np.array(values[::-1])


class OtherLock:
    def __init__(self):
        self.history = None

    def reset(self, **row):
        self.code, self.history = row["code"], []

    def try_code(self, code: str) -> str:
        if not (len(code) == len(self.code) and set(code) <= set("0123456789")):
            raise ValueError("no")
        self.history.append(code)
        places = [place for place in range(len(code)) if code[place] == self.code[place]]
        return str(len(places)) + " right"

    def get_reward(self):
        return 0 if self.code not in self.history else max(0, 11 - len(self.history)) / 10


def fewest_by_depth(n):
    total, depth, left = 0, 1, n
    while left:
        here = min(left, 2 ** (depth - 1))
        total, left, depth = total + here * depth, left - here, depth + 1
    return total / n


@functools.cache
def _total(n):
    return 0 if n == 0 else n + min(_total(first) + _total(n - 1 - first) for first in range(n))


def fewest_by_search(n):
    return np.float32(_total(n) / n)


def fair_by_steps(messages, answer):
    if not messages or messages[-1]["role"] == "tool" or messages[-1]["content"].strip() != answer:
        return 0
    tenths = 11
    for message in messages:
        tenths -= len(message.get("tool_calls") or [])
    return min(max(tenths, 0), 10) / 10


STYLES = [
    ("25.1", dense_call), ("25.2", calls_by_pattern), ("25.3", careful_run), ("25.4", converse_with_while),
    ("25.5", shift_by_zip), ("25.6", join_as_arrays), ("25.7", loss_by_rows), ("25.7", loss_in_mlx),
    ("25.8", credit_backwards), ("25.9", OtherLock), ("25.10", fewest_by_depth), ("25.10", fewest_by_search),
    ("25.11", fair_by_steps),
]  # fmt: skip


@pytest.mark.parametrize(("id", "answer"), STYLES, ids=[answer.__name__ for _, answer in STYLES])
def test_right_answers_in_other_styles_pass(id, answer):
    verdict = find(id).examine(answer)
    assert verdict.status == "passed", verdict.message


def test_calls_are_read_as_the_kit_reads_them():
    for (text,) in chapter.READ_CALLS.cases:
        theirs = [None if call.error else (call.name, dict(call.arguments)) for call in parse_tool_calls(text)]
        assert chapter.read_calls(text) == theirs, text[:80]


def test_calls_fail_where_the_kits_fail():
    for tools, call in chapter.RUN_CALL.cases:
        if call is not None:
            [theirs] = call_tools([(Toolbox(tools), ToolCall(*call))])
            text, failed = chapter.run_call(tools, call)
            assert failed == theirs.failed
            assert failed or text.replace("< |", "<|") == theirs.text


def test_no_player_needs_fewer_questions():
    for n in range(1, 40):
        assert chapter.fewest_questions(n) == pytest.approx(_total(n) / n)
