"""The exercises of the notebooks: check an answer, open a hint, see a solution, see your progress.

Exercises are data: `chapters/chapter_01/exercises.py` holds those of notebook 01, and so on. A chapter is loaded when
you use one of its exercises, so the first chapters do not need the packages of later ones.
"""

from mlx_grpo_kit.course.desk import check, hint, my_code, solution, use
from mlx_grpo_kit.course.exercise import Exercise, Mistake, drawn
from mlx_grpo_kit.course.record import progress
from mlx_grpo_kit.course.slips import slips
from mlx_grpo_kit.course.tries import tries

__all__ = ["Exercise", "Mistake", "check", "drawn", "hint", "my_code", "progress", "slips", "solution", "tries", "use"]
