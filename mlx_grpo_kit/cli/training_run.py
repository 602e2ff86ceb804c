"""The `train` command: start or resume a run in a folder, stop it well, and say what came of it."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from mlx_grpo_kit.cli.display import RunDisplay
from mlx_grpo_kit.cli.processes import LOST, end_with_parent
from mlx_grpo_kit.cli.run_task import (
    check_data,
    fitted,
    hashes_of_data,
    in_words,
    named_task,
    put_as_chat,
    task_of,
    with_room,
)
from mlx_grpo_kit.cli.terminal import say
from mlx_grpo_kit.files import read_json
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer, TrainingDivergedError, estimate_memory
from mlx_grpo_kit.grpo.config import MAY_CHANGE
from mlx_grpo_kit.grpo.memory import in_bytes, machine_memory
from mlx_grpo_kit.grpo.processes import ProcessLostError, World
from mlx_grpo_kit.grpo.prompts import check_room, longest_prompt
from mlx_grpo_kit.grpo.recipe import CHAT_NAME, TINY_NAME, default_args, model_folder
from mlx_grpo_kit.grpo.schedule import scheduled_rate
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained, load_tokenizer
from mlx_grpo_kit.qwen3.adapter_base import bases_of
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.runs.folder import CHECKPOINTS, POLICY, RunFolder, RunSettings
from mlx_grpo_kit.runs.record import completions_line
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import Problem, Task, TaskError
from mlx_grpo_kit.tasks.calls import are_correct, held_out_problems
from mlx_grpo_kit.tasks.task import prompt_text


class RunFailedError(RuntimeError):
    """A run that had begun could not go on; the message says why, and what is left of it."""


class StopSignal:
    """While this is open, Ctrl-C or SIGTERM asks the run to stop after its step; a second raises KeyboardInterrupt.

    Args:
        world: the processes that stop together, after the same step; the first says so.
    """

    words = "Stopping after this step; Ctrl-C again quits at once."

    def __init__(self, world: World):
        self._world = world
        self._is_second = False
        self.number: int | None = None
        """The signal that asked this process or, since the last `came`, another one to stop; None before any did."""
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
        if self._world.rank == 0 and not sys.stdout.isatty():  # where there is no display that says it
            with suppress(OSError):
                os.write(2, f"{self.words}\n".encode())  # print may be in the middle of a line

    def came(self) -> bool:
        """Whether any of the processes was asked to stop. Every process must call this at the same point of the run.

        Only what was gathered counts: a signal that comes after it is unknown to the others, and counts next time.
        """
        gathered = self._world.gather(np.array([self.number or 0])).max().item()
        self.number = self.number or gathered or None
        return gathered != 0

    def output_is_gone(self) -> None:
        """Ask the run to stop, as SIGPIPE would."""
        self.number = self.number or signal.SIGPIPE


class Output:
    """Standard output, whose end is not the end of the run.

    A reader that goes away (`train | head -1`) asks the run to stop. Where nothing can be written, as on a full disk,
    the run goes on. In both cases standard error gets what there is to say from then on, or nothing does.
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
            words = f"Standard output cannot be written ({error.strerror}); its lines come here."
            if isinstance(error, BrokenPipeError):
                self._stop.output_is_gone()
                words = "Nobody reads the output any more. Stopping after this step."
            place = 2 if say(words) else os.open(os.devnull, os.O_WRONLY)
            os.dup2(place, 1)  # what the stream still holds goes there too


