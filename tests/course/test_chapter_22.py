"""Chapter 22 against torch and simulation, answers in other styles, claims of its prose, a run without its packages."""

import contextlib
import copy
import hashlib
import heapq
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Empty, Queue

import nbformat
import numpy as np
import pytest
import torch

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.chapters.chapter_22 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_22 import parts
from mlx_grpo_kit.course.chapters.chapter_22.toys import loss_of_lines
from mlx_grpo_kit.course.slips import edited
from mlx_grpo_kit.qwen3 import load_pretrained
from mlx_grpo_kit.runtime import mx

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "22_training_backends.ipynb"

# Ground truth.


def test_the_smallest_backend_equals_torchs_sgd():
    params = {"slope": torch.tensor(0.5, requires_grad=True), "height": torch.tensor([0.0, 1.0], requires_grad=True)}
    theirs = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
    with ThreadPoolExecutor(1) as worker:
        backend = chapter.SmallestBackend(worker, params, loss_of_lines, 0.05)
        optimizer = torch.optim.SGD(theirs.values(), lr=0.05)
        for plan in ([(1.0, 2.0)], [(3.0, -1.0), (0.5, 0.25)]):
            for batch in plan:
                future = backend.forward_backward(batch)
                loss = loss_of_lines(theirs, batch)
                loss.backward()
                assert future.result() == pytest.approx(loss.item())
            backend.optim_step().result()
            optimizer.step()
            optimizer.zero_grad()
    for name, value in theirs.items():
        np.testing.assert_allclose(backend.params[name].detach(), value.detach(), rtol=1e-6)


def test_kept_weights_are_as_the_exercise_says():
    """Run each line of the exercise before a step that moves every number."""
    prompt = chapter.KEPT.prompt.partition("\n\n")[2]
    lines = re.findall(r"([A-H]): `(kept = .*?)`(?:, and the step is `(.*?)`)?", prompt)
    assert [letter for letter, *_ in lines] == list("ABCDEFGH")
    still, step = "", None
    for letter, keep, own_step in lines:
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model(torch.ones(1, 3)).sum().backward()
        arrays = {name: mx.array(value.detach().numpy()) for name, value in model.named_parameters()}
        state = {"copy": copy, "model": model, "optimizer": optimizer, "params": arrays, "lr": 0.5}
        state["grads"] = {name: mx.ones_like(value) for name, value in arrays.items()}
        before = {name: np.array(value) for name, value in arrays.items()}
        step = own_step or step or "optimizer.step()"
        exec(keep, state)
        exec(step, state)
        moved = state["params"] if letter in "FGH" else model.state_dict()
        assert not any(np.allclose(np.array(moved[name]), value) for name, value in before.items())
        if all(np.array_equal(np.array(state["kept"][name]), value) for name, value in before.items()):
            still += letter
    assert still == chapter.KEPT.solution


def simulated(write, learn, num_steps, max_lag):
    """The same times by a simulation of events: whatever may begin begins, the earliest first."""
    times = [[None] * 4 for _ in range(num_steps)]
    events, written, learned, writing, learning, now = [], deque(), 0, 0, False, 0.0
    busy = False
    while learned < num_steps:
        if not busy and writing < num_steps and learned >= writing - max_lag:
            busy, times[writing][0] = True, now
            heapq.heappush(events, (now + write, 0, writing))
            writing += 1
        if not learning and written:
            number = written.popleft()
            learning, times[number][2] = True, now
            heapq.heappush(events, (now + learn, 1, number))
        now, kind, number = heapq.heappop(events)
        times[number][1 + 2 * kind] = now
        if kind == 0:
            busy = False
            written.append(number)
        else:
            learning, learned = False, learned + 1
    return [tuple(each) for each in times]


@pytest.mark.parametrize("max_lag", [0, 1, 2, 5])
def test_the_times_of_an_asynchronous_run_are_those_of_a_simulation(max_lag):
    for write, learn in ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (0.3, 3.1)):
        found = np.array(chapter.async_times(write, learn, 8, max_lag))
        np.testing.assert_allclose(found, np.array(simulated(write, learn, 8, max_lag)))
        _, lags = parts.asynchronous(found)
        assert 0 <= min(lags) <= max(lags) <= max_lag


