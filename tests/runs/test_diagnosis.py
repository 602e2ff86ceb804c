"""The diagnosis of runs: messages about sick ones, from the trainer and made up, and none about healthy ones."""

import itertools
import json
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest

from mlx_grpo_kit.runs import history, symptoms_of_rewards, symptoms_of_sampling, symptoms_of_updates
from mlx_grpo_kit.runs.diagnosis import Monitor, diagnose, findings


def steps(count, completions=None, **metrics):
    """Make `count` steps of a healthy run, with other metrics: numbers, or functions of the step."""
    healthy = {
        "reward": lambda step: 0.4 + 0.5 * step / (step + 50), "reward_std": 0.3,
        "frac_reward_zero_std": lambda step: 0.8 * step / (step + 50),
        "entropy": lambda step: 0.4 - 0.3 * step / (step + 50), "grad_norm": 1.0, "loss": 0.0,
        "completions/mean_length": 3.5, "completions/max_length": 4.0, "completions/clipped_ratio": 0.01,
        "clip_ratio/region_mean": 0.0,
    }  # fmt: skip
    made = []
    for step in range(1, count + 1):
        values = {
            name.replace("__", "/"): value(step) if callable(value) else value
            for name, value in (healthy | metrics).items()
        }
        texts = [str(40 + row) for row in range(16)] if completions is None else completions(step)
        records = [SimpleNamespace(prompt=f"{step}+{row}=", completion=text) for row, text in enumerate(texts)]
        made.append(SimpleNamespace(step=step, metrics=values, completions=records))
    return made


def names(run):
    return [finding.name for finding in findings(run)]


def test_a_healthy_run_gets_no_message_at_any_step():
    run = steps(400)
    assert all(diagnose(run[:count]) == [] for count in range(0, 401, 7))


def test_a_run_that_is_always_right_gets_no_message():
    solved = {"reward": lambda s: min(1, s / 50), "reward_std": lambda s: 0.4 * (s < 50)}
    run = steps(120, **solved, frac_reward_zero_std=lambda s: float(s >= 50), grad_norm=lambda s: float(s < 50))
    run = [SimpleNamespace(**{**vars(step), "metrics": step.metrics | {"entropy": 0.001}}) for step in run]
    assert diagnose(run) == []


TIED = {"frac_reward_zero_std": 1.0, "reward_std": 0.0, "grad_norm": 0.0}
SICK = {
    "truncated": ({"completions/clipped_ratio": 0.97}, ["97%", "4 tokens since step 1", "max_completion_length"]),
    "reward_fell": ({"reward": lambda s: 0.6 if s < 20 else 0.1}, ["from 0.6 around step", "to 0.1", "learning_rate"]),
    "one_full_one_empty": (
        {
            "rewards/format/mean": 0.2, "rewards/format/std": 0.0, "rewards/exact/std": 0.0,
            "rewards/exact/mean": lambda s: 0.4 * (s < 10),
        },
        ["'format'", "'exact'", "Since step 10,", "hacking"],
    ),
    "tied": (
        {**TIED, "frac_reward_zero_std": lambda s: float(s >= 30), "reward": 0.5, "reward_std": 0.5},
        ["all groups", "since step 30", "mean reward 0.5", "num_generations"],
    ),
    "zero_gradient": ({"grad_norm": lambda s: float(s < 40)}, ["exactly 0 since step 40", "differentiated"]),
    "entropy_gone": ({"entropy": lambda s: 0.3 if s < 20 else 0.001}, ["0.001 nats", "since step 20", "epsilon_high"]),
    "entropy_runs_away": (
        {"entropy": lambda s: 0.4 + s / 50, "reward": lambda s: 0.45 - s / 1000}, ["from 0.46 to", "temperature"]
    ),
    "length_runs_away": (
        {"completions/mean_length": lambda s: 20.0 + s, "reward": 0.4}, ["from 23.0 to 110.5 tokens", "dr_grpo"]
    ),
    "clipped_away": ({"clip_ratio/region_mean": 0.5}, ["50% of the tokens", "since step 1", "num_iterations"]),
    "reference_moves": ({"kl": 0.0}, ["exactly 0 since step 1", "beta"]),
    "scored_otherwise": (
        {"sampling/sampling_logp_difference/mean": 0.1, "clip_ratio/region_mean": 0.3},
        ["since step 1, now by 0.1 per token", "temperature"],
    ),
    "kl_runs_away": ({"kl": lambda s: s / 10}, ["since step 21", "beta"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SICK)
def test_each_symptom_has_a_message_with_its_numbers_and_a_remedy(name):
    metrics, said = SICK[name]
    run = steps(100, **metrics)
    assert names(run) == [name]
    (words,) = diagnose(run)
    assert [part for part in said if part not in words] == []
    # Lines of metrics.jsonl, in which NaN is null, give the same.
    lines = [json.loads(json.dumps({"step": step.step, **step.metrics})) for step in run]
    assert names(lines) == [name]


@pytest.mark.parametrize("name", SICK)
def test_one_step_is_not_a_symptom(name):
    sick, healthy = steps(100, **SICK[name][0]), steps(99)
    assert names([*healthy, sick[-1]]) == []


def test_other_curves_get_no_message():
    run = [SimpleNamespace(step=step, metrics={"loss": math.nan, "accuracy": 0.0}) for step in range(50)]
    assert diagnose(run) == []
    assert diagnose([]) == []
    assert diagnose(iter([])) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf, None])  # None is null, NaN and infinity in a file
