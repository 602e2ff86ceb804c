"""One thread, one thing after the other: order, failures, cancellation, forks, and the end of everything."""

import asyncio
import concurrent.futures
import gc
import os
import subprocess
import sys
import threading
import weakref
from contextlib import nullcontext, suppress

import anyio
import pytest
import trio
import trio.testing

from mlx_grpo_kit.backends import TrainFuture, TrainingError
from mlx_grpo_kit.backends import worker as worker_module
from mlx_grpo_kit.backends.worker import RefusedError, Worker


def nothing() -> None:
    pass


@pytest.fixture
def worker():
    worker = Worker("test", nothing, nothing)
    yield worker
    worker.close(finish=False)


def ended(future: TrainFuture) -> None:
    """Wait for the end of an operation without being one who waits for its result."""
    concurrent.futures.wait([future._outcome], 10)


def refused(**how):
    try:
        raise ValueError("no")
    except ValueError as error:
        raise RefusedError(**how) from error


def test_a_thousand_operations_from_several_tasks_run_in_the_order_of_submission(worker):
    submitted, done, at_once = [], [], []

    async def submit(task: int) -> None:
        for number in range(250):
            name = (task, number)

            def operation(name=name):
                at_once.append(name)
                assert len(at_once) == 1, "one in flight"
                done.append(name)
                at_once.clear()
                return name

            future = worker.submit(f"{name}", operation)
            submitted.append(name)
            if number % 3 == task % 3:
                assert await future.result() == name
            else:
                await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for task in range(4):
                nursery.start_soon(submit, task)

    trio.run(main)
    worker.close()
    assert len(done) == 1000
    assert done == submitted
    assert [task for task, _ in done] != sorted(task for task, _ in done), "the tasks took turns"


