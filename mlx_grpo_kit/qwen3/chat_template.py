"""A chat as text in the model's format: its folder's chat template, rendered as in transformers, within limits.

A chat template is a small Jinja program that comes with a downloaded model. It runs in Jinja's sandbox, where it can
neither import nor open anything. Unless the kit wrote it, it also runs in a separate process with limited memory and
time (`template_process.py`). That process is reused for the next chat, which then takes less than a millisecond more.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from hashlib import sha256
from typing import Any

from mlx_grpo_kit.qwen3 import template_process
from mlx_grpo_kit.qwen3.template_renderer import Renderer, short

LONGEST_TEMPLATE = 2**18

TRUSTED = frozenset(
    {
        "376a6a423349ee5dd1b83c826ef82318b7a14f7974fde43842d40fff7b4b13a5",  # tiny-chat
        "3485b4830afdb168fcbfad2c4372c144528a581e5efcd5620ec0dd25ae36815e",  # tiny-tools
    }
)
"""SHA-256 of templates that are rendered in this process: those of the kit's own models."""


STANDARD = ("tools", "documents", "enable_thinking")
"""Settings that any template may get, whether it uses them or not."""

TO_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "
"""The mark that transformers writes after the message to continue; the rendered chat is cut there."""


class ChatTemplateError(ValueError):
    """A chat cannot be rendered: the messages are invalid, or the template is broken, rejects them, or never ends."""


class ChatTemplate:
    """Render chats with the source of a template.

    Args:
        source: Jinja, as in `chat_template` in tokenizer_config.json or in the file chat_template.jinja.
        special_tokens: tokens that templates may use by name: `{"eos_token": "<|im_end|>"}`.
        where: the file that contains the source, for error messages.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str):
        self.source, self.special_tokens, self.where = source, dict(special_tokens), where
        self._lock = threading.Lock()  # a renderer handles one request at a time

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | str = False,
        **kwargs: Any,
    ) -> str:
        """The chat as one text.

        Args:
            messages: the chat.
            add_generation_prompt: True if the text ends with the beginning of an answer. The default is True, unless
                the final message is continued.
            continue_final_message: True for a text that ends in the middle of the final message, so that the model
                continues it; or the key of the message to continue, if that is not "content". As in transformers.
            kwargs: the template's settings, such as `enable_thinking=False`; also `STANDARD` ones that it does not use.

        Raises:
            ChatTemplateError: for the reasons listed there, a setting that the template does not use, or a final
                message that cannot be continued; the message tells which.
        """
        chat, given = _checked(messages), _plain("the template's settings", kwargs)
        if "messages" in given:
            raise ChatTemplateError("'messages' is not a setting of a chat template: it is the chat.")
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError(
                "continue_final_message continues the last message and add_generation_prompt begins another; expected "
                "one of them."
            )
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        final = _marked(chat[-1], continue_final_message, self.source) if continue_final_message else ""
        values = {"tools": None, "documents": None, **self.special_tokens, **given}
        values |= {"messages": chat, "add_generation_prompt": add_generation_prompt}
        with self._lock:
            try:
                reply = self._renderer.reply(values, [name for name in given if name not in STANDARD])
            except OSError as error:
                raise ChatTemplateError(
                    f"{self.where} is rendered in a separate process, and that process cannot be started: {error}."
                ) from error
        if "text" not in reply:
            raise ChatTemplateError(f"{self.where}{_in_words(reply)}")
        return _cut(reply["text"], final) if continue_final_message else reply["text"]

    @cached_property
    def _renderer(self) -> Renderer | template_process.RendererProcess:
        if len(self.source) > LONGEST_TEMPLATE:
            raise ChatTemplateError(
                f"{self.where} has {len(self.source):,} characters; expected at most {LONGEST_TEMPLATE:,}."
            )
        is_trusted = sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest() in TRUSTED
        return Renderer(self.source) if is_trusted else template_process.RendererProcess(self.source)


def _in_words(reply: Mapping[str, Any]) -> str:
    """A template's problem, as the rest of a sentence that begins with the template's name."""
    words, line = reply.get("words"), reply.get("line")
    bounds = {
        "time": f"is not done after {template_process.SECONDS:g} seconds",
        "memory": f"needs more than {template_process.MEMORY // 2**20} MiB of memory",
        "size": f"produces a text of more than {template_process.LARGEST:,} characters",
        "ended": "ended the process that rendered it",
    }
    match reply["error"]:
        case "syntax":
            return f"{f', line {line}' if line else ''} is not a Jinja template: {words}."
        case "security":
            return f" tries what the sandbox forbids: {words}."
        case "unused":
            settings = {*reply["variables"], *STANDARD, "add_generation_prompt", "continue_final_message"} - {
                "messages"
            }
            settings = sorted(settings)
            close = get_close_matches(str(words), settings, 1)
            hint = f" Did you mean {close[0]}?" if close else f" Settings are {short(', '.join(settings))}."
            return f" does not use the setting {short(repr(words))}.{hint}"
        case "recursion":
            return " calls itself forever."
        case bound if bound in bounds:
            return f" {bounds[bound]}. None of it was used. Is the folder from a source you trust?"
    return f" rejects this chat: {words}."


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as plain data, without entries that are None (as in transformers)."""
    words = 'expected a list of messages, such as [{"role": "user", "content": "12+34?"}]'
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ChatTemplateError(f"The chat is {short(repr(messages))}; {words}.")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(f"Message {place} of the chat is {short(repr(message))}; {words}.")
    chat = [{key: value for key, value in message.items() if value is not None} for message in messages]
    return _plain("the chat", chat)


def _marked(message: dict[str, Any], key: bool | str, source: str) -> str:
    """Mark the end of the text to continue, in a final message; return that text."""
    key = key if isinstance(key, str) else "content"
    text = message.get(key)
    holder, place = message, key
    if isinstance(text, list):
        blocks = [each for each in text if isinstance(each, dict) and isinstance(each.get("text"), str)]
        holder, place = (blocks[-1], "text") if blocks else ({}, "text")
        text = holder.get(place)
    if not isinstance(text, str) or key not in source:
        why = "the template does not use it" if isinstance(text, str) else "it has none"
        raise ChatTemplateError(
            f"continue_final_message asks for the {key!r} of the final message, {short(repr(message))}, to be "
            f"continued, and {why}. Expected a message with a text, such as "
            '{"role": "assistant", "content": "The sum is"}.'
        )
    holder[place] = text + TO_CONTINUE
    return text


def _cut(rendered: str, final: str) -> str:
    """The rendered chat up to the mark after the final message."""
    place = rendered.rfind(TO_CONTINUE.strip())
    if place < 0 or final.strip() not in rendered:
        raise ChatTemplateError(
            f"continue_final_message: the chat template changes the final message {short(repr(final))}, so it cannot "
            "be continued. Expected a message that appears in the rendered chat."
        )
    kept = rendered[place:].startswith(TO_CONTINUE)  # otherwise the template strips messages
    return rendered[:place] if kept else rendered[:place].rstrip()


def _plain(what: str, value: Any) -> Any:
    """Rebuild the value from JSON types: other objects have methods, which the sandbox would let a template call."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatTemplateError(f"There is something in {what} that JSON cannot hold: {short(error)}.") from error
