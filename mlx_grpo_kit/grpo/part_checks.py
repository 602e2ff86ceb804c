"""The checks of what your own parts of a step return. An error names the part, what was expected, and what came.

A part that fits in shape and type, but returns something else than it should, would otherwise train something else.
The checks cost little beside a forward pass: lists are walked once, and a gradient's norm is computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import isabstract
from numbers import Number
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_grpo_kit.grpo.arrays import Array
from mlx_grpo_kit.grpo.batch import Completions, Scores
from mlx_grpo_kit.grpo.checks import LARGEST_LOGP, prompt_of_each
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.learners.learner import Learner, MicroBatches
from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig
from mlx_grpo_kit.grpo.objectives import LossType, Metrics, Objective, OfCompletions, TokenBatch, log_ratio_at
from mlx_grpo_kit.grpo.optimizer import Gradient, TrainingDivergedError
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.runtime import mx

if TYPE_CHECKING:
    from mlx_grpo_kit.grpo.logps import PaddedBatch
    from mlx_grpo_kit.grpo.micro_batches import MicroBatch
    from mlx_grpo_kit.grpo.policy import Policy
    from mlx_grpo_kit.grpo.sampler import Sampler
    from mlx_grpo_kit.grpo.step import Advantages


# The sampler


def checked_sampler(sampler: Sampler, config: Qwen3Config, args: GRPOConfig, max_completion_length: int) -> Sampler:
    """`sampler`, whose completions are checked and copied, so that it may use its lists again."""

    @wraps(sampler)
    def draw(policy: Policy, step: int, *attempt: int, num_groups: int | None = None) -> Completions:
        found = sampler(policy, step, *attempt, **({} if num_groups is None else {"num_groups": num_groups}))
        if not isinstance(found, Completions):
            raise ValueError(
                f"sampler= returned {type(found).__name__}; expected Completions, which Completions.from_lists makes "
                "of lists."
            )
        try:
            found.check()
            found = _in_python(found)
            _check_completions(found, config, args, args.num_groups if num_groups is None else num_groups)
            _check_lengths(found, max_completion_length)
            _check_numbers(found, args)
        except (TypeError, ValueError) as error:
            raise ValueError(f"sampler= returned completions that do not fit. {error}") from error
        return found

    return draw


def _in_python(completions: Completions) -> Completions:
    """A copy in Python's own lists and numbers."""

    def rows(column: Sequence[Sequence], kind: Callable) -> list[list]:
        return [[kind(value) for value in row] for row in column]

    kinds = {"prompt_ids": index, "completion_ids": index, "token_mask": bool, "logps": float, "entropies": float}
    columns = {name: rows(getattr(completions, name), kind) for name, kind in kinds.items()}
    return replace(completions, **columns, finished=np.array(completions.finished, bool))


def _check_completions(completions: Completions, config: Qwen3Config, args: GRPOConfig, num_groups: int) -> None:
    size = args.num_generations
    if completions.num_generations != size or len(completions) != num_groups * size:
        raise ValueError(
            f"There are {len(completions)}, in groups of {completions.num_generations}; expected {num_groups * size}: "
            f"{num_groups} groups of num_generations={size}."
        )
    for row, problem in enumerate(completions.problems):
        first = row - row % size
        prompts = [getattr(each, "prompt", each) for each in (problem, completions.problems[first])]
        if prompts[0] != prompts[1]:
            raise ValueError(
                f"problems[{row}] is not problems[{first}], but both are in group {first // size}; expected the {size} "
                "completions of a problem in adjacent rows, as in [a, a, b, b], not [a, b, a, b]."
            )
    if all(each is None for each in completions.conversations):  # an environment may say something else to each
        prompt_of_each(completions.prompt_ids, completions.completion_ids, size)
    for row, text in enumerate(completions.texts):
        if not isinstance(text, str):
            raise ValueError(f"texts[{row}] is of type {type(text).__name__}; expected the decoded completion, a str.")
    for name in ("prompt_ids", "completion_ids"):
        for row, ids in enumerate(getattr(completions, name)):
            if not ids or min(ids) < 0 or max(ids) >= config.vocab_size:
                raise ValueError(
                    f"{name}[{row}] is {ids!r:.80}; expected one or more token ids from 0 to {config.vocab_size - 1}."
                )


