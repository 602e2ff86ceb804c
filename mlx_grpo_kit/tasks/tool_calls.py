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
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import Any

from mlx_grpo_kit.runtime.event_loop import lose_loop, user_loop
from mlx_grpo_kit.runtime.worker import Worker, words_of
from mlx_grpo_kit.tasks.answers import without_thoughts
from mlx_grpo_kit.tasks.arguments import read_json, typed
from mlx_grpo_kit.tasks.tools import Toolbox

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


def parse_tool_calls(text: str, schemas: Sequence[Mapping[str, Any]] = ()) -> list[ToolCall]:
    """The calls in the text of a turn, in their order.

    Calls inside a thought (`<think>...</think>`) are ignored. A call must be a JSON object with a "name", a string, and
    "arguments", an object, which may be missing. Anything else becomes a `ToolCall` with an error.

    Args:
        schemas: the tools as `get_json_schema` describes them. Arguments that are texts are converted to their types.
    """
    calls = []
    rest = without_thoughts(text)
    while OPEN in rest:
        _, _, rest = rest.partition(OPEN)
        inside, closed, after = rest.partition(CLOSE)
        if not closed:
            calls.append(_bad(f"{OPEN} without {CLOSE}"))
            break
        calls.append(_read_call(inside, schemas))
        rest = after
    return calls


def assistant_message(text: str, schemas: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """A turn of the policy as a chat message in TRL's form: content, thought and well-formed calls separately.

    If a call cannot be parsed, the whole turn is content.
    """
    message: dict[str, Any] = {"role": "assistant", "content": text}
    calls = parse_tool_calls(text, schemas)
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


def _read_call(source: str, schemas: Sequence[Mapping[str, Any]]) -> ToolCall:
    if len(source) > LONGEST_CALL:
        return _bad(f"a call has {len(source):,} characters; expected at most {LONGEST_CALL:,}")
    try:
        call = read_json(source)
    except ValueError as error:
        return _bad(f"a call is no JSON: {error}")
    if not isinstance(call, dict):
        return _bad('a call is no JSON object; expected {"name": ..., "arguments": {...}}')
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str):
        return _bad('a call has no "name"; expected {"name": ..., "arguments": {...}}')
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, '"arguments" is no JSON object; expected {"argument": value}')
    functions = [schema["function"] for schema in schemas]
    properties = [each["parameters"]["properties"] for each in functions if each["name"] == name]
    return ToolCall(name, typed(arguments, properties[0] if properties else {}))


def _bad(error: str) -> ToolCall:
    return ToolCall("unknown", {}, error)


def call_tools(calls: Sequence[tuple[Toolbox, ToolCall]]) -> list[ToolResult]:
    """Run calls, each with the tools that it may use, and return their results in the same order.

    Tools that are coroutine functions run concurrently; the others run one after the other, each in the worker of its
    toolbox. A call that fails in any way has the result `{'error': ...}`, as in TRL.

    After a call that takes longer than the worker's timeout, the environment of its toolbox is lost: the call may still
    run and change it, so all later calls fail too.
    """
    outcomes = [_begin(box, call) for box, call in calls]
    waiting = {place: each for place, each in enumerate(outcomes) if inspect.isawaitable(each)}
    answers = _await_all([(calls[place][0].worker, each) for place, each in waiting.items()])
    for place, outcome in zip(waiting, answers, strict=True):
        outcomes[place] = outcome
    return [_in_words(call.name, outcome) for (_, call), outcome in zip(calls, outcomes, strict=True)]


@dataclass(frozen=True)
class _Failure:
    words: str


def _begin(box: Toolbox, call: ToolCall) -> Any:
    """The text that a tool returned, its coroutine, or the failure."""
    if call.error is not None:
        return _Failure(call.error)
    if call.name not in box.tools:
        return _Failure(f"Tool {call.name[:100]} not found.")
    if box.is_lost:
        return _Failure("the environment did not answer an earlier call in time, and is lost")
    tool = box.tools[call.name]
    try:
        if inspect.iscoroutinefunction(tool):
            return tool(**call.arguments)  # wrong arguments raise here, even for coroutine functions
        return box.worker.run(lambda: _answer(lambda: tool(**call.arguments)), limited=True)
    except Exception as error:
        return _Failure(words_of(error))


def _answer(call: Callable[[], Any]) -> str | _Failure:
    try:
        return _plain(call())
    except BaseException as error:  # exit() in a tool must not end the run
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C
        return _Failure(words_of(error))


def _await_all(waiting: Sequence[tuple[Worker, Any]]) -> list[str | _Failure]:
    """Await coroutines together. If one of them blocks the loop, all that have not ended by then have no answer."""
    if not waiting:
        return []
    found: dict[int, str | _Failure] = {}
    begun = []

    async def one(place: int, worker: Worker, coroutine: Any) -> None:
        limit = asyncio.timeout(worker.timeout)
        begun.append(place)
        try:
            async with limit:
                outcome = _plain(await coroutine)
        except BaseException as error:
            outcome = _Failure(words_of(error))
        blocked = limit.when() is not None and loop.time() > limit.when()  # then the limit could not expire
        found[place] = _late(worker) if blocked or limit.expired() else outcome

    async def every() -> None:
        await asyncio.gather(*(one(place, *pair) for place, pair in enumerate(waiting)))

    loop, timeouts = user_loop(), [worker.timeout for worker, _ in waiting]
    patience = None if None in timeouts else max(timeouts) + 1  # a little more than the loop itself has
    together, seen = asyncio.run_coroutine_threadsafe(every(), loop), -1
    try:
        while not together.done() and seen < (seen := len(begun) + len(found)):
            wait([together], patience)
    finally:
        if not together.done():
            lose_loop(loop)
    answers = dict(found)
    return [answers[i] if i in answers else _late(worker) for i, (worker, _) in enumerate(waiting)]


def _late(worker: Worker) -> _Failure:
    worker.lose()
    return _Failure(f"no answer within {worker.timeout} seconds")


def _plain(value: Any) -> str | _Failure:
    """A result as text. Its `__str__` is also the user's code, so this runs under the same guard as the call."""
    text = str(value)
    if len(text) > LONGEST_RESULT:
        return _Failure(f"the result has {len(text):,} characters; expected at most {LONGEST_RESULT:,}")
    return text.encode("utf-8", "replace").decode("utf-8")  # an unpaired surrogate has no UTF-8 form


def _in_words(name: str, outcome: str | _Failure) -> ToolResult:
    if isinstance(outcome, _Failure):
        return ToolResult(name, str({"error": outcome.words[:1000]}), failed=True)
    return ToolResult(name, outcome)
