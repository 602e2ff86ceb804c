"""The `assignment` command: exercises of the course as a notebook that nbgrader and Otter hand out, collect and grade.

Every exercise has the set-up cell of its chapter, its prompt, a cell for the answer with the kit's solution, which both
graders remove, and tests: the cases that a reader knows, and hidden ones, drawn from a seed in the hidden test alone.
"""

from __future__ import annotations

import argparse
import inspect
import re
import secrets
import textwrap
from collections.abc import Sequence
from pathlib import Path

from mlx_grpo_kit.cli.lab import COURSE as NOTEBOOKS
from mlx_grpo_kit.course.answers import names_used
from mlx_grpo_kit.course.catalogue import exercises, find, imports_of, title_of
from mlx_grpo_kit.course.exercise import Exercise
from mlx_grpo_kit.course.syllabus import COURSE
from mlx_grpo_kit.files import replaced_folder, write_file
from mlx_grpo_kit.runtime.extras import packages_for

with packages_for("assignment"):
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell

    from mlx_grpo_kit.course.book.reading import CHECK

NBGRADER_CONFIG = """# Read by nbgrader in this folder. Students find the course's own stub instead of nbgrader's.
c = get_config()  # noqa: F821
c.CourseDirectory.course_id = {name!r}
c.ClearSolutions.code_stub = {{"python": "# Replace the ... above with your code."}}
c.ExecutePreprocessor.timeout = 300
"""
README = """# {name}

{count} exercises, {points} points: 1 to 3 for each exercise, by its difficulty.

This folder is for you and not for your students, because its notebooks contain the solutions and the seed of the hidden
cases, {seed}. Both graders remove them from what students get. To make the same assignment again:

    mlx-grpo-kit assignment {ids} --seed {seed} --output {name}

nbgrader, in this folder and in the environment of the kit (tried with 0.9.6):

```sh
pip install nbgrader
nbgrader generate_assignment {name} --create
# hand out release/{name}, collect submitted/STUDENT/{name}/{name}.ipynb
nbgrader autograde {name} --create
nbgrader export
```

Otter (tried with 7.0):

```sh
pip install otter-grader
otter assign otter/{name}.ipynb otter_made
# hand out otter_made/student/{name}.ipynb, collect collected/STUDENT.ipynb; then, without Docker:
for one in collected/*.ipynb; do
    mkdir -p marks/$(basename $one .ipynb)
    otter run -a otter_made/autograder/*.zip -o marks/$(basename $one .ipynb) $one
done
python -c '
import glob, json
for file in sorted(glob.glob("marks/*/results.json")):
    tests = json.load(open(file))["tests"]
    print(file.split("/")[1], sum(test.get("score", 0) for test in tests), sep=",")
' > marks.csv
# with Docker, and the kit in its image: otter grade -a otter_made/autograder/*.zip collected
```

Both run what students wrote on this machine. Grade as a user whose files and network the code may have.
"""


def run(options: argparse.Namespace) -> int:
    """Write the assignment and say what is next.

    Raises ValueError for unknown exercises and for those without hidden cases, and FileExistsError and OSError for a
    folder that cannot be replaced.
    """
    try:
        chosen = [find(id) for id in dict.fromkeys(options.exercises)]
    except LookupError as error:
        raise ValueError(error) from error
    check_hidden(chosen)
    folder = Path(options.output)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", folder.resolve().name) or "assignment"
    seed = secrets.randbits(48) if options.seed is None else options.seed
    with replaced_folder(folder) as new:
        for place, notebook in (
            (new / "source" / name, for_nbgrader(chosen, seed)),
            (new / "otter", for_otter(chosen, seed, name)),
        ):
            place.mkdir(parents=True)
            write_file(place / f"{name}.ipynb", nbformat.writes(notebook).encode())
        write_file(new / "nbgrader_config.py", NBGRADER_CONFIG.format(name=name).encode())
        points, ids = sum(each.difficulty for each in chosen), " ".join(each.id for each in chosen)
        words = README.format(name=name, count=len(chosen), points=points, seed=seed, ids=ids)
        write_file(new / "README.md", words.encode())
    print(f"{len(chosen)} exercises, {sum(each.minutes for each in chosen)} minutes: {folder}")
    print(f"{folder / 'README.md'} has the commands for nbgrader and Otter. Hidden cases are drawn from seed {seed}.")
    return 0


