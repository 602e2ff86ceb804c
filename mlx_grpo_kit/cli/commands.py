"""The kit's command line, `python -m mlx_grpo_kit COMMAND`, with --help for each command.

Exit status: 0, 1 if a run failed, 2 for bad input, 130 and 143 if Ctrl-C or SIGTERM ended it. An error is one line.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from mlx_grpo_kit.cli.parser import EVAL_EVERY, EVAL_PROBLEMS, SAVE_EVERY, build_parser
from mlx_grpo_kit.cli.terminal import escaped, open_standard_streams, say
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.recipe import MAX_STEPS
from mlx_grpo_kit.grpo.settings import rules_of
from mlx_grpo_kit.runs.record import KEEP

# The file of a command is imported once the command line is right: --help and errors about typing appear at once.


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. An invalid command line raises SystemExit(2)."""
    nowhere_to_print = sys.stdout is None
    open_standard_streams()
    if nowhere_to_print:
        print("error: standard output is closed. To run without it, redirect it to /dev/null.", file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # do not stop if the terminal cannot show a character
    parser, commands = build_parser()
    options, unknown = parser.parse_known_args(argv)
    options.arguments = sys.argv[1:] if argv is None else argv
    if unknown:
        parser.error(commands.get(options.command, parser).about_unknown(unknown))
    if options.command is None:
        parser.print_help()
        return 0
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {escaped(str(message))}")
        try:
            if options.command == "train":
                return _train(options)
            return import_module(getattr(options, "module", f"mlx_grpo_kit.cli.{options.command}")).run(options)
        except KeyboardInterrupt:
            say("Stopped.")
            return 128 + signal.SIGINT
        except SystemExit as error:
            if error.code:
                raise
            say("error: a file of yours called exit(), which would end the command without a word.")
            return 2
        except Exception as error:
            if options.debug:
                raise
            say(f"error: {_in_words(error)}")
            return 2 if isinstance(error, (ValueError, TypeError, OSError)) else 1


def _in_words(error: Exception) -> str:
    expected = (ValueError, TypeError, OSError, ImportError, RuntimeError)  # errors with messages for the user
    words = escaped(" ".join(str(error).split()))  # it may quote a model or a file
    return words if isinstance(error, expected) and words else f"{type(error).__name__}: {words} (--debug shows more)"


def _train(options: argparse.Namespace) -> int:
    if options.num_train_epochs and (options.max_steps or options.resume):
        other = "--max-steps" if options.max_steps else "--resume"
        raise ValueError(f"--num-train-epochs and {other} are given; both set the length of the run. Leave one out.")
    if not options.resume:
        options.max_steps = options.max_steps or MAX_STEPS
        options.save_every = options.save_every or SAVE_EVERY
        options.eval_every = options.eval_every or EVAL_EVERY
        options.eval_problems = options.eval_problems or EVAL_PROBLEMS
        options.log_completions = KEEP if options.log_completions is None else options.log_completions
    if options.processes == 1:
        options.processes = None
    if options.processes and "TORCHELASTIC_RUN_ID" in os.environ:
        raise ValueError(f"--processes is {options.processes}, and torchrun has started the processes. Leave it out.")
    if options.processes and "MLX_RANK" not in os.environ:
        return _train_in_processes(options)
    from mlx_grpo_kit.cli.train import train

    given = {name: value for name in rules_of(GRPOConfig) if (value := getattr(options, name)) is not None}
    args = {name: None if value == math.inf else value for name, value in given.items()}
    if options.enable_thinking is not None:
        args["chat_template_kwargs"] = args.get("chat_template_kwargs", {}) | {
            "enable_thinking": options.enable_thinking
        }
    return train(options, args)


def _train_in_processes(options: argparse.Namespace) -> int:
    from mlx_grpo_kit.cli.processes import ProcessDiedError, run_processes
    from mlx_grpo_kit.cli.typed import together, way_on
    from mlx_grpo_kit.runs.folder import RunFolder, check_writable

    check_writable(options.output)
    folder = RunFolder(options.output)
    before = folder.written_at()
    try:
        return run_processes(options.arguments, options.processes)
    except ProcessDiedError as error:
        begun = folder.written_at() not in (None, before) or options.resume
        raise ProcessDiedError(f"{error} {way_on(folder, together(options), begun)}") from error
