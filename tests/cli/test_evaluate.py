"""`evaluate`: the numbers are the trainer's, a file is asked whole or as training holds it back, bad input is told."""

import json
import sys

import pytest

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.cli import main, values
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition, RowsTask


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "sums.jsonl"
    lines = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 20) for b in range(20, 26)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def numbers(capsys, *options):
    assert main(["evaluate", *map(str, options)]) == 0
    return capsys.readouterr().out


def test_its_numbers_are_the_trainers(capsys, tmp_path):
    config, params = load_pretrained(TINY)
    trainer = GRPOTrainer(config, params, load_tokenizer(TINY), Addition(), GRPOConfig())
    out = numbers(capsys, "--num-problems", 50, "--num-samples", 4, "--seed", 3, "--output", tmp_path / "found.json")
    expected = trainer.evaluate(50, 3, num_samples=4)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["metrics"] == expected
    assert sum(found["correct"]) == round(200 * expected["eval/accuracy"])
    low, high = found["accuracy_interval"]
    assert f"accuracy  {expected['eval/accuracy']:.3f}   95% interval {low:.3f} to {high:.3f}" in out
    assert f"pass@4    {expected['eval/pass@4']:.3f}" in out
    assert out.startswith("tiny on addition: 50 problems, 4 completions each at temperature 1, ")


def test_a_file_is_asked_whole_or_as_training_holds_it_back(capsys, rows):
    settings = ["--data", rows, "--max-completion-length", 4]
    assert "sums: 60 problems, one completion each" in numbers(capsys, *settings)
    held_out = RowsTask.from_file(rows).num_held_out
    assert 1 <= held_out < 20
    assert f"sums: {held_out} problems" in numbers(capsys, *settings, "--held-out", "--num-problems", held_out)
    assert "sums: 7 problems" in numbers(capsys, *settings, "--num-problems", 7)


def test_a_task_of_the_current_folder_is_imported_by_its_name(capsys, tmp_path, monkeypatch):
    (tmp_path / "my_sums_here.py").write_text("from mlx_grpo_kit.tasks import Addition\nclass Mine(Addition): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [each for each in sys.path if each])
    assert "5 problems" in numbers(capsys, "--task", "my_sums_here:Mine", "--num-problems", 5)


def test_a_reward_that_applies_to_no_completion_is_null(capsys, rows, tmp_path):
    (tmp_path / "silent_task.py").write_text(
        "from mlx_grpo_kit.tasks import Addition\n"
        "class Silent(Addition):\n"
        "    def __init__(self):\n"
        "        super().__init__(reward_funcs=[lambda problems, completions: [None] * len(problems)])\n"
    )
    numbers(
        capsys, "--task", tmp_path / "silent_task.py:Silent", "--num-problems", 5, "--output", tmp_path / "found.json"
    )
    found = json.loads((tmp_path / "found.json").read_text(), parse_constant=pytest.fail)
    assert found["metrics"]["eval/reward"] is None


def test_a_file_is_asked_as_chats(capsys, rows):
    settings = ["--model", "tiny-chat", "--data", rows, "--max-completion-length", 4]
    assert "sums-chat: 60 problems, one completion each" in numbers(capsys, *settings)


def test_a_task_with_its_arguments_in_its_name(capsys, tmp_path):
    pytest.importorskip("reasoning_gym")
    found = tmp_path / "found.json"
    options = ["--model", "tiny-chat", "--num-problems", 4, "--max-completion-length", 4, "--output", found]
    out = numbers(capsys, *options, "--task", "gym:gcd,max_value=9,min_numbers=2", "--task-args", "max_numbers=3")
    assert out.startswith("tiny-chat on gym-gcd-chat: 4 problems")
    content = json.loads(found.read_text())
    assert content["task"] == "gym:gcd"
    assert content["task_args"] == {"max_value": 9, "min_numbers": 2, "max_numbers": 3}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("addition", [("addition", {})]),
        ("addition,max_operand=9,gym:gcd", [("addition", {"max_operand": 9}), ("gym:gcd", {})]),
        ("a,b=c,d=[1],e,f=g=h", [("a", {"b": "c", "d": [1]}), ("e", {"f": "g=h"})]),
        ("a=b/c.py:D,e=1", [("a=b/c.py:D", {"e": 1})]),
    ],
)
def test_tasks_are_separated_by_commas_and_so_are_their_arguments(text, found):
    assert [values.task(each) for each in values.tasks(text)] == found


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--task", "gym:gdc"], "Did you mean gcd"),
        (["--task", "gym:gcd,max=1"], "gym:gcd has no setting 'max'"),
        (["--temperature", "0", "--num-samples", "3"], "only one completion per problem"),
        (["--model", "nope"], "There is no folder nope"),
        (["--output", "/nowhere/found.json"], "there is no folder /nowhere"),
        (["--output", "/"], "is a folder"),
        (["--task", "nope"], "Unknown task 'nope'"),
        (["--enable-thinking"], "are for chats"),
    ],
)
def test_bad_input_is_told_in_one_line(capsys, options, words):
    assert main(["evaluate", "--num-problems", "4", *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
