"""Countdown, the numbers game: `24 from 5 3 9:` -> `3*5+9`. Many answers are right, so only a checker can judge them.

The rules here: every given number occurs in the expression exactly once, in any order, with `+ - * /` and parentheses,
and the value is exactly the target. (The television game lets a player leave numbers out; using them all keeps problems
from being trivial.) Each target can be reached with `+ - *` alone; division and fractions are accepted too.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, combinations_with_replacement, permutations
from numbers import Real
from typing import Any

import numpy as np

from mlx_grpo_kit.tasks.answers import as_expression, as_number, final_answer
from mlx_grpo_kit.tasks.chat import IN_TAGS, InChat, said
from mlx_grpo_kit.tasks.parsing import Expression, ExpressionError, parse_expression
from mlx_grpo_kit.tasks.signatures import as_reward_funcs
from mlx_grpo_kit.tasks.split import hash_order, split_by_hash, take_held_out
from mlx_grpo_kit.tasks.task import Problem, RewardFunc

MAX_TARGET = 99


def correct(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """1.0 for an expression that uses each number once and equals the target, else 0.0."""
    return [float(_is_right(problem, completion)) for problem, completion in zip(problems, completions, strict=True)]


def uses_numbers(problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
    """0.1 for an expression that uses each number once, whatever its value, else 0.0.

    This is a stepping stone while right answers are rare: in a group of wrong completions nothing else distinguishes
        better from worse. The reward is small on purpose: if it were as large as that of `correct`, well-formed
        nonsense would pay.
    """
    pairs = zip(problems, completions, strict=True)
    return [0.1 if _read(problem, said(problem, text, left_of_equals)) is not None else 0.0 for problem, text in pairs]


def is_game(data: Mapping[str, Any]) -> bool:
    """True for the data of a game: a whole number `target`, and whole `numbers`, also under the name `nums`."""
    numbers = _numbers(data)
    if not isinstance(numbers, Sequence) or isinstance(numbers, str) or not numbers:
        return False
    values = [data.get("target"), *numbers]
    return all(isinstance(each, Real) and not isinstance(each, bool) and each == each // 1 for each in values)


def is_solution(problem: Problem, answer: str) -> bool:
    """True if the answer is an expression that uses each number once and equals the target."""
    expression = _read(problem, answer)
    return expression is not None and expression.value == problem.data["target"]


def _read(problem: Problem, answer: str) -> Expression | None:
    """The answer's expression, if it is one and uses each of the problem's numbers once."""
    try:
        expression = parse_expression(answer)
    except ExpressionError:
        return None
    return expression if sorted(expression.numbers) == sorted(_numbers(problem.data)) else None


def _numbers(data: Mapping[str, Any]) -> Any:
    numbers = data["nums"] if "nums" in data else data.get("numbers")
    return numbers.tolist() if hasattr(numbers, "tolist") else numbers  # an array, as pandas and datasets return them


def _is_right(problem: Problem, completion: str) -> bool:
    return is_solution(problem, said(problem, completion, left_of_equals))


class Countdown:
    """Targets from 1 to 99 out of `num_numbers` numbers from 1 to `max_number`, with a tenth of the games held out.

    A game is a target and its numbers in any order: all orders are on the same side of the split.

    Args:
        num_numbers: 2 to 4.
        max_number: 9 to 12.
        reward_funcs: functions instead of the default `[correct, uses_numbers]`.
    """

    name = "countdown"

    def __init__(
        self, num_numbers: int = 3, max_number: int = 9, reward_funcs: Sequence[RewardFunc] | RewardFunc | None = None
    ):
        if not (2 <= num_numbers <= 4 and 9 <= max_number <= 12):
            raise ValueError(
                f"Countdown(num_numbers={num_numbers}, max_number={max_number}): "
                "expected 2 to 4 numbers and a largest number from 9 to 12."
            )
        digits = num_numbers * len(str(max_number))
        operators, parentheses, eos = num_numbers - 1, 2 * (num_numbers - 2), 1
        self.max_completion_length = digits + operators + parentheses + eos
        self.reward_funcs = [correct, uses_numbers] if reward_funcs is None else as_reward_funcs(reward_funcs)

        self._games: dict[str, Problem] = {}  # by the prompt with the numbers in rising order
        known: dict[tuple[int, ...], dict[int, str]] = {}
        for numbers in combinations_with_replacement(range(1, max_number + 1), num_numbers):
            for target, answer in shortest_solutions(numbers, known).items():
                if 1 <= target <= MAX_TARGET:
                    game = self.problem(target, numbers, answer)
                    self._games[game.prompt] = game
        self._train, held_out = split_by_hash(self._games)
        held_out_games = [
            _reordered(self._games[key], order)
            for key in held_out
            for order in sorted(set(permutations(self._games[key].data["numbers"])))
        ]
        by_prompt = {game.prompt: game for game in held_out_games}
        self._held_out = [by_prompt[prompt] for prompt in hash_order(by_prompt)]

    @staticmethod
    def problem(target: int, numbers: Sequence[int], answer: str) -> Problem:
        """The problem `target from numbers:`, from either side of the split; `answer` is one solution."""
        prompt = f"{target} from {' '.join(map(str, numbers))}:"
        return Problem(prompt, answer, data={"target": target, "numbers": tuple(numbers)})

    def sample(self, rng: np.random.Generator, n: int) -> list[Problem]:
        games = [self._games[self._train[i]] for i in rng.integers(0, len(self._train), n)]
        return [_reordered(game, rng.permutation(game.data["numbers"]).tolist()) for game in games]

    def held_out(self, n: int) -> list[Problem]:
        return take_held_out(self.name, self._held_out, n)

    is_correct = staticmethod(_is_right)

    def in_chat(self, *, thinking: bool = False) -> InChat:
        """The same games asked in words; `5 * 3 + 9 = 24` is an answer too, if the equation is true."""

        def ask(problem: Problem) -> str:
            *others, last = problem.data["numbers"]
            numbers = f"{', '.join(map(str, others))} and {last}"
            rules = "each of them used exactly once, with + - * / and parentheses"
            return f"Make {problem.data['target']} from the numbers {numbers}, {rules}. {IN_TAGS.format('expression')}"

        return InChat(self, ask, thinking=thinking)


def left_of_equals(completion: str) -> str:
    """The expression of an answer. For `expression = value` the value must be right."""
    expression, equals, value = map(as_expression, final_answer(completion, words=True).partition("="))
    if not equals:
        return expression
    try:
        is_so = "=" not in value and parse_expression(expression).value == as_number(value)
        return expression if is_so else ""
    except ExpressionError:
        return ""


def _reordered(game: Problem, numbers: Sequence[int]) -> Problem:
    return Countdown.problem(game.data["target"], numbers, game.answer)


def shortest_solutions(
    numbers: tuple[int, ...], known: dict[tuple[int, ...], dict[int, str]] | None = None
) -> dict[int, str]:
    """Every whole number that `+ - *` can make from all the `numbers`, with a shortest expression for it.

    The function splits the numbers in two in every way, solves both halves, and combines each value on the left with
    each on the right.

    Args:
        numbers: in rising order; each is used exactly once.
        known: solutions of smaller sets, shared between calls and extended by them.
    """
    known = {} if known is None else known
    if numbers in known:
        return known[numbers]
    found: dict[int, str] = {}

    def offer(value: int, text: str) -> None:
        if value not in found or len(text) < len(found[value]):
            found[value] = text

    if len(numbers) == 1:
        offer(numbers[0], str(numbers[0]))
    places = range(len(numbers))
    for size in range(1, len(numbers)):
        for chosen in combinations(places, size):
            left = shortest_solutions(tuple(numbers[i] for i in chosen), known)
            right = shortest_solutions(tuple(numbers[i] for i in places if i not in chosen), known)
            for a, a_text in left.items():
                for b, b_text in right.items():
                    offer(a + b, f"{a_text}+{b_text}")
                    offer(a - b, f"{a_text}-{_factor(b_text)}")
                    offer(a * b, f"{_factor(a_text)}*{_factor(b_text)}")
    known[numbers] = found
    return found


def _factor(text: str) -> str:
    """The text, in parentheses if it is a sum or a difference, so that it can follow `-` or be a factor of `*`."""
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth == 0 and character in "+-":
            return f"({text})"
    return text
