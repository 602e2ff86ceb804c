"""Style sheets and scripts that pictures add to a notebook's page, if it allows them."""

from __future__ import annotations

# GitHub, and JupyterLab before a notebook is trusted, remove parts of an inline SVG, but they keep images. If scripts
# run, the image is replaced by the SVG that it contains, which follows the page's theme and has tooltips.
UNFOLD = (
    "<script>(() => {const image = document.currentScript?.previousElementSibling; if (!image) return;"
    "const bytes = Uint8Array.from(atob(image.src.split(',')[1]), c => c.charCodeAt(0));"
    "const place = document.createElement('div'); place.style.overflowX = 'auto';"
    "place.innerHTML = new TextDecoder().decode(bytes); image.replaceWith(place);})()</script>"
)

# In the dark theme, a picture of ink on white paper becomes its negative with the same hues.
PICTURE_STYLE = """<style>
.kit-picture {border-radius: 6px}
[data-jp-theme-light="false"] .kit-picture {filter: brightness(.9)}
[data-jp-theme-light="false"] .kit-picture.kit-ink {filter: invert(.93) hue-rotate(180deg) brightness(1.12)}
</style>"""

# A live picture has two outputs: its widget, then a still picture. The page shows the widget while its kernel runs, and
# the still picture once the kernel is gone or the notebook is opened again. Then JupyterLab would show an error instead
# of the widget, or "Loading widget..." forever if the kernel was busy (a Panel without the box).
# If a new picture takes longer than half a second to draw, the old one fades, so that nobody takes it for the new one.
# A picture that is wider than the page scrolls in its box, which ipywidgets would let grow with the picture.
LIVE, STILL = "kit-live", "kit-still"
STILL_STYLE = f"""<style>
.jp-OutputArea-child:has(.{LIVE}:not(.jupyter-widgets-disconnected)) + .jp-OutputArea-child:has(.{STILL})
  {{display: none}}
.jp-OutputArea-child:has(> .lm-Panel):not(:has(.{LIVE})):has(+ .jp-OutputArea-child .{STILL}) {{display: none}}
.jp-OutputArea-child:has(.{LIVE}.jupyter-widgets-disconnected):has(+ .jp-OutputArea-child .{STILL}) {{display: none}}
.{LIVE} .widget-html, .{LIVE} .widget-html-content {{min-width: 0; max-width: 100%}}
.kit-busy {{opacity: .45; transition: opacity .1s .5s}}
</style>"""

# This script runs next to a live picture. ipywidgets gives a slider no accessible name, although there is a label next
# to it; the script takes the name from that label. The row of a checkbox begins with a label that contains only a
# zero-width space, which trim() keeps; the checkbox is inside another label, which names it. A slider's handle
# announces its position, which is the exponent on a logarithmic slider and the index on a slider of choices; the script
# makes it announce the readout. Widgets replace their elements, so names and values are set again whenever the output
# changes. A sheet of pixels (PaintBox) is painted by dragging over it. It is one stop of the Tab key, and the arrow
# keys move inside it. In a live picture, JupyterLab's keys without Ctrl are disabled, because ArrowDown on a menu would
# go to the next cell. JupyterLab looks for the attribute from the control outwards and may stop at the control itself,
# so the control must have the attribute before JupyterLab gets the key.
CONTROLS = """<script>(() => {
const place = document.currentScript?.closest(".jp-OutputArea-child")?.previousElementSibling;
if (!place) return;
const set = (node, key, words) => node.getAttribute(key) === words || node.setAttribute(key, words);
const name = (node, words) => set(node, "aria-label", words);
const nameAll = () => {
  for (const row of place.querySelectorAll(".widget-inline-hbox")) {
    const label = row.querySelector(".widget-label")?.textContent.replaceAll("\\u200b", "").trim();
    if (!label) continue;
    row.querySelectorAll(".noUi-handle, input, select, textarea").forEach(node => name(node, label));
    const handles = row.querySelectorAll(".noUi-handle");
    row.querySelectorAll(".widget-readout").forEach(node => {
      if (handles.length === 1 && node !== document.activeElement)
        set(handles[0], "aria-valuetext", node.textContent);
      if (!node.isContentEditable) return;
      name(node, label + ", typed");
      set(node, "role", "textbox");
    });
  }
  for (const button of place.querySelectorAll(".widget-play button")) {
    const icon = button.firstElementChild?.className ?? button.className;
    const kind = ["play", "pause", "step-backward", "stop", "retweet"].find(kind => icon.includes("fa-" + kind));
    // A stop keeps its place, which ipywidgets would lose. The first button plays and pauses.
    const play = button.parentElement.firstElementChild;
    if (kind === "stop") button.onclick = () => play.querySelector(".fa-pause") && play.click();
    name(button, {play: "Play", pause: "Pause", "step-backward": "Back to the start", stop: "Stop",
                  retweet: "Repeat"}[kind] ?? "Play");
  }
  place.querySelectorAll(".kit-sheet:not([role])").forEach(makeSheet);
};
const keep = event => {
  if (!event.target.closest?.(".kit-live")) return;
  event.target.toggleAttribute("data-lm-suppress-shortcuts", !(event.ctrlKey || event.metaKey || event.altKey));
};
if (!window.kitKeys) window.addEventListener("keydown", window.kitKeys = keep, true);
const makeSheet = sheet => {
  const pixels = [...sheet.querySelectorAll("button")];
  const columns = getComputedStyle(sheet).gridTemplateColumns.split(" ").length;
  let pressed = null;
  if (!pixels.length) return;
  sheet.setAttribute("role", "group");
  const stand = pixel => { pixels.forEach(each => each.tabIndex = each === pixel ? 0 : -1); };
  stand(pixels[0]);
  pixels.forEach((pixel, at) => {
    name(pixel, pixel.title);
    pixel.addEventListener("pointerdown", event => {
      event.target.releasePointerCapture?.(event.pointerId);
      pressed = pixel;
    });
    pixel.addEventListener("pointerup", () => { pressed = null; });
    pixel.addEventListener("pointerenter", event => {
      if (!(event.buttons & 1)) return;
      pressed?.click();  // a press that moves on to another pixel causes no click
      pressed = null;
      pixel.click();
    });
    pixel.addEventListener("focus", () => stand(pixel));
    pixel.addEventListener("keydown", event => {
      const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns}[event.key];
      if (!step) return;
      event.preventDefault();
      if (Math.abs(step) > 1 || Math.floor(at / columns) === Math.floor((at + step) / columns))
        pixels[at + step]?.focus();
    });
  });
};
nameAll();
const whatChanges = {childList: true, subtree: true, attributeFilter: ["class", "aria-valuetext"]};
new MutationObserver(nameAll).observe(place, whatChanges);
})()</script>"""
