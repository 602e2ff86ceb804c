"""Pre-training of the tiny model that shows its working: imitation of sloppy pupils who add long sums step by step.

Some of their steps are wrong. Some pupils lose their place and add the same number again, a few of them until the page
is full. Some leave a number out. And some add 0 before they end, which is right and costs only paper. So the model is
right now and then, its answers are short or long, and the long ones are mostly wrong.

    python -m mlx_grpo_kit.assets.make.tiny_steps DIR      # as mlx_grpo_kit/assets/tiny_steps was made, in two minutes
"""

from __future__ import annotations

from pathlib import Path

from mlx_grpo_kit.runtime import mx  # isort: skip  first: it binds the fast BLAS before anything loads MLX
import numpy as np

from mlx_grpo_kit.assets.make import imitation
from mlx_grpo_kit.files import check_replaceable
from mlx_grpo_kit.qwen3 import init_params, save_pretrained
from mlx_grpo_kit.tasks.long_sum import LongSum
from mlx_grpo_kit.tasks.task import Problem

WRONG_STEP, LEFT_OUT = 0.06, 0.03
"""How often a step has a wrong result, and how often the next number is left out after a step."""

LOST, STILL_LOST = 0.1, 0.75
"""How often a pupil adds the number of a step once more, and then again."""

IDLE, IDLE_WHEN_WRONG = 0.2, 0.5
"""How often a pupil adds 0 before the end, and then again: if the answer is right so far, and if it is wrong."""

MOST_STEPS = 16


def sloppy_working(problem: Problem, rng: np.random.Generator) -> str:
    """A pupil's answer to `7+15+8=`: `7+15=22;22+8=30;30`, or one of many that are longer, shorter or wrong."""
    numbers, steps = problem.data["numbers"], []
    total, place, is_right = numbers[0], 1, True
    while place < len(numbers):
        repeats = 1
        if rng.random() < LOST:
            repeats += int(rng.geometric(1 - STILL_LOST))
        for _ in range(min(repeats, MOST_STEPS - len(steps))):
            result = total + numbers[place]
            if rng.random() < WRONG_STEP:
                result = max(result + int(rng.choice([-10, -1, 1, 10])), 0)
                is_right = False
            steps.append(f"{total}+{numbers[place]}={result};")
            total = result
        left_out = rng.random() < LEFT_OUT and place + 1 < len(numbers)
        is_right = is_right and repeats == 1 and not left_out
        place += 1 + left_out
    while rng.random() < (IDLE if is_right else IDLE_WHEN_WRONG) and len(steps) < MOST_STEPS:
        steps.append(f"{total}+0={total};")
    return f"{''.join(steps)}{total}"


def make(
    folder: Path | str, *, steps: int = 700, batch_size: int = 32, learning_rate: float = 3e-3, seed: int = 0
) -> list[float]:
    """Write a folder whose model has imitated `steps` batches of worked sums. Return the losses.

    The same seed gives the same parameters on the same machine. Raises FileExistsError if `folder` contains something
    that the kit did not write.
    """
    folder = Path(folder)
    check_replaceable(folder)
    task, tokenizer = LongSum(), imitation.character_tokenizer()
    params = init_params(imitation.CONFIG, seed=seed)
    batches = imitation.homework(tokenizer, [(task, sloppy_working)], np.random.default_rng(seed), batch_size)
    rate = imitation.schedule(learning_rate, steps)
    params, losses = imitation.imitate(imitation.CONFIG, params, batches, rate, steps)
    print(f"{imitation.held_out_accuracy(params, tokenizer, task, temperature=1.0):.1%} of 512 held-out sums are right")
    small = {name: value.astype(mx.bfloat16) for name, value in params.items()}
    save_pretrained(folder, imitation.CONFIG, small, tokenizer=tokenizer)
    return losses


if __name__ == "__main__":
    imitation.as_program(make, "Make the tiny model that shows its working.", steps=700)
