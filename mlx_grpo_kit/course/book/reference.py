"""The book's reference: a page per package with the signature and the docstring of every public name.

The pages are Markdown, as the docstrings are, with the directives of Sphinx's Python domain. Griffe reads the source
without importing it, so no framework needs to be installed.
"""

from __future__ import annotations

import ast
import inspect
import logging
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from mlx_grpo_kit.course.syllabus import COURSE
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig
from mlx_grpo_kit.grpo.settings import rules_of

PACKAGE = Path(__file__).parents[2]
PAGES = {
    "scalar": ("scalar", "scalar.nn"),
    "tensor": ("tensor", "tensor.nn", "tensor.optim", "tensor.resnet"),
    "gradcheck": ("gradcheck",),
    "autograd": ("autograd",),
    "qwen3": ("qwen3", "qwen3.statistics", "assets"),
    "generation": ("generation",),
    "tasks": ("tasks",),
    "grpo": ("grpo", "grpo.recipe"),
    "runs": ("runs.record", "runs.diagnosis", "runs.folder"),
    "backends": ("backends",),
    "viz": ("viz",),
    "instruments": (
        "instruments.dashboard",
        "instruments.microscope",
        "instruments.flow",
        "instruments.generation_tree",
    ),
    "course": ("course",),
}
"""Each page and its modules."""

CHAPTERS = {
    "scalar": "02",
    "scalar.nn": "03",
    "tensor": "04",
    "tensor.anomaly": "05",
    "tensor.rules.rule": "05",
    "tensor.rules.elementwise": "05",
    "tensor.rules.normalization": "08",
    "tensor.rules.convolution": "08",
    "tensor.nn": "07",
    "tensor.optim": "07",
    "tensor.resnet": "08",
    "gradcheck": "06",
    "gradcheck.lockstep": "07",
    "autograd": "09",
    "qwen3.forward": "12",
    "qwen3.params": "12",
    "qwen3.pretrained": "12",
    "qwen3.statistics": "12",
    "qwen3.cache": "13",
    "qwen3.backward": "17",
    "qwen3.lora": "21",
    "generation": "13",
    "tasks": "14",
    "grpo.rewards": "14",
    "grpo.advantages": "16",
    "grpo.logps": "16",
    "grpo.loss": "16",
    "grpo.gradients": "18",
    "grpo.step": "18",
    "grpo.trainer": "18",
    "runs.record": "18",
    "grpo.objectives": "19",
    "grpo.variants": "19",
    "runs.diagnosis": "20",
    "grpo.memory": "21",
    "grpo.optimizer": "21",
    "grpo.learners.mlx_by_layer": "21",
    "backends": "22",
}
"""The chapter that builds the content of a module, or of the modules in it."""


SPECIAL = r"(`[^`]*`)|(https?://[^\s)`>,;]*[^\s)`>,;.:])|([<*_\\])"
"""In a docstring: code, a link, or a character with a meaning in Markdown."""


def write_reference(folder: Path) -> list[str]:
    """Write the pages to `folder`; returns their names without the suffix, in reading order."""
    import griffe

    logging.getLogger("griffe").setLevel(logging.ERROR)
    loader = griffe.GriffeLoader(search_paths=[PACKAGE.parent], docstring_parser="google")
    kit = loader.load(PACKAGE.name)
    loader.resolve_aliases(implicit=False, external=False)
    _fill_in_settings(kit["grpo"])
    for page, modules in PAGES.items():
        parts = [f"# `mlx_grpo_kit.{page}`", ""]
        for path in modules:
            if path != page:
                parts += [f"## `mlx_grpo_kit.{path}`", ""]
            parts += [_markdown(kit[path].docstring), ""]
            parts += [_entry(found, f"{PACKAGE.name}.{path}") + "\n" for found in public(kit[path])]
        (folder / f"reference_{page}.md").write_text("\n".join(parts), encoding="utf-8")
    return [f"reference_{page}" for page in PAGES]


def _fill_in_settings(grpo) -> None:
    """Add what the kit makes from the fields of settings: docstrings, defaults, and the keywords of the loss."""
    for settings in (GRPOConfig, GRPOLossConfig):
        found = grpo[settings.__name__].final_target
        found.docstring.value = inspect.getdoc(settings)
        declared = [each for each in found.parameters if each.name in rules_of(settings)]
        for parameter in declared:
            parameter.default = repr(getattr(settings, parameter.name))
    loss = grpo["compute_grpo_loss"].final_target.parameters
    del loss["settings"]
    for parameter in declared:
        loss.add(type(parameter)(**{**parameter.as_dict(), "kind": loss["ref_logps"].kind}))


def public(module) -> Iterator:
    """Yield the public objects of a module: those of `__all__`, or all documented ones if there is none."""
    names = {str(name) for name in module.exports or ()}
    for name, member in module.members.items():
        if member.is_alias:  # what a package imports on first use, or from its own files
            is_public = module.is_init_module and (not member.runtime or member.target_path.startswith(module.path))
        else:
            is_public = member.has_docstring and not member.is_module
        if name in names or (not names and is_public and not name.startswith("_")):
            found = member.final_target if member.is_alias else member
            yield found[name] if found.is_module else found  # a function in a file of the same name


