"""The `train` command: start or resume a run in a folder, stop it in order, and report the result."""

from __future__ import annotations

import argparse
import signal
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from mlx_grpo_kit.cli.processes import LOST, end_with_parent
from mlx_grpo_kit.cli.run_report import NoReport, Report, RunFailedError
from mlx_grpo_kit.cli.start import fresh, resumed
from mlx_grpo_kit.cli.stopping import StopSignal
from mlx_grpo_kit.cli.terminal import say
from mlx_grpo_kit.cli.typed import together, way_on
from mlx_grpo_kit.grpo import GRPOTrainer
from mlx_grpo_kit.grpo.processes import ProcessLostError, World
from mlx_grpo_kit.runs.folder import RunFolder, RunSettings
from mlx_grpo_kit.tasks.calls import held_out_problems


def train(options: argparse.Namespace, args: Mapping[str, Any]) -> int:
    """Run the command and return the exit status.

    `options` has output, model, task, max_steps, save_every, eval_every, eval_problems, log_completions, processes
    (None if not given), fsdp, resume and overwrite; `args` are the given fields of GRPOConfig. Raises ValueError,
    TypeError or OSError for bad input, before anything is written, and RunFailedError.

    Every process makes the same calls that wait for the others. Only the first one writes and prints. If the others
    fail with the same error they end with status 0, because the first reports it.
    """
    world = World.join(options.fsdp)
    if options.processes:
        if options.processes != world.size:
            raise ValueError(f"--processes is {options.processes}, and this is one of {world.size}. Leave it out.")
        end_with_parent()
    is_first, folder = world.rank == 0, RunFolder(options.output)
    if not is_first:
        warnings.simplefilter("ignore")
    with ExitStack() as stack:
        try:
            try:
                with world.together(ValueError, Exception):
                    if is_first:
                        stack.enter_context(folder)
                    settings, trainer = (resumed if options.resume else fresh)(options, args, folder, world)
                    if is_first:  # asking for more than there are is bad input, not a failed run
                        held_out_problems(trainer.task, settings.eval_problems)
            except Exception as error:
                if is_first or isinstance(error, ProcessLostError):
                    raise
                return 0
            with StopSignal(world) as stop:
                report = NoReport(trainer)
                if is_first:
                    report = Report(folder, settings, trainer, stop, together(options))
                with report:
                    run_steps(trainer, settings, stop, report)
                    report.save()
            return report.end()
        except KeyboardInterrupt:
            if is_first:
                say(f"Stopped at once. {way_on(folder, together(options), folder.is_open)}")
            return 128 + signal.SIGINT
        except ProcessLostError as error:
            if options.processes or not is_first:
                return LOST  # the parent process knows which one it was, and reports it
            raise RunFailedError(f"{error} {way_on(folder, together(options), folder.is_open)}") from error


def run_steps(trainer: GRPOTrainer, settings: RunSettings, stop: StopSignal, report: Report | NoReport) -> None:
    """Train until the last step or a stop signal.

    All processes do the same: `evaluate`, `train` and `came` wait for them.
    """
    before = None
    if trainer.step == 0:
        report.measuring()
        before = trainer.evaluate(settings.eval_problems)
    report.begin(before)
    if stop.came():
        return
    for step in trainer.train(settings.max_steps):
        metrics = dict(step.metrics)
        try:
            if settings.measures_after(step.step):
                metrics |= trainer.evaluate(settings.eval_problems)
        finally:  # the step is done, and a checkpoint relies on its line
            report.write(step, metrics)
        report.done(step, metrics)
        if stop.came():
            return
