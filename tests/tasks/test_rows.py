"""Tasks out of rows: lists, files of JSON lines, and Hugging Face's data sets."""

import collections
import functools
import json
import math
import warnings

import numpy as np
import pytest

from mlx_grpo_kit.grpo.rewards import compute_rewards
from mlx_grpo_kit.tasks import Addition, Countdown, RowsTask, TaskError, get_task
from mlx_grpo_kit.tasks.calls import held_out_problems
from mlx_grpo_kit.tasks.catalogue import validate_task
from tests.tasks.hostile import every_hostile_text


def row(a, b):
    """As GSM8K has them: the way in words and calculators' brackets, and behind #### the number with its commas."""
    question = f"Ada has {a} apples and buys {b} more. How many has she?"
    return {"question": question, "answer": f"{a}+{b}=<<{a}+{b}={a + b}>>{a + b}\n#### {a + b:,}"}


GSM8K = [row(a, b) for a in range(900, 1000, 10) for b in range(50, 150, 10)]


def write(path, *lines):
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n", encoding="utf-8"
    )
    return path


@pytest.fixture(scope="module")
def task():
    return RowsTask(GSM8K)


def test_gsm8k(task):
    validate_task(task)
    problem = task.held_out(1)[0]
    assert problem.answer == problem.data["answer"].rpartition("#### ")[2]
    number = int(problem.answer.replace(",", ""))
    for text in (
        f"{number}",
        f"{number:,}",
        f"{number}.0",
        f"so\n{number}",
        f"<answer>{number:,}</answer>",
        f"= {number}",
    ):
        assert task.is_correct(problem, text)
        assert task.reward_funcs[0]([problem], [text]) == [1.0]
    for text in (f"{number + 1}", "", f"{number} apples", f"<think>{number}", f"{number}1"):
        assert not task.is_correct(problem, text)


def test_the_split_is_by_what_is_asked(task):
    again = RowsTask(GSM8K[::-1])
    assert [p.prompt for p in task.held_out(10)] == [p.prompt for p in again.held_out(10)]
    drawn = {p.prompt for p in task.sample(np.random.default_rng(0), 2000)}
    assert len(drawn) == 90
    assert not drawn & {p.prompt for p in task.held_out(10)}
    assert task.sample(np.random.default_rng(1), 9) == task.sample(np.random.default_rng(1), 9)


def test_a_small_set_takes_what_there_is_and_says_so(task):
    with pytest.warns(UserWarning, match="'rows' has 10 held-out problems, not 256"):
        assert len(task.held_out(256)) == 10
    assert len(held_out_problems(task, 256)) == 10


def test_a_test_split_of_its_own():
    task = RowsTask(GSM8K[:60], held_out_rows=GSM8K[60:])
    assert {p.prompt for p in task.held_out(40)} == {row["question"] for row in GSM8K[60:]}
    assert {p.prompt for p in task.sample(np.random.default_rng(0), 900)} == {row["question"] for row in GSM8K[:60]}
    with pytest.warns(UserWarning, match="10 problems of rows are also held out"):
        task = RowsTask(GSM8K[:60], held_out_rows=GSM8K[50:])
    assert {p.prompt for p in task.sample(np.random.default_rng(0), 900)} == {row["question"] for row in GSM8K[:50]}
    with pytest.raises(TaskError, match="nothing is left"), pytest.warns(UserWarning, match="5 problems"):
        RowsTask(GSM8K[:5], held_out_rows=GSM8K)


def test_a_file(tmp_path, task):
    path = write(tmp_path / "sums.jsonl", *GSM8K[:50], "", *GSM8K[50:])
    read = RowsTask.from_file(path)
    assert read.name == "sums"
    assert read.held_out(10) == task.held_out(10)
    other = write(tmp_path / "test.jsonl", *GSM8K[90:])
    with pytest.warns(UserWarning, match="10 problems of sums"):
        both = get_task("rows", path=str(path), held_out_path=str(other))
    assert both.num_held_out == 10


