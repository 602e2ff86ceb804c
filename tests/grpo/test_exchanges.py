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
    Learner,
    LossType,
    MLXAtOnce,
    Scores,
    TrainingDivergedError,
    compute_loss_and_gradients,
    grpo_step,
    objectives,
)
from mlx_grpo_kit.runtime import mx
from tests.grpo.compare import arrays

GUIDE = (Path(course.__file__).parent / "guides" / "exchange.md").read_text()
EXAMPLES = {
    section.splitlines()[0]: re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    for section in GUIDE.split("\n## ")[1:]
}
SETTINGS = dict(num_generations=4, per_device_train_batch_size=8, learning_rate=1e-3)


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
    settings = dict(per_device_train_batch_size=4, gradient_accumulation_steps=2)
    whole = make_trainer(**settings)

    def per_token(completions, scores):
        rewards, advantages = whole.parts.advantages(completions, scores)
        return rewards, np.repeat(advantages[:, None], completions.lengths.max(), axis=1)

    tokens = make_trainer(advantages=per_token, **settings)
    for one, other in zip(whole.train(3), tokens.train(3), strict=True):
        assert other.metrics["loss"] == pytest.approx(one.metrics["loss"], abs=1e-7)
        assert other.metrics["grad_norm"] == pytest.approx(one.metrics["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("learns", [False, True])
def test_groups_without_advantage_are_left_out_only_where_the_loss_says_so(make_trainer, learns):
    """Tied rewards and an objective that acts on every token: what is left out has no gradient."""

    def objective(tokens, config):
        return tokens.ratio * tokens.advantages + 0.1 * tokens.logps, {}

    loss = LossType(objective, objectives.mean_over_batch_tokens, adds_up=True, zero_without_advantage=not learns)
    trainer = make_trainer(make_trainer.task([lambda problems, completions: [1.0] * len(completions)]), loss=loss)
    params = trainer.params
    [step] = trainer.train(1)
    assert (step.metrics["grad_norm"] > 0) == learns
    if learns:
        rows = step.completions
        value, _ = compute_loss_and_gradients(
            trainer.config, params, [row.prompt_ids for row in rows], [row.completion_ids for row in rows], None,
            [row.reward for row in rows], 4, trainer.args.loss(4),
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
    norms = []
    for sharpness in (1.0, 3.0):
        trainer = make_trainer(args=MyConfig(**SETTINGS, sharpness=sharpness, backend=backend), loss=SHARP)
        norms.append(next(trainer.train(1)).metrics["grad_norm"])
    assert norms[1] == pytest.approx(3 * norms[0], rel=1e-4)


def test_a_run_with_a_subclass_and_a_loss_of_its_own_resumes(make_trainer, tmp_path):
    whole = make_trainer(args=MyConfig(**SETTINGS, sharpness=3.0), loss=SHARP)
    list(whole.train(2))
    whole.save_checkpoint(tmp_path / "checkpoint")
    for words, given in (
        (r"settings that GRPOConfig does not know: sharpness. .*config_class=\.\.\.", dict(loss=SHARP)),
        (r"was trained with a custom loss. Pass it: resume\(..., loss=...\)", dict(config_class=MyConfig)),
        (r"without a custom learner\. Leave", dict(config_class=MyConfig, loss=SHARP, learner=MLXAtOnce)),
    ):
        with pytest.raises(ValueError, match=words):
            GRPOTrainer.resume(tmp_path / "checkpoint", whole.task, **given)
    resumed = GRPOTrainer.resume(tmp_path / "checkpoint", whole.task, config_class=MyConfig, loss=SHARP)
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
    for completions, given in ((replace(drawn, token_mask=mask), advantages), (drawn, advantages[:, None] * as_array)):
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


def test_the_length_of_a_gradient():
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=[3, size]).astype(np.float32) for name, size in (("a", 4), ("b", 50))}
    expected = np.sqrt(sum((value.astype(np.float64) ** 2).sum() for value in values.values()))
    assert Gradient({name: mx.array(value) for name, value in values.items()}).norm == pytest.approx(expected, rel=1e-6)


def test_a_rule_for_advantages_gets_copies(make_trainer):
    def reversing(completions, scores):
        for ids in completions.completion_ids:
            ids.reverse()
        return plain(completions, scores)

    plain = make_trainer().parts.advantages
    norms = [next(make_trainer(advantages=rule).train(1)).metrics["grad_norm"] for rule in (plain, reversing)]
    assert norms[0] == norms[1]


@pytest.mark.parametrize("name", ["loss", "reward", 3])
def test_a_metric_of_a_loss_does_not_replace_one_of_the_step(make_trainer, name):
    loss = LossType(lambda tokens, config: (tokens.ratio * tokens.advantages, {name: tokens.ratio}), lambda *_: 1.0)
    with pytest.raises(ValueError, match=f"metric of loss= is called {name!r}; expected a string that is no metric"):
        make_trainer(loss=loss)


# What a part returns is checked, by name.


def first_step(make_trainer, parts, **settings):
    trainer = make_trainer(**settings, **parts(make_trainer(**settings)))
    before, step = arrays(trainer.params), next(trainer.train(1))
    return trainer, before, step


def refused(make_trainer, parts, message, **settings):
    """The first step, or the trainer, raises this and changes nothing."""
    given, made = make_trainer(**settings), []

    def run():
        made.append(make_trainer(**settings, **parts(given)))
        next(made[0].train(1))

    with pytest.raises((ValueError, TrainingDivergedError), match=message) as caught:
        run()
    for trainer in made:
        assert trainer.step == 0
        np.testing.assert_equal(arrays(trainer.params), arrays(given.params))
    return caught.value


def interleaved(drawn):
    return drawn.rows([0, 4, 1, 5, 2, 6, 3, 7])


def without(name):
    return lambda drawn: replace(drawn, **{name: [[np.nan] * len(row) for row in drawn.logps]})


def of_row(name, change, row=2):
    """One row of a column is changed."""
    return lambda drawn: replace(drawn, **{name: [change(each) if at == row else each for at, each in
                                                  enumerate(getattr(drawn, name))]})  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message", "settings"),
    [
        (interleaved, r"problems\[1\] is not problems\[0\]", {}),
        (lambda drawn: replace(interleaved(drawn), problems=drawn.problems), r"prompts\[1\] is not prompts\[0\]", {}),
        (lambda drawn: drawn.rows(range(4)), "There are 4, in groups of 4; expected 8: 2 groups", {}),
        (lambda drawn: replace(drawn, num_generations=2), "There are 8, in groups of 2", {}),
        (lambda drawn: drawn.completion_ids, "returned list; expected Completions", {}),
        (lambda drawn: None, "returned NoneType; expected Completions", {}),
        (without("entropies"), r"entropies\[0\] contains NaN, and top_entropy_quantile", {"top_entropy_quantile": 0.5}),
        (without("logps"), "off_policy_mask_threshold is 0.5, which has no effect", {"off_policy_mask_threshold": 0.5}),
        (without("logps"), "correction is 'token_mask', which", {"importance_sampling_correction": "token_mask"}),
        (lambda drawn: replace(without("logps")(drawn), on_policy=False), r"logps\[0\] contains NaN", {}),
        (of_row("logps", lambda row: [-value for value in row]), r"logps\[2\] contains .*expected log-prob", {}),
        (of_row("logps", lambda row: [-np.inf] * len(row)), r"logps\[2\] contains -inf", {}),
        (of_row("logps", lambda row: row[1:]), r"logps\[2\] has \d entries for a completion", {}),
        (of_row("logps", lambda row: [*row, -1.0]), r"logps\[2\] has \d entries for a completion", {}),
        (of_row("logps", lambda row: ["x"] * len(row)), "could not convert string to float", {}),
        (of_row("entropies", lambda row: [-1.0] * len(row)), r"entropies\[2\] contains a number that is negative", {}),
        (of_row("token_mask", lambda row: row[1:]), r"token_mask\[2\] has", {}),
        (lambda drawn: replace(drawn, token_mask=[[False] * len(row) for row in drawn.logps]), "False everywhere", {}),
        (of_row("completion_ids", lambda row: [10**6] * len(row)), r"completion_ids\[2\] is .*token ids from 0", {}),
        (of_row("completion_ids", lambda row: [-1] * len(row)), r"completion_ids\[2\] is .*token ids from 0", {}),
        (of_row("completion_ids", lambda row: [1.5] * len(row)), "interpreted as an integer", {}),
        (of_row("prompt_ids", lambda row: [], row=0), r"prompts\[1\] is not", {}),
        (of_row("texts", lambda text: text.encode()), r"texts\[2\] is of type bytes", {}),
        (lambda drawn: replace(drawn, finished=[True] * 7), "'finished' has 7 rows", {}),
        (of_row("completion_ids", lambda row: []), r"token_mask\[2\] has", {}),
    ],
)
def test_completions_that_do_not_fit_are_refused(make_trainer, change, message, settings):
    def parts(given):
        draw = given.parts.sampler
        return {"sampler": lambda policy, step, attempt=0, num_groups=None: change(draw(policy, step, attempt))}

    error = refused(make_trainer, parts, message, **settings)
    assert "sampler=" in str(error)


