"""The fields of GRPOConfig as options of `train`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlx_grpo_kit.cli.values import is_bfloat16, json_object, names, number, numbers, seconds, seed, whole_number
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.recipe import TINY_ARGS


@dataclass(frozen=True)
class Setting:
    """A field of GRPOConfig as an option; `type` parses it (bool: a flag, list: a text per use of the option)."""

    name: str
    type: Callable[[str], Any]
    help: str

    @property
    def option(self) -> str:
        """The option as it is typed in the terminal."""
        return "--dtype" if self.type is is_bfloat16 else "--" + self.name.replace("_", "-")

    @property
    def default(self) -> Any:
        """The default in GRPOConfig."""
        return getattr(GRPOConfig, self.name)

    def add_to(self, group: Any) -> None:
        """Add the option to a parser; its value is None if it is not given."""
        default = f"default {self.default}"
        if TINY_ARGS.get(self.name, self.default) != self.default:
            default = f"default {TINY_ARGS[self.name]} for the tiny model, {self.default} for a large one"
        if self.type is bool:
            group.add_argument(self.option, action=argparse.BooleanOptionalAction, default=None, help=self.help)
            return
        if self.type is list:
            group.add_argument(self.option, dest=self.name, action="append", metavar="TEXT", help=self.help)
            return
        words = self.help if self.default is None or self.type is is_bfloat16 else f"{self.help} ({default})"
        kinds = {str: "NAME", is_bfloat16: "NAME", numbers: "N,N", names: "NAME,NAME", json_object: "JSON"}
        metavar = kinds.get(self.type, "N")
        also = ["--lora-rank"] if self.name == "lora_r" else []  # mlx-lm's name
        group.add_argument(self.option, *also, dest=self.name, type=self.type, metavar=metavar, help=words)


# GRPOConfig's documentation explains each in more detail.
SETTINGS = {
    "how fast it learns": (
        Setting("learning_rate", number, "step size of the optimizer; ten times the default with --lora-r"),
        Setting("lr_scheduler_type", str, "constant, or linear or cosine, which fall to 0 at --max-steps"),
        Setting("warmup_steps", number, "steps in which the learning rate rises to its full value, or a share below 1"),
        Setting("weight_decay", number, "the optimizer's; norms and biases do not decay"),
        Setting("max_grad_norm", number, "gradients with a larger norm are scaled down to it"),
    ),
    "what it learns from": (
        Setting("num_generations", whole_number, "completions per prompt; each is compared with the others"),
        Setting("per_device_train_batch_size", whole_number, "completions that go through the model at once"),
        Setting("gradient_accumulation_steps", whole_number, "such batches per step, for all processes together"),
        Setting("steps_per_generation", whole_number, "such batches sampled per step, divided among several updates"),
        Setting("num_iterations", whole_number, "updates from each batch of completions"),
        Setting("scale_rewards", str, "divide by the standard deviation of the group, the batch, or none"),
        Setting("advantage_estimator", str, "grpo: compare with the group's mean; rloo: with the mean of the others"),
        Setting(
            "reward_weights",
            numbers,
            "weights of several reward functions, such as 1,0.2 (default: 1 for each)",
        ),
        Setting("multi_objective_aggregation", str, "combine several rewards by this, or by normalize_then_sum (GDPO)"),
        Setting("dynamic_sampling_rounds", whole_number, "redraw groups without spread up to this many times (DAPO)"),
        Setting(
            "soft_punish_cache",
            whole_number,
            "punish completions within N tokens of the maximum length (DAPO)",
        ),
        Setting("mask_truncated_completions", bool, "leave completions without an end token out of the loss"),
        Setting("on_reward_error", str, "stop when a reward function fails, or skip the completion"),
        Setting("gradient_statistics", bool, "add metrics of each parameter's gradient"),
    ),
    "what it costs": (
        Setting("lora_r", whole_number, "train adapters of this rank, such as 8, and freeze the model"),
        Setting("lora_alpha", number, "the adapters' output is multiplied by this, divided by their rank"),
        Setting("lora_target_modules", names, "linear maps with adapters, such as q_proj,v_proj (default: all)"),
        Setting("gradient_checkpointing", bool, "less memory, more time: recompute activations in the backward pass"),
        Setting("completion_batch_size", whole_number, "completions sampled at once (default: 2 GiB of cache)"),
        Setting("backend", str, "the learner, which computes gradients: mlx, torch (the fastest on a CPU) or jax"),
        Setting("optim", str, "adamw; adafactor needs half the memory, and makes different updates"),
        Setting("bf16", is_bfloat16, "float32 (default); bfloat16 on a GPU, with parameters kept in float32"),
    ),
    "how it samples": (
        Setting("max_completion_length", whole_number, "maximum tokens per completion (default: the task's own)"),
        Setting("stop_strings", list, "a text that ends a completion and stays in it; may be given several times"),
        Setting("chat_template_kwargs", json_object, "settings for the model's chat template, as JSON"),
        Setting(
            "max_tool_calling_iterations",
            whole_number,
            "maximum number of times that a completion may call tools (default: no limit)",
        ),
        Setting(
            "tool_timeout", seconds, "seconds that a tool call may take, or none: no limit, and no thread for tools"
        ),
        Setting("temperature", number, "logits are divided by it"),
        Setting("top_k", whole_number, "sample among the N likeliest tokens"),
        Setting("top_p", number, "sample among the likeliest tokens that together have this probability"),
        Setting("min_p", number, "sample among tokens at least this fraction as likely as the likeliest"),
        Setting("seed", seed, "seed for problems and sampling: the same seed on the same machine gives the same run"),
    ),
    "the loss": (
        Setting("loss_type", str, "grpo, bnpo, dr_grpo, dapo, luspo, cispo, sapo, vespo, reinforce or rloo"),
        Setting("epsilon", number, "how far a probability ratio may fall before it is clipped"),
        Setting("epsilon_high", number, "how far it may rise before it is clipped (default: as far as it may fall)"),
        Setting("delta", number, "an upper bound on the ratios of tokens with negative advantage"),
        Setting("importance_sampling_level", str, "one ratio per token, or per sequence"),
        Setting("off_policy_mask_threshold", number, "drop bad completions from which the policy has moved further"),
        Setting(
            "importance_sampling_correction",
            str,
            "weight by learner / sampler: token_truncate, token_mask, sequence_truncate or sequence_mask",
        ),
        Setting("importance_sampling_clip_min", number, "smallest of these weights (default: no bound)"),
        Setting("importance_sampling_clip_max", number, "largest of these weights"),
        Setting("beta", number, "weight of the KL penalty against the policy that training started from"),
        Setting("use_bias_correction_kl", bool, "multiply the KL penalty by the ratio (TRL's default)"),
        Setting("sync_ref_model", bool, "let that policy follow the trained one"),
        Setting("ref_model_mixup_alpha", number, "by this share"),
        Setting("ref_model_sync_steps", whole_number, "every N steps"),
        Setting("entropy_coef", number, "weight of the entropy bonus"),
        Setting("top_entropy_quantile", number, "the share of tokens learned from: those with the most entropy"),
    ),
}
