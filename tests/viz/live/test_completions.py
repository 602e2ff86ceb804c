"""The table of completions: readable without colour, and safe for any text of a model."""

import math
from types import SimpleNamespace as Record

import pytest

from mlx_grpo_kit.viz import completions_table


def test_a_models_text_cannot_become_markup():
    html = completions_table(
        [Record(prompt="<b>2+2=", completion="<script>alert(1)</script>", reward=0.0)], title="<i>"
    )._repr_html_()
    assert "<script" not in html
    assert "<b>" not in html
    assert "<i>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


@pytest.mark.parametrize(
    ("advantage", "words"), [(1.5, "▲ up"), (-0.5, "▼ down"), (0.0, "• neither way"), (math.nan, "")]
)
def test_the_direction_is_written_in_words(advantage, words):
    table = completions_table([Record(prompt="1+1=", completion="2", reward=1.0, advantage=advantage)])
    assert repr(table).splitlines()[1].endswith(words)
    assert words in table._repr_html_()


def test_advantages_of_tokens_have_no_column():
    table = completions_table([Record(prompt="p", completion="c", reward=0.5, advantage=[0.5, -0.5])])
    assert "advantage" not in repr(table)


def test_columns_are_those_the_records_have():
    assert repr(completions_table([Record(prompt="p", completion="c")])) == "prompt  completion\np       c"
    assert "advantage" not in repr(completions_table([Record(prompt="p", completion="c", reward=0.5)]))


def test_a_group_shows_its_prompt_once():
    pairs = [("12+34=", "46"), ("12+34=", "47"), ("1+1=", "2")]
    records = [Record(prompt=prompt, completion=completion) for prompt, completion in pairs]
    html = completions_table(records)._repr_html_()
    assert html.count("12+34=") == 1
    assert html.count("1+1=") == 1


def test_empty_and_endless_completions():
    records = [Record(prompt="p", completion=""), Record(prompt="p", completion="9" * 10_000)]
    html = completions_table(records)._repr_html_()
    assert "(empty)" in html
    assert len(html) < 3000
    assert repr(completions_table([])) == "no completions"
