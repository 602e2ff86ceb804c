"""Chapter 24: the checks look at behaviour. Right answers in any style pass, and each wrong one gets its message."""

import copy
import functools
import inspect
import itertools
import linecache
import re
import subprocess
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import mlx.optimizers as optim
import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp, ttest_rel
from transformers import Qwen3ForCausalLM

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course import check, my_code
from mlx_grpo_kit.course.answers import keep, source_of
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_24 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_24 import faulty, small, training, twice
from mlx_grpo_kit.course.chapters.chapter_24 import paired as paired_module
from mlx_grpo_kit.course.chapters.chapter_24.paired import detectable, in_points, in_words, interval, paired, supported
from mlx_grpo_kit.course.chapters.chapter_24.pictures.flow import BOXES, draw_step
from mlx_grpo_kit.course.chapters.chapter_24.pictures.pages import PARTS, Annotated
from mlx_grpo_kit.course.chapters.chapter_24.short_run import short_run
from mlx_grpo_kit.course.slips import variants
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo import compute_advantages, compute_rewards, minimal
from mlx_grpo_kit.qwen3 import KVCache, load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition
from tests.course.stored import cells
from tests.grpo.conftest import TRL

CELLS = cells("24")
WISHES = [case[0] for case in chapter.SAMPLE.cases]
RULES = {name: rule for name, rule, _ in variants(chapter.advantages, chapter.ADVANTAGES.also_right)}
minus_the_mean = RULES["minus the mean"]

# Ground truth.


def test_log_probabilities_row_by_row_are_those_of_transformers():
    config, params = load_pretrained(TINY)
    tokenizer, model = load_tokenizer(TINY), Qwen3ForCausalLM.from_pretrained(TINY).eval()
    prompts = [tokenizer.encode(text) for text in ("8+5=", "27+38=")]
    completions = [[*tokenizer.encode("13"), 1], tokenizer.encode("6655")]
    found = small.logps_row_by_row(config, params, prompts, completions)
    padded, mask = chapter.completion_logps(config, params, prompts, completions)
    for prompt, completion, own, row in zip(prompts, completions, found, padded.tolist(), strict=True):
        with torch.no_grad():
            table = model(torch.tensor([prompt + completion])).logits[0].double().log_softmax(-1)
        theirs = table[torch.arange(len(prompt) - 1, len(prompt) + len(completion) - 1), completion]
        np.testing.assert_allclose(own, theirs, atol=2e-5)
        np.testing.assert_allclose(row[: len(completion)], theirs, atol=2e-5)
    assert mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_all_completions_of_the_small_model_are_listed(wish):
    for prompt in wish.prompts:
        tables = wish.probabilities(prompt)
        logps = [
            sum(table[token] for token, table in zip(tokens, rows, strict=True)) for tokens, rows in tables.items()
        ]
        assert np.exp(logps).sum() == pytest.approx(1)
        assert all(
            set(tokens[:-1]).isdisjoint(wish.ends) and (len(tokens) == wish.max_new_tokens or tokens[-1] in wish.ends)
            for tokens in tables
        )
        params = small.params(wish.seed, wish.config)
        [alone] = small.logps_row_by_row(wish.config, params, [prompt], [next(iter(tables))])
        assert logps[0] == pytest.approx(alone.sum(), abs=1e-5)


def test_a_right_sampler_fits_whatever_it_is_seeded_with():
    for shift in range(12):

        def answer(*arguments, shift=shift):
            return chapter.sample(*arguments[:-1], arguments[-1] + 1000 * shift)

        assert [small.draw_and_judge(answer, wish) for wish in WISHES] == [small.FITS] * len(WISHES)


def test_outcomes_that_never_came_are_missed_where_they_should_have_come():
    probs = np.array([0.5, 0.3, 0.15, 0.04, 0.01])
    counts = np.array([500, 300, 160, 40, 0])
    assert small.fits(counts, probs)  # ten of a thousand
    assert not small.fits(3 * counts, probs)  # thirty of three thousand


def test_the_statistical_check_is_calibrated():
    """Right draws almost always have an ordinary p-value, and a token that is 15% of the draws short is seen."""
    rng, probs = np.random.default_rng(0), np.array([0.5, 0.3, 0.15, 0.049, 0.001])
    tails = [small._tail_of(rng.multinomial(1000, probs), probs) for _ in range(2000)]
    assert 0.03 < np.mean(np.array(tails) < 0.05) < 0.07
    assert not any(small.fits(rng.multinomial(1000, [0.35, 0.45, 0.15, 0.049, 0.001]), probs) for _ in range(100))


def test_the_interval_is_students():
    before, after = [0.61, 0.64, 0.58, 0.66, 0.6, 0.7], [0.62, 0.66, 0.62, 0.65, 0.63, 0.7]
    report = {"seeds": [*range(6)], "before": before, "after": after}
    theirs = ttest_rel(after, before).confidence_interval(0.95)
    mean, low, high = interval(report)
    assert (low, high) == pytest.approx((theirs.low, theirs.high))
    assert mean == pytest.approx(np.mean(after) - np.mean(before))
    assert supported(report) == "no difference"
    assert supported({**report, "after": [each + 0.05 for each in after]}) == "better"
    assert supported({**report, "after": [each - 0.2 for each in after]}) == "worse"


