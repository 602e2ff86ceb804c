"""The book's reference: every public name has an entry with its signature, its docstring, and the chapter behind it."""

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

from mlx_grpo_kit.course.book.reference import CHAPTERS, PAGES, _text, chapter_of, write_reference
from mlx_grpo_kit.course.syllabus import COURSE
from tests.every import every

ROOT = Path(__file__).parents[2]
PACKAGES = ["scalar", "tensor", "gradcheck", "autograd", "qwen3", "generation", "grpo", "tasks", "backends"]
PACKAGES += ["viz", "runs", "course"]
MODULES = [module for modules in PAGES.values() for module in modules]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    names = write_reference(folder)
    return {name: (folder / f"{name}.md").read_text(encoding="utf-8") for name in names}


@pytest.fixture(scope="module")
def entries(pages):
    """(module, name) -> the entry."""
    found = {}
    for text in pages.values():
        for entry in re.split(r"^(?=`{7,}\{py:(?:function|class|data)\})", text, flags=re.M)[1:]:
            [name] = re.match(r"`+\{\S+\} (\w+)", entry).groups()
            [module] = re.findall(r"^:module: mlx_grpo_kit\.(\S+)$", entry, flags=re.M)
            found[module, name] = entry
    return found


def public_names(module):
    """The public names: `__all__`, or all functions and classes of the package tensor, which has no `__all__`."""
    loaded = importlib.import_module(f"mlx_grpo_kit.{module}")
    if hasattr(loaded, "__all__"):
        return set(loaded.__all__)
    own = {name: value for name, value in vars(loaded).items() if not name.startswith("_") and callable(value)}
    inside = loaded.__name__ if hasattr(loaded, "__path__") else None
    return {
        name
        for name, value in own.items()
        if (value.__module__.startswith(inside) if inside else value.__module__ == loaded.__name__)
        and inspect.getdoc(value)
    }


@every("module", MODULES)
def test_every_public_name_has_an_entry(module, entries):
    names = public_names(module)
    assert names - {name for place, name in entries if place == module} == set()
    assert names or module == "assets"


def test_every_package_has_a_page(pages):
    assert set(PACKAGES) <= set(PAGES)
    assert [*pages] == [f"reference_{page}" for page in PAGES]


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("autograd", "value_and_grad", "(loss_fn: LossFunction, params: "),
        ("autograd", "hvp", "(loss_fn: "),
        ("qwen3.statistics", "layer_statistics", "layer"),
        ("grpo", "grpo_loss_fn", "(config: GRPOLossConfig"),
        ("grpo", "GRPOTrainer", "py:method} train(max_steps: int)"),
        ("grpo", "GRPOTrainer", ":classmethod:"),
        ("grpo", "GRPOConfig", "learning_rate: float = 1e-06"),
        ("grpo", "compute_advantages", "- `num_generations`: completions of one prompt, at least 2."),
        ("backends", "JAXTrainingBackend", "chapter 22"),
        ("backends", "TorchaxTrainingBackend", "chapter 22"),
        ("tensor", "conv2d", "[chapter 08, Convolutions and ResNet](08_convolutions.ipynb)"),
        ("scalar", "Value", "[chapter 02, Scalar autograd](02_scalar_autograd.ipynb)"),
        ("assets", "TINY", "Hugging Face folder"),
    ],
)
def test_an_entry_has_its_signature_its_words_and_its_chapter(module, name, words, entries):
    assert words in entries[module, name]


@pytest.mark.parametrize("module", ["scalar", "tensor", "gradcheck", "autograd", "generation", "grpo", "tasks"])
def test_parameters_are_those_of_the_function(module, entries):
    loaded = importlib.import_module(f"mlx_grpo_kit.{module}")
    for name in public_names(module):
        if inspect.isfunction(found := getattr(loaded, name)) and not hasattr(found, "__wrapped__"):
            [head] = re.findall(rf"py:function\}} {name}(\(.*)", entries[module, name])
            for parameter in inspect.signature(found).parameters:
                assert re.search(rf"\b{parameter}\b", head) or parameter.startswith("_"), (name, head)


def test_chapters_name_the_modules_that_they_build():
    """Each chapter ends with the kit's files for what it built."""
    files = {chapter.number: ROOT / "notebooks" / f"{chapter.file}.ipynb" for chapter in COURSE}
    for module, number in CHAPTERS.items():
        cells = json.loads(files[number].read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
        path = module.replace(".", "/")
        assert any(name in text for name in (f"{path}.py", f"`{Path(path).name}.py`", f"{path}/")), (module, number)
        assert importlib.util.find_spec(f"mlx_grpo_kit.{module}"), module
    assert chapter_of("grpo.learners.mlx_by_layer") == "21"
    assert chapter_of("grpo.learners.learner") is None
    assert chapter_of("gradcheck.check") == "06"


def test_docstrings_keep_their_meaning_as_markdown():
    assert _text("a * b * c, x_i and `x_i`") == r"a \* b \* c, x\_i and `x_i`"
    assert _text("See https://arxiv.org/abs/1. Then <this>.") == r"See <https://arxiv.org/abs/1>. Then \<this>."
    assert _text("An example:\n\n    x = 1\n\n    y = 2\n\nDone.") == (
        "An example:\n\n```python\nx = 1\n\ny = 2\n```\n\nDone."
    )
    assert _text("A picture:\n\n    x -> y ->\n") == "A picture:\n\n```text\nx -> y ->\n```"
