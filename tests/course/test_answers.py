"""Passed answers are stored as source and used in other kernels; their results get the types that later cells need."""

import errno
import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest
import torch

from mlx_grpo_kit.course import Exercise, catalogue, check, my_code, record, use
from mlx_grpo_kit.course.answers import Kept, NotKeptError, answers_file, as_one_file, keep, read_answers, source_of
from mlx_grpo_kit.course.catalogue import chapters, check_of, exercises, find
from mlx_grpo_kit.course.compare import as_numpy, same, shape_of
from mlx_grpo_kit.course.kinds import as_the_solution_returns, example_of, in_kind_of
from mlx_grpo_kit.files import one_writer
from mlx_grpo_kit.files.atomic import LOCK
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


def kept_in(folder):
    """The stored answers, in a file without damage."""
    answers, damage = read_answers(folder)
    assert damage == ""
    return answers


def forward(number):
    """An answer to 01.1 that passes, and differs from those of other numbers."""
    return f"def mine(f, x, h):\n    return (f(x + h) - f(x)) / h + 0 * {number}"


def test_the_newest_versions_are_kept(cell, tmp_path, capsys):
    for number in range(8):
        for _ in range(2):
            keep(tmp_path, "01.1", cell(forward(number))["mine"])
    assert [each.source[-2] for each in kept_in(tmp_path)["01.1"]] == list("34567")
    assert use("01.1")(lambda x: x * x, 3.0, 0.1) == pytest.approx(6.1)
    (tmp_path / "other.py").write_text("print(1)\n")
    with pytest.raises(FileExistsError, match=r"other\.py is not a file of my_code"):
        my_code(tmp_path / "other.py")
    assert my_code(my_code(tmp_path / "mine.py")).exists()


ZEROS = "def mine(f, x, h):\n    return 0.0\n"


def edit(folder, id, **changes):
    """Edit the newest version of a stored answer by hand."""
    content = json.loads(answers_file(folder).read_text())
    content[id][-1].update(changes)
    answers_file(folder).write_text(json.dumps({key: content[key] for key in content}))


def test_a_source_that_computes_something_else_is_not_handed_out(capsys, cell):
    """Two helpers without a name of their own: the stored source has one body for both."""
    source = (
        "ahead = lambda x, h: x + h\n"
        "slope = lambda after, before, h: (after - before) / h\n"
        "def mine(f, x, h):\n    return slope(f(ahead(x, h)), f(x), h)\n"
    )
    assert check("01.1", cell(source)["mine"])
    record.passed_here.clear()
    assert use("01.1") is find("01.1").solution
    assert "does not pass the check" in capsys.readouterr().out


def test_an_id_that_occurs_twice_has_the_answers_of_both(tmp_path):
    for number in (1, 2):
        keep(tmp_path, "01.1", number)
    [one, other] = json.loads((tmp_path / "answers.json").read_text())["01.1"]
    (tmp_path / "answers.json").write_text(f'{{"01.1": [{json.dumps(one)}], "01.1": [{json.dumps(other)}]}}')
    assert len(kept_in(tmp_path)["01.1"]) == 2


def test_a_link_to_the_answers_stays_a_link(tmp_path):
    (tmp_path / "drive").mkdir()
    (tmp_path / "answers.json").symlink_to(tmp_path / "drive" / "answers.json")
    for number in (1, 2):
        keep(tmp_path, f"01.{number}", number)
    assert (tmp_path / "answers.json").is_symlink()
    assert {*json.loads((tmp_path / "drive" / "answers.json").read_text())} == {"01.1", "01.2"}


