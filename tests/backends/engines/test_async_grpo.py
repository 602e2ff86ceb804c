"""Asynchronous GRPO: without lag it is the trainer's run, with it it learns, and nothing is left when it ends."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import trio
import trio.testing

from mlx_grpo_kit.assets import TINY, TINY_CHAT
from mlx_grpo_kit.backends.arrays import as_numpy
from mlx_grpo_kit.backends.async_grpo import generate_together, train_async
from mlx_grpo_kit.backends.future import TrainingError
from mlx_grpo_kit.backends.inference_engines import EngineError, MLXEngine, WeightSyncError, sync_weights_to_engines
from mlx_grpo_kit.backends.inference_process import ProcessEngine
from mlx_grpo_kit.backends.padded_batch import padded_batch
from mlx_grpo_kit.backends.weights import to_kit
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.grpo.rewards import RewardError
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.tasks import Addition, Calculator

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def engines(tiny):
    config, _, _ = tiny
    with MLXEngine(config, name="first") as first, MLXEngine(config, name="second") as second:
        yield [first, second]


def run(backend, engines, tokenizer, task=None, body=None, **settings):
    """The steps of a run, seen from outside of trio; `body(step)` is awaited after each."""
    settings = {"num_prompts": 4, "num_generations": 4, "max_steps": 3} | settings

    async def main():
        found = []
        async with train_async(backend, engines, tokenizer, task or Addition(), **settings) as steps:
            async for step in steps:
                found.append(step)
                if body is not None:
                    await body(step)
        return found

    return trio.run(main)


def test_in_asyncio_it_is_the_same_run(make_backend, engines, tiny):
    async def main(backend):
        settings = {"num_prompts": 4, "num_generations": 4, "max_steps": 3, "max_lag": 0}
        async with train_async(backend, engines, tiny[2], Addition(), **settings) as steps:
            return [step async for step in steps]

    expected = run(make_backend(TINY), engines, tiny[2], max_lag=0)
    for step, other in zip(asyncio.run(main(make_backend(TINY))), expected, strict=True):
        assert [each.completion for each in step.completions] == [each.completion for each in other.completions]
        assert step.metrics["loss"] == other.metrics["loss"]

    async def fails():
        async with train_async(make_backend(TINY), engines, tiny[2], Breaking(1), max_steps=9) as steps:
            [step async for step in steps]

    with pytest.raises(RewardError, match="no such thing"):
        asyncio.run(fails())


def test_it_trains_on_chats(make_backend):
    """The prompts are the trainer's, written by the folder's template."""
    config, params = load_pretrained(TINY_CHAT)
    tokenizer, task = load_tokenizer(TINY_CHAT), Addition().in_chat()
    with MLXEngine(config) as engine:
        [step] = run(make_backend(TINY_CHAT), [engine], tokenizer, task, max_lag=0, max_steps=1)
    args = GRPOConfig(learning_rate=8e-4, num_generations=4, per_device_train_batch_size=16)
    expected = next(iter(GRPOTrainer(config, params, tokenizer, task, args).train(1)))
    assert [each.prompt_ids for each in step.completions] == [each.prompt_ids for each in expected.completions]
    assert [each.completion for each in step.completions] == [each.completion for each in expected.completions]


def test_engines_end_with_the_last_weights(make_backend, engines, tiny):
    config, _, tokenizer = tiny
    backend, rows = make_backend(TINY), [[5, 6, 7]]

    def served():
        return [engine.generate(rows, sampling=SamplingConfig(4), seed=0).wait().rollout.logps[0] for engine in engines]

    async def look(step):
        if step.step == 3:
            seen.extend(served())

    seen: list[list[float]] = []
    run(backend, engines, tokenizer, body=look, max_steps=3)
    params = to_kit(config, backend.get_weights().wait())
    expected = generate(config, params, rows, sampling=SamplingConfig(4), seed=0).logps[0]
    for found in (*seen, *served()):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    for engine in engines:  # a run that has nothing left to do
        engine.load_weights(tiny[1], 0, allow_older=True).wait()
    assert not run(backend, engines, tokenizer, max_steps=3)
    for found in served():
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_versions_are_those_of_checkpoints_before_during_and_after_a_run(make_backend, engines, tiny):
    backend, folders = make_backend(TINY), []

    async def save(step):
        if step.step in (2, 4):
            folders.append(await backend.save_checkpoint(step.step))

    run(backend, engines, tiny[2], max_steps=4, body=save)
    assert {engine.weight_version for engine in engines} <= {0, 1}, "what was saved when they got their weights"
    for number, folder in enumerate(folders, start=1):
        served = trio.run(sync_weights_to_engines, engines, folder)
        assert [each.weight_version for each in served] == [number, number]
    run(backend, engines, tiny[2], max_steps=5)
    assert {engine.weight_version for engine in engines} == {2}
    with pytest.raises(WeightSyncError, match="did not load version 1"):
        trio.run(sync_weights_to_engines, engines, folders[0])
    trio.run(sync_weights_to_engines, engines, folders[1])


def test_without_lag_it_is_the_trainers_run(make_any_backend, engines, tiny):
    """The trainer's gradient and optimizer are its own, and tested against TRL."""
    config, params, tokenizer = tiny
    steps = run(make_any_backend(TINY), engines[:1], tokenizer, max_lag=0, max_steps=3, seed=3)
    args = GRPOConfig(learning_rate=8e-4, num_generations=4, per_device_train_batch_size=16, seed=3)
    expected = [*GRPOTrainer(config, params, tokenizer, Addition(), args).train(3)]
    assert [step.step for step in steps] == [1, 2, 3]
    for step, other in zip(steps, expected, strict=True):
        assert [each.completion for each in step.completions] == [each.completion for each in other.completions]
        assert [each.advantage for each in step.completions] == [each.advantage for each in other.completions]
        for name in ("reward", "loss", "grad_norm", "entropy", "completions/mean_length", "learning_rate"):
            assert step.metrics[name] == pytest.approx(other.metrics[name], rel=2e-3, abs=2e-5), name
        assert step.metrics["lag"] == 0
        assert step.metrics["sampling/sampling_logp_difference/max"] < 1e-4
        assert all(isinstance(value, float) for value in step.metrics.values())


