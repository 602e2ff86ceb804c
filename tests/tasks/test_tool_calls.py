"""Tool calls: what TRL reads in a turn, and a thousand turns that no careful model would write."""

import asyncio
import json
import threading
import time
from typing import Any, Literal

import numpy as np
import pytest

from mlx_grpo_kit.assets import TINY_CHAT
from mlx_grpo_kit.runtime.worker import Worker
from mlx_grpo_kit.tasks import ToolCall, get_json_schema, parse_tool_calls
from mlx_grpo_kit.tasks.tool_calls import LONGEST_RESULT, assistant_message, call_tools
from mlx_grpo_kit.tasks.tools import Toolbox

GOOD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
READABLE = [
    "nothing at all",
    GOOD,
    "let me " + GOOD,
    GOOD + " the answer",
    GOOD + "\n" + GOOD,
    GOOD + "x" + GOOD,
    "<think>\nI " + GOOD + "\n</think>\n\nhi",
    "<think>\nhm\n</think>\n\n" + GOOD,
    "<think>\n\n</think>\n\n" + GOOD,
    "<think>never ends " + GOOD,
    '<tool_call>{"name": "add"}</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": 1, "a": 2}}</tool_call>',
    '<tool_call>{"name": "none", "arguments": {"text": "a\\nb \\u00e9"}}</tool_call>',
    "</tool_call>",
    "",
]
MALFORMED = [
    "<tool_call>{",
    GOOD[:-5],
    "<tool_call>[1]</tool_call>",
    '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
    "<tool_call></tool_call>",
    "<tool_call>" * 40,
    '<tool_call>{"name": "add", "arguments": {}}}</tool_call>',
    "<tool_call>" + "[" * 100_000 + "</tool_call>",
    "<tool_call>" + "7" * 10_000 + "</tool_call>",
    *(f'<tool_call>{{"name": "add", "arguments": {each}}}</tool_call>' for each in (
        '{"a": NaN}', '{"a": [[-Infinity]]}', '{"a": 1e999}', r'{"a": "\ud800"}', r'{"\udc00a": 1}', '{"a": %s}' %
        ("[" * 65 + "]" * 65), '{"a": ' * 500 + "1" + "}" * 500, '{"a": %s}' % ("9" * 5000),
    )),
    r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>',
    r'<tool_call>{"name": "add", "x": "\ud800"}</tool_call>',
]  # fmt: skip


@pytest.fixture(scope="module")
def peer():
    """TRL's reading of a turn: text -> message; `opened` is the thought that the template writes before it."""
    import transformers
    from trl.chat_template_utils import parse_response, qwen3_template

    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY_CHAT)
    tokenizer.response_template = qwen3_template
    before = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"

    def read(text, opened="", tools=None):
        prefix, said = (tokenizer(each)["input_ids"] for each in (before + opened, text + "<|im_end|>"))
        return parse_response(tokenizer, said, prefix=prefix, tools=tools)

    return read


@pytest.mark.parametrize("opened", ["", "<think>\n"])
@pytest.mark.parametrize("text", READABLE)
def test_a_turn_is_read_as_trl_reads_it(peer, text, opened):
    theirs = peer(text, opened)
    text = opened + text
    if theirs.get("reasoning_content", "").endswith("<|im_end|>"):  # TRL keeps it in a thought that does not end
        thought = theirs.pop("reasoning_content").removesuffix("<|im_end|>")
        theirs |= {"reasoning_content": thought} if thought else {}
    assert assistant_message(text) == theirs
    expected = [call["function"] for call in theirs.get("tool_calls", [])]
    assert [{"name": call.name, "arguments": call.arguments} for call in parse_tool_calls(text)] == expected


def every_type(
    i: int, n: float, b: bool, s: str, o: int | None, u: int | str, m: str | list[int], x: list[str], d: dict, a: Any,
    c: Literal["1", 2, None],
):  # fmt: skip
    """Take arguments of all types.

    Args:
        i: i
        n: n
        b: b
        s: s
        o: o
        u: u
        m: m
        x: x
        d: d
        a: a
        c: c
    """