def test_the_claims_of_the_prose_hold():
    def step_time(fetch, compute, ahead):
        bars = parts.pipeline(chapter.schedule, fetch, compute, ahead, 30)
        ends = [bar.end for bar in bars if bar.kind == "learns from it"]
        return ends[-1] - ends[-2]

    # 40 and 60 ms: their sum at 0 steps ahead, the longer one at 1, and no gain after that.
    assert [step_time(40, 60, ahead) for ahead in range(5)] == pytest.approx([100, 60, 60, 60, 60])
    assert [step_time(60, 40, ahead) for ahead in range(3)] == pytest.approx([100, 60, 60])

    def pace(write, learn, max_lag):
        times = chapter.async_times(write, learn, 30, max_lag)
        return times[-1][3] - times[-2][3], max(parts.asynchronous(times)[1])

    assert pace(1.0, 1.5, 0) == (pytest.approx(2.5), 0)
    assert [pace(1.0, 1.5, lag)[0] for lag in (1, 2, 4)] == pytest.approx([1.5] * 3)
    assert pace(1.0, 1.5, 4)[1] == 4, "the batches only get staler"
    assert pace(2.0, 0.5, 4)[1] <= 1, "a slow engine does not use up the lag"
    _, params = load_pretrained(TINY)
    size = sum(value.nbytes for value in params.values())
    assert 9e6 < 8 * size < 11e6  # ten million bits
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    [text] = [
        "".join(output["data"]["text/plain"])
        for cell in notebook.cells
        if cell.id == "22-matrix"
        for output in cell.outputs
    ]
    assert text.count("checkpoint 3.") == 5, "about three times the model's 1.2 MB"
    assert size == pytest.approx(1.2e6, rel=0.05)


# Answers in other styles.


class Pool:
    def __init__(self):
        self.pool = ThreadPoolExecutor(max_workers=1)

    def submit(self, function):
        return self.pool.submit(function)


class WorkerWithCondition:
    def __init__(self):
        self.waiting, self.changed = deque(), threading.Condition()
        threading.Thread(target=self.work, daemon=True).start()

    def submit(self, function):
        future = Future()
        with self.changed:
            self.waiting.append((future, function))
            self.changed.notify()
        return future

    def work(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting)
                future, function = self.waiting.popleft()
            try:
                result = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)


class ReplacingBackend:
    """A backend that puts new tensors into the dictionary instead of changing the old ones."""

    def __init__(self, worker, params, loss_fn, learning_rate):
        self.worker, self.params, self.loss_fn, self.learning_rate, self.steps = (
            worker,
            params,
            loss_fn,
            learning_rate,
            0,
        )

    def forward_backward(self, batch):
        return self.worker.submit(lambda: self._loss(batch))

    def _loss(self, batch):
        loss = self.loss_fn(self.params, batch)
        loss.backward()
        return loss.item()

    def optim_step(self):
        return self.worker.submit(self._step)

    def _step(self):
        for name, param in list(self.params.items()):
            self.params[name] = (param - self.learning_rate * param.grad).detach().requires_grad_()
        self.steps += 1
        return self.steps


class WithOptim(ReplacingBackend):
    """A backend with torch's own optimizer."""

    def _step(self):
        optimizer = torch.optim.SGD(self.params.values(), lr=self.learning_rate)
        optimizer.step()
        optimizer.zero_grad()
        self.steps = self.steps + 1
        return self.steps


def schedule_by_recursion(submitted, durations):
    if not submitted:
        return []
    before = schedule_by_recursion(submitted[:-1], durations[:-1])
    start = max(submitted[-1], before[-1][1]) if before else submitted[-1]
    return [*before, (start, start + durations[-1])]


def schedule_as_array(submitted, durations):
    found = np.zeros((len(submitted), 2))
    for k in range(len(submitted)):
        found[k, 0] = max(submitted[k], found[k - 1, 1] if k else 0)
        found[k, 1] = found[k, 0] + durations[k]
    return found


def difference_by_norm(grads, others):
    flat = [np.concatenate([np.ravel(each[name]) for name in sorted(grads)]) for each in (grads, others)]
    return np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[0])


def outcomes_by_index(operations):
    found = []
    for operation in operations:
        failed = [each for each in found if each[0] == "failed"]
        if failed:
            found.append(["refused", failed[0][1]])
        else:
            try:
                value = operation()
            except BaseException as error:
                found.append(["failed", f"{error}"])
            else:
                found.append(["done", value])
    return tuple(found)


