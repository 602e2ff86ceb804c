"""All of GRPO on one page, in public functions: no trainer, no parts, nothing hidden.

    python -m mlx_grpo_kit.grpo.minimal

The tiny model learns addition. Change anything: this page is meant to be copied. `GRPOTrainer` adds checkpoints,
several processes, micro-batches, and errors that explain themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlx_grpo_kit.runtime import mx  # isort: skip  first: it loads the fast BLAS before anything loads MLX
import mlx.optimizers as optim
import numpy as np

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.autograd import value_and_grad
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.grpo.advantages import compute_advantages
from mlx_grpo_kit.grpo.logps import per_token_logps
from mlx_grpo_kit.grpo.loss import compute_grpo_loss
from mlx_grpo_kit.grpo.rewards import compute_rewards
from mlx_grpo_kit.qwen3 import Qwen3Config, load_pretrained
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer, load_tokenizer
from mlx_grpo_kit.tasks import Task, get_task

NUM_PROMPTS, NUM_GENERATIONS, MAX_GRAD_NORM = 8, 8, 1.0


def sample(config: Qwen3Config, params: Mapping[str, mx.array], tokenizer: Tokenizer, task: Task, step: int, seed=0):
    """Ask a few questions, each NUM_GENERATIONS times: (prompts, completions, rewards [N])."""
    # Make two seeds from one, so that problems and sampling are independent of each other.
    problem_seed, sampling_seed = np.random.SeedSequence([seed, step, 0]).generate_state(2)
    drawn = task.sample(np.random.default_rng(problem_seed), NUM_PROMPTS)
    problems = [problem for problem in drawn for _ in range(NUM_GENERATIONS)]
    prompts = [tokenizer.encode_prompt(problem.prompt) for problem in problems]
    sampling = SamplingConfig(max_new_tokens=task.max_completion_length)
    rollout = generate(
        config, params, prompts, sampling=sampling, eos_token_ids=tokenizer.eos_token_ids, seed=int(sampling_seed)
    )
    texts = [tokenizer.decode(ids) for ids in rollout.completions]
    rewards, _ = compute_rewards(task.reward_funcs, problems, texts)
    return prompts, rollout.completions, rewards


def gradient(config: Qwen3Config, params: Mapping[str, mx.array], prompts, completions, rewards):
    """The GRPO loss of these completions and its gradient, by parameter name."""
    advantages = compute_advantages(rewards, NUM_GENERATIONS)

    def loss_fn(params):
        logps, mask = per_token_logps(config, params, prompts, completions)
        # The policy itself has just sampled, so the old log-probabilities are its own, and every ratio is exactly 1.
        return compute_grpo_loss(logps, mx.stop_gradient(logps), advantages, mask)

    return value_and_grad(loss_fn, params)


def train(max_steps: int = 150, learning_rate: float = 5e-4, seed: int = 0) -> dict[str, mx.array]:
    """Learn addition from rewards alone, and print the progress. Returns the parameters."""
    (config, params), tokenizer, task = load_pretrained(TINY), load_tokenizer(TINY), get_task("addition")
    optimizer = optim.AdamW(learning_rate, betas=[0.9, 0.999], weight_decay=0.0, bias_correction=True)
    for step in range(max_steps):
        prompts, completions, rewards = sample(config, params, tokenizer, task, step, seed)
        loss, grads = gradient(config, params, prompts, completions, rewards)
        grads, norm = optim.clip_grad_norm(grads, MAX_GRAD_NORM)
        params = optimizer.apply_gradients(grads, params)
        mx.eval(params, optimizer.state)
        if step % 10 == 0:
            print(f"step {step:4}  reward {rewards.mean():.2f}  loss {loss.item():+.3f}  gradient {norm.item():.2f}")
    return params


if __name__ == "__main__":
    train()
