"""One GRPO step: 4 prompts of 12 tokens, 8 completions of exactly 32 each, one AdamW update, float32.

Every peer samples at temperature 1 without filters, has the token-mean loss without a KL term, and computes all 32
completions at once. TRL and the kit clip the gradient; mlx-lm-lora does not, which is in its favour.
"""

import time
from collections.abc import Iterator

import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten

import mlx_grpo_kit.grpo.sampler as sampler_module
from mlx_grpo_kit.grpo import GRPOConfig, GRPOTrainer
from mlx_grpo_kit.qwen3 import load_tokenizer
from mlx_grpo_kit.tasks import Problem

PROMPTS, GROUP, PROMPT, NEW = 4, 8, 12, 32
ROWS = PROMPTS * GROUP
LEARNING_RATE = 1e-5
STEPS_A_TURN = 2


class Stopwatch:
    """Stands in for a function; keeps the seconds of each call, and what the last one returned."""

    def __init__(self, function):
        self.function, self.seconds, self.result = function, [], None

    def __call__(self, *args, **kwargs):
        started = time.perf_counter()
        self.result = self.function(*args, **kwargs)
        self.seconds.append(time.perf_counter() - started)
        return self.result


def random_prompts(rng: np.random.Generator, count: int) -> list[str]:
    return ["".join(rng.choice(list("0123456789"), PROMPT)) for _ in range(count)]


def random_rewards(completions) -> list[float]:
    """Groups without any difference would have no gradient to compute."""
    return np.random.default_rng(0).random(len(completions)).tolist()


class Digits:
    """A task whose prompts are 12 tokens long."""

    name = "digits"
    max_completion_length = NEW

    @staticmethod
    def reward(problems, completions) -> list[float]:
        return random_rewards(completions)

    reward_funcs = (reward,)

    def sample(self, rng, n):
        return [Problem(prompt, "") for prompt in random_prompts(rng, n)]

    def held_out(self, n):
        return self.sample(np.random.default_rng(0), n)

    def is_correct(self, problem, completion):
        return False


def kit_steps(model, backend: str = "mlx") -> Iterator:
    tokenizer = load_tokenizer(model.folder)
    tokenizer.eos_token_ids = []  # nothing ends a row
    args = GRPOConfig(
        learning_rate=LEARNING_RATE, num_generations=GROUP, per_device_train_batch_size=ROWS, backend=backend
    )
    trainer = GRPOTrainer(model.config, model.params, tokenizer, Digits(), args)
    for step in trainer.train(max_steps=10**9):
        yield step, trainer.params


class TRL:
    """TRL's trainer on the CPU. A turn is a short `train()`, timed from the start of a step to its end."""

    def __init__(self, model, folder):
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
            train_dataset=Dataset.from_dict({"prompt": random_prompts(np.random.default_rng(0), 64)}),
            args=Config(
                output_dir=str(folder),
                max_steps=STEPS_A_TURN,
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="constant",
                per_device_train_batch_size=ROWS,
                num_generations=GROUP,
                max_completion_length=NEW,
                generation_kwargs={"min_new_tokens": NEW},
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                beta=0.0,
                loss_type="dapo",
                max_grad_norm=1.0,
                weight_decay=0.0,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
            callbacks=[self.clock],
        )
        self.generate = self.trainer._generate_single_turn = Stopwatch(self.trainer._generate_single_turn)

    def turn(self) -> float:
        self.trainer.train()
        return min(self.clock.seconds)

    def completion_lengths(self) -> list[int]:
        return [len(ids) for ids in self.generate.result[0]]

    def weights(self) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy().copy() for name, value in self.trainer.model.named_parameters()}


