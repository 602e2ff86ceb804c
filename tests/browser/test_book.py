"""The course as a web site: only what moving pictures need is run, no picture and no alt text is lost, all links work,
and it can be read on a telephone, by a screen reader and with the keyboard. Pages are opened as files."""

import base64
import gzip
import json
import re
import shutil
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import expect

from mlx_grpo_kit.course.book import moving, reference, website
from mlx_grpo_kit.course.syllabus import PARTS, PATHS
from mlx_grpo_kit.grpo import compute_advantages

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}DeprecationWarning") for kind in ("", "Pending")]
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CHAPTERS = ["01_derivatives", "02_scalar_autograd", "12_qwen3"]  # panels and still pictures, graphs, wide tables
TOO_WIDE = """() => {
  const width = document.documentElement.clientWidth;
  // Code, formulas and pictures that scroll in their box, and what is cut off by design.
  const room = node => node.closest("pre, .kit-formula, .numbers, details:not([open])")
    ?? node.parentElement.closest("[style*='overflow-x'], .kit-flow");
  const wide = [...document.querySelectorAll("article *")].filter(
    node => node.getBoundingClientRect().right > width + 1 && !room(node));
  return [document.documentElement.scrollWidth - width, wide.map(node => node.outerHTML.slice(0, 200)).slice(0, 3)];
}"""


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """(folder of the notebooks, folder of their site, complaints). No panel needs the cell that would fail if run."""
    folder = tmp_path_factory.mktemp("book")
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(notebook, notebooks)
    first = notebooks / f"{CHAPTERS[0]}.ipynb"
    notebook = json.loads(first.read_text(encoding="utf-8"))
    [*_, last] = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    last["source"] = ["raise SystemExit(3)"]
    first.write_text(json.dumps(notebook), encoding="utf-8")
    complaints = website.build(notebooks, folder / "site")
    return notebooks, folder / "site", complaints


def pages(site):
    return {path.stem: path.read_text(encoding="utf-8") for path in site.glob("*.html")}


def pictures_in_words(html):
    """The alt texts of all pictures: images, and SVGs in the page."""
    return [unescape(words) for words in re.findall(r'<img[^>]* alt="([^"]*)"|<svg[^>]*role="img"', html)]


