"""The settings of a training run, under TRL's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.grpo.habits import names_habits

if TYPE_CHECKING:
    from mlx_grpo_kit.generation import SamplingConfig
    from mlx_grpo_kit.grpo.loss_config import GRPOLossConfig

MAY_CHANGE = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm",
    "gradient_checkpointing", "completion_batch_size", "on_reward_error", "gradient_statistics", "backend",
)  # fmt: skip
"""Settings that a resumed run may change: the size of the next updates but not what they learn from, settings that
affect only time and memory (and numbers by rounding), and the handling of an error that ended the run."""


@names_habits("setting")
@dataclass(frozen=True)
class GRPOConfig:
    """Settings of `GRPOTrainer`, under the names of TRL's `GRPOConfig`. Where a default differs, TRL 1.16's is given.

    One step samples `per_device_train_batch_size * gradient_accumulation_steps` completions, `num_generations` for
    each prompt, and learns from them `num_iterations` times.

    Attributes:
        learning_rate: TRL's 1e-6 suits a real Qwen3. For the tiny one `train` uses 5e-4.
        lr_scheduler_type: "linear" and "cosine" fall to 0 at `max_steps` of `train`, and so go on higher where a run is
            made longer; "constant" and "constant_with_warmup" stay (the kit's default; TRL: linear).
        warmup_steps: steps in which the learning rate rises to its full value.
        weight_decay: the optimizer's.
        optim: "adamw", or "adafactor", which keeps next to nothing for each parameter: 8 bytes of 16 a parameter stay
            free. It is another optimizer, and learns in other steps.
        backend: the learner, which computes gradients, of "mlx", "torch" or "jax": one gradient, but for rounding. On
            a CPU torch takes the least time. Sampling and updates are MLX's. (TRL has torch alone.)
        bf16: forward and backward passes in bfloat16, of parameters that the optimizer keeps in float32. For GPUs; a
            CPU takes about five times as long for it. (TRL: True; what a model is given in is computed in here.)
        max_grad_norm: gradients longer than this are shortened to it.
        num_generations: completions a prompt (a group); at least 2, because a completion is judged against its group.
        per_device_train_batch_size: completions that go through the model at once (a micro-batch).
        gradient_accumulation_steps: micro-batches per step. Their product is the number of completions of a step, of
            all processes together: more processes share the same step, where TRL makes the step larger.
        lora_r: train adapters of this rank beside the model, which stays as it is (`qwen3/lora.py`): a few numbers in
            the place of all, no gradient of the model's size, and a reference for `beta` that takes no memory. The
            model may be quantized. None trains all parameters (peft's name; TRL's `ModelConfig` has it with
            `use_peft`). The learning rate that suits adapters is about ten times that of all parameters.
        lora_alpha: what adapters add is multiplied by lora_alpha / lora_r.
        lora_target_modules: which linear maps of a layer have adapters; None: all seven (peft: q_proj and v_proj).
        gradient_checkpointing: keep only the input of each transformer block for the backward pass, which computes the
            rest again, one block at a time: the same gradients from less memory, in more time (TRL: True).
        completion_batch_size: completions sampled at once, in training and in evaluation: the same are drawn, from a
            smaller key-value cache (mlx-lm's name; TRL has none). A multiple of `num_generations`; None takes all, or
            as many as a cache of 2 GiB is enough for.
        steps_per_generation: micro-batches sampled per step, a multiple of gradient_accumulation_steps, which is the
            default. With twice as many, a step samples twice as many completions and makes two updates, each from its
            own half; the second half was then sampled by a policy that is one update older. Each half has whole
            groups. (TRL shuffles the completions before it divides them.)
        num_iterations: updates made from each batch of completions (mu in the paper).
        max_completion_length: tokens a completion may have; None takes the task's own (TRL: 512).
        stop_strings: a completion ends as soon as its text, special tokens included, contains one of these. It stays in
            the completion and in the loss (transformers' name; TRL has it in `generation_kwargs`), and the completion
            counts as finished.
        chat_template_kwargs: settings for the chat template of the model's folder, such as
            `{"enable_thinking": False}`, before those that the task has. The trainer refuses them where all
            prompts are texts.
        max_tool_calling_iterations: how often a completion may call tools; None: as often as it has room.
        tool_timeout: seconds that a call of a tool may take before the policy is told that there was no answer (TRL has
            no limit).
        temperature, top_k, top_p, min_p: as in `SamplingConfig`.
        beta: weight of the KL penalty against the reference: the policy that training started from.
        sync_ref_model: every `ref_model_sync_steps` steps the reference becomes `ref_model_mixup_alpha` parts the
            policy and the rest what it was (TR-DPO, https://arxiv.org/abs/2404.09656). Steps are the trainer's; TRL
            counts updates, `num_iterations` times as many.
        epsilon, epsilon_high, delta, loss_type, importance_sampling_level, use_bias_correction_kl, entropy_coef,
            top_entropy_quantile, off_policy_mask_threshold, importance_sampling_correction,
            importance_sampling_clip_min, importance_sampling_clip_max: as in `GRPOLossConfig`. The tokens with the
            highest entropy are chosen once for all `num_iterations`, by the policy that sampled (TRL measures again).
        scale_rewards, advantage_estimator, reward_weights, multi_objective_aggregation: as in `compute_advantages`.
            There is one weight for each of the task's reward functions, in their order.
        dynamic_sampling_rounds: how often groups without spread, from which nothing can be learned, are drawn again,
            with other problems; those of the last round stay. 0 is never (DAPO, https://arxiv.org/abs/2503.14476,
            equation 11; verl's `max_num_gen_batches`; TRL has none). The metrics of a step are then of the
            completions it learned from; "dynamic_sampling/groups_drawn" and "dynamic_sampling/reward" of all.
        soft_punish_cache: completions are punished for the last so many tokens before `max_completion_length`, by up to
            1, as if by one more reward function (`soft_overlong_punishment`; TRL's `get_soft_overlong_punishment`
            calls it so). 0 is never.
        mask_truncated_completions: leave completions without an end token out of the loss.
        on_reward_error: what happens where a reward function raises, or gives a completion no finite number: "stop"
            ends the run with a RewardError; "skip" goes on without that completion's value, warns of the first of each
            function, and counts them in `rewards/{function}/failed` (TRL has no such setting: it stops).
        gradient_statistics: add metrics of each parameter's gradient, before it is clipped: `gradients/{name}/norm`,
            `gradients/{name}/largest` and `gradients/{name}/zeros`, the share of numbers that are 0 (TRL has none).
        seed: of problems and of sampling. Same seed, same machine, same run.

    Numbers of NumPy, MLX, torch and JAX become Python's, which a checkpoint can hold.

    Raises ValueError for a setting that is out of range or does not fit another.
    """

    learning_rate: float = 1e-6
    lr_scheduler_type: str = "constant"
    warmup_steps: int = 0
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
    tool_timeout: float = 60.0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
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
        """The factor of the product of an adapter's two arrays."""
        return self.lora_alpha / (self.lora_r or 1)

    @property
    def lora_targets(self) -> tuple[str, ...]:
        """The linear maps of a layer that have adapters, where there are any."""
        from mlx_grpo_kit.qwen3.lora import TARGETS

        return self.lora_target_modules or TARGETS

    @property
    def generation_batch_size(self) -> int:
        """Completions sampled in one step, by all processes together."""
        return self.per_device_train_batch_size * (self.steps_per_generation or self.gradient_accumulation_steps)

    @property
    def mini_batches(self) -> int:
        """The number of parts into which a step's completions are divided, each with an update of its own."""
        return (self.steps_per_generation or self.gradient_accumulation_steps) // self.gradient_accumulation_steps

    @property
    def num_groups(self) -> int:
        """Prompts of one step."""
        return self.generation_batch_size // self.num_generations

    def check_processes(self, processes: int) -> None:
        """Raise ValueError where the groups of a step do not go evenly into so many processes."""
        completions = self.generation_batch_size // self.mini_batches
        if completions // self.num_generations % processes:
            raise ValueError(
                f"An update has {completions // self.num_generations} groups of {self.num_generations} completions, "
                f"which do not go evenly into {processes} processes. All processes together learn from "
                f"per_device_train_batch_size * gradient_accumulation_steps completions (now {completions}); expected "
                f"a multiple of num_generations * processes ({self.num_generations * processes})."
            )

    def check_task(self, max_completion_length: int, reward_funcs: Sequence[Callable]) -> None:
        """Raise ValueError where the settings do not fit a task's length and its reward functions."""
        from mlx_grpo_kit.tasks.signatures import reward_name

        if self.soft_punish_cache > max_completion_length:
            raise ValueError(
                f"soft_punish_cache is {self.soft_punish_cache}; expected at most the length of a completion, "
                f"{max_completion_length} tokens, of which it is the last part."
            )
        if self.reward_weights is not None and len(self.reward_weights) != len(reward_funcs):
            raise ValueError(
                f"reward_weights are {self.reward_weights}; expected a number for each of the {len(reward_funcs)} "
                f"reward functions ({', '.join(map(reward_name, reward_funcs))})."
            )

    def sampling(self, max_completion_length: int) -> SamplingConfig:
        """The settings for drawing completions."""
        from mlx_grpo_kit.generation import SamplingConfig

        return SamplingConfig(max_completion_length, self.temperature, self.top_k, self.top_p, self.min_p)

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
    """Raise ValueError for a setting that cannot change while a run goes on."""
    if fixed := sorted(settings.keys() - set(MAY_CHANGE)):
        raise ValueError(f"{fixed[0]} cannot change while a run goes on; only {', '.join(MAY_CHANGE)} can.")
