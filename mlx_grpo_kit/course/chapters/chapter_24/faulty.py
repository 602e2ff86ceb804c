"""Three short programs with one fault each, for exercise 24.9, and a batch to prove the faults with."""

import inspect

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer, qwen3_forward
from mlx_grpo_kit.runtime import mx


def draw_and_score(config, params, prompts, length, advantages, key):
    """One batch: draw the completions, then the gradient of the loss. All prompts are equally long."""
    ids, start = mx.array(prompts), len(prompts[0])
    for one in mx.random.split(key, length):
        logits = qwen3_forward(config, params, ids)[:, -1] / 1.4
        fifth = mx.sort(logits, axis=-1)[:, -5:-4]
        logits = mx.where(logits < fifth, -mx.inf, logits)
        token = mx.random.categorical(logits, key=one)
        ids = mx.concatenate([ids, token[:, None]], axis=1)
    tokens = ids[:, start:]
    ended = mx.cumsum(tokens == 1, axis=1) - (tokens == 1)
    mask = (ended == 0).astype(mx.float32)

    def loss(params):
        logits = qwen3_forward(config, params, ids)[:, start - 1 : -1]
        logps = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        logps = mx.take_along_axis(logps, tokens[..., None], axis=-1)[..., 0]
        ratio = mx.exp(logps - mx.stop_gradient(logps))
        return -(ratio * advantages(tokens)[:, None] * mask).sum() / mask.sum()

    return mx.grad(loss)(params)


def with_a_kl(config, params, reference, prompts, tokens, mask, advantages, beta):
    """The gradient of the loss with a KL penalty towards a reference model."""
    ids = mx.concatenate([prompts, tokens], axis=1)
    start = prompts.shape[1]

    def logits_of(weights):
        logits = qwen3_forward(config, weights, ids)[:, start - 1 : -1]
        return mx.take_along_axis(logits, tokens[..., None], axis=-1)

    def normalized(logits):
        return logits - mx.logsumexp(logits, axis=-1, keepdims=True)

    def loss(params):
        logits = qwen3_forward(config, params, ids)[:, start - 1 : -1]
        logps = mx.take_along_axis(normalized(logits), tokens[..., None], axis=-1)[..., 0]
        ratio = mx.exp(logps - mx.stop_gradient(logps))
        apart = normalized(logits_of(reference)) - normalized(logits_of(params))
        kl = (mx.exp(apart) - apart - 1)[..., 0]
        per_token = ratio * advantages[:, None] - beta * kl
        return -(per_token * mask).sum() / mask.sum()

    return mx.grad(loss)(params)


def without_idle_rows(config, params, prompts, tokens, mask, rewards, group_size):
    """The gradient of the loss. Rows that push nothing are left out, to save time."""
    groups = rewards.reshape(-1, group_size)
    spread = mx.sqrt(groups.var(axis=1, keepdims=True, ddof=1))
    above = groups - groups.mean(axis=1, keepdims=True)
    advantages = (above / (spread + 1e-4)).reshape(-1)
    rows = [row for row, push in enumerate(advantages.tolist()) if push]
    if not rows:
        return {name: mx.zeros_like(value) for name, value in params.items()}
    kept = mx.array(rows)
    prompts, tokens, mask = prompts[kept], tokens[kept], mask[kept]
    advantages = advantages[kept]
    ids, start = mx.concatenate([prompts, tokens], axis=1), prompts.shape[1]

    def loss(params):
        logits = qwen3_forward(config, params, ids)[:, start - 1 : -1]
        logps = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        logps = mx.take_along_axis(logps, tokens[..., None], axis=-1)[..., 0]
        ratio = mx.exp(logps - mx.stop_gradient(logps))
        return -(ratio * advantages[:, None] * mask).sum() / mask.sum()

    return mx.grad(loss)(params)


PROGRAMS = (draw_and_score, with_a_kl, without_idle_rows)
DRAWN = {
    "27+38=": ("65", "65", "55", "65"),
    "14+25=": ("39", "39", "39", "39"),
    "68+57=": ("125", "115", "125", "135"),
    "46+91=": ("137", "147", "137", "37"),
}


def batch():
    """(config, params, reference, prompts, tokens, mask, rewards) of the 16 completions in DRAWN.

    `prompts` [16, 6] and `tokens` [16, 4] are token ids, `mask` [16, 4] is 1 for a token of a completion (its end token
    included), and `rewards` [16] is 1 for the right sum. `reference` is the shipped model, and `params` is the policy:
    the same model with a larger final norm, so that it is surer of everything.
    """
    (config, reference), tokenizer = load_pretrained(TINY), load_tokenizer(TINY)
    [end] = tokenizer.eos_token_ids
    rows = [(prompt, text) for prompt, texts in DRAWN.items() for text in texts]
    written = [[*tokenizer.encode(text), end] for _, text in rows]
    tokens = mx.array([each + [0] * (4 - len(each)) for each in written])
    mask = mx.array([[float(place < len(each)) for place in range(4)] for each in written])
    rewards = mx.array([float(int(text) == sum(map(int, prompt[:-1].split("+")))) for prompt, text in rows])
    prompts = mx.array([tokenizer.encode(prompt) for prompt, _ in rows])
    params = {**reference, "final_norm.weight": reference["final_norm.weight"] * 1.25}
    return config, params, reference, prompts, tokens, mask, rewards


def numbered(program):
    """The source of a program, with the number of each line."""
    return "\n".join(f"{place:2}  {line}" for place, line in enumerate(inspect.getsource(program).splitlines(), 1))
