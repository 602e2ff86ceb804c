"""The microscope and the generation tree in JupyterLab: every control, by mouse and keyboard, and its effects.

The browser's results are compared with the kit's: advantages with `compute_advantages`, filters and temperature
with generation/sampling.py.
"""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from mlx_grpo_kit import instruments
from mlx_grpo_kit.generation.sampling import filtered, shifted
from mlx_grpo_kit.grpo import compute_advantages
from mlx_grpo_kit.runtime import mx

MODULES = Path(instruments.__file__).parent
SET_UP = """from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.instruments.generation_tree import show_generation_tree
from mlx_grpo_kit.instruments.microscope import show_microscope, take_updates
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition
config, params = load_pretrained(TINY)
tokenizer = load_tokenizer(TINY)
args = GRPOConfig(learning_rate=3e-4, num_generations=8, per_device_train_batch_size=64)
step = next(GRPOTrainer(config, params, tokenizer, Addition(), args).train(1))
policies = take_updates(config, params, step.completions, args, 4)"""
MICROSCOPE = "show_microscope(config, policies, tokenizer, step.completions, args, group=1)"
TREE = 'show_generation_tree(config, params, tokenizer, "27+38=", answers=["55", "65"])'

# A function of a module, called in the page with JSON.
CALL = """([source, name, cases]) => {
  const called = new Function(source.replace("export default {render}", `return ${name}`))();
  return cases.map(given => Array.from(called(...given)));
}"""
# The milliseconds from an input to the frame in which the page shows it, which `seen` detects.
TIMED = """([act, seen]) => new Promise(done => {
  const root = document.querySelector(".kit-live .kit-widget"), seenNow = new Function("root", `return ${seen}`);
  const wait = start => seenNow(root) ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)))
    : requestAnimationFrame(() => wait(start));
  requestAnimationFrame(() => {
    const start = performance.now();
    new Function("root", act)(root);
    wait(start);
  });
})"""


@pytest.fixture(scope="module")
def blank(browser):
    page = browser.new_page()
    yield page
    page.close()


def call(page, module, name, cases):
    return page.evaluate(CALL, [(MODULES / module).read_text(encoding="utf-8"), name, cases])


def test_advantages_in_the_browser_match_the_kits(blank):
    rng = np.random.default_rng(0)
    cases = []
    for scale, estimator in (
        ("group", "grpo"),
        ("batch", "grpo"),
        ("none", "grpo"),
        ("batch", "rloo"),
        ("none", "rloo"),
    ):
        for group in (2, 3, 8):
            rewards = np.round(rng.normal(size=3 * group), 2).tolist()
            rewards[:group] = [0.7] * group  # no spread at all
            rewards[-1] = None
            cases.append([rewards, group, scale, estimator])
    found = call(blank, "microscope/microscope.js", "(...given) => advantagesOf(...given).advantages", cases)
    for case, advantages in zip(cases, found, strict=True):
        expected = np.array(compute_advantages(*case[:3], advantage_estimator=case[3]))
        np.testing.assert_allclose(advantages, expected, rtol=1e-6, atol=1e-7, err_msg=str(case))
        assert (expected[: case[1]] == 0).all()
        assert advantages[: case[1]] == [0] * case[1]


