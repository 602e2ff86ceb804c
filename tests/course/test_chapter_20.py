"""Chapter 20: its loop is right, its bugs are bugs, its stored runs repeat, and its checks judge tests well."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.catalogue import exercises, find
from mlx_grpo_kit.course.chapters.chapter_20 import loop
from mlx_grpo_kit.course.chapters.chapter_20.frozen import frozen_batch
from mlx_grpo_kit.course.chapters.chapter_20.museum import (
    BUGS,
    MYSTERIES,
    as_steps,
    stored_curves,
    stored_long_curves,
    stored_record,
    verdict,
)
from mlx_grpo_kit.course.chapters.chapter_20.pictures.symptoms import PANELS
from mlx_grpo_kit.course.chapters.chapter_20.record import LONG_KEPT, LONG_STEPS, _rounded, groups_of, long_steps_of
from mlx_grpo_kit.course.slips import variants
from mlx_grpo_kit.grpo import GRPOConfig
from mlx_grpo_kit.grpo.learners import MLXAtOnce
from mlx_grpo_kit.grpo.step import draw_batch, grpo_step
from mlx_grpo_kit.qwen3 import load_tokenizer
from mlx_grpo_kit.runs.diagnosis import findings
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import LongSum
from tests.course.stored import cells

CURVES = stored_curves()


@pytest.fixture(scope="module")
def model():
    from mlx_grpo_kit.assets import TINY

    batch = frozen_batch()
    return batch.config, batch.params, load_tokenizer(TINY)


# -- the healthy loop, against torch ----------------------------------------------------------------------------------


def test_healthy_advantages_equal_torchs():
    rewards = np.random.default_rng(0).normal(size=24)
    groups = torch.tensor(rewards).reshape(-1, 4)
    right = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    np.testing.assert_allclose(loop.advantages(rewards, 4), right.reshape(-1))


def test_healthy_loss_and_gradient_equal_torchs():
    rng = np.random.default_rng(1)
    logps, old, ref = (rng.normal(-1, 0.5, (3, 5)).astype(np.float32) for _ in range(3))
    advantages = np.array([1.0, -1.0, 0.5], np.float32)
    mask = np.arange(5) < np.array([[5], [2], [3]])
    theirs = torch.tensor(logps, requires_grad=True)
    ratio = torch.exp(theirs - torch.tensor(old))
    judged = torch.tensor(advantages)[:, None]
    gain = torch.minimum(ratio * judged, ratio.clip(1 - loop.EPSILON, 1 + loop.EPSILON) * judged)
    behind = torch.tensor(ref) - theirs
    loss = -((gain - loop.BETA * (behind.exp() - behind - 1)) * torch.tensor(mask)).sum() / mask.sum()
    loss.backward()
    arrays = [mx.array(each) for each in (old, ref, advantages, mask)]
    ours, grad = mx.value_and_grad(lambda x: loop.policy_loss(x, *arrays))(mx.array(logps))
    assert ours.item() == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(np.array(grad), theirs.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_one_and_four_micro_batches_give_the_same_gradient(model, monkeypatch):
    norms = []
    for pieces in (1, 4, 16):
        monkeypatch.setattr(loop, "MICRO_BATCHES", pieces)
        norms.append(next(loop.train(*model, 1)).metrics["grad_norm"])
    assert norms[1:] == pytest.approx([norms[0]] * 2, rel=1e-4)


@pytest.mark.parametrize("letter", ["healthy", "C", "I"])
def test_the_healthy_functions_give_the_gradient_of_the_trainers_learner(letter, model, monkeypatch):
    """From the same policy and batch, in the page's own step; the temperature and the sum of micro-batches tell."""
    steps = []
    monkeypatch.setattr(loop, "grpo_step", lambda *step: steps.append(step) or grpo_step(*step))
    functions = BUGS[letter].functions() if letter in BUGS else loop.Functions()
    next(loop.train(*model, 1, functions))
    [(parts, policy, _, _)] = steps
    batch = draw_batch(parts, policy, 1)
    args = GRPOConfig(
        num_generations=loop.GROUP, per_device_train_batch_size=32, gradient_accumulation_steps=4, loss_type="dapo",
        temperature=loop.TEMPERATURE, epsilon=loop.EPSILON, beta=loop.BETA,
    )  # fmt: skip
    learner = MLXAtOnce(policy.config, args, args.loss(4))
    found, expected = (one.gradient(policy, *one.prepare(policy, batch))[0] for one in (parts.learner, learner))
    apart = max(float(mx.abs(found[name] - expected[name]).max()) for name in expected)
    largest = max(float(mx.abs(value).max()) for value in expected.values())
    assert (apart < 1e-3 * largest) == (letter == "healthy")


def test_the_given_policy_does_not_change(model):
    before = {name: np.array(value) for name, value in model[1].items()}
    for _ in loop.train(*model, 2):
        pass
    assert all((np.array(model[1][name]) == value).all() for name, value in before.items())


