"""Next-token prediction on the homework of pupils, which all tiny models began with."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mlx_grpo_kit.runtime import mx  # isort: skip  first: it loads the fast BLAS before anything loads MLX
import mlx.optimizers as optim
import numpy as np

from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.qwen3 import Qwen3Config, load_tokenizer, qwen3_forward
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer, save_character_tokenizer
from mlx_grpo_kit.tasks import Problem, Task

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
Pupil = Callable[[Problem, np.random.Generator], str]
# The characters of the longest prompt and answer, plus the end token: `99+99=198` and `99 from 9 9 9:(9+9)*9`. For long
# sums it is `19+19+19+19+19=` and 60 more characters: longer answers are cut off there.
HOMEWORK_LENGTH = {"addition": 10, "countdown": 22, "long-sum": 75}


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