def test_filters_and_temperature_in_the_browser_match_the_kits(blank):
    rng = np.random.default_rng(1)
    settings = [
        {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        for temperature in (0, 0.3, 1, 2.5)
        for top_k, top_p, min_p in ((0, 1, 0), (5, 1, 0), (0, 0.77, 0), (0, 1, 0.08), (9, 0.83, 0.06), (3, 0.01, 1))
    ]
    logits = [(-np.sort(-rng.normal(size=64) * 2)).astype(np.float32) for _ in settings]
    drawn = (
        "(row, set) => shared(Float32Array.from(row), keptBy(Float32Array.from(row), set)['top-p'], set.temperature)"
    )
    found = call(
        blank,
        "generation_tree/generation_tree.js",
        drawn,
        [[row.tolist(), each] for row, each in zip(logits, settings, strict=True)],
    )
    for row, each, probs in zip(logits, settings, found, strict=True):
        left = filtered(mx.array(row), each["top_p"], each["top_k"], each["min_p"])
        tempered = shifted(left, each["temperature"])
        expected = np.array(mx.softmax(tempered) if each["temperature"] else mx.arange(64) == mx.argmax(left))
        np.testing.assert_allclose(probs, expected[: len(probs)], rtol=1e-4, err_msg=str(each))
        assert not expected[len(probs) :].any(), each


def test_the_microscope_follows_every_control(open_notebook):
    notebook = open_notebook("microscope", SET_UP, MICROSCOPE)
    notebook.run_all()
    page, live = notebook.page, notebook.page.locator(".kit-live .kit-microscope")
    live.wait_for()
    notebook.wait_until_idle()
    notebook.show(1)
    loss = live.locator(".loss")

    def control(name):
        return live.get_by_label(name, exact=True)

    def follows(act, words="numbers changed"):
        before = loss.inner_text()
        act()
        page.wait_for_function(
            "([before, words]) => { const said = document.querySelector('.kit-live .said').textContent;"
            " return said.includes(words) && said.includes('loss ' + before + ' →'); }",
            arg=[before, words],
        )

    def tokens():
        return live.locator(".cell .value").all_inner_texts()

    # The loss's settings: what changed is marked, the gradient follows, and nothing moves to another line.
    place = "() => document.querySelector('.kit-microscope .group').offsetTop"
    top = notebook.page.evaluate(place)
    assert live.locator(".changed").count() == 0
    follows(lambda: control("epsilon").press("Home"))
    assert live.locator(".changed").count() > 0
    assert loss.get_attribute("class").endswith("changed")
    follows(lambda: control("epsilon_high").fill("0.9") or control("epsilon_high").press("Enter"))
    follows(lambda: control("beta").press("End"))
    follows(lambda: control("importance sampling level").select_option("sequence"))
    follows(lambda: control("scale rewards").select_option("none"))
    follows(lambda: control("advantage estimator").select_option("rloo"))
    follows(lambda: control("loss type").select_option("cispo"))
    assert control("epsilon_high").input_value() == "5"
    assert live.get_by_text("largest weight").is_visible()
    control("epsilon_high").fill("-1")
    control("epsilon_high").press("Enter")
    live.locator(".kit-complaint", has_text="epsilon_high is -1; expected 0 or more.").wait_for()
    assert notebook.page.evaluate(place) == top
    follows(lambda: control("loss type").select_option("dapo"))
    assert not live.locator(".kit-complaint").is_visible()
    follows(lambda: control("updates").press("Home"))
    assert notebook.page.evaluate(place) == top
    assert set(live.locator(".details div", has_text="ratio").first.inner_text().split("\n")) == {
        "ratio",
        "1.00, log 0.00",
    }
    follows(lambda: control("updates").press("End"))
    control("scale rewards").select_option("group")
    live.locator(".kit-complaint", has_text="'rloo' and scale_rewards is 'group'").wait_for()
    follows(lambda: control("advantage estimator").select_option("grpo"))
    assert notebook.page.evaluate(place) == top

    # Colours, an answer, its tokens.
    shown = [tokens()]
    for measure in ("log_ratios", "clips", "entropies", "pushes"):
        control("colour").select_option(measure)
        shown.append(tokens())
    assert shown[0] == shown[4] != shown[1] != shown[2] != shown[3]
    live.locator(".answer").first.press("ArrowDown")
    assert live.locator(".answer[aria-pressed=true]").get_attribute("aria-label").startswith("answer 2, ")
    live.locator(".cell").first.focus()
    live.locator(".cell").first.press("ArrowRight")
    assert live.locator(".detail-head").inner_text().startswith("token 2 of ")
    live.locator(".cell").first.hover()
    assert live.locator(".detail-head").inner_text().startswith("token 1 of ")

    # Rewards: by keyboard, by mouse, and reset. The words below the axis follow within the browser.
    mean, handle = live.locator("svg .words", has_text="mean "), live.locator("[role=slider]").first
    first = mean.text_content()
    reward = float(handle.get_attribute("aria-valuenow"))
    follows(lambda: handle.press("ArrowRight"))
    assert float(handle.get_attribute("aria-valuenow")) == pytest.approx(reward + 0.05)
    assert mean.text_content() != first
    box = live.locator("[role=slider]").nth(2).bounding_box()
    page.mouse.move(box["x"] + 8, box["y"] + 8)
    page.mouse.down()
    push = "document.querySelectorAll('.kit-live .kit-microscope svg .number')[8].textContent"  # of the third answer
    before = page.evaluate(push)
    page.mouse.move(box["x"] + 70, box["y"] + 8, steps=6)
    page.mouse.up()
    page.wait_for_function(f"before => {push} !== before", arg=before)
    assert float(live.locator("[role=slider]").nth(2).get_attribute("aria-valuenow")) > 0.4
    live.get_by_role("button", name="reset rewards").click()
    assert mean.text_content() == first
    assert live.get_by_role("button", name="reset rewards").is_disabled()

    control("prompt").select_option("0")  # another group
    live.locator(".heading", has_text="Answer 1 to").wait_for()
    page.wait_for_function("() => !document.querySelector('.kit-live .heading').textContent.includes('4+26=')")

    dragged = page.evaluate(
        TIMED,
        [
            "root.querySelector('[role=slider]').dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}))",
            "!root.querySelectorAll('button')[root.querySelectorAll('button').length - 1].hidden"
            " && !root.querySelector('.group + .kit-row button').disabled",
        ],
    )
    asked = page.evaluate(
        TIMED,
        [
            "root.querySelector('.said').textContent = '';"
            " const input = root.querySelector('[aria-label=epsilon]'); input.value = 0.3;"
            " input.dispatchEvent(new Event('input'))",
            "root.querySelector('.said').textContent !== ''",
        ],
    )
    print(f"microscope: {dragged:.0f} ms in the browser, {asked:.0f} ms through the kernel")
    stored = notebook.save().cells[1].outputs[1]
    assert stored["data"]["text/plain"].startswith("8 answers to '4+26=' (dapo, epsilon 0.2, beta 0, after 4 updates")
    assert len(json.dumps(stored)) < 60_000


def test_the_tree_follows_every_control(open_notebook):
    notebook = open_notebook("tree", SET_UP.split("args =")[0], TREE)
    notebook.run_all()
    page, live = notebook.page, notebook.page.locator(".kit-live .kit-tree")
    live.wait_for()
    notebook.wait_until_idle()
    notebook.show(1)

    def control(name):
        return live.get_by_label(name, exact=True)

    path, bars = live.locator(".path"), live.locator(".bar")
    assert live.locator(".node").count() == 7
    assert bars.first.inner_text().split() == ["'5'", "63%"]

    # Filters and temperature, by keyboard; removed tokens name the filter that removed them.
    control("top-k").press("ArrowRight")
    bars.nth(1).get_by_text("out: top-k").wait_for()
    control("top-k").press("Home")
    control("top-p").fill("0.5")
    bars.nth(1).get_by_text("out: top-p").wait_for()
    control("top-p").press("End")
    control("min-p").fill("0.3")
    bars.nth(2).get_by_text("out: min-p").wait_for()
    notebook.wait_for_frame()
    assert live.locator(".node .share", has_text="out").count() == 0
    control("min-p").press("Home")
    control("temperature").press("Home")
    bars.first.get_by_text("100%").wait_for()
    control("temperature").fill("1")

    # A bar is chosen by mouse and by keyboard; the probability of the path; back by a box.
    bars.nth(3).click()
    live.locator(".path", has_text="27+38= '7': 2% with these settings, 2% in the policy.").wait_for()
    assert live.locator(".node").count() == 8
    bars.first.focus()
    bars.first.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelectorAll('.kit-live .node').length === 9")
    live.get_by_role("button", name="back one token").click()
    notebook.wait_for_frame()
    assert path.inner_text().startswith("27+38= '7':")
    live.get_by_role("button", name="27+38= '6' '5': ").focus()
    page.keyboard.press("Enter")
    notebook.wait_for_frame()
    assert "25% with these settings, 25% in the policy" in path.inner_text()
    control("temperature").fill("2")
    live.locator(".path", has_text="% with these settings, 25% in the policy").wait_for()
    page.wait_for_function("() => !document.querySelector('.kit-live .path').textContent.includes(': 25%')")
    live.get_by_role("button", name="27+38=, the beginning").click()
    live.get_by_role("button", name="take the likeliest").click()
    notebook.wait_for_frame()
    assert path.inner_text().startswith("27+38= '5':")
    live.get_by_role("button", name="new tree").click()
    notebook.wait_for_frame()
    assert live.locator(".node").count() == 1
    live.get_by_role("button", name="draw a token").click()
    page.wait_for_function("() => document.querySelectorAll('.kit-live .node').length === 2")

    # A half-typed prompt survives a redrawing; an unknown character gets a message.
    control("prompt").fill("8+\u00e9")
    drawings = "document.querySelector('.kit-live .kit-tree').dataset.drawings"
    before = page.evaluate(drawings)
    page.evaluate("document.querySelector('.kit-live [aria-label=temperature]').dispatchEvent(new Event('input'))")
    page.wait_for_function(f"before => {drawings} !== before", arg=before)
    assert control("prompt").input_value() == "8+\u00e9"
    control("prompt").press("Enter")
    live.locator(".kit-complaint", has_text="no token for '\u00e9'").wait_for()
    control("prompt").fill("8+")
    control("prompt").press("Enter")
    live.locator(".title", has_text="after 8+").wait_for()
    assert live.locator(".node").count() == 1
    assert not live.locator(".kit-complaint").is_visible()

    drawn = "root.dataset.drawings !== root.dataset.before"
    moved = page.evaluate(
        TIMED,
        [
            "root.dataset.before = root.dataset.drawings; const input = root.querySelector('[aria-label=temperature]');"
            " input.value = 0.7; input.dispatchEvent(new Event('input'))",
            drawn,
        ],
    )
    clicked = page.evaluate(
        TIMED,
        [
            "root.querySelector('.bar').click()",
            "root.querySelector('.title').textContent.length > 'after 8+'.length"
            " && root.querySelector('.bar:not([hidden])')",
        ],
    )
    print(f"tree: {moved:.0f} ms in the browser, {clicked:.0f} ms through the kernel")
    stored = notebook.save().cells[1].outputs[1]
    assert stored["data"]["text/plain"].startswith("After '27+38=': '5' 63%")
    html = stored["data"]["text/html"]
    assert "27+38=" in base64.b64decode(html.split("base64,")[1].split('"')[0]).decode()