def test_a_loss_that_is_not_finite_is_reported_at_once_and_alone(loss):
    run = [*steps(30), *steps(31, loss=loss)[30:]]
    assert diagnose(run)[0].startswith("loss has not been finite since step 31")
    assert len(diagnose(run)) == 1


def test_nothing_scored():
    run = steps(30, reward=math.nan, reward_std=math.nan)
    assert names(run) == ["nothing_scored"]
    assert "since step 1" in diagnose(run)[0]


def test_a_reward_that_is_always_the_same():
    run = steps(40, **TIED, reward=1.0)
    (words,) = diagnose(run)
    assert "since step 1 (mean 1)" in words
    assert "does not look at the answer" in words


def test_one_answer_to_everything():
    run = steps(40, lambda step: ["8868"] * 14 + ["88"] * 2, **TIED, reward=0.2)
    (words,) = diagnose(run)
    assert "88% of the latest completions are the same text, '8868'" in words
    assert "16 different" not in words  # of several steps, 256 completions
    as_lines = [{"step": step.step, **step.metrics, "completions": [vars(c) for c in step.completions]} for step in run]
    assert diagnose(as_lines) == [words]


@pytest.mark.parametrize(("begins", "cause"), [(1, "truncated"), (9, "reward_fell")])
def test_one_answer_that_does_not_end_is_reported_as_its_first_symptom(begins, cause):
    gone = {name: lambda s, low=low, high=high: low if s >= begins else high for name, low, high in (
        ("reward", 0.0, 0.4), ("completions/clipped_ratio", 1.0, 0.0), ("frac_reward_zero_std", 1.0, 0.1))}  # fmt: skip
    said = names(steps(40, lambda s: ["8888"] * 16 if s >= begins else [str(row) for row in range(16)], **gone))
    assert said[0] == cause
    assert ("truncated" in said) == (cause == "truncated")


def test_one_answer_is_a_collapse_only_if_right_answers_differ():
    metrics = {"reward": lambda s: min(1, s / 20), "reward_std": 0.0, "frac_reward_zero_std": lambda s: float(s > 20)}
    run = steps(60, lambda step: ["yes"] * 16, **metrics)
    for answer, expected in ((lambda row: None, ["collapse"]), (lambda row: "yes", []), (str, ["collapse"])):
        for step in run:
            for row, completion in enumerate(step.completions):
                completion.problem = SimpleNamespace(answer=answer(row))
        assert names(run) == expected
    assert "the reward does not look at the answer" in diagnose(run)[0]


def test_a_penalty_that_no_completion_gets_is_not_an_empty_reward():
    full = {"rewards/exact/mean": 1.0, "rewards/exact/std": 0.0, "rewards/long/std": 0.0}
    assert names(steps(60, **full, **{"rewards/long/mean": 0.0})) == ["one_full_one_empty"]
    assert "If 'long' is a penalty, 0 is its best" in diagnose(steps(60, **full, **{"rewards/long/mean": 0.0}))[0]
    assert names(steps(60, **full, **{"rewards/long/mean": lambda s: -0.1 * (s < 9)})) == []


