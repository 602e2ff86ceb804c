"""The page of all of GRPO is the trainer's first step, and it learns."""

import re
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, draw_batch, minimal
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import get_task


@pytest.mark.parametrize("seed", [0, 7])
def test_its_first_gradient_is_the_trainers(seed):
    (config, params), tokenizer, task = load_pretrained(TINY), load_tokenizer(TINY), get_task("addition")
    size = minimal.NUM_PROMPTS * minimal.NUM_GENERATIONS
    args = GRPOConfig(num_generations=minimal.NUM_GENERATIONS, per_device_train_batch_size=size, seed=seed)
    trainer = GRPOTrainer(config, params, tokenizer, task, args)
    batch = draw_batch(trainer.parts, trainer.policy, step=0)
    learner = trainer.parts.learner
    expected, metrics = learner.gradient(trainer.policy, learner.prepare(trainer.policy, batch)[0])

    prompts, completions, rewards = minimal.sample(config, params, tokenizer, task, step=0, seed=seed)
    loss, found = minimal.gradient(config, params, prompts, completions, rewards)
    assert completions == batch.completions.completion_ids
    np.testing.assert_array_equal(rewards, batch.rewards)
    assert loss.item() == pytest.approx(metrics["loss"], abs=1e-6)
    assert metrics["grad_norm"] > 0.1
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            np.array(found[name]), np.array(value), atol=1e-5 * metrics["grad_norm"], err_msg=name
        )


def test_its_prompts_begin_as_the_trainers_do(tmp_path):
    """As in Llama 3, a token comes before every text."""
    (config, params), task = load_pretrained(TINY), get_task("addition")
    folder = shutil.copytree(TINY, tmp_path / "start")
    (folder / "mlx_grpo_kit.json").unlink()  # the hashes of the files
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.post_processor = TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 2)])
    theirs.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    trainer = GRPOTrainer(config, params, tokenizer, task, GRPOConfig(per_device_train_batch_size=64))
    prompts, _, _ = minimal.sample(config, params, tokenizer, task, step=0)
    assert prompts == draw_batch(trainer.parts, trainer.policy, step=0).completions.prompt_ids
    assert {ids[0] for ids in prompts} == {2}


def test_it_learns_and_says_so(capsys):
    minimal.train(max_steps=61)
    rewards = [float(number) for number in re.findall(r"reward (\d\.\d+)", capsys.readouterr().out)]
    assert len(rewards) == 7
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3])
