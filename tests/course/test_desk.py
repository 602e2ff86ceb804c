"""check, hint, solution, use and progress, as a learner would misuse them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course import Exercise, Mistake, check, hint, progress, record, solution, use
from mlx_grpo_kit.course.chapters.chapter_01.exercises import central_slope, forward_slope
from mlx_grpo_kit.course.compare import Told, same, show, told_apart
from mlx_grpo_kit.course.exercise import is_stub
from mlx_grpo_kit.files.atomic import LOCK
from mlx_grpo_kit.tensor import Tensor


def test_a_wrong_answer_gets_its_input_and_the_expected_result():
    note = check("01.1", lambda f, x, h: 0.0)
    assert "`forward_slope(lambda x: x * x, 3.0, 0.1)` gave 0, expected 6.1." in note.text
    assert 'hint("01.1", 1)' in note.text
    assert not note


def test_a_forgotten_return():
    def answer(f, x, h):
        (f(x + h) - f(x)) / h

    note = check("01.1", answer)
    assert "returned None, expected 6.1." in note.text
    assert "Is there a `return`?" in note.text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda f: 1.0, "raised TypeError"),
        (lambda f, x, h: 1 / 0, "raised ZeroDivisionError: division by zero. Expected 6.1"),
        (lambda f, x, h: exit(), "raised SystemExit"),
        (lambda f, x, h: "6.1", "gave '6.1', expected 6.1"),
        (lambda f, x, h: [6.1], "gave [6.1], expected 6.1"),
        (6.1, "Pass the function itself, without parentheses"),
        ("forward_slope", "Pass the function itself"),
    ],
)
def test_slips_get_their_messages(answer, words):
    note = check("01.1", answer)
    assert not note
    assert words in note.text


@pytest.mark.parametrize("answer", [None, ...])
def test_none_and_ellipsis_are_not_attempted(answer):
    assert "Not attempted" in check("01.1", answer).heading
    assert "Not attempted" in check("01.3", answer).heading
    assert "Not attempted" in check("01.3").heading


def test_a_value_near_the_right_one_passes():
    assert check("01.3", [-3, 2, 1.0000000001])
    assert check("01.3", (-3, 2, 7)).text.startswith("(-3, 2, 7) is not it. 2 of the 3 are right.")
    assert check("01.3", (-3, 2)).text.startswith("(-3, 2) is not a tuple of 3")
    assert check("01.3", -3).text.startswith("-3 is not a tuple of 3")
    assert "swapped" in check("01.3", (2, -3, 1)).text


@pytest.mark.parametrize("ask", [check, hint, solution])
def test_an_unknown_exercise_gets_a_list_of_the_known_ones(ask):
    assert "there is no exercise '01.99'; this chapter has 01.1, 01.2" in ask("01.99").text
    assert "chapter '99' has no exercises; these have: 01, 02" in ask("99.1").text
    assert ask(None).text


def test_hints_grow_stronger():
    assert hint("01.1").heading == "Hint 1 of 3 · 01.1"
    assert hint("01.1").heading == "Hint 2 of 3 · 01.1"
    assert 'solution("01.1") is left' in hint("01.1").text
    assert hint("01.1").heading == "Hint 3 of 3 · 01.1"
    assert hint("01.1", 1).heading == "Hint 1 of 3 · 01.1"
    assert hint("01.1").heading == "Hint 2 of 3 · 01.1"
    assert "hints 1 to 3" in hint("01.1", 7).text


def test_the_solution_is_shown_as_code():
    assert solution("01.1").code.startswith("def forward_slope(f, x, h):")
    assert "return (f(x + h) - f(x)) / h" in solution("01.1")._repr_html_()
    assert solution("01.3").code == "(-3.0, 2.0, 1.0)"


def test_use_returns_your_answer_if_it_passed_and_the_kits_otherwise():
    def mine(f, x, h):
        return (f(x + h) - f(x)) / h

    assert use("01.1") is forward_slope
    check("01.1", central_slope)
    assert use("01.1") is forward_slope
    check("01.1", mine)
    assert use("01.1").__wrapped__ is mine
    with pytest.raises(LookupError, match=r"no exercise '01.99'"):
        use("01.99")


def test_progress_is_kept_in_a_file(monkeypatch):
    assert repr(progress("01")).startswith("chapter 01: 0 of 5 exercises passed")
    check("01.1", forward_slope)
    assert json.loads(record.progress_file().read_text()) == ["01.1"]
    monkeypatch.setattr(record, "passed_here", {})  # as after a restart of the kernel
    view = progress("01")
    assert (view.done, view.total) == (1, 5)
    assert "\N{CHECK MARK} 01.1 The slope between two points" in repr(view)
    assert "\N{WHITE CIRCLE} 01.2" in view._repr_html_()
    assert progress().done == 1
    assert "1/5 01" in repr(progress())


BROKEN = [b"", b"{", b"7", b"null", b'{"a": 1}', b"\xff", b"[" * 100_000, b"[" + b"1" * 5000 + b"]", b'["01.2", 3]']


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_progress_file_counts_as_empty_and_is_kept(content):
    file = record.progress_file()
    file.write_bytes(content)
    assert progress("01").done == 0
    note = check("01.1", forward_slope)
    aside = file.with_name("progress.json.damaged")
    assert note
    assert f"The old one is kept as {aside}." in note.text
    assert aside.read_bytes() == content
    assert json.loads(file.read_text()) == ["01.1"]
    assert "damaged" not in check("01.2", central_slope).text
    file.write_bytes(b"again")
    check("01.1", forward_slope)
    assert file.with_name("progress.json.damaged2").read_bytes() == b"again"
    assert aside.read_bytes() == content


def test_the_ids_of_another_version_are_kept():
    record.progress_file().write_text('["77.7"]')
    check("01.1", forward_slope)
    assert json.loads(record.progress_file().read_text()) == ["01.1", "77.7"]


def make_pipe(path):
    os.mkfifo(path)


@pytest.mark.parametrize("make", [make_pipe, Path.mkdir, lambda path: path.symlink_to("/dev/null")])
def test_a_place_that_is_not_a_file_is_left_alone(make):
    place = record.progress_file()
    make(place)
    before = place.lstat()
    assert check("01.1", forward_slope)
    assert progress("01").done == 1
    assert place.lstat() == before
    assert {each.name for each in place.parent.iterdir()} == {place.name, "answers.json", "tries.json", LOCK}


def test_without_a_home(monkeypatch):
    monkeypatch.delenv(record.PLACE)
    monkeypatch.setattr(Path, "home", no_home)
    assert check("01.1", forward_slope)
    assert progress("01").done == 1


def no_home():
    raise RuntimeError("Could not determine home directory.")


def test_a_place_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(record.PLACE, str(tmp_path / "file" / "progress.json"))
    assert check("01.1", forward_slope)
    assert progress("01").done == 1


def test_messages_cannot_become_markup():
    def answer(f, x, h):
        return "<script>alert(1)</script>"

    html = check("01.1", answer)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "<code style=" in html


def stub_with_docstring(x):
    """What to do."""
    ...


def stub_with_pass(x):
    pass


def stub_returning_nothing(x):
    return ...


def one_line(x):
    return x


def constant(x):
    return 3.0


@pytest.mark.parametrize(
    ("function", "stub"),
    [
        (stub_with_docstring, True), (stub_with_pass, True), (stub_returning_nothing, True), (one_line, False),
        (constant, False), (len, False), (3, False),
    ],
)  # fmt: skip
def test_is_stub(function, stub):
    assert is_stub(function) is stub


@pytest.mark.parametrize(
    ("got", "expected", "equal"),
    [
        (1.0 + 1e-9, 1.0, True), (1.001, 1.0, False), (1, 1.0, True), (True, 1.0, False), (1, True, False),
        (float("nan"), float("nan"), True), ([1, (2, 3)], (1, [2, 3]), True), ([1], [1, 2], False), ("1", 1, False),
        ({"a": 1.0}, {"a": 1}, True), ({"b": 1}, {"a": 1}, False), (ValueError("x"), ValueError("y"), True),
        (ValueError("x"), 1.0, False), ("same", "same", True), (None, 0.0, False),
    ],
)  # fmt: skip
def test_same(got, expected, equal):
    assert same(got, expected) is equal


def test_arrays_and_their_scalars():
    assert same(np.float64(2), 2.0)
    assert same(np.array(2.0), 2.0)
    assert same([1.0, 2.0], np.array([1.0, 2.0]))
    assert not same([1.0, 2.0, 3.0], np.array([1.0, 2.0]))


@pytest.mark.parametrize("answer", [None, "text", [[1.0, 2.0], [3.0]], len, Tensor([1.0, 2.0], requires_grad=True)])
def test_an_answer_that_is_not_an_array_does_not_equal_an_array(answer):
    assert not same(answer, np.array([1.0, 2.0]))
    assert not same(answer, np.array(1.0))


def test_an_array_does_not_equal_a_text_or_none():
    assert not same(np.array([1.0, 2.0]), None)
    assert not same(np.array([1.0, 2.0]), "two")


def doubling(cases=((1.0,), (2.0,)), **settings):
    return Exercise("99.1", "Double", "`double(x)`", 2, 1, double, hints=("Twice.", "`2 * x`"), cases=cases, **settings)


def test_arrays_are_shown_with_their_shape():
    assert show(np.array([[1.0, 2.5]])) == "array([[1, 2.5]])"
    assert show(np.zeros((4, 5))) == "array of shape (4, 5)"
    exercise = doubling(cases=((np.ones((1, 2)),),))
    assert exercise.examine(lambda x: 2 * x[0]).message == (
        "`double(np.array([[1.0, 1.0]]))` gave array([2, 2]) of shape (2,), expected array([[2, 2]]) of shape (1, 2)."
    )
    assert exercise.examine(lambda x: 3 * x).message == (
        "`double(np.array([[1.0, 1.0]]))` gave array([[3, 3]]), expected array([[2, 2]])."
    )


def test_a_tuple_of_shapes_and_the_count_of_right_parts():
    exercise = Exercise("99.2", "Shapes", "Give three shapes.", 2, 1, ((2,), (3,), None), ["a", "b"])
    assert exercise.examine(((2,), (3,), None))
    assert exercise.examine(((2,), (4,), (1,))).message == "((2,), (4,), (1,)) is not it. 1 of the 3 is right."
    assert exercise.examine((2, 3)).message == "(2, 3) is not a tuple of 3 answers."


def test_show_is_short():
    assert show([1.0, 2.123456789, len]) == "[1, 2.12346, len]"
    assert show((1.0,)) == "(1,)"
    assert show(number for number in (1.0, 2.0)) == "a generator (make a tuple or an array of it)"
    assert len(show("x" * 1000)) < 200


def test_an_exercise_that_a_reader_makes():
    exercise = doubling(cases=((1,), (2,)), mistakes=[Mistake("square", lambda x: x * x, "That is the square.", 2)])
    assert exercise.heading == "Exercise 99.1 · Double (2 min, \N{BLACK CIRCLE}\N{WHITE CIRCLE}\N{WHITE CIRCLE})"
    assert exercise.examine(lambda x: x + x).status == "passed"
    assert exercise.examine(lambda x: x * x).hint == 2
    assert exercise.examine(lambda x: x * x if x < 2 else 5).message == "`double(1)` gave 1, expected 2."


def double(x):
    return 2 * x


def test_the_message_names_the_result_and_the_expected_result():
    ramp = np.arange(20.0).reshape(4, 5)
    almost = ramp.copy()
    almost[2, 3] = np.nan
    almost[3, 0] = 7
    one, two = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    assert told_apart(almost, ramp) == (
        "an array of shape (4, 5) with 2 of 20 elements wrong: the one at [2, 3] is nan, expected 13"
    )
    assert told_apart(ramp.T, ramp) == "array of shape (5, 4), expected array of shape (4, 5)"
    assert told_apart(one, ramp) == "array([1, 2]) of shape (2,), expected array of shape (4, 5)"
    assert told_apart((one, one), (one, two)) == "a tuple whose part 2 is array([1, 2]), expected array([3, 4])"
    assert told_apart([one, 5], (one, two)) == "a list whose part 2 is 5, expected array([3, 4])"
    assert told_apart(one, (one, two)) == "array([1, 2]), expected (array([1, 2]), array([3, 4]))"
    assert told_apart([1], np.array([2.0])) == "[1], expected array([2])"
    assert told_apart(1.23456789, 1.2345678) == "1.23456789, expected 1.2345678"
    assert (
        told_apart(np.array([0.5, 1.0000004]), np.array([0.5, 1.0]))
        == "array([0.5, 1.0000004]), expected array([0.5, 1])"
    )
    assert told_apart((1, 2), (1, 3)) == "(1, 2), expected (1, 3)"
    for tensor in (T.Tensor(ramp, requires_grad=True), torch.tensor(ramp, requires_grad=True), np.full((4, 5), "x")):
        assert told_apart(tensor, ramp).endswith(", expected array of shape (4, 5)")


def test_of_two_mistakes_with_the_same_error_type_the_one_with_the_same_message_is_reported():
    def no_backward(x):
        return 2.0 * None

    def raw_memory(x):
        return 2.0 * memoryview(b"x")

    def half(x):
        return None * 2.0

    exercise = doubling(
        mistakes=(
            Mistake("none", no_backward, "Where is the number?"),
            Mistake("memory", raw_memory, "That is memory."),
        )
    )
    assert "That is memory." in exercise.examine(raw_memory).message
    assert "Where is the number?" in exercise.examine(no_backward).message
    assert "Where is the number?" in exercise.examine(half).message  # nearly its words: the first mistake that fits
    note = exercise.examine(lambda: 2.0)  # close to neither of the two messages
    assert "takes 0 positional arguments but 1 was given. Expected 2." in note.message
    assert "number?" not in note.message
    assert "memory" not in note.message


def test_the_description_of_an_answer_has_no_quotes_in_a_message():
    exercise = doubling(run=lambda function, x: Told("nothing at all") if function(x) is None else function(x))
    assert "gave nothing at all, expected 2." in exercise.examine(lambda x: print(end="")).message


@pytest.mark.parametrize("answer", ["ABC", "abc", "A, B, C", "A B C", ["A", "B", "C"], ("a", "b", "c")])
def test_letters_may_be_written_in_other_ways(answer):
    exercise = Exercise("99.1", "Letters", "Three letters.", 3, 1, "ABC", hints=("One.", "Two."))
    assert exercise.examine(answer)
    assert exercise.examine("ABD").message == "'ABD' is not it. 2 of the 3 are right."
    for wrong in ("AB", 7, ["A", 2], np.array([1.0, 2.0])):
        assert "is not a string of 3 letters." in exercise.examine(wrong).message


def test_an_answer_that_returns_elsewhere_is_not_asked_for_a_return():
    note = check("07.6", lambda ours, theirs, tolerance: ("weight", (1, 0)) if np.isnan(ours["weight"]).any() else None)
    assert "returned None, expected ('bias', (1,))." in note.text
    assert "Is there a `return`?" not in note.text


def test_numpys_numbers_are_shown_as_numbers():
    assert show((np.int64(3), np.float64(0.5), np.array(2))) == "(3, 0.5, 2)"
