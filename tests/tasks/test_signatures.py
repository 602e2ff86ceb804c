"""Which form a reward function has, and what it is called with. TRL's form is checked against TRL's own caller."""

import functools
from collections import defaultdict
from types import SimpleNamespace

import pytest

from mlx_grpo_kit.grpo.rewards import compute_rewards
from mlx_grpo_kit.tasks import Problem, TaskError
from mlx_grpo_kit.tasks.signatures import reward_arguments, reward_name, takes_names

PROBLEMS = [Problem("1+2=", "3", {"a": 1, "level": "easy"}), Problem("3+4=", "7", {"a": 3})]
COMPLETIONS = ["3", "8"]


class Judge:
    def __init__(self):
        self.score = self.by_name

    def __call__(self, problems, completions): ...

    def by_name(self, completions, **kwargs): ...


class TRLJudge:
    def __call__(self, prompts, completions, **kwargs): ...


def wrapped(func):
    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        return func(*args, **kwargs)

    return wrapper


async def waiting(prompts, completions, **kwargs): ...


KITS = [
    lambda problems, completions: 0,
    lambda p, c: 0,
    lambda p, completions: 0,
    lambda problems, completions, **kwargs: 0,
    lambda problems, completions, scale=2.0: 0,
    lambda problems, completions, *, scale=2.0: 0,
    lambda *args: 0,
    lambda p, *rest: 0,
    lambda p, c, environments=None: 0,
    functools.partial(lambda scale, problems, completions: 0, 2.0),
    wrapped(lambda problems, completions: 0),
    Judge(),
    max,  # nothing to read
]
TRLS = [
    lambda prompts, completions: 0,
    lambda prompts, completions, **kwargs: 0,
    lambda completions, **kwargs: 0,
    lambda completions, answer: 0,
    lambda completions: 0,
    lambda prompts, completions, answer, a, **kwargs: 0,
    lambda prompts, completions, completion_ids, **kwargs: 0,
    lambda answer, a, completions: 0,
    lambda completion_ids, completions: 0,
    lambda completions, trainer_state=None, **kwargs: 0,
    lambda *, completions, answer: 0,
    lambda **kwargs: 0,
    lambda *args, **kwargs: 0,
    lambda environments, **kwargs: 0,
    lambda environments: 0,
    lambda answer, completions: 0,
    lambda answer, completions, **kwargs: 0,
    lambda solution, completions, **kwargs: 0,
    lambda solution, *, weight=1.0, **columns: 0,
    functools.partial(lambda scale, environments, **kwargs: 0, 2.0),
    functools.partial(lambda scale, prompts, completions: 0, 2.0),
    wrapped(lambda completions, **kwargs: 0),
    Judge().score,
    TRLJudge(),
    waiting,
]


def test_the_form_is_read_off_the_names():
    assert [takes_names(func) for func in KITS] == [False] * len(KITS)
    assert [takes_names(func) for func in TRLS] == [True] * len(TRLS)


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (lambda completion: 0, r"takes \(completion\); expected \(problems, completions\), or TRL's \(prompts, compl"),
        (lambda: 0, r"takes \(\); expected"),
        (lambda problems, completions, answers: 0, r"takes \(problems, completions, answers\).*In TRL's form"),
        (lambda p, c, *, answer: 0, r"takes \(p, c, \*, answer\)"),
        (lambda text, truth, extra: 0, r"takes \(text, truth, extra\)"),
        (lambda prompts, completions, trainer_state: 0, "trainer_state exists only in TRL and is not passed here"),
        (lambda completions, log_metric, **kwargs: 0, "log_metric exists only in TRL"),
        (lambda prompts, /, completions, completion_ids: 0, "prompts cannot be passed by name"),
    ],
)
def test_what_has_neither_form_is_told_both(func, message):
    with pytest.raises(TaskError, match=f"Reward function '<lambda>'.* {message}"):
        takes_names(func)


def test_the_kits_form_gets_lists_of_its_own():
    (problems, completions), named = reward_arguments(lambda p, c: 0, tuple(PROBLEMS), tuple(COMPLETIONS))
    assert (problems, completions, named) == (PROBLEMS, COMPLETIONS, {})


