"""Prompts are looked at before the first step, and an error names the row that a prompt comes from."""

import warnings
from dataclasses import replace

import pytest

from mlx_grpo_kit.assets import TINY, TINY_CHAT
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.prompts import RawTextWarning, longest_prompt
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition, Problem, RowsTask, TaskError

ROWS = [{"question": f"{n}+{n}=", "answer": 2 * n} for n in range(20)]
CHATS = [{"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]} for row in ROWS]
OTHER = [row | {"question": row["question"] + " "} for row in ROWS]
ARGS = GRPOConfig(num_generations=4, per_device_train_batch_size=8, max_completion_length=8)


def trainer_of(folder, task, args=ARGS):
    return GRPOTrainer(*load_pretrained(folder), load_tokenizer(folder), task, args)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "1" * 249}, "^Row 21 of rows has 249 tokens. With 8 more it exceeds the model's 256 positions"),
        ({"question": "1+\u4f60="}, "^Row 21 of rows: This tokenizer has no token for '\u4f60'"),
        ({"prompt": CHATS[0]["prompt"]}, "^Row 21 of rows: This tokenizer's folder has no chat template"),
    ],
    ids=["long", "unknown character", "chat"],
)
def test_a_row_that_cannot_be_trained_on_is_named(row, words):
    task = RowsTask([*ROWS, {"answer": "1"} | row], held_out_rows=OTHER)
    with pytest.raises(TaskError, match=words):
        trainer_of(TINY, task)
    held_out = RowsTask(OTHER, held_out_rows=[*ROWS, {"answer": "1"} | row])
    with pytest.raises(TaskError, match=words.replace("rows", "rows, held out")):
        trainer_of(TINY, held_out)


def test_a_row_that_just_fits():
    task = RowsTask([*ROWS, {"question": "1" * 248, "answer": "1"}], held_out_rows=OTHER)
    assert next(iter(trainer_of(TINY, task).train(1))).step == 1


def test_a_row_that_the_template_refuses_is_named():
    task = RowsTask([*CHATS, {"prompt": [{"role": "user", "content": "1"}] * 2, "answer": 1}])
    tokenizer = load_tokenizer(TINY_CHAT)
    tokenizer.chat_template.source = "{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}x"
    with pytest.raises(TaskError, match=r"^Row 21 of rows: .*rejects this chat: one at a time"):
        longest_prompt(tokenizer, task, ARGS, 0)


def test_a_task_without_a_list_of_problems_fails_at_the_step_that_draws_a_bad_one():
    class Late(Addition):
        calls = 0

        def sample(self, rng, n):
            self.calls += 1
            return [Problem("1" * 250 if self.calls == 3 else "1+1=", "2", {"a": 1, "b": 1}) for _ in range(n)]

    trainer = trainer_of(TINY, Late())
    with pytest.raises(TaskError, match=r"^The prompt '1111.*' has 250 tokens. With 8 more it exceeds"):
        for _ in trainer.train(5):
            pass
    assert trainer.step == 2
    assert [step.step for step in trainer.train(3)] == [3]


def test_the_longest_prompt_of_all_problems():
    tokenizer = load_tokenizer(TINY)
    task = RowsTask([*ROWS, {"question": "1" * 99, "answer": "1"}], held_out_rows=OTHER)
    problem, ids = longest_prompt(tokenizer, task, ARGS, 0)
    assert (problem.text, len(ids)) == ("1" * 99, 99)
    assert len(longest_prompt(tokenizer, Addition(), ARGS, 256)[1]) == 6
    chat, put = load_tokenizer(TINY_CHAT), task.in_chat()
    thinking = GRPOConfig(chat_template_kwargs={"enable_thinking": True})
    for args in (ARGS, thinking):
        _, ids = longest_prompt(chat, put, args, 0)
        assert len(ids) == max(
            len(chat.encode_prompt(each.prompt, **{"enable_thinking": args is thinking})) for each in put.all_problems()
        )