def test_a_data_set_of_hugging_face(task):
    datasets = pytest.importorskip("datasets")
    read = RowsTask(datasets.Dataset.from_list(GSM8K))
    assert read.held_out(10) == task.held_out(10)
    with pytest.raises(TaskError, match="It has the splits train, test: pass one of them"):
        RowsTask(
            datasets.DatasetDict(
                {"train": datasets.Dataset.from_list(GSM8K), "test": datasets.Dataset.from_list(GSM8K)}
            )
        )


def test_rewards_of_ones_own_get_the_columns():
    def own(prompts, completions, answer, question, **kwargs):
        assert prompts == question
        return [float(a.endswith(f"#### {c}")) for a, c in zip(answer, completions, strict=True)]

    task = RowsTask(GSM8K, [own], lambda problem, text: text == "right")
    problem = task.held_out(1)[0]
    total, by_name = compute_rewards(task.reward_funcs, [problem] * 2, [problem.answer, "0"])
    assert total.tolist() == [1.0, 0.0]
    assert [*by_name] == ["own"]
    assert task.is_correct(problem, "right")


def test_rows_without_an_answer_and_rows_that_are_chats():
    rows = [{"prompt": [{"role": "user", "content": f"Say {i}."}]} for i in range(20)]
    task = RowsTask(rows, [lambda problems, completions: [0.0] * len(completions)], lambda problem, text: True)
    assert task.held_out(1)[0].text.startswith("Say")
    assert task.in_chat().held_out(2) == task.held_out(2)
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    for message in (call, {**call, "content": None}):  # as in OpenAI's format
        called = [{"prompt": [*row["prompt"], message]} for row in rows]
        assert RowsTask(called, task.reward_funcs, task.is_correct).held_out(1)[0].text == ""
    with pytest.raises(TaskError, match="expected a string, or a list of messages"):
        RowsTask([{"prompt": [{**call, "content": None, "tool_calls": None}]}], task.reward_funcs)
    with pytest.raises(
        TaskError, match=r"Row 1 of rows has no answer: it has 'prompt'; expected one of 'answer', 'solution'"
    ):
        RowsTask(rows)


def test_in_a_chat(task):
    chat = task.in_chat(thinking=True)
    validate_task(chat)
    assert chat.name == "rows-chat"
    assert chat.num_held_out == 10
    problem = chat.held_out(1)[0]
    assert problem.prompt[-1]["content"].endswith("How many has she?\nAnswer as <answer>number</answer>.")
    assert chat.is_correct(problem, f"<think>0</think><answer>{problem.answer}</answer>")
    words = RowsTask(
        [{"question": q, "answer": a} for q, a in (("Sky?", "Blue"), ("Grass?", " green"))], system="Be brief."
    )
    asked = words.in_chat().held_out(1)[0]
    assert [message["role"] for message in asked.prompt] == ["system", "user"]
    assert asked.text.endswith("<answer>your answer</answer>.")
    assert words.is_correct(asked, f"<answer>{asked.answer.upper()}</answer>")
    assert not words.is_correct(asked, "")


def test_names_of_columns_and_answers():
    rows = [{"q": f"{i}?", "a": i / 2} for i in range(20)]
    task = RowsTask(rows, prompt="q", answer="a", max_completion_length=7)
    problem = task.held_out(1)[0]
    assert task.is_correct(problem, str(problem.data["a"]))
    assert task.max_completion_length == 7
    boxed = RowsTask([{"problem": f"{i}?", "solution": rf"It is \boxed{{\frac{{{i}}}{{7}}}}."} for i in range(20)])
    problem = boxed.held_out(1)[0]
    assert boxed.is_correct(problem, f"{problem.text[:-1]}/7")
    assert boxed.is_correct(problem, rf"\boxed{{{problem.answer}}}")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (0.00005, ("0.00005", "5e-5", "5e-05", "1/20000")),
        (1e16, ("10000000000000000", "10,000,000,000,000,000", "1e16", "1e+16")),
        (np.float32(1e-7), ("0.0000001", "1e-7")),
        (1e300, ("1e300", "1" + "0" * 40 + "e260")),
        (10**70, (str(10**70),)),
        (-2.5, ("-2.5", "-5/2")),
    ],
)
def test_answers_that_are_numbers_are_matched_by_that_number(answer, said):
    task = RowsTask([{"question": f"{i}?", "answer": answer} for i in range(2)])
    problem = task.held_out(1)[0]
    for text in said:
        assert task.is_correct(problem, text), text
        assert not task.is_correct(problem, f"{text}1")
    assert "e" not in problem.answer or len(problem.answer) < 8


