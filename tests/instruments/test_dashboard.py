"""The dashboard without a browser: messages to the page, effects of buttons on the run, and the stored output."""

import json
import math
import re
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.instruments.dashboard import Dashboard
from mlx_grpo_kit.instruments.dashboard.messages import MOST_CHARACTERS
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.viz.style import COLORS

SECONDS = 30


def until(condition):
    """Wait for another thread."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


@pytest.fixture
def dashboard(fake):
    """A dashboard of a run with 40 quick steps; its messages are in `.sent`."""
    rewards = {"exact": fake.exact, "format": [fake.format_reward]}
    dashboard = Dashboard(fake.FakeTrainer(seconds=0.002), max_steps=40, title="A run", rewards=rewards)
    dashboard.sent = []
    dashboard.widget.send = lambda message: dashboard.sent.append(json.loads(json.dumps(message, allow_nan=False)))
    yield dashboard
    if dashboard.run is not None:
        dashboard.run.stop()
        until(lambda: not dashboard.run.running)


def order(dashboard, name, **others):
    return dashboard.answer({"order": name, "step": None, "rate": "", "reward": "", **others})


def pause_at(dashboard, step):
    """Run step by step until `step` is done, and pause there."""
    dashboard._singles = step - len(dashboard.record)
    dashboard.start() if dashboard.run is None else order(dashboard, "go on")
    until(lambda: dashboard.state == "paused")


def rebuilt(dashboard):
    """Return the page's columns, built from all messages as in dashboard.js."""
    steps, columns, abandoned, turns = [], {}, [], 0
    for message in dashboard.sent:
        if "columns" not in message:
            continue
        assert message["first"] <= len(steps)
        gone = steps[message["first"] :]
        if gone and message["turns"] > turns:
            abandoned.append(gone)
        turns = message["turns"]
        for name, values in message["columns"].items():
            column = columns.setdefault(name, [])
            column[:] = [*column, *[None] * len(steps)][: message["first"]] + values
        steps = steps[: message["first"]] + message["steps"]
    return steps, columns, abandoned


def test_the_page_gets_each_step_once_and_has_all_in_the_end(dashboard):
    dashboard.start().wait(SECONDS)
    steps, columns, abandoned = rebuilt(dashboard)
    assert steps == list(range(1, 41))
    assert abandoned == []
    assert columns["reward"] == pytest.approx(dashboard.record.column("reward"), rel=1e-4)
    assert sum(len(message.get("steps", ())) for message in dashboard.sent) == 40
    assert dashboard.sent[-1]["status"]["state"] == "finished"
    told = dashboard.answer({"all": True})
    assert (told["steps"], told["columns"]) == (steps, columns)


def test_pause_step_stop_and_continue(dashboard):
    pause_at(dashboard, 3)
    order(dashboard, "step")
    until(lambda: len(dashboard.record) == 4 and dashboard.state == "paused")
    order(dashboard, "step")
    order(dashboard, "step")  # a second click before the first step is done counts, too
    until(lambda: len(dashboard.record) == 6 and dashboard.state == "paused")
    order(dashboard, "stop")
    until(lambda: dashboard.state == "stopped" and not dashboard.run.running)

    order(dashboard, "step")  # after Stop: one more step, in a new run
    until(lambda: len(dashboard.record) == 7 and dashboard.state == "paused")
    order(dashboard, "pause")  # has no effect
    order(dashboard, "go on")
    dashboard.run.wait(SECONDS)
    assert [step.step for step in dashboard.record.steps] == list(range(1, 41))
    assert dashboard.state == "finished"


def test_step_during_a_run_pauses_it(dashboard):
    dashboard.start()
    until(lambda: len(dashboard.record) > 2)
    order(dashboard, "step")
    until(lambda: dashboard.state == "paused")


