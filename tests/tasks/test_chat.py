"""The kit's tasks as chats."""

import copy

import numpy as np
import pytest
from trl.rewards import think_format_reward

from mlx_grpo_kit.grpo.rewards import compute_rewards
from mlx_grpo_kit.tasks import Addition, Countdown, Problem
from mlx_grpo_kit.tasks.addition import correct
from mlx_grpo_kit.tasks.catalogue import validate_task
from mlx_grpo_kit.tasks.chat import InChat
from mlx_grpo_kit.tasks.formats import THINK_ANSWER, format_reward, tags_reward
from tests.tasks.hostile import every_hostile_text


def scores(task, problem, completion):
    return {function.__name__: function([problem], [completion])[0] for function in task.reward_funcs}


@pytest.fixture(scope="module")
def addition():
    return Addition().in_chat()


@pytest.fixture(scope="module")
def countdown():
    return Countdown().in_chat()


@pytest.mark.parametrize("kind", [Addition, Countdown])
def test_the_same_problems_asked(kind):
    plain, chat = kind(), kind().in_chat()
    validate_task(chat)
    assert chat.name == f"{plain.name}-chat"
    pairs = [(plain.sample(np.random.default_rng(3), 20), chat.sample(np.random.default_rng(3), 20))]
    pairs.append((plain.held_out(20), chat.held_out(20)))
    for ours, asked in pairs:
        for one, other in zip(ours, asked, strict=True):
            assert (one.answer, one.data) == (other.answer, other.data)
            (message,) = other.prompt
            assert message["role"] == "user"
            assert other.text == message["content"]
            assert "Answer as <answer>" in other.text
            assert chat.is_correct(other, f"<think>no</think>So:\n<answer>{other.answer}</answer>")
            assert not chat.is_correct(other, f"<answer>{other.answer}1</answer>")


def test_thinking_takes_longer():
    short, long = Addition().in_chat(), Addition().in_chat(thinking=True)
    assert short.chat_template_kwargs == {"enable_thinking": False}
    assert long.chat_template_kwargs == {"enable_thinking": True}
    assert long.max_completion_length > short.max_completion_length >= 128


@pytest.mark.parametrize(
    "text", ["46", "46.", "**46**", "12 + 34 = 46", r"\boxed{46}", "<think>x</think>46", "46.0", "\t46\n"]
)
def test_sums_that_are_right(addition, text):
    assert scores(addition, addition.put(addition.problem(12, 34)), text) == {"correct": 1.0}


@pytest.mark.parametrize(
    "text", ["45", "12 + 34", "46 47", "<think>46", "<answer>46", "46.5", "46 apples", "46=45", "= 46 ="]
)
def test_sums_that_are_not(addition, text):
    problem = addition.put(addition.problem(12, 34))
    assert scores(addition, problem, text) == {"correct": 0.0}
    assert not addition.is_correct(problem, text)


@pytest.mark.parametrize(
    "text",
    ["5 * 3 + 9 = 24", "<answer>5*3+9</answer>", "<think>5*3 is 15</think>\n5*3+9", r"$5 \times 3 + 9 = 24$",
     r"\boxed{9+(5*3)}", "The way:\n\n**5*3+9**", "9 + 5 * 3 = 24.0"],
)  # fmt: skip
def test_games_that_are_right(countdown, text):
    problem = countdown.put(countdown.problem(24, (5, 3, 9), "5*3+9"))
    assert scores(countdown, problem, text) == {"correct": 1.0, "uses_numbers": 0.1}


@pytest.mark.parametrize(
    "text", ["24", "24 = 24", "5*3+9=25", "5*3+9=24=24", "<think>5*3+9", "5*3+10", "3*8 = 24", "5 3 9"]
)
def test_games_that_are_not(countdown, text):
    problem = countdown.put(countdown.problem(24, (5, 3, 9), "5*3+9"))
    assert not countdown.is_correct(problem, text)
    assert scores(countdown, problem, text)["correct"] == 0.0


# What white space and a sentence's marks are to a chat, and `46.0` and `046` are the number 46 there.
READ_IN_CHAT = {"46.0", "+46", "046", "46\n", "\t46"}


@every_hostile_text
def test_hostile_completions_score_zero(addition, countdown, hostile_text):
    for text in (hostile_text, f"<answer>{hostile_text}</answer>", f"\\boxed{{{hostile_text}}}"):
        if hostile_text not in READ_IN_CHAT:
            assert scores(addition, addition.put(addition.problem(12, 34)), text) == {"correct": 0.0}
        problem = countdown.put(countdown.problem(24, (5, 3, 9), "5*3+9"))
        assert scores(countdown, problem, text) == {"correct": 0.0, "uses_numbers": 0.0}


def test_reward_functions_get_completions_as_they_were_written():
    def ours(problems, completions):
        return [float(completion == good) for completion in completions]

    def sums(prompts, completions, answer, a, **kwargs):
        assert prompts[0][0]["role"] == "user"
        texts = [completion[0]["content"] for completion in completions]
        return [float(text == good and right in text) for text, right in zip(texts, answer, strict=True)]

    good = "<think>x</think>\n<answer>46</answer>"
    functions = [correct, ours, sums, tags_reward(), format_reward(THINK_ANSWER), think_format_reward]
    task = Addition(reward_funcs=functions).in_chat()
    problem = task.put(Addition.problem(12, 34))
    _, found = compute_rewards(task.reward_funcs, [problem, problem], [good, "46"])
    assert {name: values.tolist() for name, values in found.items()} == {
        "correct": [1, 1],
        **{name: [1, 0] for name in ("ours", "sums", "tags", "format", "think_format_reward")},
    }


def test_functions_that_ask_for_tokens_get_them():
    def short(completions, completion_ids, **kwargs):
        return [float(len(ids) < 3) for ids in completion_ids]

    def kits(problems, completions, completion_ids=None):
        return [float(len(ids) < 3) for ids in completion_ids]

    for function in (short, kits):
        task = Addition(reward_funcs=[function]).in_chat()
        total, _ = compute_rewards(task.reward_funcs, task.held_out(2), ["46", "46"], completion_ids=[[4, 6], [4] * 9])
        assert total.tolist() == [1.0, 0.0]


def test_a_chat_is_copied_and_has_its_task_s_members(addition):
    assert copy.deepcopy(addition).held_out(3) == addition.held_out(3)
    assert addition.max_operand == 99
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = addition.nothing_like_it


def test_a_system_prompt():
    task = InChat(Addition(), lambda problem: "?", system="Be brief.")
    assert [message["role"] for message in task.held_out(1)[0].prompt] == ["system", "user"]


def test_problems_of_a_chat_can_be_counted():
    one, same = (Problem([{"role": "user", "content": "12+34?"}], "46") for _ in range(2))
    assert one == same
    assert len({one, same, Problem("12+34?", "46")}) == 2