def test_a_box_behind_the_hashes_is_the_answer():
    task = RowsTask([{"question": f"{i}?", "answer": rf"Some words\n#### \boxed{{{i}}}"} for i in range(20)])
    for problem in task.all_problems():
        assert problem.answer == problem.text[:-1]
        assert task.is_correct(problem, rf"So it is \boxed{{{problem.answer}}}.")


def test_answers_of_several_lines():
    task = RowsTask([{"question": f"{i}?", "answer": "roses: Red\n\n violets:  blue"} for i in range(2)])
    problem = task.held_out(1)[0]
    for text in (
        "Roses: red\nviolets: blue",
        "They are\n\nroses: red\r\nviolets: blue\n",
        "<answer>\nroses: red\nviolets: blue\n</answer>",
        "<think>?</think>#### roses: red\nviolets: blue",
    ):
        assert task.is_correct(problem, text), text
    for text in ("roses: red violets: blue", "violets: blue", "violets: blue\nroses: red", "red\nblue", ""):
        assert not task.is_correct(problem, text), text


def test_a_box_of_several_lines_is_the_answer():
    """As some matrices in MATH are written: the last line alone would accept any other matrix."""
    matrices = [f"\\begin{{pmatrix}} {i} \\\\\n2 \\end{{pmatrix}}" for i in range(2)]
    task = RowsTask([{"problem": f"{i}?", "solution": f"So $\\boxed{{{each}}}$."} for i, each in enumerate(matrices)])
    problem = task.held_out(1)[0]
    right, wrong = sorted(matrices, key=lambda each: each not in problem.data["solution"])
    assert task.is_correct(problem, f"\\boxed{{{right}}}")
    assert task.is_correct(problem, right.replace("\n", " "))
    assert not task.is_correct(problem, f"\\boxed{{{wrong}}}")
    assert not task.is_correct(problem, right.rpartition("\n")[2])


