"""Pictures whose controls are at their ends: no word is cut off at the edge, and none lies over another."""

import pytest

from mlx_grpo_kit.course.chapters.chapter_11.pictures.attention_maps import draw_attention_map
from mlx_grpo_kit.course.chapters.chapter_16.pictures.advantages import draw_advantages
from mlx_grpo_kit.course.chapters.chapter_16.pictures.clip_surface import draw_clip
from mlx_grpo_kit.course.chapters.chapter_21.pictures.machines import draw_machines
from mlx_grpo_kit.course.pictures.sizes import draw_plan

NETWORKS = {f"{speed} gigabits per second": [0.0, 0.5, 1.0] for speed in (10, 100, 400)}
PICTURES = {
    "one token": lambda: draw_attention_map([[1.0]], ["7"], 0, title="layer 0, head 3"),
    "a clip range at its widest": lambda: draw_clip(2.0, 0.9, 0.9),
    "equal rewards": lambda: draw_advantages(["65", "55", "75"], [2.0] * 3, [0.0] * 3),
    "networks": lambda: draw_machines([1, 32, 1024], NETWORKS, [32], title="waiting", below="below"),
    "a huge model": lambda: draw_plan({"mlp": 1.36e11}, {"scores": 1.13e19}, {"parameters": 5e16}, title="huge"),
}
WRONG = """() => {
  const svg = document.querySelector("svg"), page = svg.getBoundingClientRect();
  const words = [...svg.querySelectorAll("text")].filter(text => text.getBoundingClientRect().width);
  // Of a line of words the middle is ink; above and below it there is room.
  const boxes = words.map(text => text.getBoundingClientRect()).map(({left, right, top, bottom}) =>
    ({left, right, top: top + 0.25 * (bottom - top), bottom: bottom - 0.25 * (bottom - top)}));
  const isCut = box => box.left < page.left || box.right > page.right;
  const found = words.filter((_, at) => isCut(boxes[at])).map(text => text.textContent);
  boxes.forEach((one, at) => boxes.slice(at + 1).forEach((other, more) => {
    if (one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom)
      found.push(`${words[at].textContent} | ${words[at + 1 + more].textContent}`);
  }));
  for (const line of svg.querySelectorAll("path[stroke-width='2']:not([stroke-dasharray])")) {
    const {left, right, top, bottom} = line.getBoundingClientRect();
    if (bottom - top < 2) boxes.forEach((box, at) => {
      if (box.top < bottom && box.bottom > top && box.left < right && box.right > left && right - left > 100)
        found.push(`${words[at].textContent} is crossed`);
    });
  }
  return found;
}"""


@pytest.mark.parametrize("name", PICTURES)
def test_words_are_whole_and_apart(browser, name):
    page = browser.new_page()
    page.set_content(f"<body>{(drawn := PICTURES[name]())[0].svg(drawn[1])}")
    assert page.evaluate(WRONG) == []
    page.close()
