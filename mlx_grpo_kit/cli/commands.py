"""The kit in a terminal: `python -m mlx_grpo_kit train | generate | fuse | pretrain | doctor`, each with --help.

Exit status: 0, 1 when a run failed, 2 for bad input, 130 and 143 when Ctrl-C or SIGTERM ended it. An error is one line.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_grpo_kit.cli.terminal import escaped, open_standard_streams, say
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.habits import not_known
from mlx_grpo_kit.grpo.recipe import MAX_STEPS, TINY_ARGS, TINY_NAME
from mlx_grpo_kit.runs.record import KEEP

# MLX, rich and the kit's own parts are imported inside the commands: --help and a typing error are answered at once.

SAVE_EVERY, EVAL_EVERY, EVAL_PROBLEMS = 50, 50, 256


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number.")
    return value


def name(text: str) -> str:
    """A text with something in it."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty. Is a variable of the shell not set?")
    return text


def whole_number(text: str) -> int:
    """A whole number of any sign."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number.") from None


def count(text: str) -> int:
    """A whole number of at least 1."""
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is too small; expected at least 1.")
    return value


def seed(text: str) -> int:
    """A whole number of 64 bits, none of them a sign."""
    value = whole_number(text)
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"{value} is out of range; expected 0 to 2^64 - 1.")
    return value


def numbers(text: str) -> tuple[float, ...]:
    """Finite numbers between commas."""
    return tuple(number(each) for each in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(text.split(","))


def amount(text: str) -> int | str:
    """A whole number of at least 0, or all."""
    if text == "all":
        return text
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount; expected a whole number of at least 0, or all.")
    return value


def named_value(text: str) -> tuple[str, Any]:
    """A name and a value, which is JSON where it can be and else a text."""
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is no KEY=VALUE.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is no JSON object, such as {{"enable_thinking": false}}.')
    return value


def is_bfloat16(text: str) -> bool:
    """What GRPOConfig calls bf16, from the name of a dtype."""
    if text not in ("float32", "bfloat16"):
        raise argparse.ArgumentTypeError(f"{text!r} is no dtype to train in; expected float32 or bfloat16.")
    return text == "bfloat16"


@dataclass(frozen=True)
class Setting:
    """A field of GRPOConfig as an option: `type` reads it (bool: a flag, list: a text a time)."""

    name: str
    type: Callable[[str], Any]
    help: str

    @property
    def option(self) -> str:
        """As it is written in the terminal."""
        return "--dtype" if self.type is is_bfloat16 else "--" + self.name.replace("_", "-")

    @property
    def default(self) -> Any:
        """GRPOConfig's own."""
        return getattr(GRPOConfig, self.name)

    def add_to(self, group: Any) -> None:
        """As an option whose value is None where it was not given."""
        default = f"default {self.default}"
        if TINY_ARGS.get(self.name, self.default) != self.default:
            default = f"default {TINY_ARGS[self.name]} for the tiny model, {self.default} for a large one"
        if self.type is bool:
            group.add_argument(self.option, action=argparse.BooleanOptionalAction, default=None, help=self.help)
            return
        if self.type is list:
            group.add_argument(self.option, dest=self.name, action="append", metavar="TEXT", help=self.help)
            return
        words = self.help if self.default is None or self.type is is_bfloat16 else f"{self.help} ({default})"
        kinds = {str: "NAME", is_bfloat16: "NAME", numbers: "N,N", names: "NAME,NAME", json_object: "JSON"}
        metavar = kinds.get(self.type, "N")
        also = ["--lora-rank"] if self.name == "lora_r" else []  # mlx-lm's name
        group.add_argument(self.option, *also, dest=self.name, type=self.type, metavar=metavar, help=words)