def test_rows_that_ask_the_same_stay_rows_of_their_own():
    """As in TRL: a reward function may judge by any other column."""
    rows = [{"question": f"{i % 10}?", "answer": "1", "level": i // 10} for i in range(30)]
    task = RowsTask(rows, [lambda problems, completions: [0.0] * len(completions)])
    drawn = {(p.prompt, p.data["level"]) for p in task.sample(np.random.default_rng(0), 1000)}
    held_out = {(p.prompt, p.data["level"]) for p in task.held_out(task.num_held_out)}
    assert len(drawn) == 27
    assert len(held_out) == task.num_held_out == 3
    assert len({prompt for prompt, _ in held_out}) == 1
    assert len(task.all_problems()) == 30
    with pytest.warns(UserWarning, match="15 problems of rows are also held out"):
        assert RowsTask(rows, held_out_rows=rows[:5] + rows[10:15]).num_held_out == 10


class Game:
    """An environment, as many of which play by rows that all ask the same."""

    def reset(self, **row): ...


def zeros(problems, completions):
    return [0.0] * len(completions)


@pytest.mark.parametrize("make", [functools.partial(RowsTask, GSM8K), Addition, Countdown])
def test_reward_functions_are_one_or_several_and_never_a_name(make):
    """As in TRL, where a name is that of a reward model."""
    assert make(reward_funcs=zeros).reward_funcs == [zeros]
    assert make(reward_funcs=(zeros, len)).reward_funcs == [zeros, len]
    for given in ("accuracy", ["accuracy"], [zeros, None], 5):
        with pytest.raises(TaskError, match=r"reward_funcs has .*; expected a function.* rows\.correct .*tags_reward"):
            make(reward_funcs=given)


PLAY = [{"prompt": [{"role": "user", "content": "Play."}], "secret": i} for i in range(1000)]


@pytest.mark.parametrize("rows", [PLAY, [{"prompt": PLAY[0]["prompt"]}] * 1000], ids=["secrets", "all alike"])
def test_rows_of_an_environment_count_one_by_one(rows):
    task = RowsTask(rows, [zeros], lambda problem, text: True, environment_factory=Game)
    assert (task.num_train, task.num_held_out) == (900, 100)
    assert sorted(p.place for p in task.all_problems()) == sorted(f"Row {n} of rows" for n in range(1, 1001))
    again = RowsTask(rows, [zeros], lambda problem, text: True, environment_factory=Game)
    assert [p.place for p in again.held_out(100)] == [p.place for p in task.held_out(100)]
    alike = RowsTask(rows[:90], [zeros], task.is_correct, environment_factory=Game, held_out_rows=rows[:9])
    assert (alike.num_train, alike.num_held_out) == (90, 9)
    with pytest.raises(
        TaskError, match=r"rows has one problem in 1,000 rows, .*held_out_rows=\.\.\., which may be \[\]"
    ):
        RowsTask(rows, [zeros], task.is_correct)


def test_rewards_of_environments_get_them_in_a_chat_too():
    def secrets(environments, **kwargs):
        return environments

    task = RowsTask(PLAY, secrets, lambda problem, text: True, environment_factory=Game)
    for each in (task, task.in_chat()):
        total, _ = compute_rewards(each.reward_funcs, each.held_out(2), ["7", "8"], environments=[0.25, 0.5])
        assert total.tolist() == [0.25, 0.5]


def test_every_environment_is_trained():
    def asks(name, count):
        return [{"prompt": [{"role": "user", "content": f"Play {name}."}], "environment": name}] * count

    own = {"reward_funcs": [zeros], "is_correct": lambda problem, text: True}
    task = RowsTask([*asks("go", 50), *asks("chess", 50)], **own, environment_factory={"go": Game, "chess": Game})
    counts = collections.Counter(problem.data["environment"] for problem in task.in_order(0, 0, task.num_train))
    assert task.num_train == 90
    assert min(counts["go"], counts["chess"]) > 35
    factories = {"go": Game, "chess": Game}
    with pytest.warns(UserWarning, match="All rows of the environment 'chess' are held out: it is never trained"):
        RowsTask(asks("go", 20), **own, environment_factory=factories, held_out_rows=asks("chess", 1))


def test_nothing_is_held_out_if_the_rows_for_it_are_an_empty_list():
    task = RowsTask(GSM8K, held_out_rows=[])
    assert (task.num_train, task.num_held_out) == (100, 0)
    assert next(task.in_chat().all_problems()).text.endswith("<answer>number</answer>.")
    for asked in (task, task.in_chat()):
        with pytest.raises(TaskError, match=r"holds no problems out .*nothing to evaluate on.*held_out_rows=test_rows"):
            held_out_problems(asked, 256)
    assert RowsTask(GSM8K[:1], held_out_rows=()).num_train == 1
    with pytest.raises(TaskError, match="held out has no rows"):  # such as a file that was cut off
        RowsTask(GSM8K, held_out_rows=iter([]))


def test_far_more_than_a_tenth_held_out_is_warned_of():
    rows = [{"question": f"{i % 2}?", "answer": "1"} for i in range(1000)]
    with pytest.warns(UserWarning, match=r"500 of 1,000 rows of rows are held out, because rows with the same prompt"):
        RowsTask(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RowsTask(rows[:2])
        RowsTask([{"question": f"{i % 10}?", "answer": "1"} for i in range(1000)])
        RowsTask(GSM8K[:10], held_out_rows=GSM8K[10:])


def test_questions_that_come_twice_with_different_answers():
    with pytest.warns(UserWarning, match="1 of 21 rows of rows have the same prompt as another row but a different"):
        RowsTask([*GSM8K[:20], {**GSM8K[3], "answer": "5"}])


def test_rows_without_answers_need_reward_functions_alone():
    def length(problems, completions):
        return [float(len(text)) for text in completions]

    for more in ({}, {"answer": None}, {"answer": ["two", "answers"]}):
        rows = [{"prompt": f"Say {i}."} | more for i in range(20)]
        with pytest.warns(UserWarning, match="20 of 20 rows of rows have no answer, and is_correct is not set"):
            task = RowsTask(rows, [length])
        problem = task.held_out(1)[0]
        assert (problem.answer, problem.data) == ("", rows[int(problem.prompt[4:-1])])
        assert not task.is_correct(problem, "")
        assert not task.is_correct(problem, problem.prompt)
        assert task.in_chat().held_out(1)[0].prompt == [{"role": "user", "content": problem.prompt}]
        with pytest.raises(TaskError, match="Row 1 of rows has"):
            RowsTask(rows)
    with pytest.raises(TaskError, match="Row 1 of rows has no answer: it has 'prompt', 'answer'; expected 'target'"):
        RowsTask(rows, [length], answer="target")


def test_a_system_prompt_is_that_of_chats_that_have_none():
    user, own = {"role": "user", "content": "1?"}, {"role": "system", "content": "You are a pirate."}
    rows = [{"prompt": [user]}, {"prompt": [own, {**user, "content": "2?"}]}, {"prompt": "3?"}]
    task = RowsTask(rows, [lambda problems, completions: []], lambda problem, text: True, system="Be brief.")
    first, second, third = sorted(task.in_chat().all_problems(), key=lambda problem: problem.text)
    assert first.prompt == [{"role": "system", "content": "Be brief."}, user]
    assert second.prompt == rows[1]["prompt"]
    assert third.prompt == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3?"}]
    without = RowsTask(rows, task.reward_funcs, task.is_correct)
    assert [p.place for p in task.all_problems()] == [p.place for p in without.all_problems()]


def test_a_length_that_is_given_holds_in_a_chat_too():
    task = RowsTask(GSM8K, max_completion_length=16)
    assert [task.in_chat(thinking=thinking).max_completion_length for thinking in (False, True)] == [16, 16]
    task = RowsTask(GSM8K)
    assert [task.in_chat(thinking=thinking).max_completion_length for thinking in (False, True)] == [256, 1024]
    assert task.max_completion_length == 256


def test_problems_know_their_row(tmp_path):
    path = write(tmp_path / "sums.jsonl", "", *GSM8K[:20])
    task = RowsTask.from_file(path)
    for listed in (task, task.in_chat()):
        places = {p.data["question"]: p.place for p in listed.all_problems()}
        assert places == {row["question"]: f"{path}, line {n}" for n, row in enumerate(GSM8K[:20], start=2)}
    assert {p.place for p in RowsTask(GSM8K).held_out(10)} <= {f"Row {n} of rows" for n in range(1, 101)}


LINE = json.dumps(GSM8K[0])
BAD_FILES = {
    "nothing": ([], "problems has no rows"),
    "one row": ([LINE], "problems has one problem"),
    "no JSON": ([LINE, LINE[:-4]], "problems.jsonl, line 2 is not JSON"),
    "not JSON after an empty line": ([LINE, "", "x"], "line 3 is not JSON"),
    "NaN": (['{"question": "1?", "answer": NaN}'], r"line 1 is not JSON \(NaN is not a number\)"),
    "a huge line": ([LINE, '{"question": "' + "x" * 10_000_000 + '"}'], "line 2 has more than 1,048,576 bytes"),
    "a list": ([f"[{LINE}]"], "line 1 is a list; expected an object"),
    "no question": ([LINE, '{"answer": "1"}'], "line 2 has no prompt: it has 'answer'; expected one of 'prompt', "),
    "no answer": ([LINE, '{"question": "1?"}'], "line 2 has no answer"),
    "an empty question": ([LINE, '{"question": " ", "answer": "1"}'], "line 2 has the prompt ' '; expected a string"),
    "no text": ([LINE, '{"question": 3, "answer": "1"}'], "line 2 has the prompt 3; expected a string"),
    "no answer's kind": ([LINE, '{"question": "1?", "answer": [1]}'], r"line 2 has the answer \[1\]; expected a "
    "string"),
    "an empty answer": ([LINE, '{"question": "1?", "answer": null}'], "line 2 has the answer None"),
    "nothing behind ####": ([LINE, '{"question": "1?", "answer": "so ####"}'], "line 2 has the answer .* after its"),
    "a box that is not closed": ([LINE, '{"question": "1?", "answer": "\\\\boxed{3"}'], "line 2 has .* not closed"),
    "an empty box": ([LINE, '{"question": "1?", "answer": "$\\\\boxed{}$"}'], "line 2 has the answer .* in its box"),
    "half a character": ([LINE, '{"question": "\\ud800", "answer": "1"}'], "line 2 has a prompt that is not valid "
    "text"),
    "brackets without end": ([LINE, "[" * 100_000], "line 2 is not JSON"),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "words"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files_are_refused_by_line(lines, words, tmp_path):
    with pytest.raises(TaskError, match=words):
        RowsTask.from_file(write(tmp_path / "problems.jsonl", *lines))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "rows has no rows"),
        ([GSM8K[0], "text"], "Row 2 of rows is a str; expected a dictionary"),
        ([GSM8K[0], {"question": "?", "answer": math.nan}], "Row 2 of rows has the answer nan"),
        ([GSM8K[0], {"question": "?", "answer": 10**5000}], "Row 2 of rows has an answer that cannot be written"),
        ([GSM8K[0], {"question": "?", "answer": True}], "Row 2 of rows has the answer True"),
        (
            [{"prompt": [{"role": "user", "content": "?", "more": {1, 2}}], "answer": "1"}],
            "Row 1 of rows has a prompt that is not valid text",
        ),
        *(
            (
                [GSM8K[0], {"prompt": chat, "answer": "1"}],
                "Row 2 of rows has the prompt .*; expected a string, or a list",
            )
            for chat in (
                [],
                [{"role": "user"}],
                [{"content": "?"}],
                [{"role": "user", "content": None}],
                [{"role": "user", "content": [{"type": "text", "text": "?"}]}],
                [{"role": "user", "content": "?"}, "and?"],
            )
        ),
        ({"train": GSM8K}, "It has the splits train"),
        ("problems.jsonl", "are a str; expected an iterable"),
        (5, "are a int; expected an iterable"),
    ],
)
def test_bad_rows_are_refused(rows, words):
    with pytest.raises(TaskError, match=words):
        RowsTask(rows)


def test_numbers_of_numpy_are_answers():
    rows = [{"question": f"{i}?", "answer": kind(i)} for i, kind in enumerate((np.int64, np.float32, np.uint8))]
    task = RowsTask(rows)
    problems = [*task.held_out(1), *task.sample(np.random.default_rng(0), 20)]
    assert all(task.is_correct(problem, problem.text[0]) for problem in problems)


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError):
        RowsTask.from_file(tmp_path / "nothing.jsonl")
    with pytest.raises(ValueError, match="is a folder; expected a file"):
        RowsTask.from_file(tmp_path)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="line 1 is not JSON"):
        RowsTask.from_file(tmp_path / "binary.jsonl")


