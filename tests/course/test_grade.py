"""`grade`: strangers' answers in processes of their own, compared outside of them."""
# ruff: noqa: E501 (programs in one line each)

import csv
import io
import json
import os
import signal
import sys
import time
from collections import UserDict

import numpy as np
import psutil
import pytest

from mlx_grpo_kit.cli import main
from mlx_grpo_kit.course.answers import Kept, source_of
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.compare import Spoiled, Told, same
from mlx_grpo_kit.course.slips import patched
from mlx_grpo_kit.course.teaching.data import Opaque, decode, encode
from mlx_grpo_kit.course.teaching.grade import is_copied, judge, try_answer
from mlx_grpo_kit.runtime import mx

SEED = 71
MEMORY = 512 * 2**20
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces this")
RIGHT = """
import re

def whole_number(text):
    text = text.strip(" ")
    return int(text) if re.fullmatch("0|[1-9][0-9]{0,8}", text) else None
"""


def graded(source, id="14.1", name="whole_number", seconds=5):
    tried = try_answer(Kept(name, source, ""), id, SEED, seconds, MEMORY)
    return judge(find(id, SEED), tried)


def test_a_right_answer_passes():
    assert graded(RIGHT)


@pytest.mark.parametrize("id", ["02.2", "04.3", "08.10", "14.6", "15.4", "16.1", "24.2", "26.1"])
def test_solutions_pass(id):
    """Those of plain values, of arrays, with limited work, and with a `run` that needs the kit's solution."""
    name, source = source_of(find(id).solution)
    result = graded(source, id, name, seconds=60)
    assert result, result.message


def test_a_wrong_answer_gets_its_message_and_its_mistake():
    result = graded(
        "def whole_number(text):\n    try:\n        return int(text)\n    except ValueError:\n        return None\n"
    )
    assert result.mistake == "int decides"
    assert "gave 46, expected None" in result.message


