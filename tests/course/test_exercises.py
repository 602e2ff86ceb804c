"""Every exercise of the course: its solution passes, its stub is not attempted, each mistake gets its own message."""

import copy
import dataclasses
import functools
import inspect
import re
import sys
import types
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from mlx_grpo_kit.course import Exercise, Mistake, check, drawn, slips
from mlx_grpo_kit.course.catalogue import chapters, exercises
from mlx_grpo_kit.course.exercise import is_stub
from mlx_grpo_kit.course.slips import edited, patched, variants
from mlx_grpo_kit.course.trial import TooMuchWorkError, count_work
from mlx_grpo_kit.tensor import Tensor
from tests.every import every, try_all

ALL = [exercise for chapter in chapters() for exercise in exercises(chapter)]


def stub_of(exercise):
    """The function as the notebook shows it: the signature, a docstring, and ... for a body."""
    if not callable(exercise.solution):
        return ...
    name, space = exercise.solution.__name__, {}
    exec(f'def {name}{inspect.signature(exercise.solution)}:\n    """What to do."""\n    ...', space)
    return space[name]


every_exercise = every("exercise", ALL, ids=lambda exercise: exercise.id)
each_exercise = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)


@each_exercise
def test_right_answers_pass(exercise):
    """The solution, and those in another style."""

    def passes(answer):
        note = check(exercise.id, answer)
        assert note.passed, note
        assert "Passed" in repr(note)

    # The solution is compiled again, so that it is treated like a reader's answer.
    right = {"solution": [edited(exercise.solution) if callable(exercise.solution) else exercise.solution]}
    others = variants(exercise.solution, exercise.also_right)
    right |= {f"{n}: {name}": [answer] for n, (name, answer, _) in enumerate(others)}
    try_all(passes, right)


@every_exercise
def test_the_stub_is_not_attempted(exercise):
    note = check(exercise.id, stub_of(exercise))
    assert not note.passed
    assert "Not attempted" in repr(note)


@each_exercise
def test_each_mistake_gets_its_own_message(exercise):
    def gets_its_message(mistake):
        before = repr(exercise.cases)
        note = check(exercise.id, mistake.wrong)
        assert repr(exercise.cases) == before
        assert not note.passed
        assert mistake.message in note.text
        assert f'hint("{exercise.id}", {mistake.hint})' in note.text
        assert 1 <= mistake.hint <= len(exercise.hints)

    try_all(gets_its_message, {f"{n}: {mistake.name}": [mistake] for n, mistake in enumerate(exercise.mistakes)})


@each_exercise
def test_other_wrong_answers_are_refused_with_words(exercise):
    def is_refused(answer, words):
        note = check(exercise.id, answer)
        assert not note.passed
        assert "Not attempted" not in repr(note)
        assert words in note.text if words else not any(mistake.message in note.text for mistake in exercise.mistakes)

    wrong = variants(exercise.solution, exercise.also_wrong)
    try_all(is_refused, {f"{n}: {name}": [answer, words] for n, (name, answer, words) in enumerate(wrong)})


@every_exercise
def test_a_failing_answer_gets_the_reason(exercise):
    def broken(*arguments):
        raise RuntimeError("the cat sat on the keyboard")

    note = check(exercise.id, broken)
    assert not note.passed
    if isinstance(exercise.solution, types.FunctionType):
        assert "raised RuntimeError: the cat sat on the keyboard" in note.text


@every_exercise
def test_an_exercise_has_everything_that_a_learner_needs(exercise):
    assert len(exercise.hints) >= 2
    assert len(exercise.mistakes) >= 2
    names = {mistake.name for mistake in exercise.mistakes}
    assert len({mistake.message for mistake in exercise.mistakes}) == len(names)  # a message may have several diffs
    assert 1 <= exercise.difficulty <= 3
    assert 2 <= exercise.minutes <= 30
    if callable(exercise.solution):
        assert exercise.solution.__name__ in exercise.prompt
        assert inspect.getdoc(exercise.solution)
        assert len(exercise.cases) >= 2


def test_ids_count_up_within_a_chapter_and_are_never_used_twice():
    """Stored answers and progress go by the id, so the id of a removed exercise stays unused: "03.3 (removed)"."""
    lines = Path(__file__).with_name("exercise_ids.txt").read_text(encoding="utf-8").splitlines()
    known = dict(line.split(" ", 1) for line in lines)
    assert len(known) == len(lines)
    assert {id: title for id, title in known.items() if title != "(removed)"} == {each.id: each.title for each in ALL}
    for chapter in chapters():
        ids = [id for id in known if id.startswith(f"{chapter}.")]
        assert ids == [f"{chapter}.{number}" for number in range(1, len(ids) + 1)]
        there = sorted((each.id for each in exercises(chapter)), key=lambda id: int(id.partition(".")[2]))
        assert there == [id for id in ids if known[id] != "(removed)"]


