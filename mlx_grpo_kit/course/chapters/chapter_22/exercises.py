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
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.slips import Slip, slips

# -- one thing after the other ----------------------------------------------------------------------------------------


class Worker:
    """A thread that calls functions one at a time, in the order in which they were submitted."""

    def __init__(self):
        self.queue = Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def submit(self, function):
        """A Future of what `function()` returns. Does not wait."""
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
    """What became of functions that were submitted while the first of them was held up, and of those "later"."""
    calls, running, together, lock = [], [], [], threading.Lock()
    gate, overtaken = threading.Event(), threading.Event()
    futures, threads, unset = [], [], []

    def function(number, kind):
        with lock:
            running.append(number)
            together.append(len(running))
            called = [each for each in calls if each != "submit waited for it"]
            unset.extend(each for each in called if hasattr(futures[each], "done") and not futures[each].done())
            calls.append(number)
            threads.append(threading.current_thread())
        if number > 0:
            overtaken.set()
        elif not gate.wait(0.3):
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

    said, threading.excepthook = threading.excepthook, lambda error: None  # a thread that dies says so on the page
    try:
        worker = make()
        for number, kind in enumerate(plan):
            if "later" in kind:  # when the thread has long had nothing to do
                gate.set()
                futures[-1].result(timeout=1.0)
                for thread in set(threads) - {threading.current_thread()}:
                    thread.join(0.02)
            futures.append(worker.submit(partial(function, number, kind)))
        if any(not hasattr(future, "result") for future in futures):
            return Told("something without a `.result()`")
        overtaken.wait(0.02)  # who is going to jump the queue does it now
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
    del worker  # with which a ThreadPoolExecutor ends its thread
    for thread in set(threads) - {threading.current_thread()}:
        if not thread.daemon and (thread.join(0.2) or thread.is_alive()):
            return Told("a thread that keeps the program alive: it was not made with `daemon=True`")
    return {"called in this order": calls, "results": results}


class _InACaller:
    """Called where it was submitted."""

    def submit(self, function):
        future = Future()
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)
        return future


class _AThreadEach:
    """A thread for every function."""

    def submit(self, function):
        future = Future()

        def call():
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        threading.Thread(target=call, daemon=True).start()
        return future


WORKER = Exercise(
    "22.1",
    "One thing after the other",
    "Write the class `Worker`: a thread with a queue. `submit(function)` returns a `Future` at once, without waiting "
    "for anything. The thread calls the submitted functions **one at a time, in the order in which they were "
    "submitted**, and sets each future: `future.set_result(value)`, or `future.set_exception(error)` where the "
    "function raised `error`. After an error the thread goes on with the next function. (`Future` is that of "
    "`concurrent.futures`; `Queue` that of `queue`: `queue.get()` waits until something is there. Make the thread "
    "with `daemon=True`, so that it does not keep the program alive.)",
    minutes=15,
    difficulty=2,
    solution=Worker,
    hints=(
        "Three pieces: `__init__` makes a `Queue` and starts a thread on a method of your own; `submit` makes a "
        "`Future`, puts the pair (future, function) into the queue and returns the future.",
        "The thread's method never ends: `while True: future, function = self.queue.get()`, and then it calls the "
        "function and sets the future.",
        "`try: future.set_result(function())`, `except Exception as error: future.set_exception(error)`. Without the "
        "`except` the first error ends the thread, and everybody who comes later waits for ever.",
    ),
    cases=(
        (["returns", "returns", "returns"],),
        (["returns", "returns later"],),
        (["returns None", "returns"],),
        (["raises", "returns", "raises", "returns"],),
        (["returns"] * 20,),
    ),
    mistakes=(
        Mistake(
            "called at once",
            _InACaller,
            "The function is called inside `submit`, by whoever submits it, and so `submit` waits for it. It only has "
            "to go into the queue.",
            1,
        ),
        Mistake(
            "a thread each",
            _AThreadEach,
            "Every function has a thread of its own, so they overtake each other. There is one thread, and a queue in "
            "front of it.",
            2,
        ),
        *slips(
            Worker,
            Slip(
                "the last one first",
                "- self.queue = Queue()",
                "+ self.queue = __import__('queue').LifoQueue()",
                message="What was submitted last is called first: a queue hands out what has waited longest.",
                hint=2,
            ),
            Slip(
                "errors end the thread",
                "- try:",
                "-     future.set_result(function())",
                "- except Exception as error:",
                "-     future.set_exception(error)",
                "+ future.set_result(function())",
                message="The first error ends the thread: whoever waits for a later result waits for ever.",
                hint=3,
            ),
            Slip(
                "errors as results",
                "- future.set_exception(error)",
                "+ future.set_result(error)",
                message="An error has to be *raised* where the result is asked for: `future.set_exception(error)`.",
                hint=3,
            ),
        ),
    ),
    run=_submit,
    explain="A `ThreadPoolExecutor(max_workers=1)` does the same. The kit's own (`backends/worker.py`) adds what a "
    "long run needs: it stops after the first error, and ends with the interpreter, however that ends.",
)


