"""Leaving out completions without an advantage, and grouping by length, change neither gradient nor metrics."""

import dataclasses
from functools import cache

import numpy as np
import pytest

import mlx_grpo_kit.grpo.micro_batches as module
from mlx_grpo_kit.grpo import LOSS_TYPES, GRPOConfig, GRPOLossConfig, grpo_loss_and_metrics, learners
from mlx_grpo_kit.grpo.batch import Completion
from mlx_grpo_kit.grpo.learners.mlx_at_once import MLXAtOnce
from mlx_grpo_kit.grpo.learners.mlx_by_layer import MLXByLayer
from mlx_grpo_kit.grpo.logps import batch_logps, pad_batch
from mlx_grpo_kit.grpo.loss import high_entropy_mask
from mlx_grpo_kit.grpo.micro_batches import micro_batches
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Problem
from tests.grpo.records import batch_of
from tests.sizes import ONE_LAYER

GROUP = 4
SHAPE = dict(vocab_size=17, **ONE_LAYER | dict(num_hidden_layers=2), rope_theta=10_000.0, max_position_embeddings=64,
             tie_word_embeddings=True)  # fmt: skip


@pytest.fixture(scope="module")
def model():
    config = Qwen3Config(**SHAPE)
    rng = np.random.default_rng(0)
    params = {
        name: value + mx.array(rng.normal(size=value.shape).astype(np.float32) * 0.1)
        for name, value in init_params(config, seed=0).items()
    }
    return config, params


def completion(prompt_ids, completion_ids, entropies, advantage, prompt="", finished=True):
    return Completion(
        problem=Problem("", ""), prompt=prompt, prompt_ids=prompt_ids, completion="", completion_ids=completion_ids,
        logps=[], entropies=entropies, finished=finished, rewards={}, reward=0.0, advantage=advantage,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sampled(model):
    """Six groups of random lengths; of some groups all advantages are 0, and of the others some are."""
    config, params = model

    @cache
    def make(seed, share_without_advantage=0.5):
        rng = np.random.default_rng(seed)
        completions = []
        for group in range(6):
            prompt = rng.integers(2, 17, rng.integers(1, 6)).tolist()
            tied = rng.random() < share_without_advantage
            for _ in range(GROUP):
                ids = rng.integers(2, 17, rng.integers(1, 9)).tolist()
                _, entropy = batch_logps(config, params, pad_batch(config, [prompt], [ids]))
                advantage = 0.0 if tied or rng.random() < 0.2 else float(rng.normal())
                finished = bool(rng.random() < 0.8)
                completions.append(completion(prompt, ids, entropy[0].tolist(), advantage, str(group), finished))
        return completions

    return make


def arguments(loss_type, **settings):
    settings = {"epsilon_high": 5.0} | settings if loss_type == "cispo" else settings
    return GRPOConfig(loss_type=loss_type, num_generations=GROUP, **settings)


def noise(completion, column):
    """How far the policy that sampled was from the one that learns, by the completion's own numbers."""
    rng = np.random.default_rng([*completion.completion_ids, column])
    return rng.normal(size=len(completion.completion_ids)) * 0.5


def padded(rows, width):
    out = np.zeros((len(rows), width), np.float32)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return mx.array(out)


def off_policy(model, batch, completions, beta):
    """(old_logps, ref_logps): the same for a completion wherever it stands."""
    logps, _ = batch_logps(*model, batch)
    width = logps.shape[1]
    old, ref = (logps + padded([noise(each, column) for each in completions], width) for column in (0, 1))
    return old, ref if beta else None


def bonus(entropy, mask, args):
    kept = high_entropy_mask(entropy, mask, args.top_entropy_quantile)
    return mx.sum(entropy * kept) / mx.maximum(kept.sum(), 1)


def in_full(model, args, completions):
    """Every completion through the model, in TRL's micro-batches: (gradient, metrics)."""
    loss_config = args.loss(16)
    size = args.per_device_train_batch_size
    chunks = [completions[start : start + size] for start in range(0, len(completions), size)]
    counted = [[args.mask_truncated_completions <= each.finished for each in chunk] for chunk in chunks]
    num_items = sum(
        len(each.completion_ids) for each in completions if each.finished or not args.mask_truncated_completions
    )
    share = 1.0 if loss_config.micro_batches_add_up else 1 / len(chunks)
    grads, totals = None, {}
    for chunk, keep in zip(chunks, counted, strict=True):
        batch = pad_batch(model[0], [each.prompt_ids for each in chunk], [each.completion_ids for each in chunk])
        mask = batch.completion_mask & mx.array(keep)[:, None]
        advantages = mx.array([each.advantage for each in chunk])
        old, ref = off_policy(model, batch, chunk, args.beta) if args.num_iterations > 1 or args.beta else (None, None)

        def loss_fn(params, batch=batch, mask=mask, advantages=advantages, old=old, ref=ref):
            logps, entropy = batch_logps(model[0], params, batch, entropy_gradient=True)
            arrays, others = (logps, old, advantages, mask), dict(ref_logps=ref, entropies=entropy)
            loss, metrics = grpo_loss_and_metrics(loss_config, *arrays, **others, num_items_in_batch=num_items)
            if args.entropy_coef:  # a mean over micro-batches, whatever the policy's loss is
                policy = loss + args.entropy_coef * bonus(entropy, mask, args)
                metrics["policy_loss"] = policy * share * len(chunks)
                return policy * share - args.entropy_coef * bonus(entropy, mask, args) / len(chunks), metrics
            metrics["entropy"] = mx.sum(entropy * mask) / mx.maximum(mask.sum(), 1)
            return loss * share, metrics

        (loss, metrics), more = mx.value_and_grad(loss_fn)(model[1])
        grads = more if grads is None else {name: grads[name] + more[name] for name in grads}
        totals["loss"] = totals.get("loss", 0.0) + loss.item()
        for name, value in metrics.items():
            totals[name] = totals.get(name, 0.0) + value.item() / len(chunks)
    return grads, totals


def with_some_left_out(model, args, completions, **options):
    loss_config = args.loss(16)
    batches, left_out = micro_batches(model[0], args, loss_config, batch_of(completions, GROUP), **options)
    learner, policy = MLXAtOnce(model[0], args, loss_config), Policy(*model)
    grads, totals = {}, dict(left_out)
    for micro in batches:
        place = {tuple(each.completion_ids): each for each in completions}
        rows = [
            next(each for ids, each in place.items() if (*ids, *[0] * (len(row) - len(ids))) == tuple(row))
            for row in micro.batch.completion_ids.tolist()
        ]
        old, ref = (
            off_policy(model, micro.batch, rows, args.beta) if args.num_iterations > 1 or args.beta else (None, None)
        )

        micro.old_logps, micro.ref_logps = old, ref
        loss, _, metrics = learner.add_gradients(policy, grads, micro)
        for name, value in {"loss": loss, **metrics}.items():
            totals[name] = totals.get(name, 0.0) + value.item()
    return batches, grads, totals


def assert_gradients_are(expected, grads, atol=3e-6):
    """`atol` is a share of the largest number of each."""
    for name, grad in grads.items():
        largest = mx.abs(expected[name]).max().item()
        np.testing.assert_allclose(np.array(grad), np.array(expected[name]), atol=atol * largest, err_msg=name)


def assert_metrics_are(expected, metrics):
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=2e-5, abs=1e-6), name


