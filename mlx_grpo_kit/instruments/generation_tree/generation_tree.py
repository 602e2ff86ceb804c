"""Interactive generation: chapter 13's filters on live bars, and a tree of possible answers.

show_generation_tree(config, params, tokenizer, "27+38=", answers=["55", "65"])      # ends a cell
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mlx_grpo_kit.generation import SamplingConfig
from mlx_grpo_kit.instruments.generation_tree.widget import GenerationTree
from mlx_grpo_kit.qwen3 import Qwen3Config, qwen3_forward
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime import mx

NAMED = 200  # only this many of the likeliest tokens have names: the visible ones
KEPT = 64  # the number of texts whose logits are cached


def show_generation_tree(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    tokenizer: Tokenizer,
    prompt: str = "27+38=",
    answers: Sequence[str] = (),
    sampling: SamplingConfig | None = None,
) -> GenerationTree:
    """Bars of the next token, with temperature and filters, and a tree that grows with clicks; ends a cell.

    Args:
        prompt: the text at the root of the tree. You can type another above it.
        answers: the initial answers in the tree, each followed by an end token.
        sampling: the initial temperature and filters; None means the unfiltered policy.

    Raises:
        ValueError: an empty prompt, a character that the tokenizer does not know, more tokens than positions, or an
            answer with a token that is not among the NAMED likeliest.
    """
    sampling = sampling or SamplingConfig()

    @lru_cache(KEPT)
    def look(prompt: str, path: tuple[int, ...]) -> dict[str, Any]:
        ids = [*tokenizer.encode(prompt), *path]
        if not ids:
            raise ValueError("The prompt is empty; expected at least one character to go on from.")
        if len(ids) > config.max_position_embeddings:
            raise ValueError(
                f"The text has {len(ids)} tokens; the model has {config.max_position_embeddings} positions."
            )
        logits = np.array(qwen3_forward(config, dict(params), mx.array([ids]))[0, -1].astype(mx.float32))
        order = np.argsort(-logits, kind="stable")
        likeliest = order[:NAMED].tolist()
        return {
            "path": list(path),
            "ids": likeliest,
            "names": [_name(tokenizer, id_) for id_ in likeliest],
            "logits": base64.b64encode(logits[order].astype("<f4").tobytes()).decode(),
        }

    end = sorted(tokenizer.eos_token_ids)
    paths = [[*tokenizer.encode(answer), *end[:1]] for answer in answers]
    for answer, path in zip(answers, paths, strict=True):
        for step, id_ in enumerate(path):
            if id_ not in look(prompt, tuple(path[:step]))["ids"]:
                raise ValueError(
                    f"Answer {answer!r} has the token {_name(tokenizer, id_)}, which is not among the {NAMED} "
                    "likeliest in its place; expected one that has a bar."
                )
    return GenerationTree(
        prompt,
        paths,
        {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p or 0.0,
        },
        end,
        lambda prompt, path: look(prompt, tuple(path)),
    )


def _name(tokenizer: Tokenizer, id_: int) -> str:
    """A token's text in quotes, "end", or its name if it has no text."""
    if id_ in tokenizer.eos_token_ids:
        return "end"
    if id_ >= tokenizer.vocab_size:
        return f"<{id_}>"
    text = tokenizer.decode([id_])
    return repr(text) if text else tokenizer.token(id_)