# -- the bugs and their stored runs -----------------------------------------------------------------------------------


def test_every_bug_is_an_edit_with_threads_and_words():
    assert list(BUGS) == list("ABCDEFGHIJKLM")
    for bug in BUGS.values():
        signs = {line[0] for line in bug.lines()}
        assert signs == {"-", "+"}, bug.name
        assert len(bug.lines()) <= 8
        assert bug.symptom.endswith(".")
        assert bug.test.endswith(".")
        assert len(bug.threads) == 2
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) and words for thread, words in bug.threads)


@pytest.mark.parametrize("letter", ["healthy", *BUGS])
def test_the_first_step_of_a_stored_run_repeats(letter, model):
    functions = BUGS[letter].functions() if letter in BUGS else loop.Functions()
    metrics = next(loop.train(*model, 1, functions)).metrics
    for name in PANELS:
        stored, now = CURVES[letter][name][0], _rounded(metrics[name])
        assert stored == now or stored == pytest.approx(now, abs=2e-3), (letter, name)


def end(run, name):
    return np.mean(CURVES[run][name][-10:])


@pytest.mark.parametrize(("letter", "seed"), [("healthy", 0), ("M", 2)])
def test_the_first_step_of_a_long_run_repeats(letter, seed):
    functions = BUGS[letter].functions() if letter in BUGS else loop.Functions()
    [step] = long_steps_of(functions, seed, 1)
    assert len(step.completions) == 64
    for name in LONG_KEPT:
        stored = stored_long_curves()[letter][name][seed]
        assert len(stored) == LONG_STEPS
        assert stored[0] == pytest.approx(_rounded(step.metrics[name]), abs=2e-3)
    right = [LongSum().is_correct(one.problem, one.completion) for one in step.completions]
    assert [one.reward for one in step.completions] == right
    assert step.metrics["accuracy"] == np.mean(right)


def test_the_claims_about_long_sums_hold():
    """If the loss masks the end token, answers become shorter, with every seed and in every part of the run."""
    metric = "completions/mean_length"
    healthy, sick = (np.array(stored_long_curves()[name][metric]) for name in ("healthy", "M"))
    apart = (sick - healthy).reshape(3, 4, 10).mean(axis=2)
    assert apart.max() < 0
    assert -1.7 < apart.mean(axis=1).min() <= apart.mean(axis=1).max() < -1.4


def test_the_claims_about_the_stored_runs_hold():
    lengths = {run: len(curves["reward"]) for run, curves in CURVES.items()}
    assert set(lengths.values()) == {1, 60}
    assert lengths["E"] == 1
    assert CURVES["E"]["grad_norm"] == [None]
    difference = "sampling/sampling_logp_difference/mean"
    assert min(CURVES["A"][difference]) > 3
    assert CURVES["A"][difference][0] > 4
    assert end("A", "reward") < 0.3
    assert 0.15 < np.mean(CURVES["B"][difference][:5]) < 0.25
    assert 0 < np.mean(CURVES["B"][difference][10:]) < 0.06
    assert all(0.06 < value < 0.15 for value in CURVES["C"][difference] + CURVES["run 3"][difference])
    assert not any(CURVES["D"]["grad_norm"] + CURVES["D"]["kl"] + CURVES["K"]["kl"] + CURVES["run 1"]["kl"])
    assert CURVES["F"]["grad_norm"][0] / CURVES["healthy"]["grad_norm"][0] == pytest.approx((8 / 7) ** 0.5, abs=0.005)
    for run in ("I", "run 2"):
        assert 3.3 < np.mean(np.array(CURVES[run]["grad_norm"]) / CURVES["healthy"]["grad_norm"]) < 4.7
    assert 1.3 < np.mean(np.array(CURVES["M"]["grad_norm"]) / CURVES["healthy"]["grad_norm"]) < 1.8
    assert min(CURVES["J"]["completions/clipped_ratio"]) > 0.85
    assert 0.2 < end("J", "reward") < 0.3
    assert end("L", "reward") > end("healthy", "reward") + 0.15
    assert end("L", "accuracy") < 0.1
    assert {run for run in "FGHIKM" if end(run, "reward") < end("healthy", "reward") - 0.03} == set()
    assert end("C", "reward") < end("healthy", "reward") - 0.05


def test_the_messages_of_diagnose_about_the_stored_runs():
    said = {run: {finding.name for finding in findings(as_steps(curves))} for run, curves in CURVES.items()}
    assert [run for run, names in said.items() if not names] == ["healthy", *"FGHIM", "run 2", "run 4", "run 5"]
    first = {run: findings(as_steps(curves))[0].name for run, curves in CURVES.items() if said[run]}
    assert first["A"] == first["B"] == "scored_otherwise"
    assert first["L"] == "paid_for_something_else"
    assert said["D"] == {"zero_gradient"}
    assert said["E"] == {"no_number"}
    assert said["J"] == {"truncated"}
    assert said["K"] == said["run 1"] == {"reference_moves"}
    assert said["C"] == said["run 3"] == {"scored_otherwise"}


