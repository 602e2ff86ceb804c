"""The training loop: metrics, records, threads, and a trainer that survives what goes wrong.

That its updates are those of TRL's trainer is tested in tests/backends/test_learners.py.
"""

import inspect
import math
import multiprocessing
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Qwen3ForCausalLM

from mlx_grpo_kit.assets import TINY_CHAT
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, RewardError, TrainingDivergedError, memory, optimizer, sampler
from mlx_grpo_kit.grpo.learners import learner as module
from mlx_grpo_kit.qwen3 import init_params, load_pretrained, load_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition, TaskError
from tests.grpo.compare import arrays
from tests.grpo.records import batch_of


def distance(before, after) -> float:
    return max(abs(after[name] - before[name]).max() for name in before)


def steps_of(trainer, max_steps) -> list:
    return list(trainer.train(max_steps))


def metric(steps, name) -> list[float]:
    return [step.metrics[name] for step in steps]


def equal_rewards(problems, completions):
    return [0.5] * len(completions)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_micro_batches_update_like_the_whole_batch(make_trainer, loss_type):
    """The average of losses, or their sum: taking the one for the other makes the gradient N times as long."""
    runs = []
    for size, accumulation in ((16, 1), (8, 2), (2, 8)):
        trainer = make_trainer(
            loss_type=loss_type, per_device_train_batch_size=size, gradient_accumulation_steps=accumulation
        )
        steps = steps_of(trainer, 2)
        runs.append((metric(steps, "grad_norm"), metric(steps, "loss"), [c.completion for c in steps[0].completions],
                     arrays(trainer.params)))  # fmt: skip
    whole, *parts = runs
    start = arrays(make_trainer().params)
    for part in parts:
        assert part[2] == whole[2], "what is sampled does not depend on micro-batches"
        np.testing.assert_allclose(part[0], whole[0], rtol=1e-4)
        np.testing.assert_allclose(part[1], whole[1], rtol=1e-4, atol=1e-6)
        assert distance(part[3], whole[3]) < 0.1 * distance(start, whole[3])


# Metrics.


def test_metrics_are_floats_under_trls_names(make_trainer):
    import trl
    from transformers import Trainer

    task = make_trainer.task()
    (step,) = steps_of(make_trainer(task, beta=0.1), 1)
    assert all(type(value) is float for value in step.metrics.values())
    source = "".join(map(inspect.getsource, (trl.GRPOTrainer, trl.trainer.base_trainer, Trainer)))
    for name in set(step.metrics) - {"step_time"}:
        assert f'"{name.replace("sevens", "{reward_func_name}")}"' in source, name
    assert set(step.metrics) >= {
        "reward", "reward_std", "frac_reward_zero_std", "rewards/sevens/mean", "rewards/sevens/std", "loss",
        "grad_norm", "learning_rate", "entropy", "kl", "clip_ratio/low_mean", "clip_ratio/high_mean",
        "clip_ratio/region_mean",
        "completions/mean_length", "completions/min_length", "completions/max_length", "completions/clipped_ratio",
    }  # fmt: skip


def test_metrics_and_records_say_what_happened(make_trainer):
    def long(problems, completions):
        return [None if len(completion) < 2 else float(len(completion)) for completion in completions]

    task = make_trainer.task([*make_trainer.task().reward_funcs, long])
    trainer = make_trainer(task, num_generations=4, per_device_train_batch_size=16)
    (step,) = steps_of(trainer, 1)
    assert step.step == trainer.step == 1
    rows = step.completions
    assert [row.prompt for row in rows] == [rows[i - i % 4].prompt for i in range(16)], "a group shares its prompt"
    assert {type(row.reward) for row in rows} == {float}
    for row in rows:
        assert row.completion == trainer.tokenizer.decode(row.completion_ids)
        assert len(row.logps) == len(row.completion_ids) <= 4
        assert row.finished == (row.completion_ids[-1] in trainer.tokenizer.eos_token_ids)
        assert row.rewards["sevens"] == row.completion.count("7") / 4
        assert row.rewards["long"] == (None if len(row.completion) < 2 else len(row.completion))
        assert row.reward == row.rewards["sevens"] + (row.rewards["long"] or 0)
        assert row.problem.prompt == row.prompt
    rewards = np.array([row.reward for row in rows])
    lengths = [len(row.completion_ids) for row in rows]
    expected = {
        "reward": rewards.mean(), "reward_std": torch.tensor(rewards).std().item(),
        "rewards/long/mean": np.nanmean([row.rewards["long"] or math.nan for row in rows]),
        "frac_reward_zero_std": np.mean([len(set(group)) == 1 for group in rewards.reshape(-1, 4)]),
        "completions/mean_length": np.mean(lengths), "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": np.mean([not row.finished for row in rows]),
    }  # fmt: skip
    for name, value in expected.items():
        assert step.metrics[name] == pytest.approx(value), name
    for start in range(0, 16, 4):
        group = torch.tensor(rewards[start : start + 4])
        theirs = (group - group.mean()) / (group.std() + 1e-4)
        np.testing.assert_allclose([row.advantage for row in rows[start : start + 4]], theirs, atol=1e-4)


