"""Chapter 23: answers in other styles, wrong ones with their messages, and the checklist of the project."""

import itertools
import math
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from mlx_grpo_kit.assets import TINY_CHAT
from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.chapters.chapter_14.exercises import fool
from mlx_grpo_kit.course.chapters.chapter_23 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_23.project import checklist
from mlx_grpo_kit.qwen3 import load_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Addition, Problem, RowsTask
from mlx_grpo_kit.tasks import answers as kit

# -- right answers in other styles ------------------------------------------------------------------------------------


def by_join(messages, thinking):
    turns = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
    return "".join([*turns, "<|im_start|>assistant\n", "" if thinking else "<think>\n\n</think>\n\n"])


def by_the_template(messages, thinking):
    """The template drops earlier thoughts, and the exercise does not, so chats with thoughts are joined instead."""
    if any("</think>" in message["content"] for message in messages):
        return by_join(messages, thinking)
    return load_tokenizer(TINY_CHAT).render(messages, enable_thinking=thinking)


def cut_with_next(ids, ends):
    place = next((i for i, token in enumerate(ids) if token in set(ends)), None)
    return (list(ids), False) if place is None else (list(ids[:place]), True)


def cut_with_numpy(ids, ends):
    found = np.isin(ids, ends)
    return (np.array(ids)[: found.argmax()], True) if found.any() else (np.array(ids), False)


def cut_with_mlx(ids, ends):
    ids = mx.array(ids)
    is_end = (ids[:, None] == mx.array(ends)).any(axis=1)
    return (ids[: mx.argmax(is_end).item()], True) if is_end.any().item() else (ids, False)


def answer_by_index(text):
    if "</think>" in text:
        text = text[text.rindex("</think>") + 8 :]
    if "<think>" in text:
        text = text[: text.index("<think>")]
    if "</answer>" in text:
        before = text[: text.rindex("</answer>")]
        if "<answer>" in before:
            return before[before.rindex("<answer>") + 8 :].strip()
    lines = text.strip().split("\n")
    return lines[-1].strip()


def same_by_decimal(said, right):
    def read(text):
        whole = re.fullmatch("-?([0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:[.][0-9]+)?", text)
        return Decimal(text.replace(",", "")) if whole else None

    a, b = read(said), read(right)
    return a is not None and b is not None and a == b


def gold_by_split(answer):
    return answer.split("####")[-1].strip().replace(",", "") if "####" in answer else None


def gold_by_pattern(answer):
    found = re.findall(r"####\s*([^#]*)", answer)
    return "".join(found[-1].split(",")).strip() if found else None


def cost_of_each_token(parameters, rows, prompt, completion, flops, bandwidth):
    reading, computing = 2 * parameters / bandwidth, rows * 2 * parameters / flops
    return sum(max(reading, computing) for _ in range(completion)), (2 + 4) * parameters * rows * (
        prompt + completion
    ) / flops


def range_by_halving(right, n):
    """A search to both sides of the observed share, which always fits."""

    def end(inside, outside):
        for _ in range(60):
            p = (inside + outside) / 2
            fits = abs(right / n - p) <= 2 * math.sqrt(p * (1 - p) / n)
            inside, outside = (p, outside) if fits else (inside, p)
        return inside

    return [end(right / n, 0.0), end(right / n, 1.0)]


def range_by_roots(right, n):
    share = right / n
    return np.sort(np.roots([1 + 4 / n, -2 * share - 4 / n, share**2]).real)


def leaked_by_text(exam, training, n):
    """Runs of words as texts between blanks, of all lengths at once."""
    book = [re.sub("[^a-z0-9]+", " ", text.lower()).split() for text in training]
    runs = {k: {" ".join(b[i : i + k]) for b in book for i in range(len(b) - k + 1)} for k in range(1, n + 1)}
    places = []
    for place, text in enumerate(exam):
        words = re.findall("[a-z0-9]+", text.lower())
        k = min(n, len(words))
        if k and any(" ".join(words[i : i + k]) in runs[k] for i in range(len(words) - k + 1)):
            places.append(place)
    return tuple(places)


