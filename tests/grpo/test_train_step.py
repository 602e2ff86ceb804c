"""train_step: one call from completions and rewards of one's own to a step.

It is the step of `train`, which follows TRL's trainer (tests/backends/test_learners.py), with the gradient of
`compute_loss_and_gradients`, which is that of TRL and torch (test_gradients.py).
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from mlx_grpo_kit.grpo import TrainingDivergedError, compute_loss_and_gradients
from mlx_grpo_kit.grpo.processes import World
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.runtime import mx
from tests.grpo.compare import arrays

PROMPTS = [[5, 6, 7], [8]]
COMPLETIONS = [[9, 10, 3], [11, 12, 13, 14], [9], [20, 21], [30, 31, 32], [33], [34, 35], [36, 37, 38]]
REWARDS = [1.0, 0.0, 0.5, 0.2, 0.0, 1.0, 1.0, 0.3]


def old_logprobs(seed=0):
    rng = np.random.default_rng(seed)
    return [(-3 - rng.random(len(row))).tolist() for row in COMPLETIONS]


SETTINGS = {
    "dapo": {},
    "grpo, by layer": dict(loss_type="grpo", gradient_checkpointing=True),
    "dr_grpo": dict(loss_type="dr_grpo"),
    "KL": dict(beta=0.1, loss_type="grpo"),
    "entropy": dict(entropy_coef=0.01),
}


@pytest.mark.parametrize(
    "settings",
    [
        *SETTINGS.values(),
        dict(advantage_estimator="rloo", scale_rewards="none", loss_type="rloo"),
        dict(advantage_estimator="rloo", scale_rewards="batch"),
        dict(scale_rewards="batch", mask_truncated_completions=True),
    ],
    ids=repr,
)
def test_completions_that_the_policy_sampled_make_the_step_of_train(make_trainer, settings):
    sampling, given = make_trainer(temperature=1.3, **settings), make_trainer(temperature=1.3, **settings)
    for step in sampling.train(3):
        rows = step.completions
        same = given.train_step(
            [row.prompt_ids for row in rows], [row.completion_ids for row in rows], [row.reward for row in rows]
        )
        ours, theirs = same.metrics, step.metrics
        names = ["loss", "grad_norm", "reward", "reward_std", "frac_reward_zero_std", "entropy", "learning_rate"]
        for name in [*names, *(["kl"] if "beta" in settings else [])]:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
        for name in ours.keys() & theirs.keys():
            if name.startswith("completions/"):
                assert ours[name] == theirs[name], name
        assert [row.advantage for row in same.completions] == [row.advantage for row in rows]
        assert [row.finished for row in same.completions] == [row.finished for row in rows]
        assert [row.completion for row in same.completions] == [row.completion for row in rows]
    assert given.step == 3


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("name", ["dapo", "grpo, by layer", "dr_grpo"])
def test_the_gradient_is_that_of_compute_loss_and_gradients_in_any_micro_batches(make_trainer, name, off_policy):
    """Off-policy some ratios are clipped. Micro-batches are sorted by length, and each row keeps its old_logprobs."""
    trainer = make_trainer(gradient_accumulation_steps=2, per_device_train_batch_size=4, **SETTINGS[name])
    old = old_logprobs() if off_policy else None
    loss, grads = compute_loss_and_gradients(
        trainer.config, trainer.params, PROMPTS, COMPLETIONS, old, REWARDS, 4, trainer.args.loss(4)
    )
    step = trainer.train_step(PROMPTS, COMPLETIONS, REWARDS, old_logprobs=old)
    assert step.metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert (0 < step.metrics["clip_ratio/region_mean"] < 1) == off_policy
    norm = math.sqrt(sum(float((np.array(grad).astype(np.float64) ** 2).sum()) for grad in grads.values()))
    assert step.metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)


def test_several_updates_and_a_record_of_it(make_trainer, tmp_path):
    trainer, record = make_trainer(num_iterations=3, learning_rate=1e-2), RunRecord("own", 1)
    step = trainer.train_step(PROMPTS, COMPLETIONS, [*REWARDS[:7], None])
    assert step.completions[7].advantage == 0
    assert math.isnan(step.completions[7].reward)
    record.add(step)
    record.save(tmp_path / "run")
    assert RunRecord.load(tmp_path / "run").steps[0].metrics["loss"] == step.metrics["loss"]
    trainer.save_checkpoint(tmp_path / "checkpoint")
    assert next(trainer.train(2)).step == 2


def test_tokens_of_numpy_and_groups_given_in_full(make_trainer):
    plain, other = make_trainer(), make_trainer()
    plain.train_step(PROMPTS, COMPLETIONS, REWARDS)
    prompts = [np.array(prompt) for prompt in PROMPTS for _ in range(4)]
    other.train_step(prompts, [*map(np.array, COMPLETIONS)], mx.array(REWARDS))
    np.testing.assert_equal(arrays(plain.params), arrays(other.params))


def test_falling_learning_rates_need_the_last_step(make_trainer):
    trainer = make_trainer(lr_scheduler_type="linear")
    with pytest.raises(ValueError, match=r"lr_scheduler_type is 'linear', which falls to 0 .* expected max_steps"):
        trainer.train_step(PROMPTS, COMPLETIONS, REWARDS)
    rates = [trainer.train_step(PROMPTS, COMPLETIONS, REWARDS, max_steps=4).metrics["learning_rate"] for _ in range(2)]
    assert rates == pytest.approx([1e-3, 0.75e-3])
    with pytest.raises(ValueError, match="max_steps is 2, and 2 steps are done; expected more"):
        trainer.train_step(PROMPTS, COMPLETIONS, REWARDS, max_steps=2)


@pytest.mark.parametrize(
    ("changed", "settings", "message"),
    [
        ({"rewards": REWARDS[:7]}, {}, "There are 7 rewards for 8 completions"),
        ({"rewards": [math.nan] * 8}, {}, r"rewards\[0\] is NaN"),
        ({"rewards": ["1"] * 8}, {}, r"rewards\[0\] is .*'1'\)?; expected a number"),
        ({"prompt_tokens": [[5], [6]] * 4}, {}, r"prompts\[1\] is not prompts\[0\], but both are in group 0"),
        ({"prompt_tokens": PROMPTS[:1]}, {}, "There are 1 prompts and 8 completions"),
        ({"completion_tokens": [[], *COMPLETIONS[1:]]}, {}, r"completions\[0\] is empty"),
        ({"completion_tokens": [[99], *COMPLETIONS[1:]]}, {}, r"completions\[0\] contains token id 99"),
        ({"completion_tokens": [[9] * 5, *COMPLETIONS[1:]]}, {}, "has 5 tokens; expected at most 4. Set GRPOConfig"),
        ({"old_logprobs": [[0.5] * len(row) for row in COMPLETIONS]}, {}, r"old_logprobs\[0\]\[0\] is 0.5"),
        ({"old_logprobs": old_logprobs()[:7]}, {}, "old_logprobs has 7 rows for 8 completions"),
        ({}, {"top_entropy_quantile": 0.5}, "top_entropy_quantile is 0.5, which needs the entropies"),
        ({}, {"num_generations": 3, "per_device_train_batch_size": 6}, "There are 2 prompts and 8 completions"),
        ({}, {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 2}, "a multiple of per_device_train_ba"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_change_nothing(make_trainer, changed, settings, message):
    trainer = make_trainer(**settings)
    before = arrays(trainer.params)
    arguments = dict(prompt_tokens=PROMPTS, completion_tokens=COMPLETIONS, rewards=REWARDS) | changed
    with pytest.raises(ValueError, match=message):
        trainer.train_step(**arguments)
    np.testing.assert_equal(arrays(trainer.params), before)
    assert trainer.step == 0


def test_one_of_several_processes_is_refused(make_trainer):
    trainer = make_trainer()
    trainer.world = World()
    trainer.world.size = 2
    with pytest.raises(ValueError, match="train_step works in one process; this trainer is one of 2"):
        trainer.train_step(PROMPTS, COMPLETIONS, REWARDS)


def test_a_step_that_diverges_changes_nothing(make_trainer):
    trainer = make_trainer()
    before = arrays(trainer.params)
    far = [[-200.0] * len(row) for row in COMPLETIONS]
    with pytest.raises(TrainingDivergedError, match="Step 1 has loss"):
        trainer.train_step(PROMPTS, COMPLETIONS, REWARDS, old_logprobs=far)
    np.testing.assert_equal(arrays(trainer.params), before)
    trainer.args = replace(trainer.args, learning_rate=2e-3)
    assert trainer.train_step(PROMPTS, COMPLETIONS, REWARDS).step == 1


# Statistics of each parameter's gradient.


@pytest.mark.parametrize(
    "settings", [{}, {"gradient_checkpointing": True}, {"lora_r": 2}, {"backend": "torch"}], ids=str
)
def test_gradient_statistics_are_those_of_the_gradient(make_trainer, settings):
    trainer = make_trainer(gradient_statistics=True, **settings)
    metrics = next(trainer.train(1)).metrics
    names = list(trainer.policy.trained)
    of = {kind: {name: metrics[f"gradients/{name}/{kind}"] for name in names} for kind in ("norm", "largest", "zeros")}
    assert math.hypot(*of["norm"].values()) == pytest.approx(metrics["grad_norm"], rel=1e-5)
    for name in names:
        size = trainer.policy.trained[name].size
        assert of["largest"][name] <= of["norm"][name] * (1 + 1e-6) <= of["largest"][name] * math.sqrt(size) * 1.001
        assert 0 <= of["zeros"][name] <= 1
    assert all(type(value) is float for value in metrics.values())
    json.dumps(metrics, allow_nan=False)
    assert not any(name.startswith("gradients/") for name in next(make_trainer(**settings).train(1)).metrics)


def test_gradient_statistics_by_hand(make_trainer):
    trainer = make_trainer(gradient_statistics=True)
    _, grads = compute_loss_and_gradients(trainer.config, trainer.params, PROMPTS, COMPLETIONS, None, REWARDS, 4)
    metrics = trainer.train_step(PROMPTS, COMPLETIONS, REWARDS).metrics
    for name, grad in arrays(grads).items():
        assert metrics[f"gradients/{name}/norm"] == pytest.approx(np.linalg.norm(grad.astype(np.float64)), rel=1e-4)
        assert metrics[f"gradients/{name}/largest"] == pytest.approx(abs(grad).max(), rel=1e-4)
        assert metrics[f"gradients/{name}/zeros"] == pytest.approx(np.mean(grad == 0), abs=1e-3)


def test_gradient_statistics_begin_and_end_within_a_run(make_trainer):
    trainer, found = make_trainer(), []
    for step in trainer.train(3):
        found.append(any(name.startswith("gradients/") for name in step.metrics))
        trainer.change(gradient_statistics=step.step == 1)
    assert found == [False, True, False]