def test_entropy_and_logps_are_the_policys(make_trainer, tmp_path):
    trainer = make_trainer(temperature=1.4, top_k=40)
    trainer.save_pretrained(tmp_path / "policy")
    (step,) = steps_of(trainer, 1)
    reference = Qwen3ForCausalLM.from_pretrained(tmp_path / "policy")
    entropies = []
    for row in step.completions:
        prompt = trainer.tokenizer.encode(row.prompt)
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + row.completion_ids])).logits[0, len(prompt) - 1 : -1]
        policy = torch.distributions.Categorical(logits=logits / 1.4)
        entropies += policy.entropy().tolist()
        np.testing.assert_allclose(row.logps, policy.log_prob(torch.tensor(row.completion_ids)), atol=1e-5)
    assert step.metrics["entropy"] == pytest.approx(np.mean(entropies), rel=1e-4)


@pytest.mark.parametrize("filters", [dict(top_k=1), dict(top_p=1e-6), dict(min_p=1.0), dict(temperature=1e-6)])
def test_completions_are_drawn_as_the_settings_say(make_trainer, filters):
    """Each of these leaves one token to draw, so that a group is four times the same."""
    (step,) = steps_of(make_trainer(**filters), 1)
    assert [len({row.completion for row in step.completions[start : start + 4]}) for start in (0, 4)] == [1, 1]


def test_on_policy_loss_is_zero_and_yet_it_learns(make_trainer):
    trainer = make_trainer(loss_type="grpo")
    before = arrays(trainer.params)
    steps = steps_of(trainer, 2)
    np.testing.assert_allclose(metric(steps, "loss"), 0, atol=1e-6)
    assert min(metric(steps, "grad_norm")) > 1e-3
    assert metric(steps, "clip_ratio/region_mean") == [0, 0]
    assert distance(before, arrays(trainer.params)) > 1e-3


def test_a_second_pass_is_off_policy(make_trainer):
    """With an epsilon of nearly 0 every token with an advantage clips as soon as its ratio is not 1."""
    one = steps_of(make_trainer(loss_type="grpo", epsilon=1e-6), 1)[0].metrics
    two = steps_of(make_trainer(loss_type="grpo", epsilon=1e-6, num_iterations=2), 1)[0].metrics
    assert one["clip_ratio/region_mean"] == 0
    assert two["clip_ratio/region_mean"] > 0.05
    assert abs(two["loss"]) > 1e-6


def test_kl_starts_at_zero_and_grows(make_trainer):
    trainer = make_trainer(beta=0.1, learning_rate=1e-2)
    kl = metric(steps_of(trainer, 4), "kl")
    assert kl[0] == 0
    assert min(kl[1:]) > 0
    assert kl[3] > kl[1]
    assert "kl" not in steps_of(make_trainer(), 1)[0].metrics


def test_the_policy_is_pulled_to_the_one_it_started_from(make_trainer):
    free, held = make_trainer(learning_rate=3e-3), make_trainer(learning_rate=3e-3, beta=10.0)
    for trainer in (free, held):
        steps_of(trainer, 10)
    start = arrays(make_trainer().params)
    assert distance(start, arrays(held.policy.reference)) == 0, "the reference itself never moves"
    held.step = 0
    kl_held = steps_of(held, 1)[0].metrics["kl"]
    free.policy, free.step = replace(free.policy, reference=held.policy.reference), 0
    kl_free = steps_of(free, 1)[0].metrics["kl"]
    assert kl_held < 0.2 * kl_free


def test_equal_rewards_change_nothing_but_kl_still_acts(make_trainer):
    trainer = make_trainer(make_trainer.task([equal_rewards]))
    before = arrays(trainer.params)
    (step,) = steps_of(trainer, 1)
    assert (step.metrics["grad_norm"], step.metrics["loss"], step.metrics["frac_reward_zero_std"]) == (0, 0, 1)
    assert {row.advantage for row in step.completions} == {0}
    assert distance(before, arrays(trainer.params)) == 0

    trainer = make_trainer(make_trainer.task([equal_rewards]), beta=0.1)
    trainer.policy = replace(trainer.policy, reference=init_params(trainer.config, seed=2, scale=0.3))
    (step,) = steps_of(trainer, 1)
    assert step.metrics["kl"] > 0
    assert step.metrics["grad_norm"] > 0
    assert distance(before, arrays(trainer.params)) > 1e-4


