"""Chats and rows in the terminal: `train` that asks by the folder's template, `generate --chat`, data from a file."""

import json
import re

import pytest

from mlx_grpo_kit.assets import TINY_CHAT
from mlx_grpo_kit.cli import main
from mlx_grpo_kit.cli.terminal import escaped
from mlx_grpo_kit.course.chapters.chapter_23.made import word_problem
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer

BLANKS = re.compile("[ \t]+")
SMALL = ("--per-device-train-batch-size", "16", "--max-completion-length", "12", "--eval-problems", "16")
QUESTION = "What is 27+15? Answer as <answer>number</answer>."
TASK = """
from mlx_grpo_kit.tasks import RowsTask

class WordProblems(RowsTask):
    def __init__(self, path, shout=False):
        def mine(prompts, completions, answer, question, **kwargs):
            assert all("####" in each for each in answer)
            return [float(text.isupper() == shout) for text in completions]
        from mlx_grpo_kit.tasks.rows import read_rows
        super().__init__(read_rows(path), [mine], name="word problems")
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    import numpy as np

    file = tmp_path_factory.mktemp("data") / "problems.jsonl"
    rng = np.random.default_rng(0)
    file.write_text("".join(json.dumps(word_problem(a, 3, rng)) + "\n" for a in range(10, 90)))
    return file


def settings_of(folder):
    return json.loads((folder / "run.json").read_text())


def test_a_folder_with_a_template_is_asked_by_it(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["train", "--model", "tiny-chat", "--output", str(out), "--max-steps", "1", *SMALL]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "Task: addition-chat, by the chat template of the model's folder, without thinking, at most 12"
    )
    assert "--chat --no-enable-thinking 'What is " in said
    assert settings_of(out)["chat"] is True
    completion = json.loads((out / "completions.jsonl").read_text().splitlines()[0])
    assert "Answer as <answer>number</answer>." in json.dumps(completion)
    assert main(["train", "--output", str(out), "--resume", "--max-steps", "2"]) == 0
    assert "Task: addition-chat" in capsys.readouterr().out
    for options, words in (
        (["--no-chat"], "--chat False is not what the run in"),
        (["--enable-thinking"], "--chat-template-kwargs {'enable_thinking': True} is not what the run in"),
        (["--data", "other.jsonl"], "--task rows is not what the run in"),
    ):
        assert main(["train", "--output", str(out), "--resume", *options]) == 2
        assert words in capsys.readouterr().err


def test_thinking_and_texts(tmp_path, capsys):
    one, other = tmp_path / "one", tmp_path / "other"
    run = ["train", "--model", "tiny-chat", "--max-steps", "1", *SMALL, "--output"]
    assert main([*run, str(one), "--enable-thinking"]) == 0
    assert "addition-chat, by the chat template of the model's folder, thinking first" in capsys.readouterr().out
    assert settings_of(one)["args"]["chat_template_kwargs"] == {"enable_thinking": True}
    assert "<think>" in (one / "completions.jsonl").read_text()
    assert main([*run, str(other), "--no-chat"]) == 0
    assert capsys.readouterr().out.startswith("Memory")
    assert settings_of(other)["chat"] is False


def test_a_model_that_knows_no_chat(tmp_path, capsys):
    assert main(["train", "--output", str(tmp_path / "out"), "--chat"]) == 2
    assert "error: --chat needs a chat template, and tiny has none" in capsys.readouterr().err
    assert main(["generate", "--chat", "Hi"]) == 2
    assert "no chat template: neither" in capsys.readouterr().err


def test_rows_of_a_file(tmp_path, data, capsys):
    out = tmp_path / "out"
    run = ["train", "--model", "tiny-chat", "--max-steps", "1", *SMALL[:4], "--output", str(out)]
    assert main([*run, "--data", str(data)]) == 0
    said = capsys.readouterr()
    assert "Task: problems-chat" in said.out
    assert "The task holds 8 problems back, fewer than 256: accuracy is measured on those 8" in said.err
    assert "sampled on 8 held-out problems" in said.out
    settings = settings_of(out)
    assert (settings["task"], settings["task_args"], settings["eval_problems"]) == ("rows", {"path": str(data)}, 8)
    assert main(["train", "--output", str(out), "--resume", "--max-steps", "2"]) == 0


def test_rows_have_room_in_a_small_model(tmp_path, capsys):
    """256 tokens are asked for by default, and the tiny model has 256 positions for prompt and answer."""
    out, rows = tmp_path / "out", tmp_path / "sums.jsonl"
    rows.write_text("".join(f'{{"question": "what is {n}+{n}?", "answer": "{2 * n}"}}\n' for n in range(10, 40)))
    run = ["train", "--data", str(rows), "--max-steps", "1", *SMALL[:2], "--output", str(out)]
    assert main(run) == 0
    assert "Answers have at most 182 tokens, not the task's 256" in capsys.readouterr().err
    assert settings_of(out)["args"]["max_completion_length"] == 182
    assert main(["train", "--output", str(out), "--resume", "--max-steps", "2"]) == 0


def test_a_task_of_ones_own_in_a_file(tmp_path, data, capsys, monkeypatch):
    (tmp_path / "my_tasks.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    run = [
        "train",
        "--model",
        "tiny-chat",
        "--max-steps",
        "1",
        *SMALL,
        "--task",
        "my_tasks.py:WordProblems",
        "--output",
    ]
    assert main([*run, "out", "--task-args", f"path={data}", "shout=true"]) == 0
    assert settings_of(tmp_path / "out")["task_args"] == {"path": str(data), "shout": True}
    assert "rewards/mine/mean" in (tmp_path / "out" / "metrics.jsonl").read_text()
    assert main([*run, "other", "--data", str(data)]) == 0
    monkeypatch.chdir(data.parent)
    assert main(["train", "--output", str(tmp_path / "other"), "--resume", "--max-steps", "2"]) == 0
    capsys.readouterr()
    assert (
        main([*run[:-3], "--task", f"{tmp_path}/my_tasks.py:WordProblems", "--output", "x", "--task-args", "pth=1"])
        == 2
    )
    assert "does not take pth=1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "no_such_file.jsonl"], "no_such_file.jsonl"),
        (["--task", "no_such_file.py:Task"], "there is no file"),
        (["--task", "addition", "--data", "rows.jsonl"], "--data is given and --task addition, which makes its own"),
        (["--task", f"{__file__}:WordProblem"], "has no 'WordProblem'; it has "),
        (["--lora-target-modules", "q_proj"], "lora_target_modules is set without lora_r"),
        (["--chat-template-kwargs", '{"messages": []}'], "'messages' is no setting of a chat template"),
        (["--task", "rows"], "does not take no arguments: missing a required argument: 'path'"),
        (["--task", "addition", "--task-args", "max_operand=5"], "expected 9 to 999"),
    ],
)
def test_what_cannot_be_trained_on(options, words, tmp_path, capsys):
    assert main(["train", "--model", "tiny-chat", "--output", str(tmp_path / "out"), *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "value"), [("--task-args", "x"), ("--task-args", "=3"), ("--chat-template-kwargs", "[]")]
)
def test_options_that_cannot_be_read(option, value, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["train", "--output", str(tmp_path / "out"), option, value])
    assert value in capsys.readouterr().err


def test_generate_in_a_chat(capsys):
    ask = ["generate", "--model", "tiny-chat", "--chat"]
    assert main([*ask, QUESTION]) == 0
    thought = capsys.readouterr().out
    assert thought == f"{QUESTION}\n<think>\n7+5=12, 2+1+1=4\n</think>\n\n<answer>42</answer>\n"
    assert main([*ask, "--no-enable-thinking", "--num", "2", "--temperature", "0", QUESTION]) == 0
    at_once = capsys.readouterr().out
    assert "<think>" not in at_once
    assert at_once.count(QUESTION) == 2
    assert main([*ask, "--system", "Be brief.", "--no-enable-thinking", "--max-new-tokens", "2", QUESTION]) == 0
    assert "cut off after 2 tokens" in capsys.readouterr().err


def test_what_streams_is_what_generate_says(capsys):
    config, params = load_pretrained(TINY_CHAT)
    tokenizer = load_tokenizer(TINY_CHAT)
    prompt = tokenizer.encode_prompt([{"role": "user", "content": QUESTION}])
    for seed in range(3):
        sampling = SamplingConfig(40, temperature=2.0)
        rollout = generate(
            config, params, [prompt], sampling=sampling, eos_token_ids=tokenizer.eos_token_ids, seed=seed
        )
        options = ["--temperature", "2", "--max-new-tokens", "40", "--seed", str(seed)]
        assert main(["generate", "--model", "tiny-chat", "--chat", *options, QUESTION]) == 0
        text = escaped(tokenizer.decode(rollout.completions[0]), keep="\n\t")
        said = capsys.readouterr().out
        assert BLANKS.sub(" ", said) == BLANKS.sub(" ", f"{QUESTION}\n{text}\n")  # a tab is shown as blanks


def test_tokens_are_shown_as_they_come(monkeypatch):
    """Between two tokens the terminal has all that is certain of the text so far."""
    import io
    import sys

    from mlx_grpo_kit.cli import generation

    terminal, seen = io.StringIO(), []
    tokens = generation.generate_tokens

    def watched(*args, **kwargs):
        for step in tokens(*args, **kwargs):
            seen.append(terminal.getvalue())
            yield step

    monkeypatch.setattr(generation, "generate_tokens", watched)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["generate", "--model", "tiny", "12+34="]) == 0
    assert seen == ["12+34=", "12+34=4", "12+34=46"]


def test_stop_strings(capsys):
    ask = ["generate", "--model", "tiny-chat", "--chat", QUESTION]
    assert main([*ask, "--stop", "</think>", "--stop", "never"]) == 0
    assert capsys.readouterr().out.endswith("2+1+1=4\n</think>\n")
    assert main([*ask, "--stop", ""]) == 2
    assert "expected a list of strings that are not empty" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--system", "Be brief."], ["--enable-thinking"], ["--no-enable-thinking"]])
def test_what_is_for_chats_only(option, capsys):
    assert main(["generate", *option, "12+34="]) == 2
    assert f"error: {option[0].replace('--no-', '--')} is for chats: give --chat too" in capsys.readouterr().err
