"""Judging formulas by math-verify, where it is installed (`pip install math-verify`): 1/2 is \\frac{1}{2} is 0.5.

    task = RowsTask(rows, reward_funcs=[math_verified], is_correct=is_math_equal)

math-verify bounds the time of its comparisons by signals, which only a process's main thread may use, and training may
go on in another thread. So it runs in a process of its own, which is ended and begun again should it hang.
"""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec

from mlx_grpo_kit.tasks.answers import MAX_CHARACTERS, without_thoughts
from mlx_grpo_kit.tasks.task import Problem, TaskError

SECONDS = 20
"""After which an answer that cannot be judged is wrong. math-verify itself stops earlier wherever it can."""

LONGEST = 4_000
"""Characters from the end of a completion that are looked at."""


def math_verified(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """1.0 where math-verify finds the answer in the completion, written in whatever way, and 0.0 elsewhere."""
    return [float(is_math_equal(problem, text)) for problem, text in zip(problems, completions, strict=True)]


def is_math_equal(problem: Problem, completion: str) -> bool:
    """True if math-verify calls the completion's last formula equal to `problem.answer`. Thoughts are left out.

    Raises:
        TaskError: math-verify is not installed.
    """
    if len(completion) > MAX_CHARACTERS:
        return False
    return _judge.ask(problem.answer, without_thoughts(completion)[-LONGEST:])


class _Judge:
    """A process that answers in the order in which it is asked."""

    def __init__(self):
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None

    def ask(self, answer: str, said: str) -> bool:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = self._begin()
            try:
                self._process.stdin.write(json.dumps([answer, said]) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except OSError:
                line = ""
            if not line:  # it took too long, and its watchdog ended it
                self._process.kill()
                self._process.wait()
                self._process = None
            return line.strip() == "true"

    def _begin(self) -> subprocess.Popen:
        if find_spec("math_verify") is None:
            raise TaskError("math-verify is not installed. pip install math-verify, or take another reward.")
        command = [sys.executable, "-m", "mlx_grpo_kit.tasks.math_verify"]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
        )


_judge = _Judge()


def _answer_questions() -> None:
    """Answer questions until none comes any more: a question per line, `true` or `false` per line."""
    from math_verify import parse, verify

    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is no answer
    for line in sys.stdin:
        faulthandler.dump_traceback_later(SECONDS, exit=True)  # a thread of C's, which no computation holds up
        try:
            answer, said = json.loads(line)
            right = parse(answer) or parse(f"${answer}$")
            same = bool(right) and bool(verify(right, parse(said)))
        except Exception:
            same = False
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(same), file=answers, flush=True)


if __name__ == "__main__":
    _answer_questions()