def test_from_several_threads_too(worker):
    done: list[tuple[int, int]] = []

    def submit(task: int) -> None:
        for number in range(100):
            worker.submit("append", lambda number=number: done.append((task, number)))

    threads = [threading.Thread(target=submit, args=[task]) for task in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    worker.close()
    assert len(done) == 400
    for task in range(4):
        assert [number for each, number in done if each == task] == list(range(100))


def test_a_result_is_awaited_twice_by_several_tasks_and_in_another_run(worker):
    gate = threading.Event()
    future = worker.submit("value", lambda: gate.wait(10) and [1])
    found = []

    async def await_it() -> None:
        found.append(await future.result())
        found.append(await future.result())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(await_it)
            nursery.start_soon(await_it)
            await trio.testing.wait_all_tasks_blocked()
            assert not future.done()
            gate.set()

    trio.run(main)
    assert future.done()
    trio.run(await_it)
    assert found == [[1]] * 6
    assert all(each is found[0] for each in found)
    assert future.wait() is found[0]


def test_a_future_of_none_and_one_in_asyncio_and_one_that_is_over(worker):
    async def main() -> None:
        gate = threading.Event()
        future = worker.submit("nothing", gate.wait)
        asyncio.get_running_loop().call_later(0.001, gate.set)
        assert await future.result() is True
        assert await worker.submit("nothing", nothing).result() is None

    asyncio.run(main())
    over = worker.submit("nothing", nothing)
    assert over.wait() is None
    assert asyncio.run(over.result()) is None
    assert trio.run(over.result) is None


def test_the_specification_asks_for_coroutines_so_trio_and_asyncio_run_a_future_as_one(worker):
    def save(number: int) -> TrainFuture:
        return worker.submit("save", lambda: number)

    async def main() -> None:
        gate = threading.Event()
        future = worker.submit("slow", lambda: gate.wait(10))
        cancelled = asyncio.create_task(future)
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        gate.set()
        for _ in range(2):
            assert await asyncio.create_task(future) is True
        assert await asyncio.gather(*(save(number) for number in range(100))) == list(range(100))

    assert trio.run(save, 1) == 1
    assert asyncio.run(save(2)) == 2
    asyncio.run(main())


def test_any_number_of_tasks_wait_and_leave_no_thread_when_they_are_cancelled(worker):
    gate = threading.Event()
    futures = [worker.submit("slow", lambda: gate.wait(10)) for _ in range(2)]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(futures[1].result)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(10):
                await anyio.to_thread.run_sync(nothing)  # one of the 40 threads for everything else
            nursery.cancel_scope.cancel()

    async def in_asyncio() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(futures[1], 0.05)

    trio.run(main)
    asyncio.run(in_asyncio())
    for thread in threading.enumerate():
        if thread.name.startswith("AnyIO"):
            thread.join(5)
            assert not thread.is_alive()
    gate.set()
    assert futures[1].wait() is True


def test_trio_inside_a_running_asyncio_loop_as_in_a_notebook(worker):
    async def cell() -> None:
        gate = threading.Event()
        future = worker.submit("value", lambda: gate.wait(10))

        async def main() -> bool:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(future.result)
                await trio.testing.wait_all_tasks_blocked()
                gate.set()
            return await future.result()

        assert trio.run(main)

    asyncio.run(cell())


def test_a_future_outside_of_trio_and_asyncio_says_wait(worker):
    future = worker.submit("nothing", nothing)
    with pytest.raises(RuntimeError, match=r"wait\(\)"):
        future.result().send(None)


def test_a_timeout_leaves_the_operation_alone(worker):
    gate = threading.Event()
    future = worker.submit("slow", lambda: gate.wait(10))
    with pytest.raises(TimeoutError, match="slow has not ended after"):
        future.wait(timeout=0.001)
    gate.set()
    assert future.wait() is True


def test_cancelling_who_waits_cancels_no_operation(worker):
    gate, done = threading.Event(), []
    futures = [worker.submit("slow", lambda: gate.wait(10) and done.append(1)), worker.submit("next", nothing)]

    async def main() -> None:
        with trio.move_on_after(0.001) as scope:
            await futures[0].result()
        assert scope.cancelled_caught
        assert not futures[0].done()
        gate.set()
        await futures[1].result()

    trio.run(main)
    assert done == [1]


def test_a_run_of_trio_that_ends_before_the_operation(worker):
    gate = threading.Event()
    future = worker.submit("slow", lambda: gate.wait(10))

    async def main() -> None:
        with trio.move_on_after(0.001):
            await future.result()

    trio.run(main)
    gate.set()
    assert future.wait()
    assert worker.submit("next", lambda: 2).wait() == 2


def test_a_loop_that_is_closed_under_who_waits_stops_nothing(worker):
    gate, loop = threading.Event(), asyncio.new_event_loop()
    future = worker.submit("slow", lambda: gate.wait(10))
    waiting = loop.create_task(future.result())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    gate.set()
    assert future.wait() is True
    assert worker.submit("next", lambda: 2).wait(timeout=10) == 2
    with suppress(RuntimeError):  # anyio cannot leave its limiter without a loop
        waiting.get_coro().close()
    waiting._log_destroy_pending = False
    for thread in threading.enumerate():
        if thread.name.startswith("AnyIO"):
            thread.stop()  # it belongs to that task, and the interpreter would wait for it at its exit


class TestFailures:
    def test_poison_what_waits_and_what_comes(self, worker):
        gate, done = threading.Event(), []
        first = worker.submit("forward_backward", lambda: gate.wait(10) and {}["missing"])
        second = worker.submit("optim_step", lambda: done.append(1))
        gate.set()
        with pytest.raises(TrainingError, match=r"forward_backward failed \(KeyError: 'missing'\)") as raised:
            first.wait()
        assert isinstance(raised.value.__cause__, KeyError)
        with pytest.raises(TrainingError, match="optim_step cannot be done: forward_backward failed") as raised:
            second.wait()
        assert isinstance(raised.value.__cause__, KeyError)
        with pytest.raises(
            TrainingError, match=r"get_weights cannot be done: forward_backward failed before it.*create a new one"
        ):
            worker.submit("get_weights", nothing)
        assert not done
        worker.close()

    def test_each_await_raises_an_error_of_its_own_from_one_cause(self, worker):
        future = worker.submit("step", lambda: 1 / 0)
        errors = []
        for _ in range(3):
            with pytest.raises(TrainingError) as raised:
                trio.run(future.result)
            errors.append(raised.value)
        assert len({id(error) for error in errors}) == 3
        assert len({id(error.__cause__) for error in errors}) == 1

    def test_one_that_nobody_awaited_comes_up_at_the_next_call(self, worker):
        ended(worker.submit("step", lambda: 1 / 0))
        with pytest.raises(TrainingError, match="next cannot be done: step failed before it"):
            worker.submit("next", nothing)

    def test_or_when_the_worker_is_closed(self, worker):
        worker.submit("step", lambda: 1 / 0)
        with pytest.raises(TrainingError, match="close cannot be done: step failed before it"):
            worker.close()
        worker.close()

    def test_even_one_that_would_end_the_interpreter(self, worker):
        with pytest.raises(TrainingError) as raised:
            worker.submit("step", lambda: sys.exit(3)).wait()
        assert isinstance(raised.value.__cause__, SystemExit)

    def test_a_refusal_reaches_its_caller_as_it_is_and_poisons_nothing(self, worker):
        future = worker.submit("load", refused)
        lengths = set()
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^no$") as raised:
                future.wait()
            lengths.add(len(raised.traceback))
        assert len(lengths) == 1, "what led to one await is not told to the next"
        assert worker.submit("next", lambda: 1).wait() == 1
        worker.close()

    def test_a_refusal_that_skips_skips_all_that_was_submitted_before_it(self, worker):
        """The last of them too, and none that is submitted later."""
        gate, done = threading.Event(), []
        first = worker.submit("forward_backward", lambda: gate.wait(10) and refused(skips=True))
        skipped = [worker.submit(name, lambda name=name: done.append(name)) for name in ("step", "save", "load")]
        gate.set()
        with pytest.raises(ValueError, match=r"^no$"):
            first.wait()
        for name, future in zip(("step", "save", "load"), skipped, strict=True):
            with pytest.raises(TrainingError, match=f"^{name} was not done: forward_backward failed before it"):
                future.wait()
        assert worker.submit("next", lambda: 1).wait() == 1
        assert not done

    def test_a_refusal_that_nobody_awaited_comes_up_once(self, worker):
        ended(worker.submit("load", refused))  # which nobody else would do
        with pytest.raises(ValueError, match=r"^no$"):
            worker.submit("next", nothing)
        assert worker.submit("next", lambda: 1).wait() == 1

    def test_a_refusal_that_somebody_waits_for_is_no_one_elses(self, worker):
        gate = threading.Event()

        async def wait_for_refusal() -> None:
            with pytest.raises(ValueError, match=r"^no$"):
                await worker.submit("load", lambda: gate.wait(10) and refused()).result()

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_refusal)
                await trio.testing.wait_all_tasks_blocked()
                after = worker.submit("after", nothing)
                gate.set()
                after.wait()  # this task keeps trio busy: the other one has not been told yet
                assert worker.submit("next", lambda: 1).wait() == 1

        trio.run(main)

    def test_nor_one_that_a_thread_waits_for(self, worker, monkeypatch):
        future = worker.submit("load", lambda: waits.wait(10) and refused())
        seen = worker.submit("look", lambda: future._outcome.result()[1].seen)  # in the moment after it
        waits, wait = threading.Event(), concurrent.futures.wait
        monkeypatch.setattr(concurrent.futures, "wait", lambda *arguments: waits.set() or wait(*arguments))
        with pytest.raises(ValueError, match=r"^no$"):
            future.wait()
        assert seen.wait()

    def test_but_one_that_was_waited_for_too_short_a_time_is(self, worker):
        gate = threading.Event()
        future = worker.submit("load", lambda: gate.wait(10) and refused())
        with pytest.raises(TimeoutError):
            future.wait(timeout=0)
        gate.set()
        with pytest.raises(ValueError, match=r"^no$"):
            worker.close()

    @pytest.mark.parametrize("wait", [TrainFuture.wait, lambda future: trio.run(future.result)])
    def test_waiting_inside_an_operation_for_what_comes_after_it(self, worker, wait):
        with pytest.raises(TrainingError) as raised:
            worker.submit("outer", lambda: wait(worker.submit("inner", nothing))).wait(timeout=10)
        assert "inner was waited for inside an earlier operation" in str(raised.value.__cause__)