@every_hostile_text
def test_hostile_completions_score_zero(task, hostile_text):
    words = RowsTask([{"question": q, "answer": a} for q, a in (("Sky?", "Blue"), ("Grass?", "green"))])
    for each in (task, words):
        assert not each.is_correct(each.held_out(1)[0], hostile_text)


def test_an_epoch_has_every_problem_once_in_an_order_of_its_own():
    rows = [{"prompt": f"{n}=", "answer": n} for n in range(50)]
    task = RowsTask(rows)
    size = task.num_train
    assert 40 <= size < 50
    prompts = [problem.prompt for problem in task.in_order(3, 0, 3 * size)]
    epochs = [prompts[i * size : (i + 1) * size] for i in range(3)]
    trained = {problem.prompt for problem in task.all_problems()} - {
        problem.prompt for problem in task.held_out(50 - size)
    }
    assert all(sorted(epoch) == sorted(trained) for epoch in epochs)
    assert len({*map(tuple, epochs)}) == 3
    pieces = [problem.prompt for start in range(0, 3 * size, 7) for problem in RowsTask(rows).in_order(3, start, 7)]
    assert pieces[: 3 * size] == prompts, "any step can be asked for by itself"
    assert [problem.prompt for problem in task.in_order(4, 0, size)] != epochs[0]
    chat = task.in_chat()
    assert [problem.prompt[0]["content"].split("\n")[0] for problem in chat.in_order(3, 5, 4)] == prompts[5:9]
    assert chat.num_train == size
    assert not hasattr(Addition().in_chat(), "in_order")