def test_a_hard_reward_that_is_being_learned_gets_no_message():
    metrics = {
        "rewards/format/mean": 1.0, "rewards/format/std": 0.0,
        "rewards/exact/mean": lambda s: s / 5000, "rewards/exact/std": 0.15,
    }  # fmt: skip
    assert names(steps(100, **metrics)) == []


def test_a_monitor_finds_the_same_and_stays_small():
    run = steps(3000, **{"clip_ratio/region_mean": lambda s: 0.5 * (s > 2000)})
    monitor = Monitor()
    for step in run:
        monitor.add(step.step, step.metrics, step.completions)
        if step.step in (50, 1500, 2005, 3000):
            assert [f.name for f in monitor.findings()] == names(run[: step.step])
    kept = monitor._records
    assert len(kept) < 300
    assert sum(len(record.completions) for record in kept) <= 16 * (history.NEIGHBOURS + history.SOON)
    assert [record.step for record in kept[-20:]] == [*range(2981, 3001)]
    assert kept[0].step == 1, "the beginning is what the end is compared with"
    assert all(a.step < b.step for a, b in itertools.pairwise(kept))


def test_a_models_text_cannot_disturb_a_terminal():
    run = steps(40, lambda step: ["\x1b[2J" + 99 * "9"] * 16, **TIED, reward=0.2)
    (words,) = diagnose(run)
    assert r"'\x1b[2J999" in words
    assert len(words) < 500


def test_a_long_run_costs_no_more_than_a_short_one(monkeypatch):
    looked_at, original = [], history.number_of
    for module in (history, symptoms_of_rewards, symptoms_of_sampling, symptoms_of_updates):
        monkeypatch.setattr(module, "number_of", lambda *a: looked_at.append(1) or original(*a))
    counts = []
    for count in (200, 4000):
        run = steps(count)
        looked_at.clear()
        diagnose(run)
        counts.append(len(looked_at))
    assert counts[1] == counts[0] < 2000


def test_a_policy_that_returns_to_its_reference_is_not_a_moving_reference():
    assert names(steps(100, kl=lambda s: 0.1 * (s % 20 == 0))) == []
    assert names(steps(100, kl=0.0, grad_norm=0.0)) == ["zero_gradient"]


def test_equal_full_rewards_are_no_success_if_they_were_better_before():
    tied = {"reward_std": lambda s: 0.3 * (s < 50), "frac_reward_zero_std": lambda s: float(s >= 50)}
    assert names(steps(100, reward=lambda s: 0.9 if s < 50 else 0.2, **tied)) == ["reward_fell", "tied"]
    assert names(steps(100, reward=lambda s: 0.5 if s < 50 else 0.9, **tied)) == []


def test_a_symptom_that_returns_is_dated_from_its_return():
    run = steps(100, **{"completions/clipped_ratio": lambda s: 0.97 * (not 30 <= s <= 60 and s != 80)})
    assert "since step 61." in diagnose(run)[0], "one better step is no end, thirty are"


def test_one_reward_that_fell_is_named_unless_another_made_up_for_it():
    fell = {"rewards/exact/mean": lambda s: 0.4 if s < 20 else 0.1, "rewards/exact/std": 0.3}
    (words,) = diagnose(steps(60, reward=lambda s: 0.6 if s < 20 else 0.35, **fell))
    assert words.startswith("Reward 'exact' has fallen from 0.4 around step")
    assert diagnose(steps(60, reward=0.6, **fell)) == []


def ill_after(step, changes, at):
    """Make a run in which the reward collapses at `step`, with changes of settings before the steps `at`."""
    run = steps(80, reward=lambda s: 0.6 if s < step else 0.0, learning_rate=0.001)
    for number, change in zip(at, changes, strict=True):
        run[number - 1].changes = change
    return run


def test_the_change_before_a_collapse_comes_first():
    rate = {"learning_rate": 0.05, "rewound_from": 44}
    said = diagnose(ill_after(45, [rate], [41]))
    assert said[0].startswith("Before step 41 you changed learning_rate from 0.001 to 0.05, ")
    assert "Rewind to step 40" in said[0]
    assert said[1].startswith("The mean reward has fallen")
    rewards = {"reward_funcs": ["short", "format"]}
    assert "the reward functions (now short, format)" in diagnose(ill_after(45, [rewards], [41]))[0]


