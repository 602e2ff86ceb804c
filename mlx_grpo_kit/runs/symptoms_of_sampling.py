"""Symptoms in the sampling: completions do not end, are too random or too certain, or are scored differently."""

from __future__ import annotations

import math

from mlx_grpo_kit.runs.history import SOON, History, number_of, short
from mlx_grpo_kit.runs.symptoms_of_rewards import collapse
from mlx_grpo_kit.runs.symptoms_of_updates import reward_fell

SCORED_MINUS_SAMPLED = "sampling/sampling_logp_difference/mean"
"""The metric of the difference between the log-probabilities that scorer and sampler give to a token."""

MUCH_ENTROPY = 1.5  # nats per token, the entropy of 4.5 equally likely tokens


def scored_otherwise(run: History) -> str:
    apart = run.now(SCORED_MINUS_SAMPLED, SOON)
    if len(run.records) < SOON or not apart > 0.02:
        return ""
    since = run.since(lambda metrics: number_of(metrics, SCORED_MINUS_SAMPLED) > 0.02)
    return (
        f"The log-probabilities of scorer and sampler have differed since step {since}, now by {short(apart)} per "
        "token. They do not describe the same distribution. Look for a different temperature, tokens shifted by one "
        "position, padding without a mask, different weights, or lower precision in the sampler."
    )


def too_random(run: History) -> str:
    """Report that tokens have been drawn almost at random since the first step, and that rewards are rare."""
    now, first = run.now("entropy", SOON), run.start("entropy")
    reward, spread = run.now("reward", SOON), run.now("reward_std", SOON)
    if len(run.records) < SOON or not (min(now, first) >= MUCH_ENTROPY and (reward == 0 or reward < spread)):
        return ""
    since = run.since(lambda metrics: number_of(metrics, "entropy") >= MUCH_ENTROPY)
    return (
        f"Entropy has been high since step {since}: it is {short(now)} nats per token, as if each token were drawn "
        f"from {math.exp(now):.0f} equally likely ones, and the mean reward is {short(reward)}. Lower temperature (1 "
        "is the model's own distribution). If it is 1 already, the model does not know this kind of text, or its "
        "weights are wrong."
    )


def truncated(run: History) -> str:
    share = run.now("completions/clipped_ratio", SOON)
    if len(run.records) < SOON or not share >= 0.5:
        return ""
    if run.start("completions/clipped_ratio") < 0.5 and (reward_fell(run) or collapse(run)):
        return ""  # answers used to end, and no longer do because something else destroyed the policy
    since = run.since(lambda metrics: number_of(metrics, "completions/clipped_ratio") >= 0.5)
    longest = round(run.now("completions/max_length", SOON))
    tokens = f"{longest} token{'s' if longest > 1 else ''}"
    return (
        f"{share:.0%} of the completions do not end by themselves: they have been cut off at {tokens} since step "
        f"{since}. An answer after that gets no reward, nor does the end token. Raise max_completion_length, "
        "check that the model has the right end token (eos_token_id), or set stop_strings."
    )


def entropy_gone(run: History) -> str:
    now, first = run.now("entropy"), run.first("entropy")
    if not run.long_enough or not (now < 0.01 and first > 5 * now) or run.solved:
        return ""
    since = run.since(lambda metrics: number_of(metrics, "entropy") < 0.01)
    return (
        f"Entropy has been low since step {since}: it is {short(now)} nats per token (at the start {short(first)}), "
        f"with a mean reward of {short(run.now('reward'))}. The policy is certain and wrong, and no longer tries "
        "anything else. Lower learning_rate, or raise temperature, epsilon_high or beta."
    )


def entropy_runs_away(run: History) -> str:
    now, first = run.now("entropy"), run.first("entropy")
    if not run.long_enough or not (now > 2 * first and now > 0.5 and run.now("reward") <= run.first("reward")):
        return ""
    return (
        f"Entropy has risen from {short(first)} to {short(now)} nats per token, and the reward has not risen "
        f"({short(run.first('reward'))} to {short(run.now('reward'))}): the policy becomes more random. Are the "
        "tokens scored at their own positions, and at the temperature of the sampler? Lower learning_rate."
    )


def length_runs_away(run: History) -> str:
    name = "completions/mean_length"
    now, first = run.now(name), run.first(name)
    if not run.long_enough or not (now > 2 * first and run.now("reward") <= run.first("reward") + 0.02):
        return ""
    return (
        f"Completions have grown from {first:.1f} to {now:.1f} tokens, and the reward has not "
        f"risen ({short(run.first('reward'))} to {short(run.now('reward'))}). Does a reward or the loss favour "
        "length? Try loss_type='dapo' or 'dr_grpo', or a penalty for completions that are too long."
    )