def test_a_completion_that_is_too_long_is_refused(make_trainer):
    def longer(drawn):
        columns = [[[each[0]] * 50 for each in getattr(drawn, name)] for name in ("completion_ids", "token_mask",
                                                                                  "logps", "entropies")]  # fmt: skip
        names = ("completion_ids", "token_mask", "logps", "entropies")
        return replace(drawn, **dict(zip(names, columns, strict=True)))

    def parts(given):
        return {"sampler": lambda policy, step: longer(given.parts.sampler(policy, step))}

    refused(make_trainer, parts, r"completion_ids\[0\] has 50 tokens; expected at most")


def test_a_sampler_may_return_arrays_and_use_its_lists_again(make_trainer):
    """NumPy rows are the kit's lists, and what the sampler does to its lists later does not reach the batch."""
    mine = []

    def parts(given):
        def sampler(policy, step, attempt=0, num_groups=None):
            drawn = given.parts.sampler(policy, step, attempt, num_groups)
            mine.append(replace(drawn, completion_ids=[np.array(row) for row in drawn.completion_ids],
                                token_mask=[np.array(row) for row in drawn.token_mask],
                                logps=[np.array(row, np.float32) for row in drawn.logps]))  # fmt: skip
            return mine[-1]

        return {"sampler": sampler}

    trainer, _, step = first_step(make_trainer, parts)
    ids = [[*row.completion_ids] for row in step.completions]
    for row in mine[0].completion_ids:
        row[:] = 0
    plain = make_trainer()
    expected = next(plain.train(1))
    assert (
        ids == [row.completion_ids for row in step.completions] == [row.completion_ids for row in expected.completions]
    )
    for name, value in arrays(plain.params).items():
        np.testing.assert_allclose(arrays(trainer.params)[name], value, atol=1e-7)