def leaked_by_counter(exam, training, n):
    def runs(text, k):
        words = re.findall("[a-z0-9]+", text.lower())
        return zip(*(words[i:] for i in range(k)), strict=False)

    lengths = [min(n, len(re.findall("[a-z0-9]+", text.lower()))) for text in exam]
    known = {k: set(itertools.chain.from_iterable(runs(text, k) for text in training)) for k in {*lengths} - {0}}
    marks = [k > 0 and not known[k].isdisjoint(runs(text, k)) for text, k in zip(exam, lengths, strict=True)]
    return np.flatnonzero(marks)


def leaked_pair_by_pair(exam, training, n):
    def padded(text):
        return f" {' '.join(re.findall('[a-z0-9]+', text.lower()))} "

    places = []
    for place, text in enumerate(exam):
        words = padded(text).split()
        k = min(n, len(words))
        runs = [f" {' '.join(words[i : i + k])} " for i in range(len(words) - k + 1)] if k else []
        if any(run in padded(other) for run in runs for other in training):
            places.append(place)
    return places


def wald(right, n):
    share = np.float64(right / n)
    return tuple(share + np.array([-2, 2]) * np.sqrt(share * (1 - share) / n))


RIGHT = [
    ("23.1", by_join),
    ("23.1", by_the_template),
    ("23.2", cut_with_next),
    ("23.2", cut_with_numpy),
    ("23.2", cut_with_mlx),
    ("23.3", answer_by_index),
    ("23.4", same_by_decimal),
    ("23.5", gold_by_split),
    ("23.5", gold_by_pattern),
    ("23.6", cost_of_each_token),
    ("23.4", lambda said, right: np.bool_(same_by_decimal(said, right))),
    ("23.6", lambda *arguments: np.array(cost_of_each_token(*arguments))),
    ("23.7", range_by_halving),
    ("23.7", range_by_roots),
    ("23.7", lambda right, n: mx.array(chapter.share_range(right, n))),
    ("23.8", leaked_by_text),
    ("23.8", leaked_by_counter),
]


@pytest.mark.parametrize(("id", "answer"), RIGHT, ids=[f"{id}-{f.__name__}" for id, f in RIGHT])
def test_right_answers_in_other_styles(id, answer):
    note = check(id, answer)
    assert note.passed, note.text


# -- wrong ones ------------------------------------------------------------------------------------------------------

