"""The tiny model that ships: it knows its tasks by halves, and is able to learn the rest."""

import numpy as np
import pytest

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition, get_task


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
