"""The exhibits: thirteen bugs of public GRPO programs, each of them a few changed lines in one part of the loop.

    for step in train(config, params, tokenizer, 60, BUGS["H"].functions()): ...

A bug is an edit of a part's source, so the code on display is the code that runs.
"""

from __future__ import annotations

import dis
import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import unified_diff
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from mlx_grpo_kit.course.chapters.chapter_20 import loop
from mlx_grpo_kit.course.chapters.chapter_20.loop import LEARNING_RATE, Functions
from mlx_grpo_kit.course.slips import edited, patched
from mlx_grpo_kit.runs.record import RunRecord

CURVES, GROUPS, LONG = "curves.json", "groups.json", "long_curves.json"


@dataclass(frozen=True)
class Bug:
    """One exhibit.

    Attributes:
        name: the bug in a few words.
        part: the function of the loop that contains the bug.
        diff: the changed lines of its source, as in `edited`.
        symptom: the bug's effect on the curves of the stored run.
        test: the test that catches the bug, in a sentence.
        threads: (repository and number, what happened there).
    """

    name: str
    part: Callable[..., Any]
    diff: tuple[str, ...]
    symptom: str
    test: str
    threads: tuple[tuple[str, str], ...]

    def sick_part(self) -> Callable[..., Any]:
        """The part with the bug in it."""
        return edited(self.part, *self.diff)

    def functions(self) -> Functions:
        """All functions of the loop, with this one sick."""
        return replace(Functions(), **{self.part.__name__: self.sick_part()})

    def lines(self) -> list[str]:
        """The changed lines: lines of the healthy part begin with "-", lines of the sick part with "+"."""
        healthy = inspect.getsource(self.part)
        sick = patched(self.part, *self.diff)
        found = unified_diff(healthy.splitlines(), sick.splitlines(), lineterm="", n=0)
        return [line for line in found if line[:3] not in ("---", "+++") and line[:2] != "@@" and line[1:].strip()]


