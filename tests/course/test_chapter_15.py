"""Chapter 15 against torch and enumeration, answers in other styles, and the claims of its prose."""

import itertools

import numpy as np
import pytest
import torch

from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.catalogue import exercises
from mlx_grpo_kit.course.chapters.chapter_15 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_15.exact import group_moments, leave_one_out_variance
from mlx_grpo_kit.course.exercise import drawn
from mlx_grpo_kit.runtime import mx

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


# -- other answers ----------------------------------------------------------------------------------------------------


def by_autograd(logits, rewards):
    tensor = torch.tensor(logits, requires_grad=True)
    (torch.softmax(tensor, 0) @ torch.tensor(rewards)).backward()
    return tensor.grad.numpy()


def with_loops(logits, rewards):
    probs = chapter.softmax(logits)
    return [
        sum(rewards[a] * probs[a] * ((a == k) - probs[k]) for a in range(len(probs)) if probs[a] > 0)
        for k in range(len(probs))
    ]


def in_mlx(logits, actions, rewards):
    logits, actions = mx.array(logits.astype(np.float32)), mx.array(actions)
    weights = mx.array(rewards.astype(np.float32))

    def mean(z):
        logps = z - mx.logsumexp(z)
        return (weights * logps[actions]).mean()

    return mx.grad(mean)(logits)


def by_counting(logits, actions, rewards):
    sums = np.bincount(actions, weights=rewards, minlength=len(logits))
    return (sums - sums.sum() * chapter.softmax(logits)) / len(actions)


def variance_by_components(logits, rewards, baseline):
    probs, total = chapter.softmax(logits), 0.0
    for k in range(len(probs)):
        values = [(rewards[a] - baseline) * ((a == k) - probs[k]) for a in range(len(probs))]
        total += np.average(np.square(values), weights=probs) - np.average(values, weights=probs) ** 2
    return total


def from_three_points(logits, rewards):
    """Three points determine a parabola."""
    low, middle, high = (chapter.estimator_variance(logits, rewards, b) for b in (-1.0, 0.0, 1.0))
    return (low - high) / (2 * (low + high - 2 * middle))


def from_the_group_mean(rewards, group_size):
    groups = np.asarray(rewards, float).reshape(-1, group_size)
    return ((groups - groups.mean(axis=1)[:, None]) * group_size / (group_size - 1)).ravel()


def one_out_at_a_time(rewards, group_size):
    return [
        float(own) - float(np.delete(rewards[start : start + group_size], place).mean())
        for start in range(0, len(rewards), group_size)
        for place, own in enumerate(rewards[start : start + group_size])
    ]


def word_by_autograd(table, tokens):
    tensor = torch.tensor(table, requires_grad=True)
    rows = torch.tensor([len(table) - 1, *tokens[:-1]])
    torch.log_softmax(tensor, -1)[rows, torch.tensor(tokens)].sum().backward()
    return tensor.grad.numpy()


def word_by_matrices(table, tokens):
    rows = np.eye(len(table))[[len(table) - 1, *tokens[:-1]]]
    return rows.T @ (np.eye(table.shape[1])[tokens] - chapter.softmax(rows @ table))


def step_with_stacks(table, words, rewards, learning_rate):
    scores = np.stack([chapter.sequence_score(table, word) for word in words])
    return table + learning_rate * np.einsum("n,nij->ij", chapter.leave_one_out(rewards, len(words)), scores) / len(
        words
    )


def ratios_by_logs(logits, old_logits, actions, rewards):
    now, old = (z - z.max() - np.log(np.exp(z - z.max()).sum()) for z in (logits, old_logits))
    weights = np.exp(now[actions] - old[actions]) * rewards
    return by_counting(logits, actions, weights)


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("15.1", lambda logits, rewards: sum(p * r for p, r in zip(chapter.softmax(logits), rewards, strict=True))),
        ("15.1", lambda logits, rewards: np.average(rewards, weights=chapter.softmax(logits))),
        ("15.2", by_autograd),
        ("15.2", with_loops),
        ("15.3", in_mlx),
        ("15.3", by_counting),
        ("15.4", variance_by_components),
        ("15.5", from_three_points),
        ("15.6", from_the_group_mean),
        ("15.6", one_out_at_a_time),
        ("15.7", word_by_autograd),
        ("15.7", word_by_matrices),
        ("15.8", step_with_stacks),
        ("15.9", ratios_by_logs),
    ],
)
def test_right_answers_in_other_styles_pass(id, answer):
    note = check(id, answer)
    assert note.passed, note


def only_whole_numbers(rewards, group_size):
    return chapter.leave_one_out(rewards.astype(int), group_size)


def normalized(rewards, group_size):
    groups = rewards.reshape(-1, group_size)
    return (
        chapter.leave_one_out(rewards, group_size).reshape(groups.shape) / (groups.std(axis=1, keepdims=True) + 1e-4)
    ).ravel()


def centred_in_place(rewards, group_size):
    found = chapter.leave_one_out(rewards, group_size)
    rewards -= rewards.mean()
    return found


def table_in_place(table, words, rewards, learning_rate):
    table += chapter.reinforce_step(table, words, rewards, learning_rate) - table
    return table


