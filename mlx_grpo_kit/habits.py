"""What those who come from TRL, PEFT or mlx-lm are used to write, and where the kit has it.

A setting, an argument or an option that is asked for by such a name is refused with these words; the README has the
table.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable

_IN_THE_LOOP = "the trainer is an iterator, and this is a line in the body of its loop"
_TRAIN = "trainer.train(max_steps=...) has it"
_ADAPTERS = "GRPOConfig(lora_r=8), --lora-rank 8"
_QUANTIZED = "a folder that mlx-lm has quantized (mlx_lm.convert -q) loads as it is, and is trained with lora_r"
_TASK = "the task has it, mlx_grpo_kit.tasks: RowsTask(rows, reward_funcs=[...]); --data problems.jsonl"
_MODEL = "config, params = load_pretrained(folder), then GRPOTrainer(config, params, tokenizer, task, args)"

HABITS: dict[str, str] = {
    # how long, how often
    "max_steps": _TRAIN,
    "num_train_epochs": f"problems are drawn without end; {_TRAIN}",
    "iters": f"{_TRAIN}; --max-steps",
    "epochs": "problems are drawn without end: --max-steps",
    "warmup_ratio": "warmup_steps counts steps",
    "lr_scheduler_kwargs": f"{_IN_THE_LOOP}: trainer.change(learning_rate=...)",
    "save_steps": f"{_IN_THE_LOOP}: trainer.save_checkpoint(folder); --save-every",
    "save_strategy": f"{_IN_THE_LOOP}: trainer.save_checkpoint(folder); --save-every",
    "eval_steps": f"{_IN_THE_LOOP}: trainer.evaluate(); --eval-every",
    "eval_strategy": f"{_IN_THE_LOOP}: trainer.evaluate(); --eval-every",
    "load_best_model_at_end": f"{_IN_THE_LOOP}: keep trainer.snapshot() where trainer.evaluate() is best, then rewind",
    "early_stopping_patience": f"{_IN_THE_LOOP}: break",
    "callbacks": f"{_IN_THE_LOOP}; stopping is leaving it",
    "steps_per_eval": "--eval-every",
    # where to
    "output_dir": "trainer.save_checkpoint(folder) and trainer.save_pretrained(folder) are given it; --output",
    "adapter_path": "train --output: its policy/ has the adapters, and generate --model and fuse --adapter take them",
    "resume_from_checkpoint": "GRPOTrainer.resume(folder, task); --resume",
    "resume_adapter_file": "--output with --resume",
    "report_to": f"{_IN_THE_LOOP}: see the README's recipes for JSON lines, TensorBoard and Weights & Biases",
    "logging_steps": f"{_IN_THE_LOOP}: step.metrics are there after each step",
    "logging_dir": f"{_IN_THE_LOOP}: see the README's recipes",
    "run_name": f"{_IN_THE_LOOP}: see the README's recipes",
    "wandb": "--output has metrics.jsonl; the README has a recipe for Weights & Biases",
    # what is trained
    "model": _MODEL,
    "model_name_or_path": f"{_MODEL}; --model",
    "model_init_kwargs": _MODEL,
    "processing_class": "tokenizer, as load_tokenizer(folder) returns it",
    "peft_config": _ADAPTERS,
    "use_peft": _ADAPTERS,
    "lora_rank": _ADAPTERS,
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
    "torch_dtype": "bf16=True; --dtype bfloat16",
    "dtype": "bf16=True; --dtype bfloat16",
    "fp16": "float32 or bf16=True; --dtype bfloat16",
    # from what
    "reward_funcs": _TASK,
    "reward_functions": _TASK,
    "reward_functions_file": f"{_TASK}; --task my_task.py:MyTask",
    "train_dataset": _TASK,
    "eval_dataset": "RowsTask(rows, held_out_rows=test_rows); without, a tenth of the rows is held out",
    "system_prompt": "RowsTask(rows, system=...); in the terminal generate --chat --system",
    "tools": "there are none: one turn, one answer",
    "max_prompt_length": "a prompt is never cut; max_completion_length bounds the answer",
    "max_length": "a prompt is never cut; max_completion_length bounds the answer",
    "max_seq_length": "a prompt is never cut; --max-completion-length bounds the answer",
    # how
    "generation_kwargs": "its parts are settings: temperature, top_k, top_p, min_p, stop_strings",
    "max_tokens": "max_completion_length in training; generate --max-new-tokens",
    "temp": "--temperature",
    "group_size": "num_generations",
    "batch_size": "per_device_train_batch_size, in completions",
    "grad_checkpoint": "gradient_checkpointing",
    "grad_accumulation_steps": "gradient_accumulation_steps",
    "grpo_loss_type": "loss_type",
    "reward_scaling": "scale_rewards",
    "optimizer": "optim",
    "optimizers": "GRPOConfig(optim=...)",
    "use_vllm": "sampling is the kit's own, by MLX, in the same process",
    "use_liger_kernel": "log-probabilities go through the vocabulary in chunks by themselves",
    "gradient_checkpointing_kwargs": "gradient_checkpointing=True has no settings",
}
"""Names that the kit does not have -> what it has in their place."""


def not_known(name: str, known: Iterable[str]) -> str:
    """What to say of `name`, which is not among the `known` ones: the kit's word for it, a near miss, or nothing."""
    if habit := HABITS.get(name.lstrip("-").replace("-", "_")):
        return f"here: {habit}."
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def names_habits(what: str) -> Callable[[type], type]:
    """A class decorator: an argument that its constructor does not know is answered with the way to what was meant.

    Args:
        what: an argument is called in the message: "setting", "argument".
    """

    def decorate(decorated: type) -> type:
        init = decorated.__init__
        known = [name for name in inspect.signature(init).parameters if name != "self" and not name.startswith("_")]

        @functools.wraps(init)
        def checked_init(self, *args, **named):
            for name in named:
                if name not in known and not name.startswith("_"):
                    words = not_known(name, known) or f"help({decorated.__name__}) lists them."
                    raise TypeError(f"{decorated.__name__} has no {what} {name!r}; {words}")
            init(self, *args, **named)

        decorated.__init__ = checked_init
        return decorated

    return decorate
