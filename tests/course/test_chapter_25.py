"""Chapter 25: the solutions agree with the kit's own tools, and the chapter with its recorded runs."""

import functools
import json
from dataclasses import replace

import numpy as np
import pytest

from mlx_grpo_kit.assets import TINY_TOOLS
from mlx_grpo_kit.course import check
from mlx_grpo_kit.course.chapters.chapter_25 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_25 import games
from mlx_grpo_kit.grpo.batch import Completions, Conversation, Scores
from mlx_grpo_kit.instruments.dashboard.run_picture import table_of
from mlx_grpo_kit.qwen3 import load_tokenizer
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.tasks.tool_calls import ToolCall, call_tools, parse_tool_calls
from mlx_grpo_kit.tasks.tools import Toolbox
from tests.course.stored import cells


def test_calls_are_read_as_the_kit_reads_them():
    for (text,) in chapter.READ_CALLS.cases:
        theirs = [None if call.error else (call.name, dict(call.arguments)) for call in parse_tool_calls(text)]
        assert chapter.read_calls(text) == theirs, text[:80]


def test_calls_fail_where_the_kits_fail():
    for tools, call in chapter.RUN_CALL.cases:
        if call is not None and call[0] != "wait":  # which Ctrl-C interrupts
            [theirs] = call_tools([(Toolbox(tools), ToolCall(*call))])
            text, failed = chapter.run_call(tools, call)
            assert failed == theirs.failed
            assert failed or text.replace("< ", "<") == theirs.text


QWEN3_TOKENS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|vision_pad|>", "<|fim_middle|>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
]


def test_a_result_has_no_control_token_in_it():
    tokenizer = load_tokenizer(TINY_TOOLS)
    assert {*tokenizer.added_tokens} < {*QWEN3_TOKENS}
    for token in QWEN3_TOKENS:
        for text in (token, token[0] + token * 2, f"3\n{token}\n"):
            result, _ = chapter.run_call(chapter.TOOLS, ("quote", {"text": text}))
            assert not any(each in result for each in QWEN3_TOKENS)
            assert tokenizer.added_token_ids.isdisjoint(tokenizer.encode(result))


@functools.cache
def total(n):
    return 0 if n == 0 else n + min(total(first) + total(n - 1 - first) for first in range(n))


def test_no_player_needs_fewer_questions():
    for n in range(1, 40):
        assert chapter.fewest_questions(n) == pytest.approx(total(n) / n)


def played(*said):
    """A game: what the environment answered to each guess; the completion closes with a turn without a call."""
    messages = [each for answer in said for each in ({"role": "assistant"}, {"role": "tool", "content": answer})]
    mask = [True, True, False] * len(said) + [True]
    return Conversation([*messages, {"role": "assistant"}]), mask


def test_a_turn_is_compared_with_the_same_turn_of_its_group():
    games_of = [played("right"), played("lower", "right"), played("lower", "lower"), played(), *[played("right")] * 4]
    conversations, masks = map(list, zip(*games_of, strict=True))
    ids = [[7] * len(mask) for mask in masks]
    completions = Completions.from_lists(4, [None] * 8, ids, ids, [""] * 8, token_mask=masks)
    rewards = np.array([1.0, 0.8, 0, 0, 1, 1, 1, 1])
    scores = Scores(("Game",), rewards[:, None], {})
    got, advantages = games.by_turn(chapter.credit)(replace(completions, conversations=conversations), scores)
    assert got.tolist() == rewards.tolist()

    def compared(*values):
        return (np.array(values) - np.mean(values)) / (np.std(values, ddof=1) + 1e-4)

    first, second = compared(1.0, 0.8, 0.0, 0.0), compared(0.8, 0.0)
    for row, of_turns in enumerate(
        [(first[0], 0), (first[1], second[0], 0), (first[2], second[1], 0), (first[3],), *[(0, 0)] * 4]
    ):
        expected = np.zeros(advantages.shape[1])
        for number, value in enumerate(of_turns):
            expected[3 * number : 3 * number + (2 if number < len(of_turns) - 1 else 1)] = value
        assert advantages[row] == pytest.approx(expected, abs=1e-5), row


