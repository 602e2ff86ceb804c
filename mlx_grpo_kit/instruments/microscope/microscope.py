"""The microscope for a training step: the effect of its loss, and of other losses, on every token.

    args = GRPOConfig(learning_rate=3e-4, num_generations=8, per_device_train_batch_size=64)
    trainer = GRPOTrainer(config, params, tokenizer, Addition(), args)
    before = trainer.params
    step = next(trainer.train(max_steps=trainer.step + 1))
    policies = take_updates(config, before, step.completions, args, 4)
    show_microscope(config, policies, tokenizer, step.completions, args)     # at the end of a cell

`policies` are the one that sampled the completions, and later ones. `[before, trainer.params]` is the simplest choice.
`take_updates` learns from the same completions several times, on a copy, so that ratios leave the clip range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mlx_grpo_kit.grpo import LOSS_TYPES, Completion, GRPOConfig
from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig
from mlx_grpo_kit.grpo.settings import rules_of
from mlx_grpo_kit.instruments.microscope.measure import FrozenBatch, examine, freeze
from mlx_grpo_kit.instruments.microscope.microscope_picture import draw_microscope
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.viz.browser import BrowserWidget
from mlx_grpo_kit.viz.picture import Picture, as_picture

NORMALIZED = (
    "This run normalizes the rewards of each function separately and then adds them up (normalize_then_sum). The "
    "microscope computes advantages from the summed rewards, so its advantages, loss and pushes differ from the run's."
)
CAP = 5.0  # for cispo's weights, as MiniMax-M1 and TRL recommend


def show_microscope(
    config: Qwen3Config,
    policies: Sequence[Mapping[str, mx.array]],
    tokenizer: Tokenizer,
    completions: Sequence[Completion],
    args: GRPOConfig,
    *,
    ref_params: Mapping[str, mx.array] | None = None,
    group: int = 0,
    update: int | None = None,
) -> Microscope:
    """Show a step's completions with rewards, advantages and every token's ratio, clip, entropy and push.

    Put it at the end of a cell. Its controls start with the settings of the run. `examine` computes their effect from
    log-probabilities that this function computes once.

    Args:
        policies: the parameters of each policy, first of the one that sampled the completions, then of later ones.
        completions: the completions of a TrainStep.
        args: the run's settings.
        ref_params: the policy that `beta` pulls toward; None means the first policy.
        group: the prompt that is shown first, from 0.
        update: the policy that is shown first; None means the last.

    Raises:
        ValueError: like `freeze`, or there is no such group or update.
    """
    frozen = freeze(config, policies, completions, args, ref_params)
    num_groups, last = len(completions) // args.num_generations, len(policies) - 1
    update = last if update is None else update
    for name, value, most in (("group", group, num_groups - 1), ("update", update, last)):
        if not 0 <= value <= most:
            raise ValueError(f"{name} is {value}; expected 0 to {most}.")
    longest = frozen.completion_mask.shape[1]
    base = args.loss(args.max_completion_length or longest)
    is_cispo = base.loss_type == "cispo"
    rules = rules_of(GRPOConfig)
    batch = {
        "completions": [_shown(tokenizer, each) for each in completions],
        "num_generations": args.num_generations,
        "updates": last,
        "loss_types": [*LOSS_TYPES],
        "importance_sampling_levels": [*rules["importance_sampling_level"].choices],
        "scale_rewards": [*rules["scale_rewards"].choices],
        "advantage_estimators": [*rules["advantage_estimator"].choices],
        "note": NORMALIZED if args.multi_objective_aggregation == "normalize_then_sum" else "",
    }
    settings = {
        "group": group,
        "update": update,
        "loss_type": base.loss_type,
        "importance_sampling_level": base.importance_sampling_level,
        "epsilon": base.epsilon,
        "epsilon_high": None if is_cispo else base.epsilon_high,  # None: epsilon
        "cap": base.epsilon_high if is_cispo else CAP,  # of cispo's weights
        "beta": base.beta,
        "scale_rewards": args.scale_rewards,
        "advantage_estimator": args.advantage_estimator,
        "rewards": None,  # the batch's own
    }
    return Microscope(batch, settings, lambda settings: _look(frozen, base, settings))


class Microscope(BrowserWidget):
    """A widget in which you choose a prompt, an answer and a token, change the loss's settings, and drag rewards.

    Args:
        batch: what stays: the completions, of which those of a prompt are adjacent, and the choices of the controls.
        settings: the initial values of the controls.
        look: a function from settings to a reading. "advantages" has all completions, "means" and "stds" all groups.
            "tokens" has columns for each completion of the group, "largest" the largest size of three of them in the
            whole batch. The message of a ValueError is shown.
    """

    source = Path(__file__).with_name("microscope")

    def __init__(
        self,
        batch: Mapping[str, Any],
        settings: Mapping[str, Any],
        look: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ):
        self._look = look
        super().__init__({"batch": batch, "settings": settings, "reading": look(settings)})

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the reading for other settings."""
        return self._look(question)

    def draw_still(self) -> Picture:
        """Draw the first reading."""
        return as_picture(*draw_microscope(self.data["batch"], self.data["settings"], self.data["reading"]))


def _look(frozen: FrozenBatch, base: GRPOLossConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the content of the microscope under these settings, as JSON."""
    chosen = {name: settings[name] for name in ("loss_type", "importance_sampling_level", "epsilon", "beta")}
    epsilon_high = settings["cap" if settings["loss_type"] == "cispo" else "epsilon_high"]
    reading = examine(
        frozen,
        replace(base, **chosen, epsilon_high=epsilon_high),
        update=settings["update"],
        rewards=settings["rewards"],
        scale_rewards=settings["scale_rewards"],
        advantage_estimator=settings["advantage_estimator"],
    )
    entropies = np.array(frozen.entropies[settings["update"]])
    columns = {
        "log_ratios": reading.log_ratios,
        "clips": reading.clips,
        "entropies": entropies,
        "before": np.exp(np.array(frozen.logps[0])),
        "after": np.exp(np.array(frozen.logps[settings["update"]])),
        "weights": reading.weights,
        "pushes": reading.pushes,
    }
    first = settings["group"] * frozen.num_generations
    lengths = np.array(frozen.completion_mask).sum(axis=1)
    return {
        "group": settings["group"],
        "loss": reading.loss,
        "metrics": reading.metrics,
        "advantages": reading.advantages.tolist(),
        "means": reading.means.tolist(),
        "stds": reading.stds.tolist(),
        "largest": {name: float(np.abs(columns[name]).max()) for name in ("log_ratios", "entropies", "pushes")},
        "tokens": [
            {name: _rounded(values[row, : lengths[row]]) for name, values in columns.items()}
            for row in range(first, first + frozen.num_generations)
        ],
    }


def _rounded(values: np.ndarray) -> list[float]:
    """Round numbers to the significant digits of a float32, to save characters."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def _shown(tokenizer: Tokenizer, completion: Completion) -> dict[str, Any]:
    ends = set(tokenizer.eos_token_ids)
    return {
        "prompt": completion.prompt,
        "text": completion.completion,
        "tokens": [
            "end" if id_ in ends else repr(tokenizer.decode([id_]) or tokenizer.token(id_))
            for id_ in completion.completion_ids
        ],
        "reward": completion.reward,
        "finished": completion.finished,
    }