class MLXLMLora:
    """mlx-lm-lora's train_grpo at full width: it takes 32 rows at a time where `batch_size` alone would make it 4."""

    def __init__(self, model, folder, monkeypatch):
        from mlx_lm_lora.trainer import grpo_trainer

        self.model, self.folder, self.module = model.mlx_lm(), folder, grpo_trainer
        self.generate = Stopwatch(grpo_trainer.generate_grpo)
        monkeypatch.setattr(grpo_trainer, "generate_grpo", self.generate)

    class Tokenizer:
        eos_token_ids = ()

        @staticmethod
        def decode(ids) -> str:
            return ""

    def turn(self) -> float:
        starts = []
        rng = np.random.default_rng(0)

        def batches(**_):
            # The start of a step is where it asks for its prompts.
            while True:
                prompts = random_prompts(rng, PROMPTS)
                starts.append(time.perf_counter())
                tokens = [[3 + int(digit) for digit in prompt] for prompt in prompts]
                yield tokens, [[]] * PROMPTS, prompts, [""] * PROMPTS, None

        def reward(prompts, completions, answer, types=None):
            return random_rewards(completions)

        def loss(model, ref_model, **kwargs):
            # Under its own name train_grpo would cut the batch into pieces of 4 rows.
            return self.module.grpo_loss(model, ref_model, **kwargs)

        optimizer = optim.AdamW(LEARNING_RATE, weight_decay=0.0, bias_correction=True)
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
                batch_size=ROWS,
                iters=STEPS_A_TURN + 1,
                group_size=GROUP,
                max_completion_length=NEW,
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
        return float(np.diff(starts).min())

    def completion_lengths(self) -> list[int]:
        return [ids.size for ids in self.generate.result[0]]

    def weights(self) -> dict[str, np.ndarray]:
        return {name: np.array(value) for name, value in tree_flatten(self.model.trainable_parameters())}


def test_grpo_step(model, race, benchmark, tmp_path, monkeypatch):
    trl, lora = TRL(model, tmp_path), MLXLMLora(model, tmp_path, monkeypatch)
    before = {"TRL": trl.weights(), "mlx-lm-lora": lora.weights()}
    kit_generate = Stopwatch(sampler_module.generate)
    monkeypatch.setattr(sampler_module, "generate", kit_generate)
    steps = kit_steps(model)

    step, params = race(
        lambda: next(steps),
        {"TRL 1.16, torch CPU": trl.turn, "mlx-lm-lora, full width, the same BLAS": lora.turn},
        targets={"TRL 1.16, torch CPU": 1.0, "mlx-lm-lora, full width, the same BLAS": 1.3},
        rounds=15,
    )
    if benchmark.enabled:
        watches = {"the kit": kit_generate, "TRL": trl.generate, "mlx-lm-lora": lora.generate}
        best = ", ".join(f"{name} {min(watch.seconds) * 1e3:.0f}" for name, watch in watches.items())
        benchmark.extra_info["notes"] = {"of which generation, ms, best": best}

    assert [len(completion.completion_ids) for completion in step.completions] == [NEW] * ROWS
    assert trl.completion_lengths() == [NEW] * ROWS
    assert lora.completion_lengths() == [NEW] * ROWS
    for ours in params:
        assert moved(model.params[ours], params[ours]), ours
    for peer, weights in (("TRL", trl.weights()), ("mlx-lm-lora", lora.weights())):
        assert weights.keys() == before[peer].keys()
        for name, weight in weights.items():
            assert moved(before[peer][name], weight), (peer, name)


def test_grpo_step_through_torch(model, race, tmp_path):
    """`backend="torch"`: MLX samples, torch computes the gradient."""
    trl, all_mlx, steps = TRL(model, tmp_path), kit_steps(model), kit_steps(model, "torch")
    before = trl.weights()

    step, params = race(
        lambda: next(steps),
        {"TRL 1.16, torch CPU": trl.turn, "the kit, all of it in MLX": lambda: next(all_mlx)},
        targets={"TRL 1.16, torch CPU": {"tiny": 1.4, "m": 1.1}[model.name], "the kit, all of it in MLX": 1.0},
        rounds=15,
    )
    assert [len(completion.completion_ids) for completion in step.completions] == [NEW] * ROWS
    assert trl.completion_lengths() == [NEW] * ROWS
    for name in params:
        assert moved(model.params[name], params[name]), name
    for name, weight in trl.weights().items():
        assert moved(before[name], weight), name


def moved(before, after) -> bool:
    """Whether the optimizer reached (nearly) every number of a parameter, and moved it as far as AdamW does."""
    change = np.abs(np.asarray(after, np.float64) - np.asarray(before, np.float64))
    return change.mean() > 0.5 * LEARNING_RATE and (change > 0).mean() > 0.9
