"""Rewards for formulas, judged by math-verify (`pip install math-verify`): 1/2 is \\frac{1}{2} is 0.5.

    task = RowsTask(rows, reward_funcs=[math_verified], is_correct=is_math_equal)

math-verify limits the time of its comparisons by signals, which only a process's main thread may use, and training may
run in another thread. So it runs in a separate process, which is killed and restarted if it hangs.
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
"""The time after which an answer that cannot be judged counts as wrong. math-verify usually stops earlier."""

LONGEST = 4_000
"""The number of characters at the end of a completion that are read."""


def math_verified(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """1.0 if math-verify finds the answer in the completion, in any notation, else 0.0."""
    return [float(is_math_equal(problem, text)) for problem, text in zip(problems, completions, strict=True)]


def is_math_equal(problem: Problem, completion: str) -> bool:
    """True if math-verify judges the completion's last formula equal to `problem.answer`. Thoughts are ignored.

    Raises:
        TaskError: math-verify is not installed.
    """
    if len(completion) > MAX_CHARACTERS:
        return False
    return _judge.ask(problem.answer, without_thoughts(completion)[-LONGEST:])


class _Judge:
    """A process that answers questions in order."""

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
            raise TaskError("math-verify is not installed. Run `pip install math-verify`, or use another reward.")
        command = [sys.executable, "-m", "mlx_grpo_kit.tasks.math_verify"]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
        )


_judge = _Judge()


def _answer_questions() -> None:
    """Read one question per line until the input ends, and write `true` or `false` for each."""
    from math_verify import parse, verify

    answers = sys.stdout
    sys.stdout = sys.stderr  # a library's prints must not count as answers
    for line in sys.stdin:
        faulthandler.dump_traceback_later(SECONDS, exit=True)  # a C thread, which no computation can block
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
