"""The `generate` command: a model continues texts, or answers them as chats."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from mlx_grpo_kit.cli.terminal import escaped
from mlx_grpo_kit.generation import SamplingConfig, generate, generate_tokens, stop_at
from mlx_grpo_kit.grpo.recipe import model_folder
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained, load_tokenizer
from mlx_grpo_kit.qwen3.text_stream import TextStream
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime import mx

SAMPLING = ("temperature", "top_k", "top_p", "min_p")
"""Settings that come from an option, or else from the folder's generation_config.json."""


def run(options: argparse.Namespace) -> int:
    """Run the command and return the exit status. Raises ValueError or OSError for bad input."""
    folder = model_folder(options.model)
    tokenizer = load_tokenizer(folder)
    prompts = _prompts(options, tokenizer)  # before loading weights, so that errors appear at once
    config, params = load_pretrained(folder)
    room = config.max_position_embeddings - max(map(len, prompts))
    settings = _sampling_of(tokenizer.generation_config, options.num)
    given = {name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None}
    sampling = SamplingConfig(options.max_new_tokens or max(1, min(256, room)), **settings | given)
    console = Console(highlight=False, soft_wrap=True)
    how = {
        "sampling": sampling,
        "eos_token_ids": tokenizer.eos_token_ids,
        "stop": stop_at(partial(tokenizer.decode, skip_special_tokens=False), options.stop) if options.stop else None,
        "seed": options.seed,
    }
    # A text is shown whole, a chat as its last question. So the thought that a template opens is shown with the answer.
    thoughts = [tokenizer.open_thought(prompt) if options.chat else "" for prompt in prompts]
    if len(prompts) * options.num == 1:
        console.print(_shown(options.prompts[0], "dim"), end="\n" if options.chat else "")
        console.print(_shown(thoughts[0], "bold"), end="")
        finished = [_stream(config, params, tokenizer, prompts[0], console, how)]
    else:
        rollout = generate(config, params, [prompt for prompt in prompts for _ in range(options.num)], **how)
        finished = rollout.finished
        for row, completion in enumerate(rollout.completions):
            place, text = row // options.num, tokenizer.decode(completion)
            said = _shown(thoughts[place] + text, "bold")
            parts = [_shown(options.prompts[place], "dim"), "\n" if options.chat else "", said]
            console.print(Text.assemble(*parts))
    if not all(finished):
        cut_off = f"{finished.count(False)} of {len(finished)}"
        print(f"({cut_off} cut off after {sampling.max_new_tokens} tokens: --max-new-tokens)", file=sys.stderr)
    return 0


def _prompts(options: argparse.Namespace, tokenizer: Tokenizer) -> list[list[int]]:
    if not options.chat:
        given = {"--system": options.system, "--enable-thinking": options.enable_thinking}
        if without := [option for option, value in given.items() if value is not None]:
            raise ValueError(f"{without[0]} is for chats: add --chat, or leave it out.")
        return [tokenizer.encode_prompt(prompt) for prompt in options.prompts]
    system = [{"role": "system", "content": options.system}] if options.system is not None else []
    settings = {} if options.enable_thinking is None else {"enable_thinking": options.enable_thinking}
    chats = [[*system, {"role": "user", "content": prompt}] for prompt in options.prompts]
    return [tokenizer.encode_prompt(chat, **settings) for chat in chats]


def _sampling_of(generation_config: Mapping[str, Any], num: int) -> dict[str, Any]:
    """The sampling settings of a folder. By default greedy, or temperature 1 for several completions.

    Raises ValueError for settings that cannot be used.
    """
    if generation_config.get("do_sample") is not True:
        return {"temperature": float(num > 1)}
    found = {name: generation_config[name] for name in SAMPLING if generation_config.get(name) is not None}
    try:
        SamplingConfig(**found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The model's generation_config.json cannot be used: {error} Correct the file.") from error
    return found


def _shown(text: str, style: str) -> Text:
    return Text(escaped(text, keep="\n\t"), style)


def _stream(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    console: Console,
    how: Mapping[str, object],
) -> bool:
    """Show one completion while it is generated; return True if it ended by itself."""
    stream, ended = TextStream(tokenizer.decode), False
    for step in generate_tokens(config, params, [prompt], **how):
        ended = bool(step.ended[0])
        console.print(_shown(stream.add(int(step.tokens[0])), "bold"), end="")
        console.file.flush()
    console.print(_shown(stream.end(), "bold"))
    return ended
