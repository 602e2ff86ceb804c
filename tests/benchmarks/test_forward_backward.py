"""Forward and backward of 32 x 64 tokens: cross entropy of the next token at every position, and every gradient."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import mlx.nn as nn
import numpy as np
import pytest
import torch
from mlx.utils import tree_flatten

from mlx_grpo_kit.generation.sampling import token_logps
from mlx_grpo_kit.qwen3 import qwen3_forward
from mlx_grpo_kit.runtime import mx

ROWS, COLUMNS = 32, 64


def test_forward_and_backward(model, race, benchmark):
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, (ROWS, COLUMNS))
    inputs, labels = mx.array(ids[:, :-1]), mx.array(ids[:, 1:])
    hugging_face, mlx_lm = model.transformers(), model.mlx_lm()
    losses, norms = {}, {}

    def kit():
        def loss_fn(params):
            return -token_logps(qwen3_forward(model.config, params, inputs), labels).mean()

        loss, grads = mx.value_and_grad(loss_fn)(model.params)
        mx.eval(loss, grads)
        losses["kit"], norms["kit"] = loss, list(grads.values())

    value_and_grad = nn.value_and_grad(mlx_lm, lambda m: nn.losses.cross_entropy(m(inputs), labels, reduction="mean"))

    def mlx_lm_model():
        loss, grads = value_and_grad(mlx_lm)
        mx.eval(loss, grads)
        losses["mlx-lm"], norms["mlx-lm"] = loss, [grad for _, grad in tree_flatten(grads)]

    def transformers_model():
        hugging_face.zero_grad()
        logits = hugging_face(torch.tensor(ids[:, :-1])).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(ids[:, 1:]).flatten())
        loss.backward()
        losses["transformers"] = loss.detach()
        norms["transformers"] = [parameter.grad for parameter in hugging_face.parameters()]

    race(
        kit,
        {"mlx-lm's model, the same BLAS": mlx_lm_model, "transformers, torch CPU": transformers_model},
        targets={"mlx-lm's model, the same BLAS": 1.0},
        rounds=15,
    )
    expected = losses["transformers"].item()
    assert losses["kit"].item() == pytest.approx(expected, rel=1e-5)
    assert losses["mlx-lm"].item() == pytest.approx(expected, rel=1e-5)
    assert _norm(norms["kit"]) == pytest.approx(_norm(norms["transformers"]), rel=1e-4)
    assert _norm(norms["mlx-lm"]) == pytest.approx(_norm(norms["transformers"]), rel=1e-4)

    if sys.platform == "linux":  # the wheel as it comes needs a process of its own, since a BLAS is bound once
        loss, seconds = _stock_wheel(model.folder, ids, runs=3 if benchmark.enabled else 1)
        assert loss == pytest.approx(expected, rel=1e-5)
        if benchmark.enabled:
            row = {"name": "mlx-lm's model, stock Linux wheel", "min": min(seconds), "median": median(seconds)}
            benchmark.extra_info["rows"].append({**row, "target": 6.0})


def _norm(grads) -> float:
    return float(np.sqrt(sum(np.square(np.asarray(grad, np.float64)).sum() for grad in grads)))


STOCK_WHEEL = """
import json, pathlib, sys, time
import mlx.core as mx, mlx.nn as nn, numpy as np
from mlx_lm.utils import load_model

model, _ = load_model(pathlib.Path(sys.argv[1]))
ids = mx.array(np.load(sys.argv[2]))
def loss_fn(model):
    return nn.losses.cross_entropy(model(ids[:, :-1]), ids[:, 1:], reduction="mean")

value_and_grad = nn.value_and_grad(model, loss_fn)
seconds = []
for _ in range(int(sys.argv[3])):
    started = time.perf_counter()
    loss, grads = value_and_grad(model)
    mx.eval(loss, grads)
    seconds.append(time.perf_counter() - started)
print(json.dumps([loss.item(), seconds]))
"""


def _stock_wheel(folder: Path, ids: np.ndarray, runs: int) -> tuple[float, list[float]]:
    """mlx-lm's model on MLX as pip installs it: (loss, seconds of each run)."""
    np.save(folder / "ids.npy", ids)
    done = subprocess.run(
        [sys.executable, "-c", STOCK_WHEEL, str(folder), str(folder / "ids.npy"), str(runs)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    loss, seconds = json.loads(done.stdout.splitlines()[-1])
    return loss, seconds
