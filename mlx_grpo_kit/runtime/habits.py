"""Names from TRL, PEFT, mlx-lm and other libraries, and the kit's replacements for them.

A setting, an argument or an option with such a name raises an error that quotes these tables, which answer for every
name in TRL's `GRPOConfig` and `GRPOTrainer`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., Any])

# Words of several replacements.
_IN_THE_LOOP = "the trainer is an iterator, so call this inside your training loop"
_RECIPES = "the guide 'Train, watch and record' has recipes"
_TRAIN = "pass it to trainer.train(max_steps=...)"
_IN_DTYPE = "bf16=True; --dtype bfloat16"
_SAMPLES = "the kit samples in the same process, with MLX or torch"
_LOSS = "GRPOTrainer(..., loss=...) takes your own LossType: the guide 'Exchange one part'"
_ADAPTERS = "GRPOConfig(lora_r=8), --lora-rank 8"
_TASK = "this belongs to the task (mlx_grpo_kit.tasks): RowsTask(rows, reward_funcs=[...]); --data problems.jsonl"
_MODEL = "config, params = load_pretrained(folder), then GRPOTrainer(config, params, tokenizer, task, args)"

_REPLACEMENTS = {
    # how long, how often
    "max_steps": (
        f"{_TRAIN}. It counts batches of completions, where TRL counts updates: in TRL, a batch adds "
        "num_iterations * steps_per_generation / gradient_accumulation_steps to max_steps"
    ),
    "num_train_epochs num_epochs epochs": f"a RowsTask uses each row once per epoch; {_TRAIN}; --num-train-epochs",
    "iters": f"{_TRAIN}; --max-steps",
    "warmup_ratio": "warmup_steps=0.1 is a tenth of max_steps; --warmup-steps",
    "lr_scheduler_kwargs": f"{_IN_THE_LOOP}: trainer.change(learning_rate=...)",
    "save_steps enable_jit_checkpoint save_*": f"{_IN_THE_LOOP}: trainer.save_checkpoint(folder); --save-every",
    "eval_steps do_eval do_predict batch_eval* eval_* include_* prediction_loss*": (
        f"{_IN_THE_LOOP}: trainer.evaluate(); --eval-every"
    ),
    "load_best_model_at_end": f"{_IN_THE_LOOP}: keep trainer.snapshot() when trainer.evaluate() is best; --keep-best",
    "metric_for_best_model greater_is_better": "--keep-best goes by held-out accuracy",
    "early_stopping_patience": f"{_IN_THE_LOOP}: break",
    "callbacks": f"{_IN_THE_LOOP}; leave the loop to stop",
    "steps_per_eval": "--eval-every",
    "do_train": _TRAIN,
    "num_generations_eval": "trainer.evaluate(num_samples=...)",
    "ignore_data_skip restore_callback_states_from_checkpoint": (
        "GRPOTrainer.resume(folder, task) continues with identical results; --resume"
    ),
    "adam_beta1 adam_beta2 adam_epsilon beta1 beta2 optim_args": (
        "AdamW's betas are 0.9 and 0.999, and its epsilon is 1e-8"
    ),
    # where to
    "output_dir": "pass it to trainer.save_checkpoint(folder) and trainer.save_pretrained(folder); --output",
    "adapter_path": "train --output writes adapters to policy/; generate --model and fuse --adapter read them",
    "resume_from_checkpoint": "GRPOTrainer.resume(folder, task); --resume",
    "resume_adapter_file": "--output with --resume",
    "report_to": f"{_IN_THE_LOOP}: {_RECIPES} for JSON lines, TensorBoard and Weights & Biases",
    "logging_steps disable_tqdm include_num_input_tokens_seen log_* logging_* num_completions_to_print*": (
        f"{_IN_THE_LOOP}: read step.metrics after each step"
    ),
    "project logging_dir run_name trackio_*": f"{_IN_THE_LOOP}: {_RECIPES}",
    "log_completions": "train --log-completions N writes them; RunRecord(keep=N) stores them",
    "save_total_limit": "train keeps the newest two checkpoints",
    "push_to_hub hub_*": "nothing is uploaded: trainer.save_pretrained(folder) writes a Hugging Face folder",
    "wandb": f"--output contains metrics.jsonl; {_RECIPES} for Weights & Biases",
    # what is trained
    "model args model_init_kwargs": _MODEL,
    "model_name_or_path": f"{_MODEL}; --model",
    "trust_remote_code": f"no code of a model is run; {_MODEL}",
    "router_aux_loss_coef": "models have no experts here",
    "disable_dropout": "models have no dropout here",
    "neftune_noise_alpha": "not available: embeddings get no noise",
    "label_smoothing_factor label_names": "not available: GRPO has no labels",
    "cast_lm_head_to_fp32": "float32 by default, the output layer included",
    "processing_class": "pass tokenizer=load_tokenizer(folder)",
    "peft_config use_peft lora_rank r": _ADAPTERS,
    "lora_dropout": f"adapters have no dropout here; {_ADAPTERS}",
    "lora_parameters": "GRPOConfig(lora_r=..., lora_alpha=..., lora_target_modules=[...])",
    "fine_tune_type train_type": f"all parameters are trained by default; for adapters set {_ADAPTERS}",
    "num_layers": "all layers get adapters; lora_target_modules selects the linear maps of a layer",
    "load_in_4bit load_in_8bit load_in_4bits load_in_8bits quantization_config": (
        "a folder that mlx-lm has quantized (mlx_lm.convert -q) loads as it is; train it with lora_r"
    ),
    "torch_dtype dtype mixed_precision bf16_full_eval": _IN_DTYPE,
    "fp16 fp16_full_eval tf32": f"float32, or {_IN_DTYPE}",
    # from what
    "reward_funcs reward_functions train_dataset": _TASK,
    "reward_processing_classes": "write a reward function that calls the reward model with its own tokenizer",
    "remove_unused_columns": "reward functions get all columns of a RowsTask",
    "length_column_name shuffle_dataset train_sampling_strategy": (
        "a RowsTask uses each row once per epoch, in an order that follows from seed"
    ),
    "reward_functions_file": f"{_TASK}; --task my_task.py:MyTask",
    "eval_dataset": "RowsTask(rows, held_out_rows=test_rows); by default a tenth of the rows is held out",
    "system_prompt system": "RowsTask(rows, system=...); generate --chat --system in the terminal",
    "tools": "RowsTask(rows, tools=[...]); the guide 'Tools and environments'",
    "environment_factory": "RowsTask(rows, environment_factory=...); the guide 'Tools and environments'",
    "max_prompt_length max_length": "prompts are never truncated; max_completion_length limits the answer",
    "max_seq_length": "prompts are never truncated; --max-completion-length limits the answer",
    # how
    "rollout_func": "GRPOTrainer(..., sampler=...) takes your own sampler: the guide 'Exchange one part'",
    "repetition_penalty": "not available: the loss would see other probabilities than the sampler",
    "use_cache cache_implementation": "sampling always has a key-value cache",
    "pad_to_multiple_of": "padding changes no result, and is chosen by the learner",
    "generation_kwargs": "set its fields separately: temperature, top_k, top_p, min_p, stop_strings",
    "max_tokens": "max_completion_length in training; generate --max-new-tokens",
    "generation_batch_size": (
        "per_device_train_batch_size * gradient_accumulation_steps is the number of completions per step; with "
        "steps_per_generation a multiple of them"
    ),
    "auto_find_batch_size skip_memory_metrics torch_empty_cache_steps": (
        "estimate_memory(config, args) estimates what fits"
    ),
    "full_determinism": "the same seed on the same machine gives the same run",
    "debug": "gradient_statistics=True adds metrics of each parameter's gradient",
    "use_cpu": "mx.set_default_device(mx.cpu) before the trainer is made",
    "average_tokens_across_devices": "the loss always counts the tokens of all processes",
    "accelerator_config parallelism_config ds3_gather_for_generation deepspeed local_rank ddp_*": (
        "train --processes N, or mlx.launch, trains in several processes"
    ),
    "fsdp fsdp_*": (
        "each process of train holds the whole policy, in less memory with --gradient-checkpointing, --lora-r 8 or "
        "--optim adafactor; FSDP2 is in DistributedPyTorchTrainingBackend, for a loop of your own: the guide 'Several "
        "processes'"
    ),
    "batch_size": "per_device_train_batch_size, which counts completions",
    "optimizers": "GRPOConfig(optim=...)",
    "optim_target_modules": "the optimizer updates all trained parameters alike",
    "use_vllm use_transformers_paged use_transformers_continuous_batching transformers_continuous_batching_config": (
        _SAMPLES
    ),
    "use_adaptive_entropy entropy_*": f"entropy_coef stays constant; {_LOSS}",
    "use_liger_kernel liger_kernel_config": "log-probabilities are always computed in chunks of the vocabulary",
    "activation_checkpointing_kwargs gradient_checkpointing_kwargs": "gradient_checkpointing=True has no settings",
    # beginnings of names alone
    "dataloader_*": "the task makes problems in the same process: nothing is loaded beside it",
    "sapo_* vespo_*": f"the published value is fixed; {_LOSS}",
    "torch_compile*": "backend='mlx', 'torch' or 'jax' selects the learner, which has no such setting; --backend",
    "vllm_*": f"there is no vLLM: {_SAMPLES}",
}
"""Names of other libraries -> their replacement in the kit. A star stands for the rest of any name."""

HABITS = {name: words for names, words in _REPLACEMENTS.items() for name in names.split() if name[-1] != "*"}
"""Names that the kit does not have -> their replacement in the kit. Other names of a setting stand at its field
(`grpo/settings.py`), which adds them."""

FAMILIES = {name[:-1]: words for names, words in _REPLACEMENTS.items() for name in names.split() if name[-1] == "*"}
"""Beginnings of names that are not in `HABITS` -> the same."""


def not_known(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown `name`: the kit's replacement for it, or the `known` name that was mistyped."""
    plain = _plain(name)
    if habit := HABITS.get(plain):
        return f"here: {habit}."
    near = min(known, key=lambda each: edits(plain, _plain(each)))
    if edits(plain, _plain(near)) <= min(2, len(plain) // 3):
        return f"did you mean {near}?"
    return next((f"here: {habit}." for start, habit in FAMILIES.items() if plain.startswith(start)), "")


def edits(a: str, b: str) -> int:
    """The number of typos between `a` and `b`: a letter added, omitted or replaced, or two neighbours swapped."""
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


def names_habits(what: str) -> Callable[[C], C]:
    """A decorator of a class or a method: its error for unknown or missing arguments names the replacement of each.

    Args:
        what: the word for an argument in the message: "setting", "argument".
    """

    def decorate(decorated: C) -> C:
        function = decorated.__init__ if isinstance(decorated, type) else decorated
        name, signature = decorated.__qualname__, inspect.signature(function)
        known = [each for each in signature.parameters if each != "self" and not each.startswith("_")]

        @functools.wraps(function)
        def checked(self, *args, **named):
            unknown = [each for each in named if each not in known and not each.startswith("_")]
            lines = [
                f"{name} has no {what} {each!r}; {not_known(each, known) or f'help({name}) lists them.'}"
                for each in unknown
            ]
            if lines:
                raise TypeError("\n".join(lines))
            try:
                signature.bind(self, *args, **named)
            except TypeError as error:
                habit = HABITS.get(str(error).rpartition(" ")[2].strip("'"))
                raise TypeError(f"{name}({', '.join(known)}): {error}{f'; {habit}' if habit else ''}.") from None
            return function(self, *args, **named)

        if not isinstance(decorated, type):
            return checked
        decorated.__init__ = checked
        return decorated

    return decorate
