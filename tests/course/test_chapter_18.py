"""Chapter 18 against torch and transformers, and the claims of its prose."""

import re

import numpy as np
import pytest
import torch
from transformers import Qwen3ForCausalLM

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.chapters.chapter_18 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_18.toys import Coins, descend
from mlx_grpo_kit.course.slips import variants
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition
from tests.course.stored import cells, printed

CELLS = cells("18")

# Ground truth.


def test_log_probabilities_of_a_batch_are_those_of_transformers():
    """Rows padded on both sides, compared with each row alone."""
    config, params = load_pretrained(TINY)
    tokenizer = load_tokenizer(TINY)
    model = Qwen3ForCausalLM.from_pretrained(TINY).eval()
    prompts = [tokenizer.encode(text) for text in ("8+5=", "27+38=", "1+2=")]
    completions = [[*tokenizer.encode("13"), 1], tokenizer.encode("6655"), [1]]
    ids, mask, counts = chapter.make_batch(prompts, completions)
    logits = qwen3_forward(config, params, ids, attention_mask=mask)[:, ids.shape[1] - counts.shape[1] - 1 : -1]
    logps = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        with torch.no_grad():
            theirs = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        for place, token in enumerate(completion):
            assert logps[row, place, token] == pytest.approx(theirs[place, token].item(), abs=2e-5)
        assert np.array(counts)[row].tolist() == [place < len(completion) for place in range(4)]


def test_several_updates_equal_torchs():
    coins, logits = Coins([0, 1, 1, 0], [1.0, -1.0, 0.5, -0.5]), [0.5, -0.25]
    params, losses = chapter.learn({"logits": mx.array(logits)}, coins.logps_of, coins.loss_of, descend, 4)
    x = torch.tensor(logits, requires_grad=True)
    advantages = torch.tensor(coins.advantages)
    old, theirs = None, []
    for _ in range(4):
        logps = torch.log_softmax(x, 0)[coins.tokens]
        old = logps.detach() if old is None else old
        ratio = (logps - old).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clip(0.8, 1.2) * advantages).mean()
        (grad,) = torch.autograd.grad(loss, x)
        theirs.append(loss.item())
        x = (x - 0.75 * grad).detach().requires_grad_()
    np.testing.assert_allclose(losses, theirs, atol=1e-6)
    np.testing.assert_allclose(np.array(params["logits"]), x.detach().numpy(), atol=1e-6)
    assert len(set(np.round(losses, 4))) > 2, "updates that do something"


def test_the_learning_rate_is_the_kits():
    config, params = load_pretrained(TINY)
    trainer = GRPOTrainer(
        config,
        params,
        load_tokenizer(TINY),
        Addition(),
        GRPOConfig(learning_rate=0.5, lr_scheduler_type="linear", warmup_steps=3),
    )
    for trainer.step in range(10):
        assert trainer.learning_rate(10) == pytest.approx(chapter.learning_rate(trainer.step, 10, 0.5, 3))


def test_the_claims_of_the_prose_hold():
    assert 0 < np.std([0.1, 0.1, 0.1]) < 2e-17  # 18.3
    assert [chapter.learning_rate(step, 10, 1.0, 3) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    # AdamW keeps two numbers beside every parameter (18.9), and a checkpoint three numbers in all.
    config, params = load_pretrained(TINY)
    trainer = GRPOTrainer(config, params, load_tokenizer(TINY), Addition())
    assert trainer.snapshot().nbytes == 3 * sum(value.nbytes for value in params.values())


def test_the_text_describes_the_stored_run():
    shown, told = printed(CELLS["run-exam"]), CELLS["run-notes"].source
    fifths = re.search(r"mean of each fifth of the run: (.*);", shown)[1].split()
    assert f"in the first fifth of the run and in the last, {float(fifths[0]):.1f} and {float(fifths[-1]):.1f}" in told
    assert max(map(float, fifths)) < 1.3 * min(map(float, fifths))
    [(clipped, steps)] = re.findall(r"clipped to 1 in (\d+) of (\d+) steps", shown)
    assert f"in {clipped} of the {steps} steps" in told
    assert round(10 * int(clipped) / int(steps)) == 7  # "seven of ten steps"
    taught, rows = map(int, re.match(r".*?(\d+) of (\d+) rows teach", printed(CELLS["ex3-use"]), re.DOTALL).groups())
    assert taught < rows == 128, "a batch in which the exercise makes a difference"


def test_the_text_describes_the_stored_runs_that_reuse_batches():
    shown, told = printed(CELLS["reuse"]), CELLS["reuse-notes"].source
    rewards = re.findall(r"reward (\d\.\d\d) after 40 batches", shown)
    assert f"bring the reward from {rewards[0]} to {rewards[1]}, four to {rewards[2]}" in told
    assert f"({rewards[3]}; " in told
    draw, update = map(float, re.search(r"a draw takes (.*) s and an update (.*) s", shown).groups())
    assert f"$D$ is {draw:.3f} s and $U$ is {update:.3f} s" in told
    assert f"{(draw + 2 * update) / (draw + update):.1f} times as long" in told
    assert 0.7 < draw / update < 1.3, "here the two take about the same time"


# The exercises.


@pytest.mark.parametrize("much", [2, 10, 31, 251, 997, 4096, 10_000, 2**16, 100_000])
def test_no_multiple_of_the_seed_keeps_it_apart_from_the_step(much):
    def questions(sample, seed, step, num_questions, group_size):
        rng = np.random.default_rng(much * seed + step)
        return [each for each in sample(rng, num_questions) for _ in range(group_size)]

    assert "the same questions for step" in check("18.1", questions).text


# What the notebook does with answers in other styles.


@pytest.mark.parametrize("answer", [answer for _, answer, _ in variants(chapter.make_batch, chapter.BATCH.also_right)])
def test_the_notebook_continues_with_arrays_of_another_library(answer):
    """A cell converts them into MLX arrays, and masks into booleans."""
    cell = CELLS["ex2-use"].source
    own = {"use": lambda id: answer, "mx": mx}
    exec(cell.split("def logps_of")[0], own)
    ids, mask, counts = own["make_batch"]([[5], [6, 7, 8]], [[4, 1], [9]])
    assert [type(each) for each in (ids, mask, counts)] == [mx.array] * 3
    assert ids.tolist() == [[0, 0, 5, 4, 1], [6, 7, 8, 9, 0]]
    assert counts.dtype == mx.bool_
