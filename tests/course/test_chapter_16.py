"""Chapter 16: answers in other styles, wrong ones with their messages, and the claims of its prose."""

import math
import re
from pathlib import Path

import mlx.nn as nn
import nbformat
import numpy as np
import pytest
import torch

from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.chapters.chapter_16 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_16.pictures.estimators import ESTIMATORS
from mlx_grpo_kit.grpo import GRPOLossConfig, compute_advantages, compute_grpo_loss, token_weights
from mlx_grpo_kit.runtime import mx

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "16_grpo_loss.ipynb"


# -- right answers in other styles ------------------------------------------------------------------------------------


def advantages_by_loop(rewards, group_size):
    result = []
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        scored = [r for r in group if r is not None]
        if len(scored) < 2:
            result += [0.0] * len(group)
            continue
        mean = sum(scored) / len(scored)
        std = math.sqrt(sum((r - mean) ** 2 for r in scored) / (len(scored) - 1))
        result += [0.0 if r is None else (r - mean) / (std + 1e-4) for r in group]
    return result


def advantages_by_torch(rewards, group_size):
    groups = torch.tensor([math.nan if r is None else r for r in rewards], dtype=torch.float64).view(-1, group_size)
    result = []
    for group in groups:
        scored = group[~group.isnan()]
        std = scored.std() if len(scored) > 1 else torch.tensor(0.0)
        result.append(((group - scored.mean()) / (std + 1e-4)).nan_to_num() if len(scored) else group.nan_to_num())
    return torch.cat(result).numpy()


def logps_by_loop(logits, ids, prompt_length, temperature):
    rows = []
    for row, tokens in zip(logits / temperature, ids.tolist(), strict=True):
        logps = [row[t - 1] - mx.logsumexp(row[t - 1]) for t in range(prompt_length, len(tokens))]
        rows.append(mx.stack([logp[token] for logp, token in zip(logps, tokens[prompt_length:], strict=True)]))
    return mx.stack(rows)


def logps_by_cross_entropy(logits, ids, prompt_length, temperature):
    return -nn.losses.cross_entropy(logits[:, prompt_length - 1 : -1] / temperature, ids[:, prompt_length:])


def logps_one_hot(logits, ids, prompt_length, temperature):
    scaled = logits[:, :-1] / temperature
    scaled = scaled - mx.stop_gradient(scaled.max(axis=-1, keepdims=True))
    logps = scaled - mx.log(mx.exp(scaled).sum(axis=-1, keepdims=True))
    chosen = mx.arange(logits.shape[-1]) == ids[:, 1:, None]
    return mx.where(chosen, logps, 0.0).sum(axis=-1)[:, prompt_length - 1 :]


def logps_by_numpy(logits, ids, prompt_length, temperature):
    logps = np.array(logits, np.float64)[:, prompt_length - 1 : -1] / temperature
    logps = logps - np.logaddexp.reduce(logps, axis=-1, keepdims=True)
    return np.take_along_axis(logps, np.array(ids)[:, prompt_length:, None], axis=-1)[..., 0].astype(np.float32)


def logps_by_torch(logits, ids, prompt_length, temperature):
    logits, ids = torch.tensor(np.array(logits)), torch.tensor(np.array(ids)).long()
    logps = torch.log_softmax(logits[:, :-1] / temperature, -1).gather(-1, ids[:, 1:, None])[..., 0]
    return logps[:, prompt_length - 1 :].numpy()


def ratios_masked_twice(logps, old_logps, mask):
    return mx.exp(mx.where(mask, logps, 0) - mx.where(mask, old_logps, 0))


def clipped_by_cases(ratio, advantages, epsilon, epsilon_high):
    ratio, advantages = np.array(ratio), np.array(advantages)
    result = np.empty_like(ratio)
    for b, a in enumerate(advantages):
        for t, r in enumerate(ratio[b]):
            result[b, t] = min(r, 1 + epsilon_high) * a if a > 0 else max(r, 1 - epsilon) * a
    return result


