"""Exercises of notebook 22: training backends."""
# ruff: noqa: B905 (solutions are written as a beginner would write them)

import hashlib
import json
import os
import tempfile
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import Queue

import numpy as np
import torch

from mlx_grpo_kit.course.chapters.chapter_22.toys import Desk, build, loss_of_lines
from mlx_grpo_kit.course.compare import Told
from mlx_grpo_kit.course.exercise import Exercise, drawn
from mlx_grpo_kit.course.slips import slips

# -- one thing after the other ----------------------------------------------------------------------------------------


class Worker:
    """A thread that calls functions one at a time, in the order in which they were submitted."""

    def __init__(self):
        self.queue = Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def submit(self, function):
        """Return a Future for the result of `function()`, without waiting."""
        future = Future()
        self.queue.put((future, function))
        return future

    def work(self):
        while True:
            future, function = self.queue.get()
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)


def _submit(make, plan):
    """The outcomes of functions submitted while the first one is held up, and of those submitted "later"."""
    calls, running, together, lock = [], [], [], threading.Lock()
    begun, gate, overtaken = threading.Event(), threading.Event(), threading.Event()
    caller = threading.current_thread()
    futures, threads, unset = [], [], []

    def function(number, kind):
        with lock:
            running.append(number)
            together.append(len(running))
            called = [each for each in calls if each != "submit waited for it"]
            unset.extend(each for each in called if hasattr(futures[each], "done") and not futures[each].done())
            calls.append(number)
            threads.append(threading.current_thread())
        begun.set()
        if number > 0:
            overtaken.set()
        elif threading.current_thread() is caller or not gate.wait(1.0):
            calls.append("submit waited for it")
        with lock:
            running.remove(number)
        if kind == "raises":
            raise (KeyError, RuntimeError)[number // 2 % 2](f"function {number}")
        return None if kind == "returns None" else 10 * number

    def outcome(future, seconds):
        try:
            return future.result(timeout=seconds)
        except (KeyError, RuntimeError) as error:
            return f"raised: {error.args[0]}"
        except TimeoutError:
            return "never set"

    said, threading.excepthook = threading.excepthook, lambda error: None  # a dying thread would print on the page
    try:
        worker = make()
        for number, kind in enumerate(plan):
            if "later" in kind:  # when the thread has been idle for a while
                gate.set()
                futures[-1].result(timeout=1.0)
                for thread in set(threads) - {caller}:
                    thread.join(0.02)
            futures.append(worker.submit(partial(function, number, kind)))
            if number == 0:
                begun.wait(1.0)  # it runs before the others are submitted
        if any(not hasattr(future, "result") for future in futures):
            return Told("something without a `.result()`")
        overtaken.wait(0.02)  # a function that jumps the queue runs now
        gate.set()
        results = []
        for future in futures:
            results.append(outcome(future, 0.0 if "never set" in results else 1.0))
    finally:
        threading.excepthook = said
    if max(together, default=0) > 1:
        return Told(f"{max(together)} functions called at the same time")
    if len(set(threads)) > 1:
        return Told(f"{len(set(threads))} threads that called functions")
    if unset:
        return Told("a future that was not set yet when the next function began")
    del worker  # a ThreadPoolExecutor ends its thread then
    for thread in set(threads) - {caller}:
        if not thread.daemon and (thread.join(1.0) or thread.is_alive()):
            return Told("a thread that keeps the program alive: it was not made with `daemon=True`")
    return {"called in this order": calls, "results": results}


WORKER = Exercise(
    "22.1",
    "One thing after the other",
    "Write the class `Worker`: a thread with a queue. `submit(function)` returns a `Future` at once, without waiting "
    "for anything. The thread calls the submitted functions **one at a time, in the order in which they were "
    "submitted**, and sets each future: `future.set_result(value)`, or `future.set_exception(error)` if the function "
    "raised `error`. After an error the thread continues with the next function. (`Future` comes from "
    "`concurrent.futures` and `Queue` from `queue`; `queue.get()` waits until there is an item. Make the thread with "
    "`daemon=True`, so that it does not keep the program alive.)",
    minutes=15,
    difficulty=2,
    solution=Worker,
    hints=(
        "You need three pieces. `__init__` makes a `Queue` and starts a thread that runs a method of yours. `submit` "
        "makes a `Future`, puts the pair (future, function) into the queue and returns the future.",
        "The thread's method never ends: `while True: future, function = self.queue.get()`. Then it calls the "
        "function and sets the future.",
        "`try: future.set_result(function())`, `except Exception as error: future.set_exception(error)`. Without the "
        "`except` the first error ends the thread, and every later future is never set.",
    ),
    cases=(
        (["returns", "returns", "returns"],),
        (["returns", "returns later"],),
        (["returns None", "returns"],),
        (["raises", "returns", "raises", "returns"],),
        (["returns"] * 20,),
    ),
    mistakes=slips(
        Worker,
        r"""
called at once
- self.queue.put((future, function))
+ try:
+     future.set_result(function())
+ except Exception as error:
+     future.set_exception(error)
! The function is called inside `submit`, in the caller's thread, so `submit` waits for it. `submit` should only put it
! into the queue.
a thread each (2)
- threading.Thread(target=self.work, daemon=True).start()
+ pass
- self.queue.put((future, function))
+ self.queue.put((future, function))
+ threading.Thread(target=self.work, daemon=True).start()
- while True:
+ if True:
! Every function has its own thread, so they overtake each other. Use one thread, with a queue before it.
the last one first (2)
- self.queue = Queue()
+ self.queue = __import__('queue').LifoQueue()
! The function that was submitted last is called first. A queue returns the item that has waited longest.
errors end the thread (3)
- try:
-     future.set_result(function())
- except Exception as error:
-     future.set_exception(error)
+ future.set_result(function())
! The first error ends the thread: later futures are never set, and waiting for one never ends.
errors as results (3)
- future.set_exception(error)
+ future.set_result(error)
! An error has to be *raised* when somebody asks for the result: `future.set_exception(error)`.
""",
    ),
    also_right=r"""
# a ThreadPoolExecutor
from concurrent.futures import ThreadPoolExecutor
lambda: ThreadPoolExecutor(max_workers=1)
# a Condition
from collections import deque
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
""",
    also_wrong=r"""
# two threads
- threading.Thread(target=self.work, daemon=True).start()
+ for _ in range(2):
+     threading.Thread(target=self.work, daemon=True).start()
! functions called at the same time
# a thread each, in turn
class ThreadsInTurn:
    def __init__(self):
        self.lock = threading.Lock()

    def submit(self, function):
        future = Future()

        def call():
            with self.lock:
                future.set_result(function())

        threading.Thread(target=call, daemon=True).start()
        return future

! 3 threads that called functions
# results of None
- future.set_result(function())
+ result = function()
+ if result is not None:
+     future.set_result(result)
! not set yet when the next function began
# one kind of error
- except Exception as error:
+ except KeyError as error:
! called in this order: [0, 1, 2], expected [0, 1, 2, 3]
# a thread that ends when it is idle
- threading.Thread(target=self.work, daemon=True).start()
+ self.begun = False
- self.queue.put((future, function))
+ self.queue.put((future, function))
+ if not self.begun:
+     self.begun = True
+     threading.Thread(target=self.work, daemon=True).start()
- while True:
+ while not self.queue.empty():
! called in this order: [0], results: [0, 'never set']
# results at the end
class ResultsAtTheEnd(Worker):
    def work(self):
        while True:
            done = []
            while not done or not self.queue.empty():
                future, function = self.queue.get()
                done.append((future, function()))
            for future, result in done:
                future.set_result(result)

! not set yet when the next function began
# a thread that keeps the program alive; it ends at last, so that the test can end
import contextlib
from queue import Empty
class KeepsTheProgramAlive(Worker):
    def __init__(self):
        self.queue = Queue()
        threading.Thread(target=self.work).start()

    def work(self):
        with contextlib.suppress(Empty):
            while True:
                future, function = self.queue.get(timeout=2)
                future.set_result(function())
! not made with `daemon=True`
# a number for a future
class ResultsForFutures:
    def submit(self, function):
        return 3
! something without a `.result()`
""",
    run=_submit,
    explain="A `ThreadPoolExecutor(max_workers=1)` does the same. The kit's own worker (`backends/worker.py`) adds "
    "what a long run needs: it stops after the first error, and it ends with the interpreter, however that ends.",
)


# -- the smallest backend ---------------------------------------------------------------------------------------------


class SmallestBackend:
    """Gradient descent on torch tensors, with two operations that a worker runs."""

    def __init__(self, worker, params, loss_fn, learning_rate):
        self.worker, self.params, self.loss_fn, self.learning_rate = worker, params, loss_fn, learning_rate
        self.steps = 0

    def forward_backward(self, batch):
        """Return a future of the loss, a float. The gradient is added to the one so far."""

        def operation():
            loss = self.loss_fn(self.params, batch)
            loss.backward()
            return loss.item()

        return self.worker.submit(operation)

    def optim_step(self):
        """Return a future of the number of steps done. The gradient is reset."""

        def operation():
            with torch.no_grad():
                for param in self.params.values():
                    param -= self.learning_rate * param.grad
                    param.grad = None
            self.steps += 1
            return self.steps

        return self.worker.submit(operation)


def _follow(make, plan, learning_rate):
    """The results of a backend for a plan of operations, on a desk where they wait until all are submitted."""
    desk = Desk()
    params = {name: torch.tensor(value, requires_grad=True) for name, value in (("slope", 0.5), ("height", [0.0, 1.0]))}
    backend = make(desk, params, loss_of_lines, learning_rate)
    futures = []
    for operation in plan:
        futures.append(backend.optim_step() if operation == "step" else backend.forward_backward(operation))
    if desk.num_waiting != len(plan):
        return Told(f"{desk.num_waiting} operations submitted to the worker, of {len(plan)}")
    if backend.steps != 0:
        return Told(f"`steps` at {backend.steps} before the worker had started")
    if [params["slope"].item(), *params["height"].tolist()] != [0.5, 0.0, 1.0] or params["slope"].grad is not None:
        return Told("new parameters or gradients before the worker had started")
    desk.work()
    results = [future.result() for future in futures]
    if any(isinstance(result, torch.Tensor) for result in results):
        return Told("a tensor instead of a number (use `.item()`)")
    end = backend.params
    if plan[-1] == "step" and any(param.grad is not None for param in end.values()):
        return Told("a `.grad` that is not None after the step")
    return [float(result) for result in results], [round(end["slope"].item(), 6)], np.array(end["height"].tolist())


SMALLEST = Exercise(
    "22.2",
    "The smallest backend",
    "Write the class `SmallestBackend`. `__init__` stores its four arguments under their names, and sets `self.steps "
    "= 0`. `params` is a dictionary of torch tensors that need gradients; `loss_fn(params, batch)` returns a scalar. "
    "`forward_backward(batch)` submits to the worker an operation that computes the loss and adds its gradient to "
    "`.grad`, as `loss.backward()` does; the future's result is the loss, a Python float. `optim_step()` submits an "
    "operation that subtracts `learning_rate` times the gradient from every parameter (inside `with "
    "torch.no_grad():`), sets every `.grad` to None, and adds 1 to `self.steps`; the future's result is that number. "
    "Compute nothing before the worker calls the operation: the parameters may change until then.",
    minutes=15,
    difficulty=2,
    solution=SmallestBackend,
    hints=(
        "Each method defines a function without arguments, and ends with `return self.worker.submit(that_function)`.",
        "In `forward_backward` all three lines belong *inside* the function: the loss, `loss.backward()`, and "
        "`return loss.item()`.",
        "In `optim_step`: `with torch.no_grad():`, then for every parameter `param -= self.learning_rate * param.grad` "
        "and `param.grad = None`; then `self.steps += 1` and `return self.steps`.",
    ),
    cases=(
        ([(1.0, 2.0), "step"], 0.1),
        ([(1.0, 2.0), "step", (1.0, 2.0), "step", (3.0, -1.0), "step"], 0.05),
        ([(1.0, 2.0), (3.0, -1.0), "step", (1.5, 0.5)], 0.1),
        ([(0.5, 0.25)], 1.0),
        ([(2.0, 1.0), (2.0, 1.0), (2.0, 1.0), "step", (0.0, 1.0), "step"], 0.02),
    ),
    mistakes=slips(
        SmallestBackend,
        r"""
the gradient stays (3)
- param.grad = None
! The gradient is still there after the step, so the gradient of the next batch is added to it.
one batch only (2)
  loss = self.loss_fn(self.params, batch)
+ for param in self.params.values():
+     param.grad = None
! A second `forward_backward` before the step forgets the first one's gradient. Gradients have to add up: that is how a
! backend learns in pieces from a batch that does not fit into memory.
a step in it (2)
  loss.backward()
+ with torch.no_grad():
+     for param in self.params.values():
+         param -= self.learning_rate * param.grad
+         param.grad = None
- for param in self.params.values():
-     param -= self.learning_rate * param.grad
-     param.grad = None
+ pass
! The parameters already change in `forward_backward`, and `optim_step` does nothing. Then you cannot add the gradients
! of several batches, and nobody can look at a gradient before it is used.
computed at once
- def operation():
-     loss = self.loss_fn(self.params, batch)
-     loss.backward()
-     return loss.item()
-
- return self.worker.submit(operation)
+ loss = self.loss_fn(self.params, batch)
+ loss.backward()
+ return self.worker.submit(loss.item)
! The gradient is computed when the operation is *submitted*, with the parameters of that moment. Steps that still wait
! in the queue are missing from them.
uphill (3)
- param -= self.learning_rate * param.grad
+ param += self.learning_rate * param.grad
! The step goes uphill. `learning_rate` times the gradient has to be *subtracted*.
steps not counted (3)
- self.steps += 1
+ self.steps = 1
! The future of `optim_step` is the number of steps so far.
""",
    ),
    also_right=r"""
class ReplacingBackend:
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
# new tensors in the dictionary
ReplacingBackend
# torch's own optimizer
class WithOptim(ReplacingBackend):
    def _step(self):
        optimizer = torch.optim.SGD(self.params.values(), lr=self.learning_rate)
        optimizer.step()
        optimizer.zero_grad()
        self.steps = self.steps + 1
        return self.steps
""",
    also_wrong=r'''
# a step in every forward_backward
class StepsInForwardBackward(SmallestBackend):
    def forward_backward(self, batch):
        future = super().forward_backward(batch)
        self.optim_step()
        return future
! operations submitted to the worker
# waits for its result, which hangs unless the worker raises an error
class WaitsForItsResult(SmallestBackend):
    def forward_backward(self, batch):
        future = super().forward_backward(batch)
        future.result()
        return future
! waited for a result, but it has to return the future
# zeros for None
- param.grad = None
+ param.grad = torch.zeros_like(param)
! a `.grad` that is not None after the step
# counted ahead
  """Return a future of the number of steps done. The gradient is reset."""
+ self.steps += 1
- self.steps += 1
! `steps` at 1 before the worker had started
# a tensor
- return loss.item()
+ return loss
! a tensor instead of a number
''',
    run=_follow,
    explain="All five backends of the kit have these two operations. Everything around them (order, errors, "
    "checkpoints) is the same code for all five (`backends/base.py`).",
)


# -- when each operation runs -----------------------------------------------------------------------------------------


def schedule(submitted, durations):
    """(start, end) of each operation of a worker that runs one at a time."""
    times, free = [], 0.0
    for moment, duration in zip(submitted, durations):
        start = max(moment, free)
        free = start + duration
        times.append((start, free))
    return times


def _draw_times(rng):
    count = int(rng.integers(1, 7))
    return np.cumsum(rng.exponential(1.0, count)).round(3).tolist(), rng.exponential(1.2, count).round(3).tolist()


SCHEDULE = Exercise(
    "22.3",
    "When each operation runs",
    "Write `schedule(submitted, durations)` for two lists of times in seconds. Operation k was submitted at "
    "`submitted[k]` (never before operation k - 1) and takes `durations[k]`. The worker runs one operation at a "
    "time, in order, and is free at time 0. Return the list of pairs (start, end).",
    minutes=6,
    difficulty=1,
    solution=schedule,
    hints=(
        "An operation starts when it has been submitted *and* the worker is free: at the later of the two moments.",
        "Keep the moment at which the worker will be free: `start = max(moment, free)`, `free = start + duration`.",
    ),
    cases=(
        ([0.0, 0.0, 0.0], [1.0, 2.0, 0.5]),
        ([0.0, 5.0], [1.0, 1.0]),
        ([0.5, 1.0, 10.0], [2.0, 0.25, 0.0]),
        ([3.0], [1.5]),
        ([], []),
        *drawn(3, _draw_times),
    ),
    mistakes=slips(
        schedule,
        r"""
@ start = max(moment, free)
never idle
+ start = free
! An operation starts before it was submitted. A worker without work has to wait.
all at once
+ start = moment
! Operations start at the moment when they are submitted, and run in parallel. The worker runs one at a time.

@ times.append((start, free))
durations for ends (2)
+ times.append((start, duration))
! The second number is the moment when the operation ends, not its duration.
submitted for start
+ times.append((moment, free))
! The first number is the moment when the operation starts, not when it was submitted.

free from its submission on (2)
- free = start + duration
+ free = moment + duration
! An operation that had to wait also ends later: its end is its *start* plus its duration.
""",
    ),
    also_right=r"""
# recursion
def schedule_by_recursion(submitted, durations):
    if not submitted:
        return []
    before = schedule_by_recursion(submitted[:-1], durations[:-1])
    start = max(submitted[-1], before[-1][1]) if before else submitted[-1]
    return [*before, (start, start + durations[-1])]
# an array
def schedule_as_array(submitted, durations):
    found = np.zeros((len(submitted), 2))
    for k in range(len(submitted)):
        found[k, 0] = max(submitted[k], found[k - 1, 1] if k else 0)
        found[k, 1] = found[k, 0] + durations[k]
    return found
""",
    also_wrong=r"""
# starts only
lambda submitted, durations: [start for start, _ in schedule(submitted, durations)]
# written over
- times.append((start, free))
+ submitted[len(times)] = start
+ times.append((start, free))
! new numbers in what it was given
""",
    run=lambda function, *case: [tuple(map(float, pair)) for pair in function(*case)],
)


# -- state that is replaced -------------------------------------------------------------------------------------------


KEPT = Exercise(
    "22.4",
    "Which copy is still the old policy?",
    "One of these lines stores something in `kept`, then a step is taken, and then you look at `kept`. After which "
    "lines does it still contain the weights from **before** the step? Answer with the letters, in alphabetical "
    'order, as a string such as `"ACG"`. In A to E, `model` is a torch module on the CPU and the step is '
    "`optimizer.step()`. In F to H, `params` is a dictionary of MLX arrays.\n\nA: `kept = model.state_dict()`.  B: "
    "`kept = copy.deepcopy(model.state_dict())`.  C: `kept = {name: p.detach() for name, p in "
    "model.named_parameters()}`.  D: `kept = {name: p.detach().clone() for name, p in model.named_parameters()}`.  "
    "E: `kept = {name: p.detach().numpy() for name, p in model.named_parameters()}`.  F: `kept = params`, and the "
    "step is `params = {name: params[name] - lr * grads[name] for name in params}`.  G: `kept = params`, and the "
    "step is `for name in grads: params[name] = params[name] - lr * grads[name]`.  H: `kept = dict(params)`, and the "
    "step is the same as in G.",
    minutes=6,
    difficulty=2,
    solution="BDFH",
    hints=(
        "torch's optimizer overwrites the numbers in place. Which of A to E have their own memory?",
        "`detach` and `numpy` give another view of the same memory. `clone` and `deepcopy` copy it.",
        "Here no MLX array is overwritten, only entries of dictionaries. F makes a new dictionary, G puts new arrays "
        "into the dictionary that was kept, and `dict(params)` is another dictionary with the same arrays.",
    ),
    mistakes=slips(
        "BDFH",
        r"""
the state is a snapshot
+ "ABDFH"
! A is the view of the cell above: `state_dict` returns the weights themselves.
detached is copied (2)
+ "BCDFH"
! `detach` removes a tensor from the gradient's graph, but it keeps the same memory.
NumPy has its own (2)
+ "BDEFH"
! On the CPU `numpy()` shares the memory of the tensor. `np.array(p.detach())` would copy it.
both share (2)
+ "BCDEFH"
! `detach` and `numpy` share the memory of the tensor: the step overwrites both.
a name is a copy (3)
+ "BDFGH"
! In G, `kept` and `params` are two names of one dictionary, and the step puts new arrays into it.
dict copies nothing (3)
+ "BDF"
! It is true that `dict(params)` contains the same arrays. But the step of G overwrites no array: it puts other arrays
! into the dictionary `params`.
only the copies (3)
+ "BD"
! Those two copy the numbers. But in F and H no number is overwritten: is a copy needed then?
""",
    ),
    also_right=r"""
# a list
["B", "D", "F", "H"]
# small letters
"b, d, f, h"
""",
    also_wrong=r"""
# not in order
"BDHF"
# all
"ABCDEFGH"
""",
    explain="A reference policy that is kept as in A, C, E or G follows the policy, and its KL penalty is always 0.",
)


# -- how far apart ----------------------------------------------------------------------------------------------------


def relative_difference(grads, others):
    """The norm of the difference of two gradients, divided by the norm of the first."""
    difference = sum(float(((np.asarray(grads[name]) - np.asarray(others[name])) ** 2).sum()) for name in grads)
    length = sum(float((np.asarray(grads[name]) ** 2).sum()) for name in grads)
    return difference**0.5 / length**0.5


def _python_float(function, *case):
    found = function(*case)
    if found is None or isinstance(found, float):
        return found
    return Told(f"something of type {type(found).__name__} instead of a Python float (use `float(...)`)")


def _draw_gradients(rng):
    shapes = {"w": (3, 2), "b": (4,), "gain": ()}
    grads = {name: rng.normal(size=shape) * rng.exponential(3.0) for name, shape in shapes.items()}
    return grads, {name: value + 0.01 * rng.normal(size=value.shape) for name, value in grads.items()}


DIFFERENCE = Exercise(
    "22.5",
    "How far apart are two gradients?",
    "Write `relative_difference(grads, others)` for two dictionaries of NumPy arrays with the same names, in any "
    "order. All numbers of a dictionary form one long vector. Return the norm of the difference of the two vectors "
    "divided by the norm of the first, as a Python float. The norm (or length) of a vector is the square root of its "
    "sum of squares.",
    minutes=6,
    difficulty=1,
    solution=relative_difference,
    hints=(
        "First add the squares over all arrays, and take the root once, at the end.",
        "`sum(((grads[name] - others[name]) ** 2).sum() for name in grads)` is the square of the norm of the "
        "difference.",
    ),
    cases=(
        ({"w": np.array([3.0, 4.0])}, {"w": np.array([3.0, 4.5])}),
        ({"w": np.array([3.0]), "b": np.array([4.0])}, {"b": np.array([4.0]), "w": np.array([3.0])}),
        ({"w": np.array([1.0, -2.0]), "b": np.array([[0.5]])}, {"b": np.array([[0.25]]), "w": np.array([1.5, -1.0])}),
        ({"w": np.array([1e-9, 0.0]), "b": np.array([1.0])}, {"w": np.array([2e-9, 0.0]), "b": np.array([1.0])}),
        ({"w": np.array(2.0)}, {"w": np.array(-2.0)}),
        *drawn(3, _draw_gradients),
    ),
    mistakes=slips(
        relative_difference,
        r"""
@ return difference**0.5 / length**0.5
no root
+ return difference / length
! That is the square of the result: 1e-6 would look like 1e-12.
absolute
+ return difference**0.5
! That is the norm of the difference. Whether this norm is small depends on the norm of the gradient.

divided by the second (2)
- length = sum(float((np.asarray(grads[name]) ** 2).sum()) for name in grads)
+ length = sum(float((np.asarray(others[name]) ** 2).sum()) for name in grads)
! Divide by the norm of the *first* gradient.
lengths subtracted (2)
- difference = sum(float(((np.asarray(grads[name]) - np.asarray(others[name])) ** 2).sum()) for name in grads)
+ difference = sum(float((np.asarray(grads[name]) ** 2 - np.asarray(others[name]) ** 2).sum()) for name in grads)
- return difference**0.5 / length**0.5
+ return abs(difference) ** 0.5 / length**0.5
! Two vectors may be equally long and point in opposite directions: subtract first, then square.
paired by position (2)
- difference = sum(float(((np.asarray(grads[name]) - np.asarray(others[name])) ** 2).sum()) for name in grads)
+ others = dict(zip(grads, others.values()))
+ difference = sum(float(((np.asarray(grads[name]) - np.asarray(others[name])) ** 2).sum()) for name in grads)
! The second dictionary has its names in another order: look its arrays up by name.
""",
    ),
    also_right=r"""
# norm
def difference_by_norm(grads, others):
    flat = [np.concatenate([np.ravel(each[name]) for name in sorted(grads)]) for each in (grads, others)]
    return np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[0])
""",
    also_wrong=r"""
# the largest
lambda grads, others: max(abs(grads[name] - others[name]).max() for name in grads)
# a mean over the names
lambda grads, others: np.mean([relative_difference({0: grads[name]}, {0: others[name]}) for name in grads])
# float32
lambda grads, others: np.float32(relative_difference(grads, others))
! of type float32 instead of a Python float
# a tensor
lambda grads, others: torch.tensor(relative_difference(grads, others))
! of type Tensor instead of a Python float
""",
    run=_python_float,
)


# -- what an error poisons --------------------------------------------------------------------------------------------


def outcomes(operations):
    """The outcome of each operation, called in order: (word, value or message)."""
    found, first = [], None
    for operation in operations:
        if first is not None:
            found.append(("refused", first))
            continue
        try:
            found.append(("done", operation()))
        except Exception as error:
            first = str(error)
            found.append(("failed", first))
    return found


def _outcomes(function, plan):
    """The answer's outcomes of the operations, and the numbers of those that were called."""
    called, operations = [], []
    for number, what in enumerate(plan):
        operations.append(build(called, number, what))
    result = function(operations)
    result = [tuple(each) for each in result] if isinstance(result, (list, tuple)) else result
    return {"outcomes": result, "operations called": called}


POISON = Exercise(
    "22.6",
    "Poison",
    "Write `outcomes(operations)`. `operations` is a list of functions without arguments, which a backend calls in "
    'order. Return a list with one pair per function: `("done", value)` with its return value; `("failed", message)` '
    'for the first function that raises, with `message = str(error)`; and `("refused", message)`, with the message '
    "of the failed function, for **all** functions after it, which are not called any more.",
    minutes=8,
    difficulty=1,
    solution=outcomes,
    hints=(
        "Store the first message in a variable that is None as long as nothing has failed.",
        'At the top of the loop: if `first is not None`, append `("refused", first)` and `continue`.',
        "Do not write `if first:`, because a message may be empty.",
    ),
    cases=(
        (["1", "2", "3"],),
        (["1", "raises nan", "3", "4"],),
        (["raises out of memory", "raises nan", "3"],),
        (["1", "raises "],),
        (["raises ", "2", "3"],),
        (["None", "raises late"],),
        (["1", "lacks weights", "3"],),
        (["1", "surprises late", "3"],),
        ([],),
    ),
    mistakes=slips(
        outcomes,
        r"""
all continue
- first = str(error)
- found.append(("failed", first))
+ found.append(("failed", str(error)))
! After an error the next operation is still called. An `optim_step` would then take its step with half a gradient.
an empty message (3)
- if first is not None:
+ if first:
! An error without a message poisons the backend too: check whether there was an error, not whether it had a message.
ends at the error (2)
- found.append(("refused", first))
- continue
+ break
! Somebody may wait for a later operation, so every operation needs a pair.
failed, all of them (2)
- found.append(("refused", first))
+ found.append(("failed", first))
! Only the first one has failed. The operations after it were never called: they are refused.
the number of the error
- first = str(error)
+ first = repr(error)
! The message is `str(error)`.
some errors only
- except Exception as error:
+ except (ValueError, KeyError, RuntimeError) as error:
! Any error of an operation poisons the backend, and nobody can list all kinds: use `except Exception`.
one is let through
  found.append(("refused", first))
+ first = None
! After one refusal your function continues as if nothing had happened. Poison stays.
""",
    ),
    also_right=r"""
# failed ones looked up
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
""",
    also_wrong=r"""
# all called
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
# one kind of error
- except Exception as error:
+ except ValueError as error:
# some kinds of errors
- except Exception as error:
+ except (ValueError, KeyError, ArithmeticError, OSError, RuntimeError) as error:
! nobody can list all kinds
# arguments
- first = str(error)
+ first = error.args[0]
""",
    run=_outcomes,
)


# -- an order that loses nothing --------------------------------------------------------------------------------------

ORDER = Exercise(
    "22.7",
    "An order that loses nothing",
    "A checkpoint of step 100 exists, and you want to replace it with another one of step 100. The machine may lose "
    "power after any of these five actions, or in the middle of one. In which order do you have to take the actions, "
    "so that there is a whole checkpoint at every moment, and any folder called `step_0100` is whole? Answer with "
    'the five letters, such as `"ABCDE"`.\n\nA: give the new folder the name `step_0100` (the same action moves the '
    "old one aside).  B: write the weights and the optimizer's state into a new folder next to the old one.  C: wait "
    "until everything in the new folder is on the disk (`fsync`).  D: write `metadata.json`, with the hash of every "
    "file, into the new folder.  E: delete the old folder.",
    minutes=5,
    difficulty=2,
    solution="BDCAE",
    hints=(
        "If you delete first, you cannot go back. If you rename a file before it is on the disk, it may be empty "
        "after a power cut, under its right name.",
        "The metadata says that everything else is there, so it cannot be written before that.",
    ),
    mistakes=slips(
        "BDCAE",
        r"""
delete first
+ "EBDCA"
! Between E and A there is no checkpoint of step 100 at all, and writing the weights takes longest.
delete before the rename
+ "BDCEA"
! Between E and A no folder has the name. It is a short moment, but one day the power will fail in it.
rename before the disk
+ "BDACE"
! A file that you write is in memory first. A power cut between A and C leaves a folder with the right name whose files
! may be empty: the rename may reach the disk before the files.
metadata first (2)
+ "DBCAE"
! The hashes of files that are not yet written are not known. And a kill during B would leave metadata about files that
! do not exist.
metadata after the disk
+ "BCDAE"
! Then the metadata itself may not be on the disk when the folder gets its name.
metadata after the name (2)
+ "BCADE"
! Between A and D the folder has the name but no metadata: it is not whole, and the old one has been moved aside.
""",
    ),
    also_right=r"""
# a list
["B", "D", "C", "A", "E"]
# small letters
"b d c a e"
""",
    also_wrong=r"""
# six
"BDCAEE"
# in order
"ABCDE"
""",
    explain="The kit's `replaced_folder` does these actions in this order for everything that it saves.",
)


# -- whole checkpoints ------------------------------------------------------------------------------------------------


def newest_whole(folder):
    """The name of the checkpoint with the highest step that is whole, or None."""
    steps = {}
    for path in folder.glob("step_*"):
        if path.name.removeprefix("step_").isdigit():
            steps[int(path.name.removeprefix("step_"))] = path
    for step in sorted(steps, reverse=True):
        try:
            files = json.loads((steps[step] / "metadata.json").read_text())["files"]
            found = {name: hashlib.sha256((steps[step] / name).read_bytes()).hexdigest() for name in files}
            if all(found[name] == files[name]["sha256"] for name in files):
                return steps[step].name
        except (OSError, ValueError, KeyError):
            continue
    return None


def _write_checkpoint(folder, state):
    """Write a checkpoint of two small files, in a state that a save may leave behind."""
    folder.mkdir()
    if state == "empty":
        return
    contents = {"weights.bin": f"weights of {folder.name}".encode() + b"\xff\r\n", "optimizer.bin": b"moments" * 3}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    if state == "no metadata":
        return
    files = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }
    metadata = {"step": 1, "files": files}
    (folder / "metadata.json").write_text(json.dumps(metadata))
    if state == "both cut off":
        (folder / "optimizer.bin").write_bytes(contents["optimizer.bin"][:-2])
    if state in ("cut off", "both cut off"):
        (folder / "weights.bin").write_bytes(contents["weights.bin"][:-2])
    if state == "flipped":
        flipped = bytes([contents["optimizer.bin"][0] ^ 1]) + contents["optimizer.bin"][1:]
        (folder / "optimizer.bin").write_bytes(flipped)
    if state == "a file lost":
        (folder / "optimizer.bin").unlink()
    if state == "half metadata":
        (folder / "metadata.json").write_text(json.dumps(metadata)[:20])
    if state == "other metadata":
        (folder / "metadata.json").write_text("{}")


