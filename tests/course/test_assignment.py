"""Assignments for nbgrader and Otter: hidden cases from a seed, which students' copies do not contain."""

import copy
import re
import sys

import nbformat
import pytest

from mlx_grpo_kit.cli import main
from mlx_grpo_kit.course import check, record, use
from mlx_grpo_kit.course.catalogue import exercises, find
from mlx_grpo_kit.course.slips import edited, patched, variants
from mlx_grpo_kit.course.tries import tries_file

SEED = 20_011
IDS = ("14.1", "14.2", "15.2", "15.8")
SOLUTION = re.compile(r"^(#+) BEGIN SOLUTION.*?^\1 END SOLUTION$", flags=re.M | re.S)
HIDDEN = re.compile(r"^### BEGIN HIDDEN TESTS$.*?^### END HIDDEN TESTS$", flags=re.M | re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("class") / "week4"
    assert main(["assignment", *IDS, "--output", str(place), "--seed", str(SEED)]) == 0
    return place


def own(id):
    """A right answer of a student's own, with the names of the exercise's module."""
    exercise = find(id)
    space = dict(vars(sys.modules[exercise.solution.__module__]))
    exec(patched(exercise.solution), space)
    return space[exercise.solution.__name__]


def table(id):
    """An answer that looks up what the kit's cases expect."""
    exercise = find(id)
    known = {repr(case): exercise.solution(*copy.deepcopy(case)) for case in exercise.cases}
    return lambda *arguments: known[repr(arguments)]


def test_a_table_of_the_visible_cases_passes_them_and_fails_hidden_ones():
    assert check("15.2", table("15.2"))
    assert "raised KeyError" in check("15.2", table("15.2"), seed=SEED).text
    assert check("15.2", own("15.2"), seed=SEED)


def test_hidden_cases_differ_by_seed_and_are_the_same_for_one():
    def drawn(seed):
        return repr([case for case in find("14.1", seed).cases if type(case) is not tuple])

    assert drawn(1) == drawn(1)
    assert len({drawn(None), drawn(1), drawn(2)}) == 3
    assert [each.id for each in exercises("14")] == [find(each.id, 1).id for each in exercises("14")]


@pytest.mark.parametrize("id", [each.id for chapter in ("01", "14", "16", "26") for each in exercises(chapter)])
def test_right_answers_pass_and_wrong_ones_fail_on_hidden_cases(id):
    exercise = find(id, SEED)
    if not exercise.has_drawn_cases:
        pytest.skip("every case is visible")
    assert exercise.examine(edited(exercise.solution))
    for name, answer, _ in variants(exercise.solution, exercise.also_right):
        assert exercise.examine(answer), name
    for name, answer, _ in variants(exercise.solution, exercise.also_wrong):
        assert not exercise.examine(answer), name
    for mistake in exercise.mistakes:
        assert not exercise.examine(mistake.wrong), mistake.name


def test_the_kits_own_solution_does_not_count(capsys):
    assert check("14.1", use("14.1"))
    note = check("14.1", find("14.1").solution, seed=SEED)
    assert not note
    assert "the kit's own solution" in note.text


def test_grading_stores_nothing(capsys):
    check("14.1", find("14.1").mistakes[0].wrong, seed=SEED)
    assert check("14.1", own("14.1"), seed=SEED)
    assert check("14.1", own("14.1"))
    assert not record.progress_file().exists()
    assert not tries_file().exists()
    assert use("14.1")("46") == 46
    assert capsys.readouterr().out == "14.1: yours\n"


@pytest.mark.parametrize("kind", ["source/week4", "otter"])
def test_students_get_neither_solutions_nor_seed(folder, kind):
    notebook = nbformat.read(folder / kind / "week4.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    for id in IDS:
        [answer] = [
            source for source in code if f"def {find(id).solution.__name__}(" in source and "SOLUTION" in source
        ]
        assert "..." in SOLUTION.sub("", answer)
        assert len(re.findall("^def ", SOLUTION.sub("", answer), flags=re.M)) == 1
    seen = [source for source in code if str(SEED) in HIDDEN.sub("", source) and "hidden: true" not in source]
    assert not seen
    assert sum(str(SEED) in source for source in code) == len(IDS)


@pytest.mark.parametrize("kind", ["source/week4", "otter"])
def test_the_instructors_copy_runs(folder, kind, capsys):
    """Cell after cell, as nbgrader and Otter run it, with the solutions in it."""
    notebook = nbformat.read(folder / kind / "week4.ipynb", as_version=4)
    space = {"__name__": "__main__"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            file = f"<{kind} {cell.id}>"
            exec(compile(cell.source, file, "exec"), space)
    assert record.passed_here.keys() >= set(IDS)


def test_every_cell_has_what_nbgrader_wants(folder):
    cells = nbformat.read(folder / "source/week4/week4.ipynb", as_version=4).cells
    ids = [cell.metadata["nbgrader"]["grade_id"] for cell in cells]
    assert len(set(ids)) == len(ids)
    points = [cell.metadata["nbgrader"].get("points", 0) for cell in cells]
    assert sum(points) == sum(find(id).difficulty for id in IDS)
    open_cells = [cell for cell in cells if not cell.metadata["nbgrader"]["locked"]]
    assert len(open_cells) == len(IDS)
    assert all("BEGIN SOLUTION" in cell.source for cell in open_cells)
    needs = next(cell.source for cell in cells if cell.metadata["nbgrader"]["grade_id"] == "needs-15-8")
    assert 'leave_one_out = use("15.' in needs


def test_what_cannot_be_hidden_is_refused_by_name(tmp_path, capsys):
    assert main(["assignment", "14.1", "14.6", "16.5", "--output", str(tmp_path / "week")]) == 2
    words = capsys.readouterr().err
    assert "14.6, 16.5: all cases are in the kit" in words
    assert "14.1, 14.2, 14.3" in words
    assert main(["assignment", "14.77", "--output", str(tmp_path / "week")]) == 2
    assert "this chapter has 14.1" in capsys.readouterr().err
    assert not (tmp_path / "week").exists()


def test_another_seed_each_time(tmp_path, capsys):
    for name in ("one", "two"):
        assert main(["assignment", "14.1", "--output", str(tmp_path / name)]) == 0
    seeds = re.findall(r"seed (\d+)\.", capsys.readouterr().out)
    assert len(set(seeds)) == 2
    assert seeds[0] in (tmp_path / "one/README.md").read_text()
    assert main(["assignment", "14.1", "--output", str(tmp_path / "one"), "--seed", seeds[1]]) == 0
    one, two = ((tmp_path / name / "otter" / f"{name}.ipynb").read_text() for name in ("one", "two"))
    assert one.replace("name: one", "name: two") == two


def test_otter_keeps_both_tests_of_a_question(folder):
    """Otter collects tests by the name of their function."""
    cells = nbformat.read(folder / "otter/week4.ipynb", as_version=4).cells
    for id in IDS:
        tests = [cell.source for cell in cells if f'assert check("{id}"' in cell.source]
        names = [re.search(r"^def (\w+)\(", source, flags=re.M)[1] for source in tests]
        assert len(set(names)) == 2
        hidden = [source for source in tests if "hidden: true" in source]
        assert len(hidden) == 1
        assert f"points: {find(id).difficulty}\n" in hidden[0]
        assert f"seed={SEED}" in hidden[0]


def test_otter_tests_the_answer_whatever_its_name_means_later(folder):
    """14.2 needs 14.1, so a later cell binds the name of 14.1 to what `use` returns."""
    cells = [cell.source for cell in nbformat.read(folder / "otter/week4.ipynb", as_version=4).cells]
    assert 'whole_number = use("14.1")' in cells
    assert cells.index("answer_14_1 = whole_number") < cells.index('whole_number = use("14.1")')
    assert not [source for source in cells if 'check("14.1", whole_number' in source]
