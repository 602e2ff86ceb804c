"""Chapter 19: answers in other styles, wrong ones with their messages, the lab against torch, and the stored runs."""

import contextlib
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from mlx_grpo_kit.assets import TINY_STEPS
from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.chapters.chapter_19 import long_runs, runs
from mlx_grpo_kit.course.chapters.chapter_19.lab import IN_THE_LAB, cosines, frozen_lab
from mlx_grpo_kit.grpo import VARIANTS, compute_advantages
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import LongSum

WITH_THE_CLIP_OF_DAPO = ("grpo", "dr_grpo", "batch scaling", "two-sided clip")
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "19_variant_lab.ipynb"


@pytest.fixture(scope="module")
def lab():
    return frozen_lab(seed=3, updates=2)


def gdpo_loop(rewards, weights, num_generations):
    import statistics

    sums = [0.0] * len(rewards)
    for column, weight in zip(rewards.T.tolist(), weights, strict=True):
        for first in range(0, len(column), num_generations):
            group = column[first : first + num_generations]
            mean, spread = statistics.fmean(group), statistics.stdev(group)
            for place, reward in enumerate(group, first):
                sums[place] += weight * (reward - mean) / (spread + 1e-4)
    return [each / (statistics.stdev(sums) + 1e-4) for each in sums]


def gdpo_torch(rewards, weights, num_generations):
    """TRL's form: it also subtracts the mean of the batch, which is 0 except for rounding."""
    groups = torch.tensor(rewards).view(-1, num_generations, rewards.shape[1])
    each = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    total = torch.nansum(each.flatten(0, 1) * torch.tensor(weights), dim=1)
    return (total - total.mean()) / (total.std() + 1e-4)


def weight_table(lengths, loss_type, longest):
    count, total = len(lengths), sum(int(length) for length in lengths)
    each = {"dapo": 1 / total, "dr_grpo": 1 / count / longest, "luspo": 1 / count}
    return [1 / count / int(length) if loss_type == "grpo" else each[loss_type] for length in lengths]


def ratio_root(logps, old_logps, mask):
    ratios = np.where(np.array(mask), np.exp(np.array(logps) - np.array(old_logps)), 1.0)
    return ratios.prod(axis=1) ** (1 / np.array(mask).sum(axis=1))


def ratio_mean(logps, old_logps, mask):
    return mx.exp(mx.where(mask, logps - old_logps, 0).sum(1) / mx.sum(mask, axis=1))


def cispo_einsum(logps, old_logps, advantages, mask, cap):
    weight = mx.stop_gradient(mx.clip(mx.exp(logps - old_logps), None, cap)) * mask
    return -mx.einsum("bt,b,bt->", weight, advantages, logps) / mx.sum(mask)


def cispo_old_stopped(logps, old_logps, advantages, mask, cap):
    ratio = mx.exp(mx.stop_gradient(logps) - old_logps)
    kept = mx.where(ratio > cap, cap, ratio) * mask.astype(mx.float32)
    return mx.sum(kept * -advantages.reshape(-1, 1) * logps) / mask.sum()


def mask_sorted(entropies, mask, share):
    kept = np.sort(entropies[mask])
    place = (1 - share) * (len(kept) - 1)
    low, high = kept[int(np.floor(place))], kept[int(np.ceil(place))]
    return np.where(mask, entropies, -1) >= low + (high - low) * (place - np.floor(place)) - 1e-12


def mask_torch(entropies, mask, share):
    bound = torch.quantile(torch.tensor(entropies[mask]), 1 - share)
    return (torch.tensor(entropies) >= bound) & torch.tensor(mask)


def penalty_loop(lengths, longest, cache):
    out = []
    for length in lengths:
        if length <= longest - cache:
            out.append(0.0)
        elif length <= longest:
            out.append((longest - cache - length) / cache)
        else:
            out.append(-1)
    return out


