"""A batch from your own completions and rewards, for `GRPOTrainer.train_step`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlx_grpo_kit.generation.padding import TokenIds
from mlx_grpo_kit.grpo.advantages import compute_advantages
from mlx_grpo_kit.grpo.batch import Batch, Completions, Scores
from mlx_grpo_kit.grpo.checks import check_rewards, prompt_of_each
from mlx_grpo_kit.grpo.config import GRPOConfig
from mlx_grpo_kit.grpo.gradients import pad_logprobs
from mlx_grpo_kit.grpo.logps import pad_batch
from mlx_grpo_kit.grpo.part_checks import check_sampling_logps
from mlx_grpo_kit.qwen3.config import Qwen3Config
from mlx_grpo_kit.qwen3.tokenizer import Tokenizer
from mlx_grpo_kit.tasks.task import Problem


def own_batch(
    config: Qwen3Config,
    tokenizer: Tokenizer,
    args: GRPOConfig,
    max_completion_length: int,
    prompt_tokens: Sequence[TokenIds],
    completion_tokens: Sequence[TokenIds],
    rewards: Sequence[float | None],
    old_logprobs: Sequence[Sequence[float]] | None = None,
) -> Batch:
    """Check the arguments of `train_step`, compute advantages, and return a Batch.

    Raises ValueError for invalid arguments.
    """
    size = args.per_device_train_batch_size
    if args.top_entropy_quantile < 1:
        raise ValueError(
            f"top_entropy_quantile is {args.top_entropy_quantile}, which needs the entropies at sampling, and "
            "train_step does not have them. Leave it at 1."
        )
    check_sampling_logps(args, "old_logprobs", old_logprobs is not None)
    prompts = prompt_of_each(prompt_tokens, completion_tokens, args.num_generations)
    pad_batch(config, prompts, completion_tokens)  # only for its checks
    check_rewards(rewards, completion_tokens)
    advantages = compute_advantages(
        rewards,
        args.num_generations,
        args.scale_rewards,
        advantage_estimator=args.advantage_estimator,
        multi_objective_aggregation=args.multi_objective_aggregation,
    )
    longest = max(map(len, completion_tokens))
    if longest > max_completion_length:
        raise ValueError(
            f"A completion has {longest} tokens; expected at most {max_completion_length}. Set "
            "GRPOConfig(max_completion_length=...)."
        )
    if len(prompts) > size and len(prompts) % size:
        raise ValueError(
            f"There are {len(prompts)} completions; expected a multiple of per_device_train_batch_size ({size}), "
            "so that all micro-batches have equal weight."
        )
    if len(prompts) % (args.num_generations * args.mini_batches):
        raise ValueError(
            f"There are {len(prompts)} completions; expected a multiple of num_generations * "
            f"{args.mini_batches} ({args.num_generations * args.mini_batches}), because steps_per_generation divides "
            f"them among {args.mini_batches} updates."
        )
    if old_logprobs is not None:
        pad_logprobs("old_logprobs", old_logprobs, completion_tokens)  # only for its checks
    completions = Completions.from_lists(
        args.num_generations,
        [Problem(tokenizer.decode([*map(int, ids)]), "") for ids in prompts],
        prompts,
        completion_tokens,
        [*map(tokenizer.read, completion_tokens, prompts)],
        logps=old_logprobs,
        finished=[int(ids[-1]) in tokenizer.eos_token_ids for ids in completion_tokens],
    )
    values = np.array([np.nan if reward is None else float(reward) for reward in rewards])
    return Batch(completions, Scores((), np.zeros([len(values), 0]), {}), values, np.array(advantages))