def _look(function, checkpoints):
    with tempfile.TemporaryDirectory() as name:
        for moment, (each, state) in enumerate(checkpoints.items()):
            _write_checkpoint(Path(name) / each, state)
            os.utime(Path(name) / each, (1e9 + moment, 1e9 + moment))
        before = sorted(Path(name).rglob("*"))
        found = function(Path(name))
        if sorted(Path(name).rglob("*")) != before:
            return Told("a folder with added or removed files")
        return Told("a path instead of its name (use `path.name`)") if isinstance(found, Path) else found


WHOLE = Exercise(
    "22.8",
    "The newest whole checkpoint",
    "Write `newest_whole(folder)`. `folder` is a `Path` to a folder of checkpoints, which are folders themselves, "
    'called `step_` and a number, such as `step_0100`. A checkpoint\'s `metadata.json` contains `{"files": {name: '
    '{"size": ..., "sha256": ...}, ...}}`. The checkpoint is **whole** if every listed file exists and has its hash: '
    "`hashlib.sha256(path.read_bytes()).hexdigest()`. Return the name of the whole checkpoint with the highest step, "
    "or None if there is none. Skip a checkpoint if its metadata is missing, cannot be read or has no `files`. Skip "
    "anything with another name (`step_0100.tmp`).",
    minutes=15,
    difficulty=2,
    solution=newest_whole,
    hints=(
        "First find the folders and their numbers. Then go through them from the highest number down, and return the "
        "first whole one.",
        "Sorted as strings, `step_9999` comes after `step_10000`. Sort by `int(name.removeprefix('step_'))`.",
        "Whatever is wrong with a checkpoint, a missing file (`OSError`), broken JSON (`ValueError`), no `files` "
        "(`KeyError`), the consequence is the same: skip it. One `try` around everything is enough.",
    ),
    cases=(
        ({"step_0001": "whole", "step_0002": "whole"},),
        ({"step_9999": "whole", "step_10000": "whole"},),
        ({"step_0001": "whole", "step_0002": "cut off"},),
        ({"step_0001": "whole", "step_0002": "flipped", "step_0003": "a file lost"},),
        ({"step_0007": "whole", "step_0008": "no metadata", "step_0009": "half metadata", "step_0010": "empty"},),
        ({"step_0003": "whole", "step_0004.tmp": "whole", "other": "whole", "old_step_0009": "whole"},),
        ({"step_0002": "whole", "step_0001": "whole"},),
        ({"step_0000": "whole", "step_0001": "flipped"},),
        ({"step_9": "whole", "step_12": "whole"},),
        ({"step_0003": "other metadata", "step_0002": "whole"},),
        ({"step_0001": "whole", "step_0002": "both cut off"},),
        ({"step_0001": "flipped"},),
        ({},),
    ),
    mistakes=slips(
        newest_whole,
        r"""
@ for step in sorted(steps, reverse=True):
sorted as text (2)
+ for step in sorted(steps, key=str, reverse=True):
! The steps are compared as strings, in which 9999 comes after 10000. Compare numbers.
the oldest
+ for step in sorted(steps):
! That is the oldest checkpoint.

@ found = {name: hashlib.sha256((steps[step] / name).read_bytes()).hexdigest() for name in files}
@ if all(found[name] == files[name]["sha256"] for name in files):
the newest, whole or not
+
+ if True or all(found[name] == files[name]["sha256"] for name in files):
! The hashes are not checked. A file that was cut off or changed would be loaded without a warning.
existence for wholeness (3)
+ found = {name: (steps[step] / name).exists() for name in files}
+ if all(found[name] for name in files):
! It is not enough that the files exist: a file that was cut off exists too. Compare the hashes.

only the newest is tried (3)
- continue
+ return None
! If the newest checkpoint is broken, an older one may be whole: continue with it.
any file
- if all(found[name] == files[name]["sha256"] for name in files):
+ if any(found[name] == files[name]["sha256"] for name in files):
! *Every* listed file has to have its hash.
""",
    ),
    also_right=r"""
# iterdir
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
""",
    also_wrong=r"""
# by the clock
- for step in sorted(steps, reverse=True):
+ for step in sorted(steps, key=lambda step: steps[step].stat().st_mtime, reverse=True):
# by the clock, with metadata
def by_time(folder):
    found = [path for path in folder.glob("step_*") if (path / "metadata.json").exists()]
    return max(found, key=lambda path: path.stat().st_mtime).name if found else None
# a path
- return steps[step].name
+ return steps[step]
! instead of its name (use `path.name`)
# a path in a list
- return steps[step].name
+ return [steps[step]]
# after step 0
- for step in sorted(steps, reverse=True):
+ for step in sorted(filter(None, steps), reverse=True):
# four digits
- return steps[step].name
+ return f"step_{step:04d}"
# any name
- for path in folder.glob("step_*"):
-     if path.name.removeprefix("step_").isdigit():
-         steps[int(path.name.removeprefix("step_"))] = path
+ for path in folder.glob("*step_*"):
+     if path.name.rpartition("_")[2].isdigit():
+         steps[int(path.name.rpartition("_")[2])] = path
# broken ones deleted
  except (OSError, ValueError, KeyError):
+     __import__("shutil").rmtree(steps[step])
! added or removed files
""",
    run=_look,
)


