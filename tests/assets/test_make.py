"""The sloppy homework, the loss on it, and a short pre-training run. Ground truth of loss and files: transformers."""

from collections import Counter

import numpy as np
import pytest
import torch
import transformers

from mlx_grpo_kit.assets.make.imitation import CONFIG, character_tokenizer, homework_batch, next_token_loss
from mlx_grpo_kit.assets.make.tiny import CORPUS, RANDOM_ATTEMPTS, make, sloppy_attempt, sloppy_sum
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition, Countdown, parse_expression


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model pre-trained for four steps."""
    folder = tmp_path_factory.mktemp("pretrained") / "model"
    make(folder, steps=4, batch_size=8)
    return folder


def test_a_sum_with_a_carry_is_mostly_wrong_and_one_without_mostly_right():
    rng = np.random.default_rng(0)
    carry, plain = Addition.problem(27, 15), Addition.problem(21, 15)
    answers = Counter(sloppy_sum(carry, rng) for _ in range(5000))
    # 42 without a mistake: 1/3 * 0.6; or 32 with the slip that happens to repair it: 2/3 * 0.4 / 4.
    assert answers["42"] / 5000 == pytest.approx(1 / 3 * 0.6 + 2 / 3 * 0.4 / 4, abs=0.03)
    assert answers["32"] / 5000 == pytest.approx(2 / 3 * 0.6 + 1 / 3 * 0.4 / 4, abs=0.03)
    assert answers.most_common(1)[0][0] == "32"
    assert Counter(sloppy_sum(plain, rng) for _ in range(5000))["36"] / 5000 == pytest.approx(0.6, abs=0.03)


def test_the_sums_handed_in_are_right_less_than_half_of_the_time():
    rng = np.random.default_rng(0)
    task = Addition()
    problems = task.sample(rng, 5000)
    share = np.mean([task.is_correct(problem, sloppy_sum(problem, rng)) for problem in problems])
    assert 0.40 < share < 0.48
    assert all(len(sloppy_sum(problem, rng)) <= 3 for problem in problems)


def test_an_attempt_uses_the_numbers_and_often_misses():
    rng = np.random.default_rng(0)
    task = Countdown()
    problems = task.sample(rng, 3000)
    attempts = [sloppy_attempt(problem, rng) for problem in problems]
    for problem, attempt in zip(problems, attempts, strict=True):
        assert sorted(parse_expression(attempt).numbers) == sorted(problem.data["numbers"])
        assert len(attempt) < task.max_completion_length
    share = np.mean([task.is_correct(problem, text) for problem, text in zip(problems, attempts, strict=True)])
    assert 1 - RANDOM_ATTEMPTS < share < 1 - RANDOM_ATTEMPTS + 0.1


@pytest.mark.parametrize(("task", "pupil"), CORPUS, ids=["addition", "countdown"])
def test_a_batch_marks_answers_and_holds_nothing_that_is_held_out(tokenizer, task, pupil):
    ids, is_answer = homework_batch(tokenizer, task, pupil, np.random.default_rng(0), 4000)
    held_out = {problem.prompt for problem in task.held_out(900)}
    for row, marks in zip(np.array(ids), np.array(is_answer) == 1, strict=True):
        start, end = np.flatnonzero(marks)[[0, -1]]
        assert marks.sum() == end - start + 1
        assert row[end] == tokenizer.eos_token_ids[0]
        assert (row[end + 1 :] == tokenizer.pad_token_id).all()
        prompt = tokenizer.decode(row[:start].tolist())
        assert prompt[-1] in "=:"
        assert prompt not in held_out
    # The longest rows end at the last column: nothing could be longer, and no column is only padding.
    assert (np.array(ids)[:, -1] != tokenizer.pad_token_id).any()


def test_loss_equals_transformers(folder, tokenizer):
    config, params = load_pretrained(folder)
    task, pupil = CORPUS[1]
    ids, is_answer = homework_batch(tokenizer, task, pupil, np.random.default_rng(1), 16)
    labels = np.where(np.array(is_answer) == 1, np.array(ids), -100)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(np.array(ids)).long(), labels=torch.tensor(labels).long()).loss.item()
    assert next_token_loss(config, params, ids, is_answer).item() == pytest.approx(expected, rel=1e-5)


def test_the_loss_falls(tmp_path):
    short = make(tmp_path / "short", steps=2, batch_size=32)
    longer = make(tmp_path / "longer", steps=100, batch_size=32)
    assert max(longer[-10:]) < min(short) - 1  # of sums and of Countdown


def test_the_seed_decides(folder, tmp_path):
    make(tmp_path / "same", steps=4, batch_size=8)
    make(tmp_path / "other", steps=4, batch_size=8, seed=1)
    weights = (folder / "model.safetensors").read_bytes()
    assert (tmp_path / "same" / "model.safetensors").read_bytes() == weights
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != weights


def test_the_folder_is_a_hugging_face_model(folder):
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert {path.name for path in folder.iterdir()} == names | {"mlx_grpo_kit.json"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3e6
    ids = load_tokenizer(folder).encode("12+34=")
    assert transformers.AutoTokenizer.from_pretrained(folder)("12+34=")["input_ids"] == ids
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.generation_config.eos_token_id == 1
    config, params = load_pretrained(folder)
    assert config == CONFIG
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits.numpy()
    np.testing.assert_allclose(np.array(qwen3_forward(config, params, mx.array([ids]))), expected, rtol=1e-4, atol=1e-5)


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"contains config.json, thesis.txt, which the kit did not write"):
        make(tmp_path, steps=1)
    with pytest.raises(FileExistsError, match=r"thesis.txt is a file; expected a folder"):
        make(tmp_path / "thesis.txt", steps=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "thesis.txt"]
