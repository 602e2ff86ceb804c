"""The course, the guides and the reference as a web site: `make docs`. No notebook is run; stored outputs are shown.

    python -m mlx_grpo_kit.course.book [--output build/book] [--notebooks notebooks]

Sphinx with MyST-NB, on which Jupyter Book is built, makes the pages; install them with `pip install
'mlx_grpo_kit[book]'`. The site needs no server and no network: open its index.html, or copy the folder to any web
server.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import nbformat

from mlx_grpo_kit.course.course_map import describe_course, draw_course
from mlx_grpo_kit.course.reading import for_reading
from mlx_grpo_kit.course.reference import write_reference
from mlx_grpo_kit.course.syllabus import COURSE, PARTS, PATHS, Chapter, describe_path
from mlx_grpo_kit.files import read_file, replaced_folder
from mlx_grpo_kit.runtime.extras import install

TITLE = "From one number to GRPO"
PACKAGES = ("myst_nb", "sphinx_book_theme", "griffe", "latex2mathml")
STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("book.css", "book.js"))
GUIDES = [
    Path(__file__).with_name("guides") / f"{name}.md"
    for name in (
        "install",
        "course",
        "one_page",
        "training",
        "real_qwen3",
        "tools",
        "coming_from",
        "names",
        "exchange",
        "backends",
        "processes",
        "scale",
        "speed",
        "checked",
        "troubleshooting",
        "cloud",
        "teaching",
        "from_here",
    )
]
"""The guides in reading order.

On GitHub they link notebooks as IN_REPOSITORY; in the book those are in the same folder.
"""
IN_REPOSITORY = "../../../notebooks/"
DOWNLOADS = "downloads"  # the folder of the notebooks as they are, which pages offer
IMAGES = sorted(Path(__file__).with_name("guides").glob("images/*.png"))
SETTINGS = {
    "project": TITLE,
    "author": "the authors of mlx_grpo_kit",
    "html_title": TITLE,
    "extensions": ["myst_nb", "mlx_grpo_kit.course.formulas"],
    "html_math_renderer": "mathml",
    "nb_execution_mode": "off",
    "myst_enable_extensions": ["dollarmath"],
    "exclude_patterns": [DOWNLOADS],
    "html_theme": "sphinx_book_theme",
    "html_theme_options": {
        "show_toc_level": 2,
        "use_download_button": False,
        "show_navbar_depth": 1,
        "navbar_persistent": [],  # one search box is enough
        "home_page_in_toc": True,
    },
    "html_css_files": [STYLE.name],
    "html_js_files": [SCRIPT.name],
    "html_copy_source": False,
    "html_show_sphinx": False,
    "html_show_copyright": False,
    "html_domain_indices": False,
    "html_use_index": False,
    "add_module_names": False,
    "python_maximum_signature_line_length": 88,
    "toc_object_entries_show_parents": "hide",
    # Nodes and directives that an earlier build in this process has registered; and a name in a signature, such as
    # nn.Module, that two packages have.
    "suppress_warnings": ["app", "ref.python"],
}


def build(notebooks: Path, output: Path, solutions: bool = True) -> list[str]:
    """Write the site of all chapters in `notebooks` to the folder `output`; return Sphinx's warnings.

    The site appears complete or not at all, and replaces an older one. Without `solutions` its exercises have only
    hints.

    Raises:
        ImportError: the book extra is not installed.
        FileNotFoundError: there are no notebooks.
        FileExistsError: `output` contains a file that no earlier call wrote.
        ValueError: a file is not a notebook.
        OSError: `output` cannot be written.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ImportError(f"The book needs {' and '.join(missing)}: {install('book')}")
    from sphinx.application import Sphinx

    parts = {
        name: chapters
        for name, part in PARTS.items()
        if (chapters := [chapter for chapter in part if (notebooks / f"{chapter.file}.ipynb").is_file()])
    }
    if not parts:
        raise FileNotFoundError(f"There are no notebooks of the course in {notebooks}; expected 00_start_here.ipynb.")
    complaints = io.StringIO()
    with replaced_folder(output) as new, tempfile.TemporaryDirectory() as scratch:
        source, site, work = (Path(scratch, name) for name in ("source", "site", "work"))
        (source / DOWNLOADS).mkdir(parents=True)
        for part in parts.values():
            for chapter in part:
                file = f"{chapter.file}.ipynb"
                notebook = for_reading(_read(notebooks / file), solutions)
                for head in notebook.cells[:1]:
                    head.source += f"\n\nDownload: {{download}}`{file} <{DOWNLOADS}/{file}>`"
                nbformat.write(notebook, source / file)
                shutil.copy(notebooks / file, source / DOWNLOADS)
        for guide in GUIDES:
            text = guide.read_text(encoding="utf-8").replace(f"]({IN_REPOSITORY}", "](")
            (source / guide.name).write_text(text, encoding="utf-8")
        (source / "images").mkdir()
        for picture in IMAGES:
            shutil.copy(picture, source / "images")
        reference = write_reference(source)
        front = front_page(parts, source, reference)
        front = front if solutions else front.replace("hints and a solution", "hints")
        (source / "index.md").write_text(front, encoding="utf-8")
        settings = SETTINGS | {"html_static_path": [str(STYLE), str(SCRIPT)]}
        Sphinx(source, None, site, work, "html", settings, status=None, warning=complaints).build()
        shutil.rmtree(site / "_sources", ignore_errors=True)
        try:
            shutil.copytree(site, new, dirs_exist_ok=True)
        except shutil.Error as error:  # a list of all the files that failed
            raise OSError(f"Cannot write {output}: {error.args[0][0][2]}") from error
    words = re.sub(r"\x1b\[[\d;]*m", "", complaints.getvalue()).replace(f"{source}{os.sep}", "")
    return [line for line in words.splitlines() if line.strip()]