def test_a_stored_answer_is_checked_again_only_if_it_or_its_exercise_changed(tmp_path, monkeypatch, capsys, cell):
    examined = []
    examine = Exercise.examine
    monkeypatch.setattr(Exercise, "examine", lambda self, answer: examined.append(self.id) or examine(self, answer))
    assert record.record("01.1", cell(forward(1))["mine"]) == ""
    record.passed_here.clear()  # as after a restart of the kernel

    def said():
        """Use the answer twice. The first of the two checks it again where that is due."""
        found = use("01.1"), use("01.1")
        assert not record.passed_here
        assert (found[0] is find("01.1").solution) == (found[1] is find("01.1").solution)
        return capsys.readouterr().out, len(examined)

    assert "checked again" not in said()[0]
    assert examined == ["01.1"]  # its source, once
    assert said()[1] == 1  # passed exactly this check with exactly this source

    for number, change in enumerate(({"source": forward(2)}, {"passed": "0" * 64}), start=2):
        edit(tmp_path, "01.1", **change)
        words, count = said()
        assert words.count("yours, from chapter 01") == 2
        assert (words.count(", checked again)"), count) == (1, number)

    exercise = find("01.1")
    for name, value in {"prompt": "Another task.", "solution": lambda f, x, step: None}.items():
        with monkeypatch.context() as patch:
            patch.setitem(vars(exercise), name, value)
            assert not kept_in(tmp_path)["01.1"][-1].has_passed(check_of(exercise))
    monkeypatch.setattr(catalogue, "_code_of", lambda chapter: "the cases were changed")
    words, count = said()
    assert (words.count(", checked again)"), count) == (1, 4)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (ZEROS, "does not pass the check: `forward_slope(lambda x: x * x, 3.0, 0.1)` gave 0, expected 6.1"),
        ("mine = 3\n", "does not pass the check: check got 3, a int"),
        ("def mine(f):\n    return 1\n", "does not pass the check"),
        ("def other(f, x, h):\n    return 1\n", "cannot be loaded: KeyError"),
        ("def mine(:", "cannot be loaded: SyntaxError"),
        ("import sys\nsys.exit()\n", "cannot be loaded: ValueError: line 2 is not an import, a definition or a plain"),
        ("print(1)\n", "cannot be loaded: ValueError: line 1"),
        ("mine = print(1)\n", "cannot be loaded: ValueError: line 1"),
        ("mine, other = 1, 2\n", "cannot be loaded: ValueError: line 1"),
        ("if True:\n    mine = 1\n", "cannot be loaded: ValueError: line 1"),
        ("def mine(f, x, h=exit()):\n    return 1\n", "cannot be loaded: SystemExit"),
        ("mine = '\ud800'", "cannot be loaded: UnicodeEncodeError"),
        ("mine = 1\0", "cannot be loaded: "),
        ("", "cannot be loaded: KeyError"),
        ("(" * 5000, "cannot be loaded: "),
    ],
)
def test_a_wrong_answer_in_the_file_is_not_handed_out(cell, tmp_path, capsys, source, words):
    record.record("01.1", cell(forward(1))["mine"])
    record.record("01.3", (-3, 2, 1.0))
    record.passed_here.clear()
    edit(tmp_path, "01.1", source=source)
    assert use("01.1") is find("01.1").solution
    assert words in capsys.readouterr().out
    assert use("01.3") == (-3, 2, 1.0)
    assert "answer_01_3 = (-3, 2, 1.0)" in my_code(tmp_path / "mine.py").read_text()


@pytest.fixture(scope="module")
def nineteen(tmp_path_factory):
    """A file of nineteen answers, as bytes."""
    folder = tmp_path_factory.mktemp("nineteen")
    for number in range(1, 20):
        keep(folder, f"50.{number}", number)
    return answers_file(folder).read_bytes()


def conflict(content):
    return content.replace(b'"answer = 7', b'<<<<<<< HEAD\n"answer = 7', 1) + b"=======\n}\n>>>>>>> theirs\n"


DAMAGED = {
    "trailing comma": lambda content: content[:-2] + b",\n}",
    "merge conflict": conflict,
    "a list": lambda content: b"[" + content + b"]",
    "a number": lambda content: b"7",
    "a NUL": lambda content: content.replace(b"7", b"\0", 1),
    "not UTF-8": lambda content: content.replace(b"7", b"\xff", 1),
    "endless brackets": lambda content: b"[" * 100_000,
    "a huge number": lambda content: b'{"50.1": ' + b"1" * 5000 + b"}",
    "nothing": lambda content: b"",
    "twice": lambda content: content * 2,
}
ODD = {  # the other eighteen are there
    "an odd entry": lambda answers: answers.update({"50.7": 3}),
    "an odd version": lambda answers: answers.update({"50.7": [3]}),
    "an empty version": lambda answers: answers.update({"50.7": [{}]}),
    "a version without source": lambda answers: answers["50.7"][0].pop("source"),
    "a wrong type": lambda answers: answers["50.7"][0].update(source=["answer = 7"]),
    "an odd id": lambda answers: answers.update({"seven": answers.pop("50.7")}),
    "no versions": lambda answers: answers.update({"50.7": None}),
}