def newest_by_iterdir(folder):
    from hashlib import sha256

    found = []
    for path in folder.iterdir():
        number = path.name[5:]
        if path.name[:5] != "step_" or not number.isdecimal():
            continue
        try:
            metadata = json.loads((path / "metadata.json").read_bytes())
            for name, entry in metadata["files"].items():
                assert sha256((path / name).read_bytes()).hexdigest() == entry["sha256"]
        except Exception:
            continue
        found.append((int(number), path.name))
    return max(found)[1] if found else None


def async_by_recursion(write, learn, num_steps, max_lag):
    times = []
    for k in range(num_steps):
        start = times[k - 1][1] if k else 0
        if k - max_lag > 0:
            start = max(start, times[k - max_lag - 1][3])
        done = start + write
        begin = max(done, times[k - 1][3]) if k else done
        times.append([start, done, begin, begin + learn])
    return np.array(times).tolist()


OTHERS = [
    ("22.1", Pool),
    ("22.1", WorkerWithCondition),
    ("22.2", ReplacingBackend),
    ("22.2", WithOptim),
    ("22.3", schedule_by_recursion),
    ("22.3", schedule_as_array),
    ("22.4", ["B", "D", "F", "H"]),
    ("22.4", "b, d, f, h"),
    ("22.5", difference_by_norm),
    ("22.6", outcomes_by_index),
    ("22.7", ["B", "D", "C", "A", "E"]),
    ("22.7", "b d c a e"),
    ("22.8", newest_by_iterdir),
    ("22.9", async_by_recursion),
    ("22.9", simulated),
]


@pytest.mark.parametrize(("id", "answer"), OTHERS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_right_answers_in_other_styles_pass(id, answer):
    note = check(id, answer)
    assert note.passed, note


# Wrong answers, in addition to the mistakes that the exercises define.


class TwoThreads(chapter.Worker):
    def __init__(self):
        self.queue = Queue()
        for _ in range(2):
            threading.Thread(target=self.work, daemon=True).start()


class ThreadsInTurn:
    """A thread per function; a lock makes the threads take turns."""

    def __init__(self):
        self.lock = threading.Lock()

    def submit(self, function):
        future = Future()

        def call():
            with self.lock:
                future.set_result(function())

        threading.Thread(target=call, daemon=True).start()
        return future


class SkipsResultsOfNone(chapter.Worker):
    def work(self):
        while True:
            future, function = self.queue.get()
            result = function()
            if result is not None:
                future.set_result(result)


class CatchesOneKindOfError(chapter.Worker):
    def work(self):
        while True:
            future, function = self.queue.get()
            try:
                future.set_result(function())
            except KeyError as error:
                future.set_exception(error)


class EndsWhenIdle(chapter.Worker):
    def __init__(self):
        self.queue, self.begun = Queue(), False

    def submit(self, function):
        future = super().submit(function)
        if not self.begun:
            self.begun = True
            threading.Thread(target=self.work, daemon=True).start()
        return future

    def work(self):
        while not self.queue.empty():
            future, function = self.queue.get()
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)


class ResultsAtTheEnd(chapter.Worker):
    """A worker that sets all results once nothing waits any more."""

    def work(self):
        while True:
            done = []
            while not done or not self.queue.empty():
                future, function = self.queue.get()
                done.append((future, function()))
            for future, result in done:
                future.set_result(result)


class KeepsTheProgramAlive(chapter.Worker):
    def __init__(self):
        self.queue = Queue()
        threading.Thread(target=self.work).start()

    def work(self):
        with contextlib.suppress(Empty):  # it ends at last, so that this test can end
            while True:
                future, function = self.queue.get(timeout=2)
                future.set_result(function())


class ResultsForFutures(Pool):
    def submit(self, function):
        return 3


class StepsInForwardBackward(ReplacingBackend):
    def forward_backward(self, batch):
        future = super().forward_backward(batch)
        self.optim_step()
        return future


class WaitsForItsResult(ReplacingBackend):
    """A backend that waits for its own results, which hangs unless the worker raises an error."""

    def forward_backward(self, batch):
        future = super().forward_backward(batch)
        future.result()
        return future


class ZeroForNone(WithOptim):
    def _step(self):
        steps = super()._step()
        for param in self.params.values():
            param.grad = torch.zeros_like(param)
        return steps


