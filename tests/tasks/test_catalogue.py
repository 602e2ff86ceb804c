"""Tasks by name, and home-made ones."""

import re
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

import mlx_grpo_kit.tasks as tasks
from mlx_grpo_kit.tasks import Addition, Countdown, get_task, validate_task

DOUBLING = re.search(r"    class Doubling:.*?(?=\n    trainer)", tasks.__doc__, re.DOTALL).group()


def test_names():
    assert isinstance(get_task("addition"), Addition)
    assert isinstance(get_task("countdown"), Countdown)
    validate_task(get_task("addition"))
    validate_task(get_task("countdown"))


def test_unknown_name():
    with pytest.raises(ValueError, match=r"Unknown task 'adition'.*calculator, countdown, guess.*module:Class"):
        get_task("adition")


def test_the_task_of_the_documentation_works(tmp_path, monkeypatch):
    """The package's docstring shows a whole task; this is that text, in a file, found by its name."""
    source = "from mlx_grpo_kit.tasks import Problem, ascii_int\n" + textwrap.dedent(DOUBLING)
    (tmp_path / "doubling_task.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    task = get_task("doubling_task:Doubling")
    problem = task.sample(np.random.default_rng(0), 3)[0]
    assert task.is_correct(problem, problem.answer)
    assert task.reward_funcs[0]([problem, problem], [problem.answer, "x"]) == [1.0, 0.0]
    assert all(len(p.answer) + 1 <= task.max_completion_length for p in task.held_out(100))
    assert not {p.prompt for p in task.held_out(100)} & {p.prompt for p in task.sample(np.random.default_rng(0), 9999)}


@pytest.mark.parametrize("name", ["no_such_module:Task", "json:NoSuchTask", ":Task", "json:"])
def test_module_or_class_missing(name):
    with pytest.raises(ValueError, match=f"Task '{re.escape(name)}'.*Expected module:Class"):
        get_task(name)


def test_what_a_module_makes_is_checked():
    with pytest.raises(TypeError, match="JSONDecoder is not a task yet: it lacks name, max_completion_length"):
        get_task("json:JSONDecoder")


def good(**changes):
    def one(problems, completions):
        return [1.0] * len(completions)

    members = {"name": "good", "max_completion_length": 4, "reward_funcs": [one]}
    methods = {"sample": lambda rng, n: [], "held_out": lambda n: [], "is_correct": lambda problem, completion: True}
    return SimpleNamespace(**{**members, **methods, **changes})


def one(problems, completions):
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name must be a string for logs and checkpoints, not ''"),
        ({"name": None}, "name must be a string"),
        ({"sample": lambda n: []}, r"sample\(n\) must be callable as sample\(rng, n\)"),
        ({"held_out": lambda: []}, r"held_out\(\) must be callable as held_out\(n\)"),
        ({"is_correct": lambda completion: True}, r"callable as is_correct\(problem, completion\)"),
        ({"max_completion_length": True}, "max_completion_length must be a positive int, not True"),
        (
            {"reward_funcs": [lambda completion: 1]},
            r"'<lambda>' takes \(completion\); expected \(problems, completions\)",
        ),
        ({"sample": 3}, "sample must be a method, not 3"),
        ({"max_completion_length": 0}, "max_completion_length must be a positive int, not 0"),
        ({"max_completion_length": 4.0}, "max_completion_length must be a positive int, not 4.0"),
        ({"reward_funcs": []}, "reward_funcs must be one or more functions"),
        ({"reward_funcs": ["correct"]}, "reward_funcs must be one or more functions"),
        ({"reward_funcs": [one, one]}, "different names"),
        ({"reward_funcs": one}, "reward_funcs must be one or more functions"),
    ],
)
def test_validation_names_what_is_wrong(changes, message):
    validate_task(good())
    with pytest.raises(TypeError, match=message):
        validate_task(good(**changes))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("addition", r"the string 'addition'; expected a task, such as get_task\('addition'\)"),
        (Addition, r"the class Addition; expected one of its instances, Addition\(\)"),
        (None, "NoneType is not a task yet: it lacks name, max_completion_length, reward_funcs, sample"),
        ({}, "dict is not a task yet"),
    ],
)
def test_what_is_no_task_at_all(task, message):
    with pytest.raises(TypeError, match=message):
        validate_task(task)


def test_methods_without_a_readable_signature_are_left_to_the_run():
    validate_task(good(is_correct=max))


@pytest.mark.parametrize(
    "source",
    ["{task}\nimport sys\nsys.exit(0)\n", "class Doubling:\n    def __init__(self):\n        raise SystemExit(0)\n"],
)
@pytest.mark.parametrize("by", ["file", "module"])
def test_a_file_that_ends_in_exit_ends_no_run(source, by, tmp_path, monkeypatch):
    file = tmp_path / f"exits_{by}_{len(source)}.py"
    file.write_text(source.format(task=textwrap.dedent(DOUBLING).replace("Problem", "object")))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"called exit\(\), which would end the run before it starts"):
        get_task(f"{file if by == 'file' else file.stem}:Doubling")