# GRPOConfig's documentation says more on each.
SETTINGS = {
    "how fast it learns": (
        Setting("learning_rate", number, "step size of the optimizer; ten times the default with --lora-r"),
        Setting("lr_scheduler_type", str, "constant; linear and cosine fall to 0 at --max-steps"),
        Setting("warmup_steps", whole_number, "steps in which the learning rate rises to its full value"),
        Setting("weight_decay", number, "the optimizer's"),
        Setting("max_grad_norm", number, "gradients longer than this are shortened to it"),
    ),
    "what it learns from": (
        Setting("num_generations", whole_number, "completions a prompt; each is compared with the others"),
        Setting("per_device_train_batch_size", whole_number, "completions that go through the model at once"),
        Setting("gradient_accumulation_steps", whole_number, "such batches a step, of all processes together"),
        Setting("num_iterations", whole_number, "updates from each batch of completions"),
        Setting("scale_rewards", str, "divide by the standard deviation of the group, the batch, or none"),
        Setting("advantage_estimator", str, "compare with the group's mean; rloo: with the others' mean"),
        Setting("reward_weights", numbers, "of several reward functions, such as 1,0.2 (default: 1 for each)"),
        Setting("multi_objective_aggregation", str, "of several rewards; or normalize_then_sum (GDPO)"),
        Setting("dynamic_sampling_rounds", whole_number, "draw groups without spread again, so often (DAPO)"),
        Setting("soft_punish_cache", whole_number, "punish the last N tokens before the longest completion (DAPO)"),
        Setting("mask_truncated_completions", bool, "leave completions without an end out of the loss"),
        Setting("on_reward_error", str, "stop when a reward function fails, or skip the completion"),
        Setting("gradient_statistics", bool, "add metrics of each parameter's gradient"),
    ),
    "what it costs": (
        Setting("lora_r", whole_number, "train adapters of this rank, such as 8, beside a model that stays as it is"),
        Setting("lora_alpha", number, "what adapters add is multiplied by this, divided by their rank"),
        Setting("lora_target_modules", names, "which linear maps have adapters, such as q_proj,v_proj (default: all)"),
        Setting("gradient_checkpointing", bool, "less memory, more time: compute again in the backward pass"),
        Setting("completion_batch_size", whole_number, "completions sampled at once (default: 2 GiB of cache)"),
        Setting("backend", str, "what computes gradients: mlx, torch (the fastest on a CPU) or jax"),
        Setting("optim", str, "adamw; adafactor takes half the memory, and learns in other steps"),
        Setting("bf16", is_bfloat16, "float32 (default); bfloat16 on a GPU, with parameters kept in float32"),
    ),
    "how it samples": (
        Setting("max_completion_length", whole_number, "tokens a completion may have (default: the task's own)"),
        Setting("stop_strings", list, "a text that ends a completion and stays in it; may be given several times"),
        Setting("chat_template_kwargs", json_object, "what the model's chat template is told, as JSON"),
        Setting("temperature", number, "logits are divided by it"),
        Setting("top_k", whole_number, "sample among the N likeliest tokens"),
        Setting("top_p", number, "sample among the likeliest tokens that together have this probability"),
        Setting("min_p", number, "sample among tokens at least this fraction as likely as the likeliest"),
        Setting("seed", seed, "of problems and of sampling: same seed, same machine, same run"),
    ),
    "the loss": (
        Setting("loss_type", str, "grpo, bnpo, dr_grpo, dapo, luspo, cispo, sapo, vespo, reinforce or rloo"),
        Setting("epsilon", number, "how far a probability ratio may fall before it is clipped"),
        Setting("epsilon_high", number, "how far it may rise (default: as far as it may fall)"),
        Setting("delta", number, "a bound for the ratios that clipping leaves unbounded"),
        Setting("importance_sampling_level", str, "one ratio a token, or a sequence"),
        Setting("beta", number, "weight of the KL penalty against the policy that training started from"),
        Setting("use_bias_correction_kl", bool, "multiply the KL penalty by the ratio (TRL's default)"),
        Setting("sync_ref_model", bool, "let that policy follow the one that is trained"),
        Setting("ref_model_mixup_alpha", number, "by this share"),
        Setting("ref_model_sync_steps", whole_number, "every N steps"),
        Setting("entropy_coef", number, "weight of the entropy bonus"),
        Setting("top_entropy_quantile", number, "the share of tokens learned from: those with the most entropy"),
    ),
}


