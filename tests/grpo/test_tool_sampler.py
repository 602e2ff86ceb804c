"""Rollouts with tools and environments: TRL's ids, masks, lengths and loss of the same turns.

The model is scripted: it draws the tokens of a table. What is compared is everything around it.
"""

import asyncio
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mlx_grpo_kit.assets.make.tiny_chat import make_model
from mlx_grpo_kit.generation import SamplingConfig
from mlx_grpo_kit.grpo import GRPOConfig, compute_grpo_loss
from mlx_grpo_kit.grpo.tool_sampler import ToolSampler
from mlx_grpo_kit.qwen3 import load_pretrained, load_tokenizer
from mlx_grpo_kit.runtime import mx
from mlx_grpo_kit.tasks import RowsTask

CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
END = "<|im_end|>"


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


async def slow_add(a: int, b: int) -> int:
    """Add two numbers and take some time.

    Args:
        a: The first number.
        b: The second number.
    """
    await asyncio.sleep(0.01)
    return a + b


class Counter:
    """Counts what it is given."""

    def reset(self, start=0, **row):
        self.count = start
        return f" (from {start})"

    def step(self, by: int) -> str:
        """Count on.

        Args:
            by: How far.
        """
        self.count += by
        return f"now {self.count}"

    def get_reward(self) -> float:
        return float(self.count)


# For each row its turns; a turn that ends in no `END` runs into the end of the budget.
SCRIPTS = {
    "no call": ["The answer is 3." + END],
    "one call": [CALL % ("add", '{"a": 1, "b": 2}') + END, "It is 3." + END],
    "thought and words before": [
        "<think>\nI add.\n</think>\n\nLet me see.\n" + CALL % ("add", '{"a": 10, "b": 2}') + END,
        "12" + END,
    ],
    "two calls in a turn": [
        CALL % ("add", '{"a": 1, "b": 2}') + "\n" + CALL % ("add", '{"a": 3, "b": 4}') + END,
        "3 and 7" + END,
    ],
    "three turns": [
        CALL % ("add", '{"a": 1, "b": 2}') + END,
        CALL % ("add", '{"a": 3, "b": 4}') + END,
        CALL % ("slow_add", '{"a": 7, "b": 8}') + END,
        "15" + END,
    ],
    "unknown tool": [CALL % ("divide", '{"a": 1}') + END, "sorry" + END],
    "wrong arguments": [CALL % ("add", '{"a": 1, "c": 2}') + END, "sorry" + END],
    "a tool that fails": [CALL % ("add", '{"a": 1, "b": "x"}') + END, "sorry" + END],
    "cut in the answer": [CALL % ("add", '{"a": 1, "b": 2}') + END, "and so on " * 200],
    "cut in the call": ["and so on " * 100 + CALL % ("add", '{"a": 1, "b": 2}') + END],
    "no room for the result": ["and so on " * 45 + CALL % ("add", '{"a": 1, "b": 2}') + END],
}
BUDGET = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A made Qwen3 with the template that TRL trains Qwen3 by."""
    import trl

    path = make_model(tmp_path_factory.mktemp("made") / "model")
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3_training.jinja"
    (path / "chat_template.jinja").write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    (path / "mlx_grpo_kit.json").unlink()  # the kit's list of what it wrote
    return path


@pytest.fixture
def scripted(monkeypatch):
    """Have the model draw row r's token number t from a table [rows, T]."""
    module = sys.modules["mlx_grpo_kit.generation.decoder"]

    def script(table):
        table = mx.array(np.array(table, np.int32))

        def draw(sampling, logits, row_keys, step):
            zeros = mx.zeros(len(row_keys))
            return table[row_keys[:, 0].astype(mx.int32), step.astype(mx.int32)], zeros - 0.5, zeros + 0.25

        keys = mx.array([[row, 0] for row in range(len(table))], mx.uint32)
        monkeypatch.setattr(module, "_draw", draw)
        monkeypatch.setattr(mx.random, "split", lambda key, num: keys)
        module._decode_step.cache_clear()

    yield script
    monkeypatch.undo()
    module._decode_step.cache_clear()


def task(rows=8, **settings):
    rows = [{"prompt": [{"role": "user", "content": f"What is {n}+2?"}], "answer": str(n + 2)} for n in range(rows)]
    return RowsTask(rows, max_completion_length=BUDGET, name="sums", **settings)


