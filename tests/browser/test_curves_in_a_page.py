"""The curves of a live page (viz/live/curve.js), in a page without a notebook."""

import json
import math
import random
import re
from pathlib import Path

import pytest

from mlx_grpo_kit import viz
from mlx_grpo_kit.viz.live.curves import curves_for_page, smooth
from mlx_grpo_kit.viz.style import three_digits

CURVE, BROWSER = (Path(viz.__file__).parent / name for name in ("live/curve.js", "browser.js"))


def test_an_axis_has_two_to_five_round_numbers(browser):
    page = browser.new_page()
    source = CURVE.read_text(encoding="utf-8")
    call = "([source, ranges]) => { const ticks = new Function(source + 'return ticks')();"
    call += " return ranges.map(([low, high]) => ticks(low, high)); }"
    rng = random.Random(0)
    lows = [rng.uniform(-1, 1) * 10 ** rng.randint(-3, 3) for _ in range(300)]
    ranges = [(low, low + rng.uniform(0.01, 10) * abs(low)) for low in lows]
    for (low, high), found in zip(ranges, page.evaluate(call, [source, ranges]), strict=True):
        values = [value for value, _ in found]
        assert 2 <= len(values) <= 5, (low, high, found)
        assert len({words for _, words in found}) == len(values), (low, high, found)
        tolerance = 1e-6 * (high - low)
        assert all(low - tolerance <= value <= high + tolerance for value in values)
    page.close()


def test_a_logarithmic_axis_has_some_round_numbers_too(browser):
    page = browser.new_page()
    source = CURVE.read_text(encoding="utf-8")
    call = "([source, ranges]) => { const ticks = new Function(source + 'return logTicks')();"
    call += " return ranges.map(([low, high]) => ticks(low, high)); }"
    rng = random.Random(0)
    lows = [10 ** rng.uniform(-8, 4) for _ in range(300)]
    ranges = [(low, low * 10 ** rng.uniform(0.8, 12)) for low in lows]
    for (low, high), found in zip(ranges, page.evaluate(call, [source, ranges]), strict=True):
        assert 1 <= len(found) <= 6, (low, high, found)
        assert len({words for _, words in found}) == len(found), (low, high, found)
        assert all(low <= value <= high and float(words) == pytest.approx(value, rel=0.01) for value, words in found)
    page.close()


def test_a_constant_line_is_flat_next_to_a_branch_whose_smoothing_rounds(browser):
    page = browser.new_page()
    sources = [file.read_text(encoding="utf-8") for file in (BROWSER, CURVE)]
    call = """source => {
      const Curve = new Function(source + "return Curve")();
      const curve = new Curve({title: "share", lines: {mean: "share"}, smoothing: 0.8}, {});
      const steps = [1, 2, 3, 4, 5, 6, 7], columns = {share: steps.map(() => 0.7)};
      const run = {steps, columns, changes: {}, abandoned: [{steps, columns}]};
      curve.draw(run, 300, {from: 0, to: 7, smoothing: 0.8, log: false}, []);
      return [...curve.svg.querySelectorAll("text[text-anchor=end]")].map(text => text.textContent);
    }"""
    assert page.evaluate(call, "".join(sources))[0] == "0.7"
    page.close()


CURVES_IN_A_PAGE = """source => {
  const Curve = new Function(source + "return Curve")();
  const make = (spec, columns, view = {}) => {
    const curve = new Curve({title: "one", smoothing: 0.8, ...spec}, {});
    const steps = Object.values(columns)[0].map((_, at) => at + 1);
    const run = {steps, columns, changes: {}, abandoned: []};
    curve.draw(run, 300, {from: 0, to: steps.length, smoothing: 0.8, log: false, ...view}, []);
    document.body.replaceChildren(curve.svg);
    return curve.svg;
  };
  BODY
}"""


@pytest.fixture
def in_a_page(browser):
    """Run JavaScript that makes curves by `make(spec, columns, view)`, without a notebook."""
    page = browser.new_page()
    source = "".join(file.read_text("utf-8") for file in (BROWSER, CURVE))
    yield lambda body: page.evaluate(CURVES_IN_A_PAGE.replace("BODY", body), source)
    page.close()


def test_numbers_at_an_axis_that_are_close_and_small_differ_in_words(in_a_page):
    for start, step in ((1.5e-5, 1e-7), (2.5e6, 100.0)):
        words = in_a_page(f"""
          const one = [0, 1, 2, 3, 4].map(at => {start} + at * {step});
          const svg = make({{lines: {{mean: "one"}}, smoothing: 0}}, {{one}});
          return [...svg.querySelectorAll("text[x='39']")].map(text => text.textContent);""")
        assert len(words) > 1
        assert len({float(word) for word in words}) == len(words), words


def test_a_smoothed_line_on_a_logarithmic_axis_ends_at_the_axis(in_a_page):
    """Where the values are 0, smoothing leaves smaller and smaller numbers."""
    lowest = in_a_page("""
      const svg = make({lines: {mean: "one"}}, {one: [1, 0.5, 0.2, ...Array(40).fill(0)]}, {log: true});
      const shown = (x, y) => document.elementFromPoint(x, y)?.classList.contains("kit-line");
      svg.style.cssText = "position: absolute; left: 0; top: 0";
      svg.querySelectorAll("path").forEach(path => { path.style.pointerEvents = "stroke"; path.style.fill = "none";
                                                     path.style.stroke = "black"; });
      let lowest = 0;
      for (let y = 0; y < 104; y++) for (let x = 44; x < 288; x++) if (shown(x, y)) lowest = Math.max(lowest, y);
      return lowest;""")
    assert 40 < lowest <= 104 - 18