def clipped_by_where(ratio, advantages, epsilon, epsilon_high):
    a = mx.repeat(advantages.reshape(-1, 1), ratio.shape[1], axis=1)
    return mx.where(a > 0, mx.minimum(ratio, 1 + epsilon_high), mx.maximum(ratio, 1 - epsilon)) * a


def k3_by_expm1(logps, ref_logps):
    return mx.expm1(ref_logps - logps) + logps - ref_logps


def aggregate_by_weights(per_token_loss, mask, loss_type, max_length, num_items):
    rows, total = mask.shape[0], 0.0
    lengths = mask.sum(axis=1).tolist()
    for b in range(rows):
        row = [x for x, counts in zip(per_token_loss[b].tolist(), mask[b].tolist(), strict=True) if counts]
        divisor = {
            "grpo": rows * max(lengths[b], 1),
            "bnpo": max(sum(lengths), 1),
            "dr_grpo": rows * max_length,
            "dapo": num_items,
        }
        total += sum(row) / divisor[loss_type]
    return total


def loss_in_one_piece(logps, old_logps, ref_logps, advantages, mask, settings):
    return compute_grpo_loss(
        logps,
        old_logps,
        advantages,
        mask,
        ref_logps=ref_logps,
        epsilon=settings["epsilon"],
        epsilon_high=settings["epsilon_high"],
        beta=settings["beta"],
        loss_type=settings["loss_type"],
        max_completion_length=settings["max_length"],
        num_items_in_batch=settings["num_items"],
    )


def loss_by_hand(logps, old_logps, ref_logps, advantages, mask, settings):
    zero = mx.zeros_like(logps)
    new = mx.where(mask, logps, zero)
    old = mx.stop_gradient(new) if old_logps is None else mx.where(mask, old_logps, zero)
    r, a = mx.exp(new - old), advantages[:, None]
    low, high = 1 - settings["epsilon"], 1 + settings["epsilon_high"]
    token = -mx.where(a > 0, mx.minimum(r, high), mx.maximum(r, low)) * a
    if settings["beta"]:
        d = mx.where(mask, ref_logps, zero) - new
        token = token + settings["beta"] * (mx.exp(d) - 1 - d)
    shares = token_weights(
        GRPOLossConfig(settings["loss_type"], max_completion_length=settings["max_length"]),
        mask,
        settings["num_items"],
    )
    return (token * shares).sum()


def loss_of_parts(objective=chapter.clipped_objective, k3=chapter.k3, aggregate=chapter.aggregate):
    """The loss of 16.8 as its hints describe it, built from the reader's own parts."""

    def loss(logps, old_logps, ref_logps, advantages, mask, settings):
        ratio = chapter.token_ratios(logps, mx.stop_gradient(logps) if old_logps is None else old_logps, mask)
        loss = -objective(ratio, advantages, settings["epsilon"], settings["epsilon_high"])
        if settings["beta"]:
            loss = loss + settings["beta"] * k3(mx.where(mask, logps, 0), mx.where(mask, ref_logps, 0))
        return aggregate(loss, mask, settings["loss_type"], settings["max_length"], settings["num_items"])

    return loss


def parts_by_while(gradient_of, rows, size):
    rows, total, tokens = list(rows), 0.0, 0
    for row in rows:
        tokens += len(row)
    while rows:
        part, rows = rows[:size], rows[size:]
        total += gradient_of(part, tokens)
    return total


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("16.1", advantages_by_loop),
        ("16.1", advantages_by_torch),
        ("16.1", lambda rewards, size: mx.array(advantages_by_loop(rewards, size))),
        ("16.2", logps_by_loop),
        ("16.2", logps_by_cross_entropy),
        ("16.2", logps_one_hot),
        ("16.3", ratios_masked_twice),
        ("16.4", clipped_by_cases),
        ("16.4", clipped_by_where),
        ("16.5", "y, y, y, n, n, n"),
        ("16.5", list("YYYNNN")),
        ("16.6", k3_by_expm1),
        ("16.6", lambda logps, ref: np.exp(np.array(ref) - np.array(logps)) - np.array(ref) + np.array(logps) - 1),
        ("16.7", aggregate_by_weights),
        ("16.8", loss_in_one_piece),
        ("16.8", loss_by_hand),
        ("16.8", loss_of_parts()),
        ("16.9", parts_by_while),
        ("16.9", lambda gradient_of, rows, size: sum(gradient_of([row], sum(map(len, rows))) for row in rows)),
    ],
)
def test_right_answers_in_other_styles_pass(id, answer):
    note = check(id, answer)
    assert note.passed, note