@pytest.mark.parametrize("seeds", [5, 20])
def test_a_detectable_difference_is_detected_four_times_out_of_five(seeds):
    rng = np.random.default_rng(0)
    sample = rng.normal(size=seeds)
    effect = detectable({"before": [0.0] * seeds, "after": sample.tolist()}) / sample.std(ddof=1)
    many = rng.normal(loc=effect, size=(20_000, seeds))
    assert np.mean(ttest_1samp(many, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.01)


def moved(by):
    """The shipped model's parameters, and a number added to one of them."""
    params = small.copied(training.model()[1])
    return {**params, "final_norm.weight": params["final_norm.weight"] + by}


@pytest.fixture
def quick_exam(monkeypatch):
    """An exam that reads its mark from the parameters that `moved` makes: half, and what was added."""
    start = training.model()[1]["final_norm.weight"]

    def exam(params, problems=1003, draws=1, on=None):
        return 0.5 + (params["final_norm.weight"] - start)[0].item()

    monkeypatch.setattr(paired_module, "held_out_accuracy", exam)
    monkeypatch.setattr(paired_module, "_passed", {})
    monkeypatch.setattr(paired_module, "_examples", [])


def test_paired_trains_both_versions_on_the_same_seeds(capsys, quick_exam):
    asked = []

    def version(name, gain):
        def run(seed):
            asked.append((name, seed))
            return moved(seed / 100 + gain + 0.01 * (seed % 2))

        return run

    report = paired(version("a", 0.0), version("b", 0.1), (3, 5, 8))
    assert asked == [(name, seed) for seed in (3, 5, 8) for name in "ab"]
    assert report["seeds"] == [3, 5, 8]
    assert report["after"] == pytest.approx([0.64, 0.66, 0.68], abs=2e-4)
    printed = capsys.readouterr().out
    assert printed.startswith("before training: 50.0%")
    assert "seed 5: 56.0% and 66.0%, difference +10.0 points" in printed
    assert in_words(report) in printed


@pytest.mark.parametrize(
    ("returned", "error", "words"),
    [
        (0.53, TypeError, "`before(0)` returned 0.53, a float. Return the parameters at the end of the run"),
        (iter([1]), TypeError, "the last of what it yields"),
        ({"a": 1}, ValueError, "names are not those of the parameters"),
        ("nan", ValueError, "not finite"),
    ],
)
def test_paired_says_what_a_version_must_return(returned, error, words, quick_exam):
    returned = moved(float("nan")) if returned == "nan" else returned
    with pytest.raises(error) as raised:
        paired(lambda seed: returned, lambda seed: moved(0.1))
    assert words in str(raised.value)


def test_an_interval_is_printed_in_points_with_one_decimal():
    report = {"seeds": [*range(5)], "before": [0.5] * 5, "after": [0.512, 0.524, 0.531, 0.526, 0.517]}
    assert in_words(report) == "mean difference +2.2 points, 95% interval +1.3 to +3.1: the second version is better"
    assert [*map(in_points, (0.1234, -0.0004, 0.00003, 0.0, -1e-17))] == ["+12.3", "-0.04", "+0.003", "+0.0", "-0.0"]


# Samplers.


def sample_row_by_row(config, params, prompts, ends, max_new_tokens, seed):
    """One row after the other, with a cache, and NumPy's random numbers."""
    rng, completions = np.random.default_rng(seed), []
    for prompt in prompts:
        cache, new, completion = KVCache(config.num_hidden_layers), prompt, []
        while len(completion) < max_new_tokens and not (completion and completion[-1] in ends):
            logits = np.array(qwen3_forward(config, params, mx.array([new]), cache=cache)[0, -1], dtype=float)
            probs = np.exp(logits - logits.max())
            new = [int(rng.choice(len(probs), p=probs / probs.sum()))]
            completion += new
        completions.append(np.array(completion))
    return tuple(completions)


def keeping(answer):
    """`answer`, with every argument in a copy that it may change."""

    def call(config, params, *others):
        params, others = {name: mx.array(each) for name, each in params.items()}, copy.deepcopy(others)
        return answer(config, params, *others)

    return call


def test_a_sampler_that_goes_row_by_row_passes(monkeypatch):
    monkeypatch.setattr(small, "COPIES", 120)
    assert small.draw_and_judge(sample_row_by_row, WISHES[0]) == small.FITS


@pytest.mark.parametrize(
    ("wish", "sampling"),
    [
        (WISHES[0], {"top_k": 4}),
        (WISHES[0], {"top_k": 3}),
        (WISHES[0], {"top_p": 0.95}),
        (WISHES[0], {"top_p": 0.8}),
        (WISHES[1], {"top_p": 0.8}),  # leaves one completion after a prompt
    ],
    ids=str,
)
def test_cut_off_tokens_are_named(wish, sampling):
    def answer(config, params, prompts, ends, max_new_tokens, seed):
        settings = SamplingConfig(max_new_tokens, **sampling)
        return generate(config, params, prompts, sampling=settings, eos_token_ids=ends, seed=seed).completions

    assert small.draw_and_judge(answer, wish) == small.CUT_OFF


def test_a_message_that_says_what_was_expected_says_it_once():
    for answer in (lambda *arguments: [[2] * 4] * len(arguments[2]), lambda *arguments: [[6]] * len(arguments[2])):
        assert ", expected" not in check("24.1", answer).text
    assert "`completion_logps` (tried with `weights = config, params" in check("24.2", chapter._own_position).text


def spoiling(answer, by):
    """`answer`, and afterwards every parameter and prompt that it was given is another one."""

    def call(config, params, prompts, *others):
        result = keeping(answer)(config, params, prompts, *others)
        mx.eval([*(result.values() if isinstance(result, dict) else result[0])])
        for value in params.values():
            value *= by
        prompts[0].append(2)
        return result

    return call


@pytest.mark.parametrize(
    ("number", "answer"), [(1, chapter.sample), (2, chapter.completion_logps), (4, chapter.gradient)]
)
def test_an_answer_that_changes_its_arguments_spoils_nothing_for_the_next_one(number, answer):
    assert not check(f"24.{number}", spoiling(answer, 1.5)).passed
    note = check(f"24.{number}", answer)
    assert note.passed, note


def test_the_gradient_for_any_advantages_is_that_of_the_kits_page():
    config, params, prompts, completions, rewards = chapter.Batch("a batch", 0).arguments()
    pushes = np.array(compute_advantages(rewards, minimal.NUM_GENERATIONS)).tolist()
    found = chapter.kits_gradient(config, params, prompts, completions, pushes)
    _, expected = minimal.gradient(config, params, prompts, completions, rewards)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)


# The loop, without training to the end: tests/course/test_exercises.py does that once.


def loop(change=1e-4, task_call="sample", steps=9):
    """A loop that adds a number to all parameters, from the second step on twice that, by its seed."""

    def train(config, params, tokenizer, task, seed):
        getattr(task, task_call)(*([np.random.default_rng(seed), 2] if task_call == "sample" else [2]))
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            moved = change * rng.random()
            params = {name: value + moved for name, value in params.items()}
            yield params

    return train