def test_the_band_of_a_standard_deviation_ends_at_the_lowest_and_the_highest_value(in_a_page):
    above = in_a_page("""
      const columns = {one: [0.9, 0.8, 0.9], std: [0.4, 0.4, 0.4], low: [0, 0, 0], high: [1, 1, 1]};
      return [["low", "high"], ["", ""]].map(within => {
        const svg = make({lines: {mean: "one"}, smoothing: 0, spread: "std", within}, columns);
        const one = [...svg.querySelectorAll("text[x='39']")].find(text => Number(text.textContent) === 1);
        const heights = svg.querySelector(".kit-band").getAttribute("d").match(/ [0-9.]+/g).map(Number);
        return one.getAttribute("y") - 4 - Math.min(...heights);
      });""")
    assert above[0] == pytest.approx(0, abs=0.1)
    assert above[1] > 5


@pytest.fixture
def live(in_a_page):
    """Draw the first panel of `curves_for_page`, and return the value of JavaScript that knows `svg` and `curve`."""

    def live(history, body, panels=None, **options):
        count = len(next(iter(history.values()), []))
        page = curves_for_page([*range(1, count + 1)], history, panels or {"one": ["one"]}, **options)
        return in_a_page(f"""
          const {{steps, columns, panels: [spec]}} = {json.dumps(page)};
          const run = {{steps, columns, changes: {{}}, abandoned: []}};
          const curve = new Curve(spec, {{}}, 170), svg = curve.svg;
          curve.draw(run, 300, {{from: 0, to: Math.max(steps.length, 5), smoothing: 0, log: false}}, []);
          document.body.replaceChildren(curve.node);
          const numbersAt = place => {{
            curve.drawCursor(run, place, steps[place], steps[0]);
            const [{{value, measured}}] = curve.values;
            return `${{value.textContent}} ${{measured.textContent}}`.trim();
          }};
          {body}""")

    return live


def test_a_live_curve_has_the_numbers_of_its_line_and_the_measured_ones(live):
    values = [1.0, 0.0, 0.5, math.nan]
    line = smooth(values, 0.7)
    found = live({"one": values}, "return [0, 1, 2, 3].map(numbersAt);")
    expected = [
        f"{three_digits(height)} ({three_digits(value)})" for value, height in zip(values[:3], line, strict=False)
    ]
    assert found == [*expected, expected[-1]]  # where nothing was measured, the end of the line
    assert live({"one": values}, "return numbersAt(1);", smoothing=0.0) == "0.00"


def test_measured_values_are_points_if_the_line_is_smoothed_or_short(live):
    points = "return (svg.querySelector('.kit-points')?.getAttribute('d').match(/h.01/g) ?? []).length;"
    for count, smoothing, expected in ((60, 0.7, 59), (60, 0.0, 59), (61, 0.7, 60), (61, 0.0, 0)):
        values = [math.nan, *(0.1 * place for place in range(count - 1))]
        assert live({"one": values}, points, smoothing=smoothing) == expected, (count, smoothing)


def test_a_rare_metric_is_joined_and_keeps_its_last_measurement(live):
    values = [math.nan if step % 5 else step / 10 for step in range(1, 21)]
    found = live({"one": values}, "return [numbersAt(12), svg.querySelectorAll('circle').length, svg.innerHTML];")
    assert found[0] == "1.00"
    assert found[1] == 4 + 1  # with the cursor's
    assert "h.01" not in found[2]


def test_zeros_are_marks_at_the_floor_of_a_logarithmic_axis(live):
    values = [1e-3, 0.0, 1e-6, 1e-5, 0.0]
    found = live(
        {"one": values},
        "return [svg.querySelector('.kit-floor').getAttribute('d'), numbersAt(0), numbersAt(4)]",
        log=["one"],
        smoothing=0.0,
    )
    places = [float(x) for x in re.findall(r"M([\d.]+) 152", found[0])]
    assert places == pytest.approx([44 + 244 * step / 5 for step in (2, 5)], abs=0.1)
    assert found[1:] == ["0.00100", "0.00"]
    assert live({"one": [0.0, 0.0]}, "return svg.querySelectorAll('.kit-floor').length;", log=["one"]) == 0


def test_a_value_between_two_gaps_is_a_point(live):
    values = [0.1, math.nan, 0.3, math.nan, 0.5, 0.6, 0.6]
    points = live(
        {"one": values}, "return [...svg.querySelectorAll('circle')].map(dot => Number(dot.getAttribute('cx')));"
    )
    assert points == pytest.approx([44 + 244 * step / 7 for step in (1, 3)], abs=0.1)


def test_a_panel_waits_for_its_metric_in_words(live):
    words = "return [...svg.querySelectorAll('text[text-anchor=middle]')].map(text => text.textContent).slice(-2);"
    found = live({"reward": [1.0, 2.0]}, words, panels={"one": ["rewrad"]})
    assert found == ["waiting for rewrad", "metrics so far: reward"]
    assert live({}, words, panels={"one": ["rewrad"]})[-1] == "waiting for rewrad"


def test_lines_of_one_panel_differ_in_colour_and_dashes(live):
    names = [f"line {place}" for place in range(6)]
    history = {name: [place / 10, place / 10 + 0.1] for place, name in enumerate(names)}
    looks = live(
        history,
        "return ['.kit-line', '.kit-mark'].map(kind => [...curve.node.querySelectorAll(kind)].map(each =>"
        " each.getAttribute('class').split(' ').slice(1).join(' ')));",
        panels={"one": names},
    )
    assert looks[0] == looks[1]
    assert len({*looks[0]}) == 6
    colors, dashes = zip(*(look.split() for look in looks[0]), strict=True)
    assert len({*colors}) == 6
    assert len({*dashes[:4]}) == 4