class TRLRollouts:
    """TRL's `_generate` with a model that writes scripted turns."""

    def __init__(self, folder, scripts, tools=(), factory=None, max_iterations=10**6):
        import torch
        import transformers
        from trl import GRPOTrainer as Trainer
        from trl.chat_template_utils import qwen3_template
        from trl.trainer.grpo_trainer import start_event_loop_in_daemon

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.tokenizer.response_template = qwen3_template
        self.scripts, self.turns = scripts, [0] * len(scripts)
        self.trainer = object.__new__(Trainer)
        environments = [factory() for _ in scripts] if factory else None
        per_row = [
            {tool.__name__: tool for tool in [*tools, *([environment.step] if factory else [])]}
            for environment in (environments or [None] * len(scripts))
        ]
        _, loop, ready = start_event_loop_in_daemon(name="test")
        ready.wait()
        self.environments = environments
        vars(self.trainer).update(
            accelerator=SimpleNamespace(device=torch.device("cpu"), gather=lambda x: x),
            model=SimpleNamespace(training=True, config=SimpleNamespace(max_position_embeddings=2048)),
            rollout_func=None, num_generations=1, _tokenizer=self.tokenizer, processing_class=self.tokenizer,
            environment_factories={None: factory} if factory else None,
            _env_tools={None: [*tools, *([environments[0].step] if factory else [])]},
            _batch_environments=[None] * len(scripts),
            tools=[*tools, *([environments[0].step] if factory else [])], _is_vlm=False, use_vllm=False,
            max_tool_calling_iterations=max_iterations, max_completion_length=BUDGET, chat_template=None,
            chat_template_kwargs={}, eos_token_ids=[self.tokenizer.eos_token_id], async_loop=loop,
            _sync_tool_dicts=[{n: t for n, t in d.items() if n != "slow_add"} for d in per_row],
            _async_tool_dicts=[{n: t for n, t in d.items() if n == "slow_add"} for d in per_row],
            state=SimpleNamespace(num_input_tokens_seen=0, global_step=0),
            _metrics={"train": defaultdict(list)},
        )  # fmt: skip
        self.trainer._generate_single_turn = self._turn

    def _turn(self, prompt_ids, *_, num_generations=1, **__):
        # Rows are told apart by their prompts, which all differ and are never rewritten.
        completions = []
        for ids in prompt_ids:
            row = next(row for row, start in enumerate(self.prompts) if ids[: len(start)] == start)
            text = self.scripts[row][self.turns[row]]
            self.turns[row] += 1
            completions.append(self.tokenizer(text)["input_ids"][:BUDGET])
        return completions, [[-0.5] * len(ids) for ids in completions]

    def generate(self, prompts):
        tokenize = self.trainer._tokenize_prompts

        def tokenized(prompts):
            found = tokenize(prompts)
            self.prompts = found[0]
            return found

        self.trainer._tokenize_prompts = tokenized
        found = self.trainer._generate(prompts)
        return found, {name: values[-1] for name, values in self.trainer._metrics["train"].items()}


def compare(folder, scripted, scripts, tools=(), factory=None, max_iterations=None, **settings):
    """The kit's completions of scripted turns, after they were compared with TRL's; and the reward of environments."""
    own = task(len(scripts), tools=tools, environment_factory=factory, **settings)
    problems = own.all_problems()[: len(scripts)]
    prompts = [problem.prompt for problem in problems]
    if factory:
        opened = []
        peer = TRLRollouts(folder, scripts, tools, factory, max_iterations or 10**6)
        for prompt, environment in zip(prompts, peer.environments, strict=True):
            opened.append([{**prompt[0], "content": prompt[0]["content"] + environment.reset()}])
        prompts = opened
    else:
        peer = TRLRollouts(folder, scripts, tools, None, max_iterations or 10**6)
    theirs, metrics = peer.generate(prompts)
    prompt_ids, completion_ids, tool_mask, messages = theirs[:4]

    config, params = load_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    sizes = {"num_generations": len(scripts), "per_device_train_batch_size": len(scripts)}
    args = GRPOConfig(**sizes, max_tool_calling_iterations=max_iterations)
    sampler = ToolSampler(tokenizer, own, args)
    table = np.full((len(scripts), BUDGET), 7)
    for row, (ids, mask) in enumerate(zip(completion_ids, tool_mask, strict=True)):
        table[row, : len(ids)] = np.where(mask, ids, 7)
    scripted(table)
    policy = SimpleNamespace(config=config, params=params, dtype=mx.float32)
    found = sampler.complete(policy, problems, sampler.encode(problems), SamplingConfig(BUDGET), 0)

    assert found.prompt_ids == prompt_ids
    assert found.completion_ids == completion_ids
    assert [[*map(int, mask)] for mask in found.token_mask] == tool_mask
    assert [each.messages for each in found.conversations] == messages
    for name, value in (("mean", np.mean), ("min", np.min), ("max", np.max)):
        assert metrics[f"completions/{name}_length"] == pytest.approx(float(value(found.drawn_lengths)))
    assert metrics["completions/clipped_ratio"] == pytest.approx(1 - found.finished.mean())
    calls = sum(each.num_calls for each in found.conversations)
    failures = sum(each.num_failures for each in found.conversations)
    assert metrics["tools/call_frequency"] == pytest.approx(calls / len(scripts))
    assert metrics["tools/failure_frequency"] == pytest.approx(failures / max(calls, 1))
    for row, mask in enumerate(found.token_mask):
        assert all((logp == 0) != drawn for logp, drawn in zip(found.logps[row], mask, strict=True))
        assert all((entropy == 0) != drawn for entropy, drawn in zip(found.entropies[row], mask, strict=True))
    return found, peer