def warming_up(config, params, tokenizer, task, seed):
    """A loop whose first step has the rate 0."""
    rng = np.random.default_rng(seed)
    for step in range(9):
        moved = 1e-4 * step * rng.random()
        params = {name: value + moved for name, value in params.items()}
        yield params


def in_the_given_dictionary(config, params, tokenizer, task, seed):
    for moved in loop()(config, dict(params), tokenizer, task, seed):
        params.update(moved)
        yield params


def in_the_given_arrays(config, params, tokenizer, task, seed):
    rng = np.random.default_rng(seed)
    for _ in range(9):
        moved = 1e-4 * rng.random()
        for value in params.values():
            value += moved
        yield dict(params)


def from_answers(config, params, tokenizer, task, seed):
    for problem in task.sample(np.random.default_rng(seed), 4):
        params = {name: value * (1 + len(problem.answer) / 1e5) for name, value in params.items()}
        yield params


def by_reward_functions(config, params, tokenizer, task, seed):
    """Problems as keys, in sets and in messages, and the kit's rewards."""
    problems = task.sample(np.random.default_rng(seed), 6)
    assert len({*problems}) == 6
    assert {problem: row for row, problem in enumerate(problems)}[problems[4]] == 4
    assert "prompt=" in repr(problems[0])
    for problem in problems:
        rewards, _ = compute_rewards(task.reward_funcs, [problem] * 200, [*map(str, range(200))])
        assert rewards.sum() == 1
        assert task.is_correct(problem, str(rewards.argmax()))
        params = {name: value + 1e-6 * rewards.argmax() for name, value in params.items()}
        yield params


COUNTER = itertools.count()


class TrainByClass:
    def __init__(self, config, params, tokenizer, task, seed):
        self.steps = loop()(config, params, tokenizer, task, seed)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.steps)


@pytest.mark.parametrize(
    ("train", "verdict"),
    [
        (loop(), training.STEPS_WELL),
        (TrainByClass, training.STEPS_WELL),
        (warming_up, training.STEPS_WELL),
        (by_reward_functions, training.STEPS_WELL),
        (in_the_given_dictionary, training.CHANGES),
        (in_the_given_arrays, training.CHANGES),
        (from_answers, training.ANSWERS),
        (loop(change=0.0), training.UNCHANGED),
        (loop(steps=2), training.ENDS_AT_ONCE),
        (loop(task_call="held_out"), training.PEEKS),
        (loop(change=float("inf")), "parameters that are not finite"),
        (lambda *arguments: [each for each in loop()(*arguments)], "a list, where"),
        (lambda *arguments: None, "None, where"),
        (lambda *arguments: loop()(*arguments[:-1], 3), training.ONE_SEED),
        (lambda *arguments: loop()(*arguments[:-1], next(COUNTER)), training.NOT_REPEATED),
        (lambda *arguments: ({"a": each} for each in loop()(*arguments)), "names are not those"),
        (lambda *arguments: (each["final_norm.weight"] for each in loop()(*arguments)), "a array"),
    ],
)
def test_the_first_steps_of_a_loop(train, verdict):
    assert verdict in training.train_and_judge(train, training.FIRST_STEPS)


few_problems = functools.partial(training.held_out_accuracy, problems=200)


def test_a_loop_that_learns_nothing_is_told_its_accuracy(capsys, monkeypatch):
    monkeypatch.setattr(training, "held_out_accuracy", few_problems)
    assert "of the held-out sums after 9 steps" in training._two_minutes(loop(1e-6), print)
    assert "before training: " in capsys.readouterr().out
    assert training._two_minutes(loop(0.3), print) == training.FALLS
    monkeypatch.setattr(training, "BUDGET", 0.0)
    assert "after 0 steps and 0 seconds" in training._two_minutes(loop(1e-6), print)


def test_what_a_failed_loop_prints_is_of_its_own_run_and_its_message_names_bias_correction(capsys, monkeypatch):
    monkeypatch.setattr(training, "held_out_accuracy", few_problems)
    monkeypatch.setattr(training, "_other_rewards", lambda train: None)
    note = check("24.5", keeping(loop(0.3)))
    assert capsys.readouterr().out.count("before training: ") == 1
    assert "without `bias_correction=True`" in note.text
    assert "bias_correction=False" in chapter.TRAIN.hints[1]


def test_a_loop_that_passes_one_exam_and_not_three_goes_on(capsys, monkeypatch):
    monkeypatch.setattr(training, "held_out_accuracy", lambda params, draws=1: 0.6 if draws == 1 else 0.4)
    assert "60.0% of the held-out sums after 9 steps" in training._two_minutes(loop(), print)
    assert "40.0% is the mean of all three, so the run continues" in capsys.readouterr().out


# Learning from rewards, and from groups.


def rewarded(task, problem, text):
    return float(task.is_correct(problem, text))


def draw(config, params, tokenizer, task, rng, groups=(16, 8), judge=rewarded, order=lambda problems, rng: problems):
    """(prompts, completions, rewards) of a batch."""
    problems = order([each for each in task.sample(rng, groups[0]) for _ in range(groups[1])], rng)
    prompts = [tokenizer.encode(each.prompt) for each in problems]
    drawn = chapter.sample(config, params, prompts, tokenizer.eos_token_ids, 4, int(rng.integers(2**31)))
    return prompts, drawn, [judge(task, *pair) for pair in zip(problems, map(tokenizer.decode, drawn), strict=True)]


def grpo(groups=(16, 8), optimizer=None, pushes=chapter.advantages, **how):
    """A loop of GRPO in which one part is another one."""

    def train(config, params, tokenizer, task, seed):
        rng = np.random.default_rng(seed)
        adam = (optimizer or functools.partial(optim.AdamW, 1e-3, bias_correction=True))()
        while True:
            prompts, drawn, rewards = draw(config, params, tokenizer, task, rng, groups, **how)
            grads = chapter.gradient(config, params, prompts, drawn, [*map(float, pushes(rewards, groups[1]))])
            params = adam.apply_gradients(grads, params)
            yield params

    return train


