"""LivePlot without a notebook: its history, its errors, and the end of a run in the foreground and in a thread."""

import math
import multiprocessing
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mlx_grpo_kit.viz import LivePlot
from mlx_grpo_kit.viz.chart import Chart
from mlx_grpo_kit.viz.live import pace, view
from mlx_grpo_kit.viz.live import plot as live
from mlx_grpo_kit.viz.picture import as_picture

pytestmark = pytest.mark.timeout(30)


def record(step, **metrics):
    return SimpleNamespace(step=step, metrics=metrics or {"reward": step / 10}, completions=[])


class Training:
    """A run that records the thread in which its steps were computed, and the thread that closed it."""

    def __init__(self, steps, fails_at=None, error=None, seconds=0.0):
        self.steps, self.fails_at, self.error, self.seconds = steps, fails_at, error, seconds
        self.threads, self.closed_in = set(), None

    def __iter__(self):
        self.iterator = self._run()
        return self.iterator

    def _run(self):
        try:
            for step in range(1, self.steps + 1):
                self.threads.add(threading.get_ident())
                time.sleep(self.seconds)
                if step == self.fails_at:
                    raise self.error
                yield record(step)
        finally:
            self.closed_in = threading.get_ident()

    def close(self):
        self.iterator.close()


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 10 s"
        time.sleep(0.005)


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_history_has_a_value_for_every_step_and_nan_where_there_was_none():
    plot = LivePlot("reward")
    plot.update({"reward": 0.5})
    plot.update({"reward": 1, "eval/accuracy": 0.25})
    plot.update({"eval/accuracy": 0.75}, step=10)
    assert plot.steps == [1, 2, 10]
    np.testing.assert_equal(plot.history, {"reward": [0.5, 1.0, math.nan], "eval/accuracy": [math.nan, 0.25, 0.75]})


@pytest.mark.parametrize("value", [torch.tensor(0.5), np.array([0.5]), "0.5", None, 1j])
def test_a_metric_that_is_not_a_number_is_named(value):
    plot = LivePlot("reward")
    with pytest.raises(TypeError, match=r"metric 'reward' is a .*not a Python float.*float\(x\)"):
        plot.update({"reward": value})
    assert plot.steps == []
    assert plot.history == {}


def test_numpy_scalars_become_floats():
    plot = LivePlot("reward")
    plot.update({"reward": np.float32(0.5), "completions/max_length": np.int64(4)})
    assert {type(values[0]) for values in plot.history.values()} == {float}


def test_steps_must_increase():
    plot = LivePlot("reward")
    plot.update({"reward": 0.5}, step=5)
    with pytest.raises(ValueError, match="step 5 came after step 5"):
        plot.update({"reward": 0.5}, step=5)


@pytest.mark.parametrize("metrics", [[], {}, {"empty": []}])
def test_panels_must_not_be_empty(metrics):
    with pytest.raises(ValueError, match="at least one metric per panel"):
        LivePlot(metrics)


def test_smoothing_is_checked():
    with pytest.raises(ValueError, match="smoothing=1 must be in"):
        LivePlot("reward", smoothing=1)


def test_a_panel_on_a_logarithmic_axis_is_named_by_its_title():
    plot = LivePlot({"loss": ["loss", "torch_loss"], "difference": ["d"]}, log=["difference"])
    plot.update({"loss": 1.0, "torch_loss": 1.0, "d": 1e-12})
    assert [axis.get_yscale() for axis in plot.figure().axes] == ["linear", "log"]
    with pytest.raises(ValueError, match="log names 'd'; the panels are 'loss', 'difference'"):
        LivePlot({"loss": ["loss"], "difference": ["d"]}, log=["d"])
    assert LivePlot("d", log="d").log == {"d"}


def test_status_and_words_follow_the_logarithmic_axis():
    plot = LivePlot("d", log=["d"], smoothing=0.5)
    for value in (1e-9, 0.0):
        plot.update({"d": value})
    assert plot.status.startswith("running: step 2 · d 0.00 ·")
    assert plot.alt_text.endswith("d: from 1.00e-09 to 0.00 (lowest 0.00, highest 1.00e-09).")


def test_the_status_keeps_the_last_value_of_a_metric_measured_now_and_then():
    plot = LivePlot(["accuracy", "loss"])
    for step in range(1, 11):
        plot.update({"loss": 1.0, **({"accuracy": step / 10} if step % 4 == 0 else {})})
    assert plot.status.startswith("running: step 10 · accuracy 0.800 ·")


