"""The policy's accuracy and reward on problems that training never sees."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mlx_grpo_kit.generation import SamplingConfig
from mlx_grpo_kit.grpo.advantages import weighted_sum
from mlx_grpo_kit.grpo.checks import check_whole
from mlx_grpo_kit.grpo.metrics import mean
from mlx_grpo_kit.grpo.policy import Policy
from mlx_grpo_kit.grpo.rewards import TaskRewards, reward_name
from mlx_grpo_kit.grpo.sampler import PolicySampler
from mlx_grpo_kit.tasks.calls import are_correct, held_out_problems
from mlx_grpo_kit.tasks.task import TaskError

Z95 = 1.959964
"""A normal variable is within this many standard deviations of its mean in 95 of 100 cases."""

MAX_COMPLETIONS = 1_000_000


@dataclass(frozen=True)
class Evaluation:
    """Completions of held-out problems as numbers: P problems with K completions each.

    Attributes:
        correct: bool [P, K], True for completions that the task's `is_correct` accepts.
        rewards: float64 [P, K], weighted sums of the reward functions' scores.
        scores: float64 [P, K, F], the F functions' own scores; NaN for None.
        names: the names of the functions.
        lengths: int [P, K], the number of tokens that the policy sampled.
        finished: bool [P, K], False for completions that were cut off.
    """

    correct: np.ndarray
    rewards: np.ndarray
    scores: np.ndarray
    names: tuple[str, ...]
    lengths: np.ndarray
    finished: np.ndarray

    @property
    def metrics(self) -> dict[str, float]:
        """Means under their names, as `GRPOTrainer.evaluate` returns them."""
        found = {"eval/accuracy": mean(self.correct), "eval/reward": mean(self.rewards)}
        if len(self.names) > 1:
            found |= {f"eval/rewards/{name}": mean(self.scores[..., i]) for i, name in enumerate(self.names)}
        num_samples = self.correct.shape[1]
        ks = [2**i for i in range(1, num_samples.bit_length()) if 2**i < num_samples]
        return found | {f"eval/pass@{k}": pass_at(k, self.correct) for k in [*ks, num_samples] if k > 1}

    @property
    def estimates(self) -> dict[str, tuple[float, float]]:
        """Numbers to choose a task by, each with its standard error over problems (NaN for one problem).

        "pass@1", "pass@K", "mixed" and "reward". "mixed" is the share of problems whose completions got different
        rewards: only such a group has advantages that are not 0. Completions without a reward are left out.
        """
        num_samples = self.correct.shape[1]
        mixed = np.fmax.reduce(self.rewards, axis=1) - np.fmin.reduce(self.rewards, axis=1) > 0
        scored = self.rewards[~np.isnan(self.rewards).all(axis=1)]
        found = {f"pass@{k}": _pass_each(k, self.correct) for k in (1, num_samples)}
        found |= {"mixed": mixed, "reward": np.nanmean(scored, axis=1) if len(scored) else scored[:, 0]}
        return {name: _with_error(values.astype(float)) for name, values in found.items()}

    @property
    def accuracy_interval(self) -> tuple[float, float]:
        """A 95% confidence interval of the accuracy on all problems like these.

        Wilson's interval (1927). K completions of one problem are alike, so they count as fewer than K trials: the
        number that explains the measured variance of the problems' means (Kish's effective sample size).
        """
        problems, num_samples = self.correct.shape
        share, trials = float(self.correct.mean()), float(problems)
        if num_samples > 1 and problems > 1:
            variance = self.correct.mean(axis=1).var(ddof=1) / problems
            if variance > 0:
                trials = min(max(share * (1 - share) / variance, problems), problems * num_samples)
        middle = (share + Z95**2 / (2 * trials)) / (1 + Z95**2 / trials)
        half = Z95 * math.sqrt(share * (1 - share) / trials + (Z95 / (2 * trials)) ** 2) / (1 + Z95**2 / trials)
        return max(middle - half, 0.0), min(middle + half, 1.0)


def pass_at(k: int, correct: np.ndarray) -> float:
    """The probability that at least one of k completions is right, estimated from n >= k completions per problem.

    `correct` is bool [P, n]. The mean over problems of 1 - C(n - c, k) / C(n, k), where c of n completions are right:
    the unbiased estimate of Chen et al. 2021, https://arxiv.org/abs/2107.03374.

    Raises ValueError unless k is a whole number from 1 to n.
    """
    correct = np.asarray(correct, bool)
    if correct.ndim != 2 or not correct.size:
        raise ValueError(f"correct has shape {correct.shape}; expected (P, n): n completions of each of P problems.")
    n = correct.shape[1]
    check_whole("k", k, at_least=1)
    if k > n:
        raise ValueError(f"k is {k}, and each problem has {n} completions; expected at most as many. Sample more.")
    return float(_pass_each(k, correct).mean())


def _pass_each(k: int, correct: np.ndarray) -> np.ndarray:
    n = correct.shape[1]
    return np.array([1 - math.comb(n - c, k) / math.comb(n, k) for c in correct.sum(axis=1).tolist()])


def _with_error(values: np.ndarray) -> tuple[float, float]:
    """The mean, and its standard error."""
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()) if len(values) else math.nan, float(error)


def evaluate(
    policy: Policy,
    sampler: PolicySampler,
    rewards: TaskRewards,
    num_problems: int,
    seed: int,
    num_samples: int = 1,
    temperature: float = 1.0,
) -> Evaluation:
    """`GRPOTrainer.evaluate` with all its numbers, for any sampler. Processes share the problems."""
    check_whole("num_problems", num_problems, at_least=1)
    check_whole("num_samples", num_samples, at_least=1)
    if num_problems * num_samples > MAX_COMPLETIONS:
        raise ValueError(
            f"num_problems x num_samples is {num_problems * num_samples:,} completions; expected at most "
            f"{MAX_COMPLETIONS:,}."
        )
    sampling = SamplingConfig(sampler.max_completion_length, temperature)
    if temperature == 0 and num_samples > 1:
        raise ValueError(
            f"num_samples is {num_samples} and temperature is 0, which gives only one completion per problem. Set a "
            "temperature above 0, or num_samples to 1."
        )
    names = tuple(map(reward_name, rewards.reward_funcs))
    task, world = sampler.task, sampler.world
    results = np.zeros([0, num_samples, 4 + len(names)])
    own = world.share(num_problems)
    with world.together(TaskError, ValueError):
        problems = held_out_problems(task, num_problems)[own.start : own.stop]
        if problems:
            rows = [problem for problem in problems for _ in range(num_samples)]
            numbers = own.start * num_samples, num_problems * num_samples
            completions = sampler.complete(policy, rows, sampler.encode(rows), sampling, seed, *numbers)
            scores = rewards.of_functions(completions).values
            columns = [
                are_correct(task, rows, completions.texts),
                weighted_sum(scores, rewards.args.reward_weights),
                completions.drawn_lengths,
                completions.finished,
                *scores.T,
            ]
            results = np.column_stack(columns).reshape(len(problems), num_samples, -1)
    results = world.concatenate(results)
    correct, sums, lengths, finished = np.moveaxis(results[..., :4], -1, 0)
    return Evaluation(correct.astype(bool), sums, results[..., 4:], names, lengths.astype(int), finished.astype(bool))