def test_trls_form_gets_every_column_that_all_problems_have():
    args, named = reward_arguments(lambda **kwargs: 0, PROBLEMS, COMPLETIONS, [[5], [6, 1]])
    assert args == []
    assert named == {
        "prompts": ["1+2=", "3+4="],
        "completions": ["3", "8"],
        "completion_ids": [[5], [6, 1]],
        "answer": ["3", "7"],
        "a": [1, 3],
    }
    assert "completion_ids" not in reward_arguments(lambda **kwargs: 0, PROBLEMS, COMPLETIONS)[1]


def test_without_further_keywords_it_gets_what_it_names():
    _, named = reward_arguments(lambda completions, a: 0, PROBLEMS, COMPLETIONS)
    assert named == {"completions": ["3", "8"], "a": [1, 3]}
    assert reward_arguments(lambda completions, zz=1: 0, PROBLEMS, COMPLETIONS)[1] == {"completions": ["3", "8"]}


def test_a_missing_column_is_named_with_those_there_are():
    def judge(completions, level): ...

    with pytest.raises(
        TaskError, match=r"'judge' has a parameter 'level', but problem 1 of 2 lacks it\. All .* have a, answer"
    ):
        reward_arguments(judge, PROBLEMS, COMPLETIONS)
    with pytest.raises(
        TaskError, match=r"has a parameter 'solution', but no problem has it\. All problems have a, answer"
    ):
        reward_arguments(lambda completions, solution, **kwargs: 0, PROBLEMS, COMPLETIONS)


def test_the_fixed_names_win_over_data():
    problem = Problem("p", "right", {"prompts": 1, "completions": 2, "answer": 3, 7: 8})
    _, named = reward_arguments(lambda **kwargs: 0, [problem], ["c"])
    assert named == {"prompts": ["p"], "completions": ["c"], "answer": [3]}  # a column of a data set stays what it is


def test_names():
    assert [reward_name(func) for func in (max, Judge(), functools.partial(max), waiting)] == [
        "max", "Judge", "partial", "waiting",
    ]  # fmt: skip


CHATS = [Problem([{"role": "user", "content": problem.prompt}], problem.answer, problem.data) for problem in PROBLEMS]


@pytest.mark.parametrize("problems", [PROBLEMS, CHATS], ids=["texts", "chats"])
def test_what_trl_itself_passes(trl_call, problems):
    """The same function under TRL's own caller gets the same prompts, completions and columns."""
    seen = []

    def recorded(prompts, completions, answer, **kwargs):
        seen.append((prompts, completions, answer, kwargs["a"], kwargs["completion_ids"]))
        return [0.0] * len(completions)

    trl_call(recorded, problems, COMPLETIONS, [[5], [6, 1]])
    args, named = reward_arguments(recorded, problems, COMPLETIONS, [[5], [6, 1]])
    recorded(*args, **named)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "judge",
    [
        lambda environments, **kwargs: [float(each) for each in environments],
        lambda answer, completions, **kwargs: list(map(float.__eq__, map(float, answer), map(float, completions))),
        lambda a, completions, **kwargs: list(map(float.__add__, map(float, a), map(float, completions))),
        lambda a, environments, **kwargs: list(map(float.__sub__, map(float, a), map(float, environments))),
        lambda *args, **columns: [float(columns["answer"][0] == each) for each in columns["completions"]],
    ],
)
def test_a_function_that_trl_calls_gets_the_same_rewards_here(trl_call, judge):
    """Functions that do not name the prompts, in any order of the others."""
    theirs = trl_call(judge, PROBLEMS, COMPLETIONS, [[5], [6, 1]], environments=[2.0, 7.0])
    ours, _ = compute_rewards([judge], PROBLEMS, COMPLETIONS, environments=[2.0, 7.0])
    assert len({*ours}) == 2
    assert ours.tolist() == theirs[:, 0].tolist()


def test_a_column_that_is_required_with_the_completions_is_passed_by_name():
    def match(level, completions):
        return [float(each) for each in level]

    problems = [Problem("1", "1", {"level": 3}), Problem("2", "2", {"level": 4})]
    assert compute_rewards([match], problems, COMPLETIONS)[0].tolist() == [3.0, 4.0]