def spoil(value):
    """Add 1 to every array, list or tensor in `value` that can be written to; returns whether there was one."""
    if isinstance(value, np.ndarray) and value.size and value.flags.writeable and value.dtype.kind in "fiu":
        value += 1
        return True
    if isinstance(value, list) and value and isinstance(value[0], (int, float)):
        value[0] += 1
        return True
    if isinstance(value, (list, tuple)):
        return any([spoil(each) for each in value])
    if isinstance(value, dict):
        return any([spoil(each) for each in value.values()])
    if isinstance(value, Tensor):
        return spoil(value.data)
    if type(value).__module__ == "mlx.core" and value.size and "bool" not in str(value.dtype):
        value += 1
        return True
    return False


FUNCTIONS = [exercise for exercise in ALL if inspect.isfunction(exercise.solution) and not exercise.in_place]


@every("exercise", FUNCTIONS, ids=lambda exercise: exercise.id)
def test_an_answer_that_changes_its_arguments_gets_a_message(exercise):
    spoiled = []

    @functools.wraps(exercise.solution)
    def answer(*arguments):
        result = copy.deepcopy(exercise.solution(*arguments))
        spoiled.append(not inspect.isgenerator(result) and spoil(arguments))
        return result

    note = check(exercise.id, answer)
    if any(spoiled):
        assert not note.passed


def double(x):
    """Twice x."""
    return 2 * x


CASES = drawn(3, lambda rng: (rng.normal(size=3),))
DOUBLE = Exercise("99.1", "Double", "`double(x)`", 3, 1, double, hints=("Twice.", "`2 * x`"), cases=CASES)


def test_an_input_that_was_changed_spoils_a_right_result():
    def in_place(x):
        x *= 2
        return x

    assert "the right result, but also new numbers in what it was given" in DOUBLE.examine(in_place).message
    assert dataclasses.replace(DOUBLE, in_place=True).examine(in_place)

    def wrong_and_in_place(x):
        x *= 3
        return x

    assert "the right result" not in DOUBLE.examine(wrong_and_in_place).message


def test_slips_are_the_solution_with_lines_changed():
    mistakes = slips(
        double,
        """
thrice (2)
- return 2 * x
+ return 3 * x
! That is
! three.

@ return 2 * x
minus
+ x = -x
+ return x
or
+ return -x
! No.
zero
- return 2 * x
+ return 0 * x
! Nothing.
""",
    )
    assert [(it.name, it.hint, it.message, it.wrong(2.0)) for it in mistakes] == [
        ("thrice", 2, "That is three.", 6.0),
        ("minus", 1, "No.", -2.0),
        ("minus", 1, "No.", -2.0),
        ("zero", 1, "Nothing.", 0.0),
    ]
    exercise = dataclasses.replace(DOUBLE, mistakes=mistakes)
    assert "That is three." in exercise.examine(lambda x: x + x + x).message
    [one, two] = slips((1, 2), "swapped (2)\n+ (2, 1)\nor\n+ (2.0, 1.0)\n! Swapped.")
    assert (one.wrong, one.hint, two.wrong, two.message) == ((2, 1), 2, (2.0, 1.0), "Swapped.")


def test_variants_are_code_or_edits_with_the_names_of_the_solution_s_module():
    found = {
        name: (answer(2.0), words)
        for name, answer, words in variants(
            double,
            """
import math

# through the solution
def doubled(x):
    \"\"\"Twice x.\"\"\"

    return double(x)

# an expression
lambda x: math.fsum([x, x])

# an edit
- return 2 * x
+ return 3 * x
! That is three.
""",
        )
    }
    assert found == {"through the solution": (4, ""), "an expression": (4, ""), "an edit": (6, "That is three.")}


def grown(x):
    x = x + 1
    if x:
        x = x + 1
        print(x)
    return x


def test_the_first_of_the_nearest_mistakes_gives_the_message():
    def raising(words):
        def answer(x):
            raise ValueError(words)

        return answer

    by_three = [Mistake("three", lambda x: 3 * x, "First."), Mistake("sum", lambda x: x + x + x, "Second.")]
    far, near = [Mistake(words, raising(words), f"{words}!") for words in ("the cat sat here", "the cat sat down")]
    again = dataclasses.replace(near, message="Second.")
    note = dataclasses.replace(DOUBLE, mistakes=by_three).examine(lambda x: 3 * x)
    assert note.message.endswith(" First.")
    note = dataclasses.replace(DOUBLE, mistakes=[far, near, again]).examine(raising("the cat sat down"))
    assert note.message.endswith(" the cat sat down!")