@pytest.mark.parametrize("left_out", [True, False])
def test_truncated_completions_can_be_left_out(make_trainer, left_out):
    """At most one token, and none of them an end: every completion is cut off, and there is nothing to learn from."""

    def varied(problems, completions):
        return [ord(completion[:1] or " ") / 100 for completion in completions]

    task = make_trainer.task([varied])
    trainer = make_trainer(task, max_completion_length=1, mask_truncated_completions=left_out)
    before = arrays(trainer.params)
    (step,) = steps_of(trainer, 1)
    assert step.metrics["completions/clipped_ratio"] == 1
    assert all(row.advantage for row in step.completions)
    assert (step.metrics["grad_norm"] == 0) == left_out
    assert (distance(before, arrays(trainer.params)) == 0) == left_out


# The loop.


def test_the_learning_rate_warms_up_and_falls(make_trainer):
    trainer = make_trainer(learning_rate=1.0e-3, warmup_steps=3, lr_scheduler_type="linear")
    rates = metric(steps_of(trainer, 8), "learning_rate")
    np.testing.assert_allclose(rates, [0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 0.8e-3, 0.6e-3, 0.4e-3, 0.2e-3], rtol=1e-6)
    trainer = make_trainer(learning_rate=1.0e-3)
    assert metric(steps_of(trainer, 3), "learning_rate") == [1e-3] * 3


def test_the_learning_rate_is_what_an_update_moves(make_trainer):
    """AdamW's first update moves each number by the learning rate, if its bias correction is on."""
    for rate in (1e-3, 1e-5):
        trainer = make_trainer(learning_rate=rate)
        before = arrays(trainer.params)
        steps_of(trainer, 1)
        assert distance(before, arrays(trainer.params)) == pytest.approx(rate, rel=0.05)


def test_leaving_the_loop_stops_and_another_loop_goes_on(make_trainer):
    calls = []

    def counted(problems, completions):
        calls.append(len(completions))
        return [float(len(completion)) for completion in completions]

    trainer = make_trainer(make_trainer.task([counted]))
    for step in trainer.train(max_steps=100):
        if step.step == 2:
            break
    assert (trainer.step, calls) == (2, [8, 8])
    assert [step.step for step in trainer.train(max_steps=4)] == [3, 4]
    assert steps_of(trainer, 4) == [], "max_steps counts all steps that were ever done"
    whole = make_trainer(make_trainer.task([counted]))
    steps_of(whole, 4)
    assert distance(arrays(whole.params), arrays(trainer.params)) == 0


def test_the_seed_decides_the_run(make_trainer):
    runs = [steps_of(make_trainer(seed=seed), 2) for seed in (5, 5, 6)]
    texts = [[row.completion for step in run for row in step.completions] for run in runs]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][:8] != texts[0][8:], "every step samples anew"
    for first, same in zip(runs[0], runs[1], strict=True):
        assert first.metrics | {"step_time": 0} == same.metrics | {"step_time": 0}


def test_evaluation_does_not_touch_training(make_trainer):
    trainers = [make_trainer(), make_trainer()]
    steps_of(trainers[0], 1)
    first = trainers[0].evaluate(num_problems=50, seed=1)
    assert first == trainers[0].evaluate(num_problems=50, seed=1)
    assert set(first) == {"eval/accuracy", "eval/reward"}
    assert first != trainers[0].evaluate(num_problems=50, seed=2)
    for trainer in trainers:
        steps_of(trainer, 3)
    assert distance(*(arrays(trainer.params) for trainer in trainers)) == 0


def test_evaluation_counts_what_the_task_calls_correct(make_trainer):
    task = make_trainer.task([equal_rewards])
    task.is_correct = lambda problem, completion: problem.prompt in ("0=", "3=")
    assert make_trainer(task).evaluate(num_problems=8) == {"eval/accuracy": 0.25, "eval/reward": 0.5}


def test_it_learns(make_trainer):
    """From 1 seven in 64 characters to nearly all: a sign that is wrong anywhere would lead away from it."""
    trainer = make_trainer(num_generations=16, per_device_train_batch_size=64, learning_rate=1e-2)
    before = trainer.evaluate(64)
    rewards = metric(steps_of(trainer, 30), "reward")
    after = trainer.evaluate(64)
    assert rewards[0] < 0.2
    assert rewards[-1] > 0.9
    assert before["eval/accuracy"] < 0.2
    assert after["eval/accuracy"] > 0.6, "on prompts that training never showed it"


# What goes wrong.


def test_a_failing_reward_leaves_the_trainer_as_it_was(make_trainer):
    broken = []

    def fragile(problems, completions):
        if broken:
            raise KeyError("answer")
        return [float(len(completion)) for completion in completions]

    trainer, untroubled = (make_trainer(make_trainer.task([fragile])) for _ in range(2))
    steps_of(trainer, 1)
    before = arrays(trainer.params)
    broken.append(True)
    with pytest.raises(RewardError, match="'fragile' raised KeyError"):
        steps_of(trainer, 3)
    assert trainer.step == 1
    assert distance(before, arrays(trainer.params)) == 0
    broken.clear()
    assert [step.step for step in trainer.train(3)] == [2, 3]
    steps_of(untroubled, 3)
    assert distance(arrays(untroubled.params), arrays(trainer.params)) == 0


