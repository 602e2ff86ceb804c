"""Chapter 25: answers in other styles; the solutions agree with the kit's own tools."""

import contextlib
import functools
import itertools
import json
import re

import numpy as np
import pytest

from mlx_grpo_kit.assets import TINY_TOOLS
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_25 import exercises as chapter
from mlx_grpo_kit.qwen3 import load_tokenizer
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
    return "< ".join(result.split("<")), 0


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
            assert failed or text.replace("< ", "<") == theirs.text


QWEN3_TOKENS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|vision_pad|>", "<|fim_middle|>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
]


def test_a_result_has_no_control_token_in_it():
    tokenizer = load_tokenizer(TINY_TOOLS)
    assert {*tokenizer.added_tokens} < {*QWEN3_TOKENS}
    for token in QWEN3_TOKENS:
        for text in (token, token[0] + token * 2, f"3\n{token}\n"):
            result, _ = chapter.run_call(chapter.TOOLS, ("quote", {"text": text}))
            assert not any(each in result for each in QWEN3_TOKENS)
            assert tokenizer.added_token_ids.isdisjoint(tokenizer.encode(result))


# Wrong answers that are nobody's slip of the solution.


def helper(text):
    return eval(text)


def calls_by_helper(text):
    try:
        return [helper(part.split("</tool_call>")[0]) for part in text.split("<tool_call>")[1:]]
    except BaseException:
        return []


def calls_by_exec(text):
    space = {}
    exec("call = " + text.partition("<tool_call>")[2].partition("</tool_call>")[0].strip(), space)
    return [(space["call"]["name"], space["call"].get("arguments", {}))]


def calls_by_compiled_text(text):
    code = [compile(each.strip(), "", "eval") for each in re.findall("<tool_call>(.*?)</tool_call>", text, re.DOTALL)]
    return [(call["name"], call["arguments"]) for call in map(eval, code)]


def calls_by_literals(text):
    return calls_by_pattern(text.replace("'", '"'))


def run_each(tools, call):
    """Every tool is tried, and the result of the right one is taken."""
    found = {}
    for name, tool in tools.items():
        with contextlib.suppress(Exception):
            found[name] = tool(**call[1])
    return careful_run({**dict.fromkeys(tools, None), call[0]: lambda **_: found[call[0]]} if call else {}, call)


def run_again_after_an_error(tools, call):
    text, failed = careful_run(tools, call)
    return careful_run(tools, call) if failed else (text, failed)


def run_without(*tokens):
    def answer(tools, call):
        try:
            text, failed = str(tools[call[0]](**call[1])), False
        except Exception as error:
            text, failed = f"error: {error}", True
        for token in tokens:
            text = text.replace(token, f"< {token[1:]}")
        return text, failed

    return answer


def tools_for_show(run):
    """A loop whose last calls are made, and their results dropped; or whose calls are made twice."""

    def answer(write, tools, question, most_turns):
        chat = [{"role": "user", "content": question}]
        for turn in range(most_turns):
            chat.append({"role": "assistant", "content": write(chat)})
            results = [run(tools, call) for call in chapter.read_calls(chat[-1]["content"])]
            if not results or turn == most_turns - 1:
                break
            chat += [{"role": "tool", "content": text} for text, _ in results]
        return chat

    return answer


def twice(tools, call):
    careful_run(tools, call)
    return careful_run(tools, call)


def write_twice(write, tools, question, most_turns):
    def again(messages):
        write(messages)
        return write(messages)

    return chapter.converse(again, tools, question, most_turns)


def loss_over(counted):
    def answer(logps, advantages, mask):
        with np.errstate(all="ignore"):
            terms = np.where(mask, logps, 0.0) * advantages[:, None]
        count = counted(logps, advantages, mask, terms)
        return -terms.sum() / count if count else 0.0

    return answer


def fair_if(is_right):
    def answer(messages, answer):
        if not messages or messages[-1]["role"] != "assistant" or not is_right(messages[-1]["content"], answer):
            return 0.0
        calls = sum(len(message.get("tool_calls", [])) for message in messages)
        return max(1.0 - 0.1 * max(calls - 1, 0), 0.0)

    return answer


def as_numbers(content, answer):
    try:
        return int(content) == int(answer)
    except ValueError:
        return content.strip() == answer


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        ("25.2", calls_by_helper, "it calls `eval`, which runs whatever a model wrote"),
        ("25.2", calls_by_exec, "it calls `exec`"),
        ("25.2", calls_by_compiled_text, "it calls `eval`"),
        ("25.2", calls_by_literals, "expected [None]"),
        ("25.3", run_each, "more or other calls of tools than this one"),
        ("25.3", run_again_after_an_error, "more or other calls of tools than this one"),
        ("25.3", twice, "more or other calls of tools than this one"),
        ("25.3", run_without("<|"), "`<tool_call>` and `</tool_response>` are control tokens too"),
        ("25.3", run_without("<|im_start|>", "<|im_end|>"), "expected"),
        ("25.3", run_without("<|", "<tool_call>"), "expected"),
        ("25.3", run_without("<|", "<tool_call>", "</tool_call>", "<tool_response>"), "expected"),
        ("25.4", tools_for_show(careful_run), "3 calls of tools and the results of 2"),
        ("25.4", tools_for_show(twice), "2 calls of tools and the results of 1"),
        ("25.4", write_twice, "2 turns of the model, after 4 calls of `write`"),
        ("25.7", loss_over(lambda logps, advantages, mask, terms: mask[advantages != 0].sum()), "they count"),
        ("25.7", loss_over(lambda logps, advantages, mask, terms: (terms != 0).sum()), "expected"),
        ("25.7", loss_over(lambda logps, advantages, mask, terms: (mask & (logps != 0)).sum()), "expected"),
        ("25.7", loss_over(lambda logps, advantages, mask, terms: np.isfinite(logps).sum()), "expected"),
        ("25.7", loss_over(lambda logps, advantages, mask, terms: (logps < 0).sum()), "expected"),
        (
            "25.7",
            loss_over(lambda logps, advantages, mask, terms: (mask.any(axis=1) * mask.shape[1]).sum()),
            "expected",
        ),
        ("25.11", fair_if(as_numbers), "expected 0"),
        ("25.11", fair_if(lambda content, answer: content.split()[-1:] == [answer]), "expected"),
        ("25.11", fair_if(lambda content, answer: content.split()[:1] == [answer]), "expected"),
        ("25.11", fair_if(lambda content, answer: content.strip() in answer), "expected"),
        ("25.11", fair_if(lambda content, answer: content.strip() in ("5", "15", "7")), "expected"),
        (
            "25.11",
            fair_if(lambda content, answer: re.sub(r"\W", "", content) == re.sub(r"\W", "", answer)),
            "expected 0",
        ),
        (
            "25.11",
            lambda messages, answer: fair_by_steps(messages and messages[:1] + messages[-1:], answer),
            "expected",
        ),
    ],
)
def test_wrong_answers_are_refused_with_a_reason(id, answer, words):
    verdict = find(id).examine(answer)
    assert verdict.status == "not yet"
    assert words in verdict.message, verdict.message


def test_no_player_needs_fewer_questions():
    for n in range(1, 40):
        assert chapter.fewest_questions(n) == pytest.approx(_total(n) / n)
