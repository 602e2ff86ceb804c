"""The book's moving pictures: what a page needs so that panels and instruments move without a kernel.

    python -m mlx_grpo_kit.course.book.moving notebooks/01_derivatives.ipynb --output FOLDER

A panel becomes a flip-book: its function draws one picture for each combination of some values of its controls. An
instrument keeps its JavaScript module, and its answers are computed in advance. `moving.js` shows both. Only the
statements that a picture depends on are run (excerpt.py), in a process of its own.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gzip
import io
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any

from mlx_grpo_kit.course.book.excerpt import widget_of
from mlx_grpo_kit.course.book.foreseen import answers_of
from mlx_grpo_kit.course.chapters.chapter_02.pictures.stepper import Stepper
from mlx_grpo_kit.course.record import PLACE
from mlx_grpo_kit.viz.box import colored_box
from mlx_grpo_kit.viz.picture import SCREEN_DPI, FigurePicture, as_picture, image_tag, to_png

MOST = 300_000  # bytes of a flip-book
NOTE = "In JupyterLab every value of the controls is drawn."
COLORS = 48  # of a picture that is not an SVG
LAB_DARK, BOOK_DARK = '[data-jp-theme-light="false"]', 'html[data-theme="dark"]'
Moves = Mapping[str, int | Sequence[str]]  # a control's name -> the number of its values, or the texts to choose from

FLIP_BOOKS: dict[str, Moves] = {
    "01-14": {"x": 7, "h": 27, "both_sides": 2},
    "02-07": {"step": 99},
    "02-29": {"step": 99},
    "04-07": {"shape": 2, "axis": 5, "keepdims": 2},
    "04-12": {
        "a": ("(3, 1)", "(2, 3, 1)", "(4,)", "()"),
        "b": ("(4,)", "(3, 4)", "(2, 1, 4)", "(3,)"),
        "view": 2,
        "follow": 2,
    },
    "04-43a": {"row": 9, "column": 9},
    "05-13": {"operation": 99},
    "06-16": {"function": 9, "dtype": 9, "method": 9, "h": 14},
    "06-28": {"switch": 9, "broken": 2},
    "08-11": {"column": 9, "pixel": 25, "stride": 2},
    "10-14": {"a": 5, "b": 5, "c": 5, "eps": 3},
    "10-18": {"gate": 25, "up": 9},
    "10-28": {"query_at": 5, "both": 5, "pair": 3},
    "11-panel-query": {"first": 13, "second": 7, "scale": 5},
    "11-panel-masks": {"side": 2, "second": ("5+6=", "7+8=15", "1+2=", "99+99=")},
    "11-panel-maps": {"layer": 9, "head": 9, "token": 9},
    "12-27": {"token": 5},
    "13-panel": {"temperature": 7, "top_k": 5, "top_p": 5, "min_p": 4},
    "15-nudge": {"a": 5, "b": 5, "c": 7, "added": 5},
    "15-panel": {"size": 11, "baseline": 9, "spread": 3},
    "16-adv-panel": {"a": 4, "b": 4, "c": 4, "d": 5, "divide": 2},
    "16-clip-panel": {"ratio": 41, "epsilon": 3, "epsilon_high": 3},
    "16-weigh-panel": {"loss_type": 4, "a": 4, "b": 4, "others": 4},
    "17-03": {"counts": 99},
    "17-15": {"angle": 73, "length": 4},
    "17-43": {"token": 4},
    "19-panel": {"left": 4, "right": 99, "updates": 3},
    "20-museum": {"bug": 99},
    "21-rounding": {"step": 21, "weight": 5},
    "21-ring": {"message": 7, "size": 7},
    "22-pipe-panel": {"fetch": 9, "compute": 7, "ahead": 5},
    "22-lag-panel": {"write": 8, "learn": 8, "max_lag": 5},
}
INSTRUMENTS = {
    "13-tree": "",
    "18-dashboard": "dashboard",
    "18-microscope": "",
    "20-mystery-4": "",
    "20-mystery-5": "",
    "23-first-record": "",
    "23-replay": "",
    "turns-50": "",
    "turns-53": "",
}
"""A cell's id -> the name of its instrument; empty if the instrument is the cell's last expression."""


def make_moving(notebooks: Sequence[Path], folder: Path) -> list[str]:
    """Write the moving pictures of all these notebooks, each in a process of its own; return the complaints."""
    ids = {*FLIP_BOOKS, *INSTRUMENTS}
    there = [notebook for notebook in notebooks if any(f'"{id}"' in notebook.read_text("utf-8") for id in ids)]
    with ThreadPoolExecutor(os.cpu_count()) as several:
        return [
            complaint for found in several.map(lambda notebook: _run(notebook, folder), there) for complaint in found
        ]


def _run(notebook: Path, folder: Path) -> list[str]:
    command = [sys.executable, "-m", __name__, str(notebook.resolve()), "--output", str(folder)]
    with tempfile.TemporaryDirectory() as empty:  # the kit's solutions, whatever the builder's own answers are
        nobody = {PLACE: str(Path(empty, "progress.json"))}
        run = subprocess.run(command, capture_output=True, text=True, cwd=empty, env={**os.environ, **nobody})
    if run.returncode == 0:
        return run.stdout.splitlines()
    why = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
    return [f"{notebook.name}: its pictures stay still: {why}"]


def parts_of(notebook: Path, folder: Path) -> list[str]:
    """Write the moving pictures of a notebook into the folder; return a complaint for each that cannot move."""
    cells = [cell | {"source": "".join(cell["source"])} for cell in json.loads(notebook.read_text("utf-8"))["cells"]]
    names, complaints = {"__name__": "__main__"}, []
    for id in (cell.get("id") for cell in cells):
        try:
            if id in FLIP_BOOKS:
                book = flip_book(widget_of(cells, id, names), FLIP_BOOKS[id])
                _write(folder, id, "flip_book", book, MOST)
            elif id in INSTRUMENTS:
                instrument = widget_of(cells, id, names, INSTRUMENTS[id])
                _write(folder, id, instrument.source.name, answers_of(instrument))
                _write_module(folder, instrument)
        except Exception as error:
            complaints.append(f"{notebook.name}: the picture of cell {id} stays still: {type(error).__name__}: {error}")
    return complaints


def _write(folder: Path, id: str, kind: str, part: Mapping[str, Any], most: float = math.inf) -> None:
    """Write a part as a script, because a page that is opened as a file can load nothing else."""
    packed = base64.b64encode(gzip.compress(json.dumps(part).encode(), 9, mtime=0)).decode()
    if len(packed) > most:
        raise ValueError(f"its pictures take {len(packed):,} bytes; expected at most {most:,}. Move fewer controls.")
    words = json.dumps([id, kind, packed])[1:-1]
    (folder / f"{id}.js").write_text(f"kitPart({words});\n", encoding="utf-8")


def _write_module(folder: Path, instrument: Any) -> None:
    """Write the module of an instrument as a script that hands it over, with its style sheet."""
    module, css = instrument.widget._esm, instrument.widget._css.replace(LAB_DARK, BOOK_DARK)
    kind = instrument.source.name
    head, _, exported = module.rpartition("export default ")
    handed = f"kitInstrument({json.dumps(kind)}, {json.dumps(css)}, {exported.strip().rstrip(';')});"
    (folder / f"{kind}.js").write_text(f"(() => {{\n{head}{handed}\n}})();\n", encoding="utf-8")


def flip_book(panel: Any, moves: Moves) -> dict[str, Any]:
    """The pictures of a panel for all combinations of some values: {"controls", "pictures", "frames", "note"}.

    "frames" has the place of a picture in "pictures" for each combination, the last control moving fastest. Controls
    without `moves` keep their value.
    """
    if isinstance(panel, Stepper):
        stepper, panel = panel, panel.panel
        panel.set(step=stepper.stored)
    values = {name: _values(control, moves.get(name, 1)) for name, control in panel.controls.items()}
    pictures: dict[str, int] = {}
    frames = []
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(values, (value for value, _ in combination), strict=True))
        limits = panel.limits(**chosen) if panel.limits else {}
        chosen |= {name: min(chosen[name], most) for name, most in limits.items()}
        frames.append(pictures.setdefault(_page(panel, chosen), len(pictures)))
    moving = {name: control for name, control in panel.controls.items() if len(values[name]) > 1}
    fixed = [f"{control.description}: {values[name][0][1]}" for name, control in panel.controls.items()
             if name not in moving and values[name][0][1]]  # fmt: skip
    return {
        "controls": [
            {
                "name": control.description,
                "kind": _kind(control),
                "words": [words for _, words in values[name]],
                "start": [value for value, _ in values[name]].index(control.value),
            }
            for name, control in moving.items()
        ],
        "pictures": [*pictures],
        "frames": frames,
        "note": f"A flip-book of {len(pictures)} pictures. {NOTE}"
        + (f" Fixed here: {', '.join(fixed)}." if fixed else ""),
    }


def _page(panel: Any, values: Mapping[str, Any]) -> str:
    """The markup of a panel's picture, or its message if it cannot draw these values."""
    try:
        drawn = panel.draw(**values)
    except ValueError as error:
        return colored_box(escape(str(error)), "wrong")
    picture = as_picture(*drawn) if isinstance(drawn, tuple) else drawn
    if isinstance(picture, FigurePicture):
        return image_tag(_with_few_colors(to_png(picture.figure, SCREEN_DPI)), picture.figure, picture.alt)
    return picture.stored() if hasattr(picture, "stored") else picture.html  # a flow has shorter lists to store


