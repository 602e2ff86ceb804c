"""Plain words, as far as a program can see them: a docstring opens with a noun or an imperative verb."""

import ast
import re
from pathlib import Path

from tests.every import every

PACKAGE = Path(__file__).parents[1] / "mlx_grpo_kit"
# A chapter's own functions have docstrings that its notebook and its exercises quote.
FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if not {"chapters", "notebooks"} & {*path.relative_to(PACKAGE).parts}
)
BARE = re.compile(r"\s*(What|Who|Whoever|Whether|Where|How|That|Which|Those|Of|As)\b")
DOCUMENTED = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bare_openings(source):
    """The first lines of docstrings that open with a bare question word."""
    texts = [ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    return [text.splitlines()[0] for text in texts if text and BARE.match(text)]


@every("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_docstring_opens_with_a_noun_or_a_verb(path):
    assert bare_openings(path.read_text(encoding="utf-8")) == []


def test_a_bare_opening_is_found():
    source = '"""How it works."""\nclass A:\n    """A thing."""\n    def f(self):\n        """What f does."""\n'
    assert bare_openings(source) == ["How it works.", "What f does."]