def test_the_columns_of_any_row_decide_how_a_function_is_called():
    def match(level, completions):
        return [float(each) for each in level]

    def by_default(level=None, completions=None):
        return match(level, completions)

    problems = [Problem("1", "1", {"level": 3}), Problem("2", "2", {})]
    with pytest.raises(TaskError, match="has a parameter 'level', but problem 1 of 2 lacks it"):
        compute_rewards([match], problems, COMPLETIONS)
    problems[1].data["level"] = 4
    assert compute_rewards([by_default], problems, COMPLETIONS)[0].tolist() == [3.0, 4.0]


def test_a_function_that_changes_what_it_gets_changes_no_row():
    def use_up(prompts, completions, numbers, **kwargs):
        return [float(len(each) + (each.pop() and 0)) + 0 * len(prompt.append(1) or prompt)
                for each, prompt in zip(numbers, prompts, strict=True)]  # fmt: skip

    problem = Problem([{"role": "user", "content": "1"}], "1", {"numbers": [3, 5, 9]})
    assert compute_rewards([use_up], [problem, problem], COMPLETIONS)[0].tolist() == [3.0, 3.0]
    assert problem.data == {"numbers": [3, 5, 9]}
    assert len(problem.prompt) == 1


def test_another_name_for_the_problems_beside_keywords_is_an_error():
    with pytest.raises(TaskError, match=r"parameter 'batch', but no problem has it.* its first parameter `problems`"):
        reward_arguments(lambda batch, completions, **kwargs: 0, PROBLEMS, COMPLETIONS)


def test_a_reward_function_of_trl_scores_chats():
    rewards = pytest.importorskip("trl.rewards")
    texts = ["<think>\n5*3\n</think>\nIt is 15.", "It is 15."]
    total, _ = compute_rewards([rewards.think_format_reward], CHATS, texts)
    assert total.tolist() == [1.0, 0.0]
    punish = rewards.get_soft_overlong_punishment(max_completion_len=4, soft_punish_cache=2)
    total, _ = compute_rewards([punish], CHATS, texts, completion_ids=[[1, 2], [1, 2, 3]])
    assert total.tolist() == [0.0, -0.5]


@pytest.fixture
def trl_call(monkeypatch):
    """TRL's `_generate` and `_calculate_rewards`, on a trainer that holds only what they read."""
    torch = pytest.importorskip("torch")
    trainer_module = pytest.importorskip("trl.trainer.grpo_trainer")

    monkeypatch.setattr(trainer_module, "gather", lambda x: x)

    def call(func, problems, texts, completion_ids, environments=None):
        trainer = object.__new__(trainer_module.GRPOTrainer)
        rollout = {"prompt_ids": [[3]] * len(texts), "completion_ids": completion_ids, "logprobs": None}
        vars(trainer).update(
            accelerator=SimpleNamespace(device=torch.device("cpu"), gather=lambda x: x, is_main_process=False),
            args=SimpleNamespace(report_to=[]),
            state=SimpleNamespace(global_step=0, num_input_tokens_seen=0),
            model=SimpleNamespace(training=True),
            environments=None,
            tools=None,
            rollout_func=lambda prompts, trainer: rollout,
            use_vllm=False,
            processing_class=SimpleNamespace(batch_decode=lambda ids, skip_special_tokens: texts),
            _tokenizer=SimpleNamespace(pad_token_id=0),
            eos_token_ids=[1],
            _metrics={"train": defaultdict(list)},
            reward_funcs=[func],
            reward_processing_classes=[None],
            reward_func_names=["f"],
            _log_completion_extra=None,
            _log_metric=None,
        )
        inputs = [{"prompt": p.prompt, "answer": p.answer, "a": p.data["a"]} for p in problems]
        prompts = [p.prompt for p in problems]
        completions = trainer._generate(prompts)[3]
        trainer.environments = environments
        return trainer._calculate_rewards(inputs, prompts, completions, completion_ids)

    return call