def test_advantages_may_come_from_one_buffer(make_trainer):
    """The records of a step keep their numbers when the rule writes the next ones, or into what it was given."""
    buffer = (np.zeros(8), np.zeros(8, np.float32))

    def parts(given):
        def rule(completions, scores):
            buffer[0][:], buffer[1][:] = given.parts.advantages(completions, scores)
            scores.values[:] = -7
            return buffer

        return {"advantages": rule}

    _, _, step = first_step(make_trainer, parts)
    advantages, rewards = ([getattr(row, name) for row in step.completions] for name in ("advantage", "reward"))
    for each in buffer:
        each[:] = 99
    expected = next(make_trainer().train(1))
    assert advantages == [row.advantage for row in expected.completions]
    assert rewards == [row.reward for row in expected.completions]
    assert [row.rewards for row in step.completions] == [row.rewards for row in expected.completions]


ZEROS = np.zeros(8)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (ZEROS, "returned ndarray.*expected two arrays: rewards"),
        (None, "returned NoneType.*expected two arrays: rewards"),
        ((ZEROS, ZEROS, 1), "returned 3 values.*expected two arrays: rewards"),
        ((np.zeros(2), ZEROS), r"rewards of shape \(2,\).*expected two arrays: rewards"),
        ((np.full(8, np.inf), ZEROS), "returned the reward inf for completion 0"),
        ((["x"] * 8, ZEROS), "not two arrays of numbers"),
        ((["1"] * 8, ZEROS), "not two arrays of numbers"),
        ((ZEROS, ZEROS * 1j), "not two arrays of numbers"),
        ((ZEROS, [[1.0], [1.0, 2.0]] * 4), "not two arrays of numbers"),
        ((ZEROS, np.full(8, 1e39)), "advantage of completion 0 is not finite"),
        ((ZEROS, np.full(8, np.nan)), "advantage of completion 0 is not finite"),
        ((ZEROS, np.zeros(7)), "advantages has shape"),
        ((ZEROS, np.zeros([8, 3])), "advantages has shape"),
        ((ZEROS, np.zeros([8, 1, 1])), "advantages has shape"),
        ((ZEROS, None), "not two arrays of numbers|not finite|advantages has shape"),
    ],
)
def test_advantages_that_do_not_fit_are_refused(make_trainer, returned, message):
    refused(make_trainer, lambda given: {"advantages": lambda completions, scores: returned}, message)


