"""The settings of a training run, under TRL's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mlx_grpo_kit.grpo.loss_config import AdvantageSettings, GRPOLossConfig, LossSettings
from mlx_grpo_kit.grpo.schedule import LARGEST_RATE, SCHEDULES
from mlx_grpo_kit.grpo.settings import declares_settings, setting

if TYPE_CHECKING:
    from mlx_grpo_kit.generation import SamplingConfig

MAY_CHANGE = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm",
    "gradient_checkpointing", "completion_batch_size", "on_reward_error", "gradient_statistics", "backend",
)  # fmt: skip
"""Settings that a resumed run may change: the size of updates, time and memory (and so rounding), and the response to
errors."""


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of `GRPOConfig` for the optimizer, the memory, the sampler and the batches."""

    # fmt: off
    learning_rate: float = setting(
        1e-6, "step size of the optimizer; adapters need about ten times as much. TRL's 1e-6 suits a real "
        "Qwen3. For the tiny one `train` uses 5e-4.", above=0, most=LARGEST_RATE, also=("lr",))
    lr_scheduler_type: str = setting(
        "constant", 'how the learning rate continues after the warm-up. With "linear" and "cosine" it falls to 0 at '
        "`max_steps` of `train`, so a longer run continues at a higher rate; the other two do not fall (TRL: linear).",
        choices=tuple(SCHEDULES),
        hint=". For any other schedule, call trainer.change(learning_rate=...) in your training loop.")
    warmup_steps: float = setting(
        0, "steps in which the learning rate rises to its full value, or a share of all steps below 1. A step is one "
        "batch of completions, as in `max_steps` of `train` and in the schedule. TRL counts updates, `num_iterations` "
        "times as many if the other settings are TRL's defaults.")
    weight_decay: float = setting(
        0.0, "weight decay of the optimizer. As in TRL and transformers, norms and biases do not decay.", least=0)
    max_grad_norm: float = setting(
        1.0, "gradients with a larger norm are scaled down to it.", above=0, hint=" (for no clipping, 1e9).",
        also=("grad_clip", "gradient_clip", "gradient_clipping"))

    lora_r: int | None = setting(
        None, "train adapters of this rank, such as 8, and freeze the model. There are few numbers to train, no "
        "gradient of the model's size, and a reference for `beta` that takes no memory. The model may be quantized. "
        "None trains all parameters. (peft's name; TRL's `ModelConfig` has it with `use_peft`.)", least=1)
    lora_alpha: float = setting(32.0, "the output of adapters is multiplied by lora_alpha / lora_r.", above=0)
    lora_target_modules: tuple[str, ...] | None = setting(
        None, "linear maps of a layer with adapters, such as q_proj,v_proj (default: all seven). PEFT's are q_proj "
        "and v_proj.", also=("target_modules",))
    gradient_checkpointing: bool = setting(
        False, "less memory, more time: recompute activations in the backward pass. It keeps only the input of each "
        "transformer block and recomputes the rest one block at a time. The gradients are the same (TRL: True).",
        also=("activation_checkpointing", "grad_checkpoint"))
    completion_batch_size: int | None = setting(
        None, "completions sampled at once, in training and in evaluation (default: as many as fit into a cache of 2 "
        "GiB). It changes the size of the key-value cache and not the completions (mlx-lm's name; TRL has none). A "
        "multiple of `num_generations`.", least=1, also=("per_device_eval_batch_size",))
    backend: str = setting(
        "mlx", "the learner, which computes gradients; torch is the fastest on a CPU. All give the same gradient "
        "except for rounding. torch samples too; otherwise MLX samples. MLX always updates. (TRL has only torch.)",
        choices=("mlx", "torch", "jax"))
    optim: str = setting(
        "adamw", "the optimizer; adafactor needs half the memory, and makes different updates. It stores next to "
        "nothing per parameter and so saves 8 of 16 bytes per parameter.", choices=("adamw", "adafactor"),
        hint=", which saves memory.", elsewhere={"adam|.*adamw.*": "adamw"}, also=("optimizer",))
    bf16: bool = setting(
        False, "compute forward and backward passes in bfloat16, while the optimizer keeps the parameters in float32. "
        "For GPUs; a CPU takes about five times as long for it. (TRL: True; here the model computes in the dtype of "
        "its parameters by default.)")

    max_completion_length: int | None = setting(
        None, "maximum number of tokens per completion (default: the task's own). TRL: 512.", least=1,
        also=("max_new_tokens",))
    stop_strings: tuple[str, ...] | None = setting(
        None, "a completion ends as soon as its text, special tokens included, contains one of these. The string "
        "stays in the completion and in the loss, and the completion counts as finished. (transformers' name; TRL has "
        "it in `generation_kwargs`.)")
    chat_template_kwargs: dict[str, Any] | None = setting(
        None, 'settings for the chat template of the model\'s folder, such as {"enable_thinking": false}. They '
        "override those of the task. The trainer raises an error if no prompt is a chat.")
    max_tool_calling_iterations: int | None = setting(
        None, "maximum number of times that a completion may call tools (default: no limit but its length).", least=0)
    tool_timeout: float | None = setting(
        60.0, "seconds that a tool call may take, or none: no limit, and no thread for tools. After that, the policy "
        "gets the result that there was no answer, and the environment is not used again. Each environment then runs "
        "in a lasting thread of its own. None sets no limit and calls tools in the thread that samples, as TRL does.",
        above=0, hint=" seconds, or None for no limit.")
    temperature: float = setting(1.0, "logits are divided by it. As in `SamplingConfig`.", also=("temp",))
    top_k: int | None = setting(None, "sample among the N likeliest tokens.")
    top_p: float | None = setting(
        1.0, "sample among the likeliest tokens that together have this probability. None disables a filter. The "
        "filters come before the temperature. In TRL they come after it, so top_p and min_p keep other tokens there "
        "unless it is 1.")
    min_p: float | None = setting(None, "sample among tokens at least this fraction as likely as the likeliest.")
    seed: int = setting(
        0, "seed for problems and sampling: the same seed on the same machine gives the same run.", least=0,
        also=("data_seed",))

    num_generations: int = setting(
        8, "completions per prompt (a group); each is compared with the others.", least=2,
        hint=". A completion is compared with the others of its prompt: a single completion always has advantage 0, "
        "and nothing is learned.", also=("group_size",))
    per_device_train_batch_size: int = setting(
        8, "completions that go through the model at once (a micro-batch).", least=1)
    gradient_accumulation_steps: int = setting(
        1, "micro-batches per step, for all processes together. This times `per_device_train_batch_size` is the "
        "number of completions per step: more processes share the same step. (TRL makes the step larger.)", least=1,
        also=("grad_accumulation_steps",))
    steps_per_generation: int | None = setting(
        None, "micro-batches sampled per step, divided among several updates. A multiple of "
        "gradient_accumulation_steps, which is the default. With twice as many, a step samples twice as many "
        "completions and makes two updates, each from its own half; the second half was then sampled by a policy that "
        "is one update older. Each half has whole groups. (TRL shuffles the completions before it divides them.)",
        least=1)
    num_iterations: int = setting(1, "updates made from each batch of completions. The paper's mu.", least=1)
    dynamic_sampling_rounds: int = setting(
        0, "redraw groups without spread, which teach nothing, up to this many times (DAPO). Groups of other problems "
        "replace them; the groups of the last round are kept (https://arxiv.org/abs/2503.14476, equation 11; verl's "
        "`max_num_gen_batches`; TRL has none). The metrics of a step then describe the completions it learned from; "
        '"dynamic_sampling/groups_drawn" and "dynamic_sampling/reward" describe all that were sampled.', least=0)
    soft_punish_cache: int = setting(
        0, "punish completions within N tokens of the maximum length (DAPO). They lose up to 1, through an additional "
        "reward function (`soft_overlong_punishment`; the name is that of TRL's `get_soft_overlong_punishment`). 0 "
        "disables it.", least=0)
    mask_truncated_completions: bool = setting(False, "leave completions without an end token out of the loss.")
    on_reward_error: str = setting(
        "stop", 'the response if a reward function raises, or returns a number that is not finite. "stop" ends the '
        'run with a RewardError. "skip" continues without that completion\'s reward, warns at the first failure of '
        "each function, and counts them in `rewards/{function}/failed` (TRL has no such setting: it stops).",
        choices=("stop", "skip"))
    gradient_statistics: bool = setting(
        False, "add metrics of each parameter's gradient. Before it is clipped: `gradients/{name}/norm`, "
        "`gradients/{name}/largest` and `gradients/{name}/zeros`, the share of numbers that are 0 (TRL has none).")
    reward_weights: tuple[float, ...] | None = setting(
        None, "weights of the task's reward functions, in their order, such as 1,0.2 (default: 1 for each).")
    # fmt: on