EVIDENCE = {
    "run 1": ("KL to the reference", "KL", "kl"),
    "run 2": ("gradient norm", "Gradient  norm", "grad_norm"),
    "run 3": ("scored minus sampled", "Scored minus sampled"),
    "run 4": (-1.21, -1.207, np.float64(-1.2)),
    "run 5": (-0.93, -0.935, -0.94),
}


@pytest.mark.parametrize("number", range(9, 14))
def test_a_mystery_needs_its_letter_and_its_evidence(number):
    run = f"run {number - 8}"
    right, seed = MYSTERIES[run]
    assert seed != 0
    for evidence in EVIDENCE[run]:
        for letter in "ABCDEFGHIJKLMN":
            assert check(f"20.{number}", (letter, evidence)).passed == (letter == right)
    assert check(f"20.{number}", [right.lower(), EVIDENCE[run][0]]).passed
    for guess in (right, (right,), (right, ""), (right, None), (right, "reward"), (right, 0.0), (right, 1), right * 2):
        note = check(f"20.{number}", guess)
        assert not note.passed
        assert f'hint("20.{number}", 1)' in note.text


def test_the_record_of_a_mystery_has_its_curves_and_the_advantages_of_its_parts(model):
    for run, (letter, seed) in MYSTERIES.items():
        record = stored_record(run)
        assert len(record) == 60
        assert record.column("kl") == CURVES[run]["kl"]
        functions = BUGS[letter].functions() if letter in BUGS else loop.Functions()
        if run in ("run 4", "run 5"):
            now = groups_of([next(loop.train(*model, 1, functions, seed))])[0]
            stored = record.at(1).completions
            assert [one.completion for one in stored] == [text for _, texts, _, _ in now for text in texts]
            assert [one.advantage for one in stored] == [value for *_, values in now for value in values]


def groups_of_step(run, step):
    rows = stored_record(run).at(step).completions
    return [[(one.reward, one.advantage) for one in rows if one.group == group] for group in (0, 1)]


def test_the_table_shows_bugs_that_the_curves_hide():
    # Healthy: torch's numbers in every group of the record. H: answers of one reward and two advantages.
    for step in range(1, 61):
        for group in groups_of_step("run 5", step):
            rewards, judged = torch.tensor(group, dtype=torch.float64).T
            torch.testing.assert_close(judged, (rewards - rewards.mean()) / (rewards.std() + 1e-4), atol=6e-4, rtol=0)
    first = groups_of_step("run 4", 30)[0]
    assert [reward for reward, _ in first] == [0, 0, 1, 1, 0, 0, 0, 0]
    assert {judged for reward, judged in first if reward == 0} == {-0.724, -0.935, -1.207}
    assert min(judged for _, judged in first) == -1.207
    assert min(judged for _, judged in groups_of_step("run 5", 30)[0]) == -0.935


# -- tests that readers write -----------------------------------------------------------------------------------------


def test_the_notebook_continues_with_tests_that_assert(capsys):
    answers = {each.id: answer for each in exercises("20") for _, answer, _ in variants(each.solution, each.also_right)}
    own = {"use": answers.get, "BUGS": BUGS, "verdict": verdict, "silent": []}
    exec(cells("20")["room1"].source, own)
    said = capsys.readouterr().out
    assert said.startswith("healthy: passed")
    assert said.count(": caught") == 3
    exec(cells("20")["all"].source, own)
    assert capsys.readouterr().out.count("caught") == 12


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("always", [True, False])
def test_a_test_that_misjudges_a_part_gets_a_message_about_the_part(number, always):
    note = check(f"20.{number}", lambda part: always)
    assert re.search(r"gave (passed, expected refused|refused, expected passed)", note.text)
    assert "Here `" in note.text


def test_tests_catch_every_bug_but_one_and_let_the_healthy_part_pass():
    by_part = {
        "score": "20.1", "completion_mask": "20.2", "advantages": "20.3", "loss_and_gradient": "20.4",
        "policy_loss": "20.5", "accumulate": "20.6", "reward": "20.7", "keep_reference": "20.8",
    }  # fmt: skip
    missed = []
    for letter, bug in BUGS.items():
        number = by_part.get(bug.part.__name__)
        if number is None or find(number).solution(bug.sick_part()):
            missed.append(letter)
        if number:
            assert find(number).solution(bug.part)
    assert missed == ["J"]


def test_the_loop_accepts_a_part_of_your_own(model):
    mine = replace(loop.Functions(), reward=lambda problem, text: float(len(text)))
    assert next(loop.train(*model, 1, mine)).metrics["reward"] > 1
