"""TRL's own GRPO code as ground truth: its trainer without the model, the data and the optimizer around it.

And a trainer of the kit's own, small enough to make in every test.
"""

import dataclasses
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import Qwen3Config, init_params
from mlx_grpo_kit.qwen3.tokenizer import load_tokenizer, save_character_tokenizer
from mlx_grpo_kit.tasks import Problem
from tests.sizes import ONE_LAYER


class TRL:
    """Calls TRL's methods on a GRPOTrainer that was never initialised and holds only what those methods read."""

    def __init__(self):
        from trl import GRPOConfig, GRPOTrainer, RLOOTrainer

        self._trainer_class, self._rloo_class = GRPOTrainer, RLOOTrainer
        self.defaults = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}

    def loss(
        self, logps, old_logps, advantages, mask, *, ref_logps=None, num_items_in_batch=None, accumulation_steps=1,
        entropies=None, sampling_logps=None, **settings,
    ):  # fmt: skip
        """`_compute_loss` on NumPy arrays -> (loss, gradient with respect to logps, {metric: float}).

        With entropies the gradient is a pair, that with respect to them being the second. With sampling_logps the
        completions are of vLLM; `importance_sampling_*` are the kit's names of the settings that correct for it.

        settings: GRPOConfig fields; the others keep TRL's defaults, but use_bias_correction_kl is False.
        """
        import torch

        correction = {
            name: settings.pop(f"importance_sampling_{name}", default)
            for name, default in (("correction", None), ("clip_min", None), ("clip_max", 3.0))
        }
        args = SimpleNamespace(**{**self.defaults, "use_bias_correction_kl": False, **settings})
        args.steps_per_generation = accumulation_steps
        trainer = object.__new__(self._trainer_class)
        vars(trainer).update(
            args=args,
            model=SimpleNamespace(training=True),
            current_gradient_accumulation_steps=accumulation_steps,
            loss_type=args.loss_type,
            beta=args.beta,
            importance_sampling_level=args.importance_sampling_level,
            epsilon_low=args.epsilon,
            max_completion_length=args.max_completion_length,
            epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
            top_entropy_quantile=args.top_entropy_quantile,
            entropy_coef=args.entropy_coef,
            use_adaptive_entropy=False,
            off_policy_mask_threshold=args.off_policy_mask_threshold,
            use_vllm=sampling_logps is not None,
            vllm_importance_sampling_correction=correction["correction"] is not None,
            _entropy_bonus_enabled=args.entropy_coef != 0,
            aux_loss_enabled=False,
            _metrics={"train": defaultdict(list)},
            accelerator=SimpleNamespace(
                num_processes=1,
                gather=lambda x: x,
                reduce=lambda x, reduction: x,
                pad_across_processes=lambda x, **_: x,
                sync_gradients=True,
            ),
        )
        logps = torch.tensor(logps, requires_grad=True)
        mask = torch.tensor(mask).long()
        of_tokens = torch.zeros_like(logps) if entropies is None else torch.tensor(entropies, requires_grad=True)
        trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logps, of_tokens, None)
        inputs = self._batch(mask, advantages)
        inputs["num_items_in_batch"] = mask.sum() if num_items_in_batch is None else torch.tensor(num_items_in_batch)
        if old_logps is not None:
            inputs["old_per_token_logps"] = torch.tensor(old_logps)
        if sampling_logps is not None:
            inputs["sampling_per_token_logps"] = torch.tensor(sampling_logps)
            if correction["correction"]:
                old = logps.detach().numpy() if old_logps is None else old_logps
                ratio, _ = self.importance_weights(old, sampling_logps, mask.bool().numpy(), *correction.values())
                inputs["importance_sampling_ratio"] = torch.tensor(ratio)
        if ref_logps is not None:
            inputs["ref_per_token_logps"] = torch.tensor(ref_logps)
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
        if entropies is None:
            return loss.item(), logps.grad.numpy(), metrics
        of_tokens = np.zeros_like(entropies) if of_tokens.grad is None else of_tokens.grad.numpy()
        return loss.item(), (logps.grad.numpy(), of_tokens), metrics

    @staticmethod
    def _batch(mask, advantages):
        """What both `_compute_loss` read of a batch."""
        import torch

        return {
            "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long), "prompt_mask": torch.ones(len(mask), 1),
            "completion_ids": torch.zeros_like(mask), "completion_mask": mask, "advantages": torch.tensor(advantages),
        }  # fmt: skip

    def rloo_loss(self, logps, old_logps, advantages, mask, epsilon=0.2, epsilon_high=None):
        """RLOOTrainer's `_compute_loss`, as `loss`."""
        import torch

        trainer = object.__new__(self._rloo_class)
        vars(trainer).update(
            model=SimpleNamespace(training=True),
            epsilon_low=epsilon,
            epsilon_high=epsilon if epsilon_high is None else epsilon_high,
            aux_loss_enabled=False,
            _metrics={"train": defaultdict(list)},
            accelerator=SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x),
        )
        logps = torch.tensor(logps, requires_grad=True)
        mask = torch.tensor(mask).long()
        trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logps, torch.zeros_like(logps), None)
        inputs = self._batch(mask, advantages) | {"old_logps": (torch.tensor(old_logps) * mask).sum(1)}
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        return loss.item(), logps.grad.numpy(), {name: each[-1] for name, each in trainer._metrics["train"].items()}

    def advantages(
        self, rewards, num_generations, scale_rewards="group", reward_weights=None,
        multi_objective_aggregation="sum_then_normalize", rloo=False, normalize_advantages=False,
    ):  # fmt: skip
        """`_generate_and_score_completions` with these rewards (a list; NaN for a reward function's None) -> NumPy.

        Rewards are [B], or [B, F] of several functions; with `rloo` RLOOTrainer's method.
        """
        import torch

        count = len(rewards)
        rewards = torch.tensor(rewards, dtype=torch.float32).reshape(count, -1)
        trainer = self._scoring_trainer(
            rewards,
            rloo,
            num_generations=num_generations,
            reward_weights=torch.ones(rewards.shape[1]) if reward_weights is None else torch.tensor(reward_weights),
            multi_objective_aggregation=multi_objective_aggregation,
            scale_rewards=scale_rewards,
            normalize_advantages=normalize_advantages,
        )
        trainer._generate = lambda prompts: ([[1]] * count, [[1]] * count, None, ["x"] * count, None, {}, None, None)
        if rloo:
            trainer._generate = lambda prompts: ([[1]] * count, [[1]] * count, ["x"] * count)
            trainer._get_per_token_logps_and_entropies = lambda *_, **__: (torch.zeros(count, 1), None, None)
            trainer.args.gradient_checkpointing_kwargs = None
        return trainer._generate_and_score_completions([{"prompt": "x"}] * count)["advantages"].numpy()

    def importance_weights(self, old_logps, sampling_logps, mask, mode, clip_min, clip_max):
        """The weights and metrics that `_generate_and_score_completions` computes for completions of vLLM.

        Arrays are NumPy's [B, T], the mask bool, without a gap; NaN in sampling_logps is a token that has none.
        """
        import torch

        count, lengths = len(mask), mask.sum(axis=1)
        trainer = self._scoring_trainer(
            torch.zeros(count, 1),
            use_vllm=True,
            vllm_importance_sampling_correction=True,
            vllm_importance_sampling_mode=mode,
            vllm_importance_sampling_clip_min=clip_min,
            vllm_importance_sampling_clip_max=clip_max,
        )
        ids = [[1] * length for length in lengths]
        sampled = [
            [None if np.isnan(value) else float(value) for value in row[:length]]
            for row, length in zip(sampling_logps, lengths, strict=True)
        ]
        trainer._generate = lambda prompts: ([[1]] * count, ids, None, ["x"] * count, sampled, {}, None, None)
        width = int(lengths.max())
        trainer._get_per_token_logps_and_entropies = lambda *_, **__: (torch.tensor(old_logps[:, :width]), None, None)
        ratio = trainer._generate_and_score_completions([{"prompt": "x"}] * count)["importance_sampling_ratio"].numpy()
        if ratio.shape[1] > 1 or mode.startswith("token"):  # TRL pads to the longest completion
            ratio = np.pad(ratio, [(0, 0), (0, mask.shape[1] - width)], constant_values=1)
        metrics = {name: each[-1] for name, each in trainer._metrics["train"].items() if name.startswith("sampling/")}
        return ratio, metrics

    def _scoring_trainer(self, rewards, rloo=False, **attributes):
        """A trainer of which `_generate_and_score_completions` can be called, given rewards [B, F]."""
        import torch

        functions = rewards.shape[1]
        trainer = object.__new__(self._rloo_class if rloo else self._trainer_class)
        vars(trainer).update(
            args=SimpleNamespace(**{**self.defaults, "steps_per_generation": 1}),
            model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
            accelerator=SimpleNamespace(device=torch.device("cpu"), gather=lambda x: x, process_index=0),
            environment_factories=None, environments=[], tools=[], pad_to_multiple_of=None, use_vllm=False, beta=0.0,
            _tokenizer=SimpleNamespace(pad_token_id=0), mask_truncated_completions=False, num_iterations=1,
            num_generations=len(rewards), reward_funcs=[None] * functions,
            reward_func_names=[f"reward{number}" for number in range(functions)], reward_weights=torch.ones(functions),
            multi_objective_aggregation="sum_then_normalize", scale_rewards="group", reward_clip_range=None,
            normalize_advantages=False, _metrics={"train": defaultdict(list)}, _pending_extra_logs={},
            _pending_metrics={}, log_multimodal=False,
            _logs={"prompt": [], "completion": [], "rewards": defaultdict(list), "advantages": []},
        )  # fmt: skip
        vars(trainer).update(attributes)
        trainer._calculate_rewards = lambda *_: rewards
        return trainer


