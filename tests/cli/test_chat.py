"""Chats and rows in the terminal: `train` that asks by the folder's template, `generate --chat`, data from a file."""

import json
import re
import shutil

import pytest
from transformers import GenerationConfig

from mlx_grpo_kit.assets import TINY_CHAT
from mlx_grpo_kit.assets.make.tiny_chat import word_problem
from mlx_grpo_kit.cli import main
from mlx_grpo_kit.cli.terminal import escaped
from mlx_grpo_kit.files import MANIFEST
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
            return [float(completion[0]["content"].isupper() == shout) for completion in completions]
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
        (["--no-chat"], "--chat False differs from the setting of the run in"),
        (
            ["--enable-thinking"],
            "--chat-template-kwargs {'enable_thinking': True} differs from the setting of the run in",
        ),
        (["--data", "other.jsonl"], "--task rows differs from the setting of the run in"),
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
    assert "The task has only 8 held-out problems, fewer than 256: accuracy is measured on those 8" in said.err
    assert "sampled on 8 held-out problems" in said.out
    settings = settings_of(out)
    assert (settings["task"], settings["task_args"], settings["eval_problems"]) == ("rows", {"path": str(data)}, 8)
    assert main(["train", "--output", str(out), "--resume", "--max-steps", "2"]) == 0


@pytest.mark.parametrize("changed", ["sums.jsonl", "test.jsonl"])
def test_a_changed_data_file_is_not_gone_on_with(changed, tmp_path, capsys):
    out, contents = tmp_path / "out", {}
    for name, first in (("sums.jsonl", 10), ("test.jsonl", 50)):
        rows = [{"question": f"{n}+{n}=", "answer": f"{2 * n}"} for n in range(first, first + 20)]
        contents[name] = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name).write_text(contents[name])
    run = ["train", "--data", str(tmp_path / "sums.jsonl"), "--task-args", f"held_out_path={tmp_path}/test.jsonl"]
    assert main([*run, *SMALL, "--max-steps", "2", "--save-every", "1", "--output", str(out)]) == 0

    resume, file = ["train", "--output", str(out), "--resume", "--max-steps", "3"], tmp_path / changed
    file.write_text(contents[changed].replace('"answer": "', '"answer": "1'))
    capsys.readouterr()
    assert main(resume) == 2
    assert f"error: {file} has changed since the run started" in capsys.readouterr().err
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 3
    file.unlink()
    assert main(resume) == 2
    file.write_text(contents[changed])
    assert main(resume) == 0


def test_rows_have_room_in_a_small_model(tmp_path, capsys):
    """256 tokens are asked for by default, and the tiny model has 256 positions for prompt and answer."""
    out, rows = tmp_path / "out", tmp_path / "sums.jsonl"
    rows.write_text("".join(f'{{"question": "what is {n}+{n}?", "answer": "{2 * n}"}}\n' for n in range(10, 40)))
    run = ["train", "--data", str(rows), "--max-steps", "1", *SMALL[:2], "--output", str(out)]
    assert main(run) == 0
    assert "Answers have at most 242 tokens, not the task's 256" in capsys.readouterr().err
    assert settings_of(out)["args"]["max_completion_length"] == 242
    assert main(["train", "--output", str(out), "--resume", "--max-steps", "2"]) == 0


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "1" * 300}, "line 21 has 300 tokens. With 64 more it exceeds the model's 256 positions"),
        ({"question": "\u4f60?"}, "line 21: This tokenizer has no token for '\u4f60' (character 1 of"),
        ({"prompt": [{"role": "user", "content": "?"}]}, "line 21: This tokenizer's folder has no chat template"),
    ],
    ids=["long", "unknown character", "chat"],
)
def test_a_row_that_cannot_be_trained_on_is_named_before_the_first_step(row, words, tmp_path, capsys):
    """The row is not among the held-out ones, and a run would meet it after some steps."""
    rows = [{"question": f"{n}+{n}=", "answer": f"{2 * n}"} for n in range(20)]
    file, held_out = tmp_path / "sums.jsonl", tmp_path / "test.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in [*rows, row | {"answer": "1"}]))
    held_out.write_text("".join(json.dumps(each | {"question": each["question"] + " "}) + "\n" for each in rows))
    run = ["train", "--data", str(file), "--task-args", f"held_out_path={held_out}", "--max-steps", "9", *SMALL[:2]]
    assert main([*run, "--max-completion-length", "64", "--output", str(tmp_path / "out")]) == 2
    assert f"error: {file}, {words}" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_memory_is_estimated_for_the_longest_prompt_of_all(tmp_path, capsys):
    said = []
    for name, longest in (("short", "1+1="), ("long", "1+" * 90 + "1=")):
        file, held_out = tmp_path / f"{name}.jsonl", tmp_path / "test.jsonl"
        rows = [{"question": f"{n}+{n}=", "answer": f"{2 * n}"} for n in range(10, 20)]
        held_out.write_text("".join(json.dumps(each) + "\n" for each in rows))
        long = [each | {"question": longest + " " * n} for n, each in enumerate(rows)]
        file.write_text("".join(json.dumps(each) + "\n" for each in long))
        run = ["train", "--data", str(file), "--task-args", f"held_out_path={held_out}", "--max-steps", "1", *SMALL[:4]]
        assert main([*run, "--output", str(tmp_path / name)]) == 0
        said.append(int(re.search(r"Memory: about (\d+) MB", capsys.readouterr().out)[1]))
    assert said[1] > 2 * said[0]