def test_the_status_names_a_panel_of_one_metric_by_its_title_and_else_the_first_metric():
    plot = LivePlot({"right": "eval/accuracy"})
    plot.update({"eval/accuracy": 0.5})
    assert "· right 0.500 ·" in plot.status
    plot = LivePlot({"losses": ["ours", "torch"]})
    plot.update({"ours": 0.5, "torch": 0.25})
    assert "· ours 0.500 ·" in plot.status


def test_status_in_words():
    plot = LivePlot(["reward"], max_steps=60)
    assert plot.status == "waiting for the first step"
    plot.update({"reward": 0.7125}, step=37)
    assert plot.status == "running: step 37 of 60 · reward 0.713 · 0 s"
    plot.finish()
    assert plot.status.startswith("finished: step 37 of 60")


def test_save_and_display(tmp_path):
    plot = LivePlot({"both": ["reward", "kl"]}, title="Addition")
    plot.update({"reward": 0.5, "kl": 0.0})
    plot.save(tmp_path / "reward.png")
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
    data = plot._repr_mimebundle_()
    assert data["text/plain"] == plot.alt_text
    assert f'alt="{plot.alt_text}"' in data["text/html"]
    assert plot.alt_text.startswith("Addition. Training curves over 1 steps. reward: from 0.500")


