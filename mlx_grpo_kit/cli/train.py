"""The `train` command: train until the last step or a signal, write the run's folder, and report the result."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from mlx_grpo_kit.cli.display import RunDisplay
from mlx_grpo_kit.cli.processes import LOST, end_with_parent
from mlx_grpo_kit.cli.run_curves import draw_curves
from mlx_grpo_kit.cli.start import fresh, resumed
from mlx_grpo_kit.cli.terminal import say
from mlx_grpo_kit.cli.typed import command_line, together, train_on, way_on
from mlx_grpo_kit.grpo import GRPOTrainer, TrainingDivergedError, TrainStep
from mlx_grpo_kit.grpo.processes import ProcessLostError, World
from mlx_grpo_kit.grpo.recipe import model_folder
from mlx_grpo_kit.runs.folder import RunFolder, RunSettings
from mlx_grpo_kit.runs.record import completions_line
from mlx_grpo_kit.runtime.extras import install
from mlx_grpo_kit.tasks import Problem, TaskError
from mlx_grpo_kit.tasks.calls import are_correct, held_out_problems
from mlx_grpo_kit.tasks.task import prompt_text


class RunFailedError(RuntimeError):
    """A run that had started could not continue; the message gives the reason, and what was saved."""


def train(options: argparse.Namespace, args: Mapping[str, Any]) -> int:
    """Run the command and return the exit status.

    `options` has output, model, task, max_steps, save_every, eval_every, eval_problems, log_completions, processes
    (None if not given), resume and overwrite; `args` are the given fields of GRPOConfig. Raises ValueError,
    TypeError or OSError for bad input, before anything is written, and RunFailedError.

    Every process makes the same calls that wait for the others. Only the first one writes and prints. If the others
    fail with the same error they end with status 0, because the first reports it.
    """
    world = World.join()
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
                report = Report(folder, settings, trainer, stop, together(options)) if is_first else NoReport()
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


class NoReport:
    """The other processes report nothing. It has the methods of `Report`."""

    def __enter__(self) -> NoReport:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, ValueError | TrainingDivergedError)  # raised in all processes; includes TaskError

    def _nothing(self, *given: object) -> None:
        pass

    measuring = begin = write = done = save = _nothing

    def end(self) -> int:
        return 0


class Report:
    """Write a run's folder and show its progress. In this context, errors become a RunFailedError.

    Args:
        folder: an entered RunFolder; it becomes the run's at the first step.
        together: the options for several processes, for the printed commands.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: RunSettings,
        trainer: GRPOTrainer,
        stop: StopSignal,
        together: Sequence[object] = (),
    ):
        self.folder, self.settings, self.trainer, self.stop, self.together = folder, settings, trainer, stop, together
        self._title = f"{Path(settings.model).name} learns {settings.task}"
        self._console = Console(file=Output(stop), highlight=False)
        self._before: Mapping[str, float] | None = None
        self._display = RunDisplay(
            self._title,
            settings.max_steps,
            trainer.task.is_correct,
            lambda: stop.words if stop.number is not None else "",
            self._console,
            processes=trainer.world.size,
        )

    def __enter__(self) -> Report:
        self._display.__enter__()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self._display.__exit__(kind, error, trace)
        if isinstance(error, TaskError | ProcessLostError) and self.folder.is_open:
            self.folder.save(self.trainer)  # a failed step changes nothing: this is the policy of the previous step
        if isinstance(error, TaskError | TrainingDivergedError | OSError):
            words = f"{str(error).rstrip('.')}. {way_on(self.folder, self.together, self.folder.is_open)}"
            raise RunFailedError(words) from error

    def measuring(self) -> None:
        """Show that accuracy is measured before the first step."""
        problems = self.settings.eval_problems
        self._display.phase(f"measuring accuracy before training, on {problems} held-out problems")

    def begin(self, before: Mapping[str, float] | None) -> None:
        """Record the metrics before the first step; None for a resumed run."""
        self._before = before
        for measured in self.folder.measured() if before is None else [(0, before["eval/accuracy"])]:
            self._display.measured(*measured)
        self._display.begin_steps()

    def write(self, step: TrainStep, metrics: Mapping[str, float]) -> None:
        """Add a step to the run's files; the first step makes the folder the run's."""
        if not self.folder.is_open:
            self.folder.begin(self.settings)
            self.folder.append(0, self._before)

        def is_correct(problem: Problem, completion: str) -> bool:
            return are_correct(self.trainer.task, [problem], [completion])[0]

        completions = completions_line(step, self.settings.keep, is_correct)
        self.folder.append(step.step, metrics, step.changes, completions)

    def done(self, step: TrainStep, metrics: Mapping[str, float]) -> None:
        """Show a step that was written, and save a checkpoint if one is due."""
        self._display.update(step, metrics)
        if self.settings.keep_best and "eval/accuracy" in metrics and self.folder.best_point()[0] == step.step:
            self.trainer.save_pretrained(self.folder.best, model_folder(self.settings.model))
        if step.step % self.settings.save_every == 0:
            self.folder.save(self.trainer)
            draw_curves(self.folder, self._title)

    def save(self) -> None:
        """Save the run and its policy, if any step was done."""
        if self.folder.is_open:
            self._display.phase("saving")
            self.folder.save(self.trainer)
            self.trainer.save_pretrained(self.folder.policy, model_folder(self.settings.model))
            draw_curves(self.folder, self._title)

    def end(self) -> int:
        """Report the result, the files, problems and the next commands; return the exit status."""
        folder, settings, trainer = self.folder, self.settings, self.trainer
        if not folder.is_open:
            self._console.print("Stopped before the end of the first step; nothing was written.")
            return 128 + self.stop.number
        done = trainer.step == settings.max_steps
        lora = trainer.args.lora_r
        policy = folder.typed(folder.policy)
        what = "adapters for mlx-lm and, in peft/, for PEFT" if lora else "a Hugging Face folder"
        lines = [
            f"\n{'Done' if done else 'Stopped'}: {trainer.step} of {settings.max_steps} steps.",
            f"  accuracy  {_before_and_after(folder)}, sampled on {settings.eval_problems} held-out problems",
            f"  policy    {policy}, {what}",
            *self._best(),
            f"  curves    {folder.typed(folder.picture)}"
            if folder.picture.exists()
            else f"  curves    not drawn, because Matplotlib is not installed: {install('course')}",
            f"  numbers   {folder.typed(folder.metrics)}",
            *(f"Look at:  {words}" for words in self._display.warnings),
        ]
        if folder.completions.stat().st_size:
            lines.append(f"  samples   {folder.typed(folder.completions)}")
        if not done:
            lines.append(f"Go on:    {train_on(folder, *self.together)}")
        prompt, how = _as_typed(trainer.task.held_out(1)[0].prompt, getattr(trainer.task, "chat_template_kwargs", {}))
        lines.append(f"Try it:   {command_line('generate', '--model', policy, '--num', 4, *how, *prompt)}")
        if lora:
            whole = folder.typed(folder.path / "fused")
            lines.append(f"Fuse:     {command_line('fuse', '--adapter', policy, '--output', whole)}")
        if done:
            lines.append(f"Go on:    {train_on(folder, *self.together, '--max-steps', 2 * settings.max_steps)}")
        self._console.print("\n".join(lines), soft_wrap=True, markup=False)
        return 0 if done else 128 + self.stop.number

    def _best(self) -> list[str]:
        """A line on the policy that --keep-best kept."""
        if not self.settings.keep_best:
            return []
        folder = self.folder
        step, accuracy = folder.best_point()
        if not folder.best.exists():
            return [f"  best      none kept: accuracy was never higher than {accuracy:.3f}, after step {step}"]
        return [f"  best      {folder.typed(folder.best)}, accuracy {accuracy:.3f} after step {step}"]