def check_hidden(chosen: Sequence[Exercise]) -> None:
    """Raise ValueError if an exercise has no drawn cases: a table of its visible cases would pass hidden ones too."""
    if visible := [each.id for each in chosen if not each.has_drawn_cases]:
        chapters = dict.fromkeys(id.partition(".")[0] for id in visible)
        others = [each.id for chapter in chapters for each in exercises(chapter) if each.has_drawn_cases]
        raise ValueError(
            f"{', '.join(visible)}: all cases are in the kit, so hidden ones cannot be drawn, and a table of the "
            f"visible ones would pass. You can use these of the same chapters: {', '.join(others) or 'none'}."
        )


def for_nbgrader(chosen: Sequence[Exercise], seed: int) -> nbformat.NotebookNode:
    """The source notebook of nbgrader."""
    cells = []
    for exercise, setup, needs, stub in _parts(chosen):
        number = exercise.id.replace(".", "-")
        cells += [_of_nbgrader(new_markdown_cell(text), f"text-{number}-{k}") for k, text in enumerate(setup[:-1])]
        cells += [_of_nbgrader(new_code_cell(setup[-1]), f"setup-{number}")] if setup else []
        cells += [_of_nbgrader(new_code_cell(needs), f"needs-{number}")] if needs else []
        cells.append(_of_nbgrader(new_markdown_cell(_prompt(exercise)), f"prompt-{number}"))
        answer = f"{stub}\n\n\n### BEGIN SOLUTION\n{_solution(exercise)}\n### END SOLUTION"
        cells.append(_of_nbgrader(new_code_cell(answer), f"answer-{number}", solution=True, locked=False))
        hidden = f"### BEGIN HIDDEN TESTS\n{_test(exercise, seed)}\n### END HIDDEN TESTS"
        tests = f"from mlx_grpo_kit.course import check\n\n{hidden}\n{_test(exercise)}"
        cells.append(_of_nbgrader(new_code_cell(tests), f"test-{number}", grade=True, points=exercise.difficulty))
    return _notebook(cells)


def _of_nbgrader(cell: nbformat.NotebookNode, id: str, **own: object) -> nbformat.NotebookNode:
    cell.metadata["nbgrader"] = {
        "grade": False, "solution": False, "locked": True, "task": False, "schema_version": 3, "grade_id": id, **own,
    }  # fmt: skip
    return cell


def for_otter(chosen: Sequence[Exercise], seed: int, name: str) -> nbformat.NotebookNode:
    """The notebook from which `otter assign` makes those of students and the autograder."""
    config = f"# ASSIGNMENT CONFIG\nname: {name}\ninit_cell: true\ntests:\n    ok_format: false"
    cells = [new_raw_cell(config)]
    for exercise, setup, needs, stub in _parts(chosen):
        cells += [*map(new_markdown_cell, setup[:-1]), *map(new_code_cell, setup[-1:])]
        cells += [new_code_cell(needs)] if needs else []
        points, number = exercise.difficulty, exercise.id.replace(".", "_")
        solution = f"# BEGIN SOLUTION NO PROMPT\n{_solution(exercise)}\n# END SOLUTION"
        # Otter tests when all cells have run, and a later cell may bind the answer's name anew. It keeps one test of
        # each name.
        kept = f"answer_{number}"
        tests = [
            _otter_test("hidden_cases", kept, points, _test(exercise, seed, kept)),
            _otter_test("known_cases", kept, 0, _test(exercise, None, kept)),
        ]
        cells += [
            new_raw_cell(f"# BEGIN QUESTION\nname: q{number}\npoints: {points}"),
            new_markdown_cell(_prompt(exercise)),
            new_raw_cell("# BEGIN SOLUTION"),
            new_code_cell(f"{stub}\n\n\n{solution}"),
            new_raw_cell("# END SOLUTION"),
            new_code_cell(f"{kept} = {exercise.solution.__name__}"),
            new_raw_cell("# BEGIN TESTS"),
            *map(new_code_cell, tests),
            new_raw_cell("# END TESTS"),
            new_raw_cell("# END QUESTION"),
        ]
    return _notebook(cells)


