"""Chats as text, against transformers' apply_chat_template; and templates that somebody wrote to do harm."""

import gc
import json
import os
import resource
import shutil
import signal
import sys
import threading
from pathlib import Path

import datasets
import jinja2
import pytest
import transformers
import trl

from mlx_grpo_kit.assets import TINY, TINY_CHAT
from mlx_grpo_kit.assets.make.tiny_chat import CHAT_TEMPLATE, make_tokenizer
from mlx_grpo_kit.qwen3 import template_process
from mlx_grpo_kit.qwen3.chat_template import ChatTemplate, ChatTemplateError
from mlx_grpo_kit.qwen3.template_renderer import Renderer
from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer
from mlx_grpo_kit.tasks.task import is_chat

USER = {"role": "user", "content": "What is 12+34?"}
CHATS = {
    "a question": [USER],
    "a system prompt": [{"role": "system", "content": "You answer with a number alone."}, USER],
    "several turns, with a thought": [
        USER,
        {"role": "assistant", "content": "<think>\n2+4=6\n</think>\n\n46", "tool_calls": None},
        {"role": "user", "content": " and na\u00efve \U0001f600 <|im_end|>\n\n\u4f60?\t"},
    ],
}
TEMPLATES = {
    "made": CHAT_TEMPLATE,
    "every construct of published ones": r"""{%- set ns = namespace(last=0, multi=true) -%}
{{- bos_token if bos_token is defined and bos_token else '' }}
{%- macro turn(role, text='') %}[{{ role|upper }}]{{ text|trim }}{{ eos_token }}{% endmacro -%}
{%- for m in messages[::-1] %}{%- if ns.multi and m.role == 'user' %}{%- set ns.last = loop.index0 %}
{%- set ns.multi = false %}{%- endif %}{%- endfor %}
{%- for message in messages -%}
  {%- if loop.index > 5 %}{% break %}{% endif %}
  {%- if message.tool_calls is defined %}CALLS{% endif %}
  {%- if message.content is string and message['role'] in ['user', 'system'] %}
    {%- generation %}{{ turn(message.role, message.content) ~ '\n' }}{% endgeneration %}
  {% else %}
    {{- {'a': message.content.split('</think>')[-1].lstrip('\n'), 'b': [1, 2.5, none]}|tojson }}
  {% endif %}
{% endfor -%}
{%- if tools %}T{{ tools|tojson(indent=4) }}{% endif %}
{{- {'b': [1, 'é'], 'a': 2}|tojson(separators=(',', ':'), sort_keys=true) }}{{ {'b': 'é', 'a': 2}|tojson(indent=1) }}
{{- {'b': 'é', 'a': [2]}|tojson(ensure_ascii=true) }}
{%- set x = '%s-%03d' % ('a', 7) %}{{ x }}{{ 2 ** 3 * 2 + 1 }}{{ '{:>5}'.format('r') }}{{ (1, 2)|join(',') }}
{{- dict(a=1).items()|list }}{{ 'a-b'.replace('-', '+') }}{{ messages|map(attribute='role')|join('/') }}
{%- if add_generation_prompt %}<a>{{ ns.last }}{% if enable_thinking %}T{% endif %}{% endif %}""",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One folder a template; the first has it in tokenizer_config.json and the second in a file of its own."""
    made = tmp_path_factory.mktemp("made")
    make_tokenizer(made)
    (made / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 512}))
    other = tmp_path_factory.mktemp("jinja") / "folder"
    shutil.copytree(made, other)
    (other / "chat_template.jinja").write_text(TEMPLATES["every construct of published ones"], encoding="utf-8")
    return {"made": made, "every construct of published ones": other}


@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_are_what_transformers_makes_of_them(folders, name):
    ours, theirs = load_tokenizer(folders[name]), transformers.AutoTokenizer.from_pretrained(folders[name])
    for chat in CHATS.values():
        for settings in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            for more in (True, False):
                text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=more, **settings)
                assert ours.render(chat, add_generation_prompt=more, **settings) == text
                assert ours.encode(text) == theirs.encode(text)
        assert ours.render(chat) == ours.render(chat, add_generation_prompt=True)
        assert ours.encode_prompt(chat) == ours.encode(ours.render(chat))
    assert ours.encode_prompt("12+34=") == ours.encode("12+34=")


PUBLISHED = Path(trl.__file__).parent / "chat_templates"
TO_CONTINUE = {
    "a text": {"content": "The sum is"},
    "a thought": {"content": "<think>\nFirst, 2+4"},
    "blanks at the end": {"content": "The sum is \n"},
    "blanks at the beginning": {"content": "\n The sum"},
    "the question again": {"content": USER["content"]},
    "nothing": {"content": ""},
    "a thought beside it": {"content": "46", "reasoning_content": "2+4=6"},
    "calls": {"content": "I add.", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    "no text": {"content": None},
}


@pytest.mark.parametrize("chat", TO_CONTINUE, ids=str)
@pytest.mark.parametrize(
    "name", ["qwen3", "qwen2_5", "qwen3_5_think", "deepseek_r1_distill", "llama3_1", "phi3", "made", "strips"]
)
def test_a_final_message_is_continued_as_in_transformers(folders, name, chat):
    made = {"made": CHAT_TEMPLATE, "strips": "{% for m in messages %}[{{ m.content|trim }}]{% endfor %}"}
    source = made.get(name) or (PUBLISHED / f"{name}.jinja").read_text(encoding="utf-8")
    peer = transformers.AutoTokenizer.from_pretrained(folders["made"])
    ours = ChatTemplate(source, dict(peer.special_tokens_map), "T")
    messages = [USER, {"role": "assistant", **TO_CONTINUE[chat]}]
    for key in (True, "reasoning_content"):
        try:
            text = peer.apply_chat_template(messages, chat_template=source, tokenize=False, continue_final_message=key)
        except (ValueError, jinja2.exceptions.UndefinedError):
            with pytest.raises(ChatTemplateError):
                ours.render(messages, continue_final_message=key)
        else:
            assert ours.render(messages, continue_final_message=key) == text


def test_what_cannot_be_continued():
    template = ChatTemplate(CHAT_TEMPLATE, {}, "T")
    said = [USER, {"role": "assistant", "content": "46"}]
    assert template.render(said, continue_final_message=True).endswith("assistant\n46")
    assert template.render(said, continue_final_message=False) == template.render(said)
    with pytest.raises(ChatTemplateError, match="and add_generation_prompt begins another; expected one of them"):
        template.render(said, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(ChatTemplateError, match=r"asks for the 'content' of the final message, .* and it has none"):
        template.render([USER, {"role": "assistant", "content": 46}], continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="and the template does not use it"):
        template.render([{**USER, "reason": "x"}], continue_final_message="reason")
    with pytest.raises(ChatTemplateError, match="changes the final message '46', so it cannot"):
        ChatTemplate("{{ messages[0].content }}", {}, "T").render(said, continue_final_message=True)


def test_a_setting_that_the_template_does_not_use():
    """Those that many templates share may be given to any: tasks turn thinking off where it cannot be turned on."""
    llama = ChatTemplate((PUBLISHED / "llama3_1.jinja").read_text(encoding="utf-8"), {"bos_token": ""}, "T")
    plain = llama.render([USER])
    assert llama.render([USER], enable_thinking=False, tools=None, documents=[]) == plain
    assert "1 May 2031" in llama.render([USER], date_string="1 May 2031")
    tools = [{"type": "function", "function": {"name": "f"}}]
    in_user, in_system = (llama.render([USER], tools=tools, tools_in_user_message=place) for place in (True, False))
    assert in_user != in_system
    for name, words in {
        "date_sting": r"T does not use the setting 'date_sting'\. Did you mean date_string\?",
        "enable_thinkin": r"Did you mean enable_thinking\?",
        "add_generation_promt": r"Did you mean add_generation_prompt\?",
        "continue_last_message": r"Did you mean continue_final_message\?",
        "tokenize": r"Settings are add_generation_prompt, .*, date_string, ",
    }.items():
        with pytest.raises(ChatTemplateError, match=words):
            llama.render([USER], **{name: True})
    with pytest.raises(ChatTemplateError, match=r"Did you mean enable_thinking\?"):
        ChatTemplate(CHAT_TEMPLATE, {}, "T").render([USER], enable_thinkin=False)  # rendered in this process
    assert llama.render([USER]) == plain


@pytest.mark.parametrize("name", ["qwen3", "qwen2_5", "qwen3_instruct_2507"])
def test_keys_that_datasets_fills_with_none(folders, name):
    """A data set has each key in each message, and None where a message had none."""
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}
    rows = datasets.Dataset.from_list([{"prompt": [USER, call, {"role": "tool", "content": "3", "tool_call_id": "1"}]}])
    chat = rows[0]["prompt"]
    assert chat[1]["content"] is chat[0]["tool_calls"] is None
    assert is_chat(chat)
    source = (PUBLISHED / f"{name}.jinja").read_text(encoding="utf-8")
    peer = transformers.AutoTokenizer.from_pretrained(folders["made"])
    text = peer.apply_chat_template(chat, chat_template=source, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate(source, {}, "T").render(chat) == text


def test_the_made_template_has_both_ways_to_think(folders):
    tokenizer = load_tokenizer(folders["made"])
    assert tokenizer.render([USER]).endswith("<|im_start|>assistant\n")
    assert tokenizer.render([USER], enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")


def test_a_saved_tokenizer_keeps_its_template(folders, tmp_path):
    for folder in folders.values():
        kept = tmp_path / folder.name
        kept.mkdir()
        load_tokenizer(folder).save(kept)
        assert load_tokenizer(kept).render(CHATS["a system prompt"]) == load_tokenizer(folder).render(
            CHATS["a system prompt"]
        )


def test_several_templates_by_name(folders, tmp_path):
    shutil.copytree(folders["made"], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "tokenizer_config.json"
    both = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": both}))
    assert load_tokenizer(tmp_path).render([USER]) == USER["content"]


def test_no_template(tmp_path):
    with pytest.raises(ChatTemplateError, match="no chat template: neither"):
        load_tokenizer(TINY).render([USER])


@pytest.mark.parametrize(
    "messages", ["12+34?", [], {}, [USER, "text"], [{"content": "x"}], [{"role": 3, "content": "x"}], None], ids=str
)
def test_what_is_no_chat(messages):
    with pytest.raises(ChatTemplateError, match="expected a list of messages"):
        ChatTemplate(CHAT_TEMPLATE, {}, "T").render(messages)


def test_objects_do_not_reach_a_template():
    with pytest.raises(ChatTemplateError, match="something in the chat that JSON cannot hold"):
        ChatTemplate(CHAT_TEMPLATE, {}, "T").render([{"role": "user", "content": object()}])
    with pytest.raises(ChatTemplateError, match="in the template's settings"):
        ChatTemplate(CHAT_TEMPLATE, {}, "T").render([USER], tool=print)


LOOP = "{% set ns = namespace(x='ab') %}{% for a in range(60) %}BODY{% endfor %}{{ ns.x }}"
BOUNDED = "is not done after|needs more than|produces a text of more than"
NEVER_DONE = "is not done after 0.5 seconds"
TOO_LARGE = "needs more than 128 MiB of memory"
FORBIDDEN = "tries what the sandbox forbids"
NINE_GIGABYTES = {
    "format with a width elsewhere": """{{ "{0:{1[w]}}".format("a", {"w": 9000000000}) }}""",
    "format's width": "{{ '{:>10000000000}'.format(1) }}",
    "width as an argument": "{{ '%*d' % (10**10, 1) }}",
    "width with zeros before it": """{{ "%00000000003000000000d" % 1 }}""",
    "a name used often": """{% set s = 'a' * 100000 %}{{ ("%(a)s" * 90000) % {"a": s} }}""",
    "text times number": "{{ 10**10 * 'a' }}",
    "list times number": "{{ ([0] * 10**9)|length }}",
    "filter": "{{ 'a'|center(10**10) }}",
    "method": "{{ 'a'.ljust(10**10) }}",
    "joined": "{% set s = 'a' * 1000000 %}{{ s.join(s) }}",
    "joined texts": "{% set s = 'a' * 1000000 %}{{ range(6000)|join(s) }}",
    "translated": "{{ ('a' * 30000).translate({97: 'b' * 300000}) }}",
    "replaced": "{{ ('a' * 30000)|replace('a', 'b' * 300000) }}",
    "replaced in a list": "{{ (['a' * 30000] * 9)|replace('a', 'b' * 300000) }}",
    "kept": "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}{% set ns.x = [ns.x, 'a' * 500000 ~ a] %}"
    "{% endfor %}",
    "doubled by ~": LOOP.replace("BODY", "{% set ns.x = ns.x ~ ns.x %}"),
    "doubled by +": LOOP.replace("BODY", "{% set ns.x = ns.x + ns.x %}"),
    "doubled in a block": LOOP.replace("BODY", "{% set x %}{{ns.x}}{{ns.x}}{% endset %}{% set ns.x=x %}"),
    "doubled lists": LOOP.replace("BODY", "{% set ns.x = [ns.x, ns.x] %}"),
    "doubled dicts": LOOP.replace("BODY", "{% set ns.x = dict(a=ns.x, b=ns.x) %}"),
    "nested names": LOOP.replace("BODY", "{% set ns.x = namespace(a=ns.x, b=ns.x) %}"),
    "output": "{% for a in range(99999) %}{{ 'a' * 500000 }}{% endfor %}",
    "indent": "{{ messages|tojson(indent=10**10) }}",
    "placeholder text": "{{ lipsum(n=100000000) }}",
}
HOSTILE = {
    **{name: (source, BOUNDED) for name, source in NINE_GIGABYTES.items()},
    "loops": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", NEVER_DONE),
    "loops without calls": (
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        NEVER_DONE,
    ),
    "calls": ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(80) }}", NEVER_DONE),
    "sums of lists": ("{{ ([0]*500000)|batch(1)|list|sum(start=[]) }}", NEVER_DONE),
    "power": ("{{ 10**(10**10) }}", BOUNDED),
    "power of a power": ("{{ 9**(9**9) }}", BOUNDED),
    "long": ("{{ 'a' * 2000000 }}", r"produces a text of more than 1,048,576 characters\. None of it was used"),
    "calls itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself forever"),
    "huge range": ("{% for a in range(10**12) %}x{% endfor %}", "Range too big"),
    "subclasses": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", FORBIDDEN),
    "globals": ("{{ cycler.__init__.__globals__.os.system('true') }}", FORBIDDEN),
    "namespace": ("{{ namespace(__class__=1) }}", FORBIDDEN),
    "changes a list": ("{{ messages.append(1) }}", FORBIDDEN),
    "a file": ("{% include '/etc/passwd' %}", "rejects this chat"),
    "nested": ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "is not a Jinja template"),
    "parentheses": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "is not a Jinja template"),
    "no end": ("{% for %}", "line 1 is not a Jinja template"),
    "length": ("x" * 300_000, "expected at most 262,144"),
    "refuses": ("{{ raise_exception('System role not supported') }}", "rejects this chat: System role not supported"),
    "a long error": ("{{ raise_exception('x' * 500000) }}", "rejects this chat: x{200}[.]{4}$"),
}  # fmt: skip


@pytest.fixture
def small_bounds(monkeypatch):
    monkeypatch.setattr(template_process, "SECONDS", 0.5)
    monkeypatch.setattr(template_process, "MEMORY", 2**27)
    monkeypatch.setattr(template_process, "LARGEST", 2**20)


@pytest.mark.parametrize(("source", "words"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_templates_are_refused(source, words, small_bounds):
    """And take no memory before that."""
    # A child counts what this process held when it was forked.
    before = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    template = ChatTemplate(source, {}, "The chat template in FOLDER")
    with pytest.raises(ChatTemplateError, match=words) as refusal:
        template.render([USER])
    assert "The chat template in FOLDER" in str(refusal.value)
    if template_process.ENFORCED:  # the system bounds memory
        assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < max(before, 2**17) + 1  # KiB


@pytest.mark.parametrize(
    "source", ["{{ 'a' * x }}", "{% for a in range(x) %}{% for b in range(x) %}{% endfor %}{% endfor %}"]
)
def test_a_template_renders_the_next_chat_after_one_that_was_refused(source, small_bounds):
    template = ChatTemplate(source, {}, "T")
    short = template.render([USER], x=9)
    for _ in range(2):
        with pytest.raises(ChatTemplateError, match=BOUNDED):
            template.render([USER], x=99999 if "for" in source else 10**9)
        assert template.render([USER], x=9) == short


def test_a_process_that_the_system_does_not_bound_is_looked_at(small_bounds, monkeypatch):
    """As on macOS. The limit that the process is told is out of reach here, as there."""
    monkeypatch.setattr(template_process, "ENFORCED", False)
    bound = template_process.MEMORY
    monkeypatch.setattr(template_process, "MEMORY", 2**33)
    template = ChatTemplate(NINE_GIGABYTES["kept"], {}, "T")
    process = template._renderer._running()
    monkeypatch.setattr(template_process, "MEMORY", bound)
    monkeypatch.setattr(template_process, "SECONDS", 60)
    with pytest.raises(ChatTemplateError, match=TOO_LARGE):
        template.render([USER])
    assert process.poll() is not None


def test_one_process_renders_many_chats_and_ends_with_its_template():
    template = ChatTemplate("{{ messages[0].content }}{{ x }}", {}, "T")
    process = template._renderer._running()
    for number in range(50):
        assert template.render([USER], x=number) == f"{USER['content']}{number}"
    with pytest.raises(ChatTemplateError, match="rejects"):
        ChatTemplate("{{ 1 / 0 }}", {}, "T").render([USER])
    assert template._renderer._running() is process
    assert process.poll() is None
    del template
    gc.collect()
    assert process.poll() is not None


def test_a_chat_that_is_interrupted_leaves_no_reply_for_the_next():
    slow = "{% for a in range(3000) %}{% for b in range(300) %}{% endfor %}{% endfor %}{{ x }}"
    template = ChatTemplate(slow, {}, "T")
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        [template.render([USER], x=number) for number in range(1000)]
    assert template.render([USER], x="next") == "next"


def test_a_fork_has_a_process_of_its_own():
    template = ChatTemplate("{{ x }}", {}, "T")
    assert template.render([USER], x=1) == "1"
    process = template._renderer._running()
    if (child := os.fork()) == 0:
        try:
            right = template.render([USER], x=2) == "2" and template._renderer._running().pid != process.pid
        finally:
            os._exit(not right)
    assert os.waitpid(child, 0)[1] == 0
    assert template.render([USER], x=3) == "3"
    assert template._renderer._running() is process


def test_a_process_that_is_killed_or_talks_nonsense(monkeypatch):
    template = ChatTemplate("{{ x }}", {}, "T")
    template._renderer._running().kill()
    template._renderer._process.wait()
    assert template.render([USER], x=1) == "1"
    for reply in ("", "{", "[]", '{"text": 1}', '{"error": []}', "[" * 100_000, "\\ud800"):
        monkeypatch.setattr(template_process, "_ask", lambda process, request, reply=reply: f"{reply}\n".encode())
        with pytest.raises(ChatTemplateError, match="T ended the process that rendered it"):
            template.render([USER], x=1)
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ChatTemplateError, match=r"in a separate process, and that process cannot be started: .*python"):
        template.render([USER], x=1)


def test_the_kit_s_own_template_needs_no_process():
    template = load_tokenizer(TINY_CHAT).chat_template
    assert template.source == CHAT_TEMPLATE
    assert isinstance(template._renderer, Renderer)
    assert not isinstance(ChatTemplate(CHAT_TEMPLATE + " ", {}, "T")._renderer, Renderer)
    both = [ChatTemplate(source, {}, "T") for source in (CHAT_TEMPLATE, CHAT_TEMPLATE + "{# #}")]
    for chat in CHATS.values():
        first, second = (template.render(chat, enable_thinking=False) for template in both)
        assert first == second


def test_a_long_chat_is_no_harm():
    long = [{"role": "user", "content": "word " * 20_000}, {"role": "assistant", "content": "yes " * 20_000}] * 4
    text = ChatTemplate(CHAT_TEMPLATE, {}, "T").render(long)
    assert text.count("<|im_start|>") == 9
    assert len(text) > 700_000