OWN = """
from mlx_grpo_kit.tasks import Problem

class Own:
    name, max_completion_length, calls = "own", 4, 0

    def __init__(self, bad=0, chat=False):
        def digits(problems, completions): return [float(text[:1].isdigit()) for text in completions]
        self.reward_funcs, self.bad, self.chat = [digits], bad, chat

    def problem(self, text): return Problem([{"role": "user", "content": text}] if self.chat else text, "1")
    def held_out(self, n): return [self.problem(f"{i}+1=") for i in range(n)]
    def is_correct(self, problem, completion): return False

    def sample(self, rng, n):
        self.calls += 1
        return [self.problem("\u4f60" if self.calls == self.bad else f"{i}+2=") for i in range(n)]
"""


def test_a_prompt_that_fails_during_a_run_costs_no_steps(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    out = tmp_path / "out"
    run = ["train", "--task", f"{tmp_path}/own.py:Own", "--task-args", "bad=4", "--output", str(out)]
    assert main([*run, "--max-steps", "9", *SMALL[:2], *SMALL[4:]]) == 1
    said = capsys.readouterr().err
    assert "This tokenizer has no token for" in said
    assert "Go on from step-000003: " in said
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-000003"]


def test_thinking_is_for_chats(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    own, out = f"{tmp_path}/own.py:Own", tmp_path / "out"
    for options, words in (
        (["--model", "tiny-chat", "--task", own], "Own has no in_chat(*, thinking=False). Leave them out."),
        (["--model", "tiny"], "tiny has no chat template. Leave them out."),
        (["--model", "tiny-chat", "--no-chat"], "--no-chat is given. Leave them out."),
    ):
        assert main(["train", *options, "--enable-thinking", "--output", str(out)]) == 2
        said = capsys.readouterr().err
        assert "error: --enable-thinking and --chat-template-kwargs are for chats" in said
        assert said.endswith(f"{words}\n")
        assert not out.exists()
    run = ["train", "--model", "tiny-chat", "--task", own, "--task-args", "chat=true", *SMALL, "--max-steps", "1"]
    assert main([*run, "--no-enable-thinking", "--output", str(out)]) == 0
    completion = json.loads((out / "completions.jsonl").read_text().splitlines()[0])
    assert "0+2=" in json.dumps(completion)


def test_a_task_of_ones_own_in_a_file(tmp_path, data, capsys, monkeypatch):
    (tmp_path / "my_tasks.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    run = [
        "train", "--model", "tiny-chat", "--max-steps", "1", *SMALL, "--task", "my_tasks.py:WordProblems", "--output",
    ]  # fmt: skip
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
    assert "does not accept pth=1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--data", "no_such_file.jsonl"], "no_such_file.jsonl"),
        (["--task", "no_such_file.py:Task"], "there is no file"),
        (
            ["--task", "addition", "--data", "rows.jsonl"],
            "--data is given together with --task addition, which makes its own",
        ),
        (["--task", f"{__file__}:WordProblem"], "has no 'WordProblem'; it has "),
        (["--lora-target-modules", "q_proj"], "lora_target_modules is set without lora_r"),
        (["--chat-template-kwargs", '{"messages": []}'], "'messages' is not a setting of a chat template"),
        (["--task", "rows"], "does not accept no arguments: missing a required argument: 'path'"),
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


