"""The command line of those who teach with the kit; the commands are in course/teaching/."""

from __future__ import annotations

from typing import Any

from mlx_grpo_kit.cli.values import count, positive, seed

COMMANDS = "mlx_grpo_kit.course.teaching."


def add_teaching(commands: Any) -> None:
    """Add the commands for instructors."""
    _add_assignment(commands)
    _add_grade(commands)
    _add_mistakes(commands)
    _add_slides(commands)


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


def _add_grade(commands: Any) -> None:
    parser = commands.add_parser(
        "grade",
        help="grade many files of answers against hidden cases",
        description="Grade many files of answers (answers.json) against hidden cases. Each answer runs in a process "
        "of its own, with limits of time and memory. On Linux it starts no other program, uses no network, and writes "
        "only to a temporary folder. That stops accidents and ordinary tricks, but it is not a sandbox against "
        "experts. An answer that is the kit's solution word for word is marked as copied, which is natural for a "
        "one-line answer.",
        epilog="examples:\n"
        "  python -m mlx_grpo_kit grade handed_in/*/answers.json\n"
        "  python -m mlx_grpo_kit grade handed_in/*/answers.json --exercises 14.1 16.1 --csv > marks.csv\n",
    )
    parser.add_argument("files", nargs="+", metavar="ANSWERS", help="answers.json of a reader")
    words = "the exercises to grade (default: every answer in the file)"
    parser.add_argument("--exercises", nargs="+", metavar="ID", help=words)
    parser.add_argument("--csv", action="store_true", help="print CSV, one row per answer, instead of a table")
    parser.add_argument("--seed", type=seed, metavar="N", help="seed of the hidden cases (default: a random one)")
    words = "processor time per answer (default 20)"
    parser.add_argument("--seconds", type=positive, default=20, metavar="N", help=words)
    words = "memory per answer in MiB, beyond what Python and the kit take (default 1024)"
    parser.add_argument("--memory", type=count, default=1024, metavar="MIB", help=words)
    parser.set_defaults(module=COMMANDS + "grade")


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


def _add_slides(commands: Any) -> None:
    parser = commands.add_parser(
        "slides",
        help="make slides from chapters",
        description="Make slides from chapters of the course, with their stored outputs: each heading begins a slide, "
        "and each picture has one below it. The pages load reveal.js and MathJax from the network.",
        epilog="examples:\n  python -m mlx_grpo_kit slides 15 16 --output slides\n",
    )
    parser.add_argument("chapters", nargs="+", metavar="CHAPTER", help="two digits: 15")
    parser.add_argument("--output", default="slides", metavar="FOLDER", help="default slides")
    parser.set_defaults(module=COMMANDS + "slides")
