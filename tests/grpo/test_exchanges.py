"""A part of one's own in a trainer: the examples of the guide run, and runs with such parts resume."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from mlx_grpo_kit import course
from mlx_grpo_kit.grpo import (
    Batch,
    Completions,
    Gradient,
    GRPOConfig,
    GRPOTrainer,
    LossType,
    MLXAtOnce,
    Scores,
    compute_loss_and_gradients,
    grpo_step,
    objectives,
)
from mlx_grpo_kit.runtime import mx

GUIDE = (Path(course.__file__).parent / "guides" / "exchange.md").read_text()
EXAMPLES = {
    section.splitlines()[0]: re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    for section in GUIDE.split("\n## ")[1:]
}
SETTINGS = dict(num_generations=4, per_device_train_batch_size=8, learning_rate=1e-3)


def arrays(params):
    return {name: np.array(value) for name, value in params.items()}


def run_example(name, make_trainer):
    """The trainer that an example of the guide makes."""
    given = make_trainer()
    found = dict(
        GRPOTrainer=GRPOTrainer, np=np, config=given.config, params=given.params, tokenizer=given.tokenizer,
        task=given.task, args=given.args,
    )  # fmt: skip
    exec(EXAMPLES[name], found)
    return found["trainer"], given


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_guide_is_short_and_trains(make_trainer, name):
    assert len([line for line in EXAMPLES[name].splitlines() if line.strip()]) <= 15
    trainer, plain = run_example(name, make_trainer)
    steps = list(trainer.train(2))
    assert all(step.metrics["grad_norm"] > 0 for step in steps)
    list(plain.train(2))
    changed = arrays(trainer.params)
    assert any((value != changed[key]).any() for key, value in arrays(plain.params).items()), "it makes a difference"


def test_advantages_per_token_weigh_each_token(make_trainer):
    """The gradient is the sum of those of the tokens, which torch would call a linear combination."""
    trainer, _ = run_example("Advantages", make_trainer)
    [step] = trainer.train(1)
    row = max(step.completions, key=lambda each: abs(each.advantage[0]))
    length = len(row.completion_ids)
    np.testing.assert_allclose(row.advantage[1:length], 0.9 * np.array(row.advantage[: length - 1]), rtol=1e-6)
    assert step.metrics["reward"] == pytest.approx(
        np.mean([row.rewards["sevens"] - 0.01 * len(row.completion_ids) for row in step.completions])
    )


def test_equal_advantages_per_token_are_those_per_completion(make_trainer):
    whole = make_trainer(per_device_train_batch_size=4, gradient_accumulation_steps=2)
    settings = whole.args

    def per_token(completions, scores):
        rewards, advantages = whole.parts.advantages(completions, scores)
        return rewards, np.repeat(advantages[:, None], completions.lengths.max(), axis=1)

    tokens = GRPOTrainer(whole.config, whole.params, whole.tokenizer, whole.task, settings, advantages=per_token)
    for one, other in zip(whole.train(3), tokens.train(3), strict=True):
        assert other.metrics["loss"] == pytest.approx(one.metrics["loss"], abs=1e-7)
        assert other.metrics["grad_norm"] == pytest.approx(one.metrics["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("learns", [False, True])
def test_groups_without_advantage_are_left_out_only_where_the_loss_says_so(make_trainer, learns):
    """Tied rewards and an objective that acts on every token: what is left out has no gradient."""

    def objective(tokens, config):
        return tokens.ratio * tokens.advantages + 0.1 * tokens.logps, {}

    loss = LossType(objective, objectives.mean_over_batch_tokens, adds_up=True, zero_without_advantage=not learns)
    given = make_trainer(make_trainer.task([lambda problems, completions: [1.0] * len(completions)]))
    trainer = GRPOTrainer(given.config, given.params, given.tokenizer, given.task, given.args, loss=loss)
    [step] = trainer.train(1)
    assert (step.metrics["grad_norm"] > 0) == learns
    if learns:
        rows = step.completions
        value, _ = compute_loss_and_gradients(
            given.config, given.params, [row.prompt_ids for row in rows], [row.completion_ids for row in rows], None,
            [row.reward for row in rows], 4, given.args.loss(4),
        )  # fmt: skip
        logps = np.concatenate([row.logps for row in rows])
        assert step.metrics["loss"] == pytest.approx(value - 0.1 * logps.mean(), rel=1e-4)


@dataclass(frozen=True)
class MyConfig(GRPOConfig):
    sharpness: float = 2.0


def sharp(tokens, config):
    return tokens.ratio * tokens.advantages * config.extra["sharpness"], {}


SHARP = LossType(sharp, objectives.mean_over_batch_tokens, adds_up=True, zero_without_advantage=True)


@pytest.mark.parametrize("backend", ["mlx", "torch", "jax"])
def test_settings_of_a_subclass_reach_the_objective_in_every_framework(make_trainer, backend):
    given, norms = make_trainer(), []
    for sharpness in (1.0, 3.0):
        args = MyConfig(**SETTINGS, sharpness=sharpness, backend=backend)
        trainer = GRPOTrainer(given.config, given.params, given.tokenizer, given.task, args, loss=SHARP)
        norms.append(next(trainer.train(1)).metrics["grad_norm"])
    assert norms[1] == pytest.approx(3 * norms[0], rel=1e-4)


def test_a_run_with_a_subclass_and_a_loss_of_its_own_resumes(make_trainer, tmp_path):
    given = make_trainer()
    whole = GRPOTrainer(
        given.config, given.params, given.tokenizer, given.task, MyConfig(**SETTINGS, sharpness=3.0), loss=SHARP
    )
    list(whole.train(2))
    whole.save_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"settings that GRPOConfig does not know: sharpness. .*config_class=\.\.\."):
        GRPOTrainer.resume(tmp_path / "checkpoint", given.task, loss=SHARP)
    with pytest.raises(ValueError, match=r"was trained with a custom loss. Pass it: resume\(..., loss=...\)"):
        GRPOTrainer.resume(tmp_path / "checkpoint", given.task, config_class=MyConfig)
    with pytest.raises(ValueError, match=r"was trained without a custom learner\. Leave learner out"):
        GRPOTrainer.resume(tmp_path / "checkpoint", given.task, config_class=MyConfig, loss=SHARP, learner=MLXAtOnce)
    resumed = GRPOTrainer.resume(tmp_path / "checkpoint", given.task, config_class=MyConfig, loss=SHARP)
    assert resumed.args.sharpness == 3.0
    list(whole.train(4))
    list(resumed.train(4))
    for name, value in arrays(whole.params).items():
        np.testing.assert_array_equal(value, arrays(resumed.params)[name])


def test_one_part_of_a_step_is_exchanged_without_a_trainer(make_trainer):
    trainer = make_trainer()

    def one_winner(completions, scores):
        rewards, _ = trainer.parts.advantages(completions, scores)
        return rewards, np.where(np.arange(len(rewards)) == 0, 1.0, 0.0)

    parts = replace(trainer.parts, advantages=one_winner)
    policy, batch, metrics = grpo_step(parts, trainer.policy, 0, 1e-3)
    assert batch.advantages.tolist() == [1.0] + [0.0] * 7
    assert metrics["grad_norm"] > 0
    assert any((arrays(policy.params)[name] != value).any() for name, value in arrays(trainer.params).items())


def test_only_tokens_of_the_mask_are_learned_from(make_trainer):
    """A token that is masked out has no gradient, wherever it stands: as if its advantage were 0."""
    trainer, drawn = make_trainer(), make_trainer().parts.sampler(make_trainer().policy, 0)
    mask = [[(row + place) % 3 > 0 for place in range(len(ids))] for row, ids in enumerate(drawn.completion_ids)]
    rewards = np.array([1.0, 0, 0, 0, 0, 1, 1, 0])
    advantages = np.array([1.5, -0.5, -0.5, -0.5, -0.9, 0.9, 0.9, -0.9])
    scores = Scores((), np.zeros([8, 0]), {})
    width = drawn.lengths.max()
    as_array = np.array([row + [False] * (width - len(row)) for row in mask])
    learner, found = trainer.parts.learner, []
    for completions, given in (
        (replace(drawn, token_mask=mask), advantages),
        (drawn, advantages[:, None] * as_array),
    ):
        batch = Batch(completions, scores, rewards, given)
        grads, metrics = learner.gradient(trainer.policy, learner.prepare(trainer.policy, batch)[0])
        found.append((grads, metrics, sum(map(sum, completions.token_mask))))
    (grads, metrics, counted), (others, _, all_tokens) = found
    assert counted < all_tokens
    for name, value in others.items():  # a mean over fewer tokens
        expected = np.array(value) * all_tokens / counted
        np.testing.assert_allclose(np.array(grads[name]), expected, atol=1e-5 * metrics["grad_norm"])


def test_completions_of_another_policy_bring_their_own_ratios(make_trainer):
    trainer, drawn = make_trainer(), make_trainer().parts.sampler(make_trainer().policy, 0)
    columns = (drawn.num_generations, drawn.problems, drawn.prompt_ids, drawn.completion_ids, drawn.texts)
    far = [[logp + 2.0 if logp < -2.1 else logp for logp in row] for row in drawn.logps]
    rewards = np.array([1.0, 0, 0, 0, 0, 1, 1, 0])
    advantages = np.where(rewards > 0, 1.0, -1.0)
    learner, losses = trainer.parts.learner, []
    for logps in (drawn.logps, far):
        completions = Completions.from_lists(*columns, logps=logps)
        assert not completions.on_policy
        batch = Batch(completions, Scores((), np.zeros([8, 0]), {}), rewards, advantages)
        losses.append(learner.gradient(trainer.policy, learner.prepare(trainer.policy, batch)[0])[1])
    assert losses[0]["clip_ratio/region_mean"] == 0
    assert losses[1]["clip_ratio/low_mean"] > 0, "ratios of exp(-2) are clipped"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(completion_ids=[[5]] * 7), r"Column 'problems' has 8 rows; expected 7, one per completion"),
        (dict(logps=[[0.0, 0.0]] * 8), r"logps\[0\] has 2 entries for a completion of 1 tokens"),
        (dict(num_generations=3), "8 completions do not divide into groups of num_generations=3"),
    ],
)
def test_columns_that_do_not_fit_are_refused(change, message):
    columns = dict(
        num_generations=4, problems=[None] * 8, prompt_ids=[[1]] * 8, completion_ids=[[5]] * 8, texts=["x"] * 8
    )
    with pytest.raises(ValueError, match=message):
        Completions.from_lists(**columns | change)


@pytest.mark.parametrize("advantages", [np.zeros(7), np.zeros([8, 3]), np.full(8, np.nan)])
def test_advantages_of_a_wrong_shape_or_without_a_number_are_refused(make_trainer, advantages):
    given = make_trainer()
    trainer = GRPOTrainer(
        given.config, given.params, given.tokenizer, given.task, given.args,
        advantages=lambda completions, scores: (scores.values[:, 0], advantages),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"advantages has shape|The advantage of completion 0 is not finite"):
        next(trainer.train(1))
    assert trainer.step == 0


def test_the_length_of_a_gradient():
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=[3, size]).astype(np.float32) for name, size in (("a", 4), ("b", 50))}
    expected = np.sqrt(sum((value.astype(np.float64) ** 2).sum() for value in values.values()))
    assert Gradient({name: mx.array(value) for name, value in values.items()}).norm == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda completions, scores: scores.values.sum(axis=1), "returned ndarray"),
        (lambda completions, scores: None, "returned NoneType"),
        (lambda completions, scores: (np.zeros(2), np.zeros(8)), r"rewards of shape \(2,\)"),
        (lambda completions, scores: (np.zeros(8), np.zeros(8), 1), "returned 3 values"),
    ],
)
def test_a_rule_that_returns_something_else_is_told_what_is_expected(make_trainer, rule, words):
    trainer = make_trainer()
    trainer = GRPOTrainer(
        trainer.config, trainer.params, trainer.tokenizer, trainer.task, trainer.args, advantages=rule
    )
    with pytest.raises(ValueError, match=f"{words}.*expected two arrays: rewards"):
        next(trainer.train(1))
