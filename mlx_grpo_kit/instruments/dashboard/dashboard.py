"""A dashboard to watch, review and steer a training run.

    dashboard = Dashboard(trainer, max_steps=300, rewards={"exact": exact, "format": format_reward})
    run = dashboard.start()                        # trains in a separate thread; `await run` waits for its end
    dashboard.record.save("outputs/my_run")
    Dashboard(RunRecord.load("outputs/my_run"))    # the same view, without MLX

Drag over a curve to see the groups and completions of any step; this happens in the browser alone. You can pause the
run, make single steps, stop it, and rewind it to the step under the cursor, to continue from its weights with another
learning rate or reward; the earlier course stays visible as a grey branch. Nothing here imports MLX: a trainer is any
object with the methods that `Steering` names. A plain iterator of steps works too, but can only be paused and stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from mlx_grpo_kit.grpo.schedule import RATES, is_rate
from mlx_grpo_kit.instruments.browser import BrowserWidget
from mlx_grpo_kit.instruments.dashboard.picture import THROUGHPUT, chart_run, names_of, run_panels
from mlx_grpo_kit.instruments.dashboard.steering import MEGABYTES, Order, Steering
from mlx_grpo_kit.runs.diagnosis import diagnose
from mlx_grpo_kit.runs.record import RecordedStep, RunRecord, transcript
from mlx_grpo_kit.viz.live.background import BackgroundRun
from mlx_grpo_kit.viz.live.completions import completions_table
from mlx_grpo_kit.viz.live.pace import next_frame
from mlx_grpo_kit.viz.live.plot import _notebook_shell
from mlx_grpo_kit.viz.picture import Picture, as_picture, still
from mlx_grpo_kit.viz.style import three_digits

KEEP = 64  # completions of a step
MOST_CHARACTERS = 600  # maximum length of a prompt or a completion on the page
MOST_STEPS, MOST_BYTES = 60, 200_000  # limits for the steps whose completions are sent at once
SECONDS_FOR_COMPLETIONS = 0.01  # of a frame
SECONDS_BETWEEN_STILLS = 5.0
SECONDS_BETWEEN_LOOKS = 2.0  # at the run's health
ROWS_LEFT = 8  # of the table in the notebook
DIGITS = 5

Rewards = Mapping[str, Callable | Sequence[Callable]]


class Dashboard(BrowserWidget):
    """Curves, completions and controls of a run.

    Args:
        source: a trainer, an iterator of steps, or a RunRecord to view.
        max_steps: the length of the run; a record knows its own.
        rewards: reward functions to choose from during the run: name -> a function or several.
        megabytes: the memory that snapshots for rewinding may take.
        keep: the number of completions per step to keep; None keeps all.

    Attributes:
        record: the RunRecord so far.
        run: the BackgroundRun; None before `start`. Continuing a finished run creates another one.
        state: one word, such as "running" or "paused".

    Raises:
        TypeError: `source` is none of these three.
        ValueError: `max_steps` is missing.
    """

    source = Path(__file__).with_name("dashboard")

    def __init__(
        self,
        source: Any,
        max_steps: int | None = None,
        *,
        title: str = "",
        rewards: Rewards | None = None,
        megabytes: float = MEGABYTES,
        keep: int | None = KEEP,
    ):
        self.run: BackgroundRun | None = None
        self.steering: Steering | None = None
        self._iterator: Iterator[Any] | None = None
        self.state = "ready"
        if isinstance(source, RunRecord):
            self.record, self.state = source, "a saved run"
        elif max_steps is None:
            raise ValueError("How long is the run? Dashboard(trainer, max_steps=300)")
        else:
            self.record = RunRecord(title, max_steps, keep=keep)
            if all(callable(getattr(source, name, None)) for name in ("train", "snapshot", "rewind", "change")):
                self.steering = Steering(source, max_steps, megabytes)
            elif isinstance(source, Iterator):
                self._iterator = source
            else:
                raise TypeError(
                    f"Dashboard got a {type(source).__name__}; expected a trainer (with train, snapshot, rewind and "
                    "change), an iterator of steps, or a RunRecord."
                )
        self._rewards = _named(rewards or {}, getattr(source, "reward_funcs", None))
        self._metrics = dict.fromkeys(name for step in self.record.steps for name in step.metrics)
        self._complaint, self._health = "", diagnose(self.record.steps)
        self._singles, self._hold_again = 0, False
        self._rewound_from: int | None = None  # until the next step reports it
        self._sent = len(self.record)  # the number of steps that were sent to the page
        self._seconds = self._started = self._next_frame = self._next_still = self._next_look = 0.0
        self._running = False
        self._places: tuple[str, str] | None = None
        super().__init__(
            {
                "title": self.record.title,
                "trains": self.steering is not None or self._iterator is not None,
                "steers": self.steering is not None,
                "rewards": [*self._rewards] if self.steering else [],
                "schedule": _setting(source, "lr_scheduler_type", "constant"),
            }
        )

    # -- the run ------------------------------------------------------------------------------------------------------

    def start(self) -> BackgroundRun:
        """Show the dashboard, train in a separate thread, and return at once. A stopped run continues.

        Raises:
            TypeError: the source is a record, which does not train.
        """
        if _notebook_shell() is not None:
            self._ipython_display_()
        return self._go_on()

    def update(self, metrics: Mapping[str, float], step: int, completions: Any = ()) -> None:
        """Show the progress of the run; called by the BackgroundRun after each step."""
        if self._singles:
            self._singles -= 1
            if not self._singles:
                self.run.pause()
        if time.monotonic() >= self._next_frame:
            self._flush()

    def hold(self, run: BackgroundRun) -> None:
        """Show that the run is paused, and wait until it continues."""
        began = time.monotonic()
        self.state = "paused"
        self._flush(keep=True)
        run.wait_until_resumed()
        self._started += time.monotonic() - began
        if not run.stopping:
            self.state = "running"
            self._send_status()

    def finish(self, state: str = "finished") -> None:
        """Show how the run ended; called by the BackgroundRun."""
        if self.run.stopping and state == "finished":  # the steering ended the steps
            state = "stopped"
        self.state, self._running, self._singles = state, False, 0
        if self.run.error is not None:
            self._complaint = f"{type(self.run.error).__name__}: {self.run.error}"
        self._flush(keep=True)

    def _go_on(self) -> BackgroundRun:
        if self.steering is None and self._iterator is None:
            raise TypeError("This dashboard shows a saved run, which does not train. Make one of a trainer.")
        BackgroundRun.end_the_one_before()
        self.state, self._running, self._complaint = "running", True, ""
        self._started = time.monotonic() - self._seconds
        self.run = BackgroundRun(self, self._steps())
        self.run.begin()
        self._send_status()
        return self.run

    def _steps(self) -> Iterator[Any]:
        if self.steering is None:  # not closed at the end, because a stopped run may continue
            for step in self._iterator:
                self._take(step)
                yield step
            return
        with closing(self.steering.steps(self._obeyed)) as steps:
            for step in steps:
                self._take(step)
                yield step

    def _take(self, step: Any) -> None:
        metrics, completions = dict(step.metrics), getattr(step, "completions", ())
        if THROUGHPUT not in metrics and metrics.get("step_time") and completions:
            tokens = metrics.get("completions/mean_length", math.nan) * len(completions)
            metrics[THROUGHPUT] = tokens / metrics["step_time"]
        # The trainer reports it with the first repeated step, which may not be shown.
        back = {} if self._rewound_from is None else {"rewound_from": self._rewound_from}
        self._rewound_from = None
        changes = back | dict(getattr(step, "changes", {}))
        self.record.add(SimpleNamespace(step=step.step, completions=completions, changes=changes), metrics)
        self._metrics |= dict.fromkeys(metrics)
        self._sent = min(self._sent, len(self.record) - 1)

    def _obeyed(self, order: Order, error: Exception | None) -> bool:
        """Report the result of an order; called in the run's thread. Returning False ends the run."""
        self._complaint = "" if error is None else str(error)
        before = self.record.steps[-1].step if self.record.steps else 0
        if self.steering.trainer.step < before:
            self._rewound_from = before
            self.record.rewind(self.steering.trainer.step)
        self._sent = min(self._sent, len(self.record))
        self._flush()
        if self._hold_again:
            self._hold_again = False
            self.run.pause()
            self.hold(self.run)
        return self.run is None or not self.run.stopping

    # -- requests from the page
    # -------------------------------------------------------------------------------------------

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the history or the completions of some steps, or carry out a button's order."""
        if "completions" in question:
            return {"completions": self._completions(question["completions"])}
        if "order" in question:
            self._complaint = ""
            self._order(**question)
            return {"status": self._status()}
        return {
            **self._columns(self.record.steps),
            "abandoned": [self._columns(branch) for branch in self.record.abandoned],
            "status": self._status(),
        }

    def _order(self, order: str, step: int | None = None, rate: str = "", reward: str = "") -> None:
        run = self.run if self._running else None
        if order == "pause":
            if run is not None and not run.paused:
                self.state = "pausing"
                run.pause()
        elif order == "stop":
            if run is not None:
                self.state = "stopping"
                run.stop()
        elif order == "go on":
            if run is None:
                self._go_on()
            elif not run.stopping:
                self._singles, self.state = 0, "running"
                run.resume()
        elif order == "step":
            self._singles += 1
            if run is None:
                self._go_on()
            elif run.paused:
                run.resume()
        elif order == "change":
            self._give(Order(None, self._settings(rate, reward)))
        elif order == "rewind":
            self._give(Order(step, self._settings(rate, reward)), go_on=True)

    def _give(self, order: Order, go_on: bool = False) -> None:
        self.steering.give(order)
        if self._running and self.run.paused:
            self._hold_again = True
            self.run.resume()
        elif go_on and not self._running:
            self._go_on()
        elif not self._running:
            self.steering.obey(self._obeyed)

    def _settings(self, rate: str, reward: str) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        if rate.strip():
            try:
                settings["learning_rate"] = float(rate)
            except ValueError:
                settings["learning_rate"] = math.nan
            if not is_rate(settings["learning_rate"]):
                raise ValueError(f"The learning rate is {rate[:40]!r}; expected a number, {RATES}, such as 1e-4.")
        if reward in self._rewards:
            settings["reward_funcs"] = self._rewards[reward]
        return settings

    # -- data for the page ----------------------------------------------------------------------------------------

    def _flush(self, keep: bool = False) -> None:
        """Send steps that the page does not have yet; `keep` always renews the still picture."""
        now = time.monotonic()
        if self._running and self.state != "paused":
            self._seconds = now - self._started
        if now >= self._next_look or keep:
            self._health = diagnose(self.record.steps)
            self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        steps, first = self.record.steps, self._sent
        self._sent = len(steps)
        fresh = steps[first:]
        numbers = [step.step for step in reversed(fresh)]
        self.send(
            {
                **self._columns(fresh),
                "first": first,
                "turns": len(self.record.abandoned),
                "completions": self._completions(numbers, SECONDS_FOR_COMPLETIONS),
                "status": self._status(),
            }
        )
        if self._places is not None and (keep or now >= self._next_still):
            from IPython.display import display

            display(self._still(), raw=True, display_id=self._places[1], update=True)
            self._next_still = time.monotonic() + SECONDS_BETWEEN_STILLS
        self._next_frame = next_frame(now)

    def _send_status(self) -> None:
        self.send({"status": self._status()})

    def _columns(self, steps: Sequence[RecordedStep]) -> dict[str, Any]:
        panels = run_panels([*self._metrics])
        return {
            "panels": [vars(panel) for panel in panels],
            "steps": [step.step for step in steps],
            "columns": {
                name: [_short(step.metrics.get(name, math.nan)) for step in steps] for name in names_of(panels)
            },
            "changes": {str(step.step): _words(step.changes) for step in steps if step.changes},
            "kept": [step.step for step in steps if step.line is not None],
            "turns": len(self.record.abandoned),
        }

    def _completions(self, numbers: Sequence[int], seconds: float = math.inf) -> dict[str, Any]:
        """The completions of the first of some steps, by step: as many as size and time allow."""
        found: dict[str, Any] = {}
        size, started = 0, time.monotonic()
        for number in numbers[:MOST_STEPS]:
            try:
                step = self.record.at(number)
            except KeyError:  # rewound since
                continue
            if step.line is None:
                continue
            found[str(number)] = [_row(completion) for completion in step.completions]
            size += len(step.line)
            if size > MOST_BYTES or time.monotonic() - started > seconds:
                break
        return found

    def _status(self) -> dict[str, Any]:
        steps = self.record.steps
        done = steps[-1].step if steps else 0
        times = [step.metrics.get("step_time", math.nan) for step in steps[-20:]]
        left = max(0, (self.record.max_steps or 0) - done)
        return {
            "state": self.state,
            "over": not self._running,
            "step": done,
            "maxSteps": self.record.max_steps,
            "seconds": self._seconds,
            "left": left * sum(times) / len(times) if times else None,
            "complaint": self._complaint,
            "health": [*self.record.damaged, *self._health],
            "rate": _setting(self.steering and self.steering.trainer, "learning_rate", None),
            "reward": self._reward(),
            "first": min(self.steering.snapshots, default=None) if self.steering else None,
            "noWayBack": self._no_way_back(),
        }

    def _no_way_back(self) -> str:
        """The reason why a run cannot be rewound; "" if it can."""
        if self.steering is None or self.steering.snapshots or not self.record.steps:
            return ""
        return f"There is no way back: {self.steering.nothing_kept}"

    def _reward(self) -> str:
        """The name of the trainer's present rewards."""
        functions = [*getattr(self.steering.trainer, "reward_funcs", ())] if self.steering else []
        return next((name for name, each in self._rewards.items() if each == functions), "")

    # -- content that stays in the notebook
    # -----------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """The run in words: "running: step 37 of 300 · reward 0.710 · 12 s"."""
        steps = self.record.steps
        if not steps:
            return self.state
        total = f" of {self.record.max_steps}" if self.record.max_steps else ""
        words = [f"{self.state}: step {steps[-1].step}{total}"]
        reward = steps[-1].metrics.get("reward", math.nan)
        if math.isfinite(reward):
            words.append(f"reward {three_digits(reward)}")
        if self._seconds:
            words.append(f"{self._seconds:.0f} s")
        return " · ".join(words)

    def draw_still(self) -> Picture:
        """The curves, with the abandoned branches in grey."""
        return as_picture(*chart_run(self.record.steps, self.record.abandoned, self.record.title))

    def _still(self) -> dict[str, str]:
        last = next((step for step in reversed(self.record.steps) if step.line is not None), None)
        rows = last.completions if last else []
        group = [row for row in rows if (row.group, row.prompt) == (rows[0].group, rows[0].prompt)][:ROWS_LEFT]
        table = completions_table(group, title=f"One group of step {last.step}") if group else None
        note = " ".join([f"A still picture: {self.status}. Run the cell to move it.", *self._health])
        return still(self.draw_still(), note, table)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        from mlx_grpo_kit.viz.picture import show_live

        self._places = uuid4().hex, uuid4().hex
        show_live(self._box(), self.draw_still(), "", self._places)
        display(self._still(), raw=True, display_id=self._places[1], update=True)
        self._next_still = time.monotonic() + SECONDS_BETWEEN_STILLS

    def __repr__(self) -> str:
        return f"<Dashboard {self.status}>"