# -- wrong answers, in other words than the known mistakes ------------------------------------------------------------


def unscored_as_nan(rewards, group_size):
    groups = np.array(rewards, dtype=float).reshape(-1, group_size)
    away = groups - np.nanmean(groups, axis=1, keepdims=True)
    return (away / (np.nan_to_num(np.nanstd(groups, axis=1, ddof=1, keepdims=True)) + 1e-4)).ravel()


def no_1e4_by_loop(rewards, group_size, tied=None):
    """Advantages; `tied` is returned for equal rewards, and None divides by their deviation of 0."""
    result = []
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        scored = [r for r in group if r is not None]
        mean = sum(scored) / max(len(scored), 1)
        std = math.sqrt(sum((r - mean) ** 2 for r in scored) / max(len(scored) - 1, 1))
        if len(scored) < 2 or (std == 0 and tied is not None):
            result += [0.0 if len(scored) < 2 else tied] * len(group)
        else:
            result += [0.0 if r is None else (r - mean) / std for r in group]
    return result


def no_1e4_by_arrays(rewards, group_size):
    groups = np.array(rewards, dtype=float).reshape(-1, group_size)
    std = np.nanstd(groups, axis=1, ddof=1, keepdims=True)
    return ((groups - np.nanmean(groups, axis=1, keepdims=True)) / std).ravel()


def spoils_the_mask(per_token_loss, mask, loss_type, max_length, num_items):
    per_token_loss *= mask
    return chapter.aggregate(per_token_loss, mask, loss_type, max_length, num_items)


def leaves_itself_out(rewards, group_size):
    groups = np.array([math.nan if r is None else r for r in rewards]).reshape(-1, group_size)
    result = np.zeros_like(groups)
    for b, group in enumerate(groups):
        scored = np.flatnonzero(~np.isnan(group))
        for t in scored if len(scored) > 1 else ():
            others = group[[each for each in scored if each != t]]
            result[b, t] = (group[t] - others.mean()) / (group[scored].std(ddof=1) + 1e-4)
    return result.ravel()


def one_largest_logit(logits, ids, prompt_length, temperature):
    scaled = logits[:, prompt_length - 1 : -1] / temperature
    scaled = scaled - scaled.max()
    logps = scaled - mx.log(mx.exp(scaled).sum(axis=-1, keepdims=True))
    return mx.take_along_axis(logps, ids[:, prompt_length:, None], axis=-1)[..., 0]


def cross_entropy(logits, ids, prompt_length, temperature):
    return -logps_by_loop(logits, ids, prompt_length, temperature)


def logits_minus_a_constant(logits, ids, prompt_length, temperature):
    logits = logits[:, prompt_length - 1 : -1] / temperature
    logps = logits - mx.stop_gradient(mx.logsumexp(logits, axis=-1, keepdims=True))
    return mx.take_along_axis(logps, ids[:, prompt_length:, None], axis=-1)[..., 0]


def advantages_if(change):
    """Right advantages, changed by `change(advantage, deviation of the group)`."""

    def advantages(rewards, group_size):
        groups = np.array(rewards, float).reshape(-1, group_size)
        scored = ~np.isnan(groups)
        right = np.reshape(advantages_by_loop(rewards, group_size), groups.shape)
        for row, (group, known) in enumerate(zip(groups, scored, strict=True)):
            std = group[known].std(ddof=1) if known.sum() > 1 else 0.0
            right[row] = [change(each, std) for each in right[row]]
        return right.ravel()

    return advantages