WRONG = [
    ("23.1", lambda m, t: by_join(m, t).rstrip("\n"), "characters"),
    ("23.1", lambda m, t: by_join(m, not t), "It is the other way round"),
    ("23.1", lambda m, t: by_join(m, t).replace("<|im_start|>assistant\n", ""), "assistant"),
    (
        "23.2",
        lambda ids, ends: (ids[: ids.index(ends[0])], True) if ends[0] in ids else (ids, False),
        "Any of the ends",
    ),
    ("23.1", lambda m, t: by_join([{**turn, "role": turn["role"].title()} for turn in m], t), "User"),
    (
        "23.2",
        lambda ids, ends: cut_with_next(ids, [i for i in ids if any(str(end) in str(i) for end in ends)]),
        "expected ([12, 20], True)",
    ),
    ("23.2", lambda ids, ends: ([i for i in ids if i not in ends], any(i in ends for i in ids)), "expected"),
    ("23.3", lambda text: text.strip(), "expected"),
    ("23.3", lambda text: text.split("</think>")[-1].strip().split("\n")[-1], "expected"),
    ("23.3", lambda text: (re.findall("<answer>(.*?)</answer>", text, re.S) or [text])[-1].strip(), "expected"),
    ("23.3", lambda text: answer_by_index(text).lower(), "'3 Apples'"),
    ("23.3", lambda text: " ".join(answer_by_index(text).split()), "'6  *  7'"),
    ("23.3", lambda text: answer_by_index(text).rstrip("."), "'It is 46.'"),
    ("23.4", lambda a, b: a == b, "expected"),
    ("23.4", lambda a, b: same_by_decimal(a.replace("--", ""), b), "expected False"),
    ("23.4", lambda a, b: same_by_decimal(a, b) or (a == "92/2" and Fraction(a) == Fraction(b)), "92/2"),
    ("23.4", lambda a, b: kit.as_number(a) == kit.as_number(b), "expected"),
    ("23.4", lambda a, b: abs(float(a.replace(",", "")) - float(b.replace(",", ""))) < 1e-6, "expected"),
    ("23.2", lambda ids, ends: cut_with_next(ids, ends[:2]), "expected"),
    ("23.3", lambda text: answer_by_index(text).replace(" ", ""), "expected"),
    ("23.4", lambda a, b: same_by_decimal(a.lstrip("+"), b), "expected"),
    ("23.4", lambda a, b: same_by_decimal(a.lstrip("-"), b.lstrip("-")), "expected"),
    ("23.4", lambda a, b: same_by_decimal("0" + a if a[:1] == "." else a, b), "expected"),
    ("23.4", lambda a, b: same_by_decimal(a, b.split()[0] if b else b), "expected"),
    ("23.4", lambda a, b: same_by_decimal(a.replace("1,000000", "1000000"), b), "expected"),
    ("23.4", lambda a, b: same_by_decimal(a[:30], b[:30]), "expected"),
    ("23.5", lambda answer: str(int(float(gold_by_split(answer)))) if "####" in answer else None, "expected"),
    ("23.6", lambda n, r, p, c, f, b: (c * max(2 * n / b, 2 * n * r / f), max(6 * n * r * (p + c) / f, 2 * n / b)), ""),
    ("23.5", lambda answer: answer.split("####")[-1].strip().replace(",", ""), "Without `####`"),
    ("23.5", lambda answer: answer.split("#### ")[-1].replace(",", "") if "####" in answer else None, "expected"),
    ("23.5", lambda a: a[a.rfind("#") + 1 :].strip().replace(",", "") if "#" in a else None, "Take bus #5."),
    ("23.6", lambda n, r, p, c, f, b: (c * 2 * n / b, 6 * n * r * (p + c) / f), "expected"),
    ("23.6", lambda n, r, p, c, f, b: sum(chapter.step_seconds(n, r, p, c, f, b)), "expected"),
    ("23.7", lambda right, n: (right / n - 1 / n**0.5, right / n + 1 / n**0.5), "expected"),
    ("23.7", wald, "in the place of p"),
    ("23.7", lambda right, n: [round(each, 3) for each in chapter.share_range(right, n)], "expected"),
    ("23.7", lambda right, n: chapter.share_range(right, n)[::-1], "expected"),
    ("23.7", lambda right, n: chapter.share_range(right, max(n, 2)), "expected"),
    ("23.7", lambda right, n: chapter.share_range(max(right, 1), n), "expected"),
    ("23.8", leaked_pair_by_pair, "work"),
    ("23.8", lambda exam, book, n: sorted(set(leaked_by_text(exam, book, n)) - {0}), "expected"),
    ("23.8", lambda exam, book, n: leaked_by_text(exam, book, n - 1), "expected"),
    ("23.8", lambda exam, book, n: [exam[place] for place in leaked_by_text(exam, book, n)], ""),
    ("23.8", lambda exam, book, n: [place for place, text in enumerate(exam) if text in book], "expected"),
    ("23.8", lambda exam, book, n: leaked_by_text(exam, [" ".join(book)], n), "expected"),
]


@pytest.mark.parametrize(("id", "answer", "words"), WRONG, ids=[f"{n}-{id}" for n, (id, _, _) in enumerate(WRONG)])
def test_a_wrong_answer_gets_the_message_for_its_mistake(id, answer, words):
    note = check(id, answer)
    assert not note.passed
    assert words in note.text


