"""Symptoms in the rewards: rewards that fail, never differ, or pay for something other than right answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mlx_grpo_kit.runs.history import (
    NEIGHBOURS,
    SOON,
    History,
    alike_share,
    groups_of,
    mean_of,
    number_of,
    quoted,
    right_share,
    short,
)

FEW_PROMPTS = 8  # with fewer different prompts, equal completions prove little


def nothing_scored(run: History) -> str:
    if all(math.isnan(number_of(record, "reward")) for record in run.recent[-NEIGHBOURS:]):
        since = run.since(lambda metrics: math.isnan(number_of(metrics, "reward")))
        return (
            f"No completion has had a reward since step {since}: every reward function returned None. Without rewards "
            "there are no advantages, and nothing is learned. Are the reward functions meant for this task?"
        )
    return ""


def reward_fails(run: History) -> str:
    for name in run.names() if len(run.records) >= SOON else ():
        if name.startswith("rewards/") and name.endswith("/failed") and (share := run.now(name, SOON)) > 0.1:
            since = run.since(lambda metrics, name=name: number_of(metrics, name) > 0.1)
            return (
                f"Reward {function_of(name)!r} has failed for {share:.0%} of the completions since step {since}: "
                "it raised an error or returned a number that is not finite. These completions are judged without it, "
                "and the policy learns only from the others. Correct the function; with on_reward_error='stop' the "
                "run ends at the first failure and shows the completion."
            )
    return ""


def paid_for_something_else(run: History) -> str:
    """Report that completions used to be right and no longer are, although the reward has not fallen."""
    if len(run.records) < SOON or not run.now("reward", SOON) >= run.first("reward"):
        return ""
    before, now = right_share(run.earliest), right_share(run.latest)
    if math.isnan(before + now):
        before, now = run.first("accuracy"), run.now("accuracy", SOON)
    if not (before >= 0.2 and now < before / 3):
        return ""
    text, share, *_ = run.commonest
    commonest = f" The most common completion is {quoted(text)}, with {share:.0%} of all." if share >= 0.2 else ""
    return (
        f"The reward pays for something other than right answers: in the first steps {before:.0%} of the "
        f"completions were right, in the latest {now:.0%}, and the mean reward went from "
        f"{short(run.first('reward'))} to {short(run.now('reward', SOON))}.{commonest} If that is not what you want, "
        "read completions, correct the reward, and start again from an earlier checkpoint."
    )


def collapse(run: History) -> str:
    text, share, prompts, answers_differ = run.commonest
    if prompts < FEW_PROMPTS or share < (0.5 if run.is_tied else 0.9):
        return ""
    if run.has_learned and answers_differ is False:
        return ""  # the one right answer
    if run.has_learned:
        return (
            f"{share:.0%} of the latest completions are the same text, {quoted(text)}, for {prompts} different "
            f"prompts, and the mean reward is {short(run.now('reward', SOON))}. Unless this is the right answer to "
            "all of them, the reward does not look at the answer: the policy has found a text that always pays. "
            "Correct the reward, and start again from an earlier checkpoint."
        )
    return (
        f"{share:.0%} of the latest completions are the same text, {quoted(text)}, for {prompts} different "
        f"prompts: the policy has collapsed to one answer (reward {short(run.now('reward', SOON))}). If all "
        "completions of a group are equal, there is nothing to compare, so the policy does not recover by itself. "
        "Start again, or go back to an earlier checkpoint, with a lower learning_rate or with beta > 0, and check "
        "whether a reward pays for this text."
    )


def one_full_one_empty(run: History) -> str:
    """Report that one reward function pays every completion in full, while another pays none."""
    names = [function_of(name) for name in run.names() if is_reward_mean(name)]
    full = next((name for name in names if _share(run, name) > 0.95), None)
    empty = [name for name in names if _is_empty(run, name)]
    if not run.long_enough or full is None or not empty:
        return ""
    name = empty[0]
    since = run.since(lambda metrics: not number_of(metrics, f"rewards/{name}/mean") > 0.3 * _spread(metrics, name))
    return (
        f"Since step {since}, (nearly) every completion has had reward {full!r} in full, and (nearly) none has had "
        f"{name!r} (means {short(run.now(f'rewards/{full}/mean'))} and {short(run.now(f'rewards/{name}/mean'))}). The "
        f"policy has found the easy reward and gets no signal from the other: it may be hacking {full!r}. Pay less "
        f"for {full!r}, or pay it only together with {name!r}. Make {name!r} reachable with easier problems or "
        f"partial credit. (If {name!r} is a penalty, 0 is its best value.)"
    )


def is_reward_mean(name: str) -> bool:
    """True for the metric of one reward function's mean."""
    return name.startswith("rewards/") and name.endswith("/mean")