def _named(rewards: Rewards, now: Sequence[Callable] | None) -> dict[str, list[Callable]]:
    """Lists of functions by name, including the trainer's present ones if no other list equals them."""
    named = {name: [each] if callable(each) else [*each] for name, each in rewards.items()}
    if named and now and [*now] not in named.values():
        named = {"the run's own": [*now]} | named
    return named


def _setting(trainer: Any, name: str, default: Any) -> Any:
    return getattr(getattr(trainer, "args", None), name, default)


def _row(completion: Any) -> list[Any]:
    """group, prompt, completion, reward, advantage, tokens, finished, rewards by function, right answer."""
    ids, rewards = completion.completion_ids, completion.rewards
    return [
        completion.group,
        _cut(completion.prompt),
        _cut(transcript(completion)),
        completion.reward,
        completion.advantage,
        None if ids is None else sum(getattr(completion, "token_mask", None) or [True] * len(ids)),
        completion.finished,
        dict(rewards) if rewards and len(rewards) > 1 else None,
        None if completion.answer is None else _cut(completion.answer),
    ]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _words(changes: Mapping[str, Any]) -> str:
    """The changes in words: "learning rate 0.0001, reward format, back from step 40"."""
    names = {"reward_funcs": "reward", "rewound_from": "back from step"}
    words = []
    for name, value in changes.items():
        value = " + ".join(map(str, value)) if isinstance(value, list | tuple) else value
        words.append(f"{names.get(name, name.replace('_', ' '))} {value}")
    return ", ".join(words)