@pytest.mark.parametrize(
    ("ill", "changes", "at", "blamed"),
    [
        (45, [{"beta": 0.1}], [70], ""),  # after the collapse, as a cure
        (45, [{"beta": 0.1}, {"temperature": 2.0}], [42, 70], "beta"),
        (45, [{"beta": 0.1}, {"temperature": 2.0}], [20, 42], "temperature"),
        (45, [{"rewound_from": 60}], [42], ""),
        (45, [{}], [42], ""),
    ],
)
def test_only_an_earlier_change_is_blamed(ill, changes, at, blamed):
    first = diagnose(ill_after(ill, changes, at))[0]
    assert (f"you changed {blamed} to" if blamed else "The mean reward has fallen") in first


def test_a_change_long_before_the_trouble_is_not_blamed():
    for after, expected in ((50, ["changed", "reward_fell"]), (300, ["reward_fell"])):
        run = steps(500, reward=lambda s, after=after: 0.6 if s < 100 + after else 0.0)
        run[99].changes = {"learning_rate": 0.002}
        assert names(run) == expected


def test_a_monitor_remembers_a_change():
    run = steps(1500, reward=lambda s: 0.6 if s < 740 else 0.0)
    run[699].changes = {"learning_rate": 0.05}
    monitor = Monitor()
    for step in run:
        monitor.add(step.step, step.metrics, step.completions, getattr(step, "changes", None))
    assert [finding.name for finding in monitor.findings()] == ["changed", "reward_fell"]


def test_lines_of_a_file_contain_the_change():
    run = ill_after(45, [{"learning_rate": 0.05}], [41])
    lines = [{"step": s.step, **s.metrics} | ({"changes": s.changes} if hasattr(s, "changes") else {}) for s in run]
    assert diagnose(lines)[0] == diagnose(run)[0]


def test_a_lucky_stretch_is_not_a_peak_from_which_the_reward_fell():
    """With two groups per step, each all right or all wrong, the best five steps are above the mean by luck."""
    for seed in range(20):
        rng = random.Random(seed)
        run = steps(100, reward=lambda s, rng=rng: sum(rng.random() < 0.4 for _ in range(2)) / 2)
        said = {name for count in range(20, 101, 4) for name in names(run[:count])}
        assert "reward_fell" not in said, seed


def answered(step, answers, right):
    """Make completions with their right answers; the first `right` of them are right."""
    texts = [answers[row] if row < right else "?" for row in range(16)]
    problems = [SimpleNamespace(answer=answer) for answer in answers]
    return [
        SimpleNamespace(prompt=f"{step}.{row}", completion=text, problem=problem)
        for row, (text, problem) in enumerate(zip(texts, problems, strict=True))
    ]


def test_right_answers_that_vanish_while_the_reward_rises():
    run = steps(40)
    numbers, words = [str(40 + row) for row in range(16)], [f"{row}*{row}+1" for row in range(16)]
    for answers, expected in ((numbers, ["paid_for_something_else"]), (words, [])):  # 4*4+1 is 1+4*4 too
        for step in run:
            step.completions = answered(step.step, answers, 8 if step.step < 20 else 0)
        assert [name for name in names(run) if name != "collapse"] == expected
    for step in run:
        step.completions = answered(step.step, numbers, 8)
    assert names(run) == []
    for step in run:
        step.completions = answered(step.step, words, 0)
        for row, completion in enumerate(step.completions):
            completion.correct = row < 8 and step.step < 20  # a record has the task's verdict
    assert names(run)[0] == "paid_for_something_else"


def test_a_run_that_breaks_late_was_not_broken_by_its_first_updates():
    broken = {"completions/clipped_ratio": lambda s: float(s > 30), "reward_std": 0.1}
    late = diagnose(steps(60, reward=lambda s: 0.5 if s <= 30 else 0.0, **broken))[0]
    assert late.startswith("The mean reward has fallen from 0.5 around step")
    soon = diagnose(steps(60, reward=lambda s: 0.5 if s <= 3 else 0.0, **broken))[0]
    assert "was 0.5 in step 1 and is 0 in the latest 10 steps" in soon


def test_a_correlation_and_its_slope_are_numpys():
    x, y = np.random.default_rng(0).normal(size=(2, 20))
    expected = np.corrcoef(x, x + 3 * y)[0, 1], np.polyfit(x, x + 3 * y, 1)[0]
    assert history.correlation_of([*x], [*(x + 3 * y)]) == pytest.approx(expected)
    assert all(map(math.isnan, history.correlation_of([1.0, 1.0], [1.0, 2.0])))
