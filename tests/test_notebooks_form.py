"""Every notebook of the course has the course's form, and the checks of that form can fail.

A rule is a function from a notebook to the complaints about it. Each is tried on a small notebook in good form and on
one that breaks it; then all are applied to the notebooks of the course.
"""

import copy
import re
from pathlib import Path

import nbformat
from ipykernel.kernelspec import get_kernel_dict

from tests.every import every

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
MAX_CELLS, MAX_LINES, MAX_COLUMNS, MAX_BYTES = 60, 25, 100, 2_000_000


def of_kind(notebook, kind):
    return [cell for cell in notebook.cells if cell.cell_type == kind]


def headings(notebook):
    """(level, text) of every heading, in order; fenced code is not text."""
    prose = "\n".join(re.sub(r"```.*?```", "", cell.source, flags=re.S) for cell in of_kind(notebook, "markdown"))
    return [(len(marks), text.strip()) for marks, text in re.findall(r"^(#{1,6}) +(.+)$", prose, flags=re.M)]


def outputs(notebook):
    return [output for cell in of_kind(notebook, "code") for output in cell.outputs]


def plain_text(output):
    return output.get("text") or output.get("data", {}).get("text/plain", "")


def header(notebook):
    """Goal, prerequisites, minutes on a named machine, and the way back and on, in the first cell."""
    first = notebook.cells[0]
    if first.cell_type != "markdown" or not first.source.startswith("# "):
        return ["the first cell is not a text cell that starts with the chapter's title"]
    wanted = ("**Goal.**", "**Prerequisites.**", "**Time.**", "Previous:", "Next:")
    complaints = [f"the first cell lacks {words}" for words in wanted if words not in first.source]
    if not re.search(r"\*\*Time\.\*\*.*\b(minute|second)s?\b.*\b(cores?|CPU|GPU|laptop)\b", first.source, flags=re.S):
        complaints.append("the time in the first cell does not say how long on which machine")
    number = re.match(r"# (\d\d) ", first.source)
    if number and number[1] >= "09" and not ("MLX" in first.source and "GPU" in first.source):
        complaints.append("the first cell does not say what a GPU would change (from 09 on, where MLX computes)")
    return complaints


def one_set_up_cell(notebook):
    starts = [cell.source.startswith("# Set-up") for cell in of_kind(notebook, "code")]
    return [] if starts[:1] == [True] and sum(starts) == 1 else ["the first code cell, and no other, starts '# Set-up'"]


def an_early_picture(notebook):
    early = [output for cell in of_kind(notebook, "code")[:4] for output in cell.outputs]
    kinds = {kind for output in early for kind in output.get("data", {})}
    return [] if kinds & {"image/png", "image/svg+xml", "text/html"} else ["no picture in the first four code cells"]


def small_cells(notebook):
    complaints = [f"{len(notebook.cells)} cells"] if len(notebook.cells) > MAX_CELLS else []
    for cell in of_kind(notebook, "code"):
        lines = cell.source.splitlines()
        if len(lines) > MAX_LINES:
            complaints.append(f"a code cell of {len(lines)} lines: {lines[0]!r}")
        # An import is read once, if at all, and the formatter joins those of one module into one line.
        wide = [line for line in lines if len(line) > MAX_COLUMNS and not line.startswith("from ")]
        complaints += [f"a line too wide for the page: {line!r}" for line in wide]
    return complaints


def headings_in_order(notebook):
    levels = [level for level, _ in headings(notebook)]
    complaints = [] if levels.count(1) == 1 else [f"{levels.count(1)} titles"]
    for (_, above), (level, text), previous in zip(headings(notebook), headings(notebook)[1:], levels, strict=False):
        if level > previous + 1:
            complaints.append(f"{text!r} is {level - previous} levels below {above!r}")
    return complaints


def closing(notebook):
    names = [text.lower() for _, text in headings(notebook)]
    complaints = [] if any("break it" in name for name in names) else ["no 'Break it' experiment"]
    return complaints + ([] if any("references" in name for name in names) else ["no references"])


def progress_after_the_last_word(notebook):
    """The box with the reader's progress does not part an experiment from what is said about it."""
    for cell, after in zip(notebook.cells, notebook.cells[1:], strict=False):
        if cell.cell_type == "code" and re.search(r"^progress\(", cell.source, flags=re.M):
            return [] if after.source.startswith("## ") else ["what follows progress(...) is not a section of its own"]
    return []