def test_every_picture_is_there_with_its_alt_text(book):
    notebooks, site, _ = book
    for chapter in CHAPTERS:
        cells = json.loads((notebooks / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        stored = "".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
        page = pages(site)[chapter]
        assert len(pictures_in_words(stored)) > 2
        assert pictures_in_words(page)[-len(pictures_in_words(stored)) :] == pictures_in_words(stored)
        assert stored.count("kit-still") == page.count("kit-still")  # what panels leave
        assert re.findall(r'src="data:[^"]+"', page) == re.findall(r'src="data:[^"]+"', stored)
        for printed in ("".join(output["text"]).splitlines()[0] for output in outputs if "text" in output):
            assert printed in unescape(re.sub(r"<[^>]+>", "", page))


def test_the_guides_are_pages_that_the_first_page_links(book):
    _, site, _ = book
    assert website.GUIDES
    for guide in website.GUIDES:
        title = guide.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert f'href="{guide.stem}.html"' in pages(site)["index"]
        assert f"<h1>{title}<" in pages(site)[guide.stem]
    assert '<span class="caption-text">Guides</span>' in pages(site)["index"]


def test_the_reference_is_pages_that_the_first_page_links_and_the_search_finds(book):
    _, site, _ = book
    for name in (f"reference_{page}" for page in reference.PAGES):
        assert f'href="{name}.html"' in pages(site)["index"]
    page = pages(site)["reference_autograd"]
    assert 'id="mlx_grpo_kit.autograd.value_and_grad"' in page
    assert "12_qwen3.html" in pages(site)["reference_qwen3"]  # the chapter that builds it
    assert "`" not in re.sub(r"<[^>]+>", "", "".join(re.findall(r"<dl class=\"py.*?</dl>", page, flags=re.S)))
    assert "hvp" in (site / "searchindex.js").read_text(encoding="utf-8")


def test_pictures_of_the_guides_are_there(book):
    _, site, _ = book
    for page, picture in (("course", "flow.png"), ("course", "panels.png")):
        [source] = re.findall(rf'src="([^"]*{picture})"', pages(site)[page])
        assert (site / source).is_file()


def test_what_no_moving_picture_needs_is_not_run(book):
    _, site, complaints = book
    assert "SystemExit" in re.sub(r"<[^>]+>", "", pages(site)[CHAPTERS[0]])
    assert complaints == []


def test_links_lead_somewhere_and_need_no_network(book):
    _, site, _ = book
    for name, page in pages(site).items():
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page):
            if not re.match(r"https?:|data:", target):
                assert (site / unquote(target)).is_file(), f"{name} links {target}"
        assert not re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="(?:https?:)?//', page)
    assert 'href="02_scalar_autograd.html"' in pages(site)["01_derivatives"]


def test_every_chapter_offers_its_notebook_as_it_is(book):
    notebooks, site, _ = book
    for notebook in notebooks.glob("*.ipynb"):
        [target] = re.findall(rf'href="(_downloads/[^"]*{notebook.name})"', pages(site)[notebook.stem])
        assert (site / target).read_bytes() == notebook.read_bytes()


def test_the_search_shows_sentences_and_no_list_of_contents(book, browser):
    _, site, _ = book
    page = browser.new_page()
    page.route("http://book/**", lambda route: route.fulfill(path=site / unquote(urlsplit(route.request.url).path[1:])))
    page.goto("http://book/search.html?q=advantage")
    page.locator("#search-results li p.context").nth(5).wait_for()
    found = page.locator("#search-results li p.context").all_inner_texts()
    assert not [words for words in found if re.match(r"\.\.\.\S", words) or "Contents" in words]
    assert not [words for words in found if words.count("Exercise") > 1]
    page.close()


def test_the_first_page_has_every_chapter_once_the_paths_and_a_sentence_for_each_guide(book):
    _, site, _ = book
    front = pages(site)["index"]
    article = unescape(re.sub(r"<[^>]+>", "", front[front.index("<article") : front.index("</article")]))
    article = article.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    for name, part in PARTS.items():
        assert f'<span class="caption-text">{name}</span>' in front
        for chapter in part:
            assert article.count(f"{chapter.number} · {chapter.title}") == 1
    assert all(name in article for name in PATHS)
    assert all(sentence in article for sentence in website.ABOUT.values())
    assert "Put the parts together" in article  # a goal
    assert 'class="kit-start" href="00_start_here.html"' in front


def test_on_the_first_page_a_click_on_an_answer_shows_what_would_be_learnt(book, reader):
    _, site, _ = book
    reader.goto((site / "index.html").as_uri())
    group = reader.locator(".kit-group")
    rows, buttons, said = group.locator("tbody tr"), group.get_by_role("button"), group.get_by_role("status")
    texts = [buttons.nth(place).inner_text().split()[0] for place in range(8)]
    assert rows.evaluate_all("rows => rows.map(row => row.className === 'kit-up')") == [text == "65" for text in texts]
    at_first = group.inner_html()

    def shares(place):
        return [int(share) for share in re.findall(r"(\d+)%", rows.nth(place).locator("td").last.inner_text())]

    before, after = shares(texts.index("65"))
    assert after > before
    buttons.nth(texts.index("65")).click()  # equal answers have equal verdicts
    expect(said).to_contain_text("None of eight answers are right. Without a difference there is nothing to learn")
    assert all(len({*shares(place)}) == 1 for place in range(8))
    buttons.nth(texts.index("55")).focus()
    reader.keyboard.press("Enter")
    expect(said).to_contain_text("Four of eight answers are right")
    rewards = [float(text == "55") for text in texts]
    shown = [rows.nth(place).locator("td").nth(1).inner_text().strip() for place in range(8)]
    assert shown == [
        f"{value:+.2f}".replace("-", "\N{MINUS SIGN}") for value in compute_advantages(rewards, 8).tolist()
    ]
    assert shares(texts.index("65"))[1] < before
    buttons.nth(texts.index("55")).click()
    buttons.nth(texts.index("65")).click()
    assert group.inner_html() == at_first


def test_chapters_link_colab_and_binder_only_if_the_repository_is_on_github(book, tmp_path, monkeypatch):
    notebooks, site, _ = book
    assert "colab.research" not in pages(site)["01_derivatives"]
    assert website._in_the_cloud("x.ipynb", "https://example.org/me/course") == ""
    monkeypatch.setattr(website, "make_moving", lambda notebooks, folder: [])
    monkeypatch.setattr(reference, "PAGES", {"scalar": ("scalar",)})
    (tmp_path / "some").mkdir()
    shutil.copy(notebooks / "01_derivatives.ipynb", tmp_path / "some")
    website.build(tmp_path / "some", tmp_path / "site", repository="https://github.com/me/course.git")
    page = (tmp_path / "site" / "01_derivatives.html").read_text(encoding="utf-8")
    assert "https://colab.research.google.com/github/me/course/blob/HEAD/notebooks/01_derivatives.ipynb" in page
    assert "https://mybinder.org/v2/gh/me/course/HEAD?urlpath=lab/tree/notebooks/01_derivatives.ipynb" in page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_telephone_only_code_is_wider_than_the_page(book, browser, scheme):
    _, site, _ = book
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    try:
        page = context.new_page()
        for name in ("index", "names", "course", "real_qwen3", "reference_grpo", *CHAPTERS):
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate(TOO_WIDE) == [0, []], name
            assert page.locator("html").get_attribute("data-theme") == scheme
        # No paper behind pictures whose ink follows the theme, nor ink of another colour.
        look = (
            "(s => [s.backgroundColor, s.color])(getComputedStyle(document.querySelector('.cell_output .text_html')))"
        )
        ink = page.evaluate("getComputedStyle(document.querySelector('article p')).color")
        assert page.evaluate(look) == ["rgba(0, 0, 0, 0)", ink]
    finally:
        context.close()


# On the page, of what has words of its own; 99 on a page without a flow picture.
SMALLEST_OF_FLOW = """() => Math.min(99, ...[...document.querySelectorAll(".kit-flow *:not(script, style)")].filter(
  node => node.checkVisibility() && [...node.childNodes].some(each => each.nodeType === 3 && each.data.trim())).map(
  node => parseFloat(getComputedStyle(node).fontSize) * node.currentCSSZoom))"""
SMALLEST = """() => [...document.querySelectorAll("article svg[role]")].map(svg => {
  const box = svg.parentElement, scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const words = [...svg.querySelectorAll("text, tspan")].filter(node => node.textContent.trim());
  const sizes = words.map(node => scale * parseFloat(getComputedStyle(node).fontSize));
  box.scrollLeft = 1e6;
  const last = svg.getBoundingClientRect().right <= document.documentElement.clientWidth;
  return [Math.min(...sizes, 99), last, box.getBoundingClientRect().right <= document.documentElement.clientWidth];
})"""


def test_on_a_telephone_words_of_pictures_can_be_read_and_the_pictures_scroll_in_their_boxes(book, browser):
    _, site, _ = book
    page = browser.new_page(viewport={"width": 390, "height": 844})
    try:
        for name in CHAPTERS:
            page.goto((site / f"{name}.html").as_uri())
            found = page.evaluate(SMALLEST)
            assert found, name
            for smallest, last_column_in_sight, box_in_sight in found:
                assert smallest >= 9 - 1e-3, name
                assert (last_column_in_sight, box_in_sight) == (True, True), name
            smallest = page.evaluate(SMALLEST_OF_FLOW)
            assert (9 - 1e-3 <= smallest < 20) if name == "12_qwen3" else smallest == 99, name
    finally:
        page.close()


# Sphinx writes the lines of a long signature as a list without terms.
OF_SPHINX = ["definition-list"]
WITH_LINKS_IN_TEXT = ("index", "00_start_here")


@pytest.mark.timeout(1200)  # half a minute on a machine that has nothing else to do
def test_axe_finds_nothing_that_keeps_a_page_from_a_screen_reader_or_a_keyboard(book, browser, violations):
    _, site, _ = book
    page = browser.new_page(viewport={"width": 820, "height": 1000})
    try:
        for path in sorted({*site.glob("*.html")} - {site / "search.html"}):  # that one is the theme's
            page.goto(path.as_uri())
            assert violations(page, "article", OF_SPHINX, path.stem in WITH_LINKS_IN_TEXT) == [], path.stem
    finally:
        page.close()


def part_of(site, id):
    """(kind, content) of a moving picture."""
    _, kind, packed = json.loads(f"[{(site / '_static' / 'moving' / f'{id}.js').read_text()[len('kitPart(') : -3]}]")
    return kind, json.loads(gzip.decompress(base64.b64decode(packed)))


def pages_with_moving_pictures(site):
    return {name: ids for name, page in pages(site).items() if (ids := re.findall(r'data-part="([^"]+)"', page))}


def stored_words(notebooks):
    """The plain text of a cell's outputs, by the cell's id."""
    cells = [cell for path in notebooks.glob("*.ipynb") for cell in json.loads(path.read_text("utf-8"))["cells"]]
    return {
        cell["id"]: "".join("".join(output.get("data", {}).get("text/plain", "")) for output in cell["outputs"])
        for cell in cells
        if cell["cell_type"] == "code"
    }


def test_every_flip_book_opens_with_the_stored_picture_and_is_small(book):
    notebooks, site, _ = book
    placed = sorted(id for ids in pages_with_moving_pictures(site).values() for id in ids)
    assert placed == sorted([*moving.FLIP_BOOKS, *moving.INSTRUMENTS])
    assert {"01", "04", "06", "10", "11", "13", "15", "16", "19"} <= {id[:2] for id in moving.FLIP_BOOKS}
    files = {file.stem: file.stat().st_size for file in (site / "_static" / "moving").iterdir()}
    assert all(files[id] < 301_000 for id in moving.FLIP_BOOKS)
    assert sum(files.values()) < 15_000_000
    stored = stored_words(notebooks)
    for id in moving.FLIP_BOOKS:
        kind, content = part_of(site, id)
        place = 0
        for control in content["controls"]:
            place = place * len(control["words"]) + control["start"]
        shown = content["pictures"][content["frames"][place]]
        words = words_of(shown) + [unescape(each) for each in re.findall("<p>([^<]+)", shown)]
        assert kind == "flip_book"
        assert any(each.strip() and each.strip() in stored[id] for each in words), id


@pytest.fixture
def reader(browser):
    """A page of 1000 pixels, and what its console complains about."""
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    yield page
    assert [each for each in errors if "invalid theme mode" not in str(each)] == []
    page.close()


def live(page, site, id, name):
    """The moving picture `id`, once it has taken the place of the still one."""
    address = (site / f"{name}.html").as_uri()
    if page.url != address:
        page.goto(address)
    place = page.locator(f'[data-part="{id}"]')
    place.evaluate("place => place.previousElementSibling.scrollIntoView()")
    place.locator("> div").wait_for()
    expect(page.locator(".kit-still:has(+ .kit-moving > div)").first).to_be_hidden()
    return place


STATE = """controls => controls.map(
  each => each.type === "checkbox" ? Number(each.checked) : each.selectedIndex ?? Number(each.value))"""


def words_of(picture):
    return [unescape("".join(each)) for each in re.findall(r"<title>([^<]*)|alt=\"([^\"]*)\"", picture)]


@pytest.mark.timeout(1200)
def test_every_control_of_every_flip_book_answers_to_the_mouse_and_to_the_keyboard(book, reader):
    _, site, _ = book
    for name, ids in pages_with_moving_pictures(site).items():
        for id in set(ids) & moving.FLIP_BOOKS.keys():
            place, seen = live(reader, site, id, name), set()
            view, controls = place.locator(".kit-view"), place.locator(".kit-fields :is(input, select)")
            _, content = part_of(site, id)
            assert controls.count() == len(content["controls"])
            for number in range(controls.count()):
                control, before = controls.nth(number), view.inner_html()
                kind = control.get_attribute("type") or "select"
                if kind == "range":
                    control.click(position={"x": 3, "y": 5})  # near the left end
                    low = (control.input_value(), view.inner_html())
                    control.press("End")
                    high = (control.input_value(), view.inner_html())
                    assert low != high, (id, number)
                    seen |= {low[1], high[1]}
                    assert control.get_attribute("aria-valuetext") == control.locator("+ output").inner_text()
                elif kind == "checkbox":
                    control.click()
                    control.press("Space")
                    control.press("Space")
                else:
                    control.select_option(index=0)
                    control.press("ArrowDown")
                seen |= {before, view.inner_html()}
            assert len(seen) > 1, id
            at = 0
            for control, value in zip(content["controls"], controls.evaluate_all(STATE), strict=True):
                at = at * len(control["words"]) + value
            assert words_of(view.inner_html()) == words_of(content["pictures"][content["frames"][at]]), id


def test_a_dashboard_in_the_book_goes_back_through_its_run(book, reader):
    _, site, _ = book
    place = live(reader, site, "18-dashboard", "18_grpo_training")
    expect(place).to_contain_text("step 60, the latest")
    assert place.locator(".kit-abandoned").count() > 3  # the branch that a rewind left, in grey
    curve = place.locator(".kit-curve svg").first
    curve.focus()
    curve.press("Home")
    expect(place).to_contain_text("step 1, under the cursor")
    expect(place.locator("tbody tr").first).to_be_visible()
    box = curve.bounding_box()
    reader.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5)
    expect(place.locator(".kit-where")).to_contain_text(re.compile(r"step [23]\d"))
    place.locator(".kit-groups button").first.click()
    expect(place).to_contain_text("8 of 64 completions")
    place.get_by_role("button", name="Newest step").click()
    expect(place).to_contain_text("step 60, the latest")