@pytest.mark.parametrize(
    "command",
    [
        ["train", "--output", "OUT", "--data", ""],
        ["train", "--output", "OUT", "--model", ""],
        ["train", "--output", "OUT", "--task="],
        ["generate", "--model=", "12+34="],
        ["fuse", "--adapter", "", "--output", "OUT"],
        ["fuse", "--adapter", "adapters", "--model", "", "--output", "OUT"],
    ],
    ids=lambda command: " ".join(command),
)
def test_a_name_that_is_empty_is_not_a_name_that_was_left_out(command, tmp_path, capsys):
    """As `--data "$FILE"` gives where FILE is not set."""
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as end:
        main([str(out) if each == "OUT" else each for each in command])
    assert end.value.code == 2
    assert "it is empty. Is a shell variable not set?" in capsys.readouterr().err
    assert not out.exists()


def test_generate_in_a_chat(capsys):
    ask = ["generate", "--model", "tiny-chat", "--chat", "--temperature", "0"]
    assert main([*ask, QUESTION]) == 0
    thought = capsys.readouterr().out
    assert thought == f"{QUESTION}\n<think>\n7+5=12, 2+1+1=4\n</think>\n\n<answer>42</answer>\n"
    assert main([*ask, "--no-enable-thinking", "--num", "2", QUESTION]) == 0
    at_once = capsys.readouterr().out
    assert "<think>" not in at_once
    assert at_once.count(QUESTION) == 2
    assert main([*ask, "--system", "Be brief.", "--no-enable-thinking", "--max-new-tokens", "2", QUESTION]) == 0
    assert "cut off after 2 tokens" in capsys.readouterr().err


@pytest.mark.parametrize("num", ["1", "2"])
def test_a_thought_that_the_template_opens_belongs_to_the_answer(num, tmp_path, capsys):
    folder = tmp_path / "thinker"
    shutil.copytree(TINY_CHAT, folder)
    (folder / "mlx_grpo_kit.json").unlink()  # the kit's list of what it wrote
    template = load_tokenizer(folder).chat_template.source.replace("assistant\\n'", "assistant\\n<think>\\n'")
    (folder / "chat_template.jinja").write_text(template)
    ask = ["generate", "--model", str(folder), "--temperature", "0", "--max-new-tokens", "20", "--num", num]
    assert main([*ask, "--chat", QUESTION]) == 0
    answer = "<think>\n7+5=12, 2+1+1=4\n</think>"
    assert capsys.readouterr().out.count(f"{QUESTION}\n{answer}") == int(num)
    assert main([*ask, f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n<think>\n"]) == 0
    assert capsys.readouterr().out.count(f"assistant\n{answer}") == int(num)


def test_what_streams_is_what_generate_says(capsys):
    config, params = load_pretrained(TINY_CHAT)
    tokenizer = load_tokenizer(TINY_CHAT)
    prompt = tokenizer.encode_prompt([{"role": "user", "content": QUESTION}])
    for seed in range(3):
        sampling = SamplingConfig(40, temperature=2.0)
        rollout = generate(
            config, params, [prompt], sampling=sampling, eos_token_ids=tokenizer.eos_token_ids, seed=seed
        )
        options = ["--temperature", "2", "--top-k", "0", "--top-p", "1", "--max-new-tokens", "40", "--seed", str(seed)]
        assert main(["generate", "--model", "tiny-chat", "--chat", *options, QUESTION]) == 0
        text = escaped(tokenizer.decode(rollout.completions[0]), keep="\n\t")
        said = capsys.readouterr().out
        assert BLANKS.sub(" ", said) == BLANKS.sub(" ", f"{QUESTION}\n{text}\n")  # a tab is shown as blanks


def test_tokens_are_shown_as_they_come(monkeypatch):
    """Between two tokens the terminal has all that is certain of the text so far."""
    import io
    import sys

    from mlx_grpo_kit.cli import generate as command

    terminal, seen = io.StringIO(), []
    tokens = command.generate_tokens

    def watched(*args, **kwargs):
        for step in tokens(*args, **kwargs):
            seen.append(terminal.getvalue())
            yield step

    monkeypatch.setattr(command, "generate_tokens", watched)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["generate", "--model", "tiny", "12+34="]) == 0
    assert seen == ["12+34=", "12+34=4", "12+34=46"]


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ([], {}),
        (["--temperature", "1.5"], {"temperature": 1.5}),
        (["--top-k", "0", "--min-p", "0.1"], {"top_k": 0, "min_p": 0.1}),
        (["--temperature", "0"], {"temperature": 0}),
        (["--num", "2"], {}),
    ],
)
def test_sampling_follows_the_folder(options, changes, capsys, monkeypatch):
    """tiny-chat's generation_config.json is Qwen3's; each option replaces one of its settings, as in transformers."""
    from mlx_grpo_kit.cli import generate as command

    theirs = GenerationConfig.from_pretrained(TINY_CHAT)
    assert theirs.do_sample
    expected = {"temperature": theirs.temperature, "top_k": theirs.top_k, "top_p": theirs.top_p, "min_p": None}
    seen = []

    def seen_by(function):
        def seeing(*args, sampling, **kwargs):
            seen.append(sampling)
            return function(*args, sampling=sampling, **kwargs)

        return seeing

    for name in ("generate", "generate_tokens"):
        monkeypatch.setattr(command, name, seen_by(getattr(command, name)))
    assert main(["generate", "--model", "tiny-chat", "--chat", "--max-new-tokens", "1", *options, QUESTION]) == 0
    assert seen == [SamplingConfig(1, **expected | changes)]