def until_something_differs(config, params, tokenizer, task, seed):
    """DAPO's dynamic sampling: it draws until enough groups have different rewards, and drops the others."""
    rng = np.random.default_rng(seed)
    adam = optim.Adam(1e-3, bias_correction=True)
    while True:
        kept = []
        while len(kept) < 64:
            prompts, drawn, rewards = draw(config, params, tokenizer, task, rng)
            rows = zip(prompts, drawn, minus_the_mean(rewards, 8), strict=True)
            kept += [row for row in rows if row[2]]
        params = adam.apply_gradients(chapter.gradient(config, params, *map(list, zip(*kept, strict=True))), params)
        yield params


def by_the_kits_page(config, params, tokenizer, task, seed):
    """`minimal.py`, with its groups of 8 and the task's reward functions."""
    optimizer = optim.AdamW(1e-3, betas=[0.9, 0.999], weight_decay=0.0, bias_correction=True)
    for step in range(50):
        prompts, completions, rewards = minimal.sample(config, params, tokenizer, task, step, seed)
        _, grads = minimal.gradient(config, params, prompts, completions, rewards)
        params = optimizer.apply_gradients(optim.clip_grad_norm(grads, 1.0)[0], params)
        yield params


class AdamOfNumpy:
    """Adam in NumPy, a parameter at a time."""

    def __init__(self, rate=1e-3):
        self.rate, self.step, self.means, self.squares = rate, 0, {}, {}

    def apply_gradients(self, grads, params):
        self.step, found = self.step + 1, {}
        for name, grad in grads.items():
            grad = np.array(grad)
            self.means[name] = 0.9 * self.means.get(name, 0.0) + 0.1 * grad
            self.squares[name] = 0.999 * self.squares.get(name, 0.0) + 0.001 * grad**2
            mean, square = self.means[name] / (1 - 0.9**self.step), self.squares[name] / (1 - 0.999**self.step)
            found[name] = mx.array(np.array(params[name]) - self.rate * mean / (np.sqrt(square) + 1e-8))
        return found


class AdamOfTorch:
    """torch's AdamW with its weight decay of 0.01."""

    optimizer = None

    def apply_gradients(self, grads, params):
        if self.optimizer is None:
            self.weights = {name: torch.tensor(np.array(each)) for name, each in params.items()}
            self.optimizer = torch.optim.AdamW([*self.weights.values()], lr=1e-3)
        for name, each in self.weights.items():
            each.grad = torch.tensor(np.array(grads[name]))
        self.optimizer.step()
        return {name: mx.array(each.numpy()) for name, each in self.weights.items()}


@pytest.mark.parametrize(
    "train",
    [
        grpo(),
        grpo(groups=(4, 32), pushes=RULES["leave-one-out"]),
        grpo(groups=(12, 10), optimizer=functools.partial(optim.SGD, 0.1), pushes=minus_the_mean),
        grpo(optimizer=AdamOfNumpy, pushes=RULES["the sign"]),
        grpo(optimizer=AdamOfTorch),
        grpo(judge=lambda task, problem, text: compute_rewards(task.reward_funcs, [problem], [text])[0][0]),
        until_something_differs,
        by_the_kits_page,
    ],
    ids=["plain", "leave one out", "SGD", "NumPy", "torch", "reward_funcs", "dynamic", "minimal"],
)
def test_loops_in_other_styles_learn_from_rewards(train):
    assert training.train_and_judge(train, training.OTHER_REWARDS) == training.FOLLOWS


def imitating_right_sums(config, params, tokenizer, task, seed):
    """Supervised learning by Adam on sums that are not the policy's, where the task says that they are right."""
    rng, adam = np.random.default_rng(seed), optim.Adam(1e-3, bias_correction=True)
    for _ in range(200):
        sums = [(problem, str(problem.data["a"] + problem.data["b"])) for problem in task.sample(rng, 64)]
        right = [(problem.prompt, text) for problem, text in sums if task.is_correct(problem, text)]
        if right:
            prompts, answers = (list(map(tokenizer.encode, each)) for each in zip(*right, strict=True))
            answers = [[*ids, 1][:4] for ids in answers]
            params = adam.apply_gradients(
                chapter.gradient(config, params, prompts, answers, [1.0] * len(right)), params
            )
        yield params


def where_a_group_differs(config, params, tokenizer, task, seed):
    """It imitates the sums of the questions with right and wrong answers."""
    adam, rng = optim.Adam(1e-3, bias_correction=True), np.random.default_rng(seed)
    while True:
        prompts, _, rewards = draw(config, params, tokenizer, task, rng, (32, 4))
        mixed = [prompts[row] for row in range(0, 128, 4) if 0 < sum(rewards[row : row + 4]) < 4]
        sums = [[*tokenizer.encode(str(eval(tokenizer.decode(prompt).strip("=")))), 1] for prompt in mixed]
        if mixed:
            grads = chapter.gradient(config, params, mixed, sums, [1.0] * len(mixed))
            params = adam.apply_gradients(grads, params)
        yield params


def shuffled(problems, rng):
    return [problems[row] for row in rng.permutation(len(problems))]


def rewards_of_its_own(task, problem, text):
    return float(text == str(eval(problem.prompt.strip("="))))


def rewards_of_another_task(task, problem, text):
    return float(training.task().is_correct(problem, text))


def divided_by_nothing(rewards, size):
    groups = np.reshape(rewards, (-1, size))
    spread = groups.std(axis=1, keepdims=True) + (1e-9 if np.ptp(groups, axis=1).any() else 0)
    with np.errstate(all="ignore"):
        return ((groups - groups.mean(axis=1, keepdims=True)) / spread).ravel()


def filtered_without_a_guard(config, params, tokenizer, task, seed):
    """It leaves out the rows without an advantage, and fails where none is left."""
    rng = np.random.default_rng(seed)
    for _ in range(5):
        prompts, drawn, rewards = draw(config, params, tokenizer, task, rng, (8, 8))
        rows = [row for row in zip(prompts, drawn, minus_the_mean(rewards, 8), strict=True) if row[2]]
        grads = chapter.gradient(config, params, *map(list, zip(*rows or [([], [], [])], strict=True)))
        params = {name: value - 0.1 * grads[name] for name, value in params.items()}
        yield params


