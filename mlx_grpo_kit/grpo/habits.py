"""Names that users of TRL, PEFT, mlx-lm and other libraries are used to, and what the kit has in their place.

A setting, an argument or an option by such a name raises an error with these words. The table is in the guide
`coming_from.md`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable

_IN_THE_LOOP = "the trainer is an iterator, and this is a line in the body of its loop"
_RECIPES = "the guide 'Train, watch and record' has recipes"
_TRAIN = "trainer.train(max_steps=...) has it"
_EPOCHS = f"rows of a RowsTask come once an epoch; {_TRAIN}; --num-train-epochs"
_LENGTH = "max_completion_length; --max-completion-length"
_CLIPPING = "max_grad_norm; --max-grad-norm"
_BETAS = "AdamW's betas are 0.9 and 0.999, and its epsilon is 1e-8"
_PROCESSES = "train --processes N, or mlx.launch, trains in several processes"
_HUB = "nothing is uploaded: trainer.save_pretrained(folder) writes a Hugging Face folder"
_IN_DTYPE = "bf16=True; --dtype bfloat16"
_BATCH = "per_device_train_batch_size * gradient_accumulation_steps are the completions of a step"
_SAMPLED = "completion_batch_size; --completion-batch-size"
_SYSTEM = "RowsTask(rows, system=...); in the terminal generate --chat --system"
_ADAPTERS = "GRPOConfig(lora_r=8), --lora-rank 8"
_QUANTIZED = "a folder that mlx-lm has quantized (mlx_lm.convert -q) loads as it is, and is trained with lora_r"
_TASK = "the task has it, mlx_grpo_kit.tasks: RowsTask(rows, reward_funcs=[...]); --data problems.jsonl"
_MODEL = "config, params = load_pretrained(folder), then GRPOTrainer(config, params, tokenizer, task, args)"

HABITS: dict[str, str] = {
    # how long, how often
    "max_steps": _TRAIN,
    "num_train_epochs": _EPOCHS,
    "num_epochs": _EPOCHS,
    "iters": f"{_TRAIN}; --max-steps",
    "epochs": _EPOCHS,
    "warmup_ratio": "warmup_steps counts steps",
    "lr_scheduler_kwargs": f"{_IN_THE_LOOP}: trainer.change(learning_rate=...)",
    "save_steps": f"{_IN_THE_LOOP}: trainer.save_checkpoint(folder); --save-every",
    "save_strategy": f"{_IN_THE_LOOP}: trainer.save_checkpoint(folder); --save-every",
    "eval_steps": f"{_IN_THE_LOOP}: trainer.evaluate(); --eval-every",
    "eval_strategy": f"{_IN_THE_LOOP}: trainer.evaluate(); --eval-every",
    "load_best_model_at_end": f"{_IN_THE_LOOP}: keep trainer.snapshot() when trainer.evaluate() is best; --keep-best",
    "metric_for_best_model": "--keep-best goes by held-out accuracy",
    "early_stopping_patience": f"{_IN_THE_LOOP}: break",
    "callbacks": f"{_IN_THE_LOOP}; stopping is leaving it",
    "steps_per_eval": "--eval-every",
    "do_train": _TRAIN,
    "do_eval": f"{_IN_THE_LOOP}: trainer.evaluate(); --eval-every",
    "lr": "learning_rate; --learning-rate",
    "adam_beta1": _BETAS,
    "adam_beta2": _BETAS,
    "adam_epsilon": _BETAS,
    "beta1": _BETAS,
    "beta2": _BETAS,
    # where to
    "output_dir": "trainer.save_checkpoint(folder) and trainer.save_pretrained(folder) are given it; --output",
    "adapter_path": "train --output: its policy/ has the adapters, and generate --model and fuse --adapter take them",
    "resume_from_checkpoint": "GRPOTrainer.resume(folder, task); --resume",
    "resume_adapter_file": "--output with --resume",
    "report_to": f"{_IN_THE_LOOP}: {_RECIPES} for JSON lines, TensorBoard and Weights & Biases",
    "logging_steps": f"{_IN_THE_LOOP}: step.metrics are there after each step",
    "logging_dir": f"{_IN_THE_LOOP}: {_RECIPES}",
    "run_name": f"{_IN_THE_LOOP}: {_RECIPES}",
    "log_completions": "train --log-completions N writes them; RunRecord(keep=N) keeps them",
    "save_total_limit": "train keeps the newest two checkpoints",
    "push_to_hub": _HUB,
    "hub_model_id": _HUB,
    "wandb": f"--output has metrics.jsonl; {_RECIPES} for Weights & Biases",
    # what is trained
    "model": _MODEL,
    "model_name_or_path": f"{_MODEL}; --model",
    "model_init_kwargs": _MODEL,
    "processing_class": "tokenizer, as load_tokenizer(folder) returns it",
    "peft_config": _ADAPTERS,
    "use_peft": _ADAPTERS,
    "lora_rank": _ADAPTERS,
    "r": _ADAPTERS,
    "lora_dropout": f"adapters have no dropout here; {_ADAPTERS}",
    "lora_parameters": "GRPOConfig(lora_r=..., lora_alpha=..., lora_target_modules=[...])",
    "fine_tune_type": f"all parameters are trained; adapters with {_ADAPTERS}",
    "train_type": f"all parameters are trained; adapters with {_ADAPTERS}",
    "num_layers": "adapters are in all layers; lora_target_modules chooses among a layer's parts",
    "load_in_4bit": _QUANTIZED,
    "load_in_8bit": _QUANTIZED,
    "load_in_4bits": _QUANTIZED,
    "load_in_8bits": _QUANTIZED,
    "quantization_config": _QUANTIZED,
    "target_modules": "lora_target_modules; --lora-target-modules",
    "torch_dtype": _IN_DTYPE,
    "dtype": _IN_DTYPE,
    "mixed_precision": _IN_DTYPE,
    "fp16": f"float32, or {_IN_DTYPE}",
    # from what
    "reward_funcs": _TASK,
    "reward_functions": _TASK,
    "reward_functions_file": f"{_TASK}; --task my_task.py:MyTask",
    "train_dataset": _TASK,
    "eval_dataset": "RowsTask(rows, held_out_rows=test_rows); without, a tenth of the rows is held out",
    "system_prompt": _SYSTEM,
    "system": _SYSTEM,
    "tools": "RowsTask(rows, tools=[...]); the guide 'Tools and environments'",
    "environment_factory": "RowsTask(rows, environment_factory=...); the guide 'Tools and environments'",
    "max_prompt_length": "a prompt is never cut; max_completion_length bounds the answer",
    "max_length": "a prompt is never cut; max_completion_length bounds the answer",
    "max_seq_length": "a prompt is never cut; --max-completion-length bounds the answer",
    # how
    "generation_kwargs": "its parts are settings: temperature, top_k, top_p, min_p, stop_strings",
    "max_new_tokens": _LENGTH,
    "max_tokens": "max_completion_length in training; generate --max-new-tokens",
    "temp": "--temperature",
    "epsilon_low": "epsilon; --epsilon",
    "clip_range": "epsilon; --epsilon",
    "cliprange": "epsilon; --epsilon",
    "kl_coef": "beta; --beta",
    "kl_beta": "beta; --beta",
    "grad_clip": _CLIPPING,
    "gradient_clip": _CLIPPING,
    "gradient_clipping": _CLIPPING,
    "activation_checkpointing": "gradient_checkpointing; --gradient-checkpointing",
    "generation_batch_size": f"{_BATCH}; with steps_per_generation a multiple of them",
    "per_device_eval_batch_size": _SAMPLED,
    "auto_find_batch_size": "estimate_memory(config, args) says what fits",
    "data_seed": "seed; --seed",
    "deepspeed": _PROCESSES,
    "fsdp": _PROCESSES,
    "ddp_backend": _PROCESSES,
    "local_rank": _PROCESSES,
    "group_size": "num_generations",
    "batch_size": "per_device_train_batch_size, in completions",
    "grad_checkpoint": "gradient_checkpointing",
    "grad_accumulation_steps": "gradient_accumulation_steps",
    "grpo_loss_type": "loss_type",
    "reward_scaling": "scale_rewards",
    "optimizer": "optim",
    "optimizers": "GRPOConfig(optim=...)",
    **{
        f"vllm_importance_sampling_{name}": f"importance_sampling_{name.replace('mode', 'correction')}"
        for name in ("correction", "mode", "clip_min", "clip_max")
    },
    "use_vllm": "sampling is the kit's own, by MLX, in the same process",
    "use_liger_kernel": "log-probabilities go through the vocabulary in chunks by themselves",
    "gradient_checkpointing_kwargs": "gradient_checkpointing=True has no settings",
}
"""Names that the kit does not have -> what it has in their place."""


VALUES: dict[str, dict[str, str]] = {
    "scale_rewards": {"True": "group", "False": "none"},
    "optim": dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_8bit", "adam", "AdamW"), "adamw"),
}
"""Values of settings that the kit does not have -> the value that comes nearest."""


def other_value(setting: str, value: object) -> str:
    """A hint for a value that `setting` cannot have but has elsewhere, to be added to an error; empty for any other."""
    here = VALUES[setting].get(str(value))
    return f" Elsewhere it may be {value!r}; here write {here!r}." if here else ""


def not_known(name: str, known: Iterable[str]) -> str:
    """A hint for `name`, which is not among the `known` ones: the kit's word for it, or the name that was mistyped."""
    plain = _plain(name)
    if habit := HABITS.get(plain):
        return f"here: {habit}."
    near = min(known, key=lambda each: edits(plain, _plain(each)))
    is_slip = edits(plain, _plain(near)) <= min(2, len(plain) // 3)
    return f"did you mean {near}?" if is_slip else ""


def edits(a: str, b: str) -> int:
    """The number of slips between `a` and `b`: a letter added, left out or exchanged, or two neighbours swapped."""
    before, row = [], list(range(len(b) + 1))
    for i, one in enumerate(a, start=1):
        after = [i]
        for j, other in enumerate(b, start=1):
            after.append(min(row[j] + 1, after[-1] + 1, row[j - 1] + (one != other)))
            if i > 1 and j > 1 and (one, a[i - 2]) == (b[j - 2], other):
                after[-1] = min(after[-1], before[j - 2] + 1)
        before, row = row, after
    return row[-1]


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def names_habits(what: str) -> Callable[[type], type]:
    """A class decorator: the constructor answers all arguments that it does not know with the way to each.

    Args:
        what: an argument is called in the message: "setting", "argument".
    """

    def decorate(decorated: type) -> type:
        init = decorated.__init__
        known = [name for name in inspect.signature(init).parameters if name != "self" and not name.startswith("_")]

        @functools.wraps(init)
        def checked_init(self, *args, **named):
            unknown = [name for name in named if name not in known and not name.startswith("_")]
            lines = [
                f"{decorated.__name__} has no {what} {name!r}; "
                + (not_known(name, known) or f"help({decorated.__name__}) lists them.")
                for name in unknown
            ]
            if lines:
                raise TypeError("\n".join(lines))
            init(self, *args, **named)

        decorated.__init__ = checked_init
        return decorated

    return decorate