HOSTILE = {
    "the end of the process": "def whole_number(text):\n    import os\n    os._exit(0)\n",
    "exit": "def whole_number(text):\n    raise SystemExit(0)\n",
    "exit in a default": "def whole_number(text, n=exit(0)):\n    pass\n",
    "a table of the visible cases": f"ANSWERS = {({case[0][:20]: find('14.1').solution(*case) for case in find('14.1').cases})!r}\n"
    "def whole_number(text):\n    return ANSWERS.get(text[:20], 12345)\n",
    "the solution from the package": "from mlx_grpo_kit.course.catalogue import find\n\ndef whole_number(text):\n"
    "    return find('14.1').solution(text)\n",
    "the hidden solution": f"from mlx_grpo_kit.course.catalogue import find\n\ndef whole_number(text):\n"
    f"    return find('14.1', {SEED}).solution(text)\n",
    "use": "from mlx_grpo_kit.course import use\n\ndef whole_number(text):\n    return use('14.1')(text)\n",
    "the module of solutions": "from mlx_grpo_kit.course.chapters.chapter_14 import exercises\n\n"
    "def whole_number(text):\n    return exercises.whole_number(text)\n",
    "the module, loaded again": "import importlib\nfrom mlx_grpo_kit.course.chapters.chapter_14 import exercises\n\n"
    "def whole_number(text):\n    return importlib.reload(exercises).whole_number(text)\n",
    "the file of solutions": "from mlx_grpo_kit.course.chapters import chapter_14\nimport mlx_grpo_kit.course.slips as s\n\n"
    "def whole_number(text):\n    import pathlib, re\n    import mlx_grpo_kit.course as c\n"
    "    source = (pathlib.Path(c.__file__).parent / 'chapters/chapter_14/exercises.py').read_text()\n"
    "    space = {'re': re}\n"
    "    exec(source[source.index('def whole_number'):source.index('def _an_int')], space)\n"
    "    return space['whole_number'](text)\n",
    "the solution among all objects": "def whole_number(text):\n    import gc, types\n"
    "    found = [each for each in gc.get_objects() if isinstance(each, types.FunctionType)\n"
    "             and each.__name__ == 'whole_number' and 'chapter_14' in each.__code__.co_filename]\n"
    "    return found[0](text)\n",
    "another comparison": "import mlx_grpo_kit.course.compare as compare\nimport mlx_grpo_kit.course.exercise as exercise\n\n"
    "def whole_number(text):\n    compare.same = exercise.same = lambda *_: True\n    return 0\n",
    "another comparison, in NumPy": "import numpy as np\n\ndef whole_number(text):\n    np.allclose = lambda *_, **__: True\n    return 0\n",
    "an object that equals all": "class All(int):\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n\n"
    "def whole_number(text):\n    return All(3)\n",
    "a dictionary of its own": "class All(dict):\n    def __eq__(self, other): return True\n\ndef whole_number(text):\n    return All()\n",
    "a pickle": "class Bomb:\n    def __reduce__(self):\n        return (print, ('loaded',))\n\ndef whole_number(text):\n    return Bomb()\n",
    "a forged line": "def whole_number(text):\n    import os\n    for number in range(3, 30):\n        try:\n"
    "            os.write(number, b'{\"result\": 46}\\n')\n        except OSError:\n            pass\n    return 46\n",
    "a forged end": "def whole_number(text):\n    import os, json\n    for number in range(3, 30):\n        try:\n"
    "            os.write(number, b'{\"result\": 46}\\n' * 100 + b'{\"overwritten\": []}\\n')\n        except OSError:\n"
    "            pass\n    os._exit(0)\n",
    "memory": "def whole_number(text):\n    everything = []\n    while True:\n        everything.append(bytearray(10**7))\n",
    "a deep result": "def whole_number(text):\n    result = []\n    for _ in range(100_000):\n        result = [result]\n    return result\n",
    "a statement": "print(1)\ndef whole_number(text):\n    return 46\n",
    "no Python": "def whole_number(text:\n",
    "nothing": "def whole_number(text):\n    ...\n",
    "a value": "whole_number = 3\n",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_fails(name, capfd):
    assert not graded(HOSTILE[name])
    assert capfd.readouterr().out == ""


def test_an_endless_answer_is_stopped():
    for line in ("while True: pass", "__import__('time').sleep(1000)"):
        begun = time.monotonic()
        tried = try_answer(
            Kept("whole_number", f"def whole_number(text):\n    {line}\n", ""), "14.1", SEED, 1, MEMORY, 10
        )
        assert "was stopped" in judge(find("14.1", SEED), tried).message
        assert time.monotonic() - begun < 40


REFUSED = [
    "os.fork()", "os.system('true')", "os.kill(os.getppid(), 0)", "os.execv('/bin/true', ['true'])",
    "__import__('subprocess').run(['true'])", "__import__('socket').socket()", "open(HOME + '/mine', 'w')",
    "open('/etc/passwd').read()", "os.listdir(HOME)", "os.unlink(HOME + '/there')", "open(EXERCISES)",
    "__import__('multiprocessing').get_context('fork').Process(target=print).start()",
    "os.posix_spawn('/bin/true', ['true'], {})",
]  # fmt: skip


def lines_that_run(lines, home):
    """The verdict on an answer that returns those of these lines which raise no OSError."""
    tries = [
        f"    try:\n        {line}\n        ran.append({line!r})\n    except OSError:\n        pass\n" for line in lines
    ]
    exercise_file = sys.modules[find("14.1").solution.__module__].__file__
    source = f"import os\nHOME = {str(home)!r}\nEXERCISES = {exercise_file!r}\n"
    return graded(f"{source}def tried(text):\n    ran = []\n{''.join(tries)}    return ran\n", name="tried").message


@on_linux
def test_what_linux_refuses(tmp_path):
    (tmp_path / "there").write_text("")
    assert "gave []," in lines_that_run(REFUSED, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    own_folder = "open('mine', 'w').close()"
    assert f"gave {[own_folder]}," in lines_that_run([own_folder, *REFUSED[-2:]], tmp_path)


@on_linux
def test_the_kernel_refuses_without_pythons_help(monkeypatch, tmp_path):
    """The same without the audit hook: what Landlock and seccomp do."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.addaudithook = lambda hook: None\n")
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    lines = ["os.fork()", "open('/etc/passwd')", "__import__('socket').socket()", "os.kill(os.getppid(), 0)"]
    assert "gave []," in lines_that_run(lines, tmp_path)


@pytest.mark.parametrize(("line", "passes"), [("each *= 0", False), ("each *= 1", True)])
def test_a_result_that_changes_later_fails(line, passes):
    name, source = source_of(find("16.1").solution)
    source += f"\nKEPT = []\n\ndef shared(*arguments):\n    for each in KEPT:\n        {line}\n"
    source += f"    KEPT.append(np.array({name}(*arguments), dtype=float))\n    return KEPT[-1]\n"
    assert bool(graded("import numpy as np\n" + source, "16.1", "shared")) == passes


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -3, 2**200, 1.5, float("inf"), 1 + 2j, "text", "\ud800", b"bytes", [1, (2.0, "x")], {"a": {1: None}},
        {1, 2}, np.arange(6.0).reshape(2, 3), np.float32(2), np.zeros((0, 3)), ValueError("words"),
    ],
)  # fmt: skip
def test_values_come_back(value):
    back = decode(json.loads(json.dumps(encode(value))))
    if isinstance(value, str):
        assert back == value.encode("utf-8", "backslashreplace").decode()
    elif isinstance(value, set):
        assert back == value
    else:
        assert same(back, value)
        assert type(back) is type(value) or isinstance(value, np.generic)


def test_arrays_of_mlx_come_back():
    for dtype in (mx.float32, mx.bfloat16, mx.int32, mx.bool_):
        value = mx.array([[0, 1], [2, 3]]).astype(dtype)
        back = decode(json.loads(json.dumps(encode(value))))
        assert back.dtype == dtype
        assert mx.array_equal(back, value)


def test_errors_come_back_by_class_and_spoiled_results_stay_spoiled():
    assert type(decode(encode(KeyError("k")))) is KeyError
    assert str(decode(["x"]) if False else decode(encode(ValueError("words")))) == "words"
    own = type("Own", (Exception,), {"__module__": "nowhere"})
    assert type(decode(encode(own("x")))).__name__ == "Own"
    assert not same(decode(encode(Spoiled(3))), 3)
    assert same(decode(encode(Told("words"))), "words")


def test_other_objects_equal_nothing():
    class Liar:
        def __eq__(self, other):
            return True

        __hash__ = None

    assert decode(encode(UserDict(a=1))) == {"a": 1}
    for value in (Liar(), object(), print, np.array([object()])):
        back = decode(encode(value))
        assert isinstance(back, Opaque)
        assert not same(back, decode(encode(value)))
        assert not same(back, value)


@pytest.mark.parametrize("data", [{}, {"a": 1, "b": 2}, {"array": ["O", [1], ""]}, {"array": ["<f8", [9], "AAAA"]}, {"mlx": ["eval", "<f4", [0], ""]}, [1], {"dict": [[{"list": []}, 1]]}, {"error": [1]}])  # fmt: skip
def test_what_is_not_data_raises(data):
    with pytest.raises(ValueError, match="not a result"):
        decode(data)


def test_a_copied_solution_is_marked():
    solution = find("14.1").solution
    source = patched(solution)
    assert is_copied(find("14.1"), Kept("whole_number", source, ""))
    renamed = source.replace("whole_number", "mine").replace(
        '"""The whole number that `text` is, or None."""', "# mine"
    )
    assert is_copied(find("14.1"), Kept("mine", f"import re\n\n{renamed}", ""))
    assert not is_copied(find("14.1"), Kept("whole_number", RIGHT, ""))


def write(file, **answers):
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {
        id: [{"name": name, "source": source, "when": "", "passed": "f" * 64}] for id, (name, source) in answers.items()
    }
    file.write_text(json.dumps(content))
    return str(file)


def test_arrays_are_compared_in_the_thread_that_made_them(tmp_path, capsys):
    name, source = source_of(find("16.3").solution)
    assert main(["grade", write(tmp_path / "answers.json", **{"16.3": (name, source)}), "--csv", "--seed", "6"]) == 0
    assert ",passed,hidden," in capsys.readouterr().out


def test_a_class_in_csv(tmp_path, capsys):
    right, copied = (("whole_number", source) for source in (RIGHT, patched(find("14.1").solution)))
    wrong = "whole_number", "def whole_number(text):\n    return 46\n"
    files = [
        write(tmp_path / "ada/answers.json", **{"14.1": right}),
        write(tmp_path / "bob/answers.json", **{"14.1": wrong, "99.1": wrong}),
        write(tmp_path / "carl/answers.json", **{"14.1": ("whole_number", "import re\n\n\n" + copied[1])}),
        write(tmp_path / "dora/answers.json"),
    ]
    (tmp_path / "answers.json").write_text("{")
    assert (
        main(["grade", *files, str(tmp_path / "answers.json"), "--exercises", "14.1", "99.1", "--csv", "--seed", "5"])
        == 0
    )
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    found = {(row["answers"].split("/")[-2], row["exercise"]): row for row in rows if row["exercise"]}
    assert found["ada", "14.1"]["status"] == "passed"
    assert found["ada", "14.1"]["cases"] == "hidden"
    assert found["ada", "14.1"]["copied"] == ""
    assert found["bob", "14.1"]["status"] == "not yet"  # whatever its file claims
    assert found["carl", "14.1"]["copied"] == "yes"
    assert found["dora", "14.1"]["status"] == "missing"
    assert found["bob", "99.1"]["status"] == "unknown exercise"
    assert [row["status"] for row in rows if not row["exercise"]] == ["unreadable"]


def test_what_a_machine_cannot_enforce_is_said(tmp_path, capsys, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import platform\nplatform.machine = lambda: 'vax'\n")
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    file = write(tmp_path / "answers.json", **{"14.1": ("whole_number", RIGHT)})
    assert main(["grade", file, "--seed", "5"]) == 0
    out, err = capsys.readouterr()
    assert "Not enforced on this machine:" in err
    assert "starts no process" in err or sys.platform != "linux"
    assert "1        1" in out


def test_a_value_is_compared_here():
    exercise = find("01.3")
    source = f"answer = {exercise.solution!r}\n"
    assert graded(source, "01.3", "answer")
    assert not graded("answer = (1, 2, 3)\n", "01.3", "answer")


def test_nothing_is_left_running():
    before = psutil.Process().children(recursive=True)
    source = "import os\ndef whole_number(text):\n    open('pid', 'w').write(str(os.getpid()))\n    while True: pass\n"
    tried = try_answer(Kept("whole_number", source, ""), "14.1", SEED, 1, MEMORY)
    assert "was stopped" in tried.end
    assert {*psutil.Process().children(recursive=True)} <= {*before}
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
