"""A process for another library's judge, which is killed and restarted if a question takes it too long.

A verifier may compute for ever on what a model wrote, and some limit their time by signals, which only a process's main
thread may use while training may run in another thread.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from mlx_grpo_kit.tasks.task import TaskError

SECONDS = 20
"""The processor time after which a question counts as not answered, so that a busy machine gives the same scores."""


class Judge:
    """A process that runs `python -m module`, where `answer_questions` answers one question after another.

    Args:
        module: its name.
        seconds: the processor time for a question.
    """

    def __init__(self, module: str, seconds: float = SECONDS):
        self._module, self._seconds = module, seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None

    def ask(self, *question: Any) -> Any:
        """The answer to a question; both are JSON.

        Raises:
            TaskError: the judge raised an exception, whose words these are, or took too long.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = self._begin()
            try:
                self._process.stdin.write(json.dumps(question) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except OSError:
                line = ""
            if not line:  # it took too long, and the system ended it
                self._process.kill()
                self._process.wait()
                self._process = None
                raise TaskError(
                    f"{self._module} ended, or did not answer within {self._seconds:g} seconds of processor time."
                )
        answer, error = json.loads(line)
        if error:
            raise TaskError(error)
        return answer

    def _begin(self) -> subprocess.Popen:
        pipe, repeatable = subprocess.PIPE, os.environ | {"PYTHONHASHSEED": "0"}  # the order of a set of strings
        return subprocess.Popen(
            [sys.executable, "-m", self._module, str(self._seconds)],
            stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, encoding="utf-8", env=repeatable,
            start_new_session=True,  # Ctrl-C, at which a run finishes its step, must not end it
        )  # fmt: skip


def answer_questions(answer: Callable[..., Any], before: Callable[[], Any] = bool) -> None:
    """Read one question per line until the input ends, and write the answer and the words of an error for each.

    `before` is called once, for imports, whose time does not count.
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # a library's prints must not count as answers
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before()
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    for line in sys.stdin:
        limit = math.ceil(time.process_time() + float(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_CPU, (limit if most < 0 else min(limit, most), most))
        try:
            written = json.dumps([answer(*json.loads(line)), ""])
        except Exception as error:
            written = json.dumps([None, str(error) or type(error).__name__])
        print(written, file=answers, flush=True)