def train(options: argparse.Namespace, args: Mapping[str, Any]) -> int:
    """Run the command; returns the exit status.

    `options` has output, model, task, max_steps, save_every, eval_every, eval_problems, log_completions, processes
    (None where not given), resume and overwrite; `args` are the fields of GRPOConfig that were given. Raises
    ValueError, TypeError or OSError for bad input, before anything is written, and RunFailedError.

    Among several processes the first writes and talks; each does its share of every step and of every evaluation.
    """
    world = World.join()
    if options.processes:
        if options.processes != world.size:
            raise ValueError(f"--processes is {options.processes}, and this is one of {world.size}. Leave it out.")
        end_with_parent()
    if world.rank:
        return _follow(options, args, world)
    folder = RunFolder(options.output)
    with ExitStack() as stack:
        try:
            with world.together(ValueError, Exception):
                stack.enter_context(folder)
                settings, trainer = (_resumed if options.resume else _fresh)(options, args, folder, world)
                # More than there are: bad input, no run that failed.
                held_out_problems(trainer.task, settings.eval_problems)
            with StopSignal(world) as stop:
                console = Console(file=Output(stop), highlight=False)
                wrong = _run(folder, settings, trainer, stop, console, options.processes)
            return _report(folder, settings, trainer, stop, console, options.processes, wrong)
        except KeyboardInterrupt:
            say(f"Stopped at once. {_way_on(folder, options.processes)}")
            return 128 + signal.SIGINT
        except ProcessLostError as error:
            if options.processes:
                return LOST  # whoever started the processes knows which one it was, and says so
            raise RunFailedError(f"{error} {_way_on(folder, None)}") from error


def _follow(options: argparse.Namespace, args: Mapping[str, Any], world: World) -> int:
    """What every process but the first does. It writes nothing; what fails in all of them the first one says."""
    warnings.simplefilter("ignore")
    try:
        try:
            with world.together(ValueError, Exception):
                folder = RunFolder(options.output)
                settings, trainer = (_resumed if options.resume else _fresh)(options, args, folder, world)
        except ProcessLostError:
            raise
        except Exception:
            return 0
        with StopSignal(world) as stop:
            if trainer.step == 0:
                trainer.evaluate(settings.eval_problems)
            if not stop.came():
                for step in trainer.train(settings.max_steps):
                    if settings.measures_after(step.step):
                        trainer.evaluate(settings.eval_problems)
                    if stop.came():
                        break
    except (ValueError, TrainingDivergedError):  # TaskErrors among them
        return 0
    except ProcessLostError:
        return LOST
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _fresh(
    options: argparse.Namespace, args: Mapping[str, Any], folder: RunFolder, world: World
) -> tuple[RunSettings, GRPOTrainer]:
    if world.rank == 0:
        folder.check_free(options.overwrite)
    model = _name_of(options.model or TINY_NAME)
    replaced = [(folder.path / name).resolve() for name in (CHECKPOINTS, POLICY)]
    source = model_folder(model)
    for needed in (source, *bases_of(source)):
        if any(needed.resolve().is_relative_to(each) for each in replaced):
            raise ValueError(
                f"--model {options.model} needs {needed}, which the run would replace in {folder.path}. Give another "
                "--output, or copy the model first."
            )
    task_name, task_args = named_task(options)
    settings = RunSettings(
        model=model,
        task=task_name or "addition",
        task_args=task_args or {},
        data=hashes_of_data(task_args or {}),
        max_steps=options.max_steps,
        save_every=options.save_every,
        eval_every=options.eval_every,
        eval_problems=options.eval_problems,
        log_completions=options.log_completions,
        args=asdict(GRPOConfig(**(default_args(model, args.get("lora_r")) | args))),
    )
    tokenizer, config = load_tokenizer(source), Qwen3Config.from_dict(read_json(source, "config.json"))
    settings = put_as_chat(settings, tokenizer, options.chat)
    task = task_of(settings)
    settings = with_room(fitted(settings, task), task, tokenizer, config.max_position_embeddings)
    return settings, _trainer(settings, task, world)


