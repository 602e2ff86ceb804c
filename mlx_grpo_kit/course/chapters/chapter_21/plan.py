"""The memory panel: controls for the settings of a training run, and the bytes that a step will take."""

from __future__ import annotations

from ipywidgets import Checkbox, Dropdown, SelectionSlider

from mlx_grpo_kit.course.chapters.chapter_21.pictures.memory_phases import draw_memory
from mlx_grpo_kit.grpo import GRPOConfig, estimate_memory
from mlx_grpo_kit.grpo.memory import machine_memory
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.qwen3.config import PUBLISHED
from mlx_grpo_kit.viz import Panel

ALWAYS = ("parameters", "optimizer", "reference")
PHASES = {
    "sampling": (*ALWAYS, "KV cache"),
    "learning": (*ALWAYS, "gradients", "activations", "log-probs"),
    "updating": (*ALWAYS, "gradients", "update"),
}
PROMPT = 64


def phases(parts: dict[str, int]) -> dict[str, dict[str, int]]:
    """The estimate of `estimate_memory`, grouped by the phases of a step."""
    return {phase: {name: parts[name] for name in names} for phase, names in PHASES.items()}


def memory_panel(config: Qwen3Config, name: str = "the shipped model") -> Panel:
    """A panel for the published models and for `config`, which is listed as `name`. It starts with Qwen3-0.6B."""
    models = {name: config} | {each: Qwen3Config.from_name(each) for each in PUBLISHED}

    def plan(model, learns, completions, parts, tokens, gradient_checkpointing, optim, reference, bf16):
        args = GRPOConfig(
            per_device_train_batch_size=completions // parts,
            gradient_accumulation_steps=parts,
            gradient_checkpointing=gradient_checkpointing,
            optim=optim,
            beta=0.04 if reference else 0.0,
            bf16=bf16,
            lora_r=learns or None,
        )
        bytes_of = estimate_memory(models[model], args, PROMPT, tokens)
        title = f"{model}: {completions} completions of up to {tokens} tokens in a step"
        return draw_memory(phases(bytes_of), bytes_of["total"], machine_memory(), title=title)

    return Panel(
        plan,
        model=Dropdown(options=list(models), value="0.6B", description="model"),
        learns=Dropdown(options={"all weights": 0, "LoRA, rank 8": 8}, description="what learns"),
        completions=SelectionSlider(options=[8, 16, 32, 64, 128, 256], value=64, description="completions"),
        parts=SelectionSlider(options=[1, 2, 4, 8], value=1, description="micro-batches"),
        tokens=SelectionSlider(options=[16, 64, 256, 1024, 4096], value=256, description="tokens"),
        gradient_checkpointing=Checkbox(False, description="checkpointing", indent=False),
        optim=Dropdown(options=["adamw", "adafactor"], description="optimizer"),
        reference=Checkbox(False, description="KL penalty", indent=False),
        bf16=Checkbox(False, description="bfloat16", indent=False),
    )
