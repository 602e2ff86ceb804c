"""Answers that are broken, endless or much too large, or that change Python itself: check explains what is wrong."""

import builtins
import collections
import contextlib
import math
import os
import sys

import numpy as np
import pytest

from mlx_grpo_kit.course import Exercise, check
from mlx_grpo_kit.course.chapters.chapter_01.exercises import forward_slope
from mlx_grpo_kit.course.chapters.chapter_25.exercises import read_calls
from mlx_grpo_kit.course.compare import DEEPEST, LONGEST_ERROR, EndlessError, evaluate, same, show
from mlx_grpo_kit.runtime import mx

ANSWERED = ("01.1", "01.3", "05.2", "09.2", "11.4", "16.1")


def contains_itself():
    new = []
    new.append(new)
    return new


def contains_itself_twice():
    new = []
    new.extend([new, new])
    return new


def contains_itself_by_a_name():
    new = {}
    new["new"] = new
    return new


def very_deep():
    new = []
    for _ in range(100_000):
        new = [new]
    return new


def doubled():
    """A list of 2**60 numbers, made of sixty lists."""
    new = [1.0]
    for _ in range(60):
        new = [new, new]
    return new


def doubled_less_often():
    """A list of 2**30 numbers that is not nested too deep."""
    new = [1.0]
    for _ in range(30):
        new = [new, new]
    return new


class BrokenRepr:
    def __repr__(self):
        raise ValueError("no words")


class NoRepr:
    def __repr__(self):
        return None


class ShapeIsAMethod:
    def shape(self):
        return (2,)

    def tolist(self):
        return [1.0, 2.0]


class EverythingRaises:
    def __getattr__(self, name):
        raise RuntimeError(name)


class EverythingIsItself:
    def __getattr__(self, name):
        return self

    def __call__(self, *arguments, **named):
        return self


class NeverEqual:
    __hash__ = None

    def __eq__(self, other):
        raise KeyError("equal")

    def __float__(self):
        raise KeyError("float")


class CannotBeAnArray:
    def __array__(self, *arguments, **named):
        raise OSError("no array")


class BrokenNumber(float):
    def __format__(self, spec):
        raise RuntimeError("format")

    def __eq__(self, other):
        raise RuntimeError("equal")

    __hash__ = float.__hash__


HOSTILE = {
    "a list in itself": contains_itself,
    "a list in itself, twice": contains_itself_twice,
    "a dictionary in itself": contains_itself_by_a_name,
    "100,000 lists in each other": very_deep,
    "2**60 numbers": doubled,
    "2**30 numbers": doubled_less_often,
    "a list in itself, beside an array": lambda: [mx.array(1.0), contains_itself()],
    "10**400": lambda: 10**400,
    "-10**6000": lambda: -(10**6000),
    "a list of 10**6000": lambda: [10**6000] * 3,
    "a broken __repr__": BrokenRepr,
    "a list with a broken __repr__": lambda: [BrokenRepr()],
    "a __repr__ without a result": NoRepr,
    "a shape that is a method": ShapeIsAMethod,
    "a class with a shape that is a method": lambda: ShapeIsAMethod,
    "NumPy's class of arrays": lambda: np.ndarray,
    "attributes that raise": EverythingRaises,
    "attributes that are the object": EverythingIsItself,
    "an __eq__ that raises": NeverEqual,
    "an __array__ that raises": CannotBeAnArray,
    "a broken number": lambda: BrokenNumber(1.5),
    "10**12 numbers of NumPy": lambda: np.broadcast_to(0.0, (10**12,)),
    "10**11 numbers of MLX": lambda: mx.broadcast_to(mx.array(0.0), (10**5, 10**6)),
    "10**11 numbers of MLX that need memory": lambda: mx.zeros((10**5, 10**6)),
    "10**11 numbers of MLX in a list": lambda: [1.0, {"one": (mx.ones((10**5, 10**6)),)}],
    "no value": lambda: np.ma.masked_all((2, 2)),
    "records": lambda: np.zeros(3, "f4,i4"),
    "objects": lambda: np.array([10**400, None], object),
    "a module": lambda: np,
}


