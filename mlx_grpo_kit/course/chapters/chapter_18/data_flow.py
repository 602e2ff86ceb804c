"""One step of GRPO, followed from the prompts to the changed parameters: every array on the way, and a panel of them.

    data = follow_step(config, params, tokenizer, Addition())
    data.batch.advantages                   # [N]
    data.updates[1].ratio                   # [N, T], of the second update of the same batch
    show_step(data)                         # ends a cell

The kit's own parts compute everything: those that `GRPOTrainer` runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlx_grpo_kit.course.chapters.chapter_18.pictures.data_flow import draw_data_flow
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, per_token_logps
from mlx_grpo_kit.grpo.batch import Batch
from mlx_grpo_kit.grpo.loss import token_losses
from mlx_grpo_kit.grpo.optimizer import Gradient
from mlx_grpo_kit.grpo.step import draw_batch
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Task
from mlx_grpo_kit.viz import Panel

UPDATES = 2


@dataclass(frozen=True)
class UpdateData:
    """One update of the policy. N completions of up to T tokens; NumPy arrays.

    Attributes:
        logps: [N, T], of the policy before this update; 0 at padded positions.
        ratio: [N, T], exp(logps - old_logps).
        objective: [N, T], min(ratio A, clip(ratio) A).
        clipped: [N, T], -1 where the ratio fell too low, +1 where it rose too high, else 0.
        shares: [N, T], what each token adds to the loss; 0 at padded positions.
        loss: the loss that the learner reports.
        logps_after: [N, T], of the policy after this update.
        grad_norm: the length of the gradient, before it is shortened.
        gradient: the length of each part's gradient, by the name of the part.
        change: how far each part of the model moves, by the name of the part.
    """

    logps: np.ndarray
    ratio: np.ndarray
    objective: np.ndarray
    clipped: np.ndarray
    shares: np.ndarray
    loss: float
    logps_after: np.ndarray
    grad_norm: float
    gradient: dict[str, float]
    change: dict[str, float]


@dataclass(frozen=True)
class StepData:
    """A step of GRPO with two updates from its batch.

    Attributes:
        args: the settings.
        batch: completions, scores, rewards [N] and advantages [N].
        tokens: N lists with the text of each token.
        groups: [P, n], the rewards of each of the P prompts.
        means, deviations: [P], of each group; the deviation divides by n - 1.
        completion_mask: bool [N, T].
        old_logps: [N, T], of the policy that drew the completions; 0 at padded positions.
        num_arrays, num_parameters: how many arrays and numbers are trained.
        updates: the updates, in order.
    """

    args: GRPOConfig
    batch: Batch
    tokens: list[list[str]]
    groups: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    completion_mask: np.ndarray
    old_logps: np.ndarray
    num_arrays: int
    num_parameters: int
    updates: tuple[UpdateData, ...]


def follow_step(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    tokenizer: Tokenizer,
    task: Task,
    *,
    num_prompts: int = 4,
    num_generations: int = 8,
    learning_rate: float = 5e-4,
    seed: int = 0,
) -> StepData:
    """Draw a batch, learn from it twice, and keep every array. `params` do not change.

    Raises ValueError for settings that `GRPOConfig` refuses.
    """
    args = GRPOConfig(
        learning_rate=learning_rate,
        num_generations=num_generations,
        per_device_train_batch_size=num_prompts * num_generations,
        num_iterations=UPDATES,
        seed=seed,
    )
    trainer = GRPOTrainer(config, params, tokenizer, task, args)
    parts, policy = trainer.parts, trainer.policy
    batch = draw_batch(parts, policy, step=0)
    drawn = batch.completions

    def logps_of(policy):
        return per_token_logps(config, policy.params, drawn.prompt_ids, drawn.completion_ids, args.temperature)

    old_logps, mask = logps_of(policy)
    logps, advantages = old_logps, mx.array(batch.advantages)
    [micro_batches], updates = parts.learner.prepare(policy, batch), []  # one mini-batch: the whole batch
    for _ in range(UPDATES):
        tokens = token_losses(parts.learner.loss_config, logps, old_logps, advantages, mask)
        gradient, metrics = parts.learner.gradient(policy, micro_batches)
        norms = _by_part(gradient)  # before the optimizer empties the gradient
        after = parts.optimizer(policy, gradient, learning_rate)
        logps_after, _ = logps_of(after)
        moved = {name: value - policy.trained[name] for name, value in after.trained.items()}
        low, high = (tokens.events[f"clip_ratio/{side}_mean"] for side in ("low", "high"))
        updates.append(
            UpdateData(
                logps=np.array(logps),
                ratio=np.array(mx.exp(logps - old_logps)),
                objective=np.array(-tokens.losses),
                clipped=np.array(high & mask, int) - np.array(low & mask, int),
                shares=np.array(tokens.mask * tokens.weights * tokens.losses),
                loss=metrics["loss"],
                logps_after=np.array(logps_after),
                grad_norm=metrics["grad_norm"],
                gradient=norms,
                change=_by_part(moved),
            )
        )
        policy, logps = after, logps_after
    groups = batch.rewards.reshape(num_prompts, num_generations)
    return StepData(
        args=args,
        batch=batch,
        tokens=[[_spelled(tokenizer, id_) for id_ in ids] for ids in drawn.completion_ids],
        groups=groups,
        means=groups.mean(axis=1),
        deviations=groups.std(axis=1, ddof=1),
        completion_mask=np.array(mask),
        old_logps=np.array(old_logps),
        num_arrays=len(policy.trained),
        num_parameters=sum(value.size for value in policy.trained.values()),
        updates=tuple(updates),
    )


def show_step(data: StepData, completion: int = 0) -> Panel:
    """A panel with the step as boxes, and the numbers of the completion that its slider chooses; ends a cell."""
    import ipywidgets as widgets

    def draw(completion: int, second: bool):
        return draw_data_flow(data, completion, second)

    return Panel(
        draw,
        completion=widgets.IntSlider(completion, 0, len(data.tokens) - 1, layout=widgets.Layout(width="420px")),
        second=widgets.Checkbox(False, description="second update of the same batch", indent=False),
    )


def _part(name: str) -> str:
    """The part of the model that a parameter belongs to, such as "layers.0" or "embedding"."""
    return ".".join(name.split(".")[:2]) if name.startswith("layers.") else name.removesuffix(".weight")


def _by_part(arrays: Mapping[str, mx.array]) -> dict[str, float]:
    """The length of each part's numbers, taken together as one vector."""
    parts: dict[str, dict[str, mx.array]] = {}
    for name, value in arrays.items():
        parts.setdefault(_part(name), {})[name] = value
    return {part: Gradient(members).norm for part, members in parts.items()}


def _spelled(tokenizer: Tokenizer, id_: int) -> str:
    return "end" if id_ in tokenizer.eos_token_ids else repr(tokenizer.decode([id_]) or tokenizer.token(id_))