def log_ratio_within(low, high):
    return lambda new, old, mask: mx.exp(mx.clip(mx.where(mask, new - old, 0.0), low, high))


def mask_from_values(new, old, mask):
    return mx.exp(mx.where(mx.isfinite(new) & mx.isfinite(old) & (new < 500), new - old, 0.0))


def objective_of(change):
    """The clipped objective with other ratios or advantages."""
    return lambda ratio, a, low, high: chapter.clipped_objective(*change(ratio, a), low, high)


def with_other(settings=lambda mask, advantages, settings: {}, mask=lambda mask, advantages: mask):
    """The loss of 16.8 with other settings, or another mask."""

    def loss(logps, old_logps, ref_logps, advantages, real, given):
        own = given | settings(real, advantages, given)
        return chapter.grpo_loss(logps, old_logps, ref_logps, advantages, mask(real, advantages), own)

    return loss


def only_rows_with_advantage(logps, old_logps, ref_logps, advantages, mask, settings):
    kept = mx.array(np.flatnonzero(np.array(advantages)))
    logps, old_logps, ref_logps, advantages, own = (
        None if each is None else each[kept] for each in (logps, old_logps, ref_logps, advantages, mask)
    )
    settings = settings | {"num_items": settings["num_items"] - (mask.sum() - own.sum())}
    return chapter.grpo_loss(logps, old_logps, ref_logps, advantages, own, settings)


def parts_of(rows_of):
    def in_parts(gradient_of, rows, size):
        return chapter.in_parts(lambda some, _: gradient_of(some, rows_of(rows)), rows, size)

    return in_parts


def first_places(per_token_loss, mask, *others):
    lengths = mask.sum(axis=1, keepdims=True)
    return chapter.aggregate(per_token_loss, mx.arange(mask.shape[1])[None] < lengths, *others)


def k3_by_numpy(logps, ref_logps):
    d = np.array(ref_logps) - np.array(logps)
    return mx.array(np.exp(d) - d - 1)


def detached_objective(ratio, *others):
    return chapter.clipped_objective(mx.stop_gradient(ratio), *others)


def old_policy_is_now(logps, old_logps, ref_logps, advantages, mask, settings):
    return chapter.grpo_loss(logps, None, ref_logps, advantages, mask, settings)