def test_a_folder_that_says_nothing_of_sampling_and_one_that_says_nonsense(tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(TINY_CHAT, folder)
    (folder / MANIFEST).unlink()
    file = folder / "generation_config.json"
    settings = json.loads(file.read_text())
    ask = ["generate", "--model", str(folder), "--chat", QUESTION]

    file.write_text(json.dumps(settings | {"do_sample": False}))
    assert main(ask) == 0
    said = capsys.readouterr().out
    assert main([*ask, "--temperature", "0"]) == 0
    assert said == capsys.readouterr().out

    file.write_text(json.dumps(settings | {"temperature": "warm"}))
    assert main(ask) == 2
    words = "generation_config.json cannot be used: temperature is 'warm'; expected a number."
    assert words in capsys.readouterr().err


def test_a_stop_string_may_be_a_special_token(capsys):
    """At this temperature every token is equally likely; without a stop 200 tokens hold 15 that are special."""
    ask = ["generate", "--model", "tiny-chat", "--chat", "--temperature", "1000", "--top-k", "0", "--top-p", "1"]
    tokenizer = load_tokenizer(TINY_CHAT)
    special = [tokenizer.token(i) for i in range(480, 494) if i not in tokenizer.eos_token_ids]
    for seed in range(5):
        stops = [word for text in special for word in ("--stop", text)]
        assert main([*ask, *stops, "--max-new-tokens", "200", "--seed", str(seed), QUESTION]) == 0
        assert "cut off" not in capsys.readouterr().err


def test_stop_strings(capsys):
    ask = ["generate", "--model", "tiny-chat", "--chat", "--temperature", "0", QUESTION]
    assert main([*ask, "--stop", "</think>", "--stop", "never"]) == 0
    assert capsys.readouterr().out.endswith("2+1+1=4\n</think>\n")
    assert main([*ask, "--stop", ""]) == 2
    assert "expected a list of non-empty strings" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--system", "Be brief."], ["--enable-thinking"], ["--no-enable-thinking"]])
def test_what_is_for_chats_only(option, capsys):
    assert main(["generate", *option, "12+34="]) == 2
    assert f"error: {option[0].replace('--no-', '--')} is for chats: add --chat" in capsys.readouterr().err
