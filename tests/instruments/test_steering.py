"""Rewinding a run: repeated steps are the same, snapshots stay few, and orders are carried out between steps.

The trainer is one whose weight is a sum that anybody can add up. tests/grpo has GRPOTrainer's own snapshots.
"""

from types import SimpleNamespace

import pytest

from mlx_grpo_kit.instruments.dashboard.steering import Order, Steering


class Summing:
    """A trainer whose weight grows by `size` per step, so that every weight shows which sizes were used."""

    def __init__(self, step=0, nbytes=1):
        self.step, self.weight, self.size, self.nbytes = step, 0, 1, nbytes
        self.taken, self.open = 0, 0

    def train(self, max_steps):
        self.open += 1
        try:
            while self.step < max_steps:
                self.step, self.weight, self.taken = self.step + 1, self.weight + self.size, self.taken + 1
                yield SimpleNamespace(step=self.step, weight=self.weight)
        finally:
            self.open -= 1

    def snapshot(self):
        return SimpleNamespace(step=self.step, weight=self.weight, size=self.size, nbytes=self.nbytes)

    def rewind(self, snapshot):
        self.step, self.weight, self.size = snapshot.step, snapshot.weight, snapshot.size

    def change(self, **settings):
        if settings.get("size", 1) < 0:
            raise ValueError("size is below 0")
        self.size = settings.get("size", self.size)


def play(steering, orders=None, obeyed=lambda order, error: True):
    """List (step, weight) of a run; `orders` are given when their step is first done."""
    orders, seen = dict(orders or {}), []
    for step in steering.steps(obeyed):
        seen.append((step.step, step.weight))
        for order in orders.pop(step.step, ()):
            steering.give(order)
    return seen


def test_without_orders_the_steps_are_the_trainers():
    trainer = Summing()
    assert play(Steering(trainer, 5)) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    assert trainer.open == 0


def test_rewinding_repeats_the_run_from_the_weights_of_that_step():
    seen = play(Steering(Summing(), 6), {5: [Order(back_to=2, settings={"size": 10})]})
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (3, 12), (4, 22), (5, 32), (6, 42)]


def test_an_order_after_the_last_step_is_carried_out_too():
    assert play(Steering(Summing(), 3), {3: [Order(back_to=1, settings={"size": 5})]})[3:] == [(2, 6), (3, 11)]


def test_a_step_between_two_snapshots_is_reached_with_the_settings_of_that_time():
    trainer = Summing(nbytes=1_000_000)
    steering = Steering(trainer, 40, megabytes=3)
    orders = {17: [Order(settings={"size": 100})], 21: [Order(settings={"size": 1000})], 30: [Order(back_to=23)]}
    seen = play(steering, orders)
    assert len(steering.snapshots) <= 3
    first, again = dict(seen[:30]), dict(seen[30:])
    assert (first[17], first[21], first[23]) == (17, 417, 2417)
    assert {step: weight for step, weight in again.items() if step <= 30} == {
        step: weight for step, weight in first.items() if step > 23
    }


@pytest.mark.parametrize(("megabytes", "most"), [(10, 10), (2, 2), (1, 1)])
def test_snapshots_stay_within_their_limit_and_cover_the_whole_run(megabytes, most):
    steering = Steering(Summing(nbytes=1_000_000), 500, megabytes)
    for _ in steering.steps(lambda order, error: True):
        assert len(steering.snapshots) <= most
    kept = sorted(steering.snapshots)
    assert kept[0] == 0
    assert kept == [steering.every * place for place in range(len(kept))]
    assert len(kept) > most / 2


def test_the_first_snapshot_of_the_run_is_kept():
    steering = Steering(Summing(step=37, nbytes=1_000_000), 200, megabytes=4)
    play(steering)
    assert min(steering.snapshots) == 37


def test_without_room_for_one_snapshot_rewinding_raises_an_error():
    errors = []
    seen = play(
        Steering(Summing(nbytes=2_000_000), 4, megabytes=1),
        {3: [Order(back_to=1)]},
        lambda order, error: errors.append(str(error)) or True,
    )
    assert [step for step, _ in seen] == [1, 2, 3, 4]
    assert "more than the limit of 1 MB" in errors[0]


def test_an_order_that_fails_leaves_the_run_unchanged():
    errors = []
    seen = play(
        Steering(Summing(step=2), 6),
        {4: [Order(settings={"size": -1}), Order(back_to=1), Order(back_to=5)]},
        lambda order, error: errors.append(str(error)) or True,
    )
    assert seen == [(3, 1), (4, 2), (5, 3), (6, 4)]
    assert errors == [
        "size is below 0",
        "Cannot rewind to step 1: the first snapshot is of step 2.",
        "Cannot rewind to step 5: the run is at step 4.",
    ]


def test_the_run_ends_if_obeyed_returns_false():
    trainer = Summing()
    assert [step for step, _ in play(Steering(trainer, 9), {4: [Order(back_to=2)]}, lambda *_: False)] == [1, 2, 3, 4]
    assert (trainer.step, trainer.open) == (2, 0)


def test_a_change_that_was_undone_is_not_repeated():
    steering = Steering(Summing(nbytes=1_000_000), 40, megabytes=3)
    orders = {17: [Order(settings={"size": 100})], 21: [Order(back_to=17)], 30: [Order(back_to=20)]}
    seen = play(steering, orders)
    assert seen[20] == (21, 417)
    assert seen[-20:] == [(step, step) for step in range(21, 41)]


def test_snapshots_of_an_abandoned_branch_are_not_used():
    steering, seen = Steering(Summing(), 8), []
    for step in steering.steps(lambda order, error: True):
        seen.append((step.step, step.weight))
        if len(seen) == 6:
            steering.give(Order(back_to=2, settings={"size": 10}))
        if len(seen) == 8:
            assert max(steering.snapshots) == 4
            steering.give(Order(back_to=3))
    assert seen[6:] == [(3, 12), (4, 22), (4, 22), (5, 32), (6, 42), (7, 52), (8, 62)]