TEXTS = ["7", "-7", " 7 ", "7.0", "7.5", "1e3", "1e300", "1e999", "nan", "-inf", "٣", "1_0", "0x1", "9" * 5000, "true",
         "FALSE", "0", "1", "yes", "null", "None", "[1]", '["1"]', '{"a": 1}', "[", "", "x", "True "]  # fmt: skip


@pytest.mark.parametrize("name", ["every_type", "never", "neither"])
def test_arguments_have_the_types_of_the_schema_as_in_trl(peer, name):
    schemas = [get_json_schema(never), get_json_schema(every_type)]
    for value in [*TEXTS, TEXTS, 7, 7.5, True, None, {"k": "7"}, [["7"], "8", 9]]:
        arguments = dict.fromkeys([*"inbsoumxdac", "unknown"], value)
        text = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        found = assistant_message(text, schemas)
        assert json.dumps(found, sort_keys=True) == json.dumps(peer(text, tools=schemas), sort_keys=True)
        [call] = parse_tool_calls(text, schemas)
        assert call.arguments == found["tool_calls"][0]["function"]["arguments"]


def test_an_argument_is_never_converted_into_what_json_lacks():
    arguments = dict.fromkeys("inbsoumxda", "[NaN]") | {"d": '{"a": %s}' % ("[" * 99 + "]" * 99), "x": r'["\ud800"]'}
    text = f"<tool_call>{json.dumps({'name': 'every_type', 'arguments': arguments})}</tool_call>"
    assert parse_tool_calls(text, [get_json_schema(every_type)]) == [ToolCall("every_type", arguments)]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_call_is_an_error_in_words(text):
    calls = parse_tool_calls(text)
    assert calls
    assert all(call.error for call in calls)
    assert assistant_message(text) == {"role": "assistant", "content": text}
    [result, *_] = call_tools([(Toolbox({"add": never}), call) for call in calls])
    assert result.failed
    assert result.text.startswith("{'error': ")
    assert len(result.text) < 1200


def never():
    """Fail."""
    raise AssertionError("this tool was not called")


def test_a_thousand_hostile_turns_call_nothing_but_tools():
    """Mutations of a good call: only `add` with its own arguments is ever called, and every call has an answer."""
    rng = np.random.default_rng(0)
    called = []

    def add(a, b):
        called.append((a, b))
        return a + b

    # fmt: off
    words = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>", '"name"', '"arguments"', "{", "}",
             "null", "__import__('os').system('false')", "self", "add", "eval", "exec", '"add"', ":", ",",
             "\\u0000", "\ud800", "1e999", "NaN", "-0", "\x00", "é", "\n", "'", "``", "${x}", "%s", "{0}"]
    # fmt: on
    answers, box = 0, Toolbox({"add": add}, worker=Worker(5))
    for _ in range(1000):
        text = GOOD * int(rng.integers(1, 3))
        for _ in range(rng.integers(1, 6)):
            start = int(rng.integers(0, len(text) + 1))
            end = start + int(rng.integers(0, 12)) * int(rng.integers(0, 2))
            text = text[:start] + str(rng.choice(words)) + text[end:]
        calls = parse_tool_calls(text)
        results = call_tools([(box, call) for call in calls])
        assert len(results) == len(calls)
        for result in results:
            result.text.encode()
            answers += 1
        assistant_message(text)
    assert answers > 500
    assert called
    assert {pair for pair in called if pair != (1, 2)} != called