def _otter_test(name: str, answer: str, points: int, test: str) -> str:
    head = f'""" # BEGIN TEST CONFIG\npoints: {points}\nhidden: {str(points > 0).lower()}\n""" # END TEST CONFIG'
    body = f"def {name}({answer}):\n    from mlx_grpo_kit.course import check\n\n    {test}"
    return f"{head}\n{body}\n\n\n{name}({answer})"


def _parts(chosen: Sequence[Exercise]) -> list[tuple[Exercise, list[str], str, str]]:
    """Each exercise with its chapter's heading and set-up where the chapter begins, its `use(...)` lines, its stub."""
    parts, last = [], ""
    for exercise in chosen:
        number = exercise.id.partition(".")[0]
        heading, setup, stub = _from_notebook(exercise) or _of_your_own(exercise)
        names = names_used(_solution(exercise))
        others = [each for each in exercises(number) if getattr(each.solution, "__name__", "") in names]
        needs = [f'{each.solution.__name__} = use("{each.id}")' for each in others if each.id != exercise.id]
        begin = [heading, f"{setup}\nfrom mlx_grpo_kit.course import check, use"] if number != last else []
        parts.append((exercise, begin, "\n".join(needs), stub))
        last = number
    return parts


def _from_notebook(exercise: Exercise) -> tuple[str, str, str] | None:
    """The heading, the set-up cell and the stub of an exercise of the course; None for one that is not."""
    for chapter in COURSE:
        if chapter.number == exercise.id.partition(".")[0]:
            cells = nbformat.read(NOTEBOOKS / f"{chapter.file}.ipynb", as_version=4).cells
            code = [cell.source for cell in cells if cell.cell_type == "code"]
            [stub] = [source for source in code if (found := CHECK.search(source)) and found[1] == exercise.id]
            return f"## From chapter {chapter.number}: {chapter.title}", code[0], CHECK.sub("", stub).rstrip()
    return None


def _of_your_own(exercise: Exercise) -> tuple[str, str, str]:
    """The same for an exercise from your own folder, which has no notebook: imports and stub are made from its file."""
    number, solution = exercise.id.partition(".")[0], exercise.solution
    doc = f'    """{inspect.getdoc(solution)}"""\n' if inspect.getdoc(solution) else ""
    stub = f"def {solution.__name__}{inspect.signature(solution)}:\n{doc}    ..."
    return f"## {title_of(number)}", f"# Set-up\n{imports_of(exercise)}".rstrip(), stub


def _prompt(exercise: Exercise) -> str:
    return f"### {exercise.heading}\n\n{exercise.prompt}"


def _solution(exercise: Exercise) -> str:
    return textwrap.dedent(inspect.getsource(exercise.solution)).rstrip()


def _test(exercise: Exercise, seed: int | None = None, name: str = "") -> str:
    hidden = "" if seed is None else f", seed={seed}"
    return f'assert check("{exercise.id}", {name or exercise.solution.__name__}{hidden})'


def _notebook(cells: Sequence[nbformat.NotebookNode]) -> nbformat.NotebookNode:
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # the same in every version, which a grader compares
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return new_notebook(cells=[*cells], metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