@pytest.fixture(scope="session")
def trl():
    return TRL()


class Sevens:
    """Reward: the share of sevens in what was written. Random weights write one in 64, so learning shows early."""

    name, max_completion_length = "sevens", 4

    def __init__(self, reward_funcs=None):
        self.reward_funcs = [sevens] if reward_funcs is None else reward_funcs

    def sample(self, rng, n):
        return [Problem(prompt, "7777") for prompt in rng.choice(["1+1=", "a", "what is it?", "77"], n)]

    def held_out(self, n):
        return [Problem(f"{number}=", "7777") for number in range(n)]

    def is_correct(self, problem, completion):
        return completion.startswith("7")


def sevens(problems, completions):
    return [completion.count("7") / 4 for completion in completions]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_character_tokenizer(folder)
    return load_tokenizer(folder)


@pytest.fixture(scope="session")
def make_trainer(tokenizer):
    """GRPOTrainer of a random one-layer model on the task of sevens: 2 prompts x 4 completions a step by default."""
    config = Qwen3Config(vocab_size=64, **ONE_LAYER, max_position_embeddings=64, tie_word_embeddings=True)

    def make(task=None, params=None, args=None, sampler=None, advantages=None, loss=None, learner=None, **settings):
        params = init_params(config, seed=1, scale=0.3) if params is None else params
        args = args or GRPOConfig(
            **{"num_generations": 4, "per_device_train_batch_size": 8, "learning_rate": 1e-3} | settings
        )
        parts = dict(sampler=sampler, advantages=advantages, loss=loss, learner=learner)
        return GRPOTrainer(config, params, tokenizer, task or Sevens(), args, **parts)

    make.task, make.config = Sevens, config
    return make
