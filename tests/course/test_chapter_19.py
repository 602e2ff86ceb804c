"""Chapter 19: the lab against torch, and the stored runs."""

import contextlib

import numpy as np
import pytest
import torch

from mlx_grpo_kit.assets import TINY_STEPS
from mlx_grpo_kit.course.chapters.chapter_19 import long_runs, runs
from mlx_grpo_kit.course.chapters.chapter_19.lab import IN_THE_LAB, cosines, frozen_lab
from mlx_grpo_kit.grpo import VARIANTS
from mlx_grpo_kit.tasks import LongSum
from tests.course.stored import cells

WITH_THE_CLIP_OF_DAPO = ("grpo", "dr_grpo", "batch scaling", "two-sided clip")


@pytest.fixture(scope="module")
def lab():
    return frozen_lab(seed=3, updates=2)


def test_pushes_without_a_clip_equal_torchs(lab):
    """REINFORCE after two updates: the gradient of the mean of advantage times log-probability."""
    _, advantages = lab.arguments("reinforce")
    mask = torch.tensor(np.array(lab.frozen.completion_mask))
    logps = torch.tensor(np.array(lab.frozen.logps[2]), requires_grad=True)
    (torch.tensor(np.array(advantages))[:, None] * logps * mask).sum().div(mask.sum()).backward()
    np.testing.assert_allclose(lab.pushes("reinforce", 2), logps.grad.numpy(), atol=1e-7)


def test_the_claims_about_the_lab_hold(lab):
    dapo = lab.pushes("dapo")
    for name in ("cispo", "vespo", "reinforce"):
        np.testing.assert_allclose(lab.pushes(name), dapo, atol=1e-7)
    assert not np.allclose(lab.pushes("top entropy"), dapo)
    assert {*IN_THE_LAB} <= VARIANTS.keys()
    assert np.all(lab.ratios(0) == 1)
    table = cosines([lab.gradient(name) for name in ("dapo", "reinforce", "top entropy")])
    np.testing.assert_allclose(np.diag(table), 1, rtol=1e-5)
    assert table[0, 1] == pytest.approx(1, abs=1e-4)
    assert cosines([np.zeros(3), np.ones(3)]).tolist()[0] == [0, 0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_claims_about_directions_hold_in_other_batches(seed):
    """Within 17 degrees of dapo at first; after four updates, only variants with its clip and tokens are near it."""
    lab = frozen_lab(seed=seed, updates=4)
    names = {"lab": lab, "cosines": cosines, "IN_THE_LAB": IN_THE_LAB, "np": np, "fold": contextlib.nullcontext}
    names |= {"show_picture": lambda *_: None, "draw_cosines": lambda *_: []}
    for id in ("cosines", "moved"):
        exec(cells("19")[id].source, names)
    assert min(names["first"][0, names["alike"]]) > np.cos(np.deg2rad(17))
    others = np.delete(names["moved"][0], [IN_THE_LAB.index(name) for name in (*WITH_THE_CLIP_OF_DAPO, "dapo")])
    assert -0.005 < min(others) < max(others) < 0.955


def test_the_stored_runs_are_of_every_variant_and_seed():
    stored = runs.stored()
    for regime, (settings, steps, names) in runs.REGIMES.items():
        assert [*stored[regime]] == [*names]
        window = runs.WINDOW if settings["num_iterations"] == 1 else 2
        for each in stored[regime].values():
            assert len(each["accuracy"]) == len(runs.SEEDS)
            assert len(each["curve"]) == steps // window
    assert runs.STORED.stat().st_size < 10_000
    assert {name for regime in stored.values() for name in regime} == VARIANTS.keys()
    one = stored["one update from each batch"]
    assert one["bnpo"] == one["dapo"]  # no batch is cut


def test_a_small_run_can_be_repeated():
    result = runs.run("dynamic sampling", 0, 2, 2)
    assert len(result["rewards"]) == 2
    assert 0.2 < result["accuracy"] < 0.8


def test_the_claims_about_long_answers_hold():
    stored = long_runs.stored()
    assert [*stored] == [*long_runs.LOSSES]
    points = long_runs.STEPS // long_runs.WINDOW
    for each in stored.values():
        assert len(each["accuracy"]) == len(long_runs.SEEDS)
        assert {np.shape(each[name]) for name in ("right", "wrong", "share cut off")} == {(3, points)}
        wrong = np.mean(each["wrong"], axis=0)
        assert wrong[0] - 4 < wrong[-1] < wrong[0] - 2  # shorter with every loss

    def minus_dapo(name, curve):
        return np.mean(stored[name][curve], axis=1) - np.mean(stored["dapo"][curve], axis=1)  # by seed

    longer, more_cut = minus_dapo("grpo", "wrong"), minus_dapo("grpo", "share cut off")
    assert 0.75 < longer.min() <= longer.max() < 1.05
    assert 0.0065 < more_cut.min() <= more_cut.max() < 0.0095
    assert np.abs(minus_dapo("dr_grpo", "wrong")).max() < 0.15
    masked = minus_dapo("dapo, masked", "wrong")
    assert 1.25 < masked.min() <= masked.max() < 1.75
    ends = {name: np.mean(each["share cut off"], axis=0)[-1] for name, each in stored.items()}
    assert round(ends["dapo, masked"], 3) == 0.022
    assert round(ends["dapo"], 3) == 0.003
    assert max(np.abs(minus_dapo(name, "right")).max() for name in stored) < 0.25
    accuracies = [np.mean(each["accuracy"]) for each in stored.values()]
    assert max(accuracies) - min(accuracies) < 0.02
    assert long_runs.STORED.stat().st_size < 5000


def test_a_run_with_long_answers_repeats():
    answers, accuracy = long_runs.run("grpo", 0, 1)
    [step] = answers
    assert len(step) == 64
    curves = long_runs.lengths_of(answers)
    assert {name: len(values) for name, values in curves.items()} == dict.fromkeys(curves, 1)
    right = [each.length for each in step if each.is_right]
    assert curves["right"] == [np.mean(right)]
    assert curves["share right"] == [len(right) / 64]
    assert curves["share cut off"] == [np.mean([not each.ended for each in step])]
    assert all(each.length == 60 for each in step if not each.ended)
    assert all(each.length <= 60 for each in step)
    assert any(each.zeros for each in step)
    assert 0.2 < accuracy < 0.4
    summed = long_runs.summary({"grpo": [(answers, accuracy)]})
    assert summed["grpo"]["wrong"] == [[round(curves["wrong"][0], 3)]]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_long_answers_separate_losses_by_their_weights(seed):
    """Losses with a mean per answer form one group, losses that count tokens another; ratios average out."""
    lab = frozen_lab(TINY_STEPS, seed=seed, updates=1, task=LongSum())
    lengths = [*map(len, lab.tokens)]
    assert min(lengths) < 20
    assert max(lengths) == 60
    names = ("dapo", "dr_grpo", "luspo", "grpo", "gspo", "sapo")
    found = cosines([lab.gradient(name) for name in names])[0]
    assert found[1:3].min() > 0.985
    assert 0.94 < found[3:].min() <= found[3:].max() < 0.98
    log_ratio = np.array(lab.frozen.logps[1] - lab.frozen.logps[0]) * np.array(lab.frozen.completion_mask)
    answer = log_ratio.sum(axis=1) / lengths
    assert 0.03 < answer.std() < 0.09 < 0.2 < np.log(lab.ratios(1)).std()