# -- the smallest backend ---------------------------------------------------------------------------------------------


class SmallestBackend:
    """Gradient descent on torch tensors, in two operations that are submitted."""

    def __init__(self, worker, params, loss_fn, learning_rate):
        self.worker, self.params, self.loss_fn, self.learning_rate = worker, params, loss_fn, learning_rate
        self.steps = 0

    def forward_backward(self, batch):
        """A future of the loss, a float. The gradient is added to what is there."""

        def operation():
            loss = self.loss_fn(self.params, batch)
            loss.backward()
            return loss.item()

        return self.worker.submit(operation)

    def optim_step(self):
        """A future of the number of steps done. The gradient is used up."""

        def operation():
            with torch.no_grad():
                for param in self.params.values():
                    param -= self.learning_rate * param.grad
                    param.grad = None
            self.steps += 1
            return self.steps

        return self.worker.submit(operation)


def _follow(make, plan, learning_rate):
    """What a backend gives for a plan of operations, on a desk where they wait until all are submitted."""
    desk = Desk()
    params = {name: torch.tensor(value, requires_grad=True) for name, value in (("slope", 0.5), ("height", [0.0, 1.0]))}
    backend = make(desk, params, loss_of_lines, learning_rate)
    futures = []
    for operation in plan:
        futures.append(backend.optim_step() if operation == "step" else backend.forward_backward(operation))
    if desk.num_waiting != len(plan):
        return Told(f"{desk.num_waiting} operations handed to the worker, of {len(plan)}")
    if backend.steps != 0:
        return Told(f"`steps` at {backend.steps} before the worker had begun")
    if [params["slope"].item(), *params["height"].tolist()] != [0.5, 0.0, 1.0] or params["slope"].grad is not None:
        return Told("new parameters or gradients before the worker had begun")
    desk.work()
    results = [future.result() for future in futures]
    if any(isinstance(result, torch.Tensor) for result in results):
        return Told("a tensor where a number was asked for (`.item()`)")
    end = backend.params
    if plan[-1] == "step" and any(param.grad is not None for param in end.values()):
        return Told("a `.grad` that is not None after the step")
    return [float(result) for result in results], [round(end["slope"].item(), 6)], np.array(end["height"].tolist())