@pytest.mark.parametrize("id", ANSWERED)
@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_value_gets_a_message(id, make):
    for answer in (lambda *arguments, **named: make(), make()):
        note = check(id, answer)
        assert not note
        assert len(note.text) < 2000
        assert note._repr_html_()


def test_the_answer_names_what_is_wrong():
    assert (
        "gave a list or a dictionary that contains itself, or is nested"
        in check("01.1", lambda f, x, h: contains_itself()).text
    )
    assert "gave <BrokenRepr that cannot be shown>, expected 6.1" in check("01.1", lambda f, x, h: BrokenRepr()).text
    assert (
        "gave [<BrokenRepr that cannot be shown>], expected 6.1" in check("01.1", lambda f, x, h: [BrokenRepr()]).text
    )
    assert "gave 1000000000" in check("01.1", lambda f, x, h: 10**400).text
    assert "gave ShapeIsAMethod, expected 6.1" in check("01.1", lambda f, x, h: ShapeIsAMethod).text


def test_an_argument_that_is_put_into_itself():
    exercise = Exercise("99.1", "First", "`first(x)`", 2, 1, lambda x: x[0], ["a", "b"], cases=(([1.0, 2.0],),))

    def answer(x):
        x.append(x)
        return x[0]

    assert "gave a list or a dictionary that contains itself" in exercise.examine(answer).message


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError("no words")


class NonTextError(Exception):
    def __str__(self):
        return 7


class OwnExit(BaseException):
    pass


def exception_group():
    return ExceptionGroup("g" * 10**6, [ValueError("x")] * 100)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (UnprintableError, "raised UnprintableError: (its text cannot be shown). Expected 6.1"),
        (NonTextError, "raised NonTextError: (its text cannot be shown)"),
        (OwnExit, "raised OwnExit. Expected 6.1"),
        (GeneratorExit, "raised GeneratorExit"),
        (lambda: ValueError("x" * 10**7), "raised ValueError: xxx"),
        (lambda: SystemExit("a\n" * 10**6), "raised SystemExit: a"),
        (lambda: ValueError(contains_itself()), "raised ValueError: [[...]]"),
        (lambda: ValueError(very_deep()), "raised ValueError: (its text cannot be shown)"),
        (lambda: ValueError("half \ud800 a letter"), "raised ValueError: half \\ud800 a letter"),
        (exception_group, "raised ExceptionGroup: ggg"),
    ],
)
def test_a_hostile_exception_gets_a_message(make, words):
    def answer(f, x, h):
        raise make()

    note = check("01.1", answer)
    assert words in note.text
    assert len(note.text) < LONGEST_ERROR + 200
    assert note._repr_html_().encode()


def test_an_interrupt_goes_through():
    def answer(f, x, h):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("01.1", answer)


def test_a_loop_that_catches_everything_is_stopped_where_work_is_limited():
    exercise = Exercise("99.1", "Sum", "`total(x)`", 2, 1, sum, ["a", "b"], cases=(([1.0, 2.0],),), work=50)

    def answer(x):
        while True:
            with contextlib.suppress(Exception):
                x[0]

    assert "no result after 50 times the work" in exercise.examine(answer).message


def test_a_child_that_the_answer_forks_does_not_come_back():
    read, write = os.pipe()

    def answer(f, x, h):
        if child := os.fork():
            os.waitpid(child, 0)
        return forward_slope(f, x, h)

    parent = os.getpid()
    note = check("01.1", answer)
    os.write(write, b"parent" if os.getpid() == parent else b"child")
    if os.getpid() != parent:
        os._exit(1)
    os.close(write)
    with os.fdopen(read) as said:
        assert said.read() == "parent"
    assert note


