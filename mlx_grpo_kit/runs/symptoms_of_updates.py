"""Symptoms in the updates: they are too large, too small, held back by a penalty, clipped away, or missing."""

from __future__ import annotations

import math

from mlx_grpo_kit.runs.history import (
    NEIGHBOURS,
    RECENT,
    SOON,
    History,
    completions_of,
    correlation_of,
    mean_of,
    metrics_of,
    number_of,
    short,
    step_of,
)
from mlx_grpo_kit.runs.symptoms_of_rewards import function_of, is_reward_mean

LONG = 3 * RECENT  # steps after which something should have moved
CHANCE = 2.5  # standard errors within which two means count as equal
NO_CHANCE = 4.0  # standard errors beyond which a fall is not chance; more than CHANCE, since the best point was lucky


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


def bonus_pays(run: History) -> str:
    """Report that an entropy bonus makes the policy random."""
    now, first = run.now("entropy", SOON), run.first("entropy")
    if len(run.records) < SOON or not (run.now("entropy_coef", SOON) > 0 and now > 2 * run.start("entropy")):
        return ""
    if not (now > 0.5 and run.now("reward", SOON) <= run.start("reward")):
        return ""
    return (
        f"Entropy has risen from {short(first)} to {short(now)} nats per token, and the reward has not risen "
        f"({short(run.start('reward'))} to {short(run.now('reward', SOON))}): the entropy bonus pays more for random "
        "tokens than the reward pays for good ones. Lower entropy_coef "
        f"(now {run.now('entropy_coef', SOON):.3g}; 0.001 to 0.01 is usual)."
    )


def reward_fell(run: History) -> str:
    if words := _fell_at_once(run):
        return words
    names = ["reward"]
    if run.now("reward") < 0.9 * run.best("reward")[0]:  # else the policy may have traded one reward for another
        names += [name for name in run.names() if is_reward_mean(name)]
    for name in names if run.long_enough else ():
        (best, at), now = run.best(name), run.now(name)
        error = run.noise(name) * math.sqrt(1 / NEIGHBOURS + 1 / RECENT)
        if best > 0.05 and now < best / 2 and best - now > NO_CHANCE * error:
            what = "The mean reward" if name == "reward" else f"Reward {function_of(name)!r}"
            return (
                f"{what} has fallen from {short(best)} around step {at} to {short(now)} in the latest {RECENT} "
                "steps: the updates destroy what the policy knew. Go back to an earlier checkpoint, with a lower "
                f"learning_rate ({_tenth(run)}) or with beta > 0."
            )
    return ""


def _fell_at_once(run: History) -> str:
    """Report that the first updates destroyed the policy: it has lost its reward, and completions look different."""
    start, spread, now = run.start("reward"), run.start("reward_std"), run.now("reward", SOON)
    count = len(completions_of(run.records[0]))
    if len(run.records) < SOON or not (start > 3 * spread / math.sqrt(max(count, 1)) and now < start / 2):
        return ""
    cut_off, ties = "completions/clipped_ratio", "frac_reward_zero_std"
    never_ends = run.start(cut_off) < 0.25 and run.now(cut_off, SOON) > 0.5
    all_wrong = run.start(ties) < 0.9 and run.now(ties, SOON) > 0.95
    if not (never_ends or all_wrong or run.commonest[1] > 0.5):
        return ""
    first = step_of(run.records[0])
    if run.since(lambda metrics: number_of(metrics, "reward") < start / 2) > first + SOON:
        return ""
    return (
        f"The mean reward was {short(start)} in step {first} and is {short(now)} in the latest "
        f"{SOON} steps: the first updates destroyed what the policy knew. They are far too large: start again with a "
        f"lower learning_rate ({_tenth(run)})."
    )


def _tenth(run: History) -> str:
    rate = run.now("learning_rate", SOON)
    return "try a tenth" if math.isnan(rate) else f"now {rate:.3g}; try a tenth"