def _resumed(
    options: argparse.Namespace, args: Mapping[str, Any], folder: RunFolder, world: World
) -> tuple[RunSettings, GRPOTrainer]:
    """The run in the folder, at its newest good checkpoint. Every process reads it, the first makes it ready."""
    settings = folder.read_settings()
    model = options.model and _name_of(options.model)
    changes = {name: value for name, value in args.items() if name in MAY_CHANGE}
    task_name, task_args = named_task(options)
    given = {"model": model, "task": task_name, "task_args": task_args, "chat": options.chat}
    fixed = {**given, **{name: args[name] for name in args.keys() - changes.keys()}}
    saved_args = asdict(GRPOConfig(**settings.args))
    for name, value in fixed.items():
        of_the_run = saved_args[name] if name in args else getattr(settings, name)
        value, of_the_run = (list(each) if isinstance(each, tuple) else each for each in (value, of_the_run))
        if value not in (None, of_the_run):
            option = name.replace("_", "-")
            if name == "bf16":
                option, value, of_the_run = (
                    "dtype",
                    *("bfloat16" if each else "float32" for each in (value, of_the_run)),
                )
            raise ValueError(
                f"--{option} {value} is not what the run in {folder.path} has ({of_the_run}), and cannot change while "
                "it goes on. Leave it out, or start another run with another --output."
            )
    may_change = ("max_steps", "save_every", "eval_every", "eval_problems", "log_completions")
    given = {name: getattr(options, name) for name in may_change}
    given = {name: value for name, value in given.items() if value is not None}
    before = settings
    settings = replace(settings, **given, args=asdict(GRPOConfig(**(settings.args | changes))))
    check_data(settings)
    task = task_of(settings)
    settings = fitted(settings, task)
    trainer = folder.load_newest(task, settings, world)
    if trainer is None:
        if world.rank == 0:
            folder.check_ours()
        warnings.warn(f"{folder.path} has no checkpoint yet, so its run starts again from step 0.", stacklevel=2)
        return settings, _trainer(settings, task, world)
    if trainer.step > settings.max_steps:
        raise ValueError(f"--max-steps is {settings.max_steps}, and the run in {folder.path} has done {trainer.step}.")
    if world.rank == 0:
        _say_what_it_takes(trainer.config, trainer.args, trainer.tokenizer, task, settings, world)
        _say_how_fast(trainer, before, settings)
        folder.go_on(settings, trainer.step)
    return settings, trainer


def _name_of(model: str) -> str:
    """As it stands in run.json: good in whatever folder the run is resumed from."""
    return model if model in (TINY_NAME, CHAT_NAME) else os.path.abspath(model)


def _trainer(settings: RunSettings, task: Task, world: World) -> GRPOTrainer:
    source, args = model_folder(settings.model), GRPOConfig(**settings.args)
    tokenizer = load_tokenizer(source)
    if world.rank == 0:  # before the memory is taken
        config = Qwen3Config.from_dict(read_json(source, "config.json"))
        longest = longest_prompt(tokenizer, task, args, settings.eval_problems)
        check_room(config, args.max_completion_length or task.max_completion_length, *([one] for one in longest))
        _say_what_it_takes(config, args, tokenizer, task, settings, world)
    config, params = load_pretrained(source)
    return GRPOTrainer(config, params, tokenizer, task, args, world)


def _say_what_it_takes(
    config: Qwen3Config, args: GRPOConfig, tokenizer: Tokenizer, task: Task, settings: RunSettings, world: World
) -> None:
    """Print how much memory the run will need, and warn where the machine has less, or where bfloat16 is slow."""
    if settings.chat:
        print(in_words(task, args), flush=True)
    _, prompt = longest_prompt(tokenizer, task, args, settings.eval_problems)
    longest = args.max_completion_length or task.max_completion_length
    base = read_json(model_folder(settings.model), "config.json") if args.lora_r else {}
    parts = estimate_memory(config, args, len(prompt), longest, world.size, base.get("quantization"))
    total = parts.pop("total")
    largest = sorted(parts, key=parts.get, reverse=True)[:4]
    shown = ", ".join(f"{part} {in_bytes(parts[part])}" for part in largest)
    each = " in each process" if world.size > 1 else ""
    through = "" if args.backend == "mlx" else f"; were MLX to learn, and {args.backend} takes another amount"
    print(f"Memory: about {in_bytes(total)} at most{each} ({shown}){through}", flush=True)
    here = machine_memory()
    if total > here:
        ways = {
            "--gradient-checkpointing": not args.gradient_checkpointing,
            "--lora-r 8": args.lora_r is None,
            "--optim adafactor": args.optim != "adafactor" and args.lora_r is None,
            "a smaller --per-device-train-batch-size with more --gradient-accumulation-steps": True,
        }
        words = ", ".join(way for way, helps in ways.items() if helps)
        warnings.warn(
            f"This machine has {in_bytes(here)} of memory: the run may be killed. It needs less with {words}.",
            stacklevel=2,
        )
    if args.bf16 and mx.default_device() == mx.cpu:
        warnings.warn(
            "A CPU takes about five times as long for bfloat16 as for float32, and saves little memory by it; leave "
            "--dtype out.",
            stacklevel=2,
        )


