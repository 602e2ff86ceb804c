"""The course as a whole: its parts and chapters, their dependencies, and the time for each.

Every notebook repeats this in its first cell; tests/course/test_syllabus.py compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """One notebook of the course.

    Attributes:
        file: its name in notebooks/, without .ipynb.
        title: its heading, without the part after a colon.
        minutes: the reading time, including exercises.
        needs: the numbers of the chapters that it builds on, without indirect ones.
    """

    file: str
    title: str
    minutes: int
    needs: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """Two digits."""
        return self.file[:2]


PARTS: dict[str, tuple[Chapter, ...]] = {
    "First": (Chapter("00_start_here", "Start here", 35),),
    "One number at a time": (
        Chapter("01_derivatives", "Derivatives", 30),
        Chapter("02_scalar_autograd", "Scalar autograd", 70, ("01",)),
        Chapter("03_scalar_mlp", "A scalar MLP", 75, ("02",)),
    ),
    "Tensors": (
        Chapter("04_tensors", "Tensors and broadcasting", 95, ("03",)),
        Chapter("05_operations", "The operations", 115, ("04",)),
        Chapter("06_gradient_clinic", "The gradient clinic", 100, ("05",)),
        Chapter("07_digits", "Digits, in lockstep with torch", 105, ("06",)),
        Chapter("08_convolutions", "Convolutions and ResNet", 200, ("07",)),
    ),
    "A Qwen3 in MLX": (
        Chapter("09_mlx", "MLX", 120, ("07",)),
        Chapter("10_transformer_parts", "Transformer parts", 125, ("08", "09")),
        Chapter("11_attention", "Attention", 190, ("10",)),
        Chapter("12_qwen3", "Qwen3", 195, ("11",)),
        Chapter("13_generation", "Generation", 180, ("12",)),
    ),
    "Learning from rewards": (
        Chapter("14_tasks_and_rewards", "Tasks and rewards", 130, ("00", "13")),
        Chapter("15_policy_gradients", "Policy gradients", 170, ("14",)),
        Chapter("16_grpo_loss", "The GRPO loss", 120, ("15",)),
        Chapter("17_whole_model_gradients", "Gradients of the whole model", 130, ("12",)),
        Chapter("18_grpo_training", "GRPO training", 140, ("16", "17")),
        Chapter("19_variant_lab", "Variant lab", 100, ("18",)),
        Chapter("20_failure_museum", "The failure museum", 150, ("18",)),
    ),
    "In earnest": (
        Chapter("21_scaling_up", "Scaling up", 190, ("18",)),
        Chapter("22_training_backends", "Training backends", 120, ("18",)),
        Chapter("23_a_real_language_model", "A real language model", 110, ("18",)),
        Chapter("24_from_a_blank_file", "From a blank file", 210, ("18",)),
        Chapter("25_turns_and_tools", "Turns and tools", 150, ("23",)),
        Chapter("26_a_task_of_your_own", "A task of your own", 75, ("19", "23")),
    ),
}
"""The chapters, by the name of their part."""

COURSE = tuple(chapter for part in PARTS.values() for chapter in part)
"""All chapters in order."""
