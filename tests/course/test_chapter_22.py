"""Chapter 22 against torch and simulation, claims of its prose, and a run without its packages."""

import copy
import heapq
import os
import re
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from mlx_grpo_kit.assets import TINY
from mlx_grpo_kit.course.chapters.chapter_22 import exercises as chapter
from mlx_grpo_kit.course.chapters.chapter_22 import parts
from mlx_grpo_kit.course.chapters.chapter_22.toys import loss_of_lines
from mlx_grpo_kit.qwen3 import load_pretrained
from mlx_grpo_kit.runtime import mx
from tests.course.stored import NOTEBOOKS, cells, printed

NOTEBOOK = NOTEBOOKS / "22_training_backends.ipynb"

# Ground truth.


def test_the_smallest_backend_equals_torchs_sgd():
    params = {"slope": torch.tensor(0.5, requires_grad=True), "height": torch.tensor([0.0, 1.0], requires_grad=True)}
    theirs = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
    with ThreadPoolExecutor(1) as worker:
        backend = chapter.SmallestBackend(worker, params, loss_of_lines, 0.05)
        optimizer = torch.optim.SGD(theirs.values(), lr=0.05)
        for plan in ([(1.0, 2.0)], [(3.0, -1.0), (0.5, 0.25)]):
            for batch in plan:
                future = backend.forward_backward(batch)
                loss = loss_of_lines(theirs, batch)
                loss.backward()
                assert future.result() == pytest.approx(loss.item())
            backend.optim_step().result()
            optimizer.step()
            optimizer.zero_grad()
    for name, value in theirs.items():
        np.testing.assert_allclose(backend.params[name].detach(), value.detach(), rtol=1e-6)


def test_kept_weights_are_as_the_exercise_says():
    """Run each line of the exercise before a step that moves every number."""
    prompt = chapter.KEPT.prompt.partition("\n\n")[2]
    lines = re.findall(r"([A-H]): `(kept = .*?)`(?:, and the step is `(.*?)`)?", prompt)
    assert [letter for letter, *_ in lines] == list("ABCDEFGH")
    still, step = "", None
    for letter, keep, own_step in lines:
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model(torch.ones(1, 3)).sum().backward()
        arrays = {name: mx.array(value.detach().numpy()) for name, value in model.named_parameters()}
        state = {"copy": copy, "model": model, "optimizer": optimizer, "params": arrays, "lr": 0.5}
        state["grads"] = {name: mx.ones_like(value) for name, value in arrays.items()}
        before = {name: np.array(value) for name, value in arrays.items()}
        step = own_step or step or "optimizer.step()"
        exec(keep, state)
        exec(step, state)
        moved = state["params"] if letter in "FGH" else model.state_dict()
        assert not any(np.allclose(np.array(moved[name]), value) for name, value in before.items())
        if all(np.array_equal(np.array(state["kept"][name]), value) for name, value in before.items()):
            still += letter
    assert still == chapter.KEPT.solution


def simulated(write, learn, num_steps, max_lag):
    """The same times by a simulation of events: whatever may begin begins, the earliest first."""
    times = [[None] * 4 for _ in range(num_steps)]
    events, written, learned, writing, learning, now = [], deque(), 0, 0, False, 0.0
    busy = False
    while learned < num_steps:
        if not busy and writing < num_steps and learned >= writing - max_lag:
            busy, times[writing][0] = True, now
            heapq.heappush(events, (now + write, 0, writing))
            writing += 1
        if not learning and written:
            number = written.popleft()
            learning, times[number][2] = True, now
            heapq.heappush(events, (now + learn, 1, number))
        now, kind, number = heapq.heappop(events)
        times[number][1 + 2 * kind] = now
        if kind == 0:
            busy = False
            written.append(number)
        else:
            learning, learned = False, learned + 1
    return [tuple(each) for each in times]


@pytest.mark.parametrize("max_lag", [0, 1, 2, 5])
def test_the_times_of_an_asynchronous_run_are_those_of_a_simulation(max_lag):
    for write, learn in ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (0.3, 3.1)):
        found = np.array(chapter.async_times(write, learn, 8, max_lag))
        np.testing.assert_allclose(found, np.array(simulated(write, learn, 8, max_lag)))
        _, lags = parts.asynchronous(found)
        assert 0 <= min(lags) <= max(lags) <= max_lag


def test_the_claims_of_the_prose_hold():
    def step_time(fetch, compute, ahead):
        bars = parts.pipeline(chapter.schedule, fetch, compute, ahead, 30)
        ends = [bar.end for bar in bars if bar.kind == "learns from it"]
        return ends[-1] - ends[-2]

    # 40 and 60 ms: their sum at 0 steps ahead, the longer one at 1, and no gain after that.
    assert [step_time(40, 60, ahead) for ahead in range(5)] == pytest.approx([100, 60, 60, 60, 60])
    assert [step_time(60, 40, ahead) for ahead in range(3)] == pytest.approx([100, 60, 60])

    def pace(write, learn, max_lag):
        times = chapter.async_times(write, learn, 30, max_lag)
        return times[-1][3] - times[-2][3], max(parts.asynchronous(times)[1])

    assert pace(1.0, 1.5, 0) == (pytest.approx(2.5), 0)
    assert [pace(1.0, 1.5, lag)[0] for lag in (1, 2, 4)] == pytest.approx([1.5] * 3)
    assert pace(1.0, 1.5, 4)[1] == 4, "the batches only get staler"
    assert pace(2.0, 0.5, 4)[1] <= 1, "a slow engine does not use up the lag"
    _, params = load_pretrained(TINY)
    size = sum(value.nbytes for value in params.values())
    assert 9e6 < 8 * size < 11e6  # ten million bits
    assert printed(cells("22")["matrix"]).count("checkpoint 3.") == 5, "about three times the model's 1.2 MB"
    assert size == pytest.approx(1.2e6, rel=0.05)


# Without the packages.

HIDDEN = ("jax", "optax", "orbax", "torchopt", "torchax", "trio")

RUN = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
import nbformat
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in nbformat.read({notebook!r}, as_version=4).cells:
    if cell.cell_type == "code":
        print("##", cell.id)
        result = shell.run_cell(cell.source)
        if not result.success:
            print("FAILED", cell.id)
            sys.exit(1)
"""


def test_the_chapter_runs_without_its_packages_and_says_what_it_skips(tmp_path):
    program = RUN.format(hidden=HIDDEN, notebook=str(NOTEBOOK))
    environment = os.environ | {"MLX_GRPO_KIT_PROGRESS": str(tmp_path / "progress.json"), "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    for words in (
        "torch.func  skipped: torchopt is not installed (pip install 'mlx_grpo_kit[backends]')",
        "JAX         skipped: jax is not installed",
        "torchax     skipped: jax is not installed",
    ):
        assert words in done.stdout
    assert done.stdout.count("skipped: trio is not installed") == 3
    assert "PyTorch     gradient norm" in done.stdout
    assert "MLX         gradient norm" in done.stdout


def test_installed_packages_are_not_skipped():
    assert [parts.absent(name) for name in (*parts.PACKAGES, "trio")] == [""] * 6
    assert "skipped: no_such_package is not installed" in parts.absent("no_such_package")
