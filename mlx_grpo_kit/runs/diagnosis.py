"""What is wrong with a training run, in words: what is seen, why it matters, and which setting leads out of it.

    for words in diagnose(steps):
        print(words)

`steps` are the records of a GRPO run: what `GRPOTrainer.train` yields, or the lines of its `metrics.jsonl`. A healthy
run gives an empty list. Only the latest steps and a few places of the past are looked at, so asking at every frame of
a long run costs no more than at its beginning. Pure Python: no MLX, no NumPy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

RECENT = 20  # steps that a symptom has to last
SOON = 10  # latest steps that are enough where there is no noise
MOST_TEXTS = 256  # latest completions that are read
PLACES, NEIGHBOURS = 12, 5  # where the past is looked at, and steps at each place, averaged because one step is noise
# Of loops that keep what the sampler said; TRL's name, and that without the mean.
SCORED_MINUS_SAMPLED = ("sampling/sampling_logp_difference/mean", "sampling/logp_difference")
PATIENCE = 3  # steps in a row without a symptom end it
FEW_PROMPTS = 8  # different ones, below which equal completions say little


class Finding(NamedTuple):
    """One thing that is wrong: a short name that stays the same while it lasts, and the words with today's numbers."""

    name: str
    words: str


def diagnose(steps: Iterable[Any]) -> list[str]:
    """What is wrong with a run, in words, the causes before their consequences; an empty list where nothing is.

    Args:
        steps: in order, objects with `.step`, `.metrics` and, if there are any, `.completions`, or dictionaries with
            "step" and the metrics beside it (lines of metrics.jsonl), "completions" too where they are at hand.
            Steps without a reward are passed over. A completion needs `.prompt` and `.completion` (or these keys).
    """
    return [finding.words for finding in findings(steps)]


def findings(steps: Iterable[Any]) -> list[Finding]:
    """`diagnose` with a name for each finding, by which a display knows whether it has been said before."""
    run = _Run(steps if isinstance(steps, Sequence) else list(steps))
    if not run.records or (math.isnan(run.now("reward")) and not run.has("frac_reward_zero_std")):
        return []
    found: dict[str, str] = {}
    for look in (_no_number, _nothing_scored):
        if words := look(run):
            return [Finding(look.__name__.strip("_"), words)]
    for look in LOOKS:
        words = look(run)
        if words and not found.keys() & FOLLOWS_FROM.get(look, set()):
            found[look.__name__.strip("_")] = words
    return [Finding(*each) for each in found.items()]


