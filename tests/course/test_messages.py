"""Messages of check show the first place where two values differ, and a call that a reader can paste."""

import dataclasses
import inspect
import json
import math
import re
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.course import Exercise, check
from mlx_grpo_kit.course.calls import Calls, in_words, python_of
from mlx_grpo_kit.course.catalogue import chapters, exercises
from mlx_grpo_kit.course.compare import LONGEST_TEXT, Told, same, show, told_apart
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.scalar import Value
from tests.sizes import TWO_LAYERS

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = {"np": np, "mx": mx, "T": T, "Value": Value, "math": math, "Qwen3Config": Qwen3Config}
SENTENCE = "the quick brown fox jumps over the lazy dog, and " * 4


SHORT_CONFIG = (
    "Qwen3Config(vocab_size=5, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, "
    "num_key_value_heads=2, head_dim=8)"
)


@dataclass
class Sizes:
    hidden: int
    layers: int
    name: str = "a name that makes the whole text of this object longer than a message shows in one piece"


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        ([*range(37), 0, 38], [*range(39)], "a list whose part 38 is 0, expected 37"),
        ([*range(30)], [*range(40)], "a list of 30, expected 40: part 31 should be 30"),
        ([*range(41)], [*range(40)], "a list of 41, expected 40: part 41 is 40, where it should have ended"),
        ([*range(9), 0, *range(10, 42)], [*range(40)], "a list of 42 (expected 40) whose part 10 is 0, expected 9"),
        ([[[1, 2], [3, 4]]] * 20, [[[1, 2], [3, 4]]] * 19 + [[[1, 2], [3, 5]]], "part 20 is [[1, 2], [3, 4]],"),
        (({"w": [0] * 90}, 1), ({"w": [0] * 89 + [7]}, 1), "for w: a list whose part 90 is 0, expected 7"),
        ({"a": [0] * 99, "b": 1}, {"b": 2, "a": [0] * 99}, "for b: 1, expected 2"),
        ({"a": [0] * 99}, {"a": [0] * 99, "bias": 1}, "a dict without 'bias', expected exactly 'a', 'bias'"),
        ({"a": [0] * 99, "c": 1}, {"a": [0] * 99}, "a dict with 'c', expected exactly 'a'"),
        (SENTENCE + "x", SENTENCE + "y", "a text that differs at character 197: ...'r the lazy dog, and x', expected"),
        (SENTENCE[:-9], SENTENCE, "a text that differs at character"),
        (Sizes(4, 2), Sizes(4, 3), "for layers: 2, expected 3"),
        ([SENTENCE, "a"], [SENTENCE, "b"], "a list whose part 2 is 'a', expected 'b'"),
        ([np.zeros(3)] * 2, [np.zeros(3), np.zeros((2, 3))], "part 2 is array([0, 0, 0]) of shape (3,)"),
        (mx.zeros((9, 9)), mx.zeros((9, 9)) + mx.eye(9), "the one at [0, 0] is 0, expected 1"),
        (Told("two numbers that are equal"), {"w": SENTENCE, "b": SENTENCE}, "two numbers that are equal"),
        ([1.0] * 50, np.ones(60), "[1, 1, 1"),
        ([SENTENCE, 1, 2], [SENTENCE, 1, 3, 4], "a list of 3 (expected 4) whose part 3 is 2, expected 3"),
        ([(1, "a"), SENTENCE, 2], [(1, "a"), SENTENCE, 3], "a list whose part 3 is 2, expected 3"),  # cut, it is short
    ],
)  # fmt: skip
def test_a_difference_is_shown_where_it_is(got, expected, words):
    told = told_apart(got, expected)
    assert words in told
    assert len(told) < 3 * LONGEST_TEXT


def test_a_long_value_says_how_much_is_left_out():
    assert show([*range(1000)]).endswith(", ... 1,000 in all]")
    assert show({str(n): n for n in range(100)}).endswith(", ... 100 in all")
    assert show([[*range(1000)]] * 3).endswith(", ... 3 in all]")


def plain(exercise):
    return inspect.isroutine(exercise.solution) and exercise.run is Exercise.run


@pytest.mark.parametrize("chapter", chapters())
def test_a_pasted_call_has_the_arguments_of_the_case(chapter):
    """Evaluated with the names that the chapter's notebook imports, it gives the same values."""
    [notebook] = NOTEBOOKS.glob(f"{chapter}_*.ipynb")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    imported = "\n".join(re.findall(r"^(?:from|import) .*", source, flags=re.M))
    known = {name: value for name, value in NAMES.items() if re.search(rf"\b{name}\b", imported)}
    for exercise in filter(plain, exercises(chapter)):
        for case in exercise.cases:
            call = python_of("tuple_of", case)
            if call is None:
                continue
            again = eval(call, {**known, "tuple_of": lambda *given: given})
            for mine, theirs in zip(again, case, strict=True):
                assert callable(theirs) or same(mine, theirs), call
                assert getattr(mine, "dtype", None) == getattr(theirs, "dtype", None)


