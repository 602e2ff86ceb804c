"""Tasks of reasoning-gym: seeds repeat, problems are held out, and its verifiers judge without running an answer."""

from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest

from mlx_grpo_kit.tasks import GymTask, TaskError, get_task, gym
from mlx_grpo_kit.tasks.gym_process import _eval
from mlx_grpo_kit.tasks.judge import Judge
from tests.tasks.hostile import every_hostile_text

reasoning_gym = pytest.importorskip("reasoning_gym")

from reasoning_gym.factory import DATASETS  # noqa: E402

NAMES = sorted(DATASETS)
NO_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Many answers are right, and the generator names none."""
EVALUATED = ["string_insertion", "spiral_matrix", "binary_matrix", "n_queens", "simple_integration"]
EVALUATED += ["intermediate_integration", "polynomial_multiplication", "puzzle24", "countdown"]


@pytest.mark.parametrize("name", [each for each in NAMES if each != "composite"])  # which wants other generators
def test_every_generator_asks_and_its_own_answer_scores_one(name):
    settings = {"size": 100} if name == "acre" else {}  # which makes all of its problems at once
    task = GymTask(name, **settings).in_chat()
    problems = task.sample(np.random.default_rng(0), 2)
    assert all(problem.text.endswith("\nAnswer as <answer>your answer</answer>.") for problem in problems)
    answers = [problem.answer for problem in problems]
    assert all(answers) == (name not in NO_ANSWER)
    expected = [1.0, 1.0]
    if name == "intermediate_integration":  # an integral that is only named is not accepted
        expected = [float("Integral" not in answer) for answer in answers]
    if name == "futoshiki":  # its rows are separated by blank lines, which no answer of the kit has
        expected = [0.9, 0.9]
    if name not in NO_ANSWER:
        assert task.score(problems, [f"So\n<answer>{answer}</answer>" for answer in answers]) == expected


def test_its_scores_are_those_of_the_package():
    task, dataset = GymTask("spell_backward"), reasoning_gym.create_dataset("spell_backward", seed=0, size=5_000)
    for problem in task.held_out(20):
        entry = dataset[problem.data["index"]]
        assert (problem.prompt, problem.answer) == (entry["question"], entry["answer"])
        for said in (problem.answer, problem.answer[:-2], problem.answer[:2] + "x", "x", ""):
            score = dataset.score_answer(said, entry)
            assert task.score([problem], [f"<think>no</think>It is <answer>{said}</answer>"]) == [score]
            assert task.is_correct(problem, f"**{said}**.") == (score == 1)


@pytest.mark.parametrize("name", ["isomorphic_strings", "list_functions", "ransom_note", "word_ladder"])
def test_the_same_problems_in_every_process_and_order(name):
    one, other = (Judge("mlx_grpo_kit.tasks.gym_process") for _ in range(2))
    settings = '{"seed": 3, "size": 50}'
    assert [one.ask(name, settings, i) for i in range(9)] == [other.ask(name, settings, i) for i in range(9)[::-1]][
        ::-1
    ]


def test_problems_are_held_out():
    task = GymTask("coin_flip")
    held_out = {problem.prompt for problem in task.held_out(8)}
    assert len(held_out) == 8
    assert task.held_out(8) == GymTask("coin_flip").held_out(8)
    assert not held_out & {problem.prompt for problem in task.sample(np.random.default_rng(0), 500)}
    draws = [task.sample(np.random.default_rng(seed), 5) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_too_few_problems_are_an_error():
    few = GymTask("gcd", min_value=1, max_value=2, size=3)
    with pytest.raises(TaskError, match=r"held_out\(50\) asks for 50 problems, but 'gym-gcd' has only"):
        few.held_out(50)
    sides = []
    for seed in range(20):
        task = GymTask("gcd", size=1, seed=seed)
        try:
            sides.append(len(task.held_out(1)))
        except TaskError:
            sides.append(0)
        if sides[-1]:
            with pytest.raises(TaskError, match="gym-gcd has too few different problems for training"):
                task.sample(np.random.default_rng(0), 1)
    assert 0 < sum(sides) < 20


def test_settings_are_the_generators():
    task = get_task("gym:spell_backward", min_word_len=5, max_word_len=5)
    assert {len(problem.answer) for problem in task.held_out(20)} == {5}
    assert GymTask("gcd", seed=1).held_out(1) != GymTask("gcd").held_out(1)
    assert GymTask("gcd", reward_funcs=lambda problems, completions: [0.5]).reward_funcs[0]([], []) == [0.5]


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("spel_backward", {}, "no generator 'spel_backward' in reasoning-gym. Did you mean spell_backward"),
        ("sort", {}, "Did you mean number_sorting, word_sorting"),
        ("", {}, "It has ab, acre, "),
        ("gcd", {"max": 1}, "gym:gcd has no setting 'max'; it has min_numbers, max_numbers, "),
        ("gcd", {"min_value": 0}, "gym:gcd,min_value=0 refuses these settings: min_value must be positive"),
        ("gcd", {"min_value": "a"}, "gym:gcd,min_value=a refuses these settings: "),
        ("gcd", {"min_value": 1.5}, "gym:gcd,min_value=1.5 cannot make problem 0: "),
        ("gcd", {"min_value": object()}, "Settings are numbers, strings and lists of these"),
        ("gcd", {"size": 0}, "size is 0; expected a whole number from 1 to 100,000"),
        ("gcd", {"seed": True}, "seed is True; expected a whole number from 0 to "),
        ("composite", {}, "gym:composite refuses these settings: Must specify at least one dataset"),
    ],
)
def test_errors_name_the_way_out(name, settings, words):
    with pytest.raises(TaskError, match=words):
        GymTask(name, **settings)


def test_the_missing_package_is_an_error_that_installs_it(monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(gym, "version", version)
    with pytest.raises(ImportError, match=r"The task gym:gcd needs reasoning_gym, .*\[gym\]"):
        get_task("gym:gcd")


@every_hostile_text
def test_hostile_answers_are_wrong(hostile_text):
    task = GymTask("gcd")
    assert not task.is_correct(task.held_out(1)[0], hostile_text)


@pytest.mark.parametrize("name", EVALUATED)
def test_an_answer_is_not_run(tmp_path, name):
    """These verifiers evaluate an answer. Told to write a file, the package alone writes it."""
    task, file = GymTask(name), tmp_path / "written"
    problem = task.held_out(1)[0]
    code = f"open({str(file)!r},'w').write('x')"
    says = [f"<answer>{start}{code}</answer>" for start in ("", "[", "[[", "x + ")]
    says += [f"<answer>{each}{code}]</answer>" for each in ("[", "[[1],")]
    assert max(task.score([problem] * len(says), says)) < 1
    assert not file.exists()


def test_what_eval_may_do():
    assert (_eval("7//2 - -1"), _eval(" [['_', 'Q']]"), _eval("0x10 << 1")) == (4, [["_", "Q"]], 32)
    for text in ("'a' * 10**12", "[0] * 10**12", "x", "().__class__", "len([])", "(lambda: 1)()", "["):
        with pytest.raises((ValueError, SyntaxError)):
            _eval(text)


def test_a_verifier_that_hangs_or_raises_scores_zero(monkeypatch):
    monkeypatch.setattr(gym, "_judge", Judge("mlx_grpo_kit.tasks.gym_process", seconds=2))
    task = GymTask("coin_flip")
    problem = task.held_out(1)[0]
    raises, hangs = "1e999", "1e999999999"
    assert task.score([problem] * 3, [raises, hangs, problem.answer]) == [0.0, 0.0, 1.0]