@pytest.mark.parametrize("num_iterations", [1, 2])
@pytest.mark.parametrize("error", [TrainingDivergedError, KeyboardInterrupt])
def test_a_step_that_fails_in_its_last_pass_changes_nothing(make_trainer, monkeypatch, num_iterations, error):
    trainer, untroubled = (make_trainer(num_iterations=num_iterations, beta=0.1) for _ in range(2))
    steps_of(trainer, 1)
    before = arrays(trainer.params)
    passes = []

    def failing(*args, **kwargs):
        loss, metrics = original(*args, **kwargs)
        passes.append(1)
        if len(passes) < num_iterations:
            return loss, metrics
        if error is KeyboardInterrupt:
            raise KeyboardInterrupt
        return loss * math.nan, metrics

    original = module.grpo_loss_and_metrics
    with monkeypatch.context() as patch:
        patch.setattr(module, "grpo_loss_and_metrics", failing)
        with pytest.raises(error):
            steps_of(trainer, 3)
    assert len(passes) == num_iterations
    assert trainer.step == 1
    assert distance(before, arrays(trainer.params)) == 0
    steps_of(trainer, 3)
    steps_of(untroubled, 3)
    assert distance(arrays(untroubled.params), arrays(trainer.params)) == 0, "AdamW's moments are the old ones too"


def test_divergence_is_explained(make_trainer, monkeypatch):
    original = module.grpo_loss_and_metrics

    def diverging(*args, **kwargs):
        loss, metrics = original(*args, **kwargs)
        return loss + mx.log(loss * 0 - 1), metrics

    monkeypatch.setattr(module, "grpo_loss_and_metrics", diverging)
    with pytest.raises(TrainingDivergedError, match=r"Step 1 has loss nan.*are those of step 0. Lower learning_rate"):
        steps_of(make_trainer(), 1)


@pytest.mark.parametrize("num_iterations", [1, 2])
@pytest.mark.parametrize(("learning_rate", "weight_decay"), [(1e18, 1.0), (1e18, 1e300), (1.0, 1e38)])
def test_an_update_that_is_not_finite_is_not_made(make_trainer, num_iterations, learning_rate, weight_decay):
    trainer, untroubled = (make_trainer(num_iterations=num_iterations) for _ in range(2))
    steps_of(trainer, 1)
    before = arrays(trainer.params)
    right = trainer.args
    trainer.change(learning_rate=learning_rate, weight_decay=weight_decay)
    with pytest.raises(TrainingDivergedError, match=r"Step 2 .*parameters are those of step 1. Lower learning_rate"):
        steps_of(trainer, 2)
    assert trainer.step == 1
    assert distance(before, arrays(trainer.params)) == 0
    trainer.change(learning_rate=right.learning_rate, weight_decay=right.weight_decay)
    steps_of(trainer, 3)
    steps_of(untroubled, 3)
    assert distance(arrays(untroubled.params), arrays(trainer.params)) == 0, "AdamW's moments are the old ones too"


