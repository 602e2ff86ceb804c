"""The tiny model that shows its working: its answers, short and long, its pupils, and that GRPO teaches it."""

import numpy as np
import pytest

from mlx_grpo_kit.assets import TINY_STEPS
from mlx_grpo_kit.assets.make.imitation import HOMEWORK_LENGTH, character_tokenizer, homework_batch
from mlx_grpo_kit.assets.make.tiny_steps import make, sloppy_working
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.recipe import MADE_BY, default_args
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import LongSum
from mlx_grpo_kit.tasks.long_sum import FEWEST, LARGEST, MOST, read_working


@pytest.fixture(scope="module")
def model():
    return *load_pretrained(TINY_STEPS), load_tokenizer(TINY_STEPS)


def test_its_recipe():
    assert MADE_BY["tiny-steps"] == "mlx_grpo_kit.assets.make.tiny_steps"
    assert default_args("tiny-steps")["learning_rate"] == 1e-4


def test_it_is_right_now_and_then_and_its_lengths_are_spread(model):
    config, params, tokenizer = model
    task = LongSum()
    problems = task.held_out(512)
    rollout = generate(
        config, params, [tokenizer.encode(problem.prompt) for problem in problems], seed=1,
        sampling=SamplingConfig(task.max_completion_length), eos_token_ids=tokenizer.eos_token_ids,
    )  # fmt: skip
    texts = [tokenizer.decode(ids) for ids in rollout.completions]
    right = np.array([task.is_correct(problem, text) for problem, text in zip(problems, texts, strict=True)])
    lengths, finished = np.array([*map(len, rollout.completions)]), np.array(rollout.finished)
    assert 0.22 < right.mean() < 0.42
    low, high = np.percentile(lengths, (5, 90))
    assert low < 20
    assert high > 55
    assert 0.05 < 1 - finished.mean() < 0.25
    assert lengths[~right].mean() > lengths[right].mean() + 8
    read = [read_working(text) for text in texts]
    assert np.mean([each is not None for each in read]) > 0.7
    # There is every kind of mistake: a wrong step, a number too often, and steps that nobody needs.
    finished_workings = [each for each in read if each is not None]
    assert 0.1 < np.mean([not each.is_true for each in finished_workings]) < 0.6
    assert 0.1 < np.mean([any(0 in numbers for numbers, _ in each.steps) for each in finished_workings]) < 0.6


def test_thirty_steps_of_grpo_show(model):
    settings = GRPOConfig(**default_args("tiny-steps") | {"per_device_train_batch_size": 64})
    trainer = GRPOTrainer(*model, LongSum(), settings)
    before = trainer.evaluate(num_problems=512)["eval/accuracy"]
    for _ in trainer.train(max_steps=30):
        pass
    assert trainer.evaluate(num_problems=512)["eval/accuracy"] > before + 0.15


def test_the_pupils():
    task, rng = LongSum(), np.random.default_rng(0)
    problems = task.sample(rng, 3000)
    answers = [sloppy_working(problem, rng) for problem in problems]
    read = [read_working(answer) for answer in answers]
    right = np.array([task.is_correct(problem, answer) for problem, answer in zip(problems, answers, strict=True)])
    lengths = np.array([len(answer) + 1 for answer in answers])
    assert None not in read
    assert 0.53 < right.mean() < 0.63
    assert lengths[~right].mean() > 1.5 * lengths[right].mean()
    assert 0.08 < (lengths > task.max_completion_length).mean() < 0.25
    assert 0.5 < np.mean([each.is_true for each in read]) < 0.8
    assert max(len(each.steps) for each in read) == 16
    idle = np.array([answer.count("+0=") > 0 for answer in answers])
    assert 0.15 < idle[right].mean() < 0.25 < 0.3 < idle[~right].mean() < 0.5


def test_long_homework_is_cut_off_without_an_end_token():
    task, tokenizer = LongSum(), character_tokenizer()
    width = HOMEWORK_LENGTH["long-sum"]
    assert width == len(task.problem((LARGEST,) * MOST).prompt) + task.max_completion_length
    ids, counted = map(np.array, homework_batch(tokenizer, task, sloppy_working, np.random.default_rng(0), 300))
    assert ids.shape == (300, width)
    end, pad = tokenizer.eos_token_ids[0], tokenizer.pad_token_id
    ended = (ids == end).any(axis=1)
    assert 0.05 < 1 - ended.mean() < 0.25
    assert (ids[~ended, -1] != pad).all()
    assert (counted[~ended, -1] == 1).all()
    held_out = {problem.prompt for problem in task.held_out(2000)}
    for row, marks in zip(ids, counted == 1, strict=True):
        prompt = tokenizer.decode(row[: np.flatnonzero(marks)[0]].tolist())
        assert prompt not in held_out
        assert FEWEST <= prompt.count("+") + 1 <= MOST


def test_the_seed_decides(tmp_path, capsys):
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        losses = make(tmp_path / name, steps=3, batch_size=8, seed=seed)
    one, same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "same", "other"))
    assert one == same != other
    assert losses[-1] < losses[0]
    assert "of 512 held-out sums are right" in capsys.readouterr().out
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"thesis.txt"):
        make(tmp_path / "thesis", steps=1)