class TestTRL:
    @pytest.mark.parametrize("name", SCRIPTS)
    def test_each_script(self, folder, scripted, name):
        found, _ = compare(folder, scripted, [SCRIPTS[name], ["fine" + END]], [add, slow_add])
        assert sum(mask.count(False) > 0 for mask in found.token_mask) == (len(SCRIPTS[name]) > 1)

    def test_all_of_them_at_once(self, folder, scripted):
        found, _ = compare(folder, scripted, [*SCRIPTS.values()], [add, slow_add])
        assert [len(turns.messages) for turns in found.conversations] == [1, 3, 3, 4, 7, 3, 3, 3, 3, 1, 1]
        assert found.texts[1] == "It is 3."

    @pytest.mark.parametrize("most", [0, 1, 2])
    def test_the_number_of_iterations_is_bounded(self, folder, scripted, most):
        if most:
            compare(folder, scripted, [SCRIPTS["three turns"], ["fine" + END]], [add, slow_add], max_iterations=most)
        else:
            own = task(2, tools=[add])
            sampler = ToolSampler(load_tokenizer(folder), own, GRPOConfig(max_tool_calling_iterations=0))
            config, params = load_pretrained(folder)
            ids = sampler.tokenizer.encode(SCRIPTS["one call"][0])
            scripted([ids + [7] * (BUDGET - len(ids))] * 2)
            policy = SimpleNamespace(config=config, params=params, dtype=mx.float32)
            problems = own.all_problems()
            found = sampler.complete(policy, problems, sampler.encode(problems), SamplingConfig(BUDGET), 0)
            assert found.completion_ids == [ids] * 2
            assert found.finished.all()

    def test_environments(self, folder, scripted):
        count = CALL % ("step", '{"by": 3}') + END
        scripts = [[count, "3" + END], [count, count, count, "9" + END], ["0" + END]]
        found, peer = compare(folder, scripted, scripts, [], Counter, reward_funcs=[])
        assert [each.environment.count for each in found.conversations] == [3, 9, 0]
        assert [each.count for each in peer.environments] == [3, 9, 0]

    def test_loss(self, folder, scripted, trl):
        found, _ = compare(folder, scripted, [SCRIPTS["one call"], SCRIPTS["three turns"]] * 2, [add, slow_add])
        rng = np.random.default_rng(0)
        width = int(found.lengths.max())
        mask = np.array([[*row, *[False] * (width - len(row))] for row in found.token_mask])
        logps, old, ref = -rng.uniform(0, 3, (3, 4, width)).astype(np.float32)
        advantages = rng.normal(size=4).astype(np.float32)
        for loss_type in ("grpo", "dapo", "dr_grpo", "bnpo"):
            settings = {"loss_type": loss_type, "beta": 0.1, "max_completion_length": BUDGET}
            theirs, _, _ = trl.loss(logps, old, advantages, mask, ref_logps=ref, **settings)
            garbage = np.where(mask, 0, 50).astype(np.float32)  # where the policy drew nothing, nothing counts
            own = map(mx.array, (logps + garbage, old - garbage, advantages, mask))
            ours = compute_grpo_loss(*own, ref_logps=mx.array(ref + garbage), **settings)
            assert ours.item() == pytest.approx(theirs, rel=1e-5), loss_type


def test_tokens_are_never_made_twice(folder, scripted):
    """A model may cut a word in a way that the tokenizer would not; its own tokens stay."""
    own = task(2, tools=[add])
    tokenizer = load_tokenizer(folder)
    call = tokenizer.encode(SCRIPTS["one call"][0])
    odd = [*tokenizer.encode("n"), *tokenizer.encode("u"), *tokenizer.encode("m")]
    assert tokenizer.encode(tokenizer.decode(odd)) != odd
    sampler = ToolSampler(tokenizer, own, GRPOConfig())
    config, params = load_pretrained(folder)
    ids = [*odd, *call]
    scripted([ids + [7] * (BUDGET - len(ids))] * 2)
    policy = SimpleNamespace(config=config, params=params, dtype=mx.float32)
    problems = own.all_problems()
    found = sampler.complete(policy, problems, sampler.encode(problems), SamplingConfig(BUDGET), 0)
    assert found.completion_ids[0][: len(ids)] == ids
    again = tokenizer.encode(tokenizer.decode(found.completion_ids[0], skip_special_tokens=False))
    assert again != found.completion_ids[0]
