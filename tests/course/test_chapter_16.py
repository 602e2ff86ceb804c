"""Chapter 16: its solutions are the kit's, and the claims of its prose."""

import math
import re

import numpy as np
import pytest
import torch

from mlx_grpo_kit.course.chapters.chapter_16 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_16.pictures.estimators import ESTIMATORS
from mlx_grpo_kit.grpo import GRPOLossConfig, compute_advantages, compute_grpo_loss, token_weights
from mlx_grpo_kit.runtime import mx
from tests.course.stored import cells, printed

# -- what the solutions are worth -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_solutions_are_the_kits(seed):
    rng = np.random.default_rng(seed)
    rewards = [None if rng.random() < 0.2 else float(x) for x in rng.normal(size=12)]
    ours = chapter.group_advantages(rewards, 4)
    np.testing.assert_allclose(ours, np.array(compute_advantages(rewards, 4)), atol=1e-5)
    mask = mx.array(np.arange(5) < rng.integers(0, 6, (4, 1)))
    per_token = mx.array(rng.normal(size=(4, 5)).astype(np.float32))
    for loss_type in chapter.FOUR_TYPES:
        shares = token_weights(GRPOLossConfig(loss_type, max_completion_length=9), mask, 31)
        ours = chapter.aggregate(per_token, mask, loss_type, 9, 31)
        assert ours.item() == pytest.approx((shares * per_token).sum().item(), abs=1e-6)


# -- what the chapter says --------------------------------------------------------------------------------------------


def test_numbers_of_the_advantages():
    def advantages(rewards, scale="group"):
        return np.array(compute_advantages(rewards, len(rewards), scale))

    np.testing.assert_allclose(advantages([1, 0, 0, 0]), [1.5, -0.5, -0.5, -0.5], atol=1e-3)
    np.testing.assert_allclose(advantages([0.5, 0.5, 0.5, 0.51])[-1], 1.47, atol=5e-3)
    np.testing.assert_allclose(advantages([0.5, 0.5, 0.5, 0.55]), advantages([0, 0, 0, 1]), atol=1e-2)
    assert np.abs(advantages([0.5, 0.5, 0.5, 0.55], "none")).max() < 0.04
    np.testing.assert_allclose(advantages([105, 5, 5, 5]), advantages([1, 0, 0, 0]), atol=1e-3)
    for rewards in ([1.0] * 4, [0.0] * 4):
        assert not advantages(rewards).any()

    # 'divide: no': the others fall as the mean rises; divided, they may rise.
    before, after = [1, 0, 1, 0.3], [1, 0.3, 1, 0.3]
    moved = advantages(after, "none") - advantages(before, "none")
    np.testing.assert_allclose(moved[[0, 2, 3]], -0.3 / 4, atol=1e-6)
    assert advantages(after)[0] > advantages(before)[0] + 0.02

    def push(right, size, scale):
        return np.abs(advantages([1] * right + [0] * (size - right), scale)).mean()

    assert push(1, 8, "none") / push(4, 8, "none") == pytest.approx(0.44, abs=5e-3)
    assert push(1, 8, "group") / push(4, 8, "group") == pytest.approx(0.66, abs=5e-3)
    assert push(1, 64, "none") / push(32, 64, "none") == pytest.approx(0.06, abs=5e-3)
    assert push(1, 64, "group") / push(32, 64, "group") == pytest.approx(0.25, abs=5e-3)
    ratios = [push(k, 8, "none") / push(k, 8, "group") for k in range(1, 8)]
    assert 0.3 < min(ratios) < max(ratios) < 0.55  # "shrink to about half or less"


def test_the_row_on_paper():
    logits = mx.array([[[math.log(3), 0.0], [0.0, 0.0], [0.0, math.log(9)]]])
    ours = np.array(chapter.token_logps(logits, mx.array([[0, 0, 1]]), 1, 1.0))
    np.testing.assert_allclose(ours, [[math.log(3 / 4), math.log(1 / 2)]], rtol=1e-6)


