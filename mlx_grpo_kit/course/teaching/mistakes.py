"""The `mistakes` command: which named mistakes did a class make most often?"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlx_grpo_kit.cli.terminal import escaped, say
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.tries import NO_NAME, Tries, most_frequent, read_tries
from mlx_grpo_kit.files import read_file


def run(options: argparse.Namespace) -> int:
    """Print the table of the records in `options.files`; 2 if none of them could be read."""
    records: list[dict[str, Tries]] = []
    for file in options.files:
        try:
            records.append(read_tries(read_file(Path(file)))[1])
        except (OSError, ValueError) as error:
            say(f"{escaped(file)} is left out: {escaped(str(error))}")
    table = Table(box=SIMPLE)
    for title in ("exercise", "mistake", "readers", "times"):
        table.add_column(title, justify="right" if title in ("readers", "times") else "left")
    for id, mistake, readers, times in most_frequent(records)[: options.most]:
        words = escaped(mistake) if mistake != NO_NAME else "none of the named ones"
        table.add_row(Text(f"{escaped(id)} {_title(id)}"), Text(words), str(readers), str(times))
    console = Console(highlight=False)
    console.print(f"{len(records)} record{'s' * (len(records) != 1)}", table)
    return 0 if records else 2


def _title(id: str) -> str:
    try:
        return find(id).title
    except LookupError:  # of another version, or of somebody's own folder
        return ""