def _check_lengths(completions: Completions, max_completion_length: int) -> None:
    if completions.lengths.max() > max_completion_length:
        raise ValueError(
            f"completion_ids[{completions.lengths.argmax()}] has {completions.lengths.max()} tokens; expected at most "
            f"{max_completion_length}. Set GRPOConfig(max_completion_length=...)."
        )
    if not completions.drawn_lengths.any():
        raise ValueError("token_mask is False everywhere; expected True for the tokens that the policy wrote.")


def _check_numbers(completions: Completions, args: GRPOConfig) -> None:
    masks = [np.array(mask) for mask in completions.token_mask]
    for row, (mask, values) in enumerate(zip(masks, completions.logps, strict=True)):
        logps = np.array(values)[mask]
        if (logps > LARGEST_LOGP).any() or np.isinf(logps).any():
            raise ValueError(
                f"logps[{row}] contains {logps[(logps > LARGEST_LOGP) | np.isinf(logps)][0]:.4g}; expected "
                "log-probabilities, which are finite and at most 0. Take the logarithm of probabilities, and the "
                "negative of negative log-likelihoods."
            )
        if not completions.on_policy and np.isnan(logps).any():
            raise ValueError(
                f"logps[{row}] contains NaN; expected a log-probability for each token, because another policy wrote "
                "it (on_policy is False)."
            )
        check_sampling_logps(args, f"logps[{row}]", not len(logps) or not np.isnan(logps).all())
    for row, (mask, values) in enumerate(zip(masks, completions.entropies, strict=True)):
        entropies = np.array(values)[mask]
        if (entropies < -LARGEST_LOGP).any() or np.isinf(entropies).any():
            raise ValueError(
                f"entropies[{row}] contains a number that is negative or infinite; expected entropies in nats, or NaN."
            )
        if args.top_entropy_quantile < 1 and np.isnan(entropies).any():
            raise ValueError(
                f"entropies[{row}] contains NaN, and top_entropy_quantile is {args.top_entropy_quantile}, which needs "
                "the entropy of each token's distribution. Pass entropies=, or leave top_entropy_quantile at 1."
            )


def check_sampling_logps(args: GRPOConfig, name: str, are_known: bool) -> None:
    """Raise ValueError for settings that have no effect without the sampler's log-probabilities, called `name`."""
    for setting in ("off_policy_mask_threshold", "importance_sampling_correction"):
        value = getattr(args, setting)
        if value is not None and not are_known:
            raise ValueError(
                f"{setting} is {value!r}, which has no effect without the log-probabilities of the policy that "
                f"sampled, and there are none in {name}. Pass them, or leave {setting} out."
            )


# The advantages


def checked_advantages(rule: Advantages) -> Advantages:
    """`rule`, which gets copies and whose results are checked and copied, so that it may use its arrays again."""

    @wraps(rule)
    def advantages(completions: Completions, scores: Scores) -> tuple[np.ndarray, np.ndarray]:
        count = len(completions)
        found = rule(_in_python(completions), replace(scores, values=scores.values.copy()))
        what = f"{len(found)} values" if isinstance(found, tuple | list) else type(found).__name__
        if isinstance(found, tuple | list) and len(found) == 2:
            try:
                rewards, each = map(_floats, found)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"advantages= returned something that is not two arrays of numbers ({error})."
                ) from error
            if rewards.shape == (count,):
                if np.isinf(rewards).any():
                    raise ValueError(
                        f"advantages= returned the reward {rewards[np.isinf(rewards)][0]} for completion "
                        f"{np.isinf(rewards).argmax()}; expected a finite number, or NaN if no function applies."
                    )
                with np.errstate(over="ignore"):  # a number that float32 cannot hold is infinite, which Batch refuses
                    return rewards, each.astype(np.float32)
            what = f"rewards of shape {rewards.shape}"
        raise ValueError(
            f"advantages= returned {what}; expected two arrays: rewards, of shape ({count},), and advantages, of "
            f"shape ({count},) or ({count}, T) with one per token."
        )

    return advantages