def test_the_microscope_in_the_book_has_its_answers(book, reader):
    _, site, _ = book
    place = live(reader, site, "18-microscope", "18_grpo_training")
    loss = place.locator(".loss")
    before = loss.inner_text()
    place.get_by_label("loss type").select_option("grpo")
    expect(loss).not_to_have_text(before)
    place.get_by_label("loss type").select_option("dapo")
    expect(loss).to_have_text(before)
    epsilon = place.get_by_role("slider", name="epsilon")
    epsilon.press("ArrowRight")
    expect(place.locator(".said")).to_contain_text("numbers changed")
    assert epsilon.input_value() == "0.25"
    epsilon.press("ArrowLeft")
    place.get_by_label("prompt").select_option(index=0)
    expect(place.locator(".heading")).to_contain_text(
        place.get_by_label("prompt").evaluate("e => e.value") and "Answer 1"
    )
    reader.set_viewport_size({"width": 390, "height": 844})
    assert reader.evaluate("document.documentElement.scrollWidth") == 390
    middles = [
        box["y"] + box["height"] / 2
        for box in (place.locator(name).nth(7).bounding_box() for name in (".answer", ".handle"))
    ]
    assert abs(middles[0] - middles[1]) < 3  # an answer and its reward are in one row
    handle = place.locator(".handle").first
    handle.focus()
    handle.press("ArrowRight")  # advantages follow in the page; the loss would need a kernel, which is said
    expect(place.get_by_role("alert")).to_contain_text("This page has no kernel")