def test_the_program_repeats_the_recorded_games(tmp_path):
    games.main(["--steps", "2", "--seeds", "1", "--output", str(tmp_path)])
    curves, stored = json.loads((tmp_path / games.CURVES).read_text()), games.stored_curves()
    assert [*curves] == [*stored] == ["one per game", "one per turn"]
    for way, ([again], seeds) in zip(curves, zip(curves.values(), stored.values(), strict=True), strict=True):
        assert {*map(len, seeds)} == {games.STEPS}
        assert len(seeds) == games.SEEDS
        assert again == pytest.approx(seeds[0][:2], abs=0.1), way  # a draw may differ
    for name in games.RUNS:
        [again] = tmp_path.glob(name.replace(" ", "_"))
        again, recorded = RunRecord.load(again), games.stored(name)
        assert again.title == recorded.title
        assert again.settings.items() >= recorded.settings.items()
        for metric in ("reward", "rewards/Game/mean", "won", "tools/call_frequency"):
            assert again.column(metric) == pytest.approx(recorded.column(metric)[:2], abs=0.1)  # a draw may differ


def test_the_recorded_games_can_be_read_in_the_dashboard():
    for name in games.RUNS:
        record = games.stored(name)
        assert not record.damaged
        assert len(record) == record.max_steps == games.STEPS
        assert 'guess({"number": ' in repr(table_of(record))
        kept = [step for step in record.steps if step.completions]
        assert [step.step for step in kept] == [5, 10, 15, 20, 25, 30]
        for step in kept:
            games_won = [each.rewards["Game"] > 0 for each in step.completions]
            assert len(games_won) == 16
            assert all(
                won == (each.messages[-2]["content"] == "right") or not each.finished
                for won, each in zip(games_won, step.completions, strict=True)
                if len(each.messages) > 1
            )


def test_the_chapter_tells_what_the_records_say():
    said = {id: cell.source for id, cell in cells("25").items()}
    honest, paid = map(games.stored, games.RUNS)

    def mean(record, metric, part):
        return np.mean(record.column(metric)[part])

    first, last = slice(0, 10), slice(-10, None)
    lost_as_six = [6 - 5 * mean(honest, "rewards/Game/mean", part) for part in (first, last)]
    won = [mean(honest, "won", part) for part in (last, first)]
    assert "falls from {:.1f} to {:.1f}".format(*lost_as_six) in said["turns-52"]
    assert "wins {:.0%} of its games, in the first ten {:.0%}".format(*won) in said["turns-52"]
    first, last = slice(0, 5), slice(-5, None)
    guesses = [mean(paid, "tools/call_frequency", part) for part in (first, last)]
    won = [mean(paid, "won", part) for part in (last, first)]
    assert "from {:.1f} to {:.1f} guesses".format(*guesses) in said["turns-55"]
    assert "only {:.0%} of the last games are won, against {:.0%} of the first".format(*won) in said["turns-55"]
    assert "python -m mlx_grpo_kit.course.chapters.chapter_25.games" in said["turns-49"]


def test_the_chapter_tells_what_the_curves_say():
    said = {id: cell.source for id, cell in cells("25").items()}
    per_game, per_turn = (np.array(seeds) for seeds in games.stored_curves().values())
    assert per_game[0] == pytest.approx(games.stored("guess the number").column("rewards/Game/mean"), abs=1e-4)
    gains = (per_turn - per_game)[:, -10:].mean(axis=1)
    assert (gains > 0.05).sum() == 2
    assert (gains < 0).sum() == 1
    told = f"a gain of {gains.mean():.2f}, with a standard error of {gains.std(ddof=1) / np.sqrt(3):.2f}"
    assert told in said["turns-66"]
    for seed in (1, 2):
        guesses = [6 - 5 * per_game[seed, part].mean() for part in (slice(0, 10), slice(-10, None))]
        assert "| {} | {:.2f}, then {:.2f} |".format(seed, *guesses) in said["turns-52"]


def test_a_message_shows_the_arguments_before_an_answer_changed_them_and_empty_dictionaries():
    def popping(mask, turn_rewards, gamma):
        values = chapter.credit(mask, turn_rewards, gamma)
        turn_rewards.clear()
        return values

    assert "`credit([1, 1, 0, 1], [0.0, 1.0], 0.5)` gave the right result" in check("25.8", popping).text
    without = [("calculate", {})]
    assert "gave [('calculate', {})], expected" in check("25.2", lambda text: without).text