SMALLEST = Exercise(
    "22.2",
    "The smallest backend",
    "Write the class `SmallestBackend`. `__init__` keeps its four arguments under their names, and begins with "
    "`self.steps = 0`. `params` is a dictionary of torch tensors that need gradients; `loss_fn(params, batch)` is a "
    "scalar. `forward_backward(batch)` submits an operation "
    "to the worker that computes the loss and adds its gradient to `.grad`, as `loss.backward()` does; its future is "
    "the loss, a Python float. `optim_step()` submits one that subtracts `learning_rate` times the gradient from every "
    "parameter (inside `with torch.no_grad():`), sets every `.grad` to None, and counts `self.steps` up; its future is "
    "that number. Nothing may be computed before the worker calls the operation: the parameters may change until then.",
    minutes=15,
    difficulty=2,
    solution=SmallestBackend,
    hints=(
        "Each method defines a function without arguments and ends with `return self.worker.submit(that_function)`.",
        "In `forward_backward` all three lines belong *into* the function: the loss, `loss.backward()`, and "
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
        Slip(
            "the gradient stays",
            "- param.grad = None",
            message="The gradient is still there after the step, and the next batch's is added to it.",
            hint=3,
        ),
        Slip(
            "one batch only",
            "  loss = self.loss_fn(self.params, batch)",
            "+ for param in self.params.values():",
            "+     param.grad = None",
            message=(
                "A second `forward_backward` before the step forgets the first one's gradient. They add up: that is "
                "how a batch that does not fit into memory is learned from in pieces."
            ),
            hint=2,
        ),
        Slip(
            "a step in it",
            "  loss.backward()",
            "+ with torch.no_grad():",
            "+     for param in self.params.values():",
            "+         param -= self.learning_rate * param.grad",
            "+         param.grad = None",
            "- for param in self.params.values():",
            "-     param -= self.learning_rate * param.grad",
            "-     param.grad = None",
            "+ pass",
            message=(
                "The parameters change in `forward_backward` already, and `optim_step` does nothing. Then gradients of"
                " several batches cannot be added up, and nobody can look at a gradient before it is used."
            ),
            hint=2,
        ),
        Slip(
            "computed at once",
            "- def operation():",
            "-     loss = self.loss_fn(self.params, batch)",
            "-     loss.backward()",
            "-     return loss.item()",
            "-",
            "- return self.worker.submit(operation)",
            "+ loss = self.loss_fn(self.params, batch)",
            "+ loss.backward()",
            "+ return self.worker.submit(loss.item)",
            message=(
                "The gradient is computed when the operation is *submitted*, with the parameters of that moment. A "
                "step that is still waiting in the queue would come too late for it."
            ),
        ),
        Slip(
            "uphill",
            "- param -= self.learning_rate * param.grad",
            "+ param += self.learning_rate * param.grad",
            message="The step goes uphill: `learning_rate` times the gradient is *subtracted*.",
            hint=3,
        ),
        Slip(
            "steps not counted",
            "- self.steps += 1",
            "+ self.steps = 1",
            message="The future of `optim_step` is how many steps have been done so far.",
            hint=3,
        ),
    ),
    run=_follow,
    explain="These are the two operations that all five backends of the kit have. What is around them, order, errors, "
    "checkpoints, is the same code for all five (`backends/base.py`).",
)


# -- when each operation runs -----------------------------------------------------------------------------------------


def schedule(submitted, durations):
    """(start, end) of each operation of a worker that does one at a time."""
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
    "Write `schedule(submitted, durations)`: two lists of seconds. Operation k was submitted at `submitted[k]` (never "
    "before the one before it) and takes `durations[k]`. The worker does one at a time, in order, and is free at 0. "
    "Return the list of pairs (start, end).",
    minutes=6,
    difficulty=1,
    solution=schedule,
    hints=(
        "An operation begins when it has been submitted *and* the worker is free: the later of the two moments.",
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
        Slip(
            "never idle",
            "- start = max(moment, free)",
            "+ start = free",
            message="An operation starts before it was submitted: a worker with nothing to do waits.",
        ),
        Slip(
            "all at once",
            "- start = max(moment, free)",
            "+ start = moment",
            message=(
                "Operations start the moment they are submitted, and run side by side. The worker does one at a time."
            ),
        ),
        Slip(
            "durations for ends",
            "- times.append((start, free))",
            "+ times.append((start, duration))",
            message="The second number is the moment at which the operation ends, not how long it takes.",
            hint=2,
        ),
        Slip(
            "free from its submission on",
            "- free = start + duration",
            "+ free = moment + duration",
            message="An operation that had to wait ends later too: its end is its *start* plus its duration.",
            hint=2,
        ),
        Slip(
            "submitted for start",
            "- times.append((start, free))",
            "+ times.append((moment, free))",
            message="The first number is when it starts, not when it was submitted.",
        ),
    ),
    run=lambda function, *case: [tuple(map(float, pair)) for pair in function(*case)],
)


# -- state that is replaced -------------------------------------------------------------------------------------------


