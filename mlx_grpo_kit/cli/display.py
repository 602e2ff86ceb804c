"""The display of a training run in a terminal: a few lines that are redrawn in place, or regular lines in a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mlx_grpo_kit.cli.terminal import escaped
from mlx_grpo_kit.runs.diagnosis import Finding, Monitor
from mlx_grpo_kit.runs.record import transcript

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo import TrainStep

BARS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 40
SAMPLES, SAMPLE_WIDTH = 3, 40
SECONDS_A_SAMPLE = 1.5  # long enough to read; steps of a tiny model take a fraction of that
SECONDS_A_LINE = 10.0
SECONDS_A_DIAGNOSIS = 1.0
STEPS_FOR_SPEED = 20


class RunDisplay:
    """Show the progress of a run: redrawn in place in a terminal, elsewhere one line every ten seconds.

    Problems of the run (`mlx_grpo_kit.runs.diagnosis`) are shown below, or as a line when they are found.

        with RunDisplay("tiny learns addition", max_steps=150, is_correct=task.is_correct) as display:
            display.begin_steps()
            for step in trainer.train(150):
                display.update(step, step.metrics)

    Args:
        title: the model and the task.
        max_steps: the steps of the whole run.
        is_correct: (problem, completion) -> True if a sampled completion is right.
        note: a function called at every redraw, which returns text to show below, such as that the run is about to
            stop.
        processes: the number of processes that train together; a step shows the completions of one.
    """

    def __init__(
        self,
        title: str,
        max_steps: int,
        is_correct: Callable[[Any, str], bool],
        note: Callable[[], str] = lambda: "",
        console: Console | None = None,
        processes: int = 1,
    ):
        self.console = console or Console(highlight=False)
        self.title, self.max_steps, self.is_correct, self.note = escaped(title), max_steps, is_correct, note
        self.processes = processes
        self.accuracies: list[tuple[int, float]] = []
        self._phase = ""
        self._rewards: list[float] = []
        self._step: TrainStep | None = None
        self._samples: list[tuple[str, str, bool]] = []
        self._monitor = Monitor()
        self._findings: list[Finding] = []
        self._said: set[str] = set()
        self._sampled_at = self._line_at = self._diagnosed_at = float("-inf")
        self._seconds: deque[float] = deque(maxlen=STEPS_FOR_SPEED)
        self._started = self._step_began = time.monotonic()
        self._spinner = Spinner("dots")
        in_place = self.console.is_terminal and self.console.encoding.startswith("utf")
        self._live = Live(self, console=self.console, refresh_per_second=8) if in_place else None

    def __enter__(self) -> RunDisplay:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._phase, self.note = "", lambda: ""
        if exception[:1] == (None,):
            self._findings = []  # the report of a successful run contains them
        if self._live:
            self._live.stop()

    @property
    def warnings(self) -> list[str]:
        """The present problems of the run, in words."""
        return [finding.words for finding in self._monitor.findings()]

    def phase(self, words: str) -> None:
        """Show the present activity, if it is not a training step."""
        self._phase = words
        if not self._live:
            self.console.print(f"{words} ...", markup=False)

    def measured(self, step: int, accuracy: float) -> None:
        """Record an accuracy on held-out problems."""
        self.accuracies.append((step, accuracy))

    def update(self, step: TrainStep, metrics: Mapping[str, float]) -> None:
        """Record a finished step. Its time is all the time since the previous step."""
        now = time.monotonic()
        self._seconds.append(now - self._step_began)
        self._step_began = now
        self._phase = ""
        self._step = step
        self._rewards.append(metrics["reward"])
        measured = "eval/accuracy" in metrics
        if measured:
            self.measured(step.step, metrics["eval/accuracy"])
        if now - self._sampled_at >= SECONDS_A_SAMPLE:
            self._samples, self._sampled_at = self._read_samples(step), now
        if not self._live and (measured or now - self._line_at >= SECONDS_A_LINE):
            self.console.print(self._line(metrics), markup=False, soft_wrap=True)
            self._line_at = now
        self._monitor.add(step.step, metrics, step.completions, step.changes)
        if now - self._diagnosed_at >= SECONDS_A_DIAGNOSIS:
            self._diagnose()
            self._diagnosed_at = now

    def begin_steps(self) -> None:
        """Call this right before the first step, so that earlier work does not count as its time."""
        self._phase = "the first step"
        self._step_began = time.monotonic()

    def _diagnose(self) -> None:
        self._findings = self._monitor.findings()
        for finding in self._findings:
            if not self._live and finding.name not in self._said:
                self.console.print(f"! {finding.words}", markup=False, soft_wrap=True)
            self._said.add(finding.name)

    def _read_samples(self, step: TrainStep) -> list[tuple[str, str, bool]]:
        one_a_prompt = {record.prompt: record for record in step.completions}
        samples = []
        for record in list(one_a_prompt.values())[:SAMPLES]:
            right = self.is_correct(record.problem, record.completion)
            prompt, completion = _one_line(record.prompt, keep_end=True), _one_line(transcript(record))
            between = " " if getattr(record, "messages", None) else ""
            samples.append((prompt + between, completion or "(empty)", right))
        return samples

    def _line(self, metrics: Mapping[str, float]) -> str:
        width = len(str(self.max_steps))
        words = [f"step {self._step.step:>{width}}/{self.max_steps}", f"reward {metrics['reward']:.3f}"]
        if "eval/accuracy" in metrics:
            words.append(f"held-out accuracy {metrics['eval/accuracy']:.3f}")
        words.append(f"{self._tokens_per_second():,.0f} tokens/s")
        if self._step.step < self.max_steps:
            words.append(f"{clock(self._seconds_left())} left")
        for prompt, completion, right in self._samples[:1]:
            words.append(f"{prompt}{completion} ({'right' if right else 'wrong'})")
        return "  ".join(words)

    def __rich__(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(no_wrap=True)
        if self._step:
            grid.add_row("step", self._bar())
            grid.add_row("reward", Text.assemble((sparkline(self._rewards), "cyan"), f"  {self._rewards[-1]:.3f}"))
        if self.accuracies:
            grid.add_row("accuracy", self._accuracy())
        if self._step:
            grid.add_row("speed", f"{self._tokens_per_second():,.0f} tokens/s")
            for index, (prompt, completion, right) in enumerate(self._samples):
                mark = ("  ✓ right", "green") if right else ("  ✗ wrong", "red")
                sample = Text.assemble((prompt, "dim"), (completion, "bold"), mark)
                grid.add_row("samples" if index == 0 else "", sample)
        rows: list[RenderableType] = [Text(self.title, style="bold"), grid]
        if self._phase:
            self._spinner.update(text=Text(self._phase, style="dim"))
            rows.append(self._spinner)
        rows += [Text(f"! {finding.words}", style="yellow") for finding in self._findings]
        if note := self.note():
            rows.append(Text(note, style="yellow"))
        return Group(*rows)

    def _bar(self) -> RenderableType:
        done = self._step.step
        elapsed = clock(self._step_began - self._started)
        time_left = f"{clock(self._seconds_left())} left" if done < self.max_steps else f"in {elapsed}"
        row = Table.grid(padding=(0, 2))
        row.add_row(ProgressBar(self.max_steps, done, width=SPARKLINE_WIDTH), f"{done}/{self.max_steps}", time_left)
        return row

    def _accuracy(self) -> Text:
        (first_step, first), (last_step, last) = self.accuracies[0], self.accuracies[-1]
        text = Text(f"{first:.3f}")
        if last_step > first_step:
            text.append(" → ").append(f"{last:.3f}", style="bold")
        return text.append(f"  on held-out problems (step {last_step})", style="dim")

    def _tokens_per_second(self) -> float:
        metrics, completions = self._step.metrics, len(self._step.completions) * self.processes
        return metrics["completions/mean_length"] * completions / metrics["step_time"]

    def _seconds_left(self) -> float:
        since = time.monotonic() - self._step_began
        a_step = sum(self._seconds) / len(self._seconds)
        return max((self.max_steps - self._step.step) * a_step - since, 0.0)


def sparkline(values: Sequence[float], width: int = SPARKLINE_WIDTH) -> str:
    """All values in at most `width` characters (averages of neighbours), scaled from lowest to highest."""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)] if count else []
    parts = [[value for value in values[a:b] if value == value] for a, b in pairwise(edges)]
    means = [sum(part) / len(part) if part else None for part in parts]
    known = [mean for mean in means if mean is not None]
    lowest, highest = min(known, default=0.0), max(known, default=0.0)
    scale = (len(BARS) - 1) / (highest - lowest or 1.0)
    return "".join(" " if mean is None else BARS[round((mean - lowest) * scale)] for mean in means)


def clock(seconds: float) -> str:
    """75 -> "1:15", 3675 -> "1:01:15"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _one_line(text: str, keep_end: bool = False) -> str:
    """Text with escaped control characters, shortened at one end if it is long."""
    shown = escaped(text)
    if len(shown) <= SAMPLE_WIDTH:
        return shown
    return "…" + shown[1 - SAMPLE_WIDTH :] if keep_end else shown[: SAMPLE_WIDTH - 1] + "…"
