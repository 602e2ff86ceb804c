"""The settings of a training run, under TRL's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.runtime.habits import names_habits

if TYPE_CHECKING:
    from mlx_grpo_kit.generation import SamplingConfig
    from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig

MAY_CHANGE = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm",
    "gradient_checkpointing", "completion_batch_size", "on_reward_error", "gradient_statistics", "backend",
)  # fmt: skip
"""Settings that a resumed run may change: the size of updates, time and memory (and so rounding), and the response to
errors."""


@names_habits("setting")
@dataclass(frozen=True)
class GRPOConfig:
    """Settings of `GRPOTrainer`, under the names of TRL's `GRPOConfig`. Where a default differs, TRL 1.16's is given.

    One step samples `per_device_train_batch_size * gradient_accumulation_steps` completions, `num_generations` for
    each prompt, and learns from them `num_iterations` times.

    Attributes:
        learning_rate: TRL's 1e-6 suits a real Qwen3. For the tiny one `train` uses 5e-4.
        lr_scheduler_type: "linear" and "cosine" fall to 0 at `max_steps` of `train`, so a longer run continues at a
            higher rate; "constant" (the kit's default; TRL: linear) and "constant_with_warmup" do not fall.
        warmup_steps: the number of steps in which the learning rate rises to its full value; below 1 it is a share of
            all steps. A step is one batch of completions, as in `max_steps` of `train` and in the schedule. TRL counts
            updates, `num_iterations` times as many if the other settings are TRL's defaults.
        weight_decay: the optimizer's. As in TRL and transformers, norms and biases do not decay.
        optim: "adamw", or "adafactor", which stores next to nothing per parameter and so saves 8 of 16 bytes per
            parameter. It makes different updates from AdamW.
        backend: the learner, which computes gradients: "mlx", "torch" or "jax". All give the same gradient except for
            rounding; on a CPU torch takes the least time, and samples too. Otherwise MLX samples. MLX always updates.
            (TRL has only torch.)
        bf16: compute forward and backward passes in bfloat16, while the optimizer keeps the parameters in float32. For
            GPUs; a CPU takes about five times as long for it. (TRL: True; here the model computes in the dtype of its
            parameters by default.)
        max_grad_norm: gradients with a larger norm are scaled down to it.
        num_generations: completions per prompt (a group); at least 2, because a completion is judged against its group.
        per_device_train_batch_size: completions that go through the model at once (a micro-batch).
        gradient_accumulation_steps: micro-batches per step. This times `per_device_train_batch_size` is the number of
            completions per step for all processes together: more processes share the same step. (TRL makes the step
            larger.)
        lora_r: train adapters of this rank and freeze the model (`qwen3/lora.py`). There are few numbers to train, no
            gradient of the model's size, and a reference for `beta` that takes no memory. The model may be quantized.
            None trains all parameters. (peft's name; TRL's `ModelConfig` has it with `use_peft`.) Adapters need about
            ten times the learning rate of training all parameters.
        lora_alpha: the output of adapters is multiplied by lora_alpha / lora_r.
        lora_target_modules: which linear maps of a layer have adapters; None: all seven (peft: q_proj and v_proj).
        gradient_checkpointing: keep only the input of each transformer block for the backward pass, which recomputes
            the rest one block at a time. This gives the same gradients with less memory and in more time (TRL: True).
        completion_batch_size: completions sampled at once, in training and in evaluation. It changes the size of the
            key-value cache and not the completions (mlx-lm's name; TRL has none). A multiple of `num_generations`; None
            samples all at once, or as many as fit into a cache of 2 GiB.
        steps_per_generation: micro-batches sampled per step, a multiple of gradient_accumulation_steps, which is the
            default. With twice as many, a step samples twice as many completions and makes two updates, each from its
            own half; the second half was then sampled by a policy that is one update older. Each half has whole
            groups. (TRL shuffles the completions before it divides them.)
        num_iterations: updates made from each batch of completions (mu in the paper).
        max_completion_length: the maximum number of tokens per completion; None uses the task's own (TRL: 512).
        stop_strings: a completion ends as soon as its text, special tokens included, contains one of these. The string
            stays in the completion and in the loss, and the completion counts as finished. (transformers' name; TRL has
            it in `generation_kwargs`.)
        chat_template_kwargs: settings for the chat template of the model's folder, such as `{"enable_thinking":
            False}`. They override those of the task. The trainer raises an error if no prompt is a chat.
        max_tool_calling_iterations: the maximum number of times that a completion may call tools; None: no limit but
            its length.
        tool_timeout: seconds that a tool call may take. After that, the policy gets the result that there was no
            answer, and the environment is not used again. Each environment then runs in a lasting thread of its own.
            None sets no limit and calls tools in the thread that samples, as TRL does.
        temperature, top_k, top_p, min_p: as in `SamplingConfig`; None disables a filter. The filters come before the
            temperature. In TRL they come after it, so top_p and min_p keep other tokens there unless it is 1.
        beta: weight of the KL penalty against the reference, the policy that training started from. (In TRL 1.16
            `use_bias_correction_kl` is True.)
        sync_ref_model: every `ref_model_sync_steps` steps the reference becomes `ref_model_mixup_alpha` * policy + (1 -
            `ref_model_mixup_alpha`) * reference (TR-DPO, https://arxiv.org/abs/2404.09656). TRL counts updates instead
            of steps, `num_iterations` times as many.
        epsilon, epsilon_high, delta, loss_type, importance_sampling_level, use_bias_correction_kl, entropy_coef,
            top_entropy_quantile, off_policy_mask_threshold, importance_sampling_correction,
            importance_sampling_clip_min, importance_sampling_clip_max: as in `GRPOLossConfig`. The tokens with the
            highest entropy are chosen once for all `num_iterations`, by the policy that sampled (TRL measures again).
        scale_rewards, advantage_estimator, reward_weights, multi_objective_aggregation: as in `compute_advantages`.
            Give one weight per reward function of the task, in their order.
        dynamic_sampling_rounds: how many times to replace groups without spread, which teach nothing, by groups of
            other problems; the groups of the last round are kept. 0 disables it (DAPO,
            https://arxiv.org/abs/2503.14476, equation 11; verl's `max_num_gen_batches`; TRL has none). The metrics of a
            step then describe the completions it learned from; "dynamic_sampling/groups_drawn" and
            "dynamic_sampling/reward" describe all that were sampled.
        soft_punish_cache: completions that reach into the last `soft_punish_cache` tokens before
            `max_completion_length` lose up to 1, through an additional reward function (`soft_overlong_punishment`; the
            name is that of TRL's `get_soft_overlong_punishment`). 0 disables it.
        mask_truncated_completions: leave completions without an end token out of the loss.
        on_reward_error: the response if a reward function raises, or returns a number that is not finite. "stop" ends
            the run with a RewardError. "skip" continues without that completion's reward, warns at the first failure of
            each function, and counts them in `rewards/{function}/failed` (TRL has no such setting: it stops).
        gradient_statistics: add metrics of each parameter's gradient, before it is clipped: `gradients/{name}/norm`,
            `gradients/{name}/largest` and `gradients/{name}/zeros`, the share of numbers that are 0 (TRL has none).
        seed: the seed for problems and sampling. The same seed on the same machine gives the same run.

    Numbers of NumPy, MLX, torch and JAX are converted to Python's, which a checkpoint can store.

    Raises ValueError for a setting that is out of range or contradicts another.
    """

    learning_rate: float = 1e-6
    lr_scheduler_type: str = "constant"
    warmup_steps: float = 0
    weight_decay: float = 0.0
    optim: str = "adamw"
    backend: str = "mlx"
    bf16: bool = False
    max_grad_norm: float = 1.0
    num_generations: int = 8
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    lora_r: int | None = None
    lora_alpha: float = 32.0
    lora_target_modules: tuple[str, ...] | None = None
    gradient_checkpointing: bool = False
    completion_batch_size: int | None = None
    steps_per_generation: int | None = None
    num_iterations: int = 1
    max_completion_length: int | None = None
    stop_strings: tuple[str, ...] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_tool_calling_iterations: int | None = None
    tool_timeout: float | None = 60.0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = 1.0
    min_p: float | None = None
    beta: float = 0.0
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    loss_type: str = "dapo"
    importance_sampling_level: str = "token"
    use_bias_correction_kl: bool = False
    sync_ref_model: bool = False
    ref_model_mixup_alpha: float = 0.6
    ref_model_sync_steps: int = 512
    entropy_coef: float = 0.0
    top_entropy_quantile: float = 1.0
    off_policy_mask_threshold: float | None = None
    importance_sampling_correction: str | None = None
    importance_sampling_clip_min: float | None = None
    importance_sampling_clip_max: float | None = 3.0
    scale_rewards: str = "group"
    advantage_estimator: str = "grpo"
    reward_weights: tuple[float, ...] | None = None
    multi_objective_aggregation: str = "sum_then_normalize"
    dynamic_sampling_rounds: int = 0
    soft_punish_cache: int = 0
    mask_truncated_completions: bool = False
    on_reward_error: str = "stop"
    gradient_statistics: bool = False
    seed: int = 0

    def __post_init__(self):
        from mlx_grpo_kit.grpo.config_checks import check_config  # the names and defaults of settings load no MLX

        check_config(self)

    @property
    def lora_scale(self) -> float:
        """The factor lora_alpha / lora_r by which an adapter's output is multiplied."""
        return self.lora_alpha / (self.lora_r or 1)

    @property
    def lora_targets(self) -> tuple[str, ...]:
        """The linear maps of a layer that have adapters, if adapters are trained."""
        from mlx_grpo_kit.qwen3.lora import TARGETS

        return self.lora_target_modules or TARGETS

    @property
    def generation_batch_size(self) -> int:
        """The number of completions sampled in one step, by all processes together."""
        return self.per_device_train_batch_size * (self.steps_per_generation or self.gradient_accumulation_steps)

    @property
    def mini_batches(self) -> int:
        """The number of parts into which a step's completions are divided, each with its own update."""
        return (self.steps_per_generation or self.gradient_accumulation_steps) // self.gradient_accumulation_steps

    @property
    def num_groups(self) -> int:
        """The number of prompts in one step."""
        return self.generation_batch_size // self.num_generations

    def check_processes(self, processes: int) -> None:
        """Raise ValueError if the groups of a step do not divide evenly among that many processes."""
        completions = self.generation_batch_size // self.mini_batches
        if completions // self.num_generations % processes:
            raise ValueError(
                f"An update has {completions // self.num_generations} groups of {self.num_generations} completions, "
                f"which do not divide evenly among {processes} processes. All processes together learn from "
                f"per_device_train_batch_size * gradient_accumulation_steps completions (now {completions}); expected "
                f"a multiple of num_generations * processes ({self.num_generations * processes})."
            )

    def check_task(self, max_completion_length: int, reward_funcs: Sequence[Callable]) -> None:
        """Raise ValueError if the settings do not fit a task's completion length and its reward functions."""
        from mlx_grpo_kit.tasks.signatures import reward_name

        if self.soft_punish_cache > max_completion_length:
            raise ValueError(
                f"soft_punish_cache is {self.soft_punish_cache}; expected at most max_completion_length, "
                f"{max_completion_length} tokens, because it is the last part of a completion."
            )
        if self.reward_weights is not None and len(self.reward_weights) != len(reward_funcs):
            raise ValueError(
                f"reward_weights are {self.reward_weights}; expected one number for each of the {len(reward_funcs)} "
                f"reward functions ({', '.join(map(reward_name, reward_funcs))})."
            )

    def sampling(self, max_completion_length: int) -> SamplingConfig:
        """The settings for drawing completions."""
        from mlx_grpo_kit.generation import SamplingConfig

        top_p = 1.0 if self.top_p is None else self.top_p
        return SamplingConfig(max_completion_length, self.temperature, self.top_k, top_p, self.min_p)

    def loss(self, max_completion_length: int) -> GRPOLossConfig:
        """The settings of the loss."""
        from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig

        return GRPOLossConfig(
            loss_type=self.loss_type,
            epsilon=self.epsilon,
            epsilon_high=self.epsilon_high,
            delta=self.delta,
            beta=self.beta,
            importance_sampling_level=self.importance_sampling_level,
            max_completion_length=max_completion_length,
            use_bias_correction_kl=self.use_bias_correction_kl,
            entropy_coef=self.entropy_coef,
            top_entropy_quantile=self.top_entropy_quantile,
            off_policy_mask_threshold=self.off_policy_mask_threshold,
            importance_sampling_correction=self.importance_sampling_correction,
            importance_sampling_clip_min=self.importance_sampling_clip_min,
            importance_sampling_clip_max=self.importance_sampling_clip_max,
            extra={each.name: getattr(self, each.name) for each in fields(self)[len(fields(GRPOConfig)) :]},
        )


def check_changes(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a setting that cannot change during a run."""
    if fixed := sorted(settings.keys() - set(MAY_CHANGE)):
        raise ValueError(f"{fixed[0]} cannot change during a run; only {', '.join(MAY_CHANGE)} can.")


def changed_settings(before: GRPOConfig, after: GRPOConfig) -> dict[str, Any]:
    """The settings in `MAY_CHANGE` that differ, with their later values."""
    return {name: getattr(after, name) for name in MAY_CHANGE if getattr(after, name) != getattr(before, name)}
