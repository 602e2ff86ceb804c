"""What people print can be printed where standard output cannot encode every character."""

import io
import os
import subprocess
import sys

import pytest

from mlx_grpo_kit.course import hint
from mlx_grpo_kit.runtime.printing import encodable, printable

NOTES = """
from mlx_grpo_kit.course import check, hint, progress, solution, use
from mlx_grpo_kit.course.catalogue import chapters, exercises
print(progress(), progress("02"), check("99.9"), hint("01.1", 9))
for exercise in (each for chapter in chapters() for each in exercises(chapter)):
    print(check(exercise.id, "\\N{GREEK SMALL LETTER THETA}"), solution(exercise.id))
    for number in range(len(exercise.hints)):
        print(hint(exercise.id, number + 1))
use("01.1")
print(check("01.1", use("01.1")))
"""
REPORTS = """
import mlx_grpo_kit.tensor as T
from mlx_grpo_kit.gradcheck import gradcheck
class Wrong(T.Function):
    forward = staticmethod(lambda ctx, x: x * x)
    backward = staticmethod(lambda ctx, grad: grad)
print(gradcheck(lambda θ: Wrong.apply(θ).sum(), T.Tensor([3.0])))
print(gradcheck(lambda θ: T.abs(θ).sum(), T.Tensor([0.0])))
print(gradcheck(lambda θ, φ: T.maximum(θ, φ).sum(), T.Tensor([1.0]), T.Tensor([1.0])))
from mlx_grpo_kit.viz import LivePlot
print(LivePlot(["reward"]))
from mlx_grpo_kit.course.chapters.chapter_26.project import Checklist, Item
print(Checklist([Item("one", True, "θ"), Item("two", False, "")]))
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("code", [NOTES, REPORTS], ids=["notes", "reports"])
def test_notes_and_reports_are_printed(code, encoding, tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_GRPO_KIT_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    exec(code, {"__name__": "__main__"})
    sys.stdout.flush()
    shown = sys.stdout.buffer.getvalue().decode(encoding)
    assert ("\N{CHECK MARK}" in shown) == (encoding == "utf-8")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["doctor"], ["generate", "\u03b8="], ["\u03b8"]]
)
def test_the_command_line_prints(arguments):
    command = [sys.executable, "-m", "mlx_grpo_kit", *arguments]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=200)
    assert b"UnicodeEncodeError" not in done.stderr
    assert done.returncode in (0, 2)
    assert done.stdout + done.stderr


def test_a_stream_that_took_the_place_of_standard_output_decides(monkeypatch):
    """`contextlib.redirect_stdout` to a log file, a stream without an encoding, and none at all."""
    text = "\u2713 \u03b8 \ud800"
    for encoding, expected in (("ascii", "? ? ?"), ("iso8859-7", "? \u03b8 ?"), ("utf-8", "\u2713 \u03b8 ?")):
        stream = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        assert encodable(text) == expected
        print(hint("01.1"))
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stdout", stream)
        assert encodable(text) == "\u2713 \u03b8 ?"


def test_a_class_keeps_what_it_does_not_define(monkeypatch):
    class Base:
        def __repr__(self):
            return "\u03b8"

    class Named(Base):
        def __str__(self):
            return "\u2713"

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert (repr(printable(Named)()), str(Named())) == ("\u03b8", "?")