class CountedAhead(WithOptim):
    def optim_step(self):
        self.steps += 1
        number = self.steps

        def operation():
            self._step()
            self.steps = number
            return number

        return self.worker.submit(operation)


class TensorLoss(ReplacingBackend):
    def _loss(self, batch):
        loss = self.loss_fn(self.params, batch)
        loss.backward()
        return loss


def starts_only(submitted, durations):
    return [start for start, _ in chapter.schedule(submitted, durations)]


def in_lists_that_were_given(submitted, durations):
    found = chapter.schedule(submitted, durations)
    for k, (start, _) in enumerate(found):
        submitted[k] = start
    return found


def largest_difference(grads, others):
    return max(abs(grads[name] - others[name]).max() for name in grads)


def difference_in_float32(grads, others):
    return np.float32(chapter.relative_difference(grads, others))


def difference_as_tensor(grads, others):
    ours, theirs = (torch.cat([torch.tensor(each[name]).reshape(-1) for name in grads]) for each in (grads, others))
    return (ours - theirs).norm() / ours.norm()


def mean_of_relative(grads, others):
    return np.mean([np.linalg.norm(grads[name] - others[name]) / np.linalg.norm(grads[name]) for name in grads])


def all_called(operations):
    found, first = [], None
    for operation in operations:
        try:
            value = operation()
            found.append(("done", value) if first is None else ("refused", first))
        except Exception as error:
            found.append(("failed", str(error)) if first is None else ("refused", first))
            first = first if first is not None else str(error)
    return found


def one_kind_of_error(operations):
    found, first = [], None
    for operation in operations:
        if first is not None:
            found.append(("refused", first))
            continue
        try:
            found.append(("done", operation()))
        except ValueError as error:
            first = str(error)
            found.append(("failed", first))
    return found


def some_kinds_of_errors(operations):
    known = "ValueError, KeyError, ArithmeticError, OSError, RuntimeError"
    return edited(chapter.outcomes, "- except Exception as error:", f"+ except ({known}) as error:")(operations)


def arguments_for_message(operations):
    found = []
    for number, operation in enumerate(operations):
        try:
            found.append(("done", operation()))
        except Exception as error:
            message = error.args[0]
            return [*found, ("failed", message), *[("refused", message)] * (len(operations) - number - 1)]
    return found


def whole_ones(folder, pattern=r"step_\d+"):
    for path in folder.iterdir():
        with contextlib.suppress(OSError, ValueError, KeyError):
            files = json.loads((path / "metadata.json").read_text())["files"]
            hashes = {name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in files}
            if re.fullmatch(pattern, path.name) and all(hashes[name] == files[name]["sha256"] for name in files):
                yield path


def number_of(path):
    return int(path.name.rpartition("_")[2])


def newest_by_clock(folder):
    return max(whole_ones(folder), key=lambda path: path.stat().st_mtime).name


def newest_as_path(folder):
    return max(whole_ones(folder), key=number_of, default=None)


def newest_after_step_0(folder):
    newest = max(whole_ones(folder), key=number_of, default=None)
    return newest.name if newest and number_of(newest) else None


def newest_with_four_digits(folder):
    steps = [number_of(path) for path in whole_ones(folder)]
    return f"step_{max(steps):04d}" if steps else None


def newest_of_any_name(folder):
    newest = max(whole_ones(folder, r".*step_\d+"), key=number_of, default=None)
    return newest.name if newest else None


def newest_of_what_is_left(folder):
    kept = [path.name for path in whole_ones(folder)]
    for path in folder.glob("step_*"):
        if path.name not in kept:
            shutil.rmtree(path)
    return chapter.newest_whole(folder)


def by_time(folder):
    found = [path for path in folder.glob("step_*") if (path / "metadata.json").exists()]
    return max(found, key=lambda path: path.stat().st_mtime).name if found else None


def path_for_name(folder):
    name = chapter.newest_whole(folder)
    return [folder / name] if name else None


def synchronous(write, learn, num_steps, max_lag):
    return chapter.async_times(write, learn, num_steps, 0)


def three_moments(write, learn, num_steps, max_lag):
    return [each[:3] for each in chapter.async_times(write, learn, num_steps, max_lag)]