def _floats(values: Any) -> np.ndarray:
    """A copy in float64; None becomes NaN. Raises ValueError for text and complex numbers."""
    values = np.asarray(values)
    if values.dtype.kind not in "biufO":
        raise ValueError(f"its dtype is {values.dtype}")
    return values.astype(np.float64)


# The loss


def checked_loss(loss: LossType, config: GRPOLossConfig) -> GRPOLossConfig:
    """The settings of the loss with `loss` in them, after a trial on a few made-up tokens.

    Micro-batches have rows of similar length, each padded to the longest, and a token's weight is determined before,
    from the number of tokens that count in each row of the batch. So neither may depend on the padding, an objective
    not on other rows, and a weight not on the places that count.
    """
    if not isinstance(loss, LossType):
        raise ValueError(f"loss= is {loss!r:.80}; expected a LossType(objective, weight).")
    loss = replace(loss, objective=_CheckedObjective(loss.objective))
    config = replace(config, loss_type=loss)
    _check_weight(loss, config)
    whole = _by_name(loss.objective(_tokens(COUNTED, config), config))
    for rows, mask in ((slice(None), np.pad(COUNTED, [(0, 0), (0, 2)])), (slice(1, 2), COUNTED[1:2, :2])):
        part = _by_name(loss.objective(_tokens(mask, config, rows), config))
        for name in whole.keys() | part.keys():
            one, other = whole.get(name, np.nan), part.get(name, np.nan)
            columns = min(one.shape[1], other.shape[1], mask.shape[1])
            kept = COUNTED[rows, :columns] != 0 if columns > 1 else slice(None)
            if not np.allclose(one[rows, :columns][kept], other[:, :columns][kept], 1e-4, 1e-6, equal_nan=True):
                raise ValueError(
                    f"The {name} of loss= for a completion changes with the padding or with the other completions of "
                    "the batch; expected a function of its own tokens. Completions are grouped by length, and those "
                    "that teach nothing are left out."
                )
    if not (config.beta or config.entropy_coef or _has_gradient(loss, config)):
        raise ValueError(
            "The gradient of loss= is 0 for every token, so the policy would never change; expected an objective that "
            "depends on tokens.logps or tokens.ratio (stop_gradient cuts it off from them), and a weight that is not 0."
        )
    return config


OF_THE_STEP = {"loss", "reward", "reward_std", "grad_norm", "learning_rate", "entropy"}
"""Metrics that a step has itself."""

COUNTED = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]], np.float32)
"""The masks of three made-up completions."""


def _check_weight(loss: LossType, config: GRPOLossConfig) -> None:
    elsewhere = np.array([[0, 1, 0, 1, 1, 0], [0, 0, 0, 1, 0, 1], [1, 0, 1, 1, 0, 1]], np.float32)
    weights = [np.array(loss.weight(mx.array(mask), config, 9)) for mask in (COUNTED, elsewhere)]
    for weight, mask in zip(weights, (COUNTED, elsewhere), strict=True):
        if weight.shape not in ((), (3, 1)) or not np.isfinite(weight).all():
            raise ValueError(
                f"The weight of loss= has shape {weight.shape} for a mask of shape {mask.shape}, or is not finite; "
                "expected a finite number, [], or one per completion, [B, 1]. To weight tokens, multiply the objective."
            )
    if not np.allclose(*weights, rtol=1e-5):
        raise ValueError(
            "The weight of loss= depends on which tokens of a row count, or on the padding; expected a function of "
            "their number. To weight tokens, multiply the objective."
        )


