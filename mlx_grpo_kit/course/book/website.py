"""The course, the guides and the reference as a web site: `make docs`. Stored outputs are shown.

Of the notebooks only what a moving picture needs is run (moving.py); the pages themselves need no kernel.

    python -m mlx_grpo_kit.course.book [--output build/book] [--notebooks notebooks] [--repository URL]

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

from mlx_grpo_kit.course.book.moving import make_moving
from mlx_grpo_kit.course.book.one_group import one_group
from mlx_grpo_kit.course.book.reading import for_reading
from mlx_grpo_kit.course.book.reference import write_reference
from mlx_grpo_kit.course.syllabus import COURSE, PARTS, PATHS, Chapter, describe_path
from mlx_grpo_kit.files import read_file, replaced_folder
from mlx_grpo_kit.runtime.extras import install

TITLE = "From one number to GRPO"
PACKAGES = ("myst_nb", "sphinx_book_theme", "griffe", "latex2mathml", "PIL")
STYLE, *SCRIPTS = (Path(__file__).with_name(name) for name in ("book.css", "book.js", "moving.js", "one_group.js"))
ABOUT = {
    "install": "Linux or an Apple-silicon Mac, with make, pip or conda, and what each part needs.",
    "course": "All chapters in one table, the time for each, and where your answers are kept.",
    "one_page": "Everything that a step does, in the notation of the papers and in that of the code, to print.",
    "training": "Train in a terminal or in Python, record a run, resume it, and read its numbers.",
    "real_qwen3": "Load, train and save a published Qwen3, Qwen2 or Llama, and what it costs in memory and time.",
    "tools": "Completions of several turns, in which the policy calls tools or plays in an environment.",
    "coming_from": "What your settings and habits from TRL and mlx-lm are called here.",
    "names": "The names of ideas in micrograd, MyTorch, TRL and mlx-lm, beside the kit's.",
    "exchange": "Replace the sampler, the rewards, the advantages, the loss or the learner of a run by your own.",
    "backends": "Let torch or JAX compute log-probabilities and gradients, in a run or through one protocol.",
    "processes": "One run in several processes, on this machine or on several, with the same numbers.",
    "scale": "How long a step of Qwen3-0.6B, 8B and 32B takes on 1, 8 and 64 machines, and how much memory it needs.",
    "speed": "Times and memory beside torch, TRL, mlx-lm and others, measured and explained.",
    "checked": "What every part is compared with: torch, transformers, TRL, mlx-lm, finite differences.",
    "troubleshooting": "What to do when MLX is slow, a widget is missing, or a run learns nothing.",
    "cloud": "Open the course in Binder or Colab, and keep your answers there.",
    "teaching": "Six weeks with a class: assignments through nbgrader or Otter, marks, frequent mistakes, hubs.",
    "from_here": "Five directions after the course, each with a paper, a repository and an exercise.",
}
"""The guides in reading order, and a sentence about each for the first page."""
ON_GITHUB = Path(__file__).parents[1] / "guides"
GUIDES = [ON_GITHUB / f"{name}.md" for name in ABOUT]
"""Their files. On GitHub they link notebooks as IN_REPOSITORY; in the book those are in the same folder."""
IN_REPOSITORY = "../../../notebooks/"
DOWNLOADS = "downloads"  # the folder of the notebooks as they are, which pages offer
IMAGES = sorted(ON_GITHUB.glob("images/*.png"))
SETTINGS = {
    "project": TITLE,
    "author": "the authors of mlx_grpo_kit",
    "html_title": TITLE,
    "extensions": ["myst_nb", "mlx_grpo_kit.course.book.formulas"],
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
    "html_js_files": [script.name for script in SCRIPTS],
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


def build(notebooks: Path, output: Path, solutions: bool = True, repository: str = "") -> list[str]:
    """Write the site of all chapters in `notebooks` to the folder `output`; return warnings.

    The site appears complete or not at all, and replaces an older one. Without `solutions` its exercises have only
    hints. With the address of a repository on GitHub, such as https://github.com/OWNER/NAME, every chapter links itself
    in Colab and Binder, which need one.

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
        source, site, work, static = (Path(scratch, name) for name in ("source", "site", "work", "static"))
        moving = static / "moving"
        for folder in (source / DOWNLOADS, moving):
            folder.mkdir(parents=True)
        files = [f"{chapter.file}.ipynb" for part in parts.values() for chapter in part]
        chapters = {file: _read(notebooks / file) for file in files}
        still = make_moving([notebooks / file for file in files], moving)
        made = {each.stem for each in moving.iterdir()}
        if not made:
            moving.rmdir()  # a later book would not know the empty folder as the kit's
        for file, chapter in chapters.items():
            notebook = for_reading(chapter, solutions, made)
            for head in notebook.cells[:1]:
                cloud = _in_the_cloud(file, repository)
                head.source += f"\n\nDownload: {{download}}`{file} <{DOWNLOADS}/{file}>`{cloud}"
            nbformat.write(notebook, source / file)
            shutil.copy(notebooks / file, source / DOWNLOADS)
        for guide in GUIDES:
            text = guide.read_text(encoding="utf-8").replace(f"]({IN_REPOSITORY}", "](")
            (source / guide.name).write_text(text, encoding="utf-8")
        (source / "images").mkdir()
        for picture in IMAGES:
            shutil.copy(picture, source / "images")
        reference = write_reference(source)
        front = front_page(parts, source, reference, "hints and solutions" if solutions else "hints")
        (source / "index.md").write_text(front, encoding="utf-8")
        settings = SETTINGS | {"html_static_path": [*map(str, (STYLE, *SCRIPTS, static))]}
        Sphinx(source, None, site, work, "html", settings, status=None, warning=complaints).build()
        shutil.rmtree(site / "_sources", ignore_errors=True)
        try:
            shutil.copytree(site, new, dirs_exist_ok=True)
        except shutil.Error as error:  # a list of all the files that failed
            raise OSError(f"Cannot write {output}: {error.args[0][0][2]}") from error
    words = re.sub(r"\x1b\[[\d;]*m", "", complaints.getvalue()).replace(f"{source}{os.sep}", "")
    return still + [line for line in words.splitlines() if line.strip()]


