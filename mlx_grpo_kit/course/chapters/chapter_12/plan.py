"""The panel that plans a Qwen3: sliders for sizes, presets of published models, parameters, operations and bytes."""

from __future__ import annotations

from ipywidgets import Checkbox, Dropdown, IntSlider

from mlx_grpo_kit.course.pictures.sizes import draw_plan
from mlx_grpo_kit.qwen3 import Qwen3Config
from mlx_grpo_kit.qwen3.config import PUBLISHED
from mlx_grpo_kit.qwen3.sizes import forward_flops, memory, parameters_by_part
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.viz import Panel

OWN = "my own"
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}
SIZES = {  # a field of Qwen3Config -> name, smallest value, largest value and step of its slider
    "num_hidden_layers": ("layers", 1, 100, 1),
    "hidden_size": ("hidden", 8, 8192, 8),
    "intermediate_size": ("intermediate", 8, 32768, 8),
    "num_attention_heads": ("heads", 1, 64, 1),
    "num_key_value_heads": ("key heads", 1, 64, 1),
    "head_dim": ("head_dim", 2, 256, 2),
    "vocab_size": ("vocabulary", 8, 200_000, 8),
}
ADAM_BYTES = 16  # per parameter: itself, its gradient and Adam's two moments, in float32


def draw(config: Qwen3Config, batch: int, tokens: int, dtype: str):
    """(chart, words) for a model that reads [batch, tokens]."""
    parts = parameters_by_part(config)
    needs = memory(config, batch, tokens, DTYPES[dtype])
    needs["training with Adam"] = ADAM_BYTES * sum(parts.values()) + needs["kept for backward"]
    rows = "row" if batch == 1 else "rows"
    title = f"A Qwen3 of {config.num_hidden_layers} layers reads {batch:,} {rows} of {tokens:,} tokens in {dtype}"
    return draw_plan(parts, forward_flops(config, batch, tokens), needs, title=title)


def plan_panel(config: Qwen3Config, name: str = "the shipped one") -> Panel:
    """A panel that begins with `config`, called `name` among the presets."""
    presets = {name: config} | {each: Qwen3Config.from_name(each) for each in PUBLISHED}
    sliders = {
        field: IntSlider(getattr(config, field), min=low, max=high, step=step, description=label)
        for field, (label, low, high, step) in SIZES.items()
    }
    tied = Checkbox(config.tie_word_embeddings, description="tied", indent=False)
    preset = Dropdown(options=[*presets, OWN], description="model")
    shape = {
        "batch": IntSlider(8, min=1, max=512, description="rows"),
        "tokens": IntSlider(256, min=1, max=40_960, description="tokens"),
        "dtype": Dropdown(options=list(DTYPES), description="dtype"),
    }
    is_setting = False

    def follow(change):
        """Move the sliders to the sizes of the preset."""
        nonlocal is_setting
        if change["new"] == OWN:
            return
        is_setting = True
        for field, control in (*sliders.items(), ("tie_word_embeddings", tied)):
            control.value = getattr(presets[change["new"]], field)
        is_setting = False

    def leave(_):
        """Select the custom model when a slider moves."""
        if not is_setting:
            preset.value = OWN

    preset.observe(follow, "value")
    for control in (*sliders.values(), tied):
        control.observe(leave, "value")

    def plan(preset, batch, tokens, dtype, **sizes):
        return draw(Qwen3Config(**sizes), batch, tokens, dtype)

    return Panel(plan, preset=preset, **sliders, tie_word_embeddings=tied, **shape)