def test_the_generation_tree_in_the_book_grows(book, reader):
    _, site, _ = book
    place = live(reader, site, "13-tree", "13_generation")
    nodes = place.locator(".node")
    before = nodes.count()
    bars = place.locator(".bar")
    bars.nth(2).click()
    expect(nodes).to_have_count(before + 1)
    bars.nth(0).press("Enter")
    expect(nodes).to_have_count(before + 2)
    place.get_by_role("slider", name="temperature").press("Home")
    expect(bars.nth(0)).to_contain_text("100%")
    place.get_by_label("prompt").fill("1+1=")
    place.get_by_label("prompt").press("Enter")
    expect(place.get_by_role("alert")).to_contain_text("This page has no kernel")


@pytest.mark.parametrize("name", ["01_derivatives", "18_grpo_training"])
def test_still_pictures_remain_without_scripts_and_on_paper(book, browser, reader, name):
    _, site, _ = book
    count = len(pages_with_moving_pictures(site)[name])
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / f"{name}.html").as_uri())
    stills = page.locator(".kit-still:has(+ .kit-moving)")
    assert stills.count() == count
    assert all(stills.nth(place).is_visible() for place in range(count))
    assert page.locator(".kit-moving > *").count() == 0
    context.close()
    for id in pages_with_moving_pictures(site)[name]:
        live(reader, site, id, name)
    reader.emulate_media(media="print")
    stills = reader.locator(".kit-still:has(+ .kit-moving)")
    assert all(stills.nth(place).is_visible() for place in range(count))
    assert not reader.locator(".kit-moving").first.is_visible()


@pytest.mark.parametrize("name", ["index", "01_derivatives", "18_grpo_training"])
def test_axe_finds_nothing_in_what_moves(book, browser, violations, name):
    _, site, _ = book
    page = browser.new_page(viewport={"width": 700, "height": 900})
    page.goto((site / f"{name}.html").as_uri())
    for id in pages_with_moving_pictures(site).get(name, ()):
        live(page, site, id, name)
    page.wait_for_timeout(300)  # boxes that scroll become stops of the Tab key
    assert violations(page, ".kit-group" if name == "index" else ".kit-moving", OF_SPHINX) == []
    page.close()


def test_an_instrument_has_the_words_of_its_still_picture(book, reader):
    notebooks, site, _ = book
    words = live(reader, site, "23-replay", "23_a_real_language_model").locator(".kit-words").inner_text()
    assert "Training curves over" in words
    assert words in stored_words(notebooks)["23-replay"]


def test_what_is_inside_an_svg_picture_survives(book):
    """JupyterLab's SVG pictures are images that contain an SVG; their script replaces the image with it."""
    _, site, _ = book
    [first, *_] = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', pages(site)["02_scalar_autograd"])
    assert "<title" in base64.b64decode(first).decode()