def front_page(parts: Mapping[str, Sequence[Chapter]], folder: Path, reference: Sequence[str]) -> str:
    """The first page in MyST's Markdown: the map, each part's chapters with their goals, guides and reference."""
    hours = round(sum(chapter.minutes for chapter in COURSE) / 60)
    pages = {chapter.file: f"{chapter.file}.html" for part in parts.values() for chapter in part}

    def link(chapter: Chapter) -> str:
        return f"[{chapter.number}]({chapter.file}.ipynb)" if chapter.file in pages else chapter.number

    # Inline, so that its chapters are links; and a group, because a screen reader finds no links inside an image.
    course_map = draw_course(PARTS, pages.get).svg(describe_course(PARTS)).replace('role="img"', 'role="group"', 1)
    lines = [
        f"# {TITLE}",
        "",
        f"A course in {len(COURSE)} notebooks, {hours} hours with the exercises: from the derivative of `x * x` to a "
        "whole Qwen3 that learns by reinforcement, with every gradient checked on the way. These pages are to be read, "
        "and their pictures stand still; below each exercise you can unfold hints and a solution. In JupyterLab, which "
        "`make lab` opens, you can move the pictures, and exercises check themselves.",
        "",
        "![A tiny Qwen3 during 600 steps of GRPO: reward and held-out accuracy rise together](images/grpo_learns.png)",
        "",
        "What you will have understood at the end: a policy that learns addition from rewards alone.",
        "",
        f"<div>\n{course_map}\n</div>",
        "",
        "A line leads from each chapter down to those that build on it. You can read all of them in order, or take a "
        "shorter path. Where a shorter path skips chapters, the next one says in its first cell what you may take on "
        "trust.",
        "",
        *(f"- {describe_path(name, link)}" for name in PATHS),
        "",
    ]
    for title, part in parts.items():
        lines += [f"## {title}", ""]
        for chapter in part:
            goal = _goal(_read(folder / f"{chapter.file}.ipynb"))
            name = f"[{chapter.number} · {chapter.title}]({chapter.file}.ipynb)"
            lines += [f"{name}, {chapter.minutes} minutes. {goal}", ""]
        lines += ["```{toctree}", f":caption: {title}", ":hidden:", *(chapter.file for chapter in part), "```", ""]
    titles = [guide.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for guide in GUIDES]
    lines += ["## Guides", "", *(f"[{title}]({guide.name})\n" for title, guide in zip(titles, GUIDES, strict=True))]
    lines += ["```{toctree}", ":caption: Guides", ":hidden:", *(guide.stem for guide in GUIDES), "```", ""]
    links = (f"[{name.removeprefix('reference_')}]({name}.md)" for name in reference)
    lines += ["## Reference", "", "Every public name, by package: " + ", ".join(links) + ".", ""]
    lines += ["```{toctree}", ":caption: Reference", ":hidden:", *reference, "```", ""]
    return "\n".join(lines)


def _read(file: Path) -> nbformat.NotebookNode:
    """Read a notebook. Raises ValueError for a file that is not one."""
    try:
        notebook = nbformat.reads(read_file(file).decode("utf-8"), as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # the package may raise anything, such as AttributeError for a list
        words = str(error).strip().partition("\n")[0]
        raise ValueError(f"{file.name} is not a Jupyter notebook ({words.rstrip('.'):.200}). Copy it again.") from error
    return notebook


def _goal(notebook: nbformat.NotebookNode) -> str:
    """The first sentence of a chapter's goal."""
    header = "".join(cell.source for cell in notebook.cells[:1])
    words = re.search(r"\*\*Goal\.\*\*\s+(.*?(?<!\bDr)[.!?:])(\s|$)", header, flags=re.S)
    return re.sub(r":$", ".", words[1].replace("\n", " ")) if words else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Build the book, print its address, and return the exit status."""
    parser = argparse.ArgumentParser(description="The course as a web site, from its stored outputs.")
    parser.add_argument("--output", type=Path, default=Path("build/book"), metavar="DIR")
    parser.add_argument("--notebooks", type=Path, default=Path("notebooks"), metavar="DIR")
    words = "leave out the solutions of exercises, for a class"
    parser.add_argument("--no-solutions", dest="solutions", action="store_false", help=words)
    options = parser.parse_args(argv)
    try:
        complaints = build(options.notebooks, options.output, options.solutions)
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    print(f"The book: {(options.output / 'index.html').resolve().as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
