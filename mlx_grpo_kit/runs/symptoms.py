"""Symptoms of a sick run: each function returns a message if the run has one symptom, else an empty text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from mlx_grpo_kit.runs.history import NEIGHBOURS, RECENT, SOON, History, metrics_of, number_of

FEW_PROMPTS = 8  # with fewer different prompts, equal completions mean little
# The metric of loops that keep the sampler's log-probabilities: TRL's name, and the name without the mean.
SCORED_MINUS_SAMPLED = ("sampling/sampling_logp_difference/mean", "sampling/logp_difference")


def no_number(run: History) -> str:
    for name in ("loss", "grad_norm"):
        value = metrics_of(run.recent[-1]).get(name, 0.0)
        if value is None or not math.isfinite(value):
            since = run.since(lambda metrics, name=name: not math.isfinite(number_of(metrics, name)))
            return (
                f"{name} has not been finite since step {since}: every update from that step on destroys the policy. "
                "Go back to a checkpoint before it, with a lower learning_rate. Look for a log of 0, a division by 0, "
                "or an exp of a value that the mask hides (0 * inf is NaN)."
            )
    return ""


def nothing_scored(run: History) -> str:
    if all(math.isnan(number_of(record, "reward")) for record in run.recent[-NEIGHBOURS:]):
        since = run.since(lambda metrics: math.isnan(number_of(metrics, "reward")))
        return (
            f"No completion has had a reward since step {since}: every reward function returned None. Without rewards "
            "there are no advantages, and nothing is learned. Check what the functions get: is it the task they expect?"
        )
    return ""


def truncated(run: History) -> str:
    share = run.now("completions/clipped_ratio", SOON)
    if len(run.records) < SOON or not share >= 0.5:
        return ""
    if run.first("completions/clipped_ratio") < 0.5 and collapse(run):
        return ""  # answers used to end: `collapse` reports the reason
    since = run.since(lambda metrics: number_of(metrics, "completions/clipped_ratio") >= 0.5)
    longest = round(run.now("completions/max_length", SOON))
    tokens = f"{longest} token{'s' if longest > 1 else ''}"
    return (
        f"{_percent(share)} of the completions never end: they are cut off at {tokens}, since step {since}. Rewards "
        "never see an answer that comes later, and the end token is never rewarded. Raise max_completion_length, "
        "check that the model has the right end token (eos_token_id), or set stop_strings."
    )


def collapse(run: History) -> str:
    text, share, prompts, answers_differ = run.commonest()
    if prompts < FEW_PROMPTS or share < (0.5 if run.is_tied else 0.9):
        return ""
    if run.has_learned and answers_differ is False:
        return ""  # the one right answer
    if run.has_learned:
        return (
            f"{_percent(share)} of the latest completions are the same text, {_quoted(text)}, to {prompts} different "
            f"prompts, and the mean reward is {_short(run.now('reward', SOON))}. Unless this is the right answer to "
            "all of them, the reward does not look at the answer: the policy has found a text that always pays. "
            "Correct the reward, and start again from an earlier checkpoint."
        )
    return (
        f"{_percent(share)} of the latest completions are the same text, {_quoted(text)}, to {prompts} different "
        f"prompts: the policy has collapsed to one answer (reward {_short(run.now('reward', SOON))}). If all "
        "completions of a group are equal, there is nothing to compare, so the policy does not recover by itself. "
        "Start again, or go back to an earlier checkpoint, with a lower learning_rate or with beta > 0, and check "
        "whether a reward pays for this text."
    )


def reward_fell(run: History) -> str:
    names = ["reward"]
    if run.now("reward") < 0.9 * run.best("reward")[0]:  # otherwise it may have traded one reward for another
        names += [name for name in run.names() if _is_reward_mean(name)]
    for name in names if run.long_enough else ():
        (best, at), now = run.best(name), run.now(name)
        if best > 0.05 and now < best / 2:
            what = "The mean reward" if name == "reward" else f"Reward {_function(name)!r}"
            return (
                f"{what} has fallen from {_short(best)} around step {at} to {_short(now)} in the latest {RECENT} "
                "steps: the updates destroy what the policy knew. Go back to an earlier checkpoint, with a lower "
                "learning_rate (try a tenth) or with beta > 0."
            )
    return ""


def one_full_one_empty(run: History) -> str:
    """One reward function pays every completion in full, while another pays none."""
    names = [_function(name) for name in run.names() if _is_reward_mean(name)]
    full = next((name for name in names if _share(run, name) > 0.95), None)
    empty = [name for name in names if _is_empty(run, name)]
    if not run.long_enough or full is None or not empty:
        return ""
    name = empty[0]
    since = run.since(lambda metrics: not number_of(metrics, f"rewards/{name}/mean") > 0.3 * _spread(metrics, name))
    return (
        f"Reward {full!r} is given in full to (nearly) every completion, and {name!r} to (nearly) none, since step "
        f"{since} (means {_short(run.now(f'rewards/{full}/mean'))} and {_short(run.now(f'rewards/{name}/mean'))}). The "
        f"policy has found the easy reward and gets no signal from the other: it may be hacking {full!r}. Pay less "
        f"for {full!r}, or pay it only together with {name!r}. Make {name!r} reachable with easier problems or "
        f"partial credit. (If {name!r} is a penalty, 0 is its best value.)"
    )


def _is_reward_mean(name: str) -> bool:
    return name.startswith("rewards/") and name.endswith("/mean")


def _function(name: str) -> str:
    return name.removeprefix("rewards/").removesuffix("/mean")


def _spread(metrics: Mapping[str, Any], name: str) -> float:
    return number_of(metrics, f"rewards/{name}/std")


def _share(run: History, name: str) -> float:
    """The share p of completions that are rewarded, if a reward is 0 or c: from m = p c and s^2 = p (1 - p) c^2."""
    mean, spread = run.now(f"rewards/{name}/mean"), run.now(f"rewards/{name}/std")
    return mean**2 / (mean**2 + spread**2) if mean > 0 else 0.0


def _is_empty(run: History, name: str) -> bool:
    means = [mean for mean, _ in run.before(f"rewards/{name}/mean")]
    if "penal" in name.lower() or any(mean < 0 for mean in means) or run.now(f"rewards/{name}/mean") < 0:
        return False  # the best value of a penalty is 0
    learned = max(means, default=0.0) <= run.now(f"rewards/{name}/mean") > 0  # little, but more than ever
    return _share(run, name) < 0.05 and not learned


def tied(run: History) -> str:
    if not run.is_tied or run.has_learned:
        return ""
    since = run.since(lambda metrics: number_of(metrics, "frac_reward_zero_std") >= 0.9)
    share = run.now("frac_reward_zero_std")
    groups = "all groups" if share > 0.995 else f"{_percent(share)} of the groups"
    seen = f"In {groups} all completions have had the same reward"
    text, share, *_ = run.commonest()
    commonest = f" The most common one is {_quoted(text)}, with {_percent(share)} of all." if share >= 0.2 else ""
    if run.never_differed:
        return (
            f"{seen} since step {since} (mean {_short(run.now('reward'))}): advantages are 0 and nothing is learned."
            f"{commonest} Either the task is too hard or already solved, or the reward does not look at the answer. "
            "Use problems of another difficulty, give partial credit, or raise num_generations."
        )
    return (
        f"{seen} since step {since}, but not because all are right (mean reward {_short(run.now('reward'))}): "
        f"advantages are 0 and nothing is learned any more.{commonest} Go back to an earlier checkpoint with a lower "
        "learning_rate, raise temperature or num_generations, or use problems that are neither too hard nor too easy."
    )


def zero_gradient(run: History) -> str:
    if len(run.records) < SOON or any(number_of(record, "grad_norm") != 0 for record in run.recent[-SOON:]):
        return ""
    if run.now("frac_reward_zero_std", SOON) == 1:
        return ""  # all groups are tied: `tied` reports it, or it is success
    since = run.since(lambda metrics: number_of(metrics, "grad_norm") == 0)
    return (
        f"The gradient has been exactly 0 since step {since}, although rewards differ within groups: the policy does "
        "not change. Is every completion masked (mask_truncated_completions)? Is every token clipped? Is the forward "
        "pass outside the function that is differentiated?"
    )


def entropy_gone(run: History) -> str:
    now, first = run.now("entropy"), run.first("entropy")
    if not run.long_enough or not (now < 0.01 and first > 5 * now) or run.solved:
        return ""
    since = run.since(lambda metrics: number_of(metrics, "entropy") < 0.01)
    return (
        f"Entropy has been low since step {since}: it is {_short(now)} nats per token (at the start {_short(first)}), "
        f"with a mean reward of {_short(run.now('reward'))}. The policy is certain and wrong, and no longer tries "
        "anything else. Lower learning_rate, or raise temperature, epsilon_high or beta."
    )


def entropy_runs_away(run: History) -> str:
    now, first = run.now("entropy"), run.first("entropy")
    if not run.long_enough or not (now > 2 * first and now > 0.5 and run.now("reward") <= run.first("reward")):
        return ""
    return (
        f"Entropy has risen from {_short(first)} to {_short(now)} nats per token, and the reward has not risen "
        f"({_short(run.first('reward'))} to {_short(run.now('reward'))}): the policy becomes more random. Are the "
        "tokens scored at their own positions, and at the temperature of the sampler? Lower learning_rate."
    )


def length_runs_away(run: History) -> str:
    name = "completions/mean_length"
    now, first = run.now(name), run.first(name)
    if not run.long_enough or not (now > 2 * first and run.now("reward") <= run.first("reward") + 0.02):
        return ""
    return (
        f"Completions have grown from {first:.1f} to {now:.1f} tokens, and the reward has not "
        f"risen ({_short(run.first('reward'))} to {_short(run.now('reward'))}). Does a reward or the loss favour "
        "length? Try loss_type='dapo' or 'dr_grpo', or a penalty for completions that are too long."
    )


def clipped_away(run: History) -> str:
    share = run.now("clip_ratio/region_mean", SOON)
    if len(run.records) < SOON or not share > 0.25:
        return ""
    since = run.since(lambda metrics: number_of(metrics, "clip_ratio/region_mean") > 0.25)
    return (
        f"{_percent(share)} of the tokens are clipped, and many have been since step {since}: their ratio has left "
        "the clip range, so the batch is used for too many updates. Lower num_iterations or learning_rate. If "
        "num_iterations is 1, old and new log-probabilities belong to different tokens or models."
    )


def kl_runs_away(run: History) -> str:
    now = run.now("kl", SOON)
    if len(run.records) < SOON or not now > 2:
        return ""
    since = run.since(lambda metrics: number_of(metrics, "kl") > 2)
    return (
        f"KL to the reference policy is {_short(now)} per token, and has been high since step {since}: the policy "
        "writes texts that the reference never would. Lower learning_rate or raise beta. If KL was high from the "
        "first step on, the reference is another model, or it is scored at another temperature."
    )


def reference_moves(run: History) -> str:
    if not run.long_enough or not run.has("kl") or not run.now("grad_norm") > 0:
        return ""
    if any(number_of(record, "kl") != 0 for record in run.recent):
        return ""
    since = run.since(lambda metrics: number_of(metrics, "kl") == 0)
    return (
        f"KL to the reference policy has been exactly 0 since step {since}, "
        "while the gradient is not 0: the reference changes with the policy, so beta has no effect. Keep a copy of "
        "the initial parameters, not the object that is trained."
    )


def scored_otherwise(run: History) -> str:
    name = next((name for name in SCORED_MINUS_SAMPLED if run.has(name)), "")
    apart = run.now(name, SOON) if name else 0.0
    if len(run.records) < SOON or not apart > 0.02:
        return ""
    since = run.since(lambda metrics: number_of(metrics, name) > 0.02)
    return (
        f"The log-probabilities of scorer and sampler differ by {_short(apart)} per token, since step {since}: they do "
        "not describe the same distribution. Look for a different temperature, tokens shifted by one position, "
        "padding without a mask, other weights, or lower precision in the sampler."
    )


LOOKS = (
    truncated, collapse, reward_fell, one_full_one_empty, tied, zero_gradient, entropy_gone, entropy_runs_away,
    length_runs_away, scored_otherwise, clipped_away, kl_runs_away, reference_moves,
)  # fmt: skip

# A finding is not reported if one of its causes is.
FOLLOWS_FROM: dict[Callable[[History], str], set[str]] = {
    tied: {"truncated", "collapse"},
    zero_gradient: {"truncated", "collapse", "tied"},
    entropy_gone: {"collapse", "tied"},
    length_runs_away: {"truncated"},
    clipped_away: {"scored_otherwise"},
}


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _short(value: float) -> str:
    return f"{value:.{3 if abs(value) >= 0.01 else 2}g}" if abs(value) >= 1e-4 else "0"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:39]}…")
