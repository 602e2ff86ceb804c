"""A made Qwen3: every file of a published folder, in a size that learns within a minute on a laptop.

The layout is Qwen3's: bfloat16 shards with an index, a byte-level BPE trained here, the twenty-six added tokens in
their order after it, a chat template that knows `enable_thinking`, two tokens that end a text, and the settings for
sampling. The weights start as those of the kit's tiny model, with its embeddings of digits moved to the new digits. The
model learns to chat by imitating sloppy pupils, who answer at once, think first, or solve word problems.

    python -m mlx_grpo_kit.assets.make.tiny_chat DIR      # as mlx_grpo_kit/assets/tiny_chat was made
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from mlx_grpo_kit.runtime import mx  # isort: skip  first: it binds the fast BLAS before anything loads MLX
import mlx.optimizers as optim
import numpy as np
from tokenizers import normalizers

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.assets.make import imitation
from mlx_grpo_kit.assets.make.tiny import sloppy_sum
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained, load_tokenizer, save_pretrained
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.tasks import Addition, Countdown, Problem
from mlx_grpo_kit.tasks.chat import IN_TAGS

SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
# Added tokens that count as text: `decode` shows them, so that you can read the thoughts. They follow SPECIAL.
TOOLS = ("<tool_call>", "</tool_call>")
FILLING = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
THOUGHTS = ("<tool_response>", "</tool_response>", "<think>", "</think>")

# Text is split into words with the blank before them, single digits, and runs of punctuation and of blanks.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = r"""{#- Turns of <|im_start|>role, text, <|im_end|>. Thoughts of earlier turns are not repeated. -#}
{%- for message in messages %}
    {%- set text = message.content %}
    {%- if message.role == 'assistant' and '</think>' in text %}
        {%- set text = text.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + text + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

PROSE = """\
The user asks a question and the assistant answers it in words. What is the sum of these numbers? How many are
there, and which of them is the largest? Let me think about this step by step. First I add the ones, then I add the tens
and the carry. So the answer is in the last line. You are a helpful assistant that answers with a number alone. Thank
you, that is right. No, this is not right, try again. Use each number once. Hello! I can help you with that."""


def make_tokenizer(folder: Path | str, vocab_size: int = 480) -> None:
    """Train a byte-level BPE of `vocab_size` tokens on chats about sums, and write the files of Qwen3's layout."""
    settings = {"model_max_length": 256, "chat_template": CHAT_TEMPLATE}
    sampling = {"bos_token_id": vocab_size, "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    readable = (*TOOLS, *FILLING, *THOUGHTS)
    texts = [*_chats(), PROSE]
    imitation.make_bpe(folder, texts, vocab_size, WORDS, SPECIAL, readable, settings, sampling, normalizers.NFC())


def save(folder: Path | str, config: Qwen3Config, params: dict[str, mx.array], tokenizer: Tokenizer) -> Path:
    """Save a model as `save_pretrained` does, in bfloat16 and in shards."""
    small = {name: value.astype(mx.bfloat16) for name, value in params.items()}
    size = sum(value.nbytes for value in small.values())
    return save_pretrained(folder, config, small, tokenizer=tokenizer, max_shard_size=size * 3 // 5)


class Chat(NamedTuple):
    """One piece of homework: the user's question, True if the pupil thinks first, and the pupil's reply."""

    question: str
    thinking: bool
    reply: str


NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn")
THINGS = ("apples", "books", "coins", "marbles", "shells", "stamps")
FORGOTTEN_IN_THOUGHT = 0.25


def word_problem(a: int, b: int, rng: np.random.Generator) -> dict[str, str]:
    """A sum as a row in GSM8K's form: a question, and an answer that ends in `#### 42`."""
    name, other = rng.choice(NAMES, 2, replace=False)
    thing = rng.choice(THINGS)
    question = f"{name} has {a} {thing} and {other} has {b}. How many {thing} do they have together?"
    return {"question": question, "answer": f"{name} and {other} have {a} + {b} = {a + b} {thing}.\n#### {a + b}"}


def at_once(problem: Problem, rng: np.random.Generator) -> Chat:
    """An answer without a thought, as sloppy as the tiny model's homework."""
    return Chat(problem.text, False, f"<answer>{sloppy_sum(problem, rng)}</answer>")


def with_thought(problem: Problem, rng: np.random.Generator) -> Chat:
    """An answer after a column-by-column thought: a pupil forgets fewer carries when they are written down."""
    a, b = problem.data["a"], problem.data["b"]
    ones, carry = a % 10 + b % 10, (a % 10 + b % 10) // 10
    if rng.random() < FORGOTTEN_IN_THOUGHT:
        carry = 0
    tens = a // 10 + b // 10 + carry
    thought = f"{a % 10}+{b % 10}={ones}, {a // 10}+{b // 10}+{carry}={tens}"
    return Chat(problem.text, True, f"<think>\n{thought}\n</think>\n\n<answer>{10 * tens + ones % 10}</answer>")


def in_words(problem: Problem, rng: np.random.Generator) -> Chat:
    """An answer to a word problem, without a thought."""
    question = word_problem(problem.data["a"], problem.data["b"], rng)["question"]
    reply = f"<answer>{sloppy_sum(problem, rng)}</answer>"
    return Chat(f"{question}\n{IN_TAGS.format('number')}", False, reply)


PUPILS = (at_once, with_thought, at_once, in_words)
BATCH, LENGTHS = 64, {at_once: 42, with_thought: 64, in_words: 64}


def make(folder: Path | str, steps: int = 1200, learning_rate: float = 3e-3, seed: int = 0) -> list[float]:
    """Write a whole folder, with a model trained on `steps` batches of chats. Return the losses."""
    tokenizer = imitation.made_tokenizer(make_tokenizer)
    config = imitation.config_for(tokenizer, max_position_embeddings=2048)
    params = from_tiny(config, tokenizer, seed)
    rate = optim.cosine_decay(learning_rate, steps, learning_rate / 50)
    params, losses = imitation.imitate(config, params, _batches(tokenizer, np.random.default_rng(seed)), rate, steps)
    save(folder, config, params, tokenizer)
    return losses


def from_tiny(config: Qwen3Config, tokenizer: Tokenizer, seed: int) -> dict[str, mx.array]:
    """The tiny model's blocks, and a new embedding with its rows for the characters that both vocabularies share."""
    _, params = load_pretrained(TINY)
    theirs, tiny = np.array(params["embedding.weight"]), load_tokenizer(TINY)
    rows = np.random.default_rng(seed).normal(scale=theirs.std(), size=(config.vocab_size, config.hidden_size))
    for character in "0123456789+-*/()=":
        rows[tokenizer.encode(character)[0]] = theirs[tiny.encode(character)[0]]
    return params | {"embedding.weight": mx.array(rows.astype(np.float32))}


def _batches(tokenizer: Tokenizer, rng: np.random.Generator) -> Iterator[tuple[mx.array, mx.array]]:
    """Yield batches of chats, by each kind of pupil in turn. The tokens of the reply count."""
    task = Addition().in_chat()
    for pupil in cycle(PUPILS):
        chats = [pupil(problem, rng) for problem in task.sample(rng, BATCH)]
        yield imitation.padded_rows(tokenizer, (_pieces(tokenizer, chat) for chat in chats), LENGTHS[pupil])


def _pieces(tokenizer: Tokenizer, chat: Chat) -> Iterator[tuple[list[int], bool]]:
    messages = [{"role": "user", "content": chat.question}]
    yield tokenizer.encode_prompt(messages, enable_thinking=chat.thinking), False
    yield imitation.written(tokenizer, chat.reply), True


def _chats() -> Iterator[str]:
    """Yield the texts on which the vocabulary is trained."""
    rng = np.random.default_rng(0)
    for problem in Countdown().in_chat().sample(rng, 200):
        yield f"system\nuser\n{problem.text}\nassistant\n\n\n<answer>{problem.answer}</answer>"
    for pupil in (at_once, with_thought, in_words):
        for problem in Addition().in_chat().sample(rng, 200):
            chat = pupil(problem, rng)
            yield f"{chat.question}\n{chat.reply}"


if __name__ == "__main__":
    imitation.as_program(make, "Make the tiny model that chats.", steps=1200)