def test_0_times_inf_is_nan_in_torch_too():
    x = torch.tensor([0.25, 900.0], requires_grad=True)
    torch.where(torch.tensor([True, False]), x.exp(), 0.0).sum().backward()
    assert x.grad[1].isnan()


def test_the_kl_on_paper():
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    d = np.log(q / p)
    each = [ESTIMATORS["k3 = exp(d) - d - 1"](x) for x in d]
    np.testing.assert_allclose(each, [0.193, 0.307, 0], atol=5e-4)
    assert p @ each == pytest.approx(p @ np.log(p / q)) == pytest.approx(0.173, abs=5e-4)
    one_token = torch.tensor(0.0, requires_grad=True)
    ((-one_token).exp() + one_token - 1).backward()
    assert one_token.grad == 0  # "its slope is 0 too"


def test_a_masked_truncated_row_moves_the_loss():
    mask = mx.array([[True, True]] * 3 + [[False, False]])
    advantages = compute_advantages([1, 1, 1, 0], 4)
    np.testing.assert_allclose(advantages, [0.5, 0.5, 0.5, -1.5], atol=1e-3)
    for last, expected in ((False, -0.375), (True, 0.0)):
        mask[3] = last
        loss = compute_grpo_loss(-mx.ones((4, 2)), None, advantages, mask, loss_type="grpo")
        assert loss.item() == pytest.approx(expected, abs=1e-3)


def test_the_shares_that_the_text_names():
    mask = mx.array(np.arange(16) < np.array([[2], [12], [6], [1]]))
    shares = np.array(token_weights(GRPOLossConfig("grpo"), mask))
    np.testing.assert_allclose(shares[:, 0], [0.125, 0.25 / 12, 0.25 / 6, 0.25])


def stored_text(id):
    return printed(cells("16")[id])


def test_the_text_describes_the_norms_with_four_divisors():
    told = cells("16")["norms-notes"].source
    found = re.findall(
        r"^(.*?) +first 25 steps (\S+), last 25 (\S+); longer than 1 in (\d+) of", stored_text("norms"), re.M
    )
    of = {name: numbers for name, *numbers in found}
    batch, constant, rows = of["batch"], of["constant"], of["rows that teach"]
    assert f"mean is {batch[0]} over the first 25 steps and {batch[1]} over the last 25" in told
    assert f"it rises from {rows[0]} to {rows[1]}" in told
    assert f"acts in {rows[2]} of 250 steps" in told
    assert f"the batch it acts in {batch[2]} steps" in told
    assert f"the clip acts in {constant[2]} steps" in told


def test_the_losses_of_the_worked_example():
    """By fractions: completions of 2 (advantage 1), 6 (-1), and 4 and 8 tokens (0), of at most 10."""
    losses = [-2 / 8 + 6 / 24, 4 / 20, 4 / (2 * 8), 4 / 40, 4 / 4, 4 / 8]
    assert re.findall(r"loss (\S+)", stored_text("divided")) == [f"{loss:.2f}" for loss in losses]


def test_the_text_describes_the_stored_runs():
    assert "before: 44%, after: 61% 60%" in stored_text("zero-run")
    assert "seed 0: exam before 44%; after, with the clip 43%, without 39%" in stored_text("break-picture")
    assert "seed 1: exam before 44%; after, with the clip 45%, without 24%" in stored_text("break-picture")
    off = [float(each) for each in re.findall(r"means: (\S+)", stored_text("micro-use"))]
    assert 0.045 < min(off) < max(off) < 0.25
    spreads = re.findall(r"k1: mean \S+ ± (\S+) .* k3: mean \S+ ± (\S+)", stored_text("kl-picture"))
    assert spreads[0] == ("0.061", "0.002")
    assert [float(k3) < float(k1) for k1, k3 in spreads] == [True, True, False]