def _as_typed(prompt: str | Sequence[Mapping[str, Any]], template: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """A prompt, and the options with which `generate` asks it as the run did."""
    how: list[str] = []
    if not isinstance(prompt, str):
        how = ["--chat", *(["--no-enable-thinking"] if template.get("enable_thinking") is False else [])]
        for message in prompt[:-1]:
            how += [f"--system={message['content']}"] if message["role"] == "system" else []
    text = prompt_text(prompt)
    return ["--", text] if text.startswith("-") else [text], how


def _before_and_after(folder: RunFolder) -> str:
    values = [accuracy for _, accuracy in folder.measured()]
    if not values:
        return "not measured"
    return f"{values[0]:.3f} -> {values[-1]:.3f}" if len(values) > 1 else f"{values[0]:.3f} before training"


class StopSignal:
    """In this context, Ctrl-C or SIGTERM asks the run to stop after its step; a second signal raises KeyboardInterrupt.

    Args:
        world: the processes, which stop together after the same step; the first prints a message.
    """

    words = "Stopping after this step; Ctrl-C again quits at once."

    def __init__(self, world: World):
        self._world = world
        self._is_second = False
        self.number: int | None = None
        """The signal that asked this process to stop, or another one before the last `came`; None if there was none."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        self._before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: object) -> None:
        if self._is_second:
            raise KeyboardInterrupt
        self._is_second = True
        self.number = self.number or number
        if self._world.rank == 0 and not sys.stdout.isatty():  # unless the display shows it
            with suppress(OSError):
                os.write(2, f"{self.words}\n".encode())  # print may be interrupted in the middle of a line

    def came(self) -> bool:
        """True if any of the processes was asked to stop. Every process must call this at the same point of the run.

        Only gathered signals count: the others do not know of a later signal, so it counts next time.
        """
        gathered = self._world.gather(np.array([self.number or 0])).max().item()
        self.number = self.number or gathered or None
        return gathered != 0

    def output_is_gone(self) -> None:
        """Ask the run to stop, like SIGPIPE."""
        self.number = self.number or signal.SIGPIPE


class Output:
    """Standard output that may be closed without ending the run.

    If the reader closes it (`train | head -1`), the run stops in order. If writing fails, as on a full disk, the run
    continues. In both cases later output goes to standard error, or nowhere if that fails too.
    """

    def __init__(self, stop: StopSignal):
        self._stop = stop

    def write(self, text: str) -> int:
        with self._outlived():
            sys.stdout.write(text)
        return len(text)

    def flush(self) -> None:
        with self._outlived():
            sys.stdout.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)

    @contextmanager
    def _outlived(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            words = f"Standard output cannot be written ({error.strerror}); its lines go to standard error."
            if isinstance(error, BrokenPipeError):
                self._stop.output_is_gone()
                words = "The output is no longer read. Stopping after this step."
            place = 2 if say(words) else os.open(os.devnull, os.O_WRONLY)
            os.dup2(place, 1)  # the stream's buffer goes there too