KEPT = Exercise(
    "22.4",
    "What is still the old policy?",
    "Something is kept by one of these lines, then a step is taken, and then `kept` is looked at. In which of them "
    "does it still hold the weights from **before** the step? Answer with the letters, in alphabetical order, as a "
    'text such as `"ACG"`. In A to E, `model` is a torch module on the CPU and the step is `optimizer.step()`. In F '
    "to H, `params` is a dictionary of MLX arrays.\n\n"
    "A: `kept = model.state_dict()`.  B: `kept = copy.deepcopy(model.state_dict())`.  "
    "C: `kept = {name: p.detach() for name, p in model.named_parameters()}`.  "
    "D: `kept = {name: p.detach().clone() for name, p in model.named_parameters()}`.  "
    "E: `kept = {name: p.detach().numpy() for name, p in model.named_parameters()}`.  "
    "F: `kept = params`, and the step is `params = {name: params[name] - lr * grads[name] for name in params}`.  "
    "G: `kept = params`, and the step is `for name in grads: params[name] = params[name] - lr * grads[name]`.  "
    "H: `kept = dict(params)`, and the step is that of G.",
    minutes=6,
    difficulty=2,
    solution="BDFH",
    hints=(
        "The optimizer of torch writes over the numbers where they are. Which of A to E have numbers of their own?",
        "`detach` and `numpy` are other ways to look at the same memory. `clone` and `deepcopy` copy it.",
        "No MLX array is written over here, only dictionaries are: F makes a new one, G puts new arrays into the one "
        "that was kept, and `dict(params)` is another dictionary with the same arrays.",
    ),
    mistakes=(
        Mistake(
            "the state is a snapshot",
            "ABDFH",
            "A is the window of the cell above: `state_dict` hands out the weights themselves.",
            1,
        ),
        Mistake(
            "detached is copied",
            "BCDFH",
            "`detach` cuts a tensor from the graph of its gradient, and leaves it in the same memory.",
            2,
        ),
        Mistake(
            "NumPy has its own",
            "BDEFH",
            "On the CPU `numpy()` shares the memory of the tensor. `np.array(p.detach())` would copy it.",
            2,
        ),
        Mistake(
            "both share",
            "BCDEFH",
            "`detach` and `numpy` share the memory of the tensor: the step writes over both.",
            2,
        ),
        Mistake(
            "a name is a copy",
            "BDFGH",
            "In G `kept` and `params` are two names of one dictionary, and the step puts new arrays into it.",
            3,
        ),
        Mistake(
            "dict copies nothing",
            "BDF",
            "`dict(params)` holds the same arrays, true. But the step of G writes over no array: it puts others into "
            "the dictionary `params`.",
            3,
        ),
        Mistake(
            "only what is copied",
            "BD",
            "Those two copy the numbers. But in F and H no number is written over: does a copy need to be made?",
            3,
        ),
    ),
    explain="A reference policy that is kept as in A, C, E or G follows the policy, and its KL penalty is 0 for ever.",
)


# -- how far apart ----------------------------------------------------------------------------------------------------


def relative_difference(grads, others):
    """The length of the difference of two gradients, as a share of the length of the first."""
    difference = sum(float(((np.asarray(grads[name]) - np.asarray(others[name])) ** 2).sum()) for name in grads)
    length = sum(float((np.asarray(grads[name]) ** 2).sum()) for name in grads)
    return difference**0.5 / length**0.5


def _python_float(function, *case):
    found = function(*case)
    if found is None or isinstance(found, float):
        return found
    return Told(f"something of type {type(found).__name__} where a Python float was asked for (`float(...)`)")


def _draw_gradients(rng):
    shapes = {"w": (3, 2), "b": (4,), "gain": ()}
    grads = {name: rng.normal(size=shape) * rng.exponential(3.0) for name, shape in shapes.items()}
    return grads, {name: value + 0.01 * rng.normal(size=value.shape) for name, value in grads.items()}