def checks_and_seeds(notebook):
    source = "\n".join(cell.source for cell in of_kind(notebook, "code"))
    complaints = [] if re.search(r"^ *assert ", source, flags=re.M) else ["no cell asserts anything"]
    return complaints + ([] if "seed" in source else ["no seed is set"])


def pictures_have_words(notebook):
    complaints = []
    for cell in of_kind(notebook, "markdown"):
        complaints += [f"an image without alt text: {image}" for image in re.findall(r"!\[\s*\]\([^)]*\)", cell.source)]
        complaints += [
            f"an image without alt text: {tag}"
            for tag in re.findall(r"<img(?![^>]*\balt=\"[^\"]+\")[^>]*>", cell.source)
        ]
    for output in outputs(notebook):
        data = output.get("data", {})
        if any(kind.startswith("image/") for kind in data):  # no page shows the alt of their metadata
            complaints.append("a picture in the outputs has no alt text: use viz.show_picture(figure, alt)")
        if re.search(r"<img(?![^>]*\balt=\"[^\"]+\")[^>]*>", data.get("text/html", "")):
            complaints.append("an image in the HTML of the outputs has no alt text")
        for markup in (data.get("text/html", ""), data.get("image/svg+xml", "")):
            if "<svg" in markup and not ('role="img"' in markup and "<title" in markup):
                complaints.append('an SVG in the outputs has no role="img" and <title>')
    return complaints


def links_lead_somewhere(notebook):
    prose = "\n".join(cell.source for cell in of_kind(notebook, "markdown"))
    prose = re.sub(r"\]\(\w+\.ipynb\) \*\(planned\)\*", "]", prose)
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose)]
    return [
        f"a link to {target}, which does not exist"
        for target in targets
        if target and not re.match(r"https?://", target) and not (NOTEBOOKS / target).exists()
    ]


def stored_as_it_ran(notebook):
    """Run from top to bottom once, without an error, a warning or anything of the author's machine."""
    code = of_kind(notebook, "code")
    counts = [cell.execution_count for cell in code]
    complaints = [] if counts == list(range(1, len(code) + 1)) else [f"cells were run in the order {counts}"]
    if "widgets" in notebook.metadata:
        complaints.append("widget state is stored")
    if notebook.metadata.get("kernelspec", {}).get("display_name") != get_kernel_dict()["display_name"]:
        complaints.append("JupyterLab would mark the notebook as changed once it is opened: another name of the kernel")
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        complaints.append("the kernel is not 'python3'")
    for output in outputs(notebook):
        text, data = plain_text(output), output.get("data", {})
        if output.output_type == "error":
            complaints.append(f"a stored error: {output.ename}")
        if output.get("name") == "stderr":
            complaints.append(f"stored warnings: {text[:80]!r}")
        if any("widget-view" in kind for kind in data):
            complaints.append("a widget is stored where a still picture should be")
        if re.search(r"<Figure|\bat 0x[0-9a-f]+|VBox\(", text):
            complaints.append(f"the repr of an object as output: {text[:80]!r}")
        if re.search(r"[1-9]\.\d{6}|0\.0*[1-9]\d{5}", text):  # 0.000500 has three digits
            complaints.append(f"more digits than anyone reads: {text[:80]!r}")
    text = "\n".join([cell.source for cell in notebook.cells] + [plain_text(output) for output in outputs(notebook)])
    path = re.search(r"(?<![\w.])(/(home|root|Users|tmp|work|private|var|opt)/\w|[A-Z]:\\)", text)
    if path:
        complaints.append(f"a path of the author's machine: {text[path.start() : path.start() + 40]!r}")
    return complaints


RULES = [
    header,
    one_set_up_cell,
    an_early_picture,
    small_cells,
    headings_in_order,
    closing,
    progress_after_the_last_word,
    checks_and_seeds,
    pictures_have_words,
    links_lead_somewhere,
    stored_as_it_ran,
]


