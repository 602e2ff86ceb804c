"""A line of `train` for a CPU on which the torch learner is the faster one. The default stays MLX."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from mlx_grpo_kit.grpo import GRPOTrainer
from mlx_grpo_kit.qwen3 import count_total_parameters
from mlx_grpo_kit.runtime import mx

# The sizes at which both learners were measured in the same step, on two cores (tests/benchmarks/test_step.py), torch's
# against MLX's: on an AMD EPYC (Zen 4) 0.8 million parameters took 165 against 254 ms, 5.2 million 495 against 793 ms.
# While MLX still sampled for torch's learner, they took 142 against 144 and 541 against 582 ms on a Zen 5, 189 against
# 248 and 684 against 775 ms on an Intel Xeon, and Qwen3-0.6B's shape 35 against 41 s on the Zen 5. Nothing is said of
# smaller and of larger models.
MEASURED = (750_000, 700_000_000)
SAVED = "1 to 38%"


def faster_learner(trainer: GRPOTrainer, given: Mapping[str, Any]) -> str:
    """The line to print once before a run, or an empty text where MLX is as fast or nothing was measured.

    Args:
        trainer: of the run, before its first step.
        given: the settings that the user gave. A backend among them is the user's choice, and nothing is said.
    """
    args, parameters = trainer.args, count_total_parameters(trainer.config)
    fits = args.backend == "mlx" and not (args.lora_r or args.bf16 or args.gradient_checkpointing)
    here = mx.default_device() == mx.cpu and platform.machine() in ("x86_64", "AMD64") and trainer.world.size == 1
    measured = MEASURED[0] <= parameters <= MEASURED[1] and trainer.policy.dtype == mx.float32
    if "backend" in given or not (fits and here and measured) or find_spec("torch") is None:
        return ""
    return (
        f"Speed: with --backend torch a step of a model of {parameters / 1e6:.1f} million parameters took {SAVED} less "
        "time on two cores; the run is the same to rounding."
    )