def _in_the_cloud(file: str, repository: str) -> str:
    """Links that open a notebook in Colab and Binder, in Markdown; "" without a repository on GitHub."""
    if not (found := re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?", repository)):
        return ""
    colab = f"https://colab.research.google.com/github/{found[1]}/blob/HEAD/notebooks/{file}"
    binder = f"https://mybinder.org/v2/gh/{found[1]}/HEAD?urlpath=lab/tree/notebooks/{file}"
    return f" · [Open in Colab]({colab}) · [Open in Binder]({binder}) · [what each needs first](cloud.md)"


def front_page(
    parts: Mapping[str, Sequence[Chapter]], folder: Path, reference: Sequence[str], folded: str = "hints and solutions"
) -> str:
    """The first page in MyST's Markdown: a group of answers, three paths, chapters with goals, guides, reference.

    `folded` says what exercises unfold.
    """
    hours = round(sum(chapter.minutes for chapter in COURSE) / 60)
    pages = {chapter.file: f"{chapter.file}.html" for part in parts.values() for chapter in part}
    [first, *_] = pages.values()

    def link(chapter: Chapter) -> str:
        return f"[{chapter.number}]({chapter.file}.ipynb)" if chapter.file in pages else chapter.number

    lines = [
        f"# {TITLE}",
        "",
        "This is how a language model learns from rewards: it answers one question several times, and each answer is "
        "compared with the others. **Click an answer** to call it right or wrong.",
        "",
        one_group(),
        "",
        "The numbers are those of a small Qwen3 and of real steps. This course builds all of it, from the derivative "
        f"of `x * x` on, with every gradient checked: {len(COURSE)} notebooks, {hours} hours with the exercises.",
        "",
        f'<p><a class="kit-start" href="{first}">Start</a></p>',
        "",
        f"In these pages pictures move and exercises unfold their {folded}. In JupyterLab, which `make lab` "
        "opens, you write the code, train the models, and the exercises check themselves.",
        "",
        "## Three paths",
        "",
        "Where a shorter path skips chapters, the next one says in its first cell what you may take on trust. "
        "Chapter 00 has a map of what builds on what.",
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
    lines += ["## Guides", ""]
    for guide in GUIDES:
        title = guide.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines += [f"[{title}]({guide.name}). {ABOUT[guide.stem]}", ""]
    lines += ["```{toctree}", ":caption: Guides", ":hidden:", *ABOUT, "```", ""]
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
    parser = argparse.ArgumentParser(
        "mlx_grpo_kit.course.book", description="The course as a web site, from its stored outputs."
    )
    parser.add_argument("--output", type=Path, default=Path("build/book"), metavar="DIR")
    parser.add_argument("--notebooks", type=Path, default=Path("notebooks"), metavar="DIR")
    words = "leave out the solutions of exercises, for a class"
    parser.add_argument("--no-solutions", dest="solutions", action="store_false", help=words)
    parser.add_argument("--repository", default="", metavar="URL", help="on GitHub, for links to Colab and Binder")
    options = parser.parse_args(argv)
    try:
        complaints = build(options.notebooks, options.output, options.solutions, options.repository)
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    print(f"The book: {(options.output / 'index.html').resolve().as_uri()}")
    return 0
