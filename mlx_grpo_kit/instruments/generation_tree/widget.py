"""Interactive next tokens: bars that follow the filters, and a tree of texts that you choose.

Filters and probabilities are computed in the browser, from logits that are sent once per text.
`mlx_grpo_kit.instruments.generation_tree.generation_tree.show_generation_tree` connects it to a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_grpo_kit.instruments.browser import BrowserWidget
from mlx_grpo_kit.instruments.generation_tree.tree_picture import draw_tree
from mlx_grpo_kit.viz.picture import Picture, as_picture


class GenerationTree(BrowserWidget):
    """Bars for the likeliest next tokens; a click on one adds it to the tree.

    Args:
        prompt: the text at the root.
        paths: the initial paths in the tree, lists of token ids.
        settings: the initial values of "temperature", "top_k" (0: off), "top_p" (1: off) and "min_p" (0: off).
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
        look: Callable[[str, Sequence[int]], Mapping[str, Any]],
    ):
        self._look = look
        known = {tuple(path[:length]) for path in [[], *paths] for length in range(len(path) + 1)}
        nodes = [look(prompt, path) for path in sorted(known) if not set(path) & {*ends}]
        paths = [list(path) for path in sorted(known)]
        super().__init__(
            {"prompt": prompt, "paths": paths, "nodes": nodes, "settings": dict(settings), "ends": list(ends)}
        )

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the distribution of the next token after another text."""
        return {"prompt": question["prompt"], **self._look(question["prompt"], question["path"])}

    def draw_still(self) -> Picture:
        """Draw the initial tree, with the policy's own probabilities."""
        return as_picture(*draw_tree(self.data["prompt"], self.data["nodes"], self.data["paths"]))