class TestGivingUp:
    """An operation that hangs, as a collective does whose other side is gone."""

    def test_fails_it_and_all_that_wait_and_nobody_waits_for_the_thread(self, worker):
        began, gate, done = threading.Event(), threading.Event(), []
        stuck = worker.submit("stuck", lambda: began.set() or gate.wait(10))
        waiting = worker.submit("waiting", lambda: done.append(1))
        began.wait(10)
        worker.give_up(RuntimeError("the other side is gone"))
        for future in (stuck, waiting):
            with pytest.raises(TrainingError, match=r"stuck failed.*the other side is gone"):
                future.wait()
        with pytest.raises(TrainingError, match="more cannot be done: stuck failed before it"):
            worker.submit("more", nothing)
        worker.close()
        assert not gate.is_set()
        gate.set()
        worker._thread.join(5)
        assert not done
        with pytest.raises(TrainingError, match=r"stuck failed"):
            stuck.wait()

    def test_wakes_a_close_that_waits_already(self, worker):
        began, gate = threading.Event(), threading.Event()
        worker.submit("stuck", lambda: began.set() or gate.wait(10))
        began.wait(10)
        threading.Timer(0.01, worker.give_up, [RuntimeError("gone")]).start()
        with pytest.raises(TrainingError, match=r"stuck failed before it .*gone"):
            worker.close()
        gate.set()

    def test_does_nothing_between_two_operations(self, worker):
        worker.submit("one", nothing).wait()
        worker.submit("another", nothing).wait()
        worker.give_up(RuntimeError("gone"))
        assert worker.submit("next", lambda: 1).wait() == 1