@pytest.mark.parametrize(("per_device", "accumulation"), [(24, 1), (8, 3), (6, 4)])
@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_gradients_and_metrics_are_those_of_the_full_pass(
    model, sampled, loss_type, off_policy, per_device, accumulation
):
    args = arguments(
        loss_type, per_device_train_batch_size=per_device, gradient_accumulation_steps=accumulation,
        num_iterations=2 if off_policy else 1, mask_truncated_completions=per_device == 8,
    )  # fmt: skip
    completions = sampled(seed=per_device)
    batches, grads, metrics = with_some_left_out(model, args, completions)
    expected_grads, expected = in_full(model, args, completions)
    assert_gradients_are(expected_grads, grads)
    assert_metrics_are(expected, metrics)
    through = sum(micro.batch.completion_ids.shape[0] for micro in batches)
    assert through == len(completions) if loss_type == "vespo" else 0 < through < len(completions)


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_parts_of_similar_length_change_neither(model, sampled, monkeypatch, loss_type, off_policy):
    monkeypatch.setattr(module, "A_FURTHER_PART", -100)  # as many parts as are tried
    args = arguments(loss_type, per_device_train_batch_size=24, num_iterations=2 if off_policy else 1)
    completions = sampled(seed=24)  # no two of them alike: they are found again by their tokens
    batches, grads, metrics = with_some_left_out(model, args, completions, similar_lengths=True)
    assert len(batches) == 8
    expected_grads, expected = in_full(model, args, completions)
    assert_gradients_are(expected_grads, grads, 1e-5)
    assert_metrics_are(expected, metrics)


def of_lengths(prompt, lengths):
    """One group of completions, each with an advantage."""
    return [completion([2] * prompt, [3] * length, [0.5] * length, 1.0 + place) for place, length in enumerate(lengths)]


ROWS = np.random.default_rng(0).permutation([*[20] * 8, *[60] * 4, *[200] * 4]).tolist()


