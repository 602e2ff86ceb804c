"""The tiny model that ships: a real Hugging Face folder, knowing its tasks by halves, and able to learn the rest."""

import mlx_lm
import numpy as np
import pytest
import torch
import transformers

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.assets.make.imitation import CONFIG
from mlx_grpo_kit.files import MANIFEST, check_replaceable, check_saved
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition, get_task

PROMPTS = ["12+34=", "27+15=", "99+9=", "24 from 5 3 9:"]


def test_small_and_complete():
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert {path.name for path in TINY.iterdir()} == names | {MANIFEST}
    check_saved(TINY, names)
    check_replaceable(TINY)  # `assets/make/tiny.py` makes it again in its place
    assert sum(path.stat().st_size for path in TINY.iterdir()) < 3e6
    config, _ = load_pretrained(TINY)
    assert config == CONFIG


def test_transformers_reads_it_with_equal_logits():
    config, params = load_pretrained(TINY)
    tokenizer = load_tokenizer(TINY)
    peer_tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    peer = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        assert peer_tokenizer(prompt)["input_ids"] == ids
        with torch.no_grad():
            expected = peer(torch.tensor([ids])).logits.numpy()
        logits = np.array(qwen3_forward(config, params, mx.array([ids])))
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_mlx_lm_reads_it_and_answers_the_same():
    config, params = load_pretrained(TINY)
    tokenizer = load_tokenizer(TINY)
    peer, peer_tokenizer = mlx_lm.load(str(TINY))
    for prompt in PROMPTS:
        rollout = generate(
            config,
            params,
            [tokenizer.encode(prompt)],
            sampling=SamplingConfig(max_new_tokens=8, temperature=0.0),
            eos_token_ids=tokenizer.eos_token_ids,
        )
        expected = mlx_lm.generate(peer, peer_tokenizer, prompt=prompt, max_tokens=8)
        assert tokenizer.decode(rollout.completions[0]) == expected.removesuffix("<eos>")
        assert len(expected) > 0


@pytest.mark.parametrize(("task", "lowest", "highest"), [("addition", 0.3, 0.5), ("countdown", 0.1, 0.4)])
def test_it_starts_half_knowing(task, lowest, highest):
    config, params = load_pretrained(TINY)
    trainer = GRPOTrainer(config, params, load_tokenizer(TINY), get_task(task))
    assert lowest <= trainer.evaluate(num_problems=512)["eval/accuracy"] <= highest


def test_it_forgets_carries_as_its_pupils_did():
    """The likeliest answer to a sum with a carry is wrong: this is what imitation cannot mend and GRPO does."""
    config, params = load_pretrained(TINY)
    tokenizer = load_tokenizer(TINY)
    problems = [p for p in Addition().held_out(1000) if p.data["a"] % 10 + p.data["b"] % 10 >= 10]
    rollout = generate(
        config,
        params,
        [tokenizer.encode(problem.prompt) for problem in problems],
        sampling=SamplingConfig(max_new_tokens=4, temperature=0.0),
        eos_token_ids=tokenizer.eos_token_ids,
    )
    answers = [tokenizer.decode(ids) for ids in rollout.completions]
    forgotten = [text == str(int(p.answer) - 10) for text, p in zip(answers, problems, strict=True)]
    assert np.mean(forgotten) > 0.7


def test_a_hundred_steps_of_grpo_show():
    config, params = load_pretrained(TINY)
    settings = GRPOConfig(learning_rate=5e-4, per_device_train_batch_size=64)
    trainer = GRPOTrainer(config, params, load_tokenizer(TINY), Addition(), settings)
    before = trainer.evaluate(num_problems=512)["eval/accuracy"]
    for _ in trainer.train(max_steps=100):
        pass
    assert trainer.evaluate(num_problems=512)["eval/accuracy"] > before + 0.12