@pytest.mark.parametrize(
    ("train", "verdict"),
    [
        (imitating_right_sums, training.NO_BASELINE),
        (where_a_group_differs, "did not follow another reward"),
        (grpo(judge=rewards_of_its_own), training.IMITATES),
        (grpo(judge=rewards_of_another_task), training.IMITATES),
        (grpo(order=shuffled), training.TORN),
        (grpo(order=lambda problems, rng: [*problems[1:], problems[0]]), training.TORN),
        (grpo(pushes=lambda rewards, size: minus_the_mean(rewards, len(rewards))), training.TORN),
        (filtered_without_a_guard, "skip the update, and yield the same parameters once more"),
        (grpo(groups=(4, 8), pushes=divided_by_nothing), "not finite after a step in which all answers"),
    ],
    ids=[
        "sums that are right", "sums where a group differs", "own rewards", "another task", "shuffled", "one row off",
        "batch mean", "no row left", "divided by 0",
    ],
)  # fmt: skip
def test_loops_that_learn_from_something_else_are_refused(train, verdict, monkeypatch):
    monkeypatch.setattr(training, "MOST_STEPS", 20)
    note = chapter.TRAIN.examine(train)
    assert not note
    assert note.message.startswith("In some steps with other rewards, `train` gave ")
    assert verdict in note.message
    [advice] = [each.message for each in chapter.TRAIN.mistakes if each.name == chapter.MISTAKEN.get(verdict)] or [""]
    assert advice in note.message


def test_every_verdict_on_a_loop_has_its_mistake():
    names = {each.name for each in chapter.TRAIN.mistakes}
    assert {*chapter.MISTAKEN.values(), "not a generator"} == names


def test_a_loop_is_judged_anew_when_it_is_checked_again():
    """A loop that reads another function of its notebook, which has been mended meanwhile."""
    parts = {"pushes": lambda rewards, size: rewards}
    train = grpo(pushes=lambda rewards, size: parts["pushes"](rewards, size))
    for stage in (training.FIRST_STEPS, training.OTHER_REWARDS):
        found = training.train_and_judge(train, stage)
    assert found == training.NO_BASELINE
    parts["pushes"] = minus_the_mean
    for stage in (training.FIRST_STEPS, training.OTHER_REWARDS):
        found = training.train_and_judge(train, stage)
    assert found == training.FOLLOWS


def test_the_loss_of_the_solution_divides_by_all_tokens(monkeypatch):
    """With rows left out or not, the first step has the same gradient."""
    seen = []
    monkeypatch.setattr(optim, "clip_grad_norm", lambda grads, most: (seen.append(grads), (grads, 0.0))[1])
    config, start = training.model()
    problems, rows = Addition(), []
    monkeypatch.setattr(chapter, "sample", lambda *arguments: rows.append(sampler(*arguments)) or rows[-1])
    next(chapter.train(config, start, load_tokenizer(TINY), problems, 0))
    rng, tokenizer = np.random.default_rng(0), load_tokenizer(TINY)
    drawn = [each for each in problems.sample(rng, len(rows[0]) // 8) for _ in range(8)]
    texts = map(tokenizer.decode, rows[0])
    rewards = [float(problems.is_correct(*pair)) for pair in zip(drawn, texts, strict=True)]
    prompts = [tokenizer.encode(each.prompt) for each in drawn]
    whole = chapter.gradient(config, start, prompts, rows[0], chapter.advantages(rewards, 8))
    for name, grad in whole.items():
        np.testing.assert_allclose(seen[0][name], grad, atol=1e-4 * mx.abs(grad).max().item() + 1e-6)
    assert "multiply what it returns by" in chapter.TRAIN.hints[2]


sampler = chapter.sample


# What the chapter says, and its pictures.


def test_what_was_measured_supports_what_the_chapter_claims():
    for exercise, name in ((chapter.LOSS, "loss"), (chapter.BASELINE, "baseline"), (chapter.TASK, "task")):
        claim, report = exercise.solution
        assert report == chapter.MEASURED[name]
        assert claim == supported(report)
    assert supported(chapter.MEASURED["baseline, longer"]) == "better"


def test_the_notes_tell_what_the_example_printed():
    printed = "".join(each.text for each in CELLS["paired"].outputs)
    low, high = re.search(r"95% interval (\S+) to (\S+): no difference was shown", printed).groups()
    assert f"from {low} to {high} percentage points" in CELLS["paired-notes"].source
    assert f"from {low} to {high} points" in CELLS["claims-notes"].source


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("given", "attention_mask="),  # explained before the first exercise
        ("rules", "delete the stub there and keep the `check` line"),
        ("ex1-use", "[[*map(int, each)] for each in completions]"),  # completions of NumPy's integers
        ("paired-notes", "G/(G-1)"),  # a constant factor is explained before anybody measures it
        ("ex5-notes", "multiplies the gradient by a constant"),
    ],
)
def test_the_notebook_says(id, words):
    assert words in CELLS[id].source


def test_no_cell_shows_a_loop_that_learns_and_the_blank_one_is_blank():
    """The loop is the answer to 24.5."""
    assert CELLS["blank"].source == "# Your file begins here."
    for cell in CELLS.values():
        if cell.cell_type == "code":
            assert "apply_gradients" not in cell.source
            assert "AdamW(" not in cell.source


def test_the_pictures_have_words():
    chart, words = draw_step({name: f"<{number}>" for number, name in enumerate(BOXES)})
    svg = chart.svg(words)
    ElementTree.fromstring(svg)  # browsers show nothing of an image that is not XML
    for number, name in enumerate(BOXES):
        assert f"{name} <{number}>" in words
        assert f">{name}<" in svg


WIGGLE = [0.02, -0.01, 0.015, -0.02, 0.005, 0.01, -0.015, 0.0]


def even(seed):
    return moved(0.1 + 0.001 * seed)


def higher(seed):
    return moved(0.2 + 0.002 * seed)


def wiggled(seed):
    return moved(0.1 + 0.001 * seed + WIGGLE[seed])