def test_prompts_are_encoded_once_for_the_same_tokenizer(monkeypatch):
    """Of another folder with the same files too, as a checkpoint's is."""
    task, seen = RowsTask(ROWS), []
    for _ in range(2):
        tokenizer = load_tokenizer(TINY)
        encode = tokenizer.encode
        monkeypatch.setattr(tokenizer, "encode", lambda text, encode=encode: (seen.append(text), encode(text))[1])
        longest_prompt(tokenizer, task, ARGS, 0)
    assert len(seen) == len(ROWS)


def test_texts_for_a_model_that_chats_are_warned_of():
    words = r"The prompts of task 'rows' are plain texts, .* train on task\.in_chat\(\)"
    with pytest.warns(RawTextWarning, match=words) as warned:
        trainer_of(TINY_CHAT, RowsTask(ROWS, system="Be brief."))
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", RawTextWarning)
        trainer_of(TINY_CHAT, RowsTask(ROWS, system="Be brief.").in_chat())
        trainer_of(TINY_CHAT, RowsTask(CHATS))
        trainer_of(TINY_CHAT, Addition().in_chat())
        trainer_of(TINY, RowsTask(ROWS))


def rendered(task, tokenizer, **settings):
    """The rows of a task with their chats as the text that TRL's users hand over: rendered by the template."""
    rows = [
        {"prompt": tokenizer.render(each.prompt, **settings), "answer": each.answer} for each in task.all_problems()
    ]
    return RowsTask(rows)


@pytest.mark.parametrize("settings", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
def test_texts_that_are_rendered_already_are_not_warned_of(settings):
    task = rendered(RowsTask(CHATS), load_tokenizer(TINY_CHAT), **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer_of(TINY_CHAT, task)
    with pytest.warns(RawTextWarning):  # one of them is a plain text
        trainer_of(TINY_CHAT, RowsTask([*(each.data for each in task.all_problems()), ROWS[0]]))


def test_a_template_that_ends_a_turn_where_completions_do_not_end_is_warned_of():
    """As in the folders of Qwen3's base models."""
    tokenizer = load_tokenizer(TINY_CHAT)
    end, other = map(tokenizer.encode, ("<|im_end|>", "<|endoftext|>"))

    def trainer(task, args=ARGS, ends=other):
        tokenizer.eos_token_ids = ends
        return GRPOTrainer(*load_pretrained(TINY_CHAT), tokenizer, task, args)

    chats = RowsTask(CHATS)
    words = rf"ends the policy's turn with '<\|im_end\|>', but .* only at '<\|endoftext\|>' .*or add {end[0]} to"
    for task in (chats, RowsTask(ROWS).in_chat(), rendered(chats, tokenizer), Addition().in_chat()):
        with pytest.warns(UserWarning, match=words) as warned:
            trainer(task)
        assert [each.filename for each in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(chats, ends=[*other, *end])
        trainer(chats, replace(ARGS, stop_strings=["<|im_end|>"]))
        warnings.simplefilter("ignore", RawTextWarning)
        trainer(RowsTask(ROWS))


@pytest.mark.parametrize("folder", [TINY, TINY_CHAT], ids=["no template", "a template"])
def test_settings_of_a_chat_template_are_refused_where_prompts_are_texts(folder):
    args = replace(ARGS, chat_template_kwargs={"enable_thinking": True})
    with pytest.raises(ValueError, match=r"'enable_thinking': True\}, and the prompts of task 'rows' are plain texts"):
        trainer_of(folder, RowsTask(ROWS), args)


IN_CHAT = {"in_chat": RowsTask(ROWS).in_chat(), "chats": RowsTask(CHATS), "without a list": Addition().in_chat()}


@pytest.mark.parametrize("task", IN_CHAT.values(), ids=IN_CHAT)
def test_settings_of_a_chat_template_are_taken_where_prompts_are_chats(task):
    trainer_of(TINY_CHAT, task, replace(ARGS, chat_template_kwargs={"enable_thinking": True}))
    with pytest.raises(TaskError, match=r"does not use the setting 'enable_thinkin'\. Did you mean enable_thinking\?"):
        trainer_of(TINY_CHAT, task, replace(ARGS, chat_template_kwargs={"enable_thinkin": True}))
