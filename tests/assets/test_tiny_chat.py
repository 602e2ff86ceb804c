"""The tiny model that chats: its special tokens are Qwen3's, it thinks, and it can be made again."""

import json

import numpy as np
import pytest

from mlx_grpo_kit.assets import TINY_CHAT
from mlx_grpo_kit.assets.make.tiny_chat import make
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition


@pytest.fixture(scope="module")
def model():
    return *load_pretrained(TINY_CHAT), load_tokenizer(TINY_CHAT)


def answers(model, thinking, temperature, n=128):
    config, params, tokenizer = model
    task = Addition().in_chat(thinking=thinking)
    problems = task.held_out(n)
    prompts = [tokenizer.encode_prompt(problem.prompt, enable_thinking=thinking) for problem in problems]
    sampling = SamplingConfig(64, temperature=temperature)
    rollout = generate(config, params, prompts, sampling=sampling, eos_token_ids=tokenizer.eos_token_ids)
    texts = [tokenizer.decode(ids) for ids in rollout.completions]
    right = [task.is_correct(problem, text) for problem, text in zip(problems, texts, strict=True)]
    return prompts, rollout, texts, np.mean(right)


def test_the_weights_are_bfloat16():
    stored = mx.load(str(TINY_CHAT / "model-00001-of-00002.safetensors"))
    assert {value.dtype for value in stored.values()} == {mx.bfloat16}


def test_the_special_tokens_stand_as_qwen3_s_do():
    """Qwen3's are 151643 to 151668; here they begin where the smaller vocabulary ends."""
    tokens = json.loads((TINY_CHAT / "tokenizer.json").read_text())["added_tokens"]
    first = tokens[0]["id"]
    assert [token["id"] - first for token in tokens] == [*range(26)]
    known = {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>", 14: "<tool_call>", 24: "<think>", 25: "</think>"}
    assert {place: tokens[place]["content"] for place in known} == known
    assert [token["special"] for token in tokens] == [True] * 14 + [False] * 12
    ends = json.loads((TINY_CHAT / "generation_config.json").read_text())
    assert ends["eos_token_id"] == [first + 2, first]
    assert ends["pad_token_id"] == first


def test_thinking_is_worth_its_tokens(model):
    """What chapter 23 shows: sloppy answers at once, better ones behind a thought, and always an end."""
    _, at_once, texts, right = answers(model, thinking=False, temperature=1.0)
    _, behind_a_thought, thoughts, more = answers(model, thinking=True, temperature=1.0)
    assert 0.3 < right < 0.6
    assert more > right + 0.2
    assert all(text.startswith("<think>\n") for text in thoughts)
    assert not any("<think>" in text for text in texts)
    assert all(at_once.finished)
    assert all(behind_a_thought.finished)


def test_made_again_it_is_the_same_each_time(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        make(folder, steps=1)
    config, params = load_pretrained(one)
    _, again = load_pretrained(other)
    assert all(mx.array_equal(params[name], again[name]).item() for name in params)
    assert (one / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()
    assert (one / "tokenizer.json").read_bytes() == (TINY_CHAT / "tokenizer.json").read_bytes()
    assert {path.name for path in one.iterdir()} == {path.name for path in TINY_CHAT.iterdir()}
    assert config == load_pretrained(TINY_CHAT)[0]


def test_imitation_takes_it_from_the_tiny_model_s_digits(tmp_path):
    losses = make(tmp_path / "chat", steps=5)
    assert losses[4] < losses[0]  # the same pupil's
    load_pretrained(tmp_path / "chat")