DIFFERENCE = Exercise(
    "22.5",
    "How far apart are two gradients?",
    "Write `relative_difference(grads, others)` for two dictionaries of NumPy arrays with the same names, in any "
    "order. All numbers of a dictionary together are one long vector. Return the length of the difference of the two "
    "vectors divided by the length of the first: a Python float. The length is the square root of the sum of squares.",
    minutes=6,
    difficulty=1,
    solution=relative_difference,
    hints=(
        "Add up squares over all arrays first, and take the root once, at the end.",
        "`sum(((grads[name] - others[name]) ** 2).sum() for name in grads)` is the square of the length of the "
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
        Slip(
            "no root",
            "- return difference**0.5 / length**0.5",
            "+ return difference / length",
            message="That is the square of it: 1e-6 would look like 1e-12.",
        ),
        Slip(
            "absolute",
            "- return difference**0.5 / length**0.5",
            "+ return difference**0.5",
            message="That is the length of the difference. Whether it is small depends on how long the gradient is.",
        ),
        Slip(
            "divided by the second",
            "- length = sum(float((np.asarray(grads[name]) ** 2).sum()) for name in grads)",
            "+ length = sum(float((np.asarray(others[name]) ** 2).sum()) for name in grads)",
            message="It is a share of the length of the *first*.",
            hint=2,
        ),
        Slip(
            "lengths subtracted",
            "- difference = sum(float(((np.asarray(grads[name]) - np.asarray(others[name])) ** 2).sum()) for name in grads)",  # noqa: E501
            "+ difference = sum(float((np.asarray(grads[name]) ** 2 - np.asarray(others[name]) ** 2).sum()) for name in grads)",  # noqa: E501
            "- return difference**0.5 / length**0.5",
            "+ return abs(difference) ** 0.5 / length**0.5",
            message="Two vectors may be equally long and point in opposite directions: subtract first, then square.",
            hint=2,
        ),
        Slip(
            "paired by place",
            "- difference = sum(float(((np.asarray(grads[name]) - np.asarray(others[name])) ** 2).sum()) for name in grads)",  # noqa: E501
            "+ difference = sum(float(((np.asarray(grads[name]) - np.asarray([*others.values()][[*grads].index(name)])) ** 2).sum()) for name in grads)",  # noqa: E501
            message="The names stand in another order in the second dictionary: take its arrays by their names.",
            hint=2,
        ),
    ),
    run=_python_float,
)


# -- what an error poisons --------------------------------------------------------------------------------------------


def outcomes(operations):
    """What becomes of operations that are called in order: (word, value or message) of each."""
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
    """What it says of operations, and which of them were called."""
    called, operations = [], []
    for number, what in enumerate(plan):
        operations.append(build(called, number, what))
    result = function(operations)
    result = [tuple(each) for each in result] if isinstance(result, (list, tuple)) else result
    return result, called


def _all_go_on(operations):
    found = []
    for operation in operations:
        try:
            found.append(("done", operation()))
        except Exception as error:
            found.append(("failed", str(error)))
    return found