def function_of(name: str) -> str:
    """Return a reward function's name: "rewards/correct/mean" -> "correct"."""
    return name.removeprefix("rewards/").rpartition("/")[0]


def _spread(metrics: Mapping[str, Any], name: str) -> float:
    return number_of(metrics, f"rewards/{name}/std")


def _share(run: History, name: str) -> float:
    """Estimate the share p of rewarded completions, if a reward is 0 or c: m = p c and s^2 = p (1 - p) c^2."""
    mean, spread = run.now(f"rewards/{name}/mean"), run.now(f"rewards/{name}/std")
    return mean**2 / (mean**2 + spread**2) if mean > 0 else 0.0


def _is_empty(run: History, name: str) -> bool:
    means = [mean for mean, _ in run.before(f"rewards/{name}/mean")]
    if "penal" in name.lower() or any(mean < 0 for mean in means) or run.now(f"rewards/{name}/mean") < 0:
        return False  # the best value of a penalty is 0
    learned = max(means, default=0.0) <= run.now(f"rewards/{name}/mean") > 0  # little, but more than ever
    return _share(run, name) < 0.05 and not learned


def no_exploration(run: History) -> str:
    """Report that all completions of a group have been the same text since the first step."""
    if len(run.records) < SOON or run.has_learned:
        return ""
    latest, earliest = groups_of(run.latest), groups_of(run.earliest)
    share = alike_share(latest)
    if min(len(latest), len(earliest)) < FEW_PROMPTS or not min(share, alike_share(earliest)) >= 0.75:
        return ""
    entropy = run.now("entropy", SOON)
    if entropy < 0.1:
        why = (
            f"Entropy is {short(entropy)} nats per token: the policy is nearly certain of each token. Raise "
            "temperature (1 is the model's own distribution). If it is 1 already, the model knows only one answer to "
            "each problem."
        )
    else:
        of = "" if math.isnan(entropy) else f", although the policy itself is not certain (entropy {short(entropy)})"
        why = f"Sampling takes the likeliest token{of}. Loosen top_k, top_p or min_p, or raise temperature."
    return (
        f"In {share:.0%} of the groups all completions are the same text, as in the first steps: "
        f"there is nothing to compare, so little or nothing is learned. {why}"
    )


def tied(run: History) -> str:
    if not run.is_tied or run.has_learned:
        return ""
    since = run.since(lambda metrics: number_of(metrics, "frac_reward_zero_std") >= 0.9)
    share = run.now("frac_reward_zero_std")
    groups = "all groups" if share > 0.995 else f"{share:.0%} of the groups"
    seen = f"In {groups} all completions have had the same reward"
    text, share, *_ = run.commonest
    commonest = f" The most common one is {quoted(text)}, with {share:.0%} of all." if share >= 0.2 else ""
    if run.never_differed:
        return (
            f"{seen} since step {since} (mean {short(run.now('reward'))}): advantages are 0 and nothing is learned."
            f"{commonest} {_why_tied(run)}"
        )
    return (
        f"{seen} since step {since}, but not because all are right (mean reward {short(run.now('reward'))}): "
        f"advantages are 0 and nothing is learned any more.{commonest} Go back to an earlier checkpoint with a lower "
        "learning_rate, raise temperature or num_generations, or use problems that are neither too hard nor too easy."
    )


def _why_tied(run: History) -> str:
    right = right_share(run.latest)
    if mean_of(0 < right_share(group) < 1 for group in groups_of(run.latest)) > 0.1:
        return (
            f"{right:.0%} of the completions are right, but they get the same reward as the wrong ones in their "
            "groups: the reward does not look at the answer. Correct the reward function."
        )
    if right < 0.05:
        return (
            f"{right:.0%} of the completions are right: the problems are too hard for this policy. Use easier "
            "ones, give partial credit, or raise num_generations."
        )
    if right > 0.95:
        return f"{right:.0%} of the completions are right: the task is already solved. Use harder problems."
    return (
        "Either the task is too hard or already solved, or the reward does not look at the answer. "
        "Use problems of another difficulty, give partial credit, or raise num_generations."
    )
