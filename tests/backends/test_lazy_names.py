"""Importing the backends loads no framework, and one that is not installed is named with the way to get it."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys

import pytest

from mlx_grpo_kit import autograd, backends, grpo, qwen3, tasks
from mlx_grpo_kit.grpo import learners
from mlx_grpo_kit.runtime.extras import install


def test_importing_loads_nothing_and_a_name_only_its_own_framework():
    script = """
import sys
import mlx_grpo_kit.backends as backends
frameworks = {"torch", "mlx.core", "jax", "optax", "torchopt", "torchax", "trio"}
print(sorted(frameworks & sys.modules.keys()))
backends.TrainingBackend, backends.TrainFuture, backends.TrainingError, backends.newest_checkpoint
print(sorted(frameworks & sys.modules.keys()))
backends.PyTorchTrainingBackend
print(sorted(frameworks & sys.modules.keys()))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["[]", "[]", "['torch']"]


@pytest.mark.parametrize("package", [autograd, backends, grpo, learners, qwen3, tasks], ids=lambda it: it.__name__)
def test_every_name_that_an_editor_sees_is_there(package):
    [block] = [node for node in ast.parse(inspect.getsource(package)).body if isinstance(node, ast.If)]
    seen = {each.name: line.module for line in block.body for each in line.names}
    assert seen
    for name, home in seen.items():
        assert getattr(package, name) is getattr(importlib.import_module(home), name)
    assert {*package.__all__, *seen} <= {*dir(package)}
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not modules & seen.keys(), "importing this module would hide the name"
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        _ = package.Missing


@pytest.mark.parametrize("name", ["Engine", "EngineError", "WeightSyncError"])
def test_what_an_engine_is_and_what_it_raises_are_names_of_the_package(name):
    from mlx_grpo_kit.backends import inference_engines

    assert getattr(backends, name) is getattr(inference_engines, name)
    assert name in backends.__all__


def test_a_star_import_leaves_torch_compile_alone_and_needs_no_optional_package():
    script = """
import sys
for name in ("jax", "torchopt", "torchax"):
    sys.modules[name] = None
from mlx_grpo_kit.backends import *
PyTorchTrainingBackend, train_async, TrainingError
import torch
print(torch.compile(torch.nn.Linear(3, 2), backend="eager")(torch.ones(1, 3)).shape)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.stdout == "torch.Size([1, 2])\n", found.stderr


def test_what_is_not_installed_is_named_with_the_way_to_get_it(monkeypatch):
    for name in ("JAXTrainingBackend", "jax_backend"):
        monkeypatch.delitem(vars(backends), name, raising=False)
    monkeypatch.delitem(sys.modules, "mlx_grpo_kit.backends.jax_backend", raising=False)
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(ImportError, match=f"JAXTrainingBackend needs optax.*{re.escape(install('backends'))}"):
        _ = backends.JAXTrainingBackend
