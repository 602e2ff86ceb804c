"""Long sums: what counts as a working, which answers are right, and the split."""

import numpy as np
import pytest

from mlx_grpo_kit.tasks import LongSum, get_task, validate_task
from mlx_grpo_kit.tasks.long_sum import FEWEST, LARGEST, MAX_CHARACTERS, MOST, Working, read_working
from tests.tasks.hostile import every_hostile_text


@pytest.fixture(scope="module")
def task():
    return LongSum()


def test_prompt_and_answer(task):
    problem = task.problem((7, 15, 8, 16))
    assert (problem.prompt, problem.answer) == ("7+15+8+16=", "7+15=22;22+8=30;30+16=46;46")
    assert problem.data == {"numbers": (7, 15, 8, 16)}
    assert isinstance(get_task("long-sum"), LongSum)
    validate_task(task)


@pytest.mark.parametrize(
    "completion",
    [
        "7+15=22;22+8=30;30+16=46;46",
        "46",  # nobody asks for steps
        "7+15+8=30;30+16=46;46",  # two at a time
        "16+8=24;24+15=39;39+7=46;46",  # in another order
        "7+15=22;22+8=30;30+16=46;46+0=46;46+0=46;46",  # longer than it has to be
        "1+1=2;46",  # beside the point, but true
        "7+15+8+16=46;46",
    ],
)
def test_right_answers_are_short_or_long(task, completion):
    problem = task.problem((7, 15, 8, 16))
    assert task.is_correct(problem, completion)
    assert task.reward_funcs[0]([problem], [completion]) == [1.0]


@pytest.mark.parametrize(
    "completion",
    [
        "7+15=22;22+8=30;30+16=46;47",  # another number at the end
        "7+15=21;21+8=29;29+16=45;45",  # a wrong step, and what follows from it
        "7+15=21;21+8=29;29+16=46;46",  # two mistakes that cancel each other
        "7+15=33;46",  # a wrong step before the right sum
        "7+15=22;22+8=30;30+16=46;",  # no answer
        "7+15=22;22+8=30;30+16=46",  # an equation is no answer
        "7+15=22;22+16=38;38",  # a number is left out
        "7+15=22;22+15=37;37+8=45;45+16=61;61",  # a number is added twice
        "46;46",  # a step adds something
        "46=46;46",
        "=46;46",
        "7+15=;46",
        "+46=46;46",
        "7+15=22=22;46",
        "7+-7=0;46",
        "50-4=46;46",
        ";46",
        "46;",
        "046",
        "7+15=022;46",
        " 46",
        "46\n",
        "7+15=22; 46",
        "0+0=0;" * 43 + "46",  # right, but longer than anybody reads
        "9999999999+1=10000000000;46",
    ],
)
def test_wrong_answers(task, completion):
    problem = task.problem((7, 15, 8, 16))
    assert not task.is_correct(problem, completion)
    assert task.reward_funcs[0]([problem], [completion]) == [0.0]


@every_hostile_text
def test_hostile_completions_score_zero(task, hostile_text):
    problem = task.problem((12, 20, 14))
    for text in (hostile_text, f"12+20=22;{hostile_text}", f"{hostile_text};46", f"{hostile_text}=22;46"):
        assert [function([problem], [text]) for function in task.reward_funcs] == [[0.0]]


def test_what_is_read():
    assert read_working("1+2+3=7;9") == Working((((1, 2, 3), 7),), 9)
    assert not read_working("1+2+3=7;9").is_true
    assert read_working("9") == Working((), 9)
    assert read_working("9").is_true
    assert read_working("0+0=0;" * 42 + "4666") is not None
    assert len("0+0=0;" * 42 + "4666") == MAX_CHARACTERS


def test_sampling_is_seeded_and_right(task):
    problems = task.sample(np.random.default_rng(5), 5000)
    assert problems == task.sample(np.random.default_rng(5), 5000)
    assert problems != task.sample(np.random.default_rng(6), 5000)
    counts = {len(problem.data["numbers"]) for problem in problems}
    assert counts == {*range(FEWEST, MOST + 1)}
    numbers = {number for problem in problems for number in problem.data["numbers"]}
    assert numbers == {*range(1, LARGEST + 1)}
    for problem in problems:
        assert problem.prompt == "+".join(map(str, problem.data["numbers"])) + "="
        assert len({*problem.data["numbers"]}) == len(problem.data["numbers"])
        assert task.is_correct(problem, problem.answer)
        assert task.is_correct(problem, str(sum(problem.data["numbers"])))


def test_no_order_of_held_out_numbers_is_trained_on(task):
    held_out = task.held_out(1000)
    assert held_out == task.held_out(2000)[:1000]
    assert len({problem.prompt for problem in held_out}) == 1000
    kept = {tuple(sorted(problem.data["numbers"])) for problem in held_out}
    seen = {tuple(sorted(problem.data["numbers"])) for problem in task.sample(np.random.default_rng(0), 60_000)}
    assert not kept & seen
    assert len(seen) > 9 * len(kept)  # a tenth of the problems is held out, not nine


def test_the_longest_plain_working_fits(task):
    longest = task.problem((LARGEST,) * MOST)
    lengths = [len(problem.answer) + 1 for problem in [longest, *task.held_out(2000)]]
    assert max(lengths) == len(longest.answer) + 1 == 39 < task.max_completion_length
    assert min(lengths) >= 13
