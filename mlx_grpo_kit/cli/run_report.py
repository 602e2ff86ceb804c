"""The first process's additional work: write the run's folder, show its progress, and report the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from mlx_grpo_kit.cli.display import RunDisplay
from mlx_grpo_kit.cli.run_curves import draw_curves
from mlx_grpo_kit.cli.shared_saving import Saver, take_part
from mlx_grpo_kit.cli.stopping import Output, StopSignal
from mlx_grpo_kit.cli.typed import command_line, train_on, way_on
from mlx_grpo_kit.grpo import GRPOTrainer, TrainingDivergedError, TrainStep
from mlx_grpo_kit.grpo.processes import ProcessLostError
from mlx_grpo_kit.grpo.recipe import model_folder
from mlx_grpo_kit.runs.folder import RunFolder, RunSettings
from mlx_grpo_kit.runs.record import completions_line
from mlx_grpo_kit.runtime.extras import install
from mlx_grpo_kit.tasks import Problem, TaskError
from mlx_grpo_kit.tasks.calls import are_correct
from mlx_grpo_kit.tasks.task import prompt_text


class RunFailedError(RuntimeError):
    """A run that had started could not continue; the message gives the reason, and what was saved."""


class NoReport:
    """The additional work of the other processes: to take part in saves. It has the methods of `Report`."""

    def __init__(self, trainer: GRPOTrainer):
        self._trainer = trainer

    def __enter__(self) -> NoReport:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, ValueError | TrainingDivergedError)  # raised in all processes; includes TaskError

    def _nothing(self, *given: object) -> None:
        pass

    def _take_part(self, *given: object) -> None:
        take_part(self._trainer)

    measuring = begin = write = _nothing
    done = save = _take_part

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
        self._saver = Saver(trainer)
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
        alone = not self.trainer.world.sharded  # a part of a policy is not worth saving
        if isinstance(error, TaskError | ProcessLostError) and self.folder.is_open and alone:
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
            self._saver.save_pretrained(self.folder.best, model_folder(self.settings.model))
        if step.step % self.settings.save_every == 0:
            self.folder.save(self._saver)
            draw_curves(self.folder, self._title)
        self._saver.over()

    def save(self) -> None:
        """Save the run and its policy, if any step was done."""
        if self.folder.is_open:
            self._display.phase("saving")
            self.folder.save(self._saver)
            self._saver.save_pretrained(self.folder.policy, model_folder(self.settings.model))
            draw_curves(self.folder, self._title)
        self._saver.over()

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