def test_where_parts_of_similar_length_pay_and_where_they_do_not(model):
    config = dataclasses.replace(model[0], max_position_embeddings=1000)

    def lengths_of_each(prompt, rows):
        args = GRPOConfig(num_generations=len(rows), per_device_train_batch_size=len(rows))
        batch = batch_of(of_lengths(prompt, rows), len(rows))
        found, _ = micro_batches(config, args, GRPOLossConfig(), batch, similar_lengths=True)
        return [sorted(micro.batch.completion_mask.sum(axis=1).tolist()) for micro in found]

    assert lengths_of_each(10, ROWS) == [[20] * 4, [20] * 4, [60] * 4, [200] * 4]
    for prompt, alike in ((150, ROWS), (10, [200] * 15 + [20]), (10, [190, 200] * 8), (2, [1, 4] * 8)):
        assert lengths_of_each(prompt, alike) == [sorted(alike)], (prompt, alike)


@pytest.mark.parametrize(
    ("learner", "parts"), [(MLXAtOnce, 4), (MLXByLayer, 4), (learners.TorchLearner, 1), (learners.JAXLearner, 1)]
)
def test_learners_that_compute_padding_take_parts_of_similar_length(model, learner, parts):
    config, on_cpu = dataclasses.replace(model[0], max_position_embeddings=1000), mx.default_device() == mx.cpu
    args = GRPOConfig(num_generations=len(ROWS), per_device_train_batch_size=len(ROWS))
    batch = batch_of(of_lengths(10, ROWS), len(ROWS))
    [prepared] = learner(config, args, GRPOLossConfig()).prepare(Policy(config, {}), batch)
    assert len(prepared.each) == (parts if on_cpu else 1)


@pytest.mark.parametrize(
    "settings",
    [
        dict(top_entropy_quantile=0.4),
        dict(top_entropy_quantile=0.2, loss_type="grpo", num_iterations=2),
        dict(entropy_coef=0.3),
        dict(entropy_coef=0.3, top_entropy_quantile=0.3, loss_type="grpo", mask_truncated_completions=True),
        dict(entropy_coef=-0.2, loss_type="rloo", beta=0.1),
    ],
    ids=repr,
)
def test_entropies_decide_as_in_the_full_pass(model, sampled, settings):
    args = arguments(**{"loss_type": "dapo"} | settings, per_device_train_batch_size=8, gradient_accumulation_steps=3)
    completions = sampled(seed=5)
    batches, grads, metrics = with_some_left_out(model, args, completions)
    expected_grads, expected = in_full(model, args, completions)
    assert_gradients_are(expected_grads, grads)
    assert_metrics_are({name: expected[name] for name in {"loss", "policy_loss"} & expected.keys()}, metrics)
    through = sum(micro.batch.completion_ids.shape[0] for micro in batches)
    counted = sum(each.finished or not args.mask_truncated_completions for each in completions)
    assert through >= counted if args.entropy_coef else through < len(completions)


def test_a_kl_penalty_needs_them_all(model, sampled):
    args = arguments("dapo", per_device_train_batch_size=8, gradient_accumulation_steps=3, beta=0.1)
    completions = sampled(seed=1, share_without_advantage=1.0)
    batches, grads, metrics = with_some_left_out(model, args, completions)
    expected_grads, expected = in_full(model, args, completions)
    assert sum(micro.batch.completion_ids.shape[0] for micro in batches) == len(completions)
    assert metrics["kl"] == pytest.approx(expected["kl"], rel=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(np.array(grad), np.array(expected_grads[name]), atol=1e-6, err_msg=name)


def test_where_nothing_is_left_the_entropy_is_still_told(model, sampled):
    args = arguments("dapo", per_device_train_batch_size=24)
    completions = sampled(seed=1, share_without_advantage=1.0)
    batches, _, metrics = with_some_left_out(model, args, completions)
    assert batches == []
    assert metrics["entropy"] == pytest.approx(in_full(model, args, completions)[1]["entropy"], rel=1e-5)


def test_completions_of_like_length_go_together(model, sampled):
    args = arguments("dapo", per_device_train_batch_size=8, gradient_accumulation_steps=3)
    completions = [
        dataclasses.replace(each, completion_ids=each.completion_ids[:length], entropies=each.entropies[:length])
        for each in sampled(seed=2, share_without_advantage=0.0)
        for length in [8 if int(each.prompt) % 2 else 2]
    ]
    lengths = np.array([len(each.completion_ids) for each in completions])
    batches, _ = micro_batches(model[0], args, GRPOLossConfig(), batch_of(completions, GROUP))
    places = sum(micro.batch.completion_ids.size for micro in batches)
    assert lengths.sum() <= places < sum(8 * lengths[start : start + 8].max() for start in (0, 8, 16))
    assert {micro.batch.group_size for micro in batches} == {GROUP}