def test_rewinding_a_paused_run_leaves_it_paused_there_and_keeps_the_old_branch(dashboard):
    pause_at(dashboard, 9)
    before = dashboard.record.column("reward")
    answer = order(dashboard, "rewind", step=4, rate="0.5", reward="format")
    assert "complaint" not in answer
    until(lambda: len(dashboard.record) == 4 and dashboard.state == "paused")
    trainer = dashboard.steering.trainer
    assert (trainer.step, trainer.args.learning_rate) == (4, 0.5)
    assert trainer.weight == pytest.approx(0.04)
    assert dashboard._status()["reward"] == "format"

    order(dashboard, "step")
    until(lambda: len(dashboard.record) == 5 and dashboard.state == "paused")
    until(lambda: rebuilt(dashboard)[0] == [1, 2, 3, 4, 5])
    assert rebuilt(dashboard)[2] == [[5, 6, 7, 8, 9]]
    assert dashboard.record.column("reward")[:4] == before[:4]
    assert dashboard.record.at(5).changes == {
        "learning_rate": 0.5, "reward_funcs": ["format_reward"], "rewound_from": 9,
    }  # fmt: skip
    told = dashboard.answer({"all": True})
    assert told["changes"]["5"] == "back from step 9, learning rate 0.5, reward format_reward"
    assert [branch["steps"] for branch in told["abandoned"]] == [[5, 6, 7, 8, 9]]
    assert {"exact", "format_reward"} <= told["panels"][0]["lines"].keys()


def test_orders_given_at_once_while_the_run_is_paused_are_all_carried_out(dashboard):
    pause_at(dashboard, 9)
    for step in (4, 3) * 10:
        order(dashboard, "change", rate="0.5")
        order(dashboard, "rewind", step=step, rate="0.01")
        order(dashboard, "step")
        order(dashboard, "step")
        until(lambda end=step + 2: len(dashboard.record) == end and dashboard.state == "paused")
        assert dashboard.steering.trainer.args.learning_rate == 0.01


def test_a_setting_that_keeps_its_value_is_no_change(dashboard):
    """The page sends the rate and the reward with every order, and a rate may be typed and taken back."""
    pause_at(dashboard, 9)
    order(dashboard, "change", rate="0.5")
    order(dashboard, "change", rate="0.01")
    order(dashboard, "rewind", step=4, rate="0.01", reward="format")
    until(lambda: len(dashboard.record) == 4 and dashboard.state == "paused")
    order(dashboard, "step")
    until(lambda: len(dashboard.record) == 5 and dashboard.state == "paused")
    assert dashboard.record.at(5).changes == {"reward_funcs": ["format_reward"], "rewound_from": 9}
    order(dashboard, "change", rate="0.02")
    order(dashboard, "step")
    until(lambda: len(dashboard.record) == 6 and dashboard.state == "paused")
    order(dashboard, "rewind", step=5, rate="0.01")
    until(lambda: len(dashboard.record) == 5 and dashboard.state == "paused")
    order(dashboard, "step")
    until(lambda: len(dashboard.record) == 6 and dashboard.state == "paused")
    assert dashboard.record.at(6).changes == {"rewound_from": 6}


def test_rewinding_to_the_policy_before_training(dashboard):
    pause_at(dashboard, 6)
    order(dashboard, "rewind", step=0)
    until(lambda: dashboard.state == "paused" and not len(dashboard.record))
    status = dashboard.answer({"all": True})["status"]
    assert (status["step"], status["first"], status["noWayBack"]) == (0, 0, "")
    assert dashboard.draw_still().alt == "A run. Training curves over 0 steps. 1 abandoned branch in grey."
    order(dashboard, "go on")
    dashboard.run.wait(SECONDS)
    steps, _, abandoned = rebuilt(dashboard)
    assert steps == [*range(1, 41)]
    assert abandoned == [[1, 2, 3, 4, 5, 6]]