def overflows(logits, rewards):
    with np.errstate(all="ignore"):
        powers = np.exp(logits)
        return powers / powers.sum() @ rewards


def fixed_steps(logits, rewards, h=1e-2):
    return [
        (chapter.expected_reward(logits + h * e, rewards) - chapter.expected_reward(logits, rewards)) / h
        for e in np.eye(len(logits))
    ]


def unique_draws(logits, actions, rewards):
    first = np.unique(actions, return_index=True)[1]
    return chapter.score_function_gradient(logits, actions[first], rewards[first])


def sample_variance(logits, rewards, baseline):
    return chapter.estimator_variance(logits, rewards, baseline) * len(rewards) / max(1, len(rewards) - 1)


def median(logits, rewards):
    return float(np.median(rewards))


def known_start(table, tokens):
    return chapter.sequence_score(table, tokens) * (np.arange(len(table)) < len(table) - 1)[:, None]


def pushed_once(table, tokens):
    return np.sign(chapter.sequence_score(table, tokens))


def clipped_ratio(logits, old_logits, actions, rewards):
    ratios = np.clip(chapter.softmax(logits)[actions] / chapter.softmax(old_logits)[actions], 0.8, 1.2)
    return chapter.score_function_gradient(logits, actions, ratios * rewards)


def ratio_cut_at_ten(logits, old_logits, actions, rewards):
    ratios = np.minimum(chapter.softmax(logits)[actions] / chapter.softmax(old_logits)[actions], 10)
    return chapter.score_function_gradient(logits, actions, ratios * rewards)


def as_many_as_were_drawn(logits, actions, rewards):
    sums = np.bincount(actions, weights=rewards)
    return (sums - sums.sum() * chapter.softmax(logits)) / len(actions)


def one_addition_for_each_arm(logits, actions, rewards):
    sums = np.zeros(len(logits))
    sums[actions] += rewards
    return (sums - np.sum(rewards) * chapter.softmax(logits)) / len(actions)


def one_addition_for_each_place(table, tokens):
    rows, score = [len(table) - 1, *tokens[:-1]], np.zeros(table.shape)
    score[rows, tokens] += 1
    for row in rows:
        score[row] -= chapter.softmax(table[row])
    return score


def table_that_moves(table, words, rewards, learning_rate):
    table = table.copy()
    for advantage, word in zip(chapter.leave_one_out(rewards, len(words)), words, strict=True):
        table += learning_rate * advantage * chapter.sequence_score(table, word) / len(words)
    return table


def into_one_buffer(rewards, group_size, buffer=np.empty(64)):  # noqa: B008
    buffer[: rewards.size] = chapter.leave_one_out(rewards, group_size)
    return buffer[: rewards.size]


def step_by_word(table, words, rewards, learning_rate):
    advantages = dict(zip(map(tuple, words), chapter.leave_one_out(rewards, len(words)), strict=True))
    scores = [a * chapter.sequence_score(table, word) for word, a in advantages.items()]
    return table + learning_rate * sum(scores) / len(words)


@pytest.mark.parametrize(
    ("id", "answer", "words"),
    [
        ("15.1", overflows, "expected"),
        ("15.1", lambda logits, rewards: max(rewards), "expected 1"),
        ("15.2", fixed_steps, "expected"),
        ("15.2", lambda logits, rewards: chapter.softmax(logits) * rewards, "The gradient has to sum to 0"),
        ("15.3", unique_draws, "expected"),
        ("15.3", lambda logits, actions, rewards: rewards @ np.eye(len(logits))[actions] / len(actions), "goes down"),
        ("15.3", as_many_as_were_drawn, "ValueError"),
        ("15.3", one_addition_for_each_arm, "np.add.at(sums, actions, rewards)"),
        ("15.4", sample_variance, "expected"),
        ("15.5", median, "expected 1.4"),
        ("15.5", lambda logits, rewards: chapter.softmax(logits) @ rewards, "That is the mean reward"),
        ("15.6", only_whole_numbers, "expected"),
        ("15.6", normalized, "expected"),
        ("15.6", centred_in_place, "new numbers in what it was given"),
        ("15.6", lambda r, n: r - r.reshape(-1, n).mean(1).repeat(n), "Leave that reward out"),
        ("15.7", known_start, "expected"),
        ("15.7", pushed_once, "expected"),
        ("15.7", one_addition_for_each_place, "np.add.at(score, (rows, tokens), 1)"),
        ("15.7", lambda table, tokens: -chapter.sequence_score(table, tokens), "Your sign is the wrong way round"),
        ("15.8", table_that_moves, "the first word had already moved"),
        ("15.8", table_in_place, "new numbers in what it was given"),
        ("15.6", into_one_buffer, "a later call wrote over it"),
        ("15.8", step_by_word, "a word that was drawn twice counts once"),
        ("15.9", clipped_ratio, "as PPO does"),
        ("15.9", ratio_cut_at_ten, "expected"),
        ("15.9", lambda z, old, a, r: chapter.score_function_gradient(z, a, r), "The ratio is missing"),
    ],
)
def test_wrong_answers_are_refused(id, answer, words):
    note = check(id, answer)
    assert not note.passed
    assert words in note.text


def test_there_are_nine_exercises():
    assert [exercise.id for exercise in exercises("15")] == [f"15.{number}" for number in range(1, 10)]
