"""compute_rewards: what reward functions return, and everything they should not."""

import asyncio
import functools
import itertools
import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mlx_grpo_kit.grpo import GRPOConfig, RewardError, compute_rewards
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Problem, TaskError

PROBLEMS, COMPLETIONS = ["p0", "p1", "p2"], ["46", "seven", ""]


def named(name, returned):
    def reward(problems, completions):
        return returned() if callable(returned) else returned

    reward.__name__ = name
    return reward


def test_functions_get_problems_and_completions_and_their_rewards_are_added():
    seen = []

    def length(problems, completions):
        seen.append((problems, completions))
        return [len(completion) for completion in completions]

    total, by_name = compute_rewards([length, named("half", [0.5, 0.5, -0.5])], PROBLEMS, COMPLETIONS)
    assert seen == [(PROBLEMS, COMPLETIONS)]
    assert {name: values.tolist() for name, values in by_name.items()} == {
        "length": [2, 5, 0],
        "half": [0.5, 0.5, -0.5],
    }
    assert total.tolist() == [2.5, 5.5, -0.5]
    assert total.dtype == np.float64


def test_what_a_function_does_to_its_lists_stays_with_it():
    def reordering(problems, completions):
        completions.sort()
        problems.clear()
        return [0.0] * len(completions)

    problems, completions, seen = list(PROBLEMS), list(COMPLETIONS), []

    def later(problems, completions):
        seen.extend((problems, completions))
        return [0.0] * len(completions)

    compute_rewards([reordering, later], problems, completions)
    assert (problems, completions) == (PROBLEMS, COMPLETIONS)
    assert seen == [PROBLEMS, COMPLETIONS]


def test_a_sum_that_float32_cannot_hold():
    functions = [named("first", [0.0, 3e38, 0.0]), named("second", [0.0, 3e38, 0.0])]
    with pytest.raises(RewardError, match=r"rewards of completion 1 add up to 6e\+38 \(first, second\)"):
        compute_rewards(functions, PROBLEMS, COMPLETIONS)