def chapter_of(module: str) -> str | None:
    """The number of the chapter that builds a module of the kit, if one does."""
    while module and module not in CHAPTERS:
        module = module.rpartition(".")[0]
    return CHAPTERS.get(module)


def _entry(found, module: str) -> str:
    """The directive of a function, a class with its members, or a value."""
    kind = {"class": "class", "function": "function"}.get(found.kind.value, "data")
    body = [_built_in(found), _markdown(found.docstring)]
    if kind == "class":
        body += [_member(member) for name, member in found.members.items() if _is_documented(name, member)]
    fence = "`" * (9 if kind == "class" else 7)
    head = [f"{fence}{{py:{kind}}} {_signature(found)}", f":module: {module}", ""]
    return "\n".join([*head, "\n\n".join(filter(None, body)), fence])


def _is_documented(name: str, member) -> bool:
    return (not name.startswith("_") or name == "__call__") and not member.is_alias and member.has_docstring


def _member(member) -> str:
    """The directive of a method, a property or an attribute."""
    labels = {"property": "property", "classmethod": "classmethod", "staticmethod": "staticmethod"}
    label = next((word for word in labels if word in member.labels), None)
    is_method = member.is_function and label != "property"
    options = [f":{label}:"] if is_method and label else []
    head = f"{'`' * 7}{{py:{'method' if is_method else 'attribute'}}} "
    head += _signature(member) if is_method else member.name
    if not is_method and (annotation := member.returns if member.is_function else member.annotation):
        options.append(f":type: {annotation}")
    return "\n".join([head, *options, "", _markdown(member.docstring), "`" * 7])


def _signature(found) -> str:
    if not (found.is_function or found.is_class):
        return found.name
    parts, keyword_only = [], False
    for parameter in found.parameters:
        kind = parameter.kind.value
        if parameter.name.startswith("_") or (parameter.name in ("self", "cls") and not parts):
            continue
        if kind == "variadic positional":
            keyword_only = True
        elif kind == "keyword-only" and not keyword_only:
            parts.append("*")
            keyword_only = True
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        annotation = f": {parameter.annotation}" if parameter.annotation else ""
        default = f" = {parameter.default}" if parameter.default is not None and not stars else ""
        parts.append(f"{stars}{parameter.name}{annotation}{default}")
    returns = f" -> {found.returns}" if found.is_function and found.returns else ""
    return f"{found.name}({', '.join(parts)}){returns}".replace("\n", " ")


def _built_in(found) -> str:
    """A link to the chapter that builds a thing."""
    number = chapter_of(found.module.path.removeprefix(f"{PACKAGE.name}."))
    chapters = [chapter for chapter in COURSE if chapter.number == number]
    return "".join(f"*Built in [chapter {number}, {one.title}]({one.file}.ipynb).*" for one in chapters)


def _markdown(docstring) -> str:
    """A docstring, with Google's sections as lists."""
    if docstring is None:
        return ""
    parts = []
    for section in docstring.parsed:
        kind = section.kind.value
        if kind == "text":
            parts.append(_text(section.value))
        elif kind == "admonition":
            parts.append(f"**{section.title}**\n\n{_text(section.value.description)}")
        elif kind == "examples":
            parts += [_text(text) for _, text in section.value]
        else:
            items = [_item(each) for each in section.value]
            parts.append("\n".join([f"**{(section.title or kind).capitalize()}**", "", *items]))
    return "\n\n".join(parts)


def _item(each) -> str:
    name = getattr(each, "name", "") or (str(each.annotation) if each.annotation else "")
    words = textwrap.indent(_text(each.description), "  ").strip()
    return f"- `{name}`: {words}" if name else f"- {words}"


def _text(text: str) -> str:
    """Plain words with code in backticks, and indented code, as Markdown."""
    blocks = re.split(r"\n((?:[ \t]*\n)+)(?=[^\s])", textwrap.dedent(text).strip("\n"))
    return "\n\n".join(_block(block) for block in blocks if block.strip())


def _block(block: str) -> str:
    """Paragraphs of one indentation: code if it is indented, words otherwise."""
    lines, code = block.splitlines(), []
    while lines and (not lines[-1].strip() or lines[-1].startswith("    ")):
        code.insert(0, lines.pop())
    words = re.sub(SPECIAL, _escaped, "\n".join(lines).strip("\n"))
    if not any(line.strip() for line in code):
        return words
    source = textwrap.dedent("\n".join(code)).strip("\n")
    try:
        ast.parse(source)
        language = "python"
    except SyntaxError:
        language = "text"
    return f"{words}\n\n```{language}\n{source}\n```".lstrip("\n")


def _escaped(found: re.Match) -> str:
    code, link, character = found.groups()
    return code or (f"<{link}>" if link else f"\\{character}")