@declares_settings
@dataclass(frozen=True)
class GRPOConfig(LossSettings, AdvantageSettings, TrainingSettings):
    """Settings of `GRPOTrainer`, under the names of TRL's `GRPOConfig`. Where a default differs, TRL 1.16's is given.

    One step samples `per_device_train_batch_size * gradient_accumulation_steps` completions, `num_generations` for
    each prompt, and learns from them `num_iterations` times.

    Numbers of NumPy, MLX, torch and JAX are converted to Python's, which a checkpoint can store.

    Raises ValueError for a setting that is out of range or contradicts another.
    """

    sync_ref_model: bool = setting(
        False,
        "let the reference of the KL penalty follow the policy. Every `ref_model_sync_steps` steps the "
        "reference becomes `ref_model_mixup_alpha` * policy + (1 - `ref_model_mixup_alpha`) * reference (TR-DPO, "
        "https://arxiv.org/abs/2404.09656). TRL counts updates instead of steps, `num_iterations` times as many.",
    )
    ref_model_mixup_alpha: float = setting(0.6, "the policy's share in that reference.", least=0, most=1)
    ref_model_sync_steps: int = setting(512, "steps after which the reference follows again.", least=1)

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
        shared, own = fields(LossSettings), fields(self)[len(fields(GRPOConfig)) :]
        values, extra = ({each.name: getattr(self, each.name) for each in some} for some in (shared, own))
        return GRPOLossConfig(**values, max_completion_length=max_completion_length, extra=extra)


def check_changes(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a setting that cannot change during a run."""
    if fixed := sorted(settings.keys() - set(MAY_CHANGE)):
        raise ValueError(f"{fixed[0]} cannot change during a run; only {', '.join(MAY_CHANGE)} can.")


def changed_settings(before: GRPOConfig, after: GRPOConfig) -> dict[str, Any]:
    """The settings in `MAY_CHANGE` that differ, with their later values."""
    return {name: getattr(after, name) for name in MAY_CHANGE if getattr(after, name) != getattr(before, name)}
