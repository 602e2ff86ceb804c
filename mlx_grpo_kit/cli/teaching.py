"""The command line of those who teach with the kit; the commands are in course/teaching/."""

from __future__ import annotations

from typing import Any

from mlx_grpo_kit.cli.values import count, seed

COMMANDS = "mlx_grpo_kit.course.teaching."


def add_teaching(commands: Any) -> None:
    """Add the commands for instructors."""
    _add_assignment(commands)
    _add_mistakes(commands)


def _add_assignment(commands: Any) -> None:
    parser = commands.add_parser(
        "assignment",
        help="make an assignment for nbgrader and Otter from exercises of the course",
        description="Make an assignment from exercises of the course: a notebook with set-up cells, prompts, stubs "
        "and tests, once as nbgrader and once as Otter expects it. The tests have hidden cases, drawn from a seed that "
        "only you know. An exercise whose cases are all in the kit raises an error.",
        epilog="examples:\n  python -m mlx_grpo_kit assignment 14.1 14.5 15.2 16.1 --output week4\n",
    )
    parser.add_argument("exercises", nargs="+", metavar="ID", help="chapter and number of an exercise: 14.1")
    parser.add_argument(
        "--output", required=True, metavar="FOLDER", help="the folder to write, named as the assignment"
    )
    parser.add_argument("--seed", type=seed, metavar="N", help="seed of the hidden cases (default: a random one)")
    parser.set_defaults(module=COMMANDS + "assignment")


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