def test_none_says_that_a_function_does_not_apply():
    functions = [named("first", [1.0, None, None]), named("second", [2.0, 3.0, None])]
    total, by_name = compute_rewards(functions, PROBLEMS, COMPLETIONS)
    np.testing.assert_array_equal(by_name["first"], [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(total, [3.0, 3.0, np.nan])


def stable_id(value) -> str:
    """A name without an address in it: every process of a parallel run has to find the same tests."""
    return value.__qualname__ if callable(value) else str(value)


@pytest.mark.parametrize(
    "returned",
    [
        (1, 0, 1), [True, False, True], np.array([1.0, 0.0, 1.0]), np.array([1, 0, 1], np.int8),
        mx.array([1.0, 0.0, 1.0]), [np.float32(1), np.bool_(False), mx.array(1)],
        lambda: (x for x in (1.0, 0.0, 1.0)), lambda: map(float, (1, 0, 1)),
    ],
    ids=stable_id,
)  # fmt: skip
def test_any_numbers_in_any_order_that_can_be_walked_through(returned):
    total, _ = compute_rewards([named("f", returned)], PROBLEMS, COMPLETIONS)
    assert total.tolist() == [1.0, 0.0, 1.0]


class Unreadable:
    def __float__(self):
        raise RuntimeError("no number")

    __repr__ = __float__


def failing_generator():
    yield 1.0
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0, 2.0], "'f' returned 2 rewards for 3 completions; expected one for each"),
        ([1.0] * 4, "'f' returned 4 rewards for 3 completions"),
        ([], "'f' returned 0 rewards for 3 completions"),
        ([1.0, math.nan, 1.0], "'f' returned nan for completion 1, 'seven' of prompt 'p1'; expected a finite number"),
        ([1.0, 1.0, math.inf], "'f' returned inf for completion 2, ''"),
        ([-math.inf, 1.0, 1.0], "'f' returned -inf for completion 0, '46'"),
        ([1.0, "0.5", 1.0], "'f' returned '0.5' for completion 1"),
        ([1.0, "good", 1.0], "'f' returned 'good' for completion 1"),
        ([1.0, [1.0], 1.0], r"'f' returned \[1.0\] for completion 1"),
        ({"46": 1.0, "seven": 0.0, "": 0.0}, "'f' returned {'46': 1.0, .*}; expected a list of numbers"),
        ({0: 1.0, 1: 0.0, 2: 0.0}, "'f' returned {0: 1.0, .*}; expected a list of numbers"),
        pytest.param({1.0, 0.5, 0.0}, "'f' returned {.*}; expected a list of numbers", id="a set has no fixed order"),
        ([1.0, 1e39, 1.0], r"'f' returned 1e\+39 for completion 1.*The largest allowed number is 3.4e\+38"),
        ([-1e39, 1.0, 1.0], r"'f' returned -1e\+39 for completion 0"),
        ([1.0, 10**400, 1.0], r"'f' returned 1000+\.\.\. for completion 1"),
        (lambda: [1.0, 10**5000, 1.0], "'f' returned a int for completion 1"),
        (lambda: [1.0, Unreadable(), 1.0], "'f' returned a Unreadable for completion 1"),
        (lambda: itertools.repeat(1.0), "'f' returned 4 rewards for 3 completions"),
        (lambda: sys.exit(0), "'f' raised SystemExit: 0"),
        ([1.0, 1j, 1.0], "'f' returned 1j for completion 1"),
        ([1.0, object, 1.0], "'f' returned <class 'object'> for completion 1"),
        ("101", "'f' returned '1' for completion 0"),
        (None, "'f' returned None; expected a list of numbers, one per completion"),
        (1.0, "'f' returned 1.0; expected a list of numbers"),
        (np.float64(1.0), "'f' returned .*1.0.*; expected a list of numbers"),
        (lambda: {}["answer"], "'f' raised KeyError: 'answer'"),
        (failing_generator, "'f' raised ZeroDivisionError: division by zero"),
    ],
    ids=stable_id,
)
def test_what_is_no_reward_is_refused_by_name(returned, message):
    with pytest.raises(RewardError, match=f"Reward function {message}"):
        compute_rewards([named("fine", [1.0] * 3), named("f", returned)], PROBLEMS, COMPLETIONS)


def test_the_cause_of_a_failure_is_kept():
    with pytest.raises(RewardError) as caught:
        compute_rewards([named("f", lambda: {}["answer"])], PROBLEMS, COMPLETIONS)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_interrupt_is_no_failing_reward():
    def interrupted(problems, completions):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute_rewards([interrupted], PROBLEMS, COMPLETIONS)


def test_names():
    with pytest.raises(RewardError, match="Two reward functions are called 'f'; expected different names"):
        compute_rewards([named("f", [1.0] * 3), named("f", [2.0] * 3)], PROBLEMS, COMPLETIONS)
    with pytest.raises(RewardError, match="no reward functions; expected at least one"):
        compute_rewards([], PROBLEMS, COMPLETIONS)

    class Judge:
        def __call__(self, problems, completions):
            return [1.0] * 3

    _, by_name = compute_rewards([Judge(), functools.partial(named("f", [1.0] * 3))], PROBLEMS, COMPLETIONS)
    assert list(by_name) == ["Judge", "partial"]


def test_a_long_completion_is_not_quoted_whole():
    with pytest.raises(RewardError) as caught:
        compute_rewards([named("f", ["x"])], ["p"], ["7" * 10_000])
    assert len(str(caught.value)) < 300


NUMBERS = [str(number) for number in range(12)]
ASKED = [Problem(f"{number}=", str(number), {"row": number}) for number in range(12)]