def _with_few_colors(png: bytes) -> bytes:
    """The same picture in a fifth of the bytes; a chart has few colours."""
    from PIL import Image

    small = io.BytesIO()
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    image.save(small, format="PNG", optimize=True)
    return small.getvalue()


def _kind(control: Any) -> str:
    if hasattr(control, "step") or type(control).__name__ == "SelectionSlider":
        return "range"
    return "check" if isinstance(control.value, bool) else "choice"


def _values(control: Any, moves: int | Sequence[str]) -> list[tuple[Any, str]]:
    """Some values of a control with their words, in order: at most `moves`, among them the present one."""
    if not isinstance(moves, int):
        return [(text, text) for text in moves]
    if isinstance(control.value, bool):
        every = [(value, ("off", "on")[value]) for value in (False, True)]
    elif hasattr(control, "options"):
        every = [*zip(control._options_values, control._options_labels, strict=True)]
    elif hasattr(control, "step"):
        count = round((control.max - control.min) / control.step)
        steps = [control.min + place * control.step for place in range(count + 1)]
        every = [
            control.base**step if hasattr(control, "base") else type(control.value)(round(step, 9)) for step in steps
        ]
        words = getattr(control, "readout_format", "d")
        every = [(value, format(value, words)) for value in every]
    else:
        every = [(control.value, str(control.value))]
    at = min(range(len(every)), key=lambda place: _apart(every[place][0], control.value))
    every[at] = (control.value, every[at][1])
    gaps, end = max(min(moves, len(every)) - 1, 1), len(every) - 1
    places = {round(place * end / gaps) for place in range(gaps + 1)} if moves > 1 else set()
    if at not in places:  # it takes the place of its neighbour, but not of an end if there is another
        places -= {min(places - {0, end} or places, key=lambda place: abs(place - at), default=at)}
    return [every[place] for place in sorted(places | {at})]


def _apart(one: Any, other: Any) -> float:
    return float(one != other) if not isinstance(one, int | float) else abs(one - other)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the moving pictures of one notebook; print a line for each that stays still."""
    parser = argparse.ArgumentParser(description="The moving pictures of a notebook, for the book.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(argv)
    with contextlib.redirect_stdout(io.StringIO()):  # what the notebook prints
        complaints = parts_of(options.notebook, options.output)
    print(*complaints, sep="\n", end="\n" if complaints else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
