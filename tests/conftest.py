"""What every test of the kit needs before it imports anything."""

import asyncio
import gc
import os
import signal

import pytest
from hypothesis import settings

# Nothing in the kit asks the network for anything, and neither may a library that a test compares it with.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if "PYTEST_XDIST_WORKER" in os.environ:
    # One process a core already: the threads of several workers would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import mlx_grpo_kit.runtime.blas  # noqa: F401  (before a test imports a library that imports MLX itself)
from tests import notebook_runs

# A shell has what it starts in the background ignore Ctrl-C, and the tests' own processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Two cores are shared with other work, so an example's time says nothing; the same examples on every run.
settings.register_profile("kit", deadline=None, derandomize=True)
settings.load_profile("kit")


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="tests/benchmarks: small models, few rounds, no race")


def pytest_configure(config):
    config.pluginmanager.register(notebook_runs.Plugin())


# A minute or more each. The last one would otherwise be the last of all.
BEGIN_WITH = (".ipynb", "test_notebooks_in_lab.py", "test_panels_in_lab.py", "test_book.py", "test_setup.py")


@pytest.hookimpl(trylast=True)  # after -k
def pytest_collection_modifyitems(items):
    """What takes long begins first: at the end of a run no process is left alone with it while the others wait."""
    items.sort(key=lambda item: next((i for i, name in enumerate(BEGIN_WITH) if item.path.name.endswith(name)), 9))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Nothing that is there before the tests begin is garbage, and a collection of garbage need not look through it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # after the fixtures of the file have ended
def pytest_runtest_teardown(item, nextitem):
    """Nor need it look through what a file of tests leaves behind: the libraries that it imported, most of all."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def outside_of_playwrights_loop(request):
    """Between two browser tests Playwright's event loop pauses in mid-run, and asyncio would see it running."""
    paused = None if "browser" in request.path.parts else asyncio._get_running_loop()
    if paused is not None:
        asyncio._set_running_loop(None)
    yield
    if paused is not None:
        asyncio._set_running_loop(paused)


@pytest.fixture(scope="session")
def make_qwen3(tmp_path_factory):
    """(noise, **settings of transformers' configuration) -> (transformers' model, config, params of it in the kit).

    `noise` is added to the usual first weights, which give every token nearly the same probability, and to the biases,
    which are 0. Another `model_type` gives a relative.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from mlx_grpo_kit.qwen3 import load_pretrained

    def make(noise, model_type="qwen3", **settings):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * noise)
        folder = tmp_path_factory.mktemp("qwen3")
        model.save_pretrained(folder)
        return model, *load_pretrained(folder)

    return make


@pytest.fixture(scope="session")
def smollm2():
    """The folder of SmolLM2, a real model, which `make test` gets; its path is a model's name in any command too."""
    from mlx_grpo_kit.cli.get import is_whole
    from mlx_grpo_kit.grpo.recipe import place_of

    folder = place_of("smollm2")
    if not is_whole(folder):
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"{folder} is not there or damaged: python -m mlx_grpo_kit get smollm2")
    return folder


@pytest.fixture(scope="module")
def reference(both):
    """The transformers' half of a file's `both`, which `make_qwen3` made."""
    return both[0]


@pytest.fixture(scope="module")
def model(both):
    """The kit's half: (config, params)."""
    return both[1:]


@pytest.fixture(scope="session")
def decay_groups():
    """A function from a torch model to its trained parameters, grouped for weight decay as transformers' trainer does.

    Norms and biases do not decay. TRL's trainers inherit this.
    """

    def groups_of(model):
        from transformers import Trainer

        decaying = Trainer.get_decay_parameter_names(None, model)
        groups = [{"params": []}, {"params": [], "weight_decay": 0.0}]
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                groups[name not in decaying]["params"].append(parameter)
        return groups

    return groups_of


@pytest.fixture
def outputs_of(monkeypatch):
    """A function from an object that displays itself to the mimebundles of its outputs, without a notebook."""
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **options: shown.append(data))

    def outputs_of(thing):
        shown.clear()
        thing._ipython_display_()
        return list(shown)

    return outputs_of