def test_a_function_of_one_expression_is_pasted_as_a_lambda():
    def square(x):
        """x * x"""
        return x * x

    def with_help(x):
        return check(x)

    def of_two_lines(x):
        y = x + 1
        return y * y

    half = lambda x, y: (x + y) / 2  # noqa: E731
    assert python_of("f", (square, 2.0)) == "f(lambda x: x * x, 2.0)"
    assert python_of("f", (half,)) == "f(lambda x, y: (x + y) / 2)"
    for other in (with_help, of_two_lines, np.sum, types, object(), [*range(1000)], "x" * 300, mx.zeros((50, 50))):
        assert python_of("f", (other,)) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([0.1, 1.0], np.float32), "np.array([0.1, 1.0], np.float32)"),
        (mx.array([0.1, 2.0]), "mx.array([0.1, 2.0])"),
        (mx.array([0.5]).astype(mx.bfloat16), "mx.array([0.5], mx.bfloat16)"),
        (np.array([[True], [False]]), "np.array([[True], [False]])"),
        (math.log(2), "0.6931471805599453"),
        ({"w": [1, None], 3: {2, 1}}, "{'w': [1, None], 3: {1, 2}}"),
        (float("-inf"), 'float("-inf")'),
        (Value(2.0), "Value(2.0)"),
        (Qwen3Config(**TWO_LAYERS, vocab_size=5), SHORT_CONFIG),
        (T.Tensor([1.0], requires_grad=True), "T.Tensor([1.0], requires_grad=True)"),
    ],
)
def test_a_value_as_python(value, text):
    assert python_of("f", (value,)) == f"f({text})"


def of_seed(sample, seed):
    """The sample of a seed."""
    return sample(seed)


def with_one(sample, seed):
    return seed


def with_length(numbers):
    return len(numbers)


def _ask(function, seed):
    numbers = [1, 2, 3]
    return function(lambda n: numbers[n], seed)


def _ask_twice(function, seed):
    return [function(int, seed + n) for n in (0, 1)]


def exercise_of(run, cases=((1,), (2,))):
    return Exercise("99.1", "A sample", "`of_seed(sample, seed)`", 2, 1, of_seed, ("One.", "Two."), cases, run=run)


def test_a_call_that_nobody_can_make_is_described_and_can_be_run_alone(monkeypatch):
    exercise = exercise_of(_ask)
    monkeypatch.setattr("mlx_grpo_kit.course.desk.find", lambda id, seed=None: exercise)

    def mine(sample, seed):
        return 7 if seed == 2 else sample(seed)

    note = check("99.1", mine)
    assert note.text.startswith("`of_seed` (tried with `seed = 2`) gave 7, expected 3.")
    assert '`check("99.1", mine, case=2)` runs this case alone' in note.text
    assert (check("99.1", mine, case=1), check("99.1", mine, case=2)) == (2, 7)
    with pytest.raises(ZeroDivisionError):
        check("99.1", lambda sample, seed: 1 / 0, case=1)
    with pytest.raises(IndexError, match=r"exercise 99\.1 has cases 1 to 2, not 3"):
        check("99.1", mine, case=3)


def test_a_wrong_answer_that_changes_its_input_gets_both_complaints():
    def mine(numbers):
        numbers.append(0)
        return len(numbers)

    exercise = exercise_of(lambda function, numbers: function(numbers), cases=(([1, 2],),))
    exercise = dataclasses.replace(exercise, solution=with_length)
    message = exercise.examine(mine).message
    assert message == "`with_length([1, 2])` gave 3, expected 2 (your code also changed what it was given)."


def test_the_call_that_the_answer_got_is_shown_if_there_was_only_one():
    exercise = exercise_of(lambda function, seed: [function(abs, Value(seed).data)])
    assert exercise.examine(lambda sample, seed: 0).message.startswith("`of_seed` (tried with")  # abs is not a lambda
    exercise = exercise_of(lambda function, seed: function(seed, [seed]), cases=((1,),))
    result = exercise.examine(lambda sample, seed: 0)
    assert (result.message, result.case) == ("`of_seed(1, [1])` gave 0, expected a TypeError.", 0)
    message = exercise_of(_ask_twice).examine(lambda sample, seed: 0).message
    assert message.startswith("`of_seed` (tried with `seed = 1`)")  # two calls: which of them is not known
    calls = Calls()
    fail = calls.watch(lambda n: 1 / n)
    for n in (2, 1, 0):
        try:
            fail(n)
        except ZeroDivisionError:
            assert calls.shown() == ((0,), {})
    calls = Calls()
    calls.watch(lambda numbers: numbers.clear())([1, 2])
    assert calls.shown() == (([1, 2],), {}), "the arguments as they were before the answer changed them"
    assert in_words("f", (1, "a"), lambda function, *case: None) == "`f` (tried with `1, 'a'`)"
    assert (
        in_words("f", (1, "a" * 99), lambda function, n, *case: None)
        == "`f` (tried with `n = 1, a text of 99 characters`)"
    )
    twice = exercise_of(lambda function, sample, seed: max(function(sample, seed), function(sample, seed)), ((abs, 2),))
    assert (
        twice.examine(lambda sample, seed: 3).message
        == "`of_seed` (tried with `sample = abs, seed = 2`) gave 3, expected 2."
    )
    twice = dataclasses.replace(twice, solution=with_one, cases=((None, 2),))
    assert twice.examine(lambda sample, seed: 3).message == "`with_one(None, 2)` gave 3, expected 2."  # which gives 2
