"""Chats as text, against transformers' apply_chat_template; and templates that somebody wrote to do harm."""

import json
import shutil
import time

import pytest
import transformers

from mlx_grpo_kit.course.chapters.chapter_23.made import CHAT_TEMPLATE, make_tokenizer
from mlx_grpo_kit.qwen3 import chat_template
from mlx_grpo_kit.qwen3.chat_template import ChatTemplate, ChatTemplateError
from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer

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
    from mlx_grpo_kit.assets import TINY

    with pytest.raises(ChatTemplateError, match="no chat template: neither"):
        load_tokenizer(TINY).render([USER])


@pytest.mark.parametrize(
    "messages", ["12+34?", [], {}, [USER, "text"], [{"content": "x"}], [{"role": 3, "content": "x"}], None], ids=str
)
def test_what_is_no_chat(messages):
    with pytest.raises(ChatTemplateError, match="expected a list of messages"):
        ChatTemplate(CHAT_TEMPLATE, {}, "T").render(messages)


def test_objects_do_not_reach_a_template():
    with pytest.raises(ChatTemplateError, match="JSON cannot hold is in the chat"):
        ChatTemplate(CHAT_TEMPLATE, {}, "T").render([{"role": "user", "content": object()}])
    with pytest.raises(ChatTemplateError, match="in the template's settings"):
        ChatTemplate(CHAT_TEMPLATE, {}, "T").render([USER], tool=print)


LOOP = "{% set ns = namespace(x='ab') %}{% for a in range(60) %}BODY{% endfor %}{{ ns.x }}"
TOO_LARGE = "makes a value larger than"
NEVER_DONE = "is not done after"
FORBIDDEN = "tries what the sandbox forbids"
HOSTILE = {
    "loops without calls": (
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        NEVER_DONE,
    ),
    "loops": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", NEVER_DONE),
    "calls": ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(80) }}", NEVER_DONE),
    "calls itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
    "huge range": ("{% for a in range(10**12) %}x{% endfor %}", "Range too big"),
    "subclasses": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", FORBIDDEN),
    "globals": ("{{ cycler.__init__.__globals__.os.system('true') }}", FORBIDDEN),
    "namespace": ("{{ namespace(__class__=1) }}", FORBIDDEN),
    "changes a list": ("{{ messages.append(1) }}", FORBIDDEN),
    "text times number": ("{{ 10**10 * 'a' }}", TOO_LARGE),
    "power": ("{{ 10**(10**10) }}", TOO_LARGE),
    "filter": ("{{ 'a'|center(10**10) }}", TOO_LARGE),
    "method": ("{{ 'a'.ljust(10**10) }}", TOO_LARGE),
    "doubled by ~": (LOOP.replace("BODY", "{% set ns.x = ns.x ~ ns.x %}"), TOO_LARGE),
    "doubled by +": (LOOP.replace("BODY", "{% set ns.x = ns.x + ns.x %}"), TOO_LARGE),
    "doubled in a block": (LOOP.replace("BODY", "{% set x %}{{ns.x}}{{ns.x}}{% endset %}{% set ns.x=x %}"), TOO_LARGE),
    "doubled lists": (LOOP.replace("BODY", "{% set ns.x = [ns.x, ns.x] %}"), NEVER_DONE),
    "doubled dicts": (LOOP.replace("BODY", "{% set ns.x = dict(a=ns.x, b=ns.x) %}"), NEVER_DONE),
    "replaced": (LOOP.replace("BODY", "{% set ns.x = ns.x|replace('a', 'aaaa') %}"), TOO_LARGE),
    "joined": ("{% set s = 'a' * 1000000 %}{{ s.join(s) }}", TOO_LARGE),
    "format": ("{{ '{:>10000000000}'.format(1) }}", TOO_LARGE),
    "format's width": ("{{ '%*d' % (10**10, 1) }}", TOO_LARGE),
    "time's width": ("{{ strftime_now('%10000000000d') }}", TOO_LARGE),
    "output": ("{% for a in range(99999) %}{{ 'a' * 1000000 }}{% endfor %}", TOO_LARGE),
    "indent": ("{{ messages|tojson(indent=10**10) }}", "expected 0 to 16"),
    "a file": ("{% include '/etc/passwd' %}", "does not take this chat"),
    "placeholder text": ("{{ lipsum(n=100000000) }}", "'lipsum' is undefined"),
    "slow filter": ("{{ 'a'|urlize }}", "No filter named 'urlize'"),
    "nested": ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "is not a Jinja template"),
    "parentheses": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "is not a Jinja template"),
    "no end": ("{% for %}", "line 1 is not a Jinja template"),
    "length": ("x" * 300_000, "expected at most 262,144"),
    "refuses": ("{{ raise_exception('System role not supported') }}", "not take this chat: System role not supported"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "words"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_templates_are_refused(source, words, monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.1)
    monkeypatch.setattr(chat_template, "LARGEST", 2**20)
    template = ChatTemplate(source, {}, "The chat template in FOLDER")
    began = time.monotonic()
    with pytest.raises(ChatTemplateError, match=words) as refusal:
        template.render([USER])
    assert "The chat template in FOLDER" in str(refusal.value)
    assert time.monotonic() - began < 30  # it came to an end, rather than in the time that a machine takes


def test_a_namespace_shows_nothing_of_what_is_in_it():
    nested = LOOP.replace("BODY", "{% set ns.x = namespace(a=ns.x, b=ns.x) %}")
    assert ChatTemplate(nested, {}, "T").render([USER]) == "<namespace>"


def test_a_long_chat_is_no_harm():
    long = [{"role": "user", "content": "word " * 20_000}, {"role": "assistant", "content": "yes " * 20_000}] * 4
    text = ChatTemplate(CHAT_TEMPLATE, {}, "T").render(long)
    assert text.count("<|im_start|>") == 9
    assert len(text) > 700_000
