"""What a chart's SVG draws, for tests of pictures."""

import re


def bars(chart):
    """(left, top, width, colour) of every filled rectangle but the page."""
    pattern = r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="[\d.]+" fill="(#\w+)"/>'
    return [(*map(float, found[:3]), found[3]) for found in re.findall(pattern, chart.svg("x"))]


def texts(chart):
    """Every text that is written."""
    return re.findall(r">([^<>]+)</text>", chart.svg("x"))