def _say_how_fast(trainer: GRPOTrainer, before: RunSettings, settings: RunSettings) -> None:
    """Print where a learning rate that falls goes on, if the run is of another length than it was."""
    args, step = trainer.args, trainer.step
    if before.max_steps == settings.max_steps or not 0 < step < settings.max_steps:
        return
    old = GRPOConfig(**before.args)
    last = scheduled_rate(
        old.learning_rate, old.lr_scheduler_type, step - 1, max(before.max_steps, step), old.warmup_steps
    )
    if (now := trainer.learning_rate(settings.max_steps)) != last:
        print(
            f"Learning rate: {args.lr_scheduler_type} over all {settings.max_steps} steps, so it goes on at {now:.3g} "
            f"(the step before had {last:.3g})",
            flush=True,
        )


def _run(
    folder: RunFolder,
    settings: RunSettings,
    trainer: GRPOTrainer,
    stop: StopSignal,
    console: Console,
    processes: int | None,
) -> Sequence[str]:
    """Train until the last step or until told to stop, and save what there is; returns what is wrong, in words."""

    def note() -> str:
        return stop.words if stop.number is not None else ""

    try:
        title, correct, size = _title(settings), trainer.task.is_correct, trainer.world.size
        with RunDisplay(title, settings.max_steps, correct, note, console, processes=size) as display:
            _train_steps(folder, settings, trainer, stop, display)
            if folder.is_open:
                display.phase("saving")
                folder.save(trainer)
                trainer.save_pretrained(folder.policy, model_folder(settings.model))
                folder.draw(_title(settings))
        return display.warnings
    except (TaskError, TrainingDivergedError, ProcessLostError, OSError) as error:
        if isinstance(error, TaskError | ProcessLostError) and folder.is_open:
            folder.save(trainer)  # a step that fails changes nothing, so the policy is that of the step before
        if isinstance(error, ProcessLostError):
            raise
        raise RunFailedError(f"{str(error).rstrip('.')}. {_way_on(folder, processes)}") from error


def _train_steps(
    folder: RunFolder, settings: RunSettings, trainer: GRPOTrainer, stop: StopSignal, display: RunDisplay
) -> None:
    if folder.is_open:
        for measured in folder.measured():
            display.measured(*measured)
    else:
        display.phase(f"measuring accuracy before training, on {settings.eval_problems} held-out problems")
        before = trainer.evaluate(settings.eval_problems)
        display.measured(0, before["eval/accuracy"])
    if stop.came():
        return

    def is_correct(problem: Problem, completion: str) -> bool:
        return are_correct(trainer.task, [problem], [completion])[0]

    display.begin_steps()
    for step in trainer.train(settings.max_steps):
        metrics = dict(step.metrics)
        try:
            if settings.measures_after(step.step):
                metrics |= trainer.evaluate(settings.eval_problems)
        finally:  # the step is done, and a checkpoint counts on its line
            if not folder.is_open:
                folder.begin(settings)
                folder.append(0, before)
            folder.append(step.step, metrics, step.changes, completions_line(step, settings.keep, is_correct))
        display.update(step, metrics)
        if step.step % settings.save_every == 0:
            folder.save(trainer)
            folder.draw(_title(settings))
        if stop.came():
            return


