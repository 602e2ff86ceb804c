"""Training curves that grow during training and stay on the page afterwards: LivePlot."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.runs.diagnosis import Monitor
from mlx_grpo_kit.runtime.printing import printable
from mlx_grpo_kit.viz.kernel import notebook_shell
from mlx_grpo_kit.viz.live.background import BackgroundRun
from mlx_grpo_kit.viz.live.curves import chart_curves, curves_for_page, describe_curves, draw_curves, latest
from mlx_grpo_kit.viz.live.pace import next_frame
from mlx_grpo_kit.viz.live.words import run_in_words
from mlx_grpo_kit.viz.picture import Picture, as_picture, to_png
from mlx_grpo_kit.viz.style import three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mlx_grpo_kit.viz.live.view import LiveView


@printable
class LivePlot:
    """Curves of a training run, one panel per metric, redrawn at most four times per second.

    There are three ways to feed it. The first two take any iterator whose items have `.step` and `.metrics`:

        for step in plot.watch(trainer.train(max_steps=60)): ...  # in this cell; an interrupt ends it cleanly
        run = plot.start(trainer.train(max_steps=200))            # in a thread, with Pause and Stop; then: await run
        plot.update(metrics)                                      # in your own loop

    In a notebook, drag over a curve or press the arrow keys on it to read the numbers of an earlier step, during the
    run and after it. There is also a still picture, which is hidden while the curves are live. You see it when you open
    the notebook again, even if it was closed during the run. In a plain script nothing is shown, but `history` is kept
    and `save(path)` writes the picture.

    Problems of a GRPO run (`mlx_grpo_kit.runs.diagnosis`) are shown below the status.

    A metric that is measured now and then, such as by an evaluation every 50 steps, is drawn as joined points without
    smoothing.

    Args:
        metrics: names, each drawn in a separate panel, or a mapping: a panel's title -> the names drawn in it.
        max_steps: the length of the run, if known: the axis is that long, and the status says "step 37 of 60".
        smoothing: weight of the past in the line over the raw points, in [0, 1); 0 draws the values themselves.
        completions: the number of sampled completions of each step to show below, each for a different prompt.
        log: titles of the panels with a logarithmic axis; triangles at its bottom mean 0.

    Attributes:
        steps: the list of step numbers.
        history: maps each metric seen to its values, NaN where a step had none.
    """

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, Sequence[str]],
        *,
        title: str = "",
        max_steps: int | None = None,
        smoothing: float = 0.7,
        completions: int = 0,
        log: Collection[str] = (),
    ):
        self.panels = _panels(metrics)
        self.log = frozenset([log] if isinstance(log, str) else log)
        if not self.log <= self.panels.keys():
            raise ValueError(
                f"log names {', '.join(map(repr, sorted(self.log - self.panels.keys())))}; the panels are "
                f"{', '.join(map(repr, self.panels))}"
            )
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing={smoothing} must be in [0, 1): the weight of the past; 0 draws the raw values")
        self.title, self.max_steps, self.smoothing, self.completions = title, max_steps, smoothing, completions
        self.steps: list[int] = []
        self.history: dict[str, list[float]] = {}
        self.state = "waiting for the first step"
        self._latest: list[Any] = []  # the completions shown below
        self._monitor = Monitor()
        self._view: LiveView | None = None
        self._running = False
        self._started = self._seconds = self._next_frame = 0.0

    # -- feeding ------------------------------------------------------------------------------------------------------

    def update(
        self,
        metrics: Mapping[str, float],
        step: int | None = None,
        completions: Iterable[Any] = (),
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one step's metrics. By default `step` is the last one plus 1.

        `changes` has the new values of the settings that were changed right before the step.

        Raises:
            TypeError: a value is not a Python number; an MLX array would keep its whole computation alive.
            ValueError: the step is not after the last one.
        """
        last = self.steps[-1] if self.steps else 0
        step = last + 1 if step is None else step
        if self.steps and step <= last:
            raise ValueError(f"step {step} came after step {last}; for another run, make another LivePlot")
        values = {name: _as_float(name, value) for name, value in metrics.items()}
        self._open()
        for name in values.keys() - self.history.keys():
            self.history[name] = [math.nan] * len(self.steps)
        self.steps.append(step)
        for name, series in self.history.items():
            series.append(values.get(name, math.nan))
        completions = list(completions)
        self._monitor.add(step, values, completions, changes)
        if self.completions:
            self._latest = _one_for_each_prompt(completions, self.completions) or self._latest
        self.state = "running"
        self._seconds = time.monotonic() - self._started
        if time.monotonic() >= self._next_frame:
            self._refresh()

    def watch(self, steps: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield the steps of a run and draw them: `for step in plot.watch(trainer.train(max_steps=60)): ...`.

        Interrupting the kernel while a step is computed ends the loop normally; the picture stays.
        """
        self._open()
        state = "stopped"  # the state if you leave the loop early
        try:
            for record in steps:
                extras = (getattr(record, "completions", ()), getattr(record, "changes", None))
                self.update(record.metrics, record.step, *extras)
                yield record
            state = "finished"
        except KeyboardInterrupt:
            state = "interrupted"
        except Exception as error:
            state = f"failed with {type(error).__name__}"
            raise
        finally:
            close = getattr(steps, "close", None)
            if close is not None:
                close()
            self.finish(state)

    def start(self, steps: Iterable[Any]) -> BackgroundRun:
        """Iterate over `steps` in a separate thread, with Pause and Stop buttons, and return at once.

        The iterator is consumed in that thread. MLX arrays that it uses must have been evaluated before (`mx.eval`),
        because an unevaluated array belongs to the thread that built it.

        Raises:
            RuntimeError: this LivePlot already shows a run.
        """
        if self._running:
            raise RuntimeError("this LivePlot already shows a run; stop that one first, or make a new LivePlot")
        BackgroundRun.end_previous()
        run = BackgroundRun(self, steps)
        self._open(run)
        run.begin()
        return run

    def finish(self, state: str = "finished") -> None:
        """End the run, and store its last still picture. Has no effect if no run is shown."""
        if not self._running:
            return
        self.state, self._running = state, False
        if self._view is not None:
            view, self._view = self._view, None
            view.end(self._frame(), self._latest, self._picture)

    # -- the picture --------------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """The run in words: "running: step 37 of 60 · reward 0.710 · 12 s"."""
        panel, (first, *others) = next(iter(self.panels.items()))
        number, values = "", self.history.get(first)
        if values:
            number = f"{first if others else panel} {three_digits(latest(values, self.smoothing, panel in self.log))}"
        step = self.steps[-1] if self.steps else None
        return run_in_words(self.state, step, self.max_steps, number, self._seconds)

    @property
    def warnings(self) -> list[str]:
        """The problems of the run, in words; empty if there are none."""
        return [finding.words for finding in self._monitor.findings()]

    @property
    def alt_text(self) -> str:
        """A description of the picture, for readers who cannot see it."""
        return describe_curves(
            self.steps, self.history, self.panels, title=self.title, smoothing=self.smoothing, log=self.log
        )

    def figure(self, note: str = "") -> Figure:
        """The curves as a Matplotlib figure, with `note` small in its upper right corner."""
        return self._draw(draw_curves, note=note)

    def save(self, path: str | Path) -> None:
        """Write the picture as a PNG file, with the status in its corner."""
        Path(path).write_bytes(to_png(self.figure(self.status)))

    def _picture(self) -> Picture:
        return as_picture(self._draw(chart_curves), self.alt_text)

    def _draw(self, draw: Callable, **options) -> Any:
        return draw(
            self.steps,
            self.history,
            self.panels,
            title=self.title,
            smoothing=self.smoothing,
            max_steps=self.max_steps if self._running else None,
            log=self.log,
            **options,
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self._picture()._repr_mimebundle_()

    def __repr__(self) -> str:
        return f"<LivePlot {self.status}>"

    # -- on the page --------------------------------------------------------------------------------------------------

    def _open(self, run: BackgroundRun | None = None) -> None:
        if self._running:
            return
        self._running, self._next_frame = True, 0.0
        self._started = time.monotonic() - self._seconds  # a continued run adds to its time
        shell = notebook_shell()
        if shell is None:
            return
        from mlx_grpo_kit.viz.live.view import LiveView

        self._view = LiveView(run, self._frame())
        self._refresh()
        if run is None:
            # Nothing marks the end of a plain loop of update(), so the end of its cell counts as the end of the run.
            def cell_is_over(_: Any) -> None:
                shell.events.unregister("post_run_cell", cell_is_over)
                self.finish()

            shell.events.register("post_run_cell", cell_is_over)

    def _refresh(self, keep: bool = False) -> None:
        if self._view is None:
            return
        started = time.monotonic()
        self._view.show(self._frame(), self._latest, self._picture, keep=keep)
        self._next_frame = next_frame(started)

    def _frame(self) -> dict[str, Any]:
        """Return the whole state of the run for the page."""
        curves = curves_for_page(self.steps, self.history, self.panels, smoothing=self.smoothing, log=self.log)
        return {
            "title": self.title,
            "state": self.state,
            "status": self.status,
            "over": not self._running,
            "step": self.steps[-1] if self.steps else 0,
            "length": self.max_steps if self._running else None,
            "count": len(self.steps),
            "smoothed": self.smoothing > 0,
            "warnings": self.warnings,
            **curves,
        }

    def hold(self, run: BackgroundRun) -> None:
        """Show that `run` is paused, wait until it continues, and exclude that time from the run's seconds."""
        began = time.monotonic()
        self.state = "paused"
        self._refresh(keep=True)
        run.wait_until_resumed()
        self._started += time.monotonic() - began
        self.state = "running"
        self._refresh()


def _panels(metrics: str | Sequence[str] | Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    names = [metrics] if isinstance(metrics, str) else metrics
    if isinstance(names, Mapping):
        panels = {title: [group] if isinstance(group, str) else list(group) for title, group in names.items()}
    else:
        panels = {name: [name] for name in names}
    if not panels or not all(panels.values()):
        raise ValueError('LivePlot needs at least one metric per panel, for example LivePlot(["reward", "entropy"])')
    return panels


def _as_float(name: str, value: Any) -> float:
    if not isinstance(value, numbers.Real):
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise TypeError(
            f"metric {name!r} is a {kind}, not a Python float. Convert it where it is computed, with "
            f"float(x) or x.item(): an array here would keep its whole computation in memory"
        )
    return float(value)


def _one_for_each_prompt(completions: Iterable[Any], count: int) -> list[Any]:
    first = {}
    for record in completions:
        first.setdefault(record.prompt, record)
    return list(first.values())[:count]
