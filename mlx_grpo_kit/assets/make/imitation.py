"""Next-token prediction on the homework of pupils, which all tiny models began with, and tokenizers for it."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from mlx_grpo_kit.runtime import mx  # isort: skip  first: it loads the fast BLAS before anything loads MLX
import mlx.optimizers as optim
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

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


def config_for(tokenizer: Tokenizer, max_position_embeddings: int) -> Qwen3Config:
    """The same sizes for another vocabulary: as in Qwen3, some rows of the embedding are unused."""
    vocab_size = -(-tokenizer.vocab_size // 128) * 128
    return replace(CONFIG, vocab_size=vocab_size, max_position_embeddings=max_position_embeddings)


def homework_batch(
    tokenizer: Tokenizer, task: Task, pupil: Pupil, rng: np.random.Generator, batch_size: int
) -> tuple[mx.array, mx.array]:
    """Training problems with a pupil's answers: token ids, int [B, T], and which ones count, float [B, T].

    The answer's tokens and the end token count; prompts are random, so there is nothing to learn from them. Rows are
    padded on the right to one length per task, so that the compiled update has few shapes. An answer that does not fit
    is cut off and has no end token.
    """
    rows = (
        [(tokenizer.encode(problem.prompt), False), (written(tokenizer, pupil(problem, rng)), True)]
        for problem in task.sample(rng, batch_size)
    )
    return padded_rows(tokenizer, rows, HOMEWORK_LENGTH[task.name])


def homework(
    tokenizer: Tokenizer, corpus: Sequence[tuple[Task, Pupil]], rng: np.random.Generator, batch_size: int
) -> Iterator[tuple[mx.array, mx.array]]:
    """Yield batches without end, of each task in turn."""
    for task, pupil in cycle(corpus):
        yield homework_batch(tokenizer, task, pupil, rng, batch_size)


def written(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a turn that a pupil writes, with the token that ends it."""
    return [*tokenizer.encode(text), tokenizer.eos_token_ids[0]]


def padded_rows(
    tokenizer: Tokenizer, rows: Iterable[Iterable[tuple[Sequence[int], bool]]], length: int
) -> tuple[mx.array, mx.array]:
    """Rows of pieces, each with True if its tokens count, as token ids, int [B, T], and which ones count, float [B, T].

    Rows are cut off after `length` tokens, or padded on the right.
    """
    batch = []
    for pieces in rows:
        tokens = [(token, counts) for piece, counts in pieces for token in piece][:length]
        batch.append(tokens + [(tokenizer.pad_token_id, False)] * (length - len(tokens)))
    ids, counted = np.moveaxis(np.array(batch, np.int32), -1, 0)
    return mx.array(ids), mx.array(counted.astype(np.float32))


def imitate(
    config: Qwen3Config,
    params: dict[str, mx.array],
    batches: Iterator[tuple[mx.array, mx.array]],
    learning_rate: Callable[[mx.array], mx.array],
    steps: int,
) -> tuple[dict[str, mx.array], list[float]]:
    """Make steps of AdamW on `next_token_loss`, each on a batch (ids, counted). Return (parameters, losses)."""
    optimizer = optim.AdamW(learning_rate, betas=[0.9, 0.98], weight_decay=0.1, bias_correction=True)
    optimizer.init(params)

    # Compiling fuses the element-wise work. State that is not listed here would keep its first value.
    @partial(mx.compile, inputs=optimizer.state, outputs=optimizer.state)
    def compiled(params: dict[str, mx.array], ids: mx.array, counted: mx.array) -> tuple[mx.array, dict[str, mx.array]]:
        loss, grads = mx.value_and_grad(lambda tracked: next_token_loss(config, tracked, ids, counted))(params)
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        return loss, optimizer.apply_gradients(grads, params)

    losses: list[float] = []
    for step, batch in zip(range(1, steps + 1), batches, strict=False):
        loss, params = compiled(params, *batch)
        mx.eval(loss, params, optimizer.state)
        losses.append(loss.item())
        if step % 100 == 0:
            print(f"{step:5d}  loss {np.mean(losses[-100:]):.3f}", flush=True)
    return params, losses


def next_token_loss(config: Qwen3Config, params: dict[str, mx.array], ids: mx.array, counted: mx.array) -> mx.array:
    """Mean cross-entropy of the `counted` tokens, each predicted from the tokens before it. ids, counted: [B, T]."""
    logits = qwen3_forward(config, params, ids[:, :-1])
    logps = mx.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0] - mx.logsumexp(logits, axis=-1)
    return -mx.sum(logps * counted[:, 1:]) / mx.sum(counted[:, 1:])


def character_tokenizer() -> Tokenizer:
    return made_tokenizer(save_character_tokenizer)


def make_bpe(
    folder: Path | str,
    texts: Iterable[str],
    vocab_size: int,
    pieces: str,
    special: Sequence[str],
    readable: Sequence[str],
    settings: dict[str, Any],
    generation: dict[str, Any],
    normalizer: Any = None,
) -> None:
    """Train a byte-level BPE and write the files of Qwen3's layout.

    Args:
        texts: are trained on.
        pieces: the regular expression of the pieces that a text is split into before tokenization.
        special: added tokens that `decode` skips: the end of a text, the beginning of a turn, its end, and more.
        readable: added tokens after them, which count as text.
        settings: more fields of tokenizer_config.json.
        generation: more fields of generation_config.json.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    split = pre_tokenizers.Split(tokenizers.Regex(pieces), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([*special])
    tokenizer.add_tokens([tokenizers.AddedToken(each, special=False, normalized=False) for each in readable])
    tokenizer.save(str(Path(folder, "tokenizer.json")))
    common = {
        "tokenizer_class": "Qwen2Tokenizer",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "additional_special_tokens": [*special[1:]],
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "split_special_tokens": False,
    }
    end_of_text, im_end = map(tokenizer.token_to_id, ("<|endoftext|>", "<|im_end|>"))
    ends = {"eos_token_id": [im_end, end_of_text], "pad_token_id": end_of_text}
    for name, content in (("tokenizer_config", common | settings), ("generation_config", ends | generation)):
        Path(folder, f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def made_tokenizer(make: Callable[[Path | str], None]) -> Tokenizer:
    """The tokenizer whose files `make` writes into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        make(folder)
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
