"""The guide about many machines: its table is what its code prints, and its formulas are the course's and the kit's."""

import re
from dataclasses import replace

import numpy as np
import pytest

from mlx_grpo_kit.course.book import website
from mlx_grpo_kit.course.catalogue import find
from mlx_grpo_kit.course.chapters.chapter_21.ring import run_in_ring
from mlx_grpo_kit.grpo import GRPOConfig, estimate_memory
from mlx_grpo_kit.qwen3 import Qwen3Config, count_total_parameters

[PAGE] = [guide for guide in website.GUIDES if guide.name == "scale.md"]
TEXT = PAGE.read_text(encoding="utf-8")
[BLOCK] = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)
SIZES = ("0.6B", "8B", "32B")


@pytest.fixture(scope="module")
def names():
    names = {}
    exec(compile(BLOCK, PAGE.name, "exec"), names)
    return names


def test_the_table_on_the_page_is_the_table_of_its_code(names):
    rows = [*names["table"]()]
    assert len(rows) == 2 * 3 * 3
    assert re.findall(r"^\| (?:Mac|GPU) \| .*\|$", TEXT, flags=re.M) == rows


def test_the_machines_in_the_text_are_those_of_the_code(names):
    for kind, words, operations in (("Mac", "10^13", 1e13), ("GPU", "4 · 10^14", 4e14)):
        flops, memory, network, room = names["MACHINES"][kind]
        assert flops == operations
        shown = f"| {words} | {memory / 1e9:,.0f} GB | {8 * network / 1e9:.0f} Gbit | {room / 1e9:.0f} GB |"
        assert re.search(rf"^\| {kind}: .*{re.escape(shown)}$", TEXT, flags=re.M)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["Mac", "GPU"])
def test_communication_and_learning_are_those_of_chapter_21(kind, size, names):
    step_seconds, params = find("21.10").solution, count_total_parameters(Qwen3Config.from_name(size))
    flops, _, network, _ = names["MACHINES"][kind]
    for count in (1, 8, 64):
        learning, _, waiting, _, engine = names["step"](kind, size, count)
        tokens = 64 * 8 * (64 + 256)
        expected = step_seconds(params, tokens, count, flops, 8 * network / 1e9)
        assert learning == pytest.approx(expected[0] * 8 / 6)  # checkpointing: one more forward pass
        if engine == "mx.distributed":
            assert waiting == pytest.approx(expected[1])
        elif engine == "FSDP2, JAX mesh":  # as many bytes for each of the micro-batches of 8 completions
            assert waiting == pytest.approx(expected[1] * 64 / count)
        else:
            assert waiting == 0


@pytest.mark.parametrize("count", [2, 8])
def test_a_ring_that_is_watched_sends_what_the_formula_says(count):
    arrays = [np.arange(16 * count, dtype=float) + rank for rank in range(count)]
    ran = run_in_ring(find("21.9").solution, arrays)
    assert ran.sent == [2 * (count - 1) * 16] * count
    np.testing.assert_allclose(ran.results[0], sum(arrays))


@pytest.mark.parametrize("size", SIZES)
def test_memory_is_that_of_estimate_memory(size, names):
    for kind in ("Mac", "GPU"):
        for count in (1, 8, 64):
            *_, held, engine = names["step"](kind, size, count)
            parts = estimate_memory(Qwen3Config.from_name(size), names["ARGS"], 64, 256, count)
            if engine in ("one process", "mx.distributed"):
                assert held == parts["total"] <= names["MACHINES"][kind][3]
            elif engine == "FSDP2, JAX mesh":
                assert parts["total"] > names["MACHINES"][kind][3] >= held > 16 * parts["parameters"] / 4 / count


def test_measured_numbers_are_next_to_computed_ones():
    config = Qwen3Config.from_name("0.6B")
    params = count_total_parameters(config)
    total = estimate_memory(config, GRPOConfig(gradient_checkpointing=True), 12, 64)["total"]
    learning, sampling = 8 * params * 8 * (12 + 64) / 1e11, 64 * 4 * params / 1e10
    assert f"| 9.7 GB | {total / 1e9:.1f} GB |" in TEXT
    assert f"| 36, 15 | {learning + sampling:.0f}, {sampling:.0f} |" in TEXT
    measured = next(guide for guide in website.GUIDES if guide.name == "real_qwen3.md").read_text(encoding="utf-8")
    assert "| and `--gradient-checkpointing` | 9.7 GB | 10.3 GB | 36 s |" in measured
    assert "Sampling takes 15 seconds of it" in measured
    assert "takes 583 to 606 ms per step in one process" in measured
    assert "478 to 525 ms in two processes" in measured


def test_adapters_take_the_stated_memory(names):
    for size in ("8B", "32B"):
        held = estimate_memory(Qwen3Config.from_name(size), replace(names["ARGS"], lora_r=8), 64, 256, 8)["total"]
        assert f"{held / 1e9:.0f} GB for {size}" in TEXT