@pytest.mark.parametrize(
    ("claim", "versions", "seeds"),
    [
        ("no difference", (even, wiggled), range(5)),
        ("better", (even, higher), (5, 6, 7, 8, 9)),
        ("worse", (higher, even), [*range(7)]),
        ("better", (functools.cache(even), functools.cache(higher)), np.arange(5)),
    ],
)
def test_comparisons_of_ones_own_pass(claim, versions, seeds, quick_exam, capsys):
    report = paired(*versions, seeds)
    note = check("24.6", [claim, report])
    assert note.passed, note
    assert "trains both versions once more" in capsys.readouterr().out
    assert in_words(report) in note.text


def test_one_comparison_passes_one_exercise(quick_exam):
    report = paired(even, higher)
    assert check("24.6", ("better", report)).passed
    assert check("24.6", ("better", report)).passed
    for same in (report, paired(even, higher, range(1, 6)), paired(higher, even)):
        assert "the comparison with which 24.6 passed" in check("24.7", (supported(same), same)).text
    assert check("24.7", ("no difference", paired(even, wiggled))).passed


def test_the_example_passes_no_exercise_however_it_is_run(quick_exam):
    example = paired(even, higher, example=True)
    again = paired(even, higher, range(7))
    for report in (example, again, paired(higher, even)):
        assert "the comparison of the example" in check("24.7", (supported(report), report)).text


def by_luck(seed, rng=np.random.default_rng(0)):  # noqa: B008
    return moved(0.2 + 0.01 * rng.random())


def for_five_seeds(seed):
    return moved([0.1, 0.101, 0.102, 0.103, 0.104][seed])


def for_all_seeds(seed):
    return moved(0.1)


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ((even, by_luck), "returned other parameters than for the report"),
        ((for_five_seeds, higher), "it raised IndexError"),
        ((for_all_seeds, higher), "Two seeds gave exactly the same parameters"),
        ((even, for_all_seeds), "Two seeds gave exactly the same parameters"),
        ((lambda seed: moved(-0.02 + 0.001 * seed), lambda seed: moved(0.001 * seed)), "Neither version learned"),
        ((even, even), "exactly the same numbers with every seed"),
    ],
)
def test_comparisons_that_no_training_can_repeat_are_refused(versions, words, quick_exam):
    report = paired(*versions)
    note = check("24.6", (supported(report), report))
    assert not note.passed
    assert words in note.text, note.text


def test_numbers_changed_by_hand_are_refused(quick_exam):
    report = paired(even, wiggled)
    copies = [dict(report), {**report}, copy.deepcopy(dict(report))]
    report["after"][0] = 0.9
    for each in (report, *copies):
        assert "do not come from `paired`" in check("24.6", ("no difference", each)).text


def test_a_report_is_kept_as_plain_numbers(quick_exam):
    report = paired(even, higher)
    name, source = source_of(("better", report))
    space = {}
    exec(source, space)
    assert space[name] == ("better", dict(report))


def test_the_parts_of_the_short_run_are_its_arguments():
    def in_numpy(*arguments):
        return [np.array(each) for each in chapter.sample(*arguments)]

    found = [
        short_run(3, *parts, steps=1)
        for parts in (
            (chapter.sample, chapter.advantages, chapter.gradient),
            (in_numpy, minus_the_mean, gradient_in_numpy),
        )
    ]
    assert training.distance(*found) < 0.1 * training.distance(found[0], training.model()[1])


def test_a_short_run_of_two_updates_is_one_of_one_update_if_it_takes_one():
    def once(config, params, prompts, completions, pushes, update, *_):
        return update(chapter.gradient(config, params, prompts, completions, pushes), params)

    parts = chapter.sample, chapter.advantages, chapter.gradient
    plain, one, two = (short_run(3, *parts, steps=2, two_updates=each) for each in (None, once, chapter.two_updates))
    way = training.distance(plain, training.model()[1])
    assert training.distance(one, plain) < 1e-3 * way
    assert training.distance(two, plain) > 0.1 * way


def gradient_in_numpy(*arguments):
    return {name: np.array(each) for name, each in chapter.gradient(*arguments).items()}


def test_a_hint_explains_that_adam_cancels_a_constant_factor():
    assert "Adam cancels the factor" in chapter.BASELINE.hints[0]


def test_the_comparison_of_the_chapter_does_not_depend_on_the_readers_rule():
    cell = CELLS["paired"]
    assert "advantages=divided)" in cell.source
    assert "advantages=not_divided)" in cell.source
    assert "example=True" in cell.source
    scope = {"np": np, "paired": lambda before, after, seeds, example: {"before": 0, "after": 1}}
    exec(cell.source, scope)
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    np.testing.assert_allclose(scope["divided"](rewards, 4), chapter.advantages(rewards, 4))
    np.testing.assert_allclose(scope["not_divided"](rewards, 4), minus_the_mean(rewards, 4))


KITS = {part.id: find(part.id).solution for part in PARTS}


def sampled_without_a_seed(config, params, prompts, ends, max_new_tokens, seed):
    """A style of one's own, with a < sign."""
    ids = mx.array(prompts)
    while ids.shape[1] < len(prompts[0]) + max_new_tokens:
        logits = qwen3_forward(config, params, ids)[:, -1]
        ids = mx.concatenate([ids, mx.random.categorical(logits)[:, None]], axis=1)
    return ids[:, len(prompts[0]) :].tolist()


def test_the_annotated_file_shows_no_solution_before_an_answer_has_passed():
    page = Annotated(KITS)
    for shown in (repr(page), page._repr_html_()):
        assert all(f"Pass {part.id}, and your answer appears here." in shown for part in PARTS)
        assert "def completion_logps" not in shown
        assert "def train(max_steps" in shown  # the kit's page is there
        assert "A style of one" not in shown
    stored = str(CELLS["side"].outputs)
    assert "Pass 24.10, and your answer appears here." in stored
    assert "def completion_logps" not in stored