def failing_on(*bad, error=ValueError):
    """Scores completions by their number, and raises for those in `bad`."""
    sizes = []

    def picky(problems, completions):
        sizes.append(len(completions))
        for completion in completions:
            if int(completion) in bad:
                raise error(f"cannot judge {completion}")
        return [float(completion) for completion in completions]

    picky.sizes = sizes
    return picky


@pytest.mark.parametrize("bad", [(0,), (11,), (5,), (7, 8), tuple(range(12))])
def test_the_first_completion_that_fails_is_named(bad):
    picky = failing_on(*bad)
    with pytest.raises(RewardError) as caught:
        compute_rewards([picky], ASKED, NUMBERS)
    first = min(bad)
    assert str(caught.value) == (
        f"Reward function 'picky' raised ValueError: cannot judge {first} for completion {first}, '{first}' of prompt "
        f"'{first}='."
    )
    assert isinstance(caught.value.__cause__, ValueError)
    assert sum(picky.sizes) <= 3 * len(NUMBERS)


def test_exit_is_a_failure_of_its_completion_too():
    with pytest.raises(RewardError, match="raised SystemExit: cannot judge 3 for completion 3, '3' of prompt '3='"):
        compute_rewards([failing_on(3, error=SystemExit)], ASKED, NUMBERS)


def test_what_fails_only_together():
    def crowded(problems, completions):
        if len(completions) > 3:
            raise MemoryError("too many")
        return [1.0] * len(completions)

    calls = itertools.count()

    def moody(problems, completions):
        if next(calls) == 0:
            raise ConnectionError("reset")
        return [1.0] * len(completions)

    for func in (crowded, moody):
        calls = itertools.count()
        message = f"'{func.__name__}' raised .* for 12 completions at once, but not for parts of them"
        with pytest.raises(RewardError, match=message):
            compute_rewards([func], ASKED, NUMBERS)
        total, _ = compute_rewards([func], ASKED, NUMBERS, failures=(failures := []))
        assert total.tolist() == [1.0] * 12
        assert failures == []


def test_a_failing_completion_can_be_skipped():
    failures = []
    total, by_name = compute_rewards([failing_on(2, 7), named("ones", [1.0] * 12)], ASKED, NUMBERS, failures=failures)
    expected = np.arange(12.0)
    expected[[2, 7]] = np.nan
    np.testing.assert_array_equal(by_name["picky"], expected)
    np.testing.assert_array_equal(total, np.where(np.isnan(expected), 0, expected) + 1)
    assert [(failure.function, failure.index) for failure in failures] == [("picky", 2), ("picky", 7)]
    assert failures[1].message.endswith("raised ValueError: cannot judge 7 for completion 7, '7' of prompt '7='.")


def test_when_all_fail_nothing_is_scored_and_the_calls_are_bounded():
    picky = failing_on(*range(12))
    total, _ = compute_rewards([picky], ASKED, NUMBERS, failures=(failures := []))
    assert np.isnan(total).all()
    assert sorted(failure.index for failure in failures) == list(range(12))
    assert len(picky.sizes) <= 2 * 12


def test_a_value_that_is_no_number_is_skipped_by_itself():
    failures = []
    total, _ = compute_rewards([named("f", [1.0, math.inf, "x"])], PROBLEMS, COMPLETIONS, failures=failures)
    np.testing.assert_array_equal(total, [1.0, np.nan, np.nan])
    assert [failure.index for failure in failures] == [1, 2]
    with pytest.raises(RewardError, match="returned 2 rewards for 3 completions"):  # no completion's fault
        compute_rewards([named("f", [1.0, 2.0])], PROBLEMS, COMPLETIONS, failures=[])
    with pytest.raises(KeyboardInterrupt):
        compute_rewards([failing_on(2, error=KeyboardInterrupt)], ASKED, NUMBERS, failures=[])


def test_an_error_that_cannot_be_printed():
    class SilentError(Exception):
        def __str__(self):
            raise RuntimeError

    with pytest.raises(RewardError, match=r"raised SilentError: \(its message cannot be shown\) for completion 4"):
        compute_rewards([failing_on(4, error=lambda _: SilentError())], ASKED, NUMBERS)


