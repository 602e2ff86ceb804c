"""The guides of the book: every name of the kit on the page of names exists."""

import importlib
import re

import numpy as np
import pytest

from mlx_grpo_kit.course.book import website
from mlx_grpo_kit.course.catalogue import find as exercise
from mlx_grpo_kit.course.syllabus import COURSE
from mlx_grpo_kit.course.teaching.assignment import check_hidden
from mlx_grpo_kit.grpo import GRPOLossConfig
from mlx_grpo_kit.grpo.off_policy import importance_weights
from mlx_grpo_kit.runtime import mx
from tests.every import every

[NAMES] = [guide for guide in website.GUIDES if guide.name == "names.md"]
ROWS = [line for line in NAMES.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
CELLS = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in ROWS if not row.startswith("| ---")]
OURS = sorted({name for row in CELLS for name in re.findall(r"`([^`]+)`", row[1])})


def find(path):
    """The object at `mlx_grpo_kit.<path>`: a module, a name in one, or an attribute that a class declares."""
    modules, names = ["mlx_grpo_kit"], path.split(".")
    while names:
        try:
            importlib.import_module(".".join([*modules, names[0]]))
        except ModuleNotFoundError:
            break
        modules.append(names.pop(0))
    found = importlib.import_module(".".join(modules))
    for name in names:
        annotations = [vars(kind).get("__annotations__", {}) for kind in getattr(found, "__mro__", ())]
        if not hasattr(found, name) and any(name in each for each in annotations):
            return name
        found = getattr(found, name)
    return found


@every("name", OURS)
def test_every_name_of_the_kit_exists(name):
    find(name)


def test_the_guide_on_training_says_what_a_truncated_ratio_is():
    config = GRPOLossConfig(importance_sampling_correction="token_truncate")
    logps, mask = mx.log(mx.array([[0.9, 0.5, 0.2]])), mx.array([[True] * 3])
    weights = importance_weights(config, logps, mx.log(mx.array([[0.1, 0.5, 0.8]])), mask)
    bound = config.importance_sampling_clip_max
    np.testing.assert_allclose(weights, [[min(0.9 / 0.1, bound), 1, 0.25]], rtol=1e-5)
    [guide] = [each.read_text(encoding="utf-8") for each in website.GUIDES if each.name == "training.md"]
    assert f"multiplies the loss of each token by min(p / q, {bound:g})" in guide


def test_the_six_weeks_of_the_guide_for_instructors():
    """Hours are those of the syllabus; exercises belong to the week, have hidden cases, and make one assignment."""
    [guide] = [each.read_text(encoding="utf-8") for each in website.GUIDES if each.name == "teaching.md"]
    weeks = re.findall(r"^\| \d \| (\d\d) to (\d\d) \| ([\d.]+) \|.*?\| ([\d. ]+) \|$", guide, flags=re.M)
    assert len(weeks) == 6
    for first, last, hours, ids in weeks:
        minutes = sum(chapter.minutes for chapter in COURSE if first <= chapter.number <= last)
        assert float(hours) == round(minutes / 30) / 2, (first, minutes)
        chosen = [exercise(id) for id in ids.split()]
        assert all(first <= each.id[:2] <= last for each in chosen)
        check_hidden(chosen)
    used = {id for line in re.findall(r"mlx-grpo-kit assignment ([\d. ]+) --output", guide) for id in line.split()}
    check_hidden([exercise(id) for id in used])
    assert used


def test_a_name_that_does_not_exist_is_detected():
    for name in ("autograd.value_and_gradient", "grpo.GRPOConfig.epsilon_low", "no_module.at_all"):
        with pytest.raises(AttributeError):
            find(name)


def test_every_row_has_three_columns_and_a_name_of_the_kit():
    for row in CELLS:
        assert len(row) == 3, row
        assert row[1] == "here" or re.fullmatch(r"`[\w.]+`(, `[\w.]+`)*", row[1]), row
    assert len(OURS) > 80


@every(
    ("theirs", "ours"),
    [
        ("trainStepGrpoAutograd", "grpo.GRPOTrainer.train_step"),
        ("qwen3_forward_functional", "qwen3.qwen3_forward"),
        ("attention_functional", "qwen3.forward.attention"),
        ("reduce_broadcast_dims", "tensor.graph.unbroadcast"),
        ("exp_backward", "tensor.RULES"),
        ("ctx.save_for_backward", "tensor.function.Context"),
        ("optimizer_fn", "backends.TorchFuncTrainingBackend.from_model"),
        ("valueAndGrad", "autograd.value_and_grad"),
        ("second-order gradients", "autograd.hvp`, `autograd.hessian"),
        ("mx::compile", "autograd.compile_value_and_grad"),
        ("gradients of each layer", "qwen3.statistics.layer_statistics"),
        ("MLX_PRINT_GRAPH", "autograd.graph_text"),
    ],
)
def test_the_page_has_a_row_for_the_name(theirs, ours):
    [row] = [row for row in CELLS if theirs in row[0]]
    assert f"`{ours}" in row[1]
