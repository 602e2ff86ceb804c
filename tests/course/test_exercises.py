"""Every exercise of the course: its solution passes, its stub is not attempted, each mistake gets its own message."""

import inspect
import types

import pytest

from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.catalogue import chapters, exercises

ALL = [exercise for chapter in chapters() for exercise in exercises(chapter)]
MISTAKES = [(exercise, mistake) for exercise in ALL for mistake in exercise.mistakes]


def stub_of(exercise):
    """The function as it stands in the notebook: the signature, a docstring, and ... for a body."""
    if not callable(exercise.solution):
        return ...
    name, space = exercise.solution.__name__, {}
    exec(f'def {name}{inspect.signature(exercise.solution)}:\n    """What to do."""\n    ...', space)
    return space[name]


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_the_solution_passes(exercise):
    note = check(exercise.id, exercise.solution)
    assert note.passed, note
    assert "Passed" in repr(note)


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_the_stub_is_not_attempted(exercise):
    note = check(exercise.id, stub_of(exercise))
    assert not note.passed
    assert "Not attempted" in repr(note)


@pytest.mark.parametrize(("exercise", "mistake"), MISTAKES, ids=[f"{e.id}-{m.name}" for e, m in MISTAKES])
def test_each_mistake_gets_its_own_message(exercise, mistake):
    note = check(exercise.id, mistake.wrong)
    assert not note.passed
    assert mistake.message in note.text
    assert f'hint("{exercise.id}", {mistake.hint})' in note.text
    assert 1 <= mistake.hint <= len(exercise.hints)


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_an_answer_that_fails_is_told_how(exercise):
    def broken(*arguments):
        raise RuntimeError("the cat sat on the keyboard")

    note = check(exercise.id, broken)
    assert not note.passed
    if isinstance(exercise.solution, types.FunctionType):
        assert "raised RuntimeError: the cat sat on the keyboard" in note.text


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_it_says_everything_a_learner_needs(exercise):
    assert len(exercise.hints) >= 2
    assert len(exercise.mistakes) >= 2
    assert len({mistake.message for mistake in exercise.mistakes}) == len(exercise.mistakes)
    assert 1 <= exercise.difficulty <= 3
    assert 2 <= exercise.minutes <= 30
    if callable(exercise.solution):
        assert exercise.solution.__name__ in exercise.prompt
        assert inspect.getdoc(exercise.solution)
        assert len(exercise.cases) >= 2


def test_ids_count_up_within_a_chapter():
    for chapter in chapters():
        assert [exercise.id for exercise in exercises(chapter)] == [
            f"{chapter}.{number}" for number in range(1, len(exercises(chapter)) + 1)
        ]


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_cases_stay_as_they_are(exercise):
    before = repr(exercise.cases)
    for mistake in exercise.mistakes:
        check(exercise.id, mistake.wrong)
    assert repr(exercise.cases) == before
