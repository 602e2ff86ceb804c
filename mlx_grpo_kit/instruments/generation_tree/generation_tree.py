"""Interactive generation: chapter 13's filters as live bars, and a tree of possible answers.

    show_generation_tree(config, params, tokenizer, "27+38=", answers=["55", "65"])      # at the end of a cell

Filters and probabilities are computed in the browser, from logits that are sent once per text.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mlx_grpo_kit.generation import SamplingConfig
from mlx_grpo_kit.instruments.generation_tree.tree_picture import draw_tree
from mlx_grpo_kit.qwen3 import Qwen3Config, qwen3_forward
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.viz.browser import BrowserWidget
from mlx_grpo_kit.viz.picture import Picture, as_picture

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

    ends = sorted(tokenizer.eos_token_ids)
    paths = [[*tokenizer.encode(answer), *ends[:1]] for answer in answers]
    for answer, path in zip(answers, paths, strict=True):
        for step, id_ in enumerate(path):
            if id_ not in look(prompt, tuple(path[:step]))["ids"]:
                raise ValueError(
                    f"Answer {answer!r} has the token {_name(tokenizer, id_)}, which is not among the {NAMED} "
                    "likeliest at its position; expected a token that has a bar."
                )
    settings = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,  # 0: off
        "top_p": sampling.top_p,  # 1: off
        "min_p": sampling.min_p or 0.0,
    }
    return GenerationTree(prompt, paths, settings, ends, look)


class GenerationTree(BrowserWidget):
    """Bars for the likeliest next tokens; a click on one adds it to the tree.

    Args:
        prompt: the text at the root.
        paths: the initial paths in the tree, lists of token ids.
        settings: the initial temperature and filters.
        ends: the ids of end tokens.
        look: a function from a prompt and the following token ids to the next token's distribution: {"path": these ids,
            "ids" and "names" of the likeliest tokens, likeliest first, "logits" of all tokens, in descending order, as
            float32 in base64}. The message of a ValueError is shown.
    """

    source = Path(__file__).with_name("generation_tree")

    def __init__(
        self,
        prompt: str,
        paths: Sequence[Sequence[int]],
        settings: Mapping[str, float],
        ends: Sequence[int],
        look: Callable[[str, tuple[int, ...]], Mapping[str, Any]],
    ):
        self._look = look
        known = sorted({tuple(path[:length]) for path in [[], *paths] for length in range(len(path) + 1)})
        nodes = [look(prompt, path) for path in known if not {*path} & {*ends}]
        super().__init__({"prompt": prompt, "paths": known, "nodes": nodes, "settings": settings, "ends": ends})

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the distribution of the next token after another text."""
        return {"prompt": question["prompt"], **self._look(question["prompt"], tuple(question["path"]))}

    def draw_still(self) -> Picture:
        """Draw the initial tree, with the policy's own probabilities."""
        return as_picture(*draw_tree(self.data["prompt"], self.data["nodes"], self.data["paths"]))


def _name(tokenizer: Tokenizer, id_: int) -> str:
    """Return a token's text in quotes, "end" for an end token, or the token's name if it has no text."""
    if id_ in tokenizer.eos_token_ids:
        return "end"
    if id_ >= tokenizer.vocab_size:
        return f"<{id_}>"
    text = tokenizer.decode([id_])
    return repr(text) if text else tokenizer.token(id_)