def test_without_lag_one_engine_or_two_and_once_more_are_the_same_run(make_backend, engines, tiny):
    runs = [run(make_backend(TINY), some, tiny[2], max_lag=0) for some in (engines, engines[:1], engines)]
    for first, *others in zip(*runs, strict=True):
        for other in others:
            assert [each.completion for each in other.completions] == [each.completion for each in first.completions]
            assert other.metrics["loss"] == pytest.approx(first.metrics["loss"], abs=1e-5)
    for first, again in zip(runs[0], runs[2], strict=True):
        assert first.metrics["loss"] == again.metrics["loss"]
        assert first.metrics["grad_norm"] == again.metrics["grad_norm"]


@pytest.mark.parametrize("max_lag", [1, 3])
def test_the_lag_is_reached_and_never_exceeded(make_backend, engines, tiny, max_lag):
    """Steps that take their time, so that writing gets as far ahead as it may."""

    async def dawdle(step):
        # The writer may do all that is left to it before the next step begins.
        await trio.testing.wait_all_tasks_blocked(0.05)

    backend = make_backend(TINY)
    steps = run(backend, engines[:1], tiny[2], body=dawdle, max_lag=max_lag, max_steps=7)
    lags = [step.metrics["lag"] for step in steps]
    assert max(lags) <= max_lag
    assert lags[0] == 0
    assert max(lags) == max_lag, lags
    assert [step.step for step in steps] == [*range(1, 8)]
    stale = [step.metrics["sampling/sampling_logp_difference/mean"] for step in steps if step.metrics["lag"]]
    assert min(stale) > 1e-4, "other weights wrote it than learned from it"


def test_the_lag_counts_updates_made_while_an_engine_loads_older_weights(make_one_backend, engines, tiny, monkeypatch):
    """An engine takes as long to load the weights of each batch as the learner takes for the next update."""
    [engine, _], loads = engines, []
    learned = [trio.Event() for _ in range(4)]
    load_weights = engine.load_weights

    def slow(*arguments, **named):
        future, number = load_weights(*arguments, **named), len(loads)
        loads.append(number)

        async def result():
            await future.result()
            if 1 <= number <= 3:
                await learned[number - 1].wait()

        return SimpleNamespace(result=result)

    async def after(step):
        learned[step.step - 1].set()

    monkeypatch.setattr(engine, "load_weights", slow)
    steps = run(make_one_backend("mlx", TINY), [engine], tiny[2], body=after, max_lag=1, max_steps=4)
    assert [step.metrics["lag"] for step in steps] == [0, 1, 1, 1]
    assert len(loads) == 5


