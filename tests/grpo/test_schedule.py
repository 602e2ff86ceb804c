"""The learning rate's schedules against transformers' and mlx.optimizers', and in runs that are made longer."""

import mlx.optimizers
import numpy as np
import pytest
import torch
from transformers import TrainingArguments, get_scheduler

from mlx_grpo_kit.grpo import GRPOConfig
from mlx_grpo_kit.grpo.schedule import SCHEDULES, own_rate, scheduled_rate


def rates(schedule, max_steps, warmup_steps=0, peak=0.5):
    return [scheduled_rate(peak, schedule, step, max_steps, warmup_steps) for step in range(max_steps)]


def transformers_rates(schedule, max_steps, warmup_steps, peak=0.5):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    theirs = get_scheduler(schedule, optimizer, num_warmup_steps=warmup_steps, num_training_steps=max_steps)
    found = []
    for _ in range(max_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    return found


@pytest.mark.parametrize("warmup_steps", [0, 1, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_behind_the_warm_up_it_is_that_of_transformers(schedule, warmup_steps):
    ours, theirs = (run(schedule, 23, warmup_steps) for run in (rates, transformers_rates))
    np.testing.assert_allclose(ours[warmup_steps:], theirs[warmup_steps:], rtol=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_warm_up_rises_evenly_to_the_full_rate_and_wastes_no_step(schedule):
    assert rates(schedule, 10, 3)[:4] == pytest.approx([0.125, 0.25, 0.375, 0.5])
    assert min(rates(schedule, 10, 9)) > 0
    assert len(rates(schedule, 3, 5)) == 3  # shorter than its warm-up


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.3, 0.99])
def test_a_warm_up_below_1_is_transformers_share_of_all_steps(share, tmp_path):
    steps = TrainingArguments(output_dir=str(tmp_path), warmup_steps=share).get_warmup_steps(23)
    assert rates("linear", 23, share) == rates("linear", 23, steps)
    assert GRPOConfig(warmup_steps=3.0).warmup_steps == 3
    if share:
        with pytest.raises(ValueError, match=r"warmup_steps is 0\.\d+, a share of all steps; expected max_steps"):
            own_rate(GRPOConfig(warmup_steps=share), 0, None)
        assert own_rate(GRPOConfig(warmup_steps=share), 0, 23) == GRPOConfig().learning_rate / (steps + 1)


def test_it_is_that_of_mlx():
    for schedule, theirs in {
        "cosine": mlx.optimizers.cosine_decay(0.5, 17),
        "linear": mlx.optimizers.linear_schedule(0.5, 0.0, 17),
    }.items():
        wanted = [float(theirs(step)) for step in range(17)]
        np.testing.assert_allclose(rates(schedule, 17), wanted, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_run_that_is_made_longer_goes_on_as_the_longer_run(make_trainer, schedule):
    trainer = make_trainer(lr_scheduler_type=schedule, learning_rate=1e-3)
    first = [step.metrics["learning_rate"] for step in trainer.train(max_steps=3)]
    second = [step.metrics["learning_rate"] for step in trainer.train(max_steps=6)]
    assert first == pytest.approx(transformers_rates(schedule, 3, 0, 1e-3))
    assert second == pytest.approx(transformers_rates(schedule, 6, 0, 1e-3)[3:])
    assert second[0] > first[-1]