class TestCalls:
    def test_the_result_is_text(self):
        tools = {"f": lambda **given: given}
        [result] = call_tools([(Toolbox(tools), ToolCall("f", {"a": [1, None]}))])
        assert (result.text, result.failed) == ("{'a': [1, None]}", False)

    @pytest.mark.parametrize(
        ("tool", "words"),
        [
            (lambda: 1 / 0, "division by zero"),
            (lambda: exit(3), "3"),
            (lambda a: a, "missing 1 required positional argument: 'a'"),
            (lambda: "x" * (LONGEST_RESULT + 1), "the result has 65,537 characters"),
            (lambda: BadTextError(), "no text"),
            (lambda: time.sleep(20), "no answer within 0.2 seconds"),
            (lambda: (_ for _ in ()).throw(KeyError()), "KeyError"),
            (lambda: (_ for _ in ()).throw(GeneratorExit("g")), "g"),
            (lambda: (_ for _ in ()).throw(KeyboardInterrupt("k")), "k"),
            (lambda: (_ for _ in ()).throw(asyncio.CancelledError("c")), "c"),
            (lambda: (_ for _ in ()).throw(TimeoutError()), "TimeoutError"),
            (lambda: (_ for _ in ()).throw(BadTextError("\ud800")), "BadTextError"),
            (lambda: (_ for _ in ()).throw(ValueError("\ud800" + "x" * 5000)), "?xxx"),
            (lambda: (_ for _ in ()).throw(StopIteration("s")), "s"),
        ],
    )
    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_a_tool_that_fails_is_told_of(self, tool, words, asynchronous):
        if asynchronous:
            call = tool if not tool.__code__.co_varnames else None

            async def tool(**given):
                return call(**given) if call else never(1)

            words = words if call else "positional argument"
        began = time.perf_counter()
        [result] = call_tools([(Toolbox({"f": tool}, worker=Worker(0.2)), ToolCall("f"))])
        assert result.failed
        assert words in result.text
        assert time.perf_counter() - began < 10

    def test_half_of_a_surrogate_pair(self):
        [result] = call_tools([(Toolbox({"f": lambda: "a\ud800b"}), ToolCall("f"))])
        assert result.text == "a?b"

    def test_an_unknown_tool(self):
        [result] = call_tools([(Toolbox({}), ToolCall("x" * 10_000))])
        assert result.failed
        assert result.text == str({"error": f"Tool {'x' * 100} not found."})

    def test_coroutines_run_together_and_keep_their_places(self):
        running, most = 0, 0

        async def slow(n):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.05)
            running -= 1
            if n == 3:
                raise ValueError("three")
            return n

        tools = {"slow": slow, "fast": lambda n: -n}
        calls = [ToolCall("slow", {"n": 1}), ToolCall("fast", {"n": 2}), ToolCall("slow", {"n": 3}),
                 ToolCall("slow", {"m": 4}), ToolCall("slow", {"n": 5})]  # fmt: skip
        results = call_tools([(Toolbox(tools, worker=Worker(5)), call) for call in calls])
        assert most == 3
        assert [result.text for result in results[:3]] == ["1", "-2", "{'error': 'three'}"]
        assert [result.failed for result in results] == [False, False, True, True, False]

    def test_a_coroutine_that_hangs(self):
        async def hangs():
            await asyncio.sleep(60)

        [result] = call_tools([(Toolbox({"f": hangs}, worker=Worker(0.1)), ToolCall("f"))])
        assert "no answer within 0.1 seconds" in result.text

    @pytest.mark.parametrize("timeout", [None, 5])
    def test_all_calls_run_in_one_thread(self, timeout):
        """Without a timeout it is the caller's; a result that comes too late ends the thread, and nothing else."""
        box = Toolbox({"f": threading.get_ident, "hangs": lambda: time.sleep(60)}, worker=Worker(timeout))
        calls = [(box, ToolCall("f"))] * 3
        [thread] = {result.text for result in call_tools(calls)} | {call_tools(calls)[0].text}
        assert (thread == str(threading.get_ident())) == (timeout is None)
        if timeout:
            box.worker.timeout = 0.1
            assert [each.failed for each in call_tools([(box, ToolCall("hangs")), calls[0]])] == [True, False]


class BadTextError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_arguments_are_json():
    [call] = parse_tool_calls(
        f"<tool_call>{json.dumps({'name': 'f', 'arguments': {'a': {'b': [1.5, True]}}})}</tool_call>"
    )
    assert call == ToolCall("f", {"a": {"b": [1.5, True]}})
