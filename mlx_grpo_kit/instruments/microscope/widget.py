"""A batch of completions under the microscope: every answer's reward and advantage, every token's ratio, clip and push.

It runs in the browser; the effect of the loss comes from the kernel, through the function `look`.
`mlx_grpo_kit.instruments.microscope.microscope.show_microscope` connects it to a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlx_grpo_kit.instruments.browser import BrowserWidget
from mlx_grpo_kit.instruments.microscope.microscope_picture import draw_microscope
from mlx_grpo_kit.viz.picture import Picture, as_picture


class Microscope(BrowserWidget):
    """A widget in which you choose a prompt, an answer and a token, change the loss's settings, and drag rewards.

    Args:
        batch: the fixed data: "completions", a list of {"prompt", "text", "tokens", "reward", "finished"}, in which
            those of a prompt are adjacent, "tokens" are texts and "reward" is a number or None; "num_generations";
            "updates", the number of policies after the one that sampled; and the choices "loss_types",
            "importance_sampling_levels", "scale_rewards" and "advantage_estimators"; "note", a remark about these
            numbers, usually "".
        settings: the initial values of the controls: "group", "update", "loss_type",
            "importance_sampling_level", "epsilon", "epsilon_high" (None: epsilon), "cap" (of cispo), "beta",
            "scale_rewards", "advantage_estimator" and "rewards" (None: the batch's own).
        look: a function from settings to a reading: {"group", "loss", "metrics", "advantages", "means", "stds",
            "largest", "tokens"}.
            "advantages" has all completions, "means" and "stds" all groups. "tokens" has, for each completion of the
            group, lists of "log_ratios", "clips", "entropies", "before", "after", "weights" and "pushes"; "largest" the
            largest size of the first, the third and the last in the whole batch. The message of a ValueError is shown.
    """

    source = Path(__file__).with_name("microscope")

    def __init__(
        self,
        batch: Mapping[str, Any],
        settings: Mapping[str, Any],
        look: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ):
        self._look = look
        super().__init__({"batch": batch, "settings": settings, "reading": look(settings)})

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the reading for other settings."""
        return self._look(question)

    def draw_still(self) -> Picture:
        """Draw the first reading."""
        return as_picture(*draw_microscope(self.data["batch"], self.data["settings"], self.data["reading"]))
