"""Interactive generation: chapter 13's filters as live bars, and a tree of possible answers.

show_generation_tree(config, params, tokenizer, "27+38=", answers=["55", "65"])      # at the end of a cell
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

NAMED = 200  # the number of likeliest tokens that have names; the others are never visible
KEPT = 64  # the number of texts whose logits are cached


def show_generation_tree(
    config: Qwen3Config,
    params: Mapping[str, mx.array],
    tokenizer: Tokenizer,
    prompt: str = "27+38=",
    answers: Sequence[str] = (),
    sampling: SamplingConfig | None = None,
) -> GenerationTree:
    """Show the next token's probabilities as bars, with temperature and filters, and a tree that grows with clicks.

    Put it at the end of a cell.

    Args:
        prompt: the text at the root of the tree. You can type another one above the tree.
        answers: the initial answers in the tree, each followed by an end token.
        sampling: the initial temperature and filters; None means the unfiltered policy.

    Raises:
        ValueError: the prompt is empty, the tokenizer does not know a character, there are more tokens than positions,
            or a token of an answer is not among the NAMED likeliest.
    """
    sampling = sampling or SamplingConfig()

    @lru_cache(KEPT)
    def look(prompt: str, path: tuple[int, ...]) -> dict[str, Any]:
        ids = [*tokenizer.encode_prompt(prompt), *path]
        if not ids:
            raise ValueError("The prompt is empty; expected at least one character to continue from.")
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
                    "likeliest at its position; expected a token that has a bar."
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
    """Return a token's text in quotes, "end" for an end token, or the token's name if it has no text."""
    if id_ in tokenizer.eos_token_ids:
        return "end"
    if id_ >= tokenizer.vocab_size:
        return f"<{id_}>"
    text = tokenizer.decode([id_])
    return repr(text) if text else tokenizer.token(id_)