@pytest.mark.parametrize(("right", "n"), chapter.SHARE_RANGE.cases)
def test_the_range_of_a_share_is_wilsons(right, n):
    level = 2 * stats.norm.cdf(2) - 1
    theirs = stats.binomtest(right, n).proportion_ci(level, method="wilson")
    assert chapter.share_range(right, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@pytest.mark.parametrize("text", [text for (text,) in chapter.FINAL_ANSWER.cases])
def test_the_exercise_s_final_answer_is_the_kit_s(text):
    assert chapter.final_answer(text) == kit.final_answer(text)


def test_numbers_that_are_equal_in_the_exercise_are_equal_in_the_kit():
    for said, right in chapter.SAME_NUMBER.cases:
        if chapter.same_number(said, right):
            assert kit.as_number(said) == kit.as_number(right)


def test_the_formula_against_the_run_that_was_measured():
    """Qwen3-0.6B's shape in float32, 8 x 64 tokens on two idle cores: 41 s per step, with 4 bytes per weight."""
    sampling, learning = chapter.step_seconds(6e8, 8, 12, 64, flops=4e11, bandwidth=2.3e10)
    assert (round(sampling), round(2 * sampling), round(learning)) == (3, 7, 5)
    assert 0.25 < (2 * sampling + learning) / 41 < 0.35


# -- the checklist of the project -------------------------------------------------------------------------------------

RUNS = [{"seed": seed, "before": 0.4, "after": after} for seed, after in enumerate((0.55, 0.6, 0.62))]
ATTACKS = ["46 or 47", "<answer>4</answer>" * 9]


def holds(task, runs=RUNS, attacks=ATTACKS):
    return {item.name: item.holds for item in checklist(task, runs, attacks)}


def words_of(task, name, runs=RUNS, attacks=ATTACKS):
    return next(item.words for item in checklist(task, runs, attacks) if item.name == name)


def test_a_good_project():
    for task in (Addition(), Addition().in_chat()):
        found = holds(task)
        assert found.pop("read") is None
        assert all(found.values()), found
    assert "8 of 9 hold." in str(checklist(Addition(), RUNS, ATTACKS))


def test_an_object_that_is_not_a_task():
    assert holds(object())["a task"] is False


def test_a_task_that_asks_what_it_holds_out():
    task = Addition()
    task.sample = lambda rng, n: [task.held_out(256)[i] for i in rng.integers(0, 256, n)]
    assert holds(task)["held out"] is False
    assert "training asks held-out problems" in words_of(task, "held out")


def test_a_task_without_a_seed():
    task, rng = Addition(), np.random.default_rng()
    sample = task.sample
    task.sample = lambda _, n: sample(rng, n)
    assert "different problems for the same seed" in words_of(task, "seeds")


def test_problems_that_occur_twice():
    task = Addition()
    first = task.held_out(1)[0]
    task.held_out = lambda n: [first] * n
    assert "occur twice" in words_of(task, "held out")


def test_a_right_answer_that_is_refused():
    task = Addition()
    task.is_correct = lambda problem, completion: completion == f"{problem.answer}."
    assert "is not accepted for" in words_of(task, "right answers")


def test_rewards_that_lazy_texts_get():
    def lenient(problems, completions):
        pairs = zip(problems, completions, strict=True)
        return [float(problem.answer in re.findall("[0-9]+", text)) for problem, text in pairs]

    task = Addition(reward_funcs=[lenient])
    assert holds(task)["attacks"] is True  # no lazy text finds the hole
    assert "is paid 1 on average" in words_of(task, "attacks", attacks=[fool(198)])

    def anything(problems, completions):
        return [1.0] * len(completions)

    assert "'' is paid 1 on average" in words_of(Addition(reward_funcs=[anything]), "attacks")
    assert "think of some of your own" in words_of(Addition(), "attacks", attacks=[])


def test_one_text_that_is_right_everywhere():
    task = Addition()
    task.is_correct = lambda problem, completion: problem.answer in completion.split()
    assert "counts as right on 100%" in words_of(task, "attacks", attacks=[fool(198)])


def test_runs_that_show_little():
    assert holds(Addition(), RUNS[:2])["several seeds"] is False
    assert holds(Addition(), [{**run, "seed": 0} for run in RUNS])["several seeds"] is False
    assert holds(Addition(), RUNS[:1])["a gain"] is False
    assert holds(Addition(), [{"seed": 0, "after": 0.5}])["a baseline"] is False
    shaky = [{"seed": seed, "before": 0.4, "after": after} for seed, after in enumerate((0.2, 0.5, 0.6))]
    assert holds(Addition(), shaky)["a gain"] is False
    assert "+0.190, with a standard error of 0.021 over 3 runs" in words_of(Addition(), "a gain")


def test_few_problems_and_problems_without_answers():
    rows = RowsTask([{"question": f"{n}?", "answer": n} for n in range(100)])
    assert holds(rows)["enough problems"] is False
    silent = RowsTask(
        [{"prompt": f"{n}?"} for n in range(100)],
        [lambda problems, completions: [0.0] * len(completions)],
        lambda problem, text: False,
    )
    assert holds(silent)["right answers"] is None
    assert isinstance(silent.held_out(1)[0], Problem)


def test_fractions_are_exact_in_the_solution():
    assert Fraction("0.1") != Fraction(0.1)
    assert not chapter.same_number("9007199254740993", "9007199254740992")
