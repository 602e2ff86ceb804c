"""The course as a whole: its parts and chapters, their dependencies, the time for each, and three paths through it.

Every notebook repeats its line in its first cell, and README, chapter 00 and the book repeat the paths;
tests/course/test_syllabus.py compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlx_grpo_kit.course.catalogue import exercises


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
        Chapter("16_grpo_loss", "The GRPO loss", 165, ("15",)),
        Chapter("17_whole_model_gradients", "Gradients of the whole model", 145, ("12",)),
        Chapter("18_grpo_training", "GRPO training", 155, ("16", "17")),
        Chapter("19_variant_lab", "Variant lab", 100, ("18",)),
        Chapter("20_failure_museum", "The failure museum", 150, ("18",)),
    ),
    "In earnest": (
        Chapter("21_scaling_up", "Scaling up", 190, ("18",)),
        Chapter("22_training_backends", "Training backends", 120, ("18",)),
        Chapter("23_a_real_language_model", "A real language model", 110, ("18",)),
        Chapter("24_from_a_blank_file", "From a blank file", 280, ("18",)),
        Chapter("25_turns_and_tools", "Turns and tools", 150, ("23",)),
        Chapter("26_a_task_of_your_own", "A task of your own", 75, ("19", "23")),
    ),
}
"""The chapters, by the name of their part."""

COURSE = tuple(chapter for part in PARTS.values() for chapter in part)
"""All chapters in order."""


@dataclass(frozen=True)
class Stop:
    """A chapter on a path, a part of one, or a file to read.

    Attributes:
        place: the number of the chapter, or the path of the file in the repository.
        only: the exercises of the part, such as "13.7"; empty for the whole chapter.
        reading: the minutes for a file.
    """

    place: str
    only: tuple[str, ...] = ()
    reading: int = 0

    @property
    def minutes(self) -> float:
        """The time: a part of a chapter takes the share of its minutes that its exercises have of all exercises."""
        if self.reading:
            return self.reading
        [whole] = [chapter.minutes for chapter in COURSE if chapter.number == self.place]
        if not self.only:
            return whole
        times = {exercise.id: exercise.minutes for exercise in exercises(self.place)}
        return whole * sum(times[id] for id in self.only) / sum(times.values())


PATHS: dict[str, tuple[Stop, ...]] = {
    "Only GRPO": (
        Stop("00"),
        Stop("15", ("15.1", "15.2", "15.3", "15.4", "15.6", "15.9")),
        Stop("16"),
        Stop("mlx_grpo_kit/grpo/minimal.py", reading=45),
        Stop("24", ("24.3", "24.4")),
    ),
    "Two weeks": (
        Stop("00"),
        Stop("13", ("13.1", "13.2", "13.3", "13.7")),
        *map(Stop, ("14", "15", "16", "18", "24")),
    ),
    "All of it": tuple(Stop(chapter.number) for chapter in COURSE),
}
"""Three ways through the course, by name. A chapter's first cell says what a reader who skipped others can trust."""


def describe_path(name: str, link: Callable[[Chapter], str] = lambda chapter: chapter.number) -> str:
    """A path in Markdown: its name, its hours and its stops, with each chapter's number as `link` writes it."""
    stops, links = PATHS[name], {chapter.number: link(chapter) for chapter in COURSE}
    words = [
        f"`{stop.place}`"
        if stop.reading
        else f"a part of {links[stop.place]} ({_spans(stop.only)})"
        if stop.only
        else links[stop.place]
        for stop in stops
    ]
    if len(stops) == len(COURSE):
        words = [f"{words[0]} to {words[-1]}"]
    return f"**{name}, {round(sum(stop.minutes for stop in stops) / 60)} hours:** {', '.join(words)}."


def _spans(ids: Sequence[str]) -> str:
    """The numbers of exercises in words: "13.1 to 13.3, 13.7"."""
    spans: list[list[str]] = []
    for id in ids:
        last = spans[-1][-1].split(".") if spans else ["", "-1"]
        if id.split(".") == [last[0], str(int(last[1]) + 1)]:
            spans[-1].append(id)
        else:
            spans.append([id])
    return ", ".join(f"{span[0]} to {span[-1]}" if len(span) > 2 else ", ".join(span) for span in spans)
