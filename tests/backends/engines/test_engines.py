"""Engines: what they generate, which weights they serve, and what is left when one of them fails."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import trio

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.backends.inference_engines import EngineError, MLXEngine, WeightSyncError, sync_weights_to_engines
from mlx_grpo_kit.backends.inference_process import ProcessEngine
from mlx_grpo_kit.generation import SamplingConfig, generate
from mlx_grpo_kit.runtime import mx

PROMPTS = [[5, 6, 7], [5, 6, 7], [9, 2], [9, 2]]
SETTINGS = {"sampling": SamplingConfig(6), "eos_token_ids": [1], "seed": 4}


@pytest.fixture(scope="module")
def shared_process(tiny):
    """One process for the tests that leave it alive: starting one takes a second."""
    config, params, _ = tiny
    with ProcessEngine(config, params, name="over there") as engine:
        yield engine


@pytest.fixture(params=["in process", "in a process"])
def engine(request, tiny):
    config, params, _ = tiny
    if request.param == "in a process":
        engine = request.getfixturevalue("shared_process")
        engine.load_weights(params, 0, allow_older=True).wait()
        yield engine
    else:
        with MLXEngine(config, params) as engine:
            yield engine


def doubled(params):
    return {name: value * 2 for name, value in params.items()}


def rows_of(engine):
    return engine.generate(PROMPTS, **SETTINGS).wait().rollout.logps


def test_an_engine_generates_what_generate_does(engine, tiny):
    config, params, _ = tiny
    expected = generate(config, params, PROMPTS, **SETTINGS)
    rollout, version = engine.generate(PROMPTS, **SETTINGS).wait()
    assert rollout.completions == expected.completions
    assert rollout.finished == expected.finished
    np.testing.assert_allclose(np.concatenate(rollout.logps), np.concatenate(expected.logps), atol=1e-5)
    assert version == engine.weight_version == 0


def test_operations_are_done_in_order_and_each_rollout_says_whose_it_is(engine, tiny):
    """Weights that are loaded between two generations, all submitted at once, divide them."""
    _, params, _ = tiny
    before = engine.generate(PROMPTS, **SETTINGS)
    loading = engine.load_weights(doubled(params), 3)
    after = engine.generate(PROMPTS, **SETTINGS)
    assert (before.wait().weight_version, loading.wait(), after.wait().weight_version) == (0, 3, 3)
    assert before.wait().rollout.logps != after.wait().rollout.logps


def test_weights_are_taken_whole_or_not_at_all(engine, tiny):
    _, params, _ = tiny
    before = rows_of(engine)
    wrong = {
        "Missing parameter": {name: value for name, value in params.items() if name != "final_norm.weight"},
        "Unknown parameter 'more'": params | {"more": mx.ones(3)},
        "has shape": doubled(params) | {"final_norm.weight": mx.ones(3)},
        "are NaN or infinite": doubled(params)
        | {"final_norm.weight": mx.full(params["final_norm.weight"].shape, mx.nan)},
    }
    for said, weights in wrong.items():
        with pytest.raises(ValueError, match=said):
            engine.load_weights(weights, 9).wait()
        assert engine.weight_version == 0
    for version in (-1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="expected a whole number from 0"):
            engine.load_weights(params, version).wait()
    assert rows_of(engine) == before


def test_versions_do_not_go_back_unless_asked(engine, tiny):
    _, params, _ = tiny
    engine.load_weights(doubled(params), 7).wait()
    with pytest.raises(ValueError, match=r"serves version 7, and these weights are version 6.*allow_older"):
        engine.load_weights(params, 6).wait()
    assert engine.weight_version == 7
    assert engine.load_weights(params, 7).wait() == 7
    assert engine.load_weights(params, 2, allow_older=True).wait() == 2
    assert engine.weight_version == 2


def test_what_the_model_cannot_continue_is_refused_in_its_words_and_the_engine_goes_on(engine):
    with pytest.raises(ValueError, match=r"prompts\[0\] contains token id 999"):
        engine.generate([[999]], **SETTINGS).wait()
    with pytest.raises(TypeError, match="is text"):
        engine.generate(["7+8="], **SETTINGS).wait()
    assert len(rows_of(engine)) == 4


def test_without_weights_there_is_nothing_to_generate_with(tiny):
    with MLXEngine(tiny[0], name="new") as engine:
        assert engine.weight_version is None
        with pytest.raises(EngineError, match="Inference engine 'new' has no weights yet"):
            engine.generate(PROMPTS).wait()
    with pytest.raises(RuntimeError, match="closed"):
        engine.generate(PROMPTS)
    engine.close()


def test_a_function_does_not_cross_to_another_process(shared_process):
    with pytest.raises(ValueError, match=r"another process, and `stop` is a function of this one"):
        shared_process.generate(PROMPTS, stop=lambda tokens: False)


# Syncing.


@pytest.fixture
def checkpoint(make_any_backend):
    backend = make_any_backend(TINY)
    weights = {name: backend._copy(value) * 1.5 for name, value in backend.get_weights().wait().items()}
    backend.load_weights(weights).wait()
    for step in (1, 2):
        folder = trio.run(backend.save_checkpoint, step, {"loss": 0.5})
    return folder


def test_every_backends_checkpoint_is_served(checkpoint, engine, tiny):
    """Acceptance criterion: "Integration with D5 weight sync (decoupled, user-orchestrated)".

    By several engines at once; what they write is what the weights times 1.5 write.
    """
    config, params, _ = tiny
    with MLXEngine(config, name="second") as second:
        served = trio.run(sync_weights_to_engines, [engine, second], str(checkpoint))
        assert [(each.engine, each.weight_version, each.error) for each in served] == [
            (engine.name, 2, None),
            ("second", 2, None),
        ]
        expected = generate(config, {name: value * 1.5 for name, value in params.items()}, PROMPTS, **SETTINGS)
        for each in (engine, second):
            rollout, version = each.generate(PROMPTS, **SETTINGS).wait()
            assert version == 2
            assert rollout.completions == expected.completions
            np.testing.assert_allclose(np.concatenate(rollout.logps), np.concatenate(expected.logps), atol=1e-5)


def test_a_sync_in_asyncio(make_backend, tiny):
    config, params, _ = tiny
    backend = make_backend(TINY)

    async def sync():
        return await sync_weights_to_engines(engines, await backend.save_checkpoint(1))

    with MLXEngine(config, name="one") as one, MLXEngine(config, params, name="two") as two:
        engines = [one, two]
        assert [each.weight_version for each in asyncio.run(sync())] == [1, 1]
        two.close()
        with pytest.raises(WeightSyncError, match="1 of 2 inference engines did not load version 2"):
            asyncio.run(sync())


def test_one_engine_that_fails_is_named_and_the_others_are_served(checkpoint, tiny, make_qwen3, tmp_path):
    config, params, _ = tiny
    _, other, _ = make_qwen3(0.1, vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                             num_attention_heads=2, num_key_value_heads=1, head_dim=4)  # fmt: skip
    with MLXEngine(config, name="good") as good, MLXEngine(other, name="other model") as bad, MLXEngine(
        config, params, 5, name="ahead"
    ) as ahead:  # fmt: skip
        with pytest.raises(WeightSyncError) as caught:
            trio.run(sync_weights_to_engines, [bad, good, ahead], checkpoint)
        said = str(caught.value)
        assert "2 of 3 inference engines did not load version 2" in said
        assert "'other model' still has version None" in said
        assert "'ahead' still has version 5" in said
        assert said.endswith("Engines with version 2: 'good'.")
        assert [each.weight_version for each in caught.value.served] == [None, 2, 5]
        assert isinstance(caught.value.__cause__, ValueError)

        async def go_back():
            return await sync_weights_to_engines([ahead], checkpoint, allow_older=True)

        assert [each.weight_version for each in trio.run(go_back)] == [2]


def test_a_checkpoint_that_is_not_whole_reaches_no_engine(checkpoint, tiny):
    config, params, _ = tiny
    with MLXEngine(config, params, 1) as engine:
        before = rows_of(engine)
        (file,) = [
            each for each in checkpoint.iterdir() if each.name in ("pytorch_model.bin", "model.safetensors")
        ] or [max((each for each in checkpoint.rglob("*") if each.is_file()), key=lambda each: each.stat().st_size)]
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[len(flipped) // 2] ^= 1
        for broken in (bytes(flipped), content[:-1], b""):
            file.write_bytes(broken)
            with pytest.raises(ValueError, match=r"differs from the saved file|bytes"):
                trio.run(sync_weights_to_engines, [engine], checkpoint)
        file.unlink()
        with pytest.raises(FileNotFoundError, match="lacks"):
            trio.run(sync_weights_to_engines, [engine], checkpoint)
        with pytest.raises(FileNotFoundError, match="There is no folder"):
            trio.run(sync_weights_to_engines, [engine], checkpoint / "nowhere")
        assert engine.weight_version == 1
        assert rows_of(engine) == before
    with pytest.raises(ValueError, match="There are no inference engines"):
        trio.run(sync_weights_to_engines, [], checkpoint)


@pytest.mark.parametrize("make_any_backend", ["pytorch", "torch_func", "torchax"], indirect=True)
def test_no_pickle_in_a_checkpoint_is_run(checkpoint, tiny, tmp_path):
    """Somebody who can write the folder can write its hashes too; code in it is still not run."""
    import hashlib

    from mlx_grpo_kit.files.manifest import write_manifest

    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    file = checkpoint / "pytorch_model.bin"
    assert file.exists()
    torch.save({"model.norm.weight": Trap()}, file)
    metadata = json.loads((checkpoint / "metadata.json").read_text())
    content = file.read_bytes()
    metadata["files"][file.name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "metadata.json").write_text(json.dumps(metadata))
    (checkpoint / "mlx_grpo_kit.json").unlink()
    write_manifest(checkpoint)
    with MLXEngine(tiny[0]) as engine, pytest.raises(ValueError, match="cannot be read"):
        trio.run(sync_weights_to_engines, [engine], checkpoint)
    assert not (tmp_path / "sprung").exists()


# Processes that end.


def is_gone(process_id):
    """Whether a process has ended, within ten seconds."""
    for _ in range(200):
        try:
            status = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if status == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_process_that_dies_is_named_and_the_others_are_served(tiny, make_backend):
    config, params, _ = tiny
    checkpoint = trio.run(make_backend(TINY).save_checkpoint, 1)
    with ProcessEngine(config, params, name="mortal") as mortal, MLXEngine(config, name="other") as other:
        os.kill(mortal._process.pid, signal.SIGKILL)
        with pytest.raises(WeightSyncError, match=r"'mortal'.*ended by signal SIGKILL.*'other'\.$") as caught:
            trio.run(sync_weights_to_engines, [mortal, other], checkpoint)
        assert [each.weight_version for each in caught.value.served] == [0, 1]
        with pytest.raises(EngineError, match=rf"engine 'mortal' is gone: its process {mortal._process.pid} ended by"):
            mortal.generate(PROMPTS).wait()


ORPHAN = """
import os, sys, time
from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.backends.inference_process import ProcessEngine
from mlx_grpo_kit.generation import SamplingConfig
from mlx_grpo_kit.qwen3 import load_pretrained
config, params = load_pretrained(TINY)
engine = ProcessEngine(config, params)
future = engine.generate([[5] * 4] * 512, sampling=SamplingConfig(100))  # in flight
print(engine._process.pid, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
elif sys.argv[1] == "raises":
    raise ValueError("on purpose")
"""


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_a_process_ends_with_its_parent_even_in_the_middle_of_its_work(how):
    ended = subprocess.run([sys.executable, "-c", ORPHAN, how], capture_output=True, text=True, timeout=60)
    assert is_gone(int(ended.stdout))
    if how == "raises":
        assert "on purpose" in ended.stderr
        assert "terminate called" not in ended.stderr, "it ends as it should"
        assert ended.returncode == 1


def test_closing_ends_the_process_whatever_it_does(tiny):
    config, params, _ = tiny
    engine = ProcessEngine(config, params)
    future = engine.generate([[5] * 4] * 512, sampling=SamplingConfig(100))
    engine.close()
    engine.close()
    assert is_gone(engine._process.pid)
    with pytest.raises((EngineError, RuntimeError)):
        future.wait(20)