def test_it_learns_the_shipped_task(make_one_backend, tiny):
    """With a lag, from another process. (For every backend: its first steps are the trainer's, which learns.)"""
    config, params, tokenizer = tiny
    backend = make_one_backend("pytorch", TINY)
    with ProcessEngine(config, params) as engine:
        steps = run(backend, [engine], tokenizer, max_steps=25, num_prompts=10, num_generations=8)
    before, after = (
        GRPOTrainer(config, weights, tokenizer, Addition()).evaluate(512)["eval/accuracy"]
        for weights in (params, to_kit(config, backend.get_weights().wait()))
    )
    assert {step.metrics["lag"] for step in steps} <= {0.0, 1.0}
    assert after > before + 0.08, (before, after)


def test_a_run_goes_on_where_the_backend_is(make_backend, engines, tiny):
    """Also from a checkpoint: with lag 0 the same numbers as a run that was never stopped."""
    whole = run(make_backend(TINY), engines, tiny[2], max_lag=0, max_steps=4)
    backend, other = make_backend(TINY), make_backend(TINY)
    folder = []

    async def save(step):
        if step.step == 2:
            folder.append(await backend.save_checkpoint(step.step, step.metrics))

    run(backend, engines, tiny[2], max_lag=0, max_steps=3, body=save)
    trio.run(other.load_checkpoint, folder[0])
    rest = run(other, engines, tiny[2], max_lag=0, max_steps=4)
    assert [step.step for step in rest] == [3, 4]
    for step, expected in zip(rest, whole[2:], strict=True):
        assert [each.completion for each in step.completions] == [each.completion for each in expected.completions]
        assert step.metrics["loss"] == pytest.approx(expected.metrics["loss"], abs=1e-6)


# How it ends.


class Breaking(Addition):
    """Addition whose reward fails in batch `at`."""

    def __init__(self, at):
        super().__init__()
        self.calls, self.at = 0, at
        self.reward_funcs = [self.grade]

    def grade(self, problems, completions):
        self.calls += 1
        if self.calls > self.at:
            raise ValueError("no such thing")
        return [0.0] * len(completions)


def test_an_error_of_the_writing_side_ends_the_run_as_itself(make_backend, engines, tiny):
    backend = make_backend(TINY)
    with pytest.raises(RewardError, match="no such thing"):
        run(backend, engines, tiny[2], Breaking(2), max_steps=9)
    # What had been submitted is done to its end: the backend is as it was after a whole step, and goes on.
    backend.get_weights().wait()
    assert 0 <= backend.current_step <= 2
    assert run(backend, engines, tiny[2], max_steps=backend.current_step + 1)


def test_an_error_of_the_learning_side_ends_the_run_as_itself(make_backend, engines, tiny):
    backend = make_backend(TINY)

    def fails(*arguments, **named):
        raise ValueError("on purpose")

    backend.loss_fn = fails
    with pytest.raises(TrainingError, match=r"forward_backward failed.*on purpose"):
        run(backend, engines, tiny[2])


def test_an_error_of_an_engine_ends_the_run_as_itself(make_backend, engines, tiny, make_qwen3):
    _, other, _ = make_qwen3(0.1, vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                             num_attention_heads=2, num_key_value_heads=1, head_dim=4)  # fmt: skip
    with MLXEngine(other) as wrong, pytest.raises(ValueError, match=r"Unknown parameter|has shape"):
        run(make_backend(TINY), [engines[0], wrong], tiny[2])


def test_an_engine_that_dies_in_the_middle_ends_the_run(make_backend, tiny):
    config, _, tokenizer = tiny
    with ProcessEngine(config, name="mortal") as engine:

        async def kill(step):
            engine._process.kill()

        with pytest.raises(EngineError, match="'mortal' is gone"):
            run(make_backend(TINY), [engine], tokenizer, body=kill, max_steps=9)