def test_without_room_for_a_snapshot_the_page_shows_the_reason(fake):
    dashboard = Dashboard(fake.FakeTrainer(nbytes=2_000_000), max_steps=3, megabytes=1)
    assert dashboard.answer({"all": True})["status"]["noWayBack"] == ""  # nothing has happened yet
    dashboard.start().wait(SECONDS)
    status = dashboard.answer({"all": True})["status"]
    assert status["first"] is None
    assert "more than the limit of 1 MB" in status["noWayBack"]


def test_rewinding_during_a_run_and_after_its_end(dashboard):
    dashboard.start()
    until(lambda: len(dashboard.record) > 10)
    order(dashboard, "rewind", step=5)
    dashboard.run.wait(SECONDS)
    assert [step.step for step in dashboard.record.steps] == list(range(1, 41))
    assert len(dashboard.record.abandoned) == 1
    once = dashboard.record.column("reward")

    order(dashboard, "rewind", step=20)  # the run was over and continues
    dashboard.run.wait(SECONDS)
    assert dashboard.record.column("reward") == once
    assert len(dashboard.record.abandoned) == 2
    assert dashboard.state == "finished"
    still = dashboard.draw_still()
    assert "2 abandoned branches in grey, numbered." in still.alt
    branches = re.findall(rf'stroke="{COLORS[5]}" stroke-width="1.5"( stroke-dasharray="7 4")?', still.svg)
    assert set(branches) == {"", ' stroke-dasharray="7 4"'}


def test_new_settings_while_paused_and_after_the_end(dashboard):
    pause_at(dashboard, 2)
    order(dashboard, "change", rate="0.25")
    until(lambda: dashboard.steering.trainer.args.learning_rate == 0.25 and dashboard.state == "paused")
    assert len(dashboard.record) == 2
    order(dashboard, "stop")
    until(lambda: dashboard.state == "stopped")
    order(dashboard, "change", rate="0.125", reward="format")
    status = dashboard._status()
    assert (status["rate"], status["reward"]) == (0.125, "format")
    assert dashboard.state == "stopped"


@pytest.mark.parametrize("typed", ["fast", "-1", "0", "nan", "inf", "1e300", "1e-3 please"])
def test_invalid_input_gets_a_message_and_changes_nothing(dashboard, typed):
    pause_at(dashboard, 2)
    dashboard.sent.clear()
    dashboard._reply({"number": "order", "question": {"order": "rewind", "step": 1, "rate": typed, "reward": ""}})
    assert (
        "expected a number, more than 0 and at most 1e+18, such as 1e-4." in dashboard.sent[-1]["answer"]["complaint"]
    )
    assert len(dashboard.record) == 2
    assert dashboard.steering.trainer.args.learning_rate == 0.01


def test_a_rejected_setting_gets_a_message_and_the_run_continues(dashboard):
    def refuse(**settings):
        raise ValueError("learning_rate is 7; expected less")

    pause_at(dashboard, 3)
    dashboard.steering.trainer.change = refuse
    order(dashboard, "change", rate="7")
    until(lambda: any(message.get("status", {}).get("complaint") for message in dashboard.sent))
    assert dashboard.sent[-1]["status"]["complaint"] == "learning_rate is 7; expected less"
    order(dashboard, "go on")
    dashboard.run.wait(SECONDS)
    assert len(dashboard.record) == 40


def test_a_training_error_is_shown_and_raised_and_the_run_can_be_rewound(dashboard):
    trainer = dashboard.steering.trainer
    record = trainer._record

    def failing():
        if trainer.step == 12:
            raise ArithmeticError("step 12 diverged")
        return record()

    trainer._record = failing
    with pytest.raises(ArithmeticError):
        dashboard.start().wait(SECONDS)
    assert dashboard.state == "failed with ArithmeticError"
    assert dashboard.sent[-1]["status"]["complaint"] == "ArithmeticError: step 12 diverged"
    trainer._record = record
    order(dashboard, "rewind", step=8)
    dashboard.run.wait(SECONDS)
    assert [step.step for step in dashboard.record.steps] == list(range(1, 41))
    assert dashboard._status()["complaint"] == ""


