"""Chapter 25: the solutions agree with the kit's own tools."""

import functools

import pytest

from mlx_grpo_kit.assets import TINY_TOOLS
from mlx_grpo_kit.course.chapters.chapter_25 import exercises as chapter
from mlx_grpo_kit.qwen3 import load_tokenizer
from mlx_grpo_kit.tasks.tool_calls import ToolCall, call_tools, parse_tool_calls
from mlx_grpo_kit.tasks.tools import Toolbox


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


@functools.cache
def total(n):
    return 0 if n == 0 else n + min(total(first) + total(n - 1 - first) for first in range(n))


def test_no_player_needs_fewer_questions():
    for n in range(1, 40):
        assert chapter.fewest_questions(n) == pytest.approx(total(n) / n)