WRONG = [
    ("16.1", lambda rewards, size: (np.array(rewards, float) - 0.5).tolist(), "gave"),
    ("16.1", lambda r, n: [x or 0.0 for x in advantages_by_loop([y or 0 for y in r], n)], "None counts as a reward"),
    ("16.1", lambda rewards, size: advantages_by_loop(rewards, len(rewards)), "mean of all rewards"),
    ("16.1", unscored_as_nan, "nan"),
    ("16.1", no_1e4_by_loop, "1e-4 in the denominator is missing.* ZeroDivisionError"),
    ("16.1", lambda rewards, size: no_1e4_by_loop(rewards, size, 0.0), "1e-4 in the denominator is missing"),
    ("16.1", lambda rewards, size: no_1e4_by_loop(rewards, size, math.nan), "1e-4 in the denominator .* 0 / 0 = nan"),
    ("16.1", no_1e4_by_arrays, "1e-4 in the denominator is missing.* its advantage is 0"),
    ("16.2", lambda logits, ids, p, t: mx.take_along_axis(
        mx.log(mx.softmax(logits[:, p:] / t, axis=-1)), ids[:, p:, None], axis=-1)[..., 0], "elements|gave|expected"),
    ("16.2", lambda logits, ids, p, t: chapter.token_logps(logits, ids, p, 1.0), "temperature is missing"),
    ("16.2", lambda logits, ids, p, t: chapter.token_logps(logits, ids, 1, t), "prompt's tokens are scored too"),
    ("16.3", lambda new, old, mask: mx.where(mask, mx.exp(new) / mx.exp(old), 1.0), "Mask \\*before\\* exp|gave"),
    ("16.3", lambda new, old, mask: mx.where(mask, mx.exp(mx.where(mask, new, 0)) / mx.exp(mx.where(mask, old, 0)), 1),
     "take exp once"),
    ("16.3", lambda new, old, mask: mx.exp(mx.clip(mx.where(mask, new - old, 0), -3, 3)), "148.4"),
    ("16.3", lambda new, old, mask: mx.exp((new - old) * mask), "0 times nan is nan"),
    ("16.3", lambda new, old, mask: mx.exp(mx.where(mask, mx.stop_gradient(new) - old, 0.0)), "part 2"),
    ("16.4", lambda r, a, low, high: mx.clip(r, 1 - low, 1 + high) * a[:, None], "always clips"),
    ("16.4", lambda r, a, low, high: mx.minimum(r * a[:, None], mx.clip(r, 1 - low, 1 + low) * a[:, None]),
     "upper edge is 1"),
    ("16.5", "YYYYYY", "3 of the 6 are right"),
    ("16.6", lambda logps, ref: logps - ref, "called k1"),
    ("16.6", lambda logps, ref: mx.exp(logps - ref) * (logps - ref), "gave|elements"),
    ("16.7", spoils_the_mask, "new numbers in what it was given"),
    ("16.7", lambda x, mask, kind, *rest: (x * mask).sum() / mask.sum(), "gave"),
    ("16.7", lambda x, mask, kind, longest, items: chapter.aggregate(x, mask, "dapo", longest, items), "gave"),
    ("16.1", advantages_if(lambda advantage, std: advantage if std > 1e-6 else 0.0), "gave"),
    ("16.1", advantages_if(lambda advantage, std: min(max(advantage, -5), 5)), "gave"),
    ("16.2", logps_by_numpy, "no gradient flows"),
    ("16.2", lambda *arguments: logps_by_numpy(*arguments).tolist(), "no gradient flows"),
    ("16.2", logps_by_torch, "no gradient flows"),
    ("16.2", lambda *arguments: -logps_by_numpy(*arguments), "cross-entropy"),
    ("16.2", lambda logits, ids, *others: chapter.token_logps(logits, ids + 1, *others), "gave"),  # outside of memory
    ("16.2", logits_minus_a_constant, "part 2"),
    ("16.2", lambda logits, *others: chapter.token_logps(mx.clip(logits, -100, 1000), *others), "gave"),
    ("16.2", lambda *arguments: mx.clip(chapter.token_logps(*arguments), -2000, 0), "gave"),
    ("16.3", log_ratio_within(-10, 10), "gave"),
    ("16.3", log_ratio_within(-20, 20), "bounded the logarithm"),
    ("16.3", log_ratio_within(-6, 80), "gave"),
    ("16.3", mask_from_values, "gave"),
    ("16.4", lambda r, a, low, high: mx.maximum(chapter.clipped_objective(r, a, low, high), -3 * mx.abs(a)[:, None]),
     "bounded the objective"),
    ("16.4", objective_of(lambda r, a: (r, mx.where(mx.abs(a) < 0.01, 0.0, a))), "gave"),
    ("16.4", objective_of(lambda r, a: (r, mx.clip(a, -5, 5))), "gave"),
    ("16.4", objective_of(lambda r, a: (mx.clip(r, 0.1, 10), a)), "gave"),
    ("16.4", lambda r, a, low, high: chapter.clipped_objective(r, a, low, max(low, high)), "gave"),
    ("16.6", lambda logps, ref: chapter.k3(logps, mx.clip(ref, logps - 20, logps + 20)), "gave"),
    ("16.7", lambda x, mask, *others: chapter.aggregate(x, mask & (x != 0), *others), "whose loss is not 0"),
    ("16.8", only_rows_with_advantage, "gave"),
    ("16.8", with_other(mask=lambda mask, a: mask & (a != 0)[:, None]), "masked the rows with advantage 0"),
    ("16.8", with_other(lambda mask, a, s: {"num_items": mask.sum()}), "number of tokens in these rows"),
    ("16.8", with_other(lambda mask, a, s: {"num_items": s["num_items"] - (mask & (a == 0)[:, None]).sum()}),
     "out of num_items"),
    ("16.8", with_other(lambda mask, a, s: {"beta": min(s["beta"], 1.0)}), "gave"),
    ("16.9", lambda gradient_of, rows, size: sum(map(sum, rows)) / sum(map(len, rows)), "gave"),
    ("16.9", lambda gradient_of, rows, size: chapter.in_parts(gradient_of, rows, 2), "whatever `size` is"),
    ("16.9", lambda gradient_of, rows, size: abs(chapter.in_parts(gradient_of, rows, size)), "gave"),
    ("16.9", parts_of(lambda rows: sum(token != 0 for row in rows for token in row)), "tokens that are not 0"),
    ("16.9", parts_of(lambda rows: sum(len(row) for row in rows if any(row))), "rows that add nothing"),
    ("16.9", parts_of(lambda rows: len({token for row in rows for token in row})), "gave"),
    ("16.8", old_policy_is_now, "gave|part"),
    ("16.8", lambda new, old, ref, a, mask, s: -chapter.grpo_loss(new, old, ref, a, mask, s), "wrong sign"),
    ("16.1", leaves_itself_out, "mean of the \\*others"),
    ("16.2", one_largest_logit, "largest logit of \\*all\\* positions"),
    ("16.2", cross_entropy, "cross-entropy"),
    ("16.4", lambda r, a, low, high: mx.minimum(r, mx.clip(r, 1 - low, 1 + high)) * a[:, None], "smaller \\*ratio"),
    ("16.4", lambda r, a, low, high: chapter.clipped_objective(r, a, high, low), "swapped the epsilons"),
    ("16.5", "NNNYYY", "without"),
    ("16.7", first_places, "may have holes"),
    ("16.8", loss_of_parts(objective=clipped_by_cases), "16.4 and 16.7"),
    ("16.8", loss_of_parts(aggregate=aggregate_by_weights), "16.4 and 16.7"),
    ("16.8", loss_of_parts(objective=detached_objective), "through its clipped objective"),
    ("16.8", loss_of_parts(k3=k3_by_numpy), "through the KL penalty"),
    ("16.8", loss_of_parts(k3=lambda logps, ref: chapter.k3(ref, logps)), "reference over policy"),
    ("16.9", lambda gradient_of, rows, size: gradient_of(rows, sum(map(len, rows))), "do not fit"),
    ("16.9", lambda gradient_of, rows, size: sum(gradient_of([r], len(r)) for r in rows) / len(rows), "gave"),
]  # fmt: skip


@pytest.mark.parametrize(("id", "answer", "message"), WRONG, ids=[f"{n}-{row[0]}" for n, row in enumerate(WRONG)])
def test_wrong_answers_are_refused_with_words(id, answer, message):
    note = check(id, answer)
    assert not note.passed
    assert re.search(message, note.text), note.text


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
    [cell] = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.id == f"16-{id}"]
    return "\n".join(output.get("text") or output.data.get("text/plain", "") for output in cell.outputs)


def test_the_text_describes_the_stored_runs():
    assert "before: 44%, after: 61% 60%" in stored_text("zero-run")
    assert "seed 0: exam before 44%; after, with the clip 43%, without 39%" in stored_text("break-picture")
    assert "seed 1: exam before 44%; after, with the clip 45%, without 24%" in stored_text("break-picture")
    off = [float(each) for each in re.findall(r"means: (\S+)", stored_text("micro-use"))]
    assert 0.045 < min(off) < max(off) < 0.25
    spreads = re.findall(r"k1: mean \S+ ± (\S+) .* k3: mean \S+ ± (\S+)", stored_text("kl-picture"))
    assert spreads[0] == ("0.061", "0.002")
    assert [float(k3) < float(k1) for k1, k3 in spreads] == [True, True, False]