def test_trls_form_is_called_by_names():
    def trls(prompts, completions, answer, row, completion_ids, **kwargs):
        columns = zip(prompts, completions, answer, row, completion_ids, strict=True)
        return [
            len(prompt) + (completion == right) + 10 * number + 100 * sum(ids)
            for prompt, completion, right, number, ids in columns
        ]

    total, _ = compute_rewards([trls], ASKED[:2], ["0", "5"], completion_ids=[[1], [2, 3]])
    assert total.tolist() == [2 + 1 + 0 + 100, 2 + 0 + 10 + 500]

    def judge(completions, truth): ...

    with pytest.raises(TaskError, match=r"'judge' has a parameter 'truth', but no .* has it\. All .* have answer, row"):
        compute_rewards([judge], ASKED, NUMBERS)


class TestCoroutineFunctions:
    @staticmethod
    async def judge(problems, completions):
        await asyncio.sleep(0)
        return [float(completion) for completion in completions]

    def test_its_rewards_arrive(self):
        total, _ = compute_rewards([self.judge], ASKED, NUMBERS)
        assert total.tolist() == list(range(12))

    def test_where_a_loop_is_running_and_in_another_thread(self):
        async def cell_of_a_notebook():
            return compute_rewards([self.judge], ASKED, NUMBERS)[0].tolist()

        assert asyncio.run(cell_of_a_notebook()) == list(range(12))
        with ThreadPoolExecutor() as threads:
            results = list(threads.map(lambda _: compute_rewards([self.judge], ASKED, NUMBERS)[0].tolist(), range(4)))
        assert results == [list(range(12))] * 4

    def test_they_wait_together(self):
        """Each waits for the other: one after the other they would never end."""
        met = {"here": asyncio.Event(), "there": asyncio.Event()}

        async def here(problems, completions):
            met["here"].set()
            await asyncio.wait_for(met["there"].wait(), 10)
            return [1.0] * len(completions)

        async def there(prompts, completions, **kwargs):
            met["there"].set()
            await asyncio.wait_for(met["here"].wait(), 10)
            return [2.0] * len(completions)

        assert compute_rewards([here, there], PROBLEMS, COMPLETIONS)[0].tolist() == [3.0] * 3

    def test_one_loop_for_all_steps(self):
        loops = set()

        async def keeping(problems, completions):
            loops.add(asyncio.get_running_loop())
            return [1.0] * len(completions)

        before = threading.active_count()
        for _ in range(3):
            compute_rewards([keeping], PROBLEMS, COMPLETIONS)
        assert len(loops) == 1
        assert threading.active_count() <= before + 1

    @pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError, TimeoutError])
    def test_what_fails_is_named(self, error):
        async def slow(problems, completions):
            await asyncio.sleep(0)
            if "6" in completions:
                raise error("too slow")
            return [1.0] * len(completions)

        with pytest.raises(RewardError, match=f"'slow' raised {error.__name__}: too slow for completion 6, '6' of"):
            compute_rewards([slow], ASKED, NUMBERS)
        total, _ = compute_rewards([slow], ASKED, NUMBERS, failures=(failures := []))
        assert [failure.index for failure in failures] == [6]
        assert np.nansum(total) == 11

    def test_an_exit_in_a_task_it_started_does_not_end_the_loop(self):
        async def exits():
            sys.exit(1)

        async def parent(problems, completions):
            await asyncio.gather(exits())

        with pytest.raises(RewardError, match="'parent' raised SystemExit"):
            compute_rewards([parent], ASKED[:1], NUMBERS[:1])
        assert compute_rewards([self.judge], ASKED[:1], ["4"])[0].tolist() == [4.0]

    def test_interrupts_end_it(self):
        async def interrupted(problems, completions):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            compute_rewards([interrupted], ASKED, NUMBERS, failures=[])

    def test_what_waits_is_cancelled_where_another_function_is_interrupted(self):
        started, cancelled = threading.Event(), threading.Event()

        async def waiting(problems, completions):
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.set()

        def interrupted(problems, completions):
            started.wait(30)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            compute_rewards([self.judge, waiting, interrupted], ASKED, NUMBERS)
        assert cancelled.wait(30)

    @pytest.mark.timeout(20)
    def test_one_that_asks_another_is_told_how_instead_of_waiting_for_ever(self):
        async def asking(problems, completions):
            return compute_rewards([self.judge], problems, completions)[0]

        async def asking_in_a_thread(problems, completions):
            return (await asyncio.to_thread(compute_rewards, [self.judge], problems, completions))[0]

        with pytest.raises(RewardError, match=r"'asking' raised RewardError: .*Expected `await judge\(\.\.\.\)` there"):
            compute_rewards([asking], ASKED, NUMBERS)
        assert compute_rewards([asking_in_a_thread], ASKED, NUMBERS)[0].tolist() == list(range(12))

    def test_a_generator_is_told_to_return(self):
        async def yielding(problems, completions):
            yield 1.0

        with pytest.raises(RewardError, match=r"expected a list of numbers.*use return and not yield"):
            compute_rewards([yielding], ASKED, NUMBERS)