def test_a_slip_that_no_longer_applies_is_an_error():
    with pytest.raises(ValueError, match=r"double has no line 'return 4 \* x' in its source"):
        slips(double, "four\n- return 4 * x\n+ return x\n! No.")
    for text in ("none\n! No.", "no message\n- return 2 * x\n+ return x", "- return 2 * x\n+ return x\n! No.", "! No."):
        with pytest.raises(ValueError, match="is not a mistake: expected a line with its name"):
            slips(double, text)


def test_the_source_before_a_diff_is_that_of_the_solution():
    assert patched(grown) == inspect.getsource(grown)
    assert edited(double)(2.0) == 4.0


LOOP = "if x:\n        x = x + 1", "while x:\n\n        x -= 1"


@pytest.mark.parametrize(
    ("diff", "before", "after"),
    [
        (["- return x", "+ return -x"], "return x", "return -x"),
        (["- print(x)"], "        print(x)\n", ""),
        (["  if x:", "+     y = 2"], "    if x:\n", "    if x:\n        y = 2\n"),
        (["  if x:", "-     x = x + 1", "+     x = 2"], "    if x:\n        x = x + 1\n", "    if x:\n        x = 2\n"),
        (["- x = x + 1", "  if x:"], "    x = x + 1\n    if x:", "    if x:"),
        (["- x = x + 1", "+ x = 2", "- x = x + 1", "+ x = 2"], "x = x + 1", "x = 2"),
        (["- x = x + 1", "  print(x)", "+ x = x + 1"], "x = x + 1\n        print(x)", "print(x)\n        x = x + 1"),
        (["- if x:", "-     x = x + 1", "+ while x:", "+", "+     x -= 1"], *LOOP),
    ],
)
def test_a_diff_changes_lines(diff, before, after):
    assert patched(grown, *diff) == inspect.getsource(grown).replace(before, after)


@pytest.mark.parametrize(
    ("diff", "words"),
    [
        (["- x = x + 1", "+ x = 2"], "grown has 'x = x + 1' in several places"),
        (["- x = x + 1"], "grown has 'x = x + 1' in several places"),
        (["  def grown(x):", "+     y = 0", "- x = x + 1"], "grown has 'x = x + 1' in several places"),
        (["- return x", "+ return y", "- print(x)", "+ y = 2"], "not in the order of its source"),
        (["- if x:", "-     print(x)"], "not next to each other"),
        (["- x = x + 1", "-     print(x)"], "not next to each other"),
        (["- return x", "+ return x"], "changes nothing"),
        (["+ x = 1"], "begins with '+ x = 1'"),
        (["x = 1"], "'x = 1' is not a line of a diff"),
        (["-x = x + 1"], "is not a line of a diff"),
    ],
)
def test_a_diff_that_fits_no_place_or_several_is_an_error(diff, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        patched(grown, *diff)


def paths(n):
    """The number of ways through n forks."""
    return 2**n


def test_brute_force_is_stopped_where_it_is_forbidden():
    exercise = dataclasses.replace(DOUBLE, solution=paths, cases=((3,), (40,)), work=20)

    def walk(n):
        return 1 if n == 0 else walk(n - 1) + walk(n - 1)

    assert "no result after 20 times the work of the kit's answer" in exercise.examine(walk).message
    assert exercise.examine(lambda n: 1 << n)


def test_an_import_inside_an_answer_is_not_work(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("total = sum(i for i in range(10_000))\n")
    monkeypatch.syspath_prepend(tmp_path)

    def answer():
        import slow_to_import

        return slow_to_import.total

    total, work = count_work(answer, limit=100)
    assert (total, work < 30) == (sum(range(10_000)), True)
    with pytest.raises(TooMuchWorkError):  # what comes after an import counts again
        count_work(lambda: (answer(), [i for i in range(1000)]), limit=100)


def test_the_previous_tracer_is_restored():
    before = sys.gettrace()
    count_work(lambda: sum(range(3)))
    assert sys.gettrace() is before


class Empty:
    """A class as the notebook shows it."""

    def __init__(self, size):
        """Keep the size."""
        ...

    def area(self): ...


def test_a_class_without_code_is_a_stub():
    class Started(Empty):
        def area(self):
            return 1

    class Inherits(Started): ...

    assert is_stub(Empty)
    assert not is_stub(Started)
    assert not is_stub(Inherits)


@pytest.mark.parametrize("ends_the_cell", [True, False])
def test_a_verdict_is_displayed_once_wherever_check_is_called(ends_the_cell):
    shell = InteractiveShell()
    shell.kernel = True
    shown = []
    with (
        mock.patch("IPython.get_ipython", return_value=shell),
        mock.patch("IPython.display.display", lambda data, raw: shown.append(data["text/plain"])),
    ):
        note = check("01.1", double)
        if ends_the_cell:
            note._ipython_display_()
        assert len(shown) == 1
        shell.execution_count += 1
        note._ipython_display_()
        assert shown == [repr(note)] * 2