class Parser(argparse.ArgumentParser):
    """argparse with one line for an error, and no guessing at abbreviations."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str) -> None:
        self.exit(2, f"error: {message}\n")


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """The whole command line, and the parser of each command by name."""
    parser = Parser(prog="mlx_grpo_kit", description="A Qwen3 learns by GRPO, on MLX.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands; each has its own --help")
    _add_train(commands)
    _add_generate(commands)
    _add_fuse(commands)
    words = "make the tiny model again"
    pretrain = commands.add_parser("pretrain", help=words, description=words)
    pretrain.add_argument("--output", required=True, metavar="DIR", help="the Hugging Face folder to write")
    words = "batches to learn from; the default, some minutes' worth, made the model that ships"
    pretrain.add_argument("--steps", type=count, metavar="N", help=words)
    words = "of the first parameters and of the homework (default 0)"
    pretrain.add_argument("--seed", type=seed, metavar="N", help=words)
    pretrain.set_defaults(run=_pretrain)
    words = "is this machine ready? and what to do if it is not"
    commands.add_parser("doctor", help=words, description=words).set_defaults(run=_doctor)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser, commands.choices


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="train a model on a task by GRPO",
        usage="mlx_grpo_kit train --output DIR [--model FOLDER] [--task NAME] [--max-steps N] [options]",
        description="Train a model on a task by GRPO. Ctrl-C saves and says how to go on; a second one quits at once.",
        epilog="examples:\n"
        "  python -m mlx_grpo_kit train --output outputs/addition\n"
        "  python -m mlx_grpo_kit train --output outputs/addition --resume --max-steps 300\n"
        "  python -m mlx_grpo_kit train --model models/Qwen3-0.6B --task countdown --output outputs/countdown\n"
        "  python -m mlx_grpo_kit train --model models/Qwen3-0.6B --data problems.jsonl --output outputs/problems\n",
    )
    run = train.add_argument_group("the run")
    words = "where metrics.jsonl, completions.jsonl, reward.png, checkpoints/ and policy/ are written"
    run.add_argument("--output", required=True, metavar="DIR", help=words)
    words = "a Hugging Face folder of a Qwen3, or one of the kit's own: tiny (default), tiny-chat"
    run.add_argument("--model", type=name, metavar="FOLDER", help=words)
    words = "addition (default), countdown, or file.py:Class (module:Class) for a task of your own"
    run.add_argument("--task", type=name, metavar="NAME", help=words)
    words = "a file of JSON lines to train on, with a question and an answer in each, such as GSM8K's"
    run.add_argument("--data", type=name, metavar="FILE", help=words)
    words = "what the task is called with, such as num_numbers=4; several, with blanks between"
    run.add_argument("--task-args", type=named_value, nargs="+", metavar="KEY=VALUE", help=words)
    words = "put problems as chats (default: where the model's folder has a chat template and the task can be asked)"
    run.add_argument("--chat", action=argparse.BooleanOptionalAction, default=None, help=words)
    words = "what the chat template is told: whether the model thinks first (default: it does not)"
    run.add_argument("--enable-thinking", action=argparse.BooleanOptionalAction, default=None, help=words)
    run.add_argument("--max-steps", type=count, metavar="N", help=f"steps in all (default {MAX_STEPS})")
    words = f"steps between checkpoints (default {SAVE_EVERY})"
    run.add_argument("--save-every", type=count, metavar="N", help=words)
    words = f"steps between measurements of accuracy (default {EVAL_EVERY})"
    run.add_argument("--eval-every", type=count, metavar="N", help=words)
    words = f"held-out problems that accuracy is measured on (default {EVAL_PROBLEMS})"
    run.add_argument("--eval-problems", type=count, metavar="N", help=words)
    words = f"completions a step that completions.jsonl gets: whole groups, at least one (default {KEEP}); all, or 0"
    run.add_argument("--log-completions", type=amount, metavar="N", help=words)
    words = "train in N processes on this machine, to the same numbers; mlx.launch starts them on several machines"
    run.add_argument("--processes", type=count, metavar="N", help=words)
    again = run.add_mutually_exclusive_group()
    words = (
        "go on with the run in DIR, to the numbers it would have had without a break. Its settings are kept there; "
        "--max-steps, --save-every, --eval-every, --eval-problems, --log-completions, --gradient-checkpointing, "
        "--completion-batch-size, --backend and the options under 'how fast it learns' may be given new values"
    )
    again.add_argument("--resume", action="store_true", help=words)
    again.add_argument("--overwrite", action="store_true", help="replace the run in DIR")
    for title, settings in SETTINGS.items():
        group = train.add_argument_group(title)
        for setting in settings:
            setting.add_to(group)
    train.set_defaults(run=_train)


def _add_generate(commands: Any) -> None:
    generate = commands.add_parser(
        "generate",
        help="let a model continue a text",
        description="Let a model continue a text as it stands, or with --chat answer it. A single answer is shown "
        "as it is written. Characters that steer a terminal are shown escaped.",
        epilog="examples:\n"
        '  python -m mlx_grpo_kit generate "12+34="\n'
        '  python -m mlx_grpo_kit generate --model outputs/addition/policy --num 5 "12+34=" "38+47="\n'
        '  python -m mlx_grpo_kit generate --model models/Qwen3-0.6B --chat --no-enable-thinking "What is 12+34?"\n',
    )
    generate.add_argument("prompts", nargs="+", metavar="TEXT")
    words = "a Hugging Face folder of a Qwen3, or one of the kit's own: tiny (default), tiny-chat"
    generate.add_argument("--model", type=name, default=TINY_NAME, metavar="FOLDER", help=words)
    generate.add_argument("--num", type=count, default=1, metavar="N", help="completions of each text (default 1)")
    words = (
        "0 takes the likeliest token, 1 samples from the model itself. By default this and the next three follow the "
        "folder's generation_config.json; without settings there it is 0, or 1 where --num is more than 1"
    )
    generate.add_argument("--temperature", type=number, metavar="N", help=words)
    words = "sample among the N likeliest tokens"
    generate.add_argument("--top-k", type=whole_number, metavar="N", help=words)
    words = "sample among the likeliest tokens that together have this probability"
    generate.add_argument("--top-p", type=number, metavar="N", help=words)
    words = "sample among tokens at least this fraction as likely as the likeliest"
    generate.add_argument("--min-p", type=number, metavar="N", help=words)
    words = "put each text as a user's message, by the chat template of the model's folder"
    generate.add_argument("--chat", action="store_true", help=words)
    words = "with --chat: what stands before it as the system's message"
    generate.add_argument("--system", metavar="TEXT", help=words)
    words = "with --chat: what the template is told on thinking (default: nothing; Qwen3 thinks)"
    generate.add_argument("--enable-thinking", action=argparse.BooleanOptionalAction, default=None, help=words)
    words = "a text that ends an answer and stays in it; may be given several times"
    generate.add_argument("--stop", action="append", metavar="TEXT", help=words)
    words = "tokens to stop after (default 256, or as many as the model has positions for)"
    generate.add_argument("--max-new-tokens", type=count, metavar="N", help=words)
    generate.add_argument("--seed", type=seed, default=0, metavar="N", help="another seed, other samples (default 0)")
    generate.set_defaults(run=_generate)


def _add_fuse(commands: Any) -> None:
    fuse = commands.add_parser(
        "fuse",
        help="make one folder of adapters and the model that they stand beside",
        description="Make one Hugging Face folder of adapters (train --lora-r) and the model that they stand beside.",
        epilog="examples:\n"
        "  python -m mlx_grpo_kit fuse --adapter outputs/addition/policy --output outputs/fused\n"
        "  python -m mlx_grpo_kit fuse --adapter adapters --model models/Qwen3-0.6B --output outputs/fused\n",
    )
    words = "a folder of adapters that the kit, mlx-lm or PEFT wrote"
    fuse.add_argument("--adapter", type=name, required=True, metavar="FOLDER", help=words)
    words = "the model that they stand beside (default: the one that they name)"
    fuse.add_argument("--model", type=name, metavar="FOLDER", help=words)
    words = "the Hugging Face folder to write, in float numbers where the model is quantized"
    fuse.add_argument("--output", required=True, metavar="DIR", help=words)
    fuse.set_defaults(run=_fuse)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. A command line that makes no sense ends in SystemExit(2)."""
    nowhere_to_print = sys.stdout is None
    open_standard_streams()
    if nowhere_to_print:
        print("error: standard output is closed. To run without it, send it to /dev/null.", file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop
    parser, commands = build_parser()
    options, unknown = parser.parse_known_args(argv)
    options.arguments = sys.argv[1:] if argv is None else argv
    if unknown:
        parser.error(_unknown(unknown, commands.get(options.command, parser)))
    if options.command is None:
        parser.print_help()
        return 0
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {escaped(str(message))}")
        try:
            return options.run(options)
        except KeyboardInterrupt:
            say("Stopped.")
            return 128 + signal.SIGINT
        except Exception as error:
            if options.debug:
                raise
            say(f"error: {_in_words(error)}")
            return 2 if isinstance(error, (ValueError, TypeError, OSError)) else 1


def _unknown(arguments: Sequence[str], parser: Parser) -> str:
    """What to say of arguments that a parser does not know; one that follows an option is its value."""
    options = dict.fromkeys(each.partition("=")[0] for each in arguments if each.startswith("-"))
    if not arguments[0].startswith("-"):
        return f"unexpected argument {arguments[0]!r}; see --help."
    hints = {option: not_known(option, parser._option_string_actions) or "see --help." for option in options}
    if "--bf16" in hints:  # the one setting whose option has another name
        hints["--bf16"] = "here: --dtype bfloat16."
    return " ".join(f"unknown option {option}; {hint}" for option, hint in hints.items())


def _in_words(error: Exception) -> str:
    expected = (ValueError, TypeError, OSError, ImportError, RuntimeError)  # whose messages are written for the user
    words = escaped(" ".join(str(error).split()))  # it may quote what a model or a file says
    return words if isinstance(error, expected) and words else f"{type(error).__name__}: {words} (--debug shows where)"


def _train(options: argparse.Namespace) -> int:
    if not options.resume:
        options.max_steps = options.max_steps or MAX_STEPS
        options.save_every = options.save_every or SAVE_EVERY
        options.eval_every = options.eval_every or EVAL_EVERY
        options.eval_problems = options.eval_problems or EVAL_PROBLEMS
        options.log_completions = KEEP if options.log_completions is None else options.log_completions
    if options.processes == 1:
        options.processes = None
    if options.processes and "MLX_RANK" not in os.environ:
        return _train_in_processes(options)
    from mlx_grpo_kit.cli.training_run import train

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: a task of one's own may lie in the current folder
    names = [setting.name for group in SETTINGS.values() for setting in group]
    args = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.enable_thinking is not None:
        args["chat_template_kwargs"] = args.get("chat_template_kwargs", {}) | {
            "enable_thinking": options.enable_thinking
        }
    return train(options, args)


def _train_in_processes(options: argparse.Namespace) -> int:
    from mlx_grpo_kit.cli.processes import ProcessDiedError, run_processes
    from mlx_grpo_kit.cli.typed import way_on
    from mlx_grpo_kit.runs.folder import RunFolder, check_writable

    check_writable(options.output)
    folder = RunFolder(options.output)
    before = folder.written_at()
    try:
        return run_processes(options.arguments, options.processes)
    except ProcessDiedError as error:
        begun = folder.written_at() not in (None, before) or options.resume
        raise ProcessDiedError(f"{error} {way_on(folder, options.processes, begun)}") from error


def _generate(options: argparse.Namespace) -> int:
    from mlx_grpo_kit.cli.generation import run

    return run(options)


def _fuse(options: argparse.Namespace) -> int:
    from mlx_grpo_kit.cli.fuse import fuse
    from mlx_grpo_kit.grpo.recipe import model_folder
    from mlx_grpo_kit.runs.folder import check_writable

    check_writable(options.output)
    folder = fuse(options.adapter, options.output, options.model and model_folder(options.model))
    print(f"{folder} is a Hugging Face folder.")
    return 0


def _pretrain(options: argparse.Namespace) -> int:
    from mlx_grpo_kit.cli.pretrain import pretrain
    from mlx_grpo_kit.runs.folder import check_writable

    check_writable(options.output)
    given = {name: getattr(options, name) for name in ("steps", "seed") if getattr(options, name) is not None}
    pretrain(options.output, **given)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from mlx_grpo_kit.cli import doctor

    return doctor.main()