@pytest.mark.parametrize("damage", [*DAMAGED, *ODD, *range(0, 1000, 10)])
def test_a_damaged_file_of_answers_is_put_aside_and_what_can_be_read_stays(tmp_path, nineteen, damage):
    """A number: the file was cut off after that share of it, in thousandths."""
    if damage in ODD:
        answers = json.loads(nineteen)
        ODD[damage](answers)
        damaged = json.dumps(answers).encode()
    else:
        damaged = DAMAGED[damage](nineteen) if damage in DAMAGED else nineteen[: len(nineteen) * damage // 1000]
    answers_file(tmp_path).write_bytes(damaged)
    before, words = read_answers(tmp_path)
    assert len(before) == (18 if damage in ODD else 0)
    assert words
    assert words in (remark := keep(tmp_path, "01.3", (-3, 2, 1.0)))
    aside = tmp_path / "answers.json.damaged"
    assert f"with the {len(before)} answers that it could read. The damaged one is kept as {aside}." in remark
    assert aside.read_bytes() == damaged
    assert kept_in(tmp_path).keys() == {*before, "01.3"}
    assert keep(tmp_path, "01.4", 1) == ""
    answers_file(tmp_path).write_bytes(damaged)
    keep(tmp_path, "01.3", (-3, 2, 1.0))
    assert (tmp_path / "answers.json.damaged2").read_bytes() == damaged


@pytest.mark.parametrize("harmless", [lambda content: b"\xef\xbb\xbf" + content, lambda content: content + b"\n\n"])
def test_a_file_that_an_editor_saved_is_not_damaged(tmp_path, nineteen, harmless):
    answers = json.loads(nineteen)
    answers["50.1"][0]["of a later version"] = 1
    answers_file(tmp_path).write_bytes(harmless(json.dumps(answers).encode()))
    assert keep(tmp_path, "01.3", (-3, 2, 1.0)) == ""
    assert len(kept_in(tmp_path)) == 20
    assert not list(tmp_path.glob("*.damaged*"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("damaged", [False, True])
def test_where_nothing_can_be_written_nothing_is_lost(tmp_path, nineteen, monkeypatch, capsys, number, damaged):
    content = nineteen + b"," * damaged
    answers_file(tmp_path).write_bytes(content)

    def fail(path):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("mlx_grpo_kit.files.atomic._flush", fail)
    note = check("01.3", (-3, 2, 1.0))
    assert note
    assert f"This could not be stored, so it counts until the kernel stops: [Errno {number}]" in note.text
    assert answers_file(tmp_path).read_bytes() == content
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((".new", ".damaged"))]
    assert use("01.3") == (-3, 2, 1.0)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)])
def test_something_else_in_the_place_of_the_answers_is_left_alone(tmp_path, capsys, make):
    make(answers_file(tmp_path))
    before = answers_file(tmp_path).lstat()
    assert "expected a file" in check("01.3", (-3, 2, 1.0)).text
    assert answers_file(tmp_path).lstat() == before
    record.passed_here.clear()
    assert use("01.3") == find("01.3").solution
    assert "01.3: the kit's (your file of answers is damaged: " in capsys.readouterr().out


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)])
def test_something_else_in_the_place_of_the_lock_does_not_matter(tmp_path, make):
    make(tmp_path / LOCK)
    assert check("01.3", (-3, 2, 1.0)).text == find("01.3").explain
    assert "01.3" in kept_in(tmp_path)


WRITER = """
import sys
from pathlib import Path
from mlx_grpo_kit.course import record
own = Path(sys.argv[1])
record.check_of = record.find = lambda id: ""
own.touch()
while len(list(own.parent.glob("ready*"))) < 2:
    pass
for number in range(40):
    assert record.record(f"{own.name[-2:]}.{number}", number) == ""
    record.passed_here.clear()
"""


def test_two_kernels_that_record_at_once_lose_no_answer(tmp_path):
    environment = {**os.environ, record.PLACE: str(tmp_path / "progress.json")}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / f"ready{number}")], env=environment)
        for number in (50, 51)
    ]
    assert [writer.wait(100) for writer in writers] == [0, 0]
    everything = {f"{chapter}.{number}" for chapter in (50, 51) for number in range(40)}
    assert kept_in(tmp_path).keys() == everything
    assert set(json.loads((tmp_path / "progress.json").read_text())) == everything


def test_a_lock_that_nobody_gives_back_is_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("mlx_grpo_kit.files.atomic.LOCK_SECONDS", 0.05)
    with one_writer(tmp_path):  # a process that was stopped in its middle
        assert check("01.3", (-3, 2, 1.0))
    assert "01.3" in kept_in(tmp_path)


def test_names_with_two_meanings_are_distinguished_in_the_file(cell, tmp_path):
    first = (
        "SCALE = 2\ndef helper(x, scale=1):\n    return SCALE * x * scale\ndef one(x):\n    return helper(x, scale=3)"
    )
    second = "SCALE = 5\ndef helper(x, scale=1):\n    return SCALE + x\ndef two(x):\n    return helper(x) + x.real"
    third = "SCALE = 2\ndef helper(x, scale=1):\n    return SCALE * x * scale\ndef three(x):\n    return helper(x) - 1"
    for id, source, name in (("02.1", first, "one"), ("02.10", second, "two"), ("02.2", third, "three")):
        keep(tmp_path, id, cell(source)[name])
    code, _ = as_one_file({id: versions[-1] for id, versions in kept_in(tmp_path).items()}, {"02.1": "One"})
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


def test_what_one_file_defines_it_does_not_import_from_a_file_of_the_readers():
    train = "from my_parts import helper\nfrom my_parts import sample\n\n\ndef train():\n    return helper(sample())\n"
    answers = {"24.1": Kept("sample", "def sample():\n    return 1\n", ""), "24.5": Kept("train", train, "")}
    text, _ = as_one_file(answers, {})
    assert "from my_parts import helper" in text
    assert "import sample" not in text
    assert "import sample" in as_one_file({"24.5": answers["24.5"]}, {})[0]