def test_an_error_in_the_loop_and_leaving_it_end_the_run(make_backend, engines, tiny):
    backend = make_backend(TINY)

    async def raises(step):
        raise KeyError("in the loop")

    with pytest.raises(KeyError, match="in the loop"):
        run(backend, engines, tiny[2], body=raises)

    async def leave():
        async with train_async(backend, engines, tiny[2], Addition(), max_steps=99, num_prompts=2) as steps:
            async for step in steps:
                return step.step

    done = trio.run(leave)
    assert done == backend.current_step == 2
    assert run(backend, engines, tiny[2], max_steps=3)[-1].step == 3


def test_a_cancelled_run_ends_at_once_and_leaves_a_backend_between_two_steps(make_backend, engines, tiny):
    backend = make_backend(TINY)

    async def main():
        with trio.move_on_after(0.3) as scope:
            async with train_async(backend, engines, tiny[2], Addition(), max_steps=10_000, num_prompts=2) as steps:
                async for _ in steps:
                    pass
        return scope.cancelled_caught

    assert trio.run(main)
    weights = backend.get_weights().wait()  # after what was in flight
    assert all(np.isfinite(as_numpy(value)).all() for value in weights.values())
    assert run(backend, engines, tiny[2], max_steps=backend.current_step + 1)


def test_settings_that_make_no_sense_are_told(make_backend, engines, tiny):
    for settings, said in (
        ({"max_lag": -1}, "max_lag is -1; expected a whole number from 0"),
        ({"max_lag": 0.5}, "max_lag is 0.5"),
        ({"num_generations": 1}, "num_generations is 1; expected a whole number from 2"),
        ({"num_prompts": 0}, "num_prompts is 0"),
    ):
        with pytest.raises(ValueError, match=said):
            run(make_backend(TINY), engines, tiny[2], **settings)
    with pytest.raises(ValueError, match="There are no inference engines"):
        run(make_backend(TINY), [], tiny[2])
    with pytest.raises(ValueError, match="The task has tools, but inference engines write only one turn"):
        run(make_backend(TINY), engines, tiny[2], task=Calculator())


# The parts.


def test_rows_of_a_batch_are_where_the_logits_predict_them(tiny):
    """Against each completion alone, in transformers."""
    import torch
    from transformers import Qwen3ForCausalLM

    config, params, tokenizer = tiny
    model = Qwen3ForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
    args = GRPOConfig(learning_rate=1e-9, num_generations=4, per_device_train_batch_size=16)
    completions = next(GRPOTrainer(config, params, tokenizer, Addition(), args).train(1)).completions
    batch = padded_batch(completions)
    assert batch["input_ids"].shape[1] % 8 == 0
    with torch.no_grad():
        logps = model(torch.tensor(batch["input_ids"])).logits.log_softmax(-1)
    logps = logps.gather(-1, torch.tensor(batch["labels"])[..., None])[..., 0].numpy()
    counted = batch["loss_mask"] == 1
    assert counted.sum(axis=1).tolist() == [len(each.completion_ids) for each in completions]
    np.testing.assert_allclose(logps[counted], batch["old_logps"][counted], atol=2e-5)
    for row, each in enumerate(completions):
        assert batch["labels"][row][counted[row]].tolist() == each.completion_ids
    assert not batch["old_logps"][~counted].any()


def test_several_engines_write_what_one_would(engines, tiny):
    config, params, tokenizer = tiny
    for engine in engines:
        engine.load_weights(params, 0).wait()
    prompts = [tokenizer.encode(f"{number}+5=") for number in range(1, 4) for _ in range(2)]
    expected = generate(config, params, prompts, sampling=SamplingConfig(4), eos_token_ids=[1], seed=11)
    rollout, version = trio.run(generate_together, engines, prompts, 2, SamplingConfig(4), [1], 11)
    assert rollout.completions == expected.completions
    assert version == 0
    np.testing.assert_allclose(np.concatenate(rollout.logps), np.concatenate(expected.logps), atol=1e-5)
    # More engines than groups: some have nothing to do.
    rollout, _ = trio.run(generate_together, engines, prompts[:2], 2, SamplingConfig(4), [1], 11)
    assert len(rollout.completions) == 2
