"""Pre-training of the tiny model that calls tools: imitation of sloppy users of a calculator and of a guessing game.

The model learns Qwen3's format of tool calls and all the users' mistakes: wrong mental arithmetic, calls that are not
JSON, numbers copied wrongly, results that are ignored, guesses that earlier answers rule out.

    python -m mlx_grpo_kit.assets.make.tiny_tools DIR      # this made mlx_grpo_kit/assets/tiny_tools
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from mlx_grpo_kit.runtime import mx  # isort: skip  first: it loads the fast BLAS before anything loads MLX
import mlx.optimizers as optim
import numpy as np

from mlx_grpo_kit.assets.make import imitation
from mlx_grpo_kit.grpo.conversations import suffix_ids
from mlx_grpo_kit.qwen3 import init_params, save_pretrained
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.tasks.calculator import Calculator, calculate
from mlx_grpo_kit.tasks.guess import QUESTIONS, Game, GuessTheNumber
from mlx_grpo_kit.tasks.task import Problem
from mlx_grpo_kit.tasks.tool_calls import ToolResult
from mlx_grpo_kit.tasks.tools import task_tools

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
READABLE = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Added tokens. Qwen3 has these seven among its twenty-six, and `decode` skips the first three as in Qwen3."""

WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
"""The pieces of a text before tokenization: words with the character before them, single digits, runs of symbols."""

TEMPLATE = r"""{#- Qwen3's format of turns, calls and results. Of the tools it shows names and arguments alone. -#}
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- for tool in tools %}
        {%- set function = tool.function if tool.function is defined else tool %}
        {{- function.name + '(' + function.parameters.properties | join(', ') + ')\n' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function if call.function is defined else call %}
            {%- if not loop.first or message.content %}
                {{- '\n' }}
            {%- endif %}
            {{- '<tool_call>\n{"name": "' + function.name + '", "arguments": ' }}
            {{- (function.arguments if function.arguments is string else function.arguments | tojson) }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

CALL = '<tool_call>\n{"name": "%s", "arguments": {"%s": %s}}\n</tool_call>'
RESULT = "user\n<tool_response>\n%s\n</tool_response>"


class Turn(NamedTuple):
    """A turn of the imitated user, and the result of its call; None ends the conversation."""

    text: str
    result: ToolResult | None = None


# The probabilities of their mistakes.
IN_THE_HEAD, BROKEN, MISCOPIED, MISREAD = 0.5, 0.2, 0.2, 0.2
WILD, GIVES_UP = 0.5, 0.05


def sloppy_calculation(problem: Problem, rng: np.random.Generator) -> list[Turn]:
    """A conversation about `What is 347+586+941?` with every kind of mistake."""
    numbers, total = [*problem.data["numbers"]], sum(problem.data["numbers"])
    if rng.random() < IN_THE_HEAD:
        return [Turn(str(max(total + int(rng.choice([-1, 1]) * 10 ** rng.integers(0, 3)), 0)))]
    if rng.random() < MISCOPIED:
        place = rng.integers(len(numbers))
        numbers[place] = int(rng.integers(100, 1000))
    expression = "+".join(map(str, numbers))
    call = CALL % ("calculate", "expression", f'"{expression}"')
    if rng.random() < BROKEN:
        call = call.replace('"}}', rng.choice(["}}", '"}', '"']))
        return [Turn(call)]
    result = calculate(expression)
    answer = str(rng.integers(300, 2998)) if rng.random() < MISREAD else result
    return [Turn(call, ToolResult("calculate", result)), Turn(answer)]


def sloppy_game(problem: Problem, rng: np.random.Generator) -> list[Turn]:
    """A game whose player forgets half of the answers, and sometimes gives up."""
    game, turns = Game(), []
    game.reset(problem.data["secret"])
    least, most = 1, game.largest
    while not game.found and game.questions < QUESTIONS and rng.random() >= GIVES_UP:
        bounds = (1, game.largest) if rng.random() < WILD else (least, most)
        number = int(rng.integers(bounds[0], bounds[1] + 1))
        said = game.guess(number)
        turns.append(Turn(CALL % ("guess", "number", number), ToolResult("guess", said)))
        least, most = (max(least, number + 1), most) if said == "higher" else (least, min(most, number - 1))
    return [*turns, Turn(str(game.secret if game.found else rng.integers(1, game.largest + 1)))]


CORPUS: tuple[tuple[Calculator | GuessTheNumber, Callable, int, int], ...] = (
    (Calculator(), sloppy_calculation, 88, 64),
    (GuessTheNumber(), sloppy_game, 200, 16),
)
"""Task, imitated user, tokens of the longest conversation, and conversations per batch."""


def make_tokenizer(folder: Path | str, vocab_size: int = 376) -> None:
    """Train a byte-level BPE on conversations and write the files of Qwen3's layout."""
    rng, texts = np.random.default_rng(0), []
    for task, user, *_ in CORPUS:
        for problem in task.sample(rng, 300):
            texts.append(f"system\ncalculate(expression)\nguess(number)\nuser\n{problem.text}\nassistant\n")
            for turn in user(problem, rng):
                texts += [turn.text, RESULT % turn.result.text if turn.result else ""]
    texts += [
        str({"error": words}) for words in ("Tool not found.", "a call is no JSON: expected", "no question is left")
    ]
    settings = {"model_max_length": 512, "chat_template": TEMPLATE}
    imitation.make_bpe(folder, texts, vocab_size, WORDS, SPECIAL, READABLE, settings, generation={})


def make(folder: Path | str, steps: int = 2000, learning_rate: float = 3e-3, seed: int = 0) -> list[float]:
    """Train a model on `steps` batches of conversations and write its folder. Returns the losses."""
    tokenizer = imitation.made_tokenizer(make_tokenizer)
    config = imitation.config_for(tokenizer, max_position_embeddings=512)
    params = init_params(config, seed=seed)
    rate = optim.join_schedules(
        [optim.linear_schedule(0, learning_rate, 100), optim.cosine_decay(learning_rate, steps, learning_rate / 50)],
        [100],
    )
    params, losses = imitation.imitate(config, params, _batches(tokenizer, np.random.default_rng(seed)), rate, steps)
    small = {name: value.astype(mx.bfloat16) for name, value in params.items()}
    save_pretrained(folder, config, small, tokenizer=tokenizer)
    return losses


def _batches(tokenizer: Tokenizer, rng: np.random.Generator) -> Iterator[tuple[mx.array, mx.array]]:
    """Yield batches of conversations, of each task in turn. The tokens that the user wrote count."""
    for task, user, length, batch_size in cycle(CORPUS):
        pairs = [(problem, user(problem, rng)) for problem in task.sample(rng, batch_size)]
        yield imitation.padded_rows(tokenizer, (pieces(tokenizer, task, *pair) for pair in pairs), length)


def pieces(tokenizer: Tokenizer, task: Calculator | GuessTheNumber, problem: Problem, turns: Sequence[Turn]):
    """Yield the token ids of each part of a conversation, and True for those that the user wrote."""
    yield tokenizer.encode_prompt(problem.prompt, tools=task_tools(task).schemas(problem)), False
    for turn in turns:
        yield imitation.written(tokenizer, turn.text), True
        if turn.result is not None:
            yield suffix_ids(tokenizer, [turn.result], {}), False


if __name__ == "__main__":
    imitation.as_program(make, "Create the tiny model that calls tools.", steps=2000)