POISON = Exercise(
    "22.6",
    "Poison",
    "Write `outcomes(operations)`: what becomes of a list of functions without arguments that a backend calls in "
    'order. Return a list with a pair for each: `("done", value)` for what it returned; `("failed", message)` for the '
    'first one that raises, with `message = str(error)`; and `("refused", message)`, with the message of the one that '
    "failed, for **all** after it, which are not called any more.",
    minutes=8,
    difficulty=1,
    solution=outcomes,
    hints=(
        "Remember the first message in a variable that is None as long as all goes well.",
        'At the top of the loop: `if first is not None:`, append `("refused", first)` and `continue`.',
        "Not `if first:`, for a message may be empty.",
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
    mistakes=(
        Mistake(
            "all go on",
            _all_go_on,
            "After an error the next operation is called all the same. An `optim_step` would take its step with half "
            "a gradient.",
            1,
        ),
        *slips(
            outcomes,
            Slip(
                "an empty message",
                "- if first is not None:",
                "+ if first:",
                message=(
                    "An error without a message poisons too: ask whether there was one, not whether it said something."
                ),
                hint=3,
            ),
            Slip(
                "ends at the error",
                '- found.append(("refused", first))',
                "- continue",
                "+ break",
                message="Whoever waits for a later operation has to be told something: each gets a pair.",
                hint=2,
            ),
            Slip(
                "failed, all of them",
                '- found.append(("refused", first))',
                '+ found.append(("failed", first))',
                message="Only the first has failed. Those after it were never called: they are refused.",
                hint=2,
            ),
            Slip(
                "the number of the error",
                "- first = str(error)",
                "+ first = repr(error)",
                message="The message is `str(error)`.",
            ),
            Slip(
                "some errors alone",
                "- except Exception as error:",
                "+ except (ValueError, KeyError, RuntimeError) as error:",
                message=(
                    "Whatever an operation raises poisons, and nobody can list what that may be: `except Exception`."
                ),
            ),
            Slip(
                "one is let through",
                '  found.append(("refused", first))',
                "+ first = None",
                message="After one refusal it goes on as if nothing had happened. Poison stays.",
            ),
        ),
    ),
    run=_outcomes,
)


# -- an order that loses nothing --------------------------------------------------------------------------------------

ORDER = Exercise(
    "22.7",
    "An order in which nothing is lost",
    "A checkpoint of step 100 is there, and is to be replaced by another one of step 100. The machine may lose power "
    "after any of these five actions, or in the middle of one. In which order do they have to be done, so that at "
    "every moment a whole checkpoint can be found, and a folder that is called `step_0100` is whole? Answer with the "
    'five letters, such as `"ABCDE"`.\n\n'
    "A: give the new folder the name `step_0100` (the old one is moved aside by the same action).  B: write the "
    "weights and the optimizer's state into a new folder beside it.  C: wait until everything in the new folder is on "
    "the disk (`fsync`).  D: write `metadata.json`, with the hash of every file, into the new folder.  E: delete the "
    "old folder.",
    minutes=5,
    difficulty=2,
    solution="BDCAE",
    hints=(
        "What is deleted first cannot be gone back to. What is renamed before it is on the disk may be empty after a "
        "power cut, with its right name on it.",
        "The metadata says that everything else is there: it cannot come before that.",
    ),
    mistakes=(
        Mistake(
            "delete first",
            "EBDCA",
            "Between E and A there is no checkpoint of step 100 at all, and writing weights is what takes longest.",
            1,
        ),
        Mistake(
            "delete before the rename",
            "BDCEA",
            "Between E and A no folder has the name. It is a short moment, and it will come.",
            1,
        ),
        Mistake(
            "rename before the disk",
            "BDACE",
            "A file that was written is in memory first. A power cut between A and C leaves a folder of the right name "
            "whose files may be empty: the rename may reach the disk before what it names.",
            1,
        ),
        Mistake(
            "metadata first",
            "DBCAE",
            "The hashes of files that are not written yet are not known; and a kill in B would leave metadata that "
            "speaks of files that are not there.",
            2,
        ),
        Mistake(
            "metadata after the disk",
            "BCDAE",
            "Then the metadata itself need not be on the disk when the folder gets its name.",
            1,
        ),
        Mistake(
            "metadata after the name",
            "BCADE",
            "Between A and D the folder has the name and no metadata: it is not whole, and the old one is out of its "
            "place.",
            2,
        ),
    ),
    explain="The kit's `replaced_folder` does this, in this order, for everything that it saves.",
)


# -- what is whole ----------------------------------------------------------------------------------------------------


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
    """A checkpoint of two small files, in a state that a save may leave."""
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
            return Told("a folder in which files have come or gone")
        return Told("a path: its name was asked for (`path.name`)") if isinstance(found, Path) else found


WHOLE = Exercise(
    "22.8",
    "The newest that is whole",
    "Write `newest_whole(folder)` for a `Path`. Checkpoints are folders in it, called `step_0100`: `step_` and the "
    'number. A checkpoint\'s `metadata.json` holds `{"files": {name: {"size": ..., "sha256": ...}, ...}}`, and it is '
    "**whole** if every listed file is there and has its hash: "
    "`hashlib.sha256(path.read_bytes()).hexdigest()`. Return the name of the whole one with the highest step, or None "
    "where none is whole. What has no metadata, or metadata that cannot be read or has no `files`, is passed over, as "
    "is anything with another name (`step_0100.tmp`).",
    minutes=15,
    difficulty=2,
    solution=newest_whole,
    hints=(
        "First find the folders and their numbers; then go through them from the highest down, and return the first "
        "that is whole.",
        "As texts, `step_9999` comes after `step_10000`. Sort by `int(name.removeprefix('step_'))`.",
        "Everything that can go wrong with one checkpoint, a missing file (`OSError`), broken JSON (`ValueError`), no "
        "`files` (`KeyError`), means the same: pass over it. One `try` around all of it will do.",
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
        Slip(
            "sorted as text",
            "- for step in sorted(steps, reverse=True):",
            "+ for step in sorted(steps, key=str, reverse=True):",
            message="The steps are compared as texts, in which 9999 comes after 10000. Compare numbers.",
            hint=2,
        ),
        Slip(
            "the newest, whole or not",
            "- found = {name: hashlib.sha256((steps[step] / name).read_bytes()).hexdigest() for name in files}",
            '- if all(found[name] == files[name]["sha256"] for name in files):',
            "+",
            '+ if True or all(found[name] == files[name]["sha256"] for name in files):',
            message="The hashes are not looked at. A file that was cut off or changed would be loaded without a word.",
        ),
        Slip(
            "existence for wholeness",
            "- found = {name: hashlib.sha256((steps[step] / name).read_bytes()).hexdigest() for name in files}",
            '- if all(found[name] == files[name]["sha256"] for name in files):',
            "+ found = {name: (steps[step] / name).exists() for name in files}",
            "+ if all(found[name] for name in files):",
            message="That the files are there is not enough: one that was cut off is there too. Compare the hashes.",
            hint=3,
        ),
        Slip(
            "the oldest",
            "- for step in sorted(steps, reverse=True):",
            "+ for step in sorted(steps):",
            message="That is the oldest one.",
        ),
        Slip(
            "only the newest is tried",
            "- continue",
            "+ return None",
            message="If the newest one is broken, an older one may be whole: go on to it.",
            hint=3,
        ),
        Slip(
            "any file",
            '- if all(found[name] == files[name]["sha256"] for name in files):',
            '+ if any(found[name] == files[name]["sha256"] for name in files):',
            message="*Every* listed file has to have its hash.",
        ),
    ),
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
    "Write `async_times(write, learn, num_steps, max_lag)`. Batch k (from 0) is written in `write` seconds, by a "
    "writer that writes one after the other, and learned from in `learn` seconds, by a learner that does one update "
    "after the other. Update k needs batch k to be written. And the writer may begin batch k only when `k - max_lag` "
    "updates are done, so that its weights are at most `max_lag` updates old. Both begin as early as they may, from 0 "
    "on. Return a list with four moments for each batch: (write start, write end, learn start, learn end).",
    minutes=12,
    difficulty=3,
    solution=async_times,
    hints=(
        "Batch k begins when the writer is done with the one before *and* enough updates are done; update k begins "
        "when its batch is written *and* the learner is done with the one before. Each is a `max` of two moments.",
        "Keep a list of the moments at which updates ended. When are `n` updates done, for n of 1 or more? At "
        "`ended[n - 1]`. For n of 0 or less there is nothing to wait for.",
        "With `max_lag` 0 batch k waits for k updates: all of those before it. Then the two take turns, and a step "
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
        Slip(
            "no bound",
            "- start = max(writer, learned[needed - 1] if needed > 0 else 0.0)",
            "+ start = writer",
            message="The writer never waits for the learner: its lead, and with it the lag, grows without end.",
        ),
        Slip(
            "one too many",
            "- needed = number - max_lag",
            "+ needed = number - max_lag - 1",
            message=(
                "The weights are one update older than allowed: with `max_lag` 0 batch 1 has to wait for the first "
                "update."
            ),
            hint=2,
        ),
        Slip(
            "one too few",
            "- needed = number - max_lag",
            "+ needed = number - max_lag + 1",
            message="The writer waits for one update more than it has to.",
            hint=2,
        ),
        Slip(
            "two learners",
            "- begin = max(writer, learner)",
            "+ begin = writer",
            message="An update begins although the one before it is not over.",
        ),
        Slip(
            "before it is written",
            "- begin = max(writer, learner)",
            "+ begin = learner",
            message="An update begins before its batch is written.",
        ),
        Slip(
            "the first update, always",
            "- start = max(writer, learned[needed - 1] if needed > 0 else 0.0)",
            "+ start = max(writer, learned[0] if needed > 0 else 0.0)",
            message="Every batch waits for the first update only: batch k waits for `k - max_lag` of them.",
            hint=2,
        ),
    ),
    run=lambda function, *case: [tuple(map(float, each)) for each in function(*case)],
    explain="The slower of the two sets the pace as soon as `max_lag` is 1. More lag helps only where times vary.",
)
