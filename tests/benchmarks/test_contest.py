"""The contest itself: a process for each contestant, turns, memory, and what is said when one of them fails."""

import os
import time
from pathlib import Path

import pytest

from tests.benchmarks.contest import Contestant, contest, contest_apart, peak_memory

MIB = 2**20


class Player:
    """Notes when it had its turns; `held` MiB are held while it plays."""

    def __init__(self, held=0, seed=None):
        self.seed, self.times, self.held = seed, [], b"x" * (held * MIB)

    def turn(self):
        self.times.append(time.monotonic())

    def evidence(self):
        return {"pid": os.getpid(), "times": self.times, "seed": self.seed, "color": os.environ.get("COLOR")}


class Sleeper(Player):
    def turn(self):
        return 7.0  # a contestant that keeps the time itself


class Loser(Player):
    def turn(self):
        raise ArithmeticError("the ball is lost")


class Leaver(Player):
    def turn(self):
        os._exit(3)


def player(make=Player, environment=None, **options) -> Contestant:
    return Contestant(make, options, first=(), environment=environment or {})


def test_contestants_take_turns_each_in_a_process_of_its_own():
    blue = player(held=100, environment={"COLOR": "blue"})
    results = contest({"a": player(), "b": blue, "c": player(Sleeper)}, rounds=2, warmup_rounds=1)
    a, b, c = (result.evidence[0] for result in results.values())
    assert len({a["pid"], b["pid"], c["pid"], os.getpid()}) == 4
    assert len(a["times"]) == len(b["times"]) == 3
    in_turns = [each for pair in zip(a["times"], b["times"], strict=True) for each in pair]
    assert in_turns == sorted(in_turns)
    assert (a["color"], b["color"]) == (None, "blue")
    assert [len(result.seconds) for result in results.values()] == [2, 2, 2]
    assert results["c"].seconds == [7.0, 7.0]
    assert results["b"].memory - results["a"].memory == pytest.approx(100, abs=10)
    assert results["b"].libraries - results["a"].libraries == pytest.approx(0, abs=10)


def test_apart_every_round_has_its_process_and_its_seed():
    found = contest_apart({"a": player(), "b": player()}, rounds=2)
    evidence = [each for result in found.values() for each in result.evidence]
    assert [each["seed"] for each in evidence] == [0, 1, 0, 1]
    assert len({each["pid"] for each in evidence}) == 4
    assert [len(result.seconds) for result in found.values()] == [2, 2]


@pytest.mark.parametrize(
    ("make", "message"), [(Loser, "ArithmeticError: the ball is lost"), (Leaver, "process ended with 3")]
)
def test_a_contestant_that_fails_ends_the_contest(make, message):
    with pytest.raises(RuntimeError, match=message):
        contest({"a": player(), "b": player(make)}, rounds=1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Only Linux tells the present memory this way.")
def test_the_peak_is_that_of_the_process_itself():
    held = b"x" * (200 * MIB)  # a child must not begin with it
    found = contest({"a": player()}, rounds=1)["a"]
    assert found.memory < 150 < len(held) / MIB < peak_memory()


def test_a_line_of_the_table():
    found = contest({"a": player(Sleeper)}, rounds=3)["a"]
    found.seconds = [4.0, 1.0, 2.0]
    line = found.row("a", target=2)
    assert (line["best"], line["median"], line["spread"]) == (1.0, 2.0, 0.75)