# -- ahead of the learner ---------------------------------------------------------------------------------------------


def async_times(write, learn, num_steps, max_lag):
    """(write start, write end, learn start, learn end) of every batch."""
    times, writer, learner, learned = [], 0.0, 0.0, []
    for number in range(num_steps):
        needed = number - max_lag
        start = max(writer, learned[needed - 1] if needed > 0 else 0.0)
        writer = start + write
        begin = max(writer, learner)
        learner = begin + learn
        learned.append(learner)
        times.append((start, writer, begin, learner))
    return times


def _draw_run(rng):
    return (*rng.exponential(1.0, 2).round(3).tolist(), int(rng.integers(1, 8)), int(rng.integers(0, 4)))


ASYNC = Exercise(
    "22.9",
    "Ahead of the learner",
    "Write `async_times(write, learn, num_steps, max_lag)`. A writer needs `write` seconds for batch k (counted from "
    "0) and writes one batch after the other. A learner needs `learn` seconds for an update and does one update "
    "after the other. Update k needs batch k to be written. The writer may start batch k only when `k - max_lag` "
    "updates are done, so that its weights are at most `max_lag` updates old. Both start as early as they can, from "
    "time 0. Return a list with four moments per batch: (write start, write end, learn start, learn end).",
    minutes=12,
    difficulty=3,
    solution=async_times,
    hints=(
        "Batch k starts when the writer is done with the previous batch *and* enough updates are done; update k "
        "starts when its batch is written *and* the learner is done with the previous update. Each is a `max` of two "
        "moments.",
        "Keep a list of the moments when updates ended. When are `n` updates done, for n of 1 or more? At `ended[n - "
        "1]`. For n of 0 or less there is nothing to wait for.",
        "With `max_lag` 0, batch k waits for k updates: all updates before it. Then the two take turns, and a step "
        "takes `write + learn`.",
    ),
    cases=(
        (1.0, 2.0, 4, 0),
        (1.0, 2.0, 4, 1),
        (2.0, 1.0, 4, 1),
        (1.0, 3.0, 6, 2),
        (1.0, 3.0, 6, 9),
        (0.5, 0.5, 1, 0),
        *drawn(4, _draw_run),
    ),
    mistakes=slips(
        async_times,
        r"""
@ start = max(writer, learned[needed - 1] if needed > 0 else 0.0)
no bound
+ start = writer
! The writer never waits for the learner: its lead, and with it the lag, grows without limit.
the first update, always (2)
+ start = max(writer, learned[0] if needed > 0 else 0.0)
! Every batch waits only for the first update, but batch k has to wait for `k - max_lag` updates.

@ needed = number - max_lag
one too many (2)
+ needed = number - max_lag - 1
! The weights are one update older than allowed: with `max_lag` 0, batch 1 has to wait for the first update.
one too few (2)
+ needed = number - max_lag + 1
! The writer waits for one update more than necessary.

@ begin = max(writer, learner)
two learners
+ begin = writer
! An update starts before the previous update has ended.
before it is written
+ begin = learner
! An update starts before its batch is written.
""",
    ),
    also_right=r"""
# recursion
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
""",
    also_wrong=r"""
# synchronous
lambda write, learn, num_steps, max_lag: async_times(write, learn, num_steps, 0)
# three moments
lambda *settings: [each[:3] for each in async_times(*settings)]
""",
    run=lambda function, *case: [tuple(map(float, each)) for each in function(*case)],
    explain="With `max_lag` 1 or more, the slower of the two sets the pace. More lag helps only if the times vary.",
)
