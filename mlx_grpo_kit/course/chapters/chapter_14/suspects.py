"""Rewards for a sum, honest ones and ones with a hole, for readers to examine: one number per completion."""

import re

from mlx_grpo_kit.tasks.parsing import ascii_int


def _each(score):
    """Make a reward function of (problems, completions) from a function of (answer, completion)."""

    def reward(problems, completions):
        return [float(score(problem.answer, text)) for problem, text in zip(problems, completions, strict=True)]

    reward.__name__, reward.__doc__ = score.__name__, score.__doc__
    return reward


@_each
def exact(answer, text):
    """1 for the answer itself"""
    return text == answer


@_each
def parsed(answer, text):
    """1 for a whole number that equals the answer, spaces around it allowed"""
    return ascii_int(text) == int(answer)


@_each
def half_for_form(answer, text):
    """1 for the answer, 0.5 for any other whole number"""
    return 1 if text == answer else 0.5 * (ascii_int(text) is not None)


@_each
def two_for_right(answer, text):
    """2 for the answer, 1 for a number that is one off"""
    number = ascii_int(text)
    return 0 if number is None else max(0, 2 - abs(number - int(answer)))


@_each
def piece_of_answer(answer, text):
    """1 for a completion that is part of the answer"""
    return text in answer


@_each
def answer_inside(answer, text):
    """0.1 for each character of a completion that contains the answer, else 0"""  # a wrong one gets more
    return (answer in text) * len(text) / 10


@_each
def begins_like(answer, text):
    """1 for a completion that begins with the answer"""
    return text.startswith(answer)


@_each
def any_number(answer, text):
    """1 if one of the numbers in the completion is the answer"""
    return answer in re.findall(r"\d+", text)


@_each
def form_only(answer, text):
    """1 for any whole number"""
    return ascii_int(text) is not None


@_each
def one_off(answer, text):
    """1 for a number that is at most one off"""
    number = ascii_int(text)
    return number is not None and abs(number - int(answer)) <= 1


@_each
def same_digits(answer, text):
    """1 for the digits of the answer in any order"""
    return sorted(text) == sorted(answer)


@_each
def long_ones(answer, text):
    """1 for the answer, 0.08 for each character otherwise"""  # never exactly 1
    return 1 if text == answer else 0.08 * len(text)


@_each
def last_digit(answer, text):
    """1 for a whole number with the right last digit"""
    return ascii_int(text) is not None and text[-1] == answer[-1]


HONEST = (exact, parsed, half_for_form, two_for_right)
HOLED = (
    piece_of_answer,
    answer_inside,
    begins_like,
    any_number,
    form_only,
    one_off,
    same_digits,
    long_ones,
    last_digit,
)