def test_completions_come_with_the_newest_steps_and_others_are_requested(dashboard):
    dashboard.start().wait(SECONDS)
    pushed = {int(step) for message in dashboard.sent for step in message.get("completions", ())}
    assert 40 in pushed
    found = dashboard.answer({"completions": [7, 8, 99]})["completions"]
    assert found.keys() == {"7", "8"}
    assert len(found["7"]) == 32
    group, prompt, completion, reward, advantage, tokens, finished, rewards, answer = found["7"][9]
    assert (group, prompt, completion, tokens, finished, rewards, answer) == (1, "7+1=", "1", 2, True, None, None)
    assert advantage == reward - 0.5


def test_long_texts_are_cut_and_many_steps_come_in_pieces(fake):
    trainer = fake.FakeTrainer(text="x" * 5000)
    dashboard = Dashboard(trainer, max_steps=30, keep=8)
    dashboard.start().wait(SECONDS)
    found = dashboard.answer({"completions": list(range(1, 31))})["completions"]
    assert 1 <= len(found) < 30
    assert len(found["1"][0][2]) == MOST_CHARACTERS + 1


@pytest.mark.parametrize(("click", "end", "steps"), [("go on", "finished", 40), ("stop", "stopped", 3)])
def test_a_click_while_a_rewind_is_carried_out_is_obeyed(dashboard, monkeypatch, click, end, steps):
    pause_at(dashboard, 6)
    rewind = dashboard.record.rewind

    def rewind_and_click(step):  # in the run's thread, before it pauses again
        rewind(step)
        order(dashboard, click)

    monkeypatch.setattr(dashboard.record, "rewind", rewind_and_click)
    order(dashboard, "rewind", step=3)
    dashboard.run.wait(SECONDS)
    assert (dashboard.state, len(dashboard.record)) == (end, steps)


def test_a_saved_run_is_shown_again_without_mlx_and_does_not_train(dashboard, tmp_path):
    pause_at(dashboard, 6)
    order(dashboard, "rewind", step=3, rate="0.5")
    until(lambda: len(dashboard.record) == 3)
    order(dashboard, "go on")
    dashboard.run.wait(SECONDS)
    dashboard.record.save(tmp_path / "run")
    program = (
        "import sys; sys.modules['mlx'] = None; from mlx_grpo_kit.runs.record import RunRecord;"
        "from mlx_grpo_kit.instruments.dashboard import Dashboard; import json;"
        f"board = Dashboard(RunRecord.load({str(tmp_path / 'run')!r})); told = board.answer({{'all': True}});"
        "print(json.dumps([told['steps'][-1], told['changes'], len(board.answer({'completions': [40]})"
        "['completions']['40']), board.data, board.status]), repr(board.draw_still())[:24])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    steps, changes, rows, data, status = json.loads(answer[: answer.rindex("]") + 1])
    assert (steps, rows, data["trains"], data["steers"]) == (40, 32, False, False)
    assert changes == {"4": "back from step 6, learning rate 0.5"}
    assert status.startswith("a saved run: step 40 of 40 · reward ")
    again = Dashboard(RunRecord.load(tmp_path / "run"))
    assert again.answer({"all": True})["columns"] == dashboard.answer({"all": True})["columns"]
    with pytest.raises(TypeError, match="does not train"):
        again.start()


def test_an_iterator_of_steps_can_be_paused_and_stopped_but_not_rewound(fake):
    dashboard = Dashboard(fake.FakeTrainer(seconds=0.002).train(30), max_steps=30)
    assert (dashboard.data["trains"], dashboard.data["steers"]) == (True, False)
    pause_at(dashboard, 3)
    order(dashboard, "stop")
    until(lambda: dashboard.state == "stopped")
    order(dashboard, "go on")  # with the same iterator
    dashboard.run.wait(SECONDS)
    assert len(dashboard.record) == 30


