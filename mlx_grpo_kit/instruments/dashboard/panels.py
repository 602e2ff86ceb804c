"""The curves of a run: their metrics, titles and explanations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.runs.symptoms_of_sampling import SCORED_MINUS_SAMPLED

SMOOTHING = 0.8
THROUGHPUT, EITHER = "tokens_per_second", "clip_ratio/region_mean"
MEMORY = "peak_memory_gb"
HELD_OUT = "eval/accuracy"
MOST_PANELS = 40  # for your own metrics, and as many for the curves that open on demand
# The kit's metrics; all others are your own.
KITS = re.compile(
    "(rewards|completions|clip_ratio|sampling|tools|dynamic_sampling|gradients|eval|vespo)/.+|reward|reward_std|"
    "frac_reward_zero_std|entropy|entropy_coef|kl|loss|policy_loss|grad_norm|learning_rate|step_time|lag|branch|"
    f"cispo_clip_ratio|{THROUGHPUT}|{MEMORY}"
)
NEVER = re.compile("gradients/.+|rewards/.+/(mean|std)|entropy_coef|branch")  # metrics without their own curve


@dataclass(frozen=True)
class RunPanel:
    """One small curve of a run.

    Attributes:
        title: the words above the curve.
        lines: label -> metric, for each line.
        spread: the metric of a standard deviation around the first line, or "".
        between: two metrics, the lower and upper edge of a band.
        smoothing: weight of the past in the line over the values; 0 for values without noise.
        empty: the words that are shown while there are no values.
        help: an explanation, which is shown when you point at the title.
        more: True for a curve that opens on demand.
    """

    title: str
    lines: Mapping[str, str]
    spread: str = ""
    between: tuple[str, str] | None = None
    smoothing: float = SMOOTHING
    empty: str = "no values yet"
    help: str = ""
    more: bool = False


def run_panels(metrics: Sequence[str]) -> list[RunPanel]:
    """List the panels of a run whose steps have these metrics; those that open on demand come last."""
    panels = _main_panels(metrics)
    own = [name for name in metrics if not KITS.fullmatch(name)]
    panels += [RunPanel(name, {"value": name}) for name in own[:MOST_PANELS]]
    shown = {*names_of(panels)}
    more = [RunPanel(_TITLES.get(name, name), {"value": name}, help=_HELP.get(name, ""), more=True)
            for name in metrics if name not in shown and not NEVER.fullmatch(name)]  # fmt: skip
    return panels + sorted(more, key=lambda panel: panel.title not in _TITLES.values())[:MOST_PANELS]


_TITLES = {"eval/reward": "held-out reward", "step_time": "seconds per step", MEMORY: "memory, GB", "loss": "loss"}
_HELP = {
    "eval/reward": "the mean reward on problems that training never sees",
    "step_time": "from the first sampled token to the updated policy, without the time for held-out problems",
    MEMORY: "the peak memory of MLX's arrays in the step, including the snapshots for rewinding",
    "loss": "near 0 by construction, because a group's advantages sum to 0; its gradient matters, not its value",
}


def _main_panels(metrics: Sequence[str]) -> list[RunPanel]:
    parts = [name.split("/")[1] for name in metrics if name.startswith("rewards/") and name.endswith("/mean")]
    rewards = {name: f"rewards/{name}/mean" for name in sorted(parts)} if len(parts) > 1 else {}
    return [
        RunPanel(
            "reward",
            {"mean": "reward"} | rewards,
            spread="reward_std",
            help="over all completions of a step; the band is one standard deviation on each side",
        ),
        *_held_out(metrics),
        RunPanel(
            "entropy", {"mean": "entropy"}, help="of the next token's distribution; near 0 the policy tries nothing new"
        ),
        RunPanel(
            "KL to the reference",
            {"mean": "kl"},
            empty="none: beta is 0",
            help="how far the policy has moved from the reference policy",
        ),
        RunPanel(
            "clipped",
            {"low or high": EITHER}
            if EITHER in metrics and "clip_ratio/low_mean" not in metrics
            else {"low": "clip_ratio/low_mean", "high": "clip_ratio/high_mean"},
            help="share of the tokens whose ratio left the clip range, below or above, so that they push no further",
        ),
        RunPanel(
            "share",
            {"tied": "frac_reward_zero_std", "cut off": "completions/clipped_ratio"},
            help="tied: groups with equal rewards, which teach nothing; cut off: completions without an end",
        ),
        RunPanel(
            "length, tokens",
            {"mean": "completions/mean_length"},
            between=("completions/min_length", "completions/max_length"),
            help="of the completions; the band reaches from the shortest to the longest",
        ),
        RunPanel("gradient norm", {"norm": "grad_norm"}, help="before it is clipped"),
        RunPanel("learning rate", {"rate": "learning_rate"}, smoothing=0.0, help="that the step used"),
        _last_panel(metrics),
    ]


def _held_out(metrics: Sequence[str]) -> list[RunPanel]:
    if HELD_OUT not in metrics:
        return []
    several = {name.removeprefix("eval/"): name for name in metrics if name.startswith("eval/pass@")}
    help = "the share of right answers to problems that training never sees"
    lines = {"right": HELD_OUT} | several
    return [RunPanel("held-out problems", lines, smoothing=0.0, empty="not measured yet", help=help)]


def _last_panel(metrics: Sequence[str]) -> RunPanel:
    """Return the speed of the run or, if it was not measured, the difference between learner and sampler."""
    if THROUGHPUT in metrics:
        return RunPanel(
            "tokens per second", {"speed": THROUGHPUT}, help="of completions, over the time of a whole step"
        )
    if SCORED_MINUS_SAMPLED in metrics and "step_time" not in metrics:
        return RunPanel(
            "scored minus sampled", {"mean": SCORED_MINUS_SAMPLED}, help="of the tokens' log-probabilities; should be 0"
        )
    return RunPanel("seconds per step", {"time": "step_time"})


def metrics_of(record: RunRecord) -> list[str]:
    """List the metrics that the steps of a record have, each once."""
    return [*dict.fromkeys(name for step in record.steps for name in step.metrics)]


def names_of(panels: Sequence[RunPanel]) -> list[str]:
    """List the metrics that panels show, each once."""
    names = [name for panel in panels for name in (*panel.lines.values(), panel.spread, *(panel.between or ()))]
    return [name for name in dict.fromkeys(names) if name]