def test_the_annotated_file_marks_what_one_page_alone_does():
    shown = repr(Annotated({**KITS, "24.1": sampled_without_a_seed}))
    assert "while ids.shape[1] < len(prompts[0]) + max_new_tokens:  <6>" in shown
    assert "<1> a forward pass for each token: your line 5; the kit: inside generate" in shown
    lines = Path(minimal.__file__).read_text().splitlines()
    seed = next(number for number, line in enumerate(lines, 1) if "SeedSequence(" in line)
    other = next(number for number, line in enumerate(lines, 1) if "default_rng(" in line)
    assert f"<7> the seed: no such line of yours was found; the kit's lines {seed}, {other}" in shown
    assert "<3> a mask" in shown  # which it lacks
    assert "Pass 24.2, and your answer appears here." in shown
    html = Annotated({**KITS, "24.1": sampled_without_a_seed})._repr_html_()
    ElementTree.fromstring(html.replace("&nbsp;", " "))
    assert "ids.shape[1] &lt; len(prompts[0])" in html


def test_every_point_of_a_part_is_found_where_it_is_done():
    """In the kit's solution, on the kit's page, or, as the point says, in a function of the kit's page."""
    for part in PARTS:
        copied = types.FunctionType(KITS[part.id].__code__, vars(chapter), part.id)
        shown = repr(Annotated({**KITS, part.id: functools.wraps(KITS[part.id])(copied)}))
        for number, point in enumerate(part.points, 1):
            assert f"<{number}> {point.words}: " in shown
            assert not point.inside or f"{point.inside}(" in inspect.getsource(minimal)


def keep_as_a_reader(folder, ids, edits=()):
    """Keep the solutions of some exercises as if a reader had typed all of them into one notebook."""
    parts = [inspect.getsource(KITS[part.id]) for part in PARTS]
    imports = (
        "import mlx.core as mx\nimport mlx.optimizers as optim\nimport numpy as np\n"
        "from mlx_grpo_kit.qwen3 import qwen3_forward\n"
    )
    source = "\n\n".join([imports, *parts])
    for before, after in edits:
        assert before in source
        source = source.replace(before, after)
    file, module = f"<reader {len(linecache.cache)}>", types.ModuleType("__main__")
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), vars(module))
    for id in ids:
        keep(folder, id, vars(module)[find(id).solution.__name__])


def run_alone(file, *arguments):
    return subprocess.run(
        [sys.executable, file.name, *arguments], capture_output=True, text=True, cwd=file.parent, timeout=300
    )


ALL_FIVE = [f"24.{number}" for number in range(1, 6)]


def test_the_readers_file_trains_in_an_empty_folder_and_saves_its_curve(tmp_path):
    keep_as_a_reader(tmp_path, ALL_FIVE)
    (tmp_path / "empty").mkdir()
    file = my_code(tmp_path / "empty" / "my_grpo.py", "24")
    text = file.read_text()
    assert text.count("def sample(") == text.count("def gradient(") == 1
    assert "chapter_24.exercises" not in text
    ran = run_alone(file, "--steps", "2", "--seed", "3")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("before training: 4")
    assert "step    2" in ran.stdout
    rows = (file.parent / "my_grpo.csv").read_text().split()
    assert [row.split(",")[0] for row in rows] == ["step", "0", "2"]
    assert (file.parent / "my_grpo.png").read_bytes().startswith(b"\x89PNG")


def test_the_readers_file_takes_two_updates_per_batch_if_the_reader_can(tmp_path):
    keep_as_a_reader(tmp_path, [*ALL_FIVE, "24.10"], [("kl = mx.exp(", "print('mine'); kl = mx.exp(")])
    file = my_code(tmp_path / "my_grpo.py", "24")
    assert file.read_text().count("def in_two_updates(") == 1
    assert "chapter_24.program" not in file.read_text()
    for arguments, updates in (((), 2), (("--updates", "1"), 1)):
        ran = run_alone(file, "--steps", "1", *arguments)
        assert ran.returncode == 0, ran.stderr
        assert f"updates per batch: {updates}" in ran.stdout
        assert ran.stdout.count("mine") == (2 if updates == 2 else 0)


def test_a_file_without_a_loop_says_which_exercise_it_lacks(tmp_path, capsys):
    keep_as_a_reader(tmp_path, ALL_FIVE[:4])
    ran = run_alone(my_code(tmp_path / "my_grpo.py", "24"))
    assert ran.returncode == 1
    for words in (ran.stderr, capsys.readouterr().out):
        assert "my_grpo.py cannot run yet: pass 24.5, then call my_code again." in words


def test_a_file_whose_loop_yields_nothing_says_so(tmp_path):
    keep_as_a_reader(
        tmp_path,
        ALL_FIVE,
        [("steps, num_questions, group_size, peak = 240", "steps, num_questions, group_size, peak = 0")],
    )
    ran = run_alone(my_code(tmp_path / "my_grpo.py", "24"))
    assert ran.returncode == 1
    assert "`train` has to yield the parameters after each step, and it yielded nothing." in ran.stderr


def test_the_file_of_one_chapter_has_its_answers_alone(tmp_path):
    keep_as_a_reader(tmp_path, ALL_FIVE[:3])
    with pytest.raises(ValueError, match="There are no answers to chapter 23 yet"):
        my_code(tmp_path / "other.py", "23")
    with pytest.raises(LookupError, match="chapter '99' has no exercises"):
        my_code(tmp_path / "other.py", "99")
    assert "__main__" not in my_code(tmp_path / "all.py").read_text()


def test_the_numbers_of_trl_are_those_that_trl_computes_now():
    (case,), *others = chapter.TWO_UPDATES.cases
    assert case.by_trl
    assert not any(each.by_trl for (each,) in others)
    (old, between, _, reference), mask = case.logps()
    mask, pushes = np.array(mask), np.array(case.batch()[2], dtype=np.float32)
    old, between, reference = (np.where(mask, each, 0).astype(np.float32) for each in (old, between, reference))
    how = {"epsilon": case.epsilon, "beta": case.beta, "loss_type": "dapo", "ref_logps": reference}
    for update, logps in enumerate((old, between)):
        loss, derivatives, metrics = TRL().loss(logps, old, pushes, mask, **how)
        assert twice.TRL["losses"][update] == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(twice.TRL["derivatives"][update], derivatives, atol=2e-6)
        assert (metrics["clip_ratio/region_mean"] > 0.3) == (update == 1)
        assert metrics["kl"] > 0.1