BUGS: dict[str, Bug] = {
    "A": Bug(
        "one token too late",
        loop.score,
        (
            "- logits = logits[:, start - 1 : -1] / temperature",
            "+ logits = logits[:, start:] / temperature",
        ),
        "Scored minus sampled is above 4 from the first step on, a third of the tokens are clipped, and the reward "
        "falls.",
        "Ask the sampler: the scorer has to compute the log-probability that the sampler stored for each token (20.1).",
        (
            (
                "PrimeIntellect-ai/prime-rl#1525",
                "a review found trainer and sampler one position apart: the ratio compared different tokens",
            ),
            (
                "Project-MONAI/GenerativeModels#314",
                "a transformer was trained to predict token N from the tokens 0 to N",
            ),
        ),
    ),
    "B": Bug(
        "padding is read as text",
        loop.score,
        (
            "- logits = qwen3_forward(config, params, ids, attention_mask=mask)",
            "+ logits = qwen3_forward(config, params, ids)",
        ),
        "Almost nothing: the run learns, a little more slowly. Scored minus sampled begins at 0.2 and falls within "
        "ten steps, but never quite to 0: only padded prompts are wrong, one in five.",
        "The same test, with prompts of different lengths (20.1).",
        (
            ("huggingface/trl#2708", "log-probabilities were computed without the attention mask"),
            ("unslothai/unsloth#3176", "without the mask tokens attend to the padding on the left"),
        ),
    ),
    "C": Bug(
        "the temperature is forgotten",
        loop.score,
        (
            "- logits = logits[:, start - 1 : -1] / temperature",
            "+ logits = logits[:, start - 1 : -1]",
        ),
        "The run learns more slowly. Scored minus sampled is 0.1 from the first step to the last.",
        "The same test, at a temperature that is not 1 (20.1).",
        (
            (
                "huggingface/trl#3029",
                "temperature scaling was left out of the log-probabilities of policy and reference",
            ),
            ("unslothai/unsloth-zoo#832", "an MLX version agreed with TRL only at temperature 1"),
        ),
    ),
    "D": Bug(
        "scored outside the gradient",
        loop.loss_and_gradient,
        (
            "- def loss_fn(params):",
            "-     logps = score_with(params)",
            "+ logps = score_with(params)",
            "+",
            "+ def loss_fn(params):",
        ),
        "The gradient norm is exactly 0, and so is the KL. The other curves scatter around their starting values.",
        "Compare a gradient with a slope that you know (20.4).",
        (
            (
                "Goekdeniz-Guelmez/mlx-lm-lora#55",
                "a default setting gave an exactly zero policy gradient, with plausible rewards and losses",
            ),
            ("jingyaogong/minimind#750", "a branch used the sampler's log-probabilities, which have no gradient"),
        ),
    ),
    "E": Bug(
        "masked too late",
        loop.policy_loss,
        (
            "- log_ratio = mx.where(mask, logps - old_logps, 0.0)",
            "+ log_ratio = logps - old_logps",
        ),
        "The run ends at once: the first loss is right, but its gradient is not a number.",
        "Put rubbish where the mask is False; the loss and its gradient must not change (20.5).",
        (
            (
                "NVIDIA-NeMo/RL#4120",
                "ratios and KL terms were computed before the mask: a difference of 200 overflows exp, and 0 times "
                "infinity is NaN",
            ),
            ("MakazhanAlpamys/Soup#342", "a finite loss with a gradient norm of NaN, in about half of the runs"),
        ),
    ),
    "F": Bug(
        "divided by n, not n - 1",
        loop.advantages,
        (
            "- return (centred / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1)",
            "+ return (centred / (groups.std(axis=1, ddof=0, keepdims=True) + 1e-4)).reshape(-1)",
        ),
        "Nothing. Gradients are 7% longer, which nobody can see.",
        "Compare with numbers that somebody else computed (20.3).",
        (
            ("NVIDIA/TorchFort#38", "the advantages' standard deviation lacked Bessel's correction"),
            ("unslothai/unsloth-zoo#832", "here n - 1 was compared with TRL and found to be right"),
        ),
    ),
    "G": Bug(
        "one mean for the whole batch",
        loop.advantages,
        (
            "- centred = groups - groups.mean(axis=1, keepdims=True)",
            "- return (centred / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1)",
            "+ centred = groups - groups.mean(keepdims=True)",
            "+ return (centred / (groups.std(ddof=1, keepdims=True) + 1e-4)).reshape(-1)",
        ),
        "Nothing, in this run. Answers to easy prompts are always pushed up and answers to hard ones always down, but "
        "with sixteen prompts of similar difficulty per step that is only noise.",
        "Two groups with different means (20.3).",
        (
            ("XU-YIJIE/grpo-flat#2", "mean and standard deviation were taken over the whole batch; since fixed"),
            ("radixark/miles#1325", "uneven groups fell back to a single global group"),
        ),
    ),
    "H": Bug(
        "groups across prompts",
        loop.advantages,
        (
            "- groups = rewards.reshape(-1, group)",
            "- centred = groups - groups.mean(axis=1, keepdims=True)",
            "- return (centred / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-4)).reshape(-1)",
            "+ groups = rewards.reshape(group, -1)",
            "+ centred = groups - groups.mean(axis=0, keepdims=True)",
            "+ return (centred / (groups.std(axis=0, ddof=1, keepdims=True) + 1e-4)).reshape(-1)",
        ),
        "Nothing, in this run. Answers to other prompts are a yardstick too, only a worse one: if the problems "
        "differed more, noise would drown the signal.",
        "A number of groups that differs from the group size (20.3).",
        (
            ("THUDM/slime#2062", "a reshape fell through to a baseline that mixes prompts"),
            (
                "radixark/miles#1573",
                "a review: if the order changes, reshape groups answers to different prompts",
            ),
        ),
    ),
    "I": Bug(
        "micro-batches added up",
        loop.accumulate,
        (
            "- return {name: sum(grad[name] * (n / total) for grad, n in zip(grads, num_tokens, strict=True)) for name in grads[0]}",  # noqa: E501
            "+ return {name: sum(grad[name] for grad, n in zip(grads, num_tokens, strict=True)) for name in grads[0]}",
        ),
        "The gradient norm is four times as large from the first step on. Everything else looks healthy: clipping and "
        "Adam remove the factor.",
        "Compare pieces of different lengths with the whole (20.6).",
        (
            ("NVIDIA-NeMo/RL#84", "gradients of micro-batches were summed instead of averaged"),
            ("NVIDIA-NeMo/Automodel#3829", "the gradient grew with the number of micro-batches"),
        ),
    ),
    "J": Bug(
        "cut off too early",
        loop.num_new_tokens,
        (
            "- return task.max_completion_length",
            "+ return task.max_completion_length - 2",
        ),
        "Nearly all completions are cut off from the first step on; the reward stays at a quarter, because answers of "
        "three digits are never right.",
        "No test of a part finds it: look at the share that is cut off in the first steps, and read completions.",
        (
            ("huggingface/trl#6263", "about half of a Qwen3-0.6B's completions were cut off at the default length"),
            (
                "huggingface/trl#5697",
                "the quickstart cut off nearly every completion: reward, loss and gradient were 0",
            ),
        ),
    ),
    "K": Bug(
        "a reference that moves along",
        loop.keep_reference,
        (
            "- return dict(params)",
            "+ return params",
        ),
        "The KL is exactly 0 while the policy learns. The penalty does nothing.",
        "Replace the policy's parameters and look at the reference (20.8).",
        (
            ("huggingface/trl#2046", "policy and ref_policy were the same object; the thread asks for a check"),
            (
                "unslothai/unsloth-zoo#832",
                "some adapters of the reference stayed switched on, so it was not the reference",
            ),
        ),
    ),
    "L": Bug(
        "a reward that is too easy to get",
        loop.reward,
        (
            "- return float(text == problem.answer)",
            "+ return float(text in problem.answer)",
        ),
        "The reward climbs above that of the healthy run, and right answers fall towards 0; completions become "
        "shorter, and the KL becomes large.",
        "Attack the reward before the policy does (20.7).",
        (
            ("Liuziyu77/Visual-RFT#176", "an empty answer is part of every truth: the model learned to answer nothing"),
            ("Liuziyu77/Visual-RFT#79", "an answer that names every class was counted as right"),
        ),
    ),
    "M": Bug(
        "the end token is masked",
        loop.completion_mask,
        (
            "- return ended_before == 0",
            "+ return ids != end",
        ),
        "Almost nothing: the gradient norm is 1.5 times as large. Answers of at most four tokens leave little to "
        "decide; long answers become a little too short.",
        "Four rows, including one that never ends and one that ends at once (20.2).",
        (
            (
                "huggingface/trl#4970",
                "a mask inferred from the padding token's id masks the end token, which has the same id",
            ),
            (
                "bingreeky/MemGen#33",
                "the reverse: padding with the end token was counted as tokens, so all lengths were the same",
            ),
        ),
    ),
}

