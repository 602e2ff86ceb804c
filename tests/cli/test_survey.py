"""`survey`: the numbers of `evaluate` for several tasks, with standard errors; a task that fails is a row."""

import itertools
import json
import math

import numpy as np
import pytest

from mlx_grpo_kit.assets import TINY, TINY_CHAT
from mlx_grpo_kit.cli import main
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, survey
from mlx_grpo_kit.grpo.evaluation import Evaluation
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition, Countdown

SMALL = ["--num-problems", 6, "--num-samples", 4, "--seed", 3]


def run(capsys, *options):
    status = main(["survey", *map(str, options)])
    out, err = capsys.readouterr()
    return status, out, err


def test_its_numbers_are_the_trainers(capsys, tmp_path):
    file = tmp_path / "found.json"
    status, out, _ = run(capsys, *SMALL, "--task", "addition,max_operand=9,countdown", "--output", file)
    assert status == 0
    rows = {row.pop("task"): row for row in json.loads(file.read_text())["tasks"]}
    assert list(rows) == ["addition,max_operand=9", "countdown"]
    config, params = load_pretrained(TINY)
    for row, task in zip(rows.values(), (Addition(max_operand=9), Countdown()), strict=True):
        trainer = GRPOTrainer(config, params, load_tokenizer(TINY), task, GRPOConfig())
        expected = trainer.evaluate(6, 3, num_samples=4)
        assert row["num_problems"] == 6
        for name in ("accuracy", "reward", "pass@4"):
            assert row[name.replace("accuracy", "pass@1")] == pytest.approx(expected[f"eval/{name}"])
        assert f"{row['pass@4']:.2f} ± {row['pass@4_error']:.2f}" in out


def test_python_finds_the_same(capsys, tmp_path):
    file = tmp_path / "found.json"
    run(capsys, *SMALL, "--model", "tiny-chat", "--task", "addition", "--output", file)
    config, params = load_pretrained(TINY_CHAT)
    numbers = {"num_problems": 6, "num_samples": 4, "seed": 3}
    found = survey(config, params, load_tokenizer(TINY_CHAT), {"addition": Addition()}, **numbers)
    assert found.rows() == json.loads(file.read_text())["tasks"]
    assert "pass@4" in str(found)
    as_text = survey(config, params, load_tokenizer(TINY_CHAT), {"addition": Addition()}, **numbers, chat=False)
    assert as_text.rows() != found.rows()


def test_estimates():
    """pass@k by going through all choices of k completions; errors by NumPy over problems."""
    random = np.random.default_rng(0)
    correct = random.random((5, 4)) < [[0.0], [0.3], [0.5], [0.9], [1.0]]
    rewards = correct + np.where(np.arange(4) < 1, 0.25, 0.0) * [[0], [0], [0], [0], [1]]
    found = Evaluation(correct, rewards, rewards[..., None], ("r",), np.ones((5, 4), int), correct).estimates
    of_each = {
        "pass@1": correct.mean(axis=1),
        "pass@4": [np.mean([any(chosen) for chosen in itertools.combinations(row, 4)]) for row in correct],
        "mixed": [len({*row}) > 1 for row in rewards.tolist()],
        "reward": rewards.mean(axis=1),
    }
    assert list(found) == list(of_each)
    for name, values in of_each.items():
        values = np.asarray(values, float)
        assert found[name] == pytest.approx((values.mean(), values.std(ddof=1) / math.sqrt(5)))


def test_completions_without_a_reward_are_left_out():
    nan, correct = math.nan, np.zeros((3, 2), bool)
    rewards = np.array([[nan, nan], [nan, 1.0], [0.0, 1.0]])
    found = Evaluation(correct, rewards, rewards[..., None], ("r",), np.ones((3, 2), int), correct).estimates
    assert found["mixed"] == pytest.approx((1 / 3, 1 / 3))
    assert found["reward"] == pytest.approx((0.75, 0.25))


def test_a_task_that_fails_is_a_row_with_the_reason(capsys, tmp_path):
    file = tmp_path / "found.json"
    options = ["--model", "tiny-chat", "--max-completion-length", 4, "--output", file]
    status, out, err = run(capsys, *SMALL, *options, "--task", "nope,countdown,x=1", "addition", "file.py:Missing")
    assert (status, err) == (0, "")
    nope, countdown, addition, missing = json.loads(file.read_text())["tasks"]
    assert nope["reason"].startswith("Unknown task 'nope'.")
    assert "does not accept x=1" in countdown["reason"]
    assert addition["num_problems"] == 6
    assert "there is no file" in missing["reason"]
    assert " ".join(out.split()).count("nope: Unknown task") == 1
    status, _, _ = run(capsys, *SMALL, *options, "--task", "nope")
    assert status == 2


def test_a_problem_that_is_too_long_for_the_model_is_a_reason(capsys, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"{n}+" * 3000, "answer": "1"}) + "\n" for n in range(20)))
    file = tmp_path / "found.json"
    options = ["--model", "tiny-chat", "--task", f"rows,path={path}", "--num-problems", 1, "--output", file]
    status, _, _ = run(capsys, *options)
    assert status == 2
    assert "exceeds the model's 2048 positions" in json.loads(file.read_text())["tasks"][0]["reason"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--task", "addition", "--model", "nope"], "There is no folder nope"),
        (["--task", "addition", "--output", "/nowhere/found.json"], "there is no folder /nowhere"),
    ],
)
def test_bad_input_is_told_in_one_line(capsys, options, words):
    status, _, error = run(capsys, *options)
    assert status == 2
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("options", [[], ["--task", "a,,b"], ["--task", "addition", "--num-problems", "0"]])
def test_a_command_line_that_cannot_be_read(capsys, options):
    with pytest.raises(SystemExit):
        main(["survey", *options])
    assert capsys.readouterr().err.startswith("error: ")