def test_the_kits_two_gradients_are_those_of_trl():
    (case,), *_ = chapter.TWO_UPDATES.cases
    by_the_kit = twice.Reused(case.words, case.seed, case.epsilon, case.beta)
    for name, theirs in case.right().items():
        np.testing.assert_allclose(by_the_kit.right()[name], theirs, atol=1e-5 * mx.abs(theirs).max().item())


def test_every_batch_of_two_updates_has_all_kinds_of_tokens():
    """Clipped and held by the minimum, above and below, and none so near a bound that rounding decides."""
    apart = 0
    for (case,) in chapter.TWO_UPDATES.cases:
        (old, between, *_), mask = case.logps()
        kept = np.array(mask) == 1
        ratio = np.exp(np.array(between) - np.array(old))
        pushes = np.array(case.batch()[2])[:, None]
        for far in (ratio > 1 + case.epsilon, ratio < 1 - case.epsilon):
            assert (far & (pushes > 0) & kept).any()
            assert (far & (pushes < 0) & kept).any()
        assert np.abs(np.abs(ratio[kept] - 1) - case.epsilon).min() > 5e-3
        down = ratio[(pushes < 0) & kept]
        between = (down > 1 - case.epsilon) & (down < 1 / (1 + case.epsilon))
        apart += bool(abs(pushes.sum()) > 0.5 and between.any() and (down > 3).any())
    assert apart == 1  # of a mean subtracted, of another lower bound, and of a bound for negative advantages


def test_a_run_that_ends_near_the_mark_is_told_to_let_the_rate_fall(monkeypatch):
    monkeypatch.setattr(training, "_other_rewards", lambda train: None)
    monkeypatch.setattr(training, "WANTED", 0.85)
    monkeypatch.setattr(training, "held_out_accuracy", lambda params, draws=1: 0.84)
    text = check("24.5", keeping(loop())).text
    assert "84.0% of the held-out sums" in text
    assert "let it fall to 0 over the run" in text
    assert 'hint("24.5", 3)' in text
    assert "there is time left" in text
    monkeypatch.setattr(training, "held_out_accuracy", lambda params, draws=1: 0.6)
    assert "let it fall" not in check("24.5", keeping(loop())).text
    monkeypatch.setattr(training, "held_out_accuracy", lambda params, draws=1: 0.84)
    monkeypatch.setattr(training, "BUDGET", 0.0)
    assert "the time ran out before its last step" in check("24.5", keeping(loop())).text


def test_the_numbers_of_the_three_faults_are_those_of_transformers():
    _, params, reference, prompts, tokens, mask, rewards = faulty.batch()
    ids, picked = torch.tensor(np.array(mx.concatenate([prompts, tokens], axis=1))).long(), np.array(mask) == 1
    tables = []
    for weights in (params, reference):
        model = Qwen3ForCausalLM.from_pretrained(TINY).eval()
        with torch.no_grad():
            model.model.norm.weight.copy_(torch.tensor(np.array(weights["final_norm.weight"])))
            tables.append(model(ids).logits[:, prompts.shape[1] - 1 : -1].double())

    def of_the_tokens(logits):
        return logits.log_softmax(-1).gather(-1, ids[:, prompts.shape[1] :, None])[..., 0].numpy()

    policy, theirs = map(of_the_tokens, tables)
    filtered = tables[0] / 1.4
    filtered[filtered < filtered.topk(5, -1).values[..., -1:]] = -torch.inf
    apart = theirs - policy
    kept = np.repeat(np.ptp(np.reshape(rewards, (-1, 4)), axis=1) > 0, 4)
    numbers = (
        np.abs(of_the_tokens(filtered) - policy)[picked].max(),
        (np.exp(apart) - apart - 1)[picked].mean(),
        picked.sum() / picked[kept].sum(),
    )
    np.testing.assert_allclose(numbers, [each.number for each in chapter.THREE], rtol=1e-3)
    by_temperature_alone = np.abs(of_the_tokens(tables[0] / 1.4) - policy)[picked].max()
    assert by_temperature_alone < 0.95 * numbers[0]


def test_the_three_programs_run_and_have_their_faults():
    config, params, reference, prompts, tokens, mask, rewards = faulty.batch()
    pushes = mx.array(compute_advantages(rewards, 4))
    rows, texts = (
        prompts.tolist(),
        [row[: int(count)] for row, count in zip(tokens.tolist(), mask.sum(axis=1).tolist(), strict=True)],
    )
    right = chapter.kits_gradient(config, params, rows, texts, pushes)
    for beta in (0.0, 5.0):
        found = faulty.with_a_kl(config, params, reference, prompts, tokens, mask, pushes, beta)
        assert training.distance(found, right) < 1e-2  # whatever beta is
    longer = faulty.without_idle_rows(config, params, prompts, tokens, mask, rewards, 4)
    name = "final_norm.weight"
    np.testing.assert_allclose(longer[name], right[name] * chapter.THREE[2].number, atol=1e-5)
    drawn = faulty.draw_and_score(config, params, rows, 4, lambda tokens: pushes, mx.random.key(0))
    assert all(mx.isfinite(each).all() for each in drawn.values())


def test_every_line_that_a_message_names_has_what_the_message_says():
    words = {(0, 5): "/ 1.4", (0, 6): "[:, -5:-4]", (0, 8): "categorical", (0, 12): "mask", (0, 16): "logsumexp"}
    words |= {(1, 8): "take_along_axis", (1, 11): "logsumexp", (1, 17): "normalized(logits_of(", (1, 18): "kl ="}
    words |= {(2, 4): "ddof=1", (2, 7): "if push", (2, 11): "mask[kept]", (2, 20): "/ mask.sum()"}
    for (program, line), expected in words.items():
        assert expected in inspect.getsource(faulty.PROGRAMS[program]).splitlines()[line - 1]
        assert f"{line:2}  " in faulty.numbered(faulty.PROGRAMS[program])
    assert all(20 <= len(inspect.getsource(each).splitlines()) <= 30 for each in faulty.PROGRAMS)