def zero_gradient(run: History) -> str:
    if len(run.records) < SOON or any(number_of(record, "grad_norm") != 0 for record in run.recent[-SOON:]):
        return ""
    if run.now("frac_reward_zero_std", SOON) == 1:
        return ""  # all groups are tied: `tied` reports it, unless the task is solved
    since = run.since(lambda metrics: number_of(metrics, "grad_norm") == 0)
    return (
        f"The gradient has been exactly 0 since step {since}, although rewards differ within groups: the policy does "
        "not change. Is every completion masked (mask_truncated_completions)? Is every token clipped? Is the forward "
        "pass outside the function that is differentiated?"
    )


def clipped_away(run: History) -> str:
    share = run.now("clip_ratio/region_mean", SOON)
    if len(run.records) < SOON or not share > 0.2:
        return ""
    since = run.since(lambda metrics: number_of(metrics, "clip_ratio/region_mean") > 0.2)
    return (
        f"{share:.0%} of the tokens are clipped, and many have been since step {since}: their ratio has left "
        "the clip range, so they no longer count. Either the range is too narrow (epsilon, 0.2 is usual), or the batch "
        "is used for too many or too large updates (num_iterations, learning_rate). If num_iterations is 1, old and "
        "new log-probabilities belong to different tokens or models."
    )


def held_still(run: History) -> str:
    """Report that the KL penalty makes up nearly all of the loss and its gradient, and the reward does not rise."""
    if len(run.records) < 2 * RECENT or not run.now("kl") > 0 or not run.moved("reward") < CHANCE:
        return ""
    losses, kls = (([number_of(record, name) for record in run.recent]) for name in ("loss", "kl"))
    correlation, slope = correlation_of(kls, losses)
    longer = run.now("grad_norm") / run.start("grad_norm") if run.start("grad_norm") else math.nan
    if not (correlation > 0.9 and longer > 3 and mean_of(losses) > slope * mean_of(kls) / 2):
        return ""
    reward = mean_of(run.values("reward", first=True))
    return (
        f"The KL penalty holds the policy at its reference: the loss is nearly all penalty (about {slope:.2g} times "
        f"KL), the gradient is {longer:.0f} times as long as in step {step_of(run.records[0])}, when the penalty was "
        f"still 0, and the reward has not risen ({short(reward)} to {short(run.now('reward'))}). Lower beta (0 to 0.1 "
        "is usual)."
    )


def nothing_moves(run: History) -> str:
    """Report that reward, entropy and length have not changed, because the updates are too small."""
    names = ("reward", "entropy", "completions/mean_length")
    if len(run.records) < LONG or run.solved or not run.now("grad_norm") > 0:
        return ""
    if not all(abs(run.moved(name)) < CHANCE for name in names):
        return ""
    before = mean_of(run.values("entropy", first=True))
    seen = CHANCE * run.noise("entropy") * math.sqrt(2 / RECENT)
    if not seen < 0.1 * before:
        return ""  # too noisy to see anything
    rate = run.now("learning_rate")
    now = "" if math.isnan(rate) else f" (now {rate:.3g}; try ten times as much)"
    reward = mean_of(run.values("reward", first=True))
    return (
        f"Nothing has moved in {len(run.records)} steps: in the first {RECENT} the mean reward was {short(reward)} and "
        f"the entropy {short(before)}; in the latest {RECENT} they are {short(run.now('reward'))} and "
        f"{short(run.now('entropy'))}, a difference that chance explains. There is a gradient, so the updates are too "
        f"small to have a visible effect. Raise learning_rate{now}."
    )


def kl_runs_away(run: History) -> str:
    now = run.now("kl", SOON)
    if len(run.records) < SOON or not now > 2:
        return ""
    since = run.since(lambda metrics: number_of(metrics, "kl") > 2)
    return (
        f"KL to the reference policy is {short(now)} per token, and has been high since step {since}: the policy "
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
