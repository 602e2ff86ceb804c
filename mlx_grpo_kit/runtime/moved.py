"""An error for imports of what the kit no longer has in that place: it says where the same name is.

A notebook that a reader has kept imports from the version that it was made for. The places are looked up in the source
when such an import fails, so there is no table to keep up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KIT = Path(__file__).parents[1]


class MovedNames:
    """The last finder of `sys.meta_path`: Python asks it for modules, and for names in packages, that nobody found."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        """Raise ModuleNotFoundError if another module of the kit has the last part of `name`."""
        if not name.startswith(f"{KIT.name}."):
            return
        wanted = _whole_name(name)
        last = wanted.rpartition(".")[2]
        places = sorted(places_of(last), key=len)
        if places and wanted not in places:  # or else it is there, and a circle of imports has not reached it yet
            # Without `name=`: Python replaces an error that has it by its own.
            raise ModuleNotFoundError(
                f"This version of {KIT.name} has no {wanted}. Of that name it has {', '.join(places[:3])}. A notebook "
                "of the course that imports it was made for another version: `mlx-grpo-kit lab --fresh` copies the "
                "current one."
            )


def _whole_name(name: str) -> str:
    """The module that the running import asks for. Importing a.b.c begins with a.b, which may be missing already."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        asked = frame.f_locals.get("name")
        name = asked if isinstance(asked, str) and asked.startswith(f"{name}.") else name
        frame = frame.f_back
    return name


def places_of(last: str) -> Iterator[str]:
    """Every module of the kit called `last`, and the places where one defines or exports that name."""
    if not last.isidentifier() or last.startswith("_"):
        return
    defines = re.compile(rf"^(?:(?:async )?def |class ){last}\b|^{last}\b(?:: [^=\n]+)? = ", re.MULTILINE)
    exports = re.compile(rf"^ *from \S+ import .*\b{last}\b|^ +\"?{last}\"?,$", re.MULTILINE)
    files = [file for file in KIT.rglob("*.py") if file.stem != "exercises"]  # their names are those of solutions
    for file in files:
        module = ".".join([KIT.name, *file.relative_to(KIT).with_suffix("").parts]).removesuffix(".__init__")
        if module.endswith(f".{last}"):
            yield module
        elif (exports if file.stem == "__init__" else defines).search(file.read_text(encoding="utf-8")):
            yield f"{module}.{last}"


sys.meta_path.append(MovedNames())
