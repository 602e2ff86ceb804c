"""A whole Qwen3 as boxes that a prompt passes through, with real numbers: forward in chapter 12, backward in 17.

    show_flow(config, params, tokenizer, "12+34=")                              # at the end of a cell
    show_flow(config, params, tokenizer, "12+34=", answer="46", backward=True)

shows a panel: you choose prompt, token, head and number above the boxes. Each box opens and shows its numbers, the sum
that gives one of them, and the products of that sum. In the stored picture, boxes open without a kernel. The parts are

    trace = trace_flow(config, params, tokenizer, "12+34=", answer="46", backward=True)   # .record, .grads, .loss
    draw_flow(trace, position=5, layer=0, head=2, number=7, backward=True)                # the same without a panel

It works with any folder that `load_pretrained` reads. A box with many numbers shows the first ones and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from mlx_grpo_kit.instruments.flow.boxes import Trace
from mlx_grpo_kit.instruments.flow.flow_picture import MOST_LAYERS, FlowPicture, draw_flow
from mlx_grpo_kit.qwen3 import Qwen3Config, qwen3_forward
from mlx_grpo_kit.qwen3.rope_scaling import rope_attention_factor, rope_wavelengths
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.runtime.extras import packages_for
from mlx_grpo_kit.viz.panel import Panel

__all__ = ["draw_flow", "show_flow", "trace_flow"]

MOST_TOKENS = 64
KEPT = 8  # the number of texts whose results are cached


def trace_flow(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    tokenizer: Tokenizer,
    prompt: str,
    answer: str = "",
    backward: bool = False,
) -> Trace:
    """Record the inner values of the model while it reads `prompt` and every token of `answer` but the last.

    The loss is the sum of -log p over the tokens of the answer, each after the prompt and the tokens before it. Without
    an answer, the loss is that of the likeliest token.

    Args:
        backward: True to compute the loss and the gradient of every inner value too.

    Raises:
        ValueError: the prompt is empty, the tokenizer has no token for a character, or the text has more than
            MOST_TOKENS tokens.
    """
    asked = tokenizer.encode_prompt(prompt)
    wanted = tokenizer.encode(answer) if answer else []
    if not asked:
        raise ValueError("The prompt is empty; expected at least one character, such as '12+34='.")
    ids = [*asked, *wanted[:-1]]
    if len(ids) > MOST_TOKENS:
        raise ValueError(
            f"Prompt and answer have {len(ids)} tokens; expected at most {MOST_TOKENS}, so that each is visible."
        )
    record: dict[str, mx.array] = {}
    logits = qwen3_forward(config, dict(params), mx.array([ids]), watch=record.setdefault)
    record["logits"] = logits
    if backward and not wanted:
        wanted = [int(logits[0, -1].argmax())]
    targets = {len(asked) - 1 + place: token for place, token in enumerate(wanted)}
    grads = _inner_gradients(config, params, ids, targets, record) if backward else None
    return Trace(
        config,
        ids,
        lambda id_: _spelled(tokenizer, id_),
        {name: _array(weight) for name, weight in params.items()},
        {name: _array(value)[0] for name, value in record.items()},
        *_rotation(config),
        targets,
        None if grads is None else {name: _array(grad)[0] for name, grad in grads.items()},
    )


def show_flow(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    tokenizer: Tokenizer,
    prompt: str = "12+34=",
    answer: str = "",
    backward: bool = False,
) -> Panel:
    """Show the whole model as boxes, in a panel for the end of a cell.

    Its controls choose the prompt, the answer that the loss expects, the direction, the token, the head, the number
    and, in a larger model, the layer. If the tokenizer cannot encode the text, the panel shows a message.

    Args:
        answer: the text that the loss expects after the prompt; empty means the likeliest token.
        backward: True to start with the gradients; the panel can switch.

    Raises:
        ValueError: like `trace_flow`.
    """
    with packages_for("show_flow"):
        import ipywidgets as widgets

    @lru_cache(KEPT)
    def trace_of(prompt: str, answer: str, direction: str) -> Trace:
        return trace_flow(config, params, tokenizer, prompt, answer, direction == "backward")

    def draw(
        prompt: str, answer: str, direction: str, token: int, head: int, number: int, layer: int = 0
    ) -> FlowPicture:
        trace = trace_of(prompt, answer, direction)
        return draw_flow(trace, token, layer, head, number, direction == "backward")

    def limits(prompt: str, answer: str, direction: str, token: int, **others: int) -> dict[str, int]:
        last = len(trace_of(prompt, answer, direction).ids) - 1
        slider = panel_controls["token"]
        if token == slider.max:  # if the last token was selected, keep the last one selected
            slider.max = max(last, slider.max)
            slider.value = last
        return {"token": last}

    start = "backward" if backward else "forward"
    last = len(trace_of(prompt, answer, start).ids) - 1
    wide, narrow = widgets.Layout(width="230px"), widgets.Layout(width="130px")
    largest = max(config.hidden_size, config.intermediate_size) - 1
    panel_controls: dict[str, Any] = {
        "prompt": widgets.Text(prompt, continuous_update=False, layout=wide),
        "answer": widgets.Text(
            answer, continuous_update=False, placeholder="likeliest", layout=narrow,
            tooltip="the text that the loss expects after the prompt; empty: the likeliest token",
        ),
        "direction": widgets.Dropdown(options=["forward", "backward"], value=start, layout=wide),
        "token": widgets.IntSlider(last, 0, last, layout=wide),
        "head": widgets.IntSlider(0, 0, config.num_attention_heads - 1, layout=wide),
        "number": widgets.BoundedIntText(0, 0, largest, layout=narrow),
    }  # fmt: skip
    if config.num_hidden_layers > MOST_LAYERS:
        panel_controls["layer"] = widgets.IntSlider(0, 0, config.num_hidden_layers - 1, layout=wide)
    return Panel(draw, limits=limits, **panel_controls)


def _inner_gradients(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    ids: list[int],
    targets: Mapping[int, int],
    record: Mapping[str, mx.array],
) -> dict[str, mx.array]:
    """Compute the gradient of every inner value as the gradient of an offset of 0 that is added to it."""
    positions, wanted = mx.array([*targets]), mx.array([*targets.values()])

    def loss(offsets: dict[str, mx.array]) -> mx.array:
        watch = lambda name, value: value + offsets[name]  # noqa: E731
        logits = qwen3_forward(config, dict(params), mx.array([ids]), watch=watch)[0, positions]
        chosen = mx.take_along_axis(logits, wanted[:, None], axis=1)[:, 0]
        return (mx.logsumexp(logits, axis=1) - chosen).sum()

    return mx.grad(loss)({name: mx.zeros_like(value) for name, value in record.items()})


def _rotation(config: Qwen3Config) -> tuple[np.ndarray, float]:
    """Return the radians per position for each pair of numbers, and the factor of queries and keys."""
    scaling = config.rope_scaling
    if scaling is not None:
        wavelengths = rope_wavelengths(scaling, config.head_dim, config.rope_theta)
        return 1 / np.array(wavelengths), rope_attention_factor(scaling)
    return config.rope_theta ** (-2 * np.arange(config.head_dim // 2) / config.head_dim), 1.0


def _array(array: mx.array) -> np.ndarray:
    """Convert an array to NumPy; 16-bit floats become float32, because NumPy has no bfloat16."""
    return np.asarray(array if array.dtype == mx.float32 else array.astype(mx.float32))


def _spelled(tokenizer: Tokenizer, id_: int) -> str:
    """Return a token's text, its name such as `<eos>` if it has none, or the number of an id beyond the vocabulary."""
    if id_ >= tokenizer.vocab_size:
        return f"<{id_}>"
    return tokenizer.decode([id_]) or tokenizer.token(id_)