def paired_by_hand(a, b):
    import statistics

    differences = [y - x for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return statistics.mean(differences), statistics.stdev(differences) / len(differences) ** 0.5


def paired_array(a, b):
    """Two numbers in an array."""
    return np.array([(b - a).mean(), (b - a).std(ddof=1) / np.sqrt(len(a))])


RIGHT = [
    ("19.1", gdpo_loop),
    ("19.1", gdpo_torch),
    ("19.2", weight_table),
    ("19.3", ratio_root),
    ("19.3", ratio_mean),
    ("19.4", cispo_einsum),
    ("19.4", cispo_old_stopped),
    ("19.5", mask_sorted),
    ("19.5", mask_torch),
    ("19.6", penalty_loop),
    ("19.7", "BADC"),
    ("19.7", ["b", "a", "d", "c"]),
    ("19.8", paired_by_hand),
    ("19.8", paired_array),
]


@pytest.mark.parametrize(("id", "answer"), RIGHT, ids=lambda value: getattr(value, "__name__", str(value)))
def test_right_answers_in_other_styles_pass(id, answer):
    note = check(id, answer)
    assert note.passed, note


def in_place(rewards, weights, num_generations):
    groups = rewards.reshape(-1, num_generations, len(weights))
    groups -= groups.mean(axis=1, keepdims=True)
    groups /= groups.std(axis=1, ddof=1, keepdims=True) + 1e-4
    total = rewards @ np.array(weights)
    return total / (total.std(ddof=1) + 1e-4)


def one_group(rewards, weights, num_generations):
    return gdpo_torch(rewards, weights, len(rewards))


def weights_as_shares(rewards, weights, num_generations):
    return gdpo_torch(rewards, [1.0] * len(weights), num_generations)


def luspo_is(weights):
    def answer(lengths, loss_type, longest):
        return weights(lengths) if loss_type == "luspo" else weight_table(lengths, loss_type, longest)

    return answer


def cispo_of(weigh, logps, old_logps, advantages, mask, log=1):
    weight = weigh(mx.exp(logps - old_logps))
    terms = mx.stop_gradient(weight) * logps if log else weight
    return -(terms * advantages[:, None] * mask).sum() / mask.sum()


def cispo_mean_of_means(logps, old_logps, advantages, mask, cap):
    weight = mx.stop_gradient(mx.minimum(mx.exp(logps - old_logps), cap))
    return -((weight * advantages[:, None] * logps * mask).sum(1) / mask.sum(1)).mean()


def cispo_without_mask(logps, old_logps, advantages, mask, cap):
    return -(mx.stop_gradient(mx.minimum(mx.exp(logps - old_logps), cap)) * advantages[:, None] * logps).mean()


def gdpo_with(group_ddof, batch_ddof):
    def answer(rewards, weights, num_generations):
        groups = rewards.reshape(-1, num_generations, rewards.shape[1])
        spread = groups.std(1, ddof=group_ddof, keepdims=True) + 1e-4
        total = ((groups - groups.mean(1, keepdims=True)) / spread).reshape(rewards.shape) @ np.array(weights)
        return total / (total.std(ddof=batch_ddof) + 1e-4)

    return answer


WRONG = [
    ("19.1", gdpo_with(0, 1), "deviation of each *group* divides by n here"),
    ("19.1", gdpo_with(1, 0), "deviation over the *batch* divides by n here"),
    ("19.1", gdpo_with(0, 0), "NumPy's `std` divides by n."),
    ("19.1", lambda r, w, n: np.array(compute_advantages(r @ np.array(w), n)), "drowns the others"),
    ("19.1", in_place, "work on a copy"),
    ("19.1", one_group, "of the same prompt"),
    ("19.1", weights_as_shares, "has a weight"),
    ("19.1", lambda r, w, n: gdpo_torch(r, w, n) * 2, "gave"),
    ("19.2", luspo_is(lambda lengths: np.ones(len(lengths))), "still a *mean* over completions"),
    ("19.2", luspo_is(lambda lengths: np.array(lengths) / len(lengths)), "weight of one token"),
    ("19.2", lambda lengths, kind, longest: 1 / np.array(lengths), "raised|gave"),
    ("19.2", lambda lengths, kind, longest: np.ones(len(lengths)), "gave"),
    ("19.3", lambda a, b, m: mx.exp(((a - b) * m).sum(1)), "product of all ratios"),
    ("19.3", lambda a, b, m: mx.exp((a - b).mean(1)), "gave"),
    ("19.3", lambda a, b, m: ((a - b) * m).sum(1) / m.sum(1), "the logarithm of the ratio"),
    ("19.4", lambda a, b, adv, m, cap: cispo_of(lambda r: mx.minimum(r, cap), a, b, adv, m, 0), "PPO's objective"),
    ("19.4", lambda a, b, adv, m, cap: cispo_of(lambda r: mx.where(r > cap, 0, r), a, b, adv, m), "weighs `cap`"),
    ("19.4", cispo_mean_of_means, "Take the mean over all tokens"),
    ("19.4", cispo_without_mask, "Positions without a token are counted"),
    (
        "19.4",
        lambda a, b, adv, m, cap: -(mx.minimum(mx.exp(a - b), cap) * adv[:, None] * a * m).sum() / m.sum(),
        "Stop",
    ),
    ("19.4", lambda a, b, adv, m, cap: -(a * adv[:, None] * m).sum(1) / m.sum(), "raised ValueError"),
    ("19.5", lambda e, m, share: m & (e > np.quantile(e[m], 1 - share)), "at \\*or\\* above"),
    ("19.5", lambda e, m, share: e * (m & (e >= np.quantile(e[m], 1 - share))), "a mask says yes or no"),
    ("19.5", lambda e, m, share: e >= np.quantile(e[m], 1 - share), "Leave them out"),
    ("19.6", lambda n, longest, cache: np.clip((n - longest + cache) / cache, 0, 1), "a penalty is negative"),
    ("19.6", lambda n, longest, cache: -np.maximum((n - longest + cache) / cache, 0), "never costs more"),
    ("19.7", "abcd", "are right"),
    ("19.8", lambda a, b: ((b - a).mean(), (b - a).std() / len(a) ** 0.5), "n - 1"),
    ("19.8", lambda a, b: (b - a).mean(), "gave|expected"),
]


@pytest.mark.parametrize(("id", "answer", "words"), WRONG)
def test_wrong_answers_get_the_reason(id, answer, words):
    note = check(id, answer)
    assert not note.passed
    assert any(word.replace("\\", "") in note.text for word in words.split("|")), note.text


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
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.id in ("19-cosines", "19-moved"):
            exec(cell.source, names)
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


def test_headings_and_prompts_are_those_of_the_exercises():
    prose = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "markdown"]
    found = re.findall(r"### Exercise 19\.(\d)", "\n".join(prose))
    assert found == [str(number + 1) for number in range(8)]


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
