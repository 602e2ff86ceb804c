"""Checkpoints: a resumed run goes on bit by bit, a killed save loses nothing, a broken folder is one clear error."""

import dataclasses
import errno
import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import Qwen3ForCausalLM

from mlx_grpo_kit.files import write_manifest
from mlx_grpo_kit.grpo import GRPOTrainer
from mlx_grpo_kit.qwen3 import init_params, load_pretrained
from mlx_grpo_kit.runtime import mx
from tests.grpo.compare import bits, records

# Everything that a run carries from step to step: masters, moments, bias correction, reference, schedule, random draws.
SETTINGS = dict(
    beta=0.1, num_iterations=2, gradient_accumulation_steps=2, per_device_train_batch_size=4, weight_decay=0.1,
    warmup_steps=3, lr_scheduler_type="linear", temperature=1.1, top_k=30)  # fmt: skip


def assert_same_bits(first, second):
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


@pytest.fixture(scope="module")
def saved(make_trainer, tmp_path_factory):
    """A checkpoint after 2 of 5 steps, and the steps that the same trainer did after saving it."""
    folder = tmp_path_factory.mktemp("run") / "checkpoint"
    trainer = make_trainer(**SETTINGS)
    for step in trainer.train(max_steps=5):
        if step.step == 2:
            break
    trainer.save_checkpoint(folder)
    return folder, records(trainer.train(max_steps=5)), trainer


@pytest.fixture
def checkpoint(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "checkpoint")


# Going on.


def test_a_resumed_run_goes_on_bit_by_bit(saved, make_trainer):
    folder, expected, trainer = saved
    resumed = GRPOTrainer.resume(folder, make_trainer.task())
    assert (resumed.step, resumed.args) == (2, trainer.args)
    assert resumed.config == trainer.config
    assert records(resumed.train(max_steps=5)) == expected
    assert len(expected) == 3
    assert min(metrics["kl"] for _, metrics, _ in expected) > 0
    assert_same_bits(bits(resumed.params), bits(trainer.params))
    assert_same_bits(bits(resumed.policy.reference), bits(trainer.policy.reference))


@pytest.mark.parametrize("changed", [dict(optim="adafactor"), dict(bf16=True), dict(bf16=True, beta=0.0)])
def test_other_optimizers_and_dtypes_go_on_bit_by_bit(make_trainer, tmp_path, changed):
    trainer = make_trainer(**SETTINGS | changed)
    next(trainer.train(4))
    trainer.save_checkpoint(tmp_path / "checkpoint")
    resumed = GRPOTrainer.resume(tmp_path / "checkpoint", make_trainer.task())
    assert resumed.policy.dtype == trainer.policy.dtype
    assert records(resumed.train(max_steps=4)) == records(trainer.train(max_steps=4))
    assert_same_bits(bits(resumed.policy.trained), bits(trainer.policy.trained))
    for name in trainer.params:
        assert_same_bits(bits(resumed.optimizer.state[name]), bits(trainer.optimizer.state[name]))


def test_resuming_never_holds_two_states(make_trainer, tmp_path):
    """Parameters and AdamW's two moments, and a little: no moments of 0 beside those of the file."""
    params = init_params(dataclasses.replace(make_trainer.config, vocab_size=20_000))
    config = dataclasses.replace(make_trainer.config, vocab_size=20_000)
    given = make_trainer()
    GRPOTrainer(config, params, given.tokenizer, given.task, given.args).save_checkpoint(tmp_path / "checkpoint")
    size = sum(value.nbytes for value in params.values())
    del params
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    GRPOTrainer.resume(tmp_path / "checkpoint", given.task)
    assert mx.get_peak_memory() - before < 3.5 * size


def test_another_process_goes_on_bit_by_bit(saved, checkpoint):
    """Nothing that the numbers depend on may live in this process alone."""
    script = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("conftest", {str(Path(__file__).with_name("conftest.py"))!r})
conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conftest)
trainer = conftest.GRPOTrainer.resume(sys.argv[1], conftest.Sevens())
for _ in trainer.train(max_steps=5):
    pass
trainer.save_checkpoint(sys.argv[1])
"""
    subprocess.run([sys.executable, "-c", script, checkpoint], check=True, cwd=Path(__file__).parents[2])
    _, params = load_pretrained(checkpoint / "model")
    assert_same_bits(bits(params), bits(saved[2].params))
    assert json.loads((checkpoint / "trainer_state.json").read_text())["step"] == 5


def test_saving_changes_nothing_and_may_be_repeated(make_trainer, tmp_path):
    plain, saving = make_trainer(**SETTINGS), make_trainer(**SETTINGS)
    for _ in plain.train(max_steps=3):
        pass
    for _ in saving.train(max_steps=3):
        saving.save_checkpoint(tmp_path / "checkpoint")
    assert_same_bits(bits(plain.params), bits(saving.params))
    resumed = GRPOTrainer.resume(tmp_path / "checkpoint", make_trainer.task())
    assert resumed.step == 3
    assert_same_bits(bits(plain.params), bits(resumed.params))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_before_the_first_step(make_trainer, tmp_path):
    trainer = make_trainer()
    trainer.save_checkpoint(tmp_path / "checkpoint")
    resumed = GRPOTrainer.resume(tmp_path / "checkpoint", make_trainer.task())
    assert records(resumed.train(2)) == records(trainer.train(2))


def test_bfloat16_policies_keep_their_float32_masters(make_trainer, tmp_path):
    params = {name: value.astype(mx.bfloat16) for name, value in init_params(make_trainer.config, 1, 0.3).items()}
    trainer = make_trainer(params=params, learning_rate=1e-6)
    for _ in trainer.train(max_steps=2):
        pass
    trainer.save_checkpoint(tmp_path / "checkpoint")
    resumed = GRPOTrainer.resume(tmp_path / "checkpoint", make_trainer.task())
    assert {value.dtype for value in resumed.params.values()} == {mx.bfloat16}
    assert_same_bits(bits(trainer.policy.trained), bits(resumed.policy.trained))
    assert records(resumed.train(4)) == records(trainer.train(4))
    assert_same_bits(bits(trainer.policy.trained), bits(resumed.policy.trained))


def test_the_model_in_a_checkpoint_is_a_hugging_face_folder(saved):
    from transformers import AutoTokenizer

    folder = saved[0]
    model = Qwen3ForCausalLM.from_pretrained(folder / "model")
    _, params = load_pretrained(folder / "model")
    np.testing.assert_array_equal(model.model.embed_tokens.weight.detach(), params["embedding.weight"])
    assert AutoTokenizer.from_pretrained(folder / "model")("1+1=")["input_ids"] == [4, 13, 4, 19]


# Kills.


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(saved, checkpoint, make_trainer):
    """The process dies at its n-th fsync or rename while it saves step 3 over step 2."""
    script = f"""
import importlib.util, os, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("conftest", {str(Path(__file__).with_name("conftest.py"))!r})
conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conftest)
trainer = conftest.GRPOTrainer.resume(sys.argv[1], conftest.Sevens())
trainer.step = 3
left = int(sys.argv[2])
def dying(original):
    def call(*args):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
        return original(*args)
    return call
