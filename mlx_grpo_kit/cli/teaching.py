"""The command line of those who teach with the kit; the commands are in course/teaching/."""

from __future__ import annotations

from typing import Any

from mlx_grpo_kit.cli.values import count

COMMANDS = "mlx_grpo_kit.course.teaching."


def add_teaching(commands: Any) -> None:
    """Add the commands for instructors."""
    _add_mistakes(commands)


def _add_mistakes(commands: Any) -> None:
    parser = commands.add_parser(
        "mistakes",
        help="show the most frequent mistakes of a class",
        description="Show which named mistakes a class made most often, from the records of tries (tries.json) that "
        "its readers hand in. Each file counts as one reader.",
        epilog="examples:\n  python -m mlx_grpo_kit mistakes handed_in/*/tries.json\n",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="tries.json of a reader")
    parser.add_argument("--most", type=count, default=20, metavar="N", help="rows to show (default 20)")
    parser.set_defaults(module=COMMANDS + "mistakes")