class TestTheEnd:
    def test_close_finishes_what_was_submitted(self, worker):
        done = []
        for number in range(100):
            worker.submit("append", lambda number=number: done.append(number))
        worker.close()
        assert done == list(range(100))
        worker._thread.join(5)
        assert not worker._thread.is_alive()
        with pytest.raises(RuntimeError, match="This backend was closed"):
            worker.submit("more", nothing)

    def test_from_inside_an_operation_too(self, worker):
        worker.submit("close", worker.close).wait(timeout=10)
        worker._thread.join(5)
        assert not worker._thread.is_alive()

    def test_without_finishing_it_drops_what_waits(self, worker):
        gate, done = threading.Event(), []
        worker.submit("first", lambda: gate.wait(10))
        second = worker.submit("second", lambda: done.append(1))
        threading.Timer(0.01, gate.set).start()
        worker.close(finish=False)
        with pytest.raises(RuntimeError, match="closed before second could start"):
            second.wait()
        assert not done

    def test_first_and_last_are_called_in_the_thread(self):
        calls = []
        worker = Worker(
            "test", lambda: calls.append(threading.get_ident()), lambda: calls.append(threading.get_ident())
        )
        inside = worker.submit("ident", threading.get_ident).wait()
        worker.close()
        assert calls == [inside, inside]

    def test_the_first_is_called_first_whoever_else_submits_meanwhile(self):
        calls = []
        worker = Worker("test", lambda: calls.append("first"), nothing)
        other = threading.Thread(target=worker.submit, args=["other", lambda: calls.append("other")])
        start = worker._thread.start

        def while_it_starts():
            other.start()
            other.join(0.05)
            start()

        worker._thread.start = while_it_starts
        worker.submit("one", nothing)
        other.join()
        worker.close()
        assert calls == ["first", "other"]

    def test_a_thread_that_cannot_begin_poisons(self):
        worker = Worker("test", lambda: 1 / 0, nothing)
        with pytest.raises(TrainingError, match=r"first cannot be done: start failed before it \(ZeroDivisionError"):
            worker.submit("first", nothing).wait()

    @pytest.mark.parametrize("poisoned", [False, True])
    def test_a_worker_that_nobody_has_ends_its_thread(self, poisoned):
        class Backend:
            def __init__(self):
                self.worker = Worker("test", nothing, nothing)

            def work(self):
                if poisoned:
                    raise ValueError("a traceback, which holds the backend")

        backend = Backend()
        future = backend.worker.submit("work", backend.work)
        thread, gone = backend.worker._thread, weakref.ref(backend)
        with pytest.raises(TrainingError) if poisoned else nullcontext():
            future.wait()
        del backend, future
        gc.collect()
        assert gone() is None
        thread.join(5)
        assert not thread.is_alive()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_is_told_and_does_not_hang(self, worker):
        gate = threading.Event()
        pending = worker.submit("before", lambda: gate.wait(10))
        said = run_in_child(lambda: [message(pending.wait), message(lambda: worker.submit("after", nothing))])
        gate.set()
        assert "before was submitted before this process was forked" in said
        assert "This process was forked" in said
        assert pending.wait() is True

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_waits_for_no_thread_at_its_end(self, worker):
        worker.submit("nothing", nothing).wait()
        assert worker._line in worker_module._RUNNING
        assert run_in_child(lambda: len(worker_module._RUNNING)) == "0"

    @pytest.mark.parametrize("finishes", [True, False])
    def test_after_an_exception_an_operation_that_takes_long_is_not_waited_for(self, monkeypatch, capsys, finishes):
        """Nor, ever, one of an engine, whose result nobody can read any more."""
        began, gate = threading.Event(), threading.Event()
        worker = Worker("test", nothing, nothing, finishes=finishes)
        future = worker.submit("long", lambda: began.set() or gate.wait(10))
        dropped = worker.submit("dropped", nothing)
        began.wait(10)
        monkeypatch.setattr(worker_module, "_RUNNING", {worker._line})
        monkeypatch.setattr(worker_module, "SECONDS_TO_LEAVE", 0.01)
        if finishes:
            monkeypatch.setattr(sys, "last_type", ValueError, raising=False)
        worker_module._leave()
        assert not future.done()
        said = "mlx_grpo_kit: The program ended in the middle of an operation of test.\n" if finishes else ""
        assert capsys.readouterr().err == said
        gate.set()
        with pytest.raises(RuntimeError, match="before dropped could start"):
            dropped.wait()

    @pytest.mark.parametrize("ending", ["pass", "del worker", "sys.exit(3)"])
    def test_the_end_of_a_script_does_what_was_submitted(self, ending):
        """A save of Orbax too, whose pools of threads are closed at the end of the interpreter, before atexit."""
        found = run_script(f"""
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor()
worker.submit("slow", lambda: time.sleep(0.1))
for number in range(100):
    worker.submit("print", lambda number=number: print(number, flush=True))
worker.submit("save", lambda: print(pool.submit(lambda: "saved").result(), flush=True))
{ending}
""")
        assert found.stderr == ""
        assert found.returncode == (3 if "exit" in ending else 0)
        assert found.stdout.split() == [*map(str, range(100)), "saved", "ended"]

    @pytest.mark.parametrize(
        ("ending", "status"),
        [
            ("raise ValueError('main thread')", 1),
            ("os.kill(os.getpid(), signal.SIGINT)", -2),
            ("trio.run(another.submit('fails', lambda: 1 / 0).result)", 1),
        ],
    )
    def test_an_exception_drops_what_waits_and_says_so(self, ending, status):
        found = run_script(f"""
began, line = threading.Event(), worker._line
another = Worker("another", lambda: None, lambda: None)

def in_flight():
    began.set()
    while not line.dropping:
        time.sleep(0.001)
    print("done", flush=True)

worker.submit("in flight", in_flight)
for _ in range(100):
    worker.submit("waiting", lambda: time.sleep(1))
began.wait()
{ending}
""")
        assert found.returncode == status, found.stderr
        assert found.stdout.split() == ["done", "ended"]
        assert found.stderr.splitlines()[-1] == (
            "mlx_grpo_kit: The program ended before test had finished. Dropped operations, from waiting on: 100."
        )

    def test_the_end_says_that_it_waits_and_ctrl_c_drops_what_waits(self):
        found = run_script("""
from mlx_grpo_kit.backends import worker as worker_module
worker_module.SECONDS_TO_LEAVE, say = 0.1, worker_module.say

def say_and_interrupt(words):
    say(words)
    if "Ctrl-C" in words:
        os.kill(os.getpid(), signal.SIGINT)

def in_flight():
    while not line.dropping:
        time.sleep(0.001)

worker_module.say, line = say_and_interrupt, worker._line
worker.submit("in flight", in_flight)
worker.submit("waiting", lambda: time.sleep(1))
""")
        assert found.stdout.split() == ["ended"]
        waits, dropped = found.stderr.splitlines()
        assert "The program ends, but test is still working. Waiting for it; Ctrl-C drops all that wait." in waits
        assert "The program ended before test had finished. Dropped operations, from waiting on: 1." in dropped

    @pytest.mark.parametrize("ending", ["worker = None", "pass"])
    def test_a_failure_that_nobody_was_told_is_told_at_the_end(self, ending):
        found = run_script(f"""
def refuse():
    raise RefusedError from OSError("full disk")

worker.submit("save_checkpoint", refuse)
worker.submit("forward_backward", lambda: 1 / 0)
worker.submit("optim_step", lambda: None)
{ending}
""")
        assert sorted(found.stderr.splitlines()) == [
            f"mlx_grpo_kit: {words}, and the program never read this error. Wait for the futures of a backend, or "
            "close it."
            for words in (
                "forward_backward failed (ZeroDivisionError: division by zero)",
                "save_checkpoint failed (OSError: full disk)",
            )
        ]

    def test_nor_is_one_of_a_worker_that_nobody_has_any_more(self, capsys):
        worker = Worker("test", nothing, nothing)
        ended(worker.submit("step", lambda: 1 / 0))
        thread = worker._thread
        del worker
        gc.collect()
        thread.join(5)
        gc.collect()
        assert (
            "step failed (ZeroDivisionError: division by zero), and the program never read this error"
            in capsys.readouterr().err
        )


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with a worker, which prints "ended" in the end."""
    begin = """
import os, signal, sys, threading, time, trio
from mlx_grpo_kit.backends.worker import RefusedError, Worker
worker = Worker("test", lambda: None, lambda: print("ended", flush=True))
"""
    return subprocess.run(
        [sys.executable, "-c", begin + script], capture_output=True, text=True, timeout=60, check=False
    )


def message(call) -> str:
    try:
        return f"returned {call()!r}"
    except RuntimeError as error:
        return str(error)


def run_in_child(call) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, repr(call()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said
