"""Metrics that the dashboard adds to a run: held-out problems, your own numbers, memory; and the run's settings."""

import sys
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.instruments.dashboard import Dashboard
from mlx_grpo_kit.instruments.dashboard.measures import Measures
from mlx_grpo_kit.instruments.dashboard.panels import KITS, MEMORY, metrics_of, run_panels
from mlx_grpo_kit.instruments.dashboard.run_picture import MOST_POINTS, _band, chart_run
from mlx_grpo_kit.instruments.dashboard.settings import settings_of, settings_table


def panel(dashboard, title):
    return next(each for each in dashboard.answer({"all": True})["panels"] if each["title"] == title)


def test_held_out_problems_are_measured_before_the_first_step_then_now_and_then_and_at_the_end(fake):
    trainer = fake.FakeTrainer()
    dashboard = Dashboard(trainer, max_steps=25, eval_every=10, eval_problems=32)
    dashboard.start().wait(30)
    measured = {
        step.step: step.metrics["eval/accuracy"] for step in dashboard.record.steps if "eval/accuracy" in step.metrics
    }
    assert measured == pytest.approx({0: 0.0, 10: 0.1, 20: 0.2, 25: 0.25})
    assert dashboard.record.steps[0].metrics["eval/reward"] == 0.032  # of 32 problems
    assert panel(dashboard, "held-out problems")["lines"] == {"right": "eval/accuracy"}
    assert panel(dashboard, "held-out reward")["more"] is True
    still = dashboard.draw_still()
    assert "Training curves over 25 steps" in still.alt
    assert "eval/accuracy: from 0.00 to 0.250" in still.alt
    assert "held-out problems" in still.svg


def test_a_rewound_run_keeps_the_earlier_measurement(fake):
    dashboard = Dashboard(fake.FakeTrainer(), max_steps=12, eval_every=5)
    dashboard.start().wait(30)
    dashboard.answer({"order": "rewind", "step": 0, "rate": "0.02"})
    dashboard.run.wait(30)
    assert [step.step for step in dashboard.record.steps] == [*range(13)]
    assert dashboard.record.at(10).metrics["eval/accuracy"] == pytest.approx(0.2)


@pytest.mark.parametrize("every", [-1, 2.5, True, "often"])
def test_an_invalid_eval_every_raises_an_error(fake, every):
    with pytest.raises(ValueError, match="expected a whole number of steps"):
        Dashboard(fake.FakeTrainer(), max_steps=3, eval_every=every)


def test_an_iterator_cannot_be_evaluated_and_the_error_suggests_a_way_out(fake):
    with pytest.raises(ValueError, match=r"measure=lambda step"):
        Dashboard(fake.FakeTrainer().train(3), max_steps=3, eval_every=1)


def test_your_own_numbers_become_curves(fake):
    dashboard = Dashboard(fake.FakeTrainer(), max_steps=4, measure=lambda step: {"square": step.step**2})
    dashboard.start().wait(30)
    assert panel(dashboard, "square") == {**panel(dashboard, "square"), "lines": {"value": "square"}, "more": False}
    assert dashboard.answer({"all": True})["columns"]["square"] == [1, 4, 9, 16]
    assert "square: from 1.00" in dashboard.draw_still().alt

    def steps():
        for step in fake.FakeTrainer().train(3):
            step.metrics["mine"] = 1.5
            yield step

    other = Dashboard(steps(), max_steps=3)
    other.start().wait(30)
    assert other.answer({"all": True})["columns"]["mine"] == [1.5] * 3
    assert panel(other, "mine")["more"] is False


def test_a_measure_that_is_not_a_number_ends_the_run_with_a_message(fake):
    dashboard = Dashboard(fake.FakeTrainer(), max_steps=4, measure=lambda step: {"mine": "many"})
    with pytest.raises(TypeError, match=r"Metric 'mine' is a builtins.str; expected a Python number"):
        dashboard.start().wait(30)
    assert "Metric 'mine'" in dashboard._status()["complaint"]


def test_memory_is_the_peak_since_the_previous_step(fake, monkeypatch):
    peaks = iter([5e9, 2e9, 3e9])
    resets = []
    mlx = SimpleNamespace(
        get_peak_memory=lambda: next(peaks), reset_peak_memory=lambda: resets.append(1), clear_streams=lambda: None
    )
    monkeypatch.setitem(sys.modules, "mlx.core", mlx)
    dashboard = Dashboard(fake.FakeTrainer(), max_steps=3)
    dashboard.start().wait(30)
    assert dashboard.record.column(MEMORY) == [5.0, 2.0, 3.0]
    assert len(resets) == 3
    assert panel(dashboard, "memory, GB")["more"] is True
    assert panel(dashboard, "seconds per step")["more"] is True


def test_the_speed_counts_the_tokens_of_all_completions():
    metrics = {"step_time": 2.0, "completions/mean_length": 3.0}
    step = SimpleNamespace(step=1, metrics=metrics, completions=[SimpleNamespace(reward=1.0)] * 8)
    assert Measures(None).of(step, is_last=False)["tokens_per_second"] == 8 * 3 / 2


def test_a_metric_of_the_kit_does_not_count_as_your_own():
    names = ["reward", "loss", "rewards/exact/std", "tokens_per_second", "sampling/x/max", "gradients/a.b/norm",
             "tools/call_frequency", "rewards/exact/failed"]  # fmt: skip
    assert all(map(KITS.fullmatch, names))
    panels = run_panels(names)
    more = [each.title for each in panels if each.more]
    assert more == ["loss", "sampling/x/max", "tools/call_frequency", "rewards/exact/failed"]


