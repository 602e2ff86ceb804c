"""Pre-training of the tiny Qwen3 that ships with the kit: imitation of sloppy homework.

A language model learns to imitate its data, mistakes included. The pupils here hand in sums in which most
carries are forgotten and many answers have a slip, and attempts at Countdown that mostly miss the target. A model
trained on that by next-token prediction becomes as good as the pupils and no better: asked for 27+15 it says 32
more often than 42. That is a good place to start reinforcement learning from. The right answer is somewhere in the
model, but often not the likeliest one, and no amount of further imitation would change that. A verifier that only says
right or wrong does change that.

    python -m mlx_grpo_kit pretrain --output DIR
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlx_grpo_kit.runtime import mx  # isort: skip  first: it loads the fast BLAS before anything loads MLX
import mlx.optimizers as optim
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mlx_grpo_kit.files import check_replaceable
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.qwen3 import (
    Qwen3Config,
    count_total_parameters,
    init_params,
    load_tokenizer,
    qwen3_forward,
    save_pretrained,
)
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer, save_character_tokenizer
from mlx_grpo_kit.tasks import Addition, Countdown, Problem, Task

CONFIG = Qwen3Config(
    vocab_size=64,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rope_theta=10_000.0,
    max_position_embeddings=256,
    tie_word_embeddings=True,
)
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


Pupil = Callable[[Problem, np.random.Generator], str]
CORPUS: tuple[tuple[Task, Pupil], ...] = ((Addition(), sloppy_sum), (Countdown(), sloppy_attempt))
# The characters of the longest prompt and answer, plus the end token: `99+99=198` and `99 from 9 9 9:(9+9)*9`. For long
# sums it is `19+19+19+19+19=` and 60 more characters: longer answers are cut off there.
HOMEWORK_LENGTH = {"addition": 10, "countdown": 22, "long-sum": 75}


@dataclass(frozen=True)
class PretrainReport:
    """The results of pre-training, by task name. `str(report)` is a table.

    They are the `loss` (mean of the last 50 batches), and the accuracy on 512 held-out problems of answers `sampled` at
    temperature 1 and of `greedy` ones.
    """

    folder: Path
    num_parameters: int
    seconds: float
    loss: dict[str, float]
    sampled: dict[str, float]
    greedy: dict[str, float]

    def __str__(self) -> str:
        lines = [f"{'held-out accuracy':20}{'sampled':>10}{'greedy':>10}{'loss':>10}"]
        for task in self.loss:
            lines.append(f"{task:20}{self.sampled[task]:10.1%}{self.greedy[task]:10.1%}{self.loss[task]:10.3f}")
        lines.append(f"{self.num_parameters:,} parameters, {self.seconds:.0f} s, saved in {self.folder}")
        return "\n".join(lines)


def pretrain(
    output: str | os.PathLike,
    *,
    steps: int = 4000,
    batch_size: int = 128,
    learning_rate: float = 3e-3,
    seed: int = 0,
    console: Console | None = None,
) -> PretrainReport:
    """Train the tiny Qwen3 from random parameters on sloppy homework, and save it as a Hugging Face folder.

    Batches of sums and of Countdown alternate, all from the training splits: held-out problems are never seen.
    AdamW with a linear warm-up and a cosine decay. The same seed gives the same parameters on the same machine.

    Args:
        output: the folder to write. An existing one must be empty or contain a model that the kit wrote, which is
            replaced.
        steps, batch_size, learning_rate: settings of training; the defaults made the shipped model.
        seed: the seed of the initial parameters and of the homework.
        console: the console that shows progress; a new one by default.

    Raises:
        FileExistsError: `output` contains something that the kit did not write.
        ValueError: steps or batch_size is below 1.
    """
    output = Path(output)
    check_replaceable(output)
    if steps < 1 or batch_size < 1:
        raise ValueError(f"steps={steps}, batch_size={batch_size}: expected at least 1 of each.")
    console = console or Console()
    started = time.perf_counter()
    tokenizer = character_tokenizer()
    params = init_params(CONFIG, seed=seed)
    update = imitation_update(CONFIG, params, schedule(learning_rate, steps))
    rng = np.random.default_rng(seed)
    losses: dict[str, list[float]] = {task.name: [] for task, _ in CORPUS}
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=steps)
        for step in range(steps):
            task, pupil = CORPUS[step % len(CORPUS)]
            loss, params = update(params, *homework_batch(tokenizer, task, pupil, rng, batch_size))
            losses[task.name].append(loss)
            shown = "  ".join(f"{name} {np.mean(values[-50:]):.3f}" for name, values in losses.items() if values)
            progress.update(bar, advance=1, description=f"loss: {shown}")

    save_pretrained(output, CONFIG, params, tokenizer=tokenizer)
    tasks = [task for task, _ in CORPUS]
    report = PretrainReport(
        folder=output,
        num_parameters=count_total_parameters(CONFIG),
        seconds=time.perf_counter() - started,
        loss={name: float(np.mean(values[-50:])) for name, values in losses.items() if values},
        sampled={task.name: held_out_accuracy(params, tokenizer, task, temperature=1.0) for task in tasks},
        greedy={task.name: held_out_accuracy(params, tokenizer, task, temperature=0.0) for task in tasks},
    )
    console.print(str(report), highlight=False)
    return report


def homework_batch(
    tokenizer: Tokenizer, task: Task, pupil: Pupil, rng: np.random.Generator, batch_size: int
) -> tuple[mx.array, mx.array]:
    """Training problems with a pupil's answers: token ids, int [B, T], and which ones count, float [B, T].

    The answer's tokens and the end token count; prompts are random, so there is nothing to learn from them. Rows are
    padded on the right to one length per task, so that the compiled update has few shapes. An answer that does not fit
    is cut off and has no end token.
    """
    ids = np.full((batch_size, HOMEWORK_LENGTH[task.name]), tokenizer.pad_token_id, np.int32)
    is_answer = np.zeros(ids.shape, np.float32)
    for row, problem in enumerate(task.sample(rng, batch_size)):
        prompt = tokenizer.encode(problem.prompt)
        answer = [*tokenizer.encode(pupil(problem, rng)), tokenizer.eos_token_ids[0]]
        homework = (prompt + answer)[: ids.shape[1]]
        end = len(homework)
        ids[row, :end] = homework
        is_answer[row, len(prompt) : end] = 1
    return mx.array(ids), mx.array(is_answer)


def imitation_update(
    config: Qwen3Config, params: dict[str, mx.array], learning_rate: Callable[[mx.array], mx.array]
) -> Callable[[dict[str, mx.array], mx.array, mx.array], tuple[float, dict[str, mx.array]]]:
    """A step of AdamW on `next_token_loss`, from these parameters on: (params, ids, counted) -> (loss, next params)."""
    optimizer = optim.AdamW(learning_rate, betas=[0.9, 0.98], weight_decay=0.1, bias_correction=True)
    optimizer.init(params)

    # Compiling fuses the element-wise work. State that is not listed here would keep its first value.
    @partial(mx.compile, inputs=optimizer.state, outputs=optimizer.state)
    def compiled(params: dict[str, mx.array], ids: mx.array, counted: mx.array) -> tuple[mx.array, dict[str, mx.array]]:
        loss, grads = mx.value_and_grad(lambda tracked: next_token_loss(config, tracked, ids, counted))(params)
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        return loss, optimizer.apply_gradients(grads, params)

    def update(params: dict[str, mx.array], ids: mx.array, counted: mx.array) -> tuple[float, dict[str, mx.array]]:
        loss, params = compiled(params, ids, counted)
        mx.eval(loss, params, optimizer.state)
        return loss.item(), params

    return update


def next_token_loss(config: Qwen3Config, params: dict[str, mx.array], ids: mx.array, counted: mx.array) -> mx.array:
    """Mean cross-entropy of the `counted` tokens, each predicted from the tokens before it. ids, counted: [B, T]."""
    logits = qwen3_forward(config, params, ids[:, :-1])
    logps = mx.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0] - mx.logsumexp(logits, axis=-1)
    return -mx.sum(logps * counted[:, 1:]) / mx.sum(counted[:, 1:])


def character_tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        save_character_tokenizer(folder)
        return load_tokenizer(folder)


def schedule(learning_rate: float, steps: int) -> Callable[[mx.array], mx.array]:
    warmup = min(100, steps // 10)
    decay = optim.cosine_decay(learning_rate, max(steps - warmup, 1), learning_rate / 50)
    if not warmup:
        return decay
    return optim.join_schedules([optim.linear_schedule(0, learning_rate, warmup), decay], [warmup])


def held_out_accuracy(params: dict[str, mx.array], tokenizer: Tokenizer, task: Task, temperature: float) -> float:
    problems = task.held_out(512)
    rollout = generate(
        CONFIG,
        params,
        [tokenizer.encode(problem.prompt) for problem in problems],
        sampling=SamplingConfig(task.max_completion_length, temperature=temperature),
        eos_token_ids=tokenizer.eos_token_ids,
    )
    texts = [tokenizer.decode(ids) for ids in rollout.completions]
    return float(np.mean([task.is_correct(problem, text) for problem, text in zip(problems, texts, strict=True)]))


def as_program(pretrain: Callable[..., list[float]], words: str, steps: int) -> None:
    """Run a pre-training from the command line: `python -m MODULE DIR [--steps N]`.

    Args:
        pretrain: (folder, steps=) -> losses.
        words: the description in --help.
        steps: the number of steps that made the model that ships.
    """
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=steps)
    options = parser.parse_args()
    began = time.perf_counter()
    losses = pretrain(options.folder, steps=options.steps)
    print(f"loss {np.mean(losses[-50:]):.3f} after {options.steps} steps, {time.perf_counter() - began:.0f} s")