def _has_gradient(loss: LossType, config: GRPOLossConfig) -> bool:
    """True if the loss changes with a log-probability, for advantages of either sign, on-policy or off-policy."""
    tokens, weight = _tokens(COUNTED, config), loss.weight(mx.array(COUNTED), config, 9)

    def total(logps: mx.array, old: mx.array, advantages: mx.array) -> mx.array:
        log_ratio = logps - old
        ratio = mx.exp(log_ratio_at(config.importance_sampling_level, log_ratio, tokens.mask))
        changed = tokens._replace(logps=logps, log_ratio=log_ratio, ratio=ratio, advantages=advantages)
        return (weight * tokens.mask * loss.objective(changed, config)[0]).sum()

    return any(
        (mx.grad(total)(tokens.logps, old, advantages) != 0).any().item()
        for old in (tokens.logps, tokens.logps - tokens.log_ratio)
        for advantages in (tokens.advantages, -tokens.advantages)
    )


def _tokens(mask: np.ndarray, config: GRPOLossConfig, rows: slice = slice(None)) -> TokenBatch:
    """Made-up tokens, the same in each row and place, whatever the padding."""
    rng, shape = np.random.default_rng(0), (3, 8)
    logps, log_ratios, advantages = -rng.exponential(size=shape), 0.1 * rng.normal(size=shape), rng.normal(size=(3, 1))
    of_tokens = [each[rows, : mask.shape[1]] * mask for each in (logps, log_ratios)]
    logps, log_ratios, advantages = (mx.array(each.astype(np.float32)) for each in (*of_tokens, advantages[rows]))
    mask = mx.array(mask != 0)
    ratio = mx.exp(log_ratio_at(config.importance_sampling_level, log_ratios, mask))
    correction = None if config.importance_sampling_correction is None else mx.ones(mask.shape)
    return TokenBatch(logps, log_ratios, ratio, advantages, mask, correction, mask)


def _by_name(found: tuple[mx.array, Metrics]) -> dict[str, np.ndarray]:
    return {name: np.array(values.astype(mx.float32)) for name, values, _ in _parts(*found)}


def _parts(objective: Array, metrics: Metrics) -> Iterator[tuple[str, Array, bool]]:
    """Name and values of the objective and of each metric, and True if it may have one value per token."""
    yield "objective", objective, True
    for name, metric in metrics.items():
        of_completions = isinstance(metric, OfCompletions)
        yield f"metric {name!r}", metric.values if of_completions else metric, not of_completions


@dataclass(frozen=True)
class _CheckedObjective:
    """An objective whose results are checked: (objective, metrics), arrays [B, T] or [B, 1] for tokens [B, T].

    Equal for the same objective, so that JAX compiles it once.
    """

    objective: Objective

    def __call__(self, tokens: TokenBatch, config: GRPOLossConfig) -> tuple[Array, Metrics]:
        found, shape = self.objective(tokens, config), tuple(tokens.mask.shape)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
            raise ValueError(
                f"The objective of loss= returned {type(found).__name__}; expected a tuple of the objective and a "
                "dictionary of metrics, which may be empty."
            )
        if taken := [name for name in found[1] if not isinstance(name, str) or name in OF_THE_STEP]:
            raise ValueError(
                f"A metric of loss= is called {taken[0]!r}; expected a string that is no metric of the step itself. "
                f"Those are {', '.join(sorted(OF_THE_STEP))}."
            )
        for name, values, of_tokens in _parts(*found):
            if isinstance(values, np.ndarray | np.generic | Number) or not hasattr(values, "shape"):
                raise ValueError(
                    f"The {name} of loss= is of type {type(values).__name__}; expected an array of the framework that "
                    "computes. NumPy and float() cut the loss off from the parameters."
                )
            if tuple(values.shape) not in (shape if of_tokens else None, (shape[0], 1)):
                raise ValueError(
                    f"The {name} of loss= has shape {tuple(values.shape)}; expected "
                    f"{f'{shape}, one per token, or ' if of_tokens else ''}{(shape[0], 1)}, one per completion."
                )
        return found


# The learner