def test_a_child_ends_with_the_call_that_forked_it(tmp_path):
    """Otherwise the children of an answer that is called n times continue to fork, and become 2**n processes."""
    calls = tmp_path / "calls"

    def run(function, x):
        for _ in range(8):
            with calls.open("a") as file:
                file.write("x")
            function(x)
        return 1.0

    def answer(x):
        if child := os.fork():
            os.waitpid(child, 0)

    exercise = Exercise("99.1", "One", "`one(x)`", 2, 1, lambda x: None, ["a", "b"], cases=((1.0,),), run=run)
    exercise.examine(answer)
    assert calls.read_text() == "x" * (8 + 8)  # the solution's calls and the answer's


REPLACED = [
    (np, "allclose", lambda *arguments, **named: True),
    (np, "asarray", lambda *arguments, **named: 3),
    (math, "isclose", lambda *arguments, **named: True),
    (builtins, "isinstance", lambda *arguments: True),
    (builtins, "len", lambda value: 1),
    (mx, "eval", lambda *arguments: 1 / 0),
]


@pytest.mark.parametrize("id", ["01.1", "05.2", "09.2"])
@pytest.mark.parametrize(
    ("module", "name", "other"), REPLACED, ids=[f"{module.__name__}.{name}" for module, name, _ in REPLACED]
)
def test_a_replaced_function_is_put_back_and_named(id, module, name, other):
    before = getattr(module, name)

    def answer(*arguments, **named):
        setattr(module, name, other)
        return 123.0

    note = check(id, answer)
    assert getattr(module, name) is before
    assert not note
    assert f"gave no result to compare, because it replaced {module.__name__}.{name} (check" in note.text


def test_a_deleted_function_is_put_back():
    def answer(f, x, h):
        del np.allclose
        return forward_slope(f, x, h)

    assert "replaced numpy.allclose" in check("01.1", answer).text
    assert same([1.0], np.array([1.0]))


def test_lists_that_are_long_or_deep_are_still_answers():
    deep = 1.0
    for _ in range(DEEPEST - 1):
        deep = [deep]
    evaluate(deep)
    with pytest.raises(EndlessError, match="nested more than 32 deep"):
        evaluate([[deep]])
    shared = [1.0]
    evaluate([[shared, shared], (shared,), {"a": shared}])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([[1.0], [[2.0]]], "[[1], [[2]]]"),
        ([1] * 10**6, "[1, 1, 1"),
        ("x" * 10**7, "'xxx"),
        (dict.fromkeys(range(10**6)), "0: None, 1: None"),
        (contains_itself(), "[[[[[[[[...]]]]]]]]"),
        ({"a": [BrokenRepr()]}, "a: [<BrokenRepr that cannot be shown>]"),
        (EverythingIsItself(), "<test_hostile_answers.EverythingIsItself object"),
    ],
)
def test_show_is_short_and_never_raises(value, words):
    text = show(value)
    assert words.removeprefix("<test_hostile_answers.") in text
    assert len(text) < 170


def test_the_limit_of_recursion_does_not_matter():
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(400)
        assert not check("01.1", lambda f, x, h: very_deep())
    finally:
        sys.setrecursionlimit(limit)


def test_an_answer_that_should_only_read_runs_nothing():
    ran = []

    def by_name(text):
        return eval("ran.append(1)", {"ran": ran})

    def by_module(text):
        try:
            builtins.exec("ran.append(1)", {"ran": ran})
        except BaseException:
            return [("a", {})]

    def by_library(text):
        collections.namedtuple("Call", "name arguments")  # Python's own `eval`
        return read_calls(text)

    own = eval, exec
    for answer in (by_name, by_module):
        assert "which runs whatever a model wrote" in check("25.2", answer).text
    assert check("25.2", by_library).passed
    assert ran == []
    assert (builtins.eval, builtins.exec) == own
