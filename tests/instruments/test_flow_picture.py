"""The picture of the whole model describes and draws the trace; test_flow.py has real numbers."""

import base64
import io
import itertools
import re
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

from mlx_grpo_kit.instruments.flow.boxes import Boxes, Trace
from mlx_grpo_kit.instruments.flow.flow_picture import MOST_STORED, draw_flow
from mlx_grpo_kit.instruments.flow.sums import MINUS, Products, digits

CONFIG = SimpleNamespace(
    vocab_size=5, hidden_size=6, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=4, rms_norm_eps=1e-6, tie_word_embeddings=True, model_type="qwen3",
)  # fmt: skip
IDS = [3, 0, 4]


def make_trace(config=CONFIG):
    """Make a trace of random numbers, because a picture draws any numbers."""
    draw, tokens = np.random.default_rng(0), len(IDS)
    heads, keys, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    shapes = {"embedding": (tokens, config.hidden_size)}
    sizes = {"embedding": (config.vocab_size, config.hidden_size), "final_norm": (config.hidden_size,)}
    for layer in range(config.num_hidden_layers):
        at = f"layers.{layer}"
        for name in ("input_layernorm", "self_attn.o_proj", "attended", "post_attention_layernorm", "mlp.down_proj"):
            shapes[f"{at}.{name}"] = (tokens, config.hidden_size)
        shapes[at] = (tokens, config.hidden_size)
        for name in ("gate_proj", "up_proj", "gated"):
            shapes[f"{at}.mlp.{name}"] = (tokens, config.intermediate_size)
        for letter, count in (("q", heads), ("k", keys), ("v", keys)):
            shapes[f"{at}.self_attn.{letter}_proj"] = shapes[f"{at}.self_attn.{letter}_norm"] = (
                tokens,
                count,
                head_dim,
            )
            shapes[f"{at}.self_attn.{letter}_rope"] = (count, tokens, head_dim)
            sizes[f"{at}.self_attn.{letter}_proj"] = (count * head_dim, config.hidden_size)
            sizes[f"{at}.self_attn.{letter}_norm"] = (head_dim,)
        shapes[f"{at}.self_attn.scores"] = shapes[f"{at}.self_attn.weights"] = (heads, tokens, tokens)
        shapes[f"{at}.self_attn.mixed"] = (heads, tokens, head_dim)
        sizes[f"{at}.self_attn.o_proj"] = (config.hidden_size, heads * head_dim)
        sizes[f"{at}.mlp.gate_proj"] = sizes[f"{at}.mlp.up_proj"] = (config.intermediate_size, config.hidden_size)
        sizes[f"{at}.mlp.down_proj"] = (config.hidden_size, config.intermediate_size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            sizes[f"{at}.{name}"] = (config.hidden_size,)
    shapes |= {"final_norm": (tokens, config.hidden_size), "logits": (tokens, config.vocab_size)}
    record, grads = ({name: draw.normal(size=shape) for name, shape in shapes.items()} for _ in range(2))
    params = {f"{name}.weight": draw.normal(size=size) for name, size in sizes.items()}
    return Trace(config, IDS, "abc<\n".__getitem__, params, record, np.array([1.0, 0.01]), 1.0, {1: 4, 2: 1}, grads)


@pytest.fixture(scope="module")
def trace():
    return make_trace()


class Nesting(HTMLParser):
    """A parser that checks that every tag is closed, except cells and rows, whose end tags HTML may omit."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attributes):
        if tag not in ("img", "br", "td", "th", "tr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("td", "th", "tr"):
            assert self.open.pop() == tag


def box_html(html, key):
    """Return the markup of one box."""
    start = html.index(f'<details data-box="{key}">')
    depth = 0
    for each in re.finditer(r"<details|</details>", html[start:]):
        depth += 1 if each[0] == "<details" else -1
        if not depth:
            return html[start : start + each.end()]
    raise AssertionError(key)


def numbers_in(text):
    return [
        float(number.replace(MINUS, "-")) for number in re.findall(rf"[{MINUS}]?\d+\.?\d*(?:e[{MINUS}+]\d+)?", text)
    ]


@pytest.mark.parametrize("backward", [False, True])
def test_a_box_draws_its_numbers(trace, backward):
    from PIL import Image

    picture = draw_flow(trace, 1, head=1, number=9, backward=backward)
    nesting = Nesting()
    nesting.feed(picture.html)
    assert nesting.open == []
    [box] = [box for box in picture.boxes if box.key == "layers.1.mlp.gate_proj"]
    numbers = (trace.grads if backward else trace.record)["layers.1.mlp.gate_proj"][1]
    html = box_html(picture.html, box.key)
    table = re.search(r'<div class="all".*?</div>', html)[0]
    cells = [unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<td>(.*?)(?=<td>|<tr>|</table>)", table)]
    assert cells == [digits(number, 3) for number in numbers]
    assert re.findall(r"<b>(.*?)</b>", table) == [digits(numbers[9], 3)]  # the chosen number
    image = re.search(r'src="data:image/png;base64,(.*?)"', html)[1]
    pixels = np.array(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")).astype(int)[0]
    dots = len(pixels) // len(numbers)
    assert len(pixels) == dots * len(numbers) > 400
    reds, blues = pixels[dots // 2 :: dots, 0], pixels[dots // 2 :: dots, 2]
    clear = np.abs(numbers) > 0.1 * np.abs(numbers).max()
    assert np.array_equal((blues > reds)[clear], (numbers > 0)[clear])  # blue is positive, orange negative
    assert (blues < reds)[np.argmin(numbers)]
    assert ("Its gradient: " in html) == backward


def test_listed_products_add_up(trace):
    picture = draw_flow(trace, 2, head=1, number=3)
    html = box_html(picture.html, "layers.0.mlp.down_proj")
    table = re.findall(r"<table>.*?</table>", html)[-1]
    rows = [numbers_in(unescape(re.sub("<.*?>", " ", row))) for row in table.split("<tr>")[2:]]
    weight = trace.params["layers.0.mlp.down_proj.weight"][3]
    gated = trace.record["layers.0.mlp.gated"][2]
    for place, left, right, product in rows[:5]:
        assert left == pytest.approx(gated[int(place)], rel=1e-3)
        assert right == pytest.approx(weight[int(place)], rel=1e-3)
        assert product == pytest.approx(left * right, rel=2e-3)
    assert rows[5][0] == 35
    total = sum(row[-1] for row in rows[:6])
    assert total == pytest.approx(rows[6][-1], abs=2e-3)
    assert rows[6][-1] == pytest.approx(weight @ gated, rel=1e-3)
    listed = re.search(r"<pre.*?>(.*?)</pre>", html, re.S)[1].splitlines()
    assert len(listed) == 40
    products = [numbers_in(line)[-1] for line in listed]
    assert sum(products) == pytest.approx(weight @ gated, abs=1e-2)
    assert products == sorted(products, key=abs, reverse=True)
    stored = box_html(picture.stored(), "layers.0.mlp.down_proj")
    assert len(re.search(r"<pre.*?>(.*?)</pre>", stored, re.S)[1].splitlines()) == MOST_STORED
    assert "The 16 largest of 40 products" in stored


def test_the_words_describe_the_picture(trace):
    picture = draw_flow(trace, 1, layer=1, head=1, backward=True)
    weights = trace.record["layers.1.self_attn.weights"][1, 1]
    most = int(weights.argmax())
    assert picture.alt.startswith(r"Token 1 'a' of '<a\n' on its way")
    assert f"in layer 1, head 1 looks most at token {most} {trace.tokens[most]} ({weights[most]:.0%})" in picture.alt
    probabilities = np.exp(trace.record["logits"][1]) / np.exp(trace.record["logits"][1]).sum()
    assert f"({probabilities.max():.1%})" in picture.alt
    other = np.exp(trace.record["logits"][2]) / np.exp(trace.record["logits"][2]).sum()
    assert trace.loss == pytest.approx(-np.log(probabilities[4]) - np.log(other[1]))
    assert f"is {digits(trace.loss, 3)};" in picture.alt
    assert picture._repr_mimebundle_()["text/plain"] == picture.alt
    for tag in re.findall("<img [^>]*>", picture.html):
        assert 'alt="' in tag
    assert "'<'" not in picture.html  # every token is escaped


def test_lines_meet_from_box_to_box(trace):
    boxes = draw_flow(trace).boxes
    for before, after in itertools.pairwise(boxes):
        assert {*before.wire.below, *before.wire.past} == {*after.wire.above, *after.wire.past}, after.key
    assert [box.key for box in boxes if box.wire.adds] == [
        f"layers.{layer}{end}" for layer in (0, 1) for end in (".attended", "")
    ]


def test_later_tokens_are_hidden(trace):
    scores = next(box for box in Boxes(trace, 1).layer(0) if box.title == "scores")
    assert scores.values.shape == scores.grads.shape == (2,)
    assert "later tokens are hidden" in scores.words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"position": 3}, "position is 3; expected 0 to 2"),
        ({"head": 2}, "head is 2; expected 0 to 1"),
        ({"layer": -1}, "layer is -1; expected 0 to 1"),
        ({"number": -1}, "number is -1; expected 0 or more"),
    ],
)
def test_an_index_out_of_range_raises_an_error(trace, options, words):
    with pytest.raises(ValueError, match=words):
        draw_flow(trace, **options)


def test_a_trace_that_cannot_be_drawn_raises_an_error():
    trace = make_trace()
    trace.record["layers.1.mlp.gated"][2, 5] = np.nan
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.gated contains numbers that are not finite"):
        draw_flow(trace)
    object.__setattr__(trace, "grads", None)
    with pytest.raises(ValueError, match="no gradients"):
        draw_flow(trace, backward=True)


def test_a_sum_of_products():
    sums = Products("", "a", "b", np.array([1.0, -4.0, 2.0]), np.array([3.0, 2.0, 0.5]), None, 0.5)
    assert sums.total == 0.5 * (3 - 8 + 1)
    assert sums.order().tolist() == [1, 0, 2]
    assert [digits(x) for x in (0.0, -1.5, 1234.5, 1.23456e-5)] == ["0", f"{MINUS}1.500", "1234", "1.235e\u221205"]
