"""Train the stored runs of chapter 20 again, and write their curves: about two minutes on one core.

python -m mlx_grpo_kit.course.chapters.chapter_20.record
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.chapters.chapter_20.loop import Parts, train
from mlx_grpo_kit.course.chapters.chapter_20.museum import BUGS, CURVES, MYSTERIES
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.viz.pictures.grpo.symptoms import PANELS

STEPS = 60
KEPT = (
    *PANELS, "reward_std", "clip_ratio/region_mean", "completions/max_length",
)  # fmt: skip


def curves_of(parts: Parts, seed: int) -> dict[str, list[float | None]]:
    """The metrics of a run that are kept, three digits and four decimals of each; null for what is no number."""
    config, params = load_pretrained(TINY)
    steps = train(config, params, load_tokenizer(TINY), STEPS, parts, seed)
    metrics = [step.metrics for step in steps]
    return {name: [_rounded(each[name]) for each in metrics] for name in KEPT}


def _rounded(value: float) -> float | None:
    return round(float(f"{value:.3g}"), 4) if math.isfinite(value) else None


def main() -> None:
    runs = {"healthy": (Parts(), 0)} | {letter: (bug.parts(), 0) for letter, bug in BUGS.items()}
    for name, (letter, seed) in MYSTERIES.items():
        runs[name] = (BUGS[letter].parts() if letter in BUGS else Parts(), seed)
    curves = {}
    for name, (parts, seed) in runs.items():
        curves[name] = curves_of(parts, seed)
        print(name, flush=True)
    path = Path(__file__).with_name(CURVES)
    path.write_text(json.dumps(curves, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