def _report(
    folder: RunFolder,
    settings: RunSettings,
    trainer: GRPOTrainer,
    stop: StopSignal,
    console: Console,
    processes: int | None,
    wrong: Sequence[str],
) -> int:
    """Say what was learned, where it is, what is wrong and what to do next; returns the exit status."""
    if not folder.is_open:
        console.print("Stopped before the first step was done; nothing was written.")
        return 128 + stop.number
    done = trainer.step == settings.max_steps
    train_on = _train_on(folder, processes)
    lines = [
        f"\n{'Done' if done else 'Stopped'}: {trainer.step} of {settings.max_steps} steps.",
        f"  accuracy  {_before_and_after(folder)}, sampled on {settings.eval_problems} held-out problems",
        f"  policy    {folder.typed(folder.policy)}, {_what_it_is(trainer)}",
        f"  curves    {folder.typed(folder.picture)}",
        f"  numbers   {folder.typed(folder.metrics)}",
        *(f"Look at:  {words}" for words in wrong),
    ]
    if folder.completions.stat().st_size:
        lines.append(f"  samples   {folder.typed(folder.completions)}")
    if not done:
        lines.append(f"Go on:    {_command(*train_on)}")
    prompt, how = _as_typed(trainer.task.held_out(1)[0].prompt, getattr(trainer.task, "chat_template_kwargs", {}))
    policy = folder.typed(folder.policy)
    lines.append(f"Try it:   {_command('generate', '--model', policy, '--num', 4, *how, *prompt)}")
    if trainer.args.lora_r:
        whole = folder.typed(folder.path / "fused")
        lines.append(f"Fuse:     {_command('fuse', '--adapter', policy, '--output', whole)}")
    if done:
        lines.append(f"Go on:    {_command(*train_on, '--max-steps', 2 * settings.max_steps)}")
    console.print("\n".join(lines), soft_wrap=True, markup=False)
    return 0 if done else 128 + stop.number


def _as_typed(prompt: str | Sequence[Mapping[str, Any]], template: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """A prompt, and the options with which `generate` puts it as the run did."""
    how: list[str] = []
    if not isinstance(prompt, str):
        how = ["--chat", *(["--no-enable-thinking"] if template.get("enable_thinking") is False else [])]
        for message in prompt[:-1]:
            how += [f"--system={message['content']}"] if message["role"] == "system" else []
    text = prompt_text(prompt)
    return ["--", text] if text.startswith("-") else [text], how


def _what_it_is(trainer: GRPOTrainer) -> str:
    if trainer.args.lora_r:
        return "adapters for mlx-lm and, in peft/, for PEFT"
    return "a Hugging Face folder"


def _before_and_after(folder: RunFolder) -> str:
    values = [accuracy for _, accuracy in folder.measured()]
    if not values:
        return "not measured"
    return f"{values[0]:.3f} -> {values[-1]:.3f}" if len(values) > 1 else f"{values[0]:.3f} before training"


def _title(settings: RunSettings) -> str:
    return f"{Path(settings.model).name} learns {settings.task}"


def _way_on(folder: RunFolder, processes: int | None) -> str:
    if not folder.is_open:
        return "Nothing was written."
    return way_on(folder, processes)


def way_on(folder: RunFolder, processes: int | None) -> str:
    """How to go on with a run that has begun."""
    if not (checkpoints := folder.checkpoints()):
        return f"There is no checkpoint in {folder.path} yet; --overwrite starts again."
    return f"Go on from {checkpoints[0].name}: {_command(*_train_on(folder, processes))}"


def _train_on(folder: RunFolder, processes: int | None) -> list[object]:
    again = ["train", "--output", folder.typed(folder.path), "--resume"]
    return [*again, "--processes", processes] if processes else again


def _command(*arguments: object) -> str:
    """A command line that runs the kit with the Python or the script that runs it now."""
    return " ".join(_word(str(argument)) for argument in [*PROGRAM, *arguments])


def _program() -> list[object]:
    if Path(sys.argv[0]).name == "mlx-grpo-kit":
        return ["mlx-grpo-kit" if shutil.which("mlx-grpo-kit") else sys.argv[0]]
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return ["python" if shutil.which("python") == sys.executable else python, "-m", "mlx_grpo_kit"]


PROGRAM = _program()  # found out here, because a task may change the current folder


def _word(text: str) -> str:
    """One argument as it is typed: on one line, with what cannot be seen spelled out as bash and zsh read it."""
    if text.isprintable():
        return shlex.quote(text)
    known = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    spelled = (known.get(each) or (each if each.isprintable() else _by_number(each)) for each in text)
    return f"$'{''.join(spelled)}'"


def _by_number(character: str) -> str:
    number = ord(character)
    return f"\\{number:03o}" if number < 128 else f"\\U{number:08x}"