WRONG = [
    ("22.1", TwoThreads, "functions called at the same time|expected"),
    ("22.1", ThreadsInTurn, "3 threads that called functions"),
    ("22.1", SkipsResultsOfNone, "not set yet when the next function began"),
    ("22.1", CatchesOneKindOfError, r"'raised: function 0', 10, 'never set', 'never set'\]"),
    ("22.1", EndsWhenIdle, r"called in this order: \[0\], results: \[0, 'never set'\]"),
    ("22.1", ResultsAtTheEnd, "not set yet when the next function began"),
    ("22.1", KeepsTheProgramAlive, "not made with `daemon=True`"),
    ("22.1", ResultsForFutures, r"something without a `.result\(\)`"),
    ("22.2", StepsInForwardBackward, "operations submitted to the worker"),
    ("22.2", WaitsForItsResult, "waited for a result, but it has to return the future"),
    ("22.2", ZeroForNone, "a `.grad` that is not None after the step"),
    ("22.2", CountedAhead, "`steps` at 1 before the worker had started"),
    ("22.2", TensorLoss, "a tensor instead of a number"),
    ("22.3", starts_only, "raised TypeError"),
    ("22.3", in_lists_that_were_given, "new numbers in what it was given"),
    ("22.4", "ABDFH", "the weights themselves"),
    ("22.4", "BDHF", "alphabetical|is right|are right"),
    ("22.4", "ABCDEFGH", "not a string of 4 letters"),
    ("22.5", largest_difference, "expected"),
    ("22.5", mean_of_relative, "expected"),
    ("22.5", difference_in_float32, "of type float32 instead of a Python float"),
    ("22.5", difference_as_tensor, "of type Tensor instead of a Python float"),
    ("22.6", all_called, "expected"),
    ("22.6", one_kind_of_error, "KeyError"),
    ("22.6", some_kinds_of_errors, "nobody can list all kinds"),
    ("22.6", arguments_for_message, "'weights'"),
    ("22.7", "BDCAEE", "not a string of 5 letters"),
    ("22.7", "ABCDE", "are right|is right"),
    ("22.8", newest_by_clock, "gave 'step_0001', expected 'step_0002'"),
    ("22.8", newest_as_path, r"instead of its name \(use `path.name`\)"),
    ("22.8", newest_after_step_0, "expected 'step_0000'"),
    ("22.8", newest_with_four_digits, "gave 'step_0012'"),
    ("22.8", newest_of_any_name, "gave 'old_step_0009'"),
    ("22.8", newest_of_what_is_left, "added or removed files"),
    ("22.8", by_time, "expected"),
    ("22.8", path_for_name, "expected"),
    ("22.9", synchronous, "expected"),
    ("22.9", three_moments, "expected"),
]


@pytest.mark.parametrize(("id", "answer", "said"), WRONG, ids=lambda each: getattr(each, "__name__", str(each)))
def test_a_wrong_answer_gets_a_message(id, answer, said):
    note = check(id, answer)
    assert not note.passed
    assert re.search(said, note.text), note.text


# Without the packages.

HIDDEN = ("jax", "optax", "orbax", "torchopt", "torchax", "trio")

RUN = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
import nbformat
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in nbformat.read({notebook!r}, as_version=4).cells:
    if cell.cell_type == "code":
        print("##", cell.id)
        result = shell.run_cell(cell.source)
        if not result.success:
            print("FAILED", cell.id)
            sys.exit(1)
"""


def test_the_chapter_runs_without_its_packages_and_says_what_it_skips(tmp_path):
    program = RUN.format(hidden=HIDDEN, notebook=str(NOTEBOOK))
    environment = os.environ | {"MLX_GRPO_KIT_PROGRESS": str(tmp_path / "progress.json"), "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    for words in (
        "torch.func  skipped: torchopt is not installed (pip install 'mlx_grpo_kit[backends]')",
        "JAX         skipped: jax is not installed",
        "torchax     skipped: jax is not installed",
    ):
        assert words in done.stdout
    assert done.stdout.count("skipped: trio is not installed") == 3
    assert "PyTorch     gradient of length" in done.stdout
    assert "MLX         gradient of length" in done.stdout


def test_installed_packages_are_not_skipped():
    assert [parts.absent(name) for name in (*parts.PACKAGES, "trio")] == [""] * 6
    assert "skipped: no_such_package is not installed" in parts.absent("no_such_package")
