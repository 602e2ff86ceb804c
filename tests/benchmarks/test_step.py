"""One GRPO step: 4 prompts of 12 tokens, 8 completions of exactly 32 each, one AdamW update, float32.

Every peer samples at temperature 1 without filters, has the token-mean loss without a KL term, and computes all
completions at once. TRL and the kit clip the gradient; mlx-lm-lora does not, which is in its favour. The model of 0.6
billion parameters has 1 prompt, 8 completions of 52 tokens, and computes activations anew in the backward pass.
"""

import itertools
import time
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from tests.benchmarks.contest import Contestant

SIZES = ("tiny", "m", "0.6B")
LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Work:
    """A step: `prompts` of `prompt` tokens, `group` completions of each, `new` tokens in a completion.

    With `random_stops` a completion ends with the end token, or after `new` tokens. A peer that starts anew for each
    turn takes `steps_a_turn`, and the best one counts.
    """

    prompts: int
    group: int
    new: int
    gradient_checkpointing: bool = False
    steps_a_turn: int = 2
    random_stops: bool = False
    prompt: int = 12

    @property
    def rows(self) -> int:
        return self.prompts * self.group


STEP = Work(4, 8, 32)
LARGE_STEP = Work(1, 8, 52, gradient_checkpointing=True, steps_a_turn=1)


class Stopwatch:
    """Stands in for a function; keeps the seconds of each call, and what the last one returned."""

    def __init__(self, function):
        self.function, self.seconds, self.result = function, [], None

    def __call__(self, *args, **kwargs):
        started = time.perf_counter()
        self.result = self.function(*args, **kwargs)
        self.seconds.append(time.perf_counter() - started)
        return self.result


def random_prompts(rng: np.random.Generator, count: int, length: int) -> list[str]:
    """Digits, which all tokenizers here take one by one."""
    return ["".join(rng.choice(list("0123456789"), length)) for _ in range(count)]


def random_rewards(completions) -> list[float]:
    """Groups without any difference would have no gradient to compute."""
    return np.random.default_rng(0).random(len(completions)).tolist()


class Digits:
    """A task whose prompts are `prompt` tokens long."""

    name = "digits"

    def __init__(self, max_completion_length: int, prompt: int = 12):
        self.max_completion_length, self.prompt = max_completion_length, prompt

    @staticmethod
    def reward(problems, completions) -> list[float]:
        return random_rewards(completions)

    reward_funcs = (reward,)

    def sample(self, rng, n):
        from mlx_grpo_kit.tasks import Problem

        return [Problem(prompt, "") for prompt in random_prompts(rng, n, self.prompt)]

    def held_out(self, n):
        return self.sample(np.random.default_rng(0), n)

    def is_correct(self, problem, completion):
        return False


class Learner:
    """A contestant that takes steps. `generate` is the Stopwatch of its sampling."""

    def evidence(self):
        """(how long the last completions are, names of the parameters that did not move, best seconds of sampling)"""
        after = self.weights()
        assert after.keys() == self.before.keys()
        resting = [name for name, weight in after.items() if not moved(self.before[name], weight)]
        return self.completion_lengths(), resting, min(self.generate.seconds)


def moved(before, after) -> bool:
    """Whether the optimizer reached (nearly) every number of a parameter, and moved it as far as AdamW does."""
    change = np.abs(np.asarray(after, np.float64) - np.asarray(before, np.float64))
    return change.mean() > 0.5 * LEARNING_RATE and (change > 0).mean() > 0.9


class Kit(Learner):
    def __init__(self, model, work, backend="mlx", seed=0, **settings):
        import mlx_grpo_kit.grpo.sampler as sampler
        from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
        from mlx_grpo_kit.qwen3 import load_tokenizer

        tokenizer = load_tokenizer(model.folder)
        if not work.random_stops:
            tokenizer.eos_token_ids = []  # nothing ends a row
        args = GRPOConfig(
            learning_rate=LEARNING_RATE,
            num_generations=work.group,
            per_device_train_batch_size=work.rows,
            gradient_checkpointing=work.gradient_checkpointing,
            backend=backend,
            seed=seed,
            **settings,
        )
        self.model, self.generate = model, Stopwatch(sampler.generate)
        self.replaced = patch.object(sampler, "generate", self.generate)
        self.trainer = GRPOTrainer(*model.kit(), tokenizer, Digits(work.new, work.prompt), args)
        self.steps = self.trainer.train(max_steps=10**9)

    def turn(self):
        with self.replaced:
            self.step = next(self.steps)

    def completion_lengths(self):
        return [len(completion.completion_ids) for completion in self.step.completions]

    @property
    def before(self):
        return self.model.kit()[1]

    def weights(self):
        return self.trainer.params