os.fsync, Path.rename = dying(os.fsync), dying(Path.rename)
trainer.save_checkpoint(sys.argv[1])
print(int(sys.argv[2]) - left)
"""

    def save(calls: int) -> subprocess.CompletedProcess:
        arguments = [sys.executable, "-c", script, checkpoint, str(calls)]
        return subprocess.run(arguments, check=False, cwd=Path(__file__).parents[2], capture_output=True, text=True)

    survived = []
    total = int(save(0).stdout)  # a whole save first, which says how many moments there are
    shutil.rmtree(checkpoint)
    for calls in (1, total // 2, total - 2, total - 1, total):
        shutil.copytree(saved[0], checkpoint, dirs_exist_ok=True)
        assert save(calls).returncode == -9
        resumed = GRPOTrainer.resume(checkpoint, make_trainer.task())
        assert_same_bits(bits(resumed.params), bits(load_pretrained(saved[0] / "model")[1]))
        survived.append(resumed.step)
        resumed.save_checkpoint(checkpoint)
        assert [path.name for path in checkpoint.parent.iterdir()] == ["checkpoint"]
        shutil.rmtree(checkpoint)
    # The last three moments: before the first rename, between the two, after both.
    assert survived == [2, 2, 2, 3, 3]


def test_an_exception_while_saving_keeps_the_old_checkpoint(checkpoint, make_trainer, monkeypatch):
    trainer = GRPOTrainer.resume(checkpoint, make_trainer.task())
    trainer.step = 7

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mx, "save_safetensors", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/checkpoint'$"):
        trainer.save_checkpoint(checkpoint)
    assert GRPOTrainer.resume(checkpoint, make_trainer.task()).step == 2
    assert [path.name for path in checkpoint.parent.iterdir()] == ["checkpoint"]


# Broken and foreign folders.

FILES = [
    "trainer_state.json", "optimizer.safetensors", "model/config.json", "model/model.safetensors",
    "model/tokenizer.json", "model/generation_config.json", "reference/config.json", "reference/model.safetensors",
    "model/mlx_grpo_kit.json", "mlx_grpo_kit.json",
]  # fmt: skip


def list_again(folder: Path) -> None:
    (folder / "mlx_grpo_kit.json").unlink()
    write_manifest(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(checkpoint, make_trainer, name):
    (checkpoint / name).unlink()
    listed_with = Path("checkpoint") if "mlx_grpo_kit.json" in name else Path("checkpoint", name).parent
    lost = Path("checkpoint", name).relative_to(listed_with)
    message = (
        "is not a checkpoint" if name == "mlx_grpo_kit.json" else f"{listed_with} has lost {lost}, which was saved"
    )
    with pytest.raises(FileNotFoundError, match=message):
        GRPOTrainer.resume(checkpoint, make_trainer.task())


@pytest.mark.parametrize("damage", ["cut off", "one bit", "empty"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file(checkpoint, make_trainer, name, damage):
    content = bytearray((checkpoint / name).read_bytes())
    if damage == "one bit":
        content[-8] ^= 1
    (checkpoint / name).write_bytes(
        content[: {"cut off": len(content) // 2, "one bit": len(content), "empty": 0}[damage]]
    )
    message = "mlx_grpo_kit.json" if name == "mlx_grpo_kit.json" else f"{name} is not what was saved: it is cut off"
    with pytest.raises(ValueError, match=message):
        GRPOTrainer.resume(checkpoint, make_trainer.task())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"step": 2', "is not valid JSON"),
        ("[]", "contains list; expected a JSON object"),
        ("{}", "lacks step, task, compute_dtype, args; it was written by another version"),
        ('{"step": 2, "task": "sevens", "args": {}}', "lacks compute_dtype"),
        ('{"step": 2, "task": "sevens", "args": null, "compute_dtype": "float32"}', "cannot be read"),
        ('{"step": -2, "task": "sevens", "args": {}, "compute_dtype": "float32"}', "cannot be read"),
        ('{"step": 2, "task": "sevens", "args": {"seed": "a"}, "compute_dtype": "float32"}', "cannot be read"),
        ('{"step": 2, "task": "sevens", "args": {}, "compute_dtype": "eval"}', "cannot be read"),
        (
            '{"step": 2, "task": "sevens", "args": {}, "compute_dtype": "float32", "own_parts": "loss"}',
            "cannot be read",
        ),
        ('{"step": 2, "task": "sevens", "args": {}, "compute_dtype": "float32", "origin": 7}', "cannot be read"),
    ],
)
def test_a_damaged_state(checkpoint, make_trainer, content, message):
    """Written by another version, or by hand with the list brought up to date."""
    (checkpoint / "trainer_state.json").write_text(content)
    list_again(checkpoint)
    with pytest.raises(ValueError, match=f"trainer_state.json {message}"):
        GRPOTrainer.resume(checkpoint, make_trainer.task())


def test_settings_of_another_version(checkpoint, make_trainer):
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    state["args"]["entropy_weight"] = 0.1
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    list_again(checkpoint)
    with pytest.raises(ValueError, match=r"has settings that GRPOConfig does not know: entropy_weight"):
        GRPOTrainer.resume(checkpoint, make_trainer.task())


def test_another_task(checkpoint, make_trainer):
    task = make_trainer.task()
    task.name = "eights"
    with pytest.raises(ValueError, match=r"was trained on task 'sevens', not 'eights'. Pass the same task"):
        GRPOTrainer.resume(checkpoint, task)


def test_what_is_no_checkpoint(checkpoint, make_trainer):
    task = make_trainer.task()
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*nowhere; expected a checkpoint"):
        GRPOTrainer.resume(checkpoint / "nowhere", task)
    with pytest.raises(FileNotFoundError, match=r"is not a checkpoint; expected a folder that save_checkpoint wrote"):
        GRPOTrainer.resume(checkpoint / "model", task)
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*trainer_state.json; expected a checkpoint"):
        GRPOTrainer.resume(checkpoint / "trainer_state.json", task)


def test_what_came_later_is_not_read(checkpoint, make_trainer):
    """A second policy, or an index that names one."""
    shutil.copytree(checkpoint / "reference", checkpoint / "model", dirs_exist_ok=True)
    with pytest.raises(ValueError, match=r"model/mlx_grpo_kit.json is not what was saved"):
        GRPOTrainer.resume(checkpoint, make_trainer.task())


def test_an_index_beside_the_weights_is_not_followed(checkpoint, make_trainer):
    index = {"weight_map": {"model.norm.weight": "model.safetensors"}}
    (checkpoint / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"model/model.safetensors.index.json came after the rest was saved"):
        GRPOTrainer.resume(checkpoint, make_trainer.task())


@pytest.mark.parametrize("place", ["thesis.tex", "model/thesis.tex", "notes/thesis.tex"])
def test_a_checkpoint_with_something_else_in_it_is_not_replaced(checkpoint, make_trainer, place):
    (checkpoint / place).parent.mkdir(exist_ok=True)
    (checkpoint / place).write_text("mine")
    trainer = GRPOTrainer.resume(checkpoint, make_trainer.task())
    named = place.replace("notes/thesis.tex", "notes/")
    with pytest.raises(FileExistsError, match=f"contains {named}, which the kit did not write"):
        trainer.save_checkpoint(checkpoint)
    assert (checkpoint / place).read_text() == "mine"


# Other settings.


def test_a_resumed_run_may_learn_at_another_rate(checkpoint, make_trainer):
    trainer = GRPOTrainer.resume(checkpoint, make_trainer.task(), learning_rate=1e-5, lr_scheduler_type="constant")
    step = next(trainer.train(5))
    assert (step.step, step.metrics["learning_rate"]) == (3, 1e-5 * 3 / 4)  # still warming up
    changed = GRPOTrainer.resume(
        checkpoint, make_trainer.task(), gradient_checkpointing=True, completion_batch_size=4, max_grad_norm=2.0
    )
    assert (changed.args.gradient_checkpointing, changed.args.completion_batch_size) == (True, 4)
    assert next(changed.train(5)).step == 3
    with pytest.raises(ValueError, match=r"seed cannot change during a run; only learning_rate, .* can"):
        GRPOTrainer.resume(checkpoint, make_trainer.task(), seed=1)