def checked_learner(kind: type[Learner]) -> type[Learner]:
    """A subclass of `kind` that checks its results."""
    if not (isinstance(kind, type) and issubclass(kind, Learner)):
        raise ValueError(f"learner= is {kind!r:.80}; expected a subclass of Learner, not an instance.")
    if isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise ValueError(f"learner={kind.__name__} lacks {missing}; expected a subclass of Learner that has them.")
    return type(kind.__name__, (_CheckedLearner, kind), {"__doc__": kind.__doc__, "__module__": kind.__module__})


class _CheckedLearner:
    def logps(self, params: Mapping[str, mx.array], batch: PaddedBatch) -> mx.array:
        logps = super().logps(params, batch)
        self._check_logps("logps", logps, batch)
        return logps

    def add_gradients(
        self, policy: Policy, grads: dict[str, mx.array], micro: MicroBatch
    ) -> tuple[Any, mx.array, dict[str, Any]]:
        found = super().add_gradients(policy, grads, micro)
        if not (isinstance(found, tuple) and len(found) == 3 and isinstance(found[2], Mapping)):
            self._refuse(
                "add_gradients returned", type(found).__name__, "a tuple of loss, logps [B, T] and a dict of metrics"
            )
        loss, logps, metrics = found
        self._check_logps("the logps of add_gradients", logps, micro.batch)
        for name, value in {"loss": loss, **metrics}.items():
            if getattr(value, "shape", None) != ():
                self._refuse(
                    f"{name!r} of add_gradients is",
                    f"of shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__,
                    "a scalar array",
                )
        return found

    def gradient(self, policy: Policy, micro_batches: MicroBatches) -> tuple[Gradient, dict[str, float]]:
        found = super().gradient(policy, micro_batches)
        if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(each, Mapping) for each in found)):
            self._refuse("gradient returned", type(found).__name__, "a tuple of a Gradient and a dict of metrics")
        gradient, metrics = Gradient(found[0]), dict(found[1])  # a norm that it may have is that of earlier numbers
        if gradient.keys() != policy.trained.keys():
            name = min(gradient.keys() ^ policy.trained.keys())
            what = "nothing" if name in policy.trained else "something"
            self._refuse(f"gradient has {what} for", repr(name), "the names of policy.trained")
        for name, value in policy.trained.items():
            self._check_array(f"the gradient of {name!r}", gradient[name], value.shape)
        for name, value in metrics.items():
            if getattr(value, "shape", None) == ():
                metrics[name] = value = value.item()
            if not isinstance(value, Number):
                self._refuse(f"metric {name!r} is of type", type(value).__name__, "a number, such as array.item()")
        if "loss" not in metrics:
            self._refuse("gradient returned metrics without", "'loss'", "the loss, as a float")
        if not math.isfinite(gradient.norm):
            wrong = [name for name, value in gradient.items() if not mx.isfinite(value).all().item()]
            where = f"in {wrong[0]!r}" if wrong else "too large"
            raise TrainingDivergedError(
                f"has loss {metrics['loss']} and gradient norm {gradient.norm} (learner={type(self).__name__}: {where})"
            )
        return gradient, metrics | {"grad_norm": gradient.norm}

    def _check_logps(self, what: str, logps: Any, batch: PaddedBatch) -> None:
        self._check_array(what, logps, batch.completion_ids.shape)
        largest = mx.where(batch.completion_mask, logps, 0.0).max().item()
        if largest > LARGEST_LOGP:
            self._refuse(f"{what} contain", f"{largest:.4g}", "log-probabilities, which are at most 0")

    def _check_array(self, what: str, value: Any, shape: Sequence[int]) -> None:
        if not isinstance(value, mx.array):
            self._refuse(f"{what} is of type", type(value).__name__, "an MLX array")
        if tuple(value.shape) != tuple(shape) or value.dtype != mx.float32:
            dtype = str(value.dtype).rpartition(".")[2]
            self._refuse(f"{what} has", f"shape {tuple(value.shape)} in {dtype}", f"{tuple(shape)} in float32")

    def _refuse(self, what: str, came: str, expected: str) -> None:
        raise ValueError(f"learner={type(self).__name__}: {what} {came}; expected {expected}.")
