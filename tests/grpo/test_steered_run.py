"""GRPOTrainer steered by the dashboard: back and on again, from one thread to the next, with the very same numbers."""

import threading
import time

import mlx.core as mx

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.instruments.dashboard import Dashboard
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition

ARGS = dict(learning_rate=5e-4, lr_scheduler_type="linear", num_generations=4, per_device_train_batch_size=8)


def short(problems, completions):
    return [-float(len(text)) for text in completions]


def train(steps):
    trainer = GRPOTrainer(*load_pretrained(TINY), load_tokenizer(TINY), Addition(), GRPOConfig(**ARGS))
    return trainer, Dashboard(trainer, max_steps=steps, rewards={"short": short})


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def test_going_back_and_on_is_the_same_run_to_the_last_bit():
    plain, _ = train(8)
    expected = [step.metrics["loss"] for step in plain.train(8)]
    trainer, dashboard = train(8)
    dashboard.steering.every = 3  # so that a step between two snapshots has to be reached
    dashboard.start().wait(60)
    dashboard.answer({"order": "rewind", "step": 5, "rate": "1e-3", "reward": "short"})
    dashboard.run.wait(60)
    assert dashboard.record.column("loss")[:5] == expected[:5]
    assert dashboard.record.column("loss")[5:] != expected[5:]
    assert dashboard.record.at(6).changes.keys() == {"rewound_from", "learning_rate", "reward_funcs"}
    assert dashboard.record.at(8).metrics["rewards/short/mean"] < 0

    dashboard.answer({"order": "rewind", "step": 4, "rate": "5e-4", "reward": "the run's own"})
    dashboard.run.wait(60)
    assert dashboard.record.column("loss") == expected
    assert all(mx.array_equal(value, plain.params[name]).item() for name, value in trainer.params.items())
    assert len(dashboard.record.abandoned) == 2


def test_an_older_step_under_the_microscope_leaves_the_run_as_it_was():
    plain, _ = train(8)
    expected = [step.metrics["loss"] for step in plain.train(8)]
    trainer, dashboard = train(8)
    dashboard.steering.every = 3
    dashboard._singles = 6
    dashboard._box()
    dashboard.start()
    until(lambda: dashboard.state == "paused")
    for step, group in ((5, 1), (1, 0)):
        dashboard.answer({"order": "look", "step": step, "group": group})
        until(lambda group=group: len(dashboard._boxes[0].children) == 2 or dashboard._status()["complaint"])
        until(lambda: dashboard.state == "paused" and dashboard.run.paused and not dashboard.steering._orders)
        assert dashboard._status()["complaint"] == ""
        assert trainer.step == 6
        microscope = dashboard._boxes[0].children[1]
        shown, recorded = microscope.data["batch"]["completions"], dashboard.record.at(step).completions
        assert [each["text"] for each in shown[: len(recorded)]] == [each.completion for each in recorded]
        assert microscope.data["settings"]["group"] == group
    dashboard.answer({"order": "go on"})
    dashboard.run.wait(60)
    assert dashboard.record.column("loss") == expected
    assert all(not step.changes for step in dashboard.record.steps)
    assert all(mx.array_equal(value, plain.params[name]).item() for name, value in trainer.params.items())


def test_a_run_that_was_made_longer_is_turned_back_with_the_rates_that_it_had():
    trainer, dashboard = train(4)  # a linear learning rate
    dashboard.steering.every = 10
    dashboard.start().wait(60)
    dashboard.answer({"order": "go on", "steps": "8"})
    dashboard.run.wait(60)
    once, params = (dashboard.record.column("loss"), dashboard.record.column("learning_rate")), dict(trainer.params)
    assert once[1] == [5e-4, 3.75e-4, 2.5e-4, 1.25e-4, 2.5e-4, 1.875e-4, 1.25e-4, 6.25e-5]
    dashboard.answer({"order": "rewind", "step": 6})
    dashboard.run.wait(60)
    assert (dashboard.record.column("loss"), dashboard.record.column("learning_rate")) == once
    assert trainer.step == 8
    assert all(mx.array_equal(value, params[name]).item() for name, value in trainer.params.items())


def test_a_reward_that_fails_ends_the_run_in_words_and_the_run_goes_on_without_it():
    trainer, dashboard = train(6)

    def broken(problems, completions):
        raise KeyError("answer")

    dashboard._rewards["broken"] = [broken]
    dashboard._singles = 2
    dashboard.start()
    until(lambda: dashboard.state == "paused")
    dashboard.answer({"order": "change", "rate": "", "reward": "broken"})
    until(lambda: dashboard._status()["reward"] == "broken" and dashboard.state == "paused")
    dashboard.answer({"order": "go on"})
    until(lambda: not dashboard.run.running)
    assert "'broken'" in dashboard._status()["complaint"]
    assert len(dashboard.record) == trainer.step == 2
    dashboard.answer({"order": "change", "rate": "", "reward": "the run's own"})
    dashboard.answer({"order": "go on"})
    dashboard.run.wait(60)
    assert len(dashboard.record) == 6
    dashboard.run._thread.join(10)
    assert "LivePlot run" not in [thread.name for thread in threading.enumerate()]


def test_a_run_keeps_no_more_snapshots_than_there_is_room_for():
    _, dashboard = train(12)
    dashboard.steering.megabytes = 20
    dashboard.start().wait(120)
    held = sum(snapshot.nbytes for snapshot in dashboard.steering.snapshots.values())
    assert 10e6 < held <= 20e6
