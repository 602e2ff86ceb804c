"""A dashboard to watch, review and steer a training run.

    dashboard = Dashboard(trainer, max_steps=300, rewards={"exact": exact, "format": format_reward})
    run = dashboard.start()                        # trains in a separate thread; `await run` waits for its end
    Dashboard.open()                               # the newest run of this notebook, even after a restart
    dashboard.record.save("outputs/my_run")
    Dashboard(RunRecord.load("outputs/my_run"))    # the same view, without MLX

Drag over a curve to see the groups and completions of any step; this happens in the browser alone. You can pause the
run, do single steps, stop it, and rewind it to the step under the cursor, to continue from its weights with another
learning rate or reward. The discarded steps stay visible as a grey branch. In a notebook the run is saved after every
step. Nothing here imports MLX: a trainer is any object with the methods that `Steering` lists. A plain iterator of
steps works too, but it can only be paused and stopped.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from mlx_grpo_kit.instruments.dashboard.measures import EVAL_PROBLEMS, Measure, Measures
from mlx_grpo_kit.instruments.dashboard.messages import all_of, columns_of, completions_of
from mlx_grpo_kit.instruments.dashboard.orders import Rewards, named_rewards, read_settings, read_steps
from mlx_grpo_kit.instruments.dashboard.others import OtherRuns, Run
from mlx_grpo_kit.instruments.dashboard.panels import metrics_of
from mlx_grpo_kit.instruments.dashboard.run_picture import chart_run, table_of
from mlx_grpo_kit.instruments.dashboard.saving import SaveTo, Saving, saved_run
from mlx_grpo_kit.instruments.dashboard.settings import settings_of, settings_table, value_before
from mlx_grpo_kit.instruments.dashboard.steering import MEGABYTES, Order, Steering
from mlx_grpo_kit.runs.diagnosis import diagnose
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.runtime.printing import printable
from mlx_grpo_kit.viz.browser import BrowserWidget
from mlx_grpo_kit.viz.kernel import notebook_shell
from mlx_grpo_kit.viz.live.background import BackgroundRun
from mlx_grpo_kit.viz.live.curves import CURVE
from mlx_grpo_kit.viz.live.pace import SECONDS_BETWEEN_STILLS, next_frame
from mlx_grpo_kit.viz.live.words import last_seen, run_in_words
from mlx_grpo_kit.viz.picture import Picture, as_picture, still
from mlx_grpo_kit.viz.style import three_digits

KEEP = 64  # completions per step
SECONDS_FOR_COMPLETIONS = 0.01  # per frame
SECONDS_BETWEEN_LOOKS = 2.0  # between two diagnoses of the run


@printable
class Dashboard(BrowserWidget):
    """Curves, completions and controls of a run.

    Args:
        source: a trainer, an iterator of steps, or a RunRecord to view.
        max_steps: the length of the run; a record knows its own.
        rewards: reward functions to choose from during the run: name -> a function or several.
        megabytes: the memory that snapshots for rewinding may take.
        keep: the number of completions per step to keep; None keeps all.
        eval_every: steps between measurements on held-out problems; 0 measures nothing.
        eval_problems: the number of held-out problems.
        measure: a function for your own numbers, which become curves: step -> {name: number}, called after each step.
        compare: other runs to draw over this one: records or their folders, in a list or by name.
        save_to: the folder in which the run is saved. True means outputs/dashboard, in a notebook only; False saves
            nothing.

    Attributes:
        record: the RunRecord so far.
        run: the BackgroundRun; None before `start`. Continuing a finished run creates another one.
        state: one word, such as "running" or "paused".

    Raises:
        TypeError: `source` is none of these three.
        ValueError: `max_steps` is missing, or the source cannot be evaluated.
    """

    source = Path(__file__).with_name("dashboard")
    parts = (CURVE, "zoom", "layers", "completions", "settings")

    def __init__(
        self,
        source: Any,
        max_steps: int | None = None,
        *,
        title: str = "",
        rewards: Rewards | None = None,
        megabytes: float = MEGABYTES,
        keep: int | None = KEEP,
        eval_every: int = 0,
        eval_problems: int = EVAL_PROBLEMS,
        measure: Measure | None = None,
        compare: Mapping[str, Run] | Sequence[Run] = (),
        save_to: SaveTo = True,
    ):
        self.run: BackgroundRun | None = None
        self.steering: Steering | None = None
        self._iterator: Iterator[Any] | None = None
        self.state = "ready"
        if isinstance(source, RunRecord):
            self.record, self.state = source, "a saved run"
        elif max_steps is None:
            raise ValueError("max_steps is missing; expected the length of the run: Dashboard(trainer, max_steps=300).")
        else:
            self.record = RunRecord(title, max_steps, keep=keep)
            self.record.settings = settings_of(source)
            if all(callable(getattr(source, name, None)) for name in ("train", "snapshot", "rewind", "change")):
                self.steering = Steering(source, max_steps, megabytes)
            elif isinstance(source, Iterator):
                self._iterator = source
            else:
                raise TypeError(
                    f"Dashboard got a {type(source).__name__}; expected a trainer (with train, snapshot, rewind and "
                    "change), an iterator of steps, or a RunRecord."
                )
        self._measures = Measures(source, eval_every, eval_problems, measure)
        self._saving = Saving(save_to)
        self._others = OtherRuns(compare, self._saving.shelf)
        self._opened: Path | None = None
        self._rewards = named_rewards(rewards or {}, getattr(source, "reward_funcs", None))
        self._metrics = dict.fromkeys(metrics_of(self.record))
        self._complaint, self._health = "", diagnose(self.record.steps)
        self._singles, self._hold_again = 0, False
        self._clicking = threading.Lock()  # the page's thread and the run's decide about pausing in turn
        self._rewound_from: int | None = None  # until the next step reports it
        self._looked = False  # True if an earlier step was repeated since the last one
        self._boxes: list[Any] = []  # one per page; the microscope is shown in them
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
                "settings": settings_table(self.record.settings),
                "compare": self._others.given,
                "looks": self.steering is not None and all(hasattr(source, name) for name in ("config", "tokenizer")),
            }
        )

    @classmethod
    def open(cls, run: str | os.PathLike | int = 0, *, save_to: SaveTo = True) -> Dashboard:
        """Show a saved run, even after a restart of the kernel.

        Args:
            run: 0 for this notebook's newest run, 1 for the one before it; or the folder of any run.
            save_to: the `save_to` of the run's dashboard.

        Raises:
            FileNotFoundError: there is no such run.
        """
        folder = saved_run(run, save_to)
        dashboard = cls(RunRecord.load(folder), save_to=save_to)
        dashboard._opened = folder
        return dashboard

    # -- the run ------------------------------------------------------------------------------------------------------

    def start(self) -> BackgroundRun:
        """Show the dashboard, train in a separate thread, and return at once. A stopped run continues.

        Raises:
            TypeError: the source is a record, which does not train.
        """
        if notebook_shell() is not None:
            self._ipython_display_()
        return self._go_on()

    def update(self, metrics: Mapping[str, float], step: int, completions: Any = ()) -> None:
        """Show the progress of the run; called by the BackgroundRun after each step."""
        with self._clicking:
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
        self._saving.keep_up(self.record, whole=True)
        self._flush(keep=True)

    def _go_on(self) -> BackgroundRun:
        if self.steering is None and self._iterator is None:
            raise TypeError("This dashboard shows a saved run, which does not train. Make a dashboard of a trainer.")
        BackgroundRun.end_previous()
        self.state, self._running, self._complaint = "running", True, ""
        self._started = time.monotonic() - self._seconds
        self.run = BackgroundRun(self, self._steps())
        self._renew_still()
        self.run.begin()
        self._send_status()
        return self.run

    def _steps(self) -> Iterator[Any]:
        if self.steering is None:  # not closed at the end, because a stopped run may continue
            for step in self._iterator:
                self._take(step)
                yield step
            return
        self._measure_before()
        with closing(self.steering.steps(self._obeyed)) as steps:
            for step in steps:
                self._take(step)
                yield step

    def _take(self, step: Any) -> None:
        metrics = self._measures.of(step, is_last=step.step == self.record.max_steps)
        # The trainer reports it with the first repeated step, which may not be shown.
        back = {} if self._rewound_from is None else {"rewound_from": self._rewound_from}
        changes = back | dict(getattr(step, "changes", {}))
        if self._looked:  # repeating the step made changes that the user did not order
            names = {*back, *self.steering.changed_after(step.step - 1)}
            changes = {name: value for name, value in changes.items() if name in names}
        if changes:  # after a rewind the trainer reports values too that the record has already
            before = value_before(self.record)
            changes = {name: value for name, value in changes.items() if before.get(name, ...) != value}
        self._rewound_from, self._looked = None, False
        self._add(step.step, metrics, getattr(step, "completions", ()), changes)

    def _add(self, step: int, metrics: dict[str, float], completions: Any = (), changes: Any = None) -> None:
        self.record.add(SimpleNamespace(step=step, completions=completions, changes=changes or {}), metrics)
        self._metrics |= dict.fromkeys(metrics)
        self._sent = min(self._sent, len(self.record) - 1)
        self._saving.keep_up(self.record)

    def _measure_before(self) -> None:
        """Record the policy before its first step as step 0, if held-out problems are measured."""
        if self._measures.eval_every and not self.record.steps:
            self._add(self.steering.trainer.step, self._measures.held_out())

    def _obeyed(self, order: Order, error: Exception | None) -> bool:
        """Report the result of an order; called in the run's thread. Returning False ends the run."""
        self._complaint = "" if error is None else str(error)
        before = self.record.steps[-1].step if self.record.steps else 0
        if self.steering.trainer.step < before:
            self._rewound_from = before
            self.record.rewind(self.steering.trainer.step)
        self.record.max_steps = self.steering.max_steps
        self._sent = min(self._sent, len(self.record))
        self._flush()
        with self._clicking:  # a click may have come while this order was carried out
            holds = self._hold_again and not self.steering.waiting and not self._singles
            self._hold_again = self._hold_again and self.steering.waiting
            if holds:
                self.run.pause()
        if holds:
            self.hold(self.run)
        return self.run is None or not self.run.stopping

    # -- requests from the page ---------------------------------------------------------------------------------------

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the history, the completions of some steps or other runs, or carry out a button's order."""
        if "completions" in question:
            return {"completions": completions_of(self.record, question["completions"])}
        if "others" in question:
            return {"names": self._others.names(but=self._opened or self._saving.path)}
        if "over" in question:
            return {"over": self._others.columns_of(question["over"])}
        if "order" in question:
            self._complaint = ""
            self._order(**question)
            return {"status": self._status()}
        return {**all_of(self.record, self._metrics), "status": self._status()}

    def _order(
        self,
        order: str,
        step: int | None = None,
        rate: str = "",
        reward: str = "",
        steps: str = "",
        group: int | None = None,
    ) -> None:
        run = self.run if self._running else None
        length = read_steps(steps, done=self.steering.trainer.step) if steps.strip() else None
        if order == "pause":
            if run is not None and not run.paused:
                self.state = "pausing"
                run.pause()
        elif order == "stop":
            if run is not None:
                self.state = "stopping"
                run.stop()
        elif order == "go on":
            if length is not None:
                self.steering.give(Order(max_steps=length))
            if run is None:
                self._go_on()
            elif not run.stopping:
                with self._clicking:
                    self._singles, self._hold_again, self.state = 0, False, "running"
                    run.resume()
        elif order == "step":
            with self._clicking:
                self._singles += 1
                if run is not None and run.paused:
                    run.resume()
            if run is None:
                self._go_on()
        elif order == "change":
            self._give(Order(None, read_settings(rate, reward, self._rewards), length))
        elif order == "rewind":
            self._give(Order(step, read_settings(rate, reward, self._rewards), length), go_on=True)
        elif order == "look":
            self._look(step, group)

    def _give(self, order: Order, go_on: bool = False) -> None:
        with self._clicking:
            self.steering.give(order)
            if self._running and self.run.paused:
                self._hold_again = True
                self.run.resume()
                return
        if self._running:
            return
        if go_on:
            self._go_on()
        else:
            self.steering.obey(self._obeyed)

    def _look(self, step: int, group: int | None) -> None:
        """Repeat a step, and show a group of its completions in a microscope below the dashboard."""
        trainer = self.steering.trainer

        def look(before: Any, repeated: Any, after: Any) -> None:
            from mlx_grpo_kit.instruments.microscope import show_microscope

            self._looked = True
            arguments = trainer.config, [before, after], trainer.tokenizer, repeated.completions, trainer.args
            microscope = show_microscope(*arguments, ref_params=trainer.policy.reference, group=group or 0)
            for box in self._boxes:
                box.children = (self.widget, microscope.widget)

        self._give(Order(look_at=step, look=look))

    # -- data for the page --------------------------------------------------------------------------------------------

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
                **columns_of(self.record, fresh, self._metrics),
                "first": first,
                "turns": len(self.record.abandoned),
                "completions": completions_of(self.record, numbers, SECONDS_FOR_COMPLETIONS),
                "status": self._status(),
            }
        )
        if keep or now >= self._next_still:
            self._renew_still()
        self._next_frame = next_frame(now)

    def _send_status(self) -> None:
        self.send({"status": self._status()})

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
            "saved": self._saving.complaint or (self._saving.again and f"This run is saved. {self._saving.again}"),
        }

    def _no_way_back(self) -> str:
        """The reason why a run cannot be rewound; "" if it can."""
        if self.steering is None or self.steering.snapshots or not self.record.steps:
            return ""
        return f"This run cannot be rewound: {self.steering.nothing_kept}"

    def _reward(self) -> str:
        """Return the name of the trainer's current rewards."""
        functions = [*getattr(self.steering.trainer, "reward_funcs", ())] if self.steering else []
        return next((name for name, each in self._rewards.items() if each == functions), "")

    # -- content that stays in the notebook ---------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """The run in words: "running: step 37 of 300 · reward 0.710 · 12 s"."""
        last = self.record.steps[-1] if self.record.steps else None
        reward = last.metrics.get("reward", math.nan) if last else math.nan
        number = f"reward {three_digits(reward)}" if math.isfinite(reward) else ""
        return run_in_words(self.state, last and last.step, self.record.max_steps, number, self._seconds)

    def draw_still(self) -> Picture:
        """Draw the curves, with the abandoned branches in grey."""
        return as_picture(*chart_run(self.record.steps, self.record.abandoned, self.record.title))

    def _still(self) -> dict[str, str]:
        again = self._saving.again
        if self._running:
            words = [last_seen(self.status), again or "Run the cell to train again."]
        else:
            words = [f"A still picture: {self.status}. Run the cell to use its controls.", again]
        picture = self.draw_still() if self.record.steps or self.record.abandoned else None
        return still(picture, " ".join(filter(None, words + self._health)), table_of(self.record))

    def _renew_still(self) -> None:
        if self._places is None:
            return
        from IPython.display import display

        display(self._still(), raw=True, display_id=self._places[1], update=True)
        seconds = SECONDS_BETWEEN_STILLS if self.record.steps else 0.0  # the first curves are kept at once
        self._next_still = time.monotonic() + seconds

    def _box(self) -> Any:
        self._boxes.append(super()._box())
        return self._boxes[-1]

    def _ipython_display_(self) -> None:
        from mlx_grpo_kit.viz.picture import show_live

        self._places = uuid4().hex, uuid4().hex
        show_live(self._box(), None, "", self._places)
        self._renew_still()

    def __repr__(self) -> str:
        return f"<Dashboard {self.status}>"


def _setting(trainer: Any, name: str, default: Any) -> Any:
    return getattr(getattr(trainer, "args", None), name, default)
