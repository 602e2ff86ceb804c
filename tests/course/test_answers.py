"""Passed answers are stored as source and used in other kernels; their results get the types that later cells need."""

import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

from mlx_grpo_kit.course import my_code, record, use
from mlx_grpo_kit.course.answers import NotKeptError, answers_file, as_one_file, keep, read_answers, source_of
from mlx_grpo_kit.course.catalogue import chapters, exercises, find
from mlx_grpo_kit.course.compare import as_numpy, same, shape_of
from mlx_grpo_kit.course.kinds import as_the_solution_returns, example_of, in_kind_of
from mlx_grpo_kit.runtime import mx

IN_A_NOTEBOOK = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in sys.argv[1:]:
    result = shell.run_cell(cell)
    result.raise_error()
"""
FIRST_DAY = (
    "import math\nimport numpy as np\nfrom mlx_grpo_kit.course import check, use\nHALF = 0.5",
    "def ahead(f, x, h):\n    return f(x + h)\n\ndef behind(f, x, h):\n    return f(x - h)",
    "%time 1 + 1\ndef mine(f, x, h):\n    # my own words\n"
    "    return HALF * (ahead(f, x, h) - behind(f, x, h)) / np.float64(h)\n"
    'print("no definition")\nassert check("01.2", mine)',
    'assert check("01.3", (-3, 2, 1.0))',
)
NEXT_DAY = (
    "import inspect\nfrom mlx_grpo_kit.course import my_code, use",
    'found = use("01.2")\nprint(found(lambda x: x * x, 3.0, 0.1), "my own words" in inspect.getsource(found))',
    'print(use("01.3"))\nuse("01.1")',
    'print(my_code("my_code.py").read_text())',
)


def in_a_notebook(folder, *cells):
    environment = {**os.environ, "MLX_GRPO_KIT_PROGRESS": str(folder / "progress.json"), "IPYTHONDIR": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", IN_A_NOTEBOOK, *cells],
        capture_output=True, text=True, check=True, cwd=folder, env=environment, timeout=120,
    ).stdout  # fmt: skip


def test_a_stored_answer_is_used_in_another_notebook(tmp_path):
    in_a_notebook(tmp_path, *FIRST_DAY)
    said = in_a_notebook(tmp_path, *NEXT_DAY)
    assert "01.2: yours, from chapter 01 (20" in said
    assert "6.0" in said
    assert "True" in said
    assert "no definition" not in said.partition('"""')[0]
    assert "(-3, 2, 1.0)" in said
    assert "01.1: the kit's (you have not passed it yet)" in said
    code = (tmp_path / "my_code.py").read_text()
    space = {}
    exec(compile(code, "my_code.py", "exec"), space)
    assert space["mine"](lambda x: x * x, 3.0, 0.1) == pytest.approx(6)
    assert space["answer_01_3"] == (-3, 2, 1.0)
    assert 'print("no definition")' not in code


@pytest.fixture
def cell():
    """A function that runs source as a notebook's cell and returns the names that it defines."""
    import linecache

    def run(source, **names):
        file = f"<cell {len(linecache.cache)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        module = types.ModuleType("__main__")
        vars(module).update(names)
        exec(compile(source, file, "exec"), vars(module))
        return vars(module)

    return run


def test_the_dependencies_of_an_answer_come_first(cell):
    space = cell(
        "import functools\nimport mlx_grpo_kit.tensor as T\nfrom mlx_grpo_kit.course.compare import same as equal\n"
        "LIMIT, NAMES = 3, {'a': [1, 2.5]}\n"
        "def twice(x):\n    return 2 * x\n"
        "class Base:\n    size = 4\n    def grow(self):\n        return twice(self.size)\n"
        "class Mine(Base):\n    def grow(self):\n        return super().grow() + LIMIT + len(NAMES)\n"
        "@functools.cache\ndef count(n):\n    return n if n < 2 else count(n - 1) + count(n - 2)\n"
        "def use_all(x):\n    return [each + count(5) for each in T.exp(x).data if not equal(each, 0)]\n"
        "short = lambda x: twice(x) + LIMIT\n"
    )
    name, source = source_of(space["Mine"])
    again = cell(source)
    assert again[name]().grow() == 8 + 3 + 1
    name, source = source_of(space["use_all"])
    assert "import mlx_grpo_kit.tensor as T" in source
    assert "from mlx_grpo_kit.course.compare import same as equal" in source
    import mlx_grpo_kit.tensor as T

    assert cell(source)[name](T.Tensor([0.0, 0.0])) == [6.0, 6.0]
    name, source = source_of(space["short"])
    assert cell(source)[name](2) == 7
    assert source_of((1, "a", 2.5)) == ("answer", "answer = (1, 'a', 2.5)\n")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("data = object()\ndef mine():\n    return data", "it needs `data`, which is object of this notebook"),
        (
            "def make():\n    n = 1\n    def mine():\n        return n\n    return mine\nmine = make()",
            "made inside another",
        ),
        ("import functools\nmine = functools.partial(max, 1)", "not a function or class with lines of its own"),
        ("import numpy as np\nmine = np.add", "not a function or class with lines of its own"),
        ("mine = len", "not a function or class with lines of its own"),
        ("f, mine = (lambda: 1), (lambda: 2)", None),
        ("mine = (lambda: 1, lambda: 2)[1]", "its source was not found"),
    ],
)
def test_an_answer_that_cannot_be_stored_is_reported(cell, source, reason):
    mine = cell(source)["mine"]
    if reason is None:
        reason = "its source was not found"
    with pytest.raises(NotKeptError, match=reason):
        source_of(mine)


