"""A training run that can be rewound: it takes snapshots, and carries out orders between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

MEGABYTES = 256


@dataclass(frozen=True)
class Order:
    """An order to carry out before the next step: rewind to step `back_to` (None: stay), and change settings.

    `max_steps` makes the run longer or shorter. If `look` is given, step `look_at` is repeated, and `look` is called
    with the parameters before it, the step, and the parameters after it.
    """

    back_to: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    look_at: int | None = None
    look: Callable[[Any, Any, Any], None] | None = None


class Steering:
    """The steps of a trainer as one iterator; `give(order)` rewinds it or changes its settings.

    The trainer is any object such as GRPOTrainer with a number `step` and the methods `snapshot()`, `rewind(snapshot)`,
    `change(**settings)` and `train(max_steps)`, an iterator of steps that have a number `.step`. All methods are called
    in the thread that iterates.

    A snapshot is taken at the first step and after every `every` steps. If the snapshots take more than `megabytes`,
    every second one is dropped and `every` doubles, so a run of any length has snapshots throughout. To reach a step
    between two snapshots, the steps after the earlier one are repeated with their original settings, which gives the
    same run.

    Attributes:
        every: steps between two snapshots.
        snapshots: snapshots by step; empty if not even one fits.

    Args:
        megabytes: the limit for all snapshots together, computed from the `nbytes` of the first.
    """

    def __init__(self, trainer: Any, max_steps: int, megabytes: float = MEGABYTES):
        self.trainer, self.megabytes = trainer, megabytes
        self._lengths = {0: max_steps}  # of the run, by the step after which it was changed
        self.every = 1
        self.snapshots: dict[int, Any] = {}
        self._changes: dict[int, dict[str, Any]] = {}  # by the step before them
        self._orders: list[Order] = []

    @property
    def max_steps(self) -> int:
        """The length of the run."""
        return self._lengths[max(self._lengths)]

    def changed_after(self, step: int) -> set[str]:
        """The names of the settings that were changed right after a step."""
        return {*self._changes.get(step, {})}

    def give(self, order: Order) -> None:
        """Carry out `order` before the next step."""
        self._orders.append(order)

    def steps(self, obeyed: Callable[[Order, Exception | None], bool]) -> Iterator[Any]:
        """Yield the steps up to `max_steps`; after a rewind, repeat the steps from there on.

        Orders are carried out between two steps, as in `obey`; the iterator ends if `obeyed` returns False.
        """
        self._keep()
        while True:
            if not self.obey(obeyed):
                return
            with closing(self.trainer.train(self.max_steps)) as training:
                for step in training:
                    self._keep()
                    yield step
                    if self._orders:
                        break
            if not self._orders:
                return

    def obey(self, obeyed: Callable[[Order, Exception | None], bool]) -> bool:
        """Carry out waiting orders while no iterator runs.

        `obeyed` is called after each with its error, if it failed. Returns True if all these calls returned True.
        """
        while self._orders:
            order, error = self._orders.pop(0), None
            try:
                self._obey(order)
            except Exception as raised:
                error = raised
            if not obeyed(order, error):
                return False
        return True

    def _obey(self, order: Order) -> None:
        if order.back_to is not None:
            self._go_back(order.back_to)
        if order.settings:
            self.trainer.change(**order.settings)
            before = self._changes.get(self.trainer.step, {})
            self._changes[self.trainer.step] = before | dict(order.settings)
        if order.max_steps is not None:
            self._lengths[self.trainer.step] = order.max_steps
        if order.look is not None:
            order.look(*self._repeat(order.look_at))

    def _repeat(self, step: int) -> tuple[Any, Any, Any]:
        """Repeat a step, restore the trainer, and return (parameters before, the repeated step, parameters after)."""
        here, kept = self.trainer.snapshot(), (self.snapshots, self._changes, self._lengths)
        try:
            self._go_back(step - 1)
            self.trainer.change(**kept[1].get(step - 1, {}))
            before = self.trainer.params
            with closing(self.trainer.train(self.max_steps)) as training:
                repeated = next(training)
            return before, repeated, self.trainer.params
        finally:
            self.trainer.rewind(here)
            self.snapshots, self._changes, self._lengths = kept

    def _go_back(self, step: int) -> None:
        if step > self.trainer.step:
            raise ValueError(f"Cannot rewind to step {step}: the run is at step {self.trainer.step}.")
        start = max((kept for kept in self.snapshots if kept <= step), default=None)
        if start is None:
            first = f"the first snapshot is of step {min(self.snapshots)}" if self.snapshots else self.nothing_kept
            raise ValueError(f"Cannot rewind to step {step}: {first}.")
        self.trainer.rewind(self.snapshots[start])
        # Later snapshots belong to the discarded steps.
        self.snapshots = {kept: snapshot for kept, snapshot in self.snapshots.items() if kept <= start}
        self._changes = {after: settings for after, settings in self._changes.items() if after < step}
        lengths, now = self._lengths, self.max_steps
        self._lengths = {after: length for after, length in lengths.items() if after < step} | {step: now}
        while self.trainer.step < step:
            self.trainer.change(**self._changes.get(self.trainer.step, {}))
            following = min((after for after in {*self._changes, *lengths} if after > self.trainer.step), default=step)
            length = lengths[max(after for after in lengths if after <= self.trainer.step)]
            with closing(self.trainer.train(length)) as training:
                for repeated in training:
                    self._keep()
                    if repeated.step >= following:
                        break

    @property
    def nothing_kept(self) -> str:
        """The reason why there are no snapshots, in words."""
        return f"a snapshot takes more than the limit of {self.megabytes:g} MB (megabytes=...)"

    def _keep(self) -> None:
        step = self.trainer.step
        if self.snapshots and step % self.every:
            return
        snapshot = self.trainer.snapshot()
        room = int(self.megabytes * 1e6 / max(getattr(snapshot, "nbytes", 0), 1))
        if not room:
            return
        self.snapshots[step] = snapshot
        first = min(self.snapshots)
        while len(self.snapshots) > room:
            self.every *= 2
            # Make a new dictionary, because another thread may be reading the old one.
            self.snapshots = {
                kept: snapshot for kept, snapshot in self.snapshots.items() if kept == first or kept % self.every == 0
            }