def plainly(tokens, config):
    return tokens.ratio * tokens.advantages, {}


def a_loss(objective=plainly, weight=objectives.mean_over_batch_tokens):
    return LossType(objective, weight, adds_up=True)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("dapo", "loss= is 'dapo'; expected a LossType"),
        (plainly, "loss= is .*; expected a LossType"),
        (a_loss(lambda tokens, config: tokens.ratio), "returned array; expected a tuple"),
        (a_loss(lambda tokens, config: (plainly(tokens, config)[0], None)), "returned tuple; expected a tuple"),
        (a_loss(lambda tokens, config: (plainly(tokens, config)[0].sum(), {})), r"objective of loss= has shape \(\)"),
        (a_loss(lambda tokens, config: (plainly(tokens, config)[0].T, {})), r"objective of loss= has shape \(4, 3\)"),
        (a_loss(lambda tokens, config: (plainly(tokens, config)[0][:1], {})), r"objective of loss= has shape \(1, 4\)"),
        (a_loss(lambda tokens, config: (np.array(plainly(tokens, config)[0]), {})), "is of type ndarray"),
        (a_loss(lambda tokens, config: (0.0, {})), "is of type float"),
        (a_loss(lambda tokens, config: (tokens.ratio, {"m": tokens.ratio.mean()})), "metric 'm' of loss= "),
        (a_loss(lambda tokens, config: (plainly(tokens, config)[0], {"m": 1.0})), "metric 'm' of loss= is of type"),
        (a_loss(lambda t, c: (t.ratio, {"m": objectives.OfCompletions(t.ratio)})), r"\(3, 4\); expected \(3, 1\)"),
        (a_loss(lambda t, c: ((t.ratio - t.ratio.mean()) * t.advantages, {})), "changes with the padding or with"),
        (a_loss(lambda t, c: (t.ratio * (t.advantages - t.advantages.mean()), {})), "changes with the padding or with"),
        (a_loss(lambda t, c: (t.ratio * t.advantages / t.ratio.shape[1], {})), "changes with the padding or with"),
        (a_loss(weight=lambda mask, config, number: mask / 9), r"weight of loss= has shape \(3, 4\)"),
        (a_loss(weight=lambda mask, config, number: mask.sum(axis=1) / 9), r"weight of loss= has shape \(3,\)"),
        (a_loss(weight=lambda mask, config, number: mx.argmax(mask, axis=1, keepdims=True) + 1.0), "depends on which"),
        (a_loss(weight=lambda mask, config, number: 1 / mask.size), "depends on which tokens of a row count"),
        (a_loss(weight=lambda mask, config, number: mask[:, :1] / 9), "depends on which tokens of a row count"),
        (a_loss(weight=lambda mask, config, number: float("nan")), "or is not finite"),
        (a_loss(lambda t, c: (mx.stop_gradient(t.ratio) * t.advantages, {})), "gradient of loss= is 0 for every token"),
        (a_loss(lambda t, c: (0 * t.ratio, {})), "gradient of loss= is 0 for every token"),
        (a_loss(lambda t, c: (t.advantages * mx.ones(t.mask.shape), {})), "gradient of loss= is 0 for every token"),
        (a_loss(weight=lambda mask, config, number: 0.0), "gradient of loss= is 0 for every token"),
    ],
)  # fmt: skip
def test_a_loss_that_cannot_be_divided_is_refused(make_trainer, loss, message):
    refused(make_trainer, lambda given: {"loss": loss}, message)


@pytest.mark.parametrize("name", objectives.LOSS_TYPES)
@pytest.mark.parametrize(
    "settings", [{}, {"importance_sampling_level": "sequence"}, {"importance_sampling_correction": "token_truncate"}],
    ids=str,
)  # fmt: skip
def test_the_kits_losses_pass_as_losses_of_ones_own(make_trainer, name, settings):
    loss = objectives.LOSS_TYPES[name]
    runs = [
        first_step(make_trainer, lambda given, parts=parts: parts, loss_type=name, epsilon_high=0.3, **settings)
        for parts in ({}, {"loss": loss})
    ]
    (one, _, expected), (other, _, step) = runs
    assert step.metrics["loss"] == expected.metrics["loss"]
    np.testing.assert_equal(arrays(other.params), arrays(one.params))