class TestInTheTrainer:
    def test_skipped_completions_are_counted_and_told_once(self, make_trainer):
        def sometimes(problems, completions):
            return [1 / completion.count("7") for completion in completions]

        task = make_trainer.task([*make_trainer.task().reward_funcs, sometimes])
        trainer = make_trainer(task, on_reward_error="skip")
        words = r"'sometimes' raised ZeroDivisionError.*rewards/sometimes/failed"
        with pytest.warns(RuntimeWarning, match=words) as told:
            steps = list(trainer.train(max_steps=2))
        assert len(told) == 1
        for step in steps:
            empty = [completion.rewards["sometimes"] is None for completion in step.completions]
            assert empty == [completion.completion.count("7") == 0 for completion in step.completions]
            assert step.metrics["rewards/sometimes/failed"] == np.mean(empty)
            assert step.metrics["rewards/sevens/failed"] == 0
        assert "eval/accuracy" in trainer.evaluate(4)

    def test_trls_form_learns_the_same_run(self, make_trainer):
        def sevens(prompts, completions, completion_ids, answer, **kwargs):
            assert len(prompts) == len(completion_ids) == len(answer) == len(completions)
            return [completion.count("7") / 4 for completion in completions]

        ours, theirs = make_trainer(), make_trainer(make_trainer.task([sevens]))
        metrics = [[step.metrics["loss"] for step in trainer.train(max_steps=2)] for trainer in (ours, theirs)]
        assert metrics[0] == metrics[1]
        assert "rewards/sevens/failed" not in next(ours.train(max_steps=3)).metrics

    @pytest.mark.parametrize(
        ("task", "message"),
        [("addition", "the string 'addition'; expected a task"), (object(), "object is not a task yet: it lacks name")],
    )
    def test_what_is_no_task_is_refused_at_once(self, make_trainer, task, message):
        with pytest.raises(TypeError, match=message):
            make_trainer(task)
        with pytest.raises(TypeError, match=r"Reward function '<lambda>' takes \(completion\); expected \(problems, "):
            make_trainer(make_trainer.task([lambda completion: 1.0]))

    def test_other_functions_in_mid_run_are_checked_too(self, make_trainer):
        with pytest.raises(ValueError, match=r"'<lambda>' takes \(completion\); expected"):
            make_trainer().change(reward_funcs=[lambda completion: 1.0])

    def test_the_setting_is_checked(self):
        with pytest.raises(ValueError, match="on_reward_error is 'go'; expected one of 'stop', 'skip'"):
            GRPOConfig(on_reward_error="go")
