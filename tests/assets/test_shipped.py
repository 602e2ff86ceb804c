"""The models that ship are small Hugging Face folders, which transformers and mlx-lm read as the kit does."""

import mlx_lm
import numpy as np
import pytest
import torch
import transformers

from mlx_grpo_kit.assets import TINY, TINY_CHAT, TINY_STEPS, TINY_TOOLS
from mlx_grpo_kit.assets.make.imitation import CONFIG
from mlx_grpo_kit.files import MANIFEST, check_replaceable, check_saved
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo.recipe import model_folder
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition, Calculator, GuessTheNumber, LongSum
from mlx_grpo_kit.tasks.tools import task_tools

ONE_FILE = {"model.safetensors"}
TWO_FILES = {f"model-0000{n}-of-00002.safetensors" for n in (1, 2)} | {"model.safetensors.index.json"}


@pytest.mark.parametrize(
    ("name", "folder", "weights", "most"),
    [
        ("tiny", TINY, ONE_FILE, 3e6),
        ("tiny-steps", TINY_STEPS, ONE_FILE, 7e5),
        ("tiny-tools", TINY_TOOLS, ONE_FILE, 1e6),
        ("tiny-chat", TINY_CHAT, TWO_FILES, 1e6),
    ],
)
def test_a_folder_is_small_and_complete(name, folder, weights, most):
    files = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"} | weights
    assert {path.name for path in folder.iterdir()} == files | {MANIFEST}
    check_saved(folder, files)
    check_replaceable(folder)  # the program that made it makes it again in its place
    assert sum(path.stat().st_size for path in folder.iterdir()) < most
    assert model_folder(name) == folder
    if folder in (TINY, TINY_STEPS):
        assert load_pretrained(folder)[0] == CONFIG


def of_texts(*texts):
    return lambda ours, theirs: [(ours.encode(text), theirs(text)["input_ids"]) for text in texts]


def of_chats(ours, theirs):
    chat = [{"role": "user", "content": "What is 27+15? Answer as <answer>number</answer>."}]
    for settings in ({}, {"enable_thinking": False}):
        ids = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False, **settings)
        yield ours.encode_prompt(chat, **settings), ids


CALLS = [
    {"type": "function", "function": {"name": "calculate", "arguments": {"expression": "1+2"}}},
    {"type": "function", "function": {"name": "guess", "arguments": {"number": 7}}},
]
RESULTS = [{"role": "tool", "name": "calculate", "content": "3"}, {"role": "tool", "name": "guess", "content": "lower"}]


def of_tools(ours, theirs):
    for task in (Calculator(), GuessTheNumber()):
        schemas = task_tools(task).schemas(task.held_out(1)[0])
        for problem in task.held_out(5):
            chat = [*problem.prompt, {"role": "assistant", "content": "", "tool_calls": CALLS}, *RESULTS]
            ids = theirs.apply_chat_template(chat, tools=schemas, add_generation_prompt=True, return_dict=False)
            yield ours.encode_prompt(chat, tools=schemas), ids


SUMS = ["12+34=", "27+15=", "99+9=", "24 from 5 3 9:"]
LONG_SUMS = LongSum().held_out(3)


@pytest.mark.parametrize(
    ("folder", "asked"),
    [
        (TINY, of_texts(*SUMS)),
        (TINY_STEPS, of_texts(*(problem.prompt + problem.answer for problem in LONG_SUMS))),
        (TINY_CHAT, of_chats),
        (TINY_TOOLS, of_tools),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_transformers_finds_the_same_tokens_and_logits(folder, asked):
    config, params = load_pretrained(folder)
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert np.ravel(peer.generation_config.eos_token_id).tolist() == list(ours.eos_token_ids)
    for ids, their_ids in asked(ours, theirs):
        assert ids == their_ids
        with torch.no_grad():
            expected = peer(torch.tensor([ids])).logits.numpy()
        logits = np.array(qwen3_forward(config, params, mx.array([ids])))
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=2e-3 if folder == TINY_TOOLS else 1e-4)


@pytest.mark.parametrize(
    ("folder", "prompts"),
    [
        (TINY, SUMS),
        (TINY_STEPS, [problem.prompt for problem in LONG_SUMS]),
        (TINY_CHAT, [problem.prompt for problem in Addition().in_chat(thinking=True).held_out(2)]),
    ],
    ids=["tiny", "tiny-steps", "tiny-chat"],
)
def test_mlx_lm_answers_the_same(folder, prompts):
    config, params = load_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    peer, peer_tokenizer = mlx_lm.load(str(folder))
    peer.set_dtype(mx.float32)
    for prompt in map(tokenizer.encode_prompt, prompts):
        greedy = SamplingConfig(64, temperature=0.0)
        rollout = generate(config, params, [prompt], sampling=greedy, eos_token_ids=tokenizer.eos_token_ids)
        expected = mlx_lm.generate(peer, peer_tokenizer, prompt=prompt, max_tokens=64)
        assert tokenizer.decode(rollout.completions[0]) == expected.removesuffix("<eos>")
        assert len(expected) > 0