def test_settings_that_were_chosen_come_before_the_defaults():
    args = GRPOConfig(learning_rate=1e-3, num_generations=4, per_device_train_batch_size=8)
    trainer = SimpleNamespace(args=args, task=SimpleNamespace(name="addition"), reward_funcs=[max])
    rows = settings_table(settings_of(trainer))
    assert rows[:4] == [
        ("task", "addition", False),
        ("reward_funcs", "max", False),
        ("learning_rate", "0.001", False),
        ("num_generations", "4", False),
    ]
    assert all(is_default for _, _, is_default in rows[4:])
    assert ("beta", "0", True) in rows
    assert len(rows) > 40


def test_the_steps_of_a_change_are_listed(fake):
    dashboard = Dashboard(fake.FakeTrainer(), max_steps=6)
    dashboard.steering.give(SimpleNamespace(back_to=None, settings={"learning_rate": 0.25}, max_steps=None, look=None))
    dashboard.start().wait(30)
    assert dashboard.answer({"all": True})["changed"] == {"learning_rate": [(1, "0.25")]}
    assert ["learning_rate", "0.01", False] in dashboard.data["settings"]  # the initial value


def test_a_finished_run_continues_to_more_steps(fake):
    dashboard = Dashboard(fake.FakeTrainer(), max_steps=6)
    dashboard.start().wait(30)
    for words in ("5", "many", "-1", "1e3", "7.5"):
        with pytest.raises(ValueError, match="expected a whole number, at least 6"):
            dashboard.answer({"order": "go on", "steps": words})
    dashboard.answer({"order": "go on", "steps": "10"})
    dashboard.run.wait(30)
    assert [step.step for step in dashboard.record.steps] == [*range(1, 11)]
    assert dashboard._status()["maxSteps"] == dashboard.record.max_steps == 10
    dashboard.answer({"order": "rewind", "step": 8, "steps": "12"})
    dashboard.run.wait(30)
    assert dashboard.record.steps[-1].step == 12
    assert dashboard.steering.max_steps == 12


def test_the_norm_of_a_layer_is_that_of_all_its_parameters(fake):
    norms = {"gradients/layers.10.mlp.up_proj.weight/norm": 3.0, "gradients/layers.10.input_layernorm.weight/norm": 4.0,
             "gradients/layers.2.mlp.up_proj.weight/norm": 1.0, "gradients/final_norm.weight/norm": 2.0,
             "gradients/embedding.weight/norm": 0.5, "gradients/embedding.weight/largest": 9.0}  # fmt: skip
    dashboard = Dashboard(fake.FakeTrainer(), max_steps=2, measure=lambda step: norms)
    dashboard.start().wait(30)
    told = dashboard.answer({"all": True})
    assert told["layers"] == ["embedding", "layer 2", "layer 10", "final norm"]
    assert [told["columns"][f"layer norm/{name}"] for name in told["layers"]] == [
        [0.5] * 2,
        [1.0] * 2,
        [5.0] * 2,
        [2.0] * 2,
    ]
    assert not any("gradients/" in name for each in told["panels"] for name in each["lines"].values())


def test_the_band_of_the_reward_stays_within_the_rewards_of_its_steps(fake):
    """Ones and zeros with a mean of 0.8 have a standard deviation of 0.4; no reward is 1.2."""
    trainer = fake.FakeTrainer(text="{number}")
    trainer.weight = 0.9
    dashboard = Dashboard(trainer, max_steps=20)
    dashboard.start().wait(30)
    columns, spec = dashboard.answer({"all": True})["columns"], panel(dashboard, "reward")
    assert [set(columns[name]) <= {0.0, 1.0} for name in spec["within"]] == [True, True]
    assert max(a + b for a, b in zip(columns["reward"], columns["reward_std"], strict=True)) > 0.9
    panels = {each.title: each for each in run_panels(metrics_of(dashboard.record))}
    (_, below), (_, above) = _band(panels["reward"], [with_spread(step, 0.4) for step in dashboard.record.steps])
    assert min(below) >= 0
    assert max(above) == pytest.approx(1.0)
    assert not {"reward_min", "reward_max"} & {*panels}
    without = [with_spread(step, 0.4, "reward_min", "reward_max") for step in dashboard.record.steps]
    assert max(_band(panels["reward"], without)[1][1]) > 1.1
    now_and_then = [step if step.step % 5 else full for step, full in zip(without, dashboard.record.steps, strict=True)]
    assert {len(ys) for _, ys in _band(panels["reward"], now_and_then)} == {20}


@pytest.mark.parametrize("every", [1, 2])
def test_a_long_run_is_drawn_with_few_points(every):
    steps = [SimpleNamespace(step=n, metrics={"reward": n / 999} if n % every == 0 else {}) for n in range(1, 1000)]
    xs, ys = chart_run(steps)[0].planes[0].lines["mean"]
    assert xs[-1] == 999 // every * every
    assert len(xs) == len(ys) <= MOST_POINTS


def with_spread(step, spread, *left_out):
    metrics = {name: value for name, value in step.metrics.items() if name not in left_out}
    return SimpleNamespace(step=step.step, metrics=metrics | {"reward_std": spread})


def test_curves_of_the_trainer_have_names_that_fit_and_differ():
    metrics = {"reward", "step_time", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", MEMORY}
    metrics |= {f"sampling/sampling_logp_difference/{which}" for which in ("mean", "max")}
    titles = [panel.title for panel in run_panels([*metrics, "tokens_per_second"])]
    assert len({*titles}) == len(titles)
    assert max(map(len, titles)) <= 30, "as wide as a small curve"