def learner_that(change):
    """A learner whose `gradient` is changed."""

    class Mine(MLXAtOnce):
        def gradient(self, policy, micro_batches):
            grads, metrics = super().gradient(policy, micro_batches)
            assert grads.norm > 0
            found = change(grads, metrics)
            return (grads, metrics) if found is None else found

    return Mine


def with_nan(grads, metrics):
    grads["final_norm.weight"][0] = np.nan


NORM = "final_norm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_nan, r"gradient norm nan \(learner=Mine: in 'final_norm.weight'\)"),
        (lambda grads, metrics: grads.update({NORM: grads[NORM] * np.inf}), "gradient norm"),
        (lambda grads, metrics: grads.update({NORM: grads[NORM][:1]}), r"'final_norm.weight' has shape \(1,\)"),
        (lambda grads, metrics: grads.update({NORM: grads[NORM].astype(mx.float16)}), "in float16; expected"),
        (lambda grads, metrics: grads.update({NORM: np.array(grads[NORM])}), "is of type ndarray; expected an MLX"),
        (lambda grads, metrics: grads.update({"x": grads[NORM]}), "gradient has something for 'x'"),
        (lambda grads, metrics: ({name: each for name, each in grads.items() if name != NORM}, metrics),
         "gradient has nothing for 'final_norm.weight'"),
        (lambda grads, metrics: (grads, {"grad_norm": 1.0}), "metrics without 'loss'"),
        (lambda grads, metrics: (grads, metrics | {"loss": mx.zeros(2)}), "metric 'loss' is of type array"),
        (lambda grads, metrics: (grads, metrics | {"noise": np.zeros(3)}), "metric 'noise' is of type ndarray"),
        (lambda grads, metrics: (grads, metrics | {"noise": "much"}), "metric 'noise' is of type str"),
        (lambda grads, metrics: grads, "gradient returned Gradient; expected a tuple"),
        (lambda grads, metrics: (grads, metrics | {"loss": float("nan")}), "has loss nan"),
    ],
)  # fmt: skip
def test_a_gradient_that_does_not_fit_is_refused(make_trainer, change, message):
    refused(make_trainer, lambda given: {"learner": learner_that(change)}, message)


def test_a_gradient_changed_in_place_has_the_norm_of_what_it_is(make_trainer):
    def larger(grads, metrics):
        for name in [*grads]:
            grads[name] = 10 * grads[name]

    _, _, step = first_step(make_trainer, lambda given: {"learner": learner_that(larger)})
    expected = next(make_trainer().train(1))
    assert step.metrics["grad_norm"] == pytest.approx(10 * expected.metrics["grad_norm"], rel=1e-5)


def micro_learner(change):
    class Mine(MLXAtOnce):
        def add_gradients(self, policy, grads, micro):
            return change(*super().add_gradients(policy, grads, micro))

    return Mine


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (micro_learner(lambda loss, logps, metrics: loss), "add_gradients returned array; expected a tuple"),
        (micro_learner(lambda loss, logps, metrics: (loss[None], logps, metrics)), r"'loss' of .* is of shape \(1,\)"),
        (micro_learner(lambda loss, logps, metrics: (loss.item(), logps, metrics)), "'loss' of .* is float"),
        (micro_learner(lambda loss, logps, metrics: (loss, logps[:, 1:], metrics)), "logps of add_gradients has shape"),
        (micro_learner(lambda loss, logps, metrics: (loss, -logps, metrics)), "logps of add_gradients contain"),
        (micro_learner(lambda loss, logps, metrics: (loss, np.array(logps), metrics)), "is of type ndarray"),
        (micro_learner(lambda loss, logps, metrics: (loss, logps, metrics | {"m": logps})), "'m' of add_gradients is"),
        (type("Incomplete", (Learner,), {}), "learner=Incomplete lacks add_gradients, logps"),
        (MLXAtOnce.gradient, "learner= is .*; expected a subclass of Learner"),
    ],
)
def test_a_micro_batch_that_does_not_fit_is_refused(make_trainer, learner, message):
    refused(make_trainer, lambda given: {"learner": learner}, message)