# The four curves at the start of the chapter, under neutral names.
FOUR = {"one": "H", "two": "K", "three": "healthy", "four": "M"}

# Mystery runs: name -> (letter, seed). "N" is a run without a bug.
MYSTERIES = {"run 1": ("K", 5), "run 2": ("I", 7), "run 3": ("C", 8), "run 4": ("H", 9), "run 5": ("N", 6)}


def stored_curves() -> dict[str, dict[str, list[float]]]:
    """The stored runs: {"healthy" or a bug's letter: {metric: values, one per step}}; None where a value is NaN."""
    return json.loads(files(__package__).joinpath(CURVES).read_text())


def stored_long_curves() -> dict[str, dict[str, list[list[float]]]]:
    """The stored runs on long sums: {"healthy" or "M": {metric: [seed, step]}}."""
    return json.loads(files(__package__).joinpath(LONG).read_text())


def as_steps(curves: Mapping[str, list[float]]) -> list[dict[str, float]]:
    """Stored curves as records of steps, in the form that `diagnose` reads."""
    count = len(curves["reward"])
    return [{"step": i + 1, **{name: values[i] for name, values in curves.items()}} for i in range(count)]


def stored_record(run: str) -> RunRecord:
    """The record of a mystery run: the stored curves, and the first groups of each step with their advantages."""
    groups = json.loads(files(__package__).joinpath(GROUPS).read_text())[run]
    record = RunRecord(f"Mystery: {run}", len(groups))
    for metrics, kept in zip(as_steps(stored_curves()[run]), groups, strict=True):
        known = {name: math.nan if value is None else value for name, value in metrics.items() if name != "step"}
        known["learning_rate"] = LEARNING_RATE
        completions = [
            SimpleNamespace(group=group, prompt=prompt, completion=text, reward=reward, advantage=advantage)
            for group, (prompt, *columns) in enumerate(kept)
            for text, reward, advantage in zip(*columns, strict=True)
        ]
        record.add(SimpleNamespace(step=metrics["step"], metrics=known, completions=completions))
    return record


def verdict(test: Callable[[Any], Any], part: Callable[..., Any]) -> Any:
    """Return True if a test accepts a part: it returns True or False, or its assertions hold or fail.

    If a test returns anything else, return that.
    """
    try:
        answer = test(part)
    except AssertionError:
        return False
    if answer is None:
        return True if _asserts(test) else None
    return answer if getattr(answer, "shape", ()) != () else bool(answer)


def _asserts(test: Callable[[Any], Any]) -> bool:
    """Return True if a test refuses by an assertion, its own or a library's, and so accepts by returning nothing."""
    test = inspect.unwrap(test)
    steps = dis.get_instructions(test) if inspect.isfunction(test) else ()
    return any("assert" in f"{step.opname} {step.argval}".lower() for step in steps)
