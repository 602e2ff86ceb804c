"""The course as a web site: no cell is run, no picture and no alt text is lost, all links work, and it can
be read on a telephone, by a screen reader and with the keyboard."""

import base64
import json
import re
import shutil
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from mlx_grpo_kit.course import book as course_book
from mlx_grpo_kit.course import reference
from mlx_grpo_kit.course.course_map import describe_course
from mlx_grpo_kit.course.syllabus import PARTS

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
    """(folder of the notebooks, folder of their site, complaints). The notebooks have a cell that would fail if run."""
    folder = tmp_path_factory.mktemp("book")
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(notebook, notebooks)
    first = notebooks / f"{CHAPTERS[0]}.ipynb"
    notebook = json.loads(first.read_text(encoding="utf-8"))
    next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")["source"] = ["raise SystemExit(3)"]
    first.write_text(json.dumps(notebook), encoding="utf-8")
    complaints = course_book.build(notebooks, folder / "site")
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
    assert course_book.GUIDES
    for guide in course_book.GUIDES:
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


def test_nothing_is_run(book):
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


def test_the_first_page_has_the_parts_the_map_and_its_words(book):
    _, site, _ = book
    front = pages(site)["index"]
    for name in PARTS:
        assert f'<span class="caption-text">{name}</span>' in front
    assert f"<title>{describe_course(PARTS)}</title>" in front
    assert 'href="12_qwen3.html"' in front
    assert "Put the parts together" in front  # its goal


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
        for name in ("index", *CHAPTERS):
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


def test_what_is_inside_an_svg_picture_survives(book):
    """JupyterLab's SVG pictures are images that contain an SVG; their script replaces the image with it."""
    _, site, _ = book
    [first, *_] = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', pages(site)["02_scalar_autograd"])
    assert "<title" in base64.b64decode(first).decode()
