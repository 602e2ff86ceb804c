"""Chapter 18 against torch and transformers, answers in other styles, and the claims of its prose."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
import torch
from transformers import Qwen3ForCausalLM

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.chapters.chapter_13.exercises import left_pad
from mlx_grpo_kit.course.chapters.chapter_18 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_18.toys import Coins, descend
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "18_grpo_training.ipynb"

# Ground truth.


def test_log_probabilities_of_a_batch_are_those_of_transformers():
    """Rows padded on both sides, compared with each row alone."""
    config, params = load_pretrained(TINY)
    tokenizer = load_tokenizer(TINY)
    model = Qwen3ForCausalLM.from_pretrained(TINY).eval()
    prompts = [tokenizer.encode(text) for text in ("8+5=", "27+38=", "1+2=")]
    completions = [[*tokenizer.encode("13"), 1], tokenizer.encode("6655"), [1]]
    ids, mask, counts = chapter.make_batch(prompts, completions)
    logits = qwen3_forward(config, params, ids, attention_mask=mask)[:, ids.shape[1] - counts.shape[1] - 1 : -1]
    logps = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        with torch.no_grad():
            theirs = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        for place, token in enumerate(completion):
            assert logps[row, place, token] == pytest.approx(theirs[place, token].item(), abs=2e-5)
        assert np.array(counts)[row].tolist() == [place < len(completion) for place in range(4)]


def test_several_updates_equal_torchs():
    coins, logits = Coins([0, 1, 1, 0], [1.0, -1.0, 0.5, -0.5]), [0.5, -0.25]
    params, losses = chapter.learn({"logits": mx.array(logits)}, coins.logps_of, coins.loss_of, descend, 4)
    x = torch.tensor(logits, requires_grad=True)
    advantages = torch.tensor(coins.advantages)
    old, theirs = None, []
    for _ in range(4):
        logps = torch.log_softmax(x, 0)[coins.tokens]
        old = logps.detach() if old is None else old
        ratio = (logps - old).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clip(0.8, 1.2) * advantages).mean()
        (grad,) = torch.autograd.grad(loss, x)
        theirs.append(loss.item())
        x = (x - 0.75 * grad).detach().requires_grad_()
    np.testing.assert_allclose(losses, theirs, atol=1e-6)
    np.testing.assert_allclose(np.array(params["logits"]), x.detach().numpy(), atol=1e-6)
    assert len(set(np.round(losses, 4))) > 2, "updates that do something"


def test_the_learning_rate_is_the_kits():
    config, params = load_pretrained(TINY)
    trainer = GRPOTrainer(
        config,
        params,
        load_tokenizer(TINY),
        Addition(),
        GRPOConfig(learning_rate=0.5, lr_scheduler_type="linear", warmup_steps=3),
    )
    for trainer.step in range(10):
        assert trainer.learning_rate(10) == pytest.approx(chapter.learning_rate(trainer.step, 10, 0.5, 3))


def test_the_claims_of_the_prose_hold():
    assert 0 < np.std([0.1, 0.1, 0.1]) < 2e-17  # 18.3
    assert [chapter.learning_rate(step, 10, 1.0, 3) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    # AdamW keeps two numbers beside every parameter (18.9), and a checkpoint three numbers in all.
    config, params = load_pretrained(TINY)
    trainer = GRPOTrainer(config, params, load_tokenizer(TINY), Addition())
    assert trainer.snapshot().nbytes == 3 * sum(value.nbytes for value in params.values())


def cell_of(id):
    [cell] = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.id == f"18-{id}"]
    return cell


def stored_text(id):
    return "\n".join(each.get("text") or each.data.get("text/plain", "") for each in cell_of(id).outputs)


def test_the_text_describes_the_stored_run():
    shown, told = stored_text("run-exam"), cell_of("run-notes").source
    fifths = re.search(r"mean of each fifth of the run: (.*);", shown)[1].split()
    assert f"in the first fifth of the run and in the last, {float(fifths[0]):.1f} and {float(fifths[-1]):.1f}" in told
    assert max(map(float, fifths)) < 1.3 * min(map(float, fifths))
    [(shortened, steps)] = re.findall(r"shortened to 1 in (\d+) of (\d+) steps", shown)
    assert f"in {shortened} of the {steps} steps" in told
    assert round(10 * int(shortened) / int(steps)) == 7  # "seven of ten steps"
    taught, rows = map(int, re.match(r".*?(\d+) of (\d+) rows teach", stored_text("ex3-use"), re.DOTALL).groups())
    assert taught < rows == 128, "a batch in which the exercise makes a difference"


# Answers in other styles.


def questions_by_numpy(sample, seed, step, num_questions, group_size):
    rng = np.random.Generator(np.random.PCG64([seed, step]))
    return [*np.repeat(np.array(sample(rng, num_questions), dtype=object), group_size)]


def questions_one_by_one(sample, seed, step, num_questions, group_size):
    rng = np.random.default_rng([seed, step])
    return [each for _ in range(num_questions) for each in sample(rng, 1) * group_size]


def questions_by_seed_sequence(sample, seed, step, num_questions, group_size):
    drawn = sample(np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(step,))), num_questions)
    return list(itertools.chain.from_iterable([each] * group_size for each in drawn))


def batch_by_numpy(prompts, completions):
    wide, long = max(map(len, prompts)), max(map(len, completions))
    ids, mask = np.zeros((2, len(prompts), wide + long), int)
    counts = np.zeros((len(prompts), long), bool)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        ids[row, wide - len(prompt) : wide + len(completion)] = prompt + completion
        mask[row, wide - len(prompt) : wide + len(completion)] = 1  # False at the padding after the completion
        counts[row, : len(completion)] = True
    return ids, mask, counts


def batch_with_a_mask_of_numbers(prompts, completions):
    ids, mask = left_pad(prompts)
    lengths = mx.array([[len(each)] for each in completions])
    columns = mx.arange(max(map(len, completions)))[None]
    rows = [each + [7] * (columns.size - len(each)) for each in completions]
    counts = columns < lengths
    ids = mx.concatenate([ids, mx.where(counts, mx.array(rows), 0)], axis=1)
    return [ids, mx.concatenate([mask.astype(mx.bool_), counts], axis=1), counts.astype(mx.float32)]


def teach_by_numpy(rewards, group_size):
    groups = np.array(rewards).reshape(-1, group_size)
    return np.flatnonzero(np.repeat(np.ptp(groups, axis=1) > 0, group_size))


def teach_by_sets(rewards, group_size):
    return [
        row
        for row in range(len(rewards))
        if len({*rewards[(start := row - row % group_size) : start + group_size]}) > 1
    ]


def learn_at_the_first_pass(params, logps_of, loss_of, update, num_iterations):
    old, losses = None, []
    for _ in range(num_iterations):

        def loss_fn(params, old=old):
            logps = logps_of(params)
            return loss_of(logps, mx.stop_gradient(logps) if old is None else old), logps

        (loss, logps), grads = mx.value_and_grad(loss_fn)(params)
        old = logps if old is None else old
        params = update(params, grads)
        losses.append(float(loss))
    return params, losses


def learn_with_grad(params, logps_of, loss_of, update, num_iterations):
    old = mx.array(np.array(logps_of(params)))
    losses = []
    while len(losses) < num_iterations:
        losses.append(loss_of(logps_of(params), old))
        params = update(params, mx.grad(lambda p: loss_of(logps_of(p), old))(params))
    return [params, losses]


def rate_by_interpolation(step, max_steps, peak, warmup_steps):
    return peak * np.interp(step, [-1, warmup_steps, max_steps], [0, 1, 0])


def rate_by_min(step, max_steps, peak, warmup_steps):
    return peak * min((step + 1) / (warmup_steps + 1), (max_steps - step) / (max_steps - warmup_steps))


def accuracy_by_list(task, write, num_problems, batch_size):
    problems, answers = list(task.held_out(num_problems)), []
    while len(answers) < len(problems):
        answers += write([each.prompt for each in problems[len(answers) :][:batch_size]])
    return np.mean([task.is_correct(*pair) for pair in zip(problems, answers, strict=True)])


def step_in_other_words(parts, params, step):
    asked = parts.questions(step)
    answers = parts.write(params, asked, step)
    rewards = parts.reward(asked, answers)
    rows, pushes = parts.rows_that_teach(rewards), parts.advantages(rewards)
    metrics = dict(reward=np.mean(rewards), teaching=len(rows) / len(asked))
    if not rows:
        return params, metrics
    num_items = len(list(itertools.chain.from_iterable(answers)))
    asked, answers, pushes = zip(*((asked[row], answers[row], pushes[row]) for row in rows), strict=True)
    return [parts.learn(params, list(asked), list(answers), list(pushes), num_items), metrics]


def train_by_range(take_step, state, max_steps):
    for number in range(state["step"] + 1, max_steps + 1):
        metrics = take_step(state)
        state["step"] = number
        yield [number, metrics]


class TrainByClass:
    def __init__(self, take_step, state, max_steps):
        self.take_step, self.state, self.max_steps = take_step, state, max_steps

    def __iter__(self):
        return self

    def __next__(self):
        if self.state["step"] >= self.max_steps:
            raise StopIteration
        metrics = self.take_step(self.state)
        self.state["step"] += 1
        return self.state["step"], metrics


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        (1, questions_by_numpy),
        (1, questions_by_seed_sequence),
        (1, questions_one_by_one),
        (2, batch_by_numpy),
        (2, batch_with_a_mask_of_numbers),
        (3, teach_by_numpy),
        (3, teach_by_sets),
        (4, learn_at_the_first_pass),
        (4, learn_with_grad),
        (5, rate_by_interpolation),
        (5, rate_by_min),
        (6, accuracy_by_list),
        (7, step_in_other_words),
        (8, train_by_range),
        (8, TrainByClass),
        (9, "acd"),
        (9, "A, C, D"),
        (9, ["A", "C", "D"]),
    ],
)
def test_right_answers_in_other_styles_pass(number, answer):
    note = check(f"18.{number}", answer)
    assert note.passed, note


# Wrong answers that are not slips of the solution.


def one_generator(sample, seed, step, num_questions, group_size, rng=np.random.default_rng([3, 7])):  # noqa: B008
    return [each for each in sample(rng, num_questions) for _ in range(group_size)]


def seed_to_the_power(sample, seed, step, num_questions, group_size):
    return [each for each in sample(np.random.default_rng(seed**step), num_questions) for _ in range(group_size)]


def seeded(make_seed):
    def questions(sample, seed, step, num_questions, group_size):
        rng = np.random.default_rng(make_seed(seed, step))
        return [each for each in sample(rng, num_questions) for _ in range(group_size)]

    return questions


def either_way_round(sample, seed, step, num_questions, group_size):
    rng = np.random.default_rng(sorted([seed, step]))
    return [each for each in sample(rng, num_questions) for _ in range(group_size)]


def an_iterator(sample, seed, step, num_questions, group_size):
    return (each for each in sample(np.random.default_rng([seed, step]), num_questions) for _ in range(group_size))


def ids_in_float(prompts, completions):
    return tuple(np.array(each, np.float64) for each in chapter.make_batch(prompts, completions))


def ids_as(dtype):
    def batch(prompts, completions):
        ids, mask, counts = chapter.make_batch(prompts, completions)
        return np.array(ids).astype(dtype), mask, counts

    return batch


def cut_at(length):
    return lambda prompts, completions: chapter.make_batch(prompts, [each[:length] for each in completions])


def teaches_if(test):
    def rows_that_teach(rewards, size):
        groups = np.reshape(rewards, (-1, size)).tolist()
        return [number * size + place for number, each in enumerate(groups) if test(each) for place in range(size)]

    return rows_that_teach


def log_ratio_within(bound):
    def learn(params, logps_of, loss_of, update, num_iterations):
        def bounded(logps, old_logps):
            return loss_of(old_logps + mx.clip(logps - old_logps, -bound, bound), old_logps)

        return chapter.learn(params, logps_of, bounded, update, num_iterations)

    return learn


def short_gradients(params, logps_of, loss_of, update, num_iterations):
    def shortened(params, grads):
        return update(params, {name: mx.clip(each, -1, 1) for name, each in grads.items()})

    return chapter.learn(params, logps_of, loss_of, shortened, num_iterations)


def at_most(iterations):
    return lambda *arguments: chapter.learn(*arguments[:4], min(arguments[4], iterations))


def rate_as(rate):
    def learning_rate(step, max_steps, peak, warmup_steps):
        return rate(step, max_steps, peak, warmup_steps)

    return learning_rate


def rows_with_an_advantage(rewards, group_size):
    groups = np.array(rewards).reshape(-1, group_size)
    return np.flatnonzero(abs(groups - groups.mean(axis=1, keepdims=True)) > 1e-9).tolist()


def answers_judged_alone(task, write, num_problems, batch_size):
    return np.mean([write([each.prompt])[0].strip() == each.answer for each in task.held_out(num_problems)])


def ids_alone(prompts, completions):
    return chapter.make_batch(prompts, completions)[0]


def lists_of_rows(prompts, completions):
    return [p + c for p, c in zip(prompts, completions, strict=True)], [[1]], [[1]]


def a_mask_for_rows(rewards, group_size):
    return np.isin(np.arange(len(rewards)), chapter.rows_that_teach(rewards, group_size))


def one_constant_for_all(params, logps_of, loss_of, update, num_iterations):
    def loss_fn(params):
        logps = logps_of(params)
        return loss_of(logps, logps)

    losses = []
    for _ in range(num_iterations):
        loss, grads = mx.value_and_grad(loss_fn)(params)
        params = update(params, grads)
        losses.append(loss.item())
    return params, losses


def returns_everything(take_step, state, max_steps):
    return [(state["step"] + 1, take_step(state)) for _ in range(max_steps - state["step"])]


def says_nothing(take_step, state, max_steps):
    while state["step"] < max_steps:
        take_step(state)
        state["step"] += 1


def eager(take_step, state, max_steps):
    first = take_step(state) if state["step"] < max_steps else None
    state["step"] += first is not None
    rest = chapter.train(take_step, state, max_steps)
    return itertools.chain([(state["step"], first)] if first else [], rest)


def swallows_errors(take_step, state, max_steps):
    while state["step"] < max_steps:
        try:
            metrics = take_step(state)
        except RuntimeError:
            continue
        state["step"] += 1
        yield state["step"], metrics


def counts_correct_words(task, write, num_problems, batch_size):
    return sum(bool(text) for text in write([each.prompt for each in task.held_out(num_problems)])) / num_problems


def four_at_once(task, write, num_problems, batch_size):
    return chapter.accuracy(task, write, num_problems, 4)


def contains_the_answer(task, write, num_problems, batch_size):
    return np.mean([each.answer in write([each.prompt])[0] for each in task.held_out(num_problems)])


def ends_at_the_first_one(prompts, completions):
    ids, mask, counts = chapter.make_batch(prompts, completions)
    lengths = [row.index(1) + 1 if 1 in row else len(row) for row in completions]
    return ids, mask, mx.array([[place < length for place in range(counts.shape[1])] for length in lengths])


def updates_what_it_was_given(params, logps_of, loss_of, update, num_iterations):
    after, losses = chapter.learn(params, logps_of, loss_of, update, num_iterations)
    params.update(after)
    return params, losses


def learns_always(parts, params, step):
    asked = parts.questions(step)
    answers = parts.write(params, asked, step)
    rewards = parts.reward(asked, answers)
    after = parts.learn(params, asked, answers, parts.advantages(rewards), sum(map(len, answers)))
    return after, {"reward": np.mean(rewards), "teaching": 1.0}


def learns_group_by_group(parts, params, step):
    def learn(params, *rows_and_tokens):
        *rows, num_items = rows_and_tokens
        for start in range(0, len(rows[0]), parts.group_size):
            params = parts.learn(params, *(each[start : start + parts.group_size] for each in rows), num_items)
        return params

    one_by_one = SimpleNamespace(**{name: getattr(parts, name) for name in dir(parts) if name[0] != "_"})
    one_by_one.learn = learn
    return chapter.grpo_step(one_by_one, params, step)


def advantages_after_filtering(parts, params, step):
    asked = parts.questions(step)
    answers = parts.write(params, asked, step)
    rewards = parts.reward(asked, answers)
    rows = parts.rows_that_teach(rewards)
    kept = [[each[row] for row in rows] for each in (asked, answers, rewards)]
    if rows:
        params = parts.learn(params, *kept[:2], parts.advantages(kept[2]), sum(map(len, answers)))
    return params, {"reward": sum(rewards) / len(rewards), "teaching": len(rows) / len(rewards)}


@pytest.mark.parametrize(
    ("number", "answer", "words"),
    [
        (1, one_generator, "different questions when it was asked for the same step again"),
        (1, one_generator, "keeps its state between calls"),
        (1, either_way_round, "change places"),
        (1, an_iterator, "which is not a list"),
        (1, seed_to_the_power, "the same questions for step 1 of seed 1 as for step 0 of seed 1"),
        *(
            (1, seeded(lambda seed, step, much=much: much * seed + step), "the same questions for step")
            for much in (2, 10, 31, 251, 997, 4096, 10_000, 2**16, 100_000)
        ),
        (1, seeded(lambda seed, step: int(f"{seed}{step}")), "for step 10 of seed 0 as for step 0 of seed 1"),
        (1, seeded(lambda seed, step: seed ^ (step << 3)), "for step 0 of seed 8 as for step 1 of seed 0"),
        (1, seeded(lambda seed, step: [seed, step % 1000]), "for step 1000 of seed 0 as for step 0 of seed 0"),
        (1, seeded(lambda seed, step: [seed % 100, step]), "for step 0 of seed 100 as for step 0 of seed 0"),
        (1, seeded(lambda seed, step: [seed, step // 2]), "the same questions for step"),
        (1, seeded(lambda seed, step: abs(hash((str(seed), step)))), "another value in every process"),
        (2, ids_as(np.int8), "expected array([[151643, 5"),
        (2, ids_as(np.int16), "65,535"),
        (2, ids_as(np.uint16), "65,535"),
        (2, cut_at(5), "gave"),
        (2, cut_at(32), "gave"),
        (3, teaches_if(lambda group: max(group) - min(group) > 1e-12), "with a tolerance"),
        (3, teaches_if(lambda group: len({round(each, 9) for each in group}) > 1), "with a tolerance"),
        (3, teaches_if(lambda group: sum(group) != len(group) * group[0]), "gave"),
        (3, teaches_if(lambda group: group[0] != group[-1]), "gave"),
        (3, teaches_if(lambda group: len({*group[:4]}) > 1), "gave"),
        (4, log_ratio_within(2), "gave"),
        (4, short_gradients, "gave"),
        (4, at_most(4), "gave"),
        (5, rate_as(lambda *settings: max(chapter.learning_rate(*settings), 1e-5)), "expected 3.2e-06"),
        (5, rate_as(lambda *settings: min(chapter.learning_rate(*settings), 2.0)), "expected 26"),
        (5, rate_as(lambda step, most, peak, warmup: chapter.learning_rate(step, most, peak, min(warmup, 12))), "gave"),
        (7, learns_group_by_group, "gave"),
        (2, ends_at_the_first_one, "expected"),
        (4, updates_what_it_was_given, "work on a copy"),
        (6, four_at_once, "at most 2 do"),
        (6, contains_the_answer, "gave 1, expected 0.5"),
        (2, ids_in_float, "whole numbers"),
        (2, ids_alone, "expected"),
        (2, lists_of_rows, "gave"),
        (3, a_mask_for_rows, "gave"),
        (3, rows_with_an_advantage, "but its group teaches"),
        (
            3,
            lambda rewards, size: chapter.rows_that_teach([round(each, 2) for each in rewards], size),
            "close together",
        ),
        (4, one_constant_for_all, "they have to be constants"),
        (5, lambda step, max_steps, peak, warmup_steps: peak, "gave 0.5, expected 0.05"),
        (6, answers_judged_alone, "gave 0, expected 0.5"),
        (6, counts_correct_words, "gave 1, expected 0.5"),
        (7, advantages_after_filtering, "Compute them from all rewards"),
        (7, learns_always, "there are rows of a group that teaches nothing"),
        (8, returns_everything, "needs an iterator"),
        (8, says_nothing, "None, but"),
        (8, eager, "before the caller asked"),
        (8, swallows_errors, "gave"),
        (9, "DCA", "in alphabetical order"),
        (9, "ABCD", "a gradient of its own"),
        (9, "ACE", "2 of the 3 are right"),
        (9, "AC and the step", "is not a string of 3 letters"),
    ],
)
def test_wrong_answers_are_refused_with_a_reason(number, answer, words):
    note = check(f"18.{number}", answer)
    assert not note.passed
    assert words in note.text, note.text


# What the notebook does with answers in other styles.


@pytest.mark.parametrize("answer", [batch_by_numpy, batch_with_a_mask_of_numbers])
def test_the_notebook_continues_with_arrays_of_another_library(answer):
    """A cell converts them into MLX arrays, and masks into booleans."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    cell = next(each.source for each in cells if each.id == "18-ex2-use")
    own = {"use": lambda id: answer, "mx": mx}
    exec(cell.split("def logps_of")[0], own)
    ids, mask, counts = own["make_batch"]([[5], [6, 7, 8]], [[4, 1], [9]])
    assert [type(each) for each in (ids, mask, counts)] == [mx.array] * 3
    assert ids.tolist() == [[0, 0, 5, 4, 1], [6, 7, 8, 9, 0]]
    assert counts.dtype == mx.bool_