class TRL(Learner):
    """TRL's trainer on the CPU. A turn is a short `train()`, timed from the start of a step to its end."""

    def __init__(self, model, work, folder, compiled=False, seed=0):
        from datasets import Dataset
        from transformers import AutoTokenizer, TrainerCallback
        from trl import GRPOConfig as Config
        from trl import GRPOTrainer as Trainer

        class Clock(TrainerCallback):
            seconds = ()

            def on_train_begin(self, *args, **kwargs):
                self.seconds = []

            def on_step_begin(self, *args, **kwargs):
                self.started = time.perf_counter()

            def on_step_end(self, *args, **kwargs):
                self.seconds.append(time.perf_counter() - self.started)

        def reward(prompts, completions, **kwargs):
            return random_rewards(completions)

        self.clock = Clock()
        self.trainer = Trainer(
            model.transformers(),
            reward_funcs=reward,
            processing_class=AutoTokenizer.from_pretrained(model.folder),
            train_dataset=Dataset.from_dict({"prompt": random_prompts(np.random.default_rng(0), 64, work.prompt)}),
            args=Config(
                output_dir=str(folder),
                seed=seed,
                max_steps=work.steps_a_turn,
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="constant",
                per_device_train_batch_size=work.rows,
                num_generations=work.group,
                max_completion_length=work.new,
                generation_kwargs={} if work.random_stops else {"min_new_tokens": work.new},
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                beta=0.0,
                loss_type="dapo",
                max_grad_norm=1.0,
                weight_decay=0.0,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=work.gradient_checkpointing,
                torch_compile=compiled,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
            callbacks=[self.clock],
        )
        self.model = model
        self.generate = self.trainer._generate_single_turn = Stopwatch(self.trainer._generate_single_turn)

    def turn(self) -> float:
        self.trainer.train()
        return min(self.clock.seconds)

    def completion_lengths(self):
        return [len(ids) for ids in self.generate.result[0]]

    @property
    def before(self):
        return {name: value.detach().numpy() for name, value in self.model.transformers().named_parameters()}

    def weights(self):
        return {name: value.detach().numpy() for name, value in self.trainer.model.named_parameters()}


class MLXLMLora(Learner):
    """mlx-lm-lora's train_grpo at full width: it takes 32 rows at a time where `batch_size` alone would make it 4."""

    def __init__(self, model, work, folder):
        from mlx_lm_lora.trainer import grpo_trainer

        self.shared, self.work, self.folder, self.module = model, work, folder, grpo_trainer
        self.model = model.mlx_lm()
        self.generate = Stopwatch(grpo_trainer.generate_grpo)

    class Tokenizer:
        eos_token_ids = ()

        @staticmethod
        def decode(ids) -> str:
            return ""

    def turn(self) -> float:
        import mlx.optimizers as optim

        work, starts = self.work, []
        rng = np.random.default_rng(0)

        def batches(**_):
            # The start of a step is where it asks for its prompts.
            while True:
                prompts = random_prompts(rng, work.prompts, work.prompt)
                starts.append(time.perf_counter())
                tokens = [[3 + int(digit) for digit in prompt] for prompt in prompts]
                yield tokens, [[]] * work.prompts, prompts, [""] * work.prompts, None

        def reward(prompts, completions, answer, types=None):
            return random_rewards(completions)

        def loss(model, ref_model, **kwargs):
            # Under its own name train_grpo would cut the batch into pieces of 4 rows.
            return self.module.grpo_loss(model, ref_model, **kwargs)

        optimizer = optim.AdamW(LEARNING_RATE, weight_decay=0.0, bias_correction=True)
        with patch.object(self.module, "generate_grpo", self.generate):
            self.module.train_grpo(
                self.model,
                None,
                self.Tokenizer,
                optimizer,
                train_dataset=None,
                reward_funcs=[reward],
                iterate_batches=batches,
                loss_fn=loss,
                end_answer_token="",
                args=self.module.GRPOTrainingArgs(
                    batch_size=work.rows,
                    iters=work.steps_a_turn + 1,
                    group_size=work.group,
                    max_completion_length=work.new,
                    beta=0.0,
                    epsilon=0.2,
                    temperature=1.0,
                    top_p=1.0,
                    top_k=0,
                    grpo_loss_type="bnpo",
                    steps_per_report=10**9,
                    steps_per_save=10**9,
                    adapter_file=str(self.folder / "adapters.safetensors"),
                ),
            )
        return min(later - earlier for earlier, later in itertools.pairwise(starts))

    def completion_lengths(self):
        return [ids.size for ids in self.generate.result[0]]

    @property
    def before(self):
        return self.named(self.shared.mlx_lm())

    def weights(self):
        return self.named(self.model)

    @staticmethod
    def named(model):
        from mlx.utils import tree_flatten

        return {name: np.array(value) for name, value in tree_flatten(model.trainable_parameters())}


def test_grpo_step(model, bench, tmp_path):
    large = model.name == "0.6B"
    work = LARGE_STEP if large else STEP
    kit, trl = {"model": model, "work": work}, {"model": model, "work": work, "folder": tmp_path}
    contestants = {
        "the kit": Contestant(Kit, kit),
        "the kit, --backend torch": Contestant(Kit, {**kit, "backend": "torch"}),
        "TRL": Contestant(TRL, trl),
    }
    if not large:
        contestants["mlx-lm-lora, full width"] = Contestant(MLXLMLora, trl)
    if bench.measuring and not large:  # these do the same work as the others, or take a minute to compile
        contestants["the kit, after import torch"] = Contestant(Kit, kit, first=("torch",))
        if not bench.quick:
            contestants["TRL, torch.compile"] = Contestant(TRL, {**trl, "compiled": True})
    results = bench(
        contestants,
        rounds=3 if large else 15,
        targets={"TRL": 1 / 0.6, "mlx-lm-lora, full width": 1.3},
        libraries=("mlx_grpo_kit.runtime.blas", "trl.trainer.grpo_trainer", "mlx_lm_lora.trainer.grpo_trainer"),
        **({"apart": True, "warmup_rounds": 1} if large else {}),
    )
    sampling = {name: min(seconds for _, _, seconds in result.evidence) for name, result in results.items()}
    bench.note("of which sampling, ms, best", ", ".join(f"{name} {1e3 * each:.0f}" for name, each in sampling.items()))
    for name, result in results.items():
        for lengths, resting, _ in result.evidence:
            assert lengths == [work.new] * work.rows, name
            assert resting == [], name
