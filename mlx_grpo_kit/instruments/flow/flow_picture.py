"""A picture of the whole Qwen3 as boxes along a line, from a token's embedding to the next token's probability.

Each box is a `<details>`: it opens with a click or the Enter key, even in a stored notebook without scripts, and shows
its numbers, the sum that gives one of them, and the products of that sum.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from mlx_grpo_kit.instruments.flow.boxes import Box, Boxes, Trace, Wire
from mlx_grpo_kit.instruments.flow.sums import MINUS, TIMES, Products, Work, digits
from mlx_grpo_kit.runtime.printing import printable
from mlx_grpo_kit.viz.style import NEGATIVE, POSITIVE, ZERO, shades

MOST_NUMBERS = 256  # the most numbers drawn per box
FIRST_PRODUCTS = 5  # the number of a sum's largest products that are shown at once
MOST_PRODUCTS, MOST_STORED = 128, 16  # the most products that a click shows, with a kernel and in a stored notebook
MOST_LAYERS = 2  # larger models are drawn with only the chosen layer
MOST_SUMS = 5  # the calculations shown in a box with names, such as the scores
TOKENS_BESIDE = 12  # the number of tokens on either side of the chosen one
SHADES = 12  # the number of shades on either side of 0
SMOOTH = 512  # the fewest pixels in a row of colours, because a browser blurs fewer
ROW, LINE = 50, 16  # pixels: the height of a box, and the distance of the lines next to the boxes
LINE_COLOR = "#8b949e"
COLUMNS = 8  # in the table of numbers

STYLE = """<style>
.kit-flow {--soft: var(--jp-ui-font-color2, #59636e); --faint: var(--jp-border-color2, #d9d9d9);
  font: 13px/1.35 system-ui, sans-serif; color: var(--jp-ui-font-color1, #24292f); max-width: 1040px;
  contain: inline-size}
.kit-flow small, .kit-flow .soft {color: var(--soft); font-size: 12px}
.kit-flow summary, .kit-flow .row {list-style: none}
.kit-flow summary {cursor: pointer}
.kit-flow summary:hover, .kit-flow summary:focus-visible {background: var(--jp-layout-color2, #f1f3f5)}
.kit-flow summary:focus-visible {outline: 2px solid #1f5fc4; outline-offset: -2px}
.kit-flow summary > .mark, .kit-flow .row > .mark {flex: 0 0 16px; text-align: center; color: var(--soft)}
.kit-flow details[open] > summary > .mark {transform: rotate(90deg)}
.kit-flow .what {box-sizing: border-box; overflow: hidden} .kit-flow .what b {font-size: 13px}
.kit-flow .numbers img {border: 1px solid var(--faint); box-sizing: border-box; image-rendering: pixelated}
.kit-flow .cells > span {border: 1px solid var(--faint)}
.kit-flow .open p {margin: 2px 0 4px}
.kit-flow .open h5 {margin: 8px 0 2px; font-size: 13px; font-weight: 700}
.kit-flow .open details > summary {list-style: revert; padding: 2px 0}
.kit-flow table {border-collapse: collapse; margin: 4px 0; font-size: 12px; font-variant-numeric: tabular-nums}
.kit-flow .rendered_html table, .kit-flow table tr {background: none}
.kit-flow td, .kit-flow th {text-align: right; padding: 1px 8px; border: 0; white-space: nowrap}
.kit-flow th {font-weight: 400; color: var(--soft)}
.kit-flow td.end {border-top: 1px solid var(--soft); font-weight: 700}
.kit-flow .all td b {outline: 2px solid #1f5fc4; outline-offset: 1px}
.kit-flow .all {max-height: 190px; overflow: auto; width: fit-content; max-width: 100%}
.kit-flow .formula {font: 12px/1.5 var(--jp-code-font-family, monospace); overflow-wrap: anywhere}
.kit-flow .tokens {margin: 4px 0} .kit-flow .tokens th, .kit-flow .tokens td {text-align: center; padding: 1px 7px}
.kit-flow .tokens .here {background: rgba(87, 144, 252, .25)}
.kit-live .kit-flow .all td {cursor: pointer}
</style>"""

# Layout styles are inline in each box, for pages that remove style sheets.
ROW_STYLE = "display:flex;align-items:center;height:50px"
WHAT_STYLE = "flex:0 0 248px;padding-right:12px;font-size:12px;line-height:1.2"
NUMBERS_STYLE = "flex:1 1 200px;min-width:0;overflow:hidden;white-space:nowrap;font-size:12px;line-height:1.2"

# Cells that do not fit into the line are hidden, rather than cut off.
CELLS_STYLE = "display:flex;flex-wrap:wrap;height:32px;overflow:hidden"
CELL_STYLE = (
    "flex:0 0 auto;height:30px;line-height:14px;margin:1px;padding:0 1px;box-sizing:border-box;text-align:center"
)

# In a live picture, open boxes stay open when the picture is redrawn, and a click on a number selects it.
KEEP_OPEN = """<script>(() => {
const place = document.currentScript?.closest(".jp-OutputArea-child")?.previousElementSibling;
if (!place) return;
const open = new Map();
const key = box => {
  if (box.dataset.box) return box.dataset.box;
  const around = box.parentElement.closest("details[data-box]");  // a list inside a box
  return around && `${around.dataset.box} / ${[...around.querySelectorAll("details")].indexOf(box)}`;
};
place.addEventListener("toggle", event => {
  if (event.target.isConnected && event.target.closest(".kit-flow")) open.set(key(event.target), event.target.open);
}, true);
place.addEventListener("click", event => {
  const cell = event.target.closest(".kit-flow .all td");
  if (!cell) return;
  const row = cell.parentElement;
  const field = [...place.querySelectorAll(".widget-inline-hbox")]
    .find(each => each.querySelector(".widget-label")?.textContent.trim() === "number")?.querySelector("input");
  if (!field) return;
  field.value = parseInt(row.cells[0].textContent) + cell.cellIndex - 1;
  field.dispatchEvent(new Event("change", {bubbles: true}));
});
new MutationObserver(() => place.querySelectorAll(".kit-flow details").forEach(box => {
  if (open.has(key(box))) box.open = open.get(key(box));
})).observe(place, {childList: true, subtree: true});
})()</script>"""


@printable
@dataclass
class FlowPicture:
    """HTML for a page, with a description in words. A notebook displays it.

    Attributes:
        boxes: the boxes, from the embedding on.
        stored: the page for the stored notebook, with shorter lists.
    """

    html: str
    alt: str
    boxes: list[Box]
    stored: Callable[[], str]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": f"<div>{self.stored()}{KEEP_OPEN}</div>", "text/plain": self.alt}

    def __repr__(self) -> str:
        return self.alt


def draw_flow(
    trace: Trace, position: int = -1, layer: int = 0, head: int = 0, number: int = 0, backward: bool = False
) -> FlowPicture:
    """Draw one token's path through a Qwen3, box by box, with real numbers.

    Args:
        trace: the record of a text.
        position: the token, from 0; -1 is the last.
        layer: the layer that is open.
        head: the query head.
        number: the number of each box whose calculation is shown, modulo the size of the box.
        backward: True to show gradients instead, which the trace must contain.

    Raises:
        ValueError: there is no such token, layer, head or number, or the trace has no gradients.
    """
    config = trace.config
    if backward and trace.grads is None:
        raise ValueError("This trace has no gradients; expected one from trace_flow(..., backward=True).")
    if not 0 <= layer < config.num_hidden_layers:
        raise ValueError(f"layer is {layer}; expected 0 to {config.num_hidden_layers - 1}.")
    if number < 0:
        raise ValueError(f"number is {number}; expected 0 or more.")
    for name, values in trace.record.items():
        if not np.isfinite(values).all():
            raise ValueError(
                f"{name} contains numbers that are not finite (nan or inf), so nothing after it can be shown."
            )
    position = position + len(trace.ids) if position < 0 else position
    boxes = Boxes(trace, position, head)
    layers = range(config.num_hidden_layers)
    before, after = boxes.before(), boxes.after()
    inside = {i: boxes.layer(i) for i in layers if len(layers) <= MOST_LAYERS or i == layer}
    alt = _words(trace, boxes, layer, backward)

    def page(most_products: int) -> str:
        page = _Page(boxes, number, backward, most_products)
        rows = [page.box(box) for box in before]
        rows += [page.layer(i, inside.get(i, []), is_open=i == layer) for i in layers]
        rows += [page.box(box) for box in after]
        return f'<div class="kit-flow">{STYLE}{page.head(alt)}{"".join(rows)}</div>'

    drawn = [*before, *(box for each in inside.values() for box in each), *after]
    return FlowPicture(page(MOST_PRODUCTS), alt, drawn, lambda: page(MOST_STORED))


class _Page:
    """Markup of the boxes for one choice of number and direction."""

    def __init__(self, boxes: Boxes, number: int, backward: bool, most_products: int):
        self.boxes, self.trace, self.number, self.backward = boxes, boxes.trace, number, backward
        self.most_products = most_products

    def head(self, alt: str) -> str:
        """Return the sentence, the tokens with the likeliest next token of each, and the legend."""
        trace, position = self.trace, self.boxes.position
        first = max(0, position - TOKENS_BESIDE)
        places = range(first, min(len(trace.ids), position + TOKENS_BESIDE + 1))
        cells: dict[str, list[str]] = {"position": [], "token": [], "likeliest next": []}
        for place in places:
            here = ' class="here"' if place == position else ""
            probabilities = trace.probabilities(place)
            likely = int(probabilities.argmax())
            cells["position"].append(f"<td{here}>{place}</td>")
            cells["token"].append(f"<td{here}><b>{escape(trace.tokens[place])}</b></td>")
            cells["likeliest next"].append(
                f"<td{here}>{escape(repr(trace.spell(likely)))} <small>{probabilities[likely]:.0%}</small></td>"
            )
        rows = "".join(f'<tr><th scope="row">{name}</th>{"".join(tds)}</tr>' for name, tds in cells.items())
        what = "gradient" if self.backward else "number"
        arrow = "Numbers flow down. "
        if self.backward:
            arrow = (
                "Gradients flow up, from the loss at the bottom. Thick strip: the gradient of the loss; thin strip "
                "below: the value. "
            )
        legend = (
            f'<p class="soft">{arrow}<span style="background:{POSITIVE};color:#24292f">&nbsp;positive&nbsp;</span> '
            f'<span style="background:{ZERO};color:#24292f">&nbsp;0&nbsp;</span> '
            f'<span style="background:{NEGATIVE};color:#24292f">&nbsp;negative&nbsp;</span>; the largest {what} of a '
            "box has the full colour, so each box has its own scale. The line on the far left is the residual stream; "
            "other lines leave it, and + adds them to it. Open a box to see where its numbers come from.</p>"
        )
        sentence = f"<p>{escape(alt)}</p>"
        return f'{sentence}<div style="overflow-x:auto"><table class="tokens">{rows}</table></div>{legend}'

    def layer(self, index: int, inside: list[Box], is_open: bool) -> str:
        """Return the markup of a layer: a box that contains its boxes, or only a row if they are not drawn."""
        key = f"layers.{index}"
        config, p = self.trace.config, self.boxes.position
        name = f"<b>layer {index}</b> <small>of {config.num_hidden_layers}, counted from 0</small>"
        if not inside:
            grads = None if self.trace.grads is None else self.trace.grads[key][p]
            words, numbers = "not drawn: choose it above", self._strips(self.trace.record[key][p], grads, key)
            return f'<div class="row" style="{ROW_STYLE}">{self._row(Wire(), name, words, numbers, "")}</div>'
        words, out = "attention, then the MLP; its output:", inside[-1]
        numbers = self._strips(out.values, out.grads, out.key) + self._followed(out)
        return (
            f'<details data-box="layer {index}"{" open" if is_open else ""}>'
            f'<summary style="{ROW_STYLE}">{self._row(Wire(), name, words, numbers)}</summary>'
            f"{''.join(self.box(box) for box in inside)}</details>"
        )

    def box(self, box: Box) -> str:
        """Return the markup of a box and its content."""
        count = f"[{len(box.values):,}]"
        if box.labels:
            numbers = self._cells(box)
        elif len(box.values) == 1:
            numbers = self._followed(box)
        else:
            numbers = self._strips(box.values, box.grads, box.key) + self._followed(box)
        name = f"<b>{escape(box.title)}</b> <small>{count}</small>"
        return (
            f'<details data-box="{box.key}">'
            f'<summary style="{ROW_STYLE}">{self._row(box.wire, name, escape(box.words), numbers)}</summary>'
            f"{self._opened(box.wire)}{self._inside(box)}</div></details>"
        )

    def _row(
        self, wire: Wire, name: str, words: str, numbers: str, mark: str = "\N{BLACK RIGHT-POINTING SMALL TRIANGLE}"
    ) -> str:
        """Return the visible part of a closed box."""
        return (
            f'<span class="mark" style="flex:0 0 16px;text-align:center">{mark}</span>{self._gutter(wire)}'
            f'<span class="what" style="{WHAT_STYLE}">{name}<br><small class="words">{words}</small></span>'
            f'<span class="numbers" style="{NUMBERS_STYLE}">{numbers}</span>'
        )

    def _opened(self, wire: Wire) -> str:
        """Return the start of an open box's content, with the lines continued next to it."""
        path = "".join(f"M{8 + LINE * line} 0V9" for line in {*wire.past, *wire.below})
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="70" height="9"><path d="{path}" stroke="{LINE_COLOR}" '
            'stroke-width="2"/></svg>'
        )
        lines = f"background-image:url('{_svg_source(svg)}');background-repeat:repeat-y"
        return f'<div class="open" style="margin-left:16px;padding:4px 0 14px 70px;{lines}">'

    def _inside(self, box: Box) -> str:
        key = f"<p><code>{escape(box.key)}</code> at token {escape(self.boxes.places[self.boxes.position])}"
        if box.labels:
            sizes = np.abs(box.grads) if self.backward else box.values
            chosen = sorted(box.shown.tolist(), key=lambda i: -sizes[i])[:MOST_SUMS]
            parts = [
                f'<details data-box="{box.key} {i}"{" open" if i == chosen[0] else ""}><summary>'
                f"{escape(box.name(i))} = {digits(box.values[i])}"
                + (f", its gradient {digits(box.grads[i])}" if self.backward else "")
                + f"</summary>{self._works(box, i)}</details>"
                for i in chosen
            ]
            return f"{key}</p>{''.join(parts)}"
        shown = box.grads if self.backward else box.values
        what = "gradients" if self.backward else "numbers"
        if len(shown) == 1:
            return f"{key}</p>{self._works(box, 0)}"
        some = f", {what}"
        if len(shown) > MOST_NUMBERS:
            some = f", the first {MOST_NUMBERS} of its {len(shown):,} {what}"
        return f"{key}{some}</p>{self._table(shown)}{self._works(box, self.number % len(shown))}"

    def _works(self, box: Box, index: int) -> str:
        """Return the sums that give one number; in the backward view, its gradient and that of a weight come first."""
        work = box.forward(index)
        equation = f"{work.name} = {digits(work.total)}"
        if not self.backward:
            return self._work(work, "" if box.labels else equation)
        back = box.backward(index)
        parts = [self._work(back, f"Its gradient: {back.name} = {digits(back.total)}")]
        if box.weight:
            share = box.weight(index)
            parts.append(_folded(f"The gradient of a weight: {share.name} = {digits(share.total)}", self._work(share)))
        parts.append(_folded(f"The value itself: {equation}", _formulas(work)))
        return "".join(parts)

    def _work(self, work: Work, heading: str = "") -> str:
        title = f"<h5>{escape(heading)}</h5>" if heading else ""
        return title + _formulas(work) + "".join(_products(sums, self.most_products) for sums in work.sums)

    def _table(self, numbers: np.ndarray) -> str:
        followed = self.number % len(numbers)
        rows = []
        for start in range(0, min(len(numbers), MOST_NUMBERS), COLUMNS):
            cells = "".join(
                f"<td><b>{digits(x, 3)}</b>" if start + i == followed else f"<td>{digits(x, 3)}"
                for i, x in enumerate(numbers[start : start + COLUMNS])
            )
            rows.append(f"<tr><th>{start}{cells}")
        return f'<div class="all" tabindex="0"><table>{"".join(rows)}</table></div>'

    def _followed(self, box: Box) -> str:
        i = self.number % len(box.values)
        if len(box.values) == 1:
            gradient = ", gradient 1" if self.backward else ""
            return f"<b>{digits(box.values[0])}</b><small>{gradient}</small>"
        if self.backward:
            return f"<small>[{i}]: gradient <b>{digits(box.grads[i], 3)}</b>, value {digits(box.values[i], 3)}</small>"
        spread = f"({digits(box.values.min(), 3)} to {digits(box.values.max(), 3)})"
        return f"<small>[{i}] = <b>{digits(box.values[i], 3)}</b> &nbsp; {spread}</small>"

    def _strips(self, values: np.ndarray, grads: np.ndarray | None, key: str) -> str:
        if self.backward:
            return _strip(grads, f"gradients of {key}", 13) + _strip(values, key, 6)
        return _strip(values, key, 15)

    def _cells(self, box: Box) -> str:
        """Draw the numbers of a box with names, one cell each."""
        shown = (box.grads if self.backward else box.values)[box.shown]
        color, biggest = shades(-1, 1, (NEGATIVE, ZERO, POSITIVE)), float(np.abs(shown).max()) or 1.0
        is_share = not self.backward and box.title in ("weights", "p")
        size = "min-width:44px;font-size:11px" if self.backward or len(shown) < 7 else "min-width:36px;font-size:10.5px"
        cells = "".join(
            f'<span style="background:{color(float(x) / biggest)};color:#24292f;{CELL_STYLE};{size}">'
            f"<b>{escape(box.labels(int(i)))}</b><br>"
            f"{f'{x:.1%}' if is_share else digits(float(x), 2 if self.backward else 3)}</span>"
            for i, x in zip(box.shown, shown, strict=True)
        )
        return f'<span class="cells" style="{CELLS_STYLE}">{cells}</span>'

    def _gutter(self, wire: Wire) -> str:
        x, middle, half = (lambda line: 8 + LINE * line), ROW / 2, ROW / 2
        path = "".join(f"M{x(line)} 0V{ROW}" for line in wire.past)
        path += "".join(f"M{x(line)} 0C{x(line)} {half * .6:g} {x(wire.at)} {half * .3:g} {x(wire.at)} {middle:g}"
                        for line in wire.above)  # fmt: skip
        path += "".join(f"M{x(wire.at)} {middle:g}C{x(wire.at)} {ROW - half * .3:g} {x(line)} {ROW - half * .6:g} "
                        f"{x(line)} {ROW}" for line in wire.below)  # fmt: skip
        at, color = x(wire.at), "#b35900" if self.backward else "#1f5fc4"
        if wire.adds:
            node = (
                f'<circle cx="{at}" cy="{middle:g}" r="7.5" fill="#fff" stroke="{color}" stroke-width="2"/>'
                f'<path d="M{at - 4} {middle:g}h8m-4 -4v8" stroke="{color}" stroke-width="2"/>'
            )
        else:
            tip = -6 if self.backward else 6
            node = f'<path d="M{at - 6} {middle - tip:g}h12l-6 {2 * tip}z" fill="{color}"/>'
        svg = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="70" height="{ROW}"><path d="{path}" fill="none" '
            f'stroke="{LINE_COLOR}" stroke-width="2"/>{node}</svg>'
        )
        alt = "plus" if wire.adds else "then"
        return f'<img alt="{alt}" style="flex:0 0 70px;width:70px;height:{ROW}px;margin:0" src="{_svg_source(svg)}">'


def _formulas(work: Work) -> str:
    return "".join(f'<div class="formula">{escape(line)}</div>' for line in work.lines)


def _folded(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def _products(sums: Products, most: int) -> str:
    """List the largest products, the sum of the others, and the total; then the folded longer list."""
    order = sums.order()
    first, rest = order[:FIRST_PRODUCTS], order[FIRST_PRODUCTS:]
    rows = [_product_row(sums, int(i)) for i in first]
    if len(rest):
        rows.append(
            f"<tr><th>{'the other' if len(rest) > 1 else 'the last'} {len(rest) if len(rest) > 1 else 'one'}<td><td>"
            f"<td>{digits(sums.terms[rest].sum())}"
        )
    raw = float(sums.terms.sum())
    rows.append(f'<tr><th>sum<td><td><td class="end">{digits(raw)}')
    if sums.scale_name:
        rows.append(f'<tr><th>{escape(sums.scale_name)}<td><td><td class="end">{digits(sums.total)}')
    head = (
        f'<tr><th><th scope="col">{escape(sums.left_name)}<th scope="col">{TIMES} {escape(sums.right_name)}'
        '<th scope="col">= product'
    )
    table = f'<div style="overflow-x:auto"><table>{head}{"".join(rows)}</table></div>'
    if len(rest) > 1:
        listed = order[:most]
        text = "\n".join(
            f"{sums.place(int(i))}: {digits(sums.left[i])} {TIMES} {digits(sums.right[i])} = {digits(sums.terms[i])}"
            for i in listed
        )
        which = f"All {len(order)}" if len(listed) == len(order) else f"The {len(listed)} largest of {len(order):,}"
        table += _folded(f"{which} products", f'<pre class="all" tabindex="0">{escape(text)}</pre>')
    return table


def _product_row(sums: Products, i: int) -> str:
    return (
        f"<tr><th>{escape(sums.place(i))}<td>{digits(sums.left[i])}<td>{TIMES} {digits(sums.right[i])}"
        f"<td>= {digits(sums.terms[i])}"
    )


def _strip(numbers: np.ndarray, name: str, height: int) -> str:
    """Draw numbers as a row of colours; the largest absolute value has the full colour."""
    drawn = np.asarray(numbers, dtype=np.float64)[:MOST_NUMBERS]
    biggest = float(np.abs(drawn).max()) or 1.0
    color = shades(-1, 1, (NEGATIVE, ZERO, POSITIVE))
    levels = np.rint(drawn / biggest * SHADES).astype(int) + SHADES
    palette = bytes.fromhex("".join(color(level / SHADES)[1:] for level in range(-SHADES, SHADES + 1)))
    some = f"the first {len(drawn)} of " if len(drawn) < len(numbers) else ""
    alt = f"{name}: {some}{len(numbers):,} numbers from {digits(drawn.min(), 3)} to {digits(drawn.max(), 3)}"
    levels = levels.repeat(max(1, SMOOTH // len(levels)))
    return (
        f'<img alt="{escape(alt)}" src="{_png_source(levels, palette)}" '
        f'style="display:block;width:100%;height:{height}px;margin:0 0 2px">'
    )


def _svg_source(svg: str) -> str:
    """Return an SVG as the source of an image, because JupyterLab removes inline SVG from untrusted notebooks."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _png_source(levels: np.ndarray, palette: bytes) -> str:
    """Return one row of pixels, each the number of a colour, as a PNG, which is a fifth of the size of an SVG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(levels), 1, 8, 3, 0, 0, 0)  # 8 bits per pixel; 3: colours from a palette
    pixels = zlib.compress(b"\0" + levels.astype(np.uint8).tobytes(), 9)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"PLTE", palette) + chunk(b"IDAT", pixels)
    return "data:image/png;base64," + base64.b64encode(png + chunk(b"IEND", b"")).decode()


def _words(trace: Trace, boxes: Boxes, layer: int, backward: bool) -> str:
    """Describe the picture in words."""
    config, p = trace.config, boxes.position
    text = "".join(trace.spell(id_) for id_ in trace.ids)
    probabilities = trace.probabilities(p)
    likely = int(probabilities.argmax())
    weights = trace.record[f"layers.{layer}.self_attn.weights"][boxes.head, p]
    most = int(weights.argmax())
    words = (
        f"Token {boxes.places[p]} of {text!r} on its way through a {config.model_type.capitalize()} with "
        f"{config.num_hidden_layers} layers: in layer {layer}, head {boxes.head} looks most at token "
        f"{boxes.places[most]} ({weights[most]:.0%}); "
        f"the likeliest next token is {trace.spell(likely)!r} ({probabilities[likely]:.1%})."
    )
    if backward:
        asked = "".join(trace.spell(target) for target in trace.targets.values())
        size = float(np.abs(trace.grads["embedding"][p]).max())
        words += (
            f" The loss, {MINUS}log of the probability of {asked!r}, is {digits(trace.loss, 3)}; the largest gradient "
            f"that arrives at this token's embedding is {digits(size, 3)}."
        )
    return words