@pytest.mark.parametrize("num_iterations", [1, 2])
@pytest.mark.parametrize("is_large", [False, True])
def test_an_interrupt_in_the_middle_of_the_update(make_trainer, monkeypatch, is_large, num_iterations):
    """The step is taken back. A large model's single update keeps no old parameters, so it is done instead."""
    if is_large:
        monkeypatch.setattr(optimizer, "GROUP_BYTES", 2000)
    trainer, untroubled = (make_trainer(num_iterations=num_iterations) for _ in range(2))
    assert trainer.optimizer.rule.is_large == is_large
    steps_of(trainer, 1)
    calls = []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 7 + (num_iterations - 1) * calls_an_update:
            signal.raise_signal(signal.SIGINT)
        return one_step(*args)

    one_step = trainer.optimizer.rule.one_step
    calls_an_update = sum(len([*optimizer._blocks(value)]) for value in trainer.params.values())
    assert (calls_an_update > len(trainer.params)) == is_large, "the embedding goes by in blocks"
    with monkeypatch.context() as patch:
        patch.setattr(trainer.optimizer.rule, "one_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            steps_of(trainer, 3)
    comes_through = is_large and num_iterations == 1
    assert len(calls) == num_iterations * calls_an_update, "no update was cut off in the middle"
    assert trainer.step == 1 + comes_through
    steps_of(untroubled, 1 + comes_through)
    assert distance(arrays(untroubled.params), arrays(trainer.params)) == 0
    steps_of(trainer, 3)
    steps_of(untroubled, 3)
    assert distance(arrays(untroubled.params), arrays(trainer.params)) == 0


@pytest.mark.parametrize("num_iterations", [1, 2])
def test_a_large_model_does_not_keep_what_it_replaces(make_trainer, monkeypatch, num_iterations):
    monkeypatch.setattr(optimizer, "GROUP_BYTES", 2000)
    trainer, growth = make_trainer(num_iterations=num_iterations), []

    def measured(*args):
        before = mx.get_active_memory()
        update(*args)
        growth.append(mx.get_active_memory() - before)

    update = trainer.optimizer.rule.update
    monkeypatch.setattr(trainer.optimizer.rule, "update", measured)
    steps_of(trainer, 2)
    size = sum(value.nbytes for value in trainer.params.values())
    if num_iterations == 1:
        assert max(growth) < 0, "the gradients are gone, and nothing has come"
    else:
        assert growth[0] > size, "the step can be taken back in its second pass"


def test_parameters_that_somebody_holds_stay_what_they_were(make_trainer, monkeypatch):
    monkeypatch.setattr(optimizer, "GROUP_BYTES", 2000)
    trainer = make_trainer()
    held = trainer.params
    before = arrays(held)
    steps_of(trainer, 2)
    assert distance(before, arrays(held)) == 0
    assert distance(before, arrays(trainer.params)) > 0


def test_a_task_that_gives_the_wrong_number_of_problems(make_trainer):
    task = make_trainer.task()
    task.sample = lambda rng, n: make_trainer.task().sample(rng, n + 1)
    with pytest.raises(TaskError, match=r"Task 'sevens': sample\(rng, 2\) returned more than 2 problems"):
        steps_of(make_trainer(task), 1)


def test_completions_are_recorded_beside_their_problems_whatever_a_reward_does(make_trainer):
    def sorting(problems, completions):
        completions.sort()
        return [float(len(completion)) for completion in completions]

    trainer = make_trainer(make_trainer.task([sorting]))
    (step,) = steps_of(trainer, 1)
    assert all(row.completion == trainer.tokenizer.decode(row.completion_ids) for row in step.completions)


def test_a_model_and_a_tokenizer_that_do_not_fit(make_trainer):
    params = init_params(make_trainer.config)
    with pytest.raises(ValueError, match=r"Missing parameter 'final_norm.weight'"):
        make_trainer(params={name: value for name, value in params.items() if name != "final_norm.weight"})
    trainer = make_trainer()
    small = replace(trainer.config, vocab_size=32)
    with pytest.raises(ValueError, match=r"tokenizer has 64 tokens and the model has 32 \(vocab_size\).*same folder"):
        type(trainer)(small, init_params(small), trainer.tokenizer, trainer.task)


def test_completions_longer_than_the_context(make_trainer):
    with pytest.raises(ValueError, match="exceeds the model's 64 positions"):
        steps_of(make_trainer(max_completion_length=64), 1)


# Threads, precision, memory.


def test_training_in_a_background_thread(make_trainer, tmp_path):
    """Made here, trained there, evaluated and saved here: every array that crosses has been computed."""
    here, there = make_trainer(beta=0.1), make_trainer(beta=0.1)
    steps_of(here, 3)
    with ThreadPoolExecutor(1) as pool:
        steps = pool.submit(steps_of, there, 2).result()
    assert len(steps) == 2
    there.evaluate(8)
    there.save_pretrained(tmp_path / "policy")
    there.save_checkpoint(tmp_path / "checkpoint")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(steps_of, there, 3).result()
    assert distance(arrays(here.params), arrays(there.params)) < 1e-6


def test_evaluating_and_saving_wait_for_the_step_of_another_thread(make_trainer, tmp_path):
    """The thread is held in the middle of a step; what is asked for meanwhile happens after it, before the next one."""
    in_step, go_on = threading.Event(), threading.Event()

    def held(problems, completions):
        if threading.current_thread() is not threading.main_thread():
            in_step.set()
            assert go_on.wait(10)
        return [float(len(completion)) for completion in completions]

    trainer, untroubled = (make_trainer(make_trainer.task([held])) for _ in range(2))
    steps_of(untroubled, 1)
    with ThreadPoolExecutor(2) as pool:
        steps = pool.submit(steps_of, trainer, 20)
        assert in_step.wait(10)
        evaluation = pool.submit(lambda: (trainer.evaluate(8), trainer.step))
        while len(trainer._lock._queue) < 2:
            assert not evaluation.done()
        go_on.set()
        assert evaluation.result() == (untroubled.evaluate(8), 1)
        assert len(steps.result()) == 20


def test_two_threads_in_one_trainer_are_refused(make_trainer):
    trainer = make_trainer()
    loop = trainer.train(10)
    next(loop)
    with ThreadPoolExecutor(1, thread_name_prefix="second") as pool:
        with pytest.raises(RuntimeError, match=r"open in thread 'MainThread'; expected one at a time.*run.stop\(\)"):
            pool.submit(steps_of, trainer, 2).result()
        assert trainer.step == 1
        assert pool.submit(next, loop).result().step == 2, "the loop itself may move to another thread"
        with pytest.raises(RuntimeError, match="open in thread 'second_0'"):
            next(trainer.train(10))
        loop.close()
        assert pool.submit(steps_of, trainer, 4).result()[0].step == 3
    assert [step.step for step in trainer.train(5)] == [5]


def test_a_reward_may_evaluate(make_trainer):
    def curious(problems, completions):
        if len(problems) == 8:
            trainer.evaluate(4)
        return [1.0] * len(completions)

    trainer = make_trainer(make_trainer.task([curious]))
    assert len(steps_of(trainer, 1)) == 1


def test_a_forked_child_is_refused_with_words(make_trainer):
    """MLX itself would let it wait for ever."""
    trainer = make_trainer()
    steps_of(trainer, 1)
    here, there = multiprocessing.Pipe()

    def child():
        for use in (lambda: steps_of(trainer, 2), lambda: trainer.evaluate(2)):
            try:
                there.send(use())
            except RuntimeError as error:
                there.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    try:
        for _ in range(2):
            assert here.poll(20), "the child hangs"
            assert "forked from one that had used MLX" in here.recv()
    finally:
        process.kill()
        process.join()


SCRIPT = """
import sys, time
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.grpo.recipe import model_folder
from mlx_grpo_kit.tasks import get_task
from mlx_grpo_kit.viz import LivePlot

folder = model_folder("tiny")
args = GRPOConfig(num_generations=4, per_device_train_batch_size=16)
trainer = GRPOTrainer(*load_pretrained(folder), load_tokenizer(folder), get_task("addition"), args)
plot = LivePlot("reward", max_steps=12)
run = plot.start(trainer.train(12))
while not plot.steps: time.sleep(0.005)
for _ in range(3):
    trainer.evaluate(16)
trainer.save_pretrained(sys.argv[1])
trainer.save_checkpoint(sys.argv[2])
print("beside the run" if run.running else "after the run")
run.wait()
print(plot.status.split(" · ")[0])
"""


def test_a_script_evaluates_and_saves_beside_a_background_run_and_ends_in_good_order(tmp_path):
    command = [sys.executable, "-c", SCRIPT, tmp_path / "policy", tmp_path / "checkpoint"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (0, "beside the run\nfinished: step 12 of 12\n", "")


def test_bfloat16_keeps_float32_masters(make_trainer, tmp_path):
    """At a learning rate of 1e-6 a bfloat16 number never moves: each sum rounds back to where it was."""
    params = {name: value.astype(mx.bfloat16) for name, value in init_params(make_trainer.config, 1, 0.3).items()}
    trainer = make_trainer(params=params, learning_rate=1e-6)
    steps = steps_of(trainer, 3)
    assert metric(steps, "grad_norm")[0] > 0  # later ones may have equal rewards throughout
    assert {value.dtype for value in trainer.params.values()} == {mx.bfloat16}
    assert {value.dtype for value in trainer.policy.trained.values()} == {mx.float32}
    moved = distance(arrays(params), arrays(trainer.policy.trained))
    assert 1e-6 < moved < 4e-6
    trainer.save_pretrained(tmp_path / "policy")
    assert load_pretrained(tmp_path / "policy", dtype=None)[1]["final_norm.weight"].dtype == mx.bfloat16


@pytest.mark.parametrize("settings", [{"completion_batch_size": 4}, {}])
def test_sampling_in_pieces_draws_the_same(make_trainer, monkeypatch, settings):
    """A piece for each group: as the settings say, or because the keys and values of two do not fit."""
    whole, pieces, sizes = make_trainer(), make_trainer(**settings), []
    (step,), measured = steps_of(whole, 1), whole.evaluate(10)

    def spied(config, params, prompts, **kwargs):
        if kwargs["completion_batch_size"] < len(prompts):
            sizes.append(kwargs["completion_batch_size"])
        return generate(config, params, prompts, **kwargs)

    generate = sampler.generate
    monkeypatch.setattr(sampler, "generate", spied)
    monkeypatch.setattr(memory, "CACHE_BYTES", 2**40 if settings else 3000)
    (step_in_pieces,) = steps_of(pieces, 1)
    ids, in_pieces = ([row.completion_ids for row in each.completions] for each in (step, step_in_pieces))
    assert in_pieces == ids
    assert pieces.evaluate(10) == measured
    assert sizes == [4, 4], "in training and in evaluation"


# In bfloat16.


def test_bf16_learns_as_float32_does_but_for_rounding(make_trainer):
    exact, rounded = make_trainer(), make_trainer(bf16=True)
    assert {value.dtype for value in rounded.params.values()} == {mx.bfloat16}
    assert {value.dtype for value in rounded.policy.trained.values()} == {mx.float32}
    assert {value.dtype for name in rounded.params for value in rounded.optimizer.state[name].values()} == {mx.float32}
    batch = next(exact.train(1)).completions
    found = []
    for trainer in (make_trainer(), make_trainer(bf16=True), make_trainer(bf16=True, gradient_checkpointing=True)):
        learner = trainer.parts.learner
        batch_again = batch_of(batch, trainer.args.num_generations)
        [prepared] = learner.prepare(trainer.policy, batch_again)
        grads, metrics = learner.gradient(trainer.policy, prepared)
        assert {value.dtype for value in grads.values()} == {mx.float32}
        found.append((metrics, np.concatenate([np.array(grads[name]).ravel() for name in sorted(grads)])))
    (metrics, grads), *others = found
    for other, theirs in others:
        assert other["loss"] == pytest.approx(metrics["loss"], abs=1e-3)
        assert other["entropy"] == pytest.approx(metrics["entropy"], rel=1e-2)
        cosine = grads @ theirs / np.linalg.norm(grads) / np.linalg.norm(theirs)
        assert 0.99 < cosine < 1.0 - 1e-7, "close to float32's, and not computed in it"


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_bf16_loses_no_tiny_updates(make_trainer, gradient_checkpointing):
    """A bfloat16 number near 1 moves by 1/256 or not at all: a thousand steps of 1e-6 have to add up."""
    trainer = make_trainer(bf16=True, learning_rate=1e-6, gradient_checkpointing=gradient_checkpointing)
    before = np.array(trainer.policy.trained["final_norm.weight"])
    steps_of(trainer, 3)
    moved = abs(np.array(trainer.policy.trained["final_norm.weight"]) - before)
    assert (moved > 2e-7).mean() > 0.5
    assert moved.max() < 4e-6


def test_bf16_is_saved_as_bfloat16(make_trainer, tmp_path):
    trainer = make_trainer(bf16=True)
    trainer.save_pretrained(tmp_path / "policy")
    _, params = load_pretrained(tmp_path / "policy", dtype=None)
    assert {value.dtype for value in params.values()} == {mx.bfloat16}


def test_a_stop_string_may_be_a_special_token():
    """At this temperature every token is equally likely: without a stop a completion holds several special ones."""
    tokenizer = load_tokenizer(TINY_CHAT)
    special = {i for i in range(480, 494) if i not in tokenizer.eos_token_ids}
    args = GRPOConfig(
        num_generations=4, per_device_train_batch_size=8, max_completion_length=200, temperature=1000.0,
        stop_strings=[tokenizer.token(i) for i in special],
    )  # fmt: skip
    trainer = GRPOTrainer(*load_pretrained(TINY_CHAT), tokenizer, Addition().in_chat(), args)
    completions = [each.completion_ids for each in next(trainer.train(1)).completions]
    assert sum(ids[-1] in special for ids in completions) >= 4
    assert not any(special.intersection(ids[:-1]) for ids in completions)


def test_stop_strings_end_a_completion_and_are_learned_from(make_trainer, tmp_path):
    stop_strings = [*"0123456789"]
    free, stopped = make_trainer(), make_trainer(stop_strings=stop_strings)
    (without,), (step,) = steps_of(free, 1), steps_of(stopped, 1)
    ended = 0
    for ours, theirs in zip(step.completions, without.completions, strict=True):
        cuts = [
            place for place in range(1, len(theirs.completion) + 1)
            if any(text in theirs.completion[:place] for text in stop_strings)
        ]  # fmt: skip
        assert ours.completion == theirs.completion[: cuts[0] if cuts else None]
        assert ours.finished == (bool(cuts) or theirs.finished)
        assert len(ours.logps) == len(ours.completion_ids)
        ended += bool(cuts)
    assert ended

    stopped.save_checkpoint(tmp_path / "one")
    resumed = type(stopped).resume(tmp_path / "one", stopped.task)
    assert resumed.args == stopped.args


# Variants: what is drawn, what a reward weighs, and a reference that follows.


def only_some(problems, completions):
    """Without spread for every prompt but one kind."""
    return [
        completion.count("7") / 4 if problem.prompt == "77" else 0.0
        for problem, completion in zip(problems, completions, strict=True)
    ]


def test_groups_without_spread_are_drawn_again(make_trainer):
    settings = dict(per_device_train_batch_size=16, temperature=1.5)
    [plain] = make_trainer(make_trainer.task([only_some]), **settings).train(1)
    [step] = make_trainer(make_trainer.task([only_some]), **settings, dynamic_sampling_rounds=30).train(1)
    assert plain.metrics["frac_reward_zero_std"] > 0
    assert step.metrics["frac_reward_zero_std"] == 0
    assert {each.prompt for each in step.completions} == {"77"}
    assert [each.group for each in step.completions] == [place for place in range(4) for _ in range(4)]
    assert step.metrics["dynamic_sampling/groups_drawn"] > 4
    assert step.metrics["dynamic_sampling/reward"] < step.metrics["reward"]
    spread = {each.group for each in plain.completions if each.advantage}
    kept = [each for each in plain.completions if each.group in spread]
    again = {each.group: each for each in step.completions}
    assert all(again[each.group].prompt == each.prompt for each in kept)  # what had spread stays in its place


def test_drawing_again_ends_and_says_so(make_trainer):
    task = make_trainer.task([lambda problems, completions: [0.0] * len(completions)])
    [step] = make_trainer(task, dynamic_sampling_rounds=3).train(1)
    assert step.metrics["dynamic_sampling/groups_drawn"] == 2 * 4  # the first time, and three times again
    assert step.metrics["frac_reward_zero_std"] == 1
    assert step.metrics["grad_norm"] == 0


def test_what_failed_before_a_group_was_drawn_again_is_forgotten(make_trainer):
    calls = []

    def late(problems, completions):
        calls.append(len(completions))
        if len(calls) <= 8 + 4 + 2 + 1:  # all completions at once, and then halves of them down to each by itself
            raise ValueError("not yet")
        return [float(place) for place in range(len(completions))]

    trainer = make_trainer(make_trainer.task([late]), dynamic_sampling_rounds=2, on_reward_error="skip")
    with pytest.warns(RuntimeWarning, match="'late' raised ValueError: not yet"):
        [step] = trainer.train(1)
    assert calls[-2:] == [1, 8]
    assert [each.rewards["late"] for each in step.completions] == [*range(8)]
    assert step.metrics["rewards/late/failed"] == 0


def test_drawing_again_repeats_by_seed(make_trainer):
    settings = dict(dynamic_sampling_rounds=5, temperature=1.5)

    def texts(seed):
        steps = make_trainer(make_trainer.task([only_some]), **settings, seed=seed).train(2)
        return [[each.completion for each in step.completions] for step in steps]

    assert texts(1) == texts(1) != texts(2)


def length(problems, completions):
    return [float(len(completion)) for completion in completions]


def sevens(problems, completions):
    return [completion.count("7") / 4 for completion in completions]


def test_reward_weights(make_trainer):
    [step] = make_trainer(make_trainer.task([sevens, length]), reward_weights=[2, -0.5]).train(1)
    for each in step.completions:
        assert each.reward == 2 * each.rewards["sevens"] - 0.5 * each.rewards["length"]
    raw = [each.rewards["length"] for each in step.completions]
    assert step.metrics["rewards/length/mean"] == pytest.approx(np.mean(raw))
    assert step.metrics["reward"] == pytest.approx(np.mean([each.reward for each in step.completions]))
    with pytest.raises(ValueError, match=r"reward_weights are \(1,\); expected one number for each of the 2 rewa"):
        make_trainer(make_trainer.task([sevens, length]), reward_weights=[1])


@pytest.mark.parametrize("weight", [1, 3])
def test_the_end_of_a_long_completion_is_punished(make_trainer, weight):
    [step] = make_trainer(soft_punish_cache=2, reward_weights=[weight]).train(1)
    penalties = [each.rewards["soft_overlong_punishment_reward"] for each in step.completions]
    assert any(penalties)
    for each, penalty in zip(step.completions, penalties, strict=True):
        assert penalty == [0, 0, -0.5, -1][len(each.completion_ids) - 1]
        assert each.reward == weight * each.rewards["sevens"] + penalty
    with pytest.raises(ValueError, match="soft_punish_cache is 5; expected at most max_completion_length, 4"):
        make_trainer(soft_punish_cache=5)


def test_a_reference_that_follows_is_resumed_bit_for_bit(make_trainer, tmp_path):
    settings = dict(beta=0.1, sync_ref_model=True, ref_model_sync_steps=2)
    trainer = make_trainer(**settings)
    list(trainer.train(3))
    trainer.save_checkpoint(tmp_path / "checkpoint")
    list(trainer.train(4))
    resumed = GRPOTrainer.resume(tmp_path / "checkpoint", make_trainer.task())
    list(resumed.train(4))
    for name, value in trainer.policy.reference.items():
        assert mx.array_equal(value, resumed.policy.reference[name])
        assert mx.array_equal(trainer.params[name], resumed.params[name])


def test_an_entropy_bonus_keeps_entropy(make_trainer):
    def entropy_after(coef):
        *_, step = make_trainer(entropy_coef=coef, learning_rate=1e-2).train(15)
        assert ("entropy_coef" in step.metrics) == (coef != 0)
        return step.metrics["entropy"]

    assert entropy_after(-0.5) < entropy_after(0.0) < entropy_after(0.5)
