"""A rule for the last chart that a test of this folder draws."""

import re
from xml.etree import ElementTree

import pytest

from mlx_grpo_kit.viz.chart import Chart

SLACK = 2.0


def places(element, left=0.0, top=0.0):
    """Yield (x, y, words) of every text and every box, without what an area cuts off or turns."""
    transform = element.get("transform", "")
    if moved := re.fullmatch(r"translate\(([-\d.e]+)[ ,]+([-\d.e]+)\)", transform):
        left, top = left + float(moved[1]), top + float(moved[2])
    elif transform:
        return
    if element.get("clip-path"):
        return
    tag = element.tag.rpartition("}")[2]
    if tag == "text":
        yield left + float(element.get("x")), top + float(element.get("y")), "".join(element.itertext())
    elif tag == "rect" and "%" not in element.get("width"):
        x, y = left + float(element.get("x", 0)), top + float(element.get("y", 0))
        yield x, y, "a box"
        yield x + float(element.get("width")), y + float(element.get("height")), "the end of a box"
    if tag != "svg" or element.get("viewBox"):
        for child in element:
            yield from places(child, left, top)


@pytest.fixture(autouse=True)
def nothing_is_drawn_outside_of_a_chart(monkeypatch):
    """A row that is placed beyond the edge cannot be seen, and tests of its numbers and words would not miss it."""
    drawn, make = [], Chart.__init__

    def remember(self, *size, **settings):
        make(self, *size, **settings)
        drawn.append(self)

    monkeypatch.setattr(Chart, "__init__", remember)
    yield
    for chart in drawn[-1:]:  # the panel after its controls were moved; the others look alike
        outside = [
            (round(x), round(y), words)
            for x, y, words in places(ElementTree.fromstring(chart.svg("A chart")))
            if not (-SLACK <= x <= chart.width + SLACK and -SLACK <= y <= chart.height + SLACK)
        ]
        assert not outside, f"outside of {chart.width:g} x {chart.height:g}: {outside[:5]}"
