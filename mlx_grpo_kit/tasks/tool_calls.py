"""Tool calls in a completion: parsed strictly, run safely, and always answered.

Qwen3 writes a call as JSON between two tokens, and may write several in one turn:

    <tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 2}}
    </tool_call>

Nothing that a model writes is executed except calls of the task's tools. If a call cannot be parsed or run, the answer
is an error message that the model sees.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlx_grpo_kit.runtime.event_loop import user_loop
from mlx_grpo_kit.tasks.answers import without_thoughts

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CALL = re.compile(f"{OPEN}.*?{CLOSE}", re.DOTALL)
LONGEST_CALL, LONGEST_RESULT = 2**16, 2**16
"""The maximum numbers of characters in a call and in a result; a longer one is an error, which the model sees."""


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it.

    Attributes:
        name: the name of the tool; "unknown" if it cannot be read.
        arguments: the arguments by name.
        error: the reason why it cannot be run; None for a well-formed call.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class ToolResult:
    """The answer to a call: a text, and whether the call failed."""

    name: str
    text: str
    failed: bool = False


def parse_tool_calls(text: str) -> list[ToolCall]:
    """The calls in the text of a turn, in their order.

    Calls inside a thought (`<think>...</think>`) are ignored. A call must be a JSON object with a "name", a string, and
    "arguments", an object, which may be missing. Anything else becomes a `ToolCall` with an error.
    """
    calls = []
    rest = without_thoughts(text)
    while OPEN in rest:
        _, _, rest = rest.partition(OPEN)
        inside, closed, after = rest.partition(CLOSE)
        if not closed:
            calls.append(_bad(f"{OPEN} without {CLOSE}"))
            break
        calls.append(_read_call(inside))
        rest = after
    return calls


def assistant_message(text: str) -> dict[str, Any]:
    """A turn of the policy as a chat message in TRL's form: content, thought and well-formed calls separately.

    If a call cannot be parsed, the whole turn is content.
    """
    message: dict[str, Any] = {"role": "assistant", "content": text}
    calls = parse_tool_calls(text)
    if any(call.error is not None for call in calls):
        return message
    thought, ends, content = text.rpartition("</think>")
    if not ends and "<think>" in content:  # an unclosed thought
        content, _, thought = content.partition("<think>")
    if thought := thought.removeprefix("<think>").strip():
        message["reasoning_content"] = thought
    message["content"] = CALL.sub("", content).strip()
    if calls:
        functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
        message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
    return message


def _read_call(source: str) -> ToolCall:
    if len(source) > LONGEST_CALL:
        return _bad(f"a call has {len(source):,} characters; expected at most {LONGEST_CALL:,}")
    try:
        call = json.loads(source)
    except (ValueError, RecursionError) as error:
        return _bad(f"a call is no JSON: {error}")
    if not isinstance(call, dict):
        return _bad('a call is no JSON object; expected {"name": ..., "arguments": {...}}')
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str):
        return _bad('a call has no "name"; expected {"name": ..., "arguments": {...}}')
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, '"arguments" is no JSON object; expected {"argument": value}')
    return ToolCall(name, arguments)


def _bad(error: str) -> ToolCall:
    return ToolCall("unknown", {}, error)


def call_tools(
    calls: Sequence[tuple[Mapping[str, Callable], ToolCall]], timeout: float | None = None
) -> list[ToolResult]:
    """Run calls, each with the tools that it may use, and return their results in the same order.

    Tools that are coroutine functions run concurrently; the others run one after the other. A
    call that fails in any way has the result `{'error': ...}`, as in TRL.

    Args:
        calls: pairs of (tools by name, call).
        timeout: seconds that a call may take; a tool that is still running then is left alone in its thread. None means
            no limit.
    """
    outcomes = [_begin(tools, call, timeout) for tools, call in calls]
    waiting = {place: outcome for place, outcome in enumerate(outcomes) if inspect.isawaitable(outcome)}
    if waiting:
        together = asyncio.run_coroutine_threadsafe(_all_of([*waiting.values()], timeout), user_loop())
        for place, outcome in zip(waiting, together.result(), strict=True):
            outcomes[place] = outcome
    return [_in_words(call.name, outcome) for (_, call), outcome in zip(calls, outcomes, strict=True)]


@dataclass(frozen=True)
class _Failure:
    words: str


def _begin(tools: Mapping[str, Callable], call: ToolCall, timeout: float | None) -> Any:
    """The value that a tool returned, its coroutine, or the failure."""
    if call.error is not None:
        return _Failure(call.error)
    if call.name not in tools:
        return _Failure(f"Tool {call.name[:100]} not found.")
    tool = tools[call.name]
    if inspect.iscoroutinefunction(tool):
        try:
            return tool(**call.arguments)  # wrong arguments raise here, even for coroutine functions
        except Exception as error:
            return _failure_of(error)
    return _in_time(lambda: tool(**call.arguments), timeout)


def _in_time(call: Callable[[], Any], timeout: float | None) -> Any:
    """Call in a new thread, which can be abandoned."""
    found: list[Any] = [_Failure(f"no answer within {timeout} seconds")]

    def run() -> None:
        try:
            found[0] = _plain(call())
        except BaseException as error:  # exit() in a tool must not end the run
            found[0] = _failure_of(error)

    thread = threading.Thread(target=run, name="tool", daemon=True)
    thread.start()
    thread.join(timeout)
    return found[0]


async def _all_of(coroutines: Sequence[Any], timeout: float | None) -> list[Any]:
    async def one(coroutine: Any) -> Any:
        try:
            return _plain(await asyncio.wait_for(coroutine, timeout))
        except TimeoutError:
            return _Failure(f"no answer within {timeout} seconds")
        except BaseException as error:
            return _failure_of(error)

    return [*await asyncio.gather(*map(one, coroutines))]


def _plain(value: Any) -> str | _Failure:
    """A result as text. Its `__str__` is also the user's code, so this runs under the same guard as the call."""
    text = str(value)
    if len(text) > LONGEST_RESULT:
        return _Failure(f"the result has {len(text):,} characters; expected at most {LONGEST_RESULT:,}")
    return text.encode("utf-8", "replace").decode("utf-8")  # an unpaired surrogate has no UTF-8 form


def _failure_of(error: BaseException) -> _Failure:
    try:
        words = str(error)
    except Exception:
        words = ""
    return _Failure(words or type(error).__name__)


def _in_words(name: str, outcome: str | _Failure) -> ToolResult:
    if isinstance(outcome, _Failure):
        return ToolResult(name, _plain_error(outcome.words), failed=True)
    return ToolResult(name, outcome)


def _plain_error(words: str) -> str:
    return str({"error": words[:1000].encode("utf-8", "replace").decode("utf-8")})