class Monitor:
    """Remembers of a run that goes on what `diagnose` looks at, and no more: of 100,000 steps a few hundred.

    For a display that is fed step by step: `add` each, and ask for `findings()` whenever a frame is drawn.
    """

    def __init__(self):
        self._records: list[SimpleNamespace] = []

    def add(self, step: int, metrics: Mapping[str, float], completions: Iterable[Any] = ()) -> None:
        """Take in a step. Of its completions only prompt, text and right answer are kept, and those not for long."""
        kept = [SimpleNamespace(prompt=_of(c, "prompt"), completion=_of(c, "completion"), answer=_answer(c))
                for c in completions]  # fmt: skip
        self._records.append(SimpleNamespace(step=step, metrics=dict(metrics), completions=kept))
        if len(self._records) > SOON:
            self._records[-SOON - 1].completions = []
        most = 4 * PLACES * NEIGHBOURS
        if len(self._records) > most + RECENT:  # forget every second stretch of the past
            past = self._records[:most]
            past = [record for i, record in enumerate(past) if i // NEIGHBOURS % 2 == 0]
            self._records = past + self._records[most:]

    def findings(self) -> list[Finding]:
        """What is wrong now."""
        return findings(self._records)


# -- what is looked at ------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """The records of a run, and the numbers in them that the looks below ask for."""

    records: Sequence[Any]

    def __post_init__(self):
        count = len(self.records)
        self.recent = [self.records[i] for i in range(max(count - RECENT, 0), count)]
        # Places of the past: the beginning, then evenly spaced up to the recent steps.
        last = max(count - RECENT - NEIGHBOURS, 0)
        starts = sorted({round(last * i / (PLACES - 1)) for i in range(PLACES)})
        self.past = [[self.records[i] for i in range(a, min(a + NEIGHBOURS, count))] for a in starts]

    @property
    def long_enough(self) -> bool:
        return len(self.records) >= RECENT

    def has(self, name: str) -> bool:
        return name in _metrics(self.recent[-1])

    def names(self) -> Iterable[str]:
        return _metrics(self.recent[-1]).keys()

    def now(self, name: str, count: int = RECENT) -> float:
        """The mean over the latest `count` steps; NaN where fewer than half of them have a value."""
        values = [_number(record, name) for record in self.recent[-count:]]
        return _mean(values) if 2 * sum(map(math.isnan, values)) <= len(values) else math.nan

    def before(self, name: str) -> list[tuple[float, int]]:
        """The places of the past: (mean, step)."""
        means = [(_mean(_number(record, name) for record in place), _step(place[0])) for place in self.past]
        return [each for each in means if not math.isnan(each[0])]

    def first(self, name: str) -> float:
        return next((mean for mean, _ in self.before(name)), math.nan)

    def best(self, name: str) -> tuple[float, int]:
        return max(self.before(name), default=(math.nan, 0))

    def since(self, test: Callable[[Mapping[str, Any]], bool]) -> int:
        """The step from which on `test` has held, a few exceptions aside."""
        first, missed = _step(self.records[-1]), 0
        for i in range(len(self.records) - 1, -1, -1):
            if test(_metrics(self.records[i])):
                first, missed = _step(self.records[i]), 0
            elif not math.isnan(_number(self.records[i], "reward")):
                missed += 1
                if missed == PATIENCE:
                    break
        return first

    def commonest(self) -> tuple[str, float, int, bool]:
        """(text, its share of the latest completions, different prompts, whether the right answers differ)."""
        latest = (c for record in reversed(self.recent) for c in _completions(record))
        each = list(islice(latest, MOST_TEXTS))
        if not each:
            return "", 0.0, 0, False
        text, times = Counter(_of(c, "completion") for c in each).most_common(1)[0]
        answers = {_answer(c) for c in each} - {None}
        return text, times / len(each), len({_of(c, "prompt") for c in each}), len(answers) > 1

    @property
    def solved(self) -> bool:
        """Whether rewards are as high as they ever were, and high for their spread: nine of ten right."""
        mean, spread = self.now("reward"), self.now("reward_std")
        return mean > 0 and mean >= 3 * spread and not mean < 0.9 * self.best("reward")[0]

    @property
    def is_tied(self) -> bool:
        return self.long_enough and self.now("frac_reward_zero_std") >= 0.9

    @property
    def has_learned(self) -> bool:
        """Whether it is solved, and was not so from the first step on, as a reward that is always the same seems."""
        return self.solved and not self.never_differed

    @property
    def never_differed(self) -> bool:
        return all(mean >= 0.9 for mean, _ in self.before("frac_reward_zero_std"))


def _metrics(record: Any) -> Mapping[str, Any]:
    return record if isinstance(record, Mapping) else record.metrics


def _step(record: Any) -> int:
    return _of(record, "step")


def _completions(record: Any) -> Sequence[Any]:
    return _of(record, "completions") or ()


def _of(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)


def _answer(completion: Any) -> str | None:
    problem = _of(completion, "problem")
    return _of(completion, "answer") if problem is None else _of(problem, "answer")


def _number(record: Any, name: str) -> float:
    """A metric; NaN where the step has none. A file has null for NaN."""
    value = _metrics(record).get(name)
    return math.nan if value is None else value


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


# -- the looks: each returns words where something is wrong, "" where not ---------------------------------------------


def _no_number(run: _Run) -> str:
    for name in ("loss", "grad_norm"):
        value = _metrics(run.recent[-1]).get(name, 0.0)
        if value is None or not math.isfinite(value):
            since = run.since(lambda metrics, name=name: not math.isfinite(_number(metrics, name)))
            return (
                f"{name} is no finite number since step {since}: every update from there on destroys the policy. "
                "Go back to a checkpoint before it, with a lower learning_rate; look for a log of 0, a division by 0, "
                "or an exp of something that the mask hides (0 * inf is NaN)."
            )
    return ""


def _nothing_scored(run: _Run) -> str:
    if all(math.isnan(_number(record, "reward")) for record in run.recent[-NEIGHBOURS:]):
        since = run.since(lambda metrics: math.isnan(_number(metrics, "reward")))
        return (
            f"No completion has had a reward since step {since}: every reward function returned None. Without rewards "
            "there are no advantages, and nothing is learned. Look at what the functions get: is this their task?"
        )
    return ""


def _truncated(run: _Run) -> str:
    share = run.now("completions/clipped_ratio", SOON)
    if len(run.records) < SOON or not share >= 0.5:
        return ""
    if run.first("completions/clipped_ratio") < 0.5 and _collapse(run):
        return ""  # answers used to end: that the one answer of now does not is the collapse's doing
    since = run.since(lambda metrics: _number(metrics, "completions/clipped_ratio") >= 0.5)
    longest = round(run.now("completions/max_length", SOON))
    tokens = f"{longest} token{'s' if longest > 1 else ''}"
    return (
        f"{_percent(share)} of the completions never end: they are cut off at {tokens}, since step {since}. An answer "
        "that comes later is never seen, and the end token is never rewarded. Raise max_completion_length, see that "
        "the model knows its end token (eos_token_id), or give stop_strings."
    )


def _collapse(run: _Run) -> str:
    text, share, prompts, answers_differ = run.commonest()
    if prompts < FEW_PROMPTS or share < (0.5 if run.is_tied else 0.9):
        return ""
    if run.has_learned and not answers_differ:
        return ""  # it may be the one right answer
    return (
        f"{_percent(share)} of the latest completions are the same text, {_quoted(text)}, to {prompts} different "
        f"prompts: the policy has collapsed to one answer (reward {_short(run.now('reward', SOON))}). All of a group "
        "alike leaves nothing to compare, so it does not come back by itself. Start again, or from an earlier "
        "checkpoint, with a lower learning_rate or with beta > 0, and see whether a reward pays for this text."
    )


def _reward_fell(run: _Run) -> str:
    names = ["reward"]
    if run.now("reward") < 0.9 * run.best("reward")[0]:  # else one may have been given up for more of another
        names += [name for name in run.names() if _is_reward_mean(name)]
    for name in names if run.long_enough else ():
        (best, at), now = run.best(name), run.now(name)
        if best > 0.05 and now < best / 2:
            what = "The mean reward" if name == "reward" else f"Reward {_function(name)!r}"
            return (
                f"{what} has fallen from {_short(best)} around step {at} to {_short(now)} in the latest {RECENT} "
                "steps: the updates destroy what the policy knew. Go back to a checkpoint from before, with a lower "
                "learning_rate (a tenth, to see the difference) or with beta > 0."
            )
    return ""


def _one_full_one_empty(run: _Run) -> str:
    """One reward function gives everything to everybody, while another gives nothing to anybody."""
    names = [_function(name) for name in run.names() if _is_reward_mean(name)]
    full = next((name for name in names if _share(run, name) > 0.95), None)
    empty = [name for name in names if _is_empty(run, name)]
    if not run.long_enough or full is None or not empty:
        return ""
    name = empty[0]
    since = run.since(lambda metrics: not _number(metrics, f"rewards/{name}/mean") > 0.3 * _spread(metrics, name))
    return (
        f"Reward {full!r} is given in full to (nearly) every completion, and {name!r} to (nearly) none, since step "
        f"{since} (means {_short(run.now(f'rewards/{full}/mean'))} and {_short(run.now(f'rewards/{name}/mean'))}). The "
        f"policy has found the easy reward and gets no signal from the other: it may be hacking {full!r}. Give less "
        f"for {full!r}, or only together with {name!r}; make {name!r} reachable: easier problems, partial credit. "
        f"(If {name!r} is a penalty, 0 is its best.)"
    )


def _is_reward_mean(name: str) -> bool:
    return name.startswith("rewards/") and name.endswith("/mean")


def _function(name: str) -> str:
    return name.removeprefix("rewards/").removesuffix("/mean")


def _spread(metrics: Mapping[str, Any], name: str) -> float:
    return _number(metrics, f"rewards/{name}/std")


def _share(run: _Run, name: str) -> float:
    """What share of completions get a reward of two values, 0 and more: from m = p c and s^2 = p (1 - p) c^2."""
    mean, spread = run.now(f"rewards/{name}/mean"), run.now(f"rewards/{name}/std")
    return mean**2 / (mean**2 + spread**2) if mean > 0 else 0.0


def _is_empty(run: _Run, name: str) -> bool:
    means = [mean for mean, _ in run.before(f"rewards/{name}/mean")]
    if "penal" in name.lower() or any(mean < 0 for mean in means) or run.now(f"rewards/{name}/mean") < 0:
        return False  # what punishes is at its best at 0
    learned = max(means, default=0.0) <= run.now(f"rewards/{name}/mean") > 0  # little, and more than ever before
    return _share(run, name) < 0.05 and not learned


def _tied(run: _Run) -> str:
    if not run.is_tied or run.has_learned:
        return ""
    since = run.since(lambda metrics: _number(metrics, "frac_reward_zero_std") >= 0.9)
    share = run.now("frac_reward_zero_std")
    groups = "all groups" if share > 0.995 else f"{_percent(share)} of the groups"
    seen = f"In {groups} all completions have had the same reward"
    text, share, *_ = run.commonest()
    commonest = f" The commonest completion, {_quoted(text)}, is {_percent(share)} of all." if share >= 0.2 else ""
    if run.never_differed:
        return (
            f"{seen} since step {since} (mean {_short(run.now('reward'))}): advantages are 0 and nothing is learned."
            f"{commonest} Either the task is too hard or solved already, or the reward does not look at the answer. "
            "Take problems of another difficulty, give partial credit, or raise num_generations."
        )
    return (
        f"{seen} since step {since}, and not because all are right (mean reward {_short(run.now('reward'))}): "
        f"advantages are 0 and nothing is learned any more.{commonest} Go back to an earlier checkpoint with a lower "
        "learning_rate, raise temperature or num_generations, or take problems that are neither too hard nor too easy."
    )


def _zero_gradient(run: _Run) -> str:
    if len(run.records) < SOON or any(_number(record, "grad_norm") != 0 for record in run.recent[-SOON:]):
        return ""
    if run.now("frac_reward_zero_std", SOON) == 1:
        return ""  # all groups are tied: said there, or success
    since = run.since(lambda metrics: _number(metrics, "grad_norm") == 0)
    return (
        f"The gradient is exactly 0 since step {since}, although rewards differ within groups: the policy does not "
        "move. Is every completion masked (mask_truncated_completions), every token clipped, or the forward pass "
        "outside of the function that is differentiated?"
    )


def _entropy_gone(run: _Run) -> str:
    now, first = run.now("entropy"), run.first("entropy")
    if not run.long_enough or not (now < 0.01 and first > 5 * now) or run.solved:
        return ""
    since = run.since(lambda metrics: _number(metrics, "entropy") < 0.01)
    return (
        f"Entropy is {_short(now)} nats a token since step {since} (it began at {_short(first)}), with a mean reward "
        f"of {_short(run.now('reward'))}: the policy is certain and wrong, and no longer tries anything else. Lower "
        "learning_rate, raise temperature, epsilon_high or beta."
    )


def _entropy_runs_away(run: _Run) -> str:
    now, first = run.now("entropy"), run.first("entropy")
    if not run.long_enough or not (now > 2 * first and now > 0.5 and run.now("reward") <= run.first("reward")):
        return ""
    return (
        f"Entropy has risen from {_short(first)} to {_short(now)} nats a token, and the reward has not "
        f"({_short(run.first('reward'))} to {_short(run.now('reward'))}): the policy comes nearer to drawing at "
        "random. "
        "Are the tokens scored at their own places and at the temperature they were drawn with? Lower learning_rate."
    )


def _length_runs_away(run: _Run) -> str:
    name = "completions/mean_length"
    now, first = run.now(name), run.first(name)
    if not run.long_enough or not (now > 2 * first and run.now("reward") <= run.first("reward") + 0.02):
        return ""
    return (
        f"Completions have grown from {first:.1f} to {now:.1f} tokens, and the reward has not "
        f"({_short(run.first('reward'))} to {_short(run.now('reward'))}). Does a reward pay for length, or does the "
        "loss? Try loss_type='dapo' or 'dr_grpo', or a penalty for what is too long."
    )


def _clipped_away(run: _Run) -> str:
    share = run.now("clip_ratio/region_mean", SOON)
    if len(run.records) < SOON or not share > 0.25:
        return ""
    since = run.since(lambda metrics: _number(metrics, "clip_ratio/region_mean") > 0.25)
    return (
        f"{_percent(share)} of the tokens are clipped since step {since}: their ratio has left the region in which "
        "they count, so the batch is used for longer than it is good for. Fewer num_iterations or a lower "
        "learning_rate; if num_iterations is 1, old and new log-probabilities are of different tokens or models."
    )


def _kl_runs_away(run: _Run) -> str:
    now = run.now("kl", SOON)
    if len(run.records) < SOON or not now > 2:
        return ""
    since = run.since(lambda metrics: _number(metrics, "kl") > 2)
    return (
        f"KL to the reference policy is {_short(now)} a token since step {since}: the policy writes what the reference "
        "never would. Lower learning_rate or raise beta; if it was so from the first step on, the reference is another "
        "model, or scored at another temperature."
    )


def _reference_moves(run: _Run) -> str:
    if not run.long_enough or not run.has("kl") or not run.now("grad_norm") > 0:
        return ""
    if any(_number(record, "kl") != 0 for record in run.recent):
        return ""
    return (
        f"KL to the reference policy is exactly 0 since step {run.since(lambda metrics: _number(metrics, 'kl') == 0)}, "
        "while the gradient is not: the reference moves along with the policy, so beta does nothing. Keep a copy of "
        "the first parameters, and not the object that is trained."
    )


def _scored_otherwise(run: _Run) -> str:
    name = next((name for name in SCORED_MINUS_SAMPLED if run.has(name)), "")
    apart = run.now(name, SOON) if name else 0.0
    if len(run.records) < SOON or not apart > 0.02:
        return ""
    since = run.since(lambda metrics: _number(metrics, name) > 0.02)
    return (
        f"Log-probabilities as scored and as sampled differ by {_short(apart)} a token since step {since}: sampler and "
        "trainer do not speak of the same distribution. Look for another temperature, tokens one place off, padding "
        "without a mask, other weights or lower precision in the sampler."
    )


LOOKS = (
    _truncated, _collapse, _reward_fell, _one_full_one_empty, _tied, _zero_gradient, _entropy_gone, _entropy_runs_away,
    _length_runs_away, _scored_otherwise, _clipped_away, _kl_runs_away, _reference_moves,
)  # fmt: skip

# Said already by the finding that it is a consequence of.
FOLLOWS_FROM: dict[Callable[[_Run], str], set[str]] = {
    _tied: {"truncated", "collapse"},
    _zero_gradient: {"truncated", "collapse", "tied"},
    _entropy_gone: {"collapse", "tied"},
    _length_runs_away: {"truncated"},
    _clipped_away: {"scored_otherwise"},
}


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _short(value: float) -> str:
    return f"{value:.{3 if abs(value) >= 0.01 else 2}g}" if abs(value) >= 1e-4 else "0"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
