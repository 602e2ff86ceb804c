"""The relatives of GRPO by name, each with its change, its settings for `GRPOConfig`, and its source.

    print(variants_table())
    args = GRPOConfig(**TINY_ARGS | VARIANTS["gspo"].settings)

Names in the formulas: r is the ratio of a token, exp(logp - old_logp), and clip(r) is r clipped to the range from
1 - epsilon to 1 + epsilon_high; A is the advantage of its completion and R the reward; |o| is the number of tokens of
a completion, and B the number of completions; sg means stop_gradient, and H is the entropy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One published change.

    Attributes:
        settings: the fields of `GRPOConfig` that differ from their defaults.
        changes: its effect and the reason, in a sentence.
        formula: the quantity to maximize, or the quantity that it changes.
        source: the paper (with the number of the equation, if it has one), or a program that implements it.
    """

    settings: Mapping[str, Any]
    changes: str
    formula: str
    source: str


def _arxiv(number: str, equation: str = "") -> str:
    return f"https://arxiv.org/abs/{number}" + (f", equation {equation}" if equation else "")


VARIANTS: dict[str, Variant] = {
    "grpo": Variant(
        {"loss_type": "grpo"},
        "All completions count the same, so a token of a short completion weighs more than a token of a long one.",
        "mean over completions of mean over tokens of min(r A, clip(r) A)",
        _arxiv("2402.03300", "3"),
    ),
    "bnpo": Variant(
        {"loss_type": "bnpo"},
        "All tokens of a micro-batch count the same; the weight of a token depends on how the batch was cut.",
        "sum over tokens of min(r A, clip(r) A) / tokens in the micro-batch",
        "TRL's loss_type 'bnpo'",
    ),
    "dr_grpo": Variant(
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
        "Neither the length of a completion nor the spread of its group's rewards affects what a token weighs.",
        "sum over tokens of min(r A, clip(r) A) / (B max_completion_length), A = R - mean(R)",
        _arxiv("2503.20783"),
    ),
    "dapo": Variant(
        {"loss_type": "dapo", "epsilon_high": 0.28},
        "All tokens of the batch count the same, and a token may become likelier by more before it is clipped.",
        "sum over tokens of min(r A, clip(r) A) / tokens in the batch",
        _arxiv("2503.14476", "8"),
    ),
    "dynamic sampling": Variant(
        {"dynamic_sampling_rounds": 3},
        "Groups in which all rewards are equal teach nothing, so they are drawn again with other problems.",
        "0 < right completions of a group < all",
        _arxiv("2503.14476", "11"),
    ),
    "overlong penalty": Variant(
        {"soft_punish_cache": 2},
        "Completions close to the largest allowed length lose up to 1, so that none is cut off without warning.",
        "R + min(0, (max_completion_length - soft_punish_cache - |o|) / soft_punish_cache)",
        _arxiv("2503.14476", "13"),
    ),
    "gspo": Variant(
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        "One ratio per completion, the geometric mean of its tokens' ratios, because it gets one reward.",
        "mean over completions of min(s A, clip(s) A), s = (product of r) ^ (1 / |o|)",
        _arxiv("2507.18071", "5"),
    ),
    "luspo": Variant(
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        "GSPO times the length of the completion, so that all tokens weigh the same, whatever the length.",
        "mean over completions of |o| min(s A, clip(s) A)",
        _arxiv("2602.05261"),
    ),
    "two-sided clip": Variant(
        {"delta": 4.0},
        "PPO sets no upper bound on the ratio of a bad completion's token; here it has one.",
        "min(min(r, delta) A, clip(r) A)",
        _arxiv("2505.07291"),
    ),
    "cispo": Variant(
        {"loss_type": "cispo", "epsilon_high": 5.0},
        "The ratio is a bounded weight without a gradient of its own, so no token's gradient is clipped away.",
        "sg(min(r, epsilon_high)) A logp",
        _arxiv("2506.13585"),
    ),
    "sapo": Variant(
        {"loss_type": "sapo"},
        "A soft gate replaces the clip: a token counts less the further its ratio is from 1, but it always counts.",
        "sigmoid(tau (r - 1)) (4 / tau) A",
        _arxiv("2511.20347"),
    ),
    "vespo": Variant(
        {"loss_type": "vespo"},
        "The weight of a whole completion falls smoothly, the further the product of its ratios is from 1.",
        "sg(w^k exp(lambda (1 - w))) A logp, w = product of r",
        _arxiv("2602.10693"),
    ),
    "reinforce": Variant(
        {"loss_type": "reinforce"},
        "No ratio: after the first update it continues as if the policy were still the one that sampled.",
        "A logp",
        "https://doi.org/10.1007/BF00992696",
    ),
    "rloo": Variant(
        {"loss_type": "rloo", "advantage_estimator": "rloo", "scale_rewards": "none"},
        "A completion is compared only with the others and has one ratio; no spread divides its advantage.",
        "mean over completions of min(w A, clip(w) A), w = product of r, A = R - mean of the others' R",
        _arxiv("2402.14740"),
    ),
    "batch scaling": Variant(
        {"scale_rewards": "batch"},
        "Advantages are divided by the spread of all rewards: a group that nearly always succeeds weighs less.",
        "A = (R - mean of the group) / (std of the batch + 1e-4)",
        _arxiv("2508.08221"),
    ),
    "gdpo": Variant(
        {"multi_objective_aggregation": "normalize_then_sum"},
        "Each of several rewards is divided by its own spread first, so that none drowns another.",
        "A = (sum of weight * (R_k - mean) / std_k) / std of these in the batch",
        _arxiv("2601.05242"),
    ),
    "kl penalty": Variant(
        {"beta": 0.04},
        "The policy pays for every token on which it has moved away from the starting policy.",
        "... - beta (exp(d) - d - 1), d = ref_logp - logp",
        _arxiv("2402.03300", "3"),
    ),
    "moving reference": Variant(
        {"beta": 0.04, "sync_ref_model": True, "ref_model_sync_steps": 20},
        "The reference of the KL penalty follows the policy, so the penalty limits speed and not distance.",
        "reference = alpha policy + (1 - alpha) reference, every so many steps",
        _arxiv("2404.09656"),
    ),
    "entropy bonus": Variant(
        {"entropy_coef": 0.01},
        "The policy is rewarded for staying undecided, so it explores for longer.",
        "... + entropy_coef (mean over tokens of H)",
        "TRL's entropy_coef; https://arxiv.org/abs/1602.01783",
    ),
    "top entropy": Variant(
        {"top_entropy_quantile": 0.2},
        "The policy learns only from tokens where it was undecided: the forks, not what follows from them.",
        "min(r A, clip(r) A) where H is at least its 0.8 quantile, else 0",
        _arxiv("2506.01939"),
    ),
}
"""Variants by name. You can combine two that change different things: `VARIANTS["dapo"].settings |
VARIANTS["dynamic sampling"].settings`."""


def variants_table() -> str:
    """All variants as a table in Markdown: name and source; change, formula and settings."""
    lines = ["| variant | what it changes, as a formula, and as settings |", "| :-- | :-- |"]
    for name, variant in VARIANTS.items():
        settings = ", ".join(f"`{key}={value!r}`" for key, value in variant.settings.items())
        formula = variant.formula.replace("|", "\\|")
        source = re.sub(r"https://(?:arxiv\.org/abs|doi\.org)/([\w./-]+)", r"[\1](\g<0>)", variant.source)
        lines.append(f"| **{name}**<br>{source} | {variant.changes}<br>`{formula}`<br>{settings} |")
    return "\n".join(lines)
