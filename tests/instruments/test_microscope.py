"""The microscope with a model, without a browser: the widget's data and its still picture."""

import dataclasses
import json

import numpy as np
import pytest

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.instruments.microscope import show_microscope, take_updates
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition


@pytest.fixture(scope="module")
def run():
    """(config, policies, tokenizer, completions, args) of a step of the shipped model and two more updates."""
    config, params = load_pretrained(TINY)
    tokenizer = load_tokenizer(TINY)
    args = GRPOConfig(learning_rate=1e-3, num_generations=4, per_device_train_batch_size=16, epsilon=0.1, seed=2)
    step = next(GRPOTrainer(config, params, tokenizer, Addition(), args).train(1))
    return config, take_updates(config, params, step.completions, args, 2), tokenizer, step.completions, args


@pytest.fixture(scope="module")
def microscope(run):
    return show_microscope(*run, group=1)


def test_it_starts_with_the_settings_and_the_rewards_of_the_run(run, microscope):
    *_, completions, args = run
    data = microscope.data
    assert data["settings"] == {
        "group": 1, "update": 2, "loss_type": "dapo", "importance_sampling_level": "token", "epsilon": 0.1,
        "epsilon_high": None, "cap": 5.0, "beta": 0.0, "scale_rewards": "group", "advantage_estimator": "grpo",
        "rewards": None,
    }  # fmt: skip
    assert [each["reward"] for each in data["batch"]["completions"]] == [each.reward for each in completions]
    np.testing.assert_allclose(data["reading"]["advantages"], [each.advantage for each in completions], atol=1e-6)
    shown = data["batch"]["completions"][5]
    assert len(shown["tokens"]) == len(completions[5].completion_ids) == len(data["reading"]["tokens"][1]["pushes"])
    assert shown["tokens"][0] == repr(completions[5].completion[0])
    assert len(json.dumps(data)) < 40_000
    cispo = dataclasses.replace(args, loss_type="cispo", epsilon_high=3.0)
    settings = show_microscope(*run[:-1], cispo).data["settings"]
    assert (settings["cap"], settings["epsilon_high"]) == (3.0, None)


def test_a_note_says_when_its_advantages_differ_from_the_runs(run, microscope):
    assert microscope.data["batch"]["note"] == ""
    args = dataclasses.replace(run[-1], multi_objective_aggregation="normalize_then_sum")
    assert "differ from the run's" in show_microscope(*run[:-1], args).data["batch"]["note"]


def test_its_numbers_agree_with_each_other(microscope):
    for tokens in microscope.data["reading"]["tokens"]:
        before, after, log_ratios = (np.array(tokens[name]) for name in ("before", "after", "log_ratios"))
        np.testing.assert_allclose(after / before, np.exp(log_ratios), rtol=1e-4)
        clipped = np.array(tokens["clips"])
        assert (np.array(tokens["pushes"])[clipped != 0] == 0).all()


def test_readings_follow_the_settings_and_errors_become_messages(microscope):
    settings = microscope.data["settings"]
    first = microscope.data["reading"]
    sampled = microscope.answer(settings | {"update": 0})
    assert not any(any(tokens["clips"]) or any(tokens["log_ratios"]) for tokens in sampled["tokens"])
    rewards = [each["reward"] for each in microscope.data["batch"]["completions"]]
    rewards[4] += 1
    moved = microscope.answer(settings | {"rewards": rewards})
    assert moved["means"][1] == pytest.approx(first["means"][1] + 0.25)
    assert moved["advantages"][4] > first["advantages"][4]
    for loss_type in microscope.data["batch"]["loss_types"]:  # cispo needs its cap, dr_grpo its length
        assert microscope.answer(settings | {"loss_type": loss_type})["group"] == 1
    sent = []
    microscope.send = sent.append
    microscope._reply({"number": 7, "question": settings | {"epsilon": -1}})
    assert sent == [{"number": 7, "answer": {"complaint": "epsilon is -1; expected 0 or more."}}]


def test_a_group_or_update_out_of_range_raises_an_error(run):
    with pytest.raises(ValueError, match=r"group is 4; expected 0 to 3\."):
        show_microscope(*run, group=4)
    with pytest.raises(ValueError, match=r"update is 3; expected 0 to 2\."):
        show_microscope(*run, update=3)


def test_the_still_picture_has_a_description(run, microscope):
    *_, completions, _ = run
    picture = microscope.draw_still()
    group, reading = completions[4:8], microscope.data["reading"]
    assert picture.alt.startswith(
        f"4 answers to {group[0].prompt!r} (dapo, epsilon 0.1, beta 0, after 2 updates: loss "
    )
    for each in group:
        assert f"{each.completion!r} reward {each.reward:g}, advantage " in picture.alt
        assert f">{each.completion}<" in picture.svg
    clipped = sum(clip != 0 for tokens in reading["tokens"] for clip in tokens["clips"])
    assert f"{clipped} tokens of this group clipped" in picture.alt
    # The word is once in the heading, too.
    assert picture.alt.count("(clipped") == picture.svg.count(" clipped</text>") - 1 == clipped > 0
    assert f"Mean reward {np.mean([each.reward for each in group]):#.3g}" in picture.alt
