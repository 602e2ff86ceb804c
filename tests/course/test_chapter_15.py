"""Chapter 15 against torch and enumeration, and the claims of its prose."""

import itertools

import numpy as np
import pytest
import torch

from mlx_grpo_kit.course.chapters.chapter_15 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_15.exact import group_moments, leave_one_out_variance
from mlx_grpo_kit.course.exercise import drawn

PROBS = chapter.softmax(chapter.BY_HAND)


# -- against torch ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_exact_and_drawn_gradients_equal_torchs(seed):
    rng = np.random.default_rng(seed)
    values, rewards = rng.normal(size=(2, 5))
    logits = torch.tensor(values, requires_grad=True)
    (torch.softmax(logits, 0) @ torch.tensor(rewards)).backward()
    np.testing.assert_allclose(chapter.expected_reward_gradient(values, rewards), logits.grad.numpy(), atol=1e-12)

    actions, got, old = rng.integers(0, 5, 9), rng.normal(size=9), rng.normal(size=5)
    policy = torch.distributions.Categorical(logits=logits)
    logps = policy.log_prob(torch.tensor(actions))
    logits.grad = None
    (logps * torch.tensor(got)).mean().backward(retain_graph=True)
    np.testing.assert_allclose(chapter.score_function_gradient(values, actions, got), logits.grad.numpy(), atol=1e-12)
    logits.grad = None
    old_logps = torch.distributions.Categorical(logits=torch.tensor(old)).log_prob(torch.tensor(actions))
    ((logps - old_logps).exp() * torch.tensor(got)).mean().backward()
    np.testing.assert_allclose(chapter.reused_gradient(values, old, actions, got), logits.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_score_of_a_word_and_a_step_equal_torchs(seed):
    rng = np.random.default_rng(seed)
    values, words, rewards = rng.normal(size=(4, 3)), rng.integers(0, 3, (5, 4)), rng.normal(size=5)
    table = torch.tensor(values, requires_grad=True)
    rows = torch.tensor(np.concatenate([np.full((5, 1), 3), words[:, :-1]], axis=1))
    logps = torch.log_softmax(table, -1)[rows, torch.tensor(words)].sum(1)
    [score] = torch.autograd.grad(logps[0], table, retain_graph=True)
    np.testing.assert_allclose(chapter.sequence_score(values, words[0].tolist()), score.numpy(), atol=1e-12)
    others = (rewards.sum() - rewards) / 4
    [slope] = torch.autograd.grad((torch.tensor(rewards - others) * logps).mean(), table)
    step = chapter.reinforce_step(values, words.tolist(), rewards, 0.3)
    np.testing.assert_allclose(step, values + 0.3 * slope.numpy(), atol=1e-12)


# -- against enumeration ----------------------------------------------------------------------------------------------


def all_groups(size, arms=3):
    return np.array(list(itertools.product(range(arms), repeat=size)))


def by_hand(probs, rewards, size, advantages):
    """Mean and variance of a group's estimate over every group in every order."""
    groups = all_groups(size, len(probs))
    got = rewards[groups]
    compared = np.array([advantages(each) for each in got])
    says = (compared[:, :, None] * (np.eye(len(probs)) - probs)[groups]).mean(axis=1)
    chances = probs[groups].prod(axis=1)
    mean = chances @ says
    return mean, chances @ (says**2).sum(axis=1) - mean @ mean


@pytest.mark.parametrize("size", [2, 3, 5])
def test_moments_of_groups_are_those_of_all_groups_in_all_orders(size):
    probs = chapter.softmax(np.array([0.5, -1.25, 1.0]))
    rewards = np.array([0.25, -1.5, 2.0])
    kinds = {
        0.75: lambda got: got - 0.75,
        "group mean": lambda got: got - got.mean(),
        "leave-one-out": lambda got: np.array([own - np.delete(got, place).mean() for place, own in enumerate(got)]),
    }
    for kind, advantages in kinds.items():
        expected = by_hand(probs, rewards, size, advantages)
        mean, variance = group_moments(probs, rewards, size, kind)
        np.testing.assert_allclose(mean, expected[0], atol=1e-12)
        assert variance == pytest.approx(expected[1], abs=1e-12)
    assert leave_one_out_variance(probs, rewards, np.eye(3) - probs, size) == pytest.approx(expected[1], abs=1e-12)


def test_an_unknown_baseline_is_refused():
    with pytest.raises(ValueError, match="expected a number, 'group mean' or 'leave-one-out'"):
        group_moments(PROBS, chapter.PAYS, 4, "median")


@pytest.mark.parametrize("seed", range(5))
def test_no_constant_is_better_than_the_best(seed):
    [(logits, rewards)] = drawn(1, chapter._arms, seed)
    best = chapter.best_baseline(logits, rewards)
    least = chapter.estimator_variance(logits, rewards, best)
    for off in (-0.3, -1e-3, 1e-3, 0.3):
        assert chapter.estimator_variance(logits, rewards, best + off) > least
    assert least == pytest.approx(group_moments(chapter.softmax(logits), rewards, 1, best)[1])


# -- what the prose says ----------------------------------------------------------------------------------------------


def test_the_numbers_done_by_hand():
    assert chapter.expected_reward(chapter.BY_HAND, chapter.PAYS) == pytest.approx(1)
    np.testing.assert_allclose(chapter.expected_reward_gradient(chapter.BY_HAND, chapter.PAYS), [-0.5, 0, 0.5])
    rows = [
        chapter.score_function_gradient(chapter.BY_HAND, np.array([a]), chapter.PAYS[[a]]).tolist() for a in range(3)
    ]
    np.testing.assert_allclose(rows, [[0, 0, 0], [-0.5, 0.75, -0.25], [-1.5, -0.75, 2.25]], atol=1e-12)
    np.testing.assert_allclose((np.array(rows) ** 2).sum(axis=1), [0, 0.875, 7.875])
    variances = [chapter.estimator_variance(chapter.BY_HAND, chapter.PAYS, b) for b in (0, 1, 1.4)]
    np.testing.assert_allclose(variances, [1.6875, 0.5625, 0.4625])
    shifted = chapter.estimator_variance(chapter.BY_HAND, chapter.PAYS + 10, 0)
    assert round(shifted / variances[0]) == 48
    np.testing.assert_allclose(chapter.leave_one_out(np.array([3.0, 0, 0]), 3), [3, -1.5, -1.5])
    three_quarters = np.log([[1, 1], [1, 3], [3, 1]])
    np.testing.assert_allclose(
        chapter.sequence_score(three_quarters, [0, 0, 1]), [[0, 0], [0, 0], [0.25, -0.25]], atol=1e-12
    )


def test_the_mean_reward_can_be_worse_than_no_baseline():
    logits, rewards = np.array([3.0, 0, 0]), np.array([1.0, 0, 0])
    earned = chapter.expected_reward(logits, rewards)
    found = [chapter.estimator_variance(logits, rewards, b) for b in (0, earned)]
    assert earned == pytest.approx(0.91, abs=0.005)
    np.testing.assert_allclose(found, [0.001, 0.12], rtol=0.05)


def test_leave_one_out_raises_the_variance_of_pairs_and_not_of_fours():
    variance = {
        (n, kind): group_moments(PROBS, chapter.PAYS, n, kind)[1] for n in (2, 4, 64) for kind in (0.0, "leave-one-out")
    }
    assert [round(variance[2, kind], 2) for kind in ("leave-one-out", 0.0)] == [1.00, 0.84]
    assert variance[4, "leave-one-out"] < 0.7 * variance[4, 0.0]
    assert variance[64, "leave-one-out"] < 1.05 * group_moments(PROBS, chapter.PAYS, 64, 1.0)[1]


def test_advantages_of_the_neighbour_teach_the_opposite():
    groups = all_groups(4)
    others = np.array([chapter.leave_one_out(chapter.PAYS[group], 4) for group in groups])
    says = (np.roll(others, 1, axis=1)[:, :, None] * (np.eye(3) - PROBS)[groups]).mean(axis=1)
    np.testing.assert_allclose(PROBS[groups].prod(axis=1) @ says, np.array([0.5, 0, -0.5]) / 3, atol=1e-12)


def test_old_draws_are_right_on_average_and_noisier_with_every_step():
    new = chapter.softmax(np.log([1.0, 1.0, 2.0]))
    ratios = new / PROBS
    np.testing.assert_allclose(ratios, [0.5, 1, 2])
    assert PROBS @ (ratios * chapter.PAYS) == pytest.approx(1.75)
    assert PROBS @ ratios**2 == pytest.approx(1.375)
    assert (round(1.375**10), round(1.375**40, -4)) == (24, 340_000)


def test_the_noise_of_old_draws_depends_on_the_direction():
    towards, wild = np.log([1.0, 1.0, 2.0]) - chapter.BY_HAND, []
    for steps in (-2.0, -1.0, 0.0, 1.0, 2.0):
        new = chapter.BY_HAND + steps * towards
        says = np.array(
            [chapter.reused_gradient(new, chapter.BY_HAND, np.array([a]), chapter.PAYS[[a]]) for a in range(3)]
        )
        mean = PROBS @ says
        wild.append((PROBS @ (says**2).sum(axis=1) - mean @ mean) / (mean @ mean))
        assert steps == 0 or PROBS @ (chapter.softmax(new) / PROBS) ** 2 > 1
    assert wild == sorted(wild)


@pytest.mark.parametrize(
    ("chances", "last", "ends"),
    [
        ([0.5, 0.45, 0.05], 59, [1.98, 0.96, 1.00]),
        ([0.5, 0.45, 0.05], 2000, [2.00, 1.97, 1.00]),
        ([0.4, 0.4, 0.2], 59, [1.99, 1.90, 1.99]),
    ],
)
def test_two_of_the_bugs_show_only_where_the_good_answer_is_rare(chances, last, ends):
    prizes, groups = np.array([0.0, 1.0, 2.0]), all_groups(4)
    rewards = prizes[groups]
    others = np.array([chapter.leave_one_out(each, 4) for each in rewards])
    found = []
    for advantages in (
        lambda p: others,
        lambda p: others * p[groups],
        lambda p: rewards - rewards.max(axis=1, keepdims=True),
    ):
        logits = np.log(chances)
        for step in range(last + 1):
            probs = chapter.softmax(logits)
            if step == last:
                found.append(probs @ prizes)
            says = (advantages(probs)[:, :, None] * (np.eye(3) - probs)[groups]).mean(axis=1)
            logits = logits + probs[groups].prod(axis=1) @ says
    np.testing.assert_allclose(found, ends, atol=0.006)


@pytest.mark.parametrize("added", [0.0, 3.0])
def test_how_learners_with_and_without_a_baseline_end(added):
    words = all_groups(4)  # 81 of four letters
    points = ((words[:, 1:] - words[:, :-1]) % 3 == 1).sum(axis=1).astype(float)
    rows = np.concatenate([np.full((81, 1), 3), words[:, :-1]], axis=1)

    def chances(table):
        return chapter.softmax(table)[rows, words].prod(axis=1)

    short = {"with": [], "without": []}
    for seed, kind in itertools.product(range(12), short):
        table = np.zeros((4, 3))
        for dice in np.random.default_rng(seed).random((150, 4)):
            group = np.minimum(np.searchsorted(np.cumsum(chances(table)), dice), 80)
            got = points[group] + added
            advantages = chapter.leave_one_out(got, 4) if kind == "with" else got
            scores = [chapter.sequence_score(table, word) for word in words[group].tolist()]
            table = table + 0.5 * np.tensordot(advantages, scores, axes=1) / 4
        short[kind].append(3 - chances(table) @ points)
    assert max(short["with"]) < 0.1
    assert sum(each > 0.95 for each in short["without"]) == (6 if added else 0)
