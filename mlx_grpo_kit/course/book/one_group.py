"""The first page's picture: one question, eight answers, their advantages, and what one step of GRPO does to them.

The page knows the step for every verdict on the answers, so a reader can call an answer right or wrong and see what the
policy would learn (one_group.js). Equal answers get equal verdicts. Without scripts the page shows the true verdicts.
"""

from __future__ import annotations

import json
from html import escape

import numpy as np

QUESTION, ANSWER = "27+38=", "65"
SEED, LEARNING_RATE = 4, 2e-4
UP, DOWN, LEVEL, MINUS = "▲", "▼", "•", "\N{MINUS SIGN}"


def one_group() -> str:
    """The markup of the picture, with the numbers of all verdicts for the script."""
    answers, before, after = _measured()
    rewards = [float(answer == ANSWER) for answer in answers]
    advantages = _advantages(rewards)
    true = 1 << [*dict.fromkeys(answers)].index(ANSWER)
    rows = "".join(map(_row, answers, rewards, advantages, before, after[true]))
    data = json.dumps({"answers": answers, "before": before, "after": after}).replace("<", "\\u003c")
    head = "".join(f'<th scope="col">{words}</th>' for words in ("answer", "reward", "advantage", "probability"))
    return (
        f'<div class="kit-group"><p class="kit-question">{escape(QUESTION)}<b>?</b></p>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        '<p class="kit-said" role="status">Two of eight answers are right. They are better than the mean of their '
        "group, so their advantage is positive, and one step of GRPO makes them likelier.</p>"
        f'<script type="application/json">{data}</script></div>'
    )


def _measured() -> tuple[list[str], list[float], list[list[float]]]:
    """Eight answers of the tiny model, their probabilities, and those after a step, for each verdict.

    Bit k of a verdict's number says whether the k-th different answer is called right.
    """
    from mlx_grpo_kit.runtime import mx  # isort: skip
    import mlx.optimizers as optim

    from mlx_grpo_kit.assets import TINY
    from mlx_grpo_kit.generation import SamplingConfig, generate
    from mlx_grpo_kit.grpo import per_token_logps
    from mlx_grpo_kit.grpo.minimal import MAX_GRAD_NORM, NUM_GENERATIONS, gradient
    from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer

    (config, params), tokenizer = load_pretrained(TINY), load_tokenizer(TINY)
    prompts = [tokenizer.encode_prompt(QUESTION)] * NUM_GENERATIONS
    sampling = SamplingConfig(max_new_tokens=4)
    drawn = generate(config, params, prompts, sampling=sampling, eos_token_ids=tokenizer.eos_token_ids, seed=SEED)

    def probabilities(params: dict[str, mx.array]) -> list[float]:
        logps, mask = per_token_logps(config, params, prompts, drawn.completions)
        return np.exp(np.array((logps * mask).sum(axis=1))).round(4).tolist()

    answers, after = [tokenizer.decode(ids) for ids in drawn.completions], []
    different = [*dict.fromkeys(answers)]
    for verdict in range(2 ** len(different)):
        rewards = np.array([float(verdict >> different.index(answer) & 1) for answer in answers])
        grads, _ = optim.clip_grad_norm(gradient(config, params, prompts, drawn.completions, rewards)[1], MAX_GRAD_NORM)
        adamw = optim.AdamW(LEARNING_RATE, betas=[0.9, 0.999], weight_decay=0.0, bias_correction=True)
        after.append(probabilities(adamw.apply_gradients(grads, params)))
    return answers, probabilities(params), after


def _advantages(rewards: list[float]) -> list[float]:
    from mlx_grpo_kit.grpo import compute_advantages

    return [float(each) for each in compute_advantages(rewards, len(rewards))]


def _row(answer: str, reward: float, advantage: float, before: float, after: float) -> str:
    """A row of the table; one_group.js writes the same."""
    kind = "up" if advantage > 0 else "down" if advantage < 0 else "level"
    arrow = UP if after > before + 5e-4 else DOWN if after < before - 5e-4 else LEVEL
    pressed, verdict = ("true", "right") if reward else ("false", "wrong")
    label = f'aria-pressed="{pressed}" aria-label="{escape(answer)}, called right"'
    return (
        f'<tr class="kit-{kind}"><th scope="row">'
        f'<button type="button" disabled {label}><b>{escape(answer)}</b> {verdict}</button></th>'
        f"<td>{reward:.0f}</td>"
        f'<td><i style="width:{22 * abs(advantage):.1f}px"></i> {_signed(advantage)}</td>'
        f'<td><span class="kit-bars"><i style="width:{before:.1%}"></i><i style="width:{after:.1%}"></i></span> '
        f"{before:.0%} → {after:.0%} {arrow}</td></tr>"
    )


def _signed(number: float) -> str:
    return f"{'+' if number > 0 else MINUS if number < 0 else ''}{abs(number):.2f}"