def test_the_newest_versions_are_kept_and_damage_loses_nothing_else(cell, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(record.PLACE, str(tmp_path / "progress.json"))
    monkeypatch.setattr(record, "passed_here", {})
    monkeypatch.setattr("mlx_grpo_kit.course.desk.passed_here", {})
    for number in range(8):
        keep(tmp_path, "01.1", cell(f"def mine(f, x, h):\n    return {number}")["mine"])
        keep(tmp_path, "01.1", cell(f"def mine(f, x, h):\n    return {number}")["mine"])
    assert [each.source[-2] for each in read_answers(tmp_path)["01.1"]] == list("34567")
    assert use("01.1")(None, 0, 0) == 7
    content = json.loads(answers_file(tmp_path).read_text())
    content["01.1"][-1]["source"] = "def mine(:"
    answers_file(tmp_path).write_text(json.dumps(content))
    assert use("01.1") is find("01.1").solution
    assert "cannot be loaded: SyntaxError" in capsys.readouterr().out
    for damaged in ("", "[]", "7", '{"01.1": 3}', '{"01.1": [{}]}', "[" * 100_000):
        answers_file(tmp_path).write_text(damaged)
        assert read_answers(tmp_path) == {}
        with pytest.raises(ValueError, match="no answers yet"):
            my_code(tmp_path / "mine.py")
    keep(tmp_path, "01.1", cell("def mine(f, x, h):\n    return 1")["mine"])
    (tmp_path / "other.py").write_text("print(1)\n")
    with pytest.raises(FileExistsError, match=r"other\.py is not a file of my_code"):
        my_code(tmp_path / "other.py")
    assert my_code(my_code(tmp_path / "mine.py")).exists()


def test_names_with_two_meanings_are_distinguished_in_the_file(cell, tmp_path):
    first = (
        "SCALE = 2\ndef helper(x, scale=1):\n    return SCALE * x * scale\ndef one(x):\n    return helper(x, scale=3)"
    )
    second = "SCALE = 5\ndef helper(x, scale=1):\n    return SCALE + x\ndef two(x):\n    return helper(x) + x.real"
    third = "SCALE = 2\ndef helper(x, scale=1):\n    return SCALE * x * scale\ndef three(x):\n    return helper(x) - 1"
    for id, source, name in (("02.1", first, "one"), ("02.10", second, "two"), ("02.2", third, "three")):
        keep(tmp_path, id, cell(source)[name])
    code = as_one_file({id: versions[-1] for id, versions in read_answers(tmp_path).items()}, {"02.1": "One"})
    space = {}
    exec(compile(code, "my_code.py", "exec"), space)
    assert (space["one"](1), space["two"](1), space["three"](1)) == (6, 7, 1)
    assert code.count("def helper(") == 1
    assert "def helper_02_10(x, scale=1):" in code
    assert "# 02.1 One" in code


FUNCTIONS = [each for chapter in chapters() for each in exercises(chapter) if callable(each.solution)]
KINDS = {
    "NumPy": as_numpy,
    "lists": lambda value: as_numpy(value).tolist(),
    "torch": lambda value: torch.tensor(as_numpy(value)),
    "MLX": lambda value: mx.array(as_numpy(value)),
}


def other_kind(value, convert):
    if isinstance(value, dict):
        return {key: other_kind(each, convert) for key, each in value.items()}
    if isinstance(value, list | tuple) and not all(isinstance(each, int | float) for each in value):
        return type(value)(other_kind(each, convert) for each in value)
    try:
        return convert(value)
    except Exception:
        return value


def kinds(value):
    if isinstance(value, dict):
        return {key: kinds(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value), [*map(kinds, value)]
    return type(value) if shape_of(value) else "number"  # a number, a text, or an array of one number


@pytest.mark.parametrize("exercise", FUNCTIONS, ids=[each.id for each in FUNCTIONS])
def test_accepted_results_are_returned_in_the_types_of_the_solution(exercise):
    case = exercise.cases[0] if exercise.cases else None
    example = example_of(exercise.id) if case else None
    if example is None:
        return
    calls = []
    expected = exercise.try_out(lambda *given, **named: calls.append(1) or exercise.solution(*given, **named), case)
    if len(calls) > 100:  # a random draw, thousands of times
        return
    for convert in KINDS.values():

        def answer(*arguments, convert=convert, **named):
            return other_kind(exercise.solution(*arguments, **named), convert)

        if not same(exercise.try_out(answer, case), expected):
            continue
        returned = []

        def spy(*arguments, answer=answer, returned=returned, **named):
            returned.append(as_the_solution_returns(exercise, answer)(*arguments, **named))
            return returned[-1]

        assert same(exercise.try_out(spy, case), expected)
        assert kinds(returned[0]) == kinds(example)


def test_a_compiled_answer_sees_no_arrays_of_the_exercise():
    from mlx_grpo_kit.autograd import compile_value_and_grad

    exercise = find("09.5")
    loss_fn = as_the_solution_returns(exercise, lambda params: (params["w"] ** 2).sum())
    loss, grads = compile_value_and_grad(loss_fn)({"w": mx.array([3.0])})
    assert (loss.item(), grads["w"].item()) == (9, 6)


def test_numbers_with_a_gradient_keep_it():
    def total(x):
        return in_kind_of(mx.zeros(2), [x[0] * 2, x[1] * 3]).sum()

    assert mx.grad(total)(mx.array([1.0, 1.0])).tolist() == [2, 3]
    assert in_kind_of([0.5], np.array([1.0, 2.0])) == [1.0, 2.0]
    assert in_kind_of((0.5, mx.zeros(2)), [torch.tensor(1.0), [1, 2]])[0] == 1.0
    assert in_kind_of("text", 3) == 3