def test_importing_and_feeding_it_loads_no_heavy_library():
    code = (
        "import sys; from mlx_grpo_kit.viz import LivePlot; p = LivePlot('reward'); p.update({'reward': 1.0});"
        "p.finish(); print([m for m in ('mlx', 'torch', 'matplotlib', 'IPython', 'ipywidgets', 'anywidget', 'numpy')"
        " if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


# -- frames -----------------------------------------------------------------------------------------------------------


class FakeView:
    def __init__(self, clock, cost):
        self.clock, self.cost, self.frames = clock, cost, []

    def show(self, frame, completions, draw, *, keep):
        self.frames.append(self.clock.now)
        self.clock.now += self.cost

    def end(self, frame, completions, draw):
        self.frames.append("still")


@pytest.mark.parametrize(("cost", "interval"), [(0.001, 0.25), (0.05, 0.5), (3.0, 1.0)])
def test_frames_are_few_and_drawing_takes_a_small_share(monkeypatch, cost, interval):
    clock = SimpleNamespace(now=100.0)
    for module in (live, pace):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    plot = LivePlot("reward")
    plot._running = True
    plot._view = shown = FakeView(clock, cost)
    for _ in range(1000):
        clock.now += 0.01
        plot.update({"reward": 1.0})
    plot.finish()
    assert shown.frames.pop() == "still"
    assert len(shown.frames) > 3
    between = np.diff(shown.frames) - cost
    assert between.min() >= interval - 1e-9
    assert between.max() <= interval + 0.02


def test_the_picture_that_stays_on_the_page_has_curves_from_the_second_frame_on(monkeypatch):
    clock, shown = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(view, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append((data, options)))
    plot = LivePlot("reward")
    notebook = view.LiveView(None, plot._frame())
    curves = [as_picture(Chart(100, 50), words) for words in ("no curve yet", *(f"{n} steps" for n in range(1, 9)))]
    seconds_and_stills = []
    for second, picture in enumerate(curves):
        clock.now = 100.0 + second
        shown.clear()
        notebook.show(plot._frame() | {"status": "running"}, [], lambda picture=picture: picture)
        seconds_and_stills += [
            (second, data["text/plain"]) for data, _ in shown if "kit-still" in data.get("text/html", "")
        ]
    (begun, first), *others = seconds_and_stills
    assert (begun, others) == (0, [(1, "1 steps"), (6, "6 steps")])
    # No empty axes, but words that hold if the kernel ends before the second frame.
    assert first.startswith("Last seen running. If the kernel was restarted or shut down, the run ended with it.")
    assert "no curve yet" not in first


def test_a_frame_has_the_whole_state_and_buttons_reach_the_run():
    done, run = [], SimpleNamespace()
    for name in ("pause", "resume", "stop"):
        setattr(run, name, lambda name=name: done.append(name))
    plot = LivePlot("reward", max_steps=9, title="<b>")
    plot._running, plot._view = True, None
    notebook = view.LiveView(run, plot._frame())
    assert notebook.data["stoppable"]
    assert (notebook.data["state"], notebook.data["status"]) == ("waiting for the first step",) * 2
    assert notebook.data["panels"][0]["empty"] == "waiting for reward"
    plot.update({"reward": 0.25}, 3)
    sampled = SimpleNamespace(prompt="1+1=", completion="\ud800", reward=1.0, advantage=-0.5)
    notebook._next_still = math.inf
    notebook.show(plot._frame(), [sampled], None)
    data = notebook.data
    assert data["status"].startswith("running: step 3 of 9 · reward 0.250")
    assert (data["over"], data["step"], data["length"], data["count"]) == (False, 3, 9, 1)
    assert data["columns"] == {"reward": [0.25]}
    assert data["table"]["rows"] == [{"cells": ["1+1=", "?", "1", "-0.50", "▼ down"], "advantage": -0.5}]
    for name in ("pause", "resume", "stop"):
        notebook._reply({"number": 1, "question": {"order": name}})
    assert done == ["pause", "resume", "stop"]
    plot._running = False
    assert (plot._frame()["over"], plot._frame()["length"]) == (True, None)
    assert not view.LiveView(None, plot._frame()).data["stoppable"]


# -- in the foreground ------------------------------------------------------------------------------------------------


def test_watch_yields_the_steps():
    plot = LivePlot("reward")
    assert [step.step for step in plot.watch(Training(5))] == [1, 2, 3, 4, 5]
    assert plot.history == {"reward": [0.1, 0.2, 0.3, 0.4, 0.5]}
    assert plot.state == "finished"


def test_an_interrupt_while_a_step_is_computed_ends_the_loop_cleanly():
    plot, training = LivePlot("reward"), Training(5, fails_at=3, error=KeyboardInterrupt())
    assert [step.step for step in plot.watch(training)] == [1, 2]
    assert plot.state == "interrupted"
    assert training.closed_in


def test_leaving_the_loop_stops_and_closes_the_run():
    plot, training = LivePlot("reward"), Training(5)
    for step in plot.watch(training):
        if step.step == 2:
            break
    assert plot.state == "stopped"
    assert training.closed_in == threading.get_ident()


def test_an_error_in_the_run_is_not_swallowed():
    plot = LivePlot("reward")
    with pytest.raises(ZeroDivisionError):
        list(plot.watch(Training(5, fails_at=3, error=ZeroDivisionError())))
    assert plot.state == "failed with ZeroDivisionError"
    assert plot.steps == [1, 2]


def test_a_run_can_be_continued():
    plot = LivePlot("reward")
    list(plot.watch([record(1), record(2)]))
    list(plot.watch([record(3)]))
    assert plot.steps == [1, 2, 3]


# -- in a thread ------------------------------------------------------------------------------------------------------


def test_the_whole_run_happens_in_one_other_thread():
    plot, training = LivePlot("reward"), Training(5)
    run = plot.start(training)
    run.wait()
    assert training.threads == {training.closed_in}
    assert training.closed_in != threading.get_ident()
    assert (run.running, run.error, run.last.step, plot.state) == (False, None, 5, "finished")


def test_stop_ends_after_the_current_step():
    plot, training = LivePlot("reward"), Training(10_000, seconds=0.005)
    run = plot.start(training)
    wait_for(lambda: len(plot.steps) > 3)
    run.stop()
    run.wait()
    assert plot.state == "stopped"
    assert len(plot.steps) < 10_000
    assert training.threads == {training.closed_in}


def test_pause_holds_the_run_and_its_clock_until_resume():
    plot = LivePlot("reward")
    run = plot.start(Training(10_000, seconds=0.005))
    wait_for(lambda: len(plot.steps) > 3)
    run.pause()
    wait_for(lambda: plot.state == "paused")
    held = len(plot.steps), plot.status
    time.sleep(0.1)
    assert (len(plot.steps), plot.status) == held
    assert run.running
    run.resume()
    wait_for(lambda: len(plot.steps) > held[0])
    assert plot.state == "running"
    run.stop()
    run.wait()


def test_a_paused_run_can_be_stopped():
    plot = LivePlot("reward")
    run = plot.start(Training(10_000, seconds=0.005))
    run.pause()
    wait_for(lambda: plot.state == "paused")
    run.stop()
    run.wait(timeout=5)
    assert plot.state == "stopped"


def test_waiting_raises_the_error_that_ended_the_run():
    run = LivePlot("reward").start(Training(5, fails_at=3, error=ZeroDivisionError("here")))
    with pytest.raises(ZeroDivisionError, match="here"):
        run.wait()
    assert run.last.step == 2


def test_a_metric_that_is_not_a_float_ends_the_run_with_an_error():
    run = LivePlot("reward").start([record(1, reward=torch.tensor(1.0))])
    with pytest.raises(TypeError, match="metric 'reward'"):
        run.wait()


def test_waiting_can_time_out_without_ending_the_run():
    run = LivePlot("reward").start(Training(10_000, seconds=0.005))
    with pytest.raises(TimeoutError, match=r"not over after 0\.05 s"):
        run.wait(timeout=0.05)
    assert run.running
    run.stop()
    run.wait()


def test_await_waits_too():
    import asyncio

    plot = LivePlot("reward")

    async def cell():
        await plot.start(Training(5, seconds=0.01))
        return plot.state

    assert asyncio.run(cell()) == "finished"

    async def failing_cell():
        await LivePlot("reward").start(Training(5, fails_at=3, error=ZeroDivisionError("here")))

    with pytest.raises(ZeroDivisionError, match="here"):
        asyncio.run(failing_cell())


def test_another_run_stops_the_previous_one():
    plots = LivePlot("reward"), LivePlot("reward")
    first = plots[0].start(Training(10_000, seconds=0.005))
    first.pause()
    second = plots[1].start(Training(5, seconds=0.005))
    assert (first.running, plots[0].state) == (False, "stopped")
    second.wait()
    assert plots[1].state == "finished"


def test_a_plot_shows_one_run_at_a_time():
    plot = LivePlot("reward")
    run = plot.start(Training(10_000, seconds=0.005))
    with pytest.raises(RuntimeError, match="already shows a run"):
        plot.start(Training(5))
    run.stop()
    run.wait()


def test_the_thread_of_a_run_cannot_wait_for_a_run():
    """Each of these would wait for its own end."""
    plot, refused, started = LivePlot("reward"), [], threading.Event()

    def steps():
        yield record(1)
        started.wait(10)
        for wait in (lambda: LivePlot("reward").start(Training(2)), run.wait):
            try:
                wait()
            except RuntimeError as error:
                refused.append(str(error))
        yield record(2)

    run = plot.start(steps())
    started.set()
    wait_for(lambda: not run.running)
    assert "cannot start another run" in refused[0]
    assert "cannot wait for the end" in refused[1]
    assert (plot.state, plot.steps) == ("finished", [1, 2])


def test_a_run_that_the_plot_rejects_is_closed():
    closed = []

    def steps():
        try:
            yield record(1, reward="high")
        finally:
            closed.append(threading.get_ident())

    generator = steps()
    run = LivePlot("reward").start(generator)
    with pytest.raises(TypeError, match="metric 'reward'"):
        run.wait()
    assert closed
    assert closed != [threading.get_ident()]


def test_a_run_frees_mlx_streams_in_its_own_thread_before_it_is_over(monkeypatch):
    """If the streams stayed until the end of the thread, most scripts that end right after `run.wait()` would abort."""
    cleared = []
    monkeypatch.setitem(
        sys.modules, "mlx.core", SimpleNamespace(clear_streams=lambda: cleared.append(threading.get_ident()))
    )
    training = Training(2)
    LivePlot("reward").start(training).wait()
    assert cleared == [training.closed_in]


def test_a_forked_child_has_no_run():
    plot = LivePlot("reward")
    run = plot.start(Training(10_000, seconds=0.005))
    here, there = multiprocessing.Pipe()

    def child():
        try:
            run.wait()
        except RuntimeError as error:
            there.send((run.running, str(error)))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    try:
        assert here.poll(20), "the child hangs"
        running, message = here.recv()
        assert not running
        assert message.startswith("this process was forked")
        assert run.running
    finally:
        process.kill()
        process.join()
        run.stop()
        run.wait()


def test_a_script_that_ends_while_mlx_trains_in_the_thread_ends_cleanly():
    code = """
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.viz import LivePlot
from types import SimpleNamespace
x = mx.random.normal((256, 256)); mx.eval(x)
def training():
    y, step = x, 0
    while True:
        y = mx.softmax(y @ x); mx.eval(y); step += 1
        yield SimpleNamespace(step=step, metrics={"reward": y.mean().item()})
run = LivePlot("reward").start(training())
while run.last is None or run.last.step < 5: pass
print("main is over")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=25)
    assert (done.returncode, done.stdout, done.stderr) == (0, "main is over\n", "")


def test_problems_are_described_in_words():
    plot = LivePlot("reward")
    for step in range(1, 31):
        plot.update({"reward": 0.2, "frac_reward_zero_std": 1.0, "grad_norm": 0.0}, step)
    (words,) = plot.warnings
    assert words.startswith("In all groups all completions have had the same reward since step 1")
    plot.update({"reward": 0.2}, 31)
    assert LivePlot("loss").warnings == []