def test_a_missing_file_is_named_with_what_is_expected(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"There is no file .*nowhere\.jsonl; expected a file with a JSON object"
    ):
        RowsTask.from_file(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda values: [np.int64(each) for each in values]])
@pytest.mark.parametrize("name", ["nums", "numbers"])
def test_rows_of_countdown_are_judged_by_the_target(name, kind):
    """The columns of Countdown-Tasks-3to4."""
    numbers = [44, 19, 35]
    rows = [{"prompt": f"{n}: make 98 from 44, 19 and 35.", "target": 98, name: kind(numbers)} for n in range(20)]
    task = RowsTask(rows)
    problem = task.held_out(1)[0]
    right = [
        "44+19+35",
        "<answer>(44 + 19) + 35 = 98</answer>",
        "<think>x</think>\n\\boxed{35+19+44}",
        "#### 44+19+35\n",
    ]
    wrong = ["98", "<answer>98</answer>", "44+19+35 = 97", "44+54", "<think>44+19+35", "98 = 98", "9**9**9"]
    wrong += ["(" * 10_000]
    for judged in (task, task.in_chat()):
        assert [judged.is_correct(problem, text) for text in right + wrong] == [True] * 4 + [False] * 8
        [function] = judged.reward_funcs
        assert function([problem] * 12, right + wrong) == [1.0] * 4 + [0.0] * 8
    given = RowsTask(rows, answer="target").held_out(1)[0]
    assert task.is_correct(given, "98")
    others = [{"prompt": f"{n}?", "target": 98, name: "44 19"} for n in range(20)]
    assert RowsTask(others).is_correct(RowsTask(others).held_out(1)[0], "98")


@pytest.mark.parametrize(
    ("answer", "said"),
    [("...\n#### 42", "#### 42\nThat is it."), ("#### 42\nsource: a book", "42"), ("#### 42 apples", "42"),
     ("42", "#### $42 a day"), ("(1, 2)", r"so \boxed{(1,2)}."),
     ("-5", "-$5"), ("#### 42 apples", "#### 42 apples\nDone"), ("42 apples", "<answer>42 apples</answer>"),
     (r"\$72", "72")],
)  # fmt: skip
def test_answers_in_other_notations(answer, said):
    task = RowsTask([{"question": f"{n}?", "answer": answer} for n in range(2)])
    problem = task.held_out(1)[0]
    assert task.is_correct(problem, said)
    assert not task.is_correct(problem, said.replace("2", "3").replace("5", "6"))
