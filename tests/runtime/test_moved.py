"""An import that no longer works says where the kit has the same name."""

import importlib
import importlib.util
import re
import subprocess
import sys

import pytest

# Imports of notebooks of earlier versions.
OLD = [
    ("mlx_grpo_kit.viz", "draw_boundary"),
    ("mlx_grpo_kit.viz", "shape_explorer"),
    ("mlx_grpo_kit.blas", "mx"),
    ("mlx_grpo_kit.recipe", "default_args"),
    ("mlx_grpo_kit.course.microscope", "show_microscope"),
    ("mlx_grpo_kit.course.edges", "measure_edges"),
    ("mlx_grpo_kit.backends.torch_qwen3", "Qwen3"),
    ("mlx_grpo_kit.viz.sliding", "draw_convolution"),
    ("mlx_grpo_kit.viz.pictures.tensors.sliding", "draw_im2col"),
    ("mlx_grpo_kit.viz.pictures.qwen3.attention_maps", "draw_attention_maps"),
    ("mlx_grpo_kit.viz.pictures.start.course_map", "draw_course"),
    ("mlx_grpo_kit.viz.widgets.dashboard", "Dashboard"),
    ("mlx_grpo_kit.grpo", "load_pretrained"),
]


@pytest.mark.parametrize(("module", "name"), OLD)
def test_an_old_import_says_where_the_name_is(module, name):
    with pytest.raises(ImportError, match="`mlx-grpo-kit lab --fresh`") as raised:
        exec(f"from {module} import {name}", {})
    words = str(raised.value)
    assert f"This version of mlx_grpo_kit has no {module}" in words
    places = re.search(r"Of that name it has (.*)\. A notebook", words)[1].split(", ")
    for place in places:
        if place.endswith(f".{name}"):
            home = importlib.import_module(place.rpartition(".")[0])
        else:
            home = importlib.import_module(place)
        if hasattr(home, name):
            return
    pytest.fail(words)


def test_a_public_name_is_named_by_its_package_first():
    with pytest.raises(ImportError, match=r"Of that name it has mlx_grpo_kit\.qwen3\.load_pretrained"):
        from mlx_grpo_kit.grpo import load_pretrained  # noqa: F401


def test_names_that_exist_nowhere_get_pythons_own_error():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'mlx_grpo_kit\.nothing_of_this_name'$"):
        importlib.import_module("mlx_grpo_kit.nothing_of_this_name")
    with pytest.raises(ImportError, match=r"^cannot import name 'nothing_of_this_name' from 'mlx_grpo_kit\.viz'"):
        exec("from mlx_grpo_kit.viz import nothing_of_this_name", {})
    assert importlib.util.find_spec("mlx_grpo_kit.nothing_of_this_name") is None
    assert not hasattr(importlib.import_module("mlx_grpo_kit.viz"), "draw_boundary")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'mlx_grpo_kit_of_others'$"):
        importlib.import_module("mlx_grpo_kit_of_others")


def test_looking_for_moved_names_loads_nothing():
    program = "import sys, mlx_grpo_kit; print(sorted(name for name in sys.modules if name.startswith('mlx')))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == str(["mlx_grpo_kit", "mlx_grpo_kit.runtime", "mlx_grpo_kit.runtime.moved"])