@every("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_has_the_form_of_the_course(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < MAX_BYTES
    assert [complaint for rule in RULES for complaint in rule(notebook)] == []


# -- the rules themselves ---------------------------------------------------------------------------------------------


def notebook_in_good_form():
    new = nbformat.v4
    picture = new.new_output("display_data", {"text/html": '<img alt="a curve" src="">', "text/plain": "a curve"})
    cells = [
        new.new_markdown_cell(
            "# 99 · A chapter\n\n**Goal.** See.\n\n**Prerequisites.** None.\n\n"
            "**Time.** 5 minutes on two CPU cores; MLX on a GPU needs less.\n\nPrevious: none · Next: none"
        ),
        new.new_code_cell("# Set-up\nseed = 0", execution_count=1),
        new.new_markdown_cell("## A question\n\n```\n#### not a heading\n```"),
        new.new_code_cell("assert seed == 0\nshow()", execution_count=2, outputs=[picture]),
        new.new_markdown_cell("### A detail\n\n## Break it\n\n## References\n\n[web](https://example.org)"),
    ]
    return new.new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3"} | get_kernel_dict()})


def replace(cell, old, new):
    def change(notebook):
        assert old in notebook.cells[cell].source
        notebook.cells[cell].source = notebook.cells[cell].source.replace(old, new)

    return change


def output(kind, **content):
    return lambda notebook: notebook.cells[3].outputs.append(nbformat.v4.new_output(kind, **content))


BROKEN = [
    (header, lambda notebook: notebook.cells.pop(0)),
    (header, replace(0, "**Goal.** See.", "")),
    (header, replace(0, "5 minutes on two CPU cores", "not long")),
    (header, replace(0, "Next: none", "")),
    (header, replace(0, "a GPU", "others")),
    (one_set_up_cell, replace(1, "# Set-up", "")),
    (one_set_up_cell, replace(3, "assert", "# Set-up\nassert")),
    (progress_after_the_last_word, replace(3, "show()", 'show()\nprogress("99")')),
    (an_early_picture, lambda notebook: notebook.cells[3].outputs.clear()),
    (small_cells, replace(3, "show()", "show()\n" * 26)),
    (small_cells, replace(3, "show()", "show(" + "1" * 100 + ")")),
    (small_cells, lambda notebook: notebook.cells.extend(notebook.cells[2:3] * 60)),
    (headings_in_order, replace(2, "## A question", "### A question")),
    (headings_in_order, replace(2, "## A question", "# A question")),
    (closing, replace(4, "Break it", "More")),
    (closing, replace(4, "References", "More")),
    (checks_and_seeds, replace(3, "assert seed == 0", "")),
    (checks_and_seeds, lambda notebook: [replace(cell, "seed", "number")(notebook) for cell in (1, 3)]),
    (pictures_have_words, output("display_data", data={"image/png": "", "text/plain": "a curve"})),
    (pictures_have_words, output("display_data", data={"text/html": '<img src="">'})),
    (pictures_have_words, output("display_data", data={"text/html": '<img alt="" src="">'})),
    (pictures_have_words, replace(2, "A question", "A question\n\n![](https://example.org/a.png)")),
    (pictures_have_words, replace(2, "A question", 'A question\n\n<img src="a.png">')),
    (pictures_have_words, output("display_data", data={"text/html": "<svg></svg>"})),
    (links_lead_somewhere, replace(4, "https://example.org", "../nowhere.md")),
    (stored_as_it_ran, lambda notebook: notebook.cells[3].update(execution_count=None)),
    (stored_as_it_ran, lambda notebook: notebook.metadata.update(widgets={})),
    (stored_as_it_ran, lambda notebook: notebook.metadata.kernelspec.update(name="venv")),
    (stored_as_it_ran, lambda notebook: notebook.metadata.kernelspec.update(display_name="Python 3")),
    (stored_as_it_ran, output("error", ename="ValueError", evalue="", traceback=[])),
    (stored_as_it_ran, output("stream", name="stderr", text="UserWarning")),
    (stored_as_it_ran, output("stream", name="stdout", text="saved /home/ada/policy")),
    (stored_as_it_ran, output("stream", name="stdout", text="0.12345678")),
    (stored_as_it_ran, output("execute_result", data={"text/plain": "<function f at 0x7f00>"})),
    (stored_as_it_ran, output("display_data", data={"application/vnd.jupyter.widget-view+json": {}})),
]


def test_good_form_has_no_complaints():
    assert [complaint for rule in RULES for complaint in rule(notebook_in_good_form())] == []


@every(("rule", "change"), BROKEN, ids=[f"{i}-{rule.__name__}" for i, (rule, _) in enumerate(BROKEN)])
def test_each_rule_notices(rule, change):
    notebook = copy.deepcopy(notebook_in_good_form())
    change(notebook)
    assert rule(notebook) != []