def test_repeated_steps_of_an_iterator_replace_the_first_ones(fake):
    other = fake.FakeTrainer(groups=1)
    other.args.learning_rate = 0.5
    again = [*fake.FakeTrainer().train(5), *other.train(3)]
    dashboard = Dashboard(iter(again), max_steps=5)
    dashboard.sent = []
    dashboard.widget.send = dashboard.sent.append
    for step in again:
        dashboard._take(step)
        dashboard._flush()
    steps, columns, _ = rebuilt(dashboard)
    assert (steps, columns["learning_rate"]) == ([1, 2, 3], [0.5] * 3)
    assert len(dashboard.answer({"completions": [3]})["completions"]["3"]) == 8


def test_a_second_dashboard_stops_the_run_of_the_first(fake):
    threads = threading.active_count()
    first, second = (Dashboard(fake.FakeTrainer(seconds=0.002), max_steps=500) for _ in range(2))
    first.start()
    until(lambda: len(first.record) > 1)
    second.start()
    assert first.state == "stopped"
    order(first, "go on")
    assert second.state == "stopped"
    first.run.stop()
    until(lambda: not first.run.running)
    until(lambda: threading.active_count() <= threads)


def test_a_source_that_is_not_a_run_raises_an_error(fake):
    with pytest.raises(ValueError, match="max_steps is missing"):
        Dashboard(fake.FakeTrainer())
    with pytest.raises(TypeError, match="expected a trainer"):
        Dashboard([1, 2, 3], max_steps=3)


def test_the_stored_output_is_small_and_describes_the_run():
    record = RunRecord("A long run", 2000)
    for number in range(1, 2001):
        metrics = {"reward": number / 2000, "reward_std": 0.3, "entropy": 1 + math.sin(number), "kl": math.nan}
        rows = [
            SimpleNamespace(prompt="<b>12</b>+34=", completion=str(row), reward=1.0, advantage=0.5, group=0)
            for row in range(20)
        ]
        record.add(SimpleNamespace(step=number, metrics=metrics, completions=rows))
    dashboard = Dashboard(record)
    still = dashboard._still()
    assert len(json.dumps(still)) < 200_000
    assert "reward: from 0.000500 to 0.998" in still["text/plain"]
    assert "kl: no values" not in still["text/plain"]
    assert "&lt;b&gt;12" in still["text/html"]
    assert still["text/html"].count("<tr") == 1 + 8
    assert len(json.dumps(dashboard.answer({"all": True}))) < 500_000


def test_the_still_picture_of_a_run_says_how_it_ended_with_its_kernel(fake, tmp_path):
    dashboard = Dashboard(fake.FakeTrainer(), max_steps=3, save_to=tmp_path)
    dashboard._running, dashboard.state = True, "running"
    first = dashboard._still()
    assert "<svg" not in first["text/html"]  # no empty axes
    assert "<img" not in first["text/html"]
    for words in first.values():
        assert "Last seen running. If the kernel was restarted or shut down, the run ended with it." in words
        assert "Run the cell to train again." in words
    dashboard.start().wait(SECONDS)
    dashboard._running, dashboard.state = True, "running"
    later = dashboard._still()
    assert "<img" in later["text/html"]
    assert "Last seen running: step 3 of 3" in later["text/html"]
    assert "the run ended with it. Dashboard.open() shows it again" in later["text/html"]


def test_a_sick_run_gets_a_diagnosis(fake):
    record = RunRecord("tied", 200)
    for number in range(1, 121):
        metrics = {"reward": 0.2, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0}
        record.add(SimpleNamespace(step=number, metrics=metrics, completions=()))
    dashboard = Dashboard(record)
    assert dashboard.answer({"all": True})["status"]["health"]
