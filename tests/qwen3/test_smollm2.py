"""A real pretrained model: SmolLM2's logits, tokens and chats are those of transformers."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mlx_grpo_kit.generation import MLXDecoder, SamplingConfig, generate
from mlx_grpo_kit.grpo.learners import TorchDecoder
from mlx_grpo_kit.grpo.learners.torch_qwen3 import completion_logps
from mlx_grpo_kit.grpo.logps import PaddedBatch, batch_logps, pad_batch
from mlx_grpo_kit.grpo.recipe import default_args, model_folder
from mlx_grpo_kit.qwen3 import count_total_parameters, load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.runtime import mx
from tests.backends.small_qwen3 import padded

CHAT = [{"role": "user", "content": "What is the capital of France?"}]
# Logits after "The capital of France is" of the model that transformers 5.23 reads from the GGUF itself.
FROM_GGUF = {" Paris": 17.371262, " the": 14.888595, " London": 13.244979}


@pytest.fixture(scope="module")
def theirs(smollm2):
    return AutoModelForCausalLM.from_pretrained(smollm2), AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="module")
def ours(smollm2):
    return *load_pretrained(smollm2), load_tokenizer(smollm2)


def test_it_is_found_by_its_name(smollm2):
    assert model_folder("smollm2") == smollm2
    assert default_args("smollm2")["learning_rate"] == 1e-5
    assert "license: apache-2.0" in (smollm2 / "README.md").read_text()
    assert "Apache License" in (smollm2 / "LICENSE").read_text()


def test_tokens_and_chats(ours, theirs):
    *_, tokenizer = ours
    _, reference = theirs
    for text in (
        "The capital of France is 12+345?",
        "  héllo\n\n日本語 😀 don't I'LL\t\n 1234567",
        "<|im_start|>user\n",
    ):
        ids = reference(text).input_ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == reference.decode(ids) == text
    assert len(tokenizer.encode("1234567890")) == 10
    rendered = reference.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert tokenizer.render(CHAT) == rendered
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


def test_the_folder_has_the_weights_of_the_gguf(ours):
    config, params, tokenizer = ours
    logits = qwen3_forward(config, params, mx.array([tokenizer.encode("The capital of France is")]))[0, -1]
    found = {text: logits[tokenizer.encode(text)[0]].item() for text in FROM_GGUF}
    assert found == pytest.approx(FROM_GGUF, abs=1e-3)


def test_logits_and_greedy_tokens(ours, theirs):
    config, params, tokenizer = ours
    model, _ = theirs
    assert count_total_parameters(config) == sum(p.numel() for p in model.parameters()) == 134_515_008
    prompt = tokenizer.encode_prompt(CHAT)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits.numpy()
        greedy = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :].tolist()
    found = np.array(qwen3_forward(config, params, mx.array([prompt])))
    assert abs(expected).max() > 30
    np.testing.assert_allclose(found, expected, atol=1e-3)
    sampling = SamplingConfig(12, temperature=0)
    rollout = generate(config, params, [prompt], sampling=sampling, eos_token_ids=tokenizer.eos_token_ids)
    assert rollout.completions == [greedy]
    assert tokenizer.decode(greedy) == "The capital of France is Paris."


@pytest.mark.parametrize("decoder", [MLXDecoder, TorchDecoder])
def test_samplers_and_learners_agree_with_transformers(ours, theirs, decoder):
    """Greedy tokens, and log-probabilities of drawn ones as the sampler, MLX's learner and torch's compute them."""
    config, params, tokenizer = ours
    model, _ = theirs
    prompts = [tokenizer.encode_prompt([{"role": "user", "content": text}]) for text in ("Count to 5.", "12+34?")]
    rows = [prompt for prompt in prompts for _ in range(2)]
    greedy = generate(config, params, prompts, sampling=SamplingConfig(10, 0.0), decoder=decoder)
    drawn = generate(config, params, rows, sampling=SamplingConfig(10, 1.0), seed=3, decoder=decoder)
    for prompt, completion in zip(prompts, greedy.completions, strict=True):
        likeliest = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=10, eos_token_id=None)
        assert completion == likeliest[0, len(prompt) :].tolist()
    assert len({*map(tuple, drawn.completions)}) == 4
    (prompt_ids, prompt_mask), (ids, mask) = padded(prompts, "left"), padded(drawn.completions, "right")
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in params.items()}
    prompt_ids, prompt_mask, ids, counted = map(torch.from_numpy, (prompt_ids, prompt_mask, ids, mask == 1))
    batch = PaddedBatch(prompt_ids, prompt_mask, len(ids) // len(prompt_ids), ids, counted)
    of_torch = completion_logps(config, tensors, batch)
    of_mlx = batch_logps(config, params, pad_batch(config, rows, drawn.completions))
    with torch.no_grad():
        for row, (prompt, completion) in enumerate(zip(rows, drawn.completions, strict=True)):
            logps = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            expected = logps.gather(-1, torch.tensor(completion)[:, None])[:, 0].numpy()
            for found in (drawn.logps[row], of_mlx[0][row], of_torch[0][row]):
                np.testing.assert_allclose(found, expected, atol=1e-3)
