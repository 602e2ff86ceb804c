"""The questions that an instrument on a page of the book may ask, answered before there is a page.

`moving.js` gives the instrument's module these answers in place of the kernel's.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from mlx_grpo_kit.instruments.dashboard import Dashboard
from mlx_grpo_kit.instruments.generation_tree.generation_tree import GenerationTree
from mlx_grpo_kit.instruments.microscope.microscope import Microscope
from mlx_grpo_kit.runs.record import RunRecord
from mlx_grpo_kit.viz.browser import as_json

COARSE = 0.05  # between two values of a slider from 0 to 1 in the book
BARS, DEEP, LIKELY = 10, 2, 1e-3  # of the tree: the tokens with a bar; deeper texts only if they are this likely
BACK_TO, WITH = 30, "short"  # the step and the reward of the rewind in chapter 18
IN_THE_LAB = "This page has no kernel. In JupyterLab you can"


def answers_of(widget: Any) -> dict[str, Any]:
    """All that the page needs of an instrument: {"data": of its module, "answers": by question, "missing": a sentence}.

    Raises:
        TypeError: the widget is not a dashboard, a microscope or a generation tree.
    """
    for kind, answer in ((Dashboard, _run), (Microscope, _readings), (GenerationTree, _texts)):
        if isinstance(widget, kind):
            found = answer(widget)
            return as_json({"data": widget.data} | found)
    raise TypeError(f"The book cannot foresee the questions of a {type(widget).__name__}.")


def _run(dashboard: Dashboard) -> dict[str, Any]:
    """The whole record, and the completions by step. A run that has not begun is trained and rewound first."""
    if dashboard.steering is not None:
        dashboard = Dashboard(_rewound(dashboard))
    steps = [step.step for step in dashboard.record.steps]
    texts: dict[str, Any] = {}
    while missing := [step for step in steps if str(step) not in texts]:
        found = dashboard.answer({"completions": missing})["completions"]
        if not found:
            break
        texts |= found
    return {"data": dashboard.data, "answers": {"all": dashboard.answer({}), "completions": texts}, "missing": ""}


def _rewound(dashboard: Dashboard) -> RunRecord:
    """The record of a run to its end, and once more from an earlier step with another reward."""
    dashboard.start().wait()
    dashboard.answer({"order": "rewind", "step": BACK_TO, "reward": WITH})
    dashboard.run.wait()
    return dashboard.record


def _readings(microscope: Microscope) -> dict[str, Any]:
    """A reading for every group, update and loss type, and for every other setting that is moved alone."""
    batch, first = microscope.data["batch"], microscope.data["settings"]
    groups = range(len(batch["completions"]) // batch["num_generations"])
    losses = itertools.product(groups, range(batch["updates"] + 1), batch["loss_types"])
    moved = [dict(zip(("group", "update", "loss_type"), each, strict=True)) for each in losses]
    shares = [round(COARSE * place, 2) for place in range(round(1 / COARSE) + 1)]
    alone = {name: batch[f"{name}s"] for name in ("importance_sampling_level", "advantage_estimator")}
    alone |= {"scale_rewards": batch["scale_rewards"], "epsilon": shares, "beta": shares}
    moved += [{"group": group, name: value} for group in groups for name, values in alone.items() for value in values]
    shown = ("group", "loss", "metrics", "largest", "tokens")
    readings = {}
    for each in moved:
        settings = {**first, **each}
        try:
            reading = microscope.answer(settings)
        except ValueError as error:  # the kernel's answer would say so too
            reading = {"complaint": str(error)}
        readings[_key(settings)] = {name: reading[name] for name in (*shown, "complaint") if name in reading}
    return {
        "answers": readings,
        "steps": {"epsilon": COARSE, "beta": COARSE},
        "missing": f"{IN_THE_LAB} combine all settings, and the loss follows rewards that you drag. Here every update "
        "goes with every loss type, any other setting can be changed alone, and the loss is that of the run's rewards.",
    }


def _key(settings: Mapping[str, Any]) -> str:
    """The settings but for the rewards as JavaScript's JSON.stringify writes them."""
    values = [value for name, value in settings.items() if name != "rewards"]
    whole = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    return json.dumps(whole, separators=(",", ":"))


def _texts(tree: GenerationTree) -> dict[str, Any]:
    """The next token's distribution after every text that a reader is likely to choose."""
    prompt, ends = tree.data["prompt"], {*tree.data["ends"]}
    nodes = {}

    def visit(path: list[int], share: float) -> None:
        node = tree.answer({"prompt": prompt, "path": path})
        nodes[" ".join(map(str, path))] = node
        for id, each in _likeliest(node):
            if id not in ends and (len(path) < DEEP or share * each >= LIKELY):
                visit([*path, id], share * each)

    visit([], 1.0)
    missing = f"{IN_THE_LAB} continue from any text; here only from the likely ones after {prompt}"
    return {"answers": nodes, "missing": missing}


def _likeliest(node: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    """The tokens with a bar, each with its probability."""
    import base64

    import numpy as np

    logits = np.frombuffer(base64.b64decode(node["logits"]), "<f4").astype(float)
    shares = np.exp(logits - logits.max())
    yield from zip(node["ids"][:BARS], (shares / shares.sum()).tolist(), strict=False)
