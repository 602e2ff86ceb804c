"""Pre-training of the tiny Qwen3 that ships with the kit: imitation of sloppy homework.

A language model learns to imitate its data, mistakes included. The pupils here hand in sums in which most
carries are forgotten and many answers have a slip, and attempts at Countdown that mostly miss the target. A model
trained on that by next-token prediction becomes as good as the pupils and no better: asked for 27+15 it says 32
more often than 42. That is a good place to start reinforcement learning from. The right answer is somewhere in the
model, but often not the likeliest one, and no amount of further imitation would change that. A verifier that only says
right or wrong does change that.

    python -m mlx_grpo_kit.assets.make.tiny DIR      # as mlx_grpo_kit/assets/tiny was made
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mlx_grpo_kit.assets.make import imitation
from mlx_grpo_kit.files import check_replaceable
from mlx_grpo_kit.qwen3 import init_params, save_pretrained
from mlx_grpo_kit.tasks import Addition, Countdown, Problem, Task

FORGOTTEN_CARRIES = 2 / 3
SLIPS = 0.4
RANDOM_ATTEMPTS = 0.3


def sloppy_sum(problem: Problem, rng: np.random.Generator) -> str:
    """A pupil's answer to `27+15=`: 42, or 32 (carry forgotten), or 43 (slip), or 31 (both)."""
    a, b = problem.data["a"], problem.data["b"]
    total = a + b
    if a % 10 + b % 10 >= 10 and rng.random() < FORGOTTEN_CARRIES:
        total -= 10
    if rng.random() < SLIPS:
        digits = list(str(total))
        place = rng.integers(len(digits))
        digits[place] = str((int(digits[place]) + rng.choice([-1, 1])) % 10)
        total = int("".join(digits))
    return str(total)


def sloppy_attempt(problem: Problem, rng: np.random.Generator) -> str:
    """A pupil's answer to `24 from 5 3 9:`: a solution, or the numbers joined at random."""
    if rng.random() >= RANDOM_ATTEMPTS:
        return problem.answer
    a, b, c = rng.permutation(problem.data["numbers"])
    f, g = rng.choice(["+", "-", "*"], 2)
    return str(rng.choice([f"{a}{f}{b}{g}{c}", f"({a}{f}{b}){g}{c}", f"{a}{f}({b}{g}{c})"]))


CORPUS: tuple[tuple[Task, imitation.Pupil], ...] = ((Addition(), sloppy_sum), (Countdown(), sloppy_attempt))


def make(
    folder: Path | str, steps: int = 4000, batch_size: int = 128, learning_rate: float = 3e-3, seed: int = 0
) -> list[float]:
    """Train the tiny Qwen3 from random parameters on sloppy homework, save it, and return the loss of each step.

    Batches of sums and of Countdown alternate, all from the training splits: held-out problems are never seen.
    AdamW with a linear warm-up and a cosine decay. The same seed gives the same parameters on the same machine.

    Args:
        folder: the Hugging Face folder to write. An existing one must be empty or contain a model that the kit wrote,
            which is replaced.
        steps, batch_size, learning_rate: settings of training; the defaults made the shipped model.
        seed: the seed of the initial parameters and of the homework.

    Raises:
        FileExistsError: `folder` contains something that the kit did not write.
    """
    check_replaceable(Path(folder))
    tokenizer, params = imitation.character_tokenizer(), init_params(imitation.CONFIG, seed=seed)
    batches = imitation.homework(tokenizer, CORPUS, np.random.default_rng(seed), batch_size)
    rate = imitation.schedule(learning_rate, steps)
    params, losses = imitation.imitate(imitation.CONFIG, params, batches, rate, steps)
    for task, _ in CORPUS:
        sampled, greedy = (
            imitation.held_out_accuracy(params, tokenizer, task, temperature) for temperature in (1.0, 0.0)
        )
        print(f"{task.name}: {sampled:.1%} of 512 held-out problems are right when sampled, {greedy:.1%} when greedy")
    save_pretrained(folder, imitation.CONFIG, params, tokenizer=tokenizer)
    return losses


if __name__ == "__main__":
    imitation.as_program(make, "Make the tiny model that adds.", steps=4000)
